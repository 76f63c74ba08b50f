//! CoA-Request and Disconnect-Request (RFC 5176): who may ask, what is asked, and the answer, sans-IO.
//!
//! A datagram goes into [`Listener::handle_datagram`]; what is to be done comes back, and its result goes into
//! [`Listener::answer`]. A request that comes again, from the same address and port with the same identifier and authenticator,
//! gets the answer it got and has no second effect; while its first one is under way it gets none. Of one with Event-Timestamp
//! the port does not matter: who repeats what it has overheard, from a port of its own, has no effect.
//!
//! A request is remembered at least as long as its Event-Timestamp is good, and longer while nobody needs its place. When all
//! places are taken by such requests, new ones are discarded. Nothing is remembered over a restart: what is not later than the
//! start of the process may be a repetition, and is discarded. Of a request without Event-Timestamp nobody can say when it
//! was made; it is discarded unless the [`Policy`] allows it, and then it is good again 300 s later.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use secrecy::{ExposeSecret, SecretString};

use super::attribute as a;
use super::packet::{self, Authenticator, List, Packet, code};
use super::request::{self, Nas};
use super::terms;
use crate::dynamic::{Change, Refusal, Selector};

/// How far Event-Timestamp may be from our clock, seconds (RFC 5176 section 6.3).
pub const WINDOW_S: u64 = 300;
/// Requests that are remembered: 218 a second, all the time.
pub const REMEMBERED: usize = 65_536;
/// Attribute types that identify the gateway or the request, or carry no wish.
const NO_WISH: [u8; 9] = [
    a::NAS_IP_ADDRESS,
    a::NAS_IPV6_ADDRESS,
    a::NAS_IDENTIFIER,
    a::NAS_PORT,
    a::PROXY_STATE,
    a::STATE,
    a::EVENT_TIMESTAMP,
    a::MESSAGE_AUTHENTICATOR,
    a::REPLY_MESSAGE,
];

discards! {
    /// Why a request got no answer.
    Client = "client", "From an address that is not configured.";
    Short = "short", "Shorter than a header.";
    Length = "length", "The length field does not fit the datagram.";
    Attribute = "attribute", "An attribute's length is below 2 or past the packet.";
    Code = "code", "Neither CoA-Request nor Disconnect-Request.";
    Authenticator = "authenticator", "The Request Authenticator is wrong: another secret, or a forgery.";
    NoMessageAuthenticator = "no_message_authenticator", "No Message-Authenticator.";
    MessageAuthenticator = "message_authenticator", "The Message-Authenticator is wrong.";
    NoEventTimestamp = "no_event_timestamp", "No Event-Timestamp, and it is required.";
    Stale = "stale", "Event-Timestamp is more than 300 s away from our clock.";
    BeforeStart = "before_start", "Event-Timestamp is not later than the start of the process, or than what is forgotten: it may be a repetition.";
    MemoryFull = "memory_full", "Too many requests of the last 300 s are remembered.";
    UnderWay = "under_way", "The same request is being worked on.";
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Change the session's terms.
    Change(Box<Change>),
    /// End it.
    End,
}

/// A request that is being worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    from: SocketAddr,
    is_timed: bool,
    identifier: u8,
    authenticator: Authenticator,
}

/// What makes two requests the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    address: IpAddr,
    /// `None` where Event-Timestamp tells requests apart.
    port: Option<u16>,
    identifier: u8,
    authenticator: Authenticator,
}

impl Ticket {
    fn key(&self) -> Key {
        Key {
            address: self.from.ip().to_canonical(),
            port: (!self.is_timed).then_some(self.from.port()),
            identifier: self.identifier,
            authenticator: self.authenticator,
        }
    }
}

/// What is to be done about a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this back.
    Reply(Vec<u8>),
    /// Do this, then call [`Listener::answer`].
    Do {
        /// Names the request.
        ticket: Ticket,
        /// Which session.
        selector: Box<Selector>,
        /// What about it.
        wish: Wish,
    },
}

#[derive(Debug)]
enum Known {
    UnderWay { is_end: bool, proxies: Vec<u8> },
    Answered(Vec<u8>),
}

/// What happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// CoA-Requests that were done.
    pub changed: u64,
    /// Disconnect-Requests that were done.
    pub ended: u64,
    /// Requests that were refused, by Error-Cause.
    pub refused: HashMap<&'static str, u64>,
    /// Requests that came again and got the answer they had got.
    pub repeated: u64,
    /// Requests without an answer, by [`Discard`].
    pub discarded: [u64; Discard::ALL.len()],
}

/// What a request has to have, and what is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether a request without Event-Timestamp is discarded.
    pub require_event_timestamp: bool,
    /// Unix time at which the process started, seconds.
    pub started_unix_s: u64,
    /// Requests that are remembered, as a rule [`REMEMBERED`].
    pub remembered: usize,
}

/// The listener.
#[derive(Debug)]
pub struct Listener {
    clients: HashMap<IpAddr, SecretString>,
    nas: Nas,
    policy: Policy,
    known: HashMap<Key, Known>,
    /// By the time until which they must be remembered, Unix seconds, and their number.
    expiry: BTreeMap<(u64, u64), Key>,
    taken: u64,
    /// The latest Event-Timestamp that may be one of a request that is not remembered.
    forgotten_unix_s: u64,
    counts: Counts,
}

impl Listener {
    /// A listener that serves these clients.
    #[must_use]
    pub fn new(
        clients: impl IntoIterator<Item = (IpAddr, SecretString)>,
        nas: Nas,
        policy: Policy,
    ) -> Self {
        Self {
            clients: clients.into_iter().collect(),
            nas,
            policy,
            known: HashMap::new(),
            expiry: BTreeMap::new(),
            taken: 0,
            forgotten_unix_s: policy.started_unix_s,
            counts: Counts::default(),
        }
    }

    /// Serves other clients from now on, or under another name. What it remembers stays.
    pub fn reconfigure(
        &mut self,
        clients: impl IntoIterator<Item = (IpAddr, SecretString)>,
        nas: Nas,
        require_event_timestamp: bool,
    ) {
        self.clients = clients.into_iter().collect();
        self.nas = nas;
        self.policy.require_event_timestamp = require_event_timestamp;
    }

    /// Takes a datagram; `unix_s` is the time now.
    ///
    /// # Errors
    /// Why it gets no answer, which is counted.
    pub fn handle_datagram(
        &mut self,
        from: SocketAddr,
        bytes: &[u8],
        unix_s: u64,
    ) -> Result<Action, Discard> {
        let result = self.take(from, bytes, unix_s);
        if let Err(discard) = result {
            self.counts.discarded[discard as usize] += 1;
        }
        result
    }

    fn take(&mut self, from: SocketAddr, bytes: &[u8], unix_s: u64) -> Result<Action, Discard> {
        let address = from.ip().to_canonical();
        let secret = self.clients.get(&address).ok_or(Discard::Client)?;
        let secret = secret.expose_secret().as_bytes();
        let packet = Packet::parse(bytes)?;
        let is_end = match packet.code() {
            code::DISCONNECT_REQUEST => true,
            code::COA_REQUEST => false,
            _ => return Err(Discard::Code),
        };
        if !packet.is_signed(secret) {
            return Err(Discard::Authenticator);
        }
        match packet.message_authenticator(&[0; 16], secret) {
            None => return Err(Discard::NoMessageAuthenticator),
            Some(false) => return Err(Discard::MessageAuthenticator),
            Some(true) => {}
        }
        let event = packet.find(a::EVENT_TIMESTAMP);
        let ticket = Ticket {
            from,
            is_timed: event.is_some(),
            identifier: packet.identifier(),
            authenticator: packet.authenticator(),
        };
        match self.known.get(&ticket.key()) {
            Some(Known::Answered(answer)) => {
                self.counts.repeated += 1;
                return Ok(Action::Reply(answer.clone()));
            }
            Some(Known::UnderWay { .. }) => return Err(Discard::UnderWay),
            None => {}
        }
        let made_unix_s = match event {
            Some(time) => {
                let time = time.try_into().map(u32::from_be_bytes).unwrap_or(0);
                let time = u64::from(time);
                if unix_s.abs_diff(time) > WINDOW_S {
                    return Err(Discard::Stale);
                }
                if time <= self.forgotten_unix_s {
                    return Err(Discard::BeforeStart);
                }
                time
            }
            None if self.policy.require_event_timestamp => return Err(Discard::NoEventTimestamp),
            None => unix_s,
        };
        self.make_room(unix_s)?;
        let mut proxies = List::default();
        for (kind, value) in packet.attributes() {
            if kind == a::PROXY_STATE {
                // Fits: it came in an attribute.
                let _ = proxies.bytes(kind, value);
            }
        }
        let wish = self.read(&packet, is_end);
        self.note(ticket, made_unix_s, is_end, proxies.into_bytes());
        match wish {
            Ok((selector, wish)) => Ok(Action::Do {
                ticket,
                selector: Box::new(selector),
                wish,
            }),
            Err(refusal) => match self.answer(ticket, Err(refusal)) {
                Some((_, bytes)) => Ok(Action::Reply(bytes)),
                None => Err(Discard::UnderWay),
            },
        }
    }

    /// Forgets requests whose time is over as far as a place is needed.
    fn make_room(&mut self, unix_s: u64) -> Result<(), Discard> {
        while self.known.len() >= self.policy.remembered {
            let first = self.expiry.first_entry();
            let Some(over) = first.filter(|it| it.key().0 < unix_s) else {
                return Err(Discard::MemoryFull);
            };
            let ((until, _), key) = over.remove_entry();
            self.known.remove(&key);
            if key.port.is_none() {
                // A clock that is set back must not make it good again.
                let made = until.saturating_sub(WINDOW_S);
                self.forgotten_unix_s = self.forgotten_unix_s.max(made);
            }
        }
        Ok(())
    }

    fn note(&mut self, ticket: Ticket, made_unix_s: u64, is_end: bool, proxies: Vec<u8>) {
        self.taken += 1;
        let until = made_unix_s.saturating_add(WINDOW_S);
        self.expiry.insert((until, self.taken), ticket.key());
        self.known
            .insert(ticket.key(), Known::UnderWay { is_end, proxies });
    }

    /// The answer to a request, and where it goes; `None` when nobody waits for it.
    pub fn answer(
        &mut self,
        ticket: Ticket,
        result: Result<(), Refusal>,
    ) -> Option<(SocketAddr, Vec<u8>)> {
        let Some(Known::UnderWay { is_end, proxies }) = self.known.get(&ticket.key()) else {
            return None;
        };
        let code = match (is_end, result) {
            (true, Ok(())) => code::DISCONNECT_ACK,
            (true, Err(_)) => code::DISCONNECT_NAK,
            (false, Ok(())) => code::COA_ACK,
            (false, Err(_)) => code::COA_NAK,
        };
        match result {
            Ok(()) if *is_end => self.counts.ended += 1,
            Ok(()) => self.counts.changed += 1,
            Err(refusal) => *self.counts.refused.entry(refusal.as_str()).or_default() += 1,
        }
        let mut attributes = List::default();
        if let Err(refusal) = result {
            attributes.number(a::ERROR_CAUSE, refusal as u32);
        }
        let mut attributes = attributes.into_bytes();
        attributes.extend(proxies);
        let secret = self.clients.get(&ticket.from.ip().to_canonical())?;
        let secret = secret.expose_secret().as_bytes();
        let request = &ticket.authenticator;
        let bytes = packet::answer(code, ticket.identifier, request, secret, &attributes).ok()?;
        self.known
            .insert(ticket.key(), Known::Answered(bytes.clone()));
        Some((ticket.from, bytes))
    }

    fn read(&self, packet: &Packet<'_>, is_end: bool) -> Result<(Selector, Wish), Refusal> {
        let mut selector = Selector::default();
        let mut changes = List::default();
        for (kind, value) in packet.attributes() {
            match kind {
                a::NAS_IDENTIFIER if value != self.nas.identifier.as_bytes() => {
                    return Err(Refusal::NasIdentificationMismatch);
                }
                a::NAS_IP_ADDRESS => {
                    let address = address(value)?;
                    if self.nas.address.is_some_and(|it| it != address) {
                        return Err(Refusal::NasIdentificationMismatch);
                    }
                }
                a::ACCT_SESSION_ID => {
                    // One that is not ours fits no session.
                    let id = request::parse_session_id(value).unwrap_or(0);
                    once(&mut selector.accounting_id, id)?;
                }
                a::USER_NAME => once(&mut selector.user, value.to_vec())?,
                a::FRAMED_IP_ADDRESS => once(&mut selector.framed_ip, address(value)?)?,
                a::NAS_PORT_ID => once(&mut selector.nas_port_id, value.to_vec())?,
                a::CALLING_STATION_ID => {
                    let mac = request::parse_station(value);
                    once(
                        &mut selector.mac,
                        mac.ok_or(Refusal::InvalidAttributeValue)?,
                    )?;
                }
                a::SERVICE_TYPE => return Err(Refusal::UnsupportedService),
                kind if NO_WISH.contains(&kind) => {}
                _ if is_end => return Err(Refusal::UnsupportedAttribute),
                a::FILTER_ID | a::SESSION_TIMEOUT | a::IDLE_TIMEOUT | a::ACCT_INTERIM_INTERVAL => {
                    changes
                        .bytes(kind, value)
                        .map_err(|_| Refusal::InvalidRequest)?;
                }
                a::VENDOR_SPECIFIC => {
                    for (vendor, kind, value) in terms::vendor(value) {
                        if !is_change(vendor, kind) {
                            return Err(Refusal::UnsupportedAttribute);
                        }
                        let written = changes.vendor(vendor, kind, value);
                        written.map_err(|_| Refusal::InvalidRequest)?;
                    }
                }
                _ => return Err(Refusal::UnsupportedAttribute),
            }
        }
        if selector == Selector::default() {
            return Err(Refusal::MissingAttribute);
        }
        if is_end {
            return Ok((selector, Wish::End));
        }
        let terms = terms::profile(packet::Attributes::of(changes.as_bytes()));
        let terms = terms.map_err(|_| Refusal::InvalidAttributeValue)?;
        let change = Change {
            rate_up: terms.rate_up,
            rate_down: terms.rate_down,
            filter_id: terms.filter_id,
            session_timeout: terms.session_timeout,
            idle_timeout: terms.idle_timeout,
            quota_octets: terms.quota_octets,
            interim_interval: terms.interim_interval,
        };
        match change == Change::default() {
            true => Err(Refusal::MissingAttribute),
            false => Ok((selector, Wish::Change(Box::new(change)))),
        }
    }

    /// What happened.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }
}

/// Vendor attributes a CoA-Request may carry.
const fn is_change(vendor: u32, kind: u8) -> bool {
    matches!(
        (vendor, kind),
        (
            a::WISPR,
            a::WISPR_BANDWIDTH_MAX_UP | a::WISPR_BANDWIDTH_MAX_DOWN
        ) | (
            a::MIKROTIK,
            a::MIKROTIK_RATE_LIMIT | a::MIKROTIK_TOTAL_LIMIT | a::MIKROTIK_TOTAL_LIMIT_GIGAWORDS
        )
    )
}

fn address(value: &[u8]) -> Result<Ipv4Addr, Refusal> {
    let octets: [u8; 4] = value
        .try_into()
        .map_err(|_| Refusal::InvalidAttributeValue)?;
    Ok(octets.into())
}

/// Two of a kind that names one session contradict each other.
fn once<T>(place: &mut Option<T>, value: T) -> Result<(), Refusal> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(Refusal::InvalidRequest),
    }
}

#[cfg(test)]
mod tests;
