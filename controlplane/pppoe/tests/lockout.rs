//! Clients that keep failing are kept out, the longer the more often, and let in again.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod peer;

use std::time::Duration;

use bng_pppoe::codec::tags::kind;
use bng_pppoe::codec::{AccessLineIds, TagWriter};
use bng_pppoe::{
    AccessLine, Config, DropReason, Lockout, LockoutKey, RejectCause, TerminateCause, Time,
};
use bng_wire::MacAddr;
use peer::*;

const RULES: Lockout = Lockout {
    failures: 3,
    first: Duration::from_secs(10),
    longest: Duration::from_secs(60),
};

fn world() -> World {
    World::new(Config {
        lockout: RULES,
        ..config()
    })
}

fn guesser(number: u16) -> Client {
    Client {
        password: b"guess".to_vec(),
        ..Client::new(number)
    }
}

fn line(client: &Client) -> AccessLine {
    AccessLine::new(client.port, &client.vlans, client.mac)
}

/// The seconds each client is kept out from now on.
fn waits(world: &World) -> Vec<u64> {
    let locked = world.ac.locked_out(world.now);
    locked
        .map(|it| it.until.since(world.now).as_secs())
        .collect()
}

/// Discovery tags as an access node adds them for a line.
fn on_circuit(client: &Client, circuit_id: &[u8]) -> Vec<u8> {
    let mut tags = TagWriter::new(1400);
    assert!(tags.put(kind::HOST_UNIQ, &client.host_uniq));
    assert!(tags.put(kind::SERVICE_NAME, b""));
    if !client.cookie.is_empty() {
        assert!(tags.put(kind::AC_COOKIE, &client.cookie));
    }
    assert!(tags.put_access_line_ids(AccessLineIds {
        circuit_id,
        remote_id: b"",
    }));
    tags.finish()
}

/// Dials from a circuit as far as it goes; whether there was a PADO.
fn dial_on(world: &mut World, client: &mut Client, circuit_id: &[u8]) -> bool {
    let pado = world.feed(&client.padi_with(&on_circuit(client, circuit_id)));
    let Some(pado) = pado.first() else {
        return false;
    };
    client.react(pado);
    let padr = client.padr_with(&on_circuit(client, circuit_id));
    let frames = world.feed(&padr);
    let next = frames
        .iter()
        .flat_map(|frame| client.react(frame))
        .collect();
    client.converse(world, next);
    true
}

#[test]
fn the_time_doubles_with_each_failure_up_to_the_longest() {
    let mut world = world();
    let who = guesser(1);
    for failures in 1..=7u8 {
        let mut again = who.clone();
        again.dial(&mut world);
        let expected = match failures {
            1 | 2 => vec![],
            _ => vec![[10, 20, 40, 60, 60][usize::from(failures) - 3]],
        };
        assert_eq!(waits(&world), expected, "after {failures}");
        let Some(wait) = expected.first() else {
            continue;
        };
        let locked = world.ac.locked_out(world.now).next().unwrap();
        assert_eq!(locked.client, LockoutKey::Line(line(&who)));
        assert_eq!(locked.failures, failures);

        world.pass(wait * 1_000 - 1);
        assert!(world.feed(&who.padi()).is_empty());
        assert_eq!(world.last_drop, Some(DropReason::PadiLockedOut));
        world.pass(1);
        assert_eq!(world.feed(&who.padi()).len(), 1, "let in again");
    }
}

#[test]
fn a_padr_with_a_cookie_from_before_is_dropped_as_well_but_not_one_of_a_live_session() {
    let mut world = world();
    let mut live = guesser(1);
    live.discover(&mut world);
    let mut cookie = guesser(1);
    cookie.host_uniq = b"other".to_vec();
    let pado = world.feed(&cookie.padi());
    cookie.react(&pado[0]);
    for number in 0..3 {
        let mut again = guesser(1);
        again.host_uniq = vec![number];
        again.dial(&mut world);
    }
    assert_eq!(waits(&world), [10]);
    assert!(world.feed(&cookie.padr()).is_empty());
    assert_eq!(world.last_drop, Some(DropReason::PadrLockedOut));
    let repeated = world.feed(&live.padr());
    assert_eq!(as_discovery(&repeated[0]).1, live.session_id, "a lost PADS");
}

#[test]
fn a_session_that_comes_up_wipes_the_slate_and_others_are_not_touched() {
    let mut world = world();
    for _ in 0..2 {
        guesser(1).dial(&mut world);
        guesser(2).dial(&mut world);
    }
    Client::new(1).dial(&mut world);
    guesser(1).dial(&mut world);
    assert_eq!(waits(&world), [0; 0], "one since");
    guesser(2).dial(&mut world);
    assert_eq!(waits(&world), [10]);
    let mut other = Client::new(3);
    other.dial(&mut world);
    assert_eq!(world.event_names().last(), Some(&"up"));
}

#[test]
fn failures_are_forgotten_after_the_longest_time_without_one() {
    let mut world = world();
    for _ in 0..2 {
        guesser(1).dial(&mut world);
    }
    world.pass(60_500);
    guesser(1).dial(&mut world);
    assert_eq!(waits(&world), [0; 0]);
    for _ in 0..2 {
        guesser(1).dial(&mut world);
    }
    assert_eq!(waits(&world), [10]);
    // Out for ten seconds, then free for fifty: not forgotten yet.
    world.pass(60_000);
    guesser(1).dial(&mut world);
    assert_eq!(waits(&world), [20]);
}

#[test]
fn a_circuit_is_kept_out_whatever_mac_address_it_tries() {
    let mut world = world();
    for number in 1..=3 {
        assert!(dial_on(&mut world, &mut guesser(number), b"olt-1/7"));
    }
    let circuit = LockoutKey::Circuit(PORT, b"olt-1/7"[..].into());
    let locked: Vec<_> = world.ac.locked_out(world.now).map(|it| it.client).collect();
    assert_eq!(locked.as_slice(), core::slice::from_ref(&circuit));
    assert!(!dial_on(&mut world, &mut Client::new(9), b"olt-1/7"));
    assert_eq!(world.last_drop, Some(DropReason::PadiLockedOut));
    assert!(dial_on(&mut world, &mut Client::new(9), b"olt-1/8"));

    assert!(world.ac.unlock(&circuit));
    assert!(!world.ac.unlock(&circuit), "once");
    assert!(dial_on(&mut world, &mut Client::new(10), b"olt-1/7"));
    assert_eq!(world.event_names().last(), Some(&"up"));
}

#[test]
fn one_client_with_a_wrong_password_does_not_keep_out_its_circuit() {
    let mut world = world();
    for _ in 0..5 {
        dial_on(&mut world, &mut guesser(1), b"olt-1/7");
    }
    let locked: Vec<_> = world.ac.locked_out(world.now).map(|it| it.client).collect();
    assert_eq!(locked, [LockoutKey::Line(line(&guesser(1)))]);
    assert!(dial_on(&mut world, &mut Client::new(2), b"olt-1/7"));
    assert_eq!(world.event_names().last(), Some(&"up"));
}

#[test]
fn what_lies_with_us_is_no_failure_of_the_client() {
    for cause in [
        RejectCause::PoolEmpty,
        RejectCause::AaaUnavailable,
        RejectCause::Policy,
    ] {
        let mut world = world();
        world.aaa = Aaa::Always(reject(cause));
        for _ in 0..9 {
            Client::new(1).dial(&mut world);
        }
        assert_eq!(world.ac.locked_out(world.now).count(), 0);
    }
    let mut world = world();
    for _ in 0..9 {
        let mut client = Client::new(1);
        client.discover(&mut world);
        let session = world.session();
        world
            .ac
            .terminate(world.now, session, TerminateCause::PortDown);
        world.drain();
    }
    assert_eq!(world.ac.locked_out(world.now).count(), 0);
}

#[test]
fn a_session_that_was_up_counts_for_nothing_when_it_ends() {
    let mut world = world();
    for _ in 0..9 {
        let mut client = Client::new(1);
        client.dial(&mut world);
        world.feed(&client.padt());
    }
    assert_eq!(world.ended(TerminateCause::PeerPadt), 9);
    assert_eq!(world.ac.locked_out(world.now).count(), 0);
}

#[test]
fn clients_that_say_nothing_or_refuse_our_options_are_failures_too() {
    let mut world = world();
    for _ in 0..3 {
        Client::new(1).discover(&mut world);
        world.pass(45_000);
    }
    assert_eq!(world.ended(TerminateCause::LcpTimeout), 3);
    for _ in 0..3 {
        let mut client = Client::new(2);
        client.only_auth = Some(bng_pppoe::AuthProtocol::ChapMd5);
        client.dial(&mut world);
    }
    let locked: Vec<_> = world.ac.locked_out(world.now).map(|it| it.client).collect();
    let who = |number| LockoutKey::Line(line(&Client::new(number)));
    assert!(locked.contains(&who(2)));
    assert_eq!(locked.contains(&who(1)), locked.len() == 2);
}

#[test]
fn it_is_off_with_no_failures_configured() {
    let mut world = World::new(Config {
        lockout: Lockout {
            failures: 0,
            ..RULES
        },
        ..config()
    });
    for _ in 0..50 {
        guesser(1).dial(&mut world);
        world.pass(200);
    }
    assert_eq!(world.ended(TerminateCause::WrongCredentials), 50);
    assert_eq!(world.ac.locked_out(Time::ZERO).count(), 0);
    let unknown = LockoutKey::Line(AccessLine {
        mac: MacAddr::BROADCAST,
        ..line(&guesser(1))
    });
    assert!(!world.ac.unlock(&unknown));
}
