//! The subscriber prefixes and the gateway's own addresses.

use std::net::Ipv6Addr;

use bng_shm::{Pool6Range, Pools};

use crate::ports::MAX_PORTS;

/// Both, ready for look-ups.
#[derive(Debug, Default)]
pub(crate) struct Ranges6 {
    ranges: Vec<Pool6Range>,
    /// Lowest and highest upper half of any range: nearly every address on the internet lies outside.
    bounds: Option<(u64, u64)>,
    /// The kernel's address on each port that has one.
    gateways: Vec<(u8, Ipv6Addr)>,
}

impl Ranges6 {
    /// Those of `pools`.
    pub(crate) fn of(pools: &Pools) -> Self {
        let ranges = pools.ranges6().to_vec();
        let first = ranges.first().map(|range| range.first);
        let last = ranges.last().map(|range| range.last);
        // Bits of the last prefix beyond its length.
        let more = ranges
            .last()
            .map_or(0, |range| !(u64::MAX << (64 - range.length)));
        let gateway = |port| Some((port, pools.port_addresses(port).ipv6?));
        Self {
            bounds: first.zip(last.map(|last| last | more)),
            gateways: (0..MAX_PORTS as u8).filter_map(gateway).collect(),
            ranges,
        }
    }

    /// The range an address (its upper half) lies in.
    #[inline(always)]
    pub(crate) fn find(&self, high: u64) -> Option<&Pool6Range> {
        let (lowest, highest) = self.bounds?;
        if high < lowest || high > highest {
            return None;
        }
        let at = self.ranges.partition_point(|range| range.first <= high);
        let range = self.ranges.get(at.checked_sub(1)?)?;
        range.contains(high).then_some(range)
    }

    /// Whether an address is the kernel's on a port.
    #[inline(always)]
    pub(crate) fn is_gateway(&self, address: Ipv6Addr) -> bool {
        let bits = address.to_bits();
        self.gateways.iter().any(|(_, own)| own.to_bits() == bits)
    }

    /// Our global address, of `port` if it has one, else of any port.
    pub(crate) fn own(&self, port: u8) -> Option<Ipv6Addr> {
        let of_port = self.gateways.iter().find(|(at, _)| *at == port);
        of_port.or(self.gateways.first()).map(|(_, own)| *own)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use bng_shm::{Capacities, Dataplane};

    proptest! {
        #[test]
        fn a_range_is_found_as_in_the_list(
            mut cuts in prop::collection::btree_set(0u64..64, 0..12), probe in 0u64..64, low: u8,
        ) {
            // Ranges of /56 between pairs of cuts.
            let capacities = Capacities {
                access_ports: 1, ports: 2, workers: 1, nat_addresses: 1, framed_addresses: 1,
                framed_prefixes: 64, routes: 1, routes6: 1, next_hops: 1,
            };
            let (dataplane, mut publisher) = Dataplane::in_process(capacities).unwrap();
            let mut ranges = Vec::new();
            while let (Some(first), Some(last)) = (cuts.pop_first(), cuts.pop_first()) {
                ranges.push(Pool6Range { first: first << 8, last: last << 8, length: 56, base: 0 });
            }
            publisher.publish_pools6(&ranges).unwrap();
            let mut pools = Pools::default();
            prop_assert!(dataplane.reader().refresh_pools(&mut pools));
            let high = probe << 8 | u64::from(low);
            let ranges = Ranges6::of(&pools);
            prop_assert_eq!(ranges.find(high), pools.find6(high));
        }
    }
}
