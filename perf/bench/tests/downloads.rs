//! `bng-perf downloads` against the real dataplane process, one short measurement of each kind. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

/// The gateway beside this build's `bng-perf`.
fn dataplane() -> PathBuf {
    let name = "bng-dataplane";
    let beside = Path::new(env!("CARGO_BIN_EXE_bng-perf")).with_file_name(name);
    let built = std::env::var_os("BNG_BIN_DIR").map(|dir| Path::new(&dir).join(name));
    [Some(beside), built]
        .into_iter()
        .flatten()
        .find(|path| path.is_file())
        .expect("bng-dataplane is not built: `cargo build -p bng-dataplane`, or BNG_BIN_DIR names where it is")
}

/// A measurement in a network namespace that goes away with it.
fn measure(way: &str, protocol: &str, coalescing: bool) -> Value {
    let cell = json!({
        "way": way, "protocol": protocol, "flows": 3, "coalescing": coalescing, "train": 16,
    });
    let output = Command::new("unshare")
        .args(["--net", env!("CARGO_BIN_EXE_bng-perf"), "downloads"])
        .args([
            "--seconds",
            "0.5",
            "--cell",
            &cell.to_string(),
            "--dataplane",
        ])
        .arg(dataplane())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn count(measured: &Value, name: &str) -> u64 {
    measured[name].as_u64().unwrap()
}

#[test]
fn without_coalescing_the_kernel_gets_every_frame_by_itself() {
    for (way, protocol) in [("twin", "tcp"), ("twin", "udp"), ("vhost", "tcp")] {
        let measured = measure(way, protocol, false);
        // A hundred frames: with other tests on the machine there may be long pauses.
        assert!(
            count(&measured, "payload_bytes") > 100 * 1_400,
            "{measured}"
        );
        assert!(count(&measured, "given") > 100, "{measured}");
        for none in ["supers", "merged", "whole"] {
            assert_eq!(count(&measured, none), 0, "{measured}");
        }
    }
}

#[test]
fn with_coalescing_the_kernel_gets_super_packets() {
    for (way, protocol) in [("twin", "tcp"), ("twin", "udp"), ("vhost", "tcp")] {
        let measured = measure(way, protocol, true);
        assert!(
            count(&measured, "payload_bytes") > 100 * 1_400,
            "{measured}"
        );
        assert!(count(&measured, "whole") > 10, "{measured}");
        let (merged, supers) = (count(&measured, "merged"), count(&measured, "supers"));
        assert!(merged > 4 * supers, "{measured}");
    }
}
