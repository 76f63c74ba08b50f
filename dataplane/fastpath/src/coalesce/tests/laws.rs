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
        }
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
