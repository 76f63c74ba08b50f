//! The discovery stage at the access concentrator: PADI to PADO, PADR to PADS, PADT (RFC 2516 section 5).
//!
//! Nothing is kept for a client before its PADR brings a valid AC-Cookie back.

use core::hash::Hasher;

use bng_wire::MacAddr;
use bng_wire::pppoe::{PPPOE_LEN, code};
use siphasher::sip::SipHasher24;

use crate::codec::frame::{self, Frame, LinkHeader};
use crate::codec::lcp::{DEFAULT_MRU, PPPOE_MRU};
use crate::codec::tags::{TagWriter, Tags, kind};
use crate::config::{PortConfig, ServicePolicy, VlanProfile};
use crate::cookie::keyed_digest;
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

    /// Services and sessions per MAC address where the request came from.
    fn terms(&self, request: &Request<'_>) -> (&ServicePolicy, usize) {
        let port = self.ports.get(&request.line.port);
        let profile: Option<&VlanProfile> = port.and_then(|port| port.vlans.get(request.profile?));
        let config = &self.config;
        profile.map_or(
            (&config.services, config.limits.sessions_per_mac as usize),
            |profile| (&profile.services, profile.sessions_per_mac as usize),
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
        let (services, sessions_per_mac) = self.terms(request);
        if !services.serves(service_name) {
            return Err(DropReason::PadiServiceName);
        }
        if self.is_full()
            || self.table.count_port(line.port) >= limits.sessions_per_port
            || self.table.count_line(line) >= sessions_per_mac
        {
            return Err(DropReason::PadiBusy);
        }
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
        self.counters.count(Outcome::PadoSent);
        self.reply(request, code::PADO, None, tags);
        Ok(())
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
        let padr = keyed_digest(
            &self.digest_key,
            b"padr",
            &[cookie, &present, host_uniq.unwrap_or(&[])],
        );
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

        let circuit_id = &subscriber.circuit_id;
        if self.failures.is_locked(self.now, line, circuit_id) {
            return Err(DropReason::PadrLockedOut);
        }
        if let Err(refusal) = self.admit(request, &subscriber) {
            return self.refuse(request, refusal);
        }
        let tags = self.pads_tags(request)?;
        if self.table.half_open() >= self.config.limits.half_open
            && let Some(silent) = self.displaceable()
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

    /// Whether no session may become half-open.
    fn is_full(&self) -> bool {
        self.table.half_open() >= self.config.limits.half_open && self.displaceable().is_none()
    }

    /// A half-open session that gives way when their number is at its limit, so that clients that dial and then say nothing
    /// cannot keep others out: its peer has let a whole Restart period pass without a word.
    fn displaceable(&self) -> Option<u32> {
        let now = self.now.as_millis();
        let period = u64::try_from(self.config.restart_timer.as_millis()).unwrap_or(u64::MAX);
        self.table
            .silent(Time::from_millis(now.checked_sub(period)?))
    }

    fn admit(&self, request: &Request<'_>, subscriber: &Subscriber) -> Result<(), Refusal> {
        let limits = &self.config.limits;
        let line = request.line;
        let refuse = |text, outcome| Err(Refusal(kind::AC_SYSTEM_ERROR, text, outcome));
        let (services, sessions_per_mac) = self.terms(request);
        if !services.serves(&subscriber.service_name) {
            let text = b"service not offered";
            return Err(Refusal(
                kind::SERVICE_NAME_ERROR,
                text,
                Outcome::PadsServiceNameError,
            ));
        }
        if self.table.count_line(line) >= sessions_per_mac {
            return refuse(b"too many sessions of this client", Outcome::PadsMacLimit);
        }
        if self.table.count_circuit(line.port, &subscriber.circuit_id)
            >= limits.sessions_per_circuit
        {
            return refuse(
                b"too many sessions on this circuit",
                Outcome::PadsCircuitLimit,
            );
        }
        if self.table.count_port(line.port) >= limits.sessions_per_port {
            return refuse(b"too many sessions", Outcome::PadsPortLimit);
        }
        if self.is_full() {
            return refuse(b"busy, try again", Outcome::PadsHalfOpenLimit);
        }
        Ok(())
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
        let session_id = session.map_or(0, |s| s.session_id);
        // The writer's limit is far below what the length field holds, so a frame always comes out.
        if let Some(frame) = frame::discovery(&request.link, packet, session_id, &tags.finish()) {
            self.transmits.push_back(Transmit {
                port: request.port.id,
                session,
                frame,
            });
        }
    }
}
