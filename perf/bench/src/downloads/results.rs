//! The result file: what was counted. What follows from it is computed when it is read, so the two cannot differ.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::cell::{Cell, Protocol, Way};

/// Shares of a core that threads used.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Processor {
    /// The gateway's worker.
    pub(super) worker: f64,
    /// The gateway's host thread, or the machine's card.
    pub(super) host: f64,
    /// The sender, polling included.
    pub(super) sender: f64,
    /// Who reads the sockets.
    pub(super) receiver: f64,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) seconds: f64,
    /// Payload bytes the receivers read.
    pub(super) payload_bytes: u64,
    /// System calls that read them.
    pub(super) reads: u64,
    /// Frames the gateway received.
    pub(super) frames: u64,
    /// Frames that went to where packets are expensive.
    pub(super) given: u64,
    /// Frames the coalescer made super-packets of.
    pub(super) merged: u64,
    /// Those super-packets.
    pub(super) supers: u64,
    /// Super-packets that went there whole.
    pub(super) whole: u64,
    /// What the gateway lost, by reason.
    pub(super) losses: BTreeMap<String, u64>,
    /// Payload bytes sent again (TCP).
    pub(super) repeated_bytes: u64,
    /// Payload bytes that did not arrive (UDP).
    pub(super) lost_bytes: u64,
    /// Time-outs of the sender.
    pub(super) time_outs: u64,
    pub(super) processor: Processor,
    /// What other programs took of the two cores, in cores.
    pub(super) others: f64,
}

/// What others may take of the two cores.
const OTHERS: f64 = 0.1;

impl Measured {
    /// Payload, Gbit/s.
    pub(super) fn gbps(&self) -> f64 {
        self.payload_bytes as f64 * 8e-9 / self.seconds
    }

    /// Frames per super-packet; `None` without super-packets.
    pub(super) fn frames_per_super(&self) -> Option<f64> {
        (self.supers > 0).then(|| self.merged as f64 / self.supers as f64)
    }

    /// Frames per packet that went there.
    pub(super) fn frames_per_packet(&self) -> f64 {
        // Of the frames merged, those whose super-packet was given whole; the rest went one by one.
        let whole = self.frames_per_super().unwrap_or(0.0) * self.whole as f64;
        let packets = self.given as f64 - whole + self.whole as f64;
        self.given as f64 / packets.max(1.0)
    }

    /// Whether other programs had too much of the cores for the figures to be believed.
    pub(super) fn is_disturbed(&self) -> bool {
        self.others > OTHERS
    }

    /// Whether nothing was lost and sent again.
    pub(super) fn is_clean(&self) -> bool {
        self.losses.is_empty() && self.repeated_bytes + self.lost_bytes + self.time_outs == 0
    }
}

/// The same load without and with coalescing, in turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) way: Way,
    pub(super) protocol: Protocol,
    pub(super) flows: u16,
    pub(super) train: u8,
    /// Payload bytes of a frame.
    pub(super) payload: usize,
    pub(super) off: Vec<Measured>,
    pub(super) on: Vec<Measured>,
}

impl Row {
    /// The measurement with coalescing off or on.
    pub(super) const fn cell(&self, coalescing: bool) -> Cell {
        Cell {
            way: self.way,
            protocol: self.protocol,
            flows: self.flows,
            coalescing,
            train: self.train,
        }
    }

    /// Throughput with coalescing by that without: of the medians.
    pub(super) fn gain(&self) -> f64 {
        median(&self.on, Measured::gbps) / median(&self.off, Measured::gbps)
    }
}

/// Median of a figure over runs; not a number without runs.
pub(super) fn median(runs: &[Measured], figure: impl Fn(&Measured) -> f64) -> f64 {
    let mut all: Vec<f64> = runs.iter().map(figure).collect();
    all.sort_by(f64::total_cmp);
    let middle = |at: usize| all.get(at).copied().unwrap_or(f64::NAN);
    let half = all.len() / 2;
    if all.len().is_multiple_of(2) {
        f64::midpoint(middle(half.wrapping_sub(1)), middle(half))
    } else {
        middle(half)
    }
}

/// Smallest and largest value of a figure.
pub(super) fn range(runs: &[Measured], figure: impl Fn(&Measured) -> f64) -> (f64, f64) {
    let start = (f64::INFINITY, f64::NEG_INFINITY);
    runs.iter().map(figure).fold(start, |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

/// Where it was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) processor: String,
    /// Cores the process may use.
    pub(super) cores: usize,
    pub(super) kernel: String,
    pub(super) dpdk: String,
}

/// Who runs on which core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cores {
    /// The gateway's main and host threads, and who reads the sockets.
    pub(super) kernel: usize,
    /// The gateway's worker and the sender.
    pub(super) packets: usize,
}

/// Everything a run of the tool found out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Results {
    pub(super) version: String,
    /// Commit of the source, if Git could tell.
    pub(super) commit: Option<String>,
    /// Seconds of each run.
    pub(super) seconds: f64,
    /// Runs of each cell, off and on in turns.
    pub(super) repeats: usize,
    /// Frames a flow sends at once, where nothing else is said.
    pub(super) train: u8,
    /// Frames on their way at most, all flows.
    pub(super) in_flight: u32,
    pub(super) cores: Cores,
    pub(super) machine: Machine,
    pub(super) rows: Vec<Row>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(payload_bytes: u64) -> Measured {
        Measured {
            seconds: 2.0,
            payload_bytes,
            reads: 1,
            frames: 110,
            given: 110,
            merged: 100,
            supers: 10,
            whole: 10,
            losses: BTreeMap::new(),
            repeated_bytes: 0,
            lost_bytes: 0,
            time_outs: 0,
            processor: Processor {
                worker: 0.0,
                host: 0.0,
                sender: 0.0,
                receiver: 0.0,
            },
            others: 0.0,
        }
    }

    #[test]
    fn medians_and_ratios_are_those_of_the_counts() {
        let runs: Vec<_> = [3, 1, 2].map(|n| measured(n * 1_000_000_000)).into();
        assert!((median(&runs, Measured::gbps) - 8.0).abs() < 1e-9);
        assert!((median(&runs[..2], Measured::gbps) - 8.0).abs() < 1e-9);
        assert_eq!(range(&runs, Measured::gbps), (4.0, 12.0));
        assert!(median(&[], Measured::gbps).is_nan());
        let run = measured(1);
        assert_eq!(run.frames_per_super(), Some(10.0));
        // 100 frames in 10 packets, 10 by themselves.
        assert!((run.frames_per_packet() - 5.5).abs() < 1e-9);
        let single = Measured {
            whole: 0,
            ..run.clone()
        };
        assert!((single.frames_per_packet() - 1.0).abs() < 1e-9);
        assert!(run.is_clean());
        let lossy = Measured {
            time_outs: 1,
            ..run
        };
        assert!(!lossy.is_clean() && !lossy.is_disturbed());
        let disturbed = Measured {
            others: 0.5,
            ..lossy
        };
        assert!(disturbed.is_disturbed());
    }
}
