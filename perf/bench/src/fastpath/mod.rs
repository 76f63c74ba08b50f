//! `bng-perf fastpath`: the worker's real pipeline beside a MAC-forward loop, in one process, without devices.
//!
//! ```text
//!  flows --frames--> check (every packet once) --heads--> rounds: pipeline | MAC forward | ..., each over a chunk that was
//!                                                         laid out in the receive ring before (lane)
//! ```

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use bng_dataplane::fib_mirror::FibMirrors;
use bng_fastpath::FastPath;
use bng_shm::{Counter, Dataplane, Publisher, SessionStats, monotonic_ms};
use clap::{Args, ValueEnum};
use parking_lot::Mutex;
use rte_rs::{Mempool, MempoolConfig};
use serde::{Deserialize, Serialize};

use coalescing::Merged;
use flows::{Content, Shape};
use frames::Heads;
use lane::{CHUNK, Lane, LanePorts, Locked, Start, Work};
use platform::Platform;
use rounds::{InStep, Part, Round};

pub(crate) use coalescing::Checksums;
pub(crate) use figures::Figures;

mod check;
mod coalescing;
mod figures;
mod flows;
mod frames;
mod lane;
mod platform;
mod rounds;
mod stats;
mod tables;

/// Largest IP packet a session carries.
const MAX_IP_BYTES: usize = 1_492;
/// Buffers for each worker, less one.
const BUFFERS: u32 = 8_192;

/// Which directions to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Directions {
    /// From subscribers to the core.
    Up,
    /// From the core to subscribers.
    Down,
    /// One after the other.
    Both,
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    /// From subscribers to the core.
    Up,
    /// From the core to subscribers.
    Down,
}

/// A lock that the product does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Locking {
    /// Every worker has its own state.
    None,
    /// All workers share one state, locked for each burst.
    Burst,
    /// All workers share one state, locked for each packet.
    Packet,
}

/// What the sessions' policy asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Features {
    /// Policers both ways that drop nothing, a filter of four rules each way that do not fit, source check, MSS clamping.
    All,
    /// Source check alone.
    Minimal,
}

/// Copies in and out of the packet buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Copying {
    /// Frames are in the buffers, as a NIC leaves them.
    None,
    /// Each frame is copied into its buffer after receive and out of it before transmit, as a kernel or memory port does.
    Both,
}

/// Measures what a packet costs in the real pipeline.
#[derive(Debug, Args)]
pub(crate) struct FastpathArgs {
    /// Direction.
    #[arg(long, value_enum, default_value_t = Directions::Both)]
    direction: Directions,
    /// Sessions.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    sessions: u32,
    /// Flows, spread evenly over the sessions: UDP, or TCP with --coalesce.
    #[arg(long, value_name = "N", default_value_t = 64_000, value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    flows: u32,
    /// Different remote addresses.
    #[arg(long, value_name = "N", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..))]
    destinations: u32,
    /// Size of the IP packets in bytes.
    #[arg(long, value_name = "N", default_value_t = MAX_IP_BYTES)]
    ip_bytes: usize,
    /// Workers, each on its own core.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    workers: u8,
    /// A lock around the state, to see what it would cost.
    #[arg(long, value_enum, default_value_t = Locking::None)]
    locking: Locking,
    /// What the sessions' policy asks for.
    #[arg(long, value_enum, default_value_t = Features::All)]
    features: Features,
    /// Copies in and out of the packet buffers, for the pipeline and the MAC-forward loop alike.
    #[arg(long, value_enum, default_value_t = Copying::None)]
    copy: Copying,
    /// Plain-IP forwarding with the same features in place of PPPoE and NAT, and those beside it in the same run.
    #[arg(long)]
    plain_ip: bool,
    /// VLAN tags of subscribers' frames.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    tags: u8,
    /// Measure coalescing off, a loop that knows nothing of it, and on, in turns, with TCP flows that send trains.
    #[arg(long)]
    coalesce: bool,
    /// Frames a flow sends in a row.
    #[arg(long, value_name = "N", default_value_t = 16, requires = "coalesce", value_parser = clap::value_parser!(u16).range(1..=64))]
    train: u16,
    /// Who verifies TCP checksums.
    #[arg(long, value_enum, default_value_t = Checksums::Port, requires = "coalesce")]
    checksums: Checksums,
    /// Measure malformed session frames beside good ones; upstream only.
    #[arg(long)]
    malformed: bool,
    /// Measure the same while another thread reads the counters of all sessions, again and again. It wants a core of its own.
    #[arg(long)]
    read_counters: bool,
    /// Seconds for each direction, all loops together, laying out frames included.
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    seconds: f64,
    /// Cores of the workers; the last allowed ones by default.
    #[arg(long, value_name = "N,N,..", value_delimiter = ',')]
    cores: Vec<usize>,
    /// Take buffers from ordinary pages even if there are huge pages.
    #[arg(long)]
    no_huge: bool,
    /// Seed of the flow order.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON object per direction.
    #[arg(long)]
    json: bool,
}

impl FastpathArgs {
    fn directions(&self) -> &'static [Direction] {
        match self.direction {
            Directions::Up => &[Direction::Up],
            Directions::Down => &[Direction::Down],
            Directions::Both => &[Direction::Up, Direction::Down],
        }
    }

    /// Frames a flow sends in a row, if it does.
    fn trains(&self) -> Option<u16> {
        self.coalesce.then_some(self.train)
    }

    /// What the flows send first.
    fn content(&self) -> Content {
        match self.coalesce {
            true => Content::Segment(0),
            false => Content::Datagram,
        }
    }

    /// Whether somebody looks at more of a frame than its start.
    fn whole_frames(&self) -> bool {
        self.coalesce && self.checksums == Checksums::Software
    }

    /// What every packet is taken through once before it is measured.
    fn checked_works(&self, direction: Direction) -> impl Iterator<Item = Work> + use<> {
        let coalesced = self.coalesce.then_some(Work::Coalesced(direction));
        [Work::Pipeline(direction)].into_iter().chain(coalesced)
    }

    /// The kinds of rounds of a direction, taken in turn.
    fn rounds(&self, direction: Direction) -> Vec<Round> {
        let round = |work, frames| Round {
            work,
            frames,
            solo: false,
            reading: false,
            repeat: 1,
        };
        let (pipeline, mac_forward) = if self.plain_ip {
            (
                round(Work::Plain(direction), frames::PLAIN),
                round(Work::MacForward, frames::PLAIN),
            )
        } else {
            (
                round(Work::Pipeline(direction), frames::GOOD),
                round(Work::MacForward, frames::GOOD),
            )
        };
        let mut rounds = vec![pipeline, mac_forward];
        if self.plain_ip {
            rounds.push(round(Work::Pipeline(direction), frames::GOOD));
        }
        if self.workers > 1 {
            rounds.push(Round {
                solo: true,
                ..pipeline
            });
        }
        if self.coalesce {
            // The code of the one before is in the caches, so of each two in a row the second counts.
            rounds.extend(
                [Work::Bare(direction), Work::Coalesced(direction)]
                    .map(|work| round(work, frames::GOOD)),
            );
            for round in &mut rounds {
                round.repeat = 2;
            }
        }
        if self.malformed {
            rounds.push(round(Work::Pipeline(direction), frames::MALFORMED));
        }
        if self.read_counters {
            // Long enough that each session's counters are written several times.
            let repeat = (self.sessions as usize * 4 / CHUNK).max(16);
            for round in &mut rounds {
                round.repeat = repeat;
            }
            rounds.push(Round {
                reading: true,
                repeat,
                ..pipeline
            });
        }
        rounds
    }
}

/// What a lane has done, direction by direction.
struct LaneResult {
    parts: Vec<Vec<Part>>,
    /// What was coalesced meanwhile.
    merged: Vec<Merged>,
    nat_mappings: u32,
    checked: u64,
}

/// What the thread did that read counters.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    /// How often it read all of them.
    times: u32,
    /// Time that took together.
    spent: Duration,
}

/// Everything one run stands on.
struct Bench<'a> {
    args: &'a FastpathArgs,
    shape: Shape,
    platform: Platform,
    publisher: Publisher,
    dataplane: Dataplane,
    fib: bng_dataplane::fib_mirror::RteFib,
    pool: Mempool,
    // Its one writer, kept for as long as it is read.
    _routes: FibMirrors,
}

impl<'a> Bench<'a> {
    fn new(args: &'a FastpathArgs) -> Result<Self> {
        let shape = Shape::new(args.sessions, args.flows, args.destinations, args.tags)?;
        let platform = Platform::start(args.workers, &args.cores, args.no_huge)?;
        if args.read_counters && platform.cores.contains(&platform.main_core) {
            bail!(
                "--read-counters needs core {} for itself, and a worker is on it",
                platform.main_core
            );
        }
        // With a lock there is one more: the one behind it.
        let capacities = tables::capacities(&shape, args.workers + 1);
        let (dataplane, mut publisher) = Dataplane::in_process(capacities)?;
        tables::publish(
            &mut publisher,
            &shape,
            args.workers,
            args.locking,
            args.features,
        )?;
        let mut routes = FibMirrors::new(&platform.eal, &capacities)?;
        if routes.refresh(&dataplane.reader()).v4.is_none() || routes.is_empty() {
            bail!("the default route did not reach the FIB");
        }
        let fib = routes.lookup();
        let buffers = BUFFERS * u32::from(args.workers) - 1;
        let pool = Mempool::create(&platform.eal, &MempoolConfig::new("frames", buffers))?;
        Ok(Self {
            args,
            shape,
            platform,
            publisher,
            dataplane,
            fib,
            pool,
            _routes: routes,
        })
    }

    /// What each lane starts its stages with.
    fn starts(&mut self) -> Result<Vec<Start>> {
        let args = self.args;
        let mut worker = |index| {
            self.dataplane
                .worker(index)
                .with_context(|| format!("worker {index} is taken"))
        };
        if args.locking == Locking::None {
            let flows = self.shape.flows.div_ceil(u32::from(args.workers));
            let settings = tables::settings(&self.shape, flows, args.seed);
            return (0..args.workers)
                .map(|index| {
                    let shm = worker(index)?;
                    Ok(Start::Own(shm, settings.clone(), coalescing::settings()))
                })
                .collect();
        }
        let settings = tables::settings(&self.shape, self.shape.flows, args.seed);
        let shm = worker(args.workers)?;
        shm.enter(0);
        let fast = FastPath::new(shm, &settings, monotonic_ms());
        let locked = Arc::new(Mutex::new(Locked::new(fast)));
        (0..args.workers)
            .map(|index| {
                Ok(Start::Shared(
                    Arc::clone(&locked),
                    args.locking,
                    worker(index)?,
                ))
            })
            .collect()
    }

    /// Reads the counters of all sessions whenever the lanes ask for it, until they are done.
    fn read_counters(&self, in_step: &InStep) -> Reading {
        let reader = self.dataplane.reader();
        let mut reading = Reading::default();
        while !in_step.is_done() {
            if !in_step.reading() {
                std::thread::sleep(Duration::from_micros(20));
                continue;
            }
            let begun = Instant::now();
            for session in 0..self.shape.sessions {
                let slot = self.shape.subscriber(session).slot;
                std::hint::black_box(reader.stats(slot).map(SessionStats::copy));
            }
            reading.times += 1;
            reading.spent += begun.elapsed();
        }
        reading
    }

    /// Runs all lanes to their end.
    fn run(&mut self) -> Result<(Vec<LaneResult>, Reading)> {
        let starts = self.starts()?;
        let in_step = InStep::new(self.args.workers);
        let time = Duration::try_from_secs_f64(self.args.seconds).context("--seconds")?;
        let this = &*self;
        // All of them first: a thread that runs waits for all others.
        let ports = (0..this.args.workers)
            .map(|index| LanePorts::new(&this.platform.eal, &this.pool, &this.shape, index))
            .collect::<Result<Vec<_>>>()?;
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (index, (start, ports)) in (0..).zip(starts.into_iter().zip(ports)) {
                let in_step = &in_step;
                let body = move || this.lane(index, start, ports, in_step, time);
                threads.push(
                    std::thread::Builder::new()
                        .name(format!("worker {index}"))
                        .spawn_scoped(scope, body)?,
                );
            }
            // On the main thread's core, which it inherits.
            let in_step = &in_step;
            let reading = this
                .args
                .read_counters
                .then(|| scope.spawn(move || this.read_counters(in_step)));
            let mut results: Vec<Result<_>> = threads
                .into_iter()
                .map(|thread| thread.join().map_err(|_| anyhow!("a worker panicked"))?)
                .collect();
            // The worker that could not go on says more than those that it ended.
            results.sort_by_key(|result| match result {
                Err(error) => error.to_string() == rounds::OTHER,
                Ok(_) => true,
            });
            in_step.done();
            let reading = reading.and_then(|thread| thread.join().ok());
            let lanes = results.into_iter().collect::<Result<_>>()?;
            Ok((lanes, reading.unwrap_or_default()))
        })
    }

    /// One lane, on its own thread.
    fn lane(
        &self,
        index: u8,
        start: Start,
        ports: LanePorts,
        in_step: &InStep,
        time: Duration,
    ) -> Result<LaneResult> {
        let ready = self.prepare(index, start, ports);
        let (mut lane, heads, _registered) = in_step.all_ready(ready)?;
        let mut parts = Vec::new();
        let mut merged = Vec::new();
        for direction in self.args.directions() {
            let rounds = self.args.rounds(*direction);
            let frames = heads.of(*direction);
            let before = self.merged(index);
            parts.push(rounds::run(
                &mut lane, index, &rounds, frames, in_step, time,
            )?);
            merged.push(self.merged(index).since(before));
        }
        Ok(LaneResult {
            parts,
            merged,
            nat_mappings: lane.nat_mappings(),
            checked: heads.checked,
        })
    }

    /// What a worker's coalescer has counted.
    fn merged(&self, worker: u8) -> Merged {
        let status = self.publisher.worker_status(worker);
        let count = |counter: Counter| {
            let counters = status.as_ref().map(|status| &status.counters);
            let value = counters.and_then(|counters| counters.get(counter.index()));
            value.copied().unwrap_or(0)
        };
        Merged {
            candidates: count(Counter::CoalesceFrames),
            merged: count(Counter::CoalesceMerged),
            single: count(Counter::CoalesceSingle),
            supers: count(Counter::CoalesceSupers),
        }
    }

    fn prepare(
        &self,
        index: u8,
        start: Start,
        ports: LanePorts,
    ) -> Result<(Lane, Heads, rte_rs::RegisteredThread)> {
        let core = self.platform.cores.get(usize::from(index));
        let id = *core.context("no core for a worker")?;
        if !core_affinity::set_for_current(core_affinity::CoreId { id }) {
            bail!("core {id} is not available to this process");
        }
        let registered = self.platform.eal.register_thread()?;
        let copy = self.args.copy == Copying::Both;
        let verified = self.args.coalesce && self.args.checksums == Checksums::Port;
        let mut lane = Lane::new(start, id, self.fib.clone(), ports, copy, verified);
        let heads = frames::check_all(&mut lane, index, self.args, &self.shape)?;
        Ok((lane, heads, registered))
    }

    /// A counter over all workers, the one behind the lock included.
    fn counted(&self, counter: Counter) -> u64 {
        (0..=self.args.workers)
            .filter_map(|index| {
                let status = self.publisher.worker_status(index)?;
                status.counters.get(counter.index()).copied()
            })
            .sum()
    }
}

/// Runs it.
pub(crate) fn run(args: &FastpathArgs) -> Result<ExitCode> {
    let content = args.content();
    // C3: what is merged has a payload.
    let least = content.headers() + usize::from(args.coalesce);
    if !(least..=MAX_IP_BYTES).contains(&args.ip_bytes) {
        bail!(
            "--ip-bytes {} is not within {least} to {MAX_IP_BYTES}",
            args.ip_bytes
        );
    }
    if args.coalesce
        && (args.plain_ip
            || args.malformed
            || args.read_counters
            || args.workers > 1
            || args.tags > 0
            || args.copy == Copying::Both
            || args.locking != Locking::None)
    {
        bail!(
            "--coalesce is measured with one worker, and without --plain-ip, --malformed, --read-counters, --tags, --copy and --locking"
        );
    }
    if args.malformed && args.directions().contains(&Direction::Down) {
        bail!("--malformed is about PPPoE frames: it needs --direction up");
    }
    if args.plain_ip
        && (args.malformed || args.read_counters || args.tags > 0 || args.locking != Locking::None)
    {
        bail!("--plain-ip is measured without --malformed, --read-counters, --tags and --locking");
    }
    let mut bench = Bench::new(args)?;
    let (lanes, reading) = bench.run()?;
    let mut stdout = std::io::stdout().lock();
    let all = figures::of_run(&bench, &lanes, reading)?;
    for (index, figures) in all.iter().enumerate() {
        if args.json {
            serde_json::to_writer(&mut stdout, figures)?;
            writeln!(stdout)?;
        } else {
            if index == 0 {
                writeln!(stdout, "{}", figures.heading())?;
            }
            write!(stdout, "{figures}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
