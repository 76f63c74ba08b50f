//! IPv6 in the network phase: IPv6CP beside IPCP (RFC 5072), router advertisements and solicitations (RFC 4861).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod peer;

use std::net::Ipv6Addr;

use bng_pppoe::automaton::State;
use bng_pppoe::codec::lcp::code as lcp_code;
use bng_pppoe::codec::nd;
use bng_pppoe::{DropReason, InterfaceIds, Outcome, TerminateCause, Time};
use bng_wire::pppoe::protocol;
use peer::*;

const PEER: u64 = 0x1122_3344_5566_7788;

fn world() -> World {
    let mut world = World::new(config());
    world.grant = dual_stack();
    world
}

fn client() -> Client {
    Client {
        interface_id: Some(PEER),
        ..Client::new(1)
    }
}

fn dual_stack_up() -> (World, Client) {
    let (mut world, mut client) = (world(), client());
    client.dial(&mut world);
    assert_eq!(world.event_names(), ["started", "auth", "up", "changed"]);
    (world, client)
}

fn ours(world: &World) -> u64 {
    record_of(world).interface_ids.unwrap().ours
}

/// A router advertisement, taken apart by the offsets of RFC 4861 section 4.2.
#[derive(Debug, PartialEq)]
struct Advertisement {
    source: Ipv6Addr,
    destination: Ipv6Addr,
    router_lifetime: u16,
    options: Vec<Vec<u8>>,
}

fn advertisement(packet: &[u8]) -> Advertisement {
    assert_eq!(
        nd::parse(packet),
        Ok(nd::Received::Other),
        "checksum is right"
    );
    assert_eq!(
        (packet[6], packet[7]),
        (58, 255),
        "ICMPv6 with hop limit 255"
    );
    assert_eq!((packet[40], packet[41]), (134, 0));
    assert_eq!((packet[44], packet[45]), (64, 0xc0), "hop limit, M and O");
    let address = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&packet[at..at + 16]).unwrap());
    let mut options = vec![];
    let mut rest = &packet[56..];
    while !rest.is_empty() {
        let (option, more) = rest.split_at(usize::from(rest[1]) * 8);
        options.push(option.to_vec());
        rest = more;
    }
    Advertisement {
        source: address(8),
        destination: address(24),
        router_lifetime: u16::from_be_bytes([packet[46], packet[47]]),
        options,
    }
}

fn advertisements(client: &Client) -> Vec<Advertisement> {
    client
        .ipv6
        .iter()
        .map(|packet| advertisement(packet))
        .collect()
}

/// IPv6 packets among frames.
fn ipv6_of(frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let proto = |f: &&Vec<u8>| f[13] == 0x64 && f[20..22] == protocol::IPV6.to_be_bytes();
    frames
        .iter()
        .filter(proto)
        .map(|f| f[22..].to_vec())
        .collect()
}

#[test]
fn a_client_gets_ipv4_and_ipv6_and_is_told_its_prefix() {
    let (world, client) = dual_stack_up();
    assert_eq!(client.ipv6cp_acked, (true, true));
    let record = record_of(&world);
    assert!(record.ipv4_open);
    let ids = record.interface_ids.unwrap();
    assert_eq!(ids.peer, PEER);
    assert!(ids.ours != 0 && ids.ours & 0x0200_0000_0000_0000 == 0);
    let info = world.ac.session(record.session).unwrap();
    assert_eq!((info.ipv6cp, info.ipv6), (State::Opened, Some(IPV6)));
    assert_eq!(info.interface_ids, Some(ids));

    let all = advertisements(&client);
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].source, nd::link_local(ids.ours));
    assert_eq!(all[0].destination, nd::ALL_NODES);
    assert_eq!(all[0].router_lifetime, 1_800);
    let prefix = IPV6.prefix.octets();
    let information = [
        &[3, 4, 64, 0x40][..],
        &86_400u32.to_be_bytes(),
        &14_400u32.to_be_bytes(),
    ]
    .concat();
    assert_eq!(
        all[0].options[0],
        [&information[..], &[0; 4], &prefix].concat()
    );
    assert_eq!(
        all[0].options[1],
        [5, 1, 0, 0, 0, 0, 0x05, 0xd4],
        "MTU 1492"
    );
    let dns = IPV6.dns[0].unwrap().octets();
    assert_eq!(
        all[0].options[2],
        [&[25, 3, 0, 0, 0, 0, 0x07, 0x08][..], &dns].concat()
    );
    assert_eq!(all[0].options.len(), 3);
}

#[test]
fn a_zero_an_equal_and_a_missing_identifier_are_nakked_with_one_that_is_neither() {
    let mut world = world();
    let mut client = client();
    client.link_up(&mut world);
    let first = world.feed(&client.pap(1));
    let ours = first
        .iter()
        .map(|f| as_control(f))
        .find(|(proto, _)| *proto == protocol::IPV6CP)
        .unwrap()
        .1;
    assert_eq!((ours.code, &ours.data[..2]), (1, &[1, 10][..]));
    let ours = u64::from_be_bytes(ours.data[2..].try_into().unwrap());
    let mut suggestion = None;
    for asked in [
        vec![],
        [&[1, 10][..], &[0; 8]].concat(),
        [&[1, 10][..], &ours.to_be_bytes()].concat(),
        vec![1, 4, 9, 9],
    ] {
        let answer = world.feed(&client.ipv6cp(1, 1, &asked));
        let (_, nak) = as_control(&answer[0]);
        assert_eq!(
            (nak.code, &nak.data[..2]),
            (lcp_code::CONFIGURE_NAK, &[1, 10][..])
        );
        let hint = u64::from_be_bytes(nak.data[2..].try_into().unwrap());
        assert!(hint != 0 && hint != ours);
        assert_eq!(*suggestion.get_or_insert(hint), hint, "always the same one");
    }
    let taken = [&[1, 10][..], &suggestion.unwrap().to_be_bytes()].concat();
    let answer = world.feed(&client.ipv6cp(1, 2, &taken));
    assert_eq!(as_control(&answer[0]).1.code, lcp_code::CONFIGURE_ACK);
}

#[test]
fn unknown_options_are_rejected_before_anything_is_nakked() {
    let mut world = world();
    let mut client = client();
    client.link_up(&mut world);
    world.feed(&client.pap(1));
    let compression = [2, 4, 0, 0x4f];
    let asked = [&[1, 10][..], &[0; 8], &compression].concat();
    let answer = world.feed(&client.ipv6cp(1, 1, &asked));
    let (_, packet) = as_control(&answer[0]);
    assert_eq!(
        (packet.code, packet.data),
        (lcp_code::CONFIGURE_REJECT, &compression[..])
    );
}

#[test]
fn a_client_without_an_identifier_takes_the_one_it_is_told() {
    let mut world = world();
    let mut client = Client {
        interface_id: Some(0),
        ..client()
    };
    client.dial(&mut world);
    let ids = record_of(&world).interface_ids.unwrap();
    assert_eq!(client.interface_id, Some(ids.peer));
    assert!(ids.peer != 0 && ids.peer != ids.ours);
}

#[test]
fn a_client_that_insists_on_a_bad_identifier_goes_on_with_ipv4() {
    let mut world = world();
    let mut client = Client {
        interface_id: Some(0),
        insists_on_id: true,
        ..client()
    };
    client.dial(&mut world);
    assert_eq!(world.event_names(), ["started", "auth", "up"]);
    let naks = client.seen.iter().filter(|s| **s == (protocol::IPV6CP, 3));
    assert_eq!(naks.count(), 5, "Max-Failure");
    world.pass(20_000);
    let record = record_of(&world);
    assert!(record.ipv4_open && record.interface_ids.is_none());
    let info = world.ac.session(record.session).unwrap();
    assert_eq!((info.ipcp, info.ipv6cp), (State::Opened, State::Closed));
}

#[test]
fn a_nak_of_our_identifier_is_followed_and_does_not_go_on_for_ever() {
    let mut world = world();
    let mut client = client();
    client.link_up(&mut world);
    let mut frames = world.feed(&client.pap(1));
    for round in 0u64..5 {
        let (id, asked) = frames
            .iter()
            .map(|f| as_control(f))
            .find(|(proto, packet)| (*proto, packet.code) == (protocol::IPV6CP, 1))
            .map(|(_, packet)| (packet.id, packet.data.to_vec()))
            .unwrap();
        if round > 0 {
            assert_eq!(
                asked[2..],
                (round - 1).max(1).to_be_bytes(),
                "the hint, unless it is zero"
            );
        }
        let hint = [&[1, 10][..], &round.max(1).to_be_bytes()].concat();
        frames = world.feed(&client.ipv6cp(lcp_code::CONFIGURE_NAK, id, &hint));
    }
    let last = as_control(&frames[0]);
    assert_eq!(
        (last.0, last.1.code),
        (protocol::IPV6CP, lcp_code::TERMINATE_REQUEST)
    );
    assert_eq!(world.ac.sessions().count(), 1, "IPCP still negotiates");
}

#[test]
fn a_client_without_ipv6_goes_on_with_ipv4_and_one_without_ipv4_with_ipv6() {
    let mut world4 = world();
    let mut client4 = Client::new(1);
    client4.dial(&mut world4);
    assert_eq!(world4.event_names(), ["started", "auth", "up"]);
    let record = record_of(&world4);
    assert!(record.ipv4_open && record.interface_ids.is_none());
    assert!(client4.ipv6.is_empty(), "nothing is advertised");
    let quiet = world4.pass(29_000);
    assert!(quiet.is_empty(), "nothing more of IPv6CP: {quiet:?}");

    let mut world6 = world();
    let mut client6 = Client {
        has_ipv4: false,
        ..client()
    };
    client6.dial(&mut world6);
    assert_eq!(world6.event_names(), ["started", "auth", "up"]);
    let record = record_of(&world6);
    assert!(!record.ipv4_open && record.interface_ids.is_some());
    world6.pass(29_000);
    assert_eq!(world6.ac.sessions().count(), 1);
}

#[test]
fn a_client_that_answers_no_ipv6cp_keeps_ipv4_and_may_ask_for_ipv6_later() {
    let mut world = world();
    let mut client = Client::new(1);
    client.link_up(&mut world);
    let frames = world.feed(&client.pap(1));
    for frame in &frames {
        let (proto, packet) = as_control(frame);
        if (proto, packet.code) == (protocol::IPCP, 1) {
            world.feed(&client.ipcp(lcp_code::CONFIGURE_ACK, packet.id, packet.data));
        }
    }
    client.ip = FRAMED;
    client.dns.clear();
    let request = client.ipcp_request();
    world.feed(&request);
    for _ in 0..10 {
        world.pass(10_000);
        assert!(world.ac.note_traffic(world.now, world.session()));
    }
    let info = world.ac.session(world.session()).unwrap();
    assert_eq!((info.ipcp, info.ipv6cp), (State::Opened, State::Stopped));

    client.interface_id = Some(PEER);
    let request = client.ipv6cp_request();
    client.converse(&mut world, vec![request]);
    assert_eq!(world.event_names(), ["started", "auth", "up", "changed"]);
    assert_eq!(client.ipv6.len(), 1);
}

#[test]
fn closing_one_protocol_leaves_the_other_and_closing_both_ends_the_session() {
    for ipv4_first in [true, false] {
        let (mut world, mut client) = dual_stack_up();
        let bye = |client: &Client, ipv4| match ipv4 {
            true => client.ipcp(lcp_code::TERMINATE_REQUEST, 1, &[]),
            false => client.ipv6cp(lcp_code::TERMINATE_REQUEST, 1, &[]),
        };
        let answer = world.feed(&bye(&client, ipv4_first));
        assert_eq!(as_control(&answer[0]).1.code, lcp_code::TERMINATE_ACK);
        assert_eq!(world.event_names()[4..], ["changed"]);
        let record = record_of(&world);
        assert_eq!(record.ipv4_open, !ipv4_first);
        assert_eq!(record.interface_ids.is_some(), ipv4_first);
        for _ in 0..30 {
            let frames: Vec<_> = world.pass(25_000).into_iter().map(|(_, f)| f).collect();
            assert!(ipv6_of(&frames).is_empty() || ipv4_first, "{frames:?}");
            assert!(world.ac.note_traffic(world.now, world.session()));
        }
        // It comes back without the rest being touched.
        let request = match ipv4_first {
            true => client.ipcp_request(),
            false => client.ipv6cp_request(),
        };
        client.converse(&mut world, vec![request]);
        assert_eq!(world.event_names()[4..], ["changed", "changed"]);
        assert!(record_of(&world).ipv4_open && record_of(&world).interface_ids.is_some());

        world.feed(&bye(&client, ipv4_first));
        world.feed(&bye(&client, !ipv4_first));
        assert_eq!(world.event_names()[6..], ["changed", "network-down"]);
        world.pass(60_000);
        let cause = world.down_cause().unwrap();
        assert!(
            [TerminateCause::IpcpClosed, TerminateCause::Ipv6cpClosed].contains(&cause),
            "{cause:?}"
        );
    }
}

#[test]
fn a_renegotiation_of_lcp_takes_both_down_and_brings_both_up_with_the_same_identifier() {
    let (mut world, mut client) = dual_stack_up();
    let before = ours(&world);
    client.lcp_acked = (false, false);
    let request = client.lcp_request();
    client.converse(&mut world, vec![request]);
    assert_eq!(
        world.event_names()[4..],
        ["network-down", "auth", "up", "changed"]
    );
    assert_eq!(ours(&world), before);
    assert_eq!(client.ipv6.len(), 2);
}

#[test]
fn after_a_renegotiation_of_lcp_a_client_that_insisted_before_is_told_an_identifier_again() {
    let mut world = world();
    let mut client = Client {
        interface_id: Some(0),
        insists_on_id: true,
        ..client()
    };
    client.dial(&mut world);
    assert!(record_of(&world).interface_ids.is_none());
    client.insists_on_id = false;
    client.lcp_acked = (false, false);
    let request = client.lcp_request();
    client.converse(&mut world, vec![request]);
    let ids = record_of(&world).interface_ids.unwrap();
    assert_eq!(client.interface_id, Some(ids.peer));
}

#[test]
fn a_router_solicitation_is_answered_to_its_sender_within_a_rate() {
    let (mut world, client) = dual_stack_up();
    let source = nd::link_local(PEER);
    let solicitation = client.ppp(protocol::IPV6, &nd::router_solicitation(source));
    let answer = ipv6_of(&world.feed(&solicitation));
    let seen = advertisement(&answer[0]);
    assert_eq!((seen.destination, seen.router_lifetime), (source, 1_800));
    let unspecified = nd::router_solicitation(Ipv6Addr::UNSPECIFIED);
    let answer = ipv6_of(&world.feed(&client.ppp(protocol::IPV6, &unspecified)));
    assert_eq!(advertisement(&answer[0]).destination, nd::ALL_NODES);
    let answered = (0..20)
        .filter(|_| !world.feed(&solicitation).is_empty())
        .count();
    assert_eq!(answered, 3, "what is left of the burst");
    assert_eq!(world.last_drop, Some(DropReason::SolicitationRate));
    assert_eq!(world.count(Outcome::RouterSolicitations), 5);
    world.pass(1_000);
    assert_eq!(world.feed(&solicitation).len(), 1);
}

#[test]
fn a_forwarded_or_damaged_solicitation_gets_no_answer() {
    let (mut world, client) = dual_stack_up();
    let good = nd::router_solicitation(nd::link_local(PEER));
    let cases: [(usize, u8, DropReason); 5] = [
        (0, 0x40, DropReason::Ipv6Version),
        (7, 64, DropReason::NdHopLimit),
        (8, 0xff, DropReason::Ipv6Source),
        (43, good[43] ^ 1, DropReason::Icmpv6Checksum),
        (5, 7, DropReason::Icmpv6Checksum),
    ];
    for (at, value, reason) in cases {
        let mut bad = good.clone();
        bad[at] = value;
        assert!(world.feed(&client.ppp(protocol::IPV6, &bad)).is_empty());
        assert_eq!(world.last_drop, Some(reason), "byte {at}");
    }
}

#[test]
fn our_link_local_address_is_resolved_and_other_control_is_counted() {
    let (mut world, client) = dual_stack_up();
    let (source, own) = (nd::link_local(PEER), nd::link_local(ours(&world)));
    let ask = |target| client.ppp(protocol::IPV6, &nd::neighbour_solicitation(source, target));
    let answer = ipv6_of(&world.feed(&ask(own)));
    assert_eq!(
        (answer[0][40], answer[0][44]),
        (136, 0xe0),
        "router, solicited, override"
    );
    assert_eq!(answer[0][48..64], own.octets());
    assert_eq!(answer[0][24..40], source.octets());
    assert!(world.feed(&ask(nd::link_local(77))).is_empty());
    assert_eq!(world.last_drop, Some(DropReason::Ipv6Ignored));
    // UDP to no port of ours.
    let mut udp = nd::router_solicitation(source);
    udp[6] = 17;
    assert!(world.feed(&client.ppp(protocol::IPV6, &udp)).is_empty());
    assert_eq!(world.dropped(DropReason::Ipv6Ignored), 2);
}

#[test]
fn pings_of_our_link_local_address_are_answered_within_a_rate_and_the_peers_mru() {
    let mut world = world();
    let mut client = Client {
        mru: 1_280,
        ..client()
    };
    client.dial(&mut world);
    let (source, own) = (nd::link_local(PEER), nd::link_local(ours(&world)));
    let ping = |to, rest: &[u8]| client.ppp(protocol::IPV6, &nd::echo_request(source, to, rest));
    let answer = ipv6_of(&world.feed(&ping(own, b"\0\x01\0\x02data")));
    assert_eq!(nd::parse(&answer[0]), Ok(nd::Received::Other), "checksum");
    assert_eq!(answer[0][8..24], own.octets());
    assert_eq!(answer[0][24..40], source.octets());
    assert_eq!(answer[0][40..42], [129, 0]);
    assert_eq!(answer[0][44..], *b"\0\x01\0\x02data");

    let silent = [
        (ping(nd::link_local(77), &[0; 4]), DropReason::Ipv6Ignored),
        (ping(nd::ALL_NODES, &[0; 4]), DropReason::Ipv6Ignored),
        (ping(own, &[0; 3]), DropReason::Icmpv6Truncated),
        (ping(own, &[0; 1_237]), DropReason::PppOversize),
    ];
    for (frame, reason) in silent {
        assert!(world.feed(&frame).is_empty());
        assert_eq!(world.last_drop, Some(reason));
    }
    let longest = ipv6_of(&world.feed(&ping(own, &[0; 1_236])));
    assert_eq!(longest[0].len(), 1_280);
    let answered = (0..20).filter(|_| !world.feed(&ping(own, &[0; 4])).is_empty());
    assert_eq!(answered.count(), 3, "what is left of the burst");
    assert_eq!(world.last_drop, Some(DropReason::SolicitationRate));
    assert_eq!(world.count(Outcome::EchoReplies6), 5);
}

#[test]
fn advertisements_are_repeated_three_times_soon_and_then_now_and_again() {
    let (mut world, mut client) = dual_stack_up();
    let mut at = vec![];
    let begin = world.now.as_millis();
    while world.now.as_millis() < begin + 3_600_000 {
        let passed = world.now.as_millis() - begin;
        for (when, frame) in world.pass(20_000) {
            if ipv6_of(std::slice::from_ref(&frame)).is_empty() {
                let answers = client.react(&frame);
                client.converse(&mut world, answers);
            } else {
                at.push(passed + when);
            }
        }
    }
    assert!(
        (15_000..17_000).contains(&at[0]) && (31_000..33_000).contains(&at[1]),
        "{at:?}"
    );
    for pair in at[1..].windows(2) {
        assert!((199_000..=601_000).contains(&(pair[1] - pair[0])), "{at:?}");
    }
    assert!((8..=20).contains(&at.len()), "{at:?}");
}

#[test]
fn an_end_from_our_side_first_takes_the_advertisement_back() {
    let (mut world, _) = dual_stack_up();
    let session = world.session();
    world
        .ac
        .terminate(world.now, session, TerminateCause::Operator);
    let frames: Vec<_> = world.drain().into_iter().map(|t| t.frame).collect();
    let last = advertisement(&ipv6_of(&frames[..1])[0]);
    assert_eq!(last.router_lifetime, 0);
    assert_eq!(last.options[0][8..12], [0; 4], "preferred lifetime");
    assert_eq!(as_control(&frames[1]).1.code, lcp_code::TERMINATE_REQUEST);
    let later: Vec<_> = world.pass(60_000).into_iter().map(|(_, f)| f).collect();
    assert!(ipv6_of(&later).is_empty());
}

#[test]
fn a_link_too_small_for_ipv6_has_none() {
    let mut world = world();
    let mut client = Client {
        mru: 1279,
        ..client()
    };
    client.dial(&mut world);
    assert_eq!(world.event_names(), ["started", "auth", "up"]);
    assert!(record_of(&world).interface_ids.is_none());
    let rejects = client.seen.iter().filter(|s| **s == (protocol::LCP, 8));
    assert_eq!(rejects.count(), 1, "its IPv6CP is Protocol-Rejected");
}

#[test]
fn an_adopted_session_keeps_its_identifiers_and_goes_on_advertising() {
    let (world, mut client) = dual_stack_up();
    let record = record_of(&world);
    let mut next = World::new(config());
    next.now = Time::from_millis(world.now.as_millis() + 5_000);
    next.ac.adopt(next.now, record.clone()).unwrap();
    assert!(next.drain().is_empty() && next.events.is_empty());
    assert_eq!(next.ac.record(record.session), Some(record.clone()));
    let solicitation = nd::router_solicitation(nd::link_local(PEER));
    let answer = ipv6_of(&next.feed(&client.ppp(protocol::IPV6, &solicitation)));
    let own = nd::link_local(record.interface_ids.unwrap().ours);
    assert_eq!(advertisement(&answer[0]).source, own);
    let mut seen = 0;
    for _ in 0..10 {
        for (_, frame) in next.pass(20_000) {
            seen += ipv6_of(std::slice::from_ref(&frame)).len();
            let answers = client.react(&frame);
            client.converse(&mut next, answers);
        }
    }
    assert!(seen >= 1, "unsolicited");
    let request = client.ipv6cp_request();
    client.converse(&mut next, vec![request]);
    assert_eq!(next.event_names(), ["changed", "changed"]);
    assert_eq!(record_of(&next).interface_ids, record.interface_ids);
}

#[test]
fn an_adopted_session_whose_ipv4_was_closed_can_open_it_again() {
    let (mut world, mut client) = dual_stack_up();
    world.feed(&client.ipcp(lcp_code::TERMINATE_REQUEST, 1, &[]));
    let record = record_of(&world);
    assert!(!record.ipv4_open);
    let mut next = World::new(config());
    next.now = world.now;
    next.ac.adopt(next.now, record.clone()).unwrap();
    assert_eq!(next.ac.record(record.session), Some(record));
    let request = client.ipcp_request();
    client.converse(&mut next, vec![request]);
    assert_eq!(next.event_names(), ["changed"]);
    assert!(record_of(&next).ipv4_open);
    let InterfaceIds { ours, peer } = record_of(&next).interface_ids.unwrap();
    assert!(ours != 0 && peer == PEER);
}
