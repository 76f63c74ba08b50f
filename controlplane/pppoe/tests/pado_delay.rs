//! PADOs held back, so that another access concentrator is chosen as long as it answers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod peer;

use std::time::Duration;

use bng_pppoe::codec::tags::kind;
use bng_pppoe::{Config, ConfigError, DropReason, Outcome, PortId, ServicePolicy, VlanProfile};
use bng_wire::pppoe::code;
use bng_wire::{MacAddr, VlanStack};
use peer::*;

const DELAY: Duration = Duration::from_millis(400);

fn delaying() -> Config {
    Config {
        pado_delay: DELAY,
        ..config()
    }
}

#[test]
fn a_pado_leaves_after_the_delay_and_leads_to_a_session() {
    let mut world = World::new(delaying());
    let mut client = Client::new(1);
    assert!(world.feed(&client.padi()).is_empty());
    assert_eq!(world.last_drop, None);
    assert_eq!(world.count(Outcome::PadoSent), 0);
    assert!(world.pass(399).is_empty());
    let sent = world.pass(1);
    assert_eq!(sent.len(), 1);
    assert_eq!(as_discovery(&sent[0].1).0, code::PADO);
    let padr = client.react(&sent[0].1);
    client.converse(&mut world, padr);
    assert_eq!(world.event_names(), ["started", "auth", "up"]);
    assert_eq!(world.count(Outcome::PadoDelayed), 1);
    assert_eq!(world.count(Outcome::PadoSent), 1);
}

#[test]
fn a_repeated_padi_replaces_the_waiting_pado_but_does_not_put_it_off() {
    let mut world = World::new(delaying());
    let mut client = Client::new(1);
    world.feed(&client.padi());
    world.pass(300);
    client.host_uniq = b"second".to_vec();
    assert!(world.feed(&client.padi()).is_empty());
    let sent = world.pass(5_000);
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].0, 100);
    let (_, _, tags) = as_discovery(&sent[0].1);
    assert_eq!(tags.find(kind::HOST_UNIQ), Some(&b"second"[..]));
}

#[test]
fn clients_wait_each_for_itself_in_order() {
    let mut world = World::new(delaying());
    for number in 1..=5 {
        world.feed(&Client::new(number).padi());
        world.pass(10);
    }
    let sent = world.pass(1_000);
    let times: Vec<_> = sent.iter().map(|(at, _)| *at).collect();
    assert_eq!(times, [350, 360, 370, 380, 390]);
}

#[test]
fn a_vlan_may_have_a_delay_of_its_own() {
    let mut with_vlans = delaying();
    let profile = |s_vlan: u16, pado_delay| VlanProfile {
        port: PORT,
        s_vlan: s_vlan..=s_vlan,
        c_vlan: 0..=0,
        services: ServicePolicy::Any,
        sessions_per_mac: 8,
        max_mru: 1492,
        pado_delay,
    };
    with_vlans.vlans = vec![
        profile(7, Duration::ZERO),
        profile(8, Duration::from_millis(900)),
    ];
    let mut world = World::new(with_vlans);
    let on = |vlan| Client {
        vlans: VlanStack::single(tag(0x8100, vlan)),
        ..Client::new(1)
    };
    assert_eq!(world.feed(&on(7).padi()).len(), 1);
    assert!(world.feed(&on(8).padi()).is_empty());
    assert_eq!(world.pass(5_000)[0].0, 900);
}

#[test]
fn a_flood_takes_bounded_memory_and_leaves_nobody_without_an_answer() {
    let mut world = World::new(delaying());
    let mut early = 0;
    for number in 0..5_000 {
        early += world.feed(&Client::new(number).padi()).len();
    }
    assert_eq!(early, 5_000 - 4_096);
    assert_eq!(world.count(Outcome::PadoEarly), 904);
    assert_eq!(world.pass(1_000).len(), 4_096);
    assert_eq!(world.count(Outcome::PadoSent), 5_000);
    assert_eq!(world.ac.poll_timeout(), None);
}

#[test]
fn what_waits_under_a_ports_old_address_is_forgotten() {
    let mut world = World::new(delaying());
    let client = Client::new(1);
    world.feed(&client.padi());
    let mut other = Client::new(2);
    (other.port, other.ac_mac) = (PortId(1), config().ports[1].mac);
    world.feed_on(PortId(1), &other.padi());
    let mac = MacAddr([2, 0xac, 0, 0, 0, 9]);
    assert!(world.ac.set_port_mac(world.now, PORT, mac));
    let sent = world.pass(1_000);
    assert_eq!(sent.len(), 1);
    assert_eq!(
        bng_pppoe::codec::frame::parse(&sent[0].1).unwrap().dst,
        other.mac
    );
}

#[test]
fn what_is_dropped_is_not_answered_later_either() {
    let mut world = World::new(Config {
        services: ServicePolicy::Listed(vec![b"gold".to_vec()]),
        ..delaying()
    });
    let mut client = Client::new(1);
    client.service_name = b"tin".to_vec();
    world.feed(&client.padi());
    assert_eq!(world.last_drop, Some(DropReason::PadiServiceName));
    assert!(world.pass(1_000).is_empty());
}

#[test]
fn a_delay_as_long_as_a_cookies_life_cannot_be_run() {
    let wrong = Config {
        pado_delay: Duration::from_secs(30),
        ..config()
    };
    let error = ConfigError::PadoDelay {
        delay_ms: 30_000,
        lifetime_ms: 30_000,
    };
    assert_eq!(wrong.check(), Err(error));
}
