//! IPv6 to a real Linux router: address by router advertisement, traffic, path MTU, hop limit, source check.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod running_gateway;

use std::time::Duration;

use bng_lab::{GatewayConfig, Lab, addresses, check_checksums, www};
use running_gateway::{LIMIT, PASSWORD, USER, counted, start, wait_for_drops, wait_for_sessions};

const LINK: &str = "wan";
/// Both network protocols, interface identifier of pppd's choice, no RFC 4638.
const DUAL: &str = "+ipv6 mtu 1492 mru 1492";

/// A client that has its global address; returns the address.
fn dialled() -> (Lab, String) {
    let config = GatewayConfig {
        ipv6: true,
        ..GatewayConfig::default()
    };
    let mut lab = start(&config);
    lab.boot_client().unwrap();
    let client = lab.client().unwrap();
    client
        .sh(
            "sysctl -w net.ipv6.conf.default.accept_ra=2 net.ipv6.conf.all.forwarding=0",
            LIMIT,
        )
        .unwrap();
    client.dial(LINK, USER, PASSWORD, DUAL, LIMIT).unwrap();
    wait_for_sessions(&lab, 1);
    // The advertisement comes when it comes; the guest looks until the address is there.
    let look = "for n in $(seq 100); do \
                a=$(ip -6 -o addr show dev ppp0 scope global -tentative | sed 's/.*inet6 \\([^/]*\\).*/\\1/'); \
                [ -n \"$a\" ] && break; sleep 0.1; done; echo $a";
    let client = lab.client().unwrap();
    let address = client.sh(look, LIMIT).unwrap().trim().to_owned();
    assert!(
        !address.is_empty(),
        "no global address: {}",
        client.pppd_log(LINK)
    );
    (lab, address)
}

#[test]
fn client_gets_a_prefix_and_browses_over_ipv6() {
    let (mut lab, address) = dialled();
    assert!(address.starts_with("2001:db8:1000:"), "{address}");
    let session = wait_for_sessions(&lab, 1).into_keys().next().unwrap();
    let session = lab
        .api()
        .get(&format!("/api/v1/sessions/{session}"))
        .unwrap();
    let prefix = session["ipv6_prefix"].as_str().unwrap();
    let delegated = session["delegated_prefix"].as_str().unwrap();
    assert!(
        prefix.ends_with("/64") && delegated.ends_with("/56"),
        "{session}"
    );
    let network = prefix.trim_end_matches("::/64");
    assert!(address.starts_with(network), "{address} in {prefix}");

    let (core, access) = (lab.capture_core().unwrap(), lab.capture_access().unwrap());
    let www6 = addresses::WWW6;
    let client = lab.client().unwrap();
    let text = client
        .sh(&format!("busybox ping -6 -c 3 -i 0.2 -W 30 {www6}"), LIMIT)
        .unwrap();
    assert!(text.contains(" 0% packet loss"), "{text}");
    let sum = client
        .sh(
            &format!("curl -sS --max-time 60 'http://[{www6}]/bytes/4000000' | sha256sum"),
            Duration::from_secs(90),
        )
        .unwrap();
    assert_eq!(
        sum.split(' ').next().unwrap(),
        www::stream_sha256(4_000_000).unwrap()
    );
    // IPv4 goes on beside it.
    let page = client
        .sh(
            &format!("curl -sS --max-time 50 http://{}/", addresses::WWW),
            LIMIT,
        )
        .unwrap();
    assert!(page.contains(www::TITLE), "{page}");
    for capture in [core, access] {
        let report = check_checksums(&capture.stop().unwrap()).unwrap();
        assert_eq!(report.bad, Vec::<String>::new());
        assert!(
            report.good["icmpv6"] >= 6 && report.good["tcp"] >= 2_000,
            "{report:?}"
        );
    }
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn too_big_hop_limit_and_spoofed_sources_are_answered_or_dropped_by_name() {
    let (mut lab, address) = dialled();
    // A packet of 1,493 octets: refused with the size that fits; the sender's kernel fragments from then on.
    let command = format!("busybox ping -6 -c 3 -i 0.2 -W 10 -s 1445 {address}");
    let (_, text) = lab.internet().sh_status(&command).unwrap();
    assert!(text.contains("2 packets received"), "{text}");
    assert_eq!(counted(&lab, "icmp_error_sent"), 1.0);
    let route = lab
        .internet()
        .ip(&format!("-6 route get {address}"))
        .unwrap();
    assert!(route.contains("mtu 1492"), "{route}");

    let www6 = addresses::WWW6;
    let client = lab.client().unwrap();
    let hops = client
        .sh(
            &format!("busybox traceroute6 -n -q 1 -w 20 -m 3 {www6}"),
            LIMIT,
        )
        .unwrap();
    assert!(
        hops.contains(&addresses::GATEWAY_CORE6.to_string()),
        "{hops}"
    );
    assert!(hops.contains(&www6.to_string()), "{hops}");

    client
        .sh(
            "ip -6 addr add 2001:db8:1000:ffff::99/128 dev lo nodad",
            LIMIT,
        )
        .unwrap();
    client
        .sh_status(
            &format!("busybox ping -6 -I 2001:db8:1000:ffff::99 -c 3 -W 1 {www6}"),
            LIMIT,
        )
        .unwrap();
    wait_for_drops(&lab, "source_spoofed", 3.0);
    lab.api().wait_until_conserved().unwrap();
}
