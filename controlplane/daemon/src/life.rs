//! The life of a session, event by event of the PPP engine: what is published, granted, withdrawn and given back.
//!
//! The order within each step is what makes it safe. A table entry is there before the peer hears of it; block and address
//! lead to the session before it forwards; what it held is given back only after every worker has forgotten it.

use std::collections::HashMap;

use bng_aaa::{RejectCause as AaaReject, RequestId, Verdict};
use bng_pppoe::{
    AccessLine, AuthRequest, AuthVerdict, Event, NetworkDownReason, RejectCause, SessionRecord,
    SessionRef, TerminateCause,
};
use bng_shm::{BlockOwner, PublishError, SessionState, SlotIndex};
use bng_wire::VlanStack;

use crate::driver::Driver;
use crate::grants::{GrantError, Holding};
use crate::publish::{self, Clock, Open};
use crate::sessions::{End, Ended, Live};
use crate::tally::Count;

/// Authentication requests without an answer.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    next: u64,
    requests: HashMap<RequestId, (SessionRef, u32)>,
    warn_again_ms: u64,
}

/// Time between two warnings that a pool is empty, milliseconds.
const WARN_INTERVAL_MS: u64 = 10_000;

impl Driver {
    /// Handles all events of the engine and all answers of the authenticator, in order, until there are none.
    pub(crate) fn handle_engine(&mut self, clock: Clock) {
        loop {
            if let Some(event) = self.engine.poll_event() {
                self.handle_event(event, clock);
            } else if let Some((id, verdict)) = self.grants.poll_verdict() {
                self.handle_verdict(id, verdict, clock);
            } else {
                return;
            }
        }
    }

    fn handle_event(&mut self, event: Event, clock: Clock) {
        match event {
            Event::SessionStarted {
                session,
                line,
                vlans,
            } => self.session_started(session, line, vlans, clock),
            Event::AuthRequest(request) => self.auth_request(request),
            Event::SessionUp(record) | Event::NetworkChanged(record) => {
                self.session_up(record, clock)
            }
            Event::NetworkDown { session, reason } => self.network_down(session, reason),
            Event::SessionDown {
                session,
                cause,
                was_up,
                ..
            } => self.session_down(session, cause, was_up, clock),
        }
    }

    fn session_started(
        &mut self,
        session: SessionRef,
        line: AccessLine,
        vlans: VlanStack,
        clock: Clock,
    ) {
        let present = (0..self.workers())
            .filter(|worker| (self.publisher.worker_status(*worker)).is_some_and(|w| w.present));
        let owner = (self.sessions.least_loaded(present))
            .or_else(|| self.sessions.least_loaded(0..self.workers()))
            .unwrap_or(0);
        let mut live = Live {
            session,
            generation: 0,
            owner,
            state: SessionState::Negotiating,
            line,
            vlans,
            user: Vec::new(),
            circuit_id: Vec::new(),
            remote_id: Vec::new(),
            holding: None,
            policy: None,
            record: None,
            started_unix_ms: clock.unix_ms,
            opened_unix_ms: 0,
            adopted: false,
            noted_ms: 0,
            end: None,
        };
        let slot = live.slot();
        if self.sessions.at(slot).is_some() {
            // The id rests in the engine until its slot is free, so this is a fault of ours; the peer may dial again.
            tracing::error!(%session, "slot of a new session is still in use");
            self.tally.add(Count::SlotBusy);
            self.engine
                .terminate(clock.time(), session, TerminateCause::PortDown);
            return;
        }
        let entry = publish::entry(&live);
        let record = publish::recovery_record(&live);
        match self.publisher.publish_session(slot, &entry, &record) {
            Ok(generation) => {
                live.generation = generation;
                tracing::debug!(%session, mac = %line.mac, owner, "session started");
                self.sessions.insert(live);
            }
            Err(error) => {
                self.publish_failed("session", &error);
                self.engine
                    .terminate(clock.time(), session, TerminateCause::PortDown);
            }
        }
    }

    fn auth_request(&mut self, request: AuthRequest) {
        let Some(live) = self.sessions.get_mut(request.session) else {
            return;
        };
        live.user.clone_from(&request.user_name);
        live.circuit_id = request.circuit_id;
        live.remote_id = request.remote_id;
        self.waiting.next += 1;
        let id = RequestId(self.waiting.next);
        (self.waiting.requests).insert(id, (request.session, request.attempt));
        self.grants.ask(id, &request.user_name, &request.proof);
    }

    pub(crate) fn handle_verdict(&mut self, id: RequestId, verdict: Verdict, clock: Clock) {
        let Some((session, attempt)) = self.waiting.requests.remove(&id) else {
            return;
        };
        let Some(live) = self.sessions.get(session) else {
            return;
        };
        let user = String::from_utf8_lossy(&live.user).into_owned();
        let held = live.holding;
        let (answer, taken) = match verdict {
            Verdict::Reject(cause) => {
                self.tally.add(match cause {
                    AaaReject::UnknownUser => Count::AuthUnknownUser,
                    AaaReject::WrongPassword => Count::AuthWrongPassword,
                    AaaReject::ServerRejected => Count::AuthServerRejected,
                    AaaReject::ServersSilent => Count::AuthServersSilent,
                    AaaReject::TermsUnusable => Count::AuthTermsUnusable,
                });
                tracing::debug!(%session, user, cause = cause.as_str(), "authentication refused");
                (
                    reject(RejectCause::WrongCredentials, b"authentication failed"),
                    None,
                )
            }
            // A renegotiation on a live session: it keeps what it has.
            Verdict::Accept(_) if held.is_some() => (self.accept(held), None),
            Verdict::Accept(_) => {
                let name = live.user.clone();
                let vlan = self.settings.vlan(session.port.0, &live.vlans);
                let pool = vlan.and_then(|vlan| vlan.pool);
                match self.grants.take(&name, pool, clock.since_start()) {
                    Ok((holding, exhausted)) => {
                        if let Some(error) = exhausted {
                            self.tally.add(Count::PrefixesEmpty);
                            self.warn_now_and_then(
                                &error,
                                "subscribers are left without this prefix",
                                clock,
                            );
                        }
                        (self.accept(Some(holding)), Some(holding))
                    }
                    Err(error) => {
                        self.tally.add(match error {
                            GrantError::Address(_) => Count::PoolEmpty,
                            GrantError::Block(_) => Count::BlocksEmpty,
                        });
                        tracing::debug!(%session, user, %error, "subscriber refused");
                        self.warn_now_and_then(&error, "subscribers are refused", clock);
                        (
                            reject(RejectCause::PoolEmpty, b"no address available"),
                            None,
                        )
                    }
                }
            }
        };
        let accepted = matches!(answer, AuthVerdict::Accept { .. });
        match self
            .engine
            .handle_auth(clock.time(), session, attempt, answer)
        {
            Ok(()) => {
                if accepted {
                    self.assign_policy(session);
                }
                if let Some(holding) = taken
                    && let Some(live) = self.sessions.get_mut(session)
                {
                    live.holding = Some(holding);
                }
            }
            Err(error) => {
                tracing::debug!(%session, %error, "verdict came too late");
                if let Some(holding) = taken {
                    self.grants.give_back(&holding, clock.since_start());
                }
            }
        }
    }

    /// Subscribers without come again and again; saying it now and then is enough.
    fn warn_now_and_then(&mut self, error: &dyn std::fmt::Display, what: &str, clock: Clock) {
        if clock.monotonic_ms >= self.waiting.warn_again_ms {
            self.waiting.warn_again_ms = clock.monotonic_ms + WARN_INTERVAL_MS;
            tracing::warn!(%error, "{what}");
        }
    }

    fn accept(&mut self, holding: Option<Holding>) -> AuthVerdict {
        let Some(holding) = holding else {
            return reject(RejectCause::PoolEmpty, b"no address available");
        };
        self.tally.add(Count::AuthAccepted);
        AuthVerdict::Accept {
            grant: self.grants.grant(&holding),
            message: Vec::new(),
        }
    }

    fn session_up(&mut self, record: Box<SessionRecord>, clock: Clock) {
        let session = record.session;
        let (_, opened_unix_ms) = publish::unix_times(&record, clock);
        let Some(live) = self.sessions.get_mut(session) else {
            return;
        };
        live.user.clone_from(&record.user_name);
        live.circuit_id.clone_from(&record.circuit_id);
        live.remote_id.clone_from(&record.remote_id);
        live.opened_unix_ms = opened_unix_ms;
        live.record = Some(record);
        live.state = SessionState::Forwarding;
        let live = live.clone();
        tracing::debug!(
            %session,
            user = ?String::from_utf8_lossy(&live.user),
            framed_ip = ?live.framed_ip(),
            open = ?Open::of(&live),
            "session is up"
        );
        self.lead_to_open(&live);
        self.update(&live);
        self.lead_away(&live, Open::of(&live));
    }

    fn network_down(&mut self, session: SessionRef, reason: NetworkDownReason) {
        let Some(live) = self.sessions.get_mut(session) else {
            return;
        };
        live.state = SessionState::Negotiating;
        let live = live.clone();
        tracing::debug!(%session, ?reason, "network phase is down");
        // Control frames still have to come through, so the entry is withdrawn only when the session is down.
        self.update(&live);
    }

    fn session_down(
        &mut self,
        session: SessionRef,
        cause: TerminateCause,
        was_up: bool,
        clock: Clock,
    ) {
        let Some(live) = self.sessions.get_mut(session) else {
            // It never had an entry.
            self.engine.release(clock.time(), session);
            return;
        };
        let slot = live.slot();
        self.withdraw(
            slot,
            End {
                cause: cause.name(),
                was_up,
                release: true,
            },
            clock,
        );
    }

    /// Makes a session unreachable; it is freed when no worker can know it any more.
    pub(crate) fn withdraw(&mut self, slot: SlotIndex, end: End, clock: Clock) {
        let Some(session) = self.sessions.at(slot).map(|live| live.session) else {
            return;
        };
        if let Err(error) = self.publisher.withdraw_session(slot) {
            self.publish_failed("withdrawal", &error);
        }
        let Some(live) = self.sessions.get_mut(session) else {
            return;
        };
        live.state = SessionState::Closing;
        live.end = Some(end);
        let live = live.clone();
        self.lead_away(&live, Open::default());
        self.withdrawals.add(slot, live.owner, clock.monotonic_ms);
    }

    /// Frees the slot of a withdrawn session and gives back what it held.
    pub(crate) fn free_slot(&mut self, slot: SlotIndex, clock: Clock) {
        let Some(live) = self.sessions.remove(slot) else {
            return;
        };
        let stats = match self.publisher.free_session(slot) {
            Ok(stats) => stats,
            Err(error) => {
                self.publish_failed("freed slot", &error);
                bng_shm::StatsCopy::default()
            }
        };
        if let Some(assigned) = &live.policy {
            self.policies.release(assigned.id);
        }
        if let Some(holding) = &live.holding {
            self.grants.give_back(holding, clock.since_start());
        }
        let Some(end) = live.end else {
            return;
        };
        if end.release {
            self.engine.release(clock.time(), live.session);
        }
        let user = String::from_utf8_lossy(&live.user);
        let id = crate::views::session_id(&self.settings, &live);
        if end.was_up {
            tracing::info!(
                session = id,
                ?user,
                cause = end.cause,
                upstream_bytes = stats.up_bytes,
                upstream_packets = stats.up_packets,
                downstream_bytes = stats.down_bytes,
                downstream_packets = stats.down_packets,
                "session ended"
            );
        } else {
            tracing::debug!(
                session = id,
                ?user,
                cause = end.cause,
                "session ended before it was up"
            );
        }
        self.sessions.remember(Ended {
            live,
            end,
            ended_unix_ms: clock.unix_ms,
            stats,
        });
    }

    /// Has downstream packets for what a session has open find it.
    pub(crate) fn lead_to_open(&mut self, live: &Live) {
        let open = Open::of(live);
        let owner = BlockOwner {
            slot: live.slot(),
            generation: live.generation & 0x7fff_ffff,
        };
        if open.ipv4 {
            self.lead_ipv4(live, Some(owner));
        }
        if open.ipv6 {
            self.lead_ipv6(live, Some(owner));
        }
    }

    /// Has downstream packets find nobody any more, but for the families that stay open.
    fn lead_away(&mut self, live: &Live, stay: Open) {
        if !stay.ipv4 {
            self.lead_ipv4(live, None);
        }
        if !stay.ipv6 {
            self.lead_ipv6(live, None);
        }
    }

    fn lead_ipv4(&mut self, live: &Live, owner: Option<BlockOwner>) {
        let Some(holding) = live.holding else {
            return;
        };
        let pool = self.settings.pools.get(holding.lease.pool);
        let is_translated = pool.is_some_and(|pool| pool.nat.is_some());
        let result = match holding.published_block() {
            Some(block) => self.publisher.set_block_owner(&block, owner),
            // The rest of a session of an earlier run, whose block is no block any more.
            None if is_translated => return,
            None => self
                .publisher
                .set_framed_owner(holding.lease.address, owner),
        };
        if let Err(error) = result {
            self.publish_failed("owner of an address", &error);
        }
    }

    fn lead_ipv6(&mut self, live: &Live, owner: Option<BlockOwner>) {
        let prefixes = live.holding.and_then(|holding| holding.prefixes);
        for prefix in prefixes.iter().flat_map(|prefixes| prefixes.iter()) {
            if let Err(error) = self.publisher.set_framed6_owner(prefix.high(), owner) {
                self.publish_failed("owner of a prefix", &error);
            }
        }
    }

    pub(crate) fn update(&mut self, live: &Live) {
        let (entry, record) = (publish::entry(live), publish::recovery_record(live));
        let result = self.publisher.update_session(live.slot(), &entry, &record);
        if let Err(error) = result {
            self.publish_failed("session", &error);
        }
    }

    pub(crate) fn publish_failed(&mut self, what: &str, error: &PublishError) {
        self.tally.add(Count::PublishFailed);
        tracing::error!(%error, "{what} could not be published");
    }
}

fn reject(cause: RejectCause, message: &[u8]) -> AuthVerdict {
    AuthVerdict::Reject {
        cause,
        message: message.to_vec(),
    }
}
