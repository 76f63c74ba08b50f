//! Raw frames into an access port, and what comes back.
//!
//! The port's DPDK device is a packet socket on the TAP itself: a bridge in between would drop frames of the kind that is worth
//! injecting (with bridge netfilter in the kernel, every PPPoE frame shorter than its headers).

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use crate::error::{Context, Result};
use crate::namespace::Namespace;
use crate::process::wait_readable;

/// A TAP device held open by this process: what is sent arrives on it as it is.
pub struct Injector {
    device: SyncDevice,
    /// A second descriptor of the same TAP, for polling.
    handle: OwnedFd,
}

impl Injector {
    /// Creates the TAP device `name` in `namespace`, up.
    ///
    /// # Errors
    /// When the device cannot be created.
    pub fn create(namespace: &Namespace, name: &str) -> Result<Self> {
        let device = namespace
            .within(|| {
                DeviceBuilder::new()
                    .name(name)
                    .layer(Layer::L2)
                    .build_sync()
            })?
            .context(|| format!("create TAP {name}"))?;
        device
            .set_nonblocking(true)
            .context(|| format!("make TAP {name} non-blocking"))?;
        let handle = device
            .as_fd()
            .try_clone_to_owned()
            .context(|| format!("watch TAP {name}"))?;
        Ok(Self { device, handle })
    }

    /// Sends one frame, beginning with the destination MAC address, without FCS.
    ///
    /// # Errors
    /// When the kernel takes it only partly or not at all. It refuses frames shorter than an Ethernet header.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        self.device
            .send(frame)
            .context(|| format!("inject a frame of {} octets", frame.len()))?;
        Ok(())
    }

    /// The next frame that reaches the device, or `None` after `limit`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn receive(&self, limit: Duration) -> Result<Option<Vec<u8>>> {
        let end = Instant::now() + limit;
        let mut frame = vec![0u8; 10_000];
        loop {
            match self.device.recv(&mut frame) {
                Ok(length) => {
                    frame.truncate(length);
                    return Ok(Some(frame));
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context(|| "receive from the TAP".to_owned()),
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            wait_readable(&[&self.handle], left)?;
        }
    }
}

impl std::fmt::Debug for Injector {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Injector").finish_non_exhaustive()
    }
}
