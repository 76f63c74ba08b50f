//! bng-controlplane: PPP, AAA, session publishing, REST and metrics.
fn main() {}
