//! EAL starts once, gives the thread its affinity back, and cleans up behind the last handle.

mod support;

use rte_rs::{Eal, Error, Mempool, MempoolConfig};
use rustix::thread::sched_getaffinity;

// One function, since the process has one EAL and this one ends it.
#[test]
fn life_of_eal() {
    assert!(rte_rs::version().starts_with("DPDK "));
    let before = sched_getaffinity(None).unwrap();
    let eal = Eal::init(&support::args()).unwrap();
    let after = sched_getaffinity(None).unwrap();
    assert_eq!(before, after, "the calling thread stays where it may run");

    let start = rte_rs::tsc();
    assert!(eal.tsc_hz() > 100_000_000, "{} Hz", eal.tsc_hz());
    assert!(rte_rs::tsc() > start);

    assert_eq!(
        Eal::init(&support::args()).unwrap_err(),
        Error::EalInitialisedBefore
    );
    assert!(
        matches!(
            eal.register_thread(),
            Err(Error::ThreadRegisteredBefore { .. })
        ),
        "the thread that started EAL has an lcore id"
    );

    let other = eal.clone();
    std::thread::spawn(move || {
        let first = other.register_thread().unwrap();
        assert!(matches!(
            other.register_thread(),
            Err(Error::ThreadRegisteredBefore { lcore }) if lcore == first.lcore()
        ));
        let lcore = first.lcore();
        drop(first);
        let again = other.register_thread().unwrap();
        assert_eq!(again.lcore(), lcore, "the id was given back");
    })
    .join()
    .unwrap();

    let pool = Mempool::create(&eal, &MempoolConfig::new("life", 1023)).unwrap();
    let mbuf = pool.alloc().unwrap();
    drop(pool);
    drop(eal);
    // EAL did not clean up, for the mbuf is out: its memory is still there.
    assert_eq!(mbuf.data(), b"");
    drop(mbuf);
}
