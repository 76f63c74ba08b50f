//! Stage: are the frame's VLANs served on its port?
//!
//! Asked for discovery only. A session frame is compared with its session, which began with a PADR that was admitted: no
//! other frame gets past the look-up, and admission has nothing to add.

use bng_shm::Counter;
use bng_wire::{VlanStack, VlanTag};

use crate::verdict::{Step, drop};

/// VLANs of one entry of a port's `vlans`: first and last id of each tag; 0 and 0 for no tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VlanRange {
    /// Outer or only tag.
    pub s_vlan: (u16, u16),
    /// Inner tag.
    pub c_vlan: (u16, u16),
}

/// Goes on if one of the port's ranges has the tags, or if it has none at all: then every VLAN is served. A tag with VID 0
/// is passed over, as in [`crate::session::sender`].
pub(crate) fn served(ranges: &[VlanRange], tags: &VlanStack) -> Step<()> {
    let mut vids = tags.iter().map(VlanTag::vid).filter(|vid| *vid != 0);
    let (s_vlan, c_vlan) = (vids.next().unwrap_or(0), vids.next().unwrap_or(0));
    let within = |(first, last), vid| first <= vid && vid <= last;
    let fits = |range: &VlanRange| within(range.s_vlan, s_vlan) && within(range.c_vlan, c_vlan);
    if ranges.is_empty() || ranges.iter().any(fits) {
        Ok(())
    } else {
        drop(Counter::VlanNotConfigured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bng_wire::ethernet::ethertype;

    #[test]
    fn tags_are_served_by_any_entry_that_has_them() {
        let tag = |vid: u16| VlanTag {
            tpid: ethertype::VLAN,
            tci: 0xe000 | vid,
        };
        let none = VlanStack::UNTAGGED;
        let one = |vid| VlanStack::single(tag(vid));
        let two = |outer, inner| VlanStack::double(tag(outer), tag(inner));
        let range = |s_vlan, c_vlan| VlanRange { s_vlan, c_vlan };
        let ranges = [
            range((100, 199), (1, 4_094)),
            range((200, 200), (0, 0)),
            range((0, 0), (0, 0)),
        ];
        for tags in [none, one(0), two(0, 0), one(200), two(0, 200), two(200, 0)] {
            assert_eq!(served(&ranges, &tags), Ok(()), "{tags:?}");
            assert!(served(&ranges[..2], &none).is_err());
        }
        assert_eq!(served(&ranges, &two(100, 1)), Ok(()));
        for tags in [one(100), one(201), two(200, 7), two(99, 1), two(200, 1)] {
            assert_eq!(
                served(&ranges, &tags),
                drop(Counter::VlanNotConfigured),
                "{tags:?}"
            );
            assert_eq!(served(&[], &tags), Ok(()));
        }
    }
}
