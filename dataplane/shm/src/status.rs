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
    /// Fill of its rings.
    pub rings: RingFill,
    /// All counters, by [`crate::Counter::index`].
    pub counters: Vec<u64>,
}
