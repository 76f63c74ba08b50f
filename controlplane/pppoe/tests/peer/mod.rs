//! A small client and a world in virtual time around the engine.
#![allow(dead_code, reason = "each test binary uses its own part")]

mod client;
pub(crate) mod storm;

pub(crate) use client::Client;

use std::net::{Ipv4Addr, Ipv6Addr};

use bng_pppoe::codec::chap;
use bng_pppoe::codec::control::ControlPacket;
use bng_pppoe::codec::frame::{self, Body};
use bng_pppoe::{
    AccessConcentrator, AuthRequest, AuthVerdict, Config, DropReason, Event, Grant, Ipv6Grant,
    Outcome, PortConfig, PortId, Proof, RejectCause, SessionRecord, SessionRef, TerminateCause,
    Time, Transmit,
};
use bng_wire::{MacAddr, VlanTag};

pub(crate) const PORT: PortId = PortId(0);
pub(crate) const AC_MAC: MacAddr = MacAddr([2, 0xac, 0, 0, 0, 1]);
pub(crate) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
pub(crate) const FRAMED: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 77);
pub(crate) const DNS1: Ipv4Addr = Ipv4Addr::new(9, 9, 9, 9);
pub(crate) const DNS2: Ipv4Addr = Ipv4Addr::new(1, 1, 1, 1);

pub(crate) fn config() -> Config {
    Config {
        ports: vec![
            PortConfig {
                id: PORT,
                mac: AC_MAC,
                mtu: 1500,
            },
            PortConfig {
                id: PortId(1),
                mac: MacAddr([2, 0xac, 0, 0, 0, 2]),
                mtu: 1508,
            },
        ],
        ..Config::default()
    }
}

pub(crate) fn grant() -> Grant {
    Grant {
        framed_ip: FRAMED,
        gateway_ip: GATEWAY,
        dns: [Some(DNS1), Some(DNS2)],
        ipv6: None,
        session_timeout: None,
        idle_timeout: None,
        accounting_id: 4711,
    }
}

pub(crate) const IPV6: Ipv6Grant = Ipv6Grant {
    prefix: Ipv6Addr::new(0x2001, 0xdb8, 0, 0x77, 0, 0, 0, 0),
    delegated: Some((Ipv6Addr::new(0x2001, 0xdb8, 0x1000, 0x7700, 0, 0, 0, 0), 56)),
    dns: [
        Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x53)),
        None,
    ],
};

pub(crate) fn dual_stack() -> Grant {
    Grant {
        ipv6: Some(IPV6),
        ..grant()
    }
}

pub(crate) fn accept() -> AuthVerdict {
    AuthVerdict::Accept {
        grant: grant(),
        message: b"welcome".to_vec(),
    }
}

pub(crate) fn reject(cause: RejectCause) -> AuthVerdict {
    AuthVerdict::Reject {
        cause,
        message: b"no".to_vec(),
    }
}

pub(crate) fn tag(tpid: u16, tci: u16) -> VlanTag {
    VlanTag { tpid, tci }
}

/// How the world answers an `AuthRequest`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Aaa {
    /// Accepts password "secret".
    Users,
    /// Always this verdict.
    Always(AuthVerdict),
    /// Never; the test does.
    Manual,
}

/// Whether a peer has proved that it knows `secret`.
fn is_right(proof: &Proof, secret: &[u8]) -> bool {
    match proof {
        Proof::Pap(password) => password.as_bytes() == secret,
        Proof::ChapMd5 {
            identifier,
            challenge,
            response,
        } => chap::md5_response(*identifier, secret, challenge) == *response,
    }
}

/// The engine, its driver and the clock.
pub(crate) struct World {
    pub(crate) ac: AccessConcentrator,
    pub(crate) now: Time,
    pub(crate) aaa: Aaa,
    pub(crate) grant: Grant,
    pub(crate) auto_release: bool,
    pub(crate) events: Vec<Event>,
    pub(crate) auth: Vec<AuthRequest>,
    pub(crate) last_drop: Option<DropReason>,
}

impl World {
    pub(crate) fn new(config: Config) -> Self {
        let now = Time::from_millis(1_000_000);
        World {
            ac: AccessConcentrator::new(config, now, [42; 32]).unwrap(),
            now,
            aaa: Aaa::Users,
            grant: grant(),
            auto_release: true,
            events: vec![],
            auth: vec![],
            last_drop: None,
        }
    }

    /// Takes events and frames as a driver does, answering AAA at once.
    pub(crate) fn drain(&mut self) -> Vec<Transmit> {
        let mut out = vec![];
        loop {
            let mut idle = true;
            while let Some(event) = self.ac.poll_event() {
                idle = false;
                match &event {
                    Event::AuthRequest(request) => {
                        self.auth.push(request.clone());
                        let verdict = match &self.aaa {
                            Aaa::Users if is_right(&request.proof, b"secret") => {
                                Some(AuthVerdict::Accept {
                                    grant: self.grant,
                                    message: vec![],
                                })
                            }
                            Aaa::Users => Some(reject(RejectCause::WrongCredentials)),
                            Aaa::Always(verdict) => Some(verdict.clone()),
                            Aaa::Manual => None,
                        };
                        if let Some(verdict) = verdict {
                            let (session, attempt) = (request.session, request.attempt);
                            self.ac
                                .handle_auth(self.now, session, attempt, verdict)
                                .unwrap();
                        }
                    }
                    Event::SessionDown { session, .. } if self.auto_release => {
                        assert!(self.ac.release(self.now, *session));
                    }
                    _ => {}
                }
                self.events.push(event);
            }
            while let Some(transmit) = self.ac.poll_transmit() {
                idle = false;
                frame::parse(&transmit.frame).expect("the engine sends well-formed frames");
                out.push(transmit);
            }
            if idle {
                return out;
            }
        }
    }

    pub(crate) fn feed_on(&mut self, port: PortId, bytes: &[u8]) -> Vec<Transmit> {
        self.last_drop = self.ac.handle_frame(self.now, port, bytes);
        self.drain()
    }

    /// One frame in on port 0, the frames it causes out.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.feed_on(PORT, bytes)
            .into_iter()
            .map(|t| t.frame)
            .collect()
    }

    /// Lets time pass, firing every timer at its own moment; the frames sent meanwhile, with their times.
    pub(crate) fn pass(&mut self, millis: u64) -> Vec<(u64, Vec<u8>)> {
        let end = Time::from_millis(self.now.as_millis() + millis);
        let begin = self.now.as_millis();
        let mut out = vec![];
        while let Some(deadline) = self.ac.poll_timeout().filter(|d| *d <= end) {
            self.now = self.now.max(deadline);
            self.ac.handle_timeout(self.now);
            let at = self.now.as_millis() - begin;
            out.extend(self.drain().into_iter().map(|t| (at, t.frame)));
        }
        self.now = end;
        out
    }

    pub(crate) fn count(&self, outcome: Outcome) -> u64 {
        self.ac.counters().outcome(outcome)
    }

    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        self.ac.counters().dropped(reason)
    }

    pub(crate) fn ended(&self, cause: TerminateCause) -> u64 {
        self.ac.counters().ended(cause)
    }

    pub(crate) fn session(&self) -> SessionRef {
        let mut all = self.ac.sessions();
        let session = all.next().expect("a session").session;
        assert!(all.next().is_none(), "one session");
        session
    }

    pub(crate) fn down_cause(&self) -> Option<TerminateCause> {
        self.events.iter().find_map(|e| match e {
            Event::SessionDown { cause, .. } => Some(*cause),
            _ => None,
        })
    }

    /// Short names of the events so far.
    pub(crate) fn event_names(&self) -> Vec<&'static str> {
        self.events
            .iter()
            .map(|e| match e {
                Event::SessionStarted { .. } => "started",
                Event::AuthRequest(_) => "auth",
                Event::SessionUp(_) => "up",
                Event::NetworkChanged(_) => "changed",
                Event::NetworkDown { .. } => "network-down",
                Event::SessionDown { .. } => "down",
            })
            .collect()
    }
}

/// Protocol and control packet of a session-stage frame.
pub(crate) fn as_control(bytes: &[u8]) -> (u16, ControlPacket<'_>) {
    match frame::parse(bytes).unwrap().body {
        Body::Session {
            protocol, payload, ..
        } => (protocol, ControlPacket::parse(payload).unwrap()),
        other => panic!("not a session frame: {other:?}"),
    }
}

/// Code, session id and a tag lookup of a discovery frame.
pub(crate) fn as_discovery(bytes: &[u8]) -> (u8, u16, bng_pppoe::codec::Tags<'_>) {
    match frame::parse(bytes).unwrap().body {
        Body::Discovery {
            code,
            session_id,
            tags,
        } => (code, session_id, tags),
        other => panic!("not a discovery frame: {other:?}"),
    }
}

/// The record of the latest `SessionUp` or `NetworkChanged`.
pub(crate) fn record_of(world: &World) -> SessionRecord {
    let mut latest = world.events.iter().rev();
    latest
        .find_map(|event| match event {
            Event::SessionUp(record) | Event::NetworkChanged(record) => Some((**record).clone()),
            _ => None,
        })
        .expect("a session that is up")
}

/// A world with one client whose network is up.
pub(crate) fn up() -> (World, Client) {
    let mut world = World::new(config());
    let mut client = Client::new(1);
    client.dial(&mut world);
    assert_eq!(world.event_names(), ["started", "auth", "up"]);
    (world, client)
}
