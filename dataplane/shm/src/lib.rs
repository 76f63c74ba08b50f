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
//! INV-RING-2 (`ring`), INV-EPOCH-1 (`epoch`).
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
mod counters;
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

pub use epoch::EpochToken;
pub use ring::Take;
pub use slot::{SessionState, SlotError, StateWord};

#[cfg(not(loom))]
pub use self::{
    attach::{AttachError, Role, monotonic_ms, unix_ms},
    counters::{COUNTERS, Counter, Group, counters_markdown},
    frames::{Event, FrameMeta, InjectedFrame, PuntClass, PuntedFrame, TooLong},
    layout::{
        ABI_VERSION, BLOCKS_PER_ADDRESS, Capacities, CapacityError, FRAME_MAX, FRAME_RING_SLOTS,
        Mismatch, SLOTS_PER_PORT,
    },
    mapping::prefetch,
    nat::{NatProtocol, REVERSE_PER_ADDRESS, Reverse, TICK_MS, reverse_index},
    pools::{MAX_POOL_RANGES, PoolRange, Pools, RangeKind},
    private::PrivateTable,
    publisher::{PublishError, Publisher, Waker},
    reader::{BlockOwner, Reader},
    record::{LINE_ID_MAX, NAME_MAX, Record},
    routes::{Adjacency, NextHopId, Route},
    session::{PortBlock, Sender, Session, SessionLine, SessionStats, SlotIndex, StatsCopy, Vlans},
    status::{PortState, PortStatus, ProcessStatus, RingFill, Steering, WorkerStatus},
    worker::{Dataplane, HostSide, Worker},
};
