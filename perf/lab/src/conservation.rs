//! Every frame ends somewhere: what came into the dataplane is what left it, to the frame (HZ-06, HZ-08).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::{Api, Metrics};
use crate::error::Result;
use crate::wait::wait_until;

/// Frames that enter the dataplane's books, by the counter's label.
const IN: [&str; 8] = [
    "rx_access",
    "rx_core",
    "taken_over",
    "injected",
    "host_out",
    // Made by the dataplane itself.
    "icmp_error_sent",
    "fragments_made",
    "fragments_resumed",
];
/// Frames that leave them.
const OUT: [&str; 7] = [
    "tx_access",
    "tx_core",
    "punt_discovery",
    "punt_ppp",
    "host_in",
    "handed_over",
    "fragments_held",
];
/// Drops of frames that no counter of [`IN`] has seen: they are refused on their way in.
const REFUSED: [&str; 5] = [
    "inject_stale",
    "inject_invalid",
    "inject_no_buffer",
    "host_inject_full",
    "host_offload_invalid",
];
/// Drops that are no frames.
const NO_FRAME: &str = "ring_corrupt";

/// How long frames may be on their way when nobody sends any more (HZ-06 R1 allows rings 100 ms; the rest is for the
/// machine, which runs a whole network).
const SETTLED: Duration = Duration::from_secs(30);

/// The dataplane's books since it started.
#[derive(Debug, Clone, PartialEq)]
pub struct Books {
    /// Frames in, by counter.
    pub came: BTreeMap<&'static str, f64>,
    /// Frames out, by counter.
    pub left: BTreeMap<&'static str, f64>,
    /// Frames dropped, by reason.
    pub dropped: BTreeMap<String, f64>,
}

impl Books {
    /// The books in `metrics`.
    #[must_use]
    pub fn of(metrics: &Metrics) -> Self {
        let sum = |label| {
            (
                label,
                metrics.sum("bng_packets_total", &[("counter", label)]),
            )
        };
        let mut dropped = metrics.by_label("bng_drops_total", "reason");
        dropped.retain(|reason, count| {
            *count != 0.0 && reason != NO_FRAME && !REFUSED.contains(&reason.as_str())
        });
        Self {
            came: IN.into_iter().map(sum).collect(),
            left: OUT.into_iter().map(sum).collect(),
            dropped,
        }
    }

    /// Frames that came and have not left: those still held, if every way out is counted.
    #[must_use]
    pub fn open(&self) -> f64 {
        let left = self.left.values().chain(self.dropped.values());
        self.came.values().sum::<f64>() - left.sum::<f64>()
    }
}

impl Api<'_> {
    /// Waits until every frame that came into the dataplane has left it, sent, punted, given to the kernel or dropped by
    /// name. To be called when nobody sends traffic; the counters' own noise (ARP, LCP echo) is in the books as well.
    ///
    /// # Errors
    /// [`crate::LabError::Timeout`] with the books when they do not balance.
    pub fn wait_until_conserved(&self) -> Result<Books> {
        wait_until(
            "every frame accounted for",
            SETTLED,
            || Ok(Books::of(&self.metrics()?)),
            |books| books.open() == 0.0,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn books(text: &str) -> Books {
        Books::of(&Metrics::parse(text).unwrap())
    }

    #[test]
    fn a_frame_that_nobody_counted_stays_open() {
        let received = "bng_packets_total{counter=\"rx_access\",worker=\"0\"} 10\n";
        assert_eq!(books(received).open(), 10.0);
        let all = format!(
            "{received}\
             bng_packets_total{{counter=\"handed_over\",worker=\"0\"}} 3\n\
             bng_packets_total{{counter=\"taken_over\",worker=\"1\"}} 3\n\
             bng_packets_total{{counter=\"tx_core\",worker=\"1\"}} 7\n\
             bng_packets_total{{counter=\"fragments_made\",worker=\"1\"}} 1\n\
             bng_packets_total{{counter=\"forwarded_upstream\",worker=\"1\"}} 7\n\
             bng_drops_total{{reason=\"no_route\",worker=\"0\"}} 4\n\
             bng_drops_total{{reason=\"inject_stale\",worker=\"0\"}} 9\n\
             bng_drops_total{{reason=\"ring_corrupt\",worker=\"0\"}} 1\n"
        );
        assert_eq!(books(&all).open(), 0.0);
    }
}
