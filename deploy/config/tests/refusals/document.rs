//! The document itself: its shape, its keys, single values.

use std::path::Path;

use bng_config::{Config, Problem};

use super::{GOOD, appended, changed, refusal};

#[test]
fn smallest_good_file_is_accepted() {
    let config = Config::parse(GOOD.as_bytes(), Path::new("bng.yaml")).unwrap();
    assert_eq!(config.access_port_count(), 1);
    assert_eq!(config.pools[0].capacity(), 4093);
}

#[test]
fn shape_of_the_document() {
    let cases: &[(&str, &str)] = &[
        (
            "",
            "bng.yaml:1:1: the key `dataplane` is missing; add it: keys and values, indented below",
        ),
        (
            "# nothing\n",
            "bng.yaml:1:1: the key `dataplane` is missing; add it: keys and values, indented below",
        ),
        (
            "[1, 2]\n",
            "bng.yaml:1:1: a list is not allowed; write keys and values, indented below",
        ),
        (
            "hello\n",
            "bng.yaml:1:1: this value is not allowed; write keys and values, indented below",
        ),
        (
            "pools: [\n",
            "bng.yaml:2:1: is not valid YAML (while parsing a node, did not find expected node content); check indentation, quotes and colons here",
        ),
        (
            "log: {level: info}\nlog: {level: warn}\n",
            "bng.yaml:2:1: log: is given twice, first on line 1; remove one",
        ),
        (
            "log: &l {level: info}\n",
            "bng.yaml:1:6: log: uses a YAML anchor, which is not supported; write the value out",
        ),
        (
            "log: !!map {level: info}\n",
            "bng.yaml:1:6: log: uses a YAML tag, which is not supported; write the value out",
        ),
        (
            "log: {}\n---\nlog: {}\n",
            "bng.yaml:2:1: a second YAML document starts here; keep everything in one document",
        ),
        (
            "{[a]: b}\n",
            "bng.yaml:1:2: a key must be a plain word; check indentation and colons here",
        ),
        (
            "a: [[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]\n",
            "bng.yaml:1:19: a[0][0][0][0][0][0][0][0][0][0][0][0][0][0][0]: is nested too deeply; no key needs more than 16 levels",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(refusal(text), *expected, "for {text:?}");
    }
}

#[test]
fn unknown_keys_name_the_nearest_known_one() {
    changed(
        "      device: \"0000:3b:00.0\"",
        "      device: a\n      mtuu: 1508",
        "bng.yaml:7:7: dataplane.ports[0].mtuu: unknown key; did you mean `mtu`?",
    );
    changed(
        "    gateway: 100.64.0.1",
        "    gatway: 100.64.0.1",
        "bng.yaml:13:5: pools[0].gatway: unknown key; did you mean `gateway`?",
    );
    appended(
        "log: { colour: always }\n",
        "bng.yaml:14:8: log.colour: unknown key; known here: level",
    );
    appended(
        "\"lo\\ng\": {}\n",
        "bng.yaml:14:1: lo\\ng: unknown key; did you mean `log`?",
    );
}

#[test]
fn missing_keys_say_where_and_what() {
    changed(
        "      role: access\n",
        "",
        "bng.yaml:4:7: dataplane.ports[0]: the key `role` is missing; add it: access or core",
    );
    changed(
        "  workers: [1, 2]\n",
        "",
        "bng.yaml:1:1: dataplane: the key `workers` is missing; add it: a list of 1 to 64 entries",
    );
    changed(
        "    gateway: 100.64.0.1\n",
        "",
        "bng.yaml:11:5: pools[0]: the key `gateway` is missing; add it: an IPv4 address such as 192.0.2.1",
    );
}

#[test]
fn bad_values_say_what_to_write() {
    changed(
        "[1, 2]",
        "[1, two]",
        "bng.yaml:2:16: dataplane.workers[1]: `two` is not allowed; write a whole number from 0 to 1023 (core id)",
    );
    changed(
        "[1, 2]",
        "[]",
        "bng.yaml:2:3: dataplane.workers: has 0 entries; write a list of 1 to 64 entries",
    );
    changed(
        "[1, 2]",
        "3",
        "bng.yaml:2:12: dataplane.workers: `3` is not allowed; write a list of 1 to 64 entries",
    );
    changed(
        "access0",
        "Access 0",
        "bng.yaml:4:13: dataplane.ports[0].name: `Access 0` is not allowed; write 1 to 15 of a-z 0-9 -",
    );
    changed(
        "role: access",
        "role: subscriber",
        "bng.yaml:5:13: dataplane.ports[0].role: `subscriber` is not allowed; write access or core",
    );
    changed(
        "device: \"0000:3b:00.0\"",
        "device:",
        "bng.yaml:6:13: dataplane.ports[0].device: has no value; write text of 1 to 255 bytes",
    );
    changed(
        "device: \"0000:3b:00.0\"",
        "device: {}",
        "bng.yaml:6:7: dataplane.ports[0].device: a section is not allowed; write text of 1 to 255 bytes",
    );
    changed(
        "[100.64.0.0/20]",
        "[100.64.0.0/33]",
        "bng.yaml:12:14: pools[0].ranges[0]: `100.64.0.0/33` is not allowed; write an IPv4 prefix or address such as 198.51.100.0/24",
    );
    changed(
        "gateway: 100.64.0.1",
        "gateway: 2001:db8::1",
        "bng.yaml:13:14: pools[0].gateway: `2001:db8::1` is not allowed; write an IPv4 address such as 192.0.2.1",
    );
    appended(
        "pppoe: { mru: 9999 }\n",
        "bng.yaml:14:15: pppoe.mru: `9999` is not allowed; write a whole number from 576 to 9592 (bytes)",
    );
    appended(
        "pppoe: { mru: 01492 }\n",
        "bng.yaml:14:15: pppoe.mru: `01492` is not allowed; write a whole number from 576 to 9592 (bytes)",
    );
    appended(
        "pppoe: { echo: { interval_s: -1 } }\n",
        "bng.yaml:14:30: pppoe.echo.interval_s: `-1` is not allowed; write a whole number from 1 to 3600 (seconds)",
    );
    appended(
        "log: { level: loud }\n",
        "bng.yaml:14:15: log.level: `loud` is not allowed; write error or warn or info or debug or trace",
    );
    appended(
        "api: { listen: localhost }\n",
        "bng.yaml:14:16: api.listen: `localhost` is not allowed; write an IP address and TCP port such as 127.0.0.1:8080",
    );
    appended(
        "api: { token_file: token }\n",
        "bng.yaml:14:20: api.token_file: `token` is not allowed; write a path that starts with /",
    );
    appended(
        "auth: { protocols: [eap] }\n",
        "bng.yaml:14:21: auth.protocols[0]: `eap` is not allowed; write pap or chap",
    );
    changed(
        "  workers: [1, 2]",
        "  workers: [1, 2]\n  eal: { hugepages: yes }",
        "bng.yaml:3:21: dataplane.eal.hugepages: `yes` is not allowed; write true or false",
    );
}

#[test]
fn values_stay_on_one_line_and_short() {
    changed(
        "device: \"0000:3b:00.0\"",
        "device: \"a\\nb\"",
        "bng.yaml:6:15: dataplane.ports[0].device: `a\\nb` is not allowed; write text of 1 to 255 bytes",
    );
    let long = "x".repeat(300);
    let shown = "x".repeat(60);
    changed(
        "name: access0",
        &format!("name: {long}"),
        &format!(
            "bng.yaml:4:13: dataplane.ports[0].name: `{shown}...` is not allowed; write 1 to 15 of a-z 0-9 -"
        ),
    );
}

#[test]
fn files_that_cannot_be_read() {
    let error = Config::load("/nonexistent/bng.yaml").unwrap_err();
    assert_eq!(
        error.to_string(),
        "/nonexistent/bng.yaml: cannot be read (No such file or directory (os error 2)); check the path and the permissions"
    );
    assert!(matches!(*error.problem, Problem::Unreadable(_)));
    let error = Config::parse(b"log: \xff\n", Path::new("bng.yaml")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "bng.yaml: is not UTF-8 text; save the file as UTF-8"
    );
}
