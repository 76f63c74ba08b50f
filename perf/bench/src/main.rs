//! Benchmarks, subscriber emulator and traffic reflector.
fn main() {}
