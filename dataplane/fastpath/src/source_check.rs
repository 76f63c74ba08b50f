//! Stage: nobody sends with an address that is not his (BCP 38, RFC 2827).

use bng_shm::{Counter, PolicyLine, Reader, SessionLine, SlotIndex};

use crate::destination::Ranges;
use crate::ip::Packet;
use crate::verdict::{Step, drop};

/// The session has an IPv4 address. It has none while IPCP is not open.
#[inline(always)]
pub(crate) fn addressed(session: &SessionLine) -> Step<()> {
    if session.framed_ip() == 0 {
        drop(Counter::SessionNotOpen)
    } else {
        Ok(())
    }
}

/// What a packet's source is to its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The framed-ip, or whatever a session without the check may send from.
    Session,
    /// An address in a network behind the session's subscriber: it is routed, also if the session is behind NAT.
    Network,
}

/// From a subscriber: the source address is the session's framed-ip or lies in a network of its own, unless the policy
/// switches the check off.
///
/// Off means any unicast source outside our own pools, addresses and networks, for a routed session: another subscriber is
/// never impersonated. For a session behind NAT it means nothing: what NAT sends back goes to the framed-ip, so only the
/// framed-ip can be translated, and other sources stay `source_spoofed`.
#[inline(always)]
pub(crate) fn upstream(
    ranges: &Ranges,
    reader: &Reader,
    (slot, session): (SlotIndex, &SessionLine),
    policy: &PolicyLine,
    packet: &Packet,
) -> Step<Source> {
    if packet.src == session.framed_ip() {
        Ok(Source::Session)
    } else {
        other(ranges, reader, (slot, session), policy, packet.src)
    }
}

#[cold]
#[inline(never)]
fn other(
    ranges: &Ranges,
    reader: &Reader,
    (slot, session): (SlotIndex, &SessionLine),
    policy: &PolicyLine,
    src: u32,
) -> Step<Source> {
    if has_network(ranges, reader, slot, session, src) {
        return Ok(Source::Network);
    }
    let strict = policy.source_check() || session.nat().is_some();
    let is_ours = src == session.gateway_ip() || ranges.special(reader, src).is_some();
    if strict || is_ours {
        drop(Counter::SourceSpoofed)
    } else {
        Ok(Source::Session)
    }
}

/// Whether an address lies in a network behind the session's subscriber.
#[inline]
pub(crate) fn has_network(
    ranges: &Ranges,
    reader: &Reader,
    slot: SlotIndex,
    session: &SessionLine,
    address: u32,
) -> bool {
    let owner = ranges.network(reader, address);
    address != session.gateway_ip()
        && owner.is_some_and(|owner| owner.slot == slot && owner.is(session.generation()))
}

/// From the core to a subscriber: no source address of our pools or of a network behind a subscriber, which only subscribers
/// send from, and none that is no host's (RFC 1812 section 5.3.7). The kernel's own addresses pass: what it sends to a
/// subscriber may come back to us from a router.
#[inline(always)]
pub(crate) fn downstream(ranges: &Ranges, reader: &Reader, src: u32) -> Step<()> {
    if ranges.is_ordinary(src) {
        Ok(())
    } else {
        of_ours(ranges, reader, src)
    }
}

#[cold]
#[inline(never)]
fn of_ours(ranges: &Ranges, reader: &Reader, src: u32) -> Step<()> {
    use crate::destination::Special::{Gateway, Invalid, Network, Pool};
    match ranges.special(reader, src) {
        Some(Invalid | Pool | Network(_)) => drop(Counter::SourceSpoofed),
        Some(Gateway) | None => Ok(()),
    }
}
