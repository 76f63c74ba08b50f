//! Any bursts of any frames in either direction: one verdict each, one count per drop, untouched bytes where the
//! verdict says so, and a well-formed packet wherever something is forwarded.
//!
//! Input: a byte of switches, then frames, each led by a byte of length. Frames are taken as they are, or as what
//! follows the headers of a live session (upstream) or of the next hop (downstream), so that the fuzzer gets deep.
#![no_main]

use std::cell::RefCell;

use bng_fastpath::testing::{Spec, TestBuf, World};
use bng_fastpath::{Origin, PacketBuf, Verdict};
use bng_shm::{Counter, Session};
use bng_wire::ethernet::ethertype;
use bng_wire::pppoe::protocol;
use libfuzzer_sys::fuzz_target;

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::with_sessions(Spec { workers: 2, ..Spec::default() }, 4));
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
        bufs.push(match (switches & 1 == 0, switches & 2 == 0) {
            (true, true) => TestBuf::new(len % 5, bytes),
            (true, false) => World::ppp_frame(World::slot(n), &session, protocol::IPV4, bytes),
            (false, true) => TestBuf::new(2, bytes),
            (false, false) => world.from_core(bytes),
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

fn drops(world: &World) -> u64 {
    world
        .counted(0)
        .iter()
        .filter(|(counter, _)| counter.is_drop())
        .map(|(_, count)| count)
        .sum()
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
                Verdict::Forward { .. } => {
                    bng_wire::ipv4::parse(inner(buf.data())).expect("a right IPv4 packet");
                }
                Verdict::Drop(reason) => {
                    assert!(Counter::is_drop(*reason));
                    dropped += 1;
                }
                Verdict::Punt(_) | Verdict::Host { .. } | Verdict::HandOver { .. } => {
                    assert_eq!(buf, was)
                }
            }
        }
        assert_eq!(drops(world) - before, dropped);
        // Time passes, so that mappings age as well.
        world.pass(u64::from(switches >> 4) * 1_000, 1_000);
    });
});
