//! Deadlines of many sessions. A session's entry is replaced by adding a new one; old ones are skipped.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// A queue of deadlines that may be out of date.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Duration, u32)>>,
}

impl Timers {
    /// Adds a deadline of a session.
    pub(crate) fn add(&mut self, deadline: Duration, session: u32) {
        self.heap.push(Reverse((deadline, session)));
    }

    /// The next deadline, possibly one that no longer counts.
    pub(crate) fn next(&self) -> Option<Duration> {
        self.heap.peek().map(|Reverse((deadline, _))| *deadline)
    }

    /// Takes one deadline that has passed.
    pub(crate) fn take(&mut self, now: Duration) -> Option<(Duration, u32)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }
}
