//! The shared-memory contract between the control plane and the dataplane.
//!
//! One mapping holds the session table, NAT port blocks and reverse mappings, routes and next hops,
//! worker counters, epochs and the punt, inject and event rings. It outlives both processes.
//!
//! - [`Publisher`] is control's side: the only writer of tables, guarded by a file lock.
//! - [`Dataplane`] is the forwarding process's side; it hands out one [`Worker`] per worker and one
//!   [`HostSide`] for the host path. [`Reader`] is what any thread of it may read.
//!
//! Writing a table from the dataplane side does not compile: the methods are not there.
//!
//! Invariants named here and referred to at both ends: INV-SLOT-1 (`slot`), INV-RING-1 and
//! INV-RING-2 (`ring`), INV-EPOCH-1 (`epoch`), INV-POLICY-1 (`policy`), INV-INJECT-1 (`frames`).
//!
//! Nothing read from the mapping is trusted: indices are checked, enumerations have a "none of ours"
//! answer, and sizes come from this process's own configuration.

#![cfg_attr(
    loom,
    allow(dead_code, reason = "of the crate, loom sees the protocols alone")
)]

mod bell;
mod epoch;
mod ring;
mod slot;
mod sync;

#[cfg(all(loom, test))]
mod model;

#[cfg(not(loom))]
mod attach;
#[cfg(not(loom))]
mod blocks;
#[cfg(not(loom))]
mod counters;
#[cfg(not(loom))]
mod filters;
#[cfg(not(loom))]
mod frames;
#[cfg(all(test, not(loom)))]
mod killed;
#[cfg(not(loom))]
mod layout;
#[cfg(not(loom))]
mod lock;
#[cfg(not(loom))]
mod mapping;
#[cfg(not(loom))]
mod nat;
#[cfg(not(loom))]
mod networks;
#[cfg(not(loom))]
mod policy;
#[cfg(not(loom))]
mod pools;
#[cfg(not(loom))]
mod private;
#[cfg(not(loom))]
mod publisher;
#[cfg(not(loom))]
mod reader;
#[cfg(not(loom))]
mod record;
#[cfg(not(loom))]
mod routes;
#[cfg(not(loom))]
mod session;
#[cfg(not(loom))]
mod shared;
#[cfg(not(loom))]
mod status;
#[cfg(not(loom))]
mod worker;

pub use epoch::{EpochToken, SeenEpoch};
pub use ring::Take;
pub use slot::{SessionState, SlotError, StateWord};

#[cfg(not(loom))]
pub use self::{
    attach::{AttachError, Role, monotonic_ms, monotonic_ns, unix_ms},
    blocks::{FurtherBlocks, MAX_FURTHER_BLOCKS},
    counters::{COUNTERS, Counter, Group, counters_markdown},
    filters::{Filter, FilterAction, FilterId, FilterRule, Filters, MAX_FILTERS, MAX_RULES},
    frames::{Event, FrameMeta, InjectedFrame, PuntClass, PuntedFrame, TooLong},
    layout::{
        ABI_VERSION, BLOCKS_PER_ADDRESS, Capacities, CapacityError, FRAME_MAX, INJECT_RING_SLOTS,
        Mismatch, PUNT_RING_SLOTS, SLOTS_PER_PORT,
    },
    mapping::prefetch,
    nat::{NatProtocol, REVERSE_PER_ADDRESS, Reverse, TICK_MS, reverse_index},
    networks::{MAX_NETWORKS, NETWORK_LENGTH_MIN, Network, NetworkOwner, NetworkSummary},
    policy::{MAX_RATE_KBPS, Meter, POLICIES, Policy, PolicyId, PolicyLine, PolicyPart, Rate},
    pools::{
        MAX_POOL_RANGES, MAX_POOL6_RANGES, NatRules, Pool6Range, PoolRange, Pools, PortAddresses,
        RangeKind,
    },
    private::PrivateTable,
    publisher::{PublishError, Publisher, Waker},
    reader::{BlockOwner, Reader},
    record::{LINE_ID_MAX, NAME_MAX, Record, TERMS_MAX},
    routes::{Adjacency, MAX_GROUP, NextHopId, Route, Route6},
    session::{
        Delegated, Policed, PortBlock, Sender, Session, SessionLine, SessionLine6, SessionStats,
        SlotIndex, StatsCopy, Vlans,
    },
    status::{Offloads, PortState, PortStatus, ProcessStatus, RingFill, Steering, WorkerStatus},
    worker::{Dataplane, HostSide, Worker},
};
