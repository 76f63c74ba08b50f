//! `bng-perf fastpath` as a program: what it prints is the contract of the result files.

// Helpers of tests, outside of the tests themselves.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::process::Command;

use serde_json::Value;

/// Runs it on a small scale and returns the JSON object of each direction.
fn fastpath(arguments: &str) -> Vec<Value> {
    let output = Command::new(env!("CARGO_BIN_EXE_bng-perf"))
        .arg("fastpath")
        .args("--no-huge --seconds 0.05 --sessions 50 --flows 500 --json".split_whitespace())
        .args(arguments.split_whitespace())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn number(figures: &Value, name: &str) -> f64 {
    figures
        .get(name)
        .and_then(Value::as_f64)
        .unwrap_or_else(|| panic!("{name} is no number in {figures}"))
}

#[test]
fn each_direction_is_one_object_with_inputs_figures_and_spread() {
    let both = fastpath("--direction both --ip-bytes 576 --features all");
    assert_eq!(both.len(), 2);
    for (figures, direction) in both.iter().zip(["up", "down"]) {
        for (input, value) in [
            ("direction", Value::from(direction)),
            ("ip_bytes", 576.into()),
            ("sessions", 50.into()),
            ("flows", 500.into()),
            ("workers", 1.into()),
            ("locking", "none".into()),
            ("features", "all".into()),
            ("plain_ip", false.into()),
            ("copy", "none".into()),
        ] {
            assert_eq!(figures.get(input), Some(&value), "{input}");
        }
        let ns = number(figures, "ns_per_packet");
        assert!(ns > 0.0);
        assert!((number(figures, "mpps") - 1e3 / ns).abs() < 1e-6);
        assert!((number(figures, "gbps_ip") - 576.0 * 8.0 / ns).abs() < 1e-6);
        let ratio = number(figures, "mac_forward_ns") / ns;
        assert!((number(figures, "ratio_to_mac_forward") - ratio).abs() < 1e-9);
        assert!(number(figures, "samples") >= 1.0);
        let spread = &figures["spread_ns"];
        assert!(number(spread, "min") <= ns && ns <= number(spread, "max"));
        assert!(number(spread, "p25") <= number(spread, "p75"));
        // Every flow, up and down.
        assert_eq!(number(figures, "packets_checked"), 1_000.0);
    }
}

#[test]
fn nothing_is_allocated_per_packet() {
    for arguments in [
        "",
        "--copy both",
        "--plain-ip",
        "--tags 2",
        "--features minimal",
    ] {
        for figures in fastpath(arguments) {
            assert_eq!(
                number(&figures, "allocations_per_packet"),
                0.0,
                "{arguments}"
            );
        }
    }
}

#[test]
fn every_mode_forwards_what_it_is_given_and_says_what_it_measured() {
    for (arguments, field) in [
        ("--plain-ip", "pppoe_nat_to_plain_ip"),
        ("--direction up --malformed", "malformed_to_good"),
        ("--direction up --locking burst", "ratio_to_mac_forward"),
        ("--direction down --locking packet", "ratio_to_mac_forward"),
        ("--ip-bytes 40 --tags 1", "clocks_at_2_1_ghz"),
    ] {
        for figures in fastpath(arguments) {
            assert!(number(&figures, field) > 0.0, "{arguments}");
        }
    }
}

#[test]
fn two_workers_are_held_against_one_in_the_same_run() {
    if std::thread::available_parallelism().map_or(1, |cores| cores.get()) < 2 {
        return;
    }
    for locking in ["none", "burst", "packet"] {
        let arguments = format!("--direction up --workers 2 --locking {locking}");
        let [figures] = fastpath(&arguments).try_into().unwrap();
        assert_eq!(figures["cores"].as_array().map(Vec::len), Some(2));
        let scaling =
            2.0 * number(&figures, "solo_ns_per_packet") / number(&figures, "ns_per_packet");
        assert!((number(&figures, "scaling") - scaling).abs() < 1e-9);
        let per_worker = number(&figures, "mpps_per_worker");
        assert!((number(&figures, "mpps") - 2.0 * per_worker).abs() < 1e-9);
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    for arguments in [
        "--ip-bytes 27",
        "--ip-bytes 1493",
        "--sessions 10 --flows 9",
        "--malformed --direction down",
        "--plain-ip --locking burst",
        "--cores 0,0 --workers 2",
        "--workers 0",
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_bng-perf"))
            .args(["fastpath", "--no-huge", "--seconds", "0.01"])
            .args(arguments.split_whitespace())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(!output.stderr.is_empty());
    }
}
