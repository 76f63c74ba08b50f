//! FreeRADIUS runs the subscribers of a real Linux client: terms, accounting, changes on live sessions, and what happens while a
//! server is away.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod running_gateway;

use std::net::SocketAddr;

use bng_lab::{
    Attributes, Daemon, FreeRadius, GatewayConfig, Lab, Programs, RADIUS_SECRET, RadiusConfig,
    RadiusReply, addresses, pppd_status, radclient, wait_until, www,
};
use running_gateway::{
    LIMIT, PASSWORD, USER, session_page, sessions, wait_for_health, wait_for_sessions,
};

const LINK: &str = "wan";
const PORT: u16 = addresses::RADIUS.port();
const SPARE: u16 = 1912;
/// What the server says of the user beside the password where a test needs no more: "class-1".
const CLASS: &str = "Class = 0x636c6173732d31";

fn users(reply: &str) -> String {
    format!("{USER} Cleartext-Password := \"{PASSWORD}\"\n\t{reply}\n")
}

fn config() -> GatewayConfig {
    GatewayConfig {
        users: Vec::new(),
        protocols: "chap, pap",
        backends: "radius",
        radius: Some(RadiusConfig::default()),
        ..GatewayConfig::default()
    }
}

/// Server, gateway and client, in this order.
fn started(config: &GatewayConfig, users: &str) -> (Lab, FreeRadius) {
    let mut lab = Lab::create(Programs::of_workspace(), config).unwrap();
    let server = lab.start_freeradius("radius", PORT, users).unwrap();
    lab.start_www().unwrap();
    lab.start(Daemon::Dataplane).unwrap();
    lab.start(Daemon::Controlplane).unwrap();
    lab.boot_client().unwrap();
    (lab, server)
}

/// Dials, and returns the id of the one session.
fn dial(lab: &mut Lab, options: &str) -> String {
    let client = lab.client().unwrap();
    client.dial(LINK, USER, PASSWORD, options, LIMIT).unwrap();
    wait_for_sessions(lab, 1).into_keys().next().unwrap()
}

/// Accounting messages of one kind.
fn of(records: &[Attributes], status: &str) -> Vec<Attributes> {
    let is = |record: &&Attributes| record.get("Acct-Status-Type") == Some(status);
    records.iter().filter(is).cloned().collect()
}

/// Waits until there are as many accounting messages of a kind, and returns them.
fn wait_for(server: &FreeRadius, status: &str, count: usize) -> Vec<Attributes> {
    let what = format!("{count} accounting messages {status}");
    let enough = |all: &[Attributes]| of(all, status).len() >= count;
    let records = server.wait_for_accounting(&what, LIMIT, enough).unwrap();
    let found = of(&records, status);
    assert_eq!(found.len(), count, "{found:?}");
    found
}

/// A request for dynamic authorization from the internet host.
fn change(lab: &Lab, command: &str, attributes: &str) -> Option<RadiusReply> {
    let to: SocketAddr = addresses::COA;
    let attributes = format!("{attributes}, Message-Authenticator = 0x00");
    radclient(lab.internet(), to, command, RADIUS_SECRET, &attributes, 10).unwrap()
}

/// Octets the client's kernel has counted on its link: sent, received.
fn client_octets(lab: &mut Lab) -> (u64, u64) {
    let read = "cd /sys/class/net/ppp0/statistics && cat tx_bytes rx_bytes";
    let text = lab.client().unwrap().sh(read, LIMIT).unwrap();
    let mut numbers = text.split_ascii_whitespace().map(|n| n.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// Traffic of which nothing is lost.
fn ping(lab: &mut Lab, size: u16) {
    let command = format!("busybox ping -c 20 -i 0.1 -s {size} {}", addresses::WWW);
    let text = lab.client().unwrap().sh(&command, LIMIT).unwrap();
    assert!(text.contains(" 0% packet loss"), "{text}");
}

fn browse(lab: &mut Lab) {
    let get = format!("curl -sS --max-time 50 http://{}/", addresses::WWW);
    let page = lab.client().unwrap().sh(&get, LIMIT).unwrap();
    assert!(page.contains(www::TITLE), "{page}");
}

#[test]
fn both_protocols_are_checked_by_the_server_and_what_it_grants_is_what_the_client_gets() {
    // Login-TCP-Port is nothing a PPP session has a use for.
    let reply = "Framed-IP-Address = 100.64.2.77, Session-Timeout = 3600, Idle-Timeout = 600, \
                 Mikrotik-Rate-Limit = \"8M/16M\", MS-Primary-DNS-Server = 192.0.2.53, Login-TCP-Port = 23";
    let (mut lab, server) = started(&config(), &users(reply));
    for (options, proof) in [
        ("refuse-chap", "User-Password"),
        ("refuse-pap", "CHAP-Password"),
    ] {
        let client = lab.client().unwrap();
        let link = client.dial(LINK, USER, PASSWORD, options, LIMIT).unwrap();
        assert_eq!(link.local, "100.64.2.77");
        assert_eq!(link.dns, ["192.0.2.53"]);
        let id = wait_for_sessions(&lab, 1).into_keys().next().unwrap();
        let page = session_page(&lab, &id);
        assert_eq!(page["policy"]["up"]["rate_kbps"], 8_000, "{page}");
        assert_eq!(page["policy"]["down"]["rate_kbps"], 16_000, "{page}");
        browse(&mut lab);

        let asked = server.access_requests().unwrap();
        let request = asked.last().unwrap();
        assert!(request.get(proof).is_some(), "{request:?}");
        assert_eq!(request.get("User-Name"), Some(USER));
        assert_eq!(request.get("Service-Type"), Some("Framed-User"));
        assert_eq!(request.get("Framed-Protocol"), Some("PPP"));
        assert_eq!(request.get("NAS-Identifier"), Some("lab"));
        assert_eq!(request.get("NAS-Port-Id"), Some("access0/0.0"));
        let station = request.get("Calling-Station-Id").unwrap().to_lowercase();
        assert_eq!(station.replace('-', ":"), "02:00:00:00:00:11");
        lab.client().unwrap().hang_up(LINK, LIMIT).unwrap();
        wait_for_sessions(&lab, 0);
    }
    for (options, secret) in [("refuse-chap", "looking-glass"), ("refuse-pap", "")] {
        let client = lab.client().unwrap();
        let status = client.dial_refused(LINK, USER, secret, options, LIMIT);
        assert_eq!(status.unwrap(), pppd_status::AUTH_FAILED);
    }
    wait_for_sessions(&lab, 0);
    // Two sessions were, and nobody is told of those that were not.
    assert_eq!(wait_for(&server, "Stop", 2).len(), 2);
    assert_eq!(of(&server.accounting().unwrap(), "Start").len(), 2);
}

#[test]
fn accounting_says_what_the_client_counted_with_class_and_cause() {
    let mut config = config();
    // The shortest there is.
    config.radius = Some(RadiusConfig {
        interim_s: 60,
        ..RadiusConfig::default()
    });
    let (mut lab, server) = started(&config, &users(CLASS));
    dial(&mut lab, "");
    let (sent_before, received_before) = client_octets(&mut lab);
    let [start] = &wait_for(&server, "Start", 1)[..] else {
        unreachable!()
    };
    assert_eq!(start.get("Class"), Some("0x636c6173732d31"));
    assert!(start.get("Framed-IP-Address").is_some(), "{start:?}");
    ping(&mut lab, 1000);
    let (sent, received) = client_octets(&mut lab);
    let (sent, received) = (sent - sent_before, received - received_before);
    assert!(
        sent >= 20 * 1028 && received >= 20 * 1028,
        "{sent} {received}"
    );

    // An interim update with all of it, then the end.
    let all = |records: &[Attributes]| {
        let interim = of(records, "Interim-Update");
        let last = interim.last();
        last.is_some_and(|last| last.octets("Acct-Input").unwrap() == sent)
    };
    server
        .wait_for_accounting("an interim update with all octets", 3 * LIMIT, all)
        .unwrap();
    lab.client().unwrap().hang_up(LINK, LIMIT).unwrap();
    let [stop] = &wait_for(&server, "Stop", 1)[..] else {
        unreachable!()
    };
    assert_eq!(stop.octets("Acct-Input").unwrap(), sent);
    assert_eq!(stop.octets("Acct-Output").unwrap(), received);
    assert_eq!(stop.number("Acct-Input-Packets").unwrap(), 20);
    assert_eq!(stop.number("Acct-Output-Packets").unwrap(), 20);
    assert_eq!(stop.get("Acct-Terminate-Cause"), Some("User-Request"));
    assert_eq!(stop.get("Acct-Session-Id"), start.get("Acct-Session-Id"));
    assert_eq!(stop.get("Class"), start.get("Class"));
    assert_eq!(
        stop.get("Framed-IP-Address"),
        start.get("Framed-IP-Address")
    );
}

#[test]
fn a_stop_waits_on_disk_while_the_server_is_away_and_is_delivered_once() {
    let (mut lab, mut server) = started(&config(), &users(CLASS));
    dial(&mut lab, "");
    wait_for(&server, "Start", 1);
    server.kill().unwrap();
    ping(&mut lab, 100);
    lab.client().unwrap().hang_up(LINK, LIMIT).unwrap();
    wait_for_sessions(&lab, 0);
    // Not even the death of the process that keeps it makes it forget.
    lab.kill(Daemon::Controlplane).unwrap();
    lab.start(Daemon::Controlplane).unwrap();
    assert_eq!(of(&server.accounting().unwrap(), "Stop").len(), 0);

    server.restart(lab.internet()).unwrap();
    let [stop] = &wait_for(&server, "Stop", 1)[..] else {
        unreachable!()
    };
    assert_eq!(stop.number("Acct-Input-Packets").unwrap(), 20);
    assert_eq!(stop.get("Class"), Some("0x636c6173732d31"));
    // What comes later does not bring it again.
    dial(&mut lab, "");
    wait_for(&server, "Start", 2);
    lab.client().unwrap().hang_up(LINK, LIMIT).unwrap();
    wait_for(&server, "Stop", 2);
}

#[test]
fn the_second_server_is_asked_when_the_first_is_silent() {
    let mut config = config();
    config.radius = Some(RadiusConfig {
        ports: vec![PORT, SPARE],
        ..RadiusConfig::default()
    });
    let (mut lab, mut first) = started(&config, &users(CLASS));
    let second = lab.start_freeradius("spare", SPARE, &users(CLASS)).unwrap();
    dial(&mut lab, "");
    wait_for(&first, "Start", 1);
    assert_eq!(second.access_requests().unwrap(), []);
    lab.client().unwrap().hang_up(LINK, LIMIT).unwrap();
    wait_for(&first, "Stop", 1);
    wait_for_sessions(&lab, 0);

    first.kill().unwrap();
    dial(&mut lab, "");
    assert!(!second.access_requests().unwrap().is_empty());
    wait_for(&second, "Start", 1);
    lab.client().unwrap().hang_up(LINK, LIMIT).unwrap();
    wait_for(&second, "Stop", 1);
    wait_for_sessions(&lab, 0);

    // When its time is over the first one is asked again.
    first.restart(lab.internet()).unwrap();
    let asked = first.access_requests().unwrap().len();
    let dials = |lab: &mut Lab| {
        dial(lab, "");
        lab.client().unwrap().hang_up(LINK, LIMIT).unwrap();
        wait_for_sessions(lab, 0);
        first.access_requests().unwrap().len() > asked
    };
    assert!((0..20).any(|_| dials(&mut lab)), "the first stays dead");
}

#[test]
fn without_any_server_nobody_gets_in_and_who_is_in_stays() {
    let (mut lab, mut server) = started(&config(), &users(CLASS));
    let id = dial(&mut lab, "unit 0");
    server.kill().unwrap();
    let client = lab.client().unwrap();
    let status = client.dial_refused("late", USER, PASSWORD, "unit 1", LIMIT);
    assert_eq!(status.unwrap(), pppd_status::AUTH_FAILED);
    assert!(wait_for_sessions(&lab, 1).contains_key(&id));
    browse(&mut lab);
    wait_for_health(&lab, "degraded");

    server.restart(lab.internet()).unwrap();
    let client = lab.client().unwrap();
    client
        .dial("late", USER, PASSWORD, "unit 1", LIMIT)
        .unwrap();
    wait_for_sessions(&lab, 2);
}

#[test]
fn a_live_session_is_changed_and_ended_by_the_server_without_or_with_its_end() {
    let (mut lab, server) = started(&config(), &users(CLASS));
    let id = dial(&mut lab, "");
    let [start] = &wait_for(&server, "Start", 1)[..] else {
        unreachable!()
    };
    let session = format!(
        "User-Name = \"{USER}\", Acct-Session-Id = \"{}\"",
        start.get("Acct-Session-Id").unwrap()
    );
    let before = sessions(&lab);
    let rate = format!("{session}, Mikrotik-Rate-Limit = \"2M/4M\", Session-Timeout = 7200");
    let reply = change(&lab, "coa", &rate).unwrap();
    assert_eq!(reply.code, "CoA-ACK", "{reply:?}");
    let page = session_page(&lab, &id);
    assert_eq!(page["policy"]["up"]["rate_kbps"], 2_000, "{page}");
    assert_eq!(page["policy"]["down"]["rate_kbps"], 4_000, "{page}");
    browse(&mut lab);
    assert_eq!(sessions(&lab), before, "the same session goes on");

    // What is not to be served changes nothing.
    let nobody = "User-Name = \"nobody\", Session-Timeout = 1";
    let reply = change(&lab, "coa", nobody).unwrap();
    assert_eq!(reply.code, "CoA-NAK");
    let cause = reply.attributes.get("Error-Cause");
    assert_eq!(cause, Some("Session-Context-Not-Found"));
    let stranger = format!("Packet-Src-IP-Address = {}, {session}", addresses::WWW);
    let with = |secret, attributes: &str| {
        let attributes = format!("{attributes}, Message-Authenticator = 0x00");
        radclient(
            lab.internet(),
            addresses::COA,
            "disconnect",
            secret,
            &attributes,
            2,
        )
        .unwrap()
    };
    assert_eq!(with("not-the-secret", &session), None);
    assert_eq!(with(RADIUS_SECRET, &stranger), None);
    assert_eq!(sessions(&lab), before);

    let reply = change(&lab, "disconnect", &session).unwrap();
    assert_eq!(reply.code, "Disconnect-ACK", "{reply:?}");
    let status = lab.client().unwrap().wait_link_end(LINK, LIMIT).unwrap();
    assert_eq!(status, pppd_status::ENDED_BY_PEER);
    let [stop] = &wait_for(&server, "Stop", 1)[..] else {
        unreachable!()
    };
    assert_eq!(stop.get("Acct-Terminate-Cause"), Some("Admin-Reset"));
    wait_for_sessions(&lab, 0);
    let reply = change(&lab, "disconnect", &session).unwrap();
    assert_eq!(reply.code, "Disconnect-NAK", "{reply:?}");
}

#[test]
fn timeouts_of_the_server_end_the_session_and_say_so() {
    let (mut lab, mut server) = started(&config(), &users("Session-Timeout = 3"));
    dial(&mut lab, "");
    let status = lab.client().unwrap().wait_link_end(LINK, LIMIT).unwrap();
    assert_eq!(status, pppd_status::ENDED_BY_PEER);
    let [stop] = &wait_for(&server, "Stop", 1)[..] else {
        unreachable!()
    };
    assert_eq!(stop.get("Acct-Terminate-Cause"), Some("Session-Timeout"));
    let time = stop.number("Acct-Session-Time").unwrap();
    assert!((2..=60).contains(&time), "{stop:?}");

    // The idle time begins anew with each packet of the subscriber, and a CoA can set it.
    wait_for_sessions(&lab, 0);
    server.set_users(&users(CLASS)).unwrap();
    server.restart(lab.internet()).unwrap();
    dial(&mut lab, "");
    let session = format!("User-Name = \"{USER}\", Idle-Timeout = 2");
    let reply = change(&lab, "coa", &session).unwrap();
    assert_eq!(reply.code, "CoA-ACK", "{reply:?}");
    let status = lab.client().unwrap().wait_link_end(LINK, LIMIT).unwrap();
    assert_eq!(status, pppd_status::ENDED_BY_PEER);
    let stops = wait_for(&server, "Stop", 2);
    assert_eq!(stops[1].get("Acct-Terminate-Cause"), Some("Idle-Timeout"));
}

#[test]
fn control_killed_during_a_session_sends_one_stop_with_class_and_all_octets() {
    let (mut lab, server) = started(&config(), &users(CLASS));
    let id = dial(&mut lab, "");
    let (sent_before, _) = client_octets(&mut lab);
    wait_for(&server, "Start", 1);
    ping(&mut lab, 500);
    lab.kill(Daemon::Controlplane).unwrap();
    ping(&mut lab, 700);
    lab.start(Daemon::Controlplane).unwrap();
    wait_for_health(&lab, "ok");
    assert!(wait_for_sessions(&lab, 1).contains_key(&id));
    let (sent, _) = client_octets(&mut lab);
    lab.client().unwrap().hang_up(LINK, LIMIT).unwrap();
    let [stop] = &wait_for(&server, "Stop", 1)[..] else {
        unreachable!()
    };
    assert_eq!(stop.get("Class"), Some("0x636c6173732d31"));
    assert_eq!(stop.number("Acct-Input-Packets").unwrap(), 40);
    assert_eq!(stop.octets("Acct-Input").unwrap(), sent - sent_before);
    // It is the same session to the server, too, and it began once.
    let records = server.accounting().unwrap();
    let starts = of(&records, "Start");
    assert_eq!(starts.len(), 1, "{records:?}");
    assert_eq!(
        starts[0].get("Acct-Session-Id"),
        stop.get("Acct-Session-Id")
    );
}

#[test]
fn prefixes_of_the_server_and_pools_by_name_are_used() {
    let mut config = config();
    config.ipv6 = true;
    config.more_pools = "\
- name: special
  ranges: [100.64.8.0/24]
  gateway: 100.64.8.1
  nat: public
  ipv6:
    prefixes: [\"2001:db8:1001::/48\"]
    delegated: [\"2001:db8:2100::/40\"]
    delegated_length: 56
"
    .to_owned();
    let reply = "Framed-Pool = \"special\", Delegated-IPv6-Prefix = 2001:db8:2100:4200::/56";
    let (mut lab, server) = started(&config, &users(reply));
    let client = lab.client().unwrap();
    let link = client.dial(LINK, USER, PASSWORD, "+ipv6", LIMIT).unwrap();
    assert!(link.local.starts_with("100.64.8."), "{link:?}");
    let id = wait_for_sessions(&lab, 1).into_keys().next().unwrap();
    let delegated = |page: &serde_json::Value| page["delegated_prefix"].as_str().map(str::to_owned);
    let page = || Ok(session_page(&lab, &id));
    let page = wait_until("a delegated prefix", LIMIT, page, |page| {
        delegated(page).is_some()
    });
    let given = delegated(&page.unwrap()).unwrap();
    assert_eq!(given, "2001:db8:2100:4200::/56");
    lab.client().unwrap().hang_up(LINK, LIMIT).unwrap();
    let [stop] = &wait_for(&server, "Stop", 1)[..] else {
        unreachable!()
    };
    let told = stop.get("Delegated-IPv6-Prefix");
    assert_eq!(told, Some("2001:db8:2100:4200::/56"));
}
