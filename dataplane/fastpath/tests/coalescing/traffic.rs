//! Random traffic: a few flows that have much in common, each header field changed now and then, random bursts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bng_fastpath::coalesce::{Protocols, Settings};
use bng_fastpath::testing::{Check, Kind, Recipe, TestBuf};
use bng_fastpath::{Direction, L4Verdict, Punt, Verdict};
use bng_shm::{Counter, SlotIndex};
use bng_wire::MacAddr;

use crate::drive::{self, Burst, FORWARD};
use crate::model::RUNS;

/// Random numbers from a seed (splitmix64).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// True once in so many times.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }
}

/// What happens to the coalescer, in order.
#[derive(Debug)]
pub(crate) enum Step {
    Burst(Burst),
    /// All runs go out: a poll without frames, or the worker wants to hold nothing.
    Flush(Counter),
}

/// How a flow numbers its IPv4 packets.
#[derive(Debug, Clone, Copy)]
enum Numbering {
    Fixed,
    Rising,
    Random,
}

#[derive(Debug, Clone)]
pub(crate) struct Flow {
    pub(crate) direction: Direction,
    pub(crate) port: u8,
    numbering: Numbering,
    pub(crate) next: Recipe,
}

/// A source of steps.
#[derive(Debug)]
pub(crate) struct Traffic {
    pub(crate) random: Random,
    flows: Vec<Flow>,
    /// Once in how many frames a field is changed.
    change: usize,
    /// How many frames of a flow follow each other, about.
    stay: usize,
    now_ns: u64,
    mark: u32,
}

impl Traffic {
    /// Settings that are random as well: mostly everything on.
    pub(crate) fn settings(random: &mut Random) -> Settings {
        // Clock steps are whole microseconds: a run is never exactly as old as it may get.
        let hold_ns = random.pick(&[0, 0, 100_500, 199_500]);
        let mut settings = Settings {
            max_frames: random.pick(&[100, 100, 64, 17, 3, 2]),
            ..drive::settings(hold_ns)
        };
        let one = Protocols {
            tcp: true,
            udp: false,
        };
        match random.below(16) {
            0 => settings.verify = false,
            1 => settings.ipv4 = false,
            2 => settings.ipv6 = false,
            3 => settings.upstream = one,
            4 => settings.downstream = one,
            5 => settings.ports_off = vec![false, true],
            _ => (),
        }
        settings
    }

    pub(crate) fn new(mut random: Random, flows: usize) -> Self {
        let mut first = Flow::first(&mut random);
        let mut all = Vec::new();
        for n in 0..flows {
            all.push(first.clone());
            // Mostly near the others: one field of the key is another one.
            first = first.beside(&mut random, n as u16);
            if random.once_in(4) {
                first = Flow::first(&mut random);
            }
        }
        Self::of(random, all, 1_000_000_000)
    }

    /// Traffic of these flows from a time on.
    pub(crate) fn of(mut random: Random, flows: Vec<Flow>, now_ns: u64) -> Self {
        Self {
            change: random.pick(&[4, 10, 40, 200]),
            stay: 5,
            flows,
            random,
            now_ns,
            mark: 0,
        }
    }

    /// More flows than runs can be held, in turn.
    pub(crate) fn crowd(random: Random) -> Self {
        let base = Flow {
            direction: Direction::Downstream,
            port: 1,
            numbering: Numbering::Rising,
            next: Recipe::new(Kind::Tcp, false, None),
        };
        let flows = (0..RUNS as u16 + 20).map(|n| {
            let mut flow = base.clone();
            flow.next.ports.0 += n;
            flow
        });
        Self {
            change: 1_000,
            stay: 2,
            ..Self::of(random, flows.collect(), 1_000_000_000)
        }
    }

    /// The next step; a burst has at most `most` frames.
    pub(crate) fn step(&mut self, most: usize) -> Step {
        if self.random.once_in(12) {
            let why = [Counter::EndBurst, Counter::EndQuiescent];
            return Step::Flush(self.random.pick(&why));
        }
        let passed = self.random.pick(&[0, 1, 1, 30, 70, 150, 1_000]);
        self.now_ns += passed * 1_000;
        let mut at = self.random.below(self.flows.len());
        let direction = self.flows[at].direction;
        let mut frames = Vec::new();
        for _ in 0..1 + self.random.below(most) {
            if self.random.once_in(self.stay) {
                let other = self.random.below(self.flows.len());
                if self.flows[other].direction == direction {
                    at = other;
                }
            }
            frames.push((self.frame(at), FORWARD));
        }
        Step::Burst(Burst {
            now_ns: self.now_ns,
            direction,
            frames,
        })
    }

    fn frame(&mut self, at: usize) -> TestBuf {
        let random = &mut self.random;
        let flow = &mut self.flows[at];
        let kept = flow.next.clone();
        if random.once_in(self.change) {
            change(&mut flow.next, random);
        }
        let sent = flow.next.clone();
        if random.once_in(3) || !matches!(sent.kind, Kind::Tcp | Kind::Udp) {
            // Some changes last, most are of one frame.
            flow.next = sent.clone();
            flow.next.kind = kept.kind;
        } else {
            flow.next = kept;
        }
        flow.next.seq = sent.seq.wrapping_add(sent.len as u32);
        flow.next.fill = flow.next.fill.wrapping_add(1);
        flow.next.id = match flow.numbering {
            Numbering::Fixed => sent.id,
            Numbering::Rising => sent.id.wrapping_add(1),
            Numbering::Random => random.next() as u16,
        };
        let l4 = if random.once_in(8) {
            random.pick(&[L4Verdict::Good, L4Verdict::Bad])
        } else {
            random.pick(&[L4Verdict::Unknown, L4Verdict::Unknown, said(&sent)])
        };
        self.mark += 1;
        let buf = TestBuf::new(flow.port, &sent.build());
        let buf = buf.with_l4_verdict(l4).marked(self.mark);
        if random.once_in(200) {
            buf.segmented()
        } else {
            buf
        }
    }

    /// Other verdicts than to forward here and there.
    pub(crate) fn judge(&mut self, burst: &mut Burst) {
        let generation = 1;
        let slot = SlotIndex::new(0, 1);
        let verdicts = [
            FORWARD,
            Verdict::Forward { port: 8 },
            Verdict::Host { port: 9 },
            Verdict::Drop(Counter::PolicerUpstream),
            Verdict::Punt(Punt::Ppp { slot, generation }),
            Verdict::Fragment { port: 9, mtu: 100 },
            Verdict::HandOver { worker: 1 },
        ];
        let mut verdict = FORWARD;
        for frame in &mut burst.frames {
            if self.random.once_in(4) {
                verdict = self.random.pick(&verdicts);
            }
            frame.1 = verdict;
        }
    }
}

/// What a port would say of the frame if it looks where it can: not inside PPPoE.
fn said(recipe: &Recipe) -> L4Verdict {
    match (recipe.session, recipe.l4_check) {
        (Some(_), _) | (_, Check::Zero) => L4Verdict::Unknown,
        (_, Check::Good) => L4Verdict::Good,
        (_, Check::Bad) => L4Verdict::Bad,
    }
}

impl Flow {
    fn first(random: &mut Random) -> Self {
        let direction = random.pick(&[Direction::Upstream, Direction::Downstream]);
        let session = (direction == Direction::Upstream).then_some(0x1234);
        let kind = random.pick(&[Kind::Tcp, Kind::Tcp, Kind::Udp]);
        let mut next = Recipe::new(kind, random.once_in(2), session);
        next.len = random.pick(&[100, 100, 100, 101, 1, 2, 1_440, 4_056]);
        next.id = random.pick(&[0, 8, 65_530]);
        next.seq = random.pick(&[0, u32::MAX - 5_000]);
        next.df = random.once_in(2);
        next.vlans = random.pick(&[vec![], vec![100], vec![100, 7]]);
        next.options = random.pick(&[vec![], vec![1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 0]]);
        Self {
            direction,
            port: random.pick(&[0, 1]),
            numbering: random.pick(&[
                Numbering::Fixed,
                Numbering::Rising,
                Numbering::Rising,
                Numbering::Random,
            ]),
            next,
        }
    }

    /// The flow that begins with this frame, on this port.
    pub(crate) fn new(random: &mut Random, port: u8, next: Recipe) -> Self {
        Self {
            direction: match next.session {
                Some(_) => Direction::Upstream,
                None => Direction::Downstream,
            },
            port,
            numbering: random.pick(&[Numbering::Fixed, Numbering::Rising, Numbering::Rising]),
            next,
        }
    }

    /// A flow that differs in a field of the key from this one.
    fn beside(&self, random: &mut Random, n: u16) -> Self {
        let mut flow = self.clone();
        let next = &mut flow.next;
        match random.below(11) {
            0 | 1 => next.ports.0 += 1 + n,
            2 => next.ports.1 += 1 + n,
            3 => next.smac = MacAddr([0xaa, 0, 0, 0, 1, n as u8]),
            4 => next.vlans = random.pick(&[vec![], vec![101], vec![100, 8], vec![100]]),
            5 | 9 => next.session = next.session.map(|id| id + 1 + n),
            6 => {
                next.addresses.0 = match next.addresses.0 {
                    IpAddr::V4(_) => Ipv4Addr::new(192, 168, 2, n as u8).into(),
                    IpAddr::V6(_) => Ipv6Addr::new(0xfdaa, 1, 0, 0, 0, 0, 0, n).into(),
                }
            }
            7 => flow.port ^= 1,
            _ => {
                next.kind = match next.kind {
                    Kind::Tcp => Kind::Udp,
                    _ => Kind::Tcp,
                }
            }
        }
        flow
    }
}

/// Changes one field.
fn change(recipe: &mut Recipe, random: &mut Random) {
    let flags = [
        Recipe::PSH,
        Recipe::PSH,
        Recipe::FIN,
        Recipe::SYN,
        Recipe::RST,
        Recipe::URG,
        Recipe::ECE,
        Recipe::CWR,
        Recipe::ACK,
    ];
    match random.below(46) {
        0..5 => recipe.len = random.pick(&[0, 0, 1, 50, 99, 100, 101, 1_600]),
        5 => recipe.seq = recipe.seq.wrapping_add(random.pick(&[1, u32::MAX, 100])),
        6 => recipe.ack += 1,
        7 => recipe.window -= 1,
        8..13 => recipe.flags ^= random.pick(&flags),
        13 => recipe.reserved ^= 1 << random.below(4),
        14 => recipe.urgent ^= 7,
        15 => recipe.options = random.pick(&[vec![], vec![1; 4], vec![0; 40]]),
        16 => recipe.data_offset = random.pick(&[None, Some(4), Some(15)]),
        17 => recipe.ttl = random.pick(&[recipe.ttl ^ 1, recipe.ttl ^ 1, 1]),
        18 => recipe.tos ^= random.pick(&[1, 2, 0x80]),
        19 => recipe.id = recipe.id.wrapping_add(random.pick(&[1, u16::MAX, 7])),
        20 => recipe.df ^= true,
        21 => recipe.mf ^= true,
        22 => recipe.ip_reserved ^= true,
        23 => recipe.frag_off ^= 185,
        24 => recipe.ip_options = 40 - recipe.ip_options,
        25 => recipe.flow_label ^= 5,
        26 => recipe.dstopt = random.pick(&[None, Some([0; 6]), Some([1, 4, 0, 0, 0, 0])]),
        27 => recipe.frag_hdr ^= true,
        28 => recipe.ip_check = random.pick(&[Check::Good, Check::Bad]),
        29 => {
            let zero = recipe.kind == Kind::Udp;
            let last = if zero { Check::Zero } else { Check::Bad };
            recipe.l4_check = random.pick(&[Check::Good, Check::Bad, last]);
        }
        30 => recipe.udp_len_delta = random.pick(&[0, -4, 4]),
        31 => recipe.ip_len_delta = random.pick(&[0, -1, 1]),
        32 => recipe.compressed = true,
        33 => recipe.pppoe_len_delta = random.pick(&[0, -4, 4]),
        34 => (recipe.vertype, recipe.code) = random.pick(&[(0x11, 0), (0x12, 0), (0x11, 9)]),
        35 => recipe.pad = random.pick(&[0, 4]),
        36 => recipe.priority ^= random.pick(&[1, 2, 8]),
        37 => recipe.kind = Kind::Icmp,
        38 => recipe.dmac = random.pick(&[MacAddr([1, 0, 0x5e, 1, 2, 3]), MacAddr([0xaa; 6])]),
        39 => {
            // A source that is not the session's.
            recipe.addresses.0 = match recipe.addresses.0 {
                IpAddr::V4(_) => Ipv4Addr::new(9, 9, 9, 9).into(),
                IpAddr::V6(_) => Ipv6Addr::new(0x2001, 9, 0, 0, 0, 0, 0, 9).into(),
            }
        }
        _ if recipe.session.is_some() => {
            recipe.pppoe_len_delta = 0;
            recipe.kind = random.pick(&[
                Kind::Ppp(0xc021),
                Kind::Ppp(0xc021),
                Kind::Ppp(0x8021),
                Kind::Ppp(0x00fd),
                Kind::PppRaw(vec![]),
                Kind::PppRaw(vec![0]),
                Kind::PppRaw(vec![0, 0x21]),
                Kind::Discovery(0xa7),
            ]);
        }
        _ => recipe.kind = Kind::Icmp,
    }
}
