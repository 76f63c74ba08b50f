//! Every kind of mistake, with the exact line the operator reads.
// Helpers of tests are tests too, but clippy sees only functions marked as such.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;

use bng_config::{Config, Problem};

/// A configuration with nothing that has a default, as lines with numbers to count on.
const GOOD: &str = r#"dataplane:
  workers: [1, 2]
  ports:
    - name: access0
      role: access
      device: "0000:3b:00.0"
    - name: core0
      role: core
      device: "0000:3b:00.1"
pools:
  - name: subscribers
    ranges: [100.64.0.0/20]
    gateway: 100.64.0.1
"#;

fn refusal(text: &str) -> String {
    match Config::parse(text.as_bytes(), Path::new("bng.yaml")) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(error) => error.to_string(),
    }
}

/// Replaces one piece of [`GOOD`] and expects exactly this error.
#[track_caller]
fn changed(from: &str, to: &str, expected: &str) {
    assert_eq!(
        GOOD.matches(from).count(),
        1,
        "not once in the good file: {from}"
    );
    assert_eq!(refusal(&GOOD.replace(from, to)), expected);
}

/// Appends to [`GOOD`], from line 14 on, and expects exactly this error.
#[track_caller]
fn appended(more: &str, expected: &str) {
    assert_eq!(refusal(&format!("{GOOD}{more}")), expected);
}

#[test]
fn smallest_good_file_is_accepted() {
    let config = Config::parse(GOOD.as_bytes(), Path::new("bng.yaml")).unwrap();
    assert_eq!(config.access_port_count(), 1);
    assert_eq!(config.pools[0].capacity(), 4093);
}

#[test]
fn shape_of_the_document() {
    let cases: &[(&str, &str)] = &[
        (
            "",
            "bng.yaml:1:1: the key `dataplane` is missing; add it: keys and values, indented below",
        ),
        (
            "# nothing\n",
            "bng.yaml:1:1: the key `dataplane` is missing; add it: keys and values, indented below",
        ),
        (
            "[1, 2]\n",
            "bng.yaml:1:1: a list is not allowed; write keys and values, indented below",
        ),
        (
            "hello\n",
            "bng.yaml:1:1: this value is not allowed; write keys and values, indented below",
        ),
        (
            "pools: [\n",
            "bng.yaml:2:1: is not valid YAML (while parsing a node, did not find expected node content); check indentation, quotes and colons here",
        ),
        (
            "log: {level: info}\nlog: {level: warn}\n",
            "bng.yaml:2:1: log: is given twice, first on line 1; remove one",
        ),
        (
            "log: &l {level: info}\n",
            "bng.yaml:1:6: log: uses a YAML anchor, which is not supported; write the value out",
        ),
        (
            "log: !!map {level: info}\n",
            "bng.yaml:1:6: log: uses a YAML tag, which is not supported; write the value out",
        ),
        (
            "log: {}\n---\nlog: {}\n",
            "bng.yaml:2:1: a second YAML document starts here; keep everything in one document",
        ),
        (
            "{[a]: b}\n",
            "bng.yaml:1:2: a key must be a plain word; check indentation and colons here",
        ),
        (
            "a: [[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]\n",
            "bng.yaml:1:19: a[0][0][0][0][0][0][0][0][0][0][0][0][0][0][0]: is nested too deeply; no key needs more than 16 levels",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(refusal(text), *expected, "for {text:?}");
    }
}

#[test]
fn unknown_keys_name_the_nearest_known_one() {
    changed(
        "      device: \"0000:3b:00.0\"",
        "      device: a\n      mtuu: 1508",
        "bng.yaml:7:7: dataplane.ports[0].mtuu: unknown key; did you mean `mtu`?",
    );
    changed(
        "    gateway: 100.64.0.1",
        "    gatway: 100.64.0.1",
        "bng.yaml:13:5: pools[0].gatway: unknown key; did you mean `gateway`?",
    );
    appended(
        "log: { colour: always }\n",
        "bng.yaml:14:8: log.colour: unknown key; known here: level",
    );
    appended(
        "\"lo\\ng\": {}\n",
        "bng.yaml:14:1: lo\\ng: unknown key; did you mean `log`?",
    );
}

#[test]
fn missing_keys_say_where_and_what() {
    changed(
        "      role: access\n",
        "",
        "bng.yaml:4:7: dataplane.ports[0]: the key `role` is missing; add it: access or core",
    );
    changed(
        "  workers: [1, 2]\n",
        "",
        "bng.yaml:1:1: dataplane: the key `workers` is missing; add it: a list of 1 to 64 entries",
    );
    changed(
        "    gateway: 100.64.0.1\n",
        "",
        "bng.yaml:11:5: pools[0]: the key `gateway` is missing; add it: an IPv4 address such as 192.0.2.1",
    );
}

#[test]
fn bad_values_say_what_to_write() {
    changed(
        "[1, 2]",
        "[1, two]",
        "bng.yaml:2:16: dataplane.workers[1]: `two` is not allowed; write a whole number from 0 to 1023 (core id)",
    );
    changed(
        "[1, 2]",
        "[]",
        "bng.yaml:2:3: dataplane.workers: has 0 entries; write a list of 1 to 64 entries",
    );
    changed(
        "[1, 2]",
        "3",
        "bng.yaml:2:12: dataplane.workers: `3` is not allowed; write a list of 1 to 64 entries",
    );
    changed(
        "access0",
        "Access 0",
        "bng.yaml:4:13: dataplane.ports[0].name: `Access 0` is not allowed; write 1 to 15 of a-z 0-9 -",
    );
    changed(
        "role: access",
        "role: subscriber",
        "bng.yaml:5:13: dataplane.ports[0].role: `subscriber` is not allowed; write access or core",
    );
    changed(
        "device: \"0000:3b:00.0\"",
        "device:",
        "bng.yaml:6:13: dataplane.ports[0].device: has no value; write text of 1 to 255 bytes",
    );
    changed(
        "device: \"0000:3b:00.0\"",
        "device: {}",
        "bng.yaml:6:7: dataplane.ports[0].device: a section is not allowed; write text of 1 to 255 bytes",
    );
    changed(
        "[100.64.0.0/20]",
        "[100.64.0.0/33]",
        "bng.yaml:12:14: pools[0].ranges[0]: `100.64.0.0/33` is not allowed; write an IPv4 prefix or address such as 198.51.100.0/24",
    );
    changed(
        "gateway: 100.64.0.1",
        "gateway: 2001:db8::1",
        "bng.yaml:13:14: pools[0].gateway: `2001:db8::1` is not allowed; write an IPv4 address such as 192.0.2.1",
    );
    appended(
        "pppoe: { mru: 9999 }\n",
        "bng.yaml:14:15: pppoe.mru: `9999` is not allowed; write a whole number from 576 to 9592 (bytes)",
    );
    appended(
        "pppoe: { mru: 01492 }\n",
        "bng.yaml:14:15: pppoe.mru: `01492` is not allowed; write a whole number from 576 to 9592 (bytes)",
    );
    appended(
        "pppoe: { echo: { interval_s: -1 } }\n",
        "bng.yaml:14:30: pppoe.echo.interval_s: `-1` is not allowed; write a whole number from 1 to 3600 (seconds)",
    );
    appended(
        "log: { level: loud }\n",
        "bng.yaml:14:15: log.level: `loud` is not allowed; write error or warn or info or debug or trace",
    );
    appended(
        "api: { listen: localhost }\n",
        "bng.yaml:14:16: api.listen: `localhost` is not allowed; write an IP address and TCP port such as 127.0.0.1:8080",
    );
    appended(
        "api: { token_file: token }\n",
        "bng.yaml:14:20: api.token_file: `token` is not allowed; write a path that starts with /",
    );
    appended(
        "auth: { protocols: [chap] }\n",
        "bng.yaml:14:21: auth.protocols[0]: `chap` is not allowed; write pap",
    );
    changed(
        "  workers: [1, 2]",
        "  workers: [1, 2]\n  eal: { hugepages: yes }",
        "bng.yaml:3:21: dataplane.eal.hugepages: `yes` is not allowed; write true or false",
    );
}

#[test]
fn values_stay_on_one_line_and_short() {
    changed(
        "device: \"0000:3b:00.0\"",
        "device: \"a\\nb\"",
        "bng.yaml:6:15: dataplane.ports[0].device: `a\\nb` is not allowed; write text of 1 to 255 bytes",
    );
    let long = "x".repeat(300);
    let shown = "x".repeat(60);
    changed(
        "name: access0",
        &format!("name: {long}"),
        &format!(
            "bng.yaml:4:13: dataplane.ports[0].name: `{shown}...` is not allowed; write 1 to 15 of a-z 0-9 -"
        ),
    );
}

#[test]
fn ports_that_do_not_go_together() {
    changed(
        "name: core0",
        "name: access0",
        "bng.yaml:7:13: dataplane.ports[1].name: `access0` is already used by dataplane.ports[0].name (line 4); choose another",
    );
    changed(
        "3b:00.1",
        "3b:00.0",
        "bng.yaml:9:15: dataplane.ports[1].device: `0000:3b:00.0` is already used by dataplane.ports[0].device (line 6); choose another",
    );
    changed(
        "role: core",
        "role: access",
        "bng.yaml:3:3: dataplane.ports: there is no core port; add a port with `role: core`",
    );
    changed(
        "role: access",
        "role: core",
        "bng.yaml:3:3: dataplane.ports: there is no access port; add a port with `role: access`",
    );
    changed(
        "role: access",
        "role: access\n      addresses: [192.0.2.2/30]",
        "bng.yaml:6:7: dataplane.ports[0].addresses: only a core port has addresses and routes; remove it or set `role: core`",
    );
    changed(
        "role: core",
        "role: core\n      addresses: [192.0.2.2/30]\n      routes: [{ to: default, via: 192.0.2.9 }]",
        "bng.yaml:10:36: dataplane.ports[1].routes[0].via: 192.0.2.9 is not in the network of any of this port's addresses; correct it or add an address to the port",
    );
    changed(
        "role: core",
        "role: core\n      addresses: [192.0.2.2/30, 192.0.2.2/24]",
        "bng.yaml:9:33: dataplane.ports[1].addresses[1]: 192.0.2.2/32 overlaps 192.0.2.2/32 of dataplane.ports[1].addresses[0] (line 9); give each its own addresses",
    );
}

#[test]
fn cores_and_buffers_that_do_not_suffice() {
    changed(
        "[1, 2]",
        "[1, 1]",
        "bng.yaml:2:16: dataplane.workers[1]: core 1 is already used by dataplane.workers[0]; give each a core of its own, or set dataplane.idle_backoff_us above 0",
    );
    changed(
        "[1, 2]",
        "[1, 0]",
        "bng.yaml:2:16: dataplane.workers[1]: core 0 is already used by dataplane.main_core; give each a core of its own, or set dataplane.idle_backoff_us above 0",
    );
    changed(
        "[1, 2]",
        "[1, 2]\n  mbufs: 4096",
        "bng.yaml:3:10: dataplane.mbufs: 4096 buffers are fewer than the 15232 that 2 worker(s) need (descriptors of all ports for each, rings between threads, caches); raise it or lower rx_descriptors and tx_descriptors",
    );
    changed(
        "[1, 2]",
        "[1, 2]\n  eal: { extra_args: [--file-prefix=x] }",
        "bng.yaml:3:23: dataplane.eal.extra_args[0]: `--file-prefix` is set by bng-dataplane itself; remove it and use dataplane.eal.file_prefix",
    );
}

#[test]
fn workers_may_share_a_core_when_they_sleep() {
    let text = GOOD.replace("[1, 2]", "[0, 0]\n  idle_backoff_us: 100");
    assert!(Config::parse(text.as_bytes(), Path::new("bng.yaml")).is_ok());
}

#[test]
fn sizes_no_port_can_carry() {
    appended(
        "pppoe: { mru: 1500 }\n",
        "bng.yaml:14:15: pppoe.mru: 1500 fits no access port (the largest mtu is 1500, PPPoE takes 8); write at most 1492, or raise the port's mtu",
    );
    appended(
        "pppoe: { mru: 1000, min_mru: 1400 }\n",
        "bng.yaml:14:30: pppoe.min_mru: 1400 is above pppoe.mru (1000); lower it or raise pppoe.mru",
    );
    changed(
        "role: access",
        "role: access\n      mtu: 576",
        "bng.yaml:6:12: dataplane.ports[0].mtu: an mtu of 576 cannot carry pppoe.min_mru (576) and 8 bytes of PPPoE; raise it or lower pppoe.min_mru",
    );
}

#[test]
fn addresses_that_collide() {
    changed(
        "[100.64.0.0/20]",
        "[100.64.0.0/20, 100.64.8.0/24]",
        "bng.yaml:12:29: pools[0].ranges[1]: 100.64.8.0/24 overlaps 100.64.0.0/20 of pools[0].ranges[0] (line 12); give each its own addresses",
    );
    changed(
        "pools:\n",
        "pools:\n  - name: vip\n    ranges: [100.64.15.0/24]\n    gateway: 100.65.0.1\n",
        "bng.yaml:15:14: pools[1].ranges[0]: 100.64.0.0/20 overlaps 100.64.15.0/24 of pools[0].ranges[0] (line 12); give each its own addresses",
    );
    changed(
        "pools:\n",
        "pools:\n  - name: vip\n    ranges: [100.65.0.0/24]\n    gateway: 100.64.0.9\n",
        "bng.yaml:13:14: pools[0].gateway: 100.64.0.9/32 overlaps 100.64.0.0/20 of pools[1].ranges[0] (line 15); give each its own addresses",
    );
    appended(
        "nat: { pools: [{ name: cgn, addresses: [100.64.1.1] }] }\n",
        "bng.yaml:14:41: nat.pools[0].addresses[0]: 100.64.1.1/32 overlaps 100.64.0.0/20 of pools[0].ranges[0] (line 12); give each its own addresses",
    );
    changed(
        "role: core",
        "role: core\n      addresses: [100.64.3.1/30]",
        "bng.yaml:9:19: dataplane.ports[1].addresses[0]: 100.64.3.1/32 overlaps 100.64.0.0/20 of pools[0].ranges[0] (line 13); give each its own addresses",
    );
}

#[test]
fn addresses_that_make_no_sense() {
    changed(
        "[100.64.0.0/20]",
        "[100.64.0.1/20]",
        "bng.yaml:12:14: pools[0].ranges[0]: 100.64.0.1/20 is not the start of its prefix; write 100.64.0.0/20",
    );
    changed(
        "[100.64.0.0/20]",
        "[224.0.0.0/24]",
        "bng.yaml:12:14: pools[0].ranges[0]: 224.0.0.0 is not a unicast address; choose one that a host can have",
    );
    changed(
        "[100.64.0.0/20]",
        "[100.64.0.1]",
        "bng.yaml:12:5: pools[0].ranges: nothing is left to hand out after the gateway and the ends of each prefix; use a larger range",
    );
    changed(
        "[100.64.0.0/20]",
        "[10.0.0.0/8]",
        "bng.yaml:12:5: pools[0].ranges: has 16777216 addresses; 1048576 are supported, use a smaller range",
    );
    changed(
        "gateway: 100.64.0.1",
        "gateway: 0.0.0.0",
        "bng.yaml:13:14: pools[0].gateway: 0.0.0.0 is not a unicast address; choose one that a host can have",
    );
}

#[test]
fn nat_pools_that_do_not_fit() {
    changed(
        "gateway: 100.64.0.1",
        "gateway: 100.64.0.1\n    nat: cgn",
        "bng.yaml:14:10: pools[0].nat: there is no NAT pool `cgn`; none is known here, remove it",
    );
    let known = GOOD.replace("gateway: 100.64.0.1", "gateway: 100.64.0.1\n    nat: cng")
        + "nat: { pools: [{ name: cgn, addresses: [203.0.113.0/28] }] }\n";
    assert_eq!(
        refusal(&known),
        "bng.yaml:14:10: pools[0].nat: there is no NAT pool `cng`; known here: cgn"
    );
    appended(
        "nat: { pools: [{ name: cgn, addresses: [203.0.113.0/28], block_size: 500 }] }\n",
        "bng.yaml:14:70: nat.pools[0].block_size: 500 is not a power of two; write 64, 128, 256, 512, 1024, 2048, 4096, 8192 or 16384",
    );
    appended(
        "nat: { pools: [{ name: cgn, addresses: [203.0.0.0/15] }] }\n",
        "bng.yaml:14:29: nat.pools[0].addresses: has 131072 addresses; 65536 are supported, use a smaller range",
    );
}

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

#[test]
fn vlan_entries_that_serve_nobody_or_name_nothing() {
    let vlans = |entries: &str, expected: &str| {
        changed(
            "role: access",
            &format!("role: access\n      vlans: [{entries}]"),
            expected,
        );
    };
    vlans(
        "{ s_vlan: 5000 }",
        "bng.yaml:6:25: dataplane.ports[0].vlans[0].s_vlan: `5000` is not allowed; write a VLAN id from 1 to 4094, a range such as 100-199, any or none",
    );
    vlans(
        "{ s_vlan: none, c_vlan: 7 }",
        "bng.yaml:6:39: dataplane.ports[0].vlans[0].c_vlan: a frame without an outer tag has no inner one; write `c_vlan: none` or another s_vlan",
    );
    vlans(
        "{ s_vlan: 1-9 }, { s_vlan: 5-20 }, { s_vlan: 7-15 }",
        "bng.yaml:6:50: dataplane.ports[0].vlans[2]: every VLAN of this entry is taken by entries before it, first by dataplane.ports[0].vlans[0] (line 6); remove it or move it up",
    );
    vlans(
        "{ s_vlan: 1, policy: gold }",
        "bng.yaml:6:36: dataplane.ports[0].vlans[0].policy: there is no policy `gold`; none is known here, remove it",
    );
    vlans(
        "{ s_vlan: 1, pool: gold }",
        "bng.yaml:6:34: dataplane.ports[0].vlans[0].pool: there is no address pool `gold`; known here: subscribers",
    );
    vlans(
        "{ s_vlan: 1, mru: 1500 }",
        "bng.yaml:6:33: dataplane.ports[0].vlans[0].mru: 1500 does not fit the port (its mtu is 1500, PPPoE takes 8); write at most 1492, or raise the mtu",
    );
    vlans(
        "{ s_vlan: 1, service_names: [a, a] }",
        "bng.yaml:6:47: dataplane.ports[0].vlans[0].service_names[1]: `a` is already used by dataplane.ports[0].vlans[0].service_names[0] (line 6); choose another",
    );
    changed(
        "role: core",
        "role: core\n      vlans: [{ s_vlan: any }]",
        "bng.yaml:9:7: dataplane.ports[1].vlans: only an access port has vlans; remove it or set `role: access`",
    );
    let floor = GOOD.replace(
        "role: access",
        "role: access\n      vlans: [{ s_vlan: 1, mru: 600 }]",
    ) + "pppoe: { min_mru: 700 }\n";
    assert_eq!(
        refusal(&floor),
        "bng.yaml:6:33: dataplane.ports[0].vlans[0].mru: 600 is below pppoe.min_mru (700); raise it or lower pppoe.min_mru"
    );
}

#[test]
fn more_than_the_shared_memory_holds() {
    let ports: String = (1..17)
        .map(|n| format!("    - {{ name: access{n}, role: access, device: d{n} }}\n"))
        .collect();
    changed(
        "pools:\n",
        &format!("{ports}pools:\n"),
        "bng.yaml:3:3: dataplane.ports: there are 17 access ports; 16 are supported, remove some",
    );
    let ranges: Vec<String> = (0..256).map(|n| format!("10.0.{n}.0/24")).collect();
    appended(
        &format!(
            "nat: {{ pools: [{{ name: cgn, addresses: [{}] }}] }}\n",
            ranges.join(", ")
        ),
        "bng.yaml:10:1: pools: there are 257 ranges in all pools and NAT pools; 256 are supported, remove some",
    );
}

#[test]
fn services_that_collide() {
    appended(
        "api: { metrics_listen: \"127.0.0.1:8080\" }\n",
        "bng.yaml:14:24: api.metrics_listen: is the same as api.listen, which serves /metrics already; remove it or choose another port",
    );
}

#[test]
fn passwords_are_never_shown() {
    let long = "hunter2".repeat(40);
    let expected = "bng.yaml:14:38: auth.users[0].password: this value is not allowed; write text of at most 255 bytes, in quotes";
    appended(
        &format!("auth: {{ users: [{{ name: a, password: {long} }}] }}\n"),
        expected,
    );
    appended(
        "auth: { users: [{ name: a, password: hunter2 }, { name: a, password: hunter2 }] }\n",
        "bng.yaml:14:57: auth.users[1].name: `a` is already used by auth.users[0].name (line 14); choose another",
    );
    let text = format!("{GOOD}auth: {{ users: [{{ name: a, password: hunter2 }}] }}\n");
    let config = Config::parse(text.as_bytes(), Path::new("bng.yaml")).unwrap();
    assert_eq!(config.auth.users.len(), 1);
    assert!(!format!("{config:?} {config:#?}").contains("hunter2"));
}

#[test]
fn passwords_in_the_wrong_place_are_not_shown_either() {
    appended(
        "auth: { users: [{ name: a, password:hunter2 }] }\n",
        "bng.yaml:14:28: auth.users[0].password: needs a space after the colon; write `password: value`",
    );
    appended(
        "auth:\n  users:\n    - password:hunter2\n",
        "bng.yaml:16:7: auth.users[0]: this value is not allowed; write keys and values, indented below",
    );
    appended(
        "auth: { users: hunter2 }\n",
        "bng.yaml:14:16: auth.users: this value is not allowed; write a list",
    );
    appended(
        "auth: { users: [{ name: a, password: [hunter2] }] }\n",
        "bng.yaml:14:28: auth.users[0].password: a list is not allowed; write text of at most 255 bytes, in quotes",
    );
}

#[test]
fn empty_password_must_be_written_out() {
    appended(
        "auth: { users: [{ name: a, password: }] }\n",
        "bng.yaml:14:36: auth.users[0].password: has no value; write text of at most 255 bytes, in quotes",
    );
    let text = format!("{GOOD}auth: {{ users: [{{ name: a, password: \"\" }}] }}\n");
    assert!(Config::parse(text.as_bytes(), Path::new("bng.yaml")).is_ok());
}

#[test]
fn files_that_cannot_be_read() {
    let error = Config::load("/nonexistent/bng.yaml").unwrap_err();
    assert_eq!(
        error.to_string(),
        "/nonexistent/bng.yaml: cannot be read (No such file or directory (os error 2)); check the path and the permissions"
    );
    assert!(matches!(*error.problem, Problem::Unreadable(_)));
    let error = Config::parse(b"log: \xff\n", Path::new("bng.yaml")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "bng.yaml: is not UTF-8 text; save the file as UTF-8"
    );
}

/// A directory of its own for one test, removed at the end.
struct Directory(std::path::PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bng-config-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn load(&self, main: &str, users: &str) -> Result<Config, String> {
        std::fs::write(self.0.join("bng.yaml"), main).unwrap();
        std::fs::write(self.0.join("users.yaml"), users).unwrap();
        let prefix = format!("{}/", self.0.display());
        Config::load(self.0.join("bng.yaml"))
            .map_err(|error| error.to_string().replace(&prefix, ""))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn users_file_joins_the_users_and_is_named_in_its_errors() {
    let directory = Directory::new("users");
    let main = format!(
        "{GOOD}auth: {{ users: [{{ name: alice, password: a }}], users_file: users.yaml }}\n"
    );
    let config = directory
        .load(
            &main,
            "- { name: bob, password: b }\n- { name: carol, password: c }\n",
        )
        .unwrap();
    let names: Vec<&str> = config
        .auth
        .users
        .iter()
        .map(|user| user.name.as_str())
        .collect();
    assert_eq!(names, ["alice", "bob", "carol"]);
    let cases = [
        (
            "- { name: bob }\n",
            "users.yaml:1:3: [0]: the key `password` is missing; add it: text of at most 255 bytes, in quotes",
        ),
        (
            "- { name: alice, password: b }\n",
            "users.yaml:1:11: [0].name: the user `alice` is also in auth.users; keep one of the two",
        ),
        (
            "- { name: bob, password: b }\n- { name: bob, password: c }\n",
            "users.yaml:2:11: [1].name: `bob` is already used by [0].name (line 1); choose another",
        ),
        (
            "- { name: bob, password: b, policy: gold }\n",
            "users.yaml:1:37: [0].policy: there is no policy `gold`; none is known here, remove it",
        ),
        (
            "users: []\n",
            "users.yaml:1:1: a section is not allowed; write a list",
        ),
    ];
    for (users, expected) in cases {
        assert_eq!(directory.load(&main, users).unwrap_err(), expected);
    }
    let missing = main.replace("users.yaml", "nobody.yaml");
    assert!(
        directory
            .load(&missing, "")
            .unwrap_err()
            .starts_with("nobody.yaml: cannot be read")
    );
}

#[test]
fn ipv6_of_pools_and_ports() {
    let pool = |ipv6: &str| format!("    gateway: 100.64.0.1\n    ipv6: {{ {ipv6} }}");
    for (ipv6, expected) in [
        (
            "delegated_length: 56",
            "bng.yaml:14:5: pools[0].ipv6: the key `prefixes` is missing; add it: a list of 1 to 32 entries",
        ),
        (
            "prefixes: [2001:db8::1/48]",
            "bng.yaml:14:24: pools[0].ipv6.prefixes[0]: 2001:db8::1/48 is not the start of its prefix; write 2001:db8::/48",
        ),
        (
            "prefixes: [2001:db8::/65]",
            "bng.yaml:14:24: pools[0].ipv6.prefixes[0]: 2001:db8::/65 holds no /64; write a prefix of length 64 or less",
        ),
        (
            "prefixes: [fe80::/48]",
            "bng.yaml:14:24: pools[0].ipv6.prefixes[0]: fe80:: is not a unicast address; choose one that a host can have",
        ),
        (
            "prefixes: [2001:db8::/32]",
            "bng.yaml:14:24: pools[0].ipv6.prefixes[0]: 2001:db8::/32 is cut into 4294967296 prefixes, all pools together may have 16777216; use a smaller range",
        ),
        (
            "prefixes: [2001:db8::/48], delegated: [2001:db8:0:100::/56]",
            "bng.yaml:14:52: pools[0].ipv6.delegated[0]: 2001:db8:0:100::/56 overlaps 2001:db8::/48 of pools[0].ipv6.prefixes[0] (line 14); give each its own addresses",
        ),
    ] {
        changed("    gateway: 100.64.0.1", &pool(ipv6), expected);
    }
    changed(
        "role: core",
        "role: core\n      addresses: [192.0.2.2/30, 2001:db8::2/64]\n      routes: [{ to: 2001:db8:9::/48, via: 192.0.2.1 }]",
        "bng.yaml:10:44: dataplane.ports[1].routes[0].via: 192.0.2.1 is an IPv4 address and 2001:db8:9::/48 an IPv6 prefix; write an IPv6 next hop",
    );
    changed(
        "role: core",
        "role: core\n      addresses: [2001:db8::2/64]\n      routes: [{ to: default, via: 2001:db8:1::1 }]",
        "bng.yaml:10:36: dataplane.ports[1].routes[0].via: 2001:db8:1::1 is not in the network of any of this port's addresses; correct it or add an address to the port",
    );
}
