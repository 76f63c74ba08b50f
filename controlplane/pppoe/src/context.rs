//! What a session may touch of the engine while it handles one input.

use alloc::collections::VecDeque;

use bng_wire::pppoe::code;

use crate::Time;
use crate::codec::frame::{self, LinkHeader};
use crate::config::Config;
use crate::counters::{Counters, Outcome};
use crate::events::{Event, SessionRef, Transmit};
use crate::limits::TokenBucket;
use crate::random::Random;
use crate::timers::Timers;

/// The engine's parts lent to a session for one input.
pub(crate) struct Context<'a> {
    pub(crate) now: Time,
    pub(crate) config: &'a Config,
    pub(crate) counters: &'a mut Counters,
    pub(crate) events: &'a mut VecDeque<Event>,
    pub(crate) transmits: &'a mut VecDeque<Transmit>,
    pub(crate) random: &'a mut Random,
    pub(crate) digest_key: &'a [u8; 16],
}

/// What lies below LCP and the NCPs of a session: where frames go, timers, and the rate of rejects.
#[derive(Debug)]
pub(crate) struct Lower {
    pub(crate) session: SessionRef,
    pub(crate) header: LinkHeader,
    pub(crate) timers: Timers,
    pub(crate) rejects: TokenBucket,
    /// Largest PPP information field the peer takes, in bytes.
    pub(crate) peer_mru: u16,
}

impl Lower {
    /// Sends a PPP packet to the client.
    pub(crate) fn send(&self, protocol: u16, payload: &[u8], cx: &mut Context<'_>) {
        let built = frame::session(&self.header, self.session.session_id, protocol, payload);
        self.queue(built, cx);
    }

    /// Sends a PADT to the client.
    pub(crate) fn send_padt(&self, cx: &mut Context<'_>) {
        let built = frame::discovery(&self.header, code::PADT, self.session.session_id, &[]);
        self.queue(built, cx);
        cx.counters.count(Outcome::PadtSent);
    }

    fn queue(&self, built: Option<alloc::vec::Vec<u8>>, cx: &mut Context<'_>) {
        // Every payload built here is bounded by an MRU, so a frame always comes out.
        if let Some(frame) = built {
            cx.transmits.push_back(Transmit {
                port: self.session.port,
                session: Some(self.session),
                frame,
            });
        }
    }

    /// The first bytes of `bytes` that fit the peer's MRU behind `header` bytes.
    pub(crate) fn cut<'b>(&self, bytes: &'b [u8], header: usize) -> &'b [u8] {
        let room = usize::from(self.peer_mru).saturating_sub(header);
        bytes.get(..room).unwrap_or(bytes)
    }
}
