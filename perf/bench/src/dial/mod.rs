//! `bng-perf dial`: many subscribers on one interface.
//!
//! ```text
//!   link (AF_PACKET, DPDK) --frames-> emulator --> client: discovery, LCP, PAP, IPCP, IPv6CP, RS   (one per subscriber)
//!        ^                               |     --> traffic: account of what came back
//!        +-----------frames--------------+  <-- pacing: when to start, to send, to ask, to end
//! ```
//!
//! Everything but `link` is sans-IO and tested in virtual time against the real access concentrator.

use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use crate::probe::{Family, HEADER_LEN};
use emulator::{Emulator, MAX_INDEX, Plan, Stage, TrafficPlan};
use link::{BACKLOG, Link};
use report::Report;
use subscriber::ClientSettings;
use traffic::Header;
use vlan::Vlan;

mod advertisement;
mod churn;
mod client;
mod core;
mod device;
pub(crate) mod emulator;
mod flood;
mod icmp;
mod link;
mod negotiation;
mod packet_socket;
mod parameters;
mod report;
pub(crate) mod subscriber;
mod timers;
mod traffic;
pub(crate) mod vlan;

#[cfg(test)]
mod against_engine;

/// Frames taken from the ring between two looks at the timers.
const RECEIVE_BATCH: usize = 256;
const PROGRESS_PERIOD: Duration = Duration::from_secs(1);

/// How subscribers authenticate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Auth {
    /// PAP, RFC 1334.
    #[default]
    Pap,
    /// CHAP with MD5, RFC 1994.
    Chap,
}

fn seconds(text: &str) -> Result<Duration, String> {
    text.parse()
        .map_err(|error: std::num::ParseFloatError| error.to_string())
        .and_then(|value| Duration::try_from_secs_f64(value).map_err(|error| error.to_string()))
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        Ok(_) => Err("must be above zero".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Dials in many subscribers over an interface and sends traffic through their sessions.
#[derive(Debug, Args)]
pub(crate) struct DialArgs {
    /// Interface towards the access concentrator, or a DPDK device: a PCI address, or a virtual device with arguments.
    #[arg(long, value_name = "IF")]
    access: String,
    /// DPDK device of the network behind the gateway. Every address there answers, and sends the datagrams back.
    #[arg(long, value_name = "DEVICE")]
    core: Option<String>,
    /// Number of subscribers.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_INDEX)))]
    sessions: u32,
    /// Index of the first subscriber: its MAC address is 02:62:6e and the index.
    #[arg(long, value_name = "N", default_value_t = 0)]
    first: u32,
    /// Sessions started per second.
    #[arg(long, value_name = "R", default_value = "100", value_parser = positive)]
    rate: f64,
    /// Authentication; the other one is refused.
    #[arg(long, value_enum, default_value_t = Auth::Pap)]
    auth: Auth,
    /// User name of all subscribers.
    #[arg(long, value_name = "NAME", conflicts_with = "user_prefix")]
    user: Option<String>,
    /// User name of a subscriber: this and the subscriber's index, without leading zeros.
    #[arg(long, value_name = "PREFIX")]
    user_prefix: Option<String>,
    /// Password of all subscribers.
    #[arg(long, value_name = "TEXT", default_value = "")]
    password: String,
    /// Service-Name asked for; any by default.
    #[arg(long, value_name = "NAME", default_value = "")]
    service_name: String,
    /// VLAN of all subscribers: the S-VLAN, or S-VLAN and C-VLAN.
    #[arg(long, value_name = "S[.C]", conflicts_with = "priority_tag")]
    vlan: Option<Vlan>,
    /// TPID of the outer tag. Default: 0x8100 for one tag, 0x88a8 outside a second one.
    #[arg(long, value_name = "TPID", value_parser = vlan::tpid, requires = "vlan")]
    outer_tpid: Option<u16>,
    /// Tag every frame with this priority and no VLAN (IEEE 802.1Q priority-tagged).
    #[arg(long, value_name = "PCP", value_parser = clap::value_parser!(u16).range(0..=7))]
    priority_tag: Option<u16>,
    /// IPv6 beside IPv4: IPv6CP, an address from the router's advertisement, traffic to an IPv6 reflector.
    #[arg(long)]
    ipv6: bool,
    /// MRU asked for in bytes; above 1492 with PPP-Max-Payload (RFC 4638).
    #[arg(long, value_name = "N", default_value_t = bng_pppoe::codec::lcp::PPPOE_MRU, value_parser = clap::value_parser!(u16).range(128..=9_592))]
    mru: u16,
    /// Seconds the sessions stay up at least, counted from the moment all are up.
    #[arg(long, value_name = "S", default_value = "0", value_parser = seconds)]
    hold: Duration,
    /// Sessions that end and begin again per second, in turn, for the seconds of --hold; with traffic, if there is any, at --pps
    /// all the while.
    #[arg(long, value_name = "R", value_parser = positive, requires = "hold")]
    churn: Option<f64>,
    /// PADI per second from random addresses that never dial in, besides.
    #[arg(long, value_name = "R", value_parser = positive)]
    padi_flood: Option<f64>,
    /// Write a line for each session that is over: subscriber, session id, packets and bytes up, packets and bytes down.
    #[arg(long, value_name = "FILE")]
    ledger: Option<PathBuf>,
    /// Reflector (`bng-perf reflect`) to send traffic to when all sessions are up; once per family.
    #[arg(long, value_name = "IP:PORT")]
    traffic_to: Vec<SocketAddr>,
    /// Datagrams sent per second, all sessions together.
    #[arg(long, value_name = "N", default_value = "1000", value_parser = positive, requires = "traffic_to")]
    pps: f64,
    /// UDP payload in bytes; the IP packet is 28 bytes longer, with IPv6 48.
    #[arg(long, value_name = "N", default_value_t = 100, requires = "traffic_to")]
    payload_bytes: usize,
    /// Seconds of traffic.
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds, requires = "traffic_to")]
    duration: Duration,
    /// Seconds to wait at most for the last datagrams to come back.
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds, requires = "traffic_to")]
    drain: Duration,
    /// Send packets larger than the session's MTU as well.
    #[arg(long, requires = "traffic_to")]
    oversize: bool,
    /// TTL or hop limit of the datagrams.
    #[arg(long, value_name = "N", default_value_t = Header::default().ttl, requires = "traffic_to")]
    ttl: u8,
    /// Send IPv4 datagrams without "don't fragment".
    #[arg(long, requires = "traffic_to")]
    may_fragment: bool,
    /// Source address of the datagrams in place of the subscriber's own; once per family.
    #[arg(long, value_name = "IP", requires = "traffic_to")]
    spoof_source: Vec<IpAddr>,
    /// Exit with an error if a datagram is lost.
    #[arg(long, requires = "traffic_to")]
    require_zero_loss: bool,
    /// First period of every retransmission timer in seconds; doubled up to four times that.
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    restart_timer: Duration,
    /// Seconds a session may take to come up.
    #[arg(long, value_name = "S", default_value = "60", value_parser = seconds)]
    setup_timeout: Duration,
    /// Do not end the sessions.
    #[arg(long)]
    leave_up: bool,
    /// One line of progress a second on stderr.
    #[arg(long)]
    progress: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Longest IP packet sent, bytes: what Ethernet jumbo frames carry.
const LONGEST_PACKET: usize = 9_000;

/// Values by [`Family::index`]; two of one family are refused.
fn by_family<T: Copy>(
    option: &str,
    values: &[T],
    address: impl Fn(&T) -> IpAddr,
) -> Result<[Option<T>; 2]> {
    let mut all = [None; 2];
    for value in values {
        let family = Family::of(address(value));
        if all[family.index()].replace(*value).is_some() {
            bail!("{option} is given twice for {}", family.name());
        }
    }
    Ok(all)
}

impl DialArgs {
    fn plan(&self) -> Result<Plan> {
        if self.first > MAX_INDEX + 1 - self.sessions {
            bail!(
                "--first {} and --sessions {} go past the last subscriber index {MAX_INDEX}",
                self.first,
                self.sessions
            );
        }
        if self.restart_timer.is_zero() {
            bail!("--restart-timer must be above zero");
        }
        let to = by_family("--traffic-to", &self.traffic_to, SocketAddr::ip)?;
        let spoof = by_family("--spoof-source", &self.spoof_source, |address| *address)?;
        if to[Family::V6.index()].is_some() && !self.ipv6 {
            bail!("--traffic-to an IPv6 address needs --ipv6");
        }
        let headers = Family::BOTH
            .into_iter()
            .filter(|family| to[family.index()].is_some())
            .map(Family::headers)
            .max();
        let traffic = match headers {
            None => None,
            Some(headers) => {
                let (most, why) = if self.oversize {
                    (LONGEST_PACKET - headers, "the largest frame".to_owned())
                } else {
                    let mru = usize::from(self.mru);
                    (mru.saturating_sub(headers), format!("the MRU of {mru}"))
                };
                if !(HEADER_LEN..=most).contains(&self.payload_bytes) {
                    bail!(
                        "--payload-bytes {} is not within {HEADER_LEN} (the probe header) to {most} ({why})",
                        self.payload_bytes
                    );
                }
                Some(TrafficPlan {
                    to,
                    spoof,
                    header: Header {
                        ttl: self.ttl,
                        dont_fragment: !self.may_fragment,
                    },
                    per_second: self.pps,
                    payload_bytes: self.payload_bytes,
                    duration: self.duration,
                    drain: self.drain,
                })
            }
        };
        Ok(Plan {
            sessions: self.sessions,
            first: self.first,
            rate: self.rate,
            hold: self.hold,
            traffic,
            leave_up: self.leave_up,
            churn: self.churn,
            padi_flood: self.padi_flood,
            ledger: self.ledger.is_some(),
        })
    }

    fn settings(&self) -> ClientSettings {
        ClientSettings {
            mru: self.mru,
            ipv6: self.ipv6,
            auth: self.auth,
            vlans: vlan::tags(self.vlan, self.outer_tpid, self.priority_tag),
            restart: self.restart_timer,
            restart_max: self.restart_timer * 4,
            setup_timeout: self.setup_timeout,
            service_name: self.service_name.clone().into_bytes(),
            ..ClientSettings::default()
        }
    }

    fn credentials(&self, index: u32) -> (Vec<u8>, Vec<u8>) {
        let user = match (&self.user, &self.user_prefix) {
            (Some(user), _) => user.clone(),
            (None, Some(prefix)) => format!("{prefix}{index}"),
            (None, None) => String::new(),
        };
        (user.into_bytes(), self.password.clone().into_bytes())
    }
}

/// Runs it. Success when all sessions came up and nothing was damaged (nor, if so asked, lost).
pub(crate) fn run(args: &DialArgs) -> Result<ExitCode> {
    let plan = args.plan()?;
    let run_number = getrandom::u64().context("no random numbers")?;
    let mut emulator = Emulator::new(plan, args.settings(), run_number, |index| {
        args.credentials(index)
    })
    .context("cannot make a histogram")?;
    let mut link = Link::open(&args.access, args.core.as_deref())?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot catch signals")?;
    }
    let interrupted = drive(args, &mut emulator, &mut link, &stop)?;
    warn(args, &emulator, &link);
    if let Some(file) = &args.ledger {
        ledger(file, &emulator).with_context(|| file.display().to_string())?;
    }
    let report = Report::new(&emulator, emulator.up(), interrupted, &mut link)?;
    let mut stdout = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut stdout, &report)?;
        writeln!(stdout)?;
    } else {
        write!(stdout, "{report}")?;
    }
    Ok(if report.passed(args.require_zero_loss) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The loop. Returns whether a signal ended the run; a second signal ends it at once.
fn drive(
    args: &DialArgs,
    emulator: &mut Emulator,
    link: &mut Link,
    stop: &AtomicBool,
) -> Result<bool> {
    let start = Instant::now();
    let mut interrupted = false;
    let mut progress_at = Duration::ZERO;
    loop {
        let now = start.elapsed();
        if stop.swap(false, Ordering::Relaxed) {
            if interrupted {
                return Ok(true);
            }
            interrupted = true;
            emulator.interrupt(now);
        }
        // With frames waiting for room the schedule waits too: what is not sent now is not made now.
        if link.backlog() < BACKLOG {
            emulator.poll(now);
        }
        link.send(emulator.take_frames());
        if emulator.stage() == Stage::Done && link.backlog() == 0 {
            return Ok(interrupted);
        }
        let received = link.receive(RECEIVE_BATCH, |frame| {
            emulator.handle_frame(frame, start.elapsed());
        })?;
        link.send(emulator.take_frames());
        if args.progress && now >= progress_at {
            progress(emulator, now);
            progress_at = now + PROGRESS_PERIOD;
        }
        if received == 0 {
            let next = emulator.next_wake().unwrap_or(Duration::MAX);
            let next = if args.progress {
                next.min(progress_at)
            } else {
                next
            };
            // Signals are looked at once a second at the latest.
            let limit = next.saturating_sub(start.elapsed()).min(PROGRESS_PERIOD);
            if !limit.is_zero() || link.backlog() > 0 {
                link.wait(limit)?;
            }
        }
    }
}

/// Writes what the sessions carried.
fn ledger(file: &Path, emulator: &Emulator) -> std::io::Result<()> {
    let mut out = BufWriter::new(File::create(file)?);
    for line in emulator.finished() {
        let octets = line.octets;
        writeln!(
            out,
            "{} {} {} {} {} {}",
            line.subscriber,
            line.session_id,
            octets.up_packets,
            octets.up_bytes,
            octets.down_packets,
            octets.down_bytes
        )?;
    }
    out.flush()
}

fn progress(emulator: &Emulator, now: Duration) {
    let mut stderr = std::io::stderr().lock();
    let end = if stderr.is_terminal() {
        "\x1b[K\r"
    } else {
        "\n"
    };
    let stage = match emulator.stage() {
        Stage::Setup => "setup",
        Stage::Traffic(_) => "traffic",
        Stage::Churn(_) => "churn",
        Stage::Drain(_) => "drain",
        Stage::Query(..) => "asking the reflector",
        Stage::Hold(_) => "hold",
        Stage::HangUp => "hanging up",
        Stage::Done => "done",
    };
    let failed: u64 = emulator.sums.failures.values().sum();
    // Progress is a courtesy: nobody reading it is no reason to stop.
    let _written = write!(
        stderr,
        "{:6.1} s  {stage}: {} of {} up, {failed} failed, {} sent, {} back{end}",
        now.as_secs_f64(),
        emulator.up(),
        emulator.plan.sessions,
        emulator.account.sent,
        emulator.account.received,
    );
    let _flushed = stderr.flush();
}

fn warn(args: &DialArgs, emulator: &Emulator, link: &Link) {
    if let Some(errno) = link.last_send_error() {
        eprintln!("bng-perf: {} refused frames: {errno}", args.access);
    }
    let longest = emulator.plan.traffic.map(|plan| {
        let used = |family: &Family| plan.to[family.index()].is_some();
        let headers = Family::BOTH.into_iter().filter(used).map(Family::headers);
        plan.payload_bytes + headers.max().unwrap_or(0)
    });
    if let (Some(longest), Some(mru)) = (longest, emulator.smallest_peer_mru())
        && longest > usize::from(mru)
    {
        eprintln!("bng-perf: packets of {longest} bytes were sent to a peer whose MRU is {mru}");
    }
}
