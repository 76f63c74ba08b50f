//! Stage: whose session is it, and may it pass?

use bng_shm::{Counter, Reader, Session, SessionState, SlotIndex};
use bng_wire::{MacAddr, VlanStack, VlanTag};

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
pub(crate) fn live(reader: &Reader, slot: SlotIndex, unknown: Counter) -> Step<Session> {
    match reader.session(slot) {
        Some(Ok(session)) => match session.state {
            SessionState::Negotiating | SessionState::Forwarding => Ok(session),
            SessionState::Free | SessionState::Closing => drop(unknown),
        },
        Some(Err(_)) => drop(Counter::SessionBusy),
        None => drop(unknown),
    }
}

/// Whether a frame with this source and these tags can be of the session: client MAC, S-VLAN and C-VLAN match.
#[inline(always)]
pub(crate) fn matches(session: &Session, src: MacAddr, tags: &VlanStack) -> bool {
    // "No tag" differs from VLAN 0, which is a priority tag.
    let of_session = |vid: Option<u16>| vid.map_or(0, |vid| PRESENT | vid);
    let of_frame = |tag: Option<VlanTag>| tag.map_or(0, |tag| PRESENT | tag.vid());
    src.0 == session.client_mac
        && of_frame(tags.outer()) == of_session(session.vlans.s_vlan)
        && of_frame(tags.inner()) == of_session(session.vlans.c_vlan)
}

/// Above every VLAN id.
const PRESENT: u16 = 0x8000;

/// Data passes only while the network phase is open.
#[inline(always)]
pub(crate) fn open(session: &Session) -> Step<()> {
    match session.state {
        SessionState::Forwarding => Ok(()),
        _ => drop(Counter::SessionNotOpen),
    }
}
