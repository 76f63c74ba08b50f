//! Policies at work on a real Linux router: rates changed live, filters, source check, protection of the gateway.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod running_gateway;

use std::time::Duration;

use bng_lab::{GatewayConfig, Lab, User, addresses, wait_until, www};
use running_gateway::{
    LIMIT, PASSWORD, USER, dropped, policy_of, start, wait_for_drops, wait_for_sessions,
};
use serde_json::json;

const LINK: &str = "wan";
const POLICIES: &str = "\
policies:
  - { name: slow, up: { rate_kbps: 4000, burst_bytes: 64000 }, down: { rate_kbps: 8000, burst_bytes: 200000 } }
  - { name: quick, down: { rate_kbps: 800000, burst_bytes: 4000000 } }
  - { name: school, filter: no-mail }
filters:
  - name: no-mail
    up: [ { action: drop, protocol: tcp, remote_ports: 25 } ]
    down: [ { action: drop, protocol: icmp } ]
";

fn dialled(policy: &str) -> (Lab, String) {
    let config = GatewayConfig {
        users: vec![User {
            policy: Some(policy.to_owned()),
            ..User::new(USER, PASSWORD)
        }],
        more: POLICIES.to_owned(),
        ..GatewayConfig::default()
    };
    let mut lab = start(&config);
    lab.boot_client().unwrap();
    let client = lab.client().unwrap();
    client.dial(LINK, USER, PASSWORD, "", LIMIT).unwrap();
    let id = wait_for_sessions(&lab, 1).into_keys().next().unwrap();
    assert_eq!(policy_of(&lab, &id), policy);
    (lab, id)
}

/// Kilobits of TCP payload per second of a download of `bytes`, as curl measures it.
fn download_kbps(lab: &mut Lab, bytes: u32) -> f64 {
    let get = format!(
        "curl -sS -o /dev/null -w '%{{speed_download}}' --max-time 60 http://{}/bytes/{bytes}",
        addresses::WWW
    );
    let text = lab
        .client()
        .unwrap()
        .sh(&get, Duration::from_secs(90))
        .unwrap();
    text.trim().parse::<f64>().unwrap() * 8.0 / 1000.0
}

#[test]
fn a_rate_holds_and_a_live_change_takes_effect_without_a_drop_of_the_session() {
    let (mut lab, id) = dialled("slow");
    let slow = download_kbps(&mut lab, 3_000_000);
    // 8,000 kbit/s of IP packets and the burst carry at most that much payload; how much of it TCP uses is TCP's affair.
    assert!((500.0..8_700.0).contains(&slow), "{slow} kbit/s");
    assert!(dropped(&lab, "policer_downstream") > 0.0);

    lab.api()
        .patch(
            &format!("/api/v1/sessions/{id}/policy"),
            &json!({ "policy": "quick" }),
        )
        .unwrap();
    assert_eq!(policy_of(&lab, &id), "quick");
    let drops = dropped(&lab, "policer_downstream");
    let quick = download_kbps(&mut lab, 3_000_000);
    assert!(quick > 2.0 * slow, "{quick} after {slow} kbit/s");
    assert_eq!(
        dropped(&lab, "policer_downstream"),
        drops,
        "far below the new rate"
    );
    let sessions = wait_for_sessions(&lab, 1);
    assert!(sessions.contains_key(&id), "the same session");
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn a_filter_stops_what_it_names_and_nothing_else() {
    let (mut lab, id) = dialled("school");
    let www = addresses::WWW;
    let client = lab.client().unwrap();
    let page = client
        .sh(&format!("curl -sS --max-time 50 http://{www}/"), LIMIT)
        .unwrap();
    assert!(page.contains(www::TITLE), "{page}");
    let mail = format!("curl -sS --connect-timeout 2 telnet://{www}:25");
    let (status, text) = client.sh_status(&mail, LIMIT).unwrap();
    assert_eq!(status, 28, "no answer at all, not a refusal: {text}");
    let (_, text) = client
        .sh_status(&format!("busybox ping -c 2 -W 1 {www}"), LIMIT)
        .unwrap();
    assert!(text.contains("100% packet loss"), "{text}");
    assert!(dropped(&lab, "filter_upstream") >= 1.0);
    wait_for_drops(&lab, "filter_downstream", 2.0);

    // Without the filter the server's kernel refuses the connection, which is an answer.
    lab.api()
        .patch(
            &format!("/api/v1/sessions/{id}/policy"),
            &json!({ "filter": null }),
        )
        .unwrap();
    let client = lab.client().unwrap();
    let patient = mail.replace("timeout 2", "timeout 50");
    assert_eq!(client.sh_status(&patient, LIMIT).unwrap().0, 7);
    let text = client
        .sh(&format!("busybox ping -c 2 -W 30 {www}"), LIMIT)
        .unwrap();
    assert!(text.contains(" 0% packet loss"), "{text}");
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn spoofed_packets_and_packets_to_the_gateway_itself_end_in_their_counters() {
    let (mut lab, _) = dialled("quick");
    let www = addresses::WWW;
    let client = lab.client().unwrap();
    client
        .sh("ip addr add 100.64.3.99/32 dev lo", LIMIT)
        .unwrap();
    client
        .sh_status(
            &format!("busybox ping -I 100.64.3.99 -c 3 -W 1 {www}"),
            LIMIT,
        )
        .unwrap();
    wait_for_drops(&lab, "source_spoofed", 3.0);

    let client = lab.client().unwrap();
    // Its address on the session answers a ping, and nothing else; its address on the core port does not even that.
    let text = client
        .sh("busybox ping -c 1 -W 30 100.64.0.1", LIMIT)
        .unwrap();
    assert!(text.contains(" 0% packet loss"), "{text}");
    for address in ["100.64.0.1".to_owned(), addresses::GATEWAY_CORE.to_string()] {
        let before = dropped(&lab, "destination_gateway");
        let get = format!("curl -sS --connect-timeout 2 http://{address}:8080/metrics");
        let (status, text) = lab.client().unwrap().sh_status(&get, LIMIT).unwrap();
        assert_eq!(status, 28, "{address}: {text}");
        let now = || Ok(dropped(&lab, "destination_gateway"));
        wait_until(&address, LIMIT, now, |now| *now > before).unwrap();
    }
    lab.api().wait_until_conserved().unwrap();
}
