//! Port blocks of sessions in the log: on disk before they are used, once each, over restarts and crashes.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use bng_controlplane::nat_log::Known;
use bng_controlplane::request::Request;
use bng_natlog::{Answer, Holder};
use bng_shm::{PortBlock, SessionState};
use rustix::fs::{MemfdFlags, SealFlags};

use crate::adoption::run_short;
use crate::client::Client;
use crate::rest_interface::Served;
use crate::world::{CONFIG, World};

const LIMIT: Duration = Duration::from_secs(60);

/// A directory of its own, gone at the end.
struct State(PathBuf);

impl State {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("nat-log-test-{}-{n}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn config(&self, log: &str) -> String {
        format!(
            "{CONFIG}  log: {{{log}}}\nstate_directory: {}\n",
            self.0.display()
        )
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A collector that takes what comes.
fn collector() -> (u16, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, receiver) = channel();
    // Ends with the test's process.
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let mut stream = BufReader::new(stream);
            let mut length = Vec::new();
            while stream.read_until(b' ', &mut length).is_ok_and(|it| it != 0) {
                let text = String::from_utf8(std::mem::take(&mut length)).unwrap();
                let mut message = vec![0; text.trim().parse().unwrap()];
                if stream.read_exact(&mut message).is_err() {
                    break;
                }
                if sender.send(String::from_utf8(message).unwrap()).is_err() {
                    return;
                }
            }
        }
    });
    (port, receiver)
}

fn block(world: &World, client: &Client) -> PortBlock {
    world.entry(client).nat.unwrap()
}

fn who(world: &World, public: Ipv4Addr, port: u16, at_ms: u64) -> Answer {
    let known: Known = world.ask(|reply| Request::WhoHas(public, port, reply));
    known.log.unwrap().who(public, port, at_ms).unwrap()
}

fn holder(world: &World, block: &PortBlock, at_ms: u64) -> Holder {
    let last = block.first_port + block.size - 1;
    match who(world, block.address, last, at_ms) {
        Answer::Held(held) if held.len() == 1 => held.into_iter().next().unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Value of a parameter of a message.
fn value<'a>(message: &'a str, name: &str) -> &'a str {
    let (_, rest) = message.split_once(&format!(" {name}=\"")).unwrap();
    rest.split_once('"').unwrap().0
}

fn counts(world: &World) -> (u64, u64) {
    let counts = world.status().nat_log.unwrap().counts;
    (counts.opened, counts.closed)
}

#[test]
fn a_block_is_logged_when_it_is_given_and_when_it_is_taken_back_and_not_again_by_a_restart() {
    let state = State::new();
    let (port, told) = collector();
    let log = format!("syslog: [{{server: \"127.0.0.1:{port}\", transport: tcp}}]");
    let mut world = World::new(&state.config(&log));
    let mut clients = [
        Client::new(1, 0, "alice", "wonderland"),
        Client::new(2, 2, "bob", "builder"),
    ];
    world.dial(&mut clients);
    let blocks = [0, 1].map(|n| block(&world, &clients[n]));
    let up_ms = bng_shm::unix_ms();
    let mut opened: Vec<_> = (0..2).map(|_| told.recv_timeout(LIMIT).unwrap()).collect();
    opened.sort_by_key(|it| value(it, "user").to_owned());
    for (n, message) in opened.iter().enumerate() {
        assert_eq!(value(message, "event"), "opened");
        assert_eq!(value(message, "user"), ["alice", "bob"][n]);
        assert_eq!(value(message, "pool"), "out");
        assert_eq!(value(message, "address"), blocks[n].address.to_string());
        let first = blocks[n].first_port.to_string();
        assert_eq!(value(message, "first_port"), first);
        assert_eq!(value(message, "access_port"), ["access0", "access1"][n]);
        let inside = clients[n].address.unwrap().to_string();
        assert_eq!(value(message, "inside"), inside);
        let id = world.session(&clients[n]).unwrap().accounting_id.unwrap();
        assert_eq!(value(message, "session"), format!("{id:016X}"));
        assert_eq!(holder(&world, &blocks[n], up_ms).block.accounting_id, id);
    }
    assert_eq!(counts(&world), (2, 0));

    // Sessions go on: nothing is written of them.
    world.stop_control();
    world.start_control();
    assert_eq!(world.counted("adopted"), 2);
    assert_eq!(counts(&world), (0, 0));
    assert_eq!(world.status().nat_log.unwrap().open, 2);

    clients[0].hang_up();
    world.until("the end", &mut clients, |world, _| {
        world.sessions().total == 1 && counts(world).1 == 1
    });
    let closed = loop {
        // What was sent shortly before the restart comes again.
        let message = told.recv_timeout(LIMIT).unwrap();
        if value(&message, "event") == "closed" {
            break message;
        }
    };
    assert_eq!(value(&closed, "user"), "alice");
    let now = bng_shm::unix_ms();
    let was = holder(&world, &blocks[0], up_ms);
    assert_eq!(was.block.user, b"alice");
    assert!(was.until_ms.unwrap() <= now);
    let Block {
        address,
        first_port,
    } = Block::of(&blocks[0]);
    assert_eq!(who(&world, address, first_port, now), Answer::Nobody);
    assert_eq!(who(&world, address, 1_023, now), Answer::Nobody);
}

/// What "who" is asked.
struct Block {
    address: Ipv4Addr,
    first_port: u16,
}

impl Block {
    const fn of(block: &PortBlock) -> Self {
        Self {
            address: block.address,
            first_port: block.first_port,
        }
    }
}

#[test]
fn blocks_of_sessions_that_are_gone_are_closed_by_the_next_run() {
    let state = State::new();
    let mut world = World::new(&state.config(""));
    let mut clients = [
        Client::new(1, 0, "alice", "wonderland"),
        Client::new(2, 2, "bob", "builder"),
    ];
    world.dial(&mut clients);
    let blocks = [0, 1].map(|n| block(&world, &clients[n]));
    let up_ms = bng_shm::unix_ms();
    world.stop_control();
    // As a machine that has lost its power: the shared memory is gone, and a record is cut in half.
    world.kill_dataplane();
    world.forget_memory();
    let segment = state.0.join("nat/0000000001.log");
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes.extend_from_within(bytes.len() - 40..);
    std::fs::write(&segment, bytes).unwrap();
    world.start_dataplane(1);
    world.start_control();
    world.until("closed", &mut [], |world, _| counts(world) == (0, 2));
    for (block, user) in blocks.iter().zip(["alice", "bob"]) {
        let was = holder(&world, block, up_ms - 1);
        assert_eq!(was.block.user, user.as_bytes());
        // The last sign of life is when that run ended.
        assert!((up_ms..=bng_shm::unix_ms()).contains(&was.until_ms.unwrap()));
    }
    let view = world.status().nat_log.unwrap();
    assert_eq!((view.open, view.counts.torn), (0, 1));
}

#[test]
fn sessions_that_were_up_before_there_was_a_log_are_in_it_since_they_are() {
    let state = State::new();
    let mut world = World::new(CONFIG);
    let mut clients = [Client::new(1, 0, "alice", "wonderland")];
    world.dial(&mut clients);
    let up_ms = bng_shm::unix_ms();
    let known: Known = world.ask(|reply| {
        let block = block(&world, &clients[0]);
        Request::WhoHas(block.address, block.first_port, reply)
    });
    assert!(known.log.is_none(), "nothing is configured");
    assert_eq!(known.live.unwrap().block.user, b"alice");
    world.stop_control();
    world.configure(&state.config(""));
    world.start_control();
    world.until("opened", &mut clients, |world, _| counts(world) == (1, 0));
    let held = holder(&world, &block(&world, &clients[0]), up_ms);
    assert!(held.from_ms <= up_ms && held.until_ms.is_none());
}

#[test]
fn a_log_that_cannot_be_written_refuses_subscribers_by_name_and_those_up_go_on() {
    let state = State::new();
    let mut world = World::new(&state.config(""));
    let mut clients = [
        Client::new(1, 0, "alice", "wonderland"),
        Client::new(2, 2, "bob", "builder"),
        Client::new(3, 2, "carol", "christmas"),
    ];
    world.dial(&mut clients[..1]);
    world.stop_control();
    // The log goes on in a file that can be kept from growing.
    let segment = state.0.join("nat/0000000001.log");
    let file = rustix::fs::memfd_create("nat-log", MemfdFlags::ALLOW_SEALING).unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    std::fs::copy(&segment, &path).unwrap();
    std::fs::remove_file(&segment).unwrap();
    std::os::unix::fs::symlink(path, &segment).unwrap();
    world.start_control();
    assert_eq!(world.counted("adopted"), 1);
    assert_eq!(counts(&world), (0, 0));
    rustix::fs::fcntl_add_seals(&file, SealFlags::GROW).unwrap();
    clients[1].dial();
    world.until("failing", &mut clients, |world, _| {
        world.status().nat_log.unwrap().failing.is_some()
    });
    clients[2].dial();
    world.until("refused", &mut clients, |world, clients| {
        clients[2].over && world.history().total == 1
    });
    assert_eq!(world.counted("nat_log_unwritable"), 1);
    let history = world.history();
    let cause = history.items[0].refused.as_deref();
    assert_eq!(cause, Some("nat_log_unwritable"));
    run_short(&mut world, &clients[0]);
    world.until("no further block", &mut clients, |world, _| {
        world.counted("block_not_logged") == 1
    });
    let slot = world.slot(&clients[0]);
    assert_eq!(world.reader().further_blocks(slot).count(), 0);
    // The one whose block is not on disk may not use it.
    assert_eq!(world.entry(&clients[1]).state, SessionState::Negotiating);
    assert!(!clients[1].up && clients[0].up);
    assert_eq!(world.entry(&clients[0]).state, SessionState::Forwarding);
}

#[test]
fn rest_names_who_had_a_port_and_says_why_when_it_cannot() {
    let state = State::new();
    let before_ms = bng_shm::unix_ms() - 60_000;
    let mut world = World::new(&state.config(""));
    let mut clients = [Client::new(1, 0, "alice", "wonderland")];
    world.dial(&mut clients);
    let block = block(&world, &clients[0]);
    let served = Served::of(&world);
    let ask = |query: &str| {
        let path = format!("/api/v1/nat/who?{query}");
        served.get(&path)
    };
    let port = block.first_port + 7;
    let public = format!("address={}&port={port}", block.address);
    let now = ask(&public).json();
    let holder = &now["holders"][0];
    assert_eq!(
        (&now["answer"], &holder["user"]),
        (&"held".into(), &"alice".into())
    );
    assert_eq!(holder["session"], world.sessions().items[0].id);
    assert_eq!(holder["first_port"], block.first_port);
    assert_eq!(holder["inside"], clients[0].address.unwrap().to_string());
    assert!(holder["until_unix_ms"].is_null());
    let then = now["at"].as_str().unwrap().to_owned();

    clients[0].hang_up();
    world.until("the end", &mut clients, |world, _| counts(world).1 == 1);
    let served_at = format!("{public}&at={then}");
    let was = ask(&served_at).json();
    let holder = &was["holders"][0];
    assert_eq!(
        (&was["answer"], &holder["user"]),
        (&"held".into(), &"alice".into())
    );
    assert!(holder["until_unix_ms"].as_u64() >= now["at_unix_ms"].as_u64());
    assert!(holder["session"].is_null());
    assert_eq!(ask(&public).json()["answer"], "nobody");
    let before = bng_natlog::time::text(before_ms);
    let early = ask(&format!("{public}&at={before}")).json();
    assert_eq!(early["answer"], "before_log");
    assert!(early["log_since_unix_ms"].as_u64().unwrap() > before_ms);
    for bad in [
        "",
        "address=198.51.100.1",
        "address=2001:db8::1&port=1",
        "address=198.51.100.1&port=65536",
        "address=198.51.100.1&port=1&at=yesterday",
        "address=198.51.100.1&port=1&at=2999-01-01T00:00:00Z",
        "address=198.51.100.1&port=1&when=now",
    ] {
        let answer = ask(bad);
        assert_eq!(
            (answer.status, answer.error()),
            (400, "bad_query".to_owned()),
            "{bad}"
        );
    }
    let page = served.request("GET", "/metrics", None, b"").body;
    for line in [
        "bng_nat_log_records_total{event=\"opened\"} 1",
        "bng_nat_log_records_total{event=\"closed\"} 1",
        "bng_nat_log_open_blocks 0",
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
    let health = served.request("GET", "/healthz", None, b"").body;
    assert!(health.contains("nat-log"), "{health}");
}

#[test]
fn without_a_log_rest_answers_for_the_present_alone() {
    let mut world = World::new(CONFIG);
    let mut clients = [Client::new(1, 0, "alice", "wonderland")];
    world.dial(&mut clients);
    let block = block(&world, &clients[0]);
    let served = Served::of(&world);
    let ask = |port: u16, at: &str| {
        let path = format!("/api/v1/nat/who?address={}&port={port}{at}", block.address);
        served.get(&path).json()
    };
    let answer = ask(block.first_port, "");
    assert_eq!(answer["answer"], "held");
    assert_eq!(answer["holders"][0]["user"], "alice");
    assert_eq!(ask(1_023, "")["answer"], "nobody");
    let early = ask(block.first_port, "&at=2020-01-01T00:00:00Z");
    assert_eq!(early["answer"], "no_log");
    assert_eq!(early["holders"].as_array().unwrap().len(), 0);
}

#[test]
fn one_more_block_is_on_disk_before_it_is_used_and_each_is_closed_at_the_end() {
    let state = State::new();
    let config = state.config("").replace(
        "block_size: 1024",
        "block_size: 1024, blocks_per_subscriber: 2",
    );
    let mut world = World::new(&config);
    let mut clients = [Client::new(1, 0, "alice", "wonderland")];
    world.dial(&mut clients);
    run_short(&mut world, &clients[0]);
    world.until("one more block", &mut clients, |world, _| {
        world.counted("block_added") == 1
    });
    assert_eq!(counts(&world), (2, 0), "it is added when it is logged");
    let first = block(&world, &clients[0]);
    let further = world.reader().further_blocks(world.slot(&clients[0]));
    let second = PortBlock {
        first_port: further.iter().next().unwrap(),
        ..first
    };
    let now = bng_shm::unix_ms();
    for block in [&first, &second] {
        assert_eq!(holder(&world, block, now).block.user, b"alice");
    }
    world.stop_control();
    world.start_control();
    assert_eq!(world.counted("adopted"), 1);
    clients[0].hang_up();
    world.until("the end", &mut clients, |world, _| counts(world) == (0, 2));
    assert!(holder(&world, &second, now).until_ms.is_some());
}
