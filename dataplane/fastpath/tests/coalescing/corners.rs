//! What random traffic hardly ever has: headers that differ in one bit, frames of sessions that differ in their VLAN only, extension headers nobody accepts, and a
//! run that fills a packet to its last byte.

use bng_fastpath::Direction;
use bng_fastpath::coalesce::Settings;
use bng_fastpath::testing::{Kind, Recipe, TestBuf};
use bng_wire::checksum::checksum;

use crate::classify;
use crate::drive::{self, Burst, FORWARD, Out};
use crate::hazards;
use crate::model::Model;
use crate::order;

/// What comes of one burst; marks are places in it.
fn outputs(direction: Direction, frames: &[Vec<u8>]) -> Vec<Vec<u32>> {
    let frames = frames.iter().zip(0..);
    let frames = frames.map(|(frame, mark)| (TestBuf::new(1, frame).marked(mark), FORWARD));
    let burst = Burst {
        now_ns: 1,
        direction,
        frames: frames.collect(),
    };
    let outs = drive::bursts(&drive::settings(0), &[burst]);
    outs.iter().map(Out::marks).collect()
}

/// The frames of a flow that follow each other.
fn train(head: &Recipe, count: usize) -> Vec<Vec<u8>> {
    let frames = (0..count).map(|n| Recipe {
        seq: head.seq.wrapping_add((n * head.len) as u32),
        id: head.id.wrapping_add(n as u16),
        ..head.clone()
    });
    frames.map(|recipe| recipe.build()).collect()
}

/// K3, O2: a control frame, and a PADT, reach the runs of their own session, not those of the same MAC address and session id in
/// another VLAN.
#[test]
fn barriers_of_a_session_are_of_its_vlan_too() {
    let data = Recipe {
        vlans: vec![100, 7],
        ..Recipe::new(Kind::Tcp, false, Some(7))
    };
    for kind in [Kind::Ppp(0xc021), Kind::Discovery(0xa7)] {
        for (vlans, expected) in [
            (vec![100, 7], vec![vec![0], vec![1], vec![2]]),
            (vec![100, 8], vec![vec![1], vec![0, 2]]),
            (vec![101, 7], vec![vec![1], vec![0, 2]]),
            (vec![100], vec![vec![1], vec![0, 2]]),
        ] {
            let control = Recipe {
                vlans: vlans.clone(),
                ..Recipe::new(kind.clone(), false, Some(7))
            };
            let [first, second] = train(&data, 2).try_into().unwrap();
            let got = outputs(Direction::Upstream, &[first, control.build(), second]);
            assert_eq!(got, expected, "{kind:?} in {vlans:?}");
        }
    }
}

/// T4: runs that a barrier sends out leave in the order of their heads, before it.
#[test]
fn runs_sent_out_by_a_barrier_leave_in_the_order_of_their_heads() {
    let flow = |port: u16| {
        let head = Recipe {
            ports: (port, 443),
            ..Recipe::new(Kind::Tcp, false, Some(7))
        };
        train(&head, 2)
    };
    let lcp = Recipe::new(Kind::Ppp(0xc021), false, Some(7));
    let options = Recipe {
        ip_options: 8,
        ..Recipe::new(Kind::Tcp, false, Some(7))
    };
    for barrier in [lcp, options] {
        // Heads of four flows, then what follows them, the other way round.
        let flows = [4, 9, 1, 6].map(flow);
        let heads = flows.iter().map(|train| train[0].clone());
        let others = flows.iter().rev().map(|train| train[1].clone());
        let frames: Vec<_> = heads.chain(others).chain([barrier.build()]).collect();
        let got = outputs(Direction::Upstream, &frames);
        let expected = [vec![0, 7], vec![1, 6], vec![2, 5], vec![3, 4], vec![8]];
        assert_eq!(got, expected);
    }
}

/// C13, O2: behind an extension header that is not accepted may be anything, of any flow between the addresses.
#[test]
fn an_extension_header_that_is_not_accepted_is_a_barrier_between_its_addresses() {
    let tcp = Recipe::new(Kind::Tcp, true, None);
    let [first, second] = train(&tcp, 2).try_into().unwrap();
    // Authentication, mobility, HIP, Shim6, and hop-by-hop options that go on behind the end of the packet.
    for header in [51, 135, 139, 140, 0] {
        let mut other = first.clone();
        other[14 + 6] = header;
        other[14 + 40] = 6;
        other[14 + 41] = 255;
        let got = outputs(
            Direction::Downstream,
            &[first.clone(), other.clone(), second.clone()],
        );
        assert_eq!(got, [vec![0], vec![1], vec![2]], "header {header}");
        // Of other addresses it is none.
        other[14 + 8] ^= 1;
        let got = outputs(
            Direction::Downstream,
            &[first.clone(), other, second.clone()],
        );
        assert_eq!(got, [vec![1], vec![0, 2]], "header {header}, elsewhere");
    }
}

/// E2, M9: a run with no room for one more byte goes out at once, not at the end of its burst.
#[test]
fn a_run_that_is_full_to_the_last_byte_goes_out_with_its_last_frame() {
    for (session, is_ipv6, len, count) in [
        // 65,535 bytes behind the EtherType: PPPoE and PPP 8, IP 20 or 40, TCP 20.
        (Some(7), false, 789, 83),
        (None, false, 13_099, 5),
        (None, true, 1_455, 45),
    ] {
        let head = Recipe {
            len,
            ..Recipe::new(Kind::Tcp, is_ipv6, session)
        };
        let mut frames = train(&head, count);
        assert_eq!(frames[0].len() - 14 + len * (count - 1), 65_535);
        let other = Recipe {
            ports: (9, 9),
            ..head.clone()
        };
        let direction = match session {
            Some(_) => Direction::Upstream,
            None => Direction::Downstream,
        };
        // Another flow's run, begun before: it is still held when the full one goes.
        frames.insert(0, other.build());
        let full: Vec<_> = (1..=count as u32).collect();
        let got = outputs(direction, &frames);
        assert_eq!(got, [full, vec![0]], "{session:?} {is_ipv6} {len}");
    }
}

/// C9: what a run expects of the next frame's header checksum is what the next frame's must be, also where the identification goes
/// back to 0 and where the checksum does.
#[test]
fn a_header_checksum_that_is_one_off_joins_no_run_wherever_it_and_the_identification_go_back() {
    let head = |id| Recipe {
        id,
        ..Recipe::new(Kind::Tcp, false, None)
    };
    let check_of = |frame: &[u8]| u16::from_be_bytes([frame[24], frame[25]]);
    let zero = (0..=u16::MAX).find(|id| check_of(&head(*id).build()) == 0);
    for id in [1, zero.unwrap() - 1, zero.unwrap(), u16::MAX - 1, u16::MAX] {
        let [first, second] = train(&head(id), 2).try_into().unwrap();
        let right = check_of(&second);
        for check in [
            right,
            right.wrapping_sub(1),
            right.wrapping_add(1),
            u16::MAX,
            0,
        ] {
            let mut other = second.clone();
            other[24..26].copy_from_slice(&check.to_be_bytes());
            let got = outputs(Direction::Downstream, &[first.clone(), other]);
            let joins = check == right;
            assert_eq!(got.len() == 1, joins, "{id}: {check:#x} for {right:#x}");
        }
    }
}

/// Where the headers of a frame end, and its IP header begins.
fn headers(recipe: &Recipe) -> (usize, usize) {
    let link = 14 + 4 * recipe.vlans.len() + recipe.session.map_or(0, |_| 8);
    let end = recipe.build().len() - recipe.len;
    (end, link)
}

/// M1 to M7: every bit of the headers counts, each as the rules say.
#[test]
fn a_frame_that_differs_in_any_bit_of_its_headers_is_grouped_as_by_the_model() {
    let settings = Settings {
        // A bit that is not where the rules look must not be found by the checksum.
        verify: false,
        ..drive::settings(0)
    };
    let (mut joined, mut apart) = (0, 0);
    for recipe in hazards::shapes() {
        let direction = hazards::direction(&recipe);
        let [first, second] = hazards::pair(&recipe);
        let (end, l3) = headers(&recipe);
        let is_ipv4 = recipe.addresses.0.is_ipv4();
        for bit in 0..end * 8 {
            let mut other = second.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            if is_ipv4 && (l3..l3 + 20).contains(&(bit / 8)) && other[l3] == 0x45 {
                other[l3 + 10..l3 + 12].fill(0);
                let check = checksum(&other[l3..l3 + 20]);
                other[l3 + 10..l3 + 12].copy_from_slice(&check.to_be_bytes());
            }
            let bufs = [&first, &other].into_iter().zip(0..);
            let bufs: Vec<_> = bufs
                .map(|(frame, mark)| TestBuf::new(1, frame).marked(mark))
                .collect();
            let mut model = Model::new(&settings);
            for buf in &bufs {
                model.frame(direction, buf, 1);
            }
            model.flush();
            let wanted: Vec<_> = model.take().into_iter().map(|group| group.marks).collect();
            let burst = Burst {
                now_ns: 1,
                direction,
                frames: bufs.iter().map(|buf| (buf.clone(), FORWARD)).collect(),
            };
            let got: Vec<_> = drive::bursts(&settings, &[burst])
                .iter()
                .map(Out::marks)
                .collect();
            let places = classify::places(&settings, bufs.iter().map(|buf| (direction, buf)));
            let got: Vec<_> = got.iter().map(Vec::as_slice).collect();
            let wanted: Vec<_> = wanted.iter().map(Vec::as_slice).collect();
            let difference = order::difference(&places, &got, &wanted);
            assert_eq!(
                difference,
                None,
                "byte {} bit {} of {recipe:?}",
                bit / 8,
                bit % 8
            );
            *if got.len() == 1 {
                &mut joined
            } else {
                &mut apart
            } += 1;
        }
    }
    assert!(joined > 500 && apart > 10_000, "{joined}, {apart}");
}
