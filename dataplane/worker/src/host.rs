//! The host path: frames between the core ports and their TAP twins in the kernel.
//!
//! One thread. From workers it takes frames for the kernel out of one ring per worker; from each twin
//! it reads only while the ring to the worker that sends on that port has room, so that a busy worker
//! makes the kernel's own queue wait instead of losing frames (HZ-15 R3).

mod ring;

pub use ring::{FromWorker, ToHost, host_ring};

use crate::ports::LivePort;
use bng_config::PortRole;
use bng_shm::{Counter, HostSide};
use rte_rs::{Burst, Consumer, Mbuf, Mempool, Producer};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

/// Frames in each ring between a worker and the host thread.
pub const HOST_RING: u32 = bng_config::RING_FRAMES;
/// Frames read from a twin in one go.
const READ_BURST: usize = 32;
/// Longest sleep: bounds the harm of a wake-up that was missed.
const SLEEP: Duration = Duration::from_millis(10);

/// Wakes the host thread when a worker has put a frame into an empty ring.
#[derive(Debug)]
pub struct HostBell {
    asleep: AtomicBool,
    event: OwnedFd,
}

impl HostBell {
    /// A bell for one host thread and any number of workers.
    ///
    /// # Errors
    /// The kernel has no descriptor to give.
    pub fn new() -> io::Result<Arc<Self>> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Arc::new(Self {
            asleep: AtomicBool::new(false),
            event,
        }))
    }

    /// After frames were put into a ring; a system call only if the thread sleeps.
    #[inline]
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            // The counter cannot overflow: it is read each time the thread wakes.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    fn drain(&self) {
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }
}

/// Room the ring to a worker must have before the host thread goes on: waking it for every frame would cost more than the
/// frames (HZ-16 R1).
const ROOM: usize = {
    let half = HOST_RING as usize / 2;
    if half < 64 { half } else { 64 }
};

/// Tells the host thread that a full ring to a worker has room again, once per stop.
#[derive(Debug, Default)]
pub struct Room {
    wanted: AtomicBool,
}

impl Room {
    /// For the worker, after it took frames out.
    #[inline]
    pub fn made(&self, ring: &Consumer, bell: &HostBell) {
        // HZ-18: either the host thread sees the room or this sees its wish.
        fence(Ordering::SeqCst);
        if self.is_wake(ring.free()) {
            bell.ring();
        }
    }

    /// Whether so much room ends the wait; the wish is granted once.
    #[inline]
    fn is_wake(&self, free: usize) -> bool {
        free >= ROOM
            && self.wanted.load(Ordering::Relaxed)
            && self.wanted.swap(false, Ordering::Relaxed)
    }

    /// For the host thread: whether it has to wait. From now on the worker knows.
    fn must_wait(&self, free: impl Fn() -> usize) -> bool {
        if free() < ROOM {
            self.wanted.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if free() < ROOM {
                return true;
            }
        }
        self.wanted.store(false, Ordering::Relaxed);
        false
    }
}

/// The kernel's side of a core port.
pub struct Twin {
    /// Index of the port.
    port: u8,
    /// Name of the port.
    name: String,
    device: SyncDevice,
    /// To the worker that sends on the port.
    out: Producer,
    room: Arc<Room>,
}

/// What is wrong with a twin.
#[derive(Debug, thiserror::Error)]
pub enum TwinError {
    /// It could not be made.
    #[error("TAP twin of port {port}: {advice}")]
    Create {
        /// Name of the port and of the twin.
        port: String,
        /// What to do.
        advice: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// Somebody deleted it. A new process makes a new one; the sessions go on with it.
    #[error("TAP twin of port {port} was deleted under bng-dataplane, which must start again")]
    Deleted {
        /// Name of the port and of the twin.
        port: String,
    },
}

/// What an operator can do about a refused twin.
fn advice(source: &io::Error) -> &'static str {
    match Errno::from_io_error(source) {
        Some(Errno::INVAL | Errno::BUSY | Errno::EXIST) => {
            "an interface of this name exists already; remove it or rename the port"
        }
        Some(Errno::PERM | Errno::ACCESS) => "making interfaces needs CAP_NET_ADMIN",
        Some(Errno::NOENT | Errno::NODEV | Errno::NXIO | Errno::NOTTY) => {
            "/dev/net/tun is missing; load the kernel module tun (modprobe tun)"
        }
        _ => "the kernel refuses it",
    }
}

impl Twin {
    /// Makes the TAP device named after the port, with the port's MAC address and MTU, and brings it up.
    ///
    /// # Errors
    /// The name is taken by another kind of interface, or the process may not make interfaces.
    pub fn create(
        index: u8,
        port: &mut LivePort,
        out: Producer,
        room: Arc<Room>,
    ) -> Result<Self, TwinError> {
        let failed = |source| TwinError::Create {
            port: port.name.clone(),
            advice: advice(&source),
            source,
        };
        let device = DeviceBuilder::new()
            .name(port.name.as_str())
            .layer(Layer::L2)
            .mac_addr(port.mac)
            .mtu(port.mtu)
            .build_sync()
            .map_err(failed)?;
        device.set_nonblocking(true).map_err(failed)?;
        port.twin_ifindex = device.if_index().map_err(failed)?;
        Ok(Self {
            port: index,
            name: port.name.clone(),
            device,
            out,
            room,
        })
    }
}

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
                let twin = self
                    .twins
                    .iter()
                    .find(|twin| u16::from(twin.port) == mbuf.port());
                let outcome = match twin {
                    None => Counter::HostNoTwin,
                    Some(twin) => match twin.device.send(mbuf.data()) {
                        Ok(_) => Counter::HostIn,
                        Err(_) => Counter::HostWriteFailed,
                    },
                };
                self.shm.count(outcome, 1);
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
            while burst.len() < room {
                let Some(mut mbuf) = self.pool.alloc() else {
                    drained = Drained::NoBuffer;
                    break;
                };
                mbuf.set_port(u16::from(twin.port));
                let space = mbuf.tailroom();
                let Some(bytes) = mbuf.append(space) else {
                    break;
                };
                match twin.device.recv(bytes) {
                    Ok(len) => {
                        // It was made as long as the space; the kernel says how much it used.
                        let _ = mbuf.truncate(len);
                        burst.push(mbuf);
                    }
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::BADFD) => {
                        let port = twin.name.clone();
                        return Err(TwinError::Deleted { port });
                    }
                    // Nothing there.
                    Err(_) => break,
                }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// HZ-16 C(a): at every fill level and for every batch.
    #[test]
    fn a_stopped_thread_is_woken_once_and_not_before_there_is_room() {
        let capacity = HOST_RING as usize;
        for batch in 1..=READ_BURST {
            let room = Room::default();
            for start in [0, 1, ROOM - 1] {
                let free = Cell::new(start);
                assert!(room.must_wait(|| free.get()));
                let mut woken = Vec::new();
                while free.get() < capacity {
                    free.set((free.get() + batch).min(capacity));
                    if room.is_wake(free.get()) {
                        woken.push(free.get());
                    }
                }
                assert_eq!(woken.len(), 1, "batch {batch}");
                assert!((ROOM..ROOM + batch).contains(&woken[0]), "{woken:?}");
            }
        }
    }

    #[test]
    fn a_thread_that_finds_room_is_not_woken_for_it() {
        let room = Room::default();
        assert!(!room.must_wait(|| ROOM));
        assert!(!room.is_wake(HOST_RING as usize));
        // Room made between the two looks.
        let looks = Cell::new(0);
        let free = || {
            looks.set(looks.get() + 1);
            if looks.get() == 1 { 0 } else { ROOM }
        };
        assert!(!room.must_wait(free));
    }
}
