//! bng-dataplane: the forwarding process.
//!
//! ```text
//!  access port --rx--> worker 0..N-1 --tx--> core port        main: FIB, port status, signals
//!  core port   --rx-->   |  ^  |  ^  --tx--> access port       host: TAP twins
//!                        |  |  |  +--- inject ring  --- bng-controlplane
//!                        |  |  +------ punt ring   --->
//!                        |  +--------- rings from / to the other workers
//!                        +------------ ring to / from the host thread <--> TAP twin <--> kernel
//! ```
//!
//! Workers read the tables control publishes in shared memory and never wait for anything.

mod run;
mod settings;

use anyhow::Context;
use bng_config::Config;
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// The forwarding process of ironbng.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    /// Configuration file (YAML), the same that bng-controlplane reads.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Check the configuration and exit: 0 if it is good, 1 with one line of explanation if not.
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match start(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bng-dataplane: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: &Arguments) -> anyhow::Result<()> {
    let config = Config::load(&arguments.config)?;
    bng_dataplane::capacities::capacities(&config).check()?;
    if arguments.check {
        eprintln!("bng-dataplane: {} is good", arguments.config.display());
        return Ok(());
    }
    tracing_subscriber::fmt()
        .with_env_filter(config.log.level.as_str())
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    // A worker that panics must not leave a process that looks alive: the service manager restarts it.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::abort();
    }));
    run::run(&config).context("bng-dataplane stopped")
}
