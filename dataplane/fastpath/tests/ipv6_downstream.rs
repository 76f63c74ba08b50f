//! IPv6 downstream: bytes in, bytes or a named reason out.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

#[path = "support/mod.rs"]
mod support;
#[path = "support/v6.rs"]
mod v6;

use std::net::Ipv6Addr;

use bng_fastpath::testing::{
    Spec, TestBuf, World, assert_checksums6, echo6, ethernet, icmpv6, udp6,
};
use bng_fastpath::{Origin, PacketBuf, Verdict};
use bng_shm::{BlockOwner, Counter, Session, SessionState, Vlans};
use bng_wire::MacAddr;
use bng_wire::ethernet::ethertype;
use bng_wire::icmpv6::icmpv6_type as icmp;

use support::{Way, expect_drop};
use v6::{SLOT, counted, hops, receive, stats, to_subscriber, world, world_of};

const HOST: (Ipv6Addr, u16) = (World::HOST6, 53);

fn me() -> (Ipv6Addr, u16) {
    (World::address6(0), 5_000)
}

fn with_bits(address: Ipv6Addr, low: u128) -> Ipv6Addr {
    Ipv6Addr::from_bits(address.to_bits() | low)
}

#[test]
fn a_packet_arrives_inside_pppoe_with_one_hop_less_in_the_64_and_in_the_delegated_prefix() {
    let (mut world, _) = world(1);
    let inside_delegated = with_bits(World::delegated(0), 0xff_0000_0000_0000_0007);
    for dst in [me().0, World::delegated(0), inside_delegated] {
        let packet = udp6(HOST, (dst, 5_000), b"answer");
        let mut padded = world.from_core6(&packet).data().to_vec();
        padded.extend([0xee; 9]);
        let bufs = vec![TestBuf::new(2, &padded)];
        let (verdict, out) = world.downstream(0, bufs, Origin::Port).remove(0);
        assert_eq!(verdict, Verdict::Forward { port: 0 });
        assert_eq!(out.data(), to_subscriber(&world, 0, &hops(packet, 63)));
    }
    assert_eq!(stats(&world, 0), [0, 0, 3, 3 * 54]);
    assert_eq!(counted(&world, Counter::ForwardedDownstream), 3);
}

#[test]
fn the_sessions_tags_are_put_on() {
    let one = Vlans {
        s_vlan: Some(7),
        ..Vlans::default()
    };
    for (vlans, l3) in [(Vlans::default(), 22), (one, 26)] {
        let (mut world, session) = world(1);
        world.update(SLOT, Session { vlans, ..session });
        let packet = udp6(HOST, me(), b"x");
        let (verdict, out) = receive(&mut world, &packet);
        assert_eq!(verdict, Verdict::Forward { port: 0 });
        assert_eq!(out[l3..], hops(packet, 63));
    }
}

#[test]
fn what_is_for_no_subscriber_is_the_kernels() {
    let (mut world, _) = world(1);
    let group = MacAddr([0x33, 0x33, 0xff, 0, 0, 1]);
    let solicited: Ipv6Addr = "ff02::1:ff00:1".parse().unwrap();
    let solicitation = icmpv6(HOST.0, solicited, icmp::NEIGHBOUR_SOLICITATION, 0, &[0; 20]);
    let link_local: Ipv6Addr = "fe80::1".parse().unwrap();
    let port = world.core_port();
    let own = World::port_mac(port);
    let frames = [
        (group, solicitation),
        (own, udp6(HOST, (World::port_ipv6(port), 179), b"BGP")),
        (own, echo6(link_local, link_local)),
        (own, udp6(HOST, (World::network6(2), 9), b"transit")),
    ];
    for (mac, packet) in frames {
        let frame = ethernet(mac, World::NEXT_HOP, ethertype::IPV6, &packet);
        let buf = TestBuf::new(port, &frame);
        let out = world.downstream(0, vec![buf.clone()], Origin::Port);
        assert_eq!(out, [(Verdict::Host { port }, buf)]);
    }
    let stranger = MacAddr([2, 1, 1, 1, 1, 1]);
    let frame = ethernet(
        stranger,
        World::NEXT_HOP,
        ethertype::IPV6,
        &udp6(HOST, me(), b"x"),
    );
    let buf = TestBuf::new(port, &frame);
    expect_drop(
        "to another station",
        &mut world,
        Way::Down,
        &buf,
        Counter::NotForUs,
    );
}

#[test]
fn each_defect_has_its_reason() {
    let (mut world, _) = world(2);
    let good = udp6(HOST, me(), b"payload");
    let link_local: Ipv6Addr = "fe80::1".parse().unwrap();
    let group: Ipv6Addr = "ff0e::1".parse().unwrap();
    let edited = |at: usize, value: u8| {
        let mut packet = good.clone();
        packet[at] = value;
        packet
    };
    let from = |src| udp6((src, 53), me(), b"x");
    for (name, packet, reason) in [
        ("header cut", good[..39].to_vec(), Counter::Ipv6Truncated),
        (
            "payload cut",
            good[..good.len() - 1].to_vec(),
            Counter::Ipv6Truncated,
        ),
        ("version 5", edited(0, 0x50), Counter::Ipv6Header),
        (
            "link-local source",
            from(link_local),
            Counter::SourceSpoofed,
        ),
        ("multicast source", from(group), Counter::SourceSpoofed),
        (
            "unspecified source",
            from(Ipv6Addr::UNSPECIFIED),
            Counter::SourceSpoofed,
        ),
        (
            "a subscriber's source",
            from(World::address6(1)),
            Counter::SourceSpoofed,
        ),
        (
            "an unassigned prefix",
            udp6(HOST, (World::address6(9), 1), b"x"),
            Counter::SessionUnknown,
        ),
    ] {
        let buf = world.from_core6(&packet);
        expect_drop(name, &mut world, Way::Down, &buf, reason);
    }
}

#[test]
fn a_session_gets_only_what_is_its_own_and_while_it_is_open() {
    let (mut world, session) = world(1);
    let packet = udp6(HOST, me(), b"x");
    for (name, session, reason) in [
        (
            "IPv6 closed",
            Session {
                ipv6_prefix: None,
                ..session
            },
            Counter::SessionNotOpen,
        ),
        (
            "negotiating",
            Session {
                state: SessionState::Negotiating,
                ..session
            },
            Counter::SessionNotOpen,
        ),
        (
            "closing",
            Session {
                state: SessionState::Closing,
                ..session
            },
            Counter::SessionUnknown,
        ),
        (
            "another prefix by now",
            Session {
                ipv6_prefix: Some(World::prefix6(3)),
                ..session
            },
            Counter::SessionUnknown,
        ),
    ] {
        world.update(SLOT, session);
        let buf = world.from_core6(&packet);
        expect_drop(name, &mut world, Way::Down, &buf, reason);
    }
    world.update(SLOT, session);
    let to_delegated = udp6(HOST, (World::delegated(0), 1), b"x");
    world.update(
        SLOT,
        Session {
            delegated: None,
            ..session
        },
    );
    let buf = world.from_core6(&to_delegated);
    expect_drop(
        "no longer delegated",
        &mut world,
        Way::Down,
        &buf,
        Counter::SessionUnknown,
    );
}

#[test]
fn nothing_reaches_the_next_session_in_the_slot() {
    let (mut world, session) = world(1);
    world.close(SLOT);
    // The next one has the same prefix in its entry, but the prefix still leads to the one before.
    let next = world.publish(
        SLOT,
        Session {
            generation: 0,
            ..session
        },
    );
    let high = (World::prefix6(0).to_bits() >> 64) as u64;
    let before = BlockOwner {
        slot: SLOT,
        generation: session.generation,
    };
    assert_ne!(before.generation, next.generation);
    world
        .publisher
        .set_framed6_owner(high, Some(before))
        .unwrap();
    let buf = world.from_core6(&udp6(HOST, me(), b"x"));
    expect_drop(
        "the one before's",
        &mut world,
        Way::Down,
        &buf,
        Counter::SessionUnknown,
    );
}

fn assert_error(sent: &[u8], packet: &[u8], kind: u8, value: u32) {
    let quote = &packet[..packet.len().min(1_232)];
    let rest = [&value.to_be_bytes()[..], quote].concat();
    let expect = icmpv6(World::port_ipv6(2), HOST.0, kind, 0, &rest);
    assert_checksums6(&sent[14..]);
    let (own, peer) = (World::port_mac(2), World::NEXT_HOP);
    assert_eq!(sent, ethernet(peer, own, ethertype::IPV6, &expect));
}

#[test]
fn the_sender_is_told_when_the_hop_limit_ends_or_the_session_is_too_small() {
    let (mut world, session) = world(1);
    let back = Verdict::Forward { port: 2 };
    let packet = hops(udp6(HOST, me(), b"x"), 1);
    let (verdict, sent) = receive(&mut world, &packet);
    assert_eq!(verdict, back);
    assert_error(&sent, &packet, icmp::TIME_EXCEEDED, 0);
    assert_eq!(counted(&world, Counter::TtlExpired), 1);

    let fits = udp6(HOST, me(), &[7; 1_492 - 48]);
    assert_eq!(receive(&mut world, &fits).0, Verdict::Forward { port: 0 });
    let packet = udp6(HOST, me(), &[7; 1_493 - 48]);
    let (verdict, sent) = receive(&mut world, &packet);
    assert_eq!(verdict, back);
    assert_error(&sent, &packet, icmp::PACKET_TOO_BIG, 1_492);
    world.update(
        SLOT,
        Session {
            mtu: 1_280,
            ..session
        },
    );
    let (_, sent) = receive(&mut world, &packet);
    assert_error(&sent, &packet, icmp::PACKET_TOO_BIG, 1_280);
    assert_eq!(counted(&world, Counter::PacketTooBig), 2);
    assert_eq!(counted(&world, Counter::IcmpErrorSent), 3);
    assert_eq!(stats(&world, 0), [0, 0, 1, 1_492]);
    assert_eq!(counted(&world, Counter::ForwardedDownstream), 1);
}

#[test]
fn a_packet_of_another_workers_session_is_handed_over_unchanged() {
    let spec = Spec {
        workers: 2,
        ..Spec::default()
    };
    let (mut world, _) = world_of(spec, 2);
    let packet = udp6(HOST, (World::address6(1), 1), b"x");
    let buf = world.from_core6(&packet);
    let out = world.downstream(0, vec![buf.clone()], Origin::Port);
    assert_eq!(out, [(Verdict::HandOver { worker: 1 }, buf.clone())]);
    assert_eq!(world.counted(0), []);
    let (verdict, out) = world
        .downstream(1, vec![buf.clone()], Origin::HandedOver)
        .remove(0);
    assert_eq!(verdict, Verdict::Forward { port: 0 });
    assert_eq!(out.data(), to_subscriber(&world, 1, &hops(packet, 63)));
    let (verdict, _) = world.downstream(0, vec![buf], Origin::HandedOver).remove(0);
    assert_eq!(verdict, Verdict::Drop(Counter::HandoverStale));
}
