//! Networks behind IPv4 subscribers (Framed-Route): which session a network leads to.
//!
//! A table of words, each a whole entry, so that a reader never sees half of one. An entry is found by its network and length
//! in one of two buckets, each a cache line; it never moves, so a look-up beside an insertion or a removal finds every other
//! entry. Networks do not overlap (control sees to that), so the first hit is the only one.
//!
//! ```text
//!  63                            31           20                    0
//! +---------------------------------+-----------+--------------------+
//! | network, a one, zeros (33 bits) | generation|        slot        |
//! +---------------------------------+-----------+--------------------+
//! ```
//!
//! The one marks the end of the prefix: 0.0.0.0/0 is a one and 32 zeros, and a word of zero is no entry.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::session::SlotIndex;

/// Networks of all sessions together.
pub const MAX_NETWORKS: usize = 65_536;
/// The shortest prefix: a first octet says whether there are networks in it.
pub const NETWORK_LENGTH_MIN: u8 = 8;

/// Words of a bucket.
const BUCKET: usize = 8;
/// Twice as many words as networks, so that of two buckets one has room.
const BUCKETS: usize = MAX_NETWORKS * 2 / BUCKET;
/// Words of the table.
pub(crate) const NETWORK_WORDS: usize = BUCKETS * BUCKET;

const SLOT_BITS: u32 = 20;
const CODE_SHIFT: u32 = 31;
/// The bits of a generation that an entry keeps. They only have to tell a session from the one before it in its slot: an entry
/// is taken away before the slot's epoch passes (INV-EPOCH-1).
const GENERATION: u32 = 0x7ff;

/// An IPv4 network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Network {
    /// Its address; bits beyond the length are zero.
    pub address: Ipv4Addr,
    /// Prefix length, bits.
    pub length: u8,
}

impl Network {
    /// The network of this length that an address lies in; `None` for a length over 32.
    #[must_use]
    pub fn of(address: u32, length: u8) -> Option<Self> {
        let host = u32::MAX.checked_shr(length.into()).unwrap_or(0);
        (length <= 32).then(|| Self {
            address: Ipv4Addr::from_bits(address & !host),
            length,
        })
    }

    /// Whether it is one that the table takes: no shorter than [`NETWORK_LENGTH_MIN`], no bits beyond its length.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.length >= NETWORK_LENGTH_MIN
            && Self::of(self.address.to_bits(), self.length) == Some(*self)
    }

    /// The network and its length in 33 bits, never zero.
    #[inline(always)]
    fn code(address: u32, length: u8) -> u64 {
        let end = 1u64 << (32 - u32::from(length & 63).min(32));
        (u64::from(address) << 1) & !(end - 1) & !end | end
    }
}

/// The session a network leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkOwner {
    /// Its slot.
    pub slot: SlotIndex,
    generation: u16,
}

impl NetworkOwner {
    /// A session by its slot and generation.
    #[must_use]
    pub const fn new(slot: SlotIndex, generation: u32) -> Self {
        Self {
            slot,
            generation: (generation & GENERATION) as u16,
        }
    }

    /// Whether it is the session of this generation, of those in its slot.
    #[inline(always)]
    #[must_use]
    pub const fn is(&self, generation: u32) -> bool {
        self.generation as u32 == generation & GENERATION
    }
}

fn to_word(network: Network, owner: NetworkOwner) -> u64 {
    Network::code(network.address.to_bits(), network.length) << CODE_SHIFT
        | u64::from(owner.generation) << SLOT_BITS
        | u64::from(owner.slot.0 & ((1 << SLOT_BITS) - 1))
}

fn owner_of(word: u64) -> NetworkOwner {
    NetworkOwner {
        slot: SlotIndex(word as u32 & ((1 << SLOT_BITS) - 1)),
        generation: ((word >> SLOT_BITS) as u32 & GENERATION) as u16,
    }
}

fn network_of(word: u64) -> Option<Network> {
    let code = word >> CODE_SHIFT;
    let length = 32u32.checked_sub(code.trailing_zeros())?;
    let network = Network {
        address: Ipv4Addr::from_bits(((code & (code - 1)) >> 1) as u32),
        length: length as u8,
    };
    network.is_whole().then_some(network)
}

/// The two buckets of a code; their first words.
#[inline(always)]
fn buckets(code: u64) -> [usize; 2] {
    let hash = code.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    [hash >> 40, hash >> 20].map(|at| (at as usize % BUCKETS) * BUCKET)
}

/// Where there are networks, so that nearly no look-up is made in vain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetworkSummary {
    /// A bit for each first octet.
    octets: [u64; 4],
    /// A bit for each prefix length.
    lengths: u64,
}

impl NetworkSummary {
    pub(crate) const WORDS: usize = 5;

    pub(crate) fn to_words(self) -> [u64; Self::WORDS] {
        let [a, b, c, d] = self.octets;
        [a, b, c, d, self.lengths]
    }

    pub(crate) fn from_words([a, b, c, d, lengths]: [u64; Self::WORDS]) -> Self {
        // Lengths that no network has would only make look-ups longer.
        let lengths = lengths & ((1 << 33) - 1) & (u64::MAX << NETWORK_LENGTH_MIN);
        Self {
            octets: [a, b, c, d],
            lengths,
        }
    }

    /// Whether there may be a network with addresses of this first octet.
    #[inline(always)]
    #[must_use]
    pub fn has_octet(&self, octet: u8) -> bool {
        self.octets
            .get(usize::from(octet >> 6))
            .is_some_and(|bits| bits >> (octet & 63) & 1 != 0)
    }
}

/// The table as anybody reads it.
#[inline]
pub(crate) fn find(
    table: &[AtomicU64],
    summary: &NetworkSummary,
    address: u32,
) -> Option<NetworkOwner> {
    let mut lengths = summary.lengths;
    while lengths != 0 {
        let length = 63 - lengths.leading_zeros();
        lengths &= !(1 << length);
        if let Some((_, word)) = entry(table, Network::code(address, length as u8)) {
            return Some(owner_of(word));
        }
    }
    None
}

/// The place of a code's entry, and what was read there. That is read once: a moment later the place may be another network's.
#[inline]
fn entry(table: &[AtomicU64], code: u64) -> Option<(&AtomicU64, u64)> {
    buckets(code)
        .into_iter()
        .filter_map(|at| table.get(at..at + BUCKET))
        .flatten()
        .map(|place| (place, place.load(Ordering::Acquire)))
        .find(|(_, word)| word >> CODE_SHIFT == code)
}

/// How many networks there are, as the only writer of the table counts them.
#[derive(Debug, Clone)]
pub(crate) struct NetworkCounts {
    octets: [u32; 256],
    lengths: [u32; 33],
    all: usize,
}

/// No room for a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NetworksFull;

impl NetworkCounts {
    /// Counts what an earlier run has left, and takes away what is no entry.
    pub(crate) fn of(table: &[AtomicU64]) -> Self {
        let mut counts = Self {
            octets: [0; 256],
            lengths: [0; 33],
            all: 0,
        };
        for (at, word) in table.iter().enumerate() {
            let value = word.load(Ordering::Relaxed);
            if value == 0 {
                continue;
            }
            let network = network_of(value).filter(|_| {
                let home = at - at % BUCKET;
                buckets(value >> CODE_SHIFT).contains(&home)
            });
            match network {
                Some(network) => counts.add(network, 1),
                None => word.store(0, Ordering::Release),
            }
        }
        counts
    }

    fn add(&mut self, network: Network, by: i32) {
        let [first, ..] = network.address.octets();
        let octet = self.octets.get_mut(usize::from(first));
        let length = self.lengths.get_mut(usize::from(network.length));
        for count in octet.into_iter().chain(length) {
            *count = count.saturating_add_signed(by);
        }
        self.all = self.all.saturating_add_signed(by as isize);
    }

    pub(crate) fn summary(&self) -> NetworkSummary {
        let bits = |counts: &[u32]| {
            let set = counts.iter().enumerate().filter(|(_, count)| **count != 0);
            set.fold(0, |bits, (at, _)| bits | 1u64 << at)
        };
        let mut octets = [0; 4];
        for (to, counts) in octets.iter_mut().zip(self.octets.chunks(64)) {
            *to = bits(counts);
        }
        NetworkSummary {
            octets,
            lengths: bits(&self.lengths),
        }
    }

    /// Has a network, which is whole, lead to a session, or to nobody.
    ///
    /// # Errors
    /// No room; nothing is changed.
    pub(crate) fn set(
        &mut self,
        table: &[AtomicU64],
        network: Network,
        owner: Option<NetworkOwner>,
    ) -> Result<(), NetworksFull> {
        let code = Network::code(network.address.to_bits(), network.length);
        match (entry(table, code), owner) {
            (None, None) => {}
            (Some((place, _)), Some(owner)) => {
                place.store(to_word(network, owner), Ordering::Release)
            }
            (Some((place, _)), None) => {
                place.store(0, Ordering::Release);
                self.add(network, -1);
            }
            (None, Some(owner)) => {
                if self.all >= MAX_NETWORKS {
                    return Err(NetworksFull);
                }
                let buckets = buckets(code).into_iter();
                let buckets = buckets.filter_map(|at| table.get(at..at + BUCKET));
                let is_free = |word: &&AtomicU64| word.load(Ordering::Relaxed) == 0;
                let roomiest = buckets.max_by_key(|bucket| bucket.iter().filter(is_free).count());
                let free = roomiest.and_then(|bucket| bucket.iter().find(is_free));
                let free = free.ok_or(NetworksFull)?;
                free.store(to_word(network, owner), Ordering::Release);
                self.add(network, 1);
            }
        }
        Ok(())
    }
}

/// All entries.
pub(crate) fn all(table: &[AtomicU64]) -> impl Iterator<Item = (Network, NetworkOwner)> {
    table.iter().filter_map(|word| {
        let word = word.load(Ordering::Acquire);
        Some((network_of(word)?, owner_of(word)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn table() -> Vec<AtomicU64> {
        (0..NETWORK_WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    fn owner(slot: u32) -> NetworkOwner {
        NetworkOwner::new(SlotIndex(slot), slot.wrapping_mul(7))
    }

    #[test]
    fn a_full_table_refuses_and_every_network_in_it_is_found() {
        let table = table();
        let mut counts = NetworkCounts::of(&table);
        // Neighbours, as an operator numbers customers.
        let network = |n: u32| Network::of(0x0a00_0000 + (n << 4), 28).unwrap();
        for n in 0..MAX_NETWORKS as u32 {
            let given = counts.set(&table, network(n), Some(owner(n)));
            assert_eq!(given, Ok(()), "{n}");
        }
        let beyond = network(MAX_NETWORKS as u32);
        assert_eq!(
            counts.set(&table, beyond, Some(owner(1))),
            Err(NetworksFull)
        );
        let summary = counts.summary();
        for n in 0..MAX_NETWORKS as u32 {
            let address = network(n).address.to_bits() + n % 16;
            assert_eq!(find(&table, &summary, address), Some(owner(n)));
        }
        assert_eq!(find(&table, &summary, beyond.address.to_bits()), None);
        counts.set(&table, network(5), None).unwrap();
        counts.set(&table, beyond, Some(owner(9))).unwrap();
        assert_eq!(
            find(&table, &summary, beyond.address.to_bits()),
            Some(owner(9))
        );
    }

    #[test]
    fn what_is_no_entry_is_taken_away_and_found_by_nobody() {
        let table = table();
        let mut counts = NetworkCounts::of(&table);
        let good = Network::of(0xc0a8_0100, 24).unwrap();
        counts.set(&table, good, Some(owner(3))).unwrap();
        let word = to_word(good, owner(3));
        // In a bucket that is not its own, of a length that no network has, and no code at all.
        let home = buckets(word >> CODE_SHIFT);
        let foreign = (0..NETWORK_WORDS).step_by(BUCKET);
        let foreign = foreign.filter(|at| !home.contains(at)).take(3);
        let short = Network::code(0, 3) << CODE_SHIFT;
        for (at, nonsense) in foreign.zip([word, short, 0x7fff]) {
            table[at].store(nonsense, Ordering::Relaxed);
        }
        let again = NetworkCounts::of(&table);
        assert_eq!((again.all, again.summary()), (1, counts.summary()));
        let left: Vec<_> = all(&table).collect();
        assert_eq!(left, [(good, owner(3))]);
    }

    #[test]
    fn a_place_that_changes_hands_is_never_taken_for_the_network_before() {
        use std::sync::atomic::AtomicBool;

        let table = table();
        let (one, other) = (in_the_bucket_of_the_first(0), in_the_bucket_of_the_first(1));
        let summary = {
            let mut counts = NetworkCounts::of(&table);
            counts.set(&table, one, Some(owner(1))).unwrap();
            counts.summary()
        };
        let is_over = AtomicBool::new(false);
        let wrong = std::thread::scope(|scope| {
            // Control, without the search for a place: one network leaves, and another comes to the same word.
            scope.spawn(|| {
                let place = &table[buckets(Network::code(one.address.to_bits(), 24))[0]];
                while !is_over.load(Ordering::Relaxed) {
                    for word in [to_word(other, owner(2)), to_word(one, owner(1))] {
                        place.store(0, Ordering::Release);
                        place.store(word, Ordering::Release);
                    }
                }
            });
            let found =
                (0..2_000_000).filter_map(|_| find(&table, &summary, one.address.to_bits()));
            let wrong = found.filter(|it| *it != owner(1)).count();
            is_over.store(true, Ordering::Relaxed);
            wrong
        });
        assert_eq!(wrong, 0);
    }

    /// Networks of 10.0.0.0/8, all of the same first bucket.
    fn in_the_bucket_of_the_first(number: usize) -> Network {
        let bucket = |it: &Network| buckets(Network::code(it.address.to_bits(), it.length))[0];
        let all = (0..1u32 << 16).filter_map(|n| Network::of(0x0a00_0000 + (n << 8), 24));
        let wanted = bucket(&Network::of(0x0a00_0000, 24).unwrap());
        let mut fitting = all.filter(|it| bucket(it) == wanted);
        fitting.nth(number).unwrap()
    }

    proptest! {
        #[test]
        fn a_network_is_found_by_its_addresses_alone(
            changes in prop::collection::vec((0u32..64, 8u8..=32, any::<bool>(), 0u32..0x10_0000), 0..60),
            probes in prop::collection::vec(any::<u32>(), 20),
        ) {
            let table = table();
            let mut counts = NetworkCounts::of(&table);
            let mut model = BTreeMap::new();
            for (at, length, is_given, slot) in changes {
                let network = Network::of(at.wrapping_mul(0x0413_0155), length).unwrap();
                let overlaps = |other: &Network| {
                    let length = length.min(other.length);
                    Network::of(network.address.to_bits(), length)
                        == Network::of(other.address.to_bits(), length)
                };
                if is_given && model.keys().all(|it| it == &network || !overlaps(it)) {
                    counts.set(&table, network, Some(owner(slot))).unwrap();
                    model.insert(network, owner(slot));
                } else {
                    counts.set(&table, network, None).unwrap();
                    model.remove(&network);
                }
            }
            let summary = counts.summary();
            let words = summary.to_words();
            prop_assert_eq!(NetworkSummary::from_words(words), summary);
            let ends = model.keys().flat_map(|network| {
                let first = network.address.to_bits();
                let last = first | u32::MAX.checked_shr(network.length.into()).unwrap_or(0);
                [first, last, first.wrapping_sub(1), last.wrapping_add(1)]
            });
            for address in ends.chain(probes) {
                let expected = model.iter().find(|(network, _)| {
                    Network::of(address, network.length).as_ref() == Some(network)
                });
                prop_assert_eq!(find(&table, &summary, address), expected.map(|(_, it)| *it));
                let [first, ..] = address.to_be_bytes();
                prop_assert!(expected.is_none() || summary.has_octet(first));
            }
            let mut listed: Vec<_> = all(&table).collect();
            listed.sort_by_key(|(network, _)| *network);
            prop_assert_eq!(listed, model.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(NetworkCounts::of(&table).summary(), summary);
        }
    }
}
