//! Address ranges workers must know: NAT pools (public addresses) and subscriber pools.
//!
//! A worker keeps a plain copy ([`Pools`]) and refreshes it when the version has moved.

use crate::shared::shared;
use std::net::Ipv4Addr;
use std::sync::atomic::AtomicU64;

/// Ranges of both kinds together.
pub const MAX_POOL_RANGES: usize = 256;

/// What a range is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RangeKind {
    /// Public addresses of a NAT pool; `base` is the dense NAT address index of `first`.
    Nat = 1,
    /// Subscriber addresses behind NAT; never a destination on a core port.
    Subscriber = 2,
    /// Subscriber addresses that are routed; `base` is the index of `first` among framed slots.
    Routed = 3,
}

/// A range of addresses, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PoolRange {
    /// What the range is for.
    pub kind: RangeKind,
    /// First address.
    pub first: Ipv4Addr,
    /// Last address.
    pub last: Ipv4Addr,
    /// Dense index of the first address (NAT and routed ranges), else 0.
    pub base: u32,
    /// Ports per block, NAT ranges only (64 to 65,535), else 0.
    pub block_size: u16,
    /// Lowest port handed out, NAT ranges only.
    pub first_port: u16,
}

/// Words of a range in the mapping.
#[repr(C)]
pub(crate) struct PoolWords(pub(crate) [AtomicU64; 3]);

shared!(PoolWords, PoolWords { 0 });

impl PoolRange {
    pub(crate) fn to_words(self) -> [u64; 3] {
        [
            u64::from(self.first.to_bits()) << 32 | u64::from(self.last.to_bits()),
            u64::from(self.base) << 32
                | u64::from(self.block_size) << 16
                | u64::from(self.first_port),
            self.kind as u64,
        ]
    }

    pub(crate) fn from_words(words: [u64; 3]) -> Option<Self> {
        let range = Self {
            kind: match words[2] {
                1 => RangeKind::Nat,
                2 => RangeKind::Subscriber,
                3 => RangeKind::Routed,
                _ => return None,
            },
            first: Ipv4Addr::from_bits((words[0] >> 32) as u32),
            last: Ipv4Addr::from_bits(words[0] as u32),
            base: (words[1] >> 32) as u32,
            block_size: (words[1] >> 16) as u16,
            first_port: words[1] as u16,
        };
        (range.first <= range.last).then_some(range)
    }

    /// Whether the address lies in the range.
    #[inline]
    #[must_use]
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        self.first <= address && address <= self.last
    }

    /// Dense index of an address; `None` outside the range. Nothing in a range from the mapping can
    /// make this overflow: two 32-bit numbers are added as 64-bit ones.
    #[inline]
    pub(crate) fn index_of(&self, address: Ipv4Addr) -> Option<u64> {
        self.contains(address)
            .then(|| u64::from(self.base) + u64::from(address.to_bits() - self.first.to_bits()))
    }
}

/// A worker's own copy of all ranges, sorted by first address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pools {
    ranges: Vec<PoolRange>,
    pub(crate) version: u64,
}

impl Pools {
    pub(crate) fn new(mut ranges: Vec<PoolRange>, version: u64) -> Self {
        ranges.sort_by_key(|range| range.first);
        Self { ranges, version }
    }

    /// The range an address lies in. Ranges do not overlap (checked by the publisher).
    #[inline]
    #[must_use]
    pub fn find(&self, address: Ipv4Addr) -> Option<&PoolRange> {
        let at = self.ranges.partition_point(|range| range.first <= address);
        self.ranges[..at]
            .last()
            .filter(|range| address <= range.last)
    }

    /// All ranges, by first address.
    #[must_use]
    pub fn ranges(&self) -> &[PoolRange] {
        &self.ranges
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(kind: RangeKind, first: u32, last: u32) -> PoolRange {
        PoolRange {
            kind,
            first: first.into(),
            last: last.into(),
            base: 7,
            block_size: 512,
            first_port: 1024,
        }
    }

    #[test]
    fn the_range_of_an_address_is_found() {
        let pools = Pools::new(
            vec![
                range(RangeKind::Subscriber, 100, 199),
                range(RangeKind::Nat, 10, 10),
                range(RangeKind::Routed, 200, 210),
            ],
            2,
        );
        for (address, kind) in [
            (9, None),
            (10, Some(RangeKind::Nat)),
            (11, None),
            (100, Some(RangeKind::Subscriber)),
            (199, Some(RangeKind::Subscriber)),
            (200, Some(RangeKind::Routed)),
            (211, None),
        ] {
            assert_eq!(
                pools.find(address.into()).map(|r| r.kind),
                kind,
                "{address}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_range_survives_the_table(first: u32, len in 0u32..1000, base: u32, block_size: u16, first_port: u16) {
            let range = PoolRange {
                kind: RangeKind::Nat, first: first.into(),
                last: first.saturating_add(len).into(), base, block_size, first_port,
            };
            prop_assert_eq!(PoolRange::from_words(range.to_words()), Some(range));
        }
    }
}
