//! Nobody outside the crate reaches the tables themselves.

fn tables(reader: &bng_shm::Reader, worker: &bng_shm::Worker) {
    let _ = &reader.tables;
    let _ = &worker.reader.tables;
}

fn main() {}
