//! RADIUS beside the driver: sockets, disk and clocks around the client of bng-aaa.
//!
//! ```text
//!   driver --- questions (bounded) ---> thread `radius`: Client, UDP sockets
//!          <-- Request::Verdict -------
//!   driver --- accounting messages ---> thread `accounting`: Spool (disk), Client, UDP sockets
//!          <-- Request::AccountingKept
//!          <-- Request::Authorize, Request::Disconnect --- thread `dynamic`: Listener, UDP socket
//! ```
//!
//! The driver never waits: a question that finds no room is answered like one to silent servers, and counted. Starts and stops
//! always find room; interim updates do as long as the disk keeps up.

mod accounting;
mod exchange;
mod listener;
mod questions;
mod sockets;
pub(crate) mod spool;
pub mod view;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use bng_aaa::accounting::{Accounting as Event, Status};
use bng_aaa::radius::dynamic::{Listener, Policy, REMEMBERED};
use bng_aaa::radius::{Client, Nas, Now};
use bng_aaa::{AuthRequest, Backend, RequestId};
use bng_config::Config;
use bng_shm::SlotIndex;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::request::{AskError, DriverHandle, Request};
use accounting::Told;
use exchange::{Exchange, Exchanges};
use listener::Clients;
use spool::Spool;
use view::RadiusView;

/// Questions that may wait for the thread.
const QUESTIONS_WAITING: usize = 4_096;
/// Source ports for each server: 256 requests can be under way on each.
const SOCKETS: u8 = 16;
/// Requests that may wait until an identifier is free.
const QUEUE: usize = 4_096;
/// Source ports for the accounting of each server: as many requests as are under way at most.
const ACCOUNTING_SOCKETS: u8 = 2;
/// Messages that may wait for the disk before interim updates are passed over.
const INTERIMS_WAITING: usize = 65_536;
/// Size of a file of the spool, bytes.
const SEGMENT_SIZE: u64 = 4 << 20;
/// Time between two pictures of the state for operators.
const VIEW_INTERVAL: Duration = Duration::from_millis(250);
/// How long a message to the driver waits when too many others do.
const BUSY_RETRY: Duration = Duration::from_millis(2);

/// The driver's end.
#[derive(Debug, Default)]
pub struct Radius {
    questions: Option<mpsc::Sender<AuthRequest>>,
    /// Ways to tell the threads of other servers and clients.
    others: Option<mpsc::UnboundedSender<Servers<RequestId>>>,
    clients: Option<mpsc::UnboundedSender<Clients>>,
    accounting: Option<Accounting>,
    is_local: bool,
    view: Option<Arc<Mutex<RadiusView>>>,
}

#[derive(Debug)]
struct Accounting {
    sender: mpsc::UnboundedSender<Told>,
    depth: Arc<AtomicUsize>,
    interim: Duration,
    passed_over: u64,
    /// Starts of sessions that were up before are on disk, or were answered; Unix seconds.
    starts_kept_until_s: u64,
}

/// Servers that requests go to, and what they are told of the gateway.
#[derive(Debug)]
struct Servers<T> {
    exchange: Exchange<T>,
    nas: Nas,
}

impl Servers<RequestId> {
    fn of_questions(config: &Config, radius: &bng_config::Radius) -> anyhow::Result<Self> {
        let ports = radius.servers.iter();
        let ports = ports.map(|server| (server.address, server.auth_port).into());
        let client = client(radius, SOCKETS, QUEUE)?;
        Ok(Self {
            exchange: Exchange::new(client, ports.collect(), radius.source),
            nas: nas(config, radius),
        })
    }
}

impl Servers<u64> {
    fn of_accounting(config: &Config, radius: &bng_config::Radius) -> anyhow::Result<Self> {
        let ports = radius.servers.iter();
        let ports = ports.map(|server| (server.address, server.accounting_port).into());
        let client = client(radius, ACCOUNTING_SOCKETS, accounting::WINDOW)?;
        Ok(Self {
            exchange: Exchange::new(client, ports.collect(), radius.source),
            nas: nas(config, radius),
        })
    }
}

impl Clients {
    fn new(
        config: &Config,
        radius: &bng_config::Radius,
        dynamic: &bng_config::DynamicAuthorization,
    ) -> Self {
        let clients = dynamic.clients.iter();
        Self {
            clients: clients.map(|it| (it.address, it.secret.clone())).collect(),
            nas: nas(config, radius),
            require_event_timestamp: dynamic.require_event_timestamp,
        }
    }
}

/// Another configuration for the threads there are.
#[derive(Debug)]
pub(crate) struct Next {
    is_local: bool,
    backends: Vec<Backend>,
    questions: Option<(Servers<RequestId>, bng_config::Radius)>,
    accounting: Option<(Servers<u64>, bng_config::Accounting)>,
    clients: Option<Clients>,
}

impl Next {
    /// What a configuration says; `differs` when it says anything else of servers than the one in force.
    ///
    /// # Errors
    /// No random numbers.
    pub(crate) fn new(config: &Config, differs: bool) -> anyhow::Result<Self> {
        let backends = backends(config);
        let radius = config.radius.as_ref().filter(|_| differs);
        let accounting = radius.and_then(|it| Some((it, it.accounting.as_ref()?)));
        let dynamic = radius.and_then(|it| Some((it, it.dynamic_authorization.as_ref()?)));
        Ok(Self {
            is_local: backends == [Backend::Local],
            backends,
            questions: radius
                .map(|radius| {
                    let servers = Servers::of_questions(config, radius)?;
                    anyhow::Ok((servers, radius.clone()))
                })
                .transpose()?,
            accounting: accounting
                .map(|(radius, accounting)| {
                    let servers = Servers::of_accounting(config, radius)?;
                    anyhow::Ok((servers, accounting.clone()))
                })
                .transpose()?,
            clients: dynamic.map(|(radius, dynamic)| Clients::new(config, radius, dynamic)),
        })
    }
}

/// What of the configuration decides which threads there are: that takes a restart. The key to blame, if it is different.
pub(crate) fn needs_restart(now: &Config, next: &Config) -> Option<&'static str> {
    fn has(config: &Config) -> [(&'static str, bool); 3] {
        let radius = config.radius.as_ref();
        [
            ("radius", radius.is_some()),
            (
                "radius.accounting",
                radius.is_some_and(|it| it.accounting.is_some()),
            ),
            (
                "radius.dynamic_authorization",
                radius.is_some_and(|it| it.dynamic_authorization.is_some()),
            ),
        ]
    }
    let mut both = has(now).into_iter().zip(has(next));
    both.find_map(|((key, one), (_, other))| (one != other).then_some(key))
}

/// How far the times of messages may be out of order, seconds.
const OUT_OF_ORDER_S: u64 = 5;

impl Radius {
    /// Whether sessions are accounted for.
    pub(crate) const fn accounts(&self) -> bool {
        self.accounting.is_some()
    }

    /// Whether nobody but local users is asked.
    pub(crate) const fn is_local(&self) -> bool {
        self.is_local
    }

    /// Configured time between interim updates, zero for none; `None` where nothing is accounted for.
    pub(crate) fn interim(&self) -> Option<Duration> {
        self.accounting.as_ref().map(|it| it.interim)
    }

    /// Tells of a session; true when [`Request::AccountingKept`] will come for `slot`.
    pub(crate) fn account(&mut self, event: Event, slot: Option<SlotIndex>) -> bool {
        let Some(accounting) = &mut self.accounting else {
            return false;
        };
        let is_interim = event.status == Status::Interim;
        if is_interim && accounting.depth.load(Ordering::Relaxed) > INTERIMS_WAITING {
            accounting.passed_over += 1;
            return false;
        }
        accounting.depth.fetch_add(1, Ordering::Relaxed);
        let told = accounting.sender.send(Told::Event(Box::new(event), slot));
        told.is_ok() && slot.is_some()
    }

    /// Whether the start of a session of an earlier run may have been lost with it. One that was not is not sent again.
    pub(crate) fn may_lack_start(&self, opened_unix_ms: u64) -> bool {
        let kept = self.accounting.as_ref().map(|it| it.starts_kept_until_s);
        kept.is_some_and(|kept| opened_unix_ms / 1_000 >= kept)
    }

    /// Tells that the gateway has begun without any session.
    pub(crate) fn account_on(&self, accounting_id: u64, unix_s: u64) {
        if let Some(accounting) = &self.accounting {
            accounting.depth.fetch_add(1, Ordering::Relaxed);
            let _ = accounting.sender.send(Told::On {
                accounting_id,
                unix_s,
            });
        }
    }

    /// Has the threads go on with another configuration: new requests go to its servers. Returns who is asked about subscribers.
    pub(crate) fn reconfigure(&mut self, next: Next) -> Vec<Backend> {
        // A thread that is gone needs no servers.
        if let (Some((servers, radius)), Some(others)) = (next.questions, &self.others) {
            if let Some(view) = &self.view {
                view.lock().show_servers(&radius);
            }
            let _ = others.send(servers);
        }
        if let (Some((servers, settings)), Some(accounting)) =
            (next.accounting, &mut self.accounting)
        {
            accounting.interim = Duration::from_secs(settings.interim_s.into());
            accounting.depth.fetch_add(1, Ordering::Relaxed);
            let told = Told::Servers(Box::new(servers), spool_limit(&settings));
            let _ = accounting.sender.send(told);
        }
        if let (Some(clients), Some(sender)) = (next.clients, &self.clients) {
            let _ = sender.send(clients);
        }
        self.is_local = next.is_local;
        next.backends
    }

    /// Puts a question; false when it finds no room.
    pub(crate) fn ask(&self, question: AuthRequest) -> bool {
        (self.questions.as_ref()).is_some_and(|sender| sender.try_send(question).is_ok())
    }

    /// The latest picture of the state; `None` without section `radius`.
    pub(crate) fn view(&self) -> Option<RadiusView> {
        let mut view = self.view.as_ref()?.lock().clone();
        let accounting = self.accounting.as_ref();
        view.spool.interims_passed_over = accounting.map_or(0, |it| it.passed_over);
        Some(view)
    }
}

/// Who is asked about subscribers, in this order.
pub(crate) fn backends(config: &Config) -> Vec<Backend> {
    let backends = config.auth.backends.iter();
    backends
        .map(|backend| match backend {
            bng_config::Backend::Local => Backend::Local,
            bng_config::Backend::Radius => Backend::Radius,
        })
        .collect()
}

/// What the gateway is called.
fn nas(config: &Config, radius: &bng_config::Radius) -> Nas {
    let identifier = radius.nas_identifier.as_ref();
    Nas {
        identifier: identifier.unwrap_or(&config.pppoe.ac_name).clone(),
        address: radius.nas_address,
    }
}

fn client<T>(radius: &bng_config::Radius, sockets: u8, queue: usize) -> anyhow::Result<Client<T>> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).context("the system has no random numbers")?;
    let settings = bng_aaa::radius::Settings {
        secrets: (radius.servers.iter())
            .map(|server| server.secret.clone())
            .collect(),
        timeout: Duration::from_millis(radius.timeout_ms.into()),
        tries: radius.tries,
        dead: Duration::from_secs(radius.dead_s.into()),
        sockets,
        queue,
    };
    Ok(Client::new(settings, seed))
}

/// Starts what the configuration asks for. The threads end when the driver does.
///
/// # Errors
/// No thread or no random numbers.
pub fn start(config: &Config, handle: &DriverHandle) -> anyhow::Result<Radius> {
    let Some(radius) = &config.radius else {
        return Ok(Radius::default());
    };
    let view = Arc::new(Mutex::new(RadiusView::new(radius)));
    let (sender, questions) = mpsc::channel(QUESTIONS_WAITING);
    let (others, heard) = mpsc::unbounded_channel();
    let worker = questions::Worker {
        servers: Servers::of_questions(config, radius)?,
        others: heard,
        questions,
        driver: Courier::new(handle.clone()),
        view: view.clone(),
    };
    spawn("radius", move || worker.run())?;
    let clients = match &radius.dynamic_authorization {
        Some(dynamic) => {
            let (clients, others) = mpsc::unbounded_channel();
            start_listener(dynamic, nas(config, radius), handle, &view, others)?;
            Some(clients)
        }
        None => None,
    };
    let accounting = match (&radius.accounting, &config.state_directory) {
        (Some(accounting), Some(directory)) => {
            let directory = directory.join("accounting");
            let worker = start_accounting(config, radius, accounting, &directory, handle, &view);
            Some(worker.with_context(|| format!("accounting in {}", directory.display()))?)
        }
        _ => None,
    };
    Ok(Radius {
        questions: Some(sender),
        others: Some(others),
        clients,
        accounting,
        is_local: backends(config) == [Backend::Local],
        view: Some(view),
    })
}

/// Binds to an address the machine may not have yet: that of a core port comes with its twin, which `bng-dataplane` makes.
fn bind_early(address: SocketAddr) -> io::Result<UdpSocket> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    if address.is_ipv4() {
        sockopt::set_ip_freebind(&socket, true)?;
    } else {
        sockopt::set_ipv6_freebind(&socket, true)?;
    }
    bind(&socket, &address)?;
    Ok(socket.into())
}

fn start_listener(
    dynamic: &bng_config::DynamicAuthorization,
    nas: Nas,
    handle: &DriverHandle,
    view: &Arc<Mutex<RadiusView>>,
    others: mpsc::UnboundedReceiver<Clients>,
) -> anyhow::Result<()> {
    let address = dynamic.listen;
    let key = "radius.dynamic_authorization.listen";
    let socket = bind_early(address)
        .with_context(|| format!("{key} {address}: another process may be using it"))?;
    socket.set_nonblocking(true)?;
    let clients = dynamic.clients.iter();
    let clients = clients.map(|client| (client.address, client.secret.clone()));
    let policy = Policy {
        require_event_timestamp: dynamic.require_event_timestamp,
        started_unix_s: bng_shm::unix_ms() / 1_000,
        remembered: REMEMBERED,
    };
    let worker = listener::Worker {
        listener: Listener::new(clients, nas, policy),
        socket,
        driver: handle.clone(),
        view: view.clone(),
        others,
    };
    spawn("dynamic", move || worker.run())
}

/// The most that may wait on disk, bytes.
fn spool_limit(accounting: &bng_config::Accounting) -> u64 {
    u64::from(accounting.spool_mib) << 20
}

fn start_accounting(
    config: &Config,
    radius: &bng_config::Radius,
    accounting: &bng_config::Accounting,
    directory: &Path,
    handle: &DriverHandle,
    view: &Arc<Mutex<RadiusView>>,
) -> anyhow::Result<Accounting> {
    let spool = Spool::open(directory, spool_limit(accounting), SEGMENT_SIZE)?;
    let (waiting, bytes) = spool.waiting();
    if waiting > 0 {
        tracing::info!(
            waiting,
            bytes,
            "accounting messages of an earlier run are sent now"
        );
    }
    let kept_until_s = spool.found_until_s().unwrap_or(0);
    let (sender, told) = mpsc::unbounded_channel();
    let depth = Arc::new(AtomicUsize::new(0));
    let servers = Servers::of_accounting(config, radius)?;
    let worker = accounting::Worker {
        nas: servers.nas,
        exchanges: Exchanges::new(servers.exchange),
        spool,
        told,
        depth: depth.clone(),
        driver: Courier::new(handle.clone()),
        view: view.clone(),
    };
    spawn("accounting", move || worker.run())?;
    Ok(Accounting {
        sender,
        depth,
        interim: Duration::from_secs(accounting.interim_s.into()),
        passed_over: 0,
        starts_kept_until_s: kept_until_s.saturating_sub(OUT_OF_ORDER_S),
    })
}

/// Runs a future on a thread of its own, with a runtime of its own: neither REST nor disk delays it.
fn spawn<F: Future<Output = ()>>(
    name: &str,
    body: impl FnOnce() -> F + Send + 'static,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .with_context(|| format!("starting the runtime of thread {name}"))?;
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || runtime.block_on(body()))
        .with_context(|| format!("starting thread {name}"))?;
    Ok(())
}

/// Both clocks.
#[derive(Debug, Clone, Copy)]
struct Clock(Instant);

impl Clock {
    fn start() -> Self {
        Self(Instant::now())
    }

    fn now(&self) -> Now {
        Now {
            since_start: self.0.elapsed(),
            unix_s: bng_shm::unix_ms() / 1_000,
        }
    }

    /// When a time on the client's clock is.
    fn instant(&self, since_start: Duration) -> tokio::time::Instant {
        (self.0 + since_start).into()
    }
}

/// Brings messages to the driver, and keeps those that find no room.
#[derive(Debug)]
struct Courier {
    handle: DriverHandle,
    waiting: std::collections::VecDeque<Request>,
}

impl Courier {
    fn new(handle: DriverHandle) -> Self {
        Self {
            handle,
            waiting: std::collections::VecDeque::new(),
        }
    }

    fn send(&mut self, request: Request) {
        self.waiting.push_back(request);
    }

    /// Sends what it can; false when the driver is gone.
    fn flush(&mut self) -> bool {
        while let Some(request) = self.waiting.pop_front() {
            match self.handle.try_tell(request) {
                Ok(()) => {}
                Err((AskError::Gone, _)) => return false,
                Err((_, request)) => {
                    self.waiting.push_front(request);
                    break;
                }
            }
        }
        true
    }

    fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_listener_does_not_wait_for_its_address() {
        for address in ["192.0.2.1:0", "[2001:db8::1]:0"] {
            let address: SocketAddr = address.parse().unwrap();
            UdpSocket::bind(address).unwrap_err();
            let socket = bind_early(address).unwrap();
            assert_eq!(socket.local_addr().unwrap().ip(), address.ip());
        }
    }
}
