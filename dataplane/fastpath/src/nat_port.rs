//! Choice of the outside port inside a subscriber's block (RFC 6056, RFC 4787 REQ-4).

use bng_shm::{NatProtocol, PortBlock, SlotIndex, Worker};

use crate::nat_table::Key;

/// A small generator of unpredictable starts, seeded at process start. One step is one wide multiplication.
#[derive(Debug)]
pub(crate) struct PortRandom {
    state: u64,
    secret: u64,
}

impl PortRandom {
    pub(crate) const fn new(seed: u64) -> Self {
        // An odd secret keeps the multiplication a bijection before the fold.
        Self {
            state: seed,
            secret: seed.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15 | 1,
        }
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.state = self.state.wrapping_add(0xd1b5_4a32_d192_ed03);
        let wide = u128::from(self.state ^ self.secret) * u128::from(self.secret);
        let mixed = (wide >> 64) as u64 ^ wide as u64;
        (((mixed >> 32) * u64::from(bound)) >> 32) as u32
    }
}

/// Ports of the block that exist: a block never runs over port 65,535.
#[inline]
fn usable(block: &PortBlock) -> u32 {
    u32::from(block.size).min(65_536 - u32::from(block.first_port))
}

/// Whether the port of the public address lies in the block.
#[inline]
pub(crate) fn in_block(block: &PortBlock, address_index: u16, port: u16) -> bool {
    address_index == block.address_index
        && port
            .checked_sub(block.first_port)
            .is_some_and(|offset| offset < block.size)
}

/// Whether the port of the public address lies in one of a session's blocks; `block` is the one in its entry.
#[inline(always)]
pub(crate) fn owns_port(
    shm: &Worker,
    slot: SlotIndex,
    block: &PortBlock,
    address_index: u16,
    port: u16,
) -> bool {
    in_block(block, address_index, port)
        || address_index == block.address_index
            && further(shm, slot, block).any(|block| in_block(&block, address_index, port))
}

/// The session's blocks beside the one in its entry.
#[inline(never)]
pub(crate) fn further(
    shm: &Worker,
    slot: SlotIndex,
    block: &PortBlock,
) -> impl Iterator<Item = PortBlock> + use<> {
    let first = *block;
    let ports = shm.reader().further_blocks(slot);
    ports.iter().map(move |first_port| PortBlock {
        first_port,
        ..first
    })
}

/// A free port of one of the session's blocks, as [`choose_in`]: of the first that has one, beginning anywhere.
pub(crate) fn choose(
    shm: &Worker,
    random: &mut PortRandom,
    block: &PortBlock,
    key: Key,
) -> Option<u16> {
    let further = shm.reader().further_blocks(key.slot());
    let count = further.count() as u32 + 1;
    let start = if count == 1 { 0 } else { random.below(count) };
    (0..count)
        .map(|step| (start + step) % count)
        .filter_map(|at| match at.checked_sub(1) {
            None => Some(*block),
            Some(at) => further.iter().nth(at as usize).map(|first_port| PortBlock {
                first_port,
                ..*block
            }),
        })
        .find_map(|block| choose_in(shm, random, &block, key))
}

/// A free port of the block: from a random start, for UDP of the inside port's parity if there is one. Looks at
/// each port of the block at most once; `None` when all are taken.
///
/// A reverse entry of another session, or of another generation, is a leftover: the block is this session's alone.
fn choose_in(shm: &Worker, random: &mut PortRandom, block: &PortBlock, key: Key) -> Option<u16> {
    let size = usable(block);
    let start = random.below(size);
    let protocol = key.protocol();
    let parity = (protocol == NatProtocol::Udp).then_some(key.inside_port() & 1);
    let mut other_parity = None;
    for step in 0..size {
        let offset = (start + step) % size;
        // The offset is below 65,536 - first_port.
        let port = block.first_port + offset as u16;
        let wanted = parity.is_none_or(|parity| port & 1 == parity);
        if !wanted && other_parity.is_some() {
            continue;
        }
        let taken = shm
            .reverse(block.address_index, protocol, port)
            .is_some_and(|entry| entry.slot == key.slot() && entry.generation == key.generation());
        match (taken, wanted) {
            (true, _) => {}
            (false, true) => return Some(port),
            (false, false) => other_parity = Some(port),
        }
    }
    other_parity
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_spread_over_the_block() {
        let mut random = PortRandom::new(7);
        let mut seen = [0u32; 64];
        for _ in 0..6_400 {
            seen[random.below(64) as usize] += 1;
        }
        assert!(
            seen.iter().all(|count| (50..200).contains(count)),
            "{seen:?}"
        );
    }

    #[test]
    fn a_block_ends_at_the_last_port() {
        let block = PortBlock {
            address: 0.into(),
            address_index: 2,
            first_port: 65_000,
            size: 1_000,
        };
        assert_eq!(usable(&block), 536);
        assert!(in_block(&block, 2, 65_535) && in_block(&block, 2, 65_000));
        assert!(!in_block(&block, 2, 64_999) && !in_block(&block, 1, 65_000));
    }
}
