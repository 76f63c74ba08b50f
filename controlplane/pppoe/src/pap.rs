//! The authenticator's side of PAP, RFC 1334 section 2.

use alloc::vec::Vec;

use bng_wire::pppoe::protocol;
use subtle::ConstantTimeEq;

use crate::DropReason;
use crate::codec::control::{self, ControlPacket, HEADER_LEN};
use crate::codec::pap::{self, Credentials, code};
use crate::context::{Context, Lower};
use crate::cookie::keyed_digest;
use crate::counters::Outcome;

/// Where the authentication of a session stands.
#[derive(Debug)]
enum State {
    /// LCP is not Opened.
    Idle,
    /// The peer is to send its credentials.
    Awaiting,
    /// AAA decides; `id` is that of the peer's latest request.
    Pending { id: u8, digest: [u8; 16] },
    /// Decided, and told; a repeated request gets the same reply again.
    Decided { accepted: bool, message: Vec<u8> },
}

/// What a request asks of the session.
pub(crate) enum Request<'a> {
    /// Nothing: it was answered, or its answer is under way.
    Repeated,
    /// A decision by AAA.
    Decide(Credentials<'a>),
    /// A refusal, because the password is empty.
    EmptyPassword(Credentials<'a>),
}

/// The authenticator of one session.
#[derive(Debug)]
pub(crate) struct Authenticator {
    state: State,
    attempt: u32,
}

impl Authenticator {
    pub(crate) const fn new() -> Self {
        Self {
            state: State::Idle,
            attempt: 0,
        }
    }

    /// The authenticator of an adopted session: accepted, by an earlier process.
    pub(crate) const fn accepted() -> Self {
        Self {
            state: State::Decided {
                accepted: true,
                message: Vec::new(),
            },
            attempt: 0,
        }
    }

    /// LCP is Opened: credentials are awaited.
    pub(crate) fn begin(&mut self) {
        self.state = State::Awaiting;
    }

    /// LCP left Opened: whatever was decided or asked is void.
    pub(crate) fn reset(&mut self) {
        self.state = State::Idle;
    }

    /// Number of the latest request handed to AAA.
    pub(crate) const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether AAA's answer to request `attempt` is awaited.
    pub(crate) const fn awaits_verdict(&self, attempt: u32) -> bool {
        matches!(self.state, State::Pending { .. }) && self.attempt == attempt
    }

    /// Whether the peer was refused.
    pub(crate) const fn refused(&self) -> bool {
        matches!(
            self.state,
            State::Decided {
                accepted: false,
                ..
            }
        )
    }

    pub(crate) fn receive<'a>(
        &mut self,
        packet: ControlPacket<'a>,
        lower: &Lower,
        cx: &mut Context<'_>,
    ) -> Result<Request<'a>, DropReason> {
        if packet.code != code::AUTHENTICATE_REQUEST {
            return Err(DropReason::PapCode);
        }
        let credentials = pap::parse_request(packet.data)?;
        match &mut self.state {
            State::Idle => Err(DropReason::BeforeOpened),
            State::Awaiting => {
                let digest = digest(credentials, cx);
                self.attempt = self.attempt.wrapping_add(1);
                self.state = State::Pending {
                    id: packet.id,
                    digest,
                };
                if credentials.password.is_empty() && !cx.config.allow_empty_password {
                    cx.counters.count(Outcome::PapEmptyPassword);
                    return Ok(Request::EmptyPassword(credentials));
                }
                cx.counters.count(Outcome::PapRequests);
                Ok(Request::Decide(credentials))
            }
            State::Pending { id, digest: asked } => {
                if !bool::from(digest(credentials, cx).ct_eq(asked)) {
                    return Err(DropReason::PapOutstanding);
                }
                // The reply goes to the latest request; the peer may have forgotten the one before.
                *id = packet.id;
                cx.counters.count(Outcome::PapRepeated);
                Ok(Request::Repeated)
            }
            State::Decided { accepted, message } => {
                cx.counters.count(Outcome::PapRepeated);
                reply(packet.id, *accepted, message, lower, cx);
                Ok(Request::Repeated)
            }
        }
    }

    /// Tells the peer the verdict on its outstanding request.
    pub(crate) fn decide(
        &mut self,
        accepted: bool,
        mut message: Vec<u8>,
        lower: &Lower,
        cx: &mut Context<'_>,
    ) {
        message.truncate(usize::from(u8::MAX));
        if let State::Pending { id, .. } = self.state {
            reply(id, accepted, &message, lower, cx);
            self.state = State::Decided { accepted, message };
        }
    }
}

fn digest(credentials: Credentials<'_>, cx: &Context<'_>) -> [u8; 16] {
    let parts = [credentials.name, credentials.password];
    keyed_digest(cx.digest_key, b"credentials", &parts)
}

fn reply(id: u8, accepted: bool, message: &[u8], lower: &Lower, cx: &mut Context<'_>) {
    let (code, outcome) = if accepted {
        (code::AUTHENTICATE_ACK, Outcome::PapAck)
    } else {
        (code::AUTHENTICATE_NAK, Outcome::PapNak)
    };
    let data = pap::reply_data(lower.cut(message, HEADER_LEN + 1));
    lower.send(protocol::PAP, &control::write(code, id, &data), cx);
    cx.counters.count(outcome);
}
