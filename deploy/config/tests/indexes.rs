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
