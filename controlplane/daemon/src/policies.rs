//! Policies in use: one place in shared memory for all sessions that may do the same.
//!
//! Workers read a place without a lock, so it never changes under them (INV-POLICY-1): it is written before the first entry
//! that names it, and written anew only when an epoch has passed since the last entry that named it was changed or freed. A
//! policy that cannot be written leaves its session with none, and then nothing passes.

use std::collections::{HashMap, VecDeque};

use bng_pppoe::SessionRef;
use bng_shm::{EpochToken, FilterId, POLICIES, Policy, PolicyId, PublishError, Publisher};

use crate::driver::Driver;
use crate::said::Said;
use crate::sessions::Live;
use crate::terms::filter_tag;

/// The policy a session has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assigned {
    /// Its place; 0 when it could not be written.
    pub id: PolicyId,
    /// What it says.
    pub policy: Policy,
    /// Whether an operator gave it to this session, in place of what the configuration says.
    pub by_operator: bool,
    /// Tag of the name of its filter, zero for none; see [`crate::terms::filter_tag`].
    pub filter_tag: [u8; 4],
}

/// A place in shared memory.
#[derive(Debug)]
struct Place {
    policy: Policy,
    /// Sessions that have it.
    users: u32,
    /// How often the last session has left it, so that only the latest rest counts.
    rests: u64,
}

/// All places in use.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    places: HashMap<PolicyId, Place>,
    ids: HashMap<Policy, PolicyId>,
    free: Vec<PolicyId>,
    /// Ids up to this one have been used.
    used_up_to: u16,
    /// Places that nobody has any more, since the last epoch began.
    left: Vec<(PolicyId, u64)>,
    resting: VecDeque<(EpochToken, Vec<(PolicyId, u64)>)>,
}

impl Policies {
    /// Everything an earlier run has written. What no session takes again is freed by [`Policies::sweep`].
    pub(crate) fn recover(publisher: &Publisher) -> Self {
        let reader = publisher.reader();
        let mut policies = Self::default();
        for id in (1..=u16::MAX).map(PolicyId) {
            if let Some(policy) = reader.policy(id) {
                // Of two places that say the same the first is taken again, the other one swept.
                policies.ids.entry(policy).or_insert(id);
                let place = Place {
                    policy,
                    users: 0,
                    rests: 0,
                };
                policies.places.insert(id, place);
            }
        }
        policies
    }

    /// The place of a policy, for one session more.
    ///
    /// # Errors
    /// There is no place left, or it cannot be written; nothing is taken then.
    pub(crate) fn take(
        &mut self,
        publisher: &mut Publisher,
        policy: &Policy,
    ) -> Result<PolicyId, PublishError> {
        if let Some(id) = self.ids.get(policy)
            && let Some(place) = self.places.get_mut(id)
        {
            place.users += 1;
            return Ok(*id);
        }
        let id = self.unused().ok_or(PublishError::Capacity {
            what: "policies",
            count: POLICIES as usize,
            capacity: POLICIES as usize - 1,
        })?;
        if let Err(error) = publisher.write_policy(id, Some(policy)) {
            self.free.push(id);
            return Err(error);
        }
        self.ids.insert(*policy, id);
        let place = Place {
            policy: *policy,
            users: 1,
            rests: 0,
        };
        self.places.insert(id, place);
        Ok(id)
    }

    fn unused(&mut self) -> Option<PolicyId> {
        if let Some(id) = self.free.pop() {
            return Some(id);
        }
        // What an earlier run has written is passed over.
        while let Some(next) = self.used_up_to.checked_add(1) {
            self.used_up_to = next;
            if !self.places.contains_key(&PolicyId(next)) {
                return Some(PolicyId(next));
            }
        }
        None
    }

    /// One session less has a place: its entry names another one now, or is freed.
    pub(crate) fn release(&mut self, id: PolicyId) {
        let Some(place) = self.places.get_mut(&id) else {
            return;
        };
        place.users = place.users.saturating_sub(1);
        if place.users == 0 {
            place.rests += 1;
            self.left.push((id, place.rests));
        }
    }

    /// Has the places rest that no session has taken again after [`Policies::recover`].
    pub(crate) fn sweep(&mut self) {
        let idle = self.places.iter_mut().filter(|(_, place)| place.users == 0);
        self.left.extend(idle.map(|(id, place)| {
            place.rests += 1;
            (*id, place.rests)
        }));
    }

    /// Frees the places that no worker can know any more.
    pub(crate) fn free_rested(&mut self, publisher: &mut Publisher) {
        if !self.left.is_empty() {
            let left = std::mem::take(&mut self.left);
            self.resting.push_back((publisher.advance_epoch(), left));
        }
        while let Some((_, rested)) =
            (self.resting).pop_front_if(|(token, _)| publisher.epoch_passed(*token))
        {
            for (id, rests) in rested {
                self.free_place(publisher, id, rests);
            }
        }
    }

    fn free_place(&mut self, publisher: &mut Publisher, id: PolicyId, rests: u64) {
        // A place that was taken again meanwhile goes on, or rests anew.
        let is_free =
            (self.places.get(&id)).is_some_and(|place| place.users == 0 && place.rests == rests);
        if !is_free {
            return;
        }
        if let Some(place) = self.places.remove(&id)
            && self.ids.get(&place.policy) == Some(&id)
        {
            self.ids.remove(&place.policy);
        }
        match publisher.write_policy(id, None) {
            Ok(()) => self.free.push(id),
            Err(error) => tracing::error!(%error, id = id.0, "policy could not be taken back"),
        }
    }

    /// Whether any place rests.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.left.is_empty() || !self.resting.is_empty()
    }

    /// Places in use, resting ones included.
    pub(crate) fn in_use(&self) -> usize {
        self.places.len()
    }

    /// How many sessions have a filter.
    pub(crate) fn users_of_filter(&self, filter: FilterId) -> u32 {
        let places = self.places.values();
        let with = places.filter(|place| place.policy.filter == Some(filter));
        with.map(|place| place.users).sum()
    }

    /// How many sessions have a policy.
    pub(crate) fn users(&self, policy: &Policy) -> u32 {
        let id = self.ids.get(policy);
        id.and_then(|id| self.places.get(id))
            .map_or(0, |place| place.users)
    }
}

impl Driver {
    /// Gives a session the policy that AAA and the configuration have for it. What an operator has changed stays, also over a
    /// renegotiation.
    pub(crate) fn assign_policy(&mut self, session: SessionRef) {
        let Some(live) = self.sessions.get(session) else {
            return;
        };
        let policy = self.configured_policy(live);
        let is_kept =
            |it: &Assigned| it.id != PolicyId(0) && (it.by_operator || it.policy == policy);
        if !live.policy.as_ref().is_some_and(is_kept) {
            self.hold(session, policy, false);
        }
    }

    /// The policy AAA and the configuration have for a session.
    pub(crate) fn configured_policy(&self, live: &Live) -> Policy {
        self.policy_with(live, live.said.as_deref())
    }

    /// The policy a session would have if AAA had said this.
    pub(crate) fn policy_with(&self, live: &Live, said: Option<&Said>) -> Policy {
        let settings = &self.settings;
        let vlan = settings.vlan(live.session.port.0, &live.vlans);
        let port = settings.access_port(live.session.port.0);
        let largest = port.map_or(0, |port| port.max_mru);
        settings.terms.policy_for(&live.user, vlan, said, largest)
    }

    /// Gives a session a policy. Without a place for it the session has none, so that nothing passes.
    pub(crate) fn hold(&mut self, session: SessionRef, policy: Policy, by_operator: bool) {
        let taken = self.policies.take(&mut self.publisher, &policy);
        let id = taken.unwrap_or_else(|error| {
            self.publish_failed("policy", &error);
            tracing::error!(%session, "nothing passes for this session");
            PolicyId(0)
        });
        self.replace_policy(session, policy, id, by_operator);
    }

    /// Has a session name a place that was taken for it, and gives the one back that its entry has named so far.
    pub(crate) fn replace_policy(
        &mut self,
        session: SessionRef,
        policy: Policy,
        id: PolicyId,
        by_operator: bool,
    ) {
        let terms = &self.settings.terms;
        let Some(live) = self.sessions.get_mut(session) else {
            self.policies.release(id);
            return;
        };
        let name = policy.filter.and_then(|id| terms.filter_name(id));
        let assigned = Assigned {
            id,
            policy,
            by_operator,
            filter_tag: name.map_or([0; 4], filter_tag),
        };
        if let Some(before) = live.policy.replace(assigned) {
            // The entry must name the other place before the rest of this one begins.
            let slot = live.slot();
            self.update(slot);
            self.policies.release(before.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bng_shm::{Capacities, Dataplane, Rate, Worker};

    fn world() -> (Dataplane, Worker, Publisher) {
        let capacities = Capacities::of_gateway(1, 2, 1, 0, 0);
        let (mut dataplane, publisher) = Dataplane::in_process(capacities).unwrap();
        let worker = dataplane.worker(0).unwrap();
        worker.enter(0);
        (dataplane, worker, publisher)
    }

    fn policy(kbps: u32) -> Policy {
        let rate = Rate {
            kbps,
            burst_bytes: 3000,
        };
        Policy {
            up: Some(rate),
            ..Policy::default()
        }
    }

    #[test]
    fn sessions_that_may_do_the_same_share_a_place() {
        let (_dataplane, worker, mut publisher) = world();
        let mut policies = Policies::default();
        let mut take = |policy: &Policy| policies.take(&mut publisher, policy).unwrap();
        let (one, other, again) = (take(&policy(1)), take(&policy(2)), take(&policy(1)));
        assert_eq!((one, other, again), (PolicyId(1), PolicyId(2), one));
        assert_eq!(worker.reader().policy(one), Some(policy(1)));
        assert_eq!(policies.users(&policy(1)), 2);
        assert_eq!(policies.in_use(), 2);
    }

    #[test]
    fn a_place_is_written_anew_only_after_the_epoch_since_its_last_session_left() {
        let (_dataplane, worker, mut publisher) = world();
        let reader = worker.reader();
        let mut policies = Policies::default();
        let id = policies.take(&mut publisher, &policy(1)).unwrap();
        policies.release(id);
        policies.free_rested(&mut publisher);
        assert_eq!(reader.policy(id), Some(policy(1)), "the worker may read it");
        let other = policies.take(&mut publisher, &policy(2)).unwrap();
        assert_ne!(other, id);
        worker.quiescent();
        policies.free_rested(&mut publisher);
        assert_eq!(reader.policy(id), None);
        assert!(!policies.is_waiting());
        assert_eq!(policies.take(&mut publisher, &policy(3)).unwrap(), id);
    }

    #[test]
    fn a_place_taken_again_while_it_rests_stays_and_rests_anew_later() {
        let (_dataplane, worker, mut publisher) = world();
        let reader = worker.reader();
        let mut policies = Policies::default();
        let id = policies.take(&mut publisher, &policy(1)).unwrap();
        policies.release(id);
        policies.free_rested(&mut publisher);
        assert_eq!(policies.take(&mut publisher, &policy(1)).unwrap(), id);
        policies.release(id);
        worker.quiescent();
        // The first rest is over, the second has only begun.
        policies.free_rested(&mut publisher);
        assert_eq!(reader.policy(id), Some(policy(1)));
        worker.quiescent();
        policies.free_rested(&mut publisher);
        assert_eq!(reader.policy(id), None);
    }

    #[test]
    fn after_a_restart_places_are_taken_again_and_the_others_swept() {
        let (_dataplane, worker, mut publisher) = world();
        let reader = worker.reader();
        for (id, kbps) in [(1, 1), (2, 2), (3, 1)] {
            let written = publisher.write_policy(PolicyId(id), Some(&policy(kbps)));
            written.unwrap();
        }
        let mut policies = Policies::recover(&publisher);
        let id = policies.take(&mut publisher, &policy(2)).unwrap();
        assert_eq!(id, PolicyId(2));
        policies.sweep();
        policies.free_rested(&mut publisher);
        worker.quiescent();
        policies.free_rested(&mut publisher);
        let left = [1, 2, 3].map(|id| reader.policy(PolicyId(id)));
        assert_eq!(left, [None, Some(policy(2)), None]);
        let next = policies.take(&mut publisher, &policy(9)).unwrap();
        assert!([1, 3].contains(&next.0), "freed places are used first");
    }

    #[test]
    fn without_a_place_left_nothing_is_taken() {
        let (_dataplane, _worker, mut publisher) = world();
        let mut policies = Policies::default();
        for kbps in 1..POLICIES {
            policies.take(&mut publisher, &policy(kbps)).unwrap();
        }
        let full = policies.take(&mut publisher, &policy(POLICIES));
        assert!(matches!(full, Err(PublishError::Capacity { .. })));
        assert_eq!(policies.users(&policy(POLICIES)), 0);
        let again = policies.take(&mut publisher, &policy(5)).unwrap();
        assert_eq!(again, PolicyId(5), "those there are go on");
    }
}
