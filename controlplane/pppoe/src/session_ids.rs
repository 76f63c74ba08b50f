//! Session ids of one access port: who has which, and which rest before they are used again.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use crate::Time;

/// Highest session id; 0 means none and 0xffff is reserved (RFC 2516 section 4).
const LAST: u16 = 0xfffe;

/// State of one id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Free,
    /// In use by the session in this slot.
    Session(u32),
    /// The session ended; the dataplane may still know it.
    Withdrawing,
    /// Resting.
    Quarantined,
}

/// The ids of a port.
#[derive(Debug)]
pub(crate) struct SessionIds {
    // Indexed by id; the place for id 0 is unused.
    owners: Vec<(Owner, u32)>,
    // Ids never used so far, walked once around from a random start.
    fresh_next: u16,
    fresh_left: u16,
    resting: VecDeque<(u16, Time)>,
    withdrawing: usize,
    quarantine: Duration,
}

impl SessionIds {
    pub(crate) fn new(quarantine: Duration, start: u64) -> Self {
        Self {
            owners: vec![(Owner::Free, 0); usize::from(LAST) + 1],
            // A restart must not hand out at once the ids that rested when the last process ended.
            fresh_next: (start % u64::from(LAST)) as u16 + 1,
            fresh_left: LAST,
            resting: VecDeque::new(),
            withdrawing: 0,
            quarantine,
        }
    }

    /// How long ids released from now on rest.
    pub(crate) const fn set_quarantine(&mut self, quarantine: Duration) {
        self.quarantine = quarantine;
    }

    fn fresh(&mut self) -> Option<u16> {
        while self.fresh_left > 0 {
            let id = self.fresh_next;
            self.fresh_next = if id == LAST { 1 } else { id + 1 };
            self.fresh_left -= 1;
            if matches!(self.owners.get(usize::from(id)), Some((Owner::Free, _))) {
                return Some(id);
            }
        }
        None
    }

    /// An id nobody has, and its new generation; `None` when all are in use or resting.
    pub(crate) fn allocate(&mut self, now: Time, slot: u32) -> Option<(u16, u32)> {
        let id = match self.fresh() {
            Some(id) => id,
            None => {
                let (id, ready) = *self.resting.front()?;
                if ready > now {
                    return None;
                }
                self.resting.pop_front();
                id
            }
        };
        let (owner, generation) = self.owners.get_mut(usize::from(id))?;
        *owner = Owner::Session(slot);
        *generation = generation.wrapping_add(1);
        Some((id, *generation))
    }

    /// Gives a free `id` to an adopted session; `false` when it is not free.
    pub(crate) fn claim(&mut self, id: u16, generation: u32, slot: u32) -> bool {
        match self.owners.get_mut(usize::from(id)) {
            Some(place @ (Owner::Free, _)) if id != 0 => {
                *place = (Owner::Session(slot), generation);
                true
            }
            _ => false,
        }
    }

    /// Sends a free `id` to rest, because a session of an earlier process had it; `false` when it is not free.
    pub(crate) fn rest(&mut self, now: Time, id: u16) -> bool {
        match self.owners.get_mut(usize::from(id)) {
            Some((owner @ Owner::Free, _)) if id != 0 => {
                *owner = Owner::Quarantined;
                self.resting.push_back((id, now + self.quarantine));
                true
            }
            _ => false,
        }
    }

    /// The slot of the session that has `id`.
    pub(crate) fn slot(&self, id: u16) -> Option<u32> {
        match self.owners.get(usize::from(id)) {
            Some((Owner::Session(slot), _)) => Some(*slot),
            _ => None,
        }
    }

    /// The session of `id` ended; the id waits for [`Self::release`].
    pub(crate) fn withdraw(&mut self, id: u16) {
        if let Some((owner @ Owner::Session(_), _)) = self.owners.get_mut(usize::from(id)) {
            *owner = Owner::Withdrawing;
            self.withdrawing += 1;
        }
    }

    /// Sends a withdrawn id to rest; `false` when it is not withdrawn or of another generation.
    pub(crate) fn release(&mut self, now: Time, id: u16, generation: u32) -> bool {
        match self.owners.get_mut(usize::from(id)) {
            Some((owner @ Owner::Withdrawing, g)) if *g == generation => {
                *owner = Owner::Quarantined;
                self.withdrawing -= 1;
                self.resting.push_back((id, now + self.quarantine));
                true
            }
            _ => false,
        }
    }

    /// Ids whose session ended and that were not released yet.
    pub(crate) const fn withdrawing(&self) -> usize {
        self.withdrawing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    const REST: Duration = Duration::from_secs(10);

    #[test]
    fn every_id_but_0_and_ffff_is_given_once() {
        let mut ids = SessionIds::new(REST, 40_000);
        let mut seen = BTreeSet::new();
        while let Some((id, generation)) = ids.allocate(Time::ZERO, 0) {
            assert_eq!(generation, 1);
            assert!(seen.insert(id));
        }
        assert_eq!(seen.len(), 65_534);
        assert!(!seen.contains(&0) && !seen.contains(&0xffff));
    }

    #[test]
    fn an_id_comes_back_only_after_release_and_rest_in_order() {
        let at = Time::from_millis;
        let mut ids = SessionIds::new(REST, 0);
        while ids.allocate(at(0), 0).is_some() {}
        ids.withdraw(5);
        ids.withdraw(4);
        assert_eq!(ids.withdrawing(), 2);
        assert_eq!(ids.allocate(at(1_000_000), 0), None, "not released");
        assert!(!ids.release(at(0), 5, 2), "other generation");
        assert!(ids.release(at(1_000_000), 5, 1));
        assert!(ids.release(at(1_000_001), 4, 1));
        assert!(!ids.release(at(1_000_001), 4, 1), "only once");
        assert_eq!(ids.allocate(at(1_009_999), 0), None);
        assert_eq!(ids.allocate(at(1_010_500), 0), Some((5, 2)));
        assert_eq!(ids.allocate(at(1_010_500), 0), Some((4, 2)));
    }

    #[test]
    fn claimed_and_resting_ids_are_skipped() {
        let mut ids = SessionIds::new(REST, 0);
        assert!(ids.claim(1, 7, 3));
        assert!(!ids.claim(1, 7, 4));
        assert!(!ids.claim(0, 7, 4) && !ids.claim(0xffff, 7, 4));
        assert!(ids.rest(Time::ZERO, 2));
        assert_eq!(ids.slot(1), Some(3));
        assert_eq!(ids.allocate(Time::ZERO, 9), Some((3, 1)));
    }
}
