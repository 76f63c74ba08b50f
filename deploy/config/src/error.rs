//! What can be wrong with a configuration, said in one line.

use std::fmt;
use std::path::PathBuf;

use ipnet::{IpNet, Ipv6Net};
use thiserror::Error;

use crate::ports::PortRole;

/// The first mistake found in a configuration file.
///
/// `Display` is one line: `file:line:column: key: what is wrong; what to do`. It never contains a password.
#[derive(Debug)]
pub struct ConfigError {
    /// The file with the mistake: the configuration file or the users file it names.
    pub file: PathBuf,
    /// Where in the file. `None` when the file as a whole is meant.
    pub position: Option<Position>,
    /// Path of the key, such as `dataplane.ports[0].mtu`. Empty when the file as a whole is meant.
    pub key: String,
    /// What is wrong and what to do.
    pub problem: Box<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(Position { line, column }) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl std::error::Error for ConfigError {}

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

/// What is wrong, with the facts, and what to do about it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Problem {
    /// The file cannot be read.
    #[error("cannot be read ({0}); check the path and the permissions")]
    Unreadable(std::io::Error),
    /// The value passed every check above and still has no place in the structs.
    #[error("cannot be used ({0}); correct the key it names")]
    Refused(String),
    /// The file has bytes that are not UTF-8.
    #[error("is not UTF-8 text; save the file as UTF-8")]
    NotUtf8,
    /// The file is not YAML.
    #[error("is not valid YAML ({0}); check indentation, quotes and colons here")]
    Syntax(String),
    /// Sections or lists are nested deeper than any key needs.
    #[error("is nested too deeply; no key needs more than {limit} levels")]
    TooDeep {
        /// Levels allowed.
        limit: usize,
    },
    /// An anchor, an alias or a tag.
    #[error("uses a YAML {0}, which is not supported; write the value out")]
    Feature(&'static str),
    /// A second document after `---`.
    #[error("a second YAML document starts here; keep everything in one document")]
    SecondDocument,
    /// A key that is a list, a section or empty.
    #[error("a key must be a plain word; check indentation and colons here")]
    KeyNotText,
    /// The same key twice in one section.
    #[error("is given twice, first on line {first_line}; remove one")]
    KeyTwice {
        /// Line of the first one.
        first_line: usize,
    },
    /// A key that does not exist here.
    #[error("unknown key; {}", advice(nearest.as_deref(), known))]
    UnknownKey {
        /// The known key that looks most like it.
        nearest: Option<&'static str>,
        /// All keys known here.
        known: Vec<&'static str>,
    },
    /// A key run together with its value, which YAML takes for one long word.
    #[error("needs a space after the colon; write `{key}: value`")]
    NoSpace {
        /// The key that was meant.
        key: &'static str,
    },
    /// A key without which nothing works.
    #[error("the key `{key}` is missing; add it: {expected}")]
    MissingKey {
        /// Name of the key.
        key: &'static str,
        /// What its value may be.
        expected: String,
    },
    /// A key with nothing behind it.
    #[error("has no value; write {expected}")]
    NoValue {
        /// What the value may be.
        expected: String,
    },
    /// A value of the wrong kind or out of range.
    #[error("{found} is not allowed; write {expected}")]
    BadValue {
        /// What is there; for a password only its kind.
        found: String,
        /// What the value may be.
        expected: String,
    },
    /// A list that is too short or too long.
    #[error("has {found} entries; write {expected}")]
    BadCount {
        /// Entries found.
        found: usize,
        /// What the value may be.
        expected: String,
    },
    /// A value that must be unique and is not.
    #[error("`{value}` is already used by {other} (line {other_line}); choose another")]
    Taken {
        /// The value.
        value: String,
        /// Key of the first use.
        other: String,
        /// Line of the first use.
        other_line: usize,
    },
    /// A user of the users file that the configuration file has too, or the reverse.
    #[error("the user `{name}` is also in auth.users; keep one of the two")]
    UserInBoth {
        /// Peer-ID.
        name: String,
    },
    /// No port of a role.
    #[error("there is no {} port; add a port with `role: {}`", role.as_str(), role.as_str())]
    NoPort {
        /// The role that is missing.
        role: PortRole,
    },
    /// A key of access ports on a core port.
    #[error("only an access port has vlans; remove it or set `role: access`")]
    OnlyAccessPort,
    /// A VLAN entry that matches an inner tag without an outer one.
    #[error(
        "a frame without an outer tag has no inner one; write `c_vlan: none` or another s_vlan"
    )]
    InnerTagAlone,
    /// A VLAN entry that those before it leave nothing.
    #[error(
        "every VLAN of this entry is taken by entries before it, first by {other} (line {other_line}); remove it or move it up"
    )]
    VlanTaken {
        /// Key of the first entry that shares a VLAN with it.
        other: String,
        /// Its line.
        other_line: usize,
    },
    /// A burst in which the largest packet does not fit.
    #[error(
        "a burst of {burst} bytes never lets a packet of {mru} bytes pass, the largest of a session; write burst_bytes of at least that"
    )]
    BurstTooSmall {
        /// The burst, configured or by default.
        burst: u32,
        /// Largest MRU of any session.
        mru: u16,
    },
    /// A rule with ports for a protocol that has none.
    #[error("only tcp and udp have ports; remove it or correct protocol")]
    NoPorts,
    /// A rule whose protocol does not exist in the address family of its network.
    #[error("fits no packet: {protocol} is not used over {family}; correct protocol or remote")]
    NeverFits {
        /// `icmp` or `icmpv6`.
        protocol: &'static str,
        /// `IPv4` or `IPv6`.
        family: &'static str,
    },
    /// A key of core ports on an access port.
    #[error(
        "only a core port has addresses, routes, segmentation and a TAP twin; remove it or set `role: core`"
    )]
    OnlyCorePort,
    /// Two threads that poll share a core.
    #[error(
        "core {core} is already used by {other}; give each a core of its own, or set dataplane.idle_backoff_us above 0"
    )]
    CoreShared {
        /// Core id.
        core: u16,
        /// Key of the other user.
        other: String,
    },
    /// A hold time and nothing that could be held.
    #[error(
        "there is nothing to hold, as nothing is coalesced; set tcp or udp of dataplane.coalescing.upstream or downstream to true, or remove it"
    )]
    NothingHeld,
    /// Something is coalesced, of no address family.
    #[error(
        "with neither IPv4 nor IPv6 there is nothing to coalesce; set ipv4 or ipv6 to true, or remove upstream and downstream"
    )]
    NoFamilyCoalesced,
    /// A direction is coalesced and none of its ports is.
    #[error(
        "every {} port has `coalescing: false`, so there is nothing to coalesce; remove that from a port, or remove this",
        role.as_str()
    )]
    NoPortCoalesces {
        /// The ports of that direction.
        role: PortRole,
    },
    /// Fewer packet buffers than descriptors.
    #[error(
        "{mbufs} buffers are fewer than the {needed} that {workers} worker(s) need (descriptors of all ports for each, rings between threads, caches, held runs); raise it or lower rx_descriptors and tx_descriptors"
    )]
    TooFewMbufs {
        /// Buffers configured.
        mbufs: u32,
        /// Buffers the queues can hold.
        needed: u64,
        /// Workers configured.
        workers: usize,
    },
    /// An EAL argument that the daemon sets itself.
    #[error("`{argument}` is set by bng-dataplane itself; remove it and use {instead}")]
    ReservedEalArgument {
        /// The argument.
        argument: String,
        /// The key that does the same.
        instead: &'static str,
    },
    /// A next hop that no address of the port reaches.
    #[error(
        "{via} is not in the network of any of this port's addresses; correct it or add an address to the port"
    )]
    NotOnLink {
        /// The next hop.
        via: std::net::IpAddr,
    },
    /// A next hop that is no other host.
    #[error("{via} is {is}; write the address of the router on the other side")]
    NoNeighbour {
        /// The next hop.
        via: std::net::IpAddr,
        /// What it is.
        is: &'static str,
    },
    /// A prefix whose address has bits after the prefix length.
    #[error("{found} is not the start of its prefix; write {network}")]
    HostBits {
        /// What is there.
        found: IpNet,
        /// The prefix it lies in.
        network: IpNet,
    },
    /// An address no host can have.
    #[error("{0} is not a unicast address; choose one that a host can have")]
    NotUnicast(std::net::IpAddr),
    /// Two ranges that share addresses, or an address inside a range that is not its own.
    #[error(
        "{range} overlaps {other_range} of {other} (line {other_line}); give each its own addresses"
    )]
    Overlap {
        /// The range or address found second.
        range: IpNet,
        /// The one it collides with.
        other_range: IpNet,
        /// Its key.
        other: String,
        /// Its line.
        other_line: usize,
    },
    /// A reference to something that does not exist.
    #[error("there is no {what} `{name}`; {}", advice(None, known))]
    Unknown {
        /// What is referred to: a NAT pool, an address pool, a policy or a filter.
        what: &'static str,
        /// The name used.
        name: String,
        /// The names that exist.
        known: Vec<String>,
    },
    /// A next hop of IPv4 for an IPv6 destination.
    #[error("{via} is an IPv4 address and {to} an IPv6 prefix; write an IPv6 next hop")]
    NextHopFamily {
        /// The destination.
        to: IpNet,
        /// The next hop.
        via: std::net::IpAddr,
    },
    /// An IPv6 range longer than the prefixes it is to be cut into.
    #[error("{range} holds no /{length}; write a prefix of length {length} or less")]
    NoPrefix {
        /// The range.
        range: Ipv6Net,
        /// Length of the prefixes given out.
        length: u8,
    },
    /// More IPv6 prefixes than the tables hold.
    #[error(
        "{range} is cut into {count} prefixes, all pools together may have {limit}; use a smaller range"
    )]
    TooManyPrefixes {
        /// The range that is too much.
        range: Ipv6Net,
        /// Prefixes in it; `u64::MAX` stands for more.
        count: u64,
        /// Prefixes supported.
        limit: u64,
    },
    /// An address pool with nothing to hand out.
    #[error(
        "nothing is left to hand out after the gateway and the ends of each prefix; use a larger range"
    )]
    EmptyPool,
    /// More addresses than the tables hold.
    #[error("has {count} addresses; {limit} are supported, use a smaller range")]
    TooManyAddresses {
        /// Addresses configured.
        count: u64,
        /// Addresses supported.
        limit: u64,
    },
    /// A block size that is not a power of two.
    #[error("{0} is not a power of two; write 64, 128, 256, 512, 1024, 2048, 4096, 8192 or 16384")]
    NotPowerOfTwo(u16),
    /// More of something than the shared memory has room for.
    #[error("there are {count} {what}; {limit} are supported, remove some")]
    TooMany {
        /// What is counted.
        what: &'static str,
        /// How many the file has.
        count: usize,
        /// How many are supported.
        limit: usize,
    },
    /// The floor of the MRU above its ceiling.
    #[error("{min_mru} is above pppoe.mru ({mru}); lower it or raise pppoe.mru")]
    MruOrder {
        /// Smallest MRU.
        min_mru: u16,
        /// Largest MRU.
        mru: u16,
    },
    /// An MRU no access port can carry.
    #[error("{mru} fits no access port (the largest mtu is {mtu}, PPPoE takes 8); write at most {}, or raise the port's mtu", mtu.saturating_sub(8))]
    MruTooLarge {
        /// Largest MRU configured.
        mru: u16,
        /// Largest MTU of an access port.
        mtu: u16,
    },
    /// An MRU of a VLAN below the floor of all.
    #[error("{mru} is below pppoe.min_mru ({min_mru}); raise it or lower pppoe.min_mru")]
    MruBelowMin {
        /// Largest MRU of the VLAN.
        mru: u16,
        /// Smallest MRU a peer may ask for.
        min_mru: u16,
    },
    /// An MRU of a VLAN that its port cannot carry.
    #[error("{mru} does not fit the port (its mtu is {mtu}, PPPoE takes 8); write at most {}, or raise the mtu", mtu.saturating_sub(8))]
    MruAbovePort {
        /// Largest MRU of the VLAN.
        mru: u16,
        /// MTU of the access port.
        mtu: u16,
    },
    /// An access port that cannot carry the smallest MRU.
    #[error(
        "an mtu of {mtu} cannot carry pppoe.min_mru ({min_mru}) and 8 bytes of PPPoE; raise it or lower pppoe.min_mru"
    )]
    MtuTooSmall {
        /// MTU of the access port.
        mtu: u16,
        /// Smallest MRU.
        min_mru: u16,
    },
    /// A key that needs another one.
    #[error("needs `{other}`, which is not given; add it or remove this")]
    Needs {
        /// The other key.
        other: &'static str,
    },
    /// A secret that is none.
    #[error("is empty; write the secret shared with the other side, in quotes")]
    EmptySecret,
    /// A first value above the last.
    #[error("is {first}, more than {other} ({last}); lower it or raise {other}")]
    Order {
        /// This value.
        first: u32,
        /// Key of the other one.
        other: &'static str,
        /// The other value.
        last: u32,
    },
    /// Interim updates more often than RFC 2869 section 5.16 allows.
    #[error("is {found}, write 0 for none or at least 60 (RFC 2869 section 5.16)")]
    InterimTooOften {
        /// The value.
        found: u32,
    },
    /// An address of a user that no pool hands out.
    #[error("{address} is not an address that {pool} hands out; take one of it or remove the key")]
    NotInPool {
        /// The user's address.
        address: std::net::Ipv4Addr,
        /// The pool, or "any pool".
        pool: String,
    },
    /// An address two users have.
    #[error("{address} is another user's as well; only one can have it")]
    AddressOfTwo {
        /// The address.
        address: std::net::Ipv4Addr,
    },
    /// A network of a user that shares addresses with something else.
    #[error(
        "{range} overlaps {other_range} of {other}; a network is one user's alone and lies outside of all pools, gateways and ports"
    )]
    NetworkTaken {
        /// The user's network.
        range: IpNet,
        /// What it collides with.
        other_range: IpNet,
        /// Key of that, or whose it is.
        other: String,
    },
    /// A network of a user that is too large.
    #[error("{range} is shorter than /8; write the networks one by one")]
    NetworkTooLarge {
        /// The user's network.
        range: IpNet,
    },
    /// An address of another family than a key it goes with.
    #[error(
        "is of another address family than `{other}`; remove that or write an address of the same family"
    )]
    OtherFamily {
        /// The other key.
        other: &'static str,
    },
    /// Metrics configured on the address REST already has.
    #[error(
        "is the same as api.listen, which serves /metrics already; remove it or choose another port"
    )]
    SameListen,
}

fn advice<S: AsRef<str>>(nearest: Option<&str>, known: &[S]) -> String {
    match nearest {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None if known.is_empty() => "none is known here, remove it".to_owned(),
        None => {
            let known: Vec<&str> = known.iter().map(AsRef::as_ref).collect();
            format!("known here: {}", known.join(", "))
        }
    }
}
