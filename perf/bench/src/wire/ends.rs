//! The generator's two ports and the memory of its packets.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bng_wire::MacAddr;
use rte_rs::{
    Burst, Eal, EalArgs, HEADROOM, Mbuf, Memory, Mempool, MempoolConfig, Port, PortConfig, RxQueue,
    TxQueue,
};

/// Packets handled at once.
pub(crate) const BURST: usize = 32;
/// Descriptors of each queue.
const DESCRIPTORS: u16 = 1_024;
/// Buffers on their way out, each direction.
const SEND_BUFFERS: u32 = 16_383;
/// Buffers to receive into.
const RECEIVE_BUFFERS: u32 = 32_767;
/// Bytes of a buffer behind its headroom.
const ROOM: u16 = 2_048;
/// How long a link may take to come up.
const LINK_LIMIT: Duration = Duration::from_secs(20);

/// MiB of memory for all of it.
const MEMORY_MIB: u32 = 320;

/// Starts EAL on `core`, where the calling thread stays.
pub(crate) fn start_eal(core: usize, hugepages: bool, devices: &[&str]) -> Result<Eal> {
    let memory = if hugepages {
        Memory::HugepagesUnlinked
    } else {
        Memory::NoHugepages { mib: MEMORY_MIB }
    };
    let pci: Vec<&str> = devices
        .iter()
        .copied()
        .filter(|device| bng_dataplane::ports::is_pci(device))
        .collect();
    let mut arguments = EalArgs::new(&format!("bng-perf-{}", std::process::id()))
        .lcore_map(&format!("0@{core}"))
        .memory(memory)
        .single_file_segments(hugepages)
        .pci(!pci.is_empty())
        .telemetry(false)
        .log_level("*:warning");
    for device in pci {
        arguments = arguments.extra(["--allow", device]);
    }
    Eal::init(&arguments).context("DPDK did not start")
}

/// One port.
pub(crate) struct End {
    pub(crate) rx: Vec<RxQueue>,
    pub(crate) tx: Vec<TxQueue>,
    pub(crate) mac: MacAddr,
    pub(crate) driver: String,
    port: Port,
    /// Buffers for stamped packets: behind the stamp their bytes are zero and stay so.
    pub(crate) pool: Mempool,
    /// Buffers for everything else.
    others: Mempool,
}

impl End {
    /// Probes and starts a device.
    pub(crate) fn open(
        eal: &Eal,
        name: &str,
        device: &str,
        queues: u16,
        receive: &Mempool,
    ) -> Result<Self> {
        let failed = || format!("--{name}-device {device}");
        let mut port = Port::probe(eal, device).with_context(failed)?;
        let driver = port.info().with_context(failed)?.driver;
        port.configure(
            &PortConfig {
                rx_queues: queues,
                tx_queues: queues,
                rx_descriptors: DESCRIPTORS,
                tx_descriptors: DESCRIPTORS,
                // Many subscribers with an address each.
                promiscuous: true,
                all_multicast: true,
                ..PortConfig::default()
            },
            receive,
        )
        .with_context(failed)?;
        let handles = port.start().with_context(failed)?;
        let mac = MacAddr(port.mac().with_context(failed)?.0);
        let pool = Mempool::create(eal, &config(name, SEND_BUFFERS)).context("packet buffers")?;
        zero(&pool)?;
        Ok(Self {
            rx: handles.rx,
            tx: handles.tx,
            mac,
            driver,
            port,
            pool,
            others: receive.clone(),
        })
    }

    /// A buffer with this frame; `None` when there is none free.
    pub(crate) fn copy(&self, frame: &[u8]) -> Option<Mbuf> {
        self.others.alloc_copy(frame)
    }

    /// Sends the front of a burst as far as the first queue has room and frees the rest. Returns how many were sent.
    pub(crate) fn send_burst(&mut self, burst: &mut Burst<BURST>) -> usize {
        let sent = self.tx.first_mut().map_or(0, |queue| queue.burst(burst));
        Mbuf::free_bulk(burst);
        sent
    }

    /// Frames that arrived and that the port had no room or buffers for.
    pub(crate) fn missed(&self) -> Result<u64> {
        let stats = self.port.stats()?;
        Ok(stats.rx_missed + stats.rx_no_mbuf)
    }

    /// Sends one frame of control traffic, if there is room; its sender repeats what is lost.
    pub(crate) fn send(&mut self, frame: &[u8]) {
        let mut burst: Burst<1> = Burst::new();
        if let (Some(mbuf), Some(queue)) = (self.others.alloc_copy(frame), self.tx.first_mut()) {
            burst.push(mbuf);
            queue.burst(&mut burst);
        }
    }

    /// Takes what has arrived, one burst from each queue. Returns how many frames those were.
    pub(crate) fn receive_others(&mut self, mut take: impl FnMut(&[u8])) -> usize {
        let mut frames = 0;
        let mut burst: Burst<BURST> = Burst::new();
        for queue in &mut self.rx {
            frames += queue.burst(&mut burst);
            burst.iter().for_each(|mbuf| take(mbuf.data()));
            Mbuf::free_bulk(&mut burst);
        }
        frames
    }

    /// Waits until the link is up.
    pub(crate) fn wait_for_link(&self) -> Result<()> {
        let end = Instant::now() + LINK_LIMIT;
        while !self.port.link().is_ok_and(|link| link.up) {
            if Instant::now() >= end {
                bail!(
                    "no link on {} within {LINK_LIMIT:?}: is the other end there, with the same socket and the other role?",
                    self.port.name()
                );
            }
            // Drivers have no event for this.
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

fn config(name: &str, count: u32) -> MempoolConfig {
    MempoolConfig {
        data_room: ROOM + HEADROOM,
        ..MempoolConfig::new(name, count)
    }
}

/// The pool both ports receive into.
pub(crate) fn receive_pool(eal: &Eal) -> Result<Mempool> {
    Mempool::create(eal, &config("receive", RECEIVE_BUFFERS)).context("packet buffers")
}

/// Writes zero into every buffer of a pool.
fn zero(pool: &Mempool) -> Result<()> {
    let mut all: Vec<Burst<BURST>> = Vec::new();
    loop {
        let mut burst = Burst::new();
        if !pool.alloc_bulk(&mut burst, BURST) {
            break;
        }
        for mbuf in &mut burst {
            let room = mbuf.tailroom();
            mbuf.append(room)
                .context("an empty buffer has room")?
                .fill(0);
        }
        all.push(burst);
    }
    for burst in &mut all {
        Mbuf::free_bulk(burst);
    }
    Ok(())
}
