//! Stage: time to live.

use bng_shm::Counter;
use bng_wire::Ipv4Hdr;
use zerocopy::FromBytes;

use crate::ip::Packet;
use crate::verdict::{Step, drop};

/// A packet to be forwarded has hops left after this one (RFC 1812 section 5.3.1).
#[inline]
pub(crate) fn left(packet: &Packet) -> Step<()> {
    if packet.ttl > 1 {
        Ok(())
    } else {
        drop(Counter::TtlExpired)
    }
}

/// Takes one hop off and updates the header checksum; `bytes` start at the IPv4 header.
#[inline]
pub(crate) fn decrement(bytes: &mut [u8]) {
    if let Ok((header, _)) = Ipv4Hdr::mut_from_prefix(bytes) {
        header.decrement_ttl();
    }
}
