//! NAT44 behaviour: mappings, ports, timers, exhaustion, restart; and random traffic against a plain model.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;

use bng_fastpath::testing::{Spec, World, assert_checksums, echo, tcp, udp};
use bng_fastpath::{Origin, PacketBuf, Verdict};
use bng_shm::{Counter, Event, PortBlock, Session, SlotIndex, TICK_MS};
use bng_wire::l4::tcp_flag::{ACK, FIN, RST, SYN};
use proptest::prelude::*;

const SLOT: SlotIndex = World::slot(0);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Proto {
    Tcp(u8),
    Udp,
    Ping,
}

/// A packet of this protocol between an inside (or outside) endpoint and a server.
fn packet(proto: Proto, near: (Ipv4Addr, u16), up: bool) -> Vec<u8> {
    let server = (World::HOST, 443);
    let (src, dst) = if up { (near, server) } else { (server, near) };
    match proto {
        Proto::Tcp(flags) => tcp(src, dst, flags, b"data"),
        Proto::Udp => udp(src, dst, b"data"),
        Proto::Ping => echo(src.0, dst.0, up, near.1, b"data"),
    }
}

/// Sends from the subscriber; the public address and port it leaves with.
fn send(world: &mut World, n: u32, proto: Proto, port: u16) -> Result<(Ipv4Addr, u16), Counter> {
    let session = world.session(n);
    let packet = packet(proto, (session.framed_ip, port), true);
    let buf = World::from_subscriber(World::slot(n), &session, &packet);
    match world
        .upstream(session.owner, vec![buf], Origin::Port)
        .remove(0)
    {
        (Verdict::Forward { .. }, out) => {
            let sent = &out.data()[14..];
            assert_checksums(sent);
            let at = if proto == Proto::Ping { 24 } else { 20 };
            let source = bng_wire::ipv4::parse(sent).unwrap().src_addr();
            Ok((source, u16::from_be_bytes([sent[at], sent[at + 1]])))
        }
        (Verdict::Drop(reason), _) => Err(reason),
        other => panic!("{other:?}"),
    }
}

/// Sends from the server; the session id and the address and port the packet arrives with.
fn answer(
    world: &mut World,
    worker: u8,
    proto: Proto,
    to: (Ipv4Addr, u16),
) -> Result<(u16, Ipv4Addr, u16), Counter> {
    let buf = world.from_core(&packet(proto, to, false));
    match world.downstream(worker, vec![buf], Origin::Port).remove(0) {
        (Verdict::Forward { .. }, out) => {
            let frame = bng_wire::ethernet::parse(out.data()).unwrap();
            let ppp = bng_wire::pppoe::parse_session(&out.data()[frame.payload..]).unwrap();
            assert_checksums(ppp.payload);
            let at = if proto == Proto::Ping { 24 } else { 22 };
            let port = u16::from_be_bytes([ppp.payload[at], ppp.payload[at + 1]]);
            let dst = bng_wire::ipv4::parse(ppp.payload).unwrap().dst_addr();
            Ok((ppp.session_id, dst, port))
        }
        (Verdict::Drop(reason), _) => Err(reason),
        other => panic!("{other:?}"),
    }
}

const ESTABLISHED: Proto = Proto::Tcp(ACK);
const OPENING: Proto = Proto::Tcp(SYN);

#[test]
fn a_mapping_does_not_depend_on_the_destination_and_protocols_are_apart() {
    let mut world = World::with_sessions(Spec::default(), 2);
    let first = send(&mut world, 0, Proto::Udp, 5_000).unwrap();
    // Another destination, the same inside port: the same outside port (RFC 4787 REQ-1).
    let session = world.session(0);
    let other = udp(
        (session.framed_ip, 5_000),
        (Ipv4Addr::new(1, 1, 1, 1), 9),
        b"",
    );
    let buf = World::from_subscriber(SLOT, &session, &other);
    let (_, out) = world.upstream(0, vec![buf], Origin::Port).remove(0);
    assert_eq!(out.data()[34..36], first.1.to_be_bytes());
    assert_eq!(world.workers[0].nat_mappings(), 1);
    send(&mut world, 0, OPENING, 5_000).unwrap();
    send(&mut world, 0, Proto::Ping, 5_000).unwrap();
    send(&mut world, 1, Proto::Udp, 5_000).unwrap();
    assert_eq!(world.workers[0].nat_mappings(), 4);
    assert!(world.counted(0).contains(&(Counter::NatMappingCreated, 4)));
}

#[test]
fn ports_are_spread_unique_inside_the_block_and_udp_keeps_parity() {
    let mut world = World::with_sessions(
        Spec {
            block_size: 512,
            ..Spec::default()
        },
        1,
    );
    let block = world.block(0);
    let mut ports = Vec::new();
    for inside in 10_000..10_100 {
        let (address, port) = send(&mut world, 0, Proto::Udp, inside).unwrap();
        assert_eq!(address, block.address);
        assert!((block.first_port..block.first_port + 512).contains(&port));
        assert_eq!(port & 1, inside & 1, "parity (RFC 4787 REQ-4)");
        ports.push(port);
    }
    assert_eq!(ports.iter().collect::<HashSet<_>>().len(), 100);
    let ascending = ports.windows(2).filter(|pair| pair[0] < pair[1]).count();
    assert!(
        (25..75).contains(&ascending),
        "not in sequence (RFC 6056): {ascending}"
    );
}

#[test]
fn a_full_block_fails_new_flows_of_that_subscriber_only() {
    let mut world = World::with_sessions(Spec::default(), 2);
    let mut outside = HashMap::new();
    // 64 UDP ports, all of one parity: the other half of the block is used as well.
    for n in 0..64 {
        let port = 10_000 + 2 * n;
        outside.insert(port, send(&mut world, 0, Proto::Udp, port).unwrap());
    }
    assert_eq!(outside.values().collect::<HashSet<_>>().len(), 64);
    for _ in 0..5 {
        assert_eq!(
            send(&mut world, 0, Proto::Udp, 9),
            Err(Counter::NatBlockExhausted)
        );
    }
    let generation = 1;
    let slot = SLOT;
    assert_eq!(
        world.events(0),
        [
            Event::BlockLow { slot, generation },
            Event::BlockExhausted { slot, generation }
        ]
    );
    assert!(world.counted(0).contains(&(Counter::NatBlockExhausted, 5)));
    for (port, expect) in &outside {
        assert_eq!(
            send(&mut world, 0, Proto::Udp, *port),
            Ok(*expect),
            "existing flows go on"
        );
    }
    assert!(
        send(&mut world, 0, OPENING, 9).is_ok(),
        "TCP has its own ports"
    );
    assert!(
        send(&mut world, 1, Proto::Udp, 9).is_ok(),
        "so has the neighbour"
    );
    // A second later one search more, and one event more.
    world.pass(1_000, 100);
    assert_eq!(
        send(&mut world, 0, Proto::Udp, 9),
        Err(Counter::NatBlockExhausted)
    );
    assert_eq!(world.events(0).len(), 1);
    // When mappings have aged there is room again.
    world.pass(400_000, 1_000);
    assert!(send(&mut world, 0, Proto::Udp, 9).is_ok());
}

#[test]
fn the_next_session_in_a_slot_has_the_whole_block_at_once() {
    let mut world = World::with_sessions(Spec::default(), 1);
    for port in 0..64 {
        send(&mut world, 0, OPENING, port).unwrap();
    }
    assert_eq!(
        send(&mut world, 0, OPENING, 64),
        Err(Counter::NatBlockExhausted)
    );
    world.close(SLOT);
    world.open(0);
    for port in 100..164 {
        send(&mut world, 0, OPENING, port).unwrap();
    }
    assert_eq!(
        send(&mut world, 0, OPENING, 64),
        Err(Counter::NatBlockExhausted)
    );
    let events = world.events(0);
    let exhausted = events
        .iter()
        .filter(|event| matches!(event, Event::BlockExhausted { .. }));
    assert_eq!(exhausted.count(), 2, "each session is told of once");
}

#[test]
fn a_further_block_is_used_at_once_both_ways_over_restarts_and_until_the_session_ends() {
    let mut world = World::with_sessions(Spec::default(), 2);
    let mut outside = HashMap::new();
    for port in 0..64 {
        outside.insert(port, send(&mut world, 0, OPENING, port).unwrap());
    }
    assert_eq!(
        send(&mut world, 0, OPENING, 64),
        Err(Counter::NatBlockExhausted)
    );
    // Not next to the first one: another subscriber has that.
    let added = world.block(7);
    let generation = world
        .publisher
        .reader()
        .session(SLOT)
        .unwrap()
        .unwrap()
        .generation;
    let owner = Some(bng_shm::BlockOwner {
        slot: SLOT,
        generation,
    });
    world.publisher.set_block_owner(&added, owner).unwrap();
    let blocks = bng_shm::FurtherBlocks::new([added.first_port]);
    world.publisher.set_further_blocks(SLOT, blocks).unwrap();
    // The search that failed is not made again in the same second.
    world.pass(1_000, 500);
    world.events(0);
    for port in 64..128 {
        let (address, port_outside) = send(&mut world, 0, OPENING, port).unwrap();
        assert_eq!(address, added.address, "one address (RFC 4787 REQ-2)");
        assert!((added.first_port..added.first_port + 64).contains(&port_outside));
        outside.insert(port, (address, port_outside));
    }
    let (slot, generation) = (SLOT, 1);
    assert_eq!(
        world.events(0),
        [Event::BlockLow { slot, generation }],
        "so many blocks run short, too"
    );
    assert_eq!(
        send(&mut world, 0, OPENING, 128),
        Err(Counter::NatBlockExhausted)
    );
    assert!(
        send(&mut world, 1, OPENING, 1).is_ok(),
        "nobody else feels it"
    );
    let check = |world: &mut World| {
        for (port, at) in &outside {
            // Twice: the second packet takes the usual way.
            for _ in 0..2 {
                let arrived = answer(world, 0, Proto::Tcp(SYN | ACK), *at).unwrap();
                assert_eq!(arrived, (SLOT.session_id(), World::framed_ip(0), *port));
                assert_eq!(send(world, 0, ESTABLISHED, *port), Ok(*at));
            }
        }
    };
    check(&mut world);
    world = world.restart();
    assert_eq!(world.workers[0].nat_mappings(), 129);
    check(&mut world);
    world.close(SLOT);
    for at in outside.values() {
        assert!(answer(&mut world, 0, ESTABLISHED, *at).is_err());
    }
    // The next session in the slot has its own block alone.
    world.open(0);
    assert_eq!(world.publisher.reader().further_blocks(SLOT).count(), 0);
    for port in 0..64 {
        let (_, port) = send(&mut world, 0, OPENING, port).unwrap();
        assert!(!(added.first_port..added.first_port + 64).contains(&port));
    }
}

#[test]
fn limits_stop_new_flows_of_that_subscriber_and_let_others_go_on() {
    let spec = Spec {
        nat_limits: bng_fastpath::NatLimits {
            mappings: 20,
            new_per_second: 8,
        },
        ..Spec::default()
    };
    let mut world = World::with_sessions(spec, 2);
    let mut made = Vec::new();
    for port in 0..10 {
        made.push(send(&mut world, 0, Proto::Udp, port));
    }
    assert_eq!(made.iter().filter(|sent| sent.is_ok()).count(), 8);
    assert_eq!(made[8..], [Err(Counter::NatLimitRate); 2]);
    // What is there goes on, and so does everybody else.
    assert_eq!(send(&mut world, 0, Proto::Udp, 0), made[0]);
    assert!(send(&mut world, 1, Proto::Udp, 0).is_ok());
    world.pass(1_000, 100);
    for port in 10..18 {
        send(&mut world, 0, Proto::Udp, port).unwrap();
    }
    world.pass(1_000, 100);
    for (port, proto) in [(1, Proto::Ping), (2, OPENING), (3, OPENING), (4, OPENING)] {
        send(&mut world, 0, proto, port).unwrap();
    }
    assert_eq!(
        send(&mut world, 0, Proto::Udp, 99),
        Err(Counter::NatLimitMappings)
    );
    assert_eq!(send(&mut world, 0, Proto::Udp, 0), made[0]);
    assert!(world.counted(0).contains(&(Counter::NatLimitRate, 2)));
    assert!(world.counted(0).contains(&(Counter::NatLimitMappings, 1)));
    // A restart counts what it finds.
    world = world.restart();
    assert_eq!(
        send(&mut world, 0, Proto::Udp, 99),
        Err(Counter::NatLimitMappings)
    );
    // What ages makes room.
    world.pass(400_000, 1_000);
    assert!(send(&mut world, 0, Proto::Udp, 99).is_ok());
}

#[test]
fn a_full_table_is_named() {
    let spec = Spec {
        nat_mappings: 1,
        block_size: 512,
        ..Spec::default()
    };
    let mut world = World::with_sessions(spec, 1);
    let mut results: Vec<_> = (0..33)
        .map(|n| send(&mut world, 0, Proto::Udp, n))
        .collect();
    assert_eq!(results.pop(), Some(Err(Counter::NatTableFull)));
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(world.workers[0].nat_mappings(), 32);
}

/// Seconds after which the answer to `proto` no longer arrives, when nothing is sent any more.
fn lifetime(prepare: impl Fn(&mut World), proto: Proto, port: u16) -> u64 {
    let mut world = World::with_sessions(Spec::default(), 1);
    prepare(&mut world);
    let outside = send(&mut world, 0, proto, port).unwrap();
    for second in 1..10_000 {
        world.pass(1_000, 500);
        if answer(&mut world, 0, proto, outside).is_err() {
            return second;
        }
    }
    panic!("never ends");
}

#[test]
fn each_timer_ends_its_mapping_and_inbound_packets_do_not_prolong_it() {
    let nothing = |_: &mut World| {};
    // The timer and the tick of four seconds in which it ends.
    assert_eq!(lifetime(nothing, Proto::Udp, 1), 304);
    assert_eq!(lifetime(nothing, Proto::Ping, 1), 64);
    // The answers make it established.
    assert_eq!(lifetime(nothing, OPENING, 1), 7_444);
    assert_eq!(lifetime(nothing, Proto::Tcp(FIN | ACK), 1), 244);
    assert_eq!(lifetime(nothing, Proto::Tcp(RST), 1), 244);
    let closed = |world: &mut World| {
        let outside = send(world, 0, OPENING, 1).unwrap();
        answer(world, 0, Proto::Tcp(SYN | ACK), outside).unwrap();
        answer(world, 0, Proto::Tcp(FIN | ACK), outside).unwrap();
    };
    assert_eq!(
        lifetime(closed, ESTABLISHED, 1),
        244,
        "the last ACK does not open it again"
    );
    assert_eq!(lifetime(closed, OPENING, 1), 7_444, "a new SYN does");
}

#[test]
fn a_half_open_connection_is_transitory() {
    let mut world = World::with_sessions(Spec::default(), 1);
    let outside = send(&mut world, 0, OPENING, 1).unwrap();
    world.pass(244_000, 1_000);
    assert_eq!(
        answer(&mut world, 0, ESTABLISHED, outside),
        Err(Counter::NatNoMapping)
    );
}

#[test]
fn outbound_packets_keep_a_mapping_alive_and_the_sweep_takes_what_is_old() {
    let mut world = World::with_sessions(Spec::default(), 1);
    let kept = send(&mut world, 0, Proto::Udp, 1).unwrap();
    send(&mut world, 0, Proto::Udp, 2).unwrap();
    for _ in 0..10 {
        world.pass(200_000, 1_000);
        assert_eq!(send(&mut world, 0, Proto::Udp, 1), Ok(kept));
    }
    assert_eq!(world.workers[0].nat_mappings(), 1);
    assert!(world.counted(0).contains(&(Counter::NatMappingExpired, 1)));
    assert_eq!(world.publisher.worker_status(0).unwrap().nat_mappings, 1);
    world.pass(400_000, 1_000);
    assert_eq!(world.workers[0].nat_mappings(), 0);
    assert_eq!(
        answer(&mut world, 0, Proto::Udp, kept),
        Err(Counter::NatNoMapping)
    );
}

#[test]
fn an_icmp_error_does_not_keep_a_mapping_alive() {
    let mut world = World::with_sessions(Spec::default(), 1);
    let outside = send(&mut world, 0, Proto::Udp, 1).unwrap();
    let session = world.session(0);
    let quoted = packet(Proto::Udp, (session.framed_ip, 1), false);
    let error = bng_fastpath::testing::icmp_error(session.framed_ip, World::HOST, 3, &quoted);
    let buf = World::from_subscriber(SLOT, &session, &error);
    for _ in 0..3 {
        world.pass(100_000, 1_000);
        let verdict = world
            .upstream(0, vec![buf.clone()], Origin::Port)
            .remove(0)
            .0;
        assert_eq!(verdict, Verdict::Forward { port: 2 });
    }
    world.pass(4_000, 1_000);
    assert_eq!(
        answer(&mut world, 0, Proto::Udp, outside),
        Err(Counter::NatNoMapping)
    );
}

#[test]
fn the_end_of_a_session_ends_its_mappings_and_spares_the_next_owner_of_the_block() {
    let mut world = World::with_sessions(Spec::default(), 1);
    let old: Vec<_> = (0..20)
        .map(|port| send(&mut world, 0, Proto::Udp, port).unwrap())
        .collect();
    world.close(SLOT);
    // Another session gets the block; the whole block is free for it at once.
    let slot = World::slot(1);
    let session = Session {
        nat: Some(world.block(0)),
        ..world.session(1)
    };
    let session = world.publish(slot, session);
    let mut new = HashMap::new();
    for port in 0..64 {
        let buf = World::from_subscriber(
            slot,
            &session,
            &packet(Proto::Udp, (session.framed_ip, port), true),
        );
        let (verdict, out) = world.upstream(0, vec![buf], Origin::Port).remove(0);
        assert_eq!(verdict, Verdict::Forward { port: 2 });
        new.insert(u16::from_be_bytes([out.data()[34], out.data()[35]]), port);
    }
    assert_eq!(new.len(), 64);
    for (address, port) in old {
        let expect = (slot.session_id(), session.framed_ip, new[&port]);
        assert_eq!(
            answer(&mut world, 0, Proto::Udp, (address, port)),
            Ok(expect)
        );
    }
    // The sweep lets go of the old session's mappings, and of nothing else.
    assert_eq!(world.workers[0].nat_mappings(), 84);
    world.pass(100_000, 1_000);
    assert_eq!(world.workers[0].nat_mappings(), 64);
    for port in new.keys() {
        assert!(
            answer(
                &mut world,
                0,
                Proto::Udp,
                (session.nat.unwrap().address, *port)
            )
            .is_ok()
        );
    }
}

#[test]
fn a_session_moved_to_another_block_gets_new_ports_there() {
    let mut world = World::with_sessions(Spec::default(), 1);
    let old = send(&mut world, 0, Proto::Udp, 1).unwrap();
    let block = PortBlock {
        address_index: 2,
        address: Ipv4Addr::new(203, 0, 113, 2),
        ..world.block(5)
    };
    let session = Session {
        generation: 1,
        nat: Some(block),
        ..world.session(0)
    };
    world.update(SLOT, session);
    let new = send(&mut world, 0, Proto::Udp, 1).unwrap();
    assert_eq!(new.0, block.address);
    assert!((block.first_port..block.first_port + 64).contains(&new.1));
    assert_eq!(
        answer(&mut world, 0, Proto::Udp, old),
        Err(Counter::NatNoMapping)
    );
    assert!(answer(&mut world, 0, Proto::Udp, new).is_ok());
}

#[test]
fn mappings_survive_a_restart_of_the_dataplane() {
    let mut world = World::with_sessions(
        Spec {
            workers: 2,
            ..Spec::default()
        },
        4,
    );
    let mut flows = Vec::new();
    for n in 0..4 {
        for proto in [Proto::Udp, OPENING, Proto::Ping] {
            for port in [7, 8] {
                flows.push((n, proto, port, send(&mut world, n, proto, port).unwrap()));
            }
        }
    }
    world.pass(100_000, 1_000);
    // Session 3 ends; pings are too old by now.
    world.close(World::slot(3));
    let mut world = world.restart();
    let left: Vec<_> = world
        .workers
        .iter()
        .map(|worker| worker.nat_mappings())
        .collect();
    assert_eq!(left, [8, 4]);
    for (n, proto, port, outside) in flows {
        if n == 3 || proto == Proto::Ping {
            continue;
        }
        let worker = (n % 2) as u8;
        let expect = (World::slot(n).session_id(), World::framed_ip(n), port);
        assert_eq!(answer(&mut world, worker, proto, outside), Ok(expect));
        assert_eq!(
            send(&mut world, n, proto, port),
            Ok(outside),
            "the same port as before"
        );
    }
}

/// What the model keeps of a mapping.
#[derive(Debug, Clone, Copy)]
struct Entry {
    outside: (Ipv4Addr, u16),
    last_s: u64,
    inbound: bool,
    closing: bool,
}

impl Entry {
    fn limit(&self, proto: Proto) -> u64 {
        match proto {
            Proto::Udp => 300,
            Proto::Ping => 60,
            Proto::Tcp(_) if self.inbound && !self.closing => 7_440,
            Proto::Tcp(_) => 240,
        }
    }
}

/// The protocol without its flags, as a map key.
fn kind(proto: Proto) -> Proto {
    match proto {
        Proto::Tcp(_) => Proto::Tcp(0),
        other => other,
    }
}

#[derive(Debug, Clone)]
enum Op {
    Send(u32, Proto, u16),
    Answer(u32, Proto, u16),
    Stray(u16),
    Pass(u64),
    Reopen(u32),
    Restart,
}

fn any_proto() -> impl Strategy<Value = Proto> {
    prop_oneof![
        prop::sample::select(vec![SYN, ACK, ACK | FIN, RST]).prop_map(Proto::Tcp),
        Just(Proto::Udp),
        Just(Proto::Ping),
    ]
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0u32..3, any_proto(), 0u16..80).prop_map(|(n, proto, port)| Op::Send(n, proto, port)),
        8 => (0u32..3, any_proto(), 0u16..80).prop_map(|(n, proto, port)| Op::Answer(n, proto, port)),
        1 => (1_024u16..2_000).prop_map(Op::Stray),
        3 => (1u64..400).prop_map(Op::Pass),
        1 => (0u32..3).prop_map(Op::Reopen),
        1 => Just(Op::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn random_traffic_is_translated_as_the_model_says(ops in prop::collection::vec(any_op(), 1..200)) {
        let mut world = World::with_sessions(Spec::default(), 3);
        let mut model: HashMap<(u32, Proto, u16), Entry> = HashMap::new();
        let mut now = 0;
        for op in ops {
            let alive = |proto, entry: &Entry| now - entry.last_s <= entry.limit(proto);
            match op {
                Op::Send(n, proto, port) => {
                    let key = (n, kind(proto), port);
                    let flags = if let Proto::Tcp(flags) = proto { flags } else { 0 };
                    let got = send(&mut world, n, proto, port);
                    let taken: HashSet<_> = model
                        .iter()
                        .filter(|(other, entry)| {
                            other.0 == n && other.1 == kind(proto) && alive(proto, entry)
                        })
                        .map(|(_, entry)| entry.outside)
                        .collect();
                    match (got, model.get_mut(&key)) {
                        (Ok(outside), Some(entry)) if entry.outside == outside => {
                            entry.last_s = now;
                            if entry.closing && flags & (SYN | ACK) == SYN {
                                (entry.closing, entry.inbound) = (false, false);
                            }
                            entry.closing |= flags & (FIN | RST) != 0;
                        }
                        (Ok(outside), known) => {
                            prop_assert!(known.is_none_or(|entry| !alive(proto, entry)));
                            prop_assert!(!taken.contains(&outside), "a port with two owners");
                            let block = world.block(n);
                            prop_assert_eq!(outside.0, block.address);
                            prop_assert!((block.first_port..block.first_port + 64).contains(&outside.1));
                            let closing = flags & (FIN | RST) != 0;
                            model.insert(key, Entry { outside, last_s: now, inbound: false, closing });
                        }
                        (Err(reason), known) => {
                            prop_assert_eq!(reason, Counter::NatBlockExhausted);
                            prop_assert!(known.is_none_or(|entry| !alive(proto, entry)));
                            // What has expired may hold its port until the sweep comes by.
                            let held = model.keys().filter(|k| k.0 == n && k.1 == kind(proto)).count();
                            prop_assert!(held >= 64);
                        }
                    }
                }
                Op::Answer(n, proto, port) => {
                    let key = (n, kind(proto), port);
                    let Some(entry) = model.get_mut(&key) else { continue };
                    let got = answer(&mut world, 0, proto, entry.outside);
                    // A mapping may live two ticks longer than its timer.
                    let late = now - entry.last_s <= entry.limit(proto) + 2 * TICK_MS / 1_000;
                    let is_it = matches!(got, Ok((_, _, inside)) if inside == port);
                    if alive(proto, entry) || late && is_it {
                        let expect = (World::slot(n).session_id(), World::framed_ip(n), port);
                        prop_assert_eq!(got, Ok(expect));
                        entry.inbound = true;
                        if let Proto::Tcp(flags) = proto {
                            entry.closing |= flags & (FIN | RST) != 0;
                        }
                    } else if let Ok((_, _, inside)) = got {
                        // The port has gone to a later mapping.
                        prop_assert_ne!(inside, port);
                        model.remove(&key);
                    } else {
                        prop_assert_eq!(got, Err(Counter::NatNoMapping));
                        model.remove(&key);
                    }
                }
                Op::Stray(port) => {
                    let to = (Ipv4Addr::new(203, 0, 113, 3), port);
                    prop_assert_eq!(answer(&mut world, 0, Proto::Udp, to), Err(Counter::NatNoMapping));
                }
                Op::Pass(seconds) => {
                    world.pass(seconds * 1_000, 1_000);
                    now += seconds;
                }
                Op::Reopen(n) => {
                    world.close(World::slot(n));
                    world.open(n);
                    model.retain(|key, _| key.0 != n);
                }
                Op::Restart => {
                    world = world.restart();
                    model.retain(|key, entry| alive(key.1, entry));
                }
            }
        }
        // In the end everything ages away and the table is empty.
        world.pass(8_000_000, 4_000);
        prop_assert_eq!(world.workers[0].nat_mappings(), 0);
    }
}
