//! ICMPv6 (RFC 4443).

use core::net::Ipv6Addr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::Sum;
use crate::ipv6::{self, IPV6_LEN, NewIpv6, next_header};
use crate::{U16, U32};

/// ICMPv6 message types (IANA). Those below 128 are errors (RFC 4443 section 2.1).
pub mod icmpv6_type {
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 1;
    /// Packet too big.
    pub const PACKET_TOO_BIG: u8 = 2;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 3;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 128;
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 129;
    /// Multicast listener query, RFC 2710.
    pub const LISTENER_QUERY: u8 = 130;
    /// Multicast listener report, RFC 2710.
    pub const LISTENER_REPORT: u8 = 131;
    /// Multicast listener done, RFC 2710.
    pub const LISTENER_DONE: u8 = 132;
    /// Router solicitation, RFC 4861.
    pub const ROUTER_SOLICITATION: u8 = 133;
    /// Router advertisement, RFC 4861.
    pub const ROUTER_ADVERTISEMENT: u8 = 134;
    /// Neighbour solicitation, RFC 4861.
    pub const NEIGHBOUR_SOLICITATION: u8 = 135;
    /// Neighbour advertisement, RFC 4861.
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    /// Redirect, RFC 4861.
    pub const REDIRECT: u8 = 137;
    /// Version 2 multicast listener report, RFC 3810.
    pub const LISTENER_REPORT_V2: u8 = 143;
}

/// Codes of destination unreachable (RFC 4443 section 3.1).
pub mod unreachable_code {
    /// No route to destination.
    pub const NO_ROUTE: u8 = 0;
    /// Address unreachable.
    pub const ADDRESS: u8 = 3;
}

/// Length of the fixed part of an ICMPv6 message, in bytes.
pub const ICMPV6_LEN: usize = 8;

/// ICMPv6 header. In an error the quoted packet follows.
///
/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |     Type      |     Code      |          Checksum             |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |        MTU, pointer, identifier and sequence, or unused       |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// ```
///
/// No function of this view can panic.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Icmpv6Hdr {
    /// Message type, see [`icmpv6_type`].
    pub icmp_type: u8,
    /// Code, its meaning depends on the type.
    pub code: u8,
    /// Checksum over pseudo header and message.
    pub checksum: U16,
    /// Its meaning depends on the type.
    pub value: U32,
}

impl Icmpv6Hdr {
    /// An error, about which no error is sent (RFC 4443 section 2.4 (e)); a redirect counts as one there.
    #[inline]
    #[must_use]
    pub const fn is_error(&self) -> bool {
        self.icmp_type < 128 || self.icmp_type == icmpv6_type::REDIRECT
    }
}

/// Checksum of an ICMPv6 message whose checksum field is zero, or 0 when it contains its right checksum. A message is
/// at most 65,535 bytes.
#[inline]
#[must_use]
pub fn checksum(src: Ipv6Addr, dst: Ipv6Addr, message: &[u8]) -> u16 {
    crate::checksum::l4_checksum_ipv6(src, dst, next_header::ICMPV6, message)
}

/// Bytes in front of the quoted packet in an error: IPv6 and ICMPv6 header. It quotes as much as fits the minimum MTU
/// (RFC 4443 section 2.4 (c)).
pub const ERROR_LEN: usize = IPV6_LEN + ICMPV6_LEN;

/// What kind of error is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmpv6Error {
    /// Message type, see [`icmpv6_type`].
    pub icmp_type: u8,
    /// Code.
    pub code: u8,
    /// The MTU of a packet too big, else 0.
    pub value: u32,
}

/// IPv6 and ICMPv6 header of an error that quotes `quote`. Hop limit 64.
///
/// Returns `None` when the packet would exceed 65,535 bytes of payload.
#[must_use]
pub fn error_head(
    src: Ipv6Addr,
    dst: Ipv6Addr,
    error: Icmpv6Error,
    quote: &[u8],
) -> Option<[u8; ERROR_LEN]> {
    let mut head = [0; ERROR_LEN];
    let fields = NewIpv6 {
        src,
        dst,
        next_header: next_header::ICMPV6,
        hop_limit: 64,
    };
    let message_len = ICMPV6_LEN.checked_add(quote.len())?;
    let at = ipv6::write(&mut head, &fields, message_len)?;
    let (icmp, _) = Icmpv6Hdr::mut_from_prefix(head.get_mut(at..)?).ok()?;
    *icmp = Icmpv6Hdr {
        icmp_type: error.icmp_type,
        code: error.code,
        checksum: U16::ZERO,
        value: U32::new(error.value),
    };
    let check = Sum::new()
        // It fits 16 bits.
        .pseudo_ipv6(src, dst, next_header::ICMPV6, message_len as u32)
        .bytes(icmp.as_bytes())
        .bytes(quote)
        .finish();
    icmp.checksum.set(check);
    Some(head)
}
