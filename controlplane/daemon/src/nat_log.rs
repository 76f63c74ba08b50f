//! The driver and the log of NAT port blocks: a subscriber is let in when the log has its block on disk.

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bng_aaa::PortBlock;
use bng_config::{Config, LogTransport};
use bng_natlog::{
    Block, Key, Log, Options, OutputOptions, Protocol, Reader, Transport, View, WhenFull, WhyNot,
};
use bng_shm::{SlotIndex, Waker};
use parking_lot::Mutex;

use crate::driver::{Driver, DriverError};
use crate::grants::Holding;
use crate::life::Accepted;
use crate::publish::{Clock, table_vlans};
use crate::sessions::Live;

/// What is safe, from the log's thread.
#[derive(Debug, Default)]
struct Told {
    tokens: Mutex<Vec<u64>>,
    /// How many those are, so that the driver need not lock to see that there are none.
    count: AtomicUsize,
}

/// What waits until a block is on disk.
#[derive(Debug)]
pub(crate) enum Logging {
    /// A subscriber waits to be let in.
    Admit {
        accepted: Accepted,
        holding: Holding,
        accounting_id: u64,
    },
    /// A session waits for one more block.
    Grow {
        slot: SlotIndex,
        generation: u32,
        /// What it holds, and what it will hold.
        before: Holding,
        after: Holding,
        block: PortBlock,
        accounting_id: u64,
    },
}

/// The driver's end; nothing where no log is configured.
#[derive(Debug, Default)]
pub(crate) struct NatLog {
    log: Option<Log>,
    told: Arc<Told>,
    logging: HashMap<u64, Logging>,
    /// Sessions that wait for one more block.
    growing: HashSet<SlotIndex>,
    next: u64,
}

/// Who has a port now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveHolder {
    /// The session's name in REST.
    pub session: String,
    /// Its block.
    pub block: Block,
    /// Since when it is up, Unix milliseconds.
    pub opened_unix_ms: u64,
}

/// What the driver knows of a public port.
#[derive(Debug)]
pub struct Known {
    /// Who has it.
    pub live: Option<LiveHolder>,
    /// The log, if there is one.
    pub log: Option<Reader>,
}

impl NatLog {
    /// Opens the log if one is configured. `waker` wakes the driver.
    pub(crate) fn open(config: &Config, waker: Waker) -> Result<Self, DriverError> {
        let (Some(log), Some(directory)) = (&config.nat.log, &config.state_directory) else {
            return Ok(Self::default());
        };
        let transport = |it: LogTransport| match it {
            LogTransport::Udp => Transport::Udp,
            LogTransport::Tcp => Transport::Tcp,
        };
        let syslog = log.syslog.iter().map(|it| OutputOptions {
            protocol: Protocol::Syslog,
            transport: transport(it.transport),
            server: it.server,
        });
        let ipfix = log.ipfix.iter().map(|it| OutputOptions {
            protocol: Protocol::Ipfix(it.observation_domain),
            transport: transport(it.transport),
            server: it.server,
        });
        let options = Options {
            directory: directory.join("nat"),
            limit: u64::from(log.spool_mib) << 20,
            retention: Duration::from_secs(86_400 * u64::from(log.retention_days)),
            interim: Duration::from_secs(log.interim_s.into()),
            when_full: match log.when_full {
                bng_config::WhenFull::Refuse => WhenFull::Refuse,
                bng_config::WhenFull::Forget => WhenFull::Forget,
            },
            outputs: syslog.chain(ipfix).collect(),
            hostname: rustix::system::uname().nodename().to_bytes().to_vec(),
        };
        let told = Arc::new(Told::default());
        let teller = told.clone();
        let safe = Box::new(move |tokens: &mut Vec<u64>| {
            let mut all = teller.tokens.lock();
            all.append(tokens);
            teller.count.store(all.len(), Ordering::Release);
            drop(all);
            waker.wake();
        });
        let log = Log::open(&options, safe).map_err(|error| DriverError::NatLog {
            directory: options.directory.clone(),
            error,
        })?;
        Ok(Self {
            log: Some(log),
            told,
            ..Self::default()
        })
    }

    /// Whether the driver has to look at it before it sleeps.
    pub(crate) fn is_waiting(&self) -> bool {
        self.told.count.load(Ordering::Acquire) != 0
    }

    /// How the log is.
    pub(crate) fn view(&self) -> Option<View> {
        self.log.as_ref().map(|log| log.reader().view())
    }

    /// Whether a block has to be on disk before it is used, and may be given away.
    pub(crate) fn takes_new(&self) -> Option<Result<(), WhyNot>> {
        self.log.as_ref().map(Log::takes_new)
    }

    /// Has a subscriber wait until its block is on disk; it comes out of [`Driver::take_logged`].
    pub(crate) fn log(&mut self, logging: Logging, block: Block, clock: Clock) {
        if let Some(log) = &self.log {
            self.next += 1;
            log.opened(block, clock.unix_ms, self.next);
            if let Logging::Grow { slot, .. } = &logging {
                self.growing.insert(*slot);
            }
            self.logging.insert(self.next, logging);
        }
    }

    fn take(&mut self) -> Vec<Logging> {
        if !self.is_waiting() {
            return Vec::new();
        }
        let mut tokens = self.told.tokens.lock();
        self.told.count.store(0, Ordering::Release);
        let logged = tokens.drain(..);
        let logged: Vec<_> = logged
            .filter_map(|token| self.logging.remove(&token))
            .collect();
        for logging in &logged {
            if let Logging::Grow { slot, .. } = logging {
                self.growing.remove(slot);
            }
        }
        logged
    }

    /// What a session held is nobody's any more.
    pub(crate) fn closed(&self, holding: &Holding, accounting_id: u64, clock: Clock) {
        for block in holding.published_blocks() {
            self.closed_block(block.address, block.first_port, accounting_id, clock);
        }
    }

    /// A block is nobody's any more.
    pub(crate) fn closed_block(
        &self,
        public: Ipv4Addr,
        first_port: u16,
        accounting_id: u64,
        clock: Clock,
    ) {
        if let Some(log) = &self.log {
            let key = Key { public, first_port };
            log.closed(key, accounting_id, clock.unix_ms);
        }
    }

    /// Whether a session waits for one more block already.
    pub(crate) fn is_growing(&self, slot: SlotIndex) -> bool {
        self.growing.contains(&slot)
    }
}

impl Driver {
    /// The blocks of a holding, the first one first, as the log and whoever asks is told of them.
    pub(crate) fn blocks_of(
        &self,
        live: &Live,
        holding: &Holding,
        accounting_id: u64,
    ) -> Vec<Block> {
        let Some((pool, _)) = holding.block else {
            return Vec::new();
        };
        let vlans = table_vlans(&live.vlans);
        let blocks = holding.published_blocks().map(|block| Block {
            pool: self.grants.nat_pool(pool).to_owned(),
            public: block.address,
            first_port: block.first_port,
            last_port: block
                .first_port
                .saturating_add(block.size.saturating_sub(1)),
            inside: holding.lease.address,
            user: live.user.to_vec(),
            mac: live.line.mac.0,
            port: self.settings.access_name(live.session.port.0).to_owned(),
            s_vlan: vlans.s_vlan,
            c_vlan: vlans.c_vlan,
            accounting_id,
        });
        blocks.collect()
    }

    /// Goes on with subscribers whose blocks are on disk.
    pub(crate) fn take_logged(&mut self, clock: Clock) {
        let logged = self.nat_log.take();
        if logged.is_empty() {
            return;
        }
        for logging in logged {
            self.block_logged(logging, clock);
        }
        self.settle(clock, None);
    }

    /// Brings the log to what was adopted: blocks of sessions that are gone are closed, and those it does not know are opened.
    pub(crate) fn reconcile_nat_log(&mut self, clock: Clock) {
        let Some(log) = &self.nat_log.log else {
            return;
        };
        let held: Vec<(Block, u64)> = (self.sessions.iter())
            .filter(|live| !live.given_back)
            .flat_map(|live| {
                let blocks = live.holding.as_ref();
                let blocks = blocks.map(|it| self.blocks_of(live, it, live.accounting_id));
                let opened_ms = match live.opened_unix_ms {
                    0 => clock.unix_ms,
                    opened => opened.min(clock.unix_ms),
                };
                let blocks = blocks.into_iter().flatten();
                blocks.map(move |block| (block, opened_ms))
            })
            .collect();
        let kept: HashSet<_> = (held.iter())
            .map(|(block, _)| (block.key(), block.accounting_id))
            .collect();
        // With the memory the workers have forgotten everything: nobody has used a block since the earlier run.
        let is_new = self.publisher.created() || self.publisher.replaced().is_some();
        log.keep_only(kept, (!is_new).then_some(clock.unix_ms));
        for (block, opened_ms) in held {
            log.found(block, opened_ms, clock.unix_ms);
        }
    }

    /// What is known of a public port.
    pub(crate) fn who_has(&self, public: Ipv4Addr, port: u16) -> Known {
        let live = self.sessions.iter().find_map(|live| {
            let holding = live.held().filter(|_| live.end.is_none())?;
            let blocks = self.blocks_of(live, holding, live.accounting_id);
            let block = blocks.into_iter().find(|block| {
                block.public == public && (block.first_port..=block.last_port).contains(&port)
            })?;
            (live.opened_unix_ms != 0).then(|| LiveHolder {
                session: crate::views::session_id(&self.settings, live),
                opened_unix_ms: live.opened_unix_ms,
                block,
            })
        });
        Known {
            live,
            log: self.nat_log.log.as_ref().map(Log::reader),
        }
    }
}
