//! Waking the host thread: for frames of the workers, and for room in a ring to one.

use super::HOST_RING;
use rte_rs::Consumer;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Wakes the host thread when a worker has put a frame into an empty ring.
#[derive(Debug)]
pub struct HostBell {
    pub(super) asleep: AtomicBool,
    pub(super) event: OwnedFd,
}

impl HostBell {
    /// A bell for one host thread and any number of workers.
    ///
    /// # Errors
    /// The kernel has no descriptor to give.
    pub fn new() -> io::Result<Arc<Self>> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Arc::new(Self {
            asleep: AtomicBool::new(false),
            event,
        }))
    }

    /// After frames were put into a ring; a system call only if the thread sleeps.
    #[inline]
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            // The counter cannot overflow: it is read each time the thread wakes.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    pub(super) fn drain(&self) {
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }
}

/// Room the ring to a worker must have before the host thread goes on: waking it for every frame would cost more than the
/// frames (HZ-16 R1).
pub(super) const ROOM: usize = {
    let half = HOST_RING as usize / 2;
    if half < 64 { half } else { 64 }
};

/// Tells the host thread that a full ring to a worker has room again, once per stop.
#[derive(Debug, Default)]
pub struct Room {
    wanted: AtomicBool,
}

impl Room {
    /// For the worker, after it took frames out.
    #[inline]
    pub fn made(&self, ring: &Consumer, bell: &HostBell) {
        // HZ-18: either the host thread sees the room or this sees its wish.
        fence(Ordering::SeqCst);
        if self.is_wake(ring.free()) {
            bell.ring();
        }
    }

    /// Whether so much room ends the wait; the wish is granted once.
    #[inline]
    fn is_wake(&self, free: usize) -> bool {
        free >= ROOM
            && self.wanted.load(Ordering::Relaxed)
            && self.wanted.swap(false, Ordering::Relaxed)
    }

    /// For the host thread: whether it has to wait. From now on the worker knows.
    pub(super) fn must_wait(&self, free: impl Fn() -> usize) -> bool {
        if free() < ROOM {
            self.wanted.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if free() < ROOM {
                return true;
            }
        }
        self.wanted.store(false, Ordering::Relaxed);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::READ_BURST;
    use super::*;
    use std::cell::Cell;

    /// HZ-16 C(a): at every fill level and for every batch.
    #[test]
    fn a_stopped_thread_is_woken_once_and_not_before_there_is_room() {
        let capacity = HOST_RING as usize;
        for batch in 1..=READ_BURST {
            let room = Room::default();
            for start in [0, 1, ROOM - 1] {
                let free = Cell::new(start);
                assert!(room.must_wait(|| free.get()));
                let mut woken = Vec::new();
                while free.get() < capacity {
                    free.set((free.get() + batch).min(capacity));
                    if room.is_wake(free.get()) {
                        woken.push(free.get());
                    }
                }
                assert_eq!(woken.len(), 1, "batch {batch}");
                assert!((ROOM..ROOM + batch).contains(&woken[0]), "{woken:?}");
            }
        }
    }

    #[test]
    fn a_thread_that_finds_room_is_not_woken_for_it() {
        let room = Room::default();
        assert!(!room.must_wait(|| ROOM));
        assert!(!room.is_wake(HOST_RING as usize));
        // Room made between the two looks.
        let looks = Cell::new(0);
        let free = || {
            looks.set(looks.get() + 1);
            if looks.get() == 1 { 0 } else { ROOM }
        };
        assert!(!room.must_wait(free));
    }
}
