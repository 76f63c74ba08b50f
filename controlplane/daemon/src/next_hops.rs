//! The mirrored routes in shared memory: which next hop has which number, and when a number is free again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

use bng_shm::{Adjacency, EpochToken, NextHopId, PublishError, Publisher, Route};

use crate::kernel::{Mirror, Target};
use crate::status::RoutesView;
use crate::tally::{Count, Tally};

/// A next hop that no route names any more. Its number is free when the dataplane's FIB has the routes without it and
/// every worker has passed the epoch after that.
#[derive(Debug)]
enum Retired {
    InFib(NextHopId),
    InUse(NextHopId, EpochToken),
}

/// What is published.
#[derive(Debug, Default)]
pub(crate) struct NextHops {
    ids: BTreeMap<Target, NextHopId>,
    adjacencies: BTreeMap<NextHopId, Adjacency>,
    routes: Vec<Route>,
    free: BTreeSet<NextHopId>,
    retired: VecDeque<Retired>,
    synchronised: bool,
    full: bool,
}

impl NextHops {
    /// Takes over what an earlier run has published, so that traffic goes on while the kernel is asked anew: routes and
    /// next hops keep their numbers.
    #[must_use]
    pub(crate) fn recover(publisher: &Publisher) -> Self {
        let reader = publisher.reader();
        let mut routes = Vec::new();
        reader.refresh_routes(0, &mut routes);
        let mut out = Self {
            free: (1..reader.capacities().next_hops).map(NextHopId).collect(),
            ..Self::default()
        };
        for route in &routes {
            let id = route.next_hop;
            let adjacency = reader.adjacency(id);
            let IpAddr::V4(address) = reader.next_hop_address(id) else {
                continue;
            };
            let target = match adjacency {
                Adjacency::Neighbour { port, .. } | Adjacency::Unresolved { port } => {
                    Target::Via { port, address }
                }
                Adjacency::Connected { port } => Target::Connected { port },
                Adjacency::Local { port } => Target::Local { port },
                Adjacency::Blackhole => Target::Blackhole,
                Adjacency::NoRoute | Adjacency::Group { .. } => continue,
            };
            if out.free.remove(&id) {
                out.ids.insert(target, id);
                out.adjacencies.insert(id, adjacency);
            }
        }
        out.routes = routes;
        out
    }

    /// The watcher has lost its picture of the kernel: what is published stays.
    pub(crate) fn lose(&mut self) {
        self.synchronised = false;
    }

    /// Publishes the kernel's present state as far as it differs.
    pub(crate) fn apply(&mut self, mirror: &Mirror, publisher: &mut Publisher, tally: &mut Tally) {
        self.synchronised = true;
        let wanted: BTreeSet<Target> = mirror.routes.values().copied().collect();
        let mut full = false;
        for target in &wanted {
            let (address, adjacency) = adjacency(target, mirror);
            let id = match self.ids.get(target) {
                Some(id) => *id,
                None => match self.free.pop_first() {
                    Some(id) => {
                        self.ids.insert(*target, id);
                        id
                    }
                    None => {
                        full = true;
                        continue;
                    }
                },
            };
            if self.adjacencies.get(&id) != Some(&adjacency) {
                match publisher.set_next_hop(id, address.into(), adjacency) {
                    Ok(()) => {
                        self.adjacencies.insert(id, adjacency);
                    }
                    Err(error) => {
                        tally.add(Count::PublishFailed);
                        tracing::error!(%error, ?target, "next hop not published");
                    }
                }
            }
        }
        let routes: Vec<Route> = (mirror.routes.iter())
            .filter_map(|((prefix, length), target)| {
                let next_hop = *self.ids.get(target)?;
                Some(Route {
                    prefix: *prefix,
                    length: *length,
                    next_hop,
                })
            })
            .collect();
        if routes != self.routes {
            match publisher.publish_routes(&routes) {
                Ok(()) => self.routes = routes,
                Err(PublishError::Capacity { .. }) => full = true,
                Err(error) => {
                    tally.add(Count::PublishFailed);
                    tracing::error!(%error, "routes not published");
                }
            }
        }
        let was_full = std::mem::replace(&mut self.full, full);
        if full {
            tally.add(Count::RoutesFull);
            if !was_full {
                tracing::error!(
                    routes = mirror.routes.len(),
                    next_hops = wanted.len(),
                    "the kernel has more routes or next hops than the shared memory holds"
                );
            }
            // Nothing is retired: the routes that stay published may use it.
            return;
        }
        let unused = self
            .ids
            .extract_if(.., |target, _| !wanted.contains(target));
        self.retired
            .extend(unused.map(|(_, id)| Retired::InFib(id)));
    }

    /// Frees numbers whose time has come.
    pub(crate) fn free_retired(&mut self, publisher: &mut Publisher) {
        while let Some(first) = self.retired.front_mut() {
            match *first {
                Retired::InFib(id) => {
                    if !publisher.routes_in_fib() && publisher.dataplane_alive() {
                        return;
                    }
                    *first = Retired::InUse(id, publisher.advance_epoch());
                }
                Retired::InUse(id, token) => {
                    if !publisher.epoch_passed(token) {
                        return;
                    }
                    // The number exists, so this cannot fail.
                    let _ = publisher.set_next_hop(
                        id,
                        Ipv4Addr::UNSPECIFIED.into(),
                        Adjacency::NoRoute,
                    );
                    self.adjacencies.remove(&id);
                    self.free.insert(id);
                    self.retired.pop_front();
                }
            }
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
        let used = self.ids.values();
        let adjacencies = used.filter_map(|id| self.adjacencies.get(id));
        RoutesView {
            synchronised: self.synchronised,
            routes: self.routes.len(),
            next_hops: self.ids.len(),
            unresolved: adjacencies
                .filter(|a| matches!(a, Adjacency::Unresolved { .. }))
                .count(),
            in_fib: publisher.routes_in_fib(),
            full: self.full,
        }
    }
}

fn adjacency(target: &Target, mirror: &Mirror) -> (Ipv4Addr, Adjacency) {
    let none = Ipv4Addr::UNSPECIFIED;
    match *target {
        Target::Via { port, address } => {
            let adjacency = match mirror.neighbours.get(&(port, address)) {
                Some(mac) => Adjacency::Neighbour { port, mac: *mac },
                None => Adjacency::Unresolved { port },
            };
            (address, adjacency)
        }
        Target::Connected { port } => (none, Adjacency::Connected { port }),
        Target::Local { port } => (none, Adjacency::Local { port }),
        Target::Blackhole => (none, Adjacency::Blackhole),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bng_shm::{Capacities, Dataplane, Reader};

    const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    fn mirror(default: Option<Target>) -> Mirror {
        let mut mirror = Mirror::default();
        let network = (Ipv4Addr::new(192, 0, 2, 0), 24);
        mirror.routes.insert(network, Target::Connected { port: 1 });
        if let Some(target) = default {
            mirror.routes.insert((Ipv4Addr::UNSPECIFIED, 0), target);
        }
        mirror
    }

    fn via() -> Target {
        Target::Via {
            port: 1,
            address: GATEWAY,
        }
    }

    fn default_route(reader: &Reader) -> (NextHopId, Adjacency) {
        let mut routes = Vec::new();
        reader.refresh_routes(0, &mut routes).unwrap();
        let id = routes.iter().find(|r| r.length == 0).unwrap().next_hop;
        (id, reader.adjacency(id))
    }

    #[test]
    fn a_gateway_is_unresolved_until_its_mac_is_known_and_keeps_its_number() {
        let (_dataplane, mut publisher) =
            Dataplane::in_process(Capacities::of_gateway(1, 2, 1, 0, 0)).unwrap();
        let reader = publisher.reader();
        let mut tally = Tally::default();
        let mut next_hops = NextHops::recover(&publisher);
        let mut mirror = mirror(Some(via()));
        next_hops.apply(&mirror, &mut publisher, &mut tally);
        let (id, found) = default_route(&reader);
        assert_eq!(found, Adjacency::Unresolved { port: 1 });
        assert_eq!(reader.next_hop_address(id), GATEWAY);
        assert_eq!(next_hops.view(&publisher).unresolved, 1);

        mirror.neighbours.insert((1, GATEWAY), MAC);
        next_hops.apply(&mirror, &mut publisher, &mut tally);
        let resolved = Adjacency::Neighbour { port: 1, mac: MAC };
        assert_eq!(default_route(&reader), (id, resolved));

        // A new run finds the same numbers and changes nothing.
        let mut later = NextHops::recover(&publisher);
        let version = reader.refresh_routes(0, &mut Vec::new());
        later.apply(&mirror, &mut publisher, &mut tally);
        assert_eq!(default_route(&reader), (id, resolved));
        assert_eq!(reader.refresh_routes(0, &mut Vec::new()), version);
        assert_eq!(tally, Tally::default());
    }

    #[test]
    fn more_routes_than_fit_are_said_and_leave_what_is_published() {
        let small = Capacities {
            routes: 2,
            ..Capacities::of_gateway(1, 2, 1, 0, 0)
        };
        let (_dataplane, mut publisher) = Dataplane::in_process(small).unwrap();
        let reader = publisher.reader();
        let mut tally = Tally::default();
        let mut next_hops = NextHops::recover(&publisher);
        next_hops.apply(&mirror(Some(via())), &mut publisher, &mut tally);
        let before = default_route(&reader);
        let mut more = mirror(Some(Target::Blackhole));
        more.routes
            .insert((Ipv4Addr::new(203, 0, 113, 0), 24), Target::Blackhole);
        next_hops.apply(&more, &mut publisher, &mut tally);
        assert!(next_hops.view(&publisher).full);
        assert_eq!(tally.get(Count::RoutesFull), 1);
        assert_eq!(default_route(&reader), before);
        next_hops.apply(&mirror(Some(Target::Blackhole)), &mut publisher, &mut tally);
        assert!(!next_hops.view(&publisher).full);
        assert_eq!(default_route(&reader).1, Adjacency::Blackhole);
    }

    #[test]
    fn a_number_is_free_again_only_after_fib_and_epoch() {
        let (mut dataplane, mut publisher) =
            Dataplane::in_process(Capacities::of_gateway(1, 2, 1, 0, 0)).unwrap();
        let worker = dataplane.worker(0).unwrap();
        worker.enter(0);
        let reader = publisher.reader();
        let mut tally = Tally::default();
        let mut next_hops = NextHops::recover(&publisher);
        next_hops.apply(&mirror(Some(via())), &mut publisher, &mut tally);
        let (id, _) = default_route(&reader);
        next_hops.apply(&mirror(None), &mut publisher, &mut tally);

        next_hops.free_retired(&mut publisher);
        assert!(next_hops.is_retiring(), "the FIB still has the old routes");
        let version = reader.refresh_routes(0, &mut Vec::new()).unwrap();
        dataplane.routes_applied(version);
        next_hops.free_retired(&mut publisher);
        assert!(
            next_hops.is_retiring(),
            "the worker may hold the old number"
        );
        assert_ne!(reader.adjacency(id), Adjacency::NoRoute);
        worker.quiescent();
        next_hops.free_retired(&mut publisher);
        assert!(!next_hops.is_retiring());
        assert_eq!(reader.adjacency(id), Adjacency::NoRoute);
    }
}
