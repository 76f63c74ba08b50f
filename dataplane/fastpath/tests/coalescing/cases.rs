//! Every conformance case, against the model and against the coalescer.

use bng_fastpath::testing::{Recipe, TestBuf};
use bng_fastpath::{Direction, PacketBuf, Punt, Verdict};
use bng_shm::Counter;

use crate::case::{Encap, File, Instance, Way};
use crate::classify;
use crate::drive::{self, Burst, FORWARD, Out};
use crate::model::Model;
use crate::order;

impl Instance {
    fn direction(&self) -> Direction {
        match self.encap {
            Encap::Plain => Direction::Downstream,
            Encap::Pppoe => Direction::Upstream,
        }
    }

    /// The bursts, with the verdicts the case says the stages come to.
    pub(crate) fn bursts(&self) -> Vec<Burst> {
        let mut now_ns = 1_000_000_000;
        let mut bursts: Vec<Burst> = Vec::new();
        for (mark, input) in self.inputs.iter().enumerate() {
            let frame = TestBuf::new(1, &input.recipe.build()).marked(mark as u32);
            let verdict = match input.way {
                Way::Forward => FORWARD,
                Way::Drop => Verdict::Drop(Counter::PppoeLengthLong),
                Way::Punt => Verdict::Punt(Punt::Discovery),
            };
            now_ns += input.gap_ns;
            match bursts.last_mut().filter(|_| input.gap_ns == 0) {
                Some(burst) => burst.frames.push((frame, verdict)),
                None => bursts.push(Burst {
                    now_ns,
                    direction: self.direction(),
                    frames: vec![(frame, verdict)],
                }),
            }
        }
        bursts
    }

    /// What is different from the expected outputs. Others that are accepted as well are not ours: we merge behind extension
    /// headers and with CWR, hold runs over bursts, and let go of no more than a frame's scope asks for (O3).
    pub(crate) fn difference(&self, outputs: &[Vec<u32>]) -> Option<String> {
        let expected = &self.expect;
        let bursts = self.bursts();
        let frames = bursts.iter().flat_map(|burst| {
            let frames = burst.frames.iter();
            frames.map(|(frame, _)| (burst.direction, frame))
        });
        let settings = drive::settings(self.hold_ns);
        let places = classify::places(&settings, frames);
        let got: Vec<_> = outputs.iter().map(Vec::as_slice).collect();
        let wanted: Vec<_> = expected.iter().map(|output| &output.from[..]).collect();
        if let Some(difference) = order::difference(&places, &got, &wanted) {
            return Some(difference);
        }
        for output in expected {
            let inputs = output.from.iter().map(|from| &self.inputs[*from as usize]);
            let len: usize = inputs.clone().map(|input| input.recipe.len).sum();
            assert_eq!(
                output.len.unwrap_or(len),
                len,
                "{}: the case itself",
                self.name
            );
            assert!(inputs.clone().all(|input| input.way == output.way));
            let flags = inputs.map(|input| input.recipe.flags);
            let flags = flags.fold(0, |all, flags| all | flags) & !Recipe::ACK;
            if output.from.len() > 1 && flags != output.flags {
                return Some(format!("flags {flags:#x} of {output:?}"));
            }
        }
        None
    }
}

#[test]
fn the_file_has_all_cases() {
    let file = File::read();
    assert_eq!(file.instances().len(), 387);
    assert_eq!(file.segmentation_cases.len(), 13);
}

#[test]
fn the_model_agrees_with_every_case() {
    for instance in File::read().instances() {
        let settings = drive::settings(instance.hold_ns);
        let mut model = Model::new(&settings);
        for burst in instance.bursts() {
            model.expire(burst.now_ns);
            for (frame, _) in &burst.frames {
                model.frame(burst.direction, frame, burst.now_ns);
            }
            model.end_burst();
        }
        model.flush();
        let outputs: Vec<_> = model.take().into_iter().map(|group| group.marks).collect();
        let difference = instance.difference(&outputs);
        assert_eq!(difference, None, "{}", instance.name);
    }
}

#[test]
fn the_coalescer_agrees_with_every_case() {
    let (mut wrong, mut runs) = (Vec::new(), 0);
    for instance in File::read().instances() {
        let bursts = instance.bursts();
        let outputs = drive::bursts(&drive::settings(instance.hold_ns), &bursts);
        let sent = bursts.iter().flat_map(|burst| &burst.frames);
        let sent: Vec<_> = sent.collect();
        for out in &outputs {
            runs += usize::from(out.run.is_some());
            for frame in &out.frames {
                // Step 5, in list form: the segments are the inputs.
                let (was, verdict) = sent[frame.mark() as usize];
                assert_eq!(frame.data(), was.data(), "{}", instance.name);
                assert_eq!(out.verdict, *verdict, "{}", instance.name);
            }
        }
        let marks: Vec<_> = outputs.iter().map(Out::marks).collect();
        if let Some(difference) = instance.difference(&marks) {
            wrong.push(format!("{}: {difference}", instance.name));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(runs > 300, "{runs} runs");
}
