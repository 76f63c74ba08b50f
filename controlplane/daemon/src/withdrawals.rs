//! Sessions that are over, from their withdrawal until their slot is free.
//!
//! The last frame to a peer (PADT, Terminate-Ack) travels through the owner, which drops frames of a freed slot. So a slot
//! first waits until the owner has taken everything that was sent to it, then for the epoch (INV-EPOCH-1).

use std::collections::VecDeque;

use bng_shm::{EpochToken, Publisher, SlotIndex};

use crate::inject::Injector;

/// How long a withdrawn session waits for an owner that takes no frames, milliseconds.
const DRAIN_LIMIT_MS: u64 = 1_000;

/// Withdrawn sessions in the order they will be free.
#[derive(Debug, Default)]
pub(crate) struct Withdrawals {
    draining: Vec<Draining>,
    waiting: VecDeque<(EpochToken, Vec<SlotIndex>)>,
}

#[derive(Debug, Clone, Copy)]
struct Draining {
    slot: SlotIndex,
    owner: u8,
    limit_ms: u64,
}

impl Withdrawals {
    /// A session whose entry has just been withdrawn.
    pub(crate) fn add(&mut self, slot: SlotIndex, owner: u8, now_ms: u64) {
        self.draining.push(Draining {
            slot,
            owner,
            limit_ms: now_ms + DRAIN_LIMIT_MS,
        });
    }

    /// The slots no worker can know any more.
    pub(crate) fn passed(
        &mut self,
        publisher: &mut Publisher,
        injector: &Injector,
        now_ms: u64,
    ) -> Vec<SlotIndex> {
        if !self.draining.is_empty() {
            let alive = publisher.dataplane_alive();
            let mut drained = Vec::new();
            self.draining.retain(|it| {
                let ready =
                    !alive || now_ms >= it.limit_ms || is_drained(publisher, injector, it.owner);
                if ready {
                    drained.push(it.slot);
                }
                !ready
            });
            if !drained.is_empty() {
                self.waiting.push_back((publisher.advance_epoch(), drained));
            }
        }
        let mut free = Vec::new();
        while let Some((_, slots)) =
            (self.waiting).pop_front_if(|(token, _)| publisher.epoch_passed(*token))
        {
            free.extend(slots);
        }
        free
    }

    /// Whether any session waits.
    #[must_use]
    pub(crate) fn is_waiting(&self) -> bool {
        !self.draining.is_empty() || !self.waiting.is_empty()
    }
}

fn is_drained(publisher: &Publisher, injector: &Injector, owner: u8) -> bool {
    injector.waiting(owner) == 0 && publisher.inject_is_empty(owner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::Tally;
    use bng_shm::{Capacities, Dataplane, FRAME_MAX, FrameMeta, PuntClass, Take};

    #[test]
    fn a_slot_is_free_after_its_last_frame_and_the_epoch() {
        let (mut dataplane, mut publisher) =
            Dataplane::in_process(Capacities::of_gateway(1, 2, 1, 0, 0)).unwrap();
        let mut worker = dataplane.worker(0).unwrap();
        worker.enter(0);
        let mut injector = Injector::new(1);
        let meta = FrameMeta {
            port: 0,
            class: PuntClass::Ppp,
            session: None,
        };
        let mut tally = Tally::default();
        injector.send(&mut publisher, &mut tally, 0, meta, vec![0; 60]);
        let slot = SlotIndex::new(0, 5);
        let mut withdrawals = Withdrawals::default();
        withdrawals.add(slot, 0, 100);

        worker.quiescent();
        assert_eq!(withdrawals.passed(&mut publisher, &injector, 101), []);
        worker.quiescent();
        assert_eq!(
            withdrawals.passed(&mut publisher, &injector, 102),
            [],
            "the last frame is still in the ring"
        );
        assert!(matches!(
            worker.take_injected(&mut [0; FRAME_MAX]),
            Take::Item(_)
        ));
        assert_eq!(
            withdrawals.passed(&mut publisher, &injector, 103),
            [],
            "the worker may still hold the frame"
        );
        worker.quiescent();
        assert_eq!(withdrawals.passed(&mut publisher, &injector, 104), [slot]);
        assert!(!withdrawals.is_waiting());
    }

    #[test]
    fn an_owner_that_takes_no_frames_is_not_waited_for_for_ever() {
        let (mut dataplane, mut publisher) =
            Dataplane::in_process(Capacities::of_gateway(1, 2, 1, 0, 0)).unwrap();
        let worker = dataplane.worker(0).unwrap();
        let mut injector = Injector::new(1);
        let meta = FrameMeta {
            port: 0,
            class: PuntClass::Ppp,
            session: None,
        };
        injector.send(&mut publisher, &mut Tally::default(), 0, meta, vec![0; 60]);
        let slot = SlotIndex::new(0, 5);
        let mut withdrawals = Withdrawals::default();
        withdrawals.add(slot, 0, 100);
        assert_eq!(withdrawals.passed(&mut publisher, &injector, 1_099), []);
        // The worker's thread is absent, so there is nothing to wait for but the frame.
        assert_eq!(worker.index(), 0);
        assert_eq!(withdrawals.passed(&mut publisher, &injector, 1_100), [slot]);
    }
}
