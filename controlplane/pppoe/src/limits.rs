//! Token buckets with bounded memory.

use alloc::vec;
use alloc::vec::Vec;

use crate::Time;
use crate::config::Rate;

/// Thousandths of a token, so that a refill per millisecond is exact.
const TOKEN: u64 = 1_000;

/// One token bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucket {
    level: u64,
    filled: Time,
}

impl TokenBucket {
    pub(crate) fn full(rate: Rate, now: Time) -> Self {
        Self {
            level: u64::from(rate.burst) * TOKEN,
            filled: now,
        }
    }

    /// Takes a token; `false` when there is none.
    pub(crate) fn take(&mut self, rate: Rate, now: Time) -> bool {
        let passed = now.as_millis().saturating_sub(self.filled.as_millis());
        self.level = self
            .level
            .saturating_add(passed.saturating_mul(u64::from(rate.per_second)))
            .min(u64::from(rate.burst) * TOKEN);
        self.filled = now;
        match self.level.checked_sub(TOKEN) {
            Some(rest) => {
                self.level = rest;
                true
            }
            None => false,
        }
    }
}

/// Buckets per key for a fixed number of keys.
///
/// A key lives in one set of four places; a new key takes the place longest unused. Who is pushed out starts again
/// with a full bucket, so a flood of random keys costs real clients nothing.
#[derive(Debug)]
pub(crate) struct BucketTable {
    sets: Vec<[Option<(u64, TokenBucket)>; WAYS]>,
    rate: Rate,
}

const WAYS: usize = 4;

impl BucketTable {
    pub(crate) fn new(keys: u32, rate: Rate) -> Self {
        let sets = (keys as usize).div_ceil(WAYS).max(1);
        Self {
            sets: vec![[None; WAYS]; sets],
            rate,
        }
    }

    /// Takes a token of `key`, an unpredictable hash of what is limited.
    pub(crate) fn take(&mut self, key: u64, now: Time) -> bool {
        let rate = self.rate;
        let at = key as usize % self.sets.len();
        let Some(set) = self.sets.get_mut(at) else {
            return false;
        };
        if let Some((_, bucket)) = set.iter_mut().flatten().find(|(k, _)| *k == key) {
            return bucket.take(rate, now);
        }
        let mut bucket = TokenBucket::full(rate, now);
        let taken = bucket.take(rate, now);
        let oldest = set
            .iter_mut()
            .min_by_key(|place| place.map(|(_, bucket)| bucket.filled));
        if let Some(place) = oldest {
            *place = Some((key, bucket));
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate {
        per_second: 2,
        burst: 3,
    };

    #[test]
    fn a_bucket_gives_its_burst_then_its_rate() {
        let at = Time::from_millis;
        let mut bucket = TokenBucket::full(RATE, at(0));
        let burst = (0..5).filter(|_| bucket.take(RATE, at(0))).count();
        assert_eq!(burst, 3);
        assert!(!bucket.take(RATE, at(499)));
        assert!(bucket.take(RATE, at(500)));
        let later = (0..500)
            .filter(|n| bucket.take(RATE, at(500 + n * 20)))
            .count();
        assert_eq!(later, 19);
    }

    #[test]
    fn a_key_has_its_own_bucket_and_the_longest_unused_is_forgotten() {
        let at = Time::from_millis;
        let mut table = BucketTable::new(4, RATE);
        for _ in 0..3 {
            assert!(table.take(1, at(0)));
        }
        assert!(!table.take(1, at(0)));
        for key in 2..5 {
            assert!(table.take(key, at(1)));
        }
        assert!(!table.take(1, at(2)), "still remembered");
        assert!(table.take(9, at(3)), "takes the place of key 2");
        assert!(!table.take(1, at(3)));
        assert_eq!(table.sets.len(), 1);
    }
}
