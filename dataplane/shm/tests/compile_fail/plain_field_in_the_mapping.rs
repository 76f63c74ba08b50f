//! A structure with a plain field cannot lie in the mapping.

#[path = "../../src/shared.rs"]
mod shared;

use std::sync::atomic::AtomicU64;

#[repr(C)]
struct Counted {
    packets: AtomicU64,
    bytes: u64,
}

shared::shared!(Counted, Counted { packets, bytes });

fn main() {}
