//! Frames, built from the inside out, and a full check of all their checksums.

use std::net::Ipv4Addr;

use bng_wire::checksum::{checksum, l4_checksum};
use bng_wire::ipv4::{NewIpv4, protocol};
use bng_wire::l4::icmp_type;
use bng_wire::{MacAddr, VlanStack};

/// An IPv4 packet with TTL 64.
#[must_use]
pub fn ipv4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let fields = NewIpv4 {
        src: src.to_bits(),
        dst: dst.to_bits(),
        protocol,
        ttl: 64,
        tos: 0,
        id: 0x1234,
        dont_fragment: false,
    };
    let mut packet = vec![0; 20 + payload.len()];
    bng_wire::ipv4::write(&mut packet, &fields, payload.len()).expect("fits");
    packet[20..].copy_from_slice(payload);
    packet
}

fn with_l4_checksum(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, segment: &mut [u8], at: usize) {
    let check = l4_checksum(src.to_bits(), dst.to_bits(), protocol, segment);
    let check = if check == 0 { 0xffff } else { check };
    segment[at..at + 2].copy_from_slice(&check.to_be_bytes());
}

/// A UDP packet with a checksum.
#[must_use]
pub fn udp(src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16), payload: &[u8]) -> Vec<u8> {
    let mut segment = vec![0; 8 + payload.len()];
    bng_wire::l4::write_udp(&mut segment, src.1, dst.1, payload.len()).expect("fits");
    segment[8..].copy_from_slice(payload);
    with_l4_checksum(src.0, dst.0, protocol::UDP, &mut segment, 6);
    ipv4(src.0, dst.0, protocol::UDP, &segment)
}

/// A TCP packet with these control bits.
#[must_use]
pub fn tcp(src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16), flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut segment = vec![0; 20 + payload.len()];
    segment[..2].copy_from_slice(&src.1.to_be_bytes());
    segment[2..4].copy_from_slice(&dst.1.to_be_bytes());
    segment[12] = 0x50;
    segment[13] = flags;
    segment[20..].copy_from_slice(payload);
    with_l4_checksum(src.0, dst.0, protocol::TCP, &mut segment, 16);
    ipv4(src.0, dst.0, protocol::TCP, &segment)
}

/// An ICMP echo request or reply.
#[must_use]
pub fn echo(src: Ipv4Addr, dst: Ipv4Addr, request: bool, id: u16, payload: &[u8]) -> Vec<u8> {
    let kind = if request {
        icmp_type::ECHO_REQUEST
    } else {
        icmp_type::ECHO_REPLY
    };
    let mut message = vec![kind, 0, 0, 0];
    message.extend(id.to_be_bytes());
    message.extend([0, 7]);
    message.extend(payload);
    let check = checksum(&message);
    message[2..4].copy_from_slice(&check.to_be_bytes());
    ipv4(src, dst, protocol::ICMP, &message)
}

/// An ICMP error that quotes `quoted`.
#[must_use]
pub fn icmp_error(src: Ipv4Addr, dst: Ipv4Addr, icmp_type: u8, quoted: &[u8]) -> Vec<u8> {
    let mut message = vec![icmp_type, 1, 0, 0, 0, 0, 0, 0];
    message.extend(quoted);
    let check = checksum(&message);
    message[2..4].copy_from_slice(&check.to_be_bytes());
    ipv4(src, dst, protocol::ICMP, &message)
}

/// An untagged Ethernet frame.
#[must_use]
pub fn ethernet(dst: MacAddr, src: MacAddr, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    tagged(dst, src, &VlanStack::UNTAGGED, ethertype, payload)
}

fn tagged(dst: MacAddr, src: MacAddr, tags: &VlanStack, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 22];
    let len = bng_wire::ethernet::write(&mut frame, dst, src, tags, ethertype).expect("fits");
    frame.truncate(len);
    frame.extend(payload);
    frame
}

/// A PPPoE session frame.
#[must_use]
pub fn pppoe_session(
    dst: MacAddr,
    src: MacAddr,
    tags: &VlanStack,
    session_id: u16,
    protocol: u16,
    payload: &[u8],
) -> Vec<u8> {
    let mut pppoe = vec![0; 8];
    bng_wire::pppoe::write_session(&mut pppoe, session_id, protocol, payload.len()).expect("fits");
    pppoe.extend(payload);
    tagged(
        dst,
        src,
        tags,
        bng_wire::ethernet::ethertype::PPPOE_SESSION,
        &pppoe,
    )
}

/// A PPPoE discovery frame with session id 0.
#[must_use]
pub fn pppoe_discovery(
    dst: MacAddr,
    src: MacAddr,
    tags: &VlanStack,
    code: u8,
    body: &[u8],
) -> Vec<u8> {
    let mut pppoe = vec![0; 6];
    let length = u16::try_from(body.len()).expect("fits");
    bng_wire::pppoe::write(&mut pppoe, code, 0, length).expect("fits");
    pppoe.extend(body);
    tagged(
        dst,
        src,
        tags,
        bng_wire::ethernet::ethertype::PPPOE_DISCOVERY,
        &pppoe,
    )
}

/// Computes every checksum of an IPv4 packet in full (header, UDP, TCP, ICMP, and the same of a packet quoted in an
/// ICMP error) and says which one is wrong. Fragments are checked as far as their header.
#[must_use]
pub fn wrong_checksum(packet: &[u8]) -> Option<&'static str> {
    let Ok(ip) = bng_wire::ipv4::parse(packet) else {
        return Some("IPv4 header");
    };
    let segment = &packet[ip.header_len..ip.total_len];
    let wrong = |sum: u16, what| (sum != 0).then_some(what);
    let pseudo = || l4_checksum(ip.src, ip.dst, ip.protocol, segment);
    match ip.protocol {
        _ if ip.is_fragment() => None,
        protocol::UDP if segment.get(6..8) != Some(&[0, 0]) => wrong(pseudo(), "UDP"),
        protocol::TCP => wrong(pseudo(), "TCP"),
        protocol::ICMP => wrong(checksum(segment), "ICMP").or_else(|| wrong_quote(segment)),
        _ => None,
    }
}

fn wrong_quote(message: &[u8]) -> Option<&'static str> {
    let quoted = message.get(8..)?;
    if !matches!(
        message.first()?,
        &icmp_type::UNREACHABLE | &icmp_type::TIME_EXCEEDED
    ) {
        return None;
    }
    match bng_wire::ipv4::parse_embedded(quoted) {
        Err(_) => Some("quoted IPv4 header"),
        Ok(inner) if inner.total_len <= quoted.len() => wrong_checksum(quoted),
        Ok(_) => None,
    }
}

/// Panics when [`wrong_checksum`] finds one.
pub fn assert_checksums(packet: &[u8]) {
    assert_eq!(wrong_checksum(packet), None);
}
