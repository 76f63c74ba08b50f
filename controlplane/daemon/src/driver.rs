//! The driver thread: the only user of the `Publisher` and of the PPP engine.
//!
//! One turn of its loop: answer requests, look at the dataplane, take punted frames and events, let timers expire, send what
//! the engine sends, free what no worker can know any more; then sleep until a worker rings, a request comes or a timer is due.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bng_aaa::Authenticator;
use bng_config::Config;
use bng_pppoe::{AccessConcentrator, PortId};
use bng_shm::{
    EpochToken, Event, FRAME_MAX, FrameMeta, PUNT_RING_SLOTS, PublishError, Publisher, PuntClass,
    PuntedFrame, SlotIndex, Take,
};
use tokio::sync::mpsc;

use crate::accounting;
use crate::adopt;
use crate::answers;
use crate::grants::Grants;
use crate::held::Held;
use crate::history::{self, HistoryFile};
use crate::inject::Injector;
use crate::life::Waiting;
use crate::load::Load;
use crate::nat_log::NatLog;
use crate::netlink::Resolve;
use crate::networks::Networks;
use crate::next_hops::NextHops;
use crate::policies::Policies;
use crate::policy_change::Changes;
use crate::port_macs;
use crate::presence::Presence;
use crate::publish::Clock;
use crate::radius::{self, Radius};
use crate::request::{Inbox, Request};
use crate::sessions::Sessions;
use crate::settings::{self, Settings};
use crate::stream::{Feed, Notice};
use crate::tally::{Count, Tally};
use crate::trace::{Passing, Traces};
use crate::withdrawals::Withdrawals;

/// Punted frames taken from one worker before the next one's turn.
const FRAME_BATCH: usize = 64;
/// Rounds of such batches before timers and requests have their turn: enough for every frame a ring can hold.
const FRAME_ROUNDS: usize = PUNT_RING_SLOTS / FRAME_BATCH;
/// Events taken from one worker before the next one's turn.
const EVENT_BATCH: usize = 256;
/// Requests answered before frames have their turn.
const REQUEST_BATCH: usize = 16;
/// Sessions whose traffic and interim updates are looked at before frames have their turn: all of them at once take longer than a punt ring holds
/// what thousands of clients send that dial in meanwhile.
const NOTE_BATCH: usize = 1_024;
/// Longest sleep, and time between heartbeats, milliseconds.
const TICK_MS: u64 = 1_000;
/// Sleep while something waits that rings no bell (a full ring, an epoch), milliseconds.
const POLL_MS: u64 = 5;

/// Why the driver cannot start.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// A table could not be published.
    #[error("publishing the tables: {0}")]
    Publish(#[from] PublishError),
    /// The engine refuses the configuration.
    #[error("PPP engine: {0}")]
    Engine(#[from] bng_pppoe::ConfigError),
    /// The log of NAT port blocks cannot be used.
    #[error("nat.log: {}: {error}", directory.display())]
    NatLog {
        /// Its directory.
        directory: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// No random numbers.
    #[error("the system has no random numbers: {0}")]
    Random(#[from] getrandom::Error),
}

/// Everything the driver thread owns.
#[derive(Debug)]
pub struct Driver {
    pub(crate) settings: Arc<Settings>,
    pub(crate) publisher: Publisher,
    pub(crate) engine: AccessConcentrator,
    pub(crate) sessions: Sessions,
    pub(crate) grants: Grants,
    pub(crate) injector: Injector,
    pub(crate) withdrawals: Withdrawals,
    pub(crate) held: Held,
    pub(crate) next_hops: NextHops,
    pub(crate) networks: Networks,
    pub(crate) presence: Presence,
    pub(crate) tally: Tally,
    pub(crate) waiting: Waiting,
    pub(crate) policies: Policies,
    pub(crate) changes: Changes,
    pub(crate) load: Load,
    pub(crate) history: Option<HistoryFile>,
    pub(crate) traces: Traces,
    /// Passes when every worker has seen the filters and policies of the latest configuration.
    pub(crate) configured: Option<EpochToken>,
    pub(crate) radius: Radius,
    pub(crate) nat_log: NatLog,
    inbox: Inbox,
    resolver: mpsc::Sender<Resolve>,
    buffer: Box<[u8; FRAME_MAX]>,
    ticked_ms: u64,
    /// The session at which the look at all sessions' traffic goes on; `None` until the next tick.
    noting: Option<SlotIndex>,
}

impl Driver {
    /// Publishes the tables and adopts the sessions of an earlier run. `radius` is the way to RADIUS servers.
    ///
    /// # Errors
    /// [`DriverError`]; nothing runs then.
    pub fn new(
        config: &Config,
        settings: Arc<Settings>,
        mut publisher: Publisher,
        inbox: Inbox,
        resolver: mpsc::Sender<Resolve>,
        radius: Radius,
    ) -> Result<Self, DriverError> {
        let clock = Clock::now();
        publisher.publish_pools(&settings.ranges)?;
        publisher.publish_pools6(&settings.ranges6)?;
        adopt::withhold_filters(&mut publisher, &settings)?;
        let macs: Vec<_> = (settings.access_ports.iter())
            .map(|index| port_macs::port_mac(&publisher, *index))
            .collect();
        let mut seed = [0; 32];
        getrandom::fill(&mut seed)?;
        let mut engine = AccessConcentrator::new(
            settings::engine_config(config, &settings, &macs),
            clock.time(),
            seed,
        )?;
        let key = match publisher.kept_key() {
            Some(key) => key,
            None => {
                let mut key = [0; 16];
                getrandom::fill(&mut key)?;
                publisher.keep_key(key);
                key
            }
        };
        engine.set_discovery_key(key);
        let grants = Grants::new(
            Authenticator::new(settings::local_users(config), radius::backends(config)),
            settings::address_pools(config),
            settings::pool_prefixes(config),
            settings::port_blocks(config),
            settings.pools.clone(),
            clock.unix_ms,
        );
        let nat_log = NatLog::open(config, publisher.waker())?;
        let mut driver = Self {
            injector: Injector::new(settings.capacities.workers as usize),
            next_hops: NextHops::recover(&publisher),
            networks: Networks::default(),
            presence: Presence::new(&publisher),
            policies: Policies::recover(&publisher),
            settings,
            publisher,
            engine,
            sessions: Sessions::default(),
            grants,
            withdrawals: Withdrawals::default(),
            held: Held::default(),
            tally: Tally::default(),
            waiting: Waiting::default(),
            changes: Changes::default(),
            load: Load::default(),
            history: None,
            traces: Traces::default(),
            configured: None,
            radius,
            nat_log,
            inbox,
            resolver,
            buffer: Box::new([0; FRAME_MAX]),
            ticked_ms: 0,
            noting: None,
        };
        if let Some(directory) = &config.state_directory {
            driver.open_history(&directory.join("history"));
        }
        adopt::adopt(&mut driver, clock);
        driver.reconcile_nat_log(clock);
        let filters = driver.settings.terms.published_filters();
        driver.publisher.publish_filters(&filters)?;
        driver.configured = Some(driver.publisher.advance_epoch());
        if driver.sessions.iter().next().is_none() {
            let id = driver.grants.new_accounting_id();
            driver.radius.account_on(id, clock.unix_ms / 1_000);
        }
        driver.settle(clock, None);
        Ok(driver)
    }

    /// Recalls the history of earlier runs, and writes on. Without it sessions go on all the same.
    fn open_history(&mut self, directory: &Path) {
        match HistoryFile::open(directory) {
            Ok((file, found)) => {
                let ended = found
                    .iter()
                    .filter_map(|it| history::recall(&self.settings, it));
                for ended in ended {
                    self.sessions.remember(ended);
                }
                self.history = Some(file);
            }
            Err(error) => {
                self.tally.add(Count::HistoryLost);
                let directory = directory.display();
                tracing::error!(%error, %directory, "the history on disk cannot be used");
            }
        }
    }

    /// Runs until [`Request::Stop`]. Sessions stay in shared memory, so that traffic goes on and the next run adopts them.
    pub fn run(mut self) {
        loop {
            let clock = Clock::now();
            self.inbox.beat();
            if !self.answer_requests(clock) {
                // What is under way to peers still goes out.
                self.injector.flush(&mut self.publisher, &mut self.tally);
                return;
            }
            self.take_logged(clock);
            self.look_at_dataplane(clock);
            // An answer that waits in a ring came before the timer it stops, however late this thread is: `clock` was read
            // before the rings are emptied, so what arrives meanwhile finds no timer fired that it would have stopped.
            let mut more = true;
            for _ in 0..FRAME_ROUNDS {
                more = self.take_frames(clock);
                if !more {
                    break;
                }
            }
            more |= self.take_events(clock);
            self.engine.handle_timeout(clock.time());
            self.settle(clock, None);
            self.injector.flush(&mut self.publisher, &mut self.tally);
            self.free_withdrawn(clock);
            self.policies.free_rested(&mut self.publisher);
            self.changes.confirm(&self.publisher, clock.monotonic_ms);
            let (publisher, tally) = (&mut self.publisher, &mut self.tally);
            self.next_hops.publish(clock.monotonic_ms, publisher, tally);
            self.next_hops.free_retired(publisher, tally);
            if clock.monotonic_ms >= self.ticked_ms + TICK_MS {
                self.ticked_ms = clock.monotonic_ms;
                self.publisher.heartbeat();
                self.load.sample(&self.publisher, self.workers());
                self.noting = Some(SlotIndex(0));
                self.give_back_held(clock);
                if let Some(history) = &self.history {
                    self.tally.add_some(Count::HistoryLost, history.take_lost());
                }
                self.unpark_impatient(clock);
                self.settle(clock, None);
            }
            if self.look_at_sessions(clock) {
                more = true;
                self.settle(clock, None);
            }
            if !more {
                self.sleep(clock);
            }
        }
    }

    fn sleep(&self, clock: Clock) {
        let now = clock.monotonic_ms;
        let polling = self.injector.is_waiting()
            || self.withdrawals.is_waiting()
            || self.policies.is_waiting()
            || self.changes.is_waiting()
            || self.next_hops.is_retiring();
        let mut limit = (self.ticked_ms + TICK_MS).saturating_sub(now);
        if polling {
            limit = limit.min(POLL_MS);
        }
        if let Some(due) = self.next_hops.due_ms() {
            limit = limit.min(due.saturating_sub(now));
        }
        if let Some(timer) = self.engine.poll_timeout() {
            limit = limit.min(timer.as_millis().saturating_sub(now));
        }
        if limit > 0 {
            let limit = Duration::from_millis(limit);
            let is_waiting = || self.inbox.is_waiting() || self.nat_log.is_waiting();
            self.publisher.sleep(limit, is_waiting);
        }
    }

    /// Answers requests; false when the thread is to end.
    fn answer_requests(&mut self, clock: Clock) -> bool {
        for _ in 0..REQUEST_BATCH {
            match self.inbox.take() {
                None => break,
                Some(Request::Stop) => return false,
                Some(Request::Kernel(Some(delta))) => {
                    self.next_hops
                        .apply(&delta, &mut self.publisher, &mut self.tally);
                }
                Some(Request::Kernel(None)) => self.next_hops.lose(),
                Some(request) => answers::answer(self, request, clock),
            }
            self.settle(clock, None);
        }
        true
    }

    /// Notices starts and ends of bng-dataplane, and the MAC addresses of its ports.
    fn look_at_dataplane(&mut self, clock: Clock) {
        let seen = (self.presence).look(&self.publisher, clock.monotonic_ms, &mut self.tally);
        if seen.lost {
            // Frames that wait were meant for workers that are gone.
            self.injector.clear();
            self.tell(clock, Notice::DataplaneDown {});
        }
        if let Some(pid) = seen.started {
            self.tell(clock, Notice::DataplaneUp { pid });
        }
        port_macs::follow(self, clock);
    }

    /// Takes punted frames, a batch from each worker; true when there may be more.
    fn take_frames(&mut self, clock: Clock) -> bool {
        let mut more = false;
        for worker in 0..self.workers() {
            for taken in 0..FRAME_BATCH {
                match self.publisher.take_punted(worker, &mut self.buffer) {
                    Take::Empty => break,
                    Take::Corrupt => self.tally.add(Count::RingCorrupt),
                    Take::Item(frame) => {
                        self.handle_frame(&frame, clock);
                        self.settle(clock, Some(worker));
                    }
                }
                more |= taken + 1 == FRAME_BATCH;
            }
        }
        more
    }

    fn handle_frame(&mut self, frame: &PuntedFrame, clock: Clock) {
        let port = self.settings.ports.get(usize::from(frame.meta.port));
        let Some(access) = port.and_then(|port| port.access) else {
            return self.tally.add(Count::PuntPortUnknown);
        };
        if self.engine.config().ports[usize::from(access)].mac == settings::placeholder_mac(access)
        {
            return self.tally.add(Count::PuntNoMac);
        }
        if let Some((slot, generation)) = frame.meta.session {
            let live = self.sessions.at(slot);
            if live.is_none_or(|live| live.generation != generation) {
                return self.tally.add(Count::PuntStale);
            }
        }
        let bytes = &self.buffer[..frame.len];
        let reason = (self.engine).handle_frame(clock.time(), PortId(access), bytes);
        if let Some(reason) = reason {
            tracing::trace!(access, reason = reason.name(), "frame dropped");
        }
        if self.traces.is_on() {
            let passing = Passing {
                access_port: access,
                upstream: true,
                drop: reason.map(|reason| reason.name()),
                bytes,
            };
            self.traces
                .note(&passing, &self.sessions, clock.monotonic_ms);
        }
    }

    /// Takes events, a batch from each worker; true when there may be more.
    fn take_events(&mut self, clock: Clock) -> bool {
        let mut more = false;
        for worker in 0..self.workers() {
            for taken in 0..EVENT_BATCH {
                match self.publisher.take_event(worker) {
                    Take::Empty => break,
                    Take::Corrupt => self.tally.add(Count::RingCorrupt),
                    Take::Item(None) => self.tally.add(Count::EventUnknown),
                    Take::Item(Some(Event::ResolveNeighbour { port, address })) => {
                        self.tally.add(Count::ResolveAsked);
                        // The worker asks again, so one that finds no room is no loss.
                        let _ = self.resolver.try_send(Resolve { port, address });
                    }
                    Take::Item(Some(Event::BlockLow { slot, generation })) => {
                        self.grow_block(slot, generation, clock);
                    }
                    Take::Item(Some(Event::BlockExhausted { slot, generation })) => {
                        self.tally.add(Count::BlockExhausted);
                        // What could not be done when ports ran short may be possible by now.
                        self.grow_block(slot, generation, clock);
                    }
                }
                more |= taken + 1 == EVENT_BATCH;
            }
        }
        more
    }

    /// Handles what the engine and the authenticator have to say, then sends what they send. `punted_by` is the worker whose
    /// frame is being answered: a reply outside of a session goes through it.
    pub(crate) fn settle(&mut self, clock: Clock, punted_by: Option<u8>) {
        self.handle_engine(clock);
        while let Some(transmit) = self.engine.poll_transmit() {
            let Some(port) = self.settings.access_ports.get(usize::from(transmit.port.0)) else {
                continue;
            };
            if self.traces.is_on() {
                let passing = Passing {
                    access_port: transmit.port.0,
                    upstream: false,
                    drop: None,
                    bytes: &transmit.frame,
                };
                self.traces
                    .note(&passing, &self.sessions, clock.monotonic_ms);
            }
            let live = transmit.session.and_then(|it| self.sessions.get(it));
            let worker = live.map_or(punted_by.unwrap_or(0), |live| live.owner);
            let meta = FrameMeta {
                port: *port,
                class: match transmit.session {
                    Some(_) => PuntClass::Ppp,
                    None => PuntClass::Discovery,
                },
                session: live.map(|live| (live.slot(), live.generation)),
            };
            if transmit.session.is_some() && live.is_none() {
                // Only of a session whose slot is free already: the peer knows of its end.
                continue;
            }
            self.injector.send(
                &mut self.publisher,
                &mut self.tally,
                worker,
                meta,
                transmit.frame,
            );
        }
    }

    fn free_withdrawn(&mut self, clock: Clock) {
        let free = self
            .withdrawals
            .passed(&mut self.publisher, &self.injector, clock.monotonic_ms);
        if free.is_empty() {
            return;
        }
        for slot in free {
            match self.account_stop(slot, clock) {
                true => self.hold_slot(slot, clock),
                false => self.free_slot(slot, clock),
            }
        }
        // Subscribers that have waited for a slot are told.
        self.settle(clock, None);
    }

    /// Tells the engine which clients the dataplane has heard of: their traffic is a sign of life. Ends the sessions whose
    /// octets are used up, and tells accounting of those whose interim update is due. A part of the sessions at a time; true when
    /// there was something to look at.
    fn look_at_sessions(&mut self, clock: Clock) -> bool {
        let Some(from) = self.noting.take() else {
            return false;
        };
        self.noting = self.sessions.slot_after(from, NOTE_BATCH);
        let interim = self.radius.interim();
        let mut due = Vec::new();
        for live in self.sessions.from_mut(from).take(NOTE_BATCH) {
            if interim.is_some_and(|configured| accounting::is_due(live, configured, clock)) {
                due.push(live.slot());
            }
            if live.end.is_some() {
                continue;
            }
            let Some(stats) = self.publisher.session_stats(live.slot()) else {
                continue;
            };
            if stats.last_up_ms > live.noted_ms {
                live.noted_ms = stats.last_up_ms;
                self.engine.note_traffic(clock.time(), live.session);
            }
            let octets = stats.up_bytes.saturating_add(stats.down_bytes);
            if live.quota_octets != 0 && octets >= live.quota_octets {
                let cause = bng_pppoe::TerminateCause::Quota;
                self.engine.terminate(clock.time(), live.session, cause);
            }
        }
        for slot in due {
            self.account_interim(slot, clock);
        }
        true
    }

    pub(crate) fn workers(&self) -> u8 {
        // Fits: the capacities allow 64.
        self.settings.capacities.workers as u8
    }

    /// What happens, for whoever listens.
    pub(crate) const fn feed(&self) -> &Feed {
        self.inbox.feed()
    }

    pub(crate) fn tell(&self, clock: Clock, notice: Notice) {
        self.feed().tell(clock.unix_ms, notice);
    }
}
