//! A directory on tmpfs for one test, and what the tests put into the memory there.

use bng_shm::Capacities;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The smallest memory there is; about 46 MiB.
pub(crate) const SMALL: Capacities = Capacities {
    access_ports: 1,
    ports: 2,
    workers: 1,
    nat_addresses: 0,
    framed_addresses: 0,
    framed_prefixes: 4,
    routes: 1,
    routes6: 4,
    next_hops: 1,
};

/// Removed with everything in it when the test is over.
pub(crate) struct Directory(PathBuf);

impl Directory {
    /// A name nobody else uses; the directory is not there yet.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("/dev/shm/bng-shm-test-{}-{number}", std::process::id());
        let _ = std::fs::remove_dir_all(&name);
        Self(name.into())
    }
}

impl std::ops::Deref for Directory {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
