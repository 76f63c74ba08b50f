//! Copies in and out of packet buffers.

use bng_fastpath::BURST;
use rte_rs::Burst;

/// Bytes between the frames of the memory that `--copy` copies from and to.
const SLOT: usize = 2_048;

/// Memory outside of packet buffers, as a kernel or a peer's memory is for such ports.
pub(super) struct Copies {
    from: Vec<u8>,
    to: Vec<u8>,
}

fn slot_of(memory: &mut [u8], slot: usize, len: usize) -> &mut [u8] {
    let from = slot * SLOT;
    memory.get_mut(from..from + len).unwrap_or(&mut [])
}

impl Copies {
    /// Memory for `frames` frames.
    pub(super) fn new(frames: usize) -> Self {
        Self {
            from: vec![0x55; frames * SLOT],
            to: vec![0; frames * SLOT],
        }
    }

    /// Where the frame of a slot begins that is copied into a buffer.
    pub(super) fn place(&mut self, slot: usize, len: usize) -> &mut [u8] {
        slot_of(&mut self.from, slot, len)
    }

    /// Copies whole frames into the buffers of a burst; the first one's slot is `first`.
    pub(super) fn into(&mut self, burst: &mut Burst<BURST>, first: usize) {
        for (mbuf, slot) in burst.iter_mut().zip(first..) {
            let data = mbuf.data_mut();
            let from = slot_of(&mut self.from, slot, data.len());
            if from.len() == data.len() {
                data.copy_from_slice(from);
            }
        }
    }

    /// Copies whole frames out of the buffers.
    pub(super) fn out_of(&mut self, burst: &Burst<BURST>, first: usize) {
        for (mbuf, slot) in burst.iter().zip(first..) {
            let data = mbuf.data();
            let to = slot_of(&mut self.to, slot, data.len());
            if to.len() == data.len() {
                to.copy_from_slice(data);
            }
        }
    }
}
