//! Usual packets go a way of their own; here the same frames go that way, with hints and without, and the general one, and
//! everything that comes of them must be the same: bytes, verdicts, counters, session statistics and mappings.

#![allow(clippy::unwrap_used, reason = "the helpers of tests fail as tests do")]

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};

use bng_fastpath::coalesce::{Coalescer, Protocols, Settings, Sink};
use bng_fastpath::testing::{Spec, TestBuf, World, echo, tcp, udp};
use bng_fastpath::{Direction, Origin, PacketBuf, Verdict};
use bng_shm::{
    Adjacency, Filter, FilterAction, FilterId, FilterRule, Network, NextHopId, Policy, PolicyId,
    Rate, Session, SlotIndex, Vlans,
};
use proptest::prelude::*;

/// A buffer that says once that it is in segments: the way of usual packets asks once and leaves it to the general way,
/// which then finds that it is not.
struct General(TestBuf, Cell<bool>);

impl PacketBuf for General {
    fn data(&self) -> &[u8] {
        self.0.data()
    }
    fn data_mut(&mut self) -> &mut [u8] {
        self.0.data_mut()
    }
    fn port(&self) -> u8 {
        self.0.port()
    }
    fn set_port(&mut self, port: u8) {
        self.0.set_port(port);
    }
    fn trim_front(&mut self, len: usize) {
        self.0.trim_front(len);
    }
    fn prepend(&mut self, len: usize) -> bool {
        self.0.prepend(len)
    }
    fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }
    fn reframe(&mut self, front: isize, len: usize) -> bool {
        self.0.reframe(front, len)
    }
    fn is_contiguous(&self) -> bool {
        self.1.replace(true)
    }
    fn prefetch(&self) {}
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

const POLICED: PolicyId = PolicyId(5);
const ABSENT: PolicyId = PolicyId(9);
const SESSIONS: u32 = 7;

/// A host in the network behind session `n`, if that has one.
fn behind(n: u32) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, n as u8, 9)
}

/// Whose address the subscriber's end of a packet has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Session,
    Network,
    OtherNetwork,
    Nobody,
}

fn slot(n: u32) -> SlotIndex {
    World::slot(n)
}

/// Sessions of every kind: tags, NAT, policies, networks.
fn world() -> (World, Vec<Session>) {
    let mut world = World::new(Spec::default());
    let rule = FilterRule {
        action: FilterAction::Drop,
        protocol: None,
        remote: Some((IpAddr::V4(World::HOST), 32)),
        remote_ports: Some((25, 25)),
        local_ports: None,
    };
    let filter = Filter {
        up: vec![rule],
        down: vec![rule],
        ..Filter::default()
    };
    world.publisher.publish_filters(&[filter]).unwrap();
    let rate = Some(Rate {
        kbps: 8,
        burst_bytes: 400,
    });
    let policy = Policy {
        up: rate,
        down: rate,
        source_check: false,
        filter: Some(FilterId(0)),
        ..Policy::default()
    };
    world
        .publisher
        .write_policy(POLICED, Some(&policy))
        .unwrap();
    let sessions = (0..SESSIONS).map(|n| {
        let mut session = world.session(n);
        match n {
            0 => session.vlans = Vlans::default(),
            1 => session.vlans.c_vlan = None,
            2 => {
                session.nat = None;
                session.framed_ip = Ipv4Addr::new(198, 51, 100, 7);
            }
            3 => session.policy = POLICED,
            4 => session.policy = ABSENT,
            5 => session.framed_ip = Ipv4Addr::UNSPECIFIED,
            _ => session.mtu = 100,
        }
        let session = world.publish(slot(n), session);
        if matches!(n, 2 | 3 | 5 | 6) {
            world.lead_network(
                slot(n),
                &session,
                Network::of(behind(n).into(), 24).unwrap(),
            );
        }
        session
    });
    let sessions = sessions.collect();
    (world, sessions)
}

/// One packet, in words a test can shrink.
#[derive(Debug, Clone)]
struct Spelled {
    way: Way,
    session: u32,
    /// UDP, TCP or ping.
    kind: u8,
    flags: u8,
    /// The last frame has FIN as well.
    ends: bool,
    local_port: u16,
    remote: Ipv4Addr,
    remote_port: u16,
    payload: usize,
    ttl: u8,
    end: End,
    /// Offset and value of a byte to write over.
    edit: Option<(usize, u8)>,
    /// IPv4 header checksum right after that.
    mended: bool,
    padding: usize,
    passed_ms: u64,
}

fn spelled() -> impl Strategy<Value = Spelled> {
    let remotes = prop::sample::select(vec![
        World::HOST,
        World::HOST,
        World::HOST,
        Ipv4Addr::new(1, 2, 3, 4),
        World::GATEWAY,
        Ipv4Addr::new(127, 0, 0, 1),
        Ipv4Addr::new(203, 0, 113, 1),
        Ipv4Addr::new(100, 64, 0, 3),
        behind(6),
    ]);
    let ports = (
        prop::sample::select(vec![1_000u16, 1_001, 2_000]),
        remotes,
        prop::sample::select(vec![443u16, 25]),
    );
    let shape = (
        prop::sample::select(vec![0usize, 1, 12, 30, 80]),
        prop::sample::select(vec![64u8, 64, 64, 2, 1]),
        prop::sample::select(vec![
            End::Session,
            End::Session,
            End::Session,
            End::Network,
            End::OtherNetwork,
            End::Nobody,
        ]),
        prop::option::weighted(0.2, (0usize..70, any::<u8>())),
        any::<bool>(),
        prop::sample::select(vec![0usize, 60, 64]),
        prop::sample::select(vec![0u64, 0, 1, 300, 5_000, 400_000]),
    );
    let way = prop::sample::select(vec![Way::Up, Way::Down]);
    let flags = prop::sample::select(vec![0x10u8, 0x18, 0x02, 0x11, 0x04]);
    let flags = (flags, prop::bool::weighted(0.2));
    (way, 0..SESSIONS, 0u8..3, flags, ports, shape).prop_map(
        |(way, session, kind, (flags, ends), ports, shape)| {
            let (local_port, remote, remote_port) = ports;
            let (payload, ttl, end, edit, mended, padding, passed_ms) = shape;
            Spelled {
                way,
                session,
                kind,
                flags,
                ends,
                local_port,
                remote,
                remote_port,
                payload,
                ttl,
                end,
                edit,
                mended,
                padding,
                passed_ms,
            }
        },
    )
}

impl Spelled {
    /// The `n`th frame of a train of so many; downstream it goes to where the last packet upstream came from.
    fn frame(
        &self,
        world: &World,
        sessions: &[Session],
        outside: (Ipv4Addr, u16),
        (n, count): (usize, usize),
    ) -> TestBuf {
        let session = &sessions[self.session as usize];
        let source = match self.end {
            End::Session => session.framed_ip,
            End::Network => behind(self.session),
            End::OtherNetwork => behind((self.session + 1) % SESSIONS),
            End::Nobody => Ipv4Addr::new(9, 9, 9, 9),
        };
        let (from, to) = match self.way {
            Way::Up => ((source, self.local_port), (self.remote, self.remote_port)),
            Way::Down => {
                let remote = (self.remote, self.remote_port);
                let is_translated = session.nat.is_some() && self.end == End::Session;
                let inside = (source, self.local_port);
                (remote, if is_translated { outside } else { inside })
            }
        };
        let payload = vec![0x5a; self.payload];
        let mut packet = match self.kind {
            0 => udp(from, to, &payload),
            1 => {
                let fin = u8::from(self.ends && n + 1 == count);
                tcp(from, to, self.flags | fin, &payload)
            }
            _ => echo(from.0, to.0, self.way == Way::Up, from.1, &payload),
        };
        packet[8] = self.ttl;
        if self.kind == 1 {
            // Nobody here verifies the checksum.
            let seq = (n * self.payload) as u32;
            packet[24..28].copy_from_slice(&seq.to_be_bytes());
        }
        if self.session % 2 == 1 {
            packet[5] += n as u8;
        }
        let mend = |packet: &mut [u8]| {
            packet[10..12].fill(0);
            let check = bng_wire::checksum::checksum(&packet[..20]);
            packet[10..12].copy_from_slice(&check.to_be_bytes());
        };
        mend(&mut packet);
        let buf = match self.way {
            Way::Up => World::from_subscriber(slot(self.session), session, &packet),
            Way::Down => world.from_core(&packet),
        };
        let mut frame = buf.data().to_vec();
        let l3 = frame.len() - packet.len();
        if let Some((at, value)) = self.edit
            && let Some(byte) = frame.get_mut(at)
        {
            *byte = value;
            if self.mended && frame[l3] == 0x45 {
                mend(&mut frame[l3..]);
            }
        }
        frame.resize(frame.len().max(self.padding), 0);
        TestBuf::new(buf.port(), &frame)
    }
}

/// A world whose bursts are observed before.
struct Hinted {
    world: World,
    coalescer: Coalescer<TestBuf>,
    /// Frames that were said to be like others.
    hints: usize,
}

/// Where frames go that are of no more interest.
struct Away;

impl Sink<TestBuf> for Away {
    fn one(&mut self, _: TestBuf, _: Verdict) {}
    fn run(&mut self, _: &bng_fastpath::coalesce::Run, _: Verdict, frames: &mut Vec<TestBuf>) {
        frames.clear();
    }
}

impl Hinted {
    fn new() -> Self {
        let both = Protocols {
            tcp: true,
            udp: true,
        };
        let settings = Settings {
            upstream: both,
            downstream: both,
            ipv4: true,
            ipv6: true,
            ports_off: Vec::new(),
            hold_ns: 0,
            max_frames: 64,
            verify: false,
        };
        Self {
            world: world().0,
            coalescer: Coalescer::new(&settings).unwrap(),
            hints: 0,
        }
    }

    /// As [`run`].
    fn run(&mut self, way: Way, bufs: &mut [TestBuf]) -> Vec<Verdict> {
        let mut verdicts = vec![Verdict::Host { port: 77 }; bufs.len()];
        let World {
            workers,
            fib,
            now_ms,
            ..
        } = &mut self.world;
        let now_ns = *now_ms * 1_000_000;
        workers[0].poll(now_ns);
        let direction = match way {
            Way::Up => Direction::Upstream,
            Way::Down => Direction::Downstream,
        };
        let hints = self.coalescer.observe(direction, bufs, now_ns);
        let hinted = (0..bufs.len()).filter(|at| hints.like(*at).is_some());
        self.hints += hinted.count();
        let worker = &mut workers[0];
        match way {
            Way::Up => worker.upstream_with(fib, bufs, &mut verdicts, Origin::Port, hints),
            Way::Down => worker.downstream_with(bufs, &mut verdicts, Origin::Port, hints),
        }
        self.coalescer.release(bufs.to_vec(), &verdicts, &mut Away);
        self.coalescer.end_burst(&mut Away);
        verdicts
    }
}

fn run<B: PacketBuf>(world: &mut World, way: Way, bufs: &mut [B]) -> Vec<Verdict> {
    let mut verdicts = vec![Verdict::Host { port: 77 }; bufs.len()];
    let World {
        workers,
        fib,
        now_ms,
        ..
    } = world;
    workers[0].poll(*now_ms * 1_000_000);
    match way {
        Way::Up => workers[0].upstream(fib, bufs, &mut verdicts, Origin::Port),
        Way::Down => workers[0].downstream(bufs, &mut verdicts, Origin::Port),
    }
    verdicts
}

/// Sends each packet `copies` times in one burst, all ways, and compares; returns how many frames were forwarded, and how many
/// were like others.
fn compare(packets: &[Spelled], copies: usize) -> (usize, usize) {
    let (mut usual, sessions) = world();
    let (mut general, _) = world();
    let mut hinted = Hinted::new();
    let mut outside = (Ipv4Addr::new(203, 0, 113, 0), 1_024);
    let mut forwarded = 0;
    for packet in packets {
        usual.now_ms += packet.passed_ms;
        general.now_ms += packet.passed_ms;
        hinted.world.now_ms += packet.passed_ms;
        let frames = (0..copies).map(|n| packet.frame(&usual, &sessions, outside, (n, copies)));
        let mut bufs: Vec<_> = frames.collect();
        let mut with_hints = bufs.clone();
        let others = bufs.iter().cloned();
        let others = others.map(|frame| General(frame, Cell::new(false)));
        let mut others: Vec<_> = others.collect();
        let verdicts = run(&mut usual, packet.way, &mut bufs);
        assert_eq!(
            verdicts,
            run(&mut general, packet.way, &mut others),
            "{packet:?}"
        );
        assert_eq!(
            verdicts,
            hinted.run(packet.way, &mut with_hints),
            "{packet:?}"
        );
        let all = verdicts.iter().zip(&bufs).zip(&others).zip(&with_hints);
        for (((verdict, buf), other), with_hints) in all {
            if let Verdict::Forward { .. } = verdict {
                forwarded += 1;
                assert_eq!(buf.data(), other.data(), "{packet:?}");
                assert_eq!(buf.data(), with_hints.data(), "{packet:?}");
                let sent = buf.data();
                if packet.way == Way::Up && packet.kind < 2 && sent[12..14] == [8, 0] {
                    let source: [u8; 4] = sent[26..30].try_into().unwrap();
                    outside = (source.into(), u16::from_be_bytes([sent[34], sent[35]]));
                }
            }
        }
        for other in [&mut general, &mut hinted.world] {
            assert_eq!(usual.counted(0), other.counted(0), "{packet:?}");
            let mappings = |world: &World| world.workers[0].nat_mappings();
            assert_eq!(mappings(&usual), mappings(other), "{packet:?}");
            for n in 0..SESSIONS {
                let stats = |world: &World| world.publisher.session_stats(slot(n));
                assert_eq!(stats(&usual), stats(other), "{packet:?}");
            }
        }
        let events = usual.events(0);
        assert_eq!(events, general.events(0), "{packet:?}");
        assert_eq!(events, hinted.world.events(0), "{packet:?}");
    }
    (forwarded, hinted.hints)
}

/// A packet of a conversation in which nothing is unusual.
fn packet(way: Way, session: u32, kind: u8) -> Spelled {
    Spelled {
        way,
        session,
        kind,
        flags: 0x10,
        ends: false,
        local_port: 1_000,
        remote: World::HOST,
        remote_port: 443,
        payload: 40,
        ttl: 64,
        end: End::Session,
        edit: None,
        mended: false,
        padding: 60,
        passed_ms: 1,
    }
}

#[test]
fn a_conversation_is_the_same_both_ways() {
    for session in [0, 1, 2, 6] {
        for kind in [0, 1] {
            let both =
                [Way::Up, Way::Down, Way::Up, Way::Down].map(|way| packet(way, session, kind));
            // The first of each burst has none to be like.
            assert_eq!(compare(&both, 3), (12, 8), "session {session}, kind {kind}");
        }
    }
}

#[test]
fn a_conversation_of_a_network_behind_a_subscriber_is_the_same_both_ways() {
    for session in [2, 6] {
        for kind in [0, 1] {
            let both = [Way::Up, Way::Down, Way::Up, Way::Down].map(|way| Spelled {
                end: End::Network,
                ..packet(way, session, kind)
            });
            assert_eq!(compare(&both, 3), (12, 8), "session {session}, kind {kind}");
        }
    }
}

/// A FIN at the end of a train is not taken for one more frame like the others: 300 s later nothing comes back.
#[test]
fn the_end_of_a_conversation_is_seen_all_ways() {
    let (up, down) = (packet(Way::Up, 0, 1), packet(Way::Down, 0, 1));
    let end = Spelled {
        ends: true,
        ..up.clone()
    };
    let late = Spelled {
        passed_ms: 300_000,
        ..down.clone()
    };
    let talk = [up.clone(), down.clone(), up.clone(), late.clone()];
    assert_eq!(compare(&talk, 3), (12, 8));
    let ended = [up, down, end, late];
    // The last frame of the third train is like none.
    assert_eq!(compare(&ended, 3), (9, 7));
}

#[test]
fn equal_paths_are_shared_by_flows_and_a_flow_keeps_its_path() {
    let (mut usual, sessions) = world();
    let (mut general, _) = world();
    let mac = |member: u8| [2, 0xcc, 0, 0, 1, member];
    for world in [&mut usual, &mut general] {
        let publisher = &mut world.publisher;
        for member in [0, 1] {
            let (port, mac) = (2, mac(member));
            let neighbour = Adjacency::Neighbour { port, mac };
            let address = Ipv4Addr::new(192, 0, 2, 8 + member).into();
            let id = NextHopId(4 + u32::from(member));
            publisher.set_next_hop(id, address, neighbour).unwrap();
        }
        let (first, count) = (NextHopId(4), 2);
        let group = Adjacency::Group { first, count };
        let none = Ipv4Addr::UNSPECIFIED.into();
        publisher
            .set_next_hop(World::DEFAULT_HOP, none, group)
            .unwrap();
    }
    let mut taken = [0; 2];
    for flow in 0..60 {
        let from = (sessions[0].framed_ip, 1_000 + flow);
        let packet = udp(from, (World::HOST, 443), &[0; 40]);
        let frame = World::from_subscriber(slot(0), &sessions[0], &packet);
        let mut paths = Vec::new();
        for _ in 0..3 {
            let mut bufs = [frame.clone()];
            let mut others = [General(frame.clone(), Cell::new(false))];
            run(&mut usual, Way::Up, &mut bufs);
            run(&mut general, Way::Up, &mut others);
            paths.extend([bufs[0].data()[..6].to_vec(), others[0].data()[..6].to_vec()]);
        }
        let member = (0..2).find(|member| paths[0] == mac(*member)).unwrap();
        assert!(paths.iter().all(|path| *path == paths[0]), "{paths:?}");
        taken[usize::from(member)] += 1;
    }
    assert!(taken.iter().all(|count| *count > 15), "{taken:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]
    #[test]
    fn whatever_comes_is_the_same_both_ways(
        packets in prop::collection::vec(spelled(), 1..40),
        copies in 1usize..6,
    ) {
        compare(&packets, copies);
    }
}
