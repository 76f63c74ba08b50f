//! Network namespaces and what is inside them: veth pairs, bridges, TAP devices.

use std::fs::File;
use std::os::fd::AsFd;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::cleanup;
use crate::command::{ip, run};
use crate::error::{Context, LabError, Result};

/// A named network namespace, deleted on drop (with every process in it ended).
#[derive(Debug)]
pub struct Namespace {
    name: String,
    kept: bool,
}

impl Namespace {
    /// Creates the namespace, brings its loopback up and turns IPv6 off in it, so that nothing in it speaks unasked.
    ///
    /// # Errors
    /// When the name is taken, without root, or after an interruption.
    pub fn create(name: &str) -> Result<Self> {
        cleanup::refuse_when_interrupted()?;
        ip(&format!("netns add {name}"))?;
        let namespace = Self {
            name: name.to_owned(),
            kept: false,
        };
        ip(&format!("-n {name} link set lo up"))?;
        for which in ["all", "default"] {
            namespace.sysctl(&format!("net/ipv6/conf/{which}/disable_ipv6"), "1")?;
        }
        Ok(namespace)
    }

    /// The name as `ip netns` knows it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Leaves the namespace in place when this value is dropped.
    pub fn keep(&mut self) {
        self.kept = true;
    }

    /// Runs `work` on a thread of its own that has moved into this namespace: sockets it opens belong here.
    ///
    /// # Errors
    /// When the namespace cannot be entered; what `work` returns is handed through.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let path = format!("/run/netns/{}", self.name);
        let outcome = thread::scope(|scope| {
            scope
                .spawn(|| {
                    let file = File::open(&path).context(|| format!("open {path}"))?;
                    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                        .context(|| format!("enter namespace {}", self.name))?;
                    Ok(work())
                })
                .join()
        });
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Sets a sysctl of this namespace; `key` is the path below `/proc/sys`. A key the kernel lacks is left out, so
    /// that a kernel without IPv6 serves as well.
    ///
    /// # Errors
    /// When the kernel refuses the value.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = format!("/proc/sys/{key}");
        self.within(|| match std::fs::write(&path, value) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => other.context(|| format!("write {value} to {path}")),
        })?
    }

    /// Lets the kernel speak IPv6 on this namespace's devices, present and to come; without duplicate address detection,
    /// which would keep an address from use for a second.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn ipv6_on(&self) -> Result<()> {
        for which in ["all", "default"] {
            self.sysctl(&format!("net/ipv6/conf/{which}/accept_dad"), "0")?;
            self.sysctl(&format!("net/ipv6/conf/{which}/disable_ipv6"), "0")?;
        }
        Ok(())
    }

    /// Runs a shell command in this namespace; returns its exit status (-1 when a signal ended it) and all it wrote.
    ///
    /// # Errors
    /// When there is no shell.
    pub fn sh_status(&self, command: &str) -> Result<(i32, String)> {
        let output = self
            .within(|| {
                std::process::Command::new("sh")
                    .args(["-c", &format!("exec 2>&1; {command}")])
                    .stdin(std::process::Stdio::null())
                    .output()
            })?
            .context(|| format!("run `{command}`"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok((output.status.code().unwrap_or(-1), text))
    }

    /// Runs `ip` in this namespace.
    ///
    /// # Errors
    /// When the command fails.
    pub fn ip(&self, arguments: &str) -> Result<String> {
        ip(&format!("-n {} {arguments}", self.name))
    }

    /// Creates a veth pair: `name` here, `peer_name` in `peer`, both up, both with `mtu` octets.
    ///
    /// # Errors
    /// When a command fails.
    pub fn veth(&self, name: &str, peer: &Self, peer_name: &str, mtu: u16) -> Result<()> {
        self.ip(&format!(
            "link add {name} mtu {mtu} type veth peer name {peer_name} mtu {mtu} netns {}",
            peer.name
        ))?;
        for (namespace, device) in [(self, name), (peer, peer_name)] {
            namespace.offloads_off(device)?;
            namespace.ip(&format!("link set {device} up"))?;
        }
        Ok(())
    }

    /// Creates a bridge of `mtu` octets, up, without spanning tree and multicast snooping.
    ///
    /// # Errors
    /// When a command fails.
    pub fn bridge(&self, name: &str, mtu: u16) -> Result<()> {
        self.ip(&format!(
            "link add {name} mtu {mtu} type bridge stp_state 0 mcast_snooping 0 forward_delay 0"
        ))?;
        self.ip(&format!("link set {name} up"))?;
        Ok(())
    }

    /// Makes `device` a port of `bridge`.
    ///
    /// # Errors
    /// When a command fails.
    pub fn bridge_port(&self, bridge: &str, device: &str) -> Result<()> {
        self.ip(&format!("link set {device} master {bridge}"))?;
        Ok(())
    }

    /// Creates a persistent TAP device of `mtu` octets, up.
    ///
    /// # Errors
    /// When a command fails.
    pub fn tap(&self, name: &str, mtu: u16) -> Result<()> {
        self.ip(&format!("tuntap add {name} mode tap"))?;
        self.ip(&format!("link set {name} mtu {mtu} up"))?;
        Ok(())
    }

    /// MAC address of a device.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn mac(&self, device: &str) -> Result<[u8; 6]> {
        let text = self.ip(&format!("-j link show dev {device}"))?;
        let unreadable = || LabError::Unreadable {
            what: format!("the MAC address of {device}"),
            text: text.clone(),
        };
        let links: serde_json::Value = serde_json::from_str(&text).map_err(|_| unreadable())?;
        let address = links[0]["address"].as_str().ok_or_else(unreadable)?;
        let octets: Vec<u8> = address
            .split(':')
            .filter_map(|octet| u8::from_str_radix(octet, 16).ok())
            .collect();
        octets.try_into().map_err(|_| unreadable())
    }

    /// Turns off every offload that lets a half-made packet (partial checksum, oversized segment) cross `device`: the
    /// other end may be a packet socket, which would take it as it is.
    ///
    /// # Errors
    /// When ethtool fails.
    pub fn offloads_off(&self, device: &str) -> Result<()> {
        let mut words = vec!["ip", "netns", "exec", &self.name, "ethtool", "-K", device];
        for offload in ["rx", "tx", "sg", "tso", "gso", "gro", "txvlan", "rxvlan"] {
            words.extend([offload, "off"]);
        }
        run(&words)?;
        Ok(())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if !self.kept {
            cleanup::delete_namespace(&self.name);
        }
    }
}
