//! One measurement: what is sent where, and how the gateway is set up for it.

use serde::{Deserialize, Serialize};

/// The transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Protocol {
    Tcp,
    Udp,
}

/// The port where packets are expensive, and what is behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Way {
    /// The kernel downloads through the TAP twin of a core port.
    Twin,
    /// A subscriber uploads to a machine at the vhost end of a virtio core port.
    Vhost,
}

/// A measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) way: Way,
    pub(crate) protocol: Protocol,
    pub(crate) flows: u16,
    /// Coalescing of this direction and protocol, with the large packets it makes.
    pub(crate) coalescing: bool,
    /// Frames a flow sends at once.
    pub(crate) train: u8,
}
