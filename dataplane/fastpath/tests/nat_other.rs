//! Protocols without ports behind NAT: GRE, ESP and others.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod support;

use std::net::Ipv4Addr;

use bng_fastpath::testing::{Spec, World, ipv4};
use bng_fastpath::{Origin, PacketBuf, Verdict};
use bng_shm::{Counter, NatRules, Session};
use bng_wire::{ethernet, pppoe};
use support::edited;

const GRE: u8 = 47;
const ESP: u8 = 50;
const A: u32 = 0;
const B: u32 = 1;
const OTHER_HOST: Ipv4Addr = Ipv4Addr::new(1, 2, 3, 4);

fn world(workers: u8) -> World {
    let nat_rules = NatRules {
        other_protocols: true,
    };
    let spec = Spec {
        workers,
        nat_rules,
        ..Spec::default()
    };
    World::with_sessions(spec, 2)
}

fn session(world: &World, n: u32) -> Session {
    Session {
        generation: 1,
        ..world.session(n)
    }
}

fn up(world: &mut World, n: u32, packet: &[u8]) -> Result<Vec<u8>, Counter> {
    let session = session(world, n);
    let buf = World::from_subscriber(World::slot(n), &session, packet);
    match world
        .upstream(session.owner, vec![buf], Origin::Port)
        .remove(0)
    {
        (Verdict::Forward { port: 2 }, out) => Ok(out.data()[14..].to_vec()),
        (Verdict::Drop(reason), _) => Err(reason),
        other => panic!("{other:?}"),
    }
}

/// Through worker 0 and, if that hands it over, the other one.
fn down(world: &mut World, packet: &[u8]) -> Result<(u32, Vec<u8>), Counter> {
    let buf = world.from_core(packet);
    let mut out = world.downstream(0, vec![buf], Origin::Port).remove(0);
    if let (Verdict::HandOver { worker }, frame) = out {
        out = world
            .downstream(worker, vec![frame], Origin::HandedOver)
            .remove(0);
    }
    match out {
        (Verdict::Forward { port: 0 }, out) => {
            let link = ethernet::parse(out.data()).unwrap();
            let ppp = pppoe::parse_session(&out.data()[link.payload..]).unwrap();
            Ok((u32::from(ppp.session_id) - 1, ppp.payload.to_vec()))
        }
        (Verdict::Drop(reason), _) => Err(reason),
        other => panic!("{other:?}"),
    }
}

fn sent(n: u32, protocol: u8, to: Ipv4Addr) -> Vec<u8> {
    ipv4(World::framed_ip(n), to, protocol, b"anything at all")
}

fn hop(packet: Vec<u8>) -> Vec<u8> {
    edited(packet, 8, 63)
}

#[test]
fn the_first_one_behind_an_address_gets_what_the_remote_sends_and_the_next_one_is_refused() {
    for workers in [1, 2] {
        let mut world = world(workers);
        let outside = world.block(A).address;
        assert_eq!(world.block(B).address, outside);
        let from = |host, protocol| ipv4(host, outside, protocol, b"an answer");
        assert_eq!(
            down(&mut world, &from(World::HOST, GRE)),
            Err(Counter::NatNoMapping)
        );

        let expect = hop(ipv4(outside, World::HOST, GRE, b"anything at all"));
        assert_eq!(up(&mut world, B, &sent(B, GRE, World::HOST)), Ok(expect));
        let expect = hop(ipv4(World::HOST, World::framed_ip(B), GRE, b"an answer"));
        assert_eq!(down(&mut world, &from(World::HOST, GRE)), Ok((B, expect)));

        let taken = Err(Counter::NatProtocolTaken);
        assert_eq!(up(&mut world, A, &sent(A, GRE, World::HOST)), taken);
        // Another remote and another protocol are another matter.
        assert!(up(&mut world, A, &sent(A, GRE, OTHER_HOST)).is_ok());
        assert!(up(&mut world, A, &sent(A, ESP, World::HOST)).is_ok());
        assert_eq!(down(&mut world, &from(OTHER_HOST, GRE)).unwrap().0, A);
        assert_eq!(down(&mut world, &from(World::HOST, ESP)).unwrap().0, A);
        assert_eq!(down(&mut world, &from(World::HOST, GRE)).unwrap().0, B);
        assert_eq!(
            down(&mut world, &from(OTHER_HOST, ESP)),
            Err(Counter::NatNoMapping)
        );
    }
}

#[test]
fn a_claim_ends_300_seconds_after_the_last_packet_sent_and_answers_do_not_prolong_it() {
    let mut world = world(1);
    let outside = world.block(A).address;
    let answer = ipv4(World::HOST, outside, ESP, b"");
    up(&mut world, A, &sent(A, ESP, World::HOST)).unwrap();
    for _ in 0..3 {
        world.pass(200_000, 50_000);
        up(&mut world, A, &sent(A, ESP, World::HOST)).unwrap();
    }
    for _ in 0..3 {
        world.pass(100_000, 50_000);
        assert!(down(&mut world, &answer).is_ok());
        assert_eq!(
            up(&mut world, B, &sent(B, ESP, World::HOST)),
            Err(Counter::NatProtocolTaken)
        );
    }
    world.pass(1, 1);
    assert_eq!(down(&mut world, &answer), Err(Counter::NatNoMapping));
    assert!(up(&mut world, B, &sent(B, ESP, World::HOST)).is_ok());
    assert_eq!(down(&mut world, &answer).unwrap().0, B);
}

#[test]
fn the_end_of_a_session_ends_its_claims() {
    let mut world = world(1);
    let answer = ipv4(World::HOST, world.block(A).address, ESP, b"");
    up(&mut world, A, &sent(A, ESP, World::HOST)).unwrap();
    world.close(World::slot(A));
    assert!(down(&mut world, &answer).is_err());
    world.open(A);
    assert_eq!(
        down(&mut world, &answer),
        Err(Counter::NatNoMapping),
        "the next one in the slot"
    );
    assert!(up(&mut world, B, &sent(B, ESP, World::HOST)).is_ok());
    assert_eq!(down(&mut world, &answer).unwrap().0, B);
}

#[test]
fn who_claims_everything_makes_room_for_others() {
    let mut world = world(1);
    let host = |n: u32| Ipv4Addr::from_bits(0x0900_0000 + n);
    for n in 0..20_000 {
        up(&mut world, A, &sent(A, ESP, host(n))).unwrap();
    }
    for n in 0..100 {
        assert!(up(&mut world, B, &sent(B, GRE, host(n))).is_ok(), "{n}");
    }
    let outside = world.block(A).address;
    let alive = |world: &mut World, n| down(world, &ipv4(host(n), outside, ESP, b"")).is_ok();
    let left = (0..20_000).filter(|n| alive(&mut world, *n)).count();
    assert!((3_000..=4_096).contains(&left), "{left}");
}

#[test]
fn such_packets_pass_in_fragments_and_through_the_hairpin() {
    let mut world = world(1);
    let first = edited(sent(A, ESP, World::HOST), 6, 0x20);
    let later = edited(sent(A, ESP, World::HOST), 7, 9);
    let first = up(&mut world, A, &first).unwrap();
    let later = up(&mut world, A, &later).unwrap();
    assert_eq!(first[12..16], world.block(A).address.octets());
    assert_eq!(
        (&first[4..6], &first[12..20]),
        (&later[4..6], &later[12..20])
    );
    let answer = ipv4(World::HOST, world.block(A).address, ESP, b"an answer");
    for piece in [edited(answer.clone(), 6, 0x20), edited(answer, 7, 9)] {
        let (to, got) = down(&mut world, &piece).unwrap();
        assert_eq!((to, &got[16..20]), (A, &World::framed_ip(A).octets()[..]));
    }
    // Both ends send, and so each has a claim: here to itself, by its own outside address.
    let own = world.block(A).address;
    let buf = World::from_subscriber(World::slot(A), &session(&world, A), &sent(A, GRE, own));
    let (verdict, _) = world.upstream(0, vec![buf], Origin::Port).remove(0);
    assert_eq!(verdict, Verdict::Forward { port: 0 });
}

#[test]
fn a_pool_that_does_not_say_so_lets_none_pass() {
    let mut world = World::with_sessions(Spec::default(), 1);
    assert_eq!(
        up(&mut world, A, &sent(A, GRE, World::HOST)),
        Err(Counter::NatProtocol)
    );
    let answer = ipv4(World::HOST, world.block(A).address, GRE, b"");
    assert_eq!(down(&mut world, &answer), Err(Counter::NatProtocol));
}
