//! Packets of a kernel that leaves checksums and segmentation to us.
//!
//! One packet at a time: it stays here until all of its frames have found buffers and room in the ring to the worker, and
//! meanwhile the kernel's own queue waits (HZ-15 R3).

use super::virtio::{Packet, VIRTIO_LEN, VirtioHeader};
use crate::frame::Frame;
use bng_fastpath::segment::{SegmentSource, Segmenter};
use rte_rs::{Burst, Mbuf, Mempool};
use rustix::io::Errno;
use std::os::fd::AsFd;

/// Longest packet: the largest IP packet behind an Ethernet header with two tags.
const LONGEST: usize = 65_535 + 40 + 22;

/// The packet of one twin that is being cut into frames, or none.
pub(super) struct KernelPackets {
    pub(super) buffer: Box<[u8]>,
    current: Option<Current>,
}

#[derive(Debug, Clone, Copy)]
struct Current {
    /// Its bytes, behind the virtio header.
    len: usize,
    packet: Packet,
    /// The next frame to be made of it.
    next: usize,
}

/// What the kernel had for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Received {
    /// A frame.
    Frame,
    /// A super-packet.
    Super,
    /// Something that is dropped.
    Invalid,
}

impl KernelPackets {
    pub(super) fn new() -> Self {
        Self {
            buffer: vec![0; VIRTIO_LEN + LONGEST].into(),
            current: None,
        }
    }

    /// Whether there is nothing left of the last packet.
    pub(super) fn is_empty(&self) -> bool {
        self.current.is_none()
    }

    /// Reads the next packet. Only when there is nothing left of the last one. Frames must not be longer than `longest`.
    pub(super) fn receive(&mut self, device: impl AsFd, longest: usize) -> Result<Received, Errno> {
        let len = rustix::io::read(device, &mut *self.buffer)?;
        Ok(self.accept(len, longest))
    }

    /// Takes `len` bytes of the buffer for what they are.
    pub(super) fn accept(&mut self, len: usize, longest: usize) -> Received {
        let Some((header, rest)) = self.buffer.split_first_chunk_mut::<VIRTIO_LEN>() else {
            return Received::Invalid;
        };
        let len = len.saturating_sub(VIRTIO_LEN);
        let packet = match rest.get_mut(..len) {
            Some(frame) if len > 0 => VirtioHeader::from_bytes(*header).accept(frame, longest),
            _ => return Received::Invalid,
        };
        let Ok(packet) = packet else {
            return Received::Invalid;
        };
        self.current = Some(Current {
            len,
            packet,
            next: 0,
        });
        match packet {
            Packet::Frame => Received::Frame,
            Packet::Super(_) => Received::Super,
        }
    }

    /// Makes frames of the packet until there are none left of it, or `burst` has `room` of them. `false` when there is no
    /// buffer for the next one.
    pub(super) fn fill<const N: usize>(
        &mut self,
        pool: &mut Mempool,
        burst: &mut Burst<N>,
        room: usize,
    ) -> bool {
        let Some(current) = &mut self.current else {
            return true;
        };
        let end = VIRTIO_LEN + current.len;
        let bytes = self.buffer.get(VIRTIO_LEN..end).unwrap_or(&[]);
        let how = match current.packet {
            Packet::Frame => {
                if burst.len() < room {
                    let Some(mbuf) = pool.alloc_copy(bytes) else {
                        return false;
                    };
                    burst.push(mbuf);
                    self.current = None;
                }
                return true;
            }
            Packet::Super(how) => how,
        };
        // It was made of the same bytes before.
        let Ok(segmenter) = Segmenter::new(bytes, &[], how) else {
            self.current = None;
            return true;
        };
        while burst.len() < room {
            if current.next == segmenter.len() {
                self.current = None;
                break;
            }
            let Some(frame) = segmenter.frame::<Frame>(current.next, pool) else {
                return false;
            };
            burst.push(Mbuf::from(frame));
            current.next += 1;
        }
        true
    }
}

impl SegmentSource<Frame> for Mempool {
    fn buffer(&mut self, len: usize) -> Option<Frame> {
        let mut mbuf = self.alloc()?;
        mbuf.append(len)?;
        Some(mbuf.into())
    }
}
