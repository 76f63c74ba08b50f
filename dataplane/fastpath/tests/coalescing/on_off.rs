//! All stages with coalescing and without: nothing but the coalescer's own counters may differ (P0).

use std::collections::BTreeMap;

use bng_fastpath::coalesce::{Coalescer, Ids, Settings};
use bng_fastpath::merge::{Checksums, Merged};
use bng_fastpath::segment::{Cwr, How, Segmenter};
use bng_fastpath::testing::{Received, TestBuf, World};
use bng_fastpath::{Direction, Origin, PacketBuf, Verdict};
use bng_shm::{Counter, Group, SlotIndex};

use crate::classify;
use crate::drive::{Collected, Out};
use crate::order::{self, Places};

/// A frame as it left, and why.
type Left = (Verdict, Vec<u8>);

/// Two worlds that see the same frames.
pub(crate) struct Pair {
    off: World,
    on: World,
    settings: Settings,
    coalescers: Vec<Coalescer<TestBuf>>,
    /// Sessions whose statistics are compared.
    slots: Vec<SlotIndex>,
    left: Vec<(u32, Left)>,
    pub(crate) outs: Vec<Out>,
    pub(crate) handed_over: u64,
    places: Places,
    /// The last worker that had the frame.
    workers: BTreeMap<u32, u8>,
}

impl Pair {
    /// `world` makes the same world each time.
    pub(crate) fn new(
        settings: Settings,
        slots: Vec<SlotIndex>,
        world: impl Fn() -> World,
    ) -> Self {
        let on = world();
        let coalescers = on.workers.iter();
        Self {
            off: world(),
            coalescers: coalescers
                .map(|_| Coalescer::new(&settings).unwrap())
                .collect(),
            on,
            settings,
            slots,
            left: Vec::new(),
            outs: Vec::new(),
            handed_over: 0,
            places: Places::new(),
            workers: BTreeMap::new(),
        }
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.off.now_ms * 1_000_000
    }

    /// A burst of a port of the first worker; what it hands over, the others take.
    pub(crate) fn burst(&mut self, direction: Direction, now_ns: u64, bufs: Vec<TestBuf>) {
        self.worker_burst(0, direction, Origin::Port, now_ns, bufs);
    }

    fn worker_burst(
        &mut self,
        worker: u8,
        direction: Direction,
        origin: Origin,
        now_ns: u64,
        bufs: Vec<TestBuf>,
    ) {
        let at = usize::from(worker);
        let mut handed_over = Vec::new();
        for buf in &bufs {
            let place = classify::classify(&self.settings, direction, buf);
            // What is handed over is ordered by what it was when it came.
            self.places.entry(buf.mark()).or_insert(place);
            self.workers.insert(buf.mark(), worker);
        }
        let received = Received {
            direction,
            origin,
            now_ns,
            bufs,
        };
        for (verdict, buf) in self.off.received(worker, received.clone()) {
            match verdict {
                Verdict::HandOver { worker } => handed_over.push((worker, buf)),
                _ => self.left.push((buf.mark(), (verdict, buf.data().to_vec()))),
            }
        }
        let mut sink = Collected {
            cut: true,
            ..Collected::default()
        };
        let coalescer = &mut self.coalescers[at];
        self.on.coalesced(worker, received, coalescer, &mut sink);
        let (over, outs): (Vec<_>, Vec<_>) = sink
            .outs
            .into_iter()
            .partition(|out| matches!(out.verdict, Verdict::HandOver { .. }));
        self.outs.extend(outs);
        self.take_over(handed_over, &over, now_ns);
    }

    /// The frames on their way to other workers are the same and in the same order, whatever they are: they meet the
    /// owner's policers and port choice in that order. They go on.
    fn take_over(&mut self, off: Vec<(u8, TestBuf)>, on: &[Out], now_ns: u64) {
        let was: Vec<_> = off.iter().map(|(_, buf)| buf.clone()).collect();
        let is: Vec<_> = on.iter().flat_map(|out| out.frames.clone()).collect();
        assert_eq!(is, was);
        self.handed_over += was.len() as u64;
        let core = self.off.core_port();
        let direction = |buf: &TestBuf| match buf.port() < core {
            true => Direction::Upstream,
            false => Direction::Downstream,
        };
        let together =
            |a: &(u8, TestBuf), b: &(u8, TestBuf)| (a.0, direction(&a.1)) == (b.0, direction(&b.1));
        for part in off.chunk_by(together) {
            let (worker, first) = &part[0];
            let bufs = part.iter().map(|(_, buf)| buf.clone()).collect();
            let direction = direction(first);
            self.worker_burst(*worker, direction, Origin::HandedOver, now_ns, bufs);
        }
    }

    /// The same change of both worlds; what it gives is that of the one with coalescing.
    pub(crate) fn each<T>(&mut self, change: impl Fn(&mut World) -> T) -> T {
        change(&mut self.off);
        change(&mut self.on)
    }

    /// A poll without frames.
    pub(crate) fn idle(&mut self) {
        for (coalescer, worker) in self.coalescers.iter_mut().zip(&self.on.workers) {
            let mut sink = Collected::default();
            coalescer.flush(Counter::EndBurst, &mut sink);
            coalescer.settle(worker.shm());
            assert!(coalescer.is_empty());
            self.outs.append(&mut sink.outs);
        }
    }

    fn assert_order(&self, got: &[u32], wanted: &[u32]) {
        let alone = |marks: &[u32]| -> Vec<Vec<u32>> { marks.iter().map(|m| vec![*m]).collect() };
        let (got, wanted) = (alone(got), alone(wanted));
        let got: Vec<_> = got.iter().map(Vec::as_slice).collect();
        let wanted: Vec<_> = wanted.iter().map(Vec::as_slice).collect();
        let difference = order::difference(&self.places, &got, &wanted);
        assert_eq!(difference, None, "{:?}", self.settings);
    }

    /// Everything that can be seen from outside is the same. What left is forgotten.
    pub(crate) fn assert_same(&mut self) {
        self.idle();
        let off: BTreeMap<u32, &Left> =
            self.left.iter().map(|(mark, left)| (*mark, left)).collect();
        for out in &self.outs {
            assert_cut_gives_it(out);
            for frame in &out.frames {
                let (verdict, bytes) = off[&frame.mark()];
                assert_eq!(out.verdict, *verdict, "{:?}", self.places[&frame.mark()]);
                assert_eq!(frame.data(), bytes, "{verdict:?}");
            }
        }
        let was: Vec<_> = self.left.iter().map(|(mark, _)| *mark).collect();
        let is: Vec<_> = self.outs.iter().flat_map(Out::marks).collect();
        for worker in 0..self.off.spec.workers {
            // Workers do not wait for each other.
            let of = |marks: &[u32]| -> Vec<u32> {
                let marks = marks.iter().copied();
                marks.filter(|mark| self.workers[mark] == worker).collect()
            };
            self.assert_order(&of(&is), &of(&was));
            assert_eq!(counted(&self.on, worker), counted(&self.off, worker));
            assert_eq!(self.on.events(worker), self.off.events(worker));
            let mappings = |world: &World| world.workers[usize::from(worker)].nat_mappings();
            assert_eq!(mappings(&self.on), mappings(&self.off));
        }
        for slot in &self.slots {
            let stats = |world: &World| world.publisher.session_stats(*slot);
            assert_eq!(stats(&self.on), stats(&self.off), "{slot:?}");
        }
        self.left.clear();
        self.outs.clear();
        self.places.clear();
        self.workers.clear();
    }

    /// The worker's count of something, with coalescing.
    pub(crate) fn count(&self, counter: Counter) -> u64 {
        let counted = (0..self.on.spec.workers).flat_map(|worker| self.on.counted(worker));
        let of = counted.filter(|(of, _)| *of == counter);
        of.map(|(_, count)| count).sum()
    }
}

/// P1: if a run is merged for something that takes super-packets, cutting that gives its frames.
fn assert_cut_gives_it(out: &Out) {
    let frames: Vec<_> = out.frames.iter().map(PacketBuf::data).collect();
    let Some(merged) = out
        .run
        .and_then(|run| Merged::of(&run, frames.iter().copied()))
    else {
        return;
    };
    let mut packet = frames[0].to_vec();
    merged.write(&mut packet, Checksums::Virtio);
    let headers = merged.layout().header_len();
    for frame in &frames[1..] {
        packet.extend(&frame[headers..]);
    }
    let how = How {
        segment: merged.segment(),
        ids: Ids::Rising,
        cwr: Cwr::First,
    };
    let cut = Segmenter::new(&packet, &[], how).unwrap();
    assert_eq!(cut.len(), frames.len());
    for (at, expected) in frames.iter().enumerate() {
        let mut frame = vec![0; cut.frame_len(at)];
        assert!(cut.write(at, &mut frame));
        // The checksum is verified, or a port has said that it is right, which it does not have to be here.
        let check = cut.layout().l4() + cut.layout().checksum_offset();
        frame[check..check + 2].copy_from_slice(&expected[check..check + 2]);
        assert_eq!(frame, *expected, "{at}");
    }
}

/// A worker's counters but the coalescer's.
fn counted(world: &World, worker: u8) -> Vec<(Counter, u64)> {
    let own = [Group::Coalesce, Group::CoalescePass, Group::CoalesceEnd];
    let mut counted = world.counted(worker);
    counted.retain(|(counter, _)| !own.contains(&counter.group()));
    counted
}
