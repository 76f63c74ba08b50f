//! Networks behind a real Linux client, by Framed-Route of FreeRADIUS: reached from the core as they are, beside NAT, over restarts of either
//! daemon, and by nobody after the session.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod running_gateway;

use bng_lab::{
    Attributes, Daemon, FreeRadius, GatewayConfig, Lab, Programs, RadiusConfig, addresses,
    check_checksums, wait_until, www,
};
use running_gateway::{
    LIMIT, PASSWORD, USER, counted, session_page, wait_for_drops, wait_for_health,
    wait_for_sessions,
};

const LINK: &str = "wan";
const PORT: u16 = addresses::RADIUS.port();
/// A host in the network behind the client.
const HOST: &str = "198.18.7.1";
const NETWORK: &str = "198.18.7.0/24";

/// Server, gateway and a dialled client with a host of the network on a device of its own; the id of its session.
fn dialled() -> (Lab, FreeRadius, String) {
    let config = GatewayConfig {
        users: Vec::new(),
        backends: "radius",
        radius: Some(RadiusConfig::default()),
        ..GatewayConfig::default()
    };
    // The second one overlaps the pool of the subscribers.
    let users = format!(
        "{USER} Cleartext-Password := \"{PASSWORD}\"\n\tFramed-Route = \"{NETWORK} 0.0.0.0 1\", Framed-Route += \"100.64.0.0/16\"\n"
    );
    let mut lab = Lab::create(Programs::of_workspace(), &config).unwrap();
    let server = lab.start_freeradius("radius", PORT, &users).unwrap();
    lab.start_www().unwrap();
    lab.start(Daemon::Dataplane).unwrap();
    lab.start(Daemon::Controlplane).unwrap();
    lab.boot_client().unwrap();
    let way = format!("route add {NETWORK} via {}", addresses::GATEWAY_CORE);
    lab.internet().ip(&way).unwrap();
    let client = lab.client().unwrap();
    let host = format!("ip addr add {HOST}/32 dev lo");
    client.sh(&host, LIMIT).unwrap();
    client.dial(LINK, USER, PASSWORD, "", LIMIT).unwrap();
    let id = wait_for_sessions(&lab, 1).into_keys().next().unwrap();
    (lab, server, id)
}

/// The core reaches the host, and the host the core: none of the packets is lost once next hops are resolved.
fn both_ways(lab: &mut Lab) {
    let once = format!("busybox ping -c 1 -W 1 {HOST}");
    let reaches = || Ok(lab.internet().sh_status(&once)?.1);
    let answered = |text: &String| text.contains("1 packets received");
    wait_until("the core reaches the host", LIMIT, reaches, answered).unwrap();
    let ping = format!("busybox ping -c 5 -i 0.2 -W 30 {HOST}");
    let (_, text) = lab.internet().sh_status(&ping).unwrap();
    assert!(text.contains(" 0% packet loss"), "{text}");
    let from = format!(
        "busybox ping -I {HOST} -c 5 -i 0.2 -W 30 {}",
        addresses::WWW
    );
    let text = lab.client().unwrap().sh(&from, LIMIT).unwrap();
    assert!(text.contains(" 0% packet loss"), "{text}");
}

#[test]
fn hosts_behind_a_client_are_reached_from_the_core_and_its_own_traffic_stays_translated() {
    let (mut lab, server, id) = dialled();
    let page = session_page(&lab, &id);
    assert_eq!(
        page["framed_routes"],
        serde_json::json!([NETWORK]),
        "{page}"
    );
    assert!(page["nat"].is_object(), "{page}");
    let core = lab.capture_core().unwrap();
    both_ways(&mut lab);
    let own = format!("busybox ping -c 3 -i 0.2 -W 30 {}", addresses::WWW);
    let text = lab.client().unwrap().sh(&own, LIMIT).unwrap();
    assert!(text.contains(" 0% packet loss"), "{text}");
    let report = check_checksums(&core.stop().unwrap()).unwrap();
    assert_eq!(report.bad, Vec::<String>::new());
    assert!(report.good["icmp"] >= 26, "{report:?}");
    // A stream whose every octet is checked by TCP, from the network.
    let get = format!(
        "curl -sS --max-time 60 --interface {HOST} http://{}/bytes/1000000 | sha256sum",
        addresses::WWW
    );
    let sum = lab.client().unwrap().sh(&get, LIMIT).unwrap();
    let expected = www::stream_sha256(1_000_000).unwrap();
    assert_eq!(sum.split(' ').next().unwrap(), expected);

    // The server is told what the session has, not what it was left without.
    let is_start = |it: &&Attributes| it.get("Acct-Status-Type") == Some("Start");
    let records = server
        .wait_for_accounting("the start", LIMIT, |all| all.iter().any(|it| is_start(&it)))
        .unwrap();
    let start = records.iter().find(is_start).unwrap();
    assert_eq!(
        start.get("Framed-Route"),
        Some("198.18.7.0/24 0.0.0.0 1"),
        "{start:?}"
    );
    let metrics = lab.api().metrics().unwrap();
    let event = [("event", "framed_route_reserved")];
    assert_eq!(metrics.sum("bng_control_events_total", &event), 1.0);

    lab.client().unwrap().hang_up(LINK, LIMIT).unwrap();
    wait_for_sessions(&lab, 0);
    let before = counted(&lab, "forwarded_downstream");
    let ping = format!("busybox ping -c 2 -i 0.2 -W 1 {HOST}");
    let (_, text) = lab.internet().sh_status(&ping).unwrap();
    assert!(text.contains("100% packet loss"), "{text}");
    assert_eq!(counted(&lab, "forwarded_downstream"), before);
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn networks_outlive_both_daemons_and_are_nobody_else_s_source() {
    let (mut lab, _server, id) = dialled();
    both_ways(&mut lab);
    lab.kill(Daemon::Controlplane).unwrap();
    both_ways(&mut lab);
    lab.start(Daemon::Controlplane).unwrap();
    wait_for_health(&lab, "ok");
    assert!(wait_for_sessions(&lab, 1).contains_key(&id));
    both_ways(&mut lab);
    lab.kill(Daemon::Dataplane).unwrap();
    lab.start(Daemon::Dataplane).unwrap();
    wait_for_health(&lab, "ok");
    both_ways(&mut lab);
    let page = session_page(&lab, &id);
    assert_eq!(
        page["framed_routes"],
        serde_json::json!([NETWORK]),
        "{page}"
    );
    // A neighbour of the network is nobody's.
    let client = lab.client().unwrap();
    client
        .sh("ip addr add 198.18.8.1/32 dev lo", LIMIT)
        .unwrap();
    let spoof = format!("busybox ping -I 198.18.8.1 -c 3 -W 1 {}", addresses::WWW);
    client.sh_status(&spoof, LIMIT).unwrap();
    wait_for_drops(&lab, "source_spoofed", 3.0);
    lab.api().wait_until_conserved().unwrap();
}
