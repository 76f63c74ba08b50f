//! `bng-perf bench`: the grid of `bng-perf fastpath` runs, and what is published of it.
//!
//! ```text
//!  cells --each a process of its own--> figures --> bench.json, README.md (tables, targets), plots
//! ```

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::fastpath::Figures;
use cells::Cell;
use results::{Machine, Results};

mod cells;
mod markdown;
mod plots;
mod results;
mod seed;
mod targets;

/// Runs the grid and writes JSON, a page of tables and plots.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Directory for the results.
    #[arg(long, value_name = "DIR", default_value = "perf/results")]
    results: PathBuf,
    /// Fewer cells and less time for each: about three minutes.
    #[arg(long)]
    quick: bool,
    /// Seconds for each cell and direction.
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// How often to run the whole grid; of each cell the run with the median cost counts.
    #[arg(long, value_name = "N")]
    repeats: Option<usize>,
    /// Take buffers from ordinary pages even if there are huge pages.
    #[arg(long)]
    no_huge: bool,
    /// Measure nothing: make page and plots anew from the bench.json in this directory.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["results", "quick", "seconds", "repeats"])]
    render: Option<PathBuf>,
}

/// Runs it.
pub(crate) fn run(args: &BenchArgs) -> Result<ExitCode> {
    if let Some(directory) = &args.render {
        let path = directory.join("bench.json");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let mut results: Results = serde_json::from_str(&text)?;
        for figures in &results.figures {
            figures.check()?;
        }
        results.targets = targets::of(&results);
        write(&results, directory)?;
        return Ok(ExitCode::SUCCESS);
    }
    let results = measure(args)?;
    write(&results, &args.results)?;
    for target in &results.targets {
        let met = match target.met {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "open",
        };
        println!(
            "{met:<7} {}: {}, wanted {}",
            target.what, target.measured, target.wanted
        );
    }
    println!("\nresults are in {}", args.results.display());
    Ok(ExitCode::SUCCESS)
}

/// Runs all cells. Each time the whole grid, so that a slow minute of the machine does not hit all runs of a cell.
fn measure(args: &BenchArgs) -> Result<Results> {
    let cores = core_affinity::get_core_ids().map_or(1, |ids| ids.len());
    let cells = cells::cells(cores, args.quick);
    let seconds = args.seconds.unwrap_or(if args.quick { 1.0 } else { 1.5 });
    let repeats = args
        .repeats
        .unwrap_or(if args.quick { 1 } else { 3 })
        .max(1);
    let begun = Instant::now();
    let mut runs: Vec<Vec<Vec<Figures>>> = vec![Vec::new(); cells.len()];
    for repeat in 0..repeats {
        for (at, (cell, runs)) in cells.iter().zip(&mut runs).enumerate() {
            eprintln!(
                "[{:>4.0} s] {}/{repeats}, {}/{}: bng-perf fastpath {}",
                begun.elapsed().as_secs_f64(),
                repeat + 1,
                at + 1,
                cells.len(),
                cell.0
            );
            runs.push(run_cell(cell, seconds, args.no_huge)?);
        }
    }
    let figures: Vec<_> = runs.into_iter().flat_map(medians).collect();
    let first = figures.first().context("nothing was measured")?;
    let machine = Machine {
        processor: processor(),
        cores,
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        tsc_hz: first.tsc_hz,
        packet_memory: first.packet_memory.clone(),
        dpdk: first.dpdk.clone(),
    };
    let mut results = Results {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: commit(),
        quick: args.quick,
        seconds,
        repeats,
        machine,
        figures,
        targets: Vec::new(),
    };
    results.targets = targets::of(&results);
    Ok(results)
}

/// One cell, in a process of its own; its figures for each direction.
fn run_cell(cell: &Cell, seconds: f64, no_huge: bool) -> Result<Vec<Figures>> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("fastpath")
        .args(cell.0.split_whitespace())
        .args(["--json", "--seconds", &seconds.to_string()])
        .stderr(Stdio::inherit());
    if no_huge {
        command.arg("--no-huge");
    }
    let output = command.output()?;
    if !output.status.success() {
        bail!("`bng-perf fastpath {}` failed: {}", cell.0, output.status);
    }
    let text = String::from_utf8(output.stdout)?;
    let figures = text.lines().map(|line| {
        let figures: Figures = serde_json::from_str(line)?;
        figures.check()?;
        Ok(figures)
    });
    figures
        .collect::<Result<_>>()
        .with_context(|| format!("bng-perf fastpath {}", cell.0))
}

/// Of several runs of a cell, direction by direction, the one with the median cost.
fn medians(runs: Vec<Vec<Figures>>) -> Vec<Figures> {
    let directions = runs.iter().map(Vec::len).min().unwrap_or(0);
    let of_direction = |at: usize| {
        let mut all: Vec<_> = runs.iter().filter_map(|run| run.get(at)).collect();
        all.sort_by(|a, b| a.ns_per_packet.total_cmp(&b.ns_per_packet));
        all.get(all.len() / 2).map(|figures| (*figures).clone())
    };
    (0..directions).filter_map(of_direction).collect()
}

fn write(results: &Results, directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let save = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())
    };
    save(
        "bench.json",
        &(serde_json::to_string_pretty(results)? + "\n"),
    )?;
    save("README.md", &markdown::page(results))?;
    plots::draw(results, directory)
}

pub(crate) fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    name.unwrap_or_else(|| "processor without a name".to_owned())
}

/// The commit of the source in the current directory.
pub(crate) fn commit() -> Option<String> {
    let output = Command::new("git")
        .args(["describe", "--always", "--dirty", "--abbrev=12"])
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
