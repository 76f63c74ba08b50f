//! What a worker does when it finds nothing: on a dedicated core nothing, on a shared one it sleeps.

use std::time::Duration;

/// Empty polls before the first sleep.
const SPIN: u32 = 64;
/// First sleep, microseconds; doubled with each further empty poll up to the limit.
const FIRST_US: u64 = 5;

/// Back-off of one worker.
#[derive(Debug)]
pub struct Backoff {
    limit_us: u64,
    empty: u32,
    next_us: u64,
}

impl Backoff {
    /// `limit_us` is the longest sleep in microseconds; 0 means that the worker never sleeps.
    #[must_use]
    pub const fn new(limit_us: u32) -> Self {
        Self {
            limit_us: limit_us as u64,
            empty: 0,
            next_us: FIRST_US,
        }
    }

    /// The poll found work.
    #[inline]
    pub fn busy(&mut self) {
        self.empty = 0;
        self.next_us = FIRST_US;
    }

    /// The poll found nothing; returns how long to sleep, if at all.
    #[inline]
    pub fn idle(&mut self) -> Option<Duration> {
        if self.limit_us == 0 {
            return None;
        }
        if self.empty < SPIN {
            self.empty += 1;
            return None;
        }
        let sleep = self.next_us.min(self.limit_us);
        self.next_us = (sleep * 2).min(self.limit_us);
        Some(Duration::from_micros(sleep))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dedicated_core_never_sleeps() {
        let mut backoff = Backoff::new(0);
        assert!((0..10_000).all(|_| backoff.idle().is_none()));
    }

    #[test]
    fn sleeps_grow_to_the_limit_and_end_with_work() {
        let mut backoff = Backoff::new(100);
        let sleeps: Vec<_> = (0..SPIN + 8).filter_map(|_| backoff.idle()).collect();
        assert_eq!(
            sleeps,
            [5, 10, 20, 40, 80, 100, 100, 100]
                .map(Duration::from_micros)
                .to_vec()
        );
        backoff.busy();
        assert_eq!(backoff.idle(), None);
    }
}
