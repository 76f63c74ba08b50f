//! Coalescing against its conformance cases, a reference model, and the dataplane without it.
//!
//! ```text
//!  case, recipe  --> frames --> drive (the coalescer alone) --> outputs --+
//!  traffic (random) --+    '--> model (plain and slow)      --> outputs --+-- order: the same frames together, the same
//!                     '-------> world (all stages, on, off) --> outputs --+   order wherever order is promised
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the helpers of tests fail as tests do"
)]

mod any_bytes;
mod case;
mod cases;
mod classify;
mod corners;
mod drive;
mod hazards;
mod mixed;
mod model;
mod on_off;
mod order;
mod random;
mod segmentation;
mod stages;
mod traffic;
