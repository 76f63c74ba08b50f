//! Stage: nobody sends with an address that is not his (BCP 38, RFC 2827).

use bng_shm::{Counter, PolicyLine, SessionLine};

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

/// From a subscriber: the source address is the session's framed-ip, unless the policy switches the check off.
///
/// Off means any unicast source outside our own pools and addresses, for a routed session: another subscriber is never
/// impersonated. For a session behind NAT it means nothing: what NAT sends back goes to the framed-ip, so only the
/// framed-ip can be translated, and other sources stay `source_spoofed`.
#[inline(always)]
pub(crate) fn upstream(
    ranges: &Ranges,
    session: &SessionLine,
    policy: &PolicyLine,
    packet: &Packet,
) -> Step<()> {
    if packet.src == session.framed_ip() {
        Ok(())
    } else {
        other(ranges, session, policy, packet)
    }
}

#[cold]
#[inline(never)]
fn other(ranges: &Ranges, session: &SessionLine, policy: &PolicyLine, packet: &Packet) -> Step<()> {
    let strict = policy.source_check() || session.nat().is_some();
    let is_ours = packet.src == session.gateway_ip() || ranges.special(packet.src).is_some();
    if strict || is_ours {
        drop(Counter::SourceSpoofed)
    } else {
        Ok(())
    }
}

/// From the core to a subscriber: no source address of our pools, which only subscribers send from, and none that is no
/// host's (RFC 1812 section 5.3.7). The kernel's own addresses pass: what it sends to a subscriber may come back to us
/// from a router.
#[inline(always)]
pub(crate) fn downstream(ranges: &Ranges, src: u32) -> Step<()> {
    if ranges.is_ordinary(src) {
        Ok(())
    } else {
        from_pool(ranges, src)
    }
}

#[cold]
#[inline(never)]
fn from_pool(ranges: &Ranges, src: u32) -> Step<()> {
    use crate::destination::Special::{Gateway, Invalid, Pool};
    match ranges.special(src) {
        Some(Invalid | Pool) => drop(Counter::SourceSpoofed),
        Some(Gateway) | None => Ok(()),
    }
}
