//! Upstream: from access ports to the core or to another subscriber. The order of the stages, as text to read.
//!
//! Pass 1 parses and prefetches the session, pass 2 checks and prefetches the counters, the route look-up takes all of
//! them at once, pass 3 rewrites.

use bng_shm::{BlockOwner, Counter, Meter, Sender, SlotIndex};
use bng_wire::ethernet::{self, ETH_LEN, TAG_LEN, ethertype};
use bng_wire::pppoe::{PPPOE_LEN, protocol};

use super::address::{self, Kind};
use super::icmp_reply::{self, Error};
use super::packet::Packet;
use super::pass::{self, Fact};
use super::{Facts, control, local, route, rules, session, source_check};
use crate::buffer::{BURST, PacketBuf};
use crate::burst::Burst;
use crate::fib::Fib6;
use crate::flow::Direction;
use crate::session::{owned, sender};
use crate::verdict::{Origin, Step, Verdict, drop};
use crate::worker::Stages;
use crate::{classify, decap, encap, policy};

/// The facts of one frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    /// Place of the frame in its burst.
    at: u8,
    slot: SlotIndex,
    sender: Sender,
    /// What is wrong with the packet; it counts only once the session is known to be one.
    defect: Option<Counter>,
    packet: Packet,
    // From here on: pass 2.
    dst: [u8; 16],
    /// The subscriber whose address the destination is.
    local: Option<BlockOwner>,
    /// The upstream policer.
    meter: Meter,
    /// Offset of a TCP header whose MSS option is to be looked at; 0 for none.
    syn: u16,
    /// The session's MTU.
    mtu: u16,
}

impl Frame {
    pub(crate) const EMPTY: Self = Self {
        at: 0,
        slot: SlotIndex(0),
        sender: Sender::new([0; 6], None, None),
        defect: None,
        packet: Packet::EMPTY,
        dst: [0; 16],
        local: None,
        meter: Meter {
            cost: 0,
            burst_ns: 0,
        },
        syn: 0,
        mtu: 0,
    };
}

impl Fact for Frame {
    #[inline(always)]
    fn at(&self) -> u8 {
        self.at
    }

    #[inline(always)]
    fn set_at(&mut self, at: u8) {
        self.at = at;
    }
}

/// Whether a frame from an access port is for the IPv6 passes, told by its EtherType and PPP protocol. What is wrong with
/// it, and even whether it is for us, they find out themselves.
#[inline]
pub(crate) fn is_ours<B: PacketBuf>(buf: &B) -> bool {
    let data = buf.data();
    let word = |at: usize| {
        let bytes = data.get(at..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u16::from_be_bytes(*bytes))
    };
    let mut at = ETH_LEN - 2;
    for _ in 0..2 {
        if ethernet::is_tpid(word(at)) {
            at += TAG_LEN;
        }
    }
    word(at) == ethertype::PPPOE_SESSION && word(at + 2 + PPPOE_LEN) == protocol::IPV6
}

/// Takes the packets of a burst that were set aside through the stages; returns how many are forwarded.
#[inline]
pub(crate) fn run<B: PacketBuf, F: Fib6>(
    stages: &mut Stages,
    facts: &mut Facts,
    fib: &F,
    burst: &mut Burst<'_, B>,
    origin: Origin,
) -> usize {
    match stages.aside.take() {
        0 => 0,
        aside => passes(stages, &mut facts.upstream, fib, burst, aside, origin),
    }
}

#[inline(never)]
fn passes<B: PacketBuf, F: Fib6>(
    stages: &mut Stages,
    frames: &mut [Frame; BURST],
    fib: &F,
    burst: &mut Burst<'_, B>,
    aside: u32,
    origin: Origin,
) -> usize {
    let parsed = pass::first(burst, aside, frames, |buf, frame| parse(stages, buf, frame));
    let checked = pass::next(burst, frames, parsed, |buf, frame| {
        check(stages, buf, frame, origin)
    });

    let mut destinations = [[0; 16]; BURST];
    let mut answers = [0; BURST];
    for (destination, frame) in destinations.iter_mut().zip(frames.iter()).take(checked) {
        *destination = frame.dst;
    }
    if let (Some(dst), Some(out)) = (destinations.get(..checked), answers.get_mut(..checked)) {
        fib.lookup6(dst, out);
    }

    pass::last(burst, frames, checked, &answers, |buf, frame, answer| {
        forward(stages, buf, frame, answer)
    })
}

/// Pass 1: everything the frame itself says; prefetches the session.
#[inline(always)]
fn parse<B: PacketBuf>(stages: &Stages, buf: &B, frame: &mut Frame) -> Step<()> {
    let (port, access_index) = stages.ports.access(buf.port())?;
    let (link, rest) = classify::access(buf, port, &[])?;
    let (ppp, l3) = decap::session(&link, rest)?;
    frame.slot = SlotIndex::new(access_index, ppp.session_id);
    stages.shm.reader().prefetch_session(frame.slot);
    frame.sender = sender(&link);
    match Packet::check(ppp.payload, l3) {
        Ok(packet) => (frame.defect, frame.packet) = (None, packet),
        Err(defect) => frame.defect = Some(defect),
    }
    Ok(())
}

/// Pass 2: session, control, policy, source address, filter, destination, hop limit; prefetches the counters.
#[inline(always)]
fn check<B: PacketBuf>(
    stages: &mut Stages,
    buf: &mut B,
    frame: &mut Frame,
    origin: Origin,
) -> Step<()> {
    let unknown = Counter::SessionUnknown;
    let slot = frame.slot;
    let reader = stages.shm.reader();
    owned(reader, slot, stages.shm.index(), origin, unknown)?;
    let session = session::live(reader, slot)?;
    if !session.line.is_from(frame.sender) {
        return drop(unknown);
    }
    session::open(&session)?;
    if let Some(defect) = frame.defect {
        return drop(defect);
    }
    let (packet, data) = (&frame.packet, buf.data());
    if address::is_link_scope(packet.dst) {
        return Err(control::link_scope(stages, &session, slot, packet, data));
    }
    let policy = policy::of(reader, &session.line)?;
    let ranges = &stages.ranges.v6;
    source_check::upstream(ranges, &session, &policy, packet, data)?;
    let upper = packet.upper(data);
    let up = Direction::Upstream;
    rules::filter(&stages.filters, &policy, packet, data, &upper, up)?;
    if Kind::of(packet.dst) != Kind::Unicast {
        return drop(Counter::DestinationInvalid);
    }
    frame.dst = packet.addresses(data).1;
    if ranges.is_gateway(frame.dst.into()) {
        return drop(Counter::DestinationGateway);
    }
    reader.prefetch_stats(slot);
    frame.syn = rules::syn(&policy, packet, data, &upper);
    frame.meter = policy.up();
    frame.mtu = session.line.mtu();
    let range = ranges.find(packet.dst);
    frame.local = range.and_then(|range| reader.framed6_owner(range, packet.dst));
    let refused = if !packet.has_hops_left() {
        Some((Error::TimeExceeded, Counter::TtlExpired))
    } else if packet.dst == session.prefix() {
        // The session's own link, to which a packet from it must not go back, or it would come again until its hops are
        // used up (RFC 4443 section 3.1).
        Some((Error::AddressUnreachable, Counter::DestinationSubscriber))
    } else if range.is_some() && frame.local.is_none() {
        Some((Error::NoRoute, Counter::NoRoute))
    } else {
        None
    };
    match refused {
        Some((error, reason)) => Err(icmp_reply::to_subscriber(
            stages, buf, packet, slot, error, reason,
        )),
        None => Ok(()),
    }
}

/// Pass 3: next hop, size, policer, MSS, hop limit, new header, counters; returns the egress port.
#[inline(always)]
fn forward<B: PacketBuf>(stages: &mut Stages, buf: &mut B, frame: &Frame, answer: u64) -> Step<u8> {
    let Frame { slot, packet, .. } = frame;
    if let Some(owner) = frame.local {
        police(stages, buf, frame)?;
        return local::deliver(stages, buf, packet.extent, owner.slot)
            .inspect(|_| count(stages, frame))
            .inspect_err(|why| {
                if matches!(why, Verdict::HandOver { .. }) {
                    count(stages, frame);
                }
            });
    }
    let Stages {
        shm,
        ports,
        resolver,
        now_ms,
        ..
    } = stages;
    let egress = match route::egress(shm, ports, resolver, answer, packet, buf.data(), *now_ms) {
        Ok(egress) => egress,
        Err(why) => return Err(unroutable(stages, buf, packet, *slot, why)),
    };
    if packet.extent.len > egress.mtu {
        let error = Error::PacketTooBig { mtu: egress.mtu };
        let reason = Counter::PacketTooBig;
        return Err(icmp_reply::to_subscriber(
            stages, buf, packet, *slot, error, reason,
        ));
    }
    police(stages, buf, frame)?;
    packet.take_hop(buf.data_mut());
    let Some(source) = stages.ports.ipv6_source(egress.port) else {
        return drop(Counter::NoRoute);
    };
    encap::core(buf, packet.extent, egress.dst, source);
    count(stages, frame);
    Ok(egress.port)
}

/// The policer, and what may be done to a packet it lets pass.
#[inline(always)]
fn police<B: PacketBuf>(stages: &Stages, buf: &mut B, frame: &Frame) -> Step<()> {
    let Stages { shm, now_ns, .. } = stages;
    let Frame { slot, packet, .. } = frame;
    policy::police_up(shm, *slot, frame.meter, packet.extent.len, *now_ns)?;
    if frame.syn != 0 && rules::clamp(packet, buf.data_mut(), frame.syn, frame.mtu) {
        shm.count(Counter::MssClamped, 1);
    }
    Ok(())
}

#[inline(always)]
fn count(stages: &Stages, frame: &Frame) {
    let bytes = u64::from(frame.packet.extent.len);
    stages.shm.count_up(frame.slot, bytes, stages.now_ms);
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
            icmp_reply::to_subscriber(stages, buf, packet, slot, Error::NoRoute, reason)
        }
        other => other,
    }
}
