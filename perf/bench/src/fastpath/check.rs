//! Every packet once: what came out must be what RFC 2516, RFC 791, RFC 768, RFC 9293 and NAT44 ask for.
//!
//! Written for this alone, octet by octet, and without the parsers and checksum functions the fast path uses: a fault
//! that both share would not be seen.

use std::net::Ipv4Addr;

use thiserror::Error;

use super::flows::{
    ACKNOWLEDGES, CORE_MAC, Content, Flow, NEXT_HOP_MAC, TTL, WINDOW, access_mac, payload_byte,
};

/// What is wrong with a frame.
#[derive(Debug, PartialEq, Eq, Error)]
pub(super) enum Wrong {
    /// It ends too early.
    #[error("truncated")]
    Truncated,
    /// A field has another value than it must have.
    #[error("{field}: {found:#x} in place of {wanted:#x}")]
    Field {
        /// Which.
        field: &'static str,
        /// What it must be.
        wanted: u64,
        /// What it is.
        found: u64,
    },
    /// The UDP checksum was taken away.
    #[error("no UDP checksum")]
    NoChecksum,
    /// The public port is outside of the session's block.
    #[error("source port {0} is not in the session's block")]
    Block(u16),
    /// Payload.
    #[error("payload changed at octet {0}")]
    Payload(usize),
}

/// The rest of a frame, read from the front.
struct Octets<'a>(&'a [u8]);

impl<'a> Octets<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Wrong> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Wrong::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    /// A number of `count` octets, most significant first.
    fn number(&mut self, count: usize) -> Result<u64, Wrong> {
        let octets = self.take(count)?;
        Ok(octets.iter().fold(0, |n, octet| n << 8 | u64::from(*octet)))
    }

    fn expect(&mut self, count: usize, field: &'static str, wanted: u64) -> Result<(), Wrong> {
        let found = self.number(count)?;
        equal(field, found, wanted)
    }
}

const fn equal(field: &'static str, found: u64, wanted: u64) -> Result<(), Wrong> {
    if found == wanted {
        Ok(())
    } else {
        Err(Wrong::Field {
            field,
            wanted,
            found,
        })
    }
}

/// The ones' complement sum of RFC 1071; all ones for octets with a right checksum in them.
fn ones_sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u64;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low));
        }
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// Address and port.
type Endpoint = (Ipv4Addr, u16);

/// What a packet must be.
#[derive(Clone, Copy)]
pub(super) struct Expected<'a> {
    /// Of this flow.
    pub(super) flow: &'a Flow,
    pub(super) content: Content,
    pub(super) ip_bytes: usize,
}

/// Source and destination of a packet whose checksums, length, TTL and payload are right.
fn packet(packet: &[u8], expected: Expected<'_>) -> Result<[Endpoint; 2], Wrong> {
    let Expected {
        flow,
        content,
        ip_bytes,
    } = expected;
    let (protocol, at) = match content {
        Content::Datagram => (17, 0),
        Content::Segment(at) => (6, at),
    };
    let mut rest = Octets(packet);
    let header = rest.take(20)?;
    let segment = rest.take(ip_bytes - 20)?;
    equal("IPv4 header sum", ones_sum(&[header]).into(), 0xffff)?;
    let mut ip = Octets(header);
    ip.expect(1, "version and header length", 0x45)?;
    ip.expect(1, "type of service", 0)?;
    ip.expect(2, "total length", ip_bytes as u64)?;
    let id = (u64::from(flow.port) + u64::from(at)) & 0xffff;
    ip.expect(2, "identification", id)?;
    ip.expect(2, "flags and fragment offset", 0x4000)?;
    ip.expect(1, "TTL", u64::from(TTL) - 1)?;
    ip.expect(1, "protocol", protocol)?;
    ip.take(2)?;
    let addresses = ip.0;
    let src = Ipv4Addr::from_bits(ip.number(4)? as u32);
    let dst = Ipv4Addr::from_bits(ip.number(4)? as u32);

    let length = segment.len();
    let pseudo = [0, protocol as u8, (length >> 8) as u8, length as u8];
    let sum = ones_sum(&[addresses, &pseudo, segment]);
    equal("UDP or TCP sum", sum.into(), 0xffff)?;
    let mut rest = Octets(segment);
    let src_port = rest.number(2)? as u16;
    let dst_port = rest.number(2)? as u16;
    let first = match content {
        Content::Datagram => {
            datagram(&mut rest, length)?;
            0
        }
        Content::Segment(at) => {
            let payload = length - 20;
            let before = usize::from(at) * payload;
            let sequence = (u64::from(flow.first_sequence()) + before as u64) & 0xffff_ffff;
            rest.expect(4, "sequence number", sequence)?;
            rest.expect(4, "acknowledgement number", ACKNOWLEDGES.into())?;
            rest.expect(2, "data offset and flags", 0x5010)?;
            rest.expect(2, "window", WINDOW.into())?;
            rest.take(2)?;
            rest.expect(2, "urgent pointer", 0)?;
            before
        }
    };
    for (octet, at) in rest.0.iter().zip(first..) {
        if *octet != payload_byte(flow, at) {
            return Err(Wrong::Payload(at));
        }
    }
    Ok([(src, src_port), (dst, dst_port)])
}

/// What is left of a UDP header behind the ports.
fn datagram(rest: &mut Octets<'_>, length: usize) -> Result<(), Wrong> {
    rest.expect(2, "UDP length", length as u64)?;
    // 0 says that there is none.
    if rest.number(2)? == 0 {
        return Err(Wrong::NoChecksum);
    }
    Ok(())
}

/// What is not the packet: nothing, or the padding of a frame of 60 octets.
fn padding(frame: &[u8], used: usize) -> Result<(), Wrong> {
    equal(
        "frame length",
        frame.len() as u64,
        used.max(frame.len().min(60)) as u64,
    )
}

fn remote(flow: &Flow, found: Endpoint) -> Result<(), Wrong> {
    equal(
        "remote address",
        found.0.to_bits().into(),
        flow.remote.to_bits().into(),
    )?;
    equal("remote port", found.1.into(), flow.remote_port.into())
}

fn inside(flow: &Flow, found: Endpoint) -> Result<(), Wrong> {
    let address = flow.subscriber.address;
    equal(
        "subscriber's address",
        found.0.to_bits().into(),
        address.to_bits().into(),
    )?;
    equal("subscriber's port", found.1.into(), flow.port.into())
}

/// Ethernet header of a frame that leaves by the core port, and the two ends of its packet.
fn on_core(frame: &[u8], expected: Expected<'_>) -> Result<[Endpoint; 2], Wrong> {
    let mut rest = Octets(frame);
    rest.expect(6, "destination MAC", NEXT_HOP_MAC.to_u64())?;
    rest.expect(6, "source MAC", CORE_MAC.to_u64())?;
    rest.expect(2, "EtherType", 0x0800)?;
    padding(frame, 14 + expected.ip_bytes)?;
    packet(rest.0, expected)
}

/// As [`on_core`], for an access port; `ethertype` stands behind the tags. Returns what follows it.
fn on_access<'a>(frame: &'a [u8], flow: &Flow, ethertype: u64) -> Result<&'a [u8], Wrong> {
    let subscriber = &flow.subscriber;
    let mut rest = Octets(frame);
    rest.expect(6, "destination MAC", subscriber.mac.to_u64())?;
    let own = access_mac(subscriber.access_port);
    rest.expect(6, "source MAC", own.to_u64())?;
    let inner = u64::from(subscriber.index % 4_000 + 1);
    match subscriber.tags {
        0 => {}
        1 => {
            rest.expect(2, "TPID", 0x8100)?;
            rest.expect(2, "VLAN", inner)?;
        }
        _ => {
            rest.expect(2, "outer TPID", 0x88a8)?;
            rest.expect(2, "S-VLAN", u64::from(subscriber.index / 4_000 + 100))?;
            rest.expect(2, "inner TPID", 0x8100)?;
            rest.expect(2, "C-VLAN", inner)?;
        }
    }
    rest.expect(2, "EtherType", ethertype)?;
    Ok(rest.0)
}

/// Checks an upstream frame, sent on the core port; returns its public address and port.
pub(super) fn upstream(frame: &[u8], expected: Expected<'_>) -> Result<Endpoint, Wrong> {
    let [outside, other] = on_core(frame, expected)?;
    let flow = expected.flow;
    remote(flow, other)?;
    let block = flow.subscriber.block;
    equal(
        "public address",
        outside.0.to_bits().into(),
        block.address.to_bits().into(),
    )?;
    let offset = outside.1.checked_sub(block.first_port);
    if offset.is_some_and(|offset| offset < block.size) {
        Ok(outside)
    } else {
        Err(Wrong::Block(outside.1))
    }
}

/// Checks a downstream frame, sent on an access port.
pub(super) fn downstream(frame: &[u8], expected: Expected<'_>) -> Result<(), Wrong> {
    let Expected { flow, ip_bytes, .. } = expected;
    let mut rest = Octets(on_access(frame, flow, 0x8864)?);
    rest.expect(1, "PPPoE version and type", 0x11)?;
    rest.expect(1, "PPPoE code", 0)?;
    rest.expect(2, "PPPoE session", flow.subscriber.session_id.into())?;
    rest.expect(2, "PPPoE length", ip_bytes as u64 + 2)?;
    rest.expect(2, "PPP protocol", 0x0021)?;
    padding(frame, frame.len() - rest.0.len() + ip_bytes)?;
    let [other, subscriber] = packet(rest.0, expected)?;
    remote(flow, other)?;
    inside(flow, subscriber)
}

/// Checks an upstream frame of the plain-IP path.
pub(super) fn plain_upstream(frame: &[u8], expected: Expected<'_>) -> Result<(), Wrong> {
    let [subscriber, other] = on_core(frame, expected)?;
    let flow = expected.flow;
    remote(flow, other)?;
    inside(flow, subscriber)
}

/// Checks a downstream frame of the plain-IP path.
pub(super) fn plain_downstream(frame: &[u8], expected: Expected<'_>) -> Result<(), Wrong> {
    let Expected { flow, ip_bytes, .. } = expected;
    let rest = on_access(frame, flow, 0x0800)?;
    padding(frame, frame.len() - rest.len() + ip_bytes)?;
    let [other, subscriber] = packet(rest, expected)?;
    remote(flow, other)?;
    inside(flow, subscriber)
}
