//! What becomes of a burst after the stages: every frame goes where its verdict says.

use crate::frame::Frame;
use crate::host::{HostBell, ToHost};
use crate::super_packet::{self, Checksums};
use crate::tx::TxPort;
use bng_fastpath::coalesce::{Protocols, Run, Sink};
use bng_fastpath::fragment;
use bng_fastpath::{BURST, Origin, Punt, Verdict, WaitingRoom};
use bng_shm::{Counter, FrameMeta, PuntClass, Worker};
use rte_rs::{Burst, Mbuf, Mempool, Producer};
use std::sync::Arc;

/// Ways out of a worker, apart from the shared memory.
#[derive(Debug)]
pub struct Outlets {
    /// Transmit side of every port, by index.
    pub tx: Vec<TxPort>,
    /// Hand-over ring to each worker, by index; none to itself.
    pub handover: Vec<Option<HandOver>>,
    /// Buffers for fragments.
    pub fragments: Mempool,
    /// Later fragments whose first one has not come.
    pub waiting: WaitingRoom<Frame>,
    /// To the host thread.
    pub host: ToHost,
    /// Wakes the host thread.
    pub host_bell: Arc<HostBell>,
    /// What super-packets the TAP twin of each port takes, by index; missing ones take none.
    pub twins: Vec<Protocols>,
}

/// Frames on their way to another worker, gathered so that a burst costs one ring operation.
#[derive(Debug)]
pub struct HandOver {
    ring: Producer,
    gathered: Burst<BURST>,
}

impl HandOver {
    /// The producer's end of the ring to one worker.
    #[must_use]
    pub fn new(ring: Producer) -> Self {
        Self {
            ring,
            gathered: Burst::new(),
        }
    }

    #[inline]
    fn push(&mut self, mbuf: Mbuf, shm: &Worker) {
        if self.gathered.is_full() {
            self.flush(shm);
        }
        self.gathered.push(mbuf);
    }

    fn flush(&mut self, shm: &Worker) {
        if self.gathered.is_empty() {
            return;
        }
        let passed = self.ring.enqueue_burst(&mut self.gathered);
        shm.count(Counter::HandedOver, passed as u64);
        shm.count(Counter::HandoverFull, self.gathered.len() as u64);
        Mbuf::free_bulk(&mut self.gathered);
    }
}

impl Outlets {
    /// Sends every frame of the burst where its verdict says; the burst is empty afterwards.
    pub fn dispatch(
        &mut self,
        burst: &mut Burst<BURST>,
        verdicts: &[Verdict; BURST],
        shm: &mut Worker,
        now_ms: u64,
    ) {
        if let Some(port) = only_port(verdicts.get(..burst.len()).unwrap_or(&[]))
            && let Some(tx) = self.tx.get_mut(usize::from(port))
        {
            tx.send(burst, shm);
        } else {
            self.dispatch_each(burst, verdicts, shm, now_ms);
        }
    }

    /// As [`Self::dispatch`], frame by frame.
    #[inline(never)]
    fn dispatch_each(
        &mut self,
        burst: &mut Burst<BURST>,
        verdicts: &[Verdict; BURST],
        shm: &mut Worker,
        now_ms: u64,
    ) {
        let mut departures = Departures::new(self, shm, now_ms);
        for (mbuf, verdict) in burst.drain(..).zip(verdicts) {
            departures.one(mbuf.into(), *verdict);
        }
        departures.finish();
        self.flush(shm);
    }

    /// Sends a packet that is larger than `mtu` in fragments.
    #[cold]
    fn fragment(&mut self, port: u8, mtu: u16, mbuf: Mbuf, shm: &Worker) {
        match fragment::split(Frame::from(mbuf), mtu, &mut self.fragments) {
            Ok(frames) => {
                shm.count(Counter::FragmentsMade, frames.len() as u64 - 1);
                for frame in frames {
                    self.send(port, frame.into(), shm);
                }
            }
            Err((_, reason)) => shm.count(reason, 1),
        }
    }

    /// Whether what this verdict leads to takes such a run of so many frames in one piece, and how it wants the checksums.
    #[inline]
    fn supers(&self, run: &Run, frames: usize, verdict: Verdict) -> Option<Checksums> {
        match verdict {
            Verdict::Forward { port } => {
                let tx = self.tx.get(usize::from(port))?;
                (run.is_tcp && tx.takes(frames)).then_some(Checksums::Port { ipv4: true })
            }
            Verdict::Host { port } => {
                let takes = self.twins.get(usize::from(port))?;
                let takes = if run.is_tcp { takes.tcp } else { takes.udp };
                takes.then_some(Checksums::Virtio)
            }
            _ => None,
        }
    }

    fn punt(&self, mbuf: &Mbuf, punt: Punt, shm: &mut Worker, now_ms: u64) {
        let (class, session, counter) = match punt {
            Punt::Discovery => (PuntClass::Discovery, None, Counter::PuntDiscovery),
            Punt::Ppp { slot, generation } => {
                (PuntClass::Ppp, Some((slot, generation)), Counter::PuntPpp)
            }
        };
        let meta = FrameMeta {
            port: mbuf.port() as u8,
            class,
            session,
        };
        let outcome = shm
            .punt(&meta, now_ms, mbuf.data())
            .err()
            .unwrap_or(counter);
        shm.count(outcome, 1);
    }

    /// Gathers a frame for a port. A port that does not exist takes nothing, as one whose queue is full.
    #[inline]
    pub fn send(&mut self, port: u8, mbuf: Mbuf, shm: &Worker) {
        match self.tx.get_mut(usize::from(port)) {
            Some(tx) => tx.push(mbuf, shm),
            None => shm.count(Counter::TxQueueFull, 1),
        }
    }

    /// Sends what is gathered on all ports.
    pub fn flush(&mut self, shm: &Worker) {
        for tx in &mut self.tx {
            tx.flush(shm);
        }
    }
}

/// Frames on their way out, one after the other. Those for ports are gathered until [`Outlets::flush`], all others are where
/// they belong after [`Departures::finish`].
#[derive(Debug)]
pub struct Departures<'a> {
    out: &'a mut Outlets,
    shm: &'a mut Worker,
    now_ms: u64,
    done: Burst<BURST>,
    for_host: Burst<BURST>,
}

impl<'a> Departures<'a> {
    /// No frames yet. `now_ms` is CLOCK_MONOTONIC in milliseconds, for what is punted.
    #[inline]
    pub fn new(out: &'a mut Outlets, shm: &'a mut Worker, now_ms: u64) -> Self {
        Self {
            out,
            shm,
            now_ms,
            done: Burst::new(),
            for_host: Burst::new(),
        }
    }

    /// The buffer is not needed any more.
    fn done(&mut self, mbuf: Mbuf) {
        if self.done.is_full() {
            Mbuf::free_bulk(&mut self.done);
        }
        self.done.push(mbuf);
    }

    /// A later fragment stays until its first one has come, if there is room.
    #[cold]
    fn wait(&mut self, mbuf: Mbuf, origin: Origin) {
        match self.out.waiting.enter(mbuf.into(), origin, self.now_ms) {
            Ok(()) => self.shm.count(Counter::FragmentsHeld, 1),
            Err(frame) => {
                self.shm.count(Counter::NatFragmentRoom, 1);
                self.done(frame.into());
            }
        }
    }

    /// A frame or super-packet for the TAP twin of a port.
    fn host(&mut self, port: u8, mut mbuf: Mbuf) {
        if self.for_host.is_full() {
            self.flush_host();
        }
        mbuf.set_port(u16::from(port));
        self.for_host.push(mbuf);
    }

    fn flush_host(&mut self) {
        self.out.host.enqueue_burst(&mut self.for_host);
        if !self.for_host.is_empty() {
            let frames = self.for_host.iter().map(|mbuf| u64::from(mbuf.frames()));
            self.shm.count(Counter::HostRingFull, frames.sum());
            Mbuf::free_bulk(&mut self.for_host);
        }
        self.out.host_bell.ring();
    }

    /// Gives what was gathered for others than ports to them.
    #[inline]
    pub fn finish(mut self) {
        Mbuf::free_bulk(&mut self.done);
        if !self.for_host.is_empty() {
            self.flush_host();
        }
        for handover in self.out.handover.iter_mut().flatten() {
            handover.flush(self.shm);
        }
    }
}

impl Sink<Frame> for Departures<'_> {
    #[inline]
    fn one(&mut self, frame: Frame, verdict: Verdict) {
        let mbuf = Mbuf::from(frame);
        match verdict {
            Verdict::Forward { port } => self.out.send(port, mbuf, self.shm),
            Verdict::Fragment { port, mtu } => self.out.fragment(port, mtu, mbuf, self.shm),
            Verdict::Drop(_) => self.done(mbuf),
            Verdict::Wait(origin) => self.wait(mbuf, origin),
            Verdict::Punt(punt) => {
                self.out.punt(&mbuf, punt, self.shm, self.now_ms);
                self.done(mbuf);
            }
            Verdict::Host { port } => self.host(port, mbuf),
            Verdict::HandOver { worker } => {
                let handover = self.out.handover.get_mut(usize::from(worker));
                match handover.and_then(Option::as_mut) {
                    Some(handover) => handover.push(mbuf, self.shm),
                    None => {
                        self.shm.count(Counter::HandoverStale, 1);
                        self.done(mbuf);
                    }
                }
            }
        }
    }

    /// As one super-packet to what takes it, else back to back, in order and with nothing between them (S8).
    #[inline]
    fn run(&mut self, run: &Run, verdict: Verdict, frames: &mut Vec<Frame>) {
        if let Some(checksums) = self.out.supers(run, frames.len(), verdict)
            && let Some(mbuf) = super_packet::build(run, frames, checksums)
        {
            return self.one(mbuf.into(), verdict);
        }
        if let Verdict::Forward { port } = verdict
            && let Some(tx) = self.out.tx.get_mut(usize::from(port))
        {
            for frame in frames.drain(..) {
                tx.push(frame.into(), self.shm);
            }
            return;
        }
        for frame in frames.drain(..) {
            self.one(frame, verdict);
        }
    }
}

/// The port, if all frames are forwarded to one, as those of most bursts are.
#[inline]
fn only_port(verdicts: &[Verdict]) -> Option<u8> {
    let Some(Verdict::Forward { port: first }) = verdicts.first() else {
        return None;
    };
    let same = |verdict: &Verdict| matches!(verdict, Verdict::Forward { port } if port == first);
    verdicts.iter().all(same).then_some(*first)
}
