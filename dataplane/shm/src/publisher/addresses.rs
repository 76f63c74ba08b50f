//! Address ranges, port blocks and routed addresses as their only writer sees them.

use super::{PublishError, Publisher, sequence_write};
use crate::nat::{NatProtocol, reverse_index};
use crate::networks::{MAX_NETWORKS, Network, NetworkOwner};
use crate::pools::{
    MAX_POOL_RANGES, MAX_POOL6_RANGES, Pool6Range, PoolRange, PortAddresses, RangeKind,
};
use crate::reader::{BlockOwner, block_index};
use crate::session::PortBlock;
use crate::sync::fault_point;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};

impl Publisher {
    /// Publishes all ranges, replacing those before. NAT ranges get their dense `base` from the order
    /// given, routed ranges likewise; the ranges with the bases filled in are returned.
    ///
    /// # Errors
    /// Too many ranges or addresses, or ranges that overlap.
    pub fn publish_pools(&mut self, ranges: &[PoolRange]) -> Result<&[PoolRange], PublishError> {
        let over = |what, count, capacity| PublishError::Capacity {
            what,
            count,
            capacity,
        };
        if ranges.len() > MAX_POOL_RANGES {
            return Err(over("address ranges", ranges.len(), MAX_POOL_RANGES));
        }
        if let Some(range) = ranges.iter().find(|range| range.last < range.first) {
            return Err(PublishError::Backwards {
                first: range.first,
                last: range.last,
            });
        }
        let mut sorted = ranges.to_vec();
        sorted.sort_by_key(|range| range.first);
        if let Some(pair) = sorted.windows(2).find(|pair| pair[1].first <= pair[0].last) {
            return Err(PublishError::Overlap(pair[1].first.into()));
        }
        let (mut nat, mut routed) = (0u64, 0u64);
        let mut filled = ranges.to_vec();
        for range in &mut filled {
            let size = u64::from(range.last.to_bits() - range.first.to_bits()) + 1;
            let next = match range.kind {
                RangeKind::Nat => &mut nat,
                RangeKind::Routed => &mut routed,
                RangeKind::Subscriber => continue,
            };
            range.base = u32::try_from(*next).unwrap_or(u32::MAX);
            *next += size;
        }
        for (what, count, capacity) in [
            ("NAT addresses", nat, self.capacities.nat_addresses),
            (
                "routed subscriber addresses",
                routed,
                self.capacities.framed_addresses,
            ),
        ] {
            if count > u64::from(capacity) {
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                return Err(over(what, count, capacity as usize));
            }
        }
        self.ranges = filled;
        self.write_pools();
        Ok(&self.ranges)
    }

    /// Writes ranges of both families and the ports' addresses, which workers copy together.
    fn write_pools(&self) {
        fn put<const N: usize>(words: &[AtomicU64; N], values: [u64; N]) {
            for (word, value) in words.iter().zip(values) {
                word.store(value, Ordering::Relaxed);
                fault_point();
            }
        }
        let header = &self.tables.header[0];
        sequence_write(&header.pools_version, || {
            for (words, range) in self.tables.pools.iter().zip(&self.ranges) {
                put(&words.0, range.to_words());
            }
            for (words, range) in self.tables.pools6.iter().zip(&self.ranges6) {
                put(&words.0, range.to_words());
            }
            for (words, addresses) in self.tables.port_addresses.iter().zip(&self.port_addresses) {
                put(&words.0, addresses.to_words());
            }
            put(&header.networks, self.networks.summary().to_words());
            let (count, count6) = (self.ranges.len() as u32, self.ranges6.len() as u32);
            header.pools_count.store(count, Ordering::Relaxed);
            header.pools6_count.store(count6, Ordering::Relaxed);
        });
    }

    /// Publishes all IPv6 prefix ranges, replacing those before; each gets its dense `base` from the order given. The
    /// ranges with the bases filled in are returned.
    ///
    /// # Errors
    /// Too many ranges or prefixes, ranges that overlap or are not made of whole prefixes.
    pub fn publish_pools6(&mut self, ranges: &[Pool6Range]) -> Result<&[Pool6Range], PublishError> {
        let over = |what, count, capacity| PublishError::Capacity {
            what,
            count,
            capacity,
        };
        if ranges.len() > MAX_POOL6_RANGES {
            return Err(over("IPv6 ranges", ranges.len(), MAX_POOL6_RANGES));
        }
        let address = |high: u64| Ipv6Addr::from_bits(u128::from(high) << 64);
        for range in ranges {
            let whole = |high: u64| {
                (1..=64).contains(&range.length) && high & !(u64::MAX << (64 - range.length)) == 0
            };
            if range.last < range.first || !whole(range.first) || !whole(range.last) {
                return Err(PublishError::Prefixes {
                    first: address(range.first),
                    last: address(range.last),
                    length: range.length,
                });
            }
        }
        let mut sorted = ranges.to_vec();
        sorted.sort_by_key(|range| range.first);
        if let Some([_, later]) = sorted.array_windows().find(|[a, b]| a.contains(b.first)) {
            return Err(PublishError::Overlap(address(later.first).into()));
        }
        let mut filled = ranges.to_vec();
        let mut next = 0u64;
        for range in &mut filled {
            range.base = u32::try_from(next).unwrap_or(u32::MAX);
            next = next.saturating_add(range.count());
        }
        let capacity = self.capacities.framed_prefixes;
        if next > u64::from(capacity) {
            let count = usize::try_from(next).unwrap_or(usize::MAX);
            return Err(over("IPv6 prefixes", count, capacity as usize));
        }
        self.ranges6 = filled;
        self.write_pools();
        Ok(&self.ranges6)
    }

    /// The IPv6 ranges published, with their bases.
    #[must_use]
    pub fn pool6_ranges(&self) -> &[Pool6Range] {
        &self.ranges6
    }

    /// Publishes the kernel's addresses of all ports, by index; those beyond the ports there are mean nothing.
    pub fn publish_port_addresses(&mut self, addresses: &[PortAddresses]) {
        self.port_addresses = addresses.to_vec();
        self.port_addresses
            .resize(self.tables.port_addresses.len(), PortAddresses::default());
        self.write_pools();
    }

    /// Gives an IPv6 prefix (its upper half) to a session (or takes it back with `None`).
    ///
    /// # Errors
    /// The prefix lies in no published range.
    pub fn set_framed6_owner(
        &mut self,
        prefix: u64,
        owner: Option<BlockOwner>,
    ) -> Result<(), PublishError> {
        let unknown = PublishError::Unknown {
            what: "IPv6 prefix with upper half",
            value: prefix,
        };
        let at = self
            .ranges6
            .iter()
            .find_map(|range| range.index_of(prefix))
            .and_then(|at| usize::try_from(at).ok());
        let word = at
            .and_then(|at| self.tables.framed6.get(at))
            .ok_or(unknown)?;
        word.store(owner.map_or(0, BlockOwner::to_word), Ordering::Release);
        Ok(())
    }

    /// The ranges published, with their bases.
    #[must_use]
    pub fn pool_ranges(&self) -> &[PoolRange] {
        &self.ranges
    }

    /// Gives a port block to a session (or takes it back with `None`). A new owner gets it without the
    /// reverse mappings of those before, of which no worker writes one any more: the withdrawal's epoch
    /// has passed. (Nine bits of generation in an entry do not tell sessions apart for ever.)
    ///
    /// # Errors
    /// The block lies in no published NAT range.
    pub fn set_block_owner(
        &mut self,
        block: &PortBlock,
        owner: Option<BlockOwner>,
    ) -> Result<(), PublishError> {
        let unknown = PublishError::Unknown {
            what: "NAT address with index",
            value: block.address_index.into(),
        };
        let at = self
            .ranges
            .iter()
            .find(|range| range.kind == RangeKind::Nat && range.contains(block.address))
            .and_then(|range| block_index(range, block.address, block.first_port));
        let word = at
            .and_then(|at| self.tables.nat_blocks.get(at))
            .ok_or(unknown)?;
        let new = owner.map_or(0, BlockOwner::to_word);
        if owner.is_some() && word.load(Ordering::Relaxed) != new {
            self.clear_reverse(block);
        }
        word.store(new, Ordering::Release);
        Ok(())
    }

    fn clear_reverse(&self, block: &PortBlock) {
        let Some(above) = block.size.checked_sub(1) else {
            return;
        };
        let last = block.first_port.saturating_add(above);
        for protocol in [NatProtocol::Tcp, NatProtocol::Udp, NatProtocol::Icmp] {
            let at = |port| reverse_index(block.address_index, protocol, port);
            let entries = self.tables.nat_reverse.get(at(block.first_port)..=at(last));
            for entry in entries.unwrap_or(&[]) {
                entry.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Gives a routed address to a session (or takes it back with `None`).
    ///
    /// # Errors
    /// The address lies in no published routed range.
    pub fn set_framed_owner(
        &mut self,
        address: Ipv4Addr,
        owner: Option<BlockOwner>,
    ) -> Result<(), PublishError> {
        let unknown = PublishError::Unknown {
            what: "routed address",
            value: address.to_bits().into(),
        };
        let at = self
            .ranges
            .iter()
            .find(|range| range.kind == RangeKind::Routed && range.contains(address))
            .and_then(|range| range.index_of(address))
            .and_then(|at| usize::try_from(at).ok());
        let word = at
            .and_then(|at| self.tables.framed.get(at))
            .ok_or(unknown)?;
        word.store(owner.map_or(0, BlockOwner::to_word), Ordering::Release);
        Ok(())
    }

    /// Has a network behind a subscriber lead to a session (or to nobody with `None`). The caller has made sure that it
    /// overlaps no other one.
    ///
    /// # Errors
    /// It is no network, or there is no room; nothing is changed then.
    pub fn set_network_owner(
        &mut self,
        network: Network,
        owner: Option<NetworkOwner>,
    ) -> Result<(), PublishError> {
        if !network.is_whole() {
            return Err(PublishError::Network(network));
        }
        let before = self.networks.summary();
        let set = (self.networks).set(&self.tables.networks, network, owner);
        fault_point();
        if set.is_err() {
            return Err(PublishError::Capacity {
                what: "networks behind subscribers",
                count: MAX_NETWORKS + 1,
                capacity: MAX_NETWORKS,
            });
        }
        // After the entry: a worker that is told to look finds it.
        if self.networks.summary() != before {
            self.write_pools();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Capacities;
    use crate::pools::Pools;
    use crate::session::SlotIndex;
    use crate::worker::Dataplane;

    fn range(kind: RangeKind, first: u32, last: u32) -> PoolRange {
        PoolRange {
            kind,
            first: first.into(),
            last: last.into(),
            base: 0,
            block_size: 512,
            first_port: 1024,
            rules: crate::pools::NatRules::default(),
        }
    }

    #[test]
    fn ranges_that_make_no_sense_are_refused_and_change_nothing() {
        let (dataplane, mut publisher) = Dataplane::in_process(Capacities::SMALL).unwrap();
        let good = [range(RangeKind::Nat, 10, 13)];
        publisher.publish_pools(&good).unwrap();
        let backwards = publisher.publish_pools(&[range(RangeKind::Nat, 9, 8)]);
        assert!(matches!(backwards, Err(PublishError::Backwards { .. })));
        let many = publisher.publish_pools(&[range(RangeKind::Routed, 0, u32::MAX)]);
        assert!(matches!(many, Err(PublishError::Capacity { .. })));
        let twice = [range(RangeKind::Nat, 1, 4), range(RangeKind::Routed, 4, 4)];
        assert_eq!(
            publisher.publish_pools(&twice).err(),
            Some(PublishError::Overlap(Ipv4Addr::from_bits(4).into()))
        );
        let mut pools = Pools::default();
        assert!(dataplane.reader().refresh_pools(&mut pools));
        assert_eq!(pools.ranges(), good);
    }

    #[test]
    fn a_new_owner_finds_no_mapping_of_the_last_one_in_its_block() {
        let (mut dataplane, mut publisher) = Dataplane::in_process(Capacities::SMALL).unwrap();
        let worker = dataplane.worker(0).unwrap();
        publisher
            .publish_pools(&[range(RangeKind::Nat, 10, 13)])
            .unwrap();
        let block = PortBlock {
            address: 11.into(),
            address_index: 1,
            first_port: 65_024,
            size: 512,
        };
        let owner = |generation| {
            Some(BlockOwner {
                slot: SlotIndex(9),
                generation,
            })
        };
        let entry = crate::Reverse {
            generation: 1,
            slot: SlotIndex(9),
            inside_port: 5,
            last_seen: 0,
            inbound_seen: false,
            closing: false,
        };
        publisher.set_block_owner(&block, owner(1)).unwrap();
        let places = [
            (1, NatProtocol::Tcp, 65_024),
            (1, NatProtocol::Udp, 65_535),
            (1, NatProtocol::Icmp, 65_100),
            // Neighbours: the port below, the next address, the next protocol's first port.
            (1, NatProtocol::Tcp, 65_023),
            (2, NatProtocol::Tcp, 65_024),
            (1, NatProtocol::Udp, 0),
        ];
        let held = |worker: &crate::Worker| {
            places
                .map(|(address, protocol, port)| worker.reverse(address, protocol, port).is_some())
        };
        for (address, protocol, port) in places {
            worker.set_reverse(address, protocol, port, Some(entry));
        }
        publisher.set_block_owner(&block, owner(1)).unwrap();
        assert_eq!(held(&worker), [true; 6], "adoption says again what is so");
        publisher.set_block_owner(&block, None).unwrap();
        assert_eq!(held(&worker), [true; 6], "workers may still write");
        // The same nine bits of generation.
        publisher.set_block_owner(&block, owner(513)).unwrap();
        assert_eq!(held(&worker), [false, false, false, true, true, true]);
    }

    #[test]
    fn a_network_leads_to_its_session_from_the_next_look_on_and_no_nonsense_is_published() {
        let (dataplane, mut publisher) = Dataplane::in_process(Capacities::SMALL).unwrap();
        let reader = dataplane.reader();
        let mut pools = Pools::default();
        publisher.publish_pools(&[]).unwrap();
        assert!(reader.refresh_pools(&mut pools));
        let owner = NetworkOwner::new(SlotIndex(9), 0x7fff_ffff);
        let network = |address: [u8; 4], length| Network {
            address: address.into(),
            length,
        };
        let good = network([198, 18, 4, 0], 22);
        publisher.set_network_owner(good, Some(owner)).unwrap();
        assert!(!pools.networks().has_octet(198));
        assert!(reader.refresh_pools(&mut pools));
        assert!(pools.networks().has_octet(198) && !pools.networks().has_octet(199));
        let find = |pools: &Pools, address: [u8; 4]| {
            reader.network_owner(pools.networks(), u32::from_be_bytes(address))
        };
        assert_eq!(find(&pools, [198, 18, 7, 255]), Some(owner));
        assert!(owner.is(0x7fff_ffff) && !owner.is(0x7fff_fffe));
        assert_eq!(find(&pools, [198, 18, 8, 0]), None);
        // A second one like it changes nothing that workers copy.
        let second = network([198, 18, 8, 0], 22);
        publisher.set_network_owner(second, Some(owner)).unwrap();
        assert!(!reader.refresh_pools(&mut pools));
        assert_eq!(find(&pools, [198, 18, 8, 0]), Some(owner));
        for (address, length) in [([10, 0, 0, 0], 7), ([10, 0, 0, 1], 24), ([10, 0, 0, 0], 33)] {
            let bad = network(address, length);
            let refused = publisher.set_network_owner(bad, Some(owner));
            assert_eq!(refused, Err(PublishError::Network(bad)));
        }
        publisher.set_network_owner(good, None).unwrap();
        assert_eq!(find(&pools, [198, 18, 7, 255]), None, "at once");
        publisher.set_network_owner(second, None).unwrap();
        assert!(reader.refresh_pools(&mut pools));
        assert!(!pools.networks().has_octet(198));
    }
}
