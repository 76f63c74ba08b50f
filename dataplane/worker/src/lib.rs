//! The forwarding process as a library: the binary `bng-dataplane` and the benchmarks use it.

pub mod backoff;
pub mod capacities;
pub mod dispatch;
pub mod fib_mirror;
pub mod frame;
pub mod host;
pub mod inject;
pub mod path;
pub mod ports;
pub mod segmentation;
pub mod steering;
pub mod super_packet;
pub mod tx;
pub mod worker;
