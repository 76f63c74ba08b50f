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

/// Takes one hop off; returns the change, for the header checksum.
#[inline(always)]
pub(crate) fn decrement(header: &mut Ipv4Hdr) -> Delta {
    let old = u16::from_be_bytes([header.ttl, header.protocol]);
    header.ttl = header.ttl.saturating_sub(1);
    Delta::new().u16(old, u16::from_be_bytes([header.ttl, header.protocol]))
}
