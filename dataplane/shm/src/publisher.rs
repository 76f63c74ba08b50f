//! Control's side: the only writer of tables.

use crate::attach::{AttachError, Attached, Presence, Role, attach, monotonic_ms};
use crate::epoch::EpochToken;
use crate::frames::{Event, FrameMeta, PuntedFrame, TooLong, push_frame, take_event, take_frame};
use crate::layout::{Capacities, EVENT_RING_SLOTS, FRAME_MAX, FRAME_RING_SLOTS, Mismatch, Process};
use crate::mapping::Tables;
use crate::pools::{MAX_POOL_RANGES, PoolRange, RangeKind};
use crate::reader::{BlockOwner, NO_OWNER, Reader, block_index};
use crate::record::Record;
use crate::ring::{Full, Take, is_empty};
use crate::routes::{Adjacency, NextHopId, Route};
use crate::session::{PortBlock, Session, SlotIndex, StatsCopy};
use crate::slot::{SLOT_WORDS, SessionState};
use crate::status::{PortStatus, ProcessStatus, RingFill, WorkerStatus};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

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
    /// Two ranges share addresses.
    #[error("address ranges overlap at {0}")]
    Overlap(Ipv4Addr),
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
            tables,
            capacities,
            presence,
            replaced,
            created,
            ranges: Vec::new(),
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

    // ---- sessions -------------------------------------------------------------------------------

    /// Publishes a new session in a free slot: counters are zeroed, the record is written, then the
    /// entry becomes visible. The entry's generation is the slot's next one; it is returned.
    ///
    /// The caller has made sure that the slot is free and its last withdrawal's epoch has passed.
    ///
    /// # Errors
    /// No such slot or no such worker.
    pub fn publish_session(
        &mut self,
        slot: SlotIndex,
        session: &Session,
        record: &Record,
    ) -> Result<u32, PublishError> {
        let entry = self
            .tables
            .sessions
            .get(slot.0 as usize)
            .ok_or(PublishError::Slot(slot))?;
        if u32::from(session.owner) >= self.capacities.workers {
            return Err(PublishError::Unknown {
                what: "worker",
                value: session.owner.into(),
            });
        }
        let generation = entry
            .slot
            .read()
            .map_or_else(|_| 1, |(word, _)| word.generation.wrapping_add(1))
            .max(1);
        entry.stats.clear();
        self.write_session(
            slot,
            &Session {
                generation,
                ..*session
            },
            record,
        )?;
        Ok(generation)
    }

    /// Replaces the entry and record of a live session; the generation and the counters stay.
    ///
    /// # Errors
    /// No such slot.
    pub fn update_session(
        &mut self,
        slot: SlotIndex,
        session: &Session,
        record: &Record,
    ) -> Result<(), PublishError> {
        self.write_session(slot, session, record)
    }

    fn write_session(
        &mut self,
        slot: SlotIndex,
        session: &Session,
        record: &Record,
    ) -> Result<(), PublishError> {
        let at = slot.0 as usize;
        let entry = self
            .tables
            .sessions
            .get(at)
            .ok_or(PublishError::Slot(slot))?;
        // The record first: a control process that dies after the entry became visible can adopt it.
        self.tables.records[at].write(session.generation, record);
        entry.slot.write(
            session.generation,
            session.state,
            session.owner,
            &session.to_words(),
        );
        self.tables.owners[at].store(session.owner + 1, Ordering::Release);
        Ok(())
    }

    /// Makes a session unreachable. Its slot, address and block may be reused when the token of an
    /// [`Publisher::advance_epoch`] after this call has passed.
    ///
    /// # Errors
    /// No such slot.
    pub fn withdraw_session(&mut self, slot: SlotIndex) -> Result<(), PublishError> {
        let entry = self
            .tables
            .sessions
            .get(slot.0 as usize)
            .ok_or(PublishError::Slot(slot))?;
        entry.slot.set_state(SessionState::Closing);
        Ok(())
    }

    /// Frees a withdrawn slot whose epoch has passed; returns the final counters.
    ///
    /// # Errors
    /// No such slot.
    pub fn free_session(&mut self, slot: SlotIndex) -> Result<StatsCopy, PublishError> {
        let entry = self
            .tables
            .sessions
            .get(slot.0 as usize)
            .ok_or(PublishError::Slot(slot))?;
        let stats = entry.stats.copy();
        self.tables.owners[slot.0 as usize].store(NO_OWNER, Ordering::Release);
        let generation = entry.slot.state().map_or(0, |word| word.generation);
        entry
            .slot
            .write(generation, SessionState::Free, 0, &[0; SLOT_WORDS]);
        Ok(stats)
    }

    /// A session's counters now.
    #[must_use]
    pub fn session_stats(&self, slot: SlotIndex) -> Option<StatsCopy> {
        self.tables
            .sessions
            .get(slot.0 as usize)
            .map(|entry| entry.stats.copy())
    }

    /// Everything in the table after a restart: sessions with their records, to be adopted or, where
    /// there is no whole entry and record, withdrawn by the caller.
    /// Slots torn by a death inside a write are withdrawn here; they appear as `Closing`.
    pub fn survey(&mut self) -> Vec<(SlotIndex, Session, Option<Record>)> {
        let mut found = Vec::new();
        for (at, entry) in self.tables.sessions.iter().enumerate() {
            let slot = SlotIndex(at as u32);
            if entry.slot.is_torn() {
                entry.slot.set_state(SessionState::Closing);
            }
            let Ok(session) = entry.read() else {
                // Nonsense in the state word: no version of ours wrote it.
                entry
                    .slot
                    .write(1, SessionState::Closing, 0, &[0; SLOT_WORDS]);
                continue;
            };
            if session.state != SessionState::Free {
                let record = self.tables.records[at].read(session.generation);
                found.push((slot, session, record));
            }
        }
        found
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

    // ---- addresses and blocks -------------------------------------------------------------------

    /// Publishes all ranges, replacing those before. NAT ranges get their dense `base` from the order
    /// given, routed ranges likewise; the ranges with the bases filled in are returned.
    ///
    /// # Errors
    /// Too many ranges or addresses, or ranges that overlap.
    pub fn publish_pools(&mut self, ranges: &[PoolRange]) -> Result<&[PoolRange], PublishError> {
        let over = |what, count, capacity| PublishError::Capacity {
            what,
            count,
            capacity,
        };
        if ranges.len() > MAX_POOL_RANGES {
            return Err(over("address ranges", ranges.len(), MAX_POOL_RANGES));
        }
        let mut sorted = ranges.to_vec();
        sorted.sort_by_key(|range| range.first);
        if let Some(pair) = sorted.windows(2).find(|pair| pair[1].first <= pair[0].last) {
            return Err(PublishError::Overlap(pair[1].first));
        }
        let (mut nat, mut routed) = (0u64, 0u64);
        let mut filled = ranges.to_vec();
        for range in &mut filled {
            let size = u64::from(range.last.to_bits() - range.first.to_bits()) + 1;
            let next = match range.kind {
                RangeKind::Nat => &mut nat,
                RangeKind::Routed => &mut routed,
                RangeKind::Subscriber => continue,
            };
            range.base = u32::try_from(*next).unwrap_or(u32::MAX);
            *next += size;
        }
        for (what, count, capacity) in [
            ("NAT addresses", nat, self.capacities.nat_addresses),
            (
                "routed subscriber addresses",
                routed,
                self.capacities.framed_addresses,
            ),
        ] {
            if count > u64::from(capacity) {
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                return Err(over(what, count, capacity as usize));
            }
        }
        let header = &self.tables.header[0];
        sequence_write(&header.pools_version, || {
            for (words, range) in self.tables.pools.iter().zip(&filled) {
                for (word, value) in words.0.iter().zip(range.to_words()) {
                    word.store(value, Ordering::Relaxed);
                }
            }
            header
                .pools_count
                .store(filled.len() as u32, Ordering::Relaxed);
        });
        self.ranges = filled;
        Ok(&self.ranges)
    }

    /// The ranges published, with their bases.
    #[must_use]
    pub fn pool_ranges(&self) -> &[PoolRange] {
        &self.ranges
    }

    /// Gives a port block to a session (or takes it back with `None`).
    ///
    /// # Errors
    /// The block lies in no published NAT range.
    pub fn set_block_owner(
        &mut self,
        block: &PortBlock,
        owner: Option<BlockOwner>,
    ) -> Result<(), PublishError> {
        let unknown = PublishError::Unknown {
            what: "NAT address with index",
            value: block.address_index.into(),
        };
        let at = self
            .ranges
            .iter()
            .find(|range| range.kind == RangeKind::Nat && range.contains(block.address))
            .and_then(|range| block_index(range, block.address, block.first_port));
        let word = at
            .and_then(|at| self.tables.nat_blocks.get(at))
            .ok_or(unknown)?;
        word.store(owner.map_or(0, BlockOwner::to_word), Ordering::Release);
        Ok(())
    }

    /// Gives a routed address to a session (or takes it back with `None`).
    ///
    /// # Errors
    /// The address lies in no published routed range.
    pub fn set_framed_owner(
        &mut self,
        address: Ipv4Addr,
        owner: Option<BlockOwner>,
    ) -> Result<(), PublishError> {
        let unknown = PublishError::Unknown {
            what: "routed address",
            value: address.to_bits().into(),
        };
        let at = self
            .ranges
            .iter()
            .find(|range| range.kind == RangeKind::Routed && range.contains(address))
            .map(|range| range.base + (address.to_bits() - range.first.to_bits()));
        let word = at
            .and_then(|at| self.tables.framed.get(at as usize))
            .ok_or(unknown)?;
        word.store(owner.map_or(0, BlockOwner::to_word), Ordering::Release);
        Ok(())
    }

    // ---- routes ---------------------------------------------------------------------------------

    /// Sets a next hop. Index 0 is "no route" and stays so.
    ///
    /// # Errors
    /// Index 0 or beyond the table.
    pub fn set_next_hop(
        &mut self,
        id: NextHopId,
        address: Ipv4Addr,
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
        hop.address
            .store(address.to_bits().into(), Ordering::Relaxed);
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
                }
            }
            header
                .routes_count
                .store(routes.len() as u32, Ordering::Relaxed);
        });
        Ok(())
    }

    /// Whether the dataplane has the latest routes in its FIB.
    #[must_use]
    pub fn routes_in_fib(&self) -> bool {
        let header = &self.tables.header[0];
        header.routes_applied.load(Ordering::Acquire)
            == header.routes_version.load(Ordering::Relaxed)
    }

    // ---- rings ----------------------------------------------------------------------------------

    /// Takes a punted frame of worker `worker`; the bytes go into `buffer`.
    pub fn take_punted(&mut self, worker: u8, buffer: &mut [u8; FRAME_MAX]) -> Take<PuntedFrame> {
        let Some((block, at)) = self.rings(worker, FRAME_RING_SLOTS) else {
            return Take::Empty;
        };
        let slots = &self.tables.punt[at..at + FRAME_RING_SLOTS];
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
    /// again (HZ-15 R3).
    ///
    /// # Errors
    /// The frame is longer than a slot.
    pub fn inject(&mut self, worker: u8, meta: &FrameMeta, frame: &[u8]) -> Result<bool, TooLong> {
        let Some((block, at)) = self.rings(worker, FRAME_RING_SLOTS) else {
            return Ok(false);
        };
        let slots = &self.tables.inject[at..at + FRAME_RING_SLOTS];
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

    /// What the dataplane tells of a port; `None` if there is no such port.
    #[must_use]
    pub fn port_status(&self, port: u8) -> Option<PortStatus> {
        self.tables
            .ports
            .get(usize::from(port))
            .map(|block| block.read())
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
            rings: RingFill {
                punt: block.punt.fill(FRAME_RING_SLOTS),
                inject: block.inject.fill(FRAME_RING_SLOTS),
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
    write();
    version.store(odd + 1, Ordering::Release);
}
