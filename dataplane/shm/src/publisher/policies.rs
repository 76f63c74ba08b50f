//! Policies and filters as their only writer sees them.

use super::{PublishError, Publisher, sequence_write};
use crate::filters::{Filter, MAX_FILTERS, MAX_RULES};
use crate::policy::{Policy, PolicyId};
use crate::sync::fault_point;
use std::sync::atomic::Ordering;

impl Publisher {
    /// Writes a policy, or empties its place with `None`.
    ///
    /// The caller has made sure that no session has named this place since an epoch that has passed (INV-POLICY-1).
    ///
    /// # Errors
    /// Place 0, which stays empty, and a rule set that there cannot be.
    pub fn write_policy(
        &mut self,
        id: PolicyId,
        policy: Option<&Policy>,
    ) -> Result<(), PublishError> {
        let unknown = PublishError::Unknown {
            what: "policy",
            value: id.0.into(),
        };
        let place = match id.0 {
            0 => None,
            at => self.tables.policies.get(usize::from(at)),
        };
        place.ok_or(unknown)?.write(policy);
        fault_point();
        Ok(())
    }

    /// Publishes all rule sets, by [`crate::FilterId`]; those before are replaced. A packet is under the new ones when an
    /// epoch that begins after this call has passed.
    ///
    /// Before the next call another epoch passes: a worker that met that call half written would go on with what it had
    /// before this one, although this one was acknowledged.
    ///
    /// # Errors
    /// Too many rule sets or rules; nothing is changed then.
    pub fn publish_filters(&mut self, filters: &[Filter]) -> Result<(), PublishError> {
        let over = |what, count, capacity| PublishError::Capacity {
            what,
            count,
            capacity,
        };
        if filters.len() > MAX_FILTERS {
            return Err(over("filters", filters.len(), MAX_FILTERS));
        }
        let longest = |f: &Filter| f.up.len().max(f.down.len());
        if let Some(count) = filters.iter().map(longest).find(|n| *n > MAX_RULES) {
            return Err(over("rules in a filter", count, MAX_RULES));
        }
        let header = &self.tables.header[0];
        sequence_write(&header.filters_version, || {
            for (at, words) in self.tables.filters.iter().enumerate() {
                let Some(filter) = filters.get(at) else {
                    words.head.store(0, Ordering::Relaxed);
                    continue;
                };
                words.head.store(filter.head(), Ordering::Relaxed);
                let (up, down) = words.rules.split_at(MAX_RULES);
                for (places, rules) in [(up, &filter.up), (down, &filter.down)] {
                    for (place, rule) in places.iter().zip(rules) {
                        for (word, value) in place.iter().zip(rule.to_words()) {
                            word.store(value, Ordering::Relaxed);
                            fault_point();
                        }
                    }
                }
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filters::{FilterAction, FilterId, FilterRule, Filters};
    use crate::layout::Capacities;
    use crate::worker::Dataplane;

    #[test]
    fn place_zero_is_never_a_policy() {
        let (dataplane, mut publisher) = Dataplane::in_process(Capacities::SMALL).unwrap();
        let policy = Policy::default();
        assert!(publisher.write_policy(PolicyId(0), Some(&policy)).is_err());
        publisher
            .write_policy(PolicyId(65_535), Some(&policy))
            .unwrap();
        let reader = dataplane.reader();
        assert_eq!(reader.policy(PolicyId(65_535)), Some(policy));
        assert!(reader.policy_line(PolicyId(0)).is_none());
        assert!(reader.policy_line(PolicyId(1)).is_none());
    }

    #[test]
    fn filters_replace_those_before() {
        let (dataplane, mut publisher) = Dataplane::in_process(Capacities::SMALL).unwrap();
        let reader = dataplane.reader();
        let rule = FilterRule {
            action: FilterAction::Drop,
            protocol: Some(6),
            remote: None,
            remote_ports: Some((25, 25)),
            local_ports: None,
        };
        let no_mail = Filter {
            up: vec![rule],
            ..Filter::default()
        };
        let mut seen = Filters::default();
        assert!(!reader.refresh_filters(&mut seen));
        publisher
            .publish_filters(&[Filter::default(), no_mail.clone()])
            .unwrap();
        assert!(reader.refresh_filters(&mut seen));
        assert_eq!(seen.get(FilterId(1)), Some(&no_mail));
        let many = Filter {
            down: vec![rule; MAX_RULES + 1],
            ..Filter::default()
        };
        assert!(publisher.publish_filters(&[many]).is_err());
        assert!(!reader.refresh_filters(&mut seen));
        publisher.publish_filters(&[no_mail]).unwrap();
        assert!(reader.refresh_filters(&mut seen));
        assert_eq!(seen.get(FilterId(1)), None);
    }
}
