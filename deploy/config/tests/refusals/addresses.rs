//! Addresses, pools, NAT, services.

use super::{GOOD, appended, changed, refusal};

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
    appended(
        "nat: { pools: [{ name: cgn, addresses: [203.0.113.0/28], other_protocols: pass }] }\n",
        "bng.yaml:14:75: nat.pools[0].other_protocols: `pass` is not allowed; write drop or one_subscriber",
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
