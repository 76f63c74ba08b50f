//! How the packets set aside go through the passes: all of them through one, then what is left through the next.

use crate::buffer::{BURST, PacketBuf};
use crate::burst::Burst;
use crate::verdict::{Step, Verdict};

/// The facts of one packet.
pub(crate) trait Fact: Copy {
    /// Place of the packet in its burst.
    fn at(&self) -> u8;
    /// Sets the place.
    fn set_at(&mut self, at: u8);
}

/// The first pass, over the buffers marked in `aside`; returns how many facts there are.
pub(crate) fn first<B: PacketBuf, F: Fact>(
    burst: &mut Burst<'_, B>,
    aside: u32,
    facts: &mut [F; BURST],
    stage: impl Fn(&B, &mut F) -> Step<()>,
) -> usize {
    let (mut left, mut rest) = (0, aside);
    while rest != 0 {
        // At most 31.
        let at = rest.trailing_zeros() as u8;
        rest &= rest - 1;
        let (Some(buf), Some(verdict), Some(fact)) = (
            burst.bufs.get(usize::from(at)),
            burst.verdicts.get_mut(usize::from(at)),
            facts.get_mut(left),
        ) else {
            break;
        };
        fact.set_at(at);
        match stage(buf, fact) {
            Ok(()) => left += 1,
            Err(why) => *verdict = why,
        }
    }
    left
}

/// A pass over the first `count` facts; those that go on close ranks. Returns how many they are.
pub(crate) fn next<B: PacketBuf, F: Fact>(
    burst: &mut Burst<'_, B>,
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
        let (Some(buf), Some(verdict)) = (burst.bufs.get_mut(at), burst.verdicts.get_mut(at))
        else {
            break;
        };
        match stage(buf, fact) {
            Ok(()) => {
                if from != left {
                    facts.copy_within(from..=from, left);
                }
                left += 1;
            }
            Err(why) => *verdict = why,
        }
    }
    left
}

/// The last pass, over the first `count` facts and what `given` holds for each; returns how many packets leave.
pub(crate) fn last<B: PacketBuf, F: Fact, G: Copy>(
    burst: &mut Burst<'_, B>,
    facts: &[F; BURST],
    count: usize,
    given: &[G; BURST],
    mut stage: impl FnMut(&mut B, &F, G) -> Step<u8>,
) -> usize {
    let mut forwarded = 0;
    for (fact, given) in facts.iter().zip(given).take(count) {
        let at = usize::from(fact.at());
        let (Some(buf), Some(verdict)) = (burst.bufs.get_mut(at), burst.verdicts.get_mut(at))
        else {
            break;
        };
        *verdict = match stage(buf, fact, *given) {
            Ok(port) => {
                forwarded += 1;
                Verdict::Forward { port }
            }
            Err(why) => why,
        };
    }
    forwarded
}
