//! Transmit queues of one worker: frames are gathered per port and sent in bursts, in order.

use bng_shm::{Counter, Worker};
use rte_rs::{Burst, Mbuf, TxQueue};

/// Frames gathered before a burst is sent at the latest.
pub const TX_BURST: usize = 64;

/// One port's transmit side in one worker.
#[derive(Debug)]
pub struct TxPort {
    queue: TxQueue,
    gathered: Burst<TX_BURST>,
    packets: Counter,
    bytes: Counter,
}

impl TxPort {
    /// The transmit side of an access port (`is_access`) or a core port.
    #[must_use]
    pub fn new(queue: TxQueue, is_access: bool) -> Self {
        let (packets, bytes) = if is_access {
            (Counter::TxAccess, Counter::TxAccessBytes)
        } else {
            (Counter::TxCore, Counter::TxCoreBytes)
        };
        Self {
            queue,
            gathered: Burst::new(),
            packets,
            bytes,
        }
    }

    /// Adds a frame; sends the burst when it is full.
    #[inline]
    pub fn push(&mut self, mbuf: Mbuf, shm: &Worker) {
        if self.gathered.is_full() {
            self.flush(shm);
        }
        self.gathered.push(mbuf);
    }

    /// Sends what was gathered. What the device does not take is dropped as `tx_queue_full`.
    #[inline]
    pub fn flush(&mut self, shm: &Worker) {
        if self.gathered.is_empty() {
            return;
        }
        let bytes: usize = self.gathered.iter().map(Mbuf::len).sum();
        let sent = self.queue.burst(&mut self.gathered);
        let mut unsent_bytes = 0;
        if !self.gathered.is_empty() {
            unsent_bytes = self.gathered.iter().map(Mbuf::len).sum();
            shm.count(Counter::TxQueueFull, self.gathered.len() as u64);
            Mbuf::free_bulk(&mut self.gathered);
        }
        shm.count(self.packets, sent as u64);
        shm.count(self.bytes, (bytes - unsent_bytes) as u64);
    }
}
