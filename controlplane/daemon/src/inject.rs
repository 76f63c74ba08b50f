//! Frames on their way to workers.
//!
//! A worker's inject ring is bounded and a worker may be slow to take from it, so frames wait here, in order, and none is
//! lost because a ring is full (HZ-15 R3). Only a worker that takes nothing for long makes frames be dropped, by name.

use std::collections::VecDeque;

use bng_shm::{FrameMeta, Publisher, TooLong};

use crate::tally::{Count, Tally};

/// Frames that may wait for one worker: a burst of every session of a full ring several times over.
const WAITING_MAX: usize = 16_384;

/// A queue per worker in front of its inject ring.
#[derive(Debug)]
pub(crate) struct Injector {
    waiting: Vec<VecDeque<(FrameMeta, Vec<u8>)>>,
}

impl Injector {
    /// Queues for so many workers.
    #[must_use]
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            waiting: vec![VecDeque::new(); workers],
        }
    }

    /// Sends a frame through a worker, behind those that wait.
    pub(crate) fn send(
        &mut self,
        publisher: &mut Publisher,
        tally: &mut Tally,
        worker: u8,
        meta: FrameMeta,
        frame: Vec<u8>,
    ) {
        let Some(waiting) = self.waiting.get_mut(usize::from(worker)) else {
            return;
        };
        if waiting.is_empty() {
            match publisher.inject(worker, &meta, &frame) {
                Ok(true) => return,
                Ok(false) => {}
                Err(TooLong(_)) => return tally.add(Count::InjectTooLong),
            }
        }
        if waiting.len() >= WAITING_MAX {
            return tally.add(Count::InjectQueueFull);
        }
        waiting.push_back((meta, frame));
    }

    /// Moves what waits into the rings as far as they have room.
    pub(crate) fn flush(&mut self, publisher: &mut Publisher, tally: &mut Tally) {
        for (worker, waiting) in (0u8..).zip(&mut self.waiting) {
            while let Some((meta, frame)) = waiting.front() {
                match publisher.inject(worker, meta, frame) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(TooLong(_)) => tally.add(Count::InjectTooLong),
                }
                waiting.pop_front();
            }
        }
    }

    /// Forgets what waits: the dataplane it was for is gone.
    pub(crate) fn clear(&mut self) {
        self.waiting.iter_mut().for_each(VecDeque::clear);
    }

    /// Whether any frame waits.
    #[must_use]
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.iter().any(|waiting| !waiting.is_empty())
    }

    /// Frames that wait for a worker.
    #[must_use]
    pub(crate) fn waiting(&self, worker: u8) -> usize {
        self.waiting
            .get(usize::from(worker))
            .map_or(0, VecDeque::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bng_shm::{Capacities, Dataplane, FRAME_MAX, INJECT_RING_SLOTS, PuntClass, Take};

    #[test]
    fn frames_beyond_a_full_ring_wait_in_order_and_arrive() {
        let capacities = Capacities::of_gateway(1, 2, 1, 0, 0);
        let (mut dataplane, mut publisher) = Dataplane::in_process(capacities).unwrap();
        let mut worker = dataplane.worker(0).unwrap();
        let mut injector = Injector::new(1);
        let mut tally = Tally::default();
        let meta = FrameMeta {
            port: 0,
            class: PuntClass::Discovery,
            session: None,
        };
        let count = INJECT_RING_SLOTS as u32 + 500;
        for n in 0..count {
            let frame = n.to_be_bytes().to_vec();
            injector.send(&mut publisher, &mut tally, 0, meta, frame);
        }
        assert!(injector.is_waiting());
        let mut buffer = [0; FRAME_MAX];
        let mut expected = 0u32;
        while expected < count {
            match worker.take_injected(&mut buffer) {
                Take::Item(frame) => {
                    assert_eq!(buffer[..frame.len], expected.to_be_bytes());
                    expected += 1;
                }
                Take::Empty => injector.flush(&mut publisher, &mut tally),
                Take::Corrupt => panic!("corrupt"),
            }
        }
        assert!(!injector.is_waiting());
        assert_eq!(tally, Tally::default());
    }
}
