//! A RADIUS server that knows everybody, as fast as one core allows, with delay and losses on request.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use bng_aaa::radius::packet::{LONGEST, List};
use bng_aaa::radius::responder::{Counts, Responder};
use clap::Args;
use serde_json::json;

/// How often a socket looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);

/// Arguments of `bng-perf radius-responder`.
#[derive(Debug, Args)]
pub(crate) struct ResponderArgs {
    /// Address and UDP port of authentication; accounting is at the next port.
    #[arg(long, default_value = "127.0.0.1:1812")]
    listen: SocketAddr,
    /// Shared secret.
    #[arg(long)]
    secret: String,
    /// Filter-Id of every Access-Accept.
    #[arg(long)]
    filter_id: Option<String>,
    /// Time before each answer, milliseconds.
    #[arg(long, default_value_t = 0)]
    delay_ms: u64,
    /// One of so many requests is ignored; 0: none.
    #[arg(long, default_value_t = 0)]
    lose_one_in: u64,
    /// One of so many answers has a wrong authenticator; 0: none.
    #[arg(long, default_value_t = 0)]
    spoil_one_in: u64,
    /// Time to run, seconds; 0: until SIGTERM or SIGINT.
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// Print what was counted as JSON at the end.
    #[arg(long)]
    json: bool,
}

/// Answers until it is told to end.
pub(crate) fn run(args: &ResponderArgs) -> anyhow::Result<ExitCode> {
    let over = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, over.clone())?;
    }
    let mut terms = List::default();
    if let Some(name) = &args.filter_id {
        let written = terms.bytes(bng_aaa::radius::attribute::FILTER_ID, name.as_bytes());
        anyhow::ensure!(written.is_ok(), "--filter-id is longer than 253 bytes");
    }
    let mut accounting = args.listen;
    let next = args.listen.port().checked_add(1);
    accounting.set_port(next.context("--listen leaves no port for accounting")?);
    let mut sockets = Vec::new();
    for address in [args.listen, accounting] {
        let socket = UdpSocket::bind(address).with_context(|| format!("listening at {address}"))?;
        sockets.push(socket);
    }
    let end = (args.seconds != 0).then(|| Instant::now() + Duration::from_secs(args.seconds));
    let counts = std::thread::scope(|scope| {
        let threads: Vec<_> = (sockets.into_iter())
            .map(|socket| {
                let responder = Responder::new(args.secret.as_bytes(), terms.clone());
                let is_over =
                    || over.load(Ordering::Relaxed) || end.is_some_and(|end| Instant::now() >= end);
                scope.spawn(move || serve(&socket, responder, args, is_over))
            })
            .collect();
        let results = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => Err(anyhow::anyhow!("a thread has panicked")),
        });
        results.collect::<anyhow::Result<Vec<Counts>>>()
    })?;
    let [auth, accounting] = &counts[..] else {
        anyhow::bail!("two threads have counted");
    };
    if args.json {
        let [starts, stops, interims, others] = accounting.accounting;
        let report = json!({
            "accepted": auth.accepted,
            "rejected": auth.rejected,
            "starts": starts,
            "stops": stops,
            "interims": interims,
            "others": others,
            "repeated_starts": accounting.repeated_starts,
            "repeated_stops": accounting.repeated_stops,
            "octets": accounting.octets,
            "bad": auth.bad + accounting.bad,
        });
        println!("{report}");
    } else {
        println!("authentication: {auth:?}\naccounting: {accounting:?}");
    }
    Ok(ExitCode::SUCCESS)
}

fn serve(
    socket: &UdpSocket,
    mut responder: Responder,
    args: &ResponderArgs,
    is_over: impl Fn() -> bool,
) -> anyhow::Result<Counts> {
    let delay = Duration::from_millis(args.delay_ms);
    let one_in = |n: u64, of: u64| of != 0 && n.is_multiple_of(of);
    let mut buffer = [0; LONGEST];
    let mut held: VecDeque<(Instant, SocketAddr, Vec<u8>)> = VecDeque::new();
    let (mut received, mut answered) = (0, 0);
    while !is_over() {
        let now = Instant::now();
        while let Some((_, to, answer)) = held.pop_front_if(|(due, ..)| *due <= now) {
            // A client that is gone is no concern of a server.
            let _ = socket.send_to(&answer, to);
        }
        let wait = held.front().map_or(LOOK, |(due, ..)| *due - now);
        socket.set_read_timeout(Some(wait.max(Duration::from_micros(100))))?;
        let (length, from) = match socket.recv_from(&mut buffer) {
            Ok(received) => received,
            Err(error)
                if [
                    ErrorKind::WouldBlock,
                    ErrorKind::TimedOut,
                    ErrorKind::Interrupted,
                    ErrorKind::ConnectionRefused,
                ]
                .contains(&error.kind()) =>
            {
                continue;
            }
            Err(error) => return Err(error).context("receiving"),
        };
        received += 1;
        if one_in(received, args.lose_one_in) {
            continue;
        }
        if let Some(mut answer) = responder.answer(&buffer[..length]) {
            answered += 1;
            if one_in(answered, args.spoil_one_in) {
                answer[4] ^= 1;
            }
            match delay.is_zero() {
                true => drop(socket.send_to(&answer, from)),
                false => held.push_back((Instant::now() + delay, from, answer)),
            }
        }
    }
    Ok(responder.counts().clone())
}
