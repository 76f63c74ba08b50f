//! The emulator against the real access concentrator, in virtual time, over a wire that loses, repeats and reorders.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bng_pppoe::codec::chap;
use bng_pppoe::codec::frame::{self, Body, LinkHeader};
use bng_pppoe::{
    AccessConcentrator, AuthProtocol, AuthVerdict, Config, Event, Grant, Ipv6Grant, PortConfig,
    PortId, Proof, RejectCause, SessionRef, TerminateCause, Time,
};
use bng_wire::ipv6::next_header;
use bng_wire::pppoe::protocol;
use bng_wire::{MacAddr, VlanStack};

use super::Auth;
use super::emulator::{Emulator, Plan, Stage, TrafficPlan};
use super::subscriber::{ClientSettings, EndCause, Phase};
use super::traffic::{Header, datagram, turn};
use super::vlan;
use crate::probe::{Family, Probe, StreamId, StreamReport};
use crate::sequence::SequenceTracker;

/// Time between two CHAP challenges on a live session.
const CHAP_INTERVAL: Duration = Duration::from_secs(20);
const AC_MAC: MacAddr = MacAddr([0x02, 0, 0, 0, 0, 1]);
const REFLECTOR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 10)), 7_000);
const REFLECTOR6: SocketAddr = SocketAddr::new(
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x80)),
    7_000,
);
const DNS: [Option<Ipv4Addr>; 2] = [
    Some(Ipv4Addr::new(9, 9, 9, 9)),
    Some(Ipv4Addr::new(9, 9, 9, 10)),
];

/// What the wire does to one frame in so many.
#[derive(Clone, Copy, Default)]
struct Weather {
    lose: u64,
    repeat: u64,
    delay: u64,
    /// Whether data is treated like control frames.
    data_too: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Towards {
    Concentrator,
    Subscribers,
}

type InFlight = Reverse<(Duration, u64, Towards, Vec<u8>)>;

struct World {
    now: Duration,
    run: Emulator,
    engine: AccessConcentrator,
    wire: BinaryHeap<InFlight>,
    order: u64,
    random: u64,
    weather: Weather,
    seen: BTreeMap<StreamId, SequenceTracker>,
    /// Whether subscribers are granted IPv6.
    ipv6: bool,
    sessions: Vec<SessionRef>,
    /// Frames of data the wire lost on the way up and down.
    lost_data: [u64; 2],
    user_names: Vec<Vec<u8>>,
}

fn plan(sessions: u32) -> Plan {
    Plan {
        sessions,
        first: 0,
        rate: 200.0,
        hold: Duration::ZERO,
        traffic: None,
        leave_up: false,
        churn: None,
        padi_flood: None,
        ledger: false,
    }
}

fn traffic() -> TrafficPlan {
    TrafficPlan {
        to: [Some(REFLECTOR), None],
        spoof: [None; 2],
        header: Header::default(),
        per_second: 500.0,
        payload_bytes: 120,
        duration: Duration::from_secs(4),
        drain: Duration::from_secs(1),
    }
}

impl World {
    fn new(plan: Plan, seed: u64, weather: Weather) -> Self {
        Self::with(plan, ClientSettings::default(), seed, weather)
    }

    fn with(plan: Plan, settings: ClientSettings, seed: u64, weather: Weather) -> Self {
        let config = Config {
            ports: vec![PortConfig {
                id: PortId(0),
                mac: AC_MAC,
                mtu: 1_508,
            }],
            session_id_quarantine: Duration::ZERO,
            // A subscriber that does CHAP alone naks the first one.
            auth_protocols: vec![AuthProtocol::Pap, AuthProtocol::ChapMd5],
            chap_interval: Some(CHAP_INTERVAL),
            ..Config::default()
        };
        let ipv6 = settings.ipv6;
        let run = Emulator::new(plan, settings, seed, |index| {
            (format!("sub{index}").into_bytes(), b"secret".to_vec())
        });
        Self {
            now: Duration::ZERO,
            run: run.unwrap(),
            engine: AccessConcentrator::new(config, Time::ZERO, [seed as u8; 32]).unwrap(),
            wire: BinaryHeap::new(),
            order: 0,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            weather,
            seen: BTreeMap::new(),
            ipv6,
            sessions: Vec::new(),
            lost_data: [0; 2],
            user_names: Vec::new(),
        }
    }

    fn one_in(&mut self, rate: u64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        rate != 0 && (self.random >> 20).is_multiple_of(rate)
    }

    fn fly(&mut self, towards: Towards, bytes: Vec<u8>) {
        let data = is_data(&bytes);
        let Weather {
            lose,
            repeat,
            delay,
            ..
        } = if data && !self.weather.data_too {
            Weather::default()
        } else {
            self.weather
        };
        if self.one_in(lose) {
            if data {
                self.lost_data[usize::from(towards == Towards::Subscribers)] += 1;
            }
            return;
        }
        let copies = 1 + u32::from(self.one_in(repeat));
        for _ in 0..copies {
            let late = if self.one_in(delay) { 7 } else { 0 };
            let at = self.now + Duration::from_millis(1 + late);
            self.order += 1;
            self.wire
                .push(Reverse((at, self.order, towards, bytes.clone())));
        }
    }

    fn engine_time(&self) -> Time {
        Time::from_millis(u64::try_from(self.now.as_millis()).unwrap())
    }

    /// Events and frames of both sides.
    fn exchange(&mut self) {
        let time = self.engine_time();
        loop {
            if let Some(event) = self.engine.poll_event() {
                match event {
                    Event::AuthRequest(request) => {
                        let verdict = if is_right(&request.proof) {
                            // A subscriber that authenticates again gets the address it had.
                            let user = String::from_utf8(request.user_name.clone()).unwrap();
                            let number: u32 = user.trim_start_matches("sub").parse().unwrap();
                            AuthVerdict::Accept {
                                grant: Grant {
                                    framed_ip: Ipv4Addr::from_bits(0x6440_0001 + number),
                                    gateway_ip: Ipv4Addr::new(100, 64, 255, 254),
                                    dns: DNS,
                                    ipv6: self.ipv6.then(|| Ipv6Grant {
                                        prefix: prefix_of(number),
                                        delegated: None,
                                        dns: [None; 2],
                                    }),
                                    session_timeout: None,
                                    idle_timeout: None,
                                    accounting_id: 0,
                                },
                                message: Vec::new(),
                            }
                        } else {
                            AuthVerdict::Reject {
                                cause: RejectCause::WrongCredentials,
                                message: b"no".to_vec(),
                            }
                        };
                        self.user_names.push(request.user_name);
                        self.engine
                            .handle_auth(time, request.session, request.attempt, verdict)
                            .unwrap();
                    }
                    Event::SessionUp(record) => self.sessions.push(record.session),
                    Event::SessionDown { session, .. } => {
                        assert!(self.engine.release(time, session));
                    }
                    Event::SessionStarted { .. }
                    | Event::NetworkChanged(_)
                    | Event::NetworkDown { .. } => {}
                }
            } else if let Some(transmit) = self.engine.poll_transmit() {
                self.fly(Towards::Subscribers, transmit.frame);
            } else {
                break;
            }
        }
        let frames: Vec<Vec<u8>> = self.run.take_frames().collect();
        for frame in frames {
            self.fly(Towards::Concentrator, frame);
        }
    }

    /// The gateway and the reflector in one: answers a subscriber's datagram through its session.
    fn reflect(&mut self, bytes: &[u8]) {
        let frame = frame::parse(bytes).unwrap();
        let Body::Session {
            session_id,
            protocol,
            payload,
        } = frame.body
        else {
            panic!("not data")
        };
        let (family, source) = match protocol {
            protocol::IPV4 => {
                let source = Ipv4Addr::from(<[u8; 4]>::try_from(&payload[12..16]).unwrap());
                (Family::V4, IpAddr::V4(source))
            }
            _ => {
                let source = Ipv6Addr::from(<[u8; 16]>::try_from(&payload[8..24]).unwrap());
                (Family::V6, IpAddr::V6(source))
            }
        };
        let mut packet = payload.to_vec();
        match Probe::parse(&packet[family.headers()..]).unwrap() {
            Probe::Data { id, sequence, .. } => {
                assert_eq!(id.family, family);
                self.seen.entry(id).or_default().observe(sequence);
            }
            Probe::Query(id) => {
                let counts = self.seen.entry(id).or_default().counts();
                let report = StreamReport {
                    counts,
                    ..StreamReport::default()
                };
                let answer = Probe::Report(id, report).write(0);
                let to = [REFLECTOR, REFLECTOR6][family.index()];
                packet = datagram(source, to, Header::default(), 1, &answer).unwrap();
            }
            Probe::Report(..) => panic!("a subscriber does not report"),
        }
        let link = LinkHeader {
            dst: frame.src,
            src: AC_MAC,
            // A priority tag is no VLAN, and is not sent back.
            vlans: if frame.vlans.s_vlan() == 0 {
                VlanStack::UNTAGGED
            } else {
                frame.vlans
            },
        };
        let answer = frame::session(&link, session_id, protocol, &turn(packet)).unwrap();
        self.fly(Towards::Subscribers, answer);
    }

    /// Runs until `done`, or fails at the given end of virtual time.
    fn run_until(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) {
        loop {
            self.engine.handle_timeout(self.engine_time());
            self.run.poll(self.now);
            self.exchange();
            if done(self) {
                return;
            }
            let engine = self
                .engine
                .poll_timeout()
                .map(|time| Duration::from_millis(time.as_millis()));
            let wire = self.wire.peek().map(|Reverse((at, ..))| *at);
            let next = [engine, wire, self.run.next_wake()]
                .into_iter()
                .flatten()
                .min()
                .expect("nothing is left to happen");
            assert!(next < limit, "not done at {next:?}: {:?}", self.run.stage());
            self.now = self.now.max(next);
            while self
                .wire
                .peek()
                .is_some_and(|Reverse((at, ..))| *at <= self.now)
            {
                let Some(Reverse((_, _, towards, bytes))) = self.wire.pop() else {
                    break;
                };
                match towards {
                    Towards::Subscribers => self.run.handle_frame(&bytes, self.now),
                    Towards::Concentrator if is_data(&bytes) => self.reflect(&bytes),
                    Towards::Concentrator => {
                        let time = self.engine_time();
                        self.engine.handle_frame(time, PortId(0), &bytes);
                    }
                }
                self.exchange();
            }
        }
    }

    fn finish(&mut self) {
        self.run_until(Duration::from_secs(600), |world| {
            world.run.stage() == Stage::Done
        });
    }

    /// The subscribers are gone: what the engine still has of them ends by its own timers.
    fn settle(&mut self) {
        self.weather.lose = 1;
        let limit = self.engine_time() + Duration::from_secs(600);
        while let Some(next) = self.engine.poll_timeout().filter(|next| *next < limit) {
            self.now = Duration::from_millis(next.as_millis()).max(self.now);
            self.engine.handle_timeout(next);
            self.exchange();
        }
    }
}

/// Whether the subscriber knows the password.
fn is_right(proof: &Proof) -> bool {
    match proof {
        Proof::Pap(password) => password.as_bytes() == b"secret",
        Proof::ChapMd5 {
            identifier,
            challenge,
            response,
        } => *response == chap::md5_response(*identifier, b"secret", challenge),
    }
}

/// The /64 of a subscriber.
fn prefix_of(number: u32) -> Ipv6Addr {
    Ipv6Addr::from_bits(0x2001_0db8_0005 << 80 | u128::from(number) << 64)
}

/// What a gateway forwards, as opposed to what it takes itself.
fn is_data(bytes: &[u8]) -> bool {
    match frame::parse(bytes).map(|frame| frame.body) {
        Ok(Body::Session {
            protocol: protocol::IPV4,
            ..
        }) => true,
        Ok(Body::Session {
            protocol: protocol::IPV6,
            payload,
            ..
        }) => payload[6] != next_header::ICMPV6,
        _ => false,
    }
}

#[test]
fn subscribers_come_up_with_address_and_dns_and_hang_up_cleanly() {
    let mut world = World::new(plan(50), 1, Weather::default());
    world.run_until(Duration::from_secs(10), |world| world.run.up() == 50);
    let mut addresses: Vec<_> = world.run.clients().iter().map(|c| c.address()).collect();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), 50);
    assert!(world.run.clients().iter().all(|client| client.dns() == DNS));
    world.user_names.sort_unstable();
    world.user_names.dedup();
    assert_eq!(world.user_names.len(), 50);
    world.finish();
    assert_eq!(world.run.sums.came_up, 50);
    assert_eq!(world.run.sums.clients.retransmissions, 0);
    assert!(world.run.sums.failures.is_empty() && world.run.sums.ended.is_empty());
    assert!(world.run.sums.setup.max() < 20_000_000);
}

#[test]
fn all_come_up_over_a_bad_wire_whatever_the_seed() {
    for seed in 1..=20 {
        let weather = Weather {
            lose: 8,
            repeat: 6,
            delay: 4,
            data_too: false,
        };
        let mut world = World::new(plan(30), seed, weather);
        world.finish();
        let sums = &world.run.sums;
        assert_eq!(sums.came_up, 30, "seed {seed}: {:?}", sums.failures);
        assert!(sums.clients.retransmissions > 0);
    }
}

#[test]
fn without_losses_every_datagram_comes_back_and_is_counted_at_both_ends() {
    let mut plan = plan(20);
    plan.traffic = Some(traffic());
    let mut world = World::new(plan, 3, Weather::default());
    world.finish();
    let account = &world.run.account;
    assert!((1_990..=2_001).contains(&account.sent), "{}", account.sent);
    assert_eq!(account.received, account.sent);
    assert_eq!(account.round_trip.max() / 1_000_000, 2);
    for stream in world.run.streams.iter().filter(|stream| stream.sent > 0) {
        let seen = stream.report.unwrap().counts;
        assert_eq!(seen.unique, stream.sent);
        assert_eq!(stream.returned.counts().unique, stream.sent);
        assert_eq!(stream.returned.counts().reordered, 0);
    }
}

#[test]
fn losses_are_found_in_the_direction_where_they_happened() {
    let mut plan = plan(20);
    plan.traffic = Some(traffic());
    let weather = Weather {
        lose: 10,
        repeat: 0,
        delay: 0,
        data_too: true,
    };
    let mut world = World::new(plan, 4, weather);
    world.run_until(Duration::from_secs(600), |world| {
        matches!(world.run.stage(), Stage::Query(0, _))
    });
    let [lost_up, lost_down] = world.lost_data;
    assert!(lost_up > 100 && lost_down > 100);
    world.run_until(Duration::from_secs(600), |world| {
        world.run.stage() == Stage::HangUp
    });
    let (mut up, mut down) = (0, 0);
    for stream in world.run.streams.iter().filter(|stream| stream.sent > 0) {
        let seen = stream
            .report
            .expect("asked until it answered")
            .counts
            .unique;
        up += stream.sent - seen;
        down += seen - stream.returned.counts().unique;
    }
    assert_eq!((up, down), (lost_up, lost_down));
}

#[test]
fn a_wrong_password_is_a_failure_with_that_cause() {
    let mut world = World::new(plan(3), 5, Weather::default());
    let config = world.run.plan.clone();
    world.run = Emulator::new(config, ClientSettings::default(), 5, |_| {
        (b"sub0".to_vec(), b"wrong".to_vec())
    })
    .unwrap();
    world.finish();
    assert_eq!(world.run.sums.came_up, 0);
    assert_eq!(
        world.run.sums.failures,
        BTreeMap::from([(EndCause::PapRefused, 3)])
    );
}

#[test]
fn whatever_the_wire_loses_a_session_comes_up_or_fails_with_a_cause_and_nothing_is_left_of_it() {
    let mut failed = 0;
    for auth in [Auth::Pap, Auth::Chap] {
        // One frame in so many: from none to a half of them.
        for lose in [0, 20, 10, 5, 3, 2] {
            for seed in 1..=4 {
                let case = format!("{auth:?}, one in {lose} lost, seed {seed}");
                let weather = Weather {
                    lose,
                    repeat: 5,
                    delay: 4,
                    data_too: false,
                };
                let settings = ClientSettings {
                    auth,
                    ..ClientSettings::default()
                };
                let mut world = World::with(plan(20), settings, seed, weather);
                world.finish();
                let sums = &world.run.sums;
                let failures: u64 = sums.failures.values().sum();
                assert_eq!(u64::from(sums.came_up) + failures, 20, "{case}");
                // Ten requests may go by without an answer where a third of all frames is lost.
                let may_fail = matches!(lose, 2 | 3);
                assert!(failures == 0 || may_fail, "{case}: {:?}", sums.failures);
                failed += failures;

                world.settle();
                assert_eq!(world.engine.sessions().count(), 0, "{case}");
                assert_eq!(world.engine.awaiting_release(), 0, "{case}");
            }
        }
    }
    // Of the 320 on the two worst wires.
    assert!(failed < 160, "{failed}");
}

#[test]
fn with_chap_all_come_up_over_a_bad_wire_and_answer_challenges_on_live_sessions() {
    for seed in 1..=5 {
        let weather = Weather {
            lose: 8,
            repeat: 10,
            delay: 10,
            data_too: false,
        };
        let settings = ClientSettings {
            auth: Auth::Chap,
            ..ClientSettings::default()
        };
        let mut plan = plan(40);
        plan.hold = CHAP_INTERVAL * 2;
        let mut world = World::with(plan, settings, seed, weather);
        world.finish();
        let sums = &world.run.sums;
        assert_eq!(sums.came_up, 40, "seed {seed}: {:?}", sums.failures);
        assert!(sums.ended.is_empty(), "seed {seed}: {:?}", sums.ended);
        let challenges = sums.clients.challenges_answered;
        assert!(challenges >= 80, "seed {seed}: {challenges}");
    }
}

#[test]
fn a_wrong_chap_secret_is_a_failure_with_that_cause() {
    let settings = ClientSettings {
        auth: Auth::Chap,
        ..ClientSettings::default()
    };
    let mut world = World::with(plan(3), settings.clone(), 1, Weather::default());
    world.run = Emulator::new(plan(3), settings, 1, |_| {
        (b"sub1".to_vec(), b"wrong".to_vec())
    })
    .unwrap();
    world.finish();
    assert_eq!(world.run.sums.came_up, 0);
    assert_eq!(world.run.sums.failures[&EndCause::ChapRefused], 3);
}

#[test]
fn churn_ends_and_begins_sessions_in_turn_while_traffic_runs_and_keeps_account_of_each() {
    let mut plan = plan(20);
    plan.churn = Some(10.0);
    plan.hold = Duration::from_secs(6);
    plan.traffic = Some(traffic());
    plan.ledger = true;
    let mut world = World::new(plan, 3, Weather::default());
    world.finish();
    let churn = world.run.churn.as_ref().unwrap();
    assert_eq!(
        (churn.hung_up, churn.redialled, churn.came_up),
        (60, 60, 60)
    );
    assert_eq!(churn.setup.len(), 60);
    let sums = &world.run.sums;
    assert_eq!(sums.came_up, 20);
    assert!(sums.failures.is_empty() && sums.ended.is_empty());
    assert_eq!(world.sessions.len(), 80);
    // Each of the 20 was ended three times, and once more at the end.
    let finished = world.run.finished();
    assert_eq!(finished.len(), 80);
    for subscriber in 0..20 {
        let own = finished.iter().filter(|it| it.subscriber == subscriber);
        assert_eq!(own.count(), 4);
    }
    let account = &world.run.account;
    let sent: u64 = finished.iter().map(|it| it.octets.up_packets).sum();
    let bytes: u64 = finished.iter().map(|it| it.octets.up_bytes).sum();
    // What asks the reflector for its counts goes through the sessions as well.
    assert!(sent > account.sent && bytes > account.sent_bytes);
    assert!(account.sent > 2_000 && account.received > account.sent * 9 / 10);
    assert_eq!(account.misdelivered + account.corrupt, 0);
}

#[test]
fn a_session_that_never_comes_back_ends_the_churn_all_the_same() {
    let mut plan = plan(4);
    plan.churn = Some(4.0);
    plan.hold = Duration::from_secs(2);
    let mut world = World::new(plan, 3, Weather::default());
    world.run_until(Duration::from_secs(100), |world| {
        matches!(world.run.stage(), Stage::Churn(_))
    });
    world.weather.lose = 1;
    world.finish();
    let churn = world.run.churn.as_ref().unwrap();
    assert!(churn.hung_up > 0 && churn.redialled >= churn.hung_up);
    assert_eq!(churn.came_up, 0);
    assert!(world.run.sums.failures[&EndCause::NoPado] > 0);
}

#[test]
fn a_flood_of_padi_beside_them_costs_subscribers_nothing() {
    let mut plan = plan(50);
    plan.padi_flood = Some(2_000.0);
    plan.hold = Duration::from_secs(1);
    let mut world = World::new(plan, 1, Weather::default());
    world.finish();
    assert_eq!(world.run.sums.came_up, 50);
    let flood = world.run.flood.as_ref().unwrap();
    assert!(flood.sent > 2_000, "{}", flood.sent);
    assert!(flood.offers > 0 && flood.offers <= flood.sent);
}

#[test]
fn sessions_the_operator_ends_are_counted_as_ended_by_the_peer() {
    let mut plan = plan(4);
    plan.hold = Duration::from_secs(5);
    let mut world = World::new(plan, 6, Weather::default());
    world.run_until(Duration::from_secs(10), |world| world.run.up() == 4);
    let victim = world.sessions[0];
    let time = world.engine_time();
    assert!(
        world
            .engine
            .terminate(time, victim, TerminateCause::Operator)
    );
    world.run_until(Duration::from_secs(10), |world| world.run.up() == 3);
    world.finish();
    assert_eq!(world.run.sums.came_up, 4);
    assert_eq!(
        world.run.sums.ended,
        BTreeMap::from([(EndCause::PeerTerminated, 1)])
    );
}

#[test]
fn echo_requests_are_answered_for_as_long_as_sessions_are_held() {
    let mut plan = plan(5);
    plan.hold = Duration::from_secs(200);
    let mut world = World::new(plan, 7, Weather::default());
    world.finish();
    assert!(world.run.sums.clients.echo_answered >= 5 * 5);
    assert!(world.run.sums.ended.is_empty());
}

#[test]
fn without_an_access_concentrator_every_session_fails_and_the_run_ends() {
    let weather = Weather {
        lose: 1,
        ..Weather::default()
    };
    let mut world = World::new(plan(3), 8, weather);
    world.finish();
    assert_eq!(world.run.sums.came_up, 0);
    assert_eq!(
        world.run.sums.failures.values().sum::<u64>(),
        3,
        "{:?}",
        world.run.sums.failures
    );
    assert!(
        world
            .run
            .clients()
            .iter()
            .all(|client| matches!(client.phase(), Phase::Ended(_)))
    );
}

#[test]
fn an_interrupted_run_hangs_up() {
    let mut plan = plan(10);
    plan.hold = Duration::from_secs(1_000);
    let mut world = World::new(plan, 9, Weather::default());
    world.run_until(Duration::from_secs(10), |world| world.run.up() == 10);
    let now = world.now;
    world.run.interrupt(now);
    world.run_until(Duration::from_secs(20), |world| {
        world.run.stage() == Stage::Done
    });
    assert_eq!(world.run.up(), 0);
}

fn dual_stack() -> ClientSettings {
    ClientSettings {
        ipv6: true,
        ..ClientSettings::default()
    }
}

#[test]
fn with_ipv6_a_session_is_up_when_it_has_both_addresses_and_sends_from_both() {
    let mut plan = plan(20);
    plan.traffic = Some(TrafficPlan {
        to: [Some(REFLECTOR), Some(REFLECTOR6)],
        ..traffic()
    });
    let mut world = World::with(plan, dual_stack(), 10, Weather::default());
    world.run_until(Duration::from_secs(10), |world| world.run.up() == 20);
    for (client, number) in world.run.clients().iter().zip(0..) {
        let expected = Ipv6Addr::from_bits(prefix_of(number).to_bits() | 1);
        assert_eq!(client.address6(), Some(expected));
    }
    world.finish();
    assert_eq!(world.run.account.received, world.run.account.sent);
    for stream in &world.run.streams {
        assert!(stream.sent > 0, "both families take turns");
        assert_eq!(stream.returned.counts().unique, stream.sent);
        assert_eq!(stream.report.unwrap().counts.unique, stream.sent);
    }
    assert!(world.run.sums.failures.is_empty() && world.run.sums.ended.is_empty());
}

#[test]
fn with_ipv6_all_come_up_over_a_bad_wire_whatever_the_seed() {
    for seed in 1..=20 {
        let weather = Weather {
            lose: 8,
            repeat: 6,
            delay: 4,
            data_too: false,
        };
        let mut world = World::with(plan(30), dual_stack(), seed, weather);
        world.finish();
        let sums = &world.run.sums;
        assert_eq!(sums.came_up, 30, "seed {seed}: {:?}", sums.failures);
    }
}

#[test]
fn a_gateway_without_ipv6_for_the_subscriber_is_a_failure_with_that_cause() {
    let mut world = World::with(plan(3), dual_stack(), 11, Weather::default());
    world.ipv6 = false;
    world.finish();
    assert_eq!(
        world.run.sums.failures,
        BTreeMap::from([(EndCause::Ipv6cpRefused, 3)])
    );
}

#[test]
fn sessions_come_up_in_vlans_and_with_priority_tags() {
    for (vlan, priority) in [(Some("7"), None), (Some("100.7"), None), (None, Some(5))] {
        let vlan = vlan.map(|text| text.parse().unwrap());
        let settings = ClientSettings {
            vlans: vlan::tags(vlan, None, priority),
            ..ClientSettings::default()
        };
        let mut plan = plan(5);
        plan.traffic = Some(traffic());
        let mut world = World::with(plan, settings, 12, Weather::default());
        world.finish();
        let run = &world.run;
        assert_eq!(run.sums.came_up, 5, "{vlan:?}: {:?}", run.sums.failures);
        assert_eq!(run.sums.wrong_vlan, 0);
        assert_eq!(run.account.received, run.account.sent, "{vlan:?}");
    }
}

#[test]
fn a_frame_of_another_vlan_is_not_ours() {
    let mut world = World::new(plan(1), 13, Weather::default());
    world.run_until(Duration::from_secs(10), |world| world.run.up() == 1);
    let link = LinkHeader {
        dst: MacAddr([2, 0x62, 0x6e, 0, 0, 0]),
        src: AC_MAC,
        vlans: vlan::tags(Some("7".parse().unwrap()), None, None),
    };
    let frame = frame::session(&link, 1, protocol::IPV4, &[0x45; 20]).unwrap();
    world.run.handle_frame(&frame, world.now);
    assert_eq!(world.run.sums.wrong_vlan, 1);
}

#[test]
fn a_larger_mru_is_granted_with_ppp_max_payload() {
    let settings = ClientSettings {
        mru: 1_500,
        ..ClientSettings::default()
    };
    let mut world = World::with(plan(2), settings, 14, Weather::default());
    world.run_until(Duration::from_secs(10), |world| world.run.up() == 2);
    assert_eq!(world.run.smallest_peer_mru(), Some(1_500));
}
