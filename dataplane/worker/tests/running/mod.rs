//! The real process between two TAP devices in a namespace of its own; the test plays control, subscribers and core.

#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod frames;
pub(crate) mod trains;

use bng_config::Config;
use bng_dataplane::capacities::capacities;
use bng_shm::{
    Adjacency, BlockOwner, Counter, FRAME_MAX, NextHopId, Policy, PolicyId, PoolRange, PortBlock,
    Publisher, RangeKind, Record, Route, Session, SessionState, SlotIndex, Take, Vlans,
};
use bng_wire::MacAddr;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

pub(crate) const WORKERS: u8 = 2;
pub(crate) const ACCESS: u8 = 0;
pub(crate) const CORE: u8 = 1;
/// The core's router, and our address beside it.
pub(crate) const ROUTER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
pub(crate) const OURS: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
pub(crate) const ROUTER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 9, 9]);
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);
pub(crate) const GATEWAY: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 1);
const BLOCK: u16 = 512;
const LIMIT: Duration = Duration::from_secs(10);

/// A subscriber: what control publishes of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subscriber {
    pub(crate) slot: SlotIndex,
    pub(crate) session: Session,
}

impl Subscriber {
    pub(crate) fn new(id: u16, owner: u8, vlans: Vlans) -> Self {
        let framed_ip = Ipv4Addr::new(100, 64, 0, id as u8);
        Self {
            slot: SlotIndex::new(0, id),
            session: Session {
                generation: 0,
                state: SessionState::Forwarding,
                owner,
                client_mac: [2, 0, 0, 0, 1, id as u8],
                vlans,
                mtu: 1_492,
                framed_ip,
                gateway_ip: GATEWAY,
                nat: Some(PortBlock {
                    address: Ipv4Addr::new(203, 0, 113, 3),
                    address_index: 3,
                    first_port: 1_024 + BLOCK * id,
                    size: BLOCK,
                }),
                policy: PolicyId(1),
                ..Session::NONE
            },
        }
    }

    pub(crate) fn mac(&self) -> MacAddr {
        MacAddr(self.session.client_mac)
    }

    pub(crate) fn block(&self) -> PortBlock {
        self.session.nat.unwrap()
    }
}

/// Keeps trying until there is a value.
pub(crate) fn wait_for<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(Instant::now() < end, "no {what} within {LIMIT:?}");
        // What is waited for lies in shared memory or in the kernel, neither of which can wake us.
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn run(program: &str, arguments: &str) {
    let status = Command::new(program)
        .args(arguments.split_whitespace())
        .status();
    assert!(status.unwrap().success(), "{program} {arguments}");
}

/// One end of a cable into the process.
pub(crate) struct Tap(SyncDevice);

impl Tap {
    fn create(name: &str) -> Self {
        let device = DeviceBuilder::new()
            .name(name)
            .layer(Layer::L2)
            .build_sync()
            .unwrap();
        device.set_nonblocking(true).unwrap();
        // The test plays the host behind the cable: the kernel at our end of it takes nothing in.
        std::fs::write(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"), "1").unwrap();
        Self(device)
    }

    pub(crate) fn send(&self, frame: &[u8]) {
        assert_eq!(self.0.send(frame).unwrap(), frame.len());
    }

    /// The length of the next frame out of the process, which is put into `frame`; `None` when there is none.
    pub(crate) fn take(&self, frame: &mut [u8]) -> Option<usize> {
        self.0.recv(frame).ok()
    }

    /// The next frame out of the process, or `None` when there is none for `limit`.
    pub(crate) fn receive_within(&self, limit: Duration) -> Option<Vec<u8>> {
        let end = Instant::now() + limit;
        let mut frame = vec![0; 4_096];
        loop {
            if let Ok(len) = self.0.recv(&mut frame) {
                frame.truncate(len);
                return Some(frame);
            }
            let left = end.checked_duration_since(Instant::now())?;
            let left = Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: left.subsec_nanos().into(),
            };
            let mut fds = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
            poll(&mut fds, Some(&left)).unwrap();
        }
    }

    pub(crate) fn receive(&self) -> Vec<u8> {
        self.receive_within(Duration::from_secs(5))
            .expect("a frame")
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The process and everything around it; all of it goes away with it.
pub(crate) struct Gateway {
    pub(crate) access: Tap,
    pub(crate) core: Tap,
    pub(crate) control: Publisher,
    pub(crate) access_mac: MacAddr,
    pub(crate) core_mac: MacAddr,
    workers: u8,
    namespace: String,
    directory: PathBuf,
    process: Option<(Child, Receiver<String>)>,
    /// What the process has said on stderr.
    pub(crate) said: Vec<String>,
}

impl Gateway {
    /// Moves the calling thread into a new namespace and starts the process there.
    pub(crate) fn start(name: &str) -> Self {
        Self::start_with(name, |yaml| yaml)
    }

    /// As [`Self::start`], with the configuration changed.
    pub(crate) fn start_with(name: &str, change: impl FnOnce(String) -> String) -> Self {
        let namespace = format!("bng-{name}-{}", std::process::id());
        let directory = PathBuf::from(format!("/dev/shm/{namespace}"));
        run("ip", &format!("netns add {namespace}"));
        let file = File::open(format!("/run/netns/{namespace}")).unwrap();
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        // Nothing in here speaks unasked.
        for which in ["all", "default"] {
            let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
            std::fs::write(path, "1").unwrap();
        }
        let (access, core) = (Tap::create("acc"), Tap::create("cor"));
        std::fs::create_dir(&directory).unwrap();
        let yaml = change(yaml(&namespace, &directory));
        std::fs::write(directory.join("config.yaml"), yaml).unwrap();
        let config = Config::load(directory.join("config.yaml")).unwrap();
        let control = Publisher::attach(&config.shared_memory.path, capacities(&config)).unwrap();
        let mut gateway = Self {
            access,
            core,
            control,
            access_mac: MacAddr::ZERO,
            core_mac: MacAddr::ZERO,
            workers: config.dataplane.workers.len() as u8,
            namespace,
            directory,
            process: None,
            said: Vec::new(),
        };
        gateway.publish();
        gateway.launch();
        gateway
    }

    fn publish(&mut self) {
        let range = |kind, first, last| PoolRange {
            kind,
            first,
            last,
            base: 0,
            block_size: BLOCK,
            first_port: 1_024,
            rules: bng_shm::NatRules::default(),
        };
        let ranges = [
            range(
                RangeKind::Nat,
                [203, 0, 113, 0].into(),
                [203, 0, 113, 15].into(),
            ),
            range(
                RangeKind::Subscriber,
                [100, 64, 0, 0].into(),
                [100, 64, 0, 255].into(),
            ),
        ];
        self.control.publish_pools(&ranges).unwrap();
        self.control
            .write_policy(PolicyId(1), Some(&Policy::default()))
            .unwrap();
        let router = Adjacency::Neighbour {
            port: CORE,
            mac: ROUTER_MAC.0,
        };
        self.control
            .set_next_hop(NextHopId(1), ROUTER.into(), router)
            .unwrap();
        let default = Route {
            prefix: Ipv4Addr::UNSPECIFIED,
            length: 0,
            next_hop: NextHopId(1),
        };
        self.control.publish_routes(&[default]).unwrap();
    }

    /// Starts the process and waits until it is ready and has the routes.
    pub(crate) fn launch(&mut self) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_bng-dataplane"))
            .arg("--config")
            .arg(self.directory.join("config.yaml"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let lines = stderr.lines().map_while(Result::ok);
            lines.map(|line| sender.send(line)).all(|sent| sent.is_ok())
        });
        loop {
            let line = lines.recv_timeout(LIMIT);
            let line = line.unwrap_or_else(|_| panic!("not ready: {:#?}", self.said));
            self.said.push(line);
            if self.said.last().unwrap() == "bng-dataplane: ready" {
                break;
            }
        }
        self.process = Some((child, lines));
        wait_for("routes in the FIB", || {
            self.control.routes_in_fib().then_some(())
        });
        let mac = |port| MacAddr(self.control.port_status(port).unwrap().mac);
        (self.access_mac, self.core_mac) = (mac(ACCESS), mac(CORE));
        run("ip", &format!("address add {OURS}/24 dev core0"));
    }

    /// The file of the shared memory.
    pub(crate) fn state_file(&self) -> PathBuf {
        self.directory.join("shm/state")
    }

    /// The process's id.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.process.as_ref().unwrap().0)
    }

    /// Ends the process by SIGTERM.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        let (child, _) = self.process.as_ref().unwrap();
        kill_process(Pid::from_child(child), Signal::TERM).unwrap();
        self.ended()
    }

    /// Waits until the process has ended.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let (mut child, lines) = self.process.take().unwrap();
        let status = wait_for("end of the process", || child.try_wait().unwrap());
        self.said.extend(lines.iter());
        status
    }

    /// Publishes a session, as control does once IPCP is open; returns its generation.
    pub(crate) fn open(&mut self, subscriber: &Subscriber) -> u32 {
        let Subscriber { slot, session } = subscriber;
        let record = Record::default();
        let generation = self
            .control
            .publish_session(*slot, session, &record)
            .unwrap();
        let owner = BlockOwner {
            slot: *slot,
            generation,
        };
        let block = subscriber.block();
        self.control.set_block_owner(&block, Some(owner)).unwrap();
        generation
    }

    /// Ends a session and frees its slot, as control does.
    pub(crate) fn close(&mut self, subscriber: &Subscriber) {
        self.control.withdraw_session(subscriber.slot).unwrap();
        let block = subscriber.block();
        self.control.set_block_owner(&block, None).unwrap();
        let token = self.control.advance_epoch();
        wait_for("passed epoch", || {
            self.control.epoch_passed(token).then_some(())
        });
        self.control.free_session(subscriber.slot).unwrap();
    }

    /// The next frame in a punt ring: worker, bytes, session.
    pub(crate) fn punted(&mut self) -> (u8, Vec<u8>, Option<(SlotIndex, u32)>) {
        let mut buffer = Box::new([0; FRAME_MAX]);
        wait_for("punted frame", || {
            (0..self.workers).find_map(|worker| {
                match self.control.take_punted(worker, &mut buffer) {
                    Take::Item(frame) => {
                        assert_eq!(frame.meta.port, ACCESS);
                        Some((worker, buffer[..frame.len].to_vec(), frame.meta.session))
                    }
                    Take::Empty => None,
                    Take::Corrupt => panic!("punt ring of worker {worker}"),
                }
            })
        })
    }

    /// A counter, summed over workers and the host path.
    pub(crate) fn count(&self, counter: Counter) -> u64 {
        (0..=self.workers)
            .filter_map(|worker| self.control.worker_status(worker))
            .map(|status| status.counters[counter.index()])
            .sum()
    }

    /// Waits until a counter has a value, and says which value it has instead.
    pub(crate) fn expect(&self, counter: Counter, value: u64) {
        let end = Instant::now() + LIMIT;
        while self.count(counter) != value && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let all = Counter::ALL.iter().map(|c| (c.label(), self.count(*c)));
        let all: Vec<_> = all.filter(|(_, count)| *count > 0).collect();
        assert_eq!(self.count(counter), value, "{}, {all:?}", counter.label());
    }

    /// Every frame received is accounted for once, and every frame sent has a reason (HZ-06 R1).
    pub(crate) fn assert_conservation(&self) {
        use Counter as C;
        let sum = |counters: &[Counter]| counters.iter().map(|c| self.count(*c)).sum::<u64>();
        let not_received = [
            C::InjectStale,
            C::InjectInvalid,
            C::InjectNoBuffer,
            C::HostInjectFull,
            C::HostOffloadInvalid,
            C::TxQueueFull,
            C::RingCorrupt,
        ];
        let drops: Vec<_> = C::drops().filter(|c| !not_received.contains(c)).collect();
        let ends = [
            C::ForwardedUpstream,
            C::ForwardedDownstream,
            C::EchoAnswered,
            C::PuntDiscovery,
            C::PuntPpp,
            C::HostIn,
            C::HandedOver,
            C::FragmentsHeld,
        ];
        let sent = [C::TxAccess, C::TxCore, C::TxQueueFull];
        let given_to_ports = [
            C::ForwardedUpstream,
            C::ForwardedDownstream,
            C::EchoAnswered,
            C::Injected,
            C::HostOut,
            C::IcmpErrorSent,
            C::FragmentsMade,
        ];
        let balance = || {
            [
                (
                    "handed over",
                    self.count(C::HandedOver),
                    self.count(C::TakenOver),
                ),
                (
                    "received",
                    sum(&[C::RxAccess, C::RxCore, C::TakenOver, C::FragmentsResumed]),
                    sum(&ends) + sum(&drops),
                ),
                ("sent", sum(&given_to_ports), sum(&sent)),
            ]
        };
        // Frames may be on their way still, and a worker counts the parts of a burst one after the other: what holds
        // is what is the same a moment later.
        let end = Instant::now() + LIMIT;
        let mut last = balance();
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let now = balance();
            if now == last && now.iter().all(|(_, frames, ends)| frames == ends) {
                return;
            }
            assert!(Instant::now() < end, "{now:?}");
            last = now;
        }
    }

    /// Nothing more comes out of the process.
    pub(crate) fn assert_silent(&self) {
        for (name, tap) in [("access", &self.access), ("core", &self.core)] {
            let frame = tap.receive_within(Duration::from_millis(50));
            assert_eq!(frame, None, "{name}");
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some((mut child, _)) = self.process.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = Command::new("ip")
            .args(["netns", "del", &self.namespace])
            .status();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The configuration with so many workers, each with its queues.
pub(crate) fn with_workers(yaml: &str, workers: usize) -> String {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let on: Vec<_> = (0..workers).map(|n| n % cores).collect();
    let lines = yaml.lines().map(|line| match line.trim_start() {
        rest if rest.starts_with("workers:") => format!("  workers: {on:?}\n"),
        _ => line.replace("qpairs=2", &format!("qpairs={workers}")) + "\n",
    });
    lines.collect()
}

fn yaml(namespace: &str, directory: &std::path::Path) -> String {
    let directory = directory.display();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let second = 1 % cores;
    format!(
        "\
shared_memory: {{ path: {directory}/shm }}
log: {{ level: info }}
dataplane:
  main_core: 0
  workers: [0, {second}]
  idle_backoff_us: 100
  mbufs: 32768
  routes: {{ ipv4: 4096, ipv6: 1024 }}
  eal: {{ hugepages: false, memory_mib: 384, file_prefix: {namespace} }}
  ports:
    - {{ name: access0, role: access, device: \"net_af_packet0,iface=acc,qpairs=2\", mtu: 1500 }}
    - {{ name: core0, role: core, device: \"net_af_packet1,iface=cor,qpairs=2\", mtu: 1500 }}
pools:
  - {{ name: subscribers, ranges: [100.64.0.0/24], gateway: {GATEWAY}, dns: [192.0.2.53], nat: public }}
nat:
  max_mappings: 4096
  pools: [{{ name: public, addresses: [203.0.113.0/28], block_size: {BLOCK} }}]
api: {{ listen: \"127.0.0.1:8080\", token_file: {directory}/token }}
auth: {{ protocols: [pap], users: [{{ name: a, password: b }}] }}
"
    )
}
