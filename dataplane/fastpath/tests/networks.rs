//! Networks behind IPv4 subscribers (Framed-Route): bytes in, bytes or a named reason out.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod support;

use std::net::Ipv4Addr;

use bng_fastpath::testing::{
    Spec, TestBuf, World, assert_checksums, echo, ethernet, ipv4, pppoe_session, tcp, udp,
};
use bng_fastpath::{Origin, PacketBuf, Verdict};
use bng_shm::{
    Counter, Network, NetworkOwner, Policy, PolicyId, PortAddresses, Session, SessionState,
    SlotIndex,
};
use bng_wire::ethernet::ethertype;
use bng_wire::ipv4::FLAG_MF;
use bng_wire::l4::icmp_type::{TIME_EXCEEDED, UNREACHABLE};
use bng_wire::pppoe::protocol;

use support::{Way, edited, expect_drop};

const SLOT: SlotIndex = World::slot(0);
/// Behind session 0.
const INSIDE: Ipv4Addr = Ipv4Addr::new(198, 18, 5, 77);
const GRE: u8 = 47;

fn network() -> Network {
    Network::of(INSIDE.to_bits(), 24).unwrap()
}

/// A world whose first session is translated and has a network behind it.
fn world() -> (World, Session) {
    let mut world = World::new(Spec::default());
    let session = world.open(0);
    world.lead_network(SLOT, &session, network());
    (world, session)
}

/// As [`world`], for a routed session.
fn routed_world() -> (World, Session) {
    let mut world = World::new(Spec::default());
    let session = Session {
        nat: None,
        framed_ip: Ipv4Addr::new(198, 51, 100, 7),
        ..world.session(0)
    };
    let session = world.publish(SLOT, session);
    world.lead_network(SLOT, &session, network());
    (world, session)
}

/// Packets of all kinds, between two hosts; NAT would drop some and change the others.
fn packets(from: Ipv4Addr, to: Ipv4Addr) -> Vec<Vec<u8>> {
    let fragment = edited(udp((from, 9), (to, 53), &[7; 64]), 6, (FLAG_MF >> 8) as u8);
    let later = edited(ipv4(from, to, 17, &[7; 64]), 7, 8);
    vec![
        udp((from, 5_000), (to, 53), b"question"),
        tcp((from, 5_000), (to, 443), 0x02, b""),
        tcp((from, 5_000), (to, 443), 0x18, b"data"),
        echo(from, to, true, 9, b"ping"),
        ipv4(from, to, GRE, &[0x5a; 30]),
        fragment,
        later,
    ]
}

fn hop(packet: &[u8]) -> Vec<u8> {
    edited(packet.to_vec(), 8, packet[8] - 1)
}

#[test]
fn what_a_network_sends_leaves_as_it_is_also_beside_nat() {
    for (mut world, session) in [world(), routed_world()] {
        for packet in packets(INSIDE, World::HOST) {
            let before = world.publisher.session_stats(SLOT).unwrap();
            let buf = World::from_subscriber(SLOT, &session, &packet);
            let (verdict, out) = world.upstream(0, vec![buf], Origin::Port).remove(0);
            assert_eq!(verdict, Verdict::Forward { port: 2 }, "{packet:?}");
            let own = World::port_mac(2);
            let expect = ethernet(World::NEXT_HOP, own, ethertype::IPV4, &hop(&packet));
            assert_eq!(out.data(), expect);
            let stats = world.publisher.session_stats(SLOT).unwrap();
            let bytes = stats.up_bytes - before.up_bytes;
            assert_eq!(bytes, packet.len() as u64);
        }
        assert_eq!(world.workers[0].nat_mappings(), 0);
    }
}

#[test]
fn what_is_for_a_network_arrives_as_it_is_inside_pppoe() {
    for (mut world, session) in [world(), routed_world()] {
        for packet in packets(World::HOST, INSIDE) {
            let buf = world.from_core(&packet);
            let (verdict, out) = world.downstream(0, vec![buf], Origin::Port).remove(0);
            assert_eq!(verdict, Verdict::Forward { port: 0 }, "{packet:?}");
            let expect = pppoe_session(
                World::client_mac(0),
                World::port_mac(0),
                &World::tags(&session),
                SLOT.session_id(),
                protocol::IPV4,
                &hop(&packet),
            );
            assert_eq!(out.data(), expect);
        }
        let stats = world.publisher.session_stats(SLOT).unwrap();
        assert_eq!(stats.down_packets, 7);
    }
}

#[test]
fn the_rest_of_the_subscriber_s_traffic_stays_translated() {
    let (mut world, session) = world();
    let own = udp((World::framed_ip(0), 5_000), (World::HOST, 53), b"x");
    let buf = World::from_subscriber(SLOT, &session, &own);
    let (verdict, out) = world.upstream(0, vec![buf], Origin::Port).remove(0);
    assert_eq!(verdict, Verdict::Forward { port: 2 });
    let source = Ipv4Addr::from(<[u8; 4]>::try_from(&out.data()[26..30]).unwrap());
    assert_eq!(source, World::NAT_FIRST);
    assert_eq!(world.workers[0].nat_mappings(), 1);
    // Nor does a session behind NAT get the source check off by having a network.
    let off = PolicyId(4);
    let policy = Policy {
        source_check: false,
        ..Policy::default()
    };
    world.publisher.write_policy(off, Some(&policy)).unwrap();
    let session = Session {
        policy: off,
        ..session
    };
    world.update(SLOT, session);
    let other = udp(([9, 9, 9, 9].into(), 5_000), (World::HOST, 53), b"x");
    let buf = World::from_subscriber(SLOT, &session, &other);
    expect_drop("off", &mut world, Way::Up, &buf, Counter::SourceSpoofed);
}

#[test]
fn a_network_is_its_own_session_s_alone() {
    let (mut world, session) = world();
    let other_slot = World::slot(1);
    let other = world.open(1);
    let from = udp((INSIDE, 5_000), (World::HOST, 53), b"x");
    let spoofed = Counter::SourceSpoofed;
    let buf = World::from_subscriber(other_slot, &other, &from);
    expect_drop("another session", &mut world, Way::Up, &buf, spoofed);
    // Also where the source check is off for a routed session.
    let off = PolicyId(4);
    let policy = Policy {
        source_check: false,
        ..Policy::default()
    };
    world.publisher.write_policy(off, Some(&policy)).unwrap();
    let routed = Session {
        policy: off,
        nat: None,
        framed_ip: Ipv4Addr::new(198, 51, 100, 7),
        ..other
    };
    world.update(other_slot, routed);
    let buf = World::from_subscriber(other_slot, &routed, &from);
    expect_drop("check is off", &mut world, Way::Up, &buf, spoofed);
    // Nobody on the core sends from it, and subscribers do not reach it through the gateway.
    let to = udp((INSIDE, 5_000), (World::framed_ip(1), 53), b"x");
    let core = udp((INSIDE, 5_000), (Ipv4Addr::new(198, 51, 100, 7), 53), b"x");
    let buf = world.from_core(&core);
    expect_drop("from the core", &mut world, Way::Down, &buf, spoofed);
    let reason = Counter::DestinationSubscriber;
    for (slot, session, source) in [
        (SLOT, &session, World::framed_ip(0)),
        (SLOT, &session, INSIDE),
        (other_slot, &routed, routed.framed_ip),
    ] {
        let packet = udp((source, 1), (Ipv4Addr::new(198, 18, 5, 1), 2), b"x");
        let buf = World::from_subscriber(slot, session, &packet);
        expect_drop("between subscribers", &mut world, Way::Up, &buf, reason);
    }
    let buf = World::from_subscriber(SLOT, &session, &to);
    expect_drop("to a subscriber", &mut world, Way::Up, &buf, reason);
    // Neighbours of the network are not in it.
    for outside in [Ipv4Addr::new(198, 18, 4, 255), Ipv4Addr::new(198, 18, 6, 0)] {
        let packet = udp((outside, 1), (World::HOST, 2), b"x");
        let buf = World::from_subscriber(SLOT, &session, &packet);
        expect_drop("beside it", &mut world, Way::Up, &buf, spoofed);
        let buf = world.from_core(&udp((World::HOST, 1), (outside, 2), b"x"));
        let (verdict, _) = world.downstream(0, vec![buf], Origin::Port).remove(0);
        assert_eq!(verdict, Verdict::Host { port: 2 });
    }
}

fn both_ways(world: &World, session: &Session) -> (TestBuf, TestBuf) {
    let up = udp((INSIDE, 5_000), (World::HOST, 53), b"x");
    let down = udp((World::HOST, 53), (INSIDE, 5_000), b"x");
    (
        World::from_subscriber(SLOT, session, &up),
        world.from_core(&down),
    )
}

#[test]
fn nothing_passes_while_ipv4_is_not_open_nor_when_the_session_is_over() {
    let (mut world, session) = world();
    let (up, down) = both_ways(&world, &session);
    let not_open = Counter::SessionNotOpen;
    for closed in [
        Session {
            state: SessionState::Negotiating,
            ..session
        },
        Session {
            framed_ip: Ipv4Addr::UNSPECIFIED,
            nat: None,
            ..session
        },
    ] {
        world.update(SLOT, closed);
        expect_drop("up", &mut world, Way::Up, &up, not_open);
        expect_drop("down", &mut world, Way::Down, &down, not_open);
    }
    world.close(SLOT);
    let unknown = Counter::SessionUnknown;
    expect_drop("down, over", &mut world, Way::Down, &down, unknown);
    expect_drop("up, over", &mut world, Way::Up, &up, unknown);
    // The entry was left behind by a control that died; the next session in the slot is another one.
    let next = world.open(0);
    assert_ne!(next.generation, session.generation);
    expect_drop("down, next", &mut world, Way::Down, &down, unknown);
    expect_drop("up, next", &mut world, Way::Up, &up, Counter::SourceSpoofed);
    world.publisher.set_network_owner(network(), None).unwrap();
    world.pass(1, 1);
    let (verdict, _) = world.downstream(0, vec![down], Origin::Port).remove(0);
    assert_eq!(verdict, Verdict::Host { port: 2 });
}

#[test]
fn a_frame_at_another_worker_is_handed_to_the_owner_and_forwarded_there() {
    let mut world = World::new(Spec {
        workers: 2,
        ..Spec::default()
    });
    let session = world.open(0);
    world.lead_network(SLOT, &session, network());
    let (up, down) = both_ways(&world, &session);
    let (verdict, down) = world.downstream(1, vec![down], Origin::Port).remove(0);
    assert_eq!(verdict, Verdict::HandOver { worker: 0 });
    let (verdict, _) = (world.downstream(0, vec![down], Origin::HandedOver)).remove(0);
    assert_eq!(verdict, Verdict::Forward { port: 0 });
    let (verdict, up) = world.upstream(1, vec![up], Origin::Port).remove(0);
    assert_eq!(verdict, Verdict::HandOver { worker: 0 });
    let (verdict, _) = (world.upstream(0, vec![up], Origin::HandedOver)).remove(0);
    assert_eq!(verdict, Verdict::Forward { port: 2 });
}

#[test]
fn workers_that_start_anew_lead_to_networks_at_once() {
    let (world, session) = world();
    let mut world = world.restart();
    let (up, down) = both_ways(&world, &session);
    let (verdict, _) = world.downstream(0, vec![down], Origin::Port).remove(0);
    assert_eq!(verdict, Verdict::Forward { port: 0 });
    let (verdict, _) = world.upstream(0, vec![up], Origin::Port).remove(0);
    assert_eq!(verdict, Verdict::Forward { port: 2 });
}

#[test]
fn what_came_to_a_port_or_a_pool_later_is_not_the_network_s() {
    let (mut world, session) = world();
    let addresses = PortAddresses {
        ipv4: Some(INSIDE),
        ..PortAddresses::default()
    };
    let none = PortAddresses::default();
    (world.publisher).publish_port_addresses(&[none, none, addresses]);
    // A pool over the whole network of another session, here the NAT pool.
    let other = World::slot(1);
    let second = world.open(1);
    let pool = Network::of(World::NAT_FIRST.to_bits(), 16).unwrap();
    world.lead_network(other, &second, pool);
    let (up, down) = both_ways(&world, &session);
    let spoofed = Counter::SourceSpoofed;
    expect_drop("from a port's", &mut world, Way::Up, &up, spoofed);
    let (verdict, _) = world.downstream(0, vec![down], Origin::Port).remove(0);
    assert_eq!(verdict, Verdict::Host { port: 2 });
    let packet = udp((World::NAT_FIRST, 1), (World::HOST, 2), b"x");
    let buf = World::from_subscriber(other, &second, &packet);
    expect_drop("from a pool's", &mut world, Way::Up, &buf, spoofed);
    let buf = world.from_core(&udp((World::HOST, 1), (World::NAT_FIRST, 2), b"x"));
    let reason = Counter::NatNoMapping;
    expect_drop("to a pool's", &mut world, Way::Down, &buf, reason);
}

#[test]
fn a_network_is_no_way_round_the_gateway_s_address() {
    let (mut world, session) = world();
    let around = Network::of(World::GATEWAY.to_bits(), 8).unwrap();
    world.lead_network(SLOT, &session, around);
    let packet = udp((World::GATEWAY, 1), (World::HOST, 2), b"x");
    let buf = World::from_subscriber(SLOT, &session, &packet);
    let reason = Counter::SourceSpoofed;
    expect_drop("gateway", &mut world, Way::Up, &buf, reason);
    // A host in the network may ping it.
    let ping = echo(INSIDE, World::GATEWAY, true, 9, b"ping");
    let buf = World::from_subscriber(SLOT, &session, &ping);
    let (verdict, out) = world.upstream(0, vec![buf], Origin::Port).remove(0);
    assert_eq!(verdict, Verdict::Forward { port: 0 });
    let reply = &out.data()[30..];
    assert_eq!((&reply[16..20], reply[20]), (&INSIDE.octets()[..], 0));
}

#[test]
fn errors_go_back_to_where_the_packet_came_from() {
    let mut world = World::new(Spec {
        icmp_errors_per_second: 100,
        ..Spec::default()
    });
    let session = world.open(0);
    world.lead_network(SLOT, &session, network());
    world.publisher.publish_port_addresses(&[]);
    world.pass(1, 1);
    let up = edited(udp((INSIDE, 5_000), (World::HOST, 53), b"x"), 8, 1);
    let buf = World::from_subscriber(SLOT, &session, &up);
    let (verdict, out) = world.upstream(0, vec![buf], Origin::Port).remove(0);
    assert_eq!(verdict, Verdict::Forward { port: 0 });
    let error = &out.data()[30..];
    assert_checksums(error);
    assert_eq!(error[12..16], World::GATEWAY.octets());
    assert_eq!(error[16..20], INSIDE.octets());
    assert_eq!((error[20], &error[28..]), (TIME_EXCEEDED, &up[..]));
    // The MTU of the session, not to be fragmented; a port without an address answers from the gateway's on the session,
    // and never from the host's own.
    let down = udp((World::HOST, 53), (INSIDE, 5_000), &[0; 1_470]);
    let down = edited(down, 6, 0x40);
    let buf = world.from_core(&down);
    let (verdict, out) = world.downstream(0, vec![buf], Origin::Port).remove(0);
    assert_eq!(verdict, Verdict::Forward { port: 2 });
    let error = &out.data()[14..];
    assert_eq!(error[12..16], World::GATEWAY.octets());
    assert_eq!(error[16..20], World::HOST.octets());
    assert_eq!((error[20], error[21]), (UNREACHABLE, 4));
    assert_eq!(error[26..28], session.mtu.to_be_bytes());
}

#[test]
fn an_owner_that_is_nonsense_leads_to_nobody() {
    let (mut world, session) = world();
    let (_, down) = both_ways(&world, &session);
    let nowhere = NetworkOwner::new(SlotIndex(0xf_ffff), 1);
    (world.publisher)
        .set_network_owner(network(), Some(nowhere))
        .unwrap();
    let unknown = Counter::SessionUnknown;
    expect_drop("no such slot", &mut world, Way::Down, &down, unknown);
}
