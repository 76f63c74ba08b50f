//! ICMP errors the gateway sends, and packets it fragments: bytes in, bytes out.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod support;

use std::net::Ipv4Addr;

use bng_fastpath::testing::{
    Spec, TestBuf, World, assert_checksums, echo, icmp_error, ipv4, tcp, udp,
};
use bng_fastpath::{Origin, PacketBuf, Verdict};
use bng_shm::{Counter, PortAddresses, Session, SlotIndex, Vlans};
use bng_wire::ethernet::ethertype;
use bng_wire::{ipv4 as ip, pppoe};

use support::edited;

const SLOT: SlotIndex = World::slot(0);
const ROUTED: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const CORE_ADDRESS: Ipv4Addr = Ipv4Addr::new(9, 9, 9, 9);
const TO_CORE: Verdict = Verdict::Forward { port: 2 };
const TO_SUBSCRIBER: Verdict = Verdict::Forward { port: 0 };
/// "Don't fragment", in the upper byte of flags and offset.
const DF: u8 = 0x40;

fn world_with(vlans: Vlans, is_routed: bool, errors: u32) -> (World, Session) {
    let mut world = World::new(Spec {
        icmp_errors_per_second: errors,
        ..Spec::default()
    });
    let mut session = Session {
        vlans,
        ..world.session(0)
    };
    if is_routed {
        (session.framed_ip, session.nat) = (ROUTED, None);
    }
    let session = world.publish(SLOT, session);
    (world, session)
}

fn world(is_routed: bool) -> (World, Session) {
    let vlans = Vlans {
        s_vlan: Some(7),
        c_vlan: Some(9),
        outer_is_88a8: true,
    };
    world_with(vlans, is_routed, 100)
}

fn up(world: &mut World, session: &Session, packet: &[u8]) -> (Verdict, TestBuf) {
    let buf = World::from_subscriber(SLOT, session, packet);
    world.upstream(0, vec![buf], Origin::Port).remove(0)
}

fn down(world: &mut World, packet: &[u8]) -> (Verdict, TestBuf) {
    let buf = world.from_core(packet);
    world.downstream(0, vec![buf], Origin::Port).remove(0)
}

fn count(world: &World, counter: Counter) -> u64 {
    let counted = world.counted(0);
    counted.iter().find(|c| c.0 == counter).map_or(0, |c| c.1)
}

/// An outside address and port that lead to the session.
fn outside(world: &mut World, session: &Session) -> (Ipv4Addr, u16) {
    let packet = udp((session.framed_ip, 5_000), (World::HOST, 53), b"");
    let (verdict, sent) = up(world, session, &packet);
    assert_eq!(verdict, TO_CORE);
    let packet = &sent.data()[14..];
    let port = u16::from_be_bytes([packet[20], packet[21]]);
    (ip::parse(packet).unwrap().src_addr(), port)
}

/// An error must be this, about `about` as it was sent, and all its checksums right.
fn assert_error(packet: &[u8], from: Ipv4Addr, to: Ipv4Addr, fields: (u8, u8, u16), about: &[u8]) {
    assert_checksums(packet);
    let header = ip::parse(packet).unwrap();
    assert_eq!((header.src_addr(), header.dst_addr()), (from, to));
    assert_eq!((header.protocol, header.ttl), (1, 64));
    assert_eq!((packet[20], packet[21]), (fields.0, fields.1));
    assert_eq!(packet[24..26], [0, 0]);
    assert_eq!(u16::from_be_bytes([packet[26], packet[27]]), fields.2);
    assert_eq!(packet[28..], about[..about.len().min(548)]);
    assert_eq!(packet.len(), header.total_len);
}

/// The packet of a frame to the subscriber, whose link layer must be the session's.
fn in_session<'a>(session: &Session, frame: &'a TestBuf) -> &'a [u8] {
    let link = bng_wire::ethernet::parse(frame.data()).unwrap();
    assert_eq!(
        (link.dst.0, link.src),
        (session.client_mac, World::port_mac(0))
    );
    assert_eq!(link.tags, World::tags(session));
    assert_eq!(link.ethertype, ethertype::PPPOE_SESSION);
    let ppp = pppoe::parse_session(&frame.data()[link.payload..]).unwrap();
    assert_eq!(ppp.session_id, SLOT.session_id());
    assert_eq!(ppp.protocol, pppoe::protocol::IPV4);
    assert_eq!(frame.data().len(), link.payload + 8 + ppp.payload.len());
    ppp.payload
}

/// The packet of a frame to the station that [`World::from_core`] sends from.
fn at_core(frame: &TestBuf) -> &[u8] {
    let link = bng_wire::ethernet::parse(frame.data()).unwrap();
    assert_eq!((link.dst, link.src), (World::NEXT_HOP, World::port_mac(2)));
    assert_eq!((link.ethertype, link.payload), (ethertype::IPV4, 14));
    &frame.data()[14..]
}

#[test]
fn the_subscriber_is_told_in_its_session_why_a_packet_did_not_leave() {
    let dst = |bytes: [u8; 4]| Ipv4Addr::from(bytes);
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
    for (vlans, is_routed) in [(none, false), (one, true), (two, false), (two, true)] {
        let (mut world, session) = world_with(vlans, is_routed, 100);
        let me = (session.framed_ip, 5_000);
        let question = udp(me, (World::HOST, 53), b"question");
        let big = udp(me, (World::HOST, 53), &[7; 1_500]);
        let cases = [
            (
                edited(question.clone(), 8, 1),
                Counter::TtlExpired,
                (11, 0, 0),
            ),
            (
                edited(question.clone(), 8, 0),
                Counter::TtlExpired,
                (11, 0, 0),
            ),
            (edited(big, 6, DF), Counter::PacketTooBig, (3, 4, 1_500)),
            (
                udp(me, (dst([10, 6, 0, 1]), 1), b""),
                Counter::NoRoute,
                (3, 0, 0),
            ),
            (
                udp(me, (dst([10, 4, 0, 1]), 1), b""),
                Counter::RouteBlackhole,
                (3, 0, 0),
            ),
            (
                edited(tcp(me, (World::HOST, 80), 2, b""), 8, 1),
                Counter::TtlExpired,
                (11, 0, 0),
            ),
            (
                edited(echo(me.0, World::HOST, true, 3, &[1; 33]), 8, 1),
                Counter::TtlExpired,
                (11, 0, 0),
            ),
            // The first fragment; and a protocol that NAT does not know.
            (
                edited(edited(question.clone(), 6, 0x20), 8, 1),
                Counter::TtlExpired,
                (11, 0, 0),
            ),
            (
                edited(ipv4(me.0, World::HOST, 47, b"gre"), 8, 1),
                Counter::TtlExpired,
                (11, 0, 0),
            ),
        ];
        for (n, (packet, reason, fields)) in cases.into_iter().enumerate() {
            let before = (
                count(&world, reason),
                world.publisher.session_stats(SLOT).unwrap(),
            );
            let (verdict, error) = up(&mut world, &session, &packet);
            assert_eq!(verdict, TO_SUBSCRIBER, "case {n}");
            let answer = in_session(&session, &error);
            assert_error(answer, World::GATEWAY, me.0, fields, &packet);
            assert_eq!(count(&world, reason), before.0 + 1, "case {n}");
            assert_eq!(count(&world, Counter::IcmpErrorSent), n as u64 + 1);
            let after = world.publisher.session_stats(SLOT).unwrap();
            assert_eq!(
                after.up_packets, before.1.up_packets,
                "it was not forwarded"
            );
            assert_eq!(after.down_packets, before.1.down_packets + 1);
            assert_eq!(after.down_bytes, before.1.down_bytes + answer.len() as u64);
        }
        assert_eq!(count(&world, Counter::ForwardedUpstream), 0);
        assert_eq!(world.workers[0].nat_mappings(), 0);
    }
}

#[test]
fn a_remote_host_is_told_by_the_way_it_came_why_its_packet_did_not_arrive() {
    for (is_routed, has_address) in [(false, true), (false, false), (true, true), (true, false)] {
        let (mut world, session) = world(is_routed);
        let addresses = PortAddresses {
            ipv4: has_address.then_some(CORE_ADDRESS),
            ipv6: None,
        };
        let none = PortAddresses::default();
        world
            .publisher
            .publish_port_addresses(&[none, none, addresses]);
        world.pass(1, 1);
        let outside = outside(&mut world, &session);
        let source = match (has_address, is_routed) {
            (true, _) => CORE_ADDRESS,
            (false, false) => outside.0,
            (false, true) => World::GATEWAY,
        };
        let answer = udp((World::HOST, 53), outside, b"answer");
        let big = udp((World::HOST, 53), outside, &[7; 1_472]);
        for (packet, reason, fields) in [
            (
                edited(answer.clone(), 8, 1),
                Counter::TtlExpired,
                (11, 0, 0),
            ),
            (edited(answer, 8, 0), Counter::TtlExpired, (11, 0, 0)),
            (edited(big, 6, DF), Counter::PacketTooBig, (3, 4, 1_492)),
        ] {
            let before = world.publisher.session_stats(SLOT).unwrap();
            let counted = count(&world, reason);
            let (verdict, error) = down(&mut world, &packet);
            assert_eq!(verdict, TO_CORE);
            assert_error(at_core(&error), source, World::HOST, fields, &packet);
            assert_eq!(count(&world, reason), counted + 1);
            assert_eq!(world.publisher.session_stats(SLOT).unwrap(), before);
        }
        assert_eq!(count(&world, Counter::ForwardedDownstream), 0);
        assert_eq!(count(&world, Counter::IcmpErrorSent), 3);
    }
}

#[test]
fn an_error_leaves_by_the_port_the_packet_came_from() {
    let (mut world, session) = world(true);
    let packet = edited(udp((World::HOST, 53), (session.framed_ip, 1), b""), 8, 1);
    let frame = world.from_core(&packet);
    let mut bytes = frame.data().to_vec();
    bytes[..6].copy_from_slice(&World::port_mac(3).0);
    let other = TestBuf::new(3, &bytes);
    let out = world.downstream(0, vec![frame, other], Origin::HandedOver);
    assert_eq!(out[0].0, TO_CORE);
    assert_eq!(out[1].0, Verdict::Forward { port: 3 });
}

#[test]
fn an_error_is_no_larger_than_what_the_session_carries() {
    let (mut world, session) = world(false);
    let packet = udp((session.framed_ip, 1), (World::HOST, 1), &[7; 400]);
    let packet = edited(packet, 8, 1);
    for (mtu, quoted) in [(1_492, 428), (300, 272), (128, 100), (56, 28)] {
        world.update(SLOT, Session { mtu, ..session });
        let (verdict, error) = up(&mut world, &session, &packet);
        assert_eq!(verdict, TO_SUBSCRIBER);
        let answer = in_session(&session, &error);
        assert_error(
            answer,
            World::GATEWAY,
            session.framed_ip,
            (11, 0, 0),
            &packet[..quoted],
        );
    }
    world.update(SLOT, Session { mtu: 55, ..session });
    let verdict = up(&mut world, &session, &packet).0;
    assert_eq!(
        verdict,
        Verdict::Drop(Counter::TtlExpired),
        "no room for the least of it"
    );
}

#[test]
fn no_error_is_sent_about_what_must_not_have_one() {
    let expired = |packet: Vec<u8>| edited(packet, 8, 1);
    let (mut world, session) = world(true);
    let me = session.framed_ip;
    let host = World::HOST;
    let quoted = udp((host, 1), (me, 1), b"");
    let later = |packet: Vec<u8>| edited(packet, 7, 9);
    for kind in [3, 4, 5, 11, 12, 40] {
        let packet = expired(icmp_error(me, host, kind, &quoted));
        assert_eq!(
            up(&mut world, &session, &packet).0,
            Verdict::Drop(Counter::TtlExpired)
        );
        let packet = expired(icmp_error(host, me, kind, &quoted));
        assert_eq!(
            down(&mut world, &packet).0,
            Verdict::Drop(Counter::TtlExpired)
        );
    }
    for (packet, reason) in [
        (
            expired(later(udp((me, 1), (host, 1), b""))),
            Counter::TtlExpired,
        ),
        (expired(ipv4(me, host, 1, b"")), Counter::TtlExpired),
    ] {
        assert_eq!(up(&mut world, &session, &packet).0, Verdict::Drop(reason));
    }
    let packet = expired(later(udp((host, 1), (me, 1), b"")));
    assert_eq!(
        down(&mut world, &packet).0,
        Verdict::Drop(Counter::TtlExpired)
    );
    // A group is no station to answer.
    let mut frame = world
        .from_core(&expired(udp((host, 1), (me, 1), b"")))
        .data()
        .to_vec();
    frame[6] |= 1;
    let out = world.downstream(0, vec![TestBuf::new(2, &frame)], Origin::Port);
    assert_eq!(out[0].0, Verdict::Drop(Counter::TtlExpired));
    // No room for the error in front of the packet.
    frame[6] &= !1;
    let tight = TestBuf::with_headroom(2, &frame, 27);
    let out = world.downstream(0, vec![tight], Origin::Port);
    assert_eq!(out[0].0, Verdict::Drop(Counter::TtlExpired));
    assert_eq!(count(&world, Counter::IcmpErrorSent), 0);
    let enough = TestBuf::with_headroom(2, &frame, 28);
    assert_eq!(
        world.downstream(0, vec![enough], Origin::Port)[0].0,
        TO_CORE
    );
}

#[test]
fn errors_over_the_limit_are_counted_and_the_packet_under_its_own_reason() {
    let (mut world, session) = world_with(Vlans::default(), false, 4);
    let packet = edited(udp((session.framed_ip, 1), (World::HOST, 1), b""), 8, 1);
    for n in 0..10 {
        let expect = if n < 4 {
            TO_SUBSCRIBER
        } else {
            Verdict::Drop(Counter::TtlExpired)
        };
        assert_eq!(up(&mut world, &session, &packet).0, expect);
    }
    let counters = [
        Counter::TtlExpired,
        Counter::IcmpErrorSent,
        Counter::IcmpErrorLimited,
    ];
    assert_eq!(counters.map(|c| count(&world, c)), [10, 4, 6]);
    let outside = outside(&mut world, &session);
    let big = edited(udp((World::HOST, 53), outside, &[7; 1_472]), 6, DF);
    assert_eq!(
        down(&mut world, &big).0,
        TO_CORE,
        "the other side has a limit of its own"
    );
    world.pass(1_000, 100);
    assert_eq!(up(&mut world, &session, &packet).0, TO_SUBSCRIBER);
}

/// Puts packets together again.
fn payload(packets: &[&[u8]]) -> Vec<u8> {
    let mut whole = Vec::new();
    for packet in packets {
        assert_checksums(packet);
        let header = ip::parse(packet).unwrap();
        assert_eq!(usize::from(header.frag & ip::OFFSET_MASK) * 8, whole.len());
        whole.extend(&packet[20..]);
    }
    whole
}

#[test]
fn a_packet_that_may_be_fragmented_is_and_counts_once() {
    for is_routed in [false, true] {
        let (mut world, session) = world(is_routed);
        let outside = outside(&mut world, &session);
        let big = udp((World::HOST, 53), outside, &[7; 3_000]);
        let stats = world.publisher.session_stats(SLOT).unwrap();
        let (verdict, frame) = down(&mut world, &big);
        let (port, mtu) = (0, 1_492);
        assert_eq!(verdict, Verdict::Fragment { port, mtu });
        let frames = world.fragments(0, mtu, frame, 8);
        let packets: Vec<_> = frames
            .iter()
            .map(|frame| in_session(&session, frame))
            .collect();
        let sizes: Vec<_> = packets.iter().map(|packet| packet.len()).collect();
        assert_eq!(sizes, [1_492, 1_492, 84]);
        let whole = payload(&packets);
        let inside = udp((World::HOST, 53), (session.framed_ip, 5_000), &[7; 3_000]);
        let routed = udp((World::HOST, 53), outside, &[7; 3_000]);
        assert_eq!(whole, if is_routed { &routed } else { &inside }[20..]);

        let big = udp((session.framed_ip, 5_000), (World::HOST, 53), &[9; 1_500]);
        let (verdict, frame) = up(&mut world, &session, &big);
        let (port, mtu) = (2, 1_500);
        assert_eq!(verdict, Verdict::Fragment { port, mtu });
        let frames = world.fragments(0, mtu, frame, 8);
        let packets: Vec<_> = frames.iter().map(|frame| &frame.data()[14..]).collect();
        assert_eq!(
            payload(&packets),
            udp(outside, (World::HOST, 53), &[9; 1_500])[20..]
        );

        let after = world.publisher.session_stats(SLOT).unwrap();
        assert_eq!(
            (
                after.up_packets - stats.up_packets,
                after.up_bytes - stats.up_bytes
            ),
            (1, 1_528)
        );
        assert_eq!((after.down_packets, after.down_bytes), (1, 3_028));
        assert_eq!(count(&world, Counter::ForwardedDownstream), 1);
        assert_eq!(count(&world, Counter::ForwardedUpstream), 2);
        assert_eq!(count(&world, Counter::FragmentsMade), 3);
    }
}

#[test]
fn a_missing_buffer_drops_the_whole_packet_by_name() {
    let (mut world, session) = world(true);
    let big = udp((World::HOST, 53), (session.framed_ip, 1), &[7; 3_000]);
    let (_, frame) = down(&mut world, &big);
    assert_eq!(world.fragments(0, 1_492, frame, 1), []);
    assert_eq!(count(&world, Counter::FragmentNoBuffer), 1);
    assert_eq!(count(&world, Counter::FragmentsMade), 0);
}

#[test]
fn a_fragment_that_is_too_large_still_is_fragmented_further() {
    let (mut world, session) = world(true);
    let mut big = udp((World::HOST, 53), (session.framed_ip, 1), &[7; 1_468]);
    big[6..8].copy_from_slice(&0x2005u16.to_be_bytes());
    let big = edited(big, 8, 64);
    let (verdict, frame) = down(&mut world, &big);
    assert_eq!(
        verdict,
        Verdict::Fragment {
            port: 0,
            mtu: 1_492
        }
    );
    let frames = world.fragments(0, 1_492, frame, 8);
    let offsets: Vec<_> = frames
        .iter()
        .map(|frame| ip::parse(in_session(&session, frame)).unwrap().frag)
        .collect();
    assert_eq!(offsets, [0x2005, 0x2005 + 184]);
}
