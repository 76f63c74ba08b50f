//! Policies: what a session may send and receive.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod support;

use std::net::Ipv4Addr;

use bng_fastpath::testing::{
    Spec, TestBuf, World, assert_checksums, echo, icmp_error, pppoe_discovery, tcp, udp,
};
use bng_fastpath::{Origin, PacketBuf, Punt, Verdict};
use bng_shm::{
    Counter, Filter, FilterAction, FilterId, FilterRule, Policy, PolicyId, PortAddresses, Rate,
    Session, SlotIndex,
};
use bng_wire::ipv4 as ip;
use bng_wire::pppoe::{code, protocol};

use support::{Way, edited, expect_drop};

const SLOT: SlotIndex = World::slot(0);
const OTHER: PolicyId = PolicyId(2);
const ROUTED: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);

/// A world with session 0, behind NAT or routed, under this policy.
fn world(policy: &Policy, is_routed: bool) -> (World, Session) {
    let mut world = World::new(Spec::default());
    world.publisher.write_policy(OTHER, Some(policy)).unwrap();
    let mut session = Session {
        policy: OTHER,
        ..world.session(0)
    };
    if is_routed {
        (session.framed_ip, session.nat) = (ROUTED, None);
    }
    let session = world.publish(SLOT, session);
    (world, session)
}

fn from(session: &Session, packet: &[u8]) -> TestBuf {
    World::from_subscriber(SLOT, session, packet)
}

fn up(world: &mut World, session: &Session, packet: &[u8]) -> (Verdict, TestBuf) {
    let buf = from(session, packet);
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

/// The outside address and port of a flow that [`up`] has sent.
fn outside(sent: &TestBuf) -> (Ipv4Addr, u16) {
    let packet = &sent.data()[14..];
    let port = u16::from_be_bytes([packet[20], packet[21]]);
    (ip::parse(packet).unwrap().src_addr(), port)
}

const OUT: Verdict = Verdict::Forward { port: 2 };
const IN: Verdict = Verdict::Forward { port: 0 };

#[test]
fn a_session_without_a_policy_or_with_an_unpublished_filter_forwards_nothing() {
    let unpublished = Policy {
        filter: Some(FilterId(3)),
        ..Policy::default()
    };
    for is_routed in [false, true] {
        let (mut world, open) = world(&Policy::default(), is_routed);
        let me = (open.framed_ip, 5_000);
        let packet = udp(me, (World::HOST, 53), b"question");
        let (verdict, sent) = up(&mut world, &open, &packet);
        assert_eq!(verdict, OUT);
        let answer = world.from_core(&udp((World::HOST, 53), outside(&sent), b"answer"));
        world
            .publisher
            .publish_filters(&[Filter::default()])
            .unwrap();
        world
            .publisher
            .write_policy(PolicyId(9), Some(&unpublished))
            .unwrap();
        for policy in [PolicyId(0), PolicyId(7), PolicyId(9)] {
            world.update(SLOT, Session { policy, ..open });
            let name = &format!("{policy:?}");
            let reason = Counter::NoPolicy;
            expect_drop(name, &mut world, Way::Up, &from(&open, &packet), reason);
            let ping = from(&open, &echo(me.0, World::GATEWAY, true, 1, b""));
            expect_drop(name, &mut world, Way::Up, &ping, reason);
            expect_drop(name, &mut world, Way::Down, &answer, reason);
            // The session can still be negotiated and ended.
            let lcp = World::ppp_frame(SLOT, &open, protocol::LCP, b"\x09\x01\0\x08....");
            let verdict = world.upstream(0, vec![lcp], Origin::Port).remove(0).0;
            assert!(matches!(verdict, Verdict::Punt(_)));
        }
    }
}

#[test]
fn a_session_without_an_ipv4_address_is_not_open() {
    let (mut world, session) = world(&Policy::default(), false);
    let zero = Ipv4Addr::UNSPECIFIED;
    let (_, sent) = up(
        &mut world,
        &session,
        &udp((session.framed_ip, 1), (World::HOST, 1), b""),
    );
    let answer = world.from_core(&udp((World::HOST, 1), outside(&sent), b""));
    world.update(
        SLOT,
        Session {
            framed_ip: zero,
            ..session
        },
    );
    let packet = from(&session, &udp((zero, 1), (World::HOST, 1), b""));
    let reason = Counter::SessionNotOpen;
    expect_drop("up", &mut world, Way::Up, &packet, reason);
    expect_drop("down", &mut world, Way::Down, &answer, reason);
}

#[test]
fn a_policer_lets_the_burst_pass_then_the_committed_rate_and_counts_only_that() {
    // 1,000 bytes each; four of them at once, then one each 100 ms.
    let rate = Some(Rate {
        kbps: 80,
        burst_bytes: 4_000,
    });
    for is_up in [true, false] {
        let policy = Policy {
            up: rate.filter(|_| is_up),
            down: rate.filter(|_| !is_up),
            ..Policy::default()
        };
        let (mut world, session) = world(&policy, false);
        let free = udp((session.framed_ip, 1), (World::HOST, 1), b"");
        // The mapping, and a flow that has none yet.
        world.update(
            SLOT,
            Session {
                policy: World::POLICY,
                ..session
            },
        );
        let (_, sent) = up(&mut world, &session, &free);
        world.update(SLOT, session);
        let outside = outside(&sent);
        let before = world.publisher.session_stats(SLOT).unwrap();
        let send = |world: &mut World, port: u16| {
            if is_up {
                let packet = udp((session.framed_ip, port), (World::HOST, 1), &[0; 972]);
                (up(world, &session, &packet).0, OUT)
            } else {
                (
                    down(world, &udp((World::HOST, 1), outside, &[0; 972])).0,
                    IN,
                )
            }
        };
        let reason = if is_up {
            Counter::PolicerUpstream
        } else {
            Counter::PolicerDownstream
        };
        for _ in 0..4 {
            let (verdict, forward) = send(&mut world, 1);
            assert_eq!(verdict, forward);
        }
        for port in [1, 2, 3] {
            assert_eq!(send(&mut world, port).0, Verdict::Drop(reason));
        }
        assert_eq!(
            world.workers[0].nat_mappings(),
            1,
            "no mapping by what exceeds"
        );
        for _ in 0..5 {
            world.pass(99, 33);
            assert_eq!(send(&mut world, 1).0, Verdict::Drop(reason));
            world.pass(1, 1);
            let (verdict, forward) = send(&mut world, 1);
            assert_eq!(verdict, forward);
        }
        assert_eq!(count(&world, reason), 8);
        let after = world.publisher.session_stats(SLOT).unwrap();
        let grown = if is_up {
            (
                after.up_packets - before.up_packets,
                after.up_bytes - before.up_bytes,
            )
        } else {
            (
                after.down_packets - before.down_packets,
                after.down_bytes - before.down_bytes,
            )
        };
        assert_eq!(grown, (9, 9_000));
        // The other direction is free.
        if is_up {
            assert_eq!(
                down(&mut world, &udp((World::HOST, 1), outside, &[0; 972])).0,
                IN
            );
        } else {
            assert_eq!(up(&mut world, &session, &free).0, OUT);
        }
    }
}

#[test]
fn a_faster_rate_holds_at_once_whatever_the_slower_one_had_taken() {
    let rate = |kbps, burst_bytes| Policy {
        up: Some(Rate { kbps, burst_bytes }),
        ..Policy::default()
    };
    // A burst that takes a minute and a half at the slow rate.
    let (mut world, session) = world(&rate(1, 12_000), true);
    let packet = udp((ROUTED, 1), (World::HOST, 1), &[0; 972]);
    let passed = |world: &mut World| {
        let sent = (0..30).filter(|_| up(world, &session, &packet).0 == OUT);
        sent.count()
    };
    assert_eq!(passed(&mut world), 12);
    let fast = PolicyId(3);
    let faster = rate(8_000, 5_000);
    world.publisher.write_policy(fast, Some(&faster)).unwrap();
    world.update(
        SLOT,
        Session {
            policy: fast,
            ..session
        },
    );
    assert_eq!(passed(&mut world), 0, "the burst is used up");
    world.pass(1, 1);
    assert_eq!(passed(&mut world), 1);
    world.pass(100, 1);
    assert_eq!(passed(&mut world), 5);
    // And a slower one from there on.
    world.update(SLOT, session);
    assert_eq!(passed(&mut world), 11);
}

#[test]
fn policers_meter_echoes_to_the_gateway_and_packets_sent_in_fragments() {
    let rate = Some(Rate {
        kbps: 1,
        burst_bytes: 3_000,
    });
    let policy = Policy {
        up: rate,
        down: rate,
        ..Policy::default()
    };
    let (mut world, session) = world(&policy, true);
    let big = edited(udp((World::HOST, 1), (ROUTED, 1), &[0; 1_972]), 6, 0);
    let fragment = Verdict::Fragment {
        port: 0,
        mtu: 1_492,
    };
    assert_eq!(down(&mut world, &big).0, fragment);
    let reason = Verdict::Drop(Counter::PolicerDownstream);
    assert_eq!(down(&mut world, &big).0, reason);
    let ping = echo(ROUTED, World::GATEWAY, true, 1, &[0; 972]);
    assert_eq!(up(&mut world, &session, &ping).0, IN);
    // The reply would exceed what is left of the burst downstream, the request what is left upstream.
    assert_eq!(up(&mut world, &session, &ping).0, reason);
    assert_eq!(up(&mut world, &session, &ping).0, reason);
    let reason = Verdict::Drop(Counter::PolicerUpstream);
    assert_eq!(up(&mut world, &session, &ping).0, reason);
    let stats = world.publisher.session_stats(SLOT).unwrap();
    assert_eq!((stats.up_bytes, stats.down_bytes), (1_000, 3_000));
}

#[test]
fn without_the_source_check_a_routed_session_sends_from_any_address_but_ours() {
    let off = Policy {
        source_check: false,
        ..Policy::default()
    };
    let (mut world, session) = world(&off, true);
    let own = Ipv4Addr::new(9, 9, 9, 9);
    let addresses = [
        PortAddresses::default(),
        PortAddresses::default(),
        PortAddresses {
            ipv4: Some(own),
            ipv6: None,
        },
    ];
    world.publisher.publish_port_addresses(&addresses);
    world.pass(1, 1);
    let from_source = |source: [u8; 4]| udp((source.into(), 1), (World::HOST, 1), b"");
    for source in [[198, 51, 100, 7], [172, 16, 0, 1], [9, 9, 9, 8]] {
        assert_eq!(
            up(&mut world, &session, &from_source(source)).0,
            OUT,
            "{source:?}"
        );
    }
    for source in [
        [0, 0, 0, 0],
        [127, 0, 0, 1],
        [224, 0, 0, 1],
        [255, 255, 255, 255],
        [198, 51, 100, 8],
        [100, 64, 0, 2],
        [203, 0, 113, 0],
        own.octets(),
    ] {
        let buf = from(&session, &from_source(source));
        let name = &format!("{source:?}");
        expect_drop(name, &mut world, Way::Up, &buf, Counter::SourceSpoofed);
    }
}

#[test]
fn without_the_source_check_a_session_behind_nat_sends_from_its_own_address_alone() {
    let off = Policy {
        source_check: false,
        ..Policy::default()
    };
    let (mut world, session) = world(&off, false);
    let packet = |source: Ipv4Addr| udp((source, 1), (World::HOST, 1), b"");
    assert_eq!(up(&mut world, &session, &packet(session.framed_ip)).0, OUT);
    for source in [World::framed_ip(1), Ipv4Addr::new(9, 9, 9, 9)] {
        let buf = from(&session, &packet(source));
        expect_drop("foreign", &mut world, Way::Up, &buf, Counter::SourceSpoofed);
    }
}

#[test]
fn a_packet_from_the_core_with_a_source_of_our_pools_or_of_no_host_is_spoofed() {
    let (mut world, session) = world(&Policy::default(), false);
    let (_, sent) = up(
        &mut world,
        &session,
        &udp((session.framed_ip, 1), (World::HOST, 1), b""),
    );
    let outside = outside(&sent);
    for source in [
        [203, 0, 113, 1],
        [100, 64, 0, 9],
        [198, 51, 100, 1],
        [0, 0, 0, 0],
        [127, 0, 0, 1],
        [224, 0, 0, 5],
    ] {
        let source = Ipv4Addr::from(source);
        let to_host = world.from_core(&udp((source, 1), (Ipv4Addr::new(9, 9, 9, 9), 1), b""));
        let verdict = world.downstream(0, vec![to_host], Origin::Port).remove(0).0;
        assert_eq!(
            verdict,
            Verdict::Host { port: 2 },
            "the kernel's own business"
        );
        for packet in [
            udp((source, 1), outside, b""),
            edited(udp((source, 1), outside, b""), 6, 0x20),
            udp((source, 1), (ROUTED, 1), b""),
        ] {
            let buf = world.from_core(&packet);
            let name = &source.to_string();
            expect_drop(name, &mut world, Way::Down, &buf, Counter::SourceSpoofed);
        }
    }
}

#[test]
fn the_kernels_addresses_are_out_of_a_subscribers_reach() {
    let (mut world, session) = world(&Policy::default(), false);
    let own = Ipv4Addr::new(9, 9, 9, 9);
    let packet = udp((session.framed_ip, 1), (own, 22), b"");
    assert_eq!(up(&mut world, &session, &packet).0, OUT);
    let addresses = [
        PortAddresses::default(),
        PortAddresses::default(),
        PortAddresses {
            ipv4: Some(own),
            ipv6: None,
        },
    ];
    world.publisher.publish_port_addresses(&addresses);
    world.pass(1, 1);
    let buf = from(&session, &packet);
    expect_drop(
        "port address",
        &mut world,
        Way::Up,
        &buf,
        Counter::DestinationGateway,
    );
    let near = udp(
        (session.framed_ip, 1),
        (Ipv4Addr::new(9, 9, 9, 10), 22),
        b"",
    );
    assert_eq!(up(&mut world, &session, &near).0, OUT);
    // 10.5.0.5 is a local route.
    let local = udp(
        (session.framed_ip, 1),
        (Ipv4Addr::new(10, 5, 0, 5), 22),
        b"",
    );
    let buf = from(&session, &local);
    expect_drop(
        "local route",
        &mut world,
        Way::Up,
        &buf,
        Counter::DestinationGateway,
    );
}

fn rule(protocol: u8, remote_ports: Option<u16>, local_ports: Option<u16>) -> FilterRule {
    FilterRule {
        action: FilterAction::Drop,
        protocol: Some(protocol),
        remote: None,
        remote_ports: remote_ports.map(|port| (port, port)),
        local_ports: local_ports.map(|port| (port, port)),
    }
}

#[test]
fn filters_see_the_subscribers_own_ports_on_both_sides_of_nat() {
    let policy = Policy {
        filter: Some(FilterId(0)),
        ..Policy::default()
    };
    let (mut world, session) = world(&policy, false);
    let me = |port| (session.framed_ip, port);
    let host = |port| (World::HOST, port);
    world
        .publisher
        .publish_filters(&[Filter::default()])
        .unwrap();
    world.pass(1, 1);
    let (verdict, sent) = up(&mut world, &session, &tcp(me(5_000), host(80), 0x10, b""));
    assert_eq!(verdict, OUT);
    let outside = outside(&sent);
    assert_ne!(outside.1, 5_000);
    let answer = tcp(host(80), outside, 0x10, b"");
    let error = icmp_error(World::HOST, outside.0, 3, &sent.data()[14..]);
    for (name, filter, dropped_up, dropped_down, error_dropped) in [
        ("nothing", Filter::default(), false, false, false),
        (
            "remote port up",
            Filter {
                up: vec![rule(6, Some(80), None)],
                ..Filter::default()
            },
            true,
            false,
            false,
        ),
        (
            "local port up",
            Filter {
                up: vec![rule(6, None, Some(5_000))],
                ..Filter::default()
            },
            true,
            false,
            false,
        ),
        (
            "outside port up",
            Filter {
                up: vec![rule(6, None, Some(outside.1))],
                ..Filter::default()
            },
            false,
            false,
            false,
        ),
        (
            "remote port down",
            Filter {
                down: vec![rule(6, Some(80), None)],
                ..Filter::default()
            },
            false,
            true,
            false,
        ),
        (
            "inside port down",
            Filter {
                down: vec![rule(6, None, Some(5_000))],
                ..Filter::default()
            },
            false,
            true,
            false,
        ),
        (
            "outside port down",
            Filter {
                down: vec![rule(6, None, Some(outside.1))],
                ..Filter::default()
            },
            false,
            false,
            false,
        ),
        (
            "icmp down",
            Filter {
                down: vec![rule(1, None, None)],
                ..Filter::default()
            },
            false,
            false,
            true,
        ),
        (
            "all up",
            Filter {
                drop_other_up: true,
                ..Filter::default()
            },
            true,
            false,
            false,
        ),
        (
            "all down",
            Filter {
                drop_other_down: true,
                ..Filter::default()
            },
            false,
            true,
            true,
        ),
    ] {
        world.publisher.publish_filters(&[filter]).unwrap();
        world.pass(1, 1);
        let packet = tcp(me(5_000), host(80), 0x10, b"");
        if dropped_up {
            expect_drop(
                name,
                &mut world,
                Way::Up,
                &from(&session, &packet),
                Counter::FilterUpstream,
            );
        } else {
            assert_eq!(up(&mut world, &session, &packet).0, OUT, "{name}");
        }
        for (packet, dropped) in [(&answer, dropped_down), (&error, error_dropped)] {
            if dropped {
                let buf = world.from_core(packet);
                expect_drop(name, &mut world, Way::Down, &buf, Counter::FilterDownstream);
            } else {
                assert_eq!(down(&mut world, packet).0, IN, "{name}");
            }
        }
    }
}

#[test]
fn a_filter_makes_no_mapping_and_covers_the_gateway() {
    let policy = Policy {
        filter: Some(FilterId(0)),
        ..Policy::default()
    };
    let (mut world, session) = world(&policy, false);
    let all = Filter {
        up: vec![rule(1, None, None), rule(17, None, None)],
        ..Filter::default()
    };
    world.publisher.publish_filters(&[all]).unwrap();
    world.pass(1, 1);
    let me = session.framed_ip;
    let ping = from(&session, &echo(me, World::GATEWAY, true, 1, b""));
    expect_drop("ping", &mut world, Way::Up, &ping, Counter::FilterUpstream);
    let new = from(&session, &udp((me, 1), (World::HOST, 1), b""));
    expect_drop(
        "new flow",
        &mut world,
        Way::Up,
        &new,
        Counter::FilterUpstream,
    );
}

#[test]
fn control_frames_of_one_session_are_limited_and_nobody_else_pays() {
    let mut world = World::new(Spec {
        punts_per_second: 5,
        ..Spec::default()
    });
    let (first, second) = (world.open(0), world.open(1));
    let lcp =
        |n, session| World::ppp_frame(World::slot(n), session, protocol::LCP, b"\x09\x01\0\x04");
    let flood = vec![lcp(0, &first); 8];
    let sent = world.upstream(0, flood.clone(), Origin::Port);
    let punted = |out: &[(Verdict, TestBuf)]| {
        out.iter()
            .filter(|o| matches!(o.0, Verdict::Punt(Punt::Ppp { .. })))
            .count()
    };
    assert_eq!(punted(&sent), 5);
    assert_eq!(
        sent[5..],
        vec![(Verdict::Drop(Counter::PuntRateLimited), flood[0].clone()); 3]
    );
    let discovery = pppoe_discovery(
        World::port_mac(0),
        World::client_mac(0),
        &World::tags(&first),
        code::PADT,
        b"",
    );
    let out = world.upstream(
        0,
        vec![lcp(1, &second), TestBuf::new(0, &discovery)],
        Origin::Port,
    );
    assert_eq!(punted(&out), 1);
    assert_eq!(out[1].0, Verdict::Punt(Punt::Discovery));
    let data = udp((first.framed_ip, 1), (World::HOST, 1), b"");
    assert_eq!(up(&mut world, &first, &data).0, OUT);
    world.pass(200, 50);
    assert_eq!(punted(&world.upstream(0, flood.clone(), Origin::Port)), 1);
    world.pass(5_000, 50);
    assert_eq!(punted(&world.upstream(0, flood, Origin::Port)), 5);
    assert_eq!(count(&world, Counter::PuntRateLimited), 13);
}

/// A TCP segment with an MSS option and these control bits.
fn with_mss(src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16), flags: u8, mss: u16) -> Vec<u8> {
    let [high, low] = mss.to_be_bytes();
    let mut packet = tcp(src, dst, flags, &[2, 4, high, low]);
    packet[32] = 0x60;
    packet[36..38].fill(0);
    let check = bng_wire::checksum::l4_checksum(src.0.to_bits(), dst.0.to_bits(), 6, &packet[20..]);
    packet[36..38].copy_from_slice(&check.to_be_bytes());
    packet
}

#[test]
fn the_mss_of_syns_is_lowered_to_the_sessions_mtu_both_ways() {
    const SYN: u8 = 0x02;
    const SYN_ACK: u8 = 0x12;
    for is_routed in [false, true] {
        for (clamp, mtu, flags, mss, expect) in [
            (true, 1_492, SYN, 1_460, 1_452),
            (true, 1_492, SYN_ACK, 1_460, 1_452),
            (true, 1_400, SYN, 1_460, 1_360),
            (true, 1_492, SYN, 1_452, 1_452),
            (true, 1_492, SYN, 536, 536),
            (true, 1_492, 0x10, 1_460, 1_460),
            (false, 1_492, SYN, 1_460, 1_460),
        ] {
            let policy = Policy {
                mss_clamp: clamp,
                ..Policy::default()
            };
            let (mut world, session) = world(&policy, is_routed);
            let session = Session { mtu, ..session };
            world.update(SLOT, session);
            let me = (session.framed_ip, 5_000);
            let packet = with_mss(me, (World::HOST, 80), flags, mss);
            let (verdict, sent) = up(&mut world, &session, &packet);
            assert_eq!(verdict, OUT);
            let outside = outside(&sent);
            let answer = with_mss((World::HOST, 80), outside, flags, mss);
            let (verdict, received) = down(&mut world, &answer);
            assert_eq!(verdict, IN);
            for bytes in [&sent.data()[14..], &received.data()[30..]] {
                assert_checksums(bytes);
                assert_eq!(bytes[40..42], [2, 4]);
                assert_eq!(u16::from_be_bytes([bytes[42], bytes[43]]), expect);
            }
            let clamped = if expect < mss { 2 } else { 0 };
            assert_eq!(count(&world, Counter::MssClamped), clamped);
        }
    }
}
