//! Subscriber authentication and address pools, sans-IO.
//!
//! No socket, clock or thread is in here: requests go in through `handle_*`, verdicts come out of `poll_*`, and time is an
//! argument where it matters. The control plane's session driver owns one of each:
//!
//! - [`Authenticator`]: who may come in; [`radius`] asks servers.
//! - [`AddressPools`]: the framed-ip of a session.
//! - [`PrefixPool`]: its IPv6 prefixes, on-link or delegated.
//! - [`PortBlocks`]: the port block a translated session has on a public address.
//!
//! What is handed out survives a restart of the control plane in the recovery records of the sessions; after a restart the
//! driver gives it back with `reserve` before it lets anybody new in.

#![forbid(unsafe_code)]

pub mod accounting;
mod address_pool;
mod authenticator;
mod dynamic;
mod free_list;
mod local_users;
mod occupancy;
mod port_blocks;
mod prefix_pool;
mod profile;
pub mod radius;

pub use address_pool::{AddressPool, AddressPools, Lease, LeaseError, PoolExhausted};
pub use authenticator::{
    AuthRequest, Authenticator, Backend, Credentials, RejectCause, RequestId, Verdict,
};
pub use dynamic::{Change, Refusal, Selector};
pub use local_users::LocalUsers;
pub use port_blocks::{BlockError, BlocksExhausted, PortBlock, PortBlocks, QUARANTINE};
pub use prefix_pool::{Prefix, PrefixError, PrefixPool, PrefixesExhausted};
pub use profile::{FramedRoute, Profile, RateLimit};
