//! lwIP dials the engine in virtual time. Each test is a process of its own under nextest; under `cargo test` only the first
//! one to start could have lwIP, so all is one test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;

use bng_lwip_peer::{Peer, Proof, Status};
use bng_pppoe::codec::chap;
use bng_pppoe::{
    AccessConcentrator, AuthProtocol, AuthVerdict, Config, Event, Grant, Ipv6Grant, PortConfig,
    PortId, RejectCause, TerminateCause, Time,
};
use bng_wire::MacAddr;

const PORT: PortId = PortId(0);
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ADDRESS: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 7);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 1);
const STEP_MS: u32 = 10;

/// Gateway and client on one wire.
struct Wire {
    gateway: AccessConcentrator,
    peer: Peer,
    now_ms: u32,
    causes: Vec<TerminateCause>,
    ups: usize,
}

impl Wire {
    fn new(
        protocols: Vec<AuthProtocol>,
        proof: Proof,
        password: &str,
        chap_interval_s: u64,
    ) -> Self {
        let config = Config {
            ports: vec![PortConfig {
                id: PORT,
                mac: MacAddr([2, 0xac, 0, 0, 0, 1]),
                mtu: 1500,
            }],
            auth_protocols: protocols,
            chap_interval: (chap_interval_s != 0)
                .then(|| std::time::Duration::from_secs(chap_interval_s)),
            ..Config::default()
        };
        Self {
            gateway: AccessConcentrator::new(config, Time::from_millis(1_000), [7; 32]).unwrap(),
            peer: Peer::new(MAC, proof, "alice", password, 1_000).unwrap(),
            now_ms: 1_000,
            causes: vec![],
            ups: 0,
        }
    }

    fn time(&self) -> Time {
        Time::from_millis(self.now_ms.into())
    }

    fn is_right(proof: &bng_pppoe::Proof) -> bool {
        match proof {
            bng_pppoe::Proof::Pap(password) => password.as_bytes() == b"wonderland",
            bng_pppoe::Proof::ChapMd5 {
                identifier,
                challenge,
                response,
            } => chap::md5_response(*identifier, b"wonderland", challenge) == *response,
        }
    }

    fn drive_gateway(&mut self) {
        let now = self.time();
        self.gateway.handle_timeout(now);
        loop {
            if let Some(event) = self.gateway.poll_event() {
                match event {
                    Event::AuthRequest(request) => {
                        assert_eq!(request.user_name, b"alice");
                        let verdict = match Self::is_right(&request.proof) {
                            true => AuthVerdict::Accept {
                                grant: grant(),
                                message: b"hello".to_vec(),
                            },
                            false => AuthVerdict::Reject {
                                cause: RejectCause::WrongCredentials,
                                message: b"no".to_vec(),
                            },
                        };
                        let (session, attempt) = (request.session, request.attempt);
                        self.gateway
                            .handle_auth(now, session, attempt, verdict)
                            .unwrap();
                    }
                    Event::SessionUp(_) => self.ups += 1,
                    Event::SessionDown { session, cause, .. } => {
                        self.causes.push(cause);
                        assert!(self.gateway.release(now, session));
                    }
                    _ => {}
                }
            } else if let Some(transmit) = self.gateway.poll_transmit() {
                self.peer.receive(&transmit.frame);
            } else {
                return;
            }
        }
    }

    /// Until `done`, for a minute and a half of their time at most.
    fn run_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..90_000 / STEP_MS {
            self.drive_gateway();
            self.peer.tick(self.now_ms);
            for frame in self.peer.take_sent() {
                self.gateway.handle_frame(self.time(), PORT, &frame);
                self.drive_gateway();
            }
            if done(self) {
                return;
            }
            self.now_ms += STEP_MS;
        }
        panic!("{what}: {:?}, ended {:?}", self.peer.status(), self.causes);
    }

    fn dial(&mut self) {
        assert!(self.peer.connect());
        self.run_until("lwIP has both families", |wire| {
            wire.peer.status() == Status::Up
                && wire.peer.addresses() == (ADDRESS, GATEWAY)
                && wire.peer.has_ipv6()
        });
    }

    fn is_over(&self) -> bool {
        self.gateway.sessions().next().is_none() && self.gateway.awaiting_release() == 0
    }
}

fn grant() -> Grant {
    Grant {
        framed_ip: ADDRESS,
        gateway_ip: GATEWAY,
        dns: [Some(Ipv4Addr::new(9, 9, 9, 9)), None],
        ipv6: Some(Ipv6Grant {
            prefix: Ipv6Addr::new(0x2001, 0xdb8, 0, 7, 0, 0, 0, 0),
            delegated: None,
            dns: [None; 2],
        }),
        session_timeout: None,
        idle_timeout: None,
        accounting_id: 1,
    }
}

fn dials_hangs_up_and_dials_again(protocol: AuthProtocol, proof: Proof) {
    let mut wire = Wire::new(vec![protocol], proof, "wonderland", 0);
    wire.dial();
    assert!(wire.peer.close());
    wire.run_until("lwIP is gone", |wire| {
        wire.is_over() && wire.peer.status() == Status::Closed
    });
    assert!(matches!(
        wire.causes[..],
        [TerminateCause::PeerTerminated | TerminateCause::PeerPadt]
    ));
    wire.dial();
    // Now the gateway hangs up.
    let session = wire.gateway.sessions().next().unwrap().session;
    wire.gateway
        .terminate(wire.time(), session, TerminateCause::Operator);
    wire.run_until("lwIP notices", |wire| {
        wire.is_over() && wire.peer.status() != Status::Up
    });
    assert_eq!(wire.causes[1], TerminateCause::Operator);
    assert_eq!(wire.ups, 2);
}

fn is_refused(protocol: AuthProtocol, proof: Proof) {
    let mut wire = Wire::new(vec![protocol], proof, "mushroom", 0);
    assert!(wire.peer.connect());
    wire.run_until("lwIP is refused", |wire| {
        wire.peer.status() == Status::AuthenticationFailed && wire.is_over()
    });
    assert_eq!(wire.causes, [TerminateCause::WrongCredentials]);
    assert_eq!(wire.ups, 0);
}

/// What a process of its own can be asked for.
const CASES: [(&str, fn()); 6] = [
    ("pap", || {
        dials_hangs_up_and_dials_again(AuthProtocol::Pap, Proof::Pap)
    }),
    ("chap", || {
        dials_hangs_up_and_dials_again(AuthProtocol::ChapMd5, Proof::Chap);
    }),
    ("pap_refused", || is_refused(AuthProtocol::Pap, Proof::Pap)),
    ("chap_refused", || {
        is_refused(AuthProtocol::ChapMd5, Proof::Chap)
    }),
    // It knows CHAP only and is offered PAP first: it Naks.
    ("nak", || {
        let protocols = vec![AuthProtocol::Pap, AuthProtocol::ChapMd5];
        let mut wire = Wire::new(protocols, Proof::Chap, "wonderland", 0);
        wire.dial();
        let agreed = wire.gateway.sessions().next().unwrap().auth_protocol;
        assert_eq!(agreed, Some(AuthProtocol::ChapMd5));
    }),
    // Challenges go on while the session lives, and echoes both ways.
    ("challenged_again", || {
        let mut wire = Wire::new(vec![AuthProtocol::ChapMd5], Proof::Chap, "wonderland", 10);
        wire.dial();
        let count = |wire: &Wire| {
            let outcome = bng_pppoe::Outcome::ChapChallenges;
            wire.gateway.counters().outcome(outcome)
        };
        wire.run_until("five more challenges", |wire| count(wire) >= 6);
        assert_eq!((wire.peer.status(), wire.ups), (Status::Up, 1));
        assert_eq!(wire.causes, []);
    }),
];

const CASE: &str = "LWIP_PEER_CASE";

/// Runs a case in a process of its own, because lwIP is once in a process.
fn alone(name: &str) {
    if std::env::var(CASE).is_ok() {
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_case_of_this_process", "--nocapture"])
        .env(CASE, name)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

#[test]
fn the_case_of_this_process() {
    if let Ok(name) = std::env::var(CASE) {
        let (_, run) = CASES.iter().find(|(it, _)| *it == name).unwrap();
        run();
    }
}

#[test]
fn lwip_dials_by_pap_and_both_ends_hang_up() {
    alone("pap");
}

#[test]
fn lwip_dials_by_chap_and_both_ends_hang_up() {
    alone("chap");
}

#[test]
fn lwip_with_a_wrong_password_is_refused() {
    alone("pap_refused");
    alone("chap_refused");
}

#[test]
fn lwip_that_knows_chap_only_gets_it_by_nak() {
    alone("nak");
}

#[test]
fn lwip_answers_repeated_challenges() {
    alone("challenged_again");
}
