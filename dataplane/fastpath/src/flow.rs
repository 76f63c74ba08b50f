//! What NAT needs of a packet: protocol, the port (or query identifier) on the translated side, TCP flags.

use bng_shm::{Counter, NatProtocol};
use bng_wire::ipv4::{self, IPV4_MIN_LEN, protocol};
use bng_wire::l4::{self, ICMP_LEN, L4, icmp_type};
use bng_wire::{L4Error, U16, checksum};

use crate::ip::Packet;

/// Which way a packet goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the subscriber: the source is translated.
    Upstream,
    /// To the subscriber: the destination is translated.
    Downstream,
}

/// What is translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) protocol: NatProtocol,
    /// Port or query identifier on the translated side: inside upstream, outside downstream.
    pub(crate) port: u16,
    /// TCP control bits; 0 for other protocols.
    pub(crate) tcp_flags: u8,
    /// An ICMP error: `protocol` and `port` are those of the packet it quotes.
    pub(crate) is_error: bool,
    /// An ICMP query message on the way the other kind takes: an answer upstream, a request downstream. It passes between
    /// subscribers alone, and makes no mapping.
    pub(crate) is_turned: bool,
}

impl Flow {
    pub(crate) const EMPTY: Self = Self {
        protocol: NatProtocol::Tcp,
        port: 0,
        tcp_flags: 0,
        is_error: false,
        is_turned: false,
    };
}

fn reason(error: L4Error) -> Counter {
    match error {
        L4Error::Truncated { .. } | L4Error::TcpOffset { .. } => Counter::L4Truncated,
        L4Error::UdpLength { .. } => Counter::UdpLength,
    }
}

/// Reads the flow of a checked packet; `bytes` are exactly the packet's.
#[inline(always)]
pub(crate) fn parse(bytes: &[u8], packet: &Packet, direction: Direction) -> Result<Flow, Counter> {
    if packet.is_later_fragment() {
        return Err(Counter::FragmentUnsupported);
    }
    let payload = bytes.get(IPV4_MIN_LEN..).unwrap_or(&[]);
    let upstream = direction == Direction::Upstream;
    let side = |src: U16, dst: U16| if upstream { src.get() } else { dst.get() };
    let flow = |protocol, port, tcp_flags| Flow {
        protocol,
        port,
        tcp_flags,
        is_error: false,
        is_turned: false,
    };
    match packet.protocol {
        protocol::UDP => {
            let udp = l4::udp(payload, packet.is_fragment()).map_err(reason)?;
            Ok(flow(NatProtocol::Udp, side(udp.src_port, udp.dst_port), 0))
        }
        protocol::TCP => {
            let tcp = l4::tcp(payload, packet.is_fragment()).map_err(reason)?;
            Ok(flow(
                NatProtocol::Tcp,
                side(tcp.src_port, tcp.dst_port),
                tcp.flags(),
            ))
        }
        _ => other(payload, packet, upstream),
    }
}

/// ICMP, or what NAT does not know.
#[cold]
fn other(payload: &[u8], packet: &Packet, upstream: bool) -> Result<Flow, Counter> {
    match l4::parse(packet.protocol, payload, packet.is_fragment()).map_err(reason)? {
        // Requests go out and replies come back (RFC 5508 section 3.1).
        L4::IcmpEcho { request, id } => Ok(query(request != upstream, id)),
        L4::IcmpOther {
            icmp_type: kind @ (TIMESTAMP | TIMESTAMP_REPLY),
        } => {
            let id = payload.get(4..6).and_then(|id| id.first_chunk());
            let id = id.ok_or(Counter::L4Truncated)?;
            let is_turned = (kind == TIMESTAMP) != upstream;
            Ok(query(is_turned, u16::from_be_bytes(*id)))
        }
        L4::IcmpError => quoted(payload, packet, upstream),
        L4::IcmpOther { .. } => Err(Counter::NatIcmpUnsupported),
        L4::Udp { .. } | L4::Tcp { .. } | L4::Other => Err(Counter::NatProtocol),
    }
}

/// Types of the other query that has an identifier at the same place as an echo (RFC 792).
const TIMESTAMP: u8 = 13;
const TIMESTAMP_REPLY: u8 = 14;

/// The flow of an ICMP query or its answer.
const fn query(is_turned: bool, id: u16) -> Flow {
    Flow {
        protocol: NatProtocol::Icmp,
        port: id,
        tcp_flags: 0,
        is_error: false,
        is_turned,
    }
}

/// The flow of the packet an ICMP error quotes (RFC 5508 section 4): it went the other way, so its translated side
/// is the opposite one.
fn quoted(message: &[u8], packet: &Packet, upstream: bool) -> Result<Flow, Counter> {
    if packet.is_fragment() {
        return Err(Counter::FragmentUnsupported);
    }
    if checksum::checksum(message) != 0 {
        return Err(Counter::IcmpChecksum);
    }
    let bad = Counter::NatIcmpEmbedded;
    let quote = message.get(ICMP_LEN..).unwrap_or(&[]);
    let inner = ipv4::parse_embedded(quote).map_err(|_| bad)?;
    // The error must be for whoever sent (or received) what it quotes.
    let paired = if upstream {
        inner.dst == packet.src
    } else {
        inner.src == packet.dst
    };
    if !paired || inner.is_later_fragment() {
        return Err(bad);
    }
    // Eight bytes are all a router must quote (RFC 792); they hold ports or identifier.
    let ports: &[u8; 8] = quote
        .get(inner.header_len..)
        .and_then(|l4| l4.first_chunk())
        .ok_or(bad)?;
    let [a, b, c, d, e, f, ..] = *ports;
    let port = u16::from_be_bytes(if upstream { [c, d] } else { [a, b] });
    let (protocol, port) = match inner.protocol {
        protocol::UDP => (NatProtocol::Udp, port),
        protocol::TCP => (NatProtocol::Tcp, port),
        protocol::ICMP
            if match a {
                icmp_type::ECHO_REPLY | TIMESTAMP_REPLY => upstream,
                icmp_type::ECHO_REQUEST | TIMESTAMP => !upstream,
                _ => false,
            } =>
        {
            (NatProtocol::Icmp, u16::from_be_bytes([e, f]))
        }
        _ => return Err(bad),
    };
    Ok(Flow {
        protocol,
        port,
        tcp_flags: 0,
        is_error: true,
        is_turned: false,
    })
}
