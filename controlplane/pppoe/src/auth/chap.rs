//! The authenticator's side of CHAP with MD5, RFC 1994. The proof itself is AAA's to check: only it has the secrets.

use bng_wire::pppoe::protocol;

use super::{Authenticator, Request, State};
use crate::DropReason;
use crate::codec::chap::{self, Value, code};
use crate::codec::control::{self, ControlPacket, HEADER_LEN};
use crate::context::{Context, Lower};
use crate::counters::Outcome;
use crate::events::Proof;
use crate::timers::Timer;

impl Authenticator {
    /// Begins with a first challenge, or with one to a peer that was accepted before.
    pub(crate) fn first_challenge(&mut self, lower: &mut Lower, cx: &mut Context<'_>) {
        self.challenges = 0;
        self.send_challenge(lower, cx);
    }

    /// Sends a challenge; every one has a value and an identifier of its own (RFC 1994 section 4.1), so a response to an
    /// earlier one counts no more. The challenge timer backs off as the Restart timer does.
    pub(crate) fn send_challenge(&mut self, lower: &mut Lower, cx: &mut Context<'_>) {
        self.state = State::Awaiting;
        self.challenge_id = self.challenge_id.wrapping_add(1);
        for half in self.challenge.chunks_exact_mut(8) {
            half.copy_from_slice(&cx.random.next_u64().to_be_bytes());
        }
        let value = Value {
            value: &self.challenge,
            name: lower.cut(&cx.config.ac_name, HEADER_LEN + 1 + self.challenge.len()),
        };
        let packet = chap::write_value(code::CHALLENGE, self.challenge_id, value);
        lower.send(protocol::CHAP, &packet, cx);
        cx.counters.count(Outcome::ChapChallenges);
        let period = cx.config.restart_period(self.challenges);
        self.challenges = self.challenges.saturating_add(1);
        lower.timers.arm(Timer::Challenge, cx.now + period);
    }

    pub(super) fn receive_chap<'a>(
        &mut self,
        packet: ControlPacket<'a>,
        lower: &Lower,
        cx: &mut Context<'_>,
    ) -> Result<Request<'a>, DropReason> {
        if packet.code != code::RESPONSE {
            return Err(DropReason::ChapCode);
        }
        let Value { value, name } = chap::parse_value(packet.data)?;
        let response = value.try_into().map_err(|_| DropReason::ChapLength)?;
        if packet.id != self.challenge_id {
            return Err(DropReason::ChapStale);
        }
        match &self.state {
            State::Idle => Err(DropReason::BeforeOpened),
            State::Awaiting => {
                self.attempt = self.attempt.wrapping_add(1);
                self.state = State::Pending {
                    id: packet.id,
                    digest: [0; 16],
                };
                cx.counters.count(Outcome::ChapResponses);
                let proof = Proof::ChapMd5 {
                    identifier: packet.id,
                    challenge: self.challenge,
                    response,
                };
                Ok(Request::Decide { name, proof })
            }
            // RFC 1994 section 4.2: whatever comes under this identifier gets the reply the first response got, so that
            // nobody can try one secret after the other on one challenge.
            State::Pending { .. } => {
                cx.counters.count(Outcome::ChapRepeated);
                Ok(Request::Repeated)
            }
            State::Decided { accepted, message } => {
                cx.counters.count(Outcome::ChapRepeated);
                reply(packet.id, *accepted, message, lower, cx);
                Ok(Request::Repeated)
            }
        }
    }
}

pub(super) fn reply(id: u8, accepted: bool, message: &[u8], lower: &Lower, cx: &mut Context<'_>) {
    let (code, outcome) = if accepted {
        (code::SUCCESS, Outcome::ChapSuccess)
    } else {
        (code::FAILURE, Outcome::ChapFailure)
    };
    let packet = control::write(code, id, lower.cut(message, HEADER_LEN));
    lower.send(protocol::CHAP, &packet, cx);
    cx.counters.count(outcome);
}
