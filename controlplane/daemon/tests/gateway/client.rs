//! A subscriber's side of PPPoE and PPP, just enough to dial in on a link that loses nothing.

use std::net::{Ipv4Addr, Ipv6Addr};

use bng_aaa::radius::packet::chap_response;
use bng_pppoe::codec::frame::{self, Body, Frame, LinkHeader};
use bng_pppoe::codec::lcp::{code, option};
use bng_pppoe::codec::tags::kind;
use bng_pppoe::codec::{
    ControlPacket, Options, TagWriter, Tags, chap, control, dhcpv6, ipcp, ipv6cp, nd, pap,
};
use bng_wire::pppoe::code as discovery;
use bng_wire::pppoe::protocol;
use bng_wire::{MacAddr, VlanStack};

/// One subscriber.
pub(crate) struct Client {
    pub(crate) mac: MacAddr,
    pub(crate) port: u8,
    pub(crate) vlans: VlanStack,
    user: &'static str,
    password: &'static str,
    /// The access concentrator's address, from its PADO.
    concentrator: Option<MacAddr>,
    pub(crate) session_id: u16,
    pub(crate) address: Option<Ipv4Addr>,
    pub(crate) dns: Option<Ipv4Addr>,
    /// Both ends have acknowledged IPCP.
    pub(crate) up: bool,
    /// PAP Authenticate-Nak, with its message.
    pub(crate) refused: Option<String>,
    pub(crate) terminated: bool,
    /// PADT received.
    pub(crate) over: bool,
    pub(crate) echoes: u32,
    /// The interface identifier it asks for, if it speaks IPv6CP.
    pub(crate) interface_id: Option<u64>,
    /// Both ends have acknowledged IPv6CP.
    pub(crate) ipv6_up: bool,
    ipv6cp_acks: bool,
    ipv6cp_acked: bool,
    /// Router advertisements received.
    pub(crate) advertised: u32,
    /// Type of the latest DHCPv6 message received, and the prefix and length in it.
    pub(crate) dhcpv6: Option<(u8, Option<(Ipv6Addr, u8)>)>,
    /// Whether it is asked for CHAP, and how many challenges it has answered.
    is_chap: bool,
    pub(crate) challenges: u32,
    lcp_acked: bool,
    lcp_acks: bool,
    ipcp_acks: bool,
    ipcp_acked: bool,
    /// Its latest PADR, and PADS received.
    padr: Vec<u8>,
    pub(crate) pads: u32,
    /// Frames to send.
    pub(crate) out: Vec<Vec<u8>>,
}

impl Client {
    /// A subscriber on an access port, by port index.
    pub(crate) fn new(last: u8, port: u8, user: &'static str, password: &'static str) -> Self {
        Self {
            mac: MacAddr([2, 0xc1, 0, 0, 0, last]),
            port,
            vlans: VlanStack::UNTAGGED,
            user,
            password,
            concentrator: None,
            session_id: 0,
            address: None,
            dns: None,
            up: false,
            refused: None,
            terminated: false,
            over: false,
            echoes: 0,
            interface_id: None,
            ipv6_up: false,
            ipv6cp_acks: false,
            ipv6cp_acked: false,
            advertised: 0,
            dhcpv6: None,
            is_chap: false,
            challenges: 0,
            lcp_acked: false,
            lcp_acks: false,
            ipcp_acks: false,
            ipcp_acked: false,
            padr: Vec::new(),
            pads: 0,
            out: Vec::new(),
        }
    }

    /// Authenticates as somebody else from now on.
    pub(crate) fn become_user(&mut self, user: &'static str, password: &'static str) {
        (self.user, self.password) = (user, password);
    }

    fn link(&self, dst: MacAddr) -> LinkHeader {
        LinkHeader {
            dst,
            src: self.mac,
            vlans: self.vlans,
        }
    }

    fn discover(&mut self, dst: MacAddr, code: u8, tags: Vec<u8>) {
        let built = frame::discovery(&self.link(dst), code, 0, &tags);
        self.out.push(built.unwrap());
    }

    /// Starts (or starts again) with a PADI.
    pub(crate) fn dial(&mut self) {
        *self = Self {
            vlans: self.vlans,
            mac: self.mac,
            interface_id: self.interface_id,
            ..Self::new(0, self.port, self.user, self.password)
        };
        let mut tags = TagWriter::new(100);
        assert!(tags.put(kind::SERVICE_NAME, b""));
        assert!(tags.put(kind::HOST_UNIQ, b"test"));
        self.discover(MacAddr::BROADCAST, discovery::PADI, tags.finish());
    }

    /// Sends the PADR of its session again.
    pub(crate) fn repeat_padr(&mut self) {
        self.out.push(self.padr.clone());
    }

    /// Sends a PADT.
    pub(crate) fn hang_up(&mut self) {
        let to = self.concentrator.unwrap();
        let built = frame::discovery(&self.link(to), discovery::PADT, self.session_id, &[]);
        self.out.push(built.unwrap());
    }

    /// Closes IPCP or IPv6CP.
    pub(crate) fn close(&mut self, protocol: u16) {
        match protocol {
            protocol::IPCP => (self.up, self.ipcp_acks, self.ipcp_acked) = (false, false, false),
            _ => (self.ipv6_up, self.ipv6cp_acks, self.ipv6cp_acked) = (false, false, false),
        }
        self.send(protocol, &control::write(code::TERMINATE_REQUEST, 5, &[]));
    }

    /// Asks for IPv4 again.
    pub(crate) fn open_ipv4(&mut self) {
        self.ask_for_address(self.address, self.dns);
    }

    fn send(&mut self, protocol: u16, packet: &[u8]) {
        let to = self.concentrator.unwrap();
        let built = frame::session(&self.link(to), self.session_id, protocol, packet);
        self.out.push(built.unwrap());
    }

    /// Asks for LCP anew, as a client does that has forgotten the session's state.
    pub(crate) fn renegotiate(&mut self) {
        (
            self.lcp_acked,
            self.lcp_acks,
            self.ipcp_acks,
            self.ipcp_acked,
        ) = (false, false, false, false);
        (self.ipv6cp_acks, self.ipv6cp_acked) = (false, false);
        (self.up, self.ipv6_up) = (false, false);
        let mut options = Vec::new();
        control::put_option(
            &mut options,
            option::MAGIC_NUMBER,
            &[1, 2, 3, self.mac.0[5]],
        );
        self.send(
            protocol::LCP,
            &control::write(code::CONFIGURE_REQUEST, 77, &options),
        );
    }

    /// Takes a frame from the access concentrator.
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        let frame = frame::parse(bytes).unwrap();
        assert_eq!(
            frame.vlans,
            self.vlans.without_priority_tags(),
            "replies carry the tags of the request that name a VLAN"
        );
        match frame.body {
            Body::Discovery {
                code,
                session_id,
                tags,
            } => self.discovery(&frame, code, session_id, tags),
            Body::Session {
                session_id,
                protocol,
                payload,
            } => {
                assert_eq!(session_id, self.session_id);
                if protocol == protocol::IPV6 {
                    return self.ipv6(payload);
                }
                self.session(protocol, ControlPacket::parse(payload).unwrap());
            }
        }
    }

    fn ipv6(&mut self, packet: &[u8]) {
        if packet[6] != 17 {
            assert_eq!(packet[40], 134, "a router advertisement");
            self.advertised += 1;
            return;
        }
        let message = dhcpv6::Message::parse(&packet[48..]).unwrap();
        let lease = message.ias().flat_map(|ia| ia.leases()).next();
        let prefix = lease.map(|it| match it.lease {
            dhcpv6::Lease::Prefix(prefix, length) => (prefix, length),
            other => panic!("not what was asked for: {other:?}"),
        });
        self.dhcpv6 = Some((message.kind, prefix));
    }

    /// Sends a DHCPv6 message about a delegated prefix, to the gateway `server` if its type wants that.
    pub(crate) fn ask_dhcpv6(&mut self, kind: u8, server: Option<MacAddr>) {
        self.dhcpv6 = None;
        let duid = |mac: MacAddr| [&[0, 3, 0, 1][..], &mac.0].concat();
        let mut out = dhcpv6::Writer::new(kind, [1, 2, 3]);
        out.put(dhcpv6::option::CLIENT_ID, &duid(self.mac));
        if let Some(server) = server {
            out.put(dhcpv6::option::SERVER_ID, &duid(server));
        }
        out.put_ia(dhcpv6::IaKind::Prefix, 1, (0, 0), |_| {});
        let source = nd::link_local(self.interface_id.unwrap());
        let ports = (dhcpv6::CLIENT_PORT, dhcpv6::SERVER_PORT);
        let packet = dhcpv6::datagram(source, dhcpv6::ALL_SERVERS, ports, &out.finish());
        self.send(protocol::IPV6, &packet);
    }

    fn discovery(&mut self, frame: &Frame<'_>, code: u8, session_id: u16, tags: Tags<'_>) {
        match code {
            discovery::PADO => {
                self.concentrator = Some(frame.src);
                let mut reply = TagWriter::new(1000);
                for kind in [kind::SERVICE_NAME, kind::HOST_UNIQ, kind::AC_COOKIE] {
                    assert!(reply.put(kind, tags.find(kind).unwrap()));
                }
                self.discover(frame.src, discovery::PADR, reply.finish());
                self.padr = self.out.last().unwrap().clone();
            }
            discovery::PADS => {
                assert_ne!(session_id, 0);
                self.session_id = session_id;
                self.pads += 1;
                self.renegotiate();
            }
            discovery::PADT => {
                assert_eq!(session_id, self.session_id);
                (self.over, self.up) = (true, false);
            }
            code => panic!("discovery code {code:#x}"),
        }
    }

    fn session(&mut self, protocol: u16, packet: ControlPacket<'_>) {
        match (protocol, packet.code) {
            (protocol::LCP | protocol::IPCP | protocol::IPV6CP, code::CONFIGURE_REQUEST) => {
                let ack = control::write(code::CONFIGURE_ACK, packet.id, packet.data);
                self.send(protocol, &ack);
                match protocol {
                    protocol::LCP => {
                        let options = Options::parse(packet.data).unwrap();
                        let asked = options
                            .find(option::AUTHENTICATION_PROTOCOL)
                            .map(|it| it.data);
                        self.is_chap = asked.is_some_and(|it| it.starts_with(&[0xc2, 0x23]));
                        self.lcp_acks = true;
                    }
                    protocol::IPV6CP => self.ipv6cp_acks = true,
                    _ => self.ipcp_acks = true,
                }
            }
            (protocol::LCP, code::CONFIGURE_ACK) => self.lcp_acked = true,
            (protocol::LCP, code::ECHO_REQUEST) => {
                self.echoes += 1;
                let magic = [1, 2, 3, self.mac.0[5]];
                self.send(
                    protocol,
                    &control::write(code::ECHO_REPLY, packet.id, &magic),
                );
            }
            (protocol::LCP, code::TERMINATE_REQUEST) => {
                (self.terminated, self.up) = (true, false);
                self.send(
                    protocol,
                    &control::write(code::TERMINATE_ACK, packet.id, &[]),
                );
            }
            (protocol::CHAP, chap::code::CHALLENGE) => {
                self.challenges += 1;
                let challenge = chap::parse_value(packet.data).unwrap().value;
                let password = self.password.as_bytes();
                let value = &chap_response(packet.id, password, challenge);
                let name = self.user.as_bytes();
                let answer = chap::Value { value, name };
                let answer = chap::write_value(chap::code::RESPONSE, packet.id, answer);
                self.send(protocol, &answer);
            }
            (protocol::CHAP, chap::code::SUCCESS) if self.ipcp_acked => {}
            (protocol::PAP, pap::code::AUTHENTICATE_ACK)
            | (protocol::CHAP, chap::code::SUCCESS) => {
                self.ask_for_address(None, None);
                if let Some(id) = self.interface_id {
                    let mut options = Vec::new();
                    let kind = ipv6cp::option::INTERFACE_IDENTIFIER;
                    control::put_option(&mut options, kind, &id.to_be_bytes());
                    let request = control::write(code::CONFIGURE_REQUEST, 3, &options);
                    self.send(protocol::IPV6CP, &request);
                }
            }
            (protocol::IPV6CP, code::CONFIGURE_ACK) => self.ipv6cp_acked = true,
            (_, code::TERMINATE_ACK) => {}
            (protocol::PAP, pap::code::AUTHENTICATE_NAK) => {
                let message = pap::parse_reply(packet.data).unwrap();
                self.refused = Some(String::from_utf8(message.to_vec()).unwrap());
            }
            (protocol::IPCP, code::CONFIGURE_NAK) => {
                let options = Options::parse(packet.data).unwrap();
                let value = |kind| {
                    let data: [u8; 4] = options.find(kind)?.data.try_into().ok()?;
                    Some(Ipv4Addr::from(data))
                };
                self.ask_for_address(
                    value(ipcp::option::IP_ADDRESS),
                    value(ipcp::option::PRIMARY_DNS),
                );
            }
            (protocol::IPCP, code::CONFIGURE_ACK) => self.ipcp_acked = true,
            other => panic!("unexpected {other:x?}"),
        }
        if protocol == protocol::LCP && self.lcp_acks && self.lcp_acked && !self.terminated {
            let credentials = pap::Credentials {
                name: self.user.as_bytes(),
                password: self.password.as_bytes(),
            };
            let is_new = matches!(packet.code, code::CONFIGURE_REQUEST | code::CONFIGURE_ACK);
            if is_new && !self.is_chap {
                self.send(protocol::PAP, &pap::write_request(1, credentials));
            }
        }
        self.up = self.ipcp_acks && self.ipcp_acked && !self.terminated;
        self.ipv6_up = self.ipv6cp_acks && self.ipv6cp_acked && !self.terminated;
    }

    fn ask_for_address(&mut self, address: Option<Ipv4Addr>, dns: Option<Ipv4Addr>) {
        self.address = address;
        self.dns = dns;
        let none = Ipv4Addr::UNSPECIFIED;
        let mut options = Vec::new();
        let octets = address.unwrap_or(none).octets();
        control::put_option(&mut options, ipcp::option::IP_ADDRESS, &octets);
        let octets = dns.unwrap_or(none).octets();
        control::put_option(&mut options, ipcp::option::PRIMARY_DNS, &octets);
        let request = control::write(code::CONFIGURE_REQUEST, 9, &options);
        self.send(protocol::IPCP, &request);
    }
}
