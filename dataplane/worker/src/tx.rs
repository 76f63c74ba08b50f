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
    /// Whether it takes TCP super-packets.
    segments: bool,
}

impl TxPort {
    /// The transmit side of an access port (`is_access`) or a core port. `segments` says whether the port takes TCP
    /// super-packets.
    #[must_use]
    pub fn new(queue: TxQueue, is_access: bool, segments: bool) -> Self {
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
            segments,
        }
    }

    /// Whether it takes TCP super-packets.
    #[inline]
    #[must_use]
    pub fn segments(&self) -> bool {
        self.segments
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
        let counters = (self.packets, self.bytes);
        // None of these is a super-packet.
        transmit(&mut self.queue, burst, counters, shm);
    }

    /// Sends what was gathered.
    #[inline]
    pub fn flush(&mut self, shm: &Worker) {
        if !self.gathered.is_empty() {
            let counters = (self.packets, self.bytes);
            if self.segments {
                transmit_supers(&mut self.queue, &mut self.gathered, counters, shm);
            } else {
                transmit(&mut self.queue, &mut self.gathered, counters, shm);
            }
        }
    }
}

/// As [`transmit`], where super-packets may be among the packets; each counts as its frames (F4, F8).
#[inline(never)]
fn transmit_supers<const N: usize>(
    queue: &mut TxQueue,
    burst: &mut Burst<N>,
    (packets, octets): (Counter, Counter),
    shm: &Worker,
) {
    let mut ready = 0;
    loop {
        ready = queue.prepare(burst).max(ready);
        if ready >= burst.len() {
            break;
        }
        // The driver cannot send this one; the others can go.
        let mut refused: Burst<1> = burst.drain(ready..=ready).collect();
        drop_unsent(&mut refused, shm);
    }
    let all = Load::of(burst);
    queue.burst(burst);
    let left = Load::of(burst);
    if !burst.is_empty() {
        drop_unsent(burst, shm);
    }
    shm.count(packets, all.frames - left.frames);
    shm.count(octets, all.bytes - left.bytes);
    shm.count(Counter::SuperSent, all.supers - left.supers);
}

fn drop_unsent<const N: usize>(burst: &mut Burst<N>, shm: &Worker) {
    shm.count(Counter::TxQueueFull, Load::of(burst).frames);
    Mbuf::free_bulk(burst);
}

/// What packets stand for.
#[derive(Debug, Default)]
struct Load {
    frames: u64,
    bytes: u64,
    supers: u64,
}

impl Load {
    fn of(mbufs: &[Mbuf]) -> Self {
        mbufs.iter().fold(Self::default(), |sum, mbuf| Self {
            frames: sum.frames + u64::from(mbuf.frames()),
            bytes: sum.bytes + mbuf.frame_bytes(),
            supers: sum.supers + u64::from(mbuf.is_super()),
        })
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
