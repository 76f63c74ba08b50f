//! One emulated subscriber: discovery (RFC 2516), LCP (RFC 1661), PAP (RFC 1334), CHAP (RFC 1994), IPCP (RFC 1332), IPv6CP (RFC 5072) and
//! router solicitation (RFC 4861), as a sans-IO state machine. Frames and time go in, frames come out; the owner asks for the next deadline after every call.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use bng_pppoe::codec::frame::{self, Body, Frame, LinkHeader};
use bng_pppoe::codec::tags::kind;
use bng_pppoe::codec::{ControlPacket, TagWriter, Tags, chap, control, lcp, nd, pap};
use bng_wire::MacAddr;
use bng_wire::pppoe::{code, protocol};

use super::Auth;
use super::advertisement::Advertisement;
use super::negotiation::{Change, Exchange};
use super::parameters::{IpcpParameters, Ipv6cpParameters, LcpParameters};
use super::subscriber::{ClientCounters, ClientSettings, EndCause, Identity, Octets, Phase};
use crate::probe::Family;

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

/// The modified EUI-64 of a MAC address (RFC 4291 appendix A).
const fn interface_id(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
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
    ipv6cp: Exchange,
    ipv6cp_parameters: Ipv6cpParameters,
    /// The router's last word on IPv6.
    advertisement: Option<Advertisement>,
    pap_ids: std::ops::Range<u32>,
    /// The latest CHAP Response, to be repeated while no verdict has come.
    chap_response: Option<Vec<u8>>,
    next_id: u8,
    deadline: Option<Duration>,
    period: Duration,
    sent: u32,
    started: Duration,
    up_since: Option<Duration>,
    octets: Octets,
}

impl Client {
    pub(crate) fn new(identity: Identity, settings: &ClientSettings) -> Self {
        Self {
            lcp_parameters: LcpParameters::new(settings.mru, identity.magic, settings.auth),
            ipv6cp_parameters: Ipv6cpParameters::new(interface_id(identity.mac)),
            identity,
            phase: Phase::Idle,
            peer: MacAddr::BROADCAST,
            session_id: 0,
            offer: Vec::new(),
            lcp: Exchange::new(),
            ipcp: Exchange::new(),
            ipcp_parameters: IpcpParameters::default(),
            ipv6cp: Exchange::new(),
            advertisement: None,
            pap_ids: 0..0,
            chap_response: None,
            next_id: 0,
            deadline: None,
            period: Duration::ZERO,
            sent: 0,
            started: Duration::ZERO,
            up_since: None,
            octets: Octets::default(),
        }
    }

    /// The same subscriber, before a session of its own: nothing is left of the one before but the next identifier.
    pub(crate) fn again(&mut self, settings: &ClientSettings) {
        let fresh = Self::new(self.identity.clone(), settings);
        *self = Self {
            next_id: self.next_id,
            ..fresh
        };
    }

    /// What the session has carried.
    pub(crate) const fn octets(&self) -> Octets {
        self.octets
    }

    /// An IP packet of this many bytes goes into the session.
    pub(crate) fn count_sent(&mut self, bytes: u64) {
        self.octets.up_packets += 1;
        self.octets.up_bytes += bytes;
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

    /// The first address in the prefix the router advertises.
    pub(crate) fn address6(&self) -> Option<Ipv6Addr> {
        let prefix = self.advertisement.as_ref()?.prefix?;
        Some(Ipv6Addr::from_bits(prefix.to_bits() | 1))
    }

    /// The address of a family.
    pub(crate) fn address_of(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.address().map(IpAddr::V4),
            Family::V6 => self.address6().map(IpAddr::V6),
        }
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
                self.close_all();
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
                } else if protocol == protocol::IPV6 && self.ipv6cp.is_opened() {
                    match Advertisement::parse(payload) {
                        Some(advertisement) => self.advertised(advertisement, cx),
                        None => return self.data(payload, cx),
                    }
                } else if protocol == protocol::IPV4 {
                    return self.data(payload, cx);
                } else {
                    self.handle_control(protocol, payload, cx);
                }
            }
        }
        None
    }

    /// An IP packet. Until the peer has confirmed that the session is over, it may send, and counts what it sends.
    fn data<'a>(&mut self, packet: &'a [u8], cx: &mut Context<'_>) -> Option<&'a [u8]> {
        match self.phase {
            Phase::Up | Phase::HangUp(_) => {
                self.octets.down_packets += 1;
                self.octets.down_bytes += packet.len() as u64;
                Some(packet)
            }
            _ => {
                cx.counters.unexpected += 1;
                None
            }
        }
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
            Phase::Authenticate => Some(match cx.settings.auth {
                Auth::Pap => EndCause::PapTimeout,
                Auth::Chap => EndCause::ChapTimeout,
            }),
            Phase::Network if !self.ipcp.is_opened() => Some(EndCause::IpcpTimeout),
            Phase::Network if !self.ipv6cp.is_opened() => Some(EndCause::Ipv6cpTimeout),
            Phase::Network => Some(EndCause::NoAdvertisement),
            Phase::Idle | Phase::Up | Phase::HangUp(_) | Phase::Ended(_) => None,
        }) else {
            return;
        };
        let late = cx.now >= self.started + cx.settings.setup_timeout && self.up_since.is_none();
        if late || self.sent >= cx.settings.max_configure {
            self.hang_up(cause, cx);
            return;
        }
        // Until a Challenge has come there is nothing to repeat.
        let waits = self.phase == Phase::Authenticate
            && cx.settings.auth == Auth::Chap
            && self.chap_response.is_none();
        cx.counters.retransmissions += u64::from(!waits);
        match self.phase {
            Phase::Discovery => self.send_padi(cx),
            Phase::Request => self.send_padr(cx),
            Phase::Establish => {
                let mut packets = Vec::new();
                self.lcp.resend(&self.lcp_parameters, &mut packets);
                self.send_all(protocol::LCP, packets, cx);
                self.arm(cx);
            }
            Phase::Authenticate => match cx.settings.auth {
                Auth::Pap => self.send_pap(cx),
                // RFC 1994 section 4.2: a Success may be lost, so the Response is repeated.
                Auth::Chap => {
                    let response = self.chap_response.iter().cloned().collect();
                    self.send_all(protocol::CHAP, response, cx);
                    self.arm(cx);
                }
            },
            Phase::Network => self.resend_network(cx),
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
        self.close_all();
    }

    fn close_all(&mut self) {
        self.lcp.close();
        self.ipcp.close();
        self.ipv6cp.close();
    }

    fn send_tags(&self, code: u8, session_id: u16, tags: &[(u16, &[u8])], cx: &mut Context<'_>) {
        let mut writer = TagWriter::new(usize::from(lcp::PPPOE_MRU));
        let max_payload = cx.settings.mru.to_be_bytes();
        let request = matches!(code, code::PADI | code::PADR);
        if request && cx.settings.mru > lcp::PPPOE_MRU {
            let _fits = writer.put(kind::PPP_MAX_PAYLOAD, &max_payload);
        }
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
                // RFC 4638 section 4: what the PADS does not grant is not negotiated.
                let granted = tags.ppp_max_payload().unwrap_or(0);
                self.lcp_parameters.limit_mru(granted.max(lcp::PPPOE_MRU));
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
        let auth = match cx.settings.auth {
            Auth::Pap => protocol::PAP,
            Auth::Chap => protocol::CHAP,
        };
        let known = matches!(protocol, protocol::LCP | protocol::IPCP)
            || protocol == auth
            || (protocol == protocol::IPV6CP && cx.settings.ipv6);
        if !known {
            let data = protocol == protocol::IPV6 && cx.settings.ipv6;
            // RFC 1661 section 5.7: only in LCP Opened.
            if self.lcp.is_opened() && !data {
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
            protocol::CHAP => self.handle_chap(&packet, cx),
            protocol::IPCP => self.handle_ipcp(&packet, cx),
            _ => self.handle_ipv6cp(&packet, cx),
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
                let rejected = packet.data.first_chunk().copied().map(u16::from_be_bytes);
                match rejected {
                    Some(protocol::IPCP) if self.phase == Phase::Network => {
                        self.hang_up(EndCause::IpcpRefused, cx);
                    }
                    Some(protocol::IPV6CP) if self.phase == Phase::Network => {
                        self.hang_up(EndCause::Ipv6cpRefused, cx);
                    }
                    _ => {}
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
                self.ipv6cp.close();
                self.enter(Phase::Establish, cx);
                self.arm(cx);
            }
            Change::Opened if self.lcp_parameters.peer_authenticates => {
                self.enter(Phase::Authenticate, cx);
                match cx.settings.auth {
                    Auth::Pap => {
                        self.pap_ids = u32::from(self.next_id)..u32::from(self.next_id);
                        self.send_pap(cx);
                    }
                    Auth::Chap => {
                        self.chap_response = None;
                        self.arm(cx);
                    }
                }
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

    /// Challenges come at the start and, if the peer likes, on the live session.
    fn handle_chap(&mut self, packet: &ControlPacket<'_>, cx: &mut Context<'_>) {
        if !matches!(self.phase, Phase::Authenticate | Phase::Network | Phase::Up) {
            return;
        }
        match (packet.code, chap::parse_value(packet.data)) {
            (chap::code::CHALLENGE, Ok(challenge)) => {
                let secret = &self.identity.password;
                let response = chap::Value {
                    value: &chap::md5_response(packet.id, secret, challenge.value),
                    name: &self.identity.user,
                };
                let response = chap::write_value(chap::code::RESPONSE, packet.id, response);
                cx.counters.challenges_answered += 1;
                self.chap_response = Some(response.clone());
                self.send_all(protocol::CHAP, vec![response], cx);
            }
            (chap::code::SUCCESS, _) if self.phase == Phase::Authenticate => {
                self.open_network(cx);
            }
            (chap::code::SUCCESS, _) => {}
            (chap::code::FAILURE, _) => self.hang_up(EndCause::ChapRefused, cx),
            _ => cx.counters.unexpected += 1,
        }
    }

    fn open_network(&mut self, cx: &mut Context<'_>) {
        self.enter(Phase::Network, cx);
        let mut packets = Vec::new();
        self.ipcp.open(&self.ipcp_parameters, &mut packets);
        self.send_all(protocol::IPCP, packets, cx);
        if cx.settings.ipv6 {
            let mut packets = Vec::new();
            self.ipv6cp.open(&self.ipv6cp_parameters, &mut packets);
            self.send_all(protocol::IPV6CP, packets, cx);
        }
        self.arm(cx);
    }

    /// The restart timer fired in the network phase: what is still missing is asked for again.
    fn resend_network(&mut self, cx: &mut Context<'_>) {
        if !self.ipcp.is_opened() {
            let mut packets = Vec::new();
            self.ipcp.resend(&self.ipcp_parameters, &mut packets);
            self.send_all(protocol::IPCP, packets, cx);
        }
        if cx.settings.ipv6 && !self.ipv6cp.is_opened() {
            let mut packets = Vec::new();
            self.ipv6cp.resend(&self.ipv6cp_parameters, &mut packets);
            self.send_all(protocol::IPV6CP, packets, cx);
        } else if cx.settings.ipv6 && self.address6().is_none() {
            self.send_solicitation(cx);
        }
        self.arm(cx);
    }

    fn send_solicitation(&self, cx: &mut Context<'_>) {
        let source = nd::link_local(self.ipv6cp_parameters.ours);
        self.send_all(protocol::IPV6, vec![nd::router_solicitation(source)], cx);
    }

    fn advertised(&mut self, advertisement: Advertisement, cx: &mut Context<'_>) {
        cx.counters.advertisements += 1;
        // Only the router of this link may speak (RFC 4861 section 6.1.2).
        if advertisement.router == nd::link_local(self.ipv6cp_parameters.peer) {
            self.advertisement = Some(advertisement);
            self.settle(cx);
        }
    }

    /// Up, when every address asked for is there.
    fn settle(&mut self, cx: &mut Context<'_>) {
        let ipv6 = !cx.settings.ipv6 || (self.ipv6cp.is_opened() && self.address6().is_some());
        if self.phase == Phase::Network && self.ipcp.is_opened() && ipv6 {
            self.enter(Phase::Up, cx);
            self.up_since.get_or_insert(cx.now);
        }
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
                self.settle(cx);
            }
            Change::Opened => self.hang_up(EndCause::IpcpRefused, cx),
        }
    }

    fn handle_ipv6cp(&mut self, packet: &ControlPacket<'_>, cx: &mut Context<'_>) {
        if !matches!(self.phase, Phase::Network | Phase::Up) {
            return;
        }
        if packet.code == lcp::code::TERMINATE_REQUEST {
            let ack = control::write(lcp::code::TERMINATE_ACK, packet.id, &[]);
            self.send_all(protocol::IPV6CP, vec![ack], cx);
            self.hang_up(EndCause::Ipv6cpRefused, cx);
            return;
        }
        let mut packets = Vec::new();
        let change = self
            .ipv6cp
            .handle(packet, &mut self.ipv6cp_parameters, &mut packets);
        self.send_all(protocol::IPV6CP, packets, cx);
        match change {
            Change::None => {}
            Change::Progress => self.restart_timer(cx),
            Change::Refused => self.hang_up(EndCause::Ipv6cpRefused, cx),
            Change::Reopening => {
                cx.counters.renegotiations += 1;
                self.advertisement = None;
                self.enter(Phase::Network, cx);
                self.arm(cx);
            }
            Change::Opened => {
                self.send_solicitation(cx);
                self.settle(cx);
            }
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
