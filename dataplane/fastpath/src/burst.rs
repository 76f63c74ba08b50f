//! A burst and what became of it.

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
    /// The buffers and their verdicts.
    #[inline(always)]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&mut B, &mut Verdict)> {
        self.bufs.iter_mut().zip(self.verdicts.iter_mut())
    }
}

/// How many packets of a burst leave, and by which ports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) forwarded: usize,
    /// A bit per egress port.
    ports: u32,
}

const _: () = assert!(crate::MAX_PORTS <= u32::BITS as usize);

impl Tally {
    /// Counts a packet that leaves by `port`.
    #[inline(always)]
    pub(crate) fn leaves(&mut self, port: u8) {
        self.forwarded += 1;
        self.ports |= 1u32.wrapping_shl(u32::from(port));
    }

    /// Counts a packet and makes its verdict.
    pub(crate) fn add(&mut self, step: Step<u8>) -> Verdict {
        match step {
            Ok(port) => {
                self.leaves(port);
                Verdict::Forward { port }
            }
            Err(verdict) => verdict,
        }
    }

    /// Counts those of another burst as well.
    #[inline(always)]
    pub(crate) fn join(&mut self, other: &Self) {
        self.forwarded += other.forwarded;
        self.ports |= other.ports;
    }

    /// The port, if all of `count` packets leave by one.
    #[inline(always)]
    pub(crate) fn only_port_of(&self, count: usize) -> Option<u8> {
        let one = self.forwarded == count && self.ports.is_power_of_two();
        one.then(|| self.ports.trailing_zeros() as u8)
    }
}
