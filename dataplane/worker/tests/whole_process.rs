//! The real process over kernel ports: what comes out byte for byte, and counters that are exact to the frame.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod running;

use bng_fastpath::testing::{
    assert_checksums, echo, ethernet, ipv4, pppoe_discovery, pppoe_session, tcp, udp,
};
use bng_shm::{Counter, FrameMeta, PUNT_RING_SLOTS, PuntClass, Session, SessionState, Vlans};
use bng_wire::checksum::checksum;
use bng_wire::ethernet::ethertype;
use bng_wire::pppoe::{code, protocol};
use bng_wire::{MacAddr, VlanStack};
use running::frames::{
    QINQ, from_core, from_subscriber, hop, source_port, tags, to_core, to_subscriber,
    two_subscribers,
};
use running::{ACCESS, GATEWAY, Gateway, HOST, OURS, ROUTER, ROUTER_MAC, Subscriber, run};
use std::time::Duration;

#[test]
fn packets_go_both_ways_byte_for_byte_in_order_and_are_counted_exactly() {
    const FLOWS: u16 = 8;
    const ROUNDS: u8 = 50;
    let mut g = Gateway::start("bytes");
    let both = two_subscribers(&mut g);
    let flows: Vec<_> = (0..2 * FLOWS)
        .map(|n| (both[usize::from(n % 2)], 5_000 + n))
        .collect();
    // A packet says which flow it is of and which of the flow it is.
    let body = |flow: usize, round: u8| [flow as u8, round];
    let mut ports = vec![None; flows.len()];
    for round in 0..ROUNDS {
        for (flow, (s, inside)) in flows.iter().enumerate() {
            let from = (s.session.framed_ip, *inside);
            let packet = udp(from, (HOST, 53), &body(flow, round));
            g.access
                .send(&from_subscriber(&g, s, protocol::IPV4, &packet));
        }
        // One round is in flight at a time, so a flow whose packets changed places would show.
        let mut missing: Vec<_> = (0..flows.len()).collect();
        while !missing.is_empty() {
            let frame = g.core.receive();
            let flow = usize::from(frame[frame.len() - 2]);
            let (s, inside) = flows[flow];
            // Which port of its block a flow gets is random; it keeps it.
            let port = *ports[flow].get_or_insert(source_port(&frame));
            let packet = udp((s.block().address, port), (HOST, 53), &body(flow, round));
            assert_eq!(
                frame,
                to_core(&g, &hop(packet)),
                "flow {flow}, round {round}"
            );
            let offset = port.checked_sub(s.block().first_port).unwrap();
            assert!(offset < s.block().size && port % 2 == inside % 2, "{port}");
            missing.retain(|other| *other != flow);
        }
    }
    let ports: Vec<u16> = ports.into_iter().flatten().collect();
    for (flow, ((s, inside), port)) in flows.iter().zip(&ports).enumerate() {
        for body in [
            &b""[..],
            &body(flow, 0),
            b"a longer answer than Ethernet's minimum needs",
        ] {
            let packet = udp((HOST, 53), (s.block().address, *port), body);
            g.core.send(&from_core(&g, &packet));
            let packet = udp((HOST, 53), (s.session.framed_ip, *inside), body);
            assert_eq!(g.access.receive(), to_subscriber(&g, s, &hop(packet)));
        }
    }
    let up = u64::from(ROUNDS) * 2 * u64::from(FLOWS);
    let down = 3 * 2 * u64::from(FLOWS);
    for (counter, value) in [
        (Counter::RxAccess, up),
        (Counter::TxCore, up),
        (Counter::ForwardedUpstream, up),
        (Counter::RxCore, down),
        (Counter::TxAccess, down),
        (Counter::ForwardedDownstream, down),
        (Counter::NatMappingCreated, 2 * u64::from(FLOWS)),
    ] {
        g.expect(counter, value);
    }
    assert!(
        g.count(Counter::HandedOver) > 0,
        "frames came to both workers"
    );
    for s in &both {
        let stats = g.control.session_stats(s.slot).unwrap();
        assert_eq!(stats.up_packets, up / 2);
        assert_eq!(stats.up_bytes, up / 2 * (20 + 8 + 2));
        assert_eq!(stats.down_packets, down / 2);
    }
    g.assert_silent();
    g.assert_conservation();
    let drops: u64 = Counter::drops().map(|counter| g.count(counter)).sum();
    assert_eq!(drops, 0);
}

#[test]
fn what_is_wrong_is_dropped_under_its_name_and_nothing_else_changes() {
    // ICMP errors would come out in place of some of the packets.
    let silent = |yaml: String| yaml.replace("  mbufs:", "  icmp_errors_per_second: 0\n  mbufs:");
    let mut g = Gateway::start_with("wrong", silent);
    let both = two_subscribers(&mut g);
    let negotiating = {
        let mut s = Subscriber::new(11, 1, Vlans::default());
        s.session = Session {
            state: SessionState::Negotiating,
            ..s.session
        };
        g.open(&s);
        s
    };
    let [a, b] = both;
    let stranger = Subscriber {
        slot: a.slot,
        session: Session {
            client_mac: [2, 0, 0, 0, 1, 99],
            ..a.session
        },
    };
    let other_vlan = Subscriber {
        slot: a.slot,
        session: Session {
            vlans: Vlans {
                c_vlan: Some(8),
                ..QINQ
            },
            ..a.session
        },
    };
    let data = |s: &Subscriber, packet: &[u8]| from_subscriber(&g, s, protocol::IPV4, packet);
    let ip = a.session.framed_ip;
    let good = udp((ip, 5_000), (HOST, 53), b"question");
    let edited = |at: usize, value: u8| {
        let mut packet = good.clone();
        packet[at] = value;
        packet[10..12].fill(0);
        let check = checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&check.to_be_bytes());
        packet
    };
    let bad_checksum = {
        let mut packet = good.clone();
        packet[10] ^= 1;
        packet
    };
    // The untagged subscriber's PPPoE header starts at 14.
    let pppoe = |at: usize, value: u8| {
        let mut frame = data(&b, &udp((b.session.framed_ip, 1), (HOST, 53), b""));
        frame[at] = value;
        frame
    };
    let to = |dst: [u8; 4]| data(&a, &udp((ip, 5_000), (dst.into(), 53), b""));
    let upstream = [
        (Counter::NotForUs, pppoe(5, g.access_mac.0[5] ^ 0x40)),
        (Counter::NotPppoe, pppoe(13, 0x00)),
        (Counter::PppoeVersion, pppoe(14, 0x21)),
        (Counter::PppoeCode, pppoe(15, 9)),
        (Counter::PppoeLengthZero, pppoe(19, 0)),
        (Counter::PppoeLengthOne, pppoe(19, 1)),
        (Counter::PppoeLengthLong, pppoe(18, 1)),
        (Counter::PppProtocolCompressed, pppoe(20, 0x21)),
        (Counter::PppoeTruncated, pppoe(14, 0x11)[..19].to_vec()),
        (Counter::SessionUnknown, pppoe(17, 200)),
        (Counter::SessionUnknown, data(&stranger, &good)),
        (Counter::SessionUnknown, data(&other_vlan, &good)),
        (Counter::SessionNotOpen, data(&negotiating, &good)),
        (
            Counter::SessionNotOpen,
            from_subscriber(&g, &a, protocol::IPV6, &[0x60; 40]),
        ),
        (Counter::SourceSpoofed, data(&b, &good)),
        (Counter::Ipv4Checksum, data(&a, &bad_checksum)),
        (Counter::Ipv4Header, data(&a, &edited(0, 0x65))),
        (
            Counter::Ipv4Options,
            data(&a, &{
                let mut packet = udp((ip, 5_000), (HOST, 53), b"options are four bytes");
                packet[0] = 0x46;
                packet[10..12].fill(0);
                let check = checksum(&packet[..24]);
                packet[10..12].copy_from_slice(&check.to_be_bytes());
                packet
            }),
        ),
        (Counter::Ipv4Truncated, data(&a, &good[..27])),
        (Counter::L4Truncated, data(&a, &ipv4(ip, HOST, 17, &[0; 7]))),
        (
            Counter::UdpLength,
            data(&a, &{
                let mut packet = good.clone();
                packet[25] = 200;
                packet
            }),
        ),
        (Counter::TtlExpired, data(&a, &edited(8, 1))),
        (Counter::NatFragmentNoFirst, data(&a, &edited(7, 9))),
        (Counter::DestinationInvalid, to([224, 0, 0, 5])),
        (Counter::DestinationInvalid, to([127, 0, 0, 1])),
        (Counter::DestinationSubscriber, to([100, 64, 0, 9])),
        (Counter::NatNoMapping, to([203, 0, 113, 3])),
        (
            Counter::DestinationGateway,
            data(&a, &udp((ip, 1), (GATEWAY, 22), b"")),
        ),
        (Counter::NatProtocol, data(&a, &ipv4(ip, HOST, 47, &[0; 8]))),
        (
            Counter::NatIcmpUnsupported,
            data(&a, &echo(ip, HOST, false, 1, b"")),
        ),
        (
            Counter::NatIcmpEmbedded,
            data(&a, &{
                bng_fastpath::testing::icmp_error(ip, HOST, 3, b"no packet")
            }),
        ),
        (
            Counter::IcmpChecksum,
            data(&a, &{
                let mut packet = echo(ip, GATEWAY, true, 1, b"x");
                packet[28] ^= 1;
                packet
            }),
        ),
    ];
    let block = a.block();
    let down = |packet: &[u8]| from_core(&g, packet);
    let unasked = udp((HOST, 53), (block.address, block.first_port), b"unasked");
    let downstream = [
        (Counter::NatNoMapping, down(&unasked)),
        (
            Counter::NatNoMapping,
            down(&tcp((HOST, 80), (block.address, 60_000), 2, b"")),
        ),
        (
            Counter::NatIcmpUnsupported,
            down(&echo(HOST, block.address, true, 1, b"")),
        ),
        (
            Counter::NatProtocol,
            down(&ipv4(HOST, block.address, 47, &[0; 8])),
        ),
        (
            Counter::DestinationSubscriber,
            down(&udp((HOST, 1), (ip, 5_000), b"")),
        ),
        (Counter::NotForUs, {
            let mut frame = down(&unasked);
            frame[5] ^= 0x40;
            frame
        }),
        (Counter::Ipv4Checksum, {
            let mut frame = down(&unasked);
            frame[24] ^= 1;
            frame
        }),
        (
            Counter::Ipv4Truncated,
            down(&udp((HOST, 1), (block.address, 1), &[0; 80]))[..70].to_vec(),
        ),
        (Counter::UdpLength, {
            let mut frame = down(&unasked);
            frame[39] = 250;
            frame
        }),
    ];
    let mut expected = std::collections::BTreeMap::new();
    let ways = [(&g.access, &upstream[..]), (&g.core, &downstream[..])];
    for (tap, cases) in ways {
        for (reason, frame) in cases {
            let count = expected.entry(*reason).or_insert(0);
            *count += 1;
            tap.send(frame);
            g.expect(*reason, *count);
        }
    }
    g.assert_silent();
    for counter in Counter::drops() {
        let value = expected.get(&counter).copied().unwrap_or(0);
        assert_eq!(g.count(counter), value, "{}", counter.label());
    }
    assert_eq!(g.count(Counter::RxAccess), upstream.len() as u64);
    assert_eq!(g.count(Counter::RxCore), downstream.len() as u64);
    assert_eq!(g.count(Counter::NatMappingCreated), 0);
    for s in [a, b, negotiating] {
        assert_eq!(g.control.session_stats(s.slot).unwrap().up_packets, 0);
    }
    g.assert_conservation();
}

#[test]
fn control_gets_its_frames_and_sends_its_own() {
    let mut g = Gateway::start("control");
    let both = two_subscribers(&mut g);
    let padi = {
        let body = [0x01, 0x01, 0, 0];
        let mac = both[1].mac();
        pppoe_discovery(
            MacAddr::BROADCAST,
            mac,
            &VlanStack::UNTAGGED,
            code::PADI,
            &body,
        )
    };
    g.access.send(&padi);
    let (_, frame, session) = g.punted();
    assert_eq!((frame, session), (padi, None));
    for s in &both {
        // Frames of one session come in order, through its owner, whatever queue each arrived on.
        for id in 0..20u8 {
            let request = [9, id, 0, 8, 1, 2, 3, 4];
            g.access
                .send(&from_subscriber(&g, s, protocol::LCP, &request));
        }
        for id in 0..20u8 {
            let (worker, frame, session) = g.punted();
            assert_eq!(worker, s.session.owner);
            assert_eq!(session, Some((s.slot, 1)));
            // The packet socket gives the outer tag back with the customer's TPID.
            let tags = tags(s, ethertype::VLAN);
            let request = [9, id, 0, 8, 1, 2, 3, 4];
            let sid = s.slot.session_id();
            let sent = pppoe_session(g.access_mac, s.mac(), &tags, sid, protocol::LCP, &request);
            assert_eq!(frame, sent);
        }
        assert!(g.control.session_stats(s.slot).unwrap().last_up_ms > 0);
    }

    let s = both[1];
    let frame = {
        let sid = s.slot.session_id();
        let body = [10, 1, 0, 8, 1, 2, 3, 4];
        pppoe_session(
            s.mac(),
            g.access_mac,
            &VlanStack::UNTAGGED,
            sid,
            protocol::LCP,
            &body,
        )
    };
    let meta = |port, session| FrameMeta {
        port,
        class: PuntClass::Ppp,
        session,
    };
    let good = meta(ACCESS, Some((s.slot, 1)));
    assert_eq!(g.control.inject(1, &good, &frame), Ok(true));
    let mut padded = frame.clone();
    padded.resize(60, 0);
    assert_eq!(g.access.receive(), padded);
    for (reason, meta, bytes) in [
        (
            Counter::InjectStale,
            meta(ACCESS, Some((s.slot, 2))),
            &frame[..],
        ),
        (
            Counter::InjectInvalid,
            meta(running::CORE, None),
            &frame[..],
        ),
        (Counter::InjectInvalid, meta(77, None), &frame[..]),
        (Counter::InjectInvalid, meta(ACCESS, None), &frame[..13]),
    ] {
        let before = g.count(reason);
        assert_eq!(g.control.inject(1, &meta, bytes), Ok(true));
        g.expect(reason, before + 1);
    }
    g.assert_silent();
    g.expect(Counter::PuntDiscovery, 1);
    g.expect(Counter::PuntPpp, 40);
    g.expect(Counter::Injected, 1);
    g.assert_conservation();
}

#[test]
fn the_gateway_answers_its_subscribers_and_the_kernel_answers_the_core() {
    let mut g = Gateway::start("host");
    let both = two_subscribers(&mut g);
    for s in &both {
        let ip = s.session.framed_ip;
        let request = echo(ip, GATEWAY, true, 77, b"are you there, gateway?");
        g.access
            .send(&from_subscriber(&g, s, protocol::IPV4, &request));
        let mut reply = to_subscriber(
            &g,
            s,
            &echo(GATEWAY, ip, false, 77, b"are you there, gateway?"),
        );
        if s.session.vlans.s_vlan.is_some() {
            // The frame turns around with the tags it came with.
            reply[12..14].copy_from_slice(&ethertype::VLAN.to_be_bytes());
        }
        assert_eq!(g.access.receive(), reply);
    }
    // RFC 826.
    let arp = |operation: u8, from: (MacAddr, [u8; 4]), to: (MacAddr, [u8; 4])| {
        let mut packet = vec![0, 1, 8, 0, 6, 4, 0, operation];
        for (mac, ip) in [from, to] {
            packet.extend(mac.0);
            packet.extend(ip);
        }
        packet
    };
    let router = (ROUTER_MAC, ROUTER.octets());
    let request = arp(1, router, (MacAddr::ZERO, OURS.octets()));
    let broadcast =
        |payload: &[u8]| ethernet(MacAddr::BROADCAST, ROUTER_MAC, ethertype::ARP, payload);
    g.core.send(&broadcast(&request));
    let reply = arp(2, (g.core_mac, OURS.octets()), router);
    let reply = ethernet(ROUTER_MAC, g.core_mac, ethertype::ARP, &reply);
    assert_eq!(g.core.receive()[..reply.len()], reply);
    for n in 0..50u16 {
        g.core
            .send(&from_core(&g, &echo(ROUTER, OURS, true, n, b"ping")));
        let reply = g.core.receive();
        let packet = &reply[14..];
        assert_checksums(packet);
        assert_eq!(
            (reply[..6].to_vec(), packet[9], packet[20]),
            (ROUTER_MAC.0.to_vec(), 1, 0)
        );
        assert_eq!(packet[24..26], n.to_be_bytes());
    }
    g.expect(Counter::HostIn, 51);
    g.expect(Counter::HostOut, 51);
    g.expect(Counter::EchoAnswered, 2);
    g.assert_silent();
    g.assert_conservation();
}

#[test]
fn sigterm_ends_it_cleanly_and_the_next_one_knows_the_mappings() {
    let mut g = Gateway::start("restart");
    let both = two_subscribers(&mut g);
    let send = |g: &Gateway, s: &Subscriber| {
        let packet = udp((s.session.framed_ip, 5_000), (HOST, 53), b"question");
        g.access
            .send(&from_subscriber(g, s, protocol::IPV4, &packet));
        source_port(&g.core.receive())
    };
    let ports = both.map(|s| send(&g, &s));
    let before = g.count(Counter::NatMappingCreated);
    assert_eq!(before, 2);
    let status = g.terminate();
    assert_eq!(status.code(), Some(0), "{:#?}", g.said);
    assert!(g.said.iter().any(|line| line.ends_with("stopped")));
    let lost: Vec<_> = g
        .said
        .iter()
        .filter(|line| line.contains("packet buffers"))
        .collect();
    assert!(lost.is_empty(), "{lost:?}");
    assert!(!g.control.dataplane_alive());

    g.launch();
    // The core first: nothing has refreshed the mapping since the restart.
    for (s, port) in both.iter().zip(ports) {
        let answer = udp((HOST, 53), (s.block().address, port), b"answer");
        g.core.send(&from_core(&g, &answer));
        let expected = udp((HOST, 53), (s.session.framed_ip, 5_000), b"answer");
        assert_eq!(g.access.receive(), to_subscriber(&g, s, &hop(expected)));
    }
    assert_eq!(both.map(|s| send(&g, &s)), ports);
    g.expect(Counter::NatMappingCreated, before);
    g.assert_conservation();
    assert_eq!(g.terminate().code(), Some(0));
}

#[test]
fn a_flood_from_all_sides_loses_no_frame_without_a_name() {
    let unlimited = |yaml: String| yaml + "pppoe: { punts_per_second_per_session: 100000 }\n";
    let mut g = Gateway::start_with("flood", unlimited);
    let [a, b] = two_subscribers(&mut g);
    let data = |s: &Subscriber, port| {
        let packet = udp((s.session.framed_ip, port), (HOST, 53), &[0; 400]);
        from_subscriber(&g, s, protocol::IPV4, &packet)
    };
    let lcp = |s: &Subscriber| from_subscriber(&g, s, protocol::LCP, &[9, 1, 0, 8, 1, 2, 3, 4]);
    let padi = pppoe_discovery(
        MacAddr::BROADCAST,
        b.mac(),
        &VlanStack::UNTAGGED,
        code::PADI,
        &[1, 1, 0, 0],
    );
    let unasked = udp((HOST, 53), (a.block().address, 60_000), b"");
    let to_kernel = udp((ROUTER, 53), (OURS, 9), &[0; 400]);
    for n in 0..20_000u16 {
        g.access.send(&match n % 8 {
            0 => lcp(&a),
            1 => lcp(&b),
            2 => padi.clone(),
            // More flows than a block has ports.
            3..=5 => data(&a, n),
            6 => data(&b, 5_000),
            _ => data(&b, 5_000)[..40].to_vec(),
        });
        let packet = if n % 2 == 0 { &unasked } else { &to_kernel };
        g.core.send(&from_core(&g, packet));
    }
    // Nobody takes what is punted: in the end the rings are full, and both shares say so.
    let mut more = 0;
    while g.count(Counter::PuntRingFull) == 0 || g.count(Counter::PuntRingReserved) == 0 {
        assert!(more < 20 * PUNT_RING_SLOTS, "no ring gets full");
        for _ in 0..500 {
            g.access.send(&lcp(&a));
            g.access.send(&lcp(&b));
        }
        g.access.send(&padi);
        more += 1_000;
    }
    g.assert_conservation();
    for reason in [
        Counter::PuntRingFull,
        Counter::PuntRingReserved,
        Counter::PppoeLengthLong,
        Counter::NatBlockExhausted,
        Counter::NatNoMapping,
    ] {
        assert!(g.count(reason) > 0, "{}", reason.label());
    }
    assert!(g.count(Counter::NatMappingCreated) <= 2 * 512);
    assert_eq!(g.terminate().code(), Some(0));
    let lost: Vec<_> = g
        .said
        .iter()
        .filter(|line| line.contains("packet buffers"))
        .collect();
    assert!(lost.is_empty(), "{lost:?}");
}

/// HZ-09: nothing of a session reaches the next one in its slot, with its address and its port block.
#[test]
fn packets_never_cross_from_a_session_to_the_next_in_its_slot() {
    const LIVES: u8 = 200;
    let mut g = Gateway::start("reuse");
    let mut delivered = 0;
    for life in 0..LIVES {
        let mut s = Subscriber::new(7, life % 2, Vlans::default());
        s.session.client_mac[5] = life;
        g.open(&s);
        let packet = udp((s.session.framed_ip, 5_000), (HOST, 53), &[life]);
        let frame = from_subscriber(&g, &s, protocol::IPV4, &packet);
        g.access.send(&frame);
        let came = g.core.receive();
        let port = source_port(&came);
        let packet = hop(udp((s.block().address, port), (HOST, 53), &[life]));
        assert_eq!(came, to_core(&g, &packet));
        // These are still on their way when the session ends.
        let answer = udp((HOST, 53), (s.block().address, port), &[life]);
        for _ in 0..16 {
            g.core.send(&from_core(&g, &answer));
            g.access.send(&frame);
        }
        g.close(&s);
        let answer = hop(udp((HOST, 53), (s.session.framed_ip, 5_000), &[life]));
        while let Some(frame) = g.access.receive_within(Duration::ZERO) {
            assert_eq!(frame, to_subscriber(&g, &s, &answer), "life {life}");
            delivered += 1;
        }
        while let Some(frame) = g.core.receive_within(Duration::ZERO) {
            assert_eq!(frame, to_core(&g, &packet), "life {life}");
        }
    }
    g.assert_conservation();
    g.expect(Counter::NatMappingCreated, u64::from(LIVES));
    let answers = 16 * u64::from(LIVES);
    g.expect(Counter::RxCore, answers);
    let down = g.count(Counter::ForwardedDownstream);
    assert_eq!(down, delivered);
    assert!(down > 0 && g.count(Counter::SessionUnknown) > 0);
    let (gone, moved) = (
        g.count(Counter::NatNoMapping),
        g.count(Counter::HandoverStale),
    );
    assert!(gone + down <= answers && answers <= gone + down + moved);
}

#[test]
fn a_deleted_twin_ends_the_process_by_name() {
    let mut g = Gateway::start("twin");
    run("ip", "link delete core0");
    assert_eq!(g.ended().code(), Some(1));
    let last = g.said.last().unwrap();
    assert!(
        last.contains("TAP twin of port core0 was deleted"),
        "{last}"
    );
}
