//! Laws of parsers and checksums, with etherparse as the independent opinion.
#![allow(missing_docs, clippy::unwrap_used)]

use bng_wire::checksum::{Delta, Sum, checksum, l4_checksum};
use bng_wire::ethernet::ethertype;
use bng_wire::l4::{self, L4};
use bng_wire::{Ipv4Hdr, VlanStack, VlanTag, ethernet, ipv4, pppoe};
use etherparse::{PacketBuilder, SlicedPacket, TransportSlice, VlanId};
use proptest::prelude::*;
use zerocopy::FromBytes;

/// RFC 1071 word by word, as slow and plain as it gets.
fn reference_checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

proptest! {
    #[test]
    fn any_bytes_parse_without_panic_and_offsets_stay_inside(bytes in prop::collection::vec(any::<u8>(), 0..128)) {
        if let Ok(frame) = ethernet::parse(&bytes) {
            prop_assert!(frame.payload <= bytes.len());
        }
        if let Ok(frame) = pppoe::parse_session(&bytes) {
            prop_assert!(frame.payload.len() + 8 <= bytes.len());
        }
        let _ = pppoe::parse_discovery(&bytes);
        if let Ok(packet) = ipv4::parse(&bytes) {
            prop_assert!(packet.header_len <= packet.total_len && packet.total_len <= bytes.len());
        }
        for protocol in [1, 6, 17, 47] {
            let _ = l4::parse(protocol, &bytes, false);
            let _ = l4::parse(protocol, &bytes, true);
        }
    }

    #[test]
    fn frames_of_etherparse_are_read_alike(
        tags in 0usize..3, vid in 0u16..4096, inner in 0u16..4096,
        src in any::<[u8; 4]>(), dst in any::<[u8; 4]>(), ttl in any::<u8>(),
        sport in any::<u16>(), dport in any::<u16>(), udp in any::<bool>(),
        payload in prop::collection::vec(any::<u8>(), 0..64), pad in 0usize..20,
    ) {
        let vid = VlanId::try_new(vid).unwrap();
        let inner = VlanId::try_new(inner).unwrap();
        let ethernet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
        let ip = match tags {
            0 => ethernet.ipv4(src, dst, ttl),
            1 => ethernet.single_vlan(vid).ipv4(src, dst, ttl),
            _ => ethernet.double_vlan(vid, inner).ipv4(src, dst, ttl),
        };
        let mut bytes = Vec::new();
        if udp {
            ip.udp(sport, dport).write(&mut bytes, &payload).unwrap();
        } else {
            ip.tcp(sport, dport, 1, 2).write(&mut bytes, &payload).unwrap();
        }
        let len = bytes.len();
        bytes.resize(len + pad, 0);

        let frame = ethernet::parse(&bytes).unwrap();
        prop_assert_eq!(frame.ethertype, ethertype::IPV4);
        prop_assert_eq!(frame.tags.count(), tags);
        prop_assert_eq!(frame.tags.s_vlan(), if tags > 0 { vid.value() } else { 0 });
        prop_assert_eq!(frame.tags.c_vlan(), if tags > 1 { inner.value() } else { 0 });
        let packet = ipv4::parse(&bytes[frame.payload..]).unwrap();
        prop_assert_eq!(packet.src_addr().octets(), src);
        prop_assert_eq!(packet.dst_addr().octets(), dst);
        prop_assert_eq!(packet.ttl, ttl);
        prop_assert_eq!(frame.payload + packet.total_len, len);
        let segment = &bytes[frame.payload + packet.header_len..len];
        match l4::parse(packet.protocol, segment, false).unwrap() {
            L4::Udp { src_port, dst_port } => prop_assert!(udp && (src_port, dst_port) == (sport, dport)),
            L4::Tcp { src_port, dst_port, .. } => prop_assert!(!udp && (src_port, dst_port) == (sport, dport)),
            other => prop_assert!(false, "{:?}", other),
        }
        prop_assert_eq!(l4_checksum(packet.src, packet.dst, packet.protocol, segment), 0);
    }

    #[test]
    fn frames_written_here_are_read_by_etherparse(
        s in 0u16..4096, c in 0u16..4096, src in any::<u32>(), dst in any::<u32>(),
        sport in any::<u16>(), dport in any::<u16>(), payload in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut bytes = vec![0; 22 + 28 + payload.len()];
        let tags = VlanStack::double(
            VlanTag { tpid: ethertype::QINQ, tci: s },
            VlanTag { tpid: ethertype::VLAN, tci: c },
        );
        let mac = bng_wire::MacAddr([2; 6]);
        let at = ethernet::write(&mut bytes, mac, mac, &tags, ethertype::IPV4).unwrap();
        let fields = ipv4::NewIpv4 { src, dst, protocol: 17, ttl: 9, tos: 4, id: 3, dont_fragment: false };
        ipv4::write(&mut bytes[at..], &fields, 8 + payload.len()).unwrap();
        bytes[at + 28..].copy_from_slice(&payload);
        l4::write_udp(&mut bytes[at + 20..], sport, dport, payload.len()).unwrap();
        let check = Sum::new().pseudo_ipv4(src, dst, 17, 8 + payload.len() as u16).bytes(&bytes[at + 20..]).finish_udp();
        bytes[at + 26..at + 28].copy_from_slice(&check.to_be_bytes());

        let sliced = SlicedPacket::from_ethernet(&bytes).unwrap();
        let Some(etherparse::NetSlice::Ipv4(ip)) = sliced.net else { panic!("no IPv4") };
        let header = ip.header().to_header();
        prop_assert_eq!(header.calc_header_checksum(), header.header_checksum);
        let Some(TransportSlice::Udp(udp)) = sliced.transport else { panic!("no UDP") };
        prop_assert_eq!((udp.source_port(), udp.destination_port()), (sport, dport));
        prop_assert_eq!(udp.to_header().calc_checksum_ipv4(&header, udp.payload()).unwrap(), udp.checksum());
    }

    #[test]
    fn checksum_equals_the_reference(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..100) {
        prop_assert_eq!(checksum(&bytes), reference_checksum(&bytes));
        // Split at an even offset, the parts sum to the same.
        let cut = (cut * 2).min(bytes.len() & !1);
        prop_assert_eq!(Sum::new().bytes(&bytes[..cut]).bytes(&bytes[cut..]).finish(), checksum(&bytes));
    }

    #[test]
    fn incremental_equals_full(
        mut bytes in prop::collection::vec(any::<u8>(), 20..60), word in any::<u16>(), dword in any::<u32>(),
    ) {
        bytes[0] |= 1; // A real header is never all zero.
        bytes[10..12].fill(0);
        let before = checksum(&bytes);
        let old_word = u16::from_be_bytes([bytes[4], bytes[5]]);
        let old_dword = u32::from_be_bytes(bytes[12..16].try_into().unwrap());
        bytes[4..6].copy_from_slice(&word.to_be_bytes());
        bytes[12..16].copy_from_slice(&dword.to_be_bytes());
        let delta = Delta::new().u16(old_word, word).and(Delta::new().u32(old_dword, dword));
        prop_assert_eq!(delta.apply(before), checksum(&bytes));
        prop_assert_eq!(delta.apply_udp(0), 0);
        if before != 0 {
            let after = checksum(&bytes);
            prop_assert_eq!(delta.apply_udp(before), if after == 0 { 0xffff } else { after });
        }
    }

    #[test]
    fn ttl_decrement_keeps_the_header_valid(src in any::<u32>(), dst in any::<u32>(), ttl in 1u8.., id in any::<u16>()) {
        let mut buf = [0; 20];
        let fields = ipv4::NewIpv4 { src, dst, protocol: 6, ttl, tos: 0, id, dont_fragment: false };
        ipv4::write(&mut buf, &fields, 100).unwrap();
        Ipv4Hdr::mut_from_bytes(&mut buf).unwrap().decrement_ttl();
        prop_assert_eq!(buf[8], ttl - 1);
        prop_assert_eq!(checksum(&buf), 0);
    }
}

#[test]
fn a_computed_udp_zero_is_sent_as_ffff() {
    // Two words that sum to 0xffff give a computed checksum of zero.
    assert_eq!(Sum::new().word(0x1234).word(0xedcb).finish(), 0);
    assert_eq!(Sum::new().word(0x1234).word(0xedcb).finish_udp(), 0xffff);
    // Checksum 0x0001 means a sum of 0xfffe; one more makes the computed value zero.
    assert_eq!(Delta::new().u16(4, 5).apply(1), 0);
    assert_eq!(Delta::new().u16(4, 5).apply_udp(1), 0xffff);
}
