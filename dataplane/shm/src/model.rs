//! Model checks of the four protocols, run by loom over all interleavings and all values that a
//! relaxed load may return:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p bng-shm --release --lib model
//! ```
//!
//! The slot has fewer words here (`SLOT_WORDS`). Where a protocol promises "happens before", a loom
//! `UnsafeCell` is the witness: loom reports a race on it unless the promise is kept.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is a test")]

use crate::bell::Bell;
use crate::epoch::{Echo, Epoch};
use crate::ring::{Indices, RingSlot, Take, is_empty, push, take};
use crate::slot::{SLOT_WORDS, SessionState, Slot, SlotError};
use crate::sync::{AtomicU64, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// Checks `model` with at most `preemptions` involuntary switches between threads.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

// ---- slot ---------------------------------------------------------------------------------------

/// Reads once and checks that everything belongs to one version; returns the generation.
fn read_one_version(slot: &Slot) -> Option<u32> {
    match slot.read() {
        Ok((word, words)) => {
            let fill = match word.state {
                SessionState::Free => 0,
                SessionState::Negotiating => 10,
                SessionState::Forwarding => 20,
                SessionState::Closing => return Some(word.generation),
            } + u64::from(word.generation);
            assert_eq!(words, [fill; SLOT_WORDS], "{word:?}");
            assert_eq!(u32::from(word.owner), word.generation, "{word:?}");
            Some(word.generation)
        }
        Err(SlotError::Busy) => None,
        Err(SlotError::Corrupt) => panic!("a state word that nobody wrote"),
    }
}

fn slot_model(writes: impl Fn(&Slot) + Send + Sync + 'static, readers: usize, preemptions: usize) {
    check(preemptions, move || {
        let slot = Arc::new(Slot::new());
        let readers: Vec<_> = (0..readers)
            .map(|_| {
                let slot = Arc::clone(&slot);
                thread::spawn(move || {
                    let first = read_one_version(&slot);
                    let second = read_one_version(&slot);
                    if let (Some(first), Some(second)) = (first, second) {
                        assert!(first <= second, "an older session came back");
                    }
                })
            })
            .collect();
        writes(&slot);
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

#[test]
fn model_slot_create_is_seen_whole_by_two_readers() {
    slot_model(
        |slot| slot.write(1, SessionState::Negotiating, 1, &[11; SLOT_WORDS]),
        2,
        2,
    );
}

#[test]
fn model_slot_update_and_delete_are_seen_whole() {
    slot_model(
        |slot| {
            slot.write(1, SessionState::Negotiating, 1, &[11; SLOT_WORDS]);
            slot.write(1, SessionState::Forwarding, 1, &[21; SLOT_WORDS]);
            slot.withdraw();
            slot.write(2, SessionState::Free, 2, &[2; SLOT_WORDS]);
        },
        1,
        2,
    );
}

// ---- ring ---------------------------------------------------------------------------------------

/// Three items through a ring of `capacity`; each ring slot has a cell that its user must own alone.
fn ring_model(capacity: usize) {
    check(3, move || {
        let ring = Arc::new((
            Indices::new(),
            (0..capacity)
                .map(|_| RingSlot::<2>::new())
                .collect::<Vec<_>>(),
            (0..capacity)
                .map(|_| UnsafeCell::new(0u64))
                .collect::<Vec<_>>(),
        ));
        let producer = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let (indices, slots, cells) = &*ring;
                for item in 0..3u64 {
                    while push(indices, slots, 0, |words| {
                        // SAFETY: loom checks that nobody else uses the cell.
                        cells[item as usize % capacity].with_mut(|cell| unsafe { *cell = item });
                        words.set(0, 100 + item);
                        words.set(1, 200 + item);
                    })
                    .is_err()
                    {
                        thread::yield_now();
                    }
                }
            })
        };
        let (indices, slots, cells) = &*ring;
        for item in 0..3u64 {
            let got = loop {
                match take(indices, slots, |words| {
                    // SAFETY: loom checks that nobody writes the cell.
                    let witness = cells[item as usize % capacity].with(|cell| unsafe { *cell });
                    (witness, words.get(0), words.get(1))
                }) {
                    Take::Item(got) => break got,
                    Take::Empty => thread::yield_now(),
                    Take::Corrupt => panic!("nobody wrote a nonsense index"),
                }
            };
            assert_eq!(got, (item, 100 + item, 200 + item));
        }
        assert!(is_empty(indices));
        producer.join().unwrap();
    });
}

#[test]
fn model_ring_of_one_hands_items_over_whole_and_in_order() {
    ring_model(1);
}

#[test]
fn model_ring_of_two_hands_items_over_whole_and_in_order() {
    ring_model(2);
}

// ---- epoch --------------------------------------------------------------------------------------

/// A table entry: while `visible`, workers may use what lies in `payload`.
struct Entry {
    epoch: Epoch,
    echo: Echo,
    visible: AtomicU64,
    payload: UnsafeCell<u64>,
}

impl Entry {
    fn visible() -> Arc<Self> {
        Arc::new(Self {
            epoch: Epoch::new(),
            echo: Echo::new(),
            visible: AtomicU64::new(1),
            payload: UnsafeCell::new(7),
        })
    }

    fn look_up_and_use(&self) {
        if self.visible.load(Ordering::Relaxed) == 1 {
            // SAFETY: loom checks that nobody writes it meanwhile.
            let value = self.payload.with(|payload| unsafe { *payload });
            assert_eq!(value, 7, "used after its reuse");
        }
    }

    /// Control: withdraw, advance, and reuse as soon as (in this interleaving) that is allowed.
    fn withdraw_and_reuse(&self) {
        self.visible.store(0, Ordering::Relaxed);
        let token = self.epoch.advance();
        for _ in 0..3 {
            if self.echo.passed(token) {
                // SAFETY: loom checks that no worker uses it meanwhile.
                self.payload.with_mut(|payload| unsafe { *payload = 8 });
                return;
            }
            thread::yield_now();
        }
    }
}

#[test]
fn model_epoch_running_worker_is_waited_for() {
    check(3, || {
        let entry = Entry::visible();
        entry.echo.enter(&entry.epoch);
        let worker = {
            let entry = Arc::clone(&entry);
            thread::spawn(move || {
                for _ in 0..2 {
                    entry.look_up_and_use();
                    entry.echo.quiescent(entry.echo.see(&entry.epoch));
                }
                entry.look_up_and_use();
            })
        };
        entry.withdraw_and_reuse();
        worker.join().unwrap();
    });
}

/// A worker that has looked the entry up in one loop and uses it in a later one, as a run that is held does. `quiescent` is
/// its quiescent point; it gets what is held.
fn holding_worker(quiescent: fn(&Entry, &mut Option<Held>)) {
    check(3, move || {
        let entry = Entry::visible();
        entry.echo.enter(&entry.epoch);
        let worker = {
            let entry = Arc::clone(&entry);
            thread::spawn(move || {
                let mut held = None;
                for _ in 0..2 {
                    if entry.visible.load(Ordering::Relaxed) == 1 {
                        held = Some(Held(Arc::clone(&entry)));
                    }
                    quiescent(&entry, &mut held);
                }
                drop(held);
            })
        };
        entry.withdraw_and_reuse();
        worker.join().unwrap();
    });
}

/// Uses the entry when it is let go.
struct Held(Arc<Entry>);

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: loom checks that nobody writes it meanwhile.
        let value = self.0.payload.with(|payload| unsafe { *payload });
        assert_eq!(value, 7, "used after its reuse");
    }
}

#[test]
fn model_epoch_what_a_worker_holds_over_loops_is_waited_for() {
    holding_worker(|entry, held| {
        let seen = entry.echo.see(&entry.epoch);
        if seen.is_new() {
            drop(held.take());
        }
        entry.echo.quiescent(seen);
    });
}

#[test]
#[should_panic = "Causality violation"]
fn model_epoch_echo_of_a_later_epoch_than_the_one_let_go_for_is_noticed() {
    holding_worker(|entry, held| {
        if entry.echo.see(&entry.epoch).is_new() {
            drop(held.take());
        }
        entry.echo.quiescent(entry.echo.see(&entry.epoch));
    });
}

#[test]
fn model_epoch_worker_may_come_and_go_at_any_moment() {
    check(3, || {
        let entry = Entry::visible();
        let worker = {
            let entry = Arc::clone(&entry);
            thread::spawn(move || {
                entry.echo.enter(&entry.epoch);
                entry.look_up_and_use();
                entry.echo.leave();
            })
        };
        entry.withdraw_and_reuse();
        worker.join().unwrap();
    });
}

// ---- bell ---------------------------------------------------------------------------------------

/// The kernel's futex: the value is compared under the lock that a waker takes.
struct Futex {
    bucket: Mutex<()>,
    waiters: Condvar,
}

impl Futex {
    fn wait_while_asleep(&self, bell: &Bell) {
        let mut bucket = self.bucket.lock().unwrap();
        while bell.is_asleep() {
            bucket = self.waiters.wait(bucket).unwrap();
        }
    }

    fn wake(&self) {
        let _bucket = self.bucket.lock().unwrap();
        self.waiters.notify_one();
    }
}

struct Bells {
    bell: Bell,
    futex: Futex,
    rings: Vec<(Indices, Vec<RingSlot<1>>)>,
}

/// `ringers` threads push `items` items each; the sleeper takes all of them, sleeping in between.
/// A lost wake-up is a deadlock, which loom reports.
fn bell_model(ringers: usize, items: u64, preemptions: usize) {
    check(preemptions, move || {
        let shared = Arc::new(Bells {
            bell: Bell::new(),
            futex: Futex {
                bucket: Mutex::new(()),
                waiters: Condvar::new(),
            },
            rings: (0..ringers)
                .map(|_| (Indices::new(), (0..4).map(|_| RingSlot::new()).collect()))
                .collect(),
        });
        let threads: Vec<_> = (0..ringers)
            .map(|ringer| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let (indices, slots) = &shared.rings[ringer];
                    for item in 0..items {
                        assert!(push(indices, slots, 0, |words| words.set(0, item)).is_ok());
                        if shared.bell.must_wake() {
                            shared.futex.wake();
                        }
                    }
                })
            })
            .collect();
        let mut left = ringers as u64 * items;
        while left > 0 {
            for (indices, slots) in &shared.rings {
                while let Take::Item(_) = take(indices, slots, |words| words.get(0)) {
                    left -= 1;
                }
            }
            let idle = || left > 0 && shared.rings.iter().all(|(indices, _)| is_empty(indices));
            if shared.bell.may_sleep(idle) {
                shared.futex.wait_while_asleep(&shared.bell);
                shared.bell.awake();
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn model_bell_wakes_for_each_of_three_items() {
    bell_model(1, 3, 3);
}

#[test]
fn model_bell_wakes_for_either_of_two_ringers() {
    bell_model(2, 1, 2);
}
