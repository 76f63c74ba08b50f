//! Sessions that are over, that every worker has forgotten, and whose stop the disk has not taken yet.
//!
//! Each keeps its slot, and with it its session id, until the stop is on disk or a server has answered it: a control plane that
//! is killed meanwhile leaves a closing session behind, for which the next one sends the stop. A disk that hangs or refuses may
//! take its time; so what such a session holds (address, port block, prefixes, networks) is given back after a second, and new sessions
//! lack nothing but its id.

use std::collections::VecDeque;

use bng_shm::SlotIndex;

use crate::driver::Driver;
use crate::publish::Clock;
use crate::tally::Count;

/// How long what a session holds waits for the disk, milliseconds.
const LIMIT_MS: u64 = 1_000;

/// Sessions that wait, in the order they began to.
#[derive(Debug, Default)]
pub(crate) struct Held {
    waiting: VecDeque<Waiting>,
    /// Sessions that hold nothing but their slot any more.
    long: usize,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    slot: SlotIndex,
    generation: u32,
    until_ms: u64,
}

impl Held {
    /// Sessions that have waited so long that they hold nothing but their slot.
    pub(crate) const fn long(&self) -> usize {
        self.long
    }

    /// One of those is free.
    pub(crate) const fn leave(&mut self) {
        self.long = self.long.saturating_sub(1);
    }

    /// One that an earlier run has left so.
    pub(crate) const fn find(&mut self) {
        self.long += 1;
    }
}

impl Driver {
    /// Has a session wait for the disk.
    pub(crate) fn hold_slot(&mut self, slot: SlotIndex, clock: Clock) {
        let generation = self.sessions.at(slot).map_or(0, |live| live.generation);
        self.held.waiting.push_back(Waiting {
            slot,
            generation,
            until_ms: clock.monotonic_ms + LIMIT_MS,
        });
    }

    /// Gives back what sessions hold that have waited long enough.
    pub(crate) fn give_back_held(&mut self, clock: Clock) {
        let is_over = |it: &mut Waiting| clock.monotonic_ms >= it.until_ms;
        while let Some(Waiting {
            slot, generation, ..
        }) = self.held.waiting.pop_front_if(is_over)
        {
            let same = |live: &&mut crate::sessions::Live| {
                live.generation == generation && live.end.is_some() && !live.given_back
            };
            let Some(live) = self.sessions.at_mut(slot).filter(same) else {
                continue;
            };
            let routes = live.framed_routes().to_vec();
            live.given_back = true;
            let (holding, accounting_id) = (live.holding, live.accounting_id);
            // The record says so before anybody else can have it.
            self.update(slot);
            if let Some(holding) = holding {
                self.nat_log.closed(&holding, accounting_id, clock);
                self.grants.give_back(&holding, clock.since_start());
            }
            for route in &routes {
                self.networks.give_back(route, slot);
            }
            self.tally.add(Count::StopHeld);
            if self.held.long == 0 {
                tracing::error!(
                    "the disk does not take accounting messages: sessions that are over keep their session ids until it does"
                );
            }
            self.held.long += 1;
            self.unpark(slot, clock);
        }
    }
}
