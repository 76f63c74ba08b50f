//! Where later fragments wait that have come before their first one.
//!
//! A worker's room is small and nothing waits longer than [`LIFETIME_MS`]. A frame waits unchanged and goes through all stages
//! again when there is a note about its first fragment, so what waits refers to no table. At an epoch and at the end of the
//! worker the room is emptied all the same ([`WaitingRoom::leave`]): control may count on it that no frame from before is left
//! (INV-EPOCH-1).

use std::sync::Arc;

use bng_shm::SlotIndex;
use bng_wire::ethernet::{self, ethertype};
use bng_wire::{Ipv4Hdr, ipv4, pppoe};
use zerocopy::FromBytes;

use crate::buffer::PacketBuf;
use crate::first_fragments::{FirstFragments, Key, LIFETIME_MS};
use crate::ip::Packet;
use crate::ports::{Port, PortRole, Ports};
use crate::verdict::Origin;

/// Frames that may wait in one worker.
pub const ROOM: usize = 64;

/// A worker's room.
#[derive(Debug)]
pub struct WaitingRoom<B> {
    held: Vec<Waiting<B>>,
    ports: Ports,
    firsts: Arc<FirstFragments>,
    /// Notes made when it was last looked for first fragments, and when that was.
    seen: u64,
    looked_ms: u64,
    /// Somebody has come since then.
    has_new: bool,
}

#[derive(Debug)]
struct Waiting<B> {
    frame: B,
    key: Key,
    origin: Origin,
    since_ms: u64,
}

/// What leaves the room.
#[derive(Debug)]
pub enum Left<B> {
    /// Its first fragment has come: through the stages again, as from there.
    Resumed(B, Origin),
    /// It has not come in time.
    Late(B),
}

impl<B: PacketBuf> WaitingRoom<B> {
    /// An empty room of a worker with these ports.
    #[must_use]
    pub fn new(ports: &[Port], firsts: Arc<FirstFragments>) -> Self {
        Self {
            held: Vec::with_capacity(ROOM),
            ports: Ports::new(ports, &[]),
            firsts,
            seen: 0,
            looked_ms: 0,
            has_new: false,
        }
    }

    /// Whether nothing waits.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Takes in a frame the stages gave [`Verdict::Wait`](crate::Verdict::Wait).
    ///
    /// # Errors
    /// There is no room, and the frame is given back.
    pub fn enter(&mut self, frame: B, origin: Origin, now_ms: u64) -> Result<(), B> {
        match key_of(&self.ports, &frame) {
            Some(key) if self.held.len() < ROOM => {
                // Another worker may have noted the first one since the stages looked.
                self.has_new = true;
                self.held.push(Waiting {
                    frame,
                    key,
                    origin,
                    since_ms: now_ms,
                });
                Ok(())
            }
            _ => Err(frame),
        }
    }

    /// The next frame that is to leave. Looks for first fragments once a millisecond at most, and only if there are new ones.
    pub fn next(&mut self, now_ms: u64) -> Option<Left<B>> {
        let late = |waiting: &Waiting<B>| now_ms > waiting.since_ms + LIFETIME_MS;
        if let Some(at) = self.held.iter().position(late) {
            return Some(Left::Late(self.held.remove(at).frame));
        }
        if now_ms == self.looked_ms {
            return None;
        }
        let noted = self.firsts.noted();
        let firsts = &self.firsts;
        if noted != self.seen || self.has_new {
            // Who has come in this millisecond has just been told that there is none.
            let has_come = |waiting: &Waiting<B>| {
                waiting.since_ms != now_ms && firsts.find(waiting.key, now_ms).is_some()
            };
            if let Some(at) = self.held.iter().position(has_come) {
                let Waiting { frame, origin, .. } = self.held.remove(at);
                return Some(Left::Resumed(frame, origin));
            }
        }
        self.has_new = self.held.iter().any(|waiting| waiting.since_ms == now_ms);
        (self.seen, self.looked_ms) = (noted, now_ms);
        None
    }

    /// Empties the room; what comes out is to be dropped.
    pub fn leave(&mut self) -> impl Iterator<Item = B> {
        self.held.drain(..).map(|waiting| waiting.frame)
    }
}

/// What a frame is a fragment of, as the stages see it.
fn key_of<B: PacketBuf>(ports: &Ports, buf: &B) -> Option<Key> {
    let (link, rest) = ethernet::split(buf.data()).ok()?;
    let port = ports.get(buf.port())?;
    let (slot, bytes) = match port.role {
        PortRole::Access { index } if link.ethertype == ethertype::PPPOE_SESSION => {
            let frame = pppoe::parse_session(rest).ok()?;
            (Some(SlotIndex::new(index, frame.session_id)), frame.payload)
        }
        PortRole::Core => (None, rest),
        PortRole::Access { .. } => return None,
    };
    let parsed = ipv4::parse(bytes).ok()?;
    let (header, _) = Ipv4Hdr::ref_from_prefix(bytes).ok()?;
    let packet = Packet {
        src: parsed.src,
        dst: parsed.dst,
        protocol: parsed.protocol,
        ..Packet::EMPTY
    };
    Some(match slot {
        Some(slot) => Key::upstream(slot, &packet, header.id.get()),
        None => Key::downstream(&packet, header.id.get()),
    })
}
