//! Usual packets upstream, a burst at a time.
//!
//! Pass 1 parses and prefetches the session, pass 2 checks and prefetches the NAT bucket, the route look-up takes the whole
//! burst at once, pass 3 looks whether everything is there and only then changes anything.

use std::net::Ipv4Addr;

use bng_shm::{PolicyId, PortBlock, RangeKind, Reverse, Sender, SlotIndex};
use bng_wire::checksum::Delta;
use bng_wire::ethernet::ETH_LEN;
use bng_wire::{Ipv4Hdr, U16};
use zerocopy::{FromBytes, IntoBytes, KnownLayout, Unaligned};

use crate::buffer::{BURST, PacketBuf};
use crate::burst::{AHEAD, Burst};
use crate::destination;
use crate::fib::Fib4;
use crate::flow::Direction;
use crate::nat_port::in_block;
use crate::nat_table::Key;
use crate::route;
use crate::usual::{self, Packet, SessionFrames};
use crate::verdict::Verdict;
use crate::worker::Stages;

/// The facts of one packet, one cache line of them.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Fact {
    /// Usual so far.
    pub(crate) usual: bool,
    /// Length of the tags, bytes.
    tags: u8,
    slot: SlotIndex,
    sender: Sender,
    packet: Packet,
    /// The mapping's key, in pass 1 without the generation, and its home bucket.
    key: Key,
    home: u32,
    // From here on: pass 2.
    policy: PolicyId,
    /// Of size 0 for a routed session.
    block: PortBlock,
}

const _: () = assert!(size_of::<Fact>() == 64);

impl Fact {
    pub(crate) const EMPTY: Self = Self {
        usual: false,
        tags: 0,
        slot: SlotIndex(0),
        sender: Sender::new([0; 6], None, None),
        packet: Packet::EMPTY,
        key: Key::EMPTY,
        home: 0,
        policy: PolicyId(0),
        block: PortBlock {
            address: Ipv4Addr::UNSPECIFIED,
            address_index: 0,
            first_port: 0,
            size: 0,
        },
    };
}

/// Forwards the usual packets of a burst and writes their verdicts; the facts of all others are not
/// [`usual`](Fact::usual).
pub(crate) fn run<B: PacketBuf, F: Fib4>(
    stages: &mut Stages,
    facts: &mut [Fact; BURST],
    fib: &F,
    burst: &mut Burst<'_, B>,
) -> usize {
    parse(stages, burst.bufs, facts);
    let mut destinations = [0; BURST];
    check(stages, burst.bufs.len(), facts, &mut destinations);
    let mut answers = [0; BURST];
    let count = burst.bufs.len().min(BURST);
    if let (Some(dst), Some(out)) = (destinations.get(..count), answers.get_mut(..count)) {
        fib.lookup(dst, out);
    }
    forward(stages, burst, facts, &answers)
}

/// Pass 1: everything the frame itself says.
#[inline(never)]
fn parse<B: PacketBuf>(stages: &Stages, bufs: &[B], facts: &mut [Fact; BURST]) {
    bufs.iter().take(AHEAD).for_each(B::prefetch);
    // Most bursts are from one port.
    let mut port = u8::MAX;
    let mut access = None;
    for (at, (buf, fact)) in bufs.iter().zip(facts.iter_mut()).enumerate() {
        if let Some(next) = bufs.get(at + AHEAD) {
            next.prefetch();
        }
        fact.usual = false;
        if buf.port() != port {
            port = buf.port();
            access = frames_of(stages, port);
        }
        let Some((frames, index)) = &access else {
            continue;
        };
        let Fact { sender, packet, .. } = fact;
        if buf.is_contiguous()
            && let Some(session) = frames.read(buf.data(), sender, packet)
        {
            fact.tags = session.tags;
            fact.slot = SlotIndex::new(*index, session.id);
            stages.shm.reader().prefetch_session(fact.slot);
            fact.key = Key::new(fact.slot, 0, packet.protocol(), packet.src_port);
            fact.home = stages.nat.table.home(fact.key);
            fact.usual = true;
        }
    }
}

/// The frames to an access port, and its index among access ports.
#[cold]
fn frames_of(stages: &Stages, port: u8) -> Option<(SessionFrames, u8)> {
    let (own, index) = stages.ports.access(port).ok()?;
    Some((SessionFrames::to_port(own.mac), index))
}

/// Pass 2: session, source and destination address, policy.
#[inline(never)]
fn check(
    stages: &Stages,
    count: usize,
    facts: &mut [Fact; BURST],
    destinations: &mut [u32; BURST],
) {
    for (fact, destination) in facts.iter_mut().zip(destinations).take(count) {
        if fact.usual {
            *destination = fact.packet.dst;
            fact.usual = passes(stages, fact).is_some();
        }
    }
}

#[inline(always)]
fn passes(stages: &Stages, fact: &mut Fact) -> Option<()> {
    stages.nat.table.prefetch(fact.home);
    let reader = stages.shm.reader();
    let session = reader.open_session(fact.slot, stages.shm.index())?;
    let Packet { src, dst, .. } = fact.packet;
    // A session without an IPv4 address has 0.0.0.0, which is nobody's source.
    if !session.is_from(fact.sender)
        || session.framed_ip() != src
        || src == 0
        || dst == session.gateway_ip()
        || destination::upstream(&stages.ranges, dst).is_err()
    {
        return None;
    }
    let policy = reader.policy_line(session.policy())?;
    if let Some(filter) = stages.filters.of(&policy).ok()?
        && !filter.up.v4.pass(&fact.packet.filter_key(Direction::Upstream, None))
    {
        return None;
    }
    fact.policy = session.policy();
    fact.block = session.block();
    let generation = Reverse::generation_bits(session.generation());
    fact.key = fact.key.of_generation(generation);
    Some(())
}

/// Pass 3: next hop, NAT, policer, new header, counters.
#[inline(never)]
fn forward<B: PacketBuf>(
    stages: &Stages,
    burst: &mut Burst<'_, B>,
    facts: &mut [Fact; BURST],
    answers: &[u64; BURST],
) -> usize {
    let mut forwarded = 0;
    // Most bursts leave by few next hops.
    let mut egress = None;
    let count = burst.bufs.len();
    let ahead = |fact: &Fact| {
        if fact.usual {
            stages.shm.reader().prefetch_stats(fact.slot);
        }
    };
    facts.iter().take(AHEAD.min(count)).for_each(ahead);
    for at in 0..count.min(BURST) {
        if at + AHEAD < count
            && let Some(fact) = facts.get(at + AHEAD)
        {
            ahead(fact);
        }
        let (Some(fact), Some(answer), Some(buf), Some(verdict)) = (
            facts.get_mut(at),
            answers.get(at),
            burst.bufs.get_mut(at),
            burst.verdicts.get_mut(at),
        ) else {
            break;
        };
        if !fact.usual {
            continue;
        }
        match leave(stages, buf, fact, *answer, &mut egress) {
            Some(port) => {
                forwarded += 1;
                *verdict = Verdict::Forward { port };
            }
            None => fact.usual = false,
        }
    }
    forwarded
}

#[inline(always)]
fn leave<B: PacketBuf>(
    stages: &Stages,
    buf: &mut B,
    fact: &Fact,
    answer: u64,
    last: &mut Option<Egress>,
) -> Option<u8> {
    let Stages {
        shm,
        nat,
        now_ns,
        now_ms,
        ..
    } = stages;
    let Fact {
        slot,
        packet,
        block,
        ..
    } = fact;
    let egress = match last {
        Some(egress) if egress.answer == answer => egress,
        _ => next_hop(stages, answer, packet, last)?,
    };
    if packet.len > egress.mtu {
        return None;
    }
    let (src, src_port) = if block.size != 0 {
        let mapping = nat.table.find(fact.home, fact.key)?;
        if !in_block(block, mapping.address_index, mapping.outside_port)
            || mapping.last_seen != nat.tick
        {
            return None;
        }
        (block.address.to_bits(), mapping.outside_port)
    } else if is_routed(stages, packet.src) {
        (packet.src, packet.src_port)
    } else {
        return None;
    };
    let policy = shm.reader().policy_line(fact.policy)?;
    let len = packet.len;
    let now = (*now_ns, *now_ms);
    // From here on things change.
    if !shm.pass_up(*slot, policy.up(), u64::from(len), now) {
        return None;
    }
    let front = SessionFrames::L3 - ETH_LEN + usize::from(fact.tags);
    if buf.reframe(front as isize, ETH_LEN + usize::from(len)) {
        rewrite(buf.data_mut(), packet, src, src_port, egress);
    }
    Some(egress.port)
}

/// Where packets leave.
#[derive(Debug, Clone, Copy)]
struct Egress {
    /// The FIB's answer that leads there for every flow; no answer is as large as [`u64::MAX`].
    answer: u64,
    /// Index among all ports.
    port: u8,
    /// Largest IP packet the port sends, bytes.
    mtu: u16,
    /// Ethernet header of the frames.
    header: [u8; ETH_LEN],
}

/// The next hop of a FIB answer, kept for the next packet.
#[cold]
fn next_hop<'a>(
    stages: &Stages,
    answer: u64,
    packet: &Packet,
    last: &'a mut Option<Egress>,
) -> Option<&'a Egress> {
    let reader = stages.shm.reader();
    let named = route::named(answer);
    let ports = u32::from(packet.src_port) << 16 | u32::from(packet.dst_port);
    let hop = reader.member(named, route::spread(packet.src, packet.dst, ports));
    let (port, dst) = reader.neighbour(hop)?;
    let own = stages.ports.core(port).ok()?;
    let mut header = [0; ETH_LEN];
    // Two words that overlap: the second goes over the end of the first.
    *header.first_chunk_mut()? = dst;
    *header.last_chunk_mut()? = stages.ports.ipv4_source(port)?;
    Some(last.insert(Egress {
        // A member of a group is for this flow only.
        answer: if hop == named { answer } else { u64::MAX },
        port,
        mtu: own.mtu,
        header,
    }))
}

#[cold]
fn is_routed(stages: &Stages, src: u32) -> bool {
    let range = stages.ranges.find(src);
    range.is_some_and(|range| range.kind == RangeKind::Routed)
}

/// New Ethernet header, IPv4 header and ports of a frame towards the core.
#[derive(FromBytes, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct CoreHead {
    eth: [u8; ETH_LEN],
    ip: Ipv4Hdr,
    src_port: U16,
    dst_port: U16,
}

#[inline(always)]
fn rewrite(frame: &mut [u8], packet: &Packet, src: u32, src_port: u16, egress: &Egress) {
    let Ok((head, l4)) = CoreHead::mut_from_prefix(frame) else {
        return;
    };
    head.eth = egress.header;
    let address = Delta::new().u32(packet.src, src);
    head.ip.src.set(src);
    head.ip.ttl = head.ip.ttl.wrapping_sub(1);
    let hop = Delta::new().u16(0x0100, 0);
    head.ip.checksum.set(address.and(hop).apply(head.ip.checksum.get()));
    head.src_port.set(src_port);
    let changed = address.u16(packet.src_port, src_port);
    usual::update_checksum(l4, packet.is_tcp, changed);
}
