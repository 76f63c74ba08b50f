//! The gateway's configuration file as the lab writes it, and the two daemons.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::thread::available_parallelism;

use crate::topology::addresses;

/// One of the two daemons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Daemon {
    /// `bng-dataplane`.
    Dataplane,
    /// `bng-controlplane`.
    Controlplane,
}

impl Daemon {
    /// Name of the program, and of its log.
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            Self::Dataplane => "bng-dataplane",
            Self::Controlplane => "bng-controlplane",
        }
    }
}

/// A subscriber the gateway knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// PAP Peer-ID.
    pub name: String,
    /// Password.
    pub password: String,
}

/// What a lab's gateway is configured with; the defaults serve the demo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayConfig {
    /// Number of workers, at least 1.
    pub workers: u16,
    /// Subscribers.
    pub users: Vec<User>,
    /// Seconds between LCP Echo-Requests.
    pub echo_interval_s: u16,
    /// Echo-Requests without answer before a session ends.
    pub echo_failures: u8,
    /// PADI answered per second from one MAC.
    pub padi_per_second_per_mac: u32,
    /// Prefix of the subscribers' addresses; the gateway is its first address.
    pub subscriber_pool: (Ipv4Addr, u8),
    /// Prefix of the public addresses.
    pub nat_pool: (Ipv4Addr, u8),
    /// Ports of one block, a power of two.
    pub block_size: u16,
    /// Whether there is a second access port, `access1`, on a TAP device that [`crate::Lab::injector`] makes.
    pub injected_port: bool,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub log_level: &'static str,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            workers: 2,
            users: vec![User {
                name: "alice".to_owned(),
                password: "wonderland".to_owned(),
            }],
            echo_interval_s: 5,
            echo_failures: 3,
            padi_per_second_per_mac: 100,
            subscriber_pool: (Ipv4Addr::new(100, 64, 0, 0), 22),
            nat_pool: (Ipv4Addr::new(203, 0, 113, 0), 28),
            block_size: 512,
            injected_port: false,
            log_level: "info",
        }
    }
}

/// Memory of the dataplane process in the lab.
const MEMORY_MIB: u64 = 512;

impl GatewayConfig {
    /// The file's text, for the lab called `name` with its files in `dir`.
    pub(crate) fn yaml(&self, name: &str, dir: &Path) -> String {
        // The machine's cores are shared with everything else of the lab, so idle workers must sleep.
        let cores = available_parallelism().map_or(1, std::num::NonZero::get);
        let workers: Vec<String> = (0..usize::from(self.workers))
            .map(|n| (n % cores).to_string())
            .collect();
        let (pool, pool_length) = self.subscriber_pool;
        let gateway = Ipv4Addr::from(u32::from(pool) + 1);
        let (nat, nat_length) = self.nat_pool;
        let mut text = format!(
            "\
shared_memory:
  path: /dev/shm/{name}
dataplane:
  main_core: 0
  workers: [{workers}]
  idle_backoff_us: 100
  mbufs: 32768
  eal:
    hugepages: {hugepages}
    memory_mib: {MEMORY_MIB}
    file_prefix: {name}
  ports:
    - name: access0
      role: access
      device: net_af_packet0,iface=veth-access0,qpairs={queues},framecnt=4096
      mtu: 1500
    - name: core0
      role: core
      device: net_af_packet1,iface=veth-core0,qpairs={queues},framecnt=4096
      mtu: 1500
      addresses: [{core}/24]
      routes:
        - {{ to: default, via: {router} }}
{injected}pppoe:
  ac_name: lab
  padi_per_second_per_mac: {padi}
  echo: {{ interval_s: {echo}, failures: {failures} }}
pools:
  - name: subscribers
    ranges: [{pool}/{pool_length}]
    gateway: {gateway}
    dns: [{dns}]
    nat: public
nat:
  max_mappings: 131072
  pools:
    - name: public
      addresses: [{nat}/{nat_length}]
      block_size: {block_size}
api:
  listen: {api}
  token_file: {token}
log:
  level: {level}
auth:
  protocols: [pap]
  users:
",
            workers = workers.join(", "),
            hugepages = hugepages_free_mib() >= MEMORY_MIB,
            queues = self.workers,
            core = addresses::GATEWAY_CORE,
            router = addresses::ROUTER,
            injected = self.injected_port_yaml(),
            padi = self.padi_per_second_per_mac,
            echo = self.echo_interval_s,
            failures = self.echo_failures,
            dns = addresses::WWW,
            block_size = self.block_size,
            api = addresses::API,
            token = dir.join("token").display(),
            level = self.log_level,
        );
        self.write_users(&mut text);
        text
    }

    fn injected_port_yaml(&self) -> String {
        if !self.injected_port {
            return String::new();
        }
        let queues = self.workers;
        format!(
            "    - name: access1
      role: access
      device: net_af_packet2,iface={INJECT_TAP},qpairs={queues},framecnt=4096
      mtu: 1500
"
        )
    }

    fn write_users(&self, text: &mut String) {
        for user in &self.users {
            let _ = writeln!(
                text,
                "    - {{ name: {:?}, password: {:?} }}",
                user.name, user.password
            );
        }
    }
}

/// TAP device of the second access port.
pub(crate) const INJECT_TAP: &str = "tap-access1";

/// Free 2 MiB hugepages on a mounted hugetlbfs, in MiB. With too few the lab's dataplane runs without (`--no-huge`).
fn hugepages_free_mib() -> u64 {
    let mounted = std::fs::read_to_string("/proc/mounts")
        .unwrap_or_default()
        .lines()
        .any(|line| line.split(' ').nth(2) == Some("hugetlbfs"));
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok())
        .unwrap_or(0);
    if mounted { free * 2 } else { 0 }
}
