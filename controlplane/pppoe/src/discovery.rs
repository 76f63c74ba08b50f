//! The discovery stage at the access concentrator: PADI to PADO, PADR to PADS, PADT (RFC 2516 section 5).
//!
//! Nothing is kept for a client before its PADR brings a valid AC-Cookie back.

use core::hash::Hasher;
use core::time::Duration;

use bng_wire::MacAddr;
use bng_wire::pppoe::{PPPOE_LEN, code};
use siphasher::sip::SipHasher24;

use crate::codec::frame::{self, Frame, LinkHeader};
use crate::codec::lcp::{DEFAULT_MRU, PPPOE_MRU};
use crate::codec::tags::{TagWriter, Tags, kind};
use crate::config::{PortConfig, ServicePolicy, VlanProfile};
use crate::cookie::{CookieJar, keyed_digest};
use crate::counters::{Outcome, TerminateCause};
use crate::engine::AccessConcentrator;
use crate::events::{AccessLine, Event, SessionRef, Transmit};
use crate::session::{Phase, Session, Subscriber};
use crate::{DropReason, PortId, Time};

/// Tags echoed byte for byte in every reply.
const ECHOED: [u16; 2] = [kind::HOST_UNIQ, kind::RELAY_SESSION_ID];

/// Where a request came from.
struct Request<'a> {
    port: PortConfig,
    /// Position of its VLAN's profile among those of the port; `None` when the port has none.
    profile: Option<usize>,
    /// Largest MRU on its VLAN, in bytes.
    max_mru: u16,
    link: LinkHeader,
    line: AccessLine,
    tags: Tags<'a>,
}

impl Request<'_> {
    /// The Service-Name asked for; a client that leaves the tag out means any.
    fn service_name(&self) -> &[u8] {
        self.tags.find(kind::SERVICE_NAME).unwrap_or(&[])
    }

    /// RFC 4638: the largest payload both sides and the link can take, when that is above 1492.
    fn max_payload(&self) -> Option<u16> {
        let both = self.tags.ppp_max_payload()?.min(self.max_mru);
        (both > PPPOE_MRU).then_some(both)
    }

    /// Largest MRU of the session this request leads to.
    fn link_mru(&self) -> u16 {
        self.max_payload()
            .unwrap_or_else(|| PPPOE_MRU.min(self.max_mru))
    }

    /// A tag list that fits one frame of the port; discovery never uses jumbo frames.
    fn writer(&self) -> TagWriter {
        TagWriter::new(usize::from(self.port.mtu.min(DEFAULT_MRU)) - PPPOE_LEN)
    }

    /// The reply. The writer's limit is far below what the length field holds, so there always is one.
    fn frame(&self, packet: u8, session: Option<SessionRef>, tags: TagWriter) -> Option<Transmit> {
        let session_id = session.map_or(0, |s| s.session_id);
        Some(Transmit {
            port: self.port.id,
            session,
            frame: frame::discovery(&self.link, packet, session_id, &tags.finish())?,
        })
    }

    /// Appends the tags a reply carries for the client's and its agents' sake.
    fn put_echoed(&self, writer: &mut TagWriter) -> bool {
        ECHOED.iter().all(|kind| {
            self.tags
                .find(*kind)
                .is_none_or(|value| writer.put(*kind, value))
        }) && self
            .max_payload()
            .is_none_or(|max| writer.put(kind::PPP_MAX_PAYLOAD, &max.to_be_bytes()))
    }
}

/// What holds on a VLAN.
struct Terms<'a> {
    services: &'a ServicePolicy,
    sessions_per_mac: usize,
    pado_delay: Duration,
}

/// The limit that leaves no room for a session.
#[derive(Clone, Copy)]
enum Full {
    Line,
    Circuit,
    Port,
    HalfOpen,
}

/// Why a PADR is refused: the tag, its text and the counter.
struct Refusal(u16, &'static [u8], Outcome);

impl AccessConcentrator {
    pub(crate) fn discovery(
        &mut self,
        port: PortId,
        frame: &Frame<'_>,
        packet: u8,
        session_id: u16,
        tags: Tags<'_>,
    ) -> Result<(), DropReason> {
        let at = self.ports.get(&port).ok_or(DropReason::PortUnknown)?;
        let port = at.config;
        let (destination, has_session) = match packet {
            code::PADI => (MacAddr::BROADCAST, false),
            code::PADR => (port.mac, false),
            code::PADT => (port.mac, true),
            _ => return Err(DropReason::DiscoveryCode),
        };
        if frame.dst != destination {
            return Err(DropReason::Destination);
        }
        if (session_id != 0) != has_session {
            return Err(DropReason::DiscoverySessionId);
        }
        let line = AccessLine::new(port.id, &frame.vlans, frame.src);
        let profile = at.vlans.iter().position(|profile| profile.fits(&line));
        if profile.is_none() && !at.vlans.is_empty() {
            return Err(DropReason::VlanNotConfigured);
        }
        let of_vlan = profile.map_or(u16::MAX, |profile| at.vlans[profile].max_mru);
        let request = Request {
            port,
            profile,
            max_mru: of_vlan.min(port.max_mru()),
            link: LinkHeader {
                dst: frame.src,
                src: port.mac,
                vlans: frame.vlans,
            },
            line,
            tags,
        };
        // Checked in every request, so that a malformed tag is malformed everywhere.
        let ids = tags.access_line_ids()?;
        match packet {
            code::PADI => self.padi(&request, ids.circuit_id),
            code::PADR => {
                let subscriber = Subscriber {
                    circuit_id: ids.circuit_id.into(),
                    remote_id: ids.remote_id.into(),
                    service_name: request.service_name().into(),
                };
                self.padr(&request, subscriber)
            }
            _ => self.padt(&request, session_id),
        }
    }

    /// What holds where the request came from.
    fn terms(&self, request: &Request<'_>) -> Terms<'_> {
        let port = self.ports.get(&request.line.port);
        let profile: Option<&VlanProfile> = port.and_then(|port| port.vlans.get(request.profile?));
        let config = &self.config;
        profile.map_or(
            Terms {
                services: &config.services,
                sessions_per_mac: config.limits.sessions_per_mac as usize,
                pado_delay: config.pado_delay,
            },
            |profile| Terms {
                services: &profile.services,
                sessions_per_mac: profile.sessions_per_mac as usize,
                pado_delay: profile.pado_delay,
            },
        )
    }

    fn padi(&mut self, request: &Request<'_>, circuit_id: &[u8]) -> Result<(), DropReason> {
        self.counters.count(Outcome::Padi);
        let limits = &self.config.limits;
        let line = request.line;
        let port = self
            .ports
            .get_mut(&line.port)
            .ok_or(DropReason::PortUnknown)?;
        // The MAC's bucket first: one noisy client must not use up the port's.
        let mut hasher = SipHasher24::new_with_key(&self.digest_key);
        hasher.write(&[line.port.0]);
        hasher.write(&line.mac.0);
        if !self.padi_macs.take(hasher.finish(), self.now) {
            return Err(DropReason::PadiMacRate);
        }
        if !port.padi.take(limits.padi_per_port, self.now) {
            return Err(DropReason::PadiPortRate);
        }
        if self.failures.is_locked(self.now, line, circuit_id) {
            return Err(DropReason::PadiLockedOut);
        }
        let service_name = request.service_name();
        if !self.terms(request).services.serves(service_name) {
            return Err(DropReason::PadiServiceName);
        }
        let now = self.now;
        for port in self.ports.values_mut() {
            port.offers.advance(now);
        }
        match self.room(request, circuit_id, true) {
            Ok(_) => {}
            Err(Full::HalfOpen) => return Err(DropReason::PadiHalfOpen),
            Err(_) => return Err(DropReason::PadiBusy),
        }
        let Terms {
            services,
            pado_delay,
            ..
        } = self.terms(request);
        let mut tags = request.writer();
        let fits = tags.put(kind::SERVICE_NAME, service_name)
            && tags.put(kind::AC_NAME, &self.config.ac_name)
            && tags.put(kind::AC_COOKIE, &self.cookies.issue(self.now, &line))
            && request.put_echoed(&mut tags);
        if !fits {
            return Err(DropReason::ReplyTooLarge);
        }
        if let ServicePolicy::Listed(names) = services {
            // What else is offered is a courtesy: as many names as fit.
            for name in names.iter().filter(|name| name.as_slice() != service_name) {
                if !tags.put(kind::SERVICE_NAME, name) {
                    break;
                }
            }
        }
        let Some(pado) = request.frame(code::PADO, None, tags) else {
            return Ok(());
        };
        if let Some(port) = self.ports.get_mut(&line.port) {
            port.offers.offer(self.now);
        }
        if pado_delay.is_zero() {
            self.send_pado(pado);
            return Ok(());
        }
        self.counters.count(Outcome::PadoDelayed);
        let early = self.pados.hold(line, self.now + pado_delay, pado);
        if let Some(early) = early {
            self.counters.count(Outcome::PadoEarly);
            self.send_pado(early);
        }
        Ok(())
    }

    pub(crate) fn send_pado(&mut self, pado: Transmit) {
        self.counters.count(Outcome::PadoSent);
        self.transmits.push_back(pado);
    }

    fn padr(&mut self, request: &Request<'_>, subscriber: Subscriber) -> Result<(), DropReason> {
        let line = request.line;
        let cookie = request
            .tags
            .find(kind::AC_COOKIE)
            .ok_or(DropReason::CookieMissing)?;
        self.cookies.check(self.now, &line, cookie)?;
        self.counters.count(Outcome::Padr);

        // A repeated PADR brings the same cookie and Host-Uniq; another session of the client has others.
        let host_uniq = request.tags.find(kind::HOST_UNIQ);
        let present = [u8::from(host_uniq.is_some())];
        let what = [cookie, &present, host_uniq.unwrap_or(&[])];
        let digest = u128::from_be_bytes(keyed_digest(&self.padr_key, b"padr", &what));
        // Half of it is enough to tell a client's own PADRs apart; 0 is none.
        let padr = ((digest >> 64) as u64).max(1);
        let repeated = self.table.of_line(line).find(|s| s.padr == padr);
        if let Some(session) = repeated {
            if matches!(session.phase(), Phase::Terminate | Phase::Dead) {
                return Err(DropReason::SessionEnding);
            }
            let session = session.lower.session;
            let tags = self.pads_tags(request)?;
            self.counters.count(Outcome::PadrRepeated);
            self.counters.count(Outcome::PadsSent);
            self.reply(request, code::PADS, Some(session), tags);
            return Ok(());
        }

        if let Some(port) = self.ports.get_mut(&line.port)
            && let Some(issued) = CookieJar::issued_at(cookie)
        {
            port.offers.take(issued);
        }
        let circuit_id = &subscriber.circuit_id;
        if self.failures.is_locked(self.now, line, circuit_id) {
            return Err(DropReason::PadrLockedOut);
        }
        let stale = match self.admit(request, &subscriber) {
            Ok(stale) => stale,
            Err(refusal) => return self.refuse(request, refusal),
        };
        let tags = self.pads_tags(request)?;
        if let Some(stale) = stale {
            self.visit(stale, |session, cx| {
                session.cut_off(TerminateCause::Replaced, cx);
            });
        }
        if !self.has_half_open_room(line.port)
            && let Some(silent) = self.displaceable(line.port)
        {
            self.visit(silent, |session, cx| {
                session.cut_off(TerminateCause::Displaced, cx);
            });
        }
        let slot = self.table.next_slot();
        let port = self
            .ports
            .get_mut(&line.port)
            .ok_or(DropReason::PortUnknown)?;
        let Some((session_id, generation)) = port.ids.allocate(self.now, slot) else {
            let text = b"out of session ids";
            let refusal = Refusal(kind::AC_SYSTEM_ERROR, text, Outcome::PadsNoSessionId);
            return self.refuse(request, refusal);
        };
        let session = SessionRef {
            port: line.port,
            session_id,
            generation,
        };
        self.events.push_back(Event::SessionStarted {
            session,
            line,
            vlans: request.link.vlans,
        });
        self.counters.count(Outcome::PadsSent);
        self.reply(request, code::PADS, Some(session), tags);
        let lower = self.lower(session, request.link);
        let link_mru = request.link_mru();
        let mut cx = self.context();
        let new = Session::new(lower, line, subscriber, padr, link_mru, &mut cx);
        let slot = self.table.insert(new);
        self.visit(slot, |session, cx| session.start(cx));
        Ok(())
    }

    /// Half-open sessions each port may have whatever the others have, where `limit` is that of all.
    fn half_open_share(&self, limit: u32) -> u32 {
        let ports = self.ports.len().max(1) as u32;
        limit / 2 / ports
    }

    /// Whether a session of this port may become half-open: the port has not used up its share, or there is room in what is
    /// shared by all.
    fn has_half_open_room(&self, port: PortId) -> bool {
        let used = |port| self.table.half_open_of(port);
        self.has_room_of(self.config.limits.half_open, port, used)
    }

    /// Whether a PADI may be answered. The last quarter of the limit is for the PADRs of clients that have a PADO already, and
    /// for those that are about to take theirs up there is room, too.
    fn has_room_for_pado(&self, port: PortId) -> bool {
        let limit = self.config.limits.half_open;
        let used = |port| self.table.half_open_of(port);
        let expected = |port| {
            let offers = self.ports.get(&port).map(|port| port.offers.expected());
            used(port).saturating_add(offers.unwrap_or(0))
        };
        self.has_room_of(limit - limit / 4, port, used) && self.has_room_of(limit, port, expected)
    }

    /// See [`Self::has_half_open_room`]; `used` is what a port has of `limit`.
    fn has_room_of(&self, limit: u32, port: PortId, used: impl Fn(PortId) -> u32) -> bool {
        let share = self.half_open_share(limit);
        let shared = limit - share * self.ports.len() as u32;
        let beyond = self
            .ports
            .keys()
            .map(|port| used(*port).saturating_sub(share));
        used(port) < share || beyond.fold(0, u32::saturating_add) < shared
    }

    /// A half-open session that gives way when there is no more room, so that clients that dial and then say nothing cannot
    /// keep others out: its peer has let a whole Restart period pass without a word. Other ports keep their share.
    fn displaceable(&self, port: PortId) -> Option<u32> {
        let now = self.now.as_millis();
        let period = u64::try_from(self.config.restart_timer.as_millis()).unwrap_or(u64::MAX);
        let limit = Time::from_millis(now.checked_sub(period)?);
        let share = self.half_open_share(self.config.limits.half_open);
        let ports = self.ports.keys().copied();
        let (since, slot) = ports
            .filter(|it| *it == port || self.table.half_open_of(*it) > share)
            .filter_map(|it| self.table.silent(it))
            .min()?;
        (since <= limit).then_some(slot)
    }

    /// Whether there is room for a session more, and the slot of the one that has to give way for it, if one has to. A
    /// client at its limit has a session of its own asked for a sign of life. `is_padi` asks for
    /// the room a PADO needs.
    fn room(
        &mut self,
        request: &Request<'_>,
        circuit_id: &[u8],
        is_padi: bool,
    ) -> Result<Option<u32>, Full> {
        let line = request.line;
        let limits = &self.config.limits;
        let (per_circuit, per_port) = (limits.sessions_per_circuit, limits.sessions_per_port);
        let (of_line, per_line) = (
            self.table.count_line(line),
            self.terms(request).sessions_per_mac,
        );
        let of_circuit = self.table.count_circuit(line.port, circuit_id);
        let full = if of_line >= per_line {
            Some(Full::Line)
        } else {
            (of_circuit >= per_circuit).then_some(Full::Circuit)
        };
        let mut stale = None;
        if let Some(full) = full {
            // One less must be enough. A lower limit may have been configured meanwhile.
            if !self.config.replace_stale || of_line > per_line || of_circuit > per_circuit {
                return Err(full);
            }
            let on_circuit = (of_circuit >= per_circuit).then_some(circuit_id);
            stale = Some(self.stale(line, on_circuit).ok_or(full)?);
        }
        if self.table.count_port(line.port) - u32::from(stale.is_some()) >= per_port {
            return Err(Full::Port);
        }
        let has_room = match is_padi {
            true => self.has_room_for_pado(line.port),
            false => self.has_half_open_room(line.port),
        };
        if !has_room && self.displaceable(line.port).is_none() {
            return Err(Full::HalfOpen);
        }
        Ok(stale)
    }

    /// The session of a client, and of a circuit where given, that was asked for a sign of life and gave none; of several the
    /// one not heard of for longest. If there is none, the one not heard of for longest is asked.
    fn stale(&mut self, line: AccessLine, circuit_id: Option<&[u8]>) -> Option<u32> {
        let (now, config) = (self.now, &self.config);
        let own = self.table.slots_of(line);
        let (is_live, _, slot) = own
            .filter_map(|slot| Some((slot, self.table.get(slot)?)))
            .filter(|(_, it)| circuit_id.is_none_or(|id| *it.subscriber.circuit_id == *id))
            .map(|(slot, it)| (!it.is_stale(now, config), it.last_heard(), slot))
            .min()?;
        if is_live {
            self.visit(slot, |session, cx| session.probe(cx));
            return None;
        }
        Some(slot)
    }

    /// Decides on a PADR with a valid cookie: the slot of the session that has to give way, if one has to.
    fn admit(
        &mut self,
        request: &Request<'_>,
        subscriber: &Subscriber,
    ) -> Result<Option<u32>, Refusal> {
        if !self
            .terms(request)
            .services
            .serves(&subscriber.service_name)
        {
            let text = b"service not offered";
            return Err(Refusal(
                kind::SERVICE_NAME_ERROR,
                text,
                Outcome::PadsServiceNameError,
            ));
        }
        let room = self.room(request, &subscriber.circuit_id, false);
        room.map_err(|full| {
            let (text, outcome): (&[u8], _) = match full {
                Full::Line => (b"too many sessions of this client", Outcome::PadsMacLimit),
                Full::Circuit => (
                    b"too many sessions on this circuit",
                    Outcome::PadsCircuitLimit,
                ),
                Full::Port => (b"too many sessions", Outcome::PadsPortLimit),
                Full::HalfOpen => (b"busy, try again", Outcome::PadsHalfOpenLimit),
            };
            Refusal(kind::AC_SYSTEM_ERROR, text, outcome)
        })
    }

    /// PADS with session id 0 and an error tag (RFC 2516 section 5.4).
    fn refuse(&mut self, request: &Request<'_>, refusal: Refusal) -> Result<(), DropReason> {
        let Refusal(tag, text, outcome) = refusal;
        let mut tags = request.writer();
        if !(tags.put(kind::SERVICE_NAME, request.service_name())
            && tags.put(tag, text)
            && request.put_echoed(&mut tags))
        {
            return Err(DropReason::ReplyTooLarge);
        }
        self.counters.count(outcome);
        self.reply(request, code::PADS, None, tags);
        Ok(())
    }

    fn pads_tags(&self, request: &Request<'_>) -> Result<TagWriter, DropReason> {
        let mut tags = request.writer();
        if tags.put(kind::SERVICE_NAME, request.service_name())
            && tags.put(kind::AC_NAME, &self.config.ac_name)
            && request.put_echoed(&mut tags)
        {
            Ok(tags)
        } else {
            Err(DropReason::ReplyTooLarge)
        }
    }

    fn padt(&mut self, request: &Request<'_>, session_id: u16) -> Result<(), DropReason> {
        let slot = self.slot_of(request.line, session_id)?;
        self.counters.count(Outcome::PadtReceived);
        self.visit(slot, |session, cx| session.peer_padt(cx));
        Ok(())
    }

    fn reply(
        &mut self,
        request: &Request<'_>,
        packet: u8,
        session: Option<SessionRef>,
        tags: TagWriter,
    ) {
        self.transmits.extend(request.frame(packet, session, tags));
    }
}
