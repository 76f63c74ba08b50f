//! The header in front of each packet between a TAP device with offloads and the kernel (`struct virtio_net_hdr`, virtio 1.2
//! section 5.1.6), in the machine's byte order.

use bng_fastpath::coalesce::Ids;
use bng_fastpath::segment::{Cwr, How, Layout, Segmenter};
use bng_wire::checksum::Sum;
use rte_rs::{Mbuf, ol_flags};

/// Length of the header, bytes.
pub(super) const VIRTIO_LEN: usize = 10;

/// The TCP or UDP checksum is to be completed: the field holds the sum of the pseudo header.
const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// A bit beside the others: CWR belongs on the first segment only.
const GSO_ECN: u8 = 0x80;
/// Offset of the UDP checksum in its header.
const UDP_CHECKSUM: u16 = 6;

/// The header's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct VirtioHeader {
    flags: u8,
    gso_type: u8,
    /// Length of all headers; a hint.
    hdr_len: u16,
    /// Payload bytes of a segment.
    gso_size: u16,
    /// Where the checksum begins, from the start of the frame.
    csum_start: u16,
    /// Where it goes, from there.
    csum_offset: u16,
}

/// What is to be done with a packet of the kernel. Its checksum, if it was to be completed, is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packet {
    /// It is a frame.
    Frame,
    /// It is to be cut into frames.
    Super(How),
}

/// A packet that the kernel says impossible things about, or one too large for a packet buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Invalid;

impl VirtioHeader {
    /// In front of a frame that is as it should be.
    pub(super) const PLAIN: Self = Self {
        flags: 0,
        gso_type: GSO_NONE,
        hdr_len: 0,
        gso_size: 0,
        csum_start: 0,
        csum_offset: 0,
    };

    /// In front of a super-packet, which was built for this ([`crate::super_packet::Checksums::Virtio`]).
    pub(super) fn of_super(mbuf: &Mbuf) -> Self {
        let lengths = mbuf.tx_lengths();
        let flags = mbuf.ol_flags();
        let is_tcp = flags & ol_flags::TX_TCP_SEG != 0;
        Self {
            flags: NEEDS_CSUM,
            gso_type: match (is_tcp, flags & ol_flags::TX_IPV6 != 0) {
                (true, false) => GSO_TCPV4,
                (true, true) => GSO_TCPV6,
                (false, _) => GSO_UDP_L4,
            },
            hdr_len: lengths.l2 + lengths.l3 + lengths.l4,
            gso_size: lengths.segment,
            csum_start: lengths.l2 + lengths.l3,
            csum_offset: if is_tcp { 16 } else { UDP_CHECKSUM },
        }
    }

    pub(super) fn to_bytes(self) -> [u8; VIRTIO_LEN] {
        let mut bytes = [0; VIRTIO_LEN];
        let (types, words) = bytes.split_at_mut(2);
        types.copy_from_slice(&[self.flags, self.gso_type]);
        let fields = [
            self.hdr_len,
            self.gso_size,
            self.csum_start,
            self.csum_offset,
        ];
        for (place, field) in words.chunks_exact_mut(2).zip(fields) {
            place.copy_from_slice(&field.to_ne_bytes());
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: [u8; VIRTIO_LEN]) -> Self {
        let [flags, gso_type, a, b, c, d, e, f, g, h] = bytes;
        Self {
            flags,
            gso_type,
            hdr_len: u16::from_ne_bytes([a, b]),
            gso_size: u16::from_ne_bytes([c, d]),
            csum_start: u16::from_ne_bytes([e, f]),
            csum_offset: u16::from_ne_bytes([g, h]),
        }
    }

    /// What is to be done with the packet behind this header. A frame must not be longer than `longest` bytes.
    pub(super) fn accept(&self, frame: &mut [u8], longest: usize) -> Result<Packet, Invalid> {
        let kind = self.gso_type & !GSO_ECN;
        if kind == GSO_NONE {
            if frame.len() > longest {
                return Err(Invalid);
            }
            if self.flags & NEEDS_CSUM != 0 {
                self.complete(frame)?;
            }
            return Ok(Packet::Frame);
        }
        let fits = |layout: Layout| match kind {
            GSO_TCPV4 => layout.is_tcp() && !layout.is_ipv6(),
            GSO_TCPV6 => layout.is_tcp() && layout.is_ipv6(),
            GSO_UDP_L4 => !layout.is_tcp(),
            _ => false,
        };
        let how = How {
            segment: self.gso_size,
            // The kernel cuts packets with another progression itself: it has not been told that we could.
            ids: Ids::Rising,
            cwr: if self.gso_type & GSO_ECN != 0 {
                Cwr::First
            } else {
                Cwr::Every
            },
        };
        let segmenter = Segmenter::new(frame, &[], how).map_err(|_| Invalid)?;
        if !fits(segmenter.layout()) || segmenter.frame_len(0) > longest {
            return Err(Invalid);
        }
        Ok(Packet::Super(how))
    }

    /// Completes the checksum of a frame.
    fn complete(&self, frame: &mut [u8]) -> Result<(), Invalid> {
        let bytes = frame
            .get_mut(usize::from(self.csum_start)..)
            .ok_or(Invalid)?;
        let check = Sum::new().bytes(bytes);
        let check = if self.csum_offset == UDP_CHECKSUM {
            check.finish_udp()
        } else {
            check.finish()
        };
        let at = usize::from(self.csum_offset);
        let field = bytes.get_mut(at..at + 2).ok_or(Invalid)?;
        field.copy_from_slice(&check.to_be_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
