//! EAL, cores and packet memory.

use anyhow::{Context, Result, bail};
use rte_rs::{Eal, EalArgs, Memory};

/// Free huge-page memory below which ordinary pages are taken, MiB.
const HUGEPAGES_WANTED_MIB: u64 = 256;

/// Where the workers run and where their buffers come from.
pub(super) struct Platform {
    pub(super) eal: Eal,
    /// Core of each worker.
    pub(super) cores: Vec<usize>,
    /// Core of the main thread.
    pub(super) main_core: usize,
    /// Kind of memory the buffers are in, as text.
    pub(super) memory: &'static str,
}

impl Platform {
    /// Starts EAL with the calling thread on the first allowed core. Workers get `cores`, or the last allowed ones: the
    /// first core serves most interrupts.
    pub(super) fn start(workers: u8, cores: &[usize], no_huge: bool) -> Result<Self> {
        let allowed =
            core_affinity::get_core_ids().context("cannot tell which cores are allowed")?;
        let first = allowed.first().context("no core is allowed")?.id;
        let cores = pick(&allowed, cores, usize::from(workers))?;
        let hugepages = !no_huge && hugepages_free();
        let (memory, name) = if hugepages {
            (Memory::HugepagesUnlinked, "huge pages")
        } else {
            (Memory::NoHugepages { mib: 512 }, "4 KiB pages")
        };
        if !hugepages && !no_huge {
            eprintln!(
                "bng-perf: less than {HUGEPAGES_WANTED_MIB} MiB of huge pages are free, so buffers lie in ordinary pages and \
                 every figure is slower; `scripts/setup` reserves some, or write a number to /proc/sys/vm/nr_hugepages"
            );
        }
        let arguments = EalArgs::new(&format!("bng-perf-{}", std::process::id()))
            .lcore_map(&format!("0@{first}"))
            .memory(memory)
            .pci(false)
            .telemetry(false)
            .log_level("*:warning")
            // It warns of every huge-page size it has none of.
            .log_level("lib.eal:error");
        Ok(Self {
            eal: Eal::init(&arguments)?,
            cores,
            main_core: first,
            memory: name,
        })
    }
}

fn pick(allowed: &[core_affinity::CoreId], asked: &[usize], workers: usize) -> Result<Vec<usize>> {
    if asked.is_empty() {
        let Some(skip) = allowed.len().checked_sub(workers) else {
            bail!(
                "{workers} workers want a core each, and this process may use {}",
                allowed.len()
            );
        };
        return Ok(allowed.iter().skip(skip).rev().map(|id| id.id).collect());
    }
    if asked.len() != workers {
        bail!("{} cores for {workers} workers", asked.len());
    }
    for core in asked {
        if !allowed.iter().any(|id| id.id == *core) {
            bail!("core {core} is not available to this process");
        }
        if asked.iter().filter(|other| *other == core).count() > 1 {
            bail!("core {core} is given twice");
        }
    }
    Ok(asked.to_vec())
}

/// Whether the machine has enough free huge pages.
fn hugepages_free() -> bool {
    let field = |text: &str, name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0)
    };
    std::fs::read_to_string("/proc/meminfo").is_ok_and(|text| {
        let kib = field(&text, "HugePages_Free:") * field(&text, "Hugepagesize:");
        kib >= HUGEPAGES_WANTED_MIB << 10
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_get_the_last_cores_or_those_asked_for() {
        let allowed = [0, 1, 4, 5].map(|id| core_affinity::CoreId { id });
        assert_eq!(pick(&allowed, &[], 2).unwrap(), [5, 4]);
        assert_eq!(pick(&allowed, &[4, 0], 2).unwrap(), [4, 0]);
        for (asked, workers) in [(&[][..], 5), (&[2], 1), (&[1, 1], 2), (&[1], 2)] {
            assert!(pick(&allowed, asked, workers).is_err());
        }
    }
}
