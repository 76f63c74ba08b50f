//! `bng-perf wire` against the real dataplane process, over memory ports. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// The dataplane beside this build's `bng-perf`; cargo puts all programs of the workspace into one directory.
fn dataplane() -> PathBuf {
    let beside = Path::new(env!("CARGO_BIN_EXE_bng-perf")).with_file_name("bng-dataplane");
    let built = std::env::var_os("BNG_BIN_DIR").map(|dir| Path::new(&dir).join("bng-dataplane"));
    [Some(beside), built]
        .into_iter()
        .flatten()
        .find(|path| path.is_file())
        .expect("bng-dataplane is built: `cargo build -p bng-dataplane`, or BNG_BIN_DIR names where it is")
}

fn wire(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bng-perf"))
        .args(["wire", "--json", "--dataplane"])
        .arg(dataplane())
        .args(arguments.split_whitespace())
        .output()
        .unwrap()
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn every_packet_arrives_once_in_order_and_at_its_flow() {
    // A tenth of what the rings hold, so that a machine busy with other tests loses nothing either.
    let output = wire("--sessions 200 --flows 400 --rate 4000 --seconds 1 --idle-backoff-us 100");
    let report = report(&output);
    let lanes = report["lanes"].as_array().unwrap();
    assert_eq!(lanes.len(), 2, "{report}");
    for lane in lanes {
        assert!(lane["offered"].as_u64().unwrap() > 400, "{report}");
        assert_eq!(lane["received"], lane["offered"], "{report}");
        assert_eq!(lane["flows_used"], 400, "{report}");
        for flaw in [
            "lost",
            "refused",
            "duplicates",
            "reordered",
            "too_late",
            "misdelivered",
            "corrupt",
            "flows_with_loss",
        ] {
            assert_eq!(lane[flaw], 0, "{flaw}: {report}");
        }
        let latency = &lane["latency_us"];
        let order = ["min", "p50", "p90", "p99", "p99_9", "max"];
        let values: Vec<f64> = order
            .iter()
            .map(|at| latency[at].as_f64().unwrap())
            .collect();
        assert!(values[0] > 0.0 && values.is_sorted(), "{report}");
    }
    assert_eq!(report["dataplane_losses"], serde_json::json!({}));
    assert!(output.status.success());
}

#[test]
fn a_search_finds_a_rate_without_loss_and_says_what_limits_it() {
    let output = wire(
        "--sessions 10 --flows 10 --direction up --search --rate 2000 --seconds 0.5 --attempts 3",
    );
    let report = report(&output);
    let search = &report["search"];
    let found = search["zero_loss_pps"].as_f64().unwrap();
    assert!(found > 0.0 && found <= 2_100.0, "{report}");
    assert!(["max-rate", "generator", "loss"].contains(&search["limited_by"].as_str().unwrap()));
    assert!(!search["trials"].as_array().unwrap().is_empty());
}

#[test]
fn a_dataplane_that_is_not_there_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_bng-perf"))
        .args(["wire", "--dataplane", "/nowhere/bng-dataplane"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("/nowhere/bng-dataplane"), "{said}");
}
