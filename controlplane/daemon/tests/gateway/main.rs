//! The control plane over real shared memory, with this test in the place of the workers and of the subscribers.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that finds something missing has failed"
)]

mod aaa_terms;
mod adoption;
mod client;
mod dialing;
mod happenings;
mod history;
mod ipv6;
mod kernel_tables;
mod limits;
mod nat_log;
mod networks;
mod policies;
mod quota;
mod radius;
mod radius_questions;
mod reloading;
mod rest_interface;
mod world;
