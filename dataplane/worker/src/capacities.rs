//! The sizes of the shared memory that a configuration asks for.

use bng_config::Config;
use bng_shm::Capacities;

/// Capacities for this configuration. Counts beyond `u32` end up at its maximum and are refused by
/// [`Capacities::check`].
#[must_use]
pub fn capacities(config: &Config) -> Capacities {
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let routed = config.pools.iter().filter(|pool| pool.nat.is_none());
    let framed: u64 = routed
        .flat_map(|pool| &pool.ranges)
        .map(|range| 1u64 << (32 - range.prefix_len()))
        .sum();
    Capacities::of_gateway(
        u32::from(config.access_port_count()),
        count(config.dataplane.ports.len()),
        count(config.dataplane.workers.len()),
        config.nat.address_count(),
        u32::try_from(framed).unwrap_or(u32::MAX),
    )
}
