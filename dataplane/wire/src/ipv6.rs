//! IPv6 (RFC 8200).

use core::net::Ipv6Addr;

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{U16, U32};

/// Values of a next-header field that are no upper-layer protocol or are IPv6's own (IANA). TCP and UDP are in
/// [`crate::ipv4::protocol`].
pub mod next_header {
    /// Hop-by-hop options, RFC 8200 section 4.3.
    pub const HOP_BY_HOP: u8 = 0;
    /// Routing header, RFC 8200 section 4.4.
    pub const ROUTING: u8 = 43;
    /// Fragment header, RFC 8200 section 4.5.
    pub const FRAGMENT: u8 = 44;
    /// Authentication header, RFC 4302.
    pub const AUTHENTICATION: u8 = 51;
    /// ICMPv6, RFC 4443.
    pub const ICMPV6: u8 = 58;
    /// Nothing follows, RFC 8200 section 4.7.
    pub const NONE: u8 = 59;
    /// Destination options, RFC 8200 section 4.6.
    pub const DESTINATION_OPTIONS: u8 = 60;
    /// Mobility header, RFC 6275.
    pub const MOBILITY: u8 = 135;
}

/// Length of the IPv6 header, in bytes.
pub const IPV6_LEN: usize = 40;
/// Every link carries packets of this size, in bytes (RFC 8200 section 5).
pub const MIN_MTU: usize = 1_280;
/// Extension headers [`upper`] looks through. RFC 8200 section 4.1 recommends an order that has at most six.
pub const MAX_EXTENSIONS: usize = 8;

/// IPv6 header (RFC 8200 section 3).
///
/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |Version| Traffic Class |           Flow Label                  |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |         Payload Length        |  Next Header  |   Hop Limit   |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |                                                               |
/// +                         Source Address (16)                   +
/// |                                                               |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |                                                               |
/// +                      Destination Address (16)                 +
/// |                                                               |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// ```
///
/// No function of this view can panic.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Ipv6Hdr {
    /// Version (4 bits), traffic class (8 bits), flow label (20 bits).
    pub version_class_label: U32,
    /// Bytes after this header, extension headers included.
    pub payload_len: U16,
    /// What follows, see [`next_header`].
    pub next_header: u8,
    /// Hops the packet may still take.
    pub hop_limit: u8,
    /// Source address.
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
}

impl Ipv6Hdr {
    /// Version field, 0 to 15.
    #[inline]
    #[must_use]
    pub const fn version(&self) -> u8 {
        (self.version_class_label.get() >> 28) as u8
    }

    /// Flow label, 0 for none (RFC 6437).
    #[inline]
    #[must_use]
    pub const fn flow_label(&self) -> u32 {
        self.version_class_label.get() & 0x000f_ffff
    }

    /// Length of the packet, in bytes; not checked.
    #[inline]
    #[must_use]
    pub const fn total_len(&self) -> usize {
        IPV6_LEN + self.payload_len.get() as usize
    }
}

/// The parsed facts of an IPv6 packet, in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6 {
    /// Length of the packet in bytes, at least 40.
    pub total_len: usize,
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// What follows the header.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Flow label.
    pub flow_label: u32,
}

/// Why bytes are not an IPv6 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Ipv6Error {
    /// Fewer bytes than the header.
    #[error("{have} bytes end inside the IPv6 header")]
    Truncated {
        /// Bytes present.
        have: usize,
    },
    /// The version field is not 6.
    #[error("IP version {version}, not 6")]
    Version {
        /// The version found.
        version: u8,
    },
    /// The payload length exceeds the bytes present.
    #[error("IPv6 packet of {total_len} bytes but {have} bytes are present")]
    PayloadLengthBeyond {
        /// Length of header and payload.
        total_len: usize,
        /// Bytes present.
        have: usize,
    },
}

/// The header of an IPv6 packet, checked; `bytes` may be longer than the packet (link padding).
///
/// After `Ok`, `bytes[..header.total_len()]` exists. A jumbogram (RFC 2675) reads as a packet of 40 bytes.
///
/// # Errors
/// One [`Ipv6Error`] value per defect; the first in header order is reported.
#[inline(always)]
pub fn header(bytes: &[u8]) -> Result<&Ipv6Hdr, Ipv6Error> {
    let have = bytes.len();
    let (header, _) = Ipv6Hdr::ref_from_prefix(bytes).map_err(|_| Ipv6Error::Truncated { have })?;
    let version = header.version();
    if version != 6 {
        return Err(Ipv6Error::Version { version });
    }
    let total_len = header.total_len();
    if total_len > have {
        return Err(Ipv6Error::PayloadLengthBeyond { total_len, have });
    }
    Ok(header)
}

/// As [`header()`], the facts.
///
/// # Errors
/// As [`header()`].
#[inline]
pub fn parse(bytes: &[u8]) -> Result<Ipv6, Ipv6Error> {
    let header = header(bytes)?;
    Ok(Ipv6 {
        total_len: header.total_len(),
        src: header.src.into(),
        dst: header.dst.into(),
        next_header: header.next_header,
        hop_limit: header.hop_limit,
        flow_label: header.flow_label(),
    })
}

/// What follows the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upper {
    /// Upper-layer protocol; [`next_header::NONE`] if there is none.
    pub protocol: u8,
    /// Offset of its header in the packet: at least 40, at most the packet's length.
    pub offset: usize,
    /// Part of a fragmented packet, first fragment included.
    pub fragment: bool,
    /// A fragment other than the first: there is no upper-layer header in it.
    pub later_fragment: bool,
}

/// Why the upper-layer header is not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum ExtensionError {
    /// The packet ends inside an extension header.
    #[error("the IPv6 packet ends inside extension header {next_header}")]
    Truncated {
        /// The extension header.
        next_header: u8,
    },
    /// More than [`MAX_EXTENSIONS`] extension headers.
    #[error("more than {MAX_EXTENSIONS} IPv6 extension headers")]
    TooMany,
}

/// The upper-layer header of a packet behind at most [`MAX_EXTENSIONS`] extension headers, none of which is processed.
/// `packet` is exactly a packet that [`header()`] accepted, `next_header` that of its header.
///
/// A fragment header that says that the packet is whole (RFC 6946) is one like others. Encrypted payload (ESP) and
/// whatever else is not known here count as upper-layer protocols.
///
/// # Errors
/// [`ExtensionError`].
#[inline]
pub fn upper(next_header: u8, packet: &[u8]) -> Result<Upper, ExtensionError> {
    let mut upper = Upper {
        protocol: next_header,
        offset: IPV6_LEN,
        fragment: false,
        later_fragment: false,
    };
    for _ in 0..=MAX_EXTENSIONS {
        let next_header = upper.protocol;
        // Bytes of the header beyond the length field's unit (RFC 8200 section 4, RFC 4302 section 2.2).
        let unit = match next_header {
            next_header::HOP_BY_HOP
            | next_header::ROUTING
            | next_header::DESTINATION_OPTIONS
            | next_header::MOBILITY => 8,
            next_header::AUTHENTICATION => 4,
            next_header::FRAGMENT => 0,
            _ => return Ok(upper),
        };
        let truncated = ExtensionError::Truncated { next_header };
        let head: &[u8; 8] = packet
            .get(upper.offset..)
            .and_then(<[u8]>::first_chunk)
            .ok_or(truncated)?;
        upper.protocol = head[0];
        upper.offset += 8 + usize::from(head[1]) * unit;
        if upper.offset > packet.len() {
            return Err(truncated);
        }
        if next_header == next_header::FRAGMENT {
            let offset_and_more = u16::from_be_bytes([head[2], head[3]]);
            upper.fragment = offset_and_more & !6 != 0;
            if offset_and_more >> 3 != 0 {
                upper.later_fragment = true;
                return Ok(upper);
            }
        }
    }
    Err(ExtensionError::TooMany)
}

/// What [`write()`] puts into a fresh header; traffic class and flow label are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewIpv6 {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// What follows the header.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
}

/// Writes an IPv6 header and returns its length (40 bytes).
///
/// Returns `None`, writing nothing, when `buf` is too short or the payload exceeds 65,535 bytes.
#[must_use]
pub fn write(buf: &mut [u8], fields: &NewIpv6, payload_len: usize) -> Option<usize> {
    let payload_len = u16::try_from(payload_len).ok()?;
    let (header, _) = Ipv6Hdr::mut_from_prefix(buf).ok()?;
    *header = Ipv6Hdr {
        version_class_label: U32::new(6 << 28),
        payload_len: U16::new(payload_len),
        next_header: fields.next_header,
        hop_limit: fields.hop_limit,
        src: fields.src.octets(),
        dst: fields.dst.octets(),
    };
    Some(IPV6_LEN)
}
