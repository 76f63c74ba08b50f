//! The usual packet: UDP or TCP in IPv4 without options, not fragmented, not the first or last of a connection, of a
//! session that forwards, on a mapping that is there.
//!
//! Nearly all packets are usual, and only for them every instruction counts. So this way knows no reasons: it takes a
//! packet when everything is as it should be, and leaves whatever is unusual or wrong, untouched and uncounted, to the
//! general way ([`crate::upstream`], [`crate::downstream`]), which finds the same facts again and the reason. It is a
//! shortcut, not a second opinion: a test sends the same frames both ways and compares bytes, verdicts and counters.
//!
//! Fields are compared several at a time, as words in the order of the frame's bytes.
//!
//! Of a frame that is like an earlier one of its burst ([`Hints`]) nothing is read and nothing looked up: what was found for the
//! earlier one holds for both. Only policer, counters and rewrite are its own. The passes are compiled twice, with hints
//! and without.

pub(crate) mod downstream;
pub(crate) mod upstream;

use bng_shm::{NatProtocol, Sender};
use bng_wire::checksum::Delta;
use bng_wire::ethernet::{ETH_LEN, TAG_LEN, ethertype, is_tpid};
use bng_wire::ipv4::{IPV4_MIN_LEN, protocol};
use bng_wire::l4::tcp_flag::{FIN, RST, SYN};
use bng_wire::l4::{TCP_MIN_LEN, UDP_LEN};
use bng_wire::pppoe::{self, PPP_LEN, PPPOE_LEN, VERSION_TYPE};
use bng_wire::{EthHdr, Ipv4Hdr, MacAddr, U16, U32, VlanHdr};
use zerocopy::little_endian::U64 as Le64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::coalesce::Hints;
use crate::filter;

/// The earlier frame that the one at `at` is like.
#[inline(always)]
fn like<const HINTED: bool>(hints: &Hints, at: usize) -> Option<usize> {
    if HINTED { hints.like(at) } else { None }
}

/// Which frames of a burst are usual so far, as long as there are hints.
#[derive(Debug, Clone, Copy, Default)]
struct UsualSoFar(u32);

impl UsualSoFar {
    #[inline(always)]
    const fn has(self, at: usize) -> bool {
        self.0 >> (at & 31) & 1 != 0
    }

    /// Notes the next frame, at `at`.
    #[inline(always)]
    const fn note<const HINTED: bool>(&mut self, at: usize, usual: bool) {
        if HINTED {
            self.0 |= (usual as u32) << (at & 31);
        }
    }
}

/// The frames of a burst that turned out not to be usual when they were about to leave.
type Stayed = u32;

/// What a usual packet says, as it stands in the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) src: U32,
    pub(crate) dst: U32,
    pub(crate) src_port: U16,
    pub(crate) dst_port: U16,
    /// Total length, bytes (as a number); at least that of both headers.
    pub(crate) len: u16,
    pub(crate) is_tcp: bool,
}

impl Packet {
    pub(crate) const EMPTY: Self = Self {
        src: U32::ZERO,
        dst: U32::ZERO,
        src_port: U16::ZERO,
        dst_port: U16::ZERO,
        len: 0,
        is_tcp: false,
    };

    /// As NAT calls its protocol.
    #[inline(always)]
    pub(crate) const fn protocol(&self) -> NatProtocol {
        if self.is_tcp {
            NatProtocol::Tcp
        } else {
            NatProtocol::Udp
        }
    }

    /// Whether the session's filter lets it pass; `local` is the subscriber's port.
    #[inline(always)]
    fn passes(&self, rules: &filter::Rules<u32>, remote: (U32, U16), local: U16) -> bool {
        rules.pass(&filter::Key {
            protocol: if self.is_tcp {
                protocol::TCP
            } else {
                protocol::UDP
            },
            remote: remote.0.get(),
            ports: filter::Ports::Known {
                remote: remote.1.get(),
                local: local.get(),
            },
        })
    }
}

/// Words of a header that are the same in every usual frame to a port, and which of their bits.
type Fixed = [Le64; 4];

/// IPv4 header, and TCP header up to its control bits. The shortest frame on Ethernet has room for as much, also if the
/// packet is a shorter UDP one and the frame has a tag.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PacketHead {
    /// Version, header length, TOS, total length, identification, fragment.
    first: Le64,
    /// TTL, protocol, checksum, source.
    second: Le64,
    dst: U32,
    src_port: U16,
    dst_port: U16,
    /// UDP only.
    udp_length: U16,
    rest: [u8; 6],
    /// TCP only: data offset in the upper half.
    offset: u8,
    /// TCP only.
    flags: u8,
}

/// A session frame from its addresses on, or, if it has tags, from four bytes per tag later on.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SessionHead {
    dst: MacAddr,
    /// Source address and EtherType.
    src_type: Le64,
    version_code: U16,
    session_id: U16,
    length: U16,
    protocol: U16,
    packet: PacketHead,
}

/// Ethernet header and the packet.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CoreHead {
    eth: EthHdr,
    packet: PacketHead,
}

const fn word(bytes: [u8; 8]) -> Le64 {
    Le64::from_bytes(bytes)
}

/// Whether a header has the fixed bits it must have. One comparison of 32 bytes.
#[inline(always)]
fn is_fixed(head: &Fixed, fixed: &Fixed, mask: &Fixed) -> bool {
    let mut differences = 0;
    for ((head, fixed), mask) in head.iter().zip(fixed).zip(mask) {
        differences |= (head.get() ^ fixed.get()) & mask.get();
    }
    differences == 0
}

/// What a session frame says besides the packet in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) sender: Sender,
    pub(crate) id: u16,
    /// Length of the tags, bytes.
    pub(crate) tags: u8,
}

impl Session {
    pub(crate) const EMPTY: Self = Self {
        sender: Sender::new([0; 6], None, None),
        id: 0,
        tags: 0,
    };
}

/// The usual session frames to a port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionFrames {
    own: MacAddr,
    fixed: Fixed,
}

impl SessionFrames {
    /// Destination, EtherType, PPPoE version, type and code, PPP protocol; IPv4 version, header length, "more fragments"
    /// and offset.
    const MASK: Fixed = [
        word([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]),
        word([0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
        word([0, 0, 0, 0, 0xff, 0xff, 0xff, 0]),
        word([0, 0, 0, 0, 0x3f, 0xff, 0, 0]),
    ];
    /// As [`Self::MASK`], where tags are in front of the EtherType.
    const MASK_TAGGED: Fixed = [word([0; 8]), Self::MASK[1], Self::MASK[2], Self::MASK[3]];

    pub(crate) const fn to_port(own: MacAddr) -> Self {
        let [a, b, c, d, e, f] = own.0;
        let [g, h] = ethertype::PPPOE_SESSION.to_be_bytes();
        let [i, j] = pppoe::protocol::IPV4.to_be_bytes();
        let fixed = [
            word([a, b, c, d, e, f, 0, 0]),
            word([0, 0, 0, 0, g, h, VERSION_TYPE, pppoe::code::SESSION]),
            word([0, 0, 0, 0, i, j, 0x45, 0]),
            word([0; 8]),
        ];
        Self { own, fixed }
    }

    /// Reads a frame; false if it is not usual, and then what was found means nothing.
    #[inline(always)]
    pub(crate) fn read(&self, data: &[u8], session: &mut Session, packet: &mut Packet) -> bool {
        const SESSION: u16 = ethertype::PPPOE_SESSION.swap_bytes();
        let Ok((head, _)) = SessionHead::ref_from_prefix(data) else {
            return false;
        };
        let src_type = head.src_type.get();
        let [a, b, c, d, e, f, ..] = src_type.to_le_bytes();
        let src = [a, b, c, d, e, f];
        if (src_type >> 48) as u16 == SESSION {
            session.sender = Sender::new(src, None, None);
            return self.read_from(data, 0, &Self::MASK, session, packet);
        }
        let Some((tagged, tags)) = tagged(data, src) else {
            return false;
        };
        session.sender = tagged;
        let rest = data.get(tags..).unwrap_or(&[]);
        head.dst == self.own && self.read_from(rest, tags, &Self::MASK_TAGGED, session, packet)
    }

    /// Reads what begins `tags` bytes after the addresses.
    #[inline(always)]
    fn read_from(
        &self,
        rest: &[u8],
        tags: usize,
        mask: &Fixed,
        session: &mut Session,
        packet: &mut Packet,
    ) -> bool {
        let (Ok((head, _)), Ok((start, _))) = (
            SessionHead::ref_from_prefix(rest),
            Fixed::ref_from_prefix(rest),
        ) else {
            return false;
        };
        session.id = head.session_id.get();
        session.tags = tags as u8;
        let length = i32::from(head.length.get());
        length <= rest.len() as i32 - (ETH_LEN + PPPOE_LEN) as i32
            && is_fixed(start, &self.fixed, mask)
            && head.packet.read(length - PPP_LEN as i32, packet)
    }

    /// So long is a frame that [`Self::read`] has room to look at, with tags or without. A shorter one may be like a usual
    /// frame and not be one itself: its datagram ends before the control bits of TCP would.
    pub(crate) const ROOM: usize = size_of::<SessionHead>() + 2 * TAG_LEN;

    /// Offset of the IPv4 header in a frame without tags.
    pub(crate) const L3: usize = ETH_LEN + PPPOE_LEN + PPP_LEN;
}

/// Sender and length of the tags, of a session frame with one or two. A priority tag is not usual.
#[inline(always)]
fn tagged(data: &[u8], src: [u8; 6]) -> Option<(Sender, usize)> {
    const SESSION: U16 = U16::new(ethertype::PPPOE_SESSION);
    let (eth, rest) = EthHdr::ref_from_prefix(data).ok()?;
    let (outer, rest) = VlanHdr::ref_from_prefix(rest).ok()?;
    let s_vlan = outer.tci.get() & 0x0fff;
    if !is_tpid(eth.ethertype.get()) || s_vlan == 0 {
        return None;
    }
    if outer.ethertype == SESSION {
        return Some((Sender::new(src, Some(s_vlan), None), TAG_LEN));
    }
    let (inner, _) = VlanHdr::ref_from_prefix(rest).ok()?;
    let c_vlan = inner.tci.get() & 0x0fff;
    if !is_tpid(outer.ethertype.get()) || inner.ethertype != SESSION || c_vlan == 0 {
        return None;
    }
    let sender = Sender::new(src, Some(s_vlan), Some(c_vlan));
    Some((sender, 2 * TAG_LEN))
}

/// The usual frames from the core to a port.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CoreFrames {
    fixed: Fixed,
}

impl CoreFrames {
    /// Destination, EtherType, IPv4 version, header length, "more fragments" and offset.
    const MASK: Fixed = [
        word([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]),
        word([0, 0, 0, 0, 0xff, 0xff, 0xff, 0]),
        word([0, 0, 0, 0, 0x3f, 0xff, 0, 0]),
        word([0; 8]),
    ];

    /// As [`SessionFrames::ROOM`].
    pub(crate) const ROOM: usize = size_of::<CoreHead>();

    pub(crate) const fn to_port(own: MacAddr) -> Self {
        let [a, b, c, d, e, f] = own.0;
        let [g, h] = ethertype::IPV4.to_be_bytes();
        let fixed = [
            word([a, b, c, d, e, f, 0, 0]),
            word([0, 0, 0, 0, g, h, 0x45, 0]),
            word([0; 8]),
            word([0; 8]),
        ];
        Self { fixed }
    }

    /// Reads a frame; false if it is not usual, and then what was found means nothing.
    #[inline(always)]
    pub(crate) fn read(&self, data: &[u8], packet: &mut Packet) -> bool {
        let Ok((head, _)) = CoreHead::ref_from_prefix(data) else {
            return false;
        };
        let Ok((start, _)) = Fixed::ref_from_prefix(data) else {
            return false;
        };
        is_fixed(start, &self.fixed, &Self::MASK)
            && head.packet.read((data.len() - ETH_LEN) as i32, packet)
    }
}

impl PacketHead {
    /// Reads the packet, for which `have` bytes are there. Version and fragment have been looked at.
    ///
    /// UDP and TCP go the same way: which of them the next packet is would be a guess.
    #[inline(always)]
    fn read(&self, have: i32, packet: &mut Packet) -> bool {
        let (first, second) = (self.first.get(), self.second.get());
        // Two 64-bit words and a carry are the shortest way to sum 20 bytes. A sum of all ones is the same in either
        // byte order (RFC 1071 section 2 (B)); it folds to that if it is a multiple of 2^16 - 1 other than 0.
        let (sum, carry) = first.overflowing_add(second);
        let dst = u32::from_ne_bytes(self.dst.to_bytes());
        let sum = (sum >> 32) + (sum & 0xffff_ffff) + u64::from(dst) + u64::from(carry);
        if !sum.is_multiple_of(0xffff) {
            return false;
        }
        let (ttl, proto) = (second as u8, (second >> 8) as u8);
        packet.src = U32::from_bytes(((second >> 32) as u32).to_le_bytes());
        packet.dst = self.dst;
        packet.src_port = self.src_port;
        packet.dst_port = self.dst_port;
        packet.len = ((first >> 16) as u16).swap_bytes();
        packet.is_tcp = proto == protocol::TCP;
        let (udp_len, offset) = (self.udp_length.get(), self.offset);
        let marks = self.flags & (SYN | FIN | RST);
        let (l4_len, l4_min, odd) = if packet.is_tcp {
            (i32::from(offset >> 4) * 4, TCP_MIN_LEN as i32, marks)
        } else {
            (i32::from(udp_len), UDP_LEN as i32, proto ^ protocol::UDP)
        };
        // What is missing anywhere makes one of these negative; so it is one branch.
        let len = i32::from(packet.len);
        let missing = (have - len)
            | (len - IPV4_MIN_LEN as i32 - l4_len)
            | (l4_len - l4_min)
            | (i32::from(ttl) - 2)
            | -i32::from(odd);
        missing >= 0
    }
}

/// IPv4 header and ports of a usual packet.
#[derive(FromBytes, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct Rewritten {
    ip: Ipv4Hdr,
    src_port: U16,
    dst_port: U16,
}

/// One end of a packet.
type End = (U32, U16);

/// Gives a usual packet, which begins with `bytes`, a new end and takes one hop off it. `old` is the end it has and
/// `end_of` says where that is.
#[inline(always)]
fn rewrite(
    bytes: &mut [u8],
    is_tcp: bool,
    old: End,
    new: End,
    end_of: impl FnOnce(&mut Rewritten) -> (&mut U32, &mut U16),
) {
    let Ok((head, l4)) = Rewritten::mut_from_prefix(bytes) else {
        return;
    };
    let address = Delta::new().u32(old.0.get(), new.0.get());
    // The TTL is the upper half of its 16-bit word, so the change is the same for every packet (RFC 1141).
    let hop = Delta::new().u16(0x0100, 0);
    let ip = &mut head.ip;
    ip.ttl = ip.ttl.wrapping_sub(1);
    ip.checksum.set(address.and(hop).apply(ip.checksum.get()));
    let (ip_place, port_place) = end_of(head);
    (*ip_place, *port_place) = new;
    // Offsets 16 and 6 of the headers, whose ports are behind us.
    let at = if is_tcp { 12 } else { 2 };
    let Some(Ok(field)) = l4.get_mut(at..at + 2).map(<&mut [u8; 2]>::try_from) else {
        return;
    };
    let check = u16::from_be_bytes(*field);
    let changed = address.u16(old.1.get(), new.1.get());
    let mut updated = changed.apply(check);
    if (check == 0 || updated == 0) && !is_tcp {
        updated = udp_zero(check);
    }
    *field = updated.to_be_bytes();
}

/// UDP: zero means none, and stays; a computed zero is sent as all ones (RFC 768).
#[cold]
const fn udp_zero(old: u16) -> u16 {
    if old == 0 { 0 } else { 0xffff }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use bng_wire::VlanStack;
    use bng_wire::VlanTag;
    use proptest::prelude::*;

    use super::*;
    use crate::flow::Direction;
    use crate::ports::{Port, PortRole};
    use crate::testing::{TestBuf, ethernet, pppoe_session, tcp, udp};
    use crate::{classify, decap, flow, ip, session};

    const OWN: MacAddr = MacAddr([2, 0xbb, 0, 0, 0, 1]);
    const PEER: MacAddr = MacAddr([2, 0xaa, 1, 2, 3, 4]);

    fn port(role: PortRole) -> Port {
        Port {
            mac: OWN,
            mtu: 1_500,
            role,
        }
    }

    /// What the parsers of the general way find, as the shortcut says it.
    fn as_usual(bytes: &[u8], packet: &ip::Packet, direction: Direction) -> Option<Packet> {
        let flow = flow::parse(bytes, packet, direction).ok()?;
        let l4 = bytes.get(IPV4_MIN_LEN..)?;
        let port = |at: usize| Some(u16::from_be_bytes(*l4.get(at..)?.first_chunk()?));
        let usual = !packet.is_fragment()
            && matches!(packet.protocol, protocol::UDP | protocol::TCP)
            && flow.tcp_flags & (SYN | FIN | RST) == 0
            && packet.ttl > 1;
        let found = Packet {
            src: packet.src.into(),
            dst: packet.dst.into(),
            src_port: port(0)?.into(),
            dst_port: port(2)?.into(),
            len: packet.len,
            is_tcp: packet.protocol == protocol::TCP,
        };
        let translated = match direction {
            Direction::Upstream => found.src_port,
            Direction::Downstream => found.dst_port,
        };
        assert!(!usual || (flow.protocol, flow.port) == (found.protocol(), translated.get()));
        usual.then_some(found)
    }

    fn session(frame: &[u8]) -> Option<(Session, Packet)> {
        let (mut session, mut packet) = (Session::EMPTY, Packet::EMPTY);
        let frames = SessionFrames::to_port(OWN);
        let usual = frames.read(frame, &mut session, &mut packet);
        usual.then_some((session, packet))
    }

    fn core(frame: &[u8]) -> Option<Packet> {
        let mut packet = Packet::EMPTY;
        let usual = CoreFrames::to_port(OWN).read(frame, &mut packet);
        usual.then_some(packet)
    }

    fn session_by_parsers(frame: &[u8]) -> Option<(Session, Packet)> {
        let buf = TestBuf::new(0, frame);
        let (link, rest) =
            classify::access(&buf, &port(PortRole::Access { index: 0 }), &[]).ok()?;
        let (ppp, l3) = decap::session(&link, rest).ok()?;
        if ppp.protocol != pppoe::protocol::IPV4 {
            return None;
        }
        let packet = ip::check(ppp.payload, l3).ok()?;
        let bytes = ppp.payload.get(..usize::from(packet.len))?;
        let session = Session {
            sender: session::sender(&link),
            id: ppp.session_id,
            tags: link.tags.wire_len() as u8,
        };
        Some((session, as_usual(bytes, &packet, Direction::Upstream)?))
    }

    fn core_by_parsers(frame: &[u8]) -> Option<Packet> {
        let buf = TestBuf::new(0, frame);
        let (l3, bytes) = classify::core(&buf, &port(PortRole::Core)).ok()?;
        let packet = ip::check(bytes, l3).ok()?;
        let bytes = bytes.get(..usize::from(packet.len))?;
        as_usual(bytes, &packet, Direction::Downstream)
    }

    fn packets() -> [Vec<u8>; 4] {
        let a = (Ipv4Addr::new(100, 64, 0, 9), 5_000);
        let b = (Ipv4Addr::new(8, 8, 4, 4), 443);
        [
            udp(a, b, b""),
            udp(a, b, b"payload"),
            tcp(a, b, 0x18, b""),
            tcp(a, b, 0x10, b"payload"),
        ]
    }

    fn frames() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let tag = |tpid, tci| VlanTag { tpid, tci };
        let stacks = [
            VlanStack::UNTAGGED,
            VlanStack::single(tag(ethertype::VLAN, 5)),
            VlanStack::double(tag(ethertype::QINQ, 0x6064), tag(ethertype::VLAN, 7)),
        ];
        let padded = |mut frame: Vec<u8>| {
            frame.resize(frame.len().max(64), 0);
            frame
        };
        let up = packets().into_iter().flat_map(|packet| {
            stacks.map(|tags| padded(pppoe_session(OWN, PEER, &tags, 0x1234, 0x0021, &packet)))
        });
        let down = packets().map(|packet| padded(ethernet(OWN, PEER, ethertype::IPV4, &packet)));
        (up.collect(), down.to_vec())
    }

    #[test]
    fn usual_packets_are_taken() {
        let (up, down) = frames();
        for frame in up {
            let found = session(&frame);
            assert!(found.is_some());
            assert_eq!(found, session_by_parsers(&frame));
        }
        for frame in down {
            let found = core(&frame);
            assert!(found.is_some());
            assert_eq!(found, core_by_parsers(&frame));
        }
    }

    /// The header checksum of the packet at `l3` made right, if there is room for it.
    fn with_checksum(mut frame: Vec<u8>, l3: usize) -> Vec<u8> {
        if let Some(header) = frame.get_mut(l3..l3 + IPV4_MIN_LEN) {
            header[10..12].fill(0);
            let check = bng_wire::checksum::checksum(header);
            header[10..12].copy_from_slice(&check.to_be_bytes());
        }
        frame
    }

    /// The shortcut takes all that is usual, if the frame is long enough for it to look.
    fn same<T: PartialEq + std::fmt::Debug>(found: Option<T>, by_parsers: Option<T>, room: bool) {
        if room || found.is_some() {
            assert_eq!(found, by_parsers);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_096))]
        #[test]
        fn the_parsers_find_the_same(
            which: prop::sample::Index,
            edits in prop::collection::vec((0usize..80, any::<u8>()), 0..3),
            bit in (0usize..80, 0u32..8),
            len in 0usize..90,
        ) {
            let (up, down) = frames();
            let change = |frame: &Vec<u8>| {
                let mut frame = frame.clone();
                for (at, value) in edits.iter().copied() {
                    if let Some(byte) = frame.get_mut(at) {
                        *byte = value;
                    }
                }
                if let Some(byte) = frame.get_mut(bit.0) {
                    *byte ^= 1 << bit.1;
                }
                // Half of them cut short, half of them padded.
                frame.resize(len.max(frame.len() / 2), 0);
                frame
            };
            let frame = change(which.get(&up));
            for l3 in [0, 22, 26, 30] {
                let frame = with_checksum(frame.clone(), l3);
                let by_parsers = session_by_parsers(&frame);
                // A priority tag is left to them.
                let room = bng_wire::ethernet::parse(&frame).is_ok_and(|link| {
                    link.tags.iter().all(|tag| tag.vid() != 0) && frame.len() >= link.payload + 42
                });
                same(session(&frame), by_parsers, room);
            }
            let frame = change(which.get(&down));
            for l3 in [0, ETH_LEN] {
                let frame = with_checksum(frame.clone(), l3);
                same(core(&frame), core_by_parsers(&frame), frame.len() >= 48);
            }
        }
    }
}
