//! Benchmarks, subscriber emulator and traffic reflector.
//!
//! ```text
//! bng-perf dial      many subscribers over an interface: sessions, traffic, losses     -> dial/
//! bng-perf reflect   the other end of their traffic                                    -> reflect.rs
//! bng-perf fastpath  the real pipeline beside a MAC-forward loop, in memory            -> fastpath/
//! bng-perf wire      packets through a running dataplane: rate without loss, latency   -> wire/
//! bng-perf downloads TCP and UDP into the kernel, coalescing off and on              -> downloads/
//! bng-perf sessions  the whole gateway: setups, memory, floods, churn                -> sessions/
//! bng-perf radius-responder  a RADIUS server that knows everybody             -> radius_responder.rs
//! bng-perf bench     a grid of those, as tables and plots (`make bench`)               -> grid/
//! ```

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod dial;
mod downloads;
mod fastpath;
mod grid;
mod pacing;
mod probe;
mod radius_responder;
mod reflect;
mod sequence;
mod sessions;
mod wire;

/// Benchmarks, subscriber emulator and traffic reflector of ironbng.
#[derive(Debug, Parser)]
#[command(name = "bng-perf", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Dial in many subscribers and send traffic through their sessions.
    Dial(Box<dial::DialArgs>),
    /// Send datagrams of `dial` back and count them.
    Reflect(reflect::ReflectArgs),
    /// Measure what a packet costs in the real pipeline, beside a MAC-forward loop.
    Fastpath(fastpath::FastpathArgs),
    /// Send numbered packets through a running dataplane: rate without loss, latency, order.
    Wire(Box<wire::WireArgs>),
    /// Measure what coalescing is worth where packets are expensive: TCP and UDP into the kernel, off and on.
    Downloads(downloads::DownloadsArgs),
    /// Measure setups, sessions, memory, floods and churn of the whole gateway.
    Sessions(sessions::SessionsArgs),
    /// Be a RADIUS server that knows everybody.
    RadiusResponder(radius_responder::ResponderArgs),
    /// Run the grid of `fastpath` measurements and write tables and plots.
    Bench(grid::BenchArgs),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Dial(args) => dial::run(&args),
        Command::Reflect(args) => reflect::run(&args),
        Command::Fastpath(args) => fastpath::run(&args),
        Command::Wire(args) => wire::run(&args),
        Command::Downloads(args) => downloads::run(&args),
        Command::Sessions(args) => sessions::run(&args),
        Command::RadiusResponder(args) => radius_responder::run(&args),
        Command::Bench(args) => grid::run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("bng-perf: {error:#}");
        ExitCode::from(2)
    })
}
