//! Per-session filters: small rule sets by name. Control publishes them, a worker keeps a plain copy ([`Filters`]) and
//! refreshes it when the version has moved.

use crate::shared::shared;
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;

/// Index of a rule set, position in the configuration's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FilterId(pub u8);

/// Rule sets there may be.
pub const MAX_FILTERS: usize = 256;
/// Rules in a rule set and direction.
pub const MAX_RULES: usize = 32;

/// What becomes of a packet that a rule fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FilterAction {
    /// It goes on.
    Accept,
    /// It is dropped.
    Drop,
}

/// One rule; all of its conditions must hold. "Remote" is the other end, "local" the subscriber, in both directions; the
/// subscriber's address and port are those inside NAT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FilterRule {
    /// What becomes of the packet.
    pub action: FilterAction,
    /// IP protocol number; `None` for any.
    pub protocol: Option<u8>,
    /// Remote network and prefix length; `None` for any address of either family.
    pub remote: Option<(IpAddr, u8)>,
    /// Remote ports, both ends included (TCP and UDP); `None` for any.
    pub remote_ports: Option<(u16, u16)>,
    /// Local ports, both ends included.
    pub local_ports: Option<(u16, u16)>,
}

/// A rule set: the first rule that fits decides.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    /// Rules for what the subscriber sends.
    pub up: Vec<FilterRule>,
    /// Rules for what the subscriber receives.
    pub down: Vec<FilterRule>,
    /// Upstream packets no rule fits are dropped (else accepted).
    pub drop_other_up: bool,
    /// Downstream packets no rule fits are dropped (else accepted).
    pub drop_other_down: bool,
}

/// Words of a rule.
const RULE_WORDS: usize = 4;

/// A rule set in the mapping: `valid:1 .. | other up:1 | other down:1 | up:8 | down:8`, then the rules.
#[repr(C)]
pub(crate) struct FilterWords {
    pub(crate) head: AtomicU64,
    pub(crate) rules: [[AtomicU64; RULE_WORDS]; 2 * MAX_RULES],
}

shared!(FilterWords, FilterWords { head, rules });

const VALID: u64 = 1 << 63;
const DROP_UP: u64 = 1 << 16;
const DROP_DOWN: u64 = 1 << 17;

const DROP: u64 = 1;
const HAS_PROTOCOL: u64 = 1 << 1;
const HAS_REMOTE: u64 = 1 << 2;
const REMOTE_IS_V6: u64 = 1 << 3;
const HAS_REMOTE_PORTS: u64 = 1 << 4;
const HAS_LOCAL_PORTS: u64 = 1 << 5;

impl FilterRule {
    pub(crate) fn to_words(self) -> [u64; RULE_WORDS] {
        let mut meta = 0;
        if self.action == FilterAction::Drop {
            meta |= DROP;
        }
        if let Some(protocol) = self.protocol {
            meta |= HAS_PROTOCOL | u64::from(protocol) << 8;
        }
        let mut address = 0;
        if let Some((remote, length)) = self.remote {
            meta |= HAS_REMOTE | u64::from(length) << 16;
            match remote {
                IpAddr::V4(remote) => address = u128::from(remote.to_bits()),
                IpAddr::V6(remote) => {
                    meta |= REMOTE_IS_V6;
                    address = remote.to_bits();
                }
            }
        }
        let mut ports = 0;
        if let Some((low, high)) = self.remote_ports {
            meta |= HAS_REMOTE_PORTS;
            ports |= u64::from(low) << 48 | u64::from(high) << 32;
        }
        if let Some((low, high)) = self.local_ports {
            meta |= HAS_LOCAL_PORTS;
            ports |= u64::from(low) << 16 | u64::from(high);
        }
        [meta, (address >> 64) as u64, address as u64, ports]
    }

    pub(crate) fn from_words(words: [u64; RULE_WORDS]) -> Self {
        let [meta, high, low, ports] = words;
        let has = |bit: u64| meta & bit != 0;
        let length = (meta >> 16) as u8;
        let remote = if has(REMOTE_IS_V6) {
            let address = u128::from(high) << 64 | u128::from(low);
            (IpAddr::V6(address.into()), length.min(128))
        } else {
            (IpAddr::V4((low as u32).into()), length.min(32))
        };
        Self {
            action: if has(DROP) {
                FilterAction::Drop
            } else {
                FilterAction::Accept
            },
            protocol: has(HAS_PROTOCOL).then_some((meta >> 8) as u8),
            remote: has(HAS_REMOTE).then_some(remote),
            remote_ports: has(HAS_REMOTE_PORTS)
                .then_some(((ports >> 48) as u16, (ports >> 32) as u16)),
            local_ports: has(HAS_LOCAL_PORTS).then_some(((ports >> 16) as u16, ports as u16)),
        }
    }
}

impl Filter {
    pub(crate) fn head(&self) -> u64 {
        let flag = |on: bool, bit: u64| if on { bit } else { 0 };
        VALID
            | flag(self.drop_other_up, DROP_UP)
            | flag(self.drop_other_down, DROP_DOWN)
            | (self.up.len() as u64) << 8
            | self.down.len() as u64
    }

    /// `rules` are the places of both directions, upstream first.
    pub(crate) fn from_words(head: u64, rule: impl Fn(usize) -> [u64; RULE_WORDS]) -> Option<Self> {
        if head & VALID == 0 {
            return None;
        }
        let rules = |from: usize, count: u64| {
            let count = (count as usize & 0xff).min(MAX_RULES);
            (from..from + count)
                .map(|at| FilterRule::from_words(rule(at)))
                .collect()
        };
        Some(Self {
            up: rules(0, head >> 8),
            down: rules(MAX_RULES, head),
            drop_other_up: head & DROP_UP != 0,
            drop_other_down: head & DROP_DOWN != 0,
        })
    }
}

/// A worker's own copy of all rule sets, by [`FilterId`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filters {
    pub(crate) sets: Vec<Option<Filter>>,
    pub(crate) version: u64,
}

impl Filters {
    /// The rule set; `None` when control has published none under this index: then nothing may pass.
    #[inline]
    #[must_use]
    pub fn get(&self, id: FilterId) -> Option<&Filter> {
        self.sets.get(usize::from(id.0))?.as_ref()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_rule() -> impl Strategy<Value = FilterRule> {
        let remote = prop_oneof![
            (any::<u32>(), 0u8..=32).prop_map(|(a, l)| (IpAddr::V4(a.into()), l)),
            (any::<u128>(), 0u8..=128).prop_map(|(a, l)| (IpAddr::V6(a.into()), l)),
        ];
        let ports = || prop::option::of(any::<(u16, u16)>());
        (
            any::<bool>(),
            prop::option::of(any::<u8>()),
            prop::option::of(remote),
            ports(),
            ports(),
        )
            .prop_map(
                |(drop, protocol, remote, remote_ports, local_ports)| FilterRule {
                    action: if drop {
                        FilterAction::Drop
                    } else {
                        FilterAction::Accept
                    },
                    protocol,
                    remote,
                    remote_ports,
                    local_ports,
                },
            )
    }

    proptest! {
        #[test]
        fn a_filter_survives_its_words(
            up in prop::collection::vec(any_rule(), 0..=MAX_RULES),
            down in prop::collection::vec(any_rule(), 0..=MAX_RULES),
            drop_other_up: bool, drop_other_down: bool,
        ) {
            let filter = Filter { up, down, drop_other_up, drop_other_down };
            let back = Filter::from_words(filter.head(), |at| {
                let rules = if at < MAX_RULES { &filter.up } else { &filter.down };
                rules[at % MAX_RULES].to_words()
            });
            prop_assert_eq!(back, Some(filter));
        }
    }
}
