//! The FIB follows what control publishes.

use bng_dataplane::fib_mirror::FibMirror;
use bng_fastpath::Fib4;
use bng_shm::{Capacities, Dataplane, NextHopId, Route};
use rte_rs::{Eal, EalArgs, Memory};
use std::net::Ipv4Addr;

fn route(prefix: [u8; 4], length: u8, next_hop: u32) -> Route {
    Route {
        prefix: Ipv4Addr::from(prefix),
        length,
        next_hop: NextHopId(next_hop),
    }
}

#[test]
fn published_routes_are_looked_up_and_withdrawn_ones_are_not() {
    let arguments = EalArgs::new(&format!("fibmirror{}", std::process::id()))
        .memory(Memory::NoHugepages { mib: 512 })
        .pci(false)
        .telemetry(false);
    let eal = Eal::init(&arguments).unwrap();
    let (dataplane, mut control) =
        Dataplane::in_process(Capacities::of_gateway(1, 2, 1, 0, 0)).unwrap();
    let reader = dataplane.reader();
    let (mut mirror, fib) = FibMirror::new(&eal, reader.capacities().routes).unwrap();
    let lookup = |address: [u8; 4]| {
        let mut answer = [u64::MAX];
        fib.lookup(&[Ipv4Addr::from(address).to_bits()], &mut answer);
        answer[0]
    };
    assert_eq!(mirror.refresh(&reader), None, "nothing is published yet");
    assert_eq!(lookup([192, 0, 2, 80]), 0);

    control
        .publish_routes(&[
            route([0, 0, 0, 0], 0, 1),
            route([198, 51, 100, 0], 24, 2),
            route([198, 51, 100, 1], 32, 3),
        ])
        .unwrap();
    assert!(mirror.refresh(&reader).is_some());
    assert_eq!(mirror.len(), 3);
    assert_eq!(lookup([192, 0, 2, 80]), 1);
    assert_eq!(lookup([198, 51, 100, 2]), 2);
    assert_eq!(lookup([198, 51, 100, 1]), 3);

    control
        .publish_routes(&[route([0, 0, 0, 0], 0, 4), route([198, 51, 100, 0], 24, 2)])
        .unwrap();
    assert!(mirror.refresh(&reader).is_some());
    assert_eq!(lookup([192, 0, 2, 80]), 4);
    assert_eq!(lookup([198, 51, 100, 1]), 2);
    assert_eq!(mirror.refresh(&reader), None, "nothing has changed");
}
