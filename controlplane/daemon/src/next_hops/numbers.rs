//! Next-hop numbers in contiguous runs.

use std::collections::BTreeMap;

use bng_shm::NextHopId;

/// Numbers one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// The lowest.
    pub(super) first: NextHopId,
    /// How many, at least 1.
    pub(super) count: u32,
}

impl Run {
    pub(super) fn ids(self) -> impl Iterator<Item = NextHopId> {
        (self.first.0..self.first.0 + self.count).map(NextHopId)
    }
}

/// Free numbers: the first of each run and its length. Runs that touch are one.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    free: BTreeMap<u32, u32>,
}

impl Numbers {
    /// All numbers below `count` but 0, which is "no route".
    pub(super) fn new(count: u32) -> Self {
        let free = (count > 1).then_some((1, count.saturating_sub(1)));
        Self {
            free: free.into_iter().collect(),
        }
    }

    /// Takes the lowest run of this length. O(number of free runs).
    pub(super) fn take(&mut self, count: u32) -> Option<Run> {
        let (first, _) = self.free.iter().find(|(_, length)| **length >= count)?;
        let run = Run {
            first: NextHopId(*first),
            count,
        };
        self.take_exactly(run).then_some(run)
    }

    /// Takes these numbers; false when one of them is not free.
    pub(super) fn take_exactly(&mut self, run: Run) -> bool {
        let (from, to) = (run.first.0, run.first.0.saturating_add(run.count));
        let Some((&first, &length)) = self.free.range(..=from).next_back() else {
            return false;
        };
        let end = first + length;
        if to > end {
            return false;
        }
        self.free.remove(&first);
        if first < from {
            self.free.insert(first, from - first);
        }
        if to < end {
            self.free.insert(to, end - to);
        }
        true
    }

    /// Gives a run back that was taken.
    pub(super) fn put_back(&mut self, run: Run) {
        let (mut first, mut count) = (run.first.0, run.count);
        if let Some(after) = self.free.remove(&(first + count)) {
            count += after;
        }
        if let Some((&before, &length)) = self.free.range(..first).next_back()
            && before + length == first
        {
            first = before;
            count += length;
        }
        self.free.insert(first, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn number_zero_is_never_given_and_none_twice() {
        let mut numbers = Numbers::new(5);
        assert!(!numbers.take_exactly(Run {
            first: NextHopId(0),
            count: 1
        }));
        let two = numbers.take(2).unwrap();
        assert_eq!((two.first, two.count), (NextHopId(1), 2));
        assert_eq!(numbers.take(3), None);
        assert!(!numbers.take_exactly(two));
        let rest = numbers.take(2).unwrap();
        assert_eq!(rest.first, NextHopId(3));
        assert_eq!(numbers.take(1), None);
        numbers.put_back(rest);
        numbers.put_back(two);
        assert_eq!(numbers.take(4).unwrap().first, NextHopId(1));
    }

    proptest! {
        #[test]
        fn what_is_given_back_can_be_taken_as_one_again(steps in prop::collection::vec((any::<bool>(), 1u32..6), 0..100)) {
            let mut numbers = Numbers::new(64);
            let mut held: Vec<Run> = Vec::new();
            for (takes, count) in steps {
                if takes {
                    let Some(run) = numbers.take(count) else { continue };
                    prop_assert!(run.ids().all(|id| !held.iter().any(|other| other.ids().any(|it| it == id))));
                    held.push(run);
                } else if !held.is_empty() {
                    numbers.put_back(held.swap_remove(count as usize % held.len()));
                }
            }
            for run in held {
                numbers.put_back(run);
            }
            prop_assert_eq!(numbers.take(63).map(|run| run.first), Some(NextHopId(1)));
        }
    }
}
