//! Looking at frames: which joins which run, and which runs go out before it.

use bng_shm::Counter;

use super::frame::{Candidate, Pass, Reader, Scope, Varying};
use super::key::Key;
use super::table::Slot;
use super::{Coalescer, Hints, Protocols, Step};
use crate::buffer::{BURST, PacketBuf};
use crate::burst::AHEAD;
use crate::flow::Direction;

impl<B: PacketBuf> Coalescer<B> {
    /// Looks at received frames, at most [`BURST`], before the stages see them. [`Self::release`] must follow.
    #[inline(never)]
    pub fn observe(&mut self, direction: Direction, frames: &[B], now_ns: u64) -> &Hints {
        debug_assert!(self.steps.is_empty(), "the last burst was not released");
        let Protocols { tcp, udp } = self.protocols(direction);
        let reader = Reader {
            sessions: direction == Direction::Upstream,
            tcp,
            udp,
            ipv4: self.settings.ipv4,
            ipv6: self.settings.ipv6,
            verify: self.settings.verify,
        };
        self.steps.clear();
        self.hints = Hints::NONE;
        self.burst = self.burst.wrapping_add(1);
        self.now_ns = now_ns;
        while let Some(slot) = self.overdue(now_ns) {
            self.end(slot, Counter::EndHold);
        }
        self.last = self
            .last
            .filter(|slot| self.table.run(*slot).shape.is_session == reader.sessions);
        frames.iter().take(AHEAD).for_each(B::prefetch);
        for (at, frame) in (0u8..).zip(frames.iter().take(BURST)) {
            if let Some(next) = frames.get(usize::from(at) + AHEAD) {
                next.prefetch();
            }
            if let Some(slot) = self.last
                && self.table.run(slot).expects(&reader, frame)
            {
                let ends = self.table.run_mut(slot).join_expected();
                self.joined(slot, at, false, ends);
            } else {
                self.observe_one(&reader, at, frame);
            }
        }
        &self.hints
    }

    /// A frame that is not the one expected next by the run the last frame went to.
    #[inline(never)]
    fn observe_one(&mut self, reader: &Reader, at: u8, frame: &B) {
        if let Some(slot) = self.last
            && let Some(varying) = self.table.run(slot).glance(reader, frame)
        {
            return self.join(slot, at, &varying);
        }
        let port = frame.port();
        let mut key = Key::EMPTY;
        let off = self.settings.ports_off.get(usize::from(port));
        let found = match off {
            Some(true) => Err(Pass {
                why: Counter::PassPort,
                scope: Scope::None,
            }),
            _ => reader.read(frame, &mut key),
        };
        match found {
            Ok(candidate) => self.candidate(&key, at, frame, &candidate),
            Err(Pass { why, scope }) => {
                self.barrier(&key, scope);
                self.push(Step::Pass(why));
            }
        }
    }

    /// Runs that go out before a frame that is not merged (O1, O2).
    #[inline]
    fn barrier(&mut self, key: &Key, scope: Scope) {
        if self.table.is_empty() {
            return;
        }
        match scope {
            Scope::None => {}
            Scope::Flow => {
                if let Some(slot) = self.table.find(key, key.bucket()) {
                    self.end(slot, Counter::EndFlow);
                }
            }
            Scope::Addresses => {
                self.end_all(Counter::EndAddresses, |other| other.same_addresses(key))
            }
            Scope::Session => self.end_all(Counter::EndSession, |other| other.same_session(key)),
        }
    }

    /// Ends all runs with such a key, in the order of their heads (T4).
    #[cold]
    fn end_all(&mut self, why: Counter, is_meant: impl Fn(&Key) -> bool) {
        let mut at = self.table.oldest();
        while let Some(slot) = at {
            at = self.table.newer(slot);
            if is_meant(&self.table.run(slot).key) {
                self.end(slot, why);
            }
        }
    }

    /// A candidate joins the run of its key, or ends it (M11) and is then one without a run.
    fn candidate(&mut self, key: &Key, at: u8, frame: &B, candidate: &Candidate) {
        let bucket = key.bucket();
        if let Some(slot) = self.table.find(key, bucket) {
            match self
                .table
                .run(slot)
                .refuses(&candidate.varying, frame.data())
            {
                None => return self.join(slot, at, &candidate.varying),
                Some(why) => self.end(slot, why),
            }
        }
        if candidate.varying.is_last() {
            return self.push(Step::Pass(Counter::PassPush));
        }
        self.start((key, bucket), at, frame, candidate);
    }

    /// E1. In a full table the oldest run makes room (X2).
    #[inline]
    fn start(&mut self, (key, bucket): (&Key, u8), at: u8, frame: &B, head: &Candidate) {
        if self.table.is_full()
            && let Some(oldest) = self.table.oldest()
        {
            self.end(oldest, Counter::EndTableFull);
        }
        let Some(slot) = self.table.insert(key, bucket) else {
            return self.push(Step::Pass(Counter::PassPort));
        };
        let run = self.table.run_mut(slot);
        run.start(frame.port(), head, frame.data(), self.settings.max_frames);
        (run.arrived_ns, run.first_seen) = (self.now_ns, (self.burst, at));
        self.last = Some(slot);
        self.hold(slot, at);
    }

    #[inline]
    fn join(&mut self, slot: Slot, at: u8, varying: &Varying) {
        let ends = self.table.run_mut(slot).join(varying);
        self.joined(slot, at, varying.is_fin(), ends);
    }

    /// The frame at `at` has joined a run, which may end with it.
    #[inline(always)]
    fn joined(&mut self, slot: Slot, at: u8, is_fin: bool, ends: Option<Counter>) {
        let run = self.table.run_mut(slot);
        let (burst, first) = run.first_seen;
        if burst != self.burst {
            run.first_seen = (self.burst, at);
        } else if !is_fin && let Some(like) = self.hints.like.get_mut(usize::from(at)) {
            *like = first;
        }
        self.last = Some(slot);
        self.hold(slot, at);
        if let Some(why) = ends {
            self.end(slot, why);
        }
    }

    /// The frame at `at` is one of this run.
    #[inline(always)]
    fn hold(&mut self, slot: Slot, at: u8) {
        if let Some(seen) = self.seen.get_mut(usize::from(at)) {
            *seen = self.table.run(slot).seen;
        }
        match self.steps.last_mut() {
            Some(Step::Hold(last, count)) if *last == slot => *count += 1,
            _ => self.push(Step::Hold(slot, 1)),
        }
    }

    /// Ends a run of the table; what is held of it goes out when the steps are taken.
    #[inline]
    fn end(&mut self, slot: Slot, why: Counter) {
        self.table.remove(slot);
        if self.last == Some(slot) {
            self.last = None;
        }
        self.push(Step::End(slot, why));
    }

    #[inline(always)]
    fn push(&mut self, step: Step) {
        let full = self.steps.try_push(step).is_err();
        debug_assert!(!full, "more steps than frames and runs");
    }
}
