//! One run, and whether a frame joins it (sections 5 and 6 of the rules).
//!
//! A run keeps the headers of its head, and a mask of what must be the same in all its frames: everything but lengths,
//! identification, checksums, sequence number, FIN and PSH. That is one comparison of words, without a look at what the
//! fields are; only if it fails somebody asks which field it was, to count the reason.

use bng_shm::Counter;
use bng_wire::ipv6::IPV6_LEN;
use bng_wire::l4::tcp_flag::{CWR, FIN, PSH};
use bng_wire::pppoe::PPP_LEN;

use super::frame::{Candidate, MAX_HEADERS, Reader, Shape, Varying};
use super::key::Key;
use crate::buffer::PacketBuf;

/// Headers are compared so many bytes at a time.
const BLOCK: usize = 32;
const BLOCKS: usize = MAX_HEADERS.div_ceil(BLOCK);
type Headers = [[u8; BLOCK]; BLOCKS];

/// Most bytes of a merged packet behind the EtherType (M9).
const MAX_BYTES: u32 = 65_535;
/// Most datagrams in a UDP run (M8).
const MAX_DATAGRAMS: u16 = 64;

/// Frames of one flow that are merged, as [`observe`](super::Coalescer::observe) sees them.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) key: Key,
    pub(super) shape: Shape,
    /// The head's receive port.
    port: u8,
    /// Frames so far, and at most.
    frames: u16,
    limit: u16,
    /// Payload of the head, bytes.
    segment: u16,
    /// Bytes behind the EtherType of the merged packet so far.
    bytes: u32,
    /// The next TCP sequence number.
    seq: u32,
    /// IPv4 identifications the next frame may have: the second frame decides (M3).
    ids: [u16; 2],
    pub(super) is_rising: bool,
    /// CWR is set in all frames (E5).
    pub(super) has_cwr: bool,
    /// Total length, identification and header checksum of an IPv4 head, added modulo 65,535: with all else the same,
    /// it is the same in every packet with a right checksum.
    ipv4_sum: u32,
    /// When the head arrived.
    pub(super) arrived_ns: u64,
    /// The burst in which a frame of the run was seen first, and the frame's place there.
    pub(super) first_seen: (u32, u8),
    /// Blocks the headers fill.
    blocks: u8,
    head: Headers,
    same: Headers,
}

impl Run {
    pub(super) const EMPTY: Self = Self {
        key: Key::EMPTY,
        shape: Shape {
            l3: 0,
            l4: 0,
            payload: 0,
            is_session: false,
            is_ipv6: false,
            is_tcp: false,
        },
        port: 0,
        frames: 0,
        limit: 0,
        segment: 0,
        bytes: 0,
        seq: 0,
        ids: [0; 2],
        is_rising: false,
        has_cwr: false,
        ipv4_sum: 0,
        arrived_ns: 0,
        first_seen: (0, 0),
        blocks: 0,
        head: [[0; BLOCK]; BLOCKS],
        same: [[0; BLOCK]; BLOCKS],
    };

    /// Starts anew with this head (E1). `data` is its frame; of the key, only the caller knows.
    #[inline]
    pub(super) fn start(&mut self, port: u8, head: &Candidate, data: &[u8], max_frames: u16) {
        let Candidate { shape, varying } = head;
        self.shape = *shape;
        self.port = port;
        self.frames = 1;
        self.limit = match shape.is_tcp {
            true => max_frames,
            false => max_frames.min(MAX_DATAGRAMS),
        };
        self.segment = varying.payload;
        let l3 = usize::from(shape.l3);
        let below = if shape.is_session { 8 } else { 0 };
        self.bytes = varying.len + below - u32::from(shape.l3);
        self.seq = varying.seq.wrapping_add(varying.payload.into());
        self.ids = [varying.id, varying.id.wrapping_add(1)];
        self.is_rising = false;
        self.has_cwr = varying.flags & CWR != 0;
        self.ipv4_sum = ipv4_sum(data, l3).unwrap_or(0);
        let headers = usize::from(shape.payload);
        self.blocks = headers.div_ceil(BLOCK) as u8;
        copy_blocks(&mut self.head, self.blocks, data);
        self.set_mask(headers);
    }

    /// What must be the same in all frames of the run.
    #[inline]
    fn set_mask(&mut self, headers: usize) {
        let Shape {
            l3,
            l4,
            is_session,
            is_ipv6,
            is_tcp,
            ..
        } = self.shape;
        let (l3, l4) = (usize::from(l3), usize::from(l4));
        if let Some(blocks) = self.same.get_mut(..usize::from(self.blocks)) {
            let bytes = blocks.as_flattened_mut();
            bytes.fill(0xff);
            if let Some(beyond) = bytes.get_mut(headers..) {
                beyond.fill(0);
            }
            let mut may_differ = |at: usize| {
                if let Some(field) = bytes.get_mut(at..at + 2) {
                    field.fill(0);
                }
            };
            if is_session {
                may_differ(l3 - PPP_LEN - 2);
            }
            if is_ipv6 {
                may_differ(l3 + 4);
            } else {
                may_differ(l3 + 2);
                may_differ(l3 + 4);
                may_differ(l3 + 10);
            }
            if is_tcp {
                may_differ(l4 + 4);
                may_differ(l4 + 6);
                may_differ(l4 + 16);
                if let Some(flags) = bytes.get_mut(l4 + 13) {
                    *flags = !(FIN | PSH);
                }
            } else {
                may_differ(l4 + 4);
                may_differ(l4 + 6);
            }
        }
    }

    /// The first byte of the headers in which a frame differs from the head though it must not (M1, M2, M6, M7). If there is
    /// none the frame has the head's shape, since all bytes that make the shape are among those compared.
    #[inline]
    fn difference(&self, data: &[u8]) -> Option<usize> {
        let mut headers = [[0; BLOCK]; BLOCKS];
        copy_blocks(&mut headers, self.blocks, data);
        let rows = headers.as_flattened().iter().zip(self.head.as_flattened());
        let mut rows = rows
            .zip(self.same.as_flattened())
            .take(usize::from(self.blocks) * BLOCK);
        rows.position(|((byte, head), same)| (byte ^ head) & same != 0)
    }

    /// As `difference(data) == None`, for a frame that is at least as long as the blocks.
    #[inline(always)]
    fn is_same(&self, data: &[u8]) -> bool {
        let count = usize::from(self.blocks);
        let (blocks, _) = data.as_chunks::<BLOCK>();
        let (Some(blocks), Some(head), Some(same)) = (
            blocks.get(..count),
            self.head.get(..count),
            self.same.get(..count),
        ) else {
            return false;
        };
        let mut differs = [0; BLOCK];
        for ((block, head), same) in blocks.iter().zip(head).zip(same) {
            for (((differs, byte), head), same) in differs.iter_mut().zip(block).zip(head).zip(same)
            {
                *differs |= (byte ^ head) & same;
            }
        }
        differs == [0; BLOCK]
    }

    /// Why a candidate of the run's flow does not join it, if so (M2 to M10).
    pub(super) fn refuses(&self, varying: &Varying, data: &[u8]) -> Option<Counter> {
        if !self.is_same(data)
            && let Some(at) = self.difference(data)
        {
            return Some(self.reason_at(at));
        }
        self.refuses_varying(varying)
    }

    #[cold]
    fn reason_at(&self, at: usize) -> Counter {
        let Shape {
            l3, l4, is_ipv6, ..
        } = self.shape;
        let (l3, l4) = (usize::from(l3), usize::from(l4));
        if at >= l4 {
            Counter::EndTcpFields
        } else if !is_ipv6 && (l3 + 6..l3 + 8).contains(&at) {
            Counter::EndIpId
        } else {
            Counter::EndHeader
        }
    }

    /// The conditions on what may differ.
    #[inline(always)]
    fn refuses_varying(&self, varying: &Varying) -> Option<Counter> {
        if !self.ids.contains(&varying.id) && !self.shape.is_ipv6 {
            return Some(Counter::EndIpId);
        }
        if varying.payload > self.segment {
            return Some(Counter::EndLarger);
        }
        if varying.seq != self.seq && self.shape.is_tcp {
            return Some(Counter::EndSequence);
        }
        if self.frames >= self.limit || self.bytes + u32::from(varying.payload) > MAX_BYTES {
            return Some(Counter::EndSize);
        }
        None
    }

    /// What differs in a frame that is a candidate and joins the run, if it is seen at a glance; if not, it may join as well.
    #[inline(always)]
    pub(super) fn glance<B: PacketBuf>(&self, reader: &Reader, buf: &B) -> Option<Varying> {
        let data = buf.data();
        let Shape {
            l3,
            l4,
            payload,
            is_session,
            is_ipv6,
            is_tcp,
        } = self.shape;
        if buf.port() != self.port
            || is_session != reader.sessions
            || !buf.is_contiguous()
            || !self.is_same(data)
        {
            return None;
        }
        // The same shape; are the lengths as they must be?
        let (l3, l4, len) = (usize::from(l3), usize::from(l4), data.len());
        let packet = len - l3;
        let mut defects = 0;
        if is_session {
            defects |= word(data, l3 - PPP_LEN - 2)? ^ (packet + PPP_LEN);
        }
        let id = if is_ipv6 {
            defects |= word(data, l3 + 4)? ^ (packet - IPV6_LEN);
            0
        } else {
            defects |= word(data, l3 + 2)? ^ packet;
            // Right, and not the other way to write zero (C9).
            let right = ipv4_sum(data, l3)? == self.ipv4_sum;
            defects |= usize::from(!right | (word(data, l3 + 10)? == 0xffff));
            word(data, l3 + 4)? as u16
        };
        let (seq, flags) = if is_tcp {
            let high = word(data, l4 + 4)? as u32;
            let seq = high << 16 | word(data, l4 + 6)? as u32;
            (seq, *data.get(l4 + 13)?)
        } else {
            defects |= word(data, l4 + 4)? ^ (len - l4);
            defects |= usize::from(word(data, l4 + 6)? == 0);
            (0, 0)
        };
        let payload = len.checked_sub(usize::from(payload))?;
        let varying = Varying {
            len: len as u32,
            payload: payload as u16,
            id,
            seq,
            flags,
        };
        let joins = defects == 0 && payload != 0 && self.refuses_varying(&varying).is_none();
        (joins && reader.is_right(buf, &self.shape)).then_some(varying)
    }

    /// Takes a frame that joins. Why the run ends with it, if so (E2).
    #[inline(always)]
    pub(super) fn join(&mut self, varying: &Varying) -> Option<Counter> {
        if self.frames == 1 {
            self.is_rising = varying.id != self.ids[0];
        }
        self.frames += 1;
        self.bytes += u32::from(varying.payload);
        self.seq = varying.seq.wrapping_add(varying.payload.into());
        self.ids = [varying.id.wrapping_add(u16::from(self.is_rising)); 2];
        if varying.payload < self.segment {
            Some(Counter::EndShort)
        } else if varying.is_last() {
            Some(Counter::EndPush)
        } else if self.frames == self.limit || self.bytes == MAX_BYTES {
            Some(Counter::EndSize)
        } else {
            None
        }
    }
}

/// Copies the first blocks of a frame, which is as long as they are or ends in the last one.
#[inline]
fn copy_blocks(to: &mut Headers, count: u8, data: &[u8]) {
    let Some(to) = to.get_mut(..usize::from(count)) else {
        return;
    };
    let to = to.as_flattened_mut();
    let len = to.len().min(data.len());
    if let (Some(to), Some(from)) = (to.get_mut(..len), data.get(..len)) {
        to.copy_from_slice(from);
    }
}

/// The 16-bit field at `at`.
#[inline(always)]
fn word(data: &[u8], at: usize) -> Option<usize> {
    let field: &[u8; 2] = data.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*field).into())
}

/// Total length, identification and checksum of the IPv4 header at `l3`, modulo 65,535.
#[inline(always)]
fn ipv4_sum(data: &[u8], l3: usize) -> Option<u32> {
    let sum = word(data, l3 + 2)? + word(data, l3 + 4)? + word(data, l3 + 10)?;
    Some(sum as u32 % 0xffff)
}
