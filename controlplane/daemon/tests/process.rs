//! The program itself: arguments, readiness, signals, and a shared memory that another version uses.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that finds something missing has failed"
)]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use bng_shm::{Capacities, Dataplane};
use rustix::process::{Pid, Signal, kill_process};

/// A directory of its own, with configuration and token; removed at the end.
struct Place {
    dir: PathBuf,
    port: u16,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Place {
    fn new(name: &str) -> Self {
        let name = format!("ctl-process-{}-{name}", std::process::id());
        let dir = Path::new("/dev/shm").join(name);
        std::fs::create_dir(&dir).unwrap();
        // Free a moment ago; nothing else on this machine asks for ports at random meanwhile.
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let place = Self { dir, port };
        std::fs::write(place.dir.join("token"), "0123456789abcdef\n").unwrap();
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(place.dir.join("token"), mode).unwrap();
        let dir = place.dir.display();
        let text = format!(
            "shared_memory: {{path: {dir}/memory}}
dataplane:
  workers: [1]
  ports:
    - {{name: access0, role: access, device: net_null0}}
    - {{name: ctl-process-x, role: core, device: net_null1}}
pools: [{{name: home, ranges: [100.64.0.0/28], gateway: 100.64.0.1}}]
api: {{listen: '127.0.0.1:{port}', token_file: {dir}/token}}
"
        );
        std::fs::write(place.config(), text).unwrap();
        place
    }

    fn config(&self) -> PathBuf {
        self.dir.join("ironbng.yaml")
    }

    fn memory(&self) -> PathBuf {
        self.dir.join("memory")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bng-controlplane"));
        command.arg("--config").arg(self.config());
        command
    }

    fn start(&self) -> Running {
        let socket = UnixDatagram::bind(self.dir.join("notify")).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let mut child = self
            .command()
            .env("NOTIFY_SOCKET", self.dir.join("notify"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        Running { child, log, socket }
    }

    fn health(&self) -> (u16, String) {
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build()
            .into();
        let url = format!("http://127.0.0.1:{}/healthz", self.port);
        let mut answer = agent.get(&url).call().unwrap();
        let body = answer.body_mut().read_to_string().unwrap();
        (answer.status().as_u16(), body)
    }
}

struct Running {
    child: Child,
    log: BufReader<ChildStderr>,
    socket: UnixDatagram,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    /// Reads the log up to a line with these words; returns it.
    fn line(&mut self, words: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.log.read_line(&mut line).unwrap();
            assert_ne!(read, 0, "the log ended before `{words}`");
            if line.contains(words) {
                return line;
            }
        }
    }

    fn notified(&self) -> String {
        let mut buffer = [0; 256];
        let length = self.socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    fn signal(&mut self, signal: Signal) -> Option<i32> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
        self.child.wait().unwrap().code()
    }
}

#[test]
fn check_validates_and_exits() {
    let place = Place::new("check");
    let output = place.command().arg("--check").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.ends_with("ironbng.yaml is good\n"), "{said}");
    assert!(!place.memory().exists(), "nothing is started");

    let text = std::fs::read_to_string(place.config()).unwrap();
    std::fs::write(place.config(), text.replace("gateway:", "gatewy:")).unwrap();
    let output = place.command().arg("--check").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("ironbng.yaml:7:"), "{error}");
    assert!(error.contains("pools[0].gatewy"), "{error}");
}

#[test]
fn it_says_when_it_is_ready_and_ends_cleanly_on_sigterm_and_sigint() {
    let place = Place::new("ready");
    for signal in [Signal::TERM, Signal::INT] {
        let mut running = place.start();
        running.line("bng-controlplane: ready");
        assert_eq!(running.notified(), "READY=1\n");
        let (status, health) = place.health();
        assert_eq!(status, 200);
        assert!(health.contains("bng-dataplane is not running"), "{health}");
        assert_eq!(running.signal(signal), Some(0));
        drop(running);
        std::fs::remove_file(place.dir.join("notify")).unwrap();
    }
}

#[test]
fn a_hang_up_has_the_file_read_again_and_a_mistake_in_it_ends_nothing() {
    let place = Place::new("hang-up");
    let mut running = place.start();
    running.line("bng-controlplane: ready");
    let hang_up = |running: &Running| {
        kill_process(Pid::from_child(&running.child), Signal::HUP).unwrap();
    };
    let text = std::fs::read_to_string(place.config()).unwrap();
    let more = "policies: [{name: gold, up: {rate_kbps: 1000}}]\n";
    std::fs::write(place.config(), format!("{text}{more}")).unwrap();
    hang_up(&running);
    running.line("was read again and is in force");
    std::fs::write(place.config(), format!("{text}polices: []\n")).unwrap();
    hang_up(&running);
    let line = running.line("stays as it is");
    assert!(line.contains("ironbng.yaml:9:1: polices"), "{line}");
    assert_eq!(place.health().0, 200);
    assert_eq!(running.signal(Signal::TERM), Some(0));
}

#[test]
fn a_second_one_and_a_missing_token_are_errors_that_say_what_to_do() {
    let place = Place::new("second");
    let mut running = place.start();
    running.line("bng-controlplane: ready");
    let text = std::fs::read_to_string(place.config()).unwrap();
    let elsewhere = text.replace(&format!(":{}'", place.port), ":0'");
    std::fs::write(place.config(), elsewhere).unwrap();
    let output = place.command().output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("another bng-controlplane is running"),
        "{error}"
    );

    std::fs::remove_file(place.dir.join("token")).unwrap();
    let output = place.command().output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("make one with"), "{error}");
}

#[test]
fn a_dataplane_of_another_size_is_named_and_waited_for() {
    let place = Place::new("mismatch");
    let other = Capacities::of_gateway(2, 4, 3, 0, 0);
    let dataplane = Dataplane::attach(&place.memory(), other).unwrap();
    let mut running = place.start();
    let line = running.line("bng-dataplane");
    assert!(line.contains("access_ports"), "{line}");
    let (status, health) = place.health();
    assert_eq!(status, 503);
    assert!(health.contains("access_ports"), "{health}");
    assert!(health.contains("bng-dataplane"), "{health}");

    drop(dataplane);
    running.line("bng-controlplane: ready");
    assert_eq!(place.health().0, 200);
    assert_eq!(running.signal(Signal::TERM), Some(0));
}
