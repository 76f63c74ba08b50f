//! One run, and whether a frame joins it (sections 5 and 6 of the rules).
//!
//! A run keeps the headers of its head and expects a frame as large as that, in sequence. Nearly always that is the frame that
//! comes, and then all that is compared are words. If not, a mask says what must be the same in all its frames: everything but
//! lengths, identification, checksums, sequence number, FIN and PSH. If that fails too somebody asks which field it was, to
//! count the reason. (What is expected is not written into the headers: the next comparison would have to wait for it.)

use bng_shm::Counter;
use bng_wire::ipv6::IPV6_LEN;
use bng_wire::l4::tcp_flag::{CWR, FIN, PSH};
use bng_wire::pppoe::PPP_LEN;
use bng_wire::{TcpHdr, U16, UdpHdr};
use zerocopy::FromBytes;

use super::frame::{Candidate, Reader, Shape, Varying};
use super::headers::{BLOCK, BLOCKS, Headers, Lengths, copy_blocks, words};
use super::held::Seen;
use super::key::Key;
use crate::buffer::PacketBuf;

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
    /// The frame that is expected next.
    next: Varying,
    /// How much the identification rises with each frame: 1 or 0, and at first a guess.
    step: u16,
    /// What is remembered of the last frame.
    pub(super) seen: Seen,
    /// Total length, identification and header checksum of an IPv4 head, added modulo 65,535: with all else the same,
    /// it is the same in every packet with a right checksum.
    ipv4_sum: u32,
    /// When the head arrived.
    pub(super) arrived_ns: u64,
    /// The burst in which a frame of the run was seen first, and the frame's place there.
    pub(super) first_seen: (u32, u8),
    /// Blocks the headers fill.
    blocks: u8,
    headers: Headers,
    /// Which bits of them the expected frame has: all but identification, checksums and sequence number.
    exact: Headers,
    /// Which bits of them all frames of the run have.
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
        next: Varying::NOTHING,
        step: 0,
        seen: Seen::NOTHING,
        ipv4_sum: 0,
        arrived_ns: 0,
        first_seen: (0, 0),
        blocks: 0,
        headers: [[0; BLOCK]; BLOCKS],
        exact: [[0; BLOCK]; BLOCKS],
        same: [[0; BLOCK]; BLOCKS],
    };

    /// Starts anew with this head (E1). `data` is its frame; of the key, only the caller knows.
    #[inline]
    pub(super) fn start(&mut self, port: u8, head: &Candidate, data: &[u8], max_frames: u16) {
        let Candidate { shape, varying } = head;
        let headers = usize::from(shape.payload);
        if self.shape != *shape {
            self.shape = *shape;
            self.blocks = headers.div_ceil(BLOCK) as u8;
            self.set_mask(headers);
        }
        self.copy_headers(data);
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
        self.step = u16::from(!shape.is_ipv6);
        self.seen = Seen {
            len: varying.len,
            payload: varying.payload,
            is_tcp: shape.is_tcp,
            is_ipv6: shape.is_ipv6,
            has_cwr: varying.flags & CWR != 0,
            is_rising: !shape.is_ipv6,
        };
        self.ipv4_sum = Lengths::at(data, l3).map_or(0, Lengths::ipv4_sum);
        self.next = *varying;
        self.expect();
    }

    /// Keeps the headers, and what is behind them up to the end of their last block.
    #[inline]
    fn copy_headers(&mut self, data: &[u8]) {
        let count = usize::from(self.blocks);
        let (blocks, _) = data.as_chunks::<BLOCK>();
        if let (Some(blocks), Some(head)) = (blocks.get(..count), self.headers.get_mut(..count)) {
            for (head, block) in head.iter_mut().zip(blocks) {
                *head = *block;
            }
        } else {
            copy_blocks(&mut self.headers, self.blocks, data);
        }
    }

    /// What must be the same in all frames of the run. Most runs have the shape of the one before in the same slot.
    #[cold]
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
        let clear = |mask: &mut Headers, at: usize| {
            if let Some(field) = mask.as_flattened_mut().get_mut(at..at + 2) {
                field.fill(0);
            }
        };
        self.exact = [[0; BLOCK]; BLOCKS];
        if let Some(bytes) = self.exact.as_flattened_mut().get_mut(..headers) {
            bytes.fill(0xff);
        }
        if !is_ipv6 {
            clear(&mut self.exact, l3 + 4);
            clear(&mut self.exact, l3 + 10);
        }
        if is_tcp {
            clear(&mut self.exact, l4 + 4);
            clear(&mut self.exact, l4 + 6);
        }
        clear(&mut self.exact, l4 + if is_tcp { 16 } else { 6 });
        self.same = self.exact;
        if is_session {
            clear(&mut self.same, l3 - PPP_LEN - 2);
        }
        clear(&mut self.same, l3 + if is_ipv6 { 4 } else { 2 });
        if !is_tcp {
            clear(&mut self.same, l4 + 4);
        } else if let Some(flags) = self.same.as_flattened_mut().get_mut(l4 + 13) {
            // CWR, ECE and AE split, as TOS does (E5, M7).
            *flags = !(FIN | PSH);
        }
    }

    /// The first byte of the headers in which a frame differs from the head though it must not (M1, M2, M6, M7). If there is
    /// none the frame has the head's shape, since all bytes that make the shape are among those compared.
    #[inline]
    fn difference(&self, data: &[u8]) -> Option<usize> {
        let mut headers = [[0; BLOCK]; BLOCKS];
        copy_blocks(&mut headers, self.blocks, data);
        let rows = headers
            .as_flattened()
            .iter()
            .zip(self.headers.as_flattened());
        let mut rows = rows
            .zip(self.same.as_flattened())
            .take(usize::from(self.blocks) * BLOCK);
        rows.position(|((byte, head), same)| (byte ^ head) & same != 0)
    }

    /// Whether a frame, which is at least as long as the blocks, has the headers but for what a mask leaves out.
    #[inline(always)]
    fn has_headers(&self, data: &[u8], mask: &Headers) -> bool {
        let count = usize::from(self.blocks);
        let (blocks, _) = data.as_chunks::<BLOCK>();
        let (Some(blocks), Some(headers), Some(mask)) = (
            blocks.get(..count),
            self.headers.get(..count),
            mask.get(..count),
        ) else {
            return false;
        };
        let mut blocks = blocks.iter().zip(headers).zip(mask);
        blocks.all(|((block, headers), mask)| {
            let mut differences = 0;
            for ((block, headers), mask) in words(block).zip(words(headers)).zip(words(mask)) {
                differences |= (block ^ headers) & mask;
            }
            differences == 0
        })
    }

    /// Why a candidate of the run's flow does not join it, if so (M2 to M10).
    pub(super) fn refuses(&self, varying: &Varying, data: &[u8]) -> Option<Counter> {
        if !self.has_headers(data, &self.same)
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

    /// The conditions on what may differ (M3 to M5, M8 to M10; of a full-size frame for which there is no room, E3).
    #[inline(always)]
    fn refuses_varying(&self, varying: &Varying) -> Option<Counter> {
        // The second frame may also have the head's (M3).
        let other = match self.frames {
            1 => self.next.id.wrapping_sub(self.step),
            _ => self.next.id,
        };
        if varying.id != self.next.id && varying.id != other {
            return Some(Counter::EndIpId);
        }
        if varying.payload > self.segment {
            return Some(Counter::EndLarger);
        }
        if varying.seq != self.next.seq && self.shape.is_tcp {
            return Some(Counter::EndSequence);
        }
        if self.frames >= self.limit || self.bytes + u32::from(varying.payload) > MAX_BYTES {
            return Some(Counter::EndSize);
        }
        None
    }

    /// Whether a frame is the one that is expected, and a candidate. It is of the same kind, session frame or plain.
    #[inline(always)]
    pub(super) fn expects<B: PacketBuf>(&self, reader: &Reader, buf: &B) -> bool {
        let data = buf.data();
        data.len() == self.next.len as usize
            && buf.port() == self.port
            && self.bytes + u32::from(self.next.payload) <= MAX_BYTES
            && buf.is_contiguous()
            && self.has_headers(data, &self.exact)
            && self.is_in_sequence(data).is_some()
            && reader.is_right(buf, &self.shape)
    }

    /// Identification, header checksum and sequence number of a frame that has the rest of the headers. A UDP frame must have a
    /// checksum (C16).
    #[inline(always)]
    fn is_in_sequence(&self, data: &[u8]) -> Option<()> {
        let Shape {
            l3,
            l4,
            is_ipv6,
            is_tcp,
            ..
        } = self.shape;
        if !is_ipv6 {
            let lengths = Lengths::at(data, l3.into())?;
            if lengths.id.get() != self.next.id || lengths.check.get() != self.next.check {
                return None;
            }
        }
        let l4 = data.get(usize::from(l4)..)?;
        let fits = if is_tcp {
            let (tcp, _) = TcpHdr::ref_from_prefix(l4).ok()?;
            tcp.seq.get() == self.next.seq
        } else {
            let (udp, _) = UdpHdr::ref_from_prefix(l4).ok()?;
            udp.checksum != U16::ZERO
        };
        fits.then_some(())
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
            || !self.has_headers(data, &self.same)
        {
            return None;
        }
        // The same shape; are the lengths as they must be?
        let (l3, l4, len) = (usize::from(l3), usize::from(l4), data.len());
        let lengths = Lengths::at(data, l3)?;
        let packet = len - l3;
        let mut defects = if is_session {
            usize::from(lengths.pppoe.get()) ^ (packet + PPP_LEN)
        } else {
            0
        };
        let (id, check) = if is_ipv6 {
            defects |= usize::from(lengths.id.get()) ^ (packet - IPV6_LEN);
            (0, 0)
        } else {
            defects |= usize::from(lengths.total.get()) ^ packet;
            // Right, and not the other way to write zero (C9).
            let wrong = lengths.ipv4_sum() != self.ipv4_sum;
            defects |= usize::from(wrong | (lengths.check == U16::new(u16::MAX)));
            (lengths.id.get(), lengths.check.get())
        };
        let (seq, flags) = if is_tcp {
            let (tcp, _) = TcpHdr::ref_from_prefix(data.get(l4..)?).ok()?;
            (tcp.seq.get(), tcp.flags())
        } else {
            let (udp, _) = UdpHdr::ref_from_prefix(data.get(l4..)?).ok()?;
            defects |= usize::from(udp.length.get()) ^ (len - l4);
            defects |= usize::from(udp.checksum == U16::ZERO);
            (0, 0)
        };
        let payload = len.checked_sub(usize::from(payload))?;
        let varying = Varying {
            len: len as u32,
            payload: payload as u16,
            id,
            check,
            seq,
            flags,
        };
        let joins = defects == 0 && payload != 0 && self.refuses_varying(&varying).is_none();
        (joins && reader.is_right(buf, &self.shape)).then_some(varying)
    }

    /// Takes a frame that joins. Why the run ends with it, if so (E2).
    #[inline]
    pub(super) fn join(&mut self, varying: &Varying) -> Option<Counter> {
        if self.frames == 1 && varying.id != self.next.id {
            (self.step, self.seen.is_rising) = (0, false);
        }
        (self.seen.len, self.seen.payload) = (varying.len, varying.payload);
        self.next = *varying;
        let ends = self.join_expected();
        if varying.payload < self.segment {
            Some(Counter::EndShort)
        } else if varying.is_last() {
            Some(Counter::EndPush)
        } else {
            ends
        }
    }

    /// As [`Self::join`], for the frame that is expected.
    #[inline(always)]
    pub(super) fn join_expected(&mut self) -> Option<Counter> {
        self.frames += 1;
        self.bytes += u32::from(self.next.payload);
        if self.frames == self.limit || self.bytes == MAX_BYTES {
            return Some(Counter::EndSize);
        }
        self.expect();
        None
    }

    /// Goes from the last frame to the one expected after it, which is as large as the head.
    #[inline(always)]
    fn expect(&mut self) {
        let next = &mut self.next;
        if self.step != 0 {
            // One more in the sum is one less in its complement, whose zero is never written as all ones; 2^16 is 1 in this
            // arithmetic, so nothing changes when the identification goes back to 0 (RFC 1071).
            next.check = match (next.id, next.check) {
                (u16::MAX, check) => check,
                (_, 0) => 0xfffe,
                (_, check) => check - 1,
            };
            next.id = next.id.wrapping_add(1);
        }
        next.seq = next.seq.wrapping_add(next.payload.into());
    }
}
