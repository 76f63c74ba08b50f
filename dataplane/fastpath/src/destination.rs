//! Stage: may a packet go to this destination, and what is it to us?

use std::net::Ipv4Addr;

use bng_shm::{Counter, PoolRange, Pools, RangeKind};

use crate::verdict::{Step, Verdict, drop};

/// Upstream: no group, loopback, "this network" or reserved address, and none of our own pools.
#[inline]
pub(crate) fn upstream(pools: &Pools, dst: u32) -> Step<()> {
    // 0/8, 127/8, 224/4 (multicast) and 240/4 with the limited broadcast (RFC 1812 section 5.3.7, RFC 6890).
    let top = dst >> 24;
    if top == 0 || top == 127 || top >= 224 {
        return drop(Counter::DestinationInvalid);
    }
    match pools.find(Ipv4Addr::from_bits(dst)) {
        None => Ok(()),
        Some(_) => drop(Counter::DestinationSubscriber),
    }
}

/// Downstream: which range of ours the destination lies in. Anything else is the kernel's.
#[inline]
pub(crate) fn downstream(pools: &Pools, dst: u32, port: u8) -> Step<&PoolRange> {
    match pools.find(Ipv4Addr::from_bits(dst)) {
        Some(PoolRange {
            kind: RangeKind::Subscriber,
            ..
        }) => drop(Counter::DestinationSubscriber),
        Some(range) => Ok(range),
        None => Err(Verdict::Host { port }),
    }
}
