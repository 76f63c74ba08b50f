//! A control process is killed (SIGKILL) at each fault point in turn, and the other side goes on.
//!
//! The process that dies is this test binary, started again with [`DIE_AT`] in its environment.
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is a test")]

use crate::filters::FilterId;
use crate::layout::Capacities;
use crate::networks::{Network, NetworkOwner, NetworkSummary};
use crate::policy::{Meter, Policy, PolicyId, Rate};
use crate::pools::{PoolRange, Pools, RangeKind};
use crate::publisher::Publisher;
use crate::reader::Reader;
use crate::record::Record;
use crate::session::{PortBlock, Session, SlotIndex, Vlans};
use crate::slot::{SessionState, SlotError};
use crate::worker::Dataplane;
use std::collections::HashSet;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of the fault point to die at, counted from 1.
const DIE_AT: &str = "BNG_SHM_TEST_DIE_AT";
const DIRECTORY: &str = "BNG_SHM_TEST_DIRECTORY";

static LEFT: LazyLock<Option<AtomicU32>> = LazyLock::new(|| {
    let at = std::env::var(DIE_AT).ok()?;
    Some(AtomicU32::new(at.parse().unwrap()))
});

/// Called from the places where a death matters.
pub(crate) fn fault_point() {
    if let Some(left) = &*LEFT
        && left.fetch_sub(1, Ordering::Relaxed) == 1
    {
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

const SMALL: Capacities = Capacities {
    access_ports: 1,
    ports: 2,
    workers: 1,
    nat_addresses: 2,
    framed_addresses: 1,
    framed_prefixes: 4,
    routes: 4,
    routes6: 4,
    next_hops: 2,
};
const SLOT: SlotIndex = SlotIndex(0x1234);

fn session(state: SessionState, mark: u8) -> Session {
    let address = u32::from_be_bytes([mark; 4]);
    let prefix = [[mark; 8], [0; 8]].concat();
    let prefix = std::net::Ipv6Addr::from(<[u8; 16]>::try_from(prefix).unwrap());
    Session {
        generation: 0,
        state,
        owner: 0,
        client_mac: [mark; 6],
        vlans: Vlans {
            s_vlan: Some(mark.into()),
            c_vlan: Some(mark.into()),
            outer_is_88a8: false,
        },
        mtu: mark.into(),
        framed_ip: address.into(),
        gateway_ip: address.into(),
        nat: Some(PortBlock {
            address: address.into(),
            address_index: mark.into(),
            first_port: mark.into(),
            size: mark.into(),
        }),
        policy: crate::PolicyId(u16::from_ne_bytes([mark; 2])),
        ipv6_prefix: Some(prefix),
        delegated: Some(crate::Delegated { prefix, length: 56 }),
    }
}

fn record(mark: u8) -> Record {
    let mut record = Record {
        accounting_id: u64::from_ne_bytes([mark; 8]),
        framed_ip: u32::from_ne_bytes([mark; 4]),
        ..Record::default()
    };
    record.set_names(&[mark; 200], &[mark; 63], &[mark; 63]);
    record
}

fn pools(mark: u32) -> [PoolRange; 2] {
    let range = |kind, first: u32| PoolRange {
        kind,
        first: first.into(),
        last: first.into(),
        base: 0,
        block_size: 512,
        first_port: mark as u16,
        rules: crate::pools::NatRules::default(),
    };
    [
        range(RangeKind::Nat, 100 * mark),
        range(RangeKind::Routed, 100 * mark + 1),
    ]
}

const PLACE: PolicyId = PolicyId(7);

/// What the place says, one after the other.
fn policies() -> [Policy; 2] {
    let rate = |kbps| {
        Some(Rate {
            kbps,
            burst_bytes: 100 * kbps,
        })
    };
    let narrow = Policy {
        up: rate(10),
        down: rate(20),
        source_check: false,
        filter: Some(FilterId(3)),
        ..Policy::default()
    };
    let wide = Policy {
        up: rate(30),
        ..Policy::default()
    };
    [narrow, wide]
}

/// A place says what was written there, or nothing: control takes up again what it finds.
fn assert_whole_policy(reader: &Reader, at: u32) {
    let Some(policy) = reader.policy(PLACE) else {
        assert!(reader.policy_line(PLACE).is_none());
        return;
    };
    assert!(policies().contains(&policy), "point {at}: {policy:?}");
    let line = reader.policy_line(PLACE).unwrap();
    let meters = (Meter::of(policy.up), Meter::of(policy.down));
    assert_eq!((line.up(), line.down()), meters, "point {at}");
}

/// Networks of two first octets.
fn networks() -> [Network; 2] {
    [(0x0a01_0000, 16), (0x0b02_0300, 24)]
        .map(|(address, length)| Network::of(address, length).unwrap())
}

/// The life of a session, as control writes it.
fn live(publisher: &mut Publisher) {
    publisher.publish_pools(&pools(1)).unwrap();
    publisher.publish_pools(&pools(2)).unwrap();
    for policy in policies() {
        publisher.write_policy(PLACE, Some(&policy)).unwrap();
    }
    let opening = session(SessionState::Negotiating, 3);
    publisher
        .publish_session(SLOT, &opening, &record(3))
        .unwrap();
    let open = session(SessionState::Forwarding, 5);
    publisher.update_session(SLOT, &open, &record(5)).unwrap();
    for network in networks() {
        let owner = Some(NetworkOwner::new(SLOT, 1));
        publisher.set_network_owner(network, owner).unwrap();
    }
    publisher.set_network_owner(networks()[0], None).unwrap();
    publisher.withdraw_session(SLOT).unwrap();
    publisher.free_session(SLOT).unwrap();
}

#[test]
#[ignore = "the process that is killed: the test below runs it"]
fn second_process() {
    let dir = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    live(&mut Publisher::attach(&dir, SMALL).unwrap());
}

/// What a worker finds in the slot: nothing, a whole session, or "busy".
fn look(reader: &Reader, at: u32) -> Option<Session> {
    match reader.session(SLOT).unwrap() {
        Err(SlotError::Busy) => None,
        Err(SlotError::Corrupt) => panic!("point {at}: corrupt"),
        Ok(found) => {
            assert_whole(&found, at);
            Some(found)
        }
    }
}

fn assert_whole(found: &Session, at: u32) {
    let mark = found.client_mac[0];
    let allowed = match found.state {
        SessionState::Free => mark == 0,
        SessionState::Negotiating => mark == 3,
        SessionState::Forwarding => mark == 5,
        SessionState::Closing => mark == 0 || mark == 5,
    };
    assert!(allowed, "point {at}: {found:?}");
    if mark != 0 {
        let whole = Session {
            generation: found.generation,
            ..session(found.state, mark)
        };
        assert_eq!(*found, whole, "point {at}");
    }
}

#[test]
fn a_control_process_may_be_killed_at_any_store() {
    let dir = PathBuf::from(format!("/dev/shm/bng-shm-killed-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let mut dataplane = Dataplane::attach(&dir, SMALL).unwrap();
    let reader = dataplane.reader();
    let worker = dataplane.worker(0).unwrap();
    worker.enter(0);
    let (mut seen, mut torn, mut generation) = (HashSet::new(), 0, 0);
    let mut led = HashSet::new();
    for at in 1.. {
        assert!(at < 1_000, "the fault points have no end");
        let status = Command::new("/proc/self/exe")
            .args(["--ignored", "--exact", "killed::second_process"])
            .env(DIE_AT, at.to_string())
            .env(DIRECTORY, &dir)
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(!dataplane.control_alive(), "the lock died with it");
        if status.success() {
            break;
        }
        assert_eq!(status.signal(), Some(9), "point {at}");

        // The dataplane, with nobody on the other side.
        torn += u32::from(look(&reader, at).is_none());
        assert_whole_policy(&reader, at);
        let mut ranges = Pools::default();
        if reader.refresh_pools(&mut ranges) {
            let mark = u32::from(ranges.ranges()[0].first_port);
            let firsts = ranges.ranges().iter().map(|range| range.first.to_bits());
            assert!(firsts.eq([100 * mark, 100 * mark + 1]), "point {at}");
        }

        // Control comes back.
        let mut control = Publisher::attach(&dir, SMALL).unwrap();
        assert!(!control.created());
        let found = control.survey();
        let now = look(&reader, at).unwrap_or_else(|| panic!("point {at}: still busy"));
        assert!(
            now.generation >= generation,
            "point {at}: an old generation"
        );
        generation = now.generation;
        seen.insert((now.state, now.client_mac[0]));
        match found.as_slice() {
            [] => assert_eq!(now.state, SessionState::Free),
            [(slot, session, kept)] => {
                assert_eq!((*slot, *session), (SLOT, now));
                assert_eq!(reader.owner(SLOT), Some(0), "point {at}: unreachable");
                if let Some(kept) = kept {
                    assert!(
                        [record(3), record(5)].contains(kept),
                        "point {at}: half a record"
                    );
                }
            }
            more => panic!("point {at}: {more:?}"),
        }
        // What was found ends in the usual way, and the slot is good for a new session.
        control.withdraw_session(SLOT).unwrap();
        let token = control.advance_epoch();
        assert!(
            !control.epoch_passed(token),
            "the worker has not looked up yet"
        );
        worker.quiescent();
        assert!(control.epoch_passed(token));
        control.free_session(SLOT).unwrap();
        control.publish_pools(&pools(1)).unwrap();
        let mut ranges = Pools::default();
        assert!(reader.refresh_pools(&mut ranges));
        // Workers find every network there is, whatever the summary said when its writer died; control takes them away.
        for (network, owner) in reader.networks().collect::<Vec<_>>() {
            let address = network.address.to_bits() + 1;
            let found = reader.network_owner(ranges.networks(), address);
            assert_eq!(found, Some(owner), "point {at}: {network:?}");
            led.insert(network);
            control.set_network_owner(network, None).unwrap();
        }
        assert!(reader.refresh_pools(&mut ranges) || reader.networks().next().is_none());
        assert_eq!(*ranges.networks(), NetworkSummary::default(), "point {at}");
    }
    let expected = [
        (SessionState::Free, 0),
        (SessionState::Negotiating, 3),
        (SessionState::Forwarding, 5),
        (SessionState::Closing, 5),
        (SessionState::Closing, 0),
    ];
    assert_eq!(seen, HashSet::from(expected), "each state was hit");
    assert_eq!(
        led,
        HashSet::from(networks()),
        "deaths with a network given"
    );
    assert!(torn >= 20, "deaths inside writes: {torn}");
    std::fs::remove_dir_all(&dir).unwrap();
}
