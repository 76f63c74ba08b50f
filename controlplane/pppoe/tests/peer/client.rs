//! A client with a state machine of its own, as simple as one can be.

use std::net::Ipv4Addr;
use std::time::Duration;

use bng_pppoe::codec::control::{self, ControlPacket, Options, put_option};
use bng_pppoe::codec::frame::{self, Body, Frame, LinkHeader};
use bng_pppoe::codec::{TagWriter, chap, ipcp, ipv6cp, lcp, pap, tags::kind};
use bng_pppoe::{AuthProtocol, PortId};
use bng_wire::pppoe::{code, protocol};
use bng_wire::{MacAddr, VlanStack};

use super::{AC_MAC, PORT, World, as_control};

/// What a client does when it is not asked otherwise, and what it has seen.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) port: PortId,
    pub(crate) ac_mac: MacAddr,
    pub(crate) mac: MacAddr,
    pub(crate) vlans: VlanStack,
    pub(crate) host_uniq: Vec<u8>,
    pub(crate) service_name: Vec<u8>,
    pub(crate) max_payload: Option<u16>,
    pub(crate) name: Vec<u8>,
    pub(crate) password: Vec<u8>,
    /// Extra LCP options of the first request, dropped once rejected.
    pub(crate) extra_lcp: Vec<u8>,
    pub(crate) mru: u16,
    pub(crate) magic: u32,
    pub(crate) ip: Ipv4Addr,
    pub(crate) insists_on_ip: bool,
    pub(crate) answers_echo: bool,
    pub(crate) cookie: Vec<u8>,
    pub(crate) session_id: u16,
    pub(crate) id: u8,
    pub(crate) lcp_acked: (bool, bool),
    pub(crate) dns: Vec<(u8, Ipv4Addr)>,
    pub(crate) ipcp_acked: (bool, bool),
    /// Whether it speaks IPCP.
    pub(crate) has_ipv4: bool,
    /// The identifier it asks for, when it speaks IPv6CP.
    pub(crate) interface_id: Option<u64>,
    /// Whether it takes another identifier when told to.
    pub(crate) insists_on_id: bool,
    pub(crate) ipv6cp_acked: (bool, bool),
    /// IPv6 packets received.
    pub(crate) ipv6: Vec<Vec<u8>>,
    /// What the engine asked it to authenticate by.
    pub(crate) auth: AuthProtocol,
    /// The one protocol it knows; others are Nak'd. `None` takes what it is asked.
    pub(crate) only_auth: Option<AuthProtocol>,
    pub(crate) pap_reply: Option<u8>,
    pub(crate) chap_reply: Option<u8>,
    pub(crate) answers_challenges: bool,
    /// Identifier and value of each challenge.
    pub(crate) challenges: Vec<(u8, Vec<u8>)>,
    pub(crate) ended: bool,
    pub(crate) seen: Vec<(u16, u8)>,
}

impl Client {
    pub(crate) fn new(number: u16) -> Self {
        let [high, low] = number.to_be_bytes();
        Client {
            port: PORT,
            ac_mac: AC_MAC,
            mac: MacAddr([2, 0, 0, 0, high, low]),
            vlans: VlanStack::UNTAGGED,
            host_uniq: vec![high, low, 1],
            service_name: vec![],
            max_payload: None,
            name: b"alice".to_vec(),
            password: b"secret".to_vec(),
            extra_lcp: vec![],
            mru: 1492,
            magic: 0x1122_3344,
            ip: Ipv4Addr::UNSPECIFIED,
            insists_on_ip: false,
            answers_echo: true,
            cookie: vec![],
            session_id: 0,
            id: 0,
            lcp_acked: (false, false),
            dns: vec![(129, Ipv4Addr::UNSPECIFIED), (131, Ipv4Addr::UNSPECIFIED)],
            ipcp_acked: (false, false),
            has_ipv4: true,
            interface_id: None,
            insists_on_id: false,
            ipv6cp_acked: (false, false),
            ipv6: vec![],
            auth: AuthProtocol::Pap,
            only_auth: None,
            pap_reply: None,
            chap_reply: None,
            answers_challenges: true,
            challenges: vec![],
            ended: false,
            seen: vec![],
        }
    }

    pub(crate) fn link(&self) -> LinkHeader {
        LinkHeader {
            dst: self.ac_mac,
            src: self.mac,
            vlans: self.vlans,
        }
    }

    fn discovery_tags(&self, with_cookie: bool) -> Vec<u8> {
        let mut tags = TagWriter::new(1494);
        assert!(tags.put(kind::HOST_UNIQ, &self.host_uniq));
        assert!(tags.put(kind::SERVICE_NAME, &self.service_name));
        if with_cookie {
            assert!(tags.put(kind::AC_COOKIE, &self.cookie));
        }
        if let Some(max) = self.max_payload {
            assert!(tags.put(kind::PPP_MAX_PAYLOAD, &max.to_be_bytes()));
        }
        tags.finish()
    }

    pub(crate) fn padi(&self) -> Vec<u8> {
        self.padi_with(&self.discovery_tags(false))
    }

    pub(crate) fn padi_with(&self, tags: &[u8]) -> Vec<u8> {
        let link = LinkHeader {
            dst: MacAddr::BROADCAST,
            ..self.link()
        };
        frame::discovery(&link, code::PADI, 0, tags).unwrap()
    }

    pub(crate) fn padr(&self) -> Vec<u8> {
        self.padr_with(&self.discovery_tags(true))
    }

    pub(crate) fn padr_with(&self, tags: &[u8]) -> Vec<u8> {
        frame::discovery(&self.link(), code::PADR, 0, tags).unwrap()
    }

    pub(crate) fn padt(&self) -> Vec<u8> {
        frame::discovery(&self.link(), code::PADT, self.session_id, &[]).unwrap()
    }

    pub(crate) fn ppp(&self, protocol: u16, payload: &[u8]) -> Vec<u8> {
        frame::session(&self.link(), self.session_id, protocol, payload).unwrap()
    }

    pub(crate) fn lcp(&self, code: u8, id: u8, data: &[u8]) -> Vec<u8> {
        self.ppp(protocol::LCP, &control::write(code, id, data))
    }

    pub(crate) fn ipcp(&self, code: u8, id: u8, data: &[u8]) -> Vec<u8> {
        self.ppp(protocol::IPCP, &control::write(code, id, data))
    }

    pub(crate) fn pap(&self, id: u8) -> Vec<u8> {
        let credentials = pap::Credentials {
            name: &self.name,
            password: &self.password,
        };
        self.ppp(protocol::PAP, &pap::write_request(id, credentials))
    }

    /// The response to the latest challenge.
    pub(crate) fn chap(&self) -> Vec<u8> {
        let (id, challenge) = self.challenges.last().unwrap();
        self.chap_with(*id, &chap::md5_response(*id, &self.password, challenge))
    }

    pub(crate) fn chap_with(&self, id: u8, value: &[u8]) -> Vec<u8> {
        let value = chap::Value {
            value,
            name: &self.name,
        };
        let packet = chap::write_value(chap::code::RESPONSE, id, value);
        self.ppp(protocol::CHAP, &packet)
    }

    pub(crate) fn lcp_options(&self) -> Vec<u8> {
        let mut list = vec![];
        put_option(&mut list, lcp::option::MRU, &self.mru.to_be_bytes());
        list.extend_from_slice(&self.extra_lcp);
        put_option(
            &mut list,
            lcp::option::MAGIC_NUMBER,
            &self.magic.to_be_bytes(),
        );
        list
    }

    pub(crate) fn lcp_request(&mut self) -> Vec<u8> {
        self.id = self.id.wrapping_add(1);
        self.lcp(lcp::code::CONFIGURE_REQUEST, self.id, &self.lcp_options())
    }

    pub(crate) fn ipcp_request(&mut self) -> Vec<u8> {
        self.id = self.id.wrapping_add(1);
        let mut list = vec![];
        put_option(&mut list, ipcp::option::IP_ADDRESS, &self.ip.octets());
        for (kind, address) in &self.dns {
            put_option(&mut list, *kind, &address.octets());
        }
        self.ipcp(lcp::code::CONFIGURE_REQUEST, self.id, &list)
    }

    pub(crate) fn ipv6cp(&self, code: u8, id: u8, data: &[u8]) -> Vec<u8> {
        self.ppp(protocol::IPV6CP, &control::write(code, id, data))
    }

    pub(crate) fn ipv6cp_request(&mut self) -> Vec<u8> {
        self.id = self.id.wrapping_add(1);
        let mut list = vec![];
        let own = self.interface_id.unwrap_or(0).to_be_bytes();
        put_option(&mut list, ipv6cp::option::INTERFACE_IDENTIFIER, &own);
        self.ipv6cp(lcp::code::CONFIGURE_REQUEST, self.id, &list)
    }

    fn network_requests(&mut self) -> Vec<Vec<u8>> {
        let mut out = vec![];
        if self.has_ipv4 {
            out.push(self.ipcp_request());
        }
        if self.interface_id.is_some() {
            out.push(self.ipv6cp_request());
        }
        out
    }

    fn protocol_reject(&mut self, number: u16, packet: ControlPacket<'_>) -> Vec<Vec<u8>> {
        self.id = self.id.wrapping_add(1);
        let rejected = [&number.to_be_bytes(), packet.raw].concat();
        vec![self.lcp(lcp::code::PROTOCOL_REJECT, self.id, &rejected)]
    }

    fn lcp_opened(&mut self) -> Vec<Vec<u8>> {
        if self.lcp_acked == (true, true) && self.auth == AuthProtocol::Pap {
            self.id = self.id.wrapping_add(1);
            vec![self.pap(self.id)]
        } else {
            vec![]
        }
    }

    /// Reacts to a frame as a client does.
    pub(crate) fn react(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let Frame {
            dst, vlans, body, ..
        } = frame::parse(bytes).unwrap();
        assert_eq!(
            (dst, vlans),
            (self.mac, self.vlans.without_priority_tags()),
            "addressed as the client is"
        );
        match body {
            Body::Discovery {
                code: packet,
                session_id,
                tags,
            } => {
                self.seen.push((0, packet));
                match packet {
                    code::PADO => {
                        self.cookie = tags.find(kind::AC_COOKIE).unwrap().to_vec();
                        vec![self.padr()]
                    }
                    code::PADS if session_id != 0 => {
                        self.session_id = session_id;
                        vec![self.lcp_request()]
                    }
                    _ => {
                        self.ended = true;
                        vec![]
                    }
                }
            }
            Body::Session {
                session_id,
                protocol: proto,
                payload,
            } => {
                assert_eq!(session_id, self.session_id);
                if proto == protocol::IPV6 {
                    self.ipv6.push(payload.to_vec());
                    return vec![];
                }
                let packet = ControlPacket::parse(payload).unwrap();
                self.seen.push((proto, packet.code));
                match proto {
                    protocol::LCP => self.react_lcp(packet),
                    protocol::PAP => {
                        self.pap_reply = Some(packet.code);
                        if packet.code == pap::code::AUTHENTICATE_ACK {
                            self.network_requests()
                        } else {
                            vec![]
                        }
                    }
                    protocol::CHAP => self.react_chap(packet),
                    protocol::IPCP if self.has_ipv4 => self.react_ipcp(packet),
                    protocol::IPV6CP if self.interface_id.is_some() => self.react_ipv6cp(packet),
                    protocol::IPCP | protocol::IPV6CP => self.protocol_reject(proto, packet),
                    other => panic!("unexpected protocol {other:#06x}"),
                }
            }
        }
    }

    fn react_chap(&mut self, packet: ControlPacket<'_>) -> Vec<Vec<u8>> {
        if packet.code == chap::code::CHALLENGE {
            let challenge = chap::parse_value(packet.data).unwrap();
            self.challenges.push((packet.id, challenge.value.to_vec()));
            return match self.answers_challenges {
                true => vec![self.chap()],
                false => vec![],
            };
        }
        assert_eq!(Some(packet.id), self.challenges.last().map(|it| it.0));
        let is_first = self.chap_reply.replace(packet.code) != Some(chap::code::SUCCESS);
        match packet.code == chap::code::SUCCESS && is_first {
            true => self.network_requests(),
            false => vec![],
        }
    }

    fn react_lcp(&mut self, packet: ControlPacket<'_>) -> Vec<Vec<u8>> {
        match packet.code {
            lcp::code::CONFIGURE_REQUEST => {
                if self.lcp_acked.1 {
                    // Already acknowledged: only the answer was early.
                    return vec![self.lcp(lcp::code::CONFIGURE_ACK, packet.id, packet.data)];
                }
                let options = Options::parse(packet.data).unwrap();
                let asked = options.find(lcp::option::AUTHENTICATION_PROTOCOL);
                let asked = AuthProtocol::of_option(asked.unwrap().data).unwrap();
                if let Some(only) = self.only_auth.filter(|only| *only != asked) {
                    let mut hint = vec![];
                    let kind = lcp::option::AUTHENTICATION_PROTOCOL;
                    put_option(&mut hint, kind, only.option_data());
                    return vec![self.lcp(lcp::code::CONFIGURE_NAK, packet.id, &hint)];
                }
                self.auth = asked;
                self.lcp_acked.1 = true;
                let mut out = vec![self.lcp(lcp::code::CONFIGURE_ACK, packet.id, packet.data)];
                out.extend(self.lcp_opened());
                out
            }
            lcp::code::CONFIGURE_ACK => {
                assert_eq!(packet.data, self.lcp_options());
                self.lcp_acked.0 = true;
                self.lcp_opened()
            }
            lcp::code::CONFIGURE_NAK => {
                let options = Options::parse(packet.data).unwrap();
                if let Some(mru) = options.find(lcp::option::MRU) {
                    self.mru = u16::from_be_bytes(mru.data.try_into().unwrap());
                }
                vec![self.lcp_request()]
            }
            lcp::code::CONFIGURE_REJECT => {
                assert_eq!(packet.data, self.extra_lcp, "rejected in order");
                self.extra_lcp.clear();
                vec![self.lcp_request()]
            }
            lcp::code::ECHO_REQUEST if self.answers_echo => {
                let magic = self.magic.to_be_bytes();
                vec![self.lcp(lcp::code::ECHO_REPLY, packet.id, &magic)]
            }
            lcp::code::TERMINATE_REQUEST => {
                vec![self.lcp(lcp::code::TERMINATE_ACK, packet.id, &[])]
            }
            _ => vec![],
        }
    }

    fn react_ipcp(&mut self, packet: ControlPacket<'_>) -> Vec<Vec<u8>> {
        match packet.code {
            lcp::code::CONFIGURE_REQUEST => {
                self.ipcp_acked.1 = true;
                vec![self.ipcp(lcp::code::CONFIGURE_ACK, packet.id, packet.data)]
            }
            lcp::code::CONFIGURE_ACK => {
                self.ipcp_acked.0 = true;
                vec![]
            }
            lcp::code::CONFIGURE_NAK => {
                for option in Options::parse(packet.data).unwrap().iter() {
                    let address: [u8; 4] = option.data.try_into().unwrap();
                    match option.kind {
                        3 if !self.insists_on_ip => self.ip = address.into(),
                        kind => {
                            if let Some(dns) = self.dns.iter_mut().find(|d| d.0 == kind) {
                                dns.1 = address.into();
                            }
                        }
                    }
                }
                vec![self.ipcp_request()]
            }
            lcp::code::CONFIGURE_REJECT => {
                let options = Options::parse(packet.data).unwrap();
                self.dns.retain(|dns| options.find(dns.0).is_none());
                vec![self.ipcp_request()]
            }
            _ => vec![],
        }
    }

    fn react_ipv6cp(&mut self, packet: ControlPacket<'_>) -> Vec<Vec<u8>> {
        match packet.code {
            lcp::code::CONFIGURE_REQUEST => {
                self.ipv6cp_acked.1 = true;
                vec![self.ipv6cp(lcp::code::CONFIGURE_ACK, packet.id, packet.data)]
            }
            lcp::code::CONFIGURE_ACK => {
                self.ipv6cp_acked.0 = true;
                vec![]
            }
            lcp::code::CONFIGURE_NAK => {
                let options = Options::parse(packet.data).unwrap();
                let hint = options.find(ipv6cp::option::INTERFACE_IDENTIFIER).unwrap();
                if !self.insists_on_id {
                    let hint = u64::from_be_bytes(hint.data.try_into().unwrap());
                    self.interface_id = Some(hint);
                }
                vec![self.ipv6cp_request()]
            }
            _ => vec![],
        }
    }

    /// Exchanges frames with the engine until neither has anything to say.
    pub(crate) fn converse(&mut self, world: &mut World, first: Vec<Vec<u8>>) {
        let mut wire: std::collections::VecDeque<Vec<u8>> = first.into();
        for _ in 0..200 {
            let Some(bytes) = wire.pop_front() else {
                return;
            };
            world.now = world.now + Duration::from_millis(1);
            for answer in world.feed_on(self.port, &bytes) {
                wire.extend(self.react(&answer.frame));
            }
        }
        panic!("the conversation does not end: {:?}", self.seen);
    }

    /// From PADI to where the client's behaviour leads.
    pub(crate) fn dial(&mut self, world: &mut World) {
        let padi = self.padi();
        self.converse(world, vec![padi]);
    }

    /// Discovery only: the session exists, our client is silent; the engine's first frames.
    pub(crate) fn discover(&mut self, world: &mut World) -> Vec<Vec<u8>> {
        let pado = world.feed_on(self.port, &self.padi());
        self.react(&pado[0].frame);
        let frames = world.feed_on(self.port, &self.padr());
        self.react(&frames[0].frame);
        frames.into_iter().map(|t| t.frame).collect()
    }

    /// Discovery and LCP, up to where credentials are due.
    pub(crate) fn link_up(&mut self, world: &mut World) {
        let frames = self.discover(world);
        let request = self.lcp_request();
        let ours = as_control(&frames[1]).1;
        world.feed_on(
            self.port,
            &self.lcp(lcp::code::CONFIGURE_ACK, ours.id, ours.data),
        );
        world.feed_on(self.port, &request);
        self.lcp_acked = (true, true);
    }
}
