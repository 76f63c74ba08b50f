//! Watches the kernel's links, addresses, routes and neighbours by rtnetlink and tells the driver what the TAP twins lead to.
//!
//! Routes and neighbours are followed message by message. Where the kernel tells less than it does (it withdraws routes
//! silently when a link goes down or an address is removed) and where messages were lost (ENOBUFS), everything is read anew.
//! Routes of nexthop objects come with the paths written out, as the kernel does unless `net.ipv4.nexthop_compat_mode` is 0.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use rtnetlink::packet_core::{NLM_F_APPEND, NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::RouteNetlinkMessage as Message;
use rtnetlink::packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressScope,
};
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteNextHopFlags, RouteType, RouteVia,
};
use rtnetlink::{Handle, MulticastGroup, RouteMessageBuilder};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::kernel::{Delta, Hop, Kernel, KernelRoute, RouteKey, RouteKind, Table, Target};
use crate::request::{AskError, DriverHandle, Request};
use crate::settings::PortSettings;
use crate::twin::{Resolver, TwinSetup};

/// Changes are gathered for this long before the driver is told: a routing daemon's burst becomes one publication.
const GATHER: Duration = Duration::from_millis(20);
/// When to try again what the kernel refused, or to connect again.
const RETRY: Duration = Duration::from_secs(1);
/// Kernel's number of the local table.
const RT_TABLE_LOCAL: u8 = 255;

/// A neighbour that a worker wants to have resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resolve {
    /// Port index.
    pub port: u8,
    /// Its address.
    pub address: IpAddr,
}

/// Why the watcher had to start over.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// No netlink socket.
    #[error("netlink socket: {0}")]
    Socket(#[from] std::io::Error),
    /// The kernel refused to tell.
    #[error("reading the kernel's tables: {0}")]
    Dump(#[from] rtnetlink::Error),
    /// The socket is closed.
    #[error("the netlink socket was closed")]
    Closed,
}

/// Watches until the task is dropped; the driver is told when the picture is lost.
pub async fn watch(
    ports: Arc<[PortSettings]>,
    driver: DriverHandle,
    mut wanted: mpsc::Receiver<Resolve>,
) {
    loop {
        let mut watcher = match Watcher::connect(&ports, driver.clone()) {
            Ok(watcher) => watcher,
            Err(error) => {
                tracing::error!(%error, "kernel routes are not mirrored");
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        let error = watcher.run(&mut wanted).await;
        tracing::error!(%error, "kernel routes are not mirrored for a moment");
        // A driver that is gone or busy learns it from the next picture.
        let _ = driver.tell(Request::Kernel(None));
        tokio::time::sleep(RETRY).await;
    }
}

type Messages = futures_util::stream::BoxStream<'static, NetlinkMessage<Message>>;

struct Watcher<'a> {
    ports: &'a [PortSettings],
    driver: DriverHandle,
    handle: Handle,
    messages: Messages,
    kernel: Kernel,
    setup: TwinSetup,
    resolver: Resolver,
    /// How long the last whole reading took.
    read_took: Duration,
    connections: [tokio::task::JoinHandle<()>; 2],
}

impl Drop for Watcher<'_> {
    fn drop(&mut self) {
        for connection in &self.connections {
            connection.abort();
        }
    }
}

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    None,
    Known,
    /// Everything is to be read anew.
    Unknown,
}

impl<'a> Watcher<'a> {
    fn connect(ports: &'a [PortSettings], driver: DriverHandle) -> Result<Self, WatchError> {
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv6Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv6Route,
            MulticastGroup::Neigh,
        ];
        // Two sockets: on one alone, what the kernel tells of a change made by our own request would be taken for the
        // answer to the request.
        let (listening, _, messages) = rtnetlink::new_multicast_connection(&groups)?;
        let (asking, handle, _) = rtnetlink::new_connection()?;
        Ok(Self {
            ports,
            driver,
            messages: messages.map(|(message, _)| message).boxed(),
            kernel: Kernel::default(),
            setup: TwinSetup::new(handle.clone()),
            resolver: Resolver::new(handle.clone()),
            read_took: Duration::ZERO,
            handle,
            connections: [tokio::spawn(listening), tokio::spawn(asking)],
        })
    }

    async fn run(&mut self, wanted: &mut mpsc::Receiver<Resolve>) -> WatchError {
        match self.run_until_error(wanted).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn run_until_error(
        &mut self,
        wanted: &mut mpsc::Receiver<Resolve>,
    ) -> Result<std::convert::Infallible, WatchError> {
        self.read_all().await?;
        let mut pending = Change::None;
        let mut due = Instant::now();
        loop {
            tokio::select! {
                message = self.messages.next() => {
                    let change = self.receive(message.ok_or(WatchError::Closed)?).await;
                    if change > pending {
                        if pending == Change::None {
                            due = Instant::now() + GATHER;
                        }
                        // Reading a large table anew must not be all that is done while somebody fills it.
                        if change == Change::Unknown {
                            due = Instant::now() + GATHER.max(self.read_took);
                        }
                        pending = change;
                    }
                }
                Some(resolve) = wanted.recv() => self.resolve(resolve).await,
                () = tokio::time::sleep_until(due), if pending != Change::None => {
                    if pending == Change::Unknown {
                        self.read_all().await?;
                    } else {
                        let changes = self.kernel.changes();
                        self.send(changes).await;
                        self.keep_resolved().await;
                    }
                    pending = Change::None;
                }
                () = tokio::time::sleep(RETRY), if self.setup.is_unfinished() => {
                    self.set_up_twins().await;
                }
            }
        }
    }

    /// Reads the kernel's tables anew, tells the driver and sets up twins that have appeared.
    async fn read_all(&mut self) -> Result<(), WatchError> {
        let begun = Instant::now();
        let mut twins = BTreeMap::new();
        let mut links = self.handle.link().get().execute();
        while let Some(link) = links.try_next().await? {
            if let Some(port) = self.port_of_link(&link) {
                twins.insert(link.header.index, port);
            }
        }
        self.kernel = Kernel::new(twins, self.ports.len());
        let mut addresses = self.handle.address().get().execute();
        while let Some(address) = addresses.try_next().await? {
            if let Some((interface, address)) = read_address(&address) {
                self.kernel.add_address(interface, address);
            }
        }
        let queries = [
            RouteMessageBuilder::<Ipv4Addr>::new().build(),
            RouteMessageBuilder::<Ipv6Addr>::new().build(),
        ];
        let mut count = 0u64;
        for query in queries {
            let mut routes = self.handle.route().get(query).execute();
            while let Some(route) = routes.try_next().await? {
                count += 1;
                if let Some(route) = read_route(&route) {
                    self.kernel.append_route(route);
                }
            }
        }
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let query = self.handle.neighbours().get();
            let mut neighbours = query.set_address_family(family).execute();
            while let Some(neighbour) = neighbours.try_next().await? {
                if let Some((interface, address, mac)) = read_neighbour(&neighbour) {
                    self.kernel.set_neighbour(interface, address, mac);
                }
            }
        }
        let read_ms = begun.elapsed().as_millis();
        for piece in self.kernel.picture() {
            self.send(piece).await;
        }
        self.read_took = begun.elapsed();
        let all_ms = self.read_took.as_millis();
        tracing::debug!(routes = count, %read_ms, %all_ms, "kernel tables read");
        self.set_up_twins().await;
        self.keep_resolved().await;
        Ok(())
    }

    fn port_of_link(&self, link: &LinkMessage) -> Option<u8> {
        let name = link
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some(name.as_str()),
                _ => None,
            })?;
        let mut ports = (0u8..).zip(self.ports);
        let (index, _) = ports.find(|(_, port)| port.access.is_none() && port.name == name)?;
        Some(index)
    }

    async fn set_up_twins(&mut self) {
        let twins: Vec<_> = self.kernel.twins().collect();
        for (interface, port) in twins {
            let settings = &self.ports[usize::from(port)];
            self.setup.apply(interface, settings, &self.kernel).await;
        }
        let present: BTreeSet<u32> = self.kernel.twins().map(|(on, _)| on).collect();
        self.setup.retain(&present);
        self.resolver.retain(&present);
    }

    /// Takes one message of the kernel.
    async fn receive(&mut self, message: NetlinkMessage<Message>) -> Change {
        let known = |changed| match changed {
            true => Change::Known,
            false => Change::None,
        };
        match message.payload {
            NetlinkPayload::InnerMessage(Message::NewRoute(route)) => {
                let is_appended = message.header.flags & NLM_F_APPEND != 0;
                known(read_route(&route).is_some_and(|route| match is_appended {
                    true => self.kernel.append_route(route),
                    false => self.kernel.set_route(route),
                }))
            }
            NetlinkPayload::InnerMessage(Message::DelRoute(route)) => match read_route(&route) {
                Some(KernelRoute::Ipv4(..)) if self.kernel.has_repeated_keys() => Change::Unknown,
                Some(route) => known(self.kernel.remove_route(&route)),
                None => Change::None,
            },
            NetlinkPayload::InnerMessage(Message::NewNeighbour(neighbour)) => {
                let Some((interface, address, mac)) = read_neighbour(&neighbour) else {
                    return Change::None;
                };
                if neighbour.header.state == NeighbourState::Stale {
                    self.probe(interface, address).await;
                }
                known(self.kernel.set_neighbour(interface, address, mac))
            }
            NetlinkPayload::InnerMessage(Message::DelNeighbour(neighbour)) => {
                let Some((interface, address, _)) = read_neighbour(&neighbour) else {
                    return Change::None;
                };
                self.resolver.forget(interface, address);
                known(self.kernel.set_neighbour(interface, address, None))
            }
            NetlinkPayload::InnerMessage(Message::NewLink(link)) => {
                let is_twin = self.port_of_link(&link).is_some()
                    || self.kernel.port_of(link.header.index).is_some();
                if is_twin {
                    Change::Unknown
                } else {
                    Change::None
                }
            }
            NetlinkPayload::InnerMessage(Message::DelLink(link)) => {
                match self.kernel.port_of(link.header.index) {
                    Some(_) => Change::Unknown,
                    None => Change::None,
                }
            }
            // The kernel tells of the routes that come with it.
            NetlinkPayload::InnerMessage(Message::NewAddress(address)) => {
                known(read_address(&address).is_some_and(|(interface, address)| {
                    self.kernel.add_address(interface, address)
                }))
            }
            // Not of all those that go.
            NetlinkPayload::InnerMessage(Message::DelAddress(address)) => {
                match self.kernel.port_of(address.header.index) {
                    Some(_) => Change::Unknown,
                    None => Change::None,
                }
            }
            NetlinkPayload::Overrun(_) => {
                tracing::warn!("netlink messages were lost, reading the kernel's tables anew");
                Change::Unknown
            }
            _ => Change::None,
        }
    }

    /// A neighbour the kernel has not confirmed for a while. The kernel sees none of the traffic to it, so it is asked to
    /// look: otherwise it would drop the neighbour as unused, or keep a MAC address that is not true any more.
    async fn probe(&mut self, interface: u32, address: IpAddr) {
        let port = self.kernel.port_of(interface);
        if port.is_some_and(|port| self.kernel.is_wanted(port, address)) {
            self.resolver.resolve(interface, address).await;
        }
    }

    /// A worker waits for a neighbour. Only addresses that are on link, or gateways, are passed on to the kernel.
    async fn resolve(&mut self, wanted: Resolve) {
        let Resolve { port, address } = wanted;
        let Some(interface) = self.kernel.twin_of(port) else {
            return;
        };
        if self.kernel.is_wanted(port, address) {
            self.resolver.resolve(interface, address).await;
        }
    }

    /// Has the kernel keep every gateway resolved.
    async fn keep_resolved(&mut self) {
        let gateways = self.kernel.gateways();
        let gateways: BTreeSet<_> = gateways
            .filter_map(|target| match target {
                Target::Via { port, address } => Some((self.kernel.twin_of(port)?, address)),
                _ => None,
            })
            .collect();
        self.resolver.keep_resolved(&gateways).await;
    }

    /// Tells the driver.
    async fn send(&mut self, delta: Delta) {
        if delta
            == (Delta {
                ends: true,
                ..Delta::default()
            })
        {
            return;
        }
        tracing::debug!(
            routes = delta.ipv4.len(),
            routes6 = delta.ipv6.len(),
            "kernel tables changed"
        );
        let delta = Arc::new(delta);
        // The inbox is full only while the driver is overloaded; this must not get lost.
        while let Err(AskError::Busy) = self.driver.tell(Request::Kernel(Some(Arc::clone(&delta))))
        {
            tokio::time::sleep(GATHER).await;
        }
    }
}

/// The parts of a route that matter; `None` for other tables and families, and for link-local and multicast destinations,
/// which are no business of a forwarding table.
fn read_route(route: &RouteMessage) -> Option<KernelRoute> {
    let header = &route.header;
    if header.tos != 0 || header.source_prefix_length != 0 {
        return None;
    }
    let table = match header.table {
        RouteHeader::RT_TABLE_MAIN => Table::Main,
        RT_TABLE_LOCAL => Table::Local,
        _ => return None,
    };
    let mut destination = None;
    let mut priority = 0;
    let mut interface = None;
    let mut gateway = None;
    let mut hops = Vec::new();
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Destination(address) => destination = ip(address),
            RouteAttribute::Priority(value) => priority = *value,
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::MultiPath(ways) => {
                let alive = ways
                    .iter()
                    .filter(|w| !w.flags.contains(RouteNextHopFlags::Dead));
                hops.extend(alive.map(|way| Hop {
                    interface: way.interface_index,
                    gateway: way.attributes.iter().find_map(gateway_of),
                    weight: u16::from(way.hops) + 1,
                }));
            }
            other => gateway = gateway_of(other).or(gateway),
        }
    }
    hops.extend(interface.map(|interface| Hop {
        interface,
        gateway,
        weight: 1,
    }));
    let kind = match header.kind {
        RouteType::Unicast => RouteKind::Unicast(hops),
        RouteType::Local | RouteType::Anycast => RouteKind::Local(interface?),
        RouteType::Broadcast => RouteKind::Broadcast(interface?),
        RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit => RouteKind::Refuse,
        _ => return None,
    };
    let length = header.destination_prefix_length;
    match header.address_family {
        AddressFamily::Inet => {
            let IpAddr::V4(to) = destination.unwrap_or(Ipv4Addr::UNSPECIFIED.into()) else {
                return None;
            };
            let key = RouteKey {
                prefix: (to, length),
                table,
                priority,
            };
            Some(KernelRoute::Ipv4(key, kind))
        }
        AddressFamily::Inet6 => {
            let IpAddr::V6(to) = destination.unwrap_or(Ipv6Addr::UNSPECIFIED.into()) else {
                return None;
            };
            if to.is_unicast_link_local() || to.is_multicast() {
                return None;
            }
            let key = RouteKey {
                prefix: (to, length),
                table,
                priority,
            };
            Some(KernelRoute::Ipv6(key, kind))
        }
        _ => None,
    }
}

const fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}

fn gateway_of(attribute: &RouteAttribute) -> Option<IpAddr> {
    match attribute {
        RouteAttribute::Gateway(address) => ip(address),
        // An IPv4 route over an IPv6 gateway (RFC 8950).
        RouteAttribute::Via(RouteVia::Inet6(address)) => Some(IpAddr::V6(*address)),
        RouteAttribute::Via(RouteVia::Inet(address)) => Some(IpAddr::V4(*address)),
        _ => None,
    }
}

/// Interface, address and, where the kernel would send to it, MAC address of a neighbour.
fn read_neighbour(neighbour: &NeighbourMessage) -> Option<(u32, IpAddr, Option<[u8; 6]>)> {
    let mut address = None;
    let mut mac = None;
    for attribute in &neighbour.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => {
                address = Some(IpAddr::V4(*ip));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => {
                address = Some(IpAddr::V6(*ip));
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = <[u8; 6]>::try_from(bytes.as_slice()).ok();
            }
            _ => {}
        }
    }
    let valid = matches!(
        neighbour.header.state,
        NeighbourState::Reachable
            | NeighbourState::Stale
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
    );
    Some((neighbour.header.ifindex, address?, mac.filter(|_| valid)))
}

/// Interface and address of an address an ICMP error may come from: a primary IPv4 or a lasting global IPv6 one.
fn read_address(message: &AddressMessage) -> Option<(u32, IpAddr)> {
    let header = &message.header;
    if header.scope != AddressScope::Universe {
        return None;
    }
    let (mut address, mut local, mut flags) = (None, None, AddressFlags::empty());
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Address(ip) => address = Some(*ip),
            // On a point-to-point address the other one is the peer's.
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Flags(value) => flags = *value,
            _ => {}
        }
    }
    let address = local.or(address)?;
    // For IPv6 the bit of a secondary address is that of a temporary one.
    let unfit = AddressFlags::Secondary | AddressFlags::Dadfailed | AddressFlags::Deprecated;
    (!flags.intersects(unfit)).then_some((header.index, address))
}
