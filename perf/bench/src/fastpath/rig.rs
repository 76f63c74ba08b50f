//! The pipeline with everything around it that a worker has: shared tables, DPDK FIB, mbufs, transmit queues.

use std::net::Ipv4Addr;

use anyhow::{Context, Result, bail};
use bng_dataplane::dispatch::Outlets;
use bng_dataplane::fib_mirror::{FibMirror, RteFib};
use bng_dataplane::frame::Frame;
use bng_dataplane::host::HostBell;
use bng_dataplane::tx::TxPort;
use bng_fastpath::{BURST, FastPath, NatTimers, Origin, Port, PortRole, Settings, Verdict};
use bng_shm::{
    Adjacency, BlockOwner, Capacities, Counter, Dataplane, NextHopId, Policy, PolicyId, PoolRange,
    Publisher, RangeKind, Record, Route, Session, SessionState, Vlans, monotonic_ms,
};
use rte_rs::{
    Burst, Consumer, Eal, EalArgs, Mbuf, Memory, Mempool, MempoolConfig, PortConfig, RingConfig,
    TxQueue, sp_sc_ring, tsc,
};

use super::flows::{CORE_MAC, FIRST_PORT, NEXT_HOP_MAC, Shape, access_mac};

/// Bursts whose frames are laid out together and timed together: as many packets as a common receive ring holds.
/// The policy of all sessions.
const POLICY: PolicyId = PolicyId(1);
const CHUNK_BURSTS: usize = 32;
/// Packets in a chunk.
pub(super) const CHUNK: usize = CHUNK_BURSTS * BURST;
/// Buffers in the pool.
const BUFFERS: u32 = 8_191;
/// MTU of sessions and ports, bytes of IP.
const MTU: u16 = 1_492;
/// Bytes of a frame's start that the pipeline may change, and that are written anew before each pass.
pub(super) const HEAD: usize = 64;

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Up,
    Down,
}

impl Direction {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// The start of a frame, its length and its port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    bytes: [u8; HEAD],
    len: u16,
    port: u8,
}

impl Head {
    /// Of a whole frame.
    pub(super) fn new(frame: &[u8], port: u8) -> Result<Self> {
        let mut bytes = [0; HEAD];
        for (place, byte) in bytes.iter_mut().zip(frame) {
            *place = *byte;
        }
        Ok(Self {
            bytes,
            len: u16::try_from(frame.len())?,
            port,
        })
    }
}

/// Where the memory of buffers comes from.
pub(super) struct Platform {
    pub(super) eal: Eal,
    pub(super) core: usize,
    pub(super) memory: &'static str,
}

impl Platform {
    /// Starts EAL on `core`; the calling thread becomes its main lcore and is pinned there.
    pub(super) fn start(core: Option<usize>, hugepages: bool) -> Result<Self> {
        let cores = core_affinity::get_core_ids().context("cannot tell which cores are allowed")?;
        let core = match core {
            Some(core) if cores.iter().any(|id| id.id == core) => core,
            Some(core) => bail!("core {core} is not available to this process"),
            // The last one: the first serves most interrupts.
            None => cores.last().context("no core is allowed")?.id,
        };
        let (memory, name) = if hugepages {
            (Memory::HugepagesUnlinked, "huge pages")
        } else {
            (Memory::NoHugepages { mib: 512 }, "4 KiB pages")
        };
        let arguments = EalArgs::new(&format!("bng-perf-{}", std::process::id()))
            .lcore_map(&format!("0@{core}"))
            .memory(memory)
            .pci(false)
            .telemetry(false)
            .log_level("*:warning");
        let eal = Eal::init(&arguments)?;
        Ok(Self {
            eal,
            core,
            memory: name,
        })
    }
}

/// Whether the machine has enough free huge pages for the benchmark.
pub(super) fn hugepages_free() -> bool {
    let field = |text: &str, name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0)
    };
    std::fs::read_to_string("/proc/meminfo").is_ok_and(|text| {
        let kib = field(&text, "HugePages_Free:") * field(&text, "Hugepagesize:");
        kib >= 256 << 10
    })
}

/// Everything of one worker.
pub(super) struct Rig {
    fast: FastPath,
    fib: RteFib,
    out: Outlets,
    /// Transmit queue of the MAC-forward loop, on the same port.
    plain: TxQueue,
    pool: Mempool,
    chunk: Vec<Burst<BURST>>,
    /// Ticks of the time-stamp counter a millisecond.
    ticks_per_ms: u64,
    /// When the rig was made, CLOCK_MONOTONIC milliseconds.
    started_ms: u64,
    /// Ticks the pipeline has worked since.
    worked: u64,
    publisher: Publisher,
    // Kept for as long as the worker's side: the FIB's one writer and the ends of what it was given.
    _dataplane: Dataplane,
    _routes: FibMirror,
    _host: Consumer,
}

fn publish(publisher: &mut Publisher, shape: &Shape) -> Result<()> {
    let (first, last) = shape.public();
    let (first_subscriber, last_subscriber) = shape.subscribers();
    publisher.publish_pools(&[
        PoolRange {
            kind: RangeKind::Nat,
            first,
            last,
            base: 0,
            block_size: shape.block,
            first_port: FIRST_PORT,
        },
        PoolRange {
            kind: RangeKind::Subscriber,
            first: first_subscriber,
            last: last_subscriber,
            base: 0,
            block_size: 0,
            first_port: 0,
        },
    ])?;
    publisher.write_policy(POLICY, Some(&Policy::default()))?;
    for index in 0..shape.sessions {
        let subscriber = shape.subscriber(index);
        let session = Session {
            generation: 0,
            state: SessionState::Forwarding,
            owner: 0,
            client_mac: subscriber.mac.0,
            vlans: Vlans::default(),
            mtu: MTU,
            framed_ip: subscriber.address,
            gateway_ip: Ipv4Addr::new(100, 127, 255, 254),
            nat: Some(subscriber.block),
            policy: POLICY,
            ..Session::NONE
        };
        let generation =
            publisher.publish_session(subscriber.slot, &session, &Record::default())?;
        let owner = BlockOwner {
            slot: subscriber.slot,
            generation,
        };
        publisher.set_block_owner(&subscriber.block, Some(owner))?;
    }
    let gateway = NextHopId(1);
    publisher.set_next_hop(
        gateway,
        Ipv4Addr::new(192, 0, 2, 1).into(),
        Adjacency::Neighbour {
            port: shape.core_port(),
            mac: NEXT_HOP_MAC.0,
        },
    )?;
    publisher.publish_routes(&[Route {
        prefix: Ipv4Addr::UNSPECIFIED,
        length: 0,
        next_hop: gateway,
    }])?;
    Ok(())
}

fn ports(shape: &Shape) -> Vec<Port> {
    let access = (0..shape.access_ports).map(|index| Port {
        mac: access_mac(index),
        mtu: MTU,
        role: PortRole::Access { index },
    });
    let core = Port {
        mac: CORE_MAC,
        mtu: MTU,
        role: PortRole::Core,
    };
    access.chain([core]).collect()
}

impl Rig {
    /// Fills the tables and makes the pipeline.
    pub(super) fn new(platform: &Platform, shape: &Shape, seed: u64) -> Result<Self> {
        let eal = &platform.eal;
        let all_ports = ports(shape);
        let capacities = Capacities {
            access_ports: u32::from(shape.access_ports),
            ports: all_ports.len() as u32,
            workers: 1,
            nat_addresses: shape.public_addresses,
            framed_addresses: 0,
            framed_prefixes: 0,
            routes: 1_024,
            routes6: 1,
            next_hops: 1_024,
        };
        let (mut dataplane, mut publisher) = Dataplane::in_process(capacities)?;
        publish(&mut publisher, shape)?;
        let (mut routes, fib) = FibMirror::new(eal, capacities.routes)?;
        if routes.refresh(&dataplane.reader()).is_none() || routes.is_empty() {
            bail!("the default route did not reach the FIB");
        }
        let pool = Mempool::create(eal, &MempoolConfig::new("frames", BUFFERS))?;
        let mut null = rte_rs::Port::probe(eal, "net_null0")?;
        let queues = all_ports.len() as u16 + 1;
        null.configure(
            &PortConfig {
                tx_queues: queues,
                ..PortConfig::default()
            },
            &pool,
        )?;
        let mut queues = null.start()?.tx.into_iter();
        let tx = all_ports
            .iter()
            .zip(&mut queues)
            .map(|(port, queue)| TxPort::new(queue, port.role != PortRole::Core))
            .collect();
        let plain = queues
            .next()
            .context("net_null has too few transmit queues")?;
        let (host, host_end) = sp_sc_ring(
            eal,
            &RingConfig {
                name: "host".to_owned(),
                capacity: 64,
                numa_node: None,
            },
        )?;
        let shm = dataplane.worker(0).context("worker 0 is taken")?;
        shm.enter(u32::try_from(platform.core).unwrap_or(u32::MAX));
        let started_ms = monotonic_ms();
        let settings = Settings {
            ports: all_ports,
            nat_mappings: shape.flows.saturating_mul(2).max(65_536),
            nat_timers: NatTimers::default(),
            echo_per_second: 100,
            resolve_per_second: 100,
            punts_per_second: 100,
            icmp_errors_per_second: 100,
            seed,
        };
        Ok(Self {
            fast: FastPath::new(shm, &settings, started_ms),
            fib,
            out: Outlets {
                tx,
                handover: vec![None],
                fragments: pool.clone(),
                host,
                host_bell: HostBell::new()?,
            },
            plain,
            pool,
            chunk: (0..CHUNK_BURSTS).map(|_| Burst::new()).collect(),
            ticks_per_ms: (eal.tsc_hz() / 1_000).max(1),
            started_ms,
            worked: 0,
            publisher,
            _dataplane: dataplane,
            _routes: routes,
            _host: host_end,
        })
    }

    /// One packet alone, not timed and not sent: its verdict and what it became.
    pub(super) fn single(
        &mut self,
        direction: Direction,
        frame: &[u8],
        port: u8,
    ) -> Result<(Verdict, Mbuf)> {
        let mut mbuf = self
            .pool
            .alloc_copy(frame)
            .context("no buffer for a frame")?;
        mbuf.set_port(u16::from(port));
        let mut burst: Burst<BURST> = Burst::new();
        burst.push(mbuf);
        self.fast.poll(self.started_ms * 1_000_000);
        let [verdict, ..] = process(&mut self.fast, &self.fib, direction, &mut burst);
        self.fast.shm().quiescent();
        Ok((verdict, burst.pop().context("the frame is gone")?))
    }

    /// Lays out a chunk: fresh buffers with the frames' starts, as a device leaves them. Not timed.
    pub(super) fn lay_out<'a>(&mut self, heads: &mut impl Iterator<Item = &'a Head>) -> Result<()> {
        for burst in &mut self.chunk {
            Mbuf::free_bulk(burst);
            if !self.pool.alloc_bulk(burst, BURST) {
                bail!("the pool of {BUFFERS} buffers is empty: the port keeps frames");
            }
            for mbuf in burst {
                let head = heads.next().context("no flows")?;
                mbuf.set_port(u16::from(head.port));
                let data = mbuf
                    .append(usize::from(head.len))
                    .context("frame larger than a buffer")?;
                if let Some(start) = data.first_chunk_mut::<HEAD>() {
                    *start = head.bytes;
                } else {
                    let len = data.len();
                    data.copy_from_slice(head.bytes.get(..len).unwrap_or(&[]));
                }
            }
        }
        Ok(())
    }

    /// A worker's loop over the chunk, but for the receive queue: clock, NAT ageing, stages, dispatch, transmit and
    /// free, counters, epoch echo. Returns time-stamp ticks.
    ///
    /// The clock is read for its cost, but the stages see one that stands still between chunks: a worker under full
    /// load has no such pauses, and mappings, whose time of last use is written once in four seconds, would be written
    /// more often per packet than in life.
    #[inline(never)]
    pub(super) fn forward(&mut self, direction: Direction) -> u64 {
        let (packets, octets) = match direction {
            Direction::Up => (Counter::RxAccess, Counter::RxAccessBytes),
            Direction::Down => (Counter::RxCore, Counter::RxCoreBytes),
        };
        let now_ms = self.started_ms + self.worked / self.ticks_per_ms;
        let start = tsc();
        for burst in &mut self.chunk {
            std::hint::black_box(monotonic_ms());
            self.fast.poll(now_ms * 1_000_000);
            let mut bytes = 0;
            let frames = burst.len() as u64;
            for mbuf in burst.iter_mut() {
                let port = mbuf.port();
                mbuf.set_port(std::hint::black_box(port));
                bytes += mbuf.len() as u64;
            }
            let verdicts = process(&mut self.fast, &self.fib, direction, burst);
            let shm = self.fast.shm_mut();
            shm.count(packets, frames);
            shm.count(octets, bytes);
            self.out.dispatch(burst, &verdicts, shm, now_ms);
            shm.count(Counter::Loops, 1);
            shm.pay_bell();
            shm.quiescent();
        }
        let ticks = tsc() - start;
        self.worked += ticks;
        ticks
    }

    /// The reference: exchanges the MAC addresses of the chunk's frames, transmits and frees. Returns time-stamp ticks.
    #[inline(never)]
    pub(super) fn mac_forward(&mut self) -> u64 {
        /// How far ahead frames are prefetched, as in the stages.
        const AHEAD: usize = 8;
        let start = tsc();
        for burst in &mut self.chunk {
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
            self.plain.burst(burst);
            Mbuf::free_bulk(burst);
        }
        tsc() - start
    }

    /// Packets forwarded so far, as the worker counts them for everybody.
    pub(super) fn forwarded(&self, direction: Direction) -> u64 {
        let counter = match direction {
            Direction::Up => Counter::ForwardedUpstream,
            Direction::Down => Counter::ForwardedDownstream,
        };
        self.publisher
            .worker_status(0)
            .and_then(|status| status.counters.get(counter.index()).copied())
            .unwrap_or(0)
    }

    /// Live NAT mappings.
    pub(super) fn nat_mappings(&self) -> u32 {
        self.fast.nat_mappings()
    }
}

/// The stages over a burst of one direction.
#[inline]
fn process(
    fast: &mut FastPath,
    fib: &RteFib,
    direction: Direction,
    burst: &mut Burst<BURST>,
) -> [Verdict; BURST] {
    let mut verdicts = [Verdict::Drop(Counter::NotForUs); BURST];
    let frames = Frame::of_burst(burst);
    match direction {
        Direction::Up => fast.upstream(fib, frames, &mut verdicts, Origin::Port),
        Direction::Down => fast.downstream(frames, &mut verdicts, Origin::Port),
    }
    verdicts
}
