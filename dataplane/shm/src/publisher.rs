//! Control's side: the only writer of tables.

use crate::attach::{AttachError, Attached, Presence, Role, attach, monotonic_ms};
use crate::epoch::EpochToken;
use crate::frames::{
    Event, FrameMeta, PuntedFrame, TooLong, address_words, push_frame, take_event, take_frame,
};
use crate::layout::{
    Capacities, EVENT_RING_SLOTS, FRAME_MAX, INJECT_RING_SLOTS, Mismatch, PUNT_RING_SLOTS, Process,
};
use crate::mapping::Tables;
use crate::networks::{Network, NetworkCounts};
use crate::pools::PoolRange;
use crate::pools::{Pool6Range, PortAddresses};
use crate::reader::Reader;
use crate::ring::{Full, Take, is_empty};
use crate::routes::{Adjacency, NextHopId, Route, Route6};
use crate::session::SlotIndex;
use crate::status::{PortStatus, ProcessStatus, RingFill, WorkerStatus};
use crate::sync::fault_point;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

mod addresses;
mod policies;
mod sessions;

/// Why something could not be published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// No such session slot.
    #[error("session slot {0:?} does not exist")]
    Slot(SlotIndex),
    /// More entries than the memory was made for.
    #[error("{count} {what}, the memory holds {capacity}")]
    Capacity {
        /// What there are too many of.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many fit.
        capacity: usize,
    },
    /// The range's last address comes before its first.
    #[error("address range {first} to {last} ends before it begins")]
    Backwards {
        /// First address.
        first: Ipv4Addr,
        /// Last address.
        last: Ipv4Addr,
    },
    /// Two ranges share addresses.
    #[error("address ranges overlap at {0}")]
    Overlap(IpAddr),
    /// An IPv6 range whose ends are out of order or not on its prefix length's boundary.
    #[error("IPv6 range {first} to {last} is no range of /{length} prefixes")]
    Prefixes {
        /// First prefix.
        first: Ipv6Addr,
        /// Last prefix.
        last: Ipv6Addr,
        /// Length of the prefixes.
        length: u8,
    },
    /// A network that is shorter than /8 or has bits beyond its length.
    #[error("{}/{} is no network", .0.address, .0.length)]
    Network(Network),
    /// A worker index, next hop or address that does not exist.
    #[error("no {what} {value}")]
    Unknown {
        /// What was looked for.
        what: &'static str,
        /// Its number.
        value: u64,
    },
}

/// The only writer of the tables; holds the control lock.
pub struct Publisher {
    tables: Tables,
    capacities: Capacities,
    presence: Presence,
    replaced: Option<Mismatch>,
    created: bool,
    ranges: Vec<PoolRange>,
    ranges6: Vec<Pool6Range>,
    port_addresses: Vec<PortAddresses>,
    networks: NetworkCounts,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher")
            .field("capacities", &self.capacities)
            .finish_non_exhaustive()
    }
}

impl Publisher {
    /// Attaches to the memory in `dir`, making it if nobody has.
    ///
    /// # Errors
    /// See [`AttachError`]; each says what to do.
    pub fn attach(dir: &Path, capacities: Capacities) -> Result<Self, AttachError> {
        let Attached {
            tables,
            capacities,
            presence,
            replaced,
            created,
        } = attach(dir, capacities, Role::Control)?;
        Ok(Self::over(tables, capacities, presence, replaced, created))
    }

    pub(crate) fn over(
        tables: Tables,
        capacities: Capacities,
        presence: Presence,
        replaced: Option<Mismatch>,
        created: bool,
    ) -> Self {
        tables.header[0].control.announce();
        Self {
            networks: NetworkCounts::of(&tables.networks),
            tables,
            capacities,
            presence,
            replaced,
            created,
            ranges: Vec::new(),
            ranges6: Vec::new(),
            port_addresses: Vec::new(),
        }
    }

    /// What differed, if the memory was made anew in place of an unused one of another layout.
    #[must_use]
    pub fn replaced(&self) -> Option<&Mismatch> {
        self.replaced.as_ref()
    }

    /// Whether the memory was made by this attach, so that there is nothing to adopt.
    #[must_use]
    pub fn created(&self) -> bool {
        self.created
    }

    /// A read-only view.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader {
            tables: self.tables.clone(),
            capacities: self.capacities,
        }
    }

    // ---- what control keeps for itself ------------------------------------------------------------

    /// The key an earlier run of control kept; `None` when there is none, or half of one.
    #[must_use]
    pub fn kept_key(&self) -> Option<[u8; 16]> {
        let halves = &self.tables.header[0].control_key;
        let halves = [0, 1].map(|at: usize| halves[at].load(Ordering::Relaxed));
        let key = halves.map(u64::to_ne_bytes);
        (!halves.contains(&0)).then(|| key.as_flattened().try_into().ok())?
    }

    /// Keeps a key for the next run of control, for as long as the memory lives.
    pub fn keep_key(&mut self, key: [u8; 16]) {
        let (halves, _) = key.as_chunks::<8>();
        for (word, half) in self.tables.header[0].control_key.iter().zip(halves) {
            word.store(u64::from_ne_bytes(*half), Ordering::Relaxed);
            fault_point();
        }
    }

    // ---- epochs ---------------------------------------------------------------------------------

    /// Starts a grace period for everything withdrawn so far.
    pub fn advance_epoch(&mut self) -> EpochToken {
        self.tables.header[0].epoch.advance()
    }

    /// Whether no worker can hold anything withdrawn before `token`. A dataplane that is gone (by its
    /// lock) holds nothing.
    #[must_use]
    pub fn epoch_passed(&self, token: EpochToken) -> bool {
        let workers = &self.tables.workers[..self.capacities.workers as usize];
        workers.iter().all(|worker| worker.echo.passed(token)) || !self.dataplane_alive()
    }

    // ---- routes ---------------------------------------------------------------------------------

    /// Sets a next hop. Index 0 is "no route" and stays so.
    ///
    /// # Errors
    /// Index 0 or beyond the table.
    pub fn set_next_hop(
        &mut self,
        id: NextHopId,
        address: IpAddr,
        adjacency: Adjacency,
    ) -> Result<(), PublishError> {
        let unknown = PublishError::Unknown {
            what: "next hop",
            value: id.0.into(),
        };
        let hop = match id.0 {
            0 => None,
            at => self.tables.next_hops.get(at as usize),
        }
        .ok_or(unknown)?;
        for (word, value) in hop.address.iter().zip(address_words(address)) {
            word.store(value, Ordering::Relaxed);
        }
        hop.adjacency.store(adjacency.to_word(), Ordering::Release);
        Ok(())
    }

    /// Publishes the whole list of routes.
    ///
    /// # Errors
    /// More routes than the memory was made for; nothing is changed then.
    pub fn publish_routes(&mut self, routes: &[Route]) -> Result<(), PublishError> {
        if routes.len() > self.tables.routes.len() {
            return Err(PublishError::Capacity {
                what: "routes",
                count: routes.len(),
                capacity: self.tables.routes.len(),
            });
        }
        let header = &self.tables.header[0];
        sequence_write(&header.routes_version, || {
            for (words, route) in self.tables.routes.iter().zip(routes) {
                for (word, value) in words.0.iter().zip(route.to_words()) {
                    word.store(value, Ordering::Relaxed);
                    fault_point();
                }
            }
            header
                .routes_count
                .store(routes.len() as u32, Ordering::Relaxed);
        });
        Ok(())
    }

    /// Publishes the whole list of IPv6 routes.
    ///
    /// # Errors
    /// More routes than the memory was made for; nothing is changed then.
    pub fn publish_routes6(&mut self, routes: &[Route6]) -> Result<(), PublishError> {
        if routes.len() > self.tables.routes6.len() {
            return Err(PublishError::Capacity {
                what: "IPv6 routes",
                count: routes.len(),
                capacity: self.tables.routes6.len(),
            });
        }
        let header = &self.tables.header[0];
        sequence_write(&header.routes6_version, || {
            for (words, route) in self.tables.routes6.iter().zip(routes) {
                for (word, value) in words.0.iter().zip(route.to_words()) {
                    word.store(value, Ordering::Relaxed);
                    fault_point();
                }
            }
            header
                .routes6_count
                .store(routes.len() as u32, Ordering::Relaxed);
        });
        Ok(())
    }

    /// Whether the dataplane has the latest routes of both families in its FIBs.
    #[must_use]
    pub fn routes_in_fib(&self) -> bool {
        let header = &self.tables.header[0];
        header.routes_applied.load(Ordering::Acquire)
            == header.routes_version.load(Ordering::Relaxed)
            && header.routes6_applied.load(Ordering::Acquire)
                == header.routes6_version.load(Ordering::Relaxed)
    }

    /// Routes of the version applied that found no room in the dataplane's FIBs: IPv4 and IPv6.
    #[must_use]
    pub fn routes_refused(&self) -> [u32; 2] {
        let refused = &self.tables.header[0].routes_refused;
        std::array::from_fn(|family| refused[family].load(Ordering::Relaxed))
    }

    // ---- rings ----------------------------------------------------------------------------------

    /// Takes a punted frame of worker `worker`; the bytes go into `buffer`.
    pub fn take_punted(&mut self, worker: u8, buffer: &mut [u8; FRAME_MAX]) -> Take<PuntedFrame> {
        let Some((block, at)) = self.rings(worker, PUNT_RING_SLOTS) else {
            return Take::Empty;
        };
        let slots = &self.tables.punt[at..at + PUNT_RING_SLOTS];
        match take_frame(&block.punt, slots, buffer) {
            Take::Item((meta, len, at_ms)) => Take::Item(PuntedFrame { meta, len, at_ms }),
            Take::Empty => Take::Empty,
            Take::Corrupt => Take::Corrupt,
        }
    }

    /// Takes an event of worker `worker`. `Item(None)` is one this version does not know.
    pub fn take_event(&mut self, worker: u8) -> Take<Option<Event>> {
        let Some((block, at)) = self.rings(worker, EVENT_RING_SLOTS) else {
            return Take::Empty;
        };
        take_event(
            &block.events,
            &self.tables.events[at..at + EVENT_RING_SLOTS],
        )
    }

    /// Gives a frame to worker `worker` to send; false when its ring is full: keep the frame and try
    /// again (HZ-15 R3). A frame that must come before a session's data is injected before the state that lets data
    /// through is published (INV-INJECT-1).
    ///
    /// # Errors
    /// The frame is longer than a slot.
    pub fn inject(&mut self, worker: u8, meta: &FrameMeta, frame: &[u8]) -> Result<bool, TooLong> {
        let Some((block, at)) = self.rings(worker, INJECT_RING_SLOTS) else {
            return Ok(false);
        };
        let slots = &self.tables.inject[at..at + INJECT_RING_SLOTS];
        let pushed = push_frame(&block.inject, slots, 0, meta, 0, frame)?;
        Ok(match pushed {
            Ok(()) => true,
            Err(Full) => false,
        })
    }

    fn rings(&self, worker: u8, slots: usize) -> Option<(&crate::layout::WorkerBlock, usize)> {
        (u32::from(worker) < self.capacities.workers).then(|| {
            (
                &self.tables.workers[usize::from(worker)],
                usize::from(worker) * slots,
            )
        })
    }

    /// Sleeps until a worker (or [`Publisher::waker`]) rings, `limit` is over, or there is work in a
    /// ring or `more_work` says so.
    pub fn sleep(&self, limit: Duration, more_work: impl FnOnce() -> bool) {
        let workers = &self.tables.workers[..self.capacities.workers as usize];
        self.tables.header[0].control_bell.sleep(limit, || {
            !more_work()
                && workers
                    .iter()
                    .all(|w| is_empty(&w.punt) && is_empty(&w.events))
        });
    }

    /// A handle with which other threads of this process wake [`Publisher::sleep`].
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker {
            tables: self.tables.clone(),
        }
    }

    // ---- status ---------------------------------------------------------------------------------

    /// Whether bng-dataplane runs (by its lock).
    #[must_use]
    pub fn dataplane_alive(&self) -> bool {
        self.presence.other_alive()
    }

    /// Tells that this process lives; call about once a second.
    pub fn heartbeat(&self) {
        self.tables.header[0]
            .control
            .heartbeat_ms
            .store(monotonic_ms(), Ordering::Relaxed);
    }

    /// What the dataplane process tells of itself.
    #[must_use]
    pub fn dataplane_status(&self) -> ProcessStatus {
        self.tables.header[0]
            .dataplane
            .status(self.dataplane_alive())
    }

    /// Identity of this memory, new each time it is made.
    #[must_use]
    pub fn boot_id(&self) -> u128 {
        let [low, high] = &self.tables.header[0].boot_id;
        u128::from(high.load(Ordering::Relaxed)) << 64 | u128::from(low.load(Ordering::Relaxed))
    }

    /// The dataplane's packet buffers, all and in use, about a second ago.
    #[must_use]
    pub fn mbufs(&self) -> (u32, u32) {
        let [all, in_use] = &self.tables.header[0].mbufs;
        (all.load(Ordering::Relaxed), in_use.load(Ordering::Relaxed))
    }

    /// What the dataplane tells of a port; `None` if there is no such port.
    #[must_use]
    pub fn port_status(&self, port: u8) -> Option<PortStatus> {
        self.tables
            .ports
            .get(usize::from(port))
            .map(|block| block.read())
    }

    /// Whether a worker's thread runs, or ran when its process was killed; `false` beyond.
    #[must_use]
    pub fn worker_present(&self, worker: u8) -> bool {
        let block = self.tables.workers.get(usize::from(worker));
        block.is_some_and(|block| block.echo.is_present())
    }

    /// Whether a worker has taken every frame injected; `true` beyond.
    #[must_use]
    pub fn inject_is_empty(&self, worker: u8) -> bool {
        let block = self.tables.workers.get(usize::from(worker));
        block.is_none_or(|block| block.inject.fill(INJECT_RING_SLOTS) == 0)
    }

    /// What a worker tells; index `workers` is the host path. `None` beyond.
    #[must_use]
    pub fn worker_status(&self, worker: u8) -> Option<WorkerStatus> {
        let block = self.tables.workers.get(usize::from(worker))?;
        Some(WorkerStatus {
            present: block.echo.is_present(),
            core: block.core.load(Ordering::Relaxed),
            heartbeat_ms: block.heartbeat_ms.load(Ordering::Relaxed),
            nat_mappings: block.nat_mappings.load(Ordering::Relaxed),
            tsc_hz: block.tsc_hz.load(Ordering::Relaxed),
            rings: RingFill {
                punt: block.punt.fill(PUNT_RING_SLOTS),
                inject: block.inject.fill(INJECT_RING_SLOTS),
                events: block.events.fill(EVENT_RING_SLOTS),
            },
            counters: block
                .counters
                .0
                .iter()
                .map(|c| c.load(Ordering::Relaxed))
                .collect(),
        })
    }
}

impl Process {
    fn status(&self, alive: bool) -> ProcessStatus {
        ProcessStatus {
            alive,
            pid: self.pid.load(Ordering::Relaxed),
            incarnation: self.incarnation.load(Ordering::Acquire),
            heartbeat_ms: self.heartbeat_ms.load(Ordering::Relaxed),
            started_unix_ms: self.started_unix_ms.load(Ordering::Relaxed),
        }
    }
}

/// Wakes the control thread that sleeps in [`Publisher::sleep`].
#[derive(Clone)]
pub struct Waker {
    tables: Tables,
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waker")
    }
}

impl Waker {
    /// Rings the bell.
    pub fn wake(&self) {
        self.tables.header[0].control_bell.ring();
    }
}

/// Writes a section under its sequence lock. A writer that died inside left the version odd; the next
/// one goes on from there.
fn sequence_write(version: &AtomicU64, write: impl FnOnce()) {
    let odd = version.load(Ordering::Relaxed) | 1;
    version.store(odd, Ordering::Relaxed);
    fence(Ordering::Release);
    fault_point();
    write();
    version.store(odd.wrapping_add(1), Ordering::Release);
    fault_point();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pools::{Pools, RangeKind};
    use crate::worker::Dataplane;

    fn range(kind: RangeKind, first: u32, last: u32) -> PoolRange {
        PoolRange {
            kind,
            first: first.into(),
            last: last.into(),
            base: 0,
            block_size: 512,
            first_port: 1024,
            rules: crate::pools::NatRules::default(),
        }
    }

    #[test]
    fn a_section_version_that_is_nonsense_or_odd_is_written_over() {
        let (dataplane, mut publisher) = Dataplane::in_process(Capacities::SMALL).unwrap();
        let reader = dataplane.reader();
        let mut pools = Pools::default();
        for version in [u64::MAX, u64::MAX - 1, 7] {
            let header = &publisher.tables.header[0];
            header.pools_version.store(version, Ordering::Relaxed);
            header.pools_count.store(u32::MAX, Ordering::Relaxed);
            publisher
                .publish_pools(&[range(RangeKind::Nat, 10, 13)])
                .unwrap();
            pools = Pools::of_version(2);
            assert!(reader.refresh_pools(&mut pools), "{version:#x}");
            assert_eq!(pools.ranges().len(), 1);
        }
        assert!(!reader.refresh_pools(&mut pools));
    }

    #[test]
    fn a_key_is_kept_for_the_next_run_whole_or_not_at_all() {
        let (_dataplane, mut publisher) = Dataplane::in_process(Capacities::SMALL).unwrap();
        assert_eq!(publisher.kept_key(), None);
        let key: [u8; 16] = std::array::from_fn(|at| at as u8);
        publisher.keep_key(key);
        let tables = publisher.tables.clone();
        let next = Publisher::over(tables, Capacities::SMALL, Presence::alone(), None, false);
        assert_eq!(next.kept_key(), Some(key));
        let halves = &publisher.tables.header[0].control_key;
        halves[1].store(0, Ordering::Relaxed);
        assert_eq!(next.kept_key(), None, "a write cut short");
    }

    #[test]
    fn a_new_dataplane_has_no_route_in_its_fib() {
        let (dataplane, mut publisher) = Dataplane::in_process(Capacities::SMALL).unwrap();
        let route = Route {
            prefix: Ipv4Addr::UNSPECIFIED,
            length: 0,
            next_hop: NextHopId(1),
        };
        publisher.publish_routes(&[route]).unwrap();
        let version = dataplane
            .reader()
            .refresh_routes(0, &mut Vec::new())
            .unwrap();
        dataplane.routes_applied(version);
        dataplane.routes_refused(0, 3);
        assert!(publisher.routes_in_fib());
        assert_eq!(publisher.routes_refused(), [0, 3]);
        let tables = publisher.tables.clone();
        let _restarted = Dataplane::over(tables, Capacities::SMALL, Presence::alone(), None);
        assert!(!publisher.routes_in_fib());
        assert_eq!(publisher.routes_refused(), [0, 0]);
    }
}
