//! ICMPv6 as far as a session needs it: solicitations in, advertisements out (RFC 4861, RFC 8106); pings (RFC 4443).

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use bng_wire::icmpv6::checksum;
use bng_wire::ipv6::next_header::ICMPV6;

use super::ipv6::Packet;
use crate::DropReason;

/// Hop limit that shows that no router has passed a packet on (RFC 4861 section 3.1).
const HOP_LIMIT: u8 = 255;
/// Source Link-Layer Address option (RFC 4861 section 4.6.1).
const SOURCE_LINK_LAYER_ADDRESS: u8 = 1;

/// ICMPv6 types.
mod kind {
    pub(super) const ECHO_REQUEST: u8 = 128;
    pub(super) const ECHO_REPLY: u8 = 129;
    pub(super) const ROUTER_SOLICITATION: u8 = 133;
    pub(super) const ROUTER_ADVERTISEMENT: u8 = 134;
    pub(super) const NEIGHBOUR_SOLICITATION: u8 = 135;
    pub(super) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
}

/// Link-local all-nodes address.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The link-local address with this interface identifier (RFC 5072 section 5).
#[must_use]
pub const fn link_local(interface_id: u64) -> Ipv6Addr {
    Ipv6Addr::from_bits(0xfe80 << 112 | interface_id as u128)
}

/// A received IPv6 packet, as far as it concerns a router on a link with one subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Router solicitation.
    RouterSolicitation {
        /// Who asks; unspecified before it has an address.
        source: Ipv6Addr,
    },
    /// Neighbour solicitation.
    NeighbourSolicitation {
        /// Who asks; unspecified when it looks for a duplicate address.
        source: Ipv6Addr,
        /// The address asked for.
        target: Ipv6Addr,
    },
    /// Echo request.
    EchoRequest,
    /// Anything else.
    Other,
}

/// Parses the PPP information field of an IPv6 packet. Bytes past the payload length are padding.
///
/// # Errors
/// The [`DropReason`] of the first defect; those of RFC 4861 sections 6.1.1 and 7.1.1 for solicitations.
pub fn parse(payload: &[u8]) -> Result<Received, DropReason> {
    read(&Packet::parse(payload)?)
}

/// As [`parse`], of a packet whose header is parsed.
///
/// # Errors
/// As [`parse`].
pub fn read(packet: &Packet<'_>) -> Result<Received, DropReason> {
    let Packet {
        source,
        destination,
        next_header,
        hop_limit,
        body,
    } = *packet;
    if next_header != ICMPV6 {
        return Ok(Received::Other);
    }
    if source.is_multicast() {
        return Err(DropReason::Ipv6Source);
    }
    let (&[kind, code, _, _], message) = body
        .split_first_chunk::<4>()
        .ok_or(DropReason::Icmpv6Truncated)?;
    if checksum(source, destination, body) != 0 {
        return Err(DropReason::Icmpv6Checksum);
    }
    let fixed = match kind {
        // Identifier (2), sequence number (2), data (RFC 4443 section 4.1).
        kind::ECHO_REQUEST if message.len() < 4 => return Err(DropReason::Icmpv6Truncated),
        kind::ECHO_REQUEST => return Ok(Received::EchoRequest),
        kind::ROUTER_SOLICITATION => 4,
        kind::NEIGHBOUR_SOLICITATION => 20,
        _ => return Ok(Received::Other),
    };
    if hop_limit != HOP_LIMIT {
        return Err(DropReason::NdHopLimit);
    }
    if code != 0 {
        return Err(DropReason::NdCode);
    }
    let (fixed, options) = message
        .split_at_checked(fixed)
        .ok_or(DropReason::Icmpv6Truncated)?;
    check_options(options, source)?;
    match fixed.get(4..).and_then(<[u8]>::first_chunk::<16>) {
        Some(target) => Ok(Received::NeighbourSolicitation {
            source,
            target: Ipv6Addr::from_octets(*target),
        }),
        None => Ok(Received::RouterSolicitation { source }),
    }
}

/// All options have a length, and a host without an address names no link-layer address.
fn check_options(mut options: &[u8], source: Ipv6Addr) -> Result<(), DropReason> {
    while let [kind, length, ..] = *options {
        let bytes = usize::from(length) * 8;
        options = match options.get(bytes..) {
            Some(rest) if bytes > 0 => rest,
            _ => return Err(DropReason::NdOption),
        };
        if kind == SOURCE_LINK_LAYER_ADDRESS && source.is_unspecified() {
            return Err(DropReason::NdOption);
        }
    }
    if options.is_empty() {
        Ok(())
    } else {
        Err(DropReason::NdOption)
    }
}

/// Puts IPv6 header and checksum around an ICMPv6 message.
fn wrap(source: Ipv6Addr, destination: Ipv6Addr, mut body: Vec<u8>) -> Vec<u8> {
    let sum = checksum(source, destination, &body).to_be_bytes();
    if let Some(field) = body.get_mut(2..4) {
        field.copy_from_slice(&sum);
    }
    let packet = Packet {
        source,
        destination,
        next_header: ICMPV6,
        hop_limit: HOP_LIMIT,
        body: &body,
    };
    packet.write()
}

/// A router advertisement (RFC 4861 section 4.2) for a point-to-point link with one subscriber.
///
/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |     Type      |     Code      |          Checksum             |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// | Cur Hop Limit |M|O|  Reserved |       Router Lifetime         |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |                         Reachable Time                        |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |                          Retrans Timer                        |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |   Options ...
/// +-+-+-+-+-+-+-+-+-+-+-+-
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterAdvertisement {
    /// Hop limit hosts are to send with.
    pub hop_limit: u8,
    /// Whether DHCPv6 gives addresses and everything else (flags M and O).
    pub has_dhcpv6: bool,
    /// How long we are a default router, in seconds; 0 for no longer.
    pub router_lifetime: u16,
    /// The /64 to make addresses in (flag A). It is not marked on-link (no flag L): on a point-to-point link everything goes
    /// to the router anyway, and the prefix holds addresses of this subscriber alone.
    pub prefix: Ipv6Addr,
    /// Valid and preferred lifetime of the prefix, in seconds.
    pub prefix_lifetimes: (u32, u32),
    /// MTU of the link, in bytes, at least 1280.
    pub mtu: u16,
    /// DNS servers (RFC 8106 section 5.1); they live as long as the router.
    pub dns: [Option<Ipv6Addr>; 2],
}

impl RouterAdvertisement {
    /// Builds the IPv6 packet.
    #[must_use]
    pub fn write(&self, source: Ipv6Addr, destination: Ipv6Addr) -> Vec<u8> {
        const PREFIX_INFORMATION: [u8; 4] = [3, 4, 64, 0x40];
        const MTU: [u8; 4] = [5, 1, 0, 0];
        const RECURSIVE_DNS_SERVER: u8 = 25;
        const MANAGED_AND_OTHER: u8 = 0xc0;
        let flags = if self.has_dhcpv6 {
            MANAGED_AND_OTHER
        } else {
            0
        };
        let mut body = Vec::with_capacity(112);
        body.extend_from_slice(&[kind::ROUTER_ADVERTISEMENT, 0, 0, 0, self.hop_limit, flags]);
        body.extend_from_slice(&self.router_lifetime.to_be_bytes());
        body.extend_from_slice(&[0; 8]);
        let (valid, preferred) = self.prefix_lifetimes;
        body.extend_from_slice(&PREFIX_INFORMATION);
        body.extend_from_slice(&valid.to_be_bytes());
        body.extend_from_slice(&preferred.to_be_bytes());
        body.extend_from_slice(&[0; 4]);
        body.extend_from_slice(&self.prefix.octets());
        body.extend_from_slice(&MTU);
        body.extend_from_slice(&u32::from(self.mtu).to_be_bytes());
        let servers = self.dns.iter().flatten();
        let count = servers.clone().fold(0u8, |n, _| n.saturating_add(1));
        if count > 0 {
            body.extend_from_slice(&[RECURSIVE_DNS_SERVER, 1 + 2 * count, 0, 0]);
            body.extend_from_slice(&u32::from(self.router_lifetime).to_be_bytes());
            for server in servers {
                body.extend_from_slice(&server.octets());
            }
        }
        wrap(source, destination, body)
    }
}

/// Builds a neighbour advertisement (RFC 4861 section 4.4) of a router's own address. A point-to-point link has no
/// link-layer addresses to tell.
#[must_use]
pub fn neighbour_advertisement(target: Ipv6Addr, destination: Ipv6Addr) -> Vec<u8> {
    const ROUTER: u8 = 0x80;
    const SOLICITED: u8 = 0x40;
    const OVERRIDE: u8 = 0x20;
    let mut flags = ROUTER | OVERRIDE;
    if destination != ALL_NODES {
        flags |= SOLICITED;
    }
    let mut body = Vec::with_capacity(24);
    body.extend_from_slice(&[kind::NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0]);
    body.extend_from_slice(&target.octets());
    wrap(target, destination, body)
}

/// Builds the reply to an echo request (RFC 4443 section 4.2), whose identifier, sequence number and data it returns.
#[must_use]
pub fn echo_reply(request: &Packet<'_>) -> Vec<u8> {
    let mut body = request.body.to_vec();
    if let Some(start) = body.first_chunk_mut() {
        *start = [kind::ECHO_REPLY, 0, 0, 0];
    }
    wrap(request.destination, request.source, body)
}

/// Builds an echo request, as a client sends it; `rest` is identifier, sequence number and data.
#[must_use]
pub fn echo_request(source: Ipv6Addr, destination: Ipv6Addr, rest: &[u8]) -> Vec<u8> {
    let mut body = [kind::ECHO_REQUEST, 0, 0, 0].to_vec();
    body.extend_from_slice(rest);
    wrap(source, destination, body)
}

/// Builds a router solicitation, as a client sends it.
#[must_use]
pub fn router_solicitation(source: Ipv6Addr) -> Vec<u8> {
    const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
    let body = [kind::ROUTER_SOLICITATION, 0, 0, 0, 0, 0, 0, 0].to_vec();
    wrap(source, ALL_ROUTERS, body)
}

/// Builds a neighbour solicitation, as a client sends it.
#[must_use]
pub fn neighbour_solicitation(source: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    // The solicited-node multicast address (RFC 4291 section 2.7.1).
    let low = target.to_bits() & 0x00ff_ffff;
    let destination = Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_ff00_0000 | low);
    let mut body = [kind::NEIGHBOUR_SOLICITATION, 0, 0, 0, 0, 0, 0, 0].to_vec();
    body.extend_from_slice(&target.octets());
    wrap(source, destination, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Ipv6Addr = link_local(9);

    fn solicitation(source: Ipv6Addr, kind: u8, code: u8, rest: &[u8]) -> Vec<u8> {
        let mut body = [kind, code, 0, 0].to_vec();
        body.extend_from_slice(rest);
        wrap(source, ALL_NODES, body)
    }

    #[test]
    fn solicitations_are_read_back_and_trailing_bytes_are_padding() {
        let target = link_local(7);
        let mut packet = neighbour_solicitation(SOURCE, target);
        packet.extend_from_slice(&[0xa5; 9]);
        let source = SOURCE;
        let expected = Received::NeighbourSolicitation { source, target };
        assert_eq!(parse(&packet), Ok(expected));
        let expected = Received::RouterSolicitation { source };
        assert_eq!(parse(&router_solicitation(SOURCE)), Ok(expected));
    }

    #[test]
    fn a_wrong_code_a_short_message_and_bad_options_have_names() {
        let none = Ipv6Addr::UNSPECIFIED;
        let cases: [(Ipv6Addr, u8, u8, &[u8], DropReason); 7] = [
            (SOURCE, 133, 1, &[0; 4], DropReason::NdCode),
            (SOURCE, 133, 0, &[0; 3], DropReason::Icmpv6Truncated),
            (SOURCE, 135, 0, &[0; 19], DropReason::Icmpv6Truncated),
            (
                SOURCE,
                133,
                0,
                &[0, 0, 0, 0, 14, 0, 0, 0, 0, 0, 0, 0],
                DropReason::NdOption,
            ),
            (
                SOURCE,
                133,
                0,
                &[0, 0, 0, 0, 14, 2, 0, 0, 0, 0, 0, 0],
                DropReason::NdOption,
            ),
            (SOURCE, 133, 0, &[0, 0, 0, 0, 14], DropReason::NdOption),
            (
                none,
                133,
                0,
                &[0, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 9],
                DropReason::NdOption,
            ),
        ];
        for (source, kind, code, rest, reason) in cases {
            assert_eq!(parse(&solicitation(source, kind, code, rest)), Err(reason));
        }
        let allowed = solicitation(SOURCE, 133, 0, &[0, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 9]);
        assert!(parse(&allowed).is_ok());
    }
}
