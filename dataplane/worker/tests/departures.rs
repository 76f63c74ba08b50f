//! How runs leave: in one piece to what takes them so, else as their frames; and how both are counted (F4, F8).
#![allow(missing_docs, clippy::unwrap_used)]

use bng_dataplane::dispatch::{Departures, Outlets};
use bng_dataplane::frame::Frame;
use bng_dataplane::host::{HostBell, host_ring};
use bng_dataplane::segmentation::Mode;
use bng_dataplane::tx::{Supers, TxPort};
use bng_fastpath::coalesce::{Ids, Protocols, Run, Sink};
use bng_fastpath::testing::L4Frame;
use bng_fastpath::{BURST, FirstFragments, Verdict, WaitingRoom};
use bng_shm::{Capacities, Counter, Dataplane, Publisher, Worker};
use bng_wire::MacAddr;
use rte_rs::{
    Burst, Eal, EalArgs, Mbuf, Memory, Mempool, MempoolConfig, Port, PortConfig, RingConfig,
    RxQueue, sp_sc_ring,
};
use std::sync::Arc;

/// Ports: one that takes frames, and one that takes super-packets.
const FRAMES: u8 = 0;
const SUPERS: u8 = 1;
/// Packets a queue of net_ring holds.
const QUEUE: u64 = 1_023;

struct World {
    control: Publisher,
    shm: Worker,
    pool: Mempool,
    out: Outlets,
    /// The other ends of the ports.
    sent: Vec<RxQueue>,
    host: bng_dataplane::host::FromWorker,
    _ports: Vec<Port>,
}

impl World {
    fn new(eal: &Eal) -> Self {
        let (mut dataplane, control) =
            Dataplane::in_process(Capacities::of_gateway(1, 2, 1, 0, 0)).unwrap();
        let shm = dataplane.worker(0).unwrap();
        shm.enter(0);
        let pool = Mempool::create(eal, &MempoolConfig::new("departures", 8_191)).unwrap();
        let (mut tx, mut sent, mut ports) = (Vec::new(), Vec::new(), Vec::new());
        for segments in [false, true] {
            let mut port = Port::probe(eal, &format!("net_ring_{segments}")).unwrap();
            port.configure(&PortConfig::default(), &pool).unwrap();
            let mut queues = port.start().unwrap();
            let supers = segments.then(|| Supers {
                most_frames: 4,
                pool: pool.clone(),
            });
            tx.push(TxPort::new(queues.tx.pop().unwrap(), false, supers));
            sent.append(&mut queues.rx);
            ports.push(port);
        }
        let config = RingConfig {
            name: "host".to_owned(),
            capacity: 1_024,
            numa_node: None,
        };
        let (to_host, host) = host_ring(sp_sc_ring(eal, &config).unwrap());
        let twin = Protocols {
            tcp: true,
            udp: false,
        };
        let out = Outlets {
            tx,
            handover: Vec::new(),
            fragments: pool.clone(),
            waiting: WaitingRoom::new(&[], Arc::new(FirstFragments::new(0))),
            host: to_host,
            host_bell: HostBell::new().unwrap(),
            twins: vec![Protocols::default(), twin],
        };
        Self {
            control,
            shm,
            pool,
            out,
            sent,
            host,
            _ports: ports,
        }
    }

    /// Sends the frames as one run, with this verdict.
    fn depart(&mut self, run: &Run, frames: &[Vec<u8>], verdict: Verdict) {
        let frames = frames.iter();
        let mut held: Vec<_> = frames
            .map(|frame| Frame::from(self.pool.alloc_copy(frame).unwrap()))
            .collect();
        let mut departures = Departures::new(&mut self.out, &mut self.shm, 0);
        departures.run(run, verdict, &mut held);
        departures.finish();
        assert!(held.is_empty(), "the sink drains the run");
    }

    fn counted(&self, counter: Counter) -> u64 {
        self.control.worker_status(0).unwrap().counters[counter.index()]
    }
}

/// A run of four TCP segments, and what it is.
fn run(mode: Mode) -> (Run, Vec<Vec<u8>>) {
    let run = Run {
        is_tcp: true,
        is_ipv6: mode == Mode::Ipv6,
        segment: 1_000,
        last_segment: 301,
        ids: match mode {
            Mode::Ipv4 => Ids::Rising,
            Mode::Ipv6 => Ids::Fixed,
        },
        cwr: false,
        received_bytes: 0,
        arrived_ns: 0,
    };
    (run, mode.frames(MacAddr([2, 0, 0, 0, 0, 1])))
}

/// A run of three UDP datagrams.
fn udp_run() -> (Run, Vec<Vec<u8>>) {
    let frames = L4Frame::new(None, false, false, &[7; 2_500]).cut(1_000, 1);
    let (tcp, _) = run(Mode::Ipv4);
    let udp = Run {
        is_tcp: false,
        last_segment: 500,
        ..tcp
    };
    (udp, frames.iter().map(L4Frame::frame).collect())
}

fn singly(frames: &[Vec<u8>]) -> Vec<(u16, Vec<u8>)> {
    frames.iter().map(|frame| (1, frame.clone())).collect()
}

/// What came out of a queue: how many buffers each packet has, and its bytes.
fn taken(take: impl FnOnce(&mut Burst<BURST>) -> usize) -> Vec<(u16, Vec<u8>)> {
    let mut burst: Burst<BURST> = Burst::new();
    take(&mut burst);
    let packets = burst.iter().map(|mbuf| {
        let bytes = mbuf.segments().collect::<Vec<_>>().concat();
        (mbuf.nb_segs(), bytes)
    });
    let packets = packets.collect();
    Mbuf::free_bulk(&mut burst);
    packets
}

// One test: EAL is started once in a process.
#[test]
fn a_run_leaves_in_one_piece_where_that_is_taken_and_counts_as_its_frames_everywhere() {
    let arguments = EalArgs::new(&format!("departures{}", std::process::id()))
        .memory(Memory::NoHugepages { mib: 64 })
        .pci(false)
        .telemetry(false)
        .restore_affinity(true);
    let eal = Eal::init(&arguments).unwrap();
    let mut world = World::new(&eal);
    let (tcp, frames) = run(Mode::Ipv4);
    let (tcp6, frames6) = run(Mode::Ipv6);
    let bytes: usize = frames.iter().map(Vec::len).sum();
    let (udp, datagrams) = udp_run();
    let mut expected = [0u64; 3];
    let mut check = |world: &World, add: [u64; 3]| {
        let counters = [Counter::TxCore, Counter::TxCoreBytes, Counter::SuperSent];
        for ((counter, expected), add) in counters.iter().zip(&mut expected).zip(add) {
            *expected += add;
            assert_eq!(world.counted(*counter), *expected, "{}", counter.label());
        }
    };

    // A port that takes frames gets them back to back, in order (S8).
    world.depart(&tcp, &frames, Verdict::Forward { port: FRAMES });
    world.out.flush(&world.shm);
    assert_eq!(taken(|burst| world.sent[0].burst(burst)), singly(&frames));
    check(&world, [4, bytes as u64, 0]);

    // The other one gets a packet of each family.
    let to = Verdict::Forward { port: SUPERS };
    world.depart(&tcp, &frames, to);
    world.depart(&tcp6, &frames6, to);
    world.out.flush(&world.shm);
    let came = taken(|burst| world.sent[1].burst(burst));
    let shape: Vec<_> = came
        .iter()
        .map(|(pieces, data)| (*pieces, data.len()))
        .collect();
    assert_eq!(shape, [(4, 66 + 3_301), (4, 86 + 3_301)]);
    let bytes6: usize = frames6.iter().map(Vec::len).sum();
    check(&world, [8, (bytes + bytes6) as u64, 2]);

    // What cannot be told in one piece (fixed identification), and UDP, go as frames there, too.
    let fixed = Run {
        ids: Ids::Fixed,
        ..tcp
    };
    // As does what has more frames than the port takes in one piece (M10).
    let long = L4Frame::new(None, false, true, &[7; 4_301]).cut(1_000, 1);
    let long: Vec<_> = long.iter().map(L4Frame::frame).collect();
    for (run, frames) in [(&fixed, &frames), (&udp, &datagrams), (&tcp, &long)] {
        world.depart(run, frames, to);
        world.out.flush(&world.shm);
        assert_eq!(taken(|burst| world.sent[1].burst(burst)), singly(frames));
        let bytes: usize = frames.iter().map(Vec::len).sum();
        check(&world, [frames.len() as u64, bytes as u64, 0]);
    }

    // F8: what the queue does not take are that many frames.
    for _ in 0..QUEUE + 7 {
        world.depart(&tcp, &frames, to);
    }
    world.out.flush(&world.shm);
    check(&world, [4 * QUEUE, bytes as u64 * QUEUE, QUEUE]);
    assert_eq!(world.counted(Counter::TxQueueFull), 4 * 7);
    assert_eq!(u64::from(world.pool.in_use()), 4 * QUEUE);
    while !taken(|burst| world.sent[1].burst(burst)).is_empty() {}
    assert_eq!(world.pool.in_use(), 0);

    // To a twin that takes TCP, to the same with UDP, and to one that takes frames alone.
    world.depart(&tcp, &frames, Verdict::Host { port: 1 });
    let came = taken(|burst| world.host.dequeue_burst(burst));
    assert_eq!((came.len(), came[0].0), (1, 4));
    for (run, frames, port) in [(&udp, &datagrams, 1), (&tcp, &frames, 0)] {
        world.depart(run, frames, Verdict::Host { port });
        let came = taken(|burst| world.host.dequeue_burst(burst));
        assert_eq!(came, singly(frames));
    }
    // The kernel of another twin takes UDP, too.
    world.out.twins[1].udp = true;
    world.depart(&udp, &datagrams, Verdict::Host { port: 1 });
    let came = taken(|burst| world.host.dequeue_burst(burst));
    assert_eq!((came.len(), came[0].0), (1, 3));
    assert_eq!(world.pool.in_use(), 0);
}
