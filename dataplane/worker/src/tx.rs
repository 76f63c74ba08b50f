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

    /// Sends a whole burst, behind what was gathered; it is empty afterwards.
    #[inline]
    pub fn send<const N: usize>(&mut self, burst: &mut Burst<N>, shm: &Worker) {
        self.flush(shm);
        transmit(&mut self.queue, burst, (self.packets, self.bytes), shm);
    }

    /// Sends what was gathered.
    #[inline]
    pub fn flush(&mut self, shm: &Worker) {
        if !self.gathered.is_empty() {
            let counters = (self.packets, self.bytes);
            transmit(&mut self.queue, &mut self.gathered, counters, shm);
        }
    }
}

/// Sends a burst. What the device does not take is dropped as `tx_queue_full`.
fn transmit<const N: usize>(
    queue: &mut TxQueue,
    burst: &mut Burst<N>,
    (packets, octets): (Counter, Counter),
    shm: &Worker,
) {
    let bytes: usize = burst.iter().map(Mbuf::len).sum();
    let sent = queue.burst(burst);
    let mut unsent_bytes = 0;
    if !burst.is_empty() {
        unsent_bytes = burst.iter().map(Mbuf::len).sum();
        shm.count(Counter::TxQueueFull, burst.len() as u64);
        Mbuf::free_bulk(burst);
    }
    shm.count(packets, sent as u64);
    shm.count(octets, (bytes - unsent_bytes) as u64);
}
