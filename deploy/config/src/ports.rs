//! `dataplane`: cores, memory and ports.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::Deserialize;

use crate::vlans::VlanEntry;

/// Section `dataplane`: cores, memory and ports of `bng-dataplane`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dataplane {
    /// Core of the housekeeping threads (EAL main thread, host path). 0 to 1023, default 0.
    #[serde(default)]
    pub main_core: u16,
    /// One core id per worker, 1 to 64 entries. Ids may repeat, or equal `main_core`, only when `idle_backoff_us` is above 0.
    pub workers: Vec<u16>,
    /// Longest sleep of a worker that finds no packet, in microseconds, 0 to 10,000. 0 (default): pure poll, for dedicated cores.
    #[serde(default)]
    pub idle_backoff_us: u32,
    /// How DPDK's environment layer is started.
    #[serde(default)]
    pub eal: Eal,
    /// Packet buffers of the process, 1,024 to 4,194,304, default 65,536. Must cover all descriptors of all queues.
    #[serde(default = "default_mbufs")]
    pub mbufs: u32,
    /// How many routes the tables hold.
    #[serde(default)]
    pub routes: RouteCapacity,
    /// ICMP and ICMPv6 errors each worker sends per second, 0 to 1,000,000, default 1,000. 0: none are sent.
    #[serde(default = "default_icmp_errors")]
    pub icmp_errors_per_second: u32,
    /// The ports, 2 to 32. Order matters: it is the port index. At least one access and one core port.
    pub ports: Vec<Port>,
}

fn default_mbufs() -> u32 {
    65_536
}

fn default_icmp_errors() -> u32 {
    1000
}

/// Section `dataplane.routes`: how many routes the tables of both daemons hold. What is beyond is counted and not forwarded by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouteCapacity {
    /// IPv4 routes, 1,024 to 4,194,304, default 1,048,576.
    pub ipv4: u32,
    /// IPv6 routes, 1,024 to 2,097,152, default 262,144.
    pub ipv6: u32,
}

impl Default for RouteCapacity {
    fn default() -> Self {
        Self {
            ipv4: 1 << 20,
            ipv6: 1 << 18,
        }
    }
}

/// Section `dataplane.eal`: how DPDK's environment abstraction layer (EAL) is started.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Eal {
    /// Use hugepages. Default true; false starts EAL with `--no-huge`, for labs.
    pub hugepages: bool,
    /// Memory EAL reserves at start, in MiB, 64 to 1,048,576, default 1,024.
    pub memory_mib: u32,
    /// EAL `--file-prefix`: keeps two DPDK processes on one machine apart. 1 to 32 of `a-z 0-9 - _`, default `ironbng`.
    pub file_prefix: String,
    /// More EAL arguments, as they are. Those the daemon sets itself are refused.
    pub extra_args: Vec<String>,
}

impl Default for Eal {
    fn default() -> Self {
        Self {
            hugepages: true,
            memory_mib: 1024,
            file_prefix: "ironbng".to_owned(),
            extra_args: Vec::new(),
        }
    }
}

/// What a port faces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PortRole {
    /// Faces the subscribers: PPPoE over 0, 1 or 2 VLAN tags.
    Access,
    /// Faces the core routers: plain IP, has a kernel TAP twin.
    Core,
}

impl PortRole {
    /// The word in the file: `access` or `core`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Access => "access",
            Self::Core => "core",
        }
    }
}

/// One entry of `dataplane.ports`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Name in logs, metrics, REST, and of the kernel TAP twin of a core port. 1 to 15 of `a-z 0-9 -`, unique.
    pub name: String,
    /// `access` or `core`.
    pub role: PortRole,
    /// PCI address, DPDK device name, or vdev string with arguments (`net_af_packet0,iface=veth1`).
    pub device: String,
    /// Largest layer-3 packet (what follows the Ethernet header and VLAN tags), in bytes, 576 to 9,600, default 1,500.
    /// An access port needs 1,508 for subscribers with MTU 1,500 (RFC 4638).
    #[serde(default = "default_mtu")]
    pub mtu: u16,
    /// Receive descriptors of each queue, 64 to 32,768, default 1,024.
    #[serde(default = "default_descriptors")]
    pub rx_descriptors: u16,
    /// Transmit descriptors of each queue, 64 to 32,768, default 1,024.
    #[serde(default = "default_descriptors")]
    pub tx_descriptors: u16,
    /// Addresses with prefix length `bng-controlplane` puts on the TAP twin. Core ports only, default none. Host bits are kept.
    #[serde(default)]
    pub addresses: Vec<IpNet>,
    /// Routes `bng-controlplane` puts on the TAP twin. Core ports only, default none.
    #[serde(default)]
    pub routes: Vec<Route>,
    /// VLANs served. Access ports only, 0 to 256 entries. Default none: every VLAN and untagged frames, all alike.
    #[serde(default)]
    pub vlans: Vec<VlanEntry>,
}

impl Port {
    /// The entry of `vlans` that frames with these tags are of. A tag with VLAN id 0 carries a priority only and is passed
    /// over (IEEE 802.1Q), so that `(Some(0), Some(7))` is one tag.
    #[must_use]
    pub fn vlan_entry(&self, outer: Option<u16>, inner: Option<u16>) -> Option<&VlanEntry> {
        let mut ids = [outer, inner].into_iter().flatten().filter(|id| *id != 0);
        let (s_vlan, c_vlan) = (ids.next().unwrap_or(0), ids.next().unwrap_or(0));
        (self.vlans.iter()).find(|entry| entry.fits(s_vlan, c_vlan))
    }

    /// Whether frames with these tags are served at all; tags as in [`Port::vlan_entry`].
    #[must_use]
    pub fn admits(&self, outer: Option<u16>, inner: Option<u16>) -> bool {
        self.vlans.is_empty() || self.vlan_entry(outer, inner).is_some()
    }
}

fn default_mtu() -> u16 {
    1500
}

fn default_descriptors() -> u16 {
    1024
}

/// One entry of `routes` of a core port.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RouteEntry")]
pub struct Route {
    /// Destination prefix; the word `default` in the file is everything of the next hop's family.
    pub to: IpNet,
    /// Next hop: link-local, or on link in one of the port's `addresses`. An IPv4 destination may have an IPv6 next hop
    /// (RFC 8950), not the other way round.
    pub via: IpAddr,
}

/// A route as the file has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteEntry {
    to: String,
    via: IpAddr,
}

impl TryFrom<RouteEntry> for Route {
    type Error = ipnet::AddrParseError;

    fn try_from(entry: RouteEntry) -> Result<Self, Self::Error> {
        let to = match (entry.to.as_str(), entry.via) {
            ("default", IpAddr::V4(_)) => Ipv4Net::default().into(),
            ("default", IpAddr::V6(_)) => Ipv6Net::default().into(),
            (text, _) => text.parse()?,
        };
        let via = entry.via;
        Ok(Self { to, via })
    }
}
