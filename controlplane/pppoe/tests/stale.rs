//! A client that comes back before its old session was found dead takes its place, and never that of one that answers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod peer;

use bng_pppoe::codec::lcp::code as lcp_code;
use bng_pppoe::codec::tags::kind;
use bng_pppoe::codec::{AccessLineIds, TagWriter, frame};
use bng_pppoe::{Config, DropReason, Event, Limits, Outcome, TerminateCause};
use bng_wire::pppoe::{code, protocol};
use peer::*;

fn limited(sessions_per_mac: u32) -> Config {
    Config {
        limits: Limits {
            sessions_per_mac,
            ..Limits::default()
        },
        ..config()
    }
}

/// The same CPE after it lost power: the same MAC address, nothing remembered.
fn reborn(host_uniq: u8) -> Client {
    Client {
        host_uniq: vec![host_uniq],
        ..Client::new(1)
    }
}

/// A world with one session of client 1, which is at its limit.
fn at_limit() -> (World, Client) {
    let mut world = World::new(limited(1));
    let mut client = Client::new(1);
    client.dial(&mut world);
    assert_eq!(world.event_names(), ["started", "auth", "up"]);
    (world, client)
}

fn is_echo(bytes: &[u8]) -> bool {
    let (number, packet) = as_control(bytes);
    (number, packet.code) == (protocol::LCP, lcp_code::ECHO_REQUEST)
}

#[test]
fn a_session_that_leaves_an_echo_unanswered_makes_room_for_the_same_client() {
    let (mut world, old) = at_limit();
    let mut new = reborn(9);
    let asked = world.feed(&new.padi());
    assert_eq!(asked.len(), 1);
    assert!(is_echo(&asked[0]));
    assert_eq!(world.last_drop, Some(DropReason::PadiBusy));
    world.pass(999);
    assert!(world.feed(&new.padi()).is_empty(), "nothing is sent twice");
    world.pass(1);
    let pado = world.feed(&new.padi());
    new.react(&pado[0]);
    assert_eq!(
        world.ac.sessions().count(),
        1,
        "not before the cookie is back"
    );

    let frames = world.feed(&new.padr());
    assert_eq!(as_discovery(&frames[0]).0, code::PADT);
    assert_eq!(as_discovery(&frames[0]).1, old.session_id);
    assert_eq!(world.down_cause(), Some(TerminateCause::Replaced));
    let next = frames[1..].iter().flat_map(|it| new.react(it)).collect();
    new.converse(&mut world, next);
    assert_eq!(
        world.event_names(),
        [
            "started",
            "auth",
            "up",
            "network-down",
            "down",
            "started",
            "auth",
            "up"
        ]
    );
    assert_eq!(world.ac.sessions().count(), 1);
    assert_eq!(world.count(Outcome::StaleProbes), 1);
    assert_eq!(world.ended(TerminateCause::Replaced), 1);
}

#[test]
fn a_session_that_answers_or_sends_data_is_never_replaced() {
    let (mut world, mut old) = at_limit();
    let session = world.session();
    for round in 0..20 {
        let asked = world.feed(&reborn(9).padi());
        assert_eq!(asked.len(), 1, "round {round}");
        if round % 2 == 0 {
            let replies = old.react(&asked[0]);
            world.feed(&replies[0]);
        } else {
            world.pass(1);
            assert!(world.ac.note_traffic(world.now, session));
        }
        world.pass(2_000);
    }
    assert_eq!(world.session(), session);
    assert_eq!(world.count(Outcome::StaleProbes), 20);
    assert_eq!(world.dropped(DropReason::PadiBusy), 20);
}

#[test]
fn a_session_is_asked_at_most_once_a_second() {
    let (mut world, mut old) = at_limit();
    let mut echoes = vec![];
    for _ in 0..40 {
        echoes.extend(world.feed(&reborn(9).padi()));
        if let Some(last) = echoes.last() {
            let replies = old.react(last);
            world.feed(&replies[0]);
        }
        world.pass(100);
    }
    assert!((4..=5).contains(&echoes.len()), "{}", echoes.len());
}

#[test]
fn a_padr_with_an_early_cookie_is_refused_while_the_old_session_may_live() {
    let mut world = World::new(limited(1));
    let mut new = reborn(9);
    let pado = world.feed(&new.padi());
    new.react(&pado[0]);
    Client::new(1).dial(&mut world);
    let answers = world.feed(&new.padr());
    assert_eq!(answers.len(), 2);
    assert!(is_echo(&answers[0]));
    let (packet, session_id, tags) = as_discovery(&answers[1]);
    assert_eq!((packet, session_id), (code::PADS, 0));
    assert!(tags.find(kind::AC_SYSTEM_ERROR).is_some());
    world.pass(1_000);
    let frames = world.feed(&new.padr());
    assert_eq!(as_discovery(&frames[0]).0, code::PADT);
    assert_ne!(as_discovery(&frames[1]).1, 0);
}

#[test]
fn it_can_be_turned_off() {
    let mut world = World::new(Config {
        replace_stale: false,
        ..limited(1)
    });
    Client::new(1).dial(&mut world);
    for _ in 0..5 {
        assert!(world.feed(&reborn(9).padi()).is_empty());
        assert_eq!(world.last_drop, Some(DropReason::PadiBusy));
        world.pass(2_000);
    }
    assert_eq!(world.count(Outcome::StaleProbes), 0);
}

#[test]
fn of_several_sessions_the_one_not_heard_of_for_longest_gives_way() {
    let mut world = World::new(limited(3));
    let mut clients: Vec<_> = (1..=3).map(reborn).collect();
    for client in &mut clients {
        client.dial(&mut world);
        world.pass(10);
    }
    // The first one talks, the second is the longest silent.
    let magic = clients[0].magic.to_be_bytes();
    world.feed(&clients[0].lcp(lcp_code::ECHO_REQUEST, 1, &magic));
    let mut new = reborn(9);
    let asked = world.feed(&new.padi());
    assert_eq!(asked.len(), 1, "one at a time");
    let asked = frame::parse(&asked[0]).unwrap().body;
    assert!(
        matches!(asked, frame::Body::Session { session_id, .. } if session_id == clients[1].session_id)
    );
    world.pass(1_000);
    let pado = world.feed(&new.padi());
    new.react(&pado[0]);
    let frames = world.feed(&new.padr());
    assert_eq!(as_discovery(&frames[0]).1, clients[1].session_id);
    let left: Vec<_> = world
        .ac
        .sessions()
        .map(|it| it.session.session_id)
        .collect();
    assert_eq!(left.len(), 3);
    assert!(!left.contains(&clients[1].session_id));
}

#[test]
fn at_the_limit_of_a_circuit_only_a_session_of_the_same_mac_address_gives_way() {
    let mut world = World::new(Config {
        limits: Limits {
            sessions_per_circuit: 1,
            ..Limits::default()
        },
        ..config()
    });
    let on_circuit = |client: &Client, circuit_id: &[u8]| {
        let mut tags = TagWriter::new(1400);
        assert!(tags.put(kind::HOST_UNIQ, &client.host_uniq));
        if !client.cookie.is_empty() {
            assert!(tags.put(kind::AC_COOKIE, &client.cookie));
        }
        assert!(tags.put_access_line_ids(AccessLineIds {
            circuit_id,
            remote_id: b"",
        }));
        tags.finish()
    };
    let dial = |world: &mut World, client: &mut Client, circuit: &[u8]| {
        let pado = world.feed(&client.padi_with(&on_circuit(client, circuit)));
        client.react(&pado[0]);
        let frames = world.feed(&client.padr_with(&on_circuit(client, circuit)));
        let start = frames.len().saturating_sub(2);
        let next = frames[start..]
            .iter()
            .flat_map(|it| client.react(it))
            .collect();
        client.converse(world, next);
    };
    // Another session of the client, on another circuit, is silent for longer.
    dial(&mut world, &mut reborn(1), b"b");
    world.pass(500);
    let mut old = reborn(2);
    dial(&mut world, &mut old, b"a");
    let stranger = Client::new(2);
    assert!(
        world
            .feed(&stranger.padi_with(&on_circuit(&stranger, b"a")))
            .is_empty()
    );
    assert_eq!(world.last_drop, Some(DropReason::PadiBusy));

    let mut new = reborn(3);
    let asked = world.feed(&new.padi_with(&on_circuit(&new, b"a")));
    assert!(is_echo(&asked[0]));
    world.pass(1_000);
    assert!(
        world
            .feed(&stranger.padi_with(&on_circuit(&stranger, b"a")))
            .is_empty()
    );
    dial(&mut world, &mut new, b"a");
    let ended = world.events.iter().find_map(|event| match event {
        Event::SessionDown { session, cause, .. } => Some((session.session_id, *cause)),
        _ => None,
    });
    assert_eq!(ended, Some((old.session_id, TerminateCause::Replaced)));
    assert_eq!(world.ac.sessions().count(), 2);
}

#[test]
fn a_session_that_ends_anyway_gives_way_at_once_under_its_own_cause() {
    let (mut world, old) = at_limit();
    world.feed(&old.lcp(lcp_code::TERMINATE_REQUEST, 1, &[]));
    assert_eq!(world.ac.sessions().count(), 1, "its last timer runs");
    let mut new = reborn(9);
    new.dial(&mut world);
    assert_eq!(world.down_cause(), Some(TerminateCause::PeerTerminated));
    assert_eq!(world.event_names().last(), Some(&"up"));
    assert_eq!(world.ac.sessions().count(), 1);
}

#[test]
fn a_session_whose_link_never_opened_gives_way_after_the_longest_restart_period() {
    let mut world = World::new(limited(1));
    Client::new(1).discover(&mut world);
    let mut new = reborn(9);
    world.pass(3_999);
    assert!(world.feed(&new.padi()).is_empty());
    world.pass(1);
    new.dial(&mut world);
    assert_eq!(world.down_cause(), Some(TerminateCause::Replaced));
    assert_eq!(world.event_names().last(), Some(&"up"));
}

#[test]
fn an_adopted_session_is_asked_like_any_other() {
    let (world, _) = at_limit();
    let record = record_of(&world);
    let mut next = World::new(limited(1));
    next.now = world.now;
    next.ac.adopt(next.now, record).unwrap();
    let mut new = reborn(9);
    let asked = next.feed(&new.padi());
    assert!(is_echo(&asked[0]));
    next.pass(1_000);
    new.dial(&mut next);
    assert_eq!(next.down_cause(), Some(TerminateCause::Replaced));
}

#[test]
fn a_limit_lowered_meanwhile_ends_nobody() {
    let mut world = World::new(limited(2));
    for number in 1..=2 {
        reborn(number).dial(&mut world);
    }
    world.ac.reconfigure(world.now, limited(1)).unwrap();
    for _ in 0..5 {
        assert!(world.feed(&reborn(9).padi()).is_empty());
        world.pass(2_000);
    }
    assert_eq!(world.ac.sessions().count(), 2);
}
