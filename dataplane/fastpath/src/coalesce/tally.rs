//! What the coalescer counts, until a burst's end (X4).

use bng_shm::{Counter, Worker};

const FIRST: usize = Counter::CoalesceFrames.index();
const COUNTS: usize = Counter::EndVerdict.index() + 1 - FIRST;

/// Counters of the groups Coalesce, CoalescePass and CoalesceEnd, which are next to each other.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tally {
    counts: [u32; COUNTS],
    /// One bit for each count that is not zero.
    counted: u64,
}

const _: () = assert!(COUNTS <= 64, "one bit for each count");

impl Tally {
    pub(super) const EMPTY: Self = Self {
        counts: [0; COUNTS],
        counted: 0,
    };

    #[inline(always)]
    pub(super) fn add(&mut self, counter: Counter, by: u32) {
        let at = counter.index().wrapping_sub(FIRST);
        if let Some(count) = self.counts.get_mut(at) {
            *count += by;
            self.counted |= 1 << at;
        }
    }

    /// Counts a super-packet of so many frames.
    #[inline]
    pub(super) fn super_packet(&mut self, frames: usize) {
        self.add(Counter::CoalesceMerged, frames as u32);
        self.add(Counter::CoalesceSupers, 1);
        let of_size = match frames {
            ..=2 => Counter::CoalesceSegments2,
            3..=4 => Counter::CoalesceSegments4,
            5..=8 => Counter::CoalesceSegments8,
            9..=16 => Counter::CoalesceSegments16,
            17..=32 => Counter::CoalesceSegments32,
            _ => Counter::CoalesceSegmentsMore,
        };
        self.add(of_size, 1);
    }

    /// Adds everything to the worker's counters.
    #[inline]
    pub(super) fn settle(&mut self, shm: &Worker) {
        while self.counted != 0 {
            let at = self.counted.trailing_zeros() as usize;
            self.counted &= self.counted - 1;
            if let (Some(count), Some(counter)) =
                (self.counts.get_mut(at), Counter::ALL.get(FIRST + at))
            {
                shm.count(*counter, u64::from(std::mem::take(count)));
            }
        }
    }

    #[cfg(test)]
    pub(super) fn get(&self, counter: Counter) -> u32 {
        self.counts[counter.index() - FIRST]
    }

    #[cfg(test)]
    pub(super) fn sum(&self) -> u32 {
        self.counts.iter().sum()
    }
}
