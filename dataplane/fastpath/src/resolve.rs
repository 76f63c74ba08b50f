//! Requests to control to have the kernel resolve a neighbour, without repeating itself.

use std::hash::BuildHasher;
use std::net::IpAddr;

use bng_shm::{Counter, Event, Worker};
use foldhash::fast::FixedState;

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
    recent: [Option<(IpAddr, u64)>; RECENT],
    hasher: FixedState,
}

impl Resolver {
    pub(crate) fn new(per_second: u32, now_ms: u64) -> Self {
        Self {
            limit: RateLimit::new(per_second, now_ms),
            recent: [None; RECENT],
            hasher: FixedState::default(),
        }
    }

    /// Asks for `address` on `port`, unless it was asked for within the last second or the limit is reached.
    pub(crate) fn ask(&mut self, shm: &mut Worker, port: u8, address: IpAddr, now_ms: u64) {
        let at = self.hasher.hash_one(address) as usize % RECENT;
        let Some(place) = self.recent.get_mut(at) else {
            return;
        };
        let lately = place.is_some_and(|(asked, at)| asked == address && now_ms < at + REPEAT_MS);
        if lately || !self.limit.allow(now_ms) {
            return;
        }
        if shm.tell(Event::ResolveNeighbour { port, address }) {
            *place = Some((address, now_ms));
            shm.count(Counter::ResolveRequested, 1);
        }
    }
}
