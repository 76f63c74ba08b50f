//! `vlans` of an access port: which VLANs it serves, and how.

use serde::{Deserialize, Deserializer};

use crate::text::{decimal, from_text};

/// One entry of `vlans` of an access port. The first entry whose tags fit is the subscriber's.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VlanEntry {
    /// VLAN id of the outer or only tag.
    pub s_vlan: VlanIds,
    /// VLAN id of the inner tag. Default `none`.
    #[serde(default)]
    pub c_vlan: VlanIds,
    /// Policy of users without one of their own. Default none: `auth.default_policy`.
    #[serde(default)]
    pub policy: Option<String>,
    /// Address pool. Default none: the first pool that has an address free.
    #[serde(default)]
    pub pool: Option<String>,
    /// Largest MRU, in bytes, 576 to 9,592. Default none: `pppoe.mru`.
    #[serde(default)]
    pub mru: Option<u16>,
    /// Sessions one MAC may have on one VLAN, 1 to 1,024. Default none: `pppoe.max_sessions_per_mac`.
    #[serde(default)]
    pub max_sessions_per_mac: Option<u16>,
    /// How long a PADO is held back, in milliseconds, 0 to 5,000. Default none: `pppoe.pado_delay_ms`.
    #[serde(default)]
    pub pado_delay_ms: Option<u16>,
    /// Service names offered, an empty list for any. Default none: `pppoe.service_names`.
    #[serde(default)]
    pub service_names: Option<Vec<String>>,
}

impl VlanEntry {
    /// Whether a frame with these tags is of this entry. As in [`crate::Port::vlan_entry`], 0 is no tag.
    pub(crate) fn fits(&self, s_vlan: u16, c_vlan: u16) -> bool {
        self.s_vlan.contains(s_vlan) && self.c_vlan.contains(c_vlan)
    }
}

/// VLAN ids of one tag: in the file a number, a range `100-199`, `any` (1 to 4,094) or `none` (no tag).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VlanIds {
    // A tag that is not there has id 0, which no VLAN has.
    first: u16,
    last: u16,
}

impl VlanIds {
    /// No tag, or one with VLAN id 0, which carries a priority only (IEEE 802.1Q).
    pub const NONE: Self = Self { first: 0, last: 0 };
    /// Any tag with a VLAN id, 1 to 4,094.
    pub const ANY: Self = Self {
        first: 1,
        last: 4094,
    };

    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "none" => return Some(Self::NONE),
            "any" => return Some(Self::ANY),
            _ => {}
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let id = |text| u16::try_from(decimal(text, 1, 4094)?).ok();
        let (first, last) = (id(first)?, id(last)?);
        (first <= last).then_some(Self { first, last })
    }

    /// Whether a tag fits; VLAN id 0 is no tag.
    #[must_use]
    pub const fn contains(self, id: u16) -> bool {
        self.first <= id && id <= self.last
    }

    /// First and last VLAN id; 0 and 0 for no tag.
    #[must_use]
    pub const fn bounds(self) -> (u16, u16) {
        (self.first, self.last)
    }
}

impl<'de> Deserialize<'de> for VlanIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer, Self::parse)
    }
}

impl crate::Port {
    /// Whether this port serves VLANs that it does not serve as `before`. No entry at all serves every VLAN.
    #[must_use]
    pub fn serves_more_than(&self, before: &Self) -> bool {
        let is_new = |entry: &VlanEntry| !is_covered(entry, &before.vlans);
        !before.vlans.is_empty() && (self.vlans.is_empty() || self.vlans.iter().any(is_new))
    }
}

/// The first entry that those before it leave nothing, with the first of those that share a VLAN with it.
pub(crate) fn unreachable(entries: &[VlanEntry]) -> Option<(usize, usize)> {
    entries.iter().enumerate().find_map(|(at, entry)| {
        let before = &entries[..at];
        let shared = before.iter().position(|other| {
            overlap(other.s_vlan, entry.s_vlan) && overlap(other.c_vlan, entry.c_vlan)
        })?;
        is_covered(entry, before).then_some((at, shared))
    })
}

fn overlap(one: VlanIds, other: VlanIds) -> bool {
    one.first <= other.last && other.first <= one.last
}

/// Whether the entries together take every pair of tags of `entry`.
fn is_covered(entry: &VlanEntry, others: &[VlanEntry]) -> bool {
    let mut s_vlan = entry.s_vlan.first;
    loop {
        // Between two ends of the others' outer ranges the inner ranges are the same for all outer ids.
        let here: Vec<&VlanEntry> = (others.iter())
            .filter(|other| other.s_vlan.contains(s_vlan))
            .collect();
        if !covers(&here, entry.c_vlan) {
            return false;
        }
        let next = (others.iter())
            .flat_map(|other| [other.s_vlan.first, other.s_vlan.last + 1])
            .filter(|end| *end > s_vlan)
            .min();
        match next {
            Some(next) if next <= entry.s_vlan.last => s_vlan = next,
            _ => return true,
        }
    }
}

fn covers(entries: &[&VlanEntry], c_vlan: VlanIds) -> bool {
    let mut id = c_vlan.first;
    while id <= c_vlan.last {
        let reach = (entries.iter())
            .filter(|entry| entry.c_vlan.contains(id))
            .map(|entry| entry.c_vlan.last)
            .max();
        match reach {
            Some(last) => id = last + 1,
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ids() -> impl Strategy<Value = VlanIds> {
        prop_oneof![
            Just(VlanIds::NONE),
            (1u16..6, 0u16..4).prop_map(|(first, more)| VlanIds {
                first,
                last: first + more
            })
        ]
    }

    fn entry(s_vlan: VlanIds, c_vlan: VlanIds) -> VlanEntry {
        VlanEntry {
            s_vlan,
            c_vlan,
            policy: None,
            pool: None,
            mru: None,
            max_sessions_per_mac: None,
            pado_delay_ms: None,
            service_names: None,
        }
    }

    proptest! {
        #[test]
        fn an_entry_is_unreachable_exactly_when_no_pair_of_tags_is_left(
            all in prop::collection::vec((ids(), ids()), 1..7)
        ) {
            let entries: Vec<_> = all.into_iter().map(|(s, c)| entry(s, c)).collect();
            let pairs = || (0u16..10).flat_map(|s| (0u16..10).map(move |c| (s, c)));
            let expected = (0..entries.len()).find(|at| {
                pairs().filter(|(s, c)| entries[*at].fits(*s, *c))
                    .all(|(s, c)| entries[..*at].iter().any(|it| it.fits(s, c)))
            });
            let found = unreachable(&entries);
            prop_assert_eq!(found.map(|(at, _)| at), expected);
            if let Some((at, shared)) = found {
                prop_assert!(pairs().any(|(s, c)| entries[at].fits(s, c) && entries[shared].fits(s, c)));
            }
        }
    }

    #[test]
    fn vlan_ids_are_numbers_ranges_and_two_words() {
        let ids = |first, last| Some(VlanIds { first, last });
        assert_eq!(VlanIds::parse("100"), ids(100, 100));
        assert_eq!(VlanIds::parse("1-4094"), Some(VlanIds::ANY));
        assert_eq!(VlanIds::parse("any"), Some(VlanIds::ANY));
        assert_eq!(VlanIds::parse("none"), Some(VlanIds::NONE));
        for wrong in ["", "0", "4095", "200-100", "1-", "-5", "01", "all", "1-2-3"] {
            assert_eq!(VlanIds::parse(wrong), None, "{wrong}");
        }
        assert!(VlanIds::NONE.contains(0) && !VlanIds::NONE.contains(1));
        assert!(!VlanIds::ANY.contains(0) && !VlanIds::ANY.contains(4095));
    }
}
