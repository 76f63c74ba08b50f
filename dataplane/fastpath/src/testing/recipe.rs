//! A frame with every field as one likes, right or wrong on purpose, for the tests of coalescing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bng_wire::MacAddr;
use bng_wire::checksum::{checksum, l4_checksum, l4_checksum_ipv6};
use bng_wire::ethernet::ethertype;
use bng_wire::ipv4::protocol;
use bng_wire::ipv6::next_header;

/// What the innermost payload is carried in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A TCP segment.
    Tcp,
    /// A UDP datagram.
    Udp,
    /// An ICMP or ICMPv6 echo request.
    Icmp,
    /// A PPP frame of this protocol; the payload is its body.
    Ppp(u16),
    /// Exactly these bytes behind the PPPoE header, in a frame filled up to 60 bytes.
    PppRaw(Vec<u8>),
    /// A PPPoE discovery frame with the session's id and no tags.
    Discovery(u8),
}

/// A checksum field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Right.
    Good,
    /// One less than the right one.
    Bad,
    /// Zero.
    Zero,
}

/// What a frame is made of. [`Recipe::new`] has the defaults of the conformance cases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// What it carries.
    pub kind: Kind,
    /// Session id, if it is to be inside a PPPoE session.
    pub session: Option<u16>,
    /// Source MAC address.
    pub smac: MacAddr,
    /// Destination MAC address.
    pub dmac: MacAddr,
    /// VLAN numbers, outermost first. Of two or more, the outermost has TPID 0x88a8.
    pub vlans: Vec<u16>,
    /// Priority and drop-eligible bits of the outermost tag, 0 to 15.
    pub priority: u8,
    /// Source and destination; both of one family.
    pub addresses: (IpAddr, IpAddr),
    /// Source and destination port.
    pub ports: (u16, u16),
    /// Payload bytes of the upper layer.
    pub len: usize,
    /// What every byte of the payload is.
    pub fill: u8,
    /// TCP sequence number.
    pub seq: u32,
    /// TCP acknowledgement number.
    pub ack: u32,
    /// TCP window.
    pub window: u16,
    /// TCP control bits.
    pub flags: u8,
    /// The four bits before the TCP control bits: reserved ones, and AE the last.
    pub reserved: u8,
    /// TCP urgent pointer.
    pub urgent: u16,
    /// TCP options; filled up with zeroes to whole words.
    pub options: Vec<u8>,
    /// TCP data offset in words, if it is not to be the right one.
    pub data_offset: Option<u8>,
    /// TTL or hop limit.
    pub ttl: u8,
    /// TOS or traffic class.
    pub tos: u8,
    /// IPv4 identification.
    pub id: u16,
    /// IPv4 DF.
    pub df: bool,
    /// IPv4 MF.
    pub mf: bool,
    /// IPv4 reserved flag.
    pub ip_reserved: bool,
    /// IPv4 fragment offset, in units of eight bytes.
    pub frag_off: u16,
    /// Bytes of IPv4 options, as one timestamp option: 0 or 4 to 40, a multiple of four.
    pub ip_options: usize,
    /// IPv6 flow label.
    pub flow_label: u32,
    /// Content of an IPv6 destination options header.
    pub dstopt: Option<[u8; 6]>,
    /// An IPv6 fragment header of offset 0 and without more fragments.
    pub frag_hdr: bool,
    /// IPv4 header checksum; [`Check::Zero`] is not one.
    pub ip_check: Check,
    /// TCP, UDP or ICMP checksum.
    pub l4_check: Check,
    /// Added to the right UDP length.
    pub udp_len_delta: i32,
    /// Added to the right IPv4 total length or IPv6 payload length.
    pub ip_len_delta: i32,
    /// PPP protocol of IP packets in one byte.
    pub compressed: bool,
    /// Added to the right PPPoE length.
    pub pppoe_len_delta: i32,
    /// PPPoE version and type.
    pub vertype: u8,
    /// PPPoE code of session frames.
    pub code: u8,
    /// Zero bytes behind everything.
    pub pad: usize,
}

impl Recipe {
    /// TCP FIN.
    pub const FIN: u8 = 0x01;
    /// TCP SYN.
    pub const SYN: u8 = 0x02;
    /// TCP RST.
    pub const RST: u8 = 0x04;
    /// TCP PSH.
    pub const PSH: u8 = 0x08;
    /// TCP ACK.
    pub const ACK: u8 = 0x10;
    /// TCP URG.
    pub const URG: u8 = 0x20;
    /// TCP ECE.
    pub const ECE: u8 = 0x40;
    /// TCP CWR.
    pub const CWR: u8 = 0x80;

    /// The frame of a conformance case that says nothing of it.
    #[must_use]
    pub fn new(kind: Kind, is_ipv6: bool, session: Option<u16>) -> Self {
        let v4 = |host| IpAddr::V4(Ipv4Addr::new(192, 168, 1, host));
        let v6 = |host| IpAddr::V6(Ipv6Addr::new(0xfdaa, 0, 0, 0, 0, 0, 0, host));
        Self {
            kind,
            session,
            smac: MacAddr([0xaa, 0, 0, 0, 0, 2]),
            dmac: MacAddr([0xaa, 0, 0, 0, 0, 1]),
            vlans: Vec::new(),
            priority: 0,
            addresses: if is_ipv6 {
                (v6(2), v6(1))
            } else {
                (v4(200), v4(100))
            },
            ports: (1_500, 8_000),
            len: 100,
            fill: 0x61,
            seq: 0,
            ack: 100,
            window: 65_535,
            flags: Self::ACK,
            reserved: 0,
            urgent: 0,
            options: Vec::new(),
            data_offset: None,
            ttl: 8,
            tos: 0,
            id: 0,
            df: true,
            mf: false,
            ip_reserved: false,
            frag_off: 0,
            ip_options: 0,
            flow_label: 0,
            dstopt: None,
            frag_hdr: false,
            ip_check: Check::Good,
            l4_check: Check::Good,
            udp_len_delta: 0,
            ip_len_delta: 0,
            compressed: false,
            pppoe_len_delta: 0,
            vertype: 0x11,
            code: 0,
            pad: 0,
        }
    }

    /// The frame.
    #[must_use]
    pub fn build(&self) -> Vec<u8> {
        let is_ipv6 = self.addresses.0.is_ipv6();
        let ethertype = match (&self.kind, self.session) {
            (Kind::Discovery(_), _) => ethertype::PPPOE_DISCOVERY,
            (_, Some(_)) => ethertype::PPPOE_SESSION,
            _ if is_ipv6 => ethertype::IPV6,
            _ => ethertype::IPV4,
        };
        let mut frame = self.link(ethertype);
        match self.session {
            Some(_) => frame.extend(self.pppoe()),
            None => frame.extend(self.ip()),
        }
        frame.resize(frame.len() + self.pad, 0);
        if matches!(self.kind, Kind::PppRaw(_)) {
            frame.resize(frame.len().max(60), 0);
        }
        frame
    }

    fn link(&self, ethertype: u16) -> Vec<u8> {
        let mut frame = [self.dmac.0, self.smac.0].concat();
        for (at, vlan) in self.vlans.iter().enumerate() {
            let outermost = at == 0;
            let tpid = if outermost && self.vlans.len() > 1 {
                ethertype::QINQ
            } else {
                ethertype::VLAN
            };
            let priority = if outermost { self.priority } else { 0 };
            frame.extend(tpid.to_be_bytes());
            frame.extend((u16::from(priority) << 12 | vlan).to_be_bytes());
        }
        frame.extend(ethertype.to_be_bytes());
        frame
    }

    fn pppoe(&self) -> Vec<u8> {
        let (code, content) = match &self.kind {
            Kind::PppRaw(bytes) => (self.code, bytes.clone()),
            Kind::Discovery(code) => (*code, Vec::new()),
            Kind::Ppp(protocol) => {
                let body = vec![self.fill; self.len];
                (self.code, [&protocol.to_be_bytes()[..], &body].concat())
            }
            _ => {
                let protocol: &[u8] = match (self.addresses.0.is_ipv6(), self.compressed) {
                    (false, false) => &[0x00, 0x21],
                    (false, true) => &[0x21],
                    (true, false) => &[0x00, 0x57],
                    (true, true) => &[0x57],
                };
                (self.code, [protocol, &self.ip()].concat())
            }
        };
        let mut bytes = vec![self.vertype, code];
        bytes.extend(self.session.expect("a session's frame").to_be_bytes());
        bytes.extend(moved(content.len(), self.pppoe_len_delta).to_be_bytes());
        bytes.extend(content);
        bytes
    }

    /// The IP packet.
    fn ip(&self) -> Vec<u8> {
        match self.addresses {
            (IpAddr::V4(src), IpAddr::V4(dst)) => self.ipv4(src, dst),
            (IpAddr::V6(src), IpAddr::V6(dst)) => self.ipv6(src, dst),
            _ => panic!("addresses of two families"),
        }
    }

    fn ipv4(&self, src: Ipv4Addr, dst: Ipv4Addr) -> Vec<u8> {
        let protocol = match self.kind {
            Kind::Tcp => protocol::TCP,
            Kind::Udp => protocol::UDP,
            _ => protocol::ICMP,
        };
        let sum = |segment: &[u8]| match protocol {
            protocol::ICMP => checksum(segment),
            _ => l4_checksum(src.to_bits(), dst.to_bits(), protocol, segment),
        };
        let segment = self.segment(sum);
        let header = 20 + self.ip_options;
        let word = header as u8 / 4;
        let mut bytes = vec![0x40 | word, self.tos];
        bytes.extend(moved(header + segment.len(), self.ip_len_delta).to_be_bytes());
        bytes.extend(self.id.to_be_bytes());
        let flags = [self.ip_reserved, self.df, self.mf];
        let bits = flags
            .iter()
            .fold(0, |bits, flag| bits << 1 | u16::from(*flag));
        bytes.extend((bits << 13 | self.frag_off).to_be_bytes());
        bytes.extend([self.ttl, protocol, 0, 0]);
        bytes.extend([src.octets(), dst.octets()].concat());
        if self.ip_options > 0 {
            // RFC 791 section 3.1: type 68, length, pointer behind the last entry, overflow and flags.
            let len = self.ip_options as u8;
            bytes.extend([68, len, len + 1, 0]);
            bytes.resize(header, 0);
        }
        let check = checksum(&bytes);
        let check = match self.ip_check {
            Check::Good => check,
            Check::Bad => check.wrapping_sub(1),
            Check::Zero => panic!("an IPv4 header checksum is never left out"),
        };
        bytes[10..12].copy_from_slice(&check.to_be_bytes());
        bytes.extend(segment);
        bytes
    }

    fn ipv6(&self, src: Ipv6Addr, dst: Ipv6Addr) -> Vec<u8> {
        let upper = match self.kind {
            Kind::Tcp => protocol::TCP,
            Kind::Udp => protocol::UDP,
            _ => next_header::ICMPV6,
        };
        let segment = self.segment(|segment| l4_checksum_ipv6(src, dst, upper, segment));
        let (mut first, mut extensions) = (upper, Vec::new());
        if self.frag_hdr {
            extensions = vec![first, 0, 0, 0, 0, 0, 0, 9];
            first = 44;
        }
        if let Some(content) = self.dstopt {
            let header = [&[first, 0][..], &content].concat();
            extensions = [header, extensions].concat();
            first = 60;
        }
        let word = 6 << 28 | u32::from(self.tos) << 20 | self.flow_label;
        let mut bytes = word.to_be_bytes().to_vec();
        let len = moved(extensions.len() + segment.len(), self.ip_len_delta);
        bytes.extend(len.to_be_bytes());
        bytes.extend([first, self.ttl]);
        bytes.extend([src.octets(), dst.octets()].concat());
        bytes.extend(extensions);
        bytes.extend(segment);
        bytes
    }

    /// The upper layer's header and payload; `sum` computes its checksum.
    fn segment(&self, sum: impl Fn(&[u8]) -> u16) -> Vec<u8> {
        let (mut bytes, check_at) = match self.kind {
            Kind::Tcp => (self.tcp(), 16),
            Kind::Udp => {
                let ports = [self.ports.0.to_be_bytes(), self.ports.1.to_be_bytes()];
                let mut bytes = ports.concat();
                bytes.extend(moved(8 + self.len, self.udp_len_delta).to_be_bytes());
                bytes.extend([0, 0]);
                (bytes, 6)
            }
            _ => {
                let request = if self.addresses.0.is_ipv6() { 128 } else { 8 };
                (vec![request, 0, 0, 0, 0, 7, 0, 1], 2)
            }
        };
        bytes.resize(bytes.len() + self.len, self.fill);
        let right = match sum(&bytes) {
            0 if self.kind == Kind::Udp => 0xffff,
            right => right,
        };
        let check = match self.l4_check {
            Check::Good => right,
            Check::Bad => right.wrapping_sub(1),
            Check::Zero => 0,
        };
        bytes[check_at..check_at + 2].copy_from_slice(&check.to_be_bytes());
        bytes
    }

    fn tcp(&self) -> Vec<u8> {
        let ports = [self.ports.0.to_be_bytes(), self.ports.1.to_be_bytes()];
        let mut bytes = ports.concat();
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.ack.to_be_bytes());
        let words = 5 + self.options.len().div_ceil(4);
        let offset = self.data_offset.unwrap_or(words as u8);
        bytes.extend([offset << 4 | self.reserved, self.flags]);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(self.urgent.to_be_bytes());
        bytes.extend(&self.options);
        bytes.resize(words * 4, 0);
        bytes
    }
}

/// A length field that is right, or not.
fn moved(len: usize, delta: i32) -> u16 {
    let len = i64::try_from(len).expect("fits") + i64::from(delta);
    u16::try_from(len).expect("fits")
}
