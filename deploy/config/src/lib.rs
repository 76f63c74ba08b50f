//! The YAML configuration both daemons read.
//!
//! One file describes the whole gateway; `bng-dataplane` and `bng-controlplane` read the same one, so they agree on the
//! order of ports, workers and NAT addresses without asking each other. [`Config::load`] finds every mistake before anything
//! starts and reports the first one as one line: file, line, column, key, what is wrong, what to do.
//!
//! Structs are named after the sections, fields after the keys; `docs/configuration.md` is the operator's view of the same.

mod access;
mod address_plan;
mod changes;
mod check;
mod document;
mod error;
mod nat_log;
mod policies;
mod ports;
mod radius;
mod reader;
mod schema;
mod services;
mod text;
mod vlans;

use std::path::Path;

pub use access::{Auth, AuthProtocol, Backend, BeyondMax, Echo, Lcp, Lockout, Pppoe, User};
pub use address_plan::{AddressPool, Nat, NatPool, NatTimers, OtherProtocols, PoolIpv6};
pub use changes::{Change, Difference};
pub use error::{ConfigError, Position, Problem};
pub use nat_log::{IpfixCollector, LogTransport, NatLog, SyslogCollector, WhenFull};
pub use policies::{
    DEFAULT_POLICY, Filter, FilterAction, FilterRule, Network, Policy, Ports, Protocol, Rate,
};
pub use ports::{
    Coalesced, Coalescing, Dataplane, Eal, HELD_RUNS, MBUF_CACHE, OuterTpid, Port, PortRole,
    RING_FRAMES, Route, RouteCapacity, Segmentation,
};
pub use radius::{
    Accounting, DynamicAuthorization, DynamicAuthorizationClient, Radius, RadiusServer,
};
pub use services::{Api, Log, LogLevel, SharedMemory};
pub use vlans::{VlanEntry, VlanIds};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use document::Document;
use schema::Kind;

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
    /// RADIUS servers. Default none.
    #[serde(default)]
    pub radius: Option<Radius>,
    /// Absolute path of the directory for what outlives the machine's restarts: ended sessions, and accounting that is not
    /// delivered yet. Created with mode 0700 when missing. Default none: ended sessions are kept in memory; needed for
    /// `radius.accounting`.
    #[serde(default)]
    pub state_directory: Option<std::path::PathBuf>,
    /// What sessions may do, by name.
    #[serde(default)]
    pub policies: Vec<Policy>,
    /// Rule sets of policies, by name.
    #[serde(default)]
    pub filters: Vec<Filter>,
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
    /// What the file says, to compare it with another.
    #[serde(skip)]
    written: changes::Written,
}

/// Every key a file can have, as `docs/configuration.md` lists it: `[]` stands for the entries of a list.
#[must_use]
pub fn keys() -> Vec<String> {
    schema::keys().into_iter().map(|(path, ..)| path).collect()
}

impl Config {
    /// Reads the file, and the users file it names, and checks everything that can be checked without touching a device.
    ///
    /// # Errors
    ///
    /// The first mistake found, in the configuration file or in the users file.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        Self::parse(&contents(path)?, path)
    }

    /// Like [`Config::load`] for bytes at hand; `path` is the name in errors, and its directory is where a relative
    /// `auth.users_file` is looked for.
    ///
    /// # Errors
    ///
    /// The first mistake found, in these bytes or in the users file.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self, ConfigError> {
        let (mut config, document): (Self, _) = parse(bytes, path, &schema::ROOT)?;
        check::check(&config, &document)?;
        config.written = changes::Written::new(&reader::read(&document, &schema::ROOT)?);
        if let Some(users_file) = &config.auth.users_file {
            let users_file = path.parent().unwrap_or(Path::new("")).join(users_file);
            let bytes = contents(&users_file)?;
            let (users, document): (Vec<User>, _) = parse(&bytes, &users_file, &schema::USERS)?;
            check::users_file(&config, &users, &document)?;
            config.auth.users.extend(users);
        }
        Ok(config)
    }

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

    /// The counts the shared memory is made for.
    #[must_use]
    pub fn table_counts(&self) -> TableCounts {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let routed = self.pools.iter().filter(|pool| pool.nat.is_none());
        let addresses: u64 = routed
            .flat_map(|pool| &pool.ranges)
            .map(address_plan::size)
            .sum();
        let prefixes = (self.pools.iter().filter_map(|pool| pool.ipv6.as_ref()))
            .map(PoolIpv6::prefix_count)
            .fold(0, u64::saturating_add);
        TableCounts {
            access_ports: u32::from(self.access_port_count()),
            ports: count(self.dataplane.ports.len()),
            workers: count(self.dataplane.workers.len()),
            nat_addresses: self.nat.address_count(),
            routed_addresses: u32::try_from(addresses).unwrap_or(u32::MAX),
            prefixes: u32::try_from(prefixes).unwrap_or(u32::MAX),
            routes: self.dataplane.routes.ipv4,
            routes6: self.dataplane.routes.ipv6,
        }
    }

    /// The largest MRU a session on this access port may have, in bytes: `pppoe.mru`, or what is left of the port's MTU after the
    /// eight bytes of PPPoE and PPP headers (RFC 4638). A VLAN entry may have another, see [`Config::vlan_mru`].
    pub fn max_mru(&self, access: &Port) -> u16 {
        self.pppoe.mru.min(access.mtu.saturating_sub(8))
    }

    /// As [`Config::max_mru`] for the sessions of a VLAN entry of the port.
    pub fn vlan_mru(&self, access: &Port, entry: &VlanEntry) -> u16 {
        let mru = entry.mru.unwrap_or(self.pppoe.mru);
        mru.min(access.mtu.saturating_sub(8))
    }

    /// Index and policy of a name.
    #[must_use]
    pub fn policy(&self, name: &str) -> Option<(usize, &Policy)> {
        let mut all = self.policies.iter().enumerate();
        all.find(|(_, policy)| policy.name == name)
    }

    /// Index and filter of a name; the index is that of the shared memory.
    #[must_use]
    pub fn filter(&self, name: &str) -> Option<(u8, &Filter)> {
        // At most 256 filters, so that every index fits.
        (0u8..=255)
            .zip(&self.filters)
            .find(|(_, filter)| filter.name == name)
    }

    /// Index and address pool of a name.
    #[must_use]
    pub fn pool(&self, name: &str) -> Option<(usize, &AddressPool)> {
        let mut all = self.pools.iter().enumerate();
        all.find(|(_, pool)| pool.name == name)
    }
}

/// What a configuration asks the shared memory to hold. Both daemons make their tables for these counts, so they must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableCounts {
    /// Access ports.
    pub access_ports: u32,
    /// All ports.
    pub ports: u32,
    /// Workers.
    pub workers: u32,
    /// Public addresses of all NAT pools.
    pub nat_addresses: u32,
    /// Addresses of all pools without NAT, the first and last of each range included; `u32::MAX` stands for more.
    pub routed_addresses: u32,
    /// IPv6 prefixes of all pools, on-link and delegated; `u32::MAX` stands for more.
    pub prefixes: u32,
    /// IPv4 routes the tables hold.
    pub routes: u32,
    /// IPv6 routes the tables hold.
    pub routes6: u32,
}

fn contents(path: &Path) -> Result<Vec<u8>, ConfigError> {
    std::fs::read(path).map_err(|error| whole_file(path, Problem::Unreadable(error)))
}

fn whole_file(path: &Path, problem: Problem) -> ConfigError {
    ConfigError {
        file: path.to_owned(),
        position: None,
        key: String::new(),
        problem: Box::new(problem),
    }
}

/// Reads text against a schema into the structs made for it.
fn parse<T: DeserializeOwned>(
    bytes: &[u8],
    path: &Path,
    kind: &Kind,
) -> Result<(T, Document), ConfigError> {
    let text = std::str::from_utf8(bytes).map_err(|_| whole_file(path, Problem::NotUtf8))?;
    let document = Document::parse(text, path)?;
    let value = reader::read(&document, kind)?;
    // The schema admits only what the structs take (tested); should they ever differ, this still is an error with a file name.
    let typed = serde_yaml::from_value(value)
        .map_err(|error| whole_file(path, Problem::Refused(error.to_string())))?;
    Ok((typed, document))
}
