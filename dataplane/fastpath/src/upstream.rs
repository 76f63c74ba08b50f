//! Upstream: from access ports to the core. The order of the stages, as text to read.
//!
//! Pass 1 parses and prefetches, pass 2 checks, the route look-up takes the whole burst at once, pass 3 rewrites.

use bng_shm::{Counter, PortBlock, RangeKind, SlotIndex};
use bng_wire::checksum::Delta;
use bng_wire::pppoe::protocol;
use bng_wire::{MacAddr, VlanStack};

use crate::buffer::{BURST, PacketBuf};
use crate::fib::Fib4;
use crate::flow::{self, Direction, Flow};
use crate::ip::{self, Packet};
use crate::nat_table::Key;
use crate::verdict::{Origin, Punt, Step, Verdict, drop};
use crate::worker::Stages;
use crate::{
    classify, decap, destination, encap, gateway, nat44, route, session, source_check, ttl,
};

/// How far ahead of the parser frames are prefetched.
const AHEAD: usize = 8;

/// One frame's facts, filled in place by one pass after the other. Nothing of it is moved between passes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scratch {
    /// Place of the frame in its burst.
    at: u8,
    port: u8,
    own_mac: MacAddr,
    src: MacAddr,
    tags: VlanStack,
    slot: SlotIndex,
    /// PPP protocol.
    protocol: u16,
    /// What is wrong inside the PPP frame; it counts only once the session is known to be one.
    packet_defect: Option<Counter>,
    packet: Packet,
    /// What keeps NAT from translating the packet; it counts only for a session behind NAT.
    flow_defect: Option<Counter>,
    flow: Flow,
    /// The flow's key, without the session's generation, and its home bucket.
    key: (Key, u32),
    // From here on: pass 2.
    generation: u32,
    nat: Option<PortBlock>,
}

impl Scratch {
    pub(crate) const EMPTY: Self = Self {
        at: 0,
        port: 0,
        own_mac: MacAddr::ZERO,
        src: MacAddr::ZERO,
        tags: VlanStack::UNTAGGED,
        slot: SlotIndex(0),
        protocol: 0,
        packet_defect: None,
        packet: Packet::EMPTY,
        flow_defect: None,
        flow: Flow::EMPTY,
        key: (Key::NONE, 0),
        generation: 0,
        nat: None,
    };
}

/// At most [`BURST`] buffers; `verdicts` has one place for each.
pub(crate) fn run<B: PacketBuf, F: Fib4>(
    stages: &mut Stages,
    scratch: &mut [Scratch; BURST],
    fib: &F,
    bufs: &mut [B],
    verdicts: &mut [Verdict],
    origin: Origin,
) {
    bufs.iter().take(AHEAD).for_each(B::prefetch);
    let mut parsed = 0;
    for (at, (buf, verdict)) in bufs.iter().zip(verdicts.iter_mut()).enumerate() {
        if let Some(next) = bufs.get(at + AHEAD) {
            next.prefetch();
        }
        let Some(place) = scratch.get_mut(parsed) else {
            break;
        };
        place.at = at as u8;
        match parse(stages, buf, place) {
            Ok(()) => parsed += 1,
            Err(end) => *verdict = end,
        }
    }

    let mut destinations = [0; BURST];
    let mut checked = 0;
    for from in 0..parsed {
        let Some(frame) = scratch.get_mut(from) else {
            break;
        };
        let (Some(buf), Some(verdict)) = of(bufs, verdicts, frame.at) else {
            break;
        };
        match check(stages, buf, frame, origin) {
            Ok(()) => {
                if let Some(place) = destinations.get_mut(checked) {
                    *place = frame.packet.dst;
                }
                // What goes on closes ranks; most bursts have no gap.
                if from != checked {
                    scratch.copy_within(from..=from, checked);
                }
                checked += 1;
            }
            Err(end) => *verdict = end,
        }
    }

    let mut answers = [0; BURST];
    let (destinations, answers) = (destinations.get(..checked), answers.get_mut(..checked));
    let (Some(destinations), Some(answers)) = (destinations, answers) else {
        return;
    };
    fib.lookup(destinations, answers);

    let mut forwarded = 0;
    for (frame, answer) in scratch.iter().zip(answers) {
        let (Some(buf), Some(verdict)) = of(bufs, verdicts, frame.at) else {
            break;
        };
        *verdict = match forward(stages, buf, frame, *answer) {
            Ok(port) => {
                forwarded += 1;
                Verdict::Forward { port }
            }
            Err(end) => end,
        };
    }
    stages.shm.count(Counter::ForwardedUpstream, forwarded);
}

/// The buffer and the verdict of a place in the burst.
#[inline(always)]
pub(crate) fn of<'a, B>(
    bufs: &'a mut [B],
    verdicts: &'a mut [Verdict],
    at: u8,
) -> (Option<&'a mut B>, Option<&'a mut Verdict>) {
    (
        bufs.get_mut(usize::from(at)),
        verdicts.get_mut(usize::from(at)),
    )
}

/// Pass 1: everything the frame itself says; prefetches the session and the NAT bucket.
#[inline(always)]
fn parse<B: PacketBuf>(stages: &Stages, buf: &B, frame: &mut Scratch) -> Step<()> {
    let (port, access_index) = stages.ports.access(buf.port())?;
    let link = classify::access(buf, port)?;
    let data = buf.data();
    let (ppp, l3) = decap::session(data, &link)?;
    frame.slot = SlotIndex::new(access_index, ppp.session_id);
    stages.shm.reader().prefetch_session(frame.slot);
    frame.port = buf.port();
    frame.own_mac = port.mac;
    frame.src = link.src;
    frame.tags = link.tags;
    frame.protocol = ppp.protocol;
    frame.packet_defect = Some(Counter::PppProtocolUnsupported);
    if ppp.protocol == protocol::IPV4 {
        packet(stages, data, ppp.payload, l3, frame);
    }
    Ok(())
}

/// The IPv4 packet inside and its flow, or what is wrong with them.
#[inline(always)]
fn packet(stages: &Stages, data: &[u8], payload: &[u8], l3: usize, frame: &mut Scratch) {
    match ip::check(payload, l3) {
        Ok(packet) => (frame.packet_defect, frame.packet) = (None, packet),
        Err(defect) => {
            frame.packet_defect = Some(defect);
            return;
        }
    }
    match flow::parse(frame.packet.bytes(data), &frame.packet, Direction::Upstream) {
        Ok(flow) => {
            (frame.flow_defect, frame.flow) = (None, flow);
            frame.key = stages.nat.look_ahead(frame.slot, &flow);
        }
        Err(defect) => frame.flow_defect = Some(defect),
    }
}

/// Pass 2: session, source address, gateway, destination, TTL.
#[inline(always)]
fn check<B: PacketBuf>(
    stages: &mut Stages,
    buf: &mut B,
    frame: &mut Scratch,
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
    if !session::matches(&session, frame.src, &frame.tags) {
        return drop(unknown);
    }
    // Network protocols are data; whatever else PPP carries is the control plane's, to answer or to reject.
    let generation = session.generation;
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
    if packet.dst == session.gateway_ip.to_bits() {
        let reply = (frame.port, frame.own_mac);
        return gateway::answer(stages, buf.data_mut(), slot, packet, reply);
    }
    destination::upstream(&stages.ranges, packet.dst)?;
    ttl::left(packet)?;
    frame.generation = generation;
    frame.nat = session.nat;
    Ok(())
}

/// Pass 3: next hop, NAT, TTL, new header, counters; returns the egress port.
#[inline(always)]
fn forward<B: PacketBuf>(
    stages: &mut Stages,
    buf: &mut B,
    frame: &Scratch,
    answer: u64,
) -> Step<u8> {
    let Stages {
        shm,
        ports,
        resolver,
        nat,
        ranges,
        now_ms,
        ..
    } = stages;
    let Scratch {
        slot,
        generation,
        packet,
        flow,
        ..
    } = frame;
    let egress = route::egress(shm, ports, resolver, answer, packet, *now_ms)?;
    let Some((ip, l4)) = packet.parts(buf.data_mut()) else {
        return drop(Counter::Ipv4Truncated);
    };
    let mut changed = Delta::new();
    if let Some(block) = &frame.nat {
        if let Some(defect) = frame.flow_defect {
            return drop(defect);
        }
        let port = nat.outside_port(shm, (*slot, *generation), block, flow, frame.key)?;
        changed = nat44::rewrite(
            ip,
            l4,
            Direction::Upstream,
            flow,
            block.address.to_bits(),
            port,
        );
    } else if ranges
        .find(packet.src)
        .is_none_or(|range| range.kind != RangeKind::Routed)
    {
        return drop(Counter::NatNone);
    }
    changed = changed.and(ttl::decrement(ip));
    ip.checksum.set(changed.apply(ip.checksum.get()));
    encap::core(buf, packet, &egress);
    shm.count_up(*slot, u64::from(packet.len), *now_ms);
    Ok(egress.port)
}
