//! Every packet once: what came out of the pipeline must be what RFC 2516, RFC 791 and NAT44 ask for.

use std::net::Ipv4Addr;

use bng_wire::checksum::l4_checksum;
use bng_wire::ethernet::{self, ethertype};
use bng_wire::pppoe::{self, protocol};
use bng_wire::{UdpHdr, ipv4};
use thiserror::Error;
use zerocopy::FromBytes;

use super::flows::{CORE_MAC, Flow, HEADERS, NEXT_HOP_MAC, TTL, access_mac, payload_byte};

/// What is wrong with a frame.
#[derive(Debug, PartialEq, Eq, Error)]
pub(super) enum Wrong {
    /// Ethernet header.
    #[error("Ethernet header: {0}")]
    Ethernet(&'static str),
    /// PPPoE header.
    #[error("PPPoE header: {0}")]
    Pppoe(&'static str),
    /// IPv4 header.
    #[error("IPv4 header: {0}")]
    Ip(&'static str),
    /// UDP header.
    #[error("UDP header: {0}")]
    Udp(&'static str),
    /// Payload.
    #[error("payload changed at byte {0}")]
    Payload(usize),
}

const fn ensure(holds: bool, wrong: Wrong) -> Result<(), Wrong> {
    if holds { Ok(()) } else { Err(wrong) }
}

/// Address and port.
type Endpoint = (Ipv4Addr, u16);

/// Source and destination of a packet whose checksums, length, TTL and payload are right.
fn datagram(bytes: &[u8], flow: &Flow, ip_bytes: usize) -> Result<[Endpoint; 2], Wrong> {
    let ip = ipv4::parse(bytes).map_err(|_| Wrong::Ip("malformed, or wrong checksum"))?;
    ensure(ip.total_len == ip_bytes, Wrong::Ip("total length"))?;
    ensure(ip.ttl == TTL - 1, Wrong::Ip("TTL not decremented by one"))?;
    ensure(ip.protocol == ipv4::protocol::UDP, Wrong::Ip("protocol"))?;
    let segment = bytes
        .get(ip.header_len..ip.total_len)
        .ok_or(Wrong::Ip("length"))?;
    let (udp, payload) = UdpHdr::ref_from_prefix(segment).map_err(|_| Wrong::Udp("truncated"))?;
    ensure(
        usize::from(udp.length.get()) == segment.len(),
        Wrong::Udp("length"),
    )?;
    ensure(udp.checksum.get() != 0, Wrong::Udp("checksum removed"))?;
    ensure(
        l4_checksum(ip.src, ip.dst, ip.protocol, segment) == 0,
        Wrong::Udp("checksum"),
    )?;
    ensure(payload.len() == ip_bytes - HEADERS, Wrong::Payload(0))?;
    for (at, byte) in payload.iter().enumerate() {
        ensure(*byte == payload_byte(flow, at), Wrong::Payload(at))?;
    }
    Ok([
        (ip.src_addr(), udp.src_port.get()),
        (ip.dst_addr(), udp.dst_port.get()),
    ])
}

/// Checks a frame that leaves by the core port; returns its public address and port.
pub(super) fn upstream(
    frame: &[u8],
    flow: &Flow,
    ip_bytes: usize,
) -> Result<(Ipv4Addr, u16), Wrong> {
    let eth = ethernet::parse(frame).map_err(|_| Wrong::Ethernet("malformed"))?;
    ensure(
        eth.dst == NEXT_HOP_MAC && eth.src == CORE_MAC,
        Wrong::Ethernet("addresses"),
    )?;
    ensure(
        eth.ethertype == ethertype::IPV4 && eth.tags.count() == 0,
        Wrong::Ethernet("type"),
    )?;
    let rest = frame
        .get(eth.payload..)
        .ok_or(Wrong::Ethernet("malformed"))?;
    let [outside, remote] = datagram(rest, flow, ip_bytes)?;
    let block = flow.subscriber.block;
    ensure(
        remote == (flow.remote, flow.remote_port),
        Wrong::Ip("destination changed"),
    )?;
    ensure(
        outside.0 == block.address,
        Wrong::Ip("source is not the session's public address"),
    )?;
    let offset = outside.1.checked_sub(block.first_port);
    ensure(
        offset.is_some_and(|offset| offset < block.size),
        Wrong::Udp("source port is not in the session's block"),
    )?;
    Ok(outside)
}

/// Checks a frame that leaves by an access port.
pub(super) fn downstream(frame: &[u8], flow: &Flow, ip_bytes: usize) -> Result<(), Wrong> {
    let subscriber = &flow.subscriber;
    let eth = ethernet::parse(frame).map_err(|_| Wrong::Ethernet("malformed"))?;
    ensure(
        eth.dst == subscriber.mac && eth.src == access_mac(subscriber.access_port),
        Wrong::Ethernet("addresses"),
    )?;
    ensure(
        eth.ethertype == ethertype::PPPOE_SESSION && eth.tags.count() == 0,
        Wrong::Ethernet("type"),
    )?;
    let rest = frame
        .get(eth.payload..)
        .ok_or(Wrong::Ethernet("malformed"))?;
    let session = pppoe::parse_session(rest).map_err(|_| Wrong::Pppoe("malformed"))?;
    ensure(
        session.session_id == subscriber.session_id,
        Wrong::Pppoe("session id"),
    )?;
    ensure(
        session.protocol == protocol::IPV4 && session.payload.len() == ip_bytes,
        Wrong::Pppoe("protocol or length"),
    )?;
    let [remote, inside] = datagram(session.payload, flow, ip_bytes)?;
    ensure(
        remote == (flow.remote, flow.remote_port),
        Wrong::Ip("source changed"),
    )?;
    ensure(
        inside == (subscriber.address, flow.port),
        Wrong::Ip("not the subscriber's address and port"),
    )
}
