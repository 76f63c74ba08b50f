//! The session table: what workers need of a session, in one cache line, and what its owner counts,
//! in the next.

use crate::policy::{Meter, PolicyId};
use crate::shared::shared;
use crate::slot::{
    SLOT_WORDS, SessionState, Slot, SlotError, StateWord, generation_of, state_of, unpack,
};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};

/// Index of a session in every per-session table: `access port * 65,536 + session id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotIndex(pub u32);

impl SlotIndex {
    /// The slot of a session id on an access port (index among access ports).
    #[inline]
    #[must_use]
    pub const fn new(access_port: u8, session_id: u16) -> Self {
        Self((access_port as u32) << 16 | session_id as u32)
    }

    /// Index of the access port among the access ports.
    #[inline]
    #[must_use]
    pub const fn access_port(self) -> u8 {
        (self.0 >> 16) as u8
    }

    /// PPPoE session id.
    #[inline]
    #[must_use]
    pub const fn session_id(self) -> u16 {
        self.0 as u16
    }
}

/// VLAN tags of a session's frames, outermost first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Vlans {
    /// Outer (or only) VLAN id, 0 to 4,094.
    pub s_vlan: Option<u16>,
    /// Inner VLAN id; only with an outer one.
    pub c_vlan: Option<u16>,
    /// Outer TPID is 0x88a8 (else 0x8100).
    pub outer_is_88a8: bool,
}

/// Everything a worker needs to know of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// Changes when the slot passes to another session.
    pub generation: u32,
    /// What workers may do with its frames.
    pub state: SessionState,
    /// Index of the owning worker.
    pub owner: u8,
    /// Client MAC address.
    pub client_mac: [u8; 6],
    /// VLAN tags of its frames.
    pub vlans: Vlans,
    /// Largest IP packet towards the subscriber, bytes.
    pub mtu: u16,
    /// Address of the subscriber; unspecified while negotiating.
    pub framed_ip: Ipv4Addr,
    /// Our address on the session (the IPCP peer's view of us).
    pub gateway_ip: Ipv4Addr,
    /// NAT: public address, its dense index, and the port block; `None` for routed subscribers.
    pub nat: Option<PortBlock>,
    /// What the session may do; [`PolicyId`] 0 for nothing.
    pub policy: PolicyId,
    /// The /64 on the session (lower half zero); `None` while IPv6 is not open.
    pub ipv6_prefix: Option<Ipv6Addr>,
    /// The prefix delegated to the subscriber.
    pub delegated: Option<Delegated>,
}

/// A delegated prefix (RFC 8415 IA_PD).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Delegated {
    /// The prefix; bits beyond its length are zero.
    pub prefix: Ipv6Addr,
    /// Its length, 1 to 64.
    pub length: u8,
}

fn high(address: Ipv6Addr) -> u64 {
    (address.to_bits() >> 64) as u64
}

const fn from_high(high: u64) -> Ipv6Addr {
    Ipv6Addr::from_bits((high as u128) << 64)
}

/// A block of ports on a public address that belongs to one subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PortBlock {
    /// The public address.
    pub address: Ipv4Addr,
    /// Dense index of the address over all NAT pools.
    pub address_index: u16,
    /// First port of the block.
    pub first_port: u16,
    /// Ports in the block (1 to 65,535).
    pub size: u16,
}

const TAG: u64 = 0x8000;

impl Session {
    /// No session: state `Free`, everything else zero or `None`. Also what to fill the fields from that a caller leaves out.
    pub const NONE: Self = Self {
        generation: 0,
        state: SessionState::Free,
        owner: 0,
        client_mac: [0; 6],
        vlans: Vlans {
            s_vlan: None,
            c_vlan: None,
            outer_is_88a8: false,
        },
        mtu: 0,
        framed_ip: Ipv4Addr::UNSPECIFIED,
        gateway_ip: Ipv4Addr::UNSPECIFIED,
        nat: None,
        policy: PolicyId(0),
        ipv6_prefix: None,
        delegated: None,
    };

    pub(crate) fn to_words(self) -> [u64; SLOT_WORDS] {
        let tag = |vid: Option<u16>| vid.map_or(0, |vid| TAG | u64::from(vid & 0x0fff));
        let mut mac = [0; 8];
        mac[..6].copy_from_slice(&self.client_mac);
        let (nat_ip, block) = self.nat.map_or((0, 0), |b| {
            let block = u64::from(b.first_port) << 48
                | u64::from(b.size) << 32
                | u64::from(b.address_index) << 16;
            (u64::from(b.address.to_bits()), block)
        });
        [
            u64::from_le_bytes(mac) | tag(self.vlans.s_vlan) << 48,
            tag(self.vlans.c_vlan) << 48
                | u64::from(self.vlans.outer_is_88a8) << 32
                | u64::from(self.mtu),
            u64::from(self.framed_ip.to_bits()) << 32 | nat_ip,
            block | u64::from(self.policy.0),
            u64::from(self.delegated.map_or(0, |d| d.length)) << 32
                | u64::from(self.gateway_ip.to_bits()),
            self.ipv6_prefix.map_or(0, high),
            self.delegated.map_or(0, |d| high(d.prefix)),
        ]
    }

    fn of_line(word: StateWord, line6: &SessionLine6) -> Self {
        let line = &line6.line;
        Self {
            generation: word.generation,
            state: word.state,
            owner: word.owner,
            client_mac: line.client_mac(),
            vlans: line.vlans(),
            mtu: line.mtu(),
            framed_ip: Ipv4Addr::from_bits(line.framed_ip()),
            gateway_ip: Ipv4Addr::from_bits(line.gateway_ip()),
            nat: line.nat(),
            policy: line.policy(),
            ipv6_prefix: (line6.prefix() != 0).then(|| from_high(line6.prefix())),
            delegated: line6.delegated().map(|(prefix, length)| Delegated {
                prefix: from_high(prefix),
                length,
            }),
        }
    }
}

/// Words of an entry that IPv4 needs; IPv6 needs all.
const USED_WORDS: usize = 5;

/// Who sends a session's frames: client MAC address and VLAN ids, packed as the table keeps them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sender {
    mac_and_outer: u64,
    inner: u16,
}

impl Sender {
    /// No tag is `None`, which differs from VLAN 0 (a priority tag). VLAN ids have 12 bits.
    #[inline(always)]
    #[must_use]
    pub const fn new(client_mac: [u8; 6], s_vlan: Option<u16>, c_vlan: Option<u16>) -> Self {
        const fn tag(vid: Option<u16>) -> u16 {
            match vid {
                Some(vid) => TAG as u16 | vid & 0x0fff,
                None => 0,
            }
        }
        let [a, b, c, d, e, f] = client_mac;
        let mac = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        Self {
            mac_and_outer: mac | (tag(s_vlan) as u64) << 48,
            inner: tag(c_vlan),
        }
    }
}

/// A consistent copy of a session's entry as it lies in the table: [`Session`] for those that look at a part of it.
#[derive(Debug, Clone, Copy)]
pub struct SessionLine {
    state: u64,
    words: [u64; USED_WORDS],
}

impl SessionLine {
    /// As [`Session::generation`].
    #[inline(always)]
    #[must_use]
    pub const fn generation(&self) -> u32 {
        generation_of(self.state)
    }

    /// As [`Session::state`]; `None` for a value that no version of this contract writes.
    #[inline(always)]
    #[must_use]
    pub const fn state(&self) -> Option<SessionState> {
        state_of(self.state)
    }

    /// Whether a frame of this sender can be of the session.
    #[inline(always)]
    #[must_use]
    pub const fn is_from(&self, sender: Sender) -> bool {
        self.words[0] == sender.mac_and_outer && self.words[1] >> 48 == sender.inner as u64
    }

    /// As [`Session::client_mac`].
    #[inline(always)]
    #[must_use]
    pub const fn client_mac(&self) -> [u8; 6] {
        let [a, b, c, d, e, f, ..] = self.words[0].to_le_bytes();
        [a, b, c, d, e, f]
    }

    /// As [`Session::mtu`].
    #[inline(always)]
    #[must_use]
    pub const fn mtu(&self) -> u16 {
        self.words[1] as u16
    }

    /// As [`Session::framed_ip`], as an integer in host order.
    #[inline(always)]
    #[must_use]
    pub const fn framed_ip(&self) -> u32 {
        (self.words[2] >> 32) as u32
    }

    /// As [`Session::gateway_ip`], as an integer in host order.
    #[inline(always)]
    #[must_use]
    pub const fn gateway_ip(&self) -> u32 {
        self.words[4] as u32
    }

    /// As [`Session::nat`].
    #[inline(always)]
    #[must_use]
    pub const fn nat(&self) -> Option<PortBlock> {
        let block = self.block();
        if block.size == 0 { None } else { Some(block) }
    }

    /// As [`Session::nat`]; a block of size 0 when there is none.
    #[inline(always)]
    #[must_use]
    pub const fn block(&self) -> PortBlock {
        PortBlock {
            address: Ipv4Addr::from_bits(self.words[2] as u32),
            address_index: (self.words[3] >> 16) as u16,
            first_port: (self.words[3] >> 48) as u16,
            size: (self.words[3] >> 32) as u16,
        }
    }

    /// How many VLAN tags the session's frames have.
    #[inline(always)]
    #[must_use]
    pub const fn tags(&self) -> usize {
        (self.words[0] >> 63) as usize + (self.words[1] >> 63) as usize
    }

    /// As [`Session::policy`].
    #[inline(always)]
    #[must_use]
    pub const fn policy(&self) -> PolicyId {
        PolicyId(self.words[3] as u16)
    }

    /// As [`Session::vlans`].
    #[inline(always)]
    #[must_use]
    pub fn vlans(&self) -> Vlans {
        let tag = |bits: u64| (bits & TAG != 0).then_some((bits & 0x0fff) as u16);
        Vlans {
            s_vlan: tag(self.words[0] >> 48),
            c_vlan: tag(self.words[1] >> 48),
            outer_is_88a8: self.words[1] >> 32 & 1 == 1,
        }
    }
}

/// A consistent copy of a session's whole entry, for IPv6.
#[derive(Debug, Clone, Copy)]
pub struct SessionLine6 {
    /// What IPv4 needs as well.
    pub line: SessionLine,
    ipv6: [u64; 2],
}

impl SessionLine6 {
    /// Upper half of [`Session::ipv6_prefix`], 0 while IPv6 is not open.
    #[inline(always)]
    #[must_use]
    pub const fn prefix(&self) -> u64 {
        self.ipv6[0]
    }

    /// Upper half of the delegated prefix, and its length (1 to 64).
    #[inline(always)]
    #[must_use]
    pub const fn delegated(&self) -> Option<(u64, u8)> {
        match (self.line.words[4] >> 32) as u8 {
            0 => None,
            length if length > 64 => None,
            length => Some((self.ipv6[1], length)),
        }
    }

    /// All of it; `None` for a state that no version of this contract writes.
    #[inline]
    #[must_use]
    pub fn session(&self) -> Option<Session> {
        unpack(self.line.state).map(|word| Session::of_line(word, self))
    }
}

/// Two adjacent cache lines: the entry control writes, and the counters its owner writes.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct SessionEntry {
    pub(crate) slot: Slot,
    pub(crate) stats: SessionStats,
}

shared!(SessionEntry, SessionEntry { slot, stats });

impl SessionEntry {
    /// A consistent copy of the entry.
    ///
    /// # Errors
    /// [`SlotError`] if control is (or died) in the middle of a write.
    #[inline]
    pub(crate) fn read(&self) -> Result<Session, SlotError> {
        self.line6()?.session().ok_or(SlotError::Corrupt)
    }

    /// As [`Self::read`], not taken apart.
    ///
    /// # Errors
    /// [`SlotError::Busy`].
    #[inline(always)]
    pub(crate) fn line(&self) -> Result<SessionLine, SlotError> {
        let (state, words) = self.slot.read_raw()?;
        Ok(SessionLine { state, words })
    }

    /// As [`Self::line`], if it can be had at once and is a session that `owner` forwards.
    #[inline(always)]
    pub(crate) fn open_line(&self, owner: u8) -> Option<SessionLine> {
        let (state, words) = self.slot.read_open(owner)?;
        Some(SessionLine { state, words })
    }

    /// As [`Self::line`], with IPv6.
    ///
    /// # Errors
    /// [`SlotError::Busy`].
    #[inline(always)]
    pub(crate) fn line6(&self) -> Result<SessionLine6, SlotError> {
        let (state, [a, b, c, d, e, prefix, delegated]) = self.slot.read_raw()?;
        let words = [a, b, c, d, e];
        Ok(SessionLine6 {
            line: SessionLine { state, words },
            ipv6: [prefix, delegated],
        })
    }
}

/// What of a session is metered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policed {
    /// Packets from the subscriber.
    Up = 0,
    /// Packets to the subscriber.
    Down = 1,
    /// Frames punted to control.
    Punt = 2,
}

/// Packets and bytes of one session, written by its owner alone, read by anybody at any time.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct SessionStats {
    up_packets: AtomicU64,
    up_bytes: AtomicU64,
    down_packets: AtomicU64,
    down_bytes: AtomicU64,
    last_up_ms: AtomicU64,
    /// Theoretical arrival times of the policers, ns on the worker's clock: upstream, downstream, punt.
    arrivals: [AtomicU64; 3],
}

shared!(
    SessionStats,
    SessionStats {
        up_packets,
        up_bytes,
        down_packets,
        down_bytes,
        last_up_ms,
        arrivals,
    }
);

/// A copy of a session's counters. Bytes are IP bytes (RFC 2866 octets of the PPP payload).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatsCopy {
    /// Packets from the subscriber that were forwarded or answered.
    pub up_packets: u64,
    /// Their IP bytes.
    pub up_bytes: u64,
    /// Packets sent to the subscriber.
    pub down_packets: u64,
    /// Their IP bytes.
    pub down_bytes: u64,
    /// CLOCK_MONOTONIC milliseconds of the last frame from the subscriber, coarse; 0 if none.
    pub last_up_ms: u64,
}

#[inline]
fn add(counter: &AtomicU64, by: u64) {
    // One writer, so a plain load and store: no locked instruction on the fast path.
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(by),
        Ordering::Relaxed,
    );
}

impl SessionStats {
    /// Counts one packet from the subscriber. Owner only.
    #[inline]
    pub(crate) fn count_up(&self, bytes: u64) {
        add(&self.up_packets, 1);
        add(&self.up_bytes, bytes);
    }

    /// Notes life: stored only when the coarse clock moved. Owner only.
    #[inline]
    pub(crate) fn seen_up(&self, now_ms: u64) {
        if self.last_up_ms.load(Ordering::Relaxed) != now_ms {
            self.last_up_ms.store(now_ms, Ordering::Relaxed);
        }
    }

    /// Meters `ns` worth of bytes (see [`Meter::ns`]) at `now_ns`; false when they exceed the committed burst, and then
    /// nothing is taken. Owner only.
    ///
    /// What was taken under another meter, or before the clock went back, counts for no more than this meter's burst: a
    /// subscriber that gets a faster rate has it at once.
    #[inline(always)]
    pub(crate) fn conforms(&self, which: Policed, meter: Meter, ns: u64, now_ns: u64) -> bool {
        if meter.cost == 0 {
            return true;
        }
        let arrival = &self.arrivals[which as usize];
        // No clock runs and no meter takes so long that these overflow.
        let limit = now_ns.wrapping_add(meter.burst_ns);
        let from = arrival.load(Ordering::Relaxed).min(limit).max(now_ns);
        let next = from.wrapping_add(ns);
        let conforms = next <= limit;
        arrival.store(if conforms { next } else { from }, Ordering::Relaxed);
        conforms
    }

    /// Counts one packet to the subscriber. Owner only.
    #[inline]
    pub(crate) fn count_down(&self, bytes: u64) {
        add(&self.down_packets, 1);
        add(&self.down_bytes, bytes);
    }

    /// Zeroes everything, before the slot is published to a new session. Control only; no worker
    /// can hold the slot then (INV-EPOCH-1).
    pub(crate) fn clear(&self) {
        for word in [
            &self.up_packets,
            &self.up_bytes,
            &self.down_packets,
            &self.down_bytes,
            &self.last_up_ms,
        ]
        .into_iter()
        .chain(&self.arrivals)
        {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// A copy; the values are each exact, read one after the other.
    #[must_use]
    pub fn copy(&self) -> StatsCopy {
        StatsCopy {
            up_packets: self.up_packets.load(Ordering::Relaxed),
            up_bytes: self.up_bytes.load(Ordering::Relaxed),
            down_packets: self.down_packets.load(Ordering::Relaxed),
            down_bytes: self.down_bytes.load(Ordering::Relaxed),
            last_up_ms: self.last_up_ms.load(Ordering::Relaxed),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn any_session()(
            generation: u32, owner: u8, client_mac: [u8; 6], mtu: u16, framed: u32, gateway: u32,
            state in prop_oneof![Just(SessionState::Negotiating), Just(SessionState::Forwarding)],
            s_vlan in proptest::option::of(0u16..4095), c_vlan in proptest::option::of(0u16..4095),
            outer_is_88a8: bool,
            nat in proptest::option::of((any::<u32>(), any::<u16>(), any::<u16>(), 1u16..)),
            policy: u16, prefix in proptest::option::of(1u64..),
            delegated in proptest::option::of((any::<u64>(), 1u8..=64)),
        ) -> Session {
            Session {
                generation, state, owner, client_mac, mtu,
                vlans: Vlans { s_vlan, c_vlan, outer_is_88a8 },
                framed_ip: framed.into(), gateway_ip: gateway.into(),
                nat: nat.map(|(address, address_index, first_port, size)| PortBlock {
                    address: address.into(), address_index, first_port, size,
                }),
                policy: PolicyId(policy), ipv6_prefix: prefix.map(from_high),
                delegated: delegated.map(|(prefix, length)| Delegated { prefix: from_high(prefix), length }),
            }
        }
    }

    fn no_stats() -> SessionStats {
        let zero = || AtomicU64::new(0);
        SessionStats {
            up_packets: zero(),
            up_bytes: zero(),
            down_packets: zero(),
            down_bytes: zero(),
            last_up_ms: zero(),
            arrivals: [zero(), zero(), zero()],
        }
    }

    proptest! {
        #[test]
        fn in_no_time_does_more_conform_than_the_burst_and_the_rate_allow(
            before in (1u64..1 << 40, any::<u32>()), cost in 1u64..1 << 40, burst_ns in 0u64..100_000_000,
            packets in prop::collection::vec((0u64..5_000_000, 20u64..1_500), 1..40),
        ) {
            let stats = no_stats();
            let mut now = 1_000_000_000;
            // What another meter has taken must not count for more, nor for less than nothing.
            let other = Meter { cost: before.0, burst_ns: before.1.into() };
            stats.conforms(Policed::Up, other, other.ns(1_500), now);
            let meter = Meter { cost, burst_ns };
            let mut passed = Vec::new();
            for (gap, bytes) in packets {
                now += gap;
                if stats.conforms(Policed::Up, meter, meter.ns(bytes), now) {
                    passed.push((now, meter.ns(bytes)));
                }
            }
            for (at, (first, _)) in passed.iter().enumerate() {
                let mut taken = 0;
                for (time, ns) in &passed[at..] {
                    taken += ns;
                    prop_assert!(taken <= burst_ns + (time - first));
                }
            }
            // After a burst's time without traffic all of the burst is there again.
            now += burst_ns;
            prop_assert!(stats.conforms(Policed::Up, meter, burst_ns, now));
            prop_assert!(!stats.conforms(Policed::Up, meter, 1, now));
        }
    }

    proptest! {
        #[test]
        fn a_session_survives_the_table(session in any_session()) {
            let slot = Slot::new();
            slot.write(session.generation, session.state, session.owner, &session.to_words());
            let (state, words) = slot.read_raw().unwrap();
            let [a, b, c, d, e, prefix, delegated] = words;
            let line = SessionLine { state, words: [a, b, c, d, e] };
            let line6 = SessionLine6 { line, ipv6: [prefix, delegated] };
            prop_assert_eq!(line6.session(), Some(session));
            prop_assert_eq!((line.policy(), line.nat()), (session.policy, session.nat));
            let Vlans { s_vlan, c_vlan, .. } = session.vlans;
            prop_assert!(line.is_from(Sender::new(session.client_mac, s_vlan, c_vlan)));
            let mut other = session.client_mac;
            other[5] ^= 1;
            prop_assert!(!line.is_from(Sender::new(other, s_vlan, c_vlan)));
            prop_assert!(!line.is_from(Sender::new(session.client_mac, s_vlan, Some(4095))));
            prop_assert!(!line.is_from(Sender::new(session.client_mac, Some(4095), c_vlan)));
        }
    }

    #[test]
    fn entry_and_stats_are_two_lines() {
        assert_eq!(size_of::<SessionEntry>(), 128);
        assert_eq!(std::mem::offset_of!(SessionEntry, stats), 64);
    }

    #[test]
    fn the_slot_is_port_and_session_id() {
        let slot = SlotIndex::new(3, 0x1234);
        assert_eq!(
            (slot.0, slot.access_port(), slot.session_id()),
            (0x3_1234, 3, 0x1234)
        );
    }
}
