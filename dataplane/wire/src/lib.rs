//! Packet headers read in place, and Internet checksums.
//!
//! Two levels. The *views* (`EthHdr`, `VlanHdr`, `PppoeHdr`, `Ipv4Hdr`, `Ipv6Hdr`, `UdpHdr`, `TcpHdr`, `IcmpHdr`,
//! `Icmpv6Hdr`) are `#[repr(C)]`, byte-aligned structs laid over the bytes with zerocopy: any bytes are a valid view,
//! every value survives a round trip, and no accessor of a view can panic. The *parsers* ([`ethernet::parse`],
//! [`pppoe::parse_session`], [`pppoe::parse_discovery`], [`ipv4::parse`], [`ipv6::parse`], [`ipv6::upper`],
//! [`l4::parse`]) are total functions: any bytes give either a value or one named error, nothing is read outside the slice, and the cost is bounded by
//! the header's length. After a parser returned `Ok`, the offsets in its value lie inside the slice it was given,
//! so slicing at them cannot panic.
//!
//! Numbers in parsed values are in host byte order; a `U16`/`U32` field of a view is big-endian in memory and
//! `get`/`set` convert.
//!
//! No allocation, no clock, no socket, no unsafe code.

#![no_std]
#![forbid(unsafe_code)]

pub mod checksum;
pub mod ethernet;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod l4;
pub mod pppoe;

pub use ethernet::{EthError, EthFrame, EthHdr, MacAddr, VlanHdr, VlanStack, VlanTag};
pub use icmpv6::{Icmpv6Error, Icmpv6Hdr};
pub use ipv4::{Ipv4, Ipv4Error, Ipv4Hdr};
pub use ipv6::{ExtensionError, Ipv6, Ipv6Error, Ipv6Hdr, Upper};
pub use l4::{IcmpHdr, L4, L4Error, TcpHdr, UdpHdr};
pub use pppoe::{PppoeError, PppoeHdr, SessionFrame};

/// Big-endian 16-bit field of a header view.
pub type U16 = zerocopy::byteorder::U16<zerocopy::byteorder::BigEndian>;
/// Big-endian 32-bit field of a header view.
pub type U32 = zerocopy::byteorder::U32<zerocopy::byteorder::BigEndian>;
