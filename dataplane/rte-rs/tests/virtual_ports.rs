//! Port life cycle and queues on devices that need neither hardware nor kernel.

mod support;

use rte_rs::{Burst, Error, Mbuf, Port, PortConfig, QueueKind, RssTypes, RxOffloads, TxOffloads};

fn queues(rx_queues: u16, tx_queues: u16) -> PortConfig {
    PortConfig {
        rx_queues,
        tx_queues,
        ..PortConfig::default()
    }
}

#[test]
fn null_port_receives_full_bursts_and_takes_all() {
    let pool = support::pool("null", 1023);
    let mut port = Port::probe(&support::eal(), "net_null_full,size=60").unwrap();
    port.configure(&queues(1, 1), &pool).unwrap();
    let mut queues = port.start().unwrap();
    let (rx, tx) = (&mut queues.rx[0], &mut queues.tx[0]);
    let mut burst = Burst::<32>::new();
    assert_eq!(rx.burst(&mut burst), 32);
    assert_eq!(rx.burst(&mut burst), 0, "no room");
    assert!(
        burst
            .iter()
            .all(|mbuf| mbuf.len() == 60 && mbuf.port() == port.id())
    );
    Mbuf::free_bulk(&mut burst);
    assert!(pool.alloc_bulk(&mut burst, 3));
    assert_eq!(
        rx.burst(&mut burst),
        29,
        "received packets go behind what is there"
    );
    assert_eq!(tx.burst(&mut burst), 32);
    assert!(burst.is_empty());
    assert_eq!(tx.burst(&mut burst), 0);
    let stats = port.stats().unwrap();
    assert_eq!((stats.rx_packets, stats.tx_packets), (61, 32));
    port.reset_stats().unwrap();
    assert_eq!(port.stats().unwrap().rx_packets, 0);
    drop(queues);
    port.close().unwrap();
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn ring_port_loops_frames_back_in_order_per_queue() {
    let pool = support::pool("loop", 1023);
    let mut port = Port::probe(&support::eal(), "net_ring_loop").unwrap();
    let info = port.info().unwrap();
    assert_eq!(info.driver, "net_ring");
    port.configure(&queues(info.max_rx_queues, info.max_tx_queues), &pool)
        .unwrap();
    let mut queues = port.start().unwrap();
    assert_eq!(queues.rx.len(), usize::from(info.max_rx_queues));
    let frames: Vec<Vec<u8>> = (0..100u8).map(|n| vec![n; 64]).collect();
    support::send(&mut queues.tx[1], &pool, &frames);
    assert_eq!(
        queues.rx[0].burst(&mut Burst::<32>::new()),
        0,
        "another queue"
    );
    assert_eq!(
        support::receive(&mut queues.rx[1..2], 100, |_| true),
        frames
    );
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_port_stops_only_without_queue_handles_and_starts_again() {
    let pool = support::pool("stop", 1023);
    let mut port = Port::probe(&support::eal(), "net_null_stop").unwrap();
    assert!(matches!(
        port.start(),
        Err(Error::PortState {
            state: "not configured",
            ..
        })
    ));
    port.configure(&queues(1, 1), &pool).unwrap();
    let queues_out = port.start().unwrap();
    let error = port.stop().unwrap_err();
    assert_eq!(
        error.to_string(),
        "port net_null_stop: cannot stop while 2 of its queue handles exist"
    );
    assert!(matches!(
        port.configure(&queues(1, 1), &pool),
        Err(Error::PortState {
            operation: "configure",
            state: "started",
            ..
        })
    ));
    drop(queues_out);
    port.stop().unwrap();
    assert!(matches!(
        port.stop(),
        Err(Error::PortState {
            operation: "stop",
            ..
        })
    ));
    let mut queues = port.start().unwrap();
    assert_eq!(queues.rx[0].burst(&mut Burst::<4>::new()), 4);
    drop(queues);
    // Drivers of virtual devices have no reset; the port says so and stays usable.
    assert!(matches!(
        port.reset(),
        Err(Error::Call {
            function: "rte_eth_dev_reset",
            ..
        })
    ));
    port.start().unwrap();
}

#[test]
fn a_device_has_one_port_handle_and_can_be_probed_anew() {
    let eal = support::eal();
    let port = Port::probe(&eal, "net_null_once").unwrap();
    let error = Port::probe(&eal, "net_null_once,size=80").unwrap_err();
    assert_eq!(
        error,
        Error::PortInUse {
            device: "net_null_once,size=80".to_owned(),
            port: port.id()
        }
    );
    drop(port);
    let pool = support::pool("once", 127);
    let mut port = Port::probe(&eal, "net_null_once,size=80").unwrap();
    port.configure(&queues(1, 1), &pool).unwrap();
    let mut queues = port.start().unwrap();
    let mut burst = Burst::<4>::new();
    queues.rx[0].burst(&mut burst);
    assert_eq!(burst[0].len(), 80, "the new device has the new argument");
}

#[test]
fn offloads_applied_are_those_asked_for_and_offered() {
    let pool = support::pool("offers", 127);
    let mut port = Port::probe(&support::eal(), "net_null_offers").unwrap();
    let info = port.info().unwrap();
    let config = PortConfig {
        rx_offloads: RxOffloads::from_bits(u64::MAX),
        tx_offloads: TxOffloads::TCP_TSO | TxOffloads::MULTI_SEGS,
        rss_types: RssTypes::PPPOE | RssTypes::IPV4,
        ..queues(1, 1)
    };
    let applied = port.configure(&config, &pool).unwrap();
    assert_eq!(applied.rx_offloads, info.rx_offloads);
    assert_eq!(applied.tx_offloads, config.tx_offloads & info.tx_offloads);
    assert_eq!(applied.rss_types, RssTypes::NONE, "one queue");
    assert_eq!(applied.mtu, 1500);
    assert!(applied.rx_descriptors > 0);
}

#[test]
fn errors_name_the_device_and_the_limit() {
    let eal = support::eal();
    for device in ["net_nonexistent0", "0000:ff:1f.7", "no such thing"] {
        let error = Port::probe(&eal, device).unwrap_err();
        assert_eq!(
            error,
            Error::NoSuchDevice {
                device: device.to_owned()
            }
        );
    }
    let error = Port::probe(&eal, "net_af_packet9,iface=nowhere").unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("device \"net_af_packet9,iface=nowhere\" was refused by its driver"),
        "{error}"
    );
    let pool = support::pool("limits", 127);
    let mut port = Port::probe(&eal, "net_ring_limits").unwrap();
    let info = port.info().unwrap();
    let error = port
        .configure(&queues(info.max_rx_queues + 1, 1), &pool)
        .unwrap_err();
    assert_eq!(
        error,
        Error::QueueCount {
            port: "net_ring_limits".to_owned(),
            driver: "net_ring".to_owned(),
            kind: QueueKind::Rx,
            asked: info.max_rx_queues + 1,
            offered: info.max_rx_queues,
        }
    );
    assert_eq!(
        error.to_string(),
        format!(
            "port net_ring_limits (net_ring) was asked for {} receive queues and offers 1 to {}",
            info.max_rx_queues + 1,
            info.max_rx_queues
        )
    );
    assert!(matches!(
        port.configure(&queues(1, 0), &pool),
        Err(Error::QueueCount {
            kind: QueueKind::Tx,
            asked: 0,
            ..
        })
    ));
}
