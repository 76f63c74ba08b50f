//! The kernel's IPv4 routes and neighbours on the TAP twins, and what workers are to make of them.
//!
//! Pure: netlink messages have been taken apart before they come here.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

/// A prefix: network address and length.
pub type Prefix = (Ipv4Addr, u8);

/// Which of the kernel's tables a route is in. A route of the local table wins over one of the main table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// Addresses of this machine and broadcast addresses.
    Local,
    /// What operators and routing daemons fill.
    Main,
}

/// What makes two routes of the kernel different ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteKey {
    /// Destination.
    pub prefix: Prefix,
    /// Table.
    pub table: Table,
    /// Metric; the lowest is used.
    pub priority: u32,
}

/// One way a route leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop {
    /// Interface index.
    pub interface: u32,
    /// Gateway; `None` for a connected network.
    pub gateway: Option<Ipv4Addr>,
}

/// What a route of the kernel says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteKind {
    /// Forward. Of several ways (ECMP) the first that leads over a twin is used.
    Unicast(Vec<Hop>),
    /// Deliver locally.
    Local(u32),
    /// A broadcast address of the interface.
    Broadcast(u32),
    /// Blackhole, unreachable or prohibit.
    Refuse,
}

/// What workers do with packets for a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// Send to this neighbour: a gateway, or a host that is on link itself.
    Via {
        /// Port index.
        port: u8,
        /// The neighbour.
        address: Ipv4Addr,
    },
    /// Connected network: the destination must be resolved first.
    Connected {
        /// Port index.
        port: u8,
    },
    /// The gateway's own address: the kernel's, by the twin.
    Local {
        /// Port index.
        port: u8,
    },
    /// Drop.
    Blackhole,
}

/// The whole picture for the dataplane.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mirror {
    /// Routes.
    pub routes: BTreeMap<Prefix, Target>,
    /// MAC addresses of neighbours, by port index and address.
    pub neighbours: BTreeMap<(u8, Ipv4Addr), [u8; 6]>,
}

/// The kernel's state as netlink tells it.
#[derive(Debug, Default)]
pub struct Kernel {
    twins: BTreeMap<u32, u8>,
    routes: BTreeMap<RouteKey, RouteKind>,
    neighbours: BTreeMap<(u32, Ipv4Addr), [u8; 6]>,
}

impl Kernel {
    /// An interface that is a port's twin.
    pub fn add_twin(&mut self, interface: u32, port: u8) {
        self.twins.insert(interface, port);
    }

    /// An interface is gone, and everything on it.
    pub fn remove_interface(&mut self, interface: u32) -> bool {
        self.neighbours.retain(|(on, _), _| *on != interface);
        self.twins.remove(&interface).is_some()
    }

    /// The port whose twin an interface is.
    #[must_use]
    pub fn port_of(&self, interface: u32) -> Option<u8> {
        self.twins.get(&interface).copied()
    }

    /// Interface index of a port's twin.
    #[must_use]
    pub fn twin_of(&self, port: u8) -> Option<u32> {
        let mut twins = self.twins.iter();
        twins.find(|(_, p)| **p == port).map(|(on, _)| *on)
    }

    /// All twins: interface index and port.
    pub fn twins(&self) -> impl Iterator<Item = (u32, u8)> + '_ {
        self.twins.iter().map(|(on, port)| (*on, *port))
    }

    /// A route was added or replaced; true when something changed.
    pub fn set_route(&mut self, key: RouteKey, kind: RouteKind) -> bool {
        self.routes.insert(key, kind.clone()) != Some(kind)
    }

    /// A route was deleted; true when it was known.
    pub fn remove_route(&mut self, key: &RouteKey) -> bool {
        self.routes.remove(key).is_some()
    }

    /// Whether the main table leads to a prefix by this gateway of this interface.
    #[must_use]
    pub fn has_route(&self, prefix: Prefix, interface: u32, gateway: Ipv4Addr) -> bool {
        let hop = Hop {
            interface,
            gateway: Some(gateway),
        };
        self.routes.iter().any(|(key, kind)| {
            key.prefix == prefix
                && key.table == Table::Main
                && matches!(kind, RouteKind::Unicast(hops) if hops.contains(&hop))
        })
    }

    /// What is known of a neighbour on a twin: its MAC address, or that it has none. True when something changed.
    pub fn set_neighbour(
        &mut self,
        interface: u32,
        address: Ipv4Addr,
        mac: Option<[u8; 6]>,
    ) -> bool {
        if !self.twins.contains_key(&interface) {
            return false;
        }
        let key = (interface, address);
        match mac {
            Some(mac) => self.neighbours.insert(key, mac) != Some(mac),
            None => self.neighbours.remove(&key).is_some(),
        }
    }

    /// What workers are to know.
    #[must_use]
    pub fn mirror(&self) -> Mirror {
        let mut routes = BTreeMap::new();
        // Ordered by prefix, table, metric: the first that leads anywhere of ours counts.
        for (key, kind) in &self.routes {
            if let Some(target) = self.target(kind) {
                routes.entry(key.prefix).or_insert(target);
            }
        }
        let mut neighbours = BTreeMap::new();
        let gateways: BTreeSet<Target> = routes
            .values()
            .filter(|target| matches!(target, Target::Via { .. }))
            .copied()
            .collect();
        let mut hosts = Vec::new();
        for ((interface, address), mac) in &self.neighbours {
            let Some(port) = self.port_of(*interface) else {
                continue;
            };
            let address = *address;
            let via = Target::Via { port, address };
            let on_link = longest_match(&routes, address) == Some(Target::Connected { port });
            if on_link {
                hosts.push(((address, 32), via));
            }
            if on_link || gateways.contains(&via) {
                neighbours.insert((port, address), *mac);
            }
        }
        routes.extend(hosts);
        Mirror { routes, neighbours }
    }

    fn target(&self, kind: &RouteKind) -> Option<Target> {
        match kind {
            RouteKind::Unicast(hops) => hops.iter().find_map(|hop| {
                let port = self.port_of(hop.interface)?;
                Some(match hop.gateway {
                    Some(address) => Target::Via { port, address },
                    None => Target::Connected { port },
                })
            }),
            RouteKind::Local(interface) => {
                self.port_of(*interface).map(|port| Target::Local { port })
            }
            // Nobody is to be asked for the MAC address of a broadcast address (RFC 2644).
            RouteKind::Broadcast(interface) => self.port_of(*interface).map(|_| Target::Blackhole),
            RouteKind::Refuse => Some(Target::Blackhole),
        }
    }
}

/// Where the routes lead for an address.
#[must_use]
pub fn longest_match(routes: &BTreeMap<Prefix, Target>, address: Ipv4Addr) -> Option<Target> {
    (0..=32u8).rev().find_map(|length| {
        let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
        let network = Ipv4Addr::from_bits(address.to_bits() & mask);
        routes.get(&(network, length)).copied()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWIN: u32 = 7;
    const OTHER: u32 = 2;
    const PORT: u8 = 1;
    const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

    fn address(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    fn key(prefix: &str, length: u8, table: Table, priority: u32) -> RouteKey {
        RouteKey {
            prefix: (address(prefix), length),
            table,
            priority,
        }
    }

    fn via(interface: u32, gateway: Option<Ipv4Addr>) -> RouteKind {
        RouteKind::Unicast(vec![Hop { interface, gateway }])
    }

    fn kernel() -> Kernel {
        let mut kernel = Kernel::default();
        kernel.add_twin(TWIN, PORT);
        kernel.set_route(key("192.0.2.0", 24, Table::Main, 0), via(TWIN, None));
        kernel.set_route(
            key("192.0.2.2", 32, Table::Local, 0),
            RouteKind::Local(TWIN),
        );
        kernel.set_route(
            key("192.0.2.255", 32, Table::Local, 0),
            RouteKind::Broadcast(TWIN),
        );
        kernel.set_route(key("0.0.0.0", 0, Table::Main, 20), via(TWIN, Some(GATEWAY)));
        kernel
    }

    fn lookup(kernel: &Kernel, to: &str) -> Option<Target> {
        longest_match(&kernel.mirror().routes, address(to))
    }

    #[test]
    fn routes_of_a_twin_lead_where_the_kernel_says() {
        let kernel = kernel();
        let gateway = Target::Via {
            port: PORT,
            address: GATEWAY,
        };
        assert_eq!(lookup(&kernel, "8.8.8.8"), Some(gateway));
        let connected = Target::Connected { port: PORT };
        assert_eq!(lookup(&kernel, "192.0.2.77"), Some(connected));
        let local = Target::Local { port: PORT };
        assert_eq!(lookup(&kernel, "192.0.2.2"), Some(local));
        assert_eq!(lookup(&kernel, "192.0.2.255"), Some(Target::Blackhole));
    }

    #[test]
    fn the_lowest_metric_that_leads_over_a_twin_is_used() {
        let mut kernel = kernel();
        // The management interface has the better default route, but is none of ours.
        kernel.set_route(
            key("0.0.0.0", 0, Table::Main, 0),
            via(OTHER, Some(address("10.0.0.1"))),
        );
        let better = address("192.0.2.9");
        kernel.set_route(key("0.0.0.0", 0, Table::Main, 10), via(TWIN, Some(better)));
        let expected = Target::Via {
            port: PORT,
            address: better,
        };
        assert_eq!(lookup(&kernel, "8.8.8.8"), Some(expected));
        kernel.remove_route(&key("0.0.0.0", 0, Table::Main, 10));
        let expected = Target::Via {
            port: PORT,
            address: GATEWAY,
        };
        assert_eq!(lookup(&kernel, "8.8.8.8"), Some(expected));
    }

    #[test]
    fn of_several_ways_the_first_over_a_twin_is_used() {
        let mut kernel = kernel();
        let hop = |interface, last| Hop {
            interface,
            gateway: Some(Ipv4Addr::new(192, 0, 2, last)),
        };
        let ways = RouteKind::Unicast(vec![hop(OTHER, 5), hop(TWIN, 6), hop(TWIN, 7)]);
        kernel.set_route(key("198.51.100.0", 24, Table::Main, 0), ways);
        let expected = Target::Via {
            port: PORT,
            address: Ipv4Addr::new(192, 0, 2, 6),
        };
        assert_eq!(lookup(&kernel, "198.51.100.9"), Some(expected));
    }

    #[test]
    fn a_resolved_host_on_link_gets_a_route_and_a_stranger_does_not() {
        let mut kernel = kernel();
        let mac = [2, 0, 0, 0, 0, 7];
        let host = address("192.0.2.77");
        assert!(kernel.set_neighbour(TWIN, host, Some(mac)));
        assert!(kernel.set_neighbour(TWIN, address("198.51.100.1"), Some(mac)));
        assert!(kernel.set_neighbour(TWIN, GATEWAY, Some(mac)));
        assert!(!kernel.set_neighbour(OTHER, address("10.0.0.1"), Some(mac)));
        let mirror = kernel.mirror();
        let expected = Target::Via {
            port: PORT,
            address: host,
        };
        assert_eq!(longest_match(&mirror.routes, host), Some(expected));
        let known: Vec<_> = mirror.neighbours.keys().map(|(_, a)| *a).collect();
        assert_eq!(known, [GATEWAY, host]);
        assert!(kernel.set_neighbour(TWIN, host, None));
        let connected = Target::Connected { port: PORT };
        assert_eq!(lookup(&kernel, "192.0.2.77"), Some(connected));
    }

    #[test]
    fn a_twin_that_vanishes_takes_its_routes_and_neighbours_along() {
        let mut kernel = kernel();
        kernel.set_neighbour(TWIN, GATEWAY, Some([2; 6]));
        kernel.set_route(key("203.0.113.0", 24, Table::Main, 0), RouteKind::Refuse);
        assert!(kernel.remove_interface(TWIN));
        let mirror = kernel.mirror();
        let left: Vec<_> = mirror.routes.into_iter().collect();
        assert_eq!(left, [((address("203.0.113.0"), 24), Target::Blackhole)]);
        assert!(mirror.neighbours.is_empty());
    }
}
