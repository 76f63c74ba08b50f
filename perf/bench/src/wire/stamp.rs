//! What every packet of `wire` carries behind its UDP header.

use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a stamp.
pub(super) const STAMP_LEN: usize = size_of::<Stamp>();

const MAGIC: [u8; 4] = *b"BNGW";

/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |                        Magic "BNGW"                           |
/// |                             Flow                              |
/// |                Sequence number within the flow                |
/// |             Trial             |   Direction   |     zero      |
/// |             Time of sending, time-stamp counter ticks         |
/// |                           (64 bits)                           |
/// ```
///
/// The rest of the payload is zero.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Stamp {
    magic: [u8; 4],
    flow: U32,
    sequence: U32,
    trial: U16,
    direction: u8,
    zero: u8,
    sent: U64,
}

impl Stamp {
    pub(super) const fn new(
        direction: u8,
        trial: u16,
        flow: u32,
        sequence: u32,
        sent: u64,
    ) -> Self {
        Self {
            magic: MAGIC,
            flow: U32::new(flow),
            sequence: U32::new(sequence),
            trial: U16::new(trial),
            direction,
            zero: 0,
            sent: U64::new(sent),
        }
    }

    /// Reads the stamp at the start of a UDP payload; `None` when there is none.
    #[inline]
    pub(super) fn of(payload: &[u8]) -> Option<&Self> {
        let (stamp, _) = Self::ref_from_prefix(payload).ok()?;
        (stamp.magic == MAGIC).then_some(stamp)
    }

    pub(super) const fn flow(&self) -> u32 {
        self.flow.get()
    }

    pub(super) const fn sequence(&self) -> u32 {
        self.sequence.get()
    }

    pub(super) const fn trial(&self) -> u16 {
        self.trial.get()
    }

    pub(super) const fn direction(&self) -> u8 {
        self.direction
    }

    /// Ticks of the time-stamp counter when it was sent.
    pub(super) const fn sent(&self) -> u64 {
        self.sent.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read_back_and_nothing_else_is_one() {
        let stamp = Stamp::new(1, 2, 0xdead_beef, 7, 1 << 50);
        let read = Stamp::of(stamp.as_bytes()).unwrap();
        assert_eq!(
            (read.direction(), read.trial(), read.flow()),
            (1, 2, 0xdead_beef)
        );
        assert_eq!((read.sequence(), read.sent()), (7, 1 << 50));
        assert!(Stamp::of(&stamp.as_bytes()[..STAMP_LEN - 1]).is_none());
        assert!(Stamp::of(&[0x55; 100]).is_none());
    }
}
