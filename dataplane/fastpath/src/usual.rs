//! The usual packet: UDP or TCP in IPv4 without options and not fragmented, read at fixed places.
//!
//! A shortcut, not a second opinion. Whatever is unusual in any way, or wrong, is left to the parsers of `bng-wire`; what
//! is taken here is what they would have found (a test compares them).

use bng_shm::{NatProtocol, Sender};
use bng_wire::ethernet::{self, ETH_LEN, ethertype};
use bng_wire::ipv4::{FLAG_MF, IPV4_MIN_LEN, OFFSET_MASK, protocol};
use bng_wire::l4::{TCP_MIN_LEN, UDP_LEN};
use bng_wire::pppoe::{self, PPP_LEN, PPPOE_LEN, VERSION_TYPE};
use bng_wire::{EthHdr, Ipv4Hdr, MacAddr, PppoeHdr, U16};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::flow::{Direction, Flow};
use crate::ip::Packet;
use crate::session;

/// IPv4 header and what UDP and TCP have in common behind it, at the length of the shortest packet of either.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PacketHead {
    ip: Ipv4Hdr,
    src_port: U16,
    dst_port: U16,
    /// UDP: length. TCP: half the sequence number.
    length: U16,
    rest: U16,
}

/// PPPoE session header, PPP protocol field and the packet.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SessionHead {
    pppoe: PppoeHdr,
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

/// What a session frame with a usual packet says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SessionPacket {
    pub(crate) session_id: u16,
    pub(crate) sender: Sender,
    pub(crate) packet: Packet,
    pub(crate) flow: Flow,
}

/// The usual packet in a PPPoE session frame to `own`.
#[inline(always)]
pub(crate) fn session(data: &[u8], own: MacAddr) -> Option<SessionPacket> {
    let (eth, rest) = EthHdr::ref_from_prefix(data).ok()?;
    if eth.dst != own {
        return None;
    }
    let (sender, rest) = if eth.ethertype == U16::new(ethertype::PPPOE_SESSION) {
        (Sender::new(eth.src.0, None, None), rest)
    } else {
        let (link, rest) = ethernet::split(data).ok()?;
        if link.ethertype != ethertype::PPPOE_SESSION {
            return None;
        }
        (session::sender(&link), rest)
    };
    let (head, _) = SessionHead::ref_from_prefix(rest).ok()?;
    let PppoeHdr {
        version_type,
        code,
        session_id,
        length,
    } = head.pppoe;
    if version_type != VERSION_TYPE
        || code != pppoe::code::SESSION
        || head.protocol != U16::new(pppoe::protocol::IPV4)
    {
        return None;
    }
    let length = usize::from(length.get());
    if length < PPP_LEN || length > rest.len() - PPPOE_LEN {
        return None;
    }
    let l3 = data.len() - rest.len() + PPPOE_LEN + PPP_LEN;
    let (packet, flow) = head.packet.read(
        rest,
        PPPOE_LEN + PPP_LEN,
        length - PPP_LEN,
        l3,
        Direction::Upstream,
    )?;
    Some(SessionPacket {
        session_id: session_id.get(),
        sender,
        packet,
        flow,
    })
}

/// The usual packet in an untagged frame to `own`.
#[inline(always)]
pub(crate) fn core(data: &[u8], own: MacAddr) -> Option<(Packet, Flow)> {
    let (head, _) = CoreHead::ref_from_prefix(data).ok()?;
    if head.eth.ethertype != U16::new(ethertype::IPV4) || head.eth.dst != own {
        return None;
    }
    head.packet.read(
        data,
        ETH_LEN,
        data.len() - ETH_LEN,
        ETH_LEN,
        Direction::Downstream,
    )
}

impl PacketHead {
    /// The packet and its flow. It lies at `at` of `bytes`, `have` bytes are there for it, and `l3` is its offset in the
    /// frame.
    #[inline(always)]
    fn read(
        &self,
        bytes: &[u8],
        at: usize,
        have: usize,
        l3: usize,
        direction: Direction,
    ) -> Option<(Packet, Flow)> {
        let ip = &self.ip;
        let len = ip.total_len.get();
        let payload = usize::from(len).checked_sub(IPV4_MIN_LEN)?;
        let frag = ip.frag.get();
        if ip.version_ihl != 0x45
            || usize::from(len) > have
            || frag & (FLAG_MF | OFFSET_MASK) != 0
            || !ip.checksum_is_right()
        {
            return None;
        }
        let (protocol, tcp_flags) = if ip.protocol == protocol::UDP {
            let length = usize::from(self.length.get());
            if length < UDP_LEN || length > payload {
                return None;
            }
            (NatProtocol::Udp, 0)
        } else if ip.protocol == protocol::TCP {
            // Data offset and control bits.
            let at = at + IPV4_MIN_LEN + 12;
            let [offset, flags] = *bytes.get(at..)?.first_chunk()?;
            let header_len = usize::from(offset >> 4) * 4;
            if header_len < TCP_MIN_LEN || header_len > payload {
                return None;
            }
            (NatProtocol::Tcp, flags)
        } else {
            return None;
        };
        let packet = Packet {
            src: ip.src.get(),
            dst: ip.dst.get(),
            // The link layer is at most 30 bytes.
            l3: l3 as u16,
            len,
            frag,
            protocol: ip.protocol,
            ttl: ip.ttl,
        };
        let port = match direction {
            Direction::Upstream => self.src_port,
            Direction::Downstream => self.dst_port,
        };
        let flow = Flow {
            protocol,
            port: port.get(),
            tcp_flags,
            is_error: false,
        };
        Some((packet, flow))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use bng_wire::VlanStack;
    use bng_wire::VlanTag;
    use proptest::prelude::*;

    use super::*;
    use crate::ports::{Port, PortRole};
    use crate::testing::{TestBuf, ethernet, pppoe_session, tcp, udp};
    use crate::{classify, decap, flow, ip};

    const OWN: MacAddr = MacAddr([2, 0xbb, 0, 0, 0, 1]);
    const PEER: MacAddr = MacAddr([2, 0xaa, 1, 2, 3, 4]);

    fn port(role: PortRole) -> Port {
        Port {
            mac: OWN,
            mtu: 1_500,
            role,
        }
    }

    /// Only what the shortcut is for.
    fn if_usual(packet: Packet, flow: Flow) -> Option<(Packet, Flow)> {
        let usual = !packet.is_fragment()
            && matches!(packet.protocol, protocol::UDP | protocol::TCP)
            && !flow.is_error;
        usual.then_some((packet, flow))
    }

    fn session_by_parsers(frame: &[u8]) -> Option<SessionPacket> {
        let buf = TestBuf::new(0, frame);
        let (link, rest) =
            classify::access(&buf, &port(PortRole::Access { index: 0 }), &[]).ok()?;
        let (ppp, l3) = decap::session(&link, rest).ok()?;
        if ppp.protocol != pppoe::protocol::IPV4 {
            return None;
        }
        let packet = ip::check(ppp.payload, l3).ok()?;
        let bytes = ppp.payload.get(..usize::from(packet.len))?;
        let flow = flow::parse(bytes, &packet, Direction::Upstream).ok()?;
        let (packet, flow) = if_usual(packet, flow)?;
        Some(SessionPacket {
            session_id: ppp.session_id,
            sender: session::sender(&link),
            packet,
            flow,
        })
    }

    fn core_by_parsers(frame: &[u8]) -> Option<(Packet, Flow)> {
        let buf = TestBuf::new(0, frame);
        let (l3, bytes) = classify::core(&buf, &port(PortRole::Core)).ok()?;
        let packet = ip::check(bytes, l3).ok()?;
        let bytes = bytes.get(..usize::from(packet.len))?;
        let flow = flow::parse(bytes, &packet, Direction::Downstream).ok()?;
        if_usual(packet, flow)
    }

    fn packets() -> [Vec<u8>; 4] {
        let a = (Ipv4Addr::new(100, 64, 0, 9), 5_000);
        let b = (Ipv4Addr::new(8, 8, 4, 4), 443);
        [
            udp(a, b, b""),
            udp(a, b, b"payload"),
            tcp(a, b, 0x12, b""),
            tcp(a, b, 0x10, b"payload"),
        ]
    }

    fn frames() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let tag = |tpid, tci| VlanTag { tpid, tci };
        let stacks = [
            VlanStack::UNTAGGED,
            VlanStack::single(tag(ethertype::VLAN, 0)),
            VlanStack::double(tag(ethertype::QINQ, 0x6064), tag(ethertype::VLAN, 7)),
        ];
        let up = packets().into_iter().flat_map(|packet| {
            stacks.map(|tags| pppoe_session(OWN, PEER, &tags, 0x1234, 0x0021, &packet))
        });
        let down = packets().map(|packet| ethernet(OWN, PEER, ethertype::IPV4, &packet));
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
                prop_assert_eq!(session(&frame, OWN), session_by_parsers(&frame));
            }
            let frame = change(which.get(&down));
            for l3 in [0, ETH_LEN] {
                let frame = with_checksum(frame.clone(), l3);
                prop_assert_eq!(core(&frame, OWN), core_by_parsers(&frame));
            }
        }
    }
}
