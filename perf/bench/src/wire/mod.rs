//! `bng-perf wire`: packets through a running dataplane, from one DPDK port of the generator to the other.
//!
//! ```text
//!   generator:  access end --PPPoE--> access port \                 / core port --IP--> core end  (up)
//!               access end <--PPPoE-- access port  >  bng-dataplane  < core port <--IP-- core end  (down)
//!               stand-in for control --shared memory--^
//! ```
//!
//! `flows` makes the frames, `lane` is one direction, `generator` runs trials, `search` halves the rate (RFC 2544).
//! `control` writes sessions where `bng-controlplane` would; `gateway` starts a dataplane on memory ports; `dialled` gets the
//! sessions from a whole gateway by PPPoE instead.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bng_config::Config;
use bng_wire::VlanStack;
use clap::{Args, ValueEnum};

use crate::dial::subscriber::ClientSettings;
use crate::dial::vlan::{self, Vlan};
use control::{SESSION_MTU, StandIn};
use dialled::{Credentials, Dialled};
use ends::{End, receive_pool, start_eal};
use flows::{MAX_FLOWS_PER_SESSION, MIN_IP, Subscriber};
use gateway::{Gateway, Shape};
pub(crate) use generator::difference;
use generator::{Control, Generator, Load, Trial};
use lane::Direction;
use report::{DataplaneSetting, LaneReport, Report, SearchReport, Setting, Step};
use search::{Verdict, search};

pub(crate) mod arp;
pub(crate) mod control;
mod dialled;
pub(crate) mod ends;
pub(crate) mod flows;
pub(crate) mod gateway;
mod generator;
mod lane;
mod report;
mod search;
mod stamp;

/// Which way packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Way {
    /// From subscribers to the core.
    Up,
    /// From the core to subscribers.
    Down,
    /// Both at once, each at the rate given.
    Both,
}

/// Sends numbered packets through a running dataplane: rate without loss, latency, order.
#[derive(Debug, Args)]
pub(crate) struct WireArgs {
    /// Configuration of a dataplane that runs. Default: one is started on memory ports and ended after the run.
    #[arg(long, value_name = "FILE", requires_all = ["access_device", "core_device"])]
    config: Option<PathBuf>,
    /// Dial in with PPPoE: the gateway runs with its control plane, here or elsewhere, and routes 8.0.0.0/12 to the core device.
    #[arg(long, requires_all = ["access_device", "core_device"], conflicts_with = "config")]
    dial: bool,
    /// DPDK device at the other end of the first access port: PCI address or virtual device with arguments.
    #[arg(long, value_name = "DEVICE", requires = "core_device")]
    access_device: Option<String>,
    /// DPDK device at the other end of the first core port.
    #[arg(long, value_name = "DEVICE", requires = "access_device")]
    core_device: Option<String>,
    /// User name of all subscribers.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "",
        requires = "dial",
        conflicts_with = "user_prefix"
    )]
    user: String,
    /// User name of a subscriber: this and the subscriber's index, without leading zeros.
    #[arg(long, value_name = "PREFIX", requires = "dial")]
    user_prefix: Option<String>,
    /// Password of all subscribers.
    #[arg(long, value_name = "TEXT", default_value = "", requires = "dial")]
    password: String,
    /// Sessions dialled per second.
    #[arg(long, value_name = "R", default_value = "100", value_parser = rate, requires = "dial")]
    dial_rate: f64,
    /// VLAN of all subscribers: the S-VLAN, or S-VLAN and C-VLAN.
    #[arg(long, value_name = "S[.C]")]
    vlan: Option<Vlan>,
    /// TPID of the outer tag. Default: 0x8100 for one tag, 0x88a8 outside a second one.
    #[arg(long, value_name = "TPID", value_parser = vlan::tpid, requires = "vlan")]
    outer_tpid: Option<u16>,
    /// Sessions.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    sessions: u32,
    /// UDP flows, spread evenly over the sessions.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    flows: u32,
    /// Bytes of every IP packet.
    #[arg(long, value_name = "N", default_value_t = 512)]
    ip_bytes: usize,
    /// Which way packets go.
    #[arg(long, value_enum, default_value_t = Way::Both)]
    direction: Way,
    /// Packets per second in each direction; with --search the highest rate tried.
    #[arg(long, value_name = "PPS", value_parser = rate)]
    rate: Option<f64>,
    /// Look for the highest rate without loss (RFC 2544 section 26.1), then measure latency at it.
    #[arg(long)]
    search: bool,
    /// Part of the rate to which the search is exact, percent.
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = rate, requires = "search")]
    resolution: f64,
    /// Trials that lose packets, or in which the generator falls behind, before that counts. More than 1 is for machines that other work disturbs.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100), requires = "search")]
    attempts: u32,
    /// Seconds of each trial.
    #[arg(long, value_name = "S", default_value = "5", value_parser = rate)]
    seconds: f64,
    /// Core of the generator; the first allowed one by default.
    #[arg(long, value_name = "CORE")]
    core: Option<usize>,
    /// Queues of the generator's ports each way.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    queues: u16,
    /// Ordinary pages in place of huge pages.
    #[arg(long)]
    no_huge: bool,
    /// The program to start; the one beside this one by default.
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    dataplane: Option<PathBuf>,
    /// Workers of the dataplane that is started, on the last cores.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64), conflicts_with = "config")]
    workers: u16,
    /// Longest sleep of its idle workers, microseconds. Default 0, or 100 when the generator has a core of theirs.
    #[arg(long, value_name = "US", conflicts_with = "config")]
    idle_backoff_us: Option<u32>,
    /// Print the result as one JSON object.
    #[arg(long)]
    json: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        Ok(_) => Err("must be above zero".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Highest rate a search starts with: 60-byte frames on a 10 Gbit/s link are 14.9 million.
const SEARCH_FROM: f64 = 15e6;
/// Rate without --search and --rate.
const DEFAULT_RATE: f64 = 100e3;
/// A generator that offered less than this part of the rate is what limits.
const OFFERED_AT_LEAST: f64 = 0.95;
/// Idle back-off of workers that share their core with the generator, microseconds.
const SHARED_BACKOFF_US: u32 = 100;

impl WireArgs {
    fn check(&self) -> Result<()> {
        if self.access_device.is_some() && self.config.is_none() && !self.dial {
            bail!("--access-device and --core-device need --config or --dial");
        }
        if !(MIN_IP..=usize::from(SESSION_MTU)).contains(&self.ip_bytes) {
            bail!(
                "--ip-bytes {} is not within {MIN_IP} (IP, UDP and stamp) to {SESSION_MTU} (the sessions' MTU)",
                self.ip_bytes
            );
        }
        if self.flows < self.sessions {
            bail!(
                "--flows {} is less than --sessions {}: every session has at least one",
                self.flows,
                self.sessions
            );
        }
        if self.flows.div_ceil(self.sessions) > MAX_FLOWS_PER_SESSION {
            bail!("at most {MAX_FLOWS_PER_SESSION} flows per session: give more --sessions");
        }
        Ok(())
    }

    fn tags(&self) -> VlanStack {
        vlan::tags(self.vlan, self.outer_tpid, None)
    }

    fn load(&self, rate: f64) -> Load {
        Load {
            up: (self.direction != Way::Down).then_some(rate),
            down: (self.direction != Way::Up).then_some(rate),
            duration: Duration::from_secs_f64(self.seconds),
        }
    }

    const fn directions(&self) -> &'static [Direction] {
        match self.direction {
            Way::Up => &[Direction::Up],
            Way::Down => &[Direction::Down],
            Way::Both => &[Direction::Up, Direction::Down],
        }
    }
}

/// Which cores there are and who gets which.
struct Cores {
    generator: usize,
    workers: Vec<usize>,
    online: usize,
}

impl Cores {
    /// The generator takes the first core, workers the others from the last one down; with too few they share.
    fn choose(args: &WireArgs) -> Result<Self> {
        let all: Vec<usize> = core_affinity::get_core_ids()
            .context("cannot tell which cores are allowed")?
            .iter()
            .map(|core| core.id)
            .collect();
        let generator = match args.core {
            Some(core) if all.contains(&core) => core,
            Some(core) => bail!("core {core} is not available to this process"),
            None => *all.first().context("no core is allowed")?,
        };
        let mut others: Vec<usize> = all
            .iter()
            .rev()
            .copied()
            .filter(|core| *core != generator)
            .collect();
        others.push(generator);
        let workers = (0..usize::from(args.workers))
            .map(|at| others.get(at).copied().unwrap_or(generator))
            .collect();
        Ok(Self {
            generator,
            workers,
            online: all.len(),
        })
    }
}

/// MiB of huge pages that are free.
pub(crate) fn free_hugepages_mib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0)
    };
    field("HugePages_Free:") * field("Hugepagesize:") / 1024
}

/// MiB of huge pages the generator and a dataplane of its own take.
pub(crate) const NEEDED_MIB: u64 = 800;

/// Runs it. Success when all that arrived was right, and a rate without loss was found or, at a given rate, nothing was lost.
pub(crate) fn run(args: &WireArgs) -> Result<ExitCode> {
    args.check()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot catch signals")?;
    }
    let mut cores = Cores::choose(args)?;
    let hugepages = !args.no_huge && free_hugepages_mib() >= NEEDED_MIB;
    let report = if args.dial {
        measure(args, None, &given_devices(args), &cores, hugepages, &stop)?
    } else if let Some(file) = &args.config {
        let config = Config::load(file)?;
        cores.workers = worker_cores(&config);
        measure(
            args,
            Some(&config),
            &given_devices(args),
            &cores,
            hugepages,
            &stop,
        )?
    } else {
        let gateway = start_gateway(args, &cores, hugepages)?;
        let config = Config::load(gateway.config())?;
        let devices = (gateway.device(0), gateway.device(1));
        let report = measure(args, Some(&config), &devices, &cores, hugepages, &stop)?;
        gateway.stop()?;
        report
    };
    let mut stdout = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut stdout, &report)?;
        writeln!(stdout)?;
    } else {
        write!(stdout, "{report}")?;
    }
    Ok(if report.passed() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The devices on the command line, access and core.
fn given_devices(args: &WireArgs) -> (String, String) {
    let device = |given: &Option<String>| given.clone().unwrap_or_default();
    (device(&args.access_device), device(&args.core_device))
}

fn worker_cores(config: &Config) -> Vec<usize> {
    let workers = config.dataplane.workers.iter();
    workers.map(|core| usize::from(*core)).collect()
}

/// Starts a dataplane whose workers have the cores chosen.
fn start_gateway(args: &WireArgs, cores: &Cores, hugepages: bool) -> Result<Gateway> {
    let mut distinct = cores.workers.clone();
    distinct.push(cores.generator);
    distinct.sort_unstable();
    distinct.dedup();
    let shared = distinct.len() <= cores.workers.len();
    let program = match &args.dataplane {
        Some(program) => program.clone(),
        None => std::env::current_exe()
            .context("cannot tell where this program is")?
            .with_file_name("bng-dataplane"),
    };
    let backoff = if shared { SHARED_BACKOFF_US } else { 0 };
    let shape = Shape {
        sessions: args.sessions,
        flows: args.flows,
        main_core: cores.generator,
        workers: cores.workers.clone(),
        idle_backoff_us: args.idle_backoff_us.unwrap_or(backoff),
        hugepages,
    };
    Gateway::start(&program, &shape)
}

/// Sets up the ports and sessions, runs the trials, and takes everything down again. Without a configuration the sessions are
/// dialled.
fn measure(
    args: &WireArgs,
    config: Option<&Config>,
    (access_device, core_device): &(String, String),
    cores: &Cores,
    hugepages: bool,
    stop: &AtomicBool,
) -> Result<Report> {
    let eal = start_eal(cores.generator, hugepages, &[access_device, core_device])?;
    let receive = receive_pool(&eal)?;
    let mut access = End::open(&eal, "access", access_device, args.queues, &receive)?;
    let mut core = End::open(&eal, "core", core_device, args.queues, &receive)?;
    access.wait_for_link()?;
    core.wait_for_link()?;
    let (control, subscribers) = match config {
        Some(config) => {
            let mut control = StandIn::attach(config, core.mac)?;
            let concentrator = control.wait_ready()?;
            let subscribers = control.open(config, args.sessions, args.tags(), concentrator)?;
            (Control::StandIn(Box::new(control)), subscribers)
        }
        None => dial_in(args, &mut access, &mut core, stop)?,
    };
    let shares_core = config.is_some() && cores.workers.contains(&cores.generator);
    let setting = Setting {
        access_device: access_device.clone(),
        core_device: core_device.clone(),
        driver: access.driver.clone(),
        sessions_by: match &control {
            Control::StandIn(_) => "shared-memory",
            Control::Dialled(_) => "pppoe",
        },
        generator_core: cores.generator,
        online_cores: cores.online,
        memory: if hugepages {
            "huge pages"
        } else {
            "4 KiB pages"
        },
        tsc_hz: eal.tsc_hz(),
        dataplane: config.map(|config| DataplaneSetting {
            workers: config.dataplane.workers.len(),
            worker_cores: worker_cores(config),
            main_core: usize::from(config.dataplane.main_core),
            idle_backoff_us: config.dataplane.idle_backoff_us,
            shares_core_with_generator: shares_core,
        }),
    };
    let mut generator = Generator::new(
        (access, core),
        control,
        subscribers,
        args.flows,
        args.ip_bytes,
        eal.tsc_hz(),
        shares_core,
        stop,
    )?;
    let result = trials(args, &mut generator, setting);
    generator.close()?;
    result
}

/// Dials all subscribers in.
fn dial_in(
    args: &WireArgs,
    access: &mut End,
    core: &mut End,
    stop: &AtomicBool,
) -> Result<(Control, Vec<Subscriber>)> {
    let settings = ClientSettings {
        vlans: args.tags(),
        ..ClientSettings::default()
    };
    let credentials = Credentials {
        user: args
            .user_prefix
            .clone()
            .unwrap_or_else(|| args.user.clone()),
        numbered: args.user_prefix.is_some(),
        password: args.password.clone(),
    };
    let router = core.mac;
    let mut dialled = Dialled::new(
        args.sessions,
        args.dial_rate,
        settings,
        &credentials,
        router,
    )?;
    while !dialled.is_up()? {
        if stop.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        let frames = access.receive_others(|frame| dialled.access_frame(frame))
            + core.receive_others(|frame| dialled.core_frame(frame));
        dialled.poll(|frame| access.send(frame), |frame| core.send(frame));
        if frames == 0 {
            std::thread::yield_now();
        }
    }
    let subscribers = dialled.subscribers();
    Ok((Control::Dialled(Box::new(dialled)), subscribers))
}

/// What both lanes say after a trial.
fn lanes(
    args: &WireArgs,
    generator: &Generator<'_>,
    trial: &Trial,
    rate: f64,
    tsc_hz: u64,
) -> Vec<LaneReport> {
    args.directions()
        .iter()
        .filter_map(|direction| generator.lane(*direction))
        .map(|lane| LaneReport::of(lane, rate, trial.sending, args.ip_bytes, tsc_hz))
        .collect()
}

fn trials(args: &WireArgs, generator: &mut Generator<'_>, setting: Setting) -> Result<Report> {
    let tsc_hz = setting.tsc_hz;
    let mut searched = None;
    let rate = if args.search {
        let mut steps = Vec::new();
        let resolution = args.resolution / 100.0;
        let found = search(args.rate.unwrap_or(SEARCH_FROM), resolution, |rate| {
            let mut best: Option<Verdict> = None;
            for _ in 0..args.attempts {
                let trial = generator.trial(&args.load(rate))?;
                if trial.interrupted {
                    bail!("interrupted");
                }
                let lanes = lanes(args, generator, &trial, rate, tsc_hz);
                let least = |value: fn(&LaneReport) -> f64| {
                    lanes.iter().map(value).fold(f64::INFINITY, f64::min)
                };
                let lost: u64 = lanes.iter().map(LaneReport::lost).sum();
                let offered = least(LaneReport::offered);
                steps.push(Step {
                    pps: rate,
                    pps_offered: offered,
                    lost,
                });
                let now = Verdict {
                    offered,
                    forwarded: least(LaneReport::received),
                    lossy: lost > 0,
                    short: offered < rate * OFFERED_AT_LEAST,
                };
                let rank = |verdict: &Verdict| (!verdict.lossy, !verdict.short);
                if best.is_none_or(|best| rank(&now) > rank(&best)) {
                    best = Some(now);
                }
                if rank(&now) == (true, true) {
                    break;
                }
            }
            best.context("no trial")
        })?;
        searched = Some(SearchReport {
            zero_loss_pps: found.rate,
            zero_loss_gbps_ip: found.rate * args.ip_bytes as f64 * 8e-9,
            limited_by: found.limit.name(),
            resolution,
            acceptable_loss: 0,
            trial_seconds: args.seconds,
            attempts: args.attempts,
            trials: steps,
        });
        found.rate
    } else {
        args.rate.unwrap_or(DEFAULT_RATE)
    };
    let before = generator.control.losses();
    let trial = if rate > 0.0 {
        generator.trial(&args.load(rate))?
    } else {
        bail!("even the lowest rate loses packets; the dataplane lost: {before:?}")
    };
    Ok(Report {
        sessions: args.sessions,
        flows: args.flows,
        ip_bytes: args.ip_bytes,
        direction: match args.direction {
            Way::Up => "up",
            Way::Down => "down",
            Way::Both => "both",
        },
        seconds: args.seconds,
        lanes: lanes(args, generator, &trial, rate, tsc_hz),
        setting,
        search: searched,
        foreign_frames: trial.foreign,
        dataplane_losses: difference(&before, &generator.control.losses()),
        interrupted: trial.interrupted,
    })
}
