//! The DPDK packet buffer as the stages see it.

use bng_fastpath::fragment::FragmentSource;
use bng_fastpath::{L4Verdict, PacketBuf};
use bytemuck::TransparentWrapper;
use rte_rs::{Burst, Mbuf, Mempool, RxChecksum};

/// An mbuf that the stages can work on. The same memory, another type.
#[derive(Debug, TransparentWrapper)]
#[repr(transparent)]
pub struct Frame(Mbuf);

impl Frame {
    /// A burst of mbufs as frames, in place.
    #[inline]
    pub fn of_burst<const N: usize>(burst: &mut Burst<N>) -> &mut [Frame] {
        Self::wrap_slice_mut(burst.as_mut_slice())
    }
}

impl From<Mbuf> for Frame {
    #[inline]
    fn from(mbuf: Mbuf) -> Self {
        Self(mbuf)
    }
}

impl From<Frame> for Mbuf {
    #[inline]
    fn from(frame: Frame) -> Self {
        frame.0
    }
}

impl PacketBuf for Frame {
    #[inline]
    fn data(&self) -> &[u8] {
        self.0.data()
    }

    #[inline]
    fn data_mut(&mut self) -> &mut [u8] {
        self.0.data_mut()
    }

    /// The receive path stores the index of the configuration in the mbuf in place of DPDK's number.
    #[inline]
    fn port(&self) -> u8 {
        self.0.port() as u8
    }

    #[inline]
    fn set_port(&mut self, port: u8) {
        self.0.set_port(u16::from(port));
    }

    #[inline]
    fn trim_front(&mut self, len: usize) {
        // The stages trim no more than they have read.
        let _ = self.0.trim_front(len);
    }

    #[inline]
    fn prepend(&mut self, len: usize) -> bool {
        self.0.prepend(len).is_some()
    }

    #[inline]
    fn truncate(&mut self, len: usize) {
        // A frame that is shorter already stays as it is.
        let _ = self.0.truncate(len);
    }

    #[inline(always)]
    fn reframe(&mut self, front: isize, len: usize) -> bool {
        self.0.reframe(front, len)
    }

    #[inline]
    fn is_contiguous(&self) -> bool {
        self.0.is_contiguous()
    }

    /// "Not in the packet" is no verdict: what is forwarded must have one.
    #[inline]
    fn l4_verdict(&self) -> L4Verdict {
        match self.0.rx_l4_checksum() {
            RxChecksum::Good => L4Verdict::Good,
            RxChecksum::Bad => L4Verdict::Bad,
            RxChecksum::Unknown | RxChecksum::Absent => L4Verdict::Unknown,
        }
    }

    #[inline]
    fn prefetch(&self) {
        self.0.prefetch_data();
    }
}

impl FragmentSource<Frame> for Mempool {
    fn buffer(&mut self, head: &[u8], body: &[u8]) -> Option<Frame> {
        let mut mbuf = self.alloc_copy(head)?;
        mbuf.append(body.len())?.copy_from_slice(body);
        Some(mbuf.into())
    }
}
