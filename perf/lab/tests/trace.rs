//! The trace of a real client's session, read by tshark and in words, and held against a capture of the wire.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod running_gateway;

use std::path::Path;

use bng_lab::{GatewayConfig, Lab, dissect};
use running_gateway::{LIMIT, PASSWORD, USER, start, wait_for_sessions};
use serde_json::{Value, json};

const LINK: &str = "wan";
const MAC: &str = "02:00:00:00:00:11";
/// Discovery, and PPP without packets of the network.
const CONTROL: &str = "pppoed || (pppoes && ppp.protocol != 0x0021)";

fn booted() -> Lab {
    let config = GatewayConfig {
        protocols: "chap, pap",
        // No echo falls into the trace: how many frames there are is known.
        echo_interval_s: 300,
        ..GatewayConfig::default()
    };
    let mut lab = start(&config);
    lab.boot_client().unwrap();
    lab
}

/// Begins a trace with `bngctl` and returns its number.
fn begin(lab: &Lab, whose: &[&str]) -> u64 {
    let words = [&["--json", "trace", "start"], whose].concat();
    let started: Value = serde_json::from_str(&lab.bngctl(&words).unwrap()).unwrap();
    assert_eq!(started["running"], true, "{started}");
    started["id"].as_u64().unwrap()
}

/// Dials and hangs up.
fn come_and_go(lab: &mut Lab, options: &str) {
    let client = lab.client().unwrap();
    client.dial(LINK, USER, PASSWORD, options, LIMIT).unwrap();
    wait_for_sessions(lab, 1);
    lab.client().unwrap().hang_up(LINK, LIMIT).unwrap();
    wait_for_sessions(lab, 0);
}

/// Saves a trace with `bngctl`, and sees that REST gives the same.
fn save(lab: &Lab, id: u64, name: &str) -> std::path::PathBuf {
    let file = lab.dir().join(name);
    let path = file.to_str().unwrap();
    lab.bngctl(&["trace", "save", &id.to_string(), path])
        .unwrap();
    let bytes = lab.api().download(&format!("/api/v1/traces/{id}/pcapng"));
    assert_eq!(bytes.unwrap(), std::fs::read(&file).unwrap());
    file
}

fn holds(file: &Path, word: &str) -> bool {
    let bytes = std::fs::read(file).unwrap();
    bytes
        .windows(word.len())
        .any(|part| part == word.as_bytes())
}

fn malformed(file: &Path) -> Vec<Vec<String>> {
    let filter = "_ws.malformed || _ws.expert.severity == error";
    dissect(file, filter, &["frame.number", "_ws.col.Info"]).unwrap()
}

/// The control frames of a file by sender: what each is, as tshark says.
fn said_by(file: &Path, sender: &str) -> Vec<Vec<String>> {
    let filter = format!("({CONTROL}) && eth.src {sender} {MAC}");
    let fields = [
        "pppoe.code",
        "pppoe.session_id",
        "ppp.protocol",
        "ppp.code",
        "ppp.identifier",
        "pap.code",
        "chap.code",
        "lcp.opt.magic_number",
        "ipcp.opt.ip_address",
        "pppoed.tags.ac_cookie",
        "chap.value",
    ];
    dissect(file, &filter, &fields).unwrap()
}

fn count(file: &Path, filter: &str) -> usize {
    dissect(file, filter, &["frame.number"]).unwrap().len()
}

#[test]
fn tshark_reads_the_trace_of_a_session_with_pap_and_it_is_what_was_on_the_wire_without_the_password()
 {
    let mut lab = booted();
    let id = begin(&lab, &["--mac", MAC]);
    let order = json!({ "mac": MAC, "with_passwords": true });
    let whole = lab.api().post("/api/v1/traces", &order).unwrap();
    let capture = lab.capture_access().unwrap();
    come_and_go(&mut lab, "refuse-chap");
    let wire = capture.stop().unwrap();
    let file = save(&lab, id, "trace.pcapng");
    let whole = save(&lab, whole["id"].as_u64().unwrap(), "whole.pcapng");

    assert_eq!(malformed(&file), Vec::<Vec<String>>::new());
    // Discovery, LCP, PAP, IPCP and the end, each of them by name.
    for what in [
        "pppoe.code == 0x09 && pppoed.tags.host_uniq",
        "pppoe.code == 0x07 && pppoed.tags.ac_name == \"lab\"",
        "pppoe.code == 0x19 && pppoed.tags.ac_cookie",
        "pppoe.code == 0x65 && pppoe.session_id != 0",
        "lcp && ppp.code == 1 && lcp.opt.auth_protocol == 0xc023",
        "pap.code == 1 && pap.peer_id == \"alice\"",
        "pap.code == 2",
        "lcp && ppp.code == 5",
        "lcp && ppp.code == 6",
    ] {
        assert!(count(&file, what) >= 1, "{what}");
    }
    for what in ["lcp && ppp.code == 2", "ipcp && ppp.code == 2"] {
        for end in ["src", "dst"] {
            let filter = format!("{what} && eth.{end} == {MAC}");
            assert!(count(&file, &filter) >= 1, "{filter}");
        }
    }
    assert_eq!(count(&file, "chap"), 0);

    // Each side's frames are those of the wire, one by one.
    for sender in ["==", "!="] {
        let (traced, seen) = (said_by(&file, sender), said_by(&wire, sender));
        assert!(seen.len() >= 8, "{seen:?}");
        assert_eq!(traced, seen);
    }
    let is = |file, password: &str| {
        let all = dissect(file, "pap.code == 1", &["pap.password"]).unwrap();
        !all.is_empty() && all.iter().all(|fields| fields == &[password])
    };
    assert!(is(&file, &"*".repeat(PASSWORD.len())));
    assert!(is(&whole, PASSWORD) && is(&wire, PASSWORD));
    assert!(holds(&whole, PASSWORD) && !holds(&file, PASSWORD));
    assert!(holds(&file, USER));

    // In words.
    let shown = lab.bngctl(&["trace", "show", &id.to_string()]).unwrap();
    let mut rest = shown.as_str();
    for words in [
        "--> 02:00:00:00:00:11 > ff:ff:ff:ff:ff:ff PADI",
        "PADO",
        "AC-Name \"lab\"",
        "PADR",
        "PADS session",
        "LCP Configure-Request",
        "PAP Authenticate-Request id",
        "user \"alice\", password of 10 bytes",
        "<--",
        "PAP Authenticate-Ack",
        "IPCP Configure-Nak",
        "IPCP Configure-Ack",
        "LCP Terminate-Request",
        "LCP Terminate-Ack",
    ] {
        let at = rest.find(words);
        let at = at.unwrap_or_else(|| panic!("{words} in {shown}"));
        rest = &rest[at..];
    }
    assert!(!shown.contains(PASSWORD) && !shown.contains("malformed"));
    let path = format!("/api/v1/traces/{id}");
    let lines = lab.api().get(&path).unwrap()["lines"]
        .as_array()
        .unwrap()
        .len();
    assert_eq!(lines, count(&file, "frame"));
    assert_eq!(shown.matches(MAC).count(), lines, "a line for each frame");
    lab.bngctl(&["trace", "stop", &id.to_string()]).unwrap();
    assert_eq!(lab.api().get_raw(&path).unwrap().0, 404);
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn a_user_who_was_there_before_is_traced_from_his_padi_on_and_a_chap_secret_is_nowhere() {
    let mut lab = booted();
    come_and_go(&mut lab, "");
    let id = begin(&lab, &["--user", USER, "--with-passwords"]);
    let nobody = begin(&lab, &["--user", "nobody"]);
    come_and_go(&mut lab, "");
    let file = save(&lab, id, "trace.pcapng");
    assert_eq!(malformed(&file), Vec::<Vec<String>>::new());
    for what in [
        "pppoe.code == 0x09",
        "lcp && ppp.code == 1 && lcp.opt.auth_protocol == 0xc223",
        "chap.code == 1 && chap.name == \"lab\"",
        "chap.code == 2 && chap.name == \"alice\"",
        "chap.code == 3",
    ] {
        assert!(count(&file, what) >= 1, "{what}");
    }
    assert_eq!(count(&file, "pap"), 0);
    assert!(!holds(&file, PASSWORD), "it never was on the wire");
    let shown = lab.bngctl(&["trace", "show", &id.to_string()]).unwrap();
    for words in [
        "authentication CHAP with MD5",
        "CHAP Challenge id",
        "CHAP Response id",
        "CHAP Success",
    ] {
        assert!(shown.contains(words), "{words} in {shown}");
    }
    let traces = lab.api().get("/api/v1/traces").unwrap();
    let mut all = traces.as_array().unwrap().iter();
    let other = all.find(|it| it["id"] == nobody).unwrap();
    assert_eq!(other["frames"], 0, "{other}");
    lab.api().wait_until_conserved().unwrap();
}

#[test]
fn a_session_that_is_up_is_traced_by_its_id_and_nobody_else_is() {
    let mut lab = booted();
    let client = lab.client().unwrap();
    client
        .dial("other", USER, PASSWORD, "unit 1", LIMIT)
        .unwrap();
    wait_for_sessions(&lab, 1);
    let client = lab.client().unwrap();
    client.dial(LINK, USER, PASSWORD, "unit 0", LIMIT).unwrap();
    let up = wait_for_sessions(&lab, 2);
    let newest = up.values().max_by_key(|session| session.started_unix_ms);
    let number = newest.unwrap().id.strip_prefix("access0-").unwrap();
    let whose = ["--port", "access0", "--session-id", number];
    let id = begin(&lab, &whose);
    let client = lab.client().unwrap();
    client.hang_up(LINK, LIMIT).unwrap();
    wait_for_sessions(&lab, 1);
    lab.client().unwrap().hang_up("other", LIMIT).unwrap();
    wait_for_sessions(&lab, 0);

    let file = save(&lab, id, "session.pcapng");
    assert_eq!(malformed(&file), Vec::<Vec<String>>::new());
    let ids = dissect(&file, "frame", &["pppoe.session_id"]).unwrap();
    let own = format!("0x{:04x}", number.parse::<u16>().unwrap());
    assert!(!ids.is_empty());
    assert!(ids.iter().all(|id| *id == [own.as_str()]), "{ids:?}");
    for what in ["lcp && ppp.code == 5", "lcp && ppp.code == 6"] {
        assert!(count(&file, what) >= 1, "{what}");
    }
    lab.api().wait_until_conserved().unwrap();
}
