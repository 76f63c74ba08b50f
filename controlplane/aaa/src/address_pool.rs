//! IPv4 addresses for subscribers.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use thiserror::Error;

use crate::occupancy::Occupancy;

/// The framed-ip of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Position of the pool, as given to [`AddressPools::new`].
    pub pool: usize,
    /// The address.
    pub address: Ipv4Addr,
}

/// No pool has a free address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no free address in {}", pools.join(", "))]
pub struct PoolExhausted {
    /// Names of the pools that were asked.
    pub pools: Vec<String>,
}

/// A lease that cannot be taken or given back.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LeaseError {
    /// The address is in no pool, or the pool never hands it out.
    #[error("{0} is in no address pool")]
    NotInPool(Ipv4Addr),
    /// Another session has the address.
    #[error("{address} of pool {pool} is already in use")]
    InUse {
        /// The address.
        address: Ipv4Addr,
        /// Name of its pool.
        pool: String,
    },
    /// Nobody has the address.
    #[error("{address} of pool {pool} is not in use")]
    NotInUse {
        /// The address.
        address: Ipv4Addr,
        /// Name of its pool.
        pool: String,
    },
}

/// The address pools in the order they are tried.
#[derive(Debug)]
pub struct AddressPools {
    pools: Vec<AddressPool>,
}

impl AddressPools {
    /// Pools in the order of the configuration. Their addresses must not overlap.
    pub fn new(pools: Vec<AddressPool>) -> Self {
        Self { pools }
    }

    /// Takes an address for a subscriber: the one it had last if that is free, else the one that has been free longest in the
    /// first pool that has any. O(number of pools).
    ///
    /// `subscriber` is whatever identifies it from session to session, such as its user name.
    ///
    /// # Errors
    ///
    /// [`PoolExhausted`] when no pool has a free address.
    pub fn allocate(&mut self, subscriber: &[u8]) -> Result<Lease, PoolExhausted> {
        let mut numbered = self.pools.iter_mut().enumerate();
        let sticky = numbered.find_map(|(pool, it)| Some((pool, it.allocate_sticky(subscriber)?)));
        let mut numbered = self.pools.iter_mut().enumerate();
        sticky
            .or_else(|| {
                numbered.find_map(|(pool, it)| Some((pool, it.allocate_oldest(subscriber)?)))
            })
            .map(|(pool, address)| Lease { pool, address })
            .ok_or_else(|| PoolExhausted {
                pools: self.pools.iter().map(|pool| pool.name.clone()).collect(),
            })
    }

    /// As [`AddressPools::allocate`], from one pool alone, by its position.
    ///
    /// # Errors
    ///
    /// [`PoolExhausted`] when it has no free address, or does not exist.
    pub fn allocate_from(
        &mut self,
        pool: usize,
        subscriber: &[u8],
    ) -> Result<Lease, PoolExhausted> {
        let it = self.pools.get_mut(pool);
        let pools = it.iter().map(|it| it.name.clone()).collect();
        it.and_then(|it| {
            it.allocate_sticky(subscriber)
                .or_else(|| it.allocate_oldest(subscriber))
        })
        .map(|address| Lease { pool, address })
        .ok_or(PoolExhausted { pools })
    }

    /// Takes exactly this address, for a session adopted after a restart. O(number of pools).
    ///
    /// # Errors
    ///
    /// [`LeaseError::NotInPool`] or [`LeaseError::InUse`].
    pub fn reserve(&mut self, address: Ipv4Addr, subscriber: &[u8]) -> Result<Lease, LeaseError> {
        let (pool, it) = self.owner(address)?;
        it.reserve(address, subscriber)?;
        Ok(Lease { pool, address })
    }

    /// Gives an address back. Call it only after every worker has passed the epoch of the session's withdrawal.
    ///
    /// # Errors
    ///
    /// [`LeaseError::NotInPool`] or [`LeaseError::NotInUse`]; nothing changes then.
    pub fn release(&mut self, address: Ipv4Addr) -> Result<(), LeaseError> {
        self.owner(address)?.1.release(address)
    }

    /// Whom an address was given to that is in use.
    #[must_use]
    pub fn holder(&self, address: Ipv4Addr) -> Option<Arc<[u8]>> {
        let mut pools = self.pools.iter();
        let (pool, slot) = pools.find_map(|it| Some((it, *it.slots.get(&address)?)))?;
        pool.occupancy.holder(slot).cloned()
    }

    /// The pools in order, for their names and counts.
    pub fn iter(&self) -> impl Iterator<Item = &AddressPool> {
        self.pools.iter()
    }

    fn owner(&mut self, address: Ipv4Addr) -> Result<(usize, &mut AddressPool), LeaseError> {
        let mut numbered = self.pools.iter_mut().enumerate();
        numbered
            .find(|(_, pool)| pool.slots.contains_key(&address))
            .ok_or(LeaseError::NotInPool(address))
    }
}

/// One pool. Every operation is O(1).
///
/// A subscriber that comes back finds its old address while the pool has others to give.
#[derive(Debug)]
pub struct AddressPool {
    name: String,
    addresses: Vec<Ipv4Addr>,
    slots: HashMap<Ipv4Addr, u32>,
    occupancy: Occupancy,
}

impl AddressPool {
    /// A pool of these addresses, all free. Of an address that is given twice the second is ignored.
    pub fn new(name: impl Into<String>, usable: impl IntoIterator<Item = Ipv4Addr>) -> Self {
        let mut addresses = Vec::new();
        let mut slots = HashMap::new();
        for address in usable {
            slots.entry(address).or_insert_with(|| {
                addresses.push(address);
                // Fits: there are no more than 2^32 addresses, and the first is slot 0.
                (addresses.len() - 1) as u32
            });
        }
        Self {
            name: name.into(),
            occupancy: Occupancy::new(slots.len() as u32),
            addresses,
            slots,
        }
    }

    /// Name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Addresses in use.
    pub fn used(&self) -> u32 {
        self.occupancy.used()
    }

    /// Addresses the pool hands out.
    pub fn total(&self) -> u32 {
        self.occupancy.total()
    }

    fn allocate_sticky(&mut self, subscriber: &[u8]) -> Option<Ipv4Addr> {
        let slot = self.occupancy.allocate_sticky(subscriber)?;
        Some(self.addresses[slot as usize])
    }

    fn allocate_oldest(&mut self, subscriber: &[u8]) -> Option<Ipv4Addr> {
        let slot = self.occupancy.allocate_oldest(subscriber)?;
        Some(self.addresses[slot as usize])
    }

    fn reserve(&mut self, address: Ipv4Addr, subscriber: &[u8]) -> Result<(), LeaseError> {
        let slot = self.slot(address)?;
        if self.occupancy.reserve(slot, subscriber) {
            return Ok(());
        }
        Err(LeaseError::InUse {
            address,
            pool: self.name.clone(),
        })
    }

    fn release(&mut self, address: Ipv4Addr) -> Result<(), LeaseError> {
        let slot = self.slot(address)?;
        if self.occupancy.release(slot) {
            return Ok(());
        }
        Err(LeaseError::NotInUse {
            address,
            pool: self.name.clone(),
        })
    }

    fn slot(&self, address: Ipv4Addr) -> Result<u32, LeaseError> {
        self.slots
            .get(&address)
            .copied()
            .ok_or(LeaseError::NotInPool(address))
    }
}

#[cfg(test)]
mod tests;
