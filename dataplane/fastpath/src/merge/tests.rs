use super::*;
use crate::PacketBuf;
use crate::segment::Segmenter;
use crate::testing::{L4Frame, TestPool};
use bng_wire::checksum::Sum;
use proptest::prelude::*;

const CUT: How = How {
    segment: 0,
    ids: Ids::Rising,
    cwr: Cwr::First,
};

fn run(packet: &L4Frame, segment: usize) -> Run {
    let len = packet.payload.len();
    Run {
        is_tcp: packet.tcp,
        is_ipv6: packet.ipv6,
        segment: segment as u16,
        last_segment: (len - (len - 1) / segment * segment) as u16,
        ids: if packet.ipv6 { Ids::Fixed } else { Ids::Rising },
        cwr: false,
        received_bytes: 0,
        arrived_ns: 0,
    }
}

fn of(run: &Run, frames: &[Vec<u8>]) -> Option<Merged> {
    Merged::of(run, frames.iter().map(|frame| &frame[..]))
}

/// The super-packet in the pieces an mbuf chain has.
fn chain(merged: &Merged, frames: &[Vec<u8>], checksums: Checksums) -> Vec<Vec<u8>> {
    let mut pieces = frames.to_vec();
    let len = merged.layout().header_len();
    merged.write(&mut pieces[0][..len], checksums);
    for piece in &mut pieces[1..] {
        piece.drain(..len);
    }
    pieces
}

/// What the other side makes of it.
fn cut(merged: &Merged, pieces: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let pieces: Vec<_> = pieces.iter().map(|piece| &piece[..]).collect();
    let how = How {
        segment: merged.segment(),
        ..CUT
    };
    let segmenter = Segmenter::new(pieces[0], &pieces[1..], how).unwrap();
    let mut frames = Vec::new();
    let mut pool = TestPool { left: usize::MAX };
    segmenter.frames(&mut pool, |frame| frames.push(frame.data().to_vec()));
    frames
}

/// A flow on the core side, as the stages leave it, and the size of its segments.
fn flow() -> impl Strategy<Value = (L4Frame, usize)> {
    let basic = (any::<bool>(), any::<bool>(), 1usize..200, 2usize..40);
    let ip = (
        any::<u8>(),
        1u8..=255,
        any::<u16>(),
        any::<bool>(),
        0u32..1 << 20,
    );
    let tcp = (
        any::<u32>(),
        any::<u32>(),
        any::<u16>(),
        0u16..0x200,
        0usize..=10,
    );
    let ends = (
        any::<[u8; 12]>(),
        any::<[u32; 2]>(),
        any::<[u16; 2]>(),
        any::<u8>(),
    );
    (basic, ip, tcp, ends).prop_map(|(basic, ip, tcp, ends)| {
        let (ipv6, is_tcp, segment, frames) = basic;
        let short = usize::from(ends.3) % segment;
        let payload: Vec<u8> = (0..segment * frames - short)
            .map(|at| (at as u8).wrapping_mul(ends.3 | 1))
            .collect();
        let mut packet = L4Frame::new(None, ipv6, is_tcp, &payload);
        (packet.tos, packet.ttl, packet.id, packet.df, packet.label) = ip;
        (packet.seq, packet.ack, packet.window, packet.flags) =
            (tcp.0, tcp.1, tcp.2, tcp.3 & !0x80 | 0x10);
        if is_tcp {
            packet.tcp_options = (0..4 * tcp.4 as u8).map(|at| at ^ ends.3).collect();
        }
        (packet.macs, packet.addresses, packet.ports) = (ends.0, ends.1, ends.2);
        (packet, segment)
    })
}

proptest! {
    /// P1 and P2. The frames are rewritten ones as much as any others: addresses, ports, TTL and MACs are arbitrary.
    #[test]
    fn cutting_what_was_merged_gives_the_frames((packet, segment) in flow()) {
        let frames: Vec<_> = packet.cut(segment, 1).iter().map(L4Frame::frame).collect();
        let run = run(&packet, segment);
        let Some(merged) = of(&run, &frames) else {
            // The one thing in the way: a checksum that is computed otherwise than it stands there cannot be, here.
            return Err(TestCaseError::fail("not merged"));
        };
        for checksums in [Checksums::Virtio, Checksums::Port { ipv4: false }, Checksums::Port { ipv4: true }] {
            let pieces = chain(&merged, &frames, checksums);
            prop_assert_eq!(cut(&merged, &pieces), frames.clone());
        }
    }

    /// The super-packet for a kernel is the one packet of all payload, with the checksum still to be completed.
    #[test]
    fn a_super_packet_for_a_kernel_is_one_packet((packet, segment) in flow()) {
        let frames: Vec<_> = packet.cut(segment, 1).iter().map(L4Frame::frame).collect();
        let merged = of(&run(&packet, segment), &frames).unwrap();
        let mut whole = chain(&merged, &frames, Checksums::Virtio).concat();
        let layout = merged.layout();
        let check = Sum::new().bytes(&whole[layout.l4()..]).finish();
        let check = if check == 0 && !packet.tcp { 0xffff } else { check };
        layout.set_l4_checksum(&mut whole, check);
        prop_assert_eq!(whole, packet.frame());
    }

    /// Whatever differs in one header keeps the frames apart; what is behind the headers is the coalescer's to verify.
    #[test]
    fn a_header_that_is_not_what_cutting_gives_keeps_the_frames_apart(
        (packet, segment) in flow(), which: prop::sample::Index, at: prop::sample::Index, change in 1u8..=255,
    ) {
        let mut frames: Vec<_> = packet.cut(segment, 1).iter().map(L4Frame::frame).collect();
        let which = which.index(frames.len());
        let len = packet.header_len();
        let at = at.index(len);
        let check = len - packet.l4_len() + if packet.tcp { 16 } else { 6 };
        prop_assume!(!(check..check + 2).contains(&at));
        // FIN and PSH of the last frame become the super-packet's.
        let flags = check - 3;
        let last = which + 1 == frames.len();
        prop_assume!(!(packet.tcp && last && at == flags && change & !0x09 == 0));
        frames[which][at] ^= change;
        prop_assert_eq!(of(&run(&packet, segment), &frames), None);
    }
}

fn example(ipv6: bool, tcp: bool) -> (L4Frame, Vec<Vec<u8>>) {
    let packet = L4Frame::new(None, ipv6, tcp, &[0x61; 250]);
    let frames = packet.cut(100, 1).iter().map(L4Frame::frame).collect();
    (packet, frames)
}

#[test]
fn what_the_other_side_has_no_word_for_is_not_merged() {
    let (packet, frames) = example(false, true);
    let good = run(&packet, 100);
    assert!(of(&good, &frames).is_some());
    let fixed = Run {
        ids: Ids::Fixed,
        ..good
    };
    let same_id: Vec<_> = packet.cut(100, 0).iter().map(L4Frame::frame).collect();
    assert_eq!(of(&fixed, &same_id), None);
    assert_eq!(of(&good, &same_id), None);
    assert_eq!(of(&Run { cwr: true, ..good }, &frames), None);
    let with_cwr = L4Frame {
        flags: 0x90,
        ..packet.clone()
    };
    let with_cwr: Vec<_> = with_cwr.cut(100, 1).iter().map(L4Frame::frame).collect();
    assert_eq!(of(&good, &with_cwr), None);
    assert_eq!(of(&good, &frames[..1]), None);
    assert_eq!(of(&good, &[]), None);
    for odd in [
        L4Frame {
            session: Some(1),
            ..packet.clone()
        },
        L4Frame {
            tags: vec![[0x81, 0, 0, 7]],
            ..packet.clone()
        },
        L4Frame {
            ip_options: vec![1, 1, 1, 0],
            ..packet.clone()
        },
    ] {
        let frames: Vec<_> = odd.cut(100, 1).iter().map(L4Frame::frame).collect();
        assert_eq!(of(&good, &frames), None);
    }
    let (v6, _) = example(true, true);
    let extended = L4Frame {
        ip_options: vec![1, 0, 1, 4, 0, 0, 0, 0],
        ..v6.clone()
    };
    let frames: Vec<_> = extended.cut(100, 1).iter().map(L4Frame::frame).collect();
    assert_eq!(of(&run(&v6, 100), &frames), None);
}

#[test]
fn sizes_that_are_not_the_runs_are_not_merged() {
    let (packet, frames) = example(true, false);
    let good = run(&packet, 100);
    assert!(of(&good, &frames).is_some());
    for segment in [0, 49, 50, 99, 101] {
        assert_eq!(of(&Run { segment, ..good }, &frames), None, "{segment}");
    }
    let short = vec![frames[2].clone(), frames[2].clone()];
    assert_eq!(of(&good, &short), None);
    let long = |len: usize| L4Frame::new(None, true, false, &vec![0; len]);
    let frames = |len: usize| {
        long(len)
            .cut(1_400, 1)
            .iter()
            .map(L4Frame::frame)
            .collect::<Vec<_>>()
    };
    assert!(of(&run(&long(65_527), 1_400), &frames(65_527)).is_some());
    assert_eq!(of(&run(&long(65_528), 1_400), &frames(65_528)), None);
}

/// TCP has one form of zero, UDP the other; the one that is not computed is not merged.
#[test]
fn a_checksum_in_the_form_that_is_not_sent_is_not_merged() {
    for (tcp, other_zero) in [(true, 0xffff_u16), (false, 0)] {
        let (packet, mut frames) = example(false, tcp);
        let at = packet.l3() + 20 + if tcp { 16 } else { 6 };
        frames[1][at..at + 2].copy_from_slice(&other_zero.to_be_bytes());
        assert_eq!(of(&run(&packet, 100), &frames), None);
    }
}

/// The IPv4 header checksum is the port's to compute, or right.
#[test]
fn a_port_that_computes_ipv4_checksums_gets_none() {
    let (packet, frames) = example(false, true);
    let merged = of(&run(&packet, 100), &frames).unwrap();
    let at = packet.l3() + 10;
    for (checksums, is_left) in [
        (Checksums::Virtio, false),
        (Checksums::Port { ipv4: false }, false),
        (Checksums::Port { ipv4: true }, true),
    ] {
        let mut head = frames[0].clone();
        merged.write(&mut head, checksums);
        assert_eq!(head[at..at + 2] == [0, 0], is_left, "{checksums:?}");
    }
}
