//! The packet stages, upstream and downstream, free of DPDK and of unsafe code.
//!
//! ```text
//!  upstream    classify -> decap -> session (-> punt_limit) -> policy -> source_check -> filter -> gateway
//!  (access)             -> destination -> ttl -> route -> policer -> nat44 -> mss -> encap (-> fragment) -> core port
//!  downstream  classify -> destination -> source_check -> nat44 -> session -> policy -> filter -> ttl
//!  (core)               -> policer -> nat44 -> mss -> encap (-> fragment) -> access port
//! ```
//!
//! What a subscriber sends to another one's NAT address turns round between the two (`hairpin`). IPv6 packets are set aside there and go through the stages in `v6`.
//!
//! One file per stage. Nearly all packets are usual ones and do not go through them one by one: `usual` takes them
//! through all that the stages ask for at once, a burst and a pass at a time, and each pass prefetches what the next one
//! reads. Whatever is not as it should be goes through the stages, alone. Every buffer of a burst gets exactly one
//! [`Verdict`], and what is dropped is counted under exactly one reason of the list in `bng-shm`.
//!
//! A [`FastPath`] belongs to one worker. It holds all mutable state of the sessions this worker owns, so it takes no
//! lock and needs no atomic read-modify-write. A frame of another worker's session is only ever looked at
//! ([`Verdict::HandOver`]): of the session, nothing but the entry that control writes and its owner is read before it is
//! known to be this worker's (INV-OWNER-1).

#![forbid(unsafe_code)]

mod buckets;
mod buffer;
mod burst;
mod classify;
pub mod coalesce;
mod decap;
mod destination;
mod downstream;
mod encap;
mod fib;
mod filter;
mod first_fragments;
mod flow;
pub mod fragment;
mod gateway;
mod hairpin;
mod icmp_error;
mod icmp_reply;
mod ip;
pub mod merge;
mod mss;
mod nat44;
mod nat_age;
mod nat_fragment;
mod nat_other;
mod nat_port;
mod nat_table;
mod nat_usage;
#[cfg(feature = "bench")]
mod plain;
mod policy;
mod ports;
mod punt_limit;
mod rate;
mod resolve;
mod route;
pub mod segment;
mod session;
mod source_check;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod ttl;
mod upstream;
mod usual;
mod v6;
mod verdict;
mod vlans;
mod waiting;
mod worker;

pub use buffer::{BURST, L4Verdict, PacketBuf};
pub use fib::{Fib4, Fib6};
pub use first_fragments::FirstFragments;
pub use flow::Direction;
pub use nat_age::NatTimers;
pub use nat_other::OtherProtocols;
pub use nat_usage::NatLimits;
pub use ports::{MAX_ACCESS_PORTS, MAX_PORTS, Port, PortRole};
pub use verdict::{Origin, Punt, Verdict};
pub use vlans::VlanRange;
pub use waiting::{Left, ROOM, WaitingRoom};
pub use worker::{FastPath, Settings};
