//! The netlink watcher against the real kernel, in network namespaces of its own. A veth named like the core port stands for
//! the TAP twin; the other end is the core router. Needs root.

use std::net::Ipv4Addr;
use std::process::Command;

use bng_controlplane::netlink;
use bng_shm::{Adjacency, Event, Reader, Route};
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
    // The gateway is on link as well, and known.
    assert!(is_resolved(lookup(&reader, "192.0.2.1")));
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
