//! The session slot: one cache line that control writes and workers read.
//!
//! INV-SLOT-1: every field of a slot is stored before the state word that makes it visible, and a
//! reader loads the state word before and after the fields (a sequence lock whose writer is unique,
//! guarded by the control lock). A reader therefore never mixes two versions of a session.
//!
//! State word: `generation:32 | version:16 | state:8 | owner:8`. The version is odd while control
//! writes; the generation changes when the slot passes to another session.

use crate::sync::{AtomicU64, Ordering, fault_point, order};

/// Words in a slot behind its state word.
pub(crate) const SLOT_WORDS: usize = if cfg!(loom) { 2 } else { 7 };

/// How often a reader looks again when control is in the middle of a write. A write is seven stores;
/// a control process that died inside one leaves the slot unreadable until it restarts.
const READ_TRIES: usize = if cfg!(loom) { 2 } else { 64 };

/// What a worker may do with the frames of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
    #[inline]
    pub(crate) const fn from_bits(bits: u8) -> Option<Self> {
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

#[cfg(not(loom))]
crate::shared::shared!(Slot, Slot { state, words });

const fn pack(generation: u32, version: u16, state: u8, owner: u8) -> u64 {
    (generation as u64) << 32 | (version as u64) << 16 | (state as u64) << 8 | owner as u64
}

const fn version_of(word: u64) -> u16 {
    (word >> 16) as u16
}

/// The state in a state word; `None` when it is a value no version of this contract writes.
#[inline]
pub(crate) const fn state_of(word: u64) -> Option<SessionState> {
    SessionState::from_bits((word >> 8) as u8)
}

/// The generation in a state word.
#[inline]
pub(crate) const fn generation_of(word: u64) -> u32 {
    (word >> 32) as u32
}

#[inline]
pub(crate) fn unpack(word: u64) -> Option<StateWord> {
    Some(StateWord {
        generation: generation_of(word),
        state: state_of(word)?,
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
    #[cfg(any(test, loom))]
    pub(crate) fn read(&self) -> Result<(StateWord, [u64; SLOT_WORDS]), SlotError> {
        let (state, words) = self.read_raw()?;
        unpack(state)
            .map(|state| (state, words))
            .ok_or(SlotError::Corrupt)
    }

    /// Reads a consistent copy of the state word and the first `N` words, whatever they say.
    ///
    /// # Errors
    /// [`SlotError::Busy`].
    #[inline(always)]
    pub(crate) fn read_raw<const N: usize>(&self) -> Result<(u64, [u64; N]), SlotError> {
        match self.try_read() {
            Some(copy) => Ok(copy),
            None => self.read_again(),
        }
    }

    /// One attempt.
    #[inline(always)]
    fn try_read<const N: usize>(&self) -> Option<(u64, [u64; N])> {
        const { assert!(N <= SLOT_WORDS) }
        let before = self.state.load(order::OBSERVE);
        if version_of(before) & 1 != 0 {
            return None;
        }
        let words = std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
        order::read_end_fence();
        (self.state.load(Ordering::Relaxed) == before).then_some((before, words))
    }

    /// As [`Self::read_raw`], if the first attempt succeeds and the state is `Forwarding` with this owner: what a worker
    /// finds nearly always, so all of it is one comparison.
    #[inline(always)]
    pub(crate) fn read_open<const N: usize>(&self, owner: u8) -> Option<(u64, [u64; N])> {
        const { assert!(N <= SLOT_WORDS) }
        let before = self.state.load(order::OBSERVE);
        // State, owner, and the version's lowest bit, which says that control writes.
        if before & 0x1_ffff != (SessionState::Forwarding as u64) << 8 | u64::from(owner) {
            return None;
        }
        let words = std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed));
        order::read_end_fence();
        (self.state.load(Ordering::Relaxed) == before).then_some((before, words))
    }

    /// The other attempts: control was writing during the first one.
    #[cold]
    fn read_again<const N: usize>(&self) -> Result<(u64, [u64; N]), SlotError> {
        for _ in 1..READ_TRIES {
            #[cfg(loom)]
            loom::thread::yield_now();
            #[cfg(not(loom))]
            std::hint::spin_loop();
            if let Some(copy) = self.try_read() {
                return Ok(copy);
            }
        }
        Err(SlotError::Busy)
    }

    /// The generation in the state word. It is there even when a write was cut short (the mark of a
    /// write keeps it) or when the rest of the word is nonsense. Control only.
    pub(crate) fn generation(&self) -> u32 {
        generation_of(self.state.load(Ordering::Relaxed))
    }

    /// Whether control stopped in the middle of a write.
    pub(crate) fn is_torn(&self) -> bool {
        version_of(self.state.load(Ordering::Relaxed)) & 1 == 1
    }

    /// Writes all fields and makes them visible with `state`. Control only, one writer at a time
    /// (the caller holds the control lock). A write that was cut short is simply written over.
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
        fault_point();
        for (word, value) in self.words.iter().zip(words) {
            word.store(*value, Ordering::Relaxed);
            fault_point();
        }
        self.state.store(
            pack(generation, version.wrapping_add(1), state as u8, owner),
            order::PUBLISH,
        );
        fault_point();
    }

    /// Leaves the slot as a death in the middle of a write does.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn tear(&self) {
        let word = self.state.load(Ordering::Relaxed);
        self.state.store(word | 1 << 16, Ordering::Relaxed);
        self.words[0].store(u64::MAX, Ordering::Relaxed);
    }

    /// Makes the entry `Closing`; the fields stay, except those of a write that was cut short, which
    /// are a mixture of two sessions and become zero. Control only.
    pub(crate) fn withdraw(&self) {
        let old = self.state.load(Ordering::Relaxed);
        let (generation, owner) = ((old >> 32) as u32, old as u8);
        if self.is_torn() {
            self.write(generation, SessionState::Closing, owner, &[0; SLOT_WORDS]);
            return;
        }
        let version = version_of(old).wrapping_add(2);
        self.state.store(
            pack(generation, version, SessionState::Closing as u8, owner),
            order::PUBLISH,
        );
        fault_point();
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
        slot.withdraw();
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
        slot.tear();
        assert!(slot.is_torn());
        assert_eq!(slot.read(), Err(SlotError::Busy));
        assert_eq!(slot.generation(), 7);
        slot.withdraw();
        let (state, words) = slot.read().unwrap();
        assert_eq!(
            (state.generation, state.state, state.owner, words),
            (7, SessionState::Closing, 3, [0; 7]),
            "no field of the cut write stays"
        );
        slot.write(8, SessionState::Negotiating, 1, &[2; 7]);
        assert_eq!(slot.read().unwrap().1, [2; 7]);
    }

    #[test]
    fn only_a_whole_forwarding_slot_of_the_owner_is_read_as_open() {
        let slot = Slot::new();
        for state in [
            SessionState::Free,
            SessionState::Negotiating,
            SessionState::Closing,
        ] {
            slot.write(7, state, 3, &[1; 7]);
            assert_eq!(slot.read_open::<5>(3), None);
        }
        slot.write(7, SessionState::Forwarding, 3, &[1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(slot.read_open::<5>(2), None);
        assert_eq!(
            slot.read_open(3)
                .map(|(state, words)| (generation_of(state), words)),
            Some((7, [1, 2, 3, 4, 5]))
        );
        slot.tear();
        assert_eq!(slot.read_open::<5>(3), None);
    }

    #[test]
    fn the_version_wraps_without_a_torn_look() {
        let slot = Slot::new();
        slot.state.store(pack(1, 0xfffe, 2, 0), Ordering::Relaxed);
        slot.withdraw();
        assert_eq!(slot.read().unwrap().0.state, SessionState::Closing);
        slot.state.store(pack(1, 0xfffe, 2, 0), Ordering::Relaxed);
        slot.write(2, SessionState::Forwarding, 0, &[5; 7]);
        assert_eq!(slot.read().unwrap().1, [5; 7]);
    }

    #[test]
    fn an_unknown_state_is_named_corrupt() {
        let slot = Slot::new();
        slot.state.store(pack(1, 2, 9, 0), Ordering::Relaxed);
        assert_eq!(slot.read(), Err(SlotError::Corrupt));
        assert_eq!(slot.generation(), 1);
    }
}
