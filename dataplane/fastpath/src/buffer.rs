//! What the stages need of a packet buffer. The DPDK mbuf and the test buffer implement it.

/// Packets in a burst: the unit of work of every stage.
pub const BURST: usize = 32;

/// What the port says about the TCP or UDP checksum of a received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum L4Verdict {
    /// Nothing: it did not look, or looked at another layer.
    #[default]
    Unknown,
    /// It is right.
    Good,
    /// It is wrong.
    Bad,
}

/// A packet buffer that starts at the Ethernet header.
pub trait PacketBuf {
    /// The frame, from the Ethernet header on. Only the first segment of a segmented buffer.
    fn data(&self) -> &[u8];

    /// The frame, writable.
    fn data_mut(&mut self) -> &mut [u8];

    /// Index (among all ports) of the port the frame was received on; kept by a hand-over.
    fn port(&self) -> u8;

    /// Sets what [`Self::port`] says.
    fn set_port(&mut self, port: u8);

    /// Removes `len` bytes at the front. `len` is at most the length of [`Self::data`].
    fn trim_front(&mut self, len: usize);

    /// Makes room for `len` bytes in front of the frame, of any content; false (nothing changed) when the
    /// headroom is too small.
    fn prepend(&mut self, len: usize) -> bool;

    /// Shortens the frame to `len` bytes; a longer `len` changes nothing.
    fn truncate(&mut self, len: usize);

    /// Moves the start of the frame by `front` bytes (into the headroom when it is negative) and makes it `len` bytes
    /// long; false (nothing changed) when the headroom is too small or the frame would end behind its old end.
    fn reframe(&mut self, front: isize, len: usize) -> bool;

    /// Whether the whole frame lies in one segment.
    fn is_contiguous(&self) -> bool;

    /// What the port found about the TCP or UDP checksum of this very frame. Meaningful as long as the frame is as it was
    /// received.
    fn l4_verdict(&self) -> L4Verdict {
        L4Verdict::Unknown
    }

    /// Prefetches the first cache line of the frame.
    fn prefetch(&self);
}
