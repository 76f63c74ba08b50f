//! The FIBs follow what control publishes.
#![allow(missing_docs, clippy::unwrap_used)]

use bng_dataplane::fib_mirror::{Applied, FibMirrors, RteFib};
use bng_fastpath::{Fib4, Fib6};
use bng_shm::{Capacities, Dataplane, NextHopId, Publisher, Reader, Route, Route6};
use rte_rs::{Eal, EalArgs, Memory};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn eal(mib: u32) -> Eal {
    let arguments = EalArgs::new(&format!("fibmirror{}", std::process::id()))
        .memory(Memory::NoHugepages { mib })
        .pci(false)
        .telemetry(false)
        .restore_affinity(true);
    Eal::init(&arguments).unwrap()
}

fn tables(eal: &Eal, routes: u32, routes6: u32) -> (Dataplane, Publisher, FibMirrors) {
    let capacities = Capacities {
        routes,
        routes6,
        ..Capacities::of_gateway(1, 2, 1, 0, 0)
    };
    let (dataplane, control) = Dataplane::in_process(capacities).unwrap();
    let mirrors = FibMirrors::new(eal, &capacities).unwrap();
    (dataplane, control, mirrors)
}

fn route(prefix: [u8; 4], length: u8, next_hop: u32) -> Route {
    Route {
        prefix: Ipv4Addr::from(prefix),
        length,
        next_hop: NextHopId(next_hop),
    }
}

fn route6(prefix: &str, length: u8, next_hop: u32) -> Route6 {
    Route6 {
        prefix: prefix.parse().unwrap(),
        length,
        next_hop: NextHopId(next_hop),
    }
}

fn lookup(fib: &RteFib, address: [u8; 4]) -> u64 {
    let mut answer = [u64::MAX];
    fib.lookup(&[Ipv4Addr::from(address).to_bits()], &mut answer);
    answer[0]
}

fn lookup6(fib: &RteFib, address: &str) -> u64 {
    let mut answer = [u64::MAX];
    let address: Ipv6Addr = address.parse().unwrap();
    fib.lookup6(&[address.octets()], &mut answer);
    answer[0]
}

const NOTHING: Applied = Applied { v4: None, v6: None };

/// Goes on until nothing is left to do; the last version of the IPv4 routes.
fn settle(mirrors: &mut FibMirrors, fib: &mut RteFib, reader: &Reader) -> Option<u64> {
    let mut version = None;
    let mut idle = 0;
    while idle < 3 {
        fib.follow();
        let applied = mirrors.refresh(reader);
        version = applied.v4.or(version);
        idle = if applied == NOTHING { idle + 1 } else { 0 };
    }
    fib.follow();
    version
}

#[test]
fn published_routes_are_looked_up_and_withdrawn_ones_are_not() {
    let (dataplane, mut control, mut mirrors) = tables(&eal(320), 4_096, 4_096);
    let reader = dataplane.reader();
    let mut fib = mirrors.lookup();
    assert_eq!(
        mirrors.refresh(&reader),
        NOTHING,
        "nothing is published yet"
    );
    assert_eq!(lookup(&fib, [192, 0, 2, 80]), 0);
    assert_eq!(lookup6(&fib, "2001:db8::80"), 0);

    control
        .publish_routes(&[
            route([0, 0, 0, 0], 0, 1),
            route([198, 51, 100, 0], 24, 2),
            route([198, 51, 100, 1], 32, 3),
            // Would overwrite the whole table with the default route (a fault of DPDK).
            route([255, 255, 255, 255], 32, 9),
            route([224, 0, 0, 0], 4, 9),
        ])
        .unwrap();
    control
        .publish_routes6(&[
            route6("::", 0, 1),
            route6("2001:db8::", 32, 2),
            route6("2001:db8:7::1", 128, 3),
            route6("ff00::", 8, 9),
            route6("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 128, 9),
        ])
        .unwrap();
    assert_eq!(
        mirrors.refresh(&reader),
        NOTHING,
        "the worker has not gone over yet"
    );
    assert_eq!(mirrors.len(), [3, 3]);
    assert_eq!(lookup(&fib, [198, 51, 100, 1]), 0);
    fib.follow();
    let applied = mirrors.refresh(&reader);
    assert!(applied.v4.is_some() && applied.v6.is_some());
    for round in 0..2 {
        settle(&mut mirrors, &mut fib, &reader);
        assert_eq!(lookup(&fib, [192, 0, 2, 80]), 1);
        assert_eq!(lookup(&fib, [198, 51, 100, 2]), 2);
        assert_eq!(lookup(&fib, [198, 51, 100, 1]), 3);
        assert_eq!(lookup6(&fib, "2001:db9::80"), 1);
        assert_eq!(lookup6(&fib, "2001:db8:7::2"), 2);
        assert_eq!(lookup6(&fib, "2001:db8:7::1"), 3);
        // The same again, in the other FIB.
        if round == 0 {
            let again = [
                route([0, 0, 0, 0], 0, 1),
                route([198, 51, 100, 0], 24, 2),
                route([198, 51, 100, 1], 32, 3),
            ];
            control.publish_routes(&again).unwrap();
            assert!(settle(&mut mirrors, &mut fib, &reader).is_some());
        }
    }

    control
        .publish_routes(&[route([0, 0, 0, 0], 0, 4), route([198, 51, 100, 0], 24, 2)])
        .unwrap();
    control.publish_routes6(&[route6("::", 0, 4)]).unwrap();
    settle(&mut mirrors, &mut fib, &reader);
    assert_eq!(lookup(&fib, [192, 0, 2, 80]), 4);
    assert_eq!(lookup(&fib, [198, 51, 100, 1]), 2);
    assert_eq!(lookup6(&fib, "2001:db8:7::1"), 4);
    assert_eq!(mirrors.refresh(&reader), NOTHING, "nothing has changed");
    assert_eq!(mirrors.refused(), [0, 0]);
}

/// The next hop of the longest prefix an address lies in, 0 for none.
fn longest(routes: &[(u128, u8, u32)], address: u128) -> u64 {
    let fits = |(prefix, length, _): &&(u128, u8, u32)| {
        let host = u128::MAX.checked_shr((*length).into()).unwrap_or(0);
        prefix | host == address | host
    };
    let longest = routes.iter().filter(fits).max_by_key(|route| route.1);
    longest.map_or(0, |route| route.2.into())
}

/// As 0.0.0.0/1 and 128.0.0.0/1, with which the default route is overridden. DPDK writes the outer of two such prefixes
/// over the whole table.
#[test]
fn prefixes_that_end_with_the_address_space_come_and_go_one_inside_the_other() {
    let (dataplane, mut control, mut mirrors) = tables(&eal(320), 4_096, 1_024);
    let reader = dataplane.reader();
    let mut fib = mirrors.lookup();
    let v4: [([u8; 4], u8); 7] = [
        ([0, 0, 0, 0], 0),
        ([0, 0, 0, 0], 1),
        ([128, 0, 0, 0], 1),
        ([128, 0, 0, 0], 2),
        ([192, 0, 0, 0], 2),
        ([192, 0, 0, 0], 3),
        ([200, 1, 0, 0], 16),
    ];
    let v6 = [
        ("::", 0),
        ("::", 1),
        ("8000::", 1),
        ("c000::", 3),
        ("f000::", 4),
        ("fe00::", 7),
        ("fe00::", 8),
    ];
    let high = |address: [u8; 4]| u128::from(u32::from_be_bytes(address)) << 96;
    // Which of them there are, by a bit each, and which has another next hop than in the other versions: what has not
    // changed is not written anew.
    let versions = [
        (127u32, 9),
        (127, 0),
        (127, 2),
        (127, 4),
        (5, 9),
        (5, 0),
        (126, 9),
        (126, 2),
        (20, 9),
        (20, 2),
        (4, 9),
    ];
    let more = [
        (85, 9),
        (17, 9),
        (17, 0),
        (0, 9),
        (119, 0),
        (1, 9),
        (21, 9),
        (21, 0),
        (21, 2),
    ];
    for (subset, changed) in versions.into_iter().chain(more) {
        let hop = |at: usize| at as u32 + if at == changed { 100 } else { 1 };
        let is_there = |at: &usize| subset >> at & 1 != 0;
        let present = || (0..7).filter(is_there);
        let routes: Vec<_> = present()
            .map(|at| route(v4[at].0, v4[at].1, hop(at)))
            .collect();
        control.publish_routes(&routes).unwrap();
        let routes: Vec<_> = present()
            .map(|at| route6(v6[at].0, v6[at].1, hop(at)))
            .collect();
        control.publish_routes6(&routes).unwrap();
        settle(&mut mirrors, &mut fib, &reader);
        assert_eq!(mirrors.refused(), [0, 0]);
        let model: Vec<_> = present()
            .map(|at| (high(v4[at].0), v4[at].1, hop(at)))
            .collect();
        for address in [1u8, 127, 128, 191, 192, 200, 223] {
            for second in [0, 1, 255] {
                let address = [address, second, 2, 3];
                let expected = longest(&model, high(address));
                assert_eq!(lookup(&fib, address), expected, "{subset}: {address:?}");
            }
        }
        let model: Vec<_> = present()
            .map(|at| {
                let prefix: Ipv6Addr = v6[at].0.parse().unwrap();
                (prefix.to_bits(), v6[at].1, hop(at))
            })
            .collect();
        for address in [
            "2001:db8::1",
            "7fff::1",
            "8000::1",
            "bfff::1",
            "c000::1",
            "dfff::1",
            "e000::1",
            "f000::1",
            "fbff::1",
            "fd00::1",
            "fe00::1",
            "feff::1",
        ] {
            let bits = address.parse::<Ipv6Addr>().unwrap().to_bits();
            let expected = longest(&model, bits);
            assert_eq!(lookup6(&fib, address), expected, "{subset}: {address}");
        }
    }
}

#[test]
fn the_fib_in_use_is_not_touched_and_the_next_version_waits_for_the_last_worker() {
    let (dataplane, mut control, mut mirrors) = tables(&eal(320), 4_096, 1_024);
    let reader = dataplane.reader();
    let (mut fast, mut slow) = (mirrors.lookup(), mirrors.lookup());
    control
        .publish_routes(&[route([10, 0, 0, 0], 8, 1)])
        .unwrap();
    assert_eq!(mirrors.refresh(&reader).v4, None);
    fast.follow();
    assert_eq!(lookup(&fast, [10, 0, 0, 1]), 1);
    control
        .publish_routes(&[route([10, 0, 0, 0], 8, 2)])
        .unwrap();
    for _ in 0..3 {
        assert_eq!(
            mirrors.refresh(&reader).v4,
            None,
            "a worker may still look up there"
        );
        assert_eq!(lookup(&slow, [10, 0, 0, 1]), 0);
    }
    slow.follow();
    assert_eq!(lookup(&slow, [10, 0, 0, 1]), 1);
    assert_eq!(
        mirrors.refresh(&reader).v4,
        None,
        "the second version waits for both"
    );
    slow.follow();
    assert_eq!(mirrors.refresh(&reader).v4, None);
    fast.follow();
    assert!(mirrors.refresh(&reader).v4.is_some());
    assert_eq!(lookup(&slow, [10, 0, 0, 1]), 2);
}

#[test]
fn routes_beyond_the_tables_are_counted_and_the_rest_is_forwarded_by() {
    let (dataplane, mut control, mut mirrors) = tables(&eal(320), 4_096, 1_024);
    let reader = dataplane.reader();
    let mut fib = mirrors.lookup();
    // Each in a /24 of its own: there are 256 groups.
    let hosts = |count: u16| -> Vec<_> {
        let hosts = (0..count).map(|n| route([10, (n >> 8) as u8, n as u8, 1], 32, 2));
        [route([0, 0, 0, 0], 0, 1)]
            .into_iter()
            .chain(hosts)
            .collect()
    };
    control.publish_routes(&hosts(300)).unwrap();
    settle(&mut mirrors, &mut fib, &reader);
    let [refused, _] = mirrors.refused();
    assert!((44..=46).contains(&refused), "{refused}");
    assert_eq!(mirrors.len()[0], 301 - refused as usize);
    assert_eq!(lookup(&fib, [10, 0, 0, 1]), 2);
    assert_eq!(lookup(&fib, [10, 1, 43, 1]), 1, "the less specific route");
    control.publish_routes(&hosts(100)).unwrap();
    settle(&mut mirrors, &mut fib, &reader);
    assert_eq!(mirrors.refused(), [0, 0]);
    control.publish_routes(&hosts(250)).unwrap();
    settle(&mut mirrors, &mut fib, &reader);
    assert_eq!(mirrors.refused(), [0, 0], "those withdrawn made room");
    assert_eq!(lookup(&fib, [10, 0, 249, 1]), 2);
}

/// HZ-09 for tables of routes: groups of 256 entries come and go as fast as they can, and no look-up ever meets one that
/// is somebody else's by now, nor an empty one.
#[test]
fn a_look_up_never_meets_another_prefixs_next_hop() {
    let (dataplane, mut control, mut mirrors) = tables(&eal(320), 4_096, 1_024);
    let reader = dataplane.reader();
    let fibs = [mirrors.lookup(), mirrors.lookup()];
    let stop = AtomicBool::new(false);
    // In 10.0.n/24 there are next hops n + 1 and 1 (around them) and no others.
    let routes = |odd: bool| -> Vec<_> {
        let hosts = (0..200u8).filter(|n| (n % 2 == 1) == odd);
        let hosts = hosts.map(|n| route([10, 0, n, 7], 32, u32::from(n) + 1_000));
        [route([10, 0, 0, 0], 8, 1)]
            .into_iter()
            .chain(hosts)
            .collect()
    };
    control.publish_routes(&routes(false)).unwrap();
    assert_eq!(mirrors.refresh(&reader), NOTHING);
    let versions = std::thread::scope(|scope| {
        let workers: Vec<_> = fibs
            .into_iter()
            .map(|mut fib| {
                let stop = &stop;
                scope.spawn(move || {
                    fib.follow();
                    let mut seen = 0u64;
                    while !stop.load(Ordering::Relaxed) {
                        let dst: [u32; 32] = std::array::from_fn(|at| {
                            0x0a00_0007 | ((seen as u32 * 32 + at as u32) % 200) << 8
                        });
                        let mut out = [0; 32];
                        fib.lookup(&dst, &mut out);
                        let odd = out
                            .iter()
                            .zip(dst)
                            .find_map(|(hop, dst)| (*hop != 1).then_some(dst >> 8 & 1));
                        for (hop, dst) in out.iter().zip(dst) {
                            let n = dst >> 8 & 0xff;
                            // Of one version, all of them.
                            let here = Some(n & 1) == odd;
                            let expected = if here { u64::from(n) + 1_000 } else { 1 };
                            assert_eq!(*hop, expected, "10.0.{n}.7");
                        }
                        seen += 1;
                        fib.follow();
                    }
                    seen
                })
            })
            .collect();
        let mut versions = 0;
        control.publish_routes(&routes(true)).unwrap();
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end && workers.iter().all(|worker| !worker.is_finished()) {
            if mirrors.refresh(&reader).v4.is_some() {
                versions += 1;
                control.publish_routes(&routes(versions % 2 == 1)).unwrap();
            }
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            assert!(worker.join().unwrap() > 0);
        }
        versions
    });
    println!("{versions} versions");
    assert!(versions > 10);
}

/// A full table comes, then 1,000 of its routes change, while a thread looks up as a worker does: it never finds nothing,
/// never a next hop that was not published, and never waits.
#[test]
#[ignore = "takes 1,100 MiB and up to a minute"]
fn a_full_table_comes_and_changes_while_a_worker_looks_up() {
    const ROUTES: u32 = 1_000_000;
    let (dataplane, mut control, mut mirrors) = tables(&eal(1_100), ROUTES, 1_024);
    let reader = dataplane.reader();
    let mut fib = mirrors.lookup();
    let table = |moved: u32| -> Vec<_> {
        let routes = (0..ROUTES - 1).map(|n| {
            // /24s from 1.0.0.0 on, and a /22 around every four of every eighth.
            let (prefix, length) = if n % 9 == 8 {
                (0x0100_0000 + n / 9 * 8 * 1_024, 22)
            } else {
                (0x0100_0000 + (n / 9 * 8 + n % 9) * 256, 24)
            };
            Route {
                prefix: Ipv4Addr::from(prefix),
                length,
                next_hop: NextHopId(if n < moved { 3 } else { 2 }),
            }
        });
        [route([0, 0, 0, 0], 0, 1)]
            .into_iter()
            .chain(routes)
            .collect()
    };
    control
        .publish_routes(&[route([0, 0, 0, 0], 0, 1)])
        .unwrap();
    settle(&mut mirrors, &mut fib, &reader);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let (mut bursts, mut longest, mut seen) = (0u64, Duration::ZERO, [0u64; 4]);
            let mut next = 1u32;
            let mut out = [0; 32];
            while !stop.load(Ordering::Relaxed) {
                let dst: [u32; 32] = std::array::from_fn(|_| {
                    next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    0x0100_0000 + (next >> 2) % (ROUTES * 228)
                });
                let started = Instant::now();
                fib.lookup(&dst, &mut out);
                fib.follow();
                longest = longest.max(started.elapsed());
                for hop in out {
                    seen[hop as usize] += 1;
                }
                bursts += 1;
            }
            (bursts, longest, seen)
        });
        let step = |what: &str, mirrors: &mut FibMirrors| {
            let started = Instant::now();
            let mut longest = Duration::ZERO;
            let mut found = None;
            for _ in 0..1_000_000 {
                let call = Instant::now();
                let applied = mirrors.refresh(&reader);
                longest = longest.max(call.elapsed());
                if applied.v4.is_some() {
                    found = Some(started.elapsed());
                } else if found.is_some() && mirrors.is_settled() {
                    break;
                }
                std::thread::yield_now();
            }
            println!(
                "{what}: found after {:?}, both FIBs after {:?}, the main thread was away {longest:?} at most",
                found.unwrap(),
                started.elapsed()
            );
        };
        control.publish_routes(&table(0)).unwrap();
        step("1,000,000 routes", &mut mirrors);
        control.publish_routes(&table(1_000)).unwrap();
        step("1,000 routes changed", &mut mirrors);
        assert_eq!(mirrors.len()[0], ROUTES as usize);
        assert_eq!(mirrors.refused(), [0, 0]);
        stop.store(true, Ordering::Relaxed);
        let (bursts, longest, seen) = worker.join().unwrap();
        println!(
            "{bursts} bursts looked up meanwhile, the longest in {longest:?}, next hops {seen:?}"
        );
        assert_eq!(seen[0], 0, "always a route");
        assert!(seen.iter().skip(1).all(|count| *count > 0));
    });
}
