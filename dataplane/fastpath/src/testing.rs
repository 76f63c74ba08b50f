//! A buffer, a FIB, frames and a small world for tests and benchmarks of the stages.
//!
//! Nothing here runs in a daemon. Builders panic on nonsense, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod buffer;
mod coalesced;
mod conservation;
mod fib;
mod frames;
mod frames_v6;
mod interleaved;
mod l4_frame;
mod recipe;
mod world;

pub use buffer::{TestBuf, TestPool};
pub use coalesced::Received;
pub use fib::NaiveFib;
pub use frames::{
    assert_checksums, echo, ethernet, icmp_error, ipv4, pppoe_discovery, pppoe_session, tcp, udp,
    wrong_checksum,
};
pub use frames_v6::{
    assert_checksums6, echo6, extended, icmpv6, ipv6, tcp6, udp6, wrong_checksum6,
};
pub use interleaved::{Interleaved, interleaved};
pub use l4_frame::L4Frame;
pub use recipe::{Check, Kind, Recipe};
pub use world::{Spec, World};
