//! bng-dataplane: the poll-mode forwarding process.
fn main() {}
