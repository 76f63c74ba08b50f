//! What is said of a session to whoever counts: start, interim update and stop (RFC 2866).

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::prefix_pool::Prefix;
use crate::profile::FramedRoute;

/// Which of the three it is (Acct-Status-Type).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The network phase was reached for the first time.
    Start,
    /// The session goes on.
    Interim,
    /// The session is over, for this cause.
    Stop(StopCause),
}

/// Acct-Terminate-Cause (RFC 2866 section 5.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum StopCause {
    /// The subscriber ended it.
    UserRequest = 1,
    /// The line went down.
    LostCarrier = 2,
    /// The subscriber vanished.
    LostService = 3,
    /// No traffic for the idle time.
    IdleTimeout = 4,
    /// The session's time, or its octets, are used up.
    SessionTimeout = 5,
    /// An operator or AAA ended it.
    AdminReset = 6,
    /// The gateway is going down.
    AdminReboot = 7,
    /// The access port failed.
    PortError = 8,
    /// The gateway made a mistake or the peer broke the protocol.
    NasError = 9,
    /// The gateway had to end it for another reason.
    NasRequest = 10,
    /// Its place was needed for another session of the same client.
    PortPreempted = 13,
    /// The subscriber's authentication was repeated and failed.
    UserError = 17,
}

/// Octets and packets of a session. Upstream is what the subscriber sent (Acct-Input-Octets).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// IP octets from the subscriber.
    pub up_octets: u64,
    /// IP packets from the subscriber.
    pub up_packets: u64,
    /// IP octets to the subscriber.
    pub down_octets: u64,
    /// IP packets to the subscriber.
    pub down_packets: u64,
}

/// Where a subscriber is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Name of the access port.
    pub port: String,
    /// Index of the access port.
    pub port_index: u8,
    /// S-VLAN id, 0 for none.
    pub s_vlan: u16,
    /// C-VLAN id, 0 for none.
    pub c_vlan: u16,
    /// MAC address.
    pub mac: [u8; 6],
    /// PPPoE session id.
    pub session_id: u16,
    /// Agent-Circuit-Id, may be empty.
    pub circuit_id: Vec<u8>,
    /// Agent-Remote-Id, may be empty.
    pub remote_id: Vec<u8>,
}

impl Line {
    /// NAS-Port-Id: the access port's name, S-VLAN and C-VLAN, as in `access0/100.7`; 0 stands for none.
    #[must_use]
    pub fn nas_port_id(&self) -> String {
        format!("{}/{}.{}", self.port, self.s_vlan, self.c_vlan)
    }
}

/// One accounting message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accounting {
    /// Which one.
    pub status: Status,
    /// Unique over restarts; Acct-Session-Id is its sixteen hexadecimal digits.
    pub accounting_id: u64,
    /// The subscriber.
    pub user: Vec<u8>,
    /// Whether local users knew it, and not a server (Acct-Authentic).
    pub is_local: bool,
    /// Class attributes of its Access-Accept.
    pub class: Vec<Vec<u8>>,
    /// Where it is.
    pub line: Line,
    /// Its address; `None` while IPv4 is not open.
    pub framed_ip: Option<Ipv4Addr>,
    /// Its interface identifier; `None` while IPv6 is not open.
    pub interface_id: Option<u64>,
    /// Its /64.
    pub framed_ipv6_prefix: Option<Prefix>,
    /// Its delegated prefix.
    pub delegated_ipv6_prefix: Option<Prefix>,
    /// Networks behind it.
    pub framed_routes: Vec<FramedRoute>,
    /// Public address and port block, first and last port; `None` without NAT.
    pub nat: Option<(Ipv4Addr, u16, u16)>,
    /// Address by which the subscriber knows the gateway.
    pub gateway6: Option<Ipv6Addr>,
    /// Time since the network phase was reached.
    pub session_time: Duration,
    /// What it has carried.
    pub totals: Totals,
    /// Unix time of the event, seconds (Event-Timestamp); what is sent late carries Acct-Delay-Time as well.
    pub event_unix_s: u64,
}
