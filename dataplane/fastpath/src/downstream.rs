//! Downstream: from the core to access ports. The order of the stages, as text to read.
//!
//! Usual packets go the way of [`crate::usual`]; this is the way of all others, and the one that knows the reasons.

use bng_shm::{
    BlockOwner, Counter, NetworkOwner, PoolRange, RangeKind, Reverse, SessionLine, SlotIndex,
};
use bng_wire::l4::tcp_flag::SYN;
use bng_wire::pppoe::protocol;

use crate::buffer::{BURST, PacketBuf};
use crate::burst::Burst;
use crate::coalesce::Hints;
use crate::destination::Ours;
use crate::first_fragments::Note;
use crate::flow::{self, Direction, Flow};
use crate::icmp_reply::Error;
use crate::ip::{self, Packet};
use crate::nat_fragment::{self, Arriving};
use crate::nat_other;
use crate::verdict::{Origin, Step, Verdict, drop};
use crate::worker::Stages;
use crate::{
    classify, destination, encap, filter, fragment, hairpin, icmp_reply, mss, nat44, policy,
    session, source_check, ttl, usual, v6,
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
    /// A subscriber sent it, and it has turned round ([`hairpin`]).
    is_hairpin: bool,
    // From here on: what it leads to.
    slot: SlotIndex,
    /// The reverse mapping, for a NAT target.
    entry: Option<Reverse>,
    /// The packet to a NAT address is a fragment; what a later one follows.
    fragment: Option<Arriving>,
    followed: Option<Note>,
}

/// What the destination is to us.
#[derive(Debug, Clone, Copy)]
enum Target {
    /// An address of a NAT pool, by its dense index.
    Nat { address_index: u16, flow: Flow },
    /// The same, of a later fragment.
    LaterFragment { address_index: u16 },
    /// The same, of a packet whose protocol has no ports.
    Portless { address_index: u16 },
    /// A routed subscriber's address, or one in a network behind a subscriber.
    Routed {
        owner: RoutedOwner,
        /// TCP control bits; 0 for other protocols.
        tcp_flags: u8,
    },
}

/// The session a routed address leads to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RoutedOwner {
    /// By its framed-ip.
    Address(BlockOwner),
    /// By a network behind its subscriber.
    Network(NetworkOwner),
}

impl RoutedOwner {
    #[inline(always)]
    pub(crate) const fn slot(&self) -> SlotIndex {
        match self {
            Self::Address(owner) => owner.slot,
            Self::Network(owner) => owner.slot,
        }
    }

    /// Whether `session`, in the owner's slot, is the one the address was given to, and no later one.
    #[inline(always)]
    pub(crate) fn leads_to(&self, session: &SessionLine, dst: u32) -> bool {
        match self {
            Self::Address(owner) => {
                session.generation() & OWNER_GENERATION == owner.generation
                    && session.framed_ip() == dst
            }
            Self::Network(owner) => owner.is(session.generation()),
        }
    }
}

impl Arrival {
    pub(crate) const EMPTY: Self = Self {
        at: 0,
        packet: Packet::EMPTY,
        target: Target::Nat {
            address_index: 0,
            flow: Flow::EMPTY,
        },
        is_hairpin: false,
        slot: SlotIndex(0),
        entry: None,
        fragment: None,
        followed: None,
    };
}

/// Takes a burst through the stages: the usual packets together, then each of the others alone. Returns how many are
/// forwarded.
pub(crate) fn run<B: PacketBuf, const HINTED: bool>(
    stages: &mut Stages,
    facts: &mut [usual::downstream::Fact; BURST],
    burst: &mut Burst<'_, B>,
    origin: Origin,
    hints: &Hints,
) -> usize {
    let forwarded = usual::downstream::run::<B, HINTED>(stages, facts, burst, hints);
    if forwarded == burst.bufs.len() {
        return forwarded;
    }
    let usual = facts.iter().map(|fact| fact.usual);
    forwarded + burst.others(usual, |at, buf| one(stages, at, buf, origin))
}

/// All stages for one packet of whatever kind.
#[inline(never)]
fn one<B: PacketBuf>(stages: &mut Stages, at: u8, buf: &mut B, origin: Origin) -> Step<u8> {
    let mut arrival = Arrival {
        at,
        ..Arrival::EMPTY
    };
    parse(stages, buf, &mut arrival, origin)?;
    lead(stages, buf, &mut arrival, origin)
}

/// From the destination to the egress port.
fn lead<B: PacketBuf>(
    stages: &mut Stages,
    buf: &mut B,
    arrival: &mut Arrival,
    origin: Origin,
) -> Step<u8> {
    let found = find(stages, arrival, origin);
    let result = found.and_then(|()| deliver(stages, buf, arrival));
    if let Some(fragment) = &arrival.fragment
        && !arrival.packet.is_later_fragment()
    {
        fragment.settle(stages, arrival.entry, &result);
    }
    result
}

/// All stages for a packet of a subscriber that has turned round and has now the form of one from the core.
pub(crate) fn turned<B: PacketBuf>(stages: &mut Stages, buf: &mut B) -> Step<u8> {
    let mut arrival = Arrival::EMPTY;
    parse(stages, buf, &mut arrival, Origin::HandedOver)?;
    match lead(stages, buf, &mut arrival, Origin::Port) {
        // Translated as it is, it cannot come again.
        Err(Verdict::Wait(_)) => drop(Counter::NatFragmentNoFirst),
        result => result,
    }
}

/// Everything the packet itself says.
fn parse<B: PacketBuf>(stages: &Stages, buf: &B, place: &mut Arrival, origin: Origin) -> Step<()> {
    let port = stages.ports.core(buf.port())?;
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
    let reader = stages.shm.reader();
    let ours = destination::downstream(&stages.ranges, reader, packet.dst, buf.port())?;
    place.is_hairpin = hairpin::is_turned(&stages.ranges, origin, packet.src);
    if !place.is_hairpin {
        source_check::downstream(&stages.ranges, reader, packet.src)?;
    }
    let bytes = bytes.get(..usize::from(packet.len)).unwrap_or(&[]);
    let flow = flow::parse(bytes, &packet, Direction::Downstream);
    let tcp_flags = || flow.map_or(0, |flow| flow.tcp_flags);
    match ours {
        Ours::Range(range) if range.kind == RangeKind::Nat => {
            let address_index = nat_index(range, packet.dst);
            if packet.is_fragment() {
                place.fragment = Some(Arriving::of(&packet, buf.data())?);
            }
            if packet.is_later_fragment() {
                place.target = Target::LaterFragment { address_index };
                return Ok(());
            }
            if flow == Err(Counter::NatProtocol) {
                place.target = Target::Portless { address_index };
                return Ok(());
            }
            let flow = flow.map_err(Verdict::Drop)?;
            if flow.is_turned && !place.is_hairpin {
                return drop(Counter::NatIcmpUnsupported);
            }
            place.target = Target::Nat {
                address_index,
                flow,
            };
        }
        Ours::Range(range) => {
            let Some(owner) = reader.framed_owner(range, packet.dst.into()) else {
                return drop(Counter::SessionUnknown);
            };
            place.target = Target::Routed {
                owner: RoutedOwner::Address(owner),
                tcp_flags: tcp_flags(),
            };
        }
        Ours::Network(owner) => {
            place.target = Target::Routed {
                owner: RoutedOwner::Network(owner),
                tcp_flags: tcp_flags(),
            };
        }
    }
    Ok(())
}

/// Dense index of an address in a NAT pool's range. A base that is nonsense finds nobody's mapping.
pub(crate) fn nat_index(range: &PoolRange, address: u32) -> u16 {
    // Dense indices fit 16 bits (Capacities).
    let offset = address.wrapping_sub(range.first.to_bits());
    range.base.wrapping_add(offset) as u16
}

/// A packet with options, whose header is right otherwise: the kernel's, unless it is for a subscriber.
#[cold]
fn options(stages: &Stages, bytes: &[u8], port: u8) -> Step<()> {
    let dst = bng_wire::ipv4::parse(bytes).map_or(0, |packet| packet.dst);
    destination::downstream(&stages.ranges, stages.shm.reader(), dst, port)?;
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
        Target::Portless { .. } => {
            let entry = nat_other::arrived(stages, &place.packet)?;
            place.entry = Some(entry);
            entry.slot
        }
        Target::LaterFragment { .. } => {
            let Some(fragment) = place.fragment else {
                return drop(Counter::NatNoMapping);
            };
            let note = fragment.follow(stages, origin)?;
            place.followed = Some(note);
            note.slot
        }
        Target::Routed { owner, .. } => owner.slot(),
    };
    let unknown = place.target.unknown();
    session::owned(shm.reader(), place.slot, shm.index(), origin, unknown)?;
    match &place.followed {
        Some(note) => nat_fragment::decided(note, origin),
        None => Ok(()),
    }
}

impl Target {
    /// The reason when there is no session.
    const fn unknown(&self) -> Counter {
        match self {
            Self::Nat { .. } | Self::LaterFragment { .. } | Self::Portless { .. } => {
                Counter::NatNoMapping
            }
            Self::Routed { .. } => Counter::SessionUnknown,
        }
    }
}

/// Session, policy, filter, TTL, size, policer, NAT, MSS, encapsulation, counters; returns the egress port.
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
            nat.leads_to(shm, &session, *address_index, flow, entry)?;
            (flow.tcp_flags, Some(entry.inside_port))
        }
        (Target::Nat { .. } | Target::Portless { .. }, None) => return drop(unknown),
        (Target::Portless { address_index }, Some(entry)) => {
            nat_other::leads_to(&entry, &session, *address_index)?;
            (0, None)
        }
        (Target::LaterFragment { address_index }, _) => {
            let Some(note) = &place.followed else {
                return drop(unknown);
            };
            nat_fragment::leads_to(note, &session, *address_index)?;
            (0, None)
        }
        (Target::Routed { owner, tcp_flags }, _) => {
            if !owner.leads_to(&session, packet.dst) {
                return drop(unknown);
            }
            (*tcp_flags, None)
        }
    };
    let policy = policy::of(shm.reader(), &session)?;
    let followed = place.followed.as_ref();
    filter::downstream(filters, &policy, packet, buf.data(), inside_port, followed)?;
    if ttl::left(packet).is_err() {
        let (error, reason) = (Error::TimeExceeded, Counter::TtlExpired);
        return Err(refuse(stages, buf, place, &session, error, reason));
    }
    let mtu = session.mtu();
    let is_oversized = packet.len > mtu;
    if is_oversized && packet.dont_fragment() {
        let (error, reason) = (Error::FragmentationNeeded { mtu }, Counter::PacketTooBig);
        return Err(refuse(stages, buf, place, &session, error, reason));
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
    if let Target::LaterFragment { .. } | Target::Portless { .. } = target {
        let inside = session.framed_ip();
        changed = changed.and(nat44::set_address(ip, Direction::Downstream, inside));
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
/// packet's NAT address or, to a routed address, from the session's gateway address.
#[cold]
#[inline(never)]
fn refuse<B: PacketBuf>(
    stages: &mut Stages,
    buf: &mut B,
    place: &Arrival,
    session: &SessionLine,
    error: Error,
    reason: Counter,
) -> Verdict {
    let packet = &place.packet;
    if place.is_hairpin {
        // Who sent it was told before it turned round, unless something has changed since.
        return Verdict::Drop(reason);
    }
    let instead = match place.target {
        Target::Nat { .. } | Target::LaterFragment { .. } | Target::Portless { .. } => packet.dst,
        Target::Routed { .. } => session.gateway_ip(),
    };
    icmp_reply::to_core(stages, buf, packet, instead, error, reason)
}
