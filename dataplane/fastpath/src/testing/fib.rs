//! Longest-prefix match as slow and plain as it gets.

use bng_shm::{NextHopId, Route, Route6};

use crate::{Fib4, Fib6};

/// All routes, longest prefix first.
#[derive(Debug, Clone, Default)]
pub struct NaiveFib {
    routes: Vec<Route>,
    routes6: Vec<Route6>,
}

impl NaiveFib {
    /// A table of these routes.
    #[must_use]
    pub fn new(mut routes: Vec<Route>) -> Self {
        routes.sort_by_key(|route| std::cmp::Reverse(route.length));
        Self {
            routes,
            routes6: Vec::new(),
        }
    }

    /// The same with these IPv6 routes.
    #[must_use]
    pub fn with_ipv6(mut self, mut routes: Vec<Route6>) -> Self {
        routes.sort_by_key(|route| std::cmp::Reverse(route.length));
        self.routes6 = routes;
        self
    }

    fn find6(&self, dst: u128) -> NextHopId {
        let matches = |route: &&Route6| {
            let mask = u128::MAX
                .checked_shl(128 - u32::from(route.length))
                .unwrap_or(0);
            dst & mask == route.prefix.to_bits()
        };
        self.routes6
            .iter()
            .find(matches)
            .map_or(NextHopId(0), |route| route.next_hop)
    }

    fn find(&self, dst: u32) -> NextHopId {
        let matches = |route: &&Route| {
            let mask = u32::MAX
                .checked_shl(32 - u32::from(route.length))
                .unwrap_or(0);
            dst & mask == route.prefix.to_bits()
        };
        self.routes
            .iter()
            .find(matches)
            .map_or(NextHopId(0), |route| route.next_hop)
    }
}

impl Fib4 for NaiveFib {
    fn lookup(&self, dst: &[u32], out: &mut [u64]) {
        assert_eq!(dst.len(), out.len());
        for (dst, out) in dst.iter().zip(out) {
            *out = u64::from(self.find(*dst).0);
        }
    }
}

impl Fib6 for NaiveFib {
    fn lookup6(&self, dst: &[[u8; 16]], out: &mut [u64]) {
        assert_eq!(dst.len(), out.len());
        for (dst, out) in dst.iter().zip(out) {
            *out = u64::from(self.find6(u128::from_be_bytes(*dst)).0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_wins() {
        let route = |prefix: [u8; 4], length, hop| Route {
            prefix: prefix.into(),
            length,
            next_hop: NextHopId(hop),
        };
        let fib = NaiveFib::new(vec![
            route([0, 0, 0, 0], 0, 1),
            route([10, 0, 0, 0], 8, 2),
            route([10, 1, 2, 3], 32, 3),
        ]);
        let dst = [0x0a01_0203, 0x0a01_0204, 0x0b00_0000].map(|dst: u32| dst);
        let mut out = [9; 3];
        fib.lookup(&dst, &mut out);
        assert_eq!(out, [3, 2, 1]);
        NaiveFib::default().lookup(&dst, &mut out);
        assert_eq!(out, [0; 3]);
    }

    #[test]
    fn the_longest_ipv6_prefix_wins() {
        let route = |prefix: u128, length, hop| Route6 {
            prefix: prefix.into(),
            length,
            next_hop: NextHopId(hop),
        };
        let fib = NaiveFib::default().with_ipv6(vec![
            route(0, 0, 1),
            route(0x2001 << 112, 16, 2),
            route(0x2001 << 112 | 7, 128, 3),
        ]);
        let dst = [0x2001u128 << 112 | 7, 0x2001 << 112 | 8, 9].map(u128::to_be_bytes);
        let mut out = [9; 3];
        fib.lookup6(&dst, &mut out);
        assert_eq!(out, [3, 2, 1]);
    }
}
