//! One measurement from start to end, in a process and a network namespace of its own.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bng_config::Config;
use bng_shm::Counter;
use bng_wire::{MacAddr, VlanStack};
use rte_rs::{Eal, Mempool, tsc};

use super::cell::{Cell, Way};
use super::gateway::{self, PUBLIC, TWIN};
use super::kernel::{Delivered, Receiver, Role, SERVER};
use super::machine::{self, Machine};
use super::peer::{Begin, Budget, Peer, Trouble};
use super::results::{Cores, Measured, Processor};
use crate::wire::control::StandIn;
use crate::wire::ends::{End, receive_pool, start_eal};
use crate::wire::flows::Subscriber;
use crate::wire::gateway::Gateway;

/// Addresses of the kernel and of the peer on the core side (RFC 5737).
const KERNEL: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);
/// How long all connections may take.
const OPEN: Duration = Duration::from_secs(20);
/// After how long a connection is asked for again.
const AGAIN: Duration = Duration::from_millis(200);
/// Sending before the measurement begins.
const WARM_UP: Duration = Duration::from_millis(700);
/// Rounds of the sender between two looks at the clock.
const ROUNDS: usize = 64;

/// What works together.
struct Bench {
    end: End,
    peer: Peer,
    control: StandIn,
    receiver: Receiver,
    delivered: Delivered,
    gateway: u32,
    cores: Cores,
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
    /// Seconds both cores were busy, by whomever.
    busy: f64,
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
                let received = self.peer.receive(&mut self.end, now);
                if received + self.peer.pump(&mut self.end, now) == 0 {
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
            busy: gateway::busy(self.cores.kernel) + gateway::busy(self.cores.packets),
        }
    }

    fn measure(&mut self, way: Way, seconds: f64) -> Result<Measured> {
        let end = Instant::now() + OPEN;
        while !self.peer.is_open() && Instant::now() < end {
            self.peer.connect(&mut self.end)?;
            self.drive(end.min(Instant::now() + AGAIN), true)?;
        }
        if !self.peer.is_open() {
            bail!(
                "not every flow came up within {OPEN:?}; the gateway lost {:?}",
                self.control.losses()
            );
        }
        self.drive(Instant::now() + WARM_UP, false)?;
        let before = self.moment();
        self.drive(Instant::now() + Duration::from_secs_f64(seconds), false)?;
        Ok(difference(way, &before, &self.moment()))
    }
}

/// What happened between two moments.
fn difference(way: Way, before: &Moment, after: &Moment) -> Measured {
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
        frames: count(Counter::RxCore) + count(Counter::RxAccess),
        given: match way {
            Way::Twin => count(Counter::HostIn),
            // With one core port and no acknowledgements of ours, these are the subscriber's.
            Way::Vhost => count(Counter::TxCore),
        },
        merged: count(Counter::CoalesceMerged),
        supers: count(Counter::CoalesceSupers),
        whole: count(Counter::SuperHost) + count(Counter::SuperSent),
        losses: crate::wire::difference(&before.losses, &after.losses),
        repeated_bytes: after.trouble.repeated_bytes - before.trouble.repeated_bytes,
        lost_bytes: after.trouble.lost_bytes - before.trouble.lost_bytes,
        time_outs: after.trouble.time_outs - before.trouble.time_outs,
        others: {
            let ours = share("", |moment| &moment.gateway) + share("", |moment| &moment.own);
            ((after.busy - before.busy) / seconds - ours).max(0.0)
        },
        processor: Processor {
            worker: share("worker", |moment| &moment.gateway),
            host: share("host", |moment| &moment.gateway) + share("machine", |moment| &moment.own),
            sender: share("bng-perf", |moment| &moment.own),
            receiver: share("receiver", |moment| &moment.own),
        },
    }
}

/// The gateway's own port that a cell sends to, and what is behind the other one.
struct Setup {
    end: End,
    control: StandIn,
    /// Who sends: MAC address, address, session.
    own: (MacAddr, Ipv4Addr, Option<Subscriber>),
    begin: Begin,
    role: Role,
    /// A port that is not used and has to be there.
    _other: Option<End>,
}

/// The kernel behind the TAP twin, and a station on the core side.
fn twin(eal: &Eal, gateway: &Gateway, config: &Config, pool: &Mempool) -> Result<Setup> {
    let access = End::open(eal, "access", &gateway.device(0), 1, pool)?;
    let end = End::open(eal, "core", &gateway.device(1), 1, pool)?;
    access.wait_for_link()?;
    end.wait_for_link()?;
    let control = StandIn::attach(config, end.mac)?;
    control.wait_ready()?;
    gateway::ip(&format!("addr add {KERNEL}/24 dev {TWIN}"))?;
    gateway::ip(&format!("link set {TWIN} up"))?;
    Ok(Setup {
        own: (end.mac, PEER, None),
        end,
        control,
        begin: Begin::Kernel,
        role: Role::Connect(PEER),
        _other: Some(access),
    })
}

/// A subscriber; the machine is there already.
fn vhost(eal: &Eal, gateway: &Gateway, config: &Config, pool: &Mempool) -> Result<Setup> {
    let end = End::open(eal, "access", &gateway.device(0), 1, pool)?;
    end.wait_for_link()?;
    let mut control = StandIn::attach(config, machine::MAC)?;
    let concentrator = control.wait_ready()?;
    gateway::ip(&format!("addr add {KERNEL}/24 dev {}", machine::TAP))?;
    gateway::ip(&format!("link set {} up", machine::TAP))?;
    // The gateway's kernel, which would answer for its addresses, has none on this port.
    gateway::ip(&format!("route add {PUBLIC} dev {}", machine::TAP))?;
    let mac = control.core_mac().context("the core port has gone")?;
    let public: ipnet::Ipv4Net = PUBLIC.parse()?;
    for address in public.network().to_bits()..=public.broadcast().to_bits() {
        let address = Ipv4Addr::from(address);
        gateway::ip(&format!(
            "neigh add {address} lladdr {mac} dev {} nud permanent",
            machine::TAP
        ))?;
    }
    let subscribers = control.open(config, 1, VlanStack::UNTAGGED, concentrator)?;
    let subscriber = *subscribers.first().context("no subscriber")?;
    Ok(Setup {
        end,
        control,
        own: (subscriber.mac, subscriber.address, Some(subscriber)),
        begin: Begin::Peer(SocketAddrV4::new(KERNEL, SERVER)),
        role: Role::Listen,
        _other: None,
    })
}

/// Measures.
pub(super) fn run(
    program: &Path,
    cell: &Cell,
    cores: Cores,
    frames: u32,
    seconds: f64,
) -> Result<Measured> {
    let eal = start_eal(cores.packets, true, &[])?;
    let pool = receive_pool(&eal)?;
    let machine = match cell.way {
        Way::Twin => None,
        Way::Vhost => Some(Machine::start(&eal, &pool, cores.kernel)?),
    };
    let socket = machine.as_ref().map(Machine::socket);
    let gateway = gateway::start(program, cell, cores, socket)?;
    let config = Config::load(gateway.config())?;
    let setup = match cell.way {
        Way::Twin => twin(&eal, &gateway, &config, &pool)?,
        Way::Vhost => vhost(&eal, &gateway, &config, &pool)?,
    };
    let receiver = Receiver::start(cores.kernel, cell.protocol, setup.role, cell.flows)?;
    let delivered = receiver.delivered();
    let budget = Budget {
        train: cell.train,
        frames: match cell.way {
            Way::Twin => frames,
            // A frame takes up to two slots of a virtio ring, which has as many as the other ring has frames.
            Way::Vhost => frames / 2,
        },
    };
    let (own, address, session) = setup.own;
    let peer = Peer::new(
        own,
        address,
        session,
        cell,
        setup.begin,
        budget,
        delivered.clone(),
        eal.tsc_hz(),
    );
    let mut bench = Bench {
        end: setup.end,
        peer,
        control: setup.control,
        receiver,
        delivered,
        gateway: gateway.pid(),
        cores,
    };
    let measured = bench.measure(cell.way, seconds);
    let ended = bench.receiver.stop();
    let measured = measured.map_err(|error| match ended {
        Err(why) => why.context(error.to_string()),
        Ok(()) => error,
    })?;
    bench.control.close()?;
    gateway.stop()?;
    machine.map_or(Ok(()), Machine::stop)?;
    Ok(measured)
}
