//! Upstream: from access ports to the core. The order of the stages, as text to read.
//!
//! Usual packets go the way of [`crate::usual`]; this is the way of all others, and the one that knows the reasons.

use bng_shm::{Counter, PortBlock, RangeKind, Sender, SlotIndex};
use bng_wire::checksum::Delta;
use bng_wire::ipv4::{IPV4_MIN_LEN, protocol as ip_protocol};
use bng_wire::pppoe::protocol;

use crate::buffer::{BURST, PacketBuf};
use crate::burst::{Burst, Tally};
use crate::destination::Ranges;
use crate::fib::Fib4;
use crate::flow::{self, Direction, Flow};
use crate::ip::{self, Packet};
use crate::verdict::{Origin, Punt, Step, Verdict, drop};
use crate::worker::Stages;
use crate::{
    classify, decap, destination, encap, gateway, nat44, route, session, source_check, ttl, usual,
};

/// The facts of one frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    port: u8,
    /// PPP protocol.
    protocol: u16,
    slot: SlotIndex,
    sender: Sender,
    /// What is wrong inside the PPP frame; it counts only once the session is known to be one.
    packet_defect: Option<Counter>,
    packet: Packet,
    /// What keeps NAT from translating the packet; it counts only for a session behind NAT.
    flow_defect: Option<Counter>,
    flow: Flow,
    /// The flow's home bucket.
    home: u32,
    // From here on: what the session adds.
    generation: u32,
    nat: Option<PortBlock>,
}

impl Frame {
    pub(crate) const EMPTY: Self = Self {
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
    };
}

/// Takes a burst through the stages: the usual packets together, then each of the others alone.
pub(crate) fn run<B: PacketBuf, F: Fib4>(
    stages: &mut Stages,
    facts: &mut [usual::upstream::Fact; BURST],
    fib: &F,
    burst: &mut Burst<'_, B>,
    origin: Origin,
) -> Tally {
    let mut tally = usual::upstream::run(stages, facts, fib, burst);
    if tally.forwarded != burst.bufs.len() {
        for ((buf, verdict), fact) in burst.iter_mut().zip(facts.iter()) {
            if !fact.usual {
                *verdict = tally.add(one(stages, fib, buf, origin));
            }
        }
    }
    tally
}

/// All stages for one packet of whatever kind.
#[inline(never)]
fn one<B: PacketBuf, F: Fib4>(
    stages: &mut Stages,
    fib: &F,
    buf: &mut B,
    origin: Origin,
) -> Step<u8> {
    let mut frame = Frame::EMPTY;
    parse(stages, buf, &mut frame)?;
    check(stages, buf, &mut frame, origin)?;
    let mut answer = [0];
    fib.lookup(&[frame.packet.dst], &mut answer);
    let [answer] = answer;
    forward(stages, buf, &frame, answer)
}

/// Everything the frame itself says.
fn parse<B: PacketBuf>(stages: &Stages, buf: &B, frame: &mut Frame) -> Step<()> {
    frame.port = buf.port();
    let (port, access_index) = stages.ports.access(frame.port)?;
    let (link, rest) = classify::access(buf, port)?;
    let (ppp, l3) = decap::session(&link, rest)?;
    frame.slot = SlotIndex::new(access_index, ppp.session_id);
    frame.sender = session::sender(&link);
    frame.protocol = ppp.protocol;
    frame.packet_defect = Some(Counter::PppProtocolUnsupported);
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

/// Session, source address, gateway, destination, TTL.
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
    if !matches!(frame.protocol, protocol::IPV4 | protocol::IPV6) {
        stages.shm.seen_up(slot, stages.now_ms);
        return Err(Verdict::Punt(Punt::Ppp { slot, generation }));
    }
    session::open(&session)?;
    if let Some(defect) = frame.packet_defect {
        return drop(defect);
    }
    let packet = &frame.packet;
    source_check::framed(&session, packet)?;
    if packet.dst == session.gateway_ip() {
        return gateway::answer(stages, buf.data_mut(), slot, packet, frame.port);
    }
    destination::upstream(&stages.ranges, packet.dst)?;
    ttl::left(packet)?;
    frame.generation = generation;
    frame.nat = session.nat();
    Ok(())
}

/// Next hop, NAT, TTL, new header, counters; returns the egress port.
fn forward<B: PacketBuf>(stages: &mut Stages, buf: &mut B, frame: &Frame, answer: u64) -> Step<u8> {
    let Stages {
        shm,
        ports,
        resolver,
        nat,
        ranges,
        now_ms,
        ..
    } = stages;
    let Frame {
        slot,
        generation,
        packet,
        flow,
        ..
    } = frame;
    let spread = flow_spread(packet, buf.data());
    let egress = route::egress(shm, ports, resolver, answer, packet, spread, *now_ms)?;
    let Some((ip, l4)) = packet.parts(buf.data_mut()) else {
        return drop(Counter::Ipv4Truncated);
    };
    let mut changed = Delta::new();
    if let Some(block) = &frame.nat {
        if let Some(defect) = frame.flow_defect {
            return drop(defect);
        }
        let port = nat.outside_port(shm, (*slot, *generation), block, flow, frame.home)?;
        changed = nat44::rewrite(
            ip,
            l4,
            Direction::Upstream,
            flow,
            block.address.to_bits(),
            port,
        );
    } else {
        routed(ranges, packet)?;
    }
    changed = changed.and(ttl::decrement(ip));
    ip.checksum.set(changed.apply(ip.checksum.get()));
    let Some(source) = ports.ipv4_source(egress.port) else {
        return drop(Counter::NoRoute);
    };
    encap::core(buf, packet.extent(), egress.dst, source);
    shm.count_up(*slot, u64::from(packet.len), *now_ms);
    Ok(egress.port)
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

/// A session without a port block may send from a routed address.
#[cold]
fn routed(ranges: &Ranges, packet: &Packet) -> Step<()> {
    match ranges.find(packet.src) {
        Some(range) if range.kind == RangeKind::Routed => Ok(()),
        _ => drop(Counter::NatNone),
    }
}
