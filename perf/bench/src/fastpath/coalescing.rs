//! What coalescing costs when it is off and when it is on.

use std::fmt;

use anyhow::{Result, bail};
use bng_fastpath::coalesce::{Protocols, Settings};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::lane::Work;
use super::rounds::{Part, Round};
use super::stats::{Samples, Spread};

/// Who verifies TCP checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Checksums {
    /// The port: it has found all of them right, as a NIC does that looks inside PPPoE.
    Port,
    /// The worker.
    Software,
}

/// What a worker is set to where coalescing is on: all of it.
pub(super) fn settings() -> Settings {
    let all = Protocols {
        tcp: true,
        udp: true,
    };
    Settings {
        upstream: all,
        downstream: all,
        ipv4: true,
        ipv6: true,
        ports_off: Vec::new(),
        hold_ns: 0,
        max_frames: 64,
        verify: true,
    }
}

/// What a worker's coalescer has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Merged {
    pub(super) candidates: u64,
    pub(super) merged: u64,
    pub(super) single: u64,
    pub(super) supers: u64,
}

impl Merged {
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            candidates: self.candidates - before.candidates,
            merged: self.merged - before.merged,
            single: self.single - before.single,
            supers: self.supers - before.supers,
        }
    }
}

/// Off and on beside a loop that knows nothing of coalescing. "By" is a ratio of two costs, taken turn by turn, so that a
/// machine that changes its speed changes both.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Coalescing {
    /// Frames of a flow in a row.
    pub(crate) train: u16,
    pub(crate) checksums: Checksums,
    /// The loop without the stage, nanoseconds a packet.
    pub(crate) bare_ns_per_packet: f64,
    /// On.
    pub(crate) on_ns_per_packet: f64,
    /// Median over the turns; off is `ns_per_packet`.
    pub(crate) off_by_bare: f64,
    /// Of `off_by_bare`.
    pub(crate) off_by_bare_spread: Spread,
    /// Median over the turns.
    pub(crate) on_by_off: f64,
    /// Of `on_by_off`.
    pub(crate) on_by_off_spread: Spread,
    /// Turns in which every loop kept its core.
    pub(crate) turns: usize,
    /// Frames merged, by the worker's counters.
    pub(crate) merged_frames: u64,
    /// Of all frames that could be.
    pub(crate) candidates: u64,
    pub(crate) super_packets: u64,
    /// `merged_frames` by `super_packets`; 0 without any, as with trains of one.
    pub(crate) frames_per_super_packet: f64,
}

/// Ratios of the costs of two kinds of rounds, one for each turn in which both were measured and kept their core; with
/// `all` also those that did not.
fn ratios(parts: &[Part], turn: usize, [above, below]: [usize; 2], all: bool) -> Samples {
    let counts = |part: &&Part| !part.settling && (all || part.clean) && part.pass.packets > 0;
    let of = |kind: usize| parts.iter().filter(move |part| part.kind == kind);
    let mut ratios = Samples::default();
    let mut others = of(below).filter(counts).peekable();
    for part in of(above).filter(counts) {
        let number = part.number / turn;
        while others
            .next_if(|other| other.number / turn < number)
            .is_some()
        {}
        if let Some(other) = others.next_if(|other| other.number / turn == number) {
            let cost = |part: &Part| part.pass.ticks as f64 / part.pass.packets as f64;
            ratios.add(cost(part) / cost(other));
        }
    }
    ratios
}

/// Fewer turns than this are no better than all.
const ENOUGH: usize = 10;

/// Puts together what one lane has measured. `median` gives the median cost of a kind of rounds, nanoseconds.
pub(super) fn of_parts(
    rounds: &[Round],
    parts: &[Part],
    (train, checksums): (u16, Checksums),
    counted: Merged,
    median: impl Fn(usize) -> f64,
) -> Result<Coalescing> {
    let at = |wanted: fn(Work) -> bool| rounds.iter().position(|round| wanted(round.work));
    let (Some(off), Some(bare), Some(on)) = (
        at(|work| matches!(work, Work::Pipeline(_))),
        at(|work| matches!(work, Work::Bare(_))),
        at(|work| matches!(work, Work::Coalesced(_))),
    ) else {
        bail!("not all loops ran");
    };
    let turn = rounds
        .iter()
        .map(|round| round.repeat)
        .sum::<usize>()
        .max(1);
    let paired = |kinds| {
        let clean = ratios(parts, turn, kinds, false);
        match clean.len() < ENOUGH {
            true => ratios(parts, turn, kinds, true),
            false => clean,
        }
    };
    let (off_by_bare, on_by_off) = (paired([off, bare]), paired([on, off]));
    // The counters must say what the loop says: every frame was one to be merged.
    let sent: usize = (parts.iter())
        .filter(|part| part.kind == on)
        .map(|part| part.pass.packets)
        .sum();
    let Merged {
        candidates,
        merged,
        single,
        supers,
    } = counted;
    if candidates != sent as u64 || merged + single != candidates || (train > 1) != (supers > 0) {
        bail!("{sent} frames could be merged, and the worker counted {counted:?}");
    }
    Ok(Coalescing {
        train,
        checksums,
        bare_ns_per_packet: median(bare),
        on_ns_per_packet: median(on),
        off_by_bare: off_by_bare.median(),
        off_by_bare_spread: off_by_bare.spread(),
        on_by_off: on_by_off.median(),
        on_by_off_spread: on_by_off.spread(),
        turns: on_by_off.len(),
        merged_frames: merged,
        candidates,
        super_packets: supers,
        frames_per_super_packet: merged as f64 / supers.max(1) as f64,
    })
}

impl fmt::Display for Coalescing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quartiles = |spread: &Spread| format!("{:.3} to {:.3}", spread.p25, spread.p75);
        writeln!(
            f,
            "          that was coalescing off; the loop without it: {:.1} ns, off by that {:.4} ({}) over {} turns",
            self.bare_ns_per_packet,
            self.off_by_bare,
            quartiles(&self.off_by_bare_spread),
            self.turns,
        )?;
        writeln!(
            f,
            "          on, trains of {}, checksums verified by the {}: {:.1} ns, on by off {:.3} ({}); {:.1} frames in a super-packet, {:.1} % of frames merged",
            self.train,
            match self.checksums {
                Checksums::Port => "port",
                Checksums::Software => "worker",
            },
            self.on_ns_per_packet,
            self.on_by_off,
            quartiles(&self.on_by_off_spread),
            self.frames_per_super_packet,
            100.0 * self.merged_frames as f64 / self.candidates as f64,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::Direction;
    use super::super::lane::Pass;
    use super::*;

    fn part(number: usize, kind: usize, ticks: u64, clean: bool) -> Part {
        Part {
            number,
            kind,
            settling: number.is_multiple_of(2),
            pass: Pass {
                packets: 100,
                ticks,
            },
            clean,
            allocations: 0,
        }
    }

    fn rounds() -> Vec<Round> {
        let round = |work| Round {
            work,
            frames: 0,
            solo: false,
            reading: false,
            repeat: 2,
        };
        [Work::Pipeline, Work::Bare, Work::Coalesced]
            .map(|work| round(work(Direction::Up)))
            .to_vec()
    }

    /// Twenty turns of three kinds, twice each, on a machine that becomes slower by a half.
    fn parts() -> Vec<Part> {
        let turns = (0..20).flat_map(|turn| {
            let speed = if turn < 7 { 100 } else { 150 };
            [(0, 101), (1, 100), (2, 110)]
                .into_iter()
                .flat_map(move |(kind, cost)| {
                    let number = turn * 6 + kind * 2;
                    // The first of each settles, and one lost its core.
                    let lost = turn == 3 && kind == 2;
                    let cost = if lost { 9_000 } else { cost };
                    [
                        part(number, kind, 1 << 40, true),
                        part(number + 1, kind, cost * speed, !lost),
                    ]
                })
        });
        turns.collect()
    }

    const COUNTED: Merged = Merged {
        candidates: 4_000,
        merged: 3_900,
        single: 100,
        supers: 300,
    };

    #[test]
    fn ratios_are_of_the_same_turn_whatever_the_machine_does() {
        let found = of_parts(
            &rounds(),
            &parts(),
            (16, Checksums::Port),
            COUNTED,
            |kind| kind as f64,
        )
        .unwrap();
        assert!((found.off_by_bare - 1.01).abs() < 1e-9);
        assert!((found.on_by_off - 110.0 / 101.0).abs() < 1e-9);
        assert!((found.on_by_off_spread.max - 110.0 / 101.0).abs() < 1e-9);
        assert_eq!(found.turns, 19);
        assert_eq!(
            (found.bare_ns_per_packet, found.on_ns_per_packet),
            (1.0, 2.0)
        );
        assert_eq!(found.frames_per_super_packet, 13.0);
    }

    #[test]
    fn trains_of_one_cost_something_and_merge_nothing() {
        let alone = Merged {
            candidates: 4_000,
            single: 4_000,
            ..Merged::default()
        };
        let of = |train, counted| {
            let of = (train, Checksums::Port);
            of_parts(&rounds(), &parts(), of, counted, |_| 1.0)
        };
        let found = of(1, alone).unwrap();
        assert_eq!(
            (found.super_packets, found.frames_per_super_packet),
            (0, 0.0)
        );
        assert!(of(16, alone).is_err());
        assert!(of(1, COUNTED).is_err());
    }

    #[test]
    fn counters_that_say_something_else_than_the_loop_end_the_run() {
        for counted in [
            Merged {
                candidates: 3_999,
                ..COUNTED
            },
            Merged {
                single: 0,
                ..COUNTED
            },
            Merged::default(),
        ] {
            let of = (16, Checksums::Port);
            assert!(of_parts(&rounds(), &parts(), of, counted, |_| 1.0).is_err());
        }
    }
}
