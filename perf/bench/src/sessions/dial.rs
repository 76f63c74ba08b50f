//! The emulator, a process of its own.

use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

use super::gateway::{PASSWORD, USER};
use super::results::Dialled;

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
