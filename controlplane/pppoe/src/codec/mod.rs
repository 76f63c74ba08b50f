//! Received bytes to values and values to bytes, for both ends of the link.
//!
//! Parsers are total: any bytes give a value or one named [`DropReason`](crate::DropReason); nothing outside the
//! given bytes is read and the cost is bounded by their length. No function here can panic. The access
//! concentrator and a client can be built on these alike.

pub mod chap;
pub mod control;
pub mod dhcpv6;
pub mod frame;
pub mod ipcp;
pub mod ipv6;
pub mod ipv6cp;
pub mod lcp;
pub mod nd;
pub mod pap;
pub mod tags;

pub use control::{ConfigOption, ControlPacket, Options};
pub use frame::{Body, Frame, LinkHeader};
pub use tags::{AccessLineIds, Tag, TagWriter, Tags};
