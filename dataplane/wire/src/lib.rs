//! Packet headers read in place, and Internet checksums.
