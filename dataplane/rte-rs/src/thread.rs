//! Std threads as EAL threads.

use std::marker::PhantomData;

use crate::eal::Eal;
use crate::error::{Errno, Error};

/// Keeps the thread that made it registered with EAL; see [`Eal::register_thread`].
///
/// Mbufs in the thread's mempool caches stay there when it is dropped, for the next thread that gets the same lcore id.
#[derive(Debug)]
pub struct RegisteredThread {
    lcore: u32,
    // Keeps EAL running; it is dropped after the registration.
    _eal: Eal,
    // Registration is a matter of the thread that asked for it.
    _stays_here: PhantomData<*const ()>,
}

impl RegisteredThread {
    pub(crate) fn register(eal: &Eal) -> Result<Self, Error> {
        // SAFETY: reads a thread-local variable.
        let lcore = unsafe { dpdk_sys::shim_lcore_id() };
        if lcore != dpdk_sys::SHIM_LCORE_ID_ANY {
            return Err(Error::ThreadRegisteredBefore { lcore });
        }
        // SAFETY: EAL runs, and this thread has no lcore id (checked above).
        if unsafe { dpdk_sys::rte_thread_register() } < 0 {
            return Err(Error::Call {
                function: "rte_thread_register",
                object: format!(
                    "thread {:?}",
                    std::thread::current().name().unwrap_or("unnamed")
                ),
                errno: Errno::last(),
            });
        }
        Ok(RegisteredThread {
            // SAFETY: reads a thread-local variable.
            lcore: unsafe { dpdk_sys::shim_lcore_id() },
            _eal: eal.clone(),
            _stays_here: PhantomData,
        })
    }

    /// The lcore id that EAL gave this thread.
    #[must_use]
    pub fn lcore(&self) -> u32 {
        self.lcore
    }

    /// The NUMA node this thread runs on, when EAL knew one node for its affinity at registration.
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        // SAFETY: reads a thread-local variable.
        let node = unsafe { dpdk_sys::shim_numa_node() };
        (node as i32 != dpdk_sys::SHIM_SOCKET_ID_ANY).then_some(node)
    }
}

impl Drop for RegisteredThread {
    fn drop(&mut self) {
        // SAFETY: this thread registered itself (the guard cannot leave it), and EAL still runs.
        unsafe { dpdk_sys::rte_thread_unregister() };
    }
}
