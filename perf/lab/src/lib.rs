//! The lab: a subscriber, a gateway and an internet host on one machine, out of network namespaces.
//!
//! ```text
//!   namespace NAME-sub                      namespace NAME-gw                       namespace NAME-net
//!  +-------------------------+         +------------------------------+         +-----------------------+
//!  | client (UML) -- tap0 -+ |         |        bng-dataplane         |         |  core0  198.51.100.2  |
//!  | tools  -- emu0==emu1 -+ | access0 |  access port     core port   | veth    |  lo     192.0.2.80    |
//!  |                 bridge +-=========-+ veth-access0  veth-core0 ====+=========+  web server           |
//!  +-------------------------+         |  TAP twin core0 198.51.100.1 |         +-----------------------+
//!                                      |        bng-controlplane      |
//!                                      +------------------------------+
//! ```
//!
//! The gateway's ports are DPDK `net_af_packet` devices on the veth ends. All addresses are from the documentation ranges
//! (RFC 5737) and the shared address space (RFC 6598), and no packet leaves the machine.
//!
//! [`Lab`] brings it up and takes it down; the demo (`bng-lab demo`) and every end-to-end test use it. Whatever happens,
//! nothing stays behind: see [`cleanup`].

mod api;
mod capture;
pub mod cleanup;
mod command;
mod conservation;
mod error;
mod events;
mod freeradius;
mod gateway;
mod guest;
mod inject;
mod namespace;
mod process;
mod topology;
mod wait;
pub mod www;

pub use api::{Api, Metrics};
pub use capture::{Capture, ChecksumReport, check_checksums, dissect};
pub use conservation::Books;
pub use error::{LabError, Result, log_tail};
pub use events::{Event, EventStream};
pub use freeradius::{Attributes, FreeRadius, RADIUS_SECRET, RadiusReply, radclient};
pub use gateway::{Daemon, GatewayConfig, RadiusConfig, User};
pub use guest::{GuestKernel, GuestNic, LinkUp, UmlGuest, pppd_status};
pub use inject::Injector;
pub use namespace::Namespace;
pub use process::Process;
pub use topology::{
    ACCESS_INTERFACE, CORE_INTERFACE, EMULATOR_INTERFACE, Lab, Launch, Programs, addresses,
};
pub use wait::wait_until;
