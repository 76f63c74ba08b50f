//! Downstream: from the core to access ports. The order of the stages, as text to read.
//!
//! Pass 1 parses and prefetches the reverse mapping, pass 2 reads it and prefetches the session, pass 3 checks and
//! rewrites.

use bng_shm::{BlockOwner, Counter, PoolRange, RangeKind, Reverse, SessionLine, SlotIndex};
use bng_wire::l4::tcp_flag::SYN;
use bng_wire::pppoe::protocol;

use crate::buffer::{BURST, PacketBuf};
use crate::burst::{Burst, Facts};
use crate::flow::{self, Direction, Flow};
use crate::icmp_reply::Error;
use crate::ip::{self, Packet};
use crate::ports::Port;
use crate::verdict::{Origin, Step, Verdict, drop};
use crate::worker::Stages;
use crate::{
    classify, destination, encap, filter, fragment, icmp_reply, mss, nat44, policy, session,
    source_check, ttl, usual, v6,
};

/// Bits of a session's generation an owner word keeps.
const OWNER_GENERATION: u32 = 0x7fff_ffff;

/// The facts of one packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    /// Place of the packet in its burst.
    at: u8,
    packet: Packet,
    target: Target,
    // From here on: pass 2.
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
    Routed {
        owner: BlockOwner,
        /// TCP control bits; 0 for other protocols.
        tcp_flags: u8,
    },
}

impl Arrival {
    pub(crate) const EMPTY: Self = Self {
        at: 0,
        packet: Packet::EMPTY,
        target: Target::Nat {
            address_index: 0,
            flow: Flow::EMPTY,
        },
        slot: SlotIndex(0),
        entry: None,
    };
}

impl Facts for Arrival {
    #[inline(always)]
    fn at(&self) -> u8 {
        self.at
    }

    #[inline(always)]
    fn set_at(&mut self, at: u8) {
        self.at = at;
    }
}

/// Takes a burst through the stages; returns how many packets are forwarded.
pub(crate) fn run<B: PacketBuf>(
    stages: &mut Stages,
    arrivals: &mut [Arrival; BURST],
    burst: &mut Burst<'_, B>,
    origin: Origin,
) -> usize {
    let parsed = burst.first(arrivals, |buf, arrival| parse(stages, buf, arrival));
    let found = burst.next(arrivals, parsed, |_, arrival| find(stages, arrival, origin));
    burst.last(
        arrivals,
        found,
        &[(); BURST],
        stages,
        |stages, arrival| stages.shm.reader().prefetch_stats(arrival.slot),
        |stages, buf, arrival, ()| deliver(stages, buf, arrival),
    )
}

/// Pass 1: everything the packet itself says; prefetches the reverse mapping.
#[inline(always)]
fn parse<B: PacketBuf>(stages: &Stages, buf: &B, place: &mut Arrival) -> Step<()> {
    let port = stages.ports.core(buf.port())?;
    if buf.is_contiguous()
        && let Some((packet, flow)) = usual::core(buf.data(), port.mac)
    {
        place.packet = packet;
        let range = destination::downstream(&stages.ranges, packet.dst, buf.port())?;
        source_check::downstream(&stages.ranges, packet.src)?;
        if range.kind == RangeKind::Nat {
            nat_target(stages, range, flow, place);
            return Ok(());
        }
        return routed_target(stages, range, flow.tcp_flags, place);
    }
    parse_any(stages, buf, port, place)
}

/// Pass 1 for whatever is not the usual packet.
#[cold]
#[inline(never)]
fn parse_any<B: PacketBuf>(stages: &Stages, buf: &B, port: &Port, place: &mut Arrival) -> Step<()> {
    if v6::downstream::is_ours(buf, port) {
        return stages.set_aside(place.at);
    }
    let (l3, bytes) = classify::core(buf, port)?;
    let packet = match ip::check(bytes, l3) {
        // Options are the kernel's business when the packet is the kernel's.
        Err(Counter::Ipv4Options) => return options(stages, bytes, buf.port()),
        other => other.map_err(Verdict::Drop)?,
    };
    place.packet = packet;
    let range = destination::downstream(&stages.ranges, packet.dst, buf.port())?;
    source_check::downstream(&stages.ranges, packet.src)?;
    let bytes = bytes.get(..usize::from(packet.len)).unwrap_or(&[]);
    let flow = flow::parse(bytes, &packet, Direction::Downstream);
    if range.kind != RangeKind::Nat {
        let tcp_flags = flow.map_or(0, |flow| flow.tcp_flags);
        return routed_target(stages, range, tcp_flags, place);
    }
    nat_target(stages, range, flow.map_err(Verdict::Drop)?, place);
    Ok(())
}

/// The destination is the NAT pool's `range`.
#[inline(always)]
fn nat_target(stages: &Stages, range: &PoolRange, flow: Flow, place: &mut Arrival) {
    // Dense indices fit 16 bits (Capacities); a base that is nonsense finds nobody's mapping.
    let offset = place.packet.dst - range.first.to_bits();
    let address_index = range.base.wrapping_add(offset) as u16;
    stages
        .shm
        .prefetch_reverse(address_index, flow.protocol, flow.port);
    place.target = Target::Nat {
        address_index,
        flow,
    };
}

/// The destination is a routed subscriber's address in `range`.
#[inline(never)]
fn routed_target(
    stages: &Stages,
    range: &PoolRange,
    tcp_flags: u8,
    place: &mut Arrival,
) -> Step<()> {
    match stages
        .shm
        .reader()
        .framed_owner(range, place.packet.dst.into())
    {
        Some(owner) => {
            place.target = Target::Routed { owner, tcp_flags };
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

/// Pass 2: the session the destination leads to, if it is this worker's; prefetches its entry.
#[inline(always)]
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
        Target::Routed { owner, .. } => owner.slot,
    };
    let unknown = place.target.unknown();
    session::owned(shm.reader(), place.slot, shm.index(), origin, unknown)?;
    shm.reader().prefetch_session(place.slot);
    Ok(())
}

impl Target {
    /// The reason when there is no session.
    const fn unknown(&self) -> Counter {
        match self {
            Self::Nat { .. } => Counter::NatNoMapping,
            Self::Routed { .. } => Counter::SessionUnknown,
        }
    }
}

/// Pass 3: session, policy, filter, TTL, size, policer, NAT, MSS, encapsulation, counters; returns the egress port.
#[inline(always)]
fn deliver<B: PacketBuf>(stages: &mut Stages, buf: &mut B, place: &Arrival) -> Step<u8> {
    let Stages {
        shm,
        ports,
        nat,
        filters,
        now_ns,
        ..
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
    session::open(&session)?;
    source_check::addressed(&session)?;
    let (tcp_flags, inside_port) = match (target, place.entry) {
        (
            Target::Nat {
                address_index,
                flow,
            },
            Some(entry),
        ) => {
            nat.leads_to(&session, *address_index, flow, entry)?;
            (flow.tcp_flags, Some(entry.inside_port))
        }
        (Target::Nat { .. }, None) => return drop(unknown),
        (Target::Routed { owner, tcp_flags }, _) => {
            routed(&session, owner, packet)?;
            (*tcp_flags, None)
        }
    };
    let policy = policy::of(shm.reader(), &session)?;
    filter::downstream(filters, &policy, packet, buf.data(), inside_port)?;
    if ttl::left(packet).is_err() {
        let (error, reason) = (Error::TimeExceeded, Counter::TtlExpired);
        return Err(refuse(stages, buf, packet, &session, error, reason));
    }
    let mtu = session.mtu();
    let is_oversized = packet.len > mtu;
    if is_oversized && packet.dont_fragment() {
        let (error, reason) = (Error::FragmentationNeeded { mtu }, Counter::PacketTooBig);
        return Err(refuse(stages, buf, packet, &session, error, reason));
    }
    policy::police_down(shm, *slot, policy.down(), packet.len, *now_ns)?;
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
        nat.arrived(shm, *address_index, flow, entry);
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
    if tcp_flags & SYN != 0
        && policy.mss_clamp()
        && mss::clamp(l4, mtu.saturating_sub(mss::HEADERS_V4))
    {
        shm.count(Counter::MssClamped, 1);
    }
    encap::access(
        buf,
        protocol::IPV4,
        packet.extent(),
        &session,
        *slot,
        own.mac,
    )?;
    shm.count_down(*slot, u64::from(packet.len));
    if is_oversized {
        let counter = Counter::ForwardedDownstream;
        return Err(fragment::later(stages, counter, port, mtu));
    }
    Ok(port)
}

/// Tells the sender why its packet does not get to the subscriber. A port without an address of its own answers from the
/// packet's NAT address or, to a routed subscriber, from the session's gateway address.
#[cold]
#[inline(never)]
fn refuse<B: PacketBuf>(
    stages: &mut Stages,
    buf: &mut B,
    packet: &Packet,
    session: &SessionLine,
    error: Error,
    reason: Counter,
) -> Verdict {
    let instead = if session.nat().is_some() {
        packet.dst
    } else {
        session.gateway_ip()
    };
    icmp_reply::to_core(stages, buf, packet, instead, error, reason)
}

/// A routed address leads to the session it was given to, and to no later one in the same slot.
#[inline]
fn routed(session: &SessionLine, owner: &BlockOwner, packet: &Packet) -> Step<()> {
    let ours = session.generation() & OWNER_GENERATION == owner.generation
        && session.framed_ip() == packet.dst;
    if ours {
        Ok(())
    } else {
        drop(Counter::SessionUnknown)
    }
}
