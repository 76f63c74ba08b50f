//! Memory of this process alone, on huge pages, for large tables that are read at random: with small
//! pages nearly every look-up in such a table costs a TLB miss as well.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::alloc::handle_alloc_error;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use zerocopy::FromZeros;

const HUGE_PAGE: usize = 2 << 20;

/// A fixed-size array of zeroes at first, aligned to a huge page and asking for transparent ones.
///
/// The constructor touches all of it, so that no page fault comes later and the memory belongs to
/// the NUMA node of the calling thread: call it on the worker's own, pinned thread.
pub struct PrivateTable<T> {
    first: NonNull<T>,
    count: usize,
    base: NonNull<u8>,
    mapped: usize,
}

// SAFETY: it owns its memory as a `Vec<T>` does.
unsafe impl<T: Send> Send for PrivateTable<T> {}
// SAFETY: shared access gives `&[T]` only.
unsafe impl<T: Sync> Sync for PrivateTable<T> {}

impl<T: FromZeros + Copy> PrivateTable<T> {
    /// An array of `count` zeroed elements. As for `Vec`, the process ends when there is no memory.
    #[must_use]
    pub fn zeroed(count: usize) -> Self {
        const { assert!(align_of::<T>() <= HUGE_PAGE) }
        let Ok(layout) = std::alloc::Layout::array::<T>(count) else {
            handle_alloc_error(std::alloc::Layout::new::<T>())
        };
        // One page more than asked for leaves room to align the start; untouched, it costs nothing.
        let len = layout.size().next_multiple_of(HUGE_PAGE).max(HUGE_PAGE);
        let mapped = len + HUGE_PAGE;
        // SAFETY: a fresh mapping at an address the kernel chooses; it aliases no Rust object.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let Some(base) = base.ok().and_then(|base| NonNull::new(base.cast::<u8>())) else {
            handle_alloc_error(layout)
        };
        let skip = base.as_ptr().align_offset(HUGE_PAGE);
        // SAFETY: `skip` is below HUGE_PAGE, so `len` bytes from there on lie inside the mapping.
        let start = unsafe { base.add(skip) };
        // Refused where the kernel has no huge pages to give; nothing is lost then but speed.
        // SAFETY: advice on the mapping just made.
        let _ = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxHugepage) };
        let mut table = Self {
            first: start.cast(),
            count,
            base,
            mapped,
        };
        table.fill(T::new_zeroed());
        table
    }
}

impl<T> Deref for PrivateTable<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `first` points to `count` aligned elements in our mapping, valid from the start
        // (zeroed, `FromZeros`), and `&self` forbids writing.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl<T> DerefMut for PrivateTable<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.count) }
    }
}

impl<T> Drop for PrivateTable<T> {
    fn drop(&mut self) {
        // `T: Copy` (constructor), so no element needs dropping.
        // SAFETY: base and length are what mmap gave; nothing borrows from `self` any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}

impl<T> std::fmt::Debug for PrivateTable<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PrivateTable")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_zeroed_aligned_and_writable() {
        for count in [0, 1, 1000, 300_000] {
            let mut table = PrivateTable::<[u64; 8]>::zeroed(count);
            assert_eq!(table.len(), count);
            assert_eq!(table.as_ptr() as usize % HUGE_PAGE, 0);
            assert!(table.iter().all(|element| *element == [0; 8]));
            if let Some(last) = table.last_mut() {
                *last = [7; 8];
            }
            assert_eq!(table.last().copied(), (count > 0).then_some([7; 8]));
        }
    }
}
