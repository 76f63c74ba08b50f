//! The authenticator's side of PAP, RFC 1334 section 2.

use bng_wire::pppoe::protocol;
use subtle::ConstantTimeEq;

use super::{Authenticator, Request, State};
use crate::DropReason;
use crate::codec::control::{self, ControlPacket, HEADER_LEN};
use crate::codec::pap::{self, Credentials, code};
use crate::context::{Context, Lower};
use crate::cookie::keyed_digest;
use crate::counters::Outcome;
use crate::events::{Password, Proof};

impl Authenticator {
    pub(super) fn receive_pap<'a>(
        &mut self,
        packet: ControlPacket<'a>,
        lower: &Lower,
        cx: &mut Context<'_>,
    ) -> Result<Request<'a>, DropReason> {
        if packet.code != code::AUTHENTICATE_REQUEST {
            return Err(DropReason::PapCode);
        }
        let credentials = pap::parse_request(packet.data)?;
        let Credentials { name, password } = credentials;
        match &mut self.state {
            State::Idle => Err(DropReason::BeforeOpened),
            State::Awaiting => {
                self.attempt = self.attempt.wrapping_add(1);
                self.state = State::Pending {
                    id: packet.id,
                    digest: digest(credentials, cx),
                };
                if password.is_empty() && !cx.config.allow_empty_password {
                    cx.counters.count(Outcome::PapEmptyPassword);
                    return Ok(Request::EmptyPassword { name });
                }
                cx.counters.count(Outcome::PapRequests);
                let proof = Proof::Pap(Password::new(password));
                Ok(Request::Decide { name, proof })
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
}

fn digest(credentials: Credentials<'_>, cx: &Context<'_>) -> [u8; 16] {
    let parts = [credentials.name, credentials.password];
    keyed_digest(cx.digest_key, b"credentials", &parts)
}

pub(super) fn reply(id: u8, accepted: bool, message: &[u8], lower: &Lower, cx: &mut Context<'_>) {
    let (code, outcome) = if accepted {
        (code::AUTHENTICATE_ACK, Outcome::PapAck)
    } else {
        (code::AUTHENTICATE_NAK, Outcome::PapNak)
    };
    let data = pap::reply_data(lower.cut(message, HEADER_LEN + 1));
    lower.send(protocol::PAP, &control::write(code, id, &data), cx);
    cx.counters.count(outcome);
}
