//! PAP and CHAP: one question to AAA, one verdict, and nothing of the network phase before it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod peer;

use bng_pppoe::codec::lcp::code as lcp_code;
use bng_pppoe::{AuthError, Config, DropReason, Outcome, RejectCause, TerminateCause};
use bng_wire::pppoe::{code, protocol};
use peer::*;

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
fn a_renegotiation_before_the_network_is_up_makes_the_grant_void_without_an_event() {
    let mut world = World::new(config());
    let mut client = Client::new(1);
    client.link_up(&mut world);
    world.feed(&client.pap(1));
    assert_eq!(world.event_names(), ["started", "auth"]);
    let request = client.lcp_request();
    let frames = world.feed(&request);
    assert_eq!(
        world.event_names(),
        ["started", "auth"],
        "the network never was up"
    );
    world.feed(&client.ipcp_request());
    assert_eq!(world.last_drop, Some(DropReason::BeforeNetwork));
    let (_, ours) = as_control(&frames[0]);
    world.feed(&client.lcp(lcp_code::CONFIGURE_ACK, ours.id, ours.data));
    let frames = world.feed(&client.pap(2));
    let next = frames.iter().flat_map(|f| client.react(f)).collect();
    client.converse(&mut world, next);
    assert_eq!(world.event_names(), ["started", "auth", "auth", "up"]);
}
