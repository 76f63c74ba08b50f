//! Coalescing: frames of one flow that arrive together leave together, as one super-packet where the way out takes such.
//!
//! ```text
//!  received burst --observe--> stages, every frame by itself, in order of arrival --release--> Sink
//!                    \ what is a member of which run (docs/coalescing.md) ----------^   (single frames and runs)
//! ```
//!
//! A [`Coalescer`] belongs to one worker. [`Coalescer::observe`] reads the frames as they came and decides the grouping;
//! the stages then decide about every frame by itself; [`Coalescer::release`] takes the frames, holds those of runs that go
//! on, and hands runs and single frames to the [`Sink`]. So what becomes of a frame cannot depend on the grouping (P0), and
//! a run holds nothing but finished frames (list form, H6).

use crate::buffer::{BURST, PacketBuf};
use crate::flow::Direction;
use crate::verdict::Verdict;
use bng_shm::{Counter, Worker};

/// Protocols that are coalesced in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Protocols {
    /// TCP.
    pub tcp: bool,
    /// UDP.
    pub udp: bool,
}

/// What is coalesced, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Inside PPPoE sessions.
    pub upstream: Protocols,
    /// On core ports.
    pub downstream: Protocols,
    /// Whether IPv4 packets are.
    pub ipv4: bool,
    /// Whether IPv6 packets are.
    pub ipv6: bool,
    /// Ports whose frames are left alone, by index; missing ones are not.
    pub ports_off: Vec<bool>,
    /// How long a run may wait for more frames, from the arrival of its head; 0: until the burst ends (T1).
    pub hold_ns: u64,
    /// Most frames in a run (M10).
    pub max_frames: u16,
    /// Whether TCP and UDP checksums are verified in software where the port says nothing (C17).
    pub verify: bool,
}

/// How the IPv4 identification goes on within a run (M3). IPv6 runs and runs of one are [`Ids::Fixed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// The same in all frames.
    Fixed,
    /// One more in each frame.
    Rising,
}

/// What is known of a run that goes out (H1). The frames themselves are whole and rewritten, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// TCP, else UDP.
    pub is_tcp: bool,
    /// IPv6, else IPv4.
    pub is_ipv6: bool,
    /// Payload bytes of every frame but the last (of the run's head).
    pub segment: u16,
    /// Payload bytes of the last frame.
    pub last_segment: u16,
    /// How the IPv4 identification goes on.
    pub ids: Ids,
    /// CWR is set, in every frame (S4).
    pub cwr: bool,
    /// Sum of the lengths of the frames as they were received, bytes.
    pub received_bytes: u32,
    /// When the head arrived, CLOCK_MONOTONIC nanoseconds.
    pub arrived_ns: u64,
}

/// For each frame of an observed burst, the frame in the same burst it is like: same port, addresses, session, flow, TTL,
/// TOS, DF and protocol, IPv4 header checksum right, lengths consistent.
#[derive(Debug, Clone, Copy)]
pub struct Hints {
    like: [u8; BURST],
}

impl Hints {
    /// No frame is known to be like another.
    pub const NONE: Self = Self {
        like: [u8::MAX; BURST],
    };

    /// The earlier frame of the burst that the one at `at` is like.
    #[inline(always)]
    #[must_use]
    pub fn like(&self, at: usize) -> Option<usize> {
        let like = *self.like.get(at)?;
        (like != u8::MAX).then_some(usize::from(like))
    }
}

/// Where frames go when the coalescer lets go of them.
pub trait Sink<B> {
    /// A frame by itself, with the stages' verdict.
    fn one(&mut self, frame: B, verdict: Verdict);

    /// Two or more frames of one run, all with this verdict (forward, or to the TAP twin). The sink drains `frames`.
    fn run(&mut self, run: &Run, verdict: Verdict, frames: &mut Vec<B>);
}

/// One worker's run table.
#[derive(Debug)]
pub struct Coalescer<B> {
    settings: Settings,
    hints: Hints,
    held: Vec<B>,
}

impl<B: PacketBuf> Coalescer<B> {
    /// A table without runs, or nothing if nothing is to be coalesced.
    #[must_use]
    pub fn new(settings: &Settings) -> Option<Self> {
        let on = |protocols: Protocols| protocols.tcp || protocols.udp;
        let family = settings.ipv4 || settings.ipv6;
        ((on(settings.upstream) || on(settings.downstream)) && family).then(|| Self {
            settings: settings.clone(),
            hints: Hints::NONE,
            held: Vec::with_capacity(usize::from(settings.max_frames)),
        })
    }

    /// Whether anything is coalesced in this direction. If not, neither [`Self::observe`] nor [`Self::release`] is needed.
    #[inline]
    #[must_use]
    pub fn is_on(&self, direction: Direction) -> bool {
        let Protocols { tcp, udp } = match direction {
            Direction::Upstream => self.settings.upstream,
            Direction::Downstream => self.settings.downstream,
        };
        tcp || udp
    }

    /// Looks at received frames, at most [`BURST`], before the stages see them. [`Self::release`] must follow.
    pub fn observe(&mut self, _direction: Direction, _frames: &[B], _now_ns: u64) -> &Hints {
        &self.hints
    }

    /// Takes the observed frames with their verdicts.
    pub fn release(
        &mut self,
        frames: impl IntoIterator<Item = B>,
        verdicts: &[Verdict],
        sink: &mut impl Sink<B>,
    ) {
        for (frame, verdict) in frames.into_iter().zip(verdicts) {
            sink.one(frame, *verdict);
        }
    }

    /// The receive burst has ended: with a hold time of 0 all runs go out (T1).
    pub fn end_burst(&mut self, _sink: &mut impl Sink<B>) {}

    /// Lets go of the runs whose time is over (T1). Before a burst is observed, and at least once per poll.
    pub fn expire(&mut self, _now_ns: u64, _sink: &mut impl Sink<B>) {}

    /// Lets go of all runs: [`Counter::EndBurst`] when a poll found no frames (T2), [`Counter::EndQuiescent`] before the
    /// worker says that it holds nothing (T3).
    pub fn flush(&mut self, _why: Counter, _sink: &mut impl Sink<B>) {}

    /// Whether no frame is held.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Adds what was counted since the last time to the worker's counters. Once per burst.
    pub fn settle(&mut self, _shm: &Worker) {}
}
