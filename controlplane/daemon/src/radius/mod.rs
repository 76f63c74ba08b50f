//! RADIUS beside the driver: sockets, disk and clocks around the client of bng-aaa.
//!
//! ```text
//!   driver --- questions (bounded) ---> thread `radius`: Client, UDP sockets
//!          <-- Request::Verdict -------
//! ```
//!
//! The driver never waits: a question that finds no room is answered like one to silent servers, and counted.

mod questions;
mod sockets;
pub mod view;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bng_aaa::radius::{Client, Nas, Now};
use bng_aaa::{AuthRequest, Backend};
use bng_config::Config;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::request::{AskError, DriverHandle, Request};
use view::RadiusView;

/// Questions that may wait for the thread.
const QUESTIONS_WAITING: usize = 4_096;
/// Source ports for each server: 256 requests can be under way on each.
const SOCKETS: u8 = 16;
/// Requests that may wait until an identifier is free.
const QUEUE: usize = 4_096;
/// Time between two pictures of the state for operators.
const VIEW_INTERVAL: Duration = Duration::from_millis(250);
/// How long a message to the driver waits when too many others do.
const BUSY_RETRY: Duration = Duration::from_millis(2);

/// The driver's end.
#[derive(Debug, Default)]
pub struct Radius {
    questions: Option<mpsc::Sender<AuthRequest>>,
    view: Option<Arc<Mutex<RadiusView>>>,
}

impl Radius {
    /// Puts a question; false when it finds no room.
    pub(crate) fn ask(&self, question: AuthRequest) -> bool {
        (self.questions.as_ref()).is_some_and(|sender| sender.try_send(question).is_ok())
    }

    /// The latest picture of the state; `None` without section `radius`.
    pub(crate) fn view(&self) -> Option<RadiusView> {
        self.view.as_ref().map(|view| view.lock().clone())
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
    let ports = |server: &bng_config::RadiusServer| (server.address, server.auth_port).into();
    let worker = questions::Worker {
        client: client(radius, SOCKETS, QUEUE)?,
        nas: nas(config, radius),
        servers: radius.servers.iter().map(ports).collect(),
        source: radius.source,
        questions,
        driver: Courier::new(handle.clone()),
        view: view.clone(),
    };
    spawn("radius", move || worker.run())?;
    Ok(Radius {
        questions: Some(sender),
        view: Some(view),
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
