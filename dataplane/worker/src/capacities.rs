//! The sizes of the shared memory that a configuration asks for.

use bng_config::Config;
use bng_shm::Capacities;

/// Capacities for this configuration. Counts beyond what is possible are refused by [`Capacities::check`].
#[must_use]
pub fn capacities(config: &Config) -> Capacities {
    let counts = config.table_counts();
    Capacities {
        framed_prefixes: counts.prefixes,
        routes: counts.routes,
        routes6: counts.routes6,
        ..Capacities::of_gateway(
            counts.access_ports,
            counts.ports,
            counts.workers,
            counts.nat_addresses,
            counts.routed_addresses,
        )
    }
}
