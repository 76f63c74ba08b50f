//! The IPv6 header check both directions share.

use std::net::Ipv6Addr;

use bng_shm::Counter;
use bng_wire::ipv6::{self, IPV6_LEN};
use bng_wire::{ExtensionError, Ipv6Hdr, Upper};
use zerocopy::FromBytes;

use super::reason;
use crate::encap::Extent;

/// The facts of a checked IPv6 packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packet {
    /// Upper half of the source address.
    pub(crate) src: u64,
    /// Upper half of the destination address.
    pub(crate) dst: u64,
    pub(crate) extent: Extent,
    /// Of the IPv6 header itself.
    pub(crate) next_header: u8,
    pub(crate) hop_limit: u8,
}

impl Packet {
    pub(crate) const EMPTY: Self = Self {
        src: 0,
        dst: 0,
        extent: Extent { l3: 0, len: 0 },
        next_header: 0,
        hop_limit: 0,
    };

    /// Checks the packet at offset `l3` of a frame; `bytes` are the frame's bytes from there on (padding allowed).
    #[inline(always)]
    pub(crate) fn check(bytes: &[u8], l3: usize) -> Result<Self, Counter> {
        let header = ipv6::header(bytes).map_err(reason)?;
        // The link layer is at most 30 bytes. A packet of more than 65,535 bytes fits no buffer.
        let len = u16::try_from(header.total_len()).map_err(|_| Counter::Ipv6Truncated)?;
        Ok(Self {
            src: high(&header.src),
            dst: high(&header.dst),
            extent: Extent { l3: l3 as u16, len },
            next_header: header.next_header,
            hop_limit: header.hop_limit,
        })
    }

    /// The packet's bytes in the frame. They were there when it was checked.
    #[inline(always)]
    pub(crate) fn bytes<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        let l3 = usize::from(self.extent.l3);
        frame
            .get(l3..l3 + usize::from(self.extent.len))
            .unwrap_or(&[])
    }

    /// The packet's bytes in the frame, writable.
    #[inline(always)]
    pub(crate) fn bytes_mut<'a>(&self, frame: &'a mut [u8]) -> &'a mut [u8] {
        let l3 = usize::from(self.extent.l3);
        frame
            .get_mut(l3..l3 + usize::from(self.extent.len))
            .unwrap_or(&mut [])
    }

    /// Source and destination address.
    #[inline(always)]
    pub(crate) fn addresses(&self, frame: &[u8]) -> ([u8; 16], [u8; 16]) {
        Ipv6Hdr::ref_from_prefix(self.bytes(frame))
            .map_or(([0; 16], [0; 16]), |(header, _)| (header.src, header.dst))
    }

    /// The source address.
    #[inline]
    pub(crate) fn src_addr(&self, frame: &[u8]) -> Ipv6Addr {
        self.addresses(frame).0.into()
    }

    /// The destination address.
    #[inline]
    pub(crate) fn dst_addr(&self, frame: &[u8]) -> Ipv6Addr {
        self.addresses(frame).1.into()
    }

    /// The upper-layer header, behind extension headers.
    #[inline(always)]
    pub(crate) fn upper(&self, frame: &[u8]) -> Result<Upper, ExtensionError> {
        ipv6::upper(self.next_header, self.bytes(frame))
    }

    /// A packet to be forwarded has hops left after this one (RFC 8200 section 3).
    #[inline(always)]
    pub(crate) const fn has_hops_left(&self) -> bool {
        self.hop_limit > 1
    }

    /// Takes one hop off a packet that has some left.
    #[inline(always)]
    pub(crate) fn take_hop(&self, frame: &mut [u8]) {
        if let Ok((header, _)) = Ipv6Hdr::mut_from_prefix(self.bytes_mut(frame)) {
            header.hop_limit = self.hop_limit.wrapping_sub(1);
        }
    }
}

/// Upper half of an address.
#[inline(always)]
fn high(address: &[u8; 16]) -> u64 {
    address
        .first_chunk()
        .map_or(0, |half| u64::from_be_bytes(*half))
}

const _: () = assert!(size_of::<Ipv6Hdr>() == IPV6_LEN);
