//! Nor one with a field that the check was not told of.

#[path = "../../src/shared.rs"]
mod shared;

use std::sync::atomic::AtomicU64;

#[repr(C)]
struct Counted {
    packets: AtomicU64,
    bytes: u64,
}

shared::shared!(Counted, Counted { packets });

fn main() {}
