//! A burst on its way through the stages.

use crate::buffer::PacketBuf;
use crate::verdict::{Step, Verdict};

/// How far ahead of its use a line is prefetched in the same pass.
pub(crate) const AHEAD: usize = 8;

/// At most [`BURST`](crate::BURST) buffers, and a verdict for each.
#[derive(Debug)]
pub(crate) struct Burst<'a, B> {
    pub(crate) bufs: &'a mut [B],
    pub(crate) verdicts: &'a mut [Verdict],
}

impl<B: PacketBuf> Burst<'_, B> {
    /// Takes those that are not usual through `stages`, one after the other; returns how many are forwarded.
    #[inline]
    pub(crate) fn others(
        &mut self,
        usual: impl Iterator<Item = bool>,
        mut stages: impl FnMut(u8, &mut B) -> Step<u8>,
    ) -> usize {
        let mut forwarded = 0;
        let packets = self.bufs.iter_mut().zip(self.verdicts.iter_mut());
        // A burst is far shorter than 256.
        for (at, ((buf, verdict), usual)) in (0u8..).zip(packets.zip(usual)) {
            if usual {
                continue;
            }
            *verdict = match stages(at, buf) {
                Ok(port) => {
                    forwarded += 1;
                    Verdict::Forward { port }
                }
                Err(verdict) => verdict,
            };
        }
        forwarded
    }
}
