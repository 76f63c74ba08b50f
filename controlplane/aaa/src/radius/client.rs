//! Requests to servers until one of them has answered: identifiers, retransmission, fail-over.
//!
//! Sans-IO: a request goes in with [`Client::handle_request`], a datagram with [`Client::handle_datagram`], time with
//! [`Client::handle_timeout`]; then [`Client::poll_transmit`], [`Client::poll_outcome`] and [`Client::poll_timeout`] say what to
//! send, what has been decided and when to come back.
//!
//! A server that let all tries of a request pass, and has not answered anything since the first of them, counts as dead for a
//! while. Others are asked before it then, and requests that wait for it move on at their next timeout. When the time is over
//! one request, once, finds out whether it lives; any answer of it says the same. A request of which all servers are dead is
//! still sent to each of them once.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use zeroize::Zeroizing;

use super::packet::{self, Authenticator, Packet, TooLong, code};
use super::{attribute, packet::List};

/// Identifiers of one source port.
const IDENTIFIERS: u16 = 256;

/// One moment on the two clocks that matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// A clock that never jumps.
    pub since_start: Duration,
    /// Unix time, seconds.
    pub unix_s: u64,
}

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Access-Request.
    Access,
    /// Accounting-Request.
    Accounting,
}

/// A request before it has an identifier and an authenticator.
#[derive(Clone, PartialEq, Eq)]
pub struct Draft {
    /// What it is about.
    pub kind: Kind,
    /// Password to hide in it.
    pub password: Option<Zeroizing<Vec<u8>>>,
    /// Its attributes.
    pub attributes: Vec<u8>,
    /// Unix time of the event it tells of, seconds: it gets Acct-Delay-Time.
    pub event_unix_s: Option<u64>,
}

impl fmt::Debug for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Draft")
            .field("kind", &self.kind)
            .field("has_password", &self.password.is_some())
            .field("attributes", &self.attributes.len())
            .field("event_unix_s", &self.event_unix_s)
            .finish()
    }
}

/// How servers are treated.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Their shared secrets, in the order of preference.
    pub secrets: Vec<SecretString>,
    /// Time for the first answer; doubled with each try.
    pub timeout: Duration,
    /// Times a request is sent to one server.
    pub tries: u8,
    /// How long a server counts as dead.
    pub dead: Duration,
    /// Source ports for each server: 256 requests each can be under way.
    pub sockets: u8,
    /// Requests that may wait for an identifier.
    pub queue: usize,
}

/// A datagram to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Index of the server.
    pub server: usize,
    /// Which of the source ports.
    pub socket: u8,
    /// The packet.
    pub bytes: Vec<u8>,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A server has answered.
    Answer {
        /// Index of the server.
        server: usize,
        /// Code of its packet.
        code: u8,
        /// The packet's attributes.
        attributes: Vec<u8>,
    },
    /// No server has.
    Silence,
    /// There was no room for it: too many others wait.
    Full,
    /// It cannot be written as a packet.
    TooLong,
}

discards! {
    /// Why a datagram of a server was discarded.
    Short = "short", "Shorter than a header.";
    Length = "length", "The length field does not fit the datagram.";
    Attribute = "attribute", "An attribute's length is below 2 or past the packet.";
    Code = "code", "No answer to the kind of request with this identifier.";
    Identifier = "identifier", "No request with this identifier waits, as after a late answer.";
    Authenticator = "authenticator", "The Response Authenticator is wrong: another secret, or a forgery.";
    NoMessageAuthenticator = "no_message_authenticator", "An answer to an Access-Request without Message-Authenticator.";
    MessageAuthenticator = "message_authenticator", "The Message-Authenticator is wrong.";
}

/// What happened with a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests it was asked first or after others.
    pub requests: u64,
    /// Times one was sent again.
    pub retransmissions: u64,
    /// Answers.
    pub answers: u64,
    /// Requests it was given up for.
    pub timeouts: u64,
    /// Times it was declared dead.
    pub deaths: u64,
    /// Datagrams of it that were discarded, by [`Discard`].
    pub discarded: [u64; Discard::ALL.len()],
    /// Sum of the times of `timed` answers.
    pub round_trips: Duration,
    /// Answers to requests that were sent once.
    pub timed: u64,
    /// Whether it counts as dead.
    pub is_dead: bool,
    /// Requests under way to it.
    pub pending: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Alive,
    Dead {
        until: Duration,
    },
    /// Asked by this one request.
    Probed {
        by: u64,
    },
}

/// An identifier on a source port: `socket * 256 + identifier`.
type Place = u16;

#[derive(Debug)]
struct Server {
    secret: SecretString,
    health: Health,
    /// Free places, longest unused first.
    free: VecDeque<Place>,
    sockets: u8,
    used: HashMap<Place, u64>,
    answered: Option<Duration>,
    stats: Stats,
}

impl Server {
    fn take(&mut self, key: u64, sockets: u8) -> Option<Place> {
        if self.free.is_empty() && self.sockets < sockets {
            let first = u16::from(self.sockets) * IDENTIFIERS;
            self.free.extend(first..first + IDENTIFIERS);
            self.sockets += 1;
        }
        let place = self.free.pop_front()?;
        self.used.insert(place, key);
        Some(place)
    }

    fn release(&mut self, place: Place) {
        if self.used.remove(&place).is_some() {
            self.free.push_back(place);
        }
    }
}

#[derive(Debug)]
struct Pending<T> {
    tag: T,
    draft: Draft,
    /// Servers that were asked, a bit each.
    asked: u8,
    attempt: Option<Attempt>,
}

#[derive(Debug)]
struct Attempt {
    server: usize,
    place: Place,
    authenticator: Authenticator,
    bytes: Vec<u8>,
    sent: Duration,
    tries_left: u8,
    was_repeated: bool,
    timeout: Duration,
    due: Duration,
}

/// The client. `T` names a request to its asker.
#[derive(Debug)]
pub struct Client<T> {
    settings: Settings,
    servers: Vec<Server>,
    pending: HashMap<u64, Pending<T>>,
    queue: VecDeque<u64>,
    timers: BTreeSet<(Duration, u64)>,
    transmits: VecDeque<Transmit>,
    outcomes: VecDeque<(T, Outcome)>,
    next_key: u64,
    seed: [u8; 32],
    counter: u64,
    full: u64,
}

impl<T> Client<T> {
    /// A client of at most eight servers. `seed` is secret and new with every start.
    #[must_use]
    pub fn new(settings: Settings, seed: [u8; 32]) -> Self {
        let servers = settings.secrets.iter().take(8).map(|secret| Server {
            secret: secret.clone(),
            health: Health::Alive,
            free: VecDeque::new(),
            sockets: 0,
            used: HashMap::new(),
            answered: None,
            stats: Stats::default(),
        });
        Self {
            servers: servers.collect(),
            settings,
            pending: HashMap::new(),
            queue: VecDeque::new(),
            timers: BTreeSet::new(),
            transmits: VecDeque::new(),
            outcomes: VecDeque::new(),
            next_key: 0,
            seed,
            counter: 0,
            full: 0,
        }
    }

    /// Takes a request. Its outcome comes from [`Client::poll_outcome`] exactly once.
    pub fn handle_request(&mut self, tag: T, draft: Draft, now: Now) {
        self.next_key += 1;
        let key = self.next_key;
        let pending = Pending {
            tag,
            draft,
            asked: 0,
            attempt: None,
        };
        self.pending.insert(key, pending);
        self.ask_next(key, now);
    }

    /// Takes a datagram that arrived from a server at one of the source ports.
    ///
    /// # Errors
    /// Why it was discarded, which is counted.
    pub fn handle_datagram(
        &mut self,
        server: usize,
        socket: u8,
        bytes: &[u8],
        now: Now,
    ) -> Result<(), Discard> {
        let result = self.accept(server, socket, bytes, now);
        if let (Err(discard), Some(server)) = (result, self.servers.get_mut(server)) {
            server.stats.discarded[discard as usize] += 1;
        }
        result
    }

    fn accept(&mut self, index: usize, socket: u8, bytes: &[u8], now: Now) -> Result<(), Discard> {
        let packet = Packet::parse(bytes)?;
        let server = self.servers.get_mut(index).ok_or(Discard::Identifier)?;
        let place = u16::from(socket) * IDENTIFIERS + u16::from(packet.identifier());
        let key = *server.used.get(&place).ok_or(Discard::Identifier)?;
        let pending = self.pending.get(&key).ok_or(Discard::Identifier)?;
        let attempt = pending.attempt.as_ref().ok_or(Discard::Identifier)?;
        let secret = server.secret.expose_secret().as_bytes();
        let request = &attempt.authenticator;
        let is_access = pending.draft.kind == Kind::Access;
        let fits = match packet.code() {
            code::ACCESS_ACCEPT | code::ACCESS_REJECT | code::ACCESS_CHALLENGE => is_access,
            code::ACCOUNTING_RESPONSE => !is_access,
            _ => false,
        };
        if !fits {
            return Err(Discard::Code);
        }
        if !packet.answers(request, secret) {
            return Err(Discard::Authenticator);
        }
        // Servers differ in which authenticator they reckon with in Accounting-Responses, and the sum above is enough there:
        // what forges one of an Access-Request (RFC 2865 section 3) needs attributes an attacker can choose.
        if is_access {
            match packet.message_authenticator(request, secret) {
                None => return Err(Discard::NoMessageAuthenticator),
                Some(false) => return Err(Discard::MessageAuthenticator),
                Some(true) => {}
            }
        }
        server.health = Health::Alive;
        server.answered = Some(now.since_start);
        server.stats.answers += 1;
        if !attempt.was_repeated {
            server.stats.timed += 1;
            server.stats.round_trips += now.since_start.saturating_sub(attempt.sent);
        }
        let outcome = Outcome::Answer {
            server: index,
            code: packet.code(),
            attributes: bytes
                .get(packet::HEADER..packet.len())
                .unwrap_or(&[])
                .to_vec(),
        };
        self.finish(key, outcome);
        self.drain_queue(now);
        Ok(())
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, now: Now) {
        while let Some((due, key)) = self.timers.first().copied() {
            if due > now.since_start {
                break;
            }
            self.timers.pop_first();
            self.expire(key, now);
        }
        self.drain_queue(now);
    }

    fn expire(&mut self, key: u64, now: Now) {
        let Some(attempt) = (self.pending.get_mut(&key)).and_then(|it| it.attempt.as_mut()) else {
            return;
        };
        let Some(server) = self.servers.get_mut(attempt.server) else {
            return;
        };
        let is_dead = matches!(server.health, Health::Dead { .. });
        if attempt.tries_left > 0 && !is_dead {
            attempt.tries_left -= 1;
            attempt.was_repeated = true;
            attempt.timeout *= 2;
            attempt.due = now.since_start + attempt.timeout;
            self.timers.insert((attempt.due, key));
            server.stats.retransmissions += 1;
            self.transmits.push_back(Transmit {
                server: attempt.server,
                socket: (attempt.place / IDENTIFIERS) as u8,
                bytes: attempt.bytes.clone(),
            });
            return;
        }
        server.stats.timeouts += 1;
        let is_probe = server.health == Health::Probed { by: key };
        let is_silent = server.answered.is_none_or(|it| it < attempt.sent);
        if is_probe || (is_silent && server.health == Health::Alive) {
            server.health = Health::Dead {
                until: now.since_start + self.settings.dead,
            };
            server.stats.deaths += 1;
        }
        self.leave(key);
        self.ask_next(key, now);
    }

    /// Gives the identifier of a request back.
    fn leave(&mut self, key: u64) {
        let Some(attempt) = self.pending.get_mut(&key).and_then(|it| it.attempt.take()) else {
            return;
        };
        self.timers.remove(&(attempt.due, key));
        if let Some(server) = self.servers.get_mut(attempt.server) {
            server.release(attempt.place);
        }
    }

    fn finish(&mut self, key: u64, outcome: Outcome) {
        self.leave(key);
        if let Some(pending) = self.pending.remove(&key) {
            self.outcomes.push_back((pending.tag, outcome));
        }
    }

    /// Asks the best server that was not asked yet.
    fn ask_next(&mut self, key: u64, now: Now) {
        let Some(pending) = self.pending.get(&key) else {
            return;
        };
        let Some((index, is_last_resort)) = self.choose(pending.asked, key, now.since_start) else {
            return self.finish(key, Outcome::Silence);
        };
        let sockets = self.settings.sockets;
        let Some(place) = self.servers[index].take(key, sockets) else {
            self.unprobe(index, key, now.since_start);
            if self.queue.len() >= self.settings.queue {
                self.full += 1;
                return self.finish(key, Outcome::Full);
            }
            return self.queue.push_back(key);
        };
        match self.write(index, key, place, now) {
            Ok((authenticator, bytes)) => {
                self.send(index, key, place, authenticator, bytes, is_last_resort, now);
            }
            Err(TooLong) => {
                self.servers[index].release(place);
                self.unprobe(index, key, now.since_start);
                self.finish(key, Outcome::TooLong);
            }
        }
    }

    fn unprobe(&mut self, index: usize, key: u64, now: Duration) {
        let health = &mut self.servers[index].health;
        if *health == (Health::Probed { by: key }) {
            *health = Health::Dead { until: now };
        }
    }

    /// The server to ask, and whether it is asked although it counts as dead.
    fn choose(&mut self, asked: u8, key: u64, now: Duration) -> Option<(usize, bool)> {
        let may = |index: usize| asked & (1 << index) == 0;
        for (index, server) in self.servers.iter_mut().enumerate() {
            match server.health {
                _ if !may(index) => {}
                Health::Alive => return Some((index, false)),
                Health::Dead { until } if until <= now => {
                    server.health = Health::Probed { by: key };
                    return Some((index, true));
                }
                Health::Dead { .. } | Health::Probed { .. } => {}
            }
        }
        (0..self.servers.len())
            .find(|index| may(*index))
            .map(|index| (index, true))
    }

    fn write(
        &mut self,
        index: usize,
        key: u64,
        place: Place,
        now: Now,
    ) -> Result<(Authenticator, Vec<u8>), TooLong> {
        let random = self.random();
        let (Some(server), Some(pending)) = (self.servers.get(index), self.pending.get(&key))
        else {
            return Err(TooLong);
        };
        let secret = server.secret.expose_secret().as_bytes();
        let draft = &pending.draft;
        let identifier = (place % IDENTIFIERS) as u8;
        match draft.kind {
            Kind::Access => {
                let password = draft.password.as_deref().map(Vec::as_slice);
                let attributes = &draft.attributes;
                packet::access_request(identifier, &random, secret, password, attributes)
                    .map(|bytes| (random, bytes))
            }
            Kind::Accounting => {
                let mut delay = List::default();
                if let Some(event) = draft.event_unix_s {
                    let late = now.unix_s.saturating_sub(event);
                    let late = late.try_into().unwrap_or(u32::MAX);
                    delay.number(attribute::ACCT_DELAY_TIME, late);
                }
                let parts = [&draft.attributes[..], delay.as_bytes()];
                let code = code::ACCOUNTING_REQUEST;
                let bytes = packet::signed_request(code, identifier, secret, &parts)?;
                let authenticator = Packet::parse(&bytes).map_err(|_| TooLong)?.authenticator();
                Ok((authenticator, bytes))
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn send(
        &mut self,
        server: usize,
        key: u64,
        place: Place,
        authenticator: Authenticator,
        bytes: Vec<u8>,
        once: bool,
        now: Now,
    ) {
        let Some(pending) = self.pending.get_mut(&key) else {
            return;
        };
        let due = now.since_start + self.settings.timeout;
        pending.asked |= 1 << server;
        pending.attempt = Some(Attempt {
            server,
            place,
            authenticator,
            bytes: bytes.clone(),
            sent: now.since_start,
            tries_left: if once { 0 } else { self.settings.tries - 1 },
            was_repeated: false,
            timeout: self.settings.timeout,
            due,
        });
        self.timers.insert((due, key));
        self.servers[server].stats.requests += 1;
        self.transmits.push_back(Transmit {
            server,
            socket: (place / IDENTIFIERS) as u8,
            bytes,
        });
    }

    /// Requests that waited for an identifier, as long as there are any.
    fn drain_queue(&mut self, now: Now) {
        for _ in 0..self.queue.len() {
            let has_room = (self.servers.iter())
                .any(|server| !server.free.is_empty() || server.sockets < self.settings.sockets);
            let Some(key) = self.queue.pop_front_if(|_| has_room) else {
                return;
            };
            self.ask_next(key, now);
        }
    }

    /// Unpredictable and never the same twice.
    fn random(&mut self) -> Authenticator {
        self.counter += 1;
        packet::keyed(&self.seed, &self.counter.to_be_bytes())
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// The next outcome.
    pub fn poll_outcome(&mut self) -> Option<(T, Outcome)> {
        self.outcomes.pop_front()
    }

    /// When to call [`Client::handle_timeout`], on the clock that never jumps.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// What happened with each server.
    pub fn stats(&self) -> impl Iterator<Item = Stats> + '_ {
        self.servers.iter().map(|server| Stats {
            is_dead: server.health != Health::Alive,
            pending: server.used.len(),
            ..server.stats.clone()
        })
    }

    /// Whether no request is under way and every outcome was taken.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.outcomes.is_empty()
    }

    /// Requests that wait for an identifier, and how many found no room to wait.
    #[must_use]
    pub fn queued(&self) -> (usize, u64) {
        (self.queue.len(), self.full)
    }
}

#[cfg(test)]
mod tests;
