//! The sessions as the driver knows them, and a bounded memory of those that ended.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

use bng_pppoe::{AccessLine, SessionRecord, SessionRef};
use bng_shm::{SessionState, SlotIndex, StatsCopy};
use bng_wire::VlanStack;

use crate::grants::Holding;
use crate::policies::Assigned;

/// Ended sessions that are remembered.
const HISTORY: usize = 10_000;

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
    /// Name of the last authentication attempt; empty before.
    pub user: Vec<u8>,
    /// TR-101 Agent-Circuit-Id; empty when unknown.
    pub circuit_id: Vec<u8>,
    /// TR-101 Agent-Remote-Id; empty when unknown.
    pub remote_id: Vec<u8>,
    /// What it was given; kept over a renegotiation.
    pub holding: Option<Holding>,
    /// What it may do; `None` before authentication.
    pub policy: Option<Assigned>,
    /// What was negotiated; from the latest `SessionUp`.
    pub record: Option<Box<SessionRecord>>,
    /// Unix time of its start, milliseconds.
    pub started_unix_ms: u64,
    /// Unix time of the latest `SessionUp`, milliseconds; 0 before.
    pub opened_unix_ms: u64,
    /// Whether an earlier run of the control plane set it up.
    pub adopted: bool,
    /// Time of the last upstream frame that the engine was told of, CLOCK_MONOTONIC milliseconds.
    pub noted_ms: u64,
    /// Set when it is over and waits for the epoch.
    pub end: Option<End>,
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// The cause, as in metrics.
    pub cause: &'static str,
    /// Whether it was ever up.
    pub was_up: bool,
    /// Whether the engine keeps its id until it is told that the slot is free.
    pub release: bool,
}

impl Live {
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

    /// Whether an address is its own, or lies in one of its prefixes.
    #[must_use]
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.holding.is_some_and(|holding| match address {
            IpAddr::V4(address) => holding.lease.address == address,
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
    pub live: Live,
    /// How it ended.
    pub end: End,
    /// Unix time of the end, milliseconds.
    pub ended_unix_ms: u64,
    /// Final counters.
    pub stats: StatsCopy,
}

/// All sessions by slot, and the history.
#[derive(Debug, Default)]
pub struct Sessions {
    live: BTreeMap<SlotIndex, Live>,
    per_owner: BTreeMap<u8, u32>,
    history: VecDeque<Ended>,
}

impl Sessions {
    /// Adds a session; `false` when its slot is taken.
    pub fn insert(&mut self, live: Live) -> bool {
        if self.live.contains_key(&live.slot()) {
            return false;
        }
        *self.per_owner.entry(live.owner).or_default() += 1;
        self.live.insert(live.slot(), live);
        true
    }

    /// The session the engine names, whatever its state.
    pub fn get_mut(&mut self, session: SessionRef) -> Option<&mut Live> {
        let slot = SlotIndex::new(session.port.0, session.session_id);
        (self.live.get_mut(&slot)).filter(|live| live.session == session)
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
        self.live.get(&slot)
    }

    /// Takes a session out whose slot is free.
    pub fn remove(&mut self, slot: SlotIndex) -> Option<Live> {
        let live = self.live.remove(&slot)?;
        if let Some(count) = self.per_owner.get_mut(&live.owner) {
            *count -= 1;
        }
        Some(live)
    }

    /// Remembers an ended session, in place of the oldest if need be.
    pub fn remember(&mut self, ended: Ended) {
        if self.history.len() >= HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(ended);
    }

    /// All sessions, by access port and session id.
    pub fn iter(&self) -> impl Iterator<Item = &Live> {
        self.live.values()
    }

    /// See [`Sessions::iter`].
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Live> {
        self.live.values_mut()
    }

    /// Ended sessions, latest first.
    pub fn history(&self) -> impl ExactSizeIterator<Item = &Ended> {
        self.history.iter().rev()
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
        Live {
            session: SessionRef {
                port: PortId(port),
                session_id,
                generation: 1,
            },
            generation: 1,
            owner,
            state: SessionState::Negotiating,
            line: AccessLine {
                port: PortId(port),
                s_vlan: 0,
                c_vlan: 0,
                mac: MacAddr([2, 0, 0, 0, 0, 9]),
            },
            vlans: VlanStack::UNTAGGED,
            user: Vec::new(),
            circuit_id: Vec::new(),
            remote_id: Vec::new(),
            holding: None,
            policy: None,
            record: None,
            started_unix_ms: 0,
            opened_unix_ms: 0,
            adopted: false,
            noted_ms: 0,
            end: None,
        }
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
    fn history_is_bounded_and_latest_first() {
        let mut sessions = Sessions::default();
        for n in 0..HISTORY as u64 + 5 {
            sessions.remember(Ended {
                live: live(0, 1, 0),
                end: End {
                    cause: "operator",
                    was_up: true,
                    release: true,
                },
                ended_unix_ms: n,
                stats: StatsCopy::default(),
            });
        }
        assert_eq!(sessions.history().len(), HISTORY);
        assert_eq!(
            sessions.history().next().unwrap().ended_unix_ms,
            HISTORY as u64 + 4
        );
    }
}
