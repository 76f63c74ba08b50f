//! The result file and what is asked of it.

use serde::{Deserialize, Serialize};

use super::targets::Target;
use crate::fastpath::{Checksums, Copying, Direction, Features, Figures, Locking};

/// Where it was measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) processor: String,
    /// Cores the process may use.
    pub(super) cores: usize,
    pub(super) kernel: String,
    pub(super) tsc_hz: u64,
    pub(super) packet_memory: String,
    pub(super) dpdk: String,
}

/// Everything a run of the grid found out.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Results {
    pub(super) version: String,
    /// Commit of the source, if Git could tell.
    pub(super) commit: Option<String>,
    /// A quick run: fewer cells, less time for each.
    pub(super) quick: bool,
    /// Seconds for each cell and direction.
    pub(super) seconds: f64,
    /// How often the whole grid was run; of each cell the run with the median cost counts.
    pub(super) repeats: usize,
    pub(super) machine: Machine,
    pub(super) figures: Vec<Figures>,
    pub(super) targets: Vec<Target>,
}

/// Which figures are meant. What is not set is as in the product: one worker, no lock, no copies, no tags, all features.
#[derive(Debug, Clone, Copy)]
pub(super) struct Which {
    pub(super) direction: Direction,
    pub(super) ip_bytes: u32,
    pub(super) shape: (u32, u32),
    pub(super) workers: u8,
    pub(super) locking: Locking,
    pub(super) features: Features,
    pub(super) copy: Copying,
    pub(super) tags: u8,
    pub(super) plain_ip: bool,
    /// Only runs that measured malformed frames, too.
    pub(super) malformed: bool,
    /// Only runs in which counters were read.
    pub(super) reading: bool,
    /// Only runs that measured coalescing, with checksums verified so.
    pub(super) coalescing: Option<Checksums>,
}

impl Which {
    pub(super) const fn of(direction: Direction, ip_bytes: u32, shape: (u32, u32)) -> Self {
        Self {
            direction,
            ip_bytes,
            shape,
            workers: 1,
            locking: Locking::None,
            features: Features::All,
            copy: Copying::None,
            tags: 0,
            plain_ip: false,
            malformed: false,
            reading: false,
            coalescing: None,
        }
    }

    fn is(&self, figures: &Figures) -> bool {
        figures.direction == self.direction
            && figures.ip_bytes == self.ip_bytes as usize
            && (figures.sessions, figures.flows) == self.shape
            && figures.workers == self.workers
            && figures.locking == self.locking
            && figures.features == self.features
            && figures.copy == self.copy
            && figures.tags == self.tags
            && figures.plain_ip == self.plain_ip
            && figures.malformed_to_good.is_some() == self.malformed
            && figures.reading_us.is_some() == self.reading
            && figures.coalescing.as_ref().map(|it| it.checksums) == self.coalescing
    }
}

impl Results {
    /// The figures asked for, if they were measured.
    pub(super) fn find(&self, which: Which) -> Option<&Figures> {
        self.figures.iter().find(|figures| which.is(figures))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::{markdown, targets};

    fn published() -> Results {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../results/bench.json");
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn a_derived_figure_that_was_changed_is_found() {
        let figures = published().figures.remove(0);
        figures.check().unwrap();
        for change in [
            |f: &mut Figures| f.mpps *= 1.001,
            |f: &mut Figures| f.gbps_ip_per_worker += 0.01,
            |f: &mut Figures| f.clocks_at_2_1_ghz -= 0.1,
            |f: &mut Figures| f.ratio_to_mac_forward *= 1.01,
            |f: &mut Figures| f.ns_per_packet *= 1.01,
            |f: &mut Figures| f.workers += 1,
            |f: &mut Figures| f.scaling = Some(1.99),
            |f: &mut Figures| f.cores.push(9),
        ] {
            let mut changed = figures.clone();
            change(&mut changed);
            assert!(changed.check().is_err());
        }
    }

    /// HZ-20: what is derived follows from what was measured, in the file that is published too.
    #[test]
    fn the_published_results_add_up() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../results");
        let results = published();
        assert!(!results.figures.is_empty());
        for figures in &results.figures {
            figures.check().unwrap();
        }
        assert_eq!(targets::of(&results), results.targets);
        let page = std::fs::read_to_string(format!("{directory}/README.md")).unwrap();
        assert!(
            page == markdown::page(&results),
            "perf/results/README.md is not what bench.json says; make it anew with `bng-perf bench --render perf/results`"
        );
    }
}
