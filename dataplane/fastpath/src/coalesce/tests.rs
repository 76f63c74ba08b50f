//! Values of the run table. The conformance cases and the laws are tested in `tests/coalesce_*.rs`.

use std::net::Ipv4Addr;

use bng_shm::Counter;
use bng_wire::checksum::checksum;
use bng_wire::ethernet::ethertype;
use bng_wire::{MacAddr, VlanStack, VlanTag};

use super::*;
use crate::testing::{TestBuf, ethernet, pppoe_session, tcp};

mod laws;

const OWN: MacAddr = MacAddr([2, 0xbb, 0, 0, 0, 1]);
const PEER: MacAddr = MacAddr([2, 0xaa, 1, 2, 3, 4]);
const UP: Direction = Direction::Upstream;
const DOWN: Direction = Direction::Downstream;
const ACK: u8 = 0x10;
const FORWARD: Verdict = Verdict::Forward { port: 3 };

fn settings() -> Settings {
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
        hold_ns: 0,
        max_frames: 64,
        verify: true,
    }
}

/// A TCP packet of a flow with `len` bytes of payload from `seq` on.
fn segment(flow: u16, seq: u32, len: usize, flags: u8) -> Vec<u8> {
    let (a, b) = (Ipv4Addr::new(100, 64, 0, 9), Ipv4Addr::new(8, 8, 4, 4));
    let mut packet = tcp((a, 5_000 + flow), (b, 443), flags, &vec![0x61; len]);
    packet[24..28].copy_from_slice(&seq.to_be_bytes());
    packet[36..38].fill(0);
    let check = bng_wire::checksum::l4_checksum(a.to_bits(), b.to_bits(), 6, &packet[20..]);
    packet[36..38].copy_from_slice(&check.to_be_bytes());
    packet
}

/// Any change of an IPv4 header, and its checksum right again.
fn with(mut packet: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    change(&mut packet);
    packet[10..12].fill(0);
    let check = checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&check.to_be_bytes());
    packet
}

fn down(packet: &[u8]) -> TestBuf {
    TestBuf::new(2, &ethernet(OWN, PEER, ethertype::IPV4, packet))
}

fn up(session: u16, packet: &[u8]) -> TestBuf {
    let none = VlanStack::UNTAGGED;
    TestBuf::new(0, &pppoe_session(OWN, PEER, &none, session, 0x21, packet))
}

/// What came out: the last byte of sequence numbers tells frames apart.
#[derive(Debug, Default)]
struct Out(Vec<(Vec<TestBuf>, Verdict, Option<Run>)>);

impl Sink<TestBuf> for Out {
    fn one(&mut self, frame: TestBuf, verdict: Verdict) {
        self.0.push((vec![frame], verdict, None));
    }

    fn run(&mut self, run: &Run, verdict: Verdict, frames: &mut Vec<TestBuf>) {
        assert!(frames.len() > 1);
        self.0.push((std::mem::take(frames), verdict, Some(*run)));
    }
}

impl Out {
    /// Frames in each output.
    fn sizes(&self) -> Vec<usize> {
        self.0.iter().map(|(frames, ..)| frames.len()).collect()
    }
}

/// A coalescer and what it has let go of.
struct Bench {
    coalescer: Coalescer<TestBuf>,
    out: Out,
    now_ns: u64,
}

impl Bench {
    fn new(settings: &Settings) -> Self {
        Self {
            coalescer: Coalescer::new(settings).expect("on"),
            out: Out::default(),
            now_ns: 1_000,
        }
    }

    /// One burst, all with this verdict or each with its own; returns the hints.
    fn burst(&mut self, direction: Direction, frames: Vec<TestBuf>, verdicts: &[Verdict]) -> Hints {
        let hints = *self.coalescer.observe(direction, &frames, self.now_ns);
        let verdicts: Vec<_> = verdicts
            .iter()
            .copied()
            .cycle()
            .take(frames.len())
            .collect();
        self.coalescer.release(frames, &verdicts, &mut self.out);
        hints
    }

    fn end(&mut self) -> Vec<usize> {
        self.coalescer.end_burst(&mut self.out);
        assert!(self.coalescer.is_empty());
        let sizes = self.out.sizes();
        self.out.0.clear();
        sizes
    }

    fn count(&self, counter: Counter) -> u32 {
        self.coalescer.tally.get(counter)
    }
}

fn train(count: u32, len: usize) -> Vec<TestBuf> {
    let frames = (0..count).map(|n| down(&segment(0, n * len as u32, len, ACK)));
    frames.collect()
}

#[test]
fn a_train_is_one_run_and_says_what_it_is() {
    let mut bench = Bench::new(&settings());
    let rising = |n: u32| with(segment(0, n * 100, 100, ACK), |ip| ip[5] = n as u8);
    let frames: Vec<_> = (0..4).map(|n| up(7, &rising(n))).collect();
    let bytes: usize = frames.iter().map(|frame| frame.data().len()).sum();
    let hints = bench.burst(UP, frames, &[FORWARD]);
    assert_eq!(
        [0, 1, 2, 3].map(|at| hints.like(at)),
        [None, Some(0), Some(0), Some(0)]
    );
    let short = with(segment(0, 400, 30, 0x18), |ip| ip[5] = 4);
    bench.burst(UP, vec![up(7, &short)], &[FORWARD]);
    let (frames, verdict, run) = bench.out.0.pop().unwrap();
    assert_eq!((frames.len(), verdict), (5, FORWARD));
    let run = run.unwrap();
    assert_eq!((run.segment, run.last_segment), (100, 30));
    assert_eq!((run.ids, run.is_tcp), (Ids::Rising, true));
    assert_eq!(run.received_bytes as usize, bytes + frames[4].data().len());
    assert_eq!(run.arrived_ns, 1_000);
    assert_eq!(bench.count(Counter::EndShort), 1);
    assert_eq!(bench.end(), []);
}

#[test]
fn sessions_vlans_and_ports_are_not_mixed() {
    let packet = |seq| segment(0, seq, 100, ACK);
    let tag = |tci| {
        VlanStack::single(VlanTag {
            tpid: ethertype::VLAN,
            tci,
        })
    };
    let tagged =
        |tci, packet: &[u8]| TestBuf::new(0, &pppoe_session(OWN, PEER, &tag(tci), 7, 0x21, packet));
    let mut bench = Bench::new(&settings());
    let mut other_port = up(7, &packet(100));
    other_port.set_port(1);
    let frames = vec![
        up(7, &packet(0)),
        up(8, &packet(100)),
        tagged(0, &packet(100)),
        tagged(9, &packet(100)),
        other_port,
    ];
    bench.burst(UP, frames, &[FORWARD]);
    assert_eq!(bench.end(), [1, 1, 1, 1, 1]);
    assert_eq!(bench.count(Counter::EndBurst), 5);
    // A priority is a condition, not part of the key (K4).
    let frames = [9, 0x2009, 0x2009].iter().zip([0, 100, 200]);
    let frames = frames
        .map(|(tci, seq)| tagged(*tci, &packet(seq)))
        .collect();
    bench.burst(UP, frames, &[FORWARD]);
    assert_eq!(bench.end(), [1, 2]);
    assert_eq!(bench.count(Counter::EndHeader), 1);
}

#[test]
fn what_the_stages_decide_parts_a_run_and_nothing_is_counted_twice() {
    let mut bench = Bench::new(&settings());
    let drop = Verdict::Drop(Counter::PolicerDownstream);
    let other = Verdict::Forward { port: 4 };
    let verdicts = [
        FORWARD, FORWARD, drop, FORWARD, FORWARD, FORWARD, other, other,
    ];
    bench.burst(DOWN, train(8, 100), &verdicts);
    let sizes: Vec<_> = [2, 1, 3].to_vec();
    assert_eq!(bench.out.sizes(), sizes);
    assert_eq!(bench.end(), [2, 1, 3, 2]);
    let counts = [
        (Counter::CoalesceFrames, 8),
        (Counter::CoalesceMerged, 7),
        (Counter::CoalesceSingle, 1),
        (Counter::CoalesceSupers, 3),
        (Counter::CoalesceSegments2, 2),
        (Counter::CoalesceSegments4, 1),
        (Counter::EndVerdict, 2),
        (Counter::EndBurst, 1),
    ];
    for (counter, count) in counts {
        assert_eq!(bench.count(counter), count, "{counter:?}");
    }
}

#[test]
fn what_is_handed_over_is_the_owners_to_count() {
    let mut bench = Bench::new(&settings());
    let mut frames = train(3, 100);
    frames.push(down(&segment(0, 300, 0, ACK)));
    bench.burst(DOWN, frames, &[Verdict::HandOver { worker: 1 }]);
    assert_eq!(bench.end(), [1, 1, 1, 1]);
    assert_eq!(bench.coalescer.tally.sum(), 0);
}

#[test]
fn a_full_table_lets_go_of_the_oldest() {
    let mut bench = Bench::new(&settings());
    for flow in 0..65 {
        bench.burst(DOWN, vec![down(&segment(flow, 0, 100, ACK))], &[FORWARD]);
    }
    assert_eq!(bench.out.sizes(), [1]);
    assert_eq!(bench.count(Counter::EndTableFull), 1);
    // The first has no run any more, and pushes the second out; all others have theirs.
    for flow in 0..65 {
        let packet = segment(flow, 100, 100, ACK);
        bench.burst(DOWN, vec![down(&packet)], &[FORWARD]);
    }
    // In the order of their heads (T4): every look-up after the first finds that its run has just been pushed out.
    assert_eq!(bench.end(), vec![1; 130]);
    assert_eq!(bench.count(Counter::EndTableFull), 66);
}

#[test]
fn sixty_four_runs_are_held_and_leave_in_the_order_of_their_heads() {
    let mut bench = Bench::new(&settings());
    for seq in [0, 100] {
        for flow in 0..64 {
            bench.burst(DOWN, vec![down(&segment(flow, seq, 100, ACK))], &[FORWARD]);
        }
    }
    assert!(bench.out.0.is_empty());
    bench.coalescer.end_burst(&mut bench.out);
    let ports = bench.out.0.iter().map(|(frames, ..)| {
        let data = frames[0].data();
        u16::from_be_bytes([data[34], data[35]]) - 5_000
    });
    assert!(ports.eq(0..64));
    assert_eq!(bench.out.sizes(), vec![2; 64]);
}

#[test]
fn a_hold_time_is_measured_from_the_head() {
    let mut bench = Bench::new(&Settings {
        hold_ns: 200,
        ..settings()
    });
    let one = |bench: &mut Bench, seq| {
        bench.burst(DOWN, vec![down(&segment(0, seq, 100, ACK))], &[FORWARD]);
        bench.coalescer.end_burst(&mut bench.out);
    };
    one(&mut bench, 0);
    bench.now_ns += 150;
    one(&mut bench, 100);
    bench.now_ns += 50;
    bench.coalescer.expire(bench.now_ns, &mut bench.out);
    assert_eq!(bench.out.sizes(), []);
    bench.now_ns += 1;
    // Not asked before, it still does not let the frame join.
    one(&mut bench, 200);
    assert_eq!(bench.out.sizes(), [2]);
    bench.coalescer.flush(Counter::EndQuiescent, &mut bench.out);
    assert_eq!(bench.out.sizes(), [2, 1]);
    assert_eq!(bench.count(Counter::EndHold), 1);
    assert_eq!(bench.count(Counter::EndQuiescent), 1);
    assert!(bench.coalescer.is_empty());
}

#[test]
fn settings_leave_things_alone() {
    let off = Protocols::default();
    assert!(
        Coalescer::<TestBuf>::new(&Settings {
            upstream: off,
            downstream: off,
            ..settings()
        })
        .is_none()
    );
    let no_family = Settings {
        ipv4: false,
        ipv6: false,
        ..settings()
    };
    assert!(Coalescer::<TestBuf>::new(&no_family).is_none());
    let no_port = vec![false, false, true];
    let tcp = |tcp| Protocols { tcp, udp: true };
    let cases = [
        (
            Settings {
                ports_off: no_port,
                ..settings()
            },
            1,
        ),
        (
            Settings {
                ipv4: false,
                ..settings()
            },
            1,
        ),
        (
            Settings {
                downstream: tcp(false),
                ..settings()
            },
            1,
        ),
        (
            Settings {
                upstream: tcp(false),
                ..settings()
            },
            3,
        ),
    ];
    for (settings, size) in cases {
        let mut bench = Bench::new(&settings);
        bench.burst(DOWN, train(3, 100), &[FORWARD]);
        assert_eq!(bench.end()[0], size, "{settings:?}");
    }
    // Three frames in a run, UDP or TCP (M10).
    let mut bench = Bench::new(&Settings {
        max_frames: 3,
        ..settings()
    });
    bench.burst(DOWN, train(7, 100), &[FORWARD]);
    assert_eq!(bench.end(), [3, 3, 1]);
}

#[test]
fn checksums_are_verified_unless_the_port_or_nobody_is_asked() {
    let bad = |n: u32| {
        let mut packet = segment(0, n * 100, 100, ACK);
        packet[60] ^= 1;
        down(&packet)
    };
    let mut bench = Bench::new(&settings());
    bench.burst(DOWN, vec![bad(0), bad(1), bad(2)], &[FORWARD]);
    assert_eq!(bench.end(), [1, 1, 1]);
    assert_eq!(bench.count(Counter::PassL4Checksum), 3);
    let mut bench = Bench::new(&Settings {
        verify: false,
        ..settings()
    });
    bench.burst(DOWN, vec![bad(0), bad(1), bad(2)], &[FORWARD]);
    assert_eq!(bench.end(), [3]);
}

/// A header checksum that is right both ways: only the standard one is a candidate's (C9).
#[test]
fn zero_is_written_in_one_way() {
    let packet = |n: u32, check: [u8; 2]| {
        let mut packet = segment(0, n * 100, 100, ACK);
        packet[10..12].fill(0);
        packet[4..6].fill(0);
        let sum = checksum(&packet[..20]);
        packet[4..6].copy_from_slice(&sum.to_be_bytes());
        packet[10..12].copy_from_slice(&check);
        down(&packet)
    };
    let standard = [0, 0];
    let frames = (0..3).map(|n| packet(n, standard)).collect();
    let mut bench = Bench::new(&settings());
    bench.burst(DOWN, frames, &[FORWARD]);
    assert_eq!(bench.end(), [3]);
    let frames = vec![
        packet(0, standard),
        packet(1, [0xff, 0xff]),
        packet(2, standard),
    ];
    bench.burst(DOWN, frames, &[FORWARD]);
    assert_eq!(bench.end(), [1, 1, 1]);
    assert_eq!(bench.count(Counter::PassIpHeader), 1);
}
