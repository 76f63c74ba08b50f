//! The bell that wakes the control process: a futex word in shared memory.
//!
//! Workers ring it at most once per burst of punted frames, and the system call is made only when the
//! sleeper has said that it sleeps (HZ-17). It needs no descriptor to be passed, so it works across a
//! restart of either side, and ringing for a process that is gone does nothing (HZ-19).

use crate::sync::{AtomicU32, Ordering, order};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// A bell with one sleeper and any number of ringers.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Bell(AtomicU32);

#[cfg(not(loom))]
crate::shared::shared!(Bell, Bell { 0 });

impl Bell {
    /// A bell nobody listens to.
    #[cfg(any(test, loom))]
    #[must_use]
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(AWAKE))
    }

    /// After publishing work: true when the sleeper must be woken by the caller.
    #[inline]
    pub(crate) fn must_wake(&self) -> bool {
        order::bell_fence_ringer();
        self.0.load(Ordering::Relaxed) == ASLEEP && self.0.swap(AWAKE, Ordering::Relaxed) == ASLEEP
    }

    /// Announces sleep; true when `is_idle` still holds afterwards, so that sleeping is safe.
    pub(crate) fn may_sleep(&self, is_idle: impl FnOnce() -> bool) -> bool {
        self.0.store(ASLEEP, Ordering::Relaxed);
        order::bell_fence_sleeper();
        let idle = is_idle();
        if !idle {
            self.awake();
        }
        idle
    }

    /// The sleeper is up again.
    pub(crate) fn awake(&self) {
        self.0.store(AWAKE, Ordering::Relaxed);
    }

    #[cfg(loom)]
    pub(crate) fn is_asleep(&self) -> bool {
        self.0.load(Ordering::Relaxed) == ASLEEP
    }
}

#[cfg(not(loom))]
mod wait {
    use super::{ASLEEP, Bell};
    use rustix::thread::futex;
    use std::time::Duration;

    impl Bell {
        /// Rings: wakes the sleeper if there is one. Call after the work is visible.
        /// Returns whether a system call was made.
        pub(crate) fn ring(&self) -> bool {
            let wake = self.must_wake();
            if wake {
                // An error here means that nobody waits, which is what the wake-up wanted to reach.
                let _ = futex::wake(&self.0, futex::Flags::empty(), 1);
            }
            wake
        }

        /// Sleeps until somebody rings or `limit` is over, unless `is_idle` says there is work.
        /// One thread of one process sleeps on a bell.
        pub(crate) fn sleep(&self, limit: Duration, is_idle: impl FnOnce() -> bool) {
            if self.may_sleep(is_idle) {
                let limit = futex::Timespec {
                    tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
                    tv_nsec: i64::from(limit.subsec_nanos()),
                };
                // Rung, interrupted or timed out: the caller looks at its rings in each case.
                let _ = futex::wait(&self.0, futex::Flags::empty(), ASLEEP, Some(&limit));
                self.awake();
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn nobody_is_woken_who_does_not_sleep() {
        let bell = Bell::new();
        assert!(!bell.ring());
        bell.sleep(Duration::from_secs(60), || false);
        assert!(!bell.ring(), "there was work, so nobody slept");
    }

    #[test]
    fn a_sleeper_is_woken() {
        let bell = Bell::new();
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| while !bell.ring() {});
            bell.sleep(Duration::from_secs(60), || true);
        });
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
