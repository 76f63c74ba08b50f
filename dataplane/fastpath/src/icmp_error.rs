//! Translation of ICMP errors: the outer packet and the packet it quotes (RFC 5508 section 4).

use bng_shm::NatProtocol;
use bng_wire::checksum::{Delta, checksum};
use bng_wire::l4::ICMP_LEN;
use bng_wire::{IcmpHdr, Ipv4Hdr, U16};
use zerocopy::FromBytes;

use crate::flow::Direction;
use crate::nat44::set_address;

/// Rewrites the message of an ICMP error whose flow was read by [`crate::flow::parse`], which has checked all it
/// relies on.
///
/// The quoted packet went the other way, so its translated side is the opposite one. Its transport checksum is
/// updated if it was quoted; the message's own checksum is computed anew.
#[cold]
pub(crate) fn rewrite(
    message: &mut [u8],
    direction: Direction,
    protocol: NatProtocol,
    address: u32,
    port: u16,
) {
    let opposite = match direction {
        Direction::Upstream => Direction::Downstream,
        Direction::Downstream => Direction::Upstream,
    };
    if let Some(quote) = message.get_mut(ICMP_LEN..) {
        rewrite_quote(quote, opposite, protocol, address, port);
    }
    if let Ok((icmp, _)) = IcmpHdr::mut_from_prefix(message) {
        icmp.checksum = U16::ZERO;
    }
    let check = checksum(message);
    if let Ok((icmp, _)) = IcmpHdr::mut_from_prefix(message) {
        icmp.checksum.set(check);
    }
}

fn rewrite_quote(
    quote: &mut [u8],
    direction: Direction,
    protocol: NatProtocol,
    address: u32,
    port: u16,
) {
    let Ok((header, _)) = Ipv4Hdr::mut_from_prefix(quote) else {
        return;
    };
    let header_len = header.header_len();
    let changed = set_address(header, direction, address);
    header.checksum.set(changed.apply(header.checksum.get()));
    let Some(l4) = quote.get_mut(header_len..) else {
        return;
    };
    // Offsets of the translated field and of the checksum, which may be cut off (TCP).
    let (field_at, check_at, changed) = match (protocol, direction) {
        (NatProtocol::Icmp, _) => (4, 2, Delta::new()),
        (NatProtocol::Udp, Direction::Upstream) => (0, 6, changed),
        (NatProtocol::Udp, Direction::Downstream) => (2, 6, changed),
        (NatProtocol::Tcp, Direction::Upstream) => (0, 16, changed),
        (NatProtocol::Tcp, Direction::Downstream) => (2, 16, changed),
    };
    let Some(field) = field_of(l4, field_at) else {
        return;
    };
    let delta = changed.u16(field.get(), port);
    field.set(port);
    if let Some(check) = field_of(l4, check_at) {
        check.set(match protocol {
            NatProtocol::Udp => delta.apply_udp(check.get()),
            NatProtocol::Tcp | NatProtocol::Icmp => delta.apply(check.get()),
        });
    }
}

fn field_of(bytes: &mut [u8], at: usize) -> Option<&mut U16> {
    U16::mut_from_prefix(bytes.get_mut(at..)?)
        .ok()
        .map(|(field, _)| field)
}
