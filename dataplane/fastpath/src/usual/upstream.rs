//! Usual packets upstream, a burst at a time.
//!
//! Pass 1 parses and prefetches the session and the NAT bucket, pass 2 looks whether everything is as it should be, the
//! route look-up takes the whole burst at once, pass 3 changes and counts.

use bng_shm::{Meter, RangeKind, Reverse, SessionLine, SlotIndex};
use bng_wire::U16;
use bng_wire::ethernet::ETH_LEN;

use crate::buffer::{BURST, PacketBuf};
use crate::burst::{AHEAD, Burst};
use crate::coalesce::Hints;
use crate::destination;
use crate::fib::Fib4;
use crate::nat_port::owns_port;
use crate::nat_table::Key;
use crate::route;
use crate::source_check::has_network;
use crate::usual::{self, End, Packet, Session, SessionFrames, Stayed, UsualSoFar};
use crate::verdict::Verdict;
use crate::worker::Stages;

/// The facts of one packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fact {
    /// Usual so far.
    pub(crate) usual: bool,
    session: Session,
    packet: Packet,
    slot: SlotIndex,
    /// The mapping's key but for the generation, and its home bucket.
    key: Key,
    home: u32,
    // From here on: pass 2.
    meter: Meter,
    /// The packet's source from now on.
    src: End,
}

impl Fact {
    pub(crate) const EMPTY: Self = Self {
        usual: false,
        session: Session::EMPTY,
        packet: Packet::EMPTY,
        slot: SlotIndex(0),
        key: Key::EMPTY,
        home: 0,
        meter: Meter {
            cost: 0,
            burst_ns: 0,
        },
        src: (Packet::EMPTY.src, U16::ZERO),
    };
}

/// Forwards the usual packets of a burst, writes their verdicts and returns how many they are; the facts of all others
/// are not [`usual`](Fact::usual). Without `HINTED`, `hints` are not looked at.
pub(crate) fn run<B: PacketBuf, F: Fib4, const HINTED: bool>(
    stages: &Stages,
    facts: &mut [Fact; BURST],
    fib: &F,
    burst: &mut Burst<'_, B>,
    hints: &Hints,
) -> usize {
    parse::<B, HINTED>(stages, burst.bufs, facts, hints);
    let count = burst.bufs.len().min(BURST);
    let mut look_up = LookUp {
        destinations: [0; BURST],
        count: 0,
        places: [0; BURST],
    };
    let mut answers = [0; BURST];
    let Some(present) = facts.get_mut(..count) else {
        return 0;
    };
    check::<HINTED>(stages, present, hints, &mut look_up);
    let count = if HINTED { look_up.count.into() } else { count };
    if let (Some(dst), Some(out)) = (look_up.destinations.get(..count), answers.get_mut(..count)) {
        fib.lookup(dst, out);
    }
    forward::<B, HINTED>(stages, burst, present, hints, (&answers, &look_up.places))
}

/// What the FIB is asked.
struct LookUp {
    /// One for each packet or, with hints, for each that is not like another.
    destinations: [u32; BURST],
    // From here on: with hints only.
    count: u8,
    /// Which of them is the packet's.
    places: [u8; BURST],
}

impl LookUp {
    /// Asks for the packet at `at`, or lets it have the answer of the one it is like.
    #[inline(always)]
    fn ask<const HINTED: bool>(&mut self, at: usize, like: Option<usize>, dst: u32) {
        if !HINTED {
            if let Some(destination) = self.destinations.get_mut(at) {
                *destination = dst;
            }
            return;
        }
        let like = like.and_then(|like| self.places.get(like).copied());
        let place = like.unwrap_or(self.count);
        if like.is_none()
            && let Some(destination) = self.destinations.get_mut(usize::from(place))
        {
            *destination = dst;
            self.count += 1;
        }
        if let Some(own) = self.places.get_mut(at) {
            *own = place;
        }
    }
}

/// Pass 1: everything the frame itself says.
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
    // Most bursts are from one port.
    let mut port = u8::MAX;
    let mut access = None;
    let mut so_far = UsualSoFar::default();
    for (at, (buf, fact)) in bufs.iter().zip(facts.iter_mut()).enumerate() {
        if let Some(like) = usual::like::<HINTED>(hints, at)
            && so_far.has(like)
            && buf.data().len() >= SessionFrames::ROOM
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
            access = frames_of(stages, port);
        }
        fact.usual = if let Some((frames, index)) = &access
            && buf.is_contiguous()
            && frames.read(buf.data(), &mut fact.session, &mut fact.packet)
        {
            fact.slot = SlotIndex::new(*index, fact.session.id);
            stages.shm.reader().prefetch_session(fact.slot);
            let Packet { src_port, .. } = fact.packet;
            fact.key = Key::new(fact.slot, 0, fact.packet.protocol(), src_port.get());
            fact.home = stages.nat.table.home(fact.key);
            stages.nat.table.prefetch(fact.home);
            true
        } else {
            false
        };
        so_far.note::<HINTED>(at, fact.usual);
    }
}

/// The frames to an access port, and its index among access ports.
#[cold]
fn frames_of(stages: &Stages, port: u8) -> Option<(SessionFrames, u8)> {
    let (own, index) = stages.ports.access(port).ok()?;
    Some((SessionFrames::to_port(own.mac), index))
}

/// Pass 2: session, source and destination address, policy, filter, NAT.
#[inline(never)]
fn check<const HINTED: bool>(
    stages: &Stages,
    facts: &mut [Fact],
    hints: &Hints,
    look_up: &mut LookUp,
) {
    let mut so_far = UsualSoFar::default();
    for (at, fact) in facts.iter_mut().enumerate() {
        let like = usual::like::<HINTED>(hints, at);
        let dst = fact.packet.dst.get();
        look_up.ask::<HINTED>(at, like, dst);
        fact.usual = fact.usual
            && match like {
                Some(like) => so_far.has(like),
                None => passes(stages, fact, dst).is_some(),
            };
        so_far.note::<HINTED>(at, fact.usual);
    }
}

#[inline(always)]
fn passes(stages: &Stages, fact: &mut Fact, dst: u32) -> Option<()> {
    let reader = stages.shm.reader();
    // Only if this worker owns it (INV-OWNER-1).
    let session = reader.open_session(fact.slot, stages.shm.index())?;
    let packet = &fact.packet;
    let src = packet.src.get();
    // A session without an IPv4 address has 0.0.0.0, which is nobody's source.
    if !session.is_from(fact.session.sender)
        || src == 0
        || dst == session.gateway_ip()
        || destination::upstream(&stages.ranges, reader, dst).is_err()
    {
        return None;
    }
    let is_own = session.framed_ip() == src;
    if !is_own && !from_network(stages, fact.slot, &session, src) {
        return None;
    }
    let policy = reader.policy_up(session.policy())?;
    if let Some(filter) = stages.filters.by_id(policy.filter()).ok()? {
        let remote = (packet.dst, packet.dst_port);
        if !packet.passes(&filter.up.v4, remote, packet.src_port) {
            return None;
        }
    }
    fact.meter = policy.meter;
    reader.prefetch_stats(fact.slot);
    let block = session.block();
    if !is_own || block.size == 0 {
        fact.src = (packet.src, packet.src_port);
        return (!is_own || is_routed(stages, src)).then_some(());
    }
    let generation = Reverse::generation_bits(session.generation());
    let key = fact.key.of_generation(generation);
    let mapping = stages.nat.table.find(fact.home, key)?;
    fact.src = (block.address.to_bits().into(), mapping.outside_port.into());
    let (index, port) = (mapping.address_index, mapping.outside_port);
    let lives = mapping.last_seen == stages.nat.tick
        && owns_port(&stages.shm, fact.slot, &block, index, port);
    lives.then_some(())
}

/// From a network behind the subscriber, which is not translated.
#[cold]
fn from_network(stages: &Stages, slot: SlotIndex, session: &SessionLine, src: u32) -> bool {
    // Of a session without an IPv4 address nothing is forwarded.
    let reader = stages.shm.reader();
    session.framed_ip() != 0 && has_network(&stages.ranges, reader, slot, session, src)
}

#[cold]
fn is_routed(stages: &Stages, src: u32) -> bool {
    let range = stages.ranges.find(src);
    range.is_some_and(|range| range.kind == RangeKind::Routed)
}

/// Pass 3: next hop, policer, new header, counters.
#[inline(never)]
fn forward<B: PacketBuf, const HINTED: bool>(
    stages: &Stages,
    burst: &mut Burst<'_, B>,
    facts: &mut [Fact],
    hints: &Hints,
    (answers, places): (&[u64; BURST], &[u8; BURST]),
) -> usize {
    let mut forwarded = 0;
    let mut stayed: Stayed = 0;
    // Most bursts leave by few next hops.
    let mut egress = None;
    let packets = burst.bufs.iter_mut().zip(burst.verdicts.iter_mut());
    let packets = packets.zip(facts.iter().zip(answers.iter().zip(places)));
    for (at, ((buf, verdict), (fact, (answer, place)))) in packets.enumerate() {
        if !fact.usual {
            continue;
        }
        let (mut fact, mut len, mut answer) = (fact, fact.packet.len, *answer);
        if HINTED {
            answer = answers[usize::from(*place) % BURST];
            if let Some(like) = hints.like(at)
                && let Some(like) = facts.get(like)
            {
                fact = like;
                // There is nothing behind the packet.
                let front = SessionFrames::L3 + usize::from(like.session.tags);
                len = buf.data().len().wrapping_sub(front) as u16;
            }
        }
        if let Some(port) = leave(stages, buf, fact, len, answer, &mut egress) {
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

#[inline(always)]
fn leave<B: PacketBuf>(
    stages: &Stages,
    buf: &mut B,
    fact: &Fact,
    len: u16,
    answer: u64,
    last: &mut Option<Egress>,
) -> Option<u8> {
    let Fact { slot, packet, .. } = fact;
    let egress = match last {
        Some(egress) if egress.answer == answer => egress,
        _ => next_hop(stages, answer, packet, last)?,
    };
    if len > egress.mtu {
        return None;
    }
    let now = (stages.now_ns, stages.now_ms);
    // From here on things change.
    if !stages.shm.pass_up(*slot, fact.meter, u64::from(len), now) {
        return None;
    }
    let front = SessionFrames::L3 - ETH_LEN + usize::from(fact.session.tags);
    if buf.reframe(front as isize, ETH_LEN + usize::from(len))
        && let Some((header, bytes)) = buf.data_mut().split_first_chunk_mut()
    {
        *header = egress.header;
        let old = (packet.src, packet.src_port);
        usual::rewrite(bytes, packet.is_tcp, old, fact.src, |head| {
            (&mut head.ip.src, &mut head.src_port)
        });
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
    let [src_port, dst_port] = [packet.src_port, packet.dst_port].map(|port| u32::from(port.get()));
    let spread = route::spread(
        packet.src.get(),
        packet.dst.get(),
        src_port << 16 | dst_port,
    );
    let hop = reader.member(named, spread);
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
