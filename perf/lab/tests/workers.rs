//! More workers than queues' hashes can place: frames are handed to their session's owner, in order, and every one is in the
//! books; what the ports and workers do is told.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod emulator;
mod running_gateway;

use std::collections::BTreeSet;

use bng_lab::GatewayConfig;
use emulator::{Emulation, emulated_users};
use running_gateway::{counted, drops_since, start, wait_for_sessions};

#[test]
fn four_workers_keep_each_session_in_order_and_lose_nothing() {
    let mut config = GatewayConfig {
        workers: 4,
        ..GatewayConfig::default()
    };
    config.users.extend(emulated_users());
    let lab = start(&config);
    let before = lab.api().metrics().unwrap();
    let emulation = Emulation::start(&lab, 40, 1_000, 8);
    let sessions = wait_for_sessions(&lab, 40);
    let owners: BTreeSet<_> = sessions.values().map(|session| session.worker).collect();
    assert_eq!(
        owners,
        BTreeSet::from([0, 1, 2, 3]),
        "every worker owns sessions"
    );
    emulation.finish().assert_nothing_lost();
    wait_for_sessions(&lab, 0);
    let now = lab.api().metrics().unwrap();
    let drops = drops_since(&before, &now);
    assert!(drops.is_empty(), "{drops:?}");
    assert!(
        counted(&lab, "handed_over") > 0.0,
        "the ports cannot know the owners"
    );
    assert_eq!(counted(&lab, "handed_over"), counted(&lab, "taken_over"));

    // What an operator is told about it.
    for port in ["access0", "core0"] {
        let steering = now.by_label("bng_port_info", "steering");
        assert!(steering.contains_key("hand-over"), "{steering:?}");
        assert!(now.sum("bng_port_info", &[("port", port)]) == 1.0, "{port}");
    }
    for worker in ["0", "1", "2", "3"] {
        let labels = [("worker", worker)];
        let busy = now.sum("bng_worker_busy_ratio", &labels);
        assert!((0.0..=1.0).contains(&busy), "worker {worker}: {busy}");
        for cycles in ["busy_cycles", "idle_cycles"] {
            let labels = [("worker", worker), ("counter", cycles)];
            assert!(
                now.sum("bng_work_total", &labels) > 0.0,
                "worker {worker}: {cycles}"
            );
        }
    }
    lab.api().wait_until_conserved().unwrap();
}
