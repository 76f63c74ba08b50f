//! Usual packets downstream, a burst at a time.
//!
//! Pass 1 parses and prefetches the reverse mapping, pass 2 reads it and prefetches the session, pass 3 looks whether
//! everything is as it should be, pass 4 changes and counts.

use std::net::Ipv4Addr;

use bng_shm::{BlockOwner, Meter, PoolRange, RangeKind, Reverse, SlotIndex};
use bng_wire::U16;
use bng_wire::ethernet::ETH_LEN;

use crate::buffer::{BURST, PacketBuf};
use crate::burst::{AHEAD, Burst};
use crate::coalesce::Hints;
use crate::downstream::RoutedOwner;
use crate::encap::{AccessHeader, Tags};
use crate::nat_port::owns_port;
use crate::source_check;
use crate::usual::{self, CoreFrames, End, Packet, Stayed, UsualSoFar};
use crate::verdict::Verdict;
use crate::worker::Stages;

/// The facts of one packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fact {
    /// Usual so far.
    pub(crate) usual: bool,
    /// The destination is a NAT pool's address, else a routed subscriber's or in a network behind one.
    is_nat: bool,
    /// Dense index of a NAT pool's address.
    address_index: u16,
    packet: Packet,
    // From here on: pass 2.
    slot: SlotIndex,
    /// The reverse mapping, as it lies in the table.
    inside: u64,
    /// Whom an address leads to that is no NAT pool's.
    owner: Option<RoutedOwner>,
    // From here on: pass 3.
    /// Largest packet the session takes, bytes. The packet's own size is looked at in pass 4: what is like it may be smaller.
    mtu: u16,
    client_mac: [u8; 6],
    meter: Meter,
    tags: Tags,
    /// The packet's destination from now on.
    dst: End,
}

impl Fact {
    pub(crate) const EMPTY: Self = Self {
        usual: false,
        is_nat: false,
        address_index: 0,
        packet: Packet::EMPTY,
        slot: SlotIndex(0),
        inside: 0,
        owner: None,
        mtu: 0,
        client_mac: [0; 6],
        meter: Meter {
            cost: 0,
            burst_ns: 0,
        },
        tags: Tags::NONE,
        dst: (Packet::EMPTY.dst, U16::ZERO),
    };
}

/// Forwards the usual packets of a burst, writes their verdicts and returns how many they are; the facts of all others
/// are not [`usual`](Fact::usual). Without `HINTED`, `hints` are not looked at.
pub(crate) fn run<B: PacketBuf, const HINTED: bool>(
    stages: &Stages,
    facts: &mut [Fact; BURST],
    burst: &mut Burst<'_, B>,
    hints: &Hints,
) -> usize {
    parse::<B, HINTED>(stages, burst.bufs, facts, hints);
    let count = burst.bufs.len().min(BURST);
    let Some(present) = facts.get_mut(..count) else {
        return 0;
    };
    find::<HINTED>(stages, present, hints);
    check::<HINTED>(stages, present, hints);
    deliver::<B, HINTED>(stages, burst, present, hints)
}

/// Pass 1: everything the packet itself says.
#[inline(never)]
fn parse<B: PacketBuf, const HINTED: bool>(
    stages: &Stages,
    bufs: &[B],
    facts: &mut [Fact; BURST],
    hints: &Hints,
) {
    // Who gave the hints has just read the frames.
    if !HINTED {
        bufs.iter().take(AHEAD).for_each(B::prefetch);
    }
    // Most bursts are from one port and to one range.
    let mut port = u8::MAX;
    let mut core = None;
    let mut range = None;
    let mut so_far = UsualSoFar::default();
    for (at, (buf, fact)) in bufs.iter().zip(facts.iter_mut()).enumerate() {
        if let Some(like) = usual::like::<HINTED>(hints, at)
            && so_far.has(like)
            && buf.data().len() >= CoreFrames::ROOM
        {
            fact.usual = true;
            so_far.note::<HINTED>(at, true);
            continue;
        }
        if let Some(next) = bufs.get(at + AHEAD)
            && !HINTED
        {
            next.prefetch();
        }
        if buf.port() != port {
            port = buf.port();
            core = frames_of(stages, port);
        }
        fact.usual = if let Some(frames) = &core
            && buf.is_contiguous()
            && frames.read(buf.data(), &mut fact.packet)
        {
            target(stages, fact, &mut range).is_some()
        } else {
            false
        };
        so_far.note::<HINTED>(at, fact.usual);
    }
}

/// The frames to a core port.
#[cold]
fn frames_of(stages: &Stages, port: u8) -> Option<CoreFrames> {
    let own = stages.ports.core(port).ok()?;
    Some(CoreFrames::to_port(own.mac))
}

/// A range of our addresses, as the last packet found it.
#[derive(Debug, Clone, Copy)]
struct Last<'a> {
    range: &'a PoolRange,
    first: u32,
    /// Addresses behind the first.
    more: u32,
}

/// What the destination is to us.
#[inline(always)]
fn target<'a>(stages: &'a Stages, fact: &mut Fact, last: &mut Option<Last<'a>>) -> Option<()> {
    let dst = fact.packet.dst.get();
    let last = match last {
        Some(last) if dst.wrapping_sub(last.first) <= last.more => last,
        _ => match range_of(stages, dst) {
            Some(range) => last.insert(range),
            None => return network(stages, fact, dst),
        },
    };
    source_check::downstream(&stages.ranges, stages.shm.reader(), fact.packet.src.get()).ok()?;
    let range = last.range;
    match range.kind {
        RangeKind::Nat => {
            // Dense indices fit 16 bits (Capacities); a base that is nonsense finds nobody's mapping.
            let index = range.base.wrapping_add(dst.wrapping_sub(last.first)) as u16;
            (fact.is_nat, fact.address_index) = (true, index);
            let protocol = fact.packet.protocol();
            stages
                .shm
                .prefetch_reverse(index, protocol, fact.packet.dst_port.get());
        }
        RangeKind::Routed => {
            (fact.is_nat, fact.owner) = (false, None);
            stages.shm.reader().prefetch_framed(range, dst.into());
        }
        RangeKind::Subscriber => return None,
    }
    Some(())
}

/// In a network behind a subscriber, if it is anything to us.
#[cold]
fn network(stages: &Stages, fact: &mut Fact, dst: u32) -> Option<()> {
    let reader = stages.shm.reader();
    let owner = stages.ranges.network(reader, dst)?;
    source_check::downstream(&stages.ranges, reader, fact.packet.src.get()).ok()?;
    (fact.is_nat, fact.owner) = (false, Some(RoutedOwner::Network(owner)));
    Some(())
}

#[cold]
fn range_of(stages: &Stages, dst: u32) -> Option<Last<'_>> {
    let range = stages.ranges.find(dst)?;
    let [first, last] = [range.first, range.last].map(Ipv4Addr::to_bits);
    let more = last.wrapping_sub(first);
    Some(Last { range, first, more })
}

/// A pass: looks at each packet that is usual so far and is not like an earlier one; those that are like it share its lot.
#[inline(always)]
fn each<const HINTED: bool>(
    facts: &mut [Fact],
    hints: &Hints,
    mut look: impl FnMut(&mut Fact) -> Option<()>,
) {
    let mut so_far = UsualSoFar::default();
    for (at, fact) in facts.iter_mut().enumerate() {
        fact.usual = fact.usual
            && match usual::like::<HINTED>(hints, at) {
                Some(like) => so_far.has(like),
                None => look(fact).is_some(),
            };
        so_far.note::<HINTED>(at, fact.usual);
    }
}

/// Pass 2: whose the destination is, if it is this worker's.
#[inline(never)]
fn find<const HINTED: bool>(stages: &Stages, facts: &mut [Fact], hints: &Hints) {
    each::<HINTED>(facts, hints, |fact| owned(stages, fact));
}

#[inline(always)]
fn owned(stages: &Stages, fact: &mut Fact) -> Option<()> {
    let shm = &stages.shm;
    let packet = &fact.packet;
    if fact.is_nat {
        let (index, port) = (fact.address_index, packet.dst_port.get());
        fact.inside = shm.reverse_word(index, packet.protocol(), port);
        fact.slot = Reverse::unpack(fact.inside)?.slot;
    } else {
        let owner = match fact.owner {
            Some(owner) => owner,
            None => RoutedOwner::Address(framed_owner(stages, packet.dst.get())?),
        };
        fact.owner = Some(owner);
        fact.slot = owner.slot();
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

/// Pass 3: session, NAT, policy, filter.
#[inline(never)]
fn check<const HINTED: bool>(stages: &Stages, facts: &mut [Fact], hints: &Hints) {
    each::<HINTED>(facts, hints, |fact| passes(stages, fact));
}

#[inline(always)]
fn passes(stages: &Stages, fact: &mut Fact) -> Option<()> {
    let Stages { shm, nat, .. } = stages;
    let packet = &fact.packet;
    let session = shm.reader().open_session(fact.slot, shm.index())?;
    shm.reader().prefetch_stats(fact.slot);
    let framed_ip = session.framed_ip();
    if framed_ip == 0 {
        return None;
    }
    fact.mtu = session.mtu();
    fact.dst = if fact.is_nat {
        let entry = Reverse::unpack(fact.inside)?;
        let port = packet.dst_port.get();
        if entry.generation != Reverse::generation_bits(session.generation())
            || !entry.inbound_seen
            || entry.closing
            || nat.timers.expired(packet.protocol(), &entry, nat.tick)
            || !owns_port(
                &stages.shm,
                entry.slot,
                &session.block(),
                fact.address_index,
                port,
            )
        {
            return None;
        }
        (framed_ip.into(), entry.inside_port.into())
    } else {
        if !fact.owner?.leads_to(&session, packet.dst.get()) {
            return None;
        }
        (packet.dst, packet.dst_port)
    };
    let policy = shm.reader().policy_down(session.policy())?;
    if let Some(filter) = stages.filters.by_id(policy.filter()).ok()? {
        let remote = (packet.src, packet.src_port);
        if !packet.passes(&filter.down.v4, remote, fact.dst.1) {
            return None;
        }
    }
    fact.meter = policy.meter;
    fact.client_mac = session.client_mac();
    fact.tags = Tags::of(&session);
    Some(())
}

/// Pass 4: size, policer, new headers, counters.
#[inline(never)]
fn deliver<B: PacketBuf, const HINTED: bool>(
    stages: &Stages,
    burst: &mut Burst<'_, B>,
    facts: &mut [Fact],
    hints: &Hints,
) -> usize {
    let mut forwarded = 0;
    let mut stayed: Stayed = 0;
    // Most bursts leave by one port.
    let mut access = None;
    let packets = burst.bufs.iter_mut().zip(burst.verdicts.iter_mut());
    for (at, ((buf, verdict), fact)) in packets.zip(facts.iter()).enumerate() {
        if !fact.usual {
            continue;
        }
        let (mut fact, mut len) = (fact, fact.packet.len);
        if let Some(like) = usual::like::<HINTED>(hints, at)
            && let Some(like) = facts.get(like)
        {
            fact = like;
            // There is nothing behind the packet.
            len = buf.data().len().wrapping_sub(ETH_LEN) as u16;
        }
        if let Some(port) = leave(stages, buf, fact, len, &mut access) {
            forwarded += 1;
            *verdict = Verdict::Forward { port };
        } else {
            stayed |= 1 << at;
        }
    }
    if stayed != 0 {
        for (at, fact) in facts.iter_mut().enumerate() {
            fact.usual &= stayed >> at & 1 == 0;
        }
    }
    forwarded
}

/// An access port, by its index among all ports and among access ports.
#[derive(Debug, Clone, Copy)]
struct Access {
    port: u8,
    index: u8,
    header: AccessHeader,
}

#[cold]
fn access_port(stages: &Stages, index: u8) -> Option<Access> {
    let (port, own) = stages.ports.of_access_index(index)?;
    let header = AccessHeader::of_port(own.mac);
    Some(Access {
        port,
        index,
        header,
    })
}

#[inline(always)]
fn leave<B: PacketBuf>(
    stages: &Stages,
    buf: &mut B,
    fact: &Fact,
    len: u16,
    last: &mut Option<Access>,
) -> Option<u8> {
    let Fact { slot, packet, .. } = fact;
    if len > fact.mtu {
        return None;
    }
    let index = slot.access_port();
    let access = match last {
        Some(access) if access.index == index => access,
        _ => last.insert(access_port(stages, index)?),
    };
    let header_len = fact.tags.header_len();
    let front = header_len - ETH_LEN;
    if !buf.reframe(-(front as isize), header_len + usize::from(len)) {
        return None;
    }
    let now_ns = stages.now_ns;
    if !stages
        .shm
        .pass_down(*slot, fact.meter, u64::from(len), now_ns)
    {
        back(buf, front);
        return None;
    }
    // From here on things change.
    let id = slot.session_id();
    let bytes = access
        .header
        .write(buf.data_mut(), fact.client_mac, &fact.tags, id, len)?;
    let old = (packet.dst, packet.dst_port);
    usual::rewrite(bytes, packet.is_tcp, old, fact.dst, |head| {
        (&mut head.ip.dst, &mut head.dst_port)
    });
    Some(access.port)
}

/// Takes the room for the new header back; only padding is lost.
#[cold]
fn back<B: PacketBuf>(buf: &mut B, front: usize) {
    let len = buf.data().len().saturating_sub(front);
    buf.reframe(front as isize, len);
}
