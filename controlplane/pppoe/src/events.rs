//! What the engine tells its driver, what it is told back, and the values both share.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use bng_wire::{MacAddr, VlanStack};
use zeroize::Zeroizing;

use crate::counters::TerminateCause;
use crate::{PortId, Time};

/// Where a client is: all of a session's identity but its session id. VLAN 0 stands for no tag or a priority tag;
/// a single tag is the S-VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccessLine {
    /// Access port.
    pub port: PortId,
    /// S-VLAN id, 0 to 4095.
    pub s_vlan: u16,
    /// C-VLAN id, 0 to 4095.
    pub c_vlan: u16,
    /// Client MAC address.
    pub mac: MacAddr,
}

impl AccessLine {
    /// The line of a frame from `mac` with these tags.
    #[must_use]
    pub const fn new(port: PortId, vlans: &VlanStack, mac: MacAddr) -> Self {
        Self {
            port,
            s_vlan: vlans.s_vlan(),
            c_vlan: vlans.c_vlan(),
            mac,
        }
    }
}

/// Names one session; a later session with the same id has another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionRef {
    /// Access port.
    pub port: PortId,
    /// PPPoE session id, 1 to 65,534.
    pub session_id: u16,
    /// Counts the uses of this id on this port.
    pub generation: u32,
}

impl fmt::Display for SessionRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}#{}", self.port, self.session_id, self.generation)
    }
}

/// A frame to send on an access port, from its destination address on, without padding or checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Access port.
    pub port: PortId,
    /// The session it belongs to; `None` for PADO and for a PADS that refuses.
    pub session: Option<SessionRef>,
    /// The frame's bytes.
    pub frame: Vec<u8>,
}

/// A password: wiped when dropped, never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Zeroizing<Vec<u8>>);

impl Password {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self(Zeroizing::new(bytes.to_vec()))
    }

    /// The bytes; compare them whole and in constant time.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

/// How a peer proves its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AuthProtocol {
    /// PAP (RFC 1334).
    Pap,
    /// CHAP with MD5 (RFC 1994).
    ChapMd5,
}

impl AuthProtocol {
    /// The PPP protocol number.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            Self::Pap => 0xc023,
            Self::ChapMd5 => 0xc223,
        }
    }

    /// The data of LCP's Authentication-Protocol option (RFC 1661 section 6.2, RFC 1994 section 3).
    #[must_use]
    pub const fn option_data(self) -> &'static [u8] {
        match self {
            Self::Pap => &[0xc0, 0x23],
            Self::ChapMd5 => &[0xc2, 0x23, 5],
        }
    }

    /// The protocol an Authentication-Protocol option with this data stands for; `None` when it is not one of these.
    #[must_use]
    pub fn of_option(data: &[u8]) -> Option<Self> {
        [Self::Pap, Self::ChapMd5]
            .into_iter()
            .find(|it| it.option_data() == data)
    }

    /// Its name as operators see it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pap => "pap",
            Self::ChapMd5 => "chap",
        }
    }
}

/// What a peer proves its name with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The password of a PAP request, 0 to 255 bytes.
    Pap(Password),
    /// MD5 over identifier, password and challenge (RFC 1994 section 4.1).
    ChapMd5 {
        /// Identifier of the challenge.
        identifier: u8,
        /// The challenge.
        challenge: [u8; 16],
        /// The peer's response.
        response: [u8; 16],
    },
}

/// Credentials to decide on; answered by [`AccessConcentrator::handle_auth`](crate::AccessConcentrator::handle_auth).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthRequest {
    /// The session.
    pub session: SessionRef,
    /// Counts the requests of a session; a verdict for an older one is refused. At most one is outstanding: a new
    /// request (after a renegotiation) makes the older one void, and with it what an older verdict granted.
    pub attempt: u32,
    /// Where the client is.
    pub line: AccessLine,
    /// User name as sent, 0 to 255 bytes.
    pub user_name: Vec<u8>,
    /// What it proves the name with.
    pub proof: Proof,
    /// Whether the session's network phase goes on meanwhile: a CHAP challenge was repeated on a live session. A verdict that
    /// accepts changes nothing then (its grant is not looked at); one that refuses ends the session, but for
    /// [`RejectCause::AaaUnavailable`], which leaves it as it is.
    pub is_repeated: bool,
    /// TR-101 Agent-Circuit-Id; empty when unknown.
    pub circuit_id: Vec<u8>,
    /// TR-101 Agent-Remote-Id; empty when unknown.
    pub remote_id: Vec<u8>,
    /// Service-Name the client asked for; empty for any.
    pub service_name: Vec<u8>,
}

/// The IPv6 part of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Grant {
    /// The session's /64, advertised to the subscriber; the lower half is zero.
    pub prefix: Ipv6Addr,
    /// Prefix for the networks behind the subscriber, and its length (1 to 64). Opaque to the engine.
    pub delegated: Option<(Ipv6Addr, u8)>,
    /// DNS servers, advertised to the subscriber (RFC 8106).
    pub dns: [Option<Ipv6Addr>; 2],
}

/// The interface identifiers of a session's link-local addresses (RFC 5072 section 5): never zero, never equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceIds {
    /// Ours.
    pub ours: u64,
    /// The subscriber's.
    pub peer: u64,
}

/// What an accepted subscriber is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The subscriber's address.
    pub framed_ip: Ipv4Addr,
    /// Our address on the session.
    pub gateway_ip: Ipv4Addr,
    /// Primary and secondary DNS server.
    pub dns: [Option<Ipv4Addr>; 2],
    /// IPv6, when the subscriber is to have it; not negotiated over a link whose MRU is below 1280 either way.
    pub ipv6: Option<Ipv6Grant>,
    /// Longest life of the session from now on. The grant that follows a renegotiation can bring the end nearer, not put it
    /// off: [`set_timeouts`](crate::AccessConcentrator::set_timeouts) does that.
    pub session_timeout: Option<Duration>,
    /// Longest time without traffic (see [`AccessConcentrator::note_traffic`](crate::AccessConcentrator::note_traffic)).
    pub idle_timeout: Option<Duration>,
    /// Opaque to the engine, kept with the session and its record.
    pub accounting_id: u64,
}

/// Why credentials are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectCause {
    /// Unknown user or wrong password.
    WrongCredentials,
    /// The credentials are right but no address is left.
    PoolEmpty,
    /// Nobody could decide.
    AaaUnavailable,
    /// Refused for another reason.
    Policy,
}

impl From<RejectCause> for TerminateCause {
    fn from(cause: RejectCause) -> Self {
        match cause {
            RejectCause::WrongCredentials => Self::WrongCredentials,
            RejectCause::PoolEmpty => Self::PoolEmpty,
            RejectCause::AaaUnavailable => Self::AaaUnavailable,
            RejectCause::Policy => Self::AaaRefused,
        }
    }
}

/// The answer to an [`AuthRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthVerdict {
    /// Authenticated; the address is already reserved for the session.
    Accept {
        /// What the subscriber gets.
        grant: Grant,
        /// Text for the peer, cut at 255 bytes; may be empty.
        message: Vec<u8>,
    },
    /// Refused; the session ends.
    Reject {
        /// Why, for counters and [`Event::SessionDown`].
        cause: RejectCause,
        /// Text for the peer, cut at 255 bytes; may be empty.
        message: Vec<u8>,
    },
}

/// Everything needed to forward for a session in the network phase, and to adopt it after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    /// The session.
    pub session: SessionRef,
    /// Client MAC address.
    pub mac: MacAddr,
    /// VLAN tags of its frames, outermost first.
    pub vlans: VlanStack,
    /// Digest of the PADR that started it, by which that PADR is known when it comes again; 0 when there is none.
    pub padr: u64,
    /// Largest MRU the link allows, in bytes: 1492, more with RFC 4638, less on a small MTU.
    pub link_mru: u16,
    /// Largest PPP information field we take, in bytes.
    pub our_mru: u16,
    /// Largest PPP information field the peer takes, in bytes; never above `link_mru`.
    pub peer_mru: u16,
    /// Our magic number; 0 when the peer rejected it.
    pub our_magic: u32,
    /// The peer's magic number; 0 when it has none.
    pub peer_magic: u32,
    /// User name, 0 to 255 bytes.
    pub user_name: Vec<u8>,
    /// How the peer has proved it.
    pub auth_protocol: AuthProtocol,
    /// TR-101 Agent-Circuit-Id; empty when unknown.
    pub circuit_id: Vec<u8>,
    /// TR-101 Agent-Remote-Id; empty when unknown.
    pub remote_id: Vec<u8>,
    /// Service-Name the client asked for; empty for any.
    pub service_name: Vec<u8>,
    /// What the subscriber was given.
    pub grant: Grant,
    /// Whether IPCP is Opened: forward IPv4.
    pub ipv4_open: bool,
    /// The negotiated interface identifiers while IPv6CP is Opened: forward IPv6.
    pub interface_ids: Option<InterfaceIds>,
    /// When the PADS was sent.
    pub started: Time,
    /// When the network phase was reached for the first time.
    pub up_since: Time,
    /// When the session time is used up.
    pub session_deadline: Option<Time>,
}

/// Why the network phase ended while the session may live on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NetworkDownReason {
    /// The peer negotiates LCP again; authentication follows.
    LcpRenegotiation,
    /// The peer negotiates its only open network protocol again, or closed it.
    NcpRenegotiation,
    /// The session is ending; [`Event::SessionDown`] follows at once or after the Terminate exchange.
    Ending,
}

/// What happened, in order. For one session: `SessionStarted`, then `SessionUp` and `NetworkDown` in turn, with
/// `AuthRequest`s and `NetworkChanged`s (where it is up), then `SessionDown` (after a `NetworkDown` if the network was up).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session id was given; the PADS is held back until this event has been taken.
    SessionStarted {
        /// The session.
        session: SessionRef,
        /// Where the client is.
        line: AccessLine,
        /// VLAN tags of its frames, outermost first.
        vlans: VlanStack,
    },
    /// Credentials arrived: with the network down, or up ([`AuthRequest::is_repeated`]).
    AuthRequest(AuthRequest),
    /// The first network protocol is Opened: forward what the record says. Frames that tell the peer so are held back
    /// until this event has been taken.
    SessionUp(Box<SessionRecord>),
    /// One network protocol opened or closed while the other is Opened: forward what the record says now.
    NetworkChanged(Box<SessionRecord>),
    /// Stop forwarding.
    NetworkDown {
        /// The session.
        session: SessionRef,
        /// Why.
        reason: NetworkDownReason,
    },
    /// The session is over for the peer. Withdraw it, wait for the epoch, free what it had, then call
    /// [`AccessConcentrator::release`](crate::AccessConcentrator::release).
    SessionDown {
        /// The session.
        session: SessionRef,
        /// Where the client was.
        line: AccessLine,
        /// Why.
        cause: TerminateCause,
        /// Whether there was a `SessionUp` in the session's life (or it was adopted), so that accounting started.
        was_up: bool,
    },
}
