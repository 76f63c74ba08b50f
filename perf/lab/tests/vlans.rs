//! Real clients in no VLAN, in one and in two: each gets what its VLAN range says, and nobody else gets in.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod running_gateway;

use std::time::Duration;

use bng_lab::{GatewayConfig, User, addresses, pppd_status, www};
use running_gateway::{
    LIMIT, PASSWORD, USER, drops_since, policy_of, sessions, start, wait_for_sessions,
};

const VLANS: &str = "\
vlans:
  - { s_vlan: none }
  - { s_vlan: 100-199, c_vlan: none, policy: slow }
  - { s_vlan: 300-399, c_vlan: any, policy: quick }
";
const POLICIES: &str = "\
policies:
  - { name: slow, down: { rate_kbps: 8000, burst_bytes: 64000 } }
  - { name: quick, down: { rate_kbps: 900000 } }
";

fn config() -> GatewayConfig {
    GatewayConfig {
        users: vec![User::new(USER, PASSWORD)],
        access_keys: VLANS.to_owned(),
        more: POLICIES.to_owned(),
        ..GatewayConfig::default()
    }
}

#[test]
fn clients_get_what_their_vlan_range_says_and_others_get_no_answer() {
    let mut lab = start(&config());
    lab.boot_client().unwrap();
    let client = lab.client().unwrap();
    for command in [
        "ip link add link vec0 name vec0.100 type vlan id 100",
        "ip link add link vec0 name vec0.200 type vlan id 200",
        "ip link add link vec0 name vec0.300 type vlan id 300",
        "ip link add link vec0.300 name vec0.300.7 type vlan id 7",
        "for vlan in vec0.100 vec0.200 vec0.300 vec0.300.7; do ip link set $vlan up || exit 1; done",
    ] {
        client.sh(command, LIMIT).unwrap();
    }
    let get = format!("curl -sS --max-time 50 http://{}/", addresses::WWW);
    for (interface, policy) in [
        ("vec0", "default"),
        ("vec0.100", "slow"),
        ("vec0.300.7", "quick"),
    ] {
        let client = lab.client().unwrap();
        client
            .dial_over(interface, interface, USER, PASSWORD, "", LIMIT)
            .unwrap_or_else(|error| panic!("{interface}: {error}"));
        let page = client.sh(&get, LIMIT).unwrap();
        assert!(page.contains(www::TITLE), "{interface}: {page}");
        let listed = wait_for_sessions(&lab, 1);
        let id = listed.keys().next().unwrap();
        assert_eq!(policy_of(&lab, id), policy, "{interface}");
        let client = lab.client().unwrap();
        assert_eq!(
            client.hang_up(interface, LIMIT).unwrap(),
            pppd_status::HUNG_UP_HERE
        );
        wait_for_sessions(&lab, 0);
    }

    let before = lab.api().metrics().unwrap();
    let client = lab.client().unwrap();
    client
        .dial_refused_over(
            "vec0.200",
            "astray",
            USER,
            PASSWORD,
            Duration::from_secs(60),
        )
        .unwrap();
    assert_eq!(sessions(&lab).len(), 0);
    let drops = drops_since(&before, &lab.api().metrics().unwrap());
    assert!(
        drops.get("vlan_not_configured").is_some_and(|n| *n >= 1.0),
        "{drops:?}"
    );
    lab.api().wait_until_conserved().unwrap();
}

/// A provider bridge's tags, 0x88a8 outside and 0x8100 inside. `net_af_packet` hides the outer one's TPID, so the port is told.
#[test]
fn a_client_behind_a_provider_bridge_is_answered_with_its_tags() {
    let config = GatewayConfig {
        access_keys: "outer_tpid: 0x88a8\n".to_owned(),
        ..GatewayConfig::default()
    };
    let mut lab = start(&config);
    lab.boot_client().unwrap();
    let client = lab.client().unwrap();
    for command in [
        "ip link add link vec0 name s300 type vlan proto 802.1ad id 300",
        "ip link add link s300 name c7 type vlan id 7",
        "ip link set s300 up && ip link set c7 up",
    ] {
        client.sh(command, LIMIT).unwrap();
    }
    client
        .dial_over("c7", "wan", USER, PASSWORD, "", LIMIT)
        .unwrap();
    let get = format!("curl -sS --max-time 50 http://{}/", addresses::WWW);
    let page = client.sh(&get, LIMIT).unwrap();
    assert!(page.contains(www::TITLE), "{page}");
    let id = wait_for_sessions(&lab, 1).into_keys().next().unwrap();
    let session = lab.api().get(&format!("/api/v1/sessions/{id}")).unwrap();
    assert_eq!(
        (&session["s_vlan"], &session["c_vlan"]),
        (&300.into(), &7.into()),
        "{session}"
    );
    lab.api().wait_until_conserved().unwrap();
}
