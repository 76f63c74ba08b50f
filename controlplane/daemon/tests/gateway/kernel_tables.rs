//! The netlink watcher against the real kernel, in network namespaces of its own. A veth named like the core port stands for
//! the TAP twin; the other end is the core router. Needs root.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;

use bng_controlplane::netlink;
use bng_shm::{Adjacency, Event, NextHopId, Pools, Reader, Route, Route6};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::client::Client;
use crate::world::{CONFIG, World};

/// Two namespaces, removed at the end.
struct Namespaces {
    gateway: String,
    router: String,
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap())
        .args(words)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {error}");
}

impl Namespaces {
    fn new(name: &str) -> Self {
        let gateway = format!("ctl-gw-{name}-{}", std::process::id());
        let router = format!("ctl-rt-{name}-{}", std::process::id());
        run(&format!("ip netns add {gateway}"));
        run(&format!("ip netns add {router}"));
        Self { gateway, router }
    }

    fn gateway(&self, arguments: &str) {
        run(&format!("ip -n {} {arguments}", self.gateway));
    }

    fn router(&self, arguments: &str) {
        run(&format!("ip -n {} {arguments}", self.router));
    }

    /// Makes the twin appear, with the router at its other end.
    fn plug(&self) {
        let (gateway, router) = (&self.gateway, &self.router);
        run(&format!(
            "ip link add core0 netns {gateway} type veth peer name uplink netns {router}"
        ));
        self.router("addr add 192.0.2.1/24 dev uplink");
        self.router("addr add 192.0.2.77/24 dev uplink");
        self.router("addr add 2001:db8::1/64 dev uplink nodad");
        self.router("addr add 2001:db8::77/64 dev uplink nodad");
        self.router("link set uplink up");
    }

    fn is_link_up(&self) -> bool {
        let arguments = ["-n", &self.gateway, "link", "show", "core0"];
        let output = Command::new("ip").args(arguments).output().unwrap();
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("state UP")
    }

    fn unplug(&self) {
        self.router("link del uplink");
    }

    /// Runs a watcher for a world inside the gateway's namespace, until the handle is dropped.
    fn watch(&self, world: &mut World) -> tokio::sync::oneshot::Sender<()> {
        let path = format!("/run/netns/{}", self.gateway);
        let ports = world.settings.ports.clone().into();
        let (driver, wanted) = (world.handle(), world.resolved.take().unwrap());
        let (end, ended) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let namespace = std::fs::File::open(path).unwrap();
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), kind).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = netlink::watch(ports, driver, wanted) => {}
                    _ = ended => {}
                }
            });
        });
        end
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in [&self.gateway, &self.router] {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

fn routes(reader: &Reader) -> Vec<Route> {
    let mut routes = Vec::new();
    reader.refresh_routes(0, &mut routes);
    routes
}

/// What the published routes say for an address.
fn lookup(reader: &Reader, address: &str) -> Adjacency {
    let address: Ipv4Addr = address.parse().unwrap();
    let matches = |route: &&Route| {
        let mask = u32::MAX
            .checked_shl(32 - u32::from(route.length))
            .unwrap_or(0);
        address.to_bits() & mask == route.prefix.to_bits()
    };
    let routes = routes(reader);
    let best = routes
        .iter()
        .filter(matches)
        .max_by_key(|route| route.length);
    best.map_or(Adjacency::NoRoute, |route| reader.adjacency(route.next_hop))
}

/// The same for an IPv6 address.
fn lookup6(reader: &Reader, address: &str) -> Adjacency {
    let address: Ipv6Addr = address.parse().unwrap();
    let matches = |route: &&Route6| {
        let mask = u128::MAX
            .checked_shl(128 - u32::from(route.length))
            .unwrap_or(0);
        address.to_bits() & mask == route.prefix.to_bits()
    };
    let mut routes = Vec::new();
    reader.refresh_routes6(0, &mut routes);
    let best = routes
        .iter()
        .filter(matches)
        .max_by_key(|route| route.length);
    best.map_or(Adjacency::NoRoute, |route| reader.adjacency(route.next_hop))
}

/// Addresses of the members of a group, all of them resolved, in order.
fn members(reader: &Reader, group: Adjacency) -> Vec<IpAddr> {
    let Adjacency::Group { first, count } = group else {
        return vec![];
    };
    let ids = (0..u32::from(count)).map(|n| NextHopId(first.0 + n));
    let resolved = ids.filter(|id| is_resolved(reader.adjacency(*id)));
    resolved.map(|id| reader.next_hop_address(id)).collect()
}

fn addresses(list: &[&str]) -> Vec<IpAddr> {
    list.iter()
        .map(|address| address.parse().unwrap())
        .collect()
}

/// The core port with addresses and default routes of both families.
fn dual_stack() -> String {
    let twin = "device: net_null1, addresses: [192.0.2.2/24, 2001:db8::2/64], \
         routes: [{to: default, via: 192.0.2.1}, {to: default, via: 2001:db8::1}]";
    CONFIG.replace("device: net_null1", twin)
}

fn is_resolved(adjacency: Adjacency) -> bool {
    matches!(adjacency, Adjacency::Neighbour { port: 1, .. })
}

/// The core port with an address and a default route.
fn config() -> String {
    let twin =
        "device: net_null1, addresses: [192.0.2.2/24], routes: [{to: default, via: 192.0.2.1}]";
    CONFIG.replace("device: net_null1", twin)
}

#[test]
fn what_control_itself_puts_on_a_twin_that_is_up_is_mirrored() {
    let namespaces = Namespaces::new("own");
    namespaces.plug();
    namespaces.gateway("link set core0 up");
    // Whatever the kernel has to tell of the link itself is over before the watcher starts.
    while !namespaces.is_link_up() {
        std::thread::yield_now();
    }
    let mut world = World::new(&config());
    let reader = world.reader();
    let mut nobody: [Client; 0] = [];
    let _watcher = namespaces.watch(&mut world);
    world.until("default route", &mut nobody, |_, _| {
        is_resolved(lookup(&reader, "8.8.8.8"))
    });
    // The gateway is on link as well, and known: in the same picture or in the next one, as the kernel's news come.
    world.until("gateway", &mut nobody, |_, _| {
        is_resolved(lookup(&reader, "192.0.2.1"))
    });
}

#[test]
fn the_kernels_tables_on_the_twin_are_mirrored_as_they_change() {
    let namespaces = Namespaces::new("changes");
    let mut world = World::new(&config());
    let reader = world.reader();
    let mut nobody: [Client; 0] = [];
    let _watcher = namespaces.watch(&mut world);
    world.until("first picture", &mut nobody, |world, _| {
        world.status().routes.synchronised
    });
    assert_eq!(routes(&reader), []);

    // The twin appears: it gets the configuration's address and route, and the gateway is resolved without traffic.
    namespaces.plug();
    world.until("default route", &mut nobody, |_, _| {
        is_resolved(lookup(&reader, "8.8.8.8"))
    });
    assert_eq!(lookup(&reader, "192.0.2.2"), Adjacency::Local { port: 1 });
    assert_eq!(lookup(&reader, "192.0.2.255"), Adjacency::Blackhole);
    assert_eq!(
        lookup(&reader, "192.0.2.77"),
        Adjacency::Connected { port: 1 }
    );

    // A worker asks for a host that is on link; the kernel finds it and it gets a route of its own.
    let address = "192.0.2.77".parse().unwrap();
    let worker = world.worker(0);
    assert!(worker.tell(Event::ResolveNeighbour { port: 1, address }));
    worker.pay_bell();
    world.until("host", &mut nobody, |_, _| {
        is_resolved(lookup(&reader, "192.0.2.77"))
    });

    // What an operator or a routing daemon does is followed.
    namespaces.gateway("route add 198.51.100.0/24 via 192.0.2.77");
    namespaces.gateway("route add blackhole 203.0.113.0/24");
    world.until("routes", &mut nobody, |_, _| {
        is_resolved(lookup(&reader, "198.51.100.1"))
            && lookup(&reader, "203.0.113.1") == Adjacency::Blackhole
    });
    namespaces.gateway("route replace 198.51.100.0/24 via 192.0.2.200");
    world.until("silent gateway", &mut nobody, |_, _| {
        lookup(&reader, "198.51.100.1") == Adjacency::Unresolved { port: 1 }
    });
    namespaces.gateway("route del 198.51.100.0/24");
    namespaces.gateway("route del blackhole 203.0.113.0/24");
    world.until("routes gone", &mut nobody, |_, _| {
        is_resolved(lookup(&reader, "198.51.100.1")) && is_resolved(lookup(&reader, "203.0.113.1"))
    });

    // The link goes down: the kernel says nothing about the routes it drops with it.
    namespaces.gateway("link set core0 down");
    world.until("down", &mut nobody, |_, _| {
        lookup(&reader, "8.8.8.8") == Adjacency::NoRoute
    });
    namespaces.gateway("link set core0 up");
    namespaces.gateway("route add default via 192.0.2.1");
    world.until("up", &mut nobody, |_, _| {
        is_resolved(lookup(&reader, "8.8.8.8"))
    });

    // The dataplane restarts: its twin vanishes, comes back, and is set up again.
    namespaces.unplug();
    world.until("gone", &mut nobody, |_, _| routes(&reader).is_empty());
    namespaces.plug();
    world.until("back", &mut nobody, |_, _| {
        is_resolved(lookup(&reader, "8.8.8.8"))
    });
}

#[test]
fn ipv6_routes_neighbours_and_the_ports_own_addresses_are_mirrored() {
    let namespaces = Namespaces::new("v6");
    let mut world = World::new(&dual_stack());
    let reader = world.reader();
    let mut nobody: [Client; 0] = [];
    let _watcher = namespaces.watch(&mut world);
    namespaces.plug();
    world.until("default route", &mut nobody, |_, _| {
        is_resolved(lookup6(&reader, "2001:db8:ffff::1"))
    });
    let local = Adjacency::Local { port: 1 };
    assert_eq!(lookup6(&reader, "2001:db8::2"), local);
    let connected = Adjacency::Connected { port: 1 };
    assert_eq!(lookup6(&reader, "2001:db8::77"), connected);
    assert_eq!(
        lookup6(&reader, "fe80::1"),
        lookup6(&reader, "2001:db8:ffff::1"),
        "no route of its own"
    );
    let mut pools = Pools::default();
    world.until("addresses", &mut nobody, |_, _| {
        reader.refresh_pools(&mut pools);
        let own = pools.port_addresses(1);
        own.ipv4 == Some(Ipv4Addr::new(192, 0, 2, 2))
            && own.ipv6 == Some("2001:db8::2".parse().unwrap())
    });

    // A worker asks for a host that is on link.
    let address = "2001:db8::77".parse().unwrap();
    let worker = world.worker(0);
    assert!(worker.tell(Event::ResolveNeighbour { port: 1, address }));
    worker.pay_bell();
    world.until("host", &mut nobody, |_, _| {
        is_resolved(lookup6(&reader, "2001:db8::77"))
    });

    namespaces.gateway("-6 route add 2001:db8:1::/48 via 2001:db8::77");
    namespaces.gateway("-6 route add blackhole 2001:db8:2::/48");
    // An IPv4 route over an IPv6 gateway (RFC 8950).
    namespaces.gateway("route add 198.51.100.0/24 via inet6 2001:db8::77 dev core0");
    world.until("routes", &mut nobody, |_, _| {
        is_resolved(lookup6(&reader, "2001:db8:1::1"))
            && lookup6(&reader, "2001:db8:2::1") == Adjacency::Blackhole
            && is_resolved(lookup(&reader, "198.51.100.1"))
            && lookup(&reader, "198.51.100.1") == lookup6(&reader, "2001:db8:1::1")
    });
    namespaces.gateway("-6 route del 2001:db8:1::/48");
    namespaces.gateway("-6 route del blackhole 2001:db8:2::/48");
    world.until("routes gone", &mut nobody, |_, _| {
        let default = lookup6(&reader, "2001:db8:ffff::1");
        lookup6(&reader, "2001:db8:1::1") == default && lookup6(&reader, "2001:db8:2::1") == default
    });
    namespaces.gateway("addr del 2001:db8::2/64 dev core0");
    namespaces.gateway("addr add 2001:db8::3/64 dev core0 nodad");
    world.until("another address", &mut nobody, |_, _| {
        reader.refresh_pools(&mut pools);
        pools.port_addresses(1).ipv6 == Some("2001:db8::3".parse().unwrap())
            && lookup6(&reader, "2001:db8::3") == local
            && lookup6(&reader, "2001:db8::2") != local
    });
}

#[test]
fn equal_cost_paths_are_groups_by_weight_and_lose_the_path_that_goes() {
    let namespaces = Namespaces::new("ecmp");
    let mut world = World::new(&dual_stack());
    let reader = world.reader();
    let mut nobody: [Client; 0] = [];
    let _watcher = namespaces.watch(&mut world);
    namespaces.plug();
    world.until("default routes", &mut nobody, |_, _| {
        is_resolved(lookup(&reader, "8.8.8.8")) && is_resolved(lookup6(&reader, "2001:db8:ffff::1"))
    });
    let paths =
        "route add 198.51.100.0/24 nexthop via 192.0.2.1 weight 2 nexthop via 192.0.2.77 weight 1";
    namespaces.gateway(paths);
    let expected = addresses(&["192.0.2.1", "192.0.2.1", "192.0.2.77"]);
    world.until("IPv4 group", &mut nobody, |_, _| {
        members(&reader, lookup(&reader, "198.51.100.1")) == expected
    });
    let paths = "-6 route add 2001:db8:1::/48 nexthop via 2001:db8::1 nexthop via 2001:db8::77";
    namespaces.gateway(paths);
    let expected = addresses(&["2001:db8::1", "2001:db8::77"]);
    world.until("IPv6 group", &mut nobody, |_, _| {
        members(&reader, lookup6(&reader, "2001:db8:1::1")) == expected
    });

    namespaces.gateway("route replace 198.51.100.0/24 via 192.0.2.77");
    namespaces.gateway("-6 route del 2001:db8:1::/48 via 2001:db8::1");
    world.until("one path each", &mut nobody, |_, _| {
        is_resolved(lookup(&reader, "198.51.100.1"))
            && is_resolved(lookup6(&reader, "2001:db8:1::1"))
    });
    namespaces.gateway("-6 route append 2001:db8:1::/48 via 2001:db8::1");
    world.until("two again", &mut nobody, |_, _| {
        members(&reader, lookup6(&reader, "2001:db8:1::1")).len() == 2
    });

    // Nexthop objects, as routing daemons use them.
    namespaces.gateway("nexthop add id 1 via 192.0.2.1 dev core0");
    namespaces.gateway("nexthop add id 2 via 192.0.2.77 dev core0");
    namespaces.gateway("nexthop add id 10 group 1/2");
    namespaces.gateway("route add 203.0.113.0/24 nhid 10");
    let expected = addresses(&["192.0.2.1", "192.0.2.77"]);
    world.until("group of objects", &mut nobody, |_, _| {
        members(&reader, lookup(&reader, "203.0.113.1")) == expected
    });
    namespaces.gateway("nexthop replace id 10 group 2");
    world.until("one object", &mut nobody, |_, _| {
        is_resolved(lookup(&reader, "203.0.113.1"))
    });
    assert_eq!(world.counted("publish_failed"), 0);
}

/// Resident memory of this process, in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Not run with the others: it takes about a minute and a gigabyte. Run it with `--run-ignored only` and read what it prints.
#[test]
#[ignore = "a measurement"]
fn a_million_routes_of_the_kernel_are_mirrored() {
    const COUNT: usize = 1_000_000;
    let namespaces = Namespaces::new("million");
    let config = dual_stack().replace("dataplane:\n", "dataplane:\n  routes: {ipv4: 1048576}\n");
    let mut world = World::new(&config);
    let reader = world.reader();
    let mut nobody: [Client; 0] = [];
    namespaces.plug();
    let watcher = namespaces.watch(&mut world);
    world.until("default route", &mut nobody, |_, _| {
        is_resolved(lookup(&reader, "8.8.8.8"))
    });
    let batch = |verb: &str, count: usize| {
        use std::fmt::Write as _;
        let mut text = String::new();
        for n in 0..count {
            let net = Ipv4Addr::from_bits(0x0b00_0000 + ((n as u32) << 7));
            let via = if n % 3 == 0 { 1 } else { 77 };
            writeln!(text, "route {verb} {net}/25 via 192.0.2.{via}").unwrap();
        }
        let path = format!("/tmp/ctl-routes-{}", std::process::id());
        std::fs::write(&path, text).unwrap();
        let started = std::time::Instant::now();
        namespaces.gateway(&format!("-batch {path}"));
        std::fs::remove_file(&path).unwrap();
        started.elapsed()
    };
    let mut wait = |what: &str, world: &mut World, count: usize| {
        let started = std::time::Instant::now();
        while world.status().routes.routes < count || routes(&reader).len() < count {
            world.turn(&mut nobody);
            assert!(started.elapsed().as_secs() < 300, "{what}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        started.elapsed()
    };
    let before = resident_kib();
    let kernel = batch("add", COUNT);
    let rest = wait("followed", &mut world, COUNT);
    let after = resident_kib();
    println!("kernel took {kernel:?} for {COUNT} routes, the mirror had them {rest:?} later");
    println!(
        "memory: {} bytes a route, shared memory included",
        (after - before) * 1024 / COUNT as u64
    );
    let churn = batch("replace", 10_000);
    let rest = wait("churn", &mut world, COUNT);
    println!("churn of 10,000 took the kernel {churn:?}; mirrored {rest:?} later");
    drop(watcher);
    let started = std::time::Instant::now();
    world.stop_control();
    world.start_control();
    println!("control recovered its tables in {:?}", started.elapsed());
    let _watcher = namespaces.watch(&mut world);
    let started = std::time::Instant::now();
    while !world.status().routes.synchronised {
        world.turn(&mut []);
    }
    println!("the whole table was read in {:?}", started.elapsed());
    assert!(routes(&reader).len() >= COUNT);
}
