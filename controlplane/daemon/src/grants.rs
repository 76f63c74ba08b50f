//! What an accepted subscriber is given, and what comes back when its session is over.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use bng_aaa::{
    AddressPools, AuthRequest, Authenticator, BlockError, BlocksExhausted, Lease, LeaseError,
    LocalUsers, PoolExhausted, PortBlock, PortBlocks, Prefix, PrefixError, PrefixPool,
    PrefixesExhausted, Profile, RequestId, Verdict,
};
use bng_pppoe::{Grant, Ipv6Grant};
use bng_shm::FurtherBlocks;

use crate::settings::PoolSettings;

/// The IPv6 prefixes of an address pool.
#[derive(Debug)]
pub struct PoolPrefixes {
    /// One /64 for each session.
    pub on_link: PrefixPool,
    /// One delegated prefix for each session.
    pub delegated: Option<PrefixPool>,
}

/// The IPv6 prefixes of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefixes {
    /// The /64 on the session.
    pub on_link: Prefix,
    /// The prefix for the networks behind the subscriber.
    pub delegated: Option<Prefix>,
}

impl Prefixes {
    /// Both.
    pub fn iter(&self) -> impl Iterator<Item = Prefix> {
        std::iter::once(self.on_link).chain(self.delegated)
    }
}

/// What a session of an earlier run held, as it left it written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Its address.
    pub address: Ipv4Addr,
    /// Its port block.
    pub block: Option<bng_shm::PortBlock>,
    /// First ports of its further blocks.
    pub further: FurtherBlocks,
    /// Its IPv6 prefixes.
    pub prefixes: Option<Prefixes>,
}

/// Address, port block and prefixes of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// The address and its pool.
    pub lease: Lease,
    /// The port block and the index of its NAT pool; `None` for routed subscribers.
    pub block: Option<(usize, PortBlock)>,
    /// First ports of its further blocks, on the same address and of the same size.
    pub further: FurtherBlocks,
    /// IPv6 prefixes; `None` where the pool has none, or had none left.
    pub prefixes: Option<Prefixes>,
}

impl Holding {
    /// Whether it holds the address or a prefix that AAA gives by name.
    #[must_use]
    pub fn includes(&self, profile: &Profile) -> bool {
        let prefixes = self.prefixes;
        profile.framed_ip == Some(self.lease.address)
            || prefixes.is_some_and(|held| {
                profile.framed_ipv6_prefix == Some(held.on_link)
                    || held.delegated.is_some() && profile.delegated_ipv6_prefix == held.delegated
            })
    }

    /// What a session held of which nothing is held any more: pool and indexes mean nothing.
    #[must_use]
    pub fn of_the_past(held: &Held) -> Self {
        let block = held.block.map(|it| PortBlock {
            address: it.address,
            address_index: 0,
            block: 0,
            first_port: it.first_port,
            size: it.size,
        });
        Self {
            lease: Lease {
                pool: usize::MAX,
                address: held.address,
            },
            block: block.map(|block| (usize::MAX, block)),
            further: held.further,
            prefixes: held.prefixes,
        }
    }

    /// The first block as the shared memory keeps it.
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

    /// All blocks as the shared memory keeps them, the first one first.
    pub fn published_blocks(&self) -> impl Iterator<Item = bng_shm::PortBlock> + use<> {
        let first = self.published_block();
        let further = self.further;
        first.into_iter().flat_map(move |first| {
            let others = further.iter().map(move |first_port| bng_shm::PortBlock {
                first_port,
                ..first
            });
            std::iter::once(first).chain(others)
        })
    }
}

/// What a subscriber is to hold. What is `None` is left to the pools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The one pool its address comes from.
    pub pool: Option<usize>,
    /// Exactly this address, whatever the pool.
    pub address: Option<Ipv4Addr>,
    /// Exactly this /64.
    pub on_link: Option<Prefix>,
    /// Exactly this delegated prefix.
    pub delegated: Option<Prefix>,
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
    /// Somebody has the address or the prefix it is to have.
    #[error("{what} is in use by {}", String::from_utf8_lossy(.holder).escape_debug())]
    Taken {
        /// The address or the prefix.
        what: String,
        /// Whom it was given to.
        holder: Arc<[u8]>,
    },
    /// The address it is to have is in no pool.
    #[error(transparent)]
    NoAddress(LeaseError),
    /// A prefix it is to have is in no pool.
    #[error("{0} is a prefix of no pool")]
    NoPrefix(Prefix),
    /// It is to have a delegated prefix, and there is no /64 for it.
    #[error("there is no /64 to go with {0}")]
    NoOnLink(Prefix),
}

/// Why a session gets no further block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoFurther {
    /// It is not translated.
    #[error("it has no port block")]
    NotTranslated,
    /// It has as many as it may have.
    #[error("it has the {0} blocks a subscriber may have")]
    Limit(u8),
    /// Its address has none left.
    #[error(transparent)]
    Exhausted(#[from] BlocksExhausted),
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
    /// A prefix is not to be had.
    #[error(transparent)]
    Prefix(#[from] PrefixError),
    /// The pool has no prefixes of this kind any more.
    #[error("{prefix} is no prefix of pool {pool} any more")]
    NoPrefixes {
        /// The session's prefix.
        prefix: Prefix,
        /// Name of the address pool.
        pool: String,
    },
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
    prefixes: Vec<Option<PoolPrefixes>>,
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
    /// Most blocks of one subscriber.
    pub per_subscriber: u8,
}

impl Grants {
    /// `pools`, `prefixes` and `settings` in the order of the configuration. `unix_ms` makes accounting ids unique over restarts.
    #[must_use]
    pub fn new(
        authenticator: Authenticator,
        pools: AddressPools,
        prefixes: Vec<Option<PoolPrefixes>>,
        nat: Vec<NatBlocks>,
        settings: Vec<PoolSettings>,
        unix_ms: u64,
    ) -> Self {
        Self {
            authenticator,
            pools,
            prefixes,
            nat,
            settings,
            // 22 bits of room for the sessions of each millisecond of uptime.
            next_accounting_id: unix_ms << 22,
        }
    }

    /// Knows other local users from now on.
    pub(crate) fn set_users(&mut self, users: LocalUsers) {
        self.authenticator.set_users(users);
    }

    /// Asks others about subscribers from now on.
    pub(crate) fn set_backends(&mut self, backends: Vec<bng_aaa::Backend>) {
        self.authenticator.set_backends(backends);
    }

    /// Gives other DNS servers from now on; `settings` are of the same pools, in the same order.
    pub(crate) fn set_pool_settings(&mut self, settings: &[PoolSettings]) {
        self.settings = settings.to_vec();
    }

    /// Puts a question to the authenticator.
    pub fn ask(&mut self, request: AuthRequest) {
        self.authenticator.handle_request(request);
    }

    /// The next question for RADIUS servers.
    pub fn poll_question(&mut self) -> Option<AuthRequest> {
        self.authenticator.poll_question()
    }

    /// Takes what RADIUS servers, or their silence, said to a question.
    pub fn answered(&mut self, id: RequestId, verdict: Verdict) {
        self.authenticator.handle_verdict(id, verdict);
    }

    /// The next answer of the authenticator.
    pub fn poll_verdict(&mut self) -> Option<(RequestId, Verdict)> {
        self.authenticator.poll_verdict()
    }

    /// Takes what a subscriber is to hold: an address and, where its pool has them, a port block and IPv6 prefixes. A pool that
    /// has run out of prefixes leaves the session without; which one that is comes with the holding.
    ///
    /// # Errors
    /// [`GrantError`]; nothing is taken then.
    pub fn take(
        &mut self,
        user: &[u8],
        wanted: &Wanted,
        now: Duration,
    ) -> Result<(Holding, Option<PrefixesExhausted>), GrantError> {
        let mut holding = Holding {
            lease: self.take_address(user, wanted)?,
            block: None,
            further: FurtherBlocks::default(),
            prefixes: None,
        };
        match self.take_rest(user, wanted, &mut holding, now) {
            Ok(exhausted) => Ok((holding, exhausted)),
            Err(error) => {
                self.give_back(&holding, now);
                Err(error)
            }
        }
    }

    fn take_address(&mut self, user: &[u8], wanted: &Wanted) -> Result<Lease, GrantError> {
        let Some(address) = wanted.address else {
            return Ok(match wanted.pool {
                Some(pool) => self.pools.allocate_from(pool, user)?,
                None => self.pools.allocate(user)?,
            });
        };
        self.pools
            .reserve(address, user)
            .map_err(|error| match self.pools.holder(address) {
                Some(holder) => GrantError::Taken {
                    what: address.to_string(),
                    holder,
                },
                None => GrantError::NoAddress(error),
            })
    }

    fn take_rest(
        &mut self,
        user: &[u8],
        wanted: &Wanted,
        holding: &mut Holding,
        now: Duration,
    ) -> Result<Option<PrefixesExhausted>, GrantError> {
        let at = holding.lease.pool;
        let mut exhausted = None;
        let on_link = match wanted.on_link {
            Some(prefix) => Some(self.take_prefix(user, at, prefix, false)?),
            None => {
                let pool = self.prefix_pool(at, false);
                let taken = pool.map(|pool| pool.allocate(user)).transpose();
                taken.unwrap_or_else(|error| {
                    exhausted = Some(error);
                    None
                })
            }
        };
        holding.prefixes = on_link.map(|on_link| Prefixes {
            on_link,
            delegated: None,
        });
        let delegated = match (wanted.delegated, on_link) {
            (Some(prefix), None) => return Err(GrantError::NoOnLink(prefix)),
            (Some(prefix), Some(_)) => Some(self.take_prefix(user, at, prefix, true)?),
            (None, None) => None,
            (None, Some(_)) => {
                let pool = self.prefix_pool(at, true);
                let taken = pool.map(|pool| pool.allocate(user)).transpose();
                taken.unwrap_or_else(|error| {
                    exhausted = Some(error);
                    None
                })
            }
        };
        if let Some(prefixes) = &mut holding.prefixes {
            prefixes.delegated = delegated;
        }
        // The block comes last: one that is given back rests. The settings name only NAT pools that exist.
        let nat = self.settings.get(at).and_then(|pool| pool.nat);
        if let Some((nat, pool)) = nat.and_then(|nat| Some((nat, self.nat.get_mut(nat)?))) {
            holding.block = Some((nat, pool.blocks.allocate(now)?));
        }
        Ok(exhausted)
    }

    fn take_prefix(
        &mut self,
        user: &[u8],
        first: usize,
        prefix: Prefix,
        is_delegated: bool,
    ) -> Result<Prefix, GrantError> {
        let pool = self.pool_of_prefix(first, prefix, is_delegated);
        let pool = pool.ok_or(GrantError::NoPrefix(prefix))?;
        match (pool.reserve(prefix, user), pool.holder(prefix)) {
            (Err(_), Some(holder)) => Err(GrantError::Taken {
                what: prefix.to_string(),
                holder,
            }),
            (Err(_), None) => Err(GrantError::NoPrefix(prefix)),
            (Ok(()), _) => Ok(prefix),
        }
    }

    /// Takes exactly what a session of an earlier run holds.
    ///
    /// # Errors
    /// [`KeepError`]; nothing is taken then.
    pub fn keep(&mut self, user: &[u8], held: &Held) -> Result<Holding, KeepError> {
        let lease = self.pools.reserve(held.address, user)?;
        let mut holding = Holding {
            lease,
            block: None,
            further: FurtherBlocks::default(),
            prefixes: None,
        };
        match self.keep_rest(user, held, &mut holding) {
            Ok(()) => Ok(holding),
            Err(error) => {
                // The block was taken for a moment and never published, so it need not rest; the quarantine does no harm.
                self.give_back(&holding, Duration::ZERO);
                Err(error)
            }
        }
    }

    fn keep_rest(
        &mut self,
        user: &[u8],
        held: &Held,
        holding: &mut Holding,
    ) -> Result<(), KeepError> {
        holding.block = self.keep_block(holding.lease, held.block)?;
        holding.further = self.keep_further(holding.block, held.further);
        let Some(Prefixes { on_link, delegated }) = held.prefixes else {
            return Ok(());
        };
        self.keep_prefix(user, holding.lease.pool, on_link, false)?;
        holding.prefixes = Some(Prefixes {
            on_link,
            delegated: None,
        });
        if let Some(delegated) = delegated {
            self.keep_prefix(user, holding.lease.pool, delegated, true)?;
        }
        holding.prefixes = held.prefixes;
        Ok(())
    }

    fn keep_prefix(
        &mut self,
        user: &[u8],
        pool: usize,
        prefix: Prefix,
        is_delegated: bool,
    ) -> Result<(), KeepError> {
        match self.pool_of_prefix(pool, prefix, is_delegated) {
            Some(pool) => Ok(pool.reserve(prefix, user)?),
            None => Err(KeepError::NoPrefixes {
                prefix,
                pool: self.settings[pool].name.clone(),
            }),
        }
    }

    /// The pool that hands a prefix out: AAA may give one of another pool than the address's, which is looked at first.
    fn pool_of_prefix(
        &mut self,
        first: usize,
        prefix: Prefix,
        is_delegated: bool,
    ) -> Option<&mut PrefixPool> {
        let hands_out = |pools: &PoolPrefixes| match is_delegated {
            true => (pools.delegated.as_ref()).is_some_and(|pool| pool.hands_out(prefix)),
            false => pools.on_link.hands_out(prefix),
        };
        let own = self.prefixes.get(first).and_then(Option::as_ref);
        let at = match own.is_some_and(hands_out) {
            true => first,
            false => (self.prefixes.iter()).position(|it| it.as_ref().is_some_and(hands_out))?,
        };
        self.prefix_pool(at, is_delegated)
    }

    fn prefix_pool(&mut self, pool: usize, is_delegated: bool) -> Option<&mut PrefixPool> {
        let pool = self.prefixes.get_mut(pool)?.as_mut()?;
        match is_delegated {
            true => pool.delegated.as_mut(),
            false => Some(&mut pool.on_link),
        }
    }

    /// Takes what is left of the holding of a session that ends, so that nobody else gets it too early: all of it, or its
    /// address and what else of it is still what it was, or nothing.
    pub fn keep_to_the_end(&mut self, user: &[u8], held: &Held) -> Option<Holding> {
        if let Ok(holding) = self.keep(user, held) {
            return Some(holding);
        }
        let lease = self.pools.reserve(held.address, user).ok()?;
        let block = self.keep_block(lease, held.block).ok().flatten();
        let further = self.keep_further(block, held.further);
        let mut keep = |prefix, is_delegated| {
            self.keep_prefix(user, lease.pool, prefix, is_delegated)
                .is_ok()
        };
        let prefixes = held.prefixes.and_then(|held| {
            let is_kept = keep(held.on_link, false);
            // A delegated prefix alone has no place here; its owner word is taken back with all others at start.
            is_kept.then(|| Prefixes {
                delegated: held.delegated.filter(|prefix| keep(*prefix, true)),
                ..held
            })
        });
        Some(Holding {
            lease,
            block,
            further,
            prefixes,
        })
    }

    /// Gives a session one more block on its address, for good; returns the holding as it is then.
    ///
    /// # Errors
    /// [`NoFurther`]; nothing changes then.
    pub fn grow(
        &mut self,
        holding: &Holding,
        now: Duration,
    ) -> Result<(Holding, PortBlock), NoFurther> {
        let (nat, first) = holding.block.ok_or(NoFurther::NotTranslated)?;
        let pool = self.nat.get_mut(nat).ok_or(NoFurther::NotTranslated)?;
        if holding.further.count() + 1 >= usize::from(pool.per_subscriber) {
            return Err(NoFurther::Limit(pool.per_subscriber));
        }
        let block = pool.blocks.allocate_on(first.address_index, now)?;
        let further = holding.further.iter().chain([block.first_port]);
        let further = FurtherBlocks::new(further);
        Ok((
            Holding {
                further,
                ..*holding
            },
            block,
        ))
    }

    /// The further blocks of a session of an earlier run, those that are to be had. The rest is nobody's: no worker finds a mapping by a
    /// block that is not in the session's list.
    fn keep_further(
        &mut self,
        block: Option<(usize, PortBlock)>,
        further: FurtherBlocks,
    ) -> FurtherBlocks {
        let Some((nat, first)) = block else {
            return FurtherBlocks::default();
        };
        let Some(pool) = self.nat.get_mut(nat) else {
            return FurtherBlocks::default();
        };
        let kept = further.iter().filter(|first_port| {
            let number = number_of(pool.first_port, first.size, *first_port);
            number.is_some_and(|number| pool.blocks.reserve(first.address_index, number).is_ok())
        });
        FurtherBlocks::new(kept)
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
        let NatBlocks {
            blocks, first_port, ..
        } = &mut self.nat[nat];
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
        if let Some((nat, first)) = holding.block
            && let Some(pool) = self.nat.get_mut(nat)
        {
            let further = holding
                .further
                .iter()
                .filter_map(|first_port| number_of(pool.first_port, first.size, first_port));
            for number in std::iter::once(first.block).chain(further) {
                if let Err(error) = pool.blocks.release(now, first.address_index, number) {
                    tracing::error!(%error, "port block given back twice");
                }
            }
        }
        let Some(prefixes) = holding.prefixes else {
            return;
        };
        let both = [(Some(prefixes.on_link), false), (prefixes.delegated, true)];
        for (prefix, is_delegated) in both {
            let Some(prefix) = prefix else { continue };
            let pool = self.pool_of_prefix(holding.lease.pool, prefix, is_delegated);
            if let Some(Err(error)) = pool.map(|pool| pool.release(prefix)) {
                tracing::error!(%error, "prefix given back twice");
            }
        }
    }

    fn give_back_lease(&mut self, lease: Lease) {
        if let Err(error) = self.pools.release(lease.address) {
            tracing::error!(%error, "address given back twice");
        }
    }

    /// Gives back one further block that was never published.
    pub(crate) fn give_back_block(&mut self, holding: &Holding, block: &PortBlock, now: Duration) {
        if let Some((nat, _)) = holding.block
            && let Some(pool) = self.nat.get_mut(nat)
            && let Err(error) = pool.blocks.release(now, block.address_index, block.block)
        {
            tracing::error!(%error, "port block given back twice");
        }
    }

    /// The name of a NAT pool.
    pub(crate) fn nat_pool(&self, pool: usize) -> &str {
        self.nat.get(pool).map_or("", |pool| pool.blocks.name())
    }

    /// A number for the accounting of a session, never used before.
    pub fn new_accounting_id(&mut self) -> u64 {
        self.next_accounting_id += 1;
        self.next_accounting_id
    }

    /// What the engine is told of a holding and of the terms that go with it.
    #[must_use]
    pub fn grant(&self, holding: &Holding, profile: &Profile, accounting_id: u64) -> Grant {
        let pool = &self.settings[holding.lease.pool];
        Grant {
            framed_ip: holding.lease.address,
            gateway_ip: pool.gateway,
            dns: either(profile.dns, pool.dns),
            ipv6: holding.prefixes.map(|prefixes| Ipv6Grant {
                prefix: prefixes.on_link.address,
                delegated: (prefixes.delegated).map(|it| (it.address, it.length)),
                dns: either(profile.dns6, pool.dns6),
            }),
            session_timeout: profile.session_timeout,
            idle_timeout: profile.idle_timeout,
            accounting_id,
        }
    }

    /// Name, addresses in use and addresses in all of every address pool.
    pub fn address_use(&self) -> impl Iterator<Item = (&str, u32, u32)> {
        (self.pools.iter()).map(|pool| (pool.name(), pool.used(), pool.total()))
    }

    /// Name, prefixes in use and prefixes in all of every IPv6 prefix pool.
    pub fn prefix_use(&self) -> impl Iterator<Item = (&str, u32, u32)> {
        let pools = self.prefixes.iter().flatten();
        pools
            .flat_map(|pool| std::iter::once(&pool.on_link).chain(&pool.delegated))
            .map(|pool| (pool.name(), pool.used(), pool.total()))
    }

    /// Name, and blocks in use, resting and in all, of every NAT pool.
    pub fn block_use(&self) -> impl Iterator<Item = (&str, u32, u32, u32)> {
        let pools = self.nat.iter().map(|pool| &pool.blocks);
        pools.map(|pool| (pool.name(), pool.used(), pool.resting(), pool.total()))
    }
}

/// Servers of AAA, or the pool's where AAA names none.
/// Number of the block of a pool that begins with a port; `None` where none begins.
fn number_of(pool_first: u16, size: u16, first_port: u16) -> Option<u16> {
    let offset = first_port.checked_sub(pool_first)?;
    (offset.checked_rem(size)? == 0).then(|| offset / size)
}

fn either<T: Copy>(said: [Option<T>; 2], of_pool: [Option<T>; 2]) -> [Option<T>; 2] {
    match said.iter().any(Option::is_some) {
        true => said,
        false => of_pool,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings;
    use bng_config::Config;
    use std::path::Path;

    const TEXT: &str = r#"
dataplane:
  workers: [1]
  ports:
    - {name: core0, role: core, device: a}
    - {name: access0, role: access, device: b}
pools:
  - name: home
    ranges: [100.64.0.0/30]
    gateway: 100.64.0.1
    dns: [9.9.9.9]
    nat: out
    ipv6: {prefixes: [2001:db8::/63], delegated: [2001:db8:1000::/55], dns: [2001:db8::53]}
  - {name: plain, ranges: [100.65.0.0/29], gateway: 100.65.0.1}
nat:
  pools:
    - {name: out, addresses: [198.51.100.0/32], block_size: 1024}
"#;

    fn grants() -> Grants {
        let config = Config::parse(TEXT.as_bytes(), Path::new("t.yaml")).unwrap();
        let settings = settings::Settings::new(&config).unwrap();
        Grants::new(
            Authenticator::new(settings::local_users(&config), Vec::new()),
            settings::address_pools(&config),
            settings::pool_prefixes(&config),
            settings::port_blocks(&config),
            settings.pools,
            0,
        )
    }

    fn prefix(text: &str) -> Prefix {
        let (address, length) = text.split_once('/').unwrap();
        Prefix {
            address: address.parse().unwrap(),
            length: length.parse().unwrap(),
        }
    }

    /// What is in use: addresses and prefixes of every pool.
    fn used(grants: &Grants) -> Vec<u32> {
        let addresses = grants.address_use().map(|(_, used, _)| used);
        addresses
            .chain(grants.prefix_use().map(|(_, used, _)| used))
            .collect()
    }

    fn wanted(address: [u8; 4]) -> Wanted {
        Wanted {
            address: Some(address.into()),
            ..Wanted::default()
        }
    }

    #[test]
    fn what_aaa_gives_by_name_is_held_and_comes_back_whatever_the_pool() {
        let mut grants = grants();
        let wanted = Wanted {
            on_link: Some(prefix("2001:db8:0:1::/64")),
            delegated: Some(prefix("2001:db8:1000:100::/56")),
            ..wanted([100, 65, 0, 3])
        };
        let (holding, exhausted) = grants.take(b"alice", &wanted, Duration::ZERO).unwrap();
        assert_eq!(exhausted, None);
        assert_eq!(Some(holding.lease.address), wanted.address);
        let prefixes = holding.prefixes.unwrap();
        assert_eq!(
            (Some(prefixes.on_link), prefixes.delegated),
            (wanted.on_link, wanted.delegated)
        );
        assert_eq!(used(&grants), [0, 1, 1, 1]);
        let profile = Profile {
            delegated_ipv6_prefix: wanted.delegated,
            ..Profile::default()
        };
        assert!(holding.includes(&profile) && !holding.includes(&Profile::default()));
        grants.give_back(&holding, Duration::ZERO);
        assert_eq!(used(&grants), [0, 0, 0, 0]);
    }

    #[test]
    fn what_cannot_be_had_is_said_and_leaves_nothing_taken() {
        let mut grants = grants();
        let now = Duration::ZERO;
        let first = wanted([100, 64, 0, 2]);
        let (bob, _) = grants.take(b"bob", &first, now).unwrap();
        let before = used(&grants);
        let held = bob.prefixes.unwrap();
        let free = wanted([100, 65, 0, 3]);
        let cases = [
            (first, "100.64.0.2 is in use by bob"),
            (wanted([100, 64, 0, 1]), "100.64.0.1 is in no address pool"),
            (wanted([192, 0, 2, 1]), "192.0.2.1 is in no address pool"),
            (
                Wanted {
                    on_link: Some(held.on_link),
                    ..free
                },
                "2001:db8::/64 is in use by bob",
            ),
            (
                Wanted {
                    on_link: Some(prefix("2001:db8:0:1::/64")),
                    delegated: held.delegated,
                    ..free
                },
                "2001:db8:1000::/56 is in use by bob",
            ),
            (
                Wanted {
                    on_link: Some(prefix("2001:db8:9::/64")),
                    ..free
                },
                "2001:db8:9::/64 is a prefix of no pool",
            ),
            (
                Wanted {
                    delegated: Some(prefix("2001:db8:1000:100::/56")),
                    ..free
                },
                "there is no /64 to go with 2001:db8:1000:100::/56",
            ),
        ];
        for (wanted, expected) in cases {
            let refused = grants.take(b"alice", &wanted, now).unwrap_err();
            assert_eq!(refused.to_string(), expected);
            assert_eq!(used(&grants), before, "{expected}");
        }
        assert!(grants.take(b"alice", &free, now).is_ok());
    }

    #[test]
    fn servers_of_aaa_come_before_the_pool_s() {
        let mut grants = grants();
        let now = Duration::ZERO;
        let (holding, _) = grants.take(b"alice", &Wanted::default(), now).unwrap();
        let of_pool = grants.grant(&holding, &Profile::default(), 7);
        assert_eq!(of_pool.dns, [Some([9, 9, 9, 9].into()), None]);
        assert_eq!(of_pool.accounting_id, 7);
        let profile = Profile {
            dns: [None, Some([8, 8, 8, 8].into())],
            dns6: [Some("2001:db8::1".parse().unwrap()), None],
            session_timeout: Some(Duration::from_secs(9)),
            ..Profile::default()
        };
        let said = grants.grant(&holding, &profile, 7);
        assert_eq!(
            (said.dns, said.session_timeout),
            (profile.dns, profile.session_timeout)
        );
        assert_eq!(said.ipv6.unwrap().dns, profile.dns6);
    }
}
