//! Coalescing and super-packets as a real Linux router, the gateway's own kernel and the internet see them: not at all, but in
//! the counters.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod emulator;
mod running_gateway;

use std::time::Duration;

use bng_lab::{GatewayConfig, Lab, addresses, check_checksums, www};
use emulator::{Emulation, emulated_users};
use running_gateway::{LIMIT, PASSWORD, USER, coalesced, drops_since, start, wait_for_sessions};

const LINK: &str = "wan";
const SIZE: u64 = 20_000_000;
const TRANSFER: Duration = Duration::from_secs(120);

/// Everything on, in both directions.
fn all_on(hold_us: u32) -> GatewayConfig {
    GatewayConfig {
        dataplane_keys: format!(
            "coalescing: {{ upstream: {{ tcp: true, udp: true }}, downstream: {{ tcp: true, udp: true }}, hold_us: {hold_us} }}\n"
        ),
        core_keys: "twin_offloads: true\n".to_owned(),
        ipv6: true,
        ..GatewayConfig::default()
    }
}

/// Shell: fetches [`SIZE`] octets into a file and prints their SHA-256, then puts the file and prints what the server made of it.
fn there_and_back(host: &str) -> String {
    let file = "$(mktemp /tmp/there-and-back.XXXXXX)";
    format!(
        "F={file}; curl -sS --max-time 100 -o $F 'http://{host}/bytes/{SIZE}' && sha256sum < $F && \
         curl -sS --max-time 100 -T $F 'http://{host}/sha256'; rm -f $F"
    )
}

/// What [`there_and_back`] must print.
fn assert_unharmed(text: &str) {
    let expected = www::stream_sha256(SIZE).unwrap();
    let sums: Vec<&str> = text
        .split_ascii_whitespace()
        .filter(|word| word.len() == 64)
        .collect();
    assert_eq!(sums, [expected.as_str(), expected.as_str()], "{text}");
}

fn a_router_sees_nothing_of_it(hold_us: u32) {
    let mut lab = start(&all_on(hold_us));
    lab.boot_client().unwrap();
    let (core, access) = (lab.capture_core().unwrap(), lab.capture_access().unwrap());
    let client = lab.client().unwrap();
    client.dial(LINK, USER, PASSWORD, "", LIMIT).unwrap();
    wait_for_sessions(&lab, 1);
    let before = lab.api().metrics().unwrap();
    let client = lab.client().unwrap();
    let text = client
        .sh(&there_and_back(&addresses::WWW.to_string()), TRANSFER)
        .unwrap();
    assert_unharmed(&text);
    let ping = client
        .sh(
            &format!("busybox ping -c 5 -i 0.2 -s 1464 {}", addresses::WWW),
            LIMIT,
        )
        .unwrap();
    assert!(ping.contains(" 0% packet loss"), "{ping}");
    let mut drops = drops_since(&before, &lab.api().metrics().unwrap());
    // The client's card looks for IPv6 routers on the access network.
    drops.remove("not_pppoe");
    assert!(drops.is_empty(), "{drops:?}");
    assert!(coalesced(&lab, "coalesce_supers") > 0);
    assert!(coalesced(&lab, "coalesce_merged") >= 2 * coalesced(&lab, "coalesce_supers"));
    let client = lab.client().unwrap();
    client.hang_up(LINK, LIMIT).unwrap();
    wait_for_sessions(&lab, 0);
    for capture in [core, access] {
        let report = check_checksums(&capture.stop().unwrap()).unwrap();
        assert_eq!(report.bad, Vec::<String>::new());
    }
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn a_router_sees_nothing_of_runs_that_end_with_their_burst() {
    a_router_sees_nothing_of_it(0);
}

#[test]
fn a_router_sees_nothing_of_runs_that_are_held() {
    a_router_sees_nothing_of_it(200);
}

/// The gateway's own kernel downloads and uploads over the core port.
fn through_the_twin(lab: &Lab, host: &str) {
    let (status, text) = lab.gateway().sh_status(&there_and_back(host)).unwrap();
    assert_eq!(status, 0, "{text}");
    assert_unharmed(&text);
}

#[test]
fn the_kernel_behind_a_core_port_takes_and_gives_super_packets() {
    let lab = start(&all_on(0));
    let before = lab.api().metrics().unwrap();
    let capture = lab.capture_core().unwrap();
    through_the_twin(&lab, &addresses::WWW.to_string());
    let taken = coalesced(&lab, "super_host");
    let given = coalesced(&lab, "host_supers");
    assert!(taken > 0, "runs are given to the kernel in one piece");
    assert!(given > 0, "the kernel leaves the cutting to us");
    // The same over IPv6.
    through_the_twin(&lab, &format!("[{}]", addresses::WWW6));
    assert!(coalesced(&lab, "super_host") > taken);
    assert!(coalesced(&lab, "host_supers") > given);
    // What is not merged, both ways. (No fragments: the packet sockets of `net_af_packet` put them together below the port.)
    let ping = format!("busybox ping -c 5 -i 0.2 -s 1464 {}", addresses::WWW);
    let (status, text) = lab.gateway().sh_status(&ping).unwrap();
    assert!(status == 0 && text.contains(" 0% packet loss"), "{text}");
    let report = check_checksums(&capture.stop().unwrap()).unwrap();
    assert_eq!(report.bad, Vec::<String>::new());
    let mut drops = drops_since(&before, &lab.api().metrics().unwrap());
    // The host thread shares its core here, so a TCP sender can fill its ring; TCP sends that again, as the sums above show.
    drops.remove("host_ring_full");
    assert!(drops.is_empty(), "{drops:?}");
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn datagrams_of_many_sessions_stay_in_order_and_none_is_lost() {
    let mut config = GatewayConfig {
        workers: 2,
        ..all_on(200)
    };
    config.users.extend(emulated_users());
    let lab = start(&config);
    let before = lab.api().metrics().unwrap();
    let emulation = Emulation::start(&lab, 20, 2_000, 6);
    wait_for_sessions(&lab, 20);
    emulation.finish().assert_nothing_lost();
    wait_for_sessions(&lab, 0);
    let drops = drops_since(&before, &lab.api().metrics().unwrap());
    assert!(drops.is_empty(), "{drops:?}");
    assert!(coalesced(&lab, "coalesce_frames") > 0);
    lab.api().wait_until_conserved().unwrap();
}
