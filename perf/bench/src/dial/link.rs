//! The way to the access concentrator: a network interface of the kernel, or a DPDK device.

use std::time::Duration;

use anyhow::{Result, bail};
use rustix::io::Errno;

use super::device::Device;
use super::packet_socket::PacketSocket;

/// Frames that wait for room before the emulator stops making new ones.
pub(super) const BACKLOG: usize = 4_096;

/// An open link.
pub(super) struct Link(Kind);

enum Kind {
    Interface(Box<PacketSocket>),
    Device(Box<Device>),
}

/// Whether this names a DPDK device: a PCI address, or a virtual device with its arguments. An interface's name has neither
/// a comma nor a colon.
fn is_device(access: &str) -> bool {
    access.contains(',') || access.contains(':')
}

impl Link {
    /// Opens the interface or device `access`, and the device `core` if the network behind the gateway is ours as well.
    pub(super) fn open(access: &str, core: Option<&str>) -> Result<Self> {
        Ok(Self(if is_device(access) {
            Kind::Device(Box::new(Device::open(access, core)?))
        } else if core.is_some() {
            bail!("--core needs a DPDK device as --access, and {access} is an interface")
        } else {
            Kind::Interface(Box::new(PacketSocket::open(access)?))
        }))
    }

    /// Frames that still wait for room.
    pub(super) fn backlog(&self) -> usize {
        match &self.0 {
            Kind::Interface(socket) => socket.backlog(),
            Kind::Device(device) => device.backlog(),
        }
    }

    /// Queues frames and hands on as many as there is room for.
    pub(super) fn send(&mut self, frames: impl Iterator<Item = Vec<u8>>) {
        match &mut self.0 {
            Kind::Interface(socket) => socket.send(frames),
            Kind::Device(device) => device.send(frames),
        }
    }

    /// Calls `take` for at most `limit` frames that have arrived, or a burst more. Returns how many.
    pub(super) fn receive(&mut self, limit: usize, take: impl FnMut(&[u8])) -> Result<usize> {
        match &mut self.0 {
            Kind::Interface(socket) => socket.receive(limit, take),
            Kind::Device(device) => Ok(device.receive(limit, take)),
        }
    }

    /// Waits until there may be something to do, `limit` at most.
    pub(super) fn wait(&self, limit: Duration) -> Result<()> {
        match &self.0 {
            Kind::Interface(socket) => socket.wait(limit),
            Kind::Device(device) => {
                device.wait(limit);
                Ok(())
            }
        }
    }

    /// Frames dropped before we saw them, for want of room.
    pub(super) fn receive_drops(&mut self) -> Result<u64> {
        match &mut self.0 {
            Kind::Interface(socket) => socket.receive_drops(),
            Kind::Device(device) => device.receive_drops(),
        }
    }

    /// Frames that were too long and were ignored.
    pub(super) fn truncated(&self) -> u64 {
        match &self.0 {
            Kind::Interface(socket) => socket.truncated,
            Kind::Device(_) => 0,
        }
    }

    /// Frames refused for good.
    pub(super) fn send_errors(&self) -> u64 {
        match &self.0 {
            Kind::Interface(socket) => socket.send_errors,
            Kind::Device(_) => 0,
        }
    }

    /// Why a frame was refused, if one was.
    pub(super) fn last_send_error(&self) -> Option<Errno> {
        match &self.0 {
            Kind::Interface(socket) => socket.last_send_error(),
            Kind::Device(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_told_from_an_interface() {
        for device in ["0000:03:00.0", "net_memif0,role=client,socket=/x"] {
            assert!(is_device(device), "{device}");
        }
        for interface in ["eth0", "veth-1", "enp3s0f0.100"] {
            assert!(!is_device(interface), "{interface}");
        }
    }
}
