use super::*;
use bng_shm::{Capacities, Dataplane};

const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const SECOND: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9));
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const DEFAULT: Prefix<Ipv4Addr> = (Ipv4Addr::UNSPECIFIED, 0);
const DEFAULT6: Prefix<Ipv6Addr> = (Ipv6Addr::UNSPECIFIED, 0);

fn via(address: IpAddr) -> Target {
    Target::Via { port: 1, address }
}

fn way(targets: &[Target]) -> Option<Way> {
    Some(targets.into())
}

/// The driver's part around next hops.
struct World {
    dataplane: Dataplane,
    publisher: Publisher,
    reader: Reader,
    tally: Tally,
    next_hops: NextHops,
    now_ms: u64,
}

impl World {
    fn new(capacities: Capacities) -> Self {
        let (dataplane, publisher) = Dataplane::in_process(capacities).unwrap();
        Self {
            dataplane,
            reader: publisher.reader(),
            next_hops: NextHops::recover(&publisher),
            publisher,
            tally: Tally::default(),
            now_ms: 0,
        }
    }

    fn apply(&mut self, delta: Delta) {
        self.next_hops
            .apply(&delta, &mut self.publisher, &mut self.tally);
        self.now_ms += 60_000;
        self.next_hops
            .publish(self.now_ms, &mut self.publisher, &mut self.tally);
    }

    /// Changes of IPv4 routes.
    fn change(&mut self, ipv4: &[(Prefix<Ipv4Addr>, Option<Way>)]) {
        self.apply(Delta {
            ends: true,
            ipv4: ipv4.to_vec(),
            ..Delta::default()
        });
    }

    fn neighbours(&mut self, known: &[(IpAddr, [u8; 6])]) {
        let known = known.iter().map(|(address, mac)| ((1, *address), *mac));
        self.apply(Delta {
            ends: true,
            neighbours: Some(Arc::new(known.collect())),
            ..Delta::default()
        });
    }

    fn routes(&self) -> Vec<Route> {
        let mut routes = Vec::new();
        self.reader.refresh_routes(0, &mut routes);
        routes
    }

    fn routes6(&self) -> Vec<Route6> {
        let mut routes = Vec::new();
        self.reader.refresh_routes6(0, &mut routes);
        routes
    }

    fn version(&self) -> Option<u64> {
        self.reader.refresh_routes(0, &mut Vec::new())
    }

    fn default_route(&self) -> (NextHopId, Adjacency) {
        let id = self
            .routes()
            .iter()
            .find(|r| r.length == 0)
            .unwrap()
            .next_hop;
        (id, self.reader.adjacency(id))
    }

    fn free_retired(&mut self) -> bool {
        self.next_hops
            .free_retired(&mut self.publisher, &mut self.tally);
        !self.next_hops.is_retiring()
    }
}

fn capacities() -> Capacities {
    Capacities::of_gateway(1, 2, 1, 0, 0)
}

#[test]
fn a_gateway_is_unresolved_until_its_mac_is_known_and_keeps_its_number() {
    let mut world = World::new(capacities());
    world.change(&[(DEFAULT, way(&[via(GATEWAY)]))]);
    let (id, found) = world.default_route();
    assert_eq!(found, Adjacency::Unresolved { port: 1 });
    assert_eq!(world.reader.next_hop_address(id), GATEWAY);
    assert_eq!(world.next_hops.view(&world.publisher).unresolved, 1);
    world.neighbours(&[(GATEWAY, MAC)]);
    let resolved = Adjacency::Neighbour { port: 1, mac: MAC };
    assert_eq!(world.default_route(), (id, resolved));
    assert_eq!(world.tally, Tally::default());
}

#[test]
fn several_ways_are_a_group_of_contiguous_members_in_both_families() {
    let mut world = World::new(capacities());
    world.neighbours(&[(SECOND, MAC)]);
    let both = way(&[via(GATEWAY), via(SECOND), via(SECOND)]);
    world.apply(Delta {
        ends: true,
        ipv4: vec![(DEFAULT, both.clone())],
        ipv6: vec![(DEFAULT6, both)],
        ..Delta::default()
    });
    let (id, group) = world.default_route();
    let Adjacency::Group { first, count: 3 } = group else {
        panic!("{group:?}");
    };
    let members = [0, 1, 2].map(|n| world.reader.adjacency(NextHopId(first.0 + n)));
    let resolved = Adjacency::Neighbour { port: 1, mac: MAC };
    let unresolved = Adjacency::Unresolved { port: 1 };
    assert_eq!(members, [unresolved, resolved, resolved]);
    assert_eq!(world.reader.next_hop_address(first), GATEWAY);
    assert_eq!(
        world.routes6()[0].next_hop,
        id,
        "one group for all that lead there"
    );

    // A path fails: the other has everything, under another number.
    world.change(&[(DEFAULT, way(&[via(SECOND)]))]);
    assert_eq!(world.default_route().1, resolved);
    assert_eq!(world.reader.adjacency(id), group, "IPv6 still uses it");
}

#[test]
fn a_later_run_finds_the_same_numbers_and_changes_nothing() {
    let mut world = World::new(capacities());
    let [one, two] = [[via(GATEWAY)].as_slice(), &[via(GATEWAY), via(SECOND)]].map(way);
    let network = (Ipv4Addr::new(198, 51, 100, 0), 24);
    let picture = |begins, ends| Delta {
        begins,
        ends,
        ipv4: vec![(DEFAULT, one.clone()), (network, two.clone())],
        ipv6: vec![(DEFAULT6, two.clone())],
        neighbours: Some(Arc::new([((1, GATEWAY), MAC)].into())),
        ..Delta::default()
    };
    world.apply(picture(true, true));
    let (before, version) = (world.routes(), world.version());
    assert_eq!(before.len(), 2);
    world.next_hops = NextHops::recover(&world.publisher);
    world.apply(picture(true, true));
    assert_eq!((world.routes(), world.version()), (before, version));
    assert!(!world.next_hops.is_retiring());
}

#[test]
fn what_a_whole_picture_does_not_name_is_gone_when_it_is_complete_and_not_before() {
    let mut world = World::new(capacities());
    let network = |n| (Ipv4Addr::new(198, 51, 100, n), 32);
    let to = way(&[via(GATEWAY)]);
    world.change(&[(DEFAULT, to.clone()), (network(1), to.clone())]);
    let version = world.version();
    let piece = |begins, ends, prefix| Delta {
        begins,
        ends,
        ipv4: vec![(prefix, to.clone())],
        ..Delta::default()
    };
    world.apply(piece(true, false, network(2)));
    assert_eq!(world.version(), version);
    world.next_hops.lose();
    world.apply(piece(true, false, network(3)));
    world.apply(piece(false, true, DEFAULT));
    let left: Vec<_> = world
        .routes()
        .iter()
        .map(|r| (r.prefix, r.length))
        .collect();
    assert_eq!(left, [DEFAULT, network(3)]);
}

#[test]
fn of_more_routes_than_fit_the_less_specific_are_kept_and_the_rest_is_counted() {
    let small = Capacities {
        routes: 3,
        ..capacities()
    };
    let mut world = World::new(small);
    let network = |n, length| (Ipv4Addr::new(203, 0, n, 0), length);
    let (gateway, connected) = (way(&[via(GATEWAY)]), way(&[Target::Connected { port: 1 }]));
    let own = (Ipv4Addr::new(192, 0, 2, 2), 32);
    world.change(&[
        (network(1, 24), gateway.clone()),
        (network(2, 23), gateway.clone()),
        (network(4, 22), gateway.clone()),
        (DEFAULT, gateway.clone()),
        (own, connected),
    ]);
    let kept = |world: &World| -> Vec<_> {
        world
            .routes()
            .iter()
            .map(|r| (r.prefix, r.length))
            .collect()
    };
    assert_eq!(kept(&world), [DEFAULT, own, network(4, 22)]);
    let view = world.next_hops.view(&world.publisher);
    assert_eq!((view.full, view.left_out), (true, 2));
    assert_eq!(world.tally.get(Count::RoutesFull), 1);
    world.change(&[(network(4, 22), None), (network(1, 24), None)]);
    assert_eq!(kept(&world), [DEFAULT, own, network(2, 23)]);
    assert!(!world.next_hops.view(&world.publisher).full);
}

#[test]
fn routes_without_a_number_are_placed_when_one_is_free() {
    let small = Capacities {
        next_hops: 2,
        ..capacities()
    };
    let mut world = World::new(small);
    let network = (Ipv4Addr::new(198, 51, 100, 0), 24);
    world.change(&[(DEFAULT, way(&[via(GATEWAY)]))]);
    world.change(&[(network, way(&[via(SECOND)]))]);
    assert_eq!(world.routes().len(), 1);
    assert!(world.next_hops.view(&world.publisher).full);
    world.change(&[(DEFAULT, None)]);
    // There is no dataplane that could hold the old number.
    let version = world.version().unwrap();
    world.dataplane.routes_applied(version);
    while !world.free_retired() {}
    world.change(&[]);
    assert_eq!(world.routes()[0].prefix, network.0);
    assert!(!world.next_hops.view(&world.publisher).full);
}

#[test]
fn a_number_is_free_again_only_after_fib_and_epoch() {
    let mut world = World::new(capacities());
    let worker = world.dataplane.worker(0).unwrap();
    worker.enter(0);
    world.change(&[(DEFAULT, way(&[via(GATEWAY), via(SECOND)]))]);
    let (id, _) = world.default_route();
    world.change(&[(DEFAULT, None)]);
    assert!(!world.free_retired(), "the FIB still has the old routes");
    let version = world.version().unwrap();
    world.dataplane.routes_applied(version);
    assert!(!world.free_retired(), "the worker may hold the old number");
    assert_ne!(world.reader.adjacency(id), Adjacency::NoRoute);
    worker.quiescent();
    assert!(world.free_retired());
    for id in [0, 1, 2].map(|n| NextHopId(id.0 + n)) {
        assert_eq!(world.reader.adjacency(id), Adjacency::NoRoute);
    }
}

#[test]
fn the_more_time_a_publication_takes_the_later_is_the_next() {
    let mut world = World::new(Capacities {
        routes: 1 << 20,
        ..capacities()
    });
    let many: Vec<_> = (0..200_000u32)
        .map(|n| ((Ipv4Addr::from_bits(n << 8), 24), way(&[via(GATEWAY)])))
        .collect();
    world.change(&many);
    assert_eq!(world.routes().len(), 200_000);
    let (now, soonest) = (world.now_ms, world.next_hops.not_before_ms);
    world.next_hops.not_before_ms = now + 500;
    let delta = Delta {
        ends: true,
        ipv4: vec![(DEFAULT, way(&[via(SECOND)]))],
        ..Delta::default()
    };
    let World {
        next_hops,
        publisher,
        tally,
        ..
    } = &mut world;
    next_hops.apply(&delta, publisher, tally);
    next_hops.publish(now + 499, publisher, tally);
    assert_eq!(next_hops.due_ms(), Some(now + 500));
    next_hops.publish(now + 500, publisher, tally);
    assert_eq!(next_hops.due_ms(), None);
    assert!(soonest >= now);
}

#[test]
fn port_addresses_are_published_when_they_change() {
    let mut world = World::new(capacities());
    let own = PortAddresses {
        ipv4: Some(Ipv4Addr::new(192, 0, 2, 2)),
        ipv6: Some("2001:db8::2".parse().unwrap()),
    };
    let mut pools = bng_shm::Pools::default();
    let delta = Delta {
        ends: true,
        addresses: Some([PortAddresses::default(), own].into()),
        ..Delta::default()
    };
    world.apply(delta.clone());
    assert!(world.reader.refresh_pools(&mut pools));
    assert_eq!(pools.port_addresses(1), own);
    world.apply(delta);
    assert!(!world.reader.refresh_pools(&mut pools), "nothing new");
}
