//! `radius`: servers that know the subscribers and count what they use.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use secrecy::SecretString;
use serde::Deserialize;

/// Section `radius` (RFC 2865, 2866, 2869, 3162, 5176).
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Radius {
    /// Servers, the preferred one first. At least one, at most 8.
    pub servers: Vec<RadiusServer>,
    /// NAS-Identifier, 1 to 253 bytes. Default: `pppoe.ac_name`.
    #[serde(default)]
    pub nas_identifier: Option<String>,
    /// NAS-IP-Address. Default none: it is left out.
    #[serde(default)]
    pub nas_address: Option<Ipv4Addr>,
    /// Address requests are sent from. Default none: the kernel chooses.
    #[serde(default)]
    pub source: Option<IpAddr>,
    /// Time a server has for an answer, in milliseconds, 100 to 30,000, default 2,000; doubled with each try.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u16,
    /// Times a request is sent to one server before the next one is asked, 1 to 10, default 3.
    #[serde(default = "tries")]
    pub tries: u8,
    /// How long a server that did not answer is asked last, in seconds, 1 to 3,600, default 60.
    #[serde(default = "dead_s")]
    pub dead_s: u16,
    /// Accounting. Default none: nothing is accounted for.
    #[serde(default)]
    pub accounting: Option<Accounting>,
    /// Change of Authorization and Disconnect (RFC 5176). Default none: nobody is listened to.
    #[serde(default)]
    pub dynamic_authorization: Option<DynamicAuthorization>,
}

/// One entry of `radius.servers`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RadiusServer {
    /// Its address.
    pub address: IpAddr,
    /// UDP port of authentication, 1 to 65,535, default 1812.
    #[serde(default = "auth_port")]
    pub auth_port: u16,
    /// UDP port of accounting, 1 to 65,535, default 1813.
    #[serde(default = "accounting_port")]
    pub accounting_port: u16,
    /// Shared secret, 1 to 128 bytes.
    pub secret: SecretString,
}

/// Section `radius.accounting`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accounting {
    /// Time between interim updates, in seconds, 0 or 60 to 86,400, default 600; 0 sends none. Acct-Interim-Interval of a reply
    /// comes before it.
    #[serde(default = "interim_s")]
    pub interim_s: u32,
    /// Most of what could not be delivered yet that is kept on disk, in MiB, 1 to 65,536, default 256.
    #[serde(default = "spool_mib")]
    pub spool_mib: u32,
}

/// Section `radius.dynamic_authorization`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DynamicAuthorization {
    /// Address and UDP port listened at, such as `192.0.2.10:3799`.
    pub listen: SocketAddr,
    /// Who may ask. At least one, at most 16.
    pub clients: Vec<DynamicAuthorizationClient>,
    /// Whether a request without Event-Timestamp is dropped, default yes: such a one can be repeated by whoever has overheard it.
    #[serde(default = "yes")]
    pub require_event_timestamp: bool,
}

/// One entry of `radius.dynamic_authorization.clients`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DynamicAuthorizationClient {
    /// Its address.
    pub address: IpAddr,
    /// Shared secret, 1 to 128 bytes.
    pub secret: SecretString,
}

const fn yes() -> bool {
    true
}

const fn timeout_ms() -> u16 {
    2_000
}

const fn tries() -> u8 {
    3
}

const fn dead_s() -> u16 {
    60
}

const fn auth_port() -> u16 {
    1_812
}

const fn accounting_port() -> u16 {
    1_813
}

const fn interim_s() -> u32 {
    600
}

const fn spool_mib() -> u32 {
    256
}
