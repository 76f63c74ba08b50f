//! `pppoe` and `auth`: how subscribers dial in.

use std::path::PathBuf;

use secrecy::SecretString;
use serde::Deserialize;

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
    /// Sessions of the whole gateway that have a PADS but no open network protocol yet, 1 to 65,535, default 1,024.
    pub max_half_open: u32,
    /// PADI answered per second on one access port, 1 to 1,000,000, default 1,000; the rest is dropped and counted.
    pub padi_per_second: u32,
    /// PADI answered per second from one MAC on one access port, 1 to 1,000, default 5.
    pub padi_per_second_per_mac: u32,
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
            max_half_open: 1024,
            padi_per_second: 1000,
            padi_per_second_per_mac: 5,
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

/// Section `auth`: subscriber authentication.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Auth {
    /// Protocols offered, first choice first, at least one, default `[pap]`.
    pub protocols: Vec<AuthProtocol>,
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
}

impl AuthProtocol {
    /// The word in the file: `pap`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pap => "pap",
        }
    }
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
}
