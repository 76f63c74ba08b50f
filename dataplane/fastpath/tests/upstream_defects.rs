//! Upstream: everything that is dropped, each defect for its own reason.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod support;

use bng_fastpath::PacketBuf;
use bng_fastpath::testing::{
    Spec, TestBuf, World, echo, ethernet, icmp_error, ipv4, pppoe_discovery, udp,
};
use bng_shm::{Counter, Session, SlotIndex, Vlans};
use bng_wire::ethernet::ethertype;
use bng_wire::pppoe::code;
use bng_wire::{MacAddr, VlanStack};
use support::{Way, edited, expect_drop};

const SLOT: SlotIndex = World::slot(0);

fn world() -> (World, Session) {
    let mut world = World::new(Spec::default());
    let session = world.open(0);
    (world, session)
}

fn good_packet() -> Vec<u8> {
    udp((World::framed_ip(0), 5_000), (World::HOST, 53), b"question")
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
        expect_drop(name, &mut world, Way::Up, &buf, reason);
    }
    let mut three = vec![0; 12];
    three.extend([0x81, 0, 0, 1, 0x81, 0, 0, 1, 0x81, 0, 0, 1, 0x88, 0x64]);
    expect_drop(
        "three tags",
        &mut world,
        Way::Up,
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
    expect_drop(
        "ARP",
        &mut world,
        Way::Up,
        &TestBuf::new(0, &arp),
        Counter::NotPppoe,
    );
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
        Way::Up,
        &TestBuf::new(0, &padi),
        Counter::PppoeLengthLong,
    );
    padi[14] = 0x12;
    expect_drop(
        "discovery type",
        &mut world,
        Way::Up,
        &TestBuf::new(0, &padi),
        Counter::PppoeVersion,
    );
    padi.truncate(16);
    expect_drop(
        "discovery cut",
        &mut world,
        Way::Up,
        &TestBuf::new(0, &padi),
        Counter::PppoeTruncated,
    );
    padi[5] = 77;
    expect_drop(
        "discovery for another",
        &mut world,
        Way::Up,
        &TestBuf::new(0, &padi),
        Counter::NotForUs,
    );
}

#[test]
fn every_defect_of_the_packet_has_its_own_reason() {
    let (mut world, session) = world();
    let me = World::framed_ip(0);
    let good = good_packet();
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
        ("NAT pool", dst([203, 0, 113, 1]), Counter::NatNoMapping),
        ("TTL 1", edited(good.clone(), 8, 1), Counter::TtlExpired),
        ("TTL 0", edited(good.clone(), 8, 0), Counter::TtlExpired),
        ("no route", dst([10, 6, 0, 1]), Counter::NoRoute),
        ("blackhole", dst([10, 4, 0, 1]), Counter::RouteBlackhole),
        (
            "address of ours",
            dst([10, 5, 0, 5]),
            Counter::DestinationGateway,
        ),
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
        expect_drop(name, &mut world, Way::Up, &buf, reason);
    }
    // Larger than the core port's MTU, which the PPPoE link could carry when its MRU is larger.
    let big = edited(udp((me, 1), (World::HOST, 1), &[0; 1_473]), 6, 0x40);
    expect_drop(
        "too big",
        &mut world,
        Way::Up,
        &World::from_subscriber(SLOT, &session, &big),
        Counter::PacketTooBig,
    );
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
        expect_drop(name, &mut world, Way::Up, buf, Counter::SessionUnknown);
    }
    let untagged = Vlans::default();
    world.update(SLOT, with(untagged));
    world.publisher.withdraw_session(SLOT).unwrap();
    expect_drop(
        "withdrawn",
        &mut world,
        Way::Up,
        &frame(&with(untagged), SLOT),
        Counter::SessionUnknown,
    );
    world.publisher.free_session(SLOT).unwrap();
    expect_drop(
        "freed",
        &mut world,
        Way::Up,
        &frame(&with(untagged), SLOT),
        Counter::SessionUnknown,
    );
}
