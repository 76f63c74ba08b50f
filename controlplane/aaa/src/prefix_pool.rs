//! IPv6 prefixes for subscribers: the /64 of a session, or what is delegated to it.

use std::fmt;
use std::net::Ipv6Addr;
use std::sync::Arc;

use thiserror::Error;

use crate::occupancy::Occupancy;

/// A prefix of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    /// Its address; bits beyond the length are zero.
    pub address: Ipv6Addr,
    /// Its length, 1 to 64.
    pub length: u8,
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl Prefix {
    /// Upper half of the address, which is all that differs between prefixes.
    #[must_use]
    pub const fn high(&self) -> u64 {
        (self.address.to_bits() >> 64) as u64
    }

    /// Whether an address lies in it.
    #[must_use]
    pub const fn contains(&self, address: Ipv6Addr) -> bool {
        let host_bits = 128 - self.length as u32;
        let differs = self.address.to_bits() ^ address.to_bits();
        // A length of 0 leaves nothing to compare.
        matches!(differs.checked_shr(host_bits), None | Some(0))
    }
}

/// The pool has no free prefix.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no free prefix in {pool}")]
pub struct PrefixesExhausted {
    /// Name of the pool.
    pub pool: String,
}

/// A prefix that cannot be taken or given back.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PrefixError {
    /// The pool does not hand it out.
    #[error("{prefix} is not a prefix of {pool}")]
    NotInPool {
        /// The prefix.
        prefix: Prefix,
        /// Name of the pool.
        pool: String,
    },
    /// Another session has it.
    #[error("{prefix} of {pool} is already in use")]
    InUse {
        /// The prefix.
        prefix: Prefix,
        /// Name of the pool.
        pool: String,
    },
    /// Nobody has it.
    #[error("{prefix} of {pool} is not in use")]
    NotInUse {
        /// The prefix.
        prefix: Prefix,
        /// Name of the pool.
        pool: String,
    },
}

/// A run of prefixes; slots are numbered through all runs of a pool.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// Upper half of the first prefix.
    first: u64,
    count: u32,
    base: u32,
}

/// Prefixes of one length. Every operation is O(number of ranges).
///
/// As with addresses, a subscriber that comes back finds its old prefix while the pool has others to give, and the one that
/// has been free longest is given first.
#[derive(Debug)]
pub struct PrefixPool {
    name: String,
    length: u8,
    runs: Vec<Run>,
    occupancy: Occupancy,
}

impl PrefixPool {
    /// A pool of the prefixes of length `length` (1 to 64) in these ranges, all free. A range is a prefix that is no longer
    /// than `length`; ranges do not overlap and hold less than 2^32 prefixes together.
    pub fn new(
        name: impl Into<String>,
        length: u8,
        ranges: impl IntoIterator<Item = Prefix>,
    ) -> Self {
        let length = length.clamp(1, 64);
        let (mut runs, mut base) = (Vec::new(), 0u32);
        for range in ranges {
            let count = 1u32
                .checked_shl(u32::from(length.saturating_sub(range.length)))
                .unwrap_or(u32::MAX)
                .min(u32::MAX - 1 - base);
            runs.push(Run {
                first: range.high(),
                count,
                base,
            });
            base += count;
        }
        Self {
            name: name.into(),
            length,
            runs,
            occupancy: Occupancy::new(base),
        }
    }

    /// Name for operators.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Prefixes in use.
    pub fn used(&self) -> u32 {
        self.occupancy.used()
    }

    /// Prefixes the pool hands out.
    pub fn total(&self) -> u32 {
        self.occupancy.total()
    }

    /// Takes a prefix for a subscriber: the one it had last if that is free, else the one that has been free longest.
    ///
    /// # Errors
    ///
    /// [`PrefixesExhausted`] when none is free.
    pub fn allocate(&mut self, subscriber: &[u8]) -> Result<Prefix, PrefixesExhausted> {
        let slot = (self.occupancy.allocate_sticky(subscriber))
            .or_else(|| self.occupancy.allocate_oldest(subscriber));
        slot.and_then(|slot| self.prefix(slot))
            .ok_or_else(|| PrefixesExhausted {
                pool: self.name.clone(),
            })
    }

    /// Takes exactly this prefix, for a session adopted after a restart.
    ///
    /// # Errors
    ///
    /// [`PrefixError::NotInPool`] or [`PrefixError::InUse`].
    pub fn reserve(&mut self, prefix: Prefix, subscriber: &[u8]) -> Result<(), PrefixError> {
        let slot = self.slot(prefix)?;
        if self.occupancy.reserve(slot, subscriber) {
            return Ok(());
        }
        Err(PrefixError::InUse {
            prefix,
            pool: self.name.clone(),
        })
    }

    /// Gives a prefix back. Call it only after every worker has passed the epoch of the session's withdrawal.
    ///
    /// # Errors
    ///
    /// [`PrefixError::NotInPool`] or [`PrefixError::NotInUse`]; nothing changes then.
    pub fn release(&mut self, prefix: Prefix) -> Result<(), PrefixError> {
        let slot = self.slot(prefix)?;
        if self.occupancy.release(slot) {
            return Ok(());
        }
        Err(PrefixError::NotInUse {
            prefix,
            pool: self.name.clone(),
        })
    }

    /// Whether this is one of the prefixes the pool hands out.
    #[must_use]
    pub fn hands_out(&self, prefix: Prefix) -> bool {
        self.find(prefix).is_some()
    }

    /// Whom a prefix was given to that is in use.
    #[must_use]
    pub fn holder(&self, prefix: Prefix) -> Option<Arc<[u8]>> {
        self.occupancy.holder(self.find(prefix)?).cloned()
    }

    fn prefix(&self, slot: u32) -> Option<Prefix> {
        let run = (self.runs.iter()).find(|run| slot.wrapping_sub(run.base) < run.count)?;
        let high = run.first + (u64::from(slot - run.base) << (64 - self.length));
        Some(Prefix {
            address: Ipv6Addr::from_bits(u128::from(high) << 64),
            length: self.length,
        })
    }

    fn slot(&self, prefix: Prefix) -> Result<u32, PrefixError> {
        self.find(prefix).ok_or_else(|| PrefixError::NotInPool {
            prefix,
            pool: self.name.clone(),
        })
    }

    fn find(&self, prefix: Prefix) -> Option<u32> {
        let high = prefix.high();
        let step = 64 - self.length;
        let is_whole = prefix.length == self.length
            && prefix.address.to_bits() as u64 == 0
            && high & !(u64::MAX << step) == 0;
        let slot = |run: &Run| {
            let at = high.checked_sub(run.first)? >> step;
            (at < u64::from(run.count)).then(|| run.base + at as u32)
        };
        is_whole.then(|| self.runs.iter().find_map(slot)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn prefix(text: &str) -> Prefix {
        let (address, length) = text.split_once('/').unwrap();
        Prefix {
            address: address.parse().unwrap(),
            length: length.parse().unwrap(),
        }
    }

    fn pool() -> PrefixPool {
        let ranges = [prefix("2001:db8::/62"), prefix("2001:db8:0:100::/63")];
        PrefixPool::new("home prefixes", 64, ranges)
    }

    #[test]
    fn prefixes_come_from_all_ranges_and_the_name_is_said_when_none_is_left() {
        let mut pool = pool();
        let given: Vec<_> = (0u8..6)
            .map(|n| pool.allocate(&[n]).unwrap().to_string())
            .collect();
        let expected = [
            "2001:db8::/64",
            "2001:db8:0:1::/64",
            "2001:db8:0:2::/64",
            "2001:db8:0:3::/64",
            "2001:db8:0:100::/64",
            "2001:db8:0:101::/64",
        ];
        assert_eq!(given, expected);
        assert_eq!((pool.used(), pool.total()), (6, 6));
        let refused = pool.allocate(b"late").unwrap_err();
        assert_eq!(refused.to_string(), "no free prefix in home prefixes");
    }

    #[test]
    fn a_subscriber_gets_its_old_prefix_while_it_is_free_and_the_last_released_is_given_last() {
        let mut pool = pool();
        let alice = pool.allocate(b"alice").unwrap();
        pool.release(alice).unwrap();
        let others: Vec<_> = (0u8..5).map(|n| pool.allocate(&[n]).unwrap()).collect();
        assert!(!others.contains(&alice));
        assert_eq!(pool.allocate(b"alice"), Ok(alice));
    }

    #[test]
    fn only_whole_prefixes_of_the_pool_are_adopted_and_only_once() {
        let mut pool = PrefixPool::new("pd", 56, [prefix("2001:db8:1000::/52")]);
        assert_eq!(pool.total(), 16);
        let good = prefix("2001:db8:1000:f00::/56");
        assert_eq!(pool.reserve(good, b"alice"), Ok(()));
        assert_eq!(
            pool.reserve(good, b"bob").unwrap_err().to_string(),
            "2001:db8:1000:f00::/56 of pd is already in use"
        );
        for bad in [
            "2001:db8:1000:f01::/56",
            "2001:db8:1000:1000::/56",
            "2001:db8:fff:f00::/56",
            "2001:db8:1000:f00::1/56",
            "2001:db8:1000:f00::/60",
        ] {
            let bad = prefix(bad);
            let unknown = PrefixError::NotInPool {
                prefix: bad,
                pool: "pd".to_owned(),
            };
            assert_eq!(pool.reserve(bad, b"x"), Err(unknown.clone()));
            assert_eq!(pool.release(bad), Err(unknown));
        }
        assert!(pool.release(prefix("2001:db8:1000:100::/56")).is_err());
        assert!(pool.hands_out(good) && !pool.hands_out(prefix("2001:db8:1000:f00::/57")));
        assert_eq!(pool.holder(good).as_deref(), Some(&b"alice"[..]));
        assert_eq!(pool.release(good), Ok(()));
        assert_eq!(pool.holder(good), None);
        assert_eq!(pool.used(), 0);
    }

    proptest! {
        #[test]
        fn no_prefix_is_handed_out_twice_and_the_balance_is_right(steps in prop::collection::vec((0u8..3, 0u8..8), 0..200)) {
            let mut pool = pool();
            let all: Vec<_> = (0..pool.total()).map(|slot| pool.prefix(slot).unwrap()).collect();
            let mut held: HashMap<Prefix, u8> = HashMap::new();
            for (step, number) in steps {
                let one = all[usize::from(number) % all.len()];
                match step {
                    0 => match pool.allocate(&[number]) {
                        Ok(prefix) => prop_assert_eq!(held.insert(prefix, number), None),
                        Err(_) => prop_assert_eq!(held.len(), all.len()),
                    },
                    1 => {
                        prop_assert_eq!(pool.reserve(one, &[number]).is_ok(), !held.contains_key(&one));
                        held.entry(one).or_insert(number);
                    }
                    _ => prop_assert_eq!(pool.release(one).is_ok(), held.remove(&one).is_some()),
                }
                prop_assert_eq!(pool.used() as usize, held.len());
            }
        }
    }
}
