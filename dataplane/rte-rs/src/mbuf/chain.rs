//! Packets of several segments.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use dpdk_sys::{rte_mbuf, shim_mbuf};

use super::Mbuf;

/// A packet that is made of packets, one behind the other.
#[derive(Debug)]
pub struct Chain {
    first: Mbuf,
    /// The last segment of `first`'s chain, which is `first` itself if it has one segment.
    last: NonNull<rte_mbuf>,
}

// SAFETY: `last` is a buffer that `first` owns, and it is reached through the chain's owner alone.
unsafe impl Send for Chain {}

impl Chain {
    /// Begins with a packet.
    #[must_use]
    pub fn new(first: Mbuf) -> Self {
        let last = last_segment(&first);
        Self { first, last }
    }

    /// Puts the data of `next` behind what is there. What else `next` says (port, flags, lengths) no longer counts.
    ///
    /// # Errors
    /// `next` is given back, and nothing changed, when the chain would have more than 65,535 segments.
    pub fn push(&mut self, next: Mbuf) -> Result<(), Mbuf> {
        let Some(segments) = self.first.nb_segs().checked_add(next.nb_segs()) else {
            return Err(next);
        };
        let last = last_segment(&next);
        let bytes = next.fields().pkt_len;
        // From here on the chain owns it.
        let next = ManuallyDrop::new(next);
        // SAFETY: a segment of the chain, which this owns and has borrowed to nobody; `first`'s fields are not borrowed.
        unsafe { self.last.cast::<shim_mbuf>().as_mut() }.next = next.0.as_ptr();
        self.last = last;
        let fields = self.first.fields_mut();
        fields.nb_segs = segments;
        // At most 65,535 segments of at most 65,535 bytes: below 2^32.
        fields.pkt_len += bytes;
        Ok(())
    }

    /// The packet.
    #[must_use]
    pub fn finish(self) -> Mbuf {
        self.first
    }
}

/// The last buffer of a packet.
fn last_segment(mbuf: &Mbuf) -> NonNull<rte_mbuf> {
    let mut last = mbuf.0;
    // SAFETY: a valid chain, which ends with a null pointer (see `from_raw`).
    while let Some(next) = NonNull::new(unsafe { last.cast::<shim_mbuf>().as_ref() }.next) {
        last = next;
    }
    last
}

/// The segments of a packet; see [`Mbuf::segments`].
#[derive(Debug)]
pub struct Segments<'a> {
    next: Option<&'a Mbuf>,
}

impl<'a> Segments<'a> {
    pub(super) fn of(first: &'a Mbuf) -> Self {
        Self { next: Some(first) }
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let segment = self.next?;
        let next: *const *mut rte_mbuf = &segment.fields().next;
        // SAFETY: `Option<Mbuf>` is a nullable `*mut rte_mbuf`, and the next segment is an mbuf owned by this one, which is
        // borrowed for 'a. The reference never owns, so that nothing is dropped.
        let next: &'a ManuallyDrop<Option<Mbuf>> = unsafe { &*next.cast() };
        self.next = (**next).as_ref();
        Some(segment.data())
    }
}
