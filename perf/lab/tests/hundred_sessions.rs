//! A hundred subscribers at once with traffic both ways: nothing is lost.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod emulator;
mod running_gateway;

use std::collections::BTreeSet;

use bng_lab::GatewayConfig;
use emulator::{Emulation, emulated_users};
use running_gateway::{drops_since, start, wait_for_sessions};

#[test]
fn a_hundred_sessions_with_traffic_both_ways_lose_nothing() {
    let mut config = GatewayConfig::default();
    config.users.extend(emulated_users());
    let lab = start(&config);
    let before = lab.api().metrics().unwrap();
    let emulation = Emulation::start(&lab, 100, 2000, 20);
    let sessions = wait_for_sessions(&lab, 100);
    let addresses: BTreeSet<_> = sessions
        .values()
        .map(|session| session.framed_ip.clone().unwrap())
        .collect();
    assert_eq!(
        addresses.len(),
        100,
        "every session has an address of its own"
    );
    let owners: BTreeSet<_> = sessions.values().map(|session| session.worker).collect();
    assert_eq!(owners, BTreeSet::from([0, 1]), "both workers own sessions");

    emulation.finish().assert_nothing_lost();
    // The emulator hangs up at the end, and everything is given back.
    wait_for_sessions(&lab, 0);
    let drops = drops_since(&before, &lab.api().metrics().unwrap());
    assert!(drops.is_empty(), "{drops:?}");
    lab.api().wait_until_conserved().unwrap();
}
