//! Bursts through a coalescer, as a worker takes them through it.

use bng_fastpath::coalesce::{Coalescer, Protocols, Run, Settings, Sink};
use bng_fastpath::testing::TestBuf;
use bng_fastpath::{BURST, Direction, Verdict};
use bng_shm::Counter;

use crate::classify;

/// One receive burst of any length.
#[derive(Debug, Clone)]
pub(crate) struct Burst {
    pub(crate) now_ns: u64,
    pub(crate) direction: Direction,
    pub(crate) frames: Vec<(TestBuf, Verdict)>,
}

/// What the coalescer let go of at once.
#[derive(Debug)]
pub(crate) struct Out {
    pub(crate) frames: Vec<TestBuf>,
    pub(crate) verdict: Verdict,
    pub(crate) run: Option<Run>,
}

impl Out {
    pub(crate) fn marks(&self) -> Vec<u32> {
        self.frames.iter().map(TestBuf::mark).collect()
    }
}

/// Everything that came out, in order.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) outs: Vec<Out>,
    /// The stages take frames out of runs.
    pub(crate) cut: bool,
    /// Frames said to be like others.
    pub(crate) hints: u64,
}

impl Sink<TestBuf> for Collected {
    fn one(&mut self, frame: TestBuf, verdict: Verdict) {
        self.outs.push(Out {
            frames: vec![frame],
            verdict,
            run: None,
        });
    }

    fn run(&mut self, run: &Run, verdict: Verdict, frames: &mut Vec<TestBuf>) {
        assert!(frames.len() > 1, "a run of {} (H3)", frames.len());
        self.outs.push(Out {
            frames: std::mem::take(frames),
            verdict,
            run: Some(*run),
        });
    }
}

/// Everything on.
pub(crate) fn settings(hold_ns: u64) -> Settings {
    let both = Protocols {
        tcp: true,
        udp: true,
    };
    Settings {
        upstream: both,
        downstream: both,
        ipv4: true,
        ipv6: true,
        ports_off: Vec::new(),
        hold_ns,
        // More than the most of UDP (M8), which a limit of 64 would hide.
        max_frames: 100,
        verify: true,
    }
}

pub(crate) const FORWARD: Verdict = Verdict::Forward { port: 9 };

/// One burst, with what a worker does before and after it.
pub(crate) fn burst(coalescer: &mut Coalescer<TestBuf>, burst: &Burst, sink: &mut Collected) {
    let first = sink.outs.len();
    coalescer.expire(burst.now_ns, sink);
    assert_heads_rise(sink, first);
    for chunk in burst.frames.chunks(BURST) {
        let (frames, verdicts): (Vec<_>, Vec<_>) = chunk.iter().cloned().unzip();
        let hints = *coalescer.observe(burst.direction, &frames, burst.now_ns);
        for (at, frame) in frames.iter().enumerate() {
            if let Some(like) = hints.like(at) {
                assert!(like < at, "frame {at} is like {like}");
                let other = &frames[like];
                assert!(classify::are_alike(burst.direction, other, frame));
                sink.hints += 1;
            }
        }
        coalescer.release(frames, &verdicts, sink);
    }
    let first = sink.outs.len();
    coalescer.end_burst(sink);
    assert_heads_rise(sink, first);
}

/// T4, of what left since there were `first` outputs. Where the stages took frames out of runs, the head may be gone.
pub(crate) fn assert_heads_rise(sink: &Collected, first: usize) {
    let left = &sink.outs[first..];
    let heads = left.iter().map(|out| out.frames[0].mark());
    assert!(sink.cut || heads.is_sorted(), "T4");
}

/// Bursts through a new coalescer, which is empty at the end.
pub(crate) fn bursts(settings: &Settings, bursts: &[Burst]) -> Vec<Out> {
    let mut coalescer = Coalescer::new(settings).unwrap();
    let mut sink = Collected::default();
    for one in bursts {
        burst(&mut coalescer, one, &mut sink);
        assert!(settings.hold_ns > 0 || coalescer.is_empty(), "T1");
    }
    coalescer.flush(Counter::EndBurst, &mut sink);
    assert!(coalescer.is_empty());
    sink.outs
}
