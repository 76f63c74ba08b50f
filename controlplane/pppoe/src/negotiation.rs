//! One control protocol at work: packets and timeouts to automaton events, automaton actions to packets.
//!
//! LCP, IPCP and IPv6CP share this; what their options mean is behind [`Negotiable`].

use alloc::vec::Vec;
use core::time::Duration;

use crate::automaton::{Action, Event, State, transition};
use crate::codec::control::{self, ControlPacket, HEADER_LEN, Options};
use crate::codec::lcp::code;
use crate::config::{Config, Rate};
use crate::context::{Context, Lower};
use crate::cookie::keyed_digest;
use crate::counters::{Outcome, TerminateCause};
use crate::timers::Timer;
use crate::{DropReason, Time};

/// How long after our Configure-Ack the same request again is taken for one that was under way, unless the peer has shown
/// before that it had the Ack: three periods of the Restart timer's usual length (RFC 1661 section 4.6).
const REPEAT_WINDOW: Duration = Duration::from_secs(9);

/// Code-Rejects and Protocol-Rejects of one session.
pub(crate) const REJECT_RATE: Rate = Rate {
    per_second: 2,
    burst: 10,
};

/// The options of a control protocol, ours and the peer's.
pub(crate) trait Negotiable {
    /// PPP protocol number.
    const PROTOCOL: u16;
    /// Restart timer of this protocol.
    const TIMER: Timer;
    /// Whether the first Configure-Request is sent again when the peer's first one arrives: a client whose socket
    /// was not bound yet right after PADS has lost ours.
    const EARLY_RETRANSMIT: bool;

    /// Our option list. Must not change between sending a request and its answer.
    fn request(&self) -> Vec<u8>;

    /// Judges the peer's request; on [`Judgement::Ack`] its values are taken over.
    /// Without `may_nak` (Max-Failure reached) nothing is Nak'd any more.
    fn judge(&mut self, request: Options<'_>, may_nak: bool, cx: &mut Context<'_>) -> Judgement;

    /// Takes the peer's Nak of our request into account.
    fn naked(&mut self, hints: Options<'_>, cx: &mut Context<'_>) -> Result<(), TerminateCause>;

    /// Takes the peer's Reject of some of our options into account.
    fn rejected(&mut self, options: Options<'_>) -> Result<(), TerminateCause>;

    /// A new negotiation begins: ask for everything again.
    fn restart(&mut self, config: &Config);
}

/// Judgement on a peer's Configure-Request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// All options are acceptable.
    Ack,
    /// These options with acceptable values.
    Nak(Vec<u8>),
    /// These options as received.
    Reject(Vec<u8>),
    /// No agreement is possible.
    GiveUp(TerminateCause),
}

/// What a step means for the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing.
    Quiet,
    /// This-Layer-Up.
    Up,
    /// This-Layer-Down.
    Down,
    /// This-Layer-Finished.
    Finished,
    /// No agreement is possible; the automaton was not moved.
    GiveUp(TerminateCause),
}

/// The packet an event asks to be answered with.
struct Reply<'a> {
    code: u8,
    id: u8,
    data: &'a [u8],
}

impl Reply<'_> {
    const NONE: Self = Self {
        code: code::TERMINATE_ACK,
        id: 0,
        data: &[],
    };
}

/// One control protocol of one session.
#[derive(Debug)]
pub(crate) struct Negotiation<N> {
    pub(crate) options: N,
    state: State,
    // Restart counter (RFC 1661 section 4.6) and transmissions since it was initialised.
    restart_left: u8,
    back_off: u8,
    naks_sent: u8,
    last_id: u8,
    request_id: u8,
    // Our last Configure-Request has no valid answer yet. Answers that arrive twice, because we retransmitted, must
    // not reach the automaton: in Opened they would tear the link down.
    outstanding: bool,
    // How often that request was sent beyond the answers that came: a peer answers each (RFC 1661 section 4.3).
    unanswered: u8,
    first_request: bool,
    // Digest of the peer's request we acknowledged last, and when, as long as our Ack may not have arrived.
    acknowledged: Option<([u8; 16], Time)>,
}

impl<N: Negotiable> Negotiation<N> {
    pub(crate) const fn new(options: N) -> Self {
        Self {
            options,
            state: State::Initial,
            restart_left: 0,
            back_off: 0,
            naks_sent: 0,
            last_id: 0,
            request_id: 0,
            outstanding: false,
            unanswered: 0,
            first_request: true,
            acknowledged: None,
        }
    }

    /// The state a session adopted from a record is in. `last_id` starts anywhere: what the peer remembers of our
    /// identifiers is not known.
    pub(crate) const fn opened(options: N, last_id: u8) -> Self {
        let mut negotiation = Self::new(options);
        negotiation.state = State::Opened;
        negotiation.last_id = last_id;
        negotiation.first_request = false;
        negotiation
    }

    /// The state of an adopted session's protocol that is not open: it waits for the peer.
    pub(crate) const fn stopped(options: N, last_id: u8) -> Self {
        let mut negotiation = Self::opened(options, last_id);
        negotiation.state = State::Stopped;
        negotiation
    }

    pub(crate) const fn state(&self) -> State {
        self.state
    }

    /// The peer has shown that it had our Configure-Ack: any further Configure-Request renegotiates.
    pub(crate) const fn peer_is_opened(&mut self) {
        self.acknowledged = None;
    }

    /// A new identifier for a packet we originate.
    pub(crate) const fn fresh_id(&mut self) -> u8 {
        self.last_id = self.last_id.wrapping_add(1);
        self.last_id
    }

    /// An event without a packet: Up, Down, Open, Close, RXJ.
    pub(crate) fn event(&mut self, event: Event, lower: &mut Lower, cx: &mut Context<'_>) -> Step {
        self.step(event, &Reply::NONE, lower, cx)
    }

    /// The Restart timer expired.
    pub(crate) fn timeout(&mut self, lower: &mut Lower, cx: &mut Context<'_>) -> Step {
        let event = if self.restart_left > 0 {
            cx.counters.count(Outcome::Retransmissions);
            Event::TimeoutRetry
        } else {
            Event::TimeoutFinal
        };
        self.event(event, lower, cx)
    }

    /// A packet with a code shared by all control protocols (1 to 7), or an unknown one.
    pub(crate) fn receive(
        &mut self,
        packet: ControlPacket<'_>,
        lower: &mut Lower,
        cx: &mut Context<'_>,
    ) -> Result<Step, DropReason> {
        if self.is_answered_again(packet)? {
            cx.counters.count(Outcome::AnswersRepeated);
            return Ok(Step::Quiet);
        }
        let terminate_ack = Reply {
            code: code::TERMINATE_ACK,
            id: packet.id,
            data: &[],
        };
        match packet.code {
            code::CONFIGURE_REQUEST => self.configure_request(packet, lower, cx),
            code::CONFIGURE_ACK => {
                Options::parse(packet.data)?;
                self.check_answer(packet)?;
                if packet.data != self.options.request() {
                    return Err(DropReason::AckMismatch);
                }
                self.answered();
                Ok(self.step(Event::ConfigureAck, &terminate_ack, lower, cx))
            }
            code::CONFIGURE_NAK => {
                let hints = Options::parse(packet.data)?;
                self.check_answer(packet)?;
                self.answered();
                Ok(match self.options.naked(hints, cx) {
                    Ok(()) => self.step(Event::ConfigureNakOrReject, &terminate_ack, lower, cx),
                    Err(cause) => Step::GiveUp(cause),
                })
            }
            code::CONFIGURE_REJECT => {
                let options = Options::parse(packet.data)?;
                self.check_answer(packet)?;
                if !self.asked_for(options) {
                    return Err(DropReason::RejectMismatch);
                }
                self.answered();
                Ok(match self.options.rejected(options) {
                    Ok(()) => self.step(Event::ConfigureNakOrReject, &terminate_ack, lower, cx),
                    Err(cause) => Step::GiveUp(cause),
                })
            }
            code::TERMINATE_REQUEST => {
                Ok(self.step(Event::TerminateRequest, &terminate_ack, lower, cx))
            }
            code::TERMINATE_ACK => Ok(self.event(Event::TerminateAck, lower, cx)),
            code::CODE_REJECT => {
                let rejected = packet.data.first().ok_or(DropReason::CodeRejectShort)?;
                let event = match *rejected {
                    code::CONFIGURE_REQUEST..=code::CODE_REJECT => Event::RejectFatal,
                    _ => Event::RejectPermitted,
                };
                Ok(self.event(event, lower, cx))
            }
            _ => {
                if transition(self.state, Event::UnknownCode).is_none() {
                    return Err(DropReason::BeforeOpened);
                }
                if !lower.rejects.take(REJECT_RATE, cx.now) {
                    return Err(DropReason::RejectRate);
                }
                let reply = Reply {
                    code: code::CODE_REJECT,
                    id: self.fresh_id(),
                    data: lower.cut(packet.raw, HEADER_LEN),
                };
                cx.counters.count(Outcome::CodeRejectsSent);
                Ok(self.step(Event::UnknownCode, &reply, lower, cx))
            }
        }
    }

    fn configure_request(
        &mut self,
        packet: ControlPacket<'_>,
        lower: &mut Lower,
        cx: &mut Context<'_>,
    ) -> Result<Step, DropReason> {
        let request = Options::parse(packet.data)?;
        let mut reply = Reply {
            code: code::TERMINATE_ACK,
            id: packet.id,
            data: &[],
        };
        match self.state {
            State::Initial | State::Starting => return Err(DropReason::BeforeOpened),
            // The event moves nothing here; judging would take values over.
            State::Closed | State::Closing | State::Stopping => {
                return Ok(self.step(Event::ConfigureRequestGood, &reply, lower, cx));
            }
            _ => {}
        }
        if self.state == State::Opened && self.is_repeated(packet, cx) {
            // Sent before our Ack arrived: a peer that had it must have changed the identifier (RFC 1661 section 5.1).
            // It is Opened by now, and would go down at a Configure-Request of ours.
            cx.counters.count(Outcome::RequestsRepeated);
            let ack = control::write(code::CONFIGURE_ACK, packet.id, packet.data);
            lower.send(N::PROTOCOL, &ack, cx);
            return Ok(Step::Quiet);
        }
        if N::EARLY_RETRANSMIT && self.first_request && self.state == State::ReqSent {
            cx.counters.count(Outcome::EarlyRetransmissions);
            self.first_request = false;
            self.send_request(lower, cx);
            // This one has a whole period to be answered: another right behind it would find the peer Opened.
            self.back_off = 0;
            self.arm(lower, cx);
        }
        let may_nak = self.naks_sent < cx.config.max_failure;
        let list;
        let event = match self.options.judge(request, may_nak, cx) {
            Judgement::Ack => {
                self.naks_sent = 0;
                reply.code = code::CONFIGURE_ACK;
                reply.data = request.as_bytes();
                Event::ConfigureRequestGood
            }
            Judgement::Nak(naks) => {
                self.naks_sent = self.naks_sent.saturating_add(1);
                list = naks;
                reply.code = code::CONFIGURE_NAK;
                reply.data = &list;
                Event::ConfigureRequestBad
            }
            Judgement::Reject(rejects) => {
                list = rejects;
                reply.code = code::CONFIGURE_REJECT;
                reply.data = &list;
                Event::ConfigureRequestBad
            }
            Judgement::GiveUp(cause) => return Ok(Step::GiveUp(cause)),
        };
        Ok(self.step(event, &reply, lower, cx))
    }

    /// Whether this is the request we acknowledged a moment ago.
    fn is_repeated(&self, packet: ControlPacket<'_>, cx: &Context<'_>) -> bool {
        self.acknowledged.is_some_and(|(digest, at)| {
            cx.now.since(at) < REPEAT_WINDOW && digest == request_digest(packet.id, packet.data, cx)
        })
    }

    /// RFC 1661 section 5.2: an answer counts only when it carries the identifier of the last request.
    fn check_answer(&self, packet: ControlPacket<'_>) -> Result<(), DropReason> {
        if self.outstanding && packet.id == self.request_id {
            Ok(())
        } else {
            Err(DropReason::StaleReply)
        }
    }

    /// Whether this is the answer to a further copy of our last request, which has its answer: so every peer does that had our
    /// first request and is sent it again when its own arrives. It has no effect.
    fn is_answered_again(&mut self, packet: ControlPacket<'_>) -> Result<bool, DropReason> {
        let is_answer = matches!(
            packet.code,
            code::CONFIGURE_ACK | code::CONFIGURE_NAK | code::CONFIGURE_REJECT
        );
        if !is_answer || self.outstanding || packet.id != self.request_id || self.unanswered == 0 {
            return Ok(false);
        }
        Options::parse(packet.data)?;
        self.unanswered -= 1;
        Ok(true)
    }

    fn answered(&mut self) {
        self.outstanding = false;
        self.unanswered = self.unanswered.saturating_sub(1);
        self.first_request = false;
    }

    /// RFC 1661 section 5.4: a Configure-Reject holds options of our request, unchanged and in order.
    fn asked_for(&self, options: Options<'_>) -> bool {
        let request = self.options.request();
        let Ok(request) = Options::parse(&request) else {
            return false;
        };
        let mut asked = request.iter();
        !options.as_bytes().is_empty()
            && options
                .iter()
                .all(|rejected| asked.any(|option| option.raw == rejected.raw))
    }

    fn step(
        &mut self,
        event: Event,
        reply: &Reply<'_>,
        lower: &mut Lower,
        cx: &mut Context<'_>,
    ) -> Step {
        let Some((actions, next)) = transition(self.state, event) else {
            return Step::Quiet;
        };
        self.state = next;
        if event == Event::Up {
            // Also after a negotiation that came to nothing, when there was no This-Layer-Down.
            self.begin_anew(cx);
        }
        let mut step = Step::Quiet;
        let mut restart_timer = false;
        for action in actions {
            match action {
                Action::Tlu => step = Step::Up,
                Action::Tld => {
                    step = Step::Down;
                    self.begin_anew(cx);
                }
                Action::Tls => {}
                Action::Tlf => step = Step::Finished,
                Action::Irc => {
                    let terminate = actions.contains(&Action::Str);
                    self.restart_left = if terminate {
                        cx.config.max_terminate
                    } else {
                        cx.config.max_configure
                    };
                    self.back_off = 0;
                }
                Action::Zrc => {
                    self.restart_left = 0;
                    self.back_off = 0;
                    restart_timer = true;
                }
                Action::Scr => {
                    if !self.outstanding {
                        self.request_id = self.fresh_id();
                        self.outstanding = true;
                        self.unanswered = 0;
                    } else if event == Event::TimeoutRetry {
                        self.first_request = false;
                    }
                    self.send_request(lower, cx);
                    self.restart_left = self.restart_left.saturating_sub(1);
                    restart_timer = true;
                }
                Action::Str => {
                    let packet = control::write(code::TERMINATE_REQUEST, self.fresh_id(), &[]);
                    lower.send(N::PROTOCOL, &packet, cx);
                    self.restart_left = self.restart_left.saturating_sub(1);
                    restart_timer = true;
                }
                Action::Sca | Action::Scn | Action::Scj => {
                    if *action == Action::Sca {
                        self.acknowledged =
                            Some((request_digest(reply.id, reply.data, cx), cx.now));
                    }
                    let packet = control::write(reply.code, reply.id, reply.data);
                    lower.send(N::PROTOCOL, &packet, cx);
                }
                Action::Sta => {
                    let packet = control::write(code::TERMINATE_ACK, reply.id, &[]);
                    lower.send(N::PROTOCOL, &packet, cx);
                }
                // Echo packets belong to LCP alone and are answered there.
                Action::Ser => {}
            }
        }
        if !self.state.runs_restart_timer() {
            lower.timers.disarm(N::TIMER);
            self.outstanding = false;
        } else if restart_timer {
            self.arm(lower, cx);
        }
        step
    }

    /// A negotiation begins: what was counted and agreed on in the one before is forgotten.
    fn begin_anew(&mut self, cx: &Context<'_>) {
        self.acknowledged = None;
        self.naks_sent = 0;
        self.restart_left = cx.config.max_configure;
        self.back_off = 0;
        self.options.restart(cx.config);
    }

    /// Starts the Restart timer for a request just sent.
    fn arm(&mut self, lower: &mut Lower, cx: &Context<'_>) {
        lower
            .timers
            .arm(N::TIMER, cx.now + cx.config.restart_period(self.back_off));
        self.back_off = self.back_off.saturating_add(1);
    }

    fn send_request(&mut self, lower: &Lower, cx: &mut Context<'_>) {
        self.unanswered = self.unanswered.saturating_add(1);
        let packet = control::write(
            code::CONFIGURE_REQUEST,
            self.request_id,
            &self.options.request(),
        );
        lower.send(N::PROTOCOL, &packet, cx);
    }
}

fn request_digest(id: u8, options: &[u8], cx: &Context<'_>) -> [u8; 16] {
    keyed_digest(cx.digest_key, b"request", &[&[id], options])
}
