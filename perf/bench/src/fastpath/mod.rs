//! `bng-perf fastpath`: the worker's real pipeline beside a MAC-forward loop, in one process, without devices.
//!
//! ```text
//!  flows --frames--> check (every packet once) --heads--> rig: lay out | forward (timed) | lay out | MAC forward (timed)
//! ```

use std::collections::HashSet;
use std::io::Write;
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bng_fastpath::Verdict;
use clap::{Args, ValueEnum};

use figures::{Figures, LAYER, RATE_IS, REFERENCE, Samples, TIMED};
use flows::{HEADERS, Shape, downstream_frame, shuffled, upstream_frame};
use rig::{CHUNK, Direction, Head, Platform, Rig, hugepages_free};

mod check;
mod figures;
mod flows;
mod rig;

/// Largest IP packet a session carries.
const MAX_IP_BYTES: usize = 1_492;

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

/// Measures what a packet costs in the real pipeline.
#[derive(Debug, Args)]
pub(crate) struct FastpathArgs {
    /// Direction.
    #[arg(long, value_enum, default_value_t = Directions::Both)]
    direction: Directions,
    /// Sessions.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    sessions: u32,
    /// UDP flows, spread evenly over the sessions.
    #[arg(long, value_name = "N", default_value_t = 64_000, value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    flows: u32,
    /// Different remote addresses.
    #[arg(long, value_name = "N", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..))]
    destinations: u32,
    /// Size of the IP packets in bytes.
    #[arg(long, value_name = "N", default_value_t = MAX_IP_BYTES)]
    ip_bytes: usize,
    /// Seconds for each direction, both loops together, laying out frames included.
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    seconds: f64,
    /// Core to run on; the last allowed one by default.
    #[arg(long, value_name = "N")]
    core: Option<usize>,
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

/// Frames of all flows, in a random order, ready to be laid out again and again.
struct Heads {
    up: Vec<Head>,
    down: Vec<Head>,
}

/// Sends every flow's packets through the pipeline once, both ways, and checks what comes out.
fn check_all(rig: &mut Rig, shape: &Shape, order: &[u32], ip_bytes: usize) -> Result<Heads> {
    let mut heads = Heads {
        up: Vec::with_capacity(order.len()),
        down: Vec::with_capacity(order.len()),
    };
    let mut outsides: HashSet<(Ipv4Addr, u16)> = HashSet::with_capacity(order.len());
    let small = "IP packet too small";
    for index in order {
        let flow = shape.flow(*index);
        let access_port = flow.subscriber.access_port;
        let frame = upstream_frame(&flow, ip_bytes).context(small)?;
        let (verdict, sent) = rig.single(Direction::Up, &frame, access_port)?;
        if verdict
            != (Verdict::Forward {
                port: shape.core_port(),
            })
        {
            bail!("flow {index} upstream: {verdict:?} in place of forwarding ({flow:?})");
        }
        let outside = check::upstream(sent.data(), &flow, ip_bytes)
            .with_context(|| format!("flow {index} upstream, {flow:?}"))?;
        if !outsides.insert(outside) {
            bail!("flow {index} upstream: {outside:?} is the mapping of another flow, too");
        }
        heads.up.push(Head::new(&frame, access_port)?);

        let frame = downstream_frame(&flow, outside, ip_bytes).context(small)?;
        let (verdict, sent) = rig.single(Direction::Down, &frame, shape.core_port())?;
        if verdict != (Verdict::Forward { port: access_port }) {
            bail!("flow {index} downstream: {verdict:?} in place of forwarding ({flow:?})");
        }
        check::downstream(sent.data(), &flow, ip_bytes)
            .with_context(|| format!("flow {index} downstream, {flow:?}"))?;
        heads.down.push(Head::new(&frame, shape.core_port())?);
    }
    Ok(heads)
}

/// Ticks of both loops, and allocations while the pipeline ran.
struct Measured {
    pipeline: Samples,
    mac_forward: Samples,
    allocations: u64,
    packets: u64,
}

fn measure(
    rig: &mut Rig,
    direction: Direction,
    heads: &[Head],
    time: Duration,
) -> Result<Measured> {
    let mut measured = Measured {
        pipeline: Samples::default(),
        mac_forward: Samples::default(),
        allocations: 0,
        packets: 0,
    };
    let forwarded_before = rig.forwarded(direction);
    let (mut ours, mut plain) = (heads.iter().cycle(), heads.iter().cycle());
    let start = Instant::now();
    while start.elapsed() < time {
        rig.lay_out(&mut ours)?;
        let mut ticks = 0;
        let allocated = allocation_counter::measure(|| ticks = rig.forward(direction));
        measured.pipeline.add(ticks, CHUNK);
        measured.allocations += allocated.count_total;
        measured.packets += CHUNK as u64;
        rig.lay_out(&mut plain)?;
        measured.mac_forward.add(rig.mac_forward(), CHUNK);
    }
    let forwarded = rig.forwarded(direction) - forwarded_before;
    if forwarded != measured.packets {
        bail!(
            "{forwarded} of {} packets were forwarded {}: what was timed is not what was meant",
            measured.packets,
            direction.name()
        );
    }
    Ok(measured)
}

/// Runs it.
pub(crate) fn run(args: &FastpathArgs) -> Result<ExitCode> {
    if !(HEADERS..=MAX_IP_BYTES).contains(&args.ip_bytes) {
        bail!(
            "--ip-bytes {} is not within {HEADERS} to {MAX_IP_BYTES}",
            args.ip_bytes
        );
    }
    let time = Duration::try_from_secs_f64(args.seconds).context("--seconds")?;
    let shape = Shape::new(args.sessions, args.flows, args.destinations)?;
    let platform = Platform::start(args.core, !args.no_huge && hugepages_free())?;
    let mut rig = Rig::new(&platform, &shape, args.seed)?;
    let order = shuffled(shape.flows, args.seed);
    let heads = check_all(&mut rig, &shape, &order, args.ip_bytes)?;
    let directions: &[Direction] = match args.direction {
        Directions::Up => &[Direction::Up],
        Directions::Down => &[Direction::Down],
        Directions::Both => &[Direction::Up, Direction::Down],
    };
    let mut stdout = std::io::stdout().lock();
    for direction in directions {
        let heads = match direction {
            Direction::Up => &heads.up,
            Direction::Down => &heads.down,
        };
        let measured = measure(&mut rig, *direction, heads, time)?;
        let figures = figures(args, &shape, &platform, &rig, *direction, measured);
        if args.json {
            serde_json::to_writer(&mut stdout, &figures)?;
            writeln!(stdout)?;
        } else {
            if Some(direction) == directions.first() {
                writeln!(stdout, "{}", figures.heading())?;
            }
            write!(stdout, "{figures}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn figures(
    args: &FastpathArgs,
    shape: &Shape,
    platform: &Platform,
    rig: &Rig,
    direction: Direction,
    mut measured: Measured,
) -> Figures {
    let ghz = platform.eal.tsc_hz() as f64 / 1e9;
    let [p10, clocks, p90] = measured.pipeline.at([0.1, 0.5, 0.9]);
    let [mac_p10, mac_clocks, mac_p90] = measured.mac_forward.at([0.1, 0.5, 0.9]);
    let ns = clocks / ghz;
    let mpps = 1e3 / ns;
    Figures {
        direction: direction.name(),
        ip_bytes: args.ip_bytes,
        sessions: shape.sessions,
        flows: shape.flows,
        destinations: shape.destinations,
        workers: 1,
        ns_per_packet: ns,
        clocks_per_packet: clocks,
        mpps,
        gbps_ip: mpps * args.ip_bytes as f64 * 8e-3,
        mac_forward_ns: mac_clocks / ghz,
        mac_forward_clocks: mac_clocks,
        // How much of the MAC-forward rate is reached.
        ratio_to_mac_forward: mac_clocks / clocks,
        allocations_per_packet: measured.allocations as f64 / measured.packets as f64,
        samples: measured.pipeline.len(),
        packets_per_sample: CHUNK,
        p10_ns: p10 / ghz,
        p90_ns: p90 / ghz,
        mac_forward_p10_ns: mac_p10 / ghz,
        mac_forward_p90_ns: mac_p90 / ghz,
        packets_checked: shape.flows,
        packets_timed: measured.packets,
        nat_mappings: rig.nat_mappings(),
        rate_is: RATE_IS,
        layer: LAYER,
        timed: TIMED,
        reference: REFERENCE,
        threads: 1,
        cores: 1,
        core: platform.core,
        pinned: true,
        packet_memory: platform.memory,
        tsc_mhz: ghz * 1e3,
        dpdk: rte_rs::version(),
        seed: args.seed,
    }
}
