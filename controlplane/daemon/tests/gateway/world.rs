//! Shared memory of its own, the driver in its thread, and the workers played by the test.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bng_aaa::{Change, Refusal, Selector};
use bng_config::Config;
use bng_controlplane::driver::Driver;
use bng_controlplane::netlink::Resolve;
use bng_controlplane::policy_change::ChangeError;
use bng_controlplane::policy_view::PolicyView;
use bng_controlplane::request::{DriverHandle, Request, Window};
use bng_controlplane::selection::{HistoryFilter, SessionFilter};
use bng_controlplane::settings::Settings;
use bng_controlplane::status::Status;
use bng_controlplane::views::{EndedView, Page, SessionDetail, SessionView};
use bng_pppoe::codec::frame::{self, Body};
use bng_shm::{
    Dataplane, FRAME_MAX, FrameMeta, Offloads, Policy, PortState, PortStatus, Publisher, PuntClass,
    Reader, Record, Session, SessionState, SlotIndex, Steering, Take, Worker, monotonic_ms,
};
use tokio::sync::{mpsc, oneshot};

use crate::client::Client;

/// Two access ports around a core port, two workers, one translated pool.
pub(crate) const CONFIG: &str = r#"
dataplane:
  workers: [1, 2]
  ports:
    - {name: access0, role: access, device: net_null0}
    - {name: core0, role: core, device: net_null1}
    - {name: access1, role: access, device: net_null2}
pppoe:
  echo: {interval_s: 1, failures: 3}
  lcp: {restart_ms: 500}
  padi_per_second_per_mac: 100
auth:
  users:
    - {name: alice, password: wonderland}
    - {name: bob, password: builder}
    - {name: carol, password: christmas}
pools:
  - {name: home, ranges: [100.64.0.0/28], gateway: 100.64.0.1, dns: [9.9.9.9], nat: out}
nat:
  pools:
    - {name: out, addresses: [198.51.100.0/31], block_size: 1024}
"#;

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct World {
    dir: PathBuf,
    pub(crate) config: Config,
    pub(crate) settings: Arc<Settings>,
    dataplane: Option<(Dataplane, Vec<Worker>)>,
    driver: Option<(DriverHandle, JoinHandle<()>)>,
    pub(crate) resolved: Option<mpsc::Receiver<Resolve>>,
    /// Workers take frames, but never come to the end of their loop, so that no epoch passes.
    pub(crate) no_epoch: bool,
}

/// Workers that go on by themselves.
pub(crate) struct Running {
    stop: std::sync::mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Running {
    pub(crate) fn stop(self) {
        drop(self.stop);
        self.thread.join().unwrap();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop_control();
        self.dataplane = None;
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl World {
    /// Both sides up, port addresses known.
    pub(crate) fn new(config: &str) -> Self {
        let mut world = Self::asleep(config);
        world.start_dataplane(1);
        world.start_control();
        world
    }

    /// Nothing up yet.
    pub(crate) fn asleep(config: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "ctl-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let config = Config::parse(config.as_bytes(), Path::new("test.yaml")).unwrap();
        Self {
            dir: Path::new("/dev/shm").join(name),
            settings: Arc::new(Settings::new(&config).unwrap()),
            config,
            dataplane: None,
            driver: None,
            resolved: None,
            no_epoch: false,
        }
    }

    /// Changes the configuration for the next start.
    pub(crate) fn configure(&mut self, config: &str) {
        self.config = Config::parse(config.as_bytes(), Path::new("test.yaml")).unwrap();
        self.settings = Arc::new(Settings::new(&self.config).unwrap());
    }

    pub(crate) fn start_control(&mut self) {
        let publisher = Publisher::attach(&self.dir, self.settings.capacities).unwrap();
        let (handle, inbox) = DriverHandle::new(publisher.waker());
        let (resolver, wanted) = mpsc::channel(16);
        let settings = self.settings.clone();
        let radius = bng_controlplane::radius::start(&self.config, &handle).unwrap();
        let driver =
            Driver::new(&self.config, settings, publisher, inbox, resolver, radius).unwrap();
        self.resolved = Some(wanted);
        self.driver = Some((handle, std::thread::spawn(|| driver.run())));
    }

    /// The publishing side while no control plane runs.
    pub(crate) fn publisher(&self) -> Publisher {
        let mut publisher = Publisher::attach(&self.dir, self.settings.capacities).unwrap();
        publisher.publish_pools(&self.settings.ranges).unwrap();
        publisher.publish_pools6(&self.settings.ranges6).unwrap();
        publisher
    }

    pub(crate) fn stop_control(&mut self) {
        if let Some((handle, thread)) = self.driver.take() {
            handle.tell(Request::Stop).unwrap();
            thread.join().unwrap();
        }
    }

    /// Starts the dataplane; its access ports get addresses that end in `last`.
    pub(crate) fn start_dataplane(&mut self, last: u8) {
        self.start_silent_dataplane();
        self.publish_ports(last);
    }

    pub(crate) fn start_silent_dataplane(&mut self) {
        let mut dataplane = Dataplane::attach(&self.dir, self.settings.capacities).unwrap();
        let workers: Vec<_> = (0..2).map(|n| dataplane.worker(n).unwrap()).collect();
        for worker in &workers {
            worker.enter(worker.index().into());
        }
        self.dataplane = Some((dataplane, workers));
    }

    pub(crate) fn publish_ports(&mut self, last: u8) {
        let (dataplane, _) = self.dataplane.as_ref().unwrap();
        for port in 0..3u8 {
            dataplane.publish_port(port, &Self::port_status(port, last));
        }
        dataplane.ring_control();
    }

    /// A port that segments, and whose twin exchanges super-packets.
    pub(crate) fn segmenting_port(&mut self, port: u8, reason: &str) {
        let (dataplane, _) = self.dataplane.as_ref().unwrap();
        let status = PortStatus {
            offloads: Offloads::TX_TCP_SEGMENTATION.with(Offloads::TWIN),
            segmentation_reason: reason.to_owned(),
            ..Self::port_status(port, 1)
        };
        dataplane.publish_port(port, &status);
    }

    fn port_status(port: u8, last: u8) -> PortStatus {
        PortStatus {
            state: PortState::Started,
            link_up: true,
            mac: [2, 0xac, 0, 0, port, last],
            mtu: 1500,
            twin_ifindex: 0,
            link_mbps: 0,
            steering: Steering::HandOver,
            steering_reason: "the port offers nothing".to_owned(),
            segmentation_reason: String::new(),
            offloads: Offloads::RSS,
            stats: [0; 8],
            driver: "test".to_owned(),
        }
    }

    pub(crate) fn kill_dataplane(&mut self) {
        // A killed process says no good-bye: its lock goes, its workers stay marked as present.
        self.dataplane = None;
    }

    /// What a machine that has lost its power leaves of the shared memory: nothing.
    pub(crate) fn forget_memory(&self) {
        std::fs::remove_dir_all(&self.dir).unwrap();
    }

    pub(crate) fn reader(&self) -> Reader {
        self.dataplane.as_ref().unwrap().0.reader()
    }

    pub(crate) fn worker(&mut self, index: usize) -> &mut Worker {
        &mut self.dataplane.as_mut().unwrap().1[index]
    }

    pub(crate) fn handle(&self) -> DriverHandle {
        self.driver.as_ref().unwrap().0.clone()
    }

    pub(crate) fn ask<T: Send + 'static>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> T {
        let (sender, receiver) = oneshot::channel();
        self.handle().tell(request(sender)).unwrap();
        receiver.blocking_recv().unwrap()
    }

    pub(crate) fn sessions(&self) -> Page<SessionView> {
        self.sessions_with(SessionFilter::default())
    }

    pub(crate) fn sessions_with(&self, filter: SessionFilter) -> Page<SessionView> {
        let window = Window {
            offset: 0,
            limit: 100,
        };
        self.ask(|reply| Request::Sessions(filter, window, reply))
    }

    pub(crate) fn session(&self, client: &Client) -> Option<SessionDetail> {
        let slot = self.slot(client);
        self.ask(|reply| Request::Session(slot, reply))
    }

    pub(crate) fn end(&self, client: &Client) -> bool {
        let slot = self.slot(client);
        self.ask(|reply| Request::End(slot, reply))
    }

    /// Asks for a change of policy; the answer comes later.
    pub(crate) fn change_policy(
        &self,
        client: &Client,
        change: &str,
    ) -> oneshot::Receiver<Result<PolicyView, ChangeError>> {
        let (sender, receiver) = oneshot::channel();
        let change = serde_json::from_str(change).unwrap();
        let slot = self.slot(client);
        let request = Request::ChangePolicy(slot, Box::new(change), sender);
        self.handle().tell(request).unwrap();
        receiver
    }

    /// Changes a policy and waits, with the workers at work.
    pub(crate) fn changed(
        &mut self,
        client: &Client,
        change: &str,
    ) -> Result<PolicyView, ChangeError> {
        let mut answer = self.change_policy(client, change);
        let start = Instant::now();
        loop {
            self.turn(&mut []);
            match answer.try_recv() {
                Ok(answer) => return answer,
                Err(_) => assert!(start.elapsed() < LIMIT, "no answer"),
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    /// Changes the limits of a client's session.
    pub(crate) fn change_limits(&self, client: &Client, change: &str) -> Result<(), ChangeError> {
        let change = serde_json::from_str(change).unwrap();
        let slot = self.slot(client);
        self.ask(|reply| Request::ChangeLimits(slot, change, reply))
    }

    /// Asks as AAA for other terms of a user's session, and waits with the workers at work.
    pub(crate) fn authorize(&mut self, user: &str, change: Change) -> Result<(), Refusal> {
        let (sender, mut answer) = oneshot::channel();
        let selector = Selector {
            user: Some(user.into()),
            ..Selector::default()
        };
        let request = Request::Authorize(Box::new(selector), Box::new(change), sender);
        self.handle().tell(request).unwrap();
        let start = Instant::now();
        loop {
            self.turn(&mut []);
            match answer.try_recv() {
                Ok(answer) => return answer,
                Err(_) => assert!(start.elapsed() < LIMIT, "no answer"),
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    /// What a client's session may do, as the workers see it.
    pub(crate) fn policy(&self, client: &Client) -> Option<Policy> {
        self.reader().policy(self.entry(client).policy)
    }

    pub(crate) fn history(&self) -> Page<EndedView> {
        let window = Window {
            offset: 0,
            limit: 100,
        };
        self.ask(|reply| Request::History(HistoryFilter::default(), window, reply))
    }

    pub(crate) fn status(&self) -> Box<Status> {
        self.ask(Request::Status)
    }

    /// A counter of the driver.
    pub(crate) fn counted(&self, label: &str) -> u64 {
        let status = self.status();
        status.driver.iter().find(|it| it.0 == label).unwrap().2
    }

    /// A counter of the PPP engine.
    pub(crate) fn engine_counted(&self, group: &str, label: &str) -> u64 {
        let status = self.status();
        let mut counters = status.engine.iter();
        counters
            .find(|it| it.0 == group && it.1 == label)
            .unwrap()
            .3
    }

    pub(crate) fn slot(&self, client: &Client) -> SlotIndex {
        let access = self.settings.ports[usize::from(client.port)]
            .access
            .unwrap();
        SlotIndex::new(access, client.session_id)
    }

    /// The table entry of a client's session.
    pub(crate) fn entry(&self, client: &Client) -> Session {
        self.reader().session(self.slot(client)).unwrap().unwrap()
    }

    /// The recovery record of a client's session, as the next run finds it.
    pub(crate) fn record(&mut self, client: &Client) -> Record {
        self.stop_control();
        let found = self.publisher().survey();
        self.start_control();
        let slot = self.slot(client);
        let found = found.into_iter().find(|it| it.0 == slot);
        found.unwrap().2.unwrap()
    }

    /// One turn of all workers' loops: frames to the clients, frames of the clients to control.
    pub(crate) fn turn(&mut self, clients: &mut [Client]) {
        let reader = self.reader();
        let (_, workers) = self.dataplane.as_mut().unwrap();
        let mut buffer = [0; FRAME_MAX];
        for worker in workers.iter_mut() {
            while let Take::Item(injected) = worker.take_injected(&mut buffer) {
                if let Some((slot, generation)) = injected.meta.session {
                    let session = reader.session(slot).unwrap().unwrap();
                    assert_eq!(session.generation, generation, "no stale frame");
                    assert_ne!(session.state, SessionState::Free, "no frame after the end");
                    assert_eq!(session.owner, worker.index(), "through the owner");
                }
                let bytes = &buffer[..injected.len];
                let to = frame::parse(bytes).unwrap().dst;
                let found = clients
                    .iter_mut()
                    .find(|it| it.mac == to && it.port == injected.meta.port);
                if let Some(client) = found {
                    client.receive(bytes);
                }
            }
        }
        for client in clients {
            for bytes in std::mem::take(&mut client.out) {
                let access = self.settings.ports[usize::from(client.port)]
                    .access
                    .unwrap();
                let meta = |session| FrameMeta {
                    port: client.port,
                    class: match session {
                        Some(_) => PuntClass::Ppp,
                        None => PuntClass::Discovery,
                    },
                    session,
                };
                let (worker, meta) = match frame::parse(&bytes).unwrap().body {
                    Body::Discovery { .. } => (client.mac.0[5] % 2, meta(None)),
                    Body::Session { session_id, .. } => {
                        let slot = SlotIndex::new(access, session_id);
                        let session = reader.session(slot).unwrap().unwrap();
                        if !matches!(
                            session.state,
                            SessionState::Negotiating | SessionState::Forwarding
                        ) {
                            continue;
                        }
                        let owner = reader.owner(slot).unwrap();
                        (owner, meta(Some((slot, session.generation))))
                    }
                };
                workers[usize::from(worker)]
                    .punt(&meta, monotonic_ms(), &bytes)
                    .unwrap();
            }
        }
        for worker in workers {
            if !self.no_epoch {
                worker.quiescent();
            }
            worker.heartbeat(monotonic_ms());
            worker.pay_bell();
        }
    }

    /// Has the workers go on in a thread of their own, without any frames, until told to stop.
    pub(crate) fn workers_by_themselves(&mut self) -> Running {
        let (dataplane, mut workers) = self.dataplane.take().unwrap();
        let (stop, stopped) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; FRAME_MAX];
            while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                for worker in &mut workers {
                    while let Take::Item(_) = worker.take_injected(&mut buffer) {}
                    worker.quiescent();
                    worker.heartbeat(monotonic_ms());
                }
                std::thread::park_timeout(Duration::from_millis(1));
            }
            drop(dataplane);
        });
        Running { stop, thread }
    }

    /// Turns until something is so.
    pub(crate) fn until(
        &mut self,
        what: &str,
        clients: &mut [Client],
        mut so: impl FnMut(&Self, &[Client]) -> bool,
    ) {
        let start = Instant::now();
        loop {
            self.turn(clients);
            if so(self, clients) {
                return;
            }
            assert!(start.elapsed() < LIMIT, "{what}: {:#?}", self.sessions());
            // A worker polls; so does this one, a little slower.
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    /// Dials all clients in and waits until their sessions forward.
    pub(crate) fn dial(&mut self, clients: &mut [Client]) {
        clients.iter_mut().for_each(Client::dial);
        self.until("all up", clients, |world, clients| {
            clients
                .iter()
                .all(|client| client.up && world.entry(client).state == SessionState::Forwarding)
        });
    }
}
