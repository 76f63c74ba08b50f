//! What the tests of IPv6 share.
#![allow(dead_code, reason = "not every test crate needs all of it")]

use bng_fastpath::testing::{TestBuf, World};
use bng_fastpath::{Origin, PacketBuf, Verdict};
use bng_shm::{Counter, Session, SlotIndex};
use bng_wire::pppoe::protocol;

/// The session of most tests, number 0.
pub(crate) const SLOT: SlotIndex = World::slot(0);

/// A world that sends ICMP errors, with this many sessions; and session 0.
pub(crate) fn world(sessions: u32) -> (World, Session) {
    let spec = bng_fastpath::testing::Spec {
        icmp_errors_per_second: 100,
        ..Default::default()
    };
    world_of(spec, sessions)
}

/// As [`world`], of any size.
pub(crate) fn world_of(spec: bng_fastpath::testing::Spec, sessions: u32) -> (World, Session) {
    let world = World::with_sessions(spec, sessions);
    let session = Session {
        generation: 1,
        ..world.session(0)
    };
    (world, session)
}

/// One packet from session 0's subscriber: the verdict and the frame.
pub(crate) fn send(world: &mut World, packet: &[u8]) -> (Verdict, Vec<u8>) {
    send_from(world, 0, packet)
}

/// One packet from the subscriber of session `n`, whose owner is worker 0.
pub(crate) fn send_from(world: &mut World, n: u32, packet: &[u8]) -> (Verdict, Vec<u8>) {
    let session = world.session(n);
    let buf = World::from_subscriber6(World::slot(n), &session, packet);
    let (verdict, out) = world.upstream(0, vec![buf], Origin::Port).remove(0);
    (verdict, out.data().to_vec())
}

/// One packet from the core.
pub(crate) fn receive(world: &mut World, packet: &[u8]) -> (Verdict, Vec<u8>) {
    let buf = world.from_core6(packet);
    let (verdict, out) = world.downstream(0, vec![buf], Origin::Port).remove(0);
    (verdict, out.data().to_vec())
}

/// The packet with this hop limit.
pub(crate) fn hops(mut packet: Vec<u8>, hop_limit: u8) -> Vec<u8> {
    packet[7] = hop_limit;
    packet
}

/// The frame in which a session's subscriber gets a packet.
pub(crate) fn to_subscriber(world: &World, n: u32, packet: &[u8]) -> Vec<u8> {
    let session = world.session(n);
    let slot = World::slot(n);
    bng_fastpath::testing::pppoe_session(
        bng_wire::MacAddr(session.client_mac),
        World::port_mac(slot.access_port()),
        &World::tags(&session),
        slot.session_id(),
        protocol::IPV6,
        packet,
    )
}

/// A counter of worker 0.
pub(crate) fn counted(world: &World, counter: Counter) -> u64 {
    counted_by(world, 0, counter)
}

/// A counter of a worker.
pub(crate) fn counted_by(world: &World, worker: u8, counter: Counter) -> u64 {
    let counts = world.counted(worker);
    counts.iter().find(|c| c.0 == counter).map_or(0, |c| c.1)
}

/// Packets and bytes of session `n`: up, then down.
pub(crate) fn stats(world: &World, n: u32) -> [u64; 4] {
    let stats = world
        .publisher
        .session_stats(World::slot(n))
        .unwrap_or_default();
    [
        stats.up_packets,
        stats.up_bytes,
        stats.down_packets,
        stats.down_bytes,
    ]
}

/// A frame of session 0 with these bytes in place of an IPv6 packet.
pub(crate) fn frame(world: &World, packet: &[u8]) -> TestBuf {
    World::from_subscriber6(SLOT, &world.session(0), packet)
}
