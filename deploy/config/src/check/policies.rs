//! `policies`, `filters` and everything that refers to them.

use std::collections::HashSet;
use std::net::IpAddr;

use super::{Checker, unique};
use crate::access::User;
use crate::error::{ConfigError, Problem};
use crate::policies::{DEFAULT_POLICY, FilterRule, Protocol};
use crate::ports::PortRole;

impl Checker<'_> {
    pub(super) fn policies(&self) -> Result<(), ConfigError> {
        let (policies, filters) = (&self.config.policies, &self.config.filters);
        unique(
            "policies",
            "name",
            policies.iter().map(|policy| policy.name.as_str()),
            self.document,
        )?;
        unique(
            "filters",
            "name",
            filters.iter().map(|filter| filter.name.as_str()),
            self.document,
        )?;
        let mru = self.largest_mru();
        for (index, policy) in policies.iter().enumerate() {
            let key = format!("policies[{index}]");
            for (name, rate) in [("up", policy.up), ("down", policy.down)] {
                if let Some(burst) = rate.map(|rate| rate.burst())
                    && burst < mru.into()
                {
                    let key = format!("{key}.{name}.burst_bytes");
                    return self.fail(&key, Problem::BurstTooSmall { burst, mru });
                }
            }
            if let Some(name) = &policy.filter
                && self.config.filter(name).is_none()
            {
                let known = filters.iter().map(|filter| filter.name.as_str());
                return self.unknown(&format!("{key}.filter"), "filter", name, known);
            }
        }
        for (index, filter) in filters.iter().enumerate() {
            for (name, rules) in [("up", &filter.up), ("down", &filter.down)] {
                for (at, rule) in rules.iter().enumerate() {
                    self.rule(&format!("filters[{index}].{name}[{at}]"), rule)?;
                }
            }
        }
        let auth = &self.config.auth;
        if let Some(name) = &auth.default_policy {
            self.policy_exists("auth.default_policy", name)?;
        }
        self.user_policies("auth.users", &auth.users)
    }

    /// Users of `list` name only policies that exist.
    pub(super) fn user_policies(&self, list: &str, users: &[User]) -> Result<(), ConfigError> {
        // There may be a million users.
        let policies = self.config.policies.iter();
        let known: HashSet<&str> = policies.map(|policy| policy.name.as_str()).collect();
        for (index, user) in users.iter().enumerate() {
            if let Some(name) = &user.policy
                && !known.contains(name.as_str())
            {
                self.policy_exists(&format!("{list}[{index}].policy"), name)?;
            }
        }
        Ok(())
    }

    pub(super) fn policy_exists(&self, key: &str, name: &str) -> Result<(), ConfigError> {
        if name == DEFAULT_POLICY || self.config.policy(name).is_some() {
            return Ok(());
        }
        let policies = self.config.policies.iter();
        self.unknown(key, "policy", name, policies.map(|it| it.name.as_str()))
    }

    pub(super) fn unknown<'a>(
        &self,
        key: &str,
        what: &'static str,
        name: &str,
        known: impl Iterator<Item = &'a str>,
    ) -> Result<(), ConfigError> {
        self.fail(
            key,
            Problem::Unknown {
                what,
                name: name.to_owned(),
                known: known.map(str::to_owned).collect(),
            },
        )
    }

    /// The largest MRU of any session, bytes.
    fn largest_mru(&self) -> u16 {
        let ports = self.config.dataplane.ports.iter();
        let access = ports.filter(|port| port.role == PortRole::Access);
        let of_port = |port: &crate::Port| {
            let entries = port.vlans.iter();
            let of_entry = entries.map(|entry| self.config.vlan_mru(port, entry)).max();
            of_entry.unwrap_or_else(|| self.config.max_mru(port))
        };
        access.map(of_port).max().unwrap_or(0)
    }

    /// A rule that no packet can fit is a mistake.
    fn rule(&self, key: &str, rule: &FilterRule) -> Result<(), ConfigError> {
        if let Some(remote) = rule.remote {
            self.prefix_start(&format!("{key}.remote"), remote.0)?;
        }
        let has_ports = |protocol| protocol == Protocol::TCP || protocol == Protocol::UDP;
        if rule.protocol.is_some_and(|protocol| !has_ports(protocol)) {
            for (name, ports) in [
                ("remote_ports", rule.remote_ports),
                ("local_ports", rule.local_ports),
            ] {
                if ports.is_some() {
                    return self.fail(&format!("{key}.{name}"), Problem::NoPorts);
                }
            }
        }
        let (protocol, family) = match (rule.protocol, rule.remote.map(|it| it.0.addr())) {
            (Some(Protocol::ICMP), Some(IpAddr::V6(_))) => ("icmp", "IPv6"),
            (Some(Protocol::ICMPV6), Some(IpAddr::V4(_))) => ("icmpv6", "IPv4"),
            _ => return Ok(()),
        };
        self.fail(key, Problem::NeverFits { protocol, family })
    }
}
