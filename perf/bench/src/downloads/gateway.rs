//! The gateway of one measurement: the real process, its configuration, its threads.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::cell::{Cell, Protocol, Way};
use super::results::Cores;
use crate::wire::gateway::{Gateway, device};

/// Ticks of /proc/PID/stat per second (USER_HZ).
const TICKS: f64 = 100.0;

/// Longest sleep of the worker, microseconds: the sender has the same core.
const BACKOFF_US: u32 = 50;

/// Name of the core port's TAP twin, alone in its network namespace.
pub(super) const TWIN: &str = "core0";

/// Slots of a virtio ring, the largest there is: more than the frames on their way.
const QUEUE: u32 = 1_024;

/// Addresses the subscribers have outside.
pub(super) const PUBLIC: &str = "198.18.0.0/30";

/// The configuration.
fn yaml(cell: &Cell, cores: Cores, machine: Option<&Path>, directory: &Path, name: &str) -> String {
    let dir = directory.display();
    let on = cell.coalescing;
    let (tcp, udp) = match cell.protocol {
        Protocol::Tcp => (on, false),
        Protocol::Udp => (false, on),
    };
    let protocols = format!("{{ tcp: {tcp}, udp: {udp} }}");
    let (direction, core, kind) = match cell.way {
        Way::Twin => {
            let device = device(1, "server", directory);
            ("downstream", device, format!("twin_offloads: {on}"))
        }
        Way::Vhost => {
            let path = machine.unwrap_or(Path::new("")).display();
            let device = format!("net_virtio_user0,path={path},queue_size={QUEUE}");
            let kind = if on { "port" } else { "software" };
            ("upstream", device, format!("segmentation: {kind}"))
        }
    };
    format!(
        "\
shared_memory: {{ path: {dir}/shm }}
log: {{ level: info }}
dataplane:
  main_core: {kernel}
  workers: [{packets}]
  idle_backoff_us: {BACKOFF_US}
  mbufs: 32768
  routes: {{ ipv4: 1024, ipv6: 1024 }}
  eal: {{ hugepages: true, memory_mib: 384, file_prefix: {name} }}
  coalescing: {{ {direction}: {protocols} }}
  ports:
    - {{ name: access0, role: access, device: \"{access}\", mtu: 1500 }}
    - {{ name: {TWIN}, role: core, device: \"{core}\", mtu: 1500, {kind} }}
pools:
  - {{ name: subscribers, ranges: [100.64.0.0/24], gateway: 100.64.0.1, nat: public }}
nat:
  pools: [{{ name: public, addresses: [{PUBLIC}], block_size: 1024, first_port: 1024 }}]
api: {{ listen: \"127.0.0.1:8080\", token_file: {dir}/token }}
auth: {{ protocols: [pap], users: [{{ name: a, password: b }}] }}
",
        kernel = cores.kernel,
        packets = cores.packets,
        access = device(0, "server", directory),
    )
}

/// Starts it. `machine` is the socket of what is behind a virtio port.
pub(super) fn start(
    program: &Path,
    cell: &Cell,
    cores: Cores,
    machine: Option<&Path>,
) -> Result<Gateway> {
    let name = format!("bng-downloads-{}", std::process::id());
    Gateway::start_with(program, &name, |directory| {
        Ok(yaml(cell, cores, machine, directory, &name))
    })
}

/// Runs `ip`.
pub(crate) fn ip(arguments: &str) -> Result<()> {
    let status = Command::new("ip")
        .args(arguments.split_whitespace())
        .status()
        .context("cannot run ip (Debian package iproute2)")?;
    if !status.success() {
        bail!("`ip {arguments}` failed: {status}");
    }
    Ok(())
}

/// Processor seconds of a process's threads so far, by thread name. Several of one name are added.
pub(crate) fn threads(pid: u32) -> BTreeMap<String, f64> {
    let mut seconds = BTreeMap::new();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    for task in tasks.flatten() {
        if let Some((name, used)) = thread(&task.path()) {
            *seconds.entry(name).or_default() += used;
        }
    }
    seconds
}

fn thread(task: &Path) -> Option<(String, f64)> {
    let stat = std::fs::read_to_string(task.join("stat")).ok()?;
    let (head, rest) = stat.rsplit_once(") ")?;
    let (_, name) = head.split_once('(')?;
    // proc(5): state is field 3, utime and stime are 14 and 15.
    let mut fields = rest.split(' ').skip(11).map(str::parse::<f64>);
    let (user, system) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some((name.to_owned(), (user + system) / TICKS))
}

/// Seconds that the processor `core` has not been idle since the machine's start; 0 if nobody knows.
pub(super) fn busy(core: usize) -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let name = format!("cpu{core}");
    let line = stat
        .lines()
        .map(str::split_whitespace)
        .find_map(|mut line| (line.next() == Some(&name)).then_some(line));
    // proc(5): user, nice, system, idle, iowait, irq, softirq, steal; guest time is in user time.
    let ticks = line.into_iter().flatten().take(8).enumerate();
    let busy = ticks.filter(|(at, _)| !matches!(at, 3 | 4));
    busy.filter_map(|(_, ticks)| ticks.parse::<f64>().ok())
        .sum::<f64>()
        / TICKS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configurations_are_ones_the_daemons_take() {
        for way in [Way::Twin, Way::Vhost] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                for on in [false, true] {
                    let cell = Cell {
                        way,
                        protocol,
                        flows: 64,
                        coalescing: on,
                        train: 16,
                    };
                    let cores = Cores {
                        kernel: 0,
                        packets: 1,
                    };
                    let text = yaml(
                        &cell,
                        cores,
                        Some(Path::new("/x.sock")),
                        Path::new("/dev/shm/x"),
                        "x",
                    );
                    let dataplane = bng_config::Config::parse(text.as_bytes(), Path::new("x.yaml"))
                        .unwrap()
                        .dataplane;
                    let (port, coalescing) = (&dataplane.ports[1], dataplane.coalescing);
                    let (this, other, large) = match way {
                        Way::Twin => (
                            coalescing.downstream,
                            coalescing.upstream,
                            port.twin_offloads,
                        ),
                        Way::Vhost => {
                            let by_port = port.segmentation == bng_config::Segmentation::Port;
                            (coalescing.upstream, coalescing.downstream, by_port)
                        }
                    };
                    assert_eq!(this.tcp, on && protocol == Protocol::Tcp);
                    assert_eq!(this.udp, on && protocol == Protocol::Udp);
                    assert_eq!(other, bng_config::Coalesced::default());
                    assert_eq!(large, on);
                }
            }
        }
    }

    #[test]
    fn this_process_has_threads_that_used_a_processor() {
        let mut sum = 0u64;
        while !threads(std::process::id()).values().any(|used| *used > 0.0) {
            sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(1));
        }
        assert!(thread(Path::new("/proc/0")).is_none());
        let cores = core_affinity::get_core_ids().unwrap();
        assert!(cores.iter().any(|core| busy(core.id) > 0.0));
        assert!(busy(usize::MAX) < 1e-9);
    }
}
