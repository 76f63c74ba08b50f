//! The poll loop of one worker.

use crate::backoff::Backoff;
use crate::dispatch::Outlets;
use crate::fib_mirror::RteFib;
use crate::host::{Room, TwinError};
use crate::inject::Injector;
use crate::path::Path;
use bng_fastpath::{BURST, FastPath, Origin, PortRole, Settings, coalesce};
use bng_shm::{Counter, Worker, monotonic_ms, monotonic_ns};
use rte_rs::{Burst, Consumer, Eal, Mbuf, Mempool, RxChecksum, RxQueue};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How often a worker says that it lives.
const HEARTBEAT_MS: u64 = 100;

/// A receive queue and whose it is.
#[derive(Debug)]
pub struct RxPort {
    /// Index of the port.
    pub port: u8,
    /// Access or core.
    pub role: PortRole,
    /// The queue.
    pub queue: RxQueue,
    /// TPID of the outer tag of every tagged frame, where the driver does not say.
    pub outer_tpid: Option<u16>,
    /// Whether the port verifies IPv4 header checksums.
    pub verifies_ipv4: bool,
}

/// What the kernel sends on a core port, on its way through one worker.
#[derive(Debug)]
pub struct FromHost {
    /// Index of the port to send on.
    pub port: u8,
    /// Frames from the host thread.
    pub ring: Consumer,
    /// The host thread's wish to be told of room.
    pub room: Arc<Room>,
}

/// Everything one worker is started with.
pub struct WorkerSetup {
    /// Its side of the shared memory.
    pub shm: Worker,
    /// What the stages are started with.
    pub settings: Settings,
    /// What is coalesced.
    pub coalescing: coalesce::Settings,
    /// The route look-up.
    pub fib: RteFib,
    /// Core to pin to.
    pub core: usize,
    /// Its receive queues.
    pub rx: Vec<RxPort>,
    /// Rings from other workers.
    pub taken_over: Vec<Consumer>,
    /// Rings from the host thread.
    pub from_host: Vec<FromHost>,
    /// Ways out.
    pub out: Outlets,
    /// Buffers for injected frames.
    pub pool: Mempool,
    /// Longest idle sleep, microseconds; 0 never sleeps.
    pub idle_backoff_us: u32,
}

/// The thread could not become a worker.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The core does not exist or is not allowed to this process.
    #[error("worker {worker}: core {core} is not available to this process")]
    Core {
        /// Index of the worker.
        worker: u8,
        /// The core asked for.
        core: usize,
    },
    /// EAL refused the thread.
    #[error("{thread}")]
    Register {
        /// Name of the thread.
        thread: String,
        /// What DPDK said.
        source: rte_rs::Error,
    },
    /// The host path cannot go on.
    #[error(transparent)]
    Twin(#[from] TwinError),
}

impl WorkerSetup {
    /// Runs on the calling thread until `stop`; calls `started` before the first burst.
    ///
    /// # Errors
    /// The thread could not be pinned or registered; nothing was received then.
    pub fn run(
        self,
        eal: &Eal,
        stop: &AtomicBool,
        started: impl FnOnce(),
    ) -> Result<(), WorkerError> {
        let worker = self.shm.index();
        // EAL pinned the main thread and this one inherited that.
        if !core_affinity::set_for_current(core_affinity::CoreId { id: self.core }) {
            return Err(WorkerError::Core {
                worker,
                core: self.core,
            });
        }
        let _registered = eal
            .register_thread()
            .map_err(|source| WorkerError::Register {
                thread: format!("worker {worker}"),
                source,
            })?;
        self.shm.enter(u32::try_from(self.core).unwrap_or(u32::MAX));
        self.shm.set_tsc_hz(eal.tsc_hz());
        let roles = self.settings.ports.iter().map(|port| port.role).collect();
        let mut poller = Poller {
            path: Path::new(
                FastPath::new(self.shm, &self.settings, monotonic_ms()),
                self.out,
                Injector::new(roles, self.pool),
                &self.coalescing,
            ),
            fib: self.fib,
            rx: self.rx,
            taken_over: self.taken_over,
            from_host: self.from_host,
        };
        started();
        poller.run(Backoff::new(self.idle_backoff_us), stop);
        // T3.
        poller.path.flush(Counter::EndQuiescent);
        poller.path.forget();
        poller.path.shm().leave();
        Ok(())
    }
}

/// A worker that runs.
struct Poller {
    path: Path,
    fib: RteFib,
    rx: Vec<RxPort>,
    taken_over: Vec<Consumer>,
    from_host: Vec<FromHost>,
}

impl Poller {
    fn run(&mut self, mut backoff: Backoff, stop: &AtomicBool) {
        let mut heartbeat_ms = 0;
        let mut ticks = rte_rs::tsc();
        while !stop.load(Ordering::Relaxed) {
            self.fib.follow();
            let now_ns = monotonic_ns();
            let now_ms = now_ns / 1_000_000;
            self.path.poll(now_ns);
            self.path.resume(&self.fib);
            let mut worked = self.receive();
            worked |= self.take_over();
            if !worked {
                // T2.
                self.path.flush(Counter::EndBurst);
            }
            worked |= self.path.inject();
            worked |= self.send_for_host();
            let shm = self.path.fast.shm_mut();
            shm.count(Counter::Loops, 1);
            shm.pay_bell();
            if now_ms >= heartbeat_ms + HEARTBEAT_MS {
                heartbeat_ms = now_ms;
                shm.heartbeat(now_ms);
            }
            // INV-EPOCH-1: all bursts are dispatched and sent, nothing but runs that are held refers to a table any more.
            self.path.quiescent();
            let shm = self.path.shm();
            let spent = if worked {
                backoff.busy();
                Counter::BusyCycles
            } else {
                shm.count(Counter::IdleLoops, 1);
                if let Some(sleep) = backoff.idle() {
                    std::thread::sleep(sleep);
                }
                Counter::IdleCycles
            };
            let now = rte_rs::tsc();
            shm.count(spent, now.wrapping_sub(ticks));
            ticks = now;
        }
    }

    /// One burst from each receive queue.
    fn receive(&mut self) -> bool {
        let mut worked = false;
        let mut burst: Burst<BURST> = Burst::new();
        for at in 0..self.rx.len() {
            let Some(rx) = self.rx.get_mut(at) else {
                break;
            };
            if rx.queue.burst(&mut burst) == 0 {
                continue;
            }
            worked = true;
            let mut bytes = 0;
            for mbuf in &mut burst {
                // DPDK's port number is not ours: ours is the index in the configuration.
                mbuf.set_port(u16::from(rx.port));
                bytes += mbuf.len() as u64;
            }
            if let Some(tpid) = rx.outer_tpid {
                for mbuf in &mut burst {
                    set_outer_tpid(mbuf.data_mut(), tpid);
                }
            }
            let (packets, octets) = match rx.role {
                PortRole::Access { .. } => (Counter::RxAccess, Counter::RxAccessBytes),
                PortRole::Core => (Counter::RxCore, Counter::RxCoreBytes),
            };
            let shm = self.path.shm();
            shm.count(packets, burst.len() as u64);
            shm.count(octets, bytes);
            let role = rx.role;
            if rx.verifies_ipv4 {
                drop_bad_ipv4(&mut burst, shm);
            }
            self.path.process(&self.fib, role, &mut burst, Origin::Port);
        }
        worked
    }

    /// One burst from each other worker.
    fn take_over(&mut self) -> bool {
        let mut worked = false;
        let mut burst: Burst<BURST> = Burst::new();
        for at in 0..self.taken_over.len() {
            let taken = self.taken_over.get_mut(at);
            if taken.is_none_or(|ring| ring.dequeue_burst(&mut burst) == 0) {
                continue;
            }
            worked = true;
            let shm = self.path.shm();
            shm.count(Counter::TakenOver, burst.len() as u64);
            // A ring mixes both directions; frames of one direction are processed together, in order.
            while let Some(first) = burst.first() {
                let injector = &self.path.injector;
                let role = injector.role(first.port());
                let same = |mbuf: &&Mbuf| injector.role(mbuf.port()) == role;
                let frames = burst.iter().take_while(same).count();
                let mut part: Burst<BURST> = burst.drain(..frames).collect();
                self.path
                    .process_part(&self.fib, role, &mut part, Origin::HandedOver);
            }
            self.path.end_burst();
        }
        worked
    }

    /// Frames from the kernel's TAP twins.
    fn send_for_host(&mut self) -> bool {
        let mut worked = false;
        let mut burst: Burst<BURST> = Burst::new();
        for FromHost { port, ring, room } in &mut self.from_host {
            let frames = ring.dequeue_burst(&mut burst);
            if frames == 0 {
                continue;
            }
            worked = true;
            let Path { fast, out, .. } = &mut self.path;
            room.made(ring, &out.host_bell);
            fast.shm().count(Counter::HostOut, frames as u64);
            for mbuf in burst.drain(..) {
                out.send(*port, mbuf, fast.shm());
            }
        }
        if worked {
            let Path { fast, out, .. } = &mut self.path;
            out.flush(fast.shm());
        }
        worked
    }
}

/// Drops what the port has found a wrong IPv4 header checksum in. What it has not looked at the stages verify.
#[inline]
fn drop_bad_ipv4(burst: &mut Burst<BURST>, shm: &Worker) {
    let is_bad = |mbuf: &Mbuf| mbuf.rx_ip_checksum() == RxChecksum::Bad;
    if !burst.iter().any(is_bad) {
        return;
    }
    let before = burst.len();
    burst.retain(|mbuf| !is_bad(mbuf));
    shm.count(Counter::Ipv4Checksum, (before - burst.len()) as u64);
}

/// Gives the outermost tag, if there is one, the TPID it had on the wire.
fn set_outer_tpid(frame: &mut [u8], tpid: u16) {
    if let Some(place) = frame.get_mut(12..14)
        && matches!(*place, [0x81, 0x00] | [0x88, 0xa8])
    {
        place.copy_from_slice(&tpid.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outer_tag_alone_gets_the_ports_tpid() {
        let frame = |tags: &[u8]| [&[0; 12][..], tags, &[0x88, 0x64, 0x81, 0x00]].concat();
        for (before, after) in [
            (&[][..], &[][..]),
            (&[0x81, 0, 0, 7], &[0x88, 0xa8, 0, 7]),
            (
                &[0x81, 0, 0, 7, 0x81, 0, 0, 9],
                &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 9],
            ),
        ] {
            let mut bytes = frame(before);
            set_outer_tpid(&mut bytes, 0x88a8);
            assert_eq!(bytes, frame(after));
        }
        set_outer_tpid(&mut [0x81; 13], 0x88a8);
    }
}
