//! Quiescent-state epochs: when may control reuse what it withdrew?
//!
//! Control withdraws an entry, then advances the epoch and keeps the new value as a token. A worker
//! echoes the epoch once per poll loop, at a point where it holds nothing that refers to a table
//! entry. When every present worker has echoed the token or later, nobody can still use the entry.
//!
//! INV-EPOCH-1: a worker echoes only between bursts, with no frame or view in its hands. What it holds over loops all the
//! same (runs of the coalescer) it lets go of between seeing a new epoch and echoing it, and it echoes the epoch it has seen,
//! never a later one: what it takes into its hands afterwards may be withdrawn before the next epoch only.
//! The pair advance/see makes the withdrawal visible to the worker before its next look-up; the pair
//! echo/check makes the worker's last use happen before control's reuse. No full fence per loop.
//! A worker that comes or goes pairs with control's look at `present` (enter, leave).

use crate::sync::{AtomicU32, AtomicU64, Ordering, order};

/// The epoch control advances; alone on its cache lines.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Epoch(AtomicU64);

#[cfg(not(loom))]
crate::shared::shared!(Epoch, Epoch { 0 });

/// What one worker has echoed, and whether it runs at all.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Echo {
    seen: AtomicU64,
    present: AtomicU32,
}

#[cfg(not(loom))]
crate::shared::shared!(Echo, Echo { seen, present });

/// The epoch as a worker has seen it, and is to echo it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "control waits for the echo"]
pub struct SeenEpoch {
    value: u64,
    is_new: bool,
}

impl SeenEpoch {
    /// Whether it is another one than the worker has echoed last, so that somebody waits for the worker to let go of all that
    /// it holds.
    #[inline]
    #[must_use]
    pub fn is_new(self) -> bool {
        self.is_new
    }
}

/// A point in time after a withdrawal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EpochToken(u64);

impl Epoch {
    /// Epoch zero.
    #[cfg(any(test, loom))]
    #[must_use]
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Control, after one or more withdrawals.
    pub(crate) fn advance(&self) -> EpochToken {
        let before = self.0.fetch_add(1, order::EPOCH_ADVANCE);
        order::epoch_fence_control();
        EpochToken(before.wrapping_add(1))
    }
}

impl Echo {
    /// A worker that does not run.
    #[cfg(any(test, loom))]
    #[must_use]
    pub(crate) fn new() -> Self {
        Self {
            seen: AtomicU64::new(0),
            present: AtomicU32::new(0),
        }
    }

    /// The worker starts; call before the first table look-up.
    pub(crate) fn enter(&self, epoch: &Epoch) {
        self.seen
            .store(epoch.0.load(order::EPOCH_SEE), order::EPOCH_ECHO);
        self.present.store(1, Ordering::Relaxed);
        order::epoch_fence_worker();
    }

    /// The worker looks at the epoch.
    #[inline]
    pub(crate) fn see(&self, epoch: &Epoch) -> SeenEpoch {
        let value = epoch.0.load(order::EPOCH_SEE);
        // The worker's own word: it reads what it has written.
        let is_new = value != self.seen.load(Ordering::Relaxed);
        SeenEpoch { value, is_new }
    }

    /// The worker's quiescent point (INV-EPOCH-1): it holds nothing that it held when it saw this epoch.
    #[inline]
    pub(crate) fn quiescent(&self, seen: SeenEpoch) {
        self.seen.store(seen.value, order::EPOCH_ECHO);
    }

    /// The worker ends and uses no table any more.
    pub(crate) fn leave(&self) {
        self.present.store(0, order::EPOCH_LEAVE);
    }

    /// Whether this worker can no longer hold anything withdrawn before `token`.
    pub(crate) fn passed(&self, token: EpochToken) -> bool {
        self.present.load(order::EPOCH_ABSENT) == 0 || self.seen.load(order::EPOCH_CHECK) >= token.0
    }

    /// Whether the worker says that it runs.
    #[must_use]
    pub(crate) fn is_present(&self) -> bool {
        self.present.load(Ordering::Relaxed) != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_token_passes_only_after_the_echo() {
        let (epoch, echo) = (Epoch::new(), Echo::new());
        let before = epoch.advance();
        assert!(echo.passed(before), "an absent worker is not waited for");
        echo.enter(&epoch);
        let token = epoch.advance();
        assert!(!echo.passed(token));
        let seen = echo.see(&epoch);
        assert!(seen.is_new() && !echo.passed(token), "seen is not let go");
        let later = epoch.advance();
        echo.quiescent(seen);
        assert!(echo.passed(token) && !echo.passed(later));
        echo.quiescent(echo.see(&epoch));
        assert!(echo.passed(later) && !echo.see(&epoch).is_new());
        let next = epoch.advance();
        assert!(!echo.passed(next));
        echo.leave();
        assert!(echo.passed(next));
    }
}
