//! Sessions of other workers: looked at, handed over, never touched (INV-OWNER-1).
#![allow(missing_docs, clippy::unwrap_used)]

use bng_fastpath::testing::{Spec, World, icmp_error, udp};
use bng_fastpath::{Origin, PacketBuf, Punt, Verdict};
use bng_shm::{Counter, Session};
use bng_wire::pppoe::protocol;

fn two_workers() -> World {
    World::with_sessions(
        Spec {
            workers: 2,
            ..Spec::default()
        },
        2,
    )
}

#[test]
fn upstream_frames_go_to_their_owner_unchanged_and_are_processed_there() {
    let mut world = two_workers();
    let session = Session {
        generation: 1,
        ..world.session(1)
    };
    let slot = World::slot(1);
    let packet = udp((World::framed_ip(1), 9), (World::HOST, 9), b"");
    let data = World::from_subscriber(slot, &session, &packet);
    let lcp = World::ppp_frame(slot, &session, protocol::LCP, b"\x09\x01\0\x08....");
    let out = world.upstream(0, vec![data.clone(), lcp.clone()], Origin::Port);
    let hand_over = Verdict::HandOver { worker: 1 };
    assert_eq!(out, [(hand_over, data.clone()), (hand_over, lcp.clone())]);
    assert_eq!(world.counted(0), []);
    assert_eq!(world.publisher.session_stats(slot).unwrap().last_up_ms, 0);

    let out = world.upstream(1, vec![data, lcp], Origin::HandedOver);
    assert_eq!(out[0].0, Verdict::Forward { port: 2 });
    assert_eq!(
        out[1].0,
        Verdict::Punt(Punt::Ppp {
            slot,
            generation: 1
        })
    );
    assert_eq!(
        (
            world.workers[0].nat_mappings(),
            world.workers[1].nat_mappings()
        ),
        (0, 1)
    );
}

#[test]
fn downstream_packets_go_to_the_owner_of_the_mapping() {
    let mut world = two_workers();
    let session = Session {
        generation: 1,
        ..world.session(1)
    };
    let packet = udp((World::framed_ip(1), 9), (World::HOST, 9), b"");
    let up = World::from_subscriber(World::slot(1), &session, &packet);
    let (_, sent) = world.upstream(1, vec![up], Origin::Port).remove(0);
    let sent = &sent.data()[14..];
    let port = u16::from_be_bytes([sent[20], sent[21]]);
    let address = session.nat.unwrap().address;
    let answer = world.from_core(&udp((World::HOST, 9), (address, port), b"answer"));
    let error = world.from_core(&icmp_error(World::HOST, address, 3, sent));
    let out = world.downstream(0, vec![answer.clone(), error.clone()], Origin::Port);
    let hand_over = Verdict::HandOver { worker: 1 };
    assert_eq!(
        out,
        [(hand_over, answer.clone()), (hand_over, error.clone())]
    );
    assert_eq!(world.counted(0), []);
    for (verdict, _) in world.downstream(1, vec![answer, error], Origin::HandedOver) {
        assert_eq!(verdict, Verdict::Forward { port: 0 });
    }
}

#[test]
fn a_frame_is_never_handed_on_again() {
    let mut world = two_workers();
    let session = Session {
        generation: 1,
        ..world.session(1)
    };
    let packet = udp((World::framed_ip(1), 9), (World::HOST, 9), b"");
    let up = World::from_subscriber(World::slot(1), &session, &packet);
    let (_, sent) = world.upstream(1, vec![up.clone()], Origin::Port).remove(0);
    let port = u16::from_be_bytes([sent.data()[34], sent.data()[35]]);
    let down = world.from_core(&udp(
        (World::HOST, 9),
        (session.nat.unwrap().address, port),
        b"",
    ));
    // Worker 0 gets both as handed over, as if ownership had moved on the way.
    let stale = Verdict::Drop(Counter::HandoverStale);
    assert_eq!(world.upstream(0, vec![up], Origin::HandedOver)[0].0, stale);
    assert_eq!(
        world.downstream(0, vec![down], Origin::HandedOver)[0].0,
        stale
    );
    assert_eq!(world.counted(0), [(Counter::HandoverStale, 2)]);
}

#[test]
fn a_handed_over_frame_of_an_ended_session_is_unknown() {
    let mut world = two_workers();
    let session = Session {
        generation: 1,
        ..world.session(1)
    };
    let packet = udp((World::framed_ip(1), 9), (World::HOST, 9), b"");
    let up = World::from_subscriber(World::slot(1), &session, &packet);
    world.close(World::slot(1));
    let out = world.upstream(1, vec![up], Origin::HandedOver);
    assert_eq!(out[0].0, Verdict::Drop(Counter::SessionUnknown));
}
