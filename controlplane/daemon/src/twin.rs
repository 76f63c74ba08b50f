//! What control does to the kernel: the addresses and routes of the configuration on the TAP twins, and requests to resolve
//! neighbours. Everything else on the twins is the operator's and the routing daemon's business.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::IpNet;
use rtnetlink::packet_route::neighbour::{
    NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourState,
};
use rtnetlink::packet_route::route::RouteMessage;
use rtnetlink::{Error, Handle, LinkUnspec, RouteMessageBuilder};
use tokio::time::Instant;

use crate::kernel::Kernel;
use crate::settings::PortSettings;

/// EEXIST: what was to be made is there.
const EEXIST: i32 = 17;
/// Time between two requests for the same neighbour.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(1);
/// Neighbours whose last request is remembered; beyond that, requests are left out until the oldest are past.
const RESOLVE_MAX: usize = 4_096;

fn errno(error: &Error) -> Option<i32> {
    match error {
        Error::NetlinkError(message) => message.code.map(|code| code.get().abs()),
        _ => None,
    }
}

/// Puts the configuration's addresses and routes on twins, once for each interface that appears.
pub(crate) struct TwinSetup {
    handle: Handle,
    done: BTreeSet<u32>,
    /// Interfaces that are not finished, with the error that was told.
    failed: BTreeMap<u32, String>,
}

impl TwinSetup {
    pub(crate) fn new(handle: Handle) -> Self {
        Self {
            handle,
            done: BTreeSet::new(),
            failed: BTreeMap::new(),
        }
    }

    /// Whether something is to be tried again.
    pub(crate) fn is_unfinished(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Forgets interfaces that are gone.
    pub(crate) fn retain(&mut self, present: &BTreeSet<u32>) {
        self.done.retain(|on| present.contains(on));
        self.failed.retain(|on, _| present.contains(on));
    }

    /// Sets an interface up, unless that is done.
    pub(crate) async fn apply(&mut self, interface: u32, port: &PortSettings, kernel: &Kernel) {
        if self.done.contains(&interface) {
            return;
        }
        match self.try_apply(interface, port, kernel).await {
            Ok(()) => {
                tracing::info!(twin = port.name, "twin is up with its addresses and routes");
                self.failed.remove(&interface);
                self.done.insert(interface);
            }
            Err(error) => {
                let told = self.failed.insert(interface, error.clone());
                if told.as_ref() != Some(&error) {
                    tracing::warn!(
                        twin = port.name,
                        error,
                        "twin is not set up, will try again"
                    );
                }
            }
        }
    }

    async fn try_apply(
        &self,
        interface: u32,
        port: &PortSettings,
        kernel: &Kernel,
    ) -> Result<(), String> {
        let up = LinkUnspec::new_with_index(interface).up().build();
        let set = self.handle.link().set(up).execute().await;
        set.map_err(|error| format!("set up: {error}"))?;
        for address in &port.addresses {
            let add = self
                .handle
                .address()
                .add(interface, address.addr(), address.prefix_len());
            match add.execute().await {
                Err(error) if errno(&error) != Some(EEXIST) => {
                    return Err(format!("address {address}: {error}"));
                }
                _ => {}
            }
        }
        for (to, via) in &port.routes {
            if kernel.has_route(to.network(), to.prefix_len(), interface, *via) {
                continue;
            }
            // Checked when the configuration was read: an IPv6 destination has an IPv6 next hop.
            let Some(route) = route(*to, *via, interface) else {
                continue;
            };
            match self.handle.route().add(route).execute().await {
                Err(error) if errno(&error) != Some(EEXIST) => {
                    return Err(format!("route {to} via {via}: {error}"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The message that adds a route; `None` for an IPv6 destination with an IPv4 next hop.
fn route(to: IpNet, via: IpAddr, interface: u32) -> Option<RouteMessage> {
    let length = to.prefix_len();
    let message = match (to.network(), via) {
        (IpAddr::V4(to), IpAddr::V4(via)) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(to, length)
            .gateway(via)
            .output_interface(interface)
            .build(),
        (IpAddr::V4(to), IpAddr::V6(via)) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(to, length)
            .via(via)
            .output_interface(interface)
            .build(),
        (IpAddr::V6(to), IpAddr::V6(via)) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(to, length)
            .gateway(via)
            .output_interface(interface)
            .build(),
        (IpAddr::V6(_), IpAddr::V4(_)) => return None,
    };
    Some(message)
}

/// Has the kernel resolve neighbours.
pub(crate) struct Resolver {
    handle: Handle,
    /// Gateways the kernel was told to keep resolved, by interface and address.
    managed: BTreeSet<(u32, IpAddr)>,
    asked: BTreeMap<(u32, IpAddr), Instant>,
}

impl Resolver {
    pub(crate) fn new(handle: Handle) -> Self {
        Self {
            handle,
            managed: BTreeSet::new(),
            asked: BTreeMap::new(),
        }
    }

    /// Forgets interfaces that are gone.
    pub(crate) fn retain(&mut self, present: &BTreeSet<u32>) {
        self.managed.retain(|(on, _)| present.contains(on));
        self.asked.retain(|(on, _), _| present.contains(on));
    }

    /// The kernel has dropped an entry, so it does not look after it any more.
    pub(crate) fn forget(&mut self, interface: u32, address: IpAddr) {
        self.managed.remove(&(interface, address));
    }

    /// Has the kernel keep these gateways resolved all the time (NTF_EXT_MANAGED). A kernel before 5.16 does not know that
    /// and resolves them when a packet asks for it.
    pub(crate) async fn keep_resolved(&mut self, gateways: &BTreeSet<(u32, IpAddr)>) {
        self.managed.retain(|gateway| gateways.contains(gateway));
        for (interface, address) in gateways {
            if !self.managed.insert((*interface, *address)) {
                continue;
            }
            let managed = NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed);
            if let Err(error) = self.request(*interface, *address, Some(managed)).await {
                tracing::debug!(%address, %error, "kernel does not manage the gateway's entry");
                self.resolve(*interface, *address).await;
            }
        }
    }

    /// Has the kernel resolve a neighbour now, as if it had a packet for it; at most once a second each.
    pub(crate) async fn resolve(&mut self, interface: u32, address: IpAddr) {
        let now = Instant::now();
        let recent = |asked: &Instant| now.duration_since(*asked) < RESOLVE_INTERVAL;
        let key = (interface, address);
        if self.asked.get(&key).is_some_and(recent) {
            return;
        }
        if self.asked.len() >= RESOLVE_MAX {
            self.asked.retain(|_, asked| recent(asked));
            if self.asked.len() >= RESOLVE_MAX {
                return;
            }
        }
        self.asked.insert(key, now);
        if let Err(error) = self.request(interface, address, None).await {
            tracing::debug!(%address, %error, "kernel does not resolve the neighbour");
        }
    }

    async fn request(
        &self,
        interface: u32,
        address: IpAddr,
        attribute: Option<NeighbourAttribute>,
    ) -> Result<(), Error> {
        let neighbours = self.handle.neighbours();
        let mut request = neighbours
            .add(interface, address)
            .state(NeighbourState::None)
            .replace();
        match attribute {
            Some(attribute) => request.message_mut().attributes.push(attribute),
            None => request = request.flags(NeighbourFlags::Use),
        }
        request.execute().await
    }
}
