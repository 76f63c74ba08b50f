//! `bng-perf sessions --short` against both real daemons: whether every session, id, address and block is accounted for, not how
//! fast. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Directory of the daemons: beside this build's `bng-perf`, or where they were built.
fn programs() -> PathBuf {
    let both = |directory: &Path| {
        ["bng-dataplane", "bng-controlplane"]
            .iter()
            .all(|name| directory.join(name).is_file())
    };
    let beside = Path::new(env!("CARGO_BIN_EXE_bng-perf"))
        .parent()
        .map(Path::to_owned);
    let built = std::env::var_os("BNG_BIN_DIR").map(PathBuf::from);
    [built, beside]
        .into_iter()
        .flatten()
        .find(|directory| both(directory))
        .expect("the daemons are not built: `make build`, and BNG_BIN_DIR names where they are")
}

#[test]
fn sessions_addresses_and_blocks_balance_after_setups_a_flood_and_churn() {
    let output = Command::new(env!("CARGO_BIN_EXE_bng-perf"))
        .args(["sessions", "--short", "--programs"])
        .arg(programs())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let results: Value = serde_json::from_slice(&output.stdout).expect(&said);
    let runs = results["runs"].as_array().unwrap();
    for run in runs {
        for dialled in run["dialled"].as_array().unwrap() {
            assert_eq!(dialled["sessions"], dialled["sessions_up"], "{said}\n{run}");
        }
        for (what, left) in run["left"].as_object().unwrap() {
            assert_eq!(left, 0, "{what}\n{said}\n{run}");
        }
    }
    let of = |name: &str| runs.iter().find(|run| run["name"] == name).unwrap();
    let flood = &of("flood")["dialled"][0]["padi_flood"];
    assert!(flood["padi_sent"].as_u64() > Some(100), "{flood}");
    let churn = of("churn");
    let ends = &churn["ends"];
    assert_eq!(ends["sessions"], ends["known"], "{said}\n{churn}");
    assert_eq!(ends["different"], 0, "{said}\n{churn}");
    assert!(ends["bytes"].as_u64() > Some(100_000), "{said}\n{churn}");
    // What RADIUS was told: one start and one stop each, and the same octets.
    let told = &churn["radius"];
    assert_eq!(told["starts"], ends["sessions"], "{said}\n{churn}");
    assert_eq!(told["stops"], ends["sessions"], "{said}\n{churn}");
    assert_eq!(told["repeated_stops"], 0, "{said}\n{churn}");
    assert_eq!(told["octets"], ends["bytes"], "{said}\n{churn}");
    assert!(output.status.success(), "{said}");
}
