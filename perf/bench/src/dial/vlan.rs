//! VLAN tags on the command line.

use std::str::FromStr;

use bng_wire::ethernet::ethertype;
use bng_wire::{VlanStack, VlanTag};

/// `S` or `S.C`, VLAN ids from 1 to 4094.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vlan {
    outer: u16,
    inner: Option<u16>,
}

impl FromStr for Vlan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let id = |text: &str| match text.parse::<u16>() {
            Ok(id @ 1..=4_094) => Ok(id),
            _ => Err(format!("{text:?} is no VLAN id from 1 to 4094")),
        };
        match text.split_once('.') {
            None => Ok(Self {
                outer: id(text)?,
                inner: None,
            }),
            Some((outer, inner)) => Ok(Self {
                outer: id(outer)?,
                inner: Some(id(inner)?),
            }),
        }
    }
}

/// A TPID: 0x8100 or 0x88a8.
pub(crate) fn tpid(text: &str) -> Result<u16, String> {
    match text.trim_start_matches("0x").to_ascii_lowercase().as_str() {
        "8100" => Ok(ethertype::VLAN),
        "88a8" => Ok(ethertype::QINQ),
        _ => Err("must be 0x8100 or 0x88a8".to_owned()),
    }
}

/// The tags of every frame.
pub(crate) fn tags(
    vlan: Option<Vlan>,
    outer_tpid: Option<u16>,
    priority: Option<u16>,
) -> VlanStack {
    let tag = |tpid, tci| VlanTag { tpid, tci };
    match (vlan, priority) {
        (None, None) => VlanStack::UNTAGGED,
        (None, Some(priority)) => VlanStack::single(tag(ethertype::VLAN, priority << 13)),
        (Some(Vlan { outer, inner: None }), _) => {
            VlanStack::single(tag(outer_tpid.unwrap_or(ethertype::VLAN), outer))
        }
        (
            Some(Vlan {
                outer,
                inner: Some(inner),
            }),
            _,
        ) => VlanStack::double(
            tag(outer_tpid.unwrap_or(ethertype::QINQ), outer),
            tag(ethertype::VLAN, inner),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_and_two_tags_are_read_and_nonsense_is_refused() {
        let one = tags(Some("7".parse().unwrap()), None, None);
        assert_eq!((one.count(), one.s_vlan()), (1, 7));
        assert_eq!(one.outer().unwrap().tpid, 0x8100);
        let two = tags(Some("100.4094".parse().unwrap()), None, None);
        assert_eq!((two.s_vlan(), two.c_vlan()), (100, 4_094));
        assert_eq!(two.outer().unwrap().tpid, 0x88a8);
        let two = tags(Some("100.7".parse().unwrap()), Some(0x8100), None);
        assert_eq!(two.outer().unwrap().tpid, 0x8100);
        for text in ["", "0", "4095", "1.", ".1", "1.2.3", "x"] {
            assert!(text.parse::<Vlan>().is_err(), "{text}");
        }
        assert_eq!(tpid("0x88A8"), Ok(0x88a8));
        assert!(tpid("0x9100").is_err());
    }

    #[test]
    fn a_priority_tag_names_no_vlan() {
        let tags = tags(None, None, Some(5));
        assert_eq!((tags.count(), tags.s_vlan()), (1, 0));
        assert_eq!(tags.outer().unwrap().pcp(), 5);
    }
}
