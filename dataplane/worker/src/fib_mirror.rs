//! Keeps the DPDK FIB equal to the routes control publishes. Runs on the main thread, the FIB's one
//! writer; workers look up while it changes.

use bng_fastpath::{Fib4, Fib6};
use bng_shm::{Reader, Route};
use rte_rs::{Eal, Error, Fib4Config, Fib4Reader, Fib4Writer, NextHopSize, fib4};
use std::collections::HashMap;
use std::net::Ipv4Addr;

/// The FIB as the stages see it.
#[derive(Debug, Clone)]
pub struct RteFib(Fib4Reader);

impl Fib4 for RteFib {
    #[inline]
    fn lookup(&self, dst: &[u32], out: &mut [u64]) {
        self.0.lookup_bulk(dst, out);
    }
}

// No IPv6 table yet, so no IPv6 route.
impl Fib6 for RteFib {
    #[inline]
    fn lookup6(&self, _: &[[u8; 16]], out: &mut [u64]) {
        out.fill(0);
    }
}

/// Mirror of the published routes.
#[derive(Debug)]
pub struct FibMirror {
    writer: Fib4Writer,
    applied: HashMap<(Ipv4Addr, u8), u32>,
    version: u64,
    routes: Vec<Route>,
}

impl FibMirror {
    /// An empty FIB for at most `max_routes` routes, and what workers look up in.
    ///
    /// # Errors
    /// No memory for the tables.
    pub fn new(eal: &Eal, max_routes: u32) -> Result<(Self, RteFib), Error> {
        let (writer, reader) = fib4(
            eal,
            &Fib4Config {
                name: "routes".to_owned(),
                max_routes,
                default_next_hop: 0,
                tbl8_groups: 4_096.min(max_routes.max(1)),
                next_hop_size: NextHopSize::Four,
                numa_node: None,
            },
        )?;
        let mirror = Self {
            writer,
            applied: HashMap::new(),
            version: 0,
            routes: Vec::new(),
        };
        Ok((mirror, RteFib(reader)))
    }

    /// Takes over a new version of the routes, if there is one; returns the version that is in the FIB
    /// now, or `None` if nothing changed. What DPDK refuses is logged and left out; the next version tries again.
    pub fn refresh(&mut self, reader: &Reader) -> Option<u64> {
        let version = reader.refresh_routes(self.version, &mut self.routes)?;
        let wanted: HashMap<_, _> = self
            .routes
            .iter()
            .map(|r| ((r.prefix, r.length), r.next_hop.0))
            .collect();
        let gone: Vec<_> = self
            .applied
            .keys()
            .filter(|key| !wanted.contains_key(key))
            .copied()
            .collect();
        for (prefix, length) in gone {
            match self.writer.delete(prefix, length) {
                Ok(()) => {
                    self.applied.remove(&(prefix, length));
                }
                // It is in the FIB still, so it stays in the list: the next version tries again.
                Err(error) => {
                    tracing::error!("route {prefix}/{length} not deleted from the FIB: {error}");
                }
            }
        }
        // The table may be full for thousands of routes alike: they are one line in the log.
        let mut refused = 0;
        let mut example = None;
        for ((prefix, length), next_hop) in wanted {
            if self.applied.get(&(prefix, length)) == Some(&next_hop) {
                continue;
            }
            match self.writer.add(prefix, length, u64::from(next_hop)) {
                Ok(()) => {
                    self.applied.insert((prefix, length), next_hop);
                }
                Err(error) => {
                    refused += 1;
                    example = Some(error);
                }
            }
        }
        if let Some(error) = example {
            tracing::error!("{refused} route(s) not added to the FIB, for example: {error}");
        }
        self.version = version;
        Some(version)
    }

    /// Routes in the FIB.
    #[must_use]
    pub fn len(&self) -> usize {
        self.applied.len()
    }

    /// Whether the FIB has no route.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.applied.is_empty()
    }
}
