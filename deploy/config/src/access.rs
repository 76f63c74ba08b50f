//! `pppoe` and `auth`: how subscribers dial in.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use ipnet::Ipv4Net;
use secrecy::SecretString;
use serde::Deserialize;

use crate::address_plan::prefixes;

/// Section `pppoe`: discovery (RFC 2516) and the timers of PPP (RFC 1661).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pppoe {
    /// AC-Name tag of PADO and PADS, 1 to 64 bytes, default `ironbng`.
    pub ac_name: String,
    /// Service names offered, 1 to 64 bytes each, at most 16. Empty (default): any service name is accepted.
    pub service_names: Vec<String>,
    /// Sessions one MAC may have on one access port and VLAN, 1 to 1,024, default 4.
    pub max_sessions_per_mac: u16,
    /// Sessions with one TR-101 Agent-Circuit-Id on one access port, 1 to 65,534, default 64.
    pub max_sessions_per_circuit: u16,
    /// Sessions of one access port, 1 to 65,534, default 65,534: all session ids there are.
    pub max_sessions_per_port: u16,
    /// Whether a client at its limit may take the place of a session of its own that no longer answers, default true.
    pub replace_stale_sessions: bool,
    /// Sessions of the whole gateway that have a PADS but no open network protocol yet, 1 to 65,535, default 1,024.
    pub max_half_open: u32,
    /// PADI answered per second on one access port, 1 to 1,000,000, default 1,000; the rest is dropped and counted.
    pub padi_per_second: u32,
    /// PADI answered per second from one MAC on one access port, 1 to 1,000, default 5.
    pub padi_per_second_per_mac: u32,
    /// How long a PADO is held back, in milliseconds, 0 to 5,000, default 0: clients take the gateway that answers first.
    pub pado_delay_ms: u16,
    /// How long a session id rests between two sessions, in seconds, 1 to 3,600, default 10.
    pub session_id_quarantine_s: u16,
    /// Clients that keep failing.
    pub lockout: Lockout,
    /// How long an AC-Cookie is valid, in seconds, 1 to 300, default 10.
    pub cookie_lifetime_s: u16,
    /// Largest MRU of a session, in bytes, 576 to 9,592, default 1,492. Above 1,492 only with PPP-Max-Payload (RFC 4638) and
    /// where the access port's MTU allows; see [`crate::Config::max_mru`].
    pub mru: u16,
    /// Smallest MRU a peer may ask for, in bytes, 128 to 1,492, default 576.
    pub min_mru: u16,
    /// Restart timer and counters of LCP and IPCP.
    pub lcp: Lcp,
    /// Keepalive.
    pub echo: Echo,
    /// How long a peer may take to authenticate after LCP is open, in seconds, 1 to 300, default 15.
    pub auth_timeout_s: u16,
    /// PPP control frames of one session that workers hand to `bng-controlplane` per second, 1 to 100,000, default 50; the
    /// rest is dropped and counted.
    pub punts_per_second_per_session: u32,
}

impl Default for Pppoe {
    fn default() -> Self {
        Self {
            ac_name: "ironbng".to_owned(),
            service_names: Vec::new(),
            max_sessions_per_mac: 4,
            max_sessions_per_circuit: 64,
            max_sessions_per_port: 65_534,
            replace_stale_sessions: true,
            max_half_open: 1024,
            padi_per_second: 20_000,
            padi_per_second_per_mac: 5,
            pado_delay_ms: 0,
            session_id_quarantine_s: 10,
            lockout: Lockout::default(),
            cookie_lifetime_s: 10,
            mru: 1492,
            min_mru: 576,
            lcp: Lcp::default(),
            echo: Echo::default(),
            auth_timeout_s: 15,
            punts_per_second_per_session: 50,
        }
    }
}

/// Section `pppoe.lcp`: restart timer and counters (RFC 1661 section 4.6); IPCP uses the same.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lcp {
    /// First period of the restart timer, in milliseconds, 100 to 60,000, default 3,000.
    pub restart_ms: u32,
    /// Max-Configure: Configure-Requests without answer, 1 to 100, default 10.
    pub max_configure: u8,
    /// Max-Terminate: Terminate-Requests without answer, 1 to 100, default 2.
    pub max_terminate: u8,
    /// Max-Failure: Configure-Naks before an option is rejected, 1 to 100, default 5.
    pub max_failure: u8,
}

impl Default for Lcp {
    fn default() -> Self {
        Self {
            restart_ms: 3000,
            max_configure: 10,
            max_terminate: 2,
            max_failure: 5,
        }
    }
}

/// Section `pppoe.echo`: LCP Echo-Requests to a silent peer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Echo {
    /// Time between Echo-Requests, in seconds, 1 to 3,600, default 30.
    pub interval_s: u16,
    /// Echo-Requests in a row without any sign of life before the session ends, 1 to 100, default 3.
    pub failures: u8,
}

impl Default for Echo {
    fn default() -> Self {
        Self {
            interval_s: 30,
            failures: 3,
        }
    }
}

/// Section `pppoe.lockout`: a client (MAC and VLANs, or Agent-Circuit-Id) whose sessions end before the network phase again
/// and again gets no PADO for a while.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lockout {
    /// Failures in a row before it begins, 0 to 100, default 10; 0 turns it off.
    pub failures: u8,
    /// First time, in seconds, 1 to 3,600, default 10. Each further failure doubles it.
    pub first_s: u16,
    /// Longest time, in seconds, 1 to 43,200, default 300. After as long without a failure it is forgotten.
    pub longest_s: u16,
}

impl Default for Lockout {
    fn default() -> Self {
        Self {
            failures: 10,
            first_s: 10,
            longest_s: 300,
        }
    }
}

/// Section `auth`: subscriber authentication.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    /// Protocols offered, first choice first, at least one, default `[pap]`.
    pub protocols: Vec<AuthProtocol>,
    /// Time between two CHAP challenges on a live session, in seconds, 0 to 86,400, default 0: only one, at start.
    pub chap_interval_s: u32,
    /// Who is asked, in this order, at least one, default `[local]`. The next one is asked about a user the one before does not
    /// know.
    pub backends: Vec<Backend>,
    /// Sessions of one user name, 0 to 65,535, default 0: any number.
    pub max_sessions_per_user: u16,
    /// What happens beyond that, default `replace`.
    pub beyond_max: BeyondMax,
    /// Local users; names are unique. After loading this also holds the users of `users_file`.
    pub users: Vec<User>,
    /// A file of its own with a list like `users`. A relative path starts at the configuration file's directory. Default none.
    pub users_file: Option<PathBuf>,
    /// Policy of users that neither have one themselves nor by their VLAN. Default none: the policy
    /// called [`crate::DEFAULT_POLICY`].
    pub default_policy: Option<String>,
}

impl Default for Auth {
    fn default() -> Self {
        Self {
            protocols: vec![AuthProtocol::Pap],
            chap_interval_s: 0,
            backends: vec![Backend::Local],
            max_sessions_per_user: 0,
            beyond_max: BeyondMax::Replace,
            users: Vec::new(),
            users_file: None,
            default_policy: None,
        }
    }
}

/// An authentication protocol of PPP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthProtocol {
    /// Password Authentication Protocol (RFC 1334).
    Pap,
    /// Challenge Handshake Authentication Protocol with MD5 (RFC 1994).
    Chap,
}

impl AuthProtocol {
    /// The word in the file: `pap` or `chap`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pap => "pap",
            Self::Chap => "chap",
        }
    }
}

/// Who knows subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// `auth.users` and the users file.
    Local,
    /// The servers of section `radius`.
    Radius,
}

impl Backend {
    /// The word in the file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Radius => "radius",
        }
    }
}

/// What happens to a user who has as many sessions as allowed and brings another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BeyondMax {
    /// The oldest one ends.
    Replace,
    /// The new one is refused.
    Refuse,
}

/// One entry of `auth.users` or of the users file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// Peer-ID as the subscriber sends it, 1 to 255 bytes.
    pub name: String,
    /// Password, 0 to 255 bytes. An empty one must be written as `""`.
    pub password: SecretString,
    /// Policy of the user's sessions. Default none: that of the VLAN, else `auth.default_policy`.
    #[serde(default)]
    pub policy: Option<String>,
    /// Name of the pool of the user's sessions. Default none: that of the VLAN, else the first with a free address.
    #[serde(default)]
    pub pool: Option<String>,
    /// Address of the user's session, of one of the pools. Default none: any.
    #[serde(default)]
    pub framed_ip: Option<Ipv4Addr>,
    /// Networks behind the user, routed to its session: prefixes of at least 8 bits or single addresses, at most 16, default
    /// none. They overlap nothing else.
    #[serde(default, deserialize_with = "prefixes")]
    pub framed_routes: Vec<Ipv4Net>,
    /// Longest time of a session, in seconds, 1 to 31,536,000. Default none.
    #[serde(default)]
    pub session_timeout_s: Option<u32>,
    /// Longest time without traffic of the user, in seconds, 1 to 604,800. Default none.
    #[serde(default)]
    pub idle_timeout_s: Option<u32>,
    /// Most bytes of a session, both directions together, in MiB, 1 to 4,294,967,295. Default none.
    #[serde(default)]
    pub quota_mib: Option<u32>,
}
