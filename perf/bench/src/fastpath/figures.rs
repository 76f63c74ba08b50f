//! What a run found out, with everything a reader needs to know about a figure (HZ-20).

use std::fmt;

use anyhow::{Result, bail};
use bng_shm::Counter;
use serde::{Deserialize, Serialize};

use super::coalescing::Merged;
use super::coalescing::{self, Coalescing};
use super::lane::{self, Work};
use super::rounds::{Part, Round};
use super::stats::{Samples, Spread};
use super::{Bench, Copying, Direction, Features, LaneResult, Locking, Reading, frames};

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
    /// The plain-IP path in place of PPPoE and NAT.
    pub(crate) plain_ip: bool,
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
    /// PPPoE and NAT in the same run; only with `--plain-ip`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) pppoe_nat_ns_per_packet: Option<f64>,
    /// Rate of PPPoE and NAT by the rate of plain IP.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) pppoe_nat_to_plain_ip: Option<f64>,
    /// Only with `--malformed`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) malformed_ns_per_packet: Option<f64>,
    /// Rate of malformed frames by the rate of good ones.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) malformed_to_good: Option<f64>,
    /// While another thread reads the counters of all sessions, again and again; only with `--read-counters`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) reading_ns_per_packet: Option<f64>,
    /// Time that thread needs for all sessions once, microseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) reading_us: Option<f64>,
    /// Part of a worker's time that reading all sessions once a second costs it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) reading_once_a_second_costs: Option<f64>,
    /// Only with `--coalesce`; `ns_per_packet` is with coalescing off.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) coalescing: Option<Coalescing>,
    pub(crate) allocations_per_packet: f64,
    /// Samples of the pipeline that count.
    pub(crate) samples: usize,
    /// Samples in which a thread lost its core. They do not count if `samples_clean`.
    pub(crate) samples_preempted: usize,
    /// Whether there were enough samples without those.
    pub(crate) samples_clean: bool,
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
const TIMED: &str = "receive burst from net_ring, clock, NAT ageing, all stages, dispatch, transmit to net_null, which frees; a look for injected frames and those from the kernel, counters, epoch echo";
const REFERENCE: &str =
    "receive burst from net_ring, MAC addresses exchanged, transmit to net_null, which frees";
const COPIED: &str =
    "; each frame is copied into its buffer after receive and out of it before transmit";

/// The samples of one kind of round: nanoseconds of a worker per packet.
struct Kind {
    /// Of the rounds that count.
    samples: Samples,
    /// Whether those are only rounds in which every thread kept its core.
    clean: bool,
    preempted: usize,
    packets: u64,
    allocations: u64,
}

/// Fewer clean samples than this are no better than all.
const ENOUGH: usize = 10;

/// Puts the lanes' parts of the same rounds together. A round counts when every thread kept its core; on a machine so busy
/// that there are hardly any such rounds, all count.
fn kind(lanes: &[&[Part]], kind: usize, ns_per_tick: f64) -> Kind {
    let mut found = Kind {
        samples: Samples::default(),
        clean: true,
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
    let mut all = Samples::default();
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
        if first.settling {
            continue;
        }
        all.add(workers / per_ns);
        if clean {
            found.samples.add(workers / per_ns);
        } else {
            found.preempted += 1;
        }
    }
    if found.samples.len() < ENOUGH {
        found.clean = found.preempted == 0;
        found.samples = all;
    }
    found
}

/// Figures of all directions; fails if what was timed is not what was meant.
pub(super) fn of_run(
    bench: &Bench<'_>,
    lanes: &[LaneResult],
    reading: Reading,
) -> Result<Vec<Figures>> {
    let directions = bench.args.directions().iter().enumerate();
    directions
        .map(|(at, direction)| {
            let parts: Vec<&[Part]> = lanes
                .iter()
                .filter_map(|lane| lane.parts.get(at).map(Vec::as_slice))
                .collect();
            let merged = lanes.first().and_then(|lane| lane.merged.get(at).copied());
            of_direction(
                bench,
                *direction,
                &parts,
                lanes,
                (reading, merged.unwrap_or_default()),
            )
        })
        .collect()
}

fn of_direction(
    bench: &Bench<'_>,
    direction: Direction,
    parts: &[&[Part]],
    lanes: &[LaneResult],
    (reading, merged): (Reading, Merged),
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
    let main = rounds.first().map(|round| round.work);
    let is_main = |r: &Round| Some(r.work) == main && !r.reading && r.frames != frames::MALFORMED;
    let Some(ours) = pick(&|r| is_main(r) && !r.solo) else {
        bail!("the pipeline did not run");
    };
    let Some(plain) = pick(&|r| r.work == Work::MacForward) else {
        bail!("the MAC-forward loop did not run");
    };
    if ours.samples.len() == 0 || plain.samples.len() == 0 {
        bail!("there was no time for a single sample: --seconds is too short");
    }
    let solo = pick(&|r| r.solo);
    let malformed = pick(&|r| r.frames == frames::MALFORMED);
    let while_read = pick(&|r| r.reading);
    let beside = if args.plain_ip {
        pick(&|r| matches!(r.work, Work::Pipeline(_)))
    } else {
        None
    };

    // The workers' own counters must say what the loops say.
    let counter = match direction {
        Direction::Up => Counter::ForwardedUpstream,
        Direction::Down => Counter::ForwardedDownstream,
    };
    let bare = pick(&|r| matches!(r.work, Work::Bare(_)));
    let on = pick(&|r| matches!(r.work, Work::Coalesced(_)));
    let packets = |kind: &Option<Kind>| kind.as_ref().map_or(0, |kind| kind.packets);
    let checked = u64::from(shape.flows)
        * u64::from(args.trains().unwrap_or(1))
        * if args.plain_ip || args.coalesce { 2 } else { 1 };
    let forwarded = bench.counted(counter);
    let others =
        packets(&solo) + packets(&while_read) + packets(&beside) + packets(&bare) + packets(&on);
    let meant = ours.packets + others + checked;
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

    let coalescing = match args.trains().zip(parts.first()) {
        Some((train, parts)) => Some(coalescing::of_parts(
            &rounds,
            parts,
            (train, args.checksums),
            merged,
            |kind_at| kind(&[parts], kind_at, ns_per_tick).samples.median(),
        )?),
        None => None,
    };
    let allocated = ours.allocations + on.as_ref().map_or(0, |on| on.allocations);
    let ns = ours.samples.median();
    let solo_ns = solo.map(|kind| kind.samples.median());
    let malformed_ns = malformed.map(|kind| kind.samples.median());
    let pppoe_nat_ns = beside.map(|kind| kind.samples.median());
    let reading_ns = while_read.map(|kind| kind.samples.median());
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
        plain_ip: args.plain_ip,
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
        pppoe_nat_ns_per_packet: pppoe_nat_ns,
        pppoe_nat_to_plain_ip: pppoe_nat_ns.map(|pppoe_nat| ns / pppoe_nat),
        malformed_ns_per_packet: malformed_ns,
        malformed_to_good: malformed_ns.map(|malformed| ns / malformed),
        reading_ns_per_packet: reading_ns,
        reading_us: reading_ns
            .map(|_| reading.spent.as_secs_f64() * 1e6 / f64::from(reading.times.max(1))),
        reading_once_a_second_costs: reading_ns
            .map(|reading| reading_cost(shape.sessions, args.workers, reading - ns)),
        coalescing,
        allocations_per_packet: allocated as f64 / (ours.packets + packets(&on)) as f64,
        samples: ours.samples.len(),
        samples_preempted: ours.preempted,
        samples_clean: ours.clean,
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

/// What reading all sessions once a second costs each worker, as a part of its time.
///
/// A reading takes the line of a session's counters away from its worker, which pays for that once, at the session's next
/// packet. So `extra_ns`, measured where every packet pays, is paid once per session and second.
fn reading_cost(sessions: u32, workers: u8, extra_ns: f64) -> f64 {
    f64::from(sessions) / f64::from(workers) * extra_ns.max(0.0) / 1e9
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
        if let (Some(pppoe_nat), Some(ratio)) =
            (self.pppoe_nat_ns_per_packet, self.pppoe_nat_to_plain_ip)
        {
            writeln!(
                f,
                "          that was plain IP; PPPoE and NAT: {pppoe_nat:.1} ns, {ratio:.2} times the rate"
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
        if let Some(coalescing) = &self.coalescing {
            write!(f, "{coalescing}")?;
        }
        if let (Some(ns), Some(us), Some(cost)) = (
            self.reading_ns_per_packet,
            self.reading_us,
            self.reading_once_a_second_costs,
        ) {
            writeln!(
                f,
                "          while all counters are read again and again ({us:.0} us each time): {ns:.1} ns; once a second costs {:.3} %",
                cost * 100.0
            )?;
        }
        Ok(())
    }
}

/// A derived figure that does not follow from the measured ones.
#[derive(Debug, thiserror::Error)]
#[error("{name} is {found} and should be {wanted}")]
pub(crate) struct Mismatch {
    name: &'static str,
    found: f64,
    wanted: f64,
}

impl Figures {
    /// Computes everything derived anew (HZ-20): totals, rates, clocks and ratios.
    pub(crate) fn check(&self) -> Result<(), Mismatch> {
        let workers = f64::from(self.workers);
        let ns = self.ns_per_packet;
        let ip_bits = self.ip_bytes as f64 * 8.0;
        let per = |divisor: Option<f64>| divisor.map(|divisor| ns / divisor);
        let derived = [
            (
                "clocks",
                Some(self.clocks),
                Some(ns * self.tsc_hz as f64 / 1e9),
            ),
            (
                "clocks_at_2_1_ghz",
                Some(self.clocks_at_2_1_ghz),
                Some(ns * COMMON_GHZ),
            ),
            ("mpps", Some(self.mpps), Some(workers * 1e3 / ns)),
            (
                "mpps_per_worker",
                Some(self.mpps_per_worker),
                Some(self.mpps / workers),
            ),
            (
                "gbps_ip",
                Some(self.gbps_ip),
                Some(self.mpps * ip_bits / 1e3),
            ),
            (
                "gbps_ip_per_worker",
                Some(self.gbps_ip_per_worker),
                Some(self.gbps_ip / workers),
            ),
            (
                "ratio_to_mac_forward",
                Some(self.ratio_to_mac_forward),
                Some(self.mac_forward_ns / ns),
            ),
            (
                "scaling",
                self.scaling,
                self.solo_ns_per_packet.map(|solo| workers * solo / ns),
            ),
            (
                "pppoe_nat_to_plain_ip",
                self.pppoe_nat_to_plain_ip,
                per(self.pppoe_nat_ns_per_packet),
            ),
            (
                "malformed_to_good",
                self.malformed_to_good,
                per(self.malformed_ns_per_packet),
            ),
            (
                "reading_once_a_second_costs",
                self.reading_once_a_second_costs,
                self.reading_ns_per_packet
                    .map(|reading| reading_cost(self.sessions, self.workers, reading - ns)),
            ),
            (
                "frames_per_super_packet",
                (self.coalescing.as_ref()).map(|it| it.frames_per_super_packet),
                (self.coalescing.as_ref())
                    .map(|it| it.merged_frames as f64 / it.super_packets as f64),
            ),
            (
                "cores",
                Some(self.cores.len() as f64),
                Some(f64::from(self.threads)),
            ),
        ];
        for (name, found, wanted) in derived {
            let agree = match (found, wanted) {
                // What JSON keeps of a number differs in the last place at most.
                (Some(found), Some(wanted)) => (found - wanted).abs() <= 1e-9 * wanted.abs(),
                (None, None) => true,
                _ => false,
            };
            if !agree {
                return Err(Mismatch {
                    name,
                    found: found.unwrap_or(f64::NAN),
                    wanted: wanted.unwrap_or(f64::NAN),
                });
            }
        }
        Ok(())
    }

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
            samples_clean,
            ..
        } = self;
        format!(
            "{sessions} sessions, {flows} flows, {destinations} destinations, IP packets of {ip_bytes} bytes, {tags} VLAN tags, random \
             flow order, every packet checked once\n\
             features {features:?}, locking {locking:?}, copies {copy:?}\n\
             {workers} worker(s) on core(s) {cores:?} (pinned), {:.0} MHz time-stamp counter, buffers in {packet_memory}, {dpdk}\n\
             median (quartiles) of {samples} samples of {packets_per_sample} packets; {samples_preempted} in which a worker lost its core {}\n\
             {}\n\
             Gbit/s: {}\n\
             timed: {}\n\
             MAC forward: {}\n\n\
             {:<10}{:>8}{:>16}{:>8}{:>8}{:>8}{:>10}{:>13}{:>8}{:>13}",
            *tsc_hz as f64 / 1e6,
            if *samples_clean {
                "do not count"
            } else {
                "count, too: the machine is busy"
            },
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

#[cfg(test)]
mod tests {
    use super::super::lane::Pass;
    use super::*;

    fn part(number: usize, packets: usize, ticks: u64, clean: bool) -> Part {
        Part {
            number,
            kind: 0,
            settling: number == 0,
            pass: Pass { packets, ticks },
            clean,
            allocations: 0,
        }
    }

    #[test]
    fn rates_of_workers_add_up_and_preempted_rounds_do_not_count() {
        // At 2 ticks a nanosecond: 10 and 30 ns a packet, so 2 workers do 2 packets in 15 ns: 15 ns of a worker for each.
        let fast: Vec<_> = (0..40).map(|n| part(n, 100, 2_000, n != 7)).collect();
        let slow: Vec<_> = (0..40).map(|n| part(n, 50, 3_000, true)).collect();
        let found = kind(&[&fast, &slow], 0, 0.5);
        assert!((found.samples.median() - 15.0).abs() < 1e-9);
        // The first one settles.
        assert_eq!((found.samples.len(), found.preempted), (38, 1));
        assert_eq!(found.packets, 40 * 150);
        assert!(found.clean);
    }

    #[test]
    fn where_hardly_a_round_is_clean_all_count_and_it_is_said() {
        let parts: Vec<_> = (0..40).map(|n| part(n, 100, 2_000, n < 5)).collect();
        let found = kind(&[&parts], 0, 0.5);
        assert_eq!((found.samples.len(), found.clean), (39, false));
        assert!(kind(&[&parts], 1, 0.5).samples.median().is_nan());
    }

    #[test]
    fn reading_counters_costs_each_session_once_a_second() {
        // 64,000 sessions, 50 ns more at the next packet of each: 3.2 ms a second.
        assert!((reading_cost(64_000, 1, 50.0) - 0.0032).abs() < 1e-12);
        assert!((reading_cost(64_000, 2, 50.0) - 0.0016).abs() < 1e-12);
        assert_eq!(reading_cost(64_000, 1, -3.0), 0.0);
    }
}
