//! Hairpinning: from one subscriber behind NAT to the NAT address of another, or to its own (RFC 4787 REQ-9, RFC 5508
//! REQ-7).
//!
//! The packet is translated as one to the internet and turns round as if it came back from the core, so that each sees the
//! other's outside address and everything that holds for packets from the core holds for it: mapping, filter, policer, size.
//! The hop is taken once, on the way down. If another worker owns the receiver, that one takes it over in the form of a frame
//! from a core port.

use bng_shm::{Counter, NatProtocol, RangeKind, Reverse};

use crate::buffer::PacketBuf;
use crate::destination::Ranges;
use crate::downstream::nat_index;
use crate::flow::{self, Direction};
use crate::icmp_reply::{self, Error};
use crate::ports::PortRole;
use crate::upstream::{self, Frame};
use crate::verdict::{Origin, Step, Verdict, drop};
use crate::worker::Stages;
use crate::{downstream, encap, policy};

/// Whether the address is one of a NAT pool.
#[cold]
pub(crate) fn is_one_of_ours(ranges: &Ranges, address: u32) -> bool {
    let range = ranges.find(address);
    range.is_some_and(|range| range.kind == RangeKind::Nat)
}

/// Whether a packet with this source, in a frame from a core port, has turned round. Only workers send from a NAT address to
/// one: what came from a port with such a source was dropped before it could be handed over.
#[inline(always)]
pub(crate) fn is_turned(ranges: &Ranges, origin: Origin, src: u32) -> bool {
    origin == Origin::HandedOver && !ranges.is_ordinary(src) && is_one_of_ours(ranges, src)
}

/// Size, policer, NAT, MSS of the sender, then all stages of the receiver; returns the egress port.
#[cold]
#[inline(never)]
pub(crate) fn turn<B: PacketBuf>(stages: &mut Stages, buf: &mut B, frame: &Frame) -> Step<u8> {
    let (slot, packet) = (frame.slot, &frame.packet);
    // Any core port will do, since it sends nothing.
    let core = stages.ports.iter().find(|(_, p)| p.role == PortRole::Core);
    let header = core.and_then(|(at, port)| Some((at, port.mac, stages.ports.ipv4_source(at)?)));
    let Some((at, mac, source)) = header else {
        return drop(Counter::NoRoute);
    };
    fits(stages, buf, frame, None)?;
    policy::police_up(&stages.shm, slot, frame.meter, packet.len, stages.now_ns)?;
    let Some(outside) = upstream::outside(stages, frame)? else {
        return drop(Counter::NatNone);
    };
    fits(stages, buf, frame, Some(outside.1))?;
    let changed = upstream::rewrite(stages, buf, frame, Some(outside))?;
    if let Some((ip, _)) = packet.parts(buf.data_mut()) {
        ip.checksum.set(changed.apply(ip.checksum.get()));
    }
    let [a, b, c, d, e, f] = mac.0;
    encap::core(buf, packet.extent(), [a, b, c, d, e, f, 0, 0], source);
    buf.set_port(at);
    let turned = downstream::turned(stages, buf);
    if matches!(
        turned,
        Ok(_) | Err(Verdict::HandOver { .. } | Verdict::Fragment { .. })
    ) {
        stages
            .shm
            .count_up(slot, u64::from(packet.len), stages.now_ms);
    }
    turned
}

/// The packet, unchanged so far, gets to a session whose MTU it does not exceed, if it must not be fragmented. Of an echo
/// message that is known when it has its outside port. Of that session nothing but its entry is read, which any worker may
/// (INV-OWNER-1).
fn fits<B: PacketBuf>(
    stages: &mut Stages,
    buf: &mut B,
    frame: &Frame,
    outside_port: Option<u16>,
) -> Step<()> {
    let packet = &frame.packet;
    let flow = flow::parse(packet.bytes(buf.data()), packet, Direction::Downstream);
    let (Ok(flow), Some(range)) = (flow, stages.ranges.find(packet.dst)) else {
        // What is wrong with it is found later.
        return Ok(());
    };
    let is_echo = flow.protocol == NatProtocol::Icmp && !flow.is_error;
    let port = match (is_echo, outside_port) {
        (false, None) => flow.port,
        // The one field that both ends translate.
        (true, Some(port)) => port,
        _ => return Ok(()),
    };
    let index = nat_index(range, packet.dst);
    let Some(entry) = stages.shm.reverse(index, flow.protocol, port) else {
        return drop(match flow.is_error {
            true => Counter::NatIcmpEmbedded,
            false => Counter::NatNoMapping,
        });
    };
    let Some(Ok(session)) = stages.shm.reader().session_line(entry.slot) else {
        return drop(Counter::NatNoMapping);
    };
    let mtu = session.mtu();
    let is_it = entry.generation == Reverse::generation_bits(session.generation());
    if is_it && packet.len > mtu && packet.dont_fragment() {
        let (error, reason) = (Error::FragmentationNeeded { mtu }, Counter::PacketTooBig);
        return Err(icmp_reply::to_subscriber(
            stages, buf, packet, frame.slot, error, reason,
        ));
    }
    Ok(())
}
