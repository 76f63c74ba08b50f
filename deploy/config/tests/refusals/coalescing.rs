//! Coalescing and segmentation.

use std::path::Path;

use bng_config::{Config, Problem, Segmentation};

use super::{GOOD, changed, refusal};

/// [`GOOD`] with `dataplane.coalescing` on line 3.
fn with(coalescing: &str) -> String {
    GOOD.replace(
        "[1, 2]",
        &format!("[1, 2]\n  coalescing: {{ {coalescing} }}"),
    )
}

fn accepted(text: &str) -> Config {
    Config::parse(text.as_bytes(), Path::new("bng.yaml")).unwrap()
}

#[test]
fn nothing_is_coalesced_unless_asked_for() {
    let dataplane = accepted(GOOD).dataplane;
    assert_eq!(dataplane.coalescing, bng_config::Coalescing::default());
    assert!(!dataplane.coalescing.is_on());
    for port in &dataplane.ports {
        assert_eq!(port.segmentation, Segmentation::Software);
        assert!(!port.twin_offloads);
    }
}

#[test]
fn settings_that_have_nothing_to_act_on() {
    assert_eq!(
        refusal(&with("hold_us: 50")),
        "bng.yaml:3:26: dataplane.coalescing.hold_us: there is nothing to hold, as nothing is coalesced; set tcp or udp of dataplane.coalescing.upstream or downstream to true, or remove it"
    );
    assert_eq!(
        refusal(&with("upstream: { tcp: true }, ipv4: false, ipv6: false")),
        "bng.yaml:3:48: dataplane.coalescing.ipv4: with neither IPv4 nor IPv6 there is nothing to coalesce; set ipv4 or ipv6 to true, or remove upstream and downstream"
    );
    for off in ["hold_us: 0", "ipv4: false, ipv6: false", "max_frames: 16"] {
        assert!(!accepted(&with(off)).dataplane.coalescing.is_on());
    }
}

#[test]
fn a_direction_without_a_port() {
    let access = with("upstream: { udp: true }")
        .replace("role: access", "role: access\n      coalescing: false");
    assert_eq!(
        refusal(&access),
        "bng.yaml:3:17: dataplane.coalescing.upstream: every access port has `coalescing: false`, so there is nothing to coalesce; remove that from a port, or remove this"
    );
    let core = with("downstream: { tcp: true }")
        .replace("role: core", "role: core\n      coalescing: false");
    assert_eq!(
        refusal(&core),
        "bng.yaml:3:17: dataplane.coalescing.downstream: every core port has `coalescing: false`, so there is nothing to coalesce; remove that from a port, or remove this"
    );
    // The other direction has its ports.
    let other = core.replace("downstream", "upstream");
    assert!(accepted(&other).dataplane.coalescing.is_on());
}

#[test]
fn access_ports_take_frames_only() {
    for (name, value, column) in [("segmentation", "port", 21), ("twin_offloads", "true", 22)] {
        changed(
            "role: access",
            &format!("role: access\n      {name}: {value}"),
            &format!(
                "bng.yaml:6:{column}: dataplane.ports[0].{name}: only a core port has addresses, routes, segmentation and a TAP twin; remove it or set `role: core`"
            ),
        );
    }
    let core = GOOD.replace(
        "role: core",
        "role: core\n      segmentation: port\n      twin_offloads: true",
    );
    let port = &accepted(&core).dataplane.ports[1];
    assert_eq!(port.segmentation, Segmentation::Port);
    assert!(port.twin_offloads);
}

#[test]
fn values_out_of_range() {
    for (value, expected) in [
        (
            "hold_us: 201",
            "bng.yaml:3:26: dataplane.coalescing.hold_us: `201` is not allowed; write a whole number from 0 to 200 (microseconds)",
        ),
        (
            "max_frames: 1",
            "bng.yaml:3:29: dataplane.coalescing.max_frames: `1` is not allowed; write a whole number from 2 to 128 (frames)",
        ),
        (
            "upstream: true",
            "bng.yaml:3:27: dataplane.coalescing.upstream: `true` is not allowed; write keys and values, indented below",
        ),
        (
            "upstream: { sctp: true }",
            "bng.yaml:3:29: dataplane.coalescing.upstream.sctp: unknown key; known here: tcp, udp",
        ),
    ] {
        assert_eq!(refusal(&with(value)), expected);
    }
}

/// Runs that are held over polls are buffers away from everything else; runs that end with their burst are that burst.
#[test]
fn held_runs_need_buffers_of_their_own() {
    let needed = |text: &str| accepted(text).dataplane.mbufs_needed();
    let none = needed(GOOD);
    assert_eq!(needed(&with("upstream: { tcp: true }")), none);
    let held = |frames| with(&format!("upstream: {{ tcp: true }}, hold_us: 1{frames}"));
    assert_eq!(needed(&held("")), none + 2 * 64 * 64);
    assert_eq!(needed(&held(", max_frames: 128")), none + 2 * 64 * 128);

    let few = held("").replace("[1, 2]", &format!("[1, 2]\n  mbufs: {}", none + 1));
    let error = Config::parse(few.as_bytes(), Path::new("bng.yaml")).unwrap_err();
    match *error.problem {
        Problem::TooFewMbufs { needed, .. } => assert_eq!(needed, none + 2 * 64 * 64),
        other => panic!("{other}"),
    }
}

/// A descriptor may stand for a chain of buffers where the port takes super-packets.
#[test]
fn super_packets_need_more_buffers_than_descriptors() {
    let needed = |text: &str| accepted(text).dataplane.mbufs_needed();
    let port = GOOD.replacen(
        "role: core",
        "role: core\n      segmentation: port\n      tx_descriptors: 512",
        1,
    );
    let worker = port.replacen("segmentation: port", "segmentation: software", 1);
    assert_eq!(needed(&port), needed(&worker) + 2 * 6 * 512);
}
