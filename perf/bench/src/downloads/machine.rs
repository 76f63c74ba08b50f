//! What is behind a virtio port: the vhost end of its rings, and a kernel behind that.
//!
//! What comes out of the virtio rings goes into a TAP device with the virtio header that says what is still to be done:
//! checksums, cutting. So large packets get into the kernel as a guest's driver would give them to it.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use bng_wire::MacAddr;
use bng_wire::checksum::Sum;
use rte_rs::{Burst, Eal, Mbuf, Mempool, Port, PortConfig, RxOffloads, RxQueue, TxQueue, ol_flags};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use crate::wire::ends::BURST;

/// Name of the TAP device, alone in its network namespace.
pub(super) const TAP: &str = "vm0";
/// Its MAC address, which is the machine's.
pub(super) const MAC: MacAddr = MacAddr([0x02, 0x62, 0x6e, 0xff, 0, 1]);
/// Bytes of a virtio header without the number of buffers (virtio 1.2 section 5.1.6).
const HEADER: usize = 10;
/// Flag: the checksum from `csum_start` on is to be completed.
const NEEDS_CSUM: u8 = 1;
/// Kind of a large packet: TCP in IPv4.
const GSO_TCPV4: u8 = 1;
/// Parts of a packet given to the kernel at once: more than 64 KiB in buffers of 2 KiB.
const PARTS: usize = 64;
/// Bytes of Ethernet and IPv4 headers without tags and options.
const TO_TCP: u16 = 34;
/// Where the checksum is in the TCP header.
const TCP_CHECK: u16 = 16;
/// Where frames get their checksum's place from, read from the kernel.
const LARGEST_FRAME: usize = 2_000;

/// The machine: its thread ends when told to.
pub(super) struct Machine {
    socket: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

/// What the thread works with.
struct Card {
    rx: RxQueue,
    tx: TxQueue,
    pool: Mempool,
    tap: SyncDevice,
    // After its queues.
    _port: Port,
}

impl Machine {
    /// Starts it on `core`; the gateway's port finds it afterwards.
    pub(super) fn start(eal: &Eal, pool: &Mempool, core: usize) -> Result<Self> {
        let socket = PathBuf::from(format!(
            "/dev/shm/bng-downloads-{}.sock",
            std::process::id()
        ));
        let device = format!("net_vhost0,iface={},tso=1", socket.display());
        let failed = || format!("device {device}");
        let mut port = Port::probe(eal, &device).with_context(failed)?;
        port.configure(
            &PortConfig {
                // What is not asked for the driver would do: complete the checksums.
                rx_offloads: RxOffloads::TCP_CKSUM | RxOffloads::UDP_CKSUM,
                ..PortConfig::default()
            },
            pool,
        )
        .with_context(failed)?;
        let mut queues = port.start().with_context(failed)?;
        let (Some(rx), Some(tx)) = (queues.rx.pop(), queues.tx.pop()) else {
            bail!("{device} has no queue");
        };
        let tap = DeviceBuilder::new()
            .name(TAP)
            .layer(Layer::L2)
            .mac_addr(MAC.0)
            .mtu(1_500)
            .offload(true)
            .build_sync()
            .context("the machine's TAP device")?;
        tap.set_nonblocking(true)?;
        let mut card = Card {
            rx,
            tx,
            pool: pool.clone(),
            tap,
            _port: port,
        };
        let stop = Arc::new(AtomicBool::new(false));
        let (told, eal) = (Arc::clone(&stop), eal.clone());
        let thread = std::thread::Builder::new()
            .name("machine".to_owned())
            .spawn(move || {
                core_affinity::set_for_current(core_affinity::CoreId { id: core });
                let _registered = eal.register_thread()?;
                while !told.load(Ordering::Relaxed) {
                    if card.receive()? + card.send() == 0 {
                        // The kernel's receiver has the same core.
                        std::thread::yield_now();
                    }
                }
                Ok(())
            })?;
        Ok(Self {
            socket,
            stop,
            thread: Some(thread),
        })
    }

    /// Socket by which a virtio port gets to it.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Ends it.
    pub(super) fn stop(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => bail!("the machine panicked"),
            None => Ok(()),
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The driver removes it if all goes well.
        let _removed = std::fs::remove_file(&self.socket);
    }
}

impl Card {
    /// From the card into the kernel.
    fn receive(&mut self) -> Result<usize> {
        let mut burst: Burst<BURST> = Burst::new();
        let packets = self.rx.burst(&mut burst);
        for mbuf in &burst {
            let header = header(mbuf);
            let mut parts = [IoSlice::new(&[]); PARTS];
            let all = std::iter::once(&header[..]).chain(mbuf.segments());
            let mut count = 0;
            for (place, part) in parts.iter_mut().zip(all) {
                *place = IoSlice::new(part);
                count += 1;
            }
            if count <= usize::from(mbuf.nb_segs()) {
                bail!("a packet of {} buffers", mbuf.nb_segs());
            }
            rustix::io::writev(self.tap.as_fd(), parts.get(..count).unwrap_or(&[]))
                .context("the machine's TAP device")?;
        }
        Mbuf::free_bulk(&mut burst);
        Ok(packets)
    }

    /// From the kernel to the card: small frames, acknowledgements above all.
    fn send(&mut self) -> usize {
        let mut burst: Burst<BURST> = Burst::new();
        let mut bytes = [0; HEADER + LARGEST_FRAME];
        while burst.len() < BURST {
            let Ok(len) = rustix::io::read(self.tap.as_fd(), &mut bytes) else {
                break;
            };
            let Some((header, frame)) = bytes
                .get_mut(..len)
                .and_then(|all| all.split_at_mut_checked(HEADER))
            else {
                continue;
            };
            complete(header, frame);
            let Some(mbuf) = self.pool.alloc_copy(frame) else {
                break;
            };
            burst.push(mbuf);
        }
        let frames = burst.len();
        self.tx.burst(&mut burst);
        // What the ring has no room for is lost, as in a machine whose queue is full.
        frames
    }
}

/// The virtio header of a received packet.
fn header(mbuf: &Mbuf) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let is_large = mbuf.ol_flags() & ol_flags::RX_LRO != 0;
    let is_partial = mbuf.rx_l4_checksum() == rte_rs::RxChecksum::Absent;
    if is_large || is_partial {
        let tcp = mbuf.data().get(usize::from(TO_TCP)..).unwrap_or(&[]);
        let tcp_len = tcp.get(12).map_or(0, |offset| u16::from(offset >> 4) * 4);
        let (kind, size) = if is_large {
            (GSO_TCPV4, mbuf.tx_lengths().segment)
        } else {
            (0, 0)
        };
        let words = [TO_TCP + tcp_len, size, TO_TCP, TCP_CHECK];
        let (first, rest) = header.split_at_mut(2);
        first.copy_from_slice(&[NEEDS_CSUM, kind]);
        for (place, word) in rest.chunks_exact_mut(2).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
    }
    header
}

/// Completes the checksum the kernel has left to the card.
fn complete(header: &[u8], frame: &mut [u8]) {
    let word = |at: usize| {
        let two = header
            .get(at..at + 2)
            .and_then(|two| two.first_chunk::<2>());
        usize::from(two.map_or(0, |two| u16::from_ne_bytes(*two)))
    };
    if header.first().is_none_or(|flags| flags & NEEDS_CSUM == 0) {
        return;
    }
    let (start, offset) = (word(6), word(8));
    let Some(covered) = frame.get_mut(start..) else {
        return;
    };
    let check = Sum::new().bytes(covered).finish();
    if let Some(place) = covered.get_mut(offset..offset + 2) {
        place.copy_from_slice(&check.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bng_wire::checksum::l4_checksum;

    #[test]
    fn a_checksum_left_open_is_completed_and_another_left_alone() {
        let mut frame = vec![7; usize::from(TO_TCP) + 20];
        let (from, to) = (0x0707_0707, 0x0707_0707);
        let l4 = usize::from(TO_TCP);
        let pseudo = !Sum::new().pseudo_ipv4(from, to, 6, 20).finish();
        frame[l4 + 16..l4 + 18].copy_from_slice(&pseudo.to_be_bytes());
        let mut header = [0; HEADER];
        let before = frame.clone();
        complete(&header, &mut frame);
        assert_eq!(frame, before);
        header[0] = NEEDS_CSUM;
        header[6..8].copy_from_slice(&TO_TCP.to_ne_bytes());
        header[8..10].copy_from_slice(&TCP_CHECK.to_ne_bytes());
        complete(&header, &mut frame);
        assert_eq!(l4_checksum(from, to, 6, &frame[l4..]), 0);
    }
}
