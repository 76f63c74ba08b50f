//! Questions to a RADIUS server that takes its time, and what clients do meanwhile.

use std::net::UdpSocket;

use bng_aaa::radius::packet::{self, LONGEST, Packet, code};

use crate::client::Client;
use crate::world::{CONFIG, World};

const SECRET: &str = "testing";

/// A server that answers when it is told to.
struct Server(UdpSocket);

impl Server {
    fn new() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        Self(socket)
    }

    fn config(&self) -> String {
        let port = self.0.local_addr().unwrap().port();
        let auth = "auth:\n  backends: [local, radius]\n  max_sessions_per_user: 1\n";
        let server = format!("{{address: 127.0.0.1, auth_port: {port}, secret: {SECRET}}}");
        let radius = format!("radius:\n  servers: [{server}]\n  timeout_ms: 20000\n  tries: 1\n");
        format!("{}{radius}", CONFIG.replace("auth:\n", auth))
    }

    /// The next request, and the way to accept it.
    fn next(&self) -> Option<(Vec<u8>, impl FnOnce() + use<'_>)> {
        let mut buffer = vec![0; LONGEST];
        let (length, from) = self.0.recv_from(&mut buffer).ok()?;
        buffer.truncate(length);
        let request = Packet::parse(&buffer).unwrap();
        let (identifier, authenticator) = (request.identifier(), request.authenticator());
        let user = request.find(1).unwrap().to_vec();
        let accept = move || {
            let kind = code::ACCESS_ACCEPT;
            let secret = SECRET.as_bytes();
            let answer = packet::answer(kind, identifier, &authenticator, secret, &[]).unwrap();
            self.0.send_to(&answer, from).unwrap();
        };
        Some((user, accept))
    }
}

/// Has the client negotiate LCP again and give its credentials.
fn prove_again(world: &mut World, clients: &mut [Client]) {
    let before = world.engine_counted("outcome", "pap_requests");
    clients[0].renegotiate();
    world.until("credentials", clients, |world, _| {
        world.engine_counted("outcome", "pap_requests") > before
    });
}

#[test]
fn a_client_that_renegotiates_has_one_question_with_the_server_and_gets_in_in_the_end() {
    let server = Server::new();
    let mut world = World::new(&server.config());
    let mut clients = [Client::new(1, 0, "zoe", "z")];
    clients[0].dial();
    let mut first = None;
    world.until("the question", &mut clients, |_, _| {
        first = first.take().or_else(|| server.next());
        first.is_some()
    });
    for _ in 0..5 {
        prove_again(&mut world, &mut clients);
    }
    assert!(server.next().is_none(), "it has not answered yet");
    (first.unwrap().1)();
    let mut second = None;
    world.until("the next question", &mut clients, |_, _| {
        second = second.take().or_else(|| server.next());
        second.is_some()
    });
    assert!(!clients[0].up, "the first answer is void");
    (second.unwrap().1)();
    world.until("the end", &mut clients, |_, clients| clients[0].up);
    assert!(server.next().is_none());
}

#[test]
fn an_answer_about_one_user_never_counts_for_the_name_its_client_has_taken_meanwhile() {
    let server = Server::new();
    let mut world = World::new(&server.config());
    let mut clients = [
        Client::new(1, 0, "zoe", "z"),
        Client::new(2, 0, "bob", "builder"),
    ];
    world.dial(&mut clients[1..]);
    clients[0].dial();
    let mut first = None;
    world.until("the question", &mut clients, |_, _| {
        first = first.take().or_else(|| server.next());
        first.is_some()
    });
    clients[0].become_user("bob", "guess");
    prove_again(&mut world, &mut clients);
    (first.unwrap().1)();
    world.until("the refusal", &mut clients, |_, clients| clients[0].over);
    assert_eq!(clients[0].refused.as_deref(), Some("authentication failed"));
    assert!(clients[1].up && !clients[1].over, "bob's own goes on");
    assert_eq!(world.counted("user_replaced"), 0);
}
