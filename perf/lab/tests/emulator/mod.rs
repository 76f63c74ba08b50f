//! The subscriber emulator (`bng-perf dial`) on the access side and its reflector (`bng-perf reflect`) on the internet host.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::Command;
use std::time::Duration;

use bng_lab::{EMULATOR_INTERFACE, Lab, Process, User, addresses};
use serde::Deserialize;

const LIMIT: Duration = Duration::from_secs(60);
const USER_PREFIX: &str = "sub";
const PASSWORD: &str = "emulated";
const PORT: u16 = 9000;

/// Users for up to a hundred emulated subscribers.
pub(crate) fn emulated_users() -> impl Iterator<Item = User> {
    (0..100).map(|index| User::new(&format!("{USER_PREFIX}{index}"), PASSWORD))
}

/// Running emulator and reflector.
pub(crate) struct Emulation {
    dial: Process,
    /// Ends on drop, after the emulator.
    _reflect: Process,
    seconds: u64,
}

impl Emulation {
    /// Dials `sessions` subscribers in and, when all are up, sends `per_second` datagrams, together, for `seconds`.
    pub(crate) fn start(lab: &Lab, sessions: u32, per_second: u32, seconds: u64) -> Self {
        let program = lab.programs().find("bng-perf").unwrap();
        let target = format!("{}:{PORT}", addresses::WWW);
        let mut command = Command::new(&program);
        command.args(["reflect", "--listen", &target]);
        let mut reflect = Process::start(lab.internet(), lab.dir(), "reflect", command).unwrap();
        reflect.wait_for_log("reflecting on", 0, LIMIT).unwrap();

        let mut command = Command::new(&program);
        command
            .args([
                "dial",
                "--access",
                EMULATOR_INTERFACE,
                "--auth",
                "pap",
                "--json",
                "--rate",
                "50",
            ])
            .args(["--sessions", &sessions.to_string()])
            .args(["--user-prefix", USER_PREFIX, "--password", PASSWORD])
            .args(["--traffic-to", &target, "--pps", &per_second.to_string()])
            .args([
                "--duration",
                &seconds.to_string(),
                "--drain",
                "5",
                "--require-zero-loss",
            ]);
        let dial = Process::start(lab.subscriber(), lab.dir(), "dial", command).unwrap();
        Self {
            dial,
            _reflect: reflect,
            seconds,
        }
    }

    /// Waits for the end of the run and returns what it found.
    pub(crate) fn finish(mut self) -> EmulationReport {
        let status = self
            .dial
            .wait(Duration::from_secs(self.seconds) + LIMIT)
            .unwrap();
        let text = self.dial.output().unwrap();
        let report: EmulationReport = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{status}: {error}: {text}\n{}", self.dial.log_tail()));
        EmulationReport {
            passed: status.success(),
            text,
            ..report
        }
    }
}

/// The part of the emulator's report that tests look at.
#[derive(Debug, Deserialize)]
pub(crate) struct EmulationReport {
    #[serde(skip)]
    passed: bool,
    #[serde(skip)]
    text: String,
    sessions: u32,
    sessions_up: u32,
    renegotiations: u64,
    ended_by_peer: u64,
    malformed_frames: u64,
    traffic: Traffic,
}

#[derive(Debug, Deserialize)]
struct Traffic {
    sent: u64,
    returned: u64,
    lost_up: u64,
    lost_down: u64,
    duplicates_up: u64,
    duplicates_down: u64,
    reordered_up: u64,
    reordered_down: u64,
}

impl EmulationReport {
    /// Every session came up and stayed up, and every datagram came back once, in order and whole.
    pub(crate) fn assert_nothing_lost(&self) {
        let traffic = &self.traffic;
        assert!(traffic.sent > 0, "{}", self.text);
        assert_eq!(traffic.returned, traffic.sent, "{}", self.text);
        let flaws = [
            traffic.lost_up,
            traffic.lost_down,
            traffic.duplicates_up,
            traffic.duplicates_down,
            traffic.reordered_up,
            traffic.reordered_down,
            self.renegotiations,
            self.ended_by_peer,
            self.malformed_frames,
        ];
        assert_eq!(flaws, [0; 9], "{}", self.text);
        assert_eq!(self.sessions_up, self.sessions, "{}", self.text);
        assert!(self.passed, "{}", self.text);
    }
}
