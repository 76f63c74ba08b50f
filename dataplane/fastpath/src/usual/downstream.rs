//! Usual packets downstream, a burst at a time.
//!
//! Pass 1 parses and prefetches the reverse mapping, pass 2 reads it and prefetches the session, pass 3 looks whether
//! everything is there and only then changes anything.

use bng_shm::{BlockOwner, Policed, PoolRange, RangeKind, Reverse, SlotIndex};
use bng_wire::checksum::Delta;
use bng_wire::ethernet::ETH_LEN;
use bng_wire::{Ipv4Hdr, U16};
use zerocopy::{FromBytes, IntoBytes, KnownLayout, Unaligned};

use crate::buffer::{BURST, PacketBuf};
use crate::burst::{AHEAD, Burst, Tally};
use crate::downstream::leads_to;
use crate::encap::AccessHeader;
use crate::nat_port::in_block;
use crate::usual::{self, Packet};
use crate::verdict::Verdict;
use crate::worker::Stages;

/// The facts of one packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fact {
    /// Usual so far.
    pub(crate) usual: bool,
    packet: Packet,
    /// Dense index of a NAT pool's address; `None` for a routed subscriber's.
    address_index: Option<u16>,
    // From here on: pass 2.
    slot: SlotIndex,
    inside: Inside,
}

/// Whom the destination leads to.
#[derive(Debug, Clone, Copy)]
enum Inside {
    /// By a mapping.
    Nat(Reverse),
    /// A routed subscriber.
    Routed(BlockOwner),
}

impl Fact {
    pub(crate) const EMPTY: Self = Self {
        usual: false,
        packet: Packet::EMPTY,
        address_index: None,
        slot: SlotIndex(0),
        inside: Inside::Routed(BlockOwner {
            slot: SlotIndex(0),
            generation: 0,
        }),
    };
}

/// Forwards the usual packets of a burst and writes their verdicts; the facts of all others are not
/// [`usual`](Fact::usual).
pub(crate) fn run<B: PacketBuf>(
    stages: &Stages,
    facts: &mut [Fact; BURST],
    burst: &mut Burst<'_, B>,
) -> Tally {
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
            core = stages.ports.core(port).ok();
        }
        if let Some(own) = core
            && buf.is_contiguous()
            && let Some(packet) = usual::core(buf.data(), own.mac)
        {
            fact.packet = packet;
            fact.usual = target(stages, fact, &mut range).is_some();
        }
    }
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
    if !stages.ranges.is_elsewhere(src) {
        return None;
    }
    match range.kind {
        RangeKind::Nat => {
            // Dense indices fit 16 bits (Capacities); a base that is nonsense finds nobody's mapping.
            let index = range.base.wrapping_add(dst - range.first.to_bits()) as u16;
            fact.address_index = Some(index);
            let protocol = fact.packet.protocol();
            stages
                .shm
                .prefetch_reverse(index, protocol, fact.packet.dst_port);
        }
        RangeKind::Routed => {
            fact.address_index = None;
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
    fact.inside = match fact.address_index {
        Some(index) => Inside::Nat(shm.reverse(index, packet.protocol(), packet.dst_port)?),
        None => Inside::Routed(framed_owner(stages, packet.dst)?),
    };
    fact.slot = match &fact.inside {
        Inside::Nat(entry) => entry.slot,
        Inside::Routed(owner) => owner.slot,
    };
    if shm.reader().owner(fact.slot) != Some(shm.index()) {
        return None;
    }
    shm.reader().prefetch_session(fact.slot);
    Some(())
}

#[inline(never)]
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
) -> Tally {
    let mut tally = Tally::default();
    let ahead = |fact: &Fact| {
        if fact.usual {
            stages.shm.reader().prefetch_stats(fact.slot);
        }
    };
    let count = burst.bufs.len();
    facts.iter().take(AHEAD.min(count)).for_each(ahead);
    let mut access = None;
    for (at, (buf, verdict)) in burst.iter_mut().enumerate() {
        if let Some(next) = facts.get(at + AHEAD).filter(|_| at + AHEAD < count) {
            ahead(next);
        }
        let Some(fact) = facts.get_mut(at).filter(|fact| fact.usual) else {
            continue;
        };
        match leave(stages, buf, fact, &mut access) {
            Some(port) => {
                tally.leaves(port);
                *verdict = Verdict::Forward { port };
            }
            None => fact.usual = false,
        }
    }
    tally
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
    let (dst, dst_port) = match &fact.inside {
        Inside::Nat(entry) => {
            let lives = entry.generation == Reverse::generation_bits(session.generation())
                && entry.inbound_seen
                && !nat.timers.expired(packet.protocol(), entry, nat.tick);
            let block = session.nat()?;
            if !lives || !in_block(&block, fact.address_index?, packet.dst_port) {
                return None;
            }
            (session.framed_ip(), entry.inside_port)
        }
        Inside::Routed(owner) if leads_to(owner, &session, packet.dst) => {
            (packet.dst, packet.dst_port)
        }
        Inside::Routed(_) => return None,
    };
    if packet.len > session.mtu() || dst == 0 {
        return None;
    }
    let policy = shm.reader().policy_line(session.policy())?;
    let index = slot.access_port();
    let (_, port, header) = match last {
        Some(access) if access.0 == index => access,
        _ => {
            let (port, own) = stages.ports.of_access_index(index)?;
            last.insert((index, port, AccessHeader::of_port(own.mac)))
        }
    };
    let len = u64::from(packet.len);
    if !shm.conforms(*slot, Policed::Down, policy.down(), len, stages.now_ns) {
        return None;
    }
    // From here on things change, unless there is no headroom; then the general way says so, and that a packet which is
    // dropped anyway was metered twice does not matter.
    let header_len = AccessHeader::len(&session);
    if !buf.reframe(
        ETH_LEN as isize - header_len as isize,
        header_len + usize::from(packet.len),
    ) {
        return None;
    }
    let (head, rest) = buf.data_mut().split_at_mut_checked(header_len)?;
    header.write(head, &session, slot.session_id(), packet.len);
    rewrite(rest, packet, dst, dst_port);
    shm.count_down(*slot, len);
    Some(*port)
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
