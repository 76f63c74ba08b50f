//! Pools of packet buffers.

use std::fmt;
use std::ptr::NonNull;

use dpdk_sys::{rte_mbuf, rte_mempool};

use crate::burst::Burst;
use crate::eal::Eal;
use crate::error::{Errno, Error, c_string};
use crate::mbuf::Mbuf;

/// How to make a [`Mempool`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MempoolConfig {
    /// Name, unique in the process, at most 25 bytes.
    pub name: String,
    /// Number of mbufs; a power of two less one wastes no memory.
    pub count: u32,
    /// Mbufs that each registered thread may keep to itself: at most 512 and at most `count` / 1.5. They count as available.
    pub cache: u32,
    /// Bytes per mbuf for headroom and data; [`HEADROOM`](crate::HEADROOM) of them in front.
    pub data_room: u16,
    /// NUMA node of the memory; `None` for any.
    pub numa_node: Option<u32>,
}

impl MempoolConfig {
    /// `count` mbufs of 2,048 bytes behind the headroom, 256 of them in each thread's cache if there are enough.
    #[must_use]
    pub fn new(name: &str, count: u32) -> Self {
        MempoolConfig {
            name: name.to_owned(),
            count,
            cache: 256.min(count / 4),
            data_room: 2048 + dpdk_sys::SHIM_PKTMBUF_HEADROOM,
            numa_node: None,
        }
    }
}

/// A pool of mbufs of one segment size. Clones are handles to the same pool. Its memory is kept until EAL cleans up, since an
/// [`Mbuf`] holds nothing but its address.
#[derive(Clone)]
pub struct Mempool {
    pool: NonNull<rte_mempool>,
    _eal: Eal,
}

// SAFETY: DPDK's mempools (ring_mp_mc is what the library picks by default) may be used from any thread: registered threads
// have caches of their own, others go to the shared ring.
unsafe impl Send for Mempool {}
// SAFETY: as above.
unsafe impl Sync for Mempool {}

impl Mempool {
    /// Makes a pool.
    ///
    /// # Errors
    /// [`Error::Call`] for `rte_pktmbuf_pool_create`: a name in use (`EEXIST`), a cache too large (`EINVAL`), not enough
    /// memory (`ENOMEM`), a name too long (`ENAMETOOLONG`).
    pub fn create(eal: &Eal, config: &MempoolConfig) -> Result<Self, Error> {
        let name = c_string(&config.name)?;
        // SAFETY: EAL runs; `name` is a C string for the length of the call, and the other arguments are checked by DPDK.
        let pool = unsafe {
            dpdk_sys::rte_pktmbuf_pool_create(
                name.as_ptr(),
                config.count,
                config.cache,
                0,
                config.data_room,
                numa(config.numa_node),
            )
        };
        let pool = NonNull::new(pool).ok_or_else(|| Error::Call {
            function: "rte_pktmbuf_pool_create",
            object: format!(
                "pool {} ({} mbufs of {} bytes)",
                config.name, config.count, config.data_room
            ),
            errno: Errno::last(),
        })?;
        eal.keep_pool(pool);
        Ok(Mempool {
            pool,
            _eal: eal.clone(),
        })
    }

    /// One empty mbuf; `None` when the pool is empty.
    #[must_use]
    pub fn alloc(&self) -> Option<Mbuf> {
        // SAFETY: the pool exists and holds mbufs.
        let mbuf = unsafe { dpdk_sys::shim_mbuf_alloc(self.pool.as_ptr()) };
        // SAFETY: DPDK hands out mbufs that nobody else holds.
        NonNull::new(mbuf).map(|mbuf| unsafe { Mbuf::from_raw(mbuf) })
    }

    /// One mbuf that holds a copy of `frame`; `None` when the pool is empty or the frame is larger than one mbuf.
    #[must_use]
    pub fn alloc_copy(&self, frame: &[u8]) -> Option<Mbuf> {
        let mut mbuf = self.alloc()?;
        mbuf.append(frame.len())?.copy_from_slice(frame);
        Some(mbuf)
    }

    /// Appends `count` empty mbufs to `burst` in one call. All or nothing: `false`, and nothing allocated, when the pool has
    /// fewer or `burst` lacks the room.
    #[must_use]
    pub fn alloc_bulk<const N: usize>(&self, burst: &mut Burst<N>, count: usize) -> bool {
        if count > burst.remaining_capacity() {
            return false;
        }
        let held = burst.len();
        // SAFETY: `Mbuf` is a transparent pointer, and `burst` has room for `count` of them behind its contents. The new
        // length covers them only after DPDK has written all of them (code 0).
        unsafe {
            let spare = burst.as_mut_ptr().add(held).cast::<*mut rte_mbuf>();
            if dpdk_sys::shim_mbuf_alloc_bulk(self.pool.as_ptr(), spare, count as u32) != 0 {
                return false;
            }
            burst.set_len(held + count);
        }
        true
    }

    /// Mbufs that can be allocated, the threads' caches included. Walks the caches: not for the packet path.
    #[must_use]
    pub fn available(&self) -> u32 {
        // SAFETY: the pool exists.
        unsafe { dpdk_sys::rte_mempool_avail_count(self.pool.as_ptr()) }
    }

    /// Mbufs that are outside the pool: in the program, in rings, in device queues. Not for the packet path.
    #[must_use]
    pub fn in_use(&self) -> u32 {
        // SAFETY: the pool exists.
        unsafe { dpdk_sys::rte_mempool_in_use_count(self.pool.as_ptr()) }
    }

    /// Bytes per mbuf for headroom and data.
    #[must_use]
    pub fn data_room(&self) -> u16 {
        // SAFETY: the pool exists and was made for mbufs.
        unsafe { dpdk_sys::shim_mempool_data_room(self.pool.as_ptr()) }
    }

    pub(crate) fn as_ptr(&self) -> *mut rte_mempool {
        self.pool.as_ptr()
    }
}

impl fmt::Debug for Mempool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mempool")
            .field("available", &self.available())
            .field("in_use", &self.in_use())
            .finish()
    }
}

/// DPDK's socket argument.
pub(crate) fn numa(node: Option<u32>) -> i32 {
    node.and_then(|node| i32::try_from(node).ok())
        .unwrap_or(dpdk_sys::SHIM_SOCKET_ID_ANY)
}
