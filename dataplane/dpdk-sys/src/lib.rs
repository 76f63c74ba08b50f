//! Raw FFI to DPDK 22.11 or later: bindgen output plus a small C shim for the static inline functions.
//!
//! - `rte_*` are DPDK's own out-of-line functions.
//! - `shim_*` are the functions, structures and constants of `shim/shim.h`. On the packet path (receive, transmit, ring,
//!   allocate, free) one call moves a whole burst.
//! - [`shim_mbuf`] is a flat view of `struct rte_mbuf`: cast a `*mut rte_mbuf` to it and read its fields in place. The shim
//!   does not compile against a DPDK whose `rte_mbuf` differs, and `tests/layout.rs` compares the Rust side.
//!
//! Building this crate, its documentation included, needs the DPDK development files (pkg-config name `libdpdk`), a C
//! compiler and libclang. Linking is dynamic, as the distribution's `libdpdk.pc` says; EAL loads the poll mode drivers at
//! run time from the directory compiled into it.

mod bindings {
    #![allow(
        missing_docs,
        non_camel_case_types,
        non_snake_case,
        non_upper_case_globals,
        unreachable_pub,
        unsafe_op_in_unsafe_fn,
        clippy::all,
        clippy::undocumented_unsafe_blocks,
        clippy::missing_safety_doc,
        clippy::cast_ptr_alignment
    )]

    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;
