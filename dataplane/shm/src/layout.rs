//! Where everything lies in the mapping, computed from the capacities.
//!
//! ```text
//! header | worker blocks | port blocks | owners | sessions | records | NAT blocks | further NAT blocks
//!        | NAT reverse | framed addresses and prefixes | networks | pools | port addresses | policies | filters
//!        | routes | next hops
//!        | punt, inject and event rings
//! ```

use crate::bell::Bell;
use crate::blocks::FurtherWords;
use crate::counters::{COUNTERS, list_hash};
use crate::epoch::{Echo, Epoch};
use crate::filters::{FilterWords, MAX_FILTERS};
use crate::nat::REVERSE_PER_ADDRESS;
use crate::networks::{NETWORK_WORDS, NetworkSummary};
use crate::policy::{POLICIES, PolicyWords};
use crate::pools::{Pool6Words, PoolWords, PortAddressWords};
use crate::record::RecordSlot;
use crate::ring::{Indices, RingSlot};
use crate::session::SessionEntry;
use crate::shared::shared;
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// Version of the contract. Changes with every incompatible change of meaning.
pub const ABI_VERSION: u32 = 5;

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"ironbng\0");

/// Session slots per access port: one per PPPoE session id, so that the id is the index.
pub const SLOTS_PER_PORT: u32 = 65_536;
/// Port blocks kept per public address: 65,536 ports in blocks of at least 64.
pub const BLOCKS_PER_ADDRESS: u32 = 1_024;
/// Slots in each punt ring, of 2 KiB each: 32 MiB for a worker. 10,000 clients that dial in a second send 90,000 frames, so where
/// one worker gets all of them control may be away for 90 ms before discovery has used up its half, and for 180 ms before
/// sessions lose frames. Control works a whole ring off in about 100 ms, long before anybody asks again.
pub const PUNT_RING_SLOTS: usize = 16_384;
/// Slots in each inject ring. Control keeps what finds no room.
pub const INJECT_RING_SLOTS: usize = 1_024;
/// Words in a frame slot: 3 of description, the rest frame bytes.
pub(crate) const FRAME_WORDS: usize = 256;
/// Longest frame a punt or inject slot carries, in bytes.
pub const FRAME_MAX: usize = (FRAME_WORDS - 3) * 8;
/// Slots in each event ring.
pub(crate) const EVENT_RING_SLOTS: usize = 1_024;
/// Words in an event slot.
pub(crate) const EVENT_WORDS: usize = 4;

/// How large everything is. Both daemons compute it from the same configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacities {
    /// Access ports (1 to 16); the session table has 65,536 slots for each.
    pub access_ports: u32,
    /// All ports, access and core (1 to 32).
    pub ports: u32,
    /// Workers (1 to 64).
    pub workers: u32,
    /// Public addresses in all NAT pools together (0 to 65,536).
    pub nat_addresses: u32,
    /// Subscriber addresses in pools without NAT (0 to 2^24).
    pub framed_addresses: u32,
    /// IPv6 prefixes of all subscriber pools together (0 to 2^24).
    pub framed_prefixes: u32,
    /// IPv4 routes (1 to 2^22).
    pub routes: u32,
    /// IPv6 routes (1 to 2^21).
    pub routes6: u32,
    /// Next hops: gateways and neighbours (1 to 2^20).
    pub next_hops: u32,
}

/// A capacity out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("shared memory: {what} is {value}, allowed is {min} to {max}")]
pub struct CapacityError {
    /// Which capacity.
    pub what: &'static str,
    /// The value asked for.
    pub value: u32,
    /// Smallest allowed value.
    pub min: u32,
    /// Largest allowed value.
    pub max: u32,
}

impl Capacities {
    pub(crate) const FIELDS: usize = 9;

    pub(crate) fn fields(&self) -> [(&'static str, u32, u32, u32); Self::FIELDS] {
        [
            ("access_ports", self.access_ports, 1, 16),
            ("ports", self.ports, 1, 32),
            ("workers", self.workers, 1, 64),
            ("nat_addresses", self.nat_addresses, 0, 65_536),
            ("framed_addresses", self.framed_addresses, 0, 1 << 24),
            ("framed_prefixes", self.framed_prefixes, 0, 1 << 24),
            ("routes", self.routes, 1, 1 << 22),
            ("routes6", self.routes6, 1, 1 << 21),
            ("next_hops", self.next_hops, 1, 1 << 20),
        ]
    }

    /// The capacities of a gateway, from what its configuration counts, with the default route tables. Both daemons call
    /// this with the same file's counts, so that they need the same memory.
    #[must_use]
    pub const fn of_gateway(
        access_ports: u32,
        ports: u32,
        workers: u32,
        nat_addresses: u32,
        framed_addresses: u32,
    ) -> Self {
        Self {
            access_ports,
            ports,
            workers,
            nat_addresses,
            framed_addresses,
            framed_prefixes: 0,
            routes: 65_536,
            routes6: 65_536,
            // As many as entries of two bytes can tell apart in the DPDK FIBs.
            next_hops: 32_768,
        }
    }

    /// Checks every capacity against its range.
    ///
    /// # Errors
    /// The first capacity out of range.
    pub fn check(&self) -> Result<(), CapacityError> {
        for (what, value, min, max) in self.fields() {
            if value < min || value > max {
                return Err(CapacityError {
                    what,
                    value,
                    min,
                    max,
                });
            }
        }
        Ok(())
    }

    /// Session slots in the table.
    #[must_use]
    pub const fn session_slots(&self) -> u32 {
        self.access_ports * SLOTS_PER_PORT
    }
}

#[cfg(test)]
impl Capacities {
    /// The smallest table with a few of everything.
    pub(crate) const SMALL: Self = Self {
        access_ports: 1,
        ports: 2,
        workers: 1,
        nat_addresses: 4,
        framed_addresses: 4,
        framed_prefixes: 4,
        routes: 4,
        routes6: 4,
        next_hops: 4,
    };
}

/// First page of the mapping.
#[repr(C, align(4096))]
pub(crate) struct Header {
    pub(crate) magic: AtomicU64,
    pub(crate) abi_version: AtomicU32,
    pub(crate) ready: AtomicU32,
    pub(crate) layout_hash: AtomicU64,
    pub(crate) capacities: [AtomicU32; 16],
    pub(crate) boot_id: [AtomicU64; 2],
    pub(crate) control: Process,
    pub(crate) dataplane: Process,
    pub(crate) epoch: Epoch,
    pub(crate) control_bell: Bell,
    /// Sequence lock and counts of the pool and route sections.
    pub(crate) pools_version: AtomicU64,
    pub(crate) pools_count: AtomicU32,
    pub(crate) routes_count: AtomicU32,
    pub(crate) routes_version: AtomicU64,
    /// Route version the dataplane has put into its FIB.
    pub(crate) routes_applied: AtomicU64,
    pub(crate) pools6_count: AtomicU32,
    pub(crate) routes6_count: AtomicU32,
    pub(crate) filters_version: AtomicU64,
    pub(crate) routes6_version: AtomicU64,
    pub(crate) routes6_applied: AtomicU64,
    /// Routes of the version applied that found no room in the FIB: IPv4, IPv6.
    pub(crate) routes_refused: [AtomicU32; 2],
    /// Packet buffers of the dataplane, all and in use, stored about once a second.
    pub(crate) mbufs: [AtomicU32; 2],
    /// Where there are networks behind subscribers; under `pools_version`.
    pub(crate) networks: [AtomicU64; NetworkSummary::WORDS],
    /// A key of control's own, kept for its next run; zero for none.
    pub(crate) control_key: [AtomicU64; 2],
}

shared!(
    Header,
    Header {
        magic,
        abi_version,
        ready,
        layout_hash,
        capacities,
        boot_id,
        control,
        dataplane,
        epoch,
        control_bell,
        pools_version,
        pools_count,
        routes_count,
        routes_version,
        routes_applied,
        pools6_count,
        routes6_count,
        filters_version,
        routes6_version,
        routes6_applied,
        routes_refused,
        mbufs,
        networks,
        control_key,
    }
);

/// What a process says of itself.
#[repr(C, align(128))]
pub(crate) struct Process {
    pub(crate) pid: AtomicU32,
    /// How often a process of this role has attached to this memory.
    pub(crate) incarnation: AtomicU32,
    /// CLOCK_MONOTONIC in milliseconds, stored about once a second.
    pub(crate) heartbeat_ms: AtomicU64,
    /// Unix time of the attach, milliseconds.
    pub(crate) started_unix_ms: AtomicU64,
}

shared!(
    Process,
    Process {
        pid,
        incarnation,
        heartbeat_ms,
        started_unix_ms
    }
);

/// What one worker (or the host thread, last block) writes.
#[repr(C, align(128))]
pub(crate) struct WorkerBlock {
    pub(crate) echo: Echo,
    pub(crate) heartbeat_ms: AtomicU64,
    pub(crate) core: AtomicU32,
    pub(crate) nat_mappings: AtomicU32,
    /// Ticks of the time-stamp counter per second, the unit of the cycle counters.
    pub(crate) tsc_hz: AtomicU64,
    pub(crate) counters: CounterBlock,
    pub(crate) punt: Indices,
    pub(crate) inject: Indices,
    pub(crate) events: Indices,
}

shared!(
    WorkerBlock,
    WorkerBlock {
        echo,
        heartbeat_ms,
        core,
        nat_mappings,
        tsc_hz,
        counters,
        punt,
        inject,
        events,
    }
);

/// All counters of one worker, on lines of their own.
#[repr(C, align(128))]
pub(crate) struct CounterBlock(pub(crate) [AtomicU64; COUNTERS]);

shared!(CounterBlock, CounterBlock { 0 });

/// What the dataplane tells about a port.
#[repr(C, align(128))]
pub(crate) struct PortBlock {
    /// `state:8 | link:8 | mac:48`.
    pub(crate) mac_state: AtomicU64,
    pub(crate) mtu: AtomicU32,
    /// Kernel interface index of the TAP twin, 0 if none.
    pub(crate) twin_ifindex: AtomicU32,
    pub(crate) link_mbps: AtomicU32,
    pub(crate) steering: AtomicU32,
    /// Bits of [`crate::Offloads`].
    pub(crate) offloads: AtomicU32,
    /// Hardware statistics: ipackets, opackets, ibytes, obytes, imissed, ierrors, oerrors, rx_nombuf.
    pub(crate) stats: [AtomicU64; 8],
    /// Driver name, zero padded.
    pub(crate) driver: [AtomicU64; 4],
    /// Reason of the steering, zero padded.
    pub(crate) steering_reason: [AtomicU64; 16],
    /// Who segments and why, zero padded.
    pub(crate) segmentation_reason: [AtomicU64; 16],
}

shared!(
    PortBlock,
    PortBlock {
        mac_state,
        mtu,
        twin_ifindex,
        link_mbps,
        steering,
        offloads,
        stats,
        driver,
        steering_reason,
        segmentation_reason,
    }
);

/// One route: `address:32 | length:8` and the next hop's index.
#[repr(C)]
pub(crate) struct RouteWords(pub(crate) [AtomicU64; 2]);

shared!(RouteWords, RouteWords { 0 });

/// One IPv6 route: the prefix's halves, and `length:8 | next hop:32`.
#[repr(C)]
pub(crate) struct Route6Words(pub(crate) [AtomicU64; 3]);

shared!(Route6Words, Route6Words { 0 });

/// One next hop: `mac:48 | port:8 | kind:8`, and the halves of its address (IPv4 as ::ffff:a.b.c.d).
#[repr(C)]
pub(crate) struct NextHopWords {
    pub(crate) adjacency: AtomicU64,
    pub(crate) address: [AtomicU64; 2],
}

shared!(NextHopWords, NextHopWords { adjacency, address });

/// Slot of a punt or inject ring.
pub(crate) type FrameSlot = RingSlot<FRAME_WORDS>;
/// Slot of an event ring.
pub(crate) type EventSlot = RingSlot<EVENT_WORDS>;

/// A run of `T` in the mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: usize,
    pub(crate) count: usize,
}

/// The places of all sections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) workers: Place,
    pub(crate) ports: Place,
    pub(crate) owners: Place,
    pub(crate) sessions: Place,
    pub(crate) records: Place,
    pub(crate) nat_blocks: Place,
    pub(crate) further_blocks: Place,
    pub(crate) nat_reverse: Place,
    pub(crate) framed: Place,
    pub(crate) framed6: Place,
    pub(crate) networks: Place,
    pub(crate) pools: Place,
    pub(crate) pools6: Place,
    pub(crate) port_addresses: Place,
    pub(crate) policies: Place,
    pub(crate) filters: Place,
    pub(crate) routes: Place,
    pub(crate) routes6: Place,
    pub(crate) next_hops: Place,
    pub(crate) punt: Place,
    pub(crate) inject: Place,
    pub(crate) events: Place,
    pub(crate) len: usize,
}

/// Sections start at huge-page fractions that keep every type aligned.
const ALIGN: usize = 4_096;
/// Length granularity, so that the mapping also fits hugetlbfs.
const HUGE: usize = 2 << 20;

impl Layout {
    pub(crate) fn of(c: &Capacities) -> Self {
        let mut at = size_of::<Header>();
        let mut place = |size: usize, count: usize| {
            let offset = at.next_multiple_of(ALIGN);
            at = offset + size * count;
            Place { offset, count }
        };
        let slots = c.session_slots() as usize;
        let workers = c.workers as usize;
        let mut layout = Self {
            workers: place(size_of::<WorkerBlock>(), workers + 1),
            ports: place(size_of::<PortBlock>(), c.ports as usize),
            owners: place(size_of::<AtomicU8>(), slots),
            sessions: place(size_of::<SessionEntry>(), slots),
            records: place(size_of::<RecordSlot>(), slots),
            nat_blocks: place(
                size_of::<AtomicU64>(),
                c.nat_addresses as usize * BLOCKS_PER_ADDRESS as usize,
            ),
            further_blocks: place(size_of::<FurtherWords>(), slots),
            nat_reverse: place(
                size_of::<AtomicU64>(),
                c.nat_addresses as usize * REVERSE_PER_ADDRESS,
            ),
            framed: place(size_of::<AtomicU64>(), c.framed_addresses as usize),
            framed6: place(size_of::<AtomicU64>(), c.framed_prefixes as usize),
            networks: place(size_of::<AtomicU64>(), NETWORK_WORDS),
            pools: place(size_of::<PoolWords>(), crate::pools::MAX_POOL_RANGES),
            pools6: place(size_of::<Pool6Words>(), crate::pools::MAX_POOL6_RANGES),
            port_addresses: place(size_of::<PortAddressWords>(), c.ports as usize),
            policies: place(size_of::<PolicyWords>(), POLICIES as usize),
            filters: place(size_of::<FilterWords>(), MAX_FILTERS),
            routes: place(size_of::<RouteWords>(), c.routes as usize),
            routes6: place(size_of::<Route6Words>(), c.routes6 as usize),
            next_hops: place(size_of::<NextHopWords>(), c.next_hops as usize),
            punt: place(size_of::<FrameSlot>(), workers * PUNT_RING_SLOTS),
            inject: place(size_of::<FrameSlot>(), workers * INJECT_RING_SLOTS),
            events: place(size_of::<EventSlot>(), workers * EVENT_RING_SLOTS),
            len: 0,
        };
        layout.len = at.next_multiple_of(HUGE);
        layout
    }
}

pub(crate) const fn fnv(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        i += 1;
    }
    hash
}

/// Hash over the sizes of everything and over the counter list: two builds that disagree on any of
/// them have different hashes.
pub(crate) const LAYOUT_HASH: u64 = {
    let sizes = [
        size_of::<Header>(),
        size_of::<WorkerBlock>(),
        size_of::<PortBlock>(),
        size_of::<SessionEntry>(),
        size_of::<RecordSlot>(),
        size_of::<FurtherWords>(),
        size_of::<PoolWords>(),
        size_of::<Pool6Words>(),
        size_of::<PortAddressWords>(),
        size_of::<PolicyWords>(),
        size_of::<FilterWords>(),
        size_of::<RouteWords>(),
        size_of::<Route6Words>(),
        size_of::<NextHopWords>(),
        size_of::<FrameSlot>(),
        size_of::<EventSlot>(),
        PUNT_RING_SLOTS,
        INJECT_RING_SLOTS,
        EVENT_RING_SLOTS,
        crate::pools::MAX_POOL_RANGES,
        crate::pools::MAX_POOL6_RANGES,
        POLICIES as usize,
        MAX_FILTERS,
        NETWORK_WORDS,
        REVERSE_PER_ADDRESS,
        crate::nat::TICK_MS as usize,
        BLOCKS_PER_ADDRESS as usize,
    ];
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut i = 0;
    while i < sizes.len() {
        hash = fnv(hash, &(sizes[i] as u64).to_le_bytes());
        i += 1;
    }
    list_hash(hash)
};

/// What two sides disagree about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// Field of the header, in words.
    pub what: &'static str,
    /// What this process needs.
    pub ours: u64,
    /// What the memory says.
    pub theirs: u64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is {:#x} in the memory, this process needs {:#x}",
            self.what, self.theirs, self.ours
        )
    }
}
