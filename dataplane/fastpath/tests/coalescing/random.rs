//! Random traffic through the coalescer and through the model: the grouping must be the model's (P3), every frame comes
//! out once and as it was (P1 and P2 in list form), and the counters say what happened.

use std::collections::{BTreeMap, BTreeSet};

use bng_fastpath::coalesce::{Coalescer, Run, Settings};
use bng_fastpath::testing::{Spec, TestBuf, World};
use bng_fastpath::{L4Verdict, PacketBuf, Verdict};
use bng_shm::{Counter, Group as Counters};

use crate::classify::{self, Class};
use crate::drive::{self, Collected, Out};
use crate::model::{Group, Model};
use crate::order;
use crate::segmentation;
use crate::traffic::{Random, Step, Traffic};

/// What went in and what became of it.
#[derive(Debug, Default)]
struct Totals {
    frames: u64,
    handed_over: u64,
    merged: u64,
    runs: u64,
    /// Runs of one frame.
    alone: u64,
    hints: u64,
    /// By the buckets of the histogram: up to 2, 4, 8, 16, 32 frames, and more.
    histogram: [u64; 6],
}

impl Totals {
    fn count(&mut self, outs: &[Out], groups: &[Group], classes: &order::Places) {
        let many = groups.iter().filter(|group| group.run.is_some());
        let in_group: BTreeSet<u32> = many.flat_map(|group| group.marks.clone()).collect();
        for out in outs {
            let frames = out.frames.len();
            self.frames += frames as u64;
            self.handed_over += u64::from(matches!(out.verdict, Verdict::HandOver { .. }));
            let first = out.frames[0].mark();
            if let Class::Candidate(candidate) = &classes[&first].1
                && out.run.is_none()
                && matches!(out.verdict, Verdict::Forward { .. } | Verdict::Host { .. })
            {
                // With FIN or PSH it was no run at all (E1), if it did not belong to one before.
                let is_push = candidate.tcp.as_ref().is_some_and(|tcp| tcp.push_or_fin);
                self.alone += u64::from(!is_push || in_group.contains(&first));
            }
            if out.run.is_some() {
                self.runs += 1;
                self.merged += frames as u64;
                let bucket = [2, 4, 8, 16, 32].iter().position(|most| frames <= *most);
                self.histogram[bucket.unwrap_or(5)] += 1;
            }
        }
    }

    fn assert_counted(&self, world: &World) {
        let counted: BTreeMap<Counter, u64> = world.counted(0).into_iter().collect();
        let of = |counter: Counter| counted.get(&counter).copied().unwrap_or(0);
        let group = |group: Counters| -> u64 {
            let counters = Counter::ALL
                .iter()
                .filter(|counter| counter.group() == group);
            counters.map(|counter| of(*counter)).sum()
        };
        let histogram = [
            Counter::CoalesceSegments2,
            Counter::CoalesceSegments4,
            Counter::CoalesceSegments8,
            Counter::CoalesceSegments16,
            Counter::CoalesceSegments32,
            Counter::CoalesceSegmentsMore,
        ];
        assert_eq!(of(Counter::CoalesceMerged), self.merged);
        assert_eq!(of(Counter::CoalesceSupers), self.runs);
        assert_eq!(histogram.map(of), self.histogram);
        assert_eq!(
            of(Counter::CoalesceFrames),
            of(Counter::CoalesceSingle) + self.merged
        );
        assert_eq!(group(Counters::CoalesceEnd), self.runs + self.alone);
        assert_eq!(
            of(Counter::CoalesceFrames) + group(Counters::CoalescePass),
            self.frames - self.handed_over
        );
    }
}

/// Frames by their marks, and when they arrived.
type Sent = BTreeMap<u32, (TestBuf, Verdict, u64)>;

/// The groups as the verdicts leave them: what does not go on the same way as its neighbours leaves a group.
fn cut(groups: &[Group], sent: &Sent) -> Vec<Vec<u32>> {
    let mut pieces = Vec::new();
    for group in groups {
        let together = |a: &u32, b: &u32| {
            let (a, b) = (sent[a].1, sent[b].1);
            a == b && matches!(a, Verdict::Forward { .. } | Verdict::Host { .. })
        };
        pieces.extend(group.marks.chunk_by(together).map(<[u32]>::to_vec));
    }
    pieces
}

/// What there is to say of a piece of a group (H1).
fn described(
    group: &Group,
    piece: &[u32],
    whole: &Run,
    payloads: &dyn Fn(u32) -> usize,
    sent: &Sent,
) -> Run {
    let described = Run {
        segment: payloads(piece[0]) as u16,
        last_segment: payloads(piece[piece.len() - 1]) as u16,
        received_bytes: piece
            .iter()
            .map(|mark| sent[mark].0.data().len() as u32)
            .sum(),
        arrived_ns: sent[&piece[0]].2,
        ..*whole
    };
    if piece == group.marks {
        assert_eq!(described, *whole, "the model itself");
    }
    described
}

/// How many flows there are.
#[derive(Debug, Clone, Copy)]
enum Crowd {
    /// One to eight.
    Few,
    /// More than there is room for.
    Many,
}

/// One random scenario; everything in it follows from the seed.
fn scenario(seed: u64, kind: Crowd, world: &World, totals: &mut Totals) {
    let mut random = Random::new(seed);
    let settings = Traffic::settings(&mut random);
    let flows = 1 + random.below(8);
    let judged = random.once_in(3);
    let mut traffic = match kind {
        Crowd::Few => Traffic::new(random, flows),
        Crowd::Many => Traffic::crowd(random),
    };
    let mut model = Model::new(&settings);
    let mut coalescer = Coalescer::new(&settings).unwrap();
    let mut sink = Collected {
        cut: judged,
        ..Collected::default()
    };
    let mut sent = Sent::new();
    let mut classes = order::Places::new();
    let (steps, most) = match kind {
        Crowd::Few => (12, 60),
        Crowd::Many => (6, 600),
    };
    for _ in 0..steps {
        match traffic.step(most) {
            Step::Burst(mut burst) => {
                if judged {
                    traffic.judge(&mut burst);
                }
                model.expire(burst.now_ns);
                for (frame, verdict) in &burst.frames {
                    model.frame(burst.direction, frame, burst.now_ns);
                    let class = classify::classify(&settings, burst.direction, frame);
                    classes.insert(frame.mark(), class);
                    sent.insert(frame.mark(), (frame.clone(), *verdict, burst.now_ns));
                }
                model.end_burst();
                drive::burst(&mut coalescer, &burst, &mut sink);
                assert!(settings.hold_ns > 0 || coalescer.is_empty(), "seed {seed}");
            }
            Step::Flush(why) => {
                model.flush();
                let first = sink.outs.len();
                coalescer.flush(why, &mut sink);
                drive::assert_heads_rise(&sink, first);
                assert!(coalescer.is_empty(), "seed {seed}");
            }
        }
        coalescer.settle(world.workers[0].shm());
    }
    model.flush();
    coalescer.flush(Counter::EndBurst, &mut sink);
    coalescer.settle(world.workers[0].shm());
    assert!(coalescer.is_empty(), "seed {seed}");
    let groups = model.take();
    totals.count(&sink.outs, &groups, &classes);
    totals.hints += sink.hints;
    compare(seed, &settings, &groups, &sink.outs, &sent, &classes);
}

fn compare(
    seed: u64,
    settings: &Settings,
    groups: &[Group],
    outs: &[Out],
    sent: &Sent,
    classes: &order::Places,
) {
    let pieces = cut(groups, sent);
    let got: Vec<_> = outs.iter().map(Out::marks).collect();
    let got: Vec<_> = got.iter().map(Vec::as_slice).collect();
    let wanted: Vec<_> = pieces.iter().map(Vec::as_slice).collect();
    if let Some(difference) = order::difference(classes, &got, &wanted) {
        panic!("seed {seed}: {difference}\n{settings:?}");
    }
    let of_mark: BTreeMap<u32, &Group> = groups
        .iter()
        .flat_map(|group| group.marks.iter().map(move |mark| (*mark, group)))
        .collect();
    for out in outs {
        for frame in &out.frames {
            let (was, verdict, _) = &sent[&frame.mark()];
            assert_eq!(frame.data(), was.data(), "seed {seed}");
            assert_eq!(out.verdict, *verdict, "seed {seed}");
        }
        if let Some(run) = out.run {
            let marks = out.marks();
            let group = of_mark[&marks[0]];
            let payloads = |mark| match &classes[&mark].1 {
                Class::Candidate(candidate) => candidate.payload,
                Class::Barrier(_) => panic!("seed {seed}: {mark} is no candidate"),
            };
            let wanted = described(group, &marks, &group.run.unwrap(), &payloads, sent);
            assert_eq!(run, wanted, "seed {seed}: {marks:?}");
            // A frame whose checksum nobody computed may have a wrong one.
            let computed = |buf: &TestBuf| buf.l4_verdict() == L4Verdict::Unknown;
            if settings.verify && out.frames.iter().all(computed) {
                let frames = out.frames.iter().map(|frame| frame.data().to_vec());
                segmentation::assert_round_trip(&run, &frames.collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn random_traffic_is_grouped_as_by_the_model() {
    let world = World::new(Spec::default());
    let mut totals = Totals::default();
    for seed in 0..800 {
        scenario(seed, Crowd::Few, &world, &mut totals);
    }
    totals.assert_counted(&world);
    // The traffic is what it is meant to be: long runs and short ones.
    assert!(totals.merged * 4 > totals.frames, "{totals:?}");
    assert!(totals.hints * 4 > totals.frames, "{totals:?}");
    assert!(totals.histogram.iter().all(|runs| *runs > 20), "{totals:?}");
}

#[test]
fn more_flows_than_runs_are_grouped_as_by_the_model() {
    let world = World::new(Spec::default());
    let mut totals = Totals::default();
    for seed in 0..40 {
        scenario(seed, Crowd::Many, &world, &mut totals);
    }
    totals.assert_counted(&world);
    let counted = world.counted(0);
    let full = counted.iter().find(|(of, _)| *of == Counter::EndTableFull);
    assert!(full.is_some_and(|(_, runs)| *runs > 1_000), "{full:?} (X2)");
}

/// Ten million frames: `cargo nextest run --release -p bng-fastpath --run-ignored only ten_million`.
#[test]
#[ignore = "minutes; for a nightly run, in release"]
fn ten_million_frames_are_grouped_as_by_the_model() {
    let world = World::new(Spec::default());
    let mut totals = Totals::default();
    for seed in 1_000_000.. {
        scenario(seed, Crowd::Few, &world, &mut totals);
        if totals.frames >= 10_000_000 {
            break;
        }
    }
    totals.assert_counted(&world);
    println!("{totals:?}");
}
