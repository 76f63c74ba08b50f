//! A reader has no way to write the table.

fn withdraw(reader: &bng_shm::Reader) {
    reader.withdraw_session(bng_shm::SlotIndex(0));
}

fn main() {}
