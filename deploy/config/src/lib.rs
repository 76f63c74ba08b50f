//! The YAML configuration both daemons read.
//!
//! One file describes the whole gateway; `bng-dataplane` and `bng-controlplane` read the same one, so they agree on the
//! order of ports, workers and NAT addresses without asking each other. [`Config::load`] finds every mistake before anything
//! starts and reports the first one as one line: file, line, column, key, what is wrong, what to do.
//!
//! Structs are named after the sections, fields after the keys; `docs/configuration.md` is the operator's view of the same.

mod access;
mod address_plan;
mod ports;
mod services;

pub use access::{Auth, AuthProtocol, Echo, Lcp, Pppoe, User};
pub use address_plan::{AddressPool, Nat, NatPool, NatTimers};
pub use ports::{Dataplane, Eal, Port, PortRole, Route};
pub use services::{Api, Log, LogLevel, SharedMemory};

use serde::Deserialize;

/// The whole file.
///
/// # Indexes
///
/// Three dense indexes are fixed by the order in the file and used in shared memory by both daemons: the port index
/// (position in `dataplane.ports`), the access-port index (position among the access ports only) and the NAT address index
/// (see [`Nat::addresses`]). Worker `n` is entry `n` of `dataplane.workers`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where the shared memory of the two daemons lives.
    #[serde(default)]
    pub shared_memory: SharedMemory,
    /// Cores, memory and ports of `bng-dataplane`.
    pub dataplane: Dataplane,
    /// PPPoE discovery and PPP.
    #[serde(default)]
    pub pppoe: Pppoe,
    /// Subscriber authentication.
    #[serde(default)]
    pub auth: Auth,
    /// Addresses handed to subscribers. A session takes its address from the first pool that has one free. At least one.
    pub pools: Vec<AddressPool>,
    /// Network address translation. Without pools nothing is translated.
    #[serde(default)]
    pub nat: Nat,
    /// REST interface and metrics of `bng-controlplane`.
    #[serde(default)]
    pub api: Api,
    /// What both daemons write to standard error.
    #[serde(default)]
    pub log: Log,
}

impl Config {
    /// The access ports with their access-port index, in file order.
    pub fn access_ports(&self) -> impl Iterator<Item = (u16, &Port)> {
        (0u16..).zip(
            self.dataplane
                .ports
                .iter()
                .filter(|port| port.role == PortRole::Access),
        )
    }

    /// How many access ports the file names (at least 1 in a loaded configuration).
    pub fn access_port_count(&self) -> u16 {
        self.access_ports()
            .map(|(index, _)| index + 1)
            .last()
            .unwrap_or(0)
    }

    /// Port index and port of a name.
    pub fn port(&self, name: &str) -> Option<(u16, &Port)> {
        (0u16..)
            .zip(&self.dataplane.ports)
            .find(|(_, port)| port.name == name)
    }

    /// How many sessions can be up at once: bounded by the addresses of the pools and by 65,535 session ids per access port.
    pub fn session_capacity(&self) -> u32 {
        let ids = u64::from(self.access_port_count()) * 65_535;
        let addresses: u64 = self
            .pools
            .iter()
            .map(|pool| u64::from(pool.capacity()))
            .sum();
        u32::try_from(ids.min(addresses)).unwrap_or(u32::MAX)
    }

    /// The largest MRU a session on this access port may have, in bytes: `pppoe.mru`, or what is left of the port's MTU after the
    /// eight bytes of PPPoE and PPP headers (RFC 4638).
    pub fn max_mru(&self, access: &Port) -> u16 {
        self.pppoe.mru.min(access.mtu.saturating_sub(8))
    }
}
