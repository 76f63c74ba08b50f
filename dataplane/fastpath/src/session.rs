//! Stage: whose session is it, and may it pass?

use bng_shm::{Counter, Reader, Sender, SessionLine, SessionState, SlotIndex};
use bng_wire::{EthFrame, VlanTag};

use crate::verdict::{Origin, Step, Verdict, drop};

/// Goes on only if this worker owns the session (INV-OWNER-1). Reads the owner table and nothing else of it.
#[inline(always)]
pub(crate) fn owned(
    reader: &Reader,
    slot: SlotIndex,
    me: u8,
    origin: Origin,
    unknown: Counter,
) -> Step<()> {
    match reader.owner(slot) {
        Some(owner) if owner == me => Ok(()),
        None => drop(unknown),
        Some(_) if origin == Origin::HandedOver => drop(Counter::HandoverStale),
        Some(worker) => Err(Verdict::HandOver { worker }),
    }
}

/// The entry of a live session; `unknown` is the reason when there is none.
#[inline(always)]
pub(crate) fn live(reader: &Reader, slot: SlotIndex, unknown: Counter) -> Step<SessionLine> {
    match reader.session_line(slot) {
        Some(Ok(line)) => match line.state() {
            Some(SessionState::Negotiating | SessionState::Forwarding) => Ok(line),
            Some(SessionState::Free | SessionState::Closing) => drop(unknown),
            None => drop(Counter::SessionBusy),
        },
        Some(Err(_)) => drop(Counter::SessionBusy),
        None => drop(unknown),
    }
}

/// The sender of a frame, to compare with a session's: client MAC, S-VLAN and C-VLAN.
#[inline(always)]
pub(crate) fn sender(link: &EthFrame) -> Sender {
    Sender::new(
        link.src.0,
        link.tags.outer().map(VlanTag::vid),
        link.tags.inner().map(VlanTag::vid),
    )
}

/// Data passes only while the network phase is open.
#[inline(always)]
pub(crate) fn open(session: &SessionLine) -> Step<()> {
    match session.state() {
        Some(SessionState::Forwarding) => Ok(()),
        _ => drop(Counter::SessionNotOpen),
    }
}
