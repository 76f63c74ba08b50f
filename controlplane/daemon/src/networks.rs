//! Networks behind IPv4 subscribers (Framed-Route): which session has which, and which are nobody's to have.
//!
//! What a session has is in [`Said`](crate::said::Said), and so in its recovery record. It is the session's from its grant until its slot
//! is free, and in the table of workers while IPv4 is open.

use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;

use bng_aaa::FramedRoute;
use bng_shm::{MAX_NETWORKS, NETWORK_LENGTH_MIN, Network, NetworkOwner, SessionState, SlotIndex};

use crate::driver::Driver;
use crate::publish::{Clock, Open};
use crate::said::Said;
use crate::sessions::Live;
use crate::settings::Settings;
use crate::stream::{Notice, RouteRefused};
use crate::tally::Count;

/// Why a network is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeftOut {
    /// It overlaps one of another session, or a wider one of its own.
    Conflict,
    /// It overlaps a pool, a gateway or a port's address, is no network of hosts, or is shorter than /8.
    Reserved,
    /// There are as many as the table of workers holds.
    Full,
}

impl LeftOut {
    const fn count(self) -> Count {
        match self {
            Self::Conflict => Count::FramedRouteConflict,
            Self::Reserved => Count::FramedRouteReserved,
            Self::Full => Count::FramedRoutesFull,
        }
    }
}

/// The networks of all sessions; they do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Networks {
    /// By first address: the last one, and the session's slot.
    held: BTreeMap<u32, (u32, SlotIndex)>,
}

/// First and last address.
fn ends(route: &FramedRoute) -> (u32, u32) {
    let first = route.network.to_bits();
    let more = u32::MAX.checked_shr(route.length.into()).unwrap_or(0);
    (first, first | more)
}

fn network(route: &FramedRoute) -> Network {
    Network {
        address: route.network,
        length: route.length,
    }
}

/// Whether an address lies in a network.
#[must_use]
pub(crate) fn contains(route: &FramedRoute, address: Ipv4Addr) -> bool {
    let (first, last) = ends(route);
    (first..=last).contains(&address.to_bits())
}

impl Networks {
    /// The session that has a network with addresses of this one.
    #[must_use]
    pub(crate) fn holder(&self, route: &FramedRoute) -> Option<SlotIndex> {
        let (first, last) = ends(route);
        let (_, (end, slot)) = self.held.range(..=last).next_back()?;
        (*end >= first).then_some(*slot)
    }

    /// Takes a network for a session.
    ///
    /// # Errors
    /// [`LeftOut::Conflict`] and [`LeftOut::Full`]; nothing is taken then.
    pub(crate) fn take(&mut self, route: &FramedRoute, slot: SlotIndex) -> Result<(), LeftOut> {
        if self.holder(route).is_some() {
            return Err(LeftOut::Conflict);
        }
        if self.held.len() >= MAX_NETWORKS {
            return Err(LeftOut::Full);
        }
        let (first, last) = ends(route);
        self.held.insert(first, (last, slot));
        Ok(())
    }

    /// Gives a network of a session back.
    pub(crate) fn give_back(&mut self, route: &FramedRoute, slot: SlotIndex) {
        let (first, _) = ends(route);
        if self.held.get(&first).is_some_and(|(_, it)| *it == slot) {
            self.held.remove(&first);
        }
    }

    /// How many there are.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.held.len()
    }
}

/// Whether addresses of a network are the gateway's own, or in a pool, or no hosts'. `ports` are the kernel's addresses.
fn is_reserved(
    settings: &Settings,
    mut ports: impl Iterator<Item = Ipv4Addr>,
    route: &FramedRoute,
) -> bool {
    let (first, last) = ends(route);
    let has = |address: Ipv4Addr| contains(route, address);
    let is_host = !matches!(route.network.octets()[0], 0 | 127 | 224..);
    let mut ranges = settings.ranges.iter();
    let configured = settings.ports.iter().flat_map(|port| &port.addresses);
    let configured = configured.filter_map(|it| match it.addr() {
        std::net::IpAddr::V4(address) => Some(address),
        std::net::IpAddr::V6(_) => None,
    });
    let gateways = settings.pools.iter().map(|pool| pool.gateway);
    !is_host
        || route.length < NETWORK_LENGTH_MIN
        || !network(route).is_whole()
        || ranges.any(|range| range.first.to_bits() <= last && first <= range.last.to_bits())
        || gateways.chain(configured).any(has)
        || ports.any(has)
}

impl Driver {
    /// The session that has to end before a new one can have all of its networks: one that is over and waits for the workers.
    /// An older one of the same user is ended for the newer one, where that may be.
    pub(crate) fn networks_to_wait_for(
        &mut self,
        user: &[u8],
        routes: &[FramedRoute],
        clock: Clock,
    ) -> Option<SlotIndex> {
        for route in routes {
            let slot = self.networks.holder(route);
            let Some(older) = slot.and_then(|slot| self.sessions.at(slot)) else {
                continue;
            };
            if older.end.is_some() {
                return slot;
            }
            let (session, is_own) = (older.session, *older.user == *user);
            if is_own
                && self.may_replace()
                && let Some(slot) = self.replace(session, clock)
            {
                return Some(slot);
            }
        }
        None
    }

    /// Takes networks for a session, the widest first, and says which those are. The others are counted and told of: the session
    /// comes up without them.
    pub(crate) fn take_networks(
        &mut self,
        slot: SlotIndex,
        routes: &[FramedRoute],
        clock: Clock,
    ) -> Vec<FramedRoute> {
        let mut wanted = routes.to_vec();
        wanted.sort_by_key(|route| (route.length, route.network));
        wanted.dedup_by_key(|route| (route.length, route.network));
        let mut taken = Vec::new();
        for route in wanted {
            let ports = self.next_hops.port_ipv4();
            let result = match is_reserved(&self.settings, ports, &route) {
                true => Err(LeftOut::Reserved),
                false => self.networks.take(&route, slot),
            };
            match result {
                Ok(()) => taken.push(route),
                Err(why) => self.leave_out(slot, &route, why, clock),
            }
        }
        taken
    }

    fn leave_out(&mut self, slot: SlotIndex, route: &FramedRoute, why: LeftOut, clock: Clock) {
        self.tally.add(why.count());
        let Some(live) = self.sessions.at(slot) else {
            return;
        };
        let cause = why.count().label();
        let user = String::from_utf8_lossy(&live.user);
        let error = format!(
            "{}/{} of {}",
            route.network,
            route.length,
            user.escape_debug()
        );
        let refused = RouteRefused::new(&self.settings, live, route, cause);
        self.warn_now_and_then(&error, cause, clock);
        self.tell(clock, Notice::FramedRouteRefused(Box::new(refused)));
    }

    /// Takes what of the networks in the record of a session of an earlier run it may still have; true when that is less.
    pub(crate) fn keep_networks(&mut self, slot: SlotIndex, clock: Clock) -> bool {
        let before = match self.sessions.at(slot) {
            Some(live) => live.held_routes().to_vec(),
            None => return false,
        };
        let kept = self.take_networks(slot, &before, clock);
        let is_less = kept.len() < before.len();
        if is_less
            && let Some(live) = self.sessions.at_mut(slot)
            && let Some(mut said) = live.said.take()
        {
            said.framed_routes = kept;
            live.said = said.boxed();
        }
        is_less
    }

    /// Gives back what networks a session has that is over.
    pub(crate) fn give_networks_back(&mut self, live: &Live) {
        for route in live.held_routes() {
            self.networks.give_back(route, live.slot());
        }
    }

    /// Has a session's networks lead to it, or to nobody.
    pub(crate) fn lead_networks(&mut self, slot: SlotIndex, is_open: bool) {
        let Some(live) = self.sessions.at(slot) else {
            return;
        };
        let owner = is_open.then(|| NetworkOwner::new(slot, live.generation));
        for route in live.held_routes() {
            if let Err(error) = self.publisher.set_network_owner(network(route), owner) {
                self.tally.add(Count::PublishFailed);
                tracing::error!(%error, "owner of a network could not be published");
            }
        }
    }

    /// Takes networks that an earlier run has led to sessions from those that do not have them any more.
    pub(crate) fn clear_networks(&mut self) {
        let found: HashMap<_, _> = self.publisher.reader().networks().collect();
        for (found, owner) in found {
            let live = self.sessions.at(owner.slot);
            let is_so = live.is_some_and(|live| {
                live.end.is_none()
                    && live.state == SessionState::Forwarding
                    && Open::of(live).ipv4
                    && owner.is(live.generation)
                    && live.held_routes().iter().any(|it| network(it) == found)
            });
            if !is_so && let Err(error) = self.publisher.set_network_owner(found, None) {
                self.publish_failed("owner of a network", &error);
            }
        }
    }
}

impl Live {
    /// The networks that are its own now.
    #[must_use]
    pub(crate) fn held_routes(&self) -> &[FramedRoute] {
        match self.given_back {
            true => &[],
            false => self.framed_routes(),
        }
    }

    /// The networks it has, or had.
    #[must_use]
    pub fn framed_routes(&self) -> &[FramedRoute] {
        self.said.as_deref().map_or(&[], |said| &said.framed_routes)
    }
}

/// As REST shows them.
#[must_use]
pub(crate) fn shown(live: &Live) -> Vec<String> {
    let routes = live.framed_routes().iter();
    routes
        .map(|route| format!("{}/{}", route.network, route.length))
        .collect()
}

/// From what REST and the history show; what is no network is left out.
#[must_use]
pub(crate) fn recalled(shown: &[String]) -> Option<Box<Said>> {
    let framed_routes = shown.iter().filter_map(|text| {
        let (network, length) = text.split_once('/')?;
        let (network, length) = (network.parse().ok()?, length.parse().ok()?);
        (length <= 32).then_some(FramedRoute {
            network,
            length,
            metric: 1,
        })
    });
    let said = Said {
        framed_routes: framed_routes.collect(),
        ..Said::default()
    };
    said.boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn route(address: u32, length: u8) -> FramedRoute {
        let network = Network::of(address, length).unwrap();
        FramedRoute {
            network: network.address,
            length,
            metric: 1,
        }
    }

    proptest! {
        #[test]
        fn no_two_sessions_ever_have_an_address_in_common(
            steps in prop::collection::vec((any::<bool>(), 0u32..40, 8u8..=32, 0u32..5), 1..60),
        ) {
            let mut networks = Networks::default();
            let mut model: Vec<(FramedRoute, SlotIndex)> = Vec::new();
            for (is_taken, at, length, slot) in steps {
                let (route, slot) = (route(at.wrapping_mul(0x0155_0413), length), SlotIndex(slot));
                let (first, last) = ends(&route);
                let overlapping = model.iter().find(|(other, _)| {
                    let (start, end) = ends(other);
                    start <= last && first <= end
                });
                if is_taken {
                    let expected = match overlapping {
                        Some(_) => Err(LeftOut::Conflict),
                        None => Ok(()),
                    };
                    prop_assert_eq!(networks.holder(&route).is_some(), overlapping.is_some());
                    prop_assert_eq!(networks.take(&route, slot), expected);
                    if expected.is_ok() {
                        model.push((route, slot));
                    }
                } else {
                    networks.give_back(&route, slot);
                    model.retain(|(other, owner)| (ends(other).0, *owner) != (first, slot));
                }
                prop_assert_eq!(networks.len(), model.len());
            }
        }
    }

    #[test]
    fn what_is_the_gateway_s_is_nobody_else_s() {
        let settings = Settings::new(&crate::settings::tests::config()).unwrap();
        let range = settings.ranges[0];
        let pool = settings.pools[0].gateway;
        let kernel = Ipv4Addr::new(192, 0, 2, 77);
        let is_reserved =
            |route: FramedRoute| is_reserved(&settings, std::iter::once(kernel), &route);
        for address in [range.first, range.last, pool, kernel] {
            assert!(is_reserved(route(address.to_bits(), 32)), "{address}");
            assert!(is_reserved(route(address.to_bits(), 9)), "{address}");
        }
        for (address, length) in [
            (0x7f00_0000, 24),
            (0xe000_0000, 24),
            (1, 32),
            (0x0a00_0000, 7),
        ] {
            assert!(is_reserved(route(address, length)), "{address:#x}/{length}");
        }
        assert!(is_reserved(FramedRoute {
            network: Ipv4Addr::new(198, 18, 0, 1),
            length: 24,
            metric: 1,
        }));
        assert!(!is_reserved(route(0xc612_0000, 24)));
        assert!(!is_reserved(route(kernel.to_bits() + 1, 32)));
    }
}
