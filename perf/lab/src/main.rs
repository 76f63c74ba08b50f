//! `bng-lab`: the demo of the whole appliance on one machine, and the small programs a lab consists of.
//!
//! ```text
//!   demo --> Lab::create --> start daemons --> boot client --> dial --> fetch --> show --> Lab dropped (or kept)
//!   www      the web server of the internet host, started by every lab in its own namespace
//!   client   a command in the client of a kept lab
//!   down     removes kept labs and remains
//! ```

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use bng_lab::{UmlGuest, cleanup, www};
use clap::{Parser, Subcommand};

mod demo;

/// A lab for ironbng on one machine: subscriber, gateway and internet host in network namespaces.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Bring everything up, let a real Linux router dial in and browse, show what the operator sees, take all down.
    Demo {
        /// Leave the lab up afterwards; `bng-lab down` ends it.
        #[arg(long)]
        keep: bool,
    },
    /// Take down kept labs and whatever a killed one left behind.
    Down {
        /// Also labs that are in use by a running program.
        #[arg(long)]
        all: bool,
    },
    /// Run a shell command inside the client of the kept lab.
    Client {
        /// The command; one argument, or several that are joined by spaces.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// The lab's web server: `/` is a page, `/bytes/N` is N octets of known content.
    Www {
        /// Address and TCP port to listen on.
        #[arg(long)]
        listen: SocketAddr,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Task::Demo { keep } => demo::run(keep),
        Task::Down { all } => down(all),
        Task::Client { command } => client(&command.join(" ")),
        Task::Www { listen } => www::serve(listen)
            .map_err(Into::into)
            .map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("bng-lab: {error:#}");
        ExitCode::FAILURE
    })
}

fn down(all: bool) -> anyhow::Result<ExitCode> {
    let found = cleanup::down(all)?;
    for name in &found {
        println!("removed {name}");
    }
    if found.is_empty() {
        println!("no lab is up");
    }
    Ok(ExitCode::SUCCESS)
}

fn client(command: &str) -> anyhow::Result<ExitCode> {
    let kept = cleanup::kept();
    let (_, dir): &(String, PathBuf) = kept
        .first()
        .context("no lab is kept; `make demo KEEP=1` leaves one up")?;
    let mut guest = UmlGuest::attach(&dir.join("client"))?;
    let (status, output) = guest.sh_status(command, Duration::from_secs(600))?;
    print!("{output}");
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(u8::MAX)))
}
