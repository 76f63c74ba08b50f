//! Any bytes as IPv6, in any direction: one verdict each, one count each, and no effect of what is malformed.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

#[path = "support/v6.rs"]
mod v6;

use bng_fastpath::testing::{
    Spec, TestBuf, World, echo6, extended, icmpv6, tcp6, udp6, wrong_checksum6,
};
use bng_fastpath::{Origin, PacketBuf, Verdict};
use bng_shm::{Counter, Filter, FilterAction, FilterId, FilterRule, Policy, PolicyId, Session};
use bng_wire::ethernet::ethertype;
use bng_wire::ipv6::next_header;
use proptest::prelude::*;

/// Good packets of session 0, one way or the other.
fn seeds(upstream: bool) -> Vec<Vec<u8>> {
    let me = (World::address6(0), 5_000);
    let way = |other| if upstream { (me, other) } else { (other, me) };
    let (src, dst) = way((World::HOST6, 25));
    let options: &[u8] = &[0, 0, 1, 4, 0, 0, 0, 0];
    let router = "ff02::2".parse().unwrap();
    let (a, b) = way((World::address6(1), 25));
    vec![
        udp6(src, dst, b"payload"),
        tcp6(src, dst, 2, &[2, 4, 5, 0xa0]),
        echo6(src.0, dst.0),
        icmpv6(src.0, dst.0, 3, 0, &[0; 44]),
        extended(
            &tcp6(src, dst, 2, &[2, 4, 5, 0xa0]),
            &[(next_header::HOP_BY_HOP, options)],
        ),
        extended(
            &udp6(src, dst, b"x"),
            &[(next_header::FRAGMENT, &[0, 0, 0, 1, 0, 0, 0, 9])],
        ),
        udp6(a, b, b"local"),
        icmpv6("fe80::1".parse().unwrap(), router, 133, 0, &[0; 4]),
        udp6(src, dst, &[7; 1_500]),
    ]
}

/// The IPv6 packet of a frame.
fn inner(frame: &[u8]) -> Option<&[u8]> {
    let link = bng_wire::ethernet::parse(frame).ok()?;
    let rest = &frame[link.payload..];
    match link.ethertype {
        ethertype::PPPOE_SESSION => Some(bng_wire::pppoe::parse_session(rest).ok()?.payload),
        _ => Some(rest),
    }
}

#[derive(Debug, Clone)]
struct Edited {
    seed: prop::sample::Index,
    edits: Vec<(usize, u8)>,
    cut: Option<usize>,
    grow: usize,
}

fn any_packet() -> impl Strategy<Value = Edited> {
    // Mostly the headers, mostly small numbers, which are next headers and lengths.
    let value = prop_oneof![0u8..64, any::<u8>()];
    let edits = prop::collection::vec((0usize..96, value), 0..4);
    (
        any::<prop::sample::Index>(),
        edits,
        prop::option::weighted(0.2, 0usize..120),
        0usize..9,
    )
        .prop_map(|(seed, edits, cut, grow)| Edited {
            seed,
            edits,
            cut,
            grow,
        })
}

impl Edited {
    fn bytes(&self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = self.seed.get(seeds).clone();
        for (at, value) in &self.edits {
            if let Some(byte) = bytes.get_mut(*at) {
                *byte = *value;
            }
        }
        if let Some(cut) = self.cut {
            bytes.truncate(cut);
        }
        bytes.extend(vec![0; self.grow]);
        bytes
    }
}

/// Sessions 0 and 1, the first under a filter (if `filtered`).
fn a_world(filtered: bool) -> (World, Session) {
    let spec = Spec {
        icmp_errors_per_second: 20,
        punts_per_second: 20,
        ..Spec::default()
    };
    let (mut world, session) = v6::world_of(spec, 2);
    if filtered {
        let rule = FilterRule {
            action: FilterAction::Drop,
            protocol: None,
            remote: None,
            remote_ports: Some((25, 25)),
            local_ports: None,
        };
        let filter = Filter {
            up: vec![rule],
            ..Filter::default()
        };
        world.publisher.publish_filters(&[filter]).unwrap();
        let policy = Policy {
            filter: Some(FilterId(0)),
            ..Policy::default()
        };
        world
            .publisher
            .write_policy(PolicyId(2), Some(&policy))
            .unwrap();
        world.update(
            v6::SLOT,
            Session {
                policy: PolicyId(2),
                ..session
            },
        );
        world.pass(1, 1);
    }
    (world, session)
}

fn total(world: &World, wanted: impl Fn(Counter) -> bool) -> u64 {
    let counts = world.counted(0);
    counts.iter().filter(|c| wanted(c.0)).map(|c| c.1).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn every_packet_gets_one_verdict_and_what_is_forwarded_is_right(
        packets in prop::collection::vec(any_packet(), 1..70), upstream: bool, handed_over: bool, filtered: bool,
    ) {
        let (mut world, session) = a_world(filtered);
        let seeds = seeds(upstream);
        let bufs: Vec<_> = packets
            .iter()
            .map(|packet| {
                let bytes = packet.bytes(&seeds);
                if upstream {
                    World::from_subscriber6(v6::SLOT, &session, &bytes)
                } else {
                    world.from_core6(&bytes)
                }
            })
            .collect();
        let origin = if handed_over { Origin::HandedOver } else { Origin::Port };
        let sent = bufs.clone();
        let out = if upstream { world.upstream(0, bufs, origin) } else { world.downstream(0, bufs, origin) };

        let (mut drops, mut forwards) = (0, 0);
        for ((verdict, buf), was) in out.iter().zip(&sent) {
            match verdict {
                Verdict::Forward { port } => {
                    prop_assert!(matches!(*port, 0 | 2));
                    forwards += 1;
                    let packet = inner(buf.data()).unwrap();
                    let parsed = bng_wire::ipv6::parse(packet).unwrap();
                    prop_assert_eq!(parsed.total_len, packet.len());
                    prop_assert!(packet.len() <= 1_500);
                    // Checksums are as right as they came: what was wrong inside stays wrong, never the reverse.
                    let before = wrong_checksum6(inner(was.data()).unwrap());
                    prop_assert!(wrong_checksum6(packet).is_none() || before.is_some());
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
                other => prop_assert!(false, "{:?} with one worker and no IPv4", other),
            }
        }
        let errors = total(&world, |c| c == Counter::IcmpErrorSent);
        let forwarded = total(&world, |c| {
            matches!(c, Counter::ForwardedUpstream | Counter::ForwardedDownstream)
        });
        // An error is sent in place of a packet that is counted as dropped.
        prop_assert_eq!(total(&world, Counter::is_drop), drops + errors);
        prop_assert_eq!(forwarded + errors, forwards);
        let (own, other) = (v6::stats(&world, 0), v6::stats(&world, 1));
        prop_assert_eq!(own[0], if upstream { forwarded } else { 0 });
        let to_subscribers = out.iter().filter(|o| o.0 == Verdict::Forward { port: 0 });
        prop_assert_eq!(own[2] + other[2], to_subscribers.count() as u64);
    }

    #[test]
    fn random_bytes_do_nothing_but_count(
        packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 1..40), version: bool,
    ) {
        let (mut world, session) = a_world(false);
        let bytes = packets.into_iter().map(|mut bytes| {
            if let (true, Some(first)) = (version, bytes.first_mut()) {
                *first = 0x60;
            }
            bytes
        });
        let bytes: Vec<_> = bytes.collect();
        let up: Vec<TestBuf> =
            bytes.iter().map(|b| World::from_subscriber6(v6::SLOT, &session, b)).collect();
        let down: Vec<TestBuf> = bytes.iter().map(|b| world.from_core6(b)).collect();
        for (verdict, _) in world.upstream(0, up, Origin::Port) {
            prop_assert!(matches!(verdict, Verdict::Drop(_)));
        }
        for (verdict, _) in world.downstream(0, down, Origin::Port) {
            let expected = matches!(verdict, Verdict::Drop(_) | Verdict::Host { .. });
            prop_assert!(expected);
        }
        prop_assert_eq!(v6::stats(&world, 0), [0; 4]);
    }
}
