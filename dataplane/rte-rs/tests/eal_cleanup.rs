//! With everything home, the last handle cleans EAL up, and a thread's guard counts as a handle.

mod support;

use rte_rs::{Eal, Error, Mempool, MempoolConfig, Port, PortConfig};

#[test]
fn cleanup_after_ports_and_pools() {
    let eal = Eal::init(&support::args()).unwrap();
    let pool = Mempool::create(&eal, &MempoolConfig::new("cleanup", 1023)).unwrap();
    let mut port = Port::probe(&eal, "net_null0").unwrap();
    port.configure(&PortConfig::default(), &pool).unwrap();
    let queues = port.start().unwrap();
    drop(eal);
    drop(pool);
    drop(port);
    // The queue handles are the last to go: they close the port and then clean up.
    drop(queues);
    assert_eq!(
        Eal::init(&support::args()).unwrap_err(),
        Error::EalInitialisedBefore
    );
}
