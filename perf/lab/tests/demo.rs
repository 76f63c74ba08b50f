//! What `make demo` promises: it ends well by itself, and leaves nothing behind, also when it is interrupted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

use bng_lab::{Programs, cleanup, www};
use rustix::process::{Pid, Signal, kill_process};

/// Everything of a lab that could stay: names of namespaces, state files, shared memory, working directories, DPDK files.
fn remains() -> BTreeSet<String> {
    let dirs = [
        "/run/netns",
        "/run/bng-lab",
        "/dev/shm",
        "/tmp",
        "/run/dpdk",
        "/dev/hugepages",
    ];
    let mut found = BTreeSet::new();
    for dir in dirs {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().unwrap_or_default();
            if name.starts_with(cleanup::PREFIX) {
                found.insert(format!("{dir}/{name}"));
            }
        }
    }
    found
}

fn demo() -> Command {
    let mut command = Command::new(Programs::of_workspace().find("bng-lab").unwrap());
    command
        .arg("demo")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

#[test]
fn demo_shows_page_session_and_binding_exits_0_and_leaves_nothing() {
    let before = remains();
    let output = demo().output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}");
    assert_eq!(errors, "");
    for expected in [
        www::TITLE,
        "You came as 203.0.113.",
        "access0-",
        "alice",
        "\nOK in ",
    ] {
        assert!(said.contains(expected), "no `{expected}` in:\n{said}");
    }
    assert_eq!(remains(), before);
}

/// Starts the demo and reads its output until the daemons run and the client boots.
fn half_a_demo() -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = demo().spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let found = lines.find(|line| line.as_ref().unwrap().contains("router boots"));
    assert!(found.is_some(), "the demo got that far");
    (child, lines)
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn interrupted_demo_cleans_up_and_says_so() {
    let before = remains();
    let (child, lines) = half_a_demo();
    assert_ne!(remains(), before);
    signal(&child, Signal::INT);
    // Read on, so that the demo is not ended by a closed pipe instead.
    lines.for_each(drop);
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(130),
        "128 + SIGINT: {:?}",
        output.status
    );
    assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"));
    assert_eq!(remains(), before);
}

#[test]
fn remains_of_a_killed_demo_are_removed_by_down() {
    let before = remains();
    let (mut child, _lines) = half_a_demo();
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    assert_ne!(remains(), before);
    let down = Command::new(Programs::of_workspace().find("bng-lab").unwrap())
        .arg("down")
        .output()
        .unwrap();
    assert!(down.status.success(), "{down:?}");
    assert!(
        String::from_utf8_lossy(&down.stdout).contains("removed bng-lab-"),
        "{down:?}"
    );
    assert_eq!(remains(), before);
}
