//! The network phase: addresses, DNS servers, renegotiation, refused protocols.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod peer;

use std::net::Ipv4Addr;

use bng_pppoe::codec::lcp::code as lcp_code;
use bng_pppoe::{DropReason, Event, NetworkDownReason, Outcome, Phase, TerminateCause};
use bng_wire::pppoe::protocol;
use peer::*;

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
    let info = world.ac.session(session).unwrap();
    assert_eq!(
        (info.phase, info.framed_ip),
        (Phase::Establish, None),
        "the grant is void"
    );
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
fn a_peer_that_rejects_packets_of_a_family_gets_no_more_of_it() {
    let dialled = || {
        let mut world = World::new(config());
        world.grant = dual_stack();
        let mut client = Client {
            interface_id: Some(7),
            ..Client::new(1)
        };
        client.dial(&mut world);
        assert_eq!(world.event_names(), ["started", "auth", "up", "changed"]);
        (world, client)
    };
    let reject = |client: &Client, number: u16| {
        let rejected = [&number.to_be_bytes()[..], &[0x60, 0, 0, 0]].concat();
        client.lcp(lcp_code::PROTOCOL_REJECT, 9, &rejected)
    };
    // IPv6 goes, IPv4 stays, and no router is advertised any more (RFC 1661 section 5.7).
    let (mut world, mut client) = dialled();
    assert!(world.feed(&reject(&client, protocol::IPV6)).is_empty());
    assert_eq!(world.event_names()[4..], ["changed"]);
    let record = record_of(&world);
    assert_eq!((record.ipv4_open, record.interface_ids), (true, None));
    let echoes = (0..60).flat_map(|_| {
        let frames: Vec<_> = world.pass(20_000).into_iter().map(|it| it.1).collect();
        for frame in &frames {
            for answer in client.react(frame) {
                assert!(world.feed(&answer).is_empty());
            }
        }
        frames
    });
    let protocols: Vec<_> = echoes.map(|frame| as_control(&frame).0).collect();
    assert!(!protocols.is_empty() && protocols.iter().all(|it| *it == protocol::LCP));

    // Without either there is nothing to go on with.
    assert!(!world.feed(&reject(&client, protocol::IPV4)).is_empty());
    world.pass(60_000);
    assert_eq!(world.down_cause(), Some(TerminateCause::IpcpRefused));

    // What was not open cannot have been sent.
    let (mut world, client) = dialled();
    world.feed(&client.ipv6cp(lcp_code::TERMINATE_REQUEST, 1, &[]));
    world.feed(&client.ipv6cp(lcp_code::CONFIGURE_REQUEST, 2, &[]));
    let events = world.events.len();
    world.feed(&reject(&client, protocol::IPV6));
    assert_eq!(world.events.len(), events);
    assert_eq!(world.ac.sessions().count(), 1);
}

#[test]
fn what_is_malformed_does_not_show_that_the_peer_had_our_ack() {
    for protocol in [protocol::PAP, protocol::IPCP, protocol::CHAP] {
        let mut world = World::new(config());
        let mut client = Client::new(1);
        let frames = client.discover(&mut world);
        let ours = as_control(&frames[1]).1;
        world.feed(&client.lcp(lcp_code::CONFIGURE_ACK, ours.id, ours.data));
        let request = client.lcp_request();
        assert_eq!(as_control(&world.feed(&request)[0]).1.code, 2);
        world.feed(&client.ppp(protocol, &[1, 1, 0]));
        assert_eq!(world.last_drop, Some(DropReason::ControlTruncated));
        // The Ack was lost: the same request again negotiates nothing anew.
        let answers = world.feed(&request);
        assert_eq!(answers.len(), 1);
        assert_eq!(as_control(&answers[0]).1.code, lcp_code::CONFIGURE_ACK);
        assert_eq!(world.count(Outcome::RequestsRepeated), 1);
        assert_eq!(world.count(Outcome::LcpRenegotiated), 0);
    }
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
            reason: NetworkDownReason::NcpRenegotiation,
            ..
        }
    ));
}

#[test]
fn a_request_sent_again_before_our_ack_arrived_is_acknowledged_again_and_renegotiates_nothing() {
    let (mut world, mut client) = up();
    let last = client.ipcp_request();
    client.ipcp_acked = (false, false);
    client.converse(&mut world, vec![last.clone()]);
    assert_eq!(world.event_names()[3..], ["network-down", "up"]);

    world.pass(3_000);
    let answers = world.feed(&last);
    assert_eq!(answers.len(), 1, "no Configure-Request of ours");
    let (proto, packet) = as_control(&answers[0]);
    assert_eq!(
        (proto, packet.code, packet.id),
        (protocol::IPCP, lcp_code::CONFIGURE_ACK, client.id)
    );
    assert_eq!(packet.data, as_control(&last).1.data);
    assert_eq!(world.event_names().len(), 5, "still up");
    assert_eq!(world.count(Outcome::RequestsRepeated), 1);

    // Traffic shows that the peer had our Ack, so it starts anew.
    assert!(world.ac.note_traffic(world.now, world.session()));
    assert_eq!(world.feed(&last).len(), 2, "our request and the Ack");
    assert_eq!(world.event_names()[5..], ["network-down"]);
}

#[test]
fn long_after_our_ack_the_same_request_renegotiates() {
    let (mut world, mut client) = up();
    let last = client.ipcp_request();
    client.converse(&mut world, vec![last.clone()]);
    world.pass(9_000);
    assert_eq!(world.feed(&last).len(), 2, "our request and the Ack");
    assert_eq!(world.event_names()[5..], ["network-down"]);
}

#[test]
fn an_lcp_request_sent_again_before_our_ack_arrived_does_not_renegotiate_but_after_credentials_it_does()
 {
    let mut world = World::new(config());
    let mut client = Client::new(1);
    client.link_up(&mut world);
    let options = client.lcp_options();
    let request = client.lcp(lcp_code::CONFIGURE_REQUEST, client.id, &options);
    let answers = world.feed(&request);
    assert_eq!(answers.len(), 1, "no Configure-Request of ours");
    assert_eq!(as_control(&answers[0]).1.code, lcp_code::CONFIGURE_ACK);
    assert_eq!(world.count(Outcome::LcpRenegotiated), 0);
    let pap = client.pap(9);
    client.converse(&mut world, vec![pap]);
    assert_eq!(world.event_names(), ["started", "auth", "up"]);
    assert_eq!(world.feed(&request).len(), 2, "our request and the Ack");
    assert_eq!(world.event_names()[3..], ["network-down"]);
}

#[test]
fn a_peer_that_acknowledges_is_not_given_up_however_often_its_own_request_is_lost() {
    let mut settings = config();
    settings.setup_timeout = std::time::Duration::from_secs(600);
    let mut world = World::new(settings);
    let mut client = Client::new(1);
    client.link_up(&mut world);
    let mut frames = world.feed(&client.pap(1));
    let mut requests = 0;
    // Every third Ack is lost, and every request of the client.
    while requests < 60 {
        for frame in frames {
            let (proto, packet) = as_control(&frame);
            if (proto, packet.code) == (protocol::IPCP, lcp_code::CONFIGURE_REQUEST) {
                requests += 1;
                if requests % 3 != 0 {
                    let ack = client.ipcp(lcp_code::CONFIGURE_ACK, packet.id, packet.data);
                    assert!(world.feed(&ack).is_empty());
                }
            }
        }
        frames = world.pass(1_000).into_iter().map(|(_, f)| f).collect();
        assert_eq!(world.down_cause(), None, "after {requests} requests");
    }
    let request = client.ipcp_request();
    client.converse(&mut world, vec![request]);
    let again = world.pass(5_000);
    let acks = again.iter().flat_map(|(_, f)| client.react(f)).collect();
    client.converse(&mut world, acks);
    assert_eq!(world.event_names().last(), Some(&"up"));
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
fn data_that_reaches_the_control_plane_is_counted_and_nothing_else() {
    let (mut world, client) = up();
    assert!(
        world
            .feed(&client.ppp(protocol::IPV4, &[0x45; 40]))
            .is_empty()
    );
    assert_eq!(world.last_drop, Some(DropReason::DataPunted));
}
