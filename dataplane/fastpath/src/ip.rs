//! The IPv4 header check both directions share, and its drop reasons.

use bng_shm::Counter;
use bng_wire::ipv4::{self, FLAG_DF, FLAG_MF, IPV4_MIN_LEN, OFFSET_MASK};
use bng_wire::{Ipv4Error, Ipv4Hdr, ipv4::Ipv4};
use zerocopy::FromBytes;

use crate::encap::Extent;

/// The facts of a checked IPv4 packet without options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) src: u32,
    pub(crate) dst: u32,
    /// Offset of the IPv4 header in the frame.
    pub(crate) l3: u16,
    /// Total length, bytes.
    pub(crate) len: u16,
    /// Flags and fragment offset.
    pub(crate) frag: u16,
    pub(crate) protocol: u8,
    pub(crate) ttl: u8,
}

impl Packet {
    pub(crate) const EMPTY: Self = Self {
        src: 0,
        dst: 0,
        l3: 0,
        len: 0,
        frag: 0,
        protocol: 0,
        ttl: 0,
    };

    /// The packet's bytes in the frame. They were there when it was checked.
    #[inline(always)]
    pub(crate) fn bytes<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        let l3 = usize::from(self.l3);
        frame.get(l3..l3 + usize::from(self.len)).unwrap_or(&[])
    }

    /// The packet's bytes in the frame, writable.
    #[inline(always)]
    pub(crate) fn bytes_mut<'a>(&self, frame: &'a mut [u8]) -> &'a mut [u8] {
        let l3 = usize::from(self.l3);
        frame
            .get_mut(l3..l3 + usize::from(self.len))
            .unwrap_or(&mut [])
    }

    /// Header and payload in the frame, writable. `None` would mean that they have not been checked.
    #[inline(always)]
    pub(crate) fn parts<'a>(&self, frame: &'a mut [u8]) -> Option<(&'a mut Ipv4Hdr, &'a mut [u8])> {
        let l3 = usize::from(self.l3);
        let bytes = frame.get_mut(l3..l3 + usize::from(self.len))?;
        Ipv4Hdr::mut_from_prefix(bytes).ok()
    }

    /// Where it lies.
    #[inline(always)]
    pub(crate) fn extent(&self) -> Extent {
        Extent {
            l3: self.l3,
            len: self.len,
        }
    }

    /// Any part of a fragmented datagram.
    #[inline(always)]
    pub(crate) fn is_fragment(&self) -> bool {
        self.frag & (FLAG_MF | OFFSET_MASK) != 0
    }

    /// It must not be fragmented.
    #[inline(always)]
    pub(crate) fn dont_fragment(&self) -> bool {
        self.frag & FLAG_DF != 0
    }

    /// A fragment without the transport header.
    #[inline(always)]
    pub(crate) fn is_later_fragment(&self) -> bool {
        self.frag & OFFSET_MASK != 0
    }
}

fn reason(error: Ipv4Error) -> Counter {
    match error {
        Ipv4Error::Truncated { .. } | Ipv4Error::TotalLengthBeyond { .. } => Counter::Ipv4Truncated,
        Ipv4Error::Version { .. }
        | Ipv4Error::HeaderLength { .. }
        | Ipv4Error::TotalLengthShort { .. } => Counter::Ipv4Header,
        Ipv4Error::Checksum => Counter::Ipv4Checksum,
    }
}

/// Checks the packet at offset `l3` of a frame; `bytes` are the frame's bytes from there on (padding allowed).
#[inline(always)]
pub(crate) fn check(bytes: &[u8], l3: usize) -> Result<Packet, Counter> {
    let Ipv4 {
        header_len,
        total_len,
        src,
        dst,
        protocol,
        ttl,
        frag,
    } = ipv4::parse(bytes).map_err(reason)?;
    if header_len > IPV4_MIN_LEN {
        return Err(Counter::Ipv4Options);
    }
    // Both fit: the link layer is at most 30 bytes, the total length is a 16-bit field.
    Ok(Packet {
        src,
        dst,
        l3: l3 as u16,
        len: total_len as u16,
        frag,
        protocol,
        ttl,
    })
}
