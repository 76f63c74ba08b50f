//! Super-packets as mbufs: the first frame, whole, and the payloads of the others chained behind it.

use crate::frame::Frame;
use arrayvec::ArrayVec;
use bng_fastpath::PacketBuf;
use bng_fastpath::coalesce::{Ids, Run};
use bng_fastpath::merge::Merged;
use bng_fastpath::segment::{Cut, Cwr, How, Layout, Segmenter};
use rte_rs::{Chain, Mbuf, Mempool, TxLengths, ol_flags};

pub use bng_fastpath::merge::Checksums;

/// Makes one packet of the frames of a run, which must be finished (rewritten, all for the same way out). Payload is not
/// copied. The packet says what it is with its transmit flags and lengths, so [`Mbuf::frames`] and [`Mbuf::frame_bytes`]
/// count the frames; it keeps the port of the first.
///
/// `None`, and the frames stay as they are, if they are not exactly what cutting the packet would give ([`Merged::of`]).
///
/// Not for runs whose TCP and UDP checksums nobody has verified (C17): the receiver computes them anew.
pub fn build(run: &Run, frames: &mut Vec<Frame>, checksums: Checksums) -> Option<Mbuf> {
    if !frames.iter().all(Frame::is_contiguous) {
        return None;
    }
    let merged = Merged::of(run, frames.iter().map(Frame::data))?;
    let layout = merged.layout();
    let headers = layout.header_len();
    let mut frames = frames.drain(..);
    let mut first = frames.next()?;
    merged.write(first.data_mut(), checksums);
    let mut chain = Chain::new(first.into());
    for mut frame in frames {
        // All frames have these headers, and a run has few frames beside what a chain takes.
        frame.trim_front(headers);
        let _ = chain.push(frame.into());
    }
    let mut mbuf = chain.finish();
    // At most 14, 40 and 60 bytes.
    mbuf.set_tx_lengths(TxLengths {
        l2: layout.l3() as u16,
        l3: (layout.l4() - layout.l3()) as u16,
        l4: (headers - layout.l4()) as u16,
        segment: merged.segment(),
    });
    mbuf.set_ol_flags(flags(&layout, checksums));
    Some(mbuf)
}

/// Buffers of a super-packet at most: one for each frame of the longest run (`coalescing.max_frames`).
pub(crate) const PIECES: usize = 128;

/// Makes frames of what [`build`] has made, whatever a driver has written into its checksums since. What there is no buffer
/// for is lost alone (S8).
pub fn cut(packet: &Mbuf, pool: &mut Mempool, each: impl FnMut(Frame)) -> Cut {
    let none = Cut {
        made: 0,
        lost: packet.frames() as usize,
    };
    let mut pieces: ArrayVec<&[u8], PIECES> = ArrayVec::new();
    if packet
        .segments()
        .any(|piece| pieces.try_push(piece).is_err())
    {
        return none;
    }
    // As it is merged: without CWR.
    let how = How {
        segment: packet.tx_lengths().segment,
        ids: Ids::Rising,
        cwr: Cwr::Every,
    };
    let segmenter = pieces
        .split_first()
        .and_then(|(first, others)| Segmenter::new(first, others, how).ok());
    segmenter.map_or(none, |segmenter| segmenter.frames(pool, each))
}

fn flags(layout: &Layout, checksums: Checksums) -> u64 {
    let segmentation = if layout.is_tcp() {
        ol_flags::TX_TCP_SEG
    } else {
        ol_flags::TX_UDP_SEG
    };
    let family = match (layout.is_ipv6(), checksums) {
        (true, _) => ol_flags::TX_IPV6,
        (false, Checksums::Port { ipv4: true }) => ol_flags::TX_IPV4 | ol_flags::TX_IP_CKSUM,
        (false, _) => ol_flags::TX_IPV4,
    };
    segmentation | family
}
