//! ICMP errors about packets a subscriber has sent (RFC 792, RFC 1191, RFC 4443).

use std::net::{IpAddr, SocketAddr};

use bng_wire::checksum::checksum;
use bng_wire::icmpv6::{self, Icmpv6Hdr, icmpv6_type};
use bng_wire::ipv4;
use bng_wire::ipv6::{self, IPV6_LEN, next_header};
use bng_wire::l4::UdpHdr;
use zerocopy::FromBytes;

/// ICMP types and codes (RFC 792).
const UNREACHABLE: u8 = 3;
const FRAGMENTATION_NEEDED: u8 = 4;
const TIME_EXCEEDED: u8 = 11;
/// Bytes in front of the quoted packet.
const HEADER_LEN: usize = 8;

/// What the error says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// TTL or hop limit used up.
    TimeExceeded,
    /// Too large for the next link, and not to be fragmented.
    PacketTooBig,
    /// Not to be delivered, with the code.
    Unreachable(u8),
    /// Another error, with its type.
    Other(u8),
}

impl Kind {
    /// Name for the report.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::TimeExceeded => "time-exceeded",
            Self::PacketTooBig => "packet-too-big",
            Self::Unreachable(_) => "unreachable",
            Self::Other(_) => "other",
        }
    }
}

/// An error, as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IcmpError {
    /// Who sent it.
    pub(crate) from: IpAddr,
    /// What it says.
    pub(crate) kind: Kind,
    /// MTU of the next link, bytes of IP; 0 where none is told.
    pub(crate) mtu: u32,
}

/// The packet the error is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quoted {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
}

/// A whole error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    pub(super) what: IcmpError,
    pub(super) quoted: Quoted,
}

fn ports(segment: &[u8]) -> Option<(u16, u16)> {
    let (udp, _) = UdpHdr::ref_from_prefix(segment).ok()?;
    Some((udp.src_port.get(), udp.dst_port.get()))
}

/// Reads an ICMP error about a UDP datagram. `None` for everything else, and for one with a wrong checksum, also in the
/// quoted IPv4 header.
pub(super) fn error(from: IpAddr, to: IpAddr, protocol: u8, message: &[u8]) -> Option<Whole> {
    let (header, quote) = message.split_at_checked(HEADER_LEN)?;
    let (kind, mtu, quoted) = match (from, to) {
        (IpAddr::V4(_), IpAddr::V4(_)) => {
            if protocol != ipv4::protocol::ICMP || checksum(message) != 0 {
                return None;
            }
            let [icmp_type, code, _, _, _, _, high, low] = *header else {
                return None;
            };
            let (kind, mtu) = match (icmp_type, code) {
                (TIME_EXCEEDED, _) => (Kind::TimeExceeded, 0),
                (UNREACHABLE, FRAGMENTATION_NEEDED) => {
                    (Kind::PacketTooBig, u16::from_be_bytes([high, low]).into())
                }
                (UNREACHABLE, code) => (Kind::Unreachable(code), 0),
                _ => return None,
            };
            let ip = ipv4::parse_embedded(quote).ok()?;
            let (src, dst) = ports(quote.get(ip.header_len..)?)?;
            let quoted = Quoted {
                from: (ip.src_addr(), src).into(),
                to: (ip.dst_addr(), dst).into(),
            };
            (kind, mtu, quoted)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            if protocol != next_header::ICMPV6 || icmpv6::checksum(src, dst, message) != 0 {
                return None;
            }
            let (header, _) = Icmpv6Hdr::ref_from_prefix(message).ok()?;
            if !header.is_error() {
                return None;
            }
            let (kind, mtu) = match header.icmp_type {
                icmpv6_type::TIME_EXCEEDED => (Kind::TimeExceeded, 0),
                icmpv6_type::PACKET_TOO_BIG => (Kind::PacketTooBig, header.value.get()),
                icmpv6_type::UNREACHABLE => (Kind::Unreachable(header.code), 0),
                other => (Kind::Other(other), 0),
            };
            // The quote may be cut, so only the fixed header is read.
            let (ip, rest) = ipv6::Ipv6Hdr::ref_from_prefix(quote).ok()?;
            debug_assert_eq!(quote.len() - rest.len(), IPV6_LEN);
            let (src, dst) = ports(rest)?;
            let quoted = Quoted {
                from: (std::net::Ipv6Addr::from(ip.src), src).into(),
                to: (std::net::Ipv6Addr::from(ip.dst), dst).into(),
            };
            (kind, mtu, quoted)
        }
        _ => return None,
    };
    Some(Whole {
        what: IcmpError { from, kind, mtu },
        quoted,
    })
}
