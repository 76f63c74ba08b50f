//! Who a subscriber is, what it is told, where it stands, and how it ends.

use std::time::Duration;

use bng_pppoe::codec::lcp;
use bng_wire::{MacAddr, VlanStack};

use super::Auth;

/// What all subscribers of a run have in common.
#[derive(Clone, Debug)]
pub(crate) struct ClientSettings {
    /// First period of every retransmission timer; doubled each time.
    pub(crate) restart: Duration,
    /// Longest period of a retransmission timer.
    pub(crate) restart_max: Duration,
    /// Transmissions of a request before giving up (RFC 1661 section 4.6 Max-Configure).
    pub(crate) max_configure: u32,
    /// Transmissions of a Terminate-Request before going on without an answer.
    pub(crate) max_terminate: u32,
    /// MRU asked for, bytes of PPP information field. Above 1,492 with PPP-Max-Payload (RFC 4638).
    pub(crate) mru: u16,
    /// How long a session may take from its first PADI to its last address.
    pub(crate) setup_timeout: Duration,
    /// Service-Name asked for; empty for any.
    pub(crate) service_name: Vec<u8>,
    /// VLAN tags of every frame.
    pub(crate) vlans: VlanStack,
    /// IPv6 beside IPv4: a session is up when it has an address of each.
    pub(crate) ipv6: bool,
    /// How they say who they are.
    pub(crate) auth: Auth,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            restart: Duration::from_secs(1),
            restart_max: Duration::from_secs(4),
            max_configure: 10,
            max_terminate: 2,
            mru: lcp::PPPOE_MRU,
            setup_timeout: Duration::from_secs(60),
            service_name: Vec::new(),
            vlans: VlanStack::UNTAGGED,
            ipv6: false,
            auth: Auth::Pap,
        }
    }
}

/// Who a subscriber is.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// Its MAC address.
    pub(crate) mac: MacAddr,
    /// PAP Peer-Id, or the name in CHAP.
    pub(crate) user: Vec<u8>,
    /// PAP password, or CHAP secret.
    pub(crate) password: Vec<u8>,
    /// Its Host-Uniq.
    pub(crate) host_uniq: [u8; 8],
    /// Its first LCP magic number.
    pub(crate) magic: u32,
}

/// Why a session ended or never came up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum EndCause {
    /// No PADO.
    NoPado,
    /// No PADS.
    NoPads,
    /// PADS with session id 0 or an error tag.
    PadsRefused,
    /// LCP Configure exchange without an answer.
    LcpTimeout,
    /// LCP options nobody agrees on.
    LcpRefused,
    /// No answer to PAP.
    PapTimeout,
    /// PAP Nak.
    PapRefused,
    /// No CHAP Challenge, or no verdict on our Response.
    ChapTimeout,
    /// CHAP Failure.
    ChapRefused,
    /// IPCP Configure exchange without an answer.
    IpcpTimeout,
    /// No address agreed on, or IPCP Protocol-Rejected.
    IpcpRefused,
    /// IPv6CP Configure exchange without an answer.
    Ipv6cpTimeout,
    /// No interface identifiers agreed on, or IPv6CP Protocol-Rejected.
    Ipv6cpRefused,
    /// No router advertisement with a prefix to make an address in.
    NoAdvertisement,
    /// The peer sent Terminate-Request.
    PeerTerminated,
    /// The peer sent PADT.
    PeerPadt,
    /// We hung up.
    HungUp,
}

impl EndCause {
    /// Name for the report.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::NoPado => "no-pado",
            Self::NoPads => "no-pads",
            Self::PadsRefused => "pads-refused",
            Self::LcpTimeout => "lcp-timeout",
            Self::LcpRefused => "lcp-refused",
            Self::PapTimeout => "pap-timeout",
            Self::PapRefused => "pap-refused",
            Self::ChapTimeout => "chap-timeout",
            Self::ChapRefused => "chap-refused",
            Self::IpcpTimeout => "ipcp-timeout",
            Self::IpcpRefused => "ipcp-refused",
            Self::Ipv6cpTimeout => "ipv6cp-timeout",
            Self::Ipv6cpRefused => "ipv6cp-refused",
            Self::NoAdvertisement => "no-router-advertisement",
            Self::PeerTerminated => "peer-terminate-request",
            Self::PeerPadt => "peer-padt",
            Self::HungUp => "hung-up",
        }
    }
}

/// Where a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not started.
    Idle,
    /// PADI sent.
    Discovery,
    /// PADR sent.
    Request,
    /// LCP negotiates.
    Establish,
    /// PAP request sent, or a CHAP Challenge awaited.
    Authenticate,
    /// IPCP negotiates; with IPv6 also IPv6CP, then the router is solicited.
    Network,
    /// Every address asked for is there.
    Up,
    /// Terminate-Request sent.
    HangUp(EndCause),
    /// Over.
    Ended(EndCause),
}

/// What one session carried, as the subscriber sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Octets {
    /// IP packets sent into it.
    pub(crate) up_packets: u64,
    /// Their bytes.
    pub(crate) up_bytes: u64,
    /// IP packets that came out of it.
    pub(crate) down_packets: u64,
    /// Their bytes.
    pub(crate) down_bytes: u64,
}

/// What the subscribers of a run did, summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientCounters {
    /// Frames sent again for want of an answer.
    pub(crate) retransmissions: u64,
    /// CHAP Challenges answered.
    pub(crate) challenges_answered: u64,
    /// Echo-Requests answered.
    pub(crate) echo_answered: u64,
    /// LCP, IPCP or IPv6CP negotiated again in Opened.
    pub(crate) renegotiations: u64,
    /// Router advertisements received.
    pub(crate) advertisements: u64,
    /// Frames that fit no state of the session they were sent to.
    pub(crate) unexpected: u64,
}
