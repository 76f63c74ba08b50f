//! The log of port blocks while a real client dials: collectors that are away, a control plane that is killed, and who had a port.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod running_gateway;

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bng_lab::{Daemon, GatewayConfig, Lab, Programs, addresses};
use running_gateway::{LIMIT, PASSWORD, USER, wait_for_sessions};
use serde_json::Value;

const LINK: &str = "wan";
const SYSLOG: &str = "127.0.0.1:5514";
const IPFIX: &str = "127.0.0.1:4739";
/// Length of a record of our template before the names.
const IPFIX_FIXED: usize = 33;

/// A collector in the gateway's namespace: what it has read of connections it has had.
struct Collector {
    address: &'static str,
    listener: Option<TcpListener>,
    streams: Vec<(TcpStream, Vec<u8>)>,
}

impl Collector {
    fn new(lab: &Lab, address: &'static str) -> Self {
        let mut collector = Self {
            address,
            listener: None,
            streams: Vec::new(),
        };
        collector.come(lab);
        collector
    }

    fn come(&mut self, lab: &Lab) {
        let listener = lab.gateway().within(|| TcpListener::bind(self.address));
        let listener = listener.unwrap().unwrap();
        listener.set_nonblocking(true).unwrap();
        self.listener = Some(listener);
    }

    /// Closes everything. What was read stays.
    fn go(&mut self) {
        self.listener = None;
        for (stream, _) in &self.streams {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Takes connections and what they bring.
    fn read(&mut self) {
        if let Some(Ok((stream, _))) = self.listener.as_ref().map(TcpListener::accept) {
            stream.set_nonblocking(true).unwrap();
            self.streams.push((stream, Vec::new()));
        }
        for (stream, bytes) in &mut self.streams {
            let _ = stream.read_to_end(bytes);
        }
    }

    /// Numbers and events of all syslog messages that came whole.
    fn messages(&self) -> BTreeSet<(u64, String)> {
        let mut found = BTreeSet::new();
        for (_, bytes) in &self.streams {
            let mut rest = &bytes[..];
            while let Some(space) = rest.iter().position(|it| *it == b' ') {
                let length = std::str::from_utf8(&rest[..space]).unwrap();
                let length: usize = length.parse().unwrap();
                let Some(message) = rest.get(space + 1..space + 1 + length) else {
                    break;
                };
                let text = std::str::from_utf8(message).unwrap();
                let value = |name: &str| {
                    let (_, rest) = text.split_once(&format!(" {name}=\"")).unwrap();
                    rest.split_once('"').unwrap().0.to_owned()
                };
                assert_eq!(value("user"), USER);
                found.insert((value("number").parse().unwrap(), value("event")));
                rest = &rest[space + 1 + length..];
            }
        }
        found
    }

    /// Times and natEvents of all IPFIX records that came whole.
    fn records(&self) -> BTreeSet<(u64, u8)> {
        let mut found = BTreeSet::new();
        for (_, bytes) in &self.streams {
            let mut rest = &bytes[..];
            while let Some(length) = rest.get(2..4) {
                assert_eq!(rest[..2], [0, 10], "the version of IPFIX");
                let length = usize::from(u16::from_be_bytes(length.try_into().unwrap()));
                let Some(mut sets) = rest.get(16..length) else {
                    break;
                };
                while !sets.is_empty() {
                    let word = |at: usize| u16::from_be_bytes([sets[at], sets[at + 1]]);
                    let (id, length) = (word(0), usize::from(word(2)));
                    if id == 256 {
                        records_of(&sets[4..length], &mut found);
                    }
                    sets = &sets[length..];
                }
                rest = &rest[length..];
            }
        }
        found
    }
}

fn records_of(mut set: &[u8], found: &mut BTreeSet<(u64, u8)>) {
    while !set.is_empty() {
        let time = u64::from_be_bytes(set[..8].try_into().unwrap());
        found.insert((time, set[8]));
        set = &set[IPFIX_FIXED..];
        for _ in 0..3 {
            set = &set[1 + usize::from(set[0])..];
        }
    }
}

/// Lets the collectors read until they have what is expected.
fn read_until(
    collectors: &mut [Collector; 2],
    what: &str,
    is_so: impl Fn(&[Collector; 2]) -> bool,
) {
    let begun = Instant::now();
    while !is_so(collectors) {
        let [syslog, ipfix] = collectors;
        let seen = (syslog.messages(), ipfix.records());
        assert!(begun.elapsed() < LIMIT, "{what}: {seen:?}");
        collectors.iter_mut().for_each(Collector::read);
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn dial(lab: &mut Lab) -> (String, u64) {
    let client = lab.client().unwrap();
    client.dial(LINK, USER, PASSWORD, "", LIMIT).unwrap();
    let id = wait_for_sessions(lab, 1).into_keys().next().unwrap();
    let ping = format!("busybox ping -c 2 -i 0.2 {}", addresses::WWW);
    let text = lab.client().unwrap().sh(&ping, LIMIT).unwrap();
    assert!(text.contains(" 0% packet loss"), "{text}");
    let session = lab.api().get(&format!("/api/v1/sessions/{id}")).unwrap();
    let nat = &session["nat"];
    let public = nat["address"].as_str().unwrap();
    let first = nat["first_port"].as_u64().unwrap();
    (public.to_owned(), first)
}

fn hang_up(lab: &mut Lab) {
    lab.client().unwrap().hang_up(LINK, LIMIT).unwrap();
    wait_for_sessions(lab, 0);
}

fn who(lab: &Lab, public: &str, port: u64, more: &str) -> Value {
    let path = format!("/api/v1/nat/who?address={public}&port={port}{more}");
    lab.api().get(&path).unwrap()
}

#[test]
fn collectors_that_are_away_miss_nothing_and_the_client_is_named_after_it_hung_up() {
    let mut config = GatewayConfig {
        nat_keys: format!(
            "log:\n  syslog: [{{server: \"{SYSLOG}\", transport: tcp}}]\n  ipfix: [{{server: \"{IPFIX}\", transport: tcp}}]\n"
        ),
        ..GatewayConfig::default()
    };
    config.more = "state_directory: /\n".to_owned();
    let mut lab = Lab::create(Programs::of_workspace(), &config).unwrap();
    config.more = format!("state_directory: {}/state\n", lab.dir().display());
    lab.configure(&config).unwrap();
    lab.start_www().unwrap();
    let mut collectors = [SYSLOG, IPFIX].map(|address| Collector::new(&lab, address));
    lab.start(Daemon::Dataplane).unwrap();
    lab.start(Daemon::Controlplane).unwrap();
    lab.boot_client().unwrap();

    let (public, first) = dial(&mut lab);
    let now = who(&lab, &public, first + 9, "");
    assert_eq!(now["answer"], "held");
    let then = now["at"].as_str().unwrap().to_owned();
    let shown = lab.bngctl(&["nat", "who", &format!("{public}:{first}")]);
    let shown = shown.unwrap();
    assert!(shown.contains(USER), "{shown}");
    read_until(&mut collectors, "the first record", |[syslog, ipfix]| {
        !syslog.messages().is_empty() && !ipfix.records().is_empty()
    });

    // Both go; meanwhile blocks are closed and opened, and the control plane is killed with a block open.
    collectors.iter_mut().for_each(Collector::go);
    hang_up(&mut lab);
    dial(&mut lab);
    hang_up(&mut lab);
    dial(&mut lab);
    lab.kill(Daemon::Controlplane).unwrap();
    lab.start(Daemon::Controlplane).unwrap();
    wait_for_sessions(&lab, 1);
    hang_up(&mut lab);
    for collector in &mut collectors {
        collector.come(&lab);
    }
    read_until(&mut collectors, "all records", |[syslog, ipfix]| {
        syslog.messages().len() >= 6 && ipfix.records().len() >= 6
    });
    let [syslog, ipfix] = &collectors;
    let expected = (0..6).map(|n| (n, ["opened", "closed"][n as usize % 2].to_owned()));
    assert_eq!(syslog.messages(), expected.collect());
    let events: Vec<_> = ipfix.records().into_iter().map(|(_, it)| it).collect();
    assert_eq!(events, [16, 17, 16, 17, 16, 17]);

    let was = who(&lab, &public, first, &format!("&at={then}"));
    assert_eq!(was["answer"], "held", "{was}");
    assert_eq!(was["holders"][0]["user"], USER);
    assert!(was["holders"][0]["until"].is_string(), "{was}");
    let port = format!("{public}:{first}");
    let shown = lab.bngctl(&["nat", "who", &port, "--at", &then]).unwrap();
    assert!(shown.contains(USER), "{shown}");
    assert_eq!(who(&lab, &public, first, "")["answer"], "nobody");
}
