//! The state of the gateway at one moment, for REST, metrics and health.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use crate::stream::FeedStatus;

use crate::radius::view::RadiusView;

/// Everything but the sessions themselves.
#[derive(Debug, Clone, Default)]
pub struct Status {
    /// bng-dataplane.
    pub dataplane: DataplaneView,
    /// Workers, and the host path behind them.
    pub workers: Vec<WorkerView>,
    /// Ports in the order of the configuration.
    pub ports: Vec<PortView>,
    /// Address and NAT pools.
    pub pools: PoolsView,
    /// Drop reasons.
    pub drops: Vec<DropView>,
    /// Policies given to the workers.
    pub policies: usize,
    /// Sessions that negotiate, forward and close.
    pub sessions: [u64; 3],
    /// Counters of the PPP engine: group, label, help, value.
    pub engine: Vec<(&'static str, &'static str, &'static str, u64)>,
    /// Counters of the driver: label, help, value.
    pub driver: Vec<(&'static str, &'static str, u64)>,
    /// What is mirrored from the kernel.
    pub routes: RoutesView,
    /// What was told to whoever listens.
    pub feed: FeedStatus,
    /// RADIUS; `None` where it is not configured.
    pub radius: Option<RadiusView>,
    /// The log of NAT port blocks; `None` where it is not configured.
    pub nat_log: Option<bng_natlog::View>,
}

/// bng-dataplane as control sees it.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct DataplaneView {
    /// Whether it runs.
    pub alive: bool,
    /// Its process id; 0 if there never was one.
    pub pid: u32,
    /// How many starts this shared memory has seen.
    pub incarnation: u32,
    /// When it started.
    pub started_unix_ms: u64,
    /// Age of its last heartbeat.
    pub heartbeat_ms_ago: u64,
}

/// Frames and events in a worker's rings.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct RingsView {
    /// Punted frames that control has not taken.
    pub punt: usize,
    /// Injected frames that the worker has not taken.
    pub inject: usize,
    /// Events that control has not taken.
    pub events: usize,
    /// Frames that wait in control for room in the inject ring.
    pub inject_waiting: usize,
}

/// A worker.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct WorkerView {
    /// Its index, or `host` for the host path.
    pub worker: String,
    /// Whether its thread runs.
    pub present: bool,
    /// Core it is pinned to.
    pub core: Option<u32>,
    /// Age of its last heartbeat.
    pub heartbeat_ms_ago: Option<u64>,
    /// Sessions it owns.
    pub sessions: u32,
    /// Live NAT mappings.
    pub nat_mappings: u32,
    /// Ticks per second of the clock that the cycle counters count.
    pub tsc_hz: Option<u64>,
    /// Share of its cycles in poll loops that found something, 0 to 1, over the last second.
    pub busy_ratio: Option<f64>,
    /// Busy cycles for each packet received or taken over, over the last second.
    pub cycles_per_packet: Option<f64>,
    /// Fill of its rings.
    pub rings: RingsView,
    /// All counters that are not drops, by label.
    #[schema(value_type = std::collections::BTreeMap<String, u64>)]
    pub counters: BTreeMap<&'static str, u64>,
    /// Dropped frames in all.
    pub drops: u64,
}

/// A port.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct PortView {
    /// Name in the configuration.
    pub name: String,
    /// `access` or `core`.
    pub role: &'static str,
    /// Whether the dataplane has started it.
    pub started: bool,
    /// Link state.
    pub link_up: bool,
    /// MAC address, once the dataplane has told it.
    pub mac: Option<String>,
    /// Layer-3 MTU, bytes.
    pub mtu: u16,
    /// Link speed, if known.
    pub link_mbps: Option<u32>,
    /// How frames come to the worker that owns their session.
    pub steering: &'static str,
    /// Why that way was chosen.
    pub steering_reason: String,
    /// What the port does in hardware, of what is used; the rest is done in software.
    pub offloads: Vec<&'static str>,
    /// Who cuts super-packets into frames: `port` or `software`.
    pub segmentation: &'static str,
    /// Why, if it was asked to be the port.
    pub segmentation_reason: String,
    /// DPDK driver.
    pub driver: String,
    /// Kernel TAP twin (core ports): its interface index, if it is there.
    pub twin_ifindex: Option<u32>,
    /// DPDK counters of the port.
    #[schema(value_type = std::collections::BTreeMap<String, u64>)]
    pub stats: BTreeMap<&'static str, u64>,
}

/// An address pool.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct AddressPoolView {
    /// Name in the configuration.
    pub name: String,
    /// Addresses in use.
    pub used: u32,
    /// Addresses in all.
    pub total: u32,
    /// NAT pool that translates them.
    pub nat: Option<String>,
}

/// A NAT pool.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct NatPoolView {
    /// Name in the configuration.
    pub name: String,
    /// Port blocks in use.
    pub used: u32,
    /// Port blocks that rest before their next owner.
    pub resting: u32,
    /// Port blocks in all.
    pub total: u32,
}

/// IPv6 prefixes of an address pool, on-link or delegated.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct PrefixPoolView {
    /// Name of the address pool and key of the prefixes.
    pub name: String,
    /// Prefixes in use.
    pub used: u32,
    /// Prefixes in all.
    pub total: u32,
}

/// All pools.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct PoolsView {
    /// Address pools.
    pub address: Vec<AddressPoolView>,
    /// IPv6 prefix pools.
    pub prefixes: Vec<PrefixPoolView>,
    /// NAT pools.
    pub nat: Vec<NatPoolView>,
}

/// A reason for which frames were dropped.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct DropView {
    /// Its label.
    pub reason: &'static str,
    /// `dataplane`, or `control` for frames the PPP engine refused.
    pub source: &'static str,
    /// What it means.
    pub help: &'static str,
    /// Frames in all.
    pub total: u64,
    /// Frames per worker (dataplane).
    pub workers: Vec<u64>,
    /// Frames of the host path (dataplane).
    pub host: u64,
}

/// What is mirrored from the kernel.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct RoutesView {
    /// Whether the watcher has a whole picture of the kernel.
    pub synchronised: bool,
    /// IPv4 routes.
    pub routes: usize,
    /// IPv6 routes.
    pub routes6: usize,
    /// Next hops, a group of equal-cost paths counted once.
    pub next_hops: usize,
    /// Next hops without a MAC address.
    pub unresolved: usize,
    /// Whether the dataplane forwards by them already.
    pub in_fib: bool,
    /// Routes the shared memory has no room for; the others are forwarded by.
    pub left_out: usize,
    /// Whether the kernel has more than the shared memory holds.
    pub full: bool,
}
