//! `bng-perf sessions`: subscribers by the thousand against the whole gateway, both daemons as they are installed.
//!
//! ```text
//!   bng-perf dial --access port--> access port(s)  bng-dataplane  core port <--core port-- bng-perf dial (answers for the network)
//!                                            ^ shared memory v
//!                                            bng-controlplane --REST, metrics, /proc--> this process
//! ```
//!
//! The ports are memory ports (`net_memif`); everything runs in a network namespace of its own. `gateway` starts the daemons,
//! `dial` starts the emulator, `cells` are the measurements, `results` and `page` are what is published.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::Args;

use cells::Cells;
use results::{Machine, Results};

use crate::grid::{commit, processor};

mod cells;
mod dial;
mod gateway;
mod page;
mod results;

/// Name of the result file and of the page.
const JSON: &str = "sessions.json";
const PAGE: &str = "sessions.md";

/// Measures setups, sessions, memory, floods and churn of the whole gateway, and writes tables.
#[derive(Debug, Args)]
pub(crate) struct SessionsArgs {
    /// Directory for the results.
    #[arg(long, value_name = "DIR", default_value = "perf/results")]
    results: PathBuf,
    /// Runs of each measurement but the churn; of their rates the median counts.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    repeats: u16,
    /// Sessions of one access port.
    #[arg(long, value_name = "N", default_value_t = 64_000, value_parser = clap::value_parser!(u32).range(1..=65_534))]
    sessions: u32,
    /// Sessions begun per second.
    #[arg(long, value_name = "R", default_value_t = 8_000.0)]
    rate: f64,
    /// Seconds of churn.
    #[arg(long, value_name = "S", default_value_t = 600)]
    churn_seconds: u32,
    /// These measurements alone.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_enum)]
    only: Vec<cells::Name>,
    /// A few hundred sessions and some seconds, and no claim about rates: are all counts exact? Prints the result and writes nothing.
    #[arg(long)]
    short: bool,
    /// Directory of the two daemons; that of this program by default.
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Measure nothing: make the page anew from the sessions.json in the directory.
    #[arg(long)]
    render: bool,
    /// The process is in a network namespace of its own already.
    #[arg(long, hide = true)]
    in_namespace: bool,
}

/// Runs it. Success when all counts are exact; rates do not decide.
pub(crate) fn run(args: &SessionsArgs) -> Result<ExitCode> {
    let file = args.results.join(JSON);
    if args.render {
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let results: Results = serde_json::from_str(&text)?;
        save(&args.results.join(PAGE), &page::page(&results))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !args.in_namespace {
        return enter_namespace();
    }
    crate::downloads::gateway::ip("link set lo up")?;
    let programs = match &args.programs {
        Some(directory) => directory.clone(),
        None => std::env::current_exe()?
            .parent()
            .context("this program is in no directory")?
            .to_owned(),
    };
    let cells = if args.short {
        Cells::short(args, programs)
    } else {
        Cells::full(args, programs)
    };
    let results = Results {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: commit(),
        machine: Machine {
            processor: processor(),
            cores: core_affinity::get_core_ids().map_or(1, |ids| ids.len()),
            kernel: (rustix::system::uname().release())
                .to_string_lossy()
                .into_owned(),
            dpdk: rte_rs::version().trim_start_matches("DPDK ").to_owned(),
        },
        runs: cells.measure()?,
    };
    let faults = results.faults();
    if args.short {
        let mut stdout = std::io::stdout().lock();
        serde_json::to_writer(&mut stdout, &results)?;
        writeln!(stdout)?;
    } else {
        std::fs::create_dir_all(&args.results)?;
        save(&file, &(serde_json::to_string_pretty(&results)? + "\n"))?;
        let page = page::page(&results);
        save(&args.results.join(PAGE), &page)?;
        println!("{page}");
    }
    for fault in &faults {
        eprintln!("bng-perf: {fault}");
    }
    Ok(if faults.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs this command again in a network namespace that goes away with it.
fn enter_namespace() -> Result<ExitCode> {
    let status = Command::new("unshare")
        .arg("--net")
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .arg("--in-namespace")
        .status()
        .context("cannot run unshare (Debian package util-linux)")?;
    match status.code() {
        Some(code) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(2))),
        None => bail!("ended with {status}"),
    }
}

fn save(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_page_is_made_from_the_published_file() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../results");
        let text = std::fs::read_to_string(directory.join(JSON)).unwrap();
        let results: Results = serde_json::from_str(&text).unwrap();
        let published = std::fs::read_to_string(directory.join(PAGE)).unwrap();
        assert_eq!(
            published,
            page::page(&results),
            "make perf/results/sessions.md anew with `bng-perf sessions --render`"
        );
        assert_eq!(
            results.faults(),
            [""; 0],
            "counts of what is published are exact"
        );
    }
}
