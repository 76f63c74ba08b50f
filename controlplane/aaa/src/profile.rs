//! What whoever knows a subscriber says of it: the terms of its session.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::prefix_pool::Prefix;

/// A rate of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Committed rate of IP packets, kbit/s, at least 1.
    pub kbps: u32,
    /// Committed burst in bytes; `None` for what goes with the rate.
    pub burst_bytes: Option<u32>,
}

/// A network behind the subscriber (Framed-Route, RFC 2865 section 5.22).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramedRoute {
    /// Its network address, without host bits.
    pub network: Ipv4Addr,
    /// Prefix length, 0 to 32.
    pub length: u8,
    /// Metric; smaller is better.
    pub metric: u32,
}

/// The terms of a session. What is `None` or empty is left to the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// The address it is to have (Framed-IP-Address).
    pub framed_ip: Option<Ipv4Addr>,
    /// Name of the pool its address comes from (Framed-Pool, RFC 2869 section 5.18).
    pub framed_pool: Option<String>,
    /// Its /64 (Framed-IPv6-Prefix, RFC 3162 section 2.3).
    pub framed_ipv6_prefix: Option<Prefix>,
    /// Its delegated prefix (Delegated-IPv6-Prefix, RFC 4818).
    pub delegated_ipv6_prefix: Option<Prefix>,
    /// Networks behind it.
    pub framed_routes: Vec<FramedRoute>,
    /// DNS servers, primary first.
    pub dns: [Option<Ipv4Addr>; 2],
    /// IPv6 DNS servers, primary first (DNS-Server-IPv6-Address, RFC 6911).
    pub dns6: [Option<Ipv6Addr>; 2],
    /// Longest time of the session.
    pub session_timeout: Option<Duration>,
    /// Longest time without traffic of the subscriber.
    pub idle_timeout: Option<Duration>,
    /// Most octets of both directions together.
    pub quota_octets: Option<u64>,
    /// Time between interim updates; zero for none.
    pub interim_interval: Option<Duration>,
    /// Class attributes, sent back with accounting, in order.
    pub class: Vec<Vec<u8>>,
    /// Name of a policy or, if there is none of that name, of a filter (Filter-Id). A name of neither is counted and warned of.
    pub filter_id: Option<String>,
    /// Rate of what the subscriber sends, in place of the policy's.
    pub rate_up: Option<RateLimit>,
    /// Rate of what the subscriber receives, in place of the policy's.
    pub rate_down: Option<RateLimit>,
    /// Text for the peer (Reply-Message), at most 253 bytes.
    pub message: Vec<u8>,
}
