//! A dataplane of the generator's own: the real process on memory ports (`net_memif`), started for the run and ended with it.

use std::fmt::Write as _;
use std::fs::DirBuilder;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// How long the process may take to start, and to end.
const LIMIT: Duration = Duration::from_secs(60);
/// Slots of a memif ring, as a power of two: what a NIC of a router has.
const RING_LOG2: u8 = 12;
/// First port of a port block.
const FIRST_PORT: u16 = 1_024;
/// Public addresses: the benchmark range (RFC 2544 appendix C.2.2).
const PUBLIC: u32 = 0xc612_0000;

/// What the process is to be.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) sessions: u32,
    pub(super) flows: u32,
    /// Core of the process's main thread.
    pub(super) main_core: usize,
    /// Cores of its workers.
    pub(super) workers: Vec<usize>,
    pub(super) idle_backoff_us: u32,
    pub(super) hugepages: bool,
}

/// The process, its configuration and its directory; all of it goes away with it.
pub(crate) struct Gateway {
    directory: PathBuf,
    child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
}

/// Smallest prefix length whose range has `count` addresses.
fn prefix_for(count: u32) -> u32 {
    32 - count.max(1).next_power_of_two().trailing_zeros()
}

/// The configuration of such a process.
fn yaml(shape: &Shape, directory: &Path, name: &str) -> Result<String> {
    let per_session = shape.flows.div_ceil(shape.sessions.max(1));
    // Twice the flows a session has, so that its block is at most half full.
    let block = (per_session * 2).next_power_of_two().max(64);
    if block > 16_384 {
        bail!("{per_session} flows per session do not fit a port block: give more --sessions");
    }
    let blocks_per_address = (65_536 - u32::from(FIRST_PORT)) / block;
    let public = prefix_for(shape.sessions.div_ceil(blocks_per_address));
    if public < 16 {
        bail!("the sessions' port blocks need more than 65,536 public addresses");
    }
    // First, last and the gateway's own address are not handed out.
    let subscribers = prefix_for(shape.sessions + 3);
    let mut workers = String::new();
    for core in &shape.workers {
        let separator = if workers.is_empty() { "" } else { ", " };
        write!(workers, "{separator}{core}")?;
    }
    let dir = directory.display();
    let Shape {
        main_core,
        idle_backoff_us,
        hugepages,
        flows,
        ..
    } = shape;
    let mappings = (flows * 2).max(65_536);
    Ok(format!(
        "\
shared_memory: {{ path: {dir}/shm }}
log: {{ level: info }}
dataplane:
  main_core: {main_core}
  workers: [{workers}]
  idle_backoff_us: {idle_backoff_us}
  mbufs: 32768
  routes: {{ ipv4: 1024, ipv6: 1024 }}
  eal: {{ hugepages: {hugepages}, memory_mib: 384, file_prefix: {name} }}
  ports:
    - {{ name: access0, role: access, device: \"{access}\", mtu: 1500 }}
    - {{ name: {twin}, role: core, device: \"{core}\", mtu: 1500 }}
pools:
  - {{ name: subscribers, ranges: [100.64.0.0/{subscribers}], gateway: 100.64.0.1, nat: public }}
nat:
  max_mappings: {mappings}
  pools: [{{ name: public, addresses: [{nat}/{public}], block_size: {block}, first_port: {FIRST_PORT} }}]
api: {{ listen: \"127.0.0.1:8080\", token_file: {dir}/token }}
auth: {{ protocols: [pap], users: [{{ name: a, password: b }}] }}
",
        access = device(0, "server", directory),
        core = device(1, "server", directory),
        nat = std::net::Ipv4Addr::from(PUBLIC),
        // The kernel gets a TAP device of this name, so it is another one in every run.
        twin = format_args!("wire-{}", std::process::id()),
    ))
}

/// One end of memory port `index` (0 access, 1 core), as a device string.
pub(crate) fn device(index: u8, role: &str, directory: &Path) -> String {
    let path = directory.join(format!("port{index}.sock"));
    format!(
        "net_memif{index},role={role},id={index},socket={},socket-abstract=no,rsize={RING_LOG2}",
        path.display()
    )
}

impl Gateway {
    /// Writes the configuration and starts `program` with it.
    pub(super) fn start(program: &Path, shape: &Shape) -> Result<Self> {
        let name = format!("bng-wire-{}", std::process::id());
        Self::start_with(program, &name, |directory| yaml(shape, directory, &name))
    }

    /// Starts `program` with the configuration `yaml` makes for a directory. `name` is that of the directory, unlike any other's.
    pub(crate) fn start_with(
        program: &Path,
        name: &str,
        yaml: impl FnOnce(&Path) -> Result<String>,
    ) -> Result<Self> {
        let directory = PathBuf::from(format!("/dev/shm/{name}"));
        DirBuilder::new()
            .mode(0o700)
            .create(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let started = yaml(&directory).and_then(|text| Self::spawn(program, &directory, &text));
        if started.is_err() {
            let _removed = std::fs::remove_dir_all(&directory);
        }
        started
    }

    fn spawn(program: &Path, directory: &Path, yaml: &str) -> Result<Self> {
        let config = directory.join("config.yaml");
        std::fs::write(&config, yaml)?;
        let mut child = Command::new(program)
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| {
                format!(
                    "cannot start {}: `make build` builds it, --dataplane names another",
                    program.display()
                )
            })?;
        let (sender, lines) = channel();
        if let Some(stderr) = child.stderr.take() {
            // Ends with the process, whose end of the pipe closes then.
            std::thread::spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        let mut gateway = Self {
            directory: directory.to_owned(),
            child,
            lines,
            said: Vec::new(),
        };
        gateway.wait_ready()?;
        Ok(gateway)
    }

    fn wait_ready(&mut self) -> Result<()> {
        let end = Instant::now() + LIMIT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    let ready = line == "bng-dataplane: ready";
                    self.said.push(line);
                    if ready {
                        return Ok(());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    bail!(
                        "bng-dataplane is not ready after {LIMIT:?}:\n{}",
                        self.tail()
                    )
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("bng-dataplane did not start:\n{}", self.tail())
                }
            }
        }
    }

    /// The last lines it said.
    fn tail(&mut self) -> String {
        self.said.extend(self.lines.try_iter());
        let skip = self.said.len().saturating_sub(20);
        self.said.get(skip..).unwrap_or(&[]).join("\n")
    }

    /// Where its files are; goes away with it.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Its configuration file.
    pub(crate) fn config(&self) -> PathBuf {
        self.directory.join("config.yaml")
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The generator's end of memory port `index` (0 access, 1 core).
    pub(crate) fn device(&self, index: u8) -> String {
        device(index, "client", &self.directory)
    }

    /// Ends it as a service manager would, and says what is wrong with its end.
    pub(crate) fn stop(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait()? {
                if !status.success() {
                    bail!("bng-dataplane ended with {status}:\n{}", self.tail());
                }
                return Ok(());
            }
            if Instant::now() >= end {
                bail!("bng-dataplane did not end within {LIMIT:?}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Both do nothing to one that has ended.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
        let _removed = std::fs::remove_dir_all(&self.directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_one_the_daemons_take() {
        for (sessions, flows) in [(1, 1), (1_000, 64_000), (65_535, 65_535), (65_535, 1 << 20)] {
            let shape = Shape {
                sessions,
                flows,
                main_core: 0,
                workers: vec![1, 2],
                idle_backoff_us: 50,
                hugepages: true,
            };
            let directory = Path::new("/dev/shm/bng-wire-1");
            let text = yaml(&shape, directory, "bng-wire-1").unwrap();
            let config =
                bng_config::Config::parse(text.as_bytes(), Path::new("wire.yaml")).unwrap();
            let pool = &config.pools[0];
            assert!(pool.capacity() >= sessions, "{text}");
            let nat = &config.nat.pools[0];
            let blocks = nat.address_count() * u32::from(nat.blocks_per_address());
            assert!(blocks >= sessions, "{text}");
            assert!(u32::from(nat.block_size) >= flows / sessions);
            bng_dataplane::capacities::capacities(&config)
                .check()
                .unwrap();
        }
    }

    #[test]
    fn flows_that_fit_no_port_block_are_refused_by_name() {
        let shape = Shape {
            sessions: 1,
            flows: 20_000,
            main_core: 0,
            workers: vec![1],
            idle_backoff_us: 0,
            hugepages: true,
        };
        let error = yaml(&shape, Path::new("/dev/shm/x"), "x").unwrap_err();
        assert!(error.to_string().contains("--sessions"), "{error}");
    }
}
