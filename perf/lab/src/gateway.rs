//! The gateway's configuration file as the lab writes it, and the two daemons.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::thread::available_parallelism;

use crate::freeradius::RADIUS_SECRET;
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
    /// Name of the policy, if it is not the default.
    pub policy: Option<String>,
}

impl User {
    /// A user under the default policy.
    #[must_use]
    pub fn new(name: &str, password: &str) -> Self {
        Self {
            name: name.to_owned(),
            password: password.to_owned(),
            policy: None,
        }
    }
}

/// Section `radius` of a lab's gateway. Its servers run on the internet host, [`crate::Lab::start_freeradius`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RadiusConfig {
    /// UDP ports of authentication of the servers, the preferred one first; accounting is one above.
    pub ports: Vec<u16>,
    /// Seconds between interim updates; 0: none.
    pub interim_s: u32,
    /// Further keys of the section, YAML lines as in the file, without indent.
    pub keys: String,
}

impl Default for RadiusConfig {
    fn default() -> Self {
        Self {
            ports: vec![addresses::RADIUS.port()],
            interim_s: 0,
            keys: String::new(),
        }
    }
}

impl RadiusConfig {
    fn yaml(&self) -> String {
        let mut text = "radius:\n  servers:\n".to_owned();
        for port in &self.ports {
            let _ = writeln!(
                text,
                "    - {{ address: {}, auth_port: {port}, accounting_port: {}, secret: {RADIUS_SECRET:?} }}",
                addresses::RADIUS.ip(),
                port + 1
            );
        }
        let _ = write!(
            text,
            "  nas_identifier: lab
  nas_address: {nas}
  timeout_ms: 1000
  tries: 2
  dead_s: 5
  accounting: {{ interim_s: {interim} }}
  dynamic_authorization:
    listen: 0.0.0.0:{coa}
    clients:
      - {{ address: {router}, secret: {RADIUS_SECRET:?} }}
{keys}",
            nas = addresses::GATEWAY_CORE,
            interim = self.interim_s,
            coa = addresses::COA.port(),
            router = addresses::ROUTER,
            keys = indented(&self.keys, 2),
        );
        text
    }
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
    /// Whether the subscribers are behind NAT; if not, their addresses are routed.
    pub nat: bool,
    /// Ports of one block, a power of two.
    pub block_size: u16,
    /// Further keys of `nat`, YAML lines as in the file, without indent.
    pub nat_keys: String,
    /// Whether there is a second access port, `access1`, on a TAP device that [`crate::Lab::injector`] makes.
    pub injected_port: bool,
    /// Whether there is a second core port, `core1`, another way to the same router.
    pub second_core: bool,
    /// Whether core ports and subscribers have IPv6, see [`crate::addresses`].
    pub ipv6: bool,
    /// Further keys of access port `access0`, YAML lines as in the file, without indent.
    pub access_keys: String,
    /// Further keys of core port `core0`, likewise.
    pub core_keys: String,
    /// Further keys of `dataplane`, likewise.
    pub dataplane_keys: String,
    /// Further keys of `pppoe`, likewise.
    pub pppoe_keys: String,
    /// Further keys of the address pool, likewise.
    pub pool_keys: String,
    /// Further pools, sections and keys of the file itself.
    pub more: String,
    /// Further entries of the list `pools`, without indent.
    pub more_pools: String,
    /// Authentication protocols offered, `auth.protocols`.
    pub protocols: &'static str,
    /// Who is asked about a subscriber, `auth.backends`.
    pub backends: &'static str,
    /// Further keys of `auth`, likewise.
    pub auth_keys: String,
    /// RADIUS, if there is any. It brings a state directory along.
    pub radius: Option<RadiusConfig>,
    /// MRU offered to clients that ask for more than 1492 (RFC 4638).
    pub mru: u16,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub log_level: &'static str,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            workers: 2,
            users: vec![User::new("alice", "wonderland")],
            echo_interval_s: 5,
            echo_failures: 3,
            padi_per_second_per_mac: 100,
            subscriber_pool: (Ipv4Addr::new(100, 64, 0, 0), 22),
            nat_pool: (Ipv4Addr::new(203, 0, 113, 0), 28),
            nat: true,
            block_size: 512,
            nat_keys: String::new(),
            injected_port: false,
            second_core: false,
            ipv6: false,
            access_keys: String::new(),
            core_keys: String::new(),
            dataplane_keys: String::new(),
            pppoe_keys: String::new(),
            pool_keys: String::new(),
            more: String::new(),
            more_pools: String::new(),
            protocols: "pap",
            backends: "local",
            auth_keys: String::new(),
            radius: None,
            mru: 1492,
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
  mbufs: {mbufs}
  routes: {{ ipv4: 65536, ipv6: 16384 }}
{dataplane_keys}  eal:
    hugepages: {hugepages}
    memory_mib: {MEMORY_MIB}
    file_prefix: {name}
  ports:
    - name: access0
      role: access
      device: net_af_packet0,iface=veth-access0,qpairs={queues},framecnt=4096
      mtu: {access_mtu}
{access_keys}    - name: core0
      role: core
      device: net_af_packet1,iface=veth-core0,qpairs={queues},framecnt=4096
      mtu: 1500
      addresses: [{core}/24{core6}]
      routes:
        - {{ to: default, via: {router} }}
{routes6}{core_keys}{second}{injected}pppoe:
  ac_name: lab
  mru: {mru}
  padi_per_second_per_mac: {padi}
  echo: {{ interval_s: {echo}, failures: {failures} }}
{pppoe_keys}pools:
  - name: subscribers
    ranges: [{pool}/{pool_length}]
    gateway: {gateway}
    dns: [{dns}]
{pool_nat}{pool6}{pool_keys}{more_pools}nat:
  max_mappings: 131072
  pools:
    - name: public
      addresses: [{nat}/{nat_length}]
      block_size: {block_size}
{nat_keys}api:
  listen: {api}
  token_file: {token}
log:
  level: {level}
{more}{radius}auth:
  protocols: [{protocols}]
  backends: [{backends}]
{auth_keys}  users:
",
            workers = workers.join(", "),
            mbufs = 16_384 + 8_192 * u32::from(self.workers.max(2)),
            hugepages = hugepages_free_mib() >= MEMORY_MIB,
            queues = self.workers,
            core = addresses::GATEWAY_CORE,
            router = addresses::ROUTER,
            injected = self.injected_port_yaml(),
            second = self.second_core_yaml(),
            access_mtu = self.mru.max(1492) + 8,
            mru = self.mru,
            access_keys = indented(&self.access_keys, 6),
            core_keys = indented(&self.core_keys, 6),
            dataplane_keys = indented(&self.dataplane_keys, 2),
            pool_nat = if self.nat { "    nat: public\n" } else { "" },
            pppoe_keys = indented(&self.pppoe_keys, 2),
            pool_keys = indented(&self.pool_keys, 4),
            more_pools = indented(&self.more_pools, 2),
            nat_keys = indented(&self.nat_keys, 2),
            more = self.more,
            radius = self.radius.as_ref().map_or(String::new(), |radius| {
                let state = dir.join("state");
                format!("state_directory: {}\n{}", state.display(), radius.yaml())
            }),
            protocols = self.protocols,
            backends = self.backends,
            auth_keys = indented(&self.auth_keys, 2),
            core6 = if self.ipv6 {
                format!(", \"{}/64\"", addresses::GATEWAY_CORE6)
            } else {
                String::new()
            },
            routes6 = if self.ipv6 {
                format!(
                    "        - {{ to: \"::/0\", via: \"{}\" }}\n",
                    addresses::ROUTER6
                )
            } else {
                String::new()
            },
            pool6 = if self.ipv6 {
                self.ipv6_pool_yaml()
            } else {
                String::new()
            },
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

    fn ipv6_pool_yaml(&self) -> String {
        format!(
            "    ipv6:
      prefixes: [\"{}\"]
      delegated: [\"{}\"]
      delegated_length: 56
",
            addresses::PREFIXES6,
            addresses::DELEGATED6,
        )
    }

    fn second_core_yaml(&self) -> String {
        if !self.second_core {
            return String::new();
        }
        let core6 = if self.ipv6 {
            format!(", \"{}/64\"", addresses::GATEWAY_CORE1_6)
        } else {
            String::new()
        };
        format!(
            "    - name: core1
      role: core
      device: net_af_packet3,iface=veth-core1,qpairs={},framecnt=4096
      mtu: 1500
      addresses: [{}/24{core6}]
",
            self.workers,
            addresses::GATEWAY_CORE1,
        )
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
        if self.users.is_empty() {
            text.push_str("    []\n");
        }
        for user in &self.users {
            let policy = user
                .policy
                .as_ref()
                .map_or(String::new(), |policy| format!(", policy: {policy}"));
            let _ = writeln!(
                text,
                "    - {{ name: {:?}, password: {:?}{policy} }}",
                user.name, user.password
            );
        }
    }
}

/// Lines of YAML, each moved right by `by`.
fn indented(lines: &str, by: usize) -> String {
    lines
        .lines()
        .map(|line| format!("{:by$}{line}\n", ""))
        .collect()
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
