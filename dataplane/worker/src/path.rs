//! A burst's way through a worker: stages, coalescer, ways out.
//!
//! ```text
//!  off:  burst ---------> stages -> frames of control -> ways out
//!  on:   burst -observe-> stages -> frames of control -release-> run table -> ways out
//! ```

use crate::dispatch::{Departures, Outlets};
use crate::fib_mirror::RteFib;
use crate::frame::Frame;
use crate::inject::Injector;
use bng_fastpath::coalesce::{self, Coalescer};
use bng_fastpath::{BURST, Direction, FastPath, Left, Origin, PortRole, Verdict};
use bng_shm::{Counter, Worker};
use rte_rs::{Burst, Mbuf};

/// The stages of one worker and what is behind them.
#[derive(Debug)]
pub struct Path {
    /// The stages.
    pub fast: FastPath,
    /// Ways out.
    pub out: Outlets,
    /// Frames of control.
    pub injector: Injector,
    /// None if nothing is coalesced.
    pub coalescer: Option<Coalescer<Frame>>,
    /// CLOCK_MONOTONIC nanoseconds of the poll.
    now_ns: u64,
}

impl Path {
    /// A path that holds nothing.
    #[must_use]
    pub fn new(
        fast: FastPath,
        out: Outlets,
        injector: Injector,
        settings: &coalesce::Settings,
    ) -> Self {
        Self {
            fast,
            out,
            injector,
            coalescer: Coalescer::new(settings),
            now_ns: 0,
        }
    }

    /// Once per poll, before anything is received: the clock (CLOCK_MONOTONIC nanoseconds, never backwards), and the runs
    /// whose time is over (T1).
    #[inline]
    pub fn poll(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.fast.poll(now_ns);
        if self.is_holding() {
            self.depart(|coalescer, out| coalescer.expire(now_ns, out));
            self.leave();
        }
    }

    /// Once per poll, after [`Self::poll`]: fragments that have waited for their first one go through the stages again, and
    /// those that have waited too long are dropped.
    #[inline]
    pub fn resume(&mut self, fib: &RteFib) {
        if !self.out.waiting.is_empty() {
            self.resume_some(fib);
        }
    }

    #[cold]
    fn resume_some(&mut self, fib: &RteFib) {
        while let Some(left) = self.out.waiting.next(self.now_ns / 1_000_000) {
            self.shm().count(Counter::FragmentsResumed, 1);
            match left {
                Left::Late(frame) => {
                    self.shm().count(Counter::NatFragmentNoFirst, 1);
                    drop(Mbuf::from(frame));
                }
                Left::Resumed(frame, origin) => {
                    let mbuf = Mbuf::from(frame);
                    let role = self.injector.role(mbuf.port());
                    let mut burst: Burst<BURST> = Burst::new();
                    burst.push(mbuf);
                    self.process(fib, role, &mut burst, origin);
                }
            }
        }
    }

    /// Drops the fragments that wait.
    pub fn forget(&mut self) {
        let frames = self.out.waiting.leave();
        let count = frames.map(Mbuf::from).map(drop).count() as u64;
        self.shm().count(Counter::FragmentsResumed, count);
        self.shm().count(Counter::NatFragmentNoFirst, count);
    }

    /// Takes a burst of one direction through the stages and to where it belongs.
    #[inline]
    pub fn process(
        &mut self,
        fib: &RteFib,
        role: PortRole,
        burst: &mut Burst<BURST>,
        origin: Origin,
    ) {
        self.process_part(fib, role, burst, origin);
        self.end_burst();
    }

    /// As [`Self::process`], for a part of a burst: [`Self::end_burst`] follows the last one.
    #[inline]
    pub fn process_part(
        &mut self,
        fib: &RteFib,
        role: PortRole,
        burst: &mut Burst<BURST>,
        origin: Origin,
    ) {
        let direction = match role {
            PortRole::Access { .. } => Direction::Upstream,
            PortRole::Core => Direction::Downstream,
        };
        if let Some(coalescer) = &self.coalescer
            && coalescer.is_on(direction)
        {
            return self.coalesce(fib, direction, burst, origin);
        }
        let mut verdicts = [Verdict::Drop(Counter::NotForUs); BURST];
        let frames = Frame::of_burst(burst);
        match direction {
            Direction::Upstream => self.fast.upstream(fib, frames, &mut verdicts, origin),
            Direction::Downstream => self.fast.downstream(frames, &mut verdicts, origin),
        }
        self.inject();
        let shm = self.fast.shm_mut();
        self.out
            .dispatch(burst, &verdicts, shm, self.now_ns / 1_000_000);
    }

    /// As [`Self::process_part`], where frames of this direction are coalesced.
    #[inline(never)]
    fn coalesce(
        &mut self,
        fib: &RteFib,
        direction: Direction,
        burst: &mut Burst<BURST>,
        origin: Origin,
    ) {
        let Some(coalescer) = &mut self.coalescer else {
            return;
        };
        let mut verdicts = [Verdict::Drop(Counter::NotForUs); BURST];
        let frames = Frame::of_burst(burst);
        let hints = coalescer.observe(direction, frames, self.now_ns);
        let fast = &mut self.fast;
        match direction {
            Direction::Upstream => fast.upstream_with(fib, frames, &mut verdicts, origin, hints),
            Direction::Downstream => fast.downstream_with(frames, &mut verdicts, origin, hints),
        }
        self.inject();
        let verdicts = verdicts.get(..burst.len()).unwrap_or(&[]);
        let frames = burst.drain(..).map(Frame::from);
        self.depart(|coalescer, out| coalescer.release(frames, verdicts, out));
    }

    /// The receive burst has ended (T1), and is counted.
    #[inline]
    pub fn end_burst(&mut self) {
        if self.coalescer.is_some() {
            self.depart(|coalescer, out| coalescer.end_burst(out));
            self.leave();
        }
    }

    /// Lets go of all that is held; `why` is one of the reasons for the end of a run.
    #[inline]
    pub fn flush(&mut self, why: Counter) {
        if self.is_holding() {
            self.depart(|coalescer, out| coalescer.flush(why, out));
            self.leave();
        }
    }

    /// The worker's quiescent point, once per poll loop (INV-EPOCH-1): what is held goes out if somebody waits,
    /// and fragments that wait are dropped.
    #[inline]
    pub fn quiescent(&mut self) {
        let seen = self.fast.shm().see_epoch();
        if seen.is_new() {
            self.flush(Counter::EndQuiescent);
            self.forget();
        }
        self.fast.shm().echo_epoch(seen);
    }

    /// Sends all that control has injected.
    ///
    /// INV-INJECT-1: control injects a frame before it changes the state that lets data follow. Called when the stages have
    /// read the state, so whatever the data must not overtake is in the ring by then, and leaves first. From an access port as
    /// well: errors, echoes and packets of another subscriber go into sessions.
    #[inline]
    pub fn inject(&mut self) -> bool {
        self.injector.drain(self.fast.shm_mut(), &mut self.out)
    }

    /// Whether a run is held.
    #[inline]
    #[must_use]
    pub fn is_holding(&self) -> bool {
        let coalescer = self.coalescer.as_ref();
        coalescer.is_some_and(|coalescer| !coalescer.is_empty())
    }

    /// The worker's side of the shared memory.
    #[inline]
    #[must_use]
    pub fn shm(&self) -> &Worker {
        self.fast.shm()
    }

    /// Gathers what the coalescer lets go of for its ways out.
    #[inline]
    fn depart(&mut self, let_go: impl FnOnce(&mut Coalescer<Frame>, &mut Departures<'_>)) {
        if let Some(coalescer) = &mut self.coalescer {
            let shm = self.fast.shm_mut();
            let mut out = Departures::new(&mut self.out, shm, self.now_ns / 1_000_000);
            let_go(coalescer, &mut out);
            out.finish();
        }
    }

    /// Sends what is gathered, and counts it.
    fn leave(&mut self) {
        self.out.flush(self.fast.shm());
        if let Some(coalescer) = &mut self.coalescer {
            coalescer.settle(self.fast.shm());
        }
    }
}
