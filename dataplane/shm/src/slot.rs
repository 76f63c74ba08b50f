//! The session slot: one cache line that control writes and workers read.
//!
//! INV-SLOT-1: every field of a slot is stored before the state word that makes it visible, and a
//! reader loads the state word before and after the fields (a sequence lock whose writer is unique,
//! guarded by the control lock). A reader therefore never mixes two versions of a session.
//!
//! State word: `generation:32 | version:16 | state:8 | owner:8`. The version is odd while control
//! writes; the generation changes when the slot passes to another session.

use crate::sync::{AtomicU64, Ordering, order};

/// Words in a slot behind its state word.
pub(crate) const SLOT_WORDS: usize = 7;

/// How often a reader looks again when control is in the middle of a write. A write is seven stores;
/// a control process that died inside one leaves the slot unreadable until it restarts.
const READ_TRIES: usize = 64;

/// What a worker may do with the frames of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SessionState {
    /// The slot holds no session.
    Free = 0,
    /// PPP control frames are punted, data is dropped (`session_not_open`).
    Negotiating = 1,
    /// Data is forwarded as well.
    Forwarding = 2,
    /// Withdrawn: nothing is forwarded or punted; control waits for the epoch before reuse.
    Closing = 3,
}

impl SessionState {
    fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::Free),
            1 => Some(Self::Negotiating),
            2 => Some(Self::Forwarding),
            3 => Some(Self::Closing),
            _ => None,
        }
    }
}

/// A state word, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateWord {
    /// Changes whenever the slot passes to another session.
    pub generation: u32,
    /// What workers may do.
    pub state: SessionState,
    /// Index of the worker that owns the session.
    pub owner: u8,
}

/// Why a slot could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotError {
    /// Control was writing during every attempt (it may have died inside a write).
    Busy,
    /// The state word holds a value no version of this contract writes.
    Corrupt,
}

/// One slot: the state word and seven payload words, exactly one cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Slot {
    state: AtomicU64,
    words: [AtomicU64; SLOT_WORDS],
}

const fn pack(generation: u32, version: u16, state: u8, owner: u8) -> u64 {
    (generation as u64) << 32 | (version as u64) << 16 | (state as u64) << 8 | owner as u64
}

const fn version_of(word: u64) -> u16 {
    (word >> 16) as u16
}

fn unpack(word: u64) -> Option<StateWord> {
    Some(StateWord {
        generation: (word >> 32) as u32,
        state: SessionState::from_bits((word >> 8) as u8)?,
        owner: word as u8,
    })
}

impl Slot {
    /// A free slot (memory fresh from the kernel is all zeroes and equals this one).
    #[cfg(any(test, loom))]
    #[must_use]
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Reads a consistent copy of the slot.
    ///
    /// # Errors
    /// [`SlotError`] when no consistent copy was to be had; the caller drops the frame by name.
    #[inline]
    pub(crate) fn read(&self) -> Result<(StateWord, [u64; SLOT_WORDS]), SlotError> {
        for _ in 0..READ_TRIES {
            let before = self.state.load(order::OBSERVE);
            if version_of(before) & 1 == 0 {
                let words = std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
                order::read_end_fence();
                if self.state.load(Ordering::Relaxed) == before {
                    return unpack(before)
                        .map(|state| (state, words))
                        .ok_or(SlotError::Corrupt);
                }
            }
            #[cfg(loom)]
            loom::thread::yield_now();
            #[cfg(not(loom))]
            std::hint::spin_loop();
        }
        Err(SlotError::Busy)
    }

    /// The state word alone, for a check that needs no other field.
    ///
    /// # Errors
    /// [`SlotError::Corrupt`] for a state no version of this contract writes.
    #[inline]
    pub(crate) fn state(&self) -> Result<StateWord, SlotError> {
        unpack(self.state.load(order::OBSERVE)).ok_or(SlotError::Corrupt)
    }

    /// Whether control stopped in the middle of a write.
    pub(crate) fn is_torn(&self) -> bool {
        version_of(self.state.load(Ordering::Relaxed)) & 1 == 1
    }

    /// Writes all fields and makes them visible with `state`. Control only, one writer at a time
    /// (the caller holds the control lock).
    pub(crate) fn write(
        &self,
        generation: u32,
        state: SessionState,
        owner: u8,
        words: &[u64; SLOT_WORDS],
    ) {
        let old = self.state.load(Ordering::Relaxed);
        let version = version_of(old) | 1;
        self.state.store(
            old & !0xffff_0000 | u64::from(version) << 16,
            Ordering::Relaxed,
        );
        order::write_begin_fence();
        for (word, value) in self.words.iter().zip(words) {
            word.store(*value, Ordering::Relaxed);
        }
        self.state.store(
            pack(generation, version.wrapping_add(1), state as u8, owner),
            order::PUBLISH,
        );
    }

    /// Changes the state alone; the fields stay. Control only.
    pub(crate) fn set_state(&self, state: SessionState) {
        let old = self.state.load(Ordering::Relaxed);
        let version = (version_of(old) | 1).wrapping_add(1);
        self.state.store(
            pack((old >> 32) as u32, version, state as u8, old as u8),
            order::PUBLISH,
        );
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_one_cache_line() {
        assert_eq!(size_of::<Slot>(), 64);
    }

    #[test]
    fn a_written_slot_reads_back_whole() {
        let slot = Slot::new();
        slot.write(7, SessionState::Forwarding, 3, &[1, 2, 3, 4, 5, 6, 7]);
        let (state, words) = slot.read().unwrap();
        assert_eq!(
            state,
            StateWord {
                generation: 7,
                state: SessionState::Forwarding,
                owner: 3
            }
        );
        assert_eq!(words, [1, 2, 3, 4, 5, 6, 7]);
        slot.set_state(SessionState::Closing);
        let (state, words) = slot.read().unwrap();
        assert_eq!(
            state,
            StateWord {
                generation: 7,
                state: SessionState::Closing,
                owner: 3
            }
        );
        assert_eq!(words, [1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn a_write_cut_short_is_busy_not_half_read() {
        let slot = Slot::new();
        slot.write(7, SessionState::Forwarding, 3, &[1; 7]);
        let word = slot.state.load(Ordering::Relaxed);
        slot.state.store(word | 1 << 16, Ordering::Relaxed);
        slot.words[0].store(99, Ordering::Relaxed);
        assert!(slot.is_torn());
        assert_eq!(slot.read(), Err(SlotError::Busy));
        slot.write(8, SessionState::Negotiating, 1, &[2; 7]);
        assert_eq!(slot.read().unwrap().1, [2; 7]);
    }

    #[test]
    fn an_unknown_state_is_named_corrupt() {
        let slot = Slot::new();
        slot.state.store(pack(1, 2, 9, 0), Ordering::Relaxed);
        assert_eq!(slot.read(), Err(SlotError::Corrupt));
        assert_eq!(slot.state(), Err(SlotError::Corrupt));
    }
}
