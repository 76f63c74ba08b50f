//! Policies and filters as REST shows them.

use bng_shm::{Filter, FilterAction, FilterRule, Policy, Rate};
use serde::Serialize;
use utoipa::ToSchema;

use crate::driver::Driver;
use crate::sessions::Live;
use crate::settings::Settings;
use crate::terms::Terms;

/// A committed rate and burst.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct RateView {
    /// Committed rate of IP packets, kbit/s.
    pub rate_kbps: u32,
    /// Committed burst, bytes.
    pub burst_bytes: u32,
}

impl From<Rate> for RateView {
    fn from(rate: Rate) -> Self {
        Self {
            rate_kbps: rate.kbps,
            burst_bytes: rate.burst_bytes,
        }
    }
}

/// What a policy says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct RulesView {
    /// Limit of what the subscriber sends.
    pub up: Option<RateView>,
    /// Limit of what the subscriber receives.
    pub down: Option<RateView>,
    /// Whether packets with another source address than the session's are dropped.
    pub source_check: bool,
    /// Whether TCP MSS options are lowered to the session's MTU.
    pub mss_clamp: bool,
    /// Name of the filter.
    pub filter: Option<String>,
}

impl RulesView {
    fn new(terms: &Terms, policy: &Policy) -> Self {
        let filter = policy.filter.and_then(|id| terms.filter_name(id));
        Self {
            up: policy.up.map(RateView::from),
            down: policy.down.map(RateView::from),
            source_check: policy.source_check,
            mss_clamp: policy.mss_clamp,
            filter: filter.map(str::to_owned),
        }
    }
}

/// The policy of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct PolicyView {
    /// Its name; none if no policy of the configuration says the same.
    pub name: Option<String>,
    /// Whether an operator gave it to this session.
    pub by_operator: bool,
    /// Whether the workers have it; if not, nothing passes.
    pub published: bool,
    /// What it says.
    #[serde(flatten)]
    pub rules: RulesView,
}

impl PolicyView {
    /// A session's policy; none before its user is known.
    #[must_use]
    pub fn of(settings: &Settings, live: &Live) -> Option<Self> {
        let assigned = live.policy.as_ref()?;
        let vlan = settings.vlan(live.session.port.0, &live.vlans);
        let name = (settings.terms).name_of(&assigned.policy, &live.user, vlan);
        Some(Self {
            name: name.map(str::to_owned),
            by_operator: assigned.by_operator,
            published: assigned.id.0 != 0,
            rules: RulesView::new(&settings.terms, &assigned.policy),
        })
    }
}

/// A policy of the configuration, or the default one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ConfiguredPolicyView {
    /// Its name.
    pub name: String,
    /// What it says.
    #[serde(flatten)]
    pub rules: RulesView,
    /// Sessions that have this policy, or another one that says the same.
    pub sessions: u32,
}

/// A rule of a filter; all conditions given must hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct RuleView {
    /// `accept` or `drop`.
    pub action: &'static str,
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// Network of the other end.
    pub remote: Option<String>,
    /// Ports of the other end, first and last.
    pub remote_ports: Option<[u16; 2]>,
    /// Ports of the subscriber, first and last.
    pub local_ports: Option<[u16; 2]>,
}

impl From<&FilterRule> for RuleView {
    fn from(rule: &FilterRule) -> Self {
        Self {
            action: match rule.action {
                FilterAction::Accept => "accept",
                FilterAction::Drop => "drop",
            },
            protocol: rule.protocol,
            remote: (rule.remote).map(|(address, length)| format!("{address}/{length}")),
            remote_ports: rule.remote_ports.map(<[u16; 2]>::from),
            local_ports: rule.local_ports.map(<[u16; 2]>::from),
        }
    }
}

/// A filter of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FilterView {
    /// Its name.
    pub name: String,
    /// Rules for what the subscriber sends; the first that fits decides.
    pub up: Vec<RuleView>,
    /// Rules for what the subscriber receives.
    pub down: Vec<RuleView>,
    /// What becomes of upstream packets no rule fits, `accept` or `drop`.
    pub other_up: &'static str,
    /// What becomes of downstream packets no rule fits.
    pub other_down: &'static str,
    /// Sessions that have this filter.
    pub sessions: u32,
}

impl FilterView {
    fn new(name: &str, filter: &Filter, sessions: u32) -> Self {
        let action = |is_drop| if is_drop { "drop" } else { "accept" };
        Self {
            name: name.to_owned(),
            up: filter.up.iter().map(RuleView::from).collect(),
            down: filter.down.iter().map(RuleView::from).collect(),
            other_up: action(filter.drop_other_up),
            other_down: action(filter.drop_other_down),
            sessions,
        }
    }
}

/// The policies of the configuration.
pub(crate) fn policies(driver: &Driver) -> Vec<ConfiguredPolicyView> {
    let terms = &driver.settings.terms;
    let views = terms.policies.iter().map(|named| ConfiguredPolicyView {
        name: named.name.clone(),
        rules: RulesView::new(terms, &named.policy),
        sessions: driver.policies.users(&named.policy),
    });
    views.collect()
}

/// The filters of the configuration.
pub(crate) fn filters(driver: &Driver) -> Vec<FilterView> {
    let filters = (0u8..=255).zip(&driver.settings.terms.filters);
    let filters = filters.filter(|(_, named)| !named.name.is_empty());
    let views = filters.map(|(id, named)| {
        let sessions = driver.policies.users_of_filter(bng_shm::FilterId(id));
        FilterView::new(&named.name, &named.filter, sessions)
    });
    views.collect()
}
