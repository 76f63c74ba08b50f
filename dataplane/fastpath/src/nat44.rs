//! Stage: NAT44, endpoint-independent mapping inside the subscriber's port block (RFC 4787, 5382, 5508, 6888).
//!
//! Upstream a mapping is found in the worker's own [`ForwardTable`], downstream in the reverse array in shared
//! memory, which outlives this process. Both are written by the session's owner alone (INV-OWNER-1).

use bng_shm::{Counter, Event, NatProtocol, PortBlock, Reverse, SessionLine, SlotIndex, Worker};
use bng_wire::checksum::Delta;
use bng_wire::l4::tcp_flag::{ACK, FIN, RST, SYN};
use bng_wire::{IcmpHdr, Ipv4Hdr, TcpHdr, UdpHdr};
use zerocopy::FromBytes;

use crate::flow::{Direction, Flow};
use crate::icmp_error;
use crate::nat_age::{Lifetimes, NatTimers, Sweep};
use crate::nat_port::{PortRandom, choose, owns_port};
use crate::nat_table::{ForwardTable, Inserted, Key, Mapping, NoRoom};
use crate::nat_usage::{NatLimits, Usages};
use crate::verdict::{Step, drop};

/// All NAT state of one worker.
#[derive(Debug)]
pub(crate) struct Nat {
    pub(crate) table: ForwardTable,
    pub(crate) timers: Lifetimes,
    pub(crate) sweep: Sweep,
    random: PortRandom,
    /// Tick of the coarse clock.
    pub(crate) tick: u16,
    /// Second of the coarse clock.
    pub(crate) second: u16,
    /// Per slot and protocol: [`exhausted_mark`] of the last search that found the whole block taken. Until the next
    /// second the same session does not search again, so an exhausted subscriber costs one search a second.
    exhausted: Vec<u32>,
    pub(crate) usages: Usages,
}

const PROTOCOLS: usize = 3;

impl Nat {
    pub(crate) fn new(
        mappings: u32,
        session_slots: u32,
        timers: &NatTimers,
        limits: NatLimits,
        seed: u64,
    ) -> Self {
        Self {
            table: ForwardTable::new(mappings, seed),
            timers: Lifetimes::new(timers),
            sweep: Sweep::default(),
            random: PortRandom::new(seed),
            tick: 0,
            second: 0,
            exhausted: vec![0; session_slots as usize * PROTOCOLS],
            usages: Usages::new(session_slots, limits),
        }
    }

    /// Home bucket of a flow.
    #[inline(always)]
    pub(crate) fn home(&self, slot: SlotIndex, flow: &Flow) -> u32 {
        self.table.home(Key::new(slot, 0, flow.protocol, flow.port))
    }

    /// The outside port of an upstream flow with this home bucket; makes a mapping if there is none. An ICMP error only
    /// uses one.
    #[inline(always)]
    pub(crate) fn outside_port(
        &mut self,
        shm: &mut Worker,
        (slot, generation): (SlotIndex, u32),
        block: &PortBlock,
        flow: &Flow,
        home: u32,
    ) -> Step<u16> {
        let bits = Reverse::generation_bits(generation);
        let key = Key::new(slot, bits, flow.protocol, flow.port);
        let found = self.table.find(home, key);
        if let Some(mapping) = found
            && owns_port(
                shm,
                slot,
                block,
                mapping.address_index,
                mapping.outside_port,
            )
            && (flow.is_error
                || mapping.last_seen == self.tick && flow.tcp_flags & (SYN | FIN | RST) == 0)
        {
            // Nothing to write; errors never refresh (RFC 5508 REQ-6).
            return Ok(mapping.outside_port);
        }
        self.changed(shm, (slot, generation), block, flow, (key, home, found))
    }

    /// The outside port of a flow that changes something: its mapping is to be made or refreshed.
    #[cold]
    #[inline(never)]
    fn changed(
        &mut self,
        shm: &mut Worker,
        (slot, generation): (SlotIndex, u32),
        block: &PortBlock,
        flow: &Flow,
        (key, home, found): (Key, u32, Option<Mapping>),
    ) -> Step<u16> {
        if let Some(mapping) = found
            && owns_port(
                shm,
                slot,
                block,
                mapping.address_index,
                mapping.outside_port,
            )
        {
            let fresh = Mapping {
                last_seen: self.tick,
                ..mapping
            };
            self.table.set(home, key, fresh);
            self.refresh(shm, key, mapping, flow.tcp_flags);
            return Ok(mapping.outside_port);
        }
        if flow.is_error {
            return drop(Counter::NatIcmpEmbedded);
        }
        if flow.is_turned {
            return drop(Counter::NatNoMapping);
        }
        if found.is_none()
            && let Err(limit) = self.usages.admit(key, self.second)
        {
            return drop(limit);
        }
        let outside_port = self.free_port(shm, (slot, generation), block, key)?;
        let mapping = Mapping {
            address_index: block.address_index,
            outside_port,
            last_seen: self.tick,
        };
        match found {
            // A mapping from before the session's block was changed: its place is used again.
            Some(_) => self.table.set(home, key, mapping),
            None => match self.table.insert(home, key, mapping) {
                Ok(Inserted::New) => {}
                Ok(Inserted::InPlaceOfDead) => shm.count(Counter::NatMappingExpired, 1),
                Err(NoRoom) => return drop(Counter::NatTableFull),
            },
        }
        let closing = flow.tcp_flags & (FIN | RST) != 0;
        let entry = Reverse {
            closing,
            ..Mapping::reverse_of(key, self.tick)
        };
        shm.set_reverse(
            block.address_index,
            flow.protocol,
            outside_port,
            Some(entry),
        );
        shm.count(Counter::NatMappingCreated, 1);
        if found.is_none() {
            let blocks = shm.reader().further_blocks(slot).count() as u8 + 1;
            let is_low = self.usages.made(key, self.second, block, blocks);
            if is_low && !shm.tell(Event::BlockLow { slot, generation }) {
                self.usages.forget_told(key);
            }
        }
        Ok(outside_port)
    }

    /// Writes the time, and the TCP state's change, into the reverse entry.
    fn refresh(&self, shm: &Worker, key: Key, mapping: Mapping, tcp_flags: u8) {
        let at = (mapping.address_index, key.protocol(), mapping.outside_port);
        let fresh = Mapping::reverse_of(key, self.tick);
        let old = shm.reverse(at.0, at.1, at.2).unwrap_or(fresh);
        let mut entry = Reverse {
            inbound_seen: old.inbound_seen,
            closing: old.closing,
            ..fresh
        };
        if tcp_flags & (SYN | ACK) == SYN && entry.closing {
            // A new connection on the closed tuple (RFC 5382 REQ-2).
            (entry.closing, entry.inbound_seen) = (false, false);
        }
        entry.closing |= tcp_flags & (FIN | RST) != 0;
        shm.set_reverse(at.0, at.1, at.2, Some(entry));
    }

    fn free_port(
        &mut self,
        shm: &mut Worker,
        (slot, generation): (SlotIndex, u32),
        block: &PortBlock,
        key: Key,
    ) -> Step<u16> {
        let now = exhausted_mark(self.second, key);
        let at = slot.0 as usize * PROTOCOLS;
        let marks = self
            .exhausted
            .get_mut(at..at + PROTOCOLS)
            .unwrap_or(&mut []);
        let protocol = key.protocol() as usize;
        if marks.get(protocol) == Some(&now) {
            return drop(Counter::NatBlockExhausted);
        }
        if let Some(port) = choose(shm, &mut self.random, block, key) {
            return Ok(port);
        }
        let told = marks.contains(&now);
        if let Some(mark) = marks.get_mut(protocol) {
            *mark = now;
        }
        if !told {
            // A lost event recurs with the next search.
            let _ = shm.tell(Event::BlockExhausted { slot, generation });
        }
        drop(Counter::NatBlockExhausted)
    }

    /// Checks that a reverse entry read at (`address_index`, the flow's protocol and port) leads to this live session.
    #[inline(always)]
    pub(crate) fn leads_to(
        &self,
        shm: &Worker,
        session: &SessionLine,
        address_index: u16,
        flow: &Flow,
        entry: Reverse,
    ) -> Step<()> {
        let in_block = session
            .nat()
            .is_some_and(|block| owns_port(shm, entry.slot, &block, address_index, flow.port));
        if entry.generation != Reverse::generation_bits(session.generation())
            || !in_block
            || self.timers.expired(flow.protocol, &entry, self.tick)
        {
            return drop(Counter::NatNoMapping);
        }
        Ok(())
    }

    /// Notes what a packet from the core changes. Inbound packets do not refresh (RFC 4787 REQ-6).
    #[inline(always)]
    pub(crate) fn arrived(
        &self,
        shm: &mut Worker,
        address_index: u16,
        flow: &Flow,
        entry: Reverse,
    ) {
        if !flow.is_error {
            let closing = entry.closing || flow.tcp_flags & (FIN | RST) != 0;
            if !entry.inbound_seen || closing != entry.closing {
                let entry = Reverse {
                    inbound_seen: true,
                    closing,
                    ..entry
                };
                shm.set_reverse(address_index, flow.protocol, flow.port, Some(entry));
            }
        }
    }
}

/// Second and session of a search; never zero.
const fn exhausted_mark(second: u16, key: Key) -> u32 {
    1 << 31 | (key.generation() as u32) << 16 | second as u32
}

/// Rewrites address and port of the translated side, and the transport checksum; `l4` is exactly the IP payload.
/// Returns the change of the IPv4 header, whose checksum is the caller's to update.
#[inline(always)]
pub(crate) fn rewrite(
    ip: &mut Ipv4Hdr,
    l4: &mut [u8],
    direction: Direction,
    flow: &Flow,
    address: u32,
    port: u16,
) -> Delta {
    let changed = set_address(ip, direction, address);
    match flow.protocol {
        NatProtocol::Udp if !flow.is_error => {
            if let Ok((udp, _)) = UdpHdr::mut_from_prefix(l4) {
                let field = match direction {
                    Direction::Upstream => &mut udp.src_port,
                    Direction::Downstream => &mut udp.dst_port,
                };
                let delta = changed.u16(field.get(), port);
                field.set(port);
                udp.checksum.set(delta.apply_udp(udp.checksum.get()));
            }
        }
        NatProtocol::Tcp if !flow.is_error => {
            if let Ok((tcp, _)) = TcpHdr::mut_from_prefix(l4) {
                let field = match direction {
                    Direction::Upstream => &mut tcp.src_port,
                    Direction::Downstream => &mut tcp.dst_port,
                };
                let delta = changed.u16(field.get(), port);
                field.set(port);
                tcp.checksum.set(delta.apply(tcp.checksum.get()));
            }
        }
        _ => icmp(l4, direction, flow, address, port),
    }
    changed
}

/// Rewrites an ICMP message: a query's identifier, or an error and what it quotes.
#[cold]
#[inline(never)]
fn icmp(l4: &mut [u8], direction: Direction, flow: &Flow, address: u32, port: u16) {
    if flow.is_error {
        icmp_error::rewrite(l4, direction, flow.protocol, address, port);
    } else if let Ok((icmp, _)) = IcmpHdr::mut_from_prefix(l4) {
        // No pseudo header: only the identifier counts.
        let delta = Delta::new().u16(icmp.id.get(), port);
        icmp.id.set(port);
        icmp.checksum.set(delta.apply(icmp.checksum.get()));
    }
}

/// Sets the translated address; returns the change, for the checksums it is part of.
#[inline(always)]
pub(crate) fn set_address(ip: &mut Ipv4Hdr, direction: Direction, address: u32) -> Delta {
    let field = match direction {
        Direction::Upstream => &mut ip.src,
        Direction::Downstream => &mut ip.dst,
    };
    let delta = Delta::new().u32(field.get(), address);
    field.set(address);
    delta
}
