//! Stage: the session's entry with what IPv6 needs of it.

use bng_shm::{Counter, Reader, SessionLine6, SessionState, SlotIndex};

use crate::verdict::{Step, drop};

/// The entry of a live session; `SessionUnknown` when there is none.
#[inline(always)]
pub(crate) fn live(reader: &Reader, slot: SlotIndex) -> Step<SessionLine6> {
    match reader.session_line6(slot) {
        Some(Ok(session)) => match session.line.state() {
            Some(SessionState::Negotiating | SessionState::Forwarding) => Ok(session),
            Some(SessionState::Free | SessionState::Closing) => drop(Counter::SessionUnknown),
            None => drop(Counter::SessionBusy),
        },
        Some(Err(_)) => drop(Counter::SessionBusy),
        None => drop(Counter::SessionUnknown),
    }
}

/// Data passes only while IPv6CP is open; then the session has a prefix.
#[inline(always)]
pub(crate) fn open(session: &SessionLine6) -> Step<()> {
    match session.line.state() {
        Some(SessionState::Forwarding) if session.prefix() != 0 => Ok(()),
        _ => drop(Counter::SessionNotOpen),
    }
}

/// The address (its upper half) lies in the session's /64 or in its delegated prefix.
#[inline(always)]
pub(crate) fn has(session: &SessionLine6, high: u64) -> bool {
    high == session.prefix()
        || session
            .delegated()
            .is_some_and(|(prefix, length)| (high ^ prefix) >> (64 - length) == 0)
}
