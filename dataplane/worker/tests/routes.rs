//! The real process between two networks of both families: routes come, change and go under traffic, and after a restart.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code
)]

mod running;

use bng_fastpath::testing::{ethernet, pppoe_session, udp, udp6};
use bng_shm::{
    Adjacency, BlockOwner, Counter, Delegated, NextHopId, Pool6Range, Route, Route6, Vlans,
};
use bng_wire::MacAddr;
use bng_wire::ethernet::ethertype;
use bng_wire::pppoe::protocol;
use running::frames::{QINQ, from_subscriber, tags};
use running::{CORE, Gateway, HOST, ROUTER, ROUTER_MAC, Subscriber, wait_for, with_workers};
use std::net::{Ipv4Addr, Ipv6Addr};

const OTHER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 9, 10]);
const HOST6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 0x80);
/// Upper half of the first prefix on a session; session n has the n-th after it.
const ON_LINK: u64 = 0x2001_0db8_0001_0000;
/// Upper half of the first delegated /56.
const DELEGATED: u64 = 0x2001_0db8_0002_0000;

fn address(high: u64, low: u64) -> Ipv6Addr {
    Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low))
}

/// The process with IPv6 pools and two routers.
fn start(name: &str, workers: usize) -> Gateway {
    let ipv6 = "ipv6: { prefixes: [\"2001:db8:1::/56\"], delegated: [\"2001:db8:2::/48\"], delegated_length: 56 }";
    let mut g = Gateway::start_with(name, |yaml| {
        let yaml = yaml.replacen("nat: public }", &format!("nat: public, {ipv6} }}"), 1);
        with_workers(&yaml, workers)
    });
    let range = |first, last, length, base| Pool6Range {
        first,
        last,
        length,
        base,
    };
    g.control
        .publish_pools6(&[
            range(ON_LINK, ON_LINK | 0xff, 64, 0),
            range(DELEGATED, DELEGATED | 0xff00, 56, 256),
        ])
        .unwrap();
    let other = Adjacency::Neighbour {
        port: CORE,
        mac: OTHER_MAC.0,
    };
    g.control
        .set_next_hop(NextHopId(2), ROUTER.into(), other)
        .unwrap();
    g.control
        .set_next_hop(NextHopId(3), ROUTER.into(), Adjacency::Blackhole)
        .unwrap();
    g
}

/// Publishes a route of each family to everywhere, and more of each family to the hosts.
fn publish(g: &mut Gateway, everywhere: u32, hosts: Option<u32>) {
    let route = |prefix: Ipv4Addr, length, hop| Route {
        prefix,
        length,
        next_hop: NextHopId(hop),
    };
    let route6 = |prefix: Ipv6Addr, length, hop| Route6 {
        prefix,
        length,
        next_hop: NextHopId(hop),
    };
    let mut routes = vec![route(Ipv4Addr::UNSPECIFIED, 0, everywhere)];
    let mut routes6 = vec![route6(Ipv6Addr::UNSPECIFIED, 0, everywhere)];
    if let Some(hop) = hosts {
        routes.push(route(HOST, 32, hop));
        routes6.push(route6(HOST6, 128, hop));
    }
    g.control.publish_routes(&routes).unwrap();
    g.control.publish_routes6(&routes6).unwrap();
    wait_for("routes in the FIBs", || {
        g.control.routes_in_fib().then_some(())
    });
}

fn open6(g: &mut Gateway, id: u16, owner: u8, vlans: Vlans) -> Subscriber {
    let mut s = Subscriber::new(id, owner, vlans);
    s.session.ipv6_prefix = Some(address(ON_LINK | u64::from(id), 0));
    s.session.delegated = Some(Delegated {
        prefix: address(DELEGATED | u64::from(id) << 8, 0),
        length: 56,
    });
    let generation = g.open(&s);
    let owner = BlockOwner {
        slot: s.slot,
        generation,
    };
    for prefix in [ON_LINK | u64::from(id), DELEGATED | u64::from(id) << 8] {
        g.control.set_framed6_owner(prefix, Some(owner)).unwrap();
    }
    s
}

fn hop6(mut packet: Vec<u8>) -> Vec<u8> {
    packet[7] -= 1;
    packet
}

/// A packet of each family from the subscriber; the router both go to.
fn next_router(g: &Gateway, s: &Subscriber) -> MacAddr {
    let packet = udp((s.session.framed_ip, 5_000), (HOST, 53), b"four");
    g.access
        .send(&from_subscriber(g, s, protocol::IPV4, &packet));
    let frame = g.core.receive();
    assert_eq!(frame[12..14], ethertype::IPV4.to_be_bytes());
    let router = MacAddr(*frame.first_chunk().unwrap());
    let source = s.session.ipv6_prefix.unwrap().to_bits() | 7;
    let packet = udp6((source.into(), 5_000), (HOST6, 53), b"six");
    g.access
        .send(&from_subscriber(g, s, protocol::IPV6, &packet));
    let expected = ethernet(router, g.core_mac, ethertype::IPV6, &hop6(packet));
    assert_eq!(g.core.receive(), expected);
    router
}

/// A packet from the core to an address of the subscriber arrives.
fn arrives(g: &Gateway, s: &Subscriber, to: Ipv6Addr) {
    let packet = udp6((HOST6, 53), (to, 5_000), b"answer");
    g.core
        .send(&ethernet(g.core_mac, ROUTER_MAC, ethertype::IPV6, &packet));
    let expected = pppoe_session(
        s.mac(),
        g.access_mac,
        &tags(s, ethertype::QINQ),
        s.slot.session_id(),
        protocol::IPV6,
        &hop6(packet),
    );
    assert_eq!(g.access.receive(), expected);
}

#[test]
fn routes_of_both_families_come_change_and_go_under_traffic_and_after_a_restart() {
    let mut g = start("routes", 3);
    publish(&mut g, 1, None);
    let subscribers = [
        open6(&mut g, 7, 0, QINQ),
        open6(&mut g, 8, 1, Vlans::default()),
        open6(&mut g, 9, 2, Vlans::default()),
    ];
    let all = |g: &Gateway, router| {
        for s in &subscribers {
            assert_eq!(next_router(g, s), router);
            arrives(g, s, address(ON_LINK | u64::from(s.slot.session_id()), 99));
            let inside = DELEGATED | u64::from(s.slot.session_id()) << 8 | 0x42;
            arrives(g, s, address(inside, 99));
        }
    };
    all(&g, ROUTER_MAC);
    publish(&mut g, 1, Some(2));
    all(&g, OTHER_MAC);
    publish(&mut g, 2, None);
    all(&g, OTHER_MAC);
    publish(&mut g, 1, None);
    all(&g, ROUTER_MAC);
    assert_eq!(g.control.routes_refused(), [0, 0]);

    // Nowhere to go has its names, in both families alike.
    publish(&mut g, 1, Some(3));
    let s = &subscribers[0];
    let source = s.session.ipv6_prefix.unwrap();
    for (ppp, packet) in [
        (
            protocol::IPV4,
            udp((s.session.framed_ip, 5_000), (HOST, 53), b""),
        ),
        (protocol::IPV6, udp6((source, 5_000), (HOST6, 53), b"")),
    ] {
        g.access.send(&from_subscriber(&g, s, ppp, &packet));
    }
    g.expect(Counter::RouteBlackhole, 2);
    g.control.publish_routes(&[]).unwrap();
    g.control.publish_routes6(&[]).unwrap();
    wait_for("empty FIBs", || g.control.routes_in_fib().then_some(()));
    for (ppp, packet) in [
        (
            protocol::IPV4,
            udp((s.session.framed_ip, 5_000), (HOST, 53), b""),
        ),
        (protocol::IPV6, udp6((source, 5_000), (HOST6, 53), b"")),
    ] {
        g.access.send(&from_subscriber(&g, s, ppp, &packet));
    }
    g.expect(Counter::NoRoute, 2);
    while g
        .access
        .receive_within(std::time::Duration::from_millis(100))
        .is_some()
    {}
    g.assert_conservation();

    publish(&mut g, 1, Some(2));
    assert_eq!(g.terminate().code(), Some(0));
    let lost: Vec<_> = g
        .said
        .iter()
        .filter(|line| line.contains("packet buffers"))
        .collect();
    assert!(lost.is_empty(), "{lost:?}");
    g.launch();
    all(&g, OTHER_MAC);
    g.assert_silent();
    g.assert_conservation();
}

#[test]
fn one_worker_serves_both_families() {
    let mut g = start("single", 1);
    publish(&mut g, 1, None);
    let s = open6(&mut g, 7, 0, QINQ);
    assert_eq!(next_router(&g, &s), ROUTER_MAC);
    arrives(&g, &s, address(ON_LINK | 7, 1));
    g.expect(Counter::HandedOver, 0);
    g.assert_silent();
    g.assert_conservation();
}
