//! Subscribers that a RADIUS server knows, from their first frame to the stop on its disk.

use std::net::UdpSocket;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bng_aaa::radius::attribute as a;
use bng_aaa::radius::packet::{self, List, Packet, code};
use bng_aaa::radius::responder::{Counts, Responder};
use bng_controlplane::radius::view::SpoolView;
use bng_shm::SessionState;
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, SealFlags};

use crate::client::Client;
use crate::world::{CONFIG, World};

const SECRET: &[u8] = b"testing123";

/// A server on two ports of this machine.
pub(crate) struct Server {
    ports: [u16; 2],
    pub(crate) responder: Arc<Mutex<Responder>>,
}

impl Server {
    pub(crate) fn new() -> Self {
        let mut terms = List::default();
        terms.bytes(a::CLASS, b"gold-class").unwrap();
        let responder = Arc::new(Mutex::new(Responder::new(SECRET, terms)));
        let ports = [0, 1].map(|_| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let port = socket.local_addr().unwrap().port();
            let responder = responder.clone();
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                // Ends with the test's process.
                while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    let answer = responder.lock().answer(&buffer[..length]);
                    if let Some(answer) = answer {
                        let _ = socket.send_to(&answer, from);
                    }
                }
            });
            port
        });
        Self { ports, responder }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.responder.lock().counts().clone()
    }
}

/// A directory that goes with the test.
pub(crate) struct State(std::path::PathBuf, Option<OwnedFd>);

impl State {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("radius-test-{}-{n}", std::process::id());
        Self(std::path::Path::new("/dev/shm").join(name), None)
    }

    /// One whose disk can be full of accounting messages, see [`State::fill`].
    fn small() -> Self {
        let mut state = Self::new();
        let flags = MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("spool", flags).unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let directory = state.0.join("accounting");
        std::fs::create_dir_all(&directory).unwrap();
        std::os::unix::fs::symlink(path, directory.join("0000000001.log")).unwrap();
        state.1 = Some(file);
        state
    }

    /// From now on no message can be written.
    fn fill(&self) {
        let file = self.1.as_ref().unwrap();
        rustix::fs::fcntl_add_seals(file, SealFlags::GROW).unwrap();
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn config(server: &Server, state: &State, dynamic: u16) -> String {
    let [auth, accounting] = server.ports;
    let text = CONFIG.replacen("auth:\n", "auth:\n  backends: [local, radius]\n", 1);
    assert_ne!(
        text, CONFIG,
        "the configuration of the tests has a section auth"
    );
    format!(
        "{text}
state_directory: {}
radius:
  servers: [{{address: 127.0.0.1, auth_port: {auth}, accounting_port: {accounting}, secret: \"testing123\"}}]
  timeout_ms: 500
  accounting: {{interim_s: 0}}
  dynamic_authorization:
    listen: 127.0.0.1:{dynamic}
    clients: [{{address: 127.0.0.1, secret: \"testing123\"}}]
",
        state.0.display()
    )
}

pub(crate) fn free_port() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap().port()
}

#[test]
fn a_server_knows_a_subscriber_and_gets_one_start_and_one_stop_with_true_octets() {
    let (server, state) = (Server::new(), State::new());
    let mut world = World::new(&config(&server, &state, free_port()));
    let mut clients = [Client::new(1, 0, "erin", "anything")];
    world.dial(&mut clients);
    world.until("the start", &mut clients, |_, _| {
        server.counts().accounting[0] == 1
    });
    let slot = world.slot(&clients[0]);
    let owner = world.entry(&clients[0]).owner;
    let worker = world.worker(owner.into());
    worker.count_up(slot, 100, 1);
    worker.count_down(slot, 1_000);
    assert!(world.end(&clients[0]));
    world.until("the stop", &mut clients, |world, _| {
        server.counts().accounting[1] == 1 && world.sessions().total == 0
    });
    let counts = server.counts();
    assert_eq!((counts.accepted, counts.octets), (1, 1_100));
    // Accounting-On of the start without sessions.
    assert_eq!(counts.accounting, [1, 1, 0, 1]);
    assert_eq!((counts.repeated_stops, counts.bad), (0, 0));
}

#[test]
fn a_subscriber_whom_the_server_rejects_stays_out() {
    let (server, state) = (Server::new(), State::new());
    let mut world = World::new(&config(&server, &state, free_port()));
    let mut clients = [Client::new(1, 0, "reject-me", "anything")];
    clients[0].dial();
    world.until("the reject", &mut clients, |_, clients| {
        clients[0].refused.is_some()
    });
    assert_eq!(server.counts().rejected, 1);
    assert_eq!(server.counts().accounting[..3], [0; 3]);
}

#[test]
fn a_disconnect_request_ends_the_session_it_names_once() {
    let (server, state) = (Server::new(), State::new());
    let port = free_port();
    let mut world = World::new(&config(&server, &state, port));
    let started_unix_s = bng_shm::unix_ms() / 1_000;
    let mut clients = [Client::new(1, 0, "erin", "anything")];
    world.dial(&mut clients);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(("127.0.0.1", port)).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    // What is not later than the start may be a repetition.
    world.until("the next second", &mut clients, |_, _| {
        bng_shm::unix_ms() / 1_000 > started_unix_s
    });
    let now_unix_s = (bng_shm::unix_ms() / 1_000) as u32;
    let ask = |user: &[u8], identifier| {
        let mut list = List::default();
        list.bytes(a::USER_NAME, user).unwrap();
        list.number(a::EVENT_TIMESTAMP, now_unix_s);
        let code = code::DISCONNECT_REQUEST;
        let request = packet::signed_request(code, identifier, SECRET, &[list.as_bytes()]);
        socket.send(&request.unwrap()).unwrap();
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).unwrap();
        let answer = Packet::parse(&buffer[..length]).unwrap();
        let cause = answer.find(a::ERROR_CAUSE).map(|it| it[2..].to_vec());
        (answer.code(), cause)
    };
    assert_eq!(
        ask(b"dave", 1),
        (code::DISCONNECT_NAK, Some(503u16.to_be_bytes().to_vec()))
    );
    assert_eq!(ask(b"erin", 2), (code::DISCONNECT_ACK, None));
    assert_eq!(
        ask(b"erin", 2),
        (code::DISCONNECT_ACK, None),
        "the answer it got"
    );
    world.until("the end", &mut clients, |world, _| {
        world.sessions().total == 0
    });
    assert_eq!(world.history().items[0].cause, "aaa_disconnect");
}

/// With a pool that has room for one subscriber.
fn one_address(config: &str) -> String {
    let text = config.replace("ranges: [100.64.0.0/28]", "ranges: [100.64.0.2/32]");
    assert_ne!(text, config, "the pool is there");
    text
}

/// The state of accounting, as operators see it.
fn spool(world: &World) -> SpoolView {
    world.status().radius.clone().unwrap().spool
}

/// A session whose start a server has answered, and a disk that is full since.
fn dialed_in_before_the_disk_was_full(
    world: &mut World,
    server: &Server,
    state: &State,
) -> [Client; 1] {
    let mut clients = [Client::new(1, 0, "erin", "anything")];
    world.until("Accounting-On", &mut clients, |world, _| {
        server.counts().accounting[3] == 1 && spool(world).waiting == 0
    });
    world.dial(&mut clients);
    world.until("the start", &mut clients, |world, _| {
        server.counts().accounting[0] == 1 && spool(world).waiting == 0
    });
    state.fill();
    clients
}

#[test]
fn a_slot_waits_until_its_stop_is_answered_when_the_disk_is_full_and_nothing_else_does() {
    let (server, state) = (Server::new(), State::small());
    let mut world = World::new(&one_address(&config(&server, &state, free_port())));
    let mut clients = dialed_in_before_the_disk_was_full(&mut world, &server, &state);
    let silent = server.responder.lock();
    let slot = world.slot(&clients[0]);
    assert!(world.end(&clients[0]));
    world.until("the end", &mut clients, |world, _| {
        spool(world).held_sessions == 1
    });
    assert_eq!(world.counted("stop_held"), 1);
    assert!(spool(&world).write_errors > 0);
    assert_eq!(world.sessions().total, 1, "its id is not free");
    let pools = world.status().pools.clone();
    assert_eq!((pools.address[0].used, pools.nat[0].used), (0, 0));
    let state_now = world.reader().session(slot).unwrap().unwrap().state;
    assert_eq!(state_now, SessionState::Closing);

    // Others come and go with what it had.
    let mut others = [Client::new(2, 0, "bob", "builder")];
    world.dial(&mut others);
    assert_eq!(others[0].address, clients[0].address);
    drop(silent);
    world.until("the answer", &mut others, |world, _| {
        spool(world).held_sessions == 0
    });
    let counts = server.counts();
    assert_eq!(counts.accounting[1], 1);
    assert_eq!(world.sessions().total, 1);
    let ended = &world.history().items[0];
    assert_eq!(
        (&*ended.user, ended.framed_ip),
        ("erin", clients[0].address)
    );
    assert_eq!(world.status().pools.address[0].used, 1, "given back once");
}

#[test]
fn a_stop_that_no_disk_has_taken_is_sent_by_the_next_run() {
    let (server, state) = (Server::new(), State::small());
    let mut world = World::new(&one_address(&config(&server, &state, free_port())));
    let mut clients = dialed_in_before_the_disk_was_full(&mut world, &server, &state);
    let slot = world.slot(&clients[0]);
    let owner = world.entry(&clients[0]).owner;
    world.worker(owner.into()).count_up(slot, 700, 1);
    let silent = server.responder.lock();
    assert!(world.end(&clients[0]));
    world.until("the end", &mut clients, |world, _| {
        spool(world).held_sessions == 1
    });
    let mut others = [Client::new(2, 0, "bob", "builder")];
    world.dial(&mut others);
    // As if it were killed: it leaves the session behind, and cannot write.
    world.stop_control();
    let (next, disk) = (Server::new(), State::new());
    world.configure(&one_address(&config(&next, &disk, free_port())));
    world.start_control();
    world.until("the stop", &mut others, |world, _| {
        next.counts().accounting[1] == 1 && world.sessions().total == 1
    });
    drop(silent);
    assert_eq!(next.counts().octets, 700);
    assert_eq!(world.history().items[0].framed_ip, clients[0].address);
    assert!(others[0].up && !others[0].over);
    assert_eq!(others[0].address, clients[0].address, "it has it now");
    assert_eq!(world.status().pools.address[0].used, 1);
}

#[test]
fn a_start_that_a_killed_run_did_not_write_is_sent_by_the_next_one_and_no_other_is() {
    let (server, state) = (Server::new(), State::small());
    let text = config(&server, &state, free_port());
    let mut world = World::new(&text);
    // The start of the first one is on disk, that of the second one in memory alone.
    let clients = dialed_in_before_the_disk_was_full(&mut world, &server, &state);
    let mut clients = Vec::from(clients);
    let silent = server.responder.lock();
    clients.push(Client::new(2, 0, "bob", "builder"));
    world.dial(&mut clients[1..]);
    world.until("the start", &mut clients, |world, _| {
        spool(world).waiting == 1 && spool(world).write_errors > 0
    });
    // As if it were killed.
    world.stop_control();
    let next = Server::new();
    world.configure(&config(&next, &state, free_port()));
    world.start_control();
    world.until("the start again", &mut clients, |_, _| {
        next.counts().accounting[0] == 1
    });
    drop(silent);
    world.until("what the spool knew", &mut clients, |world, _| {
        spool(world).repeated_starts == 1
    });
    assert!(clients.iter().all(|client| world.end(client)));
    world.until("the ends", &mut clients, |world, _| {
        world.sessions().total == 0
    });
    assert_eq!(next.counts().accounting[..2], [1, 2]);
}

#[test]
fn a_challenge_that_aaa_leaves_undecided_is_no_refusal() {
    let (server, state) = (Server::new(), State::new());
    let text = config(&server, &state, free_port());
    let text = text.replace(
        "auth:\n",
        "auth:\n  protocols: [chap]\n  chap_interval_s: 1\n",
    );
    let text = text.replace("timeout_ms: 500", "timeout_ms: 100\n  tries: 1");
    let mut world = World::new(&text);
    let mut clients = [Client::new(1, 0, "erin", "anything")];
    world.dial(&mut clients);
    let silent = server.responder.lock();
    world.until("a challenge without a verdict", &mut clients, |world, _| {
        world.engine_counted("outcome", "chap_undecided") > 0
    });
    assert!(world.counted("auth_servers_silent") > 0);
    drop(silent);
    assert!(clients[0].up);
    assert!(world.end(&clients[0]));
    world.until("the end", &mut clients, |world, _| {
        world.sessions().total == 0
    });
    let ended = &world.history().items[0];
    assert_eq!((&*ended.cause, &ended.refused), ("operator", &None));
}
