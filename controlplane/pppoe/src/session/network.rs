//! The network phase: IPCP and IPv6CP side by side. Either opens, closes or fails without the other; the session ends
//! when neither is open and neither can open any more.

use alloc::boxed::Box;

use bng_wire::pppoe::protocol;

use super::{Phase, Session};
use crate::automaton::{self, State};
use crate::codec::control::ControlPacket;
use crate::codec::lcp::code;
use crate::context::Context;
use crate::counters::{Outcome, TerminateCause};
use crate::events::{Event, Grant, NetworkDownReason};
use crate::ipcp::IpcpOptions;
use crate::negotiation::Step;
use crate::timers::Timer;
use crate::{DropReason, Time};

/// The network control protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ncp {
    /// RFC 1332.
    Ipcp,
    /// RFC 5072.
    Ipv6cp,
}

impl Ncp {
    const fn other(self) -> Self {
        match self {
            Self::Ipcp => Self::Ipv6cp,
            Self::Ipv6cp => Self::Ipcp,
        }
    }

    /// The protocol with this number.
    pub(super) const fn of(number: u16) -> Option<Self> {
        match number {
            protocol::IPCP => Some(Self::Ipcp),
            protocol::IPV6CP => Some(Self::Ipv6cp),
            _ => None,
        }
    }

    /// The protocol that packets with this number need open.
    pub(super) const fn of_data(number: u16) -> Option<Self> {
        match number {
            protocol::IPV4 => Some(Self::Ipcp),
            protocol::IPV6 => Some(Self::Ipv6cp),
            _ => None,
        }
    }

    const fn opened(self) -> Outcome {
        match self {
            Self::Ipcp => Outcome::IpcpOpened,
            Self::Ipv6cp => Outcome::Ipv6cpOpened,
        }
    }

    const fn timeout(self) -> TerminateCause {
        match self {
            Self::Ipcp => TerminateCause::IpcpTimeout,
            Self::Ipv6cp => TerminateCause::Ipv6cpTimeout,
        }
    }

    const fn refused(self) -> TerminateCause {
        match self {
            Self::Ipcp => TerminateCause::IpcpRefused,
            Self::Ipv6cp => TerminateCause::Ipv6cpRefused,
        }
    }

    const fn closed(self) -> TerminateCause {
        match self {
            Self::Ipcp => TerminateCause::IpcpClosed,
            Self::Ipv6cp => TerminateCause::Ipv6cpClosed,
        }
    }
}

/// Which families are forwarded: their network control protocol is Opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Open {
    pub(super) ipv4: bool,
    pub(super) ipv6: bool,
}

impl Open {
    const fn set(&mut self, ncp: Ncp, is_open: bool) {
        match ncp {
            Ncp::Ipcp => self.ipv4 = is_open,
            Ncp::Ipv6cp => self.ipv6 = is_open,
        }
    }

    pub(super) const fn any(self) -> bool {
        self.ipv4 || self.ipv6
    }
}

impl Session {
    pub(super) fn enter_network(&mut self, grant: Grant, cx: &mut Context<'_>) {
        self.phase = Phase::Network;
        let ipv6 = grant.ipv6.filter(|_| self.lcp.options.carries_ipv6());
        let mut grant = Grant { ipv6, ..grant };
        // The session's time is one, however often the peer renegotiates.
        let before = self.lower.timers.deadline(Timer::Session);
        let granted = grant.session_timeout.map(|timeout| cx.now + timeout);
        let deadline = before.into_iter().chain(granted).min();
        self.lower.timers.set(Timer::Session, deadline);
        if self.was_up {
            let since = self.up_since;
            grant.session_timeout = deadline.map(|deadline| deadline.since(since));
        }
        self.grant = Some(grant);
        self.ipcp.options = IpcpOptions::new(&grant);
        self.start_ncp(Ncp::Ipcp, cx);
        if ipv6.is_some() {
            self.start_ncp(Ncp::Ipv6cp, cx);
        }
    }

    fn start_ncp(&mut self, ncp: Ncp, cx: &mut Context<'_>) {
        if self.ncp_state(ncp) == State::Initial {
            self.ncp_event(ncp, automaton::Event::Open, cx);
        }
        self.ncp_event(ncp, automaton::Event::Up, cx);
    }

    pub(super) const fn ncp_state(&self, ncp: Ncp) -> State {
        match ncp {
            Ncp::Ipcp => self.ipcp.state(),
            Ncp::Ipv6cp => self.ipv6cp.state(),
        }
    }

    fn ncp_event(&mut self, ncp: Ncp, event: automaton::Event, cx: &mut Context<'_>) -> Step {
        match ncp {
            Ncp::Ipcp => self.ipcp.event(event, &mut self.lower, cx),
            Ncp::Ipv6cp => self.ipv6cp.event(event, &mut self.lower, cx),
        }
    }

    /// Handles a packet of a network control protocol.
    pub(super) fn receive_ncp(
        &mut self,
        ncp: Ncp,
        payload: &[u8],
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let packet = ControlPacket::parse(payload)?;
        if let Some(reason) = self.not_in_network() {
            return Err(reason);
        }
        let step = match ncp {
            Ncp::Ipcp => self.ipcp.receive(packet, &mut self.lower, cx)?,
            Ncp::Ipv6cp => self.ipv6cp.receive(packet, &mut self.lower, cx)?,
        };
        let cause = match packet.code {
            code::TERMINATE_REQUEST | code::TERMINATE_ACK => ncp.closed(),
            _ => ncp.refused(),
        };
        self.after_ncp(ncp, step, cause, cx);
        if packet.code == code::CODE_REJECT && self.ncp_state(ncp) == State::Stopping {
            self.end_without(ncp, ncp.refused(), cx);
        }
        Ok(())
    }

    /// The Restart timer of a network control protocol expired.
    pub(super) fn ncp_timeout(&mut self, ncp: Ncp, cx: &mut Context<'_>) {
        let cause = match self.ncp_state(ncp) {
            State::Stopping => ncp.closed(),
            _ => ncp.timeout(),
        };
        let step = match ncp {
            Ncp::Ipcp => self.ipcp.timeout(&mut self.lower, cx),
            Ncp::Ipv6cp => self.ipv6cp.timeout(&mut self.lower, cx),
        };
        self.after_ncp(ncp, step, cause, cx);
    }

    /// The peer does not know a network control protocol: nothing more of it may be sent (RFC 1661 section 5.7).
    pub(super) fn ncp_refused(&mut self, ncp: Ncp, cx: &mut Context<'_>) {
        if matches!(self.ncp_state(ncp), State::Initial | State::Starting) {
            return;
        }
        let step = self.ncp_event(ncp, automaton::Event::Down, cx);
        self.after_ncp(ncp, step, ncp.refused(), cx);
        self.end_without(ncp, ncp.refused(), cx);
    }

    /// `cause` is why the session ends, if this step leaves nothing to go on with.
    fn after_ncp(&mut self, ncp: Ncp, step: Step, cause: TerminateCause, cx: &mut Context<'_>) {
        match step {
            Step::Quiet => {}
            Step::Up => self.ncp_up(ncp, cx),
            Step::Down => self.ncp_down(ncp, cx),
            Step::Finished => self.end_without(ncp, cause, cx),
            Step::GiveUp(cause) if self.goes_on_without(ncp) => {
                let step = self.ncp_event(ncp, automaton::Event::Close, cx);
                self.after_ncp(ncp, step, cause, cx);
            }
            Step::GiveUp(cause) => self.terminate(cause, cx),
        }
    }

    /// Whether the other protocol is open or on its way there.
    const fn goes_on_without(&self, ncp: Ncp) -> bool {
        matches!(
            self.ncp_state(ncp.other()),
            State::ReqSent | State::AckRcvd | State::AckSent | State::Opened
        )
    }

    fn end_without(&mut self, ncp: Ncp, cause: TerminateCause, cx: &mut Context<'_>) {
        if !self.goes_on_without(ncp) {
            self.terminate(cause, cx);
        }
    }

    fn ncp_up(&mut self, ncp: Ncp, cx: &mut Context<'_>) {
        cx.counters.count(ncp.opened());
        let is_first = !self.open.any();
        self.open.set(ncp, true);
        if is_first {
            if !self.was_up {
                self.was_up = true;
                self.up_since = cx.now;
            }
            self.last_traffic = cx.now;
            self.lower.timers.disarm(Timer::Setup);
            if let Some(idle) = self.grant.and_then(|g| g.idle_timeout) {
                self.lower.timers.arm(Timer::Idle, cx.now + idle);
            }
        }
        let event = if is_first {
            Event::SessionUp
        } else {
            Event::NetworkChanged
        };
        if let Some(record) = self.record() {
            cx.events.push_back(event(Box::new(record)));
        }
        if ncp == Ncp::Ipv6cp {
            self.start_advertising(cx);
        }
    }

    fn ncp_down(&mut self, ncp: Ncp, cx: &mut Context<'_>) {
        let mut left = self.open;
        left.set(ncp, false);
        if !left.any() {
            self.network_down(NetworkDownReason::NcpRenegotiation, cx);
            self.arm_setup(cx);
            return;
        }
        self.open = left;
        if ncp == Ncp::Ipv6cp {
            self.lower.timers.disarm(Timer::RouterAdvertisement);
        }
        if let Some(record) = self.record() {
            cx.events.push_back(Event::NetworkChanged(Box::new(record)));
        }
    }

    /// Nothing is forwarded any more.
    pub(super) fn network_down(&mut self, reason: NetworkDownReason, cx: &mut Context<'_>) {
        if core::mem::take(&mut self.open).any() {
            self.lower.timers.disarm(Timer::Idle);
            self.lower.timers.disarm(Timer::RouterAdvertisement);
            cx.events.push_back(Event::NetworkDown {
                session: self.lower.session,
                reason,
            });
        }
    }

    /// LCP is down: nothing above it survives. The signal to the driver is [`Self::network_down`].
    pub(super) fn ncps_down(&mut self, cx: &mut Context<'_>) {
        for ncp in [Ncp::Ipcp, Ncp::Ipv6cp] {
            self.ncp_event(ncp, automaton::Event::Down, cx);
        }
    }

    /// The dataplane saw traffic from the peer: it had our last Configure-Ack. Which family it was is only known while one
    /// alone is open.
    pub(crate) fn note_traffic(&mut self, now: Time) {
        self.heard(now);
        match self.open {
            Open {
                ipv4: true,
                ipv6: false,
            } => self.ipcp.peer_is_opened(),
            Open {
                ipv4: false,
                ipv6: true,
            } => self.ipv6cp.peer_is_opened(),
            _ => {}
        }
        self.last_traffic = now;
    }
}
