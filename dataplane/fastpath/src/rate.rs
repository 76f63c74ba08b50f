//! A token bucket on the coarse clock.

/// Allows `per_second` events a second on average, at most one second's worth at once.
#[derive(Debug, Clone)]
pub(crate) struct RateLimit {
    per_second: u32,
    /// Thousandths of an event.
    tokens: u64,
    last_ms: u64,
}

impl RateLimit {
    /// A full bucket.
    pub(crate) fn new(per_second: u32, now_ms: u64) -> Self {
        Self {
            per_second,
            tokens: u64::from(per_second) * 1_000,
            last_ms: now_ms,
        }
    }

    /// Takes one event if there is one.
    pub(crate) fn allow(&mut self, now_ms: u64) -> bool {
        let elapsed = now_ms.saturating_sub(self.last_ms).min(1_000);
        let full = u64::from(self.per_second) * 1_000;
        self.tokens = (self.tokens + elapsed * u64::from(self.per_second)).min(full);
        self.last_ms = now_ms;
        let allowed = self.tokens >= 1_000;
        if allowed {
            self.tokens -= 1_000;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_second_of_events_then_the_configured_rate() {
        let mut limit = RateLimit::new(10, 5_000);
        let burst = (0..100).filter(|_| limit.allow(5_000)).count();
        assert_eq!(burst, 10);
        let spread = (1..=2_000).filter(|ms| limit.allow(5_000 + ms)).count();
        assert_eq!(spread, 20);
        let idle = (0..100).filter(|_| limit.allow(1_000_000)).count();
        assert_eq!(idle, 10);
    }

    #[test]
    fn a_rate_of_zero_allows_nothing() {
        let mut limit = RateLimit::new(0, 0);
        assert!(!limit.allow(0) && !limit.allow(1_000_000));
    }
}
