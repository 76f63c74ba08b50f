//! IPv6: the stages of IPv4, for the packets the IPv4 passes have set aside ([`Stages::set_aside`]).
//!
//! ```text
//!  upstream    classify -> decap -> session (-> control -> punt_limit) -> policy -> source_check -> filter
//!  (access)             -> destination -> hop limit -> route -> size -> policer -> mss -> encap -> core port
//!                                                   \-> (another subscriber's address) -> policer -> downstream
//!  downstream  classify -> destination -> source_check -> session -> policy -> filter -> hop limit -> size
//!  (core)               -> policer -> mss -> encap -> access port
//! ```
//!
//! Extension headers are forwarded untouched, hop-by-hop options included (RFC 8200 section 4.3 leaves that to
//! configuration). Nothing is fragmented: what is too big is answered (RFC 8200 section 5).
//!
//! Traffic between subscribers is delivered here and never shown to the core: a subscriber's prefix is a connected
//! network of ours, and a blackhole route that announces the pool must not swallow it. Such a packet goes through all
//! policies of both sessions. It takes the form of a packet from the core on its way, so that another worker that owns
//! the second session takes it over as one.

mod address;
mod control;
pub(crate) mod downstream;
mod icmp_reply;
mod local;
mod packet;
mod pass;
mod ranges;
mod route;
mod rules;
mod session;
mod source_check;
pub(crate) mod upstream;

pub(crate) use ranges::Ranges6;

use bng_shm::Counter;
use bng_wire::Ipv6Error;

use crate::buffer::BURST;

#[cfg(doc)]
use crate::worker::Stages;

/// The facts of the packets of a burst, filled in place by one pass after the other.
#[derive(Debug)]
pub(crate) struct Facts {
    upstream: Box<[upstream::Frame; BURST]>,
    downstream: Box<[downstream::Arrival; BURST]>,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            upstream: Box::new([upstream::Frame::EMPTY; BURST]),
            downstream: Box::new([downstream::Arrival::EMPTY; BURST]),
        }
    }
}

/// The drop reason of a defect of the header.
const fn reason(error: Ipv6Error) -> Counter {
    match error {
        Ipv6Error::Truncated { .. } | Ipv6Error::PayloadLengthBeyond { .. } => {
            Counter::Ipv6Truncated
        }
        Ipv6Error::Version { .. } => Counter::Ipv6Header,
    }
}
