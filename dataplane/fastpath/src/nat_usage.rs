//! What NAT keeps of each subscriber: how many mappings it has, and limits on them (RFC 6888 REQ-3, REQ-4).

use bng_shm::{Counter, PortBlock, SlotIndex};

use crate::nat_table::Key;

/// Limits on the mappings of one subscriber; 0 is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NatLimits {
    /// Mappings at once, of all protocols together.
    pub mappings: u32,
    /// New mappings in a second.
    pub new_per_second: u16,
}

const PROTOCOLS: usize = 3;

/// Of one session slot. What is of an earlier generation does not count.
#[derive(Debug, Clone, Copy, Default)]
struct Usage {
    generation: u16,
    /// Mappings by protocol.
    mappings: [u16; PROTOCOLS],
    /// Mappings made in `second`.
    made: u16,
    second: u16,
    /// Blocks there were when control was told that they run short.
    told_of: u8,
}

/// All subscribers of a worker. Memory: 14 bytes a slot.
#[derive(Debug)]
pub(crate) struct Usages {
    slots: Vec<Usage>,
    limits: NatLimits,
}

impl Usages {
    pub(crate) fn new(session_slots: u32, limits: NatLimits) -> Self {
        Self {
            slots: vec![Usage::default(); session_slots as usize],
            limits,
        }
    }

    fn of(&mut self, slot: SlotIndex, generation: u16) -> Option<&mut Usage> {
        let usage = self.slots.get_mut(slot.0 as usize)?;
        if usage.generation != generation {
            *usage = Usage {
                generation,
                ..Usage::default()
            };
        }
        Some(usage)
    }

    /// Whether the subscriber may have one more mapping now; why not.
    pub(crate) fn admit(&mut self, key: Key, second: u16) -> Result<(), Counter> {
        let limits = self.limits;
        let Some(usage) = self.of(key.slot(), key.generation()) else {
            return Ok(());
        };
        if limits.mappings != 0 && usage.sum() >= limits.mappings {
            return Err(Counter::NatLimitMappings);
        }
        let is_now = usage.second == second;
        if limits.new_per_second != 0 && is_now && usage.made >= limits.new_per_second {
            return Err(Counter::NatLimitRate);
        }
        Ok(())
    }

    /// A mapping was made in this second. True when the session's `blocks` are seven eighths taken for its protocol and nobody was told
    /// since there were so many.
    pub(crate) fn made(&mut self, key: Key, second: u16, block: &PortBlock, blocks: u8) -> bool {
        self.add(key);
        let Some(usage) = self.of(key.slot(), key.generation()) else {
            return false;
        };
        if usage.second != second {
            (usage.second, usage.made) = (second, 0);
        }
        usage.made = usage.made.saturating_add(1);
        let ports = u32::from(block.size) * u32::from(blocks);
        let taken = usage.mappings.get(key.protocol() as usize).copied();
        let is_short = u32::from(taken.unwrap_or(0)) * 8 >= ports * 7;
        let is_told = usage.told_of == blocks;
        if is_short {
            usage.told_of = blocks;
        }
        is_short && !is_told
    }

    /// A mapping is there.
    pub(crate) fn add(&mut self, key: Key) {
        let usage = self.of(key.slot(), key.generation());
        if let Some(count) = usage.and_then(|usage| usage.mappings.get_mut(key.protocol() as usize))
        {
            *count = count.saturating_add(1);
        }
    }

    /// Control could not be told: it is to be tried again.
    pub(crate) fn forget_told(&mut self, key: Key) {
        if let Some(usage) = self.of(key.slot(), key.generation()) {
            usage.told_of = 0;
        }
    }

    /// A mapping is gone; one of an earlier generation was forgotten with it.
    pub(crate) fn gone(&mut self, key: Key) {
        let usage = self.slots.get_mut(key.slot().0 as usize);
        if let Some(usage) = usage.filter(|usage| usage.generation == key.generation())
            && let Some(count) = usage.mappings.get_mut(key.protocol() as usize)
        {
            *count = count.saturating_sub(1);
        }
    }
}

impl Usage {
    fn sum(&self) -> u32 {
        self.mappings.iter().map(|count| u32::from(*count)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bng_shm::NatProtocol;

    const BLOCK: PortBlock = PortBlock {
        address: std::net::Ipv4Addr::UNSPECIFIED,
        address_index: 0,
        first_port: 1_024,
        size: 64,
    };

    fn key(generation: u16, protocol: NatProtocol, port: u16) -> Key {
        Key::new(SlotIndex(3), generation, protocol, port)
    }

    #[test]
    fn limits_are_of_one_session_and_end_with_mapping_second_and_generation() {
        let limits = NatLimits {
            mappings: 3,
            new_per_second: 2,
        };
        let mut usages = Usages::new(8, limits);
        let of = |port| key(1, NatProtocol::Udp, port);
        for port in 0..2 {
            assert_eq!(usages.admit(of(port), 7), Ok(()));
            usages.made(of(port), 7, &BLOCK, 1);
        }
        assert_eq!(usages.admit(of(2), 7), Err(Counter::NatLimitRate));
        // Another session does not feel it.
        let other = Key::new(SlotIndex(4), 1, NatProtocol::Udp, 2);
        assert_eq!(usages.admit(other, 7), Ok(()));
        assert_eq!(usages.admit(of(2), 8), Ok(()));
        usages.made(of(2), 8, &BLOCK, 1);
        // All protocols together.
        let tcp = key(1, NatProtocol::Tcp, 9);
        assert_eq!(usages.admit(tcp, 9), Err(Counter::NatLimitMappings));
        usages.gone(key(2, NatProtocol::Udp, 1));
        assert_eq!(usages.admit(tcp, 9), Err(Counter::NatLimitMappings));
        usages.gone(of(1));
        assert_eq!(usages.admit(tcp, 9), Ok(()));
        usages.made(tcp, 9, &BLOCK, 1);
        assert_eq!(usages.admit(of(5), 10), Err(Counter::NatLimitMappings));
        assert_eq!(usages.admit(key(2, NatProtocol::Udp, 5), 10), Ok(()));
    }

    #[test]
    fn control_is_told_once_for_so_many_blocks() {
        let mut usages = Usages::new(8, NatLimits::default());
        let of = |port| key(1, NatProtocol::Udp, port);
        let told: Vec<u16> = (1..=64)
            .filter(|port| usages.made(of(*port), 0, &BLOCK, 1))
            .collect();
        assert_eq!(told, [56]);
        // Other protocols have ports of their own.
        assert!(!usages.made(key(1, NatProtocol::Tcp, 1), 0, &BLOCK, 1));
        let told: Vec<u16> = (65..=128)
            .filter(|port| usages.made(of(*port), 0, &BLOCK, 2))
            .collect();
        assert_eq!(told, [112]);
        usages.forget_told(of(1));
        assert!(usages.made(of(129), 0, &BLOCK, 2));
    }
}
