//! The authenticator of a session: PAP (RFC 1334 section 2) or CHAP with MD5 (RFC 1994), whichever LCP agreed on.

mod chap;
mod pap;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::DropReason;
use crate::codec::chap::VALUE_LEN;
use crate::codec::control::ControlPacket;
use crate::context::{Context, Lower};
use crate::events::{AuthProtocol, Proof};

/// Where the authentication of a session stands.
#[derive(Debug)]
enum State {
    /// LCP is not Opened.
    Idle,
    /// The peer is to send its credentials.
    Awaiting,
    /// AAA decides. `id` is that of the peer's latest request; the digest is that of PAP's credentials.
    Pending { id: u8, digest: [u8; 16] },
    /// Decided, and told; a repeated request gets the same reply again.
    Decided { accepted: bool, message: Box<[u8]> },
}

/// What a packet of the peer asks of the session.
pub(crate) enum Request<'a> {
    /// Nothing: it was answered, or its answer is under way.
    Repeated,
    /// A decision by AAA.
    Decide {
        /// Name as sent, 0 to 255 bytes.
        name: &'a [u8],
        /// What the peer proves it with.
        proof: Proof,
    },
    /// A refusal, because the password is empty.
    EmptyPassword {
        /// Name as sent, 0 to 255 bytes.
        name: &'a [u8],
    },
}

/// What the session's challenge timer finds when it expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// LCP is not Opened, or the peer was refused.
    Closed,
    /// The peer has to answer.
    Awaiting,
    /// AAA has to answer.
    Pending,
    /// The peer was accepted.
    Accepted,
}

/// The authenticator of one session.
#[derive(Debug)]
pub(crate) struct Authenticator {
    protocol: AuthProtocol,
    state: State,
    attempt: u32,
    // The latest challenge and its identifier, and how many were sent in a row.
    challenge: [u8; VALUE_LEN],
    challenge_id: u8,
    challenges: u8,
}

impl Authenticator {
    /// `first_id` starts anywhere: what the peer remembers of our identifiers is not known.
    pub(crate) const fn new(first_id: u8) -> Self {
        Self {
            protocol: AuthProtocol::Pap,
            state: State::Idle,
            attempt: 0,
            challenge: [0; VALUE_LEN],
            challenge_id: first_id,
            challenges: 0,
        }
    }

    /// The authenticator of an adopted session: accepted, by an earlier process.
    pub(crate) fn accepted(protocol: AuthProtocol, first_id: u8) -> Self {
        Self {
            protocol,
            state: State::accepted(),
            ..Self::new(first_id)
        }
    }

    /// LCP is Opened: credentials are awaited.
    pub(crate) fn begin(&mut self, protocol: AuthProtocol) {
        self.protocol = protocol;
        self.state = State::Awaiting;
        self.challenges = 0;
    }

    /// LCP left Opened: whatever was decided or asked is void.
    pub(crate) fn reset(&mut self) {
        self.state = State::Idle;
    }

    /// The protocol LCP agreed on, while it is Opened.
    pub(crate) const fn protocol(&self) -> AuthProtocol {
        self.protocol
    }

    /// Number of the latest request handed to AAA.
    pub(crate) const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether AAA's answer to request `attempt` is awaited.
    pub(crate) const fn awaits_verdict(&self, attempt: u32) -> bool {
        matches!(self.state, State::Pending { .. }) && self.attempt == attempt
    }

    pub(crate) const fn stage(&self) -> Stage {
        match self.state {
            State::Awaiting => Stage::Awaiting,
            State::Pending { .. } => Stage::Pending,
            State::Decided { accepted: true, .. } => Stage::Accepted,
            State::Idle | State::Decided { .. } => Stage::Closed,
        }
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

    /// Handles a packet of `protocol`.
    pub(crate) fn receive<'a>(
        &mut self,
        protocol: AuthProtocol,
        packet: ControlPacket<'a>,
        lower: &Lower,
        cx: &mut Context<'_>,
    ) -> Result<Request<'a>, DropReason> {
        if matches!(self.state, State::Idle) {
            return Err(DropReason::BeforeOpened);
        }
        if protocol != self.protocol {
            return Err(DropReason::AuthMismatch);
        }
        match protocol {
            AuthProtocol::Pap => self.receive_pap(packet, lower, cx),
            AuthProtocol::ChapMd5 => self.receive_chap(packet, lower, cx),
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
            let message = message.into_boxed_slice();
            self.reply(id, accepted, &message, lower, cx);
            self.state = State::Decided { accepted, message };
        }
    }

    /// Nobody could decide on a peer that was accepted before: it stays so.
    pub(crate) fn leave_accepted(&mut self) {
        self.state = State::accepted();
    }

    fn reply(&self, id: u8, accepted: bool, message: &[u8], lower: &Lower, cx: &mut Context<'_>) {
        match self.protocol {
            AuthProtocol::Pap => pap::reply(id, accepted, message, lower, cx),
            AuthProtocol::ChapMd5 => chap::reply(id, accepted, message, lower, cx),
        }
    }
}

impl State {
    fn accepted() -> Self {
        Self::Decided {
            accepted: true,
            message: Box::default(),
        }
    }
}
