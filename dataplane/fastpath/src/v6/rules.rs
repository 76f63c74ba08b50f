//! Stages: the session's filter and the clamp of TCP's MSS, which look at the upper-layer header.
//!
//! It is found behind a bounded number of extension headers. A packet with more of them, or with broken ones, is dropped
//! where there is a filter (`ipv6_extension`: fail closed) and forwarded otherwise.

use bng_shm::{Counter, PolicyLine};
use bng_wire::ipv4::protocol;
use bng_wire::ipv6::IPV6_LEN;
use bng_wire::l4::{TCP_MIN_LEN, tcp_flag::SYN};
use bng_wire::{ExtensionError, Upper};

use super::packet::Packet;
use crate::filter::{Filters, Key, Ports};
use crate::flow::Direction;
use crate::mss;
use crate::verdict::{Step, drop};

/// IPv6 and TCP header without options (RFC 6691 section 2); extension headers count as options do.
pub(crate) const HEADERS_V6: u16 = IPV6_LEN as u16 + TCP_MIN_LEN as u16;

/// The session's filter lets the packet pass.
#[inline(always)]
pub(crate) fn filter(
    filters: &Filters,
    policy: &PolicyLine,
    packet: &Packet,
    frame: &[u8],
    upper: &Result<Upper, ExtensionError>,
    direction: Direction,
) -> Step<()> {
    let Some(filter) = filters.of(policy)? else {
        return Ok(());
    };
    let Ok(upper) = upper else {
        return drop(Counter::Ipv6Extension);
    };
    let (src, dst) = packet.addresses(frame);
    let (rules, remote, counter) = match direction {
        Direction::Upstream => (&filter.up.v6, dst, Counter::FilterUpstream),
        Direction::Downstream => (&filter.down.v6, src, Counter::FilterDownstream),
    };
    let l4 = (!upper.later_fragment)
        .then(|| packet.bytes(frame).get(upper.offset..))
        .flatten();
    let key = Key {
        protocol: upper.protocol,
        remote: u128::from_be_bytes(remote),
        ports: Ports::read(upper.protocol, l4, direction),
    };
    if rules.pass(&key) {
        Ok(())
    } else {
        drop(counter)
    }
}

/// Offset in the packet of a TCP header whose MSS option is to be looked at: a SYN's, if the policy says so. 0 for none.
#[inline(always)]
pub(crate) fn syn(
    policy: &PolicyLine,
    packet: &Packet,
    frame: &[u8],
    upper: &Result<Upper, ExtensionError>,
) -> u16 {
    match upper {
        Ok(upper)
            if upper.protocol == protocol::TCP && !upper.later_fragment && policy.mss_clamp() =>
        {
            let flags = packet.bytes(frame).get(upper.offset + 13);
            match flags {
                // Inside a packet, whose length has 16 bits.
                Some(flags) if flags & SYN != 0 => upper.offset as u16,
                _ => 0,
            }
        }
        _ => 0,
    }
}

/// Lowers the MSS option of the SYN at offset `at` to what a session with this MTU carries; true when it was higher.
#[cold]
#[inline(never)]
pub(crate) fn clamp(packet: &Packet, frame: &mut [u8], at: u16, mtu: u16) -> bool {
    packet
        .bytes_mut(frame)
        .get_mut(usize::from(at)..)
        .is_some_and(|tcp| mss::clamp(tcp, mtu.saturating_sub(HEADERS_V6)))
}
