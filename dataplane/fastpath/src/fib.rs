//! The route look-ups the stages need.

/// An IPv4 longest-prefix-match table whose values are next-hop indices
/// ([`bng_shm::NextHopId`]); 0 means "no route".
pub trait Fib4 {
    /// Looks up a burst of destination addresses (host byte order), at most [`crate::BURST`].
    ///
    /// `out` has the length of `dst`; every element is stored.
    fn lookup(&self, dst: &[u32], out: &mut [u64]);
}

/// As [`Fib4`], for IPv6.
pub trait Fib6 {
    /// Looks up a burst of destination addresses (as they stand in the header), at most [`crate::BURST`].
    ///
    /// `out` has the length of `dst`; every element is stored.
    fn lookup6(&self, dst: &[[u8; 16]], out: &mut [u64]);
}
