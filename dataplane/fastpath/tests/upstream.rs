//! Upstream: bytes in, bytes or a named reason out.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod support;

use std::net::Ipv4Addr;

use bng_fastpath::testing::{
    Spec, TestBuf, World, assert_checksums, echo, ipv4, pppoe_discovery, pppoe_session, tcp, udp,
};
use bng_fastpath::{Origin, PacketBuf, Punt, Verdict};
use bng_shm::{Counter, Event, RangeKind, Session, SessionState, SlotIndex, Vlans};
use bng_wire::ethernet::{EthFrame, ethertype};
use bng_wire::pppoe::{code, protocol};
use bng_wire::{MacAddr, VlanStack, VlanTag, ipv4 as ip};

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
fn a_priority_tag_is_no_vlan() {
    let mut world = World::new(Spec::default());
    let untagged = Session {
        vlans: Vlans::default(),
        ..world.session(0)
    };
    let session = world.publish(SLOT, untagged);
    let vlans = Vlans {
        s_vlan: Some(0),
        ..session.vlans
    };
    let sent = Session { vlans, ..session };
    let buf = World::from_subscriber(SLOT, &sent, &good_packet());
    let (verdict, _) = world.upstream(0, vec![buf], Origin::Port).remove(0);
    assert_eq!(verdict, Verdict::Forward { port: 2 });
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
        c_vlan: Some(9),
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
    expect_drop("IPv4", &mut world, Way::Up, &good, Counter::SessionNotOpen);
    let malformed = World::from_subscriber(SLOT, &session, &[0x45; 3]);
    expect_drop(
        "malformed IPv4",
        &mut world,
        Way::Up,
        &malformed,
        Counter::SessionNotOpen,
    );
    let ipv6 = World::ppp_frame(SLOT, &session, protocol::IPV6, &[0x60; 40]);
    expect_drop("IPv6", &mut world, Way::Up, &ipv6, Counter::SessionNotOpen);
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
        address: Ipv4Addr::from(address).into(),
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
    expect_drop("no block", &mut world, Way::Up, &buf, Counter::NatNone);
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
