//! Sessions of an earlier run of the control plane, found in shared memory at start.
//!
//! A session that was up, has a whole recovery record and still fits the configuration goes on: its entry is not touched, so
//! its traffic does not notice. Every other one is ended with a PADT, so that its subscriber dials again at once.

use bng_shm::{Record, Session, SessionState, SlotIndex};

use crate::driver::Driver;
use crate::grants::KeepError;
use crate::publish::{self, Clock};
use crate::sessions::{End, Live};
use crate::tally::Count;

/// Cause of an end, as in the history.
const NOT_ADOPTED: &str = "not_adopted";

/// Why a session does not go on.
#[derive(Debug, thiserror::Error)]
enum NotAdopted {
    #[error("it was not up")]
    Negotiating,
    #[error("it has no whole recovery record")]
    Record,
    #[error("its access port or its owner is not configured")]
    Port,
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
            Self::Kept(KeepError::Address(_)) => Count::NotAdoptedAddress,
            Self::Kept(_) => Count::NotAdoptedBlock,
            Self::Engine(_) => Count::NotAdoptedEngine,
        }
    }
}

/// Adopts what can be adopted and withdraws the rest.
pub(crate) fn adopt(driver: &mut Driver, clock: Clock) {
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
    let holding = (driver.grants).keep(record.user(), session.framed_ip, session.nat)?;
    let engine_record = publish::engine_record(slot, session, record, max_mru, clock);
    if let Err(error) = (driver.engine).adopt(clock.time(), engine_record.clone()) {
        driver.grants.give_back(&holding, clock.since_start());
        return Err(error.into());
    }
    let live = Live {
        holding: Some(holding),
        record: Some(Box::new(engine_record)),
        ..publish::surveyed(slot, session, Some(record), SessionState::Forwarding)
    };
    // The same words as before, unless the earlier run died before it wrote them.
    driver.lead_to(&live, true);
    driver.sessions.insert(live);
    Ok(())
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
        user = %String::from_utf8_lossy(&live.user),
        mac = %live.line.mac,
        %reason,
        "session of an earlier run is ended"
    );
    let (reference, mac, vlans) = (live.session, live.line.mac, live.vlans);
    let was_up = session.state == SessionState::Forwarding;
    insert_to_free(driver, live, session, was_up, clock);
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
    insert_to_free(driver, live, session, false, clock);
    // Its PADT may not have gone out any more; one more does no harm, and the id has to rest.
    driver.engine.expel(clock.time(), reference, mac, vlans);
}

fn insert_to_free(driver: &mut Driver, live: Live, session: &Session, was_up: bool, clock: Clock) {
    let slot = live.slot();
    let holding = (driver.grants).keep_to_the_end(&live.user, session.framed_ip, session.nat);
    driver.sessions.insert(Live { holding, ..live });
    let end = End {
        cause: NOT_ADOPTED,
        was_up,
        release: false,
    };
    driver.withdraw(slot, end, clock);
}
