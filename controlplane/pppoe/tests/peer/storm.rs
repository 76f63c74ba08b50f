//! A script of bytes played against the engine with the invariants of a session's life checked at every step.
//!
//! The same code serves the property tests and the coverage-guided fuzz target.

use std::collections::BTreeMap;
use std::time::Duration;

use bng_pppoe::codec::frame::{self, Body};
use bng_pppoe::codec::{ControlPacket, chap, dhcpv6, lcp, nd, tags::kind};
use bng_pppoe::{
    AccessConcentrator, AuthProtocol, AuthVerdict, Event, NetworkDownReason, Phase, PortId,
    RejectCause, SessionRef, TerminateCause, Time, Transmit,
};
use bng_wire::pppoe::{code, protocol};
use bng_wire::{MacAddr, VlanStack, ethernet};

use super::{Client, config, dual_stack, tag};

/// What the driver knows of one session.
#[derive(Clone, Copy, Debug, Default)]
struct Life {
    /// The verdict asked for, if any.
    asked: Option<u32>,
    accepted: bool,
    up: bool,
    was_up: bool,
    down: bool,
}

/// The bytes of a script, taken one by one; zero when used up.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// Identifier and options of a Configure-Request of the engine.
type Asked = Option<(u8, Vec<u8>)>;

/// What engines of one storm have in common.
const DISCOVERY_KEY: [u8; 16] = [5; 16];

struct Storm {
    ac: AccessConcentrator,
    now: Time,
    clients: Vec<Client>,
    /// Latest Configure-Request of the engine per client: LCP, IPCP and IPv6CP.
    asked: Vec<[Asked; 3]>,
    lives: BTreeMap<SessionRef, Life>,
    withdrawn: Vec<SessionRef>,
    largest: usize,
    /// Sessions that were up and over before the latest restart.
    forgotten: usize,
}

/// Plays a script and returns how many sessions reached the network phase; panics when an invariant is broken.
pub(crate) fn play(script: &[u8]) -> usize {
    let mut config = config();
    // Small, because every script starts with a new engine.
    config.limits.padi_macs = 16;
    config.auth_protocols = vec![AuthProtocol::Pap, AuthProtocol::ChapMd5];
    config.chap_interval = Some(Duration::from_secs(40));
    // Low, so that clients come to them.
    config.limits.sessions_per_mac = 2;
    config.limits.half_open = 6;
    config.lockout.failures = 3;
    let mtu = config.ports.iter().map(|p| p.mtu).max().unwrap_or(0);
    let now = Time::from_millis(5_000);
    let mut clients: Vec<_> = (1..=4).map(Client::new).collect();
    clients[1].vlans = VlanStack::single(tag(0x8100, 7));
    clients[2].vlans = VlanStack::double(tag(0x88a8, 7), tag(0x8100, 8));
    clients[3].port = PortId(1);
    clients[3].ac_mac = config.ports[1].mac;
    clients[3].max_payload = Some(1500);
    let mut storm = Storm {
        ac: AccessConcentrator::new(config, now, [3; 32]).unwrap(),
        now,
        asked: vec![[None, None, None]; clients.len()],
        clients,
        lives: BTreeMap::new(),
        withdrawn: vec![],
        largest: ethernet::ETH_LEN + 2 * ethernet::TAG_LEN + usize::from(mtu),
        forgotten: 0,
    };
    storm.ac.set_discovery_key(DISCOVERY_KEY);
    let mut script = Script(script);
    while !script.0.is_empty() {
        storm.step(&mut script);
    }
    storm.finish()
}

impl Storm {
    fn step(&mut self, script: &mut Script<'_>) {
        let op = script.byte();
        let who = usize::from(script.byte()) % self.clients.len();
        let client = &mut self.clients[who];
        let is_ipv6 = op / 16 == 0xe;
        let mut bytes = match op % 16 {
            0 => client.padi(),
            1 => client.padr(),
            2 => client.padt(),
            3 if is_ipv6 => match &self.asked[who][0] {
                Some((id, _)) => client.lcp(lcp::code::CONFIGURE_NAK, *id, &[3, 5, 0xc2, 0x23, 5]),
                None => return,
            },
            3 => client.lcp_request(),
            4 => match &self.asked[who][0] {
                Some((id, data)) => client.lcp(lcp::code::CONFIGURE_ACK, *id, data),
                None => return,
            },
            5 if is_ipv6 => match client.challenges.last() {
                Some(_) => client.chap(),
                None => return,
            },
            5 => client.pap(script.byte()),
            6 if is_ipv6 => {
                client.interface_id = Some(u64::from(script.byte()));
                client.ipv6cp_request()
            }
            6 => {
                client.ip = super::FRAMED;
                client.dns.clear();
                client.ipcp_request()
            }
            7 if is_ipv6 => match &self.asked[who][2] {
                Some((id, data)) => client.ipv6cp(lcp::code::CONFIGURE_ACK, *id, data),
                None => return,
            },
            7 => match &self.asked[who][1] {
                Some((id, data)) => client.ipcp(lcp::code::CONFIGURE_ACK, *id, data),
                None => return,
            },
            8 => {
                let (code, id, len) = (script.byte() % 16, script.byte(), script.byte() % 64);
                client.lcp(code, id, script.bytes(len.into()))
            }
            9 => {
                let (code, id, len) = (script.byte() % 16, script.byte(), script.byte() % 64);
                let data = script.bytes(len.into());
                match is_ipv6 {
                    true => client.ipv6cp(code, id, data),
                    false => client.ipcp(code, id, data),
                }
            }
            10 if is_ipv6 => {
                let source = nd::link_local(script.byte().into());
                client.ppp(protocol::IPV6, &nd::router_solicitation(source))
            }
            11 if is_ipv6 => {
                let message = dhcpv6_message(script, client.ac_mac);
                let source = nd::link_local(client.interface_id.unwrap_or(0));
                let ports = (dhcpv6::CLIENT_PORT, dhcpv6::SERVER_PORT);
                let packet = dhcpv6::datagram(source, dhcpv6::ALL_SERVERS, ports, &message);
                client.ppp(protocol::IPV6, &packet)
            }
            10 => {
                let (proto, len) = (script.word() & 0xfeff, script.byte());
                client.ppp(proto, script.bytes(len.into()))
            }
            11 => {
                let len = script.byte();
                script.bytes(len.into()).to_vec()
            }
            12 => {
                self.pass(u64::from(script.word()));
                return;
            }
            13 if is_ipv6 => {
                self.change(script.byte(), script.byte());
                return;
            }
            13 => {
                let cause = TerminateCause::ALL[usize::from(script.byte()) % 5];
                if let Some(session) = self.pick(script.byte()) {
                    self.ac.terminate(self.now, session, cause);
                    self.drain(8);
                }
                return;
            }
            14 => {
                self.decide(script.byte(), script.byte());
                return;
            }
            _ => {
                if let Some(session) = self.pick(script.byte()) {
                    self.ac.note_traffic(self.now, session);
                }
                if let Some(session) = self.withdrawn.pop() {
                    assert!(self.ac.release(self.now, session));
                }
                return;
            }
        };
        // Three frames in sixteen are damaged: a byte changed, the tail cut off, or bytes added.
        match op / 16 {
            0 => {
                let at = usize::from(script.word()) % bytes.len().max(1);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = script.byte();
                }
            }
            1 => bytes.truncate(usize::from(script.word()) % (bytes.len() + 1)),
            2 => bytes.extend_from_slice(script.bytes(40)),
            _ => {}
        }
        self.feed(who, &bytes);
    }

    /// What operators and AAA do to a live engine.
    fn change(&mut self, what: u8, number: u8) {
        let seconds = Duration::from_secs(number.into());
        match (what % 5, self.pick(number)) {
            (0, Some(session)) => {
                self.ac.reauthenticate(self.now, session);
            }
            (1, Some(session)) => {
                let (session_timeout, idle_timeout) = match what / 5 % 3 {
                    0 => (Some(Some(seconds)), None),
                    1 => (None, Some(Some(seconds))),
                    _ => (Some(None), Some(None)),
                };
                let set = self
                    .ac
                    .set_timeouts(self.now, session, session_timeout, idle_timeout);
                assert!(!set || self.lives[&session].accepted);
            }
            (2, _) => {
                let mut config = self.ac.config().clone();
                config.auth_protocols.reverse();
                config.chap_interval = (number != 0).then_some(seconds);
                config.echo_interval = seconds.max(Duration::from_secs(1));
                config.pado_delay = Duration::from_millis(u64::from(what / 128) * 300);
                config.limits.sessions_per_mac = u32::from(number % 3) + 1;
                self.ac.reconfigure(self.now, config).unwrap();
            }
            (3, _) => self.restart(),
            _ => {
                let locked: Vec<_> = self.ac.locked_out(self.now).collect();
                for it in locked {
                    assert!(it.until > self.now && self.ac.unlock(&it.client));
                }
                assert_eq!(self.ac.locked_out(self.now).count(), 0);
            }
        }
        self.drain(1);
    }

    /// Another process takes over: sessions that are up go on as they were, the others are told that they are over.
    fn restart(&mut self) {
        let config = self.ac.config().clone();
        let before = core::mem::replace(
            &mut self.ac,
            AccessConcentrator::new(config, self.now, [4; 32]).unwrap(),
        );
        self.ac.set_discovery_key(DISCOVERY_KEY);
        let mut lives = BTreeMap::new();
        for (session, life) in core::mem::take(&mut self.lives) {
            if !life.up {
                self.forgotten += usize::from(life.was_up);
                continue;
            }
            let record = before.record(session).expect("it is up");
            assert_eq!(self.ac.adopt(self.now, record.clone()), Ok(session));
            assert_eq!(self.ac.record(session), Some(record));
            let life = Life {
                asked: None,
                accepted: true,
                ..life
            };
            lives.insert(session, life);
        }
        for info in before.sessions().filter(|info| !info.network_up) {
            let (session, mac) = (info.session, info.line.mac);
            assert!(self.ac.expel(self.now, session, mac, info.vlans));
        }
        self.withdrawn.clear();
        assert!(self.ac.poll_event().is_none(), "nothing happens to them");
        self.lives = lives;
        self.drain(usize::MAX);
    }

    fn pick(&self, number: u8) -> Option<SessionRef> {
        let count = self.lives.len().max(1);
        self.lives.keys().nth(usize::from(number) % count).copied()
    }

    fn feed(&mut self, who: usize, bytes: &[u8]) {
        self.now = self.now + Duration::from_millis(1);
        let live = self.ac.sessions().count();
        let port = self.clients[who].port;
        let dropped = self.ac.handle_frame(self.now, port, bytes);
        let frames = self.drain(4);
        if dropped.is_some_and(|reason| reason.is_malformed()) {
            assert_eq!(frames, 0, "a reply to a malformed frame: {dropped:?}");
            assert_eq!(
                self.ac.sessions().count(),
                live,
                "{dropped:?} changed something"
            );
        }
    }

    fn pass(&mut self, millis: u64) {
        let end = self.now + Duration::from_millis(millis);
        while let Some(deadline) = self.ac.poll_timeout().filter(|d| *d <= end) {
            self.now = self.now.max(deadline);
            self.ac.handle_timeout(self.now);
            self.drain(usize::MAX);
            assert!(
                self.ac.poll_timeout().is_none_or(|next| next > self.now),
                "progress"
            );
        }
        self.now = end;
    }

    fn decide(&mut self, number: u8, verdict: u8) {
        let Some(session) = self.pick(number) else {
            return;
        };
        let attempt = self.lives[&session].asked.unwrap_or(u32::from(verdict));
        let accept = verdict < 200;
        let answer = if accept {
            AuthVerdict::Accept {
                grant: dual_stack(),
                message: vec![b'm'; verdict.into()],
            }
        } else {
            AuthVerdict::Reject {
                cause: RejectCause::Policy,
                message: vec![],
            }
        };
        if self
            .ac
            .handle_auth(self.now, session, attempt, answer)
            .is_ok()
        {
            let life = self.lives.get_mut(&session).expect("a known session");
            assert_eq!(
                life.asked,
                Some(attempt),
                "a verdict nobody asked for was taken"
            );
            life.asked = None;
            life.accepted = accept;
        }
        self.drain(8);
    }

    /// Takes events and frames; checks the order of events and the bounds of frames. The number of frames.
    fn drain(&mut self, most: usize) -> usize {
        while let Some(event) = self.ac.poll_event() {
            self.note(event);
        }
        let mut frames = 0;
        while let Some(transmit) = self.ac.poll_transmit() {
            self.learn(&transmit);
            frames += 1;
        }
        assert!(frames <= most, "{frames} frames for one input");
        assert!(self.ac.poll_event().is_none());
        for info in self.ac.sessions() {
            // An accepted peer that negotiates LCP again before its network is up must authenticate again, too.
            if matches!(info.phase, Phase::Establish | Phase::Authenticate)
                && let Some(life) = self.lives.get_mut(&info.session)
            {
                life.accepted = false;
            }
        }
        frames
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::SessionStarted { session, .. } => {
                assert!(self.lives.insert(session, Life::default()).is_none());
            }
            Event::AuthRequest(request) => {
                let life = self
                    .lives
                    .get_mut(&request.session)
                    .expect("started before");
                assert!(!life.down && request.is_repeated == life.accepted);
                assert!(life.accepted || !life.up);
                life.asked = Some(request.attempt);
            }
            Event::SessionUp(record) => {
                let life = self.lives.get_mut(&record.session).expect("started before");
                assert!(
                    life.accepted && !life.up && !life.down,
                    "up without authentication"
                );
                assert!(record.peer_mru <= record.link_mru && record.our_mru <= record.link_mru);
                (life.up, life.was_up) = (true, true);
            }
            Event::NetworkChanged(record) => {
                let life = self.lives.get_mut(&record.session).expect("started before");
                assert!(life.accepted && life.up && !life.down);
                assert!(record.ipv4_open || record.interface_ids.is_some());
            }
            Event::NetworkDown { session, reason } => {
                let life = self.lives.get_mut(&session).expect("started before");
                assert!(life.up && !life.down);
                life.up = false;
                life.accepted = reason == NetworkDownReason::NcpRenegotiation;
            }
            Event::SessionDown {
                session, was_up, ..
            } => {
                let life = self.lives.get_mut(&session).expect("started before");
                assert!(!life.up && !life.down);
                assert_eq!(life.was_up, was_up);
                life.down = true;
                self.withdrawn.push(session);
            }
        }
    }

    fn learn(&mut self, transmit: &Transmit) {
        assert!(
            transmit.frame.len() <= self.largest,
            "{} bytes",
            transmit.frame.len()
        );
        let frame = frame::parse(&transmit.frame).expect("the engine sends well-formed frames");
        let to = |c: &Client| c.port == transmit.port && c.mac == frame.dst;
        let Some(who) = self.clients.iter().position(to) else {
            return;
        };
        match frame.body {
            Body::Discovery {
                code: code::PADO,
                tags,
                ..
            } => {
                self.clients[who].cookie = tags.find(kind::AC_COOKIE).unwrap_or(&[]).to_vec();
            }
            Body::Discovery {
                code: code::PADS,
                session_id,
                ..
            } if session_id != 0 => {
                self.clients[who].session_id = session_id;
                self.asked[who] = [None, None, None];
            }
            Body::Discovery { .. } => {}
            Body::Session {
                protocol: proto,
                payload,
                ..
            } => {
                if proto == protocol::IPV6 {
                    assert_eq!(nd::parse(payload), Ok(nd::Received::Other));
                    return;
                }
                let packet = ControlPacket::parse(payload).expect("well-formed");
                let at = match (proto, packet.code) {
                    (protocol::CHAP, chap::code::CHALLENGE) => {
                        let challenge = chap::parse_value(packet.data).expect("well-formed");
                        let challenges = &mut self.clients[who].challenges;
                        *challenges = vec![(packet.id, challenge.value.to_vec())];
                        return;
                    }
                    (protocol::LCP, lcp::code::CONFIGURE_REQUEST) => 0,
                    (protocol::IPCP, lcp::code::CONFIGURE_REQUEST) => 1,
                    (protocol::IPV6CP, lcp::code::CONFIGURE_REQUEST) => 2,
                    _ => return,
                };
                self.asked[who][at] = Some((packet.id, packet.data.to_vec()));
            }
        }
    }

    /// Everything ends: nothing may be left behind.
    fn finish(mut self) -> usize {
        let all: Vec<_> = self.ac.sessions().map(|s| s.session).collect();
        for session in all {
            assert!(
                self.ac
                    .terminate(self.now, session, TerminateCause::Shutdown)
            );
        }
        self.drain(usize::MAX);
        self.pass(1_000_000);
        for session in core::mem::take(&mut self.withdrawn) {
            assert!(self.ac.release(self.now, session));
        }
        assert!(self.lives.values().all(|life| life.down && !life.up));
        assert_eq!(self.ac.sessions().count(), 0);
        assert_eq!(self.ac.half_open(), 0);
        assert_eq!(self.ac.awaiting_release(), 0);
        assert_eq!(self.ac.poll_timeout(), None);
        self.forgotten + self.lives.values().filter(|life| life.was_up).count()
    }
}

/// A DHCPv6 message with the identifiers its type wants, and options of any code, length and content behind them.
fn dhcpv6_message(script: &mut Script<'_>, server: MacAddr) -> Vec<u8> {
    let kind = script.byte() % 14;
    let mut message = vec![kind, 1, 2, 3, 0, 1, 0, 3, 0, 3, 1];
    if matches!(kind, 3 | 5 | 8 | 9) {
        message.extend_from_slice(&[0, 2, 0, 10, 0, 3, 0, 1]);
        message.extend_from_slice(&server.0);
    }
    for _ in 0..script.byte() % 10 {
        let (code, lie) = (script.byte() % 32, script.byte());
        let len = script.byte() % 64;
        let data = script.bytes(len.into());
        // One length in sixteen is not the data's.
        let length = data.len() as u8 ^ if lie % 16 == 0 { lie } else { 0 };
        message.extend_from_slice(&[0, code, 0, length]);
        message.extend_from_slice(data);
    }
    message
}

/// A script that dials client `who` up to the network phase, as seed and as prefix; clients with odd numbers ask for CHAP.
pub(crate) fn dial_script(who: u8) -> Vec<u8> {
    let by_chap = who % 2 == 1;
    let op = |op: u8| 0xf0 | op;
    let mut script = vec![];
    script.extend_from_slice(&[op(0), who, op(1), who]);
    if by_chap {
        script.extend_from_slice(&[0xe3, who]);
    }
    script.extend_from_slice(&[op(4), who, op(3), who]);
    match by_chap {
        true => script.extend_from_slice(&[0xe5, who]),
        false => script.extend_from_slice(&[op(5), who, 1]),
    }
    for number in 0..4 {
        script.extend_from_slice(&[op(14), who, number, 10]);
    }
    for step in [7, 6] {
        script.extend_from_slice(&[op(step), who]);
    }
    script
}
