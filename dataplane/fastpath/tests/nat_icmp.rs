//! ICMP through NAT, requirement by requirement (RFC 5508).
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod support;

use std::net::Ipv4Addr;

use bng_fastpath::testing::{Spec, World, assert_checksums, echo, icmp_error, ipv4, tcp, udp};
use bng_fastpath::{Origin, PacketBuf, Verdict};
use bng_shm::{Counter, Session, SlotIndex};
use bng_wire::checksum::checksum;
use bng_wire::l4::tcp_flag::ACK;
use bng_wire::{ethernet, pppoe};
use support::edited;

const SLOT: SlotIndex = World::slot(0);
const HOST: Ipv4Addr = World::HOST;
const ROUTER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 77);
const OWN: Ipv4Addr = World::framed_ip(0);

fn world(errors: u32) -> World {
    let spec = Spec {
        icmp_errors_per_second: errors,
        ..Spec::default()
    };
    World::with_sessions(spec, 1)
}

fn session(world: &World) -> Session {
    Session {
        generation: 1,
        ..world.session(0)
    }
}

fn up(world: &mut World, packet: &[u8]) -> Result<Vec<u8>, Counter> {
    let buf = World::from_subscriber(SLOT, &session(world), packet);
    match world.upstream(0, vec![buf], Origin::Port).remove(0) {
        (Verdict::Forward { port: 2 }, out) => Ok(out.data()[14..].to_vec()),
        (Verdict::Forward { port: 0 }, out) => Ok(inside(out.data())),
        (Verdict::Drop(reason), _) => Err(reason),
        other => panic!("{other:?}"),
    }
}

fn down(world: &mut World, packet: &[u8]) -> Result<Vec<u8>, Counter> {
    let buf = world.from_core(packet);
    match world.downstream(0, vec![buf], Origin::Port).remove(0) {
        (Verdict::Forward { port: 0 }, out) => Ok(inside(out.data())),
        (Verdict::Drop(reason), _) => Err(reason),
        other => panic!("{other:?}"),
    }
}

fn inside(frame: &[u8]) -> Vec<u8> {
    let link = ethernet::parse(frame).unwrap();
    let ppp = pppoe::parse_session(&frame[link.payload..]).unwrap();
    ppp.payload.to_vec()
}

fn hop(packet: Vec<u8>) -> Vec<u8> {
    let ttl = packet[8] - 1;
    edited(packet, 8, ttl)
}

/// A message of any type with identifier and body.
fn query(src: Ipv4Addr, dst: Ipv4Addr, kind: u8, id: u16) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0];
    message.extend(id.to_be_bytes());
    message.extend([0, 1]);
    message.extend([7; 12]);
    let check = checksum(&message);
    message[2..4].copy_from_slice(&check.to_be_bytes());
    ipv4(src, dst, 1, &message)
}

fn id(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[24], packet[25]])
}

/// REQ-1: queries go out and their answers come back, echo and timestamp.
#[test]
fn queries_and_their_answers_pass_and_an_answer_nobody_asked_for_does_not() {
    let mut world = world(0);
    let address = world.block(0).address;
    for (request, reply) in [(8, 0), (13, 14)] {
        let sent = up(&mut world, &query(OWN, HOST, request, 5)).unwrap();
        assert_eq!(sent, hop(query(address, HOST, request, id(&sent))));
        let answer = query(HOST, address, reply, id(&sent));
        assert_eq!(
            down(&mut world, &answer),
            Ok(hop(query(HOST, OWN, reply, 5)))
        );
        let unsupported = Err(Counter::NatIcmpUnsupported);
        assert_eq!(up(&mut world, &query(OWN, HOST, reply, 5)), unsupported);
        assert_eq!(
            down(&mut world, &query(HOST, address, request, id(&sent))),
            unsupported
        );
    }
    // Too short for an identifier.
    let short = |kind| ipv4(OWN, HOST, 1, &[kind, 0, 0, 0, 0]);
    assert_eq!(up(&mut world, &short(8)), Err(Counter::L4Truncated));
    assert!(up(&mut world, &short(13)).is_err());
}

/// What an error may be about, as it leaves the subscriber.
fn causes() -> [Vec<u8>; 4] {
    [
        udp((OWN, 5_000), (HOST, 53), &[1; 40]),
        tcp((OWN, 5_000), (HOST, 80), ACK, &[2; 40]),
        echo(OWN, HOST, true, 9, &[3; 40]),
        query(OWN, HOST, 13, 9),
    ]
}

/// REQ-4: errors from the host and from routers in the middle, with quotes of any length, are undone inside and out; type and
/// code stay.
#[test]
fn errors_about_what_the_subscriber_sent_come_back_as_if_there_were_no_nat() {
    for from in [HOST, ROUTER] {
        for (kind, code) in [
            (3, 0),
            (3, 1),
            (3, 3),
            (3, 4),
            (3, 13),
            (11, 0),
            (11, 1),
            (12, 0),
        ] {
            for cause in causes() {
                let mut world = world(0);
                let sent = up(&mut world, &cause).unwrap();
                let there = hop(sent);
                let here = hop(hop(cause));
                for quoted in [28, 36, there.len()] {
                    let error = |src, dst, quote: &[u8]| {
                        let mut packet = icmp_error(src, dst, kind, quote);
                        packet[21] = code;
                        packet[22..24].fill(0);
                        let check = checksum(&packet[20..]);
                        packet[22..24].copy_from_slice(&check.to_be_bytes());
                        packet
                    };
                    let address = world.block(0).address;
                    let got = down(&mut world, &error(from, address, &there[..quoted])).unwrap();
                    // A checksum that was not quoted cannot be undone; it is not there.
                    assert_eq!(
                        got,
                        hop(error(from, OWN, &here[..quoted])),
                        "{kind} {code} {quoted}"
                    );
                    assert_checksums(&got);
                }
            }
        }
    }
}

/// REQ-5: errors of the subscriber about what it got, back to the sender and to nobody else.
#[test]
fn errors_of_the_subscriber_go_to_whom_it_got_the_packet_from() {
    let mut world = world(0);
    let address = world.block(0).address;
    let sent = up(&mut world, &udp((OWN, 5_000), (HOST, 53), b"")).unwrap();
    let port = u16::from_be_bytes([sent[20], sent[21]]);
    let cause = udp((HOST, 53), (address, port), b"answer");
    let got = down(&mut world, &cause).unwrap();
    let error = up(&mut world, &icmp_error(OWN, HOST, 3, &got)).unwrap();
    assert_eq!(error, hop(icmp_error(address, HOST, 3, &hop(cause))));
    assert_checksums(&error);
    // About what it did not get, there is nothing to tell anybody.
    let other = udp((HOST, 53), (OWN, 5_001), b"answer");
    let refused = Err(Counter::NatIcmpEmbedded);
    assert_eq!(up(&mut world, &icmp_error(OWN, HOST, 3, &other)), refused);
    let foreign = udp((HOST, 53), (World::framed_ip(1), 5_000), b"answer");
    assert_eq!(up(&mut world, &icmp_error(OWN, HOST, 3, &foreign)), refused);
}

/// REQ-3: the message's checksum and the quoted header's are verified, the quoted transport's is not; options are passed over.
#[test]
fn what_is_verified_of_an_error_and_what_is_not() {
    let mut world = world(0);
    let address = world.block(0).address;
    let sent = up(&mut world, &udp((OWN, 5_000), (HOST, 53), &[7; 30])).unwrap();
    let error = |quote: &[u8]| icmp_error(ROUTER, address, 11, quote);
    let mut wrong = error(&sent);
    wrong[40] ^= 1;
    assert_eq!(down(&mut world, &wrong), Err(Counter::IcmpChecksum));
    let mut quote = sent.clone();
    quote[10] ^= 1;
    assert_eq!(
        down(&mut world, &error(&quote)),
        Err(Counter::NatIcmpEmbedded)
    );

    let mut quote = sent.clone();
    quote[27] ^= 1;
    let got = down(&mut world, &error(&quote)).unwrap();
    assert_eq!(got[28 + 12..28 + 16], OWN.octets());
    assert_eq!(got[28 + 20..28 + 22], 5_000u16.to_be_bytes());

    // A router that put options in.
    let mut quote = sent.clone();
    quote.splice(20..20, [1, 1, 1, 0]);
    let len = (quote.len() as u16).to_be_bytes();
    quote[2..4].copy_from_slice(&len);
    let got = down(&mut world, &error(&edited(quote, 0, 0x46))).unwrap();
    assert_eq!(got[28 + 24..28 + 26], 5_000u16.to_be_bytes());
    assert_eq!(checksum(&got[20..]), 0);

    // No UDP checksum stays none.
    let mut quote = sent;
    quote[26..28].fill(0);
    let got = down(&mut world, &error(&quote)).unwrap();
    assert_eq!(got[28 + 26..28 + 28], [0, 0]);
}

/// An error cut or changed anywhere is dropped by name or translated, and nothing of it gets to anybody else.
#[test]
fn an_error_cut_at_any_byte_or_with_any_bit_wrong_does_no_harm() {
    let mut world = world(0);
    let address = world.block(0).address;
    for cause in causes() {
        let sent = up(&mut world, &cause).unwrap();
        for cut in 0..sent.len() {
            let got = down(&mut world, &icmp_error(ROUTER, address, 3, &sent[..cut]));
            assert_eq!(got.is_ok(), cut >= 28, "{cut}: {got:?}");
        }
        for at in 0..28 * 8 {
            let mut quote = sent.clone();
            quote[at / 8] ^= 1 << (at % 8);
            if let Ok(got) = down(&mut world, &icmp_error(ROUTER, address, 3, &quote)) {
                assert_eq!(got[28 + 12..28 + 16], OWN.octets(), "bit {at}");
            }
        }
    }
}

/// REQ-6, REQ-2: errors do not prolong a mapping, and a query's lives for 60 seconds.
#[test]
fn errors_from_outside_do_not_keep_a_mapping_alive() {
    let mut world = world(0);
    let address = world.block(0).address;
    let sent = up(&mut world, &echo(OWN, HOST, true, 9, b"")).unwrap();
    let error = icmp_error(ROUTER, address, 11, &sent);
    for _ in 0..2 {
        world.pass(30_000, 1_000);
        assert!(down(&mut world, &error).is_ok());
    }
    world.pass(8_000, 1_000);
    assert_eq!(down(&mut world, &error), Err(Counter::NatNoMapping));
}

/// REQ-10, REQ-11: other messages are nobody's.
#[test]
fn other_types_are_dropped_by_name_both_ways() {
    let mut world = world(0);
    let address = world.block(0).address;
    up(&mut world, &echo(OWN, HOST, true, 9, b"")).unwrap();
    for kind in (0..=255).filter(|kind| !matches!(kind, 0 | 3 | 8 | 11 | 12 | 13 | 14)) {
        let unsupported = Err(Counter::NatIcmpUnsupported);
        assert_eq!(
            up(&mut world, &query(OWN, HOST, kind, 9)),
            unsupported,
            "{kind}"
        );
        assert_eq!(
            down(&mut world, &query(HOST, address, kind, 9)),
            unsupported,
            "{kind}"
        );
    }
}

/// REQ-8: a new flow that finds no port is answered "administratively prohibited", at a limited rate; old ones go on.
#[test]
fn a_subscriber_without_a_free_port_is_told() {
    let mut world = world(2);
    for port in 0..64 {
        up(&mut world, &udp((OWN, port), (HOST, 53), b"")).unwrap();
    }
    let packet = udp((OWN, 64), (HOST, 53), b"one more");
    for _ in 0..2 {
        let told = up(&mut world, &packet).unwrap();
        assert_checksums(&told);
        assert_eq!(
            (&told[12..16], &told[16..20]),
            (&World::GATEWAY.octets()[..], &OWN.octets()[..])
        );
        assert_eq!((told[20], told[21]), (3, 13));
        assert_eq!(told[28..], packet);
    }
    assert_eq!(up(&mut world, &packet), Err(Counter::NatBlockExhausted));
    let counted = world.counted(0);
    let count = |counter| counted.iter().find(|c| c.0 == counter).map_or(0, |c| c.1);
    assert_eq!(count(Counter::NatBlockExhausted), 3);
    assert_eq!(
        (
            count(Counter::IcmpErrorSent),
            count(Counter::IcmpErrorLimited)
        ),
        (2, 1)
    );
    assert_eq!(
        up(&mut world, &udp((OWN, 0), (HOST, 53), b"")).unwrap()[9],
        17
    );
}
