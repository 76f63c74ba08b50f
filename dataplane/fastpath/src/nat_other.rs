//! Stage: protocols without ports (GRE, ESP, others) of sessions behind NAT, in pools that let them pass.
//!
//! The first subscriber behind an outside address that sends such a protocol to a remote gets what this remote sends by it,
//! until it has not sent for [`LIFETIME_MS`]; another one behind the same address is refused meanwhile. Addresses alone are
//! translated, so protocols whose checksum covers them (UDP-Lite, DCCP) arrive damaged.

use bng_shm::{Counter, PortBlock, Reader, Reverse, SessionLine, SessionState, SlotIndex};

use crate::buckets::{Bucket, hash, put, secret, words};
use crate::ip::Packet;
use crate::verdict::{Step, drop};
use crate::worker::Stages;

/// How long a claim lasts after the last packet of its session, milliseconds.
const LIFETIME_MS: i32 = 300_000;
/// A claim that is younger is not refreshed, milliseconds.
const FRESH_MS: i32 = 1_000;
const BUCKETS: usize = 1_024;
const USED: u64 = 1 << 63;

/// Outside address, remote and protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key([u64; 2]);

impl Key {
    fn new(outside: u32, remote: u32, protocol: u8) -> Self {
        let addresses = u64::from(outside) << 32 | u64::from(remote);
        Self([addresses, USED | u64::from(protocol)])
    }
}

/// A session that has a claim, and when it last sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Claim {
    slot: SlotIndex,
    /// Low bits, as in a reverse mapping.
    generation: u16,
    at_ms: u32,
}

impl Claim {
    const fn pack(self) -> [u64; 2] {
        [
            self.slot.0 as u64,
            (self.generation as u64) << 32 | self.at_ms as u64,
        ]
    }

    const fn unpack(slot: u64, rest: u64) -> Self {
        Self {
            slot: SlotIndex(slot as u32),
            generation: (rest >> 32) as u16,
            at_ms: rest as u32,
        }
    }

    const fn age(&self, now_ms: u32) -> i32 {
        now_ms.wrapping_sub(self.at_ms) as i32
    }

    fn is_same(&self, other: &Self) -> bool {
        (self.slot, self.generation) == (other.slot, other.generation)
    }

    /// It holds: not too old, and the session is still there.
    fn holds(&self, reader: &Reader, now_ms: u32) -> bool {
        self.age(now_ms) <= LIFETIME_MS
            && matches!(reader.session_line(self.slot), Some(Ok(session))
            if self.is_of(&session) && matches!(
                session.state(),
                Some(SessionState::Negotiating | SessionState::Forwarding)
            ))
    }

    fn is_of(&self, session: &SessionLine) -> bool {
        self.generation == Reverse::generation_bits(session.generation())
    }
}

/// The claims of all sessions, one table for all workers of a dataplane.
#[derive(Debug)]
pub struct OtherProtocols {
    buckets: Box<[Bucket]>,
    secret: [u64; 2],
}

impl OtherProtocols {
    /// An empty table. `seed` is random: subscribers choose remotes.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| Bucket::default()).collect(),
            secret: secret(seed),
        }
    }

    fn bucket(&self, key: Key) -> Option<&Bucket> {
        self.buckets.get(hash(self.secret, key.0) % BUCKETS)
    }

    fn find(&self, key: Key, now_ms: u32) -> Option<Claim> {
        let lanes = self.bucket(key)?.read()?;
        let [_, _, slot, rest] = *lanes.iter().find(|lane| [lane[0], lane[1]] == key.0)?;
        let claim = Claim::unpack(slot, rest);
        (claim.age(now_ms) <= LIFETIME_MS).then_some(claim)
    }

    /// Makes or refreshes a claim.
    fn claim(&self, reader: &Reader, key: Key, new: Claim) -> Step<()> {
        if let Some(old) = self.find(key, new.at_ms)
            && old.is_same(&new)
            && old.age(new.at_ms) < FRESH_MS
        {
            return Ok(());
        }
        let mut outcome = drop(Counter::NatTableFull);
        if let Some(bucket) = self.bucket(key) {
            bucket.write(|lanes| {
                let claims = lanes.each_ref().map(|lane| {
                    let [first, second, slot, rest] = words(lane);
                    let claim = Claim::unpack(slot, rest);
                    (second != 0).then_some(([first, second], claim))
                });
                let is_it = |claim: &Option<([u64; 2], Claim)>| {
                    claim.is_some_and(|(other, _)| other == key.0)
                };
                let is_free = |claim: &Option<([u64; 2], Claim)>| {
                    claim.is_none_or(|(_, claim)| !claim.holds(reader, new.at_ms))
                };
                let place = match claims.iter().position(is_it) {
                    Some(at) => {
                        let old = claims[at].map(|(_, claim)| claim);
                        let is_taken = old
                            .is_some_and(|old| !old.is_same(&new) && old.holds(reader, new.at_ms));
                        if is_taken {
                            outcome = drop(Counter::NatProtocolTaken);
                            return;
                        }
                        Some(at)
                    }
                    None => (claims.iter().position(is_free)).or_else(|| hog(&claims, new.at_ms)),
                };
                if let Some(lane) = place.and_then(|at| lanes.get(at)) {
                    let [slot, rest] = new.pack();
                    put(lane, [key.0[0], key.0[1], slot, rest]);
                    outcome = Ok(());
                }
            });
        }
        outcome
    }
}

/// In a full bucket, the oldest claim of a session that has several: who claims much makes room for others.
fn hog(claims: &[Option<([u64; 2], Claim)>; crate::buckets::LANES], now_ms: u32) -> Option<usize> {
    let all = || claims.iter().flatten().map(|(_, claim)| claim);
    let has_several = |claim: &Claim| all().filter(|other| other.is_same(claim)).count() > 1;
    let several = claims.iter().enumerate().filter_map(|(at, claim)| {
        let (_, claim) = (*claim)?;
        has_several(&claim).then(|| (claim.age(now_ms), at))
    });
    several.max().map(|(_, at)| at)
}

/// Whether protocols without ports pass behind this outside address.
fn passes(stages: &Stages, outside: u32) -> bool {
    let range = stages.ranges.find(outside);
    range.is_some_and(|range| range.rules.other_protocols)
}

/// A packet of a session to be translated, whose protocol has no ports.
#[cold]
pub(crate) fn sent(
    stages: &Stages,
    (slot, generation): (SlotIndex, u32),
    block: &PortBlock,
    packet: &Packet,
) -> Step<()> {
    let outside = block.address.to_bits();
    if !passes(stages, outside) {
        return drop(Counter::NatProtocol);
    }
    let key = Key::new(outside, packet.dst, packet.protocol);
    let claim = Claim {
        slot,
        generation: Reverse::generation_bits(generation),
        at_ms: stages.now_ms as u32,
    };
    stages.others.claim(stages.shm.reader(), key, claim)
}

/// The session that gets a packet to a NAT address whose protocol has no ports.
#[cold]
pub(crate) fn arrived(stages: &Stages, packet: &Packet) -> Step<Reverse> {
    if !passes(stages, packet.dst) {
        return drop(Counter::NatProtocol);
    }
    let key = Key::new(packet.dst, packet.src, packet.protocol);
    match stages.others.find(key, stages.now_ms as u32) {
        Some(claim) => Ok(Reverse {
            generation: claim.generation,
            slot: claim.slot,
            inside_port: 0,
            last_seen: 0,
            inbound_seen: true,
            closing: false,
        }),
        None => drop(Counter::NatNoMapping),
    }
}

/// A claim leads to this live session.
pub(crate) fn leads_to(entry: &Reverse, session: &SessionLine, address_index: u16) -> Step<()> {
    let is_its = session
        .nat()
        .is_some_and(|block| block.address_index == address_index);
    if is_its && entry.generation == Reverse::generation_bits(session.generation()) {
        Ok(())
    } else {
        drop(Counter::NatNoMapping)
    }
}
