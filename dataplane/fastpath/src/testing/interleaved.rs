//! Any operations on a run table, spelled by bytes: for fuzzing, and for a property test of the same.
//!
//! The first byte chooses settings, each further one is an operation, of some of which more bytes are the details. The top
//! two bits say what it is:
//!
//! | bits | operation |
//! |---|---|
//! | 00 | a frame of flow 0 to 7 (bits 0 to 2), as bits 3 to 5 say: usual, with PSH, shorter, empty, with a wrong checksum |
//! | 01 | the same flow's next frame with a byte changed: offset and value follow |
//! | 10 | its next frame, about which the stages decide what the following byte says |
//! | 11 | bits 0 to 2: part of a burst ends, a burst ends, time passes, all runs go out (two reasons), any bytes as a frame, PPP control, a fragment |

use super::{Check, Kind, Recipe, TestBuf};
use crate::coalesce::{Coalescer, Protocols, Run, Settings, Sink};
use crate::{BURST, Direction, PacketBuf, Punt, Verdict};
use bng_shm::Counter;

const FLOWS: usize = 8;

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interleaved {
    /// Frames that went in and came out.
    pub frames: usize,
    /// Runs among what came out.
    pub runs: usize,
}

/// Performs the operations and panics if a frame does not come out exactly once and as it was, if frames of one flow leave
/// in another order than they came in, or if something is held at the end.
pub fn interleaved(input: &[u8]) -> Interleaved {
    let mut bytes = input.iter().copied();
    let Some(chosen) = bytes.next() else {
        return Interleaved::default();
    };
    let both = Protocols {
        tcp: true,
        udp: true,
    };
    let settings = Settings {
        upstream: both,
        downstream: both,
        ipv4: true,
        ipv6: true,
        ports_off: Vec::new(),
        hold_ns: u64::from(chosen & 3) * 50_000,
        max_frames: u16::from(chosen >> 3) + 2,
        verify: chosen & 4 == 0,
    };
    let mut play = Play {
        coalescer: Coalescer::new(&settings).expect("something is on"),
        direction: Direction::Upstream,
        now_ns: 1_000_000,
        flows: (0..FLOWS).map(flow).collect(),
        pending: Vec::new(),
        checked: Checked {
            max_frames: settings.max_frames.into(),
            ..Checked::default()
        },
    };
    while let Some(op) = bytes.next() {
        play.operation(op, &mut bytes);
    }
    play.end_burst();
    play.coalescer.flush(Counter::EndBurst, &mut play.checked);
    assert!(play.coalescer.is_empty(), "something is held");
    let Checked { sent, runs, .. } = play.checked;
    assert!(sent.iter().all(Option::is_none), "a frame is lost");
    Interleaved {
        frames: sent.len(),
        runs,
    }
}

/// Two flows of each of two sessions and two pairs of addresses on the core side; one of each is UDP, one is IPv6.
fn flow(at: usize) -> Recipe {
    let session = (at < 4).then_some(1 + at as u16 / 2);
    let kind = if at % 4 == 3 { Kind::Udp } else { Kind::Tcp };
    let mut recipe = Recipe::new(kind, at % 4 == 1, session);
    recipe.ports.0 += at as u16;
    recipe.len = 20;
    recipe
}

/// The direction of a flow's frames.
fn direction(at: usize) -> Direction {
    if at < 4 {
        Direction::Upstream
    } else {
        Direction::Downstream
    }
}

struct Play {
    coalescer: Coalescer<TestBuf>,
    direction: Direction,
    now_ns: u64,
    flows: Vec<Recipe>,
    pending: Vec<(TestBuf, Verdict)>,
    checked: Checked,
}

impl Play {
    fn operation(&mut self, op: u8, bytes: &mut impl Iterator<Item = u8>) {
        let at = usize::from(op & 7);
        match op >> 6 {
            0 => {
                let frame = self.next_frame(at, op >> 3 & 7);
                self.take(direction(at), frame, FORWARD, Some(at));
            }
            1 => {
                let mut frame = self.next_frame(at, 0);
                let (offset, value) = (bytes.next().unwrap_or(0), bytes.next().unwrap_or(0));
                if let Some(byte) = frame.get_mut(usize::from(offset)) {
                    *byte = value;
                }
                // It may be of another flow now.
                self.take(direction(at), frame, FORWARD, None);
            }
            2 => {
                let frame = self.next_frame(at, 0);
                let verdict = verdict(bytes.next().unwrap_or(0));
                self.take(direction(at), frame, verdict, Some(at));
            }
            _ => self.control(op, bytes),
        }
    }

    fn control(&mut self, op: u8, bytes: &mut impl Iterator<Item = u8>) {
        let at = usize::from(op >> 3 & 7);
        match op & 7 {
            0 => self.pass(),
            1 => self.end_burst(),
            2 => {
                self.end_burst();
                self.now_ns += u64::from(bytes.next().unwrap_or(0)) * 1_000;
            }
            why @ (3 | 4) => {
                self.end_burst();
                let why = [Counter::EndBurst, Counter::EndQuiescent][usize::from(why - 3)];
                self.coalescer.flush(why, &mut self.checked);
                assert!(self.coalescer.is_empty(), "held after a flush");
            }
            5 => {
                let len = bytes.next().unwrap_or(0);
                let frame = bytes.take(len.into()).collect();
                self.take(direction(at), frame, FORWARD, None);
            }
            6 => {
                let control = Recipe {
                    kind: Kind::Ppp(0xc021),
                    session: Some(1 + at as u16 % 2),
                    ..self.flows[0].clone()
                };
                let punt = Verdict::Punt(Punt::Discovery);
                self.take(Direction::Upstream, control.build(), punt, None);
            }
            _ => {
                let fragment = Recipe {
                    frag_off: 185,
                    frag_hdr: true,
                    ..self.flows[at].clone()
                };
                self.take(direction(at), fragment.build(), FORWARD, None);
            }
        }
    }

    /// The next frame of a flow.
    fn next_frame(&mut self, at: usize, variant: u8) -> Vec<u8> {
        let flow = &mut self.flows[at];
        let mut frame = flow.clone();
        match variant {
            4 => frame.flags |= Recipe::PSH,
            5 => frame.len = 7,
            6 => frame.len = 0,
            7 => frame.l4_check = Check::Bad,
            _ => (),
        }
        flow.seq = frame.seq.wrapping_add(frame.len as u32);
        flow.id = flow.id.wrapping_add(1);
        frame.build()
    }

    fn take(
        &mut self,
        direction: Direction,
        frame: Vec<u8>,
        verdict: Verdict,
        flow: Option<usize>,
    ) {
        if direction != self.direction {
            self.end_burst();
            self.direction = direction;
        }
        let mark = self.checked.sent.len() as u32;
        self.pending
            .push((TestBuf::new(1, &frame).marked(mark), verdict));
        self.checked.sent.push(Some(Sent {
            frame,
            verdict,
            flow,
        }));
        if self.pending.len() == BURST {
            self.pass();
        }
    }

    /// What has come so far goes through the coalescer.
    fn pass(&mut self) {
        let (frames, verdicts): (Vec<_>, Vec<_>) = self.pending.drain(..).unzip();
        self.coalescer.expire(self.now_ns, &mut self.checked);
        let hints = self.coalescer.observe(self.direction, &frames, self.now_ns);
        for at in 0..frames.len() {
            assert!(hints.like(at).is_none_or(|like| like < at));
        }
        self.coalescer.release(frames, &verdicts, &mut self.checked);
    }

    fn end_burst(&mut self) {
        self.pass();
        self.coalescer.end_burst(&mut self.checked);
    }
}

const FORWARD: Verdict = Verdict::Forward { port: 9 };

fn verdict(byte: u8) -> Verdict {
    match byte % 6 {
        0 => Verdict::Forward { port: 8 },
        1 => Verdict::Host { port: 9 },
        2 => Verdict::Drop(Counter::NoRoute),
        3 => Verdict::Punt(Punt::Discovery),
        4 => Verdict::HandOver { worker: 1 },
        _ => Verdict::Fragment { port: 9, mtu: 100 },
    }
}

struct Sent {
    frame: Vec<u8>,
    verdict: Verdict,
    flow: Option<usize>,
}

/// Frames that are not out yet, by their marks, and what was seen of those that are.
#[derive(Default)]
struct Checked {
    sent: Vec<Option<Sent>>,
    last: [Option<u32>; FLOWS],
    max_frames: usize,
    runs: usize,
}

impl Checked {
    fn left(&mut self, buf: &TestBuf, verdict: Verdict) {
        let mark = buf.mark();
        let sent = self.sent[mark as usize]
            .take()
            .expect("out for the first time");
        assert_eq!(buf.data(), sent.frame, "it is as it was");
        assert_eq!(verdict, sent.verdict);
        if let Some(flow) = sent.flow {
            let before = self.last[flow].replace(mark);
            assert!(
                before < Some(mark),
                "{before:?} of flow {flow} before {mark}"
            );
        }
    }
}

impl Sink<TestBuf> for Checked {
    fn one(&mut self, frame: TestBuf, verdict: Verdict) {
        self.left(&frame, verdict);
    }

    fn run(&mut self, run: &Run, verdict: Verdict, frames: &mut Vec<TestBuf>) {
        assert!((2..=self.max_frames).contains(&frames.len()));
        let bytes: usize = frames.iter().map(|frame| frame.data().len()).sum();
        assert_eq!(bytes, run.received_bytes as usize);
        assert!(matches!(
            verdict,
            Verdict::Forward { .. } | Verdict::Host { .. }
        ));
        self.runs += 1;
        for frame in frames.drain(..) {
            self.left(&frame, verdict);
        }
    }
}
