//! Stage: may a packet go to this destination, and what is it to us?

use std::net::Ipv4Addr;

use bng_shm::{Counter, NetworkOwner, PoolRange, Pools, PortAddresses, RangeKind, Reader};

use crate::ports::MAX_PORTS;
use crate::v6::Ranges6;
use crate::verdict::{Step, Verdict, drop};

/// The address ranges, found by the first octet: nearly every address on the internet shares it with none of ours,
/// and nearly every address of ours with one range only.
#[derive(Debug)]
pub(crate) struct Ranges {
    pools: Pools,
    pub(crate) v6: Ranges6,
    by_octet: [Octet; 256],
    /// Whether [`Ranges::special`] can find something for an address with this first octet.
    special_octet: [bool; 256],
    /// The kernel's addresses on the ports.
    port_ips: Vec<u32>,
}

/// What makes an address no ordinary one of the internet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Special {
    /// No host's: group, loopback, "this network" or reserved.
    Invalid,
    /// Of a NAT pool or a subscriber pool.
    Pool,
    /// Of a network behind a subscriber.
    Network(NetworkOwner),
    /// The kernel's on a core port.
    Gateway,
}

/// Which ranges have addresses with a certain first octet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Octet {
    None,
    /// One, by its index.
    One(u8),
    Several,
}

impl Default for Ranges {
    fn default() -> Self {
        Self {
            pools: Pools::default(),
            v6: Ranges6::default(),
            by_octet: [Octet::None; 256],
            special_octet: std::array::from_fn(is_invalid_octet),
            port_ips: Vec::new(),
        }
    }
}

/// 0/8, 127/8, 224/4 (multicast) and 240/4 with the limited broadcast (RFC 1812 section 5.3.7, RFC 6890).
const fn is_invalid_octet(first: usize) -> bool {
    first == 0 || first == 127 || first >= 224
}

impl Ranges {
    /// Takes over what control has changed.
    #[inline]
    pub(crate) fn refresh(&mut self, reader: &Reader) {
        if reader.refresh_pools(&mut self.pools) {
            self.index();
        }
    }

    fn index(&mut self) {
        self.v6 = Ranges6::of(&self.pools);
        self.by_octet = [Octet::None; 256];
        for (at, range) in self.pools.ranges().iter().enumerate() {
            let [first, last] = [range.first, range.last].map(|ip| usize::from(ip.octets()[0]));
            for octet in self.by_octet.get_mut(first..=last).unwrap_or(&mut []) {
                *octet = match (*octet, u8::try_from(at)) {
                    (Octet::None, Ok(at)) => Octet::One(at),
                    _ => Octet::Several,
                };
            }
        }
        self.port_ips = (0..MAX_PORTS as u8)
            .filter_map(|port| self.pools.port_addresses(port).ipv4)
            .map(Ipv4Addr::to_bits)
            .collect();
        self.special_octet = std::array::from_fn(|at| {
            let is_ports = |ip: &u32| (ip >> 24) as usize == at;
            is_invalid_octet(at)
                || self.pools.networks().has_octet(at as u8)
                || self.by_octet.get(at) != Some(&Octet::None)
                || self.port_ips.iter().any(is_ports)
        });
    }

    /// The kernel's addresses of a port, by its index among all ports.
    pub(crate) fn port_addresses(&self, port: u8) -> PortAddresses {
        self.pools.port_addresses(port)
    }

    /// An address that is certainly not [`Self::special`], told by its first octet.
    #[inline(always)]
    pub(crate) fn is_ordinary(&self, address: u32) -> bool {
        self.special_octet.get((address >> 24) as usize) == Some(&false)
    }

    /// What is special about an address.
    #[inline(never)]
    pub(crate) fn special(&self, reader: &Reader, address: u32) -> Option<Special> {
        if is_invalid_octet((address >> 24) as usize) {
            Some(Special::Invalid)
        } else if self.find(address).is_some() {
            Some(Special::Pool)
        } else if self.port_ips.contains(&address) {
            Some(Special::Gateway)
        } else {
            self.network_of(reader, address).map(Special::Network)
        }
    }

    /// The session of the network behind a subscriber that an address lies in. What is ours in another way is in none: control
    /// gives no such network, and an address that came to a port or a pool later is not the subscriber's.
    #[inline(always)]
    pub(crate) fn network(&self, reader: &Reader, address: u32) -> Option<NetworkOwner> {
        if !self.pools.networks().has_octet((address >> 24) as u8) {
            return None;
        }
        match self.special(reader, address) {
            Some(Special::Network(owner)) => Some(owner),
            _ => None,
        }
    }

    #[inline]
    fn network_of(&self, reader: &Reader, address: u32) -> Option<NetworkOwner> {
        let networks = self.pools.networks();
        if !networks.has_octet((address >> 24) as u8) {
            return None;
        }
        reader.network_owner(networks, address)
    }

    /// The range an address lies in.
    #[inline(always)]
    pub(crate) fn find(&self, address: u32) -> Option<&PoolRange> {
        match *self.by_octet.get((address >> 24) as usize)? {
            Octet::None => None,
            Octet::One(at) => self
                .pools
                .ranges()
                .get(usize::from(at))
                .filter(|range| range.contains(address.into())),
            Octet::Several => self.pools.find(address.into()),
        }
    }
}

/// Upstream: no group, loopback, "this network" or reserved address, none of our own pools or of a network behind a
/// subscriber, and none of the kernel's.
#[inline(always)]
pub(crate) fn upstream(ranges: &Ranges, reader: &Reader, dst: u32) -> Step<()> {
    if ranges.is_ordinary(dst) {
        return Ok(());
    }
    match ranges.special(reader, dst) {
        None => Ok(()),
        Some(Special::Invalid) => drop(Counter::DestinationInvalid),
        Some(Special::Pool | Special::Network(_)) => drop(Counter::DestinationSubscriber),
        Some(Special::Gateway) => drop(Counter::DestinationGateway),
    }
}

/// What a destination downstream is to us.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ours<'a> {
    /// An address of a NAT pool or a routed subscriber's.
    Range(&'a PoolRange),
    /// An address in a network behind a subscriber.
    Network(NetworkOwner),
}

/// Downstream: what of ours the destination is. Anything else is the kernel's.
#[inline(always)]
pub(crate) fn downstream<'a>(
    ranges: &'a Ranges,
    reader: &Reader,
    dst: u32,
    port: u8,
) -> Step<Ours<'a>> {
    match ranges.find(dst) {
        Some(PoolRange {
            kind: RangeKind::Subscriber,
            ..
        }) => drop(Counter::DestinationSubscriber),
        Some(range) => Ok(Ours::Range(range)),
        None => match ranges.network(reader, dst) {
            Some(owner) => Ok(Ours::Network(owner)),
            None => Err(Verdict::Host { port }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bng_shm::{Capacities, Dataplane};

    #[test]
    fn the_octet_index_finds_what_the_list_finds() {
        let capacities = Capacities {
            access_ports: 1,
            ports: 2,
            workers: 1,
            nat_addresses: 64,
            framed_addresses: 64,
            framed_prefixes: 64,
            routes: 1,
            routes6: 1,
            next_hops: 1,
        };
        let (dataplane, mut publisher) = Dataplane::in_process(capacities).unwrap();
        let range = |kind, first: [u8; 4], last: [u8; 4]| PoolRange {
            kind,
            first: first.into(),
            last: last.into(),
            base: 0,
            block_size: 64,
            first_port: 1_024,
            rules: bng_shm::NatRules::default(),
        };
        publisher
            .publish_pools(&[
                range(RangeKind::Subscriber, [9, 200, 0, 0], [12, 1, 0, 0]),
                range(RangeKind::Nat, [12, 1, 0, 1], [12, 1, 0, 9]),
                range(RangeKind::Routed, [12, 255, 255, 250], [12, 255, 255, 255]),
                range(RangeKind::Nat, [200, 0, 0, 1], [200, 0, 0, 1]),
            ])
            .unwrap();
        let mut ranges = Ranges::default();
        ranges.refresh(&dataplane.reader());
        let kinds: Vec<_> = (0..u32::MAX / 65_521)
            .map(|n| n * 65_521)
            .chain([
                0x0c01_0000,
                0x0c01_0001,
                0x0c01_0009,
                0x0c01_000a,
                0x0cff_ffff,
                0xc800_0001,
                0xc800_0002,
            ])
            .map(|address| {
                let found = ranges.find(address);
                assert_eq!(found, ranges.pools.find(address.into()), "{address:#x}");
                found.map(|range| range.kind)
            })
            .collect();
        for kind in [RangeKind::Subscriber, RangeKind::Nat, RangeKind::Routed] {
            assert!(kinds.contains(&Some(kind)), "{kind:?}");
        }
    }
}
