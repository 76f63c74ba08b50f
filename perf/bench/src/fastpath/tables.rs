//! What control publishes for the benchmark: pools, policies, sessions, routes. And the settings workers start with.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::Result;
use bng_fastpath::{
    FirstFragments, NatLimits, NatTimers, OtherProtocols, Port, PortRole, Settings,
};
use bng_shm::{
    Adjacency, BlockOwner, Capacities, Filter, FilterAction, FilterId, FilterRule, NextHopId,
    Policy, PolicyId, PoolRange, Publisher, RangeKind, Rate, Record, Route, Session, SessionState,
    Vlans,
};

use super::flows::{CORE_MAC, FIRST_PORT, NEXT_HOP_MAC, Shape, access_mac};
use super::{Features, Locking};

/// The policy of all sessions.
const POLICY: PolicyId = PolicyId(1);
/// MTU of sessions and ports, bytes of IP.
const MTU: u16 = 1_492;
/// Committed rate of all policers: more than a core forwards, so that nothing is dropped.
const RATE: Rate = Rate {
    kbps: bng_shm::MAX_RATE_KBPS,
    burst_bytes: 1 << 30,
};

/// How large the tables are.
pub(super) fn capacities(shape: &Shape, workers: u8) -> Capacities {
    Capacities {
        access_ports: u32::from(shape.access_ports),
        ports: u32::from(shape.access_ports) + 1,
        workers: u32::from(workers),
        nat_addresses: shape.public_addresses,
        framed_addresses: shape.sessions,
        framed_prefixes: 1,
        routes: 1_024,
        routes6: 1,
        next_hops: 1_024,
    }
}

/// What workers start with.
pub(super) fn settings(shape: &Shape, flows: u32, seed: u64) -> Settings {
    let access = (0..shape.access_ports).map(|index| Port {
        mac: access_mac(index),
        mtu: MTU,
        role: PortRole::Access { index },
    });
    let core = Port {
        mac: CORE_MAC,
        mtu: MTU,
        role: PortRole::Core,
    };
    Settings {
        ports: access.chain([core]).collect(),
        vlans: Vec::new(),
        nat_mappings: flows.saturating_mul(2).max(65_536),
        nat_timers: NatTimers::default(),
        nat_limits: NatLimits::default(),
        echo_per_second: 100,
        resolve_per_second: 100,
        punts_per_second: 100,
        icmp_errors_per_second: 100,
        fragments: Arc::new(FirstFragments::new(seed)),
        other_protocols: Arc::new(OtherProtocols::new(seed)),
        seed,
    }
}

/// Worker that owns session `index`: with a lock, the one fast path behind it; else they take turns.
pub(super) const fn owner(index: u32, workers: u8, locking: Locking) -> u8 {
    match locking {
        Locking::None => (index % workers as u32) as u8,
        Locking::Burst | Locking::Packet => workers,
    }
}

/// Four rules a direction, none of which fits the benchmark's packets; two of them are about UDP, as those are.
fn filter() -> Filter {
    let rule = |protocol, remote_ports, local_ports| FilterRule {
        action: FilterAction::Drop,
        protocol: Some(protocol),
        remote: None,
        remote_ports,
        local_ports,
    };
    Filter {
        up: vec![
            rule(6, Some((25, 25)), None),
            rule(17, Some((137, 139)), None),
            rule(6, Some((445, 445)), None),
            rule(17, Some((1_900, 1_900)), None),
        ],
        down: vec![
            rule(6, None, Some((23, 23))),
            rule(17, None, Some((161, 162))),
            rule(6, None, Some((445, 445))),
            rule(17, None, Some((1_900, 1_900))),
        ],
        ..Filter::default()
    }
}

fn policy(features: Features) -> Policy {
    match features {
        Features::Minimal => Policy {
            mss_clamp: false,
            ..Policy::default()
        },
        Features::All => Policy {
            up: Some(RATE),
            down: Some(RATE),
            source_check: true,
            mss_clamp: true,
            filter: Some(FilterId(0)),
        },
    }
}

/// VLAN tags of session `index`, as its frames carry them.
pub(super) const fn vlans(index: u32, tags: u8) -> Vlans {
    let inner = (index % 4_000) as u16 + 1;
    match tags {
        0 => Vlans {
            s_vlan: None,
            c_vlan: None,
            outer_is_88a8: false,
        },
        1 => Vlans {
            s_vlan: Some(inner),
            c_vlan: None,
            outer_is_88a8: false,
        },
        _ => Vlans {
            s_vlan: Some((index / 4_000) as u16 + 100),
            c_vlan: Some(inner),
            outer_is_88a8: true,
        },
    }
}

/// Publishes everything.
pub(super) fn publish(
    publisher: &mut Publisher,
    shape: &Shape,
    workers: u8,
    locking: Locking,
    features: Features,
) -> Result<()> {
    let (first, last) = shape.public();
    let (first_subscriber, last_subscriber) = shape.subscribers();
    publisher.publish_pools(&[
        PoolRange {
            kind: RangeKind::Nat,
            first,
            last,
            base: 0,
            block_size: shape.block,
            first_port: FIRST_PORT,
            rules: bng_shm::NatRules::default(),
        },
        // The owner of each address is known, so that the plain-IP path finds sessions by it.
        PoolRange {
            kind: RangeKind::Routed,
            first: first_subscriber,
            last: last_subscriber,
            base: 0,
            block_size: 0,
            first_port: 0,
            rules: bng_shm::NatRules::default(),
        },
    ])?;
    publisher.publish_filters(&[filter()])?;
    publisher.write_policy(POLICY, Some(&policy(features)))?;
    for index in 0..shape.sessions {
        let subscriber = shape.subscriber(index);
        let session = Session {
            state: SessionState::Forwarding,
            owner: owner(index, workers, locking),
            client_mac: subscriber.mac.0,
            vlans: vlans(index, shape.tags),
            mtu: MTU,
            framed_ip: subscriber.address,
            gateway_ip: Ipv4Addr::new(100, 127, 255, 254),
            nat: Some(subscriber.block),
            policy: POLICY,
            ..Session::NONE
        };
        let generation =
            publisher.publish_session(subscriber.slot, &session, &Record::default())?;
        let owner = Some(BlockOwner {
            slot: subscriber.slot,
            generation,
        });
        publisher.set_block_owner(&subscriber.block, owner)?;
        publisher.set_framed_owner(subscriber.address, owner)?;
    }
    let gateway = NextHopId(1);
    publisher.set_next_hop(
        gateway,
        Ipv4Addr::new(192, 0, 2, 1).into(),
        Adjacency::Neighbour {
            port: shape.core_port(),
            mac: NEXT_HOP_MAC.0,
        },
    )?;
    publisher.publish_routes(&[Route {
        prefix: Ipv4Addr::UNSPECIFIED,
        length: 0,
        next_hop: gateway,
    }])?;
    Ok(())
}
