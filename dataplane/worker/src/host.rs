//! The host path: frames between the core ports and their TAP twins in the kernel.
//!
//! One thread. From workers it takes frames for the kernel out of one ring per worker; from each twin
//! it reads only while the ring to the worker that sends on that port has room, so that a busy worker
//! makes the kernel's own queue wait instead of losing frames (HZ-15 R3).
//!
//! With `twin_offloads` the kernel gets super-packets of the workers in one piece, and its own are cut into frames here, so
//! that nothing but frames goes to the workers.

mod bell;
mod kernel_packets;
mod ring;
#[cfg(test)]
mod tests;
mod twin;
mod virtio;

pub use bell::{HostBell, Room};
pub use ring::{FromWorker, ToHost, host_ring};
pub use twin::{Twin, TwinError};

use crate::ports::LivePort;
use bell::ROOM;
use bng_config::PortRole;
use bng_shm::{Counter, HostSide};
use kernel_packets::{KernelPackets, Received};
use rte_rs::{Burst, HEADROOM, Mbuf, Mempool};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;
use tun_rs::SyncDevice;

/// Frames in each ring between a worker and the host thread.
pub const HOST_RING: u32 = bng_config::RING_FRAMES;
/// Frames read from a twin in one go.
const READ_BURST: usize = 32;
/// Longest sleep: bounds the harm of a wake-up that was missed.
const SLEEP: Duration = Duration::from_millis(10);

/// Whether a port has a twin.
#[must_use]
pub fn has_twin(port: &LivePort) -> bool {
    port.role == PortRole::Core
}

/// What came out of the twins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drained {
    /// Nothing was there, or the workers have no room.
    Nothing,
    /// Frames.
    Frames,
    /// There is no packet buffer to read into.
    NoBuffer,
}

/// What ends a sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watch {
    Bell,
    BellAndTwins,
}

/// Everything the host thread works with.
pub struct Host {
    /// Its counters.
    pub shm: HostSide,
    /// Where frames from the kernel are put.
    pub pool: Mempool,
    /// One ring from each worker.
    pub from_workers: Vec<FromWorker>,
    /// The twins, any order.
    pub twins: Vec<Twin>,
    /// Rung by workers.
    pub bell: Arc<HostBell>,
}

impl Host {
    /// Runs until `stop`.
    ///
    /// # Errors
    /// [`TwinError::Deleted`].
    pub fn run(mut self, stop: &AtomicBool) -> Result<(), TwinError> {
        while !stop.load(Ordering::Relaxed) {
            let fed = self.feed_kernel();
            let drained = self.drain_kernel()?;
            if !fed && drained == Drained::Nothing {
                self.sleep(Watch::BellAndTwins);
            } else if !fed && drained == Drained::NoBuffer {
                // The kernel's frames wait in its queue until buffers come back; looking at the twins
                // before would end the sleep at once.
                self.sleep(Watch::Bell);
            }
        }
        self.feed_kernel();
        Ok(())
    }

    /// Gives the kernel what the workers have for it.
    fn feed_kernel(&mut self) -> bool {
        let mut worked = false;
        let mut burst: Burst<READ_BURST> = Burst::new();
        for ring in &mut self.from_workers {
            if ring.dequeue_burst(&mut burst) == 0 {
                continue;
            }
            worked = true;
            for mbuf in &burst {
                let twins = &mut self.twins;
                let twin = twins
                    .iter_mut()
                    .find(|twin| u16::from(twin.port) == mbuf.port());
                match twin {
                    None => self.shm.count(Counter::HostNoTwin, mbuf.frames().into()),
                    Some(twin) => {
                        let written = twin.write(mbuf);
                        self.shm.count(Counter::HostIn, written.taken);
                        self.shm.count(Counter::HostWriteFailed, written.refused);
                        self.shm.count(Counter::SuperHost, written.supers);
                    }
                }
            }
            Mbuf::free_bulk(&mut burst);
        }
        worked
    }

    /// Takes from the kernel what the workers have room for.
    fn drain_kernel(&mut self) -> Result<Drained, TwinError> {
        let mut drained = Drained::Nothing;
        let mut burst: Burst<READ_BURST> = Burst::new();
        for twin in &mut self.twins {
            let room = twin.out.free().min(READ_BURST);
            let taken = match &mut twin.offloads {
                None => take_frames(&twin.device, &self.pool, &mut burst, room),
                Some(offloads) => {
                    let packets = &mut offloads.packets;
                    let source = (&twin.device, &mut self.pool);
                    take_packets(packets, source, &mut burst, room, &self.shm)
                }
            };
            match taken {
                Ok(true) => {}
                Ok(false) => drained = Drained::NoBuffer,
                Err(Errno::BADFD) => {
                    let port = twin.name.clone();
                    return Err(TwinError::Deleted { port });
                }
                // Nothing there.
                Err(_) => {}
            }
            for mbuf in &mut burst {
                mbuf.set_port(u16::from(twin.port));
            }
            if !burst.is_empty() {
                drained = Drained::Frames;
                twin.out.enqueue_burst(&mut burst);
                // Room was asked for before and only this thread fills the ring; still nothing is lost
                // without a name.
                if !burst.is_empty() {
                    self.shm.count(Counter::HostInjectFull, burst.len() as u64);
                    Mbuf::free_bulk(&mut burst);
                }
            }
        }
        Ok(drained)
    }

    /// Sleeps until a worker rings or, if told to watch them, a twin with room in its ring has something.
    fn sleep(&self, watch: Watch) {
        self.bell.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.has_frames() {
            self.bell.asleep.store(false, Ordering::Relaxed);
            return;
        }
        let mut fds = vec![PollFd::new(&self.bell.event, PollFlags::IN)];
        let mut full = Vec::new();
        for twin in &self.twins {
            if twin.room.must_wait(|| twin.out.free()) {
                full.push(twin);
            } else if twin.has_packet() && watch == Watch::BellAndTwins {
                // It is here already, and there has come room for it.
                self.bell.asleep.store(false, Ordering::Relaxed);
                return;
            } else if watch == Watch::BellAndTwins {
                fds.push(PollFd::from_borrowed_fd(twin.device.as_fd(), PollFlags::IN));
            }
        }
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: SLEEP.subsec_nanos().into(),
        };
        // Interrupted or timed out: the loop looks at everything again.
        let timed_out = matches!(poll(&mut fds, Some(&limit)), Ok(0));
        let rung = !self.bell.asleep.swap(false, Ordering::Relaxed);
        self.bell.drain();
        // HZ-18 R2. A worker that is about to ring is not late.
        let missed = self.has_frames() || full.iter().any(|twin| twin.out.free() >= ROOM);
        if timed_out && !rung && missed {
            self.shm.count(Counter::LateWake, 1);
        }
    }

    fn has_frames(&self) -> bool {
        self.from_workers.iter().any(|ring| ring.count() > 0)
    }
}

/// Takes frames of the kernel, as they are. `false` when there is no packet buffer to read into.
fn take_frames<const N: usize>(
    device: &SyncDevice,
    pool: &Mempool,
    burst: &mut Burst<N>,
    room: usize,
) -> Result<bool, Errno> {
    while burst.len() < room {
        let Some(mut mbuf) = pool.alloc() else {
            return Ok(false);
        };
        let space = mbuf.tailroom();
        let Some(bytes) = mbuf.append(space) else {
            break;
        };
        let len = rustix::io::read(device, bytes)?;
        // It was made as long as the space; the kernel says how much it used.
        let _ = mbuf.truncate(len);
        burst.push(mbuf);
    }
    Ok(true)
}

/// Takes packets of the kernel with virtio headers, and makes frames of them. `false` when there is no packet buffer for
/// one; then it is kept.
fn take_packets<const N: usize>(
    packets: &mut KernelPackets,
    (device, pool): (&SyncDevice, &mut Mempool),
    burst: &mut Burst<N>,
    room: usize,
    shm: &HostSide,
) -> Result<bool, Errno> {
    let longest = usize::from(pool.data_room().saturating_sub(HEADROOM));
    while burst.len() < room {
        if packets.is_empty() {
            match packets.receive(device, longest)? {
                Received::Frame => {}
                Received::Super => shm.count(Counter::HostSupers, 1),
                Received::Invalid => {
                    shm.count(Counter::HostOffloadInvalid, 1);
                    return Ok(true);
                }
            }
        }
        if !packets.fill(pool, burst, room) {
            return Ok(false);
        }
    }
    Ok(true)
}
