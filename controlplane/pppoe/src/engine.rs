//! The access concentrator: every session of every access port behind one `handle_*` and `poll_*` interface.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use bng_wire::{MacAddr, VlanStack};
use thiserror::Error;

use crate::codec::frame::{self, Body, LinkHeader};
use crate::codec::lcp::DEFAULT_MRU;
use crate::config::{Config, ConfigError, MIN_MRU_FLOOR, PortConfig, VlanProfile};
use crate::context::{Context, Lower};
use crate::cookie::{CookieJar, keyed_digest};
use crate::counters::{Counters, Outcome, TerminateCause};
use crate::events::{AccessLine, AuthVerdict, Event, SessionRecord, SessionRef, Transmit};
use crate::limits::{BucketTable, TokenBucket};
use crate::lockout::{Failures, LockedOut, LockoutKey};
use crate::negotiation::REJECT_RATE;
use crate::offers::Offers;
use crate::pado_delay::DelayedPados;
use crate::random::Random;
use crate::session::{Session, SessionInfo};
use crate::session_ids::SessionIds;
use crate::table::SessionTable;
use crate::timers::Timers;
use crate::{DropReason, PortId, Time};

/// Why a verdict was not applied. Whatever the caller reserved for it is the caller's to free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AuthError {
    /// The session is gone; its `SessionDown` was or will be polled.
    #[error("session is gone")]
    NoSuchSession,
    /// The session awaits no verdict, or one for a later attempt.
    #[error("no verdict is awaited for this attempt")]
    NotAwaited,
}

/// Why a session could not be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AdoptError {
    /// The port is not configured.
    #[error("access port {0} is not configured")]
    PortUnknown(PortId),
    /// The session id is 0, 0xffff, in use or resting.
    #[error("session id {session_id} of access port {port} is not free")]
    SessionId {
        /// The port.
        port: PortId,
        /// The id.
        session_id: u16,
    },
    /// An MRU is outside what the port carries. The configured floor may have been raised meanwhile, so it does not
    /// count here.
    #[error("MRU {mru} is not within {MIN_MRU_FLOOR} to {max}")]
    Mru {
        /// The record's MRU.
        mru: u16,
        /// What the port carries.
        max: u16,
    },
}

/// One access port at work.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) config: PortConfig,
    pub(crate) vlans: Vec<VlanProfile>,
    pub(crate) ids: SessionIds,
    pub(crate) padi: TokenBucket,
    pub(crate) offers: Offers,
}

/// The access concentrator.
///
/// Feed it with [`handle_frame`](Self::handle_frame), [`handle_timeout`](Self::handle_timeout) and the answers to its
/// events; after each call, or after a burst of them, drain [`poll_event`](Self::poll_event), then
/// [`poll_transmit`](Self::poll_transmit), then sleep until [`poll_timeout`](Self::poll_timeout).
///
/// No frame comes out while an event waits, so what an event asks the driver to publish is in place before the peer
/// learns of it.
#[derive(Debug)]
pub struct AccessConcentrator {
    pub(crate) config: Config,
    pub(crate) ports: BTreeMap<PortId, Port>,
    pub(crate) table: SessionTable,
    pub(crate) cookies: CookieJar,
    pub(crate) padi_macs: BucketTable,
    pub(crate) failures: Failures,
    pub(crate) pados: DelayedPados,
    pub(crate) counters: Counters,
    pub(crate) events: VecDeque<Event>,
    pub(crate) transmits: VecDeque<Transmit>,
    pub(crate) random: Random,
    pub(crate) digest_key: [u8; 16],
    pub(crate) padr_key: [u8; 16],
    pub(crate) now: Time,
}

impl AccessConcentrator {
    /// An access concentrator without sessions.
    ///
    /// `seed` must come from the system's random source: the AC-Cookie key, until
    /// [`set_discovery_key`](Self::set_discovery_key), and all magic numbers derive from it.
    ///
    /// # Errors
    /// [`ConfigError`] when the configuration cannot be run.
    pub fn new(config: Config, now: Time, seed: [u8; 32]) -> Result<Self, ConfigError> {
        config.check()?;
        let mut key = [0; 16];
        let (left, right) = seed.split_at(16);
        for (byte, (l, r)) in key.iter_mut().zip(left.iter().zip(right)) {
            *byte = l ^ r;
        }
        let derive = |purpose: &[u8]| keyed_digest(&key, purpose, &[&seed]);
        let mut random = Random::new(derive(b"random"));
        let ports = config
            .ports
            .iter()
            .map(|port| {
                let ids = SessionIds::new(config.session_id_quarantine, random.next_u64());
                let padi = TokenBucket::full(config.limits.padi_per_port, now);
                let vlans = config.vlans.iter().filter(|it| it.port == port.id);
                let port = Port {
                    config: *port,
                    vlans: vlans.cloned().collect(),
                    ids,
                    padi,
                    offers: Offers::NONE,
                };
                (port.config.id, port)
            })
            .collect();
        Ok(Self {
            ports,
            table: SessionTable::default(),
            cookies: CookieJar::new(derive(b"cookie"), config.cookie_lifetime),
            padi_macs: BucketTable::new(config.limits.padi_macs, config.limits.padi_per_mac),
            failures: Failures::new(derive(b"lockout")),
            pados: DelayedPados::default(),
            counters: Counters::default(),
            events: VecDeque::new(),
            transmits: VecDeque::new(),
            random,
            digest_key: derive(b"digest"),
            padr_key: derive(b"padr"),
            now,
            config,
        })
    }

    /// Takes up the key of an earlier process, which came from the system's random source: AC-Cookies that process gave count
    /// as this one's, and the PADR that started an adopted session is known when it comes again.
    pub fn set_discovery_key(&mut self, key: [u8; 16]) {
        let cookie_key = keyed_digest(&key, b"cookie", &[]);
        self.cookies = CookieJar::new(cookie_key, self.config.cookie_lifetime);
        self.padr_key = keyed_digest(&key, b"padr", &[]);
    }

    /// Handles a frame received on an access port, from its destination address on; it may end with padding.
    ///
    /// Returns why the frame had no effect, already counted.
    pub fn handle_frame(&mut self, now: Time, port: PortId, bytes: &[u8]) -> Option<DropReason> {
        self.advance(now);
        let reason = self.dispatch(port, bytes).err()?;
        self.counters.count_drop(reason);
        Some(reason)
    }

    fn dispatch(&mut self, id: PortId, bytes: &[u8]) -> Result<(), DropReason> {
        let port = self.ports.get(&id).ok_or(DropReason::PortUnknown)?;
        let own = port.config.mac;
        let mut frame = frame::parse(bytes)?;
        // Priority-tagged frames are untagged ones, and are answered as such.
        frame.vlans = frame.vlans.without_priority_tags();
        if frame.src == own {
            return Err(DropReason::SourceMac);
        }
        match frame.body {
            Body::Discovery {
                code,
                session_id,
                tags,
            } => self.discovery(id, &frame, code, session_id, tags),
            Body::Session {
                session_id,
                protocol,
                payload,
            } => {
                if frame.dst != own {
                    return Err(DropReason::Destination);
                }
                let line = AccessLine::new(id, &frame.vlans, frame.src);
                let slot = self.slot_of(line, session_id)?;
                self.visit(slot, |session, cx| session.receive(protocol, payload, cx))
                    .unwrap_or(Err(DropReason::SessionUnknown))
            }
        }
    }

    /// The slot of the session with this id, when it belongs to this client.
    pub(crate) fn slot_of(&self, line: AccessLine, session_id: u16) -> Result<u32, DropReason> {
        let port = self.ports.get(&line.port).ok_or(DropReason::PortUnknown)?;
        let slot = port
            .ids
            .slot(session_id)
            .ok_or(DropReason::SessionUnknown)?;
        let session = self.table.get(slot).ok_or(DropReason::SessionUnknown)?;
        if session.line == line {
            Ok(slot)
        } else {
            Err(DropReason::SessionMismatch)
        }
    }

    /// Handles every timer due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        self.advance(now);
        while let Some(pado) = self.pados.take_due(self.now) {
            self.send_pado(pado);
        }
        while let Some(slot) = self.table.due(self.now) {
            self.visit(slot, |session, cx| session.expire(cx));
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called next, if nothing else happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        let session = self.table.next_deadline();
        session.into_iter().chain(self.pados.next()).min()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next frame to send; none while an event waits.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        if !self.events.is_empty() {
            return None;
        }
        self.transmits.pop_front()
    }

    /// Gives AAA's answer to the [`AuthRequest`](crate::AuthRequest) `attempt` of a session.
    ///
    /// # Errors
    /// [`AuthError`] when the verdict comes too late; what was reserved for it is to be freed.
    pub fn handle_auth(
        &mut self,
        now: Time,
        session: SessionRef,
        attempt: u32,
        verdict: AuthVerdict,
    ) -> Result<(), AuthError> {
        self.advance(now);
        let slot = self.slot(session).ok_or(AuthError::NoSuchSession)?;
        self.visit(slot, |s, cx| s.verdict(attempt, verdict, cx))
            .unwrap_or(Err(AuthError::NoSuchSession))
    }

    /// Whether the verdict on request `attempt` of a session is still awaited: not so when the session is gone or its peer has
    /// renegotiated meanwhile.
    #[must_use]
    pub fn awaits_verdict(&self, session: SessionRef, attempt: u32) -> bool {
        let session = self.slot(session).and_then(|slot| self.table.get(slot));
        session.is_some_and(|session| session.awaits_verdict(attempt))
    }

    /// Notes that the dataplane received traffic of a session since the last note: it counts as a sign of life and
    /// against the idle timeout. Returns `false` when the session is gone.
    pub fn note_traffic(&mut self, now: Time, session: SessionRef) -> bool {
        self.advance(now);
        let now = self.now;
        let slot = self.slot(session);
        match slot.and_then(|slot| self.table.get_mut(slot)) {
            Some(session) => {
                // Timers are looked at when they fire, so nothing moves here.
                session.note_traffic(now);
                true
            }
            None => false,
        }
    }

    /// Ends a session: by a Terminate exchange and PADT, or by PADT alone when the port is down or a newer session needs what
    /// this one has. `SessionDown`
    /// follows. Returns `false` when the session is gone; without effect when it is already ending.
    pub fn terminate(&mut self, now: Time, session: SessionRef, cause: TerminateCause) -> bool {
        self.advance(now);
        let Some(slot) = self.slot(session) else {
            return false;
        };
        self.visit(slot, |session, cx| match cause {
            TerminateCause::PortDown | TerminateCause::Replaced => session.cut_off(cause, cx),
            _ => session.terminate(cause, cx),
        })
        .is_some()
    }

    /// Challenges the peer of a session again by CHAP, now, while its network phase goes on: an
    /// [`AuthRequest`](crate::AuthRequest) with `is_repeated` follows, or the end of the session with `AuthTimeout`.
    /// Returns `false` when the session is gone, not in the network phase or has agreed on PAP.
    pub fn reauthenticate(&mut self, now: Time, session: SessionRef) -> bool {
        self.advance(now);
        self.slot(session)
            .and_then(|slot| self.visit(slot, |session, cx| session.reauthenticate(cx)))
            .unwrap_or(false)
    }

    /// Changes when a session with a granted network ends: `None` leaves a time as it is, `Some(None)` takes it away. The
    /// session time counts from when the network first came up, the idle time from the last traffic; one that is over already
    /// ends the session at the next [`handle_timeout`](Self::handle_timeout). The session's record changes with it.
    /// Returns `false` when the session is gone or nothing is granted to it.
    pub fn set_timeouts(
        &mut self,
        now: Time,
        session: SessionRef,
        session_timeout: Option<Option<Duration>>,
        idle_timeout: Option<Option<Duration>>,
    ) -> bool {
        self.advance(now);
        self.slot(session)
            .and_then(|slot| {
                self.visit(slot, |session, cx| {
                    session.set_timeouts(session_timeout, idle_timeout, cx)
                })
            })
            .unwrap_or(false)
    }

    /// Clients that are kept out now, in no particular order. What comes from them is dropped and counted
    /// (`padi_locked_out`, `padr_locked_out`).
    pub fn locked_out(&self, now: Time) -> impl Iterator<Item = LockedOut> {
        self.failures.locked_out(now)
    }

    /// Lets a client in again and forgets its failures. Returns `false` when it had none.
    pub fn unlock(&mut self, client: &LockoutKey) -> bool {
        self.failures.forget(client)
    }

    /// An access port has another MAC address from now on. Sessions whose network is up go on under it; the others, whose
    /// peers await answers from the old one, end with `PortDown`. Returns `false`, with nothing changed, when the port is
    /// unknown or the address is no station's.
    pub fn set_port_mac(&mut self, now: Time, id: PortId, mac: MacAddr) -> bool {
        self.advance(now);
        let configured = self.config.ports.iter_mut().find(|port| port.id == id);
        let (Some(configured), Some(port)) = (configured, self.ports.get_mut(&id)) else {
            return false;
        };
        if !mac.is_unicast() {
            return false;
        }
        configured.mac = mac;
        port.config.mac = mac;
        self.pados.clear_port(id);
        let sessions = self.table.iter().map(|session| session.lower.session);
        let on_port = sessions.filter(|session| session.port == id);
        let slots: Vec<_> = on_port.filter_map(|session| self.slot(session)).collect();
        for slot in slots {
            self.visit(slot, |session, cx| session.set_source(mac, cx));
        }
        true
    }

    /// The driver has withdrawn a session that is down from everywhere: its id may rest and be used again.
    /// Returns `false` when there is nothing to release under this reference.
    pub fn release(&mut self, now: Time, session: SessionRef) -> bool {
        self.advance(now);
        let now = self.now;
        self.ports.get_mut(&session.port).is_some_and(|port| {
            port.ids
                .release(now, session.session_id, session.generation)
        })
    }

    /// Takes over a session in the network phase from an earlier process. No event follows and nothing is sent but
    /// the echo at its time; from then on it is a session like any other.
    ///
    /// # Errors
    /// [`AdoptError`] when the record does not fit this configuration or the id is taken.
    pub fn adopt(&mut self, now: Time, record: SessionRecord) -> Result<SessionRef, AdoptError> {
        self.advance(now);
        let session = record.session;
        let slot = self.table.next_slot();
        let port = self
            .ports
            .get_mut(&session.port)
            .ok_or(AdoptError::PortUnknown(session.port))?;
        let max = port.config.max_mru();
        for mru in [record.link_mru, record.our_mru, record.peer_mru] {
            if mru < MIN_MRU_FLOOR || mru > max {
                return Err(AdoptError::Mru { mru, max });
            }
        }
        if !port.ids.claim(session.session_id, session.generation, slot) {
            return Err(AdoptError::SessionId {
                port: session.port,
                session_id: session.session_id,
            });
        }
        let header = LinkHeader {
            dst: record.mac,
            src: port.config.mac,
            vlans: record.vlans,
        };
        let line = AccessLine::new(session.port, &record.vlans, record.mac);
        let lower = self.lower(session, header);
        let mut cx = self.context();
        let adopted = Session::adopted(lower, line, record, &mut cx);
        cx.counters.count(Outcome::SessionsAdopted);
        let slot = self.table.insert(adopted);
        self.settle(slot);
        Ok(session)
    }

    /// Sends a PADT for a session of an earlier process that cannot be adopted (it had not reached the network
    /// phase) and lets its id rest. Returns `false` when the port is unknown or the id is not free.
    pub fn expel(
        &mut self,
        now: Time,
        session: SessionRef,
        mac: MacAddr,
        vlans: VlanStack,
    ) -> bool {
        self.advance(now);
        let now = self.now;
        let Some(port) = self.ports.get_mut(&session.port) else {
            return false;
        };
        if !port.ids.rest(now, session.session_id) {
            return false;
        }
        let header = LinkHeader {
            dst: mac,
            src: port.config.mac,
            vlans,
        };
        let lower = self.lower(session, header);
        lower.send_padt(&mut self.context());
        true
    }

    /// The record of a session whose network is up, as [`adopt`](Self::adopt) takes it.
    #[must_use]
    pub fn record(&self, session: SessionRef) -> Option<SessionRecord> {
        self.table.get(self.slot(session)?)?.record()
    }

    /// A session that is not down yet.
    #[must_use]
    pub fn session(&self, session: SessionRef) -> Option<SessionInfo<'_>> {
        Some(self.table.get(self.slot(session)?)?.info())
    }

    /// The session that has an id of a port now.
    #[must_use]
    pub fn find(&self, port: PortId, session_id: u16) -> Option<SessionRef> {
        let slot = self.ports.get(&port)?.ids.slot(session_id)?;
        Some(self.table.get(slot)?.lower.session)
    }

    /// All sessions that are not down yet, in no particular order.
    pub fn sessions(&self) -> impl Iterator<Item = SessionInfo<'_>> {
        self.table.iter().map(Session::info)
    }

    /// Sessions that have not reached the network phase and are not ending.
    #[must_use]
    pub const fn half_open(&self) -> u32 {
        self.table.half_open()
    }

    /// Sessions that are down and wait for [`release`](Self::release).
    #[must_use]
    pub fn awaiting_release(&self) -> usize {
        self.ports.values().map(|port| port.ids.withdrawing()).sum()
    }

    /// All counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The configuration it runs on.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    fn slot(&self, session: SessionRef) -> Option<u32> {
        let slot = self
            .ports
            .get(&session.port)?
            .ids
            .slot(session.session_id)?;
        (self.table.get(slot)?.lower.session == session).then_some(slot)
    }

    pub(crate) fn lower(&self, session: SessionRef, header: LinkHeader) -> Lower {
        let max_mru = self
            .ports
            .get(&session.port)
            .map_or(DEFAULT_MRU, |port| port.config.max_mru());
        Lower {
            session,
            header,
            timers: Timers::default(),
            rejects: TokenBucket::full(REJECT_RATE, self.now),
            peer_mru: DEFAULT_MRU.min(max_mru),
        }
    }

    pub(crate) const fn context(&mut self) -> Context<'_> {
        Context {
            now: self.now,
            config: &self.config,
            counters: &mut self.counters,
            events: &mut self.events,
            transmits: &mut self.transmits,
            random: &mut self.random,
            digest_key: &self.digest_key,
        }
    }

    /// Lets a session act, then brings everything counted across sessions up to date.
    pub(crate) fn visit<R>(
        &mut self,
        slot: u32,
        act: impl FnOnce(&mut Session, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let session = self.table.get_mut(slot)?;
        let mut cx = Context {
            now: self.now,
            config: &self.config,
            counters: &mut self.counters,
            events: &mut self.events,
            transmits: &mut self.transmits,
            random: &mut self.random,
            digest_key: &self.digest_key,
        };
        let was_up = session.was_up();
        let result = act(session, &mut cx);
        if !was_up && session.was_up() {
            self.failures
                .came_up(session.line, &session.subscriber.circuit_id);
        }
        self.settle(slot);
        Some(result)
    }

    fn settle(&mut self, slot: u32) {
        if let Some(dead) = self.table.settle(slot) {
            self.bury(dead);
        }
    }

    fn bury(&mut self, dead: Box<Session>) {
        let session = dead.lower.session;
        if let Some(port) = self.ports.get_mut(&session.port) {
            port.ids.withdraw(session.session_id);
        }
        let (cause, event) = dead.down_event();
        if !dead.was_up() {
            let rules = self.config.lockout;
            let circuit_id = &dead.subscriber.circuit_id;
            self.failures
                .ended(self.now, rules, dead.line, circuit_id, cause);
        }
        self.counters.count_end(cause);
        self.events.push_back(event);
    }
}
