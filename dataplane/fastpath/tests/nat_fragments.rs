//! Fragments of sessions behind NAT: both ways, in any order, on any worker.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use bng_fastpath::testing::{
    Spec, TestBuf, World, assert_checksums, echo, ethernet, icmp_error, tcp, udp,
};
use bng_fastpath::{Left, Origin, PacketBuf, ROOM, Verdict, WaitingRoom};
use bng_shm::{Counter, Filter, FilterAction, FilterId, FilterRule, Policy, PolicyId, Session};
use bng_wire::ipv4::{FLAG_MF, OFFSET_MASK};
use bng_wire::l4::tcp_flag::ACK;
use bng_wire::{MacAddr, ethernet, ipv4, pppoe};
use proptest::prelude::*;
use support::edited;

const A: u32 = 0;
const B: u32 = 1;
const HOST: Ipv4Addr = World::HOST;

/// Workers with their waiting rooms, and what comes of everything.
struct Net {
    world: World,
    rooms: Vec<WaitingRoom<TestBuf>>,
    /// To the core, and to each session.
    core: Vec<Vec<u8>>,
    sessions: [Vec<Vec<u8>>; 2],
    drops: Vec<Counter>,
}

impl Net {
    fn new(workers: u8) -> Self {
        let spec = Spec {
            workers,
            icmp_errors_per_second: 10,
            ..Spec::default()
        };
        let world = World::with_sessions(spec, 2);
        Self {
            rooms: (0..workers).map(|_| world.room()).collect(),
            world,
            core: Vec::new(),
            sessions: [Vec::new(), Vec::new()],
            drops: Vec::new(),
        }
    }

    fn session(&self, n: u32) -> Session {
        Session {
            generation: 1,
            ..self.world.session(n)
        }
    }

    /// A packet of a session arrives at a worker.
    fn up(&mut self, worker: u8, n: u32, packet: &[u8]) {
        let buf = World::from_subscriber(World::slot(n), &self.session(n), packet);
        self.take(worker % self.world.spec.workers, buf, Origin::Port);
    }

    /// A packet of the core arrives at a worker.
    fn down(&mut self, worker: u8, packet: &[u8]) {
        let buf = self.world.from_core(packet);
        self.take(worker % self.world.spec.workers, buf, Origin::Port);
    }

    fn take(&mut self, worker: u8, buf: TestBuf, origin: Origin) {
        let port = buf.port();
        let out = if port < self.world.core_port() {
            self.world.upstream(worker, vec![buf], origin)
        } else {
            self.world.downstream(worker, vec![buf], origin)
        };
        for (verdict, buf) in out {
            match verdict {
                Verdict::Forward { port } => self.sent(port, &buf),
                Verdict::Fragment { port, mtu } => {
                    for piece in self.world.fragments(worker, mtu, buf, 99) {
                        self.sent(port, &piece);
                    }
                }
                Verdict::HandOver { worker } => {
                    // Handed on again is only what has turned round.
                    let has_turned = port != buf.port();
                    assert!(origin == Origin::Port || has_turned);
                    self.take(worker, buf, Origin::HandedOver);
                }
                Verdict::Wait(origin) => {
                    let room = &mut self.rooms[usize::from(worker)];
                    if room.enter(buf, origin, self.world.now_ms).is_err() {
                        self.drops.push(Counter::NatFragmentRoom);
                    }
                }
                Verdict::Drop(reason) => self.drops.push(reason),
                Verdict::Punt(_) | Verdict::Host { .. } => panic!("{verdict:?}"),
            }
        }
    }

    fn sent(&mut self, port: u8, frame: &TestBuf) {
        if port >= self.world.core_port() {
            assert_checksums(&frame.data()[14..]);
            return self.core.push(frame.data()[14..].to_vec());
        }
        let link = ethernet::parse(frame.data()).unwrap();
        let ppp = pppoe::parse_session(&frame.data()[link.payload..]).unwrap();
        assert_checksums(ppp.payload);
        let n = usize::from(ppp.session_id) - 1;
        assert_eq!(link.dst, World::client_mac(n as u32));
        self.sessions[n].push(ppp.payload.to_vec());
    }

    /// Time passes, and each worker looks into its room in every millisecond.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            self.world.pass(1, 1);
            for worker in 0..self.world.spec.workers {
                while let Some(left) = self.rooms[usize::from(worker)].next(self.world.now_ms) {
                    match left {
                        Left::Resumed(buf, origin) => self.take(worker, buf, origin),
                        Left::Late(_) => self.drops.push(Counter::NatFragmentNoFirst),
                    }
                }
            }
        }
    }

    fn nothing_waits(&self) -> bool {
        self.rooms.iter().all(WaitingRoom::is_empty)
    }

    /// Opens a UDP mapping; the outside address and port.
    fn open(&mut self, n: u32, port: u16) -> (Ipv4Addr, u16) {
        self.up(
            self.session(n).owner,
            n,
            &udp((World::framed_ip(n), port), (HOST, 53), b""),
        );
        let packet = self.core.pop().unwrap();
        let source = ipv4::parse(&packet).unwrap().src_addr();
        (source, u16::from_be_bytes([packet[20], packet[21]]))
    }
}

fn with_id(packet: Vec<u8>, id: u16) -> Vec<u8> {
    let [high, low] = id.to_be_bytes();
    edited(edited(packet, 4, high), 5, low)
}

/// The packet in fragments of so many bytes of payload, a multiple of eight.
fn split(packet: &[u8], step: usize) -> Vec<Vec<u8>> {
    let payload = &packet[20..];
    let count = payload.len().div_ceil(step);
    let piece = |(at, chunk): (usize, &[u8])| {
        let mut piece = packet[..20].to_vec();
        let more = if at + 1 < count { FLAG_MF } else { 0 };
        let frag = more | (at * step / 8) as u16;
        piece[2..4].copy_from_slice(&((20 + chunk.len()) as u16).to_be_bytes());
        piece[6..8].copy_from_slice(&frag.to_be_bytes());
        piece.extend(chunk);
        let first = piece[0];
        edited(piece, 0, first)
    };
    payload.chunks(step).enumerate().map(piece).collect()
}

/// Puts packets together as a host does; those that are whole, with everything about fragments undone but the identification.
fn reassembled(fragments: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut packets: BTreeMap<Vec<u8>, BTreeMap<u16, &[u8]>> = BTreeMap::new();
    let is_whole = |packet: &&Vec<u8>| packet[6] & 0x3f == 0 && packet[7] == 0;
    let whole: Vec<_> = fragments.iter().filter(is_whole).cloned().collect();
    for fragment in fragments.iter().filter(|packet| !is_whole(packet)) {
        // Identification, protocol and addresses.
        let key = [&fragment[4..6], &fragment[9..10], &fragment[12..20]].concat();
        let frag = u16::from_be_bytes([fragment[6], fragment[7]]);
        let old = packets
            .entry(key)
            .or_default()
            .insert(frag & OFFSET_MASK, fragment);
        assert_eq!(old, None, "two fragments for one place");
    }
    let mut whole = whole;
    for pieces in packets.values() {
        let mut packet = pieces[&0][..20].to_vec();
        for (offset, piece) in pieces {
            assert_eq!(usize::from(*offset) * 8 + 20, packet.len(), "a gap");
            packet.extend(&piece[20..]);
        }
        let (_, last) = pieces.last_key_value().unwrap();
        assert_eq!(last[6] & 0x20, 0, "the end is missing");
        let len = (packet.len() as u16).to_be_bytes();
        packet[2..4].copy_from_slice(&len);
        packet[6..8].fill(0);
        let first = packet[0];
        let packet = edited(packet, 0, first);
        assert_checksums(&packet);
        whole.push(packet);
    }
    whole
}

fn hop(packet: Vec<u8>) -> Vec<u8> {
    let ttl = packet[8] - 1;
    edited(packet, 8, ttl)
}

fn bytes(len: usize, salt: u8) -> Vec<u8> {
    (0..len).map(|at| (at / 7) as u8 ^ salt).collect()
}

#[test]
fn later_fragments_get_the_address_the_hop_and_the_identification_and_nothing_else() {
    let mut net = Net::new(1);
    let outside = net.open(A, 5_000);
    let body = bytes(3_000, 0);
    let packet = with_id(udp((World::framed_ip(A), 5_000), (HOST, 53), &body), 7);
    for piece in split(&packet, 1_400) {
        net.up(0, A, &piece);
    }
    let id = u16::from_be_bytes([net.core[0][4], net.core[0][5]]);
    assert_ne!(id, 7);
    let expect: Vec<_> = split(&with_id(hop(udp(outside, (HOST, 53), &body)), id), 1_400);
    assert_eq!(net.core, expect);
    let stats = net.world.publisher.session_stats(World::slot(A)).unwrap();
    assert_eq!((stats.up_packets, stats.up_bytes), (4, 28 + 3_008 + 60));

    let answer = with_id(udp((HOST, 53), outside, &body), 9);
    for piece in split(&answer, 1_400) {
        net.down(0, &piece);
    }
    let inside = (World::framed_ip(A), 5_000);
    let expect = split(&with_id(hop(udp((HOST, 53), inside, &body)), 9), 1_400);
    assert_eq!(net.sessions[0], expect);
    assert!(net.drops.is_empty() && net.nothing_waits());
}

#[test]
fn a_ping_of_3_000_bytes_goes_out_and_its_answer_comes_back() {
    let mut net = Net::new(2);
    let own = World::framed_ip(B);
    let body = bytes(3_000, 0);
    for piece in split(&with_id(echo(own, HOST, true, 7, &body), 1), 1_472) {
        net.up(0, B, &piece);
    }
    let sent = reassembled(&net.core).remove(0);
    let id = u16::from_be_bytes([sent[24], sent[25]]);
    let address = net.world.block(B).address;
    assert_eq!(sent[20..], echo(address, HOST, true, id, &body)[20..]);
    let mut pieces = split(&with_id(echo(HOST, address, false, id, &body), 3), 1_480);
    pieces.reverse();
    for piece in pieces {
        net.down(0, &piece);
    }
    net.pass(2);
    let got = reassembled(&net.sessions[1]);
    assert_eq!(got, [with_id(hop(echo(HOST, own, false, 7, &body)), 3)]);
}

#[test]
fn a_room_is_bounded_in_number_and_time() {
    for (up, workers) in [(true, 1), (false, 1), (true, 2), (false, 2)] {
        let mut net = Net::new(workers);
        let outside = net.open(A, 5_000);
        for id in 0..ROOM as u16 + 5 {
            let piece = if up {
                split(
                    &with_id(udp((World::framed_ip(A), 5_000), (HOST, 53), &[0; 64]), id),
                    32,
                )
            } else {
                split(&with_id(udp((HOST, 53), outside, &[0; 64]), id), 32)
            };
            match up {
                true => net.up(0, A, &piece[1]),
                false => net.down(0, &piece[1]),
            }
        }
        assert_eq!(net.drops, [Counter::NatFragmentRoom; 5]);
        net.pass(2_000);
        assert_eq!(net.drops.len(), 5, "they wait for two seconds");
        net.pass(1);
        assert!(net.nothing_waits());
        assert_eq!(net.drops[5..], [Counter::NatFragmentNoFirst; ROOM]);
        assert!(net.core.is_empty() && net.sessions[0].is_empty());
    }
}

#[test]
fn a_first_fragment_that_is_two_seconds_old_is_followed_no_more() {
    let mut net = Net::new(1);
    let outside = net.open(A, 5_000);
    let pieces = split(&with_id(udp((HOST, 53), outside, &[0; 300]), 7), 104);
    net.down(0, &pieces[0]);
    net.pass(2_000);
    net.down(0, &pieces[1]);
    assert_eq!(net.sessions[0].len(), 2);
    net.pass(1);
    net.down(0, &pieces[2]);
    assert_eq!(net.sessions[0].len(), 2);
    net.pass(2_001);
    assert_eq!(net.drops, [Counter::NatFragmentNoFirst]);
}

/// A policy whose filter lets UDP port 53 pass and nothing else of TCP and UDP.
fn names_only(net: &mut Net, n: u32) {
    const STRICT: PolicyId = PolicyId(5);
    let accept = FilterRule {
        action: FilterAction::Accept,
        protocol: Some(17),
        remote: None,
        remote_ports: Some((53, 53)),
        local_ports: Some((5_000, 5_000)),
    };
    let filter = Filter {
        up: vec![accept],
        down: vec![accept],
        drop_other_up: true,
        drop_other_down: true,
    };
    net.world.publisher.publish_filters(&[filter]).unwrap();
    let policy = Policy {
        filter: Some(FilterId(0)),
        ..Policy::default()
    };
    net.world
        .publisher
        .write_policy(STRICT, Some(&policy))
        .unwrap();
    net.pass(1);
    let session = Session {
        policy: STRICT,
        ..net.session(n)
    };
    net.world.update(World::slot(n), session);
}

#[test]
fn later_fragments_share_the_lot_of_their_first_one() {
    for workers in [1, 2] {
        let mut net = Net::new(workers);
        let outside = net.open(B, 5_000);
        let closed = net.open(B, 6_000);
        names_only(&mut net, B);
        let own = World::framed_ip(B);
        // The filter sees the ports of the first one.
        for (port, remote, passes) in [(5_000, 53, true), (5_000, 54, false), (6_000, 53, false)] {
            let packet = with_id(udp((own, port), (HOST, remote), &[0; 300]), remote + port);
            for piece in split(&packet, 104) {
                net.up(0, B, &piece);
            }
            assert_eq!(
                net.core.len(),
                if passes { 3 } else { 0 },
                "{port} to {remote}"
            );
            let refused = [
                Counter::FilterUpstream,
                Counter::NatFragmentNoFirst,
                Counter::NatFragmentNoFirst,
            ];
            assert_eq!(net.drops, if passes { &[][..] } else { &refused });
            net.drops.clear();
            net.core.clear();
        }
        for (remote, to, reason) in [
            (53, outside, None),
            (54, outside, Some(Counter::FilterDownstream)),
            (53, closed, Some(Counter::FilterDownstream)),
            (53, (outside.0, 65_000), Some(Counter::NatNoMapping)),
        ] {
            let packet = with_id(udp((HOST, remote), to, &[0; 300]), remote + to.1);
            for piece in split(&packet, 104) {
                net.down(0, &piece);
            }
            let passes = reason.is_none();
            assert_eq!(net.sessions[1].len(), if passes { 3 } else { 0 });
            let refused = reason.map(|reason| {
                [
                    reason,
                    Counter::NatFragmentNoFirst,
                    Counter::NatFragmentNoFirst,
                ]
            });
            assert_eq!(net.drops, refused.as_ref().map_or(&[][..], |all| &all[..]));
            net.drops.clear();
            net.sessions[1].clear();
        }
        assert!(net.nothing_waits(), "what is refused does not wait");
    }
}

#[test]
fn nothing_lies_over_a_tcp_header_and_a_first_fragment_holds_one() {
    let mut net = Net::new(1);
    let own = (World::framed_ip(A), 5_000);
    let packet = with_id(tcp(own, (HOST, 80), ACK, &[0; 100]), 7);
    // The first one must hold the header.
    for step in [8, 16] {
        net.up(0, A, &split(&packet, step)[0]);
    }
    assert_eq!(net.drops, [Counter::L4Truncated; 2]);
    net.drops.clear();
    net.up(0, A, &split(&packet, 40)[0]);
    let outside = {
        let sent = &net.core[0];
        (
            ipv4::parse(sent).unwrap().src_addr(),
            u16::from_be_bytes([sent[20], sent[21]]),
        )
    };
    let answer = with_id(tcp((HOST, 80), outside, ACK, &[0; 100]), 7);
    net.down(0, &split(&answer, 40)[0]);
    for step in [8, 16] {
        net.up(0, A, &split(&packet, step)[1]);
        net.down(0, &split(&answer, step)[1]);
    }
    assert_eq!(net.drops, [Counter::FragmentOverlap; 4]);
    net.up(0, A, &split(&packet, 24)[1]);
    net.down(0, &split(&answer, 24)[1]);
    assert_eq!((net.core.len(), net.sessions[0].len()), (2, 2));
}

#[test]
fn a_packet_with_first_fragments_to_two_subscribers_is_nobodys() {
    for workers in [1, 2] {
        let mut net = Net::new(workers);
        let (a, b) = (net.open(A, 5_000), net.open(B, 5_000));
        assert_eq!(a.0, b.0);
        let to = |to| split(&with_id(udp((HOST, 53), to, &[0; 300]), 7), 104);
        net.down(0, &to(a)[0]);
        net.down(1, &to(b)[0]);
        for at in [1, 2] {
            net.down(at, &to(a)[usize::from(at)]);
        }
        assert_eq!(net.drops, [Counter::NatFragmentNoFirst; 2]);
        assert_eq!(net.sessions.each_ref().map(Vec::len), [1, 1]);
        assert!(net.nothing_waits());
    }
}

#[test]
fn fragments_of_a_session_that_has_ended_reach_nobody() {
    let mut net = Net::new(1);
    let outside = net.open(A, 5_000);
    let up = split(
        &with_id(udp((World::framed_ip(A), 5_000), (HOST, 53), &[0; 300]), 7),
        104,
    );
    let down = split(&with_id(udp((HOST, 53), outside, &[0; 300]), 7), 104);
    net.up(0, A, &up[0]);
    net.down(0, &down[0]);
    net.world.close(World::slot(A));
    net.world.open(A);
    net.up(0, A, &up[1]);
    net.down(0, &down[1]);
    net.pass(2_001);
    assert_eq!((net.core.len(), net.sessions[0].len()), (1, 1));
    assert_eq!(
        net.drops,
        [Counter::NatFragmentNoFirst, Counter::NatNoMapping]
    );
}

#[test]
fn an_icmp_error_in_fragments_is_dropped_by_name() {
    let mut net = Net::new(1);
    let outside = net.open(A, 5_000);
    let quoted = udp(outside, (HOST, 53), &[0; 500]);
    let error = with_id(icmp_error(HOST, outside.0, 3, &quoted), 7);
    net.down(0, &split(&error, 104)[0]);
    assert_eq!(net.drops, [Counter::FragmentUnsupported]);
    // One about a first fragment is translated.
    let packet = with_id(udp((World::framed_ip(A), 5_000), (HOST, 53), &[0; 500]), 8);
    net.up(0, A, &split(&packet, 104)[0]);
    let sent = net.core.pop().unwrap();
    net.down(0, &icmp_error(HOST, outside.0, 11, &sent));
    let got = net.sessions[0].pop().unwrap();
    assert_eq!(got[28 + 12..28 + 16], World::framed_ip(A).octets());
    assert_eq!(got[28 + 20..28 + 22], 5_000u16.to_be_bytes());
}

#[test]
fn fragments_go_through_the_hairpin() {
    for workers in [1, 2] {
        let mut net = Net::new(workers);
        let b = net.open(B, 5_000);
        let body = bytes(2_000, 0);
        let mut pieces = split(
            &with_id(udp((World::framed_ip(A), 4_000), b, &body), 7),
            720,
        );
        pieces.rotate_left(1);
        for piece in pieces {
            net.up(1, A, &piece);
        }
        net.pass(3);
        let got = reassembled(&net.sessions[1]).remove(0);
        let a = (b.0, u16::from_be_bytes([got[20], got[21]]));
        let id = u16::from_be_bytes([got[4], got[5]]);
        let expect = hop(udp(a, (World::framed_ip(B), 5_000), &body));
        assert_eq!(got, with_id(expect, id));
        assert!(net.drops.is_empty() && net.nothing_waits());
    }
}

#[test]
fn what_waits_is_let_go_of_at_once() {
    let mut net = Net::new(1);
    let outside = net.open(A, 5_000);
    for id in 0..9 {
        net.down(
            0,
            &split(&with_id(udp((HOST, 53), outside, &[0; 300]), id), 104)[1],
        );
    }
    assert_eq!(net.rooms[0].leave().count(), 9);
    assert!(net.nothing_waits());
}

#[test]
fn a_room_takes_no_frame_it_cannot_name() {
    let mut net = Net::new(1);
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    for (port, kind) in [(0, 0x0800), (2, 0x0800), (9, 0x0800), (0, 0x8864)] {
        let buf = TestBuf::new(port, &ethernet(mac, mac, kind, &[0; 9]));
        assert!(net.rooms[0].enter(buf, Origin::Port, 1).is_err());
    }
}

/// One packet in fragments, of a session or to it.
#[derive(Debug, Clone)]
struct Sent {
    n: u32,
    is_ping: bool,
    len: usize,
    step: usize,
}

fn any_sent() -> impl Strategy<Value = Sent> {
    (0u32..2, any::<bool>(), 64usize..4_000, 3usize..150).prop_map(|(n, is_ping, len, step)| Sent {
        n,
        is_ping,
        len,
        step: step * 8,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// All with one identification and to one host, those of a session by another protocol each.
    #[test]
    fn fragments_of_two_subscribers_in_any_order_upstream_are_their_packets_again(
        sizes in prop::collection::vec((64usize..4_000, 3usize..150), 4),
        workers in 1u8..=2,
        order in Just(()).prop_perturb(|(), mut rng| rng.random::<u64>()),
    ) {
        let mut net = Net::new(workers);
        let mut pieces = Vec::new();
        let mut bodies = Vec::new();
        for (at, (len, step)) in sizes.into_iter().enumerate() {
            let (n, is_ping) = (at as u32 / 2, at % 2 == 1);
            let own = World::framed_ip(n);
            let body = bytes(len, at as u8);
            let packet = if is_ping { echo(own, HOST, true, 9, &body) } else { udp((own, 5_000), (HOST, 53), &body) };
            pieces.extend(split(&with_id(packet, 7), step * 8).into_iter().map(|piece| (n, piece)));
            bodies.push((net.world.block(n), is_ping, body));
        }
        shuffle(&mut pieces, order);
        // Never more at once than the room takes.
        prop_assume!(pieces.len() <= ROOM);
        for (at, (n, piece)) in pieces.iter().enumerate() {
            net.up((order >> (at % 60)) as u8, *n, piece);
        }
        net.pass(5);
        prop_assert!(net.nothing_waits());
        prop_assert_eq!(&net.drops, &[]);
        let whole = reassembled(&net.core);
        prop_assert_eq!(whole.len(), bodies.len());
        for (block, is_ping, body) in bodies {
            let is_it = |packet: &&Vec<u8>| packet[28..] == body && (packet[9] == 1) == is_ping;
            let found: Vec<_> = whole.iter().filter(is_it).collect();
            prop_assert_eq!(found.len(), 1);
            let at = if is_ping { 24 } else { 20 };
            let port = u16::from_be_bytes([found[0][at], found[0][at + 1]]);
            prop_assert_eq!(&found[0][12..16], &block.address.octets()[..]);
            prop_assert!((block.first_port..block.first_port + block.size).contains(&port));
        }
    }

    /// From several hosts to two subscribers behind one address, with one identification, in any order, to sessions with a
    /// smaller MTU.
    #[test]
    fn fragments_to_two_subscribers_in_any_order_are_their_packets_again(
        sent in prop::collection::vec(any_sent(), 1..5),
        workers in 1u8..=2,
        mtu in prop::sample::select(vec![300u16, 1_000, 1_492]),
        order in Just(()).prop_perturb(|(), mut rng| rng.random::<u64>()),
    ) {
        let mut net = Net::new(workers);
        let mut outside = Vec::new();
        for n in [A, B] {
            let session = Session { mtu, ..net.session(n) };
            net.world.update(World::slot(n), session);
            let port = net.open(n, 5_000);
            net.up(0, n, &echo(World::framed_ip(n), HOST, true, 9, b""));
            let id = net.core.pop().unwrap();
            outside.push((port, u16::from_be_bytes([id[24], id[25]])));
        }
        let mut pieces = Vec::new();
        let mut expect = [Vec::new(), Vec::new()];
        for (at, Sent { n, is_ping, len, step }) in sent.into_iter().enumerate() {
            let host = Ipv4Addr::new(8, 8, 8, at as u8);
            let body = bytes(len, at as u8);
            let ((address, port), id) = outside[n as usize];
            let own = World::framed_ip(n);
            let (packet, inside) = if is_ping {
                (echo(host, address, false, id, &body), echo(host, own, false, 9, &body))
            } else {
                (udp((host, 53), (address, port), &body), udp((host, 53), (own, 5_000), &body))
            };
            pieces.extend(split(&with_id(packet, 7), step));
            expect[n as usize].push(with_id(hop(inside), 7));
        }
        shuffle(&mut pieces, order);
        prop_assume!(pieces.len() <= ROOM);
        for (at, piece) in pieces.iter().enumerate() {
            net.down((order >> (at % 60)) as u8, piece);
        }
        net.pass(5);
        prop_assert!(net.nothing_waits());
        prop_assert_eq!(&net.drops, &[]);
        for (got, mut expect) in net.sessions.iter().zip(expect) {
            for piece in got {
                prop_assert!(piece.len() <= usize::from(mtu));
            }
            let mut got = reassembled(got);
            got.sort();
            expect.sort();
            prop_assert_eq!(got, expect);
        }
    }
}

/// Any order, by a number.
fn shuffle<T>(items: &mut [T], mut order: u64) {
    for at in (1..items.len()).rev() {
        order = order
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        items.swap(at, (order >> 33) as usize % (at + 1));
    }
}
