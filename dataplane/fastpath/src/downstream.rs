//! Downstream: from the core to access ports. The order of the stages, as text to read.
//!
//! Usual packets go the way of [`crate::usual`]; this is the way of all others, and the one that knows the reasons.

use bng_shm::{BlockOwner, Counter, PoolRange, RangeKind, Reverse, SessionLine, SlotIndex};

use bng_wire::pppoe::protocol;

use crate::buffer::{BURST, PacketBuf};
use crate::burst::{Burst, Tally};
use crate::flow::{self, Direction, Flow};
use crate::ip::{self, Packet};
use crate::verdict::{Origin, Step, Verdict, drop};
use crate::worker::Stages;
use crate::{classify, destination, encap, nat44, session, ttl, usual};

/// Bits of a session's generation an owner word keeps.
const OWNER_GENERATION: u32 = 0x7fff_ffff;

/// The facts of one packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    packet: Packet,
    target: Target,
    // From here on: what it leads to.
    slot: SlotIndex,
    /// The reverse mapping, for a NAT target.
    entry: Option<Reverse>,
}

/// What the destination is to us.
#[derive(Debug, Clone, Copy)]
enum Target {
    /// An address of a NAT pool, by its dense index.
    Nat { address_index: u16, flow: Flow },
    /// A routed subscriber's address.
    Routed(BlockOwner),
}

impl Arrival {
    pub(crate) const EMPTY: Self = Self {
        packet: Packet::EMPTY,
        target: Target::Nat {
            address_index: 0,
            flow: Flow::EMPTY,
        },
        slot: SlotIndex(0),
        entry: None,
    };
}

/// Takes a burst through the stages: the usual packets together, then each of the others alone.
pub(crate) fn run<B: PacketBuf>(
    stages: &mut Stages,
    facts: &mut [usual::downstream::Fact; BURST],
    burst: &mut Burst<'_, B>,
    origin: Origin,
) -> Tally {
    let mut tally = usual::downstream::run(stages, facts, burst);
    if tally.forwarded != burst.bufs.len() {
        for ((buf, verdict), fact) in burst.iter_mut().zip(facts.iter()) {
            if !fact.usual {
                *verdict = tally.add(one(stages, buf, origin));
            }
        }
    }
    tally
}

/// All stages for one packet of whatever kind.
#[inline(never)]
fn one<B: PacketBuf>(stages: &mut Stages, buf: &mut B, origin: Origin) -> Step<u8> {
    let mut arrival = Arrival::EMPTY;
    parse(stages, buf, &mut arrival)?;
    find(stages, &mut arrival, origin)?;
    deliver(stages, buf, &arrival)
}

/// Everything the packet itself says.
fn parse<B: PacketBuf>(stages: &Stages, buf: &B, place: &mut Arrival) -> Step<()> {
    let port = stages.ports.core(buf.port())?;
    let (l3, bytes) = classify::core(buf, port)?;
    let packet = match ip::check(bytes, l3) {
        // Options are the kernel's business when the packet is the kernel's.
        Err(Counter::Ipv4Options) => return options(stages, bytes, buf.port()),
        other => other.map_err(Verdict::Drop)?,
    };
    place.packet = packet;
    let range = destination::downstream(&stages.ranges, packet.dst, buf.port())?;
    if range.kind != RangeKind::Nat {
        return routed_target(stages, range, place);
    }
    let bytes = bytes.get(..usize::from(packet.len)).unwrap_or(&[]);
    let flow = flow::parse(bytes, &packet, Direction::Downstream).map_err(Verdict::Drop)?;
    nat_target(range, flow, place);
    Ok(())
}

/// The destination is the NAT pool's `range`.
fn nat_target(range: &PoolRange, flow: Flow, place: &mut Arrival) {
    // Dense indices fit 16 bits (Capacities); a base that is nonsense finds nobody's mapping.
    let offset = place.packet.dst - range.first.to_bits();
    let address_index = range.base.wrapping_add(offset) as u16;
    place.target = Target::Nat {
        address_index,
        flow,
    };
}

/// The destination is a routed subscriber's address in `range`.
fn routed_target(stages: &Stages, range: &PoolRange, place: &mut Arrival) -> Step<()> {
    match stages
        .shm
        .reader()
        .framed_owner(range, place.packet.dst.into())
    {
        Some(owner) => {
            place.target = Target::Routed(owner);
            Ok(())
        }
        None => drop(Counter::SessionUnknown),
    }
}

/// A packet with options, whose header is right otherwise: the kernel's, unless it is for a subscriber.
#[cold]
fn options(stages: &Stages, bytes: &[u8], port: u8) -> Step<()> {
    let dst = bng_wire::ipv4::parse(bytes).map_or(0, |packet| packet.dst);
    destination::downstream(&stages.ranges, dst, port)?;
    drop(Counter::Ipv4Options)
}

/// The session the destination leads to, if it is this worker's.
fn find(stages: &Stages, place: &mut Arrival, origin: Origin) -> Step<()> {
    let shm = &stages.shm;
    place.slot = match &place.target {
        Target::Nat {
            address_index,
            flow,
        } => {
            let missing = if flow.is_error {
                Counter::NatIcmpEmbedded
            } else {
                Counter::NatNoMapping
            };
            place.entry = shm.reverse(*address_index, flow.protocol, flow.port);
            place
                .entry
                .map_or_else(|| drop(missing), |entry| Ok(entry.slot))?
        }
        Target::Routed(owner) => owner.slot,
    };
    let unknown = place.target.unknown();
    session::owned(shm.reader(), place.slot, shm.index(), origin, unknown)
}

impl Target {
    /// The reason when there is no session.
    const fn unknown(&self) -> Counter {
        match self {
            Self::Nat { .. } => Counter::NatNoMapping,
            Self::Routed(_) => Counter::SessionUnknown,
        }
    }
}

/// Session, TTL, size, NAT, encapsulation, counters; returns the egress port.
fn deliver<B: PacketBuf>(stages: &mut Stages, buf: &mut B, place: &Arrival) -> Step<u8> {
    let Stages {
        shm, ports, nat, ..
    } = stages;
    let Arrival {
        packet,
        slot,
        target,
        ..
    } = place;
    let unknown = target.unknown();
    let session = session::live(shm.reader(), *slot, unknown)?;
    let Some((port, own)) = ports.of_access_index(slot.access_port()) else {
        return drop(unknown);
    };
    if let Target::Routed(owner) = target
        && !leads_to(owner, &session, packet.dst)
    {
        return drop(Counter::SessionUnknown);
    }
    session::open(&session)?;
    ttl::left(packet)?;
    if packet.len > session.mtu() {
        return drop(Counter::PacketTooBig);
    }
    let Some((ip, l4)) = packet.parts(buf.data_mut()) else {
        return drop(Counter::Ipv4Truncated);
    };
    let mut changed = ttl::decrement(ip);
    if let (
        Target::Nat {
            address_index,
            flow,
        },
        Some(entry),
    ) = (target, place.entry)
    {
        nat.inside(shm, &session, *address_index, flow, entry)?;
        let inside = session.framed_ip();
        let rewritten = nat44::rewrite(
            ip,
            l4,
            Direction::Downstream,
            flow,
            inside,
            entry.inside_port,
        );
        changed = changed.and(rewritten);
    }
    ip.checksum.set(changed.apply(ip.checksum.get()));
    encap::access(
        buf,
        protocol::IPV4,
        packet.extent(),
        &session,
        *slot,
        own.mac,
    )?;
    shm.count_down(*slot, u64::from(packet.len));
    Ok(port)
}

/// A routed address leads to the session it was given to, and to no later one in the same slot.
#[inline(always)]
pub(crate) fn leads_to(owner: &BlockOwner, session: &SessionLine, dst: u32) -> bool {
    session.generation() & OWNER_GENERATION == owner.generation && session.framed_ip() == dst
}
