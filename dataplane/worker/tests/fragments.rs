//! Fragments that come before their first one, in the real process: they wait, are counted, and nothing is left of them.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code
)]

mod running;

use bng_fastpath::testing::udp;
use bng_shm::Counter;
use bng_wire::checksum::checksum;
use bng_wire::pppoe::protocol;
use running::frames::{from_subscriber, two_subscribers};
use running::trains::{expect_buffers, idle_buffers};
use running::{Gateway, HOST, Subscriber};

/// A packet in two fragments, the later one first.
fn swapped(s: &Subscriber, id: u8) -> [Vec<u8>; 2] {
    let packet = udp((s.session.framed_ip, 5_000), (HOST, 53), &[id; 992]);
    [(504, 1_000, 63), (0, 504, 0x2000)].map(|(from, to, frag): (usize, usize, u16)| {
        let mut piece = packet[..20].to_vec();
        piece.extend(&packet[20 + from..20 + to]);
        let len = piece.len() as u16;
        piece[2..4].copy_from_slice(&len.to_be_bytes());
        piece[5] = id;
        piece[6..8].copy_from_slice(&frag.to_be_bytes());
        piece[10..12].fill(0);
        let check = checksum(&piece[..20]);
        piece[10..12].copy_from_slice(&check.to_be_bytes());
        piece
    })
}

#[test]
fn a_later_fragment_waits_and_every_buffer_comes_back() {
    let mut g = Gateway::start("fragments");
    let idle = idle_buffers(&g);
    let [s, other] = two_subscribers(&mut g);
    let send = |g: &Gateway, piece: &[u8]| {
        g.access
            .send(&from_subscriber(g, &s, protocol::IPV4, piece));
    };
    // No epoch passes meanwhile: control does nothing.
    let [later, first] = swapped(&s, 1);
    send(&g, &later);
    g.expect(Counter::FragmentsHeld, 1);
    send(&g, &first);
    let sent = [g.core.receive(), g.core.receive()];
    for (frame, piece) in sent.iter().zip([&first, &later]) {
        assert_eq!(frame[14 + 12..14 + 16], s.block().address.octets());
        assert_eq!(frame[14 + 6..14 + 8], piece[6..8], "the first one first");
        assert_eq!(frame[14 + 28..], piece[28..]);
    }
    assert_eq!(sent[0][18..20], sent[1][18..20], "one identification");
    g.expect(Counter::FragmentsResumed, 1);
    g.assert_conservation();

    // A session ends, and control waits for the workers.
    send(&g, &swapped(&s, 2)[0]);
    g.expect(Counter::FragmentsHeld, 2);
    g.close(&other);
    g.expect(Counter::FragmentsResumed, 2);
    g.expect(Counter::NatFragmentNoFirst, 1);

    // Nothing comes for two seconds.
    send(&g, &swapped(&s, 3)[0]);
    g.expect(Counter::FragmentsHeld, 3);
    g.expect(Counter::NatFragmentNoFirst, 2);
    g.assert_silent();
    g.assert_conservation();
    expect_buffers(&g, idle);

    // The process ends.
    send(&g, &swapped(&s, 4)[0]);
    g.expect(Counter::FragmentsHeld, 4);
    assert!(g.terminate().success());
    assert_eq!(g.count(Counter::FragmentsResumed), 4);
    assert_eq!(g.count(Counter::NatFragmentNoFirst), 3);
}
