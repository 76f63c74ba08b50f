//! The sessions as the driver knows them, and a bounded memory of those that ended.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bng_pppoe::{AccessLine, SessionRecord, SessionRef};
use bng_shm::{SessionState, SlotIndex, StatsCopy};
use bng_wire::VlanStack;

use crate::causes::EndCause;
use crate::grants::Holding;
use crate::networks;
use crate::policies::Assigned;
use crate::said::Said;
use crate::views::AgreedView;

/// Ended sessions that are remembered.
const HISTORY: usize = 10_000;
/// Those of them that never came up are remembered beside the others: failed logins push out nothing else.
const NEVER_UP: usize = 2_000;

/// A session from its `SessionStarted` (or adoption) until its slot is free again.
#[derive(Debug, Clone)]
pub struct Live {
    /// Its name in the PPP engine.
    pub session: SessionRef,
    /// Generation of its entry in shared memory; counts on its own, over restarts.
    pub generation: u32,
    /// Index of the owning worker.
    pub owner: u8,
    /// State of its entry.
    pub state: SessionState,
    /// Where the client is.
    pub line: AccessLine,
    /// VLAN tags of its frames, outermost first.
    pub vlans: VlanStack,
    /// Name of the last authentication attempt, the one and only once an attempt has succeeded; empty before.
    pub user: Arc<[u8]>,
    /// Its place among the sessions of its user; `None` before authentication has succeeded.
    pub admitted: Option<Admitted>,
    /// TR-101 Agent-Circuit-Id; empty when unknown.
    pub circuit_id: Vec<u8>,
    /// TR-101 Agent-Remote-Id; empty when unknown.
    pub remote_id: Vec<u8>,
    /// What it was given; kept over a renegotiation.
    pub holding: Option<Holding>,
    /// What it may do; `None` before authentication.
    pub policy: Option<Assigned>,
    /// What AAA said of it; `None` when that was nothing.
    pub said: Option<Box<Said>>,
    /// Most octets of both directions together, 0 for no limit.
    pub quota_octets: u64,
    /// Acct-Session-Id, 0 before authentication has succeeded; kept over renegotiations.
    pub accounting_id: u64,
    /// Why AAA or the driver refused its latest credentials.
    pub refused: Option<&'static str>,
    /// What was negotiated, without the names above; from the latest `SessionUp`.
    pub record: Option<Box<SessionRecord>>,
    /// Unix time of its start, milliseconds.
    pub started_unix_ms: u64,
    /// Unix time of the first `SessionUp`, milliseconds; 0 before.
    pub opened_unix_ms: u64,
    /// Whether an earlier run of the control plane set it up.
    pub adopted: bool,
    /// Time of the last upstream frame that the engine was told of, CLOCK_MONOTONIC milliseconds.
    pub noted_ms: u64,
    /// When its next interim update is due, CLOCK_MONOTONIC milliseconds; 0 while there is none.
    pub interim_ms: u64,
    /// Set when it is over and waits for the epoch.
    pub end: Option<End>,
    /// Whether what it held is others' already, while its slot waits for the disk.
    pub given_back: bool,
}

/// A session's place among those of its user, who may have thousands: a list through the sessions, oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Admitted {
    older: Option<SlotIndex>,
    newer: Option<SlotIndex>,
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// The cause.
    pub cause: EndCause,
    /// Whether it was ever up.
    pub was_up: bool,
    /// Whether the engine keeps its id until it is told that the slot is free.
    pub release: bool,
}

impl Live {
    /// A session that has just begun.
    #[must_use]
    pub fn new(
        session: SessionRef,
        line: AccessLine,
        vlans: VlanStack,
        owner: u8,
        started_unix_ms: u64,
    ) -> Self {
        Self {
            session,
            generation: 0,
            owner,
            state: SessionState::Negotiating,
            line,
            vlans,
            user: Arc::default(),
            admitted: None,
            circuit_id: Vec::new(),
            remote_id: Vec::new(),
            holding: None,
            policy: None,
            said: None,
            quota_octets: 0,
            accounting_id: 0,
            refused: None,
            record: None,
            started_unix_ms,
            opened_unix_ms: 0,
            adopted: false,
            noted_ms: 0,
            interim_ms: 0,
            end: None,
            given_back: false,
        }
    }

    /// Its slot in shared memory.
    #[must_use]
    pub const fn slot(&self) -> SlotIndex {
        SlotIndex::new(self.session.port.0, self.session.session_id)
    }

    /// Its address, once granted.
    #[must_use]
    pub fn framed_ip(&self) -> Option<Ipv4Addr> {
        self.holding.map(|holding| holding.lease.address)
    }

    /// What is its own now.
    #[must_use]
    pub fn held(&self) -> Option<&Holding> {
        self.holding.as_ref().filter(|_| !self.given_back)
    }

    /// Whether an address is its own, or lies in one of its networks or prefixes.
    #[must_use]
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.holding.is_some_and(|holding| match address {
            IpAddr::V4(address) => {
                holding.lease.address == address
                    || (self.framed_routes().iter()).any(|it| networks::contains(it, address))
            }
            IpAddr::V6(address) => {
                let mut prefixes = holding.prefixes.iter().flat_map(|it| it.iter());
                prefixes.any(|prefix| prefix.contains(address))
            }
        })
    }
}

/// A session that is over.
#[derive(Debug, Clone)]
pub struct Ended {
    /// The session as it was.
    pub live: Box<Live>,
    /// How it ended.
    pub end: End,
    /// Unix time of the end, milliseconds.
    pub ended_unix_ms: u64,
    /// Final counters.
    pub stats: StatsCopy,
    /// Why its credentials were refused, if they were.
    pub refused: Option<Cow<'static, str>>,
    /// What was agreed on with the peer, if it was ever up.
    pub agreed: Option<AgreedView>,
}

impl Ended {
    /// A session that is over now; what was negotiated is kept in short.
    #[must_use]
    pub fn new(mut live: Box<Live>, end: End, ended_unix_ms: u64, stats: StatsCopy) -> Self {
        let record = live.record.take();
        Self {
            end,
            ended_unix_ms,
            stats,
            refused: live.refused.map(Cow::Borrowed),
            agreed: record.as_deref().map(AgreedView::from),
            live,
        }
    }
}

/// The sessions of a user.
#[derive(Debug)]
struct OfUser {
    oldest: SlotIndex,
    newest: SlotIndex,
    /// Those that are not over.
    going_on: u32,
}

/// All sessions by slot, and the history.
#[derive(Debug, Default)]
pub struct Sessions {
    live: BTreeMap<SlotIndex, Box<Live>>,
    by_user: HashMap<Arc<[u8]>, OfUser>,
    per_owner: BTreeMap<u8, u32>,
    history: History,
}

/// Ended sessions, with their number in the order they ended.
#[derive(Debug, Default)]
struct History {
    up: VecDeque<(u64, Ended)>,
    never_up: VecDeque<(u64, Ended)>,
    ended: u64,
}

impl Sessions {
    /// Adds a session; `false` when its slot is taken.
    pub fn insert(&mut self, live: Live) -> bool {
        if self.live.contains_key(&live.slot()) {
            return false;
        }
        *self.per_owner.entry(live.owner).or_default() += 1;
        self.live.insert(live.slot(), Box::new(live));
        true
    }

    /// The session the engine names, whatever its state.
    pub fn get_mut(&mut self, session: SessionRef) -> Option<&mut Live> {
        let slot = SlotIndex::new(session.port.0, session.session_id);
        let live = self.live.get_mut(&slot).map(Box::as_mut);
        live.filter(|live| live.session == session)
    }

    /// See [`Sessions::get_mut`].
    #[must_use]
    pub fn get(&self, session: SessionRef) -> Option<&Live> {
        let slot = SlotIndex::new(session.port.0, session.session_id);
        self.at(slot).filter(|live| live.session == session)
    }

    /// The session in a slot.
    #[must_use]
    pub fn at(&self, slot: SlotIndex) -> Option<&Live> {
        self.live.get(&slot).map(Box::as_ref)
    }

    /// See [`Sessions::at`].
    pub fn at_mut(&mut self, slot: SlotIndex) -> Option<&mut Live> {
        self.live.get_mut(&slot).map(Box::as_mut)
    }

    /// Takes a session out whose slot is free.
    pub fn remove(&mut self, slot: SlotIndex) -> Option<Box<Live>> {
        self.dismiss(slot);
        let live = self.live.remove(&slot)?;
        if let Some(count) = self.per_owner.get_mut(&live.owner) {
            *count -= 1;
        }
        Some(live)
    }

    /// Counts a session among those of the user it has authenticated as, as the newest; without effect when it is one already.
    pub fn admit(&mut self, session: SessionRef) {
        let slot = SlotIndex::new(session.port.0, session.session_id);
        let Some(live) = self.get_mut(session) else {
            return;
        };
        if live.admitted.is_some() {
            return;
        }
        let going_on = u32::from(live.end.is_none());
        let user = live.user.clone();
        let older = match self.by_user.get_mut(&user) {
            None => {
                let of_user = OfUser {
                    oldest: slot,
                    newest: slot,
                    going_on,
                };
                self.by_user.insert(user.clone(), of_user);
                None
            }
            Some(of_user) => {
                of_user.going_on += going_on;
                Some(std::mem::replace(&mut of_user.newest, slot))
            }
        };
        if let Some(neighbour) = older.and_then(|slot| self.admitted_mut(slot)) {
            neighbour.newer = Some(slot);
        }
        if let Some(live) = self.live.get_mut(&slot) {
            live.admitted = Some(Admitted { older, newer: None });
        }
    }

    /// Notes how a session ended; `false` when it is over already.
    pub fn end(&mut self, slot: SlotIndex, end: End) -> bool {
        let Some(live) = self.live.get_mut(&slot) else {
            return false;
        };
        live.state = SessionState::Closing;
        if live.end.replace(end).is_some() {
            return false;
        }
        if live.admitted.is_some()
            && let Some(of_user) = self.by_user.get_mut(&live.user)
        {
            of_user.going_on -= 1;
        }
        true
    }

    /// Takes a session out of the list of its user.
    fn dismiss(&mut self, slot: SlotIndex) {
        let Some(live) = self.live.get_mut(&slot) else {
            return;
        };
        let (user, going_on) = (live.user.clone(), u32::from(live.end.is_none()));
        let Some(Admitted { older, newer }) = live.admitted.take() else {
            return;
        };
        if let Some(neighbour) = older.and_then(|slot| self.admitted_mut(slot)) {
            neighbour.newer = newer;
        }
        if let Some(neighbour) = newer.and_then(|slot| self.admitted_mut(slot)) {
            neighbour.older = older;
        }
        match (older, newer, self.by_user.get_mut(&user)) {
            (_, _, None) => {}
            (None, None, Some(_)) => {
                self.by_user.remove(&user);
            }
            (_, _, Some(of_user)) => {
                of_user.going_on -= going_on;
                of_user.oldest =
                    if older.is_none() { newer } else { None }.unwrap_or(of_user.oldest);
                of_user.newest =
                    if newer.is_none() { older } else { None }.unwrap_or(of_user.newest);
            }
        }
    }

    fn admitted_mut(&mut self, slot: SlotIndex) -> Option<&mut Admitted> {
        self.live.get_mut(&slot)?.admitted.as_mut()
    }

    /// The sessions of a user that have authenticated, oldest first, those that are over and wait for the workers included.
    pub fn of_user(&self, user: &[u8]) -> impl Iterator<Item = &Live> {
        let oldest = self.by_user.get(user).map(|of_user| of_user.oldest);
        let oldest = oldest.and_then(|slot| self.at(slot));
        std::iter::successors(oldest, |live| self.at(live.admitted.as_ref()?.newer?))
    }

    /// The oldest session of a user that has authenticated and is not over.
    #[must_use]
    pub fn oldest_of(&self, user: &[u8]) -> Option<SessionRef> {
        let mut all = self.of_user(user);
        all.find(|live| live.end.is_none()).map(|live| live.session)
    }

    /// How many sessions of a user have authenticated and are not over.
    #[must_use]
    pub fn going_on_of(&self, user: &[u8]) -> u32 {
        self.by_user.get(user).map_or(0, |of_user| of_user.going_on)
    }

    /// Remembers an ended session, in place of the oldest of its kind if need be.
    pub fn remember(&mut self, ended: Ended) {
        let history = &mut self.history;
        history.ended += 1;
        let (list, most) = match ended.end.was_up {
            true => (&mut history.up, HISTORY),
            false => (&mut history.never_up, NEVER_UP),
        };
        if list.len() >= most {
            list.pop_front();
        }
        list.push_back((history.ended, ended));
    }

    /// All sessions, by access port and session id.
    pub fn iter(&self) -> impl Iterator<Item = &Live> {
        self.live.values().map(Box::as_ref)
    }

    /// Where the next part begins, behind one of `most` sessions from a slot on; `None` when that is the last one.
    #[must_use]
    pub fn slot_after(&self, slot: SlotIndex, most: usize) -> Option<SlotIndex> {
        self.live.range(slot..).nth(most).map(|(slot, _)| *slot)
    }

    /// Those from a slot on, see [`Sessions::iter`].
    pub fn from_mut(&mut self, slot: SlotIndex) -> impl Iterator<Item = &mut Live> {
        self.live.range_mut(slot..).map(|(_, live)| live.as_mut())
    }

    /// Ended sessions, latest first.
    pub fn history(&self) -> impl Iterator<Item = &Ended> {
        let mut up = self.history.up.iter().rev().peekable();
        let mut never_up = self.history.never_up.iter().rev().peekable();
        let latest = move || {
            let is_later = match (up.peek(), never_up.peek()) {
                (Some((one, _)), Some((other, _))) => one > other,
                (one, _) => one.is_some(),
            };
            let next = if is_later { up.next() } else { never_up.next() };
            next.map(|(_, ended)| ended)
        };
        std::iter::from_fn(latest)
    }

    /// How many sessions a worker owns.
    #[must_use]
    pub fn owned_by(&self, worker: u8) -> u32 {
        self.per_owner.get(&worker).copied().unwrap_or(0)
    }

    /// The worker with the fewest sessions among `workers`.
    pub fn least_loaded(&self, workers: impl Iterator<Item = u8>) -> Option<u8> {
        workers.min_by_key(|worker| self.owned_by(*worker))
    }

    /// How many sessions are negotiating, forwarding and closing.
    #[must_use]
    pub fn by_state(&self) -> [u64; 3] {
        let mut counts = [0; 3];
        for live in self.live.values() {
            match live.state {
                SessionState::Negotiating => counts[0] += 1,
                SessionState::Forwarding => counts[1] += 1,
                SessionState::Closing | SessionState::Free => counts[2] += 1,
            }
        }
        counts
    }
}

/// The state's name in REST and metrics.
#[must_use]
pub const fn state_name(state: SessionState) -> &'static str {
    match state {
        SessionState::Free => "free",
        SessionState::Negotiating => "negotiating",
        SessionState::Forwarding => "forwarding",
        SessionState::Closing => "closing",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use bng_pppoe::PortId;
    use bng_wire::MacAddr;

    pub(crate) fn live(port: u8, session_id: u16, owner: u8) -> Live {
        let session = SessionRef {
            port: PortId(port),
            session_id,
            generation: 1,
        };
        let line = AccessLine {
            port: PortId(port),
            s_vlan: 0,
            c_vlan: 0,
            mac: MacAddr([2, 0, 0, 0, 0, 9]),
        };
        Live {
            generation: 1,
            ..Live::new(session, line, VlanStack::UNTAGGED, owner, 0)
        }
    }

    #[test]
    fn an_idle_session_takes_little_memory() {
        // Beside it: the user's name and its entry among the users, the record, and what AAA has said of some.
        assert!(size_of::<Live>() <= 416, "{}", size_of::<Live>());
        assert!(
            size_of::<SessionRecord>() <= 384,
            "{}",
            size_of::<SessionRecord>()
        );
        assert!(size_of::<OfUser>() <= 12);
    }

    #[test]
    fn the_owner_is_the_worker_with_the_fewest_sessions() {
        let mut sessions = Sessions::default();
        for id in 1..=6 {
            let owner = sessions.least_loaded(0..3).unwrap();
            assert!(sessions.insert(live(0, id, owner)));
        }
        assert_eq!([0, 1, 2].map(|worker| sessions.owned_by(worker)), [2, 2, 2]);
        sessions.remove(SlotIndex::new(0, 2)).unwrap();
        assert_eq!(sessions.least_loaded(0..3), Some(1));
        assert_eq!(sessions.least_loaded([0, 2].into_iter()), Some(0));
    }

    #[test]
    fn a_slot_holds_one_session_and_an_old_reference_finds_nothing() {
        let mut sessions = Sessions::default();
        assert!(sessions.insert(live(0, 7, 0)));
        assert!(!sessions.insert(live(0, 7, 1)));
        let now = live(0, 7, 0).session;
        assert!(sessions.get(now).is_some());
        let old = SessionRef {
            generation: 0,
            ..now
        };
        assert!(sessions.get(old).is_none());
    }

    #[test]
    fn a_walk_in_parts_meets_every_session_once() {
        let mut sessions = Sessions::default();
        for id in 1..=7 {
            assert!(sessions.insert(live((id % 2) as u8, id, 0)));
        }
        let (mut from, mut met) = (Some(SlotIndex(0)), Vec::new());
        while let Some(slot) = from {
            from = sessions.slot_after(slot, 3);
            let part: Vec<_> = sessions
                .from_mut(slot)
                .take(3)
                .map(|it| it.slot())
                .collect();
            assert!((1..=3).contains(&part.len()));
            met.extend(part);
        }
        assert_eq!(met, sessions.iter().map(Live::slot).collect::<Vec<_>>());
    }

    #[test]
    fn history_is_bounded_and_latest_first() {
        let mut sessions = Sessions::default();
        for n in 0..HISTORY as u64 + 5 {
            let end = End {
                cause: EndCause::Engine(bng_pppoe::TerminateCause::Operator),
                was_up: true,
                release: true,
            };
            let live = Box::new(live(0, 1, 0));
            sessions.remember(Ended::new(live, end, n, StatsCopy::default()));
        }
        assert_eq!(sessions.history().count(), HISTORY);
        assert_eq!(
            sessions.history().next().unwrap().ended_unix_ms,
            HISTORY as u64 + 4
        );
    }

    #[test]
    fn failed_logins_push_no_session_out_that_was_up() {
        let mut sessions = Sessions::default();
        let mut end = |n: u64, was_up| {
            let end = End {
                cause: EndCause::Engine(bng_pppoe::TerminateCause::WrongCredentials),
                was_up,
                release: true,
            };
            let live = Box::new(live(0, 1, 0));
            sessions.remember(Ended::new(live, end, n, StatsCopy::default()));
        };
        end(0, true);
        (1..=NEVER_UP as u64 + 50).for_each(|n| end(n, false));
        end(9_999, true);
        let history: Vec<_> = sessions.history().map(|it| it.ended_unix_ms).collect();
        assert_eq!(history.len(), NEVER_UP + 2);
        assert_eq!(history[..2], [9_999, NEVER_UP as u64 + 50]);
        assert_eq!(history.last(), Some(&0));
        assert!(history.is_sorted_by(|a, b| a > b));
    }

    #[test]
    fn sessions_of_a_user_are_listed_oldest_first_and_counted_until_they_are_over() {
        let mut sessions = Sessions::default();
        for id in 1..=4 {
            let user = if id == 3 { &b"bob"[..] } else { b"alice" };
            let live = Live {
                user: user.into(),
                ..live(0, id, 0)
            };
            let session = live.session;
            assert!(sessions.insert(live));
            sessions.admit(session);
            sessions.admit(session);
        }
        let ids = |sessions: &Sessions, user: &[u8]| -> Vec<u16> {
            let list = sessions.of_user(user);
            list.map(|live| live.session.session_id).collect()
        };
        assert_eq!(ids(&sessions, b"alice"), [1, 2, 4]);
        assert_eq!(sessions.going_on_of(b"alice"), 3);
        let end = End {
            cause: EndCause::NotAdopted,
            was_up: true,
            release: true,
        };
        assert!(sessions.end(SlotIndex::new(0, 2), end));
        assert!(!sessions.end(SlotIndex::new(0, 2), end), "it was over");
        assert_eq!(sessions.going_on_of(b"alice"), 2);
        assert_eq!(
            ids(&sessions, b"alice"),
            [1, 2, 4],
            "until its slot is free"
        );
        for (gone, left) in [(2, vec![1, 4]), (1, vec![4]), (4, vec![])] {
            sessions.remove(SlotIndex::new(0, gone)).unwrap();
            assert_eq!(ids(&sessions, b"alice"), left);
            assert_eq!(sessions.going_on_of(b"alice") as usize, left.len());
        }
        assert_eq!(ids(&sessions, b"bob"), [3]);
        assert_eq!(sessions.by_user.len(), 1);
    }
}
