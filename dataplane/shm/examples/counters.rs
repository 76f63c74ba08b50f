//! Prints docs/counters.md: `cargo run -p bng-shm --example counters > docs/counters.md`.

fn main() {
    print!("{}", bng_shm::counters_markdown());
}
