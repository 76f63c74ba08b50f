//! What the dataplane may read.

use crate::blocks::{FurtherBlocks, FurtherWords};
use crate::filters::{Filter, Filters, MAX_FILTERS};
use crate::frames::address_of;
use crate::layout::{BLOCKS_PER_ADDRESS, Capacities};
use crate::mapping::{Tables, prefetch};
use crate::networks::{self, Network, NetworkOwner, NetworkSummary};
use crate::policy::{Policy, PolicyId, PolicyLine, PolicyPart};
use crate::pools::{Pool6Range, PoolRange, Pools, PortAddresses};
use crate::routes::{Adjacency, GROUP, NEIGHBOUR, NextHopId, Route, Route6};
use crate::session::{Session, SessionLine, SessionLine6, SessionStats, SlotIndex};
use crate::slot::SlotError;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{Ordering, fence};

/// A read-only view of the tables; cheap to clone, usable from any thread.
#[derive(Clone)]
pub struct Reader {
    pub(crate) tables: Tables,
    pub(crate) capacities: Capacities,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("capacities", &self.capacities)
            .finish_non_exhaustive()
    }
}

/// Whom a port block on a public address (or a routed address) belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockOwner {
    /// The session.
    pub slot: SlotIndex,
    /// Its generation, low 31 bits.
    pub generation: u32,
}

/// Mark of an owner word in use, in the top bit of the generation half.
const OWNED: u64 = 1 << 63;

impl BlockOwner {
    pub(crate) fn to_word(self) -> u64 {
        OWNED | u64::from(self.generation & 0x7fff_ffff) << 32 | u64::from(self.slot.0)
    }

    #[inline]
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        (word & OWNED != 0).then_some(Self {
            slot: SlotIndex(word as u32),
            generation: (word >> 32) as u32 & 0x7fff_ffff,
        })
    }
}

/// Worker index of a slot without an owner.
pub(crate) const NO_OWNER: u8 = 0;

impl Reader {
    /// How large everything is.
    #[must_use]
    pub fn capacities(&self) -> &Capacities {
        &self.capacities
    }

    /// A consistent copy of a session's entry; `None` when the slot does not exist.
    ///
    /// # Errors
    /// [`SlotError`] if control is (or died) in the middle of a write.
    #[inline]
    pub fn session(&self, slot: SlotIndex) -> Option<Result<Session, SlotError>> {
        self.tables
            .sessions
            .get(slot.0 as usize)
            .map(|entry| entry.read())
    }

    /// As [`Self::session`], not taken apart.
    ///
    /// # Errors
    /// [`SlotError::Busy`].
    #[inline(always)]
    pub fn session_line(&self, slot: SlotIndex) -> Option<Result<SessionLine, SlotError>> {
        self.tables
            .sessions
            .get(slot.0 as usize)
            .map(|entry| entry.line())
    }

    /// As [`Self::session_line`], only if the session forwards, worker `owner` owns it and control is not writing: else
    /// `None`, and [`Self::session_line`] tells why.
    #[inline(always)]
    #[must_use]
    pub fn open_session(&self, slot: SlotIndex, owner: u8) -> Option<SessionLine> {
        self.tables.sessions.get(slot.0 as usize)?.open_line(owner)
    }

    /// As [`Self::session_line`], with what IPv6 needs.
    ///
    /// # Errors
    /// [`SlotError::Busy`].
    #[inline(always)]
    pub fn session_line6(&self, slot: SlotIndex) -> Option<Result<SessionLine6, SlotError>> {
        self.tables
            .sessions
            .get(slot.0 as usize)
            .map(|entry| entry.line6())
    }

    /// The policy a session names, read after its entry (INV-POLICY-1); `None` if there is none: then nothing may pass.
    #[inline(always)]
    #[must_use]
    pub fn policy_line(&self, id: PolicyId) -> Option<PolicyLine> {
        self.tables.policies.get(usize::from(id.0))?.line()
    }

    /// As [`Self::policy_line`], what concerns usual packets from the subscriber.
    #[inline(always)]
    #[must_use]
    pub fn policy_up(&self, id: PolicyId) -> Option<PolicyPart> {
        self.tables.policies.get(usize::from(id.0))?.part(true)
    }

    /// As [`Self::policy_line`], what concerns usual packets to the subscriber.
    #[inline(always)]
    #[must_use]
    pub fn policy_down(&self, id: PolicyId) -> Option<PolicyPart> {
        self.tables.policies.get(usize::from(id.0))?.part(false)
    }

    /// As [`Self::policy_line`], all of it.
    #[must_use]
    pub fn policy(&self, id: PolicyId) -> Option<Policy> {
        self.tables.policies.get(usize::from(id.0))?.read()
    }

    /// Starts loading a session's entry.
    #[inline(always)]
    pub fn prefetch_session(&self, slot: SlotIndex) {
        if let Some(entry) = self.tables.sessions.get(slot.0 as usize) {
            prefetch(&entry.slot);
        }
    }

    /// Starts loading a session's counters. Apart from [`Self::prefetch_session`], since a core loads only so many lines
    /// at once: each is asked for one stage before it is needed.
    #[inline(always)]
    pub fn prefetch_stats(&self, slot: SlotIndex) {
        if let Some(entry) = self.tables.sessions.get(slot.0 as usize) {
            prefetch(&entry.stats);
        }
    }

    /// Index of the worker that owns the slot; `None` when it holds no session (or does not exist).
    /// One byte per session, so that a worker that does not own it touches no other line of it.
    #[inline]
    #[must_use]
    pub fn owner(&self, slot: SlotIndex) -> Option<u8> {
        match self
            .tables
            .owners
            .get(slot.0 as usize)?
            .load(Ordering::Relaxed)
        {
            NO_OWNER => None,
            owner => Some(owner - 1),
        }
    }

    /// A session's counters.
    #[inline]
    #[must_use]
    pub fn stats(&self, slot: SlotIndex) -> Option<&SessionStats> {
        self.tables
            .sessions
            .get(slot.0 as usize)
            .map(|entry| &entry.stats)
    }

    /// The session a port of a public address belongs to.
    #[inline]
    #[must_use]
    pub fn block_owner(
        &self,
        range: &PoolRange,
        address: Ipv4Addr,
        port: u16,
    ) -> Option<BlockOwner> {
        let index = block_index(range, address, port)?;
        BlockOwner::from_word(self.tables.nat_blocks.get(index)?.load(Ordering::Acquire))
    }

    /// The port blocks a live session has beside the one in its entry.
    #[inline]
    #[must_use]
    pub fn further_blocks(&self, slot: SlotIndex) -> FurtherBlocks {
        let words = self.tables.further_blocks.get(slot.0 as usize);
        words.map_or_else(FurtherBlocks::default, FurtherWords::read)
    }

    /// Starts loading what [`Reader::block_owner`] reads.
    #[inline]
    pub fn prefetch_block(&self, range: &PoolRange, address: Ipv4Addr, port: u16) {
        if let Some(index) = block_index(range, address, port) {
            self.tables.nat_blocks.prefetch(index);
        }
    }

    /// The session a routed subscriber address belongs to.
    #[inline]
    #[must_use]
    pub fn framed_owner(&self, range: &PoolRange, address: Ipv4Addr) -> Option<BlockOwner> {
        let index = usize::try_from(range.index_of(address)?).ok()?;
        BlockOwner::from_word(self.tables.framed.get(index)?.load(Ordering::Acquire))
    }

    /// Starts loading what [`Reader::framed_owner`] reads.
    #[inline]
    pub fn prefetch_framed(&self, range: &PoolRange, address: Ipv4Addr) {
        if let Some(at) = range
            .index_of(address)
            .and_then(|at| usize::try_from(at).ok())
        {
            self.tables.framed.prefetch(at);
        }
    }

    /// The session of the network behind a subscriber that an address lies in; `summary` says where there are any.
    #[inline]
    #[must_use]
    pub fn network_owner(&self, summary: &NetworkSummary, address: u32) -> Option<NetworkOwner> {
        networks::find(&self.tables.networks, summary, address)
    }

    /// All networks behind subscribers.
    pub fn networks(&self) -> impl Iterator<Item = (Network, NetworkOwner)> {
        networks::all(&self.tables.networks)
    }

    /// The session a subscriber's IPv6 prefix (the upper half of an address in it) belongs to.
    #[inline]
    #[must_use]
    pub fn framed6_owner(&self, range: &Pool6Range, high: u64) -> Option<BlockOwner> {
        let index = usize::try_from(range.index_of(high)?).ok()?;
        BlockOwner::from_word(self.tables.framed6.get(index)?.load(Ordering::Acquire))
    }

    /// Starts loading what [`Reader::framed6_owner`] reads.
    #[inline]
    pub fn prefetch_framed6(&self, range: &Pool6Range, high: u64) {
        if let Some(index) = range.index_of(high).and_then(|at| usize::try_from(at).ok()) {
            self.tables.framed6.prefetch(index);
        }
    }

    /// The next hop a flow with this hash takes: a member of the group if `id` is one, else `id` itself. Which member is
    /// the upper bits' choice, so that a hash whose lower bits chose the worker still spreads.
    #[inline]
    #[must_use]
    pub fn member(&self, id: NextHopId, hash: u32) -> NextHopId {
        let word = self
            .tables
            .next_hops
            .get(id.0 as usize)
            .map_or(0, |hop| hop.adjacency.load(Ordering::Acquire));
        if word >> 56 != GROUP {
            return id;
        }
        let count = word >> 32 & 0xff;
        NextHopId((word as u32).wrapping_add(((u64::from(hash) * count) >> 32) as u32))
    }

    /// Where a next hop leads.
    #[inline]
    #[must_use]
    pub fn adjacency(&self, id: NextHopId) -> Adjacency {
        self.tables
            .next_hops
            .get(id.0 as usize)
            .map_or(Adjacency::NoRoute, |hop| {
                Adjacency::from_word(hop.adjacency.load(Ordering::Acquire))
            })
    }

    /// Port and MAC address of a next hop that is a neighbour with a known address, [`Adjacency::Neighbour`]; the MAC
    /// address is followed by two bytes without meaning.
    #[inline(always)]
    #[must_use]
    pub fn neighbour(&self, id: NextHopId) -> Option<(u8, [u8; 8])> {
        let word = self
            .tables
            .next_hops
            .get(id.0 as usize)?
            .adjacency
            .load(Ordering::Acquire);
        (word >> 56 == NEIGHBOUR).then_some(((word >> 48) as u8, word.to_le_bytes()))
    }

    /// A next hop's address (for a request to resolve it).
    #[must_use]
    pub fn next_hop_address(&self, id: NextHopId) -> IpAddr {
        self.tables
            .next_hops
            .get(id.0 as usize)
            .map_or(Ipv4Addr::UNSPECIFIED.into(), |hop| {
                address_of(std::array::from_fn(|i| {
                    hop.address[i].load(Ordering::Relaxed)
                }))
            })
    }

    /// Refreshes a copy of the pool ranges if control has changed them; true when it did.
    /// In the middle of a change the old copy stays and the next call tries again.
    #[inline]
    pub fn refresh_pools(&self, pools: &mut Pools) -> bool {
        let header = &self.tables.header[0];
        let version = header.pools_version.load(Ordering::Acquire);
        if version == pools.version || version & 1 == 1 {
            return false;
        }
        let count = header.pools_count.load(Ordering::Relaxed) as usize;
        let ranges: Vec<_> = self
            .tables
            .pools
            .iter()
            .take(count)
            .filter_map(|w| {
                PoolRange::from_words(std::array::from_fn(|i| w.0[i].load(Ordering::Relaxed)))
            })
            .collect();
        let count6 = header.pools6_count.load(Ordering::Relaxed) as usize;
        let ranges6 = self.tables.pools6.iter().take(count6).filter_map(|w| {
            Pool6Range::from_words(std::array::from_fn(|i| w.0[i].load(Ordering::Relaxed)))
        });
        let ranges6 = ranges6.collect();
        let addresses = self.tables.port_addresses.iter().map(|w| {
            PortAddresses::from_words(std::array::from_fn(|i| w.0[i].load(Ordering::Relaxed)))
        });
        let addresses = addresses.collect();
        let networks = std::array::from_fn(|i| header.networks[i].load(Ordering::Relaxed));
        let networks = NetworkSummary::from_words(networks);
        fence(Ordering::Acquire);
        if header.pools_version.load(Ordering::Relaxed) != version {
            return false;
        }
        *pools = Pools::new(ranges, ranges6, addresses, networks, version);
        true
    }

    /// As [`Self::refresh_pools`] for the rule sets.
    #[inline]
    pub fn refresh_filters(&self, filters: &mut Filters) -> bool {
        let header = &self.tables.header[0];
        let version = header.filters_version.load(Ordering::Acquire);
        if version == filters.version || version & 1 == 1 {
            return false;
        }
        let sets = self.tables.filters.iter().take(MAX_FILTERS).map(|words| {
            Filter::from_words(words.head.load(Ordering::Relaxed), |at| {
                std::array::from_fn(|i| words.rules[at][i].load(Ordering::Relaxed))
            })
        });
        let sets = sets.collect();
        fence(Ordering::Acquire);
        if header.filters_version.load(Ordering::Relaxed) != version {
            return false;
        }
        *filters = Filters { sets, version };
        true
    }

    /// As [`Self::refresh_routes`] for IPv6.
    pub fn refresh_routes6(&self, version: u64, routes: &mut Vec<Route6>) -> Option<u64> {
        let header = &self.tables.header[0];
        let now = header.routes6_version.load(Ordering::Acquire);
        if now == version || now & 1 == 1 {
            return None;
        }
        let count = header.routes6_count.load(Ordering::Relaxed) as usize;
        routes.clear();
        routes.extend(self.tables.routes6.iter().take(count).filter_map(|w| {
            Route6::from_words(std::array::from_fn(|i| w.0[i].load(Ordering::Relaxed)))
        }));
        fence(Ordering::Acquire);
        (header.routes6_version.load(Ordering::Relaxed) == now).then_some(now)
    }

    /// Copies all routes if control has changed them since `version` (0 at first); returns the new
    /// version. On `None` nothing has changed, or control was in the middle of a change: then the next
    /// call tries again, and what is in `routes` means nothing.
    pub fn refresh_routes(&self, version: u64, routes: &mut Vec<Route>) -> Option<u64> {
        let header = &self.tables.header[0];
        let now = header.routes_version.load(Ordering::Acquire);
        if now == version || now & 1 == 1 {
            return None;
        }
        let count = header.routes_count.load(Ordering::Relaxed) as usize;
        routes.clear();
        routes.extend(self.tables.routes.iter().take(count).filter_map(|w| {
            Route::from_words(std::array::from_fn(|i| w.0[i].load(Ordering::Relaxed)))
        }));
        fence(Ordering::Acquire);
        (header.routes_version.load(Ordering::Relaxed) == now).then_some(now)
    }
}

/// Index into the port-block table; `None` for an address outside the range, a port below its first, or
/// a block size with
/// which a port would fall among the next address's blocks.
#[inline]
pub(crate) fn block_index(range: &PoolRange, address: Ipv4Addr, port: u16) -> Option<usize> {
    let above = port.checked_sub(range.first_port)?;
    let block = u32::from(above.checked_div(range.block_size)?);
    if block >= BLOCKS_PER_ADDRESS {
        return None;
    }
    let at = range.index_of(address)? * u64::from(BLOCKS_PER_ADDRESS) + u64::from(block);
    usize::try_from(at).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pools::RangeKind;
    use crate::worker::Dataplane;

    #[test]
    fn nonsense_in_a_range_is_an_unknown_block_not_an_overflow() {
        let range = PoolRange {
            kind: RangeKind::Nat,
            first: Ipv4Addr::new(10, 0, 0, 4),
            last: Ipv4Addr::BROADCAST,
            base: u32::MAX,
            block_size: 64,
            first_port: 0,
            rules: crate::pools::NatRules::default(),
        };
        let beyond = block_index(&range, Ipv4Addr::BROADCAST, 65_535).unwrap();
        let (dataplane, _publisher) = Dataplane::in_process(Capacities::SMALL).unwrap();
        let reader = dataplane.reader();
        assert!(beyond > Capacities::SMALL.nat_addresses as usize * BLOCKS_PER_ADDRESS as usize);
        assert_eq!(
            reader.block_owner(&range, Ipv4Addr::BROADCAST, 65_535),
            None
        );
        reader.prefetch_block(&range, Ipv4Addr::BROADCAST, 65_535);
        assert_eq!(reader.framed_owner(&range, Ipv4Addr::BROADCAST), None);
        let before = Ipv4Addr::new(10, 0, 0, 3);
        assert_eq!(block_index(&range, before, 0), None);
        assert_eq!(reader.framed_owner(&range, before), None);
        let ends = PoolRange {
            last: range.first,
            base: 0,
            ..range
        };
        assert_eq!(block_index(&ends, Ipv4Addr::new(10, 0, 0, 5), 0), None);
        for block_size in [0, 1, 63] {
            let small = PoolRange {
                block_size,
                base: 0,
                ..range
            };
            assert_eq!(
                block_index(&small, range.first, 65_535),
                None,
                "{block_size}"
            );
        }
    }

    #[test]
    fn an_owner_survives_its_word() {
        let owner = BlockOwner {
            slot: SlotIndex(0xf_ffff),
            generation: 0x7fff_ffff,
        };
        assert_eq!(BlockOwner::from_word(owner.to_word()), Some(owner));
        assert_eq!(BlockOwner::from_word(0), None);
    }
}
