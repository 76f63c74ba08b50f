//! Receive and transmit queues: the packet path.

use std::sync::Arc;

use crate::burst::{Burst, fill_behind, take_front};
use crate::port::PortShared;

/// The receive side of one queue of a started port. There is one per port and queue, so that one thread polls it; it can be
/// sent to that thread.
#[derive(Debug)]
pub struct RxQueue {
    port: u16,
    queue: u16,
    // Keeps the port: it does not stop while queue handles exist.
    _shared: Arc<PortShared>,
}

/// The transmit side of one queue of a started port; as unique as [`RxQueue`].
#[derive(Debug)]
pub struct TxQueue {
    port: u16,
    queue: u16,
    _shared: Arc<PortShared>,
}

impl RxQueue {
    pub(crate) fn new(shared: &Arc<PortShared>, queue: u16) -> Self {
        RxQueue {
            port: shared.id(),
            queue,
            _shared: Arc::clone(shared),
        }
    }

    /// Port number, as in [`Mbuf::port`](crate::Mbuf::port).
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Queue number.
    #[must_use]
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Appends received packets to `burst`, as many as it has room for; never waits. Returns how many.
    ///
    /// Some drivers receive nothing into a room of fewer than 4, and vector paths work in steps of 4 or 8: give an empty
    /// burst of 32 or more.
    #[inline]
    pub fn burst<const N: usize>(&mut self, burst: &mut Burst<N>) -> usize {
        fill_behind(burst, |mbufs, room| {
            let room = u16::try_from(room).unwrap_or(u16::MAX);
            // SAFETY: the port is started and has this queue (both as long as this handle exists), nobody else polls it, and
            // `mbufs` has room for `room` pointers.
            usize::from(unsafe { dpdk_sys::shim_rx_burst(self.port, self.queue, mbufs, room) })
        })
    }
}

impl TxQueue {
    pub(crate) fn new(shared: &Arc<PortShared>, queue: u16) -> Self {
        TxQueue {
            port: shared.id(),
            queue,
            _shared: Arc::clone(shared),
        }
    }

    /// Port number.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Queue number.
    #[must_use]
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Makes the checksum fields of packets with transmit offloads what the driver wants to find there, from the front of
    /// `burst` on (`rte_eth_tx_prepare`). Returns for how many that is done; if not for all, the driver cannot send the next
    /// one, and this can be called again without it.
    #[inline]
    pub fn prepare<const N: usize>(&mut self, burst: &mut Burst<N>) -> usize {
        let held = u16::try_from(burst.len()).unwrap_or(u16::MAX);
        let mbufs = burst.as_mut_ptr().cast::<*mut dpdk_sys::rte_mbuf>();
        // SAFETY: as for `burst`; `held` owned packets, which stay ours. Drivers may put other ones in their places only for
        // tags to insert (`TX_VLAN`), and then it is those that are ours.
        usize::from(unsafe { dpdk_sys::shim_tx_prepare(self.port, self.queue, mbufs, held) })
    }

    /// Sends packets from the front of `burst`; what the device does not take stays there, in order. Returns how many it
    /// took, which is not yet how many left: kernel-backed drivers count their own drops.
    #[inline]
    pub fn burst<const N: usize>(&mut self, burst: &mut Burst<N>) -> usize {
        if burst.is_empty() {
            return 0;
        }
        take_front(burst, |mbufs, held| {
            let held = u16::try_from(held).unwrap_or(u16::MAX);
            // SAFETY: as for `RxQueue::burst`; DPDK owns the mbufs it reports as sent.
            usize::from(unsafe { dpdk_sys::shim_tx_burst(self.port, self.queue, mbufs, held) })
        })
    }
}
