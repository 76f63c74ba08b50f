//! Any bytes, in any direction: one verdict each, one count each, and no effect of what is malformed.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use bng_fastpath::testing::{Spec, TestBuf, World, echo, icmp_error, tcp, udp, wrong_checksum};
use bng_fastpath::{Origin, PacketBuf, Verdict};
use bng_shm::{
    Counter, Filter, FilterAction, FilterId, FilterRule, Policy, PolicyId, Rate, Session,
};
use bng_wire::ethernet::ethertype;
use proptest::prelude::*;

/// Seeds that come far: good frames of both directions, as bytes.
fn seeds(world: &mut World) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let slot = World::slot(0);
    let session = Session {
        generation: 1,
        ..world.session(0)
    };
    let me = World::framed_ip(0);
    let host = World::HOST;
    let out = [
        udp((me, 1), (host, 2), b"payload"),
        tcp((me, 1), (host, 2), 2, b""),
        echo(me, host, true, 5, b"ping"),
        echo(me, World::GATEWAY, true, 5, b"ping"),
        icmp_error(me, host, 3, &udp((host, 2), (me, 1), b"")),
    ];
    let up: Vec<_> = out
        .iter()
        .map(|p| World::from_subscriber(slot, &session, p).data().to_vec())
        .collect();
    // The mappings that the packets of the other direction use.
    let bufs = up.iter().map(|frame| TestBuf::new(0, frame)).collect();
    let sent = world.upstream(0, bufs, Origin::Port);
    let mut down = Vec::new();
    for (verdict, buf) in &sent {
        if *verdict != (Verdict::Forward { port: 2 }) {
            continue;
        }
        let packet = &buf.data()[14..];
        let source = bng_wire::ipv4::parse(packet).unwrap().src_addr();
        let port = u16::from_be_bytes([packet[20], packet[21]]);
        let answers = [
            udp((host, 2), (source, port), b"payload"),
            tcp((host, 2), (source, port), 0x12, b""),
            echo(
                host,
                source,
                false,
                u16::from_be_bytes([packet[24], packet[25]]),
                b"ping",
            ),
            icmp_error(host, source, 11, packet),
        ];
        down.extend(answers.iter().map(|p| world.from_core(p).data().to_vec()));
    }
    (up, down)
}

/// Puts session 0 under a policy with everything in it, and a small MTU.
fn restrict(world: &mut World) {
    let rule = |protocol| FilterRule {
        action: FilterAction::Drop,
        protocol: Some(protocol),
        remote: None,
        remote_ports: Some((1, 1_000)),
        local_ports: None,
    };
    let filter = Filter {
        up: vec![rule(6)],
        down: vec![rule(17)],
        ..Filter::default()
    };
    let rate = Some(Rate {
        kbps: 1,
        burst_bytes: 1_000,
    });
    let policy = Policy {
        up: rate,
        down: rate,
        source_check: false,
        mss_clamp: true,
        filter: Some(FilterId(0)),
    };
    let id = PolicyId(2);
    world.publisher.publish_filters(&[filter]).unwrap();
    world.publisher.write_policy(id, Some(&policy)).unwrap();
    let session = Session {
        policy: id,
        mtu: 48,
        ..world.session(0)
    };
    world.update(World::slot(0), session);
    world.pass(1, 1);
}

/// The IPv4 packet of a frame that was forwarded, wherever it went.
fn inner(frame: &[u8]) -> &[u8] {
    let link = bng_wire::ethernet::parse(frame).unwrap();
    let rest = &frame[link.payload..];
    match link.ethertype {
        ethertype::PPPOE_SESSION => bng_wire::pppoe::parse_session(rest).unwrap().payload,
        _ => rest,
    }
}

fn total_of(counts: &[(Counter, u64)], wanted: impl Fn(Counter) -> bool) -> u64 {
    counts.iter().filter(|c| wanted(c.0)).map(|c| c.1).sum()
}

#[derive(Debug, Clone)]
struct Frame {
    seed: usize,
    edits: Vec<(usize, u8)>,
    len: usize,
    fix_checksum: bool,
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let edits = prop::collection::vec((0usize..90, any::<u8>()), 0..4);
    // Most frames keep their length, so that the edits are looked at.
    let len = prop_oneof![3 => Just(1_000usize), 1 => 0usize..100];
    (any::<usize>(), edits, len, any::<bool>()).prop_map(|(seed, edits, len, fix_checksum)| Frame {
        seed,
        edits,
        len,
        fix_checksum,
    })
}

fn build(seeds: &[Vec<u8>], frame: &Frame, l3: usize) -> Vec<u8> {
    let mut bytes = seeds[frame.seed % seeds.len()].clone();
    for (at, value) in &frame.edits {
        if let Some(byte) = bytes.get_mut(*at) {
            *byte = *value;
        }
    }
    if frame.fix_checksum && bytes.len() >= l3 + 20 {
        bytes[l3 + 10..l3 + 12].fill(0);
        let check = bng_wire::checksum::checksum(&bytes[l3..l3 + 20]);
        bytes[l3 + 10..l3 + 12].copy_from_slice(&check.to_be_bytes());
    }
    bytes.truncate(frame.len);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn every_buffer_gets_one_verdict_and_what_is_forwarded_is_right(
        frames in prop::collection::vec(any_frame(), 1..70), upstream: bool, handed_over: bool, restricted: bool,
    ) {
        let spec = Spec { echo_per_second: 1_000, icmp_errors_per_second: 20, ..Spec::default() };
        let mut world = World::with_sessions(spec, 1);
        let (up, down) = seeds(&mut world);
        if restricted {
            restrict(&mut world);
        }
        let (seeds, port, l3) = if upstream { (&up, 0, 30) } else { (&down, 2, 14) };
        let bufs: Vec<_> =
            frames.iter().map(|frame| TestBuf::new(port, &build(seeds, frame, l3))).collect();
        let origin = if handed_over { Origin::HandedOver } else { Origin::Port };
        let before = world.counted(0);
        let stats_before = world.publisher.session_stats(World::slot(0)).unwrap();
        let sent = bufs.clone();
        let out = if upstream { world.upstream(0, bufs, origin) } else { world.downstream(0, bufs, origin) };
        let after = world.counted(0);

        let (mut drops, mut forwards) = (0, 0);
        for ((verdict, buf), was) in out.iter().zip(&sent) {
            match verdict {
                Verdict::Forward { port } => {
                    forwards += 1;
                    // An error goes back where its cause came from.
                    prop_assert!(*port == 0 || *port == 2);
                    let packet = inner(buf.data());
                    // Checksums are as right as they came: what was wrong inside stays wrong, never the reverse.
                    prop_assert!(wrong_checksum(packet).is_none() || wrong_checksum(inner(was.data())).is_some());
                    prop_assert!(bng_wire::ipv4::parse(packet).is_ok());
                }
                Verdict::Drop(reason) => {
                    prop_assert!(reason.is_drop());
                    drops += 1;
                }
                Verdict::Punt(_) => {
                    prop_assert!(upstream);
                    prop_assert_eq!(buf, was);
                }
                Verdict::Host { port } => {
                    prop_assert!(!upstream && *port == 2);
                    prop_assert_eq!(buf, was);
                }
                Verdict::Fragment { port, mtu } => {
                    prop_assert!(restricted && !upstream && *port == 0);
                    forwards += 1;
                    for piece in world.fragments(0, *mtu, buf.clone(), 8) {
                        let packet = bng_wire::ipv4::parse(inner(piece.data())).unwrap();
                        prop_assert!(packet.total_len <= usize::from(*mtu));
                    }
                }
                Verdict::Wait(_) => {
                    prop_assert_eq!(buf, was);
                }
                Verdict::HandOver { .. } => prop_assert!(false, "there is one worker"),
            }
        }
        let grown = |wanted: fn(Counter) -> bool| total_of(&after, wanted) - total_of(&before, wanted);
        let errors = grown(|c| c == Counter::IcmpErrorSent);
        prop_assert_eq!(grown(Counter::is_drop), drops + errors);
        let forwarded = grown(|c| {
            matches!(c, Counter::ForwardedUpstream | Counter::ForwardedDownstream | Counter::EchoAnswered)
        });
        prop_assert_eq!(forwarded + errors, forwards);
        let stats = world.publisher.session_stats(World::slot(0)).unwrap();
        let moved = if upstream {
            stats.up_packets - stats_before.up_packets
        } else {
            stats.down_packets - stats_before.down_packets
        };
        prop_assert_eq!(moved, forwarded);
    }

    #[test]
    fn random_bytes_do_nothing_but_count(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 1..40), port in 0u8..6,
    ) {
        let mut world = World::with_sessions(Spec::default(), 1);
        let bufs: Vec<_> = frames.iter().map(|bytes| TestBuf::new(port, bytes)).collect();
        let n = bufs.len() as u64;
        for (verdict, _) in world.upstream(0, bufs.clone(), Origin::Port) {
            prop_assert!(matches!(verdict, Verdict::Drop(_) | Verdict::Punt(_)));
        }
        for (verdict, _) in world.downstream(0, bufs, Origin::Port) {
            let expected = matches!(verdict, Verdict::Drop(_) | Verdict::Host { .. });
            prop_assert!(expected);
        }
        prop_assert!(total_of(&world.counted(0), |_| true) <= 2 * n);
        prop_assert_eq!(world.workers[0].nat_mappings(), 0);
        let stats = world.publisher.session_stats(World::slot(0)).unwrap();
        prop_assert_eq!((stats.up_packets, stats.down_packets, stats.last_up_ms), (0, 0, 0));
    }
}
