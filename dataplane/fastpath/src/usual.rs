//! The usual packet: UDP or TCP in IPv4 without options, not fragmented, not the first or last of a connection, of a
//! session that forwards, on a mapping that is there.
//!
//! Nearly all packets are usual, and only for them every instruction counts. So this way knows no reasons: it takes a
//! packet when everything is as it should be, and leaves whatever is unusual or wrong, untouched and uncounted, to the
//! general way ([`crate::upstream`], [`crate::downstream`]), which finds the same facts again and the reason. It is a
//! shortcut, not a second opinion: a test sends the same frames both ways and compares bytes, verdicts and counters.
//!
//! Fields are compared several at a time, as words in the order of the frame's bytes.

pub(crate) mod downstream;
pub(crate) mod upstream;

use bng_shm::{NatProtocol, Sender};
use bng_wire::checksum::Delta;
use bng_wire::ethernet::{ETH_LEN, ethertype, is_tpid};
use bng_wire::ipv4::{IPV4_MIN_LEN, protocol};
use bng_wire::l4::tcp_flag::{FIN, RST, SYN};
use bng_wire::l4::{TCP_MIN_LEN, UDP_LEN};
use bng_wire::pppoe::{PPP_LEN, PPPOE_LEN};
use bng_wire::{EthHdr, MacAddr, U16, VlanHdr};
use zerocopy::little_endian::{U32 as Le32, U64 as Le64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// IPv4 header, and TCP header up to its control bits. The shortest frame on Ethernet has room for as much, also if the
/// packet is a shorter UDP one and the frame has a tag.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PacketHead {
    /// Version, length, TOS, total length, identification, fragment.
    first: Le64,
    /// TTL, protocol, checksum, source.
    second: Le64,
    dst: Le32,
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

/// PPPoE session header, PPP protocol field and the packet.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SessionHead {
    /// Version and type, code, session id, length, PPP protocol.
    first: Le64,
    packet: PacketHead,
}

/// Ethernet header and the packet.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CoreHead {
    eth: EthHdr,
    packet: PacketHead,
}

/// What a usual packet says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) src: u32,
    pub(crate) dst: u32,
    /// Total length, bytes; at least that of both headers.
    pub(crate) len: u16,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    pub(crate) is_tcp: bool,
}

impl Packet {
    pub(crate) const EMPTY: Self = Self {
        src: 0,
        dst: 0,
        len: 0,
        src_port: 0,
        dst_port: 0,
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
}

/// What a session frame with a usual packet says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionPacket {
    pub(crate) session_id: u16,
    pub(crate) sender: Sender,
    /// Offset of the IPv4 header in the frame.
    pub(crate) l3: u8,
    pub(crate) packet: Packet,
}

/// The usual packet in a PPPoE session frame to `own`.
#[inline(always)]
pub(crate) fn session(data: &[u8], own: MacAddr) -> Option<SessionPacket> {
    // Version 1, type 1, code 0 (session), and PPP protocol 0x0021 (IPv4).
    const FIXED: u64 = 0xffff_0000_0000_ffff;
    const SESSION: u64 = 0x2100_0000_0000_0011;
    let (eth, rest) = EthHdr::ref_from_prefix(data).ok()?;
    if eth.dst != own {
        return None;
    }
    let (sender, l2, rest) = if eth.ethertype == U16::new(ethertype::PPPOE_SESSION) {
        (Sender::new(eth.src.0, None, None), ETH_LEN, rest)
    } else {
        tagged(eth, rest)?
    };
    let (head, _) = SessionHead::ref_from_prefix(rest).ok()?;
    let first = head.first.get();
    let length = usize::from(((first >> 32) as u16).swap_bytes());
    if first & FIXED != SESSION || length > rest.len() - PPPOE_LEN {
        return None;
    }
    let packet = head.packet.read(length.checked_sub(PPP_LEN)?)?;
    Some(SessionPacket {
        session_id: ((first >> 16) as u16).swap_bytes(),
        sender,
        l3: (l2 + PPPOE_LEN + PPP_LEN) as u8,
        packet,
    })
}

/// Sender, length of the link layer and what follows, of a session frame with one or two tags. A priority tag is not
/// usual.
#[inline(always)]
fn tagged<'a>(eth: &EthHdr, rest: &'a [u8]) -> Option<(Sender, usize, &'a [u8])> {
    const SESSION: U16 = U16::new(ethertype::PPPOE_SESSION);
    let (outer, rest) = VlanHdr::ref_from_prefix(rest).ok()?;
    let s_vlan = outer.tci.get() & 0x0fff;
    if !is_tpid(eth.ethertype.get()) || s_vlan == 0 {
        return None;
    }
    if outer.ethertype == SESSION {
        return Some((Sender::new(eth.src.0, Some(s_vlan), None), ETH_LEN + 4, rest));
    }
    let (inner, rest) = VlanHdr::ref_from_prefix(rest).ok()?;
    let c_vlan = inner.tci.get() & 0x0fff;
    if !is_tpid(outer.ethertype.get()) || inner.ethertype != SESSION || c_vlan == 0 {
        return None;
    }
    let sender = Sender::new(eth.src.0, Some(s_vlan), Some(c_vlan));
    Some((sender, ETH_LEN + 8, rest))
}

/// The usual packet in an untagged frame to `own`.
#[inline(always)]
pub(crate) fn core(data: &[u8], own: MacAddr) -> Option<Packet> {
    let (head, _) = CoreHead::ref_from_prefix(data).ok()?;
    if head.eth.ethertype != U16::new(ethertype::IPV4) || head.eth.dst != own {
        return None;
    }
    head.packet.read(data.len() - ETH_LEN)
}

impl PacketHead {
    /// The packet, for which `have` bytes are there.
    ///
    /// UDP and TCP go the same way: which of them the next packet is would be a guess.
    #[inline(always)]
    fn read(&self, have: usize) -> Option<Packet> {
        // Version 4, header of 20 bytes, neither "more fragments" nor an offset.
        const FIXED: u64 = 0xff3f_0000_0000_00ff;
        const USUAL: u64 = 0x45;
        let (first, second) = (self.first.get(), self.second.get());
        let len = ((first >> 16) as u16).swap_bytes();
        // Two 64-bit words and a carry are the shortest way to sum 20 bytes. A sum of all ones is the same in either
        // byte order (RFC 1071 section 2 (B)); it folds to that if it is a multiple of 2^16 - 1 other than 0.
        let (sum, carry) = first.overflowing_add(second);
        let sum = (sum >> 32)
            + (sum & 0xffff_ffff)
            + u64::from(self.dst.get())
            + u64::from(carry);
        let (ttl, proto) = (second as u8, (second >> 8) as u8);
        let is_tcp = proto == protocol::TCP;
        if first & FIXED != USUAL
            || usize::from(len) > have
            || ttl <= 1
            || !(is_tcp || proto == protocol::UDP)
            || !sum.is_multiple_of(0xffff)
        {
            return None;
        }
        let (l4_len, l4_min, marks) = if is_tcp {
            let header_len = u16::from(self.offset >> 4) * 4;
            (header_len, TCP_MIN_LEN as u16, self.flags & (SYN | FIN | RST))
        } else {
            (self.udp_length.get(), UDP_LEN as u16, 0)
        };
        let end = u32::from(l4_len) + IPV4_MIN_LEN as u32;
        if l4_len < l4_min || end > u32::from(len) || marks != 0 {
            return None;
        }
        Some(Packet {
            src: ((second >> 32) as u32).swap_bytes(),
            dst: self.dst.get().swap_bytes(),
            len,
            src_port: self.src_port.get(),
            dst_port: self.dst_port.get(),
            is_tcp,
        })
    }
}

/// Updates the checksum of a usual packet's transport header, of which `l4` is what follows the ports.
#[inline(always)]
fn update_checksum(l4: &mut [u8], is_tcp: bool, changed: Delta) {
    // Offsets 16 and 6 of the headers.
    let at = if is_tcp { 12 } else { 2 };
    let field = l4.get_mut(at..).and_then(|l4| l4.first_chunk_mut());
    let Some(field) = field else {
        return;
    };
    let old = u16::from_be_bytes(*field);
    let mut new = changed.apply(old);
    // UDP: zero means none, and stays; a computed zero is sent as all ones (RFC 768).
    if !is_tcp & ((old == 0) | (new == 0)) {
        new = if old == 0 { 0 } else { 0xffff };
    }
    *field = new.to_be_bytes();
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use bng_wire::VlanStack;
    use bng_wire::VlanTag;
    use proptest::prelude::*;

    use bng_wire::pppoe;

    use super::*;
    use crate::ports::{Port, PortRole};
    use crate::testing::{TestBuf, ethernet, pppoe_session, tcp, udp};
    use crate::flow::Direction;
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
            src: packet.src,
            dst: packet.dst,
            len: packet.len,
            src_port: port(0)?,
            dst_port: port(2)?,
            is_tcp: packet.protocol == protocol::TCP,
        };
        let translated = match direction {
            Direction::Upstream => found.src_port,
            Direction::Downstream => found.dst_port,
        };
        assert!(!usual || (flow.protocol, flow.port) == (found.protocol(), translated));
        usual.then_some(found)
    }

    fn session_by_parsers(frame: &[u8]) -> Option<SessionPacket> {
        let buf = TestBuf::new(0, frame);
        let (link, rest) = classify::access(&buf, &port(PortRole::Access { index: 0 })).ok()?;
        let (ppp, l3) = decap::session(&link, rest).ok()?;
        if ppp.protocol != pppoe::protocol::IPV4 {
            return None;
        }
        let packet = ip::check(ppp.payload, l3).ok()?;
        let bytes = ppp.payload.get(..usize::from(packet.len))?;
        Some(SessionPacket {
            session_id: ppp.session_id,
            sender: session::sender(&link),
            l3: l3 as u8,
            packet: as_usual(bytes, &packet, Direction::Upstream)?,
        })
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
            let found = session(&frame, OWN);
            assert!(found.is_some());
            assert_eq!(found, session_by_parsers(&frame));
        }
        for frame in down {
            let found = core(&frame, OWN);
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
                same(session(&frame, OWN), by_parsers, room);
            }
            let frame = change(which.get(&down));
            for l3 in [0, ETH_LEN] {
                let frame = with_checksum(frame.clone(), l3);
                same(core(&frame, OWN), core_by_parsers(&frame), frame.len() >= 48);
            }
        }
    }
}
