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
    /// Packet buffers of the process, 1,024 to 4,194,304, default 65,536. At least [`Dataplane::mbufs_needed`].
    #[serde(default = "default_mbufs")]
    pub mbufs: u32,
    /// How many routes the tables hold.
    #[serde(default)]
    pub routes: RouteCapacity,
    /// ICMP and ICMPv6 errors each worker sends to either side per second, 0 to 1,000,000, default 1,000. 0: none are sent.
    #[serde(default = "default_icmp_errors")]
    pub icmp_errors_per_second: u32,
    /// What is coalesced; nothing by default.
    #[serde(default)]
    pub coalescing: Coalescing,
    /// The ports, 2 to 32. Order matters: it is the port index. At least one access and one core port.
    pub ports: Vec<Port>,
}

/// Frames a ring inside `bng-dataplane` holds: from each worker to each other, from each worker to the host path, and from
/// there to each core port.
pub const RING_FRAMES: u32 = 1_024;
/// Packet buffers a thread of `bng-dataplane` keeps to itself, at most, and half as many more before it gives some back.
pub const MBUF_CACHE: u32 = 256;
/// Buffers of a super-packet that one transmit descriptor may stand for (indirect descriptors of `net_virtio`).
const CHAINED: u64 = 7;
/// Runs a worker holds, at most, when something is coalesced (X1).
pub const HELD_RUNS: u32 = 64;

impl Dataplane {
    /// Packet buffers that can be away at once: in every descriptor of a queue for each worker, in full rings, in the
    /// caches of all threads (workers, host path, main), in bursts, waiting fragments, and runs held over polls. With as many nothing starves
    /// anything else.
    #[must_use]
    pub fn mbufs_needed(&self) -> u64 {
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        let (workers, ports) = (count(self.workers.len()), count(self.ports.len()));
        let descriptors = self.ports.iter();
        let descriptors: u64 = descriptors
            .map(|port| {
                let each = match port.segmentation {
                    Segmentation::Software => 1,
                    Segmentation::Port => CHAINED,
                };
                u64::from(port.rx_descriptors) + u64::from(port.tx_descriptors) * each
            })
            .sum();
        let core = self.ports.iter().filter(|port| port.role == PortRole::Core);
        let rings = workers * workers.saturating_sub(1) + workers + count(core.count());
        let caches = (workers + 2) * u64::from(MBUF_CACHE) * 3 / 2;
        // What is gathered for each port, the burst in hand, and fragments that wait for their first one.
        let bursts = workers * (ports + 2) * 64;
        // A run that ends with its burst holds frames of that burst.
        let held = match self.coalescing.hold_us {
            0 => 0,
            _ => workers * u64::from(HELD_RUNS) * u64::from(self.coalescing.max_frames),
        };
        descriptors * workers + rings * u64::from(RING_FRAMES) + caches + bursts + held
    }
}

fn default_mbufs() -> u32 {
    65_536
}

fn default_icmp_errors() -> u32 {
    1000
}

/// Section `dataplane.coalescing`: frames of a flow that arrive together are handled as one super-packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Coalescing {
    /// Inside PPPoE sessions, on access ports. Default nothing.
    pub upstream: Coalesced,
    /// On core ports. Default nothing.
    pub downstream: Coalesced,
    /// Whether IPv4 packets are, default true.
    pub ipv4: bool,
    /// Whether IPv6 packets are, default true.
    pub ipv6: bool,
    /// How long a run may wait for more, in microseconds, 0 to 200. 0 (default): until the receive burst ends.
    pub hold_us: u32,
    /// Most frames in a run, 2 to 128, default 64.
    pub max_frames: u16,
    /// Whether TCP and UDP checksums the port has not verified are verified in software, default true.
    pub verify_checksums: bool,
}

impl Default for Coalescing {
    fn default() -> Self {
        Self {
            upstream: Coalesced::default(),
            downstream: Coalesced::default(),
            ipv4: true,
            ipv6: true,
            hold_us: 0,
            max_frames: 64,
            verify_checksums: true,
        }
    }
}

impl Coalescing {
    /// Whether anything is coalesced at all.
    #[must_use]
    pub fn is_on(&self) -> bool {
        (self.upstream.is_on() || self.downstream.is_on()) && (self.ipv4 || self.ipv6)
    }
}

/// What is coalesced in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Coalesced {
    /// TCP, default false.
    pub tcp: bool,
    /// UDP, default false.
    pub udp: bool,
}

impl Coalesced {
    /// Whether anything is.
    #[must_use]
    pub fn is_on(self) -> bool {
        self.tcp || self.udp
    }
}

/// Who cuts super-packets into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Segmentation {
    /// The worker.
    #[default]
    Software,
    /// The port, as far as it can and has been found to do it right; else the worker.
    Port,
}

fn default_true() -> bool {
    true
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
    /// Memory EAL reserves at start, in MiB, 64 to 1,048,576, default 2,048.
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
            memory_mib: 2048,
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

/// TPID of the outer VLAN tag of all frames on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum OuterTpid {
    /// A C-tag (IEEE 802.1Q).
    #[serde(rename = "0x8100")]
    Customer,
    /// An S-tag (IEEE 802.1ad).
    #[serde(rename = "0x88a8")]
    Service,
}

impl OuterTpid {
    /// The EtherType.
    #[must_use]
    pub const fn ethertype(self) -> u16 {
        match self {
            Self::Customer => 0x8100,
            Self::Service => 0x88a8,
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
    /// TPID of the outer VLAN tag. Access ports only. Default none: as the driver shows it.
    #[serde(default)]
    pub outer_tpid: Option<OuterTpid>,
    /// VLANs served. Access ports only, 0 to 256 entries. Default none: every VLAN and untagged frames, all alike.
    #[serde(default)]
    pub vlans: Vec<VlanEntry>,
    /// Whether what arrives on this port may be coalesced, default true. `dataplane.coalescing` says what is.
    #[serde(default = "default_true")]
    pub coalescing: bool,
    /// Who cuts super-packets that leave by this port into frames. Core ports only, default [`Segmentation::Software`].
    #[serde(default)]
    pub segmentation: Segmentation,
    /// Whether the TAP twin and the kernel exchange super-packets (`IFF_VNET_HDR`). Core ports only, default false.
    #[serde(default)]
    pub twin_offloads: bool,
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
