//! Merging: what the headers of a run's super-packet are, for something that takes super-packets (copy form, H5; H1, H4).
//!
//! A run is whole, rewritten frames. [`Merged::of`] compares the headers of all of them with what cutting the super-packet
//! would give; so what the other side cuts it into is the run's frames, byte for byte (P1, H7), or there is no super-packet.
//!
//! Not compared are the payloads with the TCP and UDP checksums. The coalescer has verified those, unless told not to
//! (C17); then a super-packet would give a damaged frame a right checksum, so none must be made.

use bng_wire::checksum::Sum;
use bng_wire::ethernet::ETH_LEN;
use bng_wire::ipv4::{IPV4_MIN_LEN, protocol};
use bng_wire::ipv6::IPV6_LEN;
use bng_wire::{Ipv4Hdr, Ipv6Hdr, TcpHdr};

use crate::coalesce::{Ids, Run};
use crate::segment::layout::{CWR, Place, view, view_mut};
use crate::segment::{Cwr, FIN, How, Layout, PSH};

/// All headers at their longest: Ethernet, IPv6, TCP with options.
const MAX_HEADERS: usize = ETH_LEN + IPV6_LEN + 60;

/// How the checksums of a super-packet are left to the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksums {
    /// For a kernel, behind a virtio header (`VIRTIO_NET_HDR_F_NEEDS_CSUM`): the IPv4 header checksum is right, that of TCP or
    /// UDP holds the sum of the pseudo header with the length of the whole.
    Virtio,
    /// For a port that segments (DPDK): the sum of the pseudo header is without a length. With `ipv4` the port computes the
    /// IPv4 header checksum, which is 0; else it is right.
    Port {
        /// Whether the port computes the IPv4 header checksum.
        ipv4: bool,
    },
}

/// The headers of the super-packet of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merged {
    layout: Layout,
    segment: u16,
    payload: u32,
    /// FIN and PSH of the last frame (H4).
    last_flags: u16,
}

impl Merged {
    /// What the frames of a run become together, or `None` if that cannot be told exactly or is not to be: a frame that is
    /// not what cutting gives, fewer than two frames, IPv4 with fixed identification or CWR on every frame (no virtio header
    /// and no port has a word for them), tags, PPPoE (S9), IPv4 options or IPv6 extension headers.
    pub fn of<'a>(run: &Run, mut frames: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        if run.cwr || (!run.is_ipv6 && run.ids == Ids::Fixed) {
            return None;
        }
        let first = frames.next()?;
        let layout = Layout::of(first).ok()?;
        let ip_len = if run.is_ipv6 { IPV6_LEN } else { IPV4_MIN_LEN };
        let is_plain = layout.l3() == ETH_LEN && layout.l4() == ETH_LEN + ip_len;
        let is_of_run = (layout.is_tcp(), layout.is_ipv6()) == (run.is_tcp, run.is_ipv6);
        if !is_plain || !is_of_run {
            return None;
        }
        let mut merged = Self {
            layout,
            segment: run.segment,
            payload: 0,
            last_flags: 0,
        };
        let (head, _) = first.split_at_checked(layout.header_len())?;
        let mut previous = None;
        for (index, frame) in std::iter::once(first).chain(frames).enumerate() {
            if let Some((at, before)) = previous.replace((index, frame)) {
                merged.add(head, at, before, false)?;
            }
        }
        let (at, last) = previous.filter(|(at, _)| *at > 0)?;
        merged.add(head, at, last, true)?;
        layout.fits(merged.payload as usize).then_some(merged)
    }

    /// The next frame, if it is what cutting would give.
    fn add(&mut self, head: &[u8], index: usize, frame: &[u8], is_last: bool) -> Option<()> {
        let (headers, body) = frame.split_at_checked(head.len())?;
        let segment = usize::from(self.segment);
        let is_right_size = if is_last {
            (1..=segment).contains(&body.len())
        } else {
            body.len() == segment
        };
        if !is_right_size {
            return None;
        }
        let mut space = [0; MAX_HEADERS];
        let expected = space.get_mut(..head.len())?;
        expected.copy_from_slice(head);
        let how = How {
            segment: self.segment,
            ids: Ids::Rising,
            cwr: Cwr::First,
        };
        let place = Place {
            index,
            offset: self.payload as usize,
            payload: body.len(),
            // So that FIN and PSH of the first frame, which only a run of one has, are taken out and compared.
            is_last: false,
        };
        self.layout.write_segment(expected, &place, &how);
        if self.layout.is_tcp() {
            let flags = view::<TcpHdr>(headers, self.layout.l4())?
                .offset_flags
                .get();
            if flags & CWR != 0 {
                return None;
            }
            if is_last {
                self.last_flags = flags & (FIN | PSH);
                let tcp = view_mut::<TcpHdr>(expected, self.layout.l4())?;
                tcp.offset_flags
                    .set(tcp.offset_flags.get() | self.last_flags);
            }
        }
        let check = self.layout.l4_checksum(headers);
        // Cutting computes it, so it must stand there as it is computed: of ones-complement zero TCP sends the one form,
        // UDP the other.
        if check == if self.layout.is_tcp() { 0xffff } else { 0 } {
            return None;
        }
        self.layout.set_l4_checksum(expected, check);
        if headers != expected {
            return None;
        }
        // The coalescer has bounded it.
        self.payload = self.payload.checked_add(body.len() as u32)?;
        Some(())
    }

    /// Where the headers lie in the first frame, which are cut off all others.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Payload bytes of every segment but the last.
    #[must_use]
    pub fn segment(&self) -> u16 {
        self.segment
    }

    /// Makes the headers of the first frame those of the super-packet.
    pub fn write(&self, head: &mut [u8], checksums: Checksums) {
        let payload = self.payload as usize;
        self.layout.write_lengths(head, payload, 0);
        if self.layout.is_tcp()
            && let Some(tcp) = view_mut::<TcpHdr>(head, self.layout.l4())
        {
            tcp.offset_flags
                .set(tcp.offset_flags.get() | self.last_flags);
        }
        let upper = self.layout.header_len() - self.layout.l4() + payload;
        let len = match checksums {
            Checksums::Virtio => upper as u16,
            Checksums::Port { ipv4 } => {
                if ipv4
                    && !self.layout.is_ipv6()
                    && let Some(header) = view_mut::<Ipv4Hdr>(head, self.layout.l3())
                {
                    header.checksum.set(0);
                }
                0
            }
        };
        // The sum, not its complement: the receiver goes on summing from there.
        let sum = !self.pseudo_header(head, len).finish();
        self.layout.set_l4_checksum(head, sum);
    }

    fn pseudo_header(&self, head: &[u8], len: u16) -> Sum {
        let protocol = if self.layout.is_tcp() {
            protocol::TCP
        } else {
            protocol::UDP
        };
        let l3 = self.layout.l3();
        let sum = if self.layout.is_ipv6() {
            view::<Ipv6Hdr>(head, l3).map(|ip| {
                Sum::new().pseudo_ipv6(ip.src.into(), ip.dst.into(), protocol, len.into())
            })
        } else {
            view::<Ipv4Hdr>(head, l3)
                .map(|ip| Sum::new().pseudo_ipv4(ip.src.get(), ip.dst.get(), protocol, len))
        };
        sum.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
