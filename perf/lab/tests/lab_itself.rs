//! The lab's own promises, without the gateway's daemons: the client boots and speaks PPPoE, captures see what is on the
//! wire, and nothing stays behind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::time::Duration;

use bng_lab::{
    GatewayConfig, Lab, LabError, Programs, RADIUS_SECRET, addresses, check_checksums, pppd_status,
    radclient, www,
};

const LIMIT: Duration = Duration::from_secs(60);

fn lab() -> Lab {
    Lab::create(Programs::of_workspace(), &GatewayConfig::default()).unwrap()
}

fn namespaces_of(name: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/run/netns").unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|n| n.starts_with(&format!("{name}-")))
        .collect()
}

#[test]
fn nothing_stays_behind_when_a_lab_is_dropped() {
    let mut lab = lab();
    lab.start_www().unwrap();
    lab.boot_client().unwrap();
    let name = lab.name().to_owned();
    let dir = lab.dir().to_owned();
    let state = format!("/run/bng-lab/{name}.json");
    assert_eq!(namespaces_of(&name).len(), 3);
    assert!(dir.exists() && Path::new(&state).exists());

    drop(lab);
    assert_eq!(namespaces_of(&name), Vec::<String>::new());
    assert!(!dir.exists() && !Path::new(&state).exists());
    // Guests' processes carry the directory on their command line.
    let needle = dir.to_string_lossy().into_owned();
    for process in std::fs::read_dir("/proc").unwrap() {
        let command = std::fs::read(process.unwrap().path().join("cmdline")).unwrap_or_default();
        assert!(
            !String::from_utf8_lossy(&command).contains(&needle),
            "a process is left"
        );
    }
}

#[test]
fn client_without_gateway_gets_no_answer_though_its_padi_is_on_the_wire() {
    let mut lab = lab();
    lab.boot_client().unwrap();
    let capture = lab.capture_access().unwrap();
    let client = lab.client().unwrap();
    let error = client
        .dial("wan", "alice", "x", "", Duration::from_secs(10))
        .unwrap_err();
    assert!(matches!(error, LabError::Timeout { .. }), "{error}");
    assert_eq!(
        client.hang_up("wan", LIMIT).unwrap(),
        pppd_status::NO_ANSWER
    );
    assert_eq!(
        client.sh("echo out; echo err >&2", LIMIT).unwrap(),
        "out\nerr\n"
    );
    assert_eq!(client.sh_status("exit 3", LIMIT).unwrap().0, 3);

    let report = check_checksums(&capture.stop().unwrap()).unwrap();
    assert!(report.frames >= 1, "{report:?}");
    assert_eq!(report.bad, Vec::<String>::new());
}

#[test]
fn web_server_serves_the_known_stream_and_core_side_checksums_are_whole() {
    let mut lab = lab();
    lab.start_www().unwrap();
    // The gateway's kernel stands in for the dataplane here: both ends are plain veth.
    lab.gateway()
        .sysctl("net/ipv4/conf/veth-core0/arp_ignore", "0")
        .unwrap();
    lab.gateway()
        .ip(&format!(
            "addr add {}/24 dev veth-core0",
            addresses::GATEWAY_CORE
        ))
        .unwrap();
    lab.gateway()
        .ip(&format!("route add default via {}", addresses::ROUTER))
        .unwrap();
    let capture = lab.capture_core().unwrap();
    let fetch = format!(
        "curl -sS http://{}/bytes/3000000 | sha256sum",
        addresses::WWW
    );
    let output = lab
        .gateway()
        .within(|| {
            std::process::Command::new("sh")
                .args(["-c", &fetch])
                .output()
        })
        .unwrap()
        .unwrap();
    let sum = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        sum.split(' ').next().unwrap(),
        www::stream_sha256(3_000_000).unwrap()
    );

    let report = check_checksums(&capture.stop().unwrap()).unwrap();
    assert_eq!(report.bad, Vec::<String>::new());
    assert!(report.good["tcp"] > 2000, "{report:?}");
}

#[test]
fn a_missing_program_fails_by_name() {
    let lab = lab();
    let error = lab
        .run_in(lab.gateway(), "no-such-program", &[])
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no-such-program does not exist: `make build`"),
        "{error}"
    );
}

#[test]
fn freeradius_checks_passwords_demands_message_authenticators_and_keeps_what_it_was_told() {
    let lab = lab();
    let users = "alice Cleartext-Password := \"wonderland\"\n\tFramed-IP-Address = 100.64.1.9\n";
    let port = addresses::RADIUS.port();
    let mut server = lab.start_freeradius("radius", port, users).unwrap();
    let ask = |command: &str, attributes: &str| {
        let port = if command == "acct" { port + 1 } else { port };
        let to = std::net::SocketAddr::new(addresses::RADIUS.ip(), port);
        radclient(lab.internet(), to, command, RADIUS_SECRET, attributes, 2).unwrap()
    };
    for password in ["User-Password", "CHAP-Password"] {
        let right =
            format!("User-Name = alice, {password} = wonderland, Message-Authenticator = 0x00");
        let reply = ask("auth", &right).unwrap();
        assert_eq!(reply.code, "Access-Accept", "{reply:?}");
        assert_eq!(
            reply.attributes.get("Framed-IP-Address"),
            Some("100.64.1.9")
        );
        assert!(reply.attributes.get("Message-Authenticator").is_some());
        let wrong = right.replace("wonderland", "looking-glass");
        let reply = ask("auth", &wrong).unwrap();
        assert_eq!(reply.code, "Access-Reject", "{reply:?}");
        assert!(reply.attributes.get("Message-Authenticator").is_some());
        let unsigned = right.split(", Message").next().unwrap();
        assert_eq!(ask("auth", unsigned), None);
    }
    assert_eq!(server.access_requests().unwrap().len(), 4);

    let start = "Acct-Status-Type = Start, Acct-Session-Id = \"7\", Class = 0x0102";
    assert_eq!(ask("acct", start).unwrap().code, "Accounting-Response");
    let told = server.accounting().unwrap();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].get("Acct-Session-Id"), Some("7"));
    assert_eq!(told[0].get("Class"), Some("0x0102"));

    server.kill().unwrap();
    assert_eq!(ask("acct", start), None);
    server.restart(lab.internet()).unwrap();
    assert!(ask("acct", start).is_some());
    assert_eq!(server.accounting().unwrap().len(), 2);
}
