//! What becomes of a packet. Every buffer of a burst gets exactly one verdict.

use bng_shm::{Counter, SlotIndex};

/// The end of a packet's way through the stages.
///
/// The stages count a [`Verdict::Drop`] and a forwarded packet themselves. What the caller does with the others
/// (a ring may be full) is the caller's to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Transmit the rewritten frame on this port (index among all ports).
    Forward {
        /// Egress port.
        port: u8,
    },
    /// As [`Verdict::Forward`], in fragments: the packet is larger than `mtu` and may be fragmented
    /// ([`crate::fragment::split`]).
    Fragment {
        /// Egress port.
        port: u8,
        /// Largest IP packet that may be sent, bytes.
        mtu: u16,
    },
    /// Give the unchanged frame to the control plane.
    Punt(Punt),
    /// Give the unchanged frame to the kernel's TAP twin of this core port.
    Host {
        /// The port, index among all ports.
        port: u8,
    },
    /// Give the frame to the worker that owns its session: unchanged or, from one subscriber to another, in the form of a
    /// frame from a core port.
    HandOver {
        /// Index of the worker.
        worker: u8,
    },
    /// Keep the unchanged frame, a later fragment, until its first one has come ([`WaitingRoom`](crate::WaitingRoom)); then it goes through
    /// the stages again, as from here.
    Wait(Origin),
    /// Free the buffer. The counter says why and belongs to the drop group; it has been counted.
    Drop(Counter),
}

/// Why the control plane gets a frame, and for which session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Punt {
    /// PPPoE discovery stage, no session yet (PADT included).
    Discovery,
    /// A PPP frame that is the control plane's: LCP, authentication, NCPs, unknown protocols.
    Ppp {
        /// The session's slot.
        slot: SlotIndex,
        /// The session's generation when the frame was looked at.
        generation: u32,
    },
}

/// Whether a burst comes from a port or from another worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// From a receive queue: frames of other workers' sessions are handed over.
    Port,
    /// From another worker: a frame that is not ours either is dropped, never handed on again.
    HandedOver,
}

/// A stage's result: its value, or the end of this packet's way.
pub(crate) type Step<T> = Result<T, Verdict>;

/// Shorthand for the end of a way by a drop.
#[inline]
pub(crate) const fn drop<T>(reason: Counter) -> Step<T> {
    Err(Verdict::Drop(reason))
}
