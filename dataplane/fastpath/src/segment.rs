//! Segmentation: a super-packet is cut into the frames it stands for (P1, S1 to S8, S10).
//!
//! Two come here: the kernel's own, from a TAP twin with offloads, and merged runs that turn out to leave by something that
//! takes frames only. What a super-packet's headers say about lengths is not believed (H2): the segment size is given, the
//! payload is what is there (P2).

pub(crate) mod layout;

pub(crate) use layout::{FIN, PSH};
pub use layout::{Layout, NotSegmentable};

use crate::buffer::PacketBuf;
use crate::coalesce::Ids;
use layout::Place;

/// On which segments of a super-packet with CWR the flag is (S4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cwr {
    /// On all: every frame of the run had it.
    Every,
    /// On the first: the super-packet is of a host that leaves it to us to send the flag once (RFC 3168 section 6.1.2).
    First,
}

/// What the headers of a super-packet do not say (H1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct How {
    /// Payload bytes of every segment but the last, at least 1.
    pub segment: u16,
    /// How the IPv4 identification goes on (S2).
    pub ids: Ids,
    /// Where CWR is (S4).
    pub cwr: Cwr,
}

/// Where the buffers for segments come from.
pub trait SegmentSource<B> {
    /// A buffer that holds `len` bytes of any content; `None` when there is none, or none so large.
    fn buffer(&mut self, len: usize) -> Option<B>;
}

/// What became of the segments of a super-packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cut {
    /// Frames made.
    pub made: usize,
    /// Segments there was no buffer for (S8).
    pub lost: usize,
}

/// A super-packet to be cut: its headers, and its payload in one piece or several.
#[derive(Debug, Clone, Copy)]
pub struct Segmenter<'a> {
    layout: Layout,
    how: How,
    head: &'a [u8],
    /// The payload: this, and then the others.
    first: &'a [u8],
    others: &'a [&'a [u8]],
    payload: usize,
}

impl<'a> Segmenter<'a> {
    /// The packet that begins with `first`, which holds all headers, and goes on with `others`.
    ///
    /// A packet whose payload is not larger than the segment size is one frame, as it is (S7), with its lengths and
    /// checksums made right.
    ///
    /// # Errors
    /// [`NotSegmentable`].
    pub fn new(first: &'a [u8], others: &'a [&'a [u8]], how: How) -> Result<Self, NotSegmentable> {
        let layout = Layout::of(first)?;
        // Both parts are there: the layout is that of these bytes.
        let (head, first) = first.split_at(layout.header_len());
        let payload = first.len() + others.iter().map(|part| part.len()).sum::<usize>();
        if payload == 0 {
            return Err(NotSegmentable::NoPayload);
        }
        if how.segment == 0 {
            return Err(NotSegmentable::NoSegmentSize);
        }
        let longest = payload.min(usize::from(how.segment));
        if !layout.fits(longest) {
            return Err(NotSegmentable::SegmentTooLong);
        }
        Ok(Self {
            layout,
            how,
            head,
            first,
            others,
            payload,
        })
    }

    /// Where its headers lie.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Number of segments: payload by segment size, rounded up (S6).
    #[must_use]
    #[allow(
        clippy::len_without_is_empty,
        reason = "a super-packet has a payload, so there is always a segment"
    )]
    pub fn len(&self) -> usize {
        self.payload.div_ceil(usize::from(self.how.segment))
    }

    /// Length of the frame of segment `at`, bytes; of one that does not exist, that of the headers.
    #[must_use]
    pub fn frame_len(&self, at: usize) -> usize {
        self.head.len() + self.payload_len(at)
    }

    fn payload_len(&self, at: usize) -> usize {
        let segment = usize::from(self.how.segment);
        self.payload
            .saturating_sub(at.saturating_mul(segment))
            .min(segment)
    }

    /// Writes the frame of segment `at` into `frame`, whose length is [`Self::frame_len`]. `false`, and nothing of use
    /// written, when it is not, or the segment does not exist.
    #[must_use]
    pub fn write(&self, at: usize, frame: &mut [u8]) -> bool {
        let len = self.payload_len(at);
        let Some((head, body)) = frame.split_at_mut_checked(self.head.len()) else {
            return false;
        };
        if len == 0 || body.len() != len {
            return false;
        }
        let offset = at * usize::from(self.how.segment);
        head.copy_from_slice(self.head);
        self.copy_payload(offset, body);
        let place = Place {
            index: at,
            offset,
            payload: len,
            is_last: offset + len == self.payload,
        };
        self.layout.write_segment(head, &place, &self.how);
        self.layout.write_l4_checksum(frame);
        true
    }

    /// Copies payload from `offset` on until `out` is full.
    fn copy_payload(&self, mut offset: usize, mut out: &mut [u8]) {
        for part in std::iter::once(&self.first).chain(self.others) {
            let Some(rest) = part.get(offset..) else {
                offset -= part.len();
                continue;
            };
            offset = 0;
            let (now, later) = out.split_at_mut(rest.len().min(out.len()));
            now.copy_from_slice(rest.get(..now.len()).unwrap_or(&[]));
            out = later;
            if out.is_empty() {
                return;
            }
        }
    }

    /// Segment `at` in a buffer of its own; `None` when there is none, or no such segment.
    pub fn frame<B: PacketBuf>(&self, at: usize, source: &mut impl SegmentSource<B>) -> Option<B> {
        let mut buffer = source.buffer(self.frame_len(at))?;
        self.write(at, buffer.data_mut()).then_some(buffer)
    }

    /// All segments, in order and back to back. One that there is no buffer for is lost alone (S8).
    pub fn frames<B: PacketBuf>(
        &self,
        source: &mut impl SegmentSource<B>,
        mut each: impl FnMut(B),
    ) -> Cut {
        let mut cut = Cut::default();
        for at in 0..self.len() {
            match self.frame(at, source) {
                Some(frame) => {
                    each(frame);
                    cut.made += 1;
                }
                None => cut.lost += 1,
            }
        }
        cut
    }
}

#[cfg(test)]
mod tests;
