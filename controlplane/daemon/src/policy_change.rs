//! A change of a live session's policy: what is asked, and the answer once no worker uses the earlier policy any more.

use std::collections::VecDeque;

use bng_aaa::Refusal;
use bng_shm::{EpochToken, FilterId, MAX_RATE_KBPS, Policy, PolicyId, Publisher, Rate, SlotIndex};
use serde::{Deserialize, Deserializer};
use tokio::sync::oneshot;
use utoipa::ToSchema;

use crate::driver::Driver;
use crate::policy_view::PolicyView;
use crate::publish::Clock;
use crate::sessions::Live;
use crate::terms::Terms;

/// Smallest and largest burst, bytes, as in the configuration.
const BURST: std::ops::RangeInclusive<u32> = 1_500..=4_000_000_000;
/// How long workers may take to confirm a change, milliseconds; less than REST waits for an answer.
const CONFIRM_LIMIT_MS: u64 = 1_500;

/// A committed rate and burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RateChange {
    /// Committed rate of IP packets, kbit/s, 1 to 400,000,000.
    pub rate_kbps: u32,
    /// Committed burst, bytes, 1,500 to 4,000,000,000; without it 100 ms of the rate, at least 3,000.
    pub burst_bytes: Option<u32>,
}

/// What becomes of a session's policy. What is not given stays, or is as the named policy says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyChange {
    /// Name of a policy of the configuration to begin with.
    pub policy: Option<String>,
    /// Limit of what the subscriber sends; `null` for none.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<RateChange>)]
    pub up: Option<Option<RateChange>>,
    /// Limit of what the subscriber receives; `null` for none.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<RateChange>)]
    pub down: Option<Option<RateChange>>,
    /// Whether packets with another source address than the session's are dropped.
    pub source_check: Option<bool>,
    /// Whether TCP MSS options are lowered to the session's MTU.
    pub mss_clamp: Option<bool>,
    /// Name of a filter of the configuration; `null` for none.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<String>)]
    pub filter: Option<Option<String>>,
}

/// Tells `null` from a key that is not there.
pub(crate) fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// Why a session's policy is not changed, or not known to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The session is gone or is ending.
    #[error("there is no such session")]
    NoSuchSession,
    /// Nobody has authenticated on the session yet.
    #[error("the session has no policy before its user is known")]
    NotAuthenticated,
    /// Nothing is to change.
    #[error("give policy, up, down, source_check, mss_clamp or filter")]
    Nothing,
    /// No policy has this name.
    #[error("no policy {0} is configured")]
    UnknownPolicy(String),
    /// No filter has this name.
    #[error("no filter {0} is configured")]
    UnknownFilter(String),
    /// A rate or a burst that cannot be.
    #[error("{what} is {value}, allowed is {min} to {max}")]
    OutOfRange {
        /// Which value.
        what: &'static str,
        /// What was given.
        value: u32,
        /// Smallest value.
        min: u32,
        /// Largest value.
        max: u32,
    },
    /// No limit is to change.
    #[error("give session_timeout_s, idle_timeout_s or quota_mib")]
    NoLimit,
    /// The network phase is not reached, or is being negotiated anew.
    #[error("the session is not up")]
    NotUp,
    /// The workers could not be given the policy; the session keeps the one it has.
    #[error("the policy cannot be published, the session keeps the one it has: {0}")]
    NotPublished(String),
    /// The policy is changed, and a worker does not say that it has seen it.
    #[error(
        "the policy is changed, but a worker has not confirmed it within {CONFIRM_LIMIT_MS} ms and may still use the earlier one"
    )]
    NotConfirmed,
}

impl RateChange {
    fn rate(self, mtu: u16) -> Result<Rate, ChangeError> {
        let Self {
            rate_kbps: kbps,
            burst_bytes,
        } = self;
        let within = |what, value: u32, min: u32, max: u32| {
            let error = ChangeError::OutOfRange {
                what,
                value,
                min,
                max,
            };
            (min..=max).contains(&value).then_some(value).ok_or(error)
        };
        let kbps = within("rate_kbps", kbps, 1, MAX_RATE_KBPS)?;
        let configured = bng_config::Rate {
            rate_kbps: kbps,
            burst_bytes,
        };
        // A burst below the MTU would never let a full packet pass.
        let min = u32::from(mtu).max(*BURST.start());
        let burst_bytes = within("burst_bytes", configured.burst(), min, *BURST.end())?;
        Ok(Rate { kbps, burst_bytes })
    }
}

impl PolicyChange {
    /// What a session with `now` may do afterwards; `mtu` is its largest packet of either direction, bytes.
    ///
    /// # Errors
    /// A [`ChangeError`] that says what cannot be.
    pub(crate) fn apply(
        &self,
        terms: &Terms,
        now: Policy,
        mtu: u16,
    ) -> Result<Policy, ChangeError> {
        if *self == Self::default() {
            return Err(ChangeError::Nothing);
        }
        let mut policy = match &self.policy {
            None => now,
            Some(name) => {
                let named = terms.policy(name);
                named.ok_or_else(|| ChangeError::UnknownPolicy(name.clone()))?
            }
        };
        let rate = |change: Option<RateChange>| change.map(|it| it.rate(mtu)).transpose();
        if let Some(up) = self.up {
            policy.up = rate(up)?;
        }
        if let Some(down) = self.down {
            policy.down = rate(down)?;
        }
        policy.source_check = self.source_check.unwrap_or(policy.source_check);
        policy.mss_clamp = self.mss_clamp.unwrap_or(policy.mss_clamp);
        let filter = |name: &String| -> Result<FilterId, ChangeError> {
            let id = terms.filter(name);
            id.ok_or_else(|| ChangeError::UnknownFilter(name.clone()))
        };
        if let Some(name) = &self.filter {
            policy.filter = name.as_ref().map(filter).transpose()?;
        }
        Ok(policy)
    }
}

/// Answer to a change: what the session may do now.
pub type ChangeReply = oneshot::Sender<Result<PolicyView, ChangeError>>;

/// Changes that workers have not confirmed yet.
#[derive(Debug, Default)]
pub(crate) struct Changes(VecDeque<Pending>);

#[derive(Debug)]
struct Pending {
    token: EpochToken,
    limit_ms: u64,
    answer: Confirmed,
}

/// Who is answered when every worker knows of a change.
#[derive(Debug)]
pub(crate) enum Confirmed {
    /// An operator, with what the session may do now.
    Changed(Box<PolicyView>, ChangeReply),
    /// AAA.
    Authorized(oneshot::Sender<Result<(), Refusal>>),
}

impl Confirmed {
    /// Answers. Who asked may be gone; the change stays.
    fn tell(self, is_confirmed: bool) {
        match self {
            Self::Changed(view, reply) => {
                let answer = is_confirmed.then_some(*view);
                let _ = reply.send(answer.ok_or(ChangeError::NotConfirmed));
            }
            Self::Authorized(reply) => {
                let answer = is_confirmed.then_some(());
                let _ = reply.send(answer.ok_or(Refusal::ResourcesUnavailable));
            }
        }
    }
}

impl Changes {
    /// Answers the changes of which every worker knows, and those that take too long.
    pub(crate) fn confirm(&mut self, publisher: &Publisher, now_ms: u64) {
        while let Some(pending) = self.0.pop_front_if(|pending| {
            publisher.epoch_passed(pending.token) || now_ms >= pending.limit_ms
        }) {
            let is_confirmed = publisher.epoch_passed(pending.token);
            pending.answer.tell(is_confirmed);
        }
    }

    /// Whether any change waits.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.0.is_empty()
    }
}

impl Driver {
    /// Changes a session's policy and answers when the epoch after the change has passed: every packet received later is under
    /// the new one.
    pub(crate) fn change_policy(
        &mut self,
        slot: SlotIndex,
        change: &PolicyChange,
        reply: ChangeReply,
        clock: Clock,
    ) {
        match self.try_change(slot, change) {
            Ok(view) => self.when_confirmed(Confirmed::Changed(Box::new(view), reply), clock),
            Err(error) => {
                let _ = reply.send(Err(error));
            }
        }
    }

    /// Answers when the epoch that begins now has passed.
    pub(crate) fn when_confirmed(&mut self, answer: Confirmed, clock: Clock) {
        let token = self.publisher.advance_epoch();
        self.changes.0.push_back(Pending {
            token,
            limit_ms: clock.monotonic_ms + CONFIRM_LIMIT_MS,
            answer,
        });
    }

    fn try_change(
        &mut self,
        slot: SlotIndex,
        change: &PolicyChange,
    ) -> Result<PolicyView, ChangeError> {
        let live = self.sessions.at(slot).filter(|live| live.end.is_none());
        let live = live.ok_or(ChangeError::NoSuchSession)?;
        let assigned = live.policy.as_ref().ok_or(ChangeError::NotAuthenticated)?;
        let policy = change.apply(&self.settings.terms, assigned.policy, largest_packet(live))?;
        let session = live.session;
        let id = self.try_hold(session, policy).map_err(|error| {
            self.publish_failed("policy", &error);
            ChangeError::NotPublished(error.to_string())
        })?;
        let live = (self.sessions.get(session)).ok_or(ChangeError::NoSuchSession)?;
        let id_of_session = crate::views::session_id(&self.settings, live);
        let user = String::from_utf8_lossy(&live.user);
        tracing::info!(
            session = id_of_session,
            ?user,
            ?policy,
            id = id.0,
            "policy changed by an operator"
        );
        PolicyView::of(&self.settings, live).ok_or(ChangeError::NoSuchSession)
    }

    fn try_hold(
        &mut self,
        session: bng_pppoe::SessionRef,
        policy: Policy,
    ) -> Result<PolicyId, bng_shm::PublishError> {
        let id = self.policies.take(&mut self.publisher, &policy)?;
        self.replace_policy(session, policy, id, true);
        Ok(id)
    }
}

/// The largest packet a session can have, of either direction, bytes.
fn largest_packet(live: &Live) -> u16 {
    let our_mru = live.record.as_deref().map_or(0, |record| record.our_mru);
    crate::publish::entry(live).mtu.max(our_mru)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terms::NamedPolicy;

    fn terms() -> Terms {
        let rate = Rate {
            kbps: 1000,
            burst_bytes: 20_000,
        };
        let gold = NamedPolicy {
            name: "gold".to_owned(),
            policy: Policy {
                up: Some(rate),
                down: Some(rate),
                mss_clamp: false,
                ..Policy::default()
            },
        };
        let filter = crate::terms::NamedFilter {
            name: "kids".to_owned(),
            filter: bng_shm::Filter::default(),
        };
        Terms {
            policies: vec![gold],
            filters: vec![filter],
            ..Terms::default()
        }
    }

    fn apply(json: &str, now: Policy) -> Result<Policy, String> {
        let change: PolicyChange = serde_json::from_str(json).map_err(|e| e.to_string())?;
        let applied = change.apply(&terms(), now, 1492);
        applied.map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_given_stays_and_null_takes_away() {
        let kids = Policy {
            filter: Some(FilterId(0)),
            ..terms().policies[0].policy
        };
        let now = apply(r#"{"up": null, "source_check": false}"#, kids).unwrap();
        let expected = Policy {
            up: None,
            source_check: false,
            ..kids
        };
        assert_eq!(now, expected);
        let now = apply(r#"{"filter": null}"#, kids).unwrap();
        assert_eq!(now, terms().policies[0].policy);
        let gold = apply(
            r#"{"policy": "gold", "down": {"rate_kbps": 9}}"#,
            Policy::default(),
        );
        let down = Rate {
            kbps: 9,
            burst_bytes: 3000,
        };
        let expected = Policy {
            down: Some(down),
            ..terms().policies[0].policy
        };
        assert_eq!(gold, Ok(expected));
        let kids = apply(
            r#"{"filter": "kids", "mss_clamp": false}"#,
            Policy::default(),
        )
        .unwrap();
        assert_eq!((kids.filter, kids.mss_clamp), (Some(FilterId(0)), false));
    }

    #[test]
    fn a_burst_carries_the_largest_packet_of_either_direction() {
        let mut live = crate::sessions::tests::live(0, 7, 1);
        assert_eq!(largest_packet(&live), 1492);
        for (our_mru, peer_mru) in [(9000, 1492), (1492, 9000)] {
            let record = bng_pppoe::SessionRecord {
                our_mru,
                peer_mru,
                ..crate::publish::tests::record(live.session)
            };
            live.record = Some(Box::new(record));
            assert_eq!(largest_packet(&live), 9000);
        }
    }

    #[test]
    fn what_cannot_be_is_said() {
        for (json, expected) in [
            ("{}", "give policy, up, down"),
            (r#"{"policy": "tin"}"#, "no policy tin is configured"),
            (r#"{"filter": "tin"}"#, "no filter tin is configured"),
            (
                r#"{"up": {"rate_kbps": 0}}"#,
                "rate_kbps is 0, allowed is 1 to 400000000",
            ),
            (
                r#"{"up": {"rate_kbps": 9, "burst_bytes": 1499}}"#,
                "burst_bytes is 1499, allowed is 1500 to 4000000000",
            ),
            (r#"{"upp": null}"#, "unknown field `upp`"),
            (r#"{"down": {"rate": 1}}"#, "unknown field `rate`"),
            (r#"{"down": {}}"#, "missing field `rate_kbps`"),
        ] {
            let error = apply(json, Policy::default()).unwrap_err();
            assert!(error.starts_with(expected), "{json}: {error}");
        }
    }
}
