//! The operator's command line over the REST interface.
fn main() {}
