//! One emulated subscriber: discovery (RFC 2516), LCP (RFC 1661), PAP (RFC 1334), IPCP (RFC 1332), as a sans-IO
//! state machine. Frames and time go in, frames come out; the owner asks for the next deadline after every call.

use std::net::Ipv4Addr;
use std::time::Duration;

use bng_pppoe::codec::frame::{self, Body, Frame, LinkHeader};
use bng_pppoe::codec::tags::kind;
use bng_pppoe::codec::{ControlPacket, TagWriter, Tags, control, lcp, pap};
use bng_wire::MacAddr;
use bng_wire::pppoe::{code, protocol};

use super::negotiation::{Change, Exchange};
use super::parameters::{IpcpParameters, LcpParameters};
use super::subscriber::{ClientCounters, ClientSettings, EndCause, Identity, Phase};

/// What a call works with besides the session itself.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    /// The moment, since the start of the run.
    pub(crate) now: Duration,
    /// Frames to send.
    pub(crate) out: &'a mut Vec<Vec<u8>>,
    /// Sums.
    pub(crate) counters: &'a mut ClientCounters,
    /// Settings.
    pub(crate) settings: &'a ClientSettings,
}

/// One subscriber.
#[derive(Debug)]
pub(crate) struct Client {
    identity: Identity,
    phase: Phase,
    peer: MacAddr,
    session_id: u16,
    /// AC-Cookie and Relay-Session-Id of the PADO, to be returned in PADR.
    offer: Vec<(u16, Vec<u8>)>,
    lcp: Exchange,
    lcp_parameters: LcpParameters,
    ipcp: Exchange,
    ipcp_parameters: IpcpParameters,
    pap_ids: std::ops::Range<u32>,
    next_id: u8,
    deadline: Option<Duration>,
    period: Duration,
    sent: u32,
    started: Duration,
    up_since: Option<Duration>,
}

impl Client {
    pub(crate) fn new(identity: Identity, settings: &ClientSettings) -> Self {
        Self {
            lcp_parameters: LcpParameters::new(settings.mru, identity.magic),
            identity,
            phase: Phase::Idle,
            peer: MacAddr::BROADCAST,
            session_id: 0,
            offer: Vec::new(),
            lcp: Exchange::new(),
            ipcp: Exchange::new(),
            ipcp_parameters: IpcpParameters::default(),
            pap_ids: 0..0,
            next_id: 0,
            deadline: None,
            period: Duration::ZERO,
            sent: 0,
            started: Duration::ZERO,
            up_since: None,
        }
    }

    pub(crate) const fn phase(&self) -> Phase {
        self.phase
    }

    /// When [`Self::handle_timeout`] is to be called.
    pub(crate) const fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// From the first PADI to the first time up.
    pub(crate) fn setup_time(&self) -> Option<Duration> {
        Some(self.up_since?.saturating_sub(self.started))
    }

    /// The address given by IPCP.
    pub(crate) const fn address(&self) -> Option<Ipv4Addr> {
        self.ipcp_parameters.address
    }

    /// DNS servers given by IPCP.
    #[cfg(test)]
    pub(crate) const fn dns(&self) -> [Option<Ipv4Addr>; 2] {
        self.ipcp_parameters.dns
    }

    /// PPPoE session id, 0 before PADS.
    pub(crate) const fn session_id(&self) -> u16 {
        self.session_id
    }

    /// Largest IP packet the peer takes, bytes.
    pub(crate) const fn peer_mru(&self) -> u16 {
        self.lcp_parameters.peer_mru
    }

    /// Addresses and tags of the frames of this session.
    pub(crate) const fn link(&self, settings: &ClientSettings) -> LinkHeader {
        LinkHeader {
            dst: self.peer,
            src: self.identity.mac,
            vlans: settings.vlans,
        }
    }

    /// Sends the first PADI.
    pub(crate) fn start(&mut self, cx: &mut Context<'_>) {
        self.started = cx.now;
        self.enter(Phase::Discovery, cx);
        self.send_padi(cx);
    }

    /// Ends the session with Terminate-Request and PADT.
    pub(crate) fn hang_up(&mut self, cause: EndCause, cx: &mut Context<'_>) {
        match self.phase {
            Phase::HangUp(_) | Phase::Ended(_) => {}
            Phase::Establish | Phase::Authenticate | Phase::Network | Phase::Up => {
                self.lcp.close();
                self.ipcp.close();
                self.enter(Phase::HangUp(cause), cx);
                self.send_terminate(cx);
            }
            Phase::Idle | Phase::Discovery | Phase::Request => self.end(cause),
        }
    }

    /// A frame sent to this subscriber's address. Returns the IP packet when it carries one and the session is up.
    pub(crate) fn handle<'a>(
        &mut self,
        frame: &Frame<'a>,
        cx: &mut Context<'_>,
    ) -> Option<&'a [u8]> {
        match frame.body {
            Body::Discovery {
                code,
                session_id,
                tags,
            } => self.handle_discovery(frame.src, code, session_id, &tags, cx),
            Body::Session {
                session_id,
                protocol,
                payload,
            } => {
                if session_id != self.session_id || frame.src != self.peer || session_id == 0 {
                    cx.counters.unexpected += 1;
                } else if protocol == protocol::IPV4 && self.phase == Phase::Up {
                    return Some(payload);
                } else {
                    self.handle_control(protocol, payload, cx);
                }
            }
        }
        None
    }

    /// The deadline has passed.
    pub(crate) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        if self.deadline.is_none_or(|deadline| deadline > cx.now) {
            return;
        }
        self.deadline = None;
        if let Phase::HangUp(cause) = self.phase {
            if self.sent >= cx.settings.max_terminate {
                self.send_padt(cx);
                self.end(cause);
                return;
            }
            cx.counters.retransmissions += 1;
            self.send_terminate(cx);
            return;
        }
        let Some(cause) = (match self.phase {
            Phase::Discovery => Some(EndCause::NoPado),
            Phase::Request => Some(EndCause::NoPads),
            Phase::Establish if self.lcp_parameters.other_authentication => {
                Some(EndCause::LcpRefused)
            }
            Phase::Establish => Some(EndCause::LcpTimeout),
            Phase::Authenticate => Some(EndCause::PapTimeout),
            Phase::Network => Some(EndCause::IpcpTimeout),
            Phase::Idle | Phase::Up | Phase::HangUp(_) | Phase::Ended(_) => None,
        }) else {
            return;
        };
        let late = cx.now >= self.started + cx.settings.setup_timeout && self.up_since.is_none();
        if late || self.sent >= cx.settings.max_configure {
            self.hang_up(cause, cx);
            return;
        }
        cx.counters.retransmissions += 1;
        match self.phase {
            Phase::Discovery => self.send_padi(cx),
            Phase::Request => self.send_padr(cx),
            Phase::Establish => {
                let mut packets = Vec::new();
                self.lcp.resend(&self.lcp_parameters, &mut packets);
                self.send_all(protocol::LCP, packets, cx);
                self.arm(cx);
            }
            Phase::Authenticate => self.send_pap(cx),
            Phase::Network => {
                let mut packets = Vec::new();
                self.ipcp.resend(&self.ipcp_parameters, &mut packets);
                self.send_all(protocol::IPCP, packets, cx);
                self.arm(cx);
            }
            Phase::Idle | Phase::Up | Phase::HangUp(_) | Phase::Ended(_) => {}
        }
    }

    fn enter(&mut self, phase: Phase, cx: &Context<'_>) {
        self.phase = phase;
        self.deadline = None;
        self.sent = 0;
        self.period = cx.settings.restart;
    }

    /// Counts a transmission and waits for its answer, twice as long as for the one before.
    fn arm(&mut self, cx: &Context<'_>) {
        self.sent += 1;
        self.deadline = Some(cx.now + self.period);
        self.period = (self.period * 2).min(cx.settings.restart_max);
    }

    fn end(&mut self, cause: EndCause) {
        self.phase = Phase::Ended(cause);
        self.deadline = None;
        self.lcp.close();
        self.ipcp.close();
    }

    fn send_tags(&self, code: u8, session_id: u16, tags: &[(u16, &[u8])], cx: &mut Context<'_>) {
        let mut writer = TagWriter::new(usize::from(lcp::PPPOE_MRU));
        // The tags are ours or come from one PADO, so they fit; a peer that makes them too long gets a short PADR.
        for (kind, value) in tags {
            let _fits = writer.put(*kind, value);
        }
        let frame = frame::discovery(&self.link(cx.settings), code, session_id, &writer.finish());
        cx.out.extend(frame);
    }

    fn send_padi(&mut self, cx: &mut Context<'_>) {
        self.peer = MacAddr::BROADCAST;
        let tags: [(u16, &[u8]); 2] = [
            (kind::SERVICE_NAME, &cx.settings.service_name.clone()),
            (kind::HOST_UNIQ, &self.identity.host_uniq),
        ];
        self.send_tags(code::PADI, 0, &tags, cx);
        self.arm(cx);
    }

    fn send_padr(&mut self, cx: &mut Context<'_>) {
        let service = cx.settings.service_name.clone();
        let mut tags: Vec<(u16, &[u8])> = vec![
            (kind::SERVICE_NAME, &service),
            (kind::HOST_UNIQ, &self.identity.host_uniq),
        ];
        tags.extend(
            self.offer
                .iter()
                .map(|(kind, value)| (*kind, value.as_slice())),
        );
        self.send_tags(code::PADR, 0, &tags, cx);
        self.arm(cx);
    }

    fn send_padt(&self, cx: &mut Context<'_>) {
        self.send_tags(code::PADT, self.session_id, &[], cx);
    }

    fn handle_discovery(
        &mut self,
        from: MacAddr,
        code: u8,
        session_id: u16,
        tags: &Tags<'_>,
        cx: &mut Context<'_>,
    ) {
        let ours = tags.find(kind::HOST_UNIQ) == Some(&self.identity.host_uniq[..]);
        match (code, self.phase) {
            (code::PADO, Phase::Discovery) if ours => {
                self.peer = from;
                self.offer = [kind::AC_COOKIE, kind::RELAY_SESSION_ID]
                    .into_iter()
                    .filter_map(|kind| Some((kind, tags.find(kind)?.to_vec())))
                    .collect();
                self.enter(Phase::Request, cx);
                self.send_padr(cx);
            }
            (code::PADS, Phase::Request) if ours && from == self.peer => {
                let refused = [
                    kind::SERVICE_NAME_ERROR,
                    kind::AC_SYSTEM_ERROR,
                    kind::GENERIC_ERROR,
                ];
                if session_id == 0 || refused.iter().any(|kind| tags.find(*kind).is_some()) {
                    self.end(EndCause::PadsRefused);
                    return;
                }
                self.session_id = session_id;
                self.establish(cx);
            }
            (code::PADT, phase) if from == self.peer && session_id == self.session_id => {
                match phase {
                    Phase::HangUp(cause) => self.end(cause),
                    Phase::Establish | Phase::Authenticate | Phase::Network | Phase::Up => {
                        self.end(EndCause::PeerPadt);
                    }
                    // Our PADT and the peer's crossed, or the peer sends one after its Terminate-Request.
                    Phase::Ended(_) => {}
                    Phase::Idle | Phase::Discovery | Phase::Request => {
                        cx.counters.unexpected += 1;
                    }
                }
            }
            // A repeated PADO or PADS answers a PADI or PADR of ours that was sent again.
            (code::PADO | code::PADS, _) if ours => {}
            _ => cx.counters.unexpected += 1,
        }
    }

    fn establish(&mut self, cx: &mut Context<'_>) {
        self.enter(Phase::Establish, cx);
        let mut packets = Vec::new();
        self.lcp.open(&self.lcp_parameters, &mut packets);
        self.send_all(protocol::LCP, packets, cx);
        self.arm(cx);
    }

    fn handle_control(&mut self, protocol: u16, payload: &[u8], cx: &mut Context<'_>) {
        let known = matches!(protocol, protocol::LCP | protocol::PAP | protocol::IPCP);
        if !known {
            // RFC 1661 section 5.7: only in LCP Opened.
            if self.lcp.is_opened() && protocol != protocol::IPV4 {
                let mut data = protocol.to_be_bytes().to_vec();
                data.extend_from_slice(payload.get(..payload.len().min(1_000)).unwrap_or(payload));
                let id = self.take_id();
                self.send_packet(lcp::code::PROTOCOL_REJECT, id, &data, cx);
            } else {
                cx.counters.unexpected += 1;
            }
            return;
        }
        let Ok(packet) = ControlPacket::parse(payload) else {
            cx.counters.unexpected += 1;
            return;
        };
        match protocol {
            protocol::LCP => self.handle_lcp(&packet, cx),
            protocol::PAP => self.handle_pap(&packet, cx),
            _ => self.handle_ipcp(&packet, cx),
        }
    }

    fn handle_lcp(&mut self, packet: &ControlPacket<'_>, cx: &mut Context<'_>) {
        match packet.code {
            lcp::code::CONFIGURE_REQUEST
            | lcp::code::CONFIGURE_ACK
            | lcp::code::CONFIGURE_NAK
            | lcp::code::CONFIGURE_REJECT => {
                let mut packets = Vec::new();
                let change = self
                    .lcp
                    .handle(packet, &mut self.lcp_parameters, &mut packets);
                self.send_all(protocol::LCP, packets, cx);
                self.lcp_changed(change, cx);
            }
            lcp::code::TERMINATE_REQUEST => {
                self.send_packet(lcp::code::TERMINATE_ACK, packet.id, &[], cx);
                match self.phase {
                    Phase::Establish | Phase::Authenticate | Phase::Network | Phase::Up => {
                        self.end(EndCause::PeerTerminated);
                    }
                    _ => {}
                }
            }
            lcp::code::TERMINATE_ACK => {
                if let Phase::HangUp(cause) = self.phase {
                    self.send_padt(cx);
                    self.end(cause);
                }
            }
            lcp::code::ECHO_REQUEST if self.lcp.is_opened() => {
                let mut data = self.lcp_parameters.magic().to_be_bytes().to_vec();
                data.extend_from_slice(packet.data.get(4..).unwrap_or(&[]));
                self.send_packet(lcp::code::ECHO_REPLY, packet.id, &data, cx);
                cx.counters.echo_answered += 1;
            }
            lcp::code::PROTOCOL_REJECT => {
                let ipcp = packet.data.get(..2) == Some(&protocol::IPCP.to_be_bytes()[..]);
                if ipcp && self.phase == Phase::Network {
                    self.hang_up(EndCause::IpcpRefused, cx);
                }
            }
            lcp::code::ECHO_REQUEST
            | lcp::code::ECHO_REPLY
            | lcp::code::CODE_REJECT
            | lcp::code::DISCARD_REQUEST
            | lcp::code::IDENTIFICATION
            | lcp::code::TIME_REMAINING => {}
            _ => {
                let id = self.take_id();
                self.send_packet(lcp::code::CODE_REJECT, id, packet.raw, cx);
            }
        }
    }

    fn lcp_changed(&mut self, change: Change, cx: &mut Context<'_>) {
        match change {
            Change::None => {}
            Change::Progress => self.restart_timer(cx),
            Change::Refused => self.hang_up(EndCause::LcpRefused, cx),
            Change::Reopening => {
                cx.counters.renegotiations += 1;
                self.ipcp.close();
                self.enter(Phase::Establish, cx);
                self.arm(cx);
            }
            Change::Opened if self.lcp_parameters.peer_wants_pap => {
                self.enter(Phase::Authenticate, cx);
                self.pap_ids = u32::from(self.next_id)..u32::from(self.next_id);
                self.send_pap(cx);
            }
            Change::Opened => self.open_network(cx),
        }
    }

    /// The peer answered a request: RFC 1661 section 4.4, Initialize-Restart-Count. `setup_timeout` bounds the whole.
    fn restart_timer(&mut self, cx: &Context<'_>) {
        self.sent = 1;
        self.deadline = Some(cx.now + cx.settings.restart);
        self.period = (cx.settings.restart * 2).min(cx.settings.restart_max);
    }

    fn send_pap(&mut self, cx: &mut Context<'_>) {
        // RFC 1334 section 2.2.1: the identifier changes with every request.
        let id = self.take_id();
        self.pap_ids.end = self.pap_ids.start + self.sent + 1;
        let request = pap::write_request(
            id,
            pap::Credentials {
                name: &self.identity.user,
                password: &self.identity.password,
            },
        );
        self.send_all(protocol::PAP, vec![request], cx);
        self.arm(cx);
    }

    fn handle_pap(&mut self, packet: &ControlPacket<'_>, cx: &mut Context<'_>) {
        // Any of the requests of this attempt may be the one that is answered.
        let behind = packet.id.wrapping_sub(self.pap_ids.start as u8);
        let ours = u32::from(behind) < self.pap_ids.end - self.pap_ids.start;
        if self.phase != Phase::Authenticate || !ours {
            return;
        }
        match packet.code {
            pap::code::AUTHENTICATE_ACK => self.open_network(cx),
            pap::code::AUTHENTICATE_NAK => self.hang_up(EndCause::PapRefused, cx),
            _ => cx.counters.unexpected += 1,
        }
    }

    fn open_network(&mut self, cx: &mut Context<'_>) {
        self.enter(Phase::Network, cx);
        let mut packets = Vec::new();
        self.ipcp.open(&self.ipcp_parameters, &mut packets);
        self.send_all(protocol::IPCP, packets, cx);
        self.arm(cx);
    }

    fn handle_ipcp(&mut self, packet: &ControlPacket<'_>, cx: &mut Context<'_>) {
        if !matches!(self.phase, Phase::Network | Phase::Up) {
            return;
        }
        if packet.code == lcp::code::TERMINATE_REQUEST {
            let ack = control::write(lcp::code::TERMINATE_ACK, packet.id, &[]);
            self.send_all(protocol::IPCP, vec![ack], cx);
            self.hang_up(EndCause::IpcpRefused, cx);
            return;
        }
        let mut packets = Vec::new();
        let change = self
            .ipcp
            .handle(packet, &mut self.ipcp_parameters, &mut packets);
        self.send_all(protocol::IPCP, packets, cx);
        match change {
            Change::None => {}
            Change::Progress => self.restart_timer(cx),
            Change::Refused => self.hang_up(EndCause::IpcpRefused, cx),
            Change::Reopening => {
                cx.counters.renegotiations += 1;
                self.enter(Phase::Network, cx);
                self.arm(cx);
            }
            Change::Opened if self.address().is_some_and(|a| !a.is_unspecified()) => {
                self.enter(Phase::Up, cx);
                self.up_since.get_or_insert(cx.now);
            }
            Change::Opened => self.hang_up(EndCause::IpcpRefused, cx),
        }
    }

    fn take_id(&mut self) -> u8 {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        id
    }

    fn send_terminate(&mut self, cx: &mut Context<'_>) {
        let id = self.take_id();
        self.send_packet(lcp::code::TERMINATE_REQUEST, id, &[], cx);
        self.arm(cx);
    }

    fn send_packet(&self, code: u8, id: u8, data: &[u8], cx: &mut Context<'_>) {
        self.send_all(protocol::LCP, vec![control::write(code, id, data)], cx);
    }

    fn send_all(&self, protocol: u16, packets: Vec<Vec<u8>>, cx: &mut Context<'_>) {
        let link = self.link(cx.settings);
        cx.out.extend(
            packets
                .iter()
                .filter_map(|packet| frame::session(&link, self.session_id, protocol, packet)),
        );
    }
}
