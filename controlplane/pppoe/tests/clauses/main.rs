//! Recorded exchanges of `cases.txt` played against the engine: each is what a clause of an RFC asks for.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

#[path = "../peer/mod.rs"]
mod peer;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bng_pppoe::codec::frame::{self, Body};
use bng_pppoe::codec::tags::kind;
use bng_pppoe::codec::{ControlPacket, Options, chap, dhcpv6, nd};
use bng_pppoe::{AuthProtocol, Config, Event};
use bng_wire::pppoe::{code, protocol};
use peer::{Client, World, config, dual_stack};

/// As [`protocol::IPV6`], where `protocol` is a number.
const IPV6: u16 = protocol::IPV6;

const CASES: &str = include_str!("cases.txt");

/// One case of the file.
struct Case<'a> {
    name: &'a str,
    state: &'a str,
    lines: Vec<&'a str>,
}

fn cases() -> Vec<Case<'static>> {
    let mut all: Vec<Case<'static>> = vec![];
    let lines = CASES.lines().map(str::trim);
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match (line.starts_with('['), all.last_mut()) {
            (true, _) => all.push(Case {
                name: line,
                state: "",
                lines: vec![],
            }),
            (false, Some(case)) if case.state.is_empty() => case.state = line,
            (false, Some(case)) => case.lines.push(line),
            (false, None) => panic!("a line before the first case: {line}"),
        }
    }
    all
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(text: &str) -> Vec<u8> {
    let text: String = text.split_whitespace().collect();
    assert!(text.len().is_multiple_of(2), "half a byte in {text}");
    let pairs = (0..text.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect(&text))
        .collect()
}

/// Whether `text` is what `pattern` says: `..` stands for any byte, `*` for the rest.
fn fits(pattern: &str, text: &str) -> bool {
    let pattern: String = pattern.split_whitespace().collect();
    let (pattern, is_open) = match pattern.strip_suffix('*') {
        Some(start) => (start, true),
        None => (&*pattern, false),
    };
    let same = pattern.bytes().zip(text.bytes());
    (text.len() == pattern.len() || is_open && text.len() > pattern.len())
        && same.into_iter().all(|(p, t)| p == b'.' || p == t)
}

const PROTOCOLS: [(&str, u16); 6] = [
    ("lcp", protocol::LCP),
    ("pap", protocol::PAP),
    ("chap", protocol::CHAP),
    ("ipcp", protocol::IPCP),
    ("ipv6cp", protocol::IPV6CP),
    ("ipv6", protocol::IPV6),
];

const DISCOVERY: [(&str, u8); 5] = [
    ("padi", code::PADI),
    ("pado", code::PADO),
    ("padr", code::PADR),
    ("pads", code::PADS),
    ("padt", code::PADT),
];

/// A frame in the words of the file; PADS and PADT begin with the session id.
fn in_words(bytes: &[u8]) -> (String, String) {
    match frame::parse(bytes).unwrap().body {
        Body::Discovery {
            code, session_id, ..
        } => {
            let (name, _) = DISCOVERY.iter().find(|(_, it)| *it == code).unwrap();
            let length = usize::from(u16::from_be_bytes([bytes[18], bytes[19]]));
            let tags = hex(&bytes[20..20 + length]);
            let id = match code {
                code::PADS | code::PADT => format!("{session_id:04x}"),
                _ => String::new(),
            };
            ((*name).to_owned(), id + &tags)
        }
        Body::Session {
            protocol, payload, ..
        } => {
            // Next header UDP, to the port of DHCPv6 clients.
            if protocol == IPV6 && payload[6] == 17 {
                assert_eq!(payload[42..44], dhcpv6::CLIENT_PORT.to_be_bytes());
                return ("dhcpv6".to_owned(), hex(&payload[48..]));
            }
            let known = PROTOCOLS.iter().find(|(_, number)| *number == protocol);
            match known {
                Some((name, _)) => ((*name).to_owned(), hex(payload)),
                None => ("ppp".to_owned(), format!("{protocol:04x}{}", hex(payload))),
            }
        }
    }
}

/// A case being played.
struct Play {
    world: World,
    client: Client,
    names: BTreeMap<&'static str, String>,
    sent: VecDeque<(String, String)>,
}

impl Play {
    fn new(state: &str) -> Self {
        let config = match state {
            "challenge" => Config {
                auth_protocols: vec![AuthProtocol::ChapMd5],
                ..config()
            },
            _ => config(),
        };
        let mut play = Self {
            world: World::new(config),
            client: Client::new(1),
            names: BTreeMap::new(),
            sent: VecDeque::new(),
        };
        if state.ends_with('6') {
            play.world.grant = dual_stack();
            play.client.interface_id = Some(9);
        }
        play.reach(state);
        play.world.events.clear();
        play.sent.clear();
        play
    }

    fn reach(&mut self, state: &str) {
        match state {
            "new" => {}
            "cookie" => self.give(&self.client.padi()),
            "session" => {
                self.client.host_uniq = vec![0, 1, 1];
                self.reach("cookie");
                self.client.cookie = bytes(&self.names["cookie"]);
                self.give(&self.client.padr());
                self.client.session_id = u16::from_str_radix(&self.names["sid"], 16).unwrap();
            }
            "authenticate" | "challenge" => {
                self.reach("session");
                let request = self.client.lcp_request();
                self.give(&request);
                let id = bytes(&self.names["id"])[0];
                let ack = self.client.lcp(2, id, &bytes(&self.names["options"]));
                self.give(&ack);
            }
            "network" | "network6" => {
                self.reach("authenticate");
                self.give(&self.client.pap(1));
            }
            "open" | "open6" => {
                self.reach(if state == "open" {
                    "network"
                } else {
                    "network6"
                });
                self.client.ip = peer::FRAMED;
                self.client.dns.clear();
                let request = self.client.ipcp_request();
                self.give(&request);
                let id = bytes(&self.names["nid"])[0];
                self.give(&self.client.ipcp(2, id, &bytes(&self.names["noptions"])));
                if state == "open6" {
                    let request = self.client.ipv6cp_request();
                    self.give(&request);
                    let id = bytes(&self.names["6id"])[0];
                    self.give(&self.client.ipv6cp(2, id, &bytes(&self.names["6options"])));
                }
                assert!(self.world.event_names().contains(&"up"), "{state}");
                // The peer has shown that it had our Acks.
                let echo = self.client.lcp(9, 99, &[0; 4]);
                self.give(&echo);
            }
            other => panic!("no state {other}"),
        }
    }

    fn give(&mut self, bytes: &[u8]) {
        for frame in self.world.feed(bytes) {
            self.take(&frame);
        }
    }

    fn take(&mut self, frame: &[u8]) {
        self.learn(frame);
        self.sent.push_back(in_words(frame));
    }

    /// Notes what later lines of a case refer to.
    fn learn(&mut self, bytes: &[u8]) {
        let names = &mut self.names;
        match frame::parse(bytes).unwrap().body {
            Body::Discovery {
                code: sent,
                session_id,
                tags,
            } => {
                if let Some(cookie) = tags.find(kind::AC_COOKIE) {
                    names.insert("cookie", hex(cookie));
                }
                if sent == code::PADS {
                    names.insert("sid", format!("{session_id:04x}"));
                }
            }
            Body::Session {
                protocol: number,
                payload,
                ..
            } => {
                let Ok(packet) = ControlPacket::parse(payload) else {
                    return;
                };
                let request = match (number, packet.code) {
                    (protocol::LCP, 1) => ("id", "options"),
                    (protocol::IPCP, 1) => ("nid", "noptions"),
                    (protocol::IPV6CP, 1) => ("6id", "6options"),
                    (protocol::CHAP, 1) => {
                        let challenge = chap::parse_value(packet.data).unwrap();
                        names.insert("challenge", hex(challenge.value));
                        names.insert("cid", format!("{:02x}", packet.id));
                        names.insert("cid+1", format!("{:02x}", packet.id.wrapping_add(1)));
                        return;
                    }
                    _ => return,
                };
                names.insert(request.0, format!("{:02x}", packet.id));
                names.insert(request.1, hex(packet.data));
                if number == protocol::LCP {
                    let options = Options::parse(packet.data).unwrap();
                    if let Some(magic) = options.find(5) {
                        names.insert("magic", hex(magic.data));
                    }
                }
            }
        }
    }

    fn with_names(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, value) in &self.names {
            text = text.replace(&format!("{{{name}}}"), value);
        }
        assert!(!text.contains('{'), "nothing of this name: {text}");
        text
    }

    fn frame(&self, word: &str, rest: &str) -> Vec<u8> {
        let client = &self.client;
        if let Some((_, number)) = PROTOCOLS.iter().find(|(name, _)| *name == word) {
            return client.ppp(*number, &bytes(rest));
        }
        match word {
            "padi" => client.padi_with(&bytes(rest)),
            "padr" => client.padr_with(&bytes(rest)),
            "padt" => {
                let id = bytes(rest);
                let session_id = u16::from_be_bytes([id[0], id[1]]);
                let ended = Client {
                    session_id,
                    ..client.clone()
                };
                ended.padt()
            }
            "ppp" => {
                let all = bytes(rest);
                client.ppp(u16::from_be_bytes([all[0], all[1]]), &all[2..])
            }
            "response" => {
                let id = bytes(&self.names["cid"])[0];
                let challenge = bytes(&self.names["challenge"]);
                client.chap_with(id, &chap::md5_response(id, &bytes(rest), &challenge))
            }
            "dhcpv6" => {
                let source = nd::link_local(client.interface_id.unwrap());
                let ports = (dhcpv6::CLIENT_PORT, dhcpv6::SERVER_PORT);
                let all = dhcpv6::ALL_SERVERS;
                let packet = dhcpv6::datagram(source, all, ports, &bytes(rest));
                client.ppp(protocol::IPV6, &packet)
            }
            "rs" => {
                let source = nd::link_local(client.interface_id.unwrap());
                client.ppp(protocol::IPV6, &nd::router_solicitation(source))
            }
            "ping" => {
                let source = nd::link_local(client.interface_id.unwrap());
                let ids = self
                    .world
                    .ac
                    .session(self.world.session())
                    .unwrap()
                    .interface_ids;
                let own = nd::link_local(ids.unwrap().ours);
                client.ppp(protocol::IPV6, &nd::echo_request(source, own, &bytes(rest)))
            }
            "raw" => bytes(rest),
            other => panic!("no frame {other}"),
        }
    }

    fn nothing_more(&self, case: &Case<'_>, line: &str) {
        assert!(
            self.sent.is_empty(),
            "{}: before `{line}` the gateway also sent {:?}",
            case.name,
            self.sent
        );
    }

    fn run(mut self, case: &Case<'_>) {
        let mut counted: Option<BTreeMap<&'static str, u64>> = None;
        for line in &case.lines {
            let (sign, rest) = line.split_at(1);
            let (word, rest) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
            match sign {
                ">" => {
                    self.nothing_more(case, line);
                    self.world.last_drop = None;
                    counted = Some(drops(&self.world));
                    self.world.now = self.world.now + Duration::from_millis(1);
                    let frame = self.frame(word, &self.with_names(rest));
                    self.give(&frame);
                }
                "~" => {
                    self.nothing_more(case, line);
                    for (_, frame) in self.world.pass(word.parse().unwrap()) {
                        self.take(&frame);
                    }
                }
                "<" => {
                    let sent = self.sent.pop_front();
                    let (kind, text) =
                        sent.unwrap_or_else(|| panic!("{}: `{line}` was not sent", case.name));
                    let pattern = self.with_names(rest);
                    assert!(
                        kind == word && fits(&pattern, &text),
                        "{}: `{line}` is {kind} {text}, wanted {pattern}",
                        case.name
                    );
                }
                "!" => {
                    self.nothing_more(case, line);
                    let mut expected = counted.clone().unwrap();
                    *expected
                        .get_mut(word)
                        .unwrap_or_else(|| panic!("no reason {word}")) += 1;
                    let now = drops(&self.world);
                    let moved: Vec<_> = now.iter().filter(|(n, v)| expected[*n] != **v).collect();
                    let reason = self.world.last_drop.map(bng_pppoe::DropReason::name);
                    assert_eq!(
                        (reason, moved),
                        (Some(word), vec![]),
                        "{}: `{line}`",
                        case.name
                    );
                    assert!(self.world.events.is_empty(), "{}: `{line}`", case.name);
                }
                "=" => {
                    let found = self.world.events.iter().any(|event| match event {
                        Event::SessionDown { cause, .. } => word == "down" && cause.name() == rest,
                        Event::SessionStarted { .. } => word == "started",
                        Event::AuthRequest(_) => word == "auth",
                        Event::SessionUp(_) => word == "up",
                        Event::NetworkChanged(_) => word == "changed",
                        Event::NetworkDown { .. } => word == "network-down",
                    });
                    assert!(found, "{}: `{line}`: {:?}", case.name, self.world.events);
                }
                _ => panic!("{}: what is `{line}`?", case.name),
            }
        }
        self.nothing_more(case, "the end");
    }
}

fn drops(world: &World) -> BTreeMap<&'static str, u64> {
    let all = world.ac.counters().iter();
    all.filter(|it| it.group == "drop")
        .map(|it| (it.name, it.value))
        .collect()
}

#[test]
fn every_recorded_exchange_is_what_its_clause_asks_for() {
    let all = cases();
    assert!(all.len() > 80, "{}", all.len());
    let mut failed = vec![];
    for case in &all {
        let played = std::panic::catch_unwind(|| Play::new(case.state).run(case));
        if let Err(why) = played {
            let text = why.downcast_ref::<String>().cloned();
            failed.push(text.unwrap_or_else(|| case.name.to_owned()));
        }
    }
    assert!(
        failed.is_empty(),
        "{} fail:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

#[test]
fn a_case_that_says_something_else_fails() {
    let wrong = Case {
        name: "wrong",
        state: "new",
        lines: vec!["> padi 0101 0000", "< pado 0101 0001 *"],
    };
    assert!(std::panic::catch_unwind(|| Play::new("new").run(&wrong)).is_err());
    let unsaid = Case {
        lines: vec!["> padi 0101 0000"],
        ..wrong
    };
    assert!(std::panic::catch_unwind(|| Play::new("new").run(&unsaid)).is_err());
    let answered = Case {
        lines: vec!["> padi 0101 0000", "! tag_length"],
        ..unsaid
    };
    assert!(std::panic::catch_unwind(|| Play::new("new").run(&answered)).is_err());
}

/// `docs/conformance-ppp.md` lists exactly these cases, and the code it names is there.
#[test]
fn the_documentation_lists_every_case() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../../docs/conformance-ppp.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let rows = rows.filter(|line| !line.starts_with("| clause"));
    let mut listed = vec![];
    for row in rows {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [clause, shown, code] = cells[..] else {
            panic!("{row}");
        };
        let code = root.join("src").join(code.trim_matches('`'));
        assert!(code.exists(), "{}", code.display());
        listed.extend(shown.split("; ").map(|it| format!("[{clause}] {it}")));
    }
    let mut named: Vec<_> = cases().iter().map(|case| case.name.to_owned()).collect();
    listed.sort();
    named.sort();
    assert_eq!(listed, named);
}
