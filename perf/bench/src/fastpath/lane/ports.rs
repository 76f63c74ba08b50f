//! The ports, queues and rings of a lane.

use std::sync::Arc;

use anyhow::{Context, Result};
use bng_dataplane::dispatch::Outlets;
use bng_dataplane::host::{FromWorker, HostBell, host_ring};
use bng_dataplane::tx::TxPort;
use bng_fastpath::{FirstFragments, WaitingRoom};
use rte_rs::{
    Consumer, Eal, Mempool, Port, PortConfig, Producer, RingConfig, RxQueue, TxQueue, sp_sc_ring,
};

use crate::fastpath::flows::Shape;

/// The queues and rings of one lane, made on the main thread.
pub(in crate::fastpath) struct LanePorts {
    pub(super) feed: TxQueue,
    pub(super) rx: RxQueue,
    pub(super) out: Outlets,
    pub(super) checked_out: Outlets,
    /// The other end of what `checked_out` sends on, by port.
    pub(super) sent: Vec<RxQueue>,
    pub(super) plain: TxQueue,
    pub(super) pool: Mempool,
    pub(super) hosts: [FromWorker; 2],
    pub(super) from_host: (Producer, Consumer),
}

impl LanePorts {
    /// Makes the ports of lane `index`.
    pub(in crate::fastpath) fn new(
        eal: &Eal,
        pool: &Mempool,
        shape: &Shape,
        index: u8,
    ) -> Result<Self> {
        let ports = usize::from(shape.access_ports) + 1;
        let start = |device: String, queues: usize| -> Result<rte_rs::Queues> {
            let mut port = Port::probe(eal, &device)?;
            let queues = u16::try_from(queues)?;
            port.configure(
                &PortConfig {
                    rx_queues: queues,
                    tx_queues: queues,
                    ..PortConfig::default()
                },
                pool,
            )?;
            Ok(port.start()?)
        };
        // What goes into a queue of net_ring comes out of it.
        let mut wire_in = start(format!("net_ring_in{index}"), 1)?;
        let wire_out = start(format!("net_ring_out{index}"), ports)?;
        let mut null = start(format!("net_null_{index}"), ports + 1)?.tx;
        let plain = null.pop().context("net_null has too few queues")?;
        let is_access = |port: usize| port < usize::from(shape.access_ports);
        let outlets = |tx: Vec<TxQueue>, name: &str| -> Result<(Outlets, FromWorker)> {
            let (host, host_end) = host_ring(sp_sc_ring(
                eal,
                &RingConfig {
                    name: format!("{name}{index}"),
                    capacity: 64,
                    numa_node: None,
                },
            )?);
            let tx = tx.into_iter().enumerate();
            let out = Outlets {
                tx: tx
                    .map(|(port, queue)| TxPort::new(queue, is_access(port), None))
                    .collect(),
                handover: Vec::new(),
                fragments: pool.clone(),
                waiting: WaitingRoom::new(&[], Arc::new(FirstFragments::new(0))),
                host,
                host_bell: HostBell::new()?,
                twins: Vec::new(),
            };
            Ok((out, host_end))
        };
        let (out, host) = outlets(null, "host")?;
        let (checked_out, checked_host) = outlets(wire_out.tx, "checked-host")?;
        Ok(Self {
            feed: wire_in.tx.pop().context("net_ring has no queue")?,
            rx: wire_in.rx.pop().context("net_ring has no queue")?,
            out,
            checked_out,
            sent: wire_out.rx,
            plain,
            pool: pool.clone(),
            hosts: [host, checked_host],
            from_host: sp_sc_ring(
                eal,
                &RingConfig {
                    name: format!("from-host{index}"),
                    capacity: 64,
                    numa_node: None,
                },
            )?,
        })
    }
}
