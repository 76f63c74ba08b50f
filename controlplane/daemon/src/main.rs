//! bng-controlplane: the control plane of the gateway.
//!
//! ```text
//!        workers of bng-dataplane (shared memory)                     kernel (rtnetlink)
//!   punt rings | event rings      ^ tables, inject rings       routes, neighbours |   ^ addresses, routes,
//!              v                  |                                               v   | "resolve this one"
//!   +---------------------------------------------------+  Request::Kernel  +-------------------+
//!   | driver thread                                     |<------------------| netlink watcher   |
//!   |   punted frame -> AccessConcentrator (bng-pppoe)  |------------------>|                   |
//!   |   its events   -> Authenticator, pools (bng-aaa)  |      Resolve      +-------------------+
//!   |                -> Publisher (bng-shm)             |
//!   |   its frames   -> inject ring of the owner        |   Request::*      +-------------------+
//!   |   sleeps on the bell                              |<------------------| REST, /metrics,   |
//!   +---------------------------------------------------+      answers      | /healthz (tokio)  |
//!                                                       ------------------->+-------------------+
//! ```
//!
//! On SIGTERM sessions stay in shared memory: their traffic goes on, and the next start adopts them.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bng_config::{Config, LogLevel};
use bng_controlplane::driver::Driver;
use bng_controlplane::netlink;
use bng_controlplane::radius;
use bng_controlplane::reload::{InForce, ReloadRequest, SetLevel};
use bng_controlplane::request::{DriverHandle, Link, Request};
use bng_controlplane::rest::token::Token;
use bng_controlplane::rest::{self, Api};
use bng_controlplane::settings::Settings;
use bng_shm::{AttachError, Publisher};
use clap::Parser;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tracing_subscriber::EnvFilter;

/// Time between two attempts to attach while a dataplane of another version runs.
const ATTACH_RETRY: Duration = Duration::from_secs(1);
/// Neighbours that may wait for the netlink watcher; workers ask again.
const RESOLVE_WAITING: usize = 1_024;

/// Control plane of the PPPoE gateway: sessions, addresses, REST and metrics.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// YAML configuration, the same as bng-dataplane's.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Check the configuration, say what is wrong, and exit.
    #[arg(long)]
    check: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match start(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bng-controlplane: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(arguments: &Arguments) -> anyhow::Result<()> {
    let config = Config::load(&arguments.config)?;
    let settings =
        Settings::new(&config).with_context(|| format!("{}", arguments.config.display()))?;
    if arguments.check {
        eprintln!("bng-controlplane: {} is good", arguments.config.display());
        return Ok(());
    }
    let level = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new(log_filter(config.log.level)));
    let log = tracing_subscriber::fmt()
        .with_env_filter(level)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_filter_reloading();
    let filter = log.reload_handle();
    log.init();
    let set_level = move |level: LogLevel| {
        // What the environment says stays in force.
        if std::env::var_os(EnvFilter::DEFAULT_ENV).is_none() {
            // Fails only if there were no log any more.
            let _ = filter.reload(EnvFilter::new(log_filter(level)));
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("starting the runtime")?;
    let path = arguments.config.clone();
    runtime.block_on(run(path, config, Arc::new(settings), Box::new(set_level)))
}

/// Below `info` only our own messages: the libraries would write out every netlink message and HTTP connection.
fn log_filter(level: LogLevel) -> String {
    match level {
        LogLevel::Debug | LogLevel::Trace => format!("info,bng_controlplane={}", level.as_str()),
        LogLevel::Error | LogLevel::Warn | LogLevel::Info => level.as_str().to_owned(),
    }
}

async fn run(
    path: PathBuf,
    config: Config,
    settings: Arc<Settings>,
    set_level: SetLevel,
) -> anyhow::Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = Token::read(&config.api.token_file)?;
    let link = Link::waiting("starting");
    let mut hang_up = signal(SignalKind::hangup())?;
    let in_force = Arc::new(InForce::new(
        path,
        config.clone(),
        settings.clone(),
        token,
        link.clone(),
        set_level,
    ));
    let api = Api {
        link: link.clone(),
        in_force: in_force.clone(),
    };
    tokio::spawn(async move {
        while hang_up.recv().await.is_some() {
            // What came of it is in the log.
            let _ = in_force.reload(ReloadRequest::default()).await;
        }
    });
    let (end, ended) = watch::channel(false);
    let mut servers = Vec::new();
    let own_metrics = config.api.metrics_listen;
    let listener = listen(config.api.listen, "api.listen").await?;
    let router = rest::router(api.clone(), own_metrics.is_none());
    servers.push(tokio::spawn(rest::serve(
        listener,
        router,
        rest::ListenLimits::default(),
        is_over(ended.clone()),
    )));
    if let Some(address) = own_metrics {
        let listener = listen(address, "api.metrics_listen").await?;
        let router = rest::metrics_router(api);
        let limits = rest::ListenLimits::default();
        servers.push(tokio::spawn(rest::serve(
            listener,
            router,
            limits,
            is_over(ended),
        )));
    }

    let attached = tokio::select! {
        attached = attach(&config, &settings, &link) => Some(attached?),
        _ = term.recv() => None,
        _ = interrupt.recv() => None,
    };
    if let Some(publisher) = attached {
        let running = start_driver(&config, &settings, publisher)?;
        link.set_up(running.handle.clone());
        eprintln!("bng-controlplane: ready");
        if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
            tracing::warn!(%error, "the service manager could not be told that we are ready");
        }
        let mut over = running.over;
        tokio::select! {
            _ = term.recv() => tracing::info!("SIGTERM: sessions stay for the next start"),
            _ = interrupt.recv() => tracing::info!("SIGINT: sessions stay for the next start"),
            _ = &mut over => anyhow::bail!("the driver thread has ended"),
        }
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        running.watcher.abort();
        if running.handle.tell(Request::Stop).is_ok() {
            let _ = over.await;
        }
    }
    end.send_replace(true);
    for server in servers {
        // A client that does not let go must not hold up the end.
        let _ = tokio::time::timeout(Duration::from_secs(1), server).await;
    }
    Ok(())
}

async fn listen(address: std::net::SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("{key} {address}: another process may be using it"))
}

async fn is_over(mut ended: watch::Receiver<bool>) {
    // The sender going away is an end too.
    let _ = ended.wait_for(|over| *over).await;
}

/// Attaches to the shared memory. While a dataplane of another version or size uses it, that is said once and in
/// `/healthz`, and tried again until that process has ended.
async fn attach(config: &Config, settings: &Settings, link: &Link) -> anyhow::Result<Publisher> {
    let mut told = String::new();
    loop {
        match Publisher::attach(&config.shared_memory.path, settings.capacities) {
            Ok(publisher) => {
                if let Some(mismatch) = publisher.replaced() {
                    tracing::warn!(%mismatch, "shared memory was made anew: sessions of before are gone");
                } else if publisher.created() {
                    tracing::info!("shared memory is new");
                }
                return Ok(publisher);
            }
            Err(error @ AttachError::Mismatch { .. }) => {
                let reason = error.to_string();
                if reason != told {
                    link.set_waiting(reason.clone());
                    tracing::error!("{reason}");
                    told = reason;
                }
                tokio::time::sleep(ATTACH_RETRY).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The driver thread and what belongs to it.
struct Running {
    handle: DriverHandle,
    over: oneshot::Receiver<()>,
    watcher: tokio::task::JoinHandle<()>,
}

fn start_driver(
    config: &Config,
    settings: &Arc<Settings>,
    publisher: Publisher,
) -> anyhow::Result<Running> {
    let (handle, inbox) = DriverHandle::new(publisher.waker());
    let (resolver, wanted) = mpsc::channel(RESOLVE_WAITING);
    let radius = radius::start(config, &handle)?;
    let driver = Driver::new(config, settings.clone(), publisher, inbox, resolver, radius)?;
    let (running, over) = oneshot::channel::<()>();
    std::thread::Builder::new()
        .name("driver".to_owned())
        .spawn(move || {
            // Dropped at the end of the thread, however it ends, which `over` notices.
            let _running = running;
            driver.run();
        })
        .context("starting the driver thread")?;
    let watcher = tokio::spawn(netlink::watch(
        settings.ports.clone().into(),
        handle.clone(),
        wanted,
    ));
    Ok(Running {
        handle,
        over,
        watcher,
    })
}
