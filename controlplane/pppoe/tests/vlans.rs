//! VLAN profiles: whom an access port serves and how; priority tags.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod peer;

use bng_pppoe::codec::TagWriter;
use bng_pppoe::codec::frame;
use bng_pppoe::codec::tags::kind;
use bng_pppoe::{Config, ConfigError, DropReason, PortId, ServicePolicy, VlanProfile};
use bng_wire::VlanStack;
use bng_wire::ethernet::ethertype;
use peer::*;

/// C-VLANs 1 to 9 of S-VLAN 100 with a service of their own, one session each; untagged with a small MRU.
fn served() -> Config {
    let profile = |s_vlan, c_vlan| VlanProfile {
        port: PORT,
        s_vlan,
        c_vlan,
        services: ServicePolicy::Any,
        sessions_per_mac: 4,
        max_mru: 1492,
        pado_delay: core::time::Duration::ZERO,
    };
    Config {
        vlans: vec![
            VlanProfile {
                services: ServicePolicy::Listed(vec![b"gold".to_vec()]),
                sessions_per_mac: 1,
                ..profile(100..=100, 1..=9)
            },
            VlanProfile {
                max_mru: 1000,
                ..profile(0..=0, 0..=0)
            },
            profile(1..=4094, 0..=0),
        ],
        ..config()
    }
}

fn two(outer: u16, inner: u16) -> VlanStack {
    VlanStack::double(tag(ethertype::QINQ, outer), tag(ethertype::VLAN, inner))
}

fn one(vid: u16) -> VlanStack {
    VlanStack::single(tag(ethertype::VLAN, vid))
}

fn client(number: u16, vlans: VlanStack) -> Client {
    Client {
        vlans,
        ..Client::new(number)
    }
}

#[test]
fn discovery_on_a_vlan_that_is_not_served_is_counted_and_not_answered() {
    let mut world = World::new(served());
    for vlans in [two(100, 10), two(101, 5)] {
        assert!(world.feed(&client(1, vlans).padi()).is_empty());
        assert_eq!(world.last_drop, Some(DropReason::VlanNotConfigured));
    }
    assert_eq!(world.dropped(DropReason::VlanNotConfigured), 2);
    for vlans in [two(100, 9), one(7), VlanStack::UNTAGGED] {
        assert_eq!(world.feed(&client(1, vlans).padi()).len(), 1, "{vlans:?}");
    }
    // The other port has no profiles and serves everybody.
    let other = client(1, two(200, 200));
    assert_eq!(world.feed_on(PortId(1), &other.padi()).len(), 1);
}

#[test]
fn services_and_sessions_per_mac_are_those_of_the_vlan() {
    let mut world = World::new(served());
    let mut gold = client(1, two(100, 5));
    gold.service_name = b"tin".to_vec();
    assert!(world.feed(&gold.padi()).is_empty());
    assert_eq!(world.last_drop, Some(DropReason::PadiServiceName));
    gold.service_name = b"gold".to_vec();
    gold.dial(&mut world);
    assert_eq!(world.ac.sessions().count(), 1);
    world.feed(&gold.padi());
    assert_eq!(world.last_drop, Some(DropReason::PadiBusy));

    let mut plain = client(1, one(7));
    plain.service_name = b"tin".to_vec();
    for sessions in 2..=4 {
        plain.dial(&mut world);
        assert_eq!(world.ac.sessions().count(), sessions);
    }
}

#[test]
fn the_largest_mru_is_that_of_the_vlan() {
    let mut world = World::new(served());
    client(1, VlanStack::UNTAGGED).dial(&mut world);
    let record = record_of(&world);
    assert_eq!((record.link_mru, record.our_mru), (1000, 1000));
    client(2, one(7)).dial(&mut world);
    assert_eq!(record_of(&world).link_mru, 1492);
    let mut large = TagWriter::new(100);
    assert!(large.put(kind::SERVICE_NAME, b"") && large.put(kind::PPP_MAX_PAYLOAD, &[5, 220]));
    let padi = client(3, VlanStack::UNTAGGED).padi_with(&large.finish());
    let answer = world.feed(&padi);
    let (_, _, tags) = as_discovery(&answer[0]);
    assert_eq!(
        tags.find(kind::PPP_MAX_PAYLOAD),
        None,
        "not above the VLAN's MRU"
    );
}

#[test]
fn priority_tagged_frames_are_untagged_ones_and_are_answered_untagged() {
    for vlans in [one(0), two(0, 0), one(0xe000)] {
        let mut world = World::new(served());
        let answer = world.feed(&client(1, vlans).padi());
        let pado = frame::parse(&answer[0]).unwrap();
        assert_eq!(pado.vlans, VlanStack::UNTAGGED, "{vlans:?}");
    }
    let mut world = World::new(served());
    let answer = world.feed(&client(1, two(0xe000, 0x6007)).padi());
    let pado = frame::parse(&answer[0]).unwrap();
    assert_eq!(pado.vlans.count(), 1);
    assert_eq!(pado.vlans.s_vlan(), 7, "the tag that names a VLAN stays");
}

#[test]
fn profiles_that_cannot_be_are_refused() {
    let with = |change: fn(&mut VlanProfile)| {
        let mut config = served();
        change(&mut config.vlans[0]);
        config.check()
    };
    assert_eq!(with(|_| {}), Ok(()));
    assert_eq!(
        with(|it| it.port = PortId(9)),
        Err(ConfigError::VlanPort(PortId(9)))
    );
    let mru = ConfigError::VlanMru {
        port: PORT,
        max_mru: 500,
        floor: 576,
    };
    assert_eq!(with(|it| it.max_mru = 500), Err(mru));
    assert!(matches!(
        with(|it| it.sessions_per_mac = 0),
        Err(ConfigError::Zero(_))
    ));
}
