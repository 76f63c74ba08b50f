//! The result file: what was counted. What follows from it is computed when it is read, so the two cannot differ.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Of a process, KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Memory {
    /// Its own: heap and stacks.
    pub(super) own_kib: u64,
    /// Pages of the memory the daemons share that it has touched.
    pub(super) shared_kib: u64,
}

impl Memory {
    /// Of a running process.
    pub(super) fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/status");
        let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name))
                .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
                .with_context(|| format!("{path} has no {name}"))
        };
        Ok(Self {
            own_kib: field("RssAnon:")?,
            shared_kib: field("RssShmem:")?,
        })
    }
}

/// Spread of setup times, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Times {
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

/// Sessions that ended and began again.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Churned {
    pub(super) seconds: f64,
    pub(super) hung_up: u64,
    pub(super) redialled: u64,
    pub(super) came_up: u64,
    pub(super) ups_per_second: f64,
    pub(super) setup_time_ms: Option<Times>,
}

/// PADI from random addresses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Flooded {
    pub(super) padi_sent: u64,
    pub(super) pado_received: u64,
}

/// Datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Carried {
    pub(super) sent: u64,
    pub(super) returned: u64,
    pub(super) misdelivered: u64,
    pub(super) corrupt: u64,
}

/// What the emulator says, as far as it is published.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Dialled {
    pub(super) sessions: u32,
    pub(super) sessions_up: u32,
    pub(super) setups_per_second: f64,
    pub(super) all_up_after_seconds: f64,
    pub(super) retransmissions: u64,
    pub(super) failures: BTreeMap<String, u64>,
    pub(super) ended: BTreeMap<String, u64>,
    pub(super) setup_time_ms: Option<Times>,
    pub(super) churn: Option<Churned>,
    pub(super) padi_flood: Option<Flooded>,
    pub(super) traffic: Option<Carried>,
}

/// What is left in the gateway when all sessions are over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Left {
    pub(super) sessions: u64,
    pub(super) addresses: u64,
    pub(super) port_blocks: u64,
}

/// Ended sessions as the gateway counted them, beside the subscribers' own account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ends {
    /// Sessions of the subscribers that were up and are over.
    pub(super) sessions: u64,
    /// Ends the gateway knows of.
    pub(super) known: u64,
    /// Sessions whose packets or bytes differ, or that only one side knows.
    pub(super) different: u64,
    /// IP bytes, both directions, as the subscribers counted them.
    pub(super) bytes: u64,
}

/// What a RADIUS server was asked and told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Accounted {
    pub(super) accepted: u64,
    /// Starts, each session once.
    pub(super) starts: u64,
    /// Stops, each session once.
    pub(super) stops: u64,
    /// Starts sent again, for want of an answer in time.
    pub(super) repeated_starts: u64,
    /// Stops sent again, likewise.
    pub(super) repeated_stops: u64,
    /// Octets of all stops, both directions.
    pub(super) octets: u64,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    /// Which measurement.
    pub(super) name: String,
    /// Sessions per second that were begun.
    pub(super) offered: f64,
    /// An entry for each emulator: one on each access port.
    pub(super) dialled: Vec<Dialled>,
    /// Control without sessions, with all, and when all are over.
    pub(super) before: Memory,
    pub(super) up: Memory,
    pub(super) after: Memory,
    /// Most sessions that forwarded at once.
    pub(super) forwarding: u64,
    /// Processor seconds of control's driver thread until all were up.
    pub(super) driver_seconds: f64,
    /// Frames lost between the daemons, and what control dropped, by name.
    pub(super) drops: BTreeMap<String, u64>,
    pub(super) left: Left,
    pub(super) ends: Option<Ends>,
    /// `None` with local users.
    pub(super) radius: Option<Accounted>,
}

impl Run {
    /// Sessions the emulators wanted.
    pub(super) fn sessions(&self) -> u64 {
        self.dialled.iter().map(|it| u64::from(it.sessions)).sum()
    }

    /// Setups per second of all emulators.
    pub(super) fn rate(&self) -> f64 {
        self.dialled.iter().map(|it| it.setups_per_second).sum()
    }

    /// Until the last one was up, seconds.
    pub(super) fn all_up(&self) -> f64 {
        let each = self.dialled.iter().map(|it| it.all_up_after_seconds);
        each.fold(0.0, f64::max)
    }

    /// Bytes of control for each session.
    pub(super) fn bytes_per_session(&self) -> f64 {
        let grown = self.up.own_kib.saturating_sub(self.before.own_kib);
        grown as f64 * 1_024.0 / (self.forwarding.max(1) as f64)
    }

    /// What is wrong with the counts, in words.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut say = |what: String| faults.push(format!("{}: {what}", self.name));
        for it in &self.dialled {
            if it.sessions_up != it.sessions {
                let failures = &it.failures;
                say(format!(
                    "{} of {} sessions came up ({failures:?})",
                    it.sessions_up, it.sessions
                ));
            }
            if !it.ended.is_empty() {
                say(format!("sessions were ended: {:?}", it.ended));
            }
            if let Some(churn) = it.churn.filter(|it| it.came_up != it.redialled) {
                say(format!(
                    "{} of {} sessions came up again",
                    churn.came_up, churn.redialled
                ));
            }
            if let Some(traffic) = it.traffic.filter(|it| it.misdelivered + it.corrupt != 0) {
                say(format!("wrong traffic: {traffic:?}"));
            }
        }
        if self.left != Left::default() {
            say(format!("left behind: {:?}", self.left));
        }
        if let Some(ends) = self.ends
            && (ends.different != 0 || ends.known != ends.sessions)
        {
            say(format!("accounts differ: {ends:?}"));
        }
        if let Some(radius) = self.radius {
            if radius.starts != radius.stops {
                say(format!("not one stop for each start: {radius:?}"));
            }
            let bytes = self.ends.map(|ends| (ends.sessions, ends.bytes));
            if bytes.is_some_and(|it| it != (radius.stops, radius.octets)) {
                say(format!("RADIUS was told otherwise: {radius:?}, {bytes:?}"));
            }
        }
        faults
    }
}

/// The machine the figures are of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) processor: String,
    pub(super) cores: usize,
    pub(super) kernel: String,
    pub(super) dpdk: String,
}

/// The file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Results {
    pub(super) version: String,
    pub(super) commit: Option<String>,
    pub(super) machine: Machine,
    pub(super) runs: Vec<Run>,
}

impl Results {
    /// Runs of a measurement.
    pub(super) fn of(&self, name: &str) -> Vec<&Run> {
        self.runs.iter().filter(|run| run.name == name).collect()
    }

    /// What is wrong with the counts of any run.
    pub(super) fn faults(&self) -> Vec<String> {
        self.runs.iter().flat_map(Run::faults).collect()
    }
}

/// The value in the middle; 0 of none.
pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
