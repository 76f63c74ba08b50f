//! Whose fast path a lane runs.

use std::hint::black_box;
use std::sync::Arc;

use bng_dataplane::dispatch::Outlets;
use bng_dataplane::fib_mirror::RteFib;
use bng_dataplane::frame::Frame;
use bng_dataplane::inject::Injector;
use bng_dataplane::path::Path;
use bng_fastpath::coalesce::{self, Coalescer};
use bng_fastpath::{BURST, FastPath, Origin, Settings, Verdict};
use bng_shm::{Counter, FRAME_MAX, Worker};
use parking_lot::Mutex;
use rte_rs::{Burst, Mempool};

use super::Work;
use crate::fastpath::{Direction, Locking};

/// One fast path for all workers, behind a lock: in the benchmark only, to see what a lock costs.
pub(in crate::fastpath) struct Locked {
    pub(super) fast: FastPath,
    /// Its clock, which the workers move forward in turn.
    now_ns: u64,
}

impl Locked {
    pub(in crate::fastpath) fn new(fast: FastPath) -> Self {
        Self { fast, now_ns: 0 }
    }

    /// Sets the clock, never backwards.
    fn poll(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        self.fast.poll(self.now_ns);
    }
}

/// A lane's own fast path: the product.
pub(super) struct Own {
    pub(super) path: Path,
    /// The coalescer, while it is not in the path.
    pub(super) parked: Option<Coalescer<Frame>>,
}

impl Own {
    /// Puts the coalescer into the path, or takes it out.
    pub(super) fn turn(&mut self, on: bool) {
        if self.path.coalescer.is_some() != on {
            std::mem::swap(&mut self.path.coalescer, &mut self.parked);
        }
    }
}

/// Whose fast path a lane uses.
// There is one per worker, so its size does not matter.
#[allow(clippy::large_enum_variant)]
pub(super) enum Stages {
    /// Its own.
    Own(Own),
    /// All workers' one, locked for each burst or each packet, and the worker's own counters and ways out.
    Shared(Arc<Mutex<Locked>>, Locking, Worker, Outlets),
}

impl Stages {
    /// Counters and ways out.
    pub(super) fn parts(&mut self) -> (&mut Worker, &mut Outlets) {
        match self {
            Self::Own(own) => (own.path.fast.shm_mut(), &mut own.path.out),
            Self::Shared(_, _, worker, out) => (worker, out),
        }
    }

    /// A look for frames from control, of which there are none.
    #[inline]
    pub(super) fn inject(&mut self, buffer: &mut [u8; FRAME_MAX]) {
        match self {
            Self::Own(own) => {
                black_box(own.path.inject());
            }
            Self::Shared(_, _, shm, _) => {
                black_box(shm.take_injected(buffer));
            }
        }
    }

    /// Clock, ageing and stages over a burst of one direction.
    #[inline]
    pub(super) fn run(
        &mut self,
        fib: &RteFib,
        work: Work,
        burst: &mut Burst<BURST>,
        now_ns: u64,
    ) -> [Verdict; BURST] {
        let mut verdicts = [Verdict::Drop(Counter::NotForUs); BURST];
        let frames = Frame::of_burst(burst);
        match self {
            Self::Own(own) => {
                let fast = &mut own.path.fast;
                fast.poll(now_ns);
                stages(fast, fib, work, frames, &mut verdicts);
            }
            Self::Shared(locked, Locking::Packet, ..) => {
                for (frame, verdict) in frames.chunks_mut(1).zip(verdicts.chunks_mut(1)) {
                    let mut locked = locked.lock();
                    locked.poll(now_ns);
                    stages(&mut locked.fast, fib, work, frame, verdict);
                }
            }
            Self::Shared(locked, ..) => {
                let mut locked = locked.lock();
                locked.poll(now_ns);
                stages(&mut locked.fast, fib, work, frames, &mut verdicts);
            }
        }
        verdicts
    }
}

#[inline]
fn stages(
    fast: &mut FastPath,
    fib: &RteFib,
    work: Work,
    frames: &mut [Frame],
    verdicts: &mut [Verdict],
) {
    match work {
        Work::Pipeline(way) | Work::Coalesced(way) | Work::Bare(way) => match way {
            Direction::Up => fast.upstream(fib, frames, verdicts, Origin::Port),
            Direction::Down => fast.downstream(frames, verdicts, Origin::Port),
        },
        Work::Plain(Direction::Up) => fast.plain_upstream(fib, frames, verdicts),
        Work::Plain(Direction::Down) => fast.plain_downstream(frames, verdicts),
        Work::MacForward => {}
    }
}

/// What a lane's stages are made of, on its own thread.
pub(in crate::fastpath) enum Start {
    /// A fast path of its own, and what is coalesced when that is turned on.
    Own(Worker, Settings, coalesce::Settings),
    /// The one behind the lock.
    Shared(Arc<Mutex<Locked>>, Locking, Worker),
}

impl Start {
    /// On the lane's own thread, of a worker on this core.
    pub(super) fn stages(self, core: u32, out: Outlets, buffers: &Mempool, now_ms: u64) -> Stages {
        match self {
            Self::Own(shm, settings, coalescing) => {
                shm.enter(core);
                let roles = settings.ports.iter().map(|port| port.role).collect();
                let fast = FastPath::new(shm, &settings, now_ms);
                let injector = Injector::new(roles, buffers.clone());
                let mut own = Own {
                    path: Path::new(fast, out, injector, &coalescing),
                    parked: None,
                };
                own.turn(false);
                Stages::Own(own)
            }
            Self::Shared(locked, locking, shm) => {
                shm.enter(core);
                Stages::Shared(locked, locking, shm, out)
            }
        }
    }
}
