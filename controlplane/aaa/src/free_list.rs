//! A queue of free slots from which any slot can be taken at once.

/// The end of the list, and the mark of a slot that is not in it.
const END: u32 = u32::MAX;

/// Slots `0..count`, linked in the order they became free. Every operation is O(1).
#[derive(Debug)]
pub(crate) struct FreeList {
    /// Neighbours of slot `n` at `n`; the last entry is the sentinel that closes the ring.
    links: Vec<Links>,
    len: u32,
}

#[derive(Clone, Copy, Debug)]
struct Links {
    previous: u32,
    next: u32,
}

impl FreeList {
    /// All slots free, lowest first. At most `u32::MAX - 1` slots.
    pub(crate) fn new(count: u32) -> Self {
        let mut list = Self {
            links: vec![
                Links {
                    previous: END,
                    next: END
                };
                count as usize + 1
            ],
            len: 0,
        };
        list.links[count as usize] = Links {
            previous: count,
            next: count,
        };
        for slot in 0..count {
            list.push(slot);
        }
        list
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn contains(&self, slot: u32) -> bool {
        slot != self.sentinel() && self.links[slot as usize].next != END
    }

    /// Adds a slot behind all others. It must not be in the list.
    pub(crate) fn push(&mut self, slot: u32) {
        debug_assert!(!self.contains(slot));
        let sentinel = self.sentinel();
        let last = self.links[sentinel as usize].previous;
        self.links[slot as usize] = Links {
            previous: last,
            next: sentinel,
        };
        self.links[last as usize].next = slot;
        self.links[sentinel as usize].previous = slot;
        self.len += 1;
    }

    /// Takes the slot that has been free longest.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let first = self.links[self.sentinel() as usize].next;
        self.remove(first).then_some(first)
    }

    /// Takes this slot. Returns whether it was free.
    pub(crate) fn remove(&mut self, slot: u32) -> bool {
        if !self.contains(slot) {
            return false;
        }
        let Links { previous, next } = self.links[slot as usize];
        self.links[previous as usize].next = next;
        self.links[next as usize].previous = previous;
        self.links[slot as usize] = Links {
            previous: END,
            next: END,
        };
        self.len -= 1;
        true
    }

    fn sentinel(&self) -> u32 {
        // Fits: `new` takes at most u32::MAX - 1 slots.
        (self.links.len() - 1) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_back_in_the_order_they_became_free() {
        let mut list = FreeList::new(4);
        assert!(list.remove(2));
        assert!(!list.remove(2));
        assert_eq!((list.pop(), list.pop()), (Some(0), Some(1)));
        list.push(1);
        list.push(2);
        let rest: Vec<_> = std::iter::from_fn(|| list.pop()).collect();
        assert_eq!(rest, [3, 1, 2]);
        assert_eq!((list.pop(), list.len()), (None, 0));
    }

    #[test]
    fn list_without_slots_is_empty() {
        let mut list = FreeList::new(0);
        assert!(!list.contains(0));
        assert_eq!(list.pop(), None);
    }
}
