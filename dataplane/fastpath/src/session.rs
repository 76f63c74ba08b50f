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

/// The sender of a frame, to compare with a session's: client MAC, S-VLAN and C-VLAN. A tag with VID 0 carries a priority
/// and names no VLAN (IEEE 802.1Q): it is passed over.
#[inline(always)]
pub(crate) fn sender(link: &EthFrame) -> Sender {
    let mut vlans = link.tags.iter().map(VlanTag::vid).filter(|vid| *vid != 0);
    Sender::new(link.src.0, vlans.next(), vlans.next())
}

/// Data passes only while the network phase is open.
#[inline(always)]
pub(crate) fn open(session: &SessionLine) -> Step<()> {
    match session.state() {
        Some(SessionState::Forwarding) => Ok(()),
        _ => drop(Counter::SessionNotOpen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bng_wire::ethernet::{self, ethertype};
    use bng_wire::{MacAddr, VlanStack};

    #[test]
    fn a_priority_tag_is_no_vlan() {
        let tag = |vid: u16| VlanTag {
            tpid: ethertype::VLAN,
            tci: 0x6000 | vid,
        };
        for (tags, vlans) in [
            (VlanStack::single(tag(0)), (None, None)),
            (VlanStack::single(tag(7)), (Some(7), None)),
            (VlanStack::double(tag(0), tag(7)), (Some(7), None)),
            (VlanStack::double(tag(7), tag(0)), (Some(7), None)),
            (VlanStack::double(tag(0), tag(0)), (None, None)),
            (VlanStack::double(tag(7), tag(9)), (Some(7), Some(9))),
        ] {
            let mut frame = [0; 64];
            let mac = MacAddr([2, 0, 0, 0, 0, 1]);
            ethernet::write(&mut frame, mac, mac, &tags, ethertype::PPPOE_SESSION).unwrap();
            let (link, _) = ethernet::split(&frame).unwrap();
            assert_eq!(
                sender(&link),
                Sender::new(mac.0, vlans.0, vlans.1),
                "{tags:?}"
            );
        }
    }
}
