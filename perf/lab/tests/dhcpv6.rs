//! DHCPv6 with a real client (wide-dhcpv6-client) on a real Linux router: an address for its link, a prefix for the network behind
//! it, routed both ways as long as the session lasts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod running_gateway;

use std::net::Ipv6Addr;

use bng_lab::{Daemon, GatewayConfig, Lab, addresses, dissect, www};
use running_gateway::{
    LIMIT, PASSWORD, USER, outcomes, session_page, start, wait_for_drops, wait_for_sessions,
};

const LINK: &str = "wan";
const DUAL: &str = "+ipv6 mtu 1492 mru 1492";
/// The first network of the delegated prefix is for `lan0`, with the router as ::1 in it.
const CLIENT: &str = "\
interface ppp0 {
    send ia-na 0;
    send ia-pd 1;
    request domain-name-servers;
};
id-assoc na 0 { };
id-assoc pd 1 {
    prefix-interface lan0 {
        sla-id 1;
        sla-len 8;
        ifid 1;
    };
};
";

/// Makes the client a router with a host behind it, in a network namespace of the guest.
fn add_host(lab: &mut Lab) {
    let client = lab.client().unwrap();
    for command in [
        "sysctl -w net.ipv6.conf.default.accept_ra=2 net.ipv6.conf.all.forwarding=1 net.ipv6.conf.default.accept_dad=0",
        "ip netns add host && ip link add lan0 type veth peer name eth0 netns host",
        "ip link set lan0 up && ip -n host link set lo up && ip -n host link set eth0 up",
    ] {
        client.sh(command, LIMIT).unwrap();
    }
}

/// Waits until an interface of the guest has a global address of that length, and returns it.
fn address(lab: &mut Lab, interface: &str, length: u8) -> Ipv6Addr {
    let look = format!(
        "for n in $(seq 150); do \
         a=$(ip -6 -o addr show dev {interface} scope global -tentative | sed -n 's,.*inet6 \\([^/]*\\)/{length} .*,\\1,p'); \
         [ -n \"$a\" ] && break; sleep 0.1; done; echo $a"
    );
    let client = lab.client().unwrap();
    let text = client.sh(&look, LIMIT).unwrap();
    text.trim().parse().unwrap_or_else(|_| {
        let log = client.sh("cat /run/dhcp6c.log", LIMIT);
        panic!("no address on {interface}: {}", log.unwrap())
    })
}

/// SIGTERM to the DHCPv6 client, and waits for its end.
fn release(lab: &mut Lab) {
    let stop = "pid=$(cat /var/run/dhcp6c.pid); kill -TERM $pid; \
                for n in $(seq 150); do [ -d /proc/$pid ] || exit 0; sleep 0.1; done; exit 1";
    lab.client().unwrap().sh(stop, LIMIT).unwrap();
}

/// The host takes an address of the network, with the router behind it as its default.
fn settle_host(lab: &mut Lab, router: Ipv6Addr) -> Ipv6Addr {
    let host = Ipv6Addr::from(u128::from(router) + 0x7f);
    let commands = format!(
        "ip -n host -6 addr replace {host}/64 dev eth0 nodad && ip -n host -6 route replace default via {router}"
    );
    lab.client().unwrap().sh(&commands, LIMIT).unwrap();
    host
}

fn ping_from_core(lab: &Lab, to: Ipv6Addr, wait: u32) -> String {
    let command = format!("busybox ping -6 -c 3 -i 0.2 -W {wait} {to}");
    lab.internet().sh_status(&command).unwrap().1
}

#[test]
fn a_delegated_prefix_is_routed_both_ways_until_the_session_ends() {
    let config = GatewayConfig {
        ipv6: true,
        ..GatewayConfig::default()
    };
    let mut lab = start(&config);
    lab.boot_client().unwrap();
    add_host(&mut lab);
    let file = "/run/dhcp6c.conf";
    let write = format!("echo '{}' >{file}", CLIENT.replace('\n', " "));
    let client = lab.client().unwrap();
    client.sh(&write, LIMIT).unwrap();
    client.dial(LINK, USER, PASSWORD, DUAL, LIMIT).unwrap();
    let session = wait_for_sessions(&lab, 1).into_keys().next().unwrap();
    let page = session_page(&lab, &session);
    let network = |key: &str, length: &str| -> Ipv6Addr {
        let text = page[key].as_str().unwrap().strip_suffix(length);
        text.unwrap().parse().unwrap()
    };
    let (link, delegated) = (
        network("ipv6_prefix", "/64"),
        network("delegated_prefix", "/56"),
    );

    let access = lab.capture_access().unwrap();
    lab.start_dhcp6c(file, "ppp0").unwrap();
    let router = address(&mut lab, "lan0", 64);
    assert_eq!(u128::from(router), u128::from(delegated) + (1 << 64) + 1);
    let own = address(&mut lab, "ppp0", 128);
    assert_eq!(u128::from(own), u128::from(link) + 2);
    let host = settle_host(&mut lab, router);

    let core = lab.capture_core().unwrap();
    for to in [own, router, host] {
        let text = ping_from_core(&lab, to, 30);
        assert!(text.contains(" 0% packet loss"), "{to}: {text}");
    }
    let www6 = addresses::WWW6;
    let client = lab.client().unwrap();
    let ping = format!("ip netns exec host busybox ping -6 -c 3 -i 0.2 -W 30 {www6}");
    let text = client.sh(&ping, LIMIT).unwrap();
    assert!(text.contains(" 0% packet loss"), "{text}");
    let get = format!("ip netns exec host curl -sS --max-time 50 'http://[{www6}]/'");
    let page = client.sh(&get, LIMIT).unwrap();
    assert!(page.contains(www::TITLE), "{page}");
    let core = core.stop().unwrap();
    let from_host = format!("tcp && ipv6.src == {host} && ipv6.dst == {www6}");
    assert!(
        !dissect(&core, &from_host, &["frame.number"])
            .unwrap()
            .is_empty()
    );

    // What is given back is the session's still, and given to it again, whichever control plane is asked.
    release(&mut lab);
    // One message for the address, one for the prefix.
    assert_eq!(outcomes(&lab, "dhcpv6_releases"), 2.0);
    let left = "ip -6 -o addr show dev lan0 scope global; ip -6 -o addr show dev ppp0 scope global | grep /128 || true";
    let left = lab.client().unwrap().sh(left, LIMIT).unwrap();
    assert_eq!(left, "", "the client has given up what it had");
    lab.kill(Daemon::Controlplane).unwrap();
    lab.start(Daemon::Controlplane).unwrap();
    lab.start_dhcp6c(file, "ppp0").unwrap();
    assert_eq!(address(&mut lab, "lan0", 64), router);
    assert_eq!(settle_host(&mut lab, router), host);
    let text = ping_from_core(&lab, host, 30);
    assert!(text.contains(" 0% packet loss"), "{text}");
    let access = access.stop().unwrap();
    // Solicit, Advertise, Request, Reply; Release, Reply; and again.
    let kinds = dissect(&access, "dhcpv6", &["dhcpv6.msgtype"]);
    let mut kinds = kinds.unwrap().concat();
    kinds.dedup();
    let (granted, rest) = kinds.split_at(4);
    let (given_back, again) = rest.split_at(rest.len() - 4);
    assert_eq!(granted, again, "{kinds:?}");
    assert_eq!(granted, ["1", "2", "3", "7"], "{kinds:?}");
    assert!(
        given_back.iter().all(|kind| kind == "8" || kind == "7"),
        "{kinds:?}"
    );
    assert!(given_back.contains(&"8".to_owned()), "{kinds:?}");
    let bad = "dhcpv6 && (_ws.malformed || _ws.expert.severity == error)";
    assert_eq!(
        dissect(&access, bad, &["_ws.col.Info"]).unwrap(),
        Vec::<Vec<String>>::new()
    );
    let status = "dhcpv6.msgtype == 7 && dhcpv6.status_code && dhcpv6.status_code != 0";
    assert_eq!(
        dissect(&access, status, &["dhcpv6.status_code"]).unwrap(),
        Vec::<Vec<String>>::new()
    );

    // With the session goes the way to its prefix.
    lab.client().unwrap().hang_up(LINK, LIMIT).unwrap();
    wait_for_sessions(&lab, 0);
    let text = ping_from_core(&lab, host, 1);
    assert!(text.contains(" 100% packet loss"), "{text}");
    wait_for_drops(&lab, "session_unknown", 3.0);
    lab.api().wait_until_conserved().unwrap();
}
