//! Stage: nobody sends with an address that is not his (BCP 38, RFC 2827).

use bng_shm::{Counter, PolicyLine, SessionLine6};

use super::address::Kind;
use super::packet::Packet;
use super::ranges::Ranges6;
use super::session;
use crate::verdict::{Origin, Step, drop};

/// From a subscriber: the source address lies in the session's prefixes, unless the policy switches the check off. Off
/// means any unicast address outside our own prefixes and addresses: another subscriber is never impersonated.
#[inline(always)]
pub(crate) fn upstream(
    ranges: &Ranges6,
    session: &SessionLine6,
    policy: &PolicyLine,
    packet: &Packet,
    frame: &[u8],
) -> Step<()> {
    if session::has(session, packet.src) {
        Ok(())
    } else {
        other(ranges, policy, packet, frame)
    }
}

#[cold]
#[inline(never)]
fn other(ranges: &Ranges6, policy: &PolicyLine, packet: &Packet, frame: &[u8]) -> Step<()> {
    let foreign = Kind::of(packet.src) == Kind::Unicast
        && ranges.find(packet.src).is_none()
        && !ranges.is_gateway(packet.src_addr(frame));
    if foreign && !policy.source_check() {
        Ok(())
    } else {
        drop(Counter::SourceSpoofed)
    }
}

/// From the core to a subscriber: a unicast address that crosses routers (RFC 4291 sections 2.5.6 and 2.7), and none of our
/// prefixes, from which only subscribers send. What another worker hands over may be from one.
#[inline(always)]
pub(crate) fn downstream(ranges: &Ranges6, packet: &Packet, origin: Origin) -> Step<()> {
    if Kind::of(packet.src) == Kind::Unicast
        && (origin == Origin::HandedOver || ranges.find(packet.src).is_none())
    {
        Ok(())
    } else {
        drop(Counter::SourceSpoofed)
    }
}
