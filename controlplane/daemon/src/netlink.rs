//! Watches the kernel's links, IPv4 routes and neighbours by rtnetlink and tells the driver what the TAP twins lead to.
//!
//! Routes and neighbours are followed message by message. Where the kernel tells less than it does (it withdraws routes
//! silently when a link goes down or an address is removed) and where messages were lost (ENOBUFS), everything is read anew.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::RouteNetlinkMessage as Message;
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteNextHopFlags, RouteType,
};
use rtnetlink::{Handle, MulticastGroup, RouteMessageBuilder};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::kernel::{Hop, Kernel, Mirror, RouteKey, RouteKind, Table, Target, longest_match};
use crate::request::{DriverHandle, Request};
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
    pub address: Ipv4Addr,
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
    sent: Mirror,
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
            MulticastGroup::Ipv4Route,
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
            handle,
            sent: Mirror::default(),
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
        self.send(true).await;
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
                        pending = change;
                    }
                }
                Some(resolve) = wanted.recv() => self.resolve(resolve).await,
                () = tokio::time::sleep_until(due), if pending != Change::None => {
                    if pending == Change::Unknown {
                        self.read_all().await?;
                    }
                    pending = Change::None;
                    self.send(false).await;
                }
                () = tokio::time::sleep(RETRY), if self.setup.is_unfinished() => {
                    self.set_up_twins().await;
                }
            }
        }
    }

    /// Reads the kernel's tables anew.
    async fn read_all(&mut self) -> Result<(), WatchError> {
        self.kernel = Kernel::default();
        let mut links = self.handle.link().get().execute();
        while let Some(link) = links.try_next().await? {
            if let Some(port) = self.port_of_link(&link) {
                self.kernel.add_twin(link.header.index, port);
            }
        }
        let query = RouteMessageBuilder::<Ipv4Addr>::new().build();
        let mut routes = self.handle.route().get(query).execute();
        while let Some(route) = routes.try_next().await? {
            if let Some((key, kind)) = read_route(&route) {
                self.kernel.set_route(key, kind);
            }
        }
        let query = self.handle.neighbours().get();
        let mut neighbours = query.set_address_family(AddressFamily::Inet).execute();
        while let Some(neighbour) = neighbours.try_next().await? {
            if let Some((interface, address, mac)) = read_neighbour(&neighbour) {
                self.kernel.set_neighbour(interface, address, mac);
            }
        }
        self.set_up_twins().await;
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
            NetlinkPayload::InnerMessage(Message::NewRoute(route)) => known(
                read_route(&route).is_some_and(|(key, kind)| self.kernel.set_route(key, kind)),
            ),
            NetlinkPayload::InnerMessage(Message::DelRoute(route)) => {
                known(read_route(&route).is_some_and(|(key, _)| self.kernel.remove_route(&key)))
            }
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
                known(self.kernel.remove_interface(link.header.index))
            }
            NetlinkPayload::InnerMessage(
                Message::NewAddress(address) | Message::DelAddress(address),
            ) => match self.kernel.port_of(address.header.index) {
                Some(_) => Change::Unknown,
                None => Change::None,
            },
            NetlinkPayload::Overrun(_) => {
                tracing::warn!("netlink messages were lost, reading the kernel's tables anew");
                Change::Unknown
            }
            _ => Change::None,
        }
    }

    /// A neighbour the kernel has not confirmed for a while. The kernel sees none of the traffic to it, so it is asked to
    /// look: otherwise it would drop the neighbour as unused, or keep a MAC address that is not true any more.
    async fn probe(&mut self, interface: u32, address: Ipv4Addr) {
        let Some(port) = self.kernel.port_of(interface) else {
            return;
        };
        if self.sent.neighbours.contains_key(&(port, address)) {
            self.resolver.resolve(interface, address).await;
        }
    }

    /// A worker waits for a neighbour. Only addresses that are on link are passed on to the kernel.
    async fn resolve(&mut self, wanted: Resolve) {
        let Resolve { port, address } = wanted;
        let Some(interface) = self.kernel.twin_of(port) else {
            return;
        };
        let gateway = Target::Via { port, address };
        let connected = Target::Connected { port };
        let on_link = longest_match(&self.sent.routes, address) == Some(connected);
        if on_link || self.sent.routes.values().any(|target| *target == gateway) {
            self.resolver.resolve(interface, address).await;
        }
    }

    /// Tells the driver the present picture and has the kernel keep every gateway resolved.
    async fn send(&mut self, first: bool) {
        let mirror = self.kernel.mirror();
        let gateways: BTreeSet<_> = (mirror.routes.iter())
            .filter_map(|(prefix, target)| match target {
                Target::Via { port, address } if *prefix != (*address, 32) => {
                    Some((self.kernel.twin_of(*port)?, *address))
                }
                _ => None,
            })
            .collect();
        self.resolver.keep_resolved(&gateways).await;
        if !first && mirror == self.sent {
            return;
        }
        tracing::debug!(
            routes = mirror.routes.len(),
            neighbours = mirror.neighbours.len(),
            "kernel tables changed"
        );
        self.sent = mirror.clone();
        let mut request = Request::Kernel(Some(Box::new(mirror)));
        // The inbox is full only while the driver is overloaded; this picture must not get lost.
        while let Err(crate::request::AskError::Busy) = self.driver.tell(request) {
            tokio::time::sleep(GATHER).await;
            request = Request::Kernel(Some(Box::new(self.sent.clone())));
        }
    }
}

/// The parts of a route that matter; `None` for other tables and families.
fn read_route(route: &RouteMessage) -> Option<(RouteKey, RouteKind)> {
    let header = &route.header;
    if header.address_family != AddressFamily::Inet || header.tos != 0 {
        return None;
    }
    let table = match header.table {
        RouteHeader::RT_TABLE_MAIN => Table::Main,
        RT_TABLE_LOCAL => Table::Local,
        _ => return None,
    };
    let mut destination = Ipv4Addr::UNSPECIFIED;
    let mut priority = 0;
    let mut interface = None;
    let mut gateway = None;
    let mut hops = Vec::new();
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(address)) => destination = *address,
            RouteAttribute::Priority(value) => priority = *value,
            RouteAttribute::Oif(index) => interface = Some(*index),
            RouteAttribute::Gateway(RouteAddress::Inet(address)) => gateway = Some(*address),
            // An IPv4 route over an IPv6 gateway (RFC 8950) is not forwarded.
            RouteAttribute::Via(_) => return None,
            RouteAttribute::MultiPath(ways) => {
                let alive = ways
                    .iter()
                    .filter(|w| !w.flags.contains(RouteNextHopFlags::Dead));
                hops.extend(alive.map(|way| Hop {
                    interface: way.interface_index,
                    gateway: way.attributes.iter().find_map(|a| match a {
                        RouteAttribute::Gateway(RouteAddress::Inet(address)) => Some(*address),
                        _ => None,
                    }),
                }));
            }
            _ => {}
        }
    }
    hops.extend(interface.map(|interface| Hop { interface, gateway }));
    let kind = match header.kind {
        RouteType::Unicast => RouteKind::Unicast(hops),
        RouteType::Local => RouteKind::Local(interface?),
        RouteType::Broadcast => RouteKind::Broadcast(interface?),
        RouteType::BlackHole | RouteType::Unreachable | RouteType::Prohibit => RouteKind::Refuse,
        _ => return None,
    };
    let key = RouteKey {
        prefix: (destination, header.destination_prefix_length),
        table,
        priority,
    };
    Some((key, kind))
}

/// Interface, address and, where the kernel would send to it, MAC address of a neighbour.
fn read_neighbour(neighbour: &NeighbourMessage) -> Option<(u32, Ipv4Addr, Option<[u8; 6]>)> {
    let mut address = None;
    let mut mac = None;
    for attribute in &neighbour.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => address = Some(*ip),
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
