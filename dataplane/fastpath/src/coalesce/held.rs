//! Frames that are held: the runs of the table, as [`release`](super::Coalescer::release) sees them.
//!
//! What the stages think of a frame may part a run: it is held in pieces then, each with one verdict. A piece keeps its
//! run's place in the order.

use bng_shm::Counter;

use super::table::{RUNS, Slot};
use super::tally::Tally;
use super::{Ids, Run, Sink};
use crate::verdict::Verdict;

/// What is remembered of an observed candidate until it is released.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// Length of the frame as received, bytes.
    pub(super) len: u32,
    /// Bytes of payload.
    pub(super) payload: u16,
    pub(super) is_tcp: bool,
    pub(super) is_ipv6: bool,
    pub(super) has_cwr: bool,
    /// The run's identification rises, as far as it is known.
    pub(super) is_rising: bool,
}

impl Seen {
    pub(super) const NOTHING: Self = Self {
        len: 0,
        payload: 0,
        is_tcp: false,
        is_ipv6: false,
        has_cwr: false,
        is_rising: false,
    };

    /// The run of which this is the only frame.
    fn run(&self, arrived_ns: u64) -> Run {
        Run {
            is_tcp: self.is_tcp,
            is_ipv6: self.is_ipv6,
            segment: self.payload,
            last_segment: self.payload,
            ids: Ids::Fixed,
            cwr: self.has_cwr,
            received_bytes: self.len,
            arrived_ns,
        }
    }
}

/// The frames held of one run.
#[derive(Debug)]
struct Piece<B> {
    frames: Vec<B>,
    /// Meaningful as long as there are frames, as is the verdict.
    run: Run,
    verdict: Verdict,
}

#[derive(Debug)]
pub(super) struct Held<B> {
    pieces: Box<[Piece<B>; RUNS]>,
    /// Pieces that have frames.
    taken: usize,
}

impl<B> Held<B> {
    /// With room for so many frames in each run.
    pub(super) fn new(max_frames: u16) -> Self {
        let pieces = [(); RUNS].map(|()| Piece {
            frames: Vec::with_capacity(max_frames.into()),
            run: Seen::NOTHING.run(0),
            verdict: Verdict::Drop(Counter::FrameTruncated),
        });
        Self {
            pieces: Box::new(pieces),
            taken: 0,
        }
    }

    #[inline(always)]
    pub(super) const fn is_empty(&self) -> bool {
        self.taken == 0
    }

    /// Takes frames that start or join the run at `slot`.
    #[inline]
    pub(super) fn take<'a>(
        &mut self,
        slot: Slot,
        frames: impl Iterator<Item = ((B, &'a Verdict), &'a Seen)>,
        arrived_ns: u64,
        tally: &mut Tally,
        sink: &mut impl Sink<B>,
    ) {
        let mut counted = 0;
        for ((frame, verdict), seen) in frames {
            let piece = &mut self.pieces[slot.index()];
            if piece.frames.is_empty() || !is_same_way(piece.verdict, *verdict) {
                let first = (frame, *verdict, seen);
                counted += u32::from(self.begin(slot, first, arrived_ns, tally, sink));
                continue;
            }
            counted += 1;
            piece.run.last_segment = seen.payload;
            piece.run.received_bytes += seen.len;
            if seen.is_rising {
                piece.run.ids = Ids::Rising;
            }
            piece.frames.push(frame);
        }
        tally.add(Counter::CoalesceFrames, counted);
    }

    /// Takes the first frame of a piece, or lets go of one that is not held; false if the frame is not counted here.
    fn begin(
        &mut self,
        slot: Slot,
        (frame, verdict, seen): (B, Verdict, &Seen),
        arrived_ns: u64,
        tally: &mut Tally,
        sink: &mut impl Sink<B>,
    ) -> bool {
        self.end(slot, Counter::EndVerdict, tally, sink);
        match verdict {
            Verdict::Forward { .. } | Verdict::Host { .. } => {
                let piece = &mut self.pieces[slot.index()];
                (piece.run, piece.verdict) = (seen.run(arrived_ns), verdict);
                piece.frames.push(frame);
                self.taken += 1;
                true
            }
            // The owner will observe and count it.
            Verdict::HandOver { .. } => {
                sink.one(frame, verdict);
                false
            }
            Verdict::Fragment { .. } | Verdict::Punt(_) | Verdict::Wait(_) | Verdict::Drop(_) => {
                tally.add(Counter::CoalesceSingle, 1);
                sink.one(frame, verdict);
                true
            }
        }
    }

    /// Lets go of what is held of the run at `slot`.
    #[inline]
    pub(super) fn end(
        &mut self,
        slot: Slot,
        why: Counter,
        tally: &mut Tally,
        sink: &mut impl Sink<B>,
    ) {
        let Piece {
            frames,
            run,
            verdict,
        } = &mut self.pieces[slot.index()];
        let count = frames.len();
        if count == 0 {
            return;
        }
        tally.add(why, 1);
        self.taken -= 1;
        if count == 1
            && let Some(frame) = frames.pop()
        {
            // As it is, with nothing said about it (H3).
            tally.add(Counter::CoalesceSingle, 1);
            sink.one(frame, *verdict);
        } else {
            tally.super_packet(count);
            sink.run(run, *verdict, frames);
            frames.clear();
        }
    }
}

/// Whether frames of both verdicts, the first of which is that of frames that are held, may leave together.
#[inline(always)]
fn is_same_way(held: Verdict, other: Verdict) -> bool {
    match (held, other) {
        (Verdict::Forward { port: a }, Verdict::Forward { port: b })
        | (Verdict::Host { port: a }, Verdict::Host { port: b }) => a == b,
        _ => false,
    }
}
