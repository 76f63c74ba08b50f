//! A whole run without sockets and clock: frames and time in, frames out.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bng_pppoe::codec::frame;
use bng_wire::pppoe::protocol;
use bng_wire::{MacAddr, VlanStack};
use hdrhistogram::Histogram;

use super::churn::{Churn, Finished};
use super::client::{Client, Context};
use super::flood::Flood;
use super::subscriber::{ClientCounters, ClientSettings, EndCause, Identity, Phase};
use super::timers::Timers;
use super::traffic::{Account, Header, Stream, datagram};
use crate::pacing::Pacer;
use crate::probe::{Family, Probe, StreamId};

/// The first three bytes of a subscriber's MAC address: locally administered, unicast.
const MAC_PREFIX: [u8; 3] = [0x02, 0x62, 0x6e];
/// Subscribers a run can have: the rest of the MAC address.
pub(crate) const MAX_INDEX: u32 = 0x00ff_ffff;
/// Reports asked for per second, and sessions ended per second where no rate is given.
const BACKGROUND_RATE: f64 = 2_000.0;
/// Rounds of asking the reflector, and the time between two.
const QUERY_ROUNDS: u32 = 8;
const QUERY_PERIOD: Duration = Duration::from_millis(250);
/// Events of one kind between two looks at what arrived.
const BATCH: usize = 32;

/// Traffic of all subscribers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrafficPlan {
    /// The reflector of each family, by [`Family::index`].
    pub(crate) to: [Option<SocketAddr>; 2],
    /// Source address in place of the subscriber's own, by [`Family::index`].
    pub(crate) spoof: [Option<IpAddr>; 2],
    /// What varies in the IP header.
    pub(crate) header: Header,
    /// Datagrams per second, all subscribers together.
    pub(crate) per_second: f64,
    /// UDP payload, bytes.
    pub(crate) payload_bytes: usize,
    /// How long.
    pub(crate) duration: Duration,
    /// How long to wait for the last ones to come back.
    pub(crate) drain: Duration,
}

/// A run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Subscribers.
    pub(crate) sessions: u32,
    /// Index of the first one.
    pub(crate) first: u32,
    /// Sessions started per second.
    pub(crate) rate: f64,
    /// How long sessions stay up at least, from the end of the setup.
    pub(crate) hold: Duration,
    /// Traffic, if any.
    pub(crate) traffic: Option<TrafficPlan>,
    /// Leave the sessions up.
    pub(crate) leave_up: bool,
    /// Sessions ended and begun again per second while the sessions are held, with the traffic going on.
    pub(crate) churn: Option<f64>,
    /// PADI per second from random addresses, until the sessions are ended.
    pub(crate) padi_flood: Option<f64>,
    /// Remember what each session carried.
    pub(crate) ledger: bool,
}

/// Where the run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Sessions are started.
    Setup,
    /// Traffic runs until then.
    Traffic(Duration),
    /// Sessions end and begin again until then, and traffic runs.
    Churn(Duration),
    /// The last datagrams come back, until then at the latest.
    Drain(Duration),
    /// The reflector is asked; this round, which ends then.
    Query(u32, Duration),
    /// Sessions are kept up until then.
    Hold(Duration),
    /// Sessions are ended.
    HangUp,
    /// Nothing is left to do.
    Done,
}

/// The subscribers and their traffic.
#[derive(Debug)]
pub(crate) struct Emulator {
    pub(super) plan: Plan,
    settings: ClientSettings,
    run: u64,
    clients: Vec<Client>,
    /// Those of subscriber `n` are at `2 n` (IPv4) and `2 n + 1` (IPv6).
    pub(super) streams: Vec<Stream>,
    timers: Timers,
    out: Vec<Vec<u8>>,
    stage: Stage,
    pacer: Pacer,
    /// Next subscriber to start or to end, next stream to send or to ask about.
    cursor: u32,
    /// Subscribers up now.
    up: u32,
    /// Subscribers not ended.
    open: u32,
    hold_until: Duration,
    traffic_started: Option<Duration>,
    /// Spaces the traffic while sessions churn.
    traffic_pacer: Pacer,
    pub(super) churn: Option<Churn>,
    pub(super) flood: Option<Flood>,
    /// Sessions that are over.
    finished: Vec<Finished>,
    pub(crate) sums: Sums,
    pub(super) account: Account,
}

/// Counts of the run.
#[derive(Clone, Debug)]
pub(crate) struct Sums {
    /// What the clients did.
    pub(crate) clients: ClientCounters,
    /// Sessions that came up at least once.
    pub(crate) came_up: u32,
    /// Causes of sessions that never came up.
    pub(crate) failures: BTreeMap<EndCause, u64>,
    /// Causes of sessions that had been up and that the peer ended, or that failed to renegotiate.
    pub(crate) ended: BTreeMap<EndCause, u64>,
    /// Setup times, nanoseconds.
    pub(crate) setup: Histogram<u64>,
    /// From the start of the run to the last session up.
    pub(crate) last_up: Duration,
    /// Frames to us that no parser accepted.
    pub(crate) malformed: u64,
    /// Frames to us with other VLAN ids than ours.
    pub(crate) wrong_vlan: u64,
    /// Time the traffic really took.
    pub(crate) traffic_time: Duration,
}

/// MAC address of the subscriber with this index.
fn mac_of(index: u32) -> MacAddr {
    let [_, a, b, c] = index.to_be_bytes();
    let [x, y, z] = MAC_PREFIX;
    MacAddr([x, y, z, a, b, c])
}

/// Where the stream of a subscriber is.
const fn stream_index(at: u32, family: Family) -> usize {
    at as usize * Family::BOTH.len() + family.index()
}

/// Whose stream it is.
const fn subscriber_of(stream: u32) -> (u32, Family) {
    let family = if stream.is_multiple_of(2) {
        Family::V4
    } else {
        Family::V6
    };
    (stream / 2, family)
}

impl Emulator {
    /// A run that starts at time zero. `user` gives the credentials of a subscriber by index. `run` is a random number.
    ///
    /// `None` when the histograms cannot be made.
    pub(crate) fn new(
        plan: Plan,
        settings: ClientSettings,
        run: u64,
        user: impl Fn(u32) -> (Vec<u8>, Vec<u8>),
    ) -> Option<Self> {
        let clients = (0..plan.sessions)
            .map(|at| {
                let index = plan.first + at;
                let (user, password) = user(index);
                let [_, _, _, _, a, b, c, d] = run.to_be_bytes();
                let [e, f, g, h] = index.to_be_bytes();
                let identity = Identity {
                    mac: mac_of(index),
                    user,
                    password,
                    host_uniq: [a, b, c, d, e, f, g, h],
                    magic: (run as u32).wrapping_add(index.wrapping_mul(0x9e37_79b1)) | 1,
                };
                Client::new(identity, &settings)
            })
            .collect();
        let streams = if plan.traffic.is_some() {
            vec![Stream::default(); plan.sessions as usize * Family::BOTH.len()]
        } else {
            Vec::new()
        };
        Some(Self {
            pacer: Pacer::new(Duration::ZERO, plan.rate),
            open: plan.sessions,
            settings,
            run,
            clients,
            streams,
            timers: Timers::default(),
            out: Vec::new(),
            stage: Stage::Setup,
            cursor: 0,
            up: 0,
            hold_until: Duration::ZERO,
            traffic_started: None,
            traffic_pacer: Pacer::new(Duration::ZERO, 0.0),
            churn: match plan.churn {
                Some(rate) => Some(Churn::new(rate)?),
                None => None,
            },
            flood: plan.padi_flood.map(|rate| Flood::new(rate, run)),
            finished: Vec::new(),
            sums: Sums {
                clients: ClientCounters::default(),
                came_up: 0,
                failures: BTreeMap::new(),
                ended: BTreeMap::new(),
                setup: Histogram::new_with_max(600_000_000_000, 3).ok()?,
                last_up: Duration::ZERO,
                malformed: 0,
                wrong_vlan: 0,
                traffic_time: Duration::ZERO,
            },
            account: Account::new()?,
            plan,
        })
    }

    pub(crate) const fn stage(&self) -> Stage {
        self.stage
    }

    /// Subscribers up now.
    pub(crate) const fn up(&self) -> u32 {
        self.up
    }

    /// Frames to send, in order.
    pub(crate) fn take_frames(&mut self) -> std::vec::Drain<'_, Vec<u8>> {
        self.out.drain(..)
    }

    /// When [`Self::poll`] has something to do; `None` when only a frame can change anything.
    pub(crate) fn next_wake(&self) -> Option<Duration> {
        let own = match self.stage {
            Stage::Setup => (self.cursor < self.plan.sessions).then(|| self.pacer.next()),
            Stage::Traffic(end) => Some(self.pacer.next().min(end)),
            Stage::Churn(end) => self.next_churn(end),
            Stage::Query(_, end) if self.cursor < self.stream_count() => {
                Some(self.pacer.next().min(end))
            }
            Stage::Drain(end) | Stage::Query(_, end) | Stage::Hold(end) => Some(end),
            Stage::HangUp => (self.cursor < self.plan.sessions).then(|| self.pacer.next()),
            Stage::Done => None,
        };
        let flood = self.flood.as_ref().filter(|_| self.is_flooding());
        let flood = flood.map(Flood::next);
        [own, self.timers.next(), flood].into_iter().flatten().min()
    }

    /// Ends the run early: the sessions are ended as at the end of a run.
    pub(crate) fn interrupt(&mut self, now: Duration) {
        if !matches!(self.stage, Stage::HangUp | Stage::Done) {
            self.finish(now);
        }
    }

    /// Calls a client and books what became of it.
    fn with_client<R>(
        &mut self,
        at: u32,
        now: Duration,
        call: impl FnOnce(&mut Client, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let client = self.clients.get_mut(at as usize)?;
        let before = client.phase();
        let deadline_before = client.deadline();
        let came_up_before = client.setup_time().is_some();
        let mut cx = Context {
            now,
            out: &mut self.out,
            counters: &mut self.sums.clients,
            settings: &self.settings,
        };
        let result = call(client, &mut cx);
        if client.deadline() != deadline_before
            && let Some(deadline) = client.deadline()
        {
            self.timers.add(deadline, at);
        }
        let after = client.phase();
        match (before == Phase::Up, after == Phase::Up) {
            (false, true) => self.up += 1,
            (true, false) => self.up -= 1,
            _ => {}
        }
        if let Some(setup) = client.setup_time()
            && !came_up_before
        {
            let setup = u64::try_from(setup.as_nanos()).unwrap_or(u64::MAX);
            match &mut self.churn {
                Some(churn) if churn.redialled > 0 => {
                    churn.came_up += 1;
                    churn.setup.saturating_record(setup);
                }
                _ => {
                    self.sums.came_up += 1;
                    self.sums.last_up = now;
                    self.sums.setup.saturating_record(setup);
                }
            }
        }
        if let Phase::Ended(cause) = after
            && !matches!(before, Phase::Ended(_))
        {
            self.open -= 1;
            if self.plan.ledger && client.setup_time().is_some() {
                self.finished.push(Finished {
                    subscriber: self.plan.first + at,
                    session_id: client.session_id(),
                    octets: client.octets(),
                });
            }
            if let (Stage::Churn(end), Some(churn)) = (self.stage, &mut self.churn)
                && (now < end || cause == EndCause::HungUp)
            {
                churn.redial.push_back(at);
            }
            if client.setup_time().is_none() {
                *self.sums.failures.entry(cause).or_default() += 1;
            } else if cause != EndCause::HungUp {
                *self.sums.ended.entry(cause).or_default() += 1;
            }
        }
        Some(result)
    }

    /// A frame from the wire.
    pub(crate) fn handle_frame(&mut self, bytes: &[u8], now: Duration) {
        let Some(([x, y, z, a, b, c], _)) = bytes.split_first_chunk::<6>() else {
            return;
        };
        if [*x, *y, *z] != MAC_PREFIX {
            if let (Some(flood), Some(to)) = (&mut self.flood, bytes.first_chunk()) {
                flood.accept(to);
            }
            return;
        }
        let index = u32::from_be_bytes([0, *a, *b, *c]);
        let Some(at) = index
            .checked_sub(self.plan.first)
            .filter(|at| *at < self.plan.sessions)
        else {
            return;
        };
        let Ok(frame) = frame::parse(bytes) else {
            self.sums.malformed += 1;
            return;
        };
        let ids = |tags: &VlanStack| (tags.s_vlan(), tags.c_vlan());
        if ids(&frame.vlans) != ids(&self.settings.vlans) {
            self.sums.wrong_vlan += 1;
            return;
        }
        let Some(Some(packet)) = self.with_client(at, now, |client, cx| client.handle(&frame, cx))
        else {
            return;
        };
        let family = if packet.first().is_some_and(|byte| byte >> 4 == 6) {
            Family::V6
        } else {
            Family::V4
        };
        let id = self.stream_id(at, family);
        let address = self
            .clients
            .get(at as usize)
            .and_then(|client| client.address_of(family));
        if let Some(plan) = self.plan.traffic
            && let Some(to) = plan.to.get(family.index()).copied().flatten()
            && let Some(stream) = self.streams.get_mut(stream_index(at, family))
            && let Some(address) = address
        {
            self.account.accept(packet, id, address, to, now, stream);
        }
    }

    /// Does what is due.
    pub(crate) fn poll(&mut self, now: Duration) {
        while let Some((deadline, at)) = self.timers.take(now) {
            let current = self.clients.get(at as usize).and_then(Client::deadline);
            if current == Some(deadline) {
                self.with_client(at, now, Client::handle_timeout);
            }
        }
        if self.is_flooding()
            && let Some(flood) = &mut self.flood
        {
            flood.poll(now, &self.settings, &mut self.out);
        }
        match self.stage {
            Stage::Setup => {
                self.paced(self.plan.sessions, now, |run, at| {
                    run.with_client(at, now, Client::start);
                });
                if self.cursor == self.plan.sessions && self.settled() {
                    self.begin(now);
                }
            }
            Stage::Traffic(end) => {
                for _ in 0..BATCH {
                    if !self.pacer.take(now.min(end)) {
                        break;
                    }
                    self.send_next(now);
                }
                if now >= end {
                    self.end_traffic(now);
                    let drain = self.plan.traffic.map_or(Duration::ZERO, |plan| plan.drain);
                    self.stage = Stage::Drain(now + drain);
                }
            }
            Stage::Churn(end) => self.poll_churn(end, now),
            Stage::Drain(end) => {
                if now >= end || self.account.received >= self.account.sent {
                    self.start_round(0, now);
                }
            }
            Stage::Query(round, end) => {
                self.paced(self.stream_count(), now, Self::query);
                let all_known = self
                    .streams
                    .iter()
                    .all(|stream| stream.report.is_some() || stream.sent == 0);
                if all_known || (round + 1 >= QUERY_ROUNDS && now >= end) {
                    self.stage = Stage::Hold(self.hold_until.max(now));
                } else if now >= end && self.cursor == self.stream_count() {
                    self.start_round(round + 1, now);
                }
            }
            Stage::Hold(end) => {
                if now >= end || self.open == 0 {
                    self.finish(now);
                }
            }
            Stage::HangUp => {
                self.paced(self.plan.sessions, now, |run, at| {
                    run.with_client(at, now, |client, cx| {
                        client.hang_up(EndCause::HungUp, cx);
                    });
                });
                if self.open == 0 {
                    self.stage = Stage::Done;
                }
            }
            Stage::Done => {}
        }
    }

    /// Calls `act` for those of `count` that are due, in order.
    fn paced(&mut self, count: u32, now: Duration, mut act: impl FnMut(&mut Self, u32)) {
        for _ in 0..BATCH {
            if self.cursor == count || !self.pacer.take(now) {
                break;
            }
            let at = self.cursor;
            self.cursor += 1;
            act(self, at);
        }
    }

    /// Whether every subscriber is up or ended.
    fn settled(&self) -> bool {
        self.up == self.open
    }

    /// The setup is over.
    fn begin(&mut self, now: Duration) {
        self.hold_until = now + self.plan.hold;
        self.cursor = 0;
        let has_sessions = self.up > 0;
        if let (Some(rate), Some(churn), true) = (self.plan.churn, &mut self.churn, has_sessions) {
            churn.begin(rate, now);
            if let Some(plan) = self.plan.traffic {
                self.traffic_pacer = Pacer::new(now, plan.per_second);
                self.traffic_started = Some(now);
            }
            self.stage = Stage::Churn(self.hold_until);
            return;
        }
        match self.plan.traffic {
            Some(plan) if has_sessions => {
                self.pacer = Pacer::new(now, plan.per_second);
                self.traffic_started = Some(now);
                self.stage = Stage::Traffic(now + plan.duration);
            }
            _ => self.stage = Stage::Hold(self.hold_until),
        }
    }

    const fn is_flooding(&self) -> bool {
        !matches!(self.stage, Stage::HangUp | Stage::Done)
    }

    /// When the churn has something to do next.
    fn next_churn(&self, end: Duration) -> Option<Duration> {
        let churn = self.churn.as_ref()?;
        let redial = (!churn.redial.is_empty()).then_some(Duration::ZERO);
        // After the end only frames and timers bring the last sessions up.
        let hang_up = (churn.time.is_zero()).then(|| churn.pacer.next().min(end));
        let traffic = self.traffic_started.map(|_| self.traffic_pacer.next());
        [redial, hang_up, traffic].into_iter().flatten().min()
    }

    /// Ends the sessions whose turn it is, begins those again that are over, and sends. After the end what is under way still
    /// comes up, so that the counts of both sides can be compared.
    fn poll_churn(&mut self, end: Duration, now: Duration) {
        for _ in 0..BATCH {
            let Some(churn) = &mut self.churn else {
                return;
            };
            if now >= end || !churn.pacer.take(now) {
                break;
            }
            let at = churn.cursor;
            churn.cursor = (at + 1) % self.plan.sessions;
            let client = self.clients.get(at as usize);
            // One that still dials is spared.
            if client.is_some_and(|client| client.phase() == Phase::Up) {
                churn.hung_up += 1;
                self.with_client(at, now, |client, cx| {
                    client.hang_up(EndCause::HungUp, cx);
                });
            }
        }
        for _ in 0..BATCH {
            let Some(at) = (self.churn.as_mut()).and_then(|churn| churn.redial.pop_front()) else {
                break;
            };
            if let Some(client) = self.clients.get_mut(at as usize) {
                client.again(&self.settings);
                self.open += 1;
                if let Some(churn) = &mut self.churn {
                    churn.redialled += 1;
                }
                self.with_client(at, now, Client::start);
            }
        }
        if self.traffic_started.is_some() {
            for _ in 0..BATCH {
                if !self.traffic_pacer.take(now.min(end)) {
                    break;
                }
                self.send_next(now);
            }
        }
        if now < end {
            return;
        }
        self.end_traffic(now);
        let settled = self.settled();
        let Some(churn) = &mut self.churn else {
            return;
        };
        if churn.time.is_zero() {
            churn.time = now.saturating_sub(churn.started);
        }
        if settled && churn.redial.is_empty() {
            self.stage = match self.plan.traffic {
                Some(plan) => Stage::Drain(now + plan.drain),
                None => Stage::Hold(now),
            };
        }
    }

    fn start_round(&mut self, round: u32, now: Duration) {
        self.cursor = 0;
        self.pacer = Pacer::new(now, BACKGROUND_RATE);
        self.stage = Stage::Query(round, now + QUERY_PERIOD);
    }

    fn end_traffic(&mut self, now: Duration) {
        if let Some(started) = self.traffic_started.take() {
            self.sums.traffic_time = now.saturating_sub(started);
        }
    }

    fn finish(&mut self, now: Duration) {
        self.end_traffic(now);
        self.cursor = 0;
        self.pacer = Pacer::new(now, self.plan.rate.max(BACKGROUND_RATE));
        self.stage = if self.plan.leave_up || self.open == 0 {
            Stage::Done
        } else {
            Stage::HangUp
        };
    }

    /// Sends a payload of a stream whose subscriber is up. Returns the bytes of IP.
    fn send_payload(
        &mut self,
        stream: u32,
        payload: &[u8],
        header: Header,
        spoof: [Option<IpAddr>; 2],
        ip_id: u16,
    ) -> Option<u64> {
        let plan = self.plan.traffic?;
        let (at, family) = subscriber_of(stream);
        let to = plan.to.get(family.index()).copied().flatten()?;
        let client = self.clients.get_mut(at as usize)?;
        let own = client.address_of(family)?;
        let from = spoof.get(family.index()).copied().flatten();
        let packet = datagram(from.unwrap_or(own), to, header, ip_id, payload)?;
        let protocol = match family {
            Family::V4 => protocol::IPV4,
            Family::V6 => protocol::IPV6,
        };
        let frame = frame::session(
            &client.link(&self.settings),
            client.session_id(),
            protocol,
            &packet,
        )?;
        self.out.push(frame);
        client.count_sent(packet.len() as u64);
        Some(packet.len() as u64)
    }

    /// Whether the stream has a reflector and its subscriber is up.
    fn is_usable(&self, stream: u32) -> bool {
        let (at, family) = subscriber_of(stream);
        let wanted = self
            .plan
            .traffic
            .is_some_and(|plan| plan.to.get(family.index()).is_some_and(Option::is_some));
        let client = self.clients.get(at as usize);
        wanted && client.is_some_and(|client| client.phase() == Phase::Up)
    }

    /// Streams of all subscribers.
    fn stream_count(&self) -> u32 {
        self.plan.sessions * Family::BOTH.len() as u32
    }

    /// Sends one datagram of the next stream that can.
    fn send_next(&mut self, now: Duration) {
        let Some(plan) = self.plan.traffic else {
            return;
        };
        for _ in 0..self.stream_count() {
            let at = self.cursor;
            self.cursor = (self.cursor + 1) % self.stream_count();
            if !self.is_usable(at) {
                continue;
            }
            let Some(sequence) = self.streams.get(at as usize).map(|stream| stream.sent) else {
                return;
            };
            let (subscriber, family) = subscriber_of(at);
            let payload = Probe::Data {
                id: self.stream_id(subscriber, family),
                sequence,
                sent_ns: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
            }
            .write(plan.payload_bytes);
            if let Some(bytes) =
                self.send_payload(at, &payload, plan.header, plan.spoof, sequence as u16)
            {
                self.account.sent += 1;
                self.account.sent_bytes += bytes;
                if let Some(stream) = self.streams.get_mut(at as usize) {
                    stream.sent += 1;
                }
            }
            return;
        }
    }

    fn stream_id(&self, at: u32, family: Family) -> StreamId {
        StreamId {
            run: self.run,
            session: self.plan.first + at,
            family,
        }
    }

    fn query(&mut self, stream: u32) {
        let wanted = self
            .streams
            .get(stream as usize)
            .is_some_and(|stream| stream.sent > 0 && stream.report.is_none());
        if wanted && self.is_usable(stream) {
            let (at, family) = subscriber_of(stream);
            let payload = Probe::Query(self.stream_id(at, family)).write(0);
            // An honest packet, whatever the traffic was.
            self.send_payload(stream, &payload, Header::default(), [None; 2], 0);
        }
    }

    /// The smallest MRU any peer asked for, bytes of IP packet.
    pub(crate) fn smallest_peer_mru(&self) -> Option<u16> {
        self.clients.iter().map(Client::peer_mru).min()
    }

    /// Sessions that are over, in the order of their ends, if they were to be remembered.
    pub(crate) fn finished(&self) -> &[Finished] {
        &self.finished
    }

    /// The subscribers, in the order of their indices.
    pub(crate) fn clients(&self) -> &[Client] {
        &self.clients
    }
}
