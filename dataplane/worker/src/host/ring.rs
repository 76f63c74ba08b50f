//! The ring from a worker to the host thread: bounded in frames, of which an entry may stand for many (F5).

use rte_rs::{Burst, Consumer, Producer};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Frames that the host thread has taken out, ever; of a cache line of its own, and written by that thread alone.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Taken(AtomicU64);

/// The worker's end.
#[derive(Debug)]
pub struct ToHost {
    ring: Producer,
    /// Frames it may hold.
    capacity: u64,
    /// Frames put in, ever.
    put: u64,
    taken: Arc<Taken>,
}

/// The host thread's end.
#[derive(Debug)]
pub struct FromWorker {
    ring: Consumer,
    frames: u64,
    taken: Arc<Taken>,
}

/// Makes an empty ring count frames: it then holds as many of them as it has entries.
#[must_use]
pub fn host_ring((put, take): (Producer, Consumer)) -> (ToHost, FromWorker) {
    let taken = Arc::new(Taken::default());
    let to = ToHost {
        capacity: put.free() as u64,
        ring: put,
        put: 0,
        taken: Arc::clone(&taken),
    };
    let from = FromWorker {
        ring: take,
        frames: 0,
        taken,
    };
    (to, from)
}

impl ToHost {
    /// Puts packets from the front of `burst` in, as long as all their frames find room; the rest stays there, in order.
    pub fn enqueue_burst<const N: usize>(&mut self, burst: &mut Burst<N>) {
        let taken = self.taken.0.load(Ordering::Acquire);
        let held = self.put.saturating_sub(taken);
        let mut room = self.capacity.saturating_sub(held);
        let before = room;
        let fitting = burst.iter().take_while(|mbuf| {
            let left = room.checked_sub(u64::from(mbuf.frames()));
            room = left.unwrap_or(room);
            left.is_some()
        });
        let fitting = fitting.count();
        if fitting == burst.len() {
            self.ring.enqueue_burst(burst);
        } else if fitting > 0 {
            let mut front: Burst<N> = burst.drain(..fitting).collect();
            self.ring.enqueue_burst(&mut front);
        }
        // There are no more entries than frames, so the ring took all.
        self.put += before - room;
    }
}

impl FromWorker {
    /// Appends packets to `burst`, as many as it has room for; never waits. Returns how many.
    pub fn dequeue_burst<const N: usize>(&mut self, burst: &mut Burst<N>) -> usize {
        let held = burst.len();
        let count = self.ring.dequeue_burst(burst);
        if count > 0 {
            let new = burst.iter().skip(held);
            self.frames += new.map(|mbuf| u64::from(mbuf.frames())).sum::<u64>();
            self.taken.0.store(self.frames, Ordering::Release);
        }
        count
    }

    /// Packets in the ring.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ring.count()
    }
}
