//! Laws of the run table, with frames of all kinds.

use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::super::frame::Reader;
use super::super::key::Key;
use super::super::run;
use super::{ACK, Bench, DOWN, FORWARD, UP, down, segment, settings, up, with};
use crate::buffer::PacketBuf;
use crate::testing::{TestBuf, udp};

/// Frames of a flow whose fields differ now and then, in any bytes.
fn nearly_a_train() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let edits = prop::collection::vec((0usize..90, 0u32..8), 0..3);
    let shape = (any::<bool>(), any::<bool>(), 1usize..200, 1usize..200);
    (shape, edits, 0u16..3, -3i32..3, any::<bool>()).prop_map(
        |((is_up, is_tcp, first, second), edits, id, cut, mended)| {
            let (a, b) = (Ipv4Addr::new(100, 64, 0, 9), Ipv4Addr::new(8, 8, 4, 4));
            let packet = |seq, len, id: u16| {
                let packet = if is_tcp {
                    segment(0, seq, len, ACK)
                } else {
                    udp((a, 5_000), (b, 443), &vec![0x61; len])
                };
                with(packet, |ip| ip[4..6].copy_from_slice(&id.to_be_bytes()))
            };
            let frame = |packet: &[u8]| {
                let buf = if is_up { up(7, packet) } else { down(packet) };
                buf.data().to_vec()
            };
            let head = frame(&packet(0, first, 8));
            let mut next = frame(&packet(first as u32, second, 8 + id));
            for (at, bit) in edits {
                if let Some(byte) = next.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            }
            let l3 = if is_up { 22 } else { 14 };
            if mended {
                let ip = with(next[l3..].to_vec(), |_| {});
                next[l3..].copy_from_slice(&ip);
            }
            next.resize((next.len() as i32 + cut.min(1)) as usize, 0);
            (head, next)
        },
    )
}

/// How the next frame differs from what would be expected.
#[derive(Debug, Clone, Copy)]
struct InTrain {
    flow: u16,
    /// Which field, or none.
    odd: u8,
    len: usize,
}

fn in_train() -> impl Strategy<Value = InTrain> {
    let odd = prop_oneof![12 => Just(0u8), 4 => 1u8..9];
    let len = prop_oneof![8 => Just(100usize), 1 => 1usize..120];
    (0u16..2, odd, len).prop_map(|(flow, odd, len)| InTrain { flow, odd, len })
}

/// Where both flows are: sequence numbers and identifications, which pass zero soon.
#[derive(Debug)]
struct Train([(u32, u16); 2]);

impl Default for Train {
    fn default() -> Self {
        Self([(u32::MAX - 500, u16::MAX - 6); 2])
    }
}

impl Train {
    fn frame(&mut self, step: &InTrain) -> TestBuf {
        let InTrain { flow, odd, len } = *step;
        let (seq, id) = &mut self.0[usize::from(flow)];
        match odd {
            1 => *seq = seq.wrapping_add(7),
            2 => *id = id.wrapping_add(5),
            // The other flow's identification does not rise.
            3 => *id = id.wrapping_sub(1),
            _ => {}
        }
        let flags = match odd {
            4 => ACK | 0x08,
            5 => ACK | 0x01,
            6 => ACK | 0x80,
            _ => ACK,
        };
        let packet = with(segment(flow, *seq, len, flags), |ip| {
            ip[4..6].copy_from_slice(&id.to_be_bytes());
            if odd == 7 {
                ip[8] = 63;
            }
        });
        *seq = seq.wrapping_add(len as u32);
        *id = id.wrapping_add(1 - flow);
        let mut frame = down(&packet).data().to_vec();
        if odd == 8 {
            frame.push(0);
        }
        TestBuf::new(2, &frame)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8_192))]
    /// What is seen at a glance is what the long look finds.
    #[test]
    fn a_glance_finds_the_same((head, next) in nearly_a_train(), verify: bool) {
        let settings = settings();
        for sessions in [true, false] {
            let reader = Reader { sessions, tcp: true, udp: true, ipv4: true, ipv6: true, verify };
            let [head, next] = [&head, &next].map(|frame| TestBuf::new(0, frame));
            let mut keys = [Key::EMPTY; 2];
            let Ok(first) = reader.read(&head, &mut keys[0]) else { continue };
            let mut run = run::Run::EMPTY;
            run.start(0, &first, head.data(), settings.max_frames);
            let glance = run.glance(&reader, &next);
            let long = reader.read(&next, &mut keys[1]).ok().filter(|candidate| {
                keys[0] == keys[1] && run.refuses(&candidate.varying, next.data()).is_none()
            });
            let found = long.map(|candidate| candidate.varying);
            // A short frame is not looked at.
            if glance.is_some() || next.data().len() >= 96 {
                prop_assert_eq!(glance, found);
            }
            if let Some(joins) = long {
                prop_assert_eq!(joins.shape, first.shape);
            }
            if sessions == first.shape.is_session && run.expects(&reader, &next) {
                prop_assert_eq!(Some(first.varying.payload), found.map(|found| found.payload));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    /// What a run expects, and a glance, are ways to be fast: without them it is all the same.
    #[test]
    fn the_short_ways_lead_to_the_same_runs(frames in prop::collection::vec(in_train(), 1..150)) {
        let (mut short, mut long) = (Bench::new(&settings()), Bench::new(&settings()));
        let mut state = Train::default();
        for burst in frames.chunks(20) {
            let frames: Vec<_> = burst.iter().map(|step| state.frame(step)).collect();
            for frame in &frames {
                long.coalescer.last = None;
                long.burst(DOWN, vec![frame.clone()], &[FORWARD]);
            }
            short.burst(DOWN, frames, &[FORWARD]);
        }
        let outs = |bench: &mut Bench| {
            bench.coalescer.end_burst(&mut bench.out);
            let outs: Vec<_> = bench.out.0.drain(..).collect();
            (outs, bench.coalescer.tally.clone())
        };
        let (short, long) = (outs(&mut short), outs(&mut long));
        prop_assert_eq!(short, long);
    }

    /// Any bytes, any number of bursts: each frame comes out once, and nothing stays.
    #[test]
    fn any_bytes_come_out(
        frames in prop::collection::vec((nearly_a_train(), 0usize..120, any::<bool>()), 1..40),
    ) {
        let mut bench = Bench::new(&settings());
        let mut sent = 0;
        for ((head, next), len, session) in frames {
            let cut = next.get(..len).unwrap_or(&next).to_vec();
            let frames: Vec<_> = [head, next, cut].iter().map(|frame| TestBuf::new(0, frame)).collect();
            sent += frames.len();
            bench.burst(if session { UP } else { DOWN }, frames, &[FORWARD]);
        }
        prop_assert_eq!(bench.end().iter().sum::<usize>(), sent);
    }
}
