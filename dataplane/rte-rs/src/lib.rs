//! Safe DPDK: EAL, ports, queues, mempools, mbufs, rings, FIB.
