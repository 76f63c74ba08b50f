//! Sessions of an earlier run of the control plane, found in shared memory at start.
//!
//! A session that was up, has a whole recovery record and still fits the configuration goes on: its entry is not touched, so
//! its traffic does not notice. Every other one is ended with a PADT, so that its subscriber dials again at once.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use bng_pppoe::SessionRef;
use bng_shm::{
    BlockOwner, EpochToken, FilterId, Filters, FurtherBlocks, Policy, PoolRange, PortBlock,
    PublishError, Publisher, RangeKind, Reader, Record, Session, SessionState, SlotIndex,
};

use crate::causes::EndCause;
use crate::driver::Driver;
use crate::grants::{Holding, KeepError};
use crate::publish::{self, Clock};
use crate::said;
use crate::sessions::{End, Live};
use crate::settings::Settings;
use crate::tally::Count;

/// How long workers may take to let go of the filters of an earlier run.
const LET_GO_LIMIT: Duration = Duration::from_secs(1);

/// Why a session does not go on.
#[derive(Debug, thiserror::Error)]
enum NotAdopted {
    #[error("it was not up")]
    Negotiating,
    #[error("it has no whole recovery record")]
    Record,
    #[error("its access port or its owner is not configured")]
    Port,
    #[error("its access port does not serve its VLAN")]
    Vlan,
    #[error(transparent)]
    Kept(#[from] KeepError),
    #[error(transparent)]
    Engine(#[from] bng_pppoe::AdoptError),
}

impl NotAdopted {
    const fn count(&self) -> Count {
        match self {
            Self::Negotiating => Count::NotAdoptedNegotiating,
            Self::Record => Count::NotAdoptedRecord,
            Self::Port => Count::NotAdoptedPort,
            Self::Vlan => Count::NotAdoptedVlan,
            Self::Kept(KeepError::Address(_)) => Count::NotAdoptedAddress,
            Self::Kept(KeepError::Prefix(_) | KeepError::NoPrefixes { .. }) => {
                Count::NotAdoptedPrefix
            }
            Self::Kept(_) => Count::NotAdoptedBlock,
            Self::Engine(_) => Count::NotAdoptedEngine,
        }
    }
}

/// Adopts what can be adopted and withdraws the rest.
pub(crate) fn adopt(driver: &mut Driver, clock: Clock) {
    take_sessions(driver, clock);
    driver.policies.sweep();
    if !driver.publisher.created() {
        clear_owners(driver);
        clear_prefixes(driver);
        driver.clear_networks();
    }
}

fn take_sessions(driver: &mut Driver, clock: Clock) {
    let found = driver.publisher.survey();
    if found.is_empty() {
        return;
    }
    let (mut adopted, mut ended) = (0u32, 0u32);
    // All that go on come first, so that nothing they hold can be given to anybody else.
    let (up, rest): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|(_, session, _)| session.state == SessionState::Forwarding);
    for (slot, session, record) in up {
        match take_over(driver, slot, &session, record.as_ref(), clock) {
            Ok(()) => {
                adopted += 1;
                driver.tally.add(Count::Adopted);
            }
            Err(reason) => {
                ended += 1;
                end(driver, slot, &session, record.as_ref(), &reason, clock);
            }
        }
    }
    for (slot, session, record) in rest {
        if session.state == SessionState::Closing {
            finish(driver, slot, &session, record.as_ref(), clock);
        } else {
            ended += 1;
            let reason = NotAdopted::Negotiating;
            end(driver, slot, &session, record.as_ref(), &reason, clock);
        }
    }
    tracing::info!(adopted, ended, "sessions of an earlier run");
}

/// Takes blocks and addresses from everybody who is not known to have them: from sessions of which an earlier run left
/// nothing but that, and from those for whose block the word has another meaning since the NAT pools are cut differently.
fn clear_owners(driver: &mut Driver) {
    let reader = driver.publisher.reader();
    for range in driver.publisher.pool_ranges().to_vec() {
        let addresses = (range.first.to_bits()..=range.last.to_bits()).map(Ipv4Addr::from_bits);
        for address in addresses {
            let result = match range.kind {
                RangeKind::Subscriber => break,
                RangeKind::Routed => {
                    let owner = reader.framed_owner(&range, address);
                    if owner.is_none_or(|owner| has(driver, owner, address, None)) {
                        continue;
                    }
                    driver.publisher.set_framed_owner(address, None)
                }
                RangeKind::Nat => clear_blocks(driver, &reader, &range, address),
            };
            if let Err(error) = result {
                driver.publish_failed("owner of an address", &error);
            }
        }
    }
}

/// The same for IPv6 prefixes.
fn clear_prefixes(driver: &mut Driver) {
    let reader = driver.publisher.reader();
    for range in driver.publisher.pool6_ranges().to_vec() {
        let step = 1u64 << (64 - range.length);
        for at in 0..range.count() {
            let high = range.first + at * step;
            let owner = reader.framed6_owner(&range, high);
            if owner.is_none_or(|owner| has_prefix(driver, owner, high)) {
                continue;
            }
            if let Err(error) = driver.publisher.set_framed6_owner(high, None) {
                driver.publish_failed("owner of a prefix", &error);
            }
        }
    }
}

fn has_prefix(driver: &Driver, owner: BlockOwner, high: u64) -> bool {
    let live = driver.sessions.at(owner.slot);
    live.is_some_and(|live| {
        let prefixes = live.holding.and_then(|holding| holding.prefixes);
        live.end.is_none()
            && publish::Open::of(live).ipv6
            && live.generation & 0x7fff_ffff == owner.generation
            && prefixes.is_some_and(|it| it.iter().any(|prefix| prefix.high() == high))
    })
}

fn clear_blocks(
    driver: &mut Driver,
    reader: &Reader,
    range: &PoolRange,
    address: Ipv4Addr,
) -> Result<(), PublishError> {
    let step = usize::from(range.block_size.max(1));
    for first_port in (range.first_port..=u16::MAX).step_by(step) {
        let owner = reader.block_owner(range, address, first_port);
        if owner.is_none_or(|owner| has(driver, owner, address, Some(first_port))) {
            continue;
        }
        let block = PortBlock {
            address,
            address_index: 0,
            first_port,
            size: range.block_size,
        };
        driver.publisher.set_block_owner(&block, None)?;
    }
    Ok(())
}

/// Whether the session a word names is one that forwards and holds what the word stands for.
fn has(driver: &Driver, owner: BlockOwner, address: Ipv4Addr, first_port: Option<u16>) -> bool {
    let live = driver.sessions.at(owner.slot);
    live.is_some_and(|live| {
        let mut blocks = live.holding.iter().flat_map(Holding::published_blocks);
        live.end.is_none()
            && publish::Open::of(live).ipv4
            && live.generation & 0x7fff_ffff == owner.generation
            && match first_port {
                Some(port) => blocks.any(|it| it.address == address && it.first_port == port),
                None => live.framed_ip() == Some(address),
            }
    })
}

/// The port blocks a session of an earlier run has beside its first one.
fn further(driver: &Driver, slot: SlotIndex) -> FurtherBlocks {
    driver.publisher.reader().further_blocks(slot)
}

fn take_over(
    driver: &mut Driver,
    slot: SlotIndex,
    session: &Session,
    record: Option<&Record>,
    clock: Clock,
) -> Result<(), NotAdopted> {
    let record = record.ok_or(NotAdopted::Record)?;
    let port = driver.settings.access_port(slot.access_port());
    let max_mru = port.ok_or(NotAdopted::Port)?.max_mru;
    if session.owner >= driver.workers() {
        return Err(NotAdopted::Port);
    }
    let vlans = publish::engine_vlans(&session.vlans);
    if !driver.settings.serves(slot.access_port(), &vlans) {
        return Err(NotAdopted::Vlan);
    }
    let held = publish::held(session, Some(record), further(driver, slot));
    let holding = (driver.grants).keep(record.user(), &held)?;
    let mut kept = said::read(record);
    if kept.said.dns6 == [None; 2] {
        let pool = driver.settings.pools.get(holding.lease.pool);
        kept.said.dns6 = pool.map_or([None; 2], |pool| pool.dns6);
    }
    let engine_record = publish::engine_record(slot, session, record, &held, &kept, max_mru, clock);
    if let Err(error) = (driver.engine).adopt(clock.time(), engine_record.clone()) {
        driver.grants.give_back(&holding, clock.since_start());
        return Err(error.into());
    }
    let live = Live {
        holding: Some(holding),
        record: Some(publish::nameless(Box::new(engine_record))),
        ..publish::surveyed(slot, session, Some(record), SessionState::Forwarding)
    };
    let reference = live.session;
    driver.sessions.insert(live);
    driver.sessions.admit(reference);
    if driver.keep_networks(slot, clock) {
        // The record must not say that it has what another session may get.
        driver.update(slot);
    }
    // The same words as before, unless the earlier run died before it wrote them.
    driver.lead_to_open(slot);
    adopt_policy(driver, reference, session, record);
    driver.account_lost_start(slot, clock);
    Ok(())
}

/// Gives a session the policy of the configuration as it is now, or the one an operator gave it. Where that is the place its
/// entry names already, and the rest is whole too, the entry stays as it is.
fn adopt_policy(driver: &mut Driver, reference: SessionRef, session: &Session, record: &Record) {
    match operators_policy(driver, session, record) {
        Some(policy) => driver.hold(reference, policy, true),
        None => driver.assign_policy(reference),
    }
    let Some(live) = driver.sessions.get(reference) else {
        return;
    };
    if publish::entry(live) != *session {
        let slot = live.slot();
        driver.update(slot);
    }
}

/// What an operator has given the session, with the filter under its present position; `None` when there is nothing, or when
/// it cannot be had any more.
fn operators_policy(driver: &Driver, session: &Session, record: &Record) -> Option<Policy> {
    if record.policy_by_operator == 0 {
        return None;
    }
    let before = driver.publisher.reader().policy(session.policy);
    let filter = match record.filter_tag {
        [0, 0, 0, 0] => Some(None),
        tag => driver.settings.terms.tagged_filter(tag).map(Some),
    };
    let kept = before.zip(filter);
    if kept.is_none() {
        let user = String::from_utf8_lossy(record.user());
        tracing::warn!(
            ?user,
            "what an operator gave this session is gone or names a filter that is not configured any more; the configuration's policy is used"
        );
    }
    kept.map(|(policy, filter)| Policy { filter, ..policy })
}

/// Takes filters of an earlier run away if they are not those of this one: sessions that name one by its old position must not
/// come under another. Until the new ones are published, after the sessions have been adopted, packets of sessions with a
/// filter are dropped. Returns when no worker has the earlier ones any more: one that met the new ones half written would go on
/// with what it has, and sessions name them by their new positions by then.
///
/// # Errors
/// [`PublishError`]
pub(crate) fn withhold_filters(
    publisher: &mut Publisher,
    settings: &Settings,
) -> Result<(), PublishError> {
    let mut before = Filters::default();
    publisher.reader().refresh_filters(&mut before);
    let now = settings.terms.published_filters();
    let is_same = (0u8..=255).all(|id| before.get(FilterId(id)) == now.get(usize::from(id)));
    if is_same {
        return Ok(());
    }
    publisher.publish_filters(&[])?;
    let token = publisher.advance_epoch();
    if !wait_for(publisher, token) {
        tracing::warn!(
            "a worker does not say that it has let go of the filters of an earlier run; look at bngctl health"
        );
    }
    Ok(())
}

/// Waits until an epoch has passed; false when that takes too long.
fn wait_for(publisher: &Publisher, token: EpochToken) -> bool {
    let begun = Instant::now();
    while !publisher.epoch_passed(token) {
        if begun.elapsed() >= LET_GO_LIMIT {
            return false;
        }
        // A loop of a worker takes microseconds, or `idle_backoff_us`.
        std::thread::sleep(Duration::from_micros(100));
    }
    true
}

/// Ends a session that does not go on: the peer gets a PADT and its id rests.
fn end(
    driver: &mut Driver,
    slot: SlotIndex,
    session: &Session,
    record: Option<&Record>,
    reason: &NotAdopted,
    clock: Clock,
) {
    driver.tally.add(reason.count());
    let live = publish::surveyed(slot, session, record, session.state);
    tracing::warn!(
        session = crate::views::session_id(&driver.settings, &live),
        user = ?String::from_utf8_lossy(&live.user),
        mac = %live.line.mac,
        %reason,
        "session of an earlier run is ended"
    );
    let (reference, mac, vlans) = (live.session, live.line.mac, live.vlans);
    insert_to_free(driver, live, session, record, None, clock);
    driver.engine.expel(clock.time(), reference, mac, vlans);
}

/// A session that was being withdrawn when the earlier run ended: only the epoch is missing.
fn finish(
    driver: &mut Driver,
    slot: SlotIndex,
    session: &Session,
    record: Option<&Record>,
    clock: Clock,
) {
    let live = publish::surveyed(slot, session, record, session.state);
    let (reference, mac, vlans) = (live.session, live.line.mac, live.vlans);
    let cause = record.and_then(|record| said::read(record).end);
    insert_to_free(driver, live, session, record, cause, clock);
    // Its PADT may not have gone out any more; one more does no harm, and the id has to rest.
    driver.engine.expel(clock.time(), reference, mac, vlans);
}

fn insert_to_free(
    driver: &mut Driver,
    live: Live,
    session: &Session,
    record: Option<&Record>,
    cause: Option<EndCause>,
    clock: Clock,
) {
    let (slot, reference) = (live.slot(), live.session);
    let held = publish::held(session, record, further(driver, slot));
    let holding = match live.given_back {
        // It is others' by now.
        true => Some(Holding::of_the_past(&held)),
        false => (driver.grants).keep_to_the_end(&live.user, &held),
    };
    if live.given_back {
        driver.held.find();
    }
    let was_up = live.opened_unix_ms != 0;
    driver.sessions.insert(Live { holding, ..live });
    // Nobody gets them before every worker has forgotten this session.
    driver.keep_networks(slot, clock);
    if holding.is_some() {
        driver.sessions.admit(reference);
    }
    driver.account_lost_start(slot, clock);
    let end = End {
        cause: cause.unwrap_or(EndCause::NotAdopted),
        was_up,
        release: false,
    };
    driver.withdraw(slot, end, clock);
}

#[cfg(test)]
mod tests {
    use super::*;
    use bng_shm::{Capacities, Dataplane, Filter};
    use std::sync::mpsc;

    #[test]
    fn filters_of_an_earlier_run_are_let_go_by_every_worker_before_sessions_are_adopted() {
        let capacities = Capacities::of_gateway(1, 2, 1, 0, 0);
        let (mut dataplane, mut publisher) = Dataplane::in_process(capacities).unwrap();
        let worker = dataplane.worker(0).unwrap();
        worker.enter(0);
        publisher.publish_filters(&[Filter::default()]).unwrap();
        let settings = Settings::new(&crate::settings::tests::config()).unwrap();
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let result = withhold_filters(&mut publisher, &settings);
                tell.send(result.is_ok()).unwrap();
            });
            let mut seen = Filters::default();
            while !worker.reader().refresh_filters(&mut seen) || seen.get(FilterId(0)).is_some() {
                std::thread::yield_now();
            }
            let early = told.recv_timeout(Duration::from_millis(50));
            assert!(early.is_err(), "a worker may have the earlier ones still");
            // The epoch may begin only after this loop of the worker, so it goes on.
            let done = loop {
                worker.quiescent();
                if let Ok(done) = told.recv_timeout(Duration::from_micros(100)) {
                    break done;
                }
            };
            assert!(done);
        });
    }
}
