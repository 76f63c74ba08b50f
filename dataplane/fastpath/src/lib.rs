//! The packet stages, upstream and downstream, free of DPDK and of unsafe code.
