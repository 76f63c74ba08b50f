//! What a run found out, with everything a reader needs to know about a figure (HZ-20).

use std::fmt;

use anyhow::{Result, bail};
use bng_shm::Counter;
use serde::{Deserialize, Serialize};

use super::lane::{self, Work};
use super::rounds::{Part, Round};
use super::stats::{Samples, Spread};
use super::{Bench, Copying, Direction, Features, LaneResult, Locking, frames};

/// Clock that figures of other machines are compared at, GHz.
pub(crate) const COMMON_GHZ: f64 = 2.1;

/// What was measured, where and how.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) direction: Direction,
    pub(crate) ip_bytes: usize,
    pub(crate) sessions: u32,
    pub(crate) flows: u32,
    pub(crate) destinations: u32,
    pub(crate) workers: u8,
    pub(crate) locking: Locking,
    pub(crate) features: Features,
    pub(crate) copy: Copying,
    pub(crate) tags: u8,
    /// Time a worker spends on a packet.
    pub(crate) ns_per_packet: f64,
    /// Of `ns_per_packet`.
    pub(crate) spread_ns: Spread,
    /// The same in ticks of this machine's time-stamp counter.
    pub(crate) clocks: f64,
    /// The same in ticks of a 2.1 GHz time-stamp counter.
    pub(crate) clocks_at_2_1_ghz: f64,
    /// Total of all workers.
    pub(crate) mpps: f64,
    pub(crate) mpps_per_worker: f64,
    /// Total of all workers, IP packets alone.
    pub(crate) gbps_ip: f64,
    pub(crate) gbps_ip_per_worker: f64,
    /// As `ns_per_packet`.
    pub(crate) mac_forward_ns: f64,
    pub(crate) mac_forward_spread_ns: Spread,
    /// Part of the MAC-forward rate that is reached.
    pub(crate) ratio_to_mac_forward: f64,
    /// One worker while the others sleep; only with several.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) solo_ns_per_packet: Option<f64>,
    /// Total rate of all workers by the rate of one alone.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) scaling: Option<f64>,
    /// Only with `--malformed`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) malformed_ns_per_packet: Option<f64>,
    /// Rate of malformed frames by the rate of good ones.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) malformed_to_good: Option<f64>,
    pub(crate) allocations_per_packet: f64,
    /// Samples of the pipeline that count.
    pub(crate) samples: usize,
    /// Those in which a thread lost its core, and which do not count.
    pub(crate) samples_preempted: usize,
    pub(crate) packets_per_sample: usize,
    pub(crate) packets_checked: u64,
    pub(crate) packets_timed: u64,
    pub(crate) nat_mappings: u32,
    pub(crate) rate_is: String,
    pub(crate) layer: String,
    pub(crate) timed: String,
    pub(crate) reference: String,
    pub(crate) threads: u8,
    pub(crate) cores: Vec<usize>,
    pub(crate) pinned: bool,
    pub(crate) packet_memory: String,
    pub(crate) tsc_hz: u64,
    pub(crate) dpdk: String,
    pub(crate) seed: u64,
}

const RATE_IS: &str = "mpps and gbps_ip: total of all workers; ns, clocks and *_per_worker: of one worker on one core";
const LAYER: &str = "bytes of IP packets; no Ethernet, PPPoE, check sequence, preamble or gap";
const TIMED: &str = "receive burst from net_ring, clock, NAT ageing, all stages, dispatch, transmit to net_null, which frees; counters, epoch echo";
const REFERENCE: &str =
    "receive burst from net_ring, MAC addresses exchanged, transmit to net_null, which frees";
const COPIED: &str =
    "; each frame is copied into its buffer after receive and out of it before transmit";

/// The samples of one kind of round: nanoseconds of a worker per packet.
struct Kind {
    samples: Samples,
    preempted: usize,
    packets: u64,
    allocations: u64,
}

/// Puts the lanes' parts of the same rounds together. A round counts when every thread kept its core.
fn kind(lanes: &[&[Part]], kind: usize, ns_per_tick: f64) -> Kind {
    let mut found = Kind {
        samples: Samples::default(),
        preempted: 0,
        packets: 0,
        allocations: 0,
    };
    let mut lists: Vec<_> = lanes
        .iter()
        .map(|parts| parts.iter().filter(|part| part.kind == kind).peekable())
        .collect();
    let Some(numbers) = lanes.first() else {
        return found;
    };
    for first in numbers.iter().filter(|part| part.kind == kind) {
        let mut workers = 0.0;
        let mut per_ns = 0.0;
        let mut clean = true;
        for list in &mut lists {
            let Some(part) = list.next_if(|part| part.number == first.number) else {
                continue;
            };
            workers += 1.0;
            per_ns += part.pass.packets as f64 / (part.pass.ticks as f64 * ns_per_tick);
            clean &= part.clean;
            found.packets += part.pass.packets as u64;
            found.allocations += part.allocations;
        }
        if clean {
            found.samples.add(workers / per_ns);
        } else {
            found.preempted += 1;
        }
    }
    found
}

/// Figures of all directions; fails if what was timed is not what was meant.
pub(super) fn of_run(bench: &Bench<'_>, lanes: &[LaneResult]) -> Result<Vec<Figures>> {
    let directions = bench.args.directions().iter().enumerate();
    directions
        .map(|(at, direction)| {
            let parts: Vec<&[Part]> = lanes
                .iter()
                .filter_map(|lane| lane.parts.get(at).map(Vec::as_slice))
                .collect();
            of_direction(bench, *direction, &parts, lanes)
        })
        .collect()
}

fn of_direction(
    bench: &Bench<'_>,
    direction: Direction,
    parts: &[&[Part]],
    lanes: &[LaneResult],
) -> Result<Figures> {
    let Bench {
        args,
        shape,
        platform,
        ..
    } = bench;
    let tsc_hz = platform.eal.tsc_hz();
    let ns_per_tick = 1e9 / tsc_hz as f64;
    let rounds = args.rounds(direction);
    let pick = |wanted: &dyn Fn(&Round) -> bool| {
        let at = rounds.iter().position(wanted)?;
        Some(kind(parts, at, ns_per_tick))
    };
    let pipeline = |round: &Round| matches!(round.work, Work::Pipeline(_));
    let Some(ours) = pick(&|r| pipeline(r) && !r.solo && r.frames == frames::GOOD) else {
        bail!("the pipeline did not run");
    };
    let Some(plain) = pick(&|r| r.work == Work::MacForward) else {
        bail!("the MAC-forward loop did not run");
    };
    if ours.samples.len() == 0 || plain.samples.len() == 0 {
        bail!(
            "no sample in which every thread kept its core ({} were taken): the machine is too busy, or --seconds too short",
            ours.preempted
        );
    }
    let solo = pick(&|r| r.solo);
    let malformed = pick(&|r| r.frames == frames::MALFORMED);

    // The workers' own counters must say what the loops say.
    let counter = match direction {
        Direction::Up => Counter::ForwardedUpstream,
        Direction::Down => Counter::ForwardedDownstream,
    };
    let packets = |kind: &Option<Kind>| kind.as_ref().map_or(0, |kind| kind.packets);
    let checked: u64 = shape.flows.into();
    let forwarded = bench.counted(counter);
    let meant = ours.packets + packets(&solo) + checked;
    if forwarded != meant {
        bail!("{forwarded} packets were forwarded {direction:?}, and {meant} should have been");
    }
    if direction == Direction::Up {
        let dropped: u64 = Counter::drops().map(|reason| bench.counted(reason)).sum();
        let meant = packets(&malformed);
        if dropped != meant {
            bail!("{dropped} packets were dropped, and {meant} should have been");
        }
    }

    let ns = ours.samples.median();
    let solo_ns = solo.map(|kind| kind.samples.median());
    let malformed_ns = malformed.map(|kind| kind.samples.median());
    let workers = f64::from(args.workers);
    let mpps_per_worker = 1e3 / ns;
    let gbps_ip_per_worker = mpps_per_worker * args.ip_bytes as f64 * 8e-3;
    let mac_forward_ns = plain.samples.median();
    let copied = match args.copy {
        Copying::None => "",
        Copying::Both => COPIED,
    };
    Ok(Figures {
        direction,
        ip_bytes: args.ip_bytes,
        sessions: shape.sessions,
        flows: shape.flows,
        destinations: shape.destinations,
        workers: args.workers,
        locking: args.locking,
        features: args.features,
        copy: args.copy,
        tags: args.tags,
        ns_per_packet: ns,
        spread_ns: ours.samples.spread(),
        clocks: ns / ns_per_tick,
        clocks_at_2_1_ghz: ns * COMMON_GHZ,
        mpps: mpps_per_worker * workers,
        mpps_per_worker,
        gbps_ip: gbps_ip_per_worker * workers,
        gbps_ip_per_worker,
        mac_forward_ns,
        mac_forward_spread_ns: plain.samples.spread(),
        ratio_to_mac_forward: mac_forward_ns / ns,
        solo_ns_per_packet: solo_ns,
        scaling: solo_ns.map(|solo| workers * solo / ns),
        malformed_ns_per_packet: malformed_ns,
        malformed_to_good: malformed_ns.map(|malformed| ns / malformed),
        allocations_per_packet: ours.allocations as f64 / ours.packets as f64,
        samples: ours.samples.len(),
        samples_preempted: ours.preempted,
        packets_per_sample: lane::chunk(args.copy == Copying::Both),
        packets_checked: lanes.iter().map(|lane| lane.checked).sum(),
        packets_timed: ours.packets,
        nat_mappings: lanes.iter().map(|lane| lane.nat_mappings).sum(),
        rate_is: RATE_IS.to_owned(),
        layer: LAYER.to_owned(),
        timed: format!("{TIMED}{copied}"),
        reference: format!("{REFERENCE}{copied}"),
        threads: args.workers,
        cores: platform.cores.clone(),
        pinned: true,
        packet_memory: platform.memory.to_owned(),
        tsc_hz,
        dpdk: rte_rs::version().to_owned(),
        seed: args.seed,
    })
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<10}{:>8.1}{:>16}{:>8.0}{:>8.0}{:>8.2}{:>10.1}{:>13.1}{:>8.2}{:>13.3}",
            match self.direction {
                Direction::Up => "up",
                Direction::Down => "down",
            },
            self.ns_per_packet,
            format!("{:.1} to {:.1}", self.spread_ns.p25, self.spread_ns.p75),
            self.clocks,
            self.clocks_at_2_1_ghz,
            self.mpps,
            self.gbps_ip,
            self.mac_forward_ns,
            self.ratio_to_mac_forward,
            self.allocations_per_packet,
        )?;
        if let (Some(solo), Some(scaling)) = (self.solo_ns_per_packet, self.scaling) {
            writeln!(
                f,
                "          one worker while the others sleep: {solo:.1} ns; all of them: {scaling:.2} times its rate"
            )?;
        }
        if let (Some(malformed), Some(ratio)) =
            (self.malformed_ns_per_packet, self.malformed_to_good)
        {
            writeln!(
                f,
                "          malformed frames: {malformed:.1} ns, {ratio:.2} times the rate of good ones"
            )?;
        }
        Ok(())
    }
}

impl Figures {
    /// What stands above the lines of a table.
    pub(crate) fn heading(&self) -> String {
        let Self {
            sessions,
            flows,
            destinations,
            ip_bytes,
            tags,
            features,
            locking,
            copy,
            workers,
            cores,
            tsc_hz,
            packet_memory,
            dpdk,
            packets_per_sample,
            samples,
            samples_preempted,
            ..
        } = self;
        format!(
            "{sessions} sessions, {flows} flows, {destinations} destinations, IP packets of {ip_bytes} bytes, {tags} VLAN tags, random \
             flow order, every packet checked once\n\
             features {features:?}, locking {locking:?}, copies {copy:?}\n\
             {workers} worker(s) on core(s) {cores:?} (pinned), {:.0} MHz time-stamp counter, buffers in {packet_memory}, {dpdk}\n\
             median (quartiles) of {samples} samples of {packets_per_sample} packets, {samples_preempted} more not clean\n\
             {}\n\
             Gbit/s: {}\n\
             timed: {}\n\
             MAC forward: {}\n\n\
             {:<10}{:>8}{:>16}{:>8}{:>8}{:>8}{:>10}{:>13}{:>8}{:>13}",
            *tsc_hz as f64 / 1e6,
            self.rate_is,
            self.layer,
            self.timed,
            self.reference,
            "direction",
            "ns",
            "quartiles",
            "clocks",
            "2.1GHz",
            "Mpps",
            "Gbit/s",
            "MAC fwd ns",
            "ratio",
            "allocations",
        )
    }
}
