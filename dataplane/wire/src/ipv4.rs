//! IPv4 (RFC 791).

use core::net::Ipv4Addr;

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use crate::checksum::{Delta, checksum};
use crate::{U16, U32};

/// IP protocol numbers (IANA).
pub mod protocol {
    /// ICMP, RFC 792.
    pub const ICMP: u8 = 1;
    /// TCP, RFC 9293.
    pub const TCP: u8 = 6;
    /// UDP, RFC 768.
    pub const UDP: u8 = 17;
}

/// Length of the IPv4 header without options, in bytes.
pub const IPV4_MIN_LEN: usize = 20;
/// Flag "don't fragment" in [`Ipv4Hdr::frag`].
pub const FLAG_DF: u16 = 0x4000;
/// Flag "more fragments" in [`Ipv4Hdr::frag`].
pub const FLAG_MF: u16 = 0x2000;
/// Fragment offset bits in [`Ipv4Hdr::frag`], in units of 8 bytes.
pub const OFFSET_MASK: u16 = 0x1fff;

/// IPv4 header without options (RFC 791 section 3.1).
///
/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |Version|  IHL  |Type of Service|          Total Length         |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |         Identification        |Flags|      Fragment Offset    |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |  Time to Live |    Protocol   |         Header Checksum       |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |                       Source Address                          |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |                    Destination Address                        |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// ```
///
/// No function of this view can panic.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Ipv4Hdr {
    /// Version (high nibble) and header length in 32-bit words (low nibble).
    pub version_ihl: u8,
    /// Type of service: DSCP (6 bits), ECN (2 bits).
    pub tos: u8,
    /// Length of header and payload, in bytes.
    pub total_len: U16,
    /// Identification.
    pub id: U16,
    /// Flags (3 bits) and fragment offset (13 bits).
    pub frag: U16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload, see [`protocol`].
    pub protocol: u8,
    /// Header checksum.
    pub checksum: U16,
    /// Source address.
    pub src: U32,
    /// Destination address.
    pub dst: U32,
}

impl Ipv4Hdr {
    /// Version field, 0 to 15.
    #[inline]
    #[must_use]
    pub const fn version(&self) -> u8 {
        self.version_ihl >> 4
    }

    /// Header length in bytes as the IHL field says, 0 to 60; not checked.
    #[inline]
    #[must_use]
    pub const fn header_len(&self) -> usize {
        (self.version_ihl & 0x0f) as usize * 4
    }

    /// Whether the checksum is right for a header without options.
    #[inline(always)]
    #[must_use]
    pub fn checksum_is_right(&self) -> bool {
        let [a, b, c, d, e]: [u32; 5] = transmute!(*self);
        // Two 64-bit words and a carry, since that is the shortest way to sum 20 bytes. A sum of all ones is the
        // same in either byte order, so nothing is swapped (RFC 1071 section 2 (B)).
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let (sum, carry) = pair(a, b).overflowing_add(pair(c, d));
        let sum = (sum >> 32) + (sum & 0xffff_ffff) + u64::from(e) + u64::from(carry);
        // It folds to all ones if it is a multiple of 2^16 - 1 other than 0; that is one multiplication.
        sum.is_multiple_of(0xffff) && sum != 0
    }

    /// Lowers the TTL by one and updates the checksum; a TTL of 0 stays 0.
    #[inline]
    pub fn decrement_ttl(&mut self) {
        let old = u16::from_be_bytes([self.ttl, self.protocol]);
        self.ttl = self.ttl.saturating_sub(1);
        let new = u16::from_be_bytes([self.ttl, self.protocol]);
        self.checksum
            .set(Delta::new().u16(old, new).apply(self.checksum.get()));
    }
}

/// The parsed facts of an IPv4 packet, in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// Header length in bytes, options included: 20 to 60.
    pub header_len: usize,
    /// Total length in bytes, at least `header_len`.
    pub total_len: usize,
    /// Source address.
    pub src: u32,
    /// Destination address.
    pub dst: u32,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Time to live.
    pub ttl: u8,
    /// Flags and fragment offset as they stand in the header.
    pub frag: u16,
}

impl Ipv4 {
    /// Part of a fragmented datagram, first fragment included.
    #[inline]
    #[must_use]
    pub const fn is_fragment(&self) -> bool {
        self.frag & (FLAG_MF | OFFSET_MASK) != 0
    }

    /// A fragment without the transport header.
    #[inline]
    #[must_use]
    pub const fn is_later_fragment(&self) -> bool {
        self.frag & OFFSET_MASK != 0
    }

    /// "Don't fragment" is set.
    #[inline]
    #[must_use]
    pub const fn dont_fragment(&self) -> bool {
        self.frag & FLAG_DF != 0
    }

    /// Source address.
    #[must_use]
    pub const fn src_addr(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.src)
    }

    /// Destination address.
    #[must_use]
    pub const fn dst_addr(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.dst)
    }
}

/// Why bytes are not an IPv4 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Ipv4Error {
    /// Fewer bytes than the header needs.
    #[error("{have} bytes end inside the IPv4 header")]
    Truncated {
        /// Bytes present.
        have: usize,
    },
    /// The version field is not 4.
    #[error("IP version {version}, not 4")]
    Version {
        /// The version found.
        version: u8,
    },
    /// The IHL field says less than 20 bytes.
    #[error("IPv4 header length {header_len}, less than 20")]
    HeaderLength {
        /// Header length in bytes.
        header_len: usize,
    },
    /// The total length is shorter than the header.
    #[error("IPv4 total length {total_len} is shorter than its header of {header_len}")]
    TotalLengthShort {
        /// Total length field.
        total_len: usize,
        /// Header length in bytes.
        header_len: usize,
    },
    /// The total length exceeds the bytes present.
    #[error("IPv4 total length {total_len} but {have} bytes are present")]
    TotalLengthBeyond {
        /// Total length field.
        total_len: usize,
        /// Bytes present.
        have: usize,
    },
    /// The header checksum is wrong.
    #[error("IPv4 header checksum is wrong")]
    Checksum,
}

/// Parses an IPv4 packet; `bytes` may be longer than the packet (link padding).
///
/// After `Ok`, `bytes[..total_len]` and `bytes[header_len..total_len]` exist.
///
/// # Errors
/// One [`Ipv4Error`] value per defect; the first in header order is reported, the checksum last.
#[inline(always)]
pub fn parse(bytes: &[u8]) -> Result<Ipv4, Ipv4Error> {
    let packet = parse_embedded(bytes)?;
    if packet.total_len > bytes.len() {
        return Err(Ipv4Error::TotalLengthBeyond {
            total_len: packet.total_len,
            have: bytes.len(),
        });
    }
    Ok(packet)
}

/// Parses the IPv4 header quoted in an ICMP error (RFC 792, RFC 1812 section 4.3.2.3): everything [`parse`] checks
/// except that the whole packet is present.
///
/// After `Ok`, `bytes[..header_len]` exists.
///
/// # Errors
/// As [`parse`], without [`Ipv4Error::TotalLengthBeyond`].
#[inline(always)]
pub fn parse_embedded(bytes: &[u8]) -> Result<Ipv4, Ipv4Error> {
    let (header, _) =
        Ipv4Hdr::ref_from_prefix(bytes).map_err(|_| Ipv4Error::Truncated { have: bytes.len() })?;
    if header.version() != 4 {
        return Err(Ipv4Error::Version {
            version: header.version(),
        });
    }
    let header_len = header.header_len();
    if header_len < IPV4_MIN_LEN {
        return Err(Ipv4Error::HeaderLength { header_len });
    }
    let whole = bytes
        .get(..header_len)
        .ok_or(Ipv4Error::Truncated { have: bytes.len() })?;
    let total_len = usize::from(header.total_len.get());
    if total_len < header_len {
        return Err(Ipv4Error::TotalLengthShort {
            total_len,
            header_len,
        });
    }
    // Nearly every header has no options.
    let right = if header_len == IPV4_MIN_LEN {
        header.checksum_is_right()
    } else {
        checksum(whole) == 0
    };
    if !right {
        return Err(Ipv4Error::Checksum);
    }
    Ok(Ipv4 {
        header_len,
        total_len,
        src: header.src.get(),
        dst: header.dst.get(),
        protocol: header.protocol,
        ttl: header.ttl,
        frag: header.frag.get(),
    })
}

/// What [`write()`] puts into a fresh header; the rest is fixed (no options, no fragment).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewIpv4 {
    /// Source address.
    pub src: u32,
    /// Destination address.
    pub dst: u32,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Time to live.
    pub ttl: u8,
    /// Type of service.
    pub tos: u8,
    /// Identification.
    pub id: u16,
    /// "Don't fragment".
    pub dont_fragment: bool,
}

/// Writes an IPv4 header without options, checksum included, and returns its length (20 bytes).
///
/// Returns `None`, writing nothing, when `buf` is too short or the packet would exceed 65,535 bytes.
#[must_use]
pub fn write(buf: &mut [u8], fields: &NewIpv4, payload_len: usize) -> Option<usize> {
    let total_len = u16::try_from(payload_len.checked_add(IPV4_MIN_LEN)?).ok()?;
    let (header, _) = Ipv4Hdr::mut_from_prefix(buf).ok()?;
    *header = Ipv4Hdr {
        version_ihl: 0x45,
        tos: fields.tos,
        total_len: U16::new(total_len),
        id: U16::new(fields.id),
        frag: U16::new(if fields.dont_fragment { FLAG_DF } else { 0 }),
        ttl: fields.ttl,
        protocol: fields.protocol,
        checksum: U16::ZERO,
        src: U32::new(fields.src),
        dst: U32::new(fields.dst),
    };
    header.checksum = U16::new(checksum(header.as_bytes()));
    Some(IPV4_MIN_LEN)
}
