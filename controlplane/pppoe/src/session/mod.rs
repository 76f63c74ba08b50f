//! One session: the link's phases from PADS to PADT (RFC 1661 section 3.2).

mod authenticate;
mod dhcpv6;
mod ipv6;
mod network;
mod receive;
mod stale;
mod view;

use alloc::boxed::Box;
use core::time::Duration;

use bng_wire::MacAddr;

use crate::Time;
use crate::auth::Authenticator;
use crate::automaton::{self, State};
use crate::codec::control;
use crate::codec::lcp::{DEFAULT_MRU, code};
use crate::context::{Context, Lower};
use crate::counters::{Outcome, TerminateCause};
use crate::events::{AccessLine, Event, Grant, NetworkDownReason, SessionRecord};
use crate::ipcp::IpcpOptions;
use crate::ipv6cp::Ipv6cpOptions;
use crate::lcp::LcpOptions;
use crate::limits::TokenBucket;
use crate::negotiation::{Negotiation, Step};
use crate::timers::Timer;

use dhcpv6::DHCPV6_RATE;
use ipv6::SOLICITATION_RATE;
use network::{Ncp, Open};

pub use view::SessionInfo;

/// Phases of a link (RFC 1661 section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// LCP negotiates.
    Establish,
    /// LCP is Opened, the peer has to prove who it is.
    Authenticate,
    /// The peer is authenticated, network protocols negotiate or are open.
    Network,
    /// The link is being closed.
    Terminate,
    /// The link is gone.
    Dead,
}

impl Phase {
    /// The phase's name as operators see it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Establish => "establish",
            Self::Authenticate => "authenticate",
            Self::Network => "network",
            Self::Terminate => "terminate",
            Self::Dead => "dead",
        }
    }
}

/// What a PADR told about the subscriber. Empty where nothing was said.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subscriber {
    pub(crate) circuit_id: Box<[u8]>,
    pub(crate) remote_id: Box<[u8]>,
    pub(crate) service_name: Box<[u8]>,
}

/// One session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) lower: Lower,
    pub(crate) line: AccessLine,
    pub(crate) subscriber: Subscriber,
    /// Digest of the PADR that started it; 0 when that is not known.
    pub(crate) padr: u64,
    /// The deadline the engine's schedule holds for this session.
    pub(crate) scheduled: Option<Time>,
    /// Whether the engine counts this session as half-open.
    pub(crate) counted_half_open: bool,
    /// Since when the engine counts this session as silent.
    pub(crate) counted_silent: Option<Time>,
    phase: Phase,
    lcp: Negotiation<LcpOptions>,
    auth: Authenticator,
    ipcp: Negotiation<IpcpOptions>,
    ipv6cp: Negotiation<Ipv6cpOptions>,
    user_name: Box<[u8]>,
    grant: Option<Grant>,
    cause: Option<TerminateCause>,
    open: Open,
    was_up: bool,
    echo_missed: u8,
    started: Time,
    up_since: Time,
    // Not yet, after an adoption.
    last_heard: Option<Time>,
    // When the peer was asked for a sign of life because its client dials again.
    probed: Option<Time>,
    // Whether nothing was heard since.
    probe_is_open: bool,
    // Whether anything was heard since the PADR.
    spoken: bool,
    last_traffic: Time,
    // Unsolicited router advertisements since IPv6CP opened, and the rate of solicitations.
    advertisements: u8,
    solicitations: TokenBucket,
    // The rate of DHCPv6, and whether the address it gives was declined.
    dhcpv6: TokenBucket,
    address_declined: bool,
}

impl Session {
    /// A session whose PADS is about to be sent.
    pub(crate) fn new(
        lower: Lower,
        line: AccessLine,
        subscriber: Subscriber,
        padr: u64,
        link_mru: u16,
        cx: &mut Context<'_>,
    ) -> Self {
        let options = LcpOptions::new(link_mru, cx);
        Self {
            lower,
            line,
            subscriber,
            padr,
            scheduled: None,
            counted_half_open: false,
            counted_silent: None,
            phase: Phase::Establish,
            lcp: Negotiation::new(options),
            auth: Authenticator::new(cx.random.below(256) as u8),
            ipcp: Negotiation::new(IpcpOptions::unset()),
            ipv6cp: Negotiation::new(Ipv6cpOptions::new(cx.random)),
            user_name: Box::default(),
            grant: None,
            cause: None,
            open: Open::default(),
            was_up: false,
            echo_missed: 0,
            started: cx.now,
            up_since: cx.now,
            last_heard: Some(cx.now),
            probed: None,
            probe_is_open: false,
            spoken: false,
            last_traffic: cx.now,
            advertisements: 0,
            solicitations: TokenBucket::full(SOLICITATION_RATE, cx.now),
            dhcpv6: TokenBucket::full(DHCPV6_RATE, cx.now),
            address_declined: false,
        }
    }

    /// A session in the network phase, as its record tells.
    pub(crate) fn adopted(
        mut lower: Lower,
        line: AccessLine,
        record: SessionRecord,
        cx: &mut Context<'_>,
    ) -> Self {
        let lcp = LcpOptions::agreed(
            record.link_mru,
            record.auth_protocol,
            (record.our_mru, record.peer_mru),
            (record.our_magic, record.peer_magic),
            cx,
        );
        lower.peer_mru = lcp.peer_mru();
        let timers = &mut lower.timers;
        // All sessions are adopted at once; their echoes must not stay in step.
        let interval = u64::try_from(cx.config.echo_interval.as_millis()).unwrap_or(u64::MAX);
        let first_echo = core::time::Duration::from_millis(cx.random.below(interval));
        timers.arm(Timer::Echo, cx.now + first_echo);
        if let Some(deadline) = record.session_deadline {
            timers.arm(Timer::Session, deadline);
        }
        if let Some(idle) = record.grant.idle_timeout {
            timers.arm(Timer::Idle, cx.now + idle);
        }
        let last_id = cx.random.below(256) as u8;
        let options = IpcpOptions::new(&record.grant);
        let ipcp = match record.ipv4_open {
            true => Negotiation::opened(options, last_id),
            false => Negotiation::stopped(options, last_id),
        };
        let ipv6cp = match (record.interface_ids, record.grant.ipv6) {
            (Some(ids), Some(_)) => {
                Negotiation::opened(Ipv6cpOptions::agreed(ids, cx.random), last_id)
            }
            (None, Some(_)) => Negotiation::stopped(Ipv6cpOptions::new(cx.random), last_id),
            (_, None) => Negotiation::new(Ipv6cpOptions::new(cx.random)),
        };
        let open = Open {
            ipv4: record.ipv4_open,
            ipv6: ipv6cp.state() == State::Opened,
        };
        let mut session = Self {
            lower,
            line,
            subscriber: Subscriber {
                circuit_id: record.circuit_id.into(),
                remote_id: record.remote_id.into(),
                service_name: record.service_name.into(),
            },
            padr: record.padr,
            scheduled: None,
            counted_half_open: false,
            counted_silent: None,
            phase: Phase::Network,
            lcp: Negotiation::opened(lcp, last_id),
            auth: Authenticator::accepted(record.auth_protocol, last_id),
            ipcp,
            ipv6cp,
            user_name: record.user_name.into(),
            grant: Some(record.grant),
            cause: None,
            open,
            was_up: true,
            echo_missed: 0,
            started: record.started,
            up_since: record.up_since,
            last_heard: None,
            probed: None,
            probe_is_open: false,
            spoken: true,
            last_traffic: cx.now,
            advertisements: 0,
            solicitations: TokenBucket::full(SOLICITATION_RATE, cx.now),
            dhcpv6: TokenBucket::full(DHCPV6_RATE, cx.now),
            address_declined: false,
        };
        session.resume_challenges(cx);
        if open.ipv6 {
            session.resume_advertising(cx);
        }
        session
    }

    /// The PADS is queued: LCP opens.
    pub(crate) fn start(&mut self, cx: &mut Context<'_>) {
        self.lower
            .timers
            .arm(Timer::Setup, cx.now + cx.config.setup_timeout);
        for event in [automaton::Event::Open, automaton::Event::Up] {
            let step = self.lcp.event(event, &mut self.lower, cx);
            self.after_lcp(step, TerminateCause::LcpTimeout, cx);
        }
    }

    pub(crate) const fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether the network was up at any time in the session's life.
    pub(crate) const fn was_up(&self) -> bool {
        self.was_up
    }

    pub(crate) const fn last_heard(&self) -> Option<Time> {
        self.last_heard
    }

    /// Whether the session counts against the half-open limit.
    pub(crate) const fn is_half_open(&self) -> bool {
        !self.open.any() && !matches!(self.phase, Phase::Terminate | Phase::Dead)
    }

    /// Since when the peer is silent, if it has sent nothing yet on this session.
    pub(crate) fn silent_since(&self) -> Option<Time> {
        (self.phase == Phase::Establish && !self.spoken).then_some(self.started)
    }

    /// The event a dead session leaves behind.
    pub(crate) fn down_event(&self) -> (TerminateCause, Event) {
        let cause = self.cause.unwrap_or(TerminateCause::ProtocolError);
        let event = Event::SessionDown {
            session: self.lower.session,
            line: self.line,
            cause,
            was_up: self.was_up,
        };
        (cause, event)
    }

    /// Ends the session the orderly way, with a Terminate exchange. Without effect when it is already ending.
    pub(crate) fn terminate(&mut self, cause: TerminateCause, cx: &mut Context<'_>) {
        if matches!(self.phase, Phase::Terminate | Phase::Dead) {
            return;
        }
        self.retract_advertisement(cx);
        self.begin_end(cause);
        let step = self.lcp.event(automaton::Event::Close, &mut self.lower, cx);
        self.after_lcp(step, cause, cx);
    }

    /// Ends the session at once, without a Terminate exchange: the peer is told by PADT only.
    pub(crate) fn cut_off(&mut self, cause: TerminateCause, cx: &mut Context<'_>) {
        if self.phase == Phase::Dead {
            return;
        }
        self.begin_end(cause);
        self.lower.send_padt(cx);
        self.die(cx);
    }

    /// The access port has another address now.
    pub(crate) fn set_source(&mut self, mac: MacAddr, cx: &mut Context<'_>) {
        self.lower.header.src = mac;
        if !self.open.any() {
            self.cut_off(TerminateCause::PortDown, cx);
        }
    }

    /// The peer sent PADT. A session that was ending keeps its own cause.
    pub(crate) fn peer_padt(&mut self, cx: &mut Context<'_>) {
        self.begin_end(TerminateCause::PeerPadt);
        self.die(cx);
    }

    /// From here on only the Terminate exchange's timer counts.
    fn begin_end(&mut self, cause: TerminateCause) {
        self.cause.get_or_insert(cause);
        self.phase = Phase::Terminate;
        for timer in [
            Timer::Auth,
            Timer::Challenge,
            Timer::Setup,
            Timer::Echo,
            Timer::Session,
            Timer::Idle,
            Timer::RouterAdvertisement,
        ] {
            self.lower.timers.disarm(timer);
        }
    }

    fn die(&mut self, cx: &mut Context<'_>) {
        self.network_down(NetworkDownReason::Ending, cx);
        self.phase = Phase::Dead;
        for timer in Timer::ALL {
            self.lower.timers.disarm(timer);
        }
    }

    /// `cause` is why the session ends, if this step ends it.
    fn after_lcp(&mut self, step: Step, cause: TerminateCause, cx: &mut Context<'_>) {
        let ending = matches!(
            self.lcp.state(),
            State::Closed | State::Stopped | State::Closing | State::Stopping
        );
        if ending && !matches!(self.phase, Phase::Terminate | Phase::Dead) {
            self.begin_end(cause);
        }
        match step {
            Step::Quiet => {}
            Step::Up => self.lcp_up(cx),
            Step::Down => self.lcp_down(cx),
            Step::Finished => {
                self.lower.send_padt(cx);
                self.die(cx);
            }
            Step::GiveUp(cause) => self.terminate(cause, cx),
        }
    }

    fn lcp_up(&mut self, cx: &mut Context<'_>) {
        cx.counters.count(Outcome::LcpOpened);
        self.lower.peer_mru = self.lcp.options.peer_mru();
        let first_echo = cx.now + cx.config.echo_interval;
        self.lower.timers.arm(Timer::Echo, first_echo);
        self.echo_missed = 0;
        self.begin_authentication(cx);
    }

    fn lcp_down(&mut self, cx: &mut Context<'_>) {
        let reason = if self.phase == Phase::Terminate {
            NetworkDownReason::Ending
        } else {
            cx.counters.count(Outcome::LcpRenegotiated);
            self.phase = Phase::Establish;
            NetworkDownReason::LcpRenegotiation
        };
        self.network_down(reason, cx);
        self.ncps_down(cx);
        // A refused peer that repeats its request is told so again until the link is gone.
        if self.phase == Phase::Establish || !self.auth.refused() {
            self.auth.reset();
        }
        self.grant = None;
        for timer in [Timer::Auth, Timer::Challenge, Timer::Echo] {
            self.lower.timers.disarm(timer);
        }
        if self.phase == Phase::Establish {
            self.arm_setup(cx);
            self.lower.peer_mru = DEFAULT_MRU.min(self.lcp.options.link_mru());
        }
    }

    /// A peer that goes on renegotiating does not get more time.
    fn arm_setup(&mut self, cx: &Context<'_>) {
        if self.lower.timers.deadline(Timer::Setup).is_none() {
            self.lower
                .timers
                .arm(Timer::Setup, cx.now + cx.config.setup_timeout);
        }
    }

    /// Something was heard from the peer.
    fn heard(&mut self, now: Time) {
        self.last_heard = Some(now);
        self.spoken = true;
        self.probe_is_open = false;
        self.echo_missed = 0;
    }

    /// Handles every timer that is due.
    pub(crate) fn expire(&mut self, cx: &mut Context<'_>) {
        while let Some(timer) = self.lower.timers.expire(cx.now) {
            match timer {
                Timer::LcpRestart => {
                    let step = self.lcp.timeout(&mut self.lower, cx);
                    self.after_lcp(step, TerminateCause::LcpTimeout, cx);
                }
                Timer::IpcpRestart => self.ncp_timeout(Ncp::Ipcp, cx),
                Timer::Ipv6cpRestart => self.ncp_timeout(Ncp::Ipv6cp, cx),
                Timer::Auth => self.terminate(TerminateCause::AuthTimeout, cx),
                Timer::Challenge => self.challenge_due(cx),
                Timer::Setup => self.terminate(TerminateCause::SetupTimeout, cx),
                Timer::Echo => self.echo(cx),
                Timer::Session => self.terminate(TerminateCause::SessionTimeout, cx),
                Timer::Idle => self.idle(cx),
                Timer::RouterAdvertisement => self.advertise_unasked(cx),
            }
        }
    }

    fn echo(&mut self, cx: &mut Context<'_>) {
        let interval = cx.config.echo_interval;
        if let Some(heard) = self.last_heard
            && cx.now.since(heard) < interval
        {
            self.lower.timers.arm(Timer::Echo, heard + interval);
            return;
        }
        if self.echo_missed >= cx.config.echo_max_missed {
            // Nobody would answer a Terminate-Request.
            self.cut_off(TerminateCause::DeadPeer, cx);
            return;
        }
        let magic = self.lcp.options.our_magic().to_be_bytes();
        let packet = control::write(code::ECHO_REQUEST, self.lcp.fresh_id(), &magic);
        self.lower.send(bng_wire::pppoe::protocol::LCP, &packet, cx);
        cx.counters.count(Outcome::EchoRequestsSent);
        self.echo_missed = self.echo_missed.saturating_add(1);
        self.lower.timers.arm(Timer::Echo, cx.now + interval);
    }

    /// The echo interval was changed. Echoes that would be due later than with the new one are spread over it.
    pub(crate) fn echo_interval_changed(&mut self, cx: &mut Context<'_>) {
        let next = cx.now + cx.random.duration_below(cx.config.echo_interval);
        let timers = &mut self.lower.timers;
        if timers.deadline(Timer::Echo).is_some_and(|due| due > next) {
            timers.arm(Timer::Echo, next);
        }
    }

    /// See [`AccessConcentrator::set_timeouts`](crate::AccessConcentrator::set_timeouts).
    pub(crate) fn set_timeouts(
        &mut self,
        session_timeout: Option<Option<Duration>>,
        idle_timeout: Option<Option<Duration>>,
        cx: &mut Context<'_>,
    ) -> bool {
        let is_up = self.open.any();
        let Some(grant) = self.grant.as_mut().filter(|_| self.phase == Phase::Network) else {
            return false;
        };
        let timers = &mut self.lower.timers;
        if let Some(timeout) = session_timeout {
            grant.session_timeout = timeout;
            let since = if self.was_up { self.up_since } else { cx.now };
            timers.set(Timer::Session, timeout.map(|timeout| since + timeout));
        }
        if let Some(timeout) = idle_timeout {
            grant.idle_timeout = timeout;
            let deadline = timeout.map(|timeout| self.last_traffic + timeout);
            timers.set(Timer::Idle, deadline.filter(|_| is_up));
        }
        true
    }

    fn idle(&mut self, cx: &mut Context<'_>) {
        let Some(idle) = self.grant.and_then(|g| g.idle_timeout) else {
            return;
        };
        if cx.now.since(self.last_traffic) >= idle {
            self.terminate(TerminateCause::IdleTimeout, cx);
        } else {
            self.lower.timers.arm(Timer::Idle, self.last_traffic + idle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_session_with_its_names_and_indices_stays_within_2_kib() {
        let names = 3 * 64 + 255;
        let indices = 256;
        assert!(core::mem::size_of::<Session>() + names + indices <= 2_048);
    }
}
