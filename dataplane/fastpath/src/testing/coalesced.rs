//! Bursts through a worker's stages with a coalescer around them, as a worker does it.

use super::conservation;
use super::{TestBuf, World};
use crate::coalesce::{Coalescer, Sink};
use crate::{BURST, Direction, Origin, Verdict};

/// What a queue gave.
#[derive(Debug, Clone)]
pub struct Received {
    /// Of all frames.
    pub direction: Direction,
    /// Where they come from.
    pub origin: Origin,
    /// When they arrived, CLOCK_MONOTONIC nanoseconds.
    pub now_ns: u64,
    /// The frames, any number.
    pub bufs: Vec<TestBuf>,
}

impl World {
    /// One turn of a worker's loop over a receive burst, without a coalescer: the frames as they are then, in order.
    pub fn received(&mut self, worker: u8, received: Received) -> Vec<(Verdict, TestBuf)> {
        self.workers[usize::from(worker)].poll(received.now_ns);
        match received.direction {
            Direction::Upstream => self.upstream(worker, received.bufs, received.origin),
            Direction::Downstream => self.downstream(worker, received.bufs, received.origin),
        }
    }

    /// The same with one.
    pub fn coalesced(
        &mut self,
        worker: u8,
        received: Received,
        coalescer: &mut Coalescer<TestBuf>,
        sink: &mut impl Sink<TestBuf>,
    ) {
        let Received {
            direction,
            origin,
            now_ns,
            bufs,
        } = received;
        self.workers[usize::from(worker)].poll(now_ns);
        coalescer.expire(now_ns, sink);
        let mut bufs = bufs.into_iter();
        loop {
            let mut chunk: Vec<TestBuf> = bufs.by_ref().take(BURST).collect();
            if chunk.is_empty() {
                break;
            }
            let mut verdicts = vec![Verdict::Host { port: 255 }; chunk.len()];
            let before = self.snapshot(worker);
            let fast = &mut self.workers[usize::from(worker)];
            let hints = coalescer.observe(direction, &chunk, now_ns);
            match direction {
                Direction::Upstream => {
                    fast.upstream_with(&self.fib, &mut chunk, &mut verdicts, origin, hints);
                }
                Direction::Downstream => {
                    fast.downstream_with(&mut chunk, &mut verdicts, origin, hints);
                }
            }
            conservation::check(&before, &self.snapshot(worker), &verdicts);
            coalescer.release(chunk, &verdicts, sink);
        }
        coalescer.end_burst(sink);
        coalescer.settle(self.workers[usize::from(worker)].shm());
    }
}
