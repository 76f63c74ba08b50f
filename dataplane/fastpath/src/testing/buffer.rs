//! A packet buffer in ordinary memory.

use crate::fragment::FragmentSource;
use crate::segment::SegmentSource;
use crate::{L4Verdict, PacketBuf};

/// Bytes with headroom, as an mbuf has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestBuf {
    bytes: Vec<u8>,
    start: usize,
    port: u8,
    segmented: bool,
    l4: L4Verdict,
    mark: u32,
}

impl TestBuf {
    /// Headroom of a new buffer, as DPDK's default.
    pub const HEADROOM: usize = 128;

    /// A frame received on `port`.
    #[must_use]
    pub fn new(port: u8, frame: &[u8]) -> Self {
        Self::with_headroom(port, frame, Self::HEADROOM)
    }

    /// A frame with `headroom` bytes in front.
    #[must_use]
    pub fn with_headroom(port: u8, frame: &[u8], headroom: usize) -> Self {
        let mut bytes = vec![0; headroom];
        bytes.extend_from_slice(frame);
        Self {
            bytes,
            start: headroom,
            port,
            segmented: false,
            l4: L4Verdict::Unknown,
            mark: 0,
        }
    }

    /// The same frame, said to be spread over several segments.
    #[must_use]
    pub fn segmented(mut self) -> Self {
        self.segmented = true;
        self
    }

    /// The same frame, of which the port says this about its TCP or UDP checksum.
    #[must_use]
    pub fn with_l4_verdict(mut self, verdict: L4Verdict) -> Self {
        self.l4 = verdict;
        self
    }

    /// The same frame with a mark by which a test knows it again.
    #[must_use]
    pub fn marked(mut self, mark: u32) -> Self {
        self.mark = mark;
        self
    }

    /// The mark; 0 without one.
    #[must_use]
    pub fn mark(&self) -> u32 {
        self.mark
    }

    /// Puts `frame` into this buffer again, with [`Self::HEADROOM`] in front, without a new allocation when it
    /// fits (for benchmarks).
    pub fn refill(&mut self, port: u8, frame: &[u8]) {
        self.bytes.resize(Self::HEADROOM + frame.len(), 0);
        self.bytes[Self::HEADROOM..].copy_from_slice(frame);
        (self.start, self.port, self.segmented) = (Self::HEADROOM, port, false);
        (self.l4, self.mark) = (L4Verdict::Unknown, 0);
    }
}

impl PacketBuf for TestBuf {
    #[inline(always)]
    fn data(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    #[inline(always)]
    fn data_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }

    #[inline(always)]
    fn port(&self) -> u8 {
        self.port
    }

    #[inline(always)]
    fn set_port(&mut self, port: u8) {
        self.port = port;
    }

    #[inline(always)]
    fn trim_front(&mut self, len: usize) {
        assert!(len <= self.data().len(), "trimmed more than there is");
        self.start += len;
    }

    #[inline(always)]
    fn prepend(&mut self, len: usize) -> bool {
        match self.start.checked_sub(len) {
            Some(start) => {
                self.start = start;
                true
            }
            None => false,
        }
    }

    #[inline(always)]
    fn truncate(&mut self, len: usize) {
        self.bytes.truncate(self.start + len);
    }

    #[inline(always)]
    fn reframe(&mut self, front: isize, len: usize) -> bool {
        let Some(start) = self.start.checked_add_signed(front) else {
            return false;
        };
        let Some(end) = start
            .checked_add(len)
            .filter(|end| *end <= self.bytes.len())
        else {
            return false;
        };
        self.start = start;
        self.bytes.truncate(end);
        true
    }

    #[inline(always)]
    fn is_contiguous(&self) -> bool {
        !self.segmented
    }

    #[inline(always)]
    fn l4_verdict(&self) -> L4Verdict {
        self.l4
    }

    #[inline(always)]
    fn prefetch(&self) {
        if let Some(first) = self.data().first() {
            bng_shm::prefetch(first);
        }
    }
}

/// A pool with so many buffers left.
#[derive(Debug, Clone, Copy)]
pub struct TestPool {
    /// Buffers it still gives.
    pub left: usize,
}

impl FragmentSource<TestBuf> for TestPool {
    fn buffer(&mut self, head: &[u8], body: &[u8]) -> Option<TestBuf> {
        self.left = self.left.checked_sub(1)?;
        Some(TestBuf::new(0, &[head, body].concat()))
    }
}

impl SegmentSource<TestBuf> for TestPool {
    fn buffer(&mut self, len: usize) -> Option<TestBuf> {
        self.left = self.left.checked_sub(1)?;
        Some(TestBuf::new(0, &vec![0; len]))
    }
}
