//! What the two processes tell of themselves, for health, REST and metrics.

/// State of a port as the dataplane says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PortState {
    /// The dataplane has not (or not yet) brought it up.
    Absent = 0,
    /// Configured and started.
    Started = 1,
}

impl PortState {
    pub(crate) const fn from_bits(bits: u8) -> Self {
        if bits == 1 {
            Self::Started
        } else {
            Self::Absent
        }
    }
}

/// How frames come to the worker that owns their session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Steering {
    /// One worker: nothing to steer.
    Single = 0,
    /// Software hand-over by owner.
    HandOver = 1,
    /// The port hashes on PPPoE (`RTE_ETH_RSS_PPPOE`), hand-over for the rest.
    RssPppoe = 2,
    /// `rte_flow` rules, hand-over for the rest.
    FlowRules = 3,
}

impl Steering {
    pub(crate) const fn from_bits(bits: u32) -> Self {
        match bits {
            1 => Self::HandOver,
            2 => Self::RssPppoe,
            3 => Self::FlowRules,
            _ => Self::Single,
        }
    }

    /// Name in status and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::HandOver => "hand-over",
            Self::RssPppoe => "rss-pppoe",
            Self::FlowRules => "flow-rules",
        }
    }
}

/// What a port does in hardware, of what the dataplane makes use of. What is missing here is done in software.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Offloads(pub u32);

impl Offloads {
    /// Verifies the IPv4 header checksum on receive.
    pub const RX_IPV4_CHECKSUM: Self = Self(1);
    /// Verifies TCP and UDP checksums on receive.
    pub const RX_L4_CHECKSUM: Self = Self(1 << 1);
    /// Computes the IPv4 header checksum on transmit.
    pub const TX_IPV4_CHECKSUM: Self = Self(1 << 2);
    /// Computes TCP and UDP checksums on transmit.
    pub const TX_L4_CHECKSUM: Self = Self(1 << 3);
    /// Spreads received frames over queues by a hash (RSS).
    pub const RSS: Self = Self(1 << 4);
    /// Frees transmitted buffers in bulk (`RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE`).
    pub const FAST_FREE: Self = Self(1 << 5);

    /// Cuts TCP super-packets of plain IP into frames on transmit (TSO), or hands them to a peer that takes them.
    pub const TX_TCP_SEGMENTATION: Self = Self(1 << 6);
    /// The TAP twin exchanges super-packets with the kernel.
    pub const TWIN: Self = Self(1 << 7);

    const NAMES: [(Self, &'static str); 8] = [
        (Self::RX_IPV4_CHECKSUM, "rx-ipv4-checksum"),
        (Self::RX_L4_CHECKSUM, "rx-l4-checksum"),
        (Self::TX_IPV4_CHECKSUM, "tx-ipv4-checksum"),
        (Self::TX_L4_CHECKSUM, "tx-l4-checksum"),
        (Self::RSS, "rss"),
        (Self::FAST_FREE, "mbuf-fast-free"),
        (Self::TX_TCP_SEGMENTATION, "tx-tcp-segmentation"),
        (Self::TWIN, "twin"),
    ];

    /// Both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are among these.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Names in status and metrics.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES
            .into_iter()
            .filter(move |(bit, _)| self.has(*bit))
            .map(|(_, name)| name)
    }
}

/// What the dataplane tells about a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortStatus {
    /// Whether it is up.
    pub state: PortState,
    /// Link state.
    pub link_up: bool,
    /// MAC address.
    pub mac: [u8; 6],
    /// Layer 3 MTU, bytes.
    pub mtu: u16,
    /// Kernel interface index of the TAP twin, 0 if none.
    pub twin_ifindex: u32,
    /// Link speed, Mbit/s, 0 if unknown.
    pub link_mbps: u32,
    /// How frames come to their owner.
    pub steering: Steering,
    /// Why they come so, at most 128 bytes.
    pub steering_reason: String,
    /// Why the port segments super-packets ([`Offloads::TX_TCP_SEGMENTATION`]) or the worker does, at most 128 bytes; empty if
    /// the worker is to do it.
    pub segmentation_reason: String,
    /// Hardware offloads in use.
    pub offloads: Offloads,
    /// rte_eth_stats: ipackets, opackets, ibytes, obytes, imissed, ierrors, oerrors, rx_nombuf.
    pub stats: [u64; 8],
    /// DPDK driver name, at most 32 bytes.
    pub driver: String,
}

impl PortStatus {
    /// Names of [`PortStatus::stats`], as in DPDK.
    pub const STAT_NAMES: [&'static str; 8] = [
        "ipackets",
        "opackets",
        "ibytes",
        "obytes",
        "imissed",
        "ierrors",
        "oerrors",
        "rx_nombuf",
    ];
}

/// What a process tells of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessStatus {
    /// Whether it runs (by its lock).
    pub alive: bool,
    /// Process id of the latest one; 0 if there was none.
    pub pid: u32,
    /// How often a process of the role has attached to this memory.
    pub incarnation: u32,
    /// CLOCK_MONOTONIC milliseconds of its last heartbeat.
    pub heartbeat_ms: u64,
    /// Unix milliseconds of its start.
    pub started_unix_ms: u64,
}

/// Items in a worker's rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RingFill {
    /// Punted frames that control has not taken.
    pub punt: usize,
    /// Injected frames that the worker has not taken.
    pub inject: usize,
    /// Events that control has not taken.
    pub events: usize,
}

/// What a worker tells of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerStatus {
    /// Whether its thread says that it runs.
    pub present: bool,
    /// Core it is pinned to.
    pub core: u32,
    /// CLOCK_MONOTONIC milliseconds of its last heartbeat.
    pub heartbeat_ms: u64,
    /// Live NAT mappings.
    pub nat_mappings: u32,
    /// Ticks of the time-stamp counter per second, the unit of `busy_cycles` and `idle_cycles`; 0 if unknown.
    pub tsc_hz: u64,
    /// Fill of its rings.
    pub rings: RingFill,
    /// All counters, by [`crate::Counter::index`].
    pub counters: Vec<u64>,
}
