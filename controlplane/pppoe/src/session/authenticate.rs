//! The authentication phase, and CHAP challenges repeated in the network phase (RFC 1661 section 3.5, RFC 1994).

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{Phase, Session};
use crate::auth::{Request, Stage};
use crate::codec::control::ControlPacket;
use crate::context::Context;
use crate::counters::{Outcome, TerminateCause};
use crate::events::{AuthProtocol, AuthRequest, AuthVerdict, Event, Proof, RejectCause};
use crate::timers::Timer;
use crate::{AuthError, DropReason};

impl Session {
    /// LCP is Opened: the peer has to prove who it is.
    pub(super) fn begin_authentication(&mut self, cx: &mut Context<'_>) {
        self.phase = Phase::Authenticate;
        let protocol = self.lcp.options.auth();
        self.auth.begin(protocol);
        self.arm_auth(cx);
        if protocol == AuthProtocol::ChapMd5 {
            self.auth.first_challenge(&mut self.lower, cx);
        }
    }

    fn arm_auth(&mut self, cx: &Context<'_>) {
        let deadline = cx.now + cx.config.auth_timeout;
        self.lower.timers.arm(Timer::Auth, deadline);
    }

    /// Handles a packet of PAP or CHAP.
    pub(super) fn receive_auth(
        &mut self,
        protocol: AuthProtocol,
        payload: &[u8],
        cx: &mut Context<'_>,
    ) -> Result<(), DropReason> {
        let packet = ControlPacket::parse(payload)?;
        if self.phase == Phase::Terminate && !self.auth.refused() {
            return Err(DropReason::SessionEnding);
        }
        match self.auth.receive(protocol, packet, &self.lower, cx)? {
            Request::Repeated => {}
            Request::EmptyPassword { name } => {
                self.user_name = name.into();
                self.refuse(TerminateCause::WrongCredentials, Vec::new(), cx);
            }
            Request::Decide { name, .. }
                if self.phase == Phase::Network && *self.user_name != *name =>
            {
                cx.counters.count(Outcome::ChapNameChanged);
                self.refuse(TerminateCause::WrongCredentials, Vec::new(), cx);
            }
            Request::Decide { name, proof } => self.ask(name, proof, cx),
        }
        Ok(())
    }

    fn ask(&mut self, name: &[u8], proof: Proof, cx: &mut Context<'_>) {
        // The peer has done its part. AAA's delay is bounded by the set-up time.
        self.lower.timers.disarm(Timer::Auth);
        let is_repeated = self.phase == Phase::Network;
        if is_repeated {
            let latest = cx.now + cx.config.setup_timeout;
            self.lower.timers.arm(Timer::Challenge, latest);
        } else {
            self.lower.timers.disarm(Timer::Challenge);
            self.user_name = Box::from(name);
        }
        cx.events.push_back(Event::AuthRequest(AuthRequest {
            session: self.lower.session,
            attempt: self.auth.attempt(),
            line: self.line,
            user_name: name.to_vec(),
            proof,
            is_repeated,
            circuit_id: self.subscriber.circuit_id.to_vec(),
            remote_id: self.subscriber.remote_id.to_vec(),
            service_name: self.subscriber.service_name.to_vec(),
        }));
    }

    /// Whether AAA's answer to request `attempt` is awaited.
    pub(crate) fn awaits_verdict(&self, attempt: u32) -> bool {
        matches!(self.phase, Phase::Authenticate | Phase::Network)
            && self.auth.awaits_verdict(attempt)
    }

    /// AAA's answer.
    pub(crate) fn verdict(
        &mut self,
        attempt: u32,
        verdict: AuthVerdict,
        cx: &mut Context<'_>,
    ) -> Result<(), AuthError> {
        if !self.awaits_verdict(attempt) {
            return Err(AuthError::NotAwaited);
        }
        let is_repeated = self.phase == Phase::Network;
        match verdict {
            AuthVerdict::Accept { grant, message } => {
                self.auth.decide(true, message, &self.lower, cx);
                if !is_repeated {
                    self.enter_network(grant, cx);
                }
                self.arm_next_challenge(cx);
            }
            AuthVerdict::Reject {
                cause: RejectCause::AaaUnavailable,
                ..
            } if is_repeated => self.stay_undecided(cx),
            AuthVerdict::Reject { cause, message } => self.refuse(cause.into(), message, cx),
        }
        Ok(())
    }

    fn refuse(&mut self, cause: TerminateCause, message: Vec<u8>, cx: &mut Context<'_>) {
        self.auth.decide(false, message, &self.lower, cx);
        self.terminate(cause, cx);
    }

    /// Nobody decided on a repeated proof: that is no fault of a peer that was accepted before.
    fn stay_undecided(&mut self, cx: &mut Context<'_>) {
        cx.counters.count(Outcome::ChapUndecided);
        self.auth.leave_accepted();
        self.arm_next_challenge(cx);
    }

    /// The challenge timer of a session in the network phase; a tenth more or less keeps sessions that came up together
    /// from staying in step.
    fn arm_next_challenge(&mut self, cx: &mut Context<'_>) {
        self.lower.timers.disarm(Timer::Challenge);
        if let Some(interval) = cx.config.chap_interval
            && self.auth.protocol() == AuthProtocol::ChapMd5
            && self.phase == Phase::Network
        {
            let spread = cx.random.duration_below(interval / 5);
            let next = cx.now + (interval - interval / 10 + spread);
            self.lower.timers.arm(Timer::Challenge, next);
        }
    }

    /// The time between challenges was changed.
    pub(crate) fn chap_interval_changed(&mut self, cx: &mut Context<'_>) {
        if self.phase == Phase::Network && self.auth.stage() == Stage::Accepted {
            self.lower.timers.disarm(Timer::Challenge);
            self.resume_challenges(cx);
        }
    }

    /// The challenge timer of a session among many that begin to be challenged at one time.
    pub(super) fn resume_challenges(&mut self, cx: &mut Context<'_>) {
        if let Some(interval) = cx.config.chap_interval
            && self.auth.protocol() == AuthProtocol::ChapMd5
        {
            let next = cx.now + cx.random.duration_below(interval);
            self.lower.timers.arm(Timer::Challenge, next);
        }
    }

    /// The challenge timer expired.
    pub(super) fn challenge_due(&mut self, cx: &mut Context<'_>) {
        match self.auth.stage() {
            Stage::Closed => {}
            Stage::Awaiting => {
                cx.counters.count(Outcome::Retransmissions);
                self.auth.send_challenge(&mut self.lower, cx);
            }
            Stage::Pending => self.stay_undecided(cx),
            Stage::Accepted => {
                self.reauthenticate(cx);
            }
        }
    }

    /// Challenges a peer again whose network phase goes on meanwhile. Returns `false` where that cannot be done: before
    /// the network phase, or when PAP was agreed on.
    pub(crate) fn reauthenticate(&mut self, cx: &mut Context<'_>) -> bool {
        if self.phase != Phase::Network || self.auth.protocol() != AuthProtocol::ChapMd5 {
            return false;
        }
        if self.auth.stage() == Stage::Accepted {
            cx.counters.count(Outcome::ChapRechallenges);
            self.arm_auth(cx);
            self.auth.first_challenge(&mut self.lower, cx);
        }
        true
    }
}
