//! Terms of FreeRADIUS at work on a real client's traffic: filters and rates from the Access-Accept and by CoA to a core address of
//! the gateway; and counters beyond 32 bits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod running_gateway;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Instant;

use bng_lab::{
    Attributes, Daemon, FreeRadius, GatewayConfig, Lab, Programs, RADIUS_SECRET, RadiusConfig,
    RadiusReply, addresses, radclient, www,
};
use running_gateway::{
    LIMIT, PASSWORD, USER, dropped, session_page, sessions, wait_for_drops, wait_for_health,
    wait_for_sessions,
};
use serde_json::Value;

const LINK: &str = "wan";
const POLICIES: &str = "\
policies:
  - { name: gold, up: { rate_kbps: 70000 }, down: { rate_kbps: 90000 } }
filters:
  - name: no-ping
    up: [ { action: drop, protocol: icmp } ]
";

fn config() -> GatewayConfig {
    GatewayConfig {
        users: Vec::new(),
        protocols: "chap, pap",
        backends: "radius",
        radius: Some(RadiusConfig::default()),
        more: POLICIES.to_owned(),
        ..GatewayConfig::default()
    }
}

/// Server, gateway and client, who is in; returns the session's id.
fn dialled(config: &GatewayConfig, reply: &str) -> (Lab, FreeRadius, String) {
    let mut lab = Lab::create(Programs::of_workspace(), config).unwrap();
    // The gateway listens on its core address alone, which is not there before the dataplane has made the port's twin.
    let text = std::fs::read_to_string(lab.config_file()).unwrap();
    let any = format!("listen: 0.0.0.0:{}", addresses::COA.port());
    assert!(text.contains(&any), "{text}");
    let text = text.replace(&any, &format!("listen: {}", addresses::COA));
    lab.write("gateway.yaml", &text).unwrap();
    let users = format!("{USER} Cleartext-Password := \"{PASSWORD}\"\n\t{reply}\n");
    let port = addresses::RADIUS.port();
    let server = lab.start_freeradius("radius", port, &users).unwrap();
    lab.start_www().unwrap();
    lab.start(Daemon::Dataplane).unwrap();
    lab.start(Daemon::Controlplane).unwrap();
    let client = lab.boot_client().unwrap();
    client.dial(LINK, USER, PASSWORD, "", LIMIT).unwrap();
    let id = wait_for_sessions(&lab, 1).into_keys().next().unwrap();
    (lab, server, id)
}

/// A request for dynamic authorization from the internet host.
fn change(lab: &Lab, command: &str, attributes: &str) -> Option<RadiusReply> {
    let to: SocketAddr = addresses::COA;
    let attributes = format!("User-Name = \"{USER}\", {attributes}, Message-Authenticator = 0x00");
    radclient(lab.internet(), to, command, RADIUS_SECRET, &attributes, 30).unwrap()
}

fn changed(lab: &Lab, attributes: &str) {
    let reply = change(lab, "coa", attributes).unwrap();
    assert_eq!(reply.code, "CoA-ACK", "{reply:?}");
}

/// Rates of a session, up and down, and its filter.
fn terms(lab: &Lab, id: &str) -> (Value, Value, Value) {
    let mut page = session_page(lab, id);
    let policy = &mut page["policy"];
    let rates = ["up", "down"].map(|way| policy[way]["rate_kbps"].take());
    let [up, down] = rates;
    (up, down, policy["filter"].take())
}

/// Pings the internet host three times; how many answers came.
fn answered_pings(lab: &mut Lab) -> usize {
    let ping = format!("busybox ping -c 3 -i 0.2 -W 3 {}", addresses::WWW);
    let (_, text) = lab.client().unwrap().sh_status(&ping, LIMIT).unwrap();
    assert!(text.contains("3 packets transmitted"), "{text}");
    text.matches("bytes from").count()
}

/// Fetches a file and looks at every byte of it.
fn download(lab: &mut Lab, bytes: u64) {
    let get = format!(
        "curl -sS --max-time 100 http://{}/bytes/{bytes} | sha256sum",
        addresses::WWW
    );
    let text = lab.client().unwrap().sh(&get, 2 * LIMIT).unwrap();
    let sum = www::stream_sha256(bytes).unwrap();
    assert!(text.starts_with(&sum), "{text}");
}

fn stop(server: &FreeRadius) -> Attributes {
    let is = |record: &&Attributes| record.get("Acct-Status-Type") == Some("Stop");
    let enough = |all: &[Attributes]| all.iter().any(|record| is(&record));
    let all = server.wait_for_accounting("a stop", LIMIT, enough).unwrap();
    all.iter().find(is).unwrap().clone()
}

#[test]
fn filter_and_rates_of_the_server_hold_and_a_request_to_the_core_address_changes_them() {
    let reply = "Filter-Id = \"no-ping\", WISPr-Bandwidth-Max-Up = 3000000, WISPr-Bandwidth-Max-Down = 6000000";
    let (mut lab, server, id) = dialled(&config(), reply);
    let before = sessions(&lab);
    assert_eq!(
        terms(&lab, &id),
        (3_000.into(), 6_000.into(), "no-ping".into())
    );
    assert_eq!(answered_pings(&mut lab), 0);
    wait_for_drops(&lab, "filter_upstream", 3.0);
    download(&mut lab, 2_000_000);
    assert!(dropped(&lab, "policer_downstream") > 0.0);

    // A rate alone, then a policy, whose filter is none; its rates are after those that were given.
    changed(&lab, "WISPr-Bandwidth-Max-Down = 900000000");
    assert_eq!(
        terms(&lab, &id),
        (3_000.into(), 900_000.into(), "no-ping".into())
    );
    let policed = dropped(&lab, "policer_downstream");
    download(&mut lab, 2_000_000);
    assert_eq!(dropped(&lab, "policer_downstream"), policed);
    changed(&lab, "Filter-Id = \"gold\"");
    assert_eq!(
        terms(&lab, &id),
        (3_000.into(), 900_000.into(), Value::Null)
    );
    assert_eq!(answered_pings(&mut lab), 3);
    changed(
        &lab,
        "Filter-Id = \"no-ping\", WISPr-Bandwidth-Max-Up = 5000000",
    );
    assert_eq!(answered_pings(&mut lab), 0);
    wait_for_drops(&lab, "filter_upstream", 6.0);

    // What names nothing changes nothing.
    for nonsense in [
        "Filter-Id = \"nothing\", WISPr-Bandwidth-Max-Up = 1000000",
        "Filter-Id = \"gold\", NAS-Identifier = \"another\"",
    ] {
        let reply = change(&lab, "coa", nonsense).unwrap();
        assert_eq!(reply.code, "CoA-NAK", "{nonsense}: {reply:?}");
    }
    let now = (5_000.into(), 900_000.into(), "no-ping".into());
    assert_eq!(terms(&lab, &id), now);

    // The terms outlive the control plane, and the address the dataplane with its port.
    lab.kill(Daemon::Controlplane).unwrap();
    lab.kill(Daemon::Dataplane).unwrap();
    lab.start(Daemon::Dataplane).unwrap();
    lab.start(Daemon::Controlplane).unwrap();
    wait_for_health(&lab, "ok");
    assert_eq!(terms(&lab, &id), now);
    assert_eq!(answered_pings(&mut lab), 0);
    lab.kill(Daemon::Dataplane).unwrap();
    lab.start(Daemon::Dataplane).unwrap();
    wait_for_health(&lab, "ok");
    changed(&lab, "Filter-Id = \"gold\"");
    assert_eq!(answered_pings(&mut lab), 3);
    assert_eq!(sessions(&lab), before, "one and the same session");
    let reply = change(&lab, "disconnect", "NAS-Identifier = \"lab\"").unwrap();
    assert_eq!(reply.code, "Disconnect-ACK", "{reply:?}");
    assert_eq!(
        stop(&server).get("Acct-Terminate-Cause"),
        Some("Admin-Reset")
    );
    lab.api().wait_until_conserved().unwrap();
}

/// Out of a program of ours, one packet after the other: no more than what makes the counter go over.
#[test]
fn more_than_four_gigabytes_are_told_as_gigawords() {
    const GOAL: u64 = (1 << 32) + (1 << 20);
    let config = GatewayConfig {
        nat: false,
        workers: 1,
        // The client is cut off for a while, and not found out.
        echo_interval_s: 300,
        ..config()
    };
    let (lab, server, id) = dialled(&config, "Class = 0x31");
    let listed = sessions(&lab).into_values().next().unwrap();
    let address: Ipv4Addr = listed.framed_ip.unwrap().parse().unwrap();
    // The flood is for the gateway to count; it would only keep the client's processor busy.
    lab.subscriber().ip("link set tap0 down").unwrap();
    let route = format!(
        "route replace {address}/32 via {} mtu 1492",
        addresses::GATEWAY_CORE
    );
    lab.internet().ip(&route).unwrap();
    let received = |lab: &Lab| {
        let page = session_page(lab, &id);
        page["downstream_bytes"].as_u64().unwrap()
    };
    let sender = lab.internet().within(|| UdpSocket::bind("0.0.0.0:0"));
    let sender = sender.unwrap().unwrap();
    // As large as goes into the session: 1,492 octets of IP. What the ring of the port has no room for is sent again.
    let give_up = Instant::now() + 8 * LIMIT;
    while received(&lab) < GOAL {
        assert!(Instant::now() < give_up, "{} octets", received(&lab));
        for _ in 0..50_000 {
            let _ = sender.send_to(&[0; 1_464], (address, 9));
        }
    }
    lab.subscriber().ip("link set tap0 up").unwrap();
    let path = format!("/api/v1/sessions/{id}");
    lab.api().delete(&path).unwrap();
    let stop = stop(&server);
    wait_for_sessions(&lab, 0);
    let history = lab.api().get("/api/v1/sessions/history").unwrap();
    let ended = &history["items"][0];
    assert_eq!(stop.number("Acct-Output-Gigawords").unwrap(), 1, "{stop:?}");
    let told = stop.octets("Acct-Output").unwrap();
    assert!(told >= GOAL, "{stop:?}");
    assert_eq!(ended["downstream_bytes"], told, "{ended}");
    assert_eq!(stop.number("Acct-Input-Gigawords").unwrap(), 0);
}
