//! A stand-in for `bng-controlplane`: writes sessions, routes and pools into the shared memory of a running dataplane.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bng_config::{Config, NatPool, PortRole};
use bng_dataplane::capacities::capacities;
use bng_shm::{
    Adjacency, BlockOwner, Counter, FRAME_MAX, NextHopId, Policy, PolicyId, PoolRange, PortBlock,
    PortState, Publisher, RangeKind, Record, Route, Session, SessionState, SlotIndex, Take, Vlans,
};
use bng_wire::ethernet::ethertype;
use bng_wire::{MacAddr, VlanStack};

use super::flows::Subscriber;

/// The one policy: nothing is limited, sources are checked.
const POLICY: PolicyId = PolicyId(1);
/// The router behind the core port.
const ROUTER: NextHopId = NextHopId(1);
/// MTU of the sessions, bytes of IP.
pub(crate) const SESSION_MTU: u16 = 1_492;
/// How long the dataplane may take to be ready, or to let go of sessions.
const LIMIT: Duration = Duration::from_secs(30);
/// How often rings are emptied and the dataplane is told that we live.
const PERIOD: Duration = Duration::from_millis(20);

/// The stand-in.
pub(crate) struct StandIn {
    publisher: Publisher,
    workers: u8,
    /// Index of the first access port and of the first core port among all ports.
    access: u8,
    core: u8,
    sessions: Vec<SlotIndex>,
    buffer: Box<[u8; FRAME_MAX]>,
    next: Instant,
}

fn first(config: &Config, role: PortRole) -> Result<u8> {
    (0u8..)
        .zip(&config.dataplane.ports)
        .find(|(_, port)| port.role == role)
        .map(|(index, _)| index)
        .with_context(|| format!("the configuration has no {} port", role.as_str()))
}

/// Address ranges in the order of their dense indices, as control publishes them.
fn ranges(config: &Config) -> Vec<PoolRange> {
    let nat = config.nat.pools.iter().flat_map(|pool| {
        pool.addresses.iter().map(|range| PoolRange {
            kind: RangeKind::Nat,
            first: range.network(),
            last: range.broadcast(),
            base: 0,
            block_size: pool.block_size,
            first_port: pool.first_port,
            rules: bng_shm::NatRules::default(),
        })
    });
    let subscribers = config.pools.iter().flat_map(|pool| {
        pool.ranges.iter().map(|range| PoolRange {
            kind: if pool.nat.is_some() {
                RangeKind::Subscriber
            } else {
                RangeKind::Routed
            },
            first: range.network(),
            last: range.broadcast(),
            base: 0,
            block_size: 0,
            first_port: 0,
            rules: bng_shm::NatRules::default(),
        })
    });
    nat.chain(subscribers).collect()
}

/// Port blocks of a NAT pool, in order.
fn blocks<'a>(config: &'a Config, pool: &'a NatPool) -> impl Iterator<Item = PortBlock> + 'a {
    let addresses = pool.addresses.iter().flat_map(|range| {
        (range.network().to_bits()..=range.broadcast().to_bits()).map(std::net::Ipv4Addr::from)
    });
    addresses.flat_map(move |address| {
        let index = config.nat.address_index(address).unwrap_or(u32::MAX) as u16;
        (0..pool.blocks_per_address()).map(move |block| PortBlock {
            address,
            address_index: index,
            first_port: pool.first_port + block * pool.block_size,
            size: pool.block_size,
        })
    })
}

/// Tags as the session table keeps them.
fn table_vlans(vlans: &VlanStack) -> Vlans {
    let outer = vlans.outer();
    Vlans {
        s_vlan: outer.map(|tag| tag.vid()),
        c_vlan: vlans.inner().map(|tag| tag.vid()),
        outer_is_88a8: outer.is_some_and(|tag| tag.tpid == ethertype::QINQ),
    }
}

impl StandIn {
    /// Takes the place of control. `router` is the MAC address behind the core port.
    pub(crate) fn attach(config: &Config, router: MacAddr) -> Result<Self> {
        let mut publisher = Publisher::attach(&config.shared_memory.path, capacities(config))
            .context("cannot take the place of bng-controlplane")?;
        let core = first(config, PortRole::Core)?;
        publisher.publish_pools(&ranges(config))?;
        publisher.write_policy(POLICY, Some(&Policy::default()))?;
        let neighbour = Adjacency::Neighbour {
            port: core,
            mac: router.0,
        };
        publisher.set_next_hop(ROUTER, [192, 0, 2, 1].into(), neighbour)?;
        publisher.publish_routes(&[Route {
            prefix: [0, 0, 0, 0].into(),
            length: 0,
            next_hop: ROUTER,
        }])?;
        Ok(Self {
            publisher,
            workers: u8::try_from(config.dataplane.workers.len())?,
            access: first(config, PortRole::Access)?,
            core,
            sessions: Vec::new(),
            buffer: Box::new([0; FRAME_MAX]),
            next: Instant::now(),
        })
    }

    fn wait(&self, what: &str, done: impl Fn(&Publisher) -> bool) -> Result<()> {
        let end = Instant::now() + LIMIT;
        while !done(&self.publisher) {
            if Instant::now() >= end {
                bail!(
                    "the dataplane did not {what} within {LIMIT:?}: does it run with this configuration?"
                );
            }
            // What is waited for lies in shared memory, which cannot wake us.
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Waits until both ports run and the route is in the FIB. Returns the access port's MAC address.
    pub(crate) fn wait_ready(&self) -> Result<MacAddr> {
        let mac = |publisher: &Publisher, port| {
            publisher
                .port_status(port)
                .filter(|status| status.state == PortState::Started)
                .map(|status| MacAddr(status.mac))
        };
        self.wait("start its ports and load the route", |publisher| {
            publisher.routes_in_fib()
                && mac(publisher, self.access).is_some()
                && mac(publisher, self.core).is_some()
        })?;
        mac(&self.publisher, self.access).context("the access port has gone")
    }

    /// Opens `count` sessions on the first access port, owned by the workers in turn, with addresses of the first pool.
    pub(crate) fn open(
        &mut self,
        config: &Config,
        count: u32,
        vlans: VlanStack,
        concentrator: MacAddr,
    ) -> Result<Vec<Subscriber>> {
        let pool = config.pools.first().context("no address pool")?;
        let nat = match &pool.nat {
            None => None,
            Some(name) => Some(config.nat.pool(name).context("no such NAT pool")?.1),
        };
        let mut blocks = nat.map(|nat| blocks(config, nat));
        let mut addresses = pool.usable();
        let mut subscribers = Vec::new();
        for index in 0..count {
            let address = addresses
                .next()
                .with_context(|| format!("pool {} has only {index} addresses", pool.name))?;
            let block = match &mut blocks {
                None => None,
                Some(blocks) => Some(
                    blocks
                        .next()
                        .with_context(|| format!("NAT pool has only {index} port blocks"))?,
                ),
            };
            let [_, a, b, c] = index.to_be_bytes();
            let mac = MacAddr([0x02, 0x62, 0x6e, a, b, c]);
            let session_id = u16::try_from(index + 1).context("at most 65,535 sessions")?;
            let slot = SlotIndex::new(0, session_id);
            let session = Session {
                state: SessionState::Forwarding,
                owner: (index % u32::from(self.workers)) as u8,
                client_mac: mac.0,
                vlans: table_vlans(&vlans),
                mtu: SESSION_MTU,
                framed_ip: address,
                gateway_ip: pool.gateway,
                nat: block,
                policy: POLICY,
                ..Session::NONE
            };
            let generation = self
                .publisher
                .publish_session(slot, &session, &Record::default())?;
            let owner = Some(BlockOwner { slot, generation });
            match &block {
                Some(block) => self.publisher.set_block_owner(block, owner)?,
                None => self.publisher.set_framed_owner(address, owner)?,
            }
            self.sessions.push(slot);
            subscribers.push(Subscriber {
                mac,
                concentrator,
                vlans,
                session_id,
                address,
            });
        }
        Ok(subscribers)
    }

    /// Does what control would do now and then. Cheap when nothing is due.
    pub(crate) fn poll(&mut self) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + PERIOD;
        self.publisher.heartbeat();
        for worker in 0..self.workers {
            while let Take::Item(_) = self.publisher.take_punted(worker, &mut self.buffer) {}
            while let Take::Item(_) = self.publisher.take_event(worker) {}
        }
    }

    /// The dataplane's counters that are above zero and say where a packet was lost: drops by reason and what ports missed.
    pub(crate) fn losses(&self) -> BTreeMap<String, u64> {
        let mut losses = BTreeMap::new();
        for worker in 0..=self.workers {
            let Some(status) = self.publisher.worker_status(worker) else {
                continue;
            };
            for counter in Counter::drops() {
                let count = status.counters.get(counter.index()).copied().unwrap_or(0);
                *losses.entry(counter.label().to_owned()).or_default() += count;
            }
        }
        for (name, port) in [("access", self.access), ("core", self.core)] {
            if let Some(status) = self.publisher.port_status(port) {
                let names = bng_shm::PortStatus::STAT_NAMES.iter().skip(4);
                for (stat, count) in names.zip(status.stats.iter().skip(4)) {
                    losses.insert(format!("{name}_port_{stat}"), *count);
                }
            }
        }
        losses.retain(|_, count| *count != 0);
        losses
    }

    /// MAC address of the core port.
    pub(crate) fn core_mac(&self) -> Option<MacAddr> {
        let status = self.publisher.port_status(self.core)?;
        Some(MacAddr(status.mac))
    }

    /// All counters of the dataplane, summed over workers and host thread, by [`Counter::index`].
    pub(crate) fn counters(&self) -> Vec<u64> {
        let mut sums = vec![0; Counter::ALL.len()];
        for worker in 0..=self.workers {
            if let Some(status) = self.publisher.worker_status(worker) {
                for (sum, count) in sums.iter_mut().zip(&status.counters) {
                    *sum += count;
                }
            }
        }
        sums
    }

    /// Takes the sessions back, as control does when they end.
    pub(crate) fn close(&mut self) -> Result<()> {
        for slot in &self.sessions {
            self.publisher.withdraw_session(*slot)?;
        }
        let token = self.publisher.advance_epoch();
        self.wait("let go of the sessions", |publisher| {
            publisher.epoch_passed(token)
        })?;
        for slot in self.sessions.drain(..) {
            self.publisher.free_session(slot)?;
        }
        Ok(())
    }
}
