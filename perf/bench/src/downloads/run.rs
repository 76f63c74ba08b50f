//! One measurement from start to end, in a process and a network namespace of its own.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bng_config::Config;
use bng_shm::Counter;
use rte_rs::tsc;

use super::cell::Cell;
use super::gateway::{self, TWIN};
use super::kernel::{Delivered, Receiver, Role};
use super::peer::{Begin, Budget, Peer, Trouble};
use super::results::{Cores, Measured, Processor};
use crate::wire::control::StandIn;
use crate::wire::ends::{End, receive_pool, start_eal};

/// Addresses of the kernel and of the peer on the core side (RFC 5737).
const KERNEL: &str = "203.0.113.1/24";
const PEER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
/// How long all connections may take.
const OPEN: Duration = Duration::from_secs(20);
/// Sending before the measurement begins.
const WARM_UP: Duration = Duration::from_millis(700);
/// Rounds of the sender between two looks at the clock.
const ROUNDS: usize = 64;

/// What works together.
struct Bench {
    core: End,
    peer: Peer,
    control: StandIn,
    receiver: Receiver,
    delivered: Delivered,
    gateway: u32,
}

/// What has been counted up to a moment.
struct Moment {
    at: Instant,
    bytes: u64,
    reads: u64,
    counters: Vec<u64>,
    losses: BTreeMap<String, u64>,
    trouble: Trouble,
    gateway: BTreeMap<String, f64>,
    own: BTreeMap<String, f64>,
}

impl Bench {
    /// Sends and receives until then, or until all flows are open.
    fn drive(&mut self, until: Instant, only_open: bool) -> Result<()> {
        while Instant::now() < until && !(only_open && self.peer.is_open()) {
            if self.receiver.has_ended() {
                bail!("the receiver has ended");
            }
            for _ in 0..ROUNDS {
                let now = tsc();
                let received = self.peer.receive(&mut self.core, now);
                if received + self.peer.pump(&mut self.core, now) == 0 {
                    // The worker has the same core.
                    std::thread::yield_now();
                }
            }
            self.control.poll();
        }
        Ok(())
    }

    fn moment(&self) -> Moment {
        Moment {
            at: Instant::now(),
            bytes: self.delivered.total(),
            reads: self.delivered.reads(),
            counters: self.control.counters(),
            losses: self.control.losses(),
            trouble: self.peer.trouble,
            gateway: gateway::threads(self.gateway),
            own: gateway::threads(std::process::id()),
        }
    }

    fn measure(&mut self, seconds: f64) -> Result<Measured> {
        self.drive(Instant::now() + OPEN, true)?;
        if !self.peer.is_open() {
            bail!("not every flow came up within {OPEN:?}");
        }
        self.drive(Instant::now() + WARM_UP, false)?;
        let before = self.moment();
        self.drive(Instant::now() + Duration::from_secs_f64(seconds), false)?;
        Ok(difference(&before, &self.moment()))
    }
}

/// What happened between two moments.
fn difference(before: &Moment, after: &Moment) -> Measured {
    let seconds = after.at.duration_since(before.at).as_secs_f64();
    let count = |counter: Counter| {
        let of = |moment: &Moment| moment.counters.get(counter.index()).copied().unwrap_or(0);
        of(after) - of(before)
    };
    let share = |name: &str, of: fn(&Moment) -> &BTreeMap<String, f64>| {
        let used = |moment| {
            let threads = of(moment).iter();
            threads
                .filter(|(thread, _)| thread.starts_with(name))
                .map(|(_, used)| used)
                .sum::<f64>()
        };
        (used(after) - used(before)) / seconds
    };
    Measured {
        seconds,
        payload_bytes: after.bytes - before.bytes,
        reads: after.reads - before.reads,
        frames: count(Counter::RxCore),
        host_in: count(Counter::HostIn),
        merged: count(Counter::CoalesceMerged),
        supers: count(Counter::CoalesceSupers),
        super_host: count(Counter::SuperHost),
        host_out: count(Counter::HostOut),
        losses: crate::wire::difference(&before.losses, &after.losses),
        repeated_bytes: after.trouble.repeated_bytes - before.trouble.repeated_bytes,
        lost_bytes: after.trouble.lost_bytes - before.trouble.lost_bytes,
        time_outs: after.trouble.time_outs - before.trouble.time_outs,
        processor: Processor {
            worker: share("worker", |moment| &moment.gateway),
            host: share("host", |moment| &moment.gateway),
            sender: share("bng-perf", |moment| &moment.own),
            receiver: share("receiver", |moment| &moment.own),
        },
    }
}

/// Measures.
pub(super) fn run(
    program: &Path,
    cell: &Cell,
    cores: Cores,
    frames: u32,
    seconds: f64,
) -> Result<Measured> {
    let gateway = gateway::start(program, cell, cores)?;
    let config = Config::load(gateway.config())?;
    let devices = (gateway.device(0), gateway.device(1));
    let eal = start_eal(cores.packets, true, &[&devices.0, &devices.1])?;
    let pool = receive_pool(&eal)?;
    let access = End::open(&eal, "access", &devices.0, 1, &pool)?;
    let core = End::open(&eal, "core", &devices.1, 1, &pool)?;
    access.wait_for_link()?;
    core.wait_for_link()?;
    let control = StandIn::attach(&config, core.mac)?;
    control.wait_ready()?;
    gateway::ip(&format!("addr add {KERNEL} dev {TWIN}"))?;
    gateway::ip(&format!("link set {TWIN} up"))?;
    let role = Role::Connect(PEER);
    let receiver = Receiver::start(cores.kernel, cell.protocol, role, cell.flows)?;
    let delivered = receiver.delivered();
    let budget = Budget {
        train: cell.train,
        frames,
    };
    let peer = Peer::new(
        core.mac,
        PEER,
        None,
        cell,
        Begin::Kernel,
        budget,
        delivered.clone(),
        eal.tsc_hz(),
    );
    let mut bench = Bench {
        core,
        peer,
        control,
        receiver,
        delivered,
        gateway: gateway.pid(),
    };
    let measured = bench.measure(seconds);
    let ended = bench.receiver.stop();
    let measured = measured.map_err(|error| match ended {
        Err(why) => why.context(error.to_string()),
        Ok(()) => error,
    })?;
    gateway.stop()?;
    Ok(measured)
}
