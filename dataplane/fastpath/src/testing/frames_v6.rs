//! IPv6 packets, built from the inside out, and a full check of their checksums.

use std::net::Ipv6Addr;

use bng_wire::checksum::l4_checksum_ipv6;
use bng_wire::icmpv6::icmpv6_type;
use bng_wire::ipv4::protocol;
use bng_wire::ipv6::{NewIpv6, next_header};

/// An IPv6 packet with hop limit 64.
#[must_use]
pub fn ipv6(src: Ipv6Addr, dst: Ipv6Addr, next_header: u8, payload: &[u8]) -> Vec<u8> {
    let fields = NewIpv6 {
        src,
        dst,
        next_header,
        hop_limit: 64,
    };
    let mut packet = vec![0; 40 + payload.len()];
    bng_wire::ipv6::write(&mut packet, &fields, payload.len()).expect("fits");
    packet[40..].copy_from_slice(payload);
    packet
}

fn checked(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, mut segment: Vec<u8>, at: usize) -> Vec<u8> {
    let check = match l4_checksum_ipv6(src, dst, protocol, &segment) {
        0 => 0xffff,
        check => check,
    };
    segment[at..at + 2].copy_from_slice(&check.to_be_bytes());
    ipv6(src, dst, protocol, &segment)
}

/// A UDP packet with a checksum.
#[must_use]
pub fn udp6(src: (Ipv6Addr, u16), dst: (Ipv6Addr, u16), payload: &[u8]) -> Vec<u8> {
    let mut segment = vec![0; 8];
    bng_wire::l4::write_udp(&mut segment, src.1, dst.1, payload.len()).expect("fits");
    segment.extend(payload);
    checked(src.0, dst.0, protocol::UDP, segment, 6)
}

/// A TCP packet with these control bits and options (whole 32-bit words).
#[must_use]
pub fn tcp6(src: (Ipv6Addr, u16), dst: (Ipv6Addr, u16), flags: u8, options: &[u8]) -> Vec<u8> {
    let mut segment = vec![0; 20];
    segment[..2].copy_from_slice(&src.1.to_be_bytes());
    segment[2..4].copy_from_slice(&dst.1.to_be_bytes());
    segment.extend(options);
    assert!(segment.len().is_multiple_of(4));
    segment[12] = (segment.len() as u8 / 4) << 4;
    segment[13] = flags;
    checked(src.0, dst.0, protocol::TCP, segment, 16)
}

/// An ICMPv6 message: type, code, and what follows the checksum.
#[must_use]
pub fn icmpv6(src: Ipv6Addr, dst: Ipv6Addr, icmp_type: u8, code: u8, rest: &[u8]) -> Vec<u8> {
    let mut message = vec![icmp_type, code, 0, 0];
    message.extend(rest);
    checked(src, dst, next_header::ICMPV6, message, 2)
}

/// An ICMPv6 echo request.
#[must_use]
pub fn echo6(src: Ipv6Addr, dst: Ipv6Addr) -> Vec<u8> {
    let rest = [0, 7, 0, 1, b'p', b'i', b'n', b'g'];
    icmpv6(src, dst, icmpv6_type::ECHO_REQUEST, 0, &rest)
}

/// The packet with extension headers put in front of its upper layer: each is the number of its kind and its bytes, the
/// first of which is overwritten.
#[must_use]
pub fn extended(packet: &[u8], extensions: &[(u8, &[u8])]) -> Vec<u8> {
    let mut bytes = packet[..40].to_vec();
    let mut next_at = 6;
    let upper = packet[6];
    for (kind, header) in extensions {
        bytes[next_at] = *kind;
        next_at = bytes.len();
        bytes.extend(*header);
    }
    bytes[next_at] = upper;
    bytes.extend(&packet[40..]);
    let payload_len = u16::try_from(bytes.len() - 40).expect("fits");
    bytes[4..6].copy_from_slice(&payload_len.to_be_bytes());
    bytes
}

/// Computes the checksum of an IPv6 packet's upper layer in full and says whose is wrong. Fragments and packets whose upper
/// layer is not found are right.
#[must_use]
pub fn wrong_checksum6(packet: &[u8]) -> Option<&'static str> {
    let Ok(ip) = bng_wire::ipv6::parse(packet) else {
        return Some("IPv6 header");
    };
    let packet = &packet[..ip.total_len];
    let Ok(upper) = bng_wire::ipv6::upper(ip.next_header, packet) else {
        return None;
    };
    let what = match upper.protocol {
        _ if upper.fragment => return None,
        protocol::UDP => "UDP",
        protocol::TCP => "TCP",
        next_header::ICMPV6 => "ICMPv6",
        _ => return None,
    };
    let sum = l4_checksum_ipv6(ip.src, ip.dst, upper.protocol, &packet[upper.offset..]);
    (sum != 0).then_some(what)
}

/// Panics when [`wrong_checksum6`] finds one.
pub fn assert_checksums6(packet: &[u8]) {
    assert_eq!(wrong_checksum6(packet), None);
}
