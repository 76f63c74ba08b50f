//! Downstream: bytes in, bytes or a named reason out.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod support;

use std::net::{Ipv4Addr, Ipv6Addr};

use bng_fastpath::testing::{
    Spec, TestBuf, World, assert_checksums, echo, echo6, ethernet, icmp_error, ipv4, pppoe_session,
    tcp, udp,
};
use bng_fastpath::{Origin, PacketBuf, Verdict};
use bng_shm::{Counter, Session, SessionState, SlotIndex, Vlans};
use bng_wire::ethernet::ethertype;
use bng_wire::l4::icmp_type::{TIME_EXCEEDED, UNREACHABLE};
use bng_wire::pppoe::protocol;
use bng_wire::{MacAddr, ipv4 as ip};

use support::{Way, edited, expect_drop};

const SLOT: SlotIndex = World::slot(0);
const INSIDE_PORT: u16 = 5_000;

/// A world, its session, and the public address and port of the mapping for UDP port [`INSIDE_PORT`].
fn world() -> (World, Session, (Ipv4Addr, u16)) {
    let mut world = World::new(Spec::default());
    let session = world.open(0);
    let outside = map(
        &mut world,
        &session,
        &udp((World::framed_ip(0), INSIDE_PORT), (World::HOST, 53), b""),
    );
    (world, session, outside)
}

/// Sends a packet upstream; the public address and port (or identifier) it leaves with.
fn map(world: &mut World, session: &Session, packet: &[u8]) -> (Ipv4Addr, u16) {
    let buf = World::from_subscriber(SLOT, session, packet);
    let (verdict, out) = world.upstream(0, vec![buf], Origin::Port).remove(0);
    assert_eq!(verdict, Verdict::Forward { port: 2 });
    let sent = &out.data()[14..];
    assert_checksums(sent);
    let at = if sent[9] == 1 { 24 } else { 20 };
    (
        ip::parse(sent).unwrap().src_addr(),
        u16::from_be_bytes([sent[at], sent[at + 1]]),
    )
}

/// One packet from the core; what the subscriber's port sends, or the other verdict.
fn deliver(world: &mut World, packet: &[u8]) -> Result<Vec<u8>, Verdict> {
    let buf = world.from_core(packet);
    match world.downstream(0, vec![buf], Origin::Port).remove(0) {
        (Verdict::Forward { port: 0 }, buf) => Ok(buf.data().to_vec()),
        (other, _) => Err(other),
    }
}

#[test]
fn a_packet_arrives_translated_inside_pppoe_with_the_sessions_tags() {
    let none = Vlans::default();
    let one = Vlans {
        s_vlan: Some(7),
        ..none
    };
    let two = Vlans {
        s_vlan: Some(7),
        c_vlan: Some(4_094),
        outer_is_88a8: true,
    };
    let two_8100 = Vlans {
        outer_is_88a8: false,
        ..two
    };
    for vlans in [none, one, two, two_8100] {
        let (mut world, session, outside) = world();
        let session = Session { vlans, ..session };
        world.update(SLOT, session);
        let packet = udp((World::HOST, 53), outside, b"answer");
        let mut buf = world.from_core(&packet);
        let mut padded = buf.data().to_vec();
        padded.extend([0xee; 12]);
        buf.refill(2, &padded);
        let (verdict, out) = world.downstream(0, vec![buf], Origin::Port).remove(0);
        assert_eq!(verdict, Verdict::Forward { port: 0 });
        let inside = edited(
            udp(
                (World::HOST, 53),
                (World::framed_ip(0), INSIDE_PORT),
                b"answer",
            ),
            8,
            63,
        );
        let expect = pppoe_session(
            World::client_mac(0),
            World::port_mac(0),
            &World::tags(&session),
            SLOT.session_id(),
            protocol::IPV4,
            &inside,
        );
        assert_eq!(out.data(), expect);
        let stats = world.publisher.session_stats(SLOT).unwrap();
        assert_eq!(
            (stats.down_packets, stats.down_bytes),
            (1, packet.len() as u64)
        );
        assert!(
            world
                .counted(0)
                .contains(&(Counter::ForwardedDownstream, 1))
        );
    }
}

#[test]
fn udp_without_a_checksum_stays_without_one() {
    let (mut world, session, outside) = world();
    let unchecked = |mut packet: Vec<u8>| {
        packet[26..28].fill(0);
        packet
    };
    let frame = deliver(
        &mut world,
        &unchecked(udp((World::HOST, 53), outside, b"x")),
    )
    .unwrap();
    assert_eq!(frame[30 + 26..30 + 28], [0, 0]);
    let up = unchecked(udp(
        (World::framed_ip(0), INSIDE_PORT),
        (World::HOST, 53),
        b"x",
    ));
    let buf = World::from_subscriber(SLOT, &session, &up);
    let (_, out) = world.upstream(0, vec![buf], Origin::Port).remove(0);
    assert_eq!(out.data()[14 + 26..14 + 28], [0, 0]);
}

#[test]
fn tcp_and_ping_come_back_to_their_senders() {
    let (mut world, session, _) = world();
    let me = World::framed_ip(0);
    let syn = map(
        &mut world,
        &session,
        &tcp((me, 4_000), (World::HOST, 80), 0x02, b""),
    );
    let frame = deliver(&mut world, &tcp((World::HOST, 80), syn, 0x12, b"")).unwrap();
    assert_eq!(
        frame[30..],
        edited(tcp((World::HOST, 80), (me, 4_000), 0x12, b""), 8, 63)
    );

    let ping = map(
        &mut world,
        &session,
        &echo(me, World::HOST, true, 99, b"data"),
    );
    let frame = deliver(
        &mut world,
        &echo(World::HOST, ping.0, false, ping.1, b"data"),
    )
    .unwrap();
    assert_eq!(
        frame[30..],
        edited(echo(World::HOST, me, false, 99, b"data"), 8, 63)
    );
}

#[test]
fn an_icmp_error_from_any_router_reaches_the_subscriber_translated_inside_and_out() {
    let (mut world, session, _) = world();
    let me = World::framed_ip(0);
    let router = Ipv4Addr::new(9, 9, 9, 9);
    let unchecked = |mut packet: Vec<u8>| {
        packet[26..28].fill(0);
        packet
    };
    let sent: [Vec<u8>; 4] = [
        udp((me, INSIDE_PORT), (World::HOST, 53), b"quoted in full"),
        unchecked(udp((me, INSIDE_PORT), (World::HOST, 53), b"")),
        tcp((me, 4_000), (World::HOST, 80), 0x10, b"segment"),
        echo(me, World::HOST, true, 321, b"ping"),
    ];
    for packet in sent {
        for (kind, quote) in [(TIME_EXCEEDED, packet.len()), (UNREACHABLE, 28)] {
            let buf = World::from_subscriber(SLOT, &session, &packet);
            let (_, out) = world.upstream(0, vec![buf], Origin::Port).remove(0);
            // The router quotes what it got, with the TTL it saw.
            let quoted = &edited(out.data()[14..].to_vec(), 8, 1)[..quote];
            let error = icmp_error(router, session.nat.unwrap().address, kind, quoted);
            let mappings = world.workers[0].nat_mappings();
            let frame = deliver(&mut world, &error).unwrap();
            let inside = edited(
                icmp_error(router, me, kind, &edited(packet.clone(), 8, 1)[..quote]),
                8,
                63,
            );
            assert_eq!(frame[30..], inside);
            assert_checksums(&frame[30..]);
            assert_eq!(world.workers[0].nat_mappings(), mappings);
        }
    }
}

#[test]
fn an_icmp_error_from_the_subscriber_goes_out_translated_inside_and_out() {
    let (mut world, session, outside) = world();
    let me = World::framed_ip(0);
    let packet = udp((World::HOST, 53), outside, b"nobody listens");
    let inside = deliver(&mut world, &packet).unwrap()[30..].to_vec();
    let error = icmp_error(me, World::HOST, UNREACHABLE, &inside);
    let buf = World::from_subscriber(SLOT, &session, &error);
    let (verdict, out) = world.upstream(0, vec![buf], Origin::Port).remove(0);
    assert_eq!(verdict, Verdict::Forward { port: 2 });
    let quoted = edited(packet, 8, 63);
    let expect = edited(
        icmp_error(outside.0, World::HOST, UNREACHABLE, &quoted),
        8,
        63,
    );
    assert_eq!(out.data()[14..], expect);
    assert_checksums(&out.data()[14..]);
}

#[test]
fn what_is_not_for_subscribers_is_the_kernels_unchanged() {
    let (mut world, ..) = world();
    let own = World::port_mac(2);
    let peer = World::NEXT_HOP;
    let ours = udp((World::HOST, 1), (Ipv4Addr::new(192, 0, 2, 1), 179), b"bgp");
    let with_options = {
        let mut p = ours.clone();
        p.splice(20..20, [1, 1, 1, 0]);
        p[3] += 4;
        edited(p, 0, 0x46)
    };
    let tagged = {
        let mut f = ethernet(own, peer, ethertype::VLAN, &[0, 5, 8, 0]);
        f.extend(&ours);
        f
    };
    let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    let ipv6_packet = echo6(link_local, link_local);
    let frames = [
        ethernet(MacAddr::BROADCAST, peer, ethertype::ARP, &[0; 28]),
        ethernet(own, peer, ethertype::ARP, &[0; 28]),
        ethernet(own, peer, ethertype::IPV6, &ipv6_packet),
        ethernet(
            MacAddr([1, 0, 0x5e, 0, 0, 5]),
            peer,
            ethertype::IPV4,
            &[0x45; 30],
        ),
        ethernet(MacAddr([1, 0x80, 0xc2, 0, 0, 0x0e]), peer, 0x88cc, b"lldp"),
        ethernet(own, peer, ethertype::IPV4, &ours),
        ethernet(own, peer, ethertype::IPV4, &with_options),
        tagged,
    ];
    for frame in frames {
        let buf = TestBuf::new(2, &frame);
        let out = world.downstream(0, vec![buf.clone()], Origin::Port);
        assert_eq!(out, [(Verdict::Host { port: 2 }, buf)]);
    }
}

#[test]
fn every_defect_has_its_own_reason() {
    let (mut world, session, outside) = world();
    let good = udp((World::HOST, 53), outside, b"answer");
    let frame = world.from_core(&good);
    let cut = |len: usize| TestBuf::new(2, &frame.data()[..len]);
    let other_mac = {
        let mut f = frame.data().to_vec();
        f[5] = 99;
        TestBuf::new(2, &f)
    };
    let cases = [
        ("empty", cut(0), Counter::FrameTruncated),
        ("cut in the header", cut(13), Counter::FrameTruncated),
        (
            "segmented",
            frame.clone().segmented(),
            Counter::FrameSegmented,
        ),
        ("other MAC", other_mac, Counter::NotForUs),
        (
            "access port",
            TestBuf::new(0, frame.data()),
            Counter::NotForUs,
        ),
        ("cut in IPv4", cut(33), Counter::Ipv4Truncated),
        ("cut in the payload", cut(47), Counter::Ipv4Truncated),
    ];
    for (name, buf, reason) in cases {
        expect_drop(name, &mut world, Way::Down, &buf, reason);
    }
    let mut tags = vec![0; 12];
    tags[..6].copy_from_slice(&World::port_mac(2).0);
    tags.extend([0x81, 0, 0, 1, 0x81, 0, 0, 1, 0x81, 0, 0, 1, 8, 0]);
    expect_drop(
        "three tags",
        &mut world,
        Way::Down,
        &TestBuf::new(2, &tags),
        Counter::TooManyTags,
    );

    let (address, port) = outside;
    let bad_checksum = {
        let mut p = good.clone();
        p[10] ^= 0x10;
        p
    };
    let options = {
        let mut p = good.clone();
        p.splice(20..20, [1, 1, 1, 0]);
        p[3] += 4;
        edited(p, 0, 0x46)
    };
    let quoted = |port| udp((address, port), (World::HOST, 53), b"");
    let error = |quoted: &[u8]| icmp_error(World::HOST, address, UNREACHABLE, quoted);
    let bad_error = {
        let mut p = error(&quoted(port));
        p[50] ^= 1;
        p
    };
    let bad_quote = {
        let mut q = quoted(port);
        q[10] ^= 1;
        error(&q)
    };
    let redirect = ipv4(World::HOST, address, 1, &[5, 0, 0xfa, 0xff, 0, 0, 0, 0]);
    let packets: Vec<(&str, Vec<u8>, Counter)> = vec![
        (
            "version 6",
            edited(good.clone(), 0, 0x65),
            Counter::Ipv4Header,
        ),
        (
            "total length 19",
            edited(good.clone(), 3, 19),
            Counter::Ipv4Header,
        ),
        ("checksum", bad_checksum, Counter::Ipv4Checksum),
        ("options", options, Counter::Ipv4Options),
        (
            "private destination",
            udp((World::HOST, 1), (World::framed_ip(0), 1), b""),
            Counter::DestinationSubscriber,
        ),
        (
            "free port",
            udp((World::HOST, 53), (address, port ^ 1), b""),
            Counter::NatNoMapping,
        ),
        (
            "TCP on a UDP port",
            tcp((World::HOST, 53), (address, port), 2, b""),
            Counter::NatNoMapping,
        ),
        (
            "last port",
            udp((World::HOST, 53), (address, 65_535), b""),
            Counter::NatNoMapping,
        ),
        (
            "other address",
            udp(
                (World::HOST, 53),
                (Ipv4Addr::new(203, 0, 113, 3), port),
                b"",
            ),
            Counter::NatNoMapping,
        ),
        ("TTL 1", edited(good.clone(), 8, 1), Counter::TtlExpired),
        (
            "GRE",
            ipv4(World::HOST, address, 47, &[0; 8]),
            Counter::NatProtocol,
        ),
        (
            "cut UDP",
            ipv4(World::HOST, address, 17, &[0; 7]),
            Counter::L4Truncated,
        ),
        (
            "UDP length",
            edited(
                {
                    let mut p = good.clone();
                    p[25] = 99;
                    p
                },
                8,
                64,
            ),
            Counter::UdpLength,
        ),
        (
            "ping from outside",
            echo(World::HOST, address, true, port, b""),
            Counter::NatIcmpUnsupported,
        ),
        ("redirect", redirect, Counter::NatIcmpUnsupported),
        ("error, wrong checksum", bad_error, Counter::IcmpChecksum),
        (
            "error, quoted header corrupt",
            bad_quote,
            Counter::NatIcmpEmbedded,
        ),
        (
            "error, quote too short",
            error(&quoted(port)[..27]),
            Counter::NatIcmpEmbedded,
        ),
        ("error, no quote", error(&[]), Counter::NatIcmpEmbedded),
        (
            "error about a free port",
            error(&quoted(port ^ 1)),
            Counter::NatIcmpEmbedded,
        ),
        (
            "error about GRE",
            error(&ipv4(address, World::HOST, 47, &[0; 8])),
            Counter::NatIcmpEmbedded,
        ),
        (
            "error about a later fragment",
            error(&edited(quoted(port), 7, 9)),
            Counter::NatIcmpEmbedded,
        ),
        (
            "error about another source",
            error(&udp((World::HOST, port), (World::HOST, 1), b"")),
            Counter::NatIcmpEmbedded,
        ),
        (
            "fragmented error",
            edited(error(&quoted(port)), 6, 0x20),
            Counter::FragmentUnsupported,
        ),
        (
            "too big for the session",
            edited(udp((World::HOST, 53), outside, &[0; 1_465]), 6, 0x40),
            Counter::PacketTooBig,
        ),
        (
            "unowned routed address",
            udp((World::HOST, 1), (Ipv4Addr::new(198, 51, 100, 77), 1), b""),
            Counter::SessionUnknown,
        ),
    ];
    for (name, packet, reason) in packets {
        let buf = world.from_core(&packet);
        expect_drop(name, &mut world, Way::Down, &buf, reason);
    }
    let tight = TestBuf::with_headroom(2, frame.data(), 15);
    expect_drop(
        "headroom",
        &mut world,
        Way::Down,
        &tight,
        Counter::HeadroomMissing,
    );
    let enough = TestBuf::with_headroom(2, frame.data(), 16);
    assert_eq!(
        world.downstream(0, vec![enough], Origin::Port)[0].0,
        Verdict::Forward { port: 0 }
    );

    world.update(
        SLOT,
        Session {
            state: SessionState::Negotiating,
            ..session
        },
    );
    expect_drop(
        "not open",
        &mut world,
        Way::Down,
        &frame,
        Counter::SessionNotOpen,
    );
    world.update(SLOT, session);
    assert!(deliver(&mut world, &good).is_ok());
    world.publisher.withdraw_session(SLOT).unwrap();
    expect_drop(
        "withdrawn",
        &mut world,
        Way::Down,
        &frame,
        Counter::NatNoMapping,
    );
    world.publisher.free_session(SLOT).unwrap();
    expect_drop(
        "freed",
        &mut world,
        Way::Down,
        &frame,
        Counter::NatNoMapping,
    );
    // The next session in the slot has the same block, but not the old mapping.
    world.open(0);
    expect_drop(
        "next session",
        &mut world,
        Way::Down,
        &frame,
        Counter::NatNoMapping,
    );
}

#[test]
fn a_first_fragment_is_translated() {
    let (mut world, session, outside) = world();
    // The first half of a datagram: lengths and checksum are those of the whole.
    let whole = |src, dst| udp(src, dst, &[7; 64]);
    let first = |packet: Vec<u8>| {
        let mut half = packet[..60].to_vec();
        half[3] = 60;
        edited(half, 6, 0x20)
    };
    let me = (World::framed_ip(0), INSIDE_PORT);
    let server = (World::HOST, 53);
    let frame = deliver(&mut world, &first(whole(server, outside))).unwrap();
    assert_eq!(frame[30..], edited(first(whole(server, me)), 8, 63));
    let buf = World::from_subscriber(SLOT, &session, &first(whole(me, server)));
    let (verdict, out) = world.upstream(0, vec![buf], Origin::Port).remove(0);
    assert_eq!(verdict, Verdict::Forward { port: 2 });
    // Its identification is one that no other subscriber behind the address has.
    let sent = &out.data()[14..];
    let expect = edited(first(whole(outside, server)), 8, 63);
    assert_eq!(*sent, edited(edited(expect, 4, sent[4]), 5, sent[5]));
}

#[test]
fn a_routed_subscriber_gets_any_packet_untranslated() {
    let mut world = World::new(Spec::default());
    let framed_ip = Ipv4Addr::new(198, 51, 100, 20);
    let session = Session {
        nat: None,
        framed_ip,
        ..world.session(0)
    };
    let session = world.publish(SLOT, session);
    for packet in [
        udp((World::HOST, 5), (framed_ip, 5), b"x"),
        ipv4(World::HOST, framed_ip, 47, &[1; 30]),
    ] {
        let frame = deliver(&mut world, &packet).unwrap();
        assert_eq!(frame[30..], edited(packet, 8, 63));
    }
    let buf = world.from_core(&udp((World::HOST, 5), (framed_ip, 5), b"x"));
    // The owner word of an earlier session does not lead to a later one with another address.
    world.update(
        SLOT,
        Session {
            framed_ip: Ipv4Addr::new(198, 51, 100, 21),
            ..session
        },
    );
    expect_drop(
        "other address",
        &mut world,
        Way::Down,
        &buf,
        Counter::SessionUnknown,
    );
    world.update(SLOT, session);
    world.close(SLOT);
    expect_drop(
        "closed",
        &mut world,
        Way::Down,
        &buf,
        Counter::SessionUnknown,
    );
    world.publish(
        SLOT,
        Session {
            framed_ip: Ipv4Addr::new(198, 51, 100, 30),
            ..session
        },
    );
    expect_drop(
        "later session",
        &mut world,
        Way::Down,
        &buf,
        Counter::SessionUnknown,
    );
}
