//! LCP negotiation: what is asked, accepted, Nak'ed and rejected; retransmission; loops.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod peer;

use bng_pppoe::codec::control::Options;
use bng_pppoe::codec::lcp::code;
use bng_pppoe::{DropReason, Outcome, TerminateCause};
use bng_wire::pppoe::protocol;
use peer::*;

const MAGIC: [u8; 6] = [5, 6, 0x11, 0x22, 0x33, 0x44];

/// A discovered session; the engine's first Configure-Request.
fn fresh() -> (World, Client, Vec<u8>) {
    let mut world = World::new(config());
    let mut client = Client::new(1);
    let frames = client.discover(&mut world);
    (world, client, frames[1].clone())
}

/// What the engine answers to a Configure-Request with these options: code and options.
fn judge(world: &mut World, client: &Client, options: &[u8]) -> (u8, Vec<u8>) {
    let frames = world.feed(&client.lcp(code::CONFIGURE_REQUEST, 200, options));
    let answer = frames
        .iter()
        .map(|f| as_control(f).1)
        .find(|p| p.id == 200)
        .unwrap();
    (answer.code, answer.data.to_vec())
}

#[test]
fn we_ask_for_mru_pap_and_a_magic_number() {
    let (_, _, request) = fresh();
    let (proto, packet) = as_control(&request);
    assert_eq!(
        (proto, packet.code),
        (protocol::LCP, code::CONFIGURE_REQUEST)
    );
    let options = Options::parse(packet.data).unwrap();
    let kinds: Vec<_> = options.iter().map(|o| o.kind).collect();
    assert_eq!(kinds, [1, 3, 5]);
    assert_eq!(options.find(1).unwrap().data, [0x05, 0xd4]);
    assert_eq!(options.find(3).unwrap().data, [0xc0, 0x23]);
    assert_ne!(options.find(5).unwrap().data, [0; 4]);
}

#[test]
fn every_unacceptable_option_is_rejected_in_order_before_anything_is_nakked() {
    let (mut world, client, _) = fresh();
    let mut asked = vec![1, 4, 0, 10];
    let rejected: [&[u8]; 6] = [
        &[7, 2],
        &[3, 5, 0xc2, 0x23, 5],
        &[13, 3, 6],
        &[8, 2],
        &[99, 4, 1, 2],
        &[17, 4, 5, 0xdc],
    ];
    for option in rejected {
        asked.extend_from_slice(option);
    }
    asked.extend_from_slice(&MAGIC);
    assert_eq!(judge(&mut world, &client, &asked), (4, rejected.concat()));
}

#[test]
fn mru_is_accepted_within_floor_and_link_and_nakked_outside() {
    for (mru, answer) in [
        (575u16, Some(576u16)),
        (576, None),
        (1492, None),
        (1493, Some(1492)),
        (1500, Some(1492)),
        (0, Some(576)),
        (65_535, Some(1492)),
    ] {
        let (mut world, client, _) = fresh();
        let [high, low] = mru.to_be_bytes();
        let (got, options) = judge(&mut world, &client, &[1, 4, high, low]);
        match answer {
            None => assert_eq!((got, options), (2, vec![1, 4, high, low])),
            Some(hint) => {
                let [high, low] = hint.to_be_bytes();
                assert_eq!((got, options), (3, vec![1, 4, high, low]), "MRU {mru}");
            }
        }
    }
}

#[test]
fn options_of_the_wrong_size_are_nakked_with_the_right_one_once() {
    let (mut world, client, _) = fresh();
    let (got, options) = judge(&mut world, &client, &[1, 3, 9, 1, 2, 1, 2, 1, 2]);
    assert_eq!((got, options), (3, vec![1, 4, 0x05, 0xd4]));
    let (got, options) = judge(&mut world, &client, &[5, 6, 0, 0, 0, 0]);
    assert_eq!((got, options.len()), (3, 6));
    assert_ne!(options[2..], [0; 4]);
    assert_eq!(
        judge(&mut world, &client, &[]),
        (2, vec![]),
        "no option at all is fine"
    );
}

#[test]
fn after_max_failure_naks_the_option_is_rejected() {
    let (mut world, client, _) = fresh();
    for _ in 0..5 {
        assert_eq!(judge(&mut world, &client, &[1, 4, 0, 10]).0, 3);
    }
    assert_eq!(
        judge(&mut world, &client, &[1, 4, 0, 10]),
        (4, vec![1, 4, 0, 10])
    );
    assert_eq!(judge(&mut world, &client, &MAGIC), (2, MAGIC.to_vec()));
}

#[test]
fn a_peer_that_wants_us_to_authenticate_is_rejected_and_the_link_comes_up() {
    let mut world = World::new(config());
    let mut client = Client::new(1);
    client.extra_lcp = vec![3, 4, 0xc0, 0x23, 7, 2, 8, 2];
    client.dial(&mut world);
    assert!(
        client
            .seen
            .contains(&(protocol::LCP, code::CONFIGURE_REJECT))
    );
    assert_eq!(world.event_names(), ["started", "auth", "up"]);
}

#[test]
fn a_peer_that_rejects_our_authentication_never_reaches_the_network_phase() {
    let (mut world, client, request) = fresh();
    let id = as_control(&request).1.id;
    let answer = world.feed(&client.lcp(code::CONFIGURE_REJECT, id, &[3, 4, 0xc0, 0x23]));
    assert_eq!(as_control(&answer[0]).1.code, code::TERMINATE_REQUEST);
    world.pass(60_000);
    assert_eq!(world.event_names(), ["started", "down"]);
    assert_eq!(world.down_cause(), Some(TerminateCause::AuthRefused));
}

#[test]
fn a_peer_that_keeps_asking_for_another_protocol_than_pap_is_ended_within_max_failure() {
    let (mut world, client, request) = fresh();
    let mut id = as_control(&request).1.id;
    for round in 1..=5 {
        let answer = world.feed(&client.lcp(code::CONFIGURE_NAK, id, &[3, 5, 0xc2, 0x23, 5]));
        let (_, next) = as_control(&answer[0]);
        let expected = if round < 5 {
            code::CONFIGURE_REQUEST
        } else {
            code::TERMINATE_REQUEST
        };
        assert_eq!(next.code, expected, "round {round}");
        id = next.id;
    }
    world.pass(60_000);
    assert_eq!(world.down_cause(), Some(TerminateCause::AuthRefused));
}

#[test]
fn a_peer_may_reject_mru_and_magic_and_lower_our_mru() {
    let (mut world, client, request) = fresh();
    let id = as_control(&request).1.id;
    let answer = world.feed(&client.lcp(code::CONFIGURE_NAK, id, &[1, 4, 0x05, 0x78]));
    let (_, packet) = as_control(&answer[0]);
    assert_eq!(packet.data[..4], [1, 4, 0x05, 0x78]);
    let magic = packet.data[8..].to_vec();
    let rejected = [&packet.data[..4], &magic].concat();
    let answer = world.feed(&client.lcp(code::CONFIGURE_REJECT, packet.id, &rejected));
    assert_eq!(as_control(&answer[0]).1.data, [3, 4, 0xc0, 0x23]);
    let info = world.ac.sessions().next().unwrap();
    assert_eq!((info.our_mru, info.our_magic), (1492, 0));
}

#[test]
fn an_answer_that_answers_nothing_is_dropped_by_name() {
    let (mut world, client, request) = fresh();
    let (_, ours) = as_control(&request);
    let mut changed = ours.data.to_vec();
    changed[3] ^= 1;
    let stale = ours.id.wrapping_add(1);
    let nothing: &[u8] = &[];
    for (packet, id, data, reason) in [
        (
            code::CONFIGURE_ACK,
            stale,
            ours.data,
            DropReason::StaleReply,
        ),
        (
            code::CONFIGURE_NAK,
            stale,
            ours.data,
            DropReason::StaleReply,
        ),
        (
            code::CONFIGURE_REJECT,
            stale,
            ours.data,
            DropReason::StaleReply,
        ),
        (
            code::CONFIGURE_ACK,
            ours.id,
            &changed,
            DropReason::AckMismatch,
        ),
        (
            code::CONFIGURE_ACK,
            ours.id,
            nothing,
            DropReason::AckMismatch,
        ),
        (
            code::CONFIGURE_REJECT,
            ours.id,
            nothing,
            DropReason::RejectMismatch,
        ),
        (
            code::CONFIGURE_REJECT,
            ours.id,
            &changed[..4],
            DropReason::RejectMismatch,
        ),
        (code::CODE_REJECT, 1, nothing, DropReason::CodeRejectShort),
        (
            code::PROTOCOL_REJECT,
            1,
            &changed[..1],
            DropReason::ProtocolRejectShort,
        ),
        (
            code::PROTOCOL_REJECT,
            1,
            &changed[..4],
            DropReason::BeforeOpened,
        ),
        (
            code::ECHO_REQUEST,
            1,
            &changed[..3],
            DropReason::MagicTruncated,
        ),
        (
            code::ECHO_REQUEST,
            1,
            &changed[..4],
            DropReason::BeforeOpened,
        ),
    ] {
        assert!(world.feed(&client.lcp(packet, id, data)).is_empty());
        assert_eq!(world.last_drop, Some(reason), "code {packet}");
    }
}

#[test]
fn an_ack_that_arrives_twice_does_not_tear_the_link_down() {
    let (mut world, mut client, request) = fresh();
    let (_, ours) = as_control(&request);
    let ack = client.lcp(code::CONFIGURE_ACK, ours.id, ours.data);
    world.feed(&ack);
    world.feed(&client.lcp_request());
    assert!(world.feed(&ack).is_empty());
    assert_eq!(world.last_drop, Some(DropReason::StaleReply));
    assert_eq!(world.count(Outcome::LcpRenegotiated), 0);
    assert_eq!(world.count(Outcome::LcpOpened), 1);
}

#[test]
fn each_copy_of_a_request_may_be_answered_and_what_comes_beyond_that_is_stale() {
    // The client's request crosses ours, which is sent again, so it answers both.
    let (mut world, mut client, request) = fresh();
    let (_, ours) = as_control(&request);
    world.feed(&client.lcp_request());
    assert_eq!(world.count(Outcome::EarlyRetransmissions), 1);
    let ack = client.lcp(code::CONFIGURE_ACK, ours.id, ours.data);
    for (repeated, stale) in [(0, 0), (1, 0), (1, 1)] {
        assert!(world.feed(&ack).is_empty());
        assert_eq!(world.count(Outcome::AnswersRepeated), repeated);
        assert_eq!(world.dropped(DropReason::StaleReply), stale);
    }
    assert_eq!(world.count(Outcome::LcpOpened), 1);
    assert_eq!(world.count(Outcome::LcpRenegotiated), 0);

    // What answers an earlier request is none of these.
    let (mut world, mut client, request) = fresh();
    let (_, ours) = as_control(&request);
    world.feed(&client.lcp_request());
    world.feed(&client.lcp(code::CONFIGURE_NAK, ours.id, &[1, 4, 5, 0xc0]));
    assert!(
        world
            .feed(&client.lcp(code::CONFIGURE_ACK, ours.id, ours.data))
            .is_empty()
    );
    assert_eq!(world.last_drop, Some(DropReason::StaleReply));
}

#[test]
fn nothing_of_an_undisturbed_dial_is_counted_as_dropped() {
    for by_chap in [false, true] {
        let mut config = config();
        if by_chap {
            config.auth_protocols = vec![bng_pppoe::AuthProtocol::ChapMd5];
        }
        let mut world = World::new(config);
        world.grant = dual_stack();
        let mut client = Client {
            interface_id: Some(7),
            ..Client::new(1)
        };
        client.dial(&mut world);
        assert_eq!(world.event_names(), ["started", "auth", "up", "changed"]);
        for reason in DropReason::ALL {
            assert_eq!(world.dropped(*reason), 0, "{}", reason.name());
        }
    }
}

#[test]
fn a_lost_first_request_is_sent_again_when_the_peers_arrives_but_not_once_acknowledged() {
    let (mut world, mut client, request) = fresh();
    let answers = world.feed(&client.lcp_request());
    let packets: Vec<_> = answers.iter().map(|f| as_control(f).1).collect();
    assert_eq!(
        packets[0],
        as_control(&request).1,
        "unchanged, before the Ack"
    );
    assert_eq!(packets[1].code, code::CONFIGURE_ACK);
    assert_eq!(world.feed(&client.lcp_request()).len(), 1, "once");

    let (mut world, mut client, request) = fresh();
    let (_, ours) = as_control(&request);
    world.feed(&client.lcp(code::CONFIGURE_ACK, ours.id, ours.data));
    let answers = world.feed(&client.lcp_request());
    assert_eq!(answers.len(), 1);
    assert_eq!(as_control(&answers[0]).1.code, code::CONFIGURE_ACK);
}

#[test]
fn the_request_sent_early_again_has_a_whole_restart_period_to_be_answered() {
    let (mut world, mut client, request) = fresh();
    world.pass(999);
    let ours = as_control(&request).1;
    assert_eq!(world.feed(&client.lcp_request()).len(), 2, "again, and Ack");
    assert!(
        world.pass(999).is_empty(),
        "the peer that answered the second one is Opened, a third would tear it down"
    );
    world.feed(&client.lcp(code::CONFIGURE_ACK, ours.id, ours.data));
    assert_eq!(world.count(Outcome::LcpOpened), 1);
    assert_eq!(world.count(Outcome::Retransmissions), 0);
}

#[test]
fn the_restart_timer_backs_off_and_gives_up_after_max_configure() {
    let (mut world, _, request) = fresh();
    let frames = world.pass(120_000);
    let times: Vec<_> = frames
        .iter()
        .filter(|(_, f)| *f == request)
        .map(|(at, _)| *at)
        .collect();
    assert_eq!(times[..4], [1_000, 3_000, 7_000, 11_000]);
    assert_eq!(times.len(), 9, "Max-Configure with the first");
    assert_eq!(frames.len(), 10, "and the PADT");
    assert_eq!(world.down_cause(), Some(TerminateCause::LcpTimeout));
    assert_eq!(world.ac.half_open(), 0);
}

#[test]
fn a_looped_link_is_noticed_by_its_magic_number() {
    let (mut world, client, request) = fresh();
    let (_, ours) = as_control(&request);
    let magic = ours.data[8..].to_vec();
    for round in 0..6 {
        let frames = world.feed(&client.lcp(code::CONFIGURE_REQUEST, round, &magic));
        let last = as_control(frames.last().unwrap()).1.code;
        let expected = if round < 5 {
            code::CONFIGURE_NAK
        } else {
            code::TERMINATE_REQUEST
        };
        assert_eq!(last, expected, "round {round}");
    }
    world.pass(60_000);
    assert_eq!(world.down_cause(), Some(TerminateCause::LoopedBack));

    let mut world = World::new(config());
    let mut client = Client::new(1);
    client.dial(&mut world);
    let magic = world.ac.sessions().next().unwrap().our_magic.to_be_bytes();
    for _ in 0..5 {
        assert!(
            world
                .feed(&client.lcp(code::ECHO_REQUEST, 1, &magic))
                .is_empty()
        );
        assert_eq!(world.last_drop, Some(DropReason::EchoLooped));
    }
    world.feed(&client.lcp(code::ECHO_REQUEST, 1, &magic));
    world.pass(60_000);
    assert_eq!(world.down_cause(), Some(TerminateCause::LoopedBack));
}

#[test]
fn an_unknown_code_is_code_rejected_with_changing_ids() {
    let (mut world, client, _) = fresh();
    let mut ids = vec![];
    for _ in 0..3 {
        let answer = world.feed(&client.lcp(0, 9, b"what"));
        let (_, packet) = as_control(&answer[0]);
        assert_eq!(
            (packet.code, packet.data),
            (code::CODE_REJECT, &b"\0\x09\0\x08what"[..])
        );
        ids.push(packet.id);
    }
    assert!(ids.windows(2).all(|w| w[0] != w[1]));
}

#[test]
fn a_rejected_code_or_protocol_ppp_needs_ends_the_session() {
    for reject in [[7u8, 1].as_slice(), &[8, 0xc0, 0x21]] {
        let mut world = World::new(config());
        let mut client = Client::new(1);
        client.dial(&mut world);
        let mut data = reject[1..].to_vec();
        data.extend_from_slice(&[1, 1, 0, 4]);
        let answer = world.feed(&client.lcp(reject[0], 1, &data));
        assert_eq!(as_control(&answer[0]).1.code, code::TERMINATE_REQUEST);
        world.pass(60_000);
        assert_eq!(world.down_cause(), Some(TerminateCause::ProtocolError));
    }
    let mut world = World::new(config());
    let mut client = Client::new(1);
    client.dial(&mut world);
    assert!(
        world
            .feed(&client.lcp(code::CODE_REJECT, 1, &[12, 1, 0, 4]))
            .is_empty()
    );
    assert!(
        world
            .feed(&client.lcp(code::PROTOCOL_REJECT, 1, &[0x80, 0x57]))
            .is_empty()
    );
    assert_eq!(world.event_names(), ["started", "auth", "up"]);
}
