//! What the table tests of both directions share.

use bng_fastpath::testing::{TestBuf, World};
use bng_fastpath::{Origin, Verdict};
use bng_shm::Counter;

/// The direction of a test.
#[allow(dead_code, reason = "each test crate has one direction")]
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    /// From an access port.
    Up,
    /// From a core port.
    Down,
}

/// The packet with one header byte replaced and the header checksum right again.
#[allow(dead_code, reason = "IPv6 has no header checksum")]
pub(crate) fn edited(mut packet: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
    packet[at] = value;
    packet[10..12].fill(0);
    let len = (usize::from(packet[0] & 15) * 4).min(packet.len());
    let check = bng_wire::checksum::checksum(&packet[..len]);
    packet[10..12].copy_from_slice(&check.to_be_bytes());
    packet
}

/// Sends some copies of a frame and expects each to be dropped for `reason`, and nothing else to have happened.
#[allow(dead_code, reason = "not every test crate drops this way")]
pub(crate) fn expect_drop(name: &str, world: &mut World, way: Way, buf: &TestBuf, reason: Counter) {
    let copies = 3;
    let before = world.counted(0);
    let of = |counts: &[(Counter, u64)]| counts.iter().find(|c| c.0 == reason).map_or(0, |c| c.1);
    let stats = world.publisher.session_stats(World::slot(0));
    let mappings = world.workers[0].nat_mappings();
    let bufs = vec![buf.clone(); copies];
    let out = match way {
        Way::Up => world.upstream(0, bufs, Origin::Port),
        Way::Down => world.downstream(0, bufs, Origin::Port),
    };
    for (verdict, _) in &out {
        assert_eq!(*verdict, Verdict::Drop(reason), "{name}");
    }
    let mut after = world.counted(0);
    assert_eq!(
        of(&after),
        of(&before) + copies as u64,
        "{name}: counted once each"
    );
    // These worlds send no ICMP errors: their limit is 0.
    let other = |c: &(Counter, u64)| c.0 != reason && c.0 != Counter::IcmpErrorLimited;
    after.retain(other);
    let others: Vec<_> = before.into_iter().filter(other).collect();
    assert_eq!(after, others, "{name}: nothing else counted");
    let stats_after = world.publisher.session_stats(World::slot(0));
    assert_eq!(stats_after, stats, "{name}: no session counter moved");
    assert_eq!(
        world.workers[0].nat_mappings(),
        mappings,
        "{name}: no mapping made"
    );
    assert_eq!(world.events(0), [], "{name}: no event");
}
