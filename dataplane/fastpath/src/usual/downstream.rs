//! Usual packets downstream, a burst at a time.
//!
//! Pass 1 parses and prefetches the reverse mapping, pass 2 reads it and prefetches the session, pass 3 looks whether
//! everything is there and only then changes anything.

use bng_shm::{BlockOwner, PoolRange, RangeKind, Reverse, SlotIndex};
use bng_wire::checksum::Delta;
use bng_wire::ethernet::ETH_LEN;
use bng_wire::{Ipv4Hdr, U16};
use zerocopy::{FromBytes, IntoBytes, KnownLayout, Unaligned};

use crate::buffer::{BURST, PacketBuf};
use crate::burst::{AHEAD, Burst};
use crate::downstream::leads_to;
use crate::encap::AccessHeader;
use crate::flow::Direction;
use crate::nat_port::in_block;
use crate::source_check;
use crate::usual::{self, CoreFrames, Packet};
use crate::verdict::Verdict;
use crate::worker::Stages;

/// The facts of one packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fact {
    /// Usual so far.
    pub(crate) usual: bool,
    /// The destination is a NAT pool's address, else a routed subscriber's.
    is_nat: bool,
    /// Dense index of a NAT pool's address.
    address_index: u16,
    packet: Packet,
    // From here on: pass 2.
    slot: SlotIndex,
    /// The reverse mapping, as it lies in the table, or the generation of a routed subscriber's session.
    inside: u64,
}

impl Fact {
    pub(crate) const EMPTY: Self = Self {
        usual: false,
        is_nat: false,
        address_index: 0,
        packet: Packet::EMPTY,
        slot: SlotIndex(0),
        inside: 0,
    };
}

/// Forwards the usual packets of a burst and writes their verdicts; the facts of all others are not
/// [`usual`](Fact::usual).
pub(crate) fn run<B: PacketBuf>(
    stages: &Stages,
    facts: &mut [Fact; BURST],
    burst: &mut Burst<'_, B>,
) -> usize {
    parse(stages, burst.bufs, facts);
    find(stages, burst.bufs.len(), facts);
    deliver(stages, burst, facts)
}

/// Pass 1: everything the packet itself says.
#[inline(never)]
fn parse<B: PacketBuf>(stages: &Stages, bufs: &[B], facts: &mut [Fact; BURST]) {
    bufs.iter().take(AHEAD).for_each(B::prefetch);
    // Most bursts are from one port and to one range.
    let mut port = u8::MAX;
    let mut core = None;
    let mut range = None;
    for (at, (buf, fact)) in bufs.iter().zip(facts.iter_mut()).enumerate() {
        if let Some(next) = bufs.get(at + AHEAD) {
            next.prefetch();
        }
        fact.usual = false;
        if buf.port() != port {
            port = buf.port();
            core = frames_of(stages, port);
        }
        let Some(frames) = &core else {
            continue;
        };
        if buf.is_contiguous() && frames.read(buf.data(), &mut fact.packet) {
            fact.usual = target(stages, fact, &mut range).is_some();
        }
    }
}

/// The frames to a core port.
#[cold]
fn frames_of(stages: &Stages, port: u8) -> Option<CoreFrames> {
    let own = stages.ports.core(port).ok()?;
    Some(CoreFrames::to_port(own.mac))
}

/// What the destination is to us.
#[inline(always)]
fn target<'a>(
    stages: &'a Stages,
    fact: &mut Fact,
    last: &mut Option<&'a PoolRange>,
) -> Option<()> {
    let Packet { src, dst, .. } = fact.packet;
    let range = match last {
        Some(range) if range.contains(dst.into()) => range,
        _ => last.insert(stages.ranges.find(dst)?),
    };
    source_check::downstream(&stages.ranges, src).ok()?;
    match range.kind {
        RangeKind::Nat => {
            // Dense indices fit 16 bits (Capacities); a base that is nonsense finds nobody's mapping.
            let index = range.base.wrapping_add(dst - range.first.to_bits()) as u16;
            (fact.is_nat, fact.address_index) = (true, index);
            let protocol = fact.packet.protocol();
            stages
                .shm
                .prefetch_reverse(index, protocol, fact.packet.dst_port);
        }
        RangeKind::Routed => {
            fact.is_nat = false;
            stages.shm.reader().prefetch_framed(range, dst.into());
        }
        RangeKind::Subscriber => return None,
    }
    Some(())
}

/// Pass 2: the session, if it is this worker's.
#[inline(never)]
fn find(stages: &Stages, count: usize, facts: &mut [Fact; BURST]) {
    for fact in facts.iter_mut().take(count) {
        if fact.usual {
            fact.usual = owned(stages, fact).is_some();
        }
    }
}

#[inline(always)]
fn owned(stages: &Stages, fact: &mut Fact) -> Option<()> {
    let shm = &stages.shm;
    let packet = &fact.packet;
    if fact.is_nat {
        let (index, port) = (fact.address_index, packet.dst_port);
        fact.inside = shm.reverse_word(index, packet.protocol(), port);
        fact.slot = Reverse::unpack(fact.inside)?.slot;
    } else {
        let owner = framed_owner(stages, packet.dst)?;
        fact.inside = u64::from(owner.generation);
        fact.slot = owner.slot;
    }
    if shm.reader().owner(fact.slot) != Some(shm.index()) {
        return None;
    }
    shm.reader().prefetch_session(fact.slot);
    Some(())
}

#[cold]
fn framed_owner(stages: &Stages, dst: u32) -> Option<BlockOwner> {
    let range = stages.ranges.find(dst)?;
    stages.shm.reader().framed_owner(range, dst.into())
}

/// Pass 3: session, NAT, policer, new header, counters.
#[inline(never)]
fn deliver<B: PacketBuf>(
    stages: &Stages,
    burst: &mut Burst<'_, B>,
    facts: &mut [Fact; BURST],
) -> usize {
    let mut forwarded = 0;
    let ahead = |fact: &Fact| {
        if fact.usual {
            stages.shm.reader().prefetch_stats(fact.slot);
        }
    };
    let count = burst.bufs.len();
    facts.iter().take(AHEAD.min(count)).for_each(ahead);
    let mut access = None;
    for (at, (buf, verdict)) in burst.bufs.iter_mut().zip(burst.verdicts.iter_mut()).enumerate() {
        if let Some(next) = facts.get(at + AHEAD).filter(|_| at + AHEAD < count) {
            ahead(next);
        }
        let Some(fact) = facts.get_mut(at).filter(|fact| fact.usual) else {
            continue;
        };
        match leave(stages, buf, fact, &mut access) {
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
    last: &mut Option<(u8, u8, AccessHeader)>,
) -> Option<u8> {
    let Stages { shm, nat, .. } = stages;
    let Fact { slot, packet, .. } = fact;
    let session = shm.reader().open_session(*slot, shm.index())?;
    let (dst, dst_port) = if fact.is_nat {
        let entry = Reverse::unpack(fact.inside)?;
        if entry.generation != Reverse::generation_bits(session.generation())
            || !entry.inbound_seen
            || entry.closing
            || nat.timers.expired(packet.protocol(), &entry, nat.tick)
            || !in_block(&session.block(), fact.address_index, packet.dst_port)
        {
            return None;
        }
        (session.framed_ip(), entry.inside_port)
    } else {
        let owner = BlockOwner {
            slot: *slot,
            generation: fact.inside as u32,
        };
        if !leads_to(&owner, &session, packet.dst) {
            return None;
        }
        (packet.dst, packet.dst_port)
    };
    if packet.len > session.mtu() || dst == 0 {
        return None;
    }
    let policy = shm.reader().policy_line(session.policy())?;
    if let Some(filter) = stages.filters.of(&policy).ok()?
        && !filter.down.v4.pass(&packet.filter_key(Direction::Downstream, Some(dst_port)))
    {
        return None;
    }
    let index = slot.access_port();
    let (_, port, header) = match last {
        Some(access) if access.0 == index => access,
        _ => {
            let (port, own) = stages.ports.of_access_index(index)?;
            last.insert((index, port, AccessHeader::of_port(own.mac)))
        }
    };
    let header_len = AccessHeader::len(&session);
    let front = header_len - ETH_LEN;
    if !buf.reframe(-(front as isize), header_len + usize::from(packet.len)) {
        return None;
    }
    if !shm.pass_down(*slot, policy.down(), u64::from(packet.len), stages.now_ns) {
        back(buf, front);
        return None;
    }
    // From here on things change.
    let (head, rest) = buf.data_mut().split_at_mut_checked(header_len)?;
    header.write(head, &session, slot.session_id(), packet.len);
    rewrite(rest, packet, dst, dst_port);
    Some(*port)
}

/// Takes the room for the new header back; only padding is lost.
#[cold]
fn back<B: PacketBuf>(buf: &mut B, front: usize) {
    let len = buf.data().len().saturating_sub(front);
    buf.reframe(front as isize, len);
}

/// IPv4 header and ports.
#[derive(FromBytes, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct PacketStart {
    ip: Ipv4Hdr,
    src_port: U16,
    dst_port: U16,
}

#[inline(always)]
fn rewrite(bytes: &mut [u8], packet: &Packet, dst: u32, dst_port: u16) {
    let Ok((head, l4)) = PacketStart::mut_from_prefix(bytes) else {
        return;
    };
    let ip = &mut head.ip;
    let address = Delta::new().u32(packet.dst, dst);
    ip.dst.set(dst);
    ip.ttl = ip.ttl.wrapping_sub(1);
    let hop = Delta::new().u16(0x0100, 0);
    ip.checksum.set(address.and(hop).apply(ip.checksum.get()));
    head.dst_port.set(dst_port);
    let changed = address.u16(packet.dst_port, dst_port);
    usual::update_checksum(l4, packet.is_tcp, changed);
}
