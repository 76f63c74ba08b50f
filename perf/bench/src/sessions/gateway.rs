//! Both daemons, on memory ports.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use ureq::Agent;

use super::results::Memory;
use crate::wire::gateway::{Gateway, device};

/// How long a daemon may take to start, to end, or to let go of sessions.
const LIMIT: Duration = Duration::from_secs(60);
/// Time between two looks at something that tells nobody.
const LOOK: Duration = Duration::from_millis(100);
/// Longest sleep of the idle worker, microseconds: it has a core with others on it.
const BACKOFF_US: u32 = 50;
/// Where REST and metrics are.
const API: &str = "127.0.0.1:8080";
/// Any that is long enough; nobody else is in the namespace.
const TOKEN: &str = "bench-bench-bench-bench";
/// Entries of a page of REST.
const PAGE: usize = 1_000;
/// Secret shared with the RADIUS server, and its port of authentication.
pub(super) const SECRET: &str = "bench";
pub(super) const RADIUS: &str = "127.0.0.1:1812";
/// Password of all users.
pub(super) const PASSWORD: &str = "correct horse";
/// What user names begin with; the subscriber's index follows.
pub(super) const USER: &str = "sub";

/// What the gateway is to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Access ports.
    pub(super) access: u8,
    /// Sessions, all access ports together.
    pub(super) sessions: u32,
    /// Authentication and accounting by RADIUS in place of local users.
    pub(super) radius: bool,
}

/// The daemons.
pub(super) struct Pair {
    control: Child,
    agent: Agent,
    // After control, which it outlives.
    dataplane: Gateway,
}

/// Prefix length of a range with at least `count` addresses.
fn prefix_for(count: u32) -> u32 {
    32 - count.max(4).next_power_of_two().trailing_zeros()
}

/// The configuration. What it does not say is as everybody gets it.
fn yaml(shape: Shape, cores: &[usize], directory: &Path, name: &str) -> Result<String> {
    let dir = directory.display();
    let (main, worker) = match cores {
        [first, .., last] => (*first, *last),
        [only] => (*only, *only),
        [] => bail!("no core is allowed"),
    };
    let mut ports = String::new();
    for port in 0..shape.access {
        let device = device(port, "server", directory);
        writeln!(
            ports,
            "    - {{ name: access{port}, role: access, device: \"{device}\", mtu: 1500 }}"
        )?;
    }
    let core = device(shape.access, "server", directory);
    // First, last and the gateway's own address are not handed out, and ends and beginnings overlap.
    let subscribers = prefix_for(shape.sessions + shape.sessions / 8 + 64);
    // Blocks of 64 ports, a thousand on an address; they rest for minutes before they are used again, which ten minutes of
    // churn must not wait for.
    let public = prefix_for((shape.sessions / 250).max(128));
    let auth = match shape.radius {
        false => format!("auth: {{ protocols: [pap, chap], users_file: {dir}/users.yaml }}"),
        true => format!(
            "\
auth: {{ protocols: [pap, chap], backends: [radius] }}
radius:
  servers: [{{ address: 127.0.0.1, secret: \"{SECRET}\" }}]
  accounting: {{ interim_s: 0 }}
state_directory: {dir}/state"
        ),
    };
    Ok(format!(
        "\
shared_memory: {{ path: {dir}/shm }}
dataplane:
  main_core: {main}
  workers: [{worker}]
  idle_backoff_us: {BACKOFF_US}
  mbufs: 32768
  routes: {{ ipv4: 1024, ipv6: 1024 }}
  eal: {{ hugepages: {hugepages}, memory_mib: 384, file_prefix: {name} }}
  ports:
{ports}    - name: core0
      role: core
      device: \"{core}\"
      mtu: 1500
      addresses: [192.0.2.2/30]
      routes: [{{ to: default, via: 192.0.2.1 }}]
pools:
  - {{ name: subscribers, ranges: [100.64.0.0/{subscribers}], gateway: 100.64.0.1, dns: [192.0.2.53], nat: public }}
nat:
  max_mappings: 262144
  pools: [{{ name: public, addresses: [198.18.0.0/{public}], block_size: 64 }}]
api: {{ listen: \"{API}\", token_file: {dir}/token }}
{auth}
",
        hugepages = crate::wire::free_hugepages_mib() >= crate::wire::NEEDED_MIB,
    ))
}

fn users(directory: &Path, count: u32) -> Result<()> {
    let mut text = String::new();
    for index in 0..count {
        writeln!(
            text,
            "- {{ name: {USER}{index}, password: \"{PASSWORD}\" }}"
        )?;
    }
    std::fs::write(directory.join("users.yaml"), text)?;
    let mut token = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(directory.join("token"))?;
    writeln!(token, "{TOKEN}")?;
    Ok(())
}

impl Pair {
    /// Starts both; they are ready when this returns.
    pub(super) fn start(programs: &Path, shape: Shape) -> Result<Self> {
        let cores: Vec<usize> = core_affinity::get_core_ids()
            .context("cannot tell which cores are allowed")?
            .iter()
            .map(|core| core.id)
            .collect();
        let name = format!("bng-sessions-{}", std::process::id());
        let dataplane = Gateway::start_with(&programs.join("bng-dataplane"), &name, |directory| {
            users(directory, shape.sessions)?;
            yaml(shape, &cores, directory, &name)
        })?;
        let log = File::create(dataplane.directory().join("control.log"))?;
        let program = programs.join("bng-controlplane");
        let control = Command::new(&program)
            .arg("--config")
            .arg(dataplane.config())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| {
                format!("cannot start {}: `make build` builds it", program.display())
            })?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(20)))
            .build();
        let mut pair = Self {
            control,
            agent: config.into(),
            dataplane,
        };
        pair.wait("be ready", |pair| {
            Ok(pair.get("/healthz").is_ok_and(|(status, _)| status == 200))
        })?;
        Ok(pair)
    }

    /// Waits until `done`, as long as control lives.
    pub(super) fn wait(
        &mut self,
        what: &str,
        mut done: impl FnMut(&Self) -> Result<bool>,
    ) -> Result<()> {
        let end = Instant::now() + LIMIT;
        while !done(self)? {
            if let Some(status) = self.control.try_wait()? {
                bail!("bng-controlplane ended with {status}:\n{}", self.log_tail());
            }
            if Instant::now() >= end {
                bail!(
                    "the gateway did not {what} within {LIMIT:?}:\n{}",
                    self.log_tail()
                );
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// The last lines control said.
    fn log_tail(&self) -> String {
        let path = self.dataplane.directory().join("control.log");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines
            .get(lines.len().saturating_sub(20)..)
            .unwrap_or(&[])
            .join("\n")
    }

    fn get(&self, path: &str) -> Result<(u16, String)> {
        let mut answer = self
            .agent
            .get(format!("http://{API}{path}"))
            .header("Authorization", format!("Bearer {TOKEN}"))
            .call()
            .with_context(|| format!("GET {path}"))?;
        let status = answer.status().as_u16();
        let limit = answer.body_mut().with_config().limit(64 << 20);
        Ok((status, limit.read_to_string()?))
    }

    /// All metrics: name with labels, value.
    pub(super) fn metrics(&self) -> Result<BTreeMap<String, f64>> {
        let (status, text) = self.get("/metrics")?;
        if status != 200 {
            bail!("/metrics: status {status}");
        }
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Ok(lines
            .filter_map(|line| {
                let (name, value) = line.rsplit_once(' ')?;
                Some((name.to_owned(), value.parse().ok()?))
            })
            .collect())
    }

    /// Ended sessions from `offset` on, the latest first, a page of them; and how many control remembers.
    pub(super) fn history(&self, offset: usize) -> Result<(usize, Vec<Value>)> {
        let path = format!("/api/v1/sessions/history?limit={PAGE}&offset={offset}");
        let (status, text) = self.get(&path)?;
        if status != 200 {
            bail!("{path}: status {status}: {text}");
        }
        let mut page: Value = serde_json::from_str(&text)?;
        let total = page["total"].as_u64().unwrap_or(0);
        match page["items"].take() {
            Value::Array(items) => Ok((usize::try_from(total)?, items)),
            _ => bail!("{path}: no items"),
        }
    }

    /// Memory of control.
    pub(super) fn memory(&self) -> Result<Memory> {
        Memory::of(self.control.id())
    }

    /// Processor seconds of control's driver thread so far.
    pub(super) fn driver_seconds(&self) -> f64 {
        let threads = crate::downloads::gateway::threads(self.control.id());
        threads.get("driver").copied().unwrap_or(0.0)
    }

    /// Our end of a port: access ports in order, then the core port.
    pub(super) fn device(&self, index: u8) -> String {
        self.dataplane.device(index)
    }

    /// A file in the gateway's directory.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dataplane.directory().join(name)
    }

    /// Ends both as a service manager would.
    pub(super) fn stop(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.control), Signal::TERM)?;
        let end = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.control.try_wait()? {
                break status;
            }
            if Instant::now() >= end {
                bail!("bng-controlplane did not end within {LIMIT:?}");
            }
            std::thread::sleep(LOOK);
        };
        if !status.success() {
            bail!("bng-controlplane ended with {status}:\n{}", self.log_tail());
        }
        // Ends with its directory when it is dropped, as `self` cannot be taken apart.
        Ok(())
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // Both do nothing to one that has ended.
        let _killed = self.control.kill();
        let _reaped = self.control.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_one_the_daemons_take() {
        for (access, sessions) in [(1, 300), (1, 64_000), (2, 66_000)] {
            let radius = access == 2;
            let shape = Shape {
                access,
                sessions,
                radius,
            };
            let directory = std::env::temp_dir();
            let text = yaml(shape, &[0, 1], &directory, "bng-sessions-1").unwrap();
            let text = text.replace(
                &format!("users_file: {}/users.yaml", directory.display()),
                "users: [{ name: a, password: b }]",
            );
            let config =
                bng_config::Config::parse(text.as_bytes(), Path::new("sessions.yaml")).unwrap();
            assert!(config.pools[0].capacity() > sessions, "{text}");
            let nat = &config.nat.pools[0];
            let blocks = nat.address_count() * u32::from(nat.blocks_per_address());
            assert!(blocks > sessions * 2, "{text}");
        }
    }
}
