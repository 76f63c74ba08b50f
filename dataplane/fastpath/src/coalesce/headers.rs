//! Headers of frames, to be compared in blocks and read at places that only the run knows.

use bng_wire::U16;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::frame::MAX_HEADERS;

/// Headers are compared so many bytes at a time.
pub(super) const BLOCK: usize = 32;
pub(super) const BLOCKS: usize = MAX_HEADERS.div_ceil(BLOCK);
/// The headers of a frame, from its start.
pub(super) type Headers = [[u8; BLOCK]; BLOCKS];

/// Copies the first blocks of a frame, which is as long as they are or ends in the last one.
#[inline]
pub(super) fn copy_blocks(to: &mut Headers, count: u8, data: &[u8]) {
    let Some(to) = to.get_mut(..usize::from(count)) else {
        return;
    };
    let to = to.as_flattened_mut();
    let len = to.len().min(data.len());
    if let (Some(to), Some(from)) = (to.get_mut(..len), data.get(..len)) {
        to.copy_from_slice(from);
    }
}

/// A block as words.
#[inline(always)]
pub(super) fn words(block: &[u8; BLOCK]) -> impl Iterator<Item = u64> {
    let (words, _) = block.as_chunks();
    words.iter().map(|word| u64::from_ne_bytes(*word))
}

/// The lengths of a packet and its PPPoE header, four bytes from before the IP header on.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Lengths {
    /// With a session.
    pub(super) pppoe: U16,
    _protocol: U16,
    _version_tos: U16,
    /// IPv4.
    pub(super) total: U16,
    /// IPv4; the payload length of IPv6 is at the same place.
    pub(super) id: U16,
    _frag: U16,
    _ttl_protocol: U16,
    /// IPv4.
    pub(super) check: U16,
}

impl Lengths {
    /// Those of the packet at `l3`.
    #[inline(always)]
    pub(super) fn at(data: &[u8], l3: usize) -> Option<&Self> {
        let bytes = data.get(l3.checked_sub(4)?..)?;
        Self::ref_from_prefix(bytes)
            .ok()
            .map(|(lengths, _)| lengths)
    }

    /// Total length, identification and header checksum of IPv4, modulo 65,535.
    #[inline(always)]
    pub(super) fn ipv4_sum(&self) -> u32 {
        let fields = [self.total, self.id, self.check];
        fields
            .map(|field| u32::from(field.get()))
            .iter()
            .sum::<u32>()
            % 0xffff
    }
}
