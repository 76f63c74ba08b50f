//! Start, housekeeping and stop of the process.

use crate::settings::{coalescing, coalescing_in_words, settings, shared_tables, stage_port};
use anyhow::{Context, Result, anyhow, bail};
use bng_config::{Config, OuterTpid, PortRole};
use bng_dataplane::capacities::capacities;
use bng_dataplane::dispatch::{HandOver, Outlets};
use bng_dataplane::fib_mirror::FibMirrors;
use bng_dataplane::host::{HOST_RING, Host, HostBell, Room, Twin, has_twin, host_ring};
use bng_dataplane::ports::{LivePort, bring_up, frame_room, is_pci};
use bng_dataplane::tx::{Supers, TxPort};
use bng_dataplane::worker::{FromHost, RxPort, WorkerError, WorkerSetup};
use bng_fastpath::WaitingRoom;
use bng_fastpath::coalesce::Protocols;
use bng_shm::{Dataplane, Offloads, PortState};
use rte_rs::{
    Consumer, Eal, EalArgs, HEADROOM, Memory, Mempool, MempoolConfig, Producer, Queues, RingConfig,
    RxQueue, TxQueue, sp_sc_ring,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the main thread looks for new routes.
const HOUSEKEEPING: Duration = Duration::from_millis(10);
/// Frames in each ring between two workers.
const HANDOVER_RING: u32 = bng_config::RING_FRAMES;

/// Runs until SIGTERM or SIGINT.
pub(crate) fn run(config: &Config) -> Result<()> {
    let (signals, writer) = UnixStream::pair().context("signal pipe")?;
    for signal in [SIGTERM, SIGINT] {
        signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    let capacities = capacities(config);
    let mut shm = Dataplane::attach(&config.shared_memory.path, capacities)?;
    if let Some(difference) = shm.replaced() {
        tracing::warn!("shared memory made anew, nobody used the old one: {difference}");
    }
    let eal = Eal::init(&eal_arguments(config)).with_context(|| eal_advice(config))?;
    tracing::info!("{}", rte_rs::version());
    let coalesced = coalescing_in_words(&config.dataplane.coalescing);
    tracing::info!("coalescing: {coalesced}");
    let pool = Mempool::create(&eal, &pool_config(config)).context(
        "packet buffers do not fit: raise dataplane.eal.memory_mib or lower dataplane.mbufs",
    )?;
    let (mut ports, queues): (Vec<_>, Vec<_>) = bring_up(&eal, &pool, config)?.into_iter().unzip();
    let mut fib = FibMirrors::new(&eal, &capacities)?;

    let stop = Arc::new(AtomicBool::new(false));
    let (threads, started) = start_threads(
        config, &eal, &pool, &mut ports, queues, &fib, &mut shm, &stop,
    )?;
    // A worker that ends before it has started drops its end of the channel: then there is no answer.
    let outcome = if config
        .dataplane
        .workers
        .iter()
        .all(|_| started.recv().is_ok())
    {
        for (index, port) in (0u8..).zip(&ports) {
            shm.publish_port(index, &port.status());
        }
        shm.ring_control();
        // Without a service manager there is nobody to notify, which is no error.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        eprintln!("bng-dataplane: ready");
        housekeep(&signals, &shm, &mut fib, &ports, &pool, &threads)
    } else {
        Err(anyhow!("a worker did not start"))
    };
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    stop.store(true, Ordering::Relaxed);
    // What a thread says of its end explains more than that it has ended.
    let mut first_error = None;
    for thread in threads {
        let name = thread.thread().name().unwrap_or("thread").to_owned();
        match thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => first_error = first_error.or(Some(error.into())),
            Err(_) => first_error = first_error.or(Some(anyhow!("{name} panicked"))),
        }
    }
    let first_error = first_error.or(outcome.err());
    for (index, mut port) in (0u8..).zip(ports) {
        let mut status = port.status();
        status.state = PortState::Absent;
        shm.publish_port(index, &status);
        if let Err(error) = port.port.stop() {
            tracing::warn!("port {}: {error}", port.name);
        }
    }
    shm.ring_control();
    // Ports, rings and threads are gone, so every buffer is back (HZ-21).
    match pool.in_use() {
        0 => tracing::info!("stopped"),
        lost => tracing::error!("stopped; {lost} packet buffers were lost"),
    }
    first_error.map_or(Ok(()), Err)
}

fn eal_arguments(config: &Config) -> EalArgs {
    let eal = &config.dataplane.eal;
    let pci: Vec<_> = config
        .dataplane
        .ports
        .iter()
        .map(|port| port.device.as_str())
        .filter(|device| is_pci(device))
        .collect();
    let memory = if eal.hugepages {
        Memory::HugepagesUnlinked
    } else {
        Memory::NoHugepages {
            mib: eal.memory_mib,
        }
    };
    let mut arguments = EalArgs::new(&eal.file_prefix)
        .lcore_map(&format!("0@{}", config.dataplane.main_core))
        .memory(memory)
        .telemetry(false)
        .pci(!pci.is_empty())
        .single_file_segments(eal.hugepages && shares_memory(config));
    if eal.hugepages {
        arguments = arguments.reserve_mib(eal.memory_mib);
    }
    for device in pci {
        arguments = arguments.extra(["--allow", device]);
    }
    arguments.extra(eal.extra_args.iter().cloned())
}

/// Whether a port shows its peer the packet buffers. A peer of vhost takes only a few files of memory, and without the
/// rest the port passes nothing and says nothing.
fn shares_memory(config: &Config) -> bool {
    let drivers = ["net_virtio_user", "virtio_user", "net_vhost", "eth_vhost"];
    (config.dataplane.ports.iter()).any(|port| {
        let device = port.device.as_str();
        drivers.iter().any(|driver| device.starts_with(driver)) || device.contains("zero-copy=yes")
    })
}

/// What an operator looks at when EAL does not start; EAL's own lines above say what it found.
fn eal_advice(config: &Config) -> String {
    let eal = &config.dataplane.eal;
    let memory = if eal.hugepages {
        format!(
            "{} MiB of free hugepages are needed (see /proc/meminfo and vm.nr_hugepages; less with \
             dataplane.eal.memory_mib, none with dataplane.eal.hugepages: false)",
            eal.memory_mib
        )
    } else {
        format!("{} MiB of memory are needed", eal.memory_mib)
    };
    format!(
        "DPDK did not start: {memory}, and core {} (dataplane.main_core) must exist",
        config.dataplane.main_core
    )
}

/// No stage takes chains, so a buffer holds a whole frame of any port.
fn pool_config(config: &Config) -> MempoolConfig {
    let ports = config.dataplane.ports.iter();
    let room = ports.map(|port| frame_room(&port.device, port.mtu)).max();
    MempoolConfig {
        data_room: room.unwrap_or(0).saturating_add(HEADROOM),
        cache: bng_config::MBUF_CACHE.min(config.dataplane.mbufs / 4),
        ..MempoolConfig::new("mbufs", config.dataplane.mbufs)
    }
}

fn ring(eal: &Eal, name: String, capacity: u32) -> Result<(Producer, Consumer)> {
    let config = RingConfig {
        name,
        capacity,
        numa_node: None,
    };
    sp_sc_ring(eal, &config).with_context(|| format!("ring {}", config.name))
}

type Thread = JoinHandle<Result<(), WorkerError>>;

/// Queues of one port, dealt out to workers.
struct Dealt {
    rx: Vec<Vec<RxQueue>>,
    tx: Vec<TxQueue>,
}

fn deal(queues: Queues, workers: usize) -> Dealt {
    let mut rx: Vec<Vec<RxQueue>> = (0..workers).map(|_| Vec::new()).collect();
    for (at, queue) in queues.rx.into_iter().enumerate() {
        rx[at % workers].push(queue);
    }
    Dealt { rx, tx: queues.tx }
}

#[allow(clippy::too_many_arguments)]
fn start_threads(
    config: &Config,
    eal: &Eal,
    pool: &Mempool,
    ports: &mut [LivePort],
    queues: Vec<Queues>,
    routes: &FibMirrors,
    shm: &mut Dataplane,
    stop: &Arc<AtomicBool>,
) -> Result<(Vec<Thread>, Receiver<()>)> {
    let workers = config.dataplane.workers.len();
    let mut access = 0u8..;
    let stage_ports: Vec<_> = ports
        .iter()
        .map(|port| {
            let index = match port.role {
                PortRole::Access => access.next().unwrap_or(u8::MAX),
                PortRole::Core => 0,
            };
            stage_port(port, index)
        })
        .collect();

    // Hand-over rings: `to[a][b]` is where worker a puts what belongs to worker b.
    let mut to: Vec<Vec<Option<HandOver>>> = Vec::new();
    let mut from: Vec<Vec<Consumer>> = (0..workers).map(|_| Vec::new()).collect();
    for a in 0..workers {
        let mut row = Vec::new();
        for (b, consumers) in from.iter_mut().enumerate() {
            row.push(if a == b {
                None
            } else {
                let (put, take) = ring(eal, format!("over-{a}-{b}"), HANDOVER_RING)?;
                consumers.push(take);
                Some(HandOver::new(put))
            });
        }
        to.push(row);
    }

    // Host path: a ring from each worker; for each twin a ring to the worker that sends on its port.
    let host_bell = HostBell::new().context("host path")?;
    let mut twins = Vec::new();
    let mut from_host: Vec<Vec<FromHost>> = (0..workers).map(|_| Vec::new()).collect();
    let mut twins_take = vec![Protocols::default(); ports.len()];
    let wanted = config.dataplane.ports.iter();
    for ((index, port), wanted) in (0u8..).zip(ports.iter_mut()).zip(wanted) {
        if has_twin(port) {
            let (put, take) = ring(eal, format!("host-in-{index}"), HOST_RING)?;
            let room = Arc::new(Room::default());
            let offloads = wanted.twin_offloads;
            let twin = Twin::create(index, port, offloads, put, Arc::clone(&room))?;
            let supers = twin.supers();
            if supers.tcp {
                port.offloads = port.offloads.with(Offloads::TWIN);
            }
            // The kernel takes the checksums of a super-packet for verified (C17).
            if config.dataplane.coalescing.verify_checksums {
                twins_take[usize::from(index)] = supers;
            }
            twins.push(twin);
            from_host[usize::from(index) % workers].push(FromHost {
                port: index,
                ring: take,
                room,
            });
        }
    }

    let mut dealt: Vec<_> = queues
        .into_iter()
        .map(|queues| deal(queues, workers))
        .collect();
    let offloads: Vec<_> = ports.iter().map(|port| port.offloads).collect();
    let most_frames: Vec<_> = ports.iter().map(|port| port.most_frames).collect();
    let tables = shared_tables()?;
    let mut loops = Vec::new();
    let mut from_workers = Vec::new();
    for (index, ((handover, taken_over), from_host)) in
        to.into_iter().zip(from).zip(from_host).enumerate().rev()
    {
        let worker = u8::try_from(index).ok().and_then(|index| shm.worker(index));
        let worker = worker.with_context(|| format!("worker {index} has no place"))?;
        let (host, take) = host_ring(ring(eal, format!("host-out-{index}"), HOST_RING)?);
        from_workers.push(take);
        let mut rx = Vec::new();
        let mut tx = Vec::new();
        let all = dealt.iter_mut().zip(&stage_ports);
        for (port, ((dealt, stage), wanted)) in (0u8..).zip(all.zip(&config.dataplane.ports)) {
            let queues = std::mem::take(&mut dealt.rx[index]);
            let has = |offload| offloads[usize::from(port)].has(offload);
            rx.extend(queues.into_iter().map(|queue| RxPort {
                port,
                role: stage.role,
                queue,
                outer_tpid: wanted.outer_tpid.map(OuterTpid::ethertype),
                verifies_ipv4: has(Offloads::RX_IPV4_CHECKSUM),
            }));
            let queue = dealt.tx.pop().context("a transmit queue is missing")?;
            let is_access = matches!(stage.role, bng_fastpath::PortRole::Access { .. });
            let supers = has(Offloads::TX_TCP_SEGMENTATION).then(|| Supers {
                most_frames: most_frames[usize::from(port)],
                pool: pool.clone(),
            });
            tx.push(TxPort::new(queue, is_access, supers));
        }
        loops.push(WorkerSetup {
            shm: worker,
            settings: settings(config, &stage_ports, &tables)?,
            coalescing: coalescing(config),
            fib: routes.lookup(),
            core: usize::from(config.dataplane.workers[index]),
            rx,
            taken_over,
            from_host,
            out: Outlets {
                tx,
                handover,
                fragments: pool.clone(),
                waiting: WaitingRoom::new(&stage_ports, Arc::clone(&tables.0)),
                host,
                host_bell: Arc::clone(&host_bell),
                twins: twins_take.clone(),
            },
            pool: pool.clone(),
            idle_backoff_us: config.dataplane.idle_backoff_us,
        });
    }

    let mut threads = Vec::new();
    let host = Host {
        shm: shm.host().context("the host path has no place")?,
        pool: pool.clone(),
        from_workers,
        twins,
        bell: host_bell,
    };
    threads.push(spawn("host".to_owned(), stop, {
        let eal = eal.clone();
        move |stop| {
            // The host thread allocates and frees buffers: registered, it has a cache of its own. It stays
            // on the main core, which it inherited.
            let _registered = eal
                .register_thread()
                .map_err(|source| WorkerError::Register {
                    thread: "host path".to_owned(),
                    source,
                })?;
            host.run(stop).map_err(WorkerError::from)
        }
    })?);
    let (started, has_started) = channel();
    for worker in loops {
        let eal = eal.clone();
        let name = format!("worker-{}", worker.shm.index());
        let started = started.clone();
        threads.push(spawn(name, stop, move |stop| {
            worker.run(&eal, stop, move || {
                // Whoever waits is there until all have answered.
                let _ = started.send(());
            })
        })?);
    }
    Ok((threads, has_started))
}

fn spawn(
    name: String,
    stop: &Arc<AtomicBool>,
    body: impl FnOnce(&AtomicBool) -> Result<(), WorkerError> + Send + 'static,
) -> Result<Thread> {
    let stop = Arc::clone(stop);
    let thread = std::thread::Builder::new().name(name.clone());
    thread
        .spawn(move || body(&stop))
        .with_context(|| format!("thread {name}"))
}

/// FIB updates, heartbeat and port status until a signal comes or a thread ends.
fn housekeep(
    signals: &UnixStream,
    shm: &Dataplane,
    fib: &mut FibMirrors,
    ports: &[LivePort],
    pool: &Mempool,
    threads: &[Thread],
) -> Result<()> {
    let reader = shm.reader();
    let mut next_status = Instant::now();
    let mut control_alive = None;
    loop {
        let mut fds = [PollFd::new(signals, PollFlags::IN)];
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: HOUSEKEEPING.subsec_nanos().into(),
        };
        if matches!(poll(&mut fds, Some(&limit)), Ok(1)) {
            return Ok(());
        }
        let applied = fib.refresh(&reader);
        if applied.v4.is_some() || applied.v6.is_some() {
            let [refused, refused6] = fib.refused();
            shm.routes_refused(refused, refused6);
            let [routes, routes6] = fib.len();
            tracing::debug!("{routes} IPv4 and {routes6} IPv6 routes in the FIBs");
        }
        if let Some(version) = applied.v4 {
            shm.routes_applied(version);
        }
        if let Some(version) = applied.v6 {
            shm.routes6_applied(version);
        }
        if let Some(ended) = threads.iter().find(|thread| thread.is_finished()) {
            bail!("{} ended", ended.thread().name().unwrap_or("a thread"));
        }
        if Instant::now() >= next_status {
            next_status = Instant::now() + Duration::from_secs(1);
            shm.heartbeat();
            let in_use = pool.in_use();
            shm.publish_mbufs(in_use.saturating_add(pool.available()), in_use);
            for (index, port) in (0u8..).zip(ports) {
                shm.publish_port(index, &port.status());
            }
            let alive = shm.control_alive();
            if control_alive.replace(alive) != Some(alive) {
                if alive {
                    tracing::info!("bng-controlplane is running");
                } else {
                    tracing::warn!(
                        "bng-controlplane is not running: sessions go on, no new ones can be made"
                    );
                }
            }
        }
    }
}
