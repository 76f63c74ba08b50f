//! IPv6 between subscribers: delivered here, under the policies of both.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

#[path = "support/v6.rs"]
mod v6;

use std::net::Ipv6Addr;

use bng_fastpath::testing::{Spec, TestBuf, World, icmpv6, tcp6, udp6};
use bng_fastpath::{Origin, PacketBuf, Verdict};
use bng_shm::{Counter, Policy, PolicyId, Rate, Session};
use bng_wire::icmpv6::{icmpv6_type as icmp, unreachable_code};

use v6::{
    counted, counted_by, hops, receive, send, send_from, stats, to_subscriber, world, world_of,
};

fn address(n: u32) -> (Ipv6Addr, u16) {
    (World::address6(n), 5_000)
}

#[test]
fn a_packet_to_another_subscriber_is_delivered_with_one_hop_less() {
    let (mut world, _) = world(2);
    for dst in [World::address6(1), World::delegated(1)] {
        let packet = udp6(address(0), (dst, 9), b"hello");
        let (verdict, out) = send(&mut world, &packet);
        assert_eq!(verdict, Verdict::Forward { port: 0 });
        assert_eq!(out, to_subscriber(&world, 1, &hops(packet, 63)));
    }
    assert_eq!(stats(&world, 0), [2, 106, 0, 0]);
    assert_eq!(stats(&world, 1), [0, 0, 2, 106]);
    assert_eq!(counted(&world, Counter::ForwardedUpstream), 2);
}

#[test]
fn a_packet_to_the_subscribers_own_other_prefix_comes_back() {
    let (mut world, _) = world(1);
    let packet = udp6(address(0), (World::delegated(0), 9), b"hello");
    let (verdict, out) = send(&mut world, &packet);
    assert_eq!(verdict, Verdict::Forward { port: 0 });
    assert_eq!(out, to_subscriber(&world, 0, &hops(packet, 63)));
}

/// RFC 4443 section 3.1: it would go to and fro until its hops are used up.
#[test]
fn a_packet_to_the_subscribers_own_link_does_not_go_back_to_it() {
    let (mut world, _) = world(1);
    let nobody = Ipv6Addr::from_bits(World::prefix6(0).to_bits() | 0x9999);
    for dst in [nobody, World::prefix6(0), World::address6(0)] {
        let packet = udp6(address(0), (dst, 9), b"hello");
        let (verdict, out) = send(&mut world, &packet);
        assert_eq!(verdict, Verdict::Forward { port: 0 });
        let about = [&[0; 4], &packet[..]].concat();
        let error = icmpv6(
            World::port_ipv6(2),
            address(0).0,
            icmp::UNREACHABLE,
            unreachable_code::ADDRESS,
            &about,
        );
        assert_eq!(out, to_subscriber(&world, 0, &error));
    }
    assert_eq!(counted(&world, Counter::DestinationSubscriber), 3);
    assert_eq!(counted(&world, Counter::ForwardedUpstream), 0);
    assert_eq!(stats(&world, 0)[..2], [0, 0]);
}

fn small(world: &mut World, n: u32) {
    let session = Session {
        mtu: 1_280,
        ..world.session(n)
    };
    world.update(World::slot(n), session);
}

#[test]
fn errors_to_other_subscribers_leave_the_core_its_own() {
    let spec = Spec {
        icmp_errors_per_second: 2,
        ..Spec::default()
    };
    let (mut world, _) = world_of(spec, 2);
    small(&mut world, 1);
    let packet = udp6(address(0), address(1), &[7; 1_300]);
    let sent = (0..9).filter(|_| send(&mut world, &packet).0 == Verdict::Forward { port: 0 });
    assert_eq!(sent.count(), 2);
    assert_eq!(counted(&world, Counter::IcmpErrorLimited), 7);
    let late = hops(udp6((World::HOST6, 53), address(0), b"late"), 1);
    let (verdict, _) = receive(&mut world, &late);
    assert_eq!(verdict, Verdict::Forward { port: 2 });
}

#[test]
fn no_error_leaves_for_the_core_about_a_subscribers_packet_with_a_foreign_source() {
    let (mut world, session) = world(2);
    small(&mut world, 1);
    let policy = PolicyId(2);
    let off = Policy {
        source_check: false,
        ..Policy::default()
    };
    world.publisher.write_policy(policy, Some(&off)).unwrap();
    world.update(World::slot(0), Session { policy, ..session });
    let foreign = (World::network6(2), 5_000);
    let (verdict, _) = send(&mut world, &udp6(foreign, address(1), b"fits"));
    assert_eq!(verdict, Verdict::Forward { port: 0 });
    let (verdict, _) = send(&mut world, &udp6(foreign, address(1), &[7; 1_300]));
    assert_eq!(verdict, Verdict::Drop(Counter::PacketTooBig));
    assert_eq!(counted(&world, Counter::IcmpErrorSent), 0);
}

fn two_workers() -> World {
    let spec = Spec {
        workers: 2,
        icmp_errors_per_second: 100,
        ..Spec::default()
    };
    world_of(spec, 2).0
}

/// Sends a packet of session 0 to session 1, which worker 1 owns; what worker 1 takes over.
fn handed_over(world: &mut World, packet: &[u8]) -> TestBuf {
    let buf = World::from_subscriber6(World::slot(0), &world.session(0), packet);
    let (verdict, out) = world.upstream(0, vec![buf], Origin::Port).remove(0);
    assert_eq!(verdict, Verdict::HandOver { worker: 1 });
    assert_eq!(out.port(), world.core_port());
    out
}

#[test]
fn a_packet_to_another_workers_subscriber_is_taken_over_as_one_from_the_core() {
    let mut world = two_workers();
    let packet = udp6(address(0), address(1), b"hello");
    let over = handed_over(&mut world, &packet);
    assert_eq!(stats(&world, 0), [1, 53, 0, 0]);
    let (verdict, out) = world
        .downstream(1, vec![over], Origin::HandedOver)
        .remove(0);
    assert_eq!(verdict, Verdict::Forward { port: 0 });
    assert_eq!(out.data(), to_subscriber(&world, 1, &hops(packet, 63)));
    assert_eq!(stats(&world, 1), [0, 0, 1, 53]);
    assert_eq!(counted_by(&world, 1, Counter::ForwardedDownstream), 1);
}

/// The error about `packet` that session 0's subscriber gets.
fn too_big(packet: &[u8]) -> Vec<u8> {
    let rest = [&1_280u32.to_be_bytes()[..], &packet[..1_232]].concat();
    let error = icmpv6(
        World::port_ipv6(2),
        address(0).0,
        icmp::PACKET_TOO_BIG,
        0,
        &rest,
    );
    hops(error, 63)
}

#[test]
fn the_sender_is_told_what_the_other_session_carries() {
    let (mut world, _) = world(2);
    let small = Session {
        mtu: 1_280,
        ..world.session(1)
    };
    world.update(World::slot(1), small);
    let packet = udp6(address(0), address(1), &[7; 1_300]);
    let (verdict, out) = send(&mut world, &packet);
    assert_eq!(verdict, Verdict::Forward { port: 0 });
    assert_eq!(out, to_subscriber(&world, 0, &too_big(&packet)));
    assert_eq!(counted(&world, Counter::PacketTooBig), 1);
    assert_eq!(counted(&world, Counter::IcmpErrorSent), 1);
    assert_eq!(counted(&world, Counter::ForwardedUpstream), 0);
    assert_eq!(stats(&world, 0), [0, 0, 1, 1_280]);
    assert_eq!(stats(&world, 1), [0; 4]);
}

#[test]
fn an_error_finds_its_way_back_to_the_other_worker() {
    let mut world = two_workers();
    let small = Session {
        mtu: 1_280,
        ..world.session(1)
    };
    world.update(World::slot(1), small);
    let packet = udp6(address(0), address(1), &[7; 1_300]);
    let over = handed_over(&mut world, &packet);
    let (verdict, error) = world
        .downstream(1, vec![over], Origin::HandedOver)
        .remove(0);
    assert_eq!(verdict, Verdict::HandOver { worker: 0 });
    let (verdict, out) = world
        .downstream(0, vec![error], Origin::HandedOver)
        .remove(0);
    assert_eq!(verdict, Verdict::Forward { port: 0 });
    assert_eq!(out.data(), to_subscriber(&world, 0, &too_big(&packet)));
}

#[test]
fn the_policies_of_both_sessions_hold() {
    let limit = Rate {
        kbps: 1,
        burst_bytes: 60,
    };
    for (n, policy, reason) in [
        (
            0,
            Policy {
                up: Some(limit),
                ..Policy::default()
            },
            Counter::PolicerUpstream,
        ),
        (
            1,
            Policy {
                down: Some(limit),
                ..Policy::default()
            },
            Counter::PolicerDownstream,
        ),
    ] {
        let (mut world, _) = world(2);
        let id = PolicyId(2);
        world.publisher.write_policy(id, Some(&policy)).unwrap();
        let limited = Session {
            policy: id,
            ..world.session(n)
        };
        world.update(World::slot(n), limited);
        let packet = udp6(address(0), address(1), b"hello");
        assert_eq!(send(&mut world, &packet).0, Verdict::Forward { port: 0 });
        assert_eq!(send(&mut world, &packet).0, Verdict::Drop(reason));
        assert_eq!(stats(&world, 0)[..2], [1, 53]);
        assert_eq!(stats(&world, 1)[2..], [1, 53]);
    }
}

#[test]
fn a_syn_is_clamped_to_the_smaller_of_both_sessions() {
    for (mtu_0, mtu_1, mss) in [(1_400, 1_492, 1_340u16), (1_492, 1_380, 1_320)] {
        let (mut world, _) = world(2);
        for (n, mtu) in [(0, mtu_0), (1, mtu_1)] {
            let session = Session {
                mtu,
                ..world.session(n)
            };
            world.update(World::slot(n), session);
        }
        let syn = tcp6(address(0), address(1), 2, &[2, 4, 5, 0xa0]);
        let (verdict, out) = send(&mut world, &syn);
        assert_eq!(verdict, Verdict::Forward { port: 0 });
        assert_eq!(out[30 + 60 + 2..30 + 60 + 4], mss.to_be_bytes());
        bng_fastpath::testing::assert_checksums6(&out[30..]);
    }
}

#[test]
fn nothing_is_delivered_to_a_session_that_is_not_open() {
    let (mut world, _) = world(2);
    let closed = Session {
        ipv6_prefix: None,
        ..world.session(1)
    };
    world.update(World::slot(1), closed);
    let packet = udp6(address(0), address(1), b"hello");
    assert_eq!(
        send_from(&mut world, 0, &packet).0,
        Verdict::Drop(Counter::SessionNotOpen)
    );
    world.close(World::slot(1));
    assert_eq!(
        send_from(&mut world, 0, &packet).0,
        Verdict::Drop(Counter::SessionUnknown)
    );
    assert_eq!(stats(&world, 0), [0; 4]);
}
