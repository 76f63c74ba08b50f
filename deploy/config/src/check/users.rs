//! `pppoe` and `auth`.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;

use super::{Checker, unique};
use crate::access::{Backend, User};
use crate::error::{ConfigError, Problem};

impl Checker<'_> {
    pub(super) fn pppoe(&self) -> Result<(), ConfigError> {
        let lockout = &self.config.pppoe.lockout;
        if lockout.first_s > lockout.longest_s {
            let problem = Problem::Order {
                first: lockout.first_s.into(),
                other: "longest_s",
                last: lockout.longest_s.into(),
            };
            return self.fail("pppoe.lockout.first_s", problem);
        }
        Ok(())
    }

    pub(super) fn users(&self) -> Result<(), ConfigError> {
        let auth = &self.config.auth;
        unique(
            "auth.users",
            "name",
            auth.users.iter().map(|user| user.name.as_str()),
            self.document,
        )?;
        let protocols = auth.protocols.iter().map(|protocol| protocol.as_str());
        unique("auth.protocols", "", protocols, self.document)?;
        let backends = auth.backends.iter().map(|backend| backend.as_str());
        unique("auth.backends", "", backends, self.document)?;
        if self.config.radius.is_none()
            && let Some(at) = (auth.backends.iter()).position(|it| *it == Backend::Radius)
        {
            let key = format!("auth.backends[{at}]");
            return self.fail(&key, Problem::Needs { other: "radius" });
        }
        self.user_addresses("auth.users", &auth.users, false)
    }

    /// Pools and addresses of users; `beside` when `auth.users` may have the addresses already.
    pub(super) fn user_addresses(
        &self,
        list: &str,
        users: &[User],
        beside: bool,
    ) -> Result<(), ConfigError> {
        let inline = self.config.auth.users.iter().filter(|_| beside);
        let mut taken: HashSet<_> = inline.filter_map(|user| user.framed_ip).collect();
        let mut networks = Networks::default();
        if beside {
            let inline = self.config.auth.users.iter();
            networks.extend(inline.flat_map(|user| &user.framed_routes).map(by_first));
        }
        for (index, user) in users.iter().enumerate() {
            let key = |name: &str| format!("{list}[{index}].{name}");
            if let Some(name) = &user.pool
                && self.config.pool(name).is_none()
            {
                let known = self.config.pools.iter().map(|pool| pool.name.as_str());
                return self.unknown(&key("pool"), "address pool", name, known);
            }
            for (at, network) in user.framed_routes.iter().enumerate() {
                let key = key(&format!("framed_routes[{at}]"));
                self.user_network(&key, *network, &mut networks)?;
            }
            let Some(address) = user.framed_ip else {
                continue;
            };
            let mut pools = self.config.pools.iter();
            let is_handed_out = pools.any(|pool| {
                user.pool.as_ref().is_none_or(|name| *name == pool.name) && pool.is_usable(address)
            });
            if !is_handed_out {
                let pool = (user.pool.as_ref())
                    .map_or_else(|| "any pool".to_owned(), |name| format!("pool {name}"));
                return self.fail(&key("framed_ip"), Problem::NotInPool { address, pool });
            }
            if !taken.insert(address) {
                let problem = Problem::AddressOfTwo { address };
                return self.fail(&key("framed_ip"), problem);
            }
        }
        Ok(())
    }

    /// A network behind a user: whole, of hosts, and nobody else's.
    fn user_network(
        &self,
        key: &str,
        network: Ipv4Net,
        networks: &mut Networks,
    ) -> Result<(), ConfigError> {
        self.prefix_start(key, network)?;
        if network.prefix_len() < 8 {
            let range = network.into();
            return self.fail(key, Problem::NetworkTooLarge { range });
        }
        self.unicast(key, network.network().into())?;
        let of_user = |(_, other): (&Ipv4Addr, &Ipv4Net)| (*other, "another user".to_owned());
        // Prefixes either nest or are apart, so what overlaps begins in this one, or is the last to begin before it.
        let nearest = networks.range(..=network.broadcast()).next_back();
        let other = self.network_taken(network).or_else(|| nearest.map(of_user));
        if let Some((other_range, other)) = other
            && (other_range.contains(&network) || network.contains(&other_range))
        {
            let problem = Problem::NetworkTaken {
                range: network.into(),
                other_range: other_range.into(),
                other,
            };
            return self.fail(key, problem);
        }
        let (first, network) = by_first(&network);
        networks.insert(first, network);
        Ok(())
    }

    /// What of pools, gateways and ports overlaps a network, and its key.
    fn network_taken(&self, network: Ipv4Net) -> Option<(Ipv4Net, String)> {
        let pools = self.config.pools.iter().enumerate();
        let pools = pools.flat_map(|(index, pool)| {
            let key = format!("pools[{index}]");
            let gateway = (Ipv4Net::from(pool.gateway), format!("{key}.gateway"));
            let ranges = pool.ranges.iter().enumerate();
            let ranges = ranges.map(move |(at, it)| (*it, format!("{key}.ranges[{at}]")));
            ranges.chain([gateway])
        });
        let nat = self.config.nat.pools.iter().enumerate();
        let nat = nat.flat_map(|(index, pool)| {
            let ranges = pool.addresses.iter().enumerate();
            ranges.map(move |(at, it)| (*it, format!("nat.pools[{index}].addresses[{at}]")))
        });
        let ports = self.config.dataplane.ports.iter().enumerate();
        let ports = ports.flat_map(|(index, port)| {
            let own = port.addresses.iter().enumerate();
            own.filter_map(move |(at, it)| match it.addr() {
                IpAddr::V4(own) => {
                    let key = format!("dataplane.ports[{index}].addresses[{at}]");
                    Some((Ipv4Net::from(own), key))
                }
                IpAddr::V6(_) => None,
            })
        });
        let mut all = pools.chain(nat).chain(ports);
        all.find(|(other, _)| other.contains(&network) || network.contains(other))
    }
}

/// Networks of users by their first address.
type Networks = BTreeMap<Ipv4Addr, Ipv4Net>;

fn by_first(network: &Ipv4Net) -> (Ipv4Addr, Ipv4Net) {
    (network.network(), *network)
}
