//! PADOs that wait, so that an access concentrator with a shorter delay is chosen as long as it answers.

use alloc::collections::{BTreeMap, BTreeSet};

use crate::events::{AccessLine, Transmit};
use crate::{PortId, Time};

/// PADOs that may wait at a time. When one more comes, the one due next is sent early: memory is bounded and no client
/// is left without an answer.
const MOST: usize = 4_096;

/// The waiting PADOs, one per client.
#[derive(Debug, Default)]
pub(crate) struct DelayedPados {
    waiting: BTreeMap<AccessLine, (Time, Transmit)>,
    order: BTreeSet<(Time, AccessLine)>,
}

impl DelayedPados {
    /// Holds a client's PADO back until `due`; in place of one that waits already, which keeps its time, so that a client
    /// that repeats its PADI does not wait for ever. Returns one that is to be sent now for want of room.
    pub(crate) fn hold(&mut self, line: AccessLine, due: Time, pado: Transmit) -> Option<Transmit> {
        if let Some((_, held)) = self.waiting.get_mut(&line) {
            *held = pado;
            return None;
        }
        let early = if self.waiting.len() >= MOST {
            self.pop()
        } else {
            None
        };
        self.waiting.insert(line, (due, pado));
        self.order.insert((due, line));
        early
    }

    pub(crate) fn next(&self) -> Option<Time> {
        self.order.first().map(|(due, _)| *due)
    }

    /// The next PADO that is due.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<Transmit> {
        self.next().filter(|due| *due <= now)?;
        self.pop()
    }

    fn pop(&mut self) -> Option<Transmit> {
        let (_, line) = self.order.pop_first()?;
        self.waiting.remove(&line).map(|(_, pado)| pado)
    }

    /// Forgets what waits for a port.
    pub(crate) fn clear_port(&mut self, port: PortId) {
        self.waiting.retain(|line, _| line.port != port);
        self.order.retain(|(_, line)| line.port != port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use bng_wire::MacAddr;

    #[test]
    fn as_many_as_there_is_room_for_wait_and_the_one_due_next_leaves_early() {
        let mut pados = DelayedPados::default();
        let line = |number: u32| {
            let [a, b, c, d] = number.to_be_bytes();
            AccessLine {
                port: PortId(0),
                s_vlan: 0,
                c_vlan: 0,
                mac: MacAddr([2, 0, a, b, c, d]),
            }
        };
        let pado = |number: u32| Transmit {
            port: PortId(0),
            session: None,
            frame: vec![number as u8],
        };
        for number in 0..MOST as u32 {
            let due = Time::from_millis(u64::from(number) + 500);
            assert_eq!(pados.hold(line(number), due, pado(number)), None);
        }
        let late = Time::from_millis(9_999);
        assert_eq!(pados.hold(line(7), late, pado(200)), None, "a known client");
        assert_eq!(pados.hold(line(50_000), late, pado(1)), Some(pado(0)));
        assert_eq!(pados.waiting.len(), MOST);
        assert_eq!(pados.order.len(), MOST);
        assert_eq!(pados.next(), Some(Time::from_millis(501)));
        assert_eq!(pados.take_due(Time::from_millis(500)), None);
        assert_eq!(pados.take_due(Time::from_millis(501)), Some(pado(1)));
        pados.clear_port(PortId(0));
        assert_eq!(pados.next(), None);
    }
}
