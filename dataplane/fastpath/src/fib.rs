//! The route look-up the stages need.

/// An IPv4 longest-prefix-match table whose values are next-hop indices
/// ([`bng_shm::NextHopId`]); 0 means "no route".
pub trait Fib4 {
    /// Looks up a burst of destination addresses (host byte order), at most [`crate::BURST`].
    ///
    /// `out` has the length of `dst`; every element is stored.
    fn lookup(&self, dst: &[u32], out: &mut [u64]);
}
