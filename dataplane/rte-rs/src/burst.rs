//! Bursts of mbufs: an array of pointers that DPDK reads and writes directly.

use arrayvec::ArrayVec;
use dpdk_sys::rte_mbuf;

use crate::mbuf::Mbuf;

/// Up to `N` mbufs, on the stack or in a worker's state. Moving one is moving pointers, and an empty one costs nothing to
/// drop. Dropping a full one frees packet by packet: prefer [`Mbuf::free_bulk`].
pub type Burst<const N: usize> = ArrayVec<Mbuf, N>;

/// Lets `fill` write mbufs behind the contents of `burst` and takes over as many as it says. Returns that number.
#[inline]
pub(crate) fn fill_behind<const N: usize>(
    burst: &mut Burst<N>,
    fill: impl FnOnce(*mut *mut rte_mbuf, usize) -> usize,
) -> usize {
    let held = burst.len();
    let room = burst.remaining_capacity();
    // SAFETY: `held` is within the allocation.
    let spare = unsafe { burst.as_mut_ptr().add(held) }.cast::<*mut rte_mbuf>();
    let filled = fill(spare, room).min(room);
    // SAFETY: `Mbuf` is a transparent non-null pointer, and `fill` wrote `filled` of them that nobody else holds.
    unsafe { burst.set_len(held + filled) };
    filled
}

/// Lets `take` take mbufs from the front of `burst` and removes as many as it says; the rest moves up, in order. Returns the
/// number taken.
#[inline]
pub(crate) fn take_front<const N: usize>(
    burst: &mut Burst<N>,
    take: impl FnOnce(*mut *mut rte_mbuf, usize) -> usize,
) -> usize {
    let held = burst.len();
    let start = burst.as_mut_ptr();
    let taken = take(start.cast::<*mut rte_mbuf>(), held).min(held);
    // SAFETY: the first `taken` mbufs belong to somebody else now and are overwritten or cut off without being dropped; the
    // others stay, each once.
    unsafe {
        if taken < held {
            std::ptr::copy(start.add(taken), start, held - taken);
        }
        burst.set_len(held - taken);
    }
    taken
}
