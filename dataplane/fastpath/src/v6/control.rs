//! Stage: packets that go no further than the session, for the control plane.
//!
//! Control gets what it may have to answer: router and neighbour discovery, listener reports, DHCPv6, and pings of the
//! gateway's link-local address, which control alone knows. Whatever else hosts multicast on a link all day (mDNS, SSDP,
//! LLMNR) would only use up the session's share of punts, and is dropped. Filters and policers are about what the gateway
//! forwards, so they do not apply here; the limit on punts does (HZ-15 R1).

use bng_shm::{Counter, SessionLine6, SlotIndex};
use bng_wire::icmpv6::icmpv6_type as icmp;
use bng_wire::ipv4::protocol;
use bng_wire::ipv6::next_header;

use super::address::Kind;
use super::packet::Packet;
use super::session;
use crate::punt_limit;
use crate::verdict::Verdict;
use crate::worker::Stages;

/// UDP port of DHCPv6 servers and relay agents (RFC 8415 section 7.2).
const DHCPV6_SERVER: u16 = 547;

/// What becomes of a packet with a destination of link scope.
#[cold]
#[inline(never)]
pub(crate) fn link_scope(
    stages: &Stages,
    session: &SessionLine6,
    slot: SlotIndex,
    packet: &Packet,
    frame: &[u8],
) -> Verdict {
    let is_own = match Kind::of(packet.src) {
        Kind::LinkLocal => true,
        // Duplicate address detection and the first solicitations (RFC 4861 section 4.1).
        Kind::Reserved => packet.src_addr(frame).is_unspecified(),
        Kind::Unicast => session::has(session, packet.src),
        Kind::Multicast => false,
    };
    let is_unicast = Kind::of(packet.dst) == Kind::LinkLocal;
    if !is_own {
        Verdict::Drop(Counter::SourceSpoofed)
    } else if is_controls(packet, frame, is_unicast) {
        punt_limit::ppp(stages, slot, session.line.generation())
    } else if is_unicast {
        Verdict::Drop(Counter::DestinationGateway)
    } else {
        Verdict::Drop(Counter::DestinationInvalid)
    }
}

fn is_controls(packet: &Packet, frame: &[u8], is_unicast: bool) -> bool {
    let Ok(upper) = packet.upper(frame) else {
        return false;
    };
    let l4 = packet.bytes(frame).get(upper.offset..).unwrap_or(&[]);
    // None of these is ever fragmented (RFC 6980).
    match (upper.protocol, l4) {
        _ if upper.fragment => false,
        (next_header::ICMPV6, [kind, ..]) => match *kind {
            icmp::ROUTER_SOLICITATION
            | icmp::NEIGHBOUR_SOLICITATION
            | icmp::NEIGHBOUR_ADVERTISEMENT
            | icmp::LISTENER_REPORT
            | icmp::LISTENER_DONE
            | icmp::LISTENER_REPORT_V2 => true,
            icmp::ECHO_REQUEST => is_unicast,
            _ => false,
        },
        (protocol::UDP, [_, _, a, b, ..]) => u16::from_be_bytes([*a, *b]) == DHCPV6_SERVER,
        _ => false,
    }
}
