//! A whole run without sockets and clock: frames and time in, frames out.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::time::Duration;

use bng_pppoe::codec::frame;
use bng_wire::MacAddr;
use bng_wire::pppoe::protocol;
use hdrhistogram::Histogram;

use super::client::{Client, Context};
use super::subscriber::{ClientCounters, ClientSettings, EndCause, Identity, Phase};
use super::timers::Timers;
use super::traffic::{Account, Stream, datagram};
use crate::pacing::Pacer;
use crate::probe::{Probe, StreamId};

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
    /// The reflector.
    pub(crate) to: SocketAddrV4,
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
}

/// Where the run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Sessions are started.
    Setup,
    /// Traffic runs until then.
    Traffic(Duration),
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
    pub(super) streams: Vec<Stream>,
    timers: Timers,
    out: Vec<Vec<u8>>,
    stage: Stage,
    pacer: Pacer,
    /// Next subscriber to start, to send, to ask or to end.
    cursor: u32,
    /// Subscribers up now.
    up: u32,
    /// Subscribers not ended.
    open: u32,
    hold_until: Duration,
    traffic_started: Option<Duration>,
    pub(super) sums: Sums,
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
    /// Time the traffic really took.
    pub(crate) traffic_time: Duration,
}

/// MAC address of the subscriber with this index.
fn mac_of(index: u32) -> MacAddr {
    let [_, a, b, c] = index.to_be_bytes();
    let [x, y, z] = MAC_PREFIX;
    MacAddr([x, y, z, a, b, c])
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
            vec![Stream::default(); plan.sessions as usize]
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
            sums: Sums {
                clients: ClientCounters::default(),
                came_up: 0,
                failures: BTreeMap::new(),
                ended: BTreeMap::new(),
                setup: Histogram::new_with_max(600_000_000_000, 3).ok()?,
                last_up: Duration::ZERO,
                malformed: 0,
                traffic_time: Duration::ZERO,
            },
            account: Account::new(run)?,
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
            Stage::Query(_, end) if self.cursor < self.plan.sessions => {
                Some(self.pacer.next().min(end))
            }
            Stage::Drain(end) | Stage::Query(_, end) | Stage::Hold(end) => Some(end),
            Stage::HangUp => (self.cursor < self.plan.sessions).then(|| self.pacer.next()),
            Stage::Done => None,
        };
        [own, self.timers.next()].into_iter().flatten().min()
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
            self.sums.came_up += 1;
            self.sums.last_up = now;
            let setup = u64::try_from(setup.as_nanos()).unwrap_or(u64::MAX);
            self.sums.setup.saturating_record(setup);
        }
        if let Phase::Ended(cause) = after
            && !matches!(before, Phase::Ended(_))
        {
            self.open -= 1;
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
        let Some(Some(packet)) = self.with_client(at, now, |client, cx| client.handle(&frame, cx))
        else {
            return;
        };
        let client = self.clients.get(at as usize);
        if let Some(plan) = self.plan.traffic
            && let Some(stream) = self.streams.get_mut(at as usize)
            && let Some(address) = client.and_then(Client::address)
        {
            self.account
                .accept(packet, index, address, plan.to, now, stream);
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
        match self.stage {
            Stage::Setup => {
                self.paced(now, |run, at| {
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
            Stage::Drain(end) => {
                if now >= end || self.account.received >= self.account.sent {
                    self.start_round(0, now);
                }
            }
            Stage::Query(round, end) => {
                self.paced(now, |run, at| run.query(at));
                let all_known = self
                    .streams
                    .iter()
                    .all(|stream| stream.report.is_some() || stream.sent == 0);
                if all_known || (round + 1 >= QUERY_ROUNDS && now >= end) {
                    self.stage = Stage::Hold(self.hold_until.max(now));
                } else if now >= end && self.cursor == self.plan.sessions {
                    self.start_round(round + 1, now);
                }
            }
            Stage::Hold(end) => {
                if now >= end || self.open == 0 {
                    self.finish(now);
                }
            }
            Stage::HangUp => {
                self.paced(now, |run, at| {
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

    /// Calls `act` for the subscribers that are due, in order.
    fn paced(&mut self, now: Duration, mut act: impl FnMut(&mut Self, u32)) {
        for _ in 0..BATCH {
            if self.cursor == self.plan.sessions || !self.pacer.take(now) {
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
        match self.plan.traffic {
            Some(plan) if self.up > 0 => {
                self.pacer = Pacer::new(now, plan.per_second);
                self.traffic_started = Some(now);
                self.stage = Stage::Traffic(now + plan.duration);
            }
            _ => self.stage = Stage::Hold(self.hold_until),
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

    /// Sends a payload of a subscriber that is up.
    fn send_payload(&mut self, at: u32, payload: &[u8], ip_id: u16) -> Option<u64> {
        let plan = self.plan.traffic?;
        let client = self.clients.get(at as usize)?;
        let packet = datagram(client.address()?, plan.to, ip_id, payload)?;
        let frame = frame::session(
            &client.link(&self.settings),
            client.session_id(),
            protocol::IPV4,
            &packet,
        )?;
        self.out.push(frame);
        Some(packet.len() as u64)
    }

    fn is_up(&self, at: u32) -> bool {
        self.clients
            .get(at as usize)
            .is_some_and(|client| client.phase() == Phase::Up)
    }

    /// Sends one datagram of the next subscriber that is up.
    fn send_next(&mut self, now: Duration) {
        let Some(plan) = self.plan.traffic else {
            return;
        };
        for _ in 0..self.plan.sessions {
            let at = self.cursor;
            self.cursor = (self.cursor + 1) % self.plan.sessions;
            if !self.is_up(at) {
                continue;
            }
            let Some(sequence) = self.streams.get(at as usize).map(|stream| stream.sent) else {
                return;
            };
            let payload = Probe::Data {
                id: self.stream_id(at),
                sequence,
                sent_ns: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
            }
            .write(plan.payload_bytes);
            if let Some(bytes) = self.send_payload(at, &payload, sequence as u16) {
                self.account.sent += 1;
                self.account.sent_bytes += bytes;
                if let Some(stream) = self.streams.get_mut(at as usize) {
                    stream.sent += 1;
                }
            }
            return;
        }
    }

    fn stream_id(&self, at: u32) -> StreamId {
        StreamId {
            run: self.run,
            session: self.plan.first + at,
        }
    }

    fn query(&mut self, at: u32) {
        let wanted = self
            .streams
            .get(at as usize)
            .is_some_and(|stream| stream.sent > 0 && stream.report.is_none());
        if wanted && self.is_up(at) {
            let payload = Probe::Query(self.stream_id(at)).write(0);
            self.send_payload(at, &payload, 0);
        }
    }

    /// The smallest MRU any peer asked for, bytes of IP packet.
    pub(crate) fn smallest_peer_mru(&self) -> Option<u16> {
        self.clients.iter().map(Client::peer_mru).min()
    }

    #[cfg(test)]
    pub(crate) fn clients(&self) -> &[Client] {
        &self.clients
    }
}
