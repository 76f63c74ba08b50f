//! One worker's fast path.

use std::cell::Cell;
use std::sync::Arc;

use bng_shm::{Counter, Meter, Worker};

use crate::buffer::{BURST, PacketBuf};
use crate::burst::Burst;
use crate::coalesce::Hints;
use crate::destination::Ranges;
use crate::fib::{Fib4, Fib6};
use crate::filter::Filters;
use crate::first_fragments::FirstFragments;
use crate::nat_age::NatTimers;
use crate::nat_other::OtherProtocols;
use crate::nat_usage::NatLimits;
use crate::nat44::Nat;
use crate::ports::{Port, Ports};
use crate::rate::RateLimit;
use crate::resolve::Resolver;
use crate::verdict::{Origin, Step, Verdict, drop};
use crate::vlans::VlanRange;
use crate::{downstream, punt_limit, upstream, usual, v6};

/// What a worker is started with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// All ports, by index, as in the configuration.
    pub ports: Vec<Port>,
    /// VLANs served on each port, by its index; every VLAN where there are none or the index is missing.
    pub vlans: Vec<Vec<VlanRange>>,
    /// NAT mappings this worker has room for. Memory: 32 bytes each, rounded up to a power of two.
    pub nat_mappings: u32,
    /// Timers of NAT mappings.
    pub nat_timers: NatTimers,
    /// Limits on the mappings of one subscriber.
    pub nat_limits: NatLimits,
    /// ICMP echo requests to the gateway address answered per second.
    pub echo_per_second: u32,
    /// Requests to resolve a neighbour per second.
    pub resolve_per_second: u32,
    /// PPP control frames of one session punted per second, and at once; 0 for no limit.
    pub punts_per_second: u32,
    /// ICMP and ICMPv6 errors sent per second to subscribers, and as many to the core.
    pub icmp_errors_per_second: u32,
    /// Notes about first fragments: one table for all workers.
    pub fragments: Arc<FirstFragments>,
    /// Who gets which protocols without ports: one table for all workers.
    pub other_protocols: Arc<OtherProtocols>,
    /// Secret of the mapping table's hash and of the port choice; random, new at every start.
    pub seed: u64,
}

/// One worker's fast path: the tables it reads and the state it owns.
#[derive(Debug)]
pub struct FastPath {
    stages: Stages,
    upstream: Box<[usual::upstream::Fact; BURST]>,
    downstream: Box<[usual::downstream::Fact; BURST]>,
    ipv6: v6::Facts,
}

/// What the stages work with.
#[derive(Debug)]
pub(crate) struct Stages {
    pub(crate) shm: Worker,
    pub(crate) ports: Ports,
    pub(crate) ranges: Ranges,
    pub(crate) nat: Nat,
    pub(crate) echo_limit: RateLimit,
    pub(crate) resolver: Resolver,
    pub(crate) filters: Filters,
    pub(crate) firsts: Arc<FirstFragments>,
    pub(crate) others: Arc<OtherProtocols>,
    pub(crate) punt_meter: Meter,
    /// Of errors to the core, and to subscribers.
    pub(crate) icmp_limits: [RateLimit; 2],
    pub(crate) now_ms: u64,
    pub(crate) now_ns: u64,
    /// Packets of the burst in hand that the IPv4 passes have set aside as IPv6, one bit each.
    pub(crate) aside: Cell<u32>,
}

impl Stages {
    /// Leaves the packet at place `at` of the burst to the IPv6 passes. Its verdict is theirs to write.
    #[inline]
    pub(crate) fn set_aside<T>(&self, at: u8) -> Step<T> {
        self.aside.set(self.aside.get() | 1 << (at & 31));
        drop(Counter::Ipv6Header)
    }
}

const _: () = assert!(
    BURST == u32::BITS as usize,
    "one bit of `aside` for each packet"
);

impl FastPath {
    /// Takes over the worker's side of the shared memory and recovers the NAT mappings of its sessions from there.
    /// Called on the worker's own, pinned thread (the tables' memory comes from its NUMA node), after
    /// [`Worker::enter`]. `now_ms` is CLOCK_MONOTONIC in milliseconds.
    #[must_use]
    pub fn new(shm: Worker, settings: &Settings, now_ms: u64) -> Self {
        let slots = shm.reader().capacities().session_slots();
        let mut nat = Nat::new(
            settings.nat_mappings,
            slots,
            &settings.nat_timers,
            settings.nat_limits,
            settings.seed,
        );
        nat.recover(&shm, now_ms);
        let mut ranges = Ranges::default();
        ranges.refresh(shm.reader());
        let mut filters = Filters::default();
        filters.refresh(shm.reader());
        shm.set_nat_mappings(nat.table.len());
        let stages = Stages {
            shm,
            ports: Ports::new(&settings.ports, &settings.vlans),
            ranges,
            nat,
            echo_limit: RateLimit::new(settings.echo_per_second, now_ms),
            resolver: Resolver::new(settings.resolve_per_second, now_ms),
            filters,
            firsts: Arc::clone(&settings.fragments),
            others: Arc::clone(&settings.other_protocols),
            punt_meter: punt_limit::meter(settings.punts_per_second),
            icmp_limits: [(); 2].map(|()| RateLimit::new(settings.icmp_errors_per_second, now_ms)),
            now_ms,
            now_ns: now_ms * 1_000_000,
            aside: Cell::new(0),
        };
        Self {
            stages,
            upstream: Box::new([usual::upstream::Fact::EMPTY; BURST]),
            downstream: Box::new([usual::downstream::Fact::EMPTY; BURST]),
            ipv6: v6::Facts::default(),
        }
    }

    /// Once per poll loop: sets the clock (CLOCK_MONOTONIC in nanoseconds, never backwards), takes over changed
    /// address ranges and filters, and ages a bounded number of NAT mappings.
    #[inline]
    pub fn poll(&mut self, now_ns: u64) {
        self.stages.now_ns = now_ns;
        let now_ms = now_ns / 1_000_000;
        let Stages {
            shm,
            nat,
            ranges,
            filters,
            now_ms: clock,
            ..
        } = &mut self.stages;
        nat.age(shm, now_ms);
        if now_ms != *clock {
            *clock = now_ms;
            shm.set_nat_mappings(nat.table.len());
        }
        ranges.refresh(shm.reader());
        filters.refresh(shm.reader());
    }

    /// Runs buffers from access ports through the stages. `verdicts` has at least as many places as there are
    /// buffers; buffer `i` gets `verdicts[i]`. Buffers are rewritten only when the verdict is
    /// [`Verdict::Forward`] or [`Verdict::Fragment`] (a dropped buffer's content is unspecified).
    pub fn upstream<B: PacketBuf, F: Fib4 + Fib6>(
        &mut self,
        fib: &F,
        bufs: &mut [B],
        verdicts: &mut [Verdict],
        origin: Origin,
    ) {
        for mut burst in bursts(bufs, verdicts) {
            self.burst_up::<B, F, false>(fib, &mut burst, origin, &Hints::NONE);
        }
    }

    /// As [`Self::upstream`], for at most [`BURST`] buffers as they were when a
    /// [`Coalescer`](crate::coalesce::Coalescer) observed them and gave these hints. Only the time it takes is another.
    pub fn upstream_with<B: PacketBuf, F: Fib4 + Fib6>(
        &mut self,
        fib: &F,
        bufs: &mut [B],
        verdicts: &mut [Verdict],
        origin: Origin,
        hints: &Hints,
    ) {
        let mut hints = Some(hints);
        for mut burst in bursts(bufs, verdicts) {
            let hints = hints.take().unwrap_or(&Hints::NONE);
            self.burst_up::<B, F, true>(fib, &mut burst, origin, hints);
        }
    }

    #[inline]
    fn burst_up<B: PacketBuf, F: Fib4 + Fib6, const HINTED: bool>(
        &mut self,
        fib: &F,
        burst: &mut Burst<'_, B>,
        origin: Origin,
        hints: &Hints,
    ) {
        let Self {
            stages,
            upstream,
            ipv6,
            ..
        } = self;
        let forwarded = upstream::run::<B, F, HINTED>(stages, upstream, fib, burst, origin, hints);
        let forwarded = forwarded + v6::upstream::run(stages, ipv6, fib, burst, origin);
        self.settle(Counter::ForwardedUpstream, forwarded, burst.verdicts);
    }

    /// Runs buffers from core ports through the stages; otherwise as [`Self::upstream`].
    pub fn downstream<B: PacketBuf>(
        &mut self,
        bufs: &mut [B],
        verdicts: &mut [Verdict],
        origin: Origin,
    ) {
        for mut burst in bursts(bufs, verdicts) {
            self.burst_down::<B, false>(&mut burst, origin, &Hints::NONE);
        }
    }

    /// As [`Self::downstream`], with hints as [`Self::upstream_with`].
    pub fn downstream_with<B: PacketBuf>(
        &mut self,
        bufs: &mut [B],
        verdicts: &mut [Verdict],
        origin: Origin,
        hints: &Hints,
    ) {
        let mut hints = Some(hints);
        for mut burst in bursts(bufs, verdicts) {
            let hints = hints.take().unwrap_or(&Hints::NONE);
            self.burst_down::<B, true>(&mut burst, origin, hints);
        }
    }

    #[inline]
    fn burst_down<B: PacketBuf, const HINTED: bool>(
        &mut self,
        burst: &mut Burst<'_, B>,
        origin: Origin,
        hints: &Hints,
    ) {
        let Self {
            stages,
            downstream,
            ipv6,
            ..
        } = self;
        let forwarded = downstream::run::<B, HINTED>(stages, downstream, burst, origin, hints);
        let forwarded = forwarded + v6::downstream::run(stages, ipv6, burst, origin);
        self.settle(Counter::ForwardedDownstream, forwarded, burst.verdicts);
    }

    /// The one place where a burst's packets are counted: those forwarded, and the stages' drops if there are any.
    #[inline]
    fn settle(&self, counter: Counter, forwarded: usize, verdicts: &[Verdict]) {
        self.stages.shm.count(counter, forwarded as u64);
        if forwarded == verdicts.len() {
            return;
        }
        for verdict in verdicts {
            if let Verdict::Drop(reason) = verdict {
                self.stages.shm.count(*reason, 1);
            }
        }
    }

    /// What the benchmark's plain-IP path works with.
    #[cfg(feature = "bench")]
    pub(crate) fn stages(&mut self) -> &mut Stages {
        &mut self.stages
    }

    /// The worker's side of the shared memory.
    #[must_use]
    pub fn shm(&self) -> &Worker {
        &self.stages.shm
    }

    /// The worker's side of the shared memory, for rings and events.
    pub fn shm_mut(&mut self) -> &mut Worker {
        &mut self.stages.shm
    }

    /// Ends the fast path and gives the worker's side back.
    #[must_use]
    pub fn into_shm(self) -> Worker {
        self.stages.shm
    }

    /// Live NAT mappings of this worker.
    #[must_use]
    pub fn nat_mappings(&self) -> u32 {
        self.stages.nat.table.len()
    }
}

/// Bursts of buffers and their verdicts. A place not written by a stage would be a bug; it reads as a drop, never as
/// a stale verdict.
fn bursts<'a, B>(
    bufs: &'a mut [B],
    verdicts: &'a mut [Verdict],
) -> impl Iterator<Item = Burst<'a, B>> {
    debug_assert!(verdicts.len() >= bufs.len());
    let places = verdicts.get_mut(..bufs.len()).unwrap_or(&mut []);
    places.fill(Verdict::Drop(Counter::FrameTruncated));
    let pairs = bufs.chunks_mut(BURST).zip(places.chunks_mut(BURST));
    pairs.map(|(bufs, verdicts)| Burst { bufs, verdicts })
}
