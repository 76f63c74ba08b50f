//! PPPoE discovery and PPP as a sans-IO state machine.
//!
//! [`AccessConcentrator`] is the access concentrator of all access ports: frames, time and decisions go in by
//! `handle_*`, frames, events and the next deadline come out by `poll_*`. There is no socket, no clock, no thread
//! and no unsafe code in here; random numbers come from a seed, so a run can be repeated exactly.
//!
//! The pieces, in the order a subscriber meets them: `discovery` (RFC 2516, with `cookie`, `limits` and
//! `session_ids`), `session` (the phases of RFC 1661 section 3), `negotiation` on the table of [`automaton`] (RFC
//! 1661 section 4) for `lcp`, `ipcp` and `ipv6cp`, and `auth` (PAP, RFC 1334; CHAP, RFC 1994). [`codec`] serves both ends
//! of a link. What is not offered (CCP, ECP, Van Jacobson compression, multilink) is refused by Configure-Reject or
//! Protocol-Reject.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod auth;
pub mod automaton;
pub mod codec;
pub mod config;
mod context;
mod cookie;
pub mod counters;
mod discovery;
mod engine;
pub mod events;
mod ipcp;
mod ipv6cp;
mod lcp;
mod limits;
mod lockout;
mod negotiation;
mod offers;
mod pado_delay;
mod random;
mod reconfigure;
mod session;
mod session_ids;
mod table;
mod time;
mod timers;

pub use config::{
    Config, ConfigError, Limits, Lockout, PortConfig, PortId, Rate, ServicePolicy, VlanProfile,
};
pub use counters::{Counters, DropReason, Outcome, TerminateCause};
pub use engine::{AccessConcentrator, AdoptError, AuthError};
pub use events::{
    AccessLine, AuthProtocol, AuthRequest, AuthVerdict, Event, Grant, InterfaceIds, Ipv6Grant,
    NetworkDownReason, Password, Proof, RejectCause, SessionRecord, SessionRef, Transmit,
};
pub use lockout::{LockedOut, LockoutKey};
pub use reconfigure::Reconfigured;
pub use session::{Phase, SessionInfo};
pub use time::Time;
