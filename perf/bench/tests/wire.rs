//! `bng-perf wire` against the real dataplane process, over memory ports. Needs root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// A program beside this build's `bng-perf`; cargo puts all programs of the workspace into one directory.
fn program(name: &str) -> PathBuf {
    let beside = Path::new(env!("CARGO_BIN_EXE_bng-perf")).with_file_name(name);
    let built = std::env::var_os("BNG_BIN_DIR").map(|dir| Path::new(&dir).join(name));
    [Some(beside), built]
        .into_iter()
        .flatten()
        .find(|path| path.is_file())
        .unwrap_or_else(|| {
            panic!("{name} is not built: `cargo build -p {name}`, or BNG_BIN_DIR names where it is")
        })
}

fn wire(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bng-perf"))
        .args(["wire", "--json", "--dataplane"])
        .arg(program("bng-dataplane"))
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

/// A whole gateway on memory ports, in a network namespace of its own; all of it goes away with it.
struct Gateway {
    name: String,
    directory: PathBuf,
    daemons: Vec<Child>,
}

fn ip(arguments: &str) {
    let status = Command::new("ip")
        .args(arguments.split_whitespace())
        .status()
        .unwrap();
    assert!(status.success(), "ip {arguments}");
}

impl Gateway {
    fn start() -> Self {
        let name = format!("bng-wire-dial-{}", std::process::id());
        let directory = PathBuf::from(format!("/dev/shm/{name}"));
        ip(&format!("netns add {name}"));
        std::fs::create_dir(&directory).unwrap();
        let mut gateway = Self {
            name,
            directory,
            daemons: Vec::new(),
        };
        ip(&format!("-n {} link set lo up", gateway.name));
        gateway.configure();
        gateway.launch("bng-dataplane");
        gateway.launch("bng-controlplane");
        gateway
    }

    fn device(&self, index: u8, role: &str) -> String {
        let directory = self.directory.display();
        format!(
            "net_memif{index},role={role},id={index},socket={directory}/{index}.sock,socket-abstract=no"
        )
    }

    fn configure(&self) {
        let (directory, name) = (self.directory.display(), &self.name);
        let (access, core) = (self.device(0, "server"), self.device(1, "server"));
        let text = format!(
            "\
shared_memory: {{ path: {directory}/shm }}
dataplane:
  workers: [0]
  idle_backoff_us: 100
  mbufs: 8192
  routes: {{ ipv4: 1024, ipv6: 1024 }}
  eal: {{ hugepages: false, memory_mib: 384, file_prefix: {name} }}
  ports:
    - {{ name: access0, role: access, device: \"{access}\", mtu: 1500 }}
    - name: core0
      role: core
      device: \"{core}\"
      addresses: [192.0.2.2/30]
      routes: [{{ to: default, via: 192.0.2.1 }}]
pools: [{{ name: all, ranges: [100.64.0.0/24], gateway: 100.64.0.1, nat: public }}]
nat: {{ max_mappings: 4096, pools: [{{ name: public, addresses: [198.18.0.0/28] }}] }}
api: {{ listen: \"127.0.0.1:8080\", token_file: {directory}/token }}
auth: {{ users: [{{ name: alice, password: wonderland }}] }}
"
        );
        std::fs::write(self.directory.join("config.yaml"), text).unwrap();
        let token = self.directory.join("token");
        std::fs::write(&token, "test-token-0123456789abcdef\n").unwrap();
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&token, private).unwrap();
    }

    /// Starts a daemon and waits until it is ready.
    fn launch(&mut self, name: &str) {
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.name])
            .arg(program(name))
            .arg("--config")
            .arg(self.directory.join("config.yaml"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        self.daemons.push(child);
        while !said.ends_with(&format!("{name}: ready\n")) {
            let length = stderr.read_line(&mut said).unwrap();
            assert!(length > 0, "{name} ended: {said}");
        }
        // What it says later is nobody's business, but must not fill the pipe.
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = Command::new("ip")
            .args(["netns", "del", &self.name])
            .status();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn subscribers_dial_in_to_a_whole_gateway_and_lose_nothing() {
    let gateway = Gateway::start();
    let output = Command::new(env!("CARGO_BIN_EXE_bng-perf"))
        .args("wire --json --dial --user alice --password wonderland --no-huge".split(' '))
        .args("--sessions 20 --flows 40 --rate 2000 --seconds 1".split(' '))
        .args(["--access-device", &gateway.device(0, "client")])
        .args(["--core-device", &gateway.device(1, "client")])
        .output()
        .unwrap();
    let report = report(&output);
    assert_eq!(report["setting"]["sessions_by"], "pppoe");
    for lane in report["lanes"].as_array().unwrap() {
        assert!(lane["offered"].as_u64().unwrap() > 100, "{report}");
        assert_eq!(lane["received"], lane["offered"], "{report}");
        assert_eq!(lane["misdelivered"], 0, "{report}");
    }
    assert!(output.status.success());
}
