//! IPv6 rows of the policy matrix (HZ-07): every kind of policy on every path, with a packet it lets pass and one it stops.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

#[path = "support/v6.rs"]
mod v6;

use std::net::{IpAddr, Ipv6Addr};

use bng_fastpath::testing::{Spec, World, assert_checksums6, echo6, extended, ipv6, tcp6, udp6};
use bng_fastpath::{Origin, Verdict};
use bng_shm::{
    Counter, Filter, FilterAction, FilterId, FilterRule, Policy, PolicyId, Rate, Session,
};
use bng_wire::ipv6::next_header;

use v6::{counted, receive, send, stats, world, world_of};

/// The port that rules are about, at the far end.
const DENIED: u16 = 25;
const ID: PolicyId = PolicyId(2);
const OPTIONS: &[u8] = &[0, 0, 1, 4, 0, 0, 0, 0];
const FIRST_FRAGMENT: &[u8] = &[0, 0, 0, 1, 0, 0, 0, 1];
const LATER_FRAGMENT: &[u8] = &[0, 0, 0, 8, 0, 0, 0, 1];

/// Where the policy of the subscriber is to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    Up,
    UpHandedOver,
    /// To another subscriber.
    UpLocal,
    Down,
    DownHandedOver,
    /// From another subscriber.
    DownLocal,
}

const PATHS: [Path; 6] = [
    Path::Up,
    Path::UpHandedOver,
    Path::UpLocal,
    Path::Down,
    Path::DownHandedOver,
    Path::DownLocal,
];

impl Path {
    const fn is_up(self) -> bool {
        matches!(self, Self::Up | Self::UpHandedOver | Self::UpLocal)
    }

    /// Whom subscriber 0 talks with.
    const fn remote(self) -> Ipv6Addr {
        match self {
            Self::UpLocal | Self::DownLocal => World::address6(2),
            _ => World::HOST6,
        }
    }

    /// Takes a packet along the path; the owner of both sessions is worker 0.
    fn take(self, world: &mut World, packet: &[u8]) -> Verdict {
        let origin = match self {
            Self::UpHandedOver | Self::DownHandedOver => Origin::HandedOver,
            _ => Origin::Port,
        };
        let from = |n| World::from_subscriber6(World::slot(n), &world.session(n), packet);
        let out = match self {
            Self::Up | Self::UpHandedOver | Self::UpLocal => {
                let bufs = vec![from(0)];
                world.upstream(0, bufs, origin)
            }
            Self::DownLocal => {
                let bufs = vec![from(2)];
                world.upstream(0, bufs, origin)
            }
            Self::Down | Self::DownHandedOver => {
                let bufs = vec![world.from_core6(packet)];
                world.downstream(0, bufs, origin)
            }
        };
        out[0].0
    }
}

/// What a packet looks like between its IPv6 and its transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Plain,
    Options,
    FirstFragment,
}

const SHAPES: [Shape; 3] = [Shape::Plain, Shape::Options, Shape::FirstFragment];

impl Shape {
    fn of(self, packet: &[u8]) -> Vec<u8> {
        match self {
            Self::Plain => packet.to_vec(),
            Self::Options => extended(
                packet,
                &[
                    (next_header::HOP_BY_HOP, OPTIONS),
                    (next_header::DESTINATION_OPTIONS, OPTIONS),
                ],
            ),
            Self::FirstFragment => extended(packet, &[(next_header::FRAGMENT, FIRST_FRAGMENT)]),
        }
    }
}

fn rule(remote_ports: Option<(u16, u16)>) -> FilterRule {
    FilterRule {
        action: FilterAction::Drop,
        protocol: None,
        remote: None,
        remote_ports,
        local_ports: None,
    }
}

fn both(rule: FilterRule) -> Filter {
    Filter {
        up: vec![rule],
        down: vec![rule],
        ..Filter::default()
    }
}

/// The two sessions' world; session 0 is under `policy`.
fn under(policy: Option<Policy>, filter: Option<Filter>) -> World {
    let spec = Spec {
        workers: 2,
        ..Spec::default()
    };
    let (mut world, session) = world_of(spec, 3);
    world.publisher.publish_filters(filter.as_slice()).unwrap();
    world.publisher.write_policy(ID, policy.as_ref()).unwrap();
    let session = Session {
        policy: ID,
        ..session
    };
    world.update(World::slot(0), session);
    world.pass(1, 1);
    world
}

fn filtered(filter: Filter) -> World {
    let policy = Policy {
        filter: Some(FilterId(0)),
        ..Policy::default()
    };
    under(Some(policy), Some(filter))
}

/// A packet of subscriber 0 and the far end, the way the path goes, with the far end's port.
fn packet(path: Path, remote: u16) -> Vec<u8> {
    let me = (World::address6(0), 5_000);
    let other = (path.remote(), remote);
    if path.is_up() {
        udp6(me, other, b"payload")
    } else {
        udp6(other, me, b"payload")
    }
}

fn passes(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Forward { .. })
}

/// Both sides of a filter, on all paths and shapes.
fn check_filter(
    name: &str,
    filter: &Filter,
    stopped: impl Fn(Path) -> Vec<u8>,
    free: impl Fn(Path) -> Vec<u8>,
) {
    for path in PATHS {
        for shape in SHAPES {
            let mut world = filtered(filter.clone());
            let reason = if path.is_up() {
                Counter::FilterUpstream
            } else {
                Counter::FilterDownstream
            };
            let verdict = path.take(&mut world, &shape.of(&stopped(path)));
            assert_eq!(verdict, Verdict::Drop(reason), "{name} {path:?} {shape:?}");
            assert_eq!(counted(&world, reason), 1, "{name} {path:?} {shape:?}");
            assert_eq!(stats(&world, 0), [0; 4], "{name} {path:?} {shape:?}");
            let verdict = path.take(&mut world, &shape.of(&free(path)));
            assert!(passes(verdict), "{name} {path:?} {shape:?} {verdict:?}");
            assert_eq!(counted(&world, reason), 1, "{name} {path:?} {shape:?}");
        }
    }
}

#[test]
fn a_rule_about_ports_holds_on_every_path() {
    let filter = both(rule(Some((DENIED, DENIED))));
    check_filter(
        "port",
        &filter,
        |path| packet(path, DENIED),
        |path| packet(path, 443),
    );
}

#[test]
fn a_rule_about_a_protocol_holds_on_every_path() {
    let filter = both(FilterRule {
        protocol: Some(next_header::ICMPV6),
        ..rule(None)
    });
    let ping = |path: Path| {
        let me = World::address6(0);
        if path.is_up() {
            echo6(me, path.remote())
        } else {
            echo6(path.remote(), me)
        }
    };
    check_filter("protocol", &filter, ping, |path| packet(path, DENIED));
}

#[test]
fn a_rule_about_a_network_holds_on_every_path() {
    for path in PATHS {
        let remote = Some((IpAddr::V6(path.remote()), 64));
        let elsewhere = Some((IpAddr::V6(World::network6(5)), 64));
        for (network, stops) in [(remote, true), (elsewhere, false)] {
            let filter = both(FilterRule {
                remote: network,
                ..rule(None)
            });
            let mut world = filtered(filter);
            let verdict = path.take(&mut world, &packet(path, 9));
            assert_eq!(!passes(verdict), stops, "{path:?} {verdict:?}");
        }
    }
}

#[test]
fn a_filter_that_drops_the_rest_lets_pass_what_it_accepts() {
    let accept = FilterRule {
        action: FilterAction::Accept,
        ..rule(Some((443, 443)))
    };
    let filter = Filter {
        drop_other_up: true,
        drop_other_down: true,
        ..both(accept)
    };
    check_filter(
        "other",
        &filter,
        |path| packet(path, DENIED),
        |path| packet(path, 443),
    );
}

#[test]
fn a_fragment_without_ports_is_dropped_by_a_rule_about_ports_and_passed_by_none() {
    for path in PATHS {
        let piece = extended(
            &packet(path, 443),
            &[(next_header::FRAGMENT, LATER_FRAGMENT)],
        );
        let mut world = filtered(both(rule(Some((DENIED, DENIED)))));
        assert!(!passes(path.take(&mut world, &piece)), "{path:?}");
        let mut world = filtered(Filter::default());
        assert!(passes(path.take(&mut world, &piece)), "{path:?}");
    }
}

#[test]
fn where_there_is_a_filter_what_it_cannot_look_into_is_dropped() {
    for path in PATHS {
        let long = [(next_header::DESTINATION_OPTIONS, OPTIONS); 9];
        let hidden = extended(&packet(path, 443), &long);
        let (me, other) = (World::address6(0), path.remote());
        let (src, dst) = if path.is_up() {
            (me, other)
        } else {
            (other, me)
        };
        let cut = ipv6(
            src,
            dst,
            next_header::HOP_BY_HOP,
            &[17, 4, 0, 0, 0, 0, 0, 0],
        );
        for packet in [hidden, cut] {
            let mut world = filtered(Filter::default());
            let verdict = path.take(&mut world, &packet);
            assert_eq!(verdict, Verdict::Drop(Counter::Ipv6Extension), "{path:?}");
            let mut world = under(Some(Policy::default()), None);
            assert!(passes(path.take(&mut world, &packet)), "{path:?}");
        }
    }
}

#[test]
fn without_a_policy_or_its_filter_nothing_passes() {
    let unpublished = Policy {
        filter: Some(FilterId(7)),
        ..Policy::default()
    };
    for path in PATHS {
        for policy in [None, Some(unpublished)] {
            let mut world = under(policy, None);
            let verdict = path.take(&mut world, &packet(path, 443));
            assert_eq!(verdict, Verdict::Drop(Counter::NoPolicy), "{path:?}");
            assert_eq!(counted(&world, Counter::NoPolicy), 1);
        }
        let mut world = under(Some(Policy::default()), None);
        assert!(
            passes(path.take(&mut world, &packet(path, 443))),
            "{path:?}"
        );
    }
}

#[test]
fn what_exceeds_the_committed_rate_is_dropped_on_every_path() {
    let limit = Rate {
        kbps: 8,
        burst_bytes: 150,
    };
    for path in PATHS {
        let (policy, reason) = if path.is_up() {
            let up = Some(limit);
            (
                Policy {
                    up,
                    ..Policy::default()
                },
                Counter::PolicerUpstream,
            )
        } else {
            let down = Some(limit);
            (
                Policy {
                    down,
                    ..Policy::default()
                },
                Counter::PolicerDownstream,
            )
        };
        let mut world = under(Some(policy), None);
        // 55 bytes each: two fit the burst.
        let packet = packet(path, 443);
        for n in 0..4 {
            let verdict = path.take(&mut world, &packet);
            assert_eq!(passes(verdict), n < 2, "{path:?} {n} {verdict:?}");
        }
        assert_eq!(counted(&world, reason), 2, "{path:?}");
        // One byte a millisecond.
        world.pass(55, 1);
        assert!(passes(path.take(&mut world, &packet)), "{path:?}");
        let stats = stats(&world, 0);
        let counted = if path.is_up() {
            [3, 165, 0, 0]
        } else {
            [0, 0, 3, 165]
        };
        assert_eq!(stats, counted, "{path:?}");
    }
}

/// A SYN the way the path goes with an MSS of 1,440.
fn syn(path: Path) -> Vec<u8> {
    let (me, other) = ((World::address6(0), 5_000), (path.remote(), 80));
    let options = [1, 1, 2, 4, 5, 0xa0, 1, 1];
    if path.is_up() {
        tcp6(me, other, 0x02, &options)
    } else {
        tcp6(other, me, 0x12, &options)
    }
}

#[test]
fn the_mss_of_a_syn_is_lowered_unless_the_policy_says_no() {
    for path in [Path::Up, Path::Down] {
        for shape in SHAPES {
            for clamp in [true, false] {
                let policy = Policy {
                    mss_clamp: clamp,
                    ..Policy::default()
                };
                let mut world = under(Some(policy), None);
                let session = Session {
                    policy: ID,
                    mtu: 1_400,
                    ..world.session(0)
                };
                world.update(World::slot(0), session);
                let packet = shape.of(&syn(path));
                let (verdict, out) = if path.is_up() {
                    send(&mut world, &packet)
                } else {
                    receive(&mut world, &packet)
                };
                assert!(passes(verdict), "{path:?} {shape:?}");
                let sent = &out[out.len() - packet.len()..];
                let mss = if clamp { [0x05, 0x3c] } else { [0x05, 0xa0] };
                assert_eq!(
                    sent[packet.len() - 4..packet.len() - 2],
                    mss,
                    "{path:?} {shape:?}"
                );
                if shape != Shape::FirstFragment {
                    assert_checksums6(sent);
                }
                assert_eq!(counted(&world, Counter::MssClamped), u64::from(clamp));
            }
        }
    }
}

#[test]
fn the_clamp_touches_nothing_but_a_syns_higher_value() {
    let me = (World::address6(0), 5_000);
    let host = (World::HOST6, 80);
    let ack = tcp6(me, host, 0x10, &[2, 4, 5, 0xdc]);
    let low = tcp6(me, host, 0x02, &[2, 4, 2, 0x18]);
    let none = tcp6(me, host, 0x02, b"");
    let broken = tcp6(me, host, 0x02, &[8, 0, 2, 4]);
    let short = ipv6(me.0, host.0, 6, &[0; 13]);
    let later = extended(&syn(Path::Up), &[(next_header::FRAGMENT, LATER_FRAGMENT)]);
    for packet in [ack, low, none, broken, short, later] {
        let (mut world, _) = world(1);
        let (verdict, out) = send(&mut world, &packet);
        assert!(passes(verdict));
        assert_eq!(out[14..], v6::hops(packet, 63));
        assert_eq!(counted(&world, Counter::MssClamped), 0);
    }
}

#[test]
fn filters_and_policers_do_not_keep_a_subscriber_from_its_router() {
    let router: Ipv6Addr = "ff02::2".parse().unwrap();
    let link_local: Ipv6Addr = "fe80::1".parse().unwrap();
    let nothing = Filter {
        drop_other_up: true,
        ..Filter::default()
    };
    let mut world = filtered(nothing);
    let kind = bng_wire::icmpv6::icmpv6_type::ROUTER_SOLICITATION;
    let packet = bng_fastpath::testing::icmpv6(link_local, router, kind, 0, &[0; 4]);
    assert!(matches!(send(&mut world, &packet).0, Verdict::Punt(_)));
}
