//! Raw FFI to DPDK: bindgen output plus a small C shim for the static inline functions.
