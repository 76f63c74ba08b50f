//! The mirrored routes in shared memory: which next hop has which number, and when a number is free again.
//!
//! A way with one target has one number; one with several has a run of them: the group, then its members. Routes are
//! published whole, so a large table is published the less often the longer that takes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Instant;

use bng_shm::{
    Adjacency, EpochToken, NextHopId, PortAddresses, PublishError, Publisher, Reader, Route, Route6,
};

use crate::kernel::{Delta, Neighbours, Prefix, Target, Way};
use crate::status::RoutesView;
use crate::tally::{Count, Tally};

mod numbers;

use numbers::{Numbers, Run};

/// Of the driver's time publications may take one part in this many.
const SHARE: u64 = 10;

/// A run of numbers whose routes are gone. It is free when the dataplane's FIB has the routes without it and every worker
/// has passed the epoch after that.
#[derive(Debug)]
enum Retired {
    InFib(Run),
    InUse(Run, EpochToken),
}

/// The numbers of a way.
#[derive(Debug)]
struct Place {
    run: Run,
    /// Routes that lead there.
    users: usize,
    /// What is published of each target.
    adjacencies: Vec<Adjacency>,
}

impl Place {
    /// The number routes name.
    const fn id(&self) -> NextHopId {
        self.run.first
    }

    /// The numbers of the targets.
    fn members(&self) -> impl Iterator<Item = NextHopId> + use<> {
        let (NextHopId(first), count) = (self.run.first, self.run.count);
        let skip = u32::from(count > 1);
        (first + skip..first + count).map(NextHopId)
    }
}

/// All ways in use.
#[derive(Debug, Default)]
struct Places {
    by_way: HashMap<Way, Place>,
    ways: HashMap<NextHopId, Way>,
    numbers: Numbers,
    neighbours: Arc<Neighbours>,
    /// Numbers that no route names any more, perhaps.
    idle: Vec<NextHopId>,
}

/// Routes of one family: with a next hop, and those for which no number was free.
#[derive(Debug)]
struct Routes<A> {
    placed: BTreeMap<Prefix<A>, NextHopId>,
    unplaced: BTreeMap<Prefix<A>, Way>,
}

impl<A> Default for Routes<A> {
    fn default() -> Self {
        Self {
            placed: BTreeMap::new(),
            unplaced: BTreeMap::new(),
        }
    }
}

/// What is published.
#[derive(Debug, Default)]
pub(crate) struct NextHops {
    places: Places,
    ipv4: Routes<Ipv4Addr>,
    ipv6: Routes<Ipv6Addr>,
    /// A picture of which not all pieces are there.
    incoming: Option<(Routes<Ipv4Addr>, Routes<Ipv6Addr>)>,
    addresses: Option<Arc<[PortAddresses]>>,
    retired: VecDeque<Retired>,
    /// Numbers an earlier run has given that no route it published names: the dataplane's FIB may name them still.
    left_over: Vec<Run>,
    synchronised: bool,
    /// Families whose routes have changed since they were published.
    stale: (bool, bool),
    /// Nothing is published before this moment, CLOCK_MONOTONIC milliseconds.
    not_before_ms: u64,
    /// Routes of each family that did not fit.
    left_out: (usize, usize),
}

impl NextHops {
    /// Takes over what an earlier run has published, so that traffic goes on while the kernel is asked anew: routes and
    /// next hops keep their numbers.
    #[must_use]
    pub(crate) fn recover(publisher: &Publisher) -> Self {
        let reader = publisher.reader();
        let (mut routes, mut routes6) = (Vec::new(), Vec::new());
        reader.refresh_routes(0, &mut routes);
        reader.refresh_routes6(0, &mut routes6);
        let mut out = Self::default();
        out.places.numbers = Numbers::new(reader.capacities().next_hops);
        for route in &routes {
            if out.places.recover(&reader, route.next_hop) {
                let prefix = (route.prefix, route.length);
                out.ipv4.placed.insert(prefix, route.next_hop);
            }
        }
        for route in &routes6 {
            if out.places.recover(&reader, route.next_hop) {
                let prefix = (route.prefix, route.length);
                out.ipv6.placed.insert(prefix, route.next_hop);
            }
        }
        out.left_over = out.places.take_left_over(&reader);
        out
    }

    /// The kernel's IPv4 addresses on the ports, as far as known.
    pub(crate) fn port_ipv4(&self) -> impl Iterator<Item = Ipv4Addr> {
        let addresses = self.addresses.iter().flat_map(|all| all.iter());
        addresses.filter_map(|address| address.ipv4)
    }

    /// The watcher has lost its picture of the kernel: what is published stays.
    pub(crate) fn lose(&mut self) {
        self.synchronised = false;
        if let Some((ipv4, ipv6)) = self.incoming.take() {
            ipv4.release(&mut self.places);
            ipv6.release(&mut self.places);
        }
    }

    /// Takes over what the kernel has changed. Neighbours and addresses are published at once, routes by
    /// [`NextHops::publish`].
    pub(crate) fn apply(&mut self, delta: &Delta, publisher: &mut Publisher, tally: &mut Tally) {
        if let Some(neighbours) = &delta.neighbours {
            self.places.neighbours = Arc::clone(neighbours);
            self.places.resolve(publisher, tally);
        }
        if let Some(addresses) = &delta.addresses
            && self.addresses.as_ref() != Some(addresses)
        {
            publisher.publish_port_addresses(addresses);
            self.addresses = Some(Arc::clone(addresses));
        }
        if delta.begins {
            self.lose();
            self.incoming = Some(<_>::default());
        }
        let (ipv4, ipv6) = match &mut self.incoming {
            Some((ipv4, ipv6)) => (ipv4, ipv6),
            None => (&mut self.ipv4, &mut self.ipv6),
        };
        let mut changed = (false, false);
        for (prefix, way) in &delta.ipv4 {
            changed.0 |= ipv4.put(&mut self.places, *prefix, way.as_ref(), publisher, tally);
        }
        for (prefix, way) in &delta.ipv6 {
            changed.1 |= ipv6.put(&mut self.places, *prefix, way.as_ref(), publisher, tally);
        }
        if delta.ends {
            if let Some((ipv4, ipv6)) = self.incoming.take() {
                changed = (!ipv4.is_same(&self.ipv4), !ipv6.is_same(&self.ipv6));
                std::mem::replace(&mut self.ipv4, ipv4).release(&mut self.places);
                std::mem::replace(&mut self.ipv6, ipv6).release(&mut self.places);
            }
            self.synchronised = true;
        }
        if self.incoming.is_none() {
            self.stale.0 |= changed.0;
            self.stale.1 |= changed.1;
        }
    }

    /// Publishes routes that have changed, unless that was done a moment ago.
    pub(crate) fn publish(&mut self, now_ms: u64, publisher: &mut Publisher, tally: &mut Tally) {
        if !self.is_stale() || now_ms < self.not_before_ms {
            return;
        }
        let begun = Instant::now();
        let capacities = *publisher.reader().capacities();
        let before = self.left_out;
        if std::mem::take(&mut self.stale.0) {
            let (kept, left_out) = self.ipv4.fitting(&self.places, capacities.routes);
            let routes: Vec<Route> = kept
                .map(|((prefix, length), next_hop)| Route {
                    prefix,
                    length,
                    next_hop,
                })
                .collect();
            self.left_out.0 = left_out.len() + self.ipv4.unplaced.len();
            say_left_out(
                "IPv4",
                before.0,
                self.left_out.0,
                self.ipv4.example(&left_out),
            );
            self.published(publisher.publish_routes(&routes), tally);
        }
        if std::mem::take(&mut self.stale.1) {
            let (kept, left_out) = self.ipv6.fitting(&self.places, capacities.routes6);
            let routes: Vec<Route6> = kept
                .map(|((prefix, length), next_hop)| Route6 {
                    prefix,
                    length,
                    next_hop,
                })
                .collect();
            self.left_out.1 = left_out.len() + self.ipv6.unplaced.len();
            say_left_out(
                "IPv6",
                before.1,
                self.left_out.1,
                self.ipv6.example(&left_out),
            );
            self.published(publisher.publish_routes6(&routes), tally);
        }
        if self.left_out != (0, 0) {
            tally.add(Count::RoutesFull);
        }
        let idle = self.places.idle_runs().chain(self.left_over.drain(..));
        self.retired.extend(idle.map(Retired::InFib));
        let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.not_before_ms = now_ms.saturating_add(took_ms.saturating_mul(SHARE));
    }

    fn published(&self, result: Result<(), PublishError>, tally: &mut Tally) {
        if let Err(error) = result {
            tally.add(Count::PublishFailed);
            tracing::error!(%error, "routes not published");
        }
    }

    /// When [`NextHops::publish`] has something to do, CLOCK_MONOTONIC milliseconds.
    #[must_use]
    pub(crate) fn due_ms(&self) -> Option<u64> {
        self.is_stale().then_some(self.not_before_ms)
    }

    const fn is_stale(&self) -> bool {
        self.stale.0 || self.stale.1
    }

    /// Frees numbers whose time has come.
    pub(crate) fn free_retired(&mut self, publisher: &mut Publisher, tally: &mut Tally) {
        let mut has_freed = false;
        while let Some(first) = self.retired.front_mut() {
            match *first {
                Retired::InFib(run) => {
                    if !publisher.routes_in_fib() && publisher.dataplane_alive() {
                        break;
                    }
                    *first = Retired::InUse(run, publisher.advance_epoch());
                }
                Retired::InUse(run, token) => {
                    if !publisher.epoch_passed(token) {
                        break;
                    }
                    for id in run.ids() {
                        // The number exists, so this cannot fail.
                        let none = Ipv4Addr::UNSPECIFIED.into();
                        let _ = publisher.set_next_hop(id, none, Adjacency::NoRoute);
                    }
                    self.places.numbers.put_back(run);
                    self.retired.pop_front();
                    has_freed = true;
                }
            }
        }
        if has_freed {
            self.stale.0 |= self.ipv4.place_again(&mut self.places, publisher, tally);
            self.stale.1 |= self.ipv6.place_again(&mut self.places, publisher, tally);
        }
    }

    /// Whether numbers wait to be free.
    #[must_use]
    pub(crate) fn is_retiring(&self) -> bool {
        !self.retired.is_empty()
    }

    /// For operators.
    #[must_use]
    pub(crate) fn view(&self, publisher: &Publisher) -> RoutesView {
        let places = self.places.by_way.values();
        let adjacencies = places.flat_map(|place| &place.adjacencies);
        let left_out = self.left_out.0 + self.left_out.1;
        RoutesView {
            synchronised: self.synchronised,
            routes: self.ipv4.placed.len(),
            routes6: self.ipv6.placed.len(),
            next_hops: self.places.by_way.len(),
            unresolved: adjacencies
                .filter(|a| matches!(a, Adjacency::Unresolved { .. }))
                .count(),
            in_fib: publisher.routes_in_fib(),
            left_out,
            full: left_out > 0,
        }
    }
}

fn say_left_out(family: &str, before: usize, now: usize, example: Option<String>) {
    if let Some(example) = example
        && before == 0
    {
        tracing::error!(
            left_out = now,
            example,
            "the kernel has more {family} routes or next hops than the shared memory holds; what is less specific is kept, raise dataplane.routes"
        );
    } else if now == 0 && before > 0 {
        tracing::info!("all {family} routes fit again");
    }
}

impl<A: Copy + Ord + Into<IpAddr>> Routes<A> {
    /// Leads a prefix another way, or nowhere; true when that changes the routes to publish or those left out.
    fn put(
        &mut self,
        places: &mut Places,
        prefix: Prefix<A>,
        way: Option<&Way>,
        publisher: &mut Publisher,
        tally: &mut Tally,
    ) -> bool {
        let was_unplaced = self.unplaced.remove(&prefix).is_some();
        let id = way.and_then(|way| {
            let id = places.acquire(way, publisher, tally);
            if id.is_none() {
                self.unplaced.insert(prefix, Arc::clone(way));
            }
            id
        });
        let before = match id {
            Some(id) => self.placed.insert(prefix, id),
            None => self.placed.remove(&prefix),
        };
        if let Some(before) = before {
            places.release(before);
        }
        before != id || was_unplaced != self.unplaced.contains_key(&prefix)
    }

    /// Numbers have become free: tries those that found none.
    fn place_again(
        &mut self,
        places: &mut Places,
        publisher: &mut Publisher,
        tally: &mut Tally,
    ) -> bool {
        let mut has_changed = false;
        for (prefix, way) in std::mem::take(&mut self.unplaced) {
            has_changed |= self.put(places, prefix, Some(&way), publisher, tally);
        }
        has_changed
    }

    fn is_same(&self, other: &Self) -> bool {
        self.placed == other.placed && self.unplaced == other.unplaced
    }

    fn release(self, places: &mut Places) {
        for id in self.placed.into_values() {
            places.release(id);
        }
    }

    /// The routes that fit, and the others. Our own and connected networks come first, then the less specific: a packet
    /// whose route is left out follows the one around it.
    fn fitting(
        &self,
        places: &Places,
        capacity: u32,
    ) -> (
        impl Iterator<Item = (Prefix<A>, NextHopId)>,
        std::collections::BTreeSet<Prefix<A>>,
    ) {
        let capacity = capacity as usize;
        let mut left_out = std::collections::BTreeSet::new();
        if self.placed.len() > capacity {
            let mut order: Vec<_> = (self.placed.iter())
                .map(|(prefix, id)| (places.is_by_gateway(*id), prefix.1, *prefix))
                .collect();
            order.sort_unstable();
            left_out.extend(order.drain(capacity..).map(|(_, _, prefix)| prefix));
        }
        let skipped = left_out.clone();
        let kept = (self.placed.iter())
            .map(|(prefix, id)| (*prefix, *id))
            .filter(move |(prefix, _)| skipped.is_empty() || !skipped.contains(prefix));
        (kept, left_out)
    }

    /// One route that is left out.
    fn example(&self, left_out: &std::collections::BTreeSet<Prefix<A>>) -> Option<String> {
        let (address, length) = left_out.first().or_else(|| self.unplaced.keys().next())?;
        let address: IpAddr = (*address).into();
        Some(format!("{address}/{length}"))
    }
}

impl Places {
    /// The number of a way, for one route more; `None` when no number is free.
    fn acquire(
        &mut self,
        way: &Way,
        publisher: &mut Publisher,
        tally: &mut Tally,
    ) -> Option<NextHopId> {
        if let Some(place) = self.by_way.get_mut(way) {
            place.users += 1;
            return Some(place.id());
        }
        let members = u32::try_from(way.len()).ok()?;
        let run = self.numbers.take(members + u32::from(members > 1))?;
        let place = Place {
            run,
            users: 1,
            adjacencies: way
                .iter()
                .map(|it| adjacency(it, &self.neighbours))
                .collect(),
        };
        // Members first: nobody names them before the group does, and nobody the group before a route does.
        for ((id, target), now) in place.members().zip(&way[..]).zip(&place.adjacencies) {
            write(publisher, tally, id, address(target), *now);
        }
        if members > 1 {
            let group = Adjacency::Group {
                first: NextHopId(run.first.0 + 1),
                // Fits: a way has at most `MAX_GROUP` targets.
                count: members as u8,
            };
            write(
                publisher,
                tally,
                run.first,
                Ipv4Addr::UNSPECIFIED.into(),
                group,
            );
        }
        self.ways.insert(run.first, Arc::clone(way));
        self.by_way.insert(Arc::clone(way), place);
        Some(run.first)
    }

    /// One route less leads there.
    fn release(&mut self, id: NextHopId) {
        let way = self.ways.get(&id);
        if let Some(place) = way.and_then(|way| self.by_way.get_mut(way)) {
            place.users = place.users.saturating_sub(1);
            if place.users == 0 {
                self.idle.push(id);
            }
        }
    }

    /// Takes the ways out that no published route names any more.
    fn idle_runs(&mut self) -> impl Iterator<Item = Run> {
        let idle = std::mem::take(&mut self.idle);
        idle.into_iter().filter_map(|id| {
            let way = self.ways.get(&id)?;
            self.by_way.get(way).filter(|place| place.users == 0)?;
            let way = self.ways.remove(&id)?;
            self.by_way.remove(&way).map(|place| place.run)
        })
    }

    /// Neighbours have changed.
    fn resolve(&mut self, publisher: &mut Publisher, tally: &mut Tally) {
        for (way, place) in &mut self.by_way {
            let ids = place.members();
            for ((id, target), was) in ids.zip(&way[..]).zip(&mut place.adjacencies) {
                let now = adjacency(target, &self.neighbours);
                if now != *was {
                    write(publisher, tally, id, address(target), now);
                    *was = now;
                }
            }
        }
    }

    fn is_by_gateway(&self, id: NextHopId) -> bool {
        let way = self.ways.get(&id);
        way.is_some_and(|way| way.iter().any(|it| matches!(it, Target::Via { .. })))
    }

    /// Takes a number over that an earlier run has given, for one route more; false when it means nothing.
    fn recover(&mut self, reader: &Reader, id: NextHopId) -> bool {
        if let Some(way) = self.ways.get(&id) {
            if let Some(place) = self.by_way.get_mut(way) {
                place.users += 1;
            }
            return true;
        }
        let run = match reader.adjacency(id) {
            Adjacency::Group { first, count } if first.0 == id.0 + 1 => Run {
                first: id,
                count: u32::from(count) + 1,
            },
            Adjacency::Group { .. } => return false,
            _ => Run {
                first: id,
                count: 1,
            },
        };
        let mut place = Place {
            run,
            users: 1,
            adjacencies: Vec::new(),
        };
        let mut way = Vec::new();
        for id in place.members() {
            let adjacency = reader.adjacency(id);
            let Some(target) = target(adjacency, reader.next_hop_address(id)) else {
                return false;
            };
            way.push(target);
            place.adjacencies.push(adjacency);
        }
        let way = Way::from(way);
        if way.is_empty() || self.by_way.contains_key(&way) || !self.numbers.take_exactly(run) {
            return false;
        }
        self.ways.insert(id, Arc::clone(&way));
        self.by_way.insert(way, place);
        true
    }

    /// Takes the numbers that say something and that no route taken over names: they were retiring, or were never named.
    fn take_left_over(&mut self, reader: &Reader) -> Vec<Run> {
        let ids = (1..reader.capacities().next_hops).map(NextHopId);
        let left = ids.filter(|id| reader.adjacency(*id) != Adjacency::NoRoute);
        let runs = left.map(|first| Run { first, count: 1 });
        runs.filter(|run| self.numbers.take_exactly(*run)).collect()
    }
}

fn write(
    publisher: &mut Publisher,
    tally: &mut Tally,
    id: NextHopId,
    address: IpAddr,
    adjacency: Adjacency,
) {
    if let Err(error) = publisher.set_next_hop(id, address, adjacency) {
        tally.add(Count::PublishFailed);
        tracing::error!(%error, "next hop not published");
    }
}

const fn address(target: &Target) -> IpAddr {
    match *target {
        Target::Via { address, .. } => address,
        _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    }
}

fn adjacency(target: &Target, neighbours: &Neighbours) -> Adjacency {
    match *target {
        Target::Via { port, address } => match neighbours.get(&(port, address)) {
            Some(mac) => Adjacency::Neighbour { port, mac: *mac },
            None => Adjacency::Unresolved { port },
        },
        Target::Connected { port } => Adjacency::Connected { port },
        Target::Local { port } => Adjacency::Local { port },
        Target::Blackhole => Adjacency::Blackhole,
    }
}

/// What a single next hop in shared memory stands for.
const fn target(adjacency: Adjacency, address: IpAddr) -> Option<Target> {
    match adjacency {
        Adjacency::Neighbour { port, .. } | Adjacency::Unresolved { port } => {
            Some(Target::Via { port, address })
        }
        Adjacency::Connected { port } => Some(Target::Connected { port }),
        Adjacency::Local { port } => Some(Target::Local { port }),
        Adjacency::Blackhole => Some(Target::Blackhole),
        Adjacency::NoRoute | Adjacency::Group { .. } => None,
    }
}

#[cfg(test)]
mod tests;
