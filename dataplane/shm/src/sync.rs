//! The atomics and the orderings of the shared-memory protocols, in one place.
//!
//! Under `--cfg loom` the atomics are loom's, so that the protocols run in the model checker
//! (`src/model.rs`). Every ordering a protocol relies on has a name here; `--cfg bng_weaken="NAME"`
//! takes one of them away, and the model checks must then fail (`tests/weaken.sh` tries them all).

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, fence};

pub(crate) use std::sync::atomic::Ordering;

/// A place where the process may be killed: a no-op, except in the tests that kill it there.
#[inline(always)]
pub(crate) fn fault_point() {
    #[cfg(all(test, not(loom)))]
    crate::killed::fault_point();
}

/// The named orderings. Each constant says who pairs with it.
pub(crate) mod order {
    use super::Ordering;

    /// Store of a state word that makes an entry visible; pairs with [`OBSERVE`].
    pub(crate) const PUBLISH: Ordering = if cfg!(bng_weaken = "slot_publish") {
        Ordering::Relaxed
    } else {
        Ordering::Release
    };
    /// Load of a state word before the entry's fields; pairs with [`PUBLISH`].
    pub(crate) const OBSERVE: Ordering = if cfg!(bng_weaken = "slot_observe") {
        Ordering::Relaxed
    } else {
        Ordering::Acquire
    };
    /// Store of the tail, which hands an item over; pairs with [`RING_TAKE`].
    pub(crate) const RING_GIVE: Ordering = if cfg!(bng_weaken = "ring_give") {
        Ordering::Relaxed
    } else {
        Ordering::Release
    };
    /// Load of the tail before the item's words; pairs with [`RING_GIVE`].
    pub(crate) const RING_TAKE: Ordering = if cfg!(bng_weaken = "ring_take") {
        Ordering::Relaxed
    } else {
        Ordering::Acquire
    };
    /// Store of the head, which gives a slot back; pairs with [`RING_RECLAIM`].
    pub(crate) const RING_RETURN: Ordering = if cfg!(bng_weaken = "ring_return") {
        Ordering::Relaxed
    } else {
        Ordering::Release
    };
    /// Load of the head before a slot is filled again; pairs with [`RING_RETURN`].
    pub(crate) const RING_RECLAIM: Ordering = if cfg!(bng_weaken = "ring_reclaim") {
        Ordering::Relaxed
    } else {
        Ordering::Acquire
    };
    /// Control's increment of the epoch after a withdrawal; pairs with [`EPOCH_SEE`].
    pub(crate) const EPOCH_ADVANCE: Ordering = if cfg!(bng_weaken = "epoch_advance") {
        Ordering::Relaxed
    } else {
        Ordering::Release
    };
    /// A worker's load of the epoch at its quiescent point; pairs with [`EPOCH_ADVANCE`].
    pub(crate) const EPOCH_SEE: Ordering = if cfg!(bng_weaken = "epoch_see") {
        Ordering::Relaxed
    } else {
        Ordering::Acquire
    };
    /// A worker's echo of the epoch, after its last use of any entry; pairs with [`EPOCH_CHECK`].
    pub(crate) const EPOCH_ECHO: Ordering = if cfg!(bng_weaken = "epoch_echo") {
        Ordering::Relaxed
    } else {
        Ordering::Release
    };
    /// Control's load of a worker's echo before it reuses an entry; pairs with [`EPOCH_ECHO`].
    pub(crate) const EPOCH_CHECK: Ordering = if cfg!(bng_weaken = "epoch_check") {
        Ordering::Relaxed
    } else {
        Ordering::Acquire
    };
    /// A worker's good-bye, after its last use of any entry; pairs with [`EPOCH_ABSENT`].
    pub(crate) const EPOCH_LEAVE: Ordering = if cfg!(bng_weaken = "epoch_leave") {
        Ordering::Relaxed
    } else {
        Ordering::Release
    };
    /// Control's look whether a worker runs, before it reuses an entry; pairs with [`EPOCH_LEAVE`].
    pub(crate) const EPOCH_ABSENT: Ordering = if cfg!(bng_weaken = "epoch_absent") {
        Ordering::Relaxed
    } else {
        Ordering::Acquire
    };

    /// The full fence between "I run" and a worker's first look-up. With [`epoch_fence_control`]:
    /// a worker that control does not see as present sees the withdrawal.
    #[inline]
    pub(crate) fn epoch_fence_worker() {
        if !cfg!(bng_weaken = "epoch_worker") {
            super::fence(Ordering::SeqCst);
        }
    }
    /// The full fence between a withdrawal and "does this worker run?"; see [`epoch_fence_worker`].
    #[inline]
    pub(crate) fn epoch_fence_control() {
        if !cfg!(bng_weaken = "epoch_control") {
            super::fence(Ordering::SeqCst);
        }
    }
    /// The full fence between "I published" and "does the other side sleep?", and between "I sleep"
    /// and "is there really nothing?". Without either of the two a wake-up can be lost (HZ-18).
    #[inline]
    pub(crate) fn bell_fence_ringer() {
        if !cfg!(bng_weaken = "bell_ringer") {
            super::fence(Ordering::SeqCst);
        }
    }
    /// See [`bell_fence_ringer`].
    #[inline]
    pub(crate) fn bell_fence_sleeper() {
        if !cfg!(bng_weaken = "bell_sleeper") {
            super::fence(Ordering::SeqCst);
        }
    }
    /// Orders a writer's "being written" mark before its field stores.
    #[inline]
    pub(crate) fn write_begin_fence() {
        if !cfg!(bng_weaken = "slot_write_begin") {
            super::fence(Ordering::Release);
        }
    }
    /// Orders a reader's field loads before its second look at the state word.
    #[inline]
    pub(crate) fn read_end_fence() {
        if !cfg!(bng_weaken = "slot_read_end") {
            super::fence(Ordering::Acquire);
        }
    }
}
