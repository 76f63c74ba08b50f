//! Port blocks on the public addresses of a NAT pool (RFC 6888 REQ-9, RFC 7753 section 3).

use std::collections::{BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use std::time::Duration;

use thiserror::Error;

/// How long a released block rests before its next owner, unless the operator says otherwise: longer than a remote host keeps
/// sending to a subscriber that is gone, and than TCP's TIME-WAIT.
pub const QUARANTINE: Duration = Duration::from_secs(120);

/// Blocks per word of the bitmaps.
const WORD: usize = u64::BITS as usize;

/// A run of ports on a public address that belongs to one subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortBlock {
    /// The public address.
    pub address: Ipv4Addr,
    /// Its dense NAT address index over all NAT pools.
    pub address_index: u32,
    /// Number of the block on its address, from 0.
    pub block: u16,
    /// First port of the block.
    pub first_port: u16,
    /// Ports in the block.
    pub size: u16,
}

/// A NAT pool has no block to give.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no free port block in NAT pool {pool} ({resting} in quarantine)")]
pub struct BlocksExhausted {
    /// Name of the pool.
    pub pool: String,
    /// Blocks that become free when their quarantine ends.
    pub resting: u32,
}

/// A block that cannot be taken or given back.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BlockError {
    /// The pool has no such block.
    #[error("NAT pool {pool} has no block {block} on address index {address_index}")]
    NoSuchBlock {
        /// Name of the pool.
        pool: String,
        /// Dense NAT address index.
        address_index: u32,
        /// Number of the block on its address.
        block: u16,
    },
    /// Another subscriber has the block, or had it until a moment ago.
    #[error("block {block} on {address} of NAT pool {pool} is in use or in quarantine")]
    InUse {
        /// Name of the pool.
        pool: String,
        /// The public address.
        address: Ipv4Addr,
        /// Number of the block on its address.
        block: u16,
    },
    /// Nobody has the block.
    #[error("block {block} on {address} of NAT pool {pool} is not in use")]
    NotInUse {
        /// Name of the pool.
        pool: String,
        /// The public address.
        address: Ipv4Addr,
        /// Number of the block on its address.
        block: u16,
    },
}

/// The port blocks of one NAT pool.
///
/// A new block comes from the address with the fewest blocks taken, so subscribers spread evenly; on an address, blocks are
/// taken in turn, so the one just released comes last. Time is the caller's: a duration since any fixed moment.
#[derive(Debug)]
pub struct PortBlocks {
    name: String,
    first_index: u32,
    first_port: u16,
    size: u16,
    per_address: u16,
    quarantine: Duration,
    addresses: Vec<Address>,
    /// Addresses with a free block, as (blocks taken, position): the first is the emptiest.
    emptiest: BTreeSet<(u16, u32)>,
    /// Released blocks with the time their quarantine ends, soonest first.
    resting: VecDeque<(Duration, u32, u16)>,
    used: u32,
}

#[derive(Debug)]
struct Address {
    address: Ipv4Addr,
    /// Blocks that have an owner.
    owned: Vec<u64>,
    /// Blocks that have an owner or rest.
    taken: Vec<u64>,
    taken_count: u16,
    /// Where the search for a free block starts.
    next: u16,
}

impl PortBlocks {
    /// The blocks of a pool, all free.
    ///
    /// `first_index` is the dense NAT address index of the first address, the others follow. Block `n` has the ports
    /// `first_port + n * size` and the next `size - 1`; what is left below 65,536 is not used. `quarantine` is how long a
    /// released block rests.
    pub fn new(
        name: impl Into<String>,
        first_index: u32,
        addresses: impl IntoIterator<Item = Ipv4Addr>,
        first_port: u16,
        size: u16,
        quarantine: Duration,
    ) -> Self {
        let size = size.max(1);
        let ports = u32::from(u16::MAX - first_port) + 1;
        let per_address = u16::try_from(ports / u32::from(size)).unwrap_or(u16::MAX);
        let words = usize::from(per_address).div_ceil(WORD);
        let addresses: Vec<Address> = addresses
            .into_iter()
            .map(|address| Address {
                address,
                owned: vec![0; words],
                taken: vec![0; words],
                taken_count: 0,
                next: 0,
            })
            .collect();
        let positions = if per_address == 0 {
            0
        } else {
            addresses.len() as u32
        };
        Self {
            name: name.into(),
            first_index,
            first_port,
            size,
            per_address,
            quarantine,
            emptiest: (0..positions).map(|position| (0, position)).collect(),
            addresses,
            resting: VecDeque::new(),
            used: 0,
        }
    }

    /// Name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Blocks that have an owner.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Blocks in quarantine at the last call that had a time.
    pub fn resting(&self) -> u32 {
        self.resting.len() as u32
    }

    /// Blocks the pool has.
    pub fn total(&self) -> u32 {
        self.addresses.len() as u32 * u32::from(self.per_address)
    }

    /// Takes a subscriber's block on the address with the fewest blocks taken. O(log addresses + blocks per address / 64).
    ///
    /// # Errors
    ///
    /// [`BlocksExhausted`] when every block has an owner or rests.
    pub fn allocate(&mut self, now: Duration) -> Result<PortBlock, BlocksExhausted> {
        self.end_quarantines(now);
        let free = self.emptiest.first().and_then(|&(_, position)| {
            Some((
                position,
                self.addresses[position as usize].free(self.per_address)?,
            ))
        });
        let Some((position, block)) = free else {
            return Err(BlocksExhausted {
                pool: self.name.clone(),
                resting: self.resting(),
            });
        };
        self.follow(position, block);
        Ok(self.take(position, block))
    }

    /// The next search on the address starts behind this block.
    fn follow(&mut self, position: u32, block: u16) {
        self.addresses[position as usize].next = if block + 1 < self.per_address {
            block + 1
        } else {
            0
        };
    }

    /// Takes one more block on the address of a subscriber that has one there.
    ///
    /// # Errors
    ///
    /// [`BlocksExhausted`] when every block of the address has an owner or rests, or the pool has no such address.
    pub fn allocate_on(
        &mut self,
        address_index: u32,
        now: Duration,
    ) -> Result<PortBlock, BlocksExhausted> {
        self.end_quarantines(now);
        let free = self.position(address_index, 0).ok().and_then(|position| {
            let address = &self.addresses[position as usize];
            Some((position, address.free(self.per_address)?))
        });
        let Some((position, block)) = free else {
            return Err(BlocksExhausted {
                pool: self.name.clone(),
                resting: self.resting(),
            });
        };
        self.follow(position, block);
        Ok(self.take(position, block))
    }

    /// Takes exactly this block, for a session adopted after a restart.
    ///
    /// # Errors
    ///
    /// [`BlockError::NoSuchBlock`] or [`BlockError::InUse`].
    pub fn reserve(&mut self, address_index: u32, block: u16) -> Result<PortBlock, BlockError> {
        let position = self.position(address_index, block)?;
        let address = &self.addresses[position as usize];
        if is_set(&address.taken, block) {
            return Err(BlockError::InUse {
                pool: self.name.clone(),
                address: address.address,
                block,
            });
        }
        Ok(self.take(position, block))
    }

    /// Gives a block back; it rests for the quarantine time. Call it only after every worker has passed the epoch of the
    /// session's withdrawal.
    ///
    /// # Errors
    ///
    /// [`BlockError::NoSuchBlock`] or [`BlockError::NotInUse`]; nothing changes then.
    pub fn release(
        &mut self,
        now: Duration,
        address_index: u32,
        block: u16,
    ) -> Result<(), BlockError> {
        let position = self.position(address_index, block)?;
        let address = &mut self.addresses[position as usize];
        if !is_set(&address.owned, block) {
            return Err(BlockError::NotInUse {
                pool: self.name.clone(),
                address: address.address,
                block,
            });
        }
        clear(&mut address.owned, block);
        self.used -= 1;
        // A clock that steps back must not put an earlier end behind a later one.
        let end = now.saturating_add(self.quarantine);
        let end = self.resting.back().map_or(end, |(last, ..)| end.max(*last));
        self.resting.push_back((end, position, block));
        self.end_quarantines(now);
        Ok(())
    }

    fn end_quarantines(&mut self, now: Duration) {
        while let Some((_, position, block)) = self.resting.pop_front_if(|(end, ..)| *end <= now) {
            let address = &mut self.addresses[position as usize];
            self.emptiest.remove(&(address.taken_count, position));
            clear(&mut address.taken, block);
            address.taken_count -= 1;
            self.emptiest.insert((address.taken_count, position));
        }
    }

    fn take(&mut self, position: u32, block: u16) -> PortBlock {
        let address = &mut self.addresses[position as usize];
        set(&mut address.owned, block);
        set(&mut address.taken, block);
        self.emptiest.remove(&(address.taken_count, position));
        address.taken_count += 1;
        if address.taken_count < self.per_address {
            self.emptiest.insert((address.taken_count, position));
        }
        self.used += 1;
        PortBlock {
            address: address.address,
            address_index: self.first_index + position,
            block,
            // Fits: blocks lie between first_port and 65,535.
            first_port: self.first_port + block * self.size,
            size: self.size,
        }
    }

    fn position(&self, address_index: u32, block: u16) -> Result<u32, BlockError> {
        address_index
            .checked_sub(self.first_index)
            .filter(|position| {
                (*position as usize) < self.addresses.len() && block < self.per_address
            })
            .ok_or_else(|| BlockError::NoSuchBlock {
                pool: self.name.clone(),
                address_index,
                block,
            })
    }
}

impl Address {
    /// The next free block in turn.
    fn free(&self, per_address: u16) -> Option<u16> {
        self.free_in(self.next, per_address)
            .or_else(|| self.free_in(0, self.next))
    }

    /// The first free block of `start..end`, a word at a time.
    fn free_in(&self, start: u16, end: u16) -> Option<u16> {
        let first = usize::from(start) / WORD;
        let mut mask = u64::MAX << (usize::from(start) % WORD);
        for (index, word) in self.taken.iter().enumerate().skip(first) {
            let free = !word & mask;
            if free != 0 {
                let block = index * WORD + free.trailing_zeros() as usize;
                return u16::try_from(block).ok().filter(|block| *block < end);
            }
            mask = u64::MAX;
        }
        None
    }
}

fn is_set(bits: &[u64], block: u16) -> bool {
    bits[usize::from(block) / WORD] & bit(block) != 0
}

fn set(bits: &mut [u64], block: u16) {
    bits[usize::from(block) / WORD] |= bit(block);
}

fn clear(bits: &mut [u64], block: u16) {
    bits[usize::from(block) / WORD] &= !bit(block);
}

fn bit(block: u16) -> u64 {
    1 << (usize::from(block) % WORD)
}

#[cfg(test)]
mod tests;
