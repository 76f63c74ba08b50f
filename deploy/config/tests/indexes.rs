//! The dense indexes both daemons derive from the file.
// Helpers of tests are tests too, but clippy sees only functions marked as such.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::Ipv4Addr;
use std::path::Path;

use bng_config::Config;

const TEXT: &str = r#"
dataplane:
  workers: [1]
  ports:
    - { name: core0, role: core, device: a }
    - { name: access0, role: access, device: b, mtu: 1508 }
    - { name: access1, role: access, device: c, mtu: 1400 }
pppoe: { mru: 1500 }
pools:
  - { name: one, ranges: [100.64.0.0/29, 100.64.1.0/31, 100.64.1.9], gateway: 100.64.0.1 }
  - { name: two, ranges: [100.65.0.0/30], gateway: 100.64.0.1 }
nat:
  pools:
    - { name: first, addresses: [203.0.113.4/31, 203.0.113.0/30] }
    - { name: second, addresses: [198.51.100.7], block_size: 1024, first_port: 2048 }
"#;

fn config() -> Config {
    Config::parse(TEXT.as_bytes(), Path::new("t.yaml")).unwrap()
}

#[test]
fn ports_count_in_file_order_and_access_ports_among_themselves() {
    let config = config();
    let access: Vec<(u16, &str)> = config
        .access_ports()
        .map(|(index, port)| (index, port.name.as_str()))
        .collect();
    assert_eq!(access, [(0, "access0"), (1, "access1")]);
    assert_eq!(config.access_port_count(), 2);
}

#[test]
fn mru_of_a_port_is_what_its_mtu_leaves() {
    let config = config();
    let mrus: Vec<u16> = config
        .access_ports()
        .map(|(_, port)| config.max_mru(port))
        .collect();
    assert_eq!(mrus, [1500, 1392]);
}

#[test]
fn pools_hand_out_what_capacity_says_and_never_the_gateway() {
    let config = config();
    for pool in &config.pools {
        let usable: Vec<Ipv4Addr> = pool.usable().collect();
        assert_eq!(usable.len(), pool.capacity() as usize, "{}", pool.name);
        assert!(!usable.contains(&pool.gateway));
    }
    // .2 to .6 of the first range, both of the second, the single one; both inner ones of the other pool.
    assert_eq!(config.pools[0].capacity(), 8);
    assert_eq!(config.pools[1].capacity(), 2);
}

#[test]
fn nat_addresses_have_one_index_over_all_pools() {
    let nat = config().nat;
    let all: Vec<(u16, Ipv4Addr)> = nat.addresses().collect();
    assert_eq!(all.len(), 7);
    assert_eq!(nat.address_count(), 7);
    assert_eq!(all[0], (0, Ipv4Addr::new(203, 0, 113, 4)));
    assert_eq!(all[2], (0, Ipv4Addr::new(203, 0, 113, 0)));
    assert_eq!(all[6], (1, Ipv4Addr::new(198, 51, 100, 7)));
    for (index, (_, address)) in (0u32..).zip(all) {
        assert_eq!(nat.address_index(address), Some(index));
    }
    assert_eq!(nat.address_index(Ipv4Addr::new(203, 0, 113, 6)), None);
    assert_eq!(nat.pools[0].blocks_per_address(), 126);
    assert_eq!(nat.pools[1].blocks_per_address(), 62);
}

#[test]
fn tables_are_counted_from_ports_workers_nat_and_routed_ranges() {
    let config = config();
    let counts = config.table_counts();
    assert_eq!(counts.access_ports, 2);
    assert_eq!(counts.ports as usize, config.dataplane.ports.len());
    assert_eq!(counts.workers as usize, config.dataplane.workers.len());
    assert_eq!(counts.nat_addresses, 7);
    assert_eq!(counts.routed_addresses, 8 + 2 + 1 + 4);
}

/// A port with VLANs, two policies and two filters.
const POLICIES: &str = r#"
dataplane:
  workers: [1]
  routes: { ipv4: 2000, ipv6: 1024 }
  ports:
    - { name: core0, role: core, device: a }
    - name: access0
      role: access
      device: b
      mtu: 1508
      vlans:
        - { s_vlan: 100, c_vlan: 7, mru: 1500 }
        - { s_vlan: 100-199, c_vlan: any }
        - { s_vlan: 100-199 }
        - { s_vlan: none, mru: 1400 }
    - { name: access1, role: access, device: c }
policies: [{ name: silver }, { name: gold, filter: no-mail }]
filters: [{ name: kids }, { name: no-mail }]
pools: [{ name: one, ranges: [100.64.0.0/29], gateway: 100.64.0.1 }]
"#;

#[test]
fn the_first_vlan_entry_that_fits_the_tags_is_found_and_priority_tags_are_none() {
    let config = Config::parse(POLICIES.as_bytes(), Path::new("t.yaml")).unwrap();
    let port = &config.dataplane.ports[1];
    let entry = |outer, inner| {
        let found = port.vlan_entry(outer, inner)?;
        port.vlans.iter().position(|entry| entry == found)
    };
    assert_eq!(entry(Some(100), Some(7)), Some(0));
    assert_eq!(entry(Some(100), Some(8)), Some(1));
    assert_eq!(entry(Some(100), None), Some(2));
    assert_eq!(entry(Some(100), Some(0)), Some(2));
    assert_eq!(entry(Some(0), Some(100)), Some(2));
    assert_eq!(entry(None, None), Some(3));
    assert_eq!(entry(Some(0), None), Some(3));
    assert_eq!(entry(Some(0), Some(0)), Some(3));
    assert_eq!(entry(Some(200), None), None);
    assert!(!port.admits(Some(200), None) && port.admits(Some(199), None));
    assert!(config.dataplane.ports[2].admits(Some(200), Some(9)));
    assert_eq!(config.vlan_mru(port, &port.vlans[0]), 1500);
    assert_eq!(config.vlan_mru(port, &port.vlans[1]), 1492);
    assert_eq!(config.vlan_mru(port, &port.vlans[3]), 1400);
}

#[test]
fn policies_filters_and_pools_are_found_by_name_and_routes_are_counted() {
    let config = Config::parse(POLICIES.as_bytes(), Path::new("t.yaml")).unwrap();
    let (index, gold) = config.policy("gold").unwrap();
    assert_eq!((index, gold.filter.as_deref()), (1, Some("no-mail")));
    assert_eq!(config.filter("no-mail").unwrap().0, 1);
    assert_eq!(config.pool("one").unwrap().0, 0);
    assert!(config.policy("bronze").is_none() && config.filter("gold").is_none());
    let counts = config.table_counts();
    assert_eq!((counts.routes, counts.routes6), (2000, 1024));
}

#[test]
fn ipv6_ranges_are_counted_in_prefixes_on_link_first() {
    let text = TEXT.replace(
        "gateway: 100.64.0.1 }\n  - { name: two",
        "gateway: 100.64.0.1, ipv6: { prefixes: [2001:db8::/60], delegated: [2001:db8:1000::/48], delegated_length: 52 } }\n  - { name: two",
    );
    let config = Config::parse(text.as_bytes(), Path::new("t.yaml")).unwrap();
    assert_eq!(config.table_counts().prefixes, 16 + 16);
    let ipv6 = config.pools[0].ipv6.as_ref().unwrap();
    let ranges: Vec<_> = ipv6
        .ranges()
        .map(|(range, length)| format!("{range} {length}"))
        .collect();
    assert_eq!(ranges, ["2001:db8::/60 64", "2001:db8:1000::/48 52"]);
}

#[test]
fn the_default_route_has_the_family_of_its_next_hop() {
    let text = TEXT.replace(
        "role: core, device: a }",
        "role: core, device: a, addresses: [192.0.2.2/30, 2001:db8::2/64], routes: [{ to: default, via: 192.0.2.1 }, { to: default, via: 2001:db8::1 }, { to: 198.51.100.0/24, via: fe80::1 }] }",
    );
    let config = Config::parse(text.as_bytes(), Path::new("t.yaml")).unwrap();
    let routes = config.dataplane.ports[0].routes.iter();
    let routes: Vec<_> = routes.map(|r| format!("{} via {}", r.to, r.via)).collect();
    let expected = [
        "0.0.0.0/0 via 192.0.2.1",
        "::/0 via 2001:db8::1",
        "198.51.100.0/24 via fe80::1",
    ];
    assert_eq!(routes, expected);
}
