//! What the project promises of its fast path, and whether it holds.

use serde::{Deserialize, Serialize};

use super::cells::{FULL, LARGE, LOCKS, SHAPES, SMALL, TRAINS};
use super::results::{Results, Which};
use super::seed::SEED_BEST_CORE_GBPS;
use crate::fastpath::{Checksums, Copying, Direction, Figures, Locking};

/// One promise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Target {
    pub(super) what: String,
    pub(super) wanted: String,
    pub(super) measured: String,
    /// `None` if it was not measured.
    pub(super) met: Option<bool>,
}

/// How a value is held against its bound.
enum Bound {
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
}

impl Bound {
    fn holds(&self, value: f64) -> bool {
        match *self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
            Self::Below(bound) => value < bound,
        }
    }

    fn text(&self, decimals: usize, unit: &str) -> String {
        let (word, bound) = match self {
            Self::AtLeast(bound) => ("at least", bound),
            Self::AtMost(bound) => ("at most", bound),
            Self::Below(bound) => ("below", bound),
        };
        format!("{word} {bound:.decimals$}{unit}")
    }
}

fn target(
    what: impl Into<String>,
    bound: &Bound,
    value: Option<f64>,
    decimals: usize,
    unit: &str,
) -> Target {
    Target {
        what: what.into(),
        wanted: bound.text(decimals, unit),
        measured: value.map_or_else(
            || "not measured".to_owned(),
            |value| format!("{value:.decimals$}{unit}"),
        ),
        met: value.map(|value| bound.holds(value)),
    }
}

fn name(direction: Direction) -> &'static str {
    match direction {
        Direction::Up => "up",
        Direction::Down => "down",
    }
}

/// All targets.
pub(super) fn of(results: &Results) -> Vec<Target> {
    let mut targets = Vec::new();
    for direction in [Direction::Up, Direction::Down] {
        of_direction(results, direction, &mut targets);
    }
    let allocations = results
        .figures
        .iter()
        // The lock's own queue of waiting threads is memory, too.
        .filter(|figures| figures.locking == Locking::None)
        .map(|figures| figures.allocations_per_packet)
        .fold(0.0, f64::max);
    targets.push(target(
        "allocations per packet, most of all cells without a lock",
        &Bound::AtMost(0.0),
        Some(allocations),
        3,
        "",
    ));
    let flood = Which {
        malformed: true,
        ..Which::of(Direction::Up, LARGE, FULL)
    };
    targets.push(target(
        "flood of malformed frames: rate by that of good ones (HZ-01)",
        &Bound::AtLeast(0.9),
        results.find(flood).and_then(|f| f.malformed_to_good),
        2,
        "",
    ));
    let locked = Which {
        workers: 2,
        locking: Locking::Packet,
        ..Which::of(Direction::Up, LARGE, LOCKS)
    };
    targets.push(target(
        "two workers and one lock per packet: rate by that of one worker, up (the collapse is to be seen)",
        &Bound::Below(1.0),
        results.find(locked).and_then(|f| f.scaling),
        2,
        "",
    ));
    targets
}

fn of_direction(results: &Results, direction: Direction, targets: &mut Vec<Target>) {
    let way = name(direction);
    let large = |shape| results.find(Which::of(direction, LARGE, shape));
    let full = large(FULL);
    targets.push(target(
        format!(
            "{way}, 64k sessions, 1M flows, one worker, no copies (the seed's 16 cores; aim 28)"
        ),
        &Bound::AtLeast(18.5),
        full.map(|f| f.mpps),
        2,
        " Mpps",
    ));
    targets.push(target(
        format!("{way}, the same: part of the MAC-forward rate"),
        &Bound::AtLeast(0.35),
        full.map(|f| f.ratio_to_mac_forward),
        3,
        "",
    ));
    let copied = results.find(Which {
        copy: Copying::Both,
        ..Which::of(direction, LARGE, FULL)
    });
    targets.push(target(
        format!("{way}, the same with copies in and out: part of the MAC-forward rate with the same copies"),
        &Bound::AtLeast(0.7),
        copied.map(|f| f.ratio_to_mac_forward),
        3,
        "",
    ));
    targets.push(target(
        format!("{way}, the same with copies in and out: four times the seed's best core"),
        &Bound::AtLeast(4.0 * SEED_BEST_CORE_GBPS),
        copied.map(|f| f.gbps_ip_per_worker),
        1,
        " Gbit/s of IP",
    ));
    let clocks = match direction {
        Direction::Up => 72.0,
        Direction::Down => 82.0,
    };
    targets.push(target(
        format!(
            "{way}, 10k sessions, 65k flows, small packets, clocks at 2.1 GHz: a seventh of VPP's"
        ),
        &Bound::AtMost(clocks),
        results
            .find(Which::of(direction, SMALL, SHAPES[2]))
            .map(|f| f.clocks_at_2_1_ghz),
        0,
        "",
    ));
    let cost = |figures: Option<&Figures>| figures.map(|f| f.ns_per_packet);
    let growth = cost(full).zip(cost(large(SHAPES[0])));
    targets.push(target(
        format!("{way}, cost per packet at 64k/1M by that at 1k/1k"),
        &Bound::AtMost(1.6),
        growth.map(|(full, small)| full / small),
        2,
        "",
    ));
    let two = Which {
        workers: 2,
        ..Which::of(direction, LARGE, LOCKS)
    };
    targets.push(target(
        format!("{way}, rate of two workers by that of one (in one run, in turns)"),
        &Bound::AtLeast(1.95),
        results.find(two).and_then(|f| f.scaling),
        2,
        "",
    ));
    let reading = Which {
        reading: true,
        ..Which::of(direction, LARGE, FULL)
    };
    targets.push(target(
        format!("{way}, reading the counters of 64k sessions once a second costs a worker"),
        &Bound::Below(1.0),
        results
            .find(reading)
            .and_then(|f| f.reading_once_a_second_costs)
            .map(|part| part * 100.0),
        3,
        " %",
    ));
    let plain = Which {
        plain_ip: true,
        ..Which::of(direction, LARGE, FULL)
    };
    targets.push(target(
        format!("{way}, PPPoE and NAT by plain IP with the same features, rates (HZ-21)"),
        &Bound::AtLeast(0.85),
        results.find(plain).and_then(|f| f.pppoe_nat_to_plain_ip),
        2,
        "",
    ));
    of_coalescing(results, direction, targets);
}

fn of_coalescing(results: &Results, direction: Direction, targets: &mut Vec<Target>) {
    let way = name(direction);
    let trains = results.find(Which {
        coalescing: Some(Checksums::Port),
        ..Which::of(direction, LARGE, TRAINS)
    });
    let trains = trains.and_then(|figures| figures.coalescing.as_ref());
    targets.push(target(
        format!("{way}, coalescing off: cost by that of a loop without the stage"),
        &Bound::AtMost(1.01),
        trains.map(|f| f.off_by_bare),
        3,
        "",
    ));
    targets.push(target(
        format!("{way}, coalescing on, 64 flows in trains of 16: frames in a super-packet"),
        &Bound::AtLeast(8.0),
        trains.map(|f| f.frames_per_super_packet),
        1,
        "",
    ));
    targets.push(target(
        format!("{way}, the same: cost by that of coalescing off"),
        &Bound::AtMost(1.15),
        trains.map(|f| f.on_by_off),
        3,
        "",
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_held_as_it_is_worded() {
        let met = |bound, value| target("", &bound, value, 1, " x");
        assert_eq!(met(Bound::AtLeast(2.0), Some(2.0)).met, Some(true));
        assert_eq!(met(Bound::AtMost(2.0), Some(2.1)).met, Some(false));
        assert_eq!(met(Bound::Below(2.0), Some(2.0)).met, Some(false));
        let open = met(Bound::Below(2.0), None);
        assert_eq!((open.met, open.wanted.as_str()), (None, "below 2.0 x"));
        assert_eq!(open.measured, "not measured");
    }
}
