//! The result of a run, for people and for programs.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::lane::Lane;

/// Latency in microseconds: from the moment a packet is stamped in the generator to the moment it is taken from the other port,
/// both ports' rings included.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Latency {
    min: f64,
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p99_9: f64,
    max: f64,
}

impl Latency {
    fn of(ticks: &Histogram<u64>, tsc_hz: u64) -> Option<Self> {
        let us = |value: f64| value * 1e6 / tsc_hz as f64;
        let at = |quantile| us(ticks.value_at_quantile(quantile) as f64);
        (!ticks.is_empty()).then(|| Self {
            min: us(ticks.min() as f64),
            mean: us(ticks.mean()),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: us(ticks.max() as f64),
        })
    }
}

/// One direction of one trial. Rates are of all flows together.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LaneReport {
    direction: &'static str,
    pps_planned: f64,
    pps_offered: f64,
    pps_received: f64,
    gbps_ip_received: f64,
    offered: u64,
    received: u64,
    lost: u64,
    /// Of the lost ones, those the generator's port had no room for.
    refused: u64,
    duplicates: u64,
    reordered: u64,
    too_late: u64,
    misdelivered: u64,
    corrupt: u64,
    stale: u64,
    flows_used: u64,
    flows_with_loss: u64,
    most_lost_of_one_flow: u64,
    generator_stalls: u64,
    latency_us: Option<Latency>,
}

impl LaneReport {
    /// From a lane's counts after a trial.
    pub(super) fn of(
        lane: &Lane,
        planned: f64,
        sending: Duration,
        ip_bytes: usize,
        tsc_hz: u64,
    ) -> Self {
        let counts = &lane.counts;
        let seconds = sending.as_secs_f64().max(1e-9);
        let mut report = Self {
            direction: lane.direction().name(),
            pps_planned: planned,
            pps_offered: counts.offered as f64 / seconds,
            pps_received: 0.0,
            gbps_ip_received: 0.0,
            offered: counts.offered,
            received: 0,
            lost: 0,
            refused: counts.refused,
            duplicates: 0,
            reordered: 0,
            too_late: 0,
            misdelivered: counts.misdelivered,
            corrupt: counts.corrupt,
            stale: counts.stale,
            flows_used: 0,
            flows_with_loss: 0,
            most_lost_of_one_flow: 0,
            generator_stalls: counts.stalls,
            latency_us: Latency::of(&lane.latency, tsc_hz),
        };
        for state in &lane.states {
            let seen = state.seen.counts();
            let lost = u64::from(state.sent).saturating_sub(seen.unique);
            report.received += seen.unique;
            report.duplicates += seen.duplicates;
            report.reordered += seen.reordered;
            report.too_late += seen.too_late;
            report.flows_used += u64::from(state.sent > 0);
            report.flows_with_loss += u64::from(lost > 0);
            report.most_lost_of_one_flow = report.most_lost_of_one_flow.max(lost);
        }
        report.lost = counts.offered.saturating_sub(report.received);
        report.pps_received = report.received as f64 / seconds;
        report.gbps_ip_received = report.pps_received * ip_bytes as f64 * 8e-9;
        report
    }

    pub(super) const fn offered(&self) -> f64 {
        self.pps_offered
    }

    pub(super) const fn received(&self) -> f64 {
        self.pps_received
    }

    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }

    /// Nothing damaged, misdelivered, repeated or out of order.
    pub(super) const fn is_intact(&self) -> bool {
        self.misdelivered == 0
            && self.corrupt == 0
            && self.duplicates == 0
            && self.reordered == 0
            && self.too_late == 0
    }
}

/// One trial of a search.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Step {
    pub(super) pps: f64,
    pub(super) pps_offered: f64,
    pub(super) lost: u64,
}

/// The search.
#[derive(Clone, Debug, Serialize)]
pub(super) struct SearchReport {
    /// Highest rate without loss, packets per second and direction.
    pub(super) zero_loss_pps: f64,
    /// The same in bits of IP.
    pub(super) zero_loss_gbps_ip: f64,
    /// `loss`, `generator` or `max-rate`.
    pub(super) limited_by: &'static str,
    /// Part of the rate to which it is known.
    pub(super) resolution: f64,
    pub(super) acceptable_loss: u64,
    pub(super) trial_seconds: f64,
    /// Trials at a rate before it counts as lossy.
    pub(super) attempts: u32,
    pub(super) trials: Vec<Step>,
}

/// A dataplane on this machine.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DataplaneSetting {
    pub(super) workers: usize,
    pub(super) worker_cores: Vec<usize>,
    pub(super) main_core: usize,
    pub(super) idle_backoff_us: u32,
    /// The generator runs on a core of one of its workers.
    pub(super) shares_core_with_generator: bool,
}

/// Where the two ends ran.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Setting {
    pub(super) access_device: String,
    pub(super) core_device: String,
    pub(super) driver: String,
    /// How the sessions came up: `shared-memory` or `pppoe`.
    pub(super) sessions_by: &'static str,
    pub(super) generator_core: usize,
    pub(super) online_cores: usize,
    pub(super) memory: &'static str,
    pub(super) tsc_hz: u64,
    /// Unknown when sessions are dialled.
    pub(super) dataplane: Option<DataplaneSetting>,
}

/// The whole result.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) sessions: u32,
    pub(super) flows: u32,
    pub(super) ip_bytes: usize,
    pub(super) direction: &'static str,
    pub(super) seconds: f64,
    pub(super) setting: Setting,
    pub(super) search: Option<SearchReport>,
    /// The trial at the rate asked for, or at the rate found.
    pub(super) lanes: Vec<LaneReport>,
    pub(super) foreign_frames: u64,
    /// What the dataplane says it lost during that trial, by reason.
    pub(super) dataplane_losses: BTreeMap<String, u64>,
    pub(super) interrupted: bool,
}

impl Report {
    /// Whether everything that arrived was right and, at a given rate, nothing was lost.
    pub(super) fn passed(&self) -> bool {
        let intact = self.lanes.iter().all(LaneReport::is_intact);
        let lost: u64 = self.lanes.iter().map(LaneReport::lost).sum();
        let found = self
            .search
            .as_ref()
            .is_some_and(|search| search.zero_loss_pps > 0.0);
        intact && !self.interrupted && (found || (self.search.is_none() && lost == 0))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let setting = &self.setting;
        writeln!(
            f,
            "{} sessions, {} flows, {} bytes of IP, direction {}; {} port(s)",
            self.sessions, self.flows, self.ip_bytes, self.direction, setting.driver
        )?;
        if let Some(dataplane) = &setting.dataplane {
            writeln!(
                f,
                "dataplane      {} worker(s) on core(s) {:?}, main thread on core {}, idle back-off {} us{}",
                dataplane.workers,
                dataplane.worker_cores,
                dataplane.main_core,
                dataplane.idle_backoff_us,
                if dataplane.shares_core_with_generator {
                    "; A WORKER HAS THE GENERATOR'S CORE: the figures are of the two together"
                } else {
                    ""
                }
            )?;
        }
        writeln!(
            f,
            "generator      one thread on core {} of {}, {}, sessions by {}",
            setting.generator_core, setting.online_cores, setting.memory, setting.sessions_by
        )?;
        if let Some(search) = &self.search {
            writeln!(
                f,
                "zero loss      {:.0} packets per second and direction, {:.3} Gbit/s of IP; more is limited by {} \
                 ({} trials of {} s, up to {} at a rate, resolution {:.1} %)",
                search.zero_loss_pps,
                search.zero_loss_gbps_ip,
                search.limited_by,
                search.trials.len(),
                search.trial_seconds,
                search.attempts,
                search.resolution * 100.0
            )?;
        }
        for lane in &self.lanes {
            writeln!(
                f,
                "{:<14} offered {} ({:.0} per second), received {} ({:.0} per second, {:.3} Gbit/s of IP), lost {} ({} refused by the port)",
                lane.direction,
                lane.offered,
                lane.pps_offered,
                lane.received,
                lane.pps_received,
                lane.gbps_ip_received,
                lane.lost,
                lane.refused
            )?;
            writeln!(
                f,
                "  flows        {} used, {} with loss (at most {}); repeated {}, out of order {}, beyond the window {}, misdelivered {}, corrupt {}",
                lane.flows_used,
                lane.flows_with_loss,
                lane.most_lost_of_one_flow,
                lane.duplicates,
                lane.reordered,
                lane.too_late,
                lane.misdelivered,
                lane.corrupt
            )?;
            if let Some(latency) = &lane.latency_us {
                writeln!(
                    f,
                    "  latency us   min {:.1}, mean {:.1}, p50 {:.1}, p90 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.1}",
                    latency.min,
                    latency.mean,
                    latency.p50,
                    latency.p90,
                    latency.p99,
                    latency.p99_9,
                    latency.max
                )?;
            }
            if lane.generator_stalls > 0 {
                writeln!(
                    f,
                    "  generator    fell behind {} time(s) and left packets out",
                    lane.generator_stalls
                )?;
            }
        }
        if !self.dataplane_losses.is_empty() {
            writeln!(f, "dataplane says {:?}", self.dataplane_losses)?;
        }
        Ok(())
    }
}
