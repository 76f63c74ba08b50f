//! `nat.log`.

use super::appended;

const POOL: &str = "state_directory: /s\nnat: { pools: [{ name: a, addresses: [198.51.100.1] }]";

#[test]
fn a_log_needs_a_place_and_something_to_log() {
    appended(
        "nat: { log: {} }\n",
        "bng.yaml:14:8: nat.log: needs `state_directory`, which is not given; add it or remove this",
    );
    appended(
        "state_directory: /s\nnat: { log: {} }\n",
        "bng.yaml:15:8: nat.log: needs `nat.pools`, which is not given; add it or remove this",
    );
}

#[test]
fn collectors_and_numbers() {
    for (more, expected) in [
        (
            "syslog: [{ server: \"192.0.2.9:514\" }, { server: \"192.0.2.9:514\", transport: udp }]",
            "bng.yaml:15:102: nat.log.syslog[1]: `192.0.2.9:514 over udp` is already used by nat.log.syslog[0] (line 15); choose another",
        ),
        (
            "ipfix: [{ server: \"192.0.2.9:4739\" }, { server: \"192.0.2.9:4739\" }]",
            "bng.yaml:15:102: nat.log.ipfix[1]: `192.0.2.9:4739 over udp` is already used by nat.log.ipfix[0] (line 15); choose another",
        ),
        (
            "syslog: [{ server: collector }]",
            "bng.yaml:15:83: nat.log.syslog[0].server: `collector` is not allowed; write an IP address and TCP port such as 127.0.0.1:8080",
        ),
        (
            "when_full: wait",
            "bng.yaml:15:75: nat.log.when_full: `wait` is not allowed; write refuse or forget",
        ),
        (
            "interim_s: 59",
            "bng.yaml:15:75: nat.log.interim_s: `59` is not allowed; write a whole number from 60 to 604800 (seconds)",
        ),
        (
            "spool_mib: 15",
            "bng.yaml:15:75: nat.log.spool_mib: `15` is not allowed; write a whole number from 16 to 16777216 (MiB)",
        ),
        (
            "retention_days: 0",
            "bng.yaml:15:80: nat.log.retention_days: `0` is not allowed; write a whole number from 1 to 3650 (days)",
        ),
    ] {
        appended(&format!("{POOL}, log: {{ {more} }} }}\n"), expected);
    }
}
