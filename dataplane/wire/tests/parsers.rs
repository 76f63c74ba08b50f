//! Table tests of the parsers: one frame, one value or one named error.
#![allow(missing_docs, clippy::unwrap_used)]

use bng_wire::ethernet::{self, ethertype};
use bng_wire::l4::{self, L4, L4Error, tcp_flag};
use bng_wire::{EthError, Ipv4Error, MacAddr, PppoeError, VlanStack, VlanTag, ipv4, pppoe};

const DST: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const SRC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

fn tag(tpid: u16, tci: u16) -> VlanTag {
    VlanTag { tpid, tci }
}

#[test]
fn ethernet_header_is_written_and_read_back_with_every_tag_count() {
    let stacks = [
        VlanStack::UNTAGGED,
        VlanStack::single(tag(ethertype::VLAN, 0x6123)),
        VlanStack::double(tag(ethertype::QINQ, 100), tag(ethertype::VLAN, 4094)),
        VlanStack::double(tag(ethertype::VLAN, 0), tag(ethertype::QINQ, 7)),
    ];
    for stack in stacks {
        let mut buf = [0xaa; 32];
        let len = ethernet::write(&mut buf, DST, SRC, &stack, ethertype::PPPOE_SESSION).unwrap();
        assert_eq!(len, 14 + 4 * stack.count());
        let frame = ethernet::parse(&buf).unwrap();
        assert_eq!((frame.dst, frame.src, frame.tags), (DST, SRC, stack));
        assert_eq!(
            (frame.ethertype, frame.payload),
            (ethertype::PPPOE_SESSION, len)
        );
        assert_eq!(buf[len..], [0xaa; 32][len..]);
        for short in 0..len {
            assert_eq!(
                ethernet::parse(&buf[..short]),
                Err(EthError::Truncated { have: short })
            );
            let mut small = vec![0; short];
            assert_eq!(ethernet::write(&mut small, DST, SRC, &stack, 1), None);
            assert!(
                small.iter().all(|byte| *byte == 0),
                "nothing is written when it does not fit"
            );
        }
    }
}

#[test]
fn priority_tags_name_no_vlan() {
    let (outer, inner) = (tag(ethertype::QINQ, 0x6064), tag(ethertype::VLAN, 7));
    let priority = tag(ethertype::VLAN, 0xe000);
    for (tags, expected) in [
        (VlanStack::UNTAGGED, VlanStack::UNTAGGED),
        (VlanStack::single(priority), VlanStack::UNTAGGED),
        (VlanStack::double(priority, priority), VlanStack::UNTAGGED),
        (VlanStack::single(inner), VlanStack::single(inner)),
        (VlanStack::double(priority, inner), VlanStack::single(inner)),
        (VlanStack::double(outer, priority), VlanStack::single(outer)),
        (
            VlanStack::double(outer, inner),
            VlanStack::double(outer, inner),
        ),
    ] {
        assert_eq!(tags.without_priority_tags(), expected, "{tags:?}");
    }
}

#[test]
fn vlan_identities_follow_the_tags() {
    assert_eq!(
        (VlanStack::UNTAGGED.s_vlan(), VlanStack::UNTAGGED.c_vlan()),
        (0, 0)
    );
    let one = VlanStack::single(tag(ethertype::VLAN, 0xe00a));
    assert_eq!(
        (one.s_vlan(), one.c_vlan(), one.outer().unwrap().pcp()),
        (10, 0, 7)
    );
    let two = VlanStack::double(tag(ethertype::QINQ, 100), tag(ethertype::VLAN, 200));
    assert_eq!((two.s_vlan(), two.c_vlan()), (100, 200));
}

#[test]
fn a_third_tag_is_refused() {
    let mut frame = vec![0; 12];
    for _ in 0..3 {
        frame.extend([0x81, 0x00, 0, 5]);
    }
    frame.extend([0x88, 0x64, 0, 0]);
    assert_eq!(ethernet::parse(&frame), Err(EthError::TooManyTags));
}

#[test]
fn mac_addresses_convert_and_print() {
    let mac = MacAddr([0x02, 0x0a, 0xff, 0, 1, 0x10]);
    assert_eq!(MacAddr::from_u64(mac.to_u64()), mac);
    assert_eq!(mac.to_string(), "02:0a:ff:00:01:10");
    assert!(mac.is_unicast() && !MacAddr::ZERO.is_unicast() && MacAddr::BROADCAST.is_group());
}

#[test]
fn every_pppoe_session_defect_has_its_own_error() {
    let cases: &[(&str, &[u8], PppoeError)] = &[
        ("empty", &[], PppoeError::Truncated { have: 0 }),
        (
            "header cut",
            &[0x11, 0, 0, 1, 0],
            PppoeError::Truncated { have: 5 },
        ),
        (
            "version 2",
            &[0x21, 0, 0, 1, 0, 2, 0, 0x21],
            PppoeError::VersionType { version_type: 0x21 },
        ),
        (
            "type 2",
            &[0x12, 0, 0, 1, 0, 2, 0, 0x21],
            PppoeError::VersionType { version_type: 0x12 },
        ),
        (
            "code 9",
            &[0x11, 9, 0, 1, 0, 2, 0, 0x21],
            PppoeError::SessionCode { code: 9 },
        ),
        (
            "length 0",
            &[0x11, 0, 0, 1, 0, 0, 0, 0x21],
            PppoeError::LengthZero,
        ),
        (
            "length 1",
            &[0x11, 0, 0, 1, 0, 1, 0, 0x21],
            PppoeError::LengthOne,
        ),
        (
            "too long",
            &[0x11, 0, 0, 1, 0, 3, 0, 0x21],
            PppoeError::LengthBeyondFrame { length: 3, have: 2 },
        ),
        (
            "pfc",
            &[0x11, 0, 0, 1, 0, 2, 0x21, 0x45],
            PppoeError::CompressedProtocol { first: 0x21 },
        ),
        (
            "acfc",
            &[0x11, 0, 0, 1, 0, 4, 0xff, 3, 0, 0x21],
            PppoeError::CompressedProtocol { first: 0xff },
        ),
    ];
    for (name, bytes, error) in cases {
        assert_eq!(pppoe::parse_session(bytes), Err(*error), "{name}");
    }
}

#[test]
fn pppoe_padding_is_not_payload() {
    let mut buf = [0xee; 40];
    assert_eq!(
        pppoe::write_session(&mut buf, 0x1234, pppoe::protocol::IPV4, 3),
        Some(8)
    );
    let frame = pppoe::parse_session(&buf).unwrap();
    assert_eq!(
        (frame.session_id, frame.protocol, frame.payload),
        (0x1234, 0x0021, &[0xee; 3][..])
    );
    assert_eq!(pppoe::write_session(&mut buf, 1, 0x21, 65_534), None);
    assert_eq!(pppoe::write_session(&mut buf[..7], 1, 0x21, 0), None);

    let mut buf = [0xdd; 20];
    assert_eq!(pppoe::write(&mut buf, pppoe::code::PADI, 0, 4), Some(6));
    let frame = pppoe::parse_discovery(&buf).unwrap();
    assert_eq!(
        (frame.code, frame.session_id, frame.tags),
        (pppoe::code::PADI, 0, &[0xdd; 4][..])
    );
    buf[5] = 15;
    assert_eq!(
        pppoe::parse_discovery(&buf),
        Err(PppoeError::LengthBeyondFrame {
            length: 15,
            have: 14
        })
    );
}

fn ipv4_packet() -> Vec<u8> {
    let mut buf = vec![0; 28];
    let fields = ipv4::NewIpv4 {
        src: 0x0a00_0001,
        dst: 0xc000_0201,
        protocol: ipv4::protocol::UDP,
        ttl: 64,
        tos: 0,
        id: 7,
        dont_fragment: true,
    };
    assert_eq!(ipv4::write(&mut buf, &fields, 8), Some(20));
    assert_eq!(l4::write_udp(&mut buf[20..], 1000, 53, 0), Some(8));
    buf
}

fn with_right_checksum(mut packet: Vec<u8>) -> Vec<u8> {
    let len = usize::from(packet[0] & 15) * 4;
    packet[10..12].fill(0);
    let check = bng_wire::checksum::checksum(&packet[..len.min(packet.len())]);
    packet[10..12].copy_from_slice(&check.to_be_bytes());
    packet
}

#[test]
fn every_ipv4_defect_has_its_own_error() {
    let good = ipv4_packet();
    let parsed = ipv4::parse(&good).unwrap();
    assert_eq!(
        (
            parsed.header_len,
            parsed.total_len,
            parsed.ttl,
            parsed.dont_fragment()
        ),
        (20, 28, 64, true)
    );
    assert!(!parsed.is_fragment());

    for short in 0..20 {
        assert_eq!(
            ipv4::parse(&good[..short]),
            Err(Ipv4Error::Truncated { have: short })
        );
    }
    for short in 20..28 {
        assert_eq!(
            ipv4::parse(&good[..short]),
            Err(Ipv4Error::TotalLengthBeyond {
                total_len: 28,
                have: short
            })
        );
        assert!(ipv4::parse_embedded(&good[..short]).is_ok());
    }
    let edit = |at: usize, value: u8| {
        let mut packet = good.clone();
        packet[at] = value;
        with_right_checksum(packet)
    };
    assert_eq!(
        ipv4::parse(&edit(0, 0x65)),
        Err(Ipv4Error::Version { version: 6 })
    );
    assert_eq!(
        ipv4::parse(&edit(0, 0x44)),
        Err(Ipv4Error::HeaderLength { header_len: 16 })
    );
    assert_eq!(
        ipv4::parse(&edit(0, 0x4f)),
        Err(Ipv4Error::Truncated { have: 28 })
    );
    assert_eq!(
        ipv4::parse(&edit(3, 19)),
        Err(Ipv4Error::TotalLengthShort {
            total_len: 19,
            header_len: 20
        })
    );
    let mut bad = good.clone();
    bad[10] ^= 1;
    assert_eq!(ipv4::parse(&bad), Err(Ipv4Error::Checksum));
    assert_eq!(
        ipv4::parse(&edit(6, 0x20)).map(|p| (p.is_fragment(), p.is_later_fragment())),
        Ok((true, false))
    );
    assert_eq!(
        ipv4::parse(&edit(7, 1)).map(|p| (p.is_fragment(), p.is_later_fragment())),
        Ok((true, true))
    );
}

#[test]
fn every_transport_defect_has_its_own_error() {
    use ipv4::protocol::{ICMP, TCP, UDP};
    let udp = [3, 0xe8, 0, 53, 0, 9, 0, 0, 1];
    assert_eq!(
        l4::parse(UDP, &udp, false),
        Ok(L4::Udp {
            src_port: 1000,
            dst_port: 53
        })
    );
    assert_eq!(
        l4::parse(UDP, &udp[..7], true),
        Err(L4Error::Truncated {
            protocol: UDP,
            have: 7
        })
    );
    assert_eq!(
        l4::parse(UDP, &udp[..8], false),
        Err(L4Error::UdpLength { length: 9, have: 8 })
    );
    assert!(l4::parse(UDP, &udp[..8], true).is_ok());
    let mut short = udp;
    short[5] = 7;
    assert_eq!(
        l4::parse(UDP, &short, true),
        Err(L4Error::UdpLength { length: 7, have: 9 })
    );

    let mut tcp = [0; 24];
    tcp[1] = 80;
    tcp[3] = 90;
    tcp[12] = 0x60;
    tcp[13] = tcp_flag::SYN;
    let flags = tcp_flag::SYN;
    assert_eq!(
        l4::parse(TCP, &tcp, false),
        Ok(L4::Tcp {
            src_port: 80,
            dst_port: 90,
            flags,
            header_len: 24
        })
    );
    assert_eq!(
        l4::parse(TCP, &tcp[..20], false),
        Err(L4Error::TcpOffset {
            header_len: 24,
            have: 20
        })
    );
    assert_eq!(
        l4::parse(TCP, &tcp[..19], true),
        Err(L4Error::Truncated {
            protocol: TCP,
            have: 19
        })
    );
    tcp[12] = 0x40;
    assert_eq!(
        l4::parse(TCP, &tcp, true),
        Err(L4Error::TcpOffset {
            header_len: 16,
            have: 24
        })
    );

    assert_eq!(
        l4::parse(ICMP, &[8, 0, 0, 0, 1, 2, 0, 0], false),
        Ok(L4::IcmpEcho {
            request: true,
            id: 0x0102
        })
    );
    assert_eq!(
        l4::parse(ICMP, &[0, 0, 0, 0, 1, 2, 0, 0], false),
        Ok(L4::IcmpEcho {
            request: false,
            id: 0x0102
        })
    );
    assert_eq!(
        l4::parse(ICMP, &[3, 0, 0, 0, 0, 0, 0, 0], false),
        Ok(L4::IcmpError)
    );
    assert_eq!(
        l4::parse(ICMP, &[5, 0, 0, 0, 0, 0, 0, 0], false),
        Ok(L4::IcmpOther { icmp_type: 5 })
    );
    assert_eq!(
        l4::parse(ICMP, &[8; 7], false),
        Err(L4Error::Truncated {
            protocol: ICMP,
            have: 7
        })
    );
    assert_eq!(l4::parse(47, &[], false), Ok(L4::Other));
}
