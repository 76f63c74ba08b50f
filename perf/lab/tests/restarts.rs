//! Either daemon can be killed: traffic and sessions outlive the control plane, sessions outlive the dataplane, and whoever is
//! missing is named.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod emulator;
mod running_gateway;

use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use bng_lab::{Daemon, GatewayConfig, Lab, Programs, addresses, pppd_status, wait_until, www};
use emulator::{Emulation, emulated_users};
use running_gateway::{LIMIT, PASSWORD, USER, sessions, start, wait_for_health, wait_for_sessions};

const LINK: &str = "wan";
const ECHO_INTERVAL_S: u16 = 1;
/// Half a minute for the control plane to start in, however busy the machine is.
const ECHO_FAILURES: u8 = 30;
/// Echo-Replies of each session that show that echo goes on.
const ECHOES: f64 = 5.0;

fn config() -> GatewayConfig {
    let mut config = GatewayConfig {
        echo_interval_s: ECHO_INTERVAL_S,
        echo_failures: ECHO_FAILURES,
        ..GatewayConfig::default()
    };
    config.users.extend(emulated_users());
    config
}

#[test]
fn control_plane_killed_under_traffic_loses_no_packet_and_adopts_every_session() {
    let mut lab = start(&config());
    lab.boot_client().unwrap();
    // The client ends the link by itself when echo stays away.
    let options = format!("lcp-echo-interval {ECHO_INTERVAL_S} lcp-echo-failure {ECHO_FAILURES}");
    lab.client()
        .unwrap()
        .dial(LINK, USER, PASSWORD, &options, LIMIT)
        .unwrap();
    let emulation = Emulation::start(&lab, 20, 1000, 30);
    let before = wait_for_sessions(&lab, 21);

    let status = lab.kill(Daemon::Controlplane).unwrap();
    assert_eq!(status.signal(), Some(9));
    // Traffic goes on while nobody controls.
    lab.wait_for_core_packets(2000, LIMIT).unwrap();
    lab.start(Daemon::Controlplane).unwrap();
    wait_for_health(&lab, "ok");

    assert_eq!(
        sessions(&lab),
        before,
        "same sessions, same ids, addresses, owners and start times"
    );
    let metrics = lab.api().metrics().unwrap();
    assert_eq!(
        metrics.sum("bng_control_events_total", &[("event", "adopted")]),
        21.0
    );

    let enough = ECHOES * 21.0;
    let replies = || {
        Ok(lab.api().metrics()?.sum(
            "bng_pppoe_outcomes_total",
            &[("outcome", "echo_replies_received")],
        ))
    };
    wait_until("Echo-Replies after the restart", LIMIT, replies, |count| {
        *count > enough
    })
    .unwrap();
    emulation.finish().assert_nothing_lost();
    let page = format!("curl -sS --max-time 50 http://{}/", addresses::WWW);
    assert!(
        lab.client()
            .unwrap()
            .sh(&page, LIMIT)
            .unwrap()
            .contains(www::TITLE)
    );

    // And an adopted session can be ended in order.
    let id = before
        .values()
        .find(|session| session.user == USER)
        .unwrap()
        .id
        .clone();
    lab.api().delete(&format!("/api/v1/sessions/{id}")).unwrap();
    let status = lab.client().unwrap().wait_link_end(LINK, LIMIT).unwrap();
    assert_eq!(status, pppd_status::ENDED_BY_PEER);
    wait_for_sessions(&lab, 0);
    lab.api().wait_until_conserved().unwrap();
    assert!(lab.terminate(Daemon::Controlplane).unwrap().success());
}

#[test]
fn dataplane_killed_and_restarted_keeps_sessions_and_connections() {
    // Time enough to start again before the sessions are given up.
    let config = GatewayConfig {
        echo_interval_s: 5,
        echo_failures: 6,
        ..GatewayConfig::default()
    };
    let mut lab = start(&config);
    lab.boot_client().unwrap();
    lab.client()
        .unwrap()
        .dial(LINK, USER, PASSWORD, "", LIMIT)
        .unwrap();
    let before = wait_for_sessions(&lab, 1);
    let pppd_log = lab.client().unwrap().pppd_log(LINK);

    // A slow download, in the background; its checksum comes through a FIFO when it is done.
    let url = format!("http://{}/bytes/20000000", addresses::WWW);
    let download = format!(
        "mkfifo /tmp/sum; (curl -sS --limit-rate 2M {url} | sha256sum >/tmp/sum) >/dev/null 2>&1 &"
    );
    lab.client().unwrap().sh(&download, LIMIT).unwrap();
    lab.wait_for_core_packets(20, LIMIT).unwrap();

    let mark = lab.daemon(Daemon::Controlplane).unwrap().log_mark();
    assert_eq!(lab.kill(Daemon::Dataplane).unwrap().signal(), Some(9));
    let health = wait_for_health(&lab, "degraded");
    assert!(health.contains("bng-dataplane"), "{health}");
    lab.daemon(Daemon::Controlplane)
        .unwrap()
        .wait_for_log("bng-dataplane", mark, LIMIT)
        .unwrap();

    lab.start(Daemon::Dataplane).unwrap();
    wait_for_health(&lab, "ok");
    let sum = lab
        .client()
        .unwrap()
        .sh("cat /tmp/sum", Duration::from_secs(120))
        .unwrap();
    assert_eq!(
        sum.split(' ').next().unwrap(),
        www::stream_sha256(20_000_000).unwrap()
    );
    assert_eq!(sessions(&lab), before);
    assert_eq!(
        lab.client().unwrap().pppd_log(LINK),
        pppd_log,
        "nothing was negotiated again"
    );
    assert!(lab.terminate(Daemon::Dataplane).unwrap().success());
}

#[test]
fn missing_dataplane_is_named_and_recovered_from() {
    let mut lab = Lab::create(Programs::of_workspace(), &config()).unwrap();
    lab.start_www().unwrap();
    lab.start(Daemon::Controlplane).unwrap();
    lab.daemon(Daemon::Controlplane)
        .unwrap()
        .wait_for_log("bng-dataplane", 0, LIMIT)
        .unwrap();
    let health = wait_for_health(&lab, "degraded");
    assert!(health.contains("bng-dataplane"), "{health}");

    lab.start(Daemon::Dataplane).unwrap();
    wait_for_health(&lab, "ok");
    lab.boot_client().unwrap();
    lab.client()
        .unwrap()
        .dial(LINK, USER, PASSWORD, "", LIMIT)
        .unwrap();
    let page = format!("curl -sS --max-time 50 http://{}/", addresses::WWW);
    assert!(
        lab.client()
            .unwrap()
            .sh(&page, LIMIT)
            .unwrap()
            .contains(www::TITLE)
    );
}

#[test]
fn shared_memory_of_another_version_is_refused_by_name() {
    let mut lab = Lab::create(Programs::of_workspace(), &config()).unwrap();
    lab.start(Daemon::Dataplane).unwrap();
    // The header: magic (8 octets), ABI version (4), see `dataplane/shm/src/layout.rs`.
    let state = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(lab.shared_memory().join("state"))
        .unwrap();
    let mut version = [0; 4];
    state.read_exact_at(&mut version, 8).unwrap();
    state.write_all_at(&0x4711_u32.to_le_bytes(), 8).unwrap();
    let said = lab
        .launch(Daemon::Controlplane)
        .unwrap()
        .wait_for_log("ABI version", LIMIT)
        .unwrap();
    assert!(said.contains("0x4711"), "{said}");
    let health = wait_for_health(&lab, "fail");
    assert!(
        health.contains("ABI version") && health.contains("0x4711"),
        "{health}"
    );
    assert!(
        lab.daemon(Daemon::Dataplane).unwrap().is_running().unwrap(),
        "the other one is left alone"
    );

    // With a dataplane of its own version it goes on by itself.
    state.write_all_at(&version, 8).unwrap();
    wait_for_health(&lab, "ok");
}
