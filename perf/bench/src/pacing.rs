//! Even spacing of events in time.

use std::time::Duration;

/// Says how many events are due. Event `n` is due `n / rate` after the start, so rounding does not add up.
#[derive(Debug)]
pub(crate) struct Pacer {
    start: Duration,
    per_second: f64,
    done: u64,
}

/// A pacer further behind than this gives up the backlog, so that a stall does not become a burst.
const MAX_LAG: Duration = Duration::from_millis(100);

impl Pacer {
    /// `per_second` events a second, the first one at `start`.
    pub(crate) const fn new(start: Duration, per_second: f64) -> Self {
        Self {
            start,
            per_second,
            done: 0,
        }
    }

    /// When the next event is due.
    pub(crate) fn next(&self) -> Duration {
        // 2^53 events fit exactly; a rate of zero never comes due.
        Duration::try_from_secs_f64(self.done as f64 / self.per_second)
            .ok()
            .and_then(|offset| self.start.checked_add(offset))
            .unwrap_or(Duration::MAX)
    }

    /// Takes the next event if it is due. After a long stall the schedule starts anew from `now`.
    pub(crate) fn take(&mut self, now: Duration) -> bool {
        let next = self.next();
        if next > now {
            return false;
        }
        if now - next > MAX_LAG {
            self.start = now;
            self.done = 0;
        }
        self.done += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(pacer: &mut Pacer, now: Duration) -> usize {
        std::iter::from_fn(|| pacer.take(now).then_some(())).count()
    }

    #[test]
    fn events_are_evenly_spaced_and_the_total_is_exact() {
        let mut pacer = Pacer::new(Duration::from_secs(5), 3.0);
        let mut times = Vec::new();
        let mut now = Duration::from_secs(5);
        while now < Duration::from_secs(15) {
            for _ in 0..count(&mut pacer, now) {
                times.push(now);
            }
            now += Duration::from_millis(1);
        }
        assert_eq!(times.len(), 30);
        for pair in times.windows(2) {
            let gap = pair[1] - pair[0];
            assert!(gap >= Duration::from_millis(332) && gap <= Duration::from_millis(335));
        }
    }

    #[test]
    fn a_short_delay_is_caught_up_and_a_stall_is_not() {
        let mut pacer = Pacer::new(Duration::ZERO, 1_000.0);
        assert_eq!(count(&mut pacer, Duration::from_millis(50)), 51);
        assert_eq!(count(&mut pacer, Duration::from_millis(60)), 10);
        assert_eq!(count(&mut pacer, Duration::from_secs(60)), 1);
        assert_eq!(pacer.next(), Duration::from_millis(60_001));
    }

    #[test]
    fn a_rate_of_zero_is_never_due_again() {
        let mut pacer = Pacer::new(Duration::ZERO, 0.0);
        assert_eq!(count(&mut pacer, Duration::from_secs(1_000_000)), 0);
    }
}
