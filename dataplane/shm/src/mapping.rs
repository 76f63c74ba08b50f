//! The one module that touches raw memory: it maps the file and hands out references to atomics.

use crate::blocks::FurtherWords;
use crate::filters::FilterWords;
use crate::layout::{EventSlot, FrameSlot, NextHopWords};
use crate::layout::{Header, Layout, Place, PortBlock, Route6Words, RouteWords, WorkerBlock};
use crate::policy::PolicyWords;
use crate::pools::{Pool6Words, PoolWords, PortAddressWords};
use crate::record::RecordSlot;
use crate::session::SessionEntry;
use crate::shared::Shared;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::fs::File;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64};

/// A mapped region; unmapped when the last user is gone.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the region is reached only as atomics, which any thread may use.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of_file(file: &File, len: usize) -> std::io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address the kernel chooses; it aliases no Rust object.
        let base = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) }?;
        Self::adopt(base.cast(), len)
    }

    fn anonymous(len: usize) -> std::io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let map = |flags| {
            // SAFETY: a fresh anonymous mapping at an address the kernel chooses.
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::SHARED | flags) }
        };
        let base = map(MapFlags::HUGETLB).or_else(|_| map(MapFlags::NORESERVE))?;
        Self::adopt(base.cast(), len)
    }

    fn adopt(base: *mut u8, len: usize) -> std::io::Result<Self> {
        let base = NonNull::new(base).ok_or(std::io::ErrorKind::OutOfMemory)?;
        // Huge pages save a TLB miss per look-up; where the kernel has none to give, this fails and
        // nothing is lost but speed.
        // SAFETY: advice on the mapping just made.
        let _ = unsafe { madvise(base.as_ptr().cast(), len, Advice::LinuxHugepage) };
        Ok(Self { base, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: base and len are what mmap gave, and no `Section` outlives its `Arc<Mapping>`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A run of `T` in the mapping; keeps the mapping alive.
pub(crate) struct Section<T: Shared> {
    first: NonNull<T>,
    count: usize,
    mapping: Arc<Mapping>,
}

impl<T: Shared> Clone for Section<T> {
    fn clone(&self) -> Self {
        Self {
            first: self.first,
            count: self.count,
            mapping: Arc::clone(&self.mapping),
        }
    }
}

// SAFETY: a section is a shared reference to atomics (`Shared`), which any thread may use.
unsafe impl<T: Shared> Send for Section<T> {}
// SAFETY: as above.
unsafe impl<T: Shared> Sync for Section<T> {}

impl<T: Shared> Section<T> {
    fn new(mapping: &Arc<Mapping>, place: Place) -> Self {
        let end = place
            .count
            .checked_mul(size_of::<T>())
            .and_then(|size| size.checked_add(place.offset));
        assert!(end.is_some_and(|end| end <= mapping.len));
        // The base is aligned to a page, and no `Shared` type needs more.
        assert!(place.offset.is_multiple_of(align_of::<T>()) && align_of::<T>() <= 4_096);
        // SAFETY: the place lies inside the mapping, checked above.
        let first = unsafe { mapping.base.add(place.offset) }.cast();
        Self {
            first,
            count: place.count,
            mapping: Arc::clone(mapping),
        }
    }
}

impl<T: Shared> Deref for Section<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `first` points to `count` values inside a live mapping, aligned (checked in `new`),
        // and any bit pattern is a valid `T` (`Shared`).
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl<T: Shared> Section<T> {
    /// Prefetches element `at` into all cache levels; out of range is a no-op.
    #[inline]
    pub(crate) fn prefetch(&self, at: usize) {
        if at < self.count {
            // SAFETY: in range.
            prefetch(unsafe { self.first.add(at).as_ref() });
        }
    }
}

/// Prefetches the cache line `target` starts in.
#[inline(always)]
pub fn prefetch<T>(target: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect that a program could see; the pointer is valid anyway.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
            std::ptr::from_ref(target).cast(),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = target;
}

/// What is mapped to look at a header: one huge page, so that it also works on hugetlbfs.
pub(crate) const HEADER_MAP_LEN: usize = 2 << 20;

/// Maps the header alone, of a file of at least [`HEADER_MAP_LEN`].
pub(crate) fn map_header(file: &File) -> std::io::Result<Section<Header>> {
    let mapping = Mapping::of_file(file, HEADER_MAP_LEN)?;
    Ok(Section::new(
        &Arc::new(mapping),
        Place {
            offset: 0,
            count: 1,
        },
    ))
}

/// All sections of a mapping.
#[derive(Clone)]
pub(crate) struct Tables {
    pub(crate) header: Section<Header>,
    pub(crate) workers: Section<WorkerBlock>,
    pub(crate) ports: Section<PortBlock>,
    pub(crate) owners: Section<AtomicU8>,
    pub(crate) sessions: Section<SessionEntry>,
    pub(crate) records: Section<RecordSlot>,
    pub(crate) nat_blocks: Section<AtomicU64>,
    pub(crate) further_blocks: Section<FurtherWords>,
    pub(crate) nat_reverse: Section<AtomicU64>,
    pub(crate) framed: Section<AtomicU64>,
    pub(crate) framed6: Section<AtomicU64>,
    pub(crate) networks: Section<AtomicU64>,
    pub(crate) pools: Section<PoolWords>,
    pub(crate) pools6: Section<Pool6Words>,
    pub(crate) port_addresses: Section<PortAddressWords>,
    pub(crate) policies: Section<PolicyWords>,
    pub(crate) filters: Section<FilterWords>,
    pub(crate) routes: Section<RouteWords>,
    pub(crate) routes6: Section<Route6Words>,
    pub(crate) next_hops: Section<NextHopWords>,
    pub(crate) punt: Section<FrameSlot>,
    pub(crate) inject: Section<FrameSlot>,
    pub(crate) events: Section<EventSlot>,
}

impl Tables {
    fn over(mapping: Mapping, layout: &Layout) -> Self {
        let m = &Arc::new(mapping);
        Self {
            header: Section::new(
                m,
                Place {
                    offset: 0,
                    count: 1,
                },
            ),
            workers: Section::new(m, layout.workers),
            ports: Section::new(m, layout.ports),
            owners: Section::new(m, layout.owners),
            sessions: Section::new(m, layout.sessions),
            records: Section::new(m, layout.records),
            nat_blocks: Section::new(m, layout.nat_blocks),
            further_blocks: Section::new(m, layout.further_blocks),
            nat_reverse: Section::new(m, layout.nat_reverse),
            framed: Section::new(m, layout.framed),
            framed6: Section::new(m, layout.framed6),
            networks: Section::new(m, layout.networks),
            pools: Section::new(m, layout.pools),
            pools6: Section::new(m, layout.pools6),
            port_addresses: Section::new(m, layout.port_addresses),
            policies: Section::new(m, layout.policies),
            filters: Section::new(m, layout.filters),
            routes: Section::new(m, layout.routes),
            routes6: Section::new(m, layout.routes6),
            next_hops: Section::new(m, layout.next_hops),
            punt: Section::new(m, layout.punt),
            inject: Section::new(m, layout.inject),
            events: Section::new(m, layout.events),
        }
    }

    /// Maps a file of at least the layout's length.
    pub(crate) fn map(file: &File, layout: &Layout) -> std::io::Result<Self> {
        Mapping::of_file(file, layout.len).map(|mapping| Self::over(mapping, layout))
    }

    /// Private memory of this process, for tests and benchmarks; huge pages if there are any.
    pub(crate) fn anonymous(layout: &Layout) -> std::io::Result<Self> {
        Mapping::anonymous(layout.len).map(|mapping| Self::over(mapping, layout))
    }
}
