//! Any bursts of any frames in either direction: one verdict each, one count per drop, untouched bytes where the
//! verdict says so, and a well-formed packet wherever something is forwarded.
//!
//! Input: a byte of switches, then frames, each led by a byte of length. Frames are taken as they are, or as what
//! follows the headers of a live session (upstream) or of the next hop (downstream), so that the fuzzer gets deep. A
//! session's frames are under a filter, policers and the clamp of TCP's MSS.
#![no_main]

use std::cell::RefCell;

use bng_fastpath::testing::{Spec, TestBuf, World};
use bng_fastpath::{Origin, PacketBuf, Verdict};
use bng_shm::{
    Counter, Filter, FilterAction, FilterId, FilterRule, Policy, PolicyId, Rate, Session,
};
use bng_wire::ethernet::ethertype;
use bng_wire::pppoe::protocol;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(world());
}

/// Four sessions; the last two, one of either worker, are under a policy with everything in it.
fn world() -> World {
    let mut world = World::with_sessions(
        Spec {
            workers: 2,
            icmp_errors_per_second: 1_000,
            punts_per_second: 1_000,
            ..Spec::default()
        },
        4,
    );
    let rule = FilterRule {
        action: FilterAction::Drop,
        protocol: None,
        remote: None,
        remote_ports: Some((0, 1_023)),
        local_ports: None,
    };
    let filter = Filter {
        up: vec![rule],
        down: vec![rule],
        ..Filter::default()
    };
    let rate = Some(Rate {
        kbps: 1_000,
        burst_bytes: 3_000,
    });
    let policy = Policy {
        up: rate,
        down: rate,
        source_check: false,
        mss_clamp: true,
        filter: Some(FilterId(0)),
    };
    let id = PolicyId(2);
    world.publisher.publish_filters(&[filter]).expect("filter");
    world
        .publisher
        .write_policy(id, Some(&policy))
        .expect("policy");
    for n in 2..4 {
        let session = Session {
            policy: id,
            ..world.session(n)
        };
        world.update(World::slot(n), session);
    }
    world
}

fn frames(world: &World, switches: u8, mut rest: &[u8]) -> Vec<TestBuf> {
    let mut bufs = Vec::new();
    while let Some((len, tail)) = rest.split_first() {
        let (bytes, tail) = tail.split_at(usize::from(*len).min(tail.len()));
        rest = tail;
        let n = u32::from(*len & 3);
        let session = Session {
            generation: 1,
            ..world.session(n)
        };
        let is_ipv4 = switches & 8 == 0;
        let protocol = if is_ipv4 {
            protocol::IPV4
        } else {
            protocol::IPV6
        };
        bufs.push(match (switches & 1 == 0, switches & 2 == 0) {
            (true, true) => TestBuf::new(len % 5, bytes),
            (true, false) => World::ppp_frame(World::slot(n), &session, protocol, bytes),
            (false, true) => TestBuf::new(2, bytes),
            (false, false) if is_ipv4 => world.from_core(bytes),
            (false, false) => world.from_core6(bytes),
        });
    }
    bufs
}

fn inner(frame: &[u8]) -> &[u8] {
    let link = bng_wire::ethernet::parse(frame).expect("an Ethernet frame");
    let rest = &frame[link.payload..];
    match link.ethertype {
        ethertype::PPPOE_SESSION => {
            bng_wire::pppoe::parse_session(rest)
                .expect("a session frame")
                .payload
        }
        _ => rest,
    }
}

fn check_packet(packet: &[u8]) {
    match packet.first().map(|byte| byte >> 4) {
        Some(6) => {
            bng_wire::ipv6::parse(packet).expect("a right IPv6 packet");
        }
        _ => {
            bng_wire::ipv4::parse(packet).expect("a right IPv4 packet");
        }
    }
}

fn count(world: &World, wanted: impl Fn(Counter) -> bool) -> u64 {
    let counts = world.counted(0);
    counts.iter().filter(|c| wanted(c.0)).map(|c| c.1).sum()
}

/// Packets dropped, less the errors sent in place of some of them.
fn drops(world: &World) -> u64 {
    count(world, Counter::is_drop) - count(world, |counter| counter == Counter::IcmpErrorSent)
}

fuzz_target!(|input: &[u8]| {
    let Some((switches, rest)) = input.split_first() else {
        return;
    };
    WORLD.with_borrow_mut(|world| {
        let bufs = frames(world, *switches, rest);
        let before = drops(world);
        let origin = if switches & 4 == 0 {
            Origin::Port
        } else {
            Origin::HandedOver
        };
        let sent = bufs.clone();
        let out = match switches & 1 {
            0 => world.upstream(0, bufs, origin),
            _ => world.downstream(0, bufs, origin),
        };
        let mut dropped = 0;
        for ((verdict, buf), was) in out.iter().zip(&sent) {
            match verdict {
                Verdict::Forward { .. } | Verdict::Fragment { .. } => {
                    check_packet(inner(buf.data()))
                }
                Verdict::Drop(reason) => {
                    assert!(Counter::is_drop(*reason));
                    dropped += 1;
                }
                // From one subscriber to another, a packet turns round on its way.
                Verdict::HandOver { .. } if buf.port() != was.port() => {
                    check_packet(inner(buf.data()));
                }
                Verdict::Punt(_)
                | Verdict::Host { .. }
                | Verdict::HandOver { .. }
                | Verdict::Wait(_) => {
                    assert_eq!(buf, was)
                }
            }
        }
        assert_eq!(drops(world) - before, dropped);
        // Time passes, so that mappings age as well.
        world.pass(u64::from(switches >> 4) * 1_000, 1_000);
    });
});
