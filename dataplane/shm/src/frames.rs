//! What travels in the rings: punted frames (worker to control), injected frames (control to worker)
//! and events (worker to control).
//!
//! INV-INJECT-1: control injects a frame before it publishes the state that lets data follow the frame, and the worker
//! sends what was injected before it sends a packet that such a state let through (HZ-05 R4).

use crate::bell::Bell;
use crate::layout::{EVENT_WORDS, EventSlot, FRAME_MAX, FRAME_WORDS, FrameSlot};
use crate::ring::{Full, Indices, Take, push, take};
use crate::session::SlotIndex;
use std::net::{IpAddr, Ipv6Addr};

/// Which share of the punt ring a frame may use (HZ-15).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PuntClass {
    /// PPPoE discovery: anybody on the access network can send it, so it gets half of the ring.
    Discovery = 0,
    /// PPP control of a known session: the whole ring.
    Ppp = 1,
}

/// What a frame slot says beside the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameMeta {
    /// Index of the access port among all ports, as in the configuration.
    pub port: u8,
    /// Class of a punted frame; ignored for injected ones.
    pub class: PuntClass,
    /// The session the frame belongs to, with its generation; `None` for discovery.
    /// An injected frame whose session has another generation by now is dropped (`inject_stale`).
    pub session: Option<(SlotIndex, u32)>,
}

/// The frame does not fit a ring slot ([`FRAME_MAX`] bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("frame of {0} bytes does not fit a ring slot")]
pub struct TooLong(pub usize);

/// A frame taken from a punt ring; the bytes are in the caller's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PuntedFrame {
    /// Where it came from.
    pub meta: FrameMeta,
    /// Bytes of it in the caller's buffer.
    pub len: usize,
    /// Monotonic milliseconds when the worker punted it.
    pub at_ms: u64,
}

/// A frame taken from an inject ring; the bytes are in the caller's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InjectedFrame {
    /// Where it shall go.
    pub meta: FrameMeta,
    /// Bytes of it in the caller's buffer.
    pub len: usize,
}

const HAS_SESSION: u64 = 1 << 63;

fn pack_meta(meta: &FrameMeta, len: usize) -> [u64; 2] {
    let (mark, session) = meta.session.map_or((0, 0), |(slot, generation)| {
        (HAS_SESSION, u64::from(slot.0) << 32 | u64::from(generation))
    });
    [
        mark | (meta.class as u64) << 24 | u64::from(meta.port) << 16 | len as u64,
        session,
    ]
}

/// Everything in a slot comes from the other process: the length is bounded here, the port and the
/// slot by whoever uses them.
fn unpack_meta(words: [u64; 2]) -> (FrameMeta, usize) {
    let meta = FrameMeta {
        port: (words[0] >> 16) as u8,
        class: if (words[0] >> 24) as u8 == PuntClass::Ppp as u8 {
            PuntClass::Ppp
        } else {
            PuntClass::Discovery
        },
        session: (words[0] & HAS_SESSION != 0)
            .then_some((SlotIndex((words[1] >> 32) as u32), words[1] as u32)),
    };
    (meta, usize::from(words[0] as u16).min(FRAME_MAX))
}

/// Puts a frame into a ring.
pub(crate) fn push_frame(
    indices: &Indices,
    slots: &[FrameSlot],
    reserve: usize,
    meta: &FrameMeta,
    at_ms: u64,
    frame: &[u8],
) -> Result<Result<(), Full>, TooLong> {
    if frame.len() > FRAME_MAX {
        return Err(TooLong(frame.len()));
    }
    Ok(push::<FRAME_WORDS>(indices, slots, reserve, |words| {
        let [a, b] = pack_meta(meta, frame.len());
        words.set(0, a);
        words.set(1, b);
        words.set(2, at_ms);
        words.set_bytes(3, frame);
    }))
}

/// Takes a frame; `buffer` receives the bytes.
pub(crate) fn take_frame(
    indices: &Indices,
    slots: &[FrameSlot],
    buffer: &mut [u8; FRAME_MAX],
) -> Take<(FrameMeta, usize, u64)> {
    take::<FRAME_WORDS, _>(indices, slots, |words| {
        let (meta, len) = unpack_meta([words.get(0), words.get(1)]);
        words.get_bytes(3, &mut buffer[..len]);
        (meta, len, words.get(2))
    })
}

/// Something a worker tells control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A packet waits for this neighbour's MAC address; ask the kernel to resolve it.
    ResolveNeighbour {
        /// Index of the core port among all ports.
        port: u8,
        /// The next hop's address.
        address: IpAddr,
    },
    /// Seven eighths of a subscriber's ports of one protocol are taken (sent once for each number of blocks it has).
    BlockLow {
        /// The session.
        slot: SlotIndex,
        /// Its generation.
        generation: u32,
    },
    /// A subscriber's port blocks have no free port (sent at most once per session and second).
    BlockExhausted {
        /// The session.
        slot: SlotIndex,
        /// Its generation.
        generation: u32,
    },
}

/// Halves of an address; IPv4 as ::ffff:a.b.c.d.
pub(crate) fn address_words(address: IpAddr) -> [u64; 2] {
    let bits = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    [(bits >> 64) as u64, bits as u64]
}

pub(crate) fn address_of([high, low]: [u64; 2]) -> IpAddr {
    Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).to_canonical()
}

impl Event {
    fn pack(self) -> [u64; 3] {
        match self {
            Self::ResolveNeighbour { port, address } => {
                let [high, low] = address_words(address);
                [1 | u64::from(port) << 8, high, low]
            }
            Self::BlockExhausted { slot, generation } => {
                [2, u64::from(slot.0), u64::from(generation)]
            }
            Self::BlockLow { slot, generation } => [3, u64::from(slot.0), u64::from(generation)],
        }
    }

    fn unpack(words: [u64; 3]) -> Option<Self> {
        match words[0] & 0xff {
            1 => Some(Self::ResolveNeighbour {
                port: (words[0] >> 8) as u8,
                address: address_of([words[1], words[2]]),
            }),
            2 => Some(Self::BlockExhausted {
                slot: SlotIndex(words[1] as u32),
                generation: words[2] as u32,
            }),
            3 => Some(Self::BlockLow {
                slot: SlotIndex(words[1] as u32),
                generation: words[2] as u32,
            }),
            _ => None,
        }
    }
}

pub(crate) fn push_event(indices: &Indices, slots: &[EventSlot], event: Event) -> Result<(), Full> {
    push::<EVENT_WORDS>(indices, slots, 0, |words| {
        for (at, word) in event.pack().into_iter().enumerate() {
            words.set(at, word);
        }
    })
}

/// Takes an event; `Item(None)` is one this version does not know.
pub(crate) fn take_event(indices: &Indices, slots: &[EventSlot]) -> Take<Option<Event>> {
    take::<EVENT_WORDS, _>(indices, slots, |words| {
        Event::unpack([words.get(0), words.get(1), words.get(2)])
    })
}

/// A worker's flag that it owes control a ring of the bell, paid once per burst.
#[derive(Debug, Default)]
pub(crate) struct BellDebt(bool);

impl BellDebt {
    pub(crate) fn owe(&mut self) {
        self.0 = true;
    }

    /// Rings if owed; true when a system call was made.
    pub(crate) fn pay(&mut self, bell: &Bell) -> bool {
        std::mem::take(&mut self.0) && bell.ring()
    }
}
