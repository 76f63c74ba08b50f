//! All sessions, and what is looked up or counted across them.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::PortId;
use crate::Time;
use crate::events::AccessLine;
use crate::session::{Phase, Session};
use crate::timers::Schedule;

/// The sessions of one port.
#[derive(Debug, Default)]
struct OnPort {
    sessions: u32,
    half_open: u32,
    /// Half-open sessions whose peer has sent nothing since its PADR, the oldest first.
    silent: BTreeSet<(Time, u32)>,
}

/// Sessions by slot, with their indices.
#[derive(Debug, Default)]
pub(crate) struct SessionTable {
    slots: Vec<Option<Box<Session>>>,
    free: Vec<u32>,
    lines: BTreeSet<(AccessLine, u32)>,
    circuits: BTreeMap<(PortId, Box<[u8]>), u32>,
    ports: BTreeMap<PortId, OnPort>,
    half_open: u32,
    schedule: Schedule,
}

impl SessionTable {
    /// The slot the next [`Self::insert`] takes.
    pub(crate) fn next_slot(&self) -> u32 {
        // The number of slots is bounded by ports times session ids, far below u32.
        self.free.last().copied().unwrap_or(self.slots.len() as u32)
    }

    pub(crate) fn insert(&mut self, session: Session) -> u32 {
        let slot = self.next_slot();
        self.lines.insert((session.line, slot));
        self.ports.entry(session.line.port).or_default().sessions += 1;
        if !session.subscriber.circuit_id.is_empty() {
            let key = (session.line.port, session.subscriber.circuit_id.clone());
            *self.circuits.entry(key).or_default() += 1;
        }
        self.free.pop();
        match self.slots.get_mut(slot as usize) {
            Some(place) => *place = Some(Box::new(session)),
            None => self.slots.push(Some(Box::new(session))),
        }
        slot
    }

    /// Slots there are, free ones included.
    pub(crate) fn slots(&self) -> u32 {
        // Bounded as `next_slot` says.
        self.slots.len() as u32
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&Session> {
        self.slots.get(slot as usize)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut Session> {
        self.slots.get_mut(slot as usize)?.as_deref_mut()
    }

    /// Brings the indices up to date after a session changed; returns it when it is dead, taken out.
    pub(crate) fn settle(&mut self, slot: u32) -> Option<Box<Session>> {
        let place = self.slots.get_mut(slot as usize)?;
        let session = place.as_deref_mut()?;
        let half_open = session.is_half_open();
        let on_port = self.ports.entry(session.line.port).or_default();
        match (session.counted_half_open, half_open) {
            (false, true) => {
                self.half_open += 1;
                on_port.half_open += 1;
            }
            (true, false) => {
                self.half_open -= 1;
                on_port.half_open -= 1;
            }
            _ => {}
        }
        session.counted_half_open = half_open;
        let silent = session.silent_since();
        if silent != session.counted_silent {
            if let Some(since) = session.counted_silent {
                on_port.silent.remove(&(since, slot));
            }
            if let Some(since) = silent {
                on_port.silent.insert((since, slot));
            }
            session.counted_silent = silent;
        }
        let next = session.lower.timers.next();
        self.schedule.set(slot, &mut session.scheduled, next);
        if session.phase() != Phase::Dead {
            return None;
        }
        on_port.sessions -= 1;
        let session = place.take()?;
        self.free.push(slot);
        self.lines.remove(&(session.line, slot));
        if !session.subscriber.circuit_id.is_empty() {
            let key = (session.line.port, session.subscriber.circuit_id.clone());
            if let Some(count) = self.circuits.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.circuits.remove(&key);
                }
            }
        }
        Some(session)
    }

    /// Slots of a client's sessions.
    pub(crate) fn slots_of(&self, line: AccessLine) -> impl Iterator<Item = u32> {
        let own = self.lines.range((line, 0)..=(line, u32::MAX));
        own.map(|(_, slot)| *slot)
    }

    /// Sessions of a client.
    pub(crate) fn of_line(&self, line: AccessLine) -> impl Iterator<Item = &Session> {
        self.slots_of(line).filter_map(|slot| self.get(slot))
    }

    /// Number of sessions of a client.
    pub(crate) fn count_line(&self, line: AccessLine) -> usize {
        self.slots_of(line).count()
    }

    /// Number of sessions with this Agent-Circuit-Id on this port.
    pub(crate) fn count_circuit(&self, port: PortId, circuit_id: &[u8]) -> u32 {
        if circuit_id.is_empty() {
            return 0;
        }
        let key = (port, circuit_id.into());
        self.circuits.get(&key).copied().unwrap_or(0)
    }

    /// Number of sessions of a port.
    pub(crate) fn count_port(&self, port: PortId) -> u32 {
        self.ports.get(&port).map_or(0, |it| it.sessions)
    }

    /// Number of half-open sessions.
    pub(crate) const fn half_open(&self) -> u32 {
        self.half_open
    }

    /// Number of half-open sessions of a port.
    pub(crate) fn half_open_of(&self, port: PortId) -> u32 {
        self.ports.get(&port).map_or(0, |it| it.half_open)
    }

    /// The half-open session of a port whose peer has been silent longest, and since when.
    pub(crate) fn silent(&self, port: PortId) -> Option<(Time, u32)> {
        self.ports.get(&port)?.silent.first().copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.slots.iter().filter_map(Option::as_deref)
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.schedule.next()
    }

    pub(crate) fn due(&self, now: Time) -> Option<u32> {
        self.schedule.due(now)
    }
}
