//! The run table: at most 64 runs, found by their key and kept in the order in which their heads arrived (T4, X1).

use super::key::{BUCKETS, Key};
use super::run::Run;

/// Runs a worker holds at once (X1).
pub(super) const RUNS: usize = 64;
/// No run: none has this number.
const NONE: u8 = u8::MAX;

/// A run's place, below [`RUNS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot(u8);

impl Slot {
    /// As an index into an array of [`RUNS`].
    #[inline(always)]
    pub(super) const fn index(self) -> usize {
        self.0 as usize % RUNS
    }
}

/// Neighbours of a run.
#[derive(Debug, Clone, Copy)]
struct Links {
    older: u8,
    newer: u8,
    /// The next run in the same bucket.
    next: u8,
    bucket: u8,
}

#[derive(Debug)]
pub(super) struct Table {
    runs: Box<[Run; RUNS]>,
    links: [Links; RUNS],
    /// First run of each bucket: a hash is where a search begins, never an answer (K5).
    buckets: [u8; BUCKETS],
    oldest: u8,
    newest: u8,
    /// One bit for each free slot.
    free: u64,
}

impl Table {
    pub(super) fn new() -> Self {
        let links = Links {
            older: NONE,
            newer: NONE,
            next: NONE,
            bucket: 0,
        };
        Self {
            runs: Box::new([const { Run::EMPTY }; RUNS]),
            links: [links; RUNS],
            buckets: [NONE; BUCKETS],
            oldest: NONE,
            newest: NONE,
            free: u64::MAX,
        }
    }

    #[inline(always)]
    pub(super) const fn is_empty(&self) -> bool {
        self.free == u64::MAX
    }

    #[inline(always)]
    pub(super) const fn is_full(&self) -> bool {
        self.free == 0
    }

    #[inline(always)]
    pub(super) fn run(&self, slot: Slot) -> &Run {
        &self.runs[slot.index()]
    }

    #[inline(always)]
    pub(super) fn run_mut(&mut self, slot: Slot) -> &mut Run {
        &mut self.runs[slot.index()]
    }

    /// The run whose head arrived first.
    #[inline(always)]
    pub(super) fn oldest(&self) -> Option<Slot> {
        slot(self.oldest)
    }

    /// The run whose head arrived after this one's.
    #[inline(always)]
    pub(super) fn newer(&self, than: Slot) -> Option<Slot> {
        slot(self.links[than.index()].newer)
    }

    /// The run of a key, which belongs into this bucket.
    #[inline]
    pub(super) fn find(&self, key: &Key, bucket: u8) -> Option<Slot> {
        let mut at = *self.buckets.get(usize::from(bucket))?;
        while let Some(slot) = slot(at) {
            if self.runs[slot.index()].key == *key {
                return Some(slot);
            }
            at = self.links[slot.index()].next;
        }
        None
    }

    /// A free run, now the newest, for a key that has none. Nothing if all are taken.
    #[inline]
    pub(super) fn insert(&mut self, key: &Key, bucket: u8) -> Option<Slot> {
        let slot = slot(self.free.trailing_zeros() as u8)?;
        self.free &= self.free - 1;
        self.runs[slot.index()].key = *key;
        let links = &mut self.links[slot.index()];
        (links.older, links.newer, links.bucket) = (self.newest, NONE, bucket);
        if let Some(first) = self.buckets.get_mut(usize::from(bucket)) {
            (links.next, *first) = (*first, slot.0);
        }
        match self.links.get_mut(usize::from(self.newest)) {
            Some(newest) => newest.newer = slot.0,
            None => self.oldest = slot.0,
        }
        self.newest = slot.0;
        Some(slot)
    }

    /// Frees a run that is taken.
    #[inline]
    pub(super) fn remove(&mut self, slot: Slot) {
        let Links {
            older,
            newer,
            next,
            bucket,
        } = self.links[slot.index()];
        match self.links.get_mut(usize::from(older)) {
            Some(links) => links.newer = newer,
            None => self.oldest = newer,
        }
        match self.links.get_mut(usize::from(newer)) {
            Some(links) => links.older = older,
            None => self.newest = older,
        }
        match self.before(bucket, slot) {
            Some(before) => self.links[before.index()].next = next,
            None => {
                if let Some(first) = self.buckets.get_mut(usize::from(bucket)) {
                    *first = next;
                }
            }
        }
        self.free |= 1 << slot.0;
    }

    /// The run in front of this one in its bucket's chain, which is short.
    #[inline]
    fn before(&self, bucket: u8, this: Slot) -> Option<Slot> {
        let mut before = None;
        let mut at = slot(*self.buckets.get(usize::from(bucket))?)?;
        while at != this {
            before = Some(at);
            at = slot(self.links[at.index()].next)?;
        }
        before
    }
}

#[inline(always)]
const fn slot(at: u8) -> Option<Slot> {
    if (at as usize) < RUNS {
        Some(Slot(at))
    } else {
        None
    }
}
