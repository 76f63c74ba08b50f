//! Transmit queues of one worker: frames are gathered per port and sent in bursts, in order.

use crate::super_packet;
use bng_shm::{Counter, Worker};
use rte_rs::{Burst, Mbuf, Mempool, TxQueue};

/// Frames gathered before a burst is sent at the latest.
pub const TX_BURST: usize = 64;

/// One port's transmit side in one worker.
#[derive(Debug)]
pub struct TxPort {
    queue: TxQueue,
    gathered: Burst<TX_BURST>,
    packets: Counter,
    bytes: Counter,
    /// If it takes TCP super-packets.
    supers: Option<Supers>,
}

/// What a port that takes super-packets needs besides.
#[derive(Debug)]
pub struct Supers {
    /// Most frames in one (M10).
    pub most_frames: u16,
    /// Buffers for the frames of one that the driver refuses.
    pub pool: Mempool,
}

impl TxPort {
    /// The transmit side of an access port (`is_access`) or a core port. `supers` if the port takes TCP
    /// super-packets.
    #[must_use]
    pub fn new(queue: TxQueue, is_access: bool, supers: Option<Supers>) -> Self {
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
            supers,
        }
    }

    /// Whether it takes TCP super-packets of so many frames.
    #[inline]
    #[must_use]
    pub fn takes(&self, frames: usize) -> bool {
        let supers = self.supers.as_ref();
        supers.is_some_and(|supers| frames <= usize::from(supers.most_frames))
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
            if let Some(Supers { pool, .. }) = &mut self.supers {
                transmit_supers(&mut self.queue, &mut self.gathered, counters, pool, shm);
            } else {
                transmit(&mut self.queue, &mut self.gathered, counters, shm);
            }
        }
    }
}

/// As [`transmit`], where super-packets may be among the packets; each counts as its frames (F4, F8). One that the driver
/// refuses (segments too small, or too many) leaves as frames: it would be refused each time it is sent again.
#[inline(never)]
fn transmit_supers<const N: usize>(
    queue: &mut TxQueue,
    burst: &mut Burst<N>,
    counters: (Counter, Counter),
    pool: &mut Mempool,
    shm: &Worker,
) {
    loop {
        let ready = queue.prepare(burst);
        if ready >= burst.len() {
            return transmit_prepared(queue, burst, counters, shm);
        }
        let mut rest: Burst<N> = burst.drain(ready..).collect();
        transmit_prepared(queue, burst, counters, shm);
        if let Some(refused) = rest.pop_at(0) {
            transmit_refused(queue, &refused, counters, pool, shm);
        }
        *burst = rest;
    }
}

/// What the driver does not prepare, as frames.
#[cold]
fn transmit_refused(
    queue: &mut TxQueue,
    refused: &Mbuf,
    counters: (Counter, Counter),
    pool: &mut Mempool,
    shm: &Worker,
) {
    if !refused.is_super() {
        return shm.count(Counter::TxQueueFull, 1);
    }
    let mut frames: Burst<TX_BURST> = Burst::new();
    let cut = super_packet::cut(refused, pool, |frame| {
        if frames.is_full() {
            transmit(queue, &mut frames, counters, shm);
        }
        frames.push(frame.into());
    });
    transmit(queue, &mut frames, counters, shm);
    shm.count(Counter::TxQueueFull, cut.lost as u64);
}

fn transmit_prepared<const N: usize>(
    queue: &mut TxQueue,
    burst: &mut Burst<N>,
    (packets, octets): (Counter, Counter),
    shm: &Worker,
) {
    if burst.is_empty() {
        return;
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
