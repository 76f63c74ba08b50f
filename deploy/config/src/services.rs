//! `shared_memory`, `api` and `log`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;

/// Section `shared_memory`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SharedMemory {
    /// Absolute path of the directory, on tmpfs or hugetlbfs, that holds the shared memory of the two daemons. It is created
    /// with mode 0700 when missing and outlives both. Default `/dev/shm/ironbng`.
    pub path: PathBuf,
}

impl Default for SharedMemory {
    fn default() -> Self {
        Self {
            path: PathBuf::from("/dev/shm/ironbng"),
        }
    }
}

/// Section `api`: REST and metrics of `bng-controlplane`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Api {
    /// Address and TCP port of REST, `/healthz` and, unless `metrics_listen` is given, `/metrics`. Default `127.0.0.1:8080`.
    pub listen: SocketAddr,
    /// File whose first line is the bearer token of REST. Absolute. Default `/etc/ironbng/token`.
    pub token_file: PathBuf,
    /// Address and TCP port of `/metrics` alone. Default: served at `listen`.
    pub metrics_listen: Option<SocketAddr>,
}

impl Default for Api {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            token_file: PathBuf::from("/etc/ironbng/token"),
            metrics_listen: None,
        }
    }
}

/// Section `log`: what both daemons write to standard error.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// Least important message that is written: `error`, `warn`, `info` (default), `debug` or `trace`.
    pub level: LogLevel,
}

/// Importance of a log message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Something failed and an operator must act.
    Error,
    /// Something is wrong and the gateway copes.
    Warn,
    /// Starts, stops and changes of state.
    #[default]
    Info,
    /// Every session event.
    Debug,
    /// Every packet of the control plane.
    Trace,
}

impl LogLevel {
    /// The word in the file, which `tracing_subscriber::EnvFilter` understands too.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}
