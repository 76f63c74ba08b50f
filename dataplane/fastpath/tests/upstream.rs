//! Upstream: bytes in, bytes or a named reason out.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::net::Ipv4Addr;

use bng_fastpath::testing::{
    Spec, TestBuf, World, assert_checksums, echo, ethernet, icmp_error, ipv4, pppoe_discovery,
    pppoe_session, tcp, udp,
};
use bng_fastpath::{Origin, PacketBuf, Punt, Verdict};
use bng_shm::{Counter, Event, RangeKind, Session, SessionState, SlotIndex, Vlans};
use bng_wire::ethernet::{EthFrame, ethertype};
use bng_wire::pppoe::{code, protocol};
use bng_wire::{MacAddr, VlanStack, VlanTag, ipv4 as ip};

const SLOT: SlotIndex = World::slot(0);

fn world() -> (World, Session) {
    let mut world = World::new(Spec::default());
    let session = world.open(0);
    (world, session)
}

fn good_packet() -> Vec<u8> {
    udp((World::framed_ip(0), 5_000), (World::HOST, 53), b"question")
}

/// The packet with its TTL, or another header byte, replaced and the header checksum right again.
fn edited(mut packet: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    packet[at] = value;
    packet[10..12].fill(0);
    let len = (usize::from(packet[0] & 15) * 4).min(packet.len());
    let check = bng_wire::checksum::checksum(&packet[..len]);
    packet[10..12].copy_from_slice(&check.to_be_bytes());
    packet
}

/// Sends `copies` of a frame and expects each to be dropped for `reason`, and nothing else to have happened.
fn expect_drop(name: &str, world: &mut World, buf: &TestBuf, reason: Counter) {
    let copies = 3;
    let before = world.counted(0);
    let of = |counts: &[(Counter, u64)]| counts.iter().find(|c| c.0 == reason).map_or(0, |c| c.1);
    let stats = world.publisher.session_stats(SLOT);
    let mappings = world.workers[0].nat_mappings();
    let out = world.upstream(0, vec![buf.clone(); copies], Origin::Port);
    for (verdict, _) in &out {
        assert_eq!(*verdict, Verdict::Drop(reason), "{name}");
    }
    let mut after = world.counted(0);
    assert_eq!(
        of(&after),
        of(&before) + copies as u64,
        "{name}: counted once each"
    );
    after.retain(|c| c.0 != reason);
    let others: Vec<_> = before.into_iter().filter(|c| c.0 != reason).collect();
    assert_eq!(after, others, "{name}: nothing else counted");
    assert_eq!(
        world.publisher.session_stats(SLOT),
        stats,
        "{name}: no session counter moved"
    );
    assert_eq!(
        world.workers[0].nat_mappings(),
        mappings,
        "{name}: no mapping made"
    );
    assert_eq!(world.events(0), [], "{name}: no event");
}

#[test]
fn a_packet_leaves_translated_with_a_plain_ethernet_header_and_right_checksums() {
    let tagged = |vlans| move |session: Session| Session { vlans, ..session };
    let none = Vlans::default();
    let one = Vlans {
        s_vlan: Some(7),
        ..none
    };
    let two = Vlans {
        s_vlan: Some(7),
        c_vlan: Some(0),
        outer_is_88a8: true,
    };
    for vlans in [none, one, two] {
        let mut world = World::new(Spec::default());
        let session = tagged(vlans)(world.session(0));
        let session = world.publish(SLOT, session);
        let packet = good_packet();
        let mut buf = World::from_subscriber(SLOT, &session, &packet);
        // Ethernet padding behind the PPPoE length must not come out again.
        let mut padded = buf.data().to_vec();
        padded.extend([0xee; 9]);
        buf.refill(0, &padded);
        let (verdict, out) = world.upstream(0, vec![buf], Origin::Port).remove(0);
        assert_eq!(verdict, Verdict::Forward { port: 2 });

        let frame = bng_wire::ethernet::parse(out.data()).unwrap();
        let expect = EthFrame {
            dst: World::NEXT_HOP,
            src: World::port_mac(2),
            tags: VlanStack::UNTAGGED,
            ethertype: ethertype::IPV4,
            payload: 14,
        };
        assert_eq!(frame, expect);
        let sent = &out.data()[14..];
        assert_eq!(sent.len(), packet.len());
        assert_checksums(sent);
        let header = ip::parse(sent).unwrap();
        let block = session.nat.unwrap();
        assert_eq!(header.src_addr(), block.address);
        assert_eq!((header.dst_addr(), header.ttl), (World::HOST, 63));
        let port = u16::from_be_bytes([sent[20], sent[21]]);
        assert!((block.first_port..block.first_port + block.size).contains(&port));
        assert_eq!(
            sent[22..26],
            packet[22..26],
            "destination port and length stay"
        );
        assert_eq!(&sent[28..], b"question");

        let stats = world.publisher.session_stats(SLOT).unwrap();
        assert_eq!((stats.up_packets, stats.up_bytes), (1, packet.len() as u64));
        assert_eq!((stats.last_up_ms, stats.down_packets), (world.now_ms, 0));
        let counted = [
            (Counter::ForwardedUpstream, 1),
            (Counter::NatMappingCreated, 1),
        ];
        assert_eq!(world.counted(0), counted);
    }
}

#[test]
fn every_defect_of_the_link_layer_and_of_pppoe_has_its_own_reason() {
    let (mut world, session) = world();
    let good = World::from_subscriber(SLOT, &session, &good_packet());
    let edit = |at: usize, value: u8| {
        let mut frame = good.data().to_vec();
        frame[at] = value;
        TestBuf::new(0, &frame)
    };
    let cut = |len: usize| TestBuf::new(0, &good.data()[..len]);
    // Two tags: the PPPoE header starts at 22, the PPP protocol at 28.
    let short = |len: u8| edit(27, len);
    let cases = [
        ("empty", TestBuf::new(0, &[]), Counter::FrameTruncated),
        ("cut in the header", cut(13), Counter::FrameTruncated),
        ("cut in the second tag", cut(21), Counter::FrameTruncated),
        (
            "segmented",
            good.clone().segmented(),
            Counter::FrameSegmented,
        ),
        ("other MAC", edit(5, 9), Counter::NotForUs),
        ("core port", TestBuf::new(2, good.data()), Counter::NotForUs),
        (
            "no such port",
            TestBuf::new(77, good.data()),
            Counter::NotForUs,
        ),
        ("IPv4 beside PPPoE", edit(21, 0), Counter::NotPppoe),
        ("cut in PPPoE", cut(27), Counter::PppoeTruncated),
        ("version 2", edit(22, 0x21), Counter::PppoeVersion),
        ("code 9", edit(23, 9), Counter::PppoeCode),
        (
            "length 0",
            {
                let mut b = short(0).data().to_vec();
                b[26] = 0;
                TestBuf::new(0, &b)
            },
            Counter::PppoeLengthZero,
        ),
        (
            "length 1",
            {
                let mut b = short(1).data().to_vec();
                b[26] = 0;
                TestBuf::new(0, &b)
            },
            Counter::PppoeLengthOne,
        ),
        ("length beyond the frame", cut(60), Counter::PppoeLengthLong),
        (
            "compressed protocol",
            edit(28, 0x21),
            Counter::PppProtocolCompressed,
        ),
    ];
    for (name, buf, reason) in cases {
        expect_drop(name, &mut world, &buf, reason);
    }
    let mut three = vec![0; 12];
    three.extend([0x81, 0, 0, 1, 0x81, 0, 0, 1, 0x81, 0, 0, 1, 0x88, 0x64]);
    expect_drop(
        "three tags",
        &mut world,
        &TestBuf::new(0, &three),
        Counter::TooManyTags,
    );
    let mac = World::port_mac(0);
    let arp = ethernet(
        MacAddr::BROADCAST,
        World::client_mac(0),
        ethertype::ARP,
        &[0; 28],
    );
    expect_drop("ARP", &mut world, &TestBuf::new(0, &arp), Counter::NotPppoe);
    let mut padi = pppoe_discovery(
        mac,
        World::client_mac(0),
        &VlanStack::UNTAGGED,
        code::PADR,
        &[1; 4],
    );
    padi[19] = 5;
    expect_drop(
        "discovery length",
        &mut world,
        &TestBuf::new(0, &padi),
        Counter::PppoeLengthLong,
    );
    padi[14] = 0x12;
    expect_drop(
        "discovery type",
        &mut world,
        &TestBuf::new(0, &padi),
        Counter::PppoeVersion,
    );
    padi.truncate(16);
    expect_drop(
        "discovery cut",
        &mut world,
        &TestBuf::new(0, &padi),
        Counter::PppoeTruncated,
    );
    padi[5] = 77;
    expect_drop(
        "discovery for another",
        &mut world,
        &TestBuf::new(0, &padi),
        Counter::NotForUs,
    );
}

#[test]
fn every_defect_of_the_packet_has_its_own_reason() {
    let (mut world, session) = world();
    let me = World::framed_ip(0);
    let good = good_packet();
    let fragment = |offset: u8| edited(edited(good.clone(), 7, offset), 6, 0x20);
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
    let udp_length = {
        let mut p = good.clone();
        p[25] = 200;
        p
    };
    let dst = |to: [u8; 4]| udp((me, 5_000), (to.into(), 53), b"");
    let to_gateway = udp((me, 5_000), (World::GATEWAY, 53), b"");
    let bad_echo = {
        let mut p = echo(me, World::GATEWAY, true, 1, b"x");
        p[28] ^= 1;
        p
    };
    let cases: Vec<(&str, Vec<u8>, Counter)> = vec![
        ("empty", vec![], Counter::Ipv4Truncated),
        (
            "cut in the header",
            good[..19].to_vec(),
            Counter::Ipv4Truncated,
        ),
        (
            "cut in the payload",
            good[..35].to_vec(),
            Counter::Ipv4Truncated,
        ),
        (
            "version 6",
            edited(good.clone(), 0, 0x65),
            Counter::Ipv4Header,
        ),
        (
            "header of 16 bytes",
            edited(good.clone(), 0, 0x44),
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
            "foreign source",
            udp((World::framed_ip(1), 1), (World::HOST, 1), b""),
            Counter::SourceSpoofed,
        ),
        (
            "gateway as source",
            udp((World::GATEWAY, 1), (World::HOST, 1), b""),
            Counter::SourceSpoofed,
        ),
        (
            "UDP to the gateway",
            to_gateway,
            Counter::DestinationGateway,
        ),
        (
            "echo reply to the gateway",
            echo(me, World::GATEWAY, false, 1, b""),
            Counter::DestinationGateway,
        ),
        (
            "fragment to the gateway",
            edited(echo(me, World::GATEWAY, true, 1, b""), 6, 0x20),
            Counter::DestinationGateway,
        ),
        (
            "echo with a wrong checksum",
            bad_echo,
            Counter::IcmpChecksum,
        ),
        (
            "cut echo",
            ipv4(me, World::GATEWAY, 1, &[8, 0, 0]),
            Counter::L4Truncated,
        ),
        (
            "multicast",
            dst([224, 0, 0, 5]),
            Counter::DestinationInvalid,
        ),
        (
            "broadcast",
            dst([255, 255, 255, 255]),
            Counter::DestinationInvalid,
        ),
        ("loopback", dst([127, 0, 0, 1]), Counter::DestinationInvalid),
        (
            "this network",
            dst([0, 1, 2, 3]),
            Counter::DestinationInvalid,
        ),
        (
            "another subscriber",
            dst([100, 64, 9, 9]),
            Counter::DestinationSubscriber,
        ),
        (
            "routed subscriber",
            dst([198, 51, 100, 9]),
            Counter::DestinationSubscriber,
        ),
        (
            "NAT pool",
            dst([203, 0, 113, 1]),
            Counter::DestinationSubscriber,
        ),
        ("TTL 1", edited(good.clone(), 8, 1), Counter::TtlExpired),
        ("TTL 0", edited(good.clone(), 8, 0), Counter::TtlExpired),
        ("no route", dst([10, 6, 0, 1]), Counter::NoRoute),
        ("blackhole", dst([10, 4, 0, 1]), Counter::RouteBlackhole),
        (
            "address of ours",
            dst([10, 5, 0, 5]),
            Counter::DestinationGateway,
        ),
        ("later fragment", fragment(9), Counter::FragmentUnsupported),
        (
            "GRE",
            ipv4(me, World::HOST, 47, &[0; 8]),
            Counter::NatProtocol,
        ),
        (
            "cut UDP",
            ipv4(me, World::HOST, 17, &[0; 7]),
            Counter::L4Truncated,
        ),
        (
            "cut TCP",
            ipv4(me, World::HOST, 6, &[0; 19]),
            Counter::L4Truncated,
        ),
        (
            "TCP offset",
            ipv4(me, World::HOST, 6, &[0; 20]),
            Counter::L4Truncated,
        ),
        ("UDP length", udp_length, Counter::UdpLength),
        (
            "echo reply nobody asked for",
            echo(me, World::HOST, false, 1, b""),
            Counter::NatIcmpUnsupported,
        ),
        (
            "ICMP redirect",
            ipv4(me, World::HOST, 1, &[5, 0, 0xfa, 0xff, 0, 0, 0, 0]),
            Counter::NatIcmpUnsupported,
        ),
        (
            "error about nothing",
            icmp_error(
                me,
                World::HOST,
                3,
                &udp((World::HOST, 53), (me, 4_999), b""),
            ),
            Counter::NatIcmpEmbedded,
        ),
        (
            "error with half a quote",
            icmp_error(
                me,
                World::HOST,
                3,
                &udp((World::HOST, 53), (me, 5_000), b"")[..27],
            ),
            Counter::NatIcmpEmbedded,
        ),
        (
            "error about another host",
            icmp_error(
                me,
                World::HOST,
                3,
                &udp((World::HOST, 53), (World::framed_ip(1), 1), b""),
            ),
            Counter::NatIcmpEmbedded,
        ),
    ];
    for (name, packet, reason) in cases {
        let buf = World::from_subscriber(SLOT, &session, &packet);
        expect_drop(name, &mut world, &buf, reason);
    }
    // Larger than the core port's MTU, which the PPPoE link could carry when its MRU is larger.
    let big = udp((me, 1), (World::HOST, 1), &[0; 1_473]);
    expect_drop(
        "too big",
        &mut world,
        &World::from_subscriber(SLOT, &session, &big),
        Counter::PacketTooBig,
    );
    let ipv6 = World::ppp_frame(SLOT, &session, protocol::IPV6, &[0x60; 40]);
    expect_drop("IPv6", &mut world, &ipv6, Counter::PppProtocolUnsupported);
}

#[test]
fn a_frame_of_no_session_or_with_a_wrong_identity_is_unknown() {
    let (mut world, session) = world();
    let packet = good_packet();
    let frame = |session: &Session, slot| World::from_subscriber(slot, session, &packet);
    let vlans = session.vlans;
    let with = |vlans| Session { vlans, ..session };
    let cases = [
        ("other session id", frame(&session, SlotIndex::new(0, 2))),
        ("session id 0", frame(&session, SlotIndex::new(0, 0))),
        (
            "session id 65535",
            frame(&session, SlotIndex::new(0, 0xffff)),
        ),
        (
            "same id on another port",
            frame(&session, SlotIndex::new(1, 1)),
        ),
        (
            "other MAC",
            frame(
                &Session {
                    client_mac: [2; 6],
                    ..session
                },
                SLOT,
            ),
        ),
        (
            "other S-VLAN",
            frame(
                &with(Vlans {
                    s_vlan: Some(101),
                    ..vlans
                }),
                SLOT,
            ),
        ),
        (
            "other C-VLAN",
            frame(
                &with(Vlans {
                    c_vlan: Some(99),
                    ..vlans
                }),
                SLOT,
            ),
        ),
        (
            "no C-VLAN",
            frame(
                &with(Vlans {
                    c_vlan: None,
                    ..vlans
                }),
                SLOT,
            ),
        ),
        ("no tag", frame(&with(Vlans::default()), SLOT)),
    ];
    for (name, buf) in &cases {
        expect_drop(name, &mut world, buf, Counter::SessionUnknown);
    }
    let priority = Vlans {
        c_vlan: None,
        s_vlan: None,
        ..vlans
    };
    world.update(SLOT, with(priority));
    let zero_tag = with(Vlans {
        s_vlan: Some(0),
        ..priority
    });
    expect_drop(
        "priority tag",
        &mut world,
        &frame(&zero_tag, SLOT),
        Counter::SessionUnknown,
    );
    world.publisher.withdraw_session(SLOT).unwrap();
    expect_drop(
        "withdrawn",
        &mut world,
        &frame(&with(priority), SLOT),
        Counter::SessionUnknown,
    );
    world.publisher.free_session(SLOT).unwrap();
    expect_drop(
        "freed",
        &mut world,
        &frame(&with(priority), SLOT),
        Counter::SessionUnknown,
    );
}

#[test]
fn equal_session_ids_on_two_ports_are_two_sessions() {
    let mut world = World::new(Spec::default());
    let first = world.open(0);
    let other_slot = SlotIndex::new(1, SLOT.session_id());
    let second = world.session(7);
    let second = world.publish(other_slot, second);
    let packet = |session: &Session| udp((session.framed_ip, 9), (World::HOST, 9), b"");
    let bufs = vec![
        World::from_subscriber(SLOT, &first, &packet(&first)),
        World::from_subscriber(other_slot, &second, &packet(&second)),
        // The first session's packet through the second one's port.
        World::from_subscriber(other_slot, &second, &packet(&first)),
    ];
    let out = world.upstream(0, bufs, Origin::Port);
    let source = |at: usize| ip::parse(&out[at].1.data()[14..]).unwrap().src_addr();
    assert_eq!(out[0].0, Verdict::Forward { port: 2 });
    assert_eq!(out[1].0, Verdict::Forward { port: 2 });
    assert_eq!(out[2].0, Verdict::Drop(Counter::SourceSpoofed));
    assert_eq!(
        (source(0), source(1)),
        (first.nat.unwrap().address, second.nat.unwrap().address)
    );
    let packets = |slot| world.publisher.session_stats(slot).unwrap().up_packets;
    assert_eq!((packets(SLOT), packets(other_slot)), (1, 1));
}

#[test]
fn control_frames_are_punted_unchanged_and_in_every_live_state() {
    for state in [SessionState::Negotiating, SessionState::Forwarding] {
        let mut world = World::new(Spec::default());
        let session = Session {
            state,
            ..world.session(0)
        };
        let session = world.publish(SLOT, session);
        let protocols = [
            protocol::LCP,
            protocol::PAP,
            protocol::CHAP,
            protocol::IPCP,
            protocol::IPV6CP,
            protocol::CCP,
            protocol::VJ_COMPRESSED,
            0x4242,
        ];
        let bufs: Vec<_> = protocols
            .iter()
            .map(|p| World::ppp_frame(SLOT, &session, *p, b"\x09\x01\0\x08abcd"))
            .collect();
        let punt = Punt::Ppp {
            slot: SLOT,
            generation: session.generation,
        };
        for (at, (verdict, buf)) in world
            .upstream(0, bufs.clone(), Origin::Port)
            .iter()
            .enumerate()
        {
            assert_eq!(*verdict, Verdict::Punt(punt));
            assert_eq!(*buf, bufs[at]);
        }
        let stats = world.publisher.session_stats(SLOT).unwrap();
        assert_eq!((stats.up_packets, stats.last_up_ms), (0, world.now_ms));
        assert_eq!(world.counted(0), [], "the caller counts what the ring took");
    }
}

#[test]
fn discovery_to_us_or_to_everybody_is_punted_unchanged() {
    let mut world = World::new(Spec::default());
    let client = World::client_mac(5);
    let tag = |tpid, tci| VlanTag { tpid, tci };
    let stacks = [
        VlanStack::UNTAGGED,
        VlanStack::single(tag(ethertype::VLAN, 5)),
        VlanStack::double(tag(ethertype::QINQ, 5), tag(ethertype::VLAN, 6)),
    ];
    for tags in stacks {
        for dst in [MacAddr::BROADCAST, World::port_mac(0)] {
            let buf = TestBuf::new(
                0,
                &pppoe_discovery(dst, client, &tags, code::PADI, &[1, 1, 0, 0]),
            );
            let out = world.upstream(0, vec![buf.clone()], Origin::Port);
            assert_eq!(out, [(Verdict::Punt(Punt::Discovery), buf)]);
        }
    }
}

#[test]
fn data_before_the_network_phase_is_not_open() {
    let mut world = World::new(Spec::default());
    let session = Session {
        state: SessionState::Negotiating,
        ..world.session(0)
    };
    let session = world.publish(SLOT, session);
    let good = World::from_subscriber(SLOT, &session, &good_packet());
    expect_drop("IPv4", &mut world, &good, Counter::SessionNotOpen);
    let malformed = World::from_subscriber(SLOT, &session, &[0x45; 3]);
    expect_drop(
        "malformed IPv4",
        &mut world,
        &malformed,
        Counter::SessionNotOpen,
    );
    let ipv6 = World::ppp_frame(SLOT, &session, protocol::IPV6, &[0x60; 40]);
    expect_drop("IPv6", &mut world, &ipv6, Counter::SessionNotOpen);
    world.update(
        SLOT,
        Session {
            state: SessionState::Forwarding,
            ..session
        },
    );
    assert_eq!(
        world.upstream(0, vec![good], Origin::Port)[0].0,
        Verdict::Forward { port: 2 }
    );
}

#[test]
fn the_gateway_answers_its_pings_at_the_configured_rate() {
    let (mut world, session) = world();
    let me = World::framed_ip(0);
    let request = edited(echo(me, World::GATEWAY, true, 77, b"payload"), 8, 1);
    let buf = World::from_subscriber(SLOT, &session, &request);
    let out = world.upstream(0, vec![buf; 12], Origin::Port);
    let reply = echo(World::GATEWAY, me, false, 77, b"payload");
    let expect = pppoe_session(
        MacAddr(session.client_mac),
        World::port_mac(0),
        &World::tags(&session),
        1,
        protocol::IPV4,
        &reply,
    );
    for (verdict, buf) in &out[..10] {
        assert_eq!(*verdict, Verdict::Forward { port: 0 });
        assert_eq!(buf.data(), expect);
    }
    for (verdict, _) in &out[10..] {
        assert_eq!(*verdict, Verdict::Drop(Counter::EchoRateLimited));
    }
    assert_eq!(
        world.counted(0),
        [(Counter::EchoAnswered, 10), (Counter::EchoRateLimited, 2)]
    );
    let stats = world.publisher.session_stats(SLOT).unwrap();
    assert_eq!((stats.up_packets, stats.down_packets), (10, 10));
}

#[test]
fn an_unresolved_next_hop_is_asked_for_once_a_second() {
    let (mut world, session) = world();
    let to = |dst: [u8; 4]| {
        World::from_subscriber(
            SLOT,
            &session,
            &udp((World::framed_ip(0), 5), (dst.into(), 5), b""),
        )
    };
    let bufs = vec![to([192, 0, 2, 9]), to([192, 0, 2, 9]), to([10, 3, 0, 1])];
    for (verdict, _) in world.upstream(0, bufs.clone(), Origin::Port) {
        assert_eq!(verdict, Verdict::Drop(Counter::NeighbourUnresolved));
    }
    let ask = |address: [u8; 4]| Event::ResolveNeighbour {
        port: 3,
        address: Ipv4Addr::from(address),
    };
    // The connected destination itself, and the gateway of the other route.
    assert_eq!(world.events(0), [ask([192, 0, 2, 9]), ask([192, 0, 2, 3])]);
    world.pass(500, 100);
    world.upstream(0, bufs.clone(), Origin::Port);
    assert_eq!(world.events(0), []);
    world.pass(600, 100);
    world.upstream(0, bufs, Origin::Port);
    assert_eq!(world.events(0).len(), 2);
    assert_eq!(
        world.workers[0].nat_mappings(),
        0,
        "what cannot leave makes no mapping"
    );
    assert_eq!(
        world.counted(0),
        [
            (Counter::ResolveRequested, 4),
            (Counter::NeighbourUnresolved, 9)
        ]
    );
    // A scan of the connected network is bounded.
    world.pass(2_000, 1_000);
    let scan = (1..=200).map(|host| to([192, 0, 2, host])).collect();
    world.upstream(0, scan, Origin::Port);
    assert_eq!(world.events(0).len(), 10);
}

#[test]
fn a_routed_subscriber_is_not_translated() {
    let mut world = World::new(Spec::default());
    let framed_ip = Ipv4Addr::new(198, 51, 100, 20);
    let session = Session {
        nat: None,
        framed_ip,
        ..world.session(0)
    };
    let session = world.publish(SLOT, session);
    // No transport knowledge is needed, so any protocol and any fragment passes.
    for packet in [
        udp((framed_ip, 5), (World::HOST, 5), b"x"),
        edited(ipv4(framed_ip, World::HOST, 47, &[1; 30]), 7, 9),
    ] {
        let buf = World::from_subscriber(SLOT, &session, &packet);
        let (verdict, out) = world.upstream(0, vec![buf], Origin::Port).remove(0);
        assert_eq!(verdict, Verdict::Forward { port: 2 });
        assert_eq!(out.data()[14..], edited(packet, 8, 63));
    }
    assert_eq!(world.workers[0].nat_mappings(), 0);
}

#[test]
fn a_private_address_without_a_port_block_does_not_leak() {
    let (mut world, session) = world();
    world.update(
        SLOT,
        Session {
            nat: None,
            ..session
        },
    );
    let buf = World::from_subscriber(SLOT, &session, &good_packet());
    expect_drop("no block", &mut world, &buf, Counter::NatNone);
    let kinds: Vec<_> = world
        .publisher
        .pool_ranges()
        .iter()
        .map(|range| range.kind)
        .collect();
    assert_eq!(
        kinds,
        [RangeKind::Nat, RangeKind::Subscriber, RangeKind::Routed]
    );
}

#[test]
fn a_burst_of_any_length_keeps_verdicts_with_their_buffers() {
    let (mut world, session) = world();
    let me = World::framed_ip(0);
    let good = |n: u16| {
        World::from_subscriber(SLOT, &session, &tcp((me, 5_000), (World::HOST, n), 2, b""))
    };
    let bad = World::from_subscriber(
        SLOT,
        &session,
        &udp((World::HOST, 5), (World::HOST, 5), b""),
    );
    let lcp = World::ppp_frame(SLOT, &session, protocol::LCP, b"....");
    let bufs: Vec<_> = (0..100)
        .map(|n: u16| match n % 3 {
            0 => good(n),
            1 => bad.clone(),
            _ => lcp.clone(),
        })
        .collect();
    for (n, (verdict, buf)) in world
        .upstream(0, bufs, Origin::Port)
        .into_iter()
        .enumerate()
    {
        match (n % 3, verdict) {
            (0, Verdict::Forward { port: 2 }) => {
                assert_eq!(buf.data()[36..38], (n as u16).to_be_bytes());
            }
            (1, Verdict::Drop(Counter::SourceSpoofed)) | (2, Verdict::Punt(Punt::Ppp { .. })) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(world.upstream(0, vec![], Origin::Port), []);
}
