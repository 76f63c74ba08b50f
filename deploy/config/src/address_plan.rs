//! `pools` and `nat`: the addresses subscribers get and the ones the internet sees.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Deserializer};

use crate::nat_log::NatLog;

/// One entry of `pools`: IPv4 addresses for subscribers, and their IPv6 prefixes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressPool {
    /// Name in logs, metrics and REST. 1 to 32 of `a-z 0-9 -`, unique among address pools.
    pub name: String,
    /// Prefixes or single addresses, at least one, at most 2^20 addresses altogether. They overlap nothing else.
    #[serde(deserialize_with = "prefixes")]
    pub ranges: Vec<Ipv4Net>,
    /// The gateway's own address towards subscribers (its side of IPCP). May lie in a range; it is never handed out.
    pub gateway: Ipv4Addr,
    /// DNS servers given by IPCP (RFC 1877), 0 to 2, default none.
    #[serde(default)]
    pub dns: Vec<Ipv4Addr>,
    /// IPv6 for these subscribers. Default none: they get IPv4 alone.
    #[serde(default)]
    pub ipv6: Option<PoolIpv6>,
    /// Name of the NAT pool that translates these subscribers. Default none: the addresses are routed as they are.
    #[serde(default)]
    pub nat: Option<String>,
}

impl AddressPool {
    /// The addresses that are handed out, ascending within each range. Left out: the gateway, and the first and last address of
    /// a prefix of length 30 or less (some subscriber routers refuse them).
    pub fn usable(&self) -> impl Iterator<Item = Ipv4Addr> {
        let gateway = self.gateway;
        self.ranges
            .iter()
            .flat_map(Ipv4Net::hosts)
            .filter(move |address| *address != gateway)
    }

    /// How many addresses [`AddressPool::usable`] yields.
    pub fn capacity(&self) -> u32 {
        self.ranges
            .iter()
            .map(|range| {
                let ends = if range.prefix_len() <= 30 { 2 } else { 0 };
                let gateway_inside = range.contains(&self.gateway)
                    && (ends == 0
                        || (self.gateway != range.network() && self.gateway != range.broadcast()));
                let size = size(range) - ends - u64::from(gateway_inside);
                u32::try_from(size).unwrap_or(u32::MAX)
            })
            .fold(0, u32::saturating_add)
    }

    /// Whether [`AddressPool::usable`] yields the address.
    pub fn is_usable(&self, address: Ipv4Addr) -> bool {
        let mut ranges = self.ranges.iter();
        address != self.gateway
            && ranges.any(|range| {
                let is_end = address == range.network() || address == range.broadcast();
                range.contains(&address) && (range.prefix_len() > 30 || !is_end)
            })
    }

    /// Whether the address belongs to one of the ranges.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        self.ranges.iter().any(|range| range.contains(&address))
    }
}

/// Section `pools[].ipv6`: one /64 for each session, and one delegated prefix.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolIpv6 {
    /// Prefixes cut into /64s, one advertised on each session (RFC 4861). At least one, each of length 64 or less.
    pub prefixes: Vec<Ipv6Net>,
    /// Prefixes cut into those delegated to subscribers (RFC 8415), default none. Each no longer than `delegated_length`.
    #[serde(default)]
    pub delegated: Vec<Ipv6Net>,
    /// Length of a delegated prefix, 32 to 64 bits, default 56.
    #[serde(default = "default_delegated_length")]
    pub delegated_length: u8,
    /// DNS servers advertised on the sessions (RFC 8106), 0 to 2, default none.
    #[serde(default)]
    pub dns: Vec<Ipv6Addr>,
}

fn default_delegated_length() -> u8 {
    56
}

impl PoolIpv6 {
    /// All prefixes to cut, with the length they are cut to: on-link ones first, each kind in file order.
    pub fn ranges(&self) -> impl Iterator<Item = (Ipv6Net, u8)> {
        let on_link = self.prefixes.iter().map(|range| (*range, 64));
        let delegated = self.delegated.iter();
        on_link.chain(delegated.map(|range| (*range, self.delegated_length)))
    }

    /// How many prefixes all ranges are cut into; `u64::MAX` stands for more.
    pub fn prefix_count(&self) -> u64 {
        self.ranges()
            .map(|(range, length)| prefixes_in(&range, length))
            .fold(0, u64::saturating_add)
    }
}

/// Prefixes of length `length` in a range; `u64::MAX` stands for more, 0 for a range that is longer.
pub(crate) fn prefixes_in(range: &Ipv6Net, length: u8) -> u64 {
    match length.checked_sub(range.prefix_len()) {
        Some(bits) => 1u64.checked_shl(bits.into()).unwrap_or(u64::MAX),
        None => 0,
    }
}

/// Section `nat`: network address translation (RFC 4787, 5382, 5508, 6888).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Nat {
    /// Pools of public addresses. Default none: nothing is translated.
    pub pools: Vec<NatPool>,
    /// Mappings of the whole dataplane, shared evenly by the workers, 1,024 to 268,435,456, default 1,048,576.
    pub max_mappings: u32,
    /// How long an idle mapping lives.
    pub timers: NatTimers,
    /// What one subscriber may use.
    pub limits: NatLimits,
    /// Log of port blocks. Default none: nothing is logged.
    pub log: Option<NatLog>,
}

impl Default for Nat {
    fn default() -> Self {
        Self {
            pools: Vec::new(),
            max_mappings: 1 << 20,
            timers: NatTimers::default(),
            limits: NatLimits::default(),
            log: None,
        }
    }
}

impl Nat {
    /// Every public address in NAT address index order: pools as in the file, ranges as in the pool, addresses ascending.
    /// The position is the dense index both daemons use in shared memory.
    pub fn addresses(&self) -> impl Iterator<Item = (u16, Ipv4Addr)> {
        (0u16..).zip(&self.pools).flat_map(|(index, pool)| {
            pool.addresses.iter().flat_map(move |range| {
                let first = u32::from(range.network());
                let last = u32::from(range.broadcast());
                (first..=last).map(move |address| (index, Ipv4Addr::from(address)))
            })
        })
    }

    /// How many public addresses all pools have together.
    pub fn address_count(&self) -> u32 {
        self.pools.iter().map(NatPool::address_count).sum()
    }

    /// The dense index of a public address.
    pub fn address_index(&self, address: Ipv4Addr) -> Option<u32> {
        let mut base = 0u32;
        for range in self.pools.iter().flat_map(|pool| &pool.addresses) {
            if range.contains(&address) {
                return Some(base + (u32::from(address) - u32::from(range.network())));
            }
            base += u32::try_from(size(range)).unwrap_or(u32::MAX);
        }
        None
    }

    /// Index and pool of a name.
    pub fn pool(&self, name: &str) -> Option<(u16, &NatPool)> {
        (0u16..)
            .zip(&self.pools)
            .find(|(_, pool)| pool.name == name)
    }
}

/// One entry of `nat.pools`: public addresses, cut into port blocks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NatPool {
    /// Name in logs, metrics and REST. 1 to 32 of `a-z 0-9 -`, unique among NAT pools.
    pub name: String,
    /// Prefixes or single addresses, at least one, at most 65,536 addresses in all NAT pools. They overlap nothing else.
    #[serde(deserialize_with = "prefixes")]
    pub addresses: Vec<Ipv4Net>,
    /// Ports of one port block, a power of two from 64 to 16,384, default 512.
    #[serde(default = "default_block_size")]
    pub block_size: u16,
    /// First port of block 0, 1,024 to 49,152, default 1,024. Ports below it are not used.
    #[serde(default = "default_first_port")]
    pub first_port: u16,
    /// Most blocks of one subscriber, all on its one address, 1 to 8, default 4. It gets one more when it runs short of ports.
    #[serde(default = "default_blocks_per_subscriber")]
    pub blocks_per_subscriber: u8,
    /// How long a released block rests before its next owner, in seconds, 0 to 86,400, default 120.
    #[serde(default = "default_quarantine")]
    pub quarantine_s: u32,
    /// What becomes of protocols without ports (GRE, ESP and others), default `drop`.
    #[serde(default)]
    pub other_protocols: OtherProtocols,
}

/// What becomes of protocols without ports behind NAT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OtherProtocols {
    /// They are dropped.
    #[default]
    Drop,
    /// One subscriber behind an outside address exchanges a protocol with a remote.
    OneSubscriber,
}

fn default_block_size() -> u16 {
    512
}

fn default_blocks_per_subscriber() -> u8 {
    4
}

fn default_quarantine() -> u32 {
    120
}

fn default_first_port() -> u16 {
    1024
}

impl NatPool {
    /// How many public addresses the pool has.
    pub fn address_count(&self) -> u32 {
        self.addresses
            .iter()
            .map(|range| u32::try_from(size(range)).unwrap_or(u32::MAX))
            .fold(0, u32::saturating_add)
    }

    /// How many whole blocks fit on one address. Block `n` has ports `first_port + n * block_size` and the next
    /// `block_size - 1`; ports after the last whole block are not used.
    pub fn blocks_per_address(&self) -> u16 {
        let ports = 65_536 - u32::from(self.first_port);
        u16::try_from(ports / u32::from(self.block_size.max(1))).unwrap_or(u16::MAX)
    }
}

/// Section `nat.timers`: how long an idle mapping lives (RFC 4787 REQ-5, RFC 5382 REQ-5, RFC 5508 REQ-2).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NatTimers {
    /// UDP, in seconds, 120 to 64,800, default 300.
    pub udp_s: u32,
    /// ICMP query, in seconds, 60 to 64,800, default 60.
    pub icmp_s: u32,
    /// TCP after the handshake, in seconds, 7,440 to 64,800, default 7,440.
    pub tcp_established_s: u32,
    /// TCP before the handshake ends or after it closes, in seconds, 240 to 64,800, default 240.
    pub tcp_transitory_s: u32,
}

impl Default for NatTimers {
    fn default() -> Self {
        Self {
            udp_s: 300,
            icmp_s: 60,
            tcp_established_s: 7440,
            tcp_transitory_s: 240,
        }
    }
}

/// Section `nat.limits`: what one subscriber may use (RFC 6888 REQ-3, REQ-4). 0 is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NatLimits {
    /// Mappings at once, of all protocols together, 0 to 196,608, default 0.
    pub mappings: u32,
    /// New mappings per second, 0 to 65,535, default 0.
    pub new_per_second: u16,
}

/// Addresses in a prefix, 1 to 2^32.
pub(crate) fn size(range: &Ipv4Net) -> u64 {
    1u64 << (32 - u32::from(range.prefix_len()))
}

/// A list of prefixes in which a bare address stands for its /32.
pub(crate) fn prefixes<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Ipv4Net>, D::Error> {
    Vec::<String>::deserialize(deserializer)?
        .iter()
        .map(|text| {
            parse_prefix(text)
                .ok_or_else(|| serde::de::Error::custom("not an IPv4 prefix or address"))
        })
        .collect()
}

/// A prefix, or a bare address as its /32.
pub(crate) fn parse_prefix(text: &str) -> Option<Ipv4Net> {
    text.parse()
        .ok()
        .or_else(|| text.parse::<Ipv4Addr>().ok().map(Ipv4Net::from))
}
