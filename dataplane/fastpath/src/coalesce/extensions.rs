//! IPv6 extension headers in front of TCP or UDP (C13).

use bng_shm::Counter;
use bng_wire::ipv4::protocol;
use bng_wire::ipv6::next_header;

use super::frame::{Pass, Scope, pass};

/// Most bytes of extension headers in front of TCP or UDP that a candidate has (C13). A run keeps its head's headers.
pub(super) const MAX_EXTENSIONS: usize = 56;

/// The upper-layer protocol of an IPv6 packet and its offset in `payload`.
#[inline]
pub(super) fn extensions(first: u8, payload: &[u8]) -> Result<(u8, usize), Pass> {
    if matches!(first, protocol::TCP | protocol::UDP) {
        return Ok((first, 0));
    }
    behind_extensions(first, payload)
}

#[cold]
fn behind_extensions(first: u8, payload: &[u8]) -> Result<(u8, usize), Pass> {
    let (mut protocol, mut at) = (first, 0);
    loop {
        match protocol {
            next_header::HOP_BY_HOP | next_header::ROUTING | next_header::DESTINATION_OPTIONS => {}
            next_header::FRAGMENT => return pass(Counter::PassFragment, Scope::Addresses),
            // Authentication, mobility, HIP (RFC 7401) and Shim6 (RFC 5533) are extension headers that are not accepted.
            next_header::AUTHENTICATION | next_header::MOBILITY | 139 | 140 => break,
            _ => return Ok((protocol, at)),
        }
        let Some([next, units]) = payload.get(at..).and_then(<[u8]>::first_chunk) else {
            break;
        };
        protocol = *next;
        at += (usize::from(*units) + 1) * 8;
        if at > MAX_EXTENSIONS || at > payload.len() {
            break;
        }
    }
    pass(Counter::PassIpHeader, Scope::Addresses)
}
