//! What a real Linux client (kernel PPPoE, pppd 2.4.9) may do: both authentication protocols and their refusal, several sessions,
//! vanishing and coming back, negotiating a live session anew.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod running_gateway;

use bng_lab::{GatewayConfig, Lab, User, addresses, pppd_status, www};
use running_gateway::{LIMIT, PASSWORD, USER, outcomes, sessions, start, wait_for_sessions};

const LINK: &str = "wan";

fn chap() -> GatewayConfig {
    GatewayConfig {
        protocols: "chap",
        ..GatewayConfig::default()
    }
}

fn booted(config: &GatewayConfig) -> Lab {
    let mut lab = start(config);
    lab.boot_client().unwrap();
    lab
}

/// Fetches the page over one link.
fn browse(lab: &mut Lab, interface: &str) {
    let get = format!(
        "curl -sS --max-time 50 --interface {interface} http://{}/",
        addresses::WWW
    );
    let page = lab.client().unwrap().sh(&get, LIMIT).unwrap();
    assert!(page.contains(www::TITLE), "{interface}: {page}");
}

/// Lines of pppd's log (with option `debug`) that contain `text`.
fn said(lab: &mut Lab, link: &str, text: &str) -> usize {
    let log = lab.client().unwrap().pppd_log(link);
    log.lines().filter(|line| line.contains(text)).count()
}

#[test]
fn chap_is_asked_for_and_answered_and_either_end_hangs_up() {
    let mut lab = booted(&chap());
    let client = lab.client().unwrap();
    client.dial(LINK, USER, PASSWORD, "debug", LIMIT).unwrap();
    assert_eq!(said(&mut lab, LINK, "rcvd [CHAP Success"), 1);
    assert_eq!(said(&mut lab, LINK, "PAP"), 0);
    let id = wait_for_sessions(&lab, 1).into_keys().next().unwrap();
    browse(&mut lab, "ppp0");
    lab.api().delete(&format!("/api/v1/sessions/{id}")).unwrap();
    let status = lab.client().unwrap().wait_link_end(LINK, LIMIT).unwrap();
    assert_eq!(status, pppd_status::ENDED_BY_PEER);
    wait_for_sessions(&lab, 0);

    let client = lab.client().unwrap();
    client.dial(LINK, USER, PASSWORD, "", LIMIT).unwrap();
    wait_for_sessions(&lab, 1);
    let status = lab.client().unwrap().hang_up(LINK, LIMIT).unwrap();
    assert_eq!(status, pppd_status::HUNG_UP_HERE);
    wait_for_sessions(&lab, 0);
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn a_wrong_chap_secret_is_refused_and_the_right_one_works_right_after() {
    let mut lab = booted(&chap());
    for (user, secret) in [(USER, "looking-glass"), ("nobody", PASSWORD)] {
        let client = lab.client().unwrap();
        let status = client.dial_refused(LINK, user, secret, "debug", LIMIT);
        assert_eq!(status.unwrap(), pppd_status::AUTH_FAILED, "{user}");
        assert_eq!(said(&mut lab, LINK, "rcvd [CHAP Failure"), 1);
        assert_eq!(said(&mut lab, LINK, "IPCP"), 0, "no network phase");
    }
    wait_for_sessions(&lab, 0);
    let client = lab.client().unwrap();
    client.dial(LINK, USER, PASSWORD, "", LIMIT).unwrap();
    browse(&mut lab, "ppp0");
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn a_client_that_does_one_of_two_protocols_gets_that_one_and_one_that_does_none_gets_nowhere() {
    let config = GatewayConfig {
        protocols: "chap, pap",
        ..GatewayConfig::default()
    };
    let mut lab = booted(&config);
    for (options, proof) in [
        ("debug", "rcvd [CHAP Success"),
        ("debug refuse-chap", "rcvd [PAP AuthAck"),
        ("debug refuse-pap", "rcvd [CHAP Success"),
    ] {
        let client = lab.client().unwrap();
        client.dial(LINK, USER, PASSWORD, options, LIMIT).unwrap();
        assert_eq!(said(&mut lab, LINK, proof), 1, "{options}");
        browse(&mut lab, "ppp0");
        lab.client().unwrap().hang_up(LINK, LIMIT).unwrap();
        wait_for_sessions(&lab, 0);
    }
    let options = "debug refuse-pap refuse-chap refuse-mschap refuse-mschap-v2 refuse-eap";
    let client = lab.client().unwrap();
    let status = client.dial_refused(LINK, USER, PASSWORD, options, LIMIT);
    assert_ne!(status.unwrap(), 0);
    assert_eq!(said(&mut lab, LINK, "IPCP"), 0, "no network phase");
    wait_for_sessions(&lab, 0);
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn chap_challenges_on_a_live_session_are_answered_and_nothing_is_lost() {
    let config = GatewayConfig {
        auth_keys: "chap_interval_s: 1\n".to_owned(),
        ..chap()
    };
    let mut lab = booted(&config);
    let client = lab.client().unwrap();
    client.dial(LINK, USER, PASSWORD, "debug", LIMIT).unwrap();
    let before = wait_for_sessions(&lab, 1);
    let ping = format!("busybox ping -c 40 -i 0.1 {}", addresses::WWW);
    let text = lab.client().unwrap().sh(&ping, LIMIT).unwrap();
    assert!(text.contains(" 0% packet loss"), "{text}");
    let count = "n=0; while [ $(grep -c 'rcvd .CHAP Success' /run/link/wan.log) -lt 4 ]; do \
                 n=$((n+1)); [ $n -lt 250 ] || exit 1; sleep 0.1; done";
    lab.client().unwrap().sh(count, LIMIT).unwrap();
    assert_eq!(said(&mut lab, LINK, "CHAP Failure"), 0);
    assert_eq!(sessions(&lab), before, "one and the same session");
    assert_eq!(said(&mut lab, LINK, "rcvd [IPCP ConfReq"), 1);
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn several_sessions_of_one_client_live_side_by_side_up_to_its_limit() {
    let config = GatewayConfig {
        users: (0..4)
            .map(|n| User::new(&format!("line{n}"), PASSWORD))
            .collect(),
        pppoe_keys: "max_sessions_per_mac: 3\n".to_owned(),
        ..GatewayConfig::default()
    };
    let mut lab = booted(&config);
    let mut links = Vec::new();
    for n in 0..3 {
        let name = format!("line{n}");
        let client = lab.client().unwrap();
        let options = format!("unit {n} nodefaultroute");
        let link = client.dial(&name, &name, PASSWORD, &options, LIMIT);
        links.push((name, link.unwrap()));
    }
    let listed = wait_for_sessions(&lab, 3);
    for (name, link) in &links {
        let session = listed.values().find(|s| s.user == *name).unwrap();
        assert_eq!(session.framed_ip.as_deref(), Some(link.local.as_str()));
    }
    let client = lab.client().unwrap();
    // Policy routing in the client: each address leaves by its own link.
    for (n, (_, link)) in links.iter().enumerate() {
        let table = 100 + n;
        let rules = format!(
            "ip route add default dev {} table {table} && ip rule add from {} table {table}",
            link.interface, link.local
        );
        client.sh(&rules, LIMIT).unwrap();
    }
    for (_, link) in &links {
        let ping = format!(
            "busybox ping -I {} -c 3 -i 0.2 {}",
            link.local,
            addresses::WWW
        );
        let text = lab.client().unwrap().sh(&ping, LIMIT).unwrap();
        assert!(text.contains(" 0% packet loss"), "{}: {text}", link.local);
    }
    // All three answer, so nobody's place can be taken.
    let options = "unit 3";
    let client = lab.client().unwrap();
    let status = client.dial_refused("line3", "line3", PASSWORD, options, LIMIT);
    assert_ne!(status.unwrap(), 0);
    assert_eq!(wait_for_sessions(&lab, 3), listed);

    // One that ends leaves the others alone.
    lab.client().unwrap().hang_up("line1", LIMIT).unwrap();
    let left = wait_for_sessions(&lab, 2);
    assert!(left.values().all(|session| session.user != "line1"));
    for (name, link) in [&links[0], &links[2]] {
        let ping = format!(
            "busybox ping -I {} -c 3 -i 0.2 {}",
            link.local,
            addresses::WWW
        );
        let text = lab.client().unwrap().sh(&ping, LIMIT).unwrap();
        assert!(text.contains(" 0% packet loss"), "{name}: {text}");
    }
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn a_client_that_vanished_and_dials_again_takes_the_place_of_its_dead_session() {
    let config = GatewayConfig {
        // Echo would take minutes to notice.
        echo_interval_s: 60,
        pppoe_keys: "max_sessions_per_mac: 1\n".to_owned(),
        ..GatewayConfig::default()
    };
    let mut lab = booted(&config);
    let client = lab.client().unwrap();
    client.dial(LINK, USER, PASSWORD, "", LIMIT).unwrap();
    let dead = wait_for_sessions(&lab, 1).into_keys().next().unwrap();
    let client = lab.client().unwrap();
    client.vanish(LINK, LIMIT).unwrap();
    assert!(
        sessions(&lab).contains_key(&dead),
        "nobody told the gateway"
    );

    let client = lab.client().unwrap();
    client.dial(LINK, USER, PASSWORD, "", LIMIT).unwrap();
    let now = wait_for_sessions(&lab, 1);
    assert!(!now.contains_key(&dead), "{now:?}");
    browse(&mut lab, "ppp0");
    let history = lab.api().get("/api/v1/sessions/history").unwrap();
    let ended = &history["items"][0];
    assert_eq!(ended["id"], dead.as_str(), "{history}");
    assert_eq!(ended["cause"], "replaced", "{history}");
    lab.api().wait_until_conserved().unwrap();
}

/// A new pppd on the session of one that is gone begins with a Configure-Request: LCP in Opened.
#[test]
fn a_session_negotiated_anew_authenticates_again_and_carries_traffic_under_its_old_id() {
    let mut lab = booted(&GatewayConfig::default());
    let client = lab.client().unwrap();
    client.dial(LINK, USER, PASSWORD, "", LIMIT).unwrap();
    let id = wait_for_sessions(&lab, 1).into_keys().next().unwrap();
    browse(&mut lab, "ppp0");
    lab.client().unwrap().vanish(LINK, LIMIT).unwrap();
    let number = id.rsplit('-').next().unwrap().to_owned();
    let mac = lab.gateway().mac("veth-access0").unwrap();
    let mac = mac.map(|octet| format!("{octet:02x}")).join(":");

    let again = format!("debug pppoe-sess {number}:{mac}");
    let acked = outcomes(&lab, "pap_ack");
    let client = lab.client().unwrap();
    client.dial("again", USER, PASSWORD, &again, LIMIT).unwrap();
    assert_eq!(said(&mut lab, "again", "rcvd [PAP AuthAck"), 1);
    assert_eq!(outcomes(&lab, "pap_ack"), acked + 1.0);
    let now = wait_for_sessions(&lab, 1);
    assert!(now.contains_key(&id), "{now:?}");
    browse(&mut lab, "ppp0");

    // Somebody who does not know the password ends it instead.
    lab.client().unwrap().vanish("again", LIMIT).unwrap();
    let client = lab.client().unwrap();
    let status = client.dial_refused("thief", USER, "looking-glass", &again, LIMIT);
    assert_eq!(status.unwrap(), pppd_status::AUTH_FAILED);
    wait_for_sessions(&lab, 0);
    lab.api().wait_until_conserved().unwrap();
}
