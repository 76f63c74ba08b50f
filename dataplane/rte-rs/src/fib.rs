//! Longest-prefix match: over IPv4 by `rte_fib` (DIR24_8), one memory access for prefixes up to /24 and two for longer ones;
//! over IPv6 by `rte_fib6` (TRIE), one access for the first 24 bits and one for each further octet of the longest prefix.
//!
//! # One writer, any number of readers
//!
//! DPDK 22.11 locks nothing. Modifications must not overlap each other: [`FibWriter`] cannot be cloned and takes
//! `&mut self`. Lookups may run while a modification does and are memory-safe then, since no memory is returned before the
//! last handle is dropped; entries are of the size of a next hop, aligned, and written whole. What a lookup finds meanwhile
//! is another matter:
//!
//! - A table of 256 entries (tbl8) that a modification gives back is cleared and used again at once, without waiting for
//!   readers: a lookup between its two accesses may see next hop 0, or a next hop of another prefix.
//! - A new prefix longer than /24 with the next hop of the prefix around it may show the default next hop for an instant:
//!   [`FibWriter::add`] works around a fault of DPDK (fixed in 24.11.5 and 26.03) that way.
//!
//! Whoever cannot live with that keeps two FIBs and changes the one that nobody looks at.
//!
//! # End of the address space
//!
//! A prefix that ends at the last address, with another inside that does too (0.0.0.0/0 and 255.255.255.255/32), makes DPDK
//! 22.11 write its next hop over the whole table. Leave out what lies in 224.0.0.0/3 and in ff00::/8, as no packet to there
//! is forwarded, and have no two of the others (0.0.0.0/0 and 128.0.0.0/1).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{c_char, c_int};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ptr::NonNull;
use std::sync::Arc;

use dpdk_sys::{rte_fib, rte_fib6, shim_fib_conf};

use crate::eal::Eal;
use crate::error::{Errno, Error, c_string, check};
use crate::mempool::numa;

/// Size of a next hop. The table of /24s alone takes 2^24 of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextHopSize {
    /// Values up to 127; 16 MiB. IPv4 only.
    One,
    /// Values up to 32,767; 32 MiB.
    Two,
    /// Values up to 2^31 - 1; 64 MiB.
    Four,
    /// Values up to 2^63 - 1; 128 MiB.
    Eight,
}

impl NextHopSize {
    /// The smallest size but [`NextHopSize::One`] for next hops below `count`.
    #[must_use]
    pub fn for_count(count: u32) -> Self {
        if u64::from(count) <= NextHopSize::Two.max_next_hop() + 1 {
            NextHopSize::Two
        } else {
            NextHopSize::Four
        }
    }

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
pub struct FibConfig {
    /// Name, unique in the process among FIBs of its family, at most 56 bytes.
    pub name: String,
    /// Routes it can hold.
    pub max_routes: u32,
    /// What a lookup gives where no route matches. 0 is the safe choice, see the module's documentation.
    pub default_next_hop: u64,
    /// Tables for prefixes longer than /24. IPv4: one per /24 that has such prefixes. IPv6: one per /24, /32, /40, ... that
    /// has longer prefixes, so up to 13 for a route alone, and about one for two routes of the internet's. At least 1 and
    /// at most the largest next hop of the size.
    pub tbl8_groups: u32,
    /// Size of a next hop.
    pub next_hop_size: NextHopSize,
    /// NUMA node of the memory; `None` for any.
    pub numa_node: Option<u32>,
}

impl FibConfig {
    /// EAL memory the FIB takes, bytes, within a few percent: the table of /24s, the tbl8 groups, and the tree of prefixes
    /// with an inner node for every route.
    #[must_use]
    pub fn memory(&self) -> u64 {
        /// A tree node as the mempool lays it out, in whole cache lines behind a header of one, and its place in the ring.
        const NODE: u64 = 128 + 16;
        let entries = (1 << 24) + (u64::from(self.tbl8_groups) << 8);
        (entries << self.next_hop_size.log2()) + 2 * NODE * u64::from(self.max_routes)
    }
}

mod family {
    use super::{c_char, c_int, fmt, shim_fib_conf};

    /// What differs between the address families, [`super::V4`] and [`super::V6`]. Nobody else implements it.
    pub trait Family {
        /// DPDK's structure.
        type Raw: fmt::Debug;
        /// A network address.
        type Prefix: Copy + Ord + fmt::Display + fmt::Debug + Send;
        /// An address as lookups take it.
        type Key: Copy;
        /// The tbl8 groups in use, where DPDK does not count them right itself.
        type Groups: Default + fmt::Debug + Send;
        /// Size of the smallest next hop, as a power of two of bytes.
        const SMALLEST_LOG2: u32;
        /// Name of the function behind `create`.
        const CREATE: &'static str;
        /// Name of the function behind `add`.
        const ADD: &'static str;
        /// Name of the function behind `delete`.
        const DELETE: &'static str;

        /// # Safety
        /// EAL runs; a C string.
        unsafe fn create(name: *const c_char, conf: &shim_fib_conf) -> *mut Self::Raw;
        /// # Safety
        /// The FIB exists and is not used any more.
        unsafe fn free(fib: *mut Self::Raw);
        /// # Safety
        /// The FIB exists and nobody else modifies it.
        unsafe fn add(
            fib: *mut Self::Raw,
            prefix: Self::Prefix,
            len: u8,
            next_hop: u64,
            transient: u64,
        ) -> c_int;
        /// Whether the route is there. Asked before `take` and `give` only.
        ///
        /// # Safety
        /// As for `add`.
        unsafe fn has(fib: *mut Self::Raw, prefix: Self::Prefix, len: u8) -> bool;
        /// Takes the groups of a new route; false when there are fewer than it needs.
        fn take(groups: &mut Self::Groups, max: u32, prefix: Self::Prefix, len: u8) -> bool;
        /// Gives a route's groups back.
        fn give(groups: &mut Self::Groups, prefix: Self::Prefix, len: u8);
        /// # Safety
        /// As for `add`.
        unsafe fn delete(fib: *mut Self::Raw, prefix: Self::Prefix, len: u8) -> c_int;
        /// # Safety
        /// The FIB exists; `n` readable keys and `n` writable next hops.
        unsafe fn lookup(
            fib: *mut Self::Raw,
            keys: *const Self::Key,
            next_hops: *mut u64,
            n: c_int,
        );
    }
}

pub use family::Family;

/// IPv4: lookups take addresses in host byte order.
#[derive(Debug, Clone, Copy)]
pub enum V4 {}

/// IPv6: lookups take addresses as they stand in the packet.
#[derive(Debug, Clone, Copy)]
pub enum V6 {}

impl Family for V4 {
    type Raw = rte_fib;
    type Prefix = Ipv4Addr;
    type Key = u32;
    type Groups = ();
    const SMALLEST_LOG2: u32 = 0;
    const CREATE: &'static str = "rte_fib_create";
    const ADD: &'static str = "rte_fib_add";
    const DELETE: &'static str = "rte_fib_delete";

    unsafe fn create(name: *const c_char, conf: &shim_fib_conf) -> *mut rte_fib {
        // SAFETY: as the caller promises.
        unsafe { dpdk_sys::shim_fib_create(name, conf) }
    }

    unsafe fn free(fib: *mut rte_fib) {
        // SAFETY: as the caller promises.
        unsafe { dpdk_sys::rte_fib_free(fib) }
    }

    unsafe fn add(
        fib: *mut rte_fib,
        prefix: Ipv4Addr,
        len: u8,
        next_hop: u64,
        transient: u64,
    ) -> c_int {
        // SAFETY: as the caller promises.
        unsafe { dpdk_sys::shim_fib_add(fib, prefix.into(), len, next_hop, transient) }
    }

    unsafe fn has(_: *mut rte_fib, _: Ipv4Addr, _: u8) -> bool {
        false
    }

    fn take((): &mut (), _: u32, _: Ipv4Addr, _: u8) -> bool {
        true
    }

    fn give((): &mut (), _: Ipv4Addr, _: u8) {}

    unsafe fn delete(fib: *mut rte_fib, prefix: Ipv4Addr, len: u8) -> c_int {
        // SAFETY: as the caller promises.
        unsafe { dpdk_sys::rte_fib_delete(fib, prefix.into(), len) }
    }

    #[inline]
    unsafe fn lookup(fib: *mut rte_fib, keys: *const u32, next_hops: *mut u64, n: c_int) {
        // SAFETY: as the caller promises; the addresses are only read, the argument lacks a const.
        unsafe { dpdk_sys::rte_fib_lookup_bulk(fib, keys.cast_mut(), next_hops, n) };
    }
}

/// The tbl8 groups of an IPv6 FIB: one for each prefix of 24, 32, ... 120 bits with a longer route below it, and how many
/// routes are below. DPDK has as many or fewer in use, and a few more while it works.
#[derive(Debug, Default)]
pub struct Groups(HashMap<(u8, [u8; 16]), u32>);

/// Groups kept back for what DPDK takes while it works: one for each octet, at both ends of a range.
const SPARE_GROUPS: usize = 26;

impl Groups {
    fn on_the_way(prefix: Ipv6Addr, len: u8) -> impl Iterator<Item = (u8, [u8; 16])> {
        (24..len.min(128))
            .step_by(8)
            .map(move |at| (at, masked(prefix, at)))
    }

    fn take(&mut self, max: u32, prefix: Ipv6Addr, len: u8) -> bool {
        let new = Self::on_the_way(prefix, len).filter(|key| !self.0.contains_key(key));
        if self.0.len() + new.count() + SPARE_GROUPS > max as usize {
            return false;
        }
        for key in Self::on_the_way(prefix, len) {
            *self.0.entry(key).or_default() += 1;
        }
        true
    }

    fn give(&mut self, prefix: Ipv6Addr, len: u8) {
        for key in Self::on_the_way(prefix, len) {
            if let Entry::Occupied(mut routes) = self.0.entry(key) {
                *routes.get_mut() -= 1;
                if *routes.get() == 0 {
                    routes.remove();
                }
            }
        }
    }
}

/// The octets of a prefix without its host bits: `rte_rib6` finds no exact match otherwise.
fn masked(prefix: Ipv6Addr, len: u8) -> [u8; 16] {
    let mask = u128::MAX
        .checked_shl(128u32.saturating_sub(len.into()))
        .unwrap_or(0);
    (prefix.to_bits() & mask).to_be_bytes()
}

impl Family for V6 {
    type Raw = rte_fib6;
    type Prefix = Ipv6Addr;
    type Key = [u8; 16];
    type Groups = Groups;
    const SMALLEST_LOG2: u32 = 1;
    const CREATE: &'static str = "rte_fib6_create";
    const ADD: &'static str = "rte_fib6_add";
    const DELETE: &'static str = "rte_fib6_delete";

    unsafe fn create(name: *const c_char, conf: &shim_fib_conf) -> *mut rte_fib6 {
        // SAFETY: as the caller promises.
        unsafe { dpdk_sys::shim_fib6_create(name, conf) }
    }

    unsafe fn free(fib: *mut rte_fib6) {
        // SAFETY: as the caller promises.
        unsafe { dpdk_sys::rte_fib6_free(fib) }
    }

    unsafe fn add(fib: *mut rte_fib6, prefix: Ipv6Addr, len: u8, next_hop: u64, _: u64) -> c_int {
        let prefix = masked(prefix, len);
        // SAFETY: as the caller promises; sixteen octets.
        unsafe { dpdk_sys::shim_fib6_add(fib, prefix.as_ptr(), len, next_hop) }
    }

    unsafe fn has(fib: *mut rte_fib6, prefix: Ipv6Addr, len: u8) -> bool {
        let prefix = masked(prefix, len);
        // SAFETY: as the caller promises; sixteen octets.
        unsafe { dpdk_sys::shim_fib6_has(fib, prefix.as_ptr(), len) }
    }

    fn take(groups: &mut Groups, max: u32, prefix: Ipv6Addr, len: u8) -> bool {
        groups.take(max, prefix, len)
    }

    fn give(groups: &mut Groups, prefix: Ipv6Addr, len: u8) {
        groups.give(prefix, len);
    }

    unsafe fn delete(fib: *mut rte_fib6, prefix: Ipv6Addr, len: u8) -> c_int {
        let prefix = masked(prefix, len);
        // SAFETY: as the caller promises; sixteen octets.
        unsafe { dpdk_sys::shim_fib6_delete(fib, prefix.as_ptr(), len) }
    }

    #[inline]
    unsafe fn lookup(fib: *mut rte_fib6, keys: *const [u8; 16], next_hops: *mut u64, n: c_int) {
        // SAFETY: as the caller promises; a key is sixteen octets.
        unsafe { dpdk_sys::shim_fib6_lookup_bulk(fib, keys.cast(), next_hops, n) };
    }
}

#[derive(Debug)]
struct Fib<F: Family> {
    fib: NonNull<F::Raw>,
    name: String,
    default_next_hop: u64,
    max_next_hop: u64,
    _eal: Eal,
}

// SAFETY: the handles below keep modifications to one thread at a time; lookups are allowed to all.
unsafe impl<F: Family> Send for Fib<F> {}
// SAFETY: as above.
unsafe impl<F: Family> Sync for Fib<F> {}

impl<F: Family> Drop for Fib<F> {
    fn drop(&mut self) {
        // SAFETY: made by `create`, and no handle is left.
        unsafe { F::free(self.fib.as_ptr()) };
    }
}

/// The handle that changes a FIB; there is one per FIB.
#[derive(Debug)]
pub struct FibWriter<F: Family> {
    fib: Arc<Fib<F>>,
    max_groups: u32,
    groups: F::Groups,
}

/// A handle that looks up, for any thread.
#[derive(Debug)]
pub struct FibReader<F: Family> {
    fib: Arc<Fib<F>>,
}

impl<F: Family> Clone for FibReader<F> {
    fn clone(&self) -> Self {
        Self {
            fib: Arc::clone(&self.fib),
        }
    }
}

/// Changes an IPv4 FIB.
pub type Fib4Writer = FibWriter<V4>;
/// Looks up in an IPv4 FIB.
pub type Fib4Reader = FibReader<V4>;
/// Changes an IPv6 FIB.
pub type Fib6Writer = FibWriter<V6>;
/// Looks up in an IPv6 FIB.
pub type Fib6Reader = FibReader<V6>;

/// Makes an empty FIB of either family.
///
/// # Errors
/// [`Error::NextHopTooLarge`] for the default next hop; [`Error::FibMemory`] when EAL has not enough; [`Error::Call`] for
/// `rte_fib_create`: a name in use (`EEXIST`) or too long (`ENAMETOOLONG`), a wrong number (`EINVAL`), or a DPDK whose IPv6
/// tables differ from those known here (`EPROTO`).
pub fn fib<F: Family>(
    eal: &Eal,
    config: &FibConfig,
) -> Result<(FibWriter<F>, FibReader<F>), Error> {
    let max_next_hop = config.next_hop_size.max_next_hop();
    check_next_hop(&config.name, config.default_next_hop, max_next_hop)?;
    let name = c_string(&config.name)?;
    let conf = shim_fib_conf {
        default_next_hop: config.default_next_hop,
        // An int in DPDK's structure, and twice as many nodes in its tree.
        max_routes: config.max_routes.min(i32::MAX as u32 / 2),
        num_tbl8: config.tbl8_groups,
        next_hop_log2: config.next_hop_size.log2(),
        socket: numa(config.numa_node),
    };
    let failed = |errno| Error::Call {
        function: F::CREATE,
        object: format!("FIB {} of {} routes", config.name, config.max_routes),
        errno,
    };
    // DPDK checks these too, but its answer is the same when memory is short.
    let groups = 1..=max_next_hop;
    if config.next_hop_size.log2() < F::SMALLEST_LOG2
        || !groups.contains(&config.tbl8_groups.into())
        || config.max_routes == 0
    {
        return Err(failed(Errno::INVAL));
    }
    // SAFETY: EAL runs; a C string and a valid structure.
    let fib = unsafe { F::create(name.as_ptr(), &conf) };
    let fib = NonNull::new(fib).ok_or_else(|| match Errno::last() {
        errno @ (Errno::EXIST | Errno::NAMETOOLONG | Errno::PROTO) => failed(errno),
        // The numbers are right, so it is memory, whatever the last function inside had to say.
        _ => Error::FibMemory {
            fib: config.name.clone(),
            routes: config.max_routes,
            mib: config.memory().div_ceil(1 << 20),
        },
    })?;
    let fib = Arc::new(Fib {
        fib,
        name: config.name.clone(),
        default_next_hop: config.default_next_hop,
        max_next_hop,
        _eal: eal.clone(),
    });
    Ok((
        FibWriter {
            fib: Arc::clone(&fib),
            max_groups: config.tbl8_groups,
            groups: F::Groups::default(),
        },
        FibReader { fib },
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

impl<F: Family> FibWriter<F> {
    /// Adds a route or changes its next hop. Bits of `prefix` beyond `len` are ignored.
    ///
    /// # Errors
    /// [`Error::NextHopTooLarge`]; [`Error::Call`] for `rte_fib_add`: `EINVAL` for a length above the address's, `ENOSPC` or
    /// `ENOMEM` when routes or tbl8 groups run out.
    pub fn add(&mut self, prefix: F::Prefix, len: u8, next_hop: u64) -> Result<(), Error> {
        check_next_hop(&self.fib.name, next_hop, self.fib.max_next_hop)?;
        let transient = if next_hop == self.fib.default_next_hop {
            next_hop ^ 1
        } else {
            self.fib.default_next_hop
        };
        let raw = self.fib.fib.as_ptr();
        // SAFETY: the FIB exists, and this is the only writer.
        let is_new = !unsafe { F::has(raw, prefix, len) };
        if is_new && !F::take(&mut self.groups, self.max_groups, prefix, len) {
            return self.check(F::ADD, prefix, len, -Errno::NOSPC.0);
        }
        // SAFETY: as above.
        let code = unsafe { F::add(raw, prefix, len, next_hop, transient) };
        if is_new && code < 0 {
            F::give(&mut self.groups, prefix, len);
        }
        self.check(F::ADD, prefix, len, code)
    }

    /// Removes a route.
    ///
    /// # Errors
    /// [`Error::Call`] for `rte_fib_delete`: `ENOENT` when there is no such route, `EINVAL` for a length above the address's.
    pub fn delete(&mut self, prefix: F::Prefix, len: u8) -> Result<(), Error> {
        // SAFETY: as for `add`.
        let code = unsafe { F::delete(self.fib.fib.as_ptr(), prefix, len) };
        if code >= 0 {
            F::give(&mut self.groups, prefix, len);
        }
        self.check(F::DELETE, prefix, len, code)
    }

    /// A handle for lookups.
    #[must_use]
    pub fn reader(&self) -> FibReader<F> {
        FibReader {
            fib: Arc::clone(&self.fib),
        }
    }

    fn check(
        &self,
        function: &'static str,
        prefix: F::Prefix,
        len: u8,
        code: c_int,
    ) -> Result<(), Error> {
        if code >= 0 {
            return Ok(());
        }
        let object = format!("{prefix}/{len} in FIB {}", self.fib.name);
        check(function, &object, code).map(drop)
    }
}

impl<F: Family> FibReader<F> {
    /// Looks up `addresses` and writes their next hops, in one call. Does as many as the shorter slice holds.
    #[inline]
    pub fn lookup_bulk(&self, addresses: &[F::Key], next_hops: &mut [u64]) {
        let count = addresses.len().min(next_hops.len()).min(i32::MAX as usize);
        // SAFETY: the FIB exists; `count` addresses are read, `count` next hops written.
        unsafe {
            F::lookup(
                self.fib.fib.as_ptr(),
                addresses.as_ptr(),
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
        assert_eq!(NextHopSize::for_count(32_768), NextHopSize::Two);
        assert_eq!(NextHopSize::for_count(32_769), NextHopSize::Four);
    }

    #[test]
    fn groups_are_counted_once_for_all_routes_below_them() {
        let mut groups = Groups::default();
        let max = SPARE_GROUPS as u32 + 13;
        let host: Ipv6Addr = "2001:db8::1".parse().unwrap();
        let beside: Ipv6Addr = "2001:db8::2".parse().unwrap();
        let far: Ipv6Addr = "2001:db8::1:0".parse().unwrap();
        assert!(groups.take(max, host, 128) && groups.take(max, beside, 128));
        assert!(groups.take(max, far, 24), "none at all");
        assert_eq!(groups.0.len(), 13);
        assert!(!groups.take(max, far, 128), "another /112 and /120");
        assert_eq!(groups.0.len(), 13);
        groups.give(host, 128);
        assert_eq!(groups.0.len(), 13);
        groups.give(beside, 128);
        assert!(groups.0.is_empty());
        assert!(groups.take(max, far, 128));
    }

    #[test]
    fn host_bits_of_a_prefix_are_cleared() {
        let address: Ipv6Addr = "2001:db8::1".parse().unwrap();
        assert_eq!(masked(address, 0), [0; 16]);
        assert_eq!(masked(address, 128), address.octets());
        assert_eq!(
            Ipv6Addr::from(masked(address, 32)).to_string(),
            "2001:db8::"
        );
    }
}
