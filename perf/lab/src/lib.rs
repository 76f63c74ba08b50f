//! The lab on one machine: namespaces, real Linux client, both daemons; the demo and every end-to-end test.
