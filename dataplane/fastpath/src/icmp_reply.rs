//! ICMP errors the gateway sends about packets it does not forward (RFC 792, RFC 1122 section 3.2.2, RFC 1812
//! section 4.3).
//!
//! The error is made in the offending packet's own buffer and goes back where that came from: to the subscriber in its
//! session, to a remote host by the port, and to the station, that sent the frame. The packet is counted under the reason
//! it was dropped for, the error as `icmp_error_sent`. Errors are limited per second, worker and side; they are packets of ours,
//! so neither policer nor filter is asked, and the session's statistics count them as sent to the subscriber.

use bng_shm::{Counter, SlotIndex};
use bng_wire::checksum::Sum;
use bng_wire::ethernet::MacAddr;
use bng_wire::ipv4::{IPV4_MIN_LEN, NewIpv4, protocol};
use bng_wire::l4::{ICMP_LEN, icmp_type};
use bng_wire::pppoe::PPP_LEN;

use crate::buffer::PacketBuf;
use crate::ip::Packet;
use crate::verdict::Verdict;
use crate::worker::Stages;

/// TTL of our own packets (RFC 1700).
const OWN_TTL: u8 = 64;
/// Precedence 6, internetwork control (RFC 1812 section 4.3.2.5).
const TOS: u8 = 0xc0;
/// Longest error (RFC 1812 section 4.3.2.3).
const MAX_LEN: usize = 576;
const HEAD_LEN: usize = IPV4_MIN_LEN + ICMP_LEN;
/// The least an error quotes of a packet: its header and eight bytes (RFC 792).
const MIN_QUOTE: usize = IPV4_MIN_LEN + 8;
/// The longest link layer: two tags, PPPoE and PPP.
const MAX_LINK: usize = 30;

/// What is wrong with the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Error {
    /// TTL exceeded in transit, type 11 code 0.
    TimeExceeded,
    /// Fragmentation needed and "don't fragment" set, type 3 code 4 with the next hop's MTU (RFC 1191 section 4).
    FragmentationNeeded { mtu: u16 },
    /// Network unreachable, type 3 code 0.
    NetUnreachable,
    /// Communication administratively prohibited, type 3 code 13 (RFC 5508 REQ-8).
    Prohibited,
}

impl Error {
    /// Type, code, and the second half of the message's header.
    const fn fields(self) -> (u8, u8, u16) {
        match self {
            Self::TimeExceeded => (icmp_type::TIME_EXCEEDED, 0, 0),
            Self::FragmentationNeeded { mtu } => (icmp_type::UNREACHABLE, 4, mtu),
            Self::NetUnreachable => (icmp_type::UNREACHABLE, 0, 0),
            Self::Prohibited => (icmp_type::UNREACHABLE, 13, 0),
        }
    }
}

/// Answers a packet of a session, unchanged so far, that is dropped for `reason`.
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
    // Read again: the stages keep no more of the entry than forwarding needs.
    let Some(Ok(session)) = stages.shm.reader().session_line(slot) else {
        return Verdict::Drop(reason);
    };
    let way = Way {
        source: session.gateway_ip(),
        mtu: session.mtu(),
        is_session: true,
    };
    let Some(len) = answer(stages, buf, packet, &way, error) else {
        return Verdict::Drop(reason);
    };
    stages.shm.count(reason, 1);
    stages.shm.count_down(slot, len);
    Verdict::Forward { port: buf.port() }
}

/// Answers a packet from the core, unchanged so far, that is dropped for `reason`. The error comes from the port's address
/// or, if the kernel has given it none, from `instead`.
#[cold]
#[inline(never)]
pub(crate) fn to_core<B: PacketBuf>(
    stages: &mut Stages,
    buf: &mut B,
    packet: &Packet,
    instead: u32,
    error: Error,
    reason: Counter,
) -> Verdict {
    let port = buf.port();
    let own = stages.ranges.port_addresses(port).ipv4;
    let way = Way {
        source: own.map_or(instead, |address| address.to_bits()),
        mtu: stages.ports.get(port).map_or(0, |port| port.mtu),
        is_session: false,
    };
    match answer(stages, buf, packet, &way, error) {
        Some(_) => {
            stages.shm.count(reason, 1);
            Verdict::Forward { port }
        }
        None => Verdict::Drop(reason),
    }
}

/// How an error goes back.
struct Way {
    /// Our address there.
    source: u32,
    /// Largest IP packet, bytes.
    mtu: u16,
    is_session: bool,
}

/// Makes the error in the packet's place and counts it; its length, or `None` if none may be sent.
fn answer<B: PacketBuf>(
    stages: &mut Stages,
    buf: &mut B,
    packet: &Packet,
    way: &Way,
    error: Error,
) -> Option<u64> {
    let own_mac = stages.ports.get(buf.port())?.mac;
    let room = usize::from(way.mtu).min(MAX_LEN).checked_sub(HEAD_LEN)?;
    let quoted = usize::from(packet.len).min(room);
    let is_sent = way.source != 0
        && quoted >= MIN_QUOTE.min(packet.len.into())
        && may_answer(packet, buf.data());
    if !is_sent || !allowed(stages, way.is_session) {
        return None;
    }
    let quote = packet.bytes(buf.data()).get(..quoted)?;
    let head = head(packet, quote, way.source, error)?;
    if !replace(
        buf,
        packet.l3.into(),
        quoted,
        &head,
        own_mac,
        way.is_session,
    ) {
        return None;
    }
    stages.shm.count(Counter::IcmpErrorSent, 1);
    Some((HEAD_LEN + quoted) as u64)
}

/// Takes an error from this second's, of either IP version; what is over the limit is counted. Subscribers and the core have
/// a limit each, so that a flood from one side does not silence the errors path MTU discovery of the other relies on.
pub(crate) fn allowed(stages: &mut Stages, to_subscriber: bool) -> bool {
    let [to_core_limit, to_subscriber_limit] = &mut stages.icmp_limits;
    let limit = if to_subscriber {
        to_subscriber_limit
    } else {
        to_core_limit
    };
    let allowed = limit.allow(stages.now_ms);
    if !allowed {
        stages.shm.count(Counter::IcmpErrorLimited, 1);
    }
    allowed
}

/// Whether an error may be sent about a packet (RFC 1122 section 3.2.2, RFC 1812 section 4.3.2.7): not about errors, nor
/// fragments but the first, nor what one host did not send or what is not for one host.
fn may_answer(packet: &Packet, frame: &[u8]) -> bool {
    // Types of the query messages, requests and replies (RFC 792, RFC 950).
    let is_query = |kind: u8| matches!(kind, 0 | 8 | 13..=18);
    let one_host = |address: u32| !matches!(address >> 24, 0 | 127 | 224..);
    !packet.is_later_fragment()
        && one_host(packet.src)
        && one_host(packet.dst)
        && (packet.protocol != protocol::ICMP
            || packet
                .bytes(frame)
                .get(IPV4_MIN_LEN)
                .is_some_and(|kind| is_query(*kind)))
}

/// IPv4 and ICMP header of an error that quotes `quote`.
fn head(packet: &Packet, quote: &[u8], source: u32, error: Error) -> Option<[u8; HEAD_LEN]> {
    let mut head = [0; HEAD_LEN];
    let fields = NewIpv4 {
        src: source,
        dst: packet.src,
        protocol: protocol::ICMP,
        ttl: OWN_TTL,
        tos: TOS,
        id: 0,
        dont_fragment: true,
    };
    bng_wire::ipv4::write(&mut head, &fields, ICMP_LEN + quote.len())?;
    let icmp = head.last_chunk_mut::<ICMP_LEN>()?;
    let (kind, code, mtu) = error.fields();
    let [mtu_high, mtu_low] = mtu.to_be_bytes();
    *icmp = [kind, code, 0, 0, 0, 0, mtu_high, mtu_low];
    let [high, low] = Sum::new().bytes(icmp).bytes(quote).finish().to_be_bytes();
    (icmp[2], icmp[3]) = (high, low);
    Some(head)
}

/// Puts a packet of ours in the place of one in the frame: `head`, then the first `quoted` bytes of the packet at offset
/// `l3`. The link layer is turned round: to the station it came from, from `own_mac`, the tags as they were. In a
/// session's frame (`is_session`) the PPPoE length is set. False, and the frame is good for nothing, if the buffer has no
/// room or the sender is no station.
pub(crate) fn replace<B: PacketBuf>(
    buf: &mut B,
    l3: usize,
    quoted: usize,
    head: &[u8],
    own_mac: MacAddr,
    is_session: bool,
) -> bool {
    let mut link = [0; MAX_LINK];
    let Some((link, old)) = link.get_mut(..l3).zip(buf.data().get(..l3)) else {
        return false;
    };
    link.copy_from_slice(old);
    if !turn_round(link, own_mac) {
        return false;
    }
    if is_session && let Some(length) = link.get_mut(l3 - PPP_LEN - 2..l3 - PPP_LEN) {
        let len = PPP_LEN + head.len() + quoted;
        length.copy_from_slice(&(len as u16).to_be_bytes());
    }
    buf.truncate(l3 + quoted);
    if !buf.prepend(head.len()) {
        return false;
    }
    let places = buf.data_mut().iter_mut();
    for (place, byte) in places.zip(link.iter().chain(head)) {
        *place = *byte;
    }
    true
}

/// Swaps source and destination of an Ethernet header, with `own_mac` as the new source.
fn turn_round(link: &mut [u8], own_mac: MacAddr) -> bool {
    use bng_wire::EthHdr;
    use zerocopy::FromBytes;
    match EthHdr::mut_from_prefix(link) {
        Ok((eth, _)) if eth.src.is_unicast() => {
            (eth.dst, eth.src) = (eth.src, own_mac);
            true
        }
        _ => false,
    }
}
