//! One worker with its ports: lays frames out, runs them through a loop, and measures that.
//!
//! ```text
//!  lay out --feed--> [net_ring] --rx--> loop under test --tx--> net_null       (measured; net_null frees)
//!  check   --feed--> [net_ring] --rx--> pipeline        --tx--> [net_ring] --> read and check
//! ```

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use bng_dataplane::dispatch::Outlets;
use bng_dataplane::fib_mirror::RteFib;
use bng_dataplane::host::FromWorker;
use bng_fastpath::{BURST, Origin, PortRole};
use bng_shm::{Counter, FRAME_MAX, monotonic_ns};
use rte_rs::{Burst, Consumer, Mbuf, Mempool, Producer, RxQueue, TxQueue, ol_flags, tsc};

use super::Direction;
use copies::Copies;
pub(super) use ports::LanePorts;
pub(super) use stages::{Locked, Start};
use stages::{Own, Stages};

mod copies;
mod ports;
mod stages;

/// Packets that are laid out and measured together: the whole bursts that net_ring's ring of 1,024 places holds, one of
/// which stays free.
pub(super) const CHUNK: usize = 31 * BURST;
/// As [`CHUNK`], where frames are copied: as many as a virtio queue of common size. Both ends of the copies and the buffers
/// then fit a core's second-level cache, as they do behind such a port.
const COPIED_CHUNK: usize = 8 * BURST;
/// Bytes of a frame's start that a loop may change, and that are written anew before each pass.
pub(super) const HEAD: usize = 64;

/// The start of a frame, its length and its port.
#[derive(Clone, Debug)]
pub(super) struct Head {
    bytes: [u8; HEAD],
    /// The whole frame, where somebody looks at the rest of it.
    whole: Option<Box<[u8]>>,
    len: u16,
    port: u8,
}

impl Head {
    /// Of a whole frame, which is kept if `whole`.
    pub(super) fn new(frame: &[u8], port: u8, whole: bool) -> Result<Self> {
        let mut bytes = [0; HEAD];
        for (place, byte) in bytes.iter_mut().zip(frame) {
            *place = *byte;
        }
        Ok(Self {
            bytes,
            whole: whole.then(|| frame.into()),
            len: u16::try_from(frame.len())?,
            port,
        })
    }
}

/// What is run over a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// The worker's loop, as it is with coalescing off.
    Pipeline(Direction),
    /// The same with coalescing on.
    Coalesced(Direction),
    /// A loop of the same parts that knows nothing of coalescing.
    Bare(Direction),
    /// The same loop with the plain-IP path in place of PPPoE and NAT.
    Plain(Direction),
    /// MAC addresses exchanged and nothing else.
    MacForward,
}

/// What one pass took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    /// Packets received and sent or dropped.
    pub(super) packets: usize,
    /// Time-stamp ticks.
    pub(super) ticks: u64,
}

/// One worker.
pub(super) struct Lane {
    stages: Stages,
    fib: RteFib,
    feed: TxQueue,
    rx: RxQueue,
    checked_out: Outlets,
    sent: Vec<RxQueue>,
    plain: TxQueue,
    pool: Mempool,
    copies: Option<Copies>,
    /// Whether the port has found all TCP and UDP checksums right.
    verified: bool,
    /// Packets that are laid out and measured together.
    chunk: usize,
    /// Time that passed outside of the pipeline, nanoseconds: the stages' clock stands still meanwhile, or flows would be
    /// seen less often per second than on a worker under full load, and mappings written more often per packet.
    paused_ns: u64,
    paused_since_ns: u64,
    /// Frames from the kernel: there are none, but a worker looks.
    from_host: Consumer,
    /// For frames from control, of which there are none either.
    buffer: Box<[u8; FRAME_MAX]>,
    // The host thread's ends: nothing goes through them here.
    _hosts: ([FromWorker; 2], Producer),
}

impl Lane {
    /// On the lane's own, pinned and registered thread.
    pub(super) fn new(
        start: Start,
        core: usize,
        fib: RteFib,
        ports: LanePorts,
        copy: bool,
        verified: bool,
    ) -> Self {
        let now_ns = monotonic_ns();
        let core = u32::try_from(core).unwrap_or(u32::MAX);
        let stages = start.stages(core, ports.out, &ports.pool, now_ns / 1_000_000);
        let chunk = chunk(copy);
        let copies = copy.then(|| Copies::new(chunk));
        Self {
            stages,
            fib,
            feed: ports.feed,
            rx: ports.rx,
            checked_out: ports.checked_out,
            sent: ports.sent,
            plain: ports.plain,
            pool: ports.pool,
            copies,
            verified,
            chunk,
            paused_ns: 0,
            paused_since_ns: now_ns,
            from_host: ports.from_host.1,
            buffer: Box::new([0; FRAME_MAX]),
            _hosts: (ports.hosts, ports.from_host.0),
        }
    }

    /// Sends `frames` (at most a burst, each with the port it comes from) through receive queue, stages, dispatch and
    /// transmit queue; returns what left on each port, in order, and how many frames did not.
    pub(super) fn through(
        &mut self,
        work: Work,
        frames: &[(u8, Vec<u8>)],
    ) -> Result<Vec<std::vec::IntoIter<Vec<u8>>>> {
        let mut burst: Burst<BURST> = Burst::new();
        for (port, frame) in frames {
            let mut mbuf = self
                .pool
                .alloc_copy(frame)
                .context("no buffer for a frame")?;
            mbuf.set_port(u16::from(*port));
            set_verified(&mut mbuf, self.verified);
            burst.push(mbuf);
        }
        self.feed.burst(&mut burst);
        let got = self.rx.burst(&mut burst);
        if got != frames.len() {
            bail!(
                "{got} of {} frames came out of the receive queue",
                frames.len()
            );
        }
        let now_ns = self.paused_since_ns - self.paused_ns;
        // To where it can be read, and back.
        std::mem::swap(self.stages.parts().1, &mut self.checked_out);
        match (&mut self.stages, work) {
            (Stages::Own(own), Work::Pipeline(way) | Work::Coalesced(way)) => {
                own.turn(matches!(work, Work::Coalesced(_)));
                own.path.poll(now_ns);
                own.path
                    .process(&self.fib, role(way), &mut burst, Origin::Port);
                own.path.quiescent();
                own.turn(false);
            }
            (stages, _) => {
                let verdicts = stages.run(&self.fib, work, &mut burst, now_ns);
                let (shm, out) = stages.parts();
                out.dispatch(&mut burst, &verdicts, shm, now_ns / 1_000_000);
                shm.quiescent();
            }
        }
        std::mem::swap(self.stages.parts().1, &mut self.checked_out);
        let sent = self.sent.iter_mut().map(|queue| {
            queue.burst(&mut burst);
            let frames: Vec<_> = burst.iter().map(|mbuf| mbuf.data().to_vec()).collect();
            Mbuf::free_bulk(&mut burst);
            frames.into_iter()
        });
        let sent: Vec<_> = sent.collect();
        let left: usize = sent.iter().map(ExactSizeIterator::len).sum();
        if left != frames.len() {
            bail!("{left} of {} frames left: {work:?}", frames.len());
        }
        Ok(sent)
    }

    /// Puts a chunk of frames into the receive ring: fresh buffers with the frames' starts, as a device leaves them; with
    /// copies, the frames' starts in the other memory. Not measured.
    pub(super) fn lay_out<'a>(&mut self, heads: &mut impl Iterator<Item = &'a Head>) -> Result<()> {
        let mut burst: Burst<BURST> = Burst::new();
        // What an earlier pass left.
        while self.rx.burst(&mut burst) > 0 {
            Mbuf::free_bulk(&mut burst);
        }
        for first in (0..self.chunk).step_by(BURST) {
            if !self.pool.alloc_bulk(&mut burst, BURST) {
                bail!("the pool is empty: a port keeps frames");
            }
            for (mbuf, slot) in burst.iter_mut().zip(first..) {
                let head = heads.next().context("no flows")?;
                mbuf.set_port(u16::from(head.port));
                set_verified(mbuf, self.verified);
                let len = usize::from(head.len);
                let data = mbuf.append(len).context("frame larger than a buffer")?;
                let place = match &mut self.copies {
                    Some(copies) => copies.place(slot, len),
                    None => data,
                };
                let bytes = head.whole.as_deref().unwrap_or(&head.bytes);
                let start = place.len().min(bytes.len());
                let (place, bytes) = (place.get_mut(..start), bytes.get(..start));
                if let (Some(place), Some(bytes)) = (place, bytes) {
                    place.copy_from_slice(bytes);
                }
            }
            self.feed.burst(&mut burst);
            if !burst.is_empty() {
                bail!("the receive ring is full");
            }
        }
        Ok(())
    }

    /// Runs `work` over the chunk that was laid out, until it is done or another lane sets `stop`. Measured.
    pub(super) fn run(&mut self, work: Work, stop: &AtomicBool) -> Pass {
        match work {
            Work::MacForward => self.mac_forward(stop),
            Work::Pipeline(way) | Work::Coalesced(way) if self.copies.is_none() => {
                if let Stages::Own(own) = &mut self.stages {
                    own.turn(matches!(work, Work::Coalesced(_)));
                }
                let pass = self.product(way, stop);
                if let Stages::Own(own) = &mut self.stages {
                    own.turn(false);
                }
                pass.unwrap_or_else(|| self.bare(work, way, stop))
            }
            Work::Pipeline(way) | Work::Coalesced(way) | Work::Bare(way) | Work::Plain(way) => {
                self.bare(work, way, stop)
            }
        }
    }

    /// A worker's loop around the path all workers use: clock, NAT ageing, receive, stages, coalescer, dispatch, transmit (which
    /// frees), a look for frames from control and from the kernel, counters, epoch echo. Nothing without a path of its own.
    #[inline(never)]
    fn product(&mut self, way: Direction, stop: &AtomicBool) -> Option<Pass> {
        let Stages::Own(Own { path, .. }) = &mut self.stages else {
            return None;
        };
        let (packets, octets) = received(way);
        let mut done = 0;
        let mut burst: Burst<BURST> = Burst::new();
        self.paused_ns += monotonic_ns() - self.paused_since_ns;
        let start = tsc();
        let mut last = start;
        while done < self.chunk && !stop.load(Ordering::Relaxed) {
            self.fib.follow();
            path.poll(monotonic_ns() - self.paused_ns);
            let (frames, bytes) = receive(&mut self.rx, &mut burst);
            let shm = path.shm();
            shm.count(packets, frames as u64);
            shm.count(octets, bytes);
            path.process(&self.fib, role(way), &mut burst, Origin::Port);
            black_box(path.inject());
            self.from_host.dequeue_burst(&mut burst);
            let shm = path.fast.shm_mut();
            shm.count(Counter::Loops, 1);
            shm.pay_bell();
            path.quiescent();
            let now = tsc();
            path.shm().count(Counter::BusyCycles, now - last);
            last = now;
            done += frames;
        }
        Some(self.pass(done, start, stop))
    }

    /// The same of its parts, for what the product does not do: without a coalescer and its branch, with copies, with a lock,
    /// with the plain-IP path.
    #[inline(never)]
    fn bare(&mut self, work: Work, way: Direction, stop: &AtomicBool) -> Pass {
        let (packets, octets) = received(way);
        let mut done = 0;
        let mut burst: Burst<BURST> = Burst::new();
        self.paused_ns += monotonic_ns() - self.paused_since_ns;
        let start = tsc();
        let mut last = start;
        while done < self.chunk && !stop.load(Ordering::Relaxed) {
            self.fib.follow();
            let now_ns = monotonic_ns() - self.paused_ns;
            let (frames, bytes) = receive(&mut self.rx, &mut burst);
            if let Some(copies) = &mut self.copies {
                copies.into(&mut burst, done);
            }
            let verdicts = self.stages.run(&self.fib, work, &mut burst, now_ns);
            if let Some(copies) = &mut self.copies {
                copies.out_of(&burst, done);
            }
            let (shm, _) = self.stages.parts();
            shm.count(packets, frames as u64);
            shm.count(octets, bytes);
            self.stages.inject(&mut self.buffer);
            let (shm, out) = self.stages.parts();
            out.dispatch(&mut burst, &verdicts, shm, now_ns / 1_000_000);
            self.stages.inject(&mut self.buffer);
            self.from_host.dequeue_burst(&mut burst);
            let (shm, _) = self.stages.parts();
            shm.count(Counter::Loops, 1);
            shm.pay_bell();
            shm.quiescent();
            let now = tsc();
            shm.count(Counter::BusyCycles, now - last);
            last = now;
            done += frames;
        }
        self.pass(done, start, stop)
    }

    /// Ends a pass.
    fn pass(&mut self, packets: usize, start: u64, stop: &AtomicBool) -> Pass {
        let ticks = tsc() - start;
        stop.store(true, Ordering::Relaxed);
        self.paused_since_ns = monotonic_ns();
        Pass { packets, ticks }
    }

    /// The reference: receive, exchange MAC addresses, transmit (which frees).
    #[inline(never)]
    fn mac_forward(&mut self, stop: &AtomicBool) -> Pass {
        /// How far ahead frames are prefetched, as in the stages.
        const AHEAD: usize = 8;
        let mut done = 0;
        let mut burst: Burst<BURST> = Burst::new();
        let start = tsc();
        while done < self.chunk && !stop.load(Ordering::Relaxed) {
            let frames = self.rx.burst(&mut burst);
            if let Some(copies) = &mut self.copies {
                copies.into(&mut burst, done);
            }
            burst.iter().take(AHEAD).for_each(Mbuf::prefetch_data);
            for at in 0..burst.len() {
                if let Some(next) = burst.get(at + AHEAD) {
                    next.prefetch_data();
                }
                if let Some(mbuf) = burst.get_mut(at)
                    && let Some(macs) = mbuf.data_mut().first_chunk_mut::<12>()
                {
                    let [a, b, c, d, e, f, g, h, i, j, k, l] = *macs;
                    *macs = [g, h, i, j, k, l, a, b, c, d, e, f];
                }
            }
            if let Some(copies) = &mut self.copies {
                copies.out_of(&burst, done);
            }
            self.plain.burst(&mut burst);
            Mbuf::free_bulk(&mut burst);
            done += frames;
        }
        let ticks = tsc() - start;
        stop.store(true, Ordering::Relaxed);
        Pass {
            packets: done,
            ticks,
        }
    }

    /// Live NAT mappings.
    pub(super) fn nat_mappings(&self) -> u32 {
        match &self.stages {
            Stages::Own(own) => own.path.fast.nat_mappings(),
            Stages::Shared(locked, ..) => locked.lock().fast.nat_mappings(),
        }
    }
}

/// Counters of what is received.
const fn received(way: Direction) -> (Counter, Counter) {
    match way {
        Direction::Up => (Counter::RxAccess, Counter::RxAccessBytes),
        Direction::Down => (Counter::RxCore, Counter::RxCoreBytes),
    }
}

/// Role of the ports frames of a direction come from.
const fn role(way: Direction) -> PortRole {
    match way {
        Direction::Up => PortRole::Access { index: 0 },
        Direction::Down => PortRole::Core,
    }
}

/// A receive burst, and what a worker does with it first; returns frames and bytes.
#[inline(always)]
fn receive(rx: &mut RxQueue, burst: &mut Burst<BURST>) -> (usize, u64) {
    let frames = rx.burst(burst);
    let mut bytes = 0;
    for mbuf in burst {
        // The worker writes its port's number here, which is the one that is there.
        let port = mbuf.port();
        mbuf.set_port(black_box(port));
        bytes += mbuf.len() as u64;
    }
    (frames, bytes)
}

/// What a port says that verifies TCP and UDP checksums.
#[inline]
fn set_verified(mbuf: &mut Mbuf, verified: bool) {
    if verified {
        mbuf.set_ol_flags(ol_flags::RX_L4_CKSUM_GOOD);
    }
}

/// Packets that are laid out and measured together.
pub(super) const fn chunk(copy: bool) -> usize {
    if copy { COPIED_CHUNK } else { CHUNK }
}
