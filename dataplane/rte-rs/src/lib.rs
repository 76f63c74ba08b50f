//! Safe DPDK for one poll-mode process: EAL, ports and their queues, mempools, mbufs, rings, FIBs and flow rules.
//!
//! ```no_run
//! use arrayvec::ArrayVec;
//! use rte_rs::{Eal, EalArgs, Mbuf, Memory, Mempool, MempoolConfig, Port, PortConfig};
//!
//! # fn main() -> Result<(), rte_rs::Error> {
//! let eal = Eal::init(&EalArgs::new("bng").memory(Memory::HugepagesUnlinked))?;
//! let pool = Mempool::create(&eal, &MempoolConfig::new("access", 65_535))?;
//! let mut port = Port::probe(&eal, "0000:3b:00.0")?;
//! port.configure(&PortConfig { rx_queues: 2, tx_queues: 2, ..PortConfig::default() }, &pool)?;
//! let queues = port.start()?;
//! for (mut rx, mut tx) in queues.rx.into_iter().zip(queues.tx) {
//!     let eal = eal.clone();
//!     std::thread::spawn(move || {
//!         // Pin the thread first: registration records the affinity it finds.
//!         let _registered = eal.register_thread()?;
//!         let mut burst: ArrayVec<Mbuf, 32> = ArrayVec::new();
//!         loop {
//!             rx.burst(&mut burst);
//!             tx.burst(&mut burst);
//!             Mbuf::free_bulk(&mut burst); // what the device did not take
//!         }
//!         # #[allow(unreachable_code)]
//!         Ok::<(), rte_rs::Error>(())
//!     });
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What the types guarantee
//!
//! - A queue is polled by one thread: [`RxQueue`] and [`TxQueue`] exist once per port and queue, can be sent to another
//!   thread and cannot be cloned. A port does not stop while one of its queue handles exists.
//! - An [`Mbuf`] is owned: it is in one place, and goes back to its pool when it is dropped.
//! - Objects keep EAL alive: its clean-up runs when the last [`Eal`] clone and the last object made from it are gone. It is
//!   left out while an mbuf is still outside its pool, since that would unmap the memory under it.
//!
//! # Cost
//!
//! Reading and changing an mbuf is plain memory access, inlined. Receive, transmit, ring transfers, bulk allocation and
//! bulk free are one C call per burst. What costs a call per packet is [`Mempool::alloc`], and dropping an `Mbuf` alone.

mod burst;
mod eal;
mod eal_args;
mod error;
mod fib;
mod flags;
mod flow;
mod mac;
mod mbuf;
mod mempool;
mod port;
mod port_config;
mod port_stats;
mod queue;
mod ring;
mod thread;

pub use burst::Burst;
pub use eal::{Eal, tsc, version};
pub use eal_args::{EalArgs, Memory};
pub use error::{Errno, Error};
pub use fib::{
    Family, Fib4Reader, Fib4Writer, Fib6Reader, Fib6Writer, FibConfig, FibReader, FibWriter,
    NextHopSize, V4, V6, fib,
};
pub use flags::{RssTypes, RxOffloads, TxOffloads, ol_flags};
pub use flow::{PppoeMatch, PppoeRule};
pub use mac::{MacAddr, ParseMacError};
pub use mbuf::{Chain, Mbuf, RxChecksum, Segments, TxLengths};
pub use mempool::{Mempool, MempoolConfig};
pub use port::{Port, Queues};
pub use port_config::{AppliedConfig, LinkStatus, PortConfig, PortInfo, QueueKind};
pub use port_stats::{PortStats, Xstat};
pub use queue::{RxQueue, TxQueue};
pub use ring::{Consumer, MpProducer, Producer, RingConfig, mp_sc_ring, sp_sc_ring};
pub use thread::RegisteredThread;

/// Bytes in front of the data of a fresh mbuf, for headers to prepend (`RTE_PKTMBUF_HEADROOM`, 128 in distribution builds).
pub const HEADROOM: u16 = dpdk_sys::SHIM_PKTMBUF_HEADROOM;
