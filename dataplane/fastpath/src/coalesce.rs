//! Coalescing: frames of one flow that arrive together leave together, as one super-packet where the way out takes such.
//!
//! ```text
//!  received burst --observe--> stages, every frame by itself, in order of arrival --release--> Sink
//!                    \ what is a member of which run (docs/coalescing.md) ----------^   (single frames and runs)
//! ```
//!
//! A [`Coalescer`] belongs to one worker. [`Coalescer::observe`] reads the frames as they came and decides the grouping;
//! the stages then decide about every frame by itself; [`Coalescer::release`] takes the frames, holds those of runs that go
//! on, and hands runs and single frames to the [`Sink`]. So what becomes of a frame cannot depend on the grouping (P0): MTU,
//! policers, counters, translation and whatever takes a frame off the fast path see frames (F1 to F8). A run holds nothing but
//! finished frames (list form, H6). Nothing here allocates, locks or is shared once it is set up (X3).

mod extensions;
mod frame;
mod headers;
mod held;
mod key;
mod observe;
mod run;
mod table;
mod tally;
#[cfg(test)]
mod tests;

use arrayvec::ArrayVec;
use bng_shm::{Counter, Worker};

use crate::buffer::{BURST, PacketBuf};
use crate::flow::Direction;
use crate::verdict::Verdict;
use held::{Held, Seen};
use table::{RUNS, Slot, Table};
use tally::Tally;

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
    /// Most frames in a run, at least 2 (M10).
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

/// For each frame of an observed burst, the earlier frame in the same burst it is like: same port, addresses, session, flow,
/// TTL, TOS, DF and protocol, no FIN, IPv4 header checksum right, all lengths exact and none larger.
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

/// What [`Coalescer::release`] has to do, in this order.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Let go of a run.
    End(Slot, Counter),
    /// Let go of the next frame, which is none of any run.
    Pass(Counter),
    /// Hold so many frames as some of this run.
    Hold(Slot, u8),
}

/// One for each frame, and one for each run that ends: those held before, and those that began.
const STEPS: usize = 2 * BURST + RUNS;

/// One worker's run table.
///
/// Which frames are in a run is decided twice, because two things decide it: the frames, when they are observed (`table`),
/// and what became of them, when they are released (`held`). The steps lead from the one to the other.
#[derive(Debug)]
pub struct Coalescer<B> {
    settings: Settings,
    hints: Hints,
    table: Table,
    /// The run the last frame went to: most often, that of the next one.
    last: Option<Slot>,
    /// Counts bursts.
    burst: u32,
    now_ns: u64,
    steps: ArrayVec<Step, STEPS>,
    seen: [Seen; BURST],
    held: Held<B>,
    tally: Tally,
}

impl<B: PacketBuf> Coalescer<B> {
    /// A table without runs, or nothing if nothing is to be coalesced.
    #[must_use]
    pub fn new(settings: &Settings) -> Option<Self> {
        let on = |protocols: Protocols| protocols.tcp || protocols.udp;
        let family = settings.ipv4 || settings.ipv6;
        let mut settings = settings.clone();
        settings.max_frames = settings.max_frames.max(2);
        ((on(settings.upstream) || on(settings.downstream)) && family).then(|| Self {
            hints: Hints::NONE,
            table: Table::new(),
            last: None,
            burst: 0,
            now_ns: 0,
            steps: ArrayVec::new(),
            seen: [Seen::NOTHING; BURST],
            held: Held::new(settings.max_frames),
            tally: Tally::EMPTY,
            settings,
        })
    }

    /// Whether anything is coalesced in this direction. If not, neither [`Self::observe`] nor [`Self::release`] is needed.
    #[inline]
    #[must_use]
    pub fn is_on(&self, direction: Direction) -> bool {
        let Protocols { tcp, udp } = self.protocols(direction);
        tcp || udp
    }

    #[inline]
    fn protocols(&self, direction: Direction) -> Protocols {
        match direction {
            Direction::Upstream => self.settings.upstream,
            Direction::Downstream => self.settings.downstream,
        }
    }

    /// Takes the observed frames with their verdicts.
    #[inline]
    pub fn release(
        &mut self,
        frames: impl IntoIterator<Item = B>,
        verdicts: &[Verdict],
        sink: &mut impl Sink<B>,
    ) {
        let Self {
            steps,
            seen,
            held,
            tally,
            now_ns,
            ..
        } = self;
        let mut frames = frames.into_iter().zip(verdicts);
        let mut seen = seen.iter();
        for step in steps.iter() {
            match *step {
                Step::End(slot, why) => held.end(slot, why, tally, sink),
                Step::Hold(slot, count) => {
                    let frames = frames.by_ref().take(count.into());
                    held.take(slot, frames.zip(seen.by_ref()), *now_ns, tally, sink);
                }
                Step::Pass(why) => {
                    seen.next();
                    if let Some((frame, verdict)) = frames.next() {
                        // The owner will observe and count it.
                        if !matches!(verdict, Verdict::HandOver { .. }) {
                            tally.add(why, 1);
                        }
                        sink.one(frame, *verdict);
                    }
                }
            }
        }
        for (frame, verdict) in frames {
            debug_assert!(false, "a frame that was not observed");
            sink.one(frame, *verdict);
        }
        steps.clear();
    }

    /// The receive burst has ended: with a hold time of 0 all runs go out (T1), before anything of a later one (O4).
    #[inline]
    pub fn end_burst(&mut self, sink: &mut impl Sink<B>) {
        if self.settings.hold_ns == 0 {
            self.flush(Counter::EndBurst, sink);
        }
    }

    /// Lets go of the runs whose time is over (T1). Before a burst is observed, and at least once per poll.
    #[inline]
    pub fn expire(&mut self, now_ns: u64, sink: &mut impl Sink<B>) {
        while let Some(slot) = self.overdue(now_ns) {
            self.let_go(slot, Counter::EndHold, sink);
        }
    }

    /// The oldest run, if it has waited for too long (T1, T5).
    #[inline]
    fn overdue(&self, now_ns: u64) -> Option<Slot> {
        let hold_ns = self.settings.hold_ns;
        let oldest = self.table.oldest().filter(|_| hold_ns != 0)?;
        let waited = now_ns.saturating_sub(self.table.run(oldest).arrived_ns);
        (waited > hold_ns).then_some(oldest)
    }

    /// Lets go of all runs: [`Counter::EndBurst`] when a poll found no frames (T2), [`Counter::EndQuiescent`] before the
    /// worker says that it holds nothing (T3).
    #[inline]
    pub fn flush(&mut self, why: Counter, sink: &mut impl Sink<B>) {
        while let Some(slot) = self.table.oldest() {
            self.let_go(slot, why, sink);
        }
    }

    /// Ends a run at once; not between [`Self::observe`] and [`Self::release`].
    #[inline]
    fn let_go(&mut self, slot: Slot, why: Counter, sink: &mut impl Sink<B>) {
        debug_assert!(self.steps.is_empty(), "a burst is not released");
        self.table.remove(slot);
        self.last = None;
        self.held.end(slot, why, &mut self.tally, sink);
    }

    /// Whether no frame is held.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Adds what was counted since the last time to the worker's counters. Once per burst.
    #[inline]
    pub fn settle(&mut self, shm: &Worker) {
        self.tally.settle(shm);
    }
}
