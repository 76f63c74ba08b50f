//! Medians, spread and everything a reader needs to know about a figure.

use std::fmt;

use serde::Serialize;

/// Ticks per packet of many chunks.
#[derive(Debug, Default)]
pub(super) struct Samples(Vec<f64>);

impl Samples {
    pub(super) fn add(&mut self, ticks: u64, packets: usize) {
        self.0.push(ticks as f64 / packets as f64);
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    /// Values at the given quantiles. Nothing measured is not a number.
    pub(super) fn at<const N: usize>(&mut self, quantiles: [f64; N]) -> [f64; N] {
        self.0.sort_by(f64::total_cmp);
        quantiles.map(|quantile| {
            let at = (quantile * self.0.len().saturating_sub(1) as f64).round();
            self.0.get(at as usize).copied().unwrap_or(f64::NAN)
        })
    }
}

/// What was measured, where and how. Every rate is of one worker on one core, which is also the total.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    pub(super) direction: &'static str,
    pub(super) ip_bytes: usize,
    pub(super) sessions: u32,
    pub(super) flows: u32,
    pub(super) destinations: u32,
    pub(super) workers: u32,
    pub(super) ns_per_packet: f64,
    pub(super) clocks_per_packet: f64,
    pub(super) mpps: f64,
    pub(super) gbps_ip: f64,
    pub(super) mac_forward_ns: f64,
    pub(super) mac_forward_clocks: f64,
    pub(super) ratio_to_mac_forward: f64,
    pub(super) allocations_per_packet: f64,
    pub(super) samples: usize,
    pub(super) packets_per_sample: usize,
    pub(super) p10_ns: f64,
    pub(super) p90_ns: f64,
    pub(super) mac_forward_p10_ns: f64,
    pub(super) mac_forward_p90_ns: f64,
    pub(super) packets_checked: u32,
    pub(super) packets_timed: u64,
    pub(super) nat_mappings: u32,
    pub(super) rate_is: &'static str,
    pub(super) layer: &'static str,
    pub(super) timed: &'static str,
    pub(super) reference: &'static str,
    pub(super) threads: u32,
    pub(super) cores: u32,
    pub(super) core: usize,
    pub(super) pinned: bool,
    pub(super) packet_memory: &'static str,
    pub(super) tsc_mhz: f64,
    pub(super) dpdk: &'static str,
    pub(super) seed: u64,
}

pub(super) const RATE_IS: &str = "one worker, which is also per core and the total";
pub(super) const LAYER: &str =
    "bytes of IP packets; no Ethernet, PPPoE, check sequence, preamble or gap";
pub(super) const TIMED: &str = "clock, NAT ageing, all stages, dispatch, transmit to net_null and free, counters, epoch echo; not the receive queue; payload is not copied";
pub(super) const REFERENCE: &str = "MAC addresses exchanged, transmit to net_null and free, on equal frames, interleaved chunk by chunk in the same run";

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<10}{:>8.1}{:>16}{:>8.0}{:>8.2}{:>10.1}{:>13.1}{:>8.2}{:>13.3}",
            self.direction,
            self.ns_per_packet,
            format!("{:.1} to {:.1}", self.p10_ns, self.p90_ns),
            self.clocks_per_packet,
            self.mpps,
            self.gbps_ip,
            self.mac_forward_ns,
            self.ratio_to_mac_forward,
            self.allocations_per_packet,
        )
    }
}

impl Figures {
    /// What stands above the lines of a table.
    pub(super) fn heading(&self) -> String {
        format!(
            "{} sessions, {} flows, {} destinations, IP packets of {} bytes, random flow order, every packet checked once\n\
             1 worker on core {} (pinned), {:.0} MHz time-stamp counter, buffers in {}, {}\n\
             per packet, median (p10 to p90) over chunks of {} packets; rates are {}\n\
             Gbit/s: {}\n\
             timed: {}\n\
             MAC forward: {}\n\n\
             {:<10}{:>8}{:>16}{:>8}{:>8}{:>10}{:>13}{:>8}{:>13}",
            self.sessions,
            self.flows,
            self.destinations,
            self.ip_bytes,
            self.core,
            self.tsc_mhz,
            self.packet_memory,
            self.dpdk,
            self.packets_per_sample,
            self.rate_is,
            self.layer,
            self.timed,
            self.reference,
            "direction",
            "ns",
            "p10 to p90",
            "clocks",
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
    use super::*;

    #[test]
    fn quantiles_are_of_the_sorted_samples() {
        let mut samples = Samples::default();
        for ticks in [50, 10, 40, 20, 30] {
            samples.add(ticks, 10);
        }
        assert_eq!(samples.at([0.0, 0.5, 1.0]), [1.0, 3.0, 5.0]);
        assert!(Samples::default().at([0.5])[0].is_nan());
    }
}
