//! How a burst goes through the passes: all of it through one, then what is left of it through the next.

use crate::buffer::{BURST, PacketBuf};
use crate::verdict::{Step, Verdict};

/// How far ahead of its use a line is prefetched in the same pass.
pub(crate) const AHEAD: usize = 8;

/// The facts of one packet, filled in place by one pass after the other and never moved between them.
pub(crate) trait Facts: Copy {
    /// Place of the packet in its burst.
    fn at(&self) -> u8;
    /// Sets the place.
    fn set_at(&mut self, at: u8);
}

/// At most [`BURST`] buffers, and a verdict for each.
#[derive(Debug)]
pub(crate) struct Burst<'a, B> {
    pub(crate) bufs: &'a mut [B],
    pub(crate) verdicts: &'a mut [Verdict],
}

// Each pass is a function of its own, so that the compiler gives the registers to one stage at a time.
impl<B: PacketBuf> Burst<'_, B> {
    /// The first pass, over all buffers; returns how many facts there are.
    #[inline(never)]
    pub(crate) fn first<F: Facts>(
        &mut self,
        facts: &mut [F; BURST],
        stage: impl Fn(&B, &mut F) -> Step<()>,
    ) -> usize {
        self.bufs.iter().take(AHEAD).for_each(B::prefetch);
        let mut left = 0;
        for (at, (buf, verdict)) in self.bufs.iter().zip(self.verdicts.iter_mut()).enumerate() {
            if let Some(next) = self.bufs.get(at + AHEAD) {
                next.prefetch();
            }
            let Some(place) = facts.get_mut(left) else {
                break;
            };
            // A burst is far shorter than 256.
            place.set_at(at as u8);
            match stage(buf, place) {
                Ok(()) => left += 1,
                Err(why) => end(verdict, why),
            }
        }
        left
    }

    /// A pass over the first `count` facts; those that go on close ranks. Returns how many they are.
    #[inline(never)]
    pub(crate) fn next<F: Facts>(
        &mut self,
        facts: &mut [F; BURST],
        count: usize,
        mut stage: impl FnMut(&mut B, &mut F) -> Step<()>,
    ) -> usize {
        let mut left = 0;
        for from in 0..count {
            let Some(fact) = facts.get_mut(from) else {
                break;
            };
            let at = usize::from(fact.at());
            let (Some(buf), Some(verdict)) = (self.bufs.get_mut(at), self.verdicts.get_mut(at))
            else {
                break;
            };
            match stage(buf, fact) {
                Ok(()) => {
                    // Most bursts have no gap.
                    if from != left {
                        facts.copy_within(from..=from, left);
                    }
                    left += 1;
                }
                Err(why) => end(verdict, why),
            }
        }
        left
    }

    /// The last pass, over the first `count` facts and what `given` holds for each: where the packets leave. `ahead`
    /// prefetches for a packet a few places before `stage` gets it. Returns how many leave.
    #[inline(never)]
    pub(crate) fn last<F: Facts, G: Copy, S>(
        &mut self,
        facts: &[F; BURST],
        count: usize,
        given: &[G; BURST],
        stages: &mut S,
        ahead: impl Fn(&S, &F),
        mut stage: impl FnMut(&mut S, &mut B, &F, G) -> Step<u8>,
    ) -> usize {
        let facts = facts.get(..count).unwrap_or(&[]);
        facts
            .iter()
            .take(AHEAD)
            .for_each(|fact| ahead(stages, fact));
        let mut forwarded = 0;
        for (place, (fact, given)) in facts.iter().zip(given).enumerate() {
            if let Some(next) = facts.get(place + AHEAD) {
                ahead(stages, next);
            }
            let at = usize::from(fact.at());
            let (Some(buf), Some(verdict)) = (self.bufs.get_mut(at), self.verdicts.get_mut(at))
            else {
                break;
            };
            match stage(stages, buf, fact, *given) {
                Ok(port) => {
                    forwarded += 1;
                    *verdict = Verdict::Forward { port };
                }
                Err(why) => end(verdict, why),
            }
        }
        forwarded
    }
}

/// The end of a packet's way. Apart, so that the way of the others does not carry it along.
#[cold]
#[inline(never)]
fn end(verdict: &mut Verdict, why: Verdict) {
    *verdict = why;
}
