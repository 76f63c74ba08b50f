//! The program itself, against a gateway played by the test.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that finds something missing has failed"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread::JoinHandle;

const TOKEN: &str = "0123456789abcdef";

/// Answers one request and returns its head and body.
struct Gateway {
    url: String,
    asked: JoinHandle<String>,
}

impl Gateway {
    fn new(status: &'static str, body: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                assert_ne!(reader.read_line(&mut head).unwrap(), 0);
            }
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length")
                    .then(|| value.trim().parse().unwrap())
            });
            let mut sent = vec![0; length.unwrap_or(0)];
            reader.read_exact(&mut sent).unwrap();
            head += text(&sent);
            let length = body.len();
            write!(
                stream,
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            )
            .unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let _ = reader.read_to_end(&mut Vec::new());
            head
        });
        Self { url, asked }
    }
}

struct TokenFile(PathBuf);

impl TokenFile {
    fn new(name: &str) -> Self {
        let name = format!("bngctl-test-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, format!("{TOKEN}\n")).unwrap();
        Self(path)
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn bngctl(url: &str, token: &TokenFile, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bngctl"))
        .env("BNG_URL", url)
        .env("BNG_TOKEN_FILE", &token.0)
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn filters_and_token_reach_the_gateway_and_a_table_comes_back() {
    let token = TokenFile::new("table");
    let gateway = Gateway::new(
        "200 OK",
        r#"{"total":1,"offset":0,"items":[{"id":"access0-7","user":"a b","state":"forwarding"}]}"#,
    );
    let output = bngctl(
        &gateway.url,
        &token,
        &["sessions", "--user", "a b", "--limit", "5"],
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let head = gateway.asked.join().unwrap();
    assert!(
        head.starts_with("GET /api/v1/sessions?user=a%20b&limit=5 "),
        "{head}"
    );
    let header = format!("authorization: bearer {TOKEN}");
    assert!(head.to_lowercase().contains(&header), "{head}");
    assert!(text(&output.stdout).contains("access0-7"));
}

#[test]
fn the_history_is_asked_for_by_whose_why_and_when() {
    let token = TokenFile::new("history");
    let gateway = Gateway::new("200 OK", r#"{"total":0,"offset":0,"items":[]}"#);
    let output = bngctl(
        &gateway.url,
        &token,
        &[
            "history",
            "--circuit",
            "olt 1/1",
            "--s-vlan",
            "0",
            "--cause",
            "dead_peer",
            "--was-up",
            "true",
            "--since",
            "2h",
        ],
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let head = gateway.asked.join().unwrap();
    let expected = "GET /api/v1/sessions/history?circuit=olt%201%2F1&s_vlan=0&cause=dead_peer&was_up=true&since=";
    assert!(head.starts_with(expected), "{head}");
    let since: u64 = head[expected.len()..]
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let ago = u64::try_from(now.unwrap().as_millis()).unwrap() - since;
    assert!((7_200_000..7_320_000).contains(&ago), "{ago} ms ago");
}

#[test]
fn a_trace_is_ordered_shown_saved_and_ended() {
    let token = TokenFile::new("trace");
    let gateway = Gateway::new("201 Created", r#"{"id":3,"running":true,"frames":0}"#);
    let start = [
        "trace",
        "start",
        "--mac",
        "2:0:0:0:0:7",
        "--s-vlan",
        "100",
        "--seconds",
        "60",
        "--with-passwords",
    ];
    let output = bngctl(&gateway.url, &token, &start);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let asked = gateway.asked.join().unwrap();
    assert!(asked.starts_with("POST /api/v1/traces "), "{asked}");
    let sent: serde_json::Value =
        serde_json::from_str(asked.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let expected = serde_json::json!({
        "mac": "2:0:0:0:0:7", "s_vlan": 100, "seconds": 60, "with_passwords": true
    });
    assert_eq!(sent, expected);

    let gateway = Gateway::new(
        "200 OK",
        r#"{"running":false,"lines":[{"unix_us":1,"direction":"up","port":"access0","text":"PADI"}]}"#,
    );
    let output = bngctl(&gateway.url, &token, &["trace", "show", "3"]);
    assert_eq!(text(&output.stdout), "00:00:00.000Z access0 --> PADI\n");
    gateway.asked.join().unwrap();

    let gateway = Gateway::new("200 OK", "\n\r\r\n...");
    let output = bngctl(&gateway.url, &token, &["trace", "save", "3", "-"]);
    assert_eq!(output.stdout, b"\n\r\r\n...");
    let asked = gateway.asked.join().unwrap();
    assert!(asked.starts_with("GET /api/v1/traces/3/pcapng "), "{asked}");

    let gateway = Gateway::new("204 No Content", "");
    let output = bngctl(&gateway.url, &token, &["trace", "stop", "3"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let asked = gateway.asked.join().unwrap();
    assert!(asked.starts_with("DELETE /api/v1/traces/3 "), "{asked}");
}

#[test]
fn events_are_printed_as_they_come_until_the_gateway_ends_them() {
    let token = TokenFile::new("events");
    let stream = "event:dataplane_up\nid:1-7\ndata:{\"unix_ms\":5,\"pid\":9}\n\n:\n\nevent:dataplane_down\nid:1-8\ndata:{\"unix_ms\":6}\n\n";
    let gateway = Gateway::new("200 OK", stream);
    let output = bngctl(&gateway.url, &token, &["events", "--since", "1-6"]);
    assert_eq!(output.status.code(), Some(3), "the stream has ended");
    assert_eq!(
        text(&output.stdout),
        "00:00:00.005Z dataplane_up pid 9 [1-7]\n00:00:00.006Z dataplane_down  [1-8]\n"
    );
    let asked = gateway.asked.join().unwrap().to_lowercase();
    assert!(asked.contains("last-event-id: 1-6"), "{asked}");

    let gateway = Gateway::new("200 OK", stream);
    let only = ["--json", "events", "--only", "dataplane_down"];
    let output = bngctl(&gateway.url, &token, &only);
    assert_eq!(text(&output.stdout), "{\"unix_ms\":6}\n");
    gateway.asked.join().unwrap();

    let gateway = Gateway::new("200 OK", "event:lost\ndata:{\"missed\":4}\n\n");
    let output = bngctl(&gateway.url, &token, &["events"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("4 events are missing"));
    gateway.asked.join().unwrap();
}

#[test]
fn a_reload_says_what_is_different_and_when_it_takes_effect() {
    let token = TokenFile::new("reload");
    let body = |asked: &str| -> serde_json::Value {
        serde_json::from_str(asked.split("\r\n\r\n").nth(1).unwrap()).unwrap()
    };
    let gateway = Gateway::new(
        "200 OK",
        r#"{"applied":false,"refused":null,"changes":[{"key":"policies[gold].up","change":"changed","class":"live"}],"sessions_changed":3,"dataplane_restart":false}"#,
    );
    let output = bngctl(&gateway.url, &token, &["reload", "--dry-run"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let asked = gateway.asked.join().unwrap();
    assert!(asked.starts_with("POST /api/v1/reload "), "{asked}");
    assert_eq!(
        body(&asked),
        serde_json::json!({"allow_drops":false,"dry_run":true})
    );
    let said = text(&output.stdout);
    assert!(
        said.contains("policies[gold].up  changed  at once"),
        "{said}"
    );
    assert!(
        said.ends_with("3 sessions have another policy\nnot in force, as asked\n"),
        "{said}"
    );

    let refused =
        r#"{"error":"bad_configuration","detail":"/etc/x.yaml:3:1: dataplan: unknown key"}"#;
    let gateway = Gateway::new("422 Unprocessable Entity", refused);
    let output = bngctl(&gateway.url, &token, &["reload", "--allow-drops"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("x.yaml:3:1: dataplan"));
    let asked = gateway.asked.join().unwrap();
    assert_eq!(
        body(&asked),
        serde_json::json!({"allow_drops":true,"dry_run":false})
    );
}

#[test]
fn clients_that_are_kept_out_are_listed_and_let_in() {
    let token = TokenFile::new("lockout");
    let gateway = Gateway::new(
        "200 OK",
        r#"[{"port":"access0","mac":"02:00:00:00:00:01","failures":11,"ms_left":19001}]"#,
    );
    let output = bngctl(&gateway.url, &token, &["lockout", "list"]);
    assert!(
        text(&output.stdout).contains("20s"),
        "{}",
        text(&output.stdout)
    );
    gateway.asked.join().unwrap();
    let gateway = Gateway::new("200 OK", r#"{"unlocked":1}"#);
    let output = bngctl(
        &gateway.url,
        &token,
        &["lockout", "clear", "--mac", "2:0:0:0:0:1"],
    );
    assert_eq!(text(&output.stdout), "1 let in again\n");
    let asked = gateway.asked.join().unwrap();
    assert!(
        asked.starts_with("DELETE /api/v1/lockouts?mac=2%3A0%3A0%3A0%3A0%3A1 "),
        "{asked}"
    );
    let output = bngctl("http://127.0.0.1:9", &token, &["lockout", "clear"]);
    assert_eq!(output.status.code(), Some(2), "nobody is meant");
}

#[test]
fn a_change_of_limits_is_a_patch_of_the_session() {
    let token = TokenFile::new("limits");
    let gateway = Gateway::new("200 OK", r#"{"id":"access0-7","quota_bytes":1048576}"#);
    let change = [
        "session",
        "set-limits",
        "access0-7",
        "--session-timeout",
        "60",
        "--no-idle-timeout",
        "--quota",
        "1",
    ];
    let output = bngctl(&gateway.url, &token, &change);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let asked = gateway.asked.join().unwrap();
    assert!(
        asked.starts_with("PATCH /api/v1/sessions/access0-7 "),
        "{asked}"
    );
    let sent: serde_json::Value =
        serde_json::from_str(asked.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let expected =
        serde_json::json!({"session_timeout_s": 60, "idle_timeout_s": null, "quota_mib": 1});
    assert_eq!(sent, expected);
    let nothing = ["session", "set-limits", "access0-7"];
    let nothing = bngctl("http://127.0.0.1:9", &token, &nothing);
    assert_eq!(nothing.status.code(), Some(2));
}

#[test]
fn json_is_the_gateways_answer() {
    let token = TokenFile::new("json");
    let gateway = Gateway::new(
        "200 OK",
        r#"{"address":[],"nat":[],"new":18446744073709551615}"#,
    );
    let output = bngctl(&gateway.url, &token, &["--json", "pools"]);
    assert_eq!(output.status.code(), Some(0));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["new"], u64::MAX);
}

#[test]
fn ending_a_session_is_a_delete() {
    let token = TokenFile::new("end");
    let gateway = Gateway::new("202 Accepted", "");
    let output = bngctl(&gateway.url, &token, &["session", "end", "access0-7"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let head = gateway.asked.join().unwrap();
    assert!(
        head.starts_with("DELETE /api/v1/sessions/access0-7 "),
        "{head}"
    );
}

#[test]
fn a_change_of_policy_is_a_patch_with_what_is_to_change() {
    let token = TokenFile::new("policy");
    for (arguments, body) in [
        (&["gold"][..], r#"{"policy":"gold"}"#),
        (
            &["--up-kbps", "500", "--no-down-limit", "--filter", "kids"],
            r#"{"down":null,"filter":"kids","up":{"rate_kbps":500}}"#,
        ),
        (
            &[
                "gold",
                "--down-kbps",
                "9",
                "--down-burst-bytes",
                "3000",
                "--source-check",
                "off",
                "--mss-clamp",
                "on",
                "--no-filter",
            ],
            r#"{"down":{"burst_bytes":3000,"rate_kbps":9},"filter":null,"mss_clamp":true,"policy":"gold","source_check":false}"#,
        ),
    ] {
        let gateway = Gateway::new("200 OK", r#"{"name":"gold","by_operator":true}"#);
        let all = [&["session", "set-policy", "access0-7"], arguments].concat();
        let output = bngctl(&gateway.url, &token, &all);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let asked = gateway.asked.join().unwrap();
        assert!(
            asked.starts_with("PATCH /api/v1/sessions/access0-7/policy "),
            "{asked}"
        );
        let sent: serde_json::Value =
            serde_json::from_str(asked.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        let expected: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(sent, expected);
        assert!(text(&output.stdout).contains("by_operator"));
    }
    let nothing = bngctl(
        "http://127.0.0.1:9",
        &token,
        &["session", "set-policy", "access0-7"],
    );
    assert_eq!(nothing.status.code(), Some(2), "nothing to change");
    let both = [
        "session",
        "set-policy",
        "x-1",
        "--up-kbps",
        "1",
        "--no-up-limit",
    ];
    let both = bngctl("http://127.0.0.1:9", &token, &both);
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn policies_and_filters_are_listed() {
    let token = TokenFile::new("lists");
    for (what, path) in [("policy", "policies"), ("filter", "filters")] {
        let gateway = Gateway::new("200 OK", r#"[{"name":"gold"}]"#);
        let output = bngctl(&gateway.url, &token, &[what, "list"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let asked = gateway.asked.join().unwrap();
        assert!(
            asked.starts_with(&format!("GET /api/v1/{path} ")),
            "{asked}"
        );
        assert!(text(&output.stdout).contains("gold"));
    }
}

#[test]
fn an_error_of_the_gateway_is_named_and_ends_with_1() {
    let token = TokenFile::new("error");
    let gateway = Gateway::new(
        "404 Not Found",
        r#"{"error":"no_such_session","detail":"no session access0-7"}"#,
    );
    let output = bngctl(&gateway.url, &token, &["session", "show", "access0-7"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        "bngctl: no_such_session (404): no session access0-7\n"
    );
}

#[test]
fn a_failing_gateway_is_shown_and_ends_with_1() {
    let token = TokenFile::new("health");
    let gateway = Gateway::new(
        "503 Service Unavailable",
        r#"{"status":"fail","components":[{"name":"driver","status":"fail","detail":"stuck"}]}"#,
    );
    let output = bngctl(&gateway.url, &token, &["health"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("stuck"));
}

#[test]
fn wrong_usage_ends_with_2() {
    let token = TokenFile::new("usage");
    let nowhere = "http://127.0.0.1:9";
    assert_eq!(bngctl(nowhere, &token, &["sesions"]).status.code(), Some(2));
    let missing = TokenFile(PathBuf::from("/nonexistent/token"));
    let output = bngctl(nowhere, &missing, &["sessions"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("/nonexistent/token"));
}

#[test]
fn a_gateway_that_is_not_there_ends_with_3() {
    let token = TokenFile::new("unreachable");
    // Bound and closed again: nobody listens.
    let address = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let url = format!("http://{address}");
    let output = bngctl(&url, &token, &["workers"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        text(&output.stderr).contains(&url),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn somebody_else_on_the_port_is_noticed() {
    let token = TokenFile::new("other");
    let gateway = Gateway::new("200 OK", "<html>hello</html>");
    let output = bngctl(&gateway.url, &token, &["ports"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("none of bng-controlplane"));
}

#[test]
fn nat_who_names_the_subscriber_or_says_clearly_why_it_cannot() {
    let token = TokenFile::new("who");
    let ask = |body: &'static str, arguments: &[&str]| {
        let gateway = Gateway::new("200 OK", body);
        let output = bngctl(&gateway.url, &token, arguments);
        let asked = gateway.asked.join().unwrap();
        (output.status.code(), text(&output.stdout).to_owned(), asked)
    };
    let (status, shown, asked) = ask(
        r#"{"answer": "held", "address": "198.51.100.7", "port": 40000, "at": "2026-03-01T12:00:00.000Z",
            "holders": [{"user": "al\u001bice", "inside": "100.64.0.9", "until": null}]}"#,
        &[
            "nat",
            "who",
            "198.51.100.7:40000",
            "--at",
            "2026-03-01T13:00:00+01:00",
        ],
    );
    assert_eq!(status, Some(0), "{shown}");
    let first = "198.51.100.7:40000 at 2026-03-01T12:00:00.000Z: al\u{fffd}ice\n";
    assert!(shown.starts_with(first), "{shown}");
    assert!(shown.contains("100.64.0.9"), "{shown}");
    let expected =
        "GET /api/v1/nat/who?address=198.51.100.7&port=40000&at=2026-03-01T13%3A00%3A00%2B01%3A00 ";
    assert!(asked.starts_with(expected), "{asked}");
    for (body, expected) in [
        (
            r#"{"answer": "nobody", "address": "198.51.100.7", "port": 1, "at": "T", "holders": []}"#,
            "198.51.100.7:1 at T: nobody had it\n",
        ),
        (
            r#"{"answer": "before_log", "address": "198.51.100.7", "port": 1, "at": "T", "log_since": "S", "holders": []}"#,
            "198.51.100.7:1 at T: not known, the log begins at S\n",
        ),
        (
            r#"{"answer": "no_log", "address": "198.51.100.7", "port": 1, "at": "T", "holders": []}"#,
            "198.51.100.7:1 at T: not known, nothing is logged (nat.log); only the present is\n",
        ),
    ] {
        let (status, shown, asked) = ask(body, &["nat", "who", "198.51.100.7:1"]);
        assert_eq!((status, shown.as_str()), (Some(1), expected));
        let expected = "GET /api/v1/nat/who?address=198.51.100.7&port=1 ";
        assert!(asked.starts_with(expected), "{asked}");
    }
    for bad in [
        "198.51.100.7",
        "198.51.100.7:65536",
        "2001:db8::1:80",
        ":80",
    ] {
        let output = bngctl("http://127.0.0.1:9", &token, &["nat", "who", bad]);
        assert_eq!(output.status.code(), Some(2), "{bad}");
    }
}
