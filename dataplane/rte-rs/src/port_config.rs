//! What a port offers and what it is asked for.

use std::fmt;

use crate::flags::{RssTypes, RxOffloads, TxOffloads};

/// Receive or transmit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueKind {
    /// Receive.
    Rx,
    /// Transmit.
    Tx,
}

impl fmt::Display for QueueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QueueKind::Rx => "receive",
            QueueKind::Tx => "transmit",
        })
    }
}

/// What a port is and can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortInfo {
    /// Driver name, for example `net_af_packet` or `mlx5_pci`.
    pub driver: String,
    /// NUMA node of the device, if it has one.
    pub numa_node: Option<u32>,
    /// Index of the kernel interface behind the port, if there is one.
    pub kernel_if_index: Option<u32>,
    /// Receive queues it can have.
    pub max_rx_queues: u16,
    /// Transmit queues it can have.
    pub max_tx_queues: u16,
    /// Smallest MTU it can be configured for; bytes of IP.
    pub min_mtu: u16,
    /// Largest MTU it can be configured for; bytes of IP.
    pub max_mtu: u16,
    /// Smallest receive buffer it accepts, in bytes behind the headroom; 0 for any.
    pub min_rx_buffer: u32,
    /// Entries of its RSS redirection table; 0 for none.
    pub reta_size: u16,
    /// Most segments of a packet to send, if the driver says.
    pub max_tx_segments: Option<u16>,
    /// Receive offloads it offers.
    pub rx_offloads: RxOffloads,
    /// Transmit offloads it offers.
    pub tx_offloads: TxOffloads,
    /// What it can hash for RSS.
    pub rss_types: RssTypes,
}

/// What a port is asked for. Offloads and RSS types are wishes: those the port does not offer are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortConfig {
    /// Receive queues, at least 1. `net_af_packet` spreads frames over all queue pairs of its `qpairs` argument, configured or
    /// not: ask for all of them.
    pub rx_queues: u16,
    /// Transmit queues, at least 1.
    pub tx_queues: u16,
    /// Descriptors per receive queue; the port may round it.
    pub rx_descriptors: u16,
    /// Descriptors per transmit queue; the port may round it.
    pub tx_descriptors: u16,
    /// MTU in bytes of IP; `None` leaves the driver's default. Ports that take tags or PPPoE around 1,500 bytes of IP need 4
    /// for a second tag and 8 for PPPoE on top, within [`PortInfo::max_mtu`].
    pub mtu: Option<u16>,
    /// Receive offloads wished for.
    pub rx_offloads: RxOffloads,
    /// Transmit offloads wished for.
    pub tx_offloads: TxOffloads,
    /// What to hash for RSS; ignored with one receive queue.
    pub rss_types: RssTypes,
    /// Whether to receive frames for other MAC addresses too.
    pub promiscuous: bool,
    /// Whether to receive all multicast frames: routing protocols and neighbour discovery use groups the port does not know.
    pub all_multicast: bool,
    /// Whether what is sent is to come back as received in place of leaving (`lpbk_mode` 1), to try a port out. Drivers without
    /// that mode ignore it or refuse it.
    pub loopback: bool,
}

impl Default for PortConfig {
    /// One queue each way, 1,024 descriptors, no offloads, not promiscuous.
    fn default() -> Self {
        PortConfig {
            rx_queues: 1,
            tx_queues: 1,
            rx_descriptors: 1024,
            tx_descriptors: 1024,
            mtu: None,
            rx_offloads: RxOffloads::NONE,
            tx_offloads: TxOffloads::NONE,
            rss_types: RssTypes::NONE,
            promiscuous: false,
            all_multicast: false,
            loopback: false,
        }
    }
}

/// What a port was configured with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedConfig {
    /// Descriptors per receive queue.
    pub rx_descriptors: u16,
    /// Descriptors per transmit queue.
    pub tx_descriptors: u16,
    /// MTU in bytes of IP.
    pub mtu: u16,
    /// Receive offloads: those wished for and offered.
    pub rx_offloads: RxOffloads,
    /// Transmit offloads: those wished for and offered.
    pub tx_offloads: TxOffloads,
    /// RSS types: those wished for and offered.
    pub rss_types: RssTypes,
}

/// State of a port's link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkStatus {
    /// Whether it is up.
    pub up: bool,
    /// Mbit/s, when known.
    pub speed_mbps: Option<u32>,
    /// Whether it is full duplex.
    pub full_duplex: bool,
}
