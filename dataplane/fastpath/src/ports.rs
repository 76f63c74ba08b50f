//! The ports as the stages see them.

use bng_shm::Counter;
use bng_wire::MacAddr;
use bng_wire::ethernet::ethertype;

use crate::verdict::{Step, drop};
use crate::vlans::VlanRange;

/// Ports a dataplane may have.
pub const MAX_PORTS: usize = 32;
/// Access ports among them.
pub const MAX_ACCESS_PORTS: usize = 16;

/// What a port is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortRole {
    /// Towards subscribers; `index` counts access ports only, as session slots do.
    Access {
        /// Index among the access ports.
        index: u8,
    },
    /// Towards the core.
    Core,
}

/// One port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// The port's own MAC address.
    pub mac: MacAddr,
    /// Largest IP packet the port sends, bytes.
    pub mtu: u16,
    /// What it is for.
    pub role: PortRole,
}

/// The latter part of an Ethernet header: source address and EtherType, as they stand in the frame.
pub(crate) type SourceAndType = [u8; 8];

/// All ports, by index.
#[derive(Debug, Clone)]
pub(crate) struct Ports {
    ports: Vec<Port>,
    /// Per port, for IPv4 frames sent there.
    ipv4: Vec<SourceAndType>,
    /// As `ipv4`, for IPv6.
    ipv6: Vec<SourceAndType>,
    /// VLANs served, per port.
    vlans: Vec<Vec<VlanRange>>,
    /// Port index of each access port.
    access: [Option<u8>; MAX_ACCESS_PORTS],
}

impl Ports {
    pub(crate) fn new(ports: &[Port], vlans: &[Vec<VlanRange>]) -> Self {
        let mut access = [None; MAX_ACCESS_PORTS];
        for (at, port) in ports.iter().enumerate().take(MAX_PORTS) {
            if let PortRole::Access { index } = port.role
                && let Some(place) = access.get_mut(usize::from(index))
            {
                *place = u8::try_from(at).ok();
            }
        }
        let headers = |ethertype| {
            let header = |port: &Port| source_and_type(port.mac, ethertype);
            ports.iter().map(header).collect()
        };
        Self {
            ports: ports.to_vec(),
            ipv4: headers(ethertype::IPV4),
            ipv6: headers(ethertype::IPV6),
            vlans: vlans.to_vec(),
            access,
        }
    }

    /// The VLANs served on a port; none: all.
    pub(crate) fn vlans(&self, port: u8) -> &[VlanRange] {
        self.vlans.get(usize::from(port)).map_or(&[], Vec::as_slice)
    }

    #[inline(always)]
    pub(crate) fn get(&self, port: u8) -> Option<&Port> {
        self.ports.get(usize::from(port))
    }

    /// All ports with their indices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u8, &Port)> {
        (0..).zip(&self.ports)
    }

    /// The access port and its index among access ports.
    #[inline(always)]
    pub(crate) fn access(&self, port: u8) -> Step<(&Port, u8)> {
        match self.get(port) {
            Some(
                found @ Port {
                    role: PortRole::Access { index },
                    ..
                },
            ) => Ok((found, *index)),
            _ => drop(Counter::NotForUs),
        }
    }

    /// The core port.
    #[inline(always)]
    pub(crate) fn core(&self, port: u8) -> Step<&Port> {
        match self.get(port) {
            Some(
                found @ Port {
                    role: PortRole::Core,
                    ..
                },
            ) => Ok(found),
            _ => drop(Counter::NotForUs),
        }
    }

    /// What IPv4 frames sent on a port carry behind the destination address.
    #[inline(always)]
    pub(crate) fn ipv4_source(&self, port: u8) -> Option<SourceAndType> {
        self.ipv4.get(usize::from(port)).copied()
    }

    /// As [`Self::ipv4_source`], for IPv6.
    #[inline(always)]
    pub(crate) fn ipv6_source(&self, port: u8) -> Option<SourceAndType> {
        self.ipv6.get(usize::from(port)).copied()
    }

    /// Port index and port of an access port, by its index among access ports.
    #[inline(always)]
    pub(crate) fn of_access_index(&self, index: u8) -> Option<(u8, &Port)> {
        let at = (*self.access.get(usize::from(index))?)?;
        Some((at, self.get(at)?))
    }
}

fn source_and_type(mac: MacAddr, ethertype: u16) -> SourceAndType {
    let ([a, b, c, d, e, f], [g, h]) = (mac.0, ethertype.to_be_bytes());
    [a, b, c, d, e, f, g, h]
}
