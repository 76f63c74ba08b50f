//! Threads in step: every lane lays out its frames, all start at once, and the first to be done stops all, so that a rate
//! is only ever measured while all of them run.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::lane::{Head, Lane, Pass, Work};

/// What a lane says that ended because of another.
pub(super) const OTHER: &str = "another worker cannot go on";

/// One kind of round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) work: Work,
    /// Which of the lane's frames.
    pub(super) frames: usize,
    /// Only the first lane runs; the others sleep.
    pub(super) solo: bool,
    /// Another thread reads all sessions' counters meanwhile, again and again.
    pub(super) reading: bool,
    /// How often in a row. What comes before has left traces in the caches of several cores if this is more than once; so
    /// of several the first half does not count.
    pub(super) repeat: usize,
}

/// What keeps the lanes in step.
pub(super) struct InStep {
    barrier: Barrier,
    ready: AtomicU32,
    stop: AtomicBool,
    over: AtomicBool,
    failed: AtomicBool,
    reading: AtomicBool,
    done: AtomicBool,
    lanes: u32,
}

impl InStep {
    pub(super) fn new(lanes: u8) -> Self {
        Self {
            barrier: Barrier::new(usize::from(lanes)),
            ready: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            over: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            reading: AtomicBool::new(false),
            done: AtomicBool::new(false),
            lanes: u32::from(lanes),
        }
    }

    /// Waits for all lanes, and tells whether they go on; `ready` is this lane's.
    fn meet(&self, ready: bool) -> bool {
        if !ready {
            self.failed.store(true, Ordering::Relaxed);
        }
        self.barrier.wait();
        !self.failed.load(Ordering::Relaxed)
    }

    /// Whether the counters are to be read now.
    pub(super) fn reading(&self) -> bool {
        self.reading.load(Ordering::Relaxed)
    }

    /// Tells that no lane runs any more.
    pub(super) fn done(&self) {
        self.done.store(true, Ordering::Relaxed);
    }

    /// Whether no lane runs any more.
    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    /// Waits until every lane has got as far. A lane that is not ready ends the others, too.
    pub(super) fn all_ready<T>(&self, ready: Result<T>) -> Result<T> {
        if self.meet(ready.is_ok()) {
            return ready;
        }
        ready.and_then(|_| bail!("{OTHER}"))
    }
}

/// A lane's part in one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Number of the round, the same for all lanes.
    pub(super) number: usize,
    /// Place in the list of kinds.
    pub(super) kind: usize,
    /// One that does not count, since it comes soon after another kind.
    pub(super) settling: bool,
    pub(super) pass: Pass,
    /// The thread kept its core all the time, as far as the kernel knows.
    pub(super) clean: bool,
    pub(super) allocations: u64,
}

/// How often the scheduler gave this thread a core.
struct Timeslices(Option<File>);

impl Timeslices {
    fn count(&self) -> Option<u64> {
        let mut text = [0; 96];
        let len = self.0.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(text.get(..len)?).ok()?;
        text.split_whitespace().nth(2)?.parse().ok()
    }
}

/// Runs `kinds` in turn for `time`; the lane `index` has `frames`, one list per [`Round::frames`].
pub(super) fn run(
    lane: &mut Lane,
    index: u8,
    kinds: &[Round],
    frames: &[Vec<Head>],
    in_step: &InStep,
    time: Duration,
) -> Result<Vec<Part>> {
    let timeslices = Timeslices(File::open("/proc/thread-self/schedstat").ok());
    let mut cursors: Vec<_> = frames.iter().map(|list| list.iter().cycle()).collect();
    // Once for what is gathered, so that nothing is allocated for it between passes.
    let mut parts = Vec::with_capacity(1 << 16);
    let turns: Vec<(usize, Round, bool)> = kinds
        .iter()
        .enumerate()
        .flat_map(|(kind, round)| {
            (0..round.repeat).map(move |at| (kind, *round, at < round.repeat / 2))
        })
        .collect();
    let begun = Instant::now();
    for number in 0.. {
        let turn = number % turns.len().max(1);
        let Some((kind, round, settling)) = turns.get(turn).copied() else {
            break;
        };
        let takes_part = index == 0 || !round.solo;
        let mut laid_out = Ok(());
        if takes_part && let Some(cursor) = cursors.get_mut(round.frames) {
            laid_out = lane.lay_out(cursor);
        }
        if index == 0 {
            in_step.ready.store(0, Ordering::Relaxed);
            in_step.stop.store(false, Ordering::Relaxed);
            let over = turn == 0 && begun.elapsed() >= time;
            in_step.over.store(over, Ordering::Relaxed);
            let reading = round.reading && !over;
            in_step.reading.store(reading, Ordering::Relaxed);
        }
        if !in_step.meet(laid_out.is_ok()) {
            laid_out?;
            bail!("{OTHER}");
        }
        if in_step.over.load(Ordering::Relaxed) {
            // All have seen it before the next direction begins.
            in_step.barrier.wait();
            break;
        }
        if takes_part {
            let before = timeslices.count();
            let wanted = if round.solo { 1 } else { in_step.lanes };
            // Woken threads come one after the other; here they meet.
            in_step.ready.fetch_add(1, Ordering::AcqRel);
            while in_step.ready.load(Ordering::Acquire) < wanted {
                std::hint::spin_loop();
            }
            let mut pass = Pass {
                packets: 0,
                ticks: 0,
            };
            let allocated = allocation_counter::measure(|| {
                pass = lane.run(round.work, &in_step.stop);
            });
            let after = timeslices.count();
            parts.push(Part {
                number,
                kind,
                settling,
                pass,
                clean: before == after,
                allocations: allocated.count_total,
            });
        }
        in_step.barrier.wait();
    }
    Ok(parts)
}
