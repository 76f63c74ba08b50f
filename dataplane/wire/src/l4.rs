//! What follows the IPv4 header: UDP (RFC 768), TCP (RFC 9293), ICMP (RFC 792).

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ipv4::protocol;
use crate::{U16, U32};

/// ICMP message types (RFC 792).
pub mod icmp_type {
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 3;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 8;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 11;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 12;
}

/// TCP control bits in the low byte of [`TcpHdr::offset_flags`] (RFC 9293 section 3.1).
pub mod tcp_flag {
    /// No more data from sender.
    pub const FIN: u8 = 0x01;
    /// Synchronise sequence numbers.
    pub const SYN: u8 = 0x02;
    /// Reset the connection.
    pub const RST: u8 = 0x04;
    /// Data is to be delivered at once.
    pub const PSH: u8 = 0x08;
    /// Acknowledgement field is significant.
    pub const ACK: u8 = 0x10;
    /// Urgent pointer is significant.
    pub const URG: u8 = 0x20;
    /// Congestion window reduced (RFC 3168 section 6.1.2).
    pub const CWR: u8 = 0x80;
}

/// Length of the UDP header, in bytes.
pub const UDP_LEN: usize = 8;
/// Length of the TCP header without options, in bytes.
pub const TCP_MIN_LEN: usize = 20;
/// Length of the fixed part of an ICMP message, in bytes.
pub const ICMP_LEN: usize = 8;

/// UDP header (RFC 768).
///
/// ```text
///  0      7 8     15 16    23 24    31
/// +--------+--------+--------+--------+
/// |   source port   | destination port|
/// +--------+--------+--------+--------+
/// |     length      |    checksum     |
/// +--------+--------+--------+--------+
/// ```
///
/// No function of this view can panic.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct UdpHdr {
    /// Source port.
    pub src_port: U16,
    /// Destination port.
    pub dst_port: U16,
    /// Length of header and payload, in bytes.
    pub length: U16,
    /// Checksum; 0 means none.
    pub checksum: U16,
}

/// TCP header without options (RFC 9293 section 3.1).
///
/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |          Source Port          |       Destination Port        |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |                        Sequence Number                        |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |                    Acknowledgment Number                      |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// | Offset| Rsrvd |  control bits |            Window             |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |           Checksum            |         Urgent Pointer        |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// ```
///
/// No function of this view can panic.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct TcpHdr {
    /// Source port.
    pub src_port: U16,
    /// Destination port.
    pub dst_port: U16,
    /// Sequence number.
    pub seq: U32,
    /// Acknowledgement number.
    pub ack: U32,
    /// Data offset (4 bits), reserved (4 bits), control bits (8 bits).
    pub offset_flags: U16,
    /// Window.
    pub window: U16,
    /// Checksum.
    pub checksum: U16,
    /// Urgent pointer.
    pub urgent: U16,
}

impl TcpHdr {
    /// Header length in bytes as the data offset says, 0 to 60; not checked.
    #[inline]
    #[must_use]
    pub const fn header_len(&self) -> usize {
        (self.offset_flags.get() >> 12) as usize * 4
    }

    /// Control bits, see [`tcp_flag`].
    #[inline]
    #[must_use]
    pub const fn flags(&self) -> u8 {
        self.offset_flags.get() as u8
    }
}

/// ICMP header (RFC 792). In an echo the last four bytes are identifier and sequence number; in an error they are
/// unused or a pointer or next-hop MTU, and the quoted packet follows.
///
/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |     Type      |     Code      |          Checksum             |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |           Identifier          |        Sequence Number        |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// ```
///
/// No function of this view can panic.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct IcmpHdr {
    /// Message type, see [`icmp_type`].
    pub icmp_type: u8,
    /// Code, its meaning depends on the type.
    pub code: u8,
    /// Checksum over the whole message.
    pub checksum: U16,
    /// Identifier of a query.
    pub id: U16,
    /// Sequence number of a query.
    pub seq: U16,
}

/// The parsed facts of a transport header, in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L4 {
    /// UDP.
    Udp {
        /// Source port.
        src_port: u16,
        /// Destination port.
        dst_port: u16,
    },
    /// TCP.
    Tcp {
        /// Source port.
        src_port: u16,
        /// Destination port.
        dst_port: u16,
        /// Control bits, see [`tcp_flag`].
        flags: u8,
        /// Header length in bytes, 20 to 60; in a first fragment it may exceed the bytes present.
        header_len: usize,
    },
    /// ICMP echo request or reply.
    IcmpEcho {
        /// A request, not a reply.
        request: bool,
        /// Query identifier.
        id: u16,
    },
    /// ICMP error that quotes a packet: unreachable, time exceeded, parameter problem.
    IcmpError,
    /// Any other ICMP type.
    IcmpOther {
        /// The type found.
        icmp_type: u8,
    },
    /// A protocol without ports known here.
    Other,
}

/// Why bytes are not the transport header their protocol promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum L4Error {
    /// Fewer bytes than the header needs.
    #[error("{have} bytes end inside the header of IP protocol {protocol}")]
    Truncated {
        /// IP protocol number.
        protocol: u8,
        /// Bytes present.
        have: usize,
    },
    /// The UDP length is below 8 or exceeds the bytes present.
    #[error("UDP length {length} in a payload of {have} bytes")]
    UdpLength {
        /// Length field.
        length: u16,
        /// Bytes present.
        have: usize,
    },
    /// The TCP data offset is below 20 bytes or exceeds the bytes present.
    #[error("TCP header length {header_len} in a payload of {have} bytes")]
    TcpOffset {
        /// Header length in bytes.
        header_len: usize,
        /// Bytes present.
        have: usize,
    },
}

/// Reads a UDP header; `payload` and `fragment` as for [`parse`].
///
/// # Errors
/// [`L4Error::Truncated`] or [`L4Error::UdpLength`].
#[inline(always)]
pub fn udp(payload: &[u8], fragment: bool) -> Result<&UdpHdr, L4Error> {
    let have = payload.len();
    let truncated = L4Error::Truncated {
        protocol: protocol::UDP,
        have,
    };
    let (udp, _) = UdpHdr::ref_from_prefix(payload).map_err(|_| truncated)?;
    let length = udp.length.get();
    if usize::from(length) < UDP_LEN || (usize::from(length) > have && !fragment) {
        return Err(L4Error::UdpLength { length, have });
    }
    Ok(udp)
}

/// Reads a TCP header; `payload` and `fragment` as for [`parse`].
///
/// # Errors
/// [`L4Error::Truncated`] or [`L4Error::TcpOffset`].
#[inline(always)]
pub fn tcp(payload: &[u8], fragment: bool) -> Result<&TcpHdr, L4Error> {
    let have = payload.len();
    let truncated = L4Error::Truncated {
        protocol: protocol::TCP,
        have,
    };
    let (tcp, _) = TcpHdr::ref_from_prefix(payload).map_err(|_| truncated)?;
    let header_len = tcp.header_len();
    if header_len < TCP_MIN_LEN || (header_len > have && !fragment) {
        return Err(L4Error::TcpOffset { header_len, have });
    }
    Ok(tcp)
}

/// Reads the fixed part of an ICMP message.
///
/// # Errors
/// [`L4Error::Truncated`].
#[inline(always)]
pub fn icmp(payload: &[u8]) -> Result<&IcmpHdr, L4Error> {
    let truncated = L4Error::Truncated {
        protocol: protocol::ICMP,
        have: payload.len(),
    };
    IcmpHdr::ref_from_prefix(payload)
        .map(|(icmp, _)| icmp)
        .map_err(|_| truncated)
}

/// Parses the transport header of an unfragmented packet or of a first fragment.
///
/// `payload` is the IP payload. With `fragment` set it is the first fragment of a longer one: lengths that may lie
/// in the missing part are not checked against it.
///
/// After `Ok` the fixed header of the protocol lies inside `payload`.
///
/// # Errors
/// [`L4Error`] when the header or a length in it does not fit.
#[inline]
pub fn parse(protocol: u8, payload: &[u8], fragment: bool) -> Result<L4, L4Error> {
    Ok(match protocol {
        protocol::UDP => {
            let udp = udp(payload, fragment)?;
            L4::Udp {
                src_port: udp.src_port.get(),
                dst_port: udp.dst_port.get(),
            }
        }
        protocol::TCP => {
            let tcp = tcp(payload, fragment)?;
            L4::Tcp {
                src_port: tcp.src_port.get(),
                dst_port: tcp.dst_port.get(),
                flags: tcp.flags(),
                header_len: tcp.header_len(),
            }
        }
        protocol::ICMP => match icmp(payload)? {
            IcmpHdr {
                icmp_type: icmp_type::ECHO_REQUEST,
                id,
                ..
            } => L4::IcmpEcho {
                request: true,
                id: id.get(),
            },
            IcmpHdr {
                icmp_type: icmp_type::ECHO_REPLY,
                id,
                ..
            } => L4::IcmpEcho {
                request: false,
                id: id.get(),
            },
            IcmpHdr {
                icmp_type:
                    icmp_type::UNREACHABLE | icmp_type::TIME_EXCEEDED | icmp_type::PARAMETER_PROBLEM,
                ..
            } => L4::IcmpError,
            other => L4::IcmpOther {
                icmp_type: other.icmp_type,
            },
        },
        _ => L4::Other,
    })
}

/// Writes a UDP header with checksum 0 and returns its length (8 bytes).
///
/// Returns `None`, writing nothing, when `buf` is too short or the datagram would exceed 65,535 bytes.
#[must_use]
pub fn write_udp(
    buf: &mut [u8],
    src_port: u16,
    dst_port: u16,
    payload_len: usize,
) -> Option<usize> {
    let length = u16::try_from(payload_len.checked_add(UDP_LEN)?).ok()?;
    let (udp, _) = UdpHdr::mut_from_prefix(buf).ok()?;
    *udp = UdpHdr {
        src_port: U16::new(src_port),
        dst_port: U16::new(dst_port),
        length: U16::new(length),
        checksum: U16::ZERO,
    };
    Some(UDP_LEN)
}
