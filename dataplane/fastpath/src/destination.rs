//! Stage: may a packet go to this destination, and what is it to us?

use bng_shm::{Counter, PoolRange, Pools, RangeKind};

use crate::verdict::{Step, Verdict, drop};

/// The address ranges, found by the first octet: nearly every address on the internet shares it with none of ours.
#[derive(Debug)]
pub(crate) struct Ranges {
    pools: Pools,
    /// Per first octet, whether any range touches it.
    touched: [bool; 256],
}

impl Default for Ranges {
    fn default() -> Self {
        Self {
            pools: Pools::default(),
            touched: [false; 256],
        }
    }
}

impl Ranges {
    /// Takes over what control has changed.
    #[inline]
    pub(crate) fn refresh(&mut self, reader: &bng_shm::Reader) {
        if reader.refresh_pools(&mut self.pools) {
            self.touched = [false; 256];
            for range in self.pools.ranges() {
                let [first, last] =
                    [range.first, range.last].map(|address| usize::from(address.octets()[0]));
                self.touched
                    .get_mut(first..=last)
                    .unwrap_or(&mut [])
                    .fill(true);
            }
        }
    }

    /// The range an address lies in.
    #[inline(always)]
    pub(crate) fn find(&self, address: u32) -> Option<&PoolRange> {
        // The index is an octet.
        if self.touched.get((address >> 24) as usize) == Some(&true) {
            return self.pools.find(address.into());
        }
        None
    }
}

/// Upstream: no group, loopback, "this network" or reserved address, and none of our own pools.
#[inline(always)]
pub(crate) fn upstream(ranges: &Ranges, dst: u32) -> Step<()> {
    // 0/8, 127/8, 224/4 (multicast) and 240/4 with the limited broadcast (RFC 1812 section 5.3.7, RFC 6890).
    let top = dst >> 24;
    if top == 0 || top == 127 || top >= 224 {
        return drop(Counter::DestinationInvalid);
    }
    match ranges.find(dst) {
        None => Ok(()),
        Some(_) => drop(Counter::DestinationSubscriber),
    }
}

/// Downstream: which range of ours the destination lies in. Anything else is the kernel's.
#[inline(always)]
pub(crate) fn downstream(ranges: &Ranges, dst: u32, port: u8) -> Step<&PoolRange> {
    match ranges.find(dst) {
        Some(PoolRange {
            kind: RangeKind::Subscriber,
            ..
        }) => drop(Counter::DestinationSubscriber),
        Some(range) => Ok(range),
        None => Err(Verdict::Host { port }),
    }
}
