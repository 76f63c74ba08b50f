//! Checks between keys: what each key allows by itself is in `schema`.

mod addresses;
mod coalescing;
mod nat_log;
mod policies;
mod radius;
mod users;
mod vlans;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::Config;
use crate::access::User;
use crate::document::{Document, printable};
use crate::error::{ConfigError, Problem};
use crate::ports::{PortRole, Segmentation};

/// Access ports the session table has room for.
const ACCESS_PORT_LIMIT: usize = 16;

/// EAL arguments `bng-dataplane` sets itself, and the key to use.
const RESERVED_EAL_ARGUMENTS: &[(&str, &str)] = &[
    ("--file-prefix", "dataplane.eal.file_prefix"),
    ("--no-huge", "dataplane.eal.hugepages"),
    ("-m", "dataplane.eal.memory_mib"),
    ("--socket-mem", "dataplane.eal.memory_mib"),
    ("-l", "dataplane.workers"),
    ("-c", "dataplane.workers"),
    ("--lcores", "dataplane.workers"),
    ("--main-lcore", "dataplane.main_core"),
    ("-a", "dataplane.ports"),
    ("--allow", "dataplane.ports"),
    ("--vdev", "dataplane.ports"),
];

/// Everything that only shows when keys are seen together, in file order of the sections.
pub(crate) fn check(config: &Config, document: &Document) -> Result<(), ConfigError> {
    let checker = Checker { config, document };
    checker.cores()?;
    checker.eal()?;
    checker.ports()?;
    checker.coalescing()?;
    checker.mbufs()?;
    checker.mru()?;
    checker.pppoe()?;
    checker.users()?;
    checker.radius()?;
    checker.policies()?;
    checker.vlans()?;
    checker.addresses()?;
    checker.nat_log()?;
    checker.api()
}

/// Refuses a user of the users file that the configuration has too, or that is there twice.
pub(crate) fn users_file(
    config: &Config,
    users: &[User],
    document: &Document,
) -> Result<(), ConfigError> {
    unique(
        "",
        "name",
        users.iter().map(|user| user.name.as_str()),
        document,
    )?;
    let inline: HashSet<&str> = config
        .auth
        .users
        .iter()
        .map(|user| user.name.as_str())
        .collect();
    if let Some(index) = (users.iter()).position(|user| inline.contains(user.name.as_str())) {
        return Err(document.error_at(
            &format!("[{index}].name"),
            Problem::UserInBoth {
                name: printable(&users[index].name),
            },
        ));
    }
    let checker = Checker { config, document };
    checker.user_policies("", users)?;
    checker.user_addresses("", users, true)
}

/// What an address is, if nobody else on a port's network can have it.
fn no_neighbour(network: &IpNet, address: IpAddr) -> Option<&'static str> {
    if network.addr() == address {
        return Some("the port's own address");
    }
    // Both ends of a /31 are hosts (RFC 3021).
    let IpNet::V4(network) = network else {
        return None;
    };
    let is_end = |end: std::net::Ipv4Addr| network.prefix_len() < 31 && address == end;
    if is_end(network.network()) {
        return Some("the network's own address");
    }
    is_end(network.broadcast()).then_some("the network's broadcast address")
}

struct Checker<'a> {
    config: &'a Config,
    document: &'a Document,
}

impl Checker<'_> {
    fn fail(&self, key: &str, problem: Problem) -> Result<(), ConfigError> {
        Err(self.document.error_at(key, problem))
    }

    fn line(&self, key: &str) -> usize {
        self.document.locate(key).line
    }

    /// Threads that poll need cores of their own.
    fn cores(&self) -> Result<(), ConfigError> {
        let dataplane = &self.config.dataplane;
        if dataplane.idle_backoff_us > 0 {
            return Ok(());
        }
        let mut taken = HashMap::from([(dataplane.main_core, "dataplane.main_core".to_owned())]);
        for (index, core) in dataplane.workers.iter().enumerate() {
            let key = format!("dataplane.workers[{index}]");
            if let Some(other) = taken.get(core) {
                let other = other.clone();
                return self.fail(&key, Problem::CoreShared { core: *core, other });
            }
            taken.insert(*core, key);
        }
        Ok(())
    }

    fn eal(&self) -> Result<(), ConfigError> {
        for (index, argument) in self.config.dataplane.eal.extra_args.iter().enumerate() {
            let name = argument.split('=').next().unwrap_or(argument);
            if let Some((_, instead)) = RESERVED_EAL_ARGUMENTS
                .iter()
                .find(|(reserved, _)| *reserved == name)
            {
                return self.fail(
                    &format!("dataplane.eal.extra_args[{index}]"),
                    Problem::ReservedEalArgument {
                        argument: name.to_owned(),
                        instead,
                    },
                );
            }
        }
        Ok(())
    }

    fn ports(&self) -> Result<(), ConfigError> {
        let ports = &self.config.dataplane.ports;
        unique(
            "dataplane.ports",
            "name",
            ports.iter().map(|port| port.name.as_str()),
            self.document,
        )?;
        unique(
            "dataplane.ports",
            "device",
            ports.iter().map(|port| port.device.as_str()),
            self.document,
        )?;
        for role in [PortRole::Access, PortRole::Core] {
            if !ports.iter().any(|port| port.role == role) {
                return self.fail("dataplane.ports", Problem::NoPort { role });
            }
        }
        let access = usize::from(self.config.access_port_count());
        if access > ACCESS_PORT_LIMIT {
            let problem = Problem::TooMany {
                what: "access ports",
                count: access,
                limit: ACCESS_PORT_LIMIT,
            };
            return self.fail("dataplane.ports", problem);
        }
        for (index, port) in ports.iter().enumerate() {
            let key = format!("dataplane.ports[{index}]");
            if port.role == PortRole::Core && !port.vlans.is_empty() {
                return self.fail(&format!("{key}.vlans"), Problem::OnlyAccessPort);
            }
            if port.role == PortRole::Core && port.outer_tpid.is_some() {
                return self.fail(&format!("{key}.outer_tpid"), Problem::OnlyAccessPort);
            }
            if port.role == PortRole::Access {
                for (name, used) in [
                    ("addresses", !port.addresses.is_empty()),
                    ("routes", !port.routes.is_empty()),
                    ("segmentation", port.segmentation == Segmentation::Port),
                    ("twin_offloads", port.twin_offloads),
                ] {
                    if used {
                        return self.fail(&format!("{key}.{name}"), Problem::OnlyCorePort);
                    }
                }
            }
            for (entry, route) in port.routes.iter().enumerate() {
                let key = format!("{key}.routes[{entry}]");
                self.prefix_start(&format!("{key}.to"), route.to)?;
                let via = route.via;
                if let (IpNet::V6(_), IpAddr::V4(_)) = (route.to, via) {
                    let to = route.to;
                    return self.fail(&format!("{key}.via"), Problem::NextHopFamily { to, via });
                }
                let is_link_local = matches!(via, IpAddr::V6(via) if via.is_unicast_link_local());
                let is_on_link = port.addresses.iter().any(|network| network.contains(&via));
                if !is_link_local && !is_on_link {
                    return self.fail(&format!("{key}.via"), Problem::NotOnLink { via });
                }
                if let Some(is) = port.addresses.iter().find_map(|it| no_neighbour(it, via)) {
                    return self.fail(&format!("{key}.via"), Problem::NoNeighbour { via, is });
                }
            }
        }
        Ok(())
    }

    fn mbufs(&self) -> Result<(), ConfigError> {
        let dataplane = &self.config.dataplane;
        let needed = dataplane.mbufs_needed();
        if u64::from(dataplane.mbufs) < needed {
            return self.fail(
                "dataplane.mbufs",
                Problem::TooFewMbufs {
                    mbufs: dataplane.mbufs,
                    needed,
                    workers: dataplane.workers.len(),
                },
            );
        }
        Ok(())
    }

    fn mru(&self) -> Result<(), ConfigError> {
        let pppoe = &self.config.pppoe;
        if pppoe.min_mru > pppoe.mru {
            return self.fail(
                "pppoe.min_mru",
                Problem::MruOrder {
                    min_mru: pppoe.min_mru,
                    mru: pppoe.mru,
                },
            );
        }
        let mut largest = 0;
        for (index, port) in self.config.dataplane.ports.iter().enumerate() {
            if port.role == PortRole::Core {
                continue;
            }
            if self.config.max_mru(port) < pppoe.min_mru {
                return self.fail(
                    &format!("dataplane.ports[{index}].mtu"),
                    Problem::MtuTooSmall {
                        mtu: port.mtu,
                        min_mru: pppoe.min_mru,
                    },
                );
            }
            largest = largest.max(port.mtu);
        }
        // 1,492 is what every PPPoE session has without RFC 4638; a port with a smaller MTU just offers less.
        if pppoe.mru > 1492 && pppoe.mru > largest.saturating_sub(8) {
            return self.fail(
                "pppoe.mru",
                Problem::MruTooLarge {
                    mru: pppoe.mru,
                    mtu: largest,
                },
            );
        }
        Ok(())
    }

    fn api(&self) -> Result<(), ConfigError> {
        let api = &self.config.api;
        match api.metrics_listen {
            Some(metrics) if metrics == api.listen => {
                self.fail("api.metrics_listen", Problem::SameListen)
            }
            _ => Ok(()),
        }
    }

    fn prefix_start(&self, key: &str, range: impl Into<IpNet>) -> Result<(), ConfigError> {
        let range = range.into();
        if range.addr() == range.network() {
            return Ok(());
        }
        self.fail(
            key,
            Problem::HostBits {
                found: range,
                network: range.trunc(),
            },
        )
    }
}

/// Refuses the second entry of a list with the same value of a key (or the same entry, when the key is empty).
fn unique<'a>(
    list: &str,
    key: &str,
    values: impl Iterator<Item = &'a str>,
    document: &Document,
) -> Result<(), ConfigError> {
    let path = |index: usize| match key {
        "" => format!("{list}[{index}]"),
        key => format!("{list}[{index}].{key}"),
    };
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for (index, value) in values.enumerate() {
        if let Some(first) = seen.insert(value, index) {
            let other = path(first);
            let other_line = document.locate(&other).line;
            return Err(document.error_at(
                &path(index),
                Problem::Taken {
                    value: printable(value),
                    other,
                    other_line,
                },
            ));
        }
    }
    Ok(())
}
