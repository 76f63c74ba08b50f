//! Changes of a live session's terms: its times and its octets over REST, these and its rates and filter by CoA. No traffic is
//! dropped for it.

use std::time::Duration;

use bng_aaa::{Change, Refusal, Selector};
use bng_shm::SlotIndex;
use serde::Deserialize;
use tokio::sync::oneshot;
use utoipa::ToSchema;

use crate::driver::Driver;
use crate::policy_change::{ChangeError, Confirmed};
use crate::publish::Clock;
use crate::said::{Changed, Said};
use crate::tally::Count;

/// What becomes of a session's limits. What is not given stays; `null` takes a limit away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsChange {
    /// Longest time since the network phase was reached, seconds, at least 1.
    #[serde(deserialize_with = "crate::policy_change::given")]
    #[schema(value_type = Option<u32>)]
    pub session_timeout_s: Option<Option<u32>>,
    /// Longest time without traffic of the subscriber, seconds, at least 1.
    #[serde(deserialize_with = "crate::policy_change::given")]
    #[schema(value_type = Option<u32>)]
    pub idle_timeout_s: Option<Option<u32>>,
    /// Most bytes of both directions together since the start of the session, MiB, at least 1.
    #[serde(deserialize_with = "crate::policy_change::given")]
    #[schema(value_type = Option<u32>)]
    pub quota_mib: Option<Option<u32>>,
}

/// The same in the terms of engine and table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Limits {
    /// Since the network phase was reached.
    session_timeout: Option<Option<Duration>>,
    idle_timeout: Option<Option<Duration>>,
    quota_octets: Option<Option<u64>>,
}

impl LimitsChange {
    fn limits(&self) -> Result<Limits, ChangeError> {
        if *self == Self::default() {
            return Err(ChangeError::NoLimit);
        }
        let given = [
            ("session_timeout_s", self.session_timeout_s),
            ("idle_timeout_s", self.idle_timeout_s),
            ("quota_mib", self.quota_mib),
        ];
        if let Some((what, _)) = given.iter().find(|(_, value)| *value == Some(Some(0))) {
            return Err(ChangeError::OutOfRange {
                what,
                value: 0,
                min: 1,
                max: u32::MAX,
            });
        }
        let seconds = |s: u32| Duration::from_secs(s.into());
        Ok(Limits {
            session_timeout: self.session_timeout_s.map(|it| it.map(seconds)),
            idle_timeout: self.idle_timeout_s.map(|it| it.map(seconds)),
            quota_octets: self.quota_mib.map(|it| it.map(|mib| u64::from(mib) << 20)),
        })
    }
}

impl Limits {
    /// What is changed with these.
    const fn note(&self, changed: Changed) -> Changed {
        changed
            .with(Changed::SESSION_TIMEOUT, self.session_timeout.is_some())
            .with(Changed::IDLE_TIMEOUT, self.idle_timeout.is_some())
            .with(Changed::QUOTA, self.quota_octets.is_some())
    }
}

impl Driver {
    /// Changes the limits of a session, for an operator.
    ///
    /// # Errors
    /// A [`ChangeError`]; nothing has changed then.
    pub(crate) fn change_limits(
        &mut self,
        slot: SlotIndex,
        change: &LimitsChange,
        clock: Clock,
    ) -> Result<(), ChangeError> {
        let limits = change.limits()?;
        let live = self.sessions.at(slot).filter(|live| live.end.is_none());
        let session = live.ok_or(ChangeError::NoSuchSession)?.session;
        if !self.set_limits(session, &limits, clock) {
            return Err(ChangeError::NotUp);
        }
        tracing::info!(%session, ?change, "limits changed by an operator");
        Ok(())
    }

    /// Sets limits and writes them down; `false`, with nothing changed, while the session's network phase is not reached.
    fn set_limits(
        &mut self,
        session: bng_pppoe::SessionRef,
        limits: &Limits,
        clock: Clock,
    ) -> bool {
        let (time, idle) = (limits.session_timeout, limits.idle_timeout);
        if (self.sessions.get(session)).is_none_or(|live| live.record.is_none()) {
            return false;
        }
        if !(self.engine).set_timeouts(clock.time(), session, time, idle) {
            return false;
        }
        let Some(live) = self.sessions.get_mut(session) else {
            return false;
        };
        if let Some(record) = &mut live.record {
            record.grant.session_timeout = time.unwrap_or(record.grant.session_timeout);
            record.grant.idle_timeout = idle.unwrap_or(record.grant.idle_timeout);
        }
        live.quota_octets = limits
            .quota_octets
            .map_or(live.quota_octets, |it| it.unwrap_or(0));
        let mut said = live.said.take().map_or_else(Said::default, |said| *said);
        said.changed = limits.note(said.changed);
        live.said = said.boxed();
        let slot = live.slot();
        self.update(slot);
        true
    }

    /// Changes the terms of the one session that is meant (CoA-Request), and answers when every packet received later is under
    /// them.
    pub(crate) fn authorize(
        &mut self,
        selector: &Selector,
        change: &Change,
        reply: oneshot::Sender<Result<(), Refusal>>,
        clock: Clock,
    ) {
        match self.try_authorize(selector, change, clock) {
            Ok(()) => self.when_confirmed(Confirmed::Authorized(reply), clock),
            Err(refusal) => {
                // Who asked may be gone.
                let _ = reply.send(Err(refusal));
            }
        }
    }

    fn try_authorize(
        &mut self,
        selector: &Selector,
        change: &Change,
        clock: Clock,
    ) -> Result<(), Refusal> {
        let Change {
            rate_up,
            rate_down,
            filter_id,
            session_timeout,
            idle_timeout,
            quota_octets,
            interim_interval,
        } = change;
        if *change == Change::default() {
            return Err(Refusal::MissingAttribute);
        }
        if (filter_id.as_deref()).is_some_and(|name| !self.settings.terms.knows(name)) {
            self.tally.add(Count::FilterUnknown);
            return Err(Refusal::InvalidAttributeValue);
        }
        let live = self.selected(selector)?;
        let session = live.session;
        let record = live.record.as_deref().ok_or(Refusal::NotRemovable)?;
        // AAA counts from now on, the engine since the network phase was reached.
        let since_up = clock.time().since(record.up_since);
        let limits = Limits {
            session_timeout: session_timeout.map(|it| Some(since_up.saturating_add(it))),
            idle_timeout: idle_timeout.map(Some),
            quota_octets: quota_octets.map(Some),
        };
        let before = live.said.as_deref().cloned().unwrap_or_default();
        let changed = (limits.note(before.changed))
            .with(Changed::RATE_UP, rate_up.is_some())
            .with(Changed::RATE_DOWN, rate_down.is_some())
            .with(Changed::FILTER_ID, filter_id.is_some())
            .with(Changed::INTERIM, interim_interval.is_some());
        let said = Said {
            changed,
            rate_up: rate_up.or(before.rate_up),
            rate_down: rate_down.or(before.rate_down),
            filter_id: filter_id.clone().or(before.filter_id),
            interim: interim_interval.or(before.interim),
            ..before
        };
        let is_policy = rate_up.is_some() || rate_down.is_some() || filter_id.is_some();
        let policy = is_policy.then(|| self.policy_with(live, Some(&said)));
        let taken = policy.map(|it| {
            self.policies
                .take(&mut self.publisher, &it)
                .map(|id| (it, id))
        });
        let taken = taken.transpose().map_err(|error| {
            self.publish_failed("policy", &error);
            Refusal::ResourcesUnavailable
        })?;
        if !self.set_limits(session, &limits, clock) {
            if let Some((_, id)) = taken {
                self.policies.release(id);
            }
            return Err(Refusal::NotRemovable);
        }
        if let Some(live) = self.sessions.get_mut(session) {
            live.said = said.boxed();
        }
        match taken {
            Some((policy, id)) => self.replace_policy(session, policy, id, false),
            None => {
                let slot = SlotIndex::new(session.port.0, session.session_id);
                self.update(slot);
            }
        }
        tracing::info!(%session, ?change, "terms changed by AAA");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(json: &str) -> Result<Limits, String> {
        let change: LimitsChange = serde_json::from_str(json).map_err(|error| error.to_string())?;
        change.limits().map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_given_stays_and_null_takes_away() {
        let expected = Limits {
            session_timeout: Some(Some(Duration::from_secs(60))),
            idle_timeout: Some(None),
            quota_octets: None,
        };
        let change = r#"{"session_timeout_s": 60, "idle_timeout_s": null}"#;
        assert_eq!(limits(change), Ok(expected));
        let most = limits(r#"{"quota_mib": 4294967295}"#).unwrap();
        assert_eq!(most.quota_octets, Some(Some(0xffff_ffff << 20)));
    }

    #[test]
    fn what_cannot_be_is_said() {
        let nothing = limits("{}").unwrap_err();
        assert_eq!(
            nothing,
            "give session_timeout_s, idle_timeout_s or quota_mib"
        );
        for name in ["session_timeout_s", "idle_timeout_s", "quota_mib"] {
            let error = limits(&format!(r#"{{"{name}": 0}}"#)).unwrap_err();
            assert_eq!(error, format!("{name} is 0, allowed is 1 to 4294967295"));
        }
        assert!(
            limits(r#"{"quota": 1}"#)
                .unwrap_err()
                .contains("unknown field")
        );
    }
}
