//! The life of a session, event by event of the PPP engine: what is published, granted, withdrawn and given back.
//!
//! The order within each step is what makes it safe. A table entry is there before the peer hears of it; block and address
//! lead to the session before it forwards; what it held is given back only after every worker has forgotten it.

use std::collections::HashMap;
use std::time::Duration;

use bng_aaa::{
    AuthRequest as Question, Credentials, Profile, RejectCause as AaaReject, RequestId, Verdict,
};
use bng_config::BeyondMax;
use bng_natlog::WhyNot;
use bng_pppoe::{
    AccessLine, AuthRequest, AuthVerdict, Event, Grant, NetworkDownReason, Proof, RejectCause,
    SessionRecord, SessionRef, TerminateCause,
};
use bng_shm::{BlockOwner, PublishError, SessionState, SlotIndex};
use bng_wire::VlanStack;

use crate::causes::EndCause;
use crate::driver::Driver;
use crate::dynamic;
use crate::grants::{GrantError, Holding, NoFurther, Wanted};
use crate::nat_log::Logging;
use crate::publish::{self, Clock, Open};
use crate::said::{self, Changed, Said};
use crate::sessions::{End, Ended, Live};
use crate::stream::{AuthFailure, Notice, SessionUp};
use crate::tally::Count;
use crate::views::{self, EndedView};

/// Authentication requests without an answer.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    next: u64,
    requests: HashMap<RequestId, Asked>,
    /// Sessions with a question under way, and the one to put when its verdict has come: a peer that renegotiates again and
    /// again, and proves itself each time, has no more than one question with AAA.
    under_way: HashMap<SessionRef, Option<Box<AuthRequest>>>,
    /// Subscribers accepted that wait for what a session in this slot still holds.
    parked: HashMap<SlotIndex, Vec<Accepted>>,
    warn_again_ms: u64,
}

/// A question put to AAA.
#[derive(Debug, Clone, Copy)]
struct Asked {
    session: SessionRef,
    attempt: u32,
    /// Whether the network phase goes on meanwhile: the answer changes no terms then.
    is_repeated: bool,
}

/// A subscriber AAA has accepted.
#[derive(Debug)]
pub(crate) struct Accepted {
    asked: Asked,
    profile: Box<Profile>,
    /// How long it may wait for an older session, CLOCK_MONOTONIC milliseconds.
    until_ms: u64,
}

/// How long a subscriber may wait for an older session to be forgotten by every worker, milliseconds. That takes a few, unless
/// a worker is stuck; the client asks again after seconds.
const PATIENCE_MS: u64 = 2_500;

/// Time between two warnings that a pool is empty, milliseconds.
const WARN_INTERVAL_MS: u64 = 10_000;

impl Driver {
    /// Handles all events of the engine and all answers of the authenticator, in order, until there are none.
    pub(crate) fn handle_engine(&mut self, clock: Clock) {
        loop {
            self.handle_events(clock);
            self.ask_servers();
            let Some((id, verdict)) = self.grants.poll_verdict() else {
                return;
            };
            self.handle_verdict(id, verdict, clock);
        }
    }

    fn ask_servers(&mut self) {
        while let Some(question) = self.grants.poll_question() {
            let id = question.id;
            if !self.radius.ask(question) {
                self.tally.add(Count::RadiusBusy);
                let silent = Verdict::Reject(AaaReject::ServersSilent);
                self.grants.answered(id, silent);
            }
        }
    }

    fn handle_events(&mut self, clock: Clock) {
        while let Some(event) = self.engine.poll_event() {
            self.handle_event(event, clock);
        }
    }

    fn handle_event(&mut self, event: Event, clock: Clock) {
        match event {
            Event::SessionStarted {
                session,
                line,
                vlans,
            } => self.session_started(session, line, vlans, clock),
            Event::AuthRequest(request) => self.auth_request(request, clock),
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
        let present = (0..self.workers()).filter(|worker| self.publisher.worker_present(*worker));
        let owner = (self.sessions.least_loaded(present))
            .or_else(|| self.sessions.least_loaded(0..self.workers()))
            .unwrap_or(0);
        let mut live = Live::new(session, line, vlans, owner, clock.unix_ms);
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

    fn auth_request(&mut self, request: AuthRequest, clock: Clock) {
        if let Some(next) = self.waiting.under_way.get_mut(&request.session) {
            *next = Some(Box::new(request));
            return;
        }
        let asked = Asked {
            session: request.session,
            attempt: request.attempt,
            is_repeated: request.is_repeated,
        };
        let Some(live) = self.sessions.get_mut(request.session) else {
            return;
        };
        if *live.user != *request.user_name {
            if live.admitted.is_some() {
                // Another user's session in all but its slot: what this one holds and has counted is not that user's.
                self.tally.add(Count::AuthUserChanged);
                let (cause, why) = (RejectCause::Policy, "user_changed");
                return self.refuse(asked, cause, "dial again", why, clock);
            }
            live.user = request.user_name.as_slice().into();
        }
        live.circuit_id = request.circuit_id;
        live.remote_id = request.remote_id;
        self.waiting.next += 1;
        let id = RequestId(self.waiting.next);
        self.waiting.requests.insert(id, asked);
        self.waiting.under_way.insert(asked.session, None);
        self.grants.ask(Question {
            id,
            peer_id: request.user_name,
            credentials: credentials(request.proof),
            line: dynamic::line(&self.settings, live),
            service_name: request.service_name,
            accounting_id: live.accounting_id,
            framed_ip: live.framed_ip(),
        });
    }

    pub(crate) fn handle_verdict(&mut self, id: RequestId, verdict: Verdict, clock: Clock) {
        let Some(asked) = self.waiting.requests.remove(&id) else {
            return;
        };
        let next = self.waiting.under_way.remove(&asked.session).flatten();
        if self.engine.awaits_verdict(asked.session, asked.attempt) {
            self.decide(asked, verdict, clock);
        } else {
            // Nothing may come of it: the session may be about to become another user's.
            tracing::debug!(session = %asked.session, "verdict came too late");
        }
        if let Some(next) = next {
            self.auth_request(*next, clock);
        }
    }

    fn decide(&mut self, asked: Asked, verdict: Verdict, clock: Clock) {
        match verdict {
            Verdict::Reject(cause) => {
                self.tally.add(match cause {
                    AaaReject::UnknownUser => Count::AuthUnknownUser,
                    AaaReject::WrongPassword => Count::AuthWrongPassword,
                    AaaReject::ServerRejected => Count::AuthServerRejected,
                    AaaReject::ServersSilent => Count::AuthServersSilent,
                    AaaReject::TermsUnusable => Count::AuthTermsUnusable,
                });
                let (to_engine, message) = match cause {
                    AaaReject::ServersSilent => {
                        (RejectCause::AaaUnavailable, "no answer, try again")
                    }
                    AaaReject::TermsUnusable => (RejectCause::Policy, "refused"),
                    _ => (RejectCause::WrongCredentials, "authentication failed"),
                };
                if asked.is_repeated && cause == AaaReject::ServersSilent {
                    // The session goes on, so nobody is refused.
                    return self.reject(asked, to_engine, message, clock);
                }
                self.refuse(asked, to_engine, message, cause.as_str(), clock);
            }
            Verdict::Accept(profile) => {
                let accepted = Accepted {
                    asked,
                    profile,
                    until_ms: clock.monotonic_ms + PATIENCE_MS,
                };
                self.admit(accepted, clock);
            }
        }
    }

    /// Tells the engine that a subscriber may not come in; `why` is for operators.
    fn refuse(
        &mut self,
        asked: Asked,
        cause: RejectCause,
        message: &str,
        why: &'static str,
        clock: Clock,
    ) {
        let session = asked.session;
        if let Some(live) = self.sessions.get_mut(session) {
            live.refused = Some(why);
            let user = String::from_utf8_lossy(&live.user);
            tracing::debug!(%session, ?user, cause = why, "subscriber refused");
        }
        if let Some(live) = self.sessions.get(session) {
            let failure = AuthFailure::new(&self.settings, live, why);
            self.tell(clock, Notice::AuthFailure(Box::new(failure)));
        }
        self.reject(asked, cause, message, clock);
    }

    fn reject(&mut self, asked: Asked, cause: RejectCause, message: &str, clock: Clock) {
        let Asked {
            session, attempt, ..
        } = asked;
        let verdict = AuthVerdict::Reject {
            cause,
            message: message.as_bytes().to_vec(),
        };
        let told = self
            .engine
            .handle_auth(clock.time(), session, attempt, verdict);
        if let Err(error) = told {
            tracing::debug!(%session, %error, "verdict came too late");
        }
    }

    /// Lets a subscriber in whom AAA has accepted, if its user may have another session.
    fn admit(&mut self, accepted: Accepted, clock: Clock) {
        let session = accepted.asked.session;
        let Some(live) = self.sessions.get(session).filter(|it| it.end.is_none()) else {
            return;
        };
        if live.admitted.is_some() {
            // A renegotiation of a live session: it keeps what it has.
            return self.grant(accepted, clock);
        }
        let (user, limit) = (live.user.clone(), self.settings.user_limit);
        let max = limit.sessions.unwrap_or(u32::MAX);
        if self.sessions.going_on_of(&user) >= max && limit.beyond == BeyondMax::Refuse {
            self.tally.add(Count::UserLimit);
            let (cause, why) = (RejectCause::Policy, "user_limit");
            let message = "too many sessions";
            return self.refuse(accepted.asked, cause, message, why, clock);
        }
        let mut replaced = None;
        while self.sessions.going_on_of(&user) >= max
            && let Some(oldest) = self.sessions.oldest_of(&user)
        {
            let slot = self.replace(oldest, clock);
            if slot.is_none() {
                break;
            }
            replaced = slot;
        }
        self.sessions.admit(session);
        match replaced {
            // It finds free what the one it replaces had, as if that had hung up first.
            Some(slot) => self.park(slot, accepted),
            None => self.grant(accepted, clock),
        }
    }

    /// Whether a newer session takes what an older one of its user has.
    pub(crate) fn may_replace(&self) -> bool {
        self.settings.user_limit.beyond == BeyondMax::Replace
    }

    /// Ends a session for a newer one of its user; returns its slot while it waits for the workers.
    pub(crate) fn replace(&mut self, older: SessionRef, clock: Clock) -> Option<SlotIndex> {
        self.tally.add(Count::UserReplaced);
        self.engine
            .terminate(clock.time(), older, TerminateCause::Replaced);
        self.handle_events(clock);
        let live = self.sessions.get(older)?;
        live.end.is_some().then(|| live.slot())
    }

    fn park(&mut self, slot: SlotIndex, accepted: Accepted) {
        tracing::debug!(session = %accepted.asked.session, ?slot, "subscriber waits for an older session");
        self.waiting.parked.entry(slot).or_default().push(accepted);
    }

    /// Goes on with those that have waited for a slot that is free now.
    pub(crate) fn unpark(&mut self, slot: SlotIndex, clock: Clock) {
        for accepted in self.waiting.parked.remove(&slot).unwrap_or_default() {
            self.grant(accepted, clock);
        }
    }

    /// Goes on with those that have waited long enough.
    pub(crate) fn unpark_impatient(&mut self, clock: Clock) {
        let is_over = |it: &mut Accepted| clock.monotonic_ms >= it.until_ms;
        let mut parked = std::mem::take(&mut self.waiting.parked);
        let over: Vec<_> = (parked.values_mut())
            .flat_map(|list| list.extract_if(.., is_over))
            .collect();
        parked.retain(|_, list| !list.is_empty());
        self.waiting.parked = parked;
        for accepted in over {
            self.grant(accepted, clock);
        }
    }

    /// Gives a subscriber what it is to hold, or has it wait for an older session, or refuses it.
    fn grant(&mut self, accepted: Accepted, clock: Clock) {
        let Asked {
            session, attempt, ..
        } = accepted.asked;
        let Some(live) = self.sessions.get(session).filter(|it| it.end.is_none()) else {
            return;
        };
        if !self.engine.awaits_verdict(session, attempt) {
            // It has waited, and its peer has renegotiated meanwhile.
            return;
        }
        if let Some(holding) = live.holding {
            return self.accept(accepted, holding, false, clock);
        }
        let user = live.user.clone();
        let routes = &accepted.profile.framed_routes;
        if clock.monotonic_ms < accepted.until_ms
            && let Some(slot) = self.networks_to_wait_for(&user, routes, clock)
        {
            return self.park(slot, accepted);
        }
        let Some(live) = self.sessions.get(session) else {
            return;
        };
        let vlan = self.settings.vlan(session.port.0, &live.vlans);
        let profile = &accepted.profile;
        let mut wanted = Wanted {
            pool: vlan.and_then(|vlan| vlan.pool),
            address: profile.framed_ip,
            on_link: profile.framed_ipv6_prefix,
            delegated: profile.delegated_ipv6_prefix,
        };
        if let Some(name) = &profile.framed_pool {
            wanted.pool = self.settings.pool(name);
            if wanted.pool.is_none() {
                self.tally.add(Count::PoolUnknown);
                let error = format!("no pool {name} is configured");
                self.warn_now_and_then(&error, "subscribers are refused", clock);
                return self.terms_unusable(&accepted, clock);
            }
        }
        match self.grants.take(&user, &wanted, clock.since_start()) {
            Ok((holding, exhausted)) => {
                if let Some(error) = exhausted {
                    self.tally.add(Count::PrefixesEmpty);
                    let what = "subscribers are left without this prefix";
                    self.warn_now_and_then(&error, what, clock);
                }
                self.log_and_accept(accepted, holding, clock);
            }
            Err(GrantError::Taken { what, holder }) => {
                self.wait_for_holder(accepted, &what, &holder, clock);
            }
            Err(error @ (GrantError::Address(_) | GrantError::Block(_))) => {
                self.tally.add(match error {
                    GrantError::Block(_) => Count::BlocksEmpty,
                    _ => Count::PoolEmpty,
                });
                self.warn_now_and_then(&error, "subscribers are refused", clock);
                let (cause, message) = (RejectCause::PoolEmpty, "no address available");
                self.refuse(accepted.asked, cause, message, "pool_empty", clock);
            }
            Err(error) => {
                self.warn_now_and_then(&error, "subscribers are refused", clock);
                self.terms_unusable(&accepted, clock);
            }
        }
    }

    fn terms_unusable(&mut self, accepted: &Accepted, clock: Clock) {
        self.tally.add(Count::AuthTermsUnusable);
        let (cause, why) = (RejectCause::Policy, AaaReject::TermsUnusable.as_str());
        self.refuse(accepted.asked, cause, "refused", why, clock);
    }

    /// The address or prefix a subscriber is to have is in use: by a session that is over, for which it waits; by an older one
    /// of its own, which it replaces; or by somebody else's.
    fn wait_for_holder(&mut self, accepted: Accepted, what: &str, holder: &[u8], clock: Clock) {
        let has_it = |live: &&Live| {
            let holding = live.held();
            holding.is_some_and(|holding| holding.includes(&accepted.profile))
        };
        let older = self.sessions.of_user(holder).find(has_it);
        let is_patient = clock.monotonic_ms < accepted.until_ms;
        if is_patient && let Some(older) = older {
            let (slot, is_over) = (older.slot(), older.end.is_some());
            let own = self.sessions.get(accepted.asked.session);
            let is_own = own.is_some_and(|live| *live.user == *holder);
            if is_over {
                return self.park(slot, accepted);
            }
            let may_replace = is_own && self.may_replace();
            let older = older.session;
            if may_replace && let Some(slot) = self.replace(older, clock) {
                return self.park(slot, accepted);
            }
        }
        self.tally.add(Count::AddressConflict);
        let holder = String::from_utf8_lossy(holder);
        let error = format!("{what} is in use by {}", holder.escape_debug());
        self.warn_now_and_then(&error, "subscribers are refused", clock);
        let (cause, why) = (RejectCause::Policy, "address_conflict");
        let message = "address in use";
        self.refuse(accepted.asked, cause, message, why, clock);
    }

    /// Lets a subscriber in when its port block is in the log on disk, at once where nothing is logged.
    fn log_and_accept(&mut self, accepted: Accepted, holding: Holding, clock: Clock) {
        let takes_new = self.nat_log.takes_new();
        let Some(takes_new) = takes_new.filter(|_| holding.block.is_some()) else {
            return self.accept(accepted, holding, true, clock);
        };
        let session = accepted.asked.session;
        if let Err(why) = takes_new {
            // The block was never published, so it need not rest.
            self.grants.give_back(&holding, Duration::ZERO);
            let (count, why) = match why {
                WhyNot::Full => (Count::NatLogFull, "nat_log_full"),
                WhyNot::Unwritable => (Count::NatLogUnwritable, "nat_log_unwritable"),
            };
            self.tally.add(count);
            let error = "what NAT does cannot be logged (nat.log); look at bngctl health";
            self.warn_now_and_then(&error, "subscribers behind NAT are refused", clock);
            let cause = RejectCause::AaaUnavailable;
            return self.refuse(accepted.asked, cause, "try again later", why, clock);
        }
        let Some(live) = self.sessions.get_mut(session) else {
            return self.grants.give_back(&holding, Duration::ZERO);
        };
        if live.accounting_id == 0 {
            live.accounting_id = self.grants.new_accounting_id();
        }
        let accounting_id = live.accounting_id;
        let block = self
            .sessions
            .get(session)
            .and_then(|live| self.blocks_of(live, &holding, accounting_id).pop());
        let logging = Logging::Admit {
            accepted,
            holding,
            accounting_id,
        };
        if let Some(block) = block {
            self.nat_log.log(logging, block, clock);
        }
    }

    /// Lets a subscriber in whose block is on disk, unless it has gone or renegotiated meanwhile.
    pub(crate) fn block_logged(&mut self, logging: Logging, clock: Clock) {
        let (accepted, holding, accounting_id) = match logging {
            Logging::Admit {
                accepted,
                holding,
                accounting_id,
            } => (accepted, holding, accounting_id),
            Logging::Grow {
                slot,
                generation,
                before,
                after,
                block,
                accounting_id,
            } => {
                let live = self.sessions.at(slot);
                let is_there = live.is_some_and(|live| {
                    let is_same = live.generation == generation && live.holding == Some(before);
                    is_same && live.end.is_none() && Open::of(live).ipv4
                });
                if is_there {
                    return self.grown(slot, generation, after);
                }
                let log = &self.nat_log;
                log.closed_block(block.address, block.first_port, accounting_id, clock);
                let now = clock.since_start();
                return self.grants.give_back_block(&before, &block, now);
            }
        };
        let Asked {
            session, attempt, ..
        } = accepted.asked;
        let live = self.sessions.get(session);
        let is_there = live.is_some_and(|live| live.end.is_none() && live.holding.is_none());
        if is_there && self.engine.awaits_verdict(session, attempt) {
            return self.accept(accepted, holding, true, clock);
        }
        self.nat_log.closed(&holding, accounting_id, clock);
        self.grants.give_back(&holding, clock.since_start());
    }

    /// Tells the engine that a subscriber may come in, with what it holds; `is_new` when that was taken for it.
    fn accept(&mut self, accepted: Accepted, holding: Holding, is_new: bool, clock: Clock) {
        let Accepted { asked, profile, .. } = accepted;
        let Asked {
            session, attempt, ..
        } = asked;
        let known = self
            .sessions
            .get(session)
            .map_or(0, |live| live.accounting_id);
        let accounting_id = match known {
            0 => self.grants.new_accounting_id(),
            known => known,
        };
        let mut grant = self.grants.grant(&holding, &profile, accounting_id);
        if let Some(live) = self.sessions.get(session) {
            keep_changed_times(live, &mut grant);
        }
        let verdict = AuthVerdict::Accept {
            grant,
            message: profile.message.clone(),
        };
        let told = self
            .engine
            .handle_auth(clock.time(), session, attempt, verdict);
        if let Err(error) = told {
            tracing::debug!(%session, %error, "verdict came too late");
            if is_new {
                self.nat_log.closed(&holding, accounting_id, clock);
                self.grants.give_back(&holding, clock.since_start());
            }
            return;
        }
        self.tally.add(Count::AuthAccepted);
        if asked.is_repeated {
            return;
        }
        // A renegotiation keeps what networks the session has, as it keeps its address.
        let networks = match self.sessions.get(session) {
            Some(live) if is_new => {
                let slot = live.slot();
                self.take_networks(slot, &profile.framed_routes, clock)
            }
            Some(live) => live.framed_routes().to_vec(),
            None => return,
        };
        if let Some(live) = self.sessions.get_mut(session) {
            live.holding = Some(holding);
            live.accounting_id = accounting_id;
            live.said = Said::of(&profile, live.said.as_deref(), networks);
            let changed = live
                .said
                .as_ref()
                .map_or_else(Changed::default, |it| it.changed);
            if !changed.has(Changed::QUOTA) {
                live.quota_octets = profile.quota_octets.unwrap_or(0);
            }
            live.refused = None;
        }
        self.mention_ignored(session, &profile, clock);
        self.assign_policy(session);
    }

    /// Says what of a profile has no effect.
    fn mention_ignored(&mut self, session: SessionRef, profile: &Profile, clock: Clock) {
        let name = profile.filter_id.as_deref();
        if let Some(name) = name.filter(|name| !self.settings.terms.knows(name)) {
            self.tally.add(Count::FilterUnknown);
            let error = format!("neither a policy nor a filter {name} is configured");
            self.warn_now_and_then(&error, "Filter-Ids are ignored", clock);
        }
        let Some(live) = self.sessions.get(session) else {
            return;
        };
        let left_out = said::write(
            &mut bng_shm::Record::default(),
            live.said.as_deref(),
            b"",
            None,
            false,
        );
        if left_out != 0 {
            self.tally.add(Count::TermsNotKept);
            let error = format!("{left_out} attributes of {session}");
            let what = "attributes have no room in the record that outlives a restart";
            self.warn_now_and_then(&error, what, clock);
        }
    }

    /// Subscribers without come again and again; saying it now and then is enough.
    pub(crate) fn warn_now_and_then(
        &mut self,
        error: &dyn std::fmt::Display,
        what: &str,
        clock: Clock,
    ) {
        if clock.monotonic_ms >= self.waiting.warn_again_ms {
            self.waiting.warn_again_ms = clock.monotonic_ms + WARN_INTERVAL_MS;
            tracing::warn!(%error, "{what}");
        }
    }

    fn session_up(&mut self, record: Box<SessionRecord>, clock: Clock) {
        let session = record.session;
        let (_, opened_unix_ms) = publish::unix_times(&record, clock);
        let Some(live) = self.sessions.get_mut(session) else {
            return;
        };
        live.circuit_id.clone_from(&record.circuit_id);
        live.remote_id.clone_from(&record.remote_id);
        let is_first = live.opened_unix_ms == 0;
        live.opened_unix_ms = opened_unix_ms;
        live.record = Some(publish::nameless(record));
        let was_open = live.state == SessionState::Forwarding;
        live.state = SessionState::Forwarding;
        let (slot, open) = (live.slot(), Open::of(live));
        tracing::debug!(
            %session,
            user = ?String::from_utf8_lossy(&live.user),
            framed_ip = ?live.framed_ip(),
            ?open,
            "session is up"
        );
        self.lead_to_open(slot);
        self.update(slot);
        self.lead_away(slot, open);
        if is_first {
            self.account_start(slot, clock);
        }
        if !was_open && let Some(live) = self.sessions.at(slot) {
            let stats = self.publisher.session_stats(slot).unwrap_or_default();
            let up = SessionUp::new(&self.settings, live, &stats);
            self.tell(clock, Notice::SessionUp(Box::new(up)));
        }
    }

    fn network_down(&mut self, session: SessionRef, reason: NetworkDownReason) {
        let Some(live) = self.sessions.get_mut(session) else {
            return;
        };
        live.state = SessionState::Negotiating;
        let slot = live.slot();
        tracing::debug!(%session, ?reason, "network phase is down");
        // Control frames still have to come through, so the entry is withdrawn only when the session is down.
        self.update(slot);
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
                cause: EndCause::Engine(cause),
                was_up,
                release: true,
            },
            clock,
        );
    }

    /// Makes a session unreachable; it is freed when no worker can know it any more. Without effect when it is over already.
    pub(crate) fn withdraw(&mut self, slot: SlotIndex, end: End, clock: Clock) {
        let Some(live) = self.sessions.at(slot).filter(|live| live.end.is_none()) else {
            return;
        };
        let owner = live.owner;
        self.sessions.end(slot, end);
        // The record says why, in case this process does not live to tell anybody; the entry is `Closing` with it.
        self.update(slot);
        if let Err(error) = self.publisher.withdraw_session(slot) {
            self.publish_failed("withdrawal", &error);
        }
        self.lead_away(slot, Open::default());
        self.withdrawals.add(slot, owner, clock.monotonic_ms);
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
        if let Some(holding) = live.held() {
            self.nat_log.closed(holding, live.accounting_id, clock);
            self.grants.give_back(holding, clock.since_start());
        }
        if live.given_back {
            self.held.leave();
        }
        self.give_networks_back(&live);
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
                cause = end.cause.name(),
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
                cause = end.cause.name(),
                "session ended before it was up"
            );
        }
        let ended = Ended::new(live, end, clock.unix_ms, stats);
        let view = EndedView::new(&self.settings, &ended);
        if let Some(history) = &self.history
            && !history.append(&view)
        {
            self.tally.add(Count::HistoryLost);
        }
        self.tell(clock, Notice::SessionDown(Box::new(view)));
        self.sessions.remember(ended);
        self.unpark(slot, clock);
    }

    /// Has downstream packets for what a session has open find it.
    pub(crate) fn lead_to_open(&mut self, slot: SlotIndex) {
        let Some(live) = self.sessions.at(slot) else {
            return;
        };
        let (open, held) = (Open::of(live), live.held().copied());
        let owner = BlockOwner {
            slot,
            generation: live.generation & 0x7fff_ffff,
        };
        if open.ipv4 {
            self.lead_networks(slot, true);
            self.lead_ipv4(held, Some(owner));
        }
        if open.ipv6 {
            self.lead_ipv6(held, Some(owner));
        }
    }

    /// Has downstream packets find nobody any more, but for the families that stay open.
    fn lead_away(&mut self, slot: SlotIndex, stay: Open) {
        let held = self.sessions.at(slot).and_then(|live| live.held().copied());
        if !stay.ipv4 {
            self.lead_networks(slot, false);
            self.lead_ipv4(held, None);
        }
        if !stay.ipv6 {
            self.lead_ipv6(held, None);
        }
    }

    fn lead_ipv4(&mut self, held: Option<Holding>, owner: Option<BlockOwner>) {
        let Some(holding) = held else {
            return;
        };
        let pool = self.settings.pools.get(holding.lease.pool);
        let is_translated = pool.is_some_and(|pool| pool.nat.is_some());
        let result = match holding.published_block() {
            Some(_) => self.lead_blocks(&holding, owner),
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

    /// Makes a session the owner of its port blocks, or nobody. A worker uses a further block from the moment it is in the list, which stays
    /// for whoever has to give back what a session held.
    fn lead_blocks(
        &mut self,
        holding: &Holding,
        owner: Option<BlockOwner>,
    ) -> Result<(), PublishError> {
        for block in holding.published_blocks() {
            self.publisher.set_block_owner(&block, owner)?;
        }
        if let Some(owner) = owner {
            self.publisher
                .set_further_blocks(owner.slot, holding.further)?;
        }
        Ok(())
    }

    /// Gives a session that runs short of ports one more block, if it may have one.
    pub(crate) fn grow_block(&mut self, slot: SlotIndex, generation: u32, clock: Clock) {
        let live = self.sessions.at(slot);
        let live = live.filter(|live| live.generation == generation && live.end.is_none());
        let Some(live) = live else { return };
        let Some(holding) = live.holding.filter(|_| Open::of(live).ipv4) else {
            return;
        };
        let takes_new = self.nat_log.takes_new();
        if self.nat_log.is_growing(slot) {
            return;
        }
        if matches!(takes_new, Some(Err(_))) {
            // The worker asks again, each second in which the subscriber has no port left.
            self.tally.add(Count::BlockNotLogged);
            return;
        }
        let (accounting_id, user) = (live.accounting_id, views::text(&live.user));
        match self.grants.grow(&holding, clock.since_start()) {
            Ok((after, block)) => {
                tracing::debug!(?user, address = %block.address, first_port = block.first_port, "one more port block");
                let live = self.sessions.at(slot);
                let told = live.and_then(|it| self.blocks_of(it, &after, accounting_id).pop());
                match (takes_new, told) {
                    (Some(_), Some(told)) => {
                        let logging = Logging::Grow {
                            slot,
                            generation,
                            before: holding,
                            after,
                            block,
                            accounting_id,
                        };
                        self.nat_log.log(logging, told, clock);
                    }
                    _ => self.grown(slot, generation, after),
                }
            }
            Err(error) => {
                self.tally.add(match error {
                    NoFurther::Exhausted(_) => Count::BlockNoneLeft,
                    NoFurther::Limit(_) | NoFurther::NotTranslated => Count::BlockLimit,
                });
                tracing::debug!(?user, %error, "no further port block");
            }
        }
    }

    /// A session has one more port block from now on.
    fn grown(&mut self, slot: SlotIndex, generation: u32, holding: Holding) {
        self.tally.add(Count::BlockAdded);
        if let Some(live) = self.sessions.at_mut(slot) {
            live.holding = Some(holding);
        }
        let owner = BlockOwner {
            slot,
            generation: generation & 0x7fff_ffff,
        };
        if let Err(error) = self.lead_blocks(&holding, Some(owner)) {
            self.publish_failed("port block", &error);
        }
    }

    fn lead_ipv6(&mut self, held: Option<Holding>, owner: Option<BlockOwner>) {
        let prefixes = held.and_then(|holding| holding.prefixes);
        for prefix in prefixes.iter().flat_map(|prefixes| prefixes.iter()) {
            if let Err(error) = self.publisher.set_framed6_owner(prefix.high(), owner) {
                self.publish_failed("owner of a prefix", &error);
            }
        }
    }

    /// Publishes a session's entry and record in their present state.
    pub(crate) fn update(&mut self, slot: SlotIndex) {
        let Some(live) = self.sessions.at(slot) else {
            return;
        };
        let (entry, record) = (publish::entry(live), publish::recovery_record(live));
        let result = self.publisher.update_session(slot, &entry, &record);
        if let Err(error) = result {
            self.publish_failed("session", &error);
        }
    }

    pub(crate) fn publish_failed(&mut self, what: &str, error: &PublishError) {
        self.tally.add(Count::PublishFailed);
        tracing::error!(%error, "{what} could not be published");
    }
}

/// What was changed of a session's times stays when its peer negotiates anew.
fn keep_changed_times(live: &Live, grant: &mut Grant) {
    let (Some(said), Some(record)) = (&live.said, &live.record) else {
        return;
    };
    if said.changed.has(Changed::SESSION_TIMEOUT) {
        // Of no time at all the engine goes on with the one it has.
        grant.session_timeout = None;
    }
    if said.changed.has(Changed::IDLE_TIMEOUT) {
        grant.idle_timeout = record.grant.idle_timeout;
    }
}

fn credentials(proof: Proof) -> Credentials {
    match proof {
        Proof::Pap(password) => Credentials::Pap {
            password: password.as_bytes().to_vec(),
        },
        Proof::ChapMd5 {
            identifier,
            challenge,
            response,
        } => Credentials::ChapMd5 {
            identifier,
            challenge,
            response,
        },
    }
}
