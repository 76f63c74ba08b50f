//! Policies: what a session may send and receive, as workers enforce it.
//!
//! A policy is immutable while a session names it (INV-POLICY-1): control writes it before the entry that names it is
//! published, and writes the place anew only when an epoch has passed since the last entry that named it was changed or
//! withdrawn. So workers read it without a sequence lock. A live change is a new policy and a new entry (HZ-02 R3).

use crate::filters::FilterId;
use crate::shared::shared;
use crate::sync::fault_point;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Index of a policy. 0 is never a policy: a session that names it forwards nothing (drop `no_policy`, HZ-07 R2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct PolicyId(pub u16);

/// Places for policies, the unusable first included.
pub const POLICIES: u32 = 65_536;

/// Largest committed rate, kbit/s (400 Gbit/s).
pub const MAX_RATE_KBPS: u32 = 400_000_000;

/// A committed rate and burst (RFC 2697 with an excess burst of 0, colour-blind: what exceeds is dropped).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Committed information rate of the IP packets, kbit/s (1 to [`MAX_RATE_KBPS`]).
    pub kbps: u32,
    /// Committed burst size, bytes of IP packets; below the MTU large packets never conform.
    pub burst_bytes: u32,
}

/// What a session may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Limit of what the subscriber sends; `None` for no limit.
    pub up: Option<Rate>,
    /// Limit of what the subscriber receives.
    pub down: Option<Rate>,
    /// Packets with a source address other than the session's are dropped (BCP 38). Off only on explicit wish.
    pub source_check: bool,
    /// TCP MSS options are lowered to the session's MTU.
    pub mss_clamp: bool,
    /// Rule set applied to the session.
    pub filter: Option<FilterId>,
}

impl Default for Policy {
    /// No limits, no filter; source check and MSS clamping on.
    fn default() -> Self {
        Self {
            up: None,
            down: None,
            source_check: true,
            mss_clamp: true,
            filter: None,
        }
    }
}

/// A rate as a policer works with it: a virtual scheduling algorithm (GCRA, ITU-T I.371 annex A) on nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meter {
    /// Time a byte takes at the committed rate, in 2^-20 ns; 0 for no limit.
    pub cost: u64,
    /// Time the burst takes at the committed rate, ns.
    pub burst_ns: u64,
}

const FRACTION: u32 = 20;

impl Meter {
    pub(crate) fn of(rate: Option<Rate>) -> Self {
        let Some(rate) = rate else {
            return Self::default();
        };
        let kbps = u128::from(rate.kbps.clamp(1, MAX_RATE_KBPS));
        // 8 bits per byte, 10^6 ns per (kbit/s)^-1 bit.
        let cost = ((8_000_000u128 << FRACTION) / kbps) as u64;
        let burst_ns = (u128::from(rate.burst_bytes) * 8_000_000 / kbps) as u64;
        Self {
            cost: cost.max(1),
            burst_ns,
        }
    }

    /// Time `bytes` (at most 65,535) take at the rate, ns.
    #[inline(always)]
    #[must_use]
    pub const fn ns(self, bytes: u64) -> u64 {
        self.cost.wrapping_mul(bytes) >> FRACTION
    }
}

/// A policy in the mapping: one cache line.
#[repr(C, align(64))]
pub(crate) struct PolicyWords(pub(crate) [AtomicU64; 8]);

shared!(PolicyWords, PolicyWords { 0 });

const VALID: u64 = 1 << 63;
const SOURCE_CHECK: u64 = 1 << 32;
const MSS_CLAMP: u64 = 1 << 33;
const HAS_FILTER: u64 = 1 << 16;

/// Words a worker reads.
const LINE_WORDS: usize = 5;

impl Policy {
    fn to_words(self) -> [u64; 8] {
        let flag = |on: bool, bit: u64| if on { bit } else { 0 };
        let filter = self.filter.map_or(0, |id| HAS_FILTER | u64::from(id.0));
        let (up, down) = (Meter::of(self.up), Meter::of(self.down));
        let rate = |rate: Option<Rate>| {
            rate.map_or(0, |r| u64::from(r.kbps) << 32 | u64::from(r.burst_bytes))
        };
        [
            VALID
                | flag(self.source_check, SOURCE_CHECK)
                | flag(self.mss_clamp, MSS_CLAMP)
                | filter,
            up.cost,
            up.burst_ns,
            down.cost,
            down.burst_ns,
            rate(self.up),
            rate(self.down),
            0,
        ]
    }

    fn from_words(words: [u64; 8]) -> Option<Self> {
        let rate = |word: u64| {
            (word != 0).then_some(Rate {
                kbps: (word >> 32) as u32,
                burst_bytes: word as u32,
            })
        };
        let line = PolicyLine {
            words: std::array::from_fn(|i| words[i]),
        };
        line.is_valid().then_some(Self {
            up: rate(words[5]),
            down: rate(words[6]),
            source_check: line.source_check(),
            mss_clamp: line.mss_clamp(),
            filter: line.filter(),
        })
    }
}

/// A worker's copy of a policy.
#[derive(Debug, Clone, Copy)]
pub struct PolicyLine {
    words: [u64; LINE_WORDS],
}

impl PolicyLine {
    #[inline(always)]
    const fn is_valid(&self) -> bool {
        self.words[0] & VALID != 0
    }

    /// The upstream policer.
    #[inline(always)]
    #[must_use]
    pub const fn up(&self) -> Meter {
        Meter {
            cost: self.words[1],
            burst_ns: self.words[2],
        }
    }

    /// The downstream policer.
    #[inline(always)]
    #[must_use]
    pub const fn down(&self) -> Meter {
        Meter {
            cost: self.words[3],
            burst_ns: self.words[4],
        }
    }

    /// As [`Policy::source_check`].
    #[inline(always)]
    #[must_use]
    pub const fn source_check(&self) -> bool {
        self.words[0] & SOURCE_CHECK != 0
    }

    /// As [`Policy::mss_clamp`].
    #[inline(always)]
    #[must_use]
    pub const fn mss_clamp(&self) -> bool {
        self.words[0] & MSS_CLAMP != 0
    }

    /// As [`Policy::filter`].
    #[inline(always)]
    #[must_use]
    pub const fn filter(&self) -> Option<FilterId> {
        filter_of(self.words[0])
    }
}

/// What of a policy concerns usual packets of one direction.
#[derive(Debug, Clone, Copy)]
pub struct PolicyPart {
    head: u64,
    /// The direction's policer.
    pub meter: Meter,
}

impl PolicyPart {
    /// As [`Policy::filter`].
    #[inline(always)]
    #[must_use]
    pub const fn filter(&self) -> Option<FilterId> {
        filter_of(self.head)
    }
}

const fn filter_of(head: u64) -> Option<FilterId> {
    if head & HAS_FILTER == 0 {
        None
    } else {
        Some(FilterId(head as u8))
    }
}

impl PolicyWords {
    /// As [`Self::line`], what concerns usual packets from the subscriber (`up`) or to it, in as few loads.
    #[inline(always)]
    pub(crate) fn part(&self, up: bool) -> Option<PolicyPart> {
        let load = |at: usize| self.0[at].load(Ordering::Relaxed);
        let (head, at) = (load(0), if up { 1 } else { 3 });
        let meter = Meter {
            cost: load(at),
            burst_ns: load(at + 1),
        };
        (head & VALID != 0).then_some(PolicyPart { head, meter })
    }

    /// Empties the place, and says that it is valid again when all of it is there: control may die at any store, and what
    /// it finds it takes up again.
    pub(crate) fn write(&self, policy: Option<&Policy>) {
        let [head, rest @ ..] = &self.0;
        let [valid, values @ ..] = policy.map_or([0; 8], |policy| policy.to_words());
        head.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in rest.iter().zip(values) {
            word.store(value, Ordering::Relaxed);
            fault_point();
        }
        head.store(valid, Ordering::Release);
        fault_point();
    }

    pub(crate) fn read(&self) -> Option<Policy> {
        Policy::from_words(std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed)))
    }

    /// The acquire load of the session's state word before this orders these loads (INV-POLICY-1).
    #[inline(always)]
    pub(crate) fn line(&self) -> Option<PolicyLine> {
        let line = PolicyLine {
            words: std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed)),
        };
        line.is_valid().then_some(line)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_meter_takes_the_time_of_the_committed_rate() {
        let meter = |kbps, burst_bytes| Meter::of(Some(Rate { kbps, burst_bytes }));
        // 1 Mbit/s: 8 us per byte.
        assert_eq!(meter(1_000, 1_500).ns(1_500), 12_000_000);
        assert_eq!(meter(1_000, 1_500).burst_ns, 12_000_000);
        // 100 Gbit/s: 0.08 ns per byte.
        assert_eq!(meter(100_000_000, 0).ns(1_500), 119);
        // 1 kbit/s and the longest packet do not overflow.
        assert_eq!(meter(1, 0).ns(65_535), 524_280_000_000);
        assert_eq!(Meter::of(None).ns(65_535), 0);
    }

    proptest! {
        #[test]
        fn a_policy_survives_its_words(
            rates in prop::array::uniform2(prop::option::of((1u32..=MAX_RATE_KBPS, any::<u32>()))),
            source_check: bool, mss_clamp: bool, filter in prop::option::of(any::<u8>()),
        ) {
            let [up, down] = rates.map(|rate| rate.map(|(kbps, burst_bytes)| Rate { kbps, burst_bytes }));
            let policy = Policy { up, down, source_check, mss_clamp, filter: filter.map(FilterId) };
            let words = PolicyWords(std::array::from_fn(|_| AtomicU64::new(u64::MAX)));
            words.write(Some(&policy));
            prop_assert_eq!(words.read(), Some(policy));
            let line = words.line().unwrap();
            prop_assert_eq!((line.up(), line.down()), (Meter::of(up), Meter::of(down)));
            for (is_up, rate) in [(true, up), (false, down)] {
                let part = words.part(is_up).unwrap();
                prop_assert_eq!((part.meter, part.filter()), (Meter::of(rate), policy.filter));
            }
            prop_assert_eq!(
                (line.source_check(), line.mss_clamp(), line.filter()),
                (source_check, mss_clamp, policy.filter)
            );
            words.write(None);
            prop_assert!(words.read().is_none() && words.line().is_none());
        }
    }
}
