//! The session table as its only writer sees it.

use super::{PublishError, Publisher};
use crate::blocks::FurtherBlocks;
use crate::reader::NO_OWNER;
use crate::record::Record;
use crate::session::{Session, SessionEntry, SlotIndex, StatsCopy};
use crate::slot::{SLOT_WORDS, SessionState};
use crate::sync::fault_point;
use std::sync::atomic::Ordering;

impl Publisher {
    /// Publishes a new session in a free slot: counters are zeroed, the record is written, then the
    /// entry becomes visible. The entry's generation is the slot's next one, whatever
    /// `session.generation` says; it is returned. Generations have 31 bits, as in [`BlockOwner`], and
    /// are never 0.
    ///
    /// The caller has made sure that the slot is free and its last withdrawal's epoch has passed.
    ///
    /// # Errors
    /// No such slot or no such worker.
    pub fn publish_session(
        &mut self,
        slot: SlotIndex,
        session: &Session,
        record: &Record,
    ) -> Result<u32, PublishError> {
        self.check_owner(session.owner)?;
        self.set_further_blocks(slot, FurtherBlocks::default())?;
        let entry = self.entry(slot)?;
        let generation = next_generation(entry.slot.generation());
        entry.stats.clear();
        self.write_session(slot, generation, session, record)?;
        Ok(generation)
    }

    /// Replaces the entry and record of a live session; the counters and the generation stay, whatever
    /// `session.generation` says.
    ///
    /// # Errors
    /// No such slot or no such worker.
    pub fn update_session(
        &mut self,
        slot: SlotIndex,
        session: &Session,
        record: &Record,
    ) -> Result<(), PublishError> {
        let generation = self.entry(slot)?.slot.generation();
        self.check_owner(session.owner)?;
        self.write_session(slot, generation, session, record)
    }

    fn entry(&self, slot: SlotIndex) -> Result<&SessionEntry, PublishError> {
        self.tables
            .sessions
            .get(slot.0 as usize)
            .ok_or(PublishError::Slot(slot))
    }

    fn check_owner(&self, owner: u8) -> Result<(), PublishError> {
        if u32::from(owner) < self.capacities.workers {
            return Ok(());
        }
        Err(PublishError::Unknown {
            what: "worker",
            value: owner.into(),
        })
    }

    fn write_session(
        &self,
        slot: SlotIndex,
        generation: u32,
        session: &Session,
        record: &Record,
    ) -> Result<(), PublishError> {
        let at = slot.0 as usize;
        let entry = self.entry(slot)?;
        // The record first: a control process that dies after the entry became visible can adopt it.
        self.tables.records[at].write(generation, record);
        entry.slot.write(
            generation,
            session.state,
            session.owner,
            &session.to_words(),
        );
        self.tables.owners[at].store(session.owner + 1, Ordering::Release);
        fault_point();
        Ok(())
    }

    /// Makes a session unreachable. Its slot, address and block may be reused when the token of an
    /// [`Publisher::advance_epoch`] after this call has passed.
    ///
    /// # Errors
    /// No such slot.
    pub fn withdraw_session(&mut self, slot: SlotIndex) -> Result<(), PublishError> {
        self.entry(slot)?.slot.withdraw();
        Ok(())
    }

    /// Frees a withdrawn slot whose epoch has passed; returns the final counters.
    ///
    /// # Errors
    /// No such slot.
    pub fn free_session(&mut self, slot: SlotIndex) -> Result<StatsCopy, PublishError> {
        let entry = self.entry(slot)?;
        let stats = entry.stats.copy();
        self.tables.owners[slot.0 as usize].store(NO_OWNER, Ordering::Release);
        fault_point();
        // The generation stays, also of a slot with nonsense in it: the next session's must differ.
        let generation = entry.slot.generation();
        entry
            .slot
            .write(generation, SessionState::Free, 0, &[0; SLOT_WORDS]);
        Ok(stats)
    }

    /// Gives a session these port blocks beside the one in its entry. All are on that one's address and of its size, each has
    /// the session as its owner ([`Publisher::set_block_owner`]) and workers use them at once; none is left out that was there before, as long
    /// as the session lives. A new session has none.
    ///
    /// # Errors
    /// No such slot.
    pub fn set_further_blocks(
        &mut self,
        slot: SlotIndex,
        blocks: FurtherBlocks,
    ) -> Result<(), PublishError> {
        let words = self.tables.further_blocks.get(slot.0 as usize);
        words.ok_or(PublishError::Slot(slot))?.write(blocks);
        Ok(())
    }

    /// A session's counters now.
    #[must_use]
    pub fn session_stats(&self, slot: SlotIndex) -> Option<StatsCopy> {
        self.entry(slot).ok().map(|entry| entry.stats.copy())
    }

    /// Everything in the table after a restart: sessions with their records, to be adopted or, where
    /// there is no whole record, withdrawn by the caller.
    ///
    /// Slots that no whole session can be read from (a death inside a write, or nonsense) are withdrawn
    /// here. They appear as `Closing` with all other fields zero, to be freed when an epoch has passed.
    /// The owner array is put right.
    pub fn survey(&mut self) -> Vec<(SlotIndex, Session, Option<Record>)> {
        let mut found = Vec::new();
        for (at, entry) in self.tables.sessions.iter().enumerate() {
            let slot = SlotIndex(at as u32);
            if entry.slot.is_torn() {
                entry.slot.withdraw();
            }
            let whole = entry
                .read()
                .ok()
                .filter(|session| u32::from(session.owner) < self.capacities.workers);
            let Some(session) = whole.or_else(|| {
                let generation = entry.slot.generation();
                entry
                    .slot
                    .write(generation, SessionState::Closing, 0, &[0; SLOT_WORDS]);
                entry.read().ok()
            }) else {
                continue;
            };
            // A death between the entry's store and this one's would leave the session unreachable.
            let owner = match session.state {
                SessionState::Free => NO_OWNER,
                _ => session.owner + 1,
            };
            self.tables.owners[at].store(owner, Ordering::Release);
            if session.state != SessionState::Free {
                let record = self.tables.records[at].read(session.generation);
                found.push((slot, session, record));
            }
        }
        found
    }
}

/// The generation after `last`: 31 bits, never 0.
fn next_generation(last: u32) -> u32 {
    (last.wrapping_add(1) & 0x7fff_ffff).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Capacities;
    use crate::session::Vlans;
    use crate::worker::Dataplane;
    use std::net::Ipv4Addr;

    const SMALL: Capacities = Capacities {
        access_ports: 1,
        ports: 2,
        workers: 2,
        nat_addresses: 0,
        framed_addresses: 0,
        framed_prefixes: 4,
        routes: 1,
        routes6: 4,
        next_hops: 1,
    };
    const SLOT: SlotIndex = SlotIndex(9);

    fn session(owner: u8) -> Session {
        Session {
            generation: 0,
            state: SessionState::Forwarding,
            owner,
            client_mac: [2, 0, 0, 0, 0, 1],
            vlans: Vlans::default(),
            mtu: 1492,
            framed_ip: Ipv4Addr::new(100, 64, 0, 1),
            gateway_ip: Ipv4Addr::new(100, 64, 0, 254),
            nat: None,
            ..Session::NONE
        }
    }

    fn entry(publisher: &Publisher) -> &SessionEntry {
        &publisher.tables.sessions[SLOT.0 as usize]
    }

    /// Leaves the slot as a control process does that dies inside a write.
    fn tear(publisher: &Publisher) {
        entry(publisher).slot.tear();
    }

    #[test]
    fn a_generation_never_comes_back_after_a_cut_write() {
        let (_dataplane, mut publisher) = Dataplane::in_process(SMALL).unwrap();
        let record = Record::default();
        for _ in 0..5 {
            publisher
                .publish_session(SLOT, &session(0), &record)
                .unwrap();
        }
        tear(&publisher);
        let next = publisher.publish_session(SLOT, &session(1), &record);
        assert_eq!(next, Ok(6), "published over the cut write");
        tear(&publisher);
        publisher.free_session(SLOT).unwrap();
        let next = publisher.publish_session(SLOT, &session(1), &record);
        assert_eq!(next, Ok(7), "freed after the cut write");
    }

    #[test]
    fn generations_fit_an_owner_word_and_are_never_zero() {
        assert_eq!(next_generation(0), 1);
        assert_eq!(next_generation(0x7fff_fffe), 0x7fff_ffff);
        assert_eq!(next_generation(0x7fff_ffff), 1);
        assert_eq!(next_generation(u32::MAX), 1);
    }

    #[test]
    fn an_update_keeps_generation_and_counters() {
        let (mut dataplane, mut publisher) = Dataplane::in_process(SMALL).unwrap();
        let record = Record::default();
        let generation = publisher
            .publish_session(SLOT, &session(0), &record)
            .unwrap();
        let worker = dataplane.worker(0).unwrap();
        worker.count_up(SLOT, 100, 1);
        let other = Session {
            generation: 77,
            mtu: 1000,
            ..session(0)
        };
        publisher.update_session(SLOT, &other, &record).unwrap();
        let now = worker.reader().session(SLOT).unwrap().unwrap();
        assert_eq!((now.generation, now.mtu), (generation, 1000));
        assert_eq!(publisher.session_stats(SLOT).unwrap().up_bytes, 100);
        assert!(
            publisher.survey()[0].2.is_some(),
            "the record has the entry's generation"
        );
    }

    #[test]
    fn an_owner_that_does_not_exist_is_refused() {
        let (_dataplane, mut publisher) = Dataplane::in_process(SMALL).unwrap();
        let record = Record::default();
        for owner in [2, 255] {
            let unknown = PublishError::Unknown {
                what: "worker",
                value: owner.into(),
            };
            let published = publisher.publish_session(SLOT, &session(owner), &record);
            assert_eq!(published, Err(unknown.clone()));
            let updated = publisher.update_session(SLOT, &session(owner), &record);
            assert_eq!(updated, Err(unknown));
        }
        let nowhere = SlotIndex(65_536);
        let published = publisher.publish_session(nowhere, &session(0), &record);
        assert_eq!(published, Err(PublishError::Slot(nowhere)));
    }

    #[test]
    fn a_survey_withdraws_what_is_torn_or_nonsense_and_reports_it() {
        let (dataplane, mut publisher) = Dataplane::in_process(SMALL).unwrap();
        let reader = dataplane.reader();
        let record = Record::default();
        publisher
            .publish_session(SLOT, &session(1), &record)
            .unwrap();
        tear(&publisher);
        assert_eq!(reader.session(SLOT), Some(Err(crate::SlotError::Busy)));
        let found = publisher.survey();
        assert_eq!(found.len(), 1);
        let cut = &found[0].1;
        assert_eq!((cut.state, cut.generation), (SessionState::Closing, 1));
        assert!(cut.framed_ip.is_unspecified() && cut.client_mac == [0; 6]);

        publisher.free_session(SLOT).unwrap();
        assert_eq!(publisher.survey(), vec![]);
        // An owner beyond the workers there are, as only a broken writer leaves it.
        let words = session(0).to_words();
        entry(&publisher)
            .slot
            .write(5, SessionState::Forwarding, 9, &words);
        let found = publisher.survey();
        assert_eq!(found.len(), 1, "it must be freed by somebody");
        assert_eq!(
            (found[0].1.state, found[0].1.owner),
            (SessionState::Closing, 0)
        );
        publisher.free_session(SLOT).unwrap();
        assert_eq!(publisher.publish_session(SLOT, &session(0), &record), Ok(6));
    }

    #[test]
    fn a_survey_puts_the_owner_array_right() {
        let (dataplane, mut publisher) = Dataplane::in_process(SMALL).unwrap();
        let reader = dataplane.reader();
        publisher
            .publish_session(SLOT, &session(1), &Record::default())
            .unwrap();
        let owner = &publisher.tables.owners[SLOT.0 as usize];
        owner.store(NO_OWNER, Ordering::Relaxed);
        publisher.tables.owners[8].store(2, Ordering::Relaxed);
        publisher.survey();
        assert_eq!(reader.owner(SLOT), Some(1));
        assert_eq!(reader.owner(SlotIndex(8)), None);
    }
}
