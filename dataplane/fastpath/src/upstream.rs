//! Upstream: from access ports to the core. The order of the stages, as text to read.
//!
//! Pass 1 parses and prefetches, pass 2 checks, the route look-up takes the whole burst at once, pass 3 rewrites.

use arrayvec::ArrayVec;
use bng_shm::{Counter, PortBlock, RangeKind, Reverse, SlotIndex};
use bng_wire::pppoe::protocol;
use bng_wire::{MacAddr, VlanStack};

use crate::buffer::{BURST, PacketBuf};
use crate::fib::Fib4;
use crate::flow::{self, Direction, Flow};
use crate::ip::{self, Packet};
use crate::verdict::{Origin, Punt, Step, Verdict, drop};
use crate::worker::FastPath;
use crate::{
    classify, decap, destination, encap, gateway, nat44, route, session, source_check, ttl,
};

/// How far ahead of the parser frames are prefetched.
const AHEAD: usize = 8;

/// A session frame as pass 1 leaves it.
struct Parsed {
    at: u8,
    port: u8,
    own_mac: MacAddr,
    slot: SlotIndex,
    src: MacAddr,
    tags: VlanStack,
    protocol: u16,
    /// Errors inside the PPP frame count only once the session is known to be one.
    packet: Result<Packet, Counter>,
    flow: Result<Flow, Counter>,
    /// Home bucket of the flow.
    home: u32,
}

/// A data packet as pass 2 leaves it.
struct Checked {
    at: u8,
    slot: SlotIndex,
    generation: u32,
    nat: Option<PortBlock>,
    packet: Packet,
    flow: Result<Flow, Counter>,
    home: u32,
}

/// At most [`BURST`] buffers; `verdicts` has one place for each.
pub(crate) fn run<B: PacketBuf, F: Fib4>(
    worker: &mut FastPath,
    fib: &F,
    bufs: &mut [B],
    verdicts: &mut [Verdict],
    origin: Origin,
) {
    let mut parsed = ArrayVec::<Parsed, BURST>::new();
    bufs.iter().take(AHEAD).for_each(B::prefetch);
    for (at, verdict) in verdicts.iter_mut().enumerate() {
        if let Some(next) = bufs.get(at + AHEAD) {
            next.prefetch();
        }
        let Some(buf) = bufs.get(at) else { break };
        match parse(worker, buf, at as u8) {
            Ok(frame) => parsed.push(frame),
            Err(end) => *verdict = end,
        }
    }

    let mut checked = ArrayVec::<Checked, BURST>::new();
    let mut destinations = ArrayVec::<u32, BURST>::new();
    for frame in &parsed {
        let at = usize::from(frame.at);
        let Some(buf) = bufs.get_mut(at) else { break };
        match check(worker, buf, frame, origin) {
            Ok(packet) => {
                destinations.push(packet.packet.dst);
                checked.push(packet);
            }
            Err(end) => put(verdicts, at, end),
        }
    }

    let mut answers = [0; BURST];
    let answers = answers.get_mut(..destinations.len()).unwrap_or(&mut []);
    fib.lookup(&destinations, answers);

    let mut forwarded = 0;
    for (packet, answer) in checked.iter().zip(answers) {
        let at = usize::from(packet.at);
        let Some(buf) = bufs.get_mut(at) else { break };
        let end = match forward(worker, buf, packet, *answer) {
            Ok(port) => {
                forwarded += 1;
                Verdict::Forward { port }
            }
            Err(end) => end,
        };
        put(verdicts, at, end);
    }
    worker.shm.count(Counter::ForwardedUpstream, forwarded);
}

#[inline]
fn put(verdicts: &mut [Verdict], at: usize, end: Verdict) {
    if let Some(verdict) = verdicts.get_mut(at) {
        *verdict = end;
    }
}

/// Pass 1: everything the frame itself says; prefetches the session and the NAT bucket.
#[inline]
fn parse<B: PacketBuf>(worker: &FastPath, buf: &B, at: u8) -> Step<Parsed> {
    let (port, access_index) = worker.ports.access(buf.port())?;
    let frame = classify::access(buf, port)?;
    let (ppp, l3) = decap::session(buf.data(), &frame)?;
    let slot = SlotIndex::new(access_index, ppp.session_id);
    worker.shm.reader().prefetch_session(slot);

    let mut parsed = Parsed {
        at,
        port: buf.port(),
        own_mac: port.mac,
        slot,
        src: frame.src,
        tags: frame.tags,
        protocol: ppp.protocol,
        packet: Err(Counter::PppProtocolUnsupported),
        flow: Err(Counter::NatProtocol),
        home: 0,
    };
    if ppp.protocol == protocol::IPV4 {
        parsed.packet = ip::check(ppp.payload, l3);
        if let Ok(packet) = &parsed.packet {
            parsed.flow = flow::parse(packet.bytes(buf.data()), packet, Direction::Upstream);
        }
        if let Ok(flow) = &parsed.flow {
            parsed.home = worker.nat.look_ahead(slot, flow);
        }
    }
    Ok(parsed)
}

/// Pass 2: session, source address, gateway, destination, TTL.
#[inline]
fn check<B: PacketBuf>(
    worker: &mut FastPath,
    buf: &mut B,
    frame: &Parsed,
    origin: Origin,
) -> Step<Checked> {
    let unknown = Counter::SessionUnknown;
    let slot = frame.slot;
    session::owned(
        worker.shm.reader(),
        slot,
        worker.shm.index(),
        origin,
        unknown,
    )?;
    let session = session::live(worker.shm.reader(), slot, unknown)?;
    if !session::matches(&session, frame.src, &frame.tags) {
        return drop(unknown);
    }
    // Network protocols are data; whatever else PPP carries is the control plane's, to answer or to reject.
    let generation = session.generation;
    if !matches!(frame.protocol, protocol::IPV4 | protocol::IPV6) {
        worker.shm.seen_up(slot, worker.now_ms);
        return Err(Verdict::Punt(Punt::Ppp { slot, generation }));
    }
    session::open(&session)?;
    let packet = frame.packet.map_err(Verdict::Drop)?;
    source_check::framed(&session, &packet)?;

    let reply = (frame.port, frame.own_mac);
    let (data, now_ms) = (buf.data_mut(), worker.now_ms);
    let end = gateway::answer(
        data,
        &packet,
        &session,
        &mut worker.echo_limit,
        now_ms,
        reply,
    );
    if let Err(Verdict::Forward { .. }) = end {
        worker.shm.count_up(slot, u64::from(packet.len), now_ms);
        worker.shm.count_down(slot, u64::from(packet.len));
        worker.shm.count(Counter::EchoAnswered, 1);
    }
    end?;
    destination::upstream(&worker.pools, packet.dst)?;
    ttl::left(&packet)?;
    Ok(Checked {
        at: frame.at,
        slot,
        generation,
        nat: session.nat,
        packet,
        flow: frame.flow,
        home: frame.home,
    })
}

/// Pass 3: next hop, NAT, TTL, new header, counters; returns the egress port.
#[inline]
fn forward<B: PacketBuf>(
    worker: &mut FastPath,
    buf: &mut B,
    checked: &Checked,
    answer: u64,
) -> Step<u8> {
    let FastPath {
        shm,
        ports,
        resolver,
        nat,
        pools,
        now_ms,
        ..
    } = worker;
    let Checked {
        slot,
        generation,
        packet,
        ..
    } = checked;
    let egress = route::egress(shm, ports, resolver, answer, packet, *now_ms)?;
    if let Some(block) = &checked.nat {
        let flow = checked.flow.map_err(Verdict::Drop)?;
        let port = nat.outside_port(shm, (*slot, *generation), block, &flow, checked.home)?;
        let bytes = packet.bytes_mut(buf.data_mut());
        nat44::rewrite(
            bytes,
            Direction::Upstream,
            &flow,
            block.address.to_bits(),
            port,
        );
    } else if pools
        .find(packet.src.into())
        .is_none_or(|range| range.kind != RangeKind::Routed)
    {
        return drop(Counter::NatNone);
    }
    ttl::decrement(packet.bytes_mut(buf.data_mut()));
    encap::core(buf, packet, &egress);
    shm.count_up(*slot, u64::from(packet.len), *now_ms);
    Ok(egress.port)
}

// The generation in a mapping's key is the low bits of the session's.
const _: () = assert!(Reverse::generation_bits(u32::MAX) < 512);
