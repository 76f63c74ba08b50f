//! What can be changed on a running engine, and on a live session.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod peer;

use std::time::Duration;

use bng_pppoe::{
    AuthProtocol, Config, ConfigError, DropReason, Event, Outcome, PortConfig, PortId,
    Reconfigured, ServicePolicy, TerminateCause, VlanProfile,
};
use bng_wire::{MacAddr, VlanStack};
use peer::*;

/// The one session's deadlines, in seconds from now.
fn deadlines(world: &World) -> (Option<u64>, Option<u64>) {
    let info = world.ac.sessions().next().unwrap();
    let seconds = |it: bng_pppoe::Time| it.since(world.now).as_secs();
    (
        info.session_deadline.map(seconds),
        info.idle_deadline.map(seconds),
    )
}

fn seconds(count: u64) -> Option<Option<Duration>> {
    Some(Some(Duration::from_secs(count)))
}

/// Keeps the echo of the one session answered for a while.
fn live_for(world: &mut World, client: &mut Client, seconds: u64) {
    for _ in 0..seconds {
        for (_, frame) in world.pass(1_000) {
            let replies = client.react(&frame);
            for reply in replies {
                world.feed(&reply);
            }
        }
    }
}

#[test]
fn session_time_counts_from_when_the_network_came_up() {
    let (mut world, mut client) = up();
    let session = world.session();
    live_for(&mut world, &mut client, 100);
    assert!(
        world
            .ac
            .set_timeouts(world.now, session, seconds(250), None)
    );
    assert_eq!(deadlines(&world).0, Some(150));
    let record = world.ac.record(session).unwrap();
    assert_eq!(
        record.session_deadline.unwrap().since(world.now).as_secs(),
        150
    );
    assert_eq!(record.grant.session_timeout, Some(Duration::from_secs(250)));

    assert!(world.ac.set_timeouts(world.now, session, Some(None), None));
    assert_eq!(deadlines(&world), (None, None));
    live_for(&mut world, &mut client, 200);
    assert_eq!(world.down_cause(), None);

    assert!(world.ac.set_timeouts(world.now, session, seconds(10), None));
    world.pass(10_000);
    assert_eq!(world.down_cause(), Some(TerminateCause::SessionTimeout));
    assert!(!world.ac.set_timeouts(world.now, session, seconds(10), None));
}

#[test]
fn idle_time_counts_from_the_last_traffic() {
    let (mut world, mut client) = up();
    let session = world.session();
    live_for(&mut world, &mut client, 100);
    assert!(world.ac.note_traffic(world.now, session));
    live_for(&mut world, &mut client, 20);
    assert!(world.ac.set_timeouts(world.now, session, None, seconds(50)));
    assert_eq!(deadlines(&world), (None, Some(30)));
    live_for(&mut world, &mut client, 20);
    assert!(world.ac.note_traffic(world.now, session));
    assert_eq!(deadlines(&world), (None, Some(50)));
    live_for(&mut world, &mut client, 49);
    assert_eq!(world.down_cause(), None);
    assert!(world.ac.set_timeouts(world.now, session, None, Some(None)));
    live_for(&mut world, &mut client, 100);
    assert_eq!(world.down_cause(), None);
    assert!(world.ac.set_timeouts(world.now, session, None, seconds(50)));
    world.pass(10_000);
    assert_eq!(world.down_cause(), Some(TerminateCause::IdleTimeout));
}

#[test]
fn nothing_can_be_set_before_anything_is_granted() {
    let mut world = World::new(config());
    Client::new(1).discover(&mut world);
    let session = world.session();
    assert!(
        !world
            .ac
            .set_timeouts(world.now, session, seconds(1), seconds(1))
    );
    world.pass(3_000);
    assert_eq!(world.down_cause(), None);
}

#[test]
fn a_session_ends_for_the_cause_it_is_told() {
    for cause in [
        TerminateCause::Quota,
        TerminateCause::Replaced,
        TerminateCause::AaaDisconnect,
    ] {
        let (mut world, mut client) = up();
        let session = world.session();
        assert!(world.ac.terminate(world.now, session, cause));
        let frames = world.drain();
        let replies = frames
            .iter()
            .flat_map(|it| client.react(&it.frame))
            .collect();
        client.converse(&mut world, replies);
        assert_eq!(world.down_cause(), Some(cause));
        assert_eq!(world.ended(cause), 1);
    }
}

#[test]
fn other_ports_or_mtus_need_a_restart_and_change_nothing() {
    let (mut world, _) = up();
    let mut added = config();
    added.ports.push(PortConfig {
        id: PortId(2),
        mac: MacAddr([2, 0xac, 0, 0, 0, 3]),
        mtu: 1500,
    });
    let mut removed = config();
    removed.ports.pop();
    let mut changed = config();
    changed.ports[1].mtu = 1500;
    let mut broken = config();
    broken.auth_protocols.clear();
    let to_1500 = ConfigError::PortMtuChanged {
        port: PortId(1),
        from: 1508,
        to: 1500,
    };
    for (mut wrong, error) in [
        (added, ConfigError::PortAdded(PortId(2))),
        (removed, ConfigError::PortRemoved(PortId(1))),
        (changed, to_1500),
        (broken, ConfigError::AuthProtocols),
    ] {
        wrong.ac_name = b"other".to_vec();
        assert_eq!(world.ac.would_reconfigure(&wrong), Err(error));
        assert_eq!(world.ac.reconfigure(world.now, wrong), Err(error));
        assert_eq!(world.ac.config(), &config());
    }
}

#[test]
fn sessions_live_on_and_new_ones_go_by_the_new_configuration() {
    let (mut world, mut client) = up();
    let session = world.session();
    let mut new = config();
    new.services = ServicePolicy::Listed(vec![b"gold".to_vec()]);
    new.limits.sessions_per_mac = 1;
    new.auth_protocols = vec![AuthProtocol::ChapMd5];
    new.ac_name = b"other".to_vec();
    // What a driver read from its file; the running address counts.
    new.ports[0].mac = MacAddr([2, 0xac, 0, 0, 0, 9]);
    assert_eq!(
        world.ac.reconfigure(world.now, new),
        Ok(Reconfigured::default())
    );
    assert_eq!(world.ac.config().ports, config().ports);
    assert_eq!(world.session(), session);
    let magic = client.magic.to_be_bytes();
    assert_eq!(world.feed(&client.lcp(9, 1, &magic)).len(), 1);

    world.feed(&client.padi());
    assert_eq!(world.last_drop, Some(DropReason::PadiBusy));
    let mut bronze = Client::new(2);
    bronze.service_name = b"bronze".to_vec();
    world.feed(&bronze.padi());
    assert_eq!(world.last_drop, Some(DropReason::PadiServiceName));
    let mut gold = Client::new(3);
    gold.service_name = b"gold".to_vec();
    gold.dial(&mut world);
    assert_eq!(gold.auth, AuthProtocol::ChapMd5);
    assert_eq!(world.event_names().last(), Some(&"up"));

    // A renegotiation is a new negotiation.
    client.lcp_acked = (false, false);
    let request = client.lcp_request();
    client.converse(&mut world, vec![request]);
    assert_eq!(client.auth, AuthProtocol::ChapMd5);
}

#[test]
fn another_echo_interval_holds_for_live_sessions() {
    let slow = Config {
        echo_interval: Duration::from_secs(3_600),
        ..config()
    };
    let mut world = World::new(slow.clone());
    let mut client = Client::new(1);
    client.dial(&mut world);
    assert!(world.pass(1_000_000).is_empty());
    world.ac.reconfigure(world.now, config()).unwrap();
    live_for(&mut world, &mut client, 30);
    assert_eq!(world.count(Outcome::EchoRequestsSent), 1);
    live_for(&mut world, &mut client, 300);
    assert_eq!(world.count(Outcome::EchoRequestsSent), 11);
    world.ac.reconfigure(world.now, slow).unwrap();
    live_for(&mut world, &mut client, 300);
    assert_eq!(world.count(Outcome::EchoRequestsSent), 11);
}

#[test]
fn challenges_may_be_turned_on_and_off_for_live_sessions() {
    let mut by_chap = config();
    by_chap.auth_protocols = vec![AuthProtocol::ChapMd5];
    let mut world = World::new(by_chap.clone());
    let mut client = Client::new(1);
    client.dial(&mut world);
    let again = Config {
        chap_interval: Some(Duration::from_secs(50)),
        ..by_chap.clone()
    };
    world.ac.reconfigure(world.now, again).unwrap();
    live_for(&mut world, &mut client, 500);
    let challenged = world.count(Outcome::ChapRechallenges);
    assert!((8..=12).contains(&challenged), "{challenged}");
    world.ac.reconfigure(world.now, by_chap).unwrap();
    live_for(&mut world, &mut client, 500);
    assert_eq!(world.count(Outcome::ChapRechallenges), challenged);
    assert_eq!(world.down_cause(), None);
}

#[test]
fn sessions_on_vlans_no_longer_served_are_named_and_live_on() {
    let mut world = World::new(config());
    let mut inside = Client::new(1);
    inside.vlans = VlanStack::single(tag(0x8100, 7));
    inside.dial(&mut world);
    let mut outside = Client::new(2);
    outside.vlans = VlanStack::single(tag(0x8100, 9));
    outside.dial(&mut world);
    let named = world.ac.find(PORT, outside.session_id).unwrap();
    let mut new = config();
    new.vlans = vec![VlanProfile {
        port: PORT,
        s_vlan: 7..=7,
        c_vlan: 0..=0,
        services: ServicePolicy::Any,
        sessions_per_mac: 8,
        max_mru: 1492,
        pado_delay: Duration::ZERO,
    }];
    let expected = Reconfigured {
        unserved: vec![named],
    };
    assert_eq!(world.ac.would_reconfigure(&new), Ok(expected.clone()));
    assert_eq!(world.ac.reconfigure(world.now, new), Ok(expected));
    assert_eq!(world.ac.sessions().count(), 2);
    assert!(
        world
            .events
            .iter()
            .all(|event| !matches!(event, Event::SessionDown { .. }))
    );
    world.feed(
        &Client {
            vlans: outside.vlans,
            ..Client::new(3)
        }
        .padi(),
    );
    assert_eq!(world.last_drop, Some(DropReason::VlanNotConfigured));
}
