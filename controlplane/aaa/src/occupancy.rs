//! Which slots of a pool are taken, and whom a slot was given to last.

use std::collections::HashMap;
use std::sync::Arc;

use crate::free_list::FreeList;

/// Slots `0..count`. Every operation is O(1).
///
/// A slot remembers its last subscriber until somebody else needs it, so a subscriber that comes back finds what it had
/// while the pool has others to give.
#[derive(Debug)]
pub(crate) struct Occupancy {
    free: FreeList,
    /// The last subscriber of each slot.
    subscribers: Vec<Option<Arc<[u8]>>>,
    /// The last slot of each subscriber; the reverse of `subscribers`, so it cannot grow beyond it.
    last_slots: HashMap<Arc<[u8]>, u32>,
}

impl Occupancy {
    /// All slots free. At most `u32::MAX - 1` slots.
    pub(crate) fn new(count: u32) -> Self {
        Self {
            free: FreeList::new(count),
            subscribers: vec![None; count as usize],
            last_slots: HashMap::new(),
        }
    }

    pub(crate) fn total(&self) -> u32 {
        self.subscribers.len() as u32
    }

    pub(crate) fn used(&self) -> u32 {
        self.total() - self.free.len()
    }

    /// Takes the slot the subscriber had last, if it is free.
    pub(crate) fn allocate_sticky(&mut self, subscriber: &[u8]) -> Option<u32> {
        let slot = *self.last_slots.get(subscriber)?;
        self.free.remove(slot).then_some(slot)
    }

    /// Takes the slot that has been free longest.
    pub(crate) fn allocate_oldest(&mut self, subscriber: &[u8]) -> Option<u32> {
        let slot = self.free.pop()?;
        self.remember(slot, subscriber);
        Some(slot)
    }

    /// Takes this slot; false when it is not free.
    pub(crate) fn reserve(&mut self, slot: u32, subscriber: &[u8]) -> bool {
        if !self.free.remove(slot) {
            return false;
        }
        self.remember(slot, subscriber);
        true
    }

    /// Gives this slot back; false when it is free.
    pub(crate) fn release(&mut self, slot: u32) -> bool {
        if self.free.contains(slot) {
            return false;
        }
        self.free.push(slot);
        true
    }

    /// Who has this slot; `None` when it is free.
    pub(crate) fn holder(&self, slot: u32) -> Option<&Arc<[u8]>> {
        let last = self.subscribers.get(slot as usize)?.as_ref();
        last.filter(|_| !self.free.contains(slot))
    }

    /// How many subscribers are remembered.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        self.last_slots.len()
    }

    /// Makes the slot the subscriber's last one, and forgets whom it was kept for.
    fn remember(&mut self, slot: u32, subscriber: &[u8]) {
        let subscriber: Arc<[u8]> = subscriber.into();
        let former = self.subscribers[slot as usize].replace(Arc::clone(&subscriber));
        if let Some(former) = former
            && self.last_slots.get(&former) == Some(&slot)
        {
            self.last_slots.remove(&former);
        }
        self.last_slots.insert(subscriber, slot);
    }
}
