//! Ports, VLANs, cores and buffers.

use std::path::Path;

use bng_config::Config;

use super::{GOOD, appended, changed, refusal};

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
        "bng.yaml:6:7: dataplane.ports[0].addresses: only a core port has addresses, routes, segmentation and a TAP twin; remove it or set `role: core`",
    );
    changed(
        "role: core",
        "role: core\n      addresses: [192.0.2.2/30]\n      routes: [{ to: default, via: 192.0.2.9 }]",
        "bng.yaml:10:36: dataplane.ports[1].routes[0].via: 192.0.2.9 is not in the network of any of this port's addresses; correct it or add an address to the port",
    );
    for (via, what) in [
        ("192.0.2.2", "the port's own address"),
        ("192.0.2.0", "the network's own address"),
        ("192.0.2.3", "the network's broadcast address"),
    ] {
        changed(
            "role: core",
            &format!(
                "role: core\n      addresses: [192.0.2.2/30]\n      routes: [{{ to: default, via: {via} }}]"
            ),
            &format!(
                "bng.yaml:10:36: dataplane.ports[1].routes[0].via: {via} is {what}; write the address of the router on the other side"
            ),
        );
    }
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
        "bng.yaml:3:10: dataplane.mbufs: 4096 buffers are fewer than the 15360 that 2 worker(s) need (descriptors of all ports for each, rings between threads, caches, held runs); raise it or lower rx_descriptors and tx_descriptors",
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
