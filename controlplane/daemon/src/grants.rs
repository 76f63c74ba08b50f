//! What an accepted subscriber is given, and what comes back when its session is over.

use std::net::Ipv4Addr;
use std::time::Duration;

use bng_aaa::{
    AddressPools, AuthRequest, Authenticator, BlockError, BlocksExhausted, Credentials, Lease,
    LeaseError, PoolExhausted, PortBlock, PortBlocks, RequestId, Verdict,
};
use bng_pppoe::Grant;

use crate::settings::PoolSettings;

/// Address and port block of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// The address and its pool.
    pub lease: Lease,
    /// The port block and the index of its NAT pool; `None` for routed subscribers.
    pub block: Option<(usize, PortBlock)>,
}

impl Holding {
    /// The block as the shared memory keeps it.
    #[must_use]
    pub fn published_block(&self) -> Option<bng_shm::PortBlock> {
        self.block.map(|(_, block)| bng_shm::PortBlock {
            address: block.address,
            // Fits: the configuration allows 65,536 NAT addresses.
            address_index: block.address_index as u16,
            first_port: block.first_port,
            size: block.size,
        })
    }
}

/// Why an accepted subscriber cannot come in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// No address.
    #[error(transparent)]
    Address(#[from] PoolExhausted),
    /// No port block.
    #[error(transparent)]
    Block(#[from] BlocksExhausted),
}

/// Why what a session of an earlier run holds cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeepError {
    /// The address is not to be had.
    #[error(transparent)]
    Address(#[from] LeaseError),
    /// The block is not to be had.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The pool is translated and the session is not, or the other way round.
    #[error("pool {pool} {now}, the session was made when that was different")]
    Translation {
        /// Name of the address pool.
        pool: String,
        /// What the pool is now.
        now: &'static str,
    },
    /// The block is no block of the NAT pool as it is configured now.
    #[error(
        "ports {first_port} to {last_port} of {address} are no port block of NAT pool {pool} any more"
    )]
    Shape {
        /// The public address.
        address: Ipv4Addr,
        /// First port of the session's block.
        first_port: u16,
        /// Last port of the session's block.
        last_port: u16,
        /// Name of the NAT pool.
        pool: String,
    },
}

/// Users, addresses and port blocks.
#[derive(Debug)]
pub struct Grants {
    authenticator: Authenticator,
    pools: AddressPools,
    nat: Vec<NatBlocks>,
    settings: Vec<PoolSettings>,
    next_accounting_id: u64,
}

/// The port blocks of a NAT pool.
#[derive(Debug)]
pub struct NatBlocks {
    /// Who has which.
    pub blocks: PortBlocks,
    /// First port of block 0 on every address.
    pub first_port: u16,
}

impl Grants {
    /// `pools` and `settings` in the order of the configuration. `unix_ms` makes accounting ids unique over restarts.
    #[must_use]
    pub fn new(
        authenticator: Authenticator,
        pools: AddressPools,
        nat: Vec<NatBlocks>,
        settings: Vec<PoolSettings>,
        unix_ms: u64,
    ) -> Self {
        Self {
            authenticator,
            pools,
            nat,
            settings,
            // 22 bits of room for the sessions of each millisecond of uptime.
            next_accounting_id: unix_ms << 22,
        }
    }

    /// Puts a question to the authenticator.
    pub fn ask(&mut self, id: RequestId, user: &[u8], password: &[u8]) {
        self.authenticator.handle_request(AuthRequest {
            id,
            peer_id: user.to_vec(),
            credentials: Credentials::Pap {
                password: password.to_vec(),
            },
        });
    }

    /// The next answer of the authenticator.
    pub fn poll_verdict(&mut self) -> Option<(RequestId, Verdict)> {
        self.authenticator.poll_verdict()
    }

    /// Takes an address, from one pool if `from` says so, and, where its pool is translated, a port block.
    ///
    /// # Errors
    /// [`GrantError`]; nothing is taken then.
    pub fn take(
        &mut self,
        user: &[u8],
        from: Option<usize>,
        now: Duration,
    ) -> Result<Holding, GrantError> {
        let lease = match from {
            Some(pool) => self.pools.allocate_from(pool, user)?,
            None => self.pools.allocate(user)?,
        };
        let Some(nat) = self.settings.get(lease.pool).and_then(|pool| pool.nat) else {
            return Ok(Holding { lease, block: None });
        };
        let taken = self.nat.get_mut(nat).map(|pool| pool.blocks.allocate(now));
        match taken {
            Some(Ok(block)) => Ok(Holding {
                lease,
                block: Some((nat, block)),
            }),
            Some(Err(exhausted)) => {
                self.give_back_lease(lease);
                Err(exhausted.into())
            }
            // The settings name only pools that exist.
            None => Ok(Holding { lease, block: None }),
        }
    }

    /// Takes exactly what a session of an earlier run holds.
    ///
    /// # Errors
    /// [`KeepError`]; nothing is taken then.
    pub fn keep(
        &mut self,
        user: &[u8],
        address: Ipv4Addr,
        block: Option<bng_shm::PortBlock>,
    ) -> Result<Holding, KeepError> {
        let lease = self.pools.reserve(address, user)?;
        let kept = self.keep_block(lease, block);
        if kept.is_err() {
            self.give_back_lease(lease);
        }
        kept.map(|block| Holding { lease, block })
    }

    /// Takes what is left of the holding of a session that ends, so that nobody else gets it too early: address and block,
    /// or the address alone, or nothing.
    pub fn keep_to_the_end(
        &mut self,
        user: &[u8],
        address: Ipv4Addr,
        block: Option<bng_shm::PortBlock>,
    ) -> Option<Holding> {
        if let Ok(holding) = self.keep(user, address, block) {
            return Some(holding);
        }
        let lease = self.pools.reserve(address, user).ok()?;
        Some(Holding { lease, block: None })
    }

    fn keep_block(
        &mut self,
        lease: Lease,
        block: Option<bng_shm::PortBlock>,
    ) -> Result<Option<(usize, PortBlock)>, KeepError> {
        let pool = &self.settings[lease.pool];
        let translation = |now| KeepError::Translation {
            pool: pool.name.clone(),
            now,
        };
        let (nat, block) = match (pool.nat, block) {
            (None, None) => return Ok(None),
            (Some(_), None) => return Err(translation("is translated now")),
            (None, Some(_)) => return Err(translation("is not translated now")),
            (Some(nat), Some(block)) => (nat, block),
        };
        let NatBlocks { blocks, first_port } = &mut self.nat[nat];
        let shape = KeepError::Shape {
            address: block.address,
            first_port: block.first_port,
            last_port: block
                .first_port
                .saturating_add(block.size.saturating_sub(1)),
            pool: blocks.name().to_owned(),
        };
        let Some(offset) = block.first_port.checked_sub(*first_port) else {
            return Err(shape);
        };
        let number = offset.checked_div(block.size).unwrap_or(0);
        let kept = blocks.reserve(block.address_index.into(), number)?;
        let same = kept.address == block.address
            && kept.first_port == block.first_port
            && kept.size == block.size;
        if !same {
            // It was taken for a moment and never published, so it need not rest; the quarantine does no harm.
            let _ = blocks.release(Duration::ZERO, kept.address_index, kept.block);
            return Err(shape);
        }
        Ok(Some((nat, kept)))
    }

    /// Gives back what a session held. Only after every worker has passed the epoch of its withdrawal.
    pub fn give_back(&mut self, holding: &Holding, now: Duration) {
        self.give_back_lease(holding.lease);
        if let Some((nat, block)) = holding.block
            && let Some(pool) = self.nat.get_mut(nat)
            && let Err(error) = pool.blocks.release(now, block.address_index, block.block)
        {
            tracing::error!(%error, "port block given back twice");
        }
    }

    fn give_back_lease(&mut self, lease: Lease) {
        if let Err(error) = self.pools.release(lease.address) {
            tracing::error!(%error, "address given back twice");
        }
    }

    /// What the engine is told of a holding.
    #[must_use]
    pub fn grant(&mut self, holding: &Holding) -> Grant {
        self.next_accounting_id += 1;
        let pool = &self.settings[holding.lease.pool];
        Grant {
            framed_ip: holding.lease.address,
            gateway_ip: pool.gateway,
            dns: pool.dns,
            ipv6: None,
            session_timeout: None,
            idle_timeout: None,
            accounting_id: self.next_accounting_id,
        }
    }

    /// Name, addresses in use and addresses in all of every address pool.
    pub fn address_use(&self) -> impl Iterator<Item = (&str, u32, u32)> {
        (self.pools.iter()).map(|pool| (pool.name(), pool.used(), pool.total()))
    }

    /// Name, and blocks in use, resting and in all, of every NAT pool.
    pub fn block_use(&self) -> impl Iterator<Item = (&str, u32, u32, u32)> {
        let pools = self.nat.iter().map(|pool| &pool.blocks);
        pools.map(|pool| (pool.name(), pool.used(), pool.resting(), pool.total()))
    }
}
