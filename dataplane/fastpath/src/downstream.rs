//! Downstream: from the core to access ports. The order of the stages, as text to read.
//!
//! Pass 1 parses and prefetches the reverse mapping, pass 2 reads it and prefetches the session, pass 3 checks and
//! rewrites.

use arrayvec::ArrayVec;
use bng_shm::{BlockOwner, Counter, RangeKind, Reverse, Session, SlotIndex};

use crate::buffer::{BURST, PacketBuf};
use crate::flow::{self, Direction, Flow};
use crate::ip::{self, Packet};
use crate::verdict::{Origin, Step, Verdict, drop};
use crate::worker::FastPath;
use crate::{classify, destination, encap, nat44, session, ttl};

/// How far ahead of the parser frames are prefetched.
const AHEAD: usize = 8;
/// Bits of a session's generation an owner word keeps.
const OWNER_GENERATION: u32 = 0x7fff_ffff;

/// What the destination is to us.
enum Target {
    /// An address of a NAT pool, by its dense index.
    Nat { address_index: u16, flow: Flow },
    /// A routed subscriber's address.
    Routed(BlockOwner),
}

struct Parsed {
    at: u8,
    packet: Packet,
    target: Target,
}

/// The session a packet leads to.
struct Found<'a> {
    parsed: &'a Parsed,
    slot: SlotIndex,
    lead: Lead<'a>,
}

/// What has been read on the way to the session, to be checked against its entry.
enum Lead<'a> {
    Nat {
        address_index: u16,
        flow: &'a Flow,
        entry: Reverse,
    },
    Routed {
        generation: u32,
    },
}

/// At most [`BURST`] buffers; `verdicts` has one place for each.
pub(crate) fn run<B: PacketBuf>(
    worker: &mut FastPath,
    bufs: &mut [B],
    verdicts: &mut [Verdict],
    origin: Origin,
) {
    let mut parsed = ArrayVec::<Parsed, BURST>::new();
    bufs.iter().take(AHEAD).for_each(B::prefetch);
    for (at, verdict) in verdicts.iter_mut().enumerate() {
        if let Some(next) = bufs.get(at + AHEAD) {
            next.prefetch();
        }
        let Some(buf) = bufs.get(at) else { break };
        match parse(worker, buf, at as u8) {
            Ok(packet) => parsed.push(packet),
            Err(end) => *verdict = end,
        }
    }

    let mut found = ArrayVec::<Found<'_>, BURST>::new();
    for packet in &parsed {
        match find(worker, packet, origin) {
            Ok(lead) => found.push(lead),
            Err(end) => put(verdicts, packet.at, end),
        }
    }

    let mut forwarded = 0;
    for lead in &found {
        let Some(buf) = bufs.get_mut(usize::from(lead.parsed.at)) else {
            break;
        };
        let end = match deliver(worker, buf, lead) {
            Ok(port) => {
                forwarded += 1;
                Verdict::Forward { port }
            }
            Err(end) => end,
        };
        put(verdicts, lead.parsed.at, end);
    }
    worker.shm.count(Counter::ForwardedDownstream, forwarded);
}

#[inline]
fn put(verdicts: &mut [Verdict], at: u8, end: Verdict) {
    if let Some(verdict) = verdicts.get_mut(usize::from(at)) {
        *verdict = end;
    }
}

/// Pass 1: everything the packet itself says.
#[inline]
fn parse<B: PacketBuf>(worker: &FastPath, buf: &B, at: u8) -> Step<Parsed> {
    let port = worker.ports.core(buf.port())?;
    let l3 = classify::core(buf, port)?;
    let bytes = buf.data().get(l3..).unwrap_or(&[]);
    let packet = match ip::check(bytes, l3) {
        // Options are the kernel's business when the packet is the kernel's; we see that below.
        Err(Counter::Ipv4Options) => return options(worker, bytes, buf.port()),
        other => other.map_err(Verdict::Drop)?,
    };
    let range = destination::downstream(&worker.pools, packet.dst, buf.port())?;
    let target = match range.kind {
        RangeKind::Nat => {
            let offset = packet.dst - range.first.to_bits();
            // Dense indices count at most 4,096 addresses.
            let address_index = (range.base + offset) as u16;
            let flow = flow::parse(packet.bytes(buf.data()), &packet, Direction::Downstream)
                .map_err(Verdict::Drop)?;
            worker
                .shm
                .prefetch_reverse(address_index, flow.protocol, flow.port);
            Target::Nat {
                address_index,
                flow,
            }
        }
        RangeKind::Routed | RangeKind::Subscriber => {
            match worker.shm.reader().framed_owner(range, packet.dst.into()) {
                Some(owner) => Target::Routed(owner),
                None => return drop(Counter::SessionUnknown),
            }
        }
    };
    Ok(Parsed { at, packet, target })
}

/// A packet with options, whose header is right otherwise: the kernel's, unless it is for a subscriber.
#[cold]
fn options(worker: &FastPath, bytes: &[u8], port: u8) -> Step<Parsed> {
    let dst = bng_wire::ipv4::parse(bytes).map_or(0, |packet| packet.dst);
    destination::downstream(&worker.pools, dst, port)?;
    drop(Counter::Ipv4Options)
}

/// Pass 2: the session the destination leads to, if it is this worker's.
#[inline]
fn find<'a>(worker: &FastPath, parsed: &'a Parsed, origin: Origin) -> Step<Found<'a>> {
    let shm = &worker.shm;
    let (slot, lead, unknown) = match &parsed.target {
        Target::Nat {
            address_index,
            flow,
        } => match shm.reverse(*address_index, flow.protocol, flow.port) {
            Some(entry) => {
                let address_index = *address_index;
                (
                    entry.slot,
                    Lead::Nat {
                        address_index,
                        flow,
                        entry,
                    },
                    Counter::NatNoMapping,
                )
            }
            None if flow.is_error => return drop(Counter::NatIcmpEmbedded),
            None => return drop(Counter::NatNoMapping),
        },
        Target::Routed(BlockOwner { slot, generation }) => (
            *slot,
            Lead::Routed {
                generation: *generation,
            },
            Counter::SessionUnknown,
        ),
    };
    session::owned(shm.reader(), slot, shm.index(), origin, unknown)?;
    shm.reader().prefetch_session(slot);
    Ok(Found { parsed, slot, lead })
}

/// Pass 3: session, TTL, size, NAT, encapsulation, counters; returns the egress port.
#[inline]
fn deliver<B: PacketBuf>(worker: &mut FastPath, buf: &mut B, found: &Found<'_>) -> Step<u8> {
    let FastPath {
        shm, ports, nat, ..
    } = worker;
    let Found {
        parsed: Parsed { packet, .. },
        slot,
        lead,
    } = found;
    let unknown = match lead {
        Lead::Nat { .. } => Counter::NatNoMapping,
        Lead::Routed { .. } => Counter::SessionUnknown,
    };
    let session = session::live(shm.reader(), *slot, unknown)?;
    let Some((port, own)) = ports.of_access_index(slot.access_port()) else {
        return drop(unknown);
    };
    if let Lead::Routed { generation } = lead {
        routed(&session, *generation, packet)?;
    }
    session::open(&session)?;
    ttl::left(packet)?;
    if packet.len > session.mtu {
        return drop(Counter::PacketTooBig);
    }
    if let Lead::Nat {
        address_index,
        flow,
        entry,
    } = lead
    {
        nat.inside(shm, &session, *address_index, flow, *entry)?;
        let bytes = packet.bytes_mut(buf.data_mut());
        let inside = session.framed_ip.to_bits();
        nat44::rewrite(
            bytes,
            Direction::Downstream,
            flow,
            inside,
            entry.inside_port,
        );
    }
    ttl::decrement(packet.bytes_mut(buf.data_mut()));
    encap::access(buf, packet, &session, *slot, own.mac)?;
    shm.count_down(*slot, u64::from(packet.len));
    Ok(port)
}

/// A routed address leads to the session it was given to, and to no later one in the same slot.
#[inline]
fn routed(session: &Session, generation: u32, packet: &Packet) -> Step<()> {
    let ours = session.generation & OWNER_GENERATION == generation
        && session.framed_ip.to_bits() == packet.dst;
    if ours {
        Ok(())
    } else {
        drop(Counter::SessionUnknown)
    }
}
