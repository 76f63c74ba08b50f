//! Routes and equal-cost paths change under traffic: no packet is lost, no flow changes its way without need.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod emulator;
mod running_gateway;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bng_lab::{GatewayConfig, Lab, addresses, dissect, wait_until};
use emulator::{Emulation, emulated_users};
use running_gateway::{LIMIT, drops_since, start, wait_for_sessions};

/// Routes put into the kernel while traffic runs.
const MANY: u32 = 2_000;

fn config() -> GatewayConfig {
    let mut config = GatewayConfig {
        second_core: true,
        ipv6: true,
        ..GatewayConfig::default()
    };
    config.users.extend(emulated_users());
    config
}

fn routes(lab: &Lab, family: &str) -> f64 {
    let metrics = lab.api().metrics().unwrap();
    metrics.sum("bng_routes", &[("kind", family)])
}

/// Runs a batch of `ip` commands in the gateway's namespace.
fn batch(lab: &Lab, lines: &str) {
    let file = lab.write("batch", lines).unwrap();
    lab.gateway()
        .ip(&format!("-batch {}", file.display()))
        .unwrap();
}

#[test]
fn thousands_of_routes_come_and_go_while_nothing_is_lost() {
    let lab = start(&config());
    let emulation = Emulation::start(&lab, 20, 1_000, 15);
    wait_for_sessions(&lab, 20);
    let before = lab.api().metrics().unwrap();
    let (few, few6) = (routes(&lab, "routes"), routes(&lab, "routes6"));
    for verb in ["add", "del"] {
        let mut lines = String::new();
        for n in 0..MANY {
            let [_, _, high, low] = n.to_be_bytes();
            let via = addresses::ROUTER1;
            writeln!(lines, "route {verb} 10.{high}.{low}.0/24 via {via}").unwrap();
            let via = addresses::ROUTER1_6;
            writeln!(
                lines,
                "route {verb} 2001:db8:9{high:02x}:{low:x}::/64 via {via}"
            )
            .unwrap();
        }
        batch(&lab, &lines);
        // Neighbours found meanwhile have routes of their own, so the count is not exact.
        let there = |more: f64| {
            if verb == "add" {
                more >= f64::from(MANY)
            } else {
                more < 10.0
            }
        };
        let seen = || Ok((routes(&lab, "routes") - few, routes(&lab, "routes6") - few6));
        wait_until(&format!("{verb} in both FIBs"), LIMIT, seen, |more| {
            there(more.0) && there(more.1)
        })
        .unwrap();
    }
    emulation.finish().assert_nothing_lost();
    wait_for_sessions(&lab, 0);
    let drops = drops_since(&before, &lab.api().metrics().unwrap());
    assert!(drops.is_empty(), "{drops:?}");
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn flows_spread_over_equal_cost_paths_and_each_stays_on_its_own() {
    let lab = start(&config());
    let both = format!(
        "route replace {}/32 nexthop via {} nexthop via {}",
        addresses::WWW,
        addresses::ROUTER,
        addresses::ROUTER1
    );
    lab.gateway().ip(&both).unwrap();
    let captures = [
        lab.capture_core().unwrap(),
        bng_lab::Capture::start(lab.internet(), "core1", lab.dir(), "core1").unwrap(),
    ];
    let emulation = Emulation::start(&lab, 50, 500, 4);
    emulation.finish().assert_nothing_lost();
    let mut ways: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (way, capture) in captures.into_iter().enumerate() {
        let file = capture.stop().unwrap();
        let filter = format!("udp && ip.dst == {}", addresses::WWW);
        for flow in dissect(&file, &filter, &["ip.src", "udp.srcport"]).unwrap() {
            ways.entry(flow.join(":")).or_default().push(way);
        }
    }
    assert_eq!(ways.len(), 50, "one flow of each subscriber: {ways:?}");
    for (flow, ways) in &ways {
        assert!(
            ways.iter().all(|way| *way == ways[0]),
            "{flow} changed its way"
        );
    }
    let first = ways.values().filter(|ways| ways[0] == 0).count();
    assert!(
        (10..=40).contains(&first),
        "{first} of 50 flows on the first path"
    );
    lab.api().wait_until_conserved().unwrap();
}
