//! A real Linux router as one ordinary process: User-Mode Linux with kernel PPPoE and pppd, driven over its serial line.
//!
//! `make setup` puts the kernel below `.lab/`; the machine's own `/` is the guest's read-only root, so there is no image.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, mkfifoat};

use crate::error::{Context, LabError, Result};
use crate::namespace::Namespace;
use crate::process::{Process, wait_readable};

const INIT: &str = include_str!("../guest/init.sh");
const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// Memory of a guest, enough for pppd, curl and socket buffers.
const MEMORY_MIB: u32 = 192;

/// Where the guest's kernel is.
#[derive(Debug, Clone)]
pub struct GuestKernel {
    /// The unpacked package `user-mode-linux`, with `xstate-shim.so` beside its `usr`; for tests, that of a DHCPv6 client, too.
    pub dir: PathBuf,
}

impl GuestKernel {
    fn program(&self) -> Result<PathBuf> {
        existing(self.dir.join("usr/bin/linux.uml"))
    }

    pub(crate) fn dhcp6c(&self) -> Result<PathBuf> {
        let remedy = "`scripts/setup test` fetches the client's DHCPv6 client";
        or_remedy(self.dir.join("usr/sbin/dhcp6c"), remedy)
    }

    fn shim(&self) -> Result<PathBuf> {
        existing(self.dir.join("xstate-shim.so"))
    }

    /// The one directory of modules in the package, named after the kernel's version.
    fn modules(&self) -> Result<PathBuf> {
        let parent = existing(self.dir.join("usr/lib/uml/modules"))?;
        let mut entries =
            std::fs::read_dir(&parent).context(|| format!("read {}", parent.display()))?;
        match entries.next() {
            Some(entry) => Ok(entry
                .context(|| format!("read {}", parent.display()))?
                .path()),
            None => existing(parent.join("6.1")),
        }
    }
}

fn existing(path: PathBuf) -> Result<PathBuf> {
    or_remedy(path, "`make setup` fetches the client's kernel")
}

fn or_remedy(path: PathBuf, remedy: &'static str) -> Result<PathBuf> {
    if path.exists() {
        return Ok(path);
    }
    Err(LabError::Missing { path, remedy })
}

/// One network card of a guest: `vecN` inside, a TAP device of the namespace outside.
#[derive(Debug, Clone)]
pub struct GuestNic {
    /// The TAP device.
    pub tap: String,
    /// MAC address as `02:00:00:00:00:01`.
    pub mac: String,
    /// MTU inside the guest, at most the TAP's; the guest cannot raise it later.
    pub mtu: u16,
}

/// What a link got when it came up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkUp {
    /// Interface in the guest, `ppp0`.
    pub interface: String,
    /// Address IPCP gave to the client.
    pub local: String,
    /// Address of the gateway's side.
    pub peer: String,
    /// DNS servers IPCP gave.
    pub dns: Vec<String>,
}

/// How pppd ends, as far as tests care; pppd(8), "EXIT STATUS".
pub mod pppd_status {
    /// The link was ended by SIGTERM to pppd.
    pub const HUNG_UP_HERE: i32 = 5;
    /// LCP or authentication came to no agreement.
    pub const NEGOTIATION_FAILED: i32 = 10;
    /// PPPoE discovery got no answer, or was given up.
    pub const NO_ANSWER: i32 = 8;
    /// The peer does not answer Echo-Requests.
    pub const PEER_DEAD: i32 = 15;
    /// The modem hung up: the peer sent PADT or ended LCP.
    pub const ENDED_BY_PEER: i32 = 16;
    /// The peer refused the password.
    pub const AUTH_FAILED: i32 = 19;
}

/// A running guest. On drop its process group is killed: the guest's own processes are processes of the machine, too.
#[derive(Debug)]
pub struct UmlGuest {
    process: Option<Process>,
    channel: Channel,
}

impl UmlGuest {
    /// Boots a guest in `namespace` and waits until it takes commands. Its files are in `DIR/NAME/`.
    ///
    /// # Errors
    /// When the kernel is missing ([`LabError::Missing`]) or does not come up.
    pub fn boot(
        namespace: &Namespace,
        dir: &Path,
        name: &str,
        kernel: &GuestKernel,
        nics: &[GuestNic],
    ) -> Result<Self> {
        let own = dir.join(name);
        std::fs::create_dir_all(&own).context(|| format!("create {}", own.display()))?;
        let init = own.join("init.sh");
        OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o755)
            .open(&init)
            .and_then(|mut file| file.write_all(INIT.as_bytes()))
            .context(|| format!("write {}", init.display()))?;
        // FIFOs, not pipes: the guest opens them in both directions, so a kept guest outlives the program that booted it and
        // takes commands from another one.
        for fifo in ["in", "out"] {
            let path = own.join(fifo);
            mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR)
                .context(|| format!("create {}", path.display()))?;
        }

        let mut command = Command::new(kernel.program()?);
        command
            .stdin(both_ways(&own.join("in"))?)
            .env("LD_PRELOAD", kernel.shim()?)
            // The guest's memory is a file there, executed by its processes.
            .env("TMPDIR", "/dev/shm")
            .args([
                "root=/dev/root",
                "rootfstype=hostfs",
                "rootflags=/",
                "ro",
                "quiet",
            ])
            .args([
                "console=tty0",
                "con=null",
                "con0=null,fd:2",
                "ssl=null",
                "ssl0=fd:0,fd:1",
            ])
            .arg(format!("mem={MEMORY_MIB}M"))
            .arg(format!("init={}", init.display()))
            .arg(format!("LAB_MODULES={}", kernel.modules()?.display()))
            .arg(format!("uml_dir={}/", own.display()))
            .arg("umid=guest");
        for (index, nic) in nics.iter().enumerate() {
            command.arg(format!(
                "vec{index}:transport=tap,ifname={},mac={},mtu={},depth=64",
                nic.tap, nic.mac, nic.mtu
            ));
        }
        let channel = Channel::open(&own)?;
        let process = Process::start_with_stdout(
            namespace,
            &own,
            "console",
            command,
            both_ways(&own.join("out"))?.into(),
        )?;
        let mut guest = Self {
            process: Some(process),
            channel,
        };
        let ready = guest.line(BOOT_LIMIT, "start of the guest")?;
        if ready.starts_with(":ready ") {
            return Ok(guest);
        }
        Err(LabError::GuestProtocol(ready))
    }

    /// Takes over a guest that was kept by another process, by its directory.
    ///
    /// # Errors
    /// When there is none.
    pub fn attach(dir: &Path) -> Result<Self> {
        Ok(Self {
            process: None,
            channel: Channel::open(dir)?,
        })
    }

    /// Lets the guest go on when this value is dropped.
    pub fn keep(&mut self) {
        if let Some(process) = &mut self.process {
            process.keep();
        }
    }

    /// Runs a shell command, one line, in the guest and returns its output.
    ///
    /// # Errors
    /// [`LabError::GuestCommand`] when it ends with another status than 0, [`LabError::Timeout`] after `limit`.
    pub fn sh(&mut self, command: &str, limit: Duration) -> Result<String> {
        match self.sh_status(command, limit)? {
            (0, output) => Ok(output),
            (status, output) => Err(LabError::GuestCommand {
                command: command.to_owned(),
                status,
                output,
            }),
        }
    }

    /// Runs a shell command in the guest and returns its exit status and output.
    ///
    /// # Errors
    /// [`LabError::Timeout`] after `limit`; [`LabError::Ended`] when the guest dies.
    pub fn sh_status(&mut self, command: &str, limit: Duration) -> Result<(i32, String)> {
        // In a subshell, so that `cd` and `exit` stay there.
        self.call(&format!("( {command} )"), limit)
    }

    /// Brings link `link` up over `vec0`, authenticating as `user`; `options` are further pppd options.
    ///
    /// # Errors
    /// [`LabError::Link`] when pppd ends instead ("exit 19": password refused), [`LabError::Timeout`] after `limit`.
    pub fn dial(
        &mut self,
        link: &str,
        user: &str,
        password: &str,
        options: &str,
        limit: Duration,
    ) -> Result<LinkUp> {
        let event = self.dial_event(link, user, password, options, limit)?;
        match event.split_ascii_whitespace().collect::<Vec<_>>()[..] {
            ["up", interface, local, peer, ref dns @ ..] => Ok(LinkUp {
                interface: interface.to_owned(),
                local: local.to_owned(),
                peer: peer.to_owned(),
                dns: dns
                    .iter()
                    .filter(|d| **d != "-")
                    .map(|&d| d.to_owned())
                    .collect(),
            }),
            _ => Err(self.link_error(link, "an up link", event)),
        }
    }

    /// Like [`UmlGuest::dial`], over another interface of the guest (`vec0.100`).
    ///
    /// # Errors
    /// As [`UmlGuest::dial`].
    pub fn dial_over(
        &mut self,
        interface: &str,
        link: &str,
        user: &str,
        password: &str,
        options: &str,
        limit: Duration,
    ) -> Result<LinkUp> {
        let options = format!("nic-{interface} {options}");
        self.dial(link, user, password, &options, limit)
    }

    /// Like [`UmlGuest::dial`], but expects pppd to end without an up link, and returns its exit status.
    ///
    /// # Errors
    /// [`LabError::Link`] when the link comes up.
    pub fn dial_refused(
        &mut self,
        link: &str,
        user: &str,
        password: &str,
        options: &str,
        limit: Duration,
    ) -> Result<i32> {
        let event = self.dial_event(link, user, password, options, limit)?;
        self.exit_status(link, event)
    }

    /// As [`UmlGuest::dial_refused`], over another interface of the guest.
    ///
    /// # Errors
    /// As [`UmlGuest::dial_refused`].
    pub fn dial_refused_over(
        &mut self,
        interface: &str,
        link: &str,
        user: &str,
        password: &str,
        limit: Duration,
    ) -> Result<i32> {
        let options = format!("nic-{interface}");
        self.dial_refused(link, user, password, &options, limit)
    }

    /// Waits until pppd of link `link` ends, and returns its exit status, see [`pppd_status`].
    ///
    /// # Errors
    /// [`LabError::Timeout`] after `limit`.
    pub fn wait_link_end(&mut self, link: &str, limit: Duration) -> Result<i32> {
        let event = self.link_event(link, limit)?;
        self.exit_status(link, event)
    }

    /// Ends link `link` from the client's side and waits for the end.
    ///
    /// # Errors
    /// [`LabError::Timeout`] after `limit`.
    pub fn hang_up(&mut self, link: &str, limit: Duration) -> Result<i32> {
        self.expect_ok(&format!("hang_up {link}"), limit)?;
        self.wait_link_end(link, limit)
    }

    /// Kills pppd of link `link` (SIGKILL) and waits for that: no Terminate-Request and no PADT tell the gateway.
    ///
    /// # Errors
    /// [`LabError::Timeout`] after `limit`.
    pub fn vanish(&mut self, link: &str, limit: Duration) -> Result<()> {
        self.expect_ok(&format!("vanish {link}"), limit)?;
        self.wait_link_end(link, limit)?;
        Ok(())
    }

    /// What pppd of link `link` has written so far.
    #[must_use]
    pub fn pppd_log(&mut self, link: &str) -> String {
        let limit = Duration::from_secs(10);
        self.call(&format!("cat /run/link/{link}.log"), limit)
            .map_or_else(|error| error.to_string(), |(_, text)| text)
    }

    /// Turns the guest off.
    pub fn close(&mut self) {
        let limit = Duration::from_secs(10);
        if let Some(process) = &mut self.process
            && self.channel.send("off busybox poweroff -f").is_ok()
        {
            let _ = process.wait(limit);
        }
    }

    fn dial_event(
        &mut self,
        link: &str,
        user: &str,
        password: &str,
        options: &str,
        limit: Duration,
    ) -> Result<String> {
        self.expect_ok(
            &format!(
                "dial {link} vec0 user {} password {} usepeerdns defaultroute {options}",
                quoted(user),
                quoted(password)
            ),
            Duration::from_secs(60),
        )?;
        self.link_event(link, limit)
    }

    fn link_event(&mut self, link: &str, limit: Duration) -> Result<String> {
        let seconds = limit.as_secs().max(1);
        // The guest watches the clock; our own limit only catches a guest that hangs.
        match self.call(
            &format!("await {link} {seconds}"),
            limit + Duration::from_secs(30),
        )? {
            (0, event) => Ok(event.trim().to_owned()),
            _ => Err(LabError::Timeout {
                what: format!("news of link {link}"),
                after: limit,
                tail: self.pppd_log(link),
            }),
        }
    }

    fn exit_status(&mut self, link: &str, event: String) -> Result<i32> {
        match event
            .strip_prefix("exit ")
            .and_then(|status| status.parse().ok())
        {
            Some(status) => Ok(status),
            None => Err(self.link_error(link, "the end of pppd", event)),
        }
    }

    fn link_error(&mut self, link: &str, expected: &'static str, event: String) -> LabError {
        LabError::Link {
            link: link.to_owned(),
            expected,
            event,
            log: self.pppd_log(link),
        }
    }

    fn expect_ok(&mut self, command: &str, limit: Duration) -> Result<()> {
        match self.call(command, limit)? {
            (0, _) => Ok(()),
            (status, output) => Err(LabError::GuestCommand {
                command: command.to_owned(),
                status,
                output,
            }),
        }
    }

    /// Sends one line for the guest's shell and waits for the answer to it.
    fn call(&mut self, command: &str, limit: Duration) -> Result<(i32, String)> {
        let end = Instant::now() + limit;
        let id = self.channel.next_id();
        if command.contains('\n') {
            return Err(LabError::GuestProtocol(format!(
                "a command of several lines: {command}"
            )));
        }
        self.channel.send(&format!("{id} {command}"))?;
        loop {
            let header = self.line(end.saturating_duration_since(Instant::now()), command)?;
            let fields: Vec<&str> = header.split(' ').collect();
            let (Some(answered), Some(status), Some(length)) = (
                fields.first().and_then(|word| word.strip_prefix(':')),
                fields.get(1).and_then(|word| word.parse::<i32>().ok()),
                fields.get(2).and_then(|word| word.parse::<usize>().ok()),
            ) else {
                return Err(LabError::GuestProtocol(header));
            };
            let bytes = self.bytes(
                length,
                end.saturating_duration_since(Instant::now()),
                command,
            )?;
            // An answer to an earlier command, given up on after its time limit, is passed over.
            if answered == id {
                return Ok((status, String::from_utf8_lossy(&bytes).into_owned()));
            }
        }
    }

    fn line(&mut self, limit: Duration, what: &str) -> Result<String> {
        let end = Instant::now() + limit;
        loop {
            if let Some(length) = self.channel.received.iter().position(|&byte| byte == b'\n') {
                let bytes: Vec<u8> = self.channel.received.drain(..=length).collect();
                return Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned());
            }
            self.receive(end, limit, what)?;
        }
    }

    fn bytes(&mut self, count: usize, limit: Duration, what: &str) -> Result<Vec<u8>> {
        let end = Instant::now() + limit;
        while self.channel.received.len() < count {
            self.receive(end, limit, what)?;
        }
        Ok(self.channel.received.drain(..count).collect())
    }

    fn receive(&mut self, end: Instant, limit: Duration, what: &str) -> Result<()> {
        if self.channel.read_available()? {
            return Ok(());
        }
        let left = end.saturating_duration_since(Instant::now());
        let Some(process) = &mut self.process else {
            if left.is_zero() {
                return Err(LabError::Timeout {
                    what: what.to_owned(),
                    after: limit,
                    tail: String::new(),
                });
            }
            wait_readable(&[&self.channel.from_guest], left)?;
            return Ok(());
        };
        if left.is_zero() {
            return Err(process.timeout(what, limit));
        }
        if let Some(status) = process.try_status()? {
            return Err(process.ended(status, what));
        }
        wait_readable(&[&self.channel.from_guest, process.handle()], left)?;
        Ok(())
    }
}

/// The two FIFOs of a guest's serial line.
#[derive(Debug)]
struct Channel {
    to_guest: File,
    from_guest: OwnedFd,
    received: VecDeque<u8>,
    sequence: u64,
}

impl Channel {
    fn open(dir: &Path) -> Result<Self> {
        let to_guest = File::from(both_ways(&dir.join("in"))?);
        let out = dir.join("out");
        let from_guest = rustix::fs::open(
            &out,
            OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .context(|| format!("open {}", out.display()))?;
        Ok(Self {
            to_guest,
            from_guest,
            received: VecDeque::new(),
            sequence: 0,
        })
    }

    /// Ids differ between processes that talk to the same guest one after the other.
    fn next_id(&mut self) -> String {
        self.sequence += 1;
        format!("{}.{}", std::process::id(), self.sequence)
    }

    fn send(&mut self, line: &str) -> Result<()> {
        self.to_guest
            .write_all(format!("{line}\n").as_bytes())
            .context(|| "write to the guest".to_owned())
    }

    /// Takes what is there; false when nothing is.
    fn read_available(&mut self) -> Result<bool> {
        let mut buffer = [0u8; 16384];
        match rustix::io::read(&self.from_guest, &mut buffer) {
            Ok(count) => {
                self.received.extend(&buffer[..count]);
                Ok(count > 0)
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error).context(|| "read from the guest".to_owned()),
        }
    }
}

fn both_ways(fifo: &Path) -> Result<OwnedFd> {
    rustix::fs::open(fifo, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .context(|| format!("open {}", fifo.display()))
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
