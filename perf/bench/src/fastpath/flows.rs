//! The synthetic subscribers and their flows: addresses, ports, and the frames they make.

use std::net::Ipv4Addr;

use anyhow::{Result, bail};
use bng_shm::{PortBlock, SlotIndex};
use bng_wire::checksum::l4_checksum;
use bng_wire::ethernet::{self, ethertype};
use bng_wire::ipv4::{self, IPV4_MIN_LEN, NewIpv4, protocol as ip_protocol};
use bng_wire::l4::{TCP_MIN_LEN, UDP_LEN, tcp_flag, write_udp};
use bng_wire::pppoe::{self, PPP_LEN, PPPOE_LEN, protocol};
use bng_wire::{MacAddr, VlanStack, VlanTag};

use super::tables;

/// Sessions on one access port; more take a second one.
const SESSIONS_PER_PORT: u32 = 65_000;
/// First port of the port blocks.
pub(super) const FIRST_PORT: u16 = 1_024;
/// Smallest port block.
const MIN_BLOCK: u32 = 64;
/// First public address: the benchmark range of RFC 2544.
const FIRST_PUBLIC: u32 = 0xc612_0000;
/// First subscriber address: RFC 6598.
const FIRST_SUBSCRIBER: u32 = 0x6440_0000;
/// TTL of every frame made here.
pub(super) const TTL: u8 = 64;
/// Shortest Ethernet frame without check sequence.
const MIN_FRAME: usize = 60;
/// Acknowledgement number of every TCP segment.
pub(super) const ACKNOWLEDGES: u32 = 0x0102_0304;
/// Window of every TCP segment.
pub(super) const WINDOW: u16 = 0x7fff;

/// What a flow sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// A UDP datagram, always the same.
    Datagram,
    /// The TCP segment at this place of a train: sequence number and IP identification go on from one to the next.
    Segment(u16),
}

impl Content {
    /// IP header and that of the protocol.
    pub(super) const fn headers(self) -> usize {
        IPV4_MIN_LEN
            + match self {
                Self::Datagram => UDP_LEN,
                Self::Segment(_) => TCP_MIN_LEN,
            }
    }

    /// Place in the train.
    pub(super) const fn at(self) -> u16 {
        match self {
            Self::Datagram => 0,
            Self::Segment(at) => at,
        }
    }
}

/// MAC address of the next hop on the core side.
pub(super) const NEXT_HOP_MAC: MacAddr = MacAddr([0x02, 0xc0, 0, 0, 0, 1]);
/// MAC address of the core port.
pub(super) const CORE_MAC: MacAddr = MacAddr([0x02, 0xc0, 0, 0, 0, 2]);

/// MAC address of an access port.
pub(super) const fn access_mac(index: u8) -> MacAddr {
    MacAddr([0x02, 0xac, 0, 0, 0, index])
}

/// How many of everything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) sessions: u32,
    pub(super) flows: u32,
    /// Different remote addresses.
    pub(super) destinations: u32,
    /// Ports per block.
    pub(super) block: u16,
    pub(super) access_ports: u8,
    pub(super) public_addresses: u32,
    /// VLAN tags of subscribers' frames, 0 to 2.
    pub(super) tags: u8,
}

impl Shape {
    /// Works out block size, public addresses and access ports.
    pub(super) fn new(sessions: u32, flows: u32, destinations: u32, tags: u8) -> Result<Self> {
        if flows < sessions {
            bail!(
                "--flows {flows} is less than --sessions {sessions}: every session has at least one"
            );
        }
        // Twice the flows a session has, so that its block is at most half full.
        let per_session = flows.div_ceil(sessions);
        let block = (per_session * 2).next_power_of_two().max(MIN_BLOCK);
        let Some(block) = u16::try_from(block).ok().filter(|block| *block <= 32_768) else {
            bail!("{per_session} flows per session do not fit a port block");
        };
        let blocks_per_address = (65_536 - u32::from(FIRST_PORT)) / u32::from(block);
        let access_ports = u8::try_from(sessions.div_ceil(SESSIONS_PER_PORT))?;
        Ok(Self {
            sessions,
            flows,
            destinations,
            block,
            access_ports,
            public_addresses: sessions.div_ceil(blocks_per_address),
            tags,
        })
    }

    fn blocks_per_address(&self) -> u32 {
        (65_536 - u32::from(FIRST_PORT)) / u32::from(self.block)
    }

    /// First and last public address.
    pub(super) fn public(&self) -> (Ipv4Addr, Ipv4Addr) {
        let last = FIRST_PUBLIC + self.public_addresses - 1;
        (FIRST_PUBLIC.into(), last.into())
    }

    /// First and last subscriber address.
    pub(super) fn subscribers(&self) -> (Ipv4Addr, Ipv4Addr) {
        let last = FIRST_SUBSCRIBER + self.sessions - 1;
        (FIRST_SUBSCRIBER.into(), last.into())
    }

    /// Index of the core port among all ports.
    pub(super) const fn core_port(&self) -> u8 {
        self.access_ports
    }

    pub(super) fn subscriber(&self, session: u32) -> Subscriber {
        let session_id = (session % SESSIONS_PER_PORT) as u16 + 1;
        let access_port = (session / SESSIONS_PER_PORT) as u8;
        let [_, a, b, c] = session.to_be_bytes();
        let per_address = self.blocks_per_address();
        let address_index = session / per_address;
        Subscriber {
            index: session,
            tags: self.tags,
            access_port,
            session_id,
            slot: SlotIndex::new(access_port, session_id),
            mac: MacAddr([0x02, 0x5e, 0, a, b, c]),
            address: (FIRST_SUBSCRIBER + session).into(),
            block: PortBlock {
                address: (FIRST_PUBLIC + address_index).into(),
                address_index: address_index as u16,
                first_port: FIRST_PORT + (session % per_address) as u16 * self.block,
                size: self.block,
            },
        }
    }

    /// Flow `index`: consecutive ones belong to different sessions.
    pub(super) fn flow(&self, index: u32) -> Flow {
        let session = index % self.sessions;
        // Ports from the whole dynamic range, different within a session.
        let port =
            10_000 + (index / self.sessions) as u16 + (scatter(u64::from(session)) % 8_192) as u16;
        let remote = index.wrapping_mul(0x9e37_79b1) % self.destinations;
        Flow {
            subscriber: self.subscriber(session),
            port,
            // 8.0.0.0 to 71.255.255.255: public unicast, and none of the ranges above.
            remote: (0x0800_0000 + (scatter(u64::from(remote)) % 0x4000_0000) as u32).into(),
            remote_port: 443,
        }
    }
}

/// A number that looks random and depends on nothing but `value`.
fn scatter(value: u64) -> u64 {
    let mut x = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A permutation of `0..count`, the same for the same seed.
pub(super) fn shuffled(count: u32, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..count).collect();
    for at in (1..order.len()).rev() {
        let other = scatter(seed ^ (at as u64) << 20) % (at as u64 + 1);
        order.swap(at, other as usize);
    }
    order
}

/// One subscriber.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subscriber {
    pub(super) index: u32,
    pub(super) tags: u8,
    pub(super) access_port: u8,
    pub(super) session_id: u16,
    pub(super) slot: SlotIndex,
    pub(super) mac: MacAddr,
    pub(super) address: Ipv4Addr,
    pub(super) block: PortBlock,
}

impl Subscriber {
    /// The tags of its frames.
    fn stack(&self) -> VlanStack {
        let vlans = tables::vlans(self.index, self.tags);
        let tag = |tpid, vid| VlanTag { tpid, tci: vid };
        match (vlans.s_vlan, vlans.c_vlan) {
            (Some(s), Some(c)) => {
                VlanStack::double(tag(ethertype::QINQ, s), tag(ethertype::VLAN, c))
            }
            (Some(s), None) => VlanStack::single(tag(ethertype::VLAN, s)),
            _ => VlanStack::UNTAGGED,
        }
    }
}

/// One flow: a port of a subscriber and whom it talks to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) subscriber: Subscriber,
    pub(super) port: u16,
    pub(super) remote: Ipv4Addr,
    pub(super) remote_port: u16,
}

/// Byte `at` of a flow's payload.
pub(super) fn payload_byte(flow: &Flow, at: usize) -> u8 {
    let seed = flow.port as u8 ^ flow.subscriber.session_id as u8;
    (at as u8)
        .wrapping_mul(31)
        .wrapping_add((at >> 8) as u8)
        .wrapping_add(seed)
}

impl Flow {
    /// Sequence number of the first segment of a train.
    pub(super) const fn first_sequence(&self) -> u32 {
        // Not far from where it wraps, for some.
        (self.port as u32) << 16 | 0xff00
    }

    /// IP identification of a packet.
    pub(super) const fn id(&self, content: Content) -> u16 {
        self.port.wrapping_add(content.at())
    }
}

/// A packet of `ip_bytes` bytes with both checksums.
fn packet(
    flow: &Flow,
    (src, src_port): (Ipv4Addr, u16),
    (dst, dst_port): (Ipv4Addr, u16),
    content: Content,
    ip_bytes: usize,
) -> Option<Vec<u8>> {
    let payload = ip_bytes.checked_sub(content.headers())?;
    let mut bytes = vec![0; ip_bytes];
    let fields = NewIpv4 {
        src: src.to_bits(),
        dst: dst.to_bits(),
        protocol: match content {
            Content::Datagram => ip_protocol::UDP,
            Content::Segment(_) => ip_protocol::TCP,
        },
        ttl: TTL,
        tos: 0,
        id: flow.id(content),
        dont_fragment: true,
    };
    ipv4::write(&mut bytes, &fields, ip_bytes - IPV4_MIN_LEN)?;
    let segment = bytes.get_mut(IPV4_MIN_LEN..)?;
    let before = usize::from(content.at()) * payload;
    let checksum_at = match content {
        Content::Datagram => {
            write_udp(segment, src_port, dst_port, payload)?;
            6
        }
        Content::Segment(_) => {
            let sequence = flow.first_sequence().wrapping_add(before as u32);
            let header = segment.first_chunk_mut::<TCP_MIN_LEN>()?;
            header[..2].copy_from_slice(&src_port.to_be_bytes());
            header[2..4].copy_from_slice(&dst_port.to_be_bytes());
            header[4..8].copy_from_slice(&sequence.to_be_bytes());
            header[8..12].copy_from_slice(&ACKNOWLEDGES.to_be_bytes());
            header[12] = (TCP_MIN_LEN as u8 / 4) << 4;
            header[13] = tcp_flag::ACK;
            header[14..16].copy_from_slice(&WINDOW.to_be_bytes());
            16
        }
    };
    let headers = content.headers() - IPV4_MIN_LEN;
    for (byte, at) in segment.iter_mut().skip(headers).zip(before..) {
        *byte = payload_byte(flow, at);
    }
    let check = match l4_checksum(fields.src, fields.dst, fields.protocol, segment) {
        // RFC 768: 0 would say that there is none.
        0 if content == Content::Datagram => 0xffff,
        check => check,
    };
    let place = segment.get_mut(checksum_at..checksum_at + 2)?;
    place.copy_from_slice(&check.to_be_bytes());
    Some(bytes)
}

/// An Ethernet header and `ip` behind it.
fn ethernet_frame(
    dst: MacAddr,
    src: MacAddr,
    tags: &VlanStack,
    ethertype: u16,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let mut frame = vec![0; ethernet::ETH_LEN + 4 * tags.count()];
    ethernet::write(&mut frame, dst, src, tags, ethertype)?;
    frame.extend_from_slice(payload);
    Some(padded(frame))
}

fn from_subscriber(flow: &Flow, content: Content, ip_bytes: usize) -> Option<Vec<u8>> {
    packet(
        flow,
        (flow.subscriber.address, flow.port),
        (flow.remote, flow.remote_port),
        content,
        ip_bytes,
    )
}

/// A frame of the flow as it comes in on its access port.
pub(super) fn upstream_frame(flow: &Flow, content: Content, ip_bytes: usize) -> Option<Vec<u8>> {
    let subscriber = &flow.subscriber;
    let mut payload = vec![0; PPPOE_LEN + PPP_LEN];
    pppoe::write_session(
        &mut payload,
        subscriber.session_id,
        protocol::IPV4,
        ip_bytes,
    )?;
    payload.extend(from_subscriber(flow, content, ip_bytes)?);
    ethernet_frame(
        access_mac(subscriber.access_port),
        subscriber.mac,
        &subscriber.stack(),
        ethertype::PPPOE_SESSION,
        &payload,
    )
}

/// A frame of the flow as it comes in on the core port, to the public address and port upstream gave it.
pub(super) fn downstream_frame(
    flow: &Flow,
    outside: (Ipv4Addr, u16),
    content: Content,
    ip_bytes: usize,
) -> Option<Vec<u8>> {
    let remote = (flow.remote, flow.remote_port);
    let ip = packet(flow, remote, outside, content, ip_bytes)?;
    let untagged = VlanStack::UNTAGGED;
    ethernet_frame(CORE_MAC, NEXT_HOP_MAC, &untagged, ethertype::IPV4, &ip)
}

/// The flow's frame for the plain-IP path, upstream: Ethernet and IP, tagged like the others.
pub(super) fn plain_upstream_frame(flow: &Flow, ip_bytes: usize) -> Option<Vec<u8>> {
    let subscriber = &flow.subscriber;
    ethernet_frame(
        access_mac(subscriber.access_port),
        subscriber.mac,
        &subscriber.stack(),
        ethertype::IPV4,
        &from_subscriber(flow, Content::Datagram, ip_bytes)?,
    )
}

/// The flow's frame for the plain-IP path, downstream: to the subscriber's own address and port.
pub(super) fn plain_downstream_frame(flow: &Flow, ip_bytes: usize) -> Option<Vec<u8>> {
    let inside = (flow.subscriber.address, flow.port);
    downstream_frame(flow, inside, Content::Datagram, ip_bytes)
}

/// Ways a session frame can be malformed (HZ-01): PPPoE length 0, 1 and beyond the frame, wrong version, wrong code,
/// one-byte PPP protocol field.
pub(super) const DEFECTS: usize = 6;

/// The flow's upstream frame, malformed in way `defect % DEFECTS`.
pub(super) fn malformed_frame(flow: &Flow, ip_bytes: usize, defect: usize) -> Option<Vec<u8>> {
    let mut frame = upstream_frame(flow, Content::Datagram, ip_bytes)?;
    let at = ethernet::ETH_LEN + 4 * usize::from(flow.subscriber.tags);
    let [version_type, code, _, _, length @ .., protocol, _] = frame
        .get_mut(at..)?
        .first_chunk_mut::<{ PPPOE_LEN + PPP_LEN }>()?;
    match defect % DEFECTS {
        0 => *length = [0, 0],
        1 => *length = [0, 1],
        2 => *length = [0xff, 0xff],
        3 => *version_type = 0x21,
        4 => *code = 0x09,
        _ => *protocol = 0x21,
    }
    Some(frame)
}

fn padded(mut frame: Vec<u8>) -> Vec<u8> {
    frame.resize(frame.len().max(MIN_FRAME), 0);
    frame
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn flows_and_blocks_are_all_different() {
        for (sessions, flows) in [(1_000, 64_000), (1, 1), (70_000, 100_000), (7, 5_000)] {
            let shape = Shape::new(sessions, flows, 1_024, 0).unwrap();
            let keys: HashSet<_> = (0..flows)
                .map(|index| shape.flow(index))
                .map(|flow| (flow.subscriber.slot, flow.port))
                .collect();
            assert_eq!(keys.len(), flows as usize);
            let blocks: HashSet<_> = (0..sessions)
                .map(|session| shape.subscriber(session).block)
                .collect();
            assert_eq!(blocks.len(), sessions as usize);
            assert!(blocks.iter().all(|block| {
                u32::from(block.first_port) + u32::from(block.size) <= 65_536
                    && u32::from(block.address_index) < shape.public_addresses
            }));
        }
    }

    #[test]
    fn the_order_is_a_permutation_and_repeatable() {
        let order = shuffled(10_000, 7);
        assert_eq!(order, shuffled(10_000, 7));
        assert_ne!(order, shuffled(10_000, 8));
        let distinct: HashSet<_> = order.iter().collect();
        assert_eq!(distinct.len(), 10_000);
        // Not close to sorted: neighbours are far apart.
        let near = order
            .windows(2)
            .filter(|pair| pair[0].abs_diff(pair[1]) < 10)
            .count();
        assert!(near < 100);
    }

    /// M3 and M5: what the next segment of a run must have.
    #[test]
    fn a_train_goes_on_where_it_was() {
        let shape = Shape::new(3, 7, 5, 1).unwrap();
        let flow = shape.flow(6);
        let number = |frame: &[u8], at: usize, len: usize| {
            let octets = &frame[18 + 8 + at..][..len];
            octets
                .iter()
                .fold(0u64, |n, octet| n << 8 | u64::from(*octet))
        };
        let frame = |at| upstream_frame(&flow, Content::Segment(at), 140).unwrap();
        let (first, second, third) = (frame(0), frame(1), frame(2));
        for (before, after) in [(&first, &second), (&second, &third)] {
            assert_eq!(number(after, 4, 2), (number(before, 4, 2) + 1) & 0xffff);
            assert_eq!(
                number(after, 24, 4),
                (number(before, 24, 4) + 100) & 0xffff_ffff
            );
            // The stream goes on, too.
            assert_ne!(before[18 + 8 + 40..], after[18 + 8 + 40..]);
            assert_eq!(before.len(), after.len());
        }
        assert_eq!(upstream_frame(&flow, Content::Segment(0), 39), None);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(Shape::new(10, 9, 1, 0).is_err());
        assert!(Shape::new(1, 40_000, 1, 0).is_err());
    }
}
