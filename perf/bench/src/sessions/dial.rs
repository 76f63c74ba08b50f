//! The emulator and the RADIUS server, processes of their own.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

use rustix::process::{Pid, Signal, kill_process};

use super::gateway::{PASSWORD, RADIUS, SECRET, USER};
use super::results::{Accounted, Dialled};

/// An emulator at work.
pub(super) struct Dial(Option<Child>);

impl Dial {
    /// Subscribers from `first` on, over the device `access`.
    pub(super) fn start(
        access: &str,
        first: u32,
        sessions: u32,
        rate: f64,
        more: &[&str],
    ) -> Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args(["dial", "--json", "--access", access])
            .args(["--first", &first.to_string()])
            .args(["--sessions", &sessions.to_string()])
            .args(["--rate", &rate.to_string()])
            .args(["--user-prefix", USER, "--password", PASSWORD])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the emulator")?;
        Ok(Self(Some(child)))
    }

    /// Whether it has ended.
    pub(super) fn is_over(&mut self) -> Result<bool> {
        match &mut self.0 {
            Some(child) => Ok(child.try_wait()?.is_some()),
            None => Ok(true),
        }
    }

    /// What it says at its end.
    pub(super) fn result(mut self) -> Result<Dialled> {
        let child = self.0.take().context("the emulator has ended")?;
        let output = child.wait_with_output()?;
        // It fails when sessions did not come up; what it says then is a result like any other.
        match serde_json::from_slice(&output.stdout) {
            Ok(result) => Ok(result),
            Err(error) => bail!("the emulator ended with {}: {error}", output.status),
        }
    }
}

impl Drop for Dial {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _killed = child.kill();
            let _reaped = child.wait();
        }
    }
}

/// A RADIUS server that knows everybody.
pub(super) struct Server(Option<Child>);

impl Server {
    /// Starts it. Until it listens, requests are repeated.
    pub(super) fn start() -> Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args(["radius-responder", "--json", "--listen", RADIUS])
            .args(["--secret", SECRET])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the RADIUS server")?;
        Ok(Self(Some(child)))
    }

    /// Ends it; returns what it was told.
    pub(super) fn result(mut self) -> Result<Accounted> {
        let child = self.0.take().context("the RADIUS server has ended")?;
        kill_process(Pid::from_child(&child), Signal::TERM)?;
        let output = child.wait_with_output()?;
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("the RADIUS server ended with {}", output.status))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _killed = child.kill();
            let _reaped = child.wait();
        }
    }
}
