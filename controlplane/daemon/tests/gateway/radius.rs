//! Subscribers that a RADIUS server knows, from their first frame to the stop on its disk.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bng_aaa::radius::attribute as a;
use bng_aaa::radius::packet::{self, List, Packet, code};
use bng_aaa::radius::responder::{Counts, Responder};
use parking_lot::Mutex;

use crate::client::Client;
use crate::world::{CONFIG, World};

const SECRET: &[u8] = b"testing123";

/// A server on two ports of this machine.
struct Server {
    ports: [u16; 2],
    responder: Arc<Mutex<Responder>>,
}

impl Server {
    fn new() -> Self {
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

    fn counts(&self) -> Counts {
        self.responder.lock().counts().clone()
    }
}

/// A directory that goes with the test.
struct State(std::path::PathBuf);

impl State {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("radius-test-{}-{n}", std::process::id());
        Self(std::path::Path::new("/dev/shm").join(name))
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn config(server: &Server, state: &State, dynamic: u16) -> String {
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

fn free_port() -> u16 {
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
