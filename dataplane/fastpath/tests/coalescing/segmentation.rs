//! Segmentation: its own cases, and that runs are cut into what they were made of (P1, P2).

use bng_fastpath::PacketBuf;
use bng_fastpath::coalesce::{Ids, Run};
use bng_fastpath::merge::{Checksums, Merged};
use bng_fastpath::segment::{Cwr, How, Layout, Segmenter};
use bng_fastpath::testing::{Recipe, TestPool};
use bng_wire::MacAddr;

use crate::case::{self, CwrMode, Encap, File, IdMode, Instance, Segmentation};
use crate::drive;

/// The segments of a packet in parts, the first of which has all headers.
fn segments(first: &[u8], others: &[&[u8]], how: How) -> Vec<Vec<u8>> {
    let segmenter = Segmenter::new(first, others, how).unwrap();
    let mut pool = TestPool { left: usize::MAX };
    let mut frames = Vec::new();
    let cut = segmenter.frames(&mut pool, |frame| frames.push(frame.data().to_vec()));
    assert_eq!((cut.made, cut.lost), (frames.len(), 0));
    frames
}

/// Where the parts of a frame of a case are.
struct Offsets {
    pppoe: usize,
    ip: usize,
    l4: usize,
}

impl Segmentation {
    fn whole(&self) -> Recipe {
        let session = (self.encap == Encap::Pppoe).then_some(0x1234);
        Recipe {
            len: self.whole.payload,
            seq: self.whole.seq,
            flags: Recipe::ACK | case::flags(&self.whole.flags),
            id: self.whole.first_id,
            ..Recipe::new(self.family.kind(), self.family.is_ipv6(), session)
        }
    }

    fn how(&self) -> How {
        How {
            segment: self.whole.seg_len,
            ids: match self.whole.id_mode {
                Some(IdMode::Inc) => Ids::Rising,
                Some(IdMode::Fixed) | None => Ids::Fixed,
            },
            cwr: match self.whole.cwr_mode {
                Some(CwrMode::First) => Cwr::First,
                Some(CwrMode::Every) | None => Cwr::Every,
            },
        }
    }

    fn offsets(&self) -> Offsets {
        let ip = if self.encap == Encap::Pppoe { 22 } else { 14 };
        let ip_len = if self.family.is_ipv6() { 40 } else { 20 };
        Offsets {
            pppoe: 14,
            ip,
            l4: ip + ip_len,
        }
    }
}

#[test]
fn every_segmentation_case_comes_out_as_written() {
    let cases = File::read().segmentation_cases;
    assert_eq!(cases.len(), 13);
    for case in cases {
        let whole = case.whole();
        let frames = segments(&whole.build(), &[], case.how());
        assert_eq!(frames.len(), case.expect_segments.len(), "{}", case.name);
        let at = case.offsets();
        for (frame, expected) in frames.iter().zip(&case.expect_segments) {
            let name = &case.name;
            let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
            let ip6 = case.family.is_ipv6();
            let said = |length: Option<u16>, at: usize| {
                if let Some(length) = length {
                    assert_eq!(word(at), length, "{name}");
                }
            };
            assert_eq!(frame.len(), expected.ip_and_below_bytes, "{name}");
            said(expected.ip_total.filter(|_| !ip6), at.ip + 2);
            said(expected.ip6_payload.filter(|_| ip6), at.ip + 4);
            said(expected.ip_id, at.ip + 4);
            said(expected.pppoe_len, at.pppoe + 4);
            said(expected.udp_len, at.l4 + 4);
            // And all the rest: the frame is what is built from these fields, checksums included.
            let built = Recipe {
                len: expected.len,
                seq: expected.seq.unwrap_or(0),
                flags: Recipe::ACK | case::flags(&expected.flags),
                id: expected.ip_id.unwrap_or(0),
                ..whole.clone()
            };
            assert_eq!(*frame, built.build(), "{name}");
        }
    }
}

/// That the run, as one packet, is cut into these frames, its own; and so is what a port or a kernel gets, where it can be
/// told to them. All checksums of the frames are right.
pub(crate) fn assert_round_trip(run: &Run, frames: &[Vec<u8>]) {
    let layout = Layout::of(&frames[0]).unwrap();
    let (len, l4) = (layout.header_len(), layout.l4());
    let bodies: Vec<_> = frames.iter().map(|frame| &frame[len..]).collect();
    let mut head = frames[0][..len].to_vec();
    if run.is_tcp {
        // H4: FIN and PSH of the last one are seen.
        head[l4 + 13] |= frames[frames.len() - 1][l4 + 13];
    }
    let mut how = How {
        segment: run.segment,
        ids: run.ids,
        cwr: Cwr::Every,
    };
    assert_eq!(segments(&head, &bodies, how), frames, "P1: {run:?}");

    let merged = Merged::of(run, frames.iter().map(Vec::as_slice));
    let ip_len = if run.is_ipv6 { 40 } else { 20 };
    let is_plain = layout.l3() == 14 && l4 == 14 + ip_len;
    let is_told = !run.cwr && (run.is_ipv6 || run.ids == Ids::Rising);
    assert_eq!(merged.is_some(), is_plain && is_told, "{run:?}");
    if let Some(merged) = merged {
        // As a kernel that is given a virtio header: it knows nothing of CWR on every frame.
        merged.write(&mut head, Checksums::Virtio);
        (how.ids, how.cwr) = (Ids::Rising, Cwr::First);
        assert_eq!(segments(&head, &bodies, how), frames, "P1: {run:?}");
    }
}

/// What forwarding does to a frame, in either direction.
fn rewritten(recipe: &Recipe) -> Recipe {
    let outside = match recipe.addresses.0.is_ipv6() {
        true => [0xfd, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9].into(),
        false => [203, 0, 113, 9].into(),
    };
    Recipe {
        smac: MacAddr([2, 0xcc, 0, 0, 0, 7]),
        dmac: MacAddr([2, 0xdd, 0, 0, 0, 7]),
        session: recipe.session.is_none().then_some(9),
        vlans: Vec::new(),
        ttl: recipe.ttl - 1,
        addresses: (outside, recipe.addresses.1),
        ports: (40_001, recipe.ports.1),
        ..recipe.clone()
    }
}

fn assert_runs_come_back(instance: &Instance) -> usize {
    let outs = drive::bursts(&drive::settings(instance.hold_ns), &instance.bursts());
    let runs = outs.iter().filter_map(|out| Some((out.run?, out.marks())));
    let mut checked = 0;
    for (run, marks) in runs {
        let recipes = marks
            .iter()
            .map(|mark| &instance.inputs[*mark as usize].recipe);
        let frames: Vec<_> = recipes.clone().map(Recipe::build).collect();
        assert_round_trip(&run, &frames);
        let frames: Vec<_> = recipes.map(|recipe| rewritten(recipe).build()).collect();
        assert_round_trip(&run, &frames);
        checked += 1;
    }
    checked
}

/// Step 5 of the cases, and P1 with a rewrite: encapsulation, MACs, TTL and translation.
#[test]
fn every_run_of_the_cases_is_cut_into_its_frames_rewritten_or_not() {
    let instances = File::read().instances();
    let checked: usize = instances.iter().map(assert_runs_come_back).sum();
    assert!(checked > 300, "{checked}");
}
