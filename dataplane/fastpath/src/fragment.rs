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

/// Payload of the longest datagram, bytes.
const MAX_DATAGRAM: usize = u16::MAX as usize - IPV4_MIN_LEN;

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
/// All of it is to be dropped for this reason: a buffer is missing, the MTU is so small that there would be more than
/// [`MAX_FRAGMENTS`] (or none could hold eight bytes), or the packet is a fragment of no possible datagram. The buffer is
/// given back.
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
        // A fragment that reaches beyond the longest datagram belongs to none ("ping of death"); its pieces would have
        // offsets that begin again at 0, past every filter.
        let end = usize::from(packet.frag & OFFSET_MASK) * 8 + payload;
        let splits = packet.header_len == IPV4_MIN_LEN
            && step > 0
            && end <= MAX_DATAGRAM
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestBuf, TestPool, assert_checksums, ethernet, pppoe_session, udp};
    use bng_wire::{MacAddr, VlanStack, VlanTag, pppoe};
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn packet(payload: usize, frag: u16) -> Vec<u8> {
        let ip = Ipv4Addr::new(10, 0, 0, 1);
        let bytes: Vec<u8> = (0..payload).map(|at| at as u8).collect();
        let mut packet = udp((ip, 1), (ip, 2), &bytes);
        packet[6..8].copy_from_slice(&frag.to_be_bytes());
        packet[10..12].fill(0);
        let check = bng_wire::checksum::checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&check.to_be_bytes());
        packet
    }

    fn session_frame(packet: &[u8]) -> TestBuf {
        let tag = |tpid, tci| VlanTag { tpid, tci };
        let tags = VlanStack::double(tag(ethertype::QINQ, 7), tag(ethertype::VLAN, 9));
        TestBuf::new(
            0,
            &pppoe_session(A, B, &tags, 5, pppoe::protocol::IPV4, packet),
        )
    }

    fn core_frame(packet: &[u8]) -> TestBuf {
        TestBuf::new(2, &ethernet(A, B, ethertype::IPV4, packet))
    }

    /// Link layer and packet of a frame; in a session's the PPPoE length must be the packet's.
    fn apart(frame: &TestBuf) -> (&[u8], &[u8]) {
        let (link, rest) = ethernet::split(frame.data()).unwrap();
        if link.ethertype != ethertype::PPPOE_SESSION {
            return frame.data().split_at(link.payload);
        }
        let ppp = pppoe::parse_session(rest).unwrap();
        assert_eq!(
            ppp.payload.len(),
            rest.len() - 8,
            "nothing behind the packet"
        );
        frame.data().split_at(link.payload + 8)
    }

    /// Puts fragments together as a host does (RFC 791); returns flags and offset of the whole, and its payload.
    fn reassembled(frames: &[TestBuf]) -> (u16, Vec<u8>) {
        let headers: Vec<_> = frames
            .iter()
            .map(|f| ipv4::parse(apart(f).1).unwrap())
            .collect();
        let first = headers[0].frag & OFFSET_MASK;
        let mut payload = Vec::new();
        for (frame, header) in frames.iter().zip(&headers) {
            let units = usize::from(header.frag & OFFSET_MASK) - usize::from(first);
            assert_eq!(units * 8, payload.len(), "in order, no gap, no overlap");
            assert!(!header.dont_fragment());
            payload.extend(&apart(frame).1[20..header.total_len]);
        }
        let (last, before) = headers.split_last().unwrap();
        assert!(before.iter().all(|header| header.frag & FLAG_MF != 0));
        (last.frag & FLAG_MF | first, payload)
    }

    #[test]
    fn a_buffer_that_is_missing_drops_all_of_it() {
        let frame = session_frame(&packet(3_000, 0));
        for left in [0, 1] {
            let (back, reason) = split(frame.clone(), 1_492, &mut TestPool { left }).unwrap_err();
            assert_eq!((back, reason), (frame.clone(), Counter::FragmentNoBuffer));
        }
        let frames = split(frame, 1_492, &mut TestPool { left: 2 }).unwrap();
        assert_eq!(frames.len(), 3);
    }

    #[test]
    fn an_mtu_without_room_for_eight_bytes_or_for_too_many_fragments_drops() {
        let frame = core_frame(&packet(9_000, 0));
        for mtu in [0, 19, 20, 27, 28, 68] {
            let refused = split(frame.clone(), mtu, &mut TestPool { left: 1_000 });
            assert_eq!(refused.unwrap_err().1, Counter::PacketTooBig, "{mtu}");
        }
        let frames = split(frame, 128, &mut TestPool { left: 1_000 }).unwrap();
        assert_eq!(frames.len(), 87);
    }

    #[test]
    fn a_fragment_that_reaches_beyond_the_longest_datagram_is_not_split() {
        // The last offset at which 3,000 bytes of payload fit: 62,512 + 3,000 <= 65,515.
        let (fits, beyond) = (62_512 / 8, 62_520 / 8);
        for (offset, is_split) in [(fits, true), (beyond, false), (OFFSET_MASK, false)] {
            let frame = core_frame(&packet(2_992, offset));
            let result = split(frame, 1_500, &mut TestPool { left: 10 });
            assert_eq!(result.is_ok(), is_split, "{offset}");
            let reason = result.err().map(|(_, reason)| reason);
            assert_eq!(reason, (!is_split).then_some(Counter::PacketTooBig));
        }
    }

    proptest! {
        #[test]
        fn fragments_are_the_packet_again(
            payload in 200usize..4_000, mtu in 100u16..1_500, offset in 0u16..3_000, more: bool, session: bool,
        ) {
            let frag = offset | if more { FLAG_MF } else { 0 };
            let packet = packet(payload, frag);
            let frame = if session { session_frame(&packet) } else { core_frame(&packet) };
            prop_assume!(packet.len() > usize::from(mtu));
            let frames = split(frame.clone(), mtu, &mut TestPool { left: 100 }).unwrap();
            for piece in &frames {
                let (link, bytes) = apart(piece);
                prop_assert!(bytes.len() <= usize::from(mtu));
                assert_checksums(bytes);
                let same = if session { link.len() - 4 } else { link.len() };
                prop_assert_eq!(&link[..same], &apart(&frame).0[..same]);
                prop_assert_eq!(&bytes[4..6], &packet[4..6], "identification");
                prop_assert_eq!((&bytes[8..10], &bytes[12..20]), (&packet[8..10], &packet[12..20]));
            }
            prop_assert_eq!(reassembled(&frames), (frag, packet[20..].to_vec()));
        }
    }
}
