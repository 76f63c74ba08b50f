//! Timers of NAT mappings, their ageing, and their recovery after a restart of the dataplane.

use bng_shm::{Counter, NatProtocol, Reverse, SessionState, SlotIndex, TICK_MS, Worker};

use crate::nat_port::{further, owns_port};
use crate::nat_table::{Key, Mapping};
use crate::nat44::Nat;

/// How long a mapping lives after its last outbound packet, in seconds (up to 65,535, 18 hours); time is taken in ticks
/// ([`TICK_MS`]), so it may live up to two of them longer, and never shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NatTimers {
    /// UDP (RFC 4787 REQ-5).
    pub udp: u16,
    /// ICMP queries (RFC 5508 REQ-2).
    pub icmp: u16,
    /// TCP with packets seen both ways and no FIN or RST (RFC 5382 REQ-5).
    pub tcp_established: u16,
    /// TCP being opened or closed (RFC 5382 REQ-5).
    pub tcp_transitory: u16,
}

impl Default for NatTimers {
    fn default() -> Self {
        Self {
            udp: 300,
            icmp: 60,
            tcp_established: 7_440,
            tcp_transitory: 240,
        }
    }
}

/// [`NatTimers`] in ticks, rounded up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lifetimes {
    tcp_transitory: u16,
    tcp_established: u16,
    udp: u16,
    icmp: u16,
}

impl Lifetimes {
    pub(crate) fn new(timers: &NatTimers) -> Self {
        // At most 65,535 seconds, so the ticks fit.
        let ticks = |seconds: u16| (u64::from(seconds) * 1_000).div_ceil(TICK_MS) as u16;
        Self {
            tcp_transitory: ticks(timers.tcp_transitory),
            tcp_established: ticks(timers.tcp_established),
            udp: ticks(timers.udp),
            icmp: ticks(timers.icmp),
        }
    }

    /// Whether the mapping of a reverse entry is too old at `tick`. A tick that has begun does not count: a mapping
    /// lives up to two ticks longer than its timer says, never shorter.
    #[inline(always)]
    pub(crate) fn expired(&self, protocol: NatProtocol, entry: &Reverse, tick: u16) -> bool {
        let limit = match protocol {
            NatProtocol::Udp => self.udp,
            NatProtocol::Icmp => self.icmp,
            NatProtocol::Tcp if entry.inbound_seen && !entry.closing => self.tcp_established,
            NatProtocol::Tcp => self.tcp_transitory,
        };
        tick.wrapping_sub(entry.last_seen) > limit
    }
}

/// The tick of a monotonic time; it wraps after three days.
pub(crate) const fn tick_of(now_ms: u64) -> u16 {
    (now_ms / TICK_MS) as u16
}

/// The whole table is walked in this time, in small steps.
const ROUND_MS: u64 = 32_000;
/// Buckets looked at in one call, at most; what is left over waits for the next call.
const STEP: usize = 32;
/// A mapping used within this many ticks (16 seconds) is not looked at: its session lives.
const FRESH: u16 = (16_000 / TICK_MS) as u16;

/// Where ageing stands.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    cursor: usize,
    /// Buckets due, in units of 1 / [`ROUND_MS`] bucket.
    due: u64,
    last_ms: u64,
}

impl Nat {
    /// Sets the clock and ages the buckets that are due, at most [`STEP`] of them.
    #[inline]
    pub(crate) fn age(&mut self, shm: &Worker, now_ms: u64) {
        if now_ms != self.sweep.last_ms {
            let elapsed = now_ms.saturating_sub(self.sweep.last_ms).min(ROUND_MS);
            self.sweep.last_ms = now_ms;
            self.tick = tick_of(now_ms);
            self.second = (now_ms / 1_000) as u16;
            let round = self.table.bucket_count() as u64 * ROUND_MS;
            self.sweep.due =
                (self.sweep.due + elapsed * self.table.bucket_count() as u64).min(round);
        }
        if self.sweep.due >= ROUND_MS {
            self.sweep_step(shm);
        }
    }

    fn sweep_step(&mut self, shm: &Worker) {
        let before = self.table.len();
        let (timers, tick) = (self.timers, self.tick);
        for _ in 0..STEP {
            if self.sweep.due < ROUND_MS {
                break;
            }
            self.sweep.due -= ROUND_MS;
            let at = self.sweep.cursor;
            self.sweep.cursor = at.wrapping_add(1);
            let Self { table, usages, .. } = self;
            table.sweep(at, |key, mapping| {
                let stays = tick.wrapping_sub(mapping.last_seen) <= FRESH
                    || keeps(shm, &timers, tick, key, mapping);
                if !stays {
                    usages.gone(key);
                }
                stays
            });
        }
        shm.count(
            Counter::NatMappingExpired,
            u64::from(before - self.table.len()),
        );
    }

    /// Fills the forward table from the reverse array: the mappings of this worker's live sessions that have not
    /// expired. Called once, before the first burst; walks every port of every block owned.
    pub(crate) fn recover(&mut self, shm: &Worker, now_ms: u64) {
        self.tick = tick_of(now_ms);
        self.second = (now_ms / 1_000) as u16;
        self.sweep.last_ms = now_ms;
        for slot in (0..shm.reader().capacities().session_slots()).map(SlotIndex) {
            if shm.reader().owner(slot) != Some(shm.index()) {
                continue;
            }
            let Some(Ok(session)) = shm.reader().session(slot) else {
                continue;
            };
            let Some(block) = session.nat else { continue };
            let live = matches!(
                session.state,
                SessionState::Negotiating | SessionState::Forwarding
            );
            let generation = Reverse::generation_bits(session.generation);
            let blocks = std::iter::once(block).chain(further(shm, slot, &block));
            let ports = blocks
                .flat_map(|block| (block.first_port..=u16::MAX).take(usize::from(block.size)));
            for port in ports.filter(|_| live) {
                for protocol in [NatProtocol::Tcp, NatProtocol::Udp, NatProtocol::Icmp] {
                    let Some(entry) = shm.reverse(block.address_index, protocol, port) else {
                        continue;
                    };
                    if entry.slot == slot
                        && entry.generation == generation
                        && !self.recover_one(protocol, block.address_index, port, &entry)
                    {
                        shm.set_reverse(block.address_index, protocol, port, None);
                    }
                }
            }
        }
    }

    /// False when the entry is to be cleared: expired, a second one for its inside port, or no room.
    fn recover_one(
        &mut self,
        protocol: NatProtocol,
        address_index: u16,
        outside_port: u16,
        entry: &Reverse,
    ) -> bool {
        if self.timers.expired(protocol, entry, self.tick) {
            return false;
        }
        let key = Key::new(entry.slot, entry.generation, protocol, entry.inside_port);
        let home = self.table.home(key);
        let mapping = Mapping {
            address_index,
            outside_port,
            last_seen: entry.last_seen,
        };
        let is_in =
            self.table.find(home, key).is_none() && self.table.insert(home, key, mapping).is_ok();
        if is_in {
            self.usages.add(key);
        }
        is_in
    }
}

/// Whether an old mapping stays. One that has expired takes its reverse entry with it; one whose session is gone
/// leaves the reverse entry alone, since the block may be another session's and its owner another worker
/// (INV-OWNER-1). A leftover entry is recognised by slot and generation wherever it is read.
fn keeps(shm: &Worker, timers: &Lifetimes, tick: u16, key: Key, mapping: Mapping) -> bool {
    let Some(Ok(session)) = shm.reader().session(key.slot()) else {
        return true;
    };
    let live = matches!(
        session.state,
        SessionState::Negotiating | SessionState::Forwarding
    ) && session.owner == shm.index()
        && Reverse::generation_bits(session.generation) == key.generation()
        && session.nat.is_some_and(|block| {
            owns_port(
                shm,
                key.slot(),
                &block,
                mapping.address_index,
                mapping.outside_port,
            )
        });
    if !live {
        return false;
    }
    let at = (mapping.address_index, key.protocol(), mapping.outside_port);
    let ours = shm.reverse(at.0, at.1, at.2).filter(|entry| {
        entry.slot == key.slot()
            && entry.generation == key.generation()
            && entry.inside_port == key.inside_port()
    });
    match ours {
        Some(entry) if timers.expired(key.protocol(), &entry, tick) => {
            shm.set_reverse(at.0, at.1, at.2, None);
            false
        }
        Some(_) => true,
        // Somebody cleared it: the mapping does not work any more, so let it go.
        None => false,
    }
}
