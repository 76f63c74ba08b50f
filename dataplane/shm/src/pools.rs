//! Address ranges workers must know: NAT pools (public addresses) and subscriber pools.
//!
//! A worker keeps a plain copy ([`Pools`]) and refreshes it when the version has moved.

use crate::networks::NetworkSummary;
use crate::shared::shared;
use std::net::{Ipv4Addr, Ipv6Addr};
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
    /// What the pool does besides, NAT ranges only.
    pub rules: NatRules,
}

/// What a NAT pool does besides translating TCP, UDP and ICMP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct NatRules {
    /// Protocols without ports pass: one subscriber for each outside address and remote.
    pub other_protocols: bool,
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
            self.kind as u64 | (self.rules.other_protocols as u64) << 8,
        ]
    }

    pub(crate) fn from_words(words: [u64; 3]) -> Option<Self> {
        let range = Self {
            kind: match words[2] & 0xff {
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
            rules: NatRules {
                other_protocols: words[2] >> 8 & 1 == 1,
            },
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

/// IPv6 prefix ranges.
pub const MAX_POOL6_RANGES: usize = 64;

/// Prefixes of one length for subscribers, on-link (/64) or delegated, both ends included. A packet's session is found by
/// the offset of its destination in the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pool6Range {
    /// Upper half of the first prefix.
    pub first: u64,
    /// Upper half of the last prefix, bits beyond the length zero.
    pub last: u64,
    /// Length of every prefix given out, 1 to 64.
    pub length: u8,
    /// Dense index of the first prefix.
    pub base: u32,
}

impl Pool6Range {
    pub(crate) fn to_words(self) -> [u64; 3] {
        [
            self.first,
            self.last,
            u64::from(self.length) << 32 | u64::from(self.base),
        ]
    }

    pub(crate) fn from_words(words: [u64; 3]) -> Option<Self> {
        let range = Self {
            first: words[0],
            last: words[1],
            length: (words[2] >> 32) as u8,
            base: words[2] as u32,
        };
        (range.first <= range.last && (1..=64).contains(&range.length)).then_some(range)
    }

    /// Last upper half that belongs to the range.
    const fn end(&self) -> u64 {
        self.last | !(u64::MAX << (64 - self.length))
    }

    /// Whether an address (its upper half) lies in the range.
    #[inline]
    #[must_use]
    pub const fn contains(&self, high: u64) -> bool {
        self.first <= high && high <= self.end()
    }

    /// Prefixes in the range.
    #[must_use]
    pub const fn count(&self) -> u64 {
        ((self.last - self.first) >> (64 - self.length)).saturating_add(1)
    }

    /// Dense index of the prefix an address (its upper half) lies in; `None` outside the range.
    #[inline]
    pub(crate) fn index_of(&self, high: u64) -> Option<u64> {
        self.contains(high)
            .then(|| u64::from(self.base).saturating_add((high - self.first) >> (64 - self.length)))
    }
}

/// Words of an IPv6 range in the mapping.
#[repr(C)]
pub(crate) struct Pool6Words(pub(crate) [AtomicU64; 3]);

shared!(Pool6Words, Pool6Words { 0 });

/// Words of a port's addresses: IPv4 (0 for none), and the halves of IPv6 (0 for none).
#[repr(C)]
pub(crate) struct PortAddressWords(pub(crate) [AtomicU64; 3]);

shared!(PortAddressWords, PortAddressWords { 0 });

/// The kernel's addresses of a core port, the source of ICMP errors sent there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PortAddresses {
    /// Primary IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// A global IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
}

impl PortAddresses {
    pub(crate) fn to_words(self) -> [u64; 3] {
        let ipv6 = self.ipv6.map_or(0, Ipv6Addr::to_bits);
        [
            self.ipv4.map_or(0, |ip| u64::from(ip.to_bits())),
            (ipv6 >> 64) as u64,
            ipv6 as u64,
        ]
    }

    pub(crate) fn from_words([ipv4, high, low]: [u64; 3]) -> Self {
        let ipv6 = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low));
        Self {
            ipv4: (ipv4 != 0).then(|| Ipv4Addr::from_bits(ipv4 as u32)),
            ipv6: (!ipv6.is_unspecified()).then_some(ipv6),
        }
    }
}

/// A worker's own copy of all ranges, sorted by first address, and of the ports' addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pools {
    ranges: Vec<PoolRange>,
    ranges6: Vec<Pool6Range>,
    port_addresses: Vec<PortAddresses>,
    networks: NetworkSummary,
    pub(crate) version: u64,
}

impl Pools {
    pub(crate) fn new(
        mut ranges: Vec<PoolRange>,
        mut ranges6: Vec<Pool6Range>,
        port_addresses: Vec<PortAddresses>,
        networks: NetworkSummary,
        version: u64,
    ) -> Self {
        ranges.sort_by_key(|range| range.first);
        ranges6.sort_by_key(|range| range.first);
        Self {
            ranges,
            ranges6,
            port_addresses,
            networks,
            version,
        }
    }

    /// Without ranges, as a worker has it that has seen this version.
    #[cfg(test)]
    pub(crate) fn of_version(version: u64) -> Self {
        Self {
            version,
            ..Self::default()
        }
    }

    /// The IPv6 range an address (its upper half) lies in.
    #[inline]
    #[must_use]
    pub fn find6(&self, high: u64) -> Option<&Pool6Range> {
        let at = self.ranges6.partition_point(|range| range.first <= high);
        self.ranges6[..at]
            .last()
            .filter(|range| range.contains(high))
    }

    /// All IPv6 ranges, by first prefix.
    #[must_use]
    pub fn ranges6(&self) -> &[Pool6Range] {
        &self.ranges6
    }

    /// The kernel's addresses of a port (index among all ports).
    #[inline]
    #[must_use]
    pub fn port_addresses(&self, port: u8) -> PortAddresses {
        self.port_addresses
            .get(usize::from(port))
            .copied()
            .unwrap_or_default()
    }

    /// Where there are networks behind subscribers.
    #[inline]
    #[must_use]
    pub fn networks(&self) -> &NetworkSummary {
        &self.networks
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
            rules: NatRules::default(),
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
            Vec::new(),
            Vec::new(),
            NetworkSummary::default(),
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

    #[test]
    fn the_prefix_of_an_address_is_found_by_its_offset() {
        let range = |first, last, length, base| Pool6Range {
            first,
            last,
            length,
            base,
        };
        let on_link = range(0x2001_0db8_0000_0000, 0x2001_0db8_0000_ffff, 64, 0);
        let delegated = range(0x2001_0db8_8000_0000, 0x2001_0db8_80ff_ff00, 56, 65_536);
        let ranges = vec![delegated, on_link];
        let networks = NetworkSummary::default();
        let pools = Pools::new(Vec::new(), ranges, Vec::new(), networks, 2);
        let index = |high| pools.find6(high).and_then(|range| range.index_of(high));
        assert_eq!(index(0x2001_0db7_ffff_ffff), None);
        assert_eq!(index(0x2001_0db8_0000_0000), Some(0));
        assert_eq!(index(0x2001_0db8_0000_ffff), Some(65_535));
        assert_eq!(index(0x2001_0db8_0001_0000), None);
        assert_eq!(index(0x2001_0db8_8000_00ff), Some(65_536));
        assert_eq!(index(0x2001_0db8_8000_0100), Some(65_537));
        assert_eq!(index(0x2001_0db8_80ff_ffff), Some(131_071));
        assert_eq!(index(0x2001_0db8_8100_0000), None);
        assert_eq!((on_link.count(), delegated.count()), (65_536, 65_536));
    }

    proptest! {
        #[test]
        fn an_ipv6_range_and_port_addresses_survive_the_table(
            first: u64, more in 0u64..1000, length in 1u8..=64, base: u32, ipv4: u32, ipv6: u128,
        ) {
            let last = first.saturating_add(more);
            let range = Pool6Range { first, last, length, base };
            prop_assert_eq!(Pool6Range::from_words(range.to_words()), Some(range));
            let _ = range.index_of(u64::MAX);
            let addresses = PortAddresses {
                ipv4: (ipv4 != 0).then(|| ipv4.into()),
                ipv6: (ipv6 != 0).then(|| ipv6.into()),
            };
            prop_assert_eq!(PortAddresses::from_words(addresses.to_words()), addresses);
        }

        #[test]
        fn a_range_survives_the_table(first: u32, len in 0u32..1000, base: u32, block_size: u16, first_port: u16, other_protocols: bool) {
            let range = PoolRange {
                kind: RangeKind::Nat, first: first.into(),
                last: first.saturating_add(len).into(), base, block_size, first_port,
                rules: NatRules { other_protocols },
            };
            prop_assert_eq!(PoolRange::from_words(range.to_words()), Some(range));
        }
    }
}
