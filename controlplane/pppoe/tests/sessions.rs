//! A subscriber's life in virtual time: dial, authenticate, get an address, live on, leave.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod peer;

use std::net::Ipv4Addr;
use std::time::Duration;

use bng_pppoe::automaton::State;
use bng_pppoe::codec::lcp::code as lcp_code;
use bng_pppoe::{
    AuthError, AuthVerdict, Config, DropReason, Event, NetworkDownReason, Outcome, Phase,
    RejectCause, TerminateCause, Time,
};
use bng_wire::pppoe::{code, protocol};
use peer::*;

fn record_of(world: &World) -> bng_pppoe::SessionRecord {
    match world
        .events
        .iter()
        .rev()
        .find(|e| matches!(e, Event::SessionUp(_)))
    {
        Some(Event::SessionUp(record)) => (**record).clone(),
        _ => panic!("no SessionUp"),
    }
}

fn up() -> (World, Client) {
    let mut world = World::new(config());
    let mut client = Client::new(1);
    client.dial(&mut world);
    assert_eq!(world.event_names(), ["started", "auth", "up"]);
    (world, client)
}

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
fn a_wrong_password_is_nakked_then_the_link_is_terminated() {
    let mut world = World::new(config());
    let mut client = Client::new(1);
    client.password = b"guess".to_vec();
    client.dial(&mut world);
    assert_eq!(client.pap_reply, Some(3));
    let end: Vec<_> = client.seen.iter().rev().take(3).rev().copied().collect();
    assert_eq!(
        end,
        [(protocol::PAP, 3), (protocol::LCP, 5), (0, code::PADT)]
    );
    assert_eq!(world.event_names(), ["started", "auth", "down"]);
    assert_eq!(world.down_cause(), Some(TerminateCause::WrongCredentials));
    assert_eq!(world.count(Outcome::PapNak), 1);
    assert_eq!(world.ac.sessions().count(), 0);
    assert_eq!(world.ac.poll_timeout(), None);
}

#[test]
fn an_empty_password_is_wrong_without_asking_unless_it_is_allowed() {
    let mut world = World::new(config());
    let mut client = Client::new(1);
    client.password.clear();
    client.dial(&mut world);
    assert_eq!(world.event_names(), ["started", "down"]);
    assert_eq!(world.count(Outcome::PapEmptyPassword), 1);
    assert_eq!(client.pap_reply, Some(3));

    let mut world = World::new(Config {
        allow_empty_password: true,
        ..config()
    });
    world.aaa = Aaa::Always(accept());
    let mut client = Client::new(1);
    client.password.clear();
    client.dial(&mut world);
    assert_eq!(world.event_names(), ["started", "auth", "up"]);
}

#[test]
fn an_empty_pool_refuses_with_its_own_cause() {
    let mut world = World::new(config());
    world.aaa = Aaa::Always(reject(RejectCause::PoolEmpty));
    Client::new(1).dial(&mut world);
    assert_eq!(world.down_cause(), Some(TerminateCause::PoolEmpty));
    assert_eq!(world.ended(TerminateCause::PoolEmpty), 1);
    assert_eq!(world.ended(TerminateCause::WrongCredentials), 0);
}

#[test]
fn a_repeated_pap_request_gets_the_same_verdict_and_aaa_is_asked_once() {
    let mut world = World::new(config());
    world.aaa = Aaa::Manual;
    let mut client = Client::new(1);
    client.link_up(&mut world);
    assert!(world.feed(&client.pap(7)).is_empty());
    assert!(world.feed(&client.pap(8)).is_empty(), "undecided");
    assert_eq!(world.auth.len(), 1);
    let other = Client {
        password: b"other".to_vec(),
        ..client.clone()
    };
    world.feed(&other.pap(9));
    assert_eq!(world.last_drop, Some(DropReason::PapOutstanding));
    let (session, attempt) = (world.auth[0].session, world.auth[0].attempt);
    world
        .ac
        .handle_auth(world.now, session, attempt, accept())
        .unwrap();
    let frames: Vec<_> = world.drain().into_iter().map(|t| t.frame).collect();
    let (proto, reply) = as_control(&frames[0]);
    assert_eq!(
        (proto, reply.code, reply.id),
        (protocol::PAP, 2, 8),
        "the latest request's id"
    );
    assert_eq!(reply.data, b"\x07welcome");
    let again = world.feed(&client.pap(10));
    let (_, again) = as_control(&again[0]);
    assert_eq!(
        (again.code, again.id, again.data),
        (2, 10, b"\x07welcome".as_slice())
    );
    assert_eq!(world.auth.len(), 1);
    let late = world.ac.handle_auth(world.now, session, attempt, accept());
    assert_eq!(late, Err(AuthError::NotAwaited));
}

#[test]
fn a_refused_peer_that_repeats_itself_is_refused_again() {
    let mut world = World::new(config());
    let mut client = Client {
        password: b"guess".to_vec(),
        ..Client::new(1)
    };
    client.link_up(&mut world);
    world.feed(&client.pap(1));
    let again = world.feed(&client.pap(2));
    assert_eq!(as_control(&again[0]).1.code, 3);
    assert_eq!(world.auth.len(), 1);
    assert_eq!(
        world.pass(60_000).len(),
        2,
        "one more Terminate-Request and the PADT"
    );
    assert_eq!(world.down_cause(), Some(TerminateCause::WrongCredentials));
}

#[test]
fn a_peer_silent_about_its_name_is_ended() {
    let mut world = World::new(config());
    let mut client = Client::new(1);
    client.link_up(&mut world);
    world.pass(60_000);
    assert_eq!(world.down_cause(), Some(TerminateCause::AuthTimeout));
}

#[test]
fn aaa_that_never_answers_is_bounded_by_the_setup_time() {
    let mut world = World::new(config());
    world.aaa = Aaa::Manual;
    let mut client = Client::new(1);
    client.link_up(&mut world);
    world.feed(&client.pap(1));
    world.pass(100_000);
    assert_eq!(world.down_cause(), Some(TerminateCause::SetupTimeout));
    let (session, attempt) = (world.auth[0].session, world.auth[0].attempt);
    let late = world.ac.handle_auth(world.now, session, attempt, accept());
    assert_eq!(late, Err(AuthError::NoSuchSession));
}

#[test]
fn network_packets_before_authentication_are_dropped_in_silence() {
    let mut world = World::new(config());
    let mut client = Client::new(1);
    client.link_up(&mut world);
    assert!(world.feed(&client.ipcp_request()).is_empty());
    assert_eq!(world.last_drop, Some(DropReason::BeforeNetwork));
    for proto in [
        protocol::IPV6CP,
        protocol::CCP,
        protocol::IPV4,
        protocol::IPV6,
    ] {
        assert!(world.feed(&client.ppp(proto, &[1, 1, 0, 4])).is_empty());
        assert_eq!(
            world.last_drop,
            Some(DropReason::BeforeNetwork),
            "{proto:#06x}"
        );
    }
    let chap = world.feed(&client.ppp(protocol::CHAP, &[1, 1, 0, 4]));
    assert_eq!(as_control(&chap[0]).1.code, lcp_code::PROTOCOL_REJECT);
}

#[test]
fn protocols_not_offered_are_protocol_rejected_within_a_rate() {
    let (mut world, client) = up();
    let mut ids = vec![];
    for _ in 0..20 {
        for bytes in world.feed(&client.ppp(protocol::IPV6CP, &[1, 1, 0, 4])) {
            let (proto, packet) = as_control(&bytes);
            assert_eq!(
                (proto, packet.code),
                (protocol::LCP, lcp_code::PROTOCOL_REJECT)
            );
            assert_eq!(packet.data, [0x80, 0x57, 1, 1, 0, 4]);
            ids.push(packet.id);
        }
    }
    assert_eq!(ids.len(), 10, "the burst");
    assert!(ids.windows(2).all(|w| w[0] != w[1]), "changing ids");
    assert_eq!(world.dropped(DropReason::RejectRate), 10);
    world.pass(1_000);
    assert_eq!(
        world.feed(&client.ppp(protocol::CCP, &[1, 1, 0, 4])).len(),
        1
    );
}

#[test]
fn rejected_packets_and_echo_replies_are_cut_to_the_peers_mru() {
    let mut world = World::new(config());
    let mut client = Client {
        mru: 600,
        ..Client::new(1)
    };
    client.dial(&mut world);
    assert_eq!(record_of(&world).peer_mru, 600);
    let long = vec![0x55; 1400];
    let mut echo = client.magic.to_be_bytes().to_vec();
    echo.extend_from_slice(&long);
    for request in [
        client.ppp(protocol::IPV6, &long),
        client.lcp(77, 1, &long),
        client.ipcp(77, 1, &long),
        client.lcp(lcp_code::ECHO_REQUEST, 1, &echo),
    ] {
        let answer = world.feed(&request);
        let (_, packet) = as_control(&answer[0]);
        assert_eq!(packet.raw.len(), 600);
    }
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
fn a_configure_request_in_opened_renegotiates_and_authenticates_again() {
    let (mut world, mut client) = up();
    let session = world.session();
    client.lcp_acked = (false, false);
    client.ipcp_acked = (false, false);
    client.magic = 0x5566_7788;
    client.mru = 1400;
    let request = client.lcp_request();
    let answers = world.feed(&request);
    assert_eq!(world.event_names()[3..], ["network-down"]);
    assert!(matches!(
        world.events[3],
        Event::NetworkDown {
            reason: NetworkDownReason::LcpRenegotiation,
            ..
        }
    ));
    assert_eq!(
        world.ac.record(session),
        None,
        "nothing is forwarded meanwhile"
    );
    assert_eq!(world.ac.half_open(), 1);
    let codes: Vec<_> = answers.iter().map(|f| as_control(f).1.code).collect();
    assert_eq!(
        codes,
        [lcp_code::CONFIGURE_REQUEST, lcp_code::CONFIGURE_ACK]
    );
    let next = answers.iter().flat_map(|f| client.react(f)).collect();
    client.converse(&mut world, next);
    assert_eq!(world.event_names()[4..], ["auth", "up"]);
    assert_eq!(world.session(), session);
    assert_eq!(world.auth[1].attempt, world.auth[0].attempt + 1);
    let record = record_of(&world);
    assert_eq!((record.peer_mru, record.peer_magic), (1400, 0x5566_7788));
}

#[test]
fn a_verdict_for_the_attempt_before_a_renegotiation_is_void() {
    let mut world = World::new(config());
    world.aaa = Aaa::Manual;
    let mut client = Client::new(1);
    client.link_up(&mut world);
    world.feed(&client.pap(1));
    let request = client.lcp_request();
    let frames = world.feed(&request);
    let (_, ours) = as_control(&frames[0]);
    world.feed(&client.lcp(lcp_code::CONFIGURE_ACK, ours.id, ours.data));
    world.feed(&client.pap(2));
    assert_eq!(world.auth.len(), 2);
    let session = world.session();
    let old = world
        .ac
        .handle_auth(world.now, session, world.auth[0].attempt, accept());
    assert_eq!(old, Err(AuthError::NotAwaited));
    world
        .ac
        .handle_auth(world.now, session, world.auth[1].attempt, accept())
        .unwrap();
}

#[test]
fn ipcp_alone_can_renegotiate_without_authentication() {
    let (mut world, mut client) = up();
    client.ipcp_acked = (false, false);
    let request = client.ipcp_request();
    client.converse(&mut world, vec![request]);
    assert_eq!(world.event_names()[3..], ["network-down", "up"]);
    assert!(matches!(
        world.events[3],
        Event::NetworkDown {
            reason: NetworkDownReason::IpcpRenegotiation,
            ..
        }
    ));
}

#[test]
fn a_peer_insisting_on_another_address_does_not_get_it_and_the_exchange_ends() {
    let mut world = World::new(config());
    let mut client = Client::new(1);
    client.ip = Ipv4Addr::new(192, 0, 2, 1);
    client.insists_on_ip = true;
    client.dial(&mut world);
    assert_eq!(world.event_names(), ["started", "auth", "down"]);
    assert_eq!(world.down_cause(), Some(TerminateCause::IpcpFailed));
    let naks = client
        .seen
        .iter()
        .filter(|s| **s == (protocol::IPCP, 3))
        .count();
    assert_eq!(naks, 5, "Max-Failure");
}

#[test]
fn dns_is_rejected_when_none_is_configured_and_the_second_when_there_is_one() {
    for (dns, expected) in [
        ([None, None], vec![]),
        ([Some(DNS1), None], vec![(129, DNS1)]),
        ([None, Some(DNS2)], vec![(129, DNS2)]),
    ] {
        let mut world = World::new(config());
        world.grant.dns = dns;
        let mut client = Client::new(1);
        client.dial(&mut world);
        assert_eq!(client.dns, expected);
        assert_eq!(client.ip, FRAMED);
        assert_eq!(world.event_names(), ["started", "auth", "up"]);
    }
}

#[test]
fn a_request_without_an_address_is_nakked_with_one_and_vj_is_rejected_first() {
    let mut world = World::new(config());
    let mut client = Client::new(1);
    client.link_up(&mut world);
    world.feed(&client.pap(1));
    let vj = [2, 6, 0, 0x2d, 15, 1];
    let answer = world.feed(&client.ipcp(1, 1, &vj));
    let (_, packet) = as_control(&answer[0]);
    assert_eq!((packet.code, packet.data), (4, vj.as_slice()));
    let answer = world.feed(&client.ipcp(1, 2, &[]));
    let (_, packet) = as_control(&answer[0]);
    assert_eq!(
        (packet.code, packet.data),
        (3, [3, 6, 10, 0, 0, 77].as_slice())
    );
}

#[test]
fn a_peer_that_closes_ipcp_ends_the_session() {
    let (mut world, client) = up();
    let answer = world.feed(&client.ipcp(lcp_code::TERMINATE_REQUEST, 1, &[]));
    assert_eq!(as_control(&answer[0]).1.code, lcp_code::TERMINATE_ACK);
    world.pass(60_000);
    assert_eq!(world.down_cause(), Some(TerminateCause::IpcpClosed));

    let (mut world, client) = up();
    let rejected = [0x80, 0x21, 1, 1, 0, 4];
    world.feed(&client.lcp(lcp_code::PROTOCOL_REJECT, 1, &rejected));
    world.pass(60_000);
    assert_eq!(world.down_cause(), Some(TerminateCause::IpcpRefused));
}

#[test]
fn a_peer_silent_in_ipcp_runs_into_the_restart_counter() {
    let mut world = World::new(config());
    let mut client = Client::new(1);
    client.link_up(&mut world);
    world.feed(&client.pap(1));
    let frames = world.pass(120_000);
    let requests = frames
        .iter()
        .filter(|(_, f)| f[13] == 0x64)
        .filter(|(_, f)| {
            let (proto, packet) = as_control(f);
            (proto, packet.code) == (protocol::IPCP, lcp_code::CONFIGURE_REQUEST)
        });
    assert_eq!(requests.count(), 9, "Max-Configure with the first");
    assert_eq!(world.down_cause(), Some(TerminateCause::IpcpTimeout));
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

#[test]
fn data_that_reaches_the_control_plane_is_counted_and_nothing_else() {
    let (mut world, client) = up();
    assert!(
        world
            .feed(&client.ppp(protocol::IPV4, &[0x45; 40]))
            .is_empty()
    );
    assert_eq!(world.last_drop, Some(DropReason::DataPunted));
}
