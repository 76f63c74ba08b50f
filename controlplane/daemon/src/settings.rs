//! What the driver needs, computed once from the configuration both daemons read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use bng_aaa::{
    AddressPool, AddressPools, FramedRoute, LocalUsers, PortBlocks, Prefix, PrefixPool, Profile,
};
use bng_config::{BeyondMax, Coalescing, Config, OtherProtocols, PortRole};
use bng_pppoe::{
    AuthProtocol, Limits, Lockout, PortConfig, PortId, Rate, ServicePolicy, VlanProfile,
};
use bng_shm::{
    Capacities, CapacityError, MAX_POOL_RANGES, NatRules, Pool6Range, PoolRange, RangeKind,
};
use bng_wire::{MacAddr, VlanStack};
use ipnet::IpNet;
use secrecy::ExposeSecret;

use crate::grants::{NatBlocks, PoolPrefixes};
use crate::terms::{Terms, VlanTerms};

/// The file is valid, but asks for more than the shared memory can describe.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A count is beyond what the shared memory is made for.
    #[error(transparent)]
    Capacity(#[from] CapacityError),
    /// Too many address ranges.
    #[error(
        "pools and nat.pools have {count} address ranges together, at most {MAX_POOL_RANGES} are possible: write neighbouring ranges as one prefix"
    )]
    Ranges {
        /// How many there are.
        count: usize,
    },
}

/// A port of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSettings {
    /// Name in the configuration.
    pub name: String,
    /// What it faces.
    pub role: PortRole,
    /// Index among the access ports; `None` for core ports.
    pub access: Option<u8>,
    /// Layer-3 MTU of the configuration, bytes.
    pub mtu: u16,
    /// Largest MRU of a session on any of its VLANs, bytes (access ports).
    pub max_mru: u16,
    /// VLANs served, first match first (access ports); empty for all.
    pub vlans: Vec<VlanTerms>,
    /// Whether what arrives here may be coalesced.
    pub coalescing: bool,
    /// What to put on the twin (core ports).
    pub addresses: Vec<IpNet>,
    /// Routes to put on the twin: destination and gateway (core ports).
    pub routes: Vec<(IpNet, IpAddr)>,
}

/// What a session gets from an address pool besides its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSettings {
    /// Name in the configuration.
    pub name: String,
    /// Our address on the sessions.
    pub gateway: Ipv4Addr,
    /// DNS servers, primary first.
    pub dns: [Option<Ipv4Addr>; 2],
    /// IPv6 DNS servers.
    pub dns6: [Option<Ipv6Addr>; 2],
    /// Index of the NAT pool.
    pub nat: Option<usize>,
}

/// How many sessions of one user name there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserLimit {
    /// Sessions; `None` for any number.
    pub sessions: Option<u32>,
    /// What happens beyond that, and when a session is to have the address of an older one of its user.
    pub beyond: BeyondMax,
}

/// Ports and pools in the order of the configuration.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Sizes of the shared memory.
    pub capacities: Capacities,
    /// All ports; the position is the port index (`FrameMeta::port`).
    pub ports: Vec<PortSettings>,
    /// Port index of each access port; the position is the access-port index (slots, `PortId`).
    pub access_ports: Vec<u8>,
    /// Address pools.
    pub pools: Vec<PoolSettings>,
    /// Ranges to publish: NAT pools first, in the order of the dense NAT address index.
    pub ranges: Vec<PoolRange>,
    /// IPv6 ranges to publish, in the order of their dense index.
    pub ranges6: Vec<Pool6Range>,
    /// Policies and filters.
    pub terms: Terms,
    /// What is coalesced.
    pub coalescing: Coalescing,
    /// Sessions of one user.
    pub user_limit: UserLimit,
}

impl Settings {
    /// Computes everything from a loaded configuration.
    ///
    /// # Errors
    /// [`SettingsError`] for counts the shared memory cannot hold.
    pub fn new(config: &Config) -> Result<Self, SettingsError> {
        let counts = config.table_counts();
        let capacities = Capacities {
            framed_prefixes: counts.prefixes,
            routes: counts.routes,
            routes6: counts.routes6,
            ..Capacities::of_gateway(
                counts.access_ports,
                counts.ports,
                counts.workers,
                counts.nat_addresses,
                counts.routed_addresses,
            )
        };
        capacities.check()?;
        let ranges = ranges(config);
        if ranges.len() > MAX_POOL_RANGES {
            return Err(SettingsError::Ranges {
                count: ranges.len(),
            });
        }
        let terms = Terms::new(config);
        let mut ports = Vec::new();
        let mut access_ports = Vec::new();
        // Fits u8: the capacities just checked allow 32 ports.
        for (index, port) in (0u8..).zip(&config.dataplane.ports) {
            let access = (port.role == PortRole::Access).then_some(access_ports.len() as u8);
            if access.is_some() {
                access_ports.push(index);
            }
            ports.push(PortSettings {
                name: port.name.clone(),
                role: port.role,
                access,
                mtu: port.mtu,
                max_mru: largest_mru(config, port),
                vlans: (port.vlans.iter())
                    .map(|entry| VlanTerms::new(config, &terms, entry))
                    .collect(),
                coalescing: port.coalescing,
                addresses: port.addresses.clone(),
                routes: port.routes.iter().map(|r| (r.to, r.via)).collect(),
            });
        }
        let pools = config.pools.iter().map(|pool| PoolSettings {
            name: pool.name.clone(),
            gateway: pool.gateway,
            dns: [pool.dns.first().copied(), pool.dns.get(1).copied()],
            dns6: (pool.ipv6.as_ref()).map_or([None; 2], |ipv6| {
                [ipv6.dns.first().copied(), ipv6.dns.get(1).copied()]
            }),
            nat: pool
                .nat
                .as_ref()
                .and_then(|name| config.nat.pool(name))
                .map(|(index, _)| usize::from(index)),
        });
        Ok(Self {
            capacities,
            ports,
            access_ports,
            pools: pools.collect(),
            ranges,
            ranges6: ranges6(config),
            terms,
            coalescing: config.dataplane.coalescing,
            user_limit: UserLimit {
                sessions: Some(config.auth.max_sessions_per_user.into()).filter(|max| *max != 0),
                beyond: config.auth.beyond_max,
            },
        })
    }

    /// Name of an access port, by its index among the access ports.
    #[must_use]
    pub fn access_name(&self, access: u8) -> &str {
        self.access_port(access).map_or("?", |port| &port.name)
    }

    /// An access port, by its index among the access ports.
    #[must_use]
    pub fn access_port(&self, access: u8) -> Option<&PortSettings> {
        let index = self.access_ports.get(usize::from(access))?;
        self.ports.get(usize::from(*index))
    }

    /// What the VLANs of these tags have of their own on an access port, by its index among the access ports.
    #[must_use]
    pub fn vlan(&self, access: u8, vlans: &VlanStack) -> Option<&VlanTerms> {
        let port = self.access_port(access)?;
        port.vlans.iter().find(|terms| terms.fit(vlans))
    }

    /// Whether an access port serves frames with these tags.
    #[must_use]
    pub fn serves(&self, access: u8, vlans: &VlanStack) -> bool {
        self.access_port(access)
            .is_some_and(|port| port.vlans.is_empty() || self.vlan(access, vlans).is_some())
    }

    /// Index of the address pool of a name.
    #[must_use]
    pub fn pool(&self, name: &str) -> Option<usize> {
        self.pools.iter().position(|pool| pool.name == name)
    }

    /// Port index and port of a name.
    #[must_use]
    pub fn port(&self, name: &str) -> Option<(u8, &PortSettings)> {
        (0u8..).zip(&self.ports).find(|(_, port)| port.name == name)
    }
}

/// The largest MRU of any session on a port, bytes.
fn largest_mru(config: &Config, port: &bng_config::Port) -> u16 {
    let entries = port.vlans.iter();
    let of_vlans = entries.map(|entry| config.vlan_mru(port, entry)).max();
    of_vlans.unwrap_or_else(|| config.max_mru(port))
}

/// What the PPP engine has to know of the VLANs of all access ports.
fn vlan_profiles(config: &Config) -> Vec<VlanProfile> {
    let pppoe = &config.pppoe;
    // Fits u8: there are at most 16 access ports.
    let ports = (0u8..).zip(config.access_ports().map(|(_, port)| port));
    let profiles = ports.flat_map(|(access, port)| {
        port.vlans.iter().map(move |entry| {
            let range = |ids: bng_config::VlanIds| ids.bounds().0..=ids.bounds().1;
            let names = entry.service_names.as_ref();
            let sessions = entry.max_sessions_per_mac;
            VlanProfile {
                port: PortId(access),
                s_vlan: range(entry.s_vlan),
                c_vlan: range(entry.c_vlan),
                services: services(names.unwrap_or(&pppoe.service_names)),
                sessions_per_mac: sessions.unwrap_or(pppoe.max_sessions_per_mac).into(),
                max_mru: config.vlan_mru(port, entry),
                pado_delay: milliseconds(entry.pado_delay_ms.unwrap_or(pppoe.pado_delay_ms)),
            }
        })
    });
    profiles.collect()
}

fn milliseconds(count: u16) -> Duration {
    Duration::from_millis(count.into())
}

fn services(names: &[String]) -> ServicePolicy {
    if names.is_empty() {
        return ServicePolicy::Any;
    }
    let names = names.iter().map(|name| name.clone().into_bytes());
    ServicePolicy::Listed(names.collect())
}

/// The ranges as workers see them. The dense bases follow from the order, which therefore is the
/// configuration's own, so that a restart gives every address the index it had.
fn ranges(config: &Config) -> Vec<PoolRange> {
    let nat = config.nat.pools.iter().flat_map(|pool| {
        pool.addresses.iter().map(|range| PoolRange {
            kind: RangeKind::Nat,
            first: range.network(),
            last: range.broadcast(),
            base: 0,
            block_size: pool.block_size,
            first_port: pool.first_port,
            rules: NatRules {
                other_protocols: pool.other_protocols == OtherProtocols::OneSubscriber,
            },
        })
    });
    let subscribers = config.pools.iter().flat_map(|pool| {
        pool.ranges.iter().map(|range| PoolRange {
            kind: if pool.nat.is_some() {
                RangeKind::Subscriber
            } else {
                RangeKind::Routed
            },
            first: range.network(),
            last: range.broadcast(),
            base: 0,
            block_size: 0,
            first_port: 0,
            rules: NatRules::default(),
        })
    });
    nat.chain(subscribers).collect()
}

/// The IPv6 ranges, in the configuration's own order for the same reason.
fn ranges6(config: &Config) -> Vec<Pool6Range> {
    let high = |address: Ipv6Addr| (address.to_bits() >> 64) as u64;
    let pools = config.pools.iter().filter_map(|pool| pool.ipv6.as_ref());
    pools
        .flat_map(|ipv6| ipv6.ranges())
        .map(|(range, length)| Pool6Range {
            first: high(range.network()),
            last: high(range.broadcast()) & (u64::MAX << (64 - length)),
            length,
            base: 0,
        })
        .collect()
}

/// The IPv6 prefixes of every address pool that has any, all free.
#[must_use]
pub fn pool_prefixes(config: &Config) -> Vec<Option<PoolPrefixes>> {
    let cut = |name: String, length: u8, ranges: &[ipnet::Ipv6Net]| {
        let ranges = ranges.iter().map(|range| Prefix {
            address: range.network(),
            length: range.prefix_len(),
        });
        PrefixPool::new(name, length, ranges)
    };
    let pools = config.pools.iter().map(|pool| {
        let ipv6 = pool.ipv6.as_ref()?;
        let name = &pool.name;
        Some(PoolPrefixes {
            on_link: cut(format!("{name} ipv6.prefixes"), 64, &ipv6.prefixes),
            delegated: (!ipv6.delegated.is_empty()).then(|| {
                let name = format!("{name} ipv6.delegated");
                cut(name, ipv6.delegated_length, &ipv6.delegated)
            }),
        })
    });
    pools.collect()
}

/// The address pools, all free.
#[must_use]
pub fn address_pools(config: &Config) -> AddressPools {
    let pools = config.pools.iter();
    AddressPools::new(
        pools
            .map(|pool| AddressPool::new(pool.name.clone(), pool.usable()))
            .collect(),
    )
}

/// The port blocks of every NAT pool, all free.
#[must_use]
pub fn port_blocks(config: &Config) -> Vec<NatBlocks> {
    let mut first_index = 0;
    let pools = config.nat.pools.iter().map(|pool| {
        let addresses = pool.addresses.iter().flat_map(|range| {
            let (first, last) = (range.network().to_bits(), range.broadcast().to_bits());
            (first..=last).map(Ipv4Addr::from_bits)
        });
        let blocks = PortBlocks::new(
            pool.name.clone(),
            first_index,
            addresses,
            pool.first_port,
            pool.block_size,
            Duration::from_secs(pool.quarantine_s.into()),
        );
        first_index += pool.address_count();
        NatBlocks {
            blocks,
            first_port: pool.first_port,
            per_subscriber: pool.blocks_per_subscriber,
        }
    });
    pools.collect()
}

/// The users of the configuration and of its users file.
#[must_use]
pub fn local_users(config: &Config) -> LocalUsers {
    let users = config.auth.users.iter();
    LocalUsers::new(users.map(|user| (user.name.clone(), user.password.clone(), profile(user))))
}

/// The terms of a user's sessions; its policy is found by name, see [`Terms`].
fn profile(user: &bng_config::User) -> Profile {
    let seconds = |s: u32| Duration::from_secs(s.into());
    Profile {
        framed_ip: user.framed_ip,
        framed_pool: user.pool.clone(),
        framed_routes: (user.framed_routes.iter())
            .map(|it| FramedRoute {
                network: it.network(),
                length: it.prefix_len(),
                metric: 1,
            })
            .collect(),
        session_timeout: user.session_timeout_s.map(seconds),
        idle_timeout: user.idle_timeout_s.map(seconds),
        quota_octets: user.quota_mib.map(|mib| u64::from(mib) << 20),
        ..Profile::default()
    }
}

/// A source address no frame is ever sent from: it stands for the MAC address of a port the
/// dataplane has not brought up yet, from which no frame can come.
#[must_use]
pub fn placeholder_mac(access: u8) -> MacAddr {
    MacAddr([0x02, 0, 0, 0, 0, access])
}

/// The PPP engine's configuration; `macs` are the addresses of the access ports as far as known.
#[must_use]
pub fn engine_config(
    config: &Config,
    settings: &Settings,
    macs: &[Option<MacAddr>],
) -> bng_pppoe::Config {
    let pppoe = &config.pppoe;
    let seconds = |s: u16| Duration::from_secs(s.into());
    let ports = (0u8..).zip(&settings.access_ports).map(|(access, index)| {
        let known = macs.get(usize::from(access)).copied().flatten();
        let max_mru = settings.ports[usize::from(*index)].max_mru;
        PortConfig {
            id: PortId(access),
            mac: known.unwrap_or_else(|| placeholder_mac(access)),
            // The engine takes the MRU from the MTU, so `pppoe.mru`, or the VLANs' largest one, narrows it here.
            mtu: max_mru.saturating_add(PPPOE_OVERHEAD),
        }
    });
    let restart_timer = Duration::from_millis(pppoe.lcp.restart_ms.into());
    let retries = u32::from(pppoe.lcp.max_configure);
    bng_pppoe::Config {
        ports: ports.collect(),
        ac_name: pppoe.ac_name.clone().into_bytes(),
        services: services(&pppoe.service_names),
        vlans: vlan_profiles(config),
        limits: Limits {
            sessions_per_mac: pppoe.max_sessions_per_mac.into(),
            sessions_per_circuit: pppoe.max_sessions_per_circuit.into(),
            sessions_per_port: pppoe.max_sessions_per_port.into(),
            half_open: pppoe.max_half_open,
            padi_per_port: Rate {
                per_second: pppoe.padi_per_second,
                burst: pppoe.padi_per_second,
            },
            padi_per_mac: Rate {
                per_second: pppoe.padi_per_second_per_mac,
                burst: pppoe.padi_per_second_per_mac,
            },
            ..Limits::default()
        },
        replace_stale: pppoe.replace_stale_sessions,
        pado_delay: milliseconds(pppoe.pado_delay_ms),
        lockout: Lockout {
            failures: pppoe.lockout.failures,
            first: seconds(pppoe.lockout.first_s),
            longest: seconds(pppoe.lockout.longest_s),
        },
        auth_protocols: (config.auth.protocols.iter())
            .map(|protocol| match protocol {
                bng_config::AuthProtocol::Pap => AuthProtocol::Pap,
                bng_config::AuthProtocol::Chap => AuthProtocol::ChapMd5,
            })
            .collect(),
        chap_interval: (config.auth.chap_interval_s != 0)
            .then(|| Duration::from_secs(config.auth.chap_interval_s.into())),
        session_id_quarantine: seconds(pppoe.session_id_quarantine_s),
        cookie_lifetime: seconds(pppoe.cookie_lifetime_s),
        mru_floor: pppoe.min_mru,
        restart_timer,
        restart_timer_max: restart_timer * 4,
        max_configure: pppoe.lcp.max_configure,
        max_terminate: pppoe.lcp.max_terminate,
        max_failure: pppoe.lcp.max_failure,
        auth_timeout: seconds(pppoe.auth_timeout_s),
        // LCP and IPCP may each use all their retries, and authentication its time, before the session as a
        // whole is given up.
        setup_timeout: restart_timer * 4 * retries * 2 + seconds(pppoe.auth_timeout_s),
        echo_interval: seconds(pppoe.echo.interval_s),
        echo_max_missed: pppoe.echo.failures,
        allow_empty_password: (config.auth.users.iter())
            .any(|user| user.password.expose_secret().is_empty()),
    }
}

/// PPPoE header and PPP protocol field, bytes.
const PPPOE_OVERHEAD: u16 = 8;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::path::Path;

    /// Two access ports around a core port, a translated and a routed pool, two NAT pools.
    pub(crate) const TEXT: &str = r#"
dataplane:
  workers: [1, 2]
  ports:
    - {name: access0, role: access, device: net_null0}
    - {name: core0, role: core, device: net_null1, addresses: [192.0.2.2/24], routes: [{to: default, via: 192.0.2.1}]}
    - {name: access-1, role: access, device: net_null2, mtu: 1508}
pppoe: {mru: 1500}
auth:
  users: [{name: alice, password: wonderland}]
pools:
  - {name: home, ranges: [100.64.0.0/29], gateway: 100.64.0.1, dns: [9.9.9.9], nat: out, ipv6: {prefixes: [2001:db8::/60], delegated: [2001:db8:1000::/48]}}
  - {name: office, ranges: [203.0.113.0/29], gateway: 203.0.113.1}
nat:
  pools:
    - {name: spare, addresses: [198.51.100.8]}
    - {name: out, addresses: [198.51.100.0/30], block_size: 1024}
"#;

    pub(crate) fn config() -> Config {
        Config::parse(TEXT.as_bytes(), Path::new("test.yaml")).unwrap()
    }

    #[test]
    fn port_index_and_access_port_index_are_kept_apart() {
        let settings = Settings::new(&config()).unwrap();
        assert_eq!(settings.access_ports, [0, 2]);
        assert_eq!(settings.access_name(1), "access-1");
        assert_eq!(settings.access_port(1).unwrap().max_mru, 1500);
        assert_eq!(settings.access_port(0).unwrap().max_mru, 1492);
        let (index, port) = settings.port("access-1").unwrap();
        assert_eq!((index, port.access), (2, Some(1)));
        assert_eq!(settings.port("core0").unwrap().1.access, None);
    }

    #[test]
    fn ranges_follow_the_order_of_the_dense_nat_index() {
        let config = config();
        let settings = Settings::new(&config).unwrap();
        let kinds: Vec<_> = settings.ranges.iter().map(|range| range.kind).collect();
        let expected = [
            RangeKind::Nat,
            RangeKind::Nat,
            RangeKind::Subscriber,
            RangeKind::Routed,
        ];
        assert_eq!(kinds, expected);
        let (_dataplane, mut publisher) =
            bng_shm::Dataplane::in_process(settings.capacities).unwrap();
        let published = publisher.publish_pools(&settings.ranges).unwrap();
        for range in published.iter().filter(|r| r.kind == RangeKind::Nat) {
            assert_eq!(config.nat.address_index(range.first), Some(range.base));
        }
        let blocks = &mut port_blocks(&config)[1].blocks;
        let block = blocks.allocate(Duration::ZERO).unwrap();
        let index = config.nat.address_index(block.address);
        assert_eq!(index, Some(block.address_index));
    }

    #[test]
    fn ipv6_ranges_hold_exactly_the_prefixes_of_the_pools() {
        let config = config();
        let settings = Settings::new(&config).unwrap();
        let (_dataplane, mut publisher) =
            bng_shm::Dataplane::in_process(settings.capacities).unwrap();
        let published = publisher.publish_pools6(&settings.ranges6).unwrap();
        let counts: Vec<_> = published
            .iter()
            .map(|r| (r.length, r.count(), r.base))
            .collect();
        assert_eq!(counts, [(64, 16, 0), (56, 256, 16)]);
        assert_eq!(settings.capacities.framed_prefixes, 272);
        let pools = pool_prefixes(&config);
        let home = pools[0].as_ref().unwrap();
        assert_eq!(home.on_link.total(), 16);
        assert_eq!(home.delegated.as_ref().unwrap().total(), 256);
        assert!(pools[1].is_none());
    }

    #[test]
    fn vlans_of_a_port_reach_the_engine_with_what_is_theirs() {
        let vlans = "mtu: 1508, vlans: [{s_vlan: 100-199, c_vlan: any, mru: 1500, max_sessions_per_mac: 1, service_names: [gold]}, {s_vlan: none, pool: office}]";
        let text = TEXT
            .replace("mtu: 1508", vlans)
            .replace("pppoe: {mru: 1500}", "pppoe: {service_names: [a]}");
        let config = Config::parse(text.as_bytes(), Path::new("test.yaml")).unwrap();
        let settings = Settings::new(&config).unwrap();
        let engine = engine_config(&config, &settings, &[None, None]);
        engine.check().unwrap();
        let profile = VlanProfile {
            port: PortId(1),
            s_vlan: 100..=199,
            c_vlan: 1..=4094,
            services: ServicePolicy::Listed(vec![b"gold".to_vec()]),
            sessions_per_mac: 1,
            max_mru: 1500,
            pado_delay: Duration::ZERO,
        };
        let other = VlanProfile {
            s_vlan: 0..=0,
            c_vlan: 0..=0,
            services: ServicePolicy::Listed(vec![b"a".to_vec()]),
            sessions_per_mac: 4,
            max_mru: 1492,
            ..profile.clone()
        };
        assert_eq!(engine.vlans, [profile, other]);
        assert_eq!(settings.access_port(1).unwrap().max_mru, 1500);
        assert_eq!(engine.ports[1].mtu, 1508);
        let untagged = VlanStack::UNTAGGED;
        assert_eq!(settings.vlan(1, &untagged).unwrap().pool, Some(1));
        let tagged = VlanStack::single(bng_wire::VlanTag {
            tpid: 0x8100,
            tci: 5,
        });
        assert!(!settings.serves(1, &tagged) && settings.serves(0, &tagged));
    }

    #[test]
    fn the_engine_takes_the_configuration() {
        let config = config();
        let settings = Settings::new(&config).unwrap();
        let mac = MacAddr([2, 0, 0, 0, 1, 1]);
        let engine = engine_config(&config, &settings, &[None, Some(mac)]);
        engine.check().unwrap();
        assert_eq!(engine.ports[1].mac, mac);
        assert_eq!(engine.ports[1].mtu, 1508);
        assert_eq!(engine.ports[0].mtu, 1500);
        assert!(!engine.allow_empty_password);
    }
}
