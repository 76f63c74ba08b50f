//! Shared memory, workers, ports, pools, routes and sessions in one process.
//!
//! Port numbers: first the access ports, then two core ports. Addresses: subscribers behind NAT in 100.64.0.0/10
//! (gateway 100.64.0.1), routed subscribers in 198.51.100.0/24, NAT pool from 203.0.113.0 up. Routes: default by a
//! resolved next hop on the first core port, 192.0.2.0/24 connected on the second.
//!
//! IPv6: the first 256 sessions have a /64 of 2001:db8::/56 and a delegated /56 of 2001:db8:100::/48. The same next hops
//! lead to ::/0, 2001:db8:f002::/48 (connected), 2001:db8:f003::/48 and so on. The core ports have addresses.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use bng_shm::{
    Adjacency, BlockOwner, Capacities, Counter, Dataplane, Delegated, Event, NatRules, Network,
    NetworkOwner, NextHopId, Policy, PolicyId, Pool6Range, PoolRange, PortAddresses, PortBlock,
    Publisher, RangeKind, Record, Route, Route6, Session, SessionState, SlotIndex, Take, Vlans,
};
use bng_wire::ethernet::ethertype;
use bng_wire::pppoe::protocol;
use bng_wire::{MacAddr, VlanStack, VlanTag};

use super::conservation::{self, Snapshot};
use super::{NaiveFib, TestBuf, TestPool, ethernet, pppoe_session};
use crate::{
    FastPath, FirstFragments, NatLimits, NatTimers, Origin, OtherProtocols, Port, PortRole,
    Settings, Verdict, WaitingRoom, fragment,
};

/// How large a world is.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    /// Workers.
    pub workers: u8,
    /// Access ports, each with room for 65,534 sessions.
    pub access_ports: u8,
    /// Addresses in the NAT pool.
    pub nat_addresses: u32,
    /// Ports per block, at least 64.
    pub block_size: u16,
    /// What the NAT pool does besides.
    pub nat_rules: NatRules,
    /// Mappings each worker has room for.
    pub nat_mappings: u32,
    /// Limits of each subscriber.
    pub nat_limits: NatLimits,
    /// Echo requests answered per second and worker.
    pub echo_per_second: u32,
    /// PPP control frames punted per second and session.
    pub punts_per_second: u32,
    /// ICMP errors sent per second and worker, to either side.
    pub icmp_errors_per_second: u32,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            workers: 1,
            access_ports: 2,
            nat_addresses: 4,
            block_size: 64,
            nat_rules: NatRules::default(),
            nat_mappings: 4_096,
            nat_limits: NatLimits::default(),
            echo_per_second: 10,
            punts_per_second: 0,
            icmp_errors_per_second: 0,
        }
    }
}

/// Everything around the stages.
#[derive(Debug)]
pub struct World {
    /// Its size.
    pub spec: Spec,
    /// Control's side.
    pub publisher: Publisher,
    /// The workers.
    pub workers: Vec<FastPath>,
    /// Routes.
    pub fib: NaiveFib,
    /// The clock, CLOCK_MONOTONIC milliseconds.
    pub now_ms: u64,
    settings: Settings,
}

impl World {
    /// Our address on every session.
    pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 1);
    /// First address of the NAT pool.
    pub const NAT_FIRST: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 0);
    /// A host behind the default route.
    pub const HOST: Ipv4Addr = Ipv4Addr::new(8, 8, 4, 4);
    /// The same over IPv6.
    pub const HOST6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xf00d, 0, 0, 0, 0, 0x53);
    /// MAC address of the default route's next hop.
    pub const NEXT_HOP: MacAddr = MacAddr([2, 0xcc, 0, 0, 0, 1]);
    /// Lowest port handed out.
    pub const FIRST_PORT: u16 = 1_024;
    /// The policy of all sessions: no limits, no filter, source check and MSS clamping on.
    pub const POLICY: PolicyId = PolicyId(1);
    /// Next hop of the default route.
    pub const DEFAULT_HOP: NextHopId = NextHopId(1);

    /// A world without sessions.
    #[must_use]
    pub fn new(spec: Spec) -> Self {
        let (mut dataplane, mut publisher) = Dataplane::in_process(Capacities {
            access_ports: spec.access_ports.into(),
            ports: u32::from(spec.access_ports) + 2,
            workers: spec.workers.into(),
            nat_addresses: spec.nat_addresses,
            framed_addresses: 256,
            framed_prefixes: 512,
            routes: 16,
            routes6: 16,
            next_hops: 16,
        })
        .unwrap();
        let range = |kind, first: Ipv4Addr, last: u32| PoolRange {
            kind,
            first,
            last: last.into(),
            base: 0,
            rules: spec.nat_rules,
            block_size: if kind == RangeKind::Nat {
                spec.block_size
            } else {
                0
            },
            first_port: if kind == RangeKind::Nat {
                Self::FIRST_PORT
            } else {
                0
            },
        };
        let nat_last = Self::NAT_FIRST.to_bits() + spec.nat_addresses - 1;
        publisher
            .publish_pools(&[
                range(RangeKind::Nat, Self::NAT_FIRST, nat_last),
                range(
                    RangeKind::Subscriber,
                    Ipv4Addr::new(100, 64, 0, 0),
                    0x647f_ffff,
                ),
                range(
                    RangeKind::Routed,
                    Ipv4Addr::new(198, 51, 100, 0),
                    0xc633_64ff,
                ),
            ])
            .unwrap();
        publisher
            .write_policy(Self::POLICY, Some(&Policy::default()))
            .unwrap();
        let prefixes = |first: u64, length: u8, step: u64| Pool6Range {
            first,
            last: first + 255 * step,
            length,
            base: 0,
        };
        publisher
            .publish_pools6(&[
                prefixes(Self::ON_LINK, 64, 1),
                prefixes(Self::DELEGATED, 56, 0x100),
            ])
            .unwrap();
        let core = spec.access_ports;
        let addresses = (0..core + 2).map(|port| match port.checked_sub(core) {
            None => PortAddresses::default(),
            Some(_) => PortAddresses {
                ipv4: Some(Self::port_ipv4(port)),
                ipv6: Some(Self::port_ipv6(port)),
            },
        });
        publisher.publish_port_addresses(&addresses.collect::<Vec<_>>());
        let hops = [
            Adjacency::Neighbour {
                port: core,
                mac: Self::NEXT_HOP.0,
            },
            Adjacency::Connected { port: core + 1 },
            Adjacency::Unresolved { port: core + 1 },
            Adjacency::Blackhole,
            Adjacency::Local { port: core },
        ];
        for (at, adjacency) in hops.into_iter().enumerate() {
            let id = NextHopId(at as u32 + 1);
            let address = Ipv4Addr::new(192, 0, 2, id.0 as u8);
            publisher
                .set_next_hop(id, address.into(), adjacency)
                .unwrap();
        }
        let route = |prefix: [u8; 4], length, hop| Route {
            prefix: prefix.into(),
            length,
            next_hop: NextHopId(hop),
        };
        let fib = NaiveFib::new(vec![
            route([0, 0, 0, 0], 0, 1),
            route([192, 0, 2, 0], 24, 2),
            route([10, 3, 0, 0], 16, 3),
            route([10, 4, 0, 0], 16, 4),
            route([10, 5, 0, 5], 32, 5),
            route([10, 6, 0, 0], 16, 0),
        ])
        .with_ipv6(
            (1..=6)
                .map(|hop: u16| Route6 {
                    prefix: match hop {
                        1 => Ipv6Addr::UNSPECIFIED,
                        _ => Self::network6(hop),
                    },
                    length: if hop == 1 { 0 } else { 48 },
                    next_hop: NextHopId(if hop == 6 { 0 } else { hop.into() }),
                })
                .collect(),
        );
        let port = |at: u8| Port {
            mac: Self::port_mac(at),
            mtu: 1_500,
            role: if at < core {
                PortRole::Access { index: at }
            } else {
                PortRole::Core
            },
        };
        let settings = Settings {
            ports: (0..core + 2).map(port).collect(),
            vlans: Vec::new(),
            nat_mappings: spec.nat_mappings,
            nat_timers: NatTimers::default(),
            nat_limits: spec.nat_limits,
            echo_per_second: spec.echo_per_second,
            resolve_per_second: 10,
            punts_per_second: spec.punts_per_second,
            icmp_errors_per_second: spec.icmp_errors_per_second,
            fragments: Arc::new(FirstFragments::new(0x5eed)),
            other_protocols: Arc::new(OtherProtocols::new(0x5eed)),
            seed: 0x5eed,
        };
        let now_ms = 1_000_000;
        let workers = (0..spec.workers)
            .map(|at| {
                let shm = dataplane.worker(at).unwrap();
                shm.enter(0);
                FastPath::new(shm, &settings, now_ms)
            })
            .collect();
        Self {
            spec,
            publisher,
            workers,
            fib,
            now_ms,
            settings,
        }
    }

    /// A world with `sessions` forwarding sessions.
    #[must_use]
    pub fn with_sessions(spec: Spec, sessions: u32) -> Self {
        let mut world = Self::new(spec);
        for n in 0..sessions {
            world.open(n);
        }
        world
    }

    /// MAC address of a port.
    #[must_use]
    pub const fn port_mac(port: u8) -> MacAddr {
        MacAddr([2, 0xbb, 0, 0, 0, port])
    }

    /// Index of the first core port.
    #[must_use]
    pub const fn core_port(&self) -> u8 {
        self.spec.access_ports
    }

    /// Slot of session `n`: ids from 1 up on the first access port, then on the next.
    #[must_use]
    pub const fn slot(n: u32) -> SlotIndex {
        SlotIndex::new((n / 65_534) as u8, (n % 65_534) as u16 + 1)
    }

    /// Address of session `n` behind NAT.
    #[must_use]
    pub const fn framed_ip(n: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(0x6440_0002 + n)
    }

    /// Address of a core port, the source of ICMP errors there.
    #[must_use]
    pub const fn port_ipv4(port: u8) -> Ipv4Addr {
        Ipv4Addr::new(192, 0, 2, 100 + port)
    }

    /// The same over IPv6.
    #[must_use]
    pub const fn port_ipv6(port: u8) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, 0xc0de, 0, 0, 0, 0, port as u16)
    }

    /// 2001:db8:f00n::, the network behind next hop `n` from 2 on (0 for the sixth: no route).
    #[must_use]
    pub const fn network6(n: u16) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, 0xf000 + n, 0, 0, 0, 0, 0)
    }

    /// Upper half of the first /64 given out.
    const ON_LINK: u64 = 0x2001_0db8_0000_0000;
    /// Upper half of the first delegated prefix.
    const DELEGATED: u64 = 0x2001_0db8_0100_0000;

    /// The /64 of session `n` (below 256).
    #[must_use]
    pub const fn prefix6(n: u32) -> Ipv6Addr {
        Ipv6Addr::from_bits((Self::ON_LINK as u128 + n as u128) << 64)
    }

    /// The prefix delegated to session `n` (below 256), a /56.
    #[must_use]
    pub const fn delegated(n: u32) -> Ipv6Addr {
        Ipv6Addr::from_bits((Self::DELEGATED as u128 + ((n as u128) << 8)) << 64)
    }

    /// An address of session `n` in its /64.
    #[must_use]
    pub const fn address6(n: u32) -> Ipv6Addr {
        Ipv6Addr::from_bits(Self::prefix6(n).to_bits() | 0x1234)
    }

    /// Client MAC address of session `n`.
    #[must_use]
    pub const fn client_mac(n: u32) -> MacAddr {
        MacAddr::from_u64(0x02aa_0000_0000 | n as u64)
    }

    /// Port block of session `n`.
    #[must_use]
    pub fn block(&self, n: u32) -> PortBlock {
        let size = self.spec.block_size;
        let per_address = u32::from((u16::MAX - Self::FIRST_PORT) / size);
        let index = n / per_address;
        assert!(
            index < self.spec.nat_addresses,
            "more sessions than port blocks"
        );
        PortBlock {
            address: Ipv4Addr::from_bits(Self::NAT_FIRST.to_bits() + index),
            address_index: index as u16,
            first_port: Self::FIRST_PORT + (n % per_address) as u16 * size,
            size,
        }
    }

    /// The entry of session `n`: forwarding, behind NAT, in S-VLAN 100 and C-VLAN 1 + n mod 4000.
    #[must_use]
    pub fn session(&self, n: u32) -> Session {
        Session {
            generation: 0,
            state: SessionState::Forwarding,
            owner: (n % u32::from(self.spec.workers)) as u8,
            client_mac: Self::client_mac(n).0,
            vlans: Vlans {
                s_vlan: Some(100),
                c_vlan: Some(1 + (n % 4_000) as u16),
                outer_is_88a8: true,
            },
            mtu: 1_492,
            framed_ip: Self::framed_ip(n),
            gateway_ip: Self::GATEWAY,
            nat: Some(self.block(n)),
            policy: Self::POLICY,
            ipv6_prefix: (n < 256).then(|| Self::prefix6(n)),
            delegated: (n < 256).then(|| Delegated {
                prefix: Self::delegated(n),
                length: 56,
            }),
        }
    }

    /// Publishes session `n` as [`Self::session`] describes it.
    pub fn open(&mut self, n: u32) -> Session {
        let session = self.session(n);
        self.publish(Self::slot(n), session)
    }

    /// Publishes a session and what belongs to it; returns it with its generation.
    pub fn publish(&mut self, slot: SlotIndex, session: Session) -> Session {
        let generation = self
            .publisher
            .publish_session(slot, &session, &Record::default())
            .unwrap();
        let owner = Some(BlockOwner { slot, generation });
        match session.nat {
            Some(block) => self.publisher.set_block_owner(&block, owner).unwrap(),
            // Only addresses of the routed range have an owner word.
            None => drop(self.publisher.set_framed_owner(session.framed_ip, owner)),
        }
        let delegated = session.delegated.map(|delegated| delegated.prefix);
        for prefix in session.ipv6_prefix.into_iter().chain(delegated) {
            let high = (prefix.to_bits() >> 64) as u64;
            self.publisher.set_framed6_owner(high, owner).unwrap();
        }
        Session {
            generation,
            ..session
        }
    }

    /// Has a network behind a session's subscriber lead to it; workers look for it from their next poll on.
    pub fn lead_network(&mut self, slot: SlotIndex, session: &Session, network: Network) {
        let owner = NetworkOwner::new(slot, session.generation);
        let given = self.publisher.set_network_owner(network, Some(owner));
        given.unwrap();
        for worker in &mut self.workers {
            worker.poll(self.now_ms * 1_000_000);
        }
    }

    /// Changes a live session; its generation stays.
    pub fn update(&mut self, slot: SlotIndex, session: Session) {
        self.publisher
            .update_session(slot, &session, &Record::default())
            .unwrap();
    }

    /// Withdraws a session and frees its slot, as control does after the epoch.
    pub fn close(&mut self, slot: SlotIndex) {
        self.publisher.withdraw_session(slot).unwrap();
        self.publisher.free_session(slot).unwrap();
    }

    /// Lets time pass, with a poll of every worker each `step_ms`.
    pub fn pass(&mut self, ms: u64, step_ms: u64) {
        let end = self.now_ms + ms;
        while self.now_ms < end {
            self.now_ms = end.min(self.now_ms + step_ms);
            for worker in &mut self.workers {
                worker.poll(self.now_ms * 1_000_000);
            }
        }
    }

    /// Starts the workers anew over the same memory, as a restart of the dataplane does.
    #[must_use]
    pub fn restart(self) -> Self {
        let Self {
            spec,
            publisher,
            workers,
            fib,
            now_ms,
            settings,
        } = self;
        let workers = workers
            .into_iter()
            .map(|worker| FastPath::new(worker.into_shm(), &settings, now_ms))
            .collect();
        Self {
            spec,
            publisher,
            workers,
            fib,
            now_ms,
            settings,
        }
    }

    /// A room for later fragments of one worker.
    #[must_use]
    pub fn room(&self) -> WaitingRoom<TestBuf> {
        WaitingRoom::new(&self.settings.ports, Arc::clone(&self.settings.fragments))
    }

    /// Frames through a worker's upstream stages: verdicts and buffers as they are then.
    pub fn upstream(
        &mut self,
        worker: u8,
        mut bufs: Vec<TestBuf>,
        origin: Origin,
    ) -> Vec<(Verdict, TestBuf)> {
        let mut verdicts = vec![Verdict::Host { port: 255 }; bufs.len()];
        let before = self.snapshot(worker);
        self.workers[usize::from(worker)].upstream(&self.fib, &mut bufs, &mut verdicts, origin);
        conservation::check(&before, &self.snapshot(worker), &verdicts);
        verdicts.into_iter().zip(bufs).collect()
    }

    /// Frames through a worker's downstream stages.
    pub fn downstream(
        &mut self,
        worker: u8,
        mut bufs: Vec<TestBuf>,
        origin: Origin,
    ) -> Vec<(Verdict, TestBuf)> {
        let mut verdicts = vec![Verdict::Host { port: 255 }; bufs.len()];
        let before = self.snapshot(worker);
        self.workers[usize::from(worker)].downstream(&mut bufs, &mut verdicts, origin);
        conservation::check(&before, &self.snapshot(worker), &verdicts);
        verdicts.into_iter().zip(bufs).collect()
    }

    /// The tags of a session's frames.
    #[must_use]
    pub fn tags(session: &Session) -> VlanStack {
        let tag = |tpid, vid: u16| VlanTag { tpid, tci: vid };
        let outer = if session.vlans.outer_is_88a8 {
            ethertype::QINQ
        } else {
            ethertype::VLAN
        };
        match (session.vlans.s_vlan, session.vlans.c_vlan) {
            (Some(s), Some(c)) => VlanStack::double(tag(outer, s), tag(ethertype::VLAN, c)),
            (Some(s), None) => VlanStack::single(tag(outer, s)),
            _ => VlanStack::UNTAGGED,
        }
    }

    /// A frame of a session with this PPP protocol and payload, on its access port.
    #[must_use]
    pub fn ppp_frame(slot: SlotIndex, session: &Session, protocol: u16, payload: &[u8]) -> TestBuf {
        let port = slot.access_port();
        let client = MacAddr(session.client_mac);
        let tags = Self::tags(session);
        let frame = pppoe_session(
            Self::port_mac(port),
            client,
            &tags,
            slot.session_id(),
            protocol,
            payload,
        );
        TestBuf::new(port, &frame)
    }

    /// An IPv4 packet of a session, on its access port.
    #[must_use]
    pub fn from_subscriber(slot: SlotIndex, session: &Session, packet: &[u8]) -> TestBuf {
        Self::ppp_frame(slot, session, protocol::IPV4, packet)
    }

    /// An IPv4 packet from the next hop, on the first core port.
    #[must_use]
    pub fn from_core(&self, packet: &[u8]) -> TestBuf {
        let port = self.core_port();
        let frame = ethernet(
            Self::port_mac(port),
            Self::NEXT_HOP,
            ethertype::IPV4,
            packet,
        );
        TestBuf::new(port, &frame)
    }

    pub(super) fn snapshot(&self, worker: u8) -> Snapshot {
        Snapshot(
            self.publisher
                .worker_status(worker)
                .unwrap()
                .counters
                .to_vec(),
        )
    }

    /// What becomes of a frame with [`Verdict::Fragment`] after the stages, with `buffers` left in the pool.
    pub fn fragments(
        &mut self,
        worker: u8,
        mtu: u16,
        buf: TestBuf,
        buffers: usize,
    ) -> Vec<TestBuf> {
        let shm = self.workers[usize::from(worker)].shm();
        match fragment::split(buf, mtu, &mut TestPool { left: buffers }) {
            Ok(frames) => {
                shm.count(Counter::FragmentsMade, frames.len() as u64 - 1);
                frames.into_iter().collect()
            }
            Err((_, reason)) => {
                shm.count(reason, 1);
                Vec::new()
            }
        }
    }

    /// An IPv6 packet of a session, on its access port.
    #[must_use]
    pub fn from_subscriber6(slot: SlotIndex, session: &Session, packet: &[u8]) -> TestBuf {
        Self::ppp_frame(slot, session, protocol::IPV6, packet)
    }

    /// An IPv6 packet from the next hop, on the first core port.
    #[must_use]
    pub fn from_core6(&self, packet: &[u8]) -> TestBuf {
        let port = self.core_port();
        let (own, peer) = (Self::port_mac(port), Self::NEXT_HOP);
        TestBuf::new(port, &ethernet(own, peer, ethertype::IPV6, packet))
    }

    /// A worker's counters that are not zero.
    #[must_use]
    pub fn counted(&self, worker: u8) -> Vec<(Counter, u64)> {
        let counters = self.publisher.worker_status(worker).unwrap().counters;
        Counter::ALL
            .iter()
            .copied()
            .zip(counters)
            .filter(|(_, count)| *count != 0)
            .collect()
    }

    /// The events of a worker.
    pub fn events(&mut self, worker: u8) -> Vec<Event> {
        let mut events = Vec::new();
        while let Take::Item(Some(event)) = self.publisher.take_event(worker) {
            events.push(event);
        }
        events
    }
}
