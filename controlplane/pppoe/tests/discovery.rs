//! The discovery stage: tags, Service-Names, AC-Cookie, limits, VLANs, RFC 4638, TR-101.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod peer;

use std::time::Duration;

use bng_pppoe::codec::frame::{self, LinkHeader};
use bng_pppoe::codec::tags::kind;
use bng_pppoe::codec::{AccessLineIds, TagWriter};
use bng_pppoe::{
    Config, DropReason, Event, Limits, Outcome, PortId, Rate, ServicePolicy, TerminateCause,
};
use bng_wire::pppoe::code;
use bng_wire::{MacAddr, VlanStack};
use peer::*;

fn tags(list: &[(u16, &[u8])]) -> Vec<u8> {
    let mut tags = TagWriter::new(4_000);
    for (kind, value) in list {
        assert!(tags.put(*kind, value));
    }
    tags.finish()
}

fn limited(limits: Limits) -> Config {
    Config { limits, ..config() }
}

/// The code, session id and error tag of the one reply.
fn pads(frames: &[Vec<u8>]) -> (u8, u16, Option<u16>) {
    let (packet, session_id, tags) = as_discovery(&frames[0]);
    let error = [kind::SERVICE_NAME_ERROR, kind::AC_SYSTEM_ERROR]
        .into_iter()
        .find(|k| tags.find(*k).is_some());
    (packet, session_id, error)
}

#[test]
fn pado_names_us_and_echoes_what_must_be_echoed() {
    let mut world = World::new(config());
    let client = Client::new(1);
    for (host_uniq, relay) in [
        (&b""[..], &b""[..]),
        (b"\0\xff\0", b"relay"),
        (&[7; 600], &[8; 500]),
    ] {
        let request = tags(&[
            (0x7777, b"unknown"),
            (kind::RELAY_SESSION_ID, relay),
            (kind::SERVICE_NAME, b"internet"),
            (kind::HOST_UNIQ, host_uniq),
            (kind::END_OF_LIST, b""),
            (kind::HOST_UNIQ, b"after the end"),
        ]);
        let answer = world.feed(&client.padi_with(&request));
        let (packet, session_id, tags) = as_discovery(&answer[0]);
        assert_eq!((packet, session_id), (code::PADO, 0));
        assert_eq!(tags.find(kind::HOST_UNIQ), Some(host_uniq));
        assert_eq!(tags.find(kind::RELAY_SESSION_ID), Some(relay));
        assert_eq!(tags.find(kind::SERVICE_NAME), Some(&b"internet"[..]));
        assert_eq!(tags.find(kind::AC_NAME), Some(&b"bng"[..]));
        assert!(tags.find(kind::AC_COOKIE).is_some());
        assert!(answer[0].len() <= 14 + 1500);
    }
    assert!(
        world.events.is_empty() && world.ac.poll_timeout().is_none(),
        "nothing is kept"
    );
}

#[test]
fn a_request_without_host_uniq_gets_none_back() {
    let mut world = World::new(config());
    let answer = world.feed(&Client::new(1).padi_with(&[]));
    let (_, _, tags) = as_discovery(&answer[0]);
    assert_eq!(tags.find(kind::HOST_UNIQ), None);
    assert_eq!(tags.find(kind::RELAY_SESSION_ID), None);
    assert_eq!(tags.find(kind::SERVICE_NAME), Some(&b""[..]));
}

#[test]
fn a_reply_that_would_exceed_the_mtu_is_not_sent() {
    let mut world = World::new(config());
    let request = tags(&[(kind::HOST_UNIQ, &[1; 1480])]);
    assert!(world.feed(&Client::new(1).padi_with(&request)).is_empty());
    assert_eq!(world.last_drop, Some(DropReason::ReplyTooLarge));
}

#[test]
fn listed_services_are_offered_and_others_are_not() {
    let services = ServicePolicy::Listed(vec![b"gold".to_vec(), b"iron".to_vec()]);
    let mut world = World::new(Config {
        services,
        ..config()
    });
    let offered = |world: &mut World, name: &[u8]| -> Vec<Vec<u8>> {
        let answer = world.feed(&Client::new(1).padi_with(&tags(&[(kind::SERVICE_NAME, name)])));
        let Some(pado) = answer.first() else {
            return vec![];
        };
        let (_, _, tags) = as_discovery(pado);
        let names = tags.iter().filter(|t| t.kind == kind::SERVICE_NAME);
        names.map(|t| t.value.to_vec()).collect()
    };
    assert_eq!(offered(&mut world, b""), [&b""[..], b"gold", b"iron"]);
    assert_eq!(offered(&mut world, b"iron"), [&b"iron"[..], b"gold"]);
    assert!(offered(&mut world, b"tin").is_empty());
    assert_eq!(world.last_drop, Some(DropReason::PadiServiceName));

    let mut client = Client::new(1);
    let pado = world.feed(&client.padi());
    client.react(&pado[0]);
    client.service_name = b"tin".to_vec();
    let refusal = world.feed(&client.padr());
    assert_eq!(
        pads(&refusal),
        (code::PADS, 0, Some(kind::SERVICE_NAME_ERROR))
    );
    let (_, _, echoed) = as_discovery(&refusal[0]);
    assert_eq!(echoed.find(kind::HOST_UNIQ), Some(&client.host_uniq[..]));
    assert_eq!(world.count(Outcome::PadsServiceNameError), 1);
    assert!(world.events.is_empty());
}

#[test]
fn padr_without_a_valid_cookie_is_silent_and_allocates_nothing() {
    let mut world = World::new(config());
    let mut client = Client::new(1);
    let request = client.padr_with(&tags(&[(kind::SERVICE_NAME, b"")]));
    assert!(world.feed(&request).is_empty());
    assert_eq!(world.last_drop, Some(DropReason::CookieMissing));

    let pado = world.feed(&client.padi());
    client.react(&pado[0]);
    let good = client.cookie.clone();
    client.cookie[20] ^= 1;
    assert!(world.feed(&client.padr()).is_empty());
    assert_eq!(world.last_drop, Some(DropReason::CookieForged));
    client.cookie = good;

    let thief = Client {
        mac: Client::new(2).mac,
        ..client.clone()
    };
    let moved = Client {
        vlans: VlanStack::single(tag(0x8100, 9)),
        ..client.clone()
    };
    for other in [thief, moved] {
        assert!(world.feed(&other.padr()).is_empty());
        assert_eq!(world.last_drop, Some(DropReason::CookieForged));
    }
    world.pass(30_001);
    assert!(world.feed(&client.padr()).is_empty());
    assert_eq!(world.last_drop, Some(DropReason::CookieExpired));
    assert!(world.events.is_empty());
    assert_eq!(world.ac.sessions().count(), 0);
}

#[test]
fn a_repeated_padr_gives_the_same_session_and_another_host_uniq_another() {
    let mut world = World::new(config());
    let mut client = Client::new(1);
    client.discover(&mut world);
    let again = world.feed(&client.padr());
    assert_eq!(pads(&again), (code::PADS, client.session_id, None));
    assert_eq!(again.len(), 1);
    assert_eq!(world.count(Outcome::PadrRepeated), 1);
    assert_eq!(world.ac.sessions().count(), 1);
    let second = Client {
        host_uniq: b"two".to_vec(),
        ..client.clone()
    };
    let other = world.feed(&second.padr());
    assert_ne!(pads(&other).1, client.session_id);
    assert_eq!(world.ac.sessions().count(), 2);
}

#[test]
fn limits_refuse_with_ac_system_error_and_stay_balanced() {
    let per_mac = Limits {
        sessions_per_mac: 1,
        ..Limits::default()
    };
    let per_port = Limits {
        sessions_per_port: 1,
        ..Limits::default()
    };
    let half_open = Limits {
        half_open: 1,
        ..Limits::default()
    };
    for (limits, second, outcome, unanswered) in [
        (per_mac, 1, Outcome::PadsMacLimit, DropReason::PadiBusy),
        (per_port, 2, Outcome::PadsPortLimit, DropReason::PadiBusy),
        (
            half_open,
            2,
            Outcome::PadsHalfOpenLimit,
            DropReason::PadiHalfOpen,
        ),
    ] {
        let mut world = World::new(limited(limits));
        let mut first = Client::new(1);
        let mut other = Client {
            host_uniq: b"other".to_vec(),
            ..Client::new(second)
        };
        let pado = world.feed(&other.padi());
        other.react(&pado[0]);
        // It takes its time, so nobody waits for it any more.
        world.pass(1_000);
        first.discover(&mut world);
        let refusal = world.feed(&other.padr());
        assert_eq!(pads(&refusal), (code::PADS, 0, Some(kind::AC_SYSTEM_ERROR)));
        assert_eq!(world.count(outcome), 1, "{outcome:?}");
        assert!(world.feed(&other.padi()).is_empty());
        assert_eq!(world.last_drop, Some(unanswered));
        world.feed(&first.padt());
        assert_eq!(pads(&world.feed(&other.padr())).2, None);
    }
}

#[test]
fn sessions_per_circuit_are_limited_by_agent_circuit_id() {
    let limits = Limits {
        sessions_per_circuit: 1,
        ..Limits::default()
    };
    let mut world = World::new(limited(limits));
    let mut results = vec![];
    for (number, circuit) in [(1, "dslam 1/1"), (2, "dslam 1/1"), (3, "dslam 1/2")] {
        let mut client = Client::new(number);
        let pado = world.feed(&client.padi());
        client.react(&pado[0]);
        let mut list = TagWriter::new(1_400);
        let ids = AccessLineIds {
            circuit_id: circuit.as_bytes(),
            remote_id: b"line 9",
        };
        assert!(list.put(kind::AC_COOKIE, &client.cookie) && list.put_access_line_ids(ids));
        let answer = world.feed(&client.padr_with(&list.finish()));
        results.push(pads(&answer).2);
    }
    assert_eq!(results, [None, Some(kind::AC_SYSTEM_ERROR), None]);
    assert_eq!(world.count(Outcome::PadsCircuitLimit), 1);
    let mut circuits: Vec<_> = world
        .ac
        .sessions()
        .map(|s| (s.circuit_id, s.remote_id))
        .collect();
    circuits.sort_unstable();
    assert_eq!(
        circuits,
        [
            (&b"dslam 1/1"[..], &b"line 9"[..]),
            (b"dslam 1/2", b"line 9")
        ]
    );
}

#[test]
fn a_vendor_tag_that_lies_about_its_items_is_malformed_and_other_vendors_are_not_read() {
    let mut world = World::new(config());
    let client = Client::new(1);
    let broken: [&[u8]; 4] = [
        &[0, 0, 13],
        &[0, 0, 13, 0xe9, 1],
        &[0, 0, 13, 0xe9, 1, 5, b'x'],
        &[0, 0, 13, 0xe9, 1, 1, b'x', 2, 1],
    ];
    for value in broken {
        assert!(
            world
                .feed(&client.padi_with(&tags(&[(kind::VENDOR_SPECIFIC, value)])))
                .is_empty()
        );
        assert_eq!(world.last_drop, Some(DropReason::VendorTagLength));
    }
    let other = [0, 0, 1, 1, 1, 200];
    assert_eq!(
        world
            .feed(&client.padi_with(&tags(&[(kind::VENDOR_SPECIFIC, &other)])))
            .len(),
        1
    );
}

#[test]
fn padi_rates_hold_per_mac_and_per_port_and_recover() {
    let padi_per_mac = Rate {
        per_second: 1,
        burst: 3,
    };
    let padi_per_port = Rate {
        per_second: 10,
        burst: 8,
    };
    let limits = Limits {
        padi_per_mac,
        padi_per_port,
        ..Limits::default()
    };
    let mut world = World::new(limited(limits));
    let answered = |world: &mut World, number: u16, times: usize| {
        let client = Client::new(number);
        (0..times)
            .filter(|_| !world.feed(&client.padi()).is_empty())
            .count()
    };
    assert_eq!(answered(&mut world, 1, 10), 3);
    assert_eq!(world.dropped(DropReason::PadiMacRate), 7);
    assert_eq!(answered(&mut world, 2, 3), 3);
    assert_eq!(answered(&mut world, 3, 3), 2);
    assert_eq!(world.last_drop, Some(DropReason::PadiPortRate));
    world.pass(1_000);
    assert_eq!(answered(&mut world, 1, 3), 1);
}

#[test]
fn replies_carry_the_tags_of_the_request_that_name_a_vlan() {
    let stacks = [
        VlanStack::UNTAGGED,
        VlanStack::single(tag(0x8100, 100)),
        VlanStack::single(tag(0x88a8, 0xe000)),
        VlanStack::double(tag(0x88a8, 0x6000 | 200), tag(0x8100, 0x2000 | 300)),
        VlanStack::double(tag(0x8100, 200), tag(0x8100, 300)),
    ];
    for (at, vlans) in stacks.into_iter().enumerate() {
        let mut world = World::new(config());
        let mut client = Client {
            vlans,
            ..Client::new(at as u16)
        };
        // The client itself asserts that every frame it gets carries its own tags, but for priority tags.
        client.dial(&mut world);
        assert_eq!(world.event_names(), ["started", "auth", "up"]);
        let info = world.ac.sessions().next().unwrap();
        assert_eq!(info.vlans, vlans.without_priority_tags());
        assert_eq!(
            (info.line.s_vlan, info.line.c_vlan),
            (vlans.s_vlan(), vlans.c_vlan())
        );
    }
}

#[test]
fn ppp_max_payload_is_honoured_as_far_as_the_port_allows() {
    for (port, asked, granted, mru) in [
        (PortId(1), Some(1500), Some(1500), 1500),
        (PortId(1), Some(9000), Some(1500), 1500),
        (PortId(1), Some(1496), Some(1496), 1496),
        (PortId(1), Some(1492), None, 1492),
        (PortId(1), None, None, 1492),
        (PortId(0), Some(1500), None, 1492),
    ] {
        let mut world = World::new(config());
        let ac_mac = world
            .ac
            .config()
            .ports
            .iter()
            .find(|p| p.id == port)
            .unwrap()
            .mac;
        let mut client = Client {
            port,
            ac_mac,
            max_payload: asked,
            mru: 1500,
            ..Client::new(1)
        };
        let padi = client.padi();
        let pado = world.feed_on(port, &padi);
        let (_, _, tags) = as_discovery(&pado[0].frame);
        assert_eq!(tags.ppp_max_payload(), granted, "{asked:?} on {port}");
        client.dial(&mut world);
        let info = world.ac.sessions().next().unwrap();
        assert_eq!(
            (info.our_mru, info.peer_mru),
            (mru, mru),
            "{asked:?} on {port}"
        );
    }
}

#[test]
fn two_ports_give_ids_of_their_own_and_are_not_mixed_up() {
    let mut world = World::new(config());
    let mac = MacAddr([2, 0xac, 0, 0, 0, 2]);
    let mut one = Client::new(1);
    let mut two = Client {
        port: PortId(1),
        ac_mac: mac,
        ..Client::new(1)
    };
    one.dial(&mut world);
    two.dial(&mut world);
    let ports: Vec<_> = world.ac.sessions().map(|s| s.session.port).collect();
    assert_eq!(ports, [PortId(0), PortId(1)]);
    world.feed_on(PortId(0), &two.padt());
    assert_eq!(world.ac.sessions().count(), 2);
    world.feed_on(PortId(1), &two.padt());
    assert_eq!(world.session().port, PortId(0));
    world.feed_on(PortId(7), &one.padi());
    assert_eq!(world.last_drop, Some(DropReason::PortUnknown));
}

#[test]
fn discovery_frames_of_the_wrong_kind_are_dropped_by_name() {
    let mut world = World::new(config());
    let client = Client::new(1);
    let link = client.link();
    let broadcast = LinkHeader {
        dst: MacAddr::BROADCAST,
        ..link
    };
    let from = |src| LinkHeader { src, ..broadcast };
    let none: &[u8] = &[];
    for (link, packet, session_id, reason) in [
        (link, code::PADI, 0, DropReason::Destination),
        (broadcast, code::PADR, 0, DropReason::Destination),
        (broadcast, code::PADT, 3, DropReason::Destination),
        (broadcast, code::PADI, 1, DropReason::DiscoverySessionId),
        (link, code::PADR, 1, DropReason::DiscoverySessionId),
        (link, code::PADT, 0, DropReason::DiscoverySessionId),
        (link, code::PADO, 0, DropReason::DiscoveryCode),
        (link, code::PADS, 1, DropReason::DiscoveryCode),
        (link, 0xd3, 0, DropReason::DiscoveryCode),
        (from(AC_MAC), code::PADI, 0, DropReason::SourceMac),
        (
            from(MacAddr::BROADCAST),
            code::PADI,
            0,
            DropReason::SourceMac,
        ),
        (from(MacAddr::ZERO), code::PADI, 0, DropReason::SourceMac),
    ] {
        let bytes = frame::discovery(&link, packet, session_id, none).unwrap();
        let before = world.dropped(reason);
        assert!(world.feed(&bytes).is_empty());
        assert_eq!(world.last_drop, Some(reason));
        assert_eq!(world.dropped(reason), before + 1);
    }
    let mut arp = client.padi();
    arp[12..14].copy_from_slice(&[8, 6]);
    world.feed(&arp);
    assert_eq!(world.last_drop, Some(DropReason::NotPppoe));
}

#[test]
fn a_session_id_rests_between_two_sessions_and_running_out_is_said() {
    let session_id_quarantine = Duration::from_secs(3_600);
    let mut world = World::new(Config {
        session_id_quarantine,
        ..config()
    });
    let mut ids = std::collections::BTreeSet::new();
    for number in 0..=65_533u16 {
        if number % 10_000 == 9_999 {
            world.pass(1_000);
        }
        let mut client = Client::new(number);
        client.discover(&mut world);
        assert!(ids.insert(client.session_id), "{} again", client.session_id);
        world.feed(&client.padt());
        world.events.clear();
    }
    let mut client = Client::new(0);
    let pado = world.feed(&client.padi());
    client.react(&pado[0]);
    let refusal = world.feed(&client.padr());
    assert_eq!(pads(&refusal), (code::PADS, 0, Some(kind::AC_SYSTEM_ERROR)));
    assert_eq!(world.count(Outcome::PadsNoSessionId), 1);
    assert_eq!(world.ac.awaiting_release(), 0);
    world.pass(3_600_000);
    client.discover(&mut world);
    assert!(ids.contains(&client.session_id));
}

#[test]
fn an_id_is_not_given_again_before_its_release() {
    let mut world = World::new(config());
    world.auto_release = false;
    let mut client = Client::new(1);
    client.discover(&mut world);
    let session = world.session();
    world.feed(&client.padt());
    assert_eq!(world.ac.awaiting_release(), 1);
    assert!(world.ac.release(world.now, session));
    assert!(!world.ac.release(world.now, session), "once");
    assert_eq!(world.ac.awaiting_release(), 0);
    let started = world
        .events
        .iter()
        .filter(|e| matches!(e, Event::SessionStarted { .. }));
    assert_eq!(started.count(), 1);
}

#[test]
fn silent_sessions_give_way_when_half_open_ones_are_at_their_limit_but_not_those_that_talk() {
    let mut settings = config();
    settings.limits.half_open = 2;
    let mut world = World::new(settings);
    let (mut silent, mut slow, mut late) = (Client::new(1), Client::new(2), Client::new(3));
    silent.discover(&mut world);
    slow.discover(&mut world);
    world.pass(999);
    world.feed(&slow.lcp_request());
    assert!(world.feed(&late.padi()).is_empty());
    assert_eq!(world.last_drop, Some(DropReason::PadiHalfOpen));

    // The silent one has let its first Configure-Request go unanswered.
    world.pass(1);
    let pado = world.feed(&late.padi());
    late.react(&pado[0]);
    let frames = world.feed(&late.padr());
    let padt = frame::parse(&frames[0]).unwrap();
    assert_eq!(padt.dst, silent.mac);
    assert_eq!(as_discovery(&frames[0]).0, code::PADT);
    let next = frames[1..].iter().flat_map(|f| late.react(f)).collect();
    late.converse(&mut world, next);
    assert_eq!(world.ended(TerminateCause::Displaced), 1);
    assert_eq!(world.down_cause(), Some(TerminateCause::Displaced));
    assert_eq!(world.event_names().last(), Some(&"up"));
    assert_eq!(world.ac.half_open(), 1, "the slow one");

    let mut another = Client::new(4);
    another.discover(&mut world);
    world.feed(&another.lcp_request());
    world.pass(1_000);
    assert!(world.feed(&Client::new(5).padi()).is_empty(), "both talk");
}

#[test]
fn a_padi_at_the_limit_of_its_circuit_or_port_gets_no_pado() {
    let limits = Limits {
        sessions_per_circuit: 1,
        ..Limits::default()
    };
    let mut world = World::new(limited(limits));
    let on_circuit = |client: &Client, circuit_id: &[u8]| {
        let mut list = TagWriter::new(1_400);
        let ids = AccessLineIds {
            circuit_id,
            remote_id: b"",
        };
        assert!(list.put(kind::AC_COOKIE, &client.cookie) && list.put_access_line_ids(ids));
        list.finish()
    };
    let mut first = Client::new(1);
    let pado = world.feed(&first.padi_with(&on_circuit(&first, b"7")));
    first.react(&pado[0]);
    world.feed(&first.padr_with(&on_circuit(&first, b"7")));
    let other = Client::new(2);
    assert!(
        world
            .feed(&other.padi_with(&on_circuit(&other, b"7")))
            .is_empty()
    );
    assert_eq!(world.last_drop, Some(DropReason::PadiBusy));
    assert_eq!(
        world
            .feed(&other.padi_with(&on_circuit(&other, b"8")))
            .len(),
        1
    );
    assert_eq!(world.feed(&other.padi()).len(), 1, "no circuit, no limit");
}

/// Clients with a PADO and what becomes of their PADRs, which wait until `under_way` more clients have asked: how many had
/// a PADO, how many a session.
fn storm(world: &mut World, clients: u16, under_way: usize) -> (usize, usize) {
    let mut waiting = std::collections::VecDeque::new();
    let (mut offered, mut started) = (0, 0);
    for number in 1..=clients {
        let mut client = Client::new(number);
        if let Some(pado) = world.feed(&client.padi()).first() {
            client.react(pado);
            offered += 1;
            waiting.push_back(client);
        }
        if waiting.len() > under_way || number == clients {
            let rest = if number == clients { 0 } else { under_way };
            for client in waiting.drain(..waiting.len() - rest) {
                let frames = world.feed(&client.padr());
                started += usize::from(pads(&frames).1 != 0);
            }
        }
    }
    (offered, started)
}

#[test]
fn whoever_has_a_pado_gets_a_session_while_half_open_ones_fill_up() {
    let limits = Limits {
        half_open: 64,
        ..Limits::default()
    };
    let mut settings = limited(limits);
    settings.ports.truncate(1);
    let mut world = World::new(settings);
    let (offered, started) = storm(&mut world, 200, 10);
    assert_eq!(world.count(Outcome::PadsHalfOpenLimit), 0);
    assert_eq!((offered, started), (58, 58), "48 and those under way");
    assert_eq!(world.dropped(DropReason::PadiHalfOpen), 142);
    assert_eq!(world.dropped(DropReason::PadiBusy), 0);
    assert_eq!(world.ac.half_open(), 58);
}

#[test]
fn no_more_get_a_pado_than_there_is_room_for_however_long_their_padrs_wait_in_rings() {
    let limits = Limits {
        half_open: 64,
        ..Limits::default()
    };
    let mut settings = limited(limits);
    settings.ports.truncate(1);
    let mut world = World::new(settings);
    let (offered, started) = storm(&mut world, 200, 200);
    assert_eq!(world.count(Outcome::PadsHalfOpenLimit), 0);
    assert_eq!((offered, started), (64, 64));
    assert_eq!(world.dropped(DropReason::PadiHalfOpen), 136);
}

#[test]
fn a_flood_of_padis_that_nobody_follows_up_does_not_keep_clients_out_for_long() {
    let limits = Limits {
        half_open: 64,
        padi_per_port: Rate {
            per_second: 100_000,
            burst: 100_000,
        },
        ..Limits::default()
    };
    let mut world = World::new(limited(limits));
    let mut number = 100;
    let mut flood = |world: &mut World| {
        for _ in 0..300 {
            number += 1;
            world.feed(&Client::new(number).padi());
        }
        world.pass(64);
    };
    // Two half seconds, until so few are expected to follow as do.
    for _ in 0..18 {
        flood(&mut world);
    }
    assert!(world.dropped(DropReason::PadiHalfOpen) > 0);
    for client in 1..=20 {
        let mut client = Client::new(client);
        client.dial(&mut world);
        assert_eq!(world.event_names().last(), Some(&"up"));
        flood(&mut world);
    }
}

#[test]
fn a_port_full_of_half_open_sessions_leaves_the_other_its_share() {
    let limits = Limits {
        half_open: 16,
        ..Limits::default()
    };
    let mut world = World::new(limited(limits));
    // All talk, so that nobody gives way: half of the limit is for whoever comes first, a quarter for each port.
    let dial = |world: &mut World, number: u16, port: usize| {
        let mut client = Client::new(number);
        (client.port, client.ac_mac) = (PortId(port as u8), config().ports[port].mac);
        let pado = world.feed_on(client.port, &client.padi());
        if pado.is_empty() {
            return false;
        }
        client.react(&pado[0].frame);
        let frames = world.feed_on(client.port, &client.padr());
        let requests = client.react(&frames[0].frame);
        world.feed_on(client.port, &requests[0]);
        true
    };
    let on_first = (1..=20)
        .filter(|number| dial(&mut world, *number, 0))
        .count();
    assert_eq!(on_first, 9, "of the three quarters that get a PADO");
    assert_eq!(world.last_drop, Some(DropReason::PadiHalfOpen));
    let on_second = (1..=20)
        .filter(|number| dial(&mut world, *number, 1))
        .count();
    assert_eq!(on_second, 3);
    assert_eq!(world.ac.half_open(), 12);
}

#[test]
fn silent_sessions_of_another_port_give_way_only_beyond_its_share() {
    let limits = Limits {
        half_open: 8,
        ..Limits::default()
    };
    let mut world = World::new(limited(limits));
    let discover = |world: &mut World, number: u16, port: usize| {
        let mut client = Client::new(number);
        (client.port, client.ac_mac) = (PortId(port as u8), config().ports[port].mac);
        let pado = world.feed_on(client.port, &client.padi());
        if let Some(pado) = pado.first() {
            client.react(&pado.frame);
            world.feed_on(client.port, &client.padr());
        }
    };
    for number in 1..=6 {
        discover(&mut world, number, 0);
    }
    for number in 1..=20 {
        world.pass(100);
        discover(&mut world, number, 1);
    }
    let on = |world: &World, port| {
        let sessions = world.ac.sessions();
        sessions
            .filter(|it| it.session.port == PortId(port))
            .count()
    };
    assert_eq!((on(&world, 0), on(&world, 1)), (2, 6));
    assert_eq!(world.ac.half_open(), 8);
}
