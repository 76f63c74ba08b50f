//! The counters seen through a reader can be copied, not changed.

fn count(reader: &bng_shm::Reader) {
    if let Some(stats) = reader.stats(bng_shm::SlotIndex(0)) {
        stats.count_up(1);
    }
}

fn main() {}
