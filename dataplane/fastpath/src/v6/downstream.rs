//! Downstream: from the core to access ports. The order of the stages, as text to read.
//!
//! Pass 1 parses and prefetches the owner of the destination's prefix, pass 2 reads it and prefetches the session, pass 3
//! checks and rewrites.

use bng_shm::{Counter, Pool6Range, SlotIndex};
use bng_wire::ethernet::{self, ethertype};
use bng_wire::pppoe::protocol;

use super::icmp_reply::{self, Error};
use super::packet::Packet;
use super::pass::{self, Fact};
use super::{Facts, rules, session, source_check};
use crate::buffer::{BURST, PacketBuf};
use crate::burst::Burst;
use crate::flow::Direction;
use crate::ports::Port;
use crate::session::owned;
use crate::verdict::{Origin, Step, Verdict, drop};
use crate::worker::Stages;
use crate::{encap, policy};

/// Bits of a session's generation an owner word keeps.
const OWNER_GENERATION: u32 = 0x7fff_ffff;

/// The facts of one packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    /// Place of the packet in its burst.
    at: u8,
    packet: Packet,
    /// The prefixes the destination lies in.
    range: Pool6Range,
    // From here on: pass 2.
    slot: SlotIndex,
    /// Generation of the session the prefix was given to.
    generation: u32,
}

impl Arrival {
    pub(crate) const EMPTY: Self = Self {
        at: 0,
        packet: Packet::EMPTY,
        range: Pool6Range {
            first: 0,
            last: 0,
            length: 64,
            base: 0,
        },
        slot: SlotIndex(0),
        generation: 0,
    };
}

impl Fact for Arrival {
    #[inline(always)]
    fn at(&self) -> u8 {
        self.at
    }

    #[inline(always)]
    fn set_at(&mut self, at: u8) {
        self.at = at;
    }
}

/// Whether a frame from a core port is for the IPv6 passes: an untagged IPv6 packet to the port's MAC address. What is to a
/// group, neighbour discovery for one, is the kernel's ([`crate::classify`]).
#[inline]
pub(crate) fn is_ours<B: PacketBuf>(buf: &B, port: &Port) -> bool {
    let link = ethernet::parse(buf.data());
    buf.is_contiguous()
        && link.is_ok_and(|link| {
            link.ethertype == ethertype::IPV6 && link.tags.count() == 0 && link.dst == port.mac
        })
}

/// Takes the packets of a burst that were set aside through the stages; returns how many are forwarded.
#[inline]
pub(crate) fn run<B: PacketBuf>(
    stages: &mut Stages,
    facts: &mut Facts,
    burst: &mut Burst<'_, B>,
    origin: Origin,
) -> usize {
    match stages.aside.take() {
        0 => 0,
        aside => passes(stages, &mut facts.downstream, burst, aside, origin),
    }
}

#[inline(never)]
fn passes<B: PacketBuf>(
    stages: &mut Stages,
    arrivals: &mut [Arrival; BURST],
    burst: &mut Burst<'_, B>,
    aside: u32,
    origin: Origin,
) -> usize {
    let parsed = pass::first(burst, aside, arrivals, |buf, arrival| {
        read(stages, buf, arrival)?;
        source_check::downstream(&stages.ranges.v6, &arrival.packet, origin)
    });
    let found = pass::next(burst, arrivals, parsed, |_, arrival| {
        find(stages, arrival)?;
        let shm = &stages.shm;
        let (me, unknown) = (shm.index(), Counter::SessionUnknown);
        owned(shm.reader(), arrival.slot, me, origin, unknown)?;
        shm.reader().prefetch_session(arrival.slot);
        shm.reader().prefetch_stats(arrival.slot);
        Ok(())
    });
    pass::last(burst, arrivals, found, &[(); BURST], |buf, arrival, ()| {
        deliver(stages, buf, arrival)
    })
}

/// Pass 1: everything the packet itself says; prefetches the owner of the prefix. What is for no subscriber is the kernel's.
#[inline(always)]
pub(crate) fn read<B: PacketBuf>(stages: &Stages, buf: &B, place: &mut Arrival) -> Step<()> {
    let bytes = buf.data().get(ethernet::ETH_LEN..).unwrap_or(&[]);
    place.packet = Packet::check(bytes, ethernet::ETH_LEN).map_err(Verdict::Drop)?;
    let Some(range) = stages.ranges.v6.find(place.packet.dst) else {
        return Err(Verdict::Host { port: buf.port() });
    };
    place.range = *range;
    let reader = stages.shm.reader();
    reader.prefetch_framed6(range, place.packet.dst);
    Ok(())
}

/// Pass 2: the session the prefix was given to.
#[inline(always)]
pub(crate) fn find(stages: &Stages, place: &mut Arrival) -> Step<()> {
    let reader = stages.shm.reader();
    match reader.framed6_owner(&place.range, place.packet.dst) {
        Some(owner) => {
            (place.slot, place.generation) = (owner.slot, owner.generation);
            Ok(())
        }
        None => drop(Counter::SessionUnknown),
    }
}

/// Pass 3: session, policy, filter, hop limit, size, policer, MSS, encapsulation, counters; returns the egress port.
#[inline(always)]
pub(crate) fn deliver<B: PacketBuf>(stages: &mut Stages, buf: &mut B, place: &Arrival) -> Step<u8> {
    let Stages {
        shm,
        ports,
        filters,
        now_ns,
        ..
    } = stages;
    let Arrival { packet, slot, .. } = place;
    let session = session::live(shm.reader(), *slot)?;
    let Some((port, own)) = ports.of_access_index(slot.access_port()) else {
        return drop(Counter::SessionUnknown);
    };
    // The prefix leads to the session it was given to, and to no later one in the same slot.
    let line = &session.line;
    if line.generation() & OWNER_GENERATION != place.generation {
        return drop(Counter::SessionUnknown);
    }
    session::open(&session)?;
    if !session::has(&session, packet.dst) {
        return drop(Counter::SessionUnknown);
    }
    let policy = policy::of(shm.reader(), line)?;
    let upper = packet.upper(buf.data());
    let down = Direction::Downstream;
    rules::filter(filters, &policy, packet, buf.data(), &upper, down)?;
    let mtu = line.mtu();
    let refused = if !packet.has_hops_left() {
        Some((Error::TimeExceeded, Counter::TtlExpired))
    } else if packet.extent.len > mtu {
        Some((Error::PacketTooBig { mtu }, Counter::PacketTooBig))
    } else {
        None
    };
    if let Some((error, reason)) = refused {
        return Err(icmp_reply::to_sender(
            stages, buf, packet, &session, error, reason,
        ));
    }
    policy::police_down(shm, *slot, policy.down(), packet.extent.len, *now_ns)?;
    packet.take_hop(buf.data_mut());
    let syn = rules::syn(&policy, packet, buf.data(), &upper);
    if syn != 0 && rules::clamp(packet, buf.data_mut(), syn, mtu) {
        shm.count(Counter::MssClamped, 1);
    }
    encap::access(buf, protocol::IPV6, packet.extent, line, *slot, own.mac)?;
    shm.count_down(*slot, u64::from(packet.extent.len));
    Ok(port)
}
