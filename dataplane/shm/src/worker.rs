//! The dataplane's side: attach, one [`Worker`] per worker, one [`HostSide`].

use crate::attach::{AttachError, Attached, Presence, Role, attach, initialise, monotonic_ms};
use crate::counters::Counter;
use crate::epoch::SeenEpoch;
use crate::frames::{
    BellDebt, Event, FrameMeta, InjectedFrame, PuntClass, TooLong, push_event, push_frame,
    take_frame,
};
use crate::layout::{
    Capacities, EVENT_RING_SLOTS, FRAME_MAX, INJECT_RING_SLOTS, Layout, Mismatch, PUNT_RING_SLOTS,
};
use crate::mapping::Tables;
use crate::nat::{NatProtocol, Reverse, reverse_index};
use crate::policy::Meter;
use crate::publisher::Publisher;
use crate::reader::Reader;
use crate::ring::{Full, Take};
use crate::session::{Policed, SessionStats, SlotIndex};
use crate::status::{Offloads, PortState, PortStatus, Steering};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The forwarding process's hold on the memory.
pub struct Dataplane {
    tables: Tables,
    capacities: Capacities,
    presence: Presence,
    replaced: Option<Mismatch>,
    workers_taken: Vec<bool>,
    host_taken: bool,
}

impl std::fmt::Debug for Dataplane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dataplane")
            .field("capacities", &self.capacities)
            .finish_non_exhaustive()
    }
}

impl Dataplane {
    /// Attaches to the memory in `dir`, making it if nobody has.
    ///
    /// # Errors
    /// See [`AttachError`]; each says what to do.
    pub fn attach(dir: &Path, capacities: Capacities) -> Result<Self, AttachError> {
        let Attached {
            tables,
            capacities,
            presence,
            replaced,
            ..
        } = attach(dir, capacities, Role::Dataplane)?;
        Ok(Self::over(tables, capacities, presence, replaced))
    }

    pub(crate) fn over(
        tables: Tables,
        capacities: Capacities,
        presence: Presence,
        replaced: Option<Mismatch>,
    ) -> Self {
        // Workers of a process that was killed did not say good-bye.
        for worker in tables.workers.iter() {
            worker.echo.leave();
        }
        for port in tables.ports.iter() {
            port.mac_state.store(0, Ordering::Release);
        }
        // A new process begins with empty FIBs.
        tables.header[0].routes_applied.store(0, Ordering::Release);
        tables.header[0].routes6_applied.store(0, Ordering::Release);
        tables.header[0].dataplane.announce();
        for refused in &tables.header[0].routes_refused {
            refused.store(0, Ordering::Relaxed);
        }
        let workers_taken = vec![false; capacities.workers as usize];
        Self {
            tables,
            capacities,
            presence,
            replaced,
            workers_taken,
            host_taken: false,
        }
    }

    /// Both sides over private memory of this process, for tests and benchmarks.
    ///
    /// # Errors
    /// A capacity out of range, or no memory.
    pub fn in_process(capacities: Capacities) -> Result<(Self, Publisher), AttachError> {
        capacities.check()?;
        let tables =
            Tables::anonymous(&Layout::of(&capacities)).map_err(|source| AttachError::Io {
                path: "(anonymous)".into(),
                action: "map",
                source,
            })?;
        initialise(&tables, &capacities);
        let publisher = Publisher::over(tables.clone(), capacities, Presence::alone(), None, true);
        Ok((
            Self::over(tables, capacities, Presence::alone(), None),
            publisher,
        ))
    }

    /// What differed, if the memory was made anew in place of an unused one of another layout.
    #[must_use]
    pub fn replaced(&self) -> Option<&Mismatch> {
        self.replaced.as_ref()
    }

    /// A read-only view.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader {
            tables: self.tables.clone(),
            capacities: self.capacities,
        }
    }

    /// The side of worker `index`; `None` if there is no such worker or it was taken before.
    #[must_use]
    pub fn worker(&mut self, index: u8) -> Option<Worker> {
        let taken = self.workers_taken.get_mut(usize::from(index))?;
        (!std::mem::replace(taken, true)).then(|| Worker {
            reader: self.reader(),
            index,
            debt: BellDebt::default(),
        })
    }

    /// The side of the host path; `None` if it was taken before.
    #[must_use]
    pub fn host(&mut self) -> Option<HostSide> {
        (!std::mem::replace(&mut self.host_taken, true)).then(|| HostSide {
            reader: self.reader(),
        })
    }

    /// Whether bng-controlplane runs (by its lock).
    #[must_use]
    pub fn control_alive(&self) -> bool {
        self.presence.other_alive()
    }

    /// Tells that the process lives; call about once a second.
    pub fn heartbeat(&self) {
        self.tables.header[0]
            .dataplane
            .heartbeat_ms
            .store(monotonic_ms(), Ordering::Relaxed);
    }

    /// Tells how many of the routes applied found no room in the FIBs, IPv4 and IPv6. Their packets take the next less
    /// specific route, or none.
    pub fn routes_refused(&self, routes: u32, routes6: u32) {
        let refused = &self.tables.header[0].routes_refused;
        for (word, count) in refused.iter().zip([routes, routes6]) {
            word.store(count, Ordering::Relaxed);
        }
    }

    /// Tells that the routes of this version are in the FIB.
    pub fn routes_applied(&self, version: u64) {
        self.tables.header[0]
            .routes_applied
            .store(version, Ordering::Release);
    }

    /// Tells that the IPv6 routes of this version are in the FIB.
    pub fn routes6_applied(&self, version: u64) {
        self.tables.header[0]
            .routes6_applied
            .store(version, Ordering::Release);
    }

    /// Tells how many packet buffers there are, and how many are in use; call about once a second.
    pub fn publish_mbufs(&self, all: u32, in_use: u32) {
        let [all_word, in_use_word] = &self.tables.header[0].mbufs;
        all_word.store(all, Ordering::Relaxed);
        in_use_word.store(in_use, Ordering::Relaxed);
    }

    /// Publishes what is known of a port; control needs its MAC address before it can answer there.
    pub fn publish_port(&self, port: u8, status: &PortStatus) {
        if let Some(block) = self.tables.ports.get(usize::from(port)) {
            block.write(status);
        }
    }

    /// Rings control's bell: a port came up, a worker died, or so.
    pub fn ring_control(&self) {
        self.tables.header[0].control_bell.ring();
    }
}

impl PortStatus {
    pub(crate) const fn state_bits(state: PortState, link_up: bool) -> u64 {
        (state as u64) << 56 | (link_up as u64) << 48
    }
}

impl crate::layout::PortBlock {
    fn write(&self, status: &PortStatus) {
        self.mtu.store(u32::from(status.mtu), Ordering::Relaxed);
        self.twin_ifindex
            .store(status.twin_ifindex, Ordering::Relaxed);
        self.link_mbps.store(status.link_mbps, Ordering::Relaxed);
        self.steering
            .store(status.steering as u32, Ordering::Relaxed);
        self.offloads.store(status.offloads.0, Ordering::Relaxed);
        for (word, value) in self.stats.iter().zip(status.stats) {
            word.store(value, Ordering::Relaxed);
        }
        put_text(&self.driver, &status.driver);
        put_text(&self.steering_reason, &status.steering_reason);
        put_text(&self.segmentation_reason, &status.segmentation_reason);
        let mut mac = [0; 8];
        mac[..6].copy_from_slice(&status.mac);
        let word = u64::from_le_bytes(mac) | PortStatus::state_bits(status.state, status.link_up);
        self.mac_state.store(word, Ordering::Release);
    }

    pub(crate) fn read(&self) -> PortStatus {
        let word = self.mac_state.load(Ordering::Acquire);
        let b = word.to_le_bytes();
        PortStatus {
            state: PortState::from_bits((word >> 56) as u8),
            link_up: word >> 48 & 1 == 1,
            mac: [b[0], b[1], b[2], b[3], b[4], b[5]],
            mtu: self.mtu.load(Ordering::Relaxed) as u16,
            twin_ifindex: self.twin_ifindex.load(Ordering::Relaxed),
            link_mbps: self.link_mbps.load(Ordering::Relaxed),
            steering: Steering::from_bits(self.steering.load(Ordering::Relaxed)),
            steering_reason: text(&self.steering_reason),
            segmentation_reason: text(&self.segmentation_reason),
            offloads: Offloads(self.offloads.load(Ordering::Relaxed)),
            stats: std::array::from_fn(|i| self.stats[i].load(Ordering::Relaxed)),
            driver: text(&self.driver),
        }
    }
}

/// Writes a text into words, zero padded; what does not fit is cut off.
fn put_text(words: &[AtomicU64], text: &str) {
    let mut bytes = text.bytes();
    for word in words {
        let raw = std::array::from_fn(|_| bytes.next().unwrap_or(0));
        word.store(u64::from_le_bytes(raw), Ordering::Relaxed);
    }
}

fn text(words: &[AtomicU64]) -> String {
    let bytes = words
        .iter()
        .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
    let bytes: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[inline]
fn add(counter: &AtomicU64, by: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(by),
        Ordering::Relaxed,
    );
}

/// One worker's side. There is one of each index, so every array it writes has one writer.
#[derive(Debug)]
pub struct Worker {
    reader: Reader,
    index: u8,
    debt: BellDebt,
}

impl Worker {
    fn block(&self) -> &crate::layout::WorkerBlock {
        &self.reader.tables.workers[usize::from(self.index)]
    }

    /// The tables.
    #[inline]
    #[must_use]
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Index of this worker.
    #[inline]
    #[must_use]
    pub fn index(&self) -> u8 {
        self.index
    }

    /// The worker's thread starts, on core `core`. Before the first look-up.
    pub fn enter(&self, core: u32) {
        self.block().core.store(core, Ordering::Relaxed);
        self.block().echo.enter(&self.reader.tables.header[0].epoch);
    }

    /// The worker's thread ends.
    pub fn leave(&self) {
        self.block().echo.leave();
    }

    /// Quiescent point, once per poll loop: no frame, no view, no run in hand (INV-EPOCH-1).
    #[inline]
    pub fn quiescent(&self) {
        self.echo_epoch(self.see_epoch());
    }

    /// First half of a quiescent point, for a worker that holds something over loops: if the epoch is new, it lets go of all
    /// of that before [`Self::echo_epoch`].
    #[inline]
    pub fn see_epoch(&self) -> SeenEpoch {
        self.block().echo.see(&self.reader.tables.header[0].epoch)
    }

    /// Second half: nothing is in hand that was there when this epoch was seen (INV-EPOCH-1).
    #[inline]
    pub fn echo_epoch(&self, seen: SeenEpoch) {
        self.block().echo.quiescent(seen);
    }

    /// Tells that the worker lives; call when the coarse clock moved.
    pub fn heartbeat(&self, now_ms: u64) {
        self.block().heartbeat_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Adds to a counter.
    #[inline]
    pub fn count(&self, counter: Counter, by: u64) {
        add(&self.block().counters.0[counter.index()], by);
    }

    /// Ticks of the time-stamp counter per second, for the cycle counters.
    pub fn set_tsc_hz(&self, hz: u64) {
        self.block().tsc_hz.store(hz, Ordering::Relaxed);
    }

    /// Meters `bytes` of a session against `meter` at `now_ns` (CLOCK_MONOTONIC); false when they exceed the committed
    /// burst. The caller owns the session.
    #[inline(always)]
    #[must_use]
    pub fn conforms(
        &self,
        slot: SlotIndex,
        which: Policed,
        meter: Meter,
        bytes: u64,
        now_ns: u64,
    ) -> bool {
        self.stats(slot)
            .is_some_and(|stats| stats.conforms(which, meter, meter.ns(bytes), now_ns))
    }

    /// [`Self::conforms`] and, if it does, [`Self::count_up`] in one.
    #[inline(always)]
    #[must_use]
    pub fn pass_up(
        &self,
        slot: SlotIndex,
        meter: Meter,
        ip_bytes: u64,
        (now_ns, now_ms): (u64, u64),
    ) -> bool {
        self.stats(slot).is_some_and(|stats| {
            let conforms = stats.conforms(Policed::Up, meter, meter.ns(ip_bytes), now_ns);
            if conforms {
                stats.count_up(ip_bytes);
                stats.seen_up(now_ms);
            }
            conforms
        })
    }

    /// [`Self::conforms`] and, if it does, [`Self::count_down`] in one.
    #[inline(always)]
    #[must_use]
    pub fn pass_down(&self, slot: SlotIndex, meter: Meter, ip_bytes: u64, now_ns: u64) -> bool {
        self.stats(slot).is_some_and(|stats| {
            let conforms = stats.conforms(Policed::Down, meter, meter.ns(ip_bytes), now_ns);
            if conforms {
                stats.count_down(ip_bytes);
            }
            conforms
        })
    }

    /// Number of live NAT mappings, for the status.
    pub fn set_nat_mappings(&self, mappings: u32) {
        self.block().nat_mappings.store(mappings, Ordering::Relaxed);
    }

    /// Counts one packet of a session from the subscriber, of `ip_bytes` bytes. The caller owns the
    /// session.
    #[inline]
    pub fn count_up(&self, slot: SlotIndex, ip_bytes: u64, now_ms: u64) {
        if let Some(stats) = self.stats(slot) {
            stats.count_up(ip_bytes);
            stats.seen_up(now_ms);
        }
    }

    /// Counts one packet to the subscriber. The caller owns the session.
    #[inline]
    pub fn count_down(&self, slot: SlotIndex, ip_bytes: u64) {
        if let Some(stats) = self.stats(slot) {
            stats.count_down(ip_bytes);
        }
    }

    /// Notes a frame of the session that is not counted as a packet (PPP control): it lives.
    #[inline]
    pub fn seen_up(&self, slot: SlotIndex, now_ms: u64) {
        if let Some(stats) = self.stats(slot) {
            stats.seen_up(now_ms);
        }
    }

    #[inline]
    fn stats(&self, slot: SlotIndex) -> Option<&SessionStats> {
        self.reader
            .tables
            .sessions
            .get(slot.0 as usize)
            .map(|entry| &entry.stats)
    }

    /// The reverse mapping at an index from [`reverse_index`].
    #[inline]
    #[must_use]
    pub fn reverse(&self, address_index: u16, protocol: NatProtocol, port: u16) -> Option<Reverse> {
        Reverse::unpack(self.reverse_word(address_index, protocol, port))
    }

    /// As [`Self::reverse`], packed.
    #[inline(always)]
    #[must_use]
    pub fn reverse_word(&self, address_index: u16, protocol: NatProtocol, port: u16) -> u64 {
        let at = reverse_index(address_index, protocol, port);
        let word = self.reader.tables.nat_reverse.get(at);
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Starts loading a reverse mapping.
    #[inline]
    pub fn prefetch_reverse(&self, address_index: u16, protocol: NatProtocol, port: u16) {
        let at = reverse_index(address_index, protocol, port);
        self.reader.tables.nat_reverse.prefetch(at);
    }

    /// Sets or clears a reverse mapping. The caller owns the port block it lies in.
    #[inline]
    pub fn set_reverse(
        &self,
        address_index: u16,
        protocol: NatProtocol,
        port: u16,
        entry: Option<Reverse>,
    ) {
        let at = reverse_index(address_index, protocol, port);
        if let Some(word) = self.reader.tables.nat_reverse.get(at) {
            word.store(entry.map_or(0, Reverse::pack), Ordering::Relaxed);
        }
    }

    /// Gives a frame to control. On an error the frame is to be dropped with the counter returned.
    ///
    /// # Errors
    /// The drop reason: ring full, share of the ring used up, or frame too long.
    pub fn punt(&mut self, meta: &FrameMeta, now_ms: u64, frame: &[u8]) -> Result<(), Counter> {
        let (reserve, full) = match meta.class {
            PuntClass::Discovery => (PUNT_RING_SLOTS / 2, Counter::PuntRingReserved),
            PuntClass::Ppp => (0, Counter::PuntRingFull),
        };
        let block = &self.reader.tables.workers[usize::from(self.index)];
        let at = usize::from(self.index) * PUNT_RING_SLOTS;
        let slots = &self.reader.tables.punt[at..at + PUNT_RING_SLOTS];
        match push_frame(&block.punt, slots, reserve, meta, now_ms, frame) {
            Ok(Ok(())) => {
                self.debt.owe();
                Ok(())
            }
            Ok(Err(Full)) => Err(full),
            Err(TooLong(_)) => Err(Counter::PuntTooLong),
        }
    }

    /// Takes a frame from control; the bytes go into `buffer`.
    pub fn take_injected(&mut self, buffer: &mut [u8; FRAME_MAX]) -> Take<InjectedFrame> {
        let at = usize::from(self.index) * INJECT_RING_SLOTS;
        let slots = &self.reader.tables.inject[at..at + INJECT_RING_SLOTS];
        match take_frame(&self.block().inject, slots, buffer) {
            Take::Item((meta, len, _)) => Take::Item(InjectedFrame { meta, len }),
            Take::Empty => Take::Empty,
            Take::Corrupt => Take::Corrupt,
        }
    }

    /// Tells control something. A full event ring loses the event: each is a hint that will recur.
    pub fn tell(&mut self, event: Event) -> bool {
        let block = &self.reader.tables.workers[usize::from(self.index)];
        let at = usize::from(self.index) * EVENT_RING_SLOTS;
        let slots = &self.reader.tables.events[at..at + EVENT_RING_SLOTS];
        let told = push_event(&block.events, slots, event).is_ok();
        if told {
            self.debt.owe();
        }
        told
    }

    /// Rings control's bell if something was given to it since the last call; once per burst.
    pub fn pay_bell(&mut self) {
        if self.debt.pay(&self.reader.tables.header[0].control_bell) {
            add(&self.block().counters.0[Counter::ControlWoken.index()], 1);
        }
    }
}

/// The host path's side: it has a counter block of its own, behind the workers'.
#[derive(Debug)]
pub struct HostSide {
    reader: Reader,
}

impl HostSide {
    /// Adds to a counter of the host path.
    pub fn count(&self, counter: Counter, by: u64) {
        let at = self.reader.capacities.workers as usize;
        add(
            &self.reader.tables.workers[at].counters.0[counter.index()],
            by,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_longer_than_a_slot_is_refused_by_name_and_one_as_long_is_not() {
        let (mut dataplane, _publisher) = Dataplane::in_process(Capacities::SMALL).unwrap();
        let mut worker = dataplane.worker(0).unwrap();
        let meta = FrameMeta {
            port: 0,
            class: PuntClass::Ppp,
            session: None,
        };
        let frame = [0; FRAME_MAX + 1];
        assert_eq!(worker.punt(&meta, 0, &frame), Err(Counter::PuntTooLong));
        assert_eq!(worker.punt(&meta, 0, &frame[..FRAME_MAX]), Ok(()));
        let empty = |worker: &mut Worker| worker.punt(&meta, 0, &[]);
        let taken = (0..PUNT_RING_SLOTS).filter(|_| empty(&mut worker).is_ok());
        assert_eq!(taken.count(), PUNT_RING_SLOTS - 1);
        assert_eq!(empty(&mut worker), Err(Counter::PuntRingFull));
    }
    #[test]
    fn ninety_milliseconds_of_ten_thousand_setups_a_second_wait_for_control() {
        let (mut dataplane, mut publisher) = Dataplane::in_process(Capacities::SMALL).unwrap();
        let mut worker = dataplane.worker(0).unwrap();
        let meta = |class| FrameMeta {
            port: 0,
            class,
            session: None,
        };
        let (discovery, ppp) = (meta(PuntClass::Discovery), meta(PuntClass::Ppp));
        // PADI and PADR; then LCP's Configure-Request, an Ack for each of the two of ours, the password, IPCP's request twice
        // and an Ack.
        let frames = [
            &discovery, &discovery, &ppp, &ppp, &ppp, &ppp, &ppp, &ppp, &ppp,
        ];
        let setups = 10_000 * 90 / 1_000;
        for setup in 0..setups {
            for meta in frames {
                assert_eq!(worker.punt(meta, 0, &[0; 64]), Ok(()), "setup {setup}");
            }
        }
        // What is left is for those who have a session.
        let mut used = setups * frames.len();
        while worker.punt(&discovery, 0, &[0; 64]) != Err(Counter::PuntRingReserved) {
            used += 1;
        }
        assert_eq!(used, PUNT_RING_SLOTS / 2);
        while worker.punt(&ppp, 0, &[0; 64]) != Err(Counter::PuntRingFull) {
            used += 1;
        }
        assert_eq!(used, PUNT_RING_SLOTS);
        let mut buffer = [0; FRAME_MAX];
        let taken = std::iter::repeat_with(|| publisher.take_punted(0, &mut buffer));
        let taken = taken.take_while(|it| matches!(it, Take::Item(_))).count();
        assert_eq!(taken, PUNT_RING_SLOTS);
    }
}
