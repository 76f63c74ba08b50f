//! `bng-perf downloads`: what coalescing is worth on a port where packets are expensive.
//!
//! ```text
//!  peer (TCP in user space) --memory port--> core port   bng-dataplane  TAP twin --> kernel --> sockets --> receiver
//!  peer --PPPoE, memory port-------------> access port  bng-dataplane  vhost --> machine --> kernel --> sockets --> receiver
//! ```
//!
//! `cell` is one measurement, `run` makes it, `peer` and `template` send, `kernel` receives, `machine` is a virtual machine's card,
//! `gateway` is the process between
//! them, `results` and `page` are what is published.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;

use cell::{Cell, Protocol, Way};
use results::{Cores, Machine, Measured, Results, Row};

use crate::grid::{commit, processor};

mod cell;
pub(crate) mod gateway;
mod kernel;
mod machine;
mod page;
mod peer;
mod results;
mod run;
mod segment;
mod template;

/// Trains measured besides, to see what is left of the gain when flows are interleaved.
const SHORT_TRAINS: [u8; 3] = [1, 4, 8];
/// Flows that send those.
const SHORT_TRAIN_FLOWS: u16 = 8;

/// Measures TCP and UDP into the kernel, through a TAP twin and through a virtio port, with coalescing off and on.
#[derive(Debug, Args)]
pub(crate) struct DownloadsArgs {
    /// Directory for the results.
    #[arg(long, value_name = "DIR", default_value = "perf/results")]
    results: PathBuf,
    /// Seconds of each run.
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    seconds: f64,
    /// Runs of each cell.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    repeats: u16,
    /// Flows, a row for each.
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 64])]
    flows: Vec<u16>,
    /// Frames a flow sends at once.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..=32))]
    train: u8,
    /// Frames on their way, all flows. The default is below what the gateway's ring to its host thread holds.
    #[arg(long, value_name = "N", default_value_t = bng_config::RING_FRAMES - 128)]
    in_flight: u32,
    /// The gateway; the one beside this program by default.
    #[arg(long, value_name = "FILE")]
    dataplane: Option<PathBuf>,
    /// Measure nothing: make the page anew from the coalescing.json in the directory.
    #[arg(long)]
    render: bool,
    /// Makes this one measurement, in the network namespace of the process, and prints it.
    #[arg(long, value_name = "JSON", hide = true)]
    cell: Option<String>,
}

/// Runs it.
pub(crate) fn run(args: &DownloadsArgs) -> Result<ExitCode> {
    let program = match &args.dataplane {
        Some(program) => program.clone(),
        None => std::env::current_exe()?.with_file_name("bng-dataplane"),
    };
    let file = args.results.join("coalescing.json");
    if args.render {
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let results: Results = serde_json::from_str(&text)?;
        save(&args.results.join("coalescing.md"), &page::page(&results))?;
        return Ok(ExitCode::SUCCESS);
    }
    let cores = cores()?;
    if let Some(cell) = &args.cell {
        let cell: Cell = serde_json::from_str(cell)?;
        let measured = run::run(&program, &cell, cores, args.in_flight, args.seconds)?;
        let mut stdout = std::io::stdout().lock();
        serde_json::to_writer(&mut stdout, &measured)?;
        writeln!(stdout)?;
        return Ok(ExitCode::SUCCESS);
    }
    let results = grid(args, &program, cores)?;
    std::fs::create_dir_all(&args.results)?;
    save(&file, &(serde_json::to_string_pretty(&results)? + "\n"))?;
    let page = page::page(&results);
    save(&args.results.join("coalescing.md"), &page)?;
    println!("{page}");
    Ok(ExitCode::SUCCESS)
}

fn save(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

/// The first core for what the kernel does, the last one for what DPDK does.
fn cores() -> Result<Cores> {
    let all = core_affinity::get_core_ids().context("cannot tell which cores are allowed")?;
    let (Some(first), Some(last)) = (all.first(), all.last()) else {
        bail!("no core is allowed");
    };
    Ok(Cores {
        kernel: first.id,
        packets: last.id,
    })
}

/// All rows. Each time the whole table, so that a slow minute of the machine does not hit all runs of a cell.
fn grid(args: &DownloadsArgs, program: &Path, cores: Cores) -> Result<Results> {
    let row = |way, protocol, flows, train| Row {
        way,
        protocol,
        flows,
        train,
        payload: template::full(way, protocol),
        off: Vec::new(),
        on: Vec::new(),
    };
    let mut rows: Vec<Row> = Vec::new();
    for (way, protocol) in [
        (Way::Twin, Protocol::Tcp),
        (Way::Vhost, Protocol::Tcp),
        (Way::Twin, Protocol::Udp),
    ] {
        let flows = args.flows.iter();
        rows.extend(flows.map(|flows| row(way, protocol, *flows, args.train)));
        let trains = SHORT_TRAINS.iter().filter(|_| protocol == Protocol::Tcp);
        rows.extend(trains.map(|train| row(way, protocol, SHORT_TRAIN_FLOWS, *train)));
    }
    let begun = Instant::now();
    for repeat in 1..=args.repeats {
        for row in &mut rows {
            for coalescing in [false, true] {
                let cell = row.cell(coalescing);
                eprintln!(
                    "[{:>4.0} s] {repeat}/{}: {:?} {:?}, {} flows, trains of {}, coalescing {}",
                    begun.elapsed().as_secs_f64(),
                    args.repeats,
                    cell.way,
                    cell.protocol,
                    cell.flows,
                    cell.train,
                    if coalescing { "on" } else { "off" },
                );
                let runs = if coalescing {
                    &mut row.on
                } else {
                    &mut row.off
                };
                runs.push(measure(args, program, &cell)?);
            }
        }
    }
    Ok(Results {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: commit(),
        seconds: args.seconds,
        repeats: args.repeats.into(),
        train: args.train,
        in_flight: args.in_flight,
        cores,
        machine: Machine {
            processor: processor(),
            cores: core_affinity::get_core_ids().map_or(1, |ids| ids.len()),
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            dpdk: rte_rs::version().trim_start_matches("DPDK ").to_owned(),
        },
        rows,
    })
}

/// Runs a measurement in a process and a network namespace of its own.
fn measure(args: &DownloadsArgs, program: &Path, cell: &Cell) -> Result<Measured> {
    let output = Command::new("unshare")
        .arg("--net")
        .arg(std::env::current_exe()?)
        .args(["downloads", "--cell", &serde_json::to_string(cell)?])
        .args(["--seconds", &args.seconds.to_string()])
        .args(["--in-flight", &args.in_flight.to_string()])
        .arg("--dataplane")
        .arg(program)
        .stderr(Stdio::piped())
        .output()
        .context("cannot run unshare (Debian package util-linux)")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{cell:?} failed with {}:\n{said}", output.status);
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HZ-20: the page says what the file says.
    #[test]
    fn the_published_page_is_made_from_the_published_file() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../results");
        let file = std::fs::read_to_string(format!("{directory}/coalescing.json")).unwrap();
        let results: Results = serde_json::from_str(&file).unwrap();
        assert!(!results.rows.is_empty());
        for row in &results.rows {
            assert_eq!(row.off.len(), results.repeats);
            assert_eq!(row.on.len(), results.repeats);
            assert!(row.off.iter().all(|run| run.supers == 0));
        }
        let text = std::fs::read_to_string(format!("{directory}/coalescing.md")).unwrap();
        assert!(
            text == page::page(&results),
            "make perf/results/coalescing.md anew with `bng-perf downloads --render`"
        );
    }
}
