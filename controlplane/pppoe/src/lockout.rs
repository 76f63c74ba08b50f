//! Clients that keep failing are kept out for a while, the longer the more often they fail, so that a CPE with a wrong password
//! that dials without a pause costs neither session ids nor questions to AAA.
//!
//! Counted are sessions that ended before their network was up for a cause that is the client's, per access line and per
//! Agent-Circuit-Id. A session that comes up wipes the slate. Failures of one MAC address in a row are one of its circuit, so that
//! a single CPE with a wrong password keeps out itself and not those it shares a circuit with.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::hash::Hasher;

use bng_wire::MacAddr;
use siphasher::sip::SipHasher24;

use crate::config::Lockout;
use crate::counters::TerminateCause;
use crate::events::AccessLine;
use crate::{PortId, Time};

/// Places of the table. A key lives in one set of [`WAYS`]; a new one takes the place whose last failure is longest ago.
const PLACES: usize = 8_192;
const WAYS: usize = 4;

/// Who is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockoutKey {
    /// One MAC address on one access port and VLAN pair.
    Line(AccessLine),
    /// All clients with one Agent-Circuit-Id on one access port.
    Circuit(PortId, Box<[u8]>),
}

/// A client that gets no PADO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockedOut {
    /// Who.
    pub client: LockoutKey,
    /// Failures in a row.
    pub failures: u8,
    /// Until when.
    pub until: Time,
}

#[derive(Clone, Debug)]
struct Entry {
    client: LockoutKey,
    /// Who failed last.
    mac: MacAddr,
    failures: u8,
    last: Time,
    until: Time,
}

/// The failures of clients.
#[derive(Debug)]
pub(crate) struct Failures {
    // Made at the first failure.
    sets: Vec<[Option<Entry>; WAYS]>,
    key: [u8; 16],
}

impl LockoutKey {
    /// Who a session or request counts for: its line and, where the access node told one, its circuit.
    fn all(line: AccessLine, circuit_id: &[u8]) -> impl Iterator<Item = Self> {
        let circuit = (!circuit_id.is_empty()).then(|| Self::Circuit(line.port, circuit_id.into()));
        [Some(Self::Line(line)), circuit].into_iter().flatten()
    }

    fn hash(&self, key: &[u8; 16]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(key);
        match self {
            Self::Line(line) => {
                hasher.write(&[0, line.port.0]);
                hasher.write(&line.s_vlan.to_be_bytes());
                hasher.write(&line.c_vlan.to_be_bytes());
                hasher.write(&line.mac.0);
            }
            Self::Circuit(port, id) => {
                hasher.write(&[1, port.0]);
                hasher.write(id);
            }
        }
        hasher.finish()
    }
}

/// Whether a session that ended so before its network was up is a failure of its client. What lies with us, with AAA or with the
/// operator is none; neither is a set-up time that ran out, as AAA may have used it up, nor a refusal
/// of a peer with the right credentials: an address in use, terms that cannot be met, a session of its own that is dead.
const fn is_failure(cause: TerminateCause) -> bool {
    use TerminateCause as T;
    matches!(
        cause,
        T::WrongCredentials
            | T::AuthRefused
            | T::AuthTimeout
            | T::LcpTimeout
            | T::LoopedBack
            | T::ProtocolError
            | T::PeerTerminated
            | T::PeerPadt
            | T::IpcpTimeout
            | T::IpcpFailed
            | T::IpcpRefused
            | T::IpcpClosed
            | T::Ipv6cpTimeout
            | T::Ipv6cpFailed
            | T::Ipv6cpRefused
            | T::Ipv6cpClosed
    )
}

impl Failures {
    pub(crate) const fn new(key: [u8; 16]) -> Self {
        Self {
            sets: Vec::new(),
            key,
        }
    }

    fn set(&mut self, client: &LockoutKey) -> Option<&mut [Option<Entry>; WAYS]> {
        let at = client.hash(&self.key) as usize % self.sets.len().max(1);
        self.sets.get_mut(at)
    }

    fn find(&self, client: &LockoutKey) -> Option<&Entry> {
        let at = client.hash(&self.key) as usize % self.sets.len().max(1);
        let places = self.sets.get(at)?.iter().flatten();
        places.into_iter().find(|entry| entry.client == *client)
    }

    /// A session ended before its network was up.
    pub(crate) fn ended(
        &mut self,
        now: Time,
        rules: Lockout,
        line: AccessLine,
        circuit_id: &[u8],
        cause: TerminateCause,
    ) {
        if rules.failures == 0 || !is_failure(cause) {
            return;
        }
        if self.sets.is_empty() {
            self.sets = vec![[const { None }; WAYS]; PLACES / WAYS];
        }
        for client in LockoutKey::all(line, circuit_id) {
            self.fail(now, rules, client, line.mac);
        }
    }

    fn fail(&mut self, now: Time, rules: Lockout, client: LockoutKey, mac: MacAddr) {
        // The client's own place, else one that is free, else the one whose last failure is longest ago.
        let order = |place: &&mut Option<Entry>| {
            let entry = place.as_ref();
            let is_own = entry.is_some_and(|entry| entry.client == client);
            (!is_own, entry.map(|entry| entry.last))
        };
        let set = self.set(&client).map(|set| set.iter_mut());
        let Some(place) = set.and_then(|places| places.min_by_key(order)) else {
            return;
        };
        let before = place
            .take()
            .filter(|entry| entry.client == client && !entry.is_forgotten(now, rules));
        if let Some(entry) = &before
            && matches!(client, LockoutKey::Circuit(..))
            && entry.mac == mac
        {
            *place = before.map(|entry| Entry { last: now, ..entry });
            return;
        }
        let before = before.map_or(0, |entry| entry.failures);
        let failures = before.saturating_add(1);
        let until = match failures.checked_sub(rules.failures) {
            None => now,
            Some(doublings) => {
                let factor = 1u32.checked_shl(doublings.into()).unwrap_or(u32::MAX);
                now + rules.first.saturating_mul(factor).min(rules.longest)
            }
        };
        *place = Some(Entry {
            client,
            mac,
            failures,
            last: now,
            until,
        });
    }

    /// A session came up.
    pub(crate) fn came_up(&mut self, line: AccessLine, circuit_id: &[u8]) {
        if self.sets.is_empty() {
            return;
        }
        for client in LockoutKey::all(line, circuit_id) {
            self.forget(&client);
        }
    }

    /// Forgets a client's failures; `false` when there were none.
    pub(crate) fn forget(&mut self, client: &LockoutKey) -> bool {
        let place = self.set(client).and_then(|set| {
            set.iter_mut()
                .find(|place| place.as_ref().is_some_and(|entry| entry.client == *client))
        });
        place.is_some_and(|place| place.take().is_some())
    }

    pub(crate) fn clear(&mut self) {
        self.sets = Vec::new();
    }

    /// Whether a request from here is to be dropped.
    pub(crate) fn is_locked(&self, now: Time, line: AccessLine, circuit_id: &[u8]) -> bool {
        !self.sets.is_empty()
            && LockoutKey::all(line, circuit_id)
                .any(|client| self.find(&client).is_some_and(|entry| entry.until > now))
    }

    pub(crate) fn locked_out(&self, now: Time) -> impl Iterator<Item = LockedOut> {
        self.sets
            .iter()
            .flatten()
            .flatten()
            .filter(move |entry| entry.until > now)
            .map(|entry| LockedOut {
                client: entry.client.clone(),
                failures: entry.failures,
                until: entry.until,
            })
    }
}

impl Entry {
    /// Whether a client has been without a failure, and free to dial, for so long that it starts anew.
    fn is_forgotten(&self, now: Time, rules: Lockout) -> bool {
        now.since(self.until.max(self.last)) > rules.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    const RULES: Lockout = Lockout {
        failures: 1,
        first: Duration::from_secs(1),
        longest: Duration::from_secs(60),
    };

    fn line(number: u32) -> AccessLine {
        let [a, b, c, d] = number.to_be_bytes();
        AccessLine {
            port: PortId(0),
            s_vlan: 0,
            c_vlan: 0,
            mac: MacAddr([2, 0, a, b, c, d]),
        }
    }

    #[test]
    fn memory_is_bounded_and_the_longest_ago_is_forgotten() {
        let mut failures = Failures::new([1; 16]);
        let at = |number: u32| Time::from_millis(u64::from(number));
        for number in 0..50_000 {
            let cause = TerminateCause::WrongCredentials;
            failures.ended(at(number), RULES, line(number), b"", cause);
        }
        let now = at(50_000);
        let locked = failures.locked_out(Time::ZERO).count();
        assert_eq!(locked, PLACES, "every place taken, none beyond");
        assert!(failures.is_locked(now, line(49_999), b""));
        assert!(!failures.is_locked(Time::ZERO, line(0), b""));
    }

    #[test]
    fn causes_of_the_client_are_failures() {
        use TerminateCause as T;
        for cause in [
            T::WrongCredentials,
            T::AuthRefused,
            T::AuthTimeout,
            T::LcpTimeout,
            T::LoopedBack,
            T::ProtocolError,
            T::PeerTerminated,
            T::PeerPadt,
            T::IpcpTimeout,
            T::IpcpFailed,
            T::IpcpRefused,
            T::IpcpClosed,
            T::Ipv6cpTimeout,
            T::Ipv6cpFailed,
            T::Ipv6cpRefused,
            T::Ipv6cpClosed,
        ] {
            let mut failures = Failures::new([1; 16]);
            failures.ended(Time::ZERO, RULES, line(1), b"circuit", cause);
            assert_eq!(failures.locked_out(Time::ZERO).count(), 2, "{cause:?}");
        }
    }

    #[test]
    fn a_session_that_comes_up_wipes_the_slate_of_its_line_and_of_its_circuit() {
        let mut failures = Failures::new([1; 16]);
        for number in [1, 2] {
            let cause = TerminateCause::WrongCredentials;
            failures.ended(Time::ZERO, RULES, line(number), b"circuit", cause);
        }
        assert!(failures.is_locked(Time::ZERO, line(3), b"circuit"));
        failures.came_up(line(1), b"circuit");
        assert!(!failures.is_locked(Time::ZERO, line(1), b"circuit"));
        assert!(!failures.is_locked(Time::ZERO, line(3), b"circuit"));
        assert!(
            failures.is_locked(Time::ZERO, line(2), b"circuit"),
            "a line of its own"
        );
    }

    #[test]
    fn causes_of_ours_are_no_failures() {
        for cause in [
            TerminateCause::PoolEmpty,
            TerminateCause::AaaUnavailable,
            TerminateCause::AaaRefused,
            TerminateCause::Displaced,
            TerminateCause::PortDown,
            TerminateCause::Operator,
            TerminateCause::Shutdown,
            TerminateCause::SetupTimeout,
        ] {
            let mut failures = Failures::new([1; 16]);
            failures.ended(Time::ZERO, RULES, line(1), b"circuit", cause);
            assert_eq!(failures.locked_out(Time::ZERO).count(), 0, "{cause:?}");
        }
    }
}
