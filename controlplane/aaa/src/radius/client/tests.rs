//! The client in virtual time, against servers that answer, err or keep silent.

use super::*;
use crate::radius::request::tests::{asked, nas};
use crate::{Credentials, RejectCause, Verdict};

const SECRETS: [&str; 3] = ["one", "two", "three"];

struct World {
    client: Client<u64>,
    ms: u64,
    sent: Vec<(u64, Transmit)>,
    outcomes: Vec<(u64, Outcome)>,
    /// Servers that answer at once.
    lively: Vec<usize>,
}

fn settings(servers: usize) -> Settings {
    Settings {
        secrets: SECRETS[..servers].iter().map(|it| (*it).into()).collect(),
        timeout: Duration::from_millis(1_000),
        tries: 3,
        dead: Duration::from_secs(60),
        sockets: 1,
        queue: 10,
    }
}

fn access() -> Draft {
    let credentials = Credentials::Pap {
        password: b"pw".to_vec(),
    };
    nas().access(&asked(1, credentials)).unwrap()
}

fn accounting() -> Draft {
    Draft {
        kind: Kind::Accounting,
        password: None,
        attributes: vec![attribute::CLASS, 3, b'c'],
        event_unix_s: Some(990),
    }
}

/// The right answer to a request.
fn reply(transmit: &Transmit, code: u8, attributes: &[u8]) -> Vec<u8> {
    let request = Packet::parse(&transmit.bytes).unwrap();
    let secret = SECRETS[transmit.server].as_bytes();
    packet::answer(
        code,
        request.identifier(),
        &request.authenticator(),
        secret,
        attributes,
    )
    .unwrap()
}

impl World {
    fn new(settings: Settings) -> Self {
        Self {
            client: Client::new(settings, [7; 32]),
            ms: 0,
            sent: Vec::new(),
            outcomes: Vec::new(),
            lively: Vec::new(),
        }
    }

    fn now(&self) -> Now {
        Now {
            since_start: Duration::from_millis(self.ms),
            unix_s: 1_000 + self.ms / 1_000,
        }
    }

    fn ask(&mut self, tag: u64, draft: Draft) {
        let now = self.now();
        self.client.handle_request(tag, draft, now);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(transmit) = self.client.poll_transmit() {
            self.sent.push((self.ms, transmit.clone()));
            if self.lively.contains(&transmit.server) {
                let code = match transmit.bytes[0] {
                    code::ACCESS_REQUEST => code::ACCESS_ACCEPT,
                    _ => code::ACCOUNTING_RESPONSE,
                };
                self.receive(&transmit, &reply(&transmit, code, &[]))
                    .unwrap();
            }
        }
        while let Some(outcome) = self.client.poll_outcome() {
            self.outcomes.push(outcome);
        }
    }

    fn receive(&mut self, to: &Transmit, bytes: &[u8]) -> Result<(), Discard> {
        let now = self.now();
        let result = (self.client).handle_datagram(to.server, to.socket, bytes, now);
        self.drain();
        result
    }

    fn until(&mut self, ms: u64) {
        while let Some(due) = self
            .client
            .poll_timeout()
            .filter(|due| due.as_millis() <= ms.into())
        {
            self.ms = self.ms.max(due.as_millis() as u64);
            let now = self.now();
            self.client.handle_timeout(now);
            self.drain();
        }
        self.ms = ms;
    }

    /// When datagrams went to which server.
    fn schedule(&self) -> Vec<(u64, usize)> {
        self.sent.iter().map(|(ms, it)| (*ms, it.server)).collect()
    }

    fn stats(&self, server: usize) -> Stats {
        self.client.stats().nth(server).unwrap()
    }
}

#[test]
fn a_request_is_repeated_as_it_is_with_doubled_timeouts_then_the_next_server_is_asked() {
    let mut world = World::new(settings(2));
    world.ask(1, access());
    world.until(20_000);
    let expected = [
        (0, 0),
        (1_000, 0),
        (3_000, 0),
        (7_000, 1),
        (8_000, 1),
        (10_000, 1),
    ];
    assert_eq!(world.schedule(), expected);
    assert_eq!(world.sent[0].1, world.sent[2].1, "the same packet");
    assert_ne!(world.sent[0].1.bytes[4..20], world.sent[3].1.bytes[4..20]);
    assert_eq!(world.outcomes, [(1, Outcome::Silence)]);
    let stats = world.stats(0);
    assert_eq!(
        (
            stats.requests,
            stats.retransmissions,
            stats.timeouts,
            stats.deaths
        ),
        (1, 2, 1, 1)
    );
    assert!(stats.is_dead && stats.pending == 0);
}

#[test]
fn every_access_request_hides_its_password_and_carries_message_authenticator_first() {
    let mut world = World::new(settings(1));
    world.ask(1, access());
    let bytes = &world.sent[0].1.bytes;
    let packet = Packet::parse(bytes).unwrap();
    let first = packet.attributes().next().unwrap();
    assert_eq!(first.0, attribute::MESSAGE_AUTHENTICATOR);
    let authenticator = packet.authenticator();
    assert_eq!(
        packet.message_authenticator(&authenticator, b"one"),
        Some(true)
    );
    let hidden = packet::hide(b"pw", &authenticator, b"one").unwrap();
    assert_eq!(packet.find(attribute::USER_PASSWORD), Some(&hidden[..]));
}

#[test]
fn accounting_requests_are_signed_and_say_how_late_they_are() {
    let mut world = World::new(settings(2));
    world.ask(1, accounting());
    world.until(7_000);
    for (index, late) in [(0, 10u32), (3, 17)] {
        let (_, transmit) = &world.sent[index];
        let packet = Packet::parse(&transmit.bytes).unwrap();
        let secret = SECRETS[transmit.server].as_bytes();
        assert!(packet.is_signed(secret));
        assert_eq!(packet.message_authenticator(&[0; 16], secret), Some(true));
        let delay = packet.find(attribute::ACCT_DELAY_TIME);
        assert_eq!(delay, Some(&late.to_be_bytes()[..]));
    }
}

#[test]
fn requests_leave_a_dead_server_at_their_next_timeout_and_new_ones_do_not_ask_it() {
    let mut world = World::new(settings(2));
    world.lively = vec![1];
    world.ask(1, access());
    world.until(6_500);
    world.ask(2, access());
    world.until(7_000);
    assert_eq!(
        world.outcomes.len(),
        1,
        "the first one, by the second server"
    );
    world.ask(3, access());
    assert_eq!(world.outcomes.len(), 2, "at once");
    world.until(7_500);
    assert_eq!(world.outcomes.len(), 3, "the one that was under way");
    assert_eq!(world.stats(0).deaths, 1);
}

#[test]
fn after_its_time_one_request_finds_out_whether_a_server_lives() {
    let mut world = World::new(settings(2));
    world.lively = vec![1];
    world.ask(1, access());
    world.until(7_000);
    world.until(67_000);
    world.sent.clear();
    world.ask(2, access());
    world.ask(3, access());
    assert_eq!(world.schedule(), [(67_000, 0), (67_000, 1)], "one probe");
    world.until(68_000);
    assert_eq!(
        world.schedule()[2..],
        [(68_000, 1)],
        "sent once, then elsewhere"
    );
    assert!(world.stats(0).is_dead);
    world.until(128_000);
    world.lively = vec![0, 1];
    world.sent.clear();
    world.ask(4, access());
    world.ask(5, access());
    assert_eq!(
        world.schedule(),
        [(128_000, 0), (128_000, 0)],
        "preferred again"
    );
    assert!(!world.stats(0).is_dead);
    assert_eq!(world.outcomes.len(), 5);
}

#[test]
fn when_all_are_dead_each_is_still_asked_once() {
    let mut world = World::new(settings(2));
    world.ask(1, access());
    world.until(20_000);
    world.sent.clear();
    world.ask(2, access());
    world.until(30_000);
    assert_eq!(world.schedule(), [(20_000, 0), (21_000, 1)]);
    assert_eq!(world.outcomes[1], (2, Outcome::Silence));
    world.lively = vec![1];
    world.ask(3, access());
    world.until(40_000);
    assert!(matches!(
        world.outcomes[2].1,
        Outcome::Answer { server: 1, .. }
    ));
    assert!(world.stats(0).is_dead && !world.stats(1).is_dead);
}

#[test]
fn a_server_that_answers_others_does_not_die_of_one_request() {
    let mut world = World::new(settings(1));
    world.ask(1, access());
    world.until(6_999);
    world.ask(2, access());
    let second = world.sent.last().unwrap().1.clone();
    let answer = reply(&second, code::ACCESS_REJECT, &[]);
    world.receive(&second, &answer).unwrap();
    world.until(7_000);
    assert_eq!(world.outcomes.last(), Some(&(1, Outcome::Silence)));
    assert!(!world.stats(0).is_dead);
}

#[test]
fn each_wrong_answer_is_counted_by_name_and_the_right_one_still_counts() {
    let mut world = World::new(settings(1));
    world.ask(1, access());
    let sent = world.sent[0].1.clone();
    let good = reply(&sent, code::ACCESS_ACCEPT, &[attribute::CLASS, 3, b'c']);
    let mut length = good.clone();
    length[3] += 1;
    let mut attribute_length = good.clone();
    *attribute_length.last_chunk_mut::<2>().unwrap() = [0, 0];
    attribute_length[good.len() - 2] = 2;
    let mut identifier = good.clone();
    identifier[1] ^= 1;
    let mut authenticator = good.clone();
    authenticator[4] ^= 1;
    let code = reply(&sent, code::ACCOUNTING_RESPONSE, &[]);
    let request = Packet::parse(&sent.bytes).unwrap();
    // Signed by somebody who knows the secret, but without Message-Authenticator or with a wrong one.
    let signed = |attributes: &[u8]| {
        let mut bytes = vec![code::ACCESS_ACCEPT, request.identifier(), 0, 0];
        bytes[3] = (packet::HEADER + attributes.len()) as u8;
        let hash = {
            use md5::{Digest, Md5};
            Md5::new()
                .chain_update(&bytes)
                .chain_update(request.authenticator())
                .chain_update(attributes)
                .chain_update(b"one")
                .finalize()
        };
        bytes.extend(hash);
        bytes.extend(attributes);
        bytes
    };
    let mut wrong = vec![attribute::MESSAGE_AUTHENTICATOR, 18];
    wrong.extend([0; 16]);
    let cases = [
        (good[..19].to_vec(), Discard::Short),
        (length, Discard::Length),
        (attribute_length, Discard::Attribute),
        (code, Discard::Code),
        (identifier, Discard::Identifier),
        (authenticator, Discard::Authenticator),
        (signed(&[]), Discard::NoMessageAuthenticator),
        (signed(&wrong), Discard::MessageAuthenticator),
    ];
    for (bytes, discard) in &cases {
        assert_eq!(world.receive(&sent, bytes), Err(*discard));
        assert_eq!(
            world.stats(0).discarded[*discard as usize],
            1,
            "{discard:?}"
        );
    }
    assert_eq!(cases.len(), Discard::ALL.len(), "all of them");
    assert!(world.outcomes.is_empty());
    world.receive(&sent, &good).unwrap();
    assert_eq!(
        world.receive(&sent, &good),
        Err(Discard::Identifier),
        "once"
    );
    let [
        (
            1,
            Outcome::Answer {
                code, attributes, ..
            },
        ),
    ] = &world.outcomes[..]
    else {
        panic!("{:?}", world.outcomes)
    };
    assert_eq!(*code, code::ACCESS_ACCEPT);
    let (verdict, _) = crate::radius::verdict(&world.outcomes[0].1);
    let Verdict::Accept(profile) = verdict else {
        panic!("{attributes:?}")
    };
    assert_eq!(profile.class, [b"c"]);
}

#[test]
fn a_reply_of_another_server_or_to_an_earlier_request_is_none() {
    let mut world = World::new(settings(2));
    world.ask(1, access());
    let first = world.sent[0].1.clone();
    let late = reply(&first, code::ACCESS_ACCEPT, &[]);
    let elsewhere = Transmit {
        server: 1,
        ..first.clone()
    };
    assert_eq!(world.receive(&elsewhere, &late), Err(Discard::Identifier));
    world.until(7_000);
    assert_eq!(world.receive(&first, &late), Err(Discard::Identifier));
    assert!(world.outcomes.is_empty());
    assert_eq!(
        world.client.handle_datagram(9, 0, &late, world.now()),
        Err(Discard::Identifier)
    );
}

#[test]
fn more_than_256_requests_take_further_source_ports_then_wait_then_find_no_room() {
    let mut world = World::new(Settings {
        sockets: 2,
        ..settings(1)
    });
    for tag in 0..522 {
        world.ask(tag, access());
    }
    assert_eq!(world.sent.len(), 512);
    assert_eq!(world.sent[300].1.socket, 1);
    assert_eq!(world.client.queued(), (10, 0));
    world.ask(522, access());
    assert_eq!(world.outcomes, [(522, Outcome::Full)]);
    assert_eq!(world.client.queued(), (10, 1));
    let first = world.sent[0].1.clone();
    let answer = reply(&first, code::ACCESS_REJECT, &[]);
    world.receive(&first, &answer).unwrap();
    assert_eq!(world.sent.len(), 513);
    assert_eq!(world.client.queued().0, 9);
    world.lively = vec![0];
    let sent: Vec<_> = world.sent[1..].iter().map(|it| it.1.clone()).collect();
    for transmit in sent {
        let answer = reply(&transmit, code::ACCESS_REJECT, &[]);
        world.receive(&transmit, &answer).unwrap();
    }
    let mut tags: Vec<_> = world.outcomes.iter().map(|it| it.0).collect();
    tags.sort_unstable();
    assert_eq!(tags, (0..=522).collect::<Vec<_>>(), "each of them once");
    assert_eq!(world.client.poll_timeout(), None);
}

#[test]
fn what_no_packet_can_hold_is_refused_and_harms_nobody() {
    let mut world = World::new(settings(1));
    let mut draft = access();
    draft.password = Some(vec![0; 129].into());
    world.ask(1, draft);
    assert_eq!(world.outcomes, [(1, Outcome::TooLong)]);
    let verdict = crate::radius::verdict(&world.outcomes[0].1).0;
    assert_eq!(verdict, Verdict::Reject(RejectCause::WrongPassword));
    assert_eq!(world.stats(0).pending, 0);
    world.lively = vec![0];
    world.ask(2, access());
    assert_eq!(world.outcomes.len(), 2);
}

#[test]
fn a_challenge_is_a_reject_and_unusable_terms_are_named() {
    let answer = |code, attributes: &[u8]| Outcome::Answer {
        server: 0,
        code,
        attributes: attributes.to_vec(),
    };
    let (challenge, _) = crate::radius::verdict(&answer(code::ACCESS_CHALLENGE, &[]));
    assert_eq!(challenge, Verdict::Reject(RejectCause::ServerRejected));
    let bad = answer(code::ACCESS_ACCEPT, &[attribute::SESSION_TIMEOUT, 3, 0]);
    let (verdict, unusable) = crate::radius::verdict(&bad);
    assert_eq!(verdict, Verdict::Reject(RejectCause::TermsUnusable));
    assert_eq!(unusable.unwrap().0, "Session-Timeout");
}

#[test]
fn a_request_that_is_shown_shows_no_password() {
    let draft = Draft {
        kind: Kind::Access,
        password: Some(b"hunter2".to_vec().into()),
        attributes: b"hunter2".to_vec(),
        event_unix_s: None,
    };
    let shown = format!("{draft:?} {draft:#?}");
    let bytes = format!("{:?}", b"hunter2");
    assert!(!shown.contains("hunter2") && !shown.contains(&bytes[1..bytes.len() - 1]));
}
