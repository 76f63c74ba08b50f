//! The control plane's process: drives the PPP engine, AAA and pools, publishes to shared memory, mirrors the kernel's routes,
//! and answers REST and Prometheus. It owns no packet path: however slow it is, traffic is not.

mod adopt;
mod answers;
pub mod causes;
pub mod coalescing;
pub mod driver;
mod dynamic;
pub mod grants;
mod health;
mod history;
mod inject;
pub mod kernel;
mod life;
pub mod limits;
mod load;
mod metrics;
pub mod netlink;
mod next_hops;
pub mod policies;
pub mod policy_change;
pub mod policy_view;
mod port_macs;
mod presence;
mod publish;
pub mod radius;
pub mod request;
pub mod rest;
pub mod said;
pub mod selection;
pub mod sessions;
pub mod settings;
pub mod status;
pub mod tally;
pub mod terms;
mod twin;
pub mod views;
mod withdrawals;
