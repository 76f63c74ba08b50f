//! A real Linux router dials in and browses, is ended by the operator, dials again, and is refused with a wrong password.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod running_gateway;

use bng_lab::{GatewayConfig, Metrics, addresses, check_checksums, pppd_status, wait_until, www};
use running_gateway::{LIMIT, PASSWORD, USER, sessions, start, wait_for_sessions};
use std::time::Duration;

const LINK: &str = "wan";

#[test]
fn client_dials_downloads_is_ended_by_the_operator_and_dials_again() {
    let mut lab = start(&GatewayConfig::default());
    lab.boot_client().unwrap();
    let link = lab
        .client()
        .unwrap()
        .dial(LINK, USER, PASSWORD, "", LIMIT)
        .unwrap();
    assert_eq!(link.peer, "100.64.0.1");
    assert_eq!(link.dns, [addresses::WWW.to_string()]);
    let listed = wait_for_sessions(&lab, 1);
    let session = listed.values().next().unwrap();
    assert_eq!(session.user, USER);
    assert_eq!(session.framed_ip.as_deref(), Some(link.local.as_str()));
    assert_eq!(session.state, "forwarding");

    let client = lab.client().unwrap();
    let ping = client
        .sh(
            &format!("busybox ping -c 5 -i 0.2 {}", addresses::WWW),
            LIMIT,
        )
        .unwrap();
    assert!(ping.contains(" 0% packet loss"), "{ping}");
    let page = client
        .sh(&format!("curl -sS http://{}/", addresses::WWW), LIMIT)
        .unwrap();
    assert!(page.contains(www::TITLE), "{page}");
    assert!(
        page.contains("You came as 203.0.113."),
        "translated to the NAT pool: {page}"
    );

    let fetch = format!(
        "curl -sS --max-time 170 http://{}/bytes/100000000 | sha256sum",
        addresses::WWW
    );
    let sum = client.sh(&fetch, Duration::from_secs(180)).unwrap();
    assert_eq!(
        sum.split(' ').next().unwrap(),
        www::stream_sha256(100_000_000).unwrap()
    );

    lab.api()
        .delete(&format!("/api/v1/sessions/{}", session.id))
        .unwrap();
    let status = lab.client().unwrap().wait_link_end(LINK, LIMIT).unwrap();
    assert_eq!(status, pppd_status::ENDED_BY_PEER);
    wait_for_sessions(&lab, 0);

    let again = lab
        .client()
        .unwrap()
        .dial(LINK, USER, PASSWORD, "", LIMIT)
        .unwrap();
    assert_eq!(again.peer, link.peer);
    let listed = wait_for_sessions(&lab, 1);
    assert!(
        !listed.contains_key(&session.id),
        "a new session has a new id"
    );
    let page = lab
        .client()
        .unwrap()
        .sh(&format!("curl -sS http://{}/", addresses::WWW), LIMIT)
        .unwrap();
    assert!(page.contains(www::TITLE), "{page}");

    // The other way round: the client hangs up.
    assert_eq!(
        lab.client().unwrap().hang_up(LINK, LIMIT).unwrap(),
        pppd_status::HUNG_UP_HERE
    );
    wait_for_sessions(&lab, 0);
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn wrong_password_is_refused_and_counted() {
    let mut lab = start(&GatewayConfig::default());
    lab.boot_client().unwrap();
    let before = lab.api().metrics().unwrap();
    let status = lab
        .client()
        .unwrap()
        .dial_refused(LINK, USER, "looking-glass", "", LIMIT)
        .unwrap();
    assert_eq!(status, pppd_status::AUTH_FAILED);
    let naks =
        |metrics: &Metrics| metrics.sum("bng_pppoe_outcomes_total", &[("outcome", "pap_nak")]);
    let one_more = |now: &Metrics| naks(now) - naks(&before) == 1.0;
    wait_until("PAP Nak counted", LIMIT, || lab.api().metrics(), one_more).unwrap();
    assert_eq!(sessions(&lab).len(), 0);
    // The right one works right after.
    lab.client()
        .unwrap()
        .dial(LINK, USER, PASSWORD, "", LIMIT)
        .unwrap();
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn no_checksum_is_bad_on_either_side() {
    let mut lab = start(&GatewayConfig::default());
    lab.boot_client().unwrap();
    let (access, core) = (lab.capture_access().unwrap(), lab.capture_core().unwrap());
    let client = lab.client().unwrap();
    client.dial(LINK, USER, PASSWORD, "", LIMIT).unwrap();
    let www = addresses::WWW;
    // TCP both ways, ICMP echo, UDP (a name server that is not there: the answer is an ICMP error with a quoted packet), and
    // an ICMP error of the router on the way (TTL).
    client
        .sh(
            &format!("curl -sS http://{www}/bytes/4000000 | sha256sum"),
            LIMIT,
        )
        .unwrap();
    client
        .sh(&format!("busybox ping -c 3 -i 0.2 -s 1000 {www}"), LIMIT)
        .unwrap();
    client
        .sh(
            &format!("busybox timeout 5 busybox nslookup example.net {www}; true"),
            LIMIT,
        )
        .unwrap();
    client
        .sh(
            &format!("busybox traceroute -n -q 1 -w 20 -m 3 {www}"),
            LIMIT,
        )
        .unwrap();
    client.hang_up(LINK, LIMIT).unwrap();
    lab.api().wait_until_conserved().unwrap();

    // The download alone is 2,755 segments of at most 1,452 octets; how many are acknowledged together varies.
    for (side, capture) in [("access", access), ("core", core)] {
        let report = check_checksums(&capture.stop().unwrap()).unwrap();
        assert_eq!(report.bad, Vec::<String>::new(), "{side}");
        for (layer, least) in [("ip", 2755), ("tcp", 2755), ("udp", 2), ("icmp", 6)] {
            let good = report.good.get(layer).copied().unwrap_or(0);
            assert!(
                good >= least,
                "{side}: {good} of {layer}, expected {least}: {report:?}"
            );
        }
    }
}
