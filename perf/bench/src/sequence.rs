//! What arrived of a numbered stream.

/// Words of the usual window.
const WORDS: usize = 64;

/// Counts over one stream whose sender numbers from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SequenceCounts {
    /// Different numbers seen.
    pub(crate) unique: u64,
    /// Numbers seen again.
    pub(crate) duplicates: u64,
    /// Of the unique ones, those that came after a higher number.
    pub(crate) reordered: u64,
    /// Behind the window: late or repeated, unknown which, and in none of the other counts.
    pub(crate) too_late: u64,
}

/// Tells new, late and repeated numbers apart with a bitmap over the last [`Self::WINDOW`] numbers.
#[derive(Clone, Debug)]
pub(crate) struct SequenceTracker<const W: usize = WORDS> {
    /// One more than the highest number seen.
    next: u64,
    seen: [u64; W],
    counts: SequenceCounts,
}

impl<const W: usize> Default for SequenceTracker<W> {
    fn default() -> Self {
        Self {
            next: 0,
            seen: [0; W],
            counts: SequenceCounts::default(),
        }
    }
}

impl<const W: usize> SequenceTracker<W> {
    /// How far behind the newest number a late one is still told from a repeated one.
    pub(crate) const WINDOW: u64 = 64 * W as u64;

    /// The counts so far.
    pub(crate) const fn counts(&self) -> SequenceCounts {
        self.counts
    }

    fn word(&mut self, number: u64) -> (&mut u64, u64) {
        let at = (number / 64 % W as u64) as usize;
        // `at` is reduced to the array's length.
        (&mut self.seen[at], 1 << (number % 64))
    }

    /// Counts one arrival.
    pub(crate) fn observe(&mut self, number: u64) {
        if number >= self.next {
            if number - self.next >= Self::WINDOW {
                self.seen = [0; W];
            } else {
                for passed in self.next..=number {
                    let (word, bit) = self.word(passed);
                    *word &= !bit;
                }
            }
            let (word, bit) = self.word(number);
            *word |= bit;
            self.next = number.saturating_add(1);
            self.counts.unique += 1;
            return;
        }
        if self.next - number > Self::WINDOW {
            self.counts.too_late += 1;
            return;
        }
        let (word, bit) = self.word(number);
        if *word & bit != 0 {
            self.counts.duplicates += 1;
        } else {
            *word |= bit;
            self.counts.unique += 1;
            self.counts.reordered += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const WINDOW: u64 = SequenceTracker::<WORDS>::WINDOW;

    fn run(numbers: impl IntoIterator<Item = u64>) -> SequenceCounts {
        let mut tracker: SequenceTracker = SequenceTracker::default();
        for number in numbers {
            tracker.observe(number);
        }
        tracker.counts()
    }

    #[test]
    fn in_order_stream_is_all_unique() {
        let counts = run(0..100_000);
        assert_eq!(
            counts,
            SequenceCounts {
                unique: 100_000,
                ..SequenceCounts::default()
            }
        );
    }

    #[test]
    fn gaps_repeats_and_late_numbers_are_told_apart() {
        let counts = run([0, 1, 4, 3, 3, 4, 0, 9]);
        assert_eq!(
            counts,
            SequenceCounts {
                unique: 5,
                duplicates: 3,
                reordered: 1,
                too_late: 0
            }
        );
    }

    #[test]
    fn bits_of_numbers_long_gone_do_not_count() {
        let counts = run([0, WINDOW + 5, 6, WINDOW, 3 * WINDOW, 2 * WINDOW + 1, 5]);
        assert_eq!(
            counts,
            SequenceCounts {
                unique: 6,
                duplicates: 0,
                reordered: 3,
                too_late: 1
            }
        );
    }

    #[test]
    fn a_small_window_tells_the_same_within_its_reach() {
        let mut tracker = SequenceTracker::<1>::default();
        for number in [0, 1, 3, 2, 2, 70, 8, 6, 5] {
            tracker.observe(number);
        }
        let counts = SequenceCounts {
            unique: 6,
            duplicates: 1,
            reordered: 1 + 1,
            too_late: 1,
        };
        // 70 moves the window to 7..=70: 8 is late, 6 and 5 are beyond it.
        assert_eq!(
            tracker.counts(),
            SequenceCounts {
                too_late: 2,
                ..counts
            }
        );
    }

    #[test]
    fn counts_agree_with_a_set_for_a_shuffled_lossy_stream() {
        let mut seed = 0x1234_5678_9abc_def0_u64;
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let mut stream = Vec::new();
        for number in 0..20_000_u64 {
            // One in ten is lost, one in ten repeated.
            match random() % 10 {
                0 => {}
                1 => stream.extend([number, number]),
                _ => stream.push(number),
            }
        }
        for at in (0..stream.len() - 50).step_by(3) {
            stream.swap(at, at + (random() % 50) as usize);
        }
        let distinct: HashSet<u64> = stream.iter().copied().collect();
        let counts = run(stream.iter().copied());
        assert_eq!(counts.unique, distinct.len() as u64);
        assert_eq!(counts.unique + counts.duplicates, stream.len() as u64);
    }
}
