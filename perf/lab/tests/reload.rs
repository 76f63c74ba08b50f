//! The configuration is read again, on request and at SIGHUP, while a real client is in: what takes effect at once, what waits for
//! the next dial, and what is refused because it would end sessions.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod running_gateway;

use bng_lab::{Daemon, GatewayConfig, Lab, User, addresses, pppd_status, wait_until, www};
use running_gateway::{
    LIMIT, PASSWORD, USER, session_page, sessions, start, wait_for_drops, wait_for_health,
    wait_for_sessions,
};
use rustix::process::Signal;
use serde_json::{Value, json};

const LINK: &str = "wan";

/// Replaces text of the gateway's configuration file.
fn edit(lab: &Lab, from: &str, to: &str) {
    let text = std::fs::read_to_string(lab.config_file()).unwrap();
    assert!(text.contains(from), "no {from:?} in {text}");
    lab.write("gateway.yaml", &text.replace(from, to)).unwrap();
}

/// What `POST /api/v1/reload` answers. Whether the workers have seen the last configuration is a matter of microseconds, so "not
/// now" is no answer.
fn reload(lab: &Lab, request: Value) -> (u16, Value) {
    let ask = || lab.api().post_raw("/api/v1/reload", &request);
    let is_answer = |(_, body): &(u16, String)| !body.contains("reload_not_now");
    let (status, body) = wait_until("an answer", LIMIT, ask, is_answer).unwrap();
    (status, serde_json::from_str(&body).unwrap())
}

/// The reload is in force; what it did.
fn reloaded(lab: &Lab, request: Value) -> Value {
    let (status, view) = reload(lab, request);
    assert_eq!((status, &view["applied"]), (200, &json!(true)), "{view}");
    view
}

/// SIGHUP, and the line of the log that says what came of it.
fn signal(lab: &mut Lab) -> String {
    loop {
        let control = lab.daemon(Daemon::Controlplane).unwrap();
        let mark = control.log_mark();
        control.signal(Signal::HUP).unwrap();
        let line = control.wait_for_log("the configuration ", mark, LIMIT);
        let line = line.unwrap();
        if !line.contains("has not confirmed") {
            return line;
        }
    }
}

/// Keys of the changes with their classes.
fn changes(view: &Value) -> Vec<(&str, &str)> {
    let changes = view["changes"].as_array().unwrap().iter();
    changes
        .map(|it| (it["key"].as_str().unwrap(), it["class"].as_str().unwrap()))
        .collect()
}

fn reloads(lab: &Lab, result: &str) -> f64 {
    let metrics = lab.api().metrics().unwrap();
    metrics.sum("bng_config_reloads_total", &[("result", result)])
}

fn browse(lab: &mut Lab, interface: &str) {
    let get = format!(
        "curl -sS --max-time 50 --interface {interface} http://{}/",
        addresses::WWW
    );
    let page = lab.client().unwrap().sh(&get, LIMIT).unwrap();
    assert!(page.contains(www::TITLE), "{interface}: {page}");
}

/// Pings the internet host three times over the link; how many answers came.
fn answered_pings(lab: &mut Lab) -> usize {
    let ping = format!("busybox ping -c 3 -i 0.2 -W 3 {}", addresses::WWW);
    let (_, text) = lab.client().unwrap().sh_status(&ping, LIMIT).unwrap();
    assert!(text.contains("3 packets transmitted"), "{text}");
    text.matches("bytes from").count()
}

#[test]
fn a_live_setting_takes_effect_at_once_and_a_download_goes_on_through_it() {
    const BYTES: u64 = 20_000_000;
    let config = GatewayConfig {
        protocols: "chap",
        users: vec![User {
            policy: Some("home".to_owned()),
            ..User::new(USER, PASSWORD)
        }],
        more: "\
policies:
  - { name: home, down: { rate_kbps: 4000, burst_bytes: 64000 }, filter: rules }
filters:
  - { name: rules, up: [ { action: drop, protocol: tcp, remote_ports: 25 } ] }
"
        .to_owned(),
        ..GatewayConfig::default()
    };
    let mut lab = start(&config);
    let client = lab.boot_client().unwrap();
    client.dial(LINK, USER, PASSWORD, "debug", LIMIT).unwrap();
    let before = wait_for_sessions(&lab, 1);
    let id = before.keys().next().unwrap().clone();
    assert_eq!(answered_pings(&mut lab), 3);

    // At the old rate it takes 40 seconds at the least.
    let download = format!(
        "(curl -sS --max-time 300 -o /run/got http://{}/bytes/{BYTES}; echo $? >/run/done) >/dev/null 2>&1 & \
         n=0; until [ -s /run/got ]; do n=$((n+1)); [ $n -lt 1000 ] || exit 1; sleep 0.1; done",
        addresses::WWW
    );
    lab.client().unwrap().sh(&download, 3 * LIMIT).unwrap();

    let rule = "protocol: tcp, remote_ports: 25";
    edit(&lab, "rate_kbps: 4000", "rate_kbps: 900000");
    edit(&lab, rule, "protocol: icmp");
    let (status, view) = reload(&lab, json!({ "dry_run": true }));
    assert_eq!((status, &view["applied"]), (200, &json!(false)), "{view}");
    assert_eq!(view["refused"], Value::Null, "{view}");
    assert_eq!(view["sessions_changed"], 0, "only counted when done");
    let told = changes(&view);
    assert!(
        told.contains(&("policies[home].down.rate_kbps", "live")),
        "{view}"
    );
    assert!(told.iter().all(|(_, class)| *class == "live"), "{view}");
    assert_eq!(
        session_page(&lab, &id)["policy"]["down"]["rate_kbps"],
        4_000,
        "it was only asked"
    );
    assert_eq!(answered_pings(&mut lab), 3);

    let view = reloaded(&lab, json!({}));
    assert_eq!(view["sessions_changed"], 1, "{view}");
    assert_eq!(view["sessions_dropped"], 0, "{view}");
    let page = session_page(&lab, &id);
    assert_eq!(page["policy"]["down"]["rate_kbps"], 900_000, "{page}");
    assert_eq!(answered_pings(&mut lab), 0);
    wait_for_drops(&lab, "filter_upstream", 3.0);

    // The same by a signal, back again; and the client has to prove itself every second from now on.
    edit(&lab, "protocol: icmp", rule);
    let backends = "  backends: [local]\n";
    edit(&lab, backends, &format!("{backends}  chap_interval_s: 1\n"));
    let line = signal(&mut lab);
    assert!(line.contains("is in force"), "{line}");
    assert_eq!(answered_pings(&mut lab), 3);
    let challenged = "n=0; until [ $(grep -c 'rcvd .CHAP Success' /run/link/wan.log) -ge 3 ]; do \
                      n=$((n+1)); [ $n -lt 1000 ] || exit 1; sleep 0.1; done";
    lab.client().unwrap().sh(challenged, 3 * LIMIT).unwrap();

    let finished = "n=0; until [ -s /run/done ]; do n=$((n+1)); [ $n -lt 1000 ] || exit 1; sleep 0.1; done; \
                    cat /run/done; sha256sum /run/got";
    let text = lab.client().unwrap().sh(finished, 3 * LIMIT).unwrap();
    let sum = www::stream_sha256(BYTES).unwrap();
    assert!(text.starts_with(&format!("0\n{sum}")), "{text}");
    assert_eq!(sessions(&lab), before, "one and the same session");
    let log = lab.client().unwrap().pppd_log(LINK);
    assert_eq!(log.matches("rcvd [IPCP ConfReq").count(), 1, "{log}");
    assert_eq!(
        (reloads(&lab, "applied"), reloads(&lab, "refused")),
        (2.0, 0.0)
    );
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn what_is_for_new_sessions_waits_for_the_next_dial() {
    let mut lab = start(&GatewayConfig::default());
    let client = lab.boot_client().unwrap();
    let link = client.dial(LINK, USER, PASSWORD, "", LIMIT).unwrap();
    assert_eq!(link.dns, [addresses::WWW.to_string()]);
    let before = wait_for_sessions(&lab, 1);

    edit(&lab, "dns: [192.0.2.80]", "dns: [192.0.2.53]");
    edit(&lab, PASSWORD, "looking-glass");
    let said = lab.bngctl(&["reload", "--dry-run"]).unwrap();
    assert!(said.contains("not in force, as asked"), "{said}");
    let said = lab.bngctl(&["reload"]).unwrap();
    assert_eq!(said.matches("for new sessions").count(), 2, "{said}");
    assert!(said.contains("auth.users[alice]"), "{said}");
    assert!(!said.contains(PASSWORD) && !said.contains("looking-glass"));
    assert!(said.ends_with("in force\n"), "{said}");
    browse(&mut lab, "ppp0");
    assert_eq!(sessions(&lab), before, "nothing has changed for it");

    let client = lab.client().unwrap();
    client.hang_up(LINK, LIMIT).unwrap();
    wait_for_sessions(&lab, 0);
    let client = lab.client().unwrap();
    let status = client.dial_refused(LINK, USER, PASSWORD, "", LIMIT);
    assert_eq!(status.unwrap(), pppd_status::AUTH_FAILED);
    let link = client.dial(LINK, USER, "looking-glass", "", LIMIT).unwrap();
    assert_eq!(link.dns, ["192.0.2.53"]);
    browse(&mut lab, "ppp0");
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn what_would_end_sessions_or_takes_a_restart_is_refused_and_ends_them_when_told() {
    const SERVED: &str = "  - { s_vlan: 100 }\n";
    let config = GatewayConfig {
        users: vec![User::new(USER, PASSWORD), User::new("bob", "builder")],
        access_keys: format!("vlans:\n  - {{ s_vlan: none }}\n{SERVED}"),
        ..GatewayConfig::default()
    };
    let mut lab = start(&config);
    let client = lab.boot_client().unwrap();
    let vlan = "ip link add link vec0 name vec0.100 type vlan id 100 && ip link set vec0.100 up";
    client.sh(vlan, LIMIT).unwrap();
    client
        .dial_over("vec0.100", LINK, USER, PASSWORD, "unit 0", LIMIT)
        .unwrap();
    client
        .dial("other", "bob", "builder", "unit 1", LIMIT)
        .unwrap();
    let before = wait_for_sessions(&lab, 2);
    let of = |user: &str| {
        let session = before.values().find(|session| session.user == user);
        session.unwrap().id.clone()
    };

    // A mistake, and what only a restart brings, are refused whatever is allowed.
    edit(&lab, "ranges: [100.64.0.0/22]", "ranges: [100.64.0.0/33]");
    let (status, error) = reload(&lab, json!({ "allow_drops": true }));
    assert_eq!(
        (status, &error["error"]),
        (422, &json!("bad_configuration"))
    );
    let detail = error["detail"].as_str().unwrap();
    assert!(detail.contains("pools[0].ranges[0]"), "{detail}");
    let line = signal(&mut lab);
    assert!(line.contains("stays as it is"), "{line}");
    edit(&lab, "ranges: [100.64.0.0/33]", "ranges: [100.64.0.0/21]");
    let (status, error) = reload(&lab, json!({ "allow_drops": true }));
    assert_eq!((status, &error["error"]), (409, &json!("reload_refused")));
    edit(&lab, "ranges: [100.64.0.0/21]", "ranges: [100.64.0.0/22]");

    let range = std::fs::read_to_string(lab.config_file()).unwrap();
    let range = range.lines().find(|line| line.contains("s_vlan: 100"));
    edit(&lab, &format!("{}\n", range.unwrap()), "");
    let (_, view) = reload(&lab, json!({ "dry_run": true }));
    let refused = view["refused"].as_str().unwrap();
    assert!(refused.contains("1 sessions are on VLANs"), "{view}");
    assert_eq!(view["sessions_unserved"], 1, "{view}");
    assert_eq!(view["sessions_dropped"], 0, "{view}");
    let told = changes(&view);
    assert!(
        !told.is_empty() && told.iter().all(|it| it.1 == "needs_drop"),
        "{view}"
    );
    let (_, view) = reload(&lab, json!({ "dry_run": true, "allow_drops": true }));
    assert_eq!(view["refused"], Value::Null, "{view}");
    assert_eq!(view["sessions_dropped"], 1, "{view}");
    let (status, error) = reload(&lab, json!({}));
    assert_eq!((status, &error["error"]), (409, &json!("reload_refused")));
    let line = signal(&mut lab);
    assert!(line.contains("1 sessions are on VLANs"), "{line}");
    browse(&mut lab, "ppp0");
    assert_eq!(sessions(&lab), before);

    let said = lab.bngctl(&["reload", "--allow-drops"]).unwrap();
    assert!(said.contains("1 sessions end"), "{said}");
    let status = lab.client().unwrap().wait_link_end(LINK, LIMIT).unwrap();
    assert_eq!(status, pppd_status::ENDED_BY_PEER);
    let left = wait_for_sessions(&lab, 1);
    assert!(left.contains_key(&of("bob")), "{left:?}");
    browse(&mut lab, "ppp1");
    let history = lab.api().get("/api/v1/sessions/history").unwrap();
    let ended = &history["items"][0];
    assert_eq!(ended["id"], of(USER).as_str(), "{history}");
    assert_eq!(ended["cause"], "operator", "{history}");
    // The next dial on that VLAN gets no answer.
    let dial = "pppd plugin pppoe.so vec0.100 nodetach noauth >/run/astray.log 2>&1 &";
    lab.client().unwrap().sh(dial, LIMIT).unwrap();
    let refused = || {
        let metrics = lab.api().metrics()?;
        let reason = [("reason", "vlan_not_configured")];
        Ok(metrics.sum("bng_pppoe_drops_total", &reason))
    };
    wait_until("a PADI in vain", LIMIT, refused, |n| *n >= 1.0).unwrap();

    // A user who is gone goes on until he ends, or is told to.
    edit(&lab, "    - { name: \"bob\", password: \"builder\" }\n", "");
    let view = reloaded(&lab, json!({}));
    assert_eq!(view["sessions_of_removed_users"], 1, "{view}");
    browse(&mut lab, "ppp1");
    assert_eq!(sessions(&lab), left);
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn a_vlan_that_is_added_is_served_when_the_dataplane_has_been_restarted_and_the_reload_says_so() {
    let config = GatewayConfig {
        users: vec![User::new(USER, PASSWORD), User::new("bob", "builder")],
        access_keys: "vlans:\n  - { s_vlan: none }\n".to_owned(),
        ..GatewayConfig::default()
    };
    let mut lab = start(&config);
    let client = lab.boot_client().unwrap();
    let vlan = "ip link add link vec0 name vec0.100 type vlan id 100 && ip link set vec0.100 up";
    client.sh(vlan, LIMIT).unwrap();
    client
        .dial("other", "bob", "builder", "unit 1", LIMIT)
        .unwrap();
    let before = wait_for_sessions(&lab, 1);

    edit(&lab, "{ s_vlan: none }", "{ s_vlan: 0-100 }");
    let (status, error) = reload(&lab, json!({}));
    assert_eq!(
        (status, &error["error"]),
        (422, &json!("bad_configuration"))
    );
    let both = "{ s_vlan: none }\n        - { s_vlan: 100 }";
    edit(&lab, "{ s_vlan: 0-100 }", both);
    let said = lab.bngctl(&["reload"]).unwrap();
    assert!(
        said.contains("restart bng-dataplane for the rest"),
        "{said}"
    );
    assert!(said.ends_with("in force\n"), "{said}");
    let dial = "pppd plugin pppoe.so vec0.100 nodetach noauth >/run/astray.log 2>&1 & echo $! >/run/astray.pid";
    lab.client().unwrap().sh(dial, LIMIT).unwrap();
    let refused = || {
        let metrics = lab.api().metrics()?;
        let reason = [("reason", "vlan_not_configured")];
        Ok(metrics.sum("bng_drops_total", &reason))
    };
    wait_until("a PADI in vain", LIMIT, refused, |n| *n >= 1.0).unwrap();
    let give_up = "kill $(cat /run/astray.pid)";
    lab.client().unwrap().sh(give_up, LIMIT).unwrap();

    lab.terminate(Daemon::Dataplane).unwrap();
    lab.start(Daemon::Dataplane).unwrap();
    wait_for_health(&lab, "ok");
    let client = lab.client().unwrap();
    client
        .dial_over("vec0.100", LINK, USER, PASSWORD, "unit 0", LIMIT)
        .unwrap();
    browse(&mut lab, "ppp0");
    browse(&mut lab, "ppp1");
    let now = wait_for_sessions(&lab, 2);
    assert!(now.contains_key(before.keys().next().unwrap()), "{now:?}");
    lab.api().wait_until_conserved().unwrap();
}
