//! Values at the ends of their ranges: every packet still has one verdict (the world checks that no frame is lost), what is
//! sent fits where it goes, and no error is about an error.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::net::{Ipv4Addr, Ipv6Addr};

use bng_fastpath::testing::{
    Spec, TestBuf, World, assert_checksums, assert_checksums6, echo, extended, ipv4, tcp, tcp6,
    udp, udp6,
};
use bng_fastpath::{Origin, PacketBuf, Verdict};
use bng_shm::{Counter, MAX_RATE_KBPS, Policy, PolicyId, Rate, Session, SlotIndex};
use bng_wire::ethernet::ethertype;
use bng_wire::ipv6::next_header;
use bng_wire::pppoe;
use proptest::prelude::*;

const SLOT: SlotIndex = World::slot(0);
const ROUTED: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const HOST6: (Ipv6Addr, u16) = (World::HOST6, 53);
/// Around everything the stages compare an MTU with.
const MTUS: [u16; 22] = [
    0, 1, 19, 20, 27, 28, 39, 40, 41, 47, 48, 55, 56, 59, 60, 61, 67, 68, 576, 1_279, 1_280, 65_535,
];

/// Sessions 0 (routed) and 1, with ICMP errors.
fn world(mtu: u16, policy: Option<Policy>) -> (World, Session) {
    let spec = Spec {
        icmp_errors_per_second: 10_000,
        ..Spec::default()
    };
    let mut world = World::with_sessions(spec, 2);
    let id = PolicyId(2);
    let policy = policy.unwrap_or_default();
    world.publisher.write_policy(id, Some(&policy)).unwrap();
    world.close(SLOT);
    let session = Session {
        mtu,
        framed_ip: ROUTED,
        nat: None,
        policy: id,
        ..world.session(0)
    };
    let session = world.publish(SLOT, session);
    world.update(
        World::slot(1),
        Session {
            mtu,
            ..world.session(1)
        },
    );
    (world, session)
}

/// The IP packet of a frame, and whether it is IPv6.
fn inner(frame: &[u8]) -> (&[u8], bool) {
    let link = bng_wire::ethernet::parse(frame).unwrap();
    let rest = &frame[link.payload..];
    if link.ethertype == ethertype::PPPOE_SESSION {
        let ppp = pppoe::parse_session(rest).unwrap();
        return (ppp.payload, ppp.protocol == pppoe::protocol::IPV6);
    }
    (rest, link.ethertype == ethertype::IPV6)
}

/// A packet is whole and right.
fn assert_right(frame: &[u8]) {
    match inner(frame) {
        (packet, true) => assert_checksums6(packet),
        (packet, false) => assert_checksums(packet),
    }
}

fn with_option(mut segment: Vec<u8>, value: u8) -> Vec<u8> {
    segment.extend([2, 4, value, 0xb4]);
    segment
}

/// One packet of session 0 up or down, of either family.
fn frame(world: &World, session: &Session, packet: &[u8], up: bool) -> TestBuf {
    match (up, packet[0] >> 4) {
        (true, 6) => World::from_subscriber6(SLOT, session, packet),
        (true, _) => World::from_subscriber(SLOT, session, packet),
        (false, 6) => world.from_core6(packet),
        (false, _) => world.from_core(packet),
    }
}

fn send(world: &mut World, buf: TestBuf, up: bool) -> (Verdict, TestBuf) {
    if up {
        world.upstream(0, vec![buf], Origin::Port).remove(0)
    } else {
        world.downstream(0, vec![buf], Origin::Port).remove(0)
    }
}

#[test]
fn what_is_sent_fits_whatever_the_mtu() {
    for mtu in MTUS {
        let (mut world, session) = world(mtu, None);
        let (me, other) = ((ROUTED, 5_000), (World::HOST, 53));
        let me6 = (World::address6(0), 5_000);
        for len in [0usize, 7, 20, 500, 600, 1_252, 1_400] {
            let bytes = vec![7; len];
            let packets = [
                (true, udp(me, other, &bytes)),
                (false, udp(other, me, &bytes)),
                (true, tcp(me, other, 2, &bytes)),
                (false, tcp(other, me, 2, &bytes)),
                (true, udp6(me6, HOST6, &bytes)),
                (false, udp6(HOST6, me6, &bytes)),
                // To the other subscriber.
                (true, udp6(me6, (World::address6(1), 9), &bytes)),
            ];
            for (up, packet) in packets {
                for fragmented in [false, true] {
                    let mut packet = packet.clone();
                    if packet[0] >> 4 == 4 && fragmented {
                        // May be fragmented, and is: the first of several.
                        packet[6] = 0x20;
                        packet[10..12].fill(0);
                        let check = bng_wire::checksum::checksum(&packet[..20]);
                        packet[10..12].copy_from_slice(&check.to_be_bytes());
                    }
                    let buf = frame(&world, &session, &packet, up);
                    let (verdict, out) = send(&mut world, buf, up);
                    match verdict {
                        Verdict::Forward { port } => {
                            let (packet, _) = inner(out.data());
                            // What goes into a session fits it; errors about what is too large, too.
                            assert!(
                                port != 0 || packet.len() <= usize::from(mtu),
                                "{mtu}: {}",
                                packet.len()
                            );
                            if !fragmented {
                                assert_right(out.data());
                            }
                        }
                        Verdict::Fragment { mtu, .. } => {
                            for piece in world.fragments(0, mtu, out, 100) {
                                assert!(inner(piece.data()).0.len() <= usize::from(mtu));
                            }
                        }
                        Verdict::Drop(_) | Verdict::Wait(_) => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
    }
}

/// Two gateways that answer each other's errors would never stop.
#[test]
fn no_error_is_about_an_error_of_another_gateway() {
    let (mut world, session) = world(1_280, None);
    let me6 = (World::address6(0), 5_000);
    let short = |mut packet: Vec<u8>, hops: u8| {
        match packet[0] >> 4 {
            6 => packet[7] = hops,
            _ => {
                packet[8] = hops;
                packet[10..12].fill(0);
                let check = bng_wire::checksum::checksum(&packet[..20]);
                packet[10..12].copy_from_slice(&check.to_be_bytes());
            }
        }
        packet
    };
    for hops in [0, 1] {
        for (up, packet) in [
            (true, udp((ROUTED, 1), (World::HOST, 2), b"x")),
            (true, echo(ROUTED, World::HOST, true, 1, b"x")),
            (false, udp((World::HOST, 2), (ROUTED, 1), b"x")),
            (false, echo(World::HOST, ROUTED, true, 1, b"x")),
            (true, udp6(me6, HOST6, b"x")),
            (false, udp6(HOST6, me6, b"x")),
        ] {
            let buf = frame(&world, &session, &short(packet, hops), up);
            let (verdict, error) = send(&mut world, buf, up);
            assert!(matches!(verdict, Verdict::Forward { .. }));
            let (error, is_v6) = inner(error.data());
            // The error, as another gateway would send it to the sender of one of ours.
            let mut error = short(error.to_vec(), hops);
            if is_v6 {
                let ends = if up {
                    (me6.0, HOST6.0)
                } else {
                    (HOST6.0, me6.0)
                };
                error[8..24].copy_from_slice(&ends.0.octets());
                error[24..40].copy_from_slice(&ends.1.octets());
            } else {
                let ends = if up {
                    (ROUTED, World::HOST)
                } else {
                    (World::HOST, ROUTED)
                };
                error[12..16].copy_from_slice(&ends.0.octets());
                error[16..20].copy_from_slice(&ends.1.octets());
                error = short(error, hops);
            }
            let buf = frame(&world, &session, &error, up);
            assert_eq!(
                send(&mut world, buf, up).0,
                Verdict::Drop(Counter::TtlExpired)
            );
        }
    }
}

/// Rates and bursts at both ends, at times far apart, as a machine that was suspended shows them.
#[test]
fn policers_neither_overflow_nor_let_pass_what_never_conforms() {
    let packet = udp((ROUTED, 1), (World::HOST, 2), &[7; 972]);
    for kbps in [0, 1, 2, 1_000, MAX_RATE_KBPS, u32::MAX] {
        for burst_bytes in [0, 1, 999, 1_000, u32::MAX] {
            let rate = Some(Rate { kbps, burst_bytes });
            let policy = Policy {
                up: rate,
                down: rate,
                ..Policy::default()
            };
            let (mut world, session) = world(1_492, Some(policy));
            for ms in [0, 1, 1_000, 1_000_000_000_000] {
                world.now_ms += ms;
                let now_ns = world.now_ms * 1_000_000;
                world.workers[0].poll(now_ns);
                let buf = frame(&world, &session, &packet, true);
                let (verdict, _) = send(&mut world, buf, true);
                // The burst is full after the long time, and 1,000 bytes conform if it has room for them. A rate that
                // takes less than a nanosecond for a byte rounds it up.
                if burst_bytes == u32::MAX {
                    assert_eq!(verdict, Verdict::Forward { port: 2 }, "{kbps} {ms}");
                } else if burst_bytes < 999 {
                    assert_eq!(
                        verdict,
                        Verdict::Drop(Counter::PolicerUpstream),
                        "{kbps} {burst_bytes} {ms}"
                    );
                }
            }
        }
    }
}

/// Chains as long as they are looked into, and longer, of every kind, cut anywhere.
#[test]
fn chains_of_extension_headers_end_in_a_verdict_wherever_they_are_cut() {
    let (mut world, session) = world(1_492, None);
    let me6 = (World::address6(0), 5_000);
    let segment = tcp6(me6, HOST6, 2, &[2, 4, 0xff, 0xff]);
    let kinds = [
        next_header::HOP_BY_HOP,
        next_header::ROUTING,
        next_header::FRAGMENT,
        next_header::AUTHENTICATION,
        next_header::DESTINATION_OPTIONS,
        next_header::MOBILITY,
    ];
    let mut verdicts = 0;
    for kind in kinds {
        for count in [1usize, 7, 8, 9, 30] {
            for length in [0u8, 1, 255] {
                let header = [0, length, 0, 0, 0, 0, 0, 9];
                let chain = vec![(kind, &header[..]); count];
                let whole = extended(&segment, &chain);
                for cut in [40, 41, 47, 48, 49, whole.len() - 1, whole.len()] {
                    let mut packet = whole[..cut].to_vec();
                    let payload = (cut - 40) as u16;
                    packet[4..6].copy_from_slice(&payload.to_be_bytes());
                    let buf = frame(&world, &session, &packet, true);
                    let (verdict, _) = send(&mut world, buf, true);
                    // No filter: what cannot be looked into is forwarded.
                    assert_eq!(verdict, Verdict::Forward { port: 2 });
                    verdicts += 1;
                }
            }
        }
    }
    assert_eq!(verdicts, 6 * 5 * 3 * 7);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Fragments with any offset, flags and length are forwarded as they are or in pieces that lie where they lay.
    #[test]
    fn any_fragment_is_sent_as_it_lay_or_not_at_all(
        offset in prop_oneof![0u16..0x2000, 0x1f00u16..0x2000, 0u16..4], flags in 0u16..8, len in 0usize..1_470,
        mtu in prop::sample::select(&MTUS[..]), up: bool, protocol in prop::sample::select(&[1u8, 6, 17, 47][..]),
    ) {
        let (mut world, session) = world(mtu, None);
        let payload = vec![7; len];
        let (src, dst) = if up { (ROUTED, World::HOST) } else { (World::HOST, ROUTED) };
        let mut packet = ipv4(src, dst, protocol, &payload);
        packet[6..8].copy_from_slice(&(flags << 13 | offset).to_be_bytes());
        packet[10..12].fill(0);
        let check = bng_wire::checksum::checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&check.to_be_bytes());
        let buf = frame(&world, &session, &packet, up);
        let (verdict, out) = send(&mut world, buf, up);
        let pieces = match verdict {
            Verdict::Forward { .. } => vec![out],
            Verdict::Fragment { mtu, .. } => world.fragments(0, mtu, out, 100),
            Verdict::Drop(_) => vec![],
            other => panic!("{other:?}"),
        };
        let mut next = usize::from(offset) * 8;
        for piece in &pieces {
            let (bytes, _) = inner(piece.data());
            let header = bng_wire::ipv4::parse(bytes).unwrap();
            if header.src != src.to_bits() {
                // An error about it.
                prop_assert_eq!(pieces.len(), 1);
                return Ok(());
            }
            prop_assert_eq!(usize::from(header.frag & 0x1fff) * 8, next);
            next += header.total_len - 20;
        }
        prop_assert!(pieces.is_empty() || next == usize::from(offset) * 8 + len);
    }

    /// Options of any kind and length behind a SYN, MSS of any value, both families and ways: the checksum stays right.
    #[test]
    fn any_options_of_a_syn_leave_the_checksum_right(
        options in prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(2), Just(4), any::<u8>()], 0..36),
        at_end: u8, mtu in prop::sample::select(&MTUS[..]), up: bool,
    ) {
        let (mut world, session) = world(mtu, None);
        let mut options = with_option(options, at_end);
        options.resize(options.len().next_multiple_of(4), 1);
        options.truncate(40);
        let me6 = (World::address6(0), 5_000);
        let packet = if up { tcp6(me6, HOST6, 2, &options) } else { tcp6(HOST6, me6, 2, &options) };
        let buf = frame(&world, &session, &packet, up);
        let (verdict, out) = send(&mut world, buf, up);
        if matches!(verdict, Verdict::Forward { .. }) {
            assert_right(out.data());
        }
    }
}
