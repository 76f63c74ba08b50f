//! CHAP (RFC 1994): challenges, one verdict each, challenges repeated on a live session, and how LCP gets there.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod peer;

use std::time::Duration;

use bng_pppoe::codec::chap::{self, code as chap_code};
use bng_pppoe::codec::lcp::code as lcp_code;
use bng_pppoe::{
    AuthProtocol, AuthVerdict, Config, ConfigError, DropReason, Event, Outcome, Phase, Proof,
    RejectCause, TerminateCause, Time,
};
use bng_wire::pppoe::protocol;
use peer::*;

const CHAP: AuthProtocol = AuthProtocol::ChapMd5;
const PAP: AuthProtocol = AuthProtocol::Pap;

fn offering(auth_protocols: &[AuthProtocol]) -> Config {
    Config {
        auth_protocols: auth_protocols.to_vec(),
        // A test that lets hours pass is not about a peer that answers no echo.
        echo_interval: Duration::from_secs(1_000_000),
        ..config()
    }
}

fn rechallenging() -> Config {
    Config {
        chap_interval: Some(Duration::from_secs(100)),
        ..offering(&[CHAP])
    }
}

fn dialled(config: Config) -> (World, Client) {
    let mut world = World::new(config);
    let mut client = Client::new(1);
    client.dial(&mut world);
    assert_eq!(world.event_names(), ["started", "auth", "up"]);
    (world, client)
}

/// A client before its response: the challenge is known to it.
fn challenged(config: Config) -> (World, Client) {
    let mut world = World::new(config);
    let mut client = Client::new(1);
    client.answers_challenges = false;
    client.dial(&mut world);
    assert_eq!(client.challenges.len(), 1);
    (world, client)
}

/// Code and identifier of the CHAP packets among frames.
fn chap_of(frames: &[Vec<u8>]) -> Vec<(u8, u8)> {
    let packets = frames.iter().map(|frame| as_control(frame));
    packets
        .filter(|(number, _)| *number == protocol::CHAP)
        .map(|(_, packet)| (packet.code, packet.id))
        .collect()
}

#[test]
fn the_response_of_rfc_1994_is_md5_over_identifier_secret_and_challenge() {
    // MD5("abc") of RFC 1321 appendix A.5, parted into the three.
    let digest = chap::md5_response(b'a', b"b", b"c");
    let known = 0x9001_5098_3cd2_4fb0_d696_3f7d_28e1_7f72_u128;
    assert_eq!(digest, known.to_be_bytes());
}

#[test]
fn a_client_dials_by_chap_and_aaa_gets_identifier_challenge_and_response() {
    let (world, client) = dialled(offering(&[CHAP]));
    let (id, challenge) = client.challenges[0].clone();
    let asked = &world.auth[0];
    assert_eq!(asked.user_name, b"alice");
    assert!(!asked.is_repeated);
    let expected = Proof::ChapMd5 {
        identifier: id,
        challenge: challenge.clone().try_into().unwrap(),
        response: chap::md5_response(id, b"secret", &challenge),
    };
    assert_eq!(asked.proof, expected);
    assert_eq!(client.chap_reply, Some(chap_code::SUCCESS));
    assert_eq!(record_of(&world).auth_protocol, CHAP);
    let info = world.ac.sessions().next().unwrap();
    assert_eq!(
        (info.auth_protocol, info.next_challenge),
        (Some(CHAP), None)
    );
    assert_eq!(world.count(Outcome::ChapChallenges), 1);
    assert_eq!(world.count(Outcome::ChapResponses), 1);
    assert_eq!(world.count(Outcome::ChapSuccess), 1);
}

#[test]
fn a_challenge_carries_sixteen_bytes_and_our_name_and_no_two_are_alike() {
    let mut world = World::new(offering(&[CHAP]));
    let mut seen = vec![];
    for number in 1..=20 {
        let mut client = Client::new(number);
        client.answers_challenges = false;
        client.dial(&mut world);
        let (_, challenge) = client.challenges[0].clone();
        assert_eq!(challenge.len(), 16);
        assert!(!seen.contains(&challenge));
        seen.push(challenge);
    }
    let (mut world, _) = challenged(offering(&[CHAP]));
    let (_, again) = world.pass(1_000).remove(0);
    let (_, packet) = as_control(&again);
    assert_eq!(chap::parse_value(packet.data).unwrap().name, b"bng");
}

#[test]
fn a_wrong_response_fails_then_the_link_is_terminated() {
    let mut world = World::new(offering(&[CHAP]));
    let mut client = Client::new(1);
    client.password = b"guess".to_vec();
    client.dial(&mut world);
    assert_eq!(client.chap_reply, Some(chap_code::FAILURE));
    assert_eq!(world.event_names(), ["started", "auth", "down"]);
    assert_eq!(world.down_cause(), Some(TerminateCause::WrongCredentials));
    assert_eq!(world.count(Outcome::ChapFailure), 1);
    assert_eq!(world.ac.poll_timeout(), None);
}

#[test]
fn an_unanswered_challenge_is_sent_again_with_a_new_identifier_and_value_until_the_time_is_up() {
    let (mut world, mut client) = challenged(offering(&[CHAP]));
    let sent = world.pass(20_000);
    let mut times = vec![];
    for (at, frame) in &sent {
        let before = client.challenges.len();
        client.react(frame);
        if client.challenges.len() > before {
            times.push(*at);
        }
    }
    // Challenged 2 ms before; the restart timer doubles up to four seconds.
    assert_eq!(times.len(), 6);
    assert!(times.windows(2).skip(2).all(|w| w[1] - w[0] == 4_000));
    let ids: Vec<_> = client.challenges.iter().map(|it| it.0).collect();
    assert!(ids.windows(2).all(|w| w[1] == w[0].wrapping_add(1)));
    assert!(client.challenges.windows(2).all(|w| w[0].1 != w[1].1));
    assert_eq!(world.count(Outcome::Retransmissions), 6);
    assert_eq!(world.down_cause(), None);
    world.pass(10_000);
    assert_eq!(world.down_cause(), Some(TerminateCause::AuthTimeout));
}

#[test]
fn a_response_counts_for_the_latest_challenge_only() {
    let (mut world, mut client) = challenged(offering(&[CHAP]));
    let late = client.chap();
    for (_, frame) in world.pass(1_000) {
        client.react(&frame);
    }
    assert_eq!(client.challenges.len(), 2);
    assert!(world.feed(&late).is_empty());
    assert_eq!(world.last_drop, Some(DropReason::ChapStale));
    assert!(world.auth.is_empty());
    assert_eq!(
        chap_of(&world.feed(&client.chap())),
        [(chap_code::SUCCESS, client.challenges[1].0)]
    );
}

#[test]
fn repeated_responses_get_the_verdict_of_the_first_and_aaa_is_asked_once() {
    let (mut world, client) = challenged(offering(&[CHAP]));
    world.aaa = Aaa::Manual;
    let id = client.challenges[0].0;
    assert!(world.feed(&client.chap()).is_empty());
    assert!(world.feed(&client.chap()).is_empty(), "undecided");
    assert!(
        world.feed(&client.chap_with(id, &[7; 16])).is_empty(),
        "another response to the same challenge is no second try"
    );
    assert_eq!(world.auth.len(), 1);
    let (session, attempt) = (world.auth[0].session, world.auth[0].attempt);
    world
        .ac
        .handle_auth(world.now, session, attempt, accept())
        .unwrap();
    world.drain();
    for response in [client.chap(), client.chap_with(id, &[7; 16])] {
        let again = world.feed(&response);
        let (_, packet) = as_control(&again[0]);
        assert_eq!((packet.code, packet.id), (chap_code::SUCCESS, id));
        assert_eq!(packet.data, b"welcome", "no length before it");
    }
    assert_eq!(world.auth.len(), 1);
    assert_eq!(world.count(Outcome::ChapRepeated), 4);
}

#[test]
fn a_refused_peer_that_repeats_its_response_is_refused_again() {
    let (mut world, mut client) = challenged(offering(&[CHAP]));
    client.password = b"guess".to_vec();
    let failed = (chap_code::FAILURE, client.challenges[0].0);
    assert_eq!(chap_of(&world.feed(&client.chap())[..1]), [failed]);
    client.password = b"secret".to_vec();
    assert_eq!(chap_of(&world.feed(&client.chap())), [failed]);
    assert_eq!(world.auth.len(), 1);
}

#[test]
fn bad_chap_packets_are_dropped_by_name() {
    let (mut world, client) = challenged(offering(&[CHAP]));
    let id = client.challenges[0].0;
    let long = [&[16][..], &[9; 16], &[b'n'; 256]].concat();
    let bad: [(u8, &[u8], DropReason); 9] = [
        (chap_code::RESPONSE, &[], DropReason::ChapLength),
        (chap_code::RESPONSE, &[0], DropReason::ChapLength),
        (chap_code::RESPONSE, &[0, 1, 2], DropReason::ChapLength),
        (chap_code::RESPONSE, &[16; 16], DropReason::ChapLength),
        (chap_code::RESPONSE, &[15; 16], DropReason::ChapLength),
        (chap_code::RESPONSE, &[17; 18], DropReason::ChapLength),
        (chap_code::RESPONSE, &long, DropReason::ChapLength),
        (chap_code::CHALLENGE, &[16; 17], DropReason::ChapCode),
        (9, &[], DropReason::ChapCode),
    ];
    for (code, data, reason) in bad {
        let packet = bng_pppoe::codec::control::write(code, id, data);
        assert!(world.feed(&client.ppp(protocol::CHAP, &packet)).is_empty());
        assert_eq!(world.last_drop, Some(reason), "code {code}, {data:?}");
    }
    assert!(world.auth.is_empty());
    world.feed(&client.chap());
    assert_eq!(world.event_names(), ["started", "auth"]);
}

#[test]
fn pap_while_chap_was_agreed_on_is_dropped_and_chap_while_pap_was() {
    let (mut world, client) = challenged(offering(&[CHAP, PAP]));
    assert!(world.feed(&client.pap(1)).is_empty());
    assert_eq!(world.last_drop, Some(DropReason::AuthMismatch));
    assert!(world.auth.is_empty());

    let mut world = World::new(offering(&[PAP, CHAP]));
    let mut client = Client::new(1);
    client.link_up(&mut world);
    assert!(world.feed(&client.chap_with(0, &[1; 16])).is_empty());
    assert_eq!(world.last_drop, Some(DropReason::AuthMismatch));
    assert!(world.auth.is_empty());
}

#[test]
fn the_peer_may_nak_to_any_protocol_we_offer() {
    for (offered, only) in [([PAP, CHAP], CHAP), ([CHAP, PAP], PAP)] {
        let mut world = World::new(offering(&offered));
        let mut client = Client::new(1);
        client.only_auth = Some(only);
        client.dial(&mut world);
        assert_eq!(world.event_names(), ["started", "auth", "up"]);
        assert_eq!(client.auth, only);
        assert_eq!(record_of(&world).auth_protocol, only);
    }
}

#[test]
fn a_nak_to_a_protocol_we_do_not_offer_brings_the_next_we_do_until_max_failure() {
    // MS-CHAP-V2, CHAP without an algorithm, EAP.
    for hint in [
        &[3, 5, 0xc2, 0x23, 0x81][..],
        &[3, 4, 0xc2, 0x23],
        &[3, 4, 0xc2, 0x27],
    ] {
        let mut world = World::new(offering(&[CHAP, PAP]));
        let mut client = Client::new(1);
        let mut last = client.discover(&mut world).remove(1);
        let mut asked = vec![];
        for _ in 0..5 {
            let (_, packet) = as_control(&last);
            assert_eq!(packet.code, lcp_code::CONFIGURE_REQUEST);
            let options = bng_pppoe::codec::Options::parse(packet.data).unwrap();
            asked.push(AuthProtocol::of_option(options.find(3).unwrap().data).unwrap());
            last = world
                .feed(&client.lcp(lcp_code::CONFIGURE_NAK, packet.id, hint))
                .remove(0);
        }
        assert_eq!(asked, [CHAP, PAP, CHAP, PAP, CHAP]);
        assert_eq!(as_control(&last).1.code, lcp_code::TERMINATE_REQUEST);
        world.pass(60_000);
        assert_eq!(world.down_cause(), Some(TerminateCause::AuthRefused));
    }
}

#[test]
fn a_peer_whose_only_protocol_is_not_offered_never_reaches_the_network_phase() {
    for (offered, only) in [(PAP, CHAP), (CHAP, PAP)] {
        let mut world = World::new(offering(&[offered]));
        let mut client = Client::new(1);
        client.only_auth = Some(only);
        client.dial(&mut world);
        world.pass(60_000);
        assert_eq!(world.event_names(), ["started", "down"]);
        assert_eq!(world.down_cause(), Some(TerminateCause::AuthRefused));
    }
}

#[test]
fn a_protocol_reject_of_the_agreed_protocol_ends_the_session_and_of_the_other_nothing() {
    let (mut world, client) = challenged(offering(&[CHAP, PAP]));
    let reject = |number: u16| {
        let data = [&number.to_be_bytes()[..], &[1, 1, 0, 4]].concat();
        client.lcp(lcp_code::PROTOCOL_REJECT, 1, &data)
    };
    assert!(world.feed(&reject(protocol::PAP)).is_empty());
    let answer = world.feed(&reject(protocol::CHAP));
    assert_eq!(as_control(&answer[0]).1.code, lcp_code::TERMINATE_REQUEST);
    world.pass(60_000);
    assert_eq!(world.down_cause(), Some(TerminateCause::AuthRefused));
}

#[test]
fn nothing_of_the_network_phase_is_answered_before_success_nor_after_a_renegotiation() {
    let (mut world, mut client) = challenged(offering(&[CHAP]));
    assert!(world.feed(&client.ipcp_request()).is_empty());
    assert_eq!(world.last_drop, Some(DropReason::BeforeNetwork));
    let first = world.feed(&client.chap());
    let next = first.iter().flat_map(|frame| client.react(frame)).collect();
    client.converse(&mut world, next);
    assert_eq!(world.event_names(), ["started", "auth", "up"]);

    let old = client.chap();
    client.lcp_acked = (false, false);
    client.chap_reply = None;
    let request = client.lcp_request();
    client.converse(&mut world, vec![request]);
    let names = world.event_names();
    assert_eq!(names[3..], ["network-down"]);
    assert_eq!(
        world.ac.sessions().next().unwrap().phase,
        Phase::Authenticate
    );
    assert!(world.feed(&client.ipcp_request()).is_empty());
    assert_eq!(world.last_drop, Some(DropReason::BeforeNetwork));
    assert!(world.feed(&old).is_empty());
    assert_eq!(world.last_drop, Some(DropReason::ChapStale));
    let frames = world.feed(&client.chap());
    let next = frames
        .iter()
        .flat_map(|frame| client.react(frame))
        .collect();
    client.converse(&mut world, next);
    assert_eq!(world.event_names()[4..], ["auth", "up"]);
    assert!(!world.auth[1].is_repeated, "the network was down");
}

#[test]
fn a_live_session_is_challenged_again_and_goes_on_meanwhile() {
    let (mut world, mut client) = dialled(rechallenging());
    let mut last = world.now;
    for round in 2..12 {
        let due = world.ac.sessions().next().unwrap().next_challenge.unwrap();
        let waits = due.since(last).as_secs_f64();
        assert!((89.9..=110.1).contains(&waits), "{waits}");
        let frames = world.pass(due.since(world.now).as_millis() as u64);
        last = world.now;
        assert_eq!(frames.len(), 1);
        let responses = client.react(&frames[0].1);
        assert_eq!(client.challenges.len(), round);
        // Its echo is answered although a challenge is open.
        let magic = client.magic.to_be_bytes();
        assert_eq!(world.feed(&client.lcp(9, 1, &magic)).len(), 1);
        client.converse(&mut world, responses);
        let asked = world.auth.last().unwrap();
        assert!(asked.is_repeated);
        assert_eq!(asked.attempt, round as u32);
    }
    assert_eq!(world.event_names()[..3], ["started", "auth", "up"]);
    assert!(world.event_names()[3..].iter().all(|name| *name == "auth"));
    assert_eq!(world.count(Outcome::ChapRechallenges), 10);
    assert_eq!(world.count(Outcome::ChapSuccess), 11);
}

#[test]
fn who_fails_does_not_answer_or_changes_its_name_later_is_ended() {
    let challenge_again = |client: &mut Client, world: &mut World| {
        client.answers_challenges = false;
        for (_, frame) in world.pass(111_000) {
            client.react(&frame);
        }
        assert!(client.challenges.len() > 1);
    };
    let (mut world, mut client) = dialled(rechallenging());
    challenge_again(&mut client, &mut world);
    client.password = b"changed".to_vec();
    let frames = world.feed(&client.chap());
    let failed = (chap_code::FAILURE, client.challenges.last().unwrap().0);
    assert_eq!(chap_of(&frames)[..1], [failed]);
    world.pass(20_000);
    assert_eq!(world.down_cause(), Some(TerminateCause::WrongCredentials));

    let (mut world, mut client) = dialled(rechallenging());
    challenge_again(&mut client, &mut world);
    client.name = b"mallory".to_vec();
    let asked = world.auth.len();
    assert_eq!(
        chap_of(&world.feed(&client.chap()))[0].0,
        chap_code::FAILURE
    );
    assert_eq!(world.auth.len(), asked, "AAA is not asked");
    assert_eq!(world.count(Outcome::ChapNameChanged), 1);
    world.pass(20_000);
    assert_eq!(world.down_cause(), Some(TerminateCause::WrongCredentials));

    let (mut world, mut client) = dialled(rechallenging());
    challenge_again(&mut client, &mut world);
    world.pass(21_000);
    world.pass(20_000);
    assert_eq!(world.down_cause(), Some(TerminateCause::AuthTimeout));
    assert_eq!(
        world.event_names(),
        ["started", "auth", "up", "network-down", "down"]
    );
}

#[test]
fn a_repeated_proof_nobody_can_decide_on_leaves_the_session_as_it_is() {
    let (mut world, mut client) = dialled(rechallenging());
    world.aaa = Aaa::Always(reject(RejectCause::AaaUnavailable));
    for (_, frame) in world.pass(111_000) {
        let responses = client.react(&frame);
        client.converse(&mut world, responses);
    }
    assert_eq!(world.count(Outcome::ChapUndecided), 1);
    assert_eq!(world.event_names(), ["started", "auth", "up", "auth"]);

    // The same when no answer comes at all, within the set-up time; a verdict after that is too late.
    world.aaa = Aaa::Manual;
    for (_, frame) in world.pass(111_000) {
        let responses = client.react(&frame);
        client.converse(&mut world, responses);
    }
    world.pass(60_000);
    assert_eq!(world.count(Outcome::ChapUndecided), 2);
    let asked = world.auth.last().unwrap().clone();
    let late = world
        .ac
        .handle_auth(world.now, asked.session, asked.attempt, accept());
    assert!(late.is_err());
    assert!(world.ac.sessions().next().unwrap().next_challenge.is_some());
}

#[test]
fn an_accepted_repeated_proof_changes_no_grant() {
    let (mut world, mut client) = dialled(rechallenging());
    let before = record_of(&world);
    let other = bng_pppoe::Grant {
        framed_ip: GATEWAY,
        session_timeout: Some(Duration::from_secs(1)),
        ..grant()
    };
    world.aaa = Aaa::Always(AuthVerdict::Accept {
        grant: other,
        message: vec![],
    });
    for (_, frame) in world.pass(111_000) {
        let responses = client.react(&frame);
        client.converse(&mut world, responses);
    }
    assert_eq!(world.count(Outcome::ChapSuccess), 2);
    assert_eq!(world.ac.record(before.session), Some(before));
}

#[test]
fn a_challenge_may_be_asked_for_at_once_by_chap_only() {
    let (mut world, mut client) = dialled(offering(&[CHAP]));
    let session = world.session();
    assert!(world.ac.reauthenticate(world.now, session));
    assert!(world.ac.reauthenticate(world.now, session), "under way");
    let frames: Vec<_> = world.drain().into_iter().map(|it| it.frame).collect();
    assert_eq!(frames.len(), 1);
    let responses = client.react(&frames[0]);
    client.converse(&mut world, responses);
    assert!(world.auth[1].is_repeated);
    assert_eq!(world.count(Outcome::ChapSuccess), 2);

    let (mut world, _) = up();
    let session = world.session();
    assert!(!world.ac.reauthenticate(world.now, session));
    assert!(world.drain().is_empty());
}

#[test]
fn an_adopted_session_keeps_its_protocol_and_is_challenged_again() {
    let (world, mut client) = dialled(rechallenging());
    let record = record_of(&world);
    let mut next = World::new(rechallenging());
    next.now = Time::from_millis(world.now.as_millis() + 5_000);
    next.ac.adopt(next.now, record.clone()).unwrap();
    assert_eq!(next.ac.record(record.session), Some(record));
    assert!(next.feed(&client.chap()).is_empty());
    assert_eq!(
        next.last_drop,
        Some(DropReason::ChapStale),
        "its challenge was another process's"
    );
    for _ in 0..3 {
        let due = next.ac.sessions().next().unwrap().next_challenge.unwrap();
        assert!(due.since(next.now) <= Duration::from_secs(110));
        for (_, frame) in next.pass(due.since(next.now).as_millis() as u64) {
            let responses = client.react(&frame);
            client.converse(&mut next, responses);
        }
    }
    let events = next.events.len();
    assert_eq!(events, 3);
    assert!(
        next.events
            .iter()
            .all(|event| matches!(event, Event::AuthRequest(asked) if asked.is_repeated))
    );
    assert_eq!(next.count(Outcome::ChapSuccess), events as u64);
}

#[test]
fn a_set_of_protocols_must_be_one_or_more_each_once() {
    for wrong in [&[][..], &[PAP, PAP], &[CHAP, PAP, CHAP]] {
        assert_eq!(offering(wrong).check(), Err(ConfigError::AuthProtocols));
    }
    let never = Config {
        chap_interval: Some(Duration::ZERO),
        ..offering(&[CHAP])
    };
    assert_eq!(never.check(), Err(ConfigError::Zero("chap_interval")));
}
