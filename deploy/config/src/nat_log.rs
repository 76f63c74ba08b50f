//! `nat.log`: who had which public ports, kept on disk and told to collectors.

use std::net::SocketAddr;

use serde::Deserialize;

/// Section `nat.log` (RFC 6888 REQ-12).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NatLog {
    /// Time between two records of a block that stays open, in seconds, 60 to 604,800, default 86,400.
    pub interim_s: u32,
    /// How long records are kept, in days, 1 to 3,650, default 180.
    pub retention_days: u16,
    /// Most the log may take on disk, in MiB, 16 to 16,777,216, default 4,096.
    pub spool_mib: u32,
    /// What happens when that is full of what a collector has not taken: `refuse` (default) or `forget`.
    pub when_full: WhenFull,
    /// Syslog collectors (RFC 5424), at most 8. Default none.
    pub syslog: Vec<SyslogCollector>,
    /// IPFIX collectors (RFC 7011, 8158), at most 8. Default none.
    pub ipfix: Vec<IpfixCollector>,
}

impl Default for NatLog {
    fn default() -> Self {
        Self {
            interim_s: 86_400,
            retention_days: 180,
            spool_mib: 4_096,
            when_full: WhenFull::default(),
            syslog: Vec::new(),
            ipfix: Vec::new(),
        }
    }
}

/// What happens when the log is full of what a collector has not taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenFull {
    /// New subscribers behind NAT are refused.
    #[default]
    Refuse,
    /// The oldest records go.
    Forget,
}

/// How records travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogTransport {
    /// Datagrams: what is lost on the way is lost.
    #[default]
    Udp,
    /// A connection.
    Tcp,
}

impl LogTransport {
    /// The word in the file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
        }
    }
}

/// One entry of `nat.log.syslog`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyslogCollector {
    /// Its address and port.
    pub server: SocketAddr,
    /// `udp` (default) or `tcp`, with octet counting (RFC 6587).
    #[serde(default)]
    pub transport: LogTransport,
}

/// One entry of `nat.log.ipfix`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IpfixCollector {
    /// Its address and port.
    pub server: SocketAddr,
    /// `udp` (default) or `tcp`.
    #[serde(default)]
    pub transport: LogTransport,
    /// Observation domain (RFC 7011 section 2), default 1.
    #[serde(default = "observation_domain")]
    pub observation_domain: u32,
}

const fn observation_domain() -> u32 {
    1
}
