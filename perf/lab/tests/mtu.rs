//! Packet sizes and hop limits as a real Linux router and its peers see them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod running_gateway;

use std::net::Ipv4Addr;

use bng_lab::{GatewayConfig, Lab, addresses, check_checksums, dissect};
use running_gateway::{LIMIT, PASSWORD, USER, counted, start, wait_for_sessions};

const LINK: &str = "wan";
/// A client without RFC 4638.
const CLASSIC: &str = "mtu 1492 mru 1492";

fn dialled(config: &GatewayConfig, options: &str) -> (Lab, String) {
    let mut lab = start(config);
    lab.boot_client().unwrap();
    let client = lab.client().unwrap();
    let link = client.dial(LINK, USER, PASSWORD, options, LIMIT).unwrap();
    wait_for_sessions(&lab, 1);
    (lab, link.local)
}

/// Subscribers with public addresses, so that the internet host may send to them at will.
fn public() -> GatewayConfig {
    GatewayConfig {
        subscriber_pool: (Ipv4Addr::new(203, 0, 113, 128), 28),
        nat: false,
        ..GatewayConfig::default()
    }
}

/// Three pings of `size` octets from the internet host; exit status and output.
fn ping(lab: &Lab, subscriber: &str, size: u16) -> (i32, String) {
    let command = format!("busybox ping -c 3 -i 0.2 -W 10 -s {size} {subscriber}");
    lab.internet().sh_status(&command).unwrap()
}

#[test]
fn the_mss_of_a_connection_is_lowered_to_what_the_session_carries() {
    let (mut lab, _) = dialled(&GatewayConfig::default(), CLASSIC);
    let (core, access) = (lab.capture_core().unwrap(), lab.capture_access().unwrap());
    let www = addresses::WWW;
    let client = lab.client().unwrap();
    // A client that offers what its LAN carries and leaves the rest to the gateway.
    client
        .sh("ip route replace default dev ppp0 advmss 1460", LIMIT)
        .unwrap();
    let get = format!("curl -sS --max-time 50 http://{www}/bytes/200000 | wc -c");
    assert_eq!(client.sh(&get, LIMIT).unwrap().trim(), "200000");
    let mss = |file, flags: &str| {
        let filter = format!("tcp.flags.syn == 1 && {flags}");
        dissect(file, &filter, &["tcp.options.mss_val"]).unwrap()
    };
    let (core, access) = (core.stop().unwrap(), access.stop().unwrap());
    let syn = "tcp.flags.ack == 0";
    assert_eq!(mss(&access, syn), [["1460"]]);
    assert_eq!(mss(&core, syn), [["1452"]], "MTU 1492 less 40");
    let syn_ack = "tcp.flags.ack == 1";
    assert_eq!(mss(&core, syn_ack), [["1460"]]);
    assert_eq!(mss(&access, syn_ack), [["1452"]]);
    assert_eq!(counted(&lab, "mss_clamped"), 2.0);
    for file in [core, access] {
        assert_eq!(check_checksums(&file).unwrap().bad, Vec::<String>::new());
    }
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn a_packet_too_large_for_the_session_tells_its_sender_or_is_fragmented() {
    let (lab, subscriber) = dialled(&public(), CLASSIC);
    let capture = lab.capture_core().unwrap();
    // 28 octets of headers: 1464 fills the session's 1492.
    let (status, text) = ping(&lab, &subscriber, 1464);
    assert!(status == 0 && text.contains(" 0% packet loss"), "{text}");
    assert_eq!(counted(&lab, "icmp_error_sent"), 0.0);

    // One octet more, DF set: the first is answered by the gateway, and the sender's kernel makes smaller ones from then on.
    let (_, text) = ping(&lab, &subscriber, 1465);
    assert!(text.contains("2 packets received"), "{text}");
    assert_eq!(counted(&lab, "icmp_error_sent"), 1.0);
    // The sender's own fragments: `net_af_packet` asks the kernel to put them together before the port sees them (its fanout
    // of the packet sockets), so the gateway may make new ones.
    let before = counted(&lab, "fragments_made");
    assert!(before <= 2.0, "{before}");
    let route = format!("route get {subscriber}");
    let route = lab.internet().ip(&route).unwrap();
    assert!(route.contains("mtu 1492"), "{route}");

    // A sender that does not set DF: the gateway makes the fragments, the client puts them together again.
    lab.internet()
        .sysctl("net/ipv4/ip_no_pmtu_disc", "1")
        .unwrap();
    lab.internet().ip("route flush cache").unwrap();
    let (status, text) = ping(&lab, &subscriber, 1472);
    assert!(status == 0 && text.contains(" 0% packet loss"), "{text}");
    assert_eq!(counted(&lab, "fragments_made") - before, 3.0);
    assert_eq!(counted(&lab, "icmp_error_sent"), 1.0);

    let file = capture.stop().unwrap();
    let errors = dissect(
        &file,
        "icmp.type == 3 && icmp.code == 4",
        &["icmp.mtu", "ip.src"],
    )
    .unwrap();
    let source = format!("{},{}", addresses::GATEWAY_CORE, addresses::ROUTER);
    assert_eq!(errors, [["1492".to_owned(), source]]);
    assert_eq!(check_checksums(&file).unwrap().bad, Vec::<String>::new());
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn a_client_with_rfc_4638_sends_and_gets_whole_ethernet_packets() {
    let config = GatewayConfig {
        mru: 1500,
        ..public()
    };
    let (mut lab, subscriber) = dialled(&config, "");
    let (status, text) = ping(&lab, &subscriber, 1472);
    assert!(status == 0 && text.contains(" 0% packet loss"), "{text}");
    let www = addresses::WWW;
    let client = lab.client().unwrap();
    let text = client
        .sh(
            &format!("busybox ping -c 3 -i 0.2 -W 30 -s 1472 {www}"),
            LIMIT,
        )
        .unwrap();
    assert!(text.contains(" 0% packet loss"), "{text}");
    for counter in ["icmp_error_sent", "fragments_made"] {
        assert_eq!(counted(&lab, counter), 0.0, "{counter}");
    }
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn traceroute_shows_the_gateway_from_both_sides() {
    let (mut lab, subscriber) = dialled(&public(), CLASSIC);
    let www = addresses::WWW;
    let client = lab.client().unwrap();
    let hops = client
        .sh(
            &format!("busybox traceroute -n -q 1 -w 20 -m 3 {www}"),
            LIMIT,
        )
        .unwrap();
    let hop = |hops: &str, n: usize| {
        let line = hops
            .lines()
            .filter(|line| !line.starts_with("trace"))
            .nth(n - 1);
        line.and_then(|line| line.split_ascii_whitespace().nth(1))
            .map(str::to_owned)
    };
    assert_eq!(hop(&hops, 1).as_deref(), Some("203.0.113.129"), "{hops}");
    assert_eq!(hop(&hops, 2), Some(www.to_string()), "{hops}");
    let command = format!("busybox traceroute -n -q 1 -w 20 -m 3 {subscriber}");
    let (_, hops) = lab.internet().sh_status(&command).unwrap();
    assert_eq!(
        hop(&hops, 1),
        Some(addresses::GATEWAY_CORE.to_string()),
        "{hops}"
    );
    assert_eq!(hop(&hops, 2), Some(subscriber), "{hops}");
    lab.api().wait_until_conserved().unwrap();
}
