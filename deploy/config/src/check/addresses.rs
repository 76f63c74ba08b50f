//! Every address belongs to one thing only: a subscriber pool, a NAT pool or a core port.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};

use super::{Checker, unique};
use crate::address_plan::{PoolIpv6, prefixes_in, size};
use crate::error::{ConfigError, Problem};

/// Subscriber addresses one pool may have.
const POOL_LIMIT: u64 = 1 << 20;
/// Subscriber addresses all pools may have together.
const POOLS_LIMIT: u64 = 1 << 24;
/// Ranges all pools of both kinds may have together.
const RANGE_LIMIT: usize = 256;
/// IPv6 prefixes all pools may have together.
const PREFIX_LIMIT: u64 = 1 << 24;
/// IPv6 ranges all pools may have together.
const RANGE6_LIMIT: usize = 64;
/// Public addresses all NAT pools may have together.
const NAT_LIMIT: u64 = 65_536;

/// A range and the key that claims it.
struct Claim {
    range: IpNet,
    key: String,
}

impl Checker<'_> {
    pub(super) fn addresses(&self) -> Result<(), ConfigError> {
        let pools = &self.config.pools;
        let nat_pools = &self.config.nat.pools;
        unique(
            "pools",
            "name",
            pools.iter().map(|pool| pool.name.as_str()),
            self.document,
        )?;
        unique(
            "nat.pools",
            "name",
            nat_pools.iter().map(|pool| pool.name.as_str()),
            self.document,
        )?;
        let mut claims = Vec::new();
        let mut left = POOLS_LIMIT;
        for (index, pool) in pools.iter().enumerate() {
            let limit = left.min(POOL_LIMIT);
            left -= self.claim(
                &format!("pools[{index}].ranges"),
                &pool.ranges,
                limit,
                &mut claims,
            )?;
        }
        let mut left = NAT_LIMIT;
        for (index, pool) in nat_pools.iter().enumerate() {
            let key = format!("nat.pools[{index}]");
            left -= self.claim(
                &format!("{key}.addresses"),
                &pool.addresses,
                left,
                &mut claims,
            )?;
            if !pool.block_size.is_power_of_two() {
                return self.fail(
                    &format!("{key}.block_size"),
                    Problem::NotPowerOfTwo(pool.block_size),
                );
            }
        }
        if claims.len() > RANGE_LIMIT {
            let problem = Problem::TooMany {
                what: "ranges in all pools and NAT pools",
                count: claims.len(),
                limit: RANGE_LIMIT,
            };
            return self.fail("pools", problem);
        }
        self.prefixes(&mut claims)?;
        self.overlaps(&mut claims)?;
        self.pool_details()?;
        self.core_ports(&claims)
    }

    /// Checks ranges one by one, adds them to the claims and says how many addresses they are.
    fn claim(
        &self,
        key: &str,
        ranges: &[Ipv4Net],
        limit: u64,
        claims: &mut Vec<Claim>,
    ) -> Result<u64, ConfigError> {
        let mut count = 0;
        for (index, range) in ranges.iter().enumerate() {
            let key = format!("{key}[{index}]");
            self.prefix_start(&key, *range)?;
            self.unicast(&key, range.network().into())?;
            self.unicast(&key, range.broadcast().into())?;
            count += size(range);
            let range = IpNet::from(*range);
            claims.push(Claim { range, key });
        }
        if count > limit {
            self.fail(key, Problem::TooManyAddresses { count, limit })?;
        }
        Ok(count)
    }

    /// Checks all IPv6 ranges and adds them to the claims.
    fn prefixes(&self, claims: &mut Vec<Claim>) -> Result<(), ConfigError> {
        let (mut left, mut ranges) = (PREFIX_LIMIT, 0);
        for (index, pool) in self.config.pools.iter().enumerate() {
            let Some(ipv6) = &pool.ipv6 else { continue };
            let key = format!("pools[{index}].ipv6");
            for (entry, (range, length)) in ipv6.ranges().enumerate() {
                let key = range_key(&key, ipv6, entry);
                self.prefix_start(&key, range)?;
                self.unicast(&key, range.network().into())?;
                if range.prefix_len() > length {
                    return self.fail(&key, Problem::NoPrefix { range, length });
                }
                let count = prefixes_in(&range, length);
                let Some(rest) = left.checked_sub(count) else {
                    let limit = PREFIX_LIMIT;
                    let problem = Problem::TooManyPrefixes {
                        range,
                        count,
                        limit,
                    };
                    return self.fail(&key, problem);
                };
                left = rest;
                ranges += 1;
                let range = IpNet::from(range);
                claims.push(Claim { range, key });
            }
            for (entry, server) in ipv6.dns.iter().enumerate() {
                self.unicast(&format!("{key}.dns[{entry}]"), (*server).into())?;
            }
        }
        if ranges > RANGE6_LIMIT {
            let problem = Problem::TooMany {
                what: "IPv6 ranges in all pools",
                count: ranges,
                limit: RANGE6_LIMIT,
            };
            return self.fail("pools", problem);
        }
        Ok(())
    }

    pub(super) fn unicast(&self, key: &str, address: IpAddr) -> Result<(), ConfigError> {
        let fits = match address {
            // "This network", loopback, multicast and reserved.
            IpAddr::V4(address) => !matches!(address.octets()[0], 0 | 127 | 224..),
            // Unspecified, loopback and the forms of IPv4 addresses; link-local; multicast.
            IpAddr::V6(address) => {
                let is_special = address.octets()[0] == 0 || address.is_multicast();
                !is_special && !address.is_unicast_link_local()
            }
        };
        if fits {
            Ok(())
        } else {
            self.fail(key, Problem::NotUnicast(address))
        }
    }

    /// Sorts the claims and refuses the first two that share an address.
    fn overlaps(&self, claims: &mut [Claim]) -> Result<(), ConfigError> {
        claims.sort_by_key(|claim| (claim.range.network(), claim.range.prefix_len()));
        // Prefixes either nest or are apart, so in this order a range that overlaps anything overlaps its neighbour.
        for pair in claims.windows(2) {
            if let [one, two] = pair
                && one.range.contains(&two.range)
            {
                let (first, second) = if self.line(&one.key) <= self.line(&two.key) {
                    (one, two)
                } else {
                    (two, one)
                };
                return self.overlap(&second.key, second.range, first);
            }
        }
        Ok(())
    }

    fn overlap(&self, key: &str, range: IpNet, other: &Claim) -> Result<(), ConfigError> {
        self.fail(
            key,
            Problem::Overlap {
                range,
                other_range: other.range,
                other: other.key.clone(),
                other_line: self.line(&other.key),
            },
        )
    }

    fn pool_details(&self) -> Result<(), ConfigError> {
        for (index, pool) in self.config.pools.iter().enumerate() {
            let key = format!("pools[{index}]");
            let gateway = format!("{key}.gateway");
            self.unicast(&gateway, pool.gateway.into())?;
            // The pool that owns the address leaves it out only when it is its own gateway too.
            for (other_index, other) in self.config.pools.iter().enumerate() {
                if other.gateway != pool.gateway {
                    self.outside(
                        &gateway,
                        pool.gateway,
                        &format!("pools[{other_index}].ranges"),
                        &other.ranges,
                    )?;
                }
            }
            for (other_index, other) in self.config.nat.pools.iter().enumerate() {
                self.outside(
                    &gateway,
                    pool.gateway,
                    &format!("nat.pools[{other_index}].addresses"),
                    &other.addresses,
                )?;
            }
            for (entry, server) in pool.dns.iter().enumerate() {
                self.unicast(&format!("{key}.dns[{entry}]"), (*server).into())?;
            }
            if pool.capacity() == 0 {
                return self.fail(&format!("{key}.ranges"), Problem::EmptyPool);
            }
            if let Some(name) = &pool.nat
                && self.config.nat.pool(name).is_none()
            {
                return self.fail(
                    &format!("{key}.nat"),
                    Problem::Unknown {
                        what: "NAT pool",
                        name: name.clone(),
                        known: self
                            .config
                            .nat
                            .pools
                            .iter()
                            .map(|pool| pool.name.clone())
                            .collect(),
                    },
                );
            }
        }
        Ok(())
    }

    fn outside(
        &self,
        key: &str,
        address: Ipv4Addr,
        list: &str,
        ranges: &[Ipv4Net],
    ) -> Result<(), ConfigError> {
        match ranges.iter().position(|range| range.contains(&address)) {
            Some(entry) => self.overlap(
                key,
                Ipv4Net::from(address).into(),
                &Claim {
                    range: ranges[entry].into(),
                    key: format!("{list}[{entry}]"),
                },
            ),
            None => Ok(()),
        }
    }

    /// A core port's own address is neither handed out nor translated to, and not on two ports.
    fn core_ports(&self, claims: &[Claim]) -> Result<(), ConfigError> {
        let mut own: Vec<Claim> = Vec::new();
        for (index, port) in self.config.dataplane.ports.iter().enumerate() {
            for (entry, network) in port.addresses.iter().enumerate() {
                let key = format!("dataplane.ports[{index}].addresses[{entry}]");
                self.unicast(&key, network.addr())?;
                let host = IpNet::from(network.addr());
                if let Some(other) = claims
                    .iter()
                    .chain(&own)
                    .find(|claim| claim.range.contains(&host))
                {
                    return self.overlap(&key, host, other);
                }
                own.push(Claim { range: host, key });
            }
        }
        Ok(())
    }
}

/// Key of an entry of [`PoolIpv6::ranges`].
fn range_key(key: &str, ipv6: &PoolIpv6, entry: usize) -> String {
    match entry.checked_sub(ipv6.prefixes.len()) {
        None => format!("{key}.prefixes[{entry}]"),
        Some(entry) => format!("{key}.delegated[{entry}]"),
    }
}
