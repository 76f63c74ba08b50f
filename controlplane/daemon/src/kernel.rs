//! The kernel's routes, neighbours and addresses on the TAP twins, and what workers are to make of them.
//!
//! Pure: netlink messages have been taken apart before they come here. Made for full routing tables: a route is a key and a
//! pointer to what it says, shared by all routes that say the same, and the driver is told of the prefixes that changed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use bng_shm::{MAX_GROUP, PortAddresses};

/// An address family.
pub trait Family: Copy + Ord + Debug + Into<IpAddr> + 'static {
    /// Bits of an address.
    const BITS: u8;

    /// The first address of the prefix of this length that the address lies in.
    #[must_use]
    fn first(self, length: u8) -> Self;

    /// The last address of that prefix.
    #[must_use]
    fn last(self, length: u8) -> Self;
}

impl Family for Ipv4Addr {
    const BITS: u8 = 32;

    fn first(self, length: u8) -> Self {
        let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
        Self::from_bits(self.to_bits() & mask)
    }

    fn last(self, length: u8) -> Self {
        let hosts = u32::MAX.checked_shr(length.into()).unwrap_or(0);
        Self::from_bits(self.to_bits() | hosts)
    }
}

impl Family for Ipv6Addr {
    const BITS: u8 = 128;

    fn first(self, length: u8) -> Self {
        let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
        Self::from_bits(self.to_bits() & mask)
    }

    fn last(self, length: u8) -> Self {
        let hosts = u128::MAX.checked_shr(length.into()).unwrap_or(0);
        Self::from_bits(self.to_bits() | hosts)
    }
}

/// A prefix: network address and length.
pub type Prefix<A> = (A, u8);

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
pub struct RouteKey<A> {
    /// Destination.
    pub prefix: Prefix<A>,
    /// Table.
    pub table: Table,
    /// Metric; the lowest is used.
    pub priority: u32,
}

/// A route as netlink tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelRoute {
    /// IPv4.
    Ipv4(RouteKey<Ipv4Addr>, RouteKind),
    /// IPv6.
    Ipv6(RouteKey<Ipv6Addr>, RouteKind),
}

/// One way a route leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hop {
    /// Interface index.
    pub interface: u32,
    /// Gateway; `None` for a connected network. An IPv4 route may have an IPv6 one (RFC 8950).
    pub gateway: Option<IpAddr>,
    /// Share of the traffic among several ways, 1 to 256.
    pub weight: u16,
}

/// What a route of the kernel says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RouteKind {
    /// Forward; several ways are used side by side (ECMP), those that lead over a twin.
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
        address: IpAddr,
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

/// Where a prefix leads: one target, or up to [`MAX_GROUP`] between which flows are spread; a weight is a target more than
/// once. Never empty.
pub type Way = Arc<[Target]>;

/// MAC addresses of neighbours, by port index and address.
pub type Neighbours = BTreeMap<(u8, IpAddr), [u8; 6]>;

/// What the driver is told: a piece of a whole picture, or changes since the last one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delta {
    /// The first piece of a whole picture: what it does not name is gone when it is complete.
    pub begins: bool,
    /// The picture, or the set of changes, is complete.
    pub ends: bool,
    /// Prefixes and where they lead now.
    pub ipv4: Vec<(Prefix<Ipv4Addr>, Option<Way>)>,
    /// The same for IPv6.
    pub ipv6: Vec<(Prefix<Ipv6Addr>, Option<Way>)>,
    /// All neighbours, if any of them changed.
    pub neighbours: Option<Arc<Neighbours>>,
    /// Addresses of all ports by index, if any of them changed.
    pub addresses: Option<Arc<[PortAddresses]>>,
}

/// Prefixes in one piece of a picture: what the driver takes in a few milliseconds.
pub const PIECE: usize = 16_384;

/// What a route says, with what that means for workers.
#[derive(Debug)]
struct Said {
    kind: RouteKind,
    way: Way,
}

/// Routes of one family.
#[derive(Debug)]
struct Routes<A> {
    known: BTreeMap<RouteKey<A>, Arc<Said>>,
    changed: BTreeSet<Prefix<A>>,
}

impl<A> Default for Routes<A> {
    fn default() -> Self {
        Self {
            known: BTreeMap::new(),
            changed: BTreeSet::new(),
        }
    }
}

/// The kernel's state as netlink tells it. Which interface is which port's twin is fixed: when that changes, the kernel's
/// tables are read anew.
#[derive(Debug, Default)]
pub struct Kernel {
    twins: BTreeMap<u32, u8>,
    ports: usize,
    said: HashMap<RouteKind, Arc<Said>>,
    ipv4: Routes<Ipv4Addr>,
    ipv6: Routes<Ipv6Addr>,
    neighbours: BTreeMap<(IpAddr, u32), [u8; 6]>,
    neighbours_changed: bool,
    addresses: BTreeMap<u32, Vec<IpAddr>>,
    addresses_changed: bool,
    repeated: bool,
}

impl InKernel for Ipv4Addr {
    fn routes(kernel: &Kernel) -> &Routes<Self> {
        &kernel.ipv4
    }

    fn routes_mut(kernel: &mut Kernel) -> &mut Routes<Self> {
        &mut kernel.ipv4
    }

    fn of(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        }
    }
}

impl InKernel for Ipv6Addr {
    fn routes(kernel: &Kernel) -> &Routes<Self> {
        &kernel.ipv6
    }

    fn routes_mut(kernel: &mut Kernel) -> &mut Routes<Self> {
        &mut kernel.ipv6
    }

    fn of(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => Some(address),
        }
    }
}

/// The part of [`Kernel`] that belongs to a family.
trait InKernel: Family {
    fn routes(kernel: &Kernel) -> &Routes<Self>;
    fn routes_mut(kernel: &mut Kernel) -> &mut Routes<Self>;
    fn of(address: IpAddr) -> Option<Self>;
}

impl Kernel {
    /// A kernel with these twins, interface index to port index, and no routes yet. `ports` is the number of all ports.
    #[must_use]
    pub fn new(twins: BTreeMap<u32, u8>, ports: usize) -> Self {
        Self {
            twins,
            ports,
            neighbours_changed: true,
            addresses_changed: true,
            ..Self::default()
        }
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

    /// A route was added or replaced; true when something changed for workers.
    pub fn set_route(&mut self, route: KernelRoute) -> bool {
        match route {
            KernelRoute::Ipv4(key, kind) => self.set(key, kind),
            KernelRoute::Ipv6(key, kind) => self.set(key, kind),
        }
    }

    /// A route was added behind others of the same key, or found behind them; the first is used. True when something
    /// changed for workers.
    pub fn append_route(&mut self, route: KernelRoute) -> bool {
        // IPv6 tells the whole route with its new way.
        if let KernelRoute::Ipv4(key, _) = &route
            && self.ipv4.known.contains_key(key)
        {
            self.repeated = true;
            return false;
        }
        self.set_route(route)
    }

    /// Whether there were several IPv4 routes of one key: then a deleted one may have uncovered another.
    #[must_use]
    pub fn has_repeated_keys(&self) -> bool {
        self.repeated
    }

    /// A route was deleted, or of an IPv6 route with several ways those named; true when something changed for workers.
    pub fn remove_route(&mut self, route: &KernelRoute) -> bool {
        match route {
            KernelRoute::Ipv4(key, kind) => match self.ipv4.known.get(key) {
                Some(said) if said.kind == *kind => self.remove(*key),
                _ => false,
            },
            KernelRoute::Ipv6(key, kind) => match self.ipv6.known.get(key) {
                Some(said) => match ways_left(&said.kind, kind) {
                    Some(left) => self.set(*key, left),
                    None => self.remove(*key),
                },
                None => false,
            },
        }
    }

    fn set<A: InKernel>(&mut self, key: RouteKey<A>, kind: RouteKind) -> bool {
        // What leads nowhere of ours is not kept: a full table on another interface costs nothing.
        let Some(said) = self.said(kind) else {
            return self.remove(key);
        };
        let known = &mut A::routes_mut(self).known;
        let before = known.insert(key, Arc::clone(&said));
        if before.is_some_and(|before| Arc::ptr_eq(&before, &said)) {
            return false;
        }
        self.touch(key.prefix);
        true
    }

    fn remove<A: InKernel>(&mut self, key: RouteKey<A>) -> bool {
        let was_known = A::routes_mut(self).known.remove(&key).is_some();
        if was_known {
            self.touch(key.prefix);
        }
        was_known
    }

    fn said(&mut self, kind: RouteKind) -> Option<Arc<Said>> {
        if let Some(said) = self.said.get(&kind) {
            return Some(Arc::clone(said));
        }
        let way = self.way(&kind)?;
        let said = Arc::new(Said {
            kind: kind.clone(),
            way,
        });
        self.said.insert(kind, Arc::clone(&said));
        Some(said)
    }

    /// A prefix is to be looked at again, and every neighbour in it: whether it is on link depends on the routes around it.
    fn touch<A: InKernel>(&mut self, prefix: Prefix<A>) {
        let (first, last) = (prefix.0.into(), prefix.0.last(prefix.1).into());
        let inside = self.neighbours.range((first, 0)..=(last, u32::MAX));
        let hosts: Vec<A> = inside.filter_map(|((host, _), _)| A::of(*host)).collect();
        let changed = &mut A::routes_mut(self).changed;
        changed.insert(prefix);
        changed.extend(hosts.into_iter().map(|host| (host, A::BITS)));
    }

    /// Whether the main table leads to a prefix by this gateway of this interface.
    #[must_use]
    pub fn has_route(&self, to: IpAddr, length: u8, interface: u32, gateway: IpAddr) -> bool {
        let leads = |kind: &RouteKind| {
            let is_it = |hop: &Hop| hop.interface == interface && hop.gateway == Some(gateway);
            matches!(kind, RouteKind::Unicast(hops) if hops.iter().any(is_it))
        };
        match to {
            IpAddr::V4(to) => main_routes(&self.ipv4, (to, length)).any(leads),
            IpAddr::V6(to) => main_routes(&self.ipv6, (to, length)).any(leads),
        }
    }

    /// What is known of a neighbour on a twin: its MAC address, or that it has none. True when something changed.
    pub fn set_neighbour(&mut self, interface: u32, address: IpAddr, mac: Option<[u8; 6]>) -> bool {
        if !self.twins.contains_key(&interface) {
            return false;
        }
        let key = (address, interface);
        let has_changed = match mac {
            Some(mac) => self.neighbours.insert(key, mac) != Some(mac),
            None => self.neighbours.remove(&key).is_some(),
        };
        if has_changed {
            self.neighbours_changed = true;
            match address {
                IpAddr::V4(host) => self.ipv4.changed.insert((host, 32)),
                IpAddr::V6(host) => self.ipv6.changed.insert((host, 128)),
            };
        }
        has_changed
    }

    /// An address of an interface, by order of precedence; true when something changed.
    pub fn add_address(&mut self, interface: u32, address: IpAddr) -> bool {
        if !self.twins.contains_key(&interface) {
            return false;
        }
        let all = self.addresses.entry(interface).or_default();
        if all.contains(&address) {
            return false;
        }
        all.push(address);
        self.addresses_changed = true;
        true
    }

    /// Whether a neighbour is of use to workers: a gateway, or a host on link.
    #[must_use]
    pub fn is_wanted(&self, port: u8, address: IpAddr) -> bool {
        let on_link = match address {
            IpAddr::V4(host) => self.on_link(host),
            IpAddr::V6(host) => self.on_link(host),
        };
        let target = Target::Via { port, address };
        on_link == Some(port) || self.gateways().any(|gateway| gateway == target)
    }

    /// Every gateway of a route.
    pub fn gateways(&self) -> impl Iterator<Item = Target> + '_ {
        let said = self.said.values();
        // One is the list's own; a route no longer there may still have its place in it.
        let used = said.filter(|said| Arc::strong_count(said) > 1);
        used.flat_map(|said| said.way.iter().copied())
            .filter(|target| matches!(target, Target::Via { .. }))
    }

    /// The port in whose connected network an address is.
    fn on_link<A: InKernel>(&self, address: A) -> Option<u8> {
        let routes = A::routes(self);
        let way = (0..=A::BITS)
            .rev()
            .find_map(|length| best(routes, (address.first(length), length)))?;
        match way[..] {
            [Target::Connected { port }] => Some(port),
            _ => None,
        }
    }

    /// Where a prefix leads.
    fn lookup<A: InKernel>(&self, prefix: Prefix<A>) -> Option<Way> {
        if let Some(way) = best(A::routes(self), prefix) {
            return Some(Arc::clone(way));
        }
        if prefix.1 != A::BITS {
            return None;
        }
        let address: IpAddr = prefix.0.into();
        let mut on = self.neighbours.range((address, 0)..=(address, u32::MAX));
        on.next()?;
        let port = self.on_link(prefix.0)?;
        let interface = self.twin_of(port)?;
        let is_known = self.neighbours.contains_key(&(address, interface));
        is_known.then(|| Way::from([Target::Via { port, address }]))
    }

    /// What has changed since the last call or since [`Kernel::picture`].
    #[must_use]
    pub fn changes(&mut self) -> Delta {
        let ipv4 = std::mem::take(&mut self.ipv4.changed);
        let ipv6 = std::mem::take(&mut self.ipv6.changed);
        let delta = Delta {
            begins: false,
            ends: true,
            ipv4: (ipv4.into_iter().map(|it| (it, self.lookup(it)))).collect(),
            ipv6: (ipv6.into_iter().map(|it| (it, self.lookup(it)))).collect(),
            neighbours: self.changed_neighbours(),
            addresses: self.changed_addresses(),
        };
        self.said.retain(|_, said| Arc::strong_count(said) > 1);
        delta
    }

    /// Everything, in pieces.
    #[must_use]
    pub fn picture(&mut self) -> Vec<Delta> {
        self.neighbours_changed = true;
        self.addresses_changed = true;
        let mut pieces = vec![Delta {
            begins: true,
            neighbours: self.changed_neighbours(),
            addresses: self.changed_addresses(),
            ..Delta::default()
        }];
        for piece in self.everything::<Ipv4Addr>().chunks(PIECE) {
            pieces.push(Delta {
                ipv4: piece.to_vec(),
                ..Delta::default()
            });
        }
        for piece in self.everything::<Ipv6Addr>().chunks(PIECE) {
            pieces.push(Delta {
                ipv6: piece.to_vec(),
                ..Delta::default()
            });
        }
        if let Some(last) = pieces.last_mut() {
            last.ends = true;
        }
        pieces
    }

    fn everything<A: InKernel>(&mut self) -> Vec<(Prefix<A>, Option<Way>)> {
        A::routes_mut(self).changed.clear();
        let routes = A::routes(self);
        let mut all: Vec<(Prefix<A>, Option<Way>)> = Vec::with_capacity(routes.known.len());
        // Ordered by prefix, table, metric: the first of a prefix counts.
        for (key, said) in &routes.known {
            if all.last().is_none_or(|(prefix, _)| *prefix != key.prefix) {
                all.push((key.prefix, Some(Arc::clone(&said.way))));
            }
        }
        let hosts = self.neighbours.keys().filter_map(|(host, _)| A::of(*host));
        for host in hosts {
            let prefix = (host, A::BITS);
            if best(routes, prefix).is_none()
                && let Some(way) = self.lookup(prefix)
            {
                all.push((prefix, Some(way)));
            }
        }
        all
    }

    fn changed_neighbours(&mut self) -> Option<Arc<Neighbours>> {
        std::mem::take(&mut self.neighbours_changed).then(|| {
            let all = self.neighbours.iter();
            let all = all.filter_map(|((address, interface), mac)| {
                Some(((self.port_of(*interface)?, *address), *mac))
            });
            Arc::new(all.collect())
        })
    }

    fn changed_addresses(&mut self) -> Option<Arc<[PortAddresses]>> {
        std::mem::take(&mut self.addresses_changed).then(|| {
            let of = |port| {
                let twin = self.twin_of(port)?;
                let all = self.addresses.get(&twin)?;
                Some(PortAddresses {
                    ipv4: all.iter().find_map(|address| Ipv4Addr::of(*address)),
                    ipv6: all.iter().find_map(|address| Ipv6Addr::of(*address)),
                })
            };
            let ports = (0u8..).take(self.ports);
            ports.map(|port| of(port).unwrap_or_default()).collect()
        })
    }

    fn way(&self, kind: &RouteKind) -> Option<Way> {
        match kind {
            RouteKind::Unicast(hops) => {
                let ours = hops.iter().filter_map(|hop| {
                    let port = self.port_of(hop.interface)?;
                    let target = match hop.gateway {
                        Some(address) => Target::Via { port, address },
                        None => Target::Connected { port },
                    };
                    Some((target, hop.weight))
                });
                let ours = weighted(ours.collect());
                (!ours.is_empty()).then(|| ours.into())
            }
            RouteKind::Local(interface) => self
                .port_of(*interface)
                .map(|port| [Target::Local { port }].into()),
            // Nobody is to be asked for the MAC address of a broadcast address (RFC 2644).
            RouteKind::Broadcast(interface) => {
                self.port_of(*interface).map(|_| [Target::Blackhole].into())
            }
            RouteKind::Refuse => Some([Target::Blackhole].into()),
        }
    }
}

/// The way of the first route of a prefix: that of the best table with the lowest metric.
fn best<A: Family>(routes: &Routes<A>, prefix: Prefix<A>) -> Option<&Way> {
    let from = RouteKey {
        prefix,
        table: Table::Local,
        priority: 0,
    };
    let to = RouteKey {
        prefix,
        table: Table::Main,
        priority: u32::MAX,
    };
    let (_, said) = routes.known.range(from..=to).next()?;
    Some(&said.way)
}

fn main_routes<A: Family>(
    routes: &Routes<A>,
    prefix: Prefix<A>,
) -> impl Iterator<Item = &RouteKind> + use<'_, A> {
    let key = |priority| RouteKey {
        prefix,
        table: Table::Main,
        priority,
    };
    let found = routes.known.range(key(0)..=key(u32::MAX));
    found.map(|(_, said)| &said.kind)
}

/// Each target as often as its weight says, in the lowest terms and within [`MAX_GROUP`].
fn weighted(ways: Vec<(Target, u16)>) -> Vec<Target> {
    let divisor = ways
        .iter()
        .fold(0, |divisor, (_, weight)| gcd(divisor, *weight));
    let mut shares: Vec<(Target, usize)> = ways
        .into_iter()
        .map(|(target, weight)| (target, usize::from(weight / divisor.max(1)).max(1)))
        .take(MAX_GROUP.into())
        .collect();
    let sum: usize = shares.iter().map(|(_, share)| share).sum();
    if sum > MAX_GROUP.into() {
        // Every way keeps a share; the rest goes by weight.
        let room = usize::from(MAX_GROUP) - shares.len();
        for (_, share) in &mut shares {
            *share = 1 + *share * room / sum;
        }
    }
    let repeated = |(target, share)| std::iter::repeat_n(target, share);
    shares.into_iter().flat_map(repeated).collect()
}

const fn gcd(a: u16, b: u16) -> u16 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// What is left of a route when some of its ways are deleted; `None` when nothing is.
fn ways_left(known: &RouteKind, deleted: &RouteKind) -> Option<RouteKind> {
    let (RouteKind::Unicast(known), RouteKind::Unicast(deleted)) = (known, deleted) else {
        return None;
    };
    let same = |a: &Hop, b: &Hop| a.interface == b.interface && a.gateway == b.gateway;
    let is_left = |hop: &&Hop| !deleted.iter().any(|gone| same(hop, gone));
    let left: Vec<Hop> = known.iter().filter(is_left).copied().collect();
    (!left.is_empty()).then_some(RouteKind::Unicast(left))
}

#[cfg(test)]
mod tests;
