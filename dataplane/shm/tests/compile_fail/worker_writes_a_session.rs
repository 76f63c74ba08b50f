//! A worker counts a session's packets and writes nothing else of it.

fn publish(worker: &mut bng_shm::Worker, session: &bng_shm::Session, record: &bng_shm::Record) {
    worker.publish_session(bng_shm::SlotIndex(0), session, record);
}

fn withdraw(dataplane: &mut bng_shm::Dataplane) {
    dataplane.withdraw_session(bng_shm::SlotIndex(0));
}

fn main() {}
