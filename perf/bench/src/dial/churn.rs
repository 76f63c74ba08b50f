//! Churn: sessions end and begin again, so many a second, for as long as the run holds them.

use std::collections::VecDeque;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::subscriber::Octets;
use crate::pacing::Pacer;

/// What there is of it.
#[derive(Debug)]
pub(super) struct Churn {
    pub(super) pacer: Pacer,
    /// Subscriber that is the next to hang up.
    pub(super) cursor: u32,
    /// Subscribers whose session is over and who dial again.
    pub(super) redial: VecDeque<u32>,
    /// Sessions ended by us.
    pub(super) hung_up: u64,
    /// Sessions begun again.
    pub(super) redialled: u64,
    /// Those that came up.
    pub(super) came_up: u64,
    /// Times from PADI to up of those, nanoseconds.
    pub(super) setup: Histogram<u64>,
    /// Time it took.
    pub(super) time: Duration,
    pub(super) started: Duration,
}

impl Churn {
    /// So many sessions a second. `None` when the histogram cannot be made.
    pub(super) fn new(per_second: f64) -> Option<Self> {
        Some(Self {
            pacer: Pacer::new(Duration::ZERO, per_second),
            cursor: 0,
            redial: VecDeque::new(),
            hung_up: 0,
            redialled: 0,
            came_up: 0,
            setup: Histogram::new_with_max(600_000_000_000, 3).ok()?,
            time: Duration::ZERO,
            started: Duration::ZERO,
        })
    }

    /// The churn begins.
    pub(super) const fn begin(&mut self, per_second: f64, now: Duration) {
        self.pacer = Pacer::new(now, per_second);
        self.started = now;
    }
}

/// One session that is over, for whoever compares with accounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    /// Index of the subscriber.
    pub(crate) subscriber: u32,
    /// PPPoE session id.
    pub(crate) session_id: u16,
    /// What it carried.
    pub(crate) octets: Octets,
}
