//! A mistake in the configuration is one line on standard error of either daemon, before anything starts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::Command;

use bng_lab::{Daemon, GatewayConfig, Lab, Programs};

/// Text to replace in a good file, what replaces it, and what the error must say.
const MISTAKES: [(&str, &str, &[&str]); 5] = [
    (
        "idle_backoff_us: 100",
        "idle_backof_us: 100",
        &["dataplane", "idle_backof_us", "unknown key"],
    ),
    (
        "block_size: 512",
        "block_size: 500",
        &["nat.pools[0].block_size", "power of two"],
    ),
    (
        "addresses: [203.0.113.0/28]",
        "addresses: [100.64.1.0/28]",
        &["overlap"],
    ),
    ("role: access", "role: core", &["access"]),
    (
        "gateway: 100.64.0.1",
        "gateway: 100.64.0",
        &["pools[0].gateway", "IPv4 address"],
    ),
];

#[test]
fn both_daemons_refuse_a_mistake_with_one_line_that_names_place_and_key() {
    let lab = Lab::create(Programs::of_workspace(), &GatewayConfig::default()).unwrap();
    let good = std::fs::read_to_string(lab.config_file()).unwrap();
    for daemon in [Daemon::Dataplane, Daemon::Controlplane] {
        let program = lab.programs().find(daemon.program()).unwrap();
        let run = |file: &std::path::Path, check: bool| {
            let mut command = Command::new(&program);
            command.arg("--config").arg(file);
            if check {
                command.arg("--check");
            }
            lab.gateway().within(|| command.output()).unwrap().unwrap()
        };
        let output = run(&lab.config_file(), true);
        assert!(output.status.success(), "{}: {output:?}", daemon.program());

        for (from, to, words) in MISTAKES {
            let text = good.replacen(from, to, 1);
            assert_ne!(text, good, "`{from}` is not in the file");
            let number = good.lines().position(|line| line.contains(from)).unwrap() + 1;
            let file = lab.write("mistake.yaml", &text).unwrap();
            for check in [true, false] {
                let output = run(&file, check);
                let said = String::from_utf8(output.stderr).unwrap();
                assert_eq!(
                    output.status.code(),
                    Some(1),
                    "{}: {to}: {said}",
                    daemon.program()
                );
                assert_eq!(
                    said.lines().count(),
                    1,
                    "{}: {to}: {said}",
                    daemon.program()
                );
                for word in words {
                    assert!(
                        said.contains(word),
                        "{}: {to}: no `{word}` in: {said}",
                        daemon.program()
                    );
                }
                // A duplicated role or an overlap may be told at either of two places.
                if !["role: access", "addresses: [203.0.113.0/28]"].contains(&from) {
                    let place = format!("{}:{number}:", file.display());
                    assert!(
                        said.contains(&place),
                        "{}: no `{place}` in: {said}",
                        daemon.program()
                    );
                }
            }
        }
        let output = run(std::path::Path::new("/nonexistent/gateway.yaml"), true);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("/nonexistent/gateway.yaml"), "{said}");
    }
    assert!(
        !std::path::Path::new("/dev/shm").join(lab.name()).exists(),
        "nothing was started"
    );
}
