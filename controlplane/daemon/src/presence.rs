//! Whether bng-dataplane runs: looked at all the time, said once per change.

use bng_shm::Publisher;

use crate::tally::{Count, Tally};

/// Time between two looks, milliseconds. A look asks the kernel for a lock.
const LOOK_MS: u64 = 200;
/// A process whose heartbeat is older hangs or is stopped, milliseconds.
const STALE_MS: u64 = 5_000;

/// What a look has noticed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Noticed {
    /// The workers known so far are gone.
    pub(crate) lost: bool,
    /// The process that has started, by its id.
    pub(crate) started: Option<u32>,
}

/// What was seen last.
#[derive(Debug)]
pub(crate) struct Presence {
    alive: bool,
    incarnation: u32,
    stale: bool,
    looked_ms: u64,
}

impl Presence {
    /// Looks for the first time.
    #[must_use]
    pub(crate) fn new(publisher: &Publisher) -> Self {
        let status = publisher.dataplane_status();
        if status.alive {
            tracing::info!(pid = status.pid, "bng-dataplane is running");
        } else {
            tracing::warn!("bng-dataplane is not running: nothing is forwarded until it starts");
        }
        Self {
            alive: status.alive,
            incarnation: status.incarnation,
            stale: false,
            looked_ms: 0,
        }
    }

    /// Looks again, if it is time.
    pub(crate) fn look(
        &mut self,
        publisher: &Publisher,
        now_ms: u64,
        tally: &mut Tally,
    ) -> Noticed {
        if now_ms < self.looked_ms + LOOK_MS {
            return Noticed::default();
        }
        self.looked_ms = now_ms;
        let status = publisher.dataplane_status();
        let restarted = status.incarnation != self.incarnation;
        let lost = self.alive && (!status.alive || restarted);
        if lost {
            tally.add(Count::DataplaneLost);
            tracing::error!("bng-dataplane has ended: nothing is forwarded until it starts again");
        }
        let started = status.alive && (restarted || !self.alive);
        if started {
            tally.add(Count::DataplaneStarted);
            tracing::info!(
                pid = status.pid,
                incarnation = status.incarnation,
                "bng-dataplane has started"
            );
        }
        let stale = status.alive && now_ms.saturating_sub(status.heartbeat_ms) > STALE_MS;
        if stale && !self.stale {
            tracing::error!(
                pid = status.pid,
                "bng-dataplane has no heartbeat: it hangs or is stopped"
            );
        } else if self.stale && !stale && status.alive {
            tracing::info!(pid = status.pid, "bng-dataplane has a heartbeat again");
        }
        self.alive = status.alive;
        self.incarnation = status.incarnation;
        self.stale = stale;
        Noticed {
            lost,
            started: started.then_some(status.pid),
        }
    }
}
