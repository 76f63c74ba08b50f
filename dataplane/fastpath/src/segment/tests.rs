use super::*;
use crate::testing::{L4Frame, TestPool};
use proptest::prelude::*;

const FIN_PSH: u16 = 0x09;
const CWR: u16 = 0x80;
const ECE: u16 = 0x40;
const ACK: u16 = 0x10;

/// A payload in which no two windows are alike.
fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn how(segment: u16, ids: Ids, cwr: Cwr) -> How {
    How { segment, ids, cwr }
}

/// The frames of a super-packet whose headers lie about all lengths (H2).
fn cut(packet: &L4Frame, how: How) -> Vec<Vec<u8>> {
    let mut bytes = packet.frame();
    let (l3, l4) = (packet.l3(), packet.l3() + packet.l3_len());
    if packet.session.is_some() {
        bytes[l3 - 4..l3 - 2].fill(0x5a);
    }
    let length = l3 + if packet.ipv6 { 4 } else { 2 };
    bytes[length..length + 2].fill(0xa5);
    if !packet.ipv6 {
        bytes[l3 + 10..l3 + 12].fill(1);
    }
    if !packet.tcp {
        bytes[l4 + 4..l4 + 6].fill(3);
    }
    let segmenter = Segmenter::new(&bytes, &[], how).unwrap();
    let mut pool = TestPool { left: usize::MAX };
    let mut frames = Vec::new();
    let cut = segmenter.frames(&mut pool, |frame| frames.push(frame.data().to_vec()));
    assert_eq!((cut.made, cut.lost), (segmenter.len(), 0));
    frames
}

/// All (session, IPv6, TCP).
fn kinds() -> impl Iterator<Item = (Option<u16>, bool, bool)> {
    [None, Some(0x1234)].into_iter().flat_map(|session| {
        [(false, true), (true, true), (false, false), (true, false)]
            .map(|(ipv6, tcp)| (session, ipv6, tcp))
    })
}

fn id_step(ids: Ids) -> u16 {
    match ids {
        Ids::Fixed => 0,
        Ids::Rising => 1,
    }
}

#[test]
fn every_length_from_one_byte_to_three_segments() {
    const SEGMENT: u16 = 100;
    for (session, ipv6, tcp) in kinds() {
        for ids in [Ids::Fixed, Ids::Rising] {
            for len in 1..=3 * usize::from(SEGMENT) {
                let mut packet = L4Frame::new(session, ipv6, tcp, &payload(len));
                packet.flags = ACK | FIN_PSH;
                packet.id = 0xffff;
                let frames = cut(&packet, how(SEGMENT, ids, Cwr::Every));
                let expected = packet.cut(SEGMENT.into(), id_step(ids));
                let expected: Vec<_> = expected.iter().map(L4Frame::frame).collect();
                assert_eq!(frames, expected, "{session:?} {ipv6} {tcp} {ids:?} {len}");
            }
        }
    }
}

#[test]
fn cwr_is_on_every_segment_or_on_the_first() {
    for (session, ipv6, tcp) in kinds().filter(|(_, _, tcp)| *tcp) {
        let mut packet = L4Frame::new(session, ipv6, tcp, &payload(300));
        packet.flags = ACK | CWR | ECE | FIN_PSH;
        for cwr in [Cwr::Every, Cwr::First] {
            let frames = cut(&packet, how(100, Ids::Rising, cwr));
            let mut expected = packet.cut(100, 1);
            if cwr == Cwr::First {
                for frame in &mut expected[1..] {
                    frame.flags &= !CWR;
                }
            }
            let expected: Vec<_> = expected.iter().map(L4Frame::frame).collect();
            assert_eq!(frames, expected, "{cwr:?}");
        }
    }
}

#[test]
fn a_sequence_number_wraps() {
    let mut packet = L4Frame::new(None, false, true, &payload(300));
    packet.seq = 4_294_967_196;
    let frames = cut(&packet, how(100, Ids::Fixed, Cwr::Every));
    let seq = |frame: &Vec<u8>| u32::from_be_bytes(*frame[38..].first_chunk().unwrap());
    assert_eq!(
        frames.iter().map(seq).collect::<Vec<_>>(),
        [4_294_967_196, 0, 100]
    );
}

/// The second frame's payload makes its UDP checksum come out as zero (S5).
#[test]
fn a_udp_checksum_of_zero_is_sent_as_all_ones() {
    for ipv6 in [false, true] {
        let mut packet = L4Frame::new(None, ipv6, false, &payload(200));
        // The checksum of the second segment with two bytes of zero is what these two bytes must be.
        packet.payload[198..].fill(0);
        let second = packet.cut(100, 1).pop().unwrap().frame();
        let at = packet.header_len() - 2;
        packet.payload[198..].copy_from_slice(&second[at..at + 2]);
        let frames = cut(&packet, how(100, Ids::Rising, Cwr::Every));
        assert_eq!(frames[1][at..at + 2], [0xff, 0xff]);
        assert_eq!(frames[1], packet.cut(100, 1)[1].frame());
    }
}

#[test]
fn ip_options_and_extension_headers_are_in_every_segment() {
    for ipv6 in [false, true] {
        let mut packet = L4Frame::new(Some(7), ipv6, true, &payload(250));
        packet.ip_options = vec![1, 0, 1, 1, 1, 1, 0, 0];
        let frames = cut(&packet, how(100, Ids::Rising, Cwr::Every));
        let expected: Vec<_> = packet.cut(100, 1).iter().map(L4Frame::frame).collect();
        assert_eq!(frames, expected);
    }
}

/// S8: the others are what they would be.
#[test]
fn a_segment_without_a_buffer_is_lost_alone() {
    struct Sometimes(usize);
    impl SegmentSource<crate::testing::TestBuf> for Sometimes {
        fn buffer(&mut self, len: usize) -> Option<crate::testing::TestBuf> {
            self.0 += 1;
            (self.0 % 3 != 2).then(|| crate::testing::TestBuf::new(0, &vec![0; len]))
        }
    }
    let packet = L4Frame::new(None, false, true, &payload(730));
    let bytes = packet.frame();
    let segmenter = Segmenter::new(&bytes, &[], how(100, Ids::Rising, Cwr::Every)).unwrap();
    let mut frames = Vec::new();
    let cut = segmenter.frames(&mut Sometimes(0), |frame| {
        frames.push(frame.data().to_vec())
    });
    assert_eq!(cut, Cut { made: 5, lost: 3 });
    let expected = packet.cut(100, 1).into_iter().enumerate();
    let expected: Vec<_> = expected
        .filter(|(at, _)| at % 3 != 1)
        .map(|(_, frame)| frame.frame())
        .collect();
    assert_eq!(frames, expected);
}

#[test]
fn what_cannot_be_cut_is_refused_by_name() {
    let good = L4Frame::new(None, false, true, &payload(200)).frame();
    let session = L4Frame::new(Some(1), true, true, &payload(200)).frame();
    let v6 = L4Frame::new(None, true, true, &payload(200)).frame();
    let changed = |frame: &[u8], at: usize, byte: u8| {
        let mut frame = frame.to_vec();
        frame[at] = byte;
        frame
    };
    for (frame, reason) in [
        (good[..13].to_vec(), NotSegmentable::LinkLayer),
        (changed(&good, 13, 6), NotSegmentable::LinkLayer),
        (changed(&session, 14, 0x21), NotSegmentable::LinkLayer),
        (changed(&session, 15, 1), NotSegmentable::LinkLayer),
        (changed(&session, 20, 0xc0), NotSegmentable::LinkLayer),
        (session[..21].to_vec(), NotSegmentable::LinkLayer),
        (changed(&good, 14, 0x65), NotSegmentable::Ip),
        (changed(&good, 14, 0x44), NotSegmentable::Ip),
        (changed(&good, 20, 0x20), NotSegmentable::Ip),
        (changed(&good, 21, 1), NotSegmentable::Ip),
        (good[..33].to_vec(), NotSegmentable::Ip),
        (v6[..53].to_vec(), NotSegmentable::Ip),
        (changed(&v6, 20, 44), NotSegmentable::Extension),
        (changed(&v6, 20, 43), NotSegmentable::Extension),
        (
            changed(&v6, 20, 60)[..55].to_vec(),
            NotSegmentable::Extension,
        ),
        (changed(&good, 23, 1), NotSegmentable::Protocol),
        (changed(&good, 46, 0x40), NotSegmentable::Transport),
        (good[..53].to_vec(), NotSegmentable::Transport),
        (good[..54].to_vec(), NotSegmentable::NoPayload),
    ] {
        let refused = Segmenter::new(&frame, &[], how(100, Ids::Rising, Cwr::Every));
        assert_eq!(refused.err(), Some(reason), "{frame:02x?}");
    }
    let none = how(0, Ids::Rising, Cwr::Every);
    assert_eq!(
        Segmenter::new(&good, &[], none).err(),
        Some(NotSegmentable::NoSegmentSize)
    );
}

/// M9, S1: the PPPoE length never wraps.
#[test]
fn a_segment_that_its_length_fields_cannot_hold_is_refused() {
    let long = payload(70_000);
    for (session, ipv6, longest) in [
        (None, false, 65_535 - 40),
        (None, true, 65_535 - 20),
        (Some(1), false, 65_533 - 40),
        (Some(1), true, 65_533 - 60),
    ] {
        let head = L4Frame::new(session, ipv6, true, &[]).frame();
        let rest = [&long[..]];
        let new = |segment| Segmenter::new(&head, &rest, how(segment, Ids::Fixed, Cwr::Every));
        let segmenter = new(longest).unwrap();
        let mut frame = vec![0; segmenter.frame_len(0)];
        assert!(segmenter.write(0, &mut frame));
        if session.is_some() {
            let ip = frame.len() - 22;
            assert_eq!(frame[18..20], ((ip + 2) as u16).to_be_bytes());
        }
        assert_eq!(new(longest + 1).err(), Some(NotSegmentable::SegmentTooLong));
    }
}

#[test]
fn a_frame_is_written_into_space_of_its_length_only() {
    let bytes = L4Frame::new(None, false, true, &payload(250)).frame();
    let segmenter = Segmenter::new(&bytes, &[], how(100, Ids::Rising, Cwr::Every)).unwrap();
    for (at, len, is_written) in [
        (0, 154, true),
        (0, 153, false),
        (0, 155, false),
        (2, 104, true),
        (2, 154, false),
        (3, 54, false),
        (usize::MAX, 54, false),
        (0, 0, false),
    ] {
        assert_eq!(
            segmenter.write(at, &mut vec![0; len]),
            is_written,
            "{at} {len}"
        );
    }
}

proptest! {
    #[test]
    fn the_payload_may_come_in_pieces(
        len in 1usize..3_000, segment in 1u16..700, cuts in prop::collection::vec(0usize..3_000, 0..12),
        session: Option<u16>, ipv6: bool, tcp: bool, tags in 0usize..3,
    ) {
        let mut packet = L4Frame::new(session, ipv6, tcp, &payload(len));
        packet.tags = [[0x88, 0xa8, 0, 7], [0x81, 0, 0x20, 9]][..tags].to_vec();
        let bytes = packet.frame();
        let mut cuts: Vec<_> = cuts.iter().map(|at| packet.header_len() + at % (len + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|at| &bytes[at[0]..at[1]]).collect();
        let segmenter = Segmenter::new(pieces[0], &pieces[1..], how(segment, Ids::Rising, Cwr::Every)).unwrap();
        let mut frames = Vec::new();
        segmenter.frames(&mut TestPool { left: usize::MAX }, |frame| frames.push(frame.data().to_vec()));
        let expected: Vec<_> = packet.cut(segment.into(), 1).iter().map(L4Frame::frame).collect();
        prop_assert_eq!(frames, expected);
    }

    /// HZ-14 C(a).
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..200, segment: u16, kind in 0usize..8) {
        let (session, ipv6, tcp) = kinds().nth(kind).unwrap();
        let mut frame = L4Frame::new(session, ipv6, tcp, &payload(100)).frame();
        for (byte, change) in frame.iter_mut().skip(12).zip(&bytes) {
            *byte ^= if change % 5 == 0 { *change } else { 0 };
        }
        frame.truncate(frame.len().saturating_sub(cut));
        for bytes in [frame, bytes] {
            if let Ok(segmenter) = Segmenter::new(&bytes, &[], how(segment, Ids::Rising, Cwr::First)) {
                for at in 0..segmenter.len() {
                    let mut frame = vec![0; segmenter.frame_len(at)];
                    prop_assert!(segmenter.write(at, &mut frame));
                }
            }
        }
    }
}
