//! Port blocks a session has beside the one in its entry, all on the same public address and of the same size.
//!
//! They are few and looked at for few packets, so they lie apart from the entry. Control adds blocks while the session lives and
//! takes none away before its end; each block counts from the moment it is read, so the words need no common version.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::shared::shared;

/// Most blocks a session has beside its first.
pub const MAX_FURTHER_BLOCKS: usize = 7;

/// Four first ports in a word.
const PER_WORD: usize = 4;

/// Of one session.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct FurtherWords([AtomicU64; 2]);

shared!(FurtherWords, FurtherWords { 0 });

/// First ports of a session's further blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FurtherBlocks([u16; 2 * PER_WORD]);

impl FurtherBlocks {
    /// As many of them as there may be ([`MAX_FURTHER_BLOCKS`]); no block begins at port 0.
    #[must_use]
    pub fn new(first_ports: impl IntoIterator<Item = u16>) -> Self {
        let mut all = Self::default();
        let ports = first_ports.into_iter().filter(|port| *port != 0);
        for (place, port) in all.0.iter_mut().zip(ports.take(MAX_FURTHER_BLOCKS)) {
            *place = port;
        }
        all
    }

    /// Their first ports.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = u16> + use<> {
        self.0.into_iter().filter(|port| *port != 0)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.iter().count()
    }
}

impl FromIterator<u16> for FurtherBlocks {
    fn from_iter<T: IntoIterator<Item = u16>>(first_ports: T) -> Self {
        Self::new(first_ports)
    }
}

impl FurtherWords {
    pub(crate) fn write(&self, blocks: FurtherBlocks) {
        let words = blocks.0.as_chunks::<PER_WORD>().0;
        for (word, ports) in self.0.iter().zip(words) {
            let [a, b, c, d] = ports.map(u64::from);
            word.store(a | b << 16 | c << 32 | d << 48, Ordering::Release);
        }
    }

    pub(crate) fn read(&self) -> FurtherBlocks {
        let mut all = FurtherBlocks::default();
        let places = all.0.as_chunks_mut::<PER_WORD>().0;
        for (word, ports) in self.0.iter().zip(places) {
            let word = word.load(Ordering::Acquire);
            *ports = [0, 16, 32, 48].map(|shift| (word >> shift) as u16);
        }
        all
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_no_more_than_there_may_be() {
        let words = FurtherWords(std::array::from_fn(|_| AtomicU64::new(0)));
        assert_eq!(words.read().count(), 0);
        let many = FurtherBlocks::new((1..20).map(|n| n * 1_024));
        assert_eq!(many.count(), MAX_FURTHER_BLOCKS);
        words.write(many);
        assert_eq!(words.read(), many);
        assert!(words.read().iter().eq((1..8).map(|n| n * 1_024)));
        let two = FurtherBlocks::new([0, 64_512, 0, 2_048]);
        words.write(two);
        assert!(words.read().iter().eq([64_512, 2_048]));
        words.write(FurtherBlocks::default());
        assert_eq!(words.read().count(), 0);
    }
}
