//! Requests to control to have the kernel resolve a neighbour, without repeating itself.

use std::net::Ipv4Addr;

use bng_shm::{Counter, Event, Worker};

use crate::rate::RateLimit;

/// Addresses remembered as asked for.
const RECENT: usize = 64;
/// An address is asked for again after this time.
const REPEAT_MS: u64 = 1_000;

/// Remembers what was asked for lately; at most a fixed number of requests a second in all.
#[derive(Debug)]
pub(crate) struct Resolver {
    limit: RateLimit,
    /// Address and time of the request, by a hash of the address.
    recent: [(u32, u64); RECENT],
}

impl Resolver {
    pub(crate) fn new(per_second: u32, now_ms: u64) -> Self {
        Self {
            limit: RateLimit::new(per_second, now_ms),
            recent: [(0, 0); RECENT],
        }
    }

    /// Asks for `address` on `port`, unless it was asked for within the last second or the limit is reached.
    pub(crate) fn ask(&mut self, shm: &mut Worker, port: u8, address: u32, now_ms: u64) {
        // Neighbours of one network differ in their low bits.
        let Some(place) = self.recent.get_mut(address as usize % RECENT) else {
            return;
        };
        if place.0 == address && now_ms < place.1 + REPEAT_MS || !self.limit.allow(now_ms) {
            return;
        }
        let address_asked = Ipv4Addr::from_bits(address);
        if shm.tell(Event::ResolveNeighbour {
            port,
            address: address_asked,
        }) {
            *place = (address, now_ms);
            shm.count(Counter::ResolveRequested, 1);
        }
    }
}
