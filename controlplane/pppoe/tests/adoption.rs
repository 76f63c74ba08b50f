//! What outlives a process: adopted sessions, orphans, stale references.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod peer;

use bng_pppoe::codec::frame;
use bng_pppoe::codec::lcp::code as lcp_code;
use bng_pppoe::{
    AccessConcentrator, AuthError, AuthVerdict, DropReason, Event, Outcome, PortId, RejectCause,
    TerminateCause, Time,
};
use bng_wire::MacAddr;
use bng_wire::pppoe::code;
use peer::*;

#[test]
fn an_adopted_session_goes_on_with_echo_renegotiation_and_termination() {
    let (world, mut client) = up();
    let record = record_of(&world);
    let session = record.session;
    let mut next = World::new(config());
    next.now = Time::from_millis(world.now.as_millis() + 5_000);
    assert_eq!(next.ac.adopt(next.now, record.clone()), Ok(session));
    assert!(
        next.ac.adopt(next.now, record.clone()).is_err(),
        "only once"
    );
    assert!(next.drain().is_empty() && next.events.is_empty());
    assert_eq!(next.ac.record(session), Some(record.clone()));
    assert_eq!(next.ac.find(PORT, session.session_id), Some(session));

    for _ in 0..4 {
        for (_, echo) in next.pass(31_000) {
            let (_, packet) = as_control(&echo);
            assert_eq!(packet.code, lcp_code::ECHO_REQUEST);
            assert_eq!(packet.data, record.our_magic.to_be_bytes());
            let reply = client.react(&echo);
            client.converse(&mut next, reply);
        }
    }
    assert!(next.count(Outcome::EchoRequestsSent) >= 3);

    let repeat = next.feed(&client.pap(9));
    assert_eq!(
        as_control(&repeat[0]).1.code,
        2,
        "authenticated by the earlier process"
    );

    client.lcp_acked = (false, false);
    let request = client.lcp_request();
    client.converse(&mut next, vec![request]);
    assert_eq!(next.event_names(), ["network-down", "auth", "up"]);
    assert_eq!(next.session(), session);

    assert!(
        next.ac
            .terminate(next.now, session, TerminateCause::Operator)
    );
    next.drain();
    next.pass(10_000);
    assert!(matches!(
        next.events.last(),
        Some(Event::SessionDown { was_up: true, .. })
    ));
}

/// An engine of another seed, as after a restart, with the discovery key both had.
fn restarted(world: &World, key: [u8; 16]) -> World {
    let mut next = World::new(config());
    next.now = Time::from_millis(world.now.as_millis() + 2_000);
    next.ac = AccessConcentrator::new(config(), next.now, [77; 32]).unwrap();
    next.ac.set_discovery_key(key);
    next
}

#[test]
fn a_padr_that_comes_again_after_a_restart_gets_the_session_it_had() {
    let key = [9; 16];
    let mut world = World::new(config());
    world.ac.set_discovery_key(key);
    let mut client = Client::new(1);
    client.dial(&mut world);
    let record = record_of(&world);
    let mut next = restarted(&world, key);
    next.ac.adopt(next.now, record.clone()).unwrap();

    let frames = next.feed(&client.padr());
    let [pads] = &frames[..] else {
        panic!("{frames:?}")
    };
    let (code, session_id, _) = as_discovery(pads);
    assert_eq!(
        (code, session_id),
        (code::PADS, record.session.session_id),
        "the same session"
    );
    assert_eq!(next.count(Outcome::PadrRepeated), 1);
    assert_eq!(next.session(), record.session, "and no other");
    assert_eq!(next.ac.record(record.session), Some(record.clone()));

    // Another PADR of this client is for another session.
    client.host_uniq = b"other".to_vec();
    next.feed(&client.padr());
    assert_eq!(next.ac.sessions().count(), 2);

    // Nothing is known of a record that has no digest.
    let mut next = restarted(&world, key);
    let old = bng_pppoe::SessionRecord { padr: 0, ..record };
    next.ac.adopt(next.now, old).unwrap();
    next.feed(&client.padr());
    assert_eq!(next.ac.sessions().count(), 2);
}

#[test]
fn a_pado_of_before_a_restart_counts_with_the_same_key_only() {
    for (key, started) in [([9; 16], true), ([8; 16], false)] {
        let mut world = World::new(config());
        world.ac.set_discovery_key([9; 16]);
        let mut client = Client::new(1);
        let pado = world.feed(&client.padi());
        client.react(&pado[0]);
        let mut next = restarted(&world, key);
        next.feed(&client.padr());
        assert_eq!(next.ac.sessions().count(), usize::from(started));
        let forged = next.dropped(DropReason::CookieForged);
        assert_eq!(forged, u64::from(!started));
    }
}

#[test]
fn a_record_that_does_not_fit_is_refused_with_the_fact() {
    let (world, _) = up();
    let record = record_of(&world);
    let mut next = World::new(config());
    let mut bad = record.clone();
    bad.session.port = bng_pppoe::PortId(9);
    assert!(
        next.ac
            .adopt(next.now, bad)
            .unwrap_err()
            .to_string()
            .contains("port 9")
    );
    let mut bad = record.clone();
    bad.session.session_id = 0xffff;
    assert!(next.ac.adopt(next.now, bad).is_err());
    let bad = bng_pppoe::SessionRecord {
        peer_mru: 1500,
        ..record
    };
    let refused = next.ac.adopt(next.now, bad).unwrap_err().to_string();
    assert!(refused.contains("1500"), "{refused}");
    assert_eq!(next.ac.sessions().count(), 0);
}

#[test]
fn an_orphan_is_told_by_padt_and_its_id_rests() {
    let mut world = World::new(config());
    let client = Client::new(1);
    let orphan = bng_pppoe::SessionRef {
        port: PORT,
        session_id: 5,
        generation: 1,
    };
    assert!(world.ac.expel(world.now, orphan, client.mac, client.vlans));
    let frames = world.drain();
    assert_eq!(as_discovery(&frames[0].frame).0, code::PADT);
    assert_eq!(as_discovery(&frames[0].frame).1, 5);
    assert!(!world.ac.expel(world.now, orphan, client.mac, client.vlans));
}

#[test]
fn a_port_with_another_address_keeps_sessions_that_are_up_and_ends_the_others() {
    let (mut world, client) = up();
    let live = world.session();
    let mut second = Client::new(2);
    second.discover(&mut world);
    let mac = MacAddr([2, 0xac, 0, 0, 0, 9]);
    assert!(!world.ac.set_port_mac(world.now, PORT, MacAddr::BROADCAST));
    assert!(!world.ac.set_port_mac(world.now, PortId(7), mac));
    assert!(world.drain().is_empty(), "nothing has changed");

    assert!(world.ac.set_port_mac(world.now, PORT, mac));
    let frames = world.drain();
    assert_eq!(frames.len(), 1);
    let padt = frame::parse(&frames[0].frame).unwrap();
    assert_eq!((padt.src, padt.dst), (mac, second.mac));
    assert_eq!(as_discovery(&frames[0].frame).0, code::PADT);
    assert_eq!(world.down_cause(), Some(TerminateCause::PortDown));

    assert_eq!(world.session(), live, "the one that is up");
    let echo = world.pass(30_000).remove(0).1;
    assert_eq!(frame::parse(&echo).unwrap().src, mac);
    world.feed(&client.padi());
    assert_eq!(world.last_drop, None);
    world.feed(&client.padt());
    assert_eq!(
        world.last_drop,
        Some(DropReason::Destination),
        "old address"
    );
}

#[test]
fn a_stale_reference_touches_nothing() {
    let (mut world, _) = up();
    let mut stale = world.session();
    stale.generation += 1;
    assert!(
        !world
            .ac
            .terminate(world.now, stale, TerminateCause::Operator)
    );
    assert!(!world.ac.note_traffic(world.now, stale));
    assert!(!world.ac.release(world.now, stale));
    assert!(world.ac.session(stale).is_none());
    let verdict = AuthVerdict::Reject {
        cause: RejectCause::Policy,
        message: vec![],
    };
    let refused = world.ac.handle_auth(world.now, stale, 1, verdict);
    assert_eq!(refused, Err(AuthError::NoSuchSession));
    let live = world.session();
    assert!(!world.ac.release(world.now, live), "not down");
}
