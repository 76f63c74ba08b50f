//! What the configuration gives sessions by name: policies, filters, and the VLANs of access ports.

use std::collections::HashMap;

use bng_aaa::RateLimit;
use bng_config::{Config, FilterAction, VlanEntry, VlanIds};
use bng_shm::{Filter, FilterId, FilterRule, MAX_RATE_KBPS, Policy, Rate};
use bng_wire::VlanStack;

use crate::said::Said;

/// A policy of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedPolicy {
    /// Name in the configuration.
    pub name: String,
    /// What it says.
    pub policy: Policy,
}

/// A filter of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedFilter {
    /// Name in the configuration.
    pub name: String,
    /// Its rules.
    pub filter: Filter,
}

/// Some VLANs of an access port, and what is different for their sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VlanTerms {
    s_vlan: VlanIds,
    c_vlan: VlanIds,
    /// Index of the policy of users without one of their own.
    pub policy: Option<usize>,
    /// Index of the one address pool.
    pub pool: Option<usize>,
}

impl VlanTerms {
    pub(crate) fn new(config: &Config, terms: &Terms, entry: &VlanEntry) -> Self {
        let policy = |name: &String| terms.policies.iter().position(|it| it.name == *name);
        let pool = |name: &String| Some(config.pool(name)?.0);
        Self {
            s_vlan: entry.s_vlan,
            c_vlan: entry.c_vlan,
            policy: entry.policy.as_ref().and_then(policy),
            pool: entry.pool.as_ref().and_then(pool),
        }
    }

    /// Whether frames with these tags are of these VLANs.
    pub(crate) fn fit(&self, vlans: &VlanStack) -> bool {
        let vlans = vlans.without_priority_tags();
        self.s_vlan.contains(vlans.s_vlan()) && self.c_vlan.contains(vlans.c_vlan())
    }
}

/// Name of the policy that limits nothing, with source check and MSS clamping, unless the configuration has one of this name.
pub const DEFAULT_POLICY: &str = bng_config::DEFAULT_POLICY;

/// Filters the shared memory has places for.
const PLACES: usize = bng_shm::MAX_FILTERS;

/// Other filters cannot be put beside those that sessions may still have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the filters there are and the new ones are more than {PLACES} together: take fewer at a time, or restart bng-controlplane"
)]
pub struct TooManyFilters;

/// All policies and filters, and who gets which.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// Policies, in the order of the configuration, and [`DEFAULT_POLICY`].
    pub policies: Vec<NamedPolicy>,
    /// Filters: the position is the [`FilterId`]. In the order of the configuration; after a reload a place may be without a name,
    /// see [`Terms::keep_places`].
    pub filters: Vec<NamedFilter>,
    pub(crate) default: Option<usize>,
    /// Those that have a policy of their own.
    pub(crate) users: HashMap<Vec<u8>, usize>,
}

impl Terms {
    pub(crate) fn new(config: &Config) -> Self {
        let policies = config.policies.iter().map(|policy| NamedPolicy {
            name: policy.name.clone(),
            policy: of_policy(config, policy),
        });
        let mut policies: Vec<_> = policies.collect();
        if config.policy(DEFAULT_POLICY).is_none() {
            policies.push(NamedPolicy {
                name: DEFAULT_POLICY.to_owned(),
                policy: Policy::default(),
            });
        }
        // By name: there may be a million users.
        let names = policies.iter().enumerate();
        let names: HashMap<&str, usize> =
            names.map(|(index, it)| (it.name.as_str(), index)).collect();
        let index = |name: &str| names.get(name).copied();
        let users = config.auth.users.iter().filter_map(|user| {
            let policy = user.policy.as_deref().and_then(index)?;
            Some((user.name.clone().into_bytes(), policy))
        });
        let users = users.collect();
        let default = config.auth.default_policy.as_deref();
        let default = index(default.unwrap_or(DEFAULT_POLICY));
        let filters = config.filters.iter().map(|filter| NamedFilter {
            name: filter.name.clone(),
            filter: of_filter(filter),
        });
        Self {
            policies,
            filters: filters.collect(),
            default,
            users,
        }
    }

    /// Gives every filter the place it has in `now`, as sessions name filters by their place. Others take places that were free
    /// already then, or new ones. A place whose filter is gone is free, and keeps the rules until it is taken.
    ///
    /// # Errors
    /// [`TooManyFilters`] to have all in such places.
    pub(crate) fn keep_places(&mut self, now: &Self) -> Result<(), TooManyFilters> {
        let is_new = |name: &str| now.filter(name).is_none();
        let (new, mut old): (Vec<_>, Vec<_>) = std::mem::take(&mut self.filters)
            .into_iter()
            .enumerate()
            .partition(|(_, filter)| is_new(&filter.name));
        let mut places: Vec<_> = now.filters.clone();
        // By their place until now, which policies name.
        let mut moved = HashMap::new();
        for (at, place) in places.iter_mut().enumerate() {
            match old.iter().position(|(_, it)| it.name == place.name) {
                Some(found) => {
                    let (index, filter) = old.swap_remove(found);
                    moved.insert(index, at);
                    *place = filter;
                }
                None => place.name.clear(),
            }
        }
        let was_free = |at: usize| now.filters.get(at).is_none_or(|it| it.name.is_empty());
        let mut free = (0..).filter(|at| was_free(*at));
        for (index, filter) in new {
            let at = free.next().unwrap_or(usize::MAX);
            if at >= PLACES {
                return Err(TooManyFilters);
            }
            moved.insert(index, at);
            match places.get_mut(at) {
                Some(place) => *place = filter,
                None => places.push(filter),
            }
        }
        for named in &mut self.policies {
            let at = (named.policy.filter).and_then(|id| moved.get(&usize::from(id.0)));
            // Fits: there are 256 places.
            named.policy.filter = at.map(|at| FilterId(*at as u8));
        }
        self.filters = places;
        Ok(())
    }

    /// The policy of a user on a VLAN: its own, else the VLAN's, else the default.
    #[must_use]
    pub fn policy_of(&self, user: &[u8], vlan: Option<&VlanTerms>) -> Policy {
        let named = self.named_for(user, vlan);
        named.map_or_else(Policy::default, |named| named.policy)
    }

    /// The policy of a session: what AAA has named in place of that of its user and VLAN, with the filter and the rates AAA gave
    /// in place of the policy's. `min_burst` is the largest packet, bytes: a smaller burst would never let it pass.
    #[must_use]
    pub fn policy_for(
        &self,
        user: &[u8],
        vlan: Option<&VlanTerms>,
        said: Option<&Said>,
        min_burst: u16,
    ) -> Policy {
        let Some(said) = said else {
            return self.policy_of(user, vlan);
        };
        let name = said.filter_id.as_deref();
        let named = name.and_then(|name| self.policy(name));
        let filter = name.filter(|_| named.is_none());
        let filter = filter.and_then(|name| self.filter(name));
        let policy = named.unwrap_or_else(|| self.policy_of(user, vlan));
        let rate = |limit: RateLimit| {
            let rate = bng_config::Rate {
                rate_kbps: limit.kbps.clamp(1, MAX_RATE_KBPS),
                burst_bytes: limit.burst_bytes,
            };
            Rate {
                kbps: rate.rate_kbps,
                burst_bytes: rate.burst().max(min_burst.into()),
            }
        };
        Policy {
            filter: filter.or(policy.filter),
            up: said.rate_up.map(rate).or(policy.up),
            down: said.rate_down.map(rate).or(policy.down),
            ..policy
        }
    }

    /// Whether AAA may name this: a policy or a filter.
    #[must_use]
    pub fn knows(&self, filter_id: &str) -> bool {
        self.policy(filter_id).is_some() || self.filter(filter_id).is_some()
    }

    fn named_for(&self, user: &[u8], vlan: Option<&VlanTerms>) -> Option<&NamedPolicy> {
        let own = self.users.get(user).copied();
        let index = own.or(vlan.and_then(|vlan| vlan.policy)).or(self.default)?;
        self.policies.get(index)
    }

    /// The name under which a policy is configured: of several that say the same, the one this user would get, else the
    /// first.
    #[must_use]
    pub fn name_of(&self, policy: &Policy, user: &[u8], vlan: Option<&VlanTerms>) -> Option<&str> {
        let same = |named: &&NamedPolicy| named.policy == *policy;
        let own = self.named_for(user, vlan).filter(same);
        let named = own.or_else(|| self.policies.iter().find(same))?;
        Some(&named.name)
    }

    /// The policy of a name.
    #[must_use]
    pub fn policy(&self, name: &str) -> Option<Policy> {
        let named = self.policies.iter().find(|named| named.name == name)?;
        Some(named.policy)
    }

    /// The filter of a name.
    #[must_use]
    pub fn filter(&self, name: &str) -> Option<FilterId> {
        // At most 256 filters are configured.
        let mut all = (0u8..=255).zip(&self.filters);
        let is_named = |filter: &NamedFilter| !name.is_empty() && filter.name == name;
        let (index, _) = all.find(|(_, filter)| is_named(filter))?;
        Some(FilterId(index))
    }

    /// The name of a filter.
    #[must_use]
    pub fn filter_name(&self, id: FilterId) -> Option<&str> {
        let filter = self.filters.get(usize::from(id.0))?;
        (!filter.name.is_empty()).then_some(&filter.name)
    }

    /// The filter whose name has this tag, see [`filter_tag`].
    pub(crate) fn tagged_filter(&self, tag: [u8; 4]) -> Option<FilterId> {
        let mut all = (0u8..=255).zip(&self.filters);
        let has = |name: &str| !name.is_empty() && filter_tag(name) == tag;
        let (index, _) = all.find(|(_, filter)| has(&filter.name))?;
        Some(FilterId(index))
    }

    /// What is published.
    pub(crate) fn published_filters(&self) -> Vec<Filter> {
        self.filters.iter().map(|it| it.filter.clone()).collect()
    }
}

/// A mark of a filter's name for recovery records: FNV-1a, never zero.
pub(crate) fn filter_tag(name: &str) -> [u8; 4] {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash.max(1).to_be_bytes()
}

fn of_policy(config: &Config, policy: &bng_config::Policy) -> Policy {
    let rate = |rate: bng_config::Rate| Rate {
        kbps: rate.rate_kbps,
        burst_bytes: rate.burst(),
    };
    let filter = |name: &String| Some(FilterId(config.filter(name)?.0));
    Policy {
        up: policy.up.map(rate),
        down: policy.down.map(rate),
        source_check: policy.source_check,
        mss_clamp: policy.mss_clamp,
        filter: policy.filter.as_ref().and_then(filter),
    }
}

fn of_filter(filter: &bng_config::Filter) -> Filter {
    let rule = |rule: &bng_config::FilterRule| FilterRule {
        action: match rule.action {
            FilterAction::Accept => bng_shm::FilterAction::Accept,
            FilterAction::Drop => bng_shm::FilterAction::Drop,
        },
        protocol: rule.protocol.map(|protocol| protocol.0),
        remote: rule
            .remote
            .map(|remote| (remote.0.addr(), remote.0.prefix_len())),
        remote_ports: rule.remote_ports.map(|ports| (ports.first, ports.last)),
        local_ports: rule.local_ports.map(|ports| (ports.first, ports.last)),
    };
    Filter {
        up: filter.up.iter().map(rule).collect(),
        down: filter.down.iter().map(rule).collect(),
        drop_other_up: filter.other_up == FilterAction::Drop,
        drop_other_down: filter.other_down == FilterAction::Drop,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bng_wire::VlanTag;
    use std::path::Path;

    const TEXT: &str = r#"
dataplane:
  workers: [1]
  ports:
    - {name: core0, role: core, device: a}
    - {name: access0, role: access, device: b, vlans: [{s_vlan: 7, policy: silver, pool: two}, {s_vlan: none}]}
auth:
  default_policy: bronze
  users: [{name: alice, password: a, policy: gold}, {name: bob, password: b}]
policies:
  - {name: bronze, up: {rate_kbps: 1000}}
  - {name: silver, down: {rate_kbps: 2000, burst_bytes: 9000}, mss_clamp: false}
  - {name: gold, source_check: false, filter: mail}
  - {name: also-silver, down: {rate_kbps: 2000, burst_bytes: 9000}, mss_clamp: false}
filters:
  - {name: none}
  - name: mail
    other_up: drop
    up: [{action: accept, protocol: tcp, remote: 2001:db8::/32, remote_ports: 25-26, local_ports: 7}]
    down: [{action: drop, remote: 198.51.100.9}]
pools:
  - {name: one, ranges: [100.64.0.0/29], gateway: 100.64.0.1}
  - {name: two, ranges: [100.65.0.0/29], gateway: 100.65.0.1}
"#;

    fn terms() -> (Config, Terms) {
        let config = Config::parse(TEXT.as_bytes(), Path::new("t.yaml")).unwrap();
        let terms = Terms::new(&config);
        (config, terms)
    }

    #[test]
    fn a_user_s_policy_comes_before_the_vlan_s_and_that_before_the_default() {
        let (config, terms) = terms();
        let vlan = VlanTerms::new(&config, &terms, &config.dataplane.ports[1].vlans[0]);
        let policy = |name| terms.policy(name).unwrap();
        assert_eq!(terms.policy_of(b"alice", Some(&vlan)), policy("gold"));
        assert_eq!(terms.policy_of(b"bob", Some(&vlan)), policy("silver"));
        assert_eq!(terms.policy_of(b"bob", None), policy("bronze"));
        assert_eq!(
            Terms::default().policy_of(b"bob", None),
            Policy::default(),
            "built in"
        );
        assert_eq!(
            terms.name_of(&policy("also-silver"), b"bob", Some(&vlan)),
            Some("silver")
        );
        let none = Policy::default();
        assert_eq!(terms.name_of(&none, b"bob", None), Some("default"));
        let own = Policy {
            mss_clamp: false,
            ..none
        };
        assert_eq!(terms.name_of(&own, b"bob", None), None);
    }

    #[test]
    fn what_aaa_says_comes_before_the_configuration() {
        let (_, terms) = terms();
        let policy = |said: Said| terms.policy_for(b"alice", None, Some(&said), 1500);
        let named = |name: &str| Said {
            filter_id: Some(name.to_owned()),
            ..Said::default()
        };
        let gold = terms.policy("gold").unwrap();
        assert_eq!(terms.policy_for(b"alice", None, None, 1500), gold);
        assert_eq!(policy(named("silver")), terms.policy("silver").unwrap());
        let filtered = Policy {
            filter: Some(FilterId(0)),
            ..gold
        };
        assert_eq!(policy(named("none")), filtered, "a filter's name");
        assert_eq!(policy(named("gone")), gold, "a name of neither");
        assert!(terms.knows("silver") && terms.knows("mail") && !terms.knows("gone"));
        let limit = |kbps, burst_bytes| Some(RateLimit { kbps, burst_bytes });
        let slow = Said {
            rate_up: limit(64, Some(10)),
            rate_down: limit(u32::MAX, None),
            ..named("bronze")
        };
        let slow = policy(slow);
        let rate = |kbps, burst_bytes| Some(Rate { kbps, burst_bytes });
        assert_eq!(slow.up, rate(64, 1500), "a full packet always passes");
        assert_eq!(slow.down, rate(MAX_RATE_KBPS, 4_000_000_000));
    }

    #[test]
    fn a_policy_called_default_is_that_of_everybody_without_another() {
        let text = TEXT.replace("  default_policy: bronze\n", "");
        let policy_of = |text: &str| {
            let config = Config::parse(text.as_bytes(), Path::new("t.yaml")).unwrap();
            let terms = Terms::new(&config);
            let policy = terms.policy_of(b"bob", None);
            assert_eq!(terms.name_of(&policy, b"bob", None), Some("default"));
            policy
        };
        assert_eq!(policy_of(&text), Policy::default());
        let text = text.replace("name: bronze", "name: default");
        assert_eq!(policy_of(&text).up.unwrap().kbps, 1000);
    }

    #[test]
    fn every_key_of_policies_and_filters_reaches_what_is_published() {
        let (_, terms) = terms();
        let rate = |kbps, burst_bytes| Some(Rate { kbps, burst_bytes });
        let bronze = terms.policy("bronze").unwrap();
        assert_eq!((bronze.up, bronze.down), (rate(1000, 12_500), None));
        let silver = terms.policy("silver").unwrap();
        assert_eq!((silver.up, silver.down), (None, rate(2000, 9000)));
        assert!(silver.source_check && !silver.mss_clamp);
        let gold = terms.policy("gold").unwrap();
        assert_eq!(gold.filter, Some(FilterId(1)));
        assert!(!gold.source_check && gold.mss_clamp);
        let [none, mail] = &terms.published_filters()[..] else {
            panic!("two filters")
        };
        assert_eq!(*none, Filter::default());
        assert!(mail.drop_other_up && !mail.drop_other_down);
        let up = FilterRule {
            action: bng_shm::FilterAction::Accept,
            protocol: Some(6),
            remote: Some(("2001:db8::".parse().unwrap(), 32)),
            remote_ports: Some((25, 26)),
            local_ports: Some((7, 7)),
        };
        assert_eq!(mail.up, [up]);
        let down = FilterRule {
            action: bng_shm::FilterAction::Drop,
            protocol: None,
            remote: Some(("198.51.100.9".parse().unwrap(), 32)),
            remote_ports: None,
            local_ports: None,
        };
        assert_eq!(mail.down, [down]);
    }

    #[test]
    fn filters_are_found_by_name_and_by_the_tag_of_a_record() {
        let (_, terms) = terms();
        let id = terms.filter("mail").unwrap();
        assert_eq!(terms.filter_name(id), Some("mail"));
        assert_eq!(terms.tagged_filter(filter_tag("mail")), Some(id));
        assert_eq!(terms.tagged_filter(filter_tag("gone")), None);
        assert_eq!(terms.tagged_filter([0; 4]), None);
    }

    #[test]
    fn vlans_of_a_session_are_found_by_its_tags() {
        let (config, terms) = terms();
        let entries = &config.dataplane.ports[1].vlans;
        let [seven, none] = [0, 1].map(|at| VlanTerms::new(&config, &terms, &entries[at]));
        assert_eq!((seven.policy, seven.pool), (Some(1), Some(1)));
        let one = |tci| VlanStack::single(VlanTag { tpid: 0x8100, tci });
        assert!(seven.fit(&one(0xe007)) && !seven.fit(&one(8)));
        assert!(none.fit(&VlanStack::UNTAGGED) && none.fit(&one(0xe000)));
        let two = VlanStack::double(
            VlanTag {
                tpid: 0x8100,
                tci: 7,
            },
            VlanTag {
                tpid: 0x8100,
                tci: 9,
            },
        );
        assert!(!seven.fit(&two));
    }

    #[test]
    fn after_a_reload_filters_keep_their_places_and_a_free_one_is_taken_only_by_the_next() {
        let (_, now) = terms();
        let place = |terms: &Terms, name: &str| terms.filter(name).map(|id| id.0);
        let filter = |name: &str| NamedFilter {
            name: name.to_owned(),
            filter: Filter {
                drop_other_up: true,
                ..Filter::default()
            },
        };
        let policy = |name: &str, filter: u8| NamedPolicy {
            name: name.to_owned(),
            policy: Policy {
                filter: Some(FilterId(filter)),
                ..Policy::default()
            },
        };
        let mut next = Terms {
            filters: vec![filter("new"), filter("mail")],
            policies: vec![policy("a", 0), policy("b", 1)],
            ..Terms::default()
        };
        next.keep_places(&now).unwrap();
        assert_eq!(place(&next, "mail"), Some(1));
        assert_eq!(
            place(&next, "new"),
            Some(2),
            "the place of `none` may still be named"
        );
        assert_eq!((place(&next, "none"), place(&next, "")), (None, None));
        assert_eq!(next.filter_name(FilterId(0)), None);
        let names: Vec<_> = next.policies.iter().map(|it| it.policy.filter).collect();
        assert_eq!(names, [Some(FilterId(2)), Some(FilterId(1))]);
        assert_eq!(next.published_filters()[0], now.published_filters()[0]);

        let mut later = Terms {
            filters: vec![filter("later"), filter("mail")],
            ..Terms::default()
        };
        later.keep_places(&next).unwrap();
        assert_eq!(place(&later, "later"), Some(0));
        let many = (0..255).map(|n| filter(&format!("f{n}")));
        let mut many = Terms {
            filters: many.collect(),
            ..Terms::default()
        };
        assert_eq!(many.clone().keep_places(&later), Err(TooManyFilters));
        many.filters.truncate(253);
        many.keep_places(&later).unwrap();
    }
}
