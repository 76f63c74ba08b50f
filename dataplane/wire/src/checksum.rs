//! The Internet checksum: computed in full (RFC 1071) and updated (RFC 1624).
//!
//! Values are host-order numbers as they stand in a header's checksum field. No function here can panic.

use core::net::Ipv6Addr;

/// Folds a sum of 16-bit words to 16 bits with end-around carry.
#[inline(always)]
#[must_use]
pub(crate) const fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    sum as u16
}

/// A one's-complement sum being collected; the order of its parts does not matter.
///
/// Parts are byte slices; all but the last must have an even length, since each starts a new 16-bit word.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// An empty sum.
    #[must_use]
    pub const fn new() -> Self {
        Self(0)
    }

    /// Adds bytes as big-endian 16-bit words; an odd last byte is padded with zero (RFC 1071 section 1).
    #[inline]
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        // The sum is the same in either byte order apart from a swap of the result (RFC 1071 section 2 (B)), so
        // native 32-bit words are added and the result is swapped once. 2^32 of them fit a u64.
        let (words, tail) = bytes.as_chunks::<4>();
        let mut native: u64 = words
            .iter()
            .map(|word| u64::from(u32::from_ne_bytes(*word)))
            .sum();
        native += match *tail {
            [a] => u64::from(u16::from_ne_bytes([a, 0])),
            [a, b] => u64::from(u16::from_ne_bytes([a, b])),
            [a, b, c] => {
                u64::from(u16::from_ne_bytes([a, b])) + u64::from(u16::from_ne_bytes([c, 0]))
            }
            _ => 0,
        };
        Self(self.0 + u64::from(u16::from_be(fold(native))))
    }

    /// Adds one 16-bit word.
    #[inline]
    #[must_use]
    pub const fn word(self, word: u16) -> Self {
        Self(self.0 + word as u64)
    }

    /// Adds a 32-bit value as two words.
    #[inline]
    #[must_use]
    pub const fn dword(self, dword: u32) -> Self {
        Self(self.0 + (dword >> 16) as u64 + (dword & 0xffff) as u64)
    }

    /// Adds the IPv4 pseudo header of UDP and TCP (RFC 768, RFC 9293 section 3.1).
    #[inline]
    #[must_use]
    pub const fn pseudo_ipv4(self, src: u32, dst: u32, protocol: u8, l4_len: u16) -> Self {
        self.dword(src)
            .dword(dst)
            .word(protocol as u16)
            .word(l4_len)
    }

    /// Adds the IPv6 pseudo header of upper-layer protocols (RFC 8200 section 8.1).
    #[inline]
    #[must_use]
    pub fn pseudo_ipv6(self, src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, l4_len: u32) -> Self {
        self.bytes(&src.octets())
            .bytes(&dst.octets())
            .dword(l4_len)
            .word(u16::from(protocol))
    }

    /// The checksum: the complement of the sum. 0 over bytes that already contain their right checksum.
    #[inline]
    #[must_use]
    pub const fn finish(self) -> u16 {
        !fold(self.0)
    }

    /// The checksum as UDP sends it: a computed zero becomes 0xffff, because zero means "none" (RFC 768).
    #[inline]
    #[must_use]
    pub const fn finish_udp(self) -> u16 {
        udp_nonzero(self.finish())
    }
}

/// Checksum over `bytes` (RFC 1071). 0 when `bytes` contains its own right checksum.
#[inline]
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::new().bytes(bytes).finish()
}

/// Checksum of an IPv4 UDP or TCP segment whose checksum field is zero, or 0 when it contains its right checksum.
#[inline]
#[must_use]
pub fn l4_checksum(src: u32, dst: u32, protocol: u8, segment: &[u8]) -> u16 {
    // A segment inside IPv4 is at most 65,515 bytes, so the length fits the pseudo header's field.
    Sum::new()
        .pseudo_ipv4(src, dst, protocol, segment.len() as u16)
        .bytes(segment)
        .finish()
}

/// As [`l4_checksum`] for IPv6; for ICMPv6 as well.
#[inline]
#[must_use]
pub fn l4_checksum_ipv6(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, segment: &[u8]) -> u16 {
    // A segment inside IPv6 is at most 65,535 bytes, jumbograms aside.
    Sum::new()
        .pseudo_ipv6(src, dst, protocol, segment.len() as u32)
        .bytes(segment)
        .finish()
}

#[inline]
const fn udp_nonzero(check: u16) -> u16 {
    if check == 0 { 0xffff } else { check }
}

/// A change of header fields, collected once and applied to every checksum that covers them (RFC 1624 equation 3:
/// `HC' = ~(~HC + ~m + m')`). Holds up to some ten thousand fields.
///
/// It is kept in the order of the bytes in memory, in which fields need no swapping (RFC 1071 section 2 (B)).
#[derive(Clone, Copy, Debug, Default)]
pub struct Delta(u32);

impl Delta {
    /// No change.
    #[must_use]
    pub const fn new() -> Self {
        Self(0)
    }

    /// A 16-bit field changed from `old` to `new`.
    #[inline]
    #[must_use]
    pub const fn u16(self, old: u16, new: u16) -> Self {
        Self(self.0 + (!old.to_be()) as u32 + new.to_be() as u32)
    }

    /// A 32-bit field changed from `old` to `new`.
    #[inline]
    #[must_use]
    pub const fn u32(self, old: u32, new: u32) -> Self {
        // Whole words first: 2^16 is 1 in this arithmetic, so the halves may be added later.
        let sum = (!old.to_be()) as u64 + new.to_be() as u64;
        Self(self.0 + (sum >> 16) as u32 + (sum & 0xffff) as u32)
    }

    /// Both changes together.
    #[inline]
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// The checksum after the change.
    #[inline]
    #[must_use]
    pub const fn apply(self, check: u16) -> u16 {
        let sum = self.0 + (!check.to_be()) as u32;
        // Each half with the other and the carry of the lower one: what two rounds of folding give.
        u16::from_be(!(sum.wrapping_add(sum.rotate_left(16)) >> 16) as u16)
    }

    /// The UDP checksum after the change: zero (none) stays zero, a computed zero becomes 0xffff (RFC 768).
    #[inline]
    #[must_use]
    pub const fn apply_udp(self, check: u16) -> u16 {
        if check == 0 {
            0
        } else {
            udp_nonzero(self.apply(check))
        }
    }
}
