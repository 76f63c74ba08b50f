//! A subscriber's life in virtual time: dial, authenticate, get an address, live on, leave.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod peer;

use std::time::Duration;

use bng_pppoe::automaton::State;
use bng_pppoe::codec::lcp::code as lcp_code;
use bng_pppoe::{DropReason, Event, NetworkDownReason, Outcome, Phase, TerminateCause};
use bng_wire::pppoe::code;
use peer::*;

#[test]
fn a_client_dials_and_gets_its_address_and_dns_servers() {
    let (world, client) = up();
    assert_eq!(client.ip, FRAMED);
    assert_eq!(client.dns, [(129, DNS1), (131, DNS2)]);
    assert_eq!(client.ipcp_acked, (true, true));
    let record = record_of(&world);
    assert_eq!(record.session, world.session());
    assert_eq!((record.mac, record.grant), (client.mac, grant()));
    assert_eq!(
        (record.our_mru, record.peer_mru, record.link_mru),
        (1492, 1492, 1492)
    );
    assert_eq!(record.peer_magic, client.magic);
    assert_ne!(record.our_magic, 0);
    assert_eq!(record.user_name, b"alice");
    assert_eq!(world.ac.record(record.session), Some(record));
    let info = world.ac.sessions().next().unwrap();
    assert_eq!(
        (info.phase, info.lcp, info.ipcp),
        (Phase::Network, State::Opened, State::Opened)
    );
    assert_eq!(world.ac.half_open(), 0);
}

#[test]
fn no_frame_comes_out_before_the_events_of_its_cause() {
    let mut world = World::new(config());
    let mut client = Client::new(1);
    let pado = world.feed(&client.padi());
    client.react(&pado[0]);
    world.ac.handle_frame(world.now, PORT, &client.padr());
    assert_eq!(world.ac.poll_transmit(), None);
    assert!(matches!(
        world.ac.poll_event(),
        Some(Event::SessionStarted { .. })
    ));
    let pads = world.ac.poll_transmit().unwrap();
    assert_eq!(as_discovery(&pads.frame).0, code::PADS);
    assert_eq!(pads.session, Some(world.session()));
    let request = world.ac.poll_transmit().unwrap();
    assert_eq!(
        as_control(&request.frame).1.code,
        lcp_code::CONFIGURE_REQUEST
    );
}

#[test]
fn an_echo_request_is_answered_with_our_magic_and_its_data() {
    let (mut world, client) = up();
    let answer = world.feed(&client.lcp(lcp_code::ECHO_REQUEST, 9, b"\x11\x22\x33\x44data"));
    let (_, packet) = as_control(&answer[0]);
    assert_eq!((packet.code, packet.id), (lcp_code::ECHO_REPLY, 9));
    let ours = record_of(&world).our_magic.to_be_bytes();
    assert_eq!(packet.data, [&ours[..], b"data"].concat());
    for quiet in [lcp_code::DISCARD_REQUEST, lcp_code::IDENTIFICATION] {
        assert!(
            world
                .feed(&client.lcp(quiet, 1, b"\x11\x22\x33\x44data"))
                .is_empty()
        );
        assert_eq!(world.last_drop, None);
    }
}

#[test]
fn a_dead_peer_is_found_by_echo_and_told_by_padt_only() {
    let (mut world, client) = up();
    let frames = world.pass(300_000);
    let codes: Vec<_> = frames
        .iter()
        .filter(|(_, f)| client.vlans.count() == 0 && f[13] == 0x64)
        .map(|(at, f)| (*at, as_control(f).1.code))
        .collect();
    assert_eq!(codes.len(), 3);
    assert!(
        codes
            .iter()
            .all(|(_, code)| *code == lcp_code::ECHO_REQUEST)
    );
    assert!(codes.windows(2).all(|w| w[1].0 - w[0].0 == 30_000));
    assert_eq!(as_discovery(&frames[3].1).0, code::PADT);
    assert_eq!(world.down_cause(), Some(TerminateCause::DeadPeer));
    assert_eq!(world.event_names()[3..], ["network-down", "down"]);
}

#[test]
fn received_traffic_counts_as_life_and_so_does_an_echo_reply() {
    let (mut world, mut client) = up();
    let session = world.session();
    for _ in 0..20 {
        assert!(world.pass(29_000).is_empty(), "no echo while traffic comes");
        assert!(world.ac.note_traffic(world.now, session));
    }
    for _ in 0..10 {
        let echoes: Vec<_> = world.pass(31_000).into_iter().map(|(_, f)| f).collect();
        for echo in echoes {
            let replies = client.react(&echo);
            client.converse(&mut world, replies);
        }
    }
    assert_eq!(world.session(), session);
    assert!(world.count(Outcome::EchoRequestsSent) >= 9);
}

#[test]
fn the_peers_padt_ends_the_session_at_once_and_only_if_all_of_it_matches() {
    let (mut world, client) = up();
    let other_mac = Client {
        mac: Client::new(2).mac,
        ..client.clone()
    };
    let other_vlan = Client {
        vlans: bng_wire::VlanStack::single(tag(0x8100, 5)),
        ..client.clone()
    };
    for stranger in [other_mac, other_vlan] {
        assert!(world.feed(&stranger.padt()).is_empty());
        assert_eq!(world.last_drop, Some(DropReason::SessionMismatch));
    }
    world.feed(
        &Client {
            session_id: client.session_id ^ 1,
            ..client.clone()
        }
        .padt(),
    );
    assert_eq!(world.last_drop, Some(DropReason::SessionUnknown));
    let broadcast = Client {
        ac_mac: bng_wire::MacAddr::BROADCAST,
        ..client.clone()
    };
    world.feed(&broadcast.padt());
    assert_eq!(world.last_drop, Some(DropReason::Destination));
    world.feed_on(bng_pppoe::PortId(1), &client.padt());
    assert_ne!(world.last_drop, None);
    assert_eq!(world.ac.sessions().count(), 1);

    assert!(world.feed(&client.padt()).is_empty());
    assert_eq!(world.event_names()[3..], ["network-down", "down"]);
    assert_eq!(world.down_cause(), Some(TerminateCause::PeerPadt));
    assert!(world.feed(&client.padt()).is_empty());
    assert_eq!(world.last_drop, Some(DropReason::SessionUnknown));
}

#[test]
fn the_peers_terminate_request_is_acknowledged_and_padt_follows() {
    let (mut world, client) = up();
    let answer = world.feed(&client.lcp(lcp_code::TERMINATE_REQUEST, 33, b"bye"));
    let (_, ack) = as_control(&answer[0]);
    assert_eq!((ack.code, ack.id), (lcp_code::TERMINATE_ACK, 33));
    assert_eq!(world.event_names()[3..], ["network-down"]);
    let again = world.feed(&client.lcp(lcp_code::TERMINATE_REQUEST, 34, b"bye"));
    assert_eq!(as_control(&again[0]).1.id, 34);
    let rest = world.pass(10_000);
    assert_eq!(rest.len(), 1);
    assert_eq!(as_discovery(&rest[0].1).0, code::PADT);
    assert_eq!(world.down_cause(), Some(TerminateCause::PeerTerminated));
}

#[test]
fn an_operator_ends_a_session_with_terminate_request_then_padt() {
    let (mut world, mut client) = up();
    let session = world.session();
    assert!(
        world
            .ac
            .terminate(world.now, session, TerminateCause::Operator)
    );
    let first: Vec<_> = world.drain().into_iter().map(|t| t.frame).collect();
    assert_eq!(as_control(&first[0]).1.code, lcp_code::TERMINATE_REQUEST);
    assert!(matches!(
        world.events[3],
        Event::NetworkDown {
            reason: NetworkDownReason::Ending,
            ..
        }
    ));
    assert!(
        world
            .ac
            .terminate(world.now, session, TerminateCause::Shutdown),
        "no effect"
    );
    let ack = client.react(&first[0]);
    client.converse(&mut world, ack);
    assert!(client.ended);
    assert!(matches!(
        world.events[4],
        Event::SessionDown {
            cause: TerminateCause::Operator,
            was_up: true,
            ..
        }
    ));
    assert!(
        !world
            .ac
            .terminate(world.now, session, TerminateCause::Operator)
    );
    client = Client {
        session_id: 0,
        lcp_acked: (false, false),
        ended: false,
        ..client
    };
    client.dial(&mut world);
    assert_eq!(
        world.event_names()[5..],
        ["started", "auth", "up"],
        "dials again"
    );
    assert_ne!(
        world.session().session_id,
        session.session_id,
        "the id rests"
    );
}

#[test]
fn a_silent_peer_is_sent_max_terminate_requests_and_padt() {
    let (mut world, _) = up();
    let session = world.session();
    world
        .ac
        .terminate(world.now, session, TerminateCause::Operator);
    let first = world.drain().len();
    let rest = world.pass(60_000);
    assert_eq!((first, rest.len()), (1, 2));
    assert_eq!(as_discovery(&rest[1].1).0, code::PADT);
    assert_eq!(world.down_cause(), Some(TerminateCause::Operator));
}

#[test]
fn a_port_going_down_ends_without_a_terminate_exchange() {
    let (mut world, _) = up();
    world
        .ac
        .terminate(world.now, world.session(), TerminateCause::PortDown);
    assert_eq!(world.drain().len(), 1);
    assert_eq!(world.down_cause(), Some(TerminateCause::PortDown));
}

#[test]
fn session_and_idle_time_end_the_session() {
    let mut world = World::new(config());
    world.grant.session_timeout = Some(Duration::from_secs(600));
    world.grant.idle_timeout = Some(Duration::from_secs(100));
    let mut client = Client::new(1);
    client.dial(&mut world);
    let session = world.session();
    for _ in 0..6 {
        world.pass(99_000);
        let _ = world.ac.note_traffic(world.now, session);
    }
    assert_eq!(world.session(), session);
    world.pass(20_000);
    assert_eq!(world.down_cause(), Some(TerminateCause::SessionTimeout));

    let mut world = World::new(config());
    world.grant.idle_timeout = Some(Duration::from_secs(40));
    Client::new(1).dial(&mut world);
    world.pass(60_000);
    assert_eq!(world.down_cause(), Some(TerminateCause::IdleTimeout));
}

/// Has LCP negotiated again from the client's side, and all that follows.
fn renegotiate(world: &mut World, client: &mut Client) {
    client.lcp_acked = (false, false);
    client.ipcp_acked = (false, false);
    client.magic = client.magic.wrapping_add(1);
    let request = client.lcp_request();
    client.converse(world, vec![request]);
}

#[test]
fn a_peer_that_renegotiates_gets_no_more_session_time() {
    let mut world = World::new(config());
    world.grant.session_timeout = Some(Duration::from_secs(600));
    let mut client = Client::new(1);
    client.dial(&mut world);
    let session = world.session();
    let first = world.ac.record(session).unwrap();
    world.pass(20_000);
    renegotiate(&mut world, &mut client);
    let again = world.ac.record(session).unwrap();
    assert_eq!(again.session_deadline, first.session_deadline);
    assert_eq!(again.up_since, first.up_since);
    assert_eq!(
        again.grant.session_timeout,
        Some(again.session_deadline.unwrap().since(first.up_since)),
        "an earlier process's session is adopted with the same end"
    );

    // A server says what is left, from now on.
    world.grant.session_timeout = Some(Duration::from_secs(30));
    renegotiate(&mut world, &mut client);
    let nearer = world.ac.record(session).unwrap();
    let left = nearer.session_deadline.unwrap().since(world.now);
    assert!((29_900..=30_000).contains(&left.as_millis()), "{left:?}");
    world.grant.session_timeout = None;
    renegotiate(&mut world, &mut client);
    // The time, and a Terminate exchange that the peer does not answer.
    world.pass(40_000);
    assert_eq!(world.down_cause(), Some(TerminateCause::SessionTimeout));
}

#[test]
fn session_time_runs_on_while_a_peer_renegotiates() {
    let mut world = World::new(config());
    world.grant.session_timeout = Some(Duration::from_secs(5));
    let mut client = Client::new(1);
    client.dial(&mut world);
    world.pass(4_000);
    client.lcp_acked = (false, false);
    client.magic = 7;
    let request = client.lcp_request();
    world.feed(&request);
    assert_eq!(world.event_names().last(), Some(&"network-down"));
    world.pass(1_500);
    let info = world.ac.session(world.session());
    let cause = info.and_then(|info| info.cause).or(world.down_cause());
    assert_eq!(cause, Some(TerminateCause::SessionTimeout));
}
