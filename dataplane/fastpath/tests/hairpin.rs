//! Hairpinning (RFC 4787 REQ-9): from one subscriber behind NAT to another one's outside address, bytes in and bytes out, on
//! one worker and on two.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod support;

use std::net::Ipv4Addr;

use bng_fastpath::testing::{Spec, TestBuf, World, assert_checksums, echo, icmp_error, tcp, udp};
use bng_fastpath::{Origin, PacketBuf, Verdict};
use bng_shm::{
    Counter, Filter, FilterAction, FilterId, FilterRule, Policy, PolicyId, Rate, Session,
};
use bng_wire::l4::tcp_flag::SYN;
use bng_wire::{ethernet, ipv4, pppoe};

use support::edited;

const A: u32 = 0;
const B: u32 = 1;

fn world(workers: u8) -> World {
    let spec = Spec {
        workers,
        icmp_errors_per_second: 10,
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

/// What became of a packet: to which session it got and as what, or why not.
type Got = Result<(u32, Vec<u8>), Counter>;

fn received(frame: &TestBuf) -> (u32, Vec<u8>) {
    let link = ethernet::parse(frame.data()).unwrap();
    let ppp = pppoe::parse_session(&frame.data()[link.payload..]).unwrap();
    assert_eq!(frame.data().len(), link.payload + 8 + ppp.payload.len());
    assert_checksums(ppp.payload);
    let n = u32::from(ppp.session_id) - 1;
    assert_eq!(
        link.dst,
        World::client_mac(n),
        "to the client of the session"
    );
    (n, ppp.payload.to_vec())
}

/// A packet of a session, through its worker and, if that hands it over, the other one.
fn cross(world: &mut World, n: u32, packet: &[u8]) -> Got {
    let sender = session(world, n);
    let buf = World::from_subscriber(World::slot(n), &sender, packet);
    let mut out = world
        .upstream(sender.owner, vec![buf], Origin::Port)
        .remove(0);
    if let (Verdict::HandOver { worker }, frame) = out {
        assert_ne!(worker, sender.owner);
        assert_eq!(
            frame.port(),
            world.core_port(),
            "in the form of one from the core"
        );
        out = world
            .downstream(worker, vec![frame], Origin::HandedOver)
            .remove(0);
    }
    match out {
        (Verdict::Forward { port: 0 }, frame) => Ok(received(&frame)),
        (Verdict::Drop(reason), _) => Err(reason),
        other => panic!("{other:?}"),
    }
}

/// Sends from a session to the internet; the packet as it leaves.
fn out(world: &mut World, n: u32, packet: &[u8]) -> Vec<u8> {
    let sender = session(world, n);
    let buf = World::from_subscriber(World::slot(n), &sender, packet);
    let (verdict, frame) = world
        .upstream(sender.owner, vec![buf], Origin::Port)
        .remove(0);
    assert_eq!(verdict, Verdict::Forward { port: 2 });
    frame.data()[14..].to_vec()
}

fn source(packet: &[u8]) -> (Ipv4Addr, u16) {
    let address = ipv4::parse(packet).unwrap().src_addr();
    (address, u16::from_be_bytes([packet[20], packet[21]]))
}

/// Opens a mapping of a session; the outside address and port.
fn open_udp(world: &mut World, n: u32, port: u16) -> (Ipv4Addr, u16) {
    let packet = udp((World::framed_ip(n), port), (World::HOST, 53), b"");
    source(&out(world, n, &packet))
}

/// The packet one hop later.
fn hop(packet: Vec<u8>) -> Vec<u8> {
    let ttl = packet[8] - 1;
    edited(packet, 8, ttl)
}

fn count(world: &World, counter: Counter) -> u64 {
    let all = (0..world.spec.workers).flat_map(|worker| world.counted(worker));
    all.filter(|c| c.0 == counter).map(|c| c.1).sum()
}

#[test]
fn each_sees_the_others_outside_address_and_the_hop_is_taken_once() {
    for workers in [1, 2] {
        let mut world = world(workers);
        let b = open_udp(&mut world, B, 5_000);
        let inside = (World::framed_ip(A), 4_000);
        let (to, packet) = cross(&mut world, A, &udp(inside, b, b"hello")).unwrap();
        let a = source(&packet);
        assert_eq!(a.0, world.block(A).address);
        assert!((1_024..1_088).contains(&a.1), "a port of A's block");
        let expect = hop(udp(a, (World::framed_ip(B), 5_000), b"hello"));
        assert_eq!((to, packet), (B, expect));

        let answer = udp((World::framed_ip(B), 5_000), a, b"answer");
        let expect = hop(udp(b, inside, b"answer"));
        assert_eq!(cross(&mut world, B, &answer), Ok((A, expect)));
        // The mapping is the one the internet sees.
        assert_eq!(open_udp(&mut world, A, 4_000), a);

        let stats = |n| world.publisher.session_stats(World::slot(n)).unwrap();
        assert_eq!((stats(A).up_packets, stats(A).down_packets), (2, 1));
        assert_eq!((stats(B).up_packets, stats(B).down_packets), (2, 1));
        assert_eq!((stats(A).down_bytes, stats(B).down_bytes), (34, 33));
        assert_eq!(count(&world, Counter::NatMappingCreated), 2);
        let forwarded = [Counter::ForwardedUpstream, Counter::ForwardedDownstream];
        let forwarded = forwarded.map(|counter| count(&world, counter));
        assert_eq!(forwarded, if workers == 1 { [4, 0] } else { [2, 2] });
    }
}

#[test]
fn a_connection_is_opened_through_the_hairpin_and_its_mss_is_lowered() {
    for workers in [1, 2] {
        let mut world = world(workers);
        let listens = tcp((World::framed_ip(B), 80), (World::HOST, 80), SYN, b"");
        let b = source(&out(&mut world, B, &listens));
        let mut syn = tcp((World::framed_ip(A), 4_000), b, SYN, &[2, 4, 0x05, 0xb4]);
        // The option belongs to the header.
        syn[32] = 0x60;
        syn[36..38].fill(0);
        let segment = &syn[20..];
        let (src, dst) = (World::framed_ip(A).to_bits(), b.0.to_bits());
        let check = bng_wire::checksum::l4_checksum(src, dst, 6, segment);
        syn[36..38].copy_from_slice(&check.to_be_bytes());
        let (to, packet) = cross(&mut world, A, &syn).unwrap();
        assert_eq!(to, B);
        assert_eq!(packet[40..44], [2, 4, 0x05, 0xac], "1,492 less 40");
        assert_eq!(packet[22..24], 80u16.to_be_bytes());
    }
}

#[test]
fn an_icmp_error_goes_back_through_the_hairpin_and_quotes_what_the_sender_sent() {
    for workers in [1, 2] {
        let mut world = world(workers);
        let b = open_udp(&mut world, B, 5_000);
        let sent = udp((World::framed_ip(A), 4_000), b, b"is anybody there?");
        let (_, got) = cross(&mut world, A, &sent).unwrap();
        let (a, _) = source(&got);
        let error = icmp_error(World::framed_ip(B), a, 3, &got);
        let expect = hop(icmp_error(b.0, World::framed_ip(A), 3, &hop(sent)));
        assert_eq!(cross(&mut world, B, &error), Ok((A, expect)));
        // About what nobody sent.
        let error = icmp_error(
            World::framed_ip(B),
            a,
            3,
            &udp((a, 9), (World::framed_ip(B), 5_000), b""),
        );
        assert_eq!(cross(&mut world, B, &error), Err(Counter::NatIcmpEmbedded));
    }
}

#[test]
fn a_subscriber_reaches_itself() {
    let mut world = world(1);
    let a = open_udp(&mut world, A, 5_000);
    let (to, packet) = cross(&mut world, A, &udp((World::framed_ip(A), 4_000), a, b"me")).unwrap();
    let from = source(&packet);
    assert_eq!(to, A);
    assert_ne!(from, a);
    assert_eq!(packet, hop(udp(from, (World::framed_ip(A), 5_000), b"me")));
    // By the very same port.
    let packet = udp((World::framed_ip(A), 5_000), a, b"me");
    let expect = hop(udp(a, (World::framed_ip(A), 5_000), b"me"));
    assert_eq!(cross(&mut world, A, &packet), Ok((A, expect)));
    // Its own request comes to it, it answers, and the answer comes to it.
    let own = World::framed_ip(A);
    let expect = hop(echo(a.0, own, true, 7, b"ping"));
    assert_eq!(
        cross(&mut world, A, &echo(own, a.0, true, 7, b"ping")),
        Ok((A, expect))
    );
    let expect = hop(echo(a.0, own, false, 7, b"ping"));
    assert_eq!(
        cross(&mut world, A, &echo(own, a.0, false, 7, b"ping")),
        Ok((A, expect))
    );
}

#[test]
fn echo_messages_go_both_ways_between_subscribers_that_have_a_mapping_each() {
    for workers in [1, 2] {
        // The first session of the second address has the same ports as the first of the first one.
        let other = 1_007;
        let mut world = world(workers);
        world.open(other);
        assert_eq!(world.block(other).first_port, world.block(A).first_port);
        assert_ne!(world.block(other).address, world.block(A).address);
        // All identifiers of both are in use.
        for n in [A, other] {
            for id in 0..64 {
                out(
                    &mut world,
                    n,
                    &echo(World::framed_ip(n), World::HOST, true, id, b""),
                );
            }
        }
        let request = echo(
            World::framed_ip(A),
            world.block(other).address,
            true,
            7,
            b"ping",
        );
        let (to, packet) = cross(&mut world, A, &request).unwrap();
        assert_eq!(to, other);
        let id = u16::from_be_bytes([packet[24], packet[25]]);
        let from = world.block(A).address;
        assert_eq!(
            packet,
            hop(echo(from, World::framed_ip(other), true, id, b"ping"))
        );
        let reply = echo(World::framed_ip(other), from, false, id, b"ping");
        let expect = hop(echo(
            world.block(other).address,
            World::framed_ip(A),
            false,
            7,
            b"ping",
        ));
        assert_eq!(cross(&mut world, other, &reply), Ok((A, expect)));
        // Where nobody has a mapping there is nobody, and a reply makes none.
        let nobody = Ipv4Addr::new(203, 0, 113, 3);
        let request = echo(World::framed_ip(A), nobody, true, 7, b"");
        assert_eq!(cross(&mut world, A, &request), Err(Counter::NatNoMapping));
        let reply = echo(World::framed_ip(A), from, false, 9_999, b"");
        assert_eq!(cross(&mut world, A, &reply), Err(Counter::NatNoMapping));
    }
}

#[test]
fn echo_messages_that_nobody_asked_for_pass_neither_to_the_core_nor_from_it() {
    let mut world = world(1);
    let own = World::framed_ip(A);
    let sent = out(&mut world, A, &echo(own, World::HOST, true, 7, b""));
    let (address, id) = (source(&sent).0, u16::from_be_bytes([sent[24], sent[25]]));
    let reply = echo(own, World::HOST, false, 7, b"");
    assert_eq!(
        cross(&mut world, A, &reply),
        Err(Counter::NatIcmpUnsupported)
    );
    let request = world.from_core(&echo(World::HOST, address, true, id, b""));
    for origin in [Origin::Port, Origin::HandedOver] {
        let verdict = world
            .downstream(0, vec![request.clone()], origin)
            .remove(0)
            .0;
        assert_eq!(verdict, Verdict::Drop(Counter::NatIcmpUnsupported));
    }
}

#[test]
fn an_unmapped_port_of_our_own_pool_is_dropped_by_name_and_goes_nowhere() {
    let mut world = world(1);
    let own = (World::framed_ip(A), 4_000);
    for (address, port) in [
        (world.block(A).address, world.block(A).first_port),
        (world.block(A).address, 65_535),
        (world.block(A).address, 0),
        (Ipv4Addr::new(203, 0, 113, 3), 2_000),
    ] {
        for packet in [
            udp(own, (address, port), b""),
            tcp(own, (address, port), SYN, b""),
        ] {
            let buf = World::from_subscriber(World::slot(A), &session(&world, A), &packet);
            let reason = Counter::NatNoMapping;
            support::expect_drop("nobody", &mut world, support::Way::Up, &buf, reason);
        }
    }
    assert_eq!(count(&world, Counter::ForwardedUpstream), 0);
}

#[test]
fn a_routed_subscriber_does_not_reach_a_nat_address() {
    let mut world = world(1);
    let b = open_udp(&mut world, B, 5_000);
    let slot = World::slot(7);
    let routed = Session {
        framed_ip: Ipv4Addr::new(198, 51, 100, 7),
        nat: None,
        ..world.session(7)
    };
    let routed = world.publish(slot, routed);
    let packet = udp((routed.framed_ip, 1), b, b"");
    let buf = World::from_subscriber(slot, &routed, &packet);
    let verdict = world.upstream(0, vec![buf], Origin::Port).remove(0).0;
    assert_eq!(verdict, Verdict::Drop(Counter::DestinationSubscriber));
}

#[test]
fn a_port_gives_no_packet_the_source_of_a_hairpin() {
    let mut world = world(1);
    let (a, b) = (open_udp(&mut world, A, 1), open_udp(&mut world, B, 2));
    let buf = world.from_core(&udp(a, b, b"forged"));
    let verdict = world.downstream(0, vec![buf], Origin::Port).remove(0).0;
    assert_eq!(verdict, Verdict::Drop(Counter::SourceSpoofed));
}

#[test]
fn policers_and_filters_of_both_ends_apply() {
    const LIMITED: PolicyId = PolicyId(5);
    for workers in [1, 2] {
        let slow = Some(Rate {
            kbps: 8,
            burst_bytes: 400,
        });
        let rule = FilterRule {
            action: FilterAction::Drop,
            protocol: None,
            remote: None,
            remote_ports: None,
            local_ports: Some((6_000, 6_000)),
        };
        let filter = Filter {
            up: vec![rule],
            down: vec![rule],
            ..Filter::default()
        };
        let policies = [
            (
                A,
                Policy {
                    up: slow,
                    ..Policy::default()
                },
                Counter::PolicerUpstream,
            ),
            (
                B,
                Policy {
                    down: slow,
                    ..Policy::default()
                },
                Counter::PolicerDownstream,
            ),
        ];
        for (limited, policy, reason) in policies {
            let mut world = world(workers);
            let b = open_udp(&mut world, B, 5_000);
            let closed = open_udp(&mut world, B, 6_000);
            world
                .publisher
                .publish_filters(std::slice::from_ref(&filter))
                .unwrap();
            let policy = Policy {
                filter: Some(FilterId(0)),
                ..policy
            };
            world
                .publisher
                .write_policy(LIMITED, Some(&policy))
                .unwrap();
            world.pass(1, 1);
            let slot = World::slot(limited);
            let session = Session {
                policy: LIMITED,
                ..session(&world, limited)
            };
            world.update(slot, session);
            let packet = udp((World::framed_ip(A), 4_000), b, &[0; 172]);
            let got: Vec<_> = (0..3).map(|_| cross(&mut world, A, &packet)).collect();
            assert!(got[0].is_ok() && got[1].is_ok(), "{got:?}");
            assert_eq!(got[2], Err(reason));
            assert_eq!(count(&world, reason), 1);
            // What a policer of the receiver drops the sender has not sent.
            let stats = world.publisher.session_stats(World::slot(B)).unwrap();
            assert_eq!(stats.down_packets, 2);
            world.pass(1_000, 100);
            if limited == A {
                let packet = udp((World::framed_ip(A), 6_000), b, b"");
                assert_eq!(cross(&mut world, A, &packet), Err(Counter::FilterUpstream));
            } else {
                let packet = udp((World::framed_ip(A), 4_000), closed, b"");
                assert_eq!(
                    cross(&mut world, A, &packet),
                    Err(Counter::FilterDownstream)
                );
            }
        }
    }
}

#[test]
fn a_packet_larger_than_the_receivers_mtu_is_fragmented_or_its_sender_told() {
    for workers in [1, 2] {
        let mut world = world(workers);
        let b = open_udp(&mut world, B, 5_000);
        let small = Session {
            mtu: 600,
            ..session(&world, B)
        };
        world.update(World::slot(B), small);
        let packet = udp((World::framed_ip(A), 4_000), b, &[7; 972]);
        let told = edited(packet.clone(), 6, 0x40);
        let (to, error) = cross(&mut world, A, &told).unwrap();
        assert_eq!(to, A);
        assert_eq!((error[20], error[21]), (3, 4));
        assert_eq!(error[26..28], 600u16.to_be_bytes());
        assert_eq!(error[28..], told[..548], "as it was sent");
        assert_eq!(count(&world, Counter::PacketTooBig), 1);

        let sender = session(&world, A);
        let buf = World::from_subscriber(World::slot(A), &sender, &packet);
        let (mut verdict, mut frame) = world.upstream(0, vec![buf], Origin::Port).remove(0);
        if let Verdict::HandOver { worker } = verdict {
            (verdict, frame) = world
                .downstream(worker, vec![frame], Origin::HandedOver)
                .remove(0);
        }
        assert_eq!(verdict, Verdict::Fragment { port: 0, mtu: 600 });
        let worker = if workers == 1 { 0 } else { 1 };
        let pieces = world.fragments(worker, 600, frame, 9);
        let whole: Vec<u8> = pieces
            .iter()
            .flat_map(|piece| received(piece).1[20..].to_vec())
            .collect();
        assert_eq!(whole[2..4], 5_000u16.to_be_bytes());
        assert_eq!(whole[8..], packet[28..]);
        assert_eq!(pieces.len(), 2);
        let stats = world.publisher.session_stats(World::slot(A)).unwrap();
        assert_eq!((stats.up_packets, stats.up_bytes), (1, 1_000));
    }
}

#[test]
fn a_packet_with_no_hop_left_is_answered_to_its_sender() {
    let mut world = world(2);
    let b = open_udp(&mut world, B, 5_000);
    let packet = edited(udp((World::framed_ip(A), 4_000), b, b"x"), 8, 1);
    let (to, error) = cross(&mut world, A, &packet).unwrap();
    assert_eq!((to, error[20]), (A, 11));
    assert_eq!(error[28..], packet);
    assert_eq!(count(&world, Counter::TtlExpired), 1);
    // Two hops are enough for one.
    let packet = edited(packet, 8, 2);
    assert_eq!(cross(&mut world, A, &packet).unwrap().1[8], 1);
}

#[test]
fn a_receiver_that_has_ended_or_moved_meanwhile_gets_nothing() {
    let mut world = world(2);
    let b = open_udp(&mut world, B, 5_000);
    let packet = udp((World::framed_ip(A), 4_000), b, b"x");
    let buf = World::from_subscriber(World::slot(A), &session(&world, A), &packet);
    let (verdict, frame) = world.upstream(0, vec![buf], Origin::Port).remove(0);
    assert_eq!(verdict, Verdict::HandOver { worker: 1 });
    world.close(World::slot(B));
    let verdict = world
        .downstream(1, vec![frame], Origin::HandedOver)
        .remove(0)
        .0;
    assert!(matches!(verdict, Verdict::Drop(_)), "{verdict:?}");
    assert!(cross(&mut world, A, &packet).is_err());
    world.open(B);
    assert_eq!(cross(&mut world, A, &packet), Err(Counter::NatNoMapping));
}
