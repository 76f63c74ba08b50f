//! Stage: time to live.

use bng_shm::Counter;
use bng_wire::Ipv4Hdr;
use bng_wire::checksum::Delta;

use crate::ip::Packet;
use crate::verdict::{Step, drop};

/// A packet to be forwarded has hops left after this one (RFC 1812 section 5.3.1).
#[inline(always)]
pub(crate) fn left(packet: &Packet) -> Step<()> {
    if packet.ttl > 1 {
        Ok(())
    } else {
        drop(Counter::TtlExpired)
    }
}

/// Takes one hop off a packet that has some [`left`]; returns the change, for the header checksum. It is the same for
/// every packet, since the TTL is the upper half of its 16-bit word (RFC 1141).
#[inline(always)]
pub(crate) fn decrement(header: &mut Ipv4Hdr) -> Delta {
    header.ttl = header.ttl.wrapping_sub(1);
    Delta::new().u16(0x0100, 0)
}
