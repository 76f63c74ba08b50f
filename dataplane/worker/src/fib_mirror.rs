//! Keeps the DPDK FIBs equal to the routes control publishes. Runs on the main thread, their one writer.
//!
//! There are two FIBs of each family. Workers look up in one while the other is brought up to date; then the workers go
//! over to it, each between two bursts, and when the last one has left the first it follows suit. So a look-up never
//! meets a table that is being changed: DPDK clears and reuses the table of a withdrawn prefix at once, and a look-up
//! between its two accesses would find another prefix's next hop. It also means that workers see one published version or
//! the next, never a mixture, and that no update makes them wait.

use bng_fastpath::{Fib4, Fib6};
use bng_shm::{Capacities, Reader, Route, Route6};
use rte_rs::{Eal, Error, Family, FibConfig, FibReader, FibWriter, NextHopSize, V4, V6, fib};
use std::cmp::Ordering;
use std::sync::{Arc, OnceLock};

/// Changes made to a FIB in one go: a full table takes seconds, and the main thread has more to do.
const STEP: usize = 32_768;

/// A route of one address family.
pub trait Mirrored: Copy {
    /// The FIB's family.
    type Family: Family;
    /// Name in the log.
    const NAME: &'static str;
    /// What says how many there can be.
    const KEY: &'static str;

    /// Network address and prefix length.
    fn prefix(&self) -> (<Self::Family as Family>::Prefix, u8);

    /// Index of the next hop.
    fn next_hop(&self) -> u32;

    /// Whether a packet to there may be forwarded at all. Groups and reserved addresses stay out of the FIB: no stage asks
    /// for them, and DPDK mishandles prefixes that end with the address space.
    fn is_forwarded(&self) -> bool;

    /// As [`Reader::refresh_routes`].
    fn refresh(reader: &Reader, version: u64, routes: &mut Vec<Self>) -> Option<u64>;

    /// Tables for prefixes longer than /24, for so many routes.
    fn tbl8_groups(routes: u32) -> u32;
}

impl Mirrored for Route {
    type Family = V4;
    const NAME: &'static str = "IPv4";
    const KEY: &'static str = "dataplane.routes.ipv4";

    fn prefix(&self) -> (std::net::Ipv4Addr, u8) {
        (self.prefix, self.length)
    }

    fn next_hop(&self) -> u32 {
        self.next_hop.0
    }

    fn is_forwarded(&self) -> bool {
        self.prefix.octets()[0] < 224
    }

    fn refresh(reader: &Reader, version: u64, routes: &mut Vec<Self>) -> Option<u64> {
        reader.refresh_routes(version, routes)
    }

    /// The internet has no prefixes longer than /24; the operator's own are few.
    fn tbl8_groups(routes: u32) -> u32 {
        (routes / 32).max(256)
    }
}

impl Mirrored for Route6 {
    type Family = V6;
    const NAME: &'static str = "IPv6";
    const KEY: &'static str = "dataplane.routes.ipv6";

    fn prefix(&self) -> (std::net::Ipv6Addr, u8) {
        (self.prefix, self.length)
    }

    fn next_hop(&self) -> u32 {
        self.next_hop.0
    }

    fn is_forwarded(&self) -> bool {
        !self.prefix.is_multicast()
    }

    fn refresh(reader: &Reader, version: u64, routes: &mut Vec<Self>) -> Option<u64> {
        reader.refresh_routes6(version, routes)
    }

    /// Routes of the internet share them; one for two routes is ample.
    fn tbl8_groups(routes: u32) -> u32 {
        (routes / 2).max(1_024)
    }
}

/// The FIB workers look up in since one version, and where to go from there.
#[derive(Debug)]
struct Generation<F: Family> {
    fib: FibReader<F>,
    next: OnceLock<Arc<Self>>,
}

/// One family's look-up as a worker holds it.
#[derive(Debug)]
struct Lookup<F: Family>(Arc<Generation<F>>);

impl<F: Family> Clone for Lookup<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F: Family> Lookup<F> {
    #[inline]
    fn follow(&mut self) {
        while let Some(next) = self.0.next.get() {
            self.0 = Arc::clone(next);
        }
    }
}

/// The FIBs as the stages see them. Whoever keeps one must call [`RteFib::follow`] time and again: the next version but
/// one waits for it.
#[derive(Debug, Clone)]
pub struct RteFib {
    v4: Lookup<V4>,
    v6: Lookup<V6>,
}

impl RteFib {
    /// Goes over to the latest routes. Once per poll loop.
    #[inline]
    pub fn follow(&mut self) {
        self.v4.follow();
        self.v6.follow();
    }
}

impl Fib4 for RteFib {
    #[inline]
    fn lookup(&self, dst: &[u32], out: &mut [u64]) {
        self.v4.0.fib.lookup_bulk(dst, out);
    }
}

impl Fib6 for RteFib {
    #[inline]
    fn lookup6(&self, dst: &[[u8; 16]], out: &mut [u64]) {
        self.v6.0.fib.lookup_bulk(dst, out);
    }
}

/// Mirrors of the published routes of both families.
#[derive(Debug)]
pub struct FibMirrors {
    v4: FibMirror<Route>,
    v6: FibMirror<Route6>,
}

/// Versions that all workers look up in since a call of [`FibMirrors::refresh`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// Of the IPv4 routes, if it is another one.
    pub v4: Option<u64>,
    /// Of the IPv6 routes.
    pub v6: Option<u64>,
}

impl FibMirrors {
    /// Empty FIBs for what the shared memory can hold.
    ///
    /// # Errors
    /// No memory for the tables.
    pub fn new(eal: &Eal, capacities: &Capacities) -> Result<Self, FibError> {
        Ok(Self {
            v4: FibMirror::new(eal, capacities.routes, capacities.next_hops)?,
            v6: FibMirror::new(eal, capacities.routes6, capacities.next_hops)?,
        })
    }

    /// What a worker looks up in.
    #[must_use]
    pub fn lookup(&self) -> RteFib {
        RteFib {
            v4: self.v4.lookup(),
            v6: self.v6.lookup(),
        }
    }

    /// Goes on with what is to be done: does a part, never waits. Call it time and again.
    pub fn refresh(&mut self, reader: &Reader) -> Applied {
        Applied {
            v4: self.v4.refresh(reader),
            v6: self.v6.refresh(reader),
        }
    }

    /// Routes that workers find or will find when they go over, IPv4 and IPv6.
    #[must_use]
    pub fn len(&self) -> [usize; 2] {
        [self.v4.live.routes.len(), self.v6.live.routes.len()]
    }

    /// Whether there is no route.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == [0, 0]
    }

    /// Whether both FIBs of each family hold the latest version, so that nothing is left to do.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.v4.is_settled() && self.v6.is_settled()
    }

    /// Routes that found no room, IPv4 and IPv6.
    #[must_use]
    pub fn refused(&self) -> [u32; 2] {
        [self.v4.refused, self.v6.refused]
    }
}

/// The FIBs do not fit.
#[derive(Debug, thiserror::Error)]
#[error(
    "the FIBs do not fit: raise dataplane.eal.memory_mib or lower {key} (there are two of {mib} MiB)"
)]
pub struct FibError {
    key: &'static str,
    mib: u64,
    source: Error,
}

/// A FIB and what is in it, sorted by prefix.
#[derive(Debug)]
struct Table<R: Mirrored> {
    fib: FibWriter<R::Family>,
    routes: Vec<R>,
}

/// A change of a FIB.
#[derive(Debug, Clone, Copy)]
enum Change<R> {
    Delete(R),
    Add(R),
}

/// An update of the FIB nobody looks at.
#[derive(Debug)]
struct Update<R> {
    /// Deletions first, so that they make room.
    changes: Vec<Change<R>>,
    done: usize,
    /// What the FIB will hold, sorted.
    wanted: Vec<R>,
    /// What it refused.
    refused: Vec<R>,
    /// What it could not delete, which it still holds.
    kept: Vec<R>,
    example: Option<Error>,
    /// The version this is, if workers go over to it; none when the other FIB only follows suit.
    version: Option<u64>,
}

/// Mirror of one family's routes.
#[derive(Debug)]
struct FibMirror<R: Mirrored> {
    /// The FIB workers look up in, or go over to.
    live: Table<R>,
    /// The other one.
    other: Table<R>,
    now: Arc<Generation<R::Family>>,
    /// The generation of `other`, while workers may look up in it.
    left: Option<Arc<Generation<R::Family>>>,
    update: Option<Update<R>>,
    version: u64,
    /// The version workers are going over to, until the last has.
    entered: Option<u64>,
    /// Whether `other` lacks what `live` has.
    behind: bool,
    refused: u32,
}

fn order<R: Mirrored>(a: &R, b: &R) -> Ordering {
    a.prefix().cmp(&b.prefix())
}

/// What makes `have` into `wanted`; both are sorted and without duplicates.
fn changes<R: Mirrored>(have: &[R], wanted: &[R]) -> Vec<Change<R>> {
    let mut deletions = Vec::new();
    let mut additions = Vec::new();
    let (mut have, mut wanted) = (have.iter().peekable(), wanted.iter().peekable());
    loop {
        let ordering = match (have.peek(), wanted.peek()) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) => order(*a, *b),
        };
        let old = have.next_if(|_| ordering.is_le());
        let new = wanted.next_if(|_| ordering.is_ge());
        match (old, new) {
            (Some(old), None) => deletions.push(Change::Delete(*old)),
            (Some(old), Some(new)) if old.next_hop() == new.next_hop() => {}
            (_, Some(new)) => additions.push(Change::Add(*new)),
            (None, None) => break,
        }
    }
    deletions.append(&mut additions);
    deletions
}

impl<R: Mirrored> FibMirror<R> {
    fn new(eal: &Eal, max_routes: u32, next_hops: u32) -> Result<Self, FibError> {
        let mut config = FibConfig {
            name: String::new(),
            max_routes,
            default_next_hop: 0,
            tbl8_groups: R::tbl8_groups(max_routes),
            next_hop_size: NextHopSize::for_count(next_hops),
            numa_node: None,
        };
        // A table entry holds either a next hop or the number of a group. One group less is better than twice the size.
        let groups = config.next_hop_size.max_next_hop() as u32;
        if config.tbl8_groups > groups + 1 {
            config.next_hop_size = NextHopSize::Four;
        } else {
            config.tbl8_groups = config.tbl8_groups.min(groups);
        }
        let mut make = |half: &str| {
            config.name = format!("{}-{half}", R::NAME);
            let (writer, reader) = fib::<R::Family>(eal, &config).map_err(|source| FibError {
                key: R::KEY,
                mib: config.memory().div_ceil(1 << 20),
                source,
            })?;
            let table = Table {
                fib: writer,
                routes: Vec::new(),
            };
            Ok((table, reader))
        };
        let ((live, fib), (other, _)) = (make("a")?, make("b")?);
        Ok(Self {
            live,
            other,
            now: Arc::new(Generation {
                fib,
                next: OnceLock::new(),
            }),
            left: None,
            update: None,
            version: 0,
            entered: None,
            behind: false,
            refused: 0,
        })
    }

    fn lookup(&self) -> Lookup<R::Family> {
        Lookup(Arc::clone(&self.now))
    }

    fn is_settled(&self) -> bool {
        !self.behind && self.update.is_none() && self.left.is_none()
    }

    /// Does a part of what is to be done; the new version, once all workers look up in it.
    fn refresh(&mut self, reader: &Reader) -> Option<u64> {
        self.look_for_leavers();
        if self.left.is_none() {
            self.work(reader);
            self.look_for_leavers();
        }
        if self.left.is_some() {
            return None;
        }
        self.entered.take()
    }

    /// Whether the last worker has left the other FIB: what it looked up there happened before, then.
    fn look_for_leavers(&mut self) {
        self.left.take_if(|left| Arc::get_mut(left).is_some());
    }

    /// Brings the FIB that nobody looks at nearer to what is wanted. Nothing to do: `None`.
    fn work(&mut self, reader: &Reader) -> Option<()> {
        if self.update.is_none() {
            self.update = self.begin(reader);
        }
        let update = self.update.as_mut()?;
        let step = update.changes.iter().skip(update.done).take(STEP);
        for change in step {
            update.done += 1;
            let fib = &mut self.other.fib;
            let result = match change {
                Change::Delete(route) => {
                    let (prefix, length) = route.prefix();
                    fib.delete(prefix, length)
                        .inspect_err(|_| update.kept.push(*route))
                }
                Change::Add(route) => {
                    let (prefix, length) = route.prefix();
                    let added = fib.add(prefix, length, route.next_hop().into());
                    added.inspect_err(|_| {
                        // Not there means not there with the next hop of before either.
                        let _ = fib.delete(prefix, length);
                        update.refused.push(*route);
                    })
                }
            };
            if let Err(error) = result {
                update.example = Some(error);
            }
        }
        if update.done == update.changes.len() {
            let update = self.update.take()?;
            self.finish(update);
        }
        Some(())
    }

    /// What is to be done next.
    fn begin(&self, reader: &Reader) -> Option<Update<R>> {
        let mut routes = Vec::new();
        let version = R::refresh(reader, self.version, &mut routes);
        let wanted = if version.is_some() {
            routes.retain(R::is_forwarded);
            routes.sort_by(order);
            // Control publishes a prefix once; should it not, the last one counts.
            routes.reverse();
            routes.dedup_by(|a, b| a.prefix() == b.prefix());
            routes.reverse();
            routes
        } else if self.behind {
            self.live.routes.clone()
        } else {
            return None;
        };
        Some(Update {
            changes: changes(&self.other.routes, &wanted),
            done: 0,
            wanted,
            refused: Vec::new(),
            kept: Vec::new(),
            example: None,
            version,
        })
    }

    fn finish(&mut self, update: Update<R>) {
        let Update {
            mut wanted,
            mut refused,
            mut kept,
            example,
            version,
            ..
        } = update;
        // The next version tries again.
        refused.sort_by(order);
        wanted.retain(|route| {
            refused
                .binary_search_by(|other| order(other, route))
                .is_err()
        });
        wanted.append(&mut kept);
        wanted.sort_by(order);
        self.other.routes = wanted;
        if let Some(error) = example {
            tracing::error!(
                "{} {} route(s) found no room in the FIB (raise {}), for example: {error}",
                refused.len(),
                R::NAME,
                R::KEY,
            );
        }
        let Some(version) = version else {
            self.behind = false;
            return;
        };
        self.refused = u32::try_from(refused.len()).unwrap_or(u32::MAX);
        let next = Arc::new(Generation {
            fib: self.other.fib.reader(),
            next: OnceLock::new(),
        });
        // It is set here alone, once.
        let _ = self.now.next.set(Arc::clone(&next));
        self.left = Some(std::mem::replace(&mut self.now, next));
        std::mem::swap(&mut self.live, &mut self.other);
        self.behind = true;
        self.version = version;
        self.entered = Some(version);
    }
}
