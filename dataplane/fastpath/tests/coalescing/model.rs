//! The reference model (P3): sections 5 to 7 of the rules, written down as plainly and slowly as they are there, and sharing
//! nothing with the coalescer.

use bng_fastpath::coalesce::{Ids, Run, Settings};
use bng_fastpath::testing::TestBuf;
use bng_fastpath::{Direction, PacketBuf};

use crate::classify::{Candidate, Class, Place, Scope, classify};

/// Frames that leave together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) marks: Vec<u32>,
    /// Of two frames or more.
    pub(crate) run: Option<Run>,
}

#[derive(Debug)]
struct Held {
    place: Place,
    head: Candidate,
    marks: Vec<u32>,
    ids: Ids,
    payload: usize,
    last: usize,
    received: usize,
    arrived_ns: u64,
}

/// Most runs held at once (X1).
pub(crate) const RUNS: usize = 64;
/// Most datagrams in a UDP run (M8).
const UDP_FRAMES: usize = 64;
/// Most bytes behind the EtherType (M9).
const MOST_BYTES: usize = 65_535;

#[derive(Debug)]
pub(crate) struct Model {
    settings: Settings,
    /// In the order their heads arrived.
    runs: Vec<Held>,
    out: Vec<Group>,
}

impl Model {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            settings: settings.clone(),
            runs: Vec::new(),
            out: Vec::new(),
        }
    }

    /// What left since the last time, in order.
    pub(crate) fn take(&mut self) -> Vec<Group> {
        std::mem::take(&mut self.out)
    }

    pub(crate) fn frame(&mut self, direction: Direction, buf: &TestBuf, now_ns: u64) {
        let (place, class) = classify(&self.settings, direction, buf);
        match class {
            Class::Barrier(scope) => {
                let in_scope = |run: &Held| match scope {
                    Scope::None => false,
                    Scope::Flow => run.place.flow == place.flow,
                    Scope::Addresses => run.place.addresses == place.addresses,
                    Scope::Session => run.place.session == place.session,
                };
                self.let_go(in_scope);
                self.alone(buf);
            }
            Class::Candidate(candidate) => self.candidate(place, candidate, buf, now_ns),
        }
    }

    fn candidate(&mut self, place: Place, candidate: Candidate, buf: &TestBuf, now_ns: u64) {
        let of_flow = |run: &Held| run.place.flow == place.flow;
        if let Some(run) = self.runs.iter_mut().find(|run| of_flow(run)) {
            if run.join(&candidate, buf) {
                if run.is_at_its_end(&candidate, &self.settings) {
                    self.let_go(of_flow);
                }
                return;
            }
            // M11: the run goes out, the frame is handled as if there had been none.
            self.let_go(of_flow);
        }
        if candidate.tcp.as_ref().is_some_and(|tcp| tcp.push_or_fin) {
            // E1.
            return self.alone(buf);
        }
        if self.runs.len() == RUNS {
            // X2.
            let oldest = self.runs.remove(0);
            self.out.push(oldest.group());
        }
        self.runs.push(Held {
            marks: vec![buf.mark()],
            ids: Ids::Fixed,
            payload: candidate.payload,
            last: candidate.payload,
            received: buf.data().len(),
            arrived_ns: now_ns,
            place,
            head: candidate,
        });
    }

    /// T1: before a burst.
    pub(crate) fn expire(&mut self, now_ns: u64) {
        let hold = self.settings.hold_ns;
        self.let_go(|run| now_ns - run.arrived_ns > hold);
    }

    /// T1: after it.
    pub(crate) fn end_burst(&mut self) {
        if self.settings.hold_ns == 0 {
            self.flush();
        }
    }

    pub(crate) fn flush(&mut self) {
        self.let_go(|_| true);
    }

    fn let_go(&mut self, in_scope: impl Fn(&Held) -> bool) {
        let (out, held) = std::mem::take(&mut self.runs)
            .into_iter()
            .partition(in_scope);
        self.runs = held;
        self.out
            .extend(out.into_iter().map(|run: Held| run.group()));
    }

    fn alone(&mut self, buf: &TestBuf) {
        self.out.push(Group {
            marks: vec![buf.mark()],
            run: None,
        });
    }
}

impl Held {
    /// M2 to M9.
    fn join(&mut self, frame: &Candidate, buf: &TestBuf) -> bool {
        let n = self.marks.len();
        let mut ids = self.ids;
        let fits = frame.same == self.head.same
            && self.join_ids(frame, n, &mut ids)
            && frame.payload <= self.head.payload
            && match (&frame.tcp, &self.head.tcp) {
                (Some(tcp), Some(head)) => {
                    tcp.seq == head.seq.wrapping_add(self.payload as u32) && tcp.same == head.same
                }
                _ => n < UDP_FRAMES,
            }
            && self.bytes() + frame.payload <= MOST_BYTES;
        if fits {
            self.ids = ids;
            self.payload += frame.payload;
            self.last = frame.payload;
            self.received += buf.data().len();
            self.marks.push(buf.mark());
        }
        fits
    }

    /// M3.
    fn join_ids(&self, frame: &Candidate, n: usize, ids: &mut Ids) -> bool {
        let (Some((df, id)), Some((head_df, head_id))) = (frame.ipv4, self.head.ipv4) else {
            return true;
        };
        let distance = usize::from(id.wrapping_sub(head_id));
        if n == 1 {
            *ids = if distance == 0 {
                Ids::Fixed
            } else {
                Ids::Rising
            };
            return df == head_df && distance <= 1;
        }
        let expected = if *ids == Ids::Fixed { 0 } else { n };
        df == head_df && distance == expected
    }

    /// Bytes behind the EtherType of the merged packet.
    fn bytes(&self) -> usize {
        self.head.behind_ethertype - self.head.payload + self.payload
    }

    /// E2.
    fn is_at_its_end(&self, joined: &Candidate, settings: &Settings) -> bool {
        joined.payload < self.head.payload
            || joined.tcp.as_ref().is_some_and(|tcp| tcp.push_or_fin)
            || joined.tcp.is_none() && self.marks.len() == UDP_FRAMES
            || self.marks.len() >= usize::from(settings.max_frames)
            || self.bytes() == MOST_BYTES
    }

    fn group(self) -> Group {
        let run = Run {
            is_tcp: self.head.tcp.is_some(),
            is_ipv6: self.head.ipv4.is_none(),
            segment: self.head.payload as u16,
            last_segment: self.last as u16,
            ids: self.ids,
            cwr: self.head.tcp.as_ref().is_some_and(|tcp| tcp.cwr),
            received_bytes: self.received as u32,
            arrived_ns: self.arrived_ns,
        };
        Group {
            run: (self.marks.len() > 1).then_some(run),
            marks: self.marks,
        }
    }
}
