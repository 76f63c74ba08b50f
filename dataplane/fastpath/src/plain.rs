//! Plain IP in place of PPPoE and NAT, for the benchmark alone (feature `bench`): the measure of what PPPoE and NAT cost
//! (HZ-21 R2).
//!
//! ```text
//!  upstream    Ethernet, IPv4 -> session by source address -> policy, source check, filter -> destination -> TTL
//!              -> route -> policer -> MSS -> Ethernet -> core port
//!  downstream  Ethernet, IPv4 -> destination, source check -> session by destination address -> policy, filter -> TTL
//!              -> policer -> MSS -> Ethernet -> access port
//! ```
//!
//! It is what this gateway would do for subscribers on Ethernet without NAT: bursts, prefetches, tables, policies, statistics
//! and counters are those of the product, and every check of it that is not about PPPoE, tags or NAT is made. There is no
//! general way beside the usual one: what is not UDP or TCP in IPv4 without options, fragments or tags is dropped.

use bng_shm::{
    Counter, Meter, NextHopId, Policed, PolicyLine, RangeKind, SessionLine, SessionState, SlotIndex,
};
use bng_wire::ethernet::{ETH_LEN, ethertype};
use bng_wire::ipv4::{FLAG_MF, IPV4_MIN_LEN, OFFSET_MASK, protocol};
use bng_wire::l4::{TCP_MIN_LEN, UDP_LEN, tcp_flag::SYN};
use bng_wire::{EthHdr, Ipv4Hdr, MacAddr, U16};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::buffer::{BURST, PacketBuf};
use crate::encap::{self, Extent};
use crate::fib::Fib4;
use crate::filter::{Key, Ports};
use crate::verdict::{Step, Verdict, drop};
use crate::worker::{FastPath, Stages};
use crate::{destination, mss};

/// How far ahead of its use a line is prefetched in the same pass.
const AHEAD: usize = 8;

/// Headers of the usual packet, at the length of the shortest.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    eth: EthHdr,
    ip: Ipv4Hdr,
    src_port: U16,
    dst_port: U16,
    /// UDP: length. TCP: half the sequence number.
    length: U16,
    rest: U16,
}

/// The facts of one packet.
#[derive(Debug, Clone, Copy)]
struct Fact {
    /// Not at its end yet.
    goes_on: bool,
    protocol: u8,
    ttl: u8,
    /// Source MAC address.
    sender: [u8; 6],
    len: u16,
    src_port: u16,
    dst_port: u16,
    src: u32,
    dst: u32,
    is_syn: bool,
    // From pass 2 on.
    slot: SlotIndex,
    generation: u32,
    // From pass 3 on.
    meter: Meter,
    mss: u16,
}

impl Fact {
    const EMPTY: Self = Self {
        goes_on: false,
        protocol: 0,
        ttl: 0,
        sender: [0; 6],
        len: 0,
        src_port: 0,
        dst_port: 0,
        src: 0,
        dst: 0,
        is_syn: false,
        slot: SlotIndex(0),
        generation: 0,
        meter: Meter {
            cost: 0,
            burst_ns: 0,
        },
        mss: 0,
    };
}

impl FastPath {
    /// As [`FastPath::upstream`], for plain IP from the access ports. At most [`BURST`] buffers.
    pub fn plain_upstream<B: PacketBuf, F: Fib4>(
        &mut self,
        fib: &F,
        bufs: &mut [B],
        verdicts: &mut [Verdict],
    ) {
        let stages = self.stages();
        let mut facts = [Fact::EMPTY; BURST];
        let count = bufs.len().min(BURST);
        each(bufs, verdicts, &mut facts, true, |buf, fact| {
            let (own, _) = stages.ports.access(buf.port())?;
            parse(buf, own.mac, fact)?;
            fact.goes_on = true;
            Ok(None)
        });
        each(bufs, verdicts, &mut facts, false, |_, fact| {
            find(stages, fact.src, fact)
        });
        each(bufs, verdicts, &mut facts, false, |_, fact| {
            let session = live(stages, fact)?;
            // The sender is the session's, and so is the address.
            if session.client_mac() != fact.sender || session.framed_ip() != fact.src {
                return drop(Counter::SourceSpoofed);
            }
            let policy = policy(stages, &session)?;
            let ports = Ports::Known {
                remote: fact.dst_port,
                local: fact.src_port,
            };
            let key = Key {
                protocol: fact.protocol,
                remote: fact.dst,
                ports,
            };
            if let Some(filter) = stages.filters.of(&policy)?
                && !filter.up.v4.pass(&key)
            {
                return drop(Counter::FilterUpstream);
            }
            if fact.dst == session.gateway_ip() {
                return drop(Counter::DestinationGateway);
            }
            destination::upstream(&stages.ranges, stages.shm.reader(), fact.dst)?;
            limits(fact, &policy, &session, policy.up())?;
            stages.shm.reader().prefetch_stats(fact.slot);
            Ok(None)
        });
        let mut destinations = [0; BURST];
        let mut answers = [0; BURST];
        for (destination, fact) in destinations.iter_mut().zip(&facts) {
            *destination = fact.dst;
        }
        if let (Some(dst), Some(out)) = (destinations.get(..count), answers.get_mut(..count)) {
            fib.lookup(dst, out);
        }
        let mut answers = answers.iter();
        each_indexed(
            bufs,
            verdicts,
            &mut facts,
            &mut answers,
            |buf, fact, answer| {
                let hop = NextHopId(u32::try_from(*answer).unwrap_or(0));
                let Some((port, dst)) = stages.shm.reader().neighbour(hop) else {
                    return drop(Counter::NoRoute);
                };
                if fact.len > stages.ports.core(port)?.mtu {
                    return drop(Counter::PacketTooBig);
                }
                leave(stages, buf, fact, (port, dst), Policed::Up)?;
                let len = u64::from(fact.len);
                stages.shm.count_up(fact.slot, len, stages.now_ms);
                Ok(Some(port))
            },
        );
        settle(stages, Counter::ForwardedUpstream, verdicts, count);
    }

    /// As [`FastPath::downstream`], to the subscribers' own addresses. At most [`BURST`] buffers.
    pub fn plain_downstream<B: PacketBuf>(&mut self, bufs: &mut [B], verdicts: &mut [Verdict]) {
        let stages = self.stages();
        let mut facts = [Fact::EMPTY; BURST];
        let count = bufs.len().min(BURST);
        each(bufs, verdicts, &mut facts, true, |buf, fact| {
            let own = stages.ports.core(buf.port())?;
            parse(buf, own.mac, fact)?;
            if !stages.ranges.is_ordinary(fact.src) {
                return drop(Counter::SourceSpoofed);
            }
            fact.goes_on = true;
            Ok(None)
        });
        each(bufs, verdicts, &mut facts, false, |_, fact| {
            find(stages, fact.dst, fact)
        });
        for fact in facts.iter().take(AHEAD.min(count)) {
            stages.shm.reader().prefetch_stats(fact.slot);
        }
        for at in 0..count {
            let ahead = facts.get(at + AHEAD).filter(|_| at + AHEAD < count);
            if let Some(fact) = ahead {
                stages.shm.reader().prefetch_stats(fact.slot);
            }
            let (Some(buf), Some(verdict), Some(fact)) =
                (bufs.get_mut(at), verdicts.get_mut(at), facts.get_mut(at))
            else {
                break;
            };
            if fact.goes_on {
                *verdict = match deliver(stages, buf, fact) {
                    Ok(port) => Verdict::Forward { port },
                    Err(why) => why,
                };
            }
        }
        settle(stages, Counter::ForwardedDownstream, verdicts, count);
    }
}

/// Third pass downstream.
#[inline(always)]
fn deliver<B: PacketBuf>(stages: &Stages, buf: &mut B, fact: &mut Fact) -> Step<u8> {
    let session = live(stages, fact)?;
    let unknown = Counter::SessionUnknown;
    if session.framed_ip() != fact.dst {
        return drop(unknown);
    }
    let Some((port, own)) = stages.ports.of_access_index(fact.slot.access_port()) else {
        return drop(unknown);
    };
    let policy = policy(stages, &session)?;
    let ports = Ports::Known {
        remote: fact.src_port,
        local: fact.dst_port,
    };
    let key = Key {
        protocol: fact.protocol,
        remote: fact.src,
        ports,
    };
    if let Some(filter) = stages.filters.of(&policy)?
        && !filter.down.v4.pass(&key)
    {
        return drop(Counter::FilterDownstream);
    }
    if fact.len > session.mtu() || fact.len > own.mtu {
        return drop(Counter::PacketTooBig);
    }
    limits(fact, &policy, &session, policy.down())?;
    let [a, b, c, d, e, f] = session.client_mac();
    let dst = [a, b, c, d, e, f, 0, 0];
    leave(stages, buf, fact, (port, dst), Policed::Down)?;
    stages.shm.count_down(fact.slot, u64::from(fact.len));
    Ok(port)
}

/// A pass over the burst. `stage` says by which port a packet leaves, or why it ends.
#[inline(always)]
fn each<B: PacketBuf>(
    bufs: &mut [B],
    verdicts: &mut [Verdict],
    facts: &mut [Fact; BURST],
    first: bool,
    mut stage: impl FnMut(&mut B, &mut Fact) -> Step<Option<u8>>,
) {
    if first {
        bufs.iter().take(AHEAD).for_each(B::prefetch);
    }
    for at in 0..bufs.len() {
        if first && let Some(next) = bufs.get(at + AHEAD) {
            next.prefetch();
        }
        let (Some(buf), Some(verdict), Some(fact)) =
            (bufs.get_mut(at), verdicts.get_mut(at), facts.get_mut(at))
        else {
            break;
        };
        if !first && !fact.goes_on {
            continue;
        }
        match stage(buf, fact) {
            Ok(None) => {}
            Ok(Some(port)) => *verdict = Verdict::Forward { port },
            Err(why) => {
                fact.goes_on = false;
                *verdict = why;
            }
        }
    }
}

/// The last pass, with what the FIB said of each packet.
#[inline(always)]
fn each_indexed<'a, B: PacketBuf>(
    bufs: &mut [B],
    verdicts: &mut [Verdict],
    facts: &mut [Fact; BURST],
    answers: &mut impl Iterator<Item = &'a u64>,
    mut stage: impl FnMut(&mut B, &mut Fact, &u64) -> Step<Option<u8>>,
) {
    let packets = bufs.iter_mut().zip(verdicts).zip(facts.iter_mut());
    for (((buf, verdict), fact), answer) in packets.zip(answers) {
        if !fact.goes_on {
            continue;
        }
        match stage(buf, fact, answer) {
            Ok(None) => {}
            Ok(Some(port)) => *verdict = Verdict::Forward { port },
            Err(why) => *verdict = why,
        }
    }
}

/// Pass 1: everything the packet itself says.
#[inline(always)]
fn parse<B: PacketBuf>(buf: &B, own: MacAddr, fact: &mut Fact) -> Step<()> {
    if !buf.is_contiguous() {
        return drop(Counter::FrameSegmented);
    }
    let data = buf.data();
    let Ok((head, _)) = Head::ref_from_prefix(data) else {
        return drop(Counter::Ipv4Truncated);
    };
    if head.eth.dst != own {
        return drop(Counter::NotForUs);
    }
    let ip = &head.ip;
    let len = ip.total_len.get();
    if head.eth.ethertype != U16::new(ethertype::IPV4)
        || ip.version_ihl != 0x45
        || ip.frag.get() & (FLAG_MF | OFFSET_MASK) != 0
    {
        return drop(Counter::Ipv4Header);
    }
    let Some(payload) = usize::from(len).checked_sub(IPV4_MIN_LEN) else {
        return drop(Counter::Ipv4Header);
    };
    if usize::from(len) > data.len() - ETH_LEN {
        return drop(Counter::Ipv4Truncated);
    }
    if !ip.checksum_is_right() {
        return drop(Counter::Ipv4Checksum);
    }
    fact.is_syn = false;
    match ip.protocol {
        protocol::UDP => {
            let length = usize::from(head.length.get());
            if length < UDP_LEN || length > payload {
                return drop(Counter::UdpLength);
            }
        }
        protocol::TCP => {
            let at = ETH_LEN + IPV4_MIN_LEN + 12;
            let Some([offset, flags]) = data.get(at..).and_then(|rest| rest.first_chunk()) else {
                return drop(Counter::L4Truncated);
            };
            let header_len = usize::from(offset >> 4) * 4;
            if header_len < TCP_MIN_LEN || header_len > payload {
                return drop(Counter::L4Truncated);
            }
            fact.is_syn = flags & SYN != 0;
        }
        _ => return drop(Counter::NatProtocol),
    }
    (fact.protocol, fact.ttl, fact.len) = (ip.protocol, ip.ttl, len);
    (fact.src, fact.dst) = (ip.src.get(), ip.dst.get());
    (fact.src_port, fact.dst_port) = (head.src_port.get(), head.dst_port.get());
    fact.sender = head.eth.src.0;
    Ok(())
}

/// Pass 2: the session an address belongs to, if it is this worker's; prefetches its entry.
#[inline(always)]
fn find(stages: &Stages, address: u32, fact: &mut Fact) -> Step<Option<u8>> {
    let reader = stages.shm.reader();
    let unknown = Counter::SessionUnknown;
    let owner = stages
        .ranges
        .find(address)
        .filter(|range| range.kind == RangeKind::Routed)
        .and_then(|range| reader.framed_owner(range, address.into()));
    let Some(owner) = owner else {
        return drop(unknown);
    };
    if reader.owner(owner.slot) != Some(stages.shm.index()) {
        return drop(unknown);
    }
    (fact.slot, fact.generation) = (owner.slot, owner.generation);
    reader.prefetch_session(fact.slot);
    Ok(None)
}

/// The session's entry, which forwards and is the one the address was given to.
#[inline(always)]
fn live(stages: &Stages, fact: &Fact) -> Step<SessionLine> {
    let session = match stages.shm.reader().session_line(fact.slot) {
        Some(Ok(session)) => session,
        Some(Err(_)) => return drop(Counter::SessionBusy),
        None => return drop(Counter::SessionUnknown),
    };
    if session.state() != Some(SessionState::Forwarding) {
        return drop(Counter::SessionNotOpen);
    }
    // Owner words hold 31 bits of it.
    if (session.generation() ^ fact.generation) & 0x7fff_ffff != 0 {
        return drop(Counter::SessionUnknown);
    }
    Ok(session)
}

#[inline(always)]
fn policy(stages: &Stages, session: &SessionLine) -> Step<PolicyLine> {
    match stages.shm.reader().policy_line(session.policy()) {
        Some(policy) => Ok(policy),
        None => drop(Counter::NoPolicy),
    }
}

/// TTL, and what the last pass needs of the policy.
#[inline(always)]
fn limits(fact: &mut Fact, policy: &PolicyLine, session: &SessionLine, meter: Meter) -> Step<()> {
    if fact.ttl <= 1 {
        return drop(Counter::TtlExpired);
    }
    fact.meter = meter;
    fact.mss = if fact.is_syn && policy.mss_clamp() {
        session.mtu().saturating_sub(mss::HEADERS_V4)
    } else {
        0
    };
    Ok(())
}

/// Policer, TTL, MSS and new Ethernet header.
#[inline(always)]
fn leave<B: PacketBuf>(
    stages: &Stages,
    buf: &mut B,
    fact: &Fact,
    (port, dst): (u8, [u8; 8]),
    which: Policed,
) -> Step<()> {
    let len = u64::from(fact.len);
    if !stages
        .shm
        .conforms(fact.slot, which, fact.meter, len, stages.now_ns)
    {
        return drop(match which {
            Policed::Up => Counter::PolicerUpstream,
            _ => Counter::PolicerDownstream,
        });
    }
    let Some(source) = stages.ports.ipv4_source(port) else {
        return drop(Counter::NoRoute);
    };
    let Some((ip, l4)) = buf
        .data_mut()
        .get_mut(ETH_LEN..)
        .and_then(|rest| Ipv4Hdr::mut_from_prefix(rest).ok())
    else {
        return drop(Counter::Ipv4Truncated);
    };
    ip.decrement_ttl();
    if fact.mss != 0 && mss::clamp(l4, fact.mss) {
        stages.shm.count(Counter::MssClamped, 1);
    }
    let extent = Extent {
        l3: ETH_LEN as u16,
        len: fact.len,
    };
    encap::core(buf, extent, dst, source);
    Ok(())
}

/// Counts a burst's packets.
#[inline(always)]
fn settle(stages: &Stages, counter: Counter, verdicts: &[Verdict], count: usize) {
    let verdicts = verdicts.get(..count).unwrap_or(&[]);
    let mut forwarded = 0;
    for verdict in verdicts {
        match verdict {
            Verdict::Forward { .. } => forwarded += 1,
            Verdict::Drop(reason) => stages.shm.count(*reason, 1),
            _ => {}
        }
    }
    stages.shm.count(counter, forwarded);
}
