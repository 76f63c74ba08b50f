//! The forward table: (session, protocol, inside port) to outside port, private to one worker.
//!
//! Buckets of one cache line: four keys, then four values. A key lives in one of [`PROBE`] consecutive buckets from
//! its home on; look-up and insert have this same bound (INV-TABLE-1), so a look-up that finds nothing is right and
//! neither ever walks further. The hash is seeded, since inside ports are the subscriber's choice.

use bng_shm::{NatProtocol, PrivateTable, Reverse, SlotIndex};
use zerocopy::FromZeros;

/// Buckets a key may live in (INV-TABLE-1).
const PROBE: usize = 8;
const LANES: usize = 4;

/// A mapping's key: `1 | generation:9 | slot:20 | protocol:2 | inside port:16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key(u64);

const USED: u64 = 1 << 63;
/// The part of a key that is hashed: a frame's parser knows it before the session's generation is read.
const HASHED: u64 = (1 << 38) - 1;

impl Key {
    #[inline]
    pub(crate) const fn new(
        slot: SlotIndex,
        generation: u16,
        protocol: NatProtocol,
        port: u16,
    ) -> Self {
        Self(
            USED | (generation as u64) << 38
                | ((slot.0 & 0xf_ffff) as u64) << 18
                | (protocol as u64) << 16
                | port as u64,
        )
    }

    pub(crate) const EMPTY: Self = Self(0);

    /// A key made without a generation, with one.
    #[inline(always)]
    pub(crate) const fn of_generation(self, generation: u16) -> Self {
        Self(self.0 | (generation as u64) << 38)
    }

    pub(crate) const fn slot(self) -> SlotIndex {
        SlotIndex((self.0 >> 18) as u32 & 0xf_ffff)
    }

    pub(crate) const fn generation(self) -> u16 {
        (self.0 >> 38) as u16 & 0x1ff
    }

    pub(crate) const fn protocol(self) -> NatProtocol {
        match self.0 >> 16 & 3 {
            0 => NatProtocol::Tcp,
            1 => NatProtocol::Udp,
            _ => NatProtocol::Icmp,
        }
    }

    pub(crate) const fn inside_port(self) -> u16 {
        self.0 as u16
    }
}

/// A mapping's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// Dense index of the public address.
    pub(crate) address_index: u16,
    /// Port (or ICMP identifier) on the public address.
    pub(crate) outside_port: u16,
    /// Tick of the last outbound packet, as in the reverse entry.
    pub(crate) last_seen: u16,
}

/// Set in the value of every mapping, so that none is zero.
const PRESENT: u64 = 1 << 48;

impl Mapping {
    #[inline]
    const fn pack(self) -> u64 {
        PRESENT
            | (self.address_index as u64) << 32
            | (self.last_seen as u64) << 16
            | self.outside_port as u64
    }

    #[inline]
    const fn unpack(word: u64) -> Self {
        Self {
            address_index: (word >> 32) as u16,
            last_seen: (word >> 16) as u16,
            outside_port: word as u16,
        }
    }

    /// The reverse entry that belongs to it.
    pub(crate) const fn reverse_of(key: Key, last_seen: u16) -> Reverse {
        Reverse {
            generation: key.generation(),
            slot: key.slot(),
            inside_port: key.inside_port(),
            last_seen,
            inbound_seen: false,
            closing: false,
        }
    }
}

#[derive(Debug, Clone, Copy, FromZeros)]
#[repr(C, align(64))]
struct Bucket {
    keys: [u64; LANES],
    values: [u64; LANES],
}

impl Bucket {
    /// The value of a key, 0 when it is not here. All four comparisons at once and no branch: which lane it is would be
    /// a guess.
    #[inline(always)]
    fn value_of(&self, key: Key) -> u64 {
        let mut found = 0;
        for (other, value) in self.keys.iter().zip(&self.values) {
            found |= value & 0u64.wrapping_sub(u64::from(*other == key.0));
        }
        found
    }
}

/// Both halves of a product in one.
#[inline(always)]
const fn fold(a: u64, b: u64) -> u64 {
    let wide = a as u128 * b as u128;
    wide as u64 ^ (wide >> 64) as u64
}

/// What an insert took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// A free lane.
    New,
    /// The lane of a mapping whose session is gone.
    InPlaceOfDead,
}

/// No room for the key within its bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoom;

/// The table.
#[derive(Debug)]
pub(crate) struct ForwardTable {
    buckets: PrivateTable<Bucket>,
    mask: usize,
    secret: [u64; 2],
    len: u32,
}

impl ForwardTable {
    /// Room for `mappings` at half load.
    pub(crate) fn new(mappings: u32, seed: u64) -> Self {
        let count = (mappings as usize / (LANES / 2))
            .next_power_of_two()
            .max(PROBE);
        Self {
            buckets: PrivateTable::zeroed(count),
            mask: count - 1,
            // Odd, so that no bit of a key is lost in the multiplication.
            secret: [seed, seed.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15 | 1],
            len: 0,
        }
    }

    /// Mappings in the table.
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// Buckets in the table, a power of two.
    pub(crate) fn bucket_count(&self) -> usize {
        self.buckets.len()
    }

    /// The first bucket of a key; the generation in it does not matter.
    #[inline]
    pub(crate) fn home(&self, key: Key) -> u32 {
        // One folded multiplication hides the secret, a second one spreads what keys have in common.
        let [mask, factor] = self.secret;
        let mixed = fold((key.0 & HASHED) ^ mask, factor);
        (fold(mixed, 0x9fb2_1c65_1e98_df25) as usize & self.mask) as u32
    }

    /// Starts loading a home bucket.
    #[inline]
    pub(crate) fn prefetch(&self, home: u32) {
        if let Some(bucket) = self.buckets.get(home as usize) {
            bng_shm::prefetch(bucket);
        }
    }

    /// Finds a key.
    #[inline(always)]
    pub(crate) fn find(&self, home: u32, key: Key) -> Option<Mapping> {
        let mut value = self.buckets.get(home as usize)?.value_of(key);
        if value == 0 {
            value = self.further(home, key);
        }
        (value != 0).then(|| Mapping::unpack(value))
    }

    /// The value of a key that is not in its home bucket, 0 when it is nowhere. Few keys are not at home.
    #[cold]
    #[inline(never)]
    fn further(&self, home: u32, key: Key) -> u64 {
        (1..PROBE)
            .filter_map(|step| self.buckets.get((home as usize + step) & self.mask))
            .map(|bucket| bucket.value_of(key))
            .find(|value| *value != 0)
            .unwrap_or(0)
    }

    /// Puts a key that is not in the table into the first lane within the bound that is free or holds the same flow of
    /// another generation. That one's session is gone, for a slot has one session at a time; left alone, subscribers who
    /// dial anew again and again would fill the neighbourhood, since the generation is not part of the hash.
    pub(crate) fn insert(
        &mut self,
        home: u32,
        key: Key,
        value: Mapping,
    ) -> Result<Inserted, NoRoom> {
        for step in 0..PROBE {
            let at = (home as usize + step) & self.mask;
            let Some(bucket) = self.buckets.get_mut(at) else {
                break;
            };
            for (place, word) in bucket.keys.iter_mut().zip(&mut bucket.values) {
                let inserted = match *place {
                    0 => Inserted::New,
                    other if (other ^ key.0) & HASHED == 0 => Inserted::InPlaceOfDead,
                    _ => continue,
                };
                (*place, *word) = (key.0, value.pack());
                self.len += u32::from(inserted == Inserted::New);
                return Ok(inserted);
            }
        }
        Err(NoRoom)
    }

    /// Replaces the value of a key; one that is not in the table stays out.
    pub(crate) fn set(&mut self, home: u32, key: Key, value: Mapping) {
        for step in 0..PROBE {
            let Some(bucket) = self.buckets.get_mut((home as usize + step) & self.mask) else {
                break;
            };
            for (place, word) in bucket.keys.iter().zip(&mut bucket.values) {
                if *place == key.0 {
                    *word = value.pack();
                    return;
                }
            }
        }
    }

    /// Lets go of every mapping of one bucket that `keep` refuses.
    pub(crate) fn sweep(&mut self, bucket: usize, mut keep: impl FnMut(Key, Mapping) -> bool) {
        let Some(bucket) = self.buckets.get_mut(bucket & self.mask) else {
            return;
        };
        for (key, value) in bucket.keys.iter_mut().zip(&bucket.values) {
            if *key != 0 && !keep(Key(*key), Mapping::unpack(*value)) {
                *key = 0;
                self.len -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn mapping(outside_port: u16) -> Mapping {
        Mapping {
            address_index: 3,
            outside_port,
            last_seen: 9,
        }
    }

    #[test]
    fn a_bucket_is_one_cache_line() {
        assert_eq!((size_of::<Bucket>(), align_of::<Bucket>()), (64, 64));
    }

    #[test]
    fn a_full_neighbourhood_refuses_and_loses_nothing() {
        let mut table = ForwardTable::new(1, 1);
        assert_eq!(table.bucket_count(), PROBE);
        let key = |port| Key::new(SlotIndex(1), 1, NatProtocol::Udp, port);
        for port in 0..32 {
            assert_eq!(
                table.insert(table.home(key(port)), key(port), mapping(port)),
                Ok(Inserted::New)
            );
        }
        assert_eq!(
            table.insert(table.home(key(99)), key(99), mapping(99)),
            Err(NoRoom)
        );
        for port in 0..32 {
            assert_eq!(
                table.find(table.home(key(port)), key(port)).unwrap(),
                mapping(port)
            );
        }
        assert_eq!(table.len(), 32);
    }

    #[test]
    fn a_flow_of_session_after_session_takes_one_lane() {
        let mut table = ForwardTable::new(1, 1);
        let key = |generation| Key::new(SlotIndex(1), generation, NatProtocol::Udp, 5_000);
        for generation in 1..=100 {
            let key = key(generation);
            let inserted = table.insert(table.home(key), key, mapping(generation));
            let expected = match generation {
                1 => Inserted::New,
                _ => Inserted::InPlaceOfDead,
            };
            assert_eq!(inserted, Ok(expected));
            assert_eq!(
                table.find(table.home(key), key).unwrap(),
                mapping(generation)
            );
        }
        assert_eq!(table.len(), 1);
        assert_eq!(table.find(table.home(key(99)), key(99)), None);
    }

    #[test]
    fn half_load_leaves_room_for_nearly_all() {
        // 1,048,576 mappings in 2,097,152 lanes: half load exactly.
        let mappings = 1 << 20;
        let mut table = ForwardTable::new(mappings, 42);
        let mut refused = 0;
        let mut first = 0;
        for at in 0..mappings {
            let key = Key::new(
                SlotIndex(at >> 6),
                5,
                NatProtocol::Tcp,
                (at & 63) as u16 + 1024,
            );
            let home = table.home(key);
            refused += u32::from(table.insert(home, key, mapping(1)).is_err());
            first += u32::from(table.buckets[home as usize].value_of(key) != 0);
        }
        assert!(refused <= 4, "{refused} of a million refused");
        assert!(first > mappings / 10 * 9, "{first} in their home bucket");
    }

    proptest! {
        #[test]
        fn a_key_survives_packing(slot in 0u32..1 << 20, generation in 0u16..512, protocol in 0..3, port: u16) {
            let protocol = [NatProtocol::Tcp, NatProtocol::Udp, NatProtocol::Icmp][protocol as usize];
            let key = Key::new(SlotIndex(slot), generation, protocol, port);
            prop_assert_eq!(
                (key.slot().0, key.generation(), key.protocol(), key.inside_port()),
                (slot, generation, protocol, port)
            );
        }

        #[test]
        fn behaves_like_a_map(ops in prop::collection::vec((0u16..24, 0u8..3), 1..200), seed: u64) {
            let mut table = ForwardTable::new(8, seed);
            let mut model = HashMap::new();
            for (port, op) in ops {
                let key = Key::new(SlotIndex(7), 2, NatProtocol::Tcp, port);
                let home = table.home(key);
                let found = table.find(home, key).map(|value| value.outside_port);
                prop_assert_eq!(found, model.get(&port).copied());
                match op {
                    0 if found.is_none() => {
                        if table.insert(home, key, mapping(port + 1)).is_ok() {
                            model.insert(port, port + 1);
                        }
                    }
                    1 => {
                        for bucket in 0..table.bucket_count() {
                            table.sweep(bucket, |other, _| other != key);
                        }
                        model.remove(&port);
                    }
                    _ => if let Some(value) = table.find(home, key) {
                        table.set(home, key, Mapping { outside_port: 500, ..value });
                        model.insert(port, 500);
                    },
                }
                prop_assert_eq!(table.len() as usize, model.len());
            }
        }
    }
}
