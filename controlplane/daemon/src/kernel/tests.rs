use super::*;

const TWIN: u32 = 7;
const SECOND: u32 = 8;
const OTHER: u32 = 2;
const PORT: u8 = 1;
const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn route(prefix: &str, length: u8, table: Table, priority: u32, kind: RouteKind) -> KernelRoute {
    match address(prefix) {
        IpAddr::V4(prefix) => KernelRoute::Ipv4(
            RouteKey {
                prefix: (prefix, length),
                table,
                priority,
            },
            kind,
        ),
        IpAddr::V6(prefix) => KernelRoute::Ipv6(
            RouteKey {
                prefix: (prefix, length),
                table,
                priority,
            },
            kind,
        ),
    }
}

fn hop(interface: u32, gateway: Option<IpAddr>) -> Hop {
    Hop {
        interface,
        gateway,
        weight: 1,
    }
}

fn via(interface: u32, gateway: Option<IpAddr>) -> RouteKind {
    RouteKind::Unicast(vec![hop(interface, gateway)])
}

fn kernel() -> Kernel {
    let mut kernel = Kernel::new([(TWIN, PORT), (SECOND, 2)].into(), 3);
    for it in [
        route("192.0.2.0", 24, Table::Main, 0, via(TWIN, None)),
        route("192.0.2.2", 32, Table::Local, 0, RouteKind::Local(TWIN)),
        route(
            "192.0.2.255",
            32,
            Table::Local,
            0,
            RouteKind::Broadcast(TWIN),
        ),
        route("0.0.0.0", 0, Table::Main, 20, via(TWIN, Some(GATEWAY))),
        route("2001:db8::", 64, Table::Main, 256, via(TWIN, None)),
        route("2001:db8::2", 128, Table::Local, 0, RouteKind::Local(TWIN)),
    ] {
        assert!(kernel.set_route(it));
    }
    kernel
}

/// What the driver knows after it has taken all pieces.
#[derive(Debug, Default, PartialEq)]
struct Known {
    routes: BTreeMap<(IpAddr, u8), Vec<Target>>,
    neighbours: Neighbours,
    addresses: Vec<PortAddresses>,
}

impl Known {
    fn take(&mut self, delta: Delta) {
        if delta.begins {
            self.routes.clear();
        }
        let ipv4 = (delta.ipv4.into_iter()).map(|((a, l), way)| ((IpAddr::from(a), l), way));
        let ipv6 = (delta.ipv6.into_iter()).map(|((a, l), way)| ((IpAddr::from(a), l), way));
        for (prefix, way) in ipv4.chain(ipv6) {
            match way {
                Some(way) => self.routes.insert(prefix, way.to_vec()),
                None => self.routes.remove(&prefix),
            };
        }
        if let Some(neighbours) = delta.neighbours {
            self.neighbours = (*neighbours).clone();
        }
        if let Some(addresses) = delta.addresses {
            self.addresses = addresses.to_vec();
        }
    }

    fn lookup(&self, to: &str) -> Vec<Target> {
        let to = address(to);
        let inside = |(network, length): &(IpAddr, u8)| match (network, to) {
            (IpAddr::V4(network), IpAddr::V4(to)) => to.first(*length) == *network,
            (IpAddr::V6(network), IpAddr::V6(to)) => to.first(*length) == *network,
            _ => false,
        };
        let fitting = self.routes.iter().filter(|(prefix, _)| inside(prefix));
        let best = fitting.max_by_key(|((_, length), _)| *length);
        best.map_or(vec![], |(_, way)| way.clone())
    }
}

/// By changes and by a whole picture the driver learns the same.
fn known(kernel: &mut Kernel, known: &mut Known) {
    known.take(kernel.changes());
    let mut whole = Known::default();
    for piece in kernel.picture() {
        whole.take(piece);
    }
    assert_eq!(whole, *known);
}

fn target(address: IpAddr) -> Vec<Target> {
    vec![Target::Via {
        port: PORT,
        address,
    }]
}

#[test]
fn routes_of_a_twin_lead_where_the_kernel_says() {
    let mut driver = Known::default();
    known(&mut kernel(), &mut driver);
    assert_eq!(driver.lookup("8.8.8.8"), target(GATEWAY));
    let connected = [Target::Connected { port: PORT }];
    assert_eq!(driver.lookup("192.0.2.77"), connected);
    assert_eq!(driver.lookup("2001:db8::77"), connected);
    let local = [Target::Local { port: PORT }];
    assert_eq!(driver.lookup("192.0.2.2"), local);
    assert_eq!(driver.lookup("2001:db8::2"), local);
    assert_eq!(driver.lookup("192.0.2.255"), [Target::Blackhole]);
    assert_eq!(driver.lookup("2001:db8:1::1"), []);
}

#[test]
fn the_lowest_metric_that_leads_over_a_twin_is_used() {
    let (mut kernel, mut driver) = (kernel(), Known::default());
    let default = |priority, kind| route("0.0.0.0", 0, Table::Main, priority, kind);
    // The management interface has the better default route, but is none of ours.
    assert!(!kernel.set_route(default(0, via(OTHER, Some(address("10.0.0.1"))))));
    let better = address("192.0.2.9");
    assert!(kernel.set_route(default(10, via(TWIN, Some(better)))));
    known(&mut kernel, &mut driver);
    assert_eq!(driver.lookup("8.8.8.8"), target(better));
    assert!(kernel.remove_route(&default(10, via(TWIN, Some(better)))));
    known(&mut kernel, &mut driver);
    assert_eq!(driver.lookup("8.8.8.8"), target(GATEWAY));
    // Replaced by one that leads elsewhere, it is gone.
    assert!(kernel.set_route(default(20, via(OTHER, Some(address("10.0.0.1"))))));
    known(&mut kernel, &mut driver);
    assert_eq!(driver.lookup("8.8.8.8"), []);
}

#[test]
fn several_ways_are_used_by_weight_in_lowest_terms_and_only_those_over_twins() {
    let (mut kernel, mut driver) = (kernel(), Known::default());
    let gateway = |last| Some(IpAddr::from([192, 0, 2, last]));
    let weighted = |interface, last, weight| Hop {
        weight,
        ..hop(interface, gateway(last))
    };
    let ways = vec![
        weighted(OTHER, 5, 1),
        weighted(TWIN, 6, 20),
        weighted(SECOND, 7, 10),
    ];
    kernel.set_route(route(
        "198.51.100.0",
        24,
        Table::Main,
        0,
        RouteKind::Unicast(ways),
    ));
    known(&mut kernel, &mut driver);
    let six = target(address("192.0.2.6"))[0];
    let seven = Target::Via {
        port: 2,
        address: address("192.0.2.7"),
    };
    assert_eq!(driver.lookup("198.51.100.9"), [six, six, seven]);
}

#[test]
fn shares_of_many_or_heavy_ways_fit_a_group_and_nobody_loses_all() {
    let blackhole = |weight| (Target::Blackhole, weight);
    let local = (Target::Local { port: 1 }, 1);
    let ways = weighted(vec![blackhole(255), local]);
    assert!(ways.len() <= 64 && ways.contains(&local.0), "{ways:?}");
    assert!(ways.len() > 60);
    assert_eq!(weighted(vec![local; 200]).len(), 64);
    assert_eq!(weighted(vec![]), []);
}

#[test]
fn an_ipv6_route_loses_the_ways_that_are_deleted_and_is_gone_with_the_last() {
    let (mut kernel, mut driver) = (kernel(), Known::default());
    let [one, two] = ["2001:db8::a", "fe80::b"].map(|it| hop(TWIN, Some(address(it))));
    let both = RouteKind::Unicast(vec![one, two]);
    let to = |kind| route("2001:db8:9::", 48, Table::Main, 1024, kind);
    kernel.set_route(to(both));
    known(&mut kernel, &mut driver);
    assert_eq!(driver.lookup("2001:db8:9::1").len(), 2);
    assert!(kernel.remove_route(&to(RouteKind::Unicast(vec![one]))));
    known(&mut kernel, &mut driver);
    assert_eq!(driver.lookup("2001:db8:9::1"), target(address("fe80::b")));
    assert!(kernel.remove_route(&to(RouteKind::Unicast(vec![two]))));
    known(&mut kernel, &mut driver);
    assert_eq!(driver.lookup("2001:db8:9::1"), []);
}

#[test]
fn of_several_ipv4_routes_of_one_key_the_first_is_used_and_the_others_are_not_forgotten() {
    let mut kernel = kernel();
    let to = |last| {
        let gateway = Some(IpAddr::from([192, 0, 2, last]));
        route("198.51.100.0", 24, Table::Main, 0, via(TWIN, gateway))
    };
    assert!(kernel.append_route(to(6)));
    assert!(!kernel.has_repeated_keys());
    assert!(!kernel.append_route(to(7)));
    assert!(kernel.has_repeated_keys());
    assert!(!kernel.remove_route(&to(7)), "not the one in use");
    assert!(kernel.remove_route(&to(6)));
}

#[test]
fn an_ipv4_route_may_have_an_ipv6_gateway() {
    let (mut kernel, mut driver) = (kernel(), Known::default());
    let gateway = address("fe80::1");
    kernel.set_route(route(
        "198.51.100.0",
        24,
        Table::Main,
        0,
        via(TWIN, Some(gateway)),
    ));
    known(&mut kernel, &mut driver);
    assert_eq!(driver.lookup("198.51.100.1"), target(gateway));
    assert!(kernel.is_wanted(PORT, gateway));
    assert!(!kernel.is_wanted(2, gateway));
}

#[test]
fn a_resolved_host_on_link_gets_a_route_and_a_stranger_does_not() {
    for (host, stranger) in [("192.0.2.77", "198.51.100.1"), ("2001:db8::77", "fe80::9")] {
        let (mut kernel, mut driver) = (kernel(), Known::default());
        let (host, stranger) = (address(host), address(stranger));
        let mac = [2, 0, 0, 0, 0, 7];
        assert!(kernel.set_neighbour(TWIN, host, Some(mac)));
        assert!(kernel.set_neighbour(TWIN, stranger, Some(mac)));
        assert!(!kernel.set_neighbour(OTHER, address("10.0.0.1"), Some(mac)));
        known(&mut kernel, &mut driver);
        assert_eq!(driver.lookup(&host.to_string()), target(host));
        assert_ne!(driver.lookup(&stranger.to_string()), target(stranger));
        assert_eq!(driver.neighbours.len(), 2);
        assert!(kernel.is_wanted(PORT, host) && !kernel.is_wanted(PORT, stranger));
        assert!(kernel.set_neighbour(TWIN, host, None));
        known(&mut kernel, &mut driver);
        let connected = [Target::Connected { port: PORT }];
        assert_eq!(driver.lookup(&host.to_string()), connected);
    }
}

#[test]
fn whether_a_host_is_on_link_follows_the_routes_around_it() {
    let (mut kernel, mut driver) = (kernel(), Known::default());
    let host = address("192.0.2.77");
    kernel.set_neighbour(TWIN, host, Some([2; 6]));
    known(&mut kernel, &mut driver);
    let around = route("192.0.2.64", 26, Table::Main, 0, via(TWIN, Some(GATEWAY)));
    kernel.set_route(around.clone());
    known(&mut kernel, &mut driver);
    assert_eq!(driver.lookup("192.0.2.77"), target(GATEWAY));
    kernel.remove_route(&around);
    known(&mut kernel, &mut driver);
    assert_eq!(driver.lookup("192.0.2.77"), target(host));
}

#[test]
fn the_first_address_of_each_family_is_a_ports_own() {
    let (mut kernel, mut driver) = (kernel(), Known::default());
    assert!(kernel.add_address(TWIN, address("192.0.2.2")));
    assert!(kernel.add_address(TWIN, address("192.0.2.3")));
    assert!(kernel.add_address(TWIN, address("2001:db8::2")));
    assert!(!kernel.add_address(OTHER, address("10.0.0.2")));
    known(&mut kernel, &mut driver);
    let own = PortAddresses {
        ipv4: Some(Ipv4Addr::new(192, 0, 2, 2)),
        ipv6: Some("2001:db8::2".parse().unwrap()),
    };
    let none = PortAddresses::default();
    assert_eq!(driver.addresses, [none, own, none]);
    assert_eq!(
        kernel.changes(),
        Delta {
            ends: true,
            ..Delta::default()
        }
    );
}

#[test]
fn prefixes_begin_and_end_where_their_length_says() {
    let v4 = Ipv4Addr::new(192, 0, 2, 77);
    assert_eq!(
        (v4.first(0), v4.last(0)),
        (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST)
    );
    assert_eq!((v4.first(32), v4.last(32)), (v4, v4));
    assert_eq!(v4.last(26), Ipv4Addr::new(192, 0, 2, 127));
    let v6: Ipv6Addr = "2001:db8::77".parse().unwrap();
    assert_eq!(
        (v6.first(0), v6.last(0)),
        (Ipv6Addr::UNSPECIFIED, u128::MAX.into())
    );
    assert_eq!((v6.first(128), v6.last(128)), (v6, v6));
}
