//! Notes about first fragments, by which later ones of the same packet are matched (RFC 4787 REQ-14). Nothing is reassembled.
//!
//! One table for all workers, since a port may spread the fragments of a packet over queues. Its size is fixed; a note ends
//! after [`LIFETIME_MS`] or when its bucket needs room, the oldest first. Notes are made and read for fragments alone.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use bng_shm::SlotIndex;
use bng_wire::ipv4::protocol;

use crate::buckets::{Bucket, WORDS, hash, put, secret, words};
use crate::filter::Ports;
use crate::ip::Packet;

/// How long a later fragment may follow its first one, or wait for it, milliseconds.
pub(crate) const LIFETIME_MS: u64 = 2_000;
const BUCKETS: usize = 4_096;

/// A packet that comes in fragments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key([u64; 2]);

/// Set in every key, so that none is that of an empty place.
const USED: u64 = 1 << 63;
const DOWN: u64 = 1 << 62;

impl Key {
    const fn rest(packet: &Packet, id: u16) -> u64 {
        USED | (packet.protocol as u64) << 16 | id as u64
    }

    /// From a session: whose it is, destination, protocol and identification.
    pub(crate) const fn upstream(slot: SlotIndex, packet: &Packet, id: u16) -> Self {
        let word = (slot.0 as u64) << 32 | packet.dst as u64;
        Self([word, Self::rest(packet, id)])
    }

    /// To a NAT address: both addresses, protocol and identification.
    pub(crate) const fn downstream(packet: &Packet, id: u16) -> Self {
        let word = (packet.src as u64) << 32 | packet.dst as u64;
        Self([word, DOWN | Self::rest(packet, id)])
    }
}

/// What became of a first fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It was handed to the owner of the session, who will tell.
    Led = 0,
    /// It was forwarded.
    Passed = 1,
    /// It was dropped.
    Refused = 2,
    /// There are first fragments to several sessions: nobody can tell whose a later one is.
    Ambiguous = 3,
}

/// A note about a first fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) state: State,
    /// The session, and the low bits of its generation, as in a reverse mapping.
    pub(crate) slot: SlotIndex,
    pub(crate) generation: u16,
    /// The subscriber's port, and the other one; for filters.
    pub(crate) inside_port: u16,
    pub(crate) remote_port: u16,
    /// Upstream: the identification outside.
    pub(crate) id: u16,
    /// When, milliseconds.
    pub(crate) at_ms: u32,
}

impl Note {
    const fn pack(&self) -> [u64; 2] {
        [
            (self.state as u64) << 56
                | (self.slot.0 as u64) << 32
                | (self.inside_port as u64) << 16
                | self.remote_port as u64,
            (self.id as u64) << 48 | (self.generation as u64) << 32 | self.at_ms as u64,
        ]
    }

    const fn unpack([first, second]: [u64; 2]) -> Self {
        Self {
            state: match first >> 56 {
                0 => State::Led,
                1 => State::Passed,
                2 => State::Refused,
                _ => State::Ambiguous,
            },
            slot: SlotIndex((first >> 32) as u32 & 0xff_ffff),
            inside_port: (first >> 16) as u16,
            remote_port: first as u16,
            id: (second >> 48) as u16,
            generation: (second >> 32) as u16,
            at_ms: second as u32,
        }
    }

    /// Workers read the clock once in a loop each, so a note may be a little younger than now.
    const fn is_alive(&self, now_ms: u32) -> bool {
        now_ms.wrapping_sub(self.at_ms) as i32 <= LIFETIME_MS as i32
    }

    /// The ports of the whole packet, for filters.
    pub(crate) const fn ports(&self, ip_protocol: u8) -> Ports {
        match ip_protocol {
            protocol::TCP | protocol::UDP => Ports::Known {
                remote: self.remote_port,
                local: self.inside_port,
            },
            _ => Ports::None,
        }
    }

    /// This note, made while there is `old` about the same packet.
    fn after(self, old: &Self) -> Self {
        let is_same = (self.slot, self.generation) == (old.slot, old.generation);
        let state = match (self.state, old.state) {
            (_, State::Ambiguous) => State::Ambiguous,
            _ if !is_same => State::Ambiguous,
            // A copy of it is on the way to the owner, who has decided already.
            (State::Led, State::Passed) => State::Passed,
            (state, _) => state,
        };
        Self { state, ..self }
    }
}

/// The table, one for all workers of a dataplane.
#[derive(Debug)]
pub struct FirstFragments {
    buckets: Box<[Bucket]>,
    secret: [u64; 2],
    /// Notes made so far.
    noted: AtomicU64,
    last_id: AtomicU16,
}

impl FirstFragments {
    /// An empty table. `seed` is random: senders choose identifications.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| Bucket::default()).collect(),
            secret: secret(seed),
            noted: AtomicU64::new(0),
            last_id: AtomicU16::new(seed as u16),
        }
    }

    fn bucket(&self, key: Key) -> Option<&Bucket> {
        self.buckets.get(hash(self.secret, key.0) % BUCKETS)
    }

    /// The note about a packet's first fragment.
    pub(crate) fn find(&self, key: Key, now_ms: u64) -> Option<Note> {
        let lanes = self.bucket(key)?.read()?;
        let is_it = |lane: &&[u64; WORDS]| [lane[0], lane[1]] == key.0;
        let note = lanes.iter().find(is_it);
        note.map(|lane| Note::unpack([lane[2], lane[3]]))
            .filter(|note| note.is_alive(now_ms as u32))
    }

    /// Makes a note. It may get lost, as may the fragments themselves.
    pub(crate) fn note(&self, key: Key, note: Note) {
        let Some(bucket) = self.bucket(key) else {
            return;
        };
        bucket.write(|lanes| {
            let (mut place, mut oldest, mut note) = (None, 0, note);
            for lane in lanes {
                let now = words(lane);
                let old = Note::unpack([now[2], now[3]]);
                let alive = now[1] & USED != 0 && old.is_alive(note.at_ms);
                if [now[0], now[1]] == key.0 {
                    if alive {
                        note = note.after(&old);
                    }
                    place = Some(lane);
                    break;
                }
                let age = match alive {
                    true => u64::from(note.at_ms.wrapping_sub(old.at_ms).saturating_add(1)),
                    false => u64::MAX,
                };
                if age > oldest {
                    (place, oldest) = (Some(lane), age);
                }
            }
            let [third, fourth] = note.pack();
            let new = [key.0[0], key.0[1], third, fourth];
            if let Some(place) = place {
                put(place, new);
            }
        });
        self.noted.fetch_add(1, Ordering::Release);
    }

    /// How many notes have been made; while it stays, [`Self::find`] finds nothing new.
    pub(crate) fn noted(&self) -> u64 {
        self.noted.load(Ordering::Acquire)
    }

    /// An identification for a packet in fragments to the internet: none of the last 65,535 had it. Subscribers behind one
    /// address choose theirs without knowing of each other (RFC 6864 section 5.3).
    pub(crate) fn next_id(&self) -> u16 {
        self.last_id.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buckets::LANES;
    use proptest::prelude::*;

    fn key(n: u32) -> Key {
        let packet = Packet {
            dst: n,
            protocol: 17,
            ..Packet::EMPTY
        };
        Key::downstream(&packet, 7)
    }

    fn note(state: State, slot: u32, at_ms: u32) -> Note {
        Note {
            state,
            slot: SlotIndex(slot),
            generation: 3,
            inside_port: 4,
            remote_port: 5,
            id: 6,
            at_ms,
        }
    }

    #[test]
    fn a_note_ends_after_two_seconds_whatever_the_clock_says() {
        for start in [0, 1_000, u64::from(u32::MAX) - 1_000] {
            let table = FirstFragments::new(1);
            table.note(key(1), note(State::Passed, 9, start as u32));
            assert!(table.find(key(1), start + 2_000).is_some());
            assert!(
                table.find(key(1), start.saturating_sub(1)).is_some(),
                "another worker's clock"
            );
            assert_eq!(table.find(key(1), start + 2_001), None);
            assert_eq!(table.find(key(2), start), None);
        }
    }

    #[test]
    fn first_fragments_to_two_sessions_make_a_packet_nobodys() {
        let table = FirstFragments::new(1);
        let state = |table: &FirstFragments| table.find(key(1), 10).map(|note| note.state);
        table.note(key(1), note(State::Passed, 9, 10));
        table.note(key(1), note(State::Led, 9, 10));
        assert_eq!(state(&table), Some(State::Passed), "decided already");
        table.note(key(1), note(State::Refused, 9, 10));
        assert_eq!(state(&table), Some(State::Refused));
        table.note(key(1), note(State::Passed, 9, 10));
        table.note(key(1), note(State::Passed, 8, 10));
        table.note(key(1), note(State::Passed, 8, 10));
        assert_eq!(state(&table), Some(State::Ambiguous));
        table.note(key(1), note(State::Passed, 8, 2_011));
        let alive = table.find(key(1), 2_011).map(|note| note.state);
        assert_eq!(alive, Some(State::Passed), "the old ones have ended");
    }

    #[test]
    fn a_full_bucket_lets_go_of_the_oldest_and_the_table_does_not_grow() {
        let table = FirstFragments::new(1);
        for n in 0..100_000 {
            table.note(key(n), note(State::Passed, n, n / 100));
        }
        let found = |n: &u32| table.find(key(*n), 1_000).is_some();
        assert!((99_000..100_000).filter(found).count() > 950);
        assert!((0..100_000).filter(found).count() <= BUCKETS * LANES);
    }

    #[test]
    fn workers_that_write_and_read_at_once_see_whole_notes() {
        let table = FirstFragments::new(1);
        std::thread::scope(|scope| {
            for worker in 0..3u32 {
                let table = &table;
                scope.spawn(move || {
                    for n in 0..20_000 {
                        let at = n % 5;
                        let whole = Note {
                            generation: worker as u16,
                            inside_port: worker as u16,
                            remote_port: worker as u16,
                            ..note(State::Passed, worker, 5)
                        };
                        table.note(key(at), whole);
                        if let Some(seen) = table.find(key(at), 5) {
                            let all = [seen.generation, seen.inside_port, seen.remote_port];
                            assert_eq!(all, [seen.slot.0 as u16; 3]);
                        }
                    }
                });
            }
        });
    }

    proptest! {
        #[test]
        fn a_note_survives_packing(
            slot in 0u32..1 << 20, generation: u16, inside_port: u16, remote_port: u16, id: u16, at_ms: u32, state in 0usize..4,
        ) {
            let state = [State::Led, State::Passed, State::Refused, State::Ambiguous][state];
            let note = Note { state, slot: SlotIndex(slot), generation, inside_port, remote_port, id, at_ms };
            prop_assert_eq!(Note::unpack(note.pack()), note);
        }
    }
}
