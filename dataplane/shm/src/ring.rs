//! Single-producer, single-consumer rings of fixed-size slots in shared memory.
//!
//! INV-RING-1: an item's words are stored before the tail that hands it over, and loaded before the
//! head that gives its slot back. INV-RING-2: an index that comes from the other process is checked
//! before it is used; nonsense empties the ring and is counted, it never reads outside it.
//!
//! Indices run freely over 64 bits; the slot is the index modulo the capacity (a power of two).

use crate::sync::{AtomicU64, Ordering, fault_point, order};

/// One index alone on its pair of cache lines, so that the two sides never write the same line.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Index(AtomicU64);

#[cfg(not(loom))]
crate::shared::shared!(Index, Index { 0 });

/// The two indices of a ring.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Indices {
    /// Next slot the producer fills; the producer alone stores it.
    tail: Index,
    /// Next slot the consumer takes; the consumer alone stores it.
    head: Index,
}

#[cfg(not(loom))]
crate::shared::shared!(Indices, Indices { tail, head });

/// A slot of `W` 64-bit words.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RingSlot<const W: usize>([AtomicU64; W]);

#[cfg(not(loom))]
crate::shared::shared!(const W: usize => RingSlot<W>, RingSlot { 0 });

impl Indices {
    /// An empty ring (all zeroes).
    #[cfg(any(test, loom))]
    #[must_use]
    pub(crate) fn new() -> Self {
        Self {
            tail: Index(AtomicU64::new(0)),
            head: Index(AtomicU64::new(0)),
        }
    }

    /// Items in the ring as an onlooker sees it (for gauges; at most `capacity`).
    #[must_use]
    pub(crate) fn fill(&self, capacity: usize) -> usize {
        let head = self.head.0.load(Ordering::Relaxed);
        let tail = self.tail.0.load(Ordering::Relaxed);
        usize::try_from(tail.wrapping_sub(head))
            .unwrap_or(usize::MAX)
            .min(capacity)
    }
}

impl<const W: usize> RingSlot<W> {
    /// An empty slot.
    #[cfg(any(test, loom))]
    #[must_use]
    pub(crate) fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// The ring had no room; nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// What a consumer found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take<T> {
    /// One item.
    Item(T),
    /// Nothing there.
    Empty,
    /// The producer's index was nonsense; the ring was emptied. Count it by name.
    Corrupt,
}

/// Pushes one item whose words `fill` stores. `reserve` slots are left for others (0 for all).
///
/// Only the ring's one producer calls this.
pub(crate) fn push<const W: usize>(
    indices: &Indices,
    slots: &[RingSlot<W>],
    reserve: usize,
    fill: impl FnOnce(&WordsOut<'_, W>),
) -> Result<(), Full> {
    let tail = indices.tail.0.load(Ordering::Relaxed);
    let head = indices.head.0.load(order::RING_RECLAIM);
    let used = tail.wrapping_sub(head);
    // A head beyond the tail is nonsense from the other side: treated as full, it can't be trusted.
    if used >= slots.len().saturating_sub(reserve) as u64 {
        return Err(Full);
    }
    let slot = &slots[tail as usize & (slots.len() - 1)];
    fill(&WordsOut(&slot.0));
    fault_point();
    indices.tail.0.store(tail.wrapping_add(1), order::RING_GIVE);
    Ok(())
}

/// Takes one item, read by `drain`. Only the ring's one consumer calls this.
pub(crate) fn take<const W: usize, T>(
    indices: &Indices,
    slots: &[RingSlot<W>],
    drain: impl FnOnce(&WordsIn<'_, W>) -> T,
) -> Take<T> {
    let head = indices.head.0.load(Ordering::Relaxed);
    let tail = indices.tail.0.load(order::RING_TAKE);
    let used = tail.wrapping_sub(head);
    if used == 0 {
        return Take::Empty;
    }
    if used > slots.len() as u64 {
        indices.head.0.store(tail, order::RING_RETURN);
        return Take::Corrupt;
    }
    let item = drain(&WordsIn(&slots[head as usize & (slots.len() - 1)].0));
    fault_point();
    indices
        .head
        .0
        .store(head.wrapping_add(1), order::RING_RETURN);
    Take::Item(item)
}

/// Whether the consumer would find something.
pub(crate) fn is_empty(indices: &Indices) -> bool {
    indices.head.0.load(Ordering::Relaxed) == indices.tail.0.load(order::RING_TAKE)
}

/// The words of a slot being filled.
pub(crate) struct WordsOut<'a, const W: usize>(&'a [AtomicU64; W]);

impl<const W: usize> WordsOut<'_, W> {
    /// Stores word `at`.
    pub(crate) fn set(&self, at: usize, value: u64) {
        self.0[at].store(value, Ordering::Relaxed);
    }

    /// Stores bytes from word `at` on; the last word is filled up with zeroes.
    /// The caller has checked that they fit.
    pub(crate) fn set_bytes(&self, at: usize, bytes: &[u8]) {
        for (word, chunk) in self.0[at..].iter().zip(bytes.chunks(8)) {
            let mut raw = [0; 8];
            raw[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(raw), Ordering::Relaxed);
        }
    }
}

/// The words of a slot being read.
pub(crate) struct WordsIn<'a, const W: usize>(&'a [AtomicU64; W]);

impl<const W: usize> WordsIn<'_, W> {
    /// Loads word `at`.
    pub(crate) fn get(&self, at: usize) -> u64 {
        self.0[at].load(Ordering::Relaxed)
    }

    /// Loads bytes from word `at` on into `out`, as many as the slot has at most; returns how many.
    pub(crate) fn get_bytes(&self, at: usize, out: &mut [u8]) -> usize {
        let mut done = 0;
        for (word, chunk) in self.0[at..].iter().zip(out.chunks_mut(8)) {
            let raw = word.load(Ordering::Relaxed).to_le_bytes();
            chunk.copy_from_slice(&raw[..chunk.len()]);
            done += chunk.len();
        }
        done
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn ring(n: usize) -> (Indices, Vec<RingSlot<2>>) {
        (Indices::new(), (0..n).map(|_| RingSlot::new()).collect())
    }

    #[test]
    fn items_come_out_in_order_and_full_is_said() {
        for n in [1, 2, 4, 8] {
            let (indices, slots) = ring(n);
            let mut model = VecDeque::new();
            for i in 0..100u64 {
                let pushed = push(&indices, &slots, 0, |w| w.set(0, i));
                assert_eq!(pushed.is_ok(), model.len() < n);
                if pushed.is_ok() {
                    model.push_back(i);
                }
                if i % 3 == 0 {
                    let expect = model.pop_front().map_or(Take::Empty, Take::Item);
                    assert_eq!(take(&indices, &slots, |w| w.get(0)), expect);
                }
                assert_eq!(indices.fill(n), model.len());
            }
        }
    }

    #[test]
    fn a_reserve_is_kept_free() {
        let (indices, slots) = ring(8);
        for i in 0..5 {
            assert!(push(&indices, &slots, 3, |w| w.set(0, i)).is_ok());
        }
        assert_eq!(push(&indices, &slots, 3, |_| ()), Err(Full));
        assert!(push(&indices, &slots, 0, |_| ()).is_ok());
    }

    #[test]
    fn a_nonsense_tail_empties_the_ring_and_says_so() {
        let (indices, slots) = ring(4);
        push(&indices, &slots, 0, |w| w.set(0, 1)).unwrap();
        indices.tail.0.store(1 << 40, Ordering::Relaxed);
        assert_eq!(take(&indices, &slots, |w| w.get(0)), Take::Corrupt);
        assert_eq!(take(&indices, &slots, |w| w.get(0)), Take::Empty);
    }

    #[test]
    fn a_nonsense_head_refuses_items() {
        let (indices, slots) = ring(4);
        indices.head.0.store(9, Ordering::Relaxed);
        assert_eq!(push(&indices, &slots, 0, |_| ()), Err(Full));
    }

    #[test]
    fn bytes_survive_any_length() {
        let (indices, slots) = ring(1);
        for len in 0..=8usize {
            let bytes: Vec<u8> = (1..=len as u8).collect();
            push(&indices, &slots, 0, |w| w.set_bytes(1, &bytes)).unwrap();
            let mut out = vec![0; len];
            let got = take(&indices, &slots, |w| w.get_bytes(1, &mut out));
            assert_eq!(got, Take::Item(len));
            assert_eq!(out, bytes);
        }
    }
}
