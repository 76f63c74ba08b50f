//! The log of NAT port blocks (RFC 6888 REQ-12): who had which public ports when.
//!
//! ```text
//!   driver -- opened, closed --> writer thread: Store (segments on disk, one fdatasync for all that wait)
//!          <-- `safe` ----------            |
//!                                           +--> one thread for each output: reads the segments from its own
//!   who? ---> the same segments                  cursor on, sends syslog (RFC 5424) or IPFIX (RFC 7011, 8158)
//! ```
//!
//! A block may be used when its `opened` is safe, so nobody ever had ports that the log does not know. An output that is slow or
//! gone holds up nobody: what it has not taken stays on disk.
//!
//! - [`frames`]: records with length and checksum in files that only grow.
//! - [`Record`]: what is known of a block.
//! - [`Log`]: the threads and their owner's end of them; [`Reader`] answers who had a port.

pub mod frames;
mod index;
mod ipfix;
mod log;
mod output;
mod record;
mod store;
mod syslog;
pub mod time;
mod who;

pub use index::{Counts, OutputView, View};
pub use log::{Log, Options, Reader, Safe, WhenFull, WhyNot};
pub use output::{OutputOptions, Protocol, Transport};
pub use record::{Block, Event, Key, Record};
pub use who::{Answer, Holder};
