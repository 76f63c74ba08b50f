//! Every kind of mistake, with the exact line the operator reads.
// Helpers of tests are tests too, but clippy sees only functions marked as such.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;

use bng_config::Config;

mod addresses;
mod coalescing;
mod document;
mod nat_log;
mod policies;
mod ports;
mod radius;
mod users;

/// A configuration with nothing that has a default, as lines with numbers to count on.
const GOOD: &str = r#"dataplane:
  workers: [1, 2]
  ports:
    - name: access0
      role: access
      device: "0000:3b:00.0"
    - name: core0
      role: core
      device: "0000:3b:00.1"
pools:
  - name: subscribers
    ranges: [100.64.0.0/20]
    gateway: 100.64.0.1
"#;

fn refusal(text: &str) -> String {
    match Config::parse(text.as_bytes(), Path::new("bng.yaml")) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(error) => error.to_string(),
    }
}

/// Replaces one piece of [`GOOD`] and expects exactly this error.
#[track_caller]
fn changed(from: &str, to: &str, expected: &str) {
    assert_eq!(
        GOOD.matches(from).count(),
        1,
        "not once in the good file: {from}"
    );
    assert_eq!(refusal(&GOOD.replace(from, to)), expected);
}

/// Appends to [`GOOD`], from line 14 on, and expects exactly this error.
#[track_caller]
fn appended(more: &str, expected: &str) {
    assert_eq!(refusal(&format!("{GOOD}{more}")), expected);
}
