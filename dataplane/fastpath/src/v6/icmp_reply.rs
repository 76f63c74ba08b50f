//! ICMPv6 errors in place of packets that are not forwarded (RFC 4443).
//!
//! They come from the kernel's global address on the port or, if it has none there, on another port. A gateway without any
//! answers from the subnet-router anycast address of the session's /64 (RFC 4291 section 2.6.1), whose router it is.

use std::net::Ipv6Addr;

use bng_shm::{Counter, SessionLine6, SlotIndex};
use bng_wire::Icmpv6Hdr;
use bng_wire::ethernet;
use bng_wire::icmpv6::{self, ERROR_LEN, Icmpv6Error, icmpv6_type, unreachable_code};
use bng_wire::ipv6::{MIN_MTU, next_header};
use zerocopy::FromBytes;

use super::address::Kind;
use super::local;
use super::packet::Packet;
use crate::buffer::PacketBuf;
use crate::encap::Extent;
use crate::icmp_reply::{allowed, replace};
use crate::verdict::Verdict;
use crate::worker::Stages;

/// What is wrong with the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Error {
    /// Hop limit exceeded in transit, type 3 code 0.
    TimeExceeded,
    /// Packet too big, type 2, with the next hop's MTU.
    PacketTooBig { mtu: u16 },
    /// No route to destination, type 1 code 0.
    NoRoute,
    /// Address unreachable, type 1 code 3.
    AddressUnreachable,
}

impl Error {
    fn fields(self) -> Icmpv6Error {
        let (icmp_type, code, value) = match self {
            Self::TimeExceeded => (icmpv6_type::TIME_EXCEEDED, 0, 0),
            Self::PacketTooBig { mtu } => (icmpv6_type::PACKET_TOO_BIG, 0, mtu.into()),
            Self::NoRoute => (icmpv6_type::UNREACHABLE, unreachable_code::NO_ROUTE, 0),
            Self::AddressUnreachable => (icmpv6_type::UNREACHABLE, unreachable_code::ADDRESS, 0),
        };
        Icmpv6Error {
            icmp_type,
            code,
            value,
        }
    }
}

/// Our address towards a session: the anycast address of its /64.
fn anycast(session: &SessionLine6) -> Ipv6Addr {
    Ipv6Addr::from_bits(u128::from(session.prefix()) << 64)
}

/// Answers a packet of a session of this worker, unchanged so far, that is dropped for `reason`.
#[cold]
#[inline(never)]
pub(crate) fn to_subscriber<B: PacketBuf>(
    stages: &mut Stages,
    buf: &mut B,
    packet: &Packet,
    slot: SlotIndex,
    error: Error,
    reason: Counter,
) -> Verdict {
    let Some(Ok(session)) = stages.shm.reader().session_line6(slot) else {
        return Verdict::Drop(reason);
    };
    let port = buf.port();
    let source = stages.ranges.v6.own(port).unwrap_or(anycast(&session));
    let mtu = session.line.mtu().into();
    let way = Way {
        source,
        mtu: Some(mtu),
        to_subscriber: true,
    };
    match answer(stages, buf, packet, &way, error) {
        Some(extent) => {
            stages.shm.count(reason, 1);
            stages.shm.count_down(slot, extent.len.into());
            Verdict::Forward { port }
        }
        None => Verdict::Drop(reason),
    }
}

/// Answers a packet for `session`, unchanged so far, that came from a core port or was turned there from another session's
/// ([`local`]): to the station it came from, or to the subscriber that sent it.
#[cold]
#[inline(never)]
pub(crate) fn to_sender<B: PacketBuf>(
    stages: &mut Stages,
    buf: &mut B,
    packet: &Packet,
    session: &SessionLine6,
    error: Error,
    reason: Counter,
) -> Verdict {
    let port = buf.port();
    let source = stages.ranges.v6.own(port).unwrap_or(anycast(session));
    let to_subscriber = stages.ranges.v6.find(packet.src).is_some();
    // With a foreign source (its policy allows that) a subscriber's packet does not tell the way back to its session.
    if !to_subscriber && is_turned(stages, buf) {
        return Verdict::Drop(reason);
    }
    let way = Way {
        source,
        mtu: None,
        to_subscriber,
    };
    let Some(extent) = answer(stages, buf, packet, &way, error) else {
        return Verdict::Drop(reason);
    };
    stages.shm.count(reason, 1);
    if !to_subscriber {
        return Verdict::Forward { port };
    }
    match local::from_us(stages, buf, extent) {
        Ok(port) => Verdict::Forward { port },
        Err(why) => why,
    }
}

/// Whether a frame comes from ourselves: [`local`] has turned it round.
fn is_turned<B: PacketBuf>(stages: &Stages, buf: &B) -> bool {
    let link = ethernet::parse(buf.data());
    let own = stages.ports.get(buf.port()).map(|port| port.mac);
    link.is_ok_and(|link| Some(link.src) == own)
}

/// How an error goes back.
struct Way {
    /// Our address there.
    source: Ipv6Addr,
    /// MTU of the session whose frame it is made in; `None` in a frame from a core port.
    mtu: Option<usize>,
    /// Whose limit it comes under.
    to_subscriber: bool,
}

/// Makes the error in the packet's place and counts it; where it lies, or `None` if none may be sent.
fn answer<B: PacketBuf>(
    stages: &mut Stages,
    buf: &mut B,
    packet: &Packet,
    way: &Way,
    error: Error,
) -> Option<Extent> {
    let own_mac = stages.ports.get(buf.port())?.mac;
    if !may_answer(packet, buf.data(), error) || !allowed(stages, way.to_subscriber) {
        return None;
    }
    let bytes = packet.bytes(buf.data());
    // A session below the minimum MTU gets what it carries.
    let room = way
        .mtu
        .unwrap_or(MIN_MTU)
        .min(MIN_MTU)
        .checked_sub(ERROR_LEN)?;
    let quote = bytes.get(..bytes.len().min(room))?;
    let destination = packet.src_addr(buf.data());
    let head = icmpv6::error_head(way.source, destination, error.fields(), quote)?;
    let (l3, quoted) = (packet.extent.l3, quote.len());
    if !replace(buf, l3.into(), quoted, &head, own_mac, way.mtu.is_some()) {
        return None;
    }
    stages.shm.count(Counter::IcmpErrorSent, 1);
    // At most 1,280 bytes.
    let len = (ERROR_LEN + quoted) as u16;
    Some(Extent { l3, len })
}

/// Whether an error may be sent about a packet (RFC 4443 section 2.4 (e)): not about errors and redirects, nor what one
/// host did not send; about what is not for one host only that it is too big. A packet whose upper layer is not found may
/// be an error.
fn may_answer(packet: &Packet, frame: &[u8], error: Error) -> bool {
    let multicast = Kind::of(packet.dst) == Kind::Multicast;
    let is_error = || match packet.upper(frame) {
        Ok(upper) if upper.protocol != next_header::ICMPV6 => false,
        Ok(upper) if !upper.later_fragment => packet
            .bytes(frame)
            .get(upper.offset..)
            .and_then(|message| Icmpv6Hdr::ref_from_prefix(message).ok())
            .is_none_or(|(icmp, _)| icmp.is_error()),
        // A later fragment of ICMPv6, which may be an error's.
        _ => true,
    };
    Kind::of(packet.src) == Kind::Unicast
        && (!multicast || matches!(error, Error::PacketTooBig { .. }))
        && !is_error()
}
