//! Sessions of the engine to entries and records of the shared memory, and back.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use bng_aaa::Prefix;
use bng_pppoe::{
    AuthProtocol, Grant, InterfaceIds, Ipv6Grant, PortId, SessionRecord, SessionRef, Time,
};
use bng_shm::{
    Delegated, FurtherBlocks, PolicyId, PortBlock, Record, Session, SessionState, SlotIndex, Vlans,
};
use bng_wire::ethernet::ethertype;
use bng_wire::{MacAddr, VlanStack, VlanTag};

use crate::grants::{Held, Prefixes};
use crate::said::{self, Kept};
use crate::sessions::Live;

/// Largest MRU without PPP-Max-Payload, bytes (RFC 2516 section 7).
const PPPOE_MRU: u16 = 1492;

/// The two clocks at one moment: the engine runs on the monotonic one, records and operators are told Unix time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    /// CLOCK_MONOTONIC, milliseconds.
    pub monotonic_ms: u64,
    /// Unix time, milliseconds.
    pub unix_ms: u64,
}

impl Clock {
    /// Both clocks now.
    #[must_use]
    pub fn now() -> Self {
        Self {
            monotonic_ms: bng_shm::monotonic_ms(),
            unix_ms: bng_shm::unix_ms(),
        }
    }

    /// The engine's time.
    #[must_use]
    pub const fn time(&self) -> Time {
        Time::from_millis(self.monotonic_ms)
    }

    /// The pools' time.
    #[must_use]
    pub const fn since_start(&self) -> Duration {
        Duration::from_millis(self.monotonic_ms)
    }

    fn to_unix(self, time: Time) -> u64 {
        (self.unix_ms.saturating_add(time.as_millis())).saturating_sub(self.monotonic_ms)
    }

    fn to_monotonic(self, unix_ms: u64) -> Time {
        Time::from_millis((self.monotonic_ms.saturating_add(unix_ms)).saturating_sub(self.unix_ms))
    }
}

/// Tags as the session table keeps them: those that name a VLAN. A tag with VLAN id 0 carries a priority only.
#[must_use]
pub(crate) fn table_vlans(vlans: &VlanStack) -> Vlans {
    let vlans = vlans.without_priority_tags();
    let outer = vlans.outer();
    Vlans {
        s_vlan: outer.map(|tag| tag.vid()),
        c_vlan: vlans.inner().map(|tag| tag.vid()),
        outer_is_88a8: outer.is_some_and(|tag| tag.tpid == ethertype::QINQ),
    }
}

/// Tags as the engine keeps them. Priorities are not in the table, so they come back as 0.
#[must_use]
pub(crate) fn engine_vlans(vlans: &Vlans) -> VlanStack {
    let outer = if vlans.outer_is_88a8 {
        ethertype::QINQ
    } else {
        ethertype::VLAN
    };
    let tag = |tpid, tci| VlanTag { tpid, tci };
    match (vlans.s_vlan, vlans.c_vlan) {
        (None, _) => VlanStack::UNTAGGED,
        (Some(s), None) => VlanStack::single(tag(outer, s)),
        (Some(s), Some(c)) => VlanStack::double(tag(outer, s), tag(ethertype::VLAN, c)),
    }
}

/// Which families of a session are forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Open {
    pub(crate) ipv4: bool,
    pub(crate) ipv6: bool,
}

impl Open {
    /// What a session has open, by its latest record.
    #[must_use]
    pub(crate) fn of(live: &Live) -> Self {
        live.record
            .as_deref()
            .map_or(Self::default(), |record| Self {
                ipv4: record.ipv4_open,
                ipv6: record.interface_ids.is_some(),
            })
    }
}

/// Bits of [`Record::open`].
const IPV4_OPEN: u8 = 1;
const IPV6_OPEN: u8 = 2;

/// What the entry and the record of an earlier run say that a session holds. A session that never was up has no record of it.
#[must_use]
pub(crate) fn held(session: &Session, record: Option<&Record>, further: FurtherBlocks) -> Held {
    let on_link = session.ipv6_prefix.map(|address| Prefix {
        address,
        length: 64,
    });
    let entry = Held {
        address: session.framed_ip,
        block: session.nat,
        further,
        prefixes: on_link.map(|on_link| Prefixes {
            on_link,
            delegated: session.delegated.map(|it| Prefix {
                address: it.prefix,
                length: it.length,
            }),
        }),
    };
    let Some(record) = record.filter(|record| record.framed_ip != 0) else {
        return entry;
    };
    let prefix = |high: u64, length| {
        let address = Ipv6Addr::from_bits(u128::from(high) << 64);
        (high != 0).then_some(Prefix { address, length })
    };
    Held {
        address: Ipv4Addr::from_bits(record.framed_ip),
        block: (record.nat_address != 0).then_some(PortBlock {
            address: Ipv4Addr::from_bits(record.nat_address),
            address_index: record.nat_index,
            first_port: record.nat_first_port,
            size: record.nat_size,
        }),
        further,
        prefixes: prefix(record.prefix, 64).map(|on_link| Prefixes {
            on_link,
            delegated: prefix(record.delegated, record.delegated_length),
        }),
    }
}

/// The table entry of a session in its present state.
#[must_use]
pub(crate) fn entry(live: &Live) -> Session {
    let record = live.record.as_deref();
    let open = Open::of(live);
    let holding = live.holding.filter(|_| open.ipv4);
    let prefixes = live
        .holding
        .and_then(|it| it.prefixes)
        .filter(|_| open.ipv6);
    Session {
        generation: live.generation,
        state: live.state,
        owner: live.owner,
        client_mac: live.line.mac.0,
        vlans: table_vlans(&live.vlans),
        mtu: record.map_or(PPPOE_MRU, |record| record.peer_mru),
        framed_ip: holding.map_or(Ipv4Addr::UNSPECIFIED, |holding| holding.lease.address),
        gateway_ip: record.map_or(Ipv4Addr::UNSPECIFIED, |record| record.grant.gateway_ip),
        nat: holding.and_then(|holding| holding.published_block()),
        ipv6_prefix: prefixes.map(|prefixes| prefixes.on_link.address),
        delegated: (prefixes.and_then(|prefixes| prefixes.delegated)).map(|prefix| Delegated {
            prefix: prefix.address,
            length: prefix.length,
        }),
        // Nothing passes before there is a policy.
        policy: live.policy.as_ref().map_or(PolicyId(0), |it| it.id),
    }
}

/// The recovery record of a session in its present state.
#[must_use]
pub(crate) fn recovery_record(live: &Live) -> Record {
    let mut out = Record {
        started_unix_ms: live.started_unix_ms,
        opened_unix_ms: live.opened_unix_ms,
        pool: (live.holding).map_or(0xffff, |holding| holding.lease.pool as u16),
        accounting_id: live.accounting_id,
        quota_octets: live.quota_octets,
        ..Record::default()
    };
    // What has no room was counted when AAA said it.
    let service_name = live.record.as_ref().map_or(&[][..], |it| &it.service_name);
    let end = live.end.map(|end| end.cause);
    said::write(
        &mut out,
        live.said.as_deref(),
        service_name,
        end,
        live.given_back,
    );
    out.set_names(&live.user, &live.circuit_id, &live.remote_id);
    if let Some(holding) = &live.holding {
        out.framed_ip = holding.lease.address.to_bits();
        if let Some(block) = holding.published_block() {
            out.nat_address = block.address.to_bits();
            out.nat_index = block.address_index;
            out.nat_first_port = block.first_port;
            out.nat_size = block.size;
        }
        if let Some(prefixes) = holding.prefixes {
            out.prefix = prefixes.on_link.high();
            if let Some(delegated) = prefixes.delegated {
                out.delegated = delegated.high();
                out.delegated_length = delegated.length;
            }
        }
    }
    if let Some(assigned) = live.policy.as_ref().filter(|it| it.by_operator) {
        out.policy_by_operator = 1;
        out.filter_tag = assigned.filter_tag;
    }
    if let Some(record) = live.record.as_deref() {
        let bits = |address: Option<Ipv4Addr>| address.map_or(0, Ipv4Addr::to_bits);
        let seconds = |d: Option<Duration>| {
            d.map_or(0, |d| u32::try_from(d.as_secs().max(1)).unwrap_or(u32::MAX))
        };
        out.padr = record.padr;
        out.our_magic = record.our_magic;
        out.peer_magic = record.peer_magic;
        out.gateway_ip = record.grant.gateway_ip.to_bits();
        out.dns = record.grant.dns.map(bits);
        out.session_timeout_s = seconds(record.grant.session_timeout);
        out.idle_timeout_s = seconds(record.grant.idle_timeout);
        out.peer_mru = record.peer_mru;
        out.our_mru = record.our_mru;
        out.auth_protocol = record.auth_protocol.number();
        if record.ipv4_open {
            out.open |= IPV4_OPEN;
        }
        if let Some(ids) = record.interface_ids {
            out.open |= IPV6_OPEN;
            out.our_interface_id = ids.ours;
            out.peer_interface_id = ids.peer;
        }
        if record.link_mru > PPPOE_MRU {
            out.max_payload = record.link_mru;
        }
    }
    out
}

/// A record without the names that [`Live`] has as well.
#[must_use]
pub(crate) fn nameless(mut record: Box<SessionRecord>) -> Box<SessionRecord> {
    record.user_name = Vec::new();
    record.circuit_id = Vec::new();
    record.remote_id = Vec::new();
    record
}

/// Unix times of a session's start and of its network phase.
#[must_use]
pub(crate) fn unix_times(record: &SessionRecord, clock: Clock) -> (u64, u64) {
    (
        clock.to_unix(record.started),
        clock.to_unix(record.up_since),
    )
}

/// What the engine adopts, from entry and record. `kept` is what else the record says, with the IPv6 DNS servers of the session;
/// `max_mru` is what the access port carries now, bytes.
#[must_use]
pub(crate) fn engine_record(
    slot: SlotIndex,
    session: &Session,
    record: &Record,
    held: &Held,
    kept: &Kept,
    max_mru: u16,
    clock: Clock,
) -> SessionRecord {
    let address = |bits: u32| (bits != 0).then(|| Ipv4Addr::from_bits(bits));
    let seconds = |s: u32| (s != 0).then(|| Duration::from_secs(s.into()));
    let up_since = clock.to_monotonic(record.opened_unix_ms);
    let session_timeout = seconds(record.session_timeout_s);
    SessionRecord {
        session: SessionRef {
            port: PortId(slot.access_port()),
            session_id: slot.session_id(),
            generation: session.generation,
        },
        mac: MacAddr(session.client_mac),
        vlans: engine_vlans(&session.vlans),
        padr: record.padr,
        link_mru: match record.max_payload {
            0 => max_mru.min(PPPOE_MRU),
            granted => granted,
        },
        our_mru: record.our_mru,
        peer_mru: record.peer_mru,
        our_magic: record.our_magic,
        peer_magic: record.peer_magic,
        user_name: record.user().to_vec(),
        auth_protocol: auth_protocol(record.auth_protocol),
        circuit_id: record.circuit_id().to_vec(),
        remote_id: record.remote_id().to_vec(),
        service_name: kept.service_name.clone(),
        grant: Grant {
            framed_ip: held.address,
            gateway_ip: session.gateway_ip,
            dns: record.dns.map(address),
            ipv6: held.prefixes.map(|prefixes| Ipv6Grant {
                prefix: prefixes.on_link.address,
                delegated: prefixes.delegated.map(|it| (it.address, it.length)),
                dns: kept.said.dns6,
            }),
            session_timeout,
            idle_timeout: seconds(record.idle_timeout_s),
            accounting_id: record.accounting_id,
        },
        ipv4_open: record.open & IPV4_OPEN != 0,
        interface_ids: (record.open & IPV6_OPEN != 0).then_some(InterfaceIds {
            ours: record.our_interface_id,
            peer: record.peer_interface_id,
        }),
        started: clock.to_monotonic(record.started_unix_ms),
        up_since,
        session_deadline: session_timeout.map(|timeout| up_since + timeout),
    }
}

/// The protocol with this number; PAP is what every session had before there were others.
fn auth_protocol(number: u16) -> AuthProtocol {
    match number {
        it if it == AuthProtocol::ChapMd5.number() => AuthProtocol::ChapMd5,
        _ => AuthProtocol::Pap,
    }
}

/// A session as it stands in the table after a restart.
#[must_use]
pub(crate) fn surveyed(
    slot: SlotIndex,
    session: &Session,
    record: Option<&Record>,
    state: SessionState,
) -> Live {
    let vlans = engine_vlans(&session.vlans);
    let reference = SessionRef {
        port: PortId(slot.access_port()),
        session_id: slot.session_id(),
        generation: session.generation,
    };
    let mac = MacAddr(session.client_mac);
    let kept = record.map(said::read).unwrap_or_default();
    let line = bng_pppoe::AccessLine::new(reference.port, &vlans, mac);
    let started_unix_ms = record.map_or(0, |r| r.started_unix_ms);
    Live {
        generation: session.generation,
        state,
        user: record.map_or_else(Arc::default, |r| r.user().into()),
        circuit_id: record.map_or(Vec::new(), |r| r.circuit_id().to_vec()),
        remote_id: record.map_or(Vec::new(), |r| r.remote_id().to_vec()),
        said: kept.said.boxed(),
        quota_octets: record.map_or(0, |r| r.quota_octets),
        accounting_id: record.map_or(0, |r| r.accounting_id),
        opened_unix_ms: record.map_or(0, |r| r.opened_unix_ms),
        adopted: true,
        given_back: kept.given_back,
        ..Live::new(reference, line, vlans, session.owner, started_unix_ms)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::grants::Holding;
    use crate::sessions::tests::live;

    const DNS6: [Option<Ipv6Addr>; 2] = [
        Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x53)),
        None,
    ];
    const CLOCK: Clock = Clock {
        monotonic_ms: 500_000,
        unix_ms: 1_700_000_000_000,
    };

    pub(crate) fn record(session: SessionRef) -> SessionRecord {
        SessionRecord {
            session,
            mac: MacAddr([2, 0, 0, 0, 0, 9]),
            vlans: engine_vlans(&Vlans {
                s_vlan: Some(100),
                c_vlan: Some(7),
                outer_is_88a8: true,
            }),
            padr: 0x0123_4567_89ab_cdef,
            link_mru: 1500,
            our_mru: 1500,
            peer_mru: 1480,
            our_magic: 0x1111_2222,
            peer_magic: 0x3333_4444,
            user_name: b"alice".to_vec(),
            auth_protocol: AuthProtocol::Pap,
            circuit_id: b"olt 1/1".to_vec(),
            remote_id: b"r1".to_vec(),
            service_name: b"video".to_vec(),
            grant: Grant {
                framed_ip: Ipv4Addr::new(100, 64, 0, 2),
                gateway_ip: Ipv4Addr::new(100, 64, 0, 1),
                dns: [Some(Ipv4Addr::new(9, 9, 9, 9)), None],
                ipv6: Some(Ipv6Grant {
                    prefix: "2001:db8::".parse().unwrap(),
                    delegated: Some(("2001:db8:1000:100::".parse().unwrap(), 56)),
                    dns: DNS6,
                }),
                session_timeout: Some(Duration::from_secs(3600)),
                idle_timeout: None,
                accounting_id: 77,
            },
            ipv4_open: true,
            interface_ids: Some(InterfaceIds { ours: 5, peer: 6 }),
            started: Time::from_millis(400_000),
            up_since: Time::from_millis(401_000),
            session_deadline: Some(Time::from_millis(401_000 + 3_600_000)),
        }
    }

    #[test]
    fn what_is_published_can_be_adopted_unchanged() {
        let mut live = live(0, 7, 1);
        let record = record(live.session);
        live.vlans = record.vlans;
        live.user = record.user_name.as_slice().into();
        live.accounting_id = record.grant.accounting_id;
        live.circuit_id = record.circuit_id.clone();
        live.remote_id = record.remote_id.clone();
        live.holding = Some(Holding {
            lease: bng_aaa::Lease {
                pool: 0,
                address: record.grant.framed_ip,
            },
            block: None,
            further: FurtherBlocks::default(),
            prefixes: record.grant.ipv6.map(|ipv6| Prefixes {
                on_link: Prefix {
                    address: ipv6.prefix,
                    length: 64,
                },
                delegated: ipv6
                    .delegated
                    .map(|(address, length)| Prefix { address, length }),
            }),
        });
        (live.started_unix_ms, live.opened_unix_ms) = unix_times(&record, CLOCK);
        live.record = Some(Box::new(record.clone()));
        // The restart is ten seconds later on both clocks.
        let later = Clock {
            monotonic_ms: CLOCK.monotonic_ms + 10_000,
            unix_ms: CLOCK.unix_ms + 10_000,
        };
        for (ipv4, ipv6) in [(true, true), (true, false), (false, true)] {
            let mut now = record.clone();
            now.ipv4_open = ipv4;
            now.interface_ids = record.interface_ids.filter(|_| ipv6);
            live.record = Some(Box::new(now.clone()));
            let (entry, kept) = (entry(&live), recovery_record(&live));
            assert_eq!(entry.framed_ip.is_unspecified(), !ipv4);
            assert_eq!(
                entry.ipv6_prefix.is_some() && entry.delegated.is_some(),
                ipv6
            );
            let held = held(&entry, Some(&kept), FurtherBlocks::default());
            assert_eq!(held.address, record.grant.framed_ip);
            let mut rest = said::read(&kept);
            rest.said.dns6 = DNS6;
            let back = engine_record(live.slot(), &entry, &kept, &held, &rest, 1500, later);
            assert_eq!(back, now);
        }
    }

    #[test]
    fn a_priority_tag_is_no_vlan() {
        let tag = |tci| VlanTag {
            tpid: ethertype::VLAN,
            tci,
        };
        let none = VlanStack::single(tag(0xe000));
        for untagged in [none, VlanStack::UNTAGGED] {
            assert_eq!(table_vlans(&untagged), Vlans::default());
        }
        let one = VlanStack::double(tag(0), tag(7));
        assert_eq!(table_vlans(&one).s_vlan, Some(7));
        assert_eq!(table_vlans(&one).c_vlan, None);
    }
}
