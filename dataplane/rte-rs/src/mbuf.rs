//! One packet.

mod chain;

use std::fmt;
use std::ptr::NonNull;

use dpdk_sys::{rte_mbuf, shim_mbuf};

use crate::burst::{Burst, take_front};
use crate::flags::ol_flags;

pub use chain::{Chain, Segments};

/// A packet buffer, owned: one pointer wide, back in its pool when it is dropped.
///
/// A packet is a chain of one or more segments. Everything that changes it works on the first segment, or, where the end of
/// the packet matters, only on packets of one segment ([`Mbuf::is_contiguous`]); chains come from [`Chain`], from ports with
/// [`RxOffloads::SCATTER`](crate::RxOffloads::SCATTER) or from receive coalescing.
///
/// Every `Mbuf` is the only reference to its buffer: this crate makes no clones and no indirect mbufs.
#[repr(transparent)]
pub struct Mbuf(NonNull<rte_mbuf>);

// SAFETY: an `Mbuf` is the only reference to its buffer, and buffers may be freed from any thread.
unsafe impl Send for Mbuf {}
// SAFETY: shared references only read.
unsafe impl Sync for Mbuf {}

/// What the device found about a checksum of a received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RxChecksum {
    /// It did not look.
    Unknown,
    /// It is right.
    Good,
    /// It is wrong.
    Bad,
    /// It is not in the packet, but the data is known to be intact (packets between virtual machines).
    Absent,
}

/// Header lengths for the transmit offloads. Larger values than stated lose their upper bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxLengths {
    /// Ethernet, tags and whatever else comes before the IP header; bytes, at most 127.
    pub l2: u16,
    /// IP header; bytes, at most 511.
    pub l3: u16,
    /// TCP or UDP header; bytes, at most 255.
    pub l4: u16,
    /// Payload bytes per segment, for segmentation; 0 otherwise.
    pub segment: u16,
}

impl TxLengths {
    /// Bytes of all headers.
    const fn headers(&self) -> u32 {
        self.l2 as u32 + self.l3 as u32 + self.l4 as u32
    }
}

impl Mbuf {
    /// Takes over a buffer.
    ///
    /// # Safety
    /// `mbuf` is a valid chain of direct, unshared mbufs, from a pool that outlives it, and nobody else holds it.
    #[inline]
    pub(crate) unsafe fn from_raw(mbuf: NonNull<rte_mbuf>) -> Self {
        Mbuf(mbuf)
    }

    #[inline]
    fn fields(&self) -> &shim_mbuf {
        // SAFETY: a valid mbuf (see `from_raw`); the shim compiles only if both types have one layout.
        unsafe { self.0.cast::<shim_mbuf>().as_ref() }
    }

    #[inline]
    fn fields_mut(&mut self) -> &mut shim_mbuf {
        // SAFETY: as for `fields`; this is the only reference to the buffer.
        unsafe { self.0.cast::<shim_mbuf>().as_mut() }
    }

    /// Frees all of `burst` in one call.
    #[inline]
    pub fn free_bulk<const N: usize>(burst: &mut Burst<N>) {
        if burst.is_empty() {
            return;
        }
        take_front(burst, |mbufs, count| {
            // SAFETY: `count` mbufs, each owned by the burst, which forgets them afterwards.
            unsafe { dpdk_sys::rte_pktmbuf_free_bulk(mbufs, count as u32) };
            count
        });
    }

    /// Bytes of the first segment, which is the whole packet when [`Mbuf::is_contiguous`].
    #[inline]
    #[must_use]
    pub fn data(&self) -> &[u8] {
        let fields = self.fields();
        // SAFETY: DPDK and the methods here keep data_off + data_len within the segment's buffer. The memory came from the
        // kernel with contents, so there are no uninitialised bytes in it.
        unsafe {
            std::slice::from_raw_parts(
                fields
                    .buf_addr
                    .cast::<u8>()
                    .add(usize::from(fields.data_off)),
                usize::from(fields.data_len),
            )
        }
    }

    /// Bytes of the first segment, to change.
    #[inline]
    #[must_use]
    pub fn data_mut(&mut self) -> &mut [u8] {
        let fields = self.fields();
        // SAFETY: as for `data`; the buffer is not shared.
        unsafe {
            std::slice::from_raw_parts_mut(
                fields
                    .buf_addr
                    .cast::<u8>()
                    .add(usize::from(fields.data_off)),
                usize::from(fields.data_len),
            )
        }
    }

    /// The data of all segments in order.
    #[must_use]
    pub fn segments(&self) -> Segments<'_> {
        Segments::of(self)
    }

    /// Length of the packet in bytes, all segments.
    #[inline]
    #[must_use]
    #[allow(
        clippy::len_without_is_empty,
        reason = "an empty packet is not a case callers meet"
    )]
    pub fn len(&self) -> usize {
        self.fields().pkt_len as usize
    }

    /// Number of segments.
    #[inline]
    #[must_use]
    pub fn nb_segs(&self) -> u16 {
        self.fields().nb_segs
    }

    /// Whether the packet is one segment.
    #[inline]
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.fields().nb_segs == 1
    }

    /// Bytes that [`Mbuf::prepend`] can still add.
    #[inline]
    #[must_use]
    pub fn headroom(&self) -> usize {
        usize::from(self.fields().data_off)
    }

    /// Bytes behind the data of the first segment.
    #[inline]
    #[must_use]
    pub fn tailroom(&self) -> usize {
        let fields = self.fields();
        usize::from(fields.buf_len)
            .saturating_sub(usize::from(fields.data_off) + usize::from(fields.data_len))
    }

    /// Adds `n` bytes in front and returns them, with whatever they held before. `None`, and nothing changed, when the
    /// headroom is smaller.
    #[inline]
    pub fn prepend(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.headroom() {
            return None;
        }
        let fields = self.fields_mut();
        fields.data_off -= n as u16;
        // A segment's buffer is at most 65,535 bytes, so this stays in range.
        fields.data_len += n as u16;
        fields.pkt_len += n as u32;
        self.data_mut().get_mut(..n)
    }

    /// Removes `n` bytes in front. `false`, and nothing changed, when the first segment is shorter.
    #[inline]
    #[must_use]
    pub fn trim_front(&mut self, n: usize) -> bool {
        let fields = self.fields_mut();
        if n > usize::from(fields.data_len) {
            return false;
        }
        fields.data_off += n as u16;
        fields.data_len -= n as u16;
        fields.pkt_len -= n as u32;
        true
    }

    /// Adds `n` bytes at the end and returns them, with whatever they held before. `None`, and nothing changed, when the
    /// tailroom is smaller or the packet is a chain.
    #[inline]
    pub fn append(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.tailroom() || !self.is_contiguous() {
            return None;
        }
        let fields = self.fields_mut();
        let old = usize::from(fields.data_len);
        fields.data_len += n as u16;
        fields.pkt_len += n as u32;
        self.data_mut().get_mut(old..)
    }

    /// Cuts the packet to `len` bytes. `false`, and nothing changed, when it is shorter or a chain.
    #[inline]
    #[must_use]
    pub fn truncate(&mut self, len: usize) -> bool {
        let fields = self.fields_mut();
        if len > usize::from(fields.data_len) || fields.nb_segs != 1 {
            return false;
        }
        fields.data_len = len as u16;
        fields.pkt_len = len as u32;
        true
    }

    /// Moves the start of the data by `front` bytes (into the headroom when it is negative) and makes it `len` bytes long: a
    /// new header and a cut in one step. `false`, and nothing changed, when the headroom is smaller, the data would end behind
    /// its old end, or the packet is a chain.
    #[inline(always)]
    #[must_use]
    pub fn reframe(&mut self, front: isize, len: usize) -> bool {
        let fields = self.fields_mut();
        // Before the buffer, the start wraps to a number no end reaches.
        let start = usize::from(fields.data_off).wrapping_add_signed(front);
        let end = start.wrapping_add(len);
        let old_end = usize::from(fields.data_off) + usize::from(fields.data_len);
        if start > end || end > old_end || fields.nb_segs != 1 {
            return false;
        }
        // All within the buffer, so they fit.
        fields.data_off = start as u16;
        fields.data_len = len as u16;
        fields.pkt_len = len as u32;
        true
    }

    /// The port it came in on; of a fresh mbuf `u16::MAX`.
    #[inline]
    #[must_use]
    pub fn port(&self) -> u16 {
        self.fields().port
    }

    /// Sets the input port, for packets that take a way around a port.
    #[inline]
    pub fn set_port(&mut self, port: u16) {
        self.fields_mut().port = port;
    }

    /// Offload flags; see [`ol_flags`].
    #[inline]
    #[must_use]
    pub fn ol_flags(&self) -> u64 {
        self.fields().ol_flags
    }

    /// Replaces the offload flags by flags of the [`ol_flags`] module; bits outside of it, which say how the buffer is held,
    /// stay as they are.
    #[inline]
    pub fn set_ol_flags(&mut self, flags: u64) {
        let fields = self.fields_mut();
        fields.ol_flags = (fields.ol_flags & !SETTABLE) | (flags & SETTABLE);
    }

    /// VLAN tag control information that was or will be outside the frame, in host byte order; meaningful with
    /// [`ol_flags::RX_VLAN`] or [`ol_flags::TX_VLAN`].
    #[inline]
    #[must_use]
    pub fn vlan_tci(&self) -> u16 {
        self.fields().vlan_tci
    }

    /// Sets the tag to insert.
    #[inline]
    pub fn set_vlan_tci(&mut self, tci: u16) {
        self.fields_mut().vlan_tci = tci;
    }

    /// The outer tag; meaningful with [`ol_flags::RX_QINQ`] or [`ol_flags::TX_QINQ`].
    #[inline]
    #[must_use]
    pub fn vlan_tci_outer(&self) -> u16 {
        self.fields().vlan_tci_outer
    }

    /// The RSS hash, when the device delivered one.
    #[inline]
    #[must_use]
    pub fn rss_hash(&self) -> Option<u32> {
        let fields = self.fields();
        (fields.ol_flags & ol_flags::RX_RSS_HASH != 0).then_some(fields.hash_rss)
    }

    /// What the device found about the IPv4 header checksum.
    #[inline]
    #[must_use]
    pub fn rx_ip_checksum(&self) -> RxChecksum {
        match self.fields().ol_flags & dpdk_sys::SHIM_MBUF_RX_IP_CKSUM_MASK {
            dpdk_sys::SHIM_MBUF_RX_IP_CKSUM_GOOD => RxChecksum::Good,
            dpdk_sys::SHIM_MBUF_RX_IP_CKSUM_BAD => RxChecksum::Bad,
            dpdk_sys::SHIM_MBUF_RX_IP_CKSUM_NONE => RxChecksum::Absent,
            _ => RxChecksum::Unknown,
        }
    }

    /// What the device found about the TCP or UDP checksum.
    #[inline]
    #[must_use]
    pub fn rx_l4_checksum(&self) -> RxChecksum {
        match self.fields().ol_flags & dpdk_sys::SHIM_MBUF_RX_L4_CKSUM_MASK {
            dpdk_sys::SHIM_MBUF_RX_L4_CKSUM_GOOD => RxChecksum::Good,
            dpdk_sys::SHIM_MBUF_RX_L4_CKSUM_BAD => RxChecksum::Bad,
            dpdk_sys::SHIM_MBUF_RX_L4_CKSUM_NONE => RxChecksum::Absent,
            _ => RxChecksum::Unknown,
        }
    }

    /// The device's parse of the packet (`RTE_PTYPE_*`), 0 when it made none.
    #[inline]
    #[must_use]
    pub fn packet_type(&self) -> u32 {
        self.fields().packet_type
    }

    /// Sets the header lengths that the transmit offloads go by. Touches the mbuf's second cache line.
    #[inline]
    pub fn set_tx_lengths(&mut self, lengths: TxLengths) {
        const L3: u32 = dpdk_sys::SHIM_MBUF_L2_LEN_BITS;
        const L4: u32 = L3 + dpdk_sys::SHIM_MBUF_L3_LEN_BITS;
        const SEGMENT: u32 = L4 + dpdk_sys::SHIM_MBUF_L4_LEN_BITS;
        let field = |value: u16, bits: u32| u64::from(value) & ((1 << bits) - 1);
        self.fields_mut().tx_offload = field(lengths.l2, dpdk_sys::SHIM_MBUF_L2_LEN_BITS)
            | field(lengths.l3, dpdk_sys::SHIM_MBUF_L3_LEN_BITS) << L3
            | field(lengths.l4, dpdk_sys::SHIM_MBUF_L4_LEN_BITS) << L4
            | field(lengths.segment, dpdk_sys::SHIM_MBUF_TSO_SEGSZ_BITS) << SEGMENT;
    }

    /// What [`Mbuf::set_tx_lengths`] has set. Reads the mbuf's second cache line.
    #[must_use]
    pub fn tx_lengths(&self) -> TxLengths {
        const L3: u32 = dpdk_sys::SHIM_MBUF_L2_LEN_BITS;
        const L4: u32 = L3 + dpdk_sys::SHIM_MBUF_L3_LEN_BITS;
        const SEGMENT: u32 = L4 + dpdk_sys::SHIM_MBUF_L4_LEN_BITS;
        let all = self.fields().tx_offload;
        let field = |shift: u32, bits: u32| ((all >> shift) & ((1 << bits) - 1)) as u16;
        TxLengths {
            l2: field(0, dpdk_sys::SHIM_MBUF_L2_LEN_BITS),
            l3: field(L3, dpdk_sys::SHIM_MBUF_L3_LEN_BITS),
            l4: field(L4, dpdk_sys::SHIM_MBUF_L4_LEN_BITS),
            segment: field(SEGMENT, dpdk_sys::SHIM_MBUF_TSO_SEGSZ_BITS),
        }
    }

    /// Whether this is a super-packet: one for the receiver to cut ([`ol_flags::TX_TCP_SEG`], [`ol_flags::TX_UDP_SEG`]), with
    /// its lengths in [`Mbuf::tx_lengths`].
    #[inline]
    #[must_use]
    pub fn is_super(&self) -> bool {
        self.fields().ol_flags & (ol_flags::TX_TCP_SEG | ol_flags::TX_UDP_SEG) != 0
    }

    /// Frames that this stands for: 1, or the segments of a super-packet.
    #[inline]
    #[must_use]
    pub fn frames(&self) -> u32 {
        if self.is_super() {
            self.frames_of_super()
        } else {
            1
        }
    }

    /// Bytes of all the frames that this stands for, the headers of each included.
    #[inline]
    #[must_use]
    pub fn frame_bytes(&self) -> u64 {
        let mut bytes = self.len() as u64;
        if self.is_super() {
            let more = u64::from(self.frames_of_super() - 1);
            bytes += more * u64::from(self.tx_lengths().headers());
        }
        bytes
    }

    /// At least 1, whatever the lengths.
    fn frames_of_super(&self) -> u32 {
        let lengths = self.tx_lengths();
        let payload = self.fields().pkt_len.saturating_sub(lengths.headers());
        payload.div_ceil(u32::from(lengths.segment.max(1))).max(1)
    }

    /// Asks for the mbuf's first cache line, which holds all that receiving needs.
    #[inline]
    pub fn prefetch_header(&self) {
        prefetch(self.0.as_ptr().cast());
    }

    /// Asks for the first cache line of the data. Reads the mbuf's first cache line to find it.
    #[inline]
    pub fn prefetch_data(&self) {
        let fields = self.fields();
        prefetch(
            fields
                .buf_addr
                .cast::<u8>()
                .wrapping_add(usize::from(fields.data_off)),
        );
    }
}

/// The bits that [`Mbuf::set_ol_flags`] may change.
const SETTABLE: u64 = ol_flags::RX_VLAN
    | ol_flags::RX_VLAN_STRIPPED
    | ol_flags::RX_QINQ
    | ol_flags::RX_QINQ_STRIPPED
    | ol_flags::RX_RSS_HASH
    | ol_flags::RX_LRO
    | dpdk_sys::SHIM_MBUF_RX_IP_CKSUM_MASK
    | dpdk_sys::SHIM_MBUF_RX_L4_CKSUM_MASK
    | ol_flags::TX_VLAN
    | ol_flags::TX_QINQ
    | ol_flags::TX_IPV4
    | ol_flags::TX_IPV6
    | ol_flags::TX_IP_CKSUM
    | ol_flags::TX_TCP_CKSUM
    | ol_flags::TX_UDP_CKSUM
    | ol_flags::TX_TCP_SEG
    | ol_flags::TX_UDP_SEG;

impl Drop for Mbuf {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the only reference goes away.
        unsafe { dpdk_sys::shim_mbuf_free(self.0.as_ptr()) };
    }
}

impl fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mbuf")
            .field("port", &self.port())
            .field("len", &self.len())
            .field("nb_segs", &self.nb_segs())
            .field("ol_flags", &format_args!("{:#x}", self.ol_flags()))
            .finish_non_exhaustive()
    }
}

#[inline]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing and does not fault, whatever the address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests;
