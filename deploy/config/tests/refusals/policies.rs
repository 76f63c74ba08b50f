//! Policies and filters.

use std::path::Path;

use bng_config::Config;

use super::{GOOD, appended, refusal};

#[test]
fn policies_and_filters_that_do_not_fit_together() {
    let policy = "policies: [{ name: gold, up: { rate_kbps: 1000 }, filter: kids }]\n";
    appended(
        policy,
        "bng.yaml:14:59: policies[0].filter: there is no filter `kids`; none is known here, remove it",
    );
    appended(
        "auth: { default_policy: gld }\npolicies: [{ name: gold }]\n",
        "bng.yaml:14:25: auth.default_policy: there is no policy `gld`; known here: gold",
    );
    appended(
        "auth: { users: [{ name: a, password: b, policy: gold }] }\n",
        "bng.yaml:14:49: auth.users[0].policy: there is no policy `gold`; none is known here, remove it",
    );
    appended(
        "policies: [{ name: gold }, { name: gold }]\n",
        "bng.yaml:14:36: policies[1].name: `gold` is already used by policies[0].name (line 14); choose another",
    );
    appended(
        "policies: [{ name: gold, up: { rate_kbps: 0 } }]\n",
        "bng.yaml:14:43: policies[0].up.rate_kbps: `0` is not allowed; write a whole number from 1 to 400000000 (kbit/s)",
    );
    let jumbo = GOOD.replace("role: access", "role: access\n      mtu: 9000")
        + "pppoe: { mru: 8000 }\npolicies: [{ name: slow, down: { rate_kbps: 64 } }]\n";
    assert_eq!(
        refusal(&jumbo),
        "bng.yaml:16:26: policies[0].down.burst_bytes: a burst of 3000 bytes never lets a packet of 8000 bytes pass, the largest of a session; write burst_bytes of at least that"
    );
}

#[test]
fn the_default_policy_needs_no_entry() {
    let text = format!("{GOOD}auth: {{ users: [{{ name: a, password: b, policy: default }}] }}\n");
    Config::parse(text.as_bytes(), Path::new("bng.yaml")).unwrap();
}

#[test]
fn filter_rules_that_fit_no_packet() {
    let rule = |rule: &str, expected: &str| {
        appended(
            &format!("filters: [{{ name: f, up: [{{ {rule} }}] }}]\n"),
            expected,
        );
    };
    rule(
        "action: drop, protocol: icmp, remote_ports: 7",
        "bng.yaml:14:73: filters[0].up[0].remote_ports: only tcp and udp have ports; remove it or correct protocol",
    );
    rule(
        "action: drop, protocol: icmp, remote: 2001:db8::/32",
        "bng.yaml:14:27: filters[0].up[0]: fits no packet: icmp is not used over IPv6; correct protocol or remote",
    );
    rule(
        "action: drop, remote: 2001:db8::1/32",
        "bng.yaml:14:51: filters[0].up[0].remote: 2001:db8::1/32 is not the start of its prefix; write 2001:db8::/32",
    );
    rule(
        "action: drop, local_ports: 30-20",
        "bng.yaml:14:56: filters[0].up[0].local_ports: `30-20` is not allowed; write a port from 0 to 65535, or a range such as 137-139",
    );
    rule(
        "action: drop, protocol: sctp",
        "bng.yaml:14:53: filters[0].up[0].protocol: `sctp` is not allowed; write tcp, udp, icmp, icmpv6 or a number from 0 to 255",
    );
    rule(
        "action: reject",
        "bng.yaml:14:37: filters[0].up[0].action: `reject` is not allowed; write accept or drop",
    );
    rule(
        "protocol: tcp",
        "bng.yaml:14:27: filters[0].up[0]: the key `action` is missing; add it: accept or drop",
    );
}
