//! The environment abstraction layer: one per process.

use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::eal_args::EalArgs;
use crate::error::{Errno, Error, c_string};
use crate::thread::RegisteredThread;

static INITIALISED: AtomicBool = AtomicBool::new(false);

/// A running EAL. Clones are handles to the same one; so are the objects made from it. When the last is gone, EAL cleans up.
#[derive(Clone)]
pub struct Eal {
    process: Arc<Process>,
}

struct Process {
    /// Every mempool made: they live as long as EAL.
    pools: Mutex<Vec<PoolPointer>>,
    /// EAL may keep pointers into its arguments.
    _argv: Vec<CString>,
}

struct PoolPointer(NonNull<dpdk_sys::rte_mempool>);

// SAFETY: the pointer is only used for counting, which DPDK allows from any thread.
unsafe impl Send for PoolPointer {}

impl Eal {
    /// Starts EAL, once per process. Its log and the drivers' go to stderr.
    ///
    /// `rte_eal_init` pins the calling thread to the CPU of the main lcore, and threads started later inherit that: pin
    /// every worker, or ask for [`EalArgs::restore_affinity`].
    ///
    /// # Errors
    /// [`Error::EalInitialisedBefore`] on a second call, also after a failure; [`Error::EalInit`] when EAL refuses, for
    /// example for want of hugepages; [`Error::Affinity`]; [`Error::NulByte`].
    pub fn init(args: &EalArgs) -> Result<Self, Error> {
        let affinity = sched_getaffinity(None).map_err(|errno| Error::Affinity {
            action: "read",
            errno: errno.raw_os_error(),
        })?;
        let first_cpu = (0..CpuSet::MAX_CPU)
            .find(|&cpu| affinity.is_set(cpu))
            .unwrap_or(0);
        let argv = args.to_argv(first_cpu);
        let arguments = argv.join(" ");
        let argv = argv
            .iter()
            .map(|argument| c_string(argument))
            .collect::<Result<Vec<_>, _>>()?;
        if INITIALISED.swap(true, Ordering::AcqRel) {
            return Err(Error::EalInitialisedBefore);
        }
        let mut pointers: Vec<*mut c_char> = argv
            .iter()
            .map(|argument| argument.as_ptr().cast_mut())
            .chain([std::ptr::null_mut()])
            .collect();
        // SAFETY: stderr is open for the life of the process, and EAL does not run yet.
        unsafe { dpdk_sys::shim_log_to_stderr() };
        // SAFETY: argc strings and a null pointer; EAL reorders the pointers and does not write to the strings, which live in
        // `Process` as long as EAL does. The flag above makes this the only call in the process.
        let code = unsafe { dpdk_sys::rte_eal_init(argv.len() as c_int, pointers.as_mut_ptr()) };
        if code < 0 {
            return Err(Error::EalInit {
                arguments,
                errno: Errno::last(),
            });
        }
        let eal = Eal {
            process: Arc::new(Process {
                pools: Mutex::new(Vec::new()),
                _argv: argv,
            }),
        };
        if args.restores_affinity() {
            sched_setaffinity(None, &affinity).map_err(|errno| Error::Affinity {
                action: "restored",
                errno: errno.raw_os_error(),
            })?;
        }
        Ok(eal)
    }

    /// Makes the calling std thread an EAL thread until the guard is dropped, which gives it its own mempool caches: a free
    /// or an allocation then seldom touches memory shared with other cores. Pin the thread first.
    ///
    /// DPDK secondary processes are refused from the first registration on.
    ///
    /// # Errors
    /// [`Error::ThreadRegisteredBefore`]; [`Error::Call`] when `RTE_MAX_LCORE` threads are registered or a secondary process
    /// is attached.
    pub fn register_thread(&self) -> Result<RegisteredThread, Error> {
        RegisteredThread::register(self)
    }

    /// Time-stamp counter ticks per second, measured when EAL started.
    #[must_use]
    pub fn tsc_hz(&self) -> u64 {
        // SAFETY: EAL runs.
        unsafe { dpdk_sys::shim_tsc_hz() }
    }

    pub(crate) fn keep_pool(&self, pool: NonNull<dpdk_sys::rte_mempool>) {
        self.process
            .pools
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(PoolPointer(pool));
    }
}

impl fmt::Debug for Eal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Eal").finish_non_exhaustive()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let pools = self.pools.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: pools live until rte_eal_cleanup. Every handle to EAL is gone, so no registered thread is left that could
        // be in the middle of a free, and no pool handle to allocate from.
        let all_home = pools
            .iter()
            .all(|pool| unsafe { dpdk_sys::rte_mempool_in_use_count(pool.0.as_ptr()) } == 0);
        // Cleaning up unmaps packet memory; an `Mbuf` that is still somewhere would then be a dangling pointer. The kernel
        // takes everything back when the process ends.
        if all_home {
            // SAFETY: EAL runs, nothing made from it exists any more, and it cannot be started again.
            unsafe { dpdk_sys::rte_eal_cleanup() };
        }
    }
}

/// The time-stamp counter of the CPU, not serialising. Ticks at [`Eal::tsc_hz`]; the same on all cores of current machines.
#[inline]
#[must_use]
pub fn tsc() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: RDTSC exists on every x86-64 CPU.
        unsafe { core::arch::x86_64::_rdtsc() }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        // SAFETY: reads a counter.
        unsafe { dpdk_sys::shim_tsc() }
    }
}

/// The version of the DPDK library that is loaded, for example `DPDK 22.11.4`. EAL need not run.
#[must_use]
pub fn version() -> &'static str {
    // SAFETY: rte_version returns a NUL-terminated string in static memory that does not change after the first call's
    // formatting, which every call repeats with the same text.
    unsafe { CStr::from_ptr(dpdk_sys::rte_version()) }
        .to_str()
        .unwrap_or("DPDK, version unreadable")
}
