//! The lab as a whole: three namespaces, their links, and the processes in them.

use std::net::SocketAddr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use crate::api::Api;
use crate::capture::Capture;
use crate::cleanup::Registration;
use crate::error::{Context, LabError, Result};
use crate::freeradius::FreeRadius;
use crate::gateway::{Daemon, GatewayConfig, INJECT_TAP};
use crate::guest::{GuestKernel, GuestNic, UmlGuest};
use crate::inject::Injector;
use crate::namespace::Namespace;
use crate::process::Process;
use crate::wait::wait_until;

/// Addresses of the lab (RFC 5737 and RFC 6598).
pub mod addresses {
    use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

    /// The gateway on its core port.
    pub const GATEWAY_CORE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
    /// The internet host on the link to the gateway: the gateway's default route.
    pub const ROUTER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
    /// The web server, behind the router.
    pub const WWW: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);
    /// The gateway and the router on the second link between them.
    pub const GATEWAY_CORE1: Ipv4Addr = Ipv4Addr::new(198, 51, 101, 1);
    /// See [`GATEWAY_CORE1`].
    pub const ROUTER1: Ipv4Addr = Ipv4Addr::new(198, 51, 101, 2);
    /// As [`GATEWAY_CORE`], IPv6 (RFC 3849).
    pub const GATEWAY_CORE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, 1);
    /// As [`ROUTER`].
    pub const ROUTER6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, 2);
    /// As [`GATEWAY_CORE1`].
    pub const GATEWAY_CORE1_6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xff, 1, 0, 0, 0, 1);
    /// As [`ROUTER1`].
    pub const ROUTER1_6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xff, 1, 0, 0, 0, 2);
    /// As [`WWW`].
    pub const WWW6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x80, 0, 0, 0, 0, 0x80);
    /// Where subscribers' /64 come from.
    pub const PREFIXES6: &str = "2001:db8:1000::/48";
    /// Where subscribers' delegated /56 come from.
    pub const DELEGATED6: &str = "2001:db8:2000::/40";
    /// REST interface, metrics and health, in the gateway's namespace.
    pub const API: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
    /// The first RADIUS server, on the internet host.
    pub const RADIUS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(ROUTER), 1812);
    /// Where the gateway takes CoA and Disconnect requests.
    pub const COA: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(GATEWAY_CORE), 3799);
}

/// Interface of the subscriber namespace that faces the gateway's access port.
pub const ACCESS_INTERFACE: &str = "access0";
/// Interface of the internet namespace that faces the gateway's core port.
pub const CORE_INTERFACE: &str = "core0";
/// Interface of the subscriber namespace for tools that want a network card of their own (the subscriber emulator).
pub const EMULATOR_INTERFACE: &str = "emu0";

const BRIDGE: &str = "bridge0";
const CLIENT_TAP: &str = "tap0";

/// Largest layer-3 packet of the access network: an RFC 4638 frame (1,508) behind two VLAN tags.
const ACCESS_MTU: u16 = 1516;
/// MTU of the client's card: 1,500 octets inside PPPoE (RFC 4638).
const CLIENT_MTU: u16 = 1508;

/// How long a daemon may take to be ready: EAL touches all of its memory.
const READY_LIMIT: Duration = Duration::from_secs(60);
const END_LIMIT: Duration = Duration::from_secs(30);

const TOKEN: &str = "lab-token-0123456789abcdef";

/// Where the programs are that a lab runs.
#[derive(Debug, Clone)]
pub struct Programs {
    /// Directory of `bng-dataplane`, `bng-controlplane`, `bngctl`, `bng-perf`.
    pub bin_dir: PathBuf,
    /// The client's kernel.
    pub kernel: GuestKernel,
}

impl Programs {
    /// The workspace's own: `BNG_BIN_DIR`, by default `target/release`, and `BNG_UML_DIR`, by default `.lab/uml`.
    #[must_use]
    pub fn of_workspace() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let root = root.canonicalize().unwrap_or(root);
        let from = |variable: &str, default: &str| {
            std::env::var_os(variable).map_or_else(|| root.join(default), PathBuf::from)
        };
        Self {
            bin_dir: from("BNG_BIN_DIR", "target/release"),
            kernel: GuestKernel {
                dir: from("BNG_UML_DIR", ".lab/uml"),
            },
        }
    }

    /// Path of one of our programs.
    ///
    /// # Errors
    /// [`LabError::Missing`] when it is not there: a test must not pass for want of what it tests.
    pub fn find(&self, name: &str) -> Result<PathBuf> {
        let path = self.bin_dir.join(name);
        if path.is_file() {
            return Ok(path);
        }
        Err(LabError::Missing {
            path,
            remedy: "`make build` builds it; BNG_BIN_DIR names another directory",
        })
    }
}

/// A daemon that was started and may not be ready yet.
#[derive(Debug)]
pub struct Launch<'lab> {
    process: &'lab mut Process,
    notify: UnixDatagram,
    /// Where its part of the log begins.
    mark: u64,
}

impl Launch<'_> {
    /// Waits until the daemon says that it is ready, on standard error and to its service manager (sd_notify(3)).
    ///
    /// # Errors
    /// With the end of its log when it ends or does not get ready.
    pub fn wait_ready(self) -> Result<()> {
        let name = self.process.name().to_owned();
        self.process
            .wait_for_log(&format!("{name}: ready"), self.mark, READY_LIMIT)?;
        self.notify
            .set_read_timeout(Some(READY_LIMIT))
            .context(|| "set a time limit".to_owned())?;
        let mut message = [0u8; 4096];
        while let Ok(length) = self.notify.recv(&mut message) {
            if String::from_utf8_lossy(&message[..length])
                .lines()
                .any(|line| line == "READY=1")
            {
                return Ok(());
            }
        }
        Err(self
            .process
            .timeout(&format!("READY=1 from {name}"), READY_LIMIT))
    }

    /// Waits until its log says `text`.
    ///
    /// # Errors
    /// As [`Process::wait_for_log`].
    pub fn wait_for_log(&mut self, text: &str, limit: Duration) -> Result<String> {
        self.process.wait_for_log(text, self.mark, limit)
    }
}

/// A lab. Field order is the order in which it is taken down.
#[derive(Debug)]
pub struct Lab {
    client: Option<UmlGuest>,
    controlplane: Option<Process>,
    dataplane: Option<Process>,
    www: Vec<Process>,
    ipv6: bool,
    programs: Programs,
    subscriber: Namespace,
    gateway: Namespace,
    internet: Namespace,
    registration: Registration,
}

impl Lab {
    /// Creates the namespaces, links and configuration. No process runs yet.
    ///
    /// # Errors
    /// Without root, or when a command fails. What was created until then is removed.
    pub fn create(programs: Programs, config: &GatewayConfig) -> Result<Self> {
        let registration = Registration::new()?;
        let name = registration.name().to_owned();
        let lab = Self {
            client: None,
            controlplane: None,
            dataplane: None,
            www: Vec::new(),
            ipv6: config.ipv6,
            programs,
            subscriber: Namespace::create(&format!("{name}-sub"))?,
            gateway: Namespace::create(&format!("{name}-gw"))?,
            internet: Namespace::create(&format!("{name}-net"))?,
            registration,
        };

        let access = &lab.subscriber;
        access.bridge(BRIDGE, ACCESS_MTU)?;
        access.veth(ACCESS_INTERFACE, &lab.gateway, "veth-access0", ACCESS_MTU)?;
        access.bridge_port(BRIDGE, ACCESS_INTERFACE)?;
        access.veth(EMULATOR_INTERFACE, access, "emu1", ACCESS_MTU)?;
        access.bridge_port(BRIDGE, "emu1")?;
        access.tap(CLIENT_TAP, ACCESS_MTU)?;
        access.bridge_port(BRIDGE, CLIENT_TAP)?;

        // The kernel of the gateway sees the frames of the veth ends, too. They are the dataplane's: it must not answer ARP
        // there for the addresses of the TAP twin, nor take packets for them (no route back over the veth: strict RPF).
        let second = config.second_core.then_some("veth-core1");
        for port in ["veth-access0", "veth-core0"].into_iter().chain(second) {
            if let Some(number) = port.strip_prefix("veth-core") {
                lab.internet
                    .veth(&format!("core{number}"), &lab.gateway, port, 1500)?;
            }
            lab.gateway
                .sysctl(&format!("net/ipv4/conf/{port}/arp_ignore"), "8")?;
            lab.gateway
                .sysctl(&format!("net/ipv4/conf/{port}/rp_filter"), "1")?;
            lab.gateway
                .sysctl(&format!("net/ipv6/conf/{port}/disable_ipv6"), "1")?;
        }

        let internet = &lab.internet;
        internet.ip(&format!(
            "addr add {}/24 dev {CORE_INTERFACE}",
            addresses::ROUTER
        ))?;
        internet.ip(&format!("addr add {}/32 dev lo", addresses::WWW))?;
        let (public, length) = if config.nat {
            config.nat_pool
        } else {
            config.subscriber_pool
        };
        internet.ip(&format!(
            "route add {public}/{length} via {}",
            addresses::GATEWAY_CORE
        ))?;
        if config.second_core {
            internet.ip(&format!("addr add {}/24 dev core1", addresses::ROUTER1))?;
            // What left by one way may come back by the other.
            for device in ["all", CORE_INTERFACE, "core1"] {
                internet.sysctl(&format!("net/ipv4/conf/{device}/rp_filter"), "0")?;
            }
        }
        if config.ipv6 {
            lab.route_ipv6(config.second_core)?;
        }

        lab.write("token", &format!("{TOKEN}\n"))?;
        lab.configure(config)?;
        Ok(lab)
    }

    /// The IPv6 side of the internet host.
    fn route_ipv6(&self, second_core: bool) -> Result<()> {
        let internet = &self.internet;
        internet.ipv6_on()?;
        // Its packet-socket ports stay silent: they were told so one by one.
        self.gateway.sysctl("net/ipv6/conf/all/accept_dad", "0")?;
        self.gateway
            .sysctl("net/ipv6/conf/default/accept_dad", "0")?;
        self.gateway
            .sysctl("net/ipv6/conf/default/disable_ipv6", "0")?;
        internet.ip(&format!(
            "-6 addr add {}/64 dev {CORE_INTERFACE} nodad",
            addresses::ROUTER6
        ))?;
        if second_core {
            internet.ip(&format!(
                "-6 addr add {}/64 dev core1 nodad",
                addresses::ROUTER1_6
            ))?;
        }
        internet.ip(&format!("-6 addr add {}/128 dev lo", addresses::WWW6))?;
        for prefix in [addresses::PREFIXES6, addresses::DELEGATED6] {
            internet.ip(&format!(
                "-6 route add {prefix} via {}",
                addresses::GATEWAY_CORE6
            ))?;
        }
        Ok(())
    }

    /// Writes the gateway's configuration anew; daemons read it when they start.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn configure(&self, config: &GatewayConfig) -> Result<()> {
        self.write(
            "gateway.yaml",
            &config.yaml(self.registration.name(), self.dir()),
        )?;
        Ok(())
    }

    /// Writes a file, mode 0600, into the lab's directory and returns its path.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        let path = self.dir().join(name);
        std::fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    /// Name of the lab: what its namespaces begin with.
    #[must_use]
    pub fn name(&self) -> &str {
        self.registration.name()
    }

    /// Directory of the lab's configuration, logs and captures.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.registration.work_dir()
    }

    /// The gateway's configuration file.
    #[must_use]
    pub fn config_file(&self) -> PathBuf {
        self.dir().join("gateway.yaml")
    }

    /// The file with the bearer token of REST.
    #[must_use]
    pub fn token_file(&self) -> PathBuf {
        self.dir().join("token")
    }

    /// Where the programs are.
    #[must_use]
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// The subscriber's side.
    #[must_use]
    pub fn subscriber(&self) -> &Namespace {
        &self.subscriber
    }

    /// Where the daemons run.
    #[must_use]
    pub fn gateway(&self) -> &Namespace {
        &self.gateway
    }

    /// The other side of the core port.
    #[must_use]
    pub fn internet(&self) -> &Namespace {
        &self.internet
    }

    /// Starts the web server; returns when it listens.
    ///
    /// # Errors
    /// When the program `bng-lab` is missing or does not start.
    pub fn start_www(&mut self) -> Result<()> {
        let mut servers = vec![("www", format!("{}:80", addresses::WWW))];
        if self.ipv6 {
            servers.push(("www6", format!("[{}]:80", addresses::WWW6)));
        }
        for (name, listen) in servers {
            let mut command = Command::new(self.programs.find("bng-lab")?);
            command.args(["www", "--listen", &listen]);
            let mut process = Process::start(&self.internet, self.dir(), name, command)?;
            process.wait_for_log("listening", 0, READY_LIMIT)?;
            self.www.push(process);
        }
        Ok(())
    }

    /// Starts a FreeRADIUS on the internet host, [`addresses::RADIUS`] with another `port`; see [`FreeRadius::start`].
    ///
    /// # Errors
    /// As [`FreeRadius::start`].
    pub fn start_freeradius(&self, name: &str, port: u16, users: &str) -> Result<FreeRadius> {
        let address = SocketAddr::new(addresses::RADIUS.ip(), port);
        FreeRadius::start(&self.internet, self.dir(), name, address, users)
    }

    /// Starts a daemon, or starts it again; returns when it says that it is ready, both on standard error and to its service
    /// manager.
    ///
    /// # Errors
    /// With the end of its log when it ends or does not get ready.
    pub fn start(&mut self, daemon: Daemon) -> Result<()> {
        self.launch(daemon)?.wait_ready()
    }

    /// Starts a daemon without waiting for anything; [`Launch::wait_ready`] does.
    ///
    /// # Errors
    /// When the program is missing.
    pub fn launch(&mut self, daemon: Daemon) -> Result<Launch<'_>> {
        let name = daemon.program();
        let mut command = Command::new(self.programs.find(name)?);
        command.arg("--config").arg(self.config_file());
        let path = self.dir().join(format!("{name}.notify"));
        // Left from its last start.
        let _ = std::fs::remove_file(&path);
        let notify = UnixDatagram::bind(&path).context(|| format!("create {}", path.display()))?;
        command.env("NOTIFY_SOCKET", &path);
        let mark = self
            .dir()
            .join(format!("{name}.log"))
            .metadata()
            .map_or(0, |meta| meta.len());
        let process = Process::start(&self.gateway, self.dir(), name, command)?;
        Ok(Launch {
            process: self.slot(daemon).insert(process),
            notify,
            mark,
        })
    }

    /// A running daemon.
    ///
    /// # Errors
    /// When it was not started.
    pub fn daemon(&mut self, daemon: Daemon) -> Result<&mut Process> {
        self.slot(daemon).as_mut().ok_or_else(|| LabError::Ended {
            process: daemon.program().to_owned(),
            status: "not started".to_owned(),
            what: "anything".to_owned(),
            tail: String::new(),
        })
    }

    /// SIGTERM to a daemon, and waits for its end.
    ///
    /// # Errors
    /// When it does not end.
    pub fn terminate(&mut self, daemon: Daemon) -> Result<ExitStatus> {
        self.daemon(daemon)?.terminate(END_LIMIT)
    }

    /// SIGKILL to a daemon, and waits for its end.
    ///
    /// # Errors
    /// When it was not started.
    pub fn kill(&mut self, daemon: Daemon) -> Result<ExitStatus> {
        self.daemon(daemon)?.kill()
    }

    fn slot(&mut self, daemon: Daemon) -> &mut Option<Process> {
        match daemon {
            Daemon::Dataplane => &mut self.dataplane,
            Daemon::Controlplane => &mut self.controlplane,
        }
    }

    /// Boots the Linux client on the access network.
    ///
    /// # Errors
    /// As [`UmlGuest::boot`].
    pub fn boot_client(&mut self) -> Result<&mut UmlGuest> {
        let nic = GuestNic {
            tap: CLIENT_TAP.to_owned(),
            mac: "02:00:00:00:00:11".to_owned(),
            mtu: CLIENT_MTU,
        };
        let guest = UmlGuest::boot(
            &self.subscriber,
            self.registration.work_dir(),
            "client",
            &self.programs.kernel,
            &[nic],
        )?;
        Ok(self.client.insert(guest))
    }

    /// Starts a DHCPv6 client (wide-dhcpv6-client) in the booted client, with the configuration `file` there, on `interface`; it
    /// writes to `/run/dhcp6c.log`; SIGTERM to the process in `/var/run/dhcp6c.pid` has it release what it holds, then end.
    ///
    /// # Errors
    /// [`LabError::Missing`] when `scripts/setup test` did not fetch it.
    pub fn start_dhcp6c(&mut self, file: &str, interface: &str) -> Result<()> {
        let program = self.programs.kernel.dhcp6c()?;
        let libraries = self.programs.kernel.dir.join("usr/lib/x86_64-linux-gnu");
        // Where it keeps its identifier there is nothing to be written.
        let command = format!(
            "mountpoint -q /var/lib || mount -t tmpfs tmpfs /var/lib && mkdir -p /var/lib/dhcpv6 && \
             LD_LIBRARY_PATH={} {} -f -D -c {file} {interface} >/run/dhcp6c.log 2>&1 &",
            libraries.display(),
            program.display()
        );
        self.client()?.sh(&command, READY_LIMIT)?;
        Ok(())
    }

    /// The client, once booted.
    ///
    /// # Errors
    /// When it was not booted.
    pub fn client(&mut self) -> Result<&mut UmlGuest> {
        self.client
            .as_mut()
            .ok_or_else(|| LabError::GuestProtocol("not booted".to_owned()))
    }

    /// A client of the gateway's REST interface.
    #[must_use]
    pub fn api(&self) -> Api<'_> {
        Api::new(&self.gateway, &format!("http://{}", addresses::API), TOKEN)
    }

    /// Runs one of our programs, or another, in a namespace of the lab to its end and returns its standard output.
    ///
    /// # Errors
    /// When it is missing or ends with another status than 0.
    pub fn run_in(
        &self,
        namespace: &Namespace,
        program: &str,
        arguments: &[&str],
    ) -> Result<String> {
        let program = self.programs.find(program)?;
        let output = namespace
            .within(|| Command::new(&program).args(arguments).output())?
            .context(|| format!("run {}", program.display()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(LabError::Command {
            command: format!("{} {}", program.display(), arguments.join(" ")),
            status: output.status,
            output: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }

    /// Runs `bngctl` in the gateway's namespace and returns what it prints.
    ///
    /// # Errors
    /// As [`Lab::run_in`].
    pub fn bngctl(&self, arguments: &[&str]) -> Result<String> {
        let access = self.bngctl_access();
        let access = access.iter().map(String::as_str);
        let all: Vec<&str> = access.chain(arguments.iter().copied()).collect();
        self.run_in(&self.gateway, "bngctl", &all)
    }

    /// Starts `bngctl` there and leaves it running; its output is in `DIR/NAME.out`, see [`Process::output`].
    ///
    /// # Errors
    /// When it is missing or does not start.
    pub fn start_bngctl(&self, name: &str, arguments: &[&str]) -> Result<Process> {
        let mut command = Command::new(self.programs.find("bngctl")?);
        command.args(self.bngctl_access()).args(arguments);
        Process::start(&self.gateway, self.dir(), name, command)
    }

    fn bngctl_access(&self) -> [String; 4] {
        let url = format!("http://{}", addresses::API);
        let token = self.token_file().to_string_lossy().into_owned();
        ["--url".to_owned(), url, "--token-file".to_owned(), token]
    }

    /// Waits until `count` more frames have reached the internet host, whoever sent them.
    ///
    /// # Errors
    /// [`LabError::Timeout`] after `limit`.
    pub fn wait_for_core_packets(&self, count: u64, limit: Duration) -> Result<()> {
        let goal = self.core_packets()? + count;
        wait_until(
            &format!("{count} more frames on the core side"),
            limit,
            || self.core_packets(),
            |packets| *packets >= goal,
        )?;
        Ok(())
    }

    fn core_packets(&self) -> Result<u64> {
        let text = self
            .internet
            .ip(&format!("-j -s link show dev {CORE_INTERFACE}"))?;
        let links: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        links[0]["stats64"]["rx"]["packets"]
            .as_u64()
            .ok_or_else(|| LabError::Unreadable {
                what: format!("the counters of {CORE_INTERFACE}"),
                text,
            })
    }

    /// Directory of the two daemons' shared memory.
    #[must_use]
    pub fn shared_memory(&self) -> PathBuf {
        Path::new("/dev/shm").join(self.name())
    }

    /// Captures the access side.
    ///
    /// # Errors
    /// When the capture does not start.
    pub fn capture_access(&self) -> Result<Capture> {
        Capture::start(&self.subscriber, ACCESS_INTERFACE, self.dir(), "access")
    }

    /// Captures the core side.
    ///
    /// # Errors
    /// When the capture does not start.
    pub fn capture_core(&self) -> Result<Capture> {
        Capture::start(&self.internet, CORE_INTERFACE, self.dir(), "core")
    }

    /// The outer end of access port `access1`, for raw frames. To be made before the dataplane starts, with
    /// [`GatewayConfig::injected_port`].
    ///
    /// # Errors
    /// When the device cannot be created.
    pub fn injector(&self) -> Result<Injector> {
        Injector::create(&self.gateway, INJECT_TAP)
    }

    /// MAC address of access port `access1`.
    ///
    /// # Errors
    /// When [`Lab::injector`] was not called.
    pub fn injected_port_mac(&self) -> Result<[u8; 6]> {
        self.gateway.mac(INJECT_TAP)
    }

    /// The last lines of every log of the lab, for a person to read after a failure.
    #[must_use]
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for name in ["bng-dataplane", "bng-controlplane", "www", "client/console"] {
            let path = self.dir().join(format!("{name}.log"));
            if path.exists() {
                text.push_str(&format!(
                    "---- {name} ----\n{}\n",
                    crate::error::log_tail(&path, 40)
                ));
            }
        }
        text
    }

    /// Leaves everything up; `bng-lab down` ends it.
    ///
    /// # Errors
    /// When this cannot be written down.
    pub fn keep(mut self) -> Result<()> {
        self.registration.keep()?;
        let daemons = [&mut self.controlplane, &mut self.dataplane];
        for process in daemons.into_iter().flatten().chain(&mut self.www) {
            process.keep();
        }
        if let Some(client) = &mut self.client {
            client.keep();
        }
        for namespace in [&mut self.subscriber, &mut self.gateway, &mut self.internet] {
            namespace.keep();
        }
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // A failing test shows what the daemons had to say.
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
    }
}
