//! A session read out: for operators, and as the record it can be adopted from.

use core::net::Ipv4Addr;

use bng_wire::VlanStack;

use super::{Phase, Session};
use crate::Time;
use crate::auth::Stage;
use crate::automaton::State;
use crate::counters::TerminateCause;
use crate::events::{AccessLine, AuthProtocol, InterfaceIds, Ipv6Grant, SessionRecord, SessionRef};
use crate::timers::Timer;

/// A live session as operators see it.
#[derive(Clone, Copy, Debug)]
pub struct SessionInfo<'a> {
    /// The session.
    pub session: SessionRef,
    /// Where the client is.
    pub line: AccessLine,
    /// VLAN tags of its frames, outermost first.
    pub vlans: VlanStack,
    /// Phase of the link.
    pub phase: Phase,
    /// LCP's automaton state.
    pub lcp: State,
    /// IPCP's automaton state.
    pub ipcp: State,
    /// IPv6CP's automaton state.
    pub ipv6cp: State,
    /// Whether IPCP or IPv6CP is Opened.
    pub network_up: bool,
    /// Why the session is ending, if it is.
    pub cause: Option<TerminateCause>,
    /// User name as sent; empty before authentication.
    pub user_name: &'a [u8],
    /// How the peer proves its name, once LCP has agreed on it.
    pub auth_protocol: Option<AuthProtocol>,
    /// TR-101 Agent-Circuit-Id; empty when unknown.
    pub circuit_id: &'a [u8],
    /// TR-101 Agent-Remote-Id; empty when unknown.
    pub remote_id: &'a [u8],
    /// Service-Name the client asked for; empty for any.
    pub service_name: &'a [u8],
    /// The subscriber's address, once granted.
    pub framed_ip: Option<Ipv4Addr>,
    /// Our address on the session, once granted.
    pub gateway_ip: Option<Ipv4Addr>,
    /// DNS servers given to the subscriber.
    pub dns: [Option<Ipv4Addr>; 2],
    /// The subscriber's IPv6, once granted.
    pub ipv6: Option<Ipv6Grant>,
    /// Interface identifiers, while IPv6CP is Opened.
    pub interface_ids: Option<InterfaceIds>,
    /// Opaque value of the grant.
    pub accounting_id: Option<u64>,
    /// Largest PPP information field we take, in bytes.
    pub our_mru: u16,
    /// Largest PPP information field the peer takes, in bytes.
    pub peer_mru: u16,
    /// Our magic number; 0 when the peer rejected it.
    pub our_magic: u32,
    /// The peer's magic number; 0 when it has none.
    pub peer_magic: u32,
    /// Echo-Requests since the last sign of life.
    pub echo_missed: u8,
    /// When the PADS was sent.
    pub started: Time,
    /// When the network phase was reached for the first time, if it is.
    pub up_since: Option<Time>,
    /// When the client was last heard of; `None` when not yet since the session was adopted.
    pub last_heard: Option<Time>,
    /// When the session time is used up.
    pub session_deadline: Option<Time>,
    /// When the idle time is used up, unless there is traffic before.
    pub idle_deadline: Option<Time>,
    /// When the next CHAP challenge is due.
    pub next_challenge: Option<Time>,
    /// When the next Echo-Request is due, unless something is heard.
    pub next_echo: Option<Time>,
}

impl Session {
    pub(crate) fn info(&self) -> SessionInfo<'_> {
        let lcp = &self.lcp.options;
        SessionInfo {
            session: self.lower.session,
            line: self.line,
            vlans: self.lower.header.vlans,
            phase: self.phase,
            lcp: self.lcp.state(),
            ipcp: self.ipcp.state(),
            ipv6cp: self.ipv6cp.state(),
            network_up: self.open.any(),
            cause: self.cause,
            user_name: &self.user_name,
            auth_protocol: (self.auth.stage() != Stage::Closed).then(|| self.auth.protocol()),
            circuit_id: &self.subscriber.circuit_id,
            remote_id: &self.subscriber.remote_id,
            service_name: &self.subscriber.service_name,
            framed_ip: self.grant.map(|g| g.framed_ip),
            gateway_ip: self.grant.map(|g| g.gateway_ip),
            dns: self.grant.map_or([None; 2], |g| g.dns),
            ipv6: self.grant.and_then(|g| g.ipv6),
            interface_ids: self.interface_ids(),
            accounting_id: self.grant.map(|g| g.accounting_id),
            our_mru: lcp.our_mru(),
            peer_mru: lcp.peer_mru(),
            our_magic: lcp.our_magic(),
            peer_magic: lcp.peer_magic(),
            echo_missed: self.echo_missed,
            started: self.started,
            up_since: self.open.any().then_some(self.up_since),
            last_heard: self.last_heard,
            session_deadline: self.lower.timers.deadline(Timer::Session),
            idle_deadline: self
                .grant
                .filter(|_| self.open.any())
                .and_then(|grant| Some(self.last_traffic + grant.idle_timeout?)),
            next_challenge: self.lower.timers.deadline(Timer::Challenge),
            next_echo: self.lower.timers.deadline(Timer::Echo),
        }
    }

    fn interface_ids(&self) -> Option<InterfaceIds> {
        self.open.ipv6.then(|| self.ipv6cp.options.ids())
    }

    /// The record of a session whose network is up.
    pub(crate) fn record(&self) -> Option<SessionRecord> {
        let grant = self.grant.filter(|_| self.open.any())?;
        let lcp = &self.lcp.options;
        Some(SessionRecord {
            session: self.lower.session,
            mac: self.line.mac,
            vlans: self.lower.header.vlans,
            padr: self.padr,
            link_mru: lcp.link_mru(),
            our_mru: lcp.our_mru(),
            peer_mru: lcp.peer_mru(),
            our_magic: lcp.our_magic(),
            peer_magic: lcp.peer_magic(),
            user_name: self.user_name.to_vec(),
            auth_protocol: self.auth.protocol(),
            circuit_id: self.subscriber.circuit_id.to_vec(),
            remote_id: self.subscriber.remote_id.to_vec(),
            service_name: self.subscriber.service_name.to_vec(),
            grant,
            ipv4_open: self.open.ipv4,
            interface_ids: self.interface_ids(),
            started: self.started,
            up_since: self.up_since,
            session_deadline: self.lower.timers.deadline(Timer::Session),
        })
    }
}
