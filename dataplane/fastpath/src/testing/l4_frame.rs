//! A TCP or UDP frame of a flow, from its facts.

use std::net::Ipv4Addr;

use bng_wire::checksum::{checksum, l4_checksum, l4_checksum_ipv6};
use bng_wire::ethernet::ethertype;
use bng_wire::ipv4::protocol;

/// A TCP or UDP frame, or a super-packet of such.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct L4Frame {
    /// The MAC addresses.
    pub macs: [u8; 12],
    /// VLAN tags, TPID and TCI, outermost first.
    pub tags: Vec<[u8; 4]>,
    /// The PPPoE session, if it is in one.
    pub session: Option<u16>,
    /// IPv6, else IPv4.
    pub ipv6: bool,
    /// TCP, else UDP.
    pub tcp: bool,
    /// TOS or traffic class.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// IPv4 identification.
    pub id: u16,
    /// IPv4 "don't fragment".
    pub df: bool,
    /// IPv6 flow label.
    pub label: u32,
    /// An IPv6 destination options header of 8 bytes with these options, or IPv4 options; empty: none.
    pub ip_options: Vec<u8>,
    /// Low half of the addresses.
    pub addresses: [u32; 2],
    /// Ports.
    pub ports: [u16; 2],
    /// TCP sequence number.
    pub seq: u32,
    /// TCP acknowledgement number.
    pub ack: u32,
    /// TCP control bits, AE (0x100) and reserved bits included.
    pub flags: u16,
    /// TCP window.
    pub window: u16,
    /// TCP options, a multiple of four bytes.
    pub tcp_options: Vec<u8>,
    /// What it carries.
    pub payload: Vec<u8>,
}

impl L4Frame {
    /// A frame between two hosts with ACK set and this payload.
    #[must_use]
    pub fn new(session: Option<u16>, ipv6: bool, tcp: bool, payload: &[u8]) -> Self {
        Self {
            macs: [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2],
            tags: Vec::new(),
            session,
            ipv6,
            tcp,
            tos: 0,
            ttl: 64,
            id: 8,
            df: true,
            label: 0,
            ip_options: Vec::new(),
            addresses: [
                Ipv4Addr::new(192, 0, 2, 1).to_bits(),
                Ipv4Addr::new(198, 51, 100, 7).to_bits(),
            ],
            ports: [1_500, 8_000],
            seq: 0,
            ack: 100,
            flags: 0x10,
            window: 65_535,
            tcp_options: Vec::new(),
            payload: payload.to_vec(),
        }
    }

    /// Length of the TCP or UDP header.
    #[must_use]
    pub fn l4_len(&self) -> usize {
        if self.tcp {
            20 + self.tcp_options.len()
        } else {
            8
        }
    }

    /// Length of the link layer, bytes.
    #[must_use]
    pub fn l3(&self) -> usize {
        14 + 4 * self.tags.len() + if self.session.is_some() { 8 } else { 0 }
    }

    /// Length of the IP header and the extension headers, bytes.
    #[must_use]
    pub fn l3_len(&self) -> usize {
        self.ip_options.len() + if self.ipv6 { 40 } else { 20 }
    }

    /// Length of all headers, bytes.
    #[must_use]
    pub fn header_len(&self) -> usize {
        self.l3() + self.l3_len() + self.l4_len()
    }

    fn transport(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self
            .ports
            .iter()
            .flat_map(|port| port.to_be_bytes())
            .collect();
        if self.tcp {
            bytes.extend(self.seq.to_be_bytes());
            bytes.extend(self.ack.to_be_bytes());
            let offset = (self.l4_len() / 4) as u16;
            bytes.extend((offset << 12 | self.flags).to_be_bytes());
            bytes.extend(self.window.to_be_bytes());
            bytes.extend([0; 4]);
            bytes.extend(&self.tcp_options);
        } else {
            bytes.extend(((8 + self.payload.len()) as u16).to_be_bytes());
            bytes.extend([0; 2]);
        }
        bytes.extend(&self.payload);
        bytes
    }

    /// The packet, with all its lengths (cut to 16 bits) and checksums.
    #[must_use]
    pub fn packet(&self) -> Vec<u8> {
        let mut upper = self.transport();
        let protocol = if self.tcp {
            protocol::TCP
        } else {
            protocol::UDP
        };
        let v6 = self.addresses.map(|low| {
            let mut address = [0; 16];
            address[0] = 0xfd;
            address[12..].copy_from_slice(&low.to_be_bytes());
            address
        });
        let check = if self.ipv6 {
            l4_checksum_ipv6(v6[0].into(), v6[1].into(), protocol, &upper)
        } else {
            l4_checksum(self.addresses[0], self.addresses[1], protocol, &upper)
        };
        let check = if check == 0 && !self.tcp {
            0xffff
        } else {
            check
        };
        let at = if self.tcp { 16 } else { 6 };
        upper[at..at + 2].copy_from_slice(&check.to_be_bytes());
        let mut packet = Vec::new();
        if self.ipv6 {
            let word = 6 << 28 | u32::from(self.tos) << 20 | self.label;
            packet.extend(word.to_be_bytes());
            packet.extend(((self.ip_options.len() + upper.len()) as u16).to_be_bytes());
            let first = if self.ip_options.is_empty() {
                protocol
            } else {
                60
            };
            packet.extend([first, self.ttl]);
            packet.extend(v6.concat());
            packet.extend(&self.ip_options);
            if !self.ip_options.is_empty() {
                packet[40] = protocol;
            }
        } else {
            let words = (5 + self.ip_options.len() / 4) as u8;
            packet.extend([0x40 | words, self.tos]);
            packet.extend(((self.l3_len() + upper.len()) as u16).to_be_bytes());
            packet.extend(self.id.to_be_bytes());
            packet.extend(if self.df { [0x40, 0] } else { [0, 0] });
            packet.extend([self.ttl, protocol, 0, 0]);
            packet.extend(self.addresses.iter().flat_map(|a| a.to_be_bytes()));
            packet.extend(&self.ip_options);
            let check = checksum(&packet);
            packet[10..12].copy_from_slice(&check.to_be_bytes());
        }
        packet.extend(upper);
        packet
    }

    /// The frame, unpadded.
    #[must_use]
    pub fn frame(&self) -> Vec<u8> {
        let packet = self.packet();
        let mut frame = self.macs.to_vec();
        frame.extend(self.tags.concat());
        let ip = if self.ipv6 {
            ethertype::IPV6
        } else {
            ethertype::IPV4
        };
        if let Some(session) = self.session {
            frame.extend(ethertype::PPPOE_SESSION.to_be_bytes());
            frame.extend([0x11, 0]);
            frame.extend(session.to_be_bytes());
            frame.extend(((2 + packet.len()) as u16).to_be_bytes());
            frame.extend(if self.ipv6 { [0, 0x57] } else { [0, 0x21] });
        } else {
            frame.extend(ip.to_be_bytes());
        }
        frame.extend(packet);
        frame
    }

    /// The frames this stands for as a super-packet: payload of `segment` bytes each, TCP sequence numbers going on, FIN and
    /// PSH in the last, identifications rising by `id_step`.
    #[must_use]
    pub fn cut(&self, segment: usize, id_step: u16) -> Vec<Self> {
        let chunks = self.payload.chunks(segment);
        let count = chunks.len();
        let one = |(at, chunk): (usize, &[u8])| Self {
            id: self.id.wrapping_add(id_step.wrapping_mul(at as u16)),
            seq: self.seq.wrapping_add((at * segment) as u32),
            flags: if at + 1 == count {
                self.flags
            } else {
                self.flags & !0x09
            },
            payload: chunk.to_vec(),
            ..self.clone()
        };
        chunks.enumerate().map(one).collect()
    }
}
