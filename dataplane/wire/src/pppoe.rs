//! PPPoE (RFC 2516) and the PPP protocol field (RFC 1661 section 2).

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::U16;

/// PPPoE code field, RFC 2516 sections 4 and 5.
pub mod code {
    /// Session data.
    pub const SESSION: u8 = 0x00;
    /// PPPoE Active Discovery Offer.
    pub const PADO: u8 = 0x07;
    /// PPPoE Active Discovery Initiation.
    pub const PADI: u8 = 0x09;
    /// PPPoE Active Discovery Request.
    pub const PADR: u8 = 0x19;
    /// PPPoE Active Discovery Session-confirmation.
    pub const PADS: u8 = 0x65;
    /// PPPoE Active Discovery Terminate.
    pub const PADT: u8 = 0xa7;
}

/// PPP protocol numbers (IANA "PPP DLL Protocol Numbers").
pub mod protocol {
    /// IPv4, RFC 1332.
    pub const IPV4: u16 = 0x0021;
    /// Van Jacobson compressed TCP/IP, RFC 1144.
    pub const VJ_COMPRESSED: u16 = 0x002d;
    /// Van Jacobson uncompressed TCP/IP, RFC 1144.
    pub const VJ_UNCOMPRESSED: u16 = 0x002f;
    /// Multilink, RFC 1990.
    pub const MULTILINK: u16 = 0x003d;
    /// IPv6, RFC 5072.
    pub const IPV6: u16 = 0x0057;
    /// Compressed datagram, RFC 1962.
    pub const COMPRESSED: u16 = 0x00fd;
    /// IP Control Protocol, RFC 1332.
    pub const IPCP: u16 = 0x8021;
    /// IPv6 Control Protocol, RFC 5072.
    pub const IPV6CP: u16 = 0x8057;
    /// Compression Control Protocol, RFC 1962.
    pub const CCP: u16 = 0x80fd;
    /// Link Control Protocol, RFC 1661.
    pub const LCP: u16 = 0xc021;
    /// Password Authentication Protocol, RFC 1334.
    pub const PAP: u16 = 0xc023;
    /// Challenge Handshake Authentication Protocol, RFC 1994.
    pub const CHAP: u16 = 0xc223;
}

/// Length of the PPPoE header, in bytes.
pub const PPPOE_LEN: usize = 6;
/// Length of the uncompressed PPP protocol field, in bytes.
pub const PPP_LEN: usize = 2;
/// Version 1, type 1: the only value of the first byte (RFC 2516 section 4).
pub const VERSION_TYPE: u8 = 0x11;

/// PPPoE header (RFC 2516 section 4).
///
/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |  VER  | TYPE  |      CODE     |          SESSION_ID           |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |            LENGTH             |           payload             ~
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// ```
///
/// No function of this view can panic.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct PppoeHdr {
    /// Version (high nibble) and type (low nibble).
    pub version_type: u8,
    /// Code, see [`code`].
    pub code: u8,
    /// Session id.
    pub session_id: U16,
    /// Bytes after this header, padding not counted.
    pub length: U16,
}

/// Why bytes are not a PPPoE frame. Every way a length can lie has its own value (HZ-01).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum PppoeError {
    /// Fewer than 6 bytes.
    #[error("{have} bytes are no PPPoE header")]
    Truncated {
        /// Bytes present.
        have: usize,
    },
    /// Version or type is not 1.
    #[error("PPPoE version/type {version_type:#04x}, not 0x11")]
    VersionType {
        /// The byte found.
        version_type: u8,
    },
    /// A session frame whose code is not 0.
    #[error("PPPoE session frame with code {code:#04x}")]
    SessionCode {
        /// The code found.
        code: u8,
    },
    /// The length field exceeds the bytes present.
    #[error("PPPoE length {length} but {have} bytes follow the header")]
    LengthBeyondFrame {
        /// Length field.
        length: u16,
        /// Bytes present after the header.
        have: usize,
    },
    /// A session frame of length 0: no PPP protocol field at all.
    #[error("PPPoE session frame of length 0")]
    LengthZero,
    /// A session frame of length 1: half a PPP protocol field.
    #[error("PPPoE session frame of length 1")]
    LengthOne,
    /// A one-byte (compressed) PPP protocol field, which RFC 2516 section 7 forbids.
    #[error("compressed PPP protocol field starting with {first:#04x}")]
    CompressedProtocol {
        /// First byte of the field.
        first: u8,
    },
}

/// A parsed session-stage frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionFrame<'a> {
    /// Session id.
    pub session_id: u16,
    /// PPP protocol number; may be unknown.
    pub protocol: u16,
    /// PPP information field; Ethernet padding is not part of it.
    pub payload: &'a [u8],
}

/// A parsed discovery-stage frame: the header's facts and the bytes of its tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscoveryFrame<'a> {
    /// Code, see [`code`]; may be unknown.
    pub code: u8,
    /// Session id.
    pub session_id: u16,
    /// The tag list, bounded by the PPPoE length; Ethernet padding is not part of it.
    pub tags: &'a [u8],
}

/// The checks both stages share: header present, version and type, length within the bytes.
#[inline(always)]
fn bounded(bytes: &[u8]) -> Result<(&PppoeHdr, &[u8]), PppoeError> {
    let (header, rest) = PppoeHdr::ref_from_prefix(bytes)
        .map_err(|_| PppoeError::Truncated { have: bytes.len() })?;
    if header.version_type != VERSION_TYPE {
        return Err(PppoeError::VersionType {
            version_type: header.version_type,
        });
    }
    let length = header.length.get();
    let payload = rest
        .get(..usize::from(length))
        .ok_or(PppoeError::LengthBeyondFrame {
            length,
            have: rest.len(),
        })?;
    Ok((header, payload))
}

/// Parses a session-stage frame; `bytes` starts at the PPPoE header and may end with padding.
///
/// # Errors
/// One [`PppoeError`] value per defect; the first in header order is reported.
#[inline(always)]
pub fn parse_session(bytes: &[u8]) -> Result<SessionFrame<'_>, PppoeError> {
    let (header, ppp) = bounded(bytes)?;
    if header.code != code::SESSION {
        return Err(PppoeError::SessionCode { code: header.code });
    }
    match *ppp {
        [] => Err(PppoeError::LengthZero),
        [_] => Err(PppoeError::LengthOne),
        // RFC 1661 section 2: the first octet of a full protocol field is even.
        [first, ..] if first & 1 != 0 => Err(PppoeError::CompressedProtocol { first }),
        [high, low, ref payload @ ..] => Ok(SessionFrame {
            session_id: header.session_id.get(),
            protocol: u16::from_be_bytes([high, low]),
            payload,
        }),
    }
}

/// Parses a discovery-stage frame; `bytes` starts at the PPPoE header and may end with padding.
///
/// # Errors
/// [`PppoeError::Truncated`], [`PppoeError::VersionType`] or [`PppoeError::LengthBeyondFrame`].
#[inline(always)]
pub fn parse_discovery(bytes: &[u8]) -> Result<DiscoveryFrame<'_>, PppoeError> {
    let (header, tags) = bounded(bytes)?;
    Ok(DiscoveryFrame {
        code: header.code,
        session_id: header.session_id.get(),
        tags,
    })
}

/// Writes a PPPoE header at the start of `buf` and returns its length (6 bytes).
///
/// `length` is the number of bytes that will follow it. Returns `None`, writing nothing, when `buf` is too short.
#[inline(always)]
#[must_use]
pub fn write(buf: &mut [u8], code: u8, session_id: u16, length: u16) -> Option<usize> {
    let (header, _) = PppoeHdr::mut_from_prefix(buf).ok()?;
    *header = PppoeHdr {
        version_type: VERSION_TYPE,
        code,
        session_id: U16::new(session_id),
        length: U16::new(length),
    };
    Some(PPPOE_LEN)
}

/// Writes PPPoE header and PPP protocol field of a session-stage frame and returns their length (8 bytes).
///
/// `payload_len` is the length of the PPP information field. Returns `None`, writing nothing, when `buf` is too
/// short or the payload does not fit the 16-bit length field.
#[inline(always)]
#[must_use]
pub fn write_session(
    buf: &mut [u8],
    session_id: u16,
    protocol: u16,
    payload_len: usize,
) -> Option<usize> {
    let length = u16::try_from(payload_len.checked_add(PPP_LEN)?).ok()?;
    let header = buf.get_mut(..PPPOE_LEN + PPP_LEN)?;
    let (pppoe, ppp) = header.split_at_mut_checked(PPPOE_LEN)?;
    write(pppoe, code::SESSION, session_id, length)?;
    ppp.copy_from_slice(&protocol.to_be_bytes());
    Some(PPPOE_LEN + PPP_LEN)
}
