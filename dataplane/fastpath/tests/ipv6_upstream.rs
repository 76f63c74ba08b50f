//! IPv6 upstream: bytes in, bytes or a named reason out.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

#[path = "support/mod.rs"]
mod support;
#[path = "support/v6.rs"]
mod v6;

use std::net::{IpAddr, Ipv6Addr};

use bng_fastpath::testing::{
    Spec, TestBuf, World, assert_checksums6, echo6, ethernet, extended, icmpv6, ipv6, tcp6, udp6,
};
use bng_fastpath::{Origin, PacketBuf, Punt, Verdict};
use bng_shm::{Adjacency, Counter, Event, NextHopId, Policy, PolicyId, Session, SessionState};
use bng_wire::ethernet::ethertype;
use bng_wire::icmpv6::icmpv6_type as icmp;
use bng_wire::ipv6::next_header;

use support::{Way, expect_drop};
use v6::{SLOT, counted, frame, hops, send, stats, world, world_of};

const HOST: (Ipv6Addr, u16) = (World::HOST6, 53);
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xaa);
const GATEWAY: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xbb);

fn me() -> (Ipv6Addr, u16) {
    (World::address6(0), 5_000)
}

fn with_bits(address: Ipv6Addr, low: u128) -> Ipv6Addr {
    Ipv6Addr::from_bits(address.to_bits() | low)
}

#[test]
fn a_packet_leaves_untranslated_with_a_plain_ethernet_header_and_one_hop_less() {
    let (mut world, _) = world(1);
    let inside_delegated = with_bits(World::delegated(0), 0xff_0000_0000_0000_0007);
    for src in [
        me().0,
        World::prefix6(0),
        World::delegated(0),
        inside_delegated,
    ] {
        let packet = udp6((src, 5_000), HOST, b"payload");
        let mut padded = frame(&world, &packet).data().to_vec();
        padded.extend([0xee; 9]);
        let (verdict, out) = world
            .upstream(0, vec![TestBuf::new(0, &padded)], Origin::Port)
            .remove(0);
        assert_eq!(verdict, Verdict::Forward { port: 2 });
        let expect = ethernet(
            World::NEXT_HOP,
            World::port_mac(2),
            ethertype::IPV6,
            &hops(packet, 63),
        );
        assert_eq!(out.data(), expect);
    }
    let bytes = 4 * (40 + 8 + 7);
    assert_eq!(stats(&world, 0), [4, bytes, 0, 0]);
    assert_eq!(counted(&world, Counter::ForwardedUpstream), 4);
    assert!(world.publisher.session_stats(SLOT).unwrap().last_up_ms > 0);
}

#[test]
fn ipv4_and_ipv6_packets_of_one_burst_get_their_own_verdicts_in_place() {
    let (mut world, session) = world(1);
    let v4 = bng_fastpath::testing::udp((World::framed_ip(0), 1), (World::HOST, 2), b"4");
    let v6 = udp6(me(), HOST, b"6");
    let bufs: Vec<_> = (0..70)
        .map(|n| match n % 3 {
            0 => World::from_subscriber(SLOT, &session, &v4),
            1 => World::from_subscriber6(SLOT, &session, &v6),
            _ => World::from_subscriber6(SLOT, &session, b"no IPv6"),
        })
        .collect();
    for (n, (verdict, out)) in world.upstream(0, bufs, Origin::Port).iter().enumerate() {
        match n % 3 {
            2 => assert_eq!(*verdict, Verdict::Drop(Counter::Ipv6Truncated)),
            kind => {
                assert_eq!(*verdict, Verdict::Forward { port: 2 });
                let last = [b'4', b'6'][kind];
                assert_eq!(out.data().last(), Some(&last));
            }
        }
    }
    assert_eq!(counted(&world, Counter::ForwardedUpstream), 47);
    assert_eq!(counted(&world, Counter::Ipv6Truncated), 23);
}

#[test]
fn each_defect_of_the_packet_has_its_reason() {
    let (mut world, _) = world(1);
    let good = udp6(me(), HOST, b"payload");
    let edited = |at: usize, value: u8| {
        let mut packet = good.clone();
        packet[at] = value;
        packet
    };
    let long = edited(5, good[5] + 1);
    let cases = [
        ("no bytes", vec![], Counter::Ipv6Truncated),
        ("header cut", good[..39].to_vec(), Counter::Ipv6Truncated),
        (
            "payload cut",
            good[..good.len() - 1].to_vec(),
            Counter::Ipv6Truncated,
        ),
        ("payload length too long", long, Counter::Ipv6Truncated),
        ("version 4", edited(0, 0x40), Counter::Ipv6Header),
        ("version 0", edited(0, 0), Counter::Ipv6Header),
    ];
    for (name, packet, reason) in cases {
        let buf = frame(&world, &packet);
        expect_drop(name, &mut world, Way::Up, &buf, reason);
    }
}

#[test]
fn a_payload_length_beyond_the_pppoe_length_is_truncated_even_if_the_frame_has_the_bytes() {
    let (mut world, _) = world(1);
    let mut packet = udp6(me(), HOST, b"payload");
    packet[5] += 4;
    let mut bytes = frame(&world, &packet).data().to_vec();
    bytes.extend([0; 4]);
    let buf = TestBuf::new(0, &bytes);
    expect_drop(
        "padding is no payload",
        &mut world,
        Way::Up,
        &buf,
        Counter::Ipv6Truncated,
    );
}

#[test]
fn ipv6_passes_only_while_it_is_open_whatever_ipv4_is() {
    let packet = udp6(me(), HOST, b"x");
    let (mut world, session) = world(1);
    let changes = [
        (
            "no prefix",
            Session {
                ipv6_prefix: None,
                ..session
            },
            false,
        ),
        (
            "negotiating",
            Session {
                state: SessionState::Negotiating,
                ..session
            },
            false,
        ),
        (
            "IPv4 not open",
            Session {
                framed_ip: [0, 0, 0, 0].into(),
                nat: None,
                ..session
            },
            true,
        ),
        (
            "nothing delegated",
            Session {
                delegated: None,
                ..session
            },
            true,
        ),
    ];
    for (name, session, open) in changes {
        world.update(SLOT, session);
        let buf = World::from_subscriber6(SLOT, &session, &packet);
        if open {
            let (verdict, _) = world.upstream(0, vec![buf], Origin::Port).remove(0);
            assert_eq!(verdict, Verdict::Forward { port: 2 }, "{name}");
        } else {
            expect_drop(name, &mut world, Way::Up, &buf, Counter::SessionNotOpen);
        }
    }
}

#[test]
fn a_frame_of_no_session_or_with_a_wrong_identity_is_unknown() {
    let (mut world, session) = world(1);
    let packet = udp6(me(), HOST, b"x");
    let other_mac = Session {
        client_mac: [2, 9, 9, 9, 9, 9],
        ..session
    };
    let frames = [
        World::from_subscriber6(World::slot(7), &session, &packet),
        World::from_subscriber6(SLOT, &other_mac, &packet),
    ];
    for buf in frames {
        expect_drop(
            "unknown",
            &mut world,
            Way::Up,
            &buf,
            Counter::SessionUnknown,
        );
    }
}

#[test]
fn only_the_sessions_own_prefixes_are_source_addresses() {
    let (mut world, _) = world(2);
    let beyond = with_bits(World::delegated(0), 0x100_0000_0000_0000_0000);
    for src in [
        World::address6(1),
        World::delegated(1),
        beyond,
        World::HOST6,
        LINK_LOCAL,
        ROUTERS,
        Ipv6Addr::UNSPECIFIED,
        Ipv6Addr::LOCALHOST,
        World::port_ipv6(2),
    ] {
        let buf = frame(&world, &udp6((src, 1), HOST, b"x"));
        expect_drop(
            &src.to_string(),
            &mut world,
            Way::Up,
            &buf,
            Counter::SourceSpoofed,
        );
    }
}

#[test]
fn without_the_source_check_foreign_unicast_passes_and_nothing_of_ours() {
    let (mut world, session) = world(2);
    let id = PolicyId(2);
    let policy = Policy {
        source_check: false,
        ..Policy::default()
    };
    world.publisher.write_policy(id, Some(&policy)).unwrap();
    world.update(
        SLOT,
        Session {
            policy: id,
            ..session
        },
    );
    let (verdict, _) = send(&mut world, &udp6((World::network6(2), 1), HOST, b"x"));
    assert_eq!(verdict, Verdict::Forward { port: 2 });
    for src in [
        World::address6(1),
        World::delegated(1),
        World::port_ipv6(2),
        LINK_LOCAL,
        ROUTERS,
        Ipv6Addr::UNSPECIFIED,
    ] {
        let buf = frame(&world, &udp6((src, 1), HOST, b"x"));
        expect_drop(
            &src.to_string(),
            &mut world,
            Way::Up,
            &buf,
            Counter::SourceSpoofed,
        );
    }
}

#[test]
fn destinations_that_are_no_hosts_are_dropped() {
    let (mut world, _) = world(1);
    let mapped: Ipv6Addr = "::ffff:192.0.2.1".parse().unwrap();
    for dst in [
        Ipv6Addr::UNSPECIFIED,
        Ipv6Addr::LOCALHOST,
        mapped,
        "ff05::1:3".parse().unwrap(),
        "ff0e::1".parse().unwrap(),
    ] {
        let buf = frame(&world, &udp6(me(), (dst, 9), b"x"));
        expect_drop(
            &dst.to_string(),
            &mut world,
            Way::Up,
            &buf,
            Counter::DestinationInvalid,
        );
    }
    // Whether or not there is a route.
    let own = World::port_ipv6(3);
    let buf = frame(&world, &echo6(me().0, own));
    expect_drop(
        "a port's address",
        &mut world,
        Way::Up,
        &buf,
        Counter::DestinationGateway,
    );
    let local = with_bits(World::network6(5), 5);
    let buf = frame(&world, &echo6(me().0, local));
    expect_drop(
        "a local route",
        &mut world,
        Way::Up,
        &buf,
        Counter::DestinationGateway,
    );
}

#[test]
fn what_control_may_have_to_answer_is_punted_unchanged() {
    let (mut world, session) = world(1);
    let nodes: Ipv6Addr = "ff02::1".parse().unwrap();
    let solicited: Ipv6Addr = "ff02::1:ff00:bb".parse().unwrap();
    let listeners: Ipv6Addr = "ff02::16".parse().unwrap();
    let dhcp: Ipv6Addr = "ff02::1:2".parse().unwrap();
    let none = Ipv6Addr::UNSPECIFIED;
    let message = |src, dst, kind| icmpv6(src, dst, kind, 0, &[0; 20]);
    let router_alert: &[u8] = &[0, 0, 5, 2, 0, 0, 1, 0];
    let report = message(LINK_LOCAL, listeners, icmp::LISTENER_REPORT_V2);
    let packets = [
        message(LINK_LOCAL, ROUTERS, icmp::ROUTER_SOLICITATION),
        message(none, ROUTERS, icmp::ROUTER_SOLICITATION),
        message(none, solicited, icmp::NEIGHBOUR_SOLICITATION),
        message(me().0, solicited, icmp::NEIGHBOUR_SOLICITATION),
        message(LINK_LOCAL, GATEWAY, icmp::NEIGHBOUR_SOLICITATION),
        message(LINK_LOCAL, nodes, icmp::NEIGHBOUR_ADVERTISEMENT),
        extended(&report, &[(next_header::HOP_BY_HOP, router_alert)]),
        udp6((LINK_LOCAL, 546), (dhcp, 547), b"solicit"),
        udp6((me().0, 546), (GATEWAY, 547), b"renew"),
        echo6(LINK_LOCAL, GATEWAY),
        echo6(me().0, GATEWAY),
    ];
    let punt = Verdict::Punt(Punt::Ppp {
        slot: SLOT,
        generation: 1,
    });
    for (n, packet) in packets.iter().enumerate() {
        let buf = World::from_subscriber6(SLOT, &session, packet);
        let out = world.upstream(0, vec![buf.clone()], Origin::Port);
        assert_eq!(out, [(punt, buf)], "packet {n}");
    }
    assert_eq!(world.counted(0), []);
    assert_eq!(stats(&world, 0), [0; 4]);
    assert!(world.publisher.session_stats(SLOT).unwrap().last_up_ms > 0);
}

#[test]
fn the_rest_of_what_hosts_say_on_a_link_is_dropped() {
    let (mut world, _) = world(1);
    let mdns: Ipv6Addr = "ff02::fb".parse().unwrap();
    let nodes: Ipv6Addr = "ff02::1".parse().unwrap();
    let solicitation = icmpv6(LINK_LOCAL, ROUTERS, icmp::ROUTER_SOLICITATION, 0, &[0; 4]);
    let fragment: &[u8] = &[0, 0, 0, 1, 0, 0, 0, 1];
    for (name, packet, reason) in [
        (
            "mDNS",
            udp6((LINK_LOCAL, 5_353), (mdns, 5_353), b"x"),
            Counter::DestinationInvalid,
        ),
        (
            "ping of all nodes",
            echo6(LINK_LOCAL, nodes),
            Counter::DestinationInvalid,
        ),
        (
            "rogue router",
            icmpv6(LINK_LOCAL, nodes, icmp::ROUTER_ADVERTISEMENT, 0, &[0; 12]),
            Counter::DestinationInvalid,
        ),
        (
            "SSH to the gateway",
            tcp6((me().0, 1), (GATEWAY, 22), 2, b""),
            Counter::DestinationGateway,
        ),
        (
            "solicitation in a fragment",
            extended(&solicitation, &[(next_header::FRAGMENT, fragment)]),
            Counter::DestinationInvalid,
        ),
        (
            "solicitation with a foreign source",
            icmpv6(World::HOST6, ROUTERS, icmp::ROUTER_SOLICITATION, 0, &[0; 4]),
            Counter::SourceSpoofed,
        ),
        (
            "multicast source",
            echo6(ROUTERS, GATEWAY),
            Counter::SourceSpoofed,
        ),
    ] {
        let buf = frame(&world, &packet);
        expect_drop(name, &mut world, Way::Up, &buf, reason);
    }
}

#[test]
fn a_flood_of_solicitations_is_punted_at_the_sessions_rate() {
    let spec = Spec {
        punts_per_second: 5,
        ..Spec::default()
    };
    let (mut world, _) = world_of(spec, 1);
    let packet = icmpv6(LINK_LOCAL, ROUTERS, icmp::ROUTER_SOLICITATION, 0, &[0; 4]);
    let bufs = vec![frame(&world, &packet); 20];
    let out = world.upstream(0, bufs, Origin::Port);
    let punted = out
        .iter()
        .filter(|o| matches!(o.0, Verdict::Punt(_)))
        .count();
    assert_eq!(punted, 5);
    assert_eq!(counted(&world, Counter::PuntRateLimited), 15);
}

/// Checks an ICMPv6 error to session 0's subscriber about `packet` and returns its last four bytes of header.
fn assert_error(world: &World, sent: &[u8], packet: &[u8], kind: u8, code: u8) -> u32 {
    let quote = &packet[..packet.len().min(1_232)];
    let error = &sent[30..];
    assert_checksums6(error);
    let value = u32::from_be_bytes(error[44..48].try_into().unwrap());
    let rest = [&value.to_be_bytes()[..], quote].concat();
    let expect = icmpv6(World::port_ipv6(2), me().0, kind, code, &rest);
    assert_eq!(sent, v6::to_subscriber(world, 0, &expect));
    value
}

#[test]
fn the_subscriber_is_told_when_the_hop_limit_ends() {
    let (mut world, _) = world(1);
    for (n, hop_limit) in [0, 1].into_iter().enumerate() {
        let packet = hops(udp6(me(), HOST, &[7; 1_400]), hop_limit);
        let (verdict, sent) = send(&mut world, &packet);
        assert_eq!(verdict, Verdict::Forward { port: 0 });
        assert_eq!(
            assert_error(&world, &sent, &packet, icmp::TIME_EXCEEDED, 0),
            0
        );
        let times = n as u64 + 1;
        assert_eq!(counted(&world, Counter::TtlExpired), times);
        assert_eq!(counted(&world, Counter::IcmpErrorSent), times);
        assert_eq!(stats(&world, 0), [0, 0, times, 1_280 * times]);
        assert_eq!(counted(&world, Counter::ForwardedUpstream), 0);
    }
}

#[test]
fn without_an_address_of_a_port_errors_come_from_the_sessions_anycast_address() {
    let (mut world, _) = world(1);
    world.publisher.publish_port_addresses(&[]);
    world.pass(1, 1);
    let packet = hops(udp6(me(), HOST, b"x"), 1);
    let (verdict, sent) = send(&mut world, &packet);
    assert_eq!(verdict, Verdict::Forward { port: 0 });
    let rest = [&[0; 4][..], &packet].concat();
    let expect = icmpv6(World::prefix6(0), me().0, icmp::TIME_EXCEEDED, 0, &rest);
    assert_eq!(sent, v6::to_subscriber(&world, 0, &expect));
}

#[test]
fn an_error_is_no_larger_than_what_the_session_carries() {
    let (mut world, session) = world(1);
    world.update(
        SLOT,
        Session {
            mtu: 600,
            ..session
        },
    );
    let packet = hops(udp6(me(), HOST, &[7; 1_000]), 1);
    let (verdict, sent) = send(&mut world, &packet);
    assert_eq!(verdict, Verdict::Forward { port: 0 });
    assert_checksums6(&sent[30..]);
    assert_eq!(sent.len(), 30 + 600);
}

#[test]
fn a_packet_larger_than_the_core_ports_mtu_is_answered_with_that_mtu() {
    let (mut world, _) = world(1);
    let fits = udp6(me(), HOST, &[7; 1_500 - 48]);
    assert_eq!(send(&mut world, &fits).0, Verdict::Forward { port: 2 });
    let packet = udp6(me(), HOST, &[7; 1_501 - 48]);
    let (verdict, sent) = send(&mut world, &packet);
    assert_eq!(verdict, Verdict::Forward { port: 0 });
    assert_eq!(
        assert_error(&world, &sent, &packet, icmp::PACKET_TOO_BIG, 0),
        1_500
    );
    assert_eq!(counted(&world, Counter::PacketTooBig), 1);
}

#[test]
fn a_destination_without_a_route_is_unreachable() {
    let (mut world, _) = world(1);
    let unassigned = World::address6(200);
    for (dst, reason) in [
        (with_bits(World::network6(6), 1), Counter::NoRoute),
        (with_bits(World::network6(4), 1), Counter::RouteBlackhole),
        (unassigned, Counter::NoRoute),
    ] {
        let before = counted(&world, reason);
        let packet = udp6(me(), (dst, 9), b"x");
        let (verdict, sent) = send(&mut world, &packet);
        assert_eq!(verdict, Verdict::Forward { port: 0 });
        assert_error(&world, &sent, &packet, icmp::UNREACHABLE, 0);
        assert_eq!(counted(&world, reason), before + 1);
    }
}

#[test]
fn no_error_is_sent_about_an_error_or_beyond_the_limit() {
    let spec = Spec {
        icmp_errors_per_second: 2,
        ..Spec::default()
    };
    let (mut world, _) = world_of(spec, 1);
    let quote = udp6(HOST, me(), b"x");
    let rest = [&[0; 4][..], &quote].concat();
    let error = icmpv6(me().0, HOST.0, icmp::UNREACHABLE, 4, &rest);
    let options: &[u8] = &[0, 0, 1, 4, 0, 0, 0, 0];
    let hidden = extended(&error, &[(next_header::DESTINATION_OPTIONS, options)]);
    let redirect = icmpv6(me().0, HOST.0, icmp::REDIRECT, 0, &[0; 36]);
    let later: &[u8] = &[0, 0, 0, 8, 0, 0, 0, 1];
    let piece = extended(&echo6(me().0, HOST.0), &[(next_header::FRAGMENT, later)]);
    for packet in [error, hidden, redirect, piece] {
        let buf = frame(&world, &hops(packet, 1));
        expect_drop(
            "about an error",
            &mut world,
            Way::Up,
            &buf,
            Counter::TtlExpired,
        );
    }
    let packet = hops(echo6(me().0, HOST.0), 1);
    let verdicts: Vec<_> = (0..4).map(|_| send(&mut world, &packet).0).collect();
    let (sent, dropped) = (
        Verdict::Forward { port: 0 },
        Verdict::Drop(Counter::TtlExpired),
    );
    assert_eq!(verdicts, [sent, sent, dropped, dropped]);
    assert_eq!(counted(&world, Counter::IcmpErrorLimited), 2);
}

#[test]
fn an_unresolved_neighbour_is_asked_for_by_its_ipv6_address() {
    let (mut world, _) = world(1);
    let connected = with_bits(World::network6(2), 0x99);
    let behind = with_bits(World::network6(3), 0x99);
    for (dst, address) in [
        (connected, IpAddr::from(connected)),
        (behind, IpAddr::from([192, 0, 2, 3])),
    ] {
        let (verdict, _) = send(&mut world, &udp6(me(), (dst, 9), b"x"));
        assert_eq!(verdict, Verdict::Drop(Counter::NeighbourUnresolved));
        let event = Event::ResolveNeighbour { port: 3, address };
        assert_eq!(world.events(0), [event]);
    }
}

#[test]
fn a_group_of_next_hops_takes_each_flow_one_way_and_all_flows_both() {
    let (mut world, _) = world(1);
    let neighbour = |last| Adjacency::Neighbour {
        port: 3,
        mac: [2, 0xcc, 0, 0, 0, last],
    };
    for (id, adjacency) in [
        (8, neighbour(8)),
        (9, neighbour(9)),
        (
            1,
            Adjacency::Group {
                first: NextHopId(8),
                count: 2,
            },
        ),
    ] {
        let address = World::port_ipv6(3).into();
        world
            .publisher
            .set_next_hop(NextHopId(id), address, adjacency)
            .unwrap();
    }
    let mut taken = [0; 2];
    for port in 0..64 {
        let packet = udp6(me(), (World::HOST6, port), b"x");
        let first = send(&mut world, &packet);
        assert_eq!(first.0, Verdict::Forward { port: 3 });
        assert_eq!(send(&mut world, &packet), first);
        taken[usize::from(first.1[5] - 8)] += 1;
    }
    assert!(taken.iter().all(|n| *n > 15), "{taken:?}");
}

#[test]
fn extension_headers_are_forwarded_untouched_even_too_many_of_them() {
    let (mut world, _) = world(1);
    let options: &[u8] = &[0, 0, 1, 4, 0, 0, 0, 0];
    let fragment: &[u8] = &[0, 0, 0, 9, 0, 0, 0, 1];
    let good = udp6(me(), HOST, b"payload");
    let hop_by_hop = (next_header::HOP_BY_HOP, options);
    let destination = (next_header::DESTINATION_OPTIONS, options);
    for packet in [
        extended(&good, &[hop_by_hop, destination]),
        extended(&good, &[(next_header::FRAGMENT, fragment)]),
        extended(&good, &[destination; 20]),
        // A chain that ends early is the receiver's to refuse.
        ipv6(me().0, HOST.0, next_header::ROUTING, b"\x11"),
        ipv6(me().0, HOST.0, next_header::NONE, b""),
    ] {
        let (verdict, out) = send(&mut world, &packet);
        assert_eq!(verdict, Verdict::Forward { port: 2 });
        assert_eq!(out[14..], hops(packet, 63));
    }
}
