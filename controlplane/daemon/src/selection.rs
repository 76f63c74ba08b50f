//! Which sessions are meant: of those that are there, and of those that have ended.

use std::net::IpAddr;

use bng_shm::SessionState;
use bng_wire::MacAddr;

use crate::causes::EndCause;
use crate::driver::Driver;
use crate::policy_view::PolicyView;
use crate::publish::table_vlans;
use crate::sessions::{Ended, Live};

/// Where a subscriber is and who it is; what is `None` does not matter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subscriber {
    /// Its name, whole.
    pub user: Option<String>,
    /// Its address, or one in its IPv6 prefixes.
    pub ip: Option<IpAddr>,
    /// Its MAC address.
    pub mac: Option<MacAddr>,
    /// Index among the access ports.
    pub access_port: Option<u8>,
    /// TR-101 Agent-Circuit-Id, whole.
    pub circuit_id: Option<String>,
    /// TR-101 Agent-Remote-Id, whole.
    pub remote_id: Option<String>,
    /// S-VLAN id of its frames, 0 for none.
    pub s_vlan: Option<u16>,
    /// C-VLAN id of its frames, 0 for none.
    pub c_vlan: Option<u16>,
    /// PPPoE session id.
    pub session_id: Option<u16>,
}

impl Subscriber {
    /// Whether it is told by what a client is only known by later: a name, an address, or ids of the line.
    pub(crate) const fn names_somebody(&self) -> bool {
        let Self {
            user,
            ip,
            circuit_id,
            remote_id,
            ..
        } = self;
        user.is_some() || ip.is_some() || circuit_id.is_some() || remote_id.is_some()
    }

    /// `ids` are the line's circuit id and remote id.
    pub(crate) fn fits(&self, live: &Live, ids: (&[u8], &[u8])) -> bool {
        let same = |wanted: &Option<String>, bytes: &[u8]| {
            (wanted.as_ref()).is_none_or(|wanted| wanted.as_bytes() == bytes)
        };
        let vlans = table_vlans(&live.vlans);
        same(&self.user, &live.user)
            && self.ip.is_none_or(|ip| live.has_address(ip))
            && self.mac.is_none_or(|mac| live.line.mac == mac)
            && (self.access_port).is_none_or(|port| live.session.port.0 == port)
            && same(&self.circuit_id, ids.0)
            && same(&self.remote_id, ids.1)
            && (self.s_vlan).is_none_or(|vlan| vlans.s_vlan.unwrap_or(0) == vlan)
            && (self.c_vlan).is_none_or(|vlan| vlans.c_vlan.unwrap_or(0) == vlan)
            && (self.session_id).is_none_or(|id| live.session.session_id == id)
    }
}

/// Which sessions are asked for. Everything given must be met.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionFilter {
    /// Whose.
    pub subscriber: Subscriber,
    /// State of the entry.
    pub state: Option<SessionState>,
    /// Name of the address pool.
    pub pool: Option<String>,
    /// Name of the policy.
    pub policy: Option<String>,
}

impl SessionFilter {
    pub(crate) fn fits(&self, driver: &Driver, live: &Live) -> bool {
        let pool = |wanted: &String| {
            let lease = live.holding.map(|holding| holding.lease);
            let pool = lease.and_then(|lease| driver.settings.pools.get(lease.pool));
            pool.is_some_and(|pool| pool.name == *wanted)
        };
        let policy = |wanted: &String| {
            let policy = PolicyView::of(&driver.settings, live);
            policy.is_some_and(|policy| policy.name.as_ref() == Some(wanted))
        };
        self.subscriber.fits(live, line_ids(driver, live))
            && self.state.is_none_or(|state| live.state == state)
            && self.pool.as_ref().is_none_or(pool)
            && self.policy.as_ref().is_none_or(policy)
    }
}

/// Which ended sessions are asked for. Everything given must be met.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryFilter {
    /// Whose.
    pub subscriber: Subscriber,
    /// Why they ended.
    pub cause: Option<EndCause>,
    /// Whether they were ever up.
    pub was_up: Option<bool>,
    /// Only those that ended at or after this Unix time, milliseconds.
    pub since_unix_ms: Option<u64>,
    /// Only those that started before this Unix time, milliseconds.
    pub until_unix_ms: Option<u64>,
}

impl HistoryFilter {
    pub(crate) fn fits(&self, ended: &Ended) -> bool {
        let live = &ended.live;
        let ids = (live.circuit_id.as_slice(), live.remote_id.as_slice());
        self.subscriber.fits(live, ids)
            && (self.cause).is_none_or(|cause| cause == ended.end.cause)
            && (self.was_up).is_none_or(|was_up| ended.end.was_up == was_up)
            && (self.since_unix_ms).is_none_or(|since| ended.ended_unix_ms >= since)
            && (self.until_unix_ms).is_none_or(|until| live.started_unix_ms < until)
    }
}

/// Circuit id and remote id of a session: as AAA was told, before that as the client's PADR said.
pub(crate) fn line_ids<'a>(driver: &'a Driver, live: &'a Live) -> (&'a [u8], &'a [u8]) {
    let known = (live.circuit_id.as_slice(), live.remote_id.as_slice());
    match (known, driver.engine.session(live.session)) {
        (([], []), Some(info)) => (info.circuit_id, info.remote_id),
        (known, _) => known,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::End;
    use crate::sessions::tests::live;
    use bng_pppoe::TerminateCause;
    use bng_wire::{VlanStack, VlanTag};

    fn one() -> Live {
        let tag = |tci| VlanTag { tpid: 0x8100, tci };
        Live {
            user: b"alice".as_slice().into(),
            circuit_id: b"olt1/1".to_vec(),
            remote_id: b"r9".to_vec(),
            vlans: VlanStack::double(tag(100), tag(7)),
            started_unix_ms: 1_000,
            ..live(1, 4660, 0)
        }
    }

    fn fits(subscriber: &Subscriber) -> bool {
        let live = one();
        subscriber.fits(&live, (&live.circuit_id, &live.remote_id))
    }

    #[test]
    fn every_part_of_a_selection_must_be_met() {
        let all = Subscriber {
            user: Some("alice".to_owned()),
            ip: None,
            mac: Some(MacAddr([2, 0, 0, 0, 0, 9])),
            access_port: Some(1),
            circuit_id: Some("olt1/1".to_owned()),
            remote_id: Some("r9".to_owned()),
            s_vlan: Some(100),
            c_vlan: Some(7),
            session_id: Some(4660),
        };
        assert!(fits(&all));
        assert!(fits(&Subscriber::default()));
        let other = Some("alic".to_owned());
        for differs in [
            Subscriber {
                user: other.clone(),
                ..all.clone()
            },
            Subscriber {
                ip: Some([100, 64, 0, 2].into()),
                ..all.clone()
            },
            Subscriber {
                mac: Some(MacAddr([2, 0, 0, 0, 0, 8])),
                ..all.clone()
            },
            Subscriber {
                access_port: Some(0),
                ..all.clone()
            },
            Subscriber {
                circuit_id: other.clone(),
                ..all.clone()
            },
            Subscriber {
                remote_id: other,
                ..all.clone()
            },
            Subscriber {
                s_vlan: Some(0),
                ..all.clone()
            },
            Subscriber {
                c_vlan: Some(0),
                ..all.clone()
            },
            Subscriber {
                session_id: Some(4661),
                ..all.clone()
            },
        ] {
            assert!(!fits(&differs), "{differs:?}");
        }
    }

    #[test]
    fn the_history_is_searched_by_cause_and_by_the_time_a_session_was_there() {
        let end = End {
            cause: EndCause::Engine(TerminateCause::Operator),
            was_up: true,
            release: true,
        };
        let stats = bng_shm::StatsCopy::default();
        let ended = Ended::new(Box::new(one()), end, 2_000, stats);
        let all = HistoryFilter {
            cause: Some(EndCause::Engine(TerminateCause::Operator)),
            was_up: Some(true),
            since_unix_ms: Some(2_000),
            until_unix_ms: Some(1_001),
            ..HistoryFilter::default()
        };
        assert!(all.fits(&ended));
        for differs in [
            HistoryFilter {
                cause: Some(EndCause::NotAdopted),
                ..all.clone()
            },
            HistoryFilter {
                was_up: Some(false),
                ..all.clone()
            },
            HistoryFilter {
                since_unix_ms: Some(2_001),
                ..all.clone()
            },
            HistoryFilter {
                until_unix_ms: Some(1_000),
                ..all.clone()
            },
        ] {
            assert!(!differs.fits(&ended), "{differs:?}");
        }
    }
}
