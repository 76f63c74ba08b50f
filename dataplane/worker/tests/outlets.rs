//! Where a burst goes when the rings it is meant for have no room: every frame is counted once and its buffer is given back.
#![allow(missing_docs, clippy::unwrap_used)]

use bng_dataplane::dispatch::{HandOver, Outlets};
use bng_dataplane::host::{FromWorker, HostBell, host_ring};
use bng_fastpath::{BURST, FirstFragments, Verdict, WaitingRoom};
use bng_shm::{Capacities, Counter, Dataplane, Publisher, Worker};
use rte_rs::{
    Burst, Consumer, Eal, EalArgs, Mbuf, Memory, Mempool, MempoolConfig, Producer, RingConfig,
    sp_sc_ring,
};
use std::sync::Arc;

/// Room in each ring, less than a burst.
const ROOM: usize = 20;
/// Buffers of the pool.
const BUFFERS: u32 = 255;

struct World {
    control: Publisher,
    shm: Worker,
    pool: Mempool,
    out: Outlets,
    host: FromWorker,
    handed_over: Consumer,
}

impl World {
    /// Worker 0 of two, with rings that nobody empties.
    fn new(eal: &Eal) -> Self {
        let (mut dataplane, control) =
            Dataplane::in_process(Capacities::of_gateway(1, 2, 2, 0, 0)).unwrap();
        let shm = dataplane.worker(0).unwrap();
        shm.enter(0);
        let pool = Mempool::create(eal, &MempoolConfig::new("outlets", BUFFERS)).unwrap();
        let (handover, handed_over) = ring(eal, "handover");
        let (to_host, host) = host_ring(ring(eal, "host"));
        let out = Outlets {
            tx: Vec::new(),
            handover: vec![None, Some(HandOver::new(handover))],
            fragments: pool.clone(),
            waiting: WaitingRoom::new(&[], Arc::new(FirstFragments::new(0))),
            host: to_host,
            host_bell: HostBell::new().unwrap(),
            twins: Vec::new(),
        };
        Self {
            control,
            shm,
            pool,
            out,
            host,
            handed_over,
        }
    }

    /// A burst of numbered frames, all with the verdict `verdict` gives to its place.
    fn dispatch(&mut self, first: u8, verdict: impl Fn(usize) -> Verdict) {
        let numbers = (first..).take(BURST);
        let mut burst: Burst<BURST> = numbers
            .map(|number| self.pool.alloc_copy(&[number; 60]).unwrap())
            .collect();
        let verdicts = std::array::from_fn(verdict);
        self.out.dispatch(&mut burst, &verdicts, &mut self.shm, 0);
        assert!(burst.is_empty());
    }

    fn counted(&self, counter: Counter) -> u64 {
        self.control.worker_status(0).unwrap().counters[counter.index()]
    }

    /// Frames dropped, under whatever name.
    fn dropped(&self) -> u64 {
        Counter::drops().map(|reason| self.counted(reason)).sum()
    }
}

fn ring(eal: &Eal, name: &str) -> (Producer, Consumer) {
    let config = RingConfig {
        name: name.to_owned(),
        capacity: ROOM as u32,
        numa_node: None,
    };
    sp_sc_ring(eal, &config).unwrap()
}

/// Numbers of the frames that `take` gives.
fn numbers(take: impl FnOnce(&mut Burst<BURST>) -> usize) -> Vec<u8> {
    let mut frames: Burst<BURST> = Burst::new();
    take(&mut frames);
    let numbers = frames.iter().map(|mbuf| mbuf.data()[0]).collect();
    Mbuf::free_bulk(&mut frames);
    numbers
}

// One test: EAL is started once in a process.
#[test]
fn what_a_full_ring_does_not_take_is_counted_and_given_back() {
    let arguments = EalArgs::new(&format!("outlets{}", std::process::id()))
        .memory(Memory::NoHugepages { mib: 64 })
        .pci(false)
        .telemetry(false)
        .restore_affinity(true);
    let eal = Eal::init(&arguments).unwrap();
    let mut world = World::new(&eal);
    let (burst, room) = (BURST as u64, ROOM as u64);

    // The ring to the owner takes what it has room for, then nothing.
    let hand_over = |_| Verdict::HandOver { worker: 1 };
    world.dispatch(0, hand_over);
    assert_eq!(world.counted(Counter::HandedOver), room);
    assert_eq!(world.counted(Counter::HandoverFull), burst - room);
    world.dispatch(100, hand_over);
    assert_eq!(world.counted(Counter::HandedOver), room);
    assert_eq!(world.counted(Counter::HandoverFull), 2 * burst - room);
    assert_eq!(
        world.pool.in_use() as usize,
        ROOM,
        "what was dropped is back"
    );
    let first: Vec<u8> = (0..ROOM as u8).collect();
    assert_eq!(
        numbers(|burst| world.handed_over.dequeue_burst(burst)),
        first,
        "the oldest, in order"
    );
    assert_eq!(world.pool.in_use(), 0);

    // As for the ring to the host thread, whose frames say which port's twin they are for.
    let to_host = |_| Verdict::Host { port: 1 };
    world.dispatch(0, to_host);
    assert_eq!(world.counted(Counter::HostRingFull), burst - room);
    world.dispatch(100, to_host);
    assert_eq!(world.counted(Counter::HostRingFull), 2 * burst - room);
    assert_eq!(world.pool.in_use() as usize, ROOM);
    assert_eq!(numbers(|burst| world.host.dequeue_burst(burst)), first);
    assert_eq!(world.pool.in_use(), 0);

    // Both in one burst, with frames for workers and ports that are not there.
    let before = world.dropped();
    world.dispatch(0, |at| match at % 4 {
        0 => Verdict::HandOver { worker: 1 },
        1 => Verdict::Host { port: 1 },
        // To itself, and to a worker that is not configured.
        2 => Verdict::HandOver {
            worker: if at < BURST / 2 { 0 } else { 9 },
        },
        _ => Verdict::Forward { port: 7 },
    });
    let quarter = burst / 4;
    assert_eq!(world.counted(Counter::HandedOver), room + quarter);
    assert_eq!(world.counted(Counter::HandoverStale), quarter);
    assert_eq!(world.counted(Counter::TxQueueFull), quarter);
    assert_eq!(
        world.dropped() - before,
        2 * quarter,
        "nothing else is dropped"
    );
    let every_fourth = |from: u8| (from..BURST as u8).step_by(4).collect::<Vec<_>>();
    assert_eq!(
        numbers(|burst| world.handed_over.dequeue_burst(burst)),
        every_fourth(0)
    );
    assert_eq!(
        numbers(|burst| world.host.dequeue_burst(burst)),
        every_fourth(1)
    );
    assert_eq!(world.pool.in_use(), 0);
}
