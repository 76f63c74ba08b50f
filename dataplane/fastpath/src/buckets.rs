//! Buckets of a small table that all workers share, for packets that are rare: fragments, protocols without ports.
//!
//! A bucket has a version, odd while somebody writes: a reader that sees it change reads again, a writer that finds it taken
//! tries again, and both give up after a few tries, so nobody waits for anybody.

use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Entries in a bucket.
pub(crate) const LANES: usize = 4;
/// Words of an entry; none is in use whose second word is zero.
pub(crate) const WORDS: usize = 4;
/// Tries to read or write a bucket that somebody writes; a write takes some ten nanoseconds.
const TRIES: usize = 64;

/// Two odd words a table's hash is made with; `seed` is random.
pub(crate) const fn secret(seed: u64) -> [u64; 2] {
    [seed, seed.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15 | 1]
}

/// Where a key belongs.
pub(crate) fn hash([mask, factor]: [u64; 2], [first, second]: [u64; 2]) -> usize {
    let fold = |a: u64, b: u64| {
        let wide = u128::from(a) * u128::from(b);
        wide as u64 ^ (wide >> 64) as u64
    };
    fold(fold(first ^ mask, factor) ^ second, factor) as usize
}

/// What an entry holds.
pub(crate) fn words(lane: &Lane) -> [u64; WORDS] {
    lane.each_ref().map(|word| word.load(Ordering::Relaxed))
}

/// Overwrites an entry of a bucket that is being written.
pub(crate) fn put(lane: &Lane, new: [u64; WORDS]) {
    for (word, new) in lane.iter().zip(new) {
        word.store(new, Ordering::Relaxed);
    }
}

pub(crate) type Lane = [AtomicU64; WORDS];

#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Bucket {
    version: AtomicU64,
    lanes: [Lane; LANES],
}

impl Bucket {
    pub(crate) fn read(&self) -> Option<[[u64; WORDS]; LANES]> {
        for _ in 0..TRIES {
            let version = self.version.load(Ordering::Acquire);
            if version & 1 == 0 {
                let lanes = self.lanes.each_ref().map(words);
                fence(Ordering::Acquire);
                if self.version.load(Ordering::Relaxed) == version {
                    return Some(lanes);
                }
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Writes what `write` makes of the lanes; false if somebody else wrote all the time.
    pub(crate) fn write(&self, write: impl FnOnce(&[Lane; LANES])) -> bool {
        for _ in 0..TRIES {
            let version = self.version.load(Ordering::Relaxed);
            let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
            let odd = version.wrapping_add(1);
            if version & 1 == 0
                && (self.version)
                    .compare_exchange(version, odd, acquire, relaxed)
                    .is_ok()
            {
                fence(Ordering::Release);
                write(&self.lanes);
                let even = version.wrapping_add(2);
                self.version.store(even, Ordering::Release);
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }
}
