//! Fragmentation of IPv4 packets that are larger than what they leave by (RFC 791 section 3.2).
//!
//! The stages rewrite and count such a packet as any other and give it [`Verdict::Fragment`]; [`split`] makes the frames
//! that are sent. It copies, since this is no way for much traffic: hosts set "don't fragment" and are told the MTU.

use arrayvec::ArrayVec;
use bng_shm::Counter;
use bng_wire::ethernet::{self, ethertype};
use bng_wire::ipv4::{self, FLAG_DF, FLAG_MF, IPV4_MIN_LEN, OFFSET_MASK};
use bng_wire::pppoe::{PPP_LEN, PPPOE_LEN};
use bng_wire::{Ipv4Hdr, PppoeHdr, U16};
use zerocopy::FromBytes;

use crate::buffer::PacketBuf;
use crate::verdict::Verdict;
use crate::worker::Stages;

/// Fragments one packet becomes at most: the largest MRU's worth in sessions with the smallest, 9,592 by 128 bytes, is 93.
pub const MAX_FRAGMENTS: usize = 96;
/// Link layer, with the PPP protocol field, and IPv4 header at their longest.
const MAX_HEAD: usize = 30 + IPV4_MIN_LEN;

/// Where the buffers for all fragments but the first come from.
pub trait FragmentSource<B> {
    /// A buffer that holds `head` and `body` one after the other; `None` when there is none, or none so large.
    fn buffer(&mut self, head: &[u8], body: &[u8]) -> Option<B>;
}

/// The end of the stages for a packet that is too large for `port`, forwarded under `counter` all the same.
#[cold]
#[inline(never)]
pub(crate) fn later(stages: &Stages, counter: Counter, port: u8, mtu: u16) -> Verdict {
    stages.shm.count(counter, 1);
    Verdict::Fragment { port, mtu }
}

/// Splits a frame with [`Verdict::Fragment`] into frames whose packets have at most `mtu` bytes, in order; the first one
/// is the given buffer. The packet may be a fragment already.
///
/// # Errors
/// All of it is to be dropped for this reason: a buffer is missing, or the MTU is so small that there would be more than
/// [`MAX_FRAGMENTS`] (or none could hold eight bytes). The buffer is given back.
pub fn split<B: PacketBuf>(
    mut first: B,
    mtu: u16,
    source: &mut impl FragmentSource<B>,
) -> Result<ArrayVec<B, MAX_FRAGMENTS>, (B, Counter)> {
    let Some(plan) = Plan::of(first.data(), mtu) else {
        return Err((first, Counter::PacketTooBig));
    };
    let mut rest: ArrayVec<B, MAX_FRAGMENTS> = ArrayVec::new();
    let payload = first.data().get(plan.head_len..).unwrap_or(&[]);
    for (at, chunk) in payload.chunks(plan.step).enumerate().skip(1) {
        let is_last = (at + 1) * plan.step >= payload.len();
        let head = plan.head(at, chunk.len(), is_last);
        match source.buffer(head.get(..plan.head_len).unwrap_or(&[]), chunk) {
            Some(buf) => rest.push(buf),
            // What was made goes back with `rest`.
            None => return Err((first, Counter::FragmentNoBuffer)),
        }
    }
    let head = plan.head(0, plan.step, false);
    first.truncate(plan.head_len + plan.step);
    for (byte, new) in first
        .data_mut()
        .iter_mut()
        .zip(head.iter().take(plan.head_len))
    {
        *byte = *new;
    }
    let mut all = ArrayVec::new();
    all.push(first);
    all.extend(rest);
    Ok(all)
}

/// How a packet is split.
struct Plan {
    /// Link layer and IPv4 header of the whole packet.
    head: [u8; MAX_HEAD],
    head_len: usize,
    /// Offset of the IPv4 header.
    l3: usize,
    is_session: bool,
    /// Payload bytes of each fragment but the last.
    step: usize,
}

impl Plan {
    /// `None` when it cannot be done; the frame is one that the stages have written.
    fn of(frame: &[u8], mtu: u16) -> Option<Self> {
        let (link, rest) = ethernet::split(frame).ok()?;
        let is_session = link.ethertype == ethertype::PPPOE_SESSION;
        let ppp = if is_session { PPPOE_LEN + PPP_LEN } else { 0 };
        let l3 = link.payload + ppp;
        let packet = ipv4::parse(rest.get(ppp..)?).ok()?;
        let head_len = l3 + IPV4_MIN_LEN;
        let step = usize::from(mtu).checked_sub(IPV4_MIN_LEN)? & !7;
        let payload = packet.total_len - packet.header_len;
        let splits = packet.header_len == IPV4_MIN_LEN
            && step > 0
            && payload.div_ceil(step) <= MAX_FRAGMENTS
            // The padding is cut off, so that the frame ends where the packet does.
            && frame.len() == l3 + packet.total_len
            && payload > step;
        let mut head = [0; MAX_HEAD];
        head.get_mut(..head_len)?
            .copy_from_slice(frame.get(..head_len)?);
        splits.then_some(Self {
            head,
            head_len,
            l3,
            is_session,
            step,
        })
    }

    /// The headers of fragment `at`, with `len` bytes of payload.
    fn head(&self, at: usize, len: usize, is_last: bool) -> [u8; MAX_HEAD] {
        let mut head = self.head;
        // Both fit 16 bits: no fragment is longer than the packet.
        let packet_len = (IPV4_MIN_LEN + len) as u16;
        let units = (at * self.step / 8) as u16;
        if let Some(bytes) = head.get_mut(self.l3..)
            && let Ok((ip, _)) = Ipv4Hdr::mut_from_prefix(bytes)
        {
            let whole = ip.frag.get();
            let offset = (whole & OFFSET_MASK).wrapping_add(units) & OFFSET_MASK;
            // The last piece of a fragment has more behind it if the fragment had.
            let more = if is_last { whole & FLAG_MF } else { FLAG_MF };
            ip.frag
                .set(whole & !(FLAG_DF | FLAG_MF | OFFSET_MASK) | more | offset);
            ip.total_len.set(packet_len);
            ip.checksum = U16::ZERO;
            let check = bng_wire::checksum::checksum(zerocopy::IntoBytes::as_bytes(ip));
            ip.checksum.set(check);
        }
        if self.is_session
            && let Some(bytes) = head.get_mut(self.l3 - PPPOE_LEN - PPP_LEN..)
            && let Ok((pppoe, _)) = PppoeHdr::mut_from_prefix(bytes)
        {
            pppoe.length.set(packet_len + PPP_LEN as u16);
        }
        head
    }
}
