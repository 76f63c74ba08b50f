//! From one subscriber to another: a packet turns round as if it came back from the core.

use bng_shm::{Counter, SlotIndex};

use super::downstream::{self, Arrival};
use super::packet::Packet;
use crate::buffer::PacketBuf;
use crate::encap::{self, Extent};
use crate::ports::PortRole;
use crate::verdict::{Step, Verdict, drop};
use crate::worker::Stages;

/// Takes a packet of a session, which may be forwarded, to the session in `slot`: at once, if this worker owns it. The hop
/// is taken there.
#[inline(never)]
pub(crate) fn deliver<B: PacketBuf>(
    stages: &mut Stages,
    buf: &mut B,
    extent: Extent,
    slot: SlotIndex,
) -> Step<u8> {
    // Any core port will do, since it sends nothing.
    let core = stages.ports.iter().find(|(_, p)| p.role == PortRole::Core);
    let header = core.and_then(|(at, port)| Some((at, port.mac, stages.ports.ipv6_source(at)?)));
    let Some((at, mac, source)) = header else {
        return drop(Counter::NoRoute);
    };
    let [a, b, c, d, e, f] = mac.0;
    encap::core(buf, extent, [a, b, c, d, e, f, 0, 0], source);
    buf.set_port(at);
    arrive(stages, buf, slot)
}

/// Takes a packet of our own, in a frame from a core port, to the subscriber it is for.
pub(crate) fn from_us<B: PacketBuf>(stages: &mut Stages, buf: &mut B, extent: Extent) -> Step<u8> {
    let bytes = buf.data().get(usize::from(extent.l3)..).unwrap_or(&[]);
    let packet = Packet::check(bytes, extent.l3.into()).map_err(Verdict::Drop)?;
    let range = stages.ranges.v6.find(packet.dst);
    let reader = stages.shm.reader();
    match range.and_then(|range| reader.framed6_owner(range, packet.dst)) {
        Some(owner) => arrive(stages, buf, owner.slot),
        None => drop(Counter::SessionUnknown),
    }
}

/// A frame in the form of one from a core port is delivered to the session in `slot` or handed to the worker that owns it.
fn arrive<B: PacketBuf>(stages: &mut Stages, buf: &mut B, slot: SlotIndex) -> Step<u8> {
    match stages.shm.reader().owner(slot) {
        Some(worker) if worker == stages.shm.index() => {
            let mut arrival = Arrival::EMPTY;
            downstream::read(stages, buf, &mut arrival)?;
            downstream::find(stages, &mut arrival)?;
            downstream::deliver(stages, buf, &arrival)
        }
        Some(worker) => Err(Verdict::HandOver { worker }),
        None => drop(Counter::SessionUnknown),
    }
}
