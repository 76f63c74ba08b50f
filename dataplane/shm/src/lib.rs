//! The shared-memory contract between control plane and dataplane.
