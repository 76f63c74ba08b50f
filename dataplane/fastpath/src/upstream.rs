//! Upstream: from access ports to the core. The order of the stages, as text to read.
//!
//! Usual packets go the way of [`crate::usual`]; this is the way of all others, and the one that knows the reasons.

use bng_shm::{Counter, Meter, PortBlock, RangeKind, Sender, SlotIndex};
use bng_wire::checksum::Delta;
use bng_wire::ipv4::{IPV4_MIN_LEN, protocol as ip_protocol};
use bng_wire::l4::tcp_flag::SYN;
use bng_wire::pppoe::protocol;

use crate::buffer::{BURST, PacketBuf};
use crate::burst::Burst;
use crate::coalesce::Hints;
use crate::destination::Ranges;
use crate::fib::Fib4;
use crate::flow::{self, Direction, Flow};
use crate::icmp_reply::Error;
use crate::ip::{self, Packet};
use crate::nat_fragment::Fragment;
use crate::source_check::Source;
use crate::verdict::{Origin, Step, Verdict, drop};
use crate::worker::Stages;
use crate::{
    classify, decap, destination, encap, filter, fragment, gateway, hairpin, icmp_reply, mss,
    nat_fragment, nat_other, nat44, policy, punt_limit, route, session, source_check, ttl, usual,
    v6,
};

/// The facts of one frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    /// Place of the frame in its burst.
    at: u8,
    port: u8,
    /// PPP protocol.
    protocol: u16,
    pub(crate) slot: SlotIndex,
    sender: Sender,
    /// What is wrong inside the PPP frame; it counts only once the session is known to be one.
    packet_defect: Option<Counter>,
    pub(crate) packet: Packet,
    /// What keeps NAT from translating the packet; it counts only for a session behind NAT.
    flow_defect: Option<Counter>,
    flow: Flow,
    /// The flow's home bucket.
    home: u32,
    // From here on: what the session adds.
    generation: u32,
    nat: Option<PortBlock>,
    /// Of a packet that NAT translates in fragments.
    pub(crate) fragment: Option<Fragment>,
    /// It is for a NAT address: another subscriber's, or the sender's own.
    is_hairpin: bool,
    /// The upstream policer.
    pub(crate) meter: Meter,
    /// Largest MSS of a SYN; 0 when there is nothing to lower.
    mss: u16,
}

impl Frame {
    pub(crate) const EMPTY: Self = Self {
        at: 0,
        port: 0,
        protocol: 0,
        slot: SlotIndex(0),
        sender: Sender::new([0; 6], None, None),
        packet_defect: None,
        packet: Packet::EMPTY,
        flow_defect: None,
        flow: Flow::EMPTY,
        home: 0,
        generation: 0,
        nat: None,
        fragment: None,
        is_hairpin: false,
        meter: Meter {
            cost: 0,
            burst_ns: 0,
        },
        mss: 0,
    };
}

/// Takes a burst through the stages: the usual packets together, then each of the others alone. Returns how many are
/// forwarded.
pub(crate) fn run<B: PacketBuf, F: Fib4, const HINTED: bool>(
    stages: &mut Stages,
    facts: &mut [usual::upstream::Fact; BURST],
    fib: &F,
    burst: &mut Burst<'_, B>,
    origin: Origin,
    hints: &Hints,
) -> usize {
    let forwarded = usual::upstream::run::<B, F, HINTED>(stages, facts, fib, burst, hints);
    if forwarded == burst.bufs.len() {
        return forwarded;
    }
    let usual = facts.iter().map(|fact| fact.usual);
    forwarded + burst.others(usual, |at, buf| one(stages, fib, at, buf, origin))
}

/// All stages for one packet of whatever kind.
#[inline(never)]
fn one<B: PacketBuf, F: Fib4>(
    stages: &mut Stages,
    fib: &F,
    at: u8,
    buf: &mut B,
    origin: Origin,
) -> Step<u8> {
    let mut frame = Frame { at, ..Frame::EMPTY };
    parse(stages, buf, &mut frame)?;
    let result = check(stages, buf, &mut frame, origin)
        .and_then(|()| look_up_and_forward(stages, fib, buf, &frame));
    if let Some(fragment) = &frame.fragment
        && !frame.packet.is_later_fragment()
    {
        nat_fragment::settle_sent(stages, fragment, &result);
    }
    result
}

fn look_up_and_forward<B: PacketBuf, F: Fib4>(
    stages: &mut Stages,
    fib: &F,
    buf: &mut B,
    frame: &Frame,
) -> Step<u8> {
    let mut answer = [0];
    fib.lookup(&[frame.packet.dst], &mut answer);
    let [answer] = answer;
    forward(stages, buf, frame, answer)
}

/// Everything the frame itself says.
fn parse<B: PacketBuf>(stages: &Stages, buf: &B, frame: &mut Frame) -> Step<()> {
    frame.port = buf.port();
    let (port, access_index) = stages.ports.access(frame.port)?;
    if v6::upstream::is_ours(buf) {
        return stages.set_aside(frame.at);
    }
    let (link, rest) = classify::access(buf, port, stages.ports.vlans(frame.port))?;
    let (ppp, l3) = decap::session(&link, rest)?;
    frame.slot = SlotIndex::new(access_index, ppp.session_id);
    frame.sender = session::sender(&link);
    frame.protocol = ppp.protocol;
    frame.packet_defect = None;
    if ppp.protocol == protocol::IPV4 {
        packet(stages, ppp.payload, l3, frame);
    }
    Ok(())
}

/// The IPv4 packet inside and its flow, or what is wrong with them.
fn packet(stages: &Stages, payload: &[u8], l3: usize, frame: &mut Frame) {
    match ip::check(payload, l3) {
        Ok(packet) => (frame.packet_defect, frame.packet) = (None, packet),
        Err(defect) => {
            frame.packet_defect = Some(defect);
            return;
        }
    }
    let bytes = payload.get(..usize::from(frame.packet.len)).unwrap_or(&[]);
    match flow::parse(bytes, &frame.packet, Direction::Upstream) {
        Ok(flow) => {
            (frame.flow_defect, frame.flow) = (None, flow);
            frame.home = stages.nat.home(frame.slot, &flow);
        }
        Err(defect) => frame.flow_defect = Some(defect),
    }
}

/// Session, policy, source address, filter, gateway, destination, TTL.
fn check<B: PacketBuf>(
    stages: &mut Stages,
    buf: &mut B,
    frame: &mut Frame,
    origin: Origin,
) -> Step<()> {
    let unknown = Counter::SessionUnknown;
    let slot = frame.slot;
    session::owned(
        stages.shm.reader(),
        slot,
        stages.shm.index(),
        origin,
        unknown,
    )?;
    let session = session::live(stages.shm.reader(), slot, unknown)?;
    if !session.is_from(frame.sender) {
        return drop(unknown);
    }
    // Network protocols are data; whatever else PPP carries is the control plane's, to answer or to reject.
    let generation = session.generation();
    if frame.protocol != protocol::IPV4 {
        return Err(punt_limit::ppp(stages, slot, generation));
    }
    session::open(&session)?;
    source_check::addressed(&session)?;
    if let Some(defect) = frame.packet_defect {
        return drop(defect);
    }
    let packet = &frame.packet;
    let policy = policy::of(stages.shm.reader(), &session)?;
    let reader = stages.shm.reader();
    let source = source_check::upstream(&stages.ranges, reader, (slot, &session), &policy, packet)?;
    frame.nat = match source {
        Source::Session => session.nat(),
        Source::Network => None,
    };
    if packet.is_fragment() && frame.nat.is_some() && packet.dst != session.gateway_ip() {
        let session = (slot, generation);
        let fragment = nat_fragment::sent(stages, session, packet, buf.data(), origin)?;
        frame.fragment = Some(fragment);
    }
    let followed = frame.fragment.as_ref().map(|fragment| &fragment.note);
    let followed = followed.filter(|_| packet.is_later_fragment());
    filter::upstream(&stages.filters, &policy, packet, buf.data(), followed)?;
    if packet.dst == session.gateway_ip() {
        return gateway::answer(stages, buf.data_mut(), slot, packet, frame.port, &policy);
    }
    frame.is_hairpin = match destination::upstream(&stages.ranges, reader, packet.dst) {
        Err(Verdict::Drop(Counter::DestinationSubscriber))
            if frame.nat.is_some() && hairpin::is_one_of_ours(&stages.ranges, packet.dst) =>
        {
            true
        }
        other => other.map(|()| false)?,
    };
    if ttl::left(packet).is_err() {
        let (error, reason) = (Error::TimeExceeded, Counter::TtlExpired);
        return Err(icmp_reply::to_subscriber(
            stages, buf, packet, slot, error, reason,
        ));
    }
    frame.generation = generation;
    if frame.nat.is_none() && source == Source::Session {
        routed(&stages.ranges, session.framed_ip())?;
    }
    frame.meter = policy.up();
    frame.mss = match frame.flow_defect {
        None if frame.flow.tcp_flags & SYN != 0 && policy.mss_clamp() => {
            session.mtu().saturating_sub(mss::HEADERS_V4)
        }
        _ => 0,
    };
    Ok(())
}

/// Next hop, size, policer, NAT, TTL, MSS, new header, counters; returns the egress port.
fn forward<B: PacketBuf>(stages: &mut Stages, buf: &mut B, frame: &Frame, answer: u64) -> Step<u8> {
    if frame.is_hairpin {
        return hairpin::turn(stages, buf, frame);
    }
    let Stages {
        shm,
        ports,
        resolver,
        now_ms,
        now_ns,
        ..
    } = stages;
    let Frame { slot, packet, .. } = frame;
    let spread = flow_spread(packet, buf.data());
    let egress = match route::egress(shm, ports, resolver, answer, packet, spread, *now_ms) {
        Ok(egress) => egress,
        Err(why) => return Err(unroutable(stages, buf, packet, *slot, why)),
    };
    let is_oversized = packet.len > egress.mtu;
    if is_oversized && packet.dont_fragment() {
        let error = Error::FragmentationNeeded { mtu: egress.mtu };
        let reason = Counter::PacketTooBig;
        return Err(icmp_reply::to_subscriber(
            stages, buf, packet, *slot, error, reason,
        ));
    }
    policy::police_up(shm, *slot, frame.meter, packet.len, *now_ns)?;
    let outside = match outside(stages, frame) {
        Ok(outside) => outside,
        Err(why) => return Err(unmapped(stages, buf, packet, *slot, why)),
    };
    let changed = rewrite(stages, buf, frame, outside)?;
    let Stages { shm, ports, .. } = stages;
    let Some((ip, _)) = packet.parts(buf.data_mut()) else {
        return drop(Counter::Ipv4Truncated);
    };
    let changed = changed.and(ttl::decrement(ip));
    ip.checksum.set(changed.apply(ip.checksum.get()));
    let Some(source) = ports.ipv4_source(egress.port) else {
        return drop(Counter::NoRoute);
    };
    encap::core(buf, packet.extent(), egress.dst, source);
    shm.count_up(*slot, u64::from(packet.len), stages.now_ms);
    if is_oversized {
        let counter = Counter::ForwardedUpstream;
        return Err(fragment::later(stages, counter, egress.port, egress.mtu));
    }
    Ok(egress.port)
}

/// The address and port the packet leaves with, if it is to be translated. A later fragment has no port, nor
/// has a protocol without ports.
pub(crate) fn outside(stages: &mut Stages, frame: &Frame) -> Step<Option<(u32, u16)>> {
    let Frame {
        slot,
        generation,
        flow,
        ..
    } = frame;
    let Some(block) = &frame.nat else {
        return Ok(None);
    };
    if frame.packet.is_later_fragment() && frame.fragment.is_some() {
        return Ok(Some((block.address.to_bits(), 0)));
    }
    if frame.flow_defect == Some(Counter::NatProtocol) {
        nat_other::sent(stages, (*slot, *generation), block, &frame.packet)?;
        return Ok(Some((block.address.to_bits(), 0)));
    }
    if let Some(defect) = frame.flow_defect {
        return drop(defect);
    }
    if flow.is_turned && !frame.is_hairpin {
        return drop(Counter::NatIcmpUnsupported);
    }
    let Stages { shm, nat, .. } = stages;
    let port = nat.outside_port(shm, (*slot, *generation), block, flow, frame.home)?;
    Ok(Some((block.address.to_bits(), port)))
}

/// Translates the packet and lowers its MSS. Returns the change of the IPv4 header, whose checksum is the caller's to
/// update.
pub(crate) fn rewrite<B: PacketBuf>(
    stages: &Stages,
    buf: &mut B,
    frame: &Frame,
    outside: Option<(u32, u16)>,
) -> Step<Delta> {
    let Some((ip, l4)) = frame.packet.parts(buf.data_mut()) else {
        return drop(Counter::Ipv4Truncated);
    };
    let mut changed = match outside {
        Some((address, _)) if frame.flow_defect.is_some() => {
            nat44::set_address(ip, Direction::Upstream, address)
        }
        Some((address, port)) => {
            nat44::rewrite(ip, l4, Direction::Upstream, &frame.flow, address, port)
        }
        None => Delta::new(),
    };
    if let Some(fragment) = &frame.fragment {
        changed = changed.and(nat_fragment::set_identification(ip, fragment));
    }
    if frame.mss != 0 && mss::clamp(l4, frame.mss) {
        stages.shm.count(Counter::MssClamped, 1);
    }
    Ok(changed)
}

/// Which of equal paths the packet takes.
fn flow_spread(packet: &Packet, frame: &[u8]) -> u32 {
    let l4 = packet.bytes(frame).get(IPV4_MIN_LEN..);
    let ports = match (packet.protocol, l4.and_then(|l4| l4.first_chunk())) {
        (ip_protocol::UDP | ip_protocol::TCP, Some(ports)) if !packet.is_fragment() => {
            u32::from_be_bytes(*ports)
        }
        _ => 0,
    };
    route::spread(packet.src, packet.dst, ports)
}

/// The end of a packet without a next hop. The subscriber is told if there is no way at all.
#[cold]
#[inline(never)]
fn unroutable<B: PacketBuf>(
    stages: &mut Stages,
    buf: &mut B,
    packet: &Packet,
    slot: SlotIndex,
    why: Verdict,
) -> Verdict {
    match why {
        Verdict::Drop(reason @ (Counter::NoRoute | Counter::RouteBlackhole)) => {
            icmp_reply::to_subscriber(stages, buf, packet, slot, Error::NetUnreachable, reason)
        }
        other => other,
    }
}

/// The end of a packet that gets no mapping. The subscriber is told, so that it does not try for long (RFC 5508 REQ-8).
#[cold]
#[inline(never)]
fn unmapped<B: PacketBuf>(
    stages: &mut Stages,
    buf: &mut B,
    packet: &Packet,
    slot: SlotIndex,
    why: Verdict,
) -> Verdict {
    match why {
        Verdict::Drop(
            reason @ (Counter::NatBlockExhausted
            | Counter::NatTableFull
            | Counter::NatProtocolTaken),
        ) => icmp_reply::to_subscriber(stages, buf, packet, slot, Error::Prohibited, reason),
        other => other,
    }
}

/// A session without a port block may send if its address is a routed one.
#[cold]
fn routed(ranges: &Ranges, framed_ip: u32) -> Step<()> {
    match ranges.find(framed_ip) {
        Some(range) if range.kind == RangeKind::Routed => Ok(()),
        _ => drop(Counter::NatNone),
    }
}
