//! Rings that carry packets between threads, in bursts and in order.

use std::ptr::NonNull;
use std::sync::Arc;

use dpdk_sys::rte_ring;

use crate::burst::{Burst, fill_behind, take_front};
use crate::eal::Eal;
use crate::error::{Errno, Error, c_string};
use crate::mbuf::Mbuf;
use crate::mempool::numa;

/// How to make a ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingConfig {
    /// Name, unique in the process, at most 28 bytes.
    pub name: String,
    /// Packets it holds, at least 1; memory is taken for the next power of two above.
    pub capacity: u32,
    /// NUMA node of the memory; `None` for any.
    pub numa_node: Option<u32>,
}

#[derive(Debug)]
struct Ring {
    ring: NonNull<rte_ring>,
    _eal: Eal,
}

// SAFETY: which thread may use which end is the business of the handles below; counting is allowed to all.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

/// The end where one thread puts packets in.
#[derive(Debug)]
pub struct Producer {
    ring: Arc<Ring>,
}

/// An end where several threads put packets in; clones are ends of the same ring. Costs an atomic compare-and-swap a burst,
/// and a thread that is preempted inside holds up the others.
#[derive(Debug, Clone)]
pub struct MpProducer {
    ring: Arc<Ring>,
}

/// The end where one thread takes packets out.
#[derive(Debug)]
pub struct Consumer {
    ring: Arc<Ring>,
}

/// A ring for one producing and one consuming thread.
///
/// # Errors
/// [`Error::Call`] for `rte_ring_create`: a name in use (`EEXIST`), a wrong capacity (`EINVAL`), no memory (`ENOMEM`).
pub fn sp_sc_ring(eal: &Eal, config: &RingConfig) -> Result<(Producer, Consumer), Error> {
    let ring = Arc::new(Ring::create(eal, config, dpdk_sys::SHIM_RING_F_SP_ENQ)?);
    Ok((
        Producer {
            ring: Arc::clone(&ring),
        },
        Consumer { ring },
    ))
}

/// A ring for several producing threads and one consuming thread.
///
/// # Errors
/// As for [`sp_sc_ring`].
pub fn mp_sc_ring(eal: &Eal, config: &RingConfig) -> Result<(MpProducer, Consumer), Error> {
    let ring = Arc::new(Ring::create(eal, config, 0)?);
    Ok((
        MpProducer {
            ring: Arc::clone(&ring),
        },
        Consumer { ring },
    ))
}

impl Ring {
    fn create(eal: &Eal, config: &RingConfig, producers: u32) -> Result<Self, Error> {
        let name = c_string(&config.name)?;
        let flags = producers | dpdk_sys::SHIM_RING_F_SC_DEQ | dpdk_sys::SHIM_RING_F_EXACT_SZ;
        // SAFETY: EAL runs; a C string, and the other arguments are checked by DPDK.
        let ring = unsafe {
            dpdk_sys::rte_ring_create(
                name.as_ptr(),
                config.capacity,
                numa(config.numa_node),
                flags,
            )
        };
        let ring = NonNull::new(ring).ok_or_else(|| Error::Call {
            function: "rte_ring_create",
            object: format!("ring {} of {} packets", config.name, config.capacity),
            errno: Errno::last(),
        })?;
        Ok(Ring {
            ring,
            _eal: eal.clone(),
        })
    }

    fn len(&self) -> usize {
        // SAFETY: the ring exists.
        unsafe { dpdk_sys::shim_ring_count(self.ring.as_ptr()) as usize }
    }

    fn free(&self) -> usize {
        // SAFETY: the ring exists.
        unsafe { dpdk_sys::shim_ring_free_count(self.ring.as_ptr()) as usize }
    }

    /// # Safety
    /// The caller is the only one that dequeues.
    #[inline]
    unsafe fn dequeue<const N: usize>(&self, burst: &mut Burst<N>) -> usize {
        fill_behind(burst, |mbufs, room| {
            // SAFETY: room for `room` pointers; the ring holds owned mbufs and nothing else.
            unsafe {
                dpdk_sys::shim_ring_sc_dequeue_burst(self.ring.as_ptr(), mbufs, room as u32)
                    as usize
            }
        })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut burst = Burst::<32>::new();
        // SAFETY: no handle is left, so that nobody else dequeues.
        while unsafe { self.dequeue(&mut burst) } > 0 {
            Mbuf::free_bulk(&mut burst);
        }
        // SAFETY: made by rte_ring_create, and no handle is left.
        unsafe { dpdk_sys::rte_ring_free(self.ring.as_ptr()) };
    }
}

impl Producer {
    /// Puts packets from the front of `burst` in; what finds no room stays there, in order. Returns how many went in.
    #[inline]
    pub fn enqueue_burst<const N: usize>(&mut self, burst: &mut Burst<N>) -> usize {
        take_front(burst, |mbufs, held| {
            // SAFETY: `held` owned mbufs, which the ring owns from here on; this is the only producer.
            unsafe {
                dpdk_sys::shim_ring_sp_enqueue_burst(self.ring.ring.as_ptr(), mbufs, held as u32)
                    as usize
            }
        })
    }

    /// Packets in the ring.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ring.len()
    }

    /// Packets there is room for.
    #[must_use]
    pub fn free(&self) -> usize {
        self.ring.free()
    }
}

impl MpProducer {
    /// Puts packets from the front of `burst` in; what finds no room stays there, in order. Returns how many went in.
    #[inline]
    pub fn enqueue_burst<const N: usize>(&self, burst: &mut Burst<N>) -> usize {
        take_front(burst, |mbufs, held| {
            // SAFETY: `held` owned mbufs, which the ring owns from here on; the ring was made for several producers.
            unsafe {
                dpdk_sys::shim_ring_mp_enqueue_burst(self.ring.ring.as_ptr(), mbufs, held as u32)
                    as usize
            }
        })
    }

    /// Packets in the ring.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ring.len()
    }

    /// Packets there is room for.
    #[must_use]
    pub fn free(&self) -> usize {
        self.ring.free()
    }
}

impl Consumer {
    /// Appends packets to `burst`, as many as it has room for; never waits. Returns how many.
    #[inline]
    pub fn dequeue_burst<const N: usize>(&mut self, burst: &mut Burst<N>) -> usize {
        // SAFETY: there is one consumer handle per ring, borrowed here for itself alone.
        unsafe { self.ring.dequeue(burst) }
    }

    /// Packets in the ring.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ring.len()
    }

    /// Packets there is room for.
    #[must_use]
    pub fn free(&self) -> usize {
        self.ring.free()
    }
}
