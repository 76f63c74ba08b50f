//! Longest-prefix match over IPv4 (`rte_fib`, DIR24_8): one memory access for prefixes up to /24, two for longer ones.
//!
//! # One writer, any number of readers
//!
//! DPDK 22.11 locks nothing. Modifications must not overlap each other: [`Fib4Writer`] cannot be cloned and takes
//! `&mut self`. Lookups may run while a modification does: entries are of the size of a next hop, aligned, and written
//! whole, so that a lookup sees the old or the new one of each.
//!
//! There are two exceptions:
//!
//! - A table of 256 entries (tbl8) that a deletion gives back is cleared and used again at once, without waiting for readers:
//!   a lookup that is between its two accesses at that moment may see next hop 0, or a next hop of another /24.
//! - A new prefix longer than /24 with the next hop of the prefix around it may show the default next hop for an instant:
//!   [`Fib4Writer::add`] works around a fault of DPDK (fixed in 24.11.5 and 26.03) that way.
//!
//! So let 0 mean "no route" and be the default, which makes a lost packet of either; treat next hops as indices to be checked;
//! and expect that a packet can be misdirected while prefixes longer than /24 come and go. No memory is returned before the
//! last handle is dropped, so that lookups are memory-safe at all times.

use std::ffi::c_int;
use std::net::Ipv4Addr;
use std::ptr::NonNull;
use std::sync::Arc;

use dpdk_sys::rte_fib;

use crate::eal::Eal;
use crate::error::{Errno, Error, c_string, check};
use crate::mempool::numa;

/// Size of a next hop. The table of /24s alone takes 2^24 of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextHopSize {
    /// Values up to 127; 16 MiB.
    One,
    /// Values up to 32,767; 32 MiB.
    Two,
    /// Values up to 2^31 - 1; 64 MiB.
    Four,
    /// Values up to 2^63 - 1; 128 MiB.
    Eight,
}

impl NextHopSize {
    fn log2(self) -> u32 {
        match self {
            NextHopSize::One => 0,
            NextHopSize::Two => 1,
            NextHopSize::Four => 2,
            NextHopSize::Eight => 3,
        }
    }

    /// The largest next hop. One bit of an entry says whether it points to a tbl8.
    #[must_use]
    pub fn max_next_hop(self) -> u64 {
        u64::MAX >> (64 - (8 << self.log2()) + 1)
    }
}

/// How to make a FIB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fib4Config {
    /// Name, unique in the process, at most 56 bytes.
    pub name: String,
    /// Routes it can hold.
    pub max_routes: u32,
    /// What a lookup gives where no route matches. 0 is the safe choice, see the module's documentation.
    pub default_next_hop: u64,
    /// Tables for prefixes longer than /24: one per /24 that has such prefixes.
    pub tbl8_groups: u32,
    /// Size of a next hop.
    pub next_hop_size: NextHopSize,
    /// NUMA node of the memory; `None` for any.
    pub numa_node: Option<u32>,
}

#[derive(Debug)]
struct Fib {
    fib: NonNull<rte_fib>,
    name: String,
    default_next_hop: u64,
    max_next_hop: u64,
    _eal: Eal,
}

// SAFETY: the handles below keep modifications to one thread at a time; lookups are allowed to all.
unsafe impl Send for Fib {}
// SAFETY: as above.
unsafe impl Sync for Fib {}

impl Drop for Fib {
    fn drop(&mut self) {
        // SAFETY: made by rte_fib_create, and no handle is left.
        unsafe { dpdk_sys::rte_fib_free(self.fib.as_ptr()) };
    }
}

/// The handle that changes a FIB; there is one per FIB.
#[derive(Debug)]
pub struct Fib4Writer {
    fib: Arc<Fib>,
}

/// A handle that looks up, for any thread.
#[derive(Debug, Clone)]
pub struct Fib4Reader {
    fib: Arc<Fib>,
}

/// Makes an empty FIB.
///
/// # Errors
/// [`Error::NextHopTooLarge`] for the default next hop; [`Error::Call`] for `rte_fib_create`: a name in use (`EEXIST`), not
/// enough memory (`ENOMEM`), a wrong number (`EINVAL`).
pub fn fib4(eal: &Eal, config: &Fib4Config) -> Result<(Fib4Writer, Fib4Reader), Error> {
    let max_next_hop = config.next_hop_size.max_next_hop();
    check_next_hop(&config.name, config.default_next_hop, max_next_hop)?;
    let name = c_string(&config.name)?;
    let conf = dpdk_sys::shim_fib_conf {
        default_next_hop: config.default_next_hop,
        // An int in DPDK's structure.
        max_routes: config.max_routes.min(i32::MAX as u32),
        num_tbl8: config.tbl8_groups,
        next_hop_log2: config.next_hop_size.log2(),
        socket: numa(config.numa_node),
    };
    // SAFETY: EAL runs; a C string and a valid structure.
    let fib = unsafe { dpdk_sys::shim_fib_create(name.as_ptr(), &conf) };
    let fib = NonNull::new(fib).ok_or_else(|| Error::Call {
        function: "rte_fib_create",
        object: format!("FIB {} of {} routes", config.name, config.max_routes),
        errno: Errno::last(),
    })?;
    let fib = Arc::new(Fib {
        fib,
        name: config.name.clone(),
        default_next_hop: config.default_next_hop,
        max_next_hop,
        _eal: eal.clone(),
    });
    Ok((
        Fib4Writer {
            fib: Arc::clone(&fib),
        },
        Fib4Reader { fib },
    ))
}

fn check_next_hop(fib: &str, next_hop: u64, max: u64) -> Result<(), Error> {
    if next_hop <= max {
        return Ok(());
    }
    Err(Error::NextHopTooLarge {
        fib: fib.to_owned(),
        next_hop,
        max,
    })
}

impl Fib4Writer {
    /// Adds a route or changes its next hop. Bits of `prefix` beyond `len` are ignored.
    ///
    /// # Errors
    /// [`Error::NextHopTooLarge`]; [`Error::Call`] for `rte_fib_add`: `EINVAL` for a length above 32, `ENOSPC` or `ENOMEM`
    /// when routes or tbl8 groups run out.
    pub fn add(&mut self, prefix: Ipv4Addr, len: u8, next_hop: u64) -> Result<(), Error> {
        check_next_hop(&self.fib.name, next_hop, self.fib.max_next_hop)?;
        let transient = if next_hop == self.fib.default_next_hop {
            next_hop ^ 1
        } else {
            self.fib.default_next_hop
        };
        // SAFETY: the FIB exists, and this is the only writer.
        let code = unsafe {
            dpdk_sys::shim_fib_add(
                self.fib.fib.as_ptr(),
                prefix.into(),
                len,
                next_hop,
                transient,
            )
        };
        self.check("rte_fib_add", prefix, len, code)
    }

    /// Removes a route.
    ///
    /// # Errors
    /// [`Error::Call`] for `rte_fib_delete`: `ENOENT` when there is no such route, `EINVAL` for a length above 32.
    pub fn delete(&mut self, prefix: Ipv4Addr, len: u8) -> Result<(), Error> {
        // SAFETY: as for `add`.
        let code = unsafe { dpdk_sys::rte_fib_delete(self.fib.fib.as_ptr(), prefix.into(), len) };
        self.check("rte_fib_delete", prefix, len, code)
    }

    /// A handle for lookups.
    #[must_use]
    pub fn reader(&self) -> Fib4Reader {
        Fib4Reader {
            fib: Arc::clone(&self.fib),
        }
    }

    fn check(
        &self,
        function: &'static str,
        prefix: Ipv4Addr,
        len: u8,
        code: i32,
    ) -> Result<(), Error> {
        if code >= 0 {
            return Ok(());
        }
        let object = format!("{prefix}/{len} in FIB {}", self.fib.name);
        check(function, &object, code).map(drop)
    }
}

impl Fib4Reader {
    /// Looks up `addresses` (host byte order) and writes their next hops, in one call. Does as many as the shorter slice
    /// holds.
    #[inline]
    pub fn lookup_bulk(&self, addresses: &[u32], next_hops: &mut [u64]) {
        let count = addresses.len().min(next_hops.len()).min(i32::MAX as usize);
        // SAFETY: the FIB exists; `count` addresses are only read (the argument lacks a const), `count` next hops written.
        unsafe {
            dpdk_sys::rte_fib_lookup_bulk(
                self.fib.fib.as_ptr(),
                addresses.as_ptr().cast_mut(),
                next_hops.as_mut_ptr(),
                count as c_int,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_of_a_next_hop_is_taken() {
        assert_eq!(NextHopSize::One.max_next_hop(), 127);
        assert_eq!(NextHopSize::Two.max_next_hop(), 32_767);
        assert_eq!(NextHopSize::Four.max_next_hop(), (1 << 31) - 1);
        assert_eq!(NextHopSize::Eight.max_next_hop(), (1 << 63) - 1);
    }
}
