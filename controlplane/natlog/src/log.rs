//! The log's writer thread, and what its owner and those who ask have of it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender as Channel, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::index::{Output, Shared, View};
use crate::output::{self, OutputOptions, Sender};
use crate::record::{Block, Key};
use crate::store::Store;
use crate::syslog;
use crate::who::Answer;

/// Most that shares one wait for the disk.
const BATCH: usize = 8_192;
/// Time until the next attempt at a disk that has failed.
const DISK_PAUSE: Duration = Duration::from_secs(1);
/// Looks at age and size.
const TICK: Duration = Duration::from_millis(500);
/// Signs of life on disk.
const ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How long owners wait to be told what they had no room for.
const BUSY_RETRY: Duration = Duration::from_millis(2);
/// When a new segment begins, bytes: what an answer to "who" has to read.
const SEGMENT_MOST: u64 = 16 << 20;
const SEGMENT_LEAST: u64 = 64 << 10;

/// What becomes of new blocks when the log is full of what an output has not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// There are none.
    Refuse,
    /// They are logged, and the oldest records are removed.
    Forget,
}

/// Why no block may be given to anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyNot {
    /// The log is full of what an output has not taken.
    Full,
    /// The disk cannot be written.
    Unwritable,
}

/// How the log is to be.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its directory; made if there is none.
    pub directory: PathBuf,
    /// Most its segments may take, bytes.
    pub limit: u64,
    /// How long records are kept.
    pub retention: Duration,
    /// Time between two records of a block that stays open; zero for none.
    pub interim: Duration,
    /// What happens when it is full.
    pub when_full: WhenFull,
    /// Who is told.
    pub outputs: Vec<OutputOptions>,
    /// Name of this machine.
    pub hostname: Vec<u8>,
}

/// What the owner says.
#[derive(Debug)]
enum Told {
    Opened {
        block: Box<Block>,
        opened_ms: u64,
        time_ms: u64,
        token: Option<u64>,
    },
    Closed {
        key: Key,
        accounting_id: u64,
        time_ms: u64,
    },
    KeepOnly {
        kept: HashSet<(Key, u64)>,
        time_ms: Option<u64>,
    },
}

/// Told which tokens are safe; it takes out those it has passed on.
pub type Safe = Box<dyn FnMut(&mut Vec<u64>) + Send>;

/// The owner's end. The threads end when it is dropped; what was said before is written first.
#[derive(Debug)]
pub struct Log {
    channel: Option<Channel<Told>>,
    shared: Arc<Shared>,
    when_full: WhenFull,
    writer: Option<JoinHandle<()>>,
    senders: Vec<JoinHandle<()>>,
}

/// Answers from the log.
#[derive(Debug, Clone)]
pub struct Reader(Arc<Shared>);

impl Reader {
    /// Who had a public port at a Unix time, milliseconds. Reads a few files: not for threads that must not wait.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn who(&self, public: Ipv4Addr, port: u16, at_ms: u64) -> io::Result<Answer> {
        self.0.who(public, port, at_ms)
    }

    /// How the log is.
    #[must_use]
    pub fn view(&self) -> View {
        self.0.view(unix_ms())
    }
}

impl Log {
    /// Opens the log and starts its threads. `safe` is called on the writer's.
    ///
    /// # Errors
    /// The directory cannot be made, read or written, or there are no threads.
    pub fn open(options: &Options, safe: Safe) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(options.directory.clone(), options.limit));
        let now_ms = unix_ms();
        let segment_size = (options.limit / 32).clamp(SEGMENT_LEAST, SEGMENT_MOST);
        let store = Store::open(shared.clone(), segment_size, now_ms)?;
        let stamp = options.directory.join("alive");
        let alive_ms = fs::read_to_string(&stamp).ok();
        let alive_ms = alive_ms.and_then(|it| it.trim().parse().ok()).unwrap_or(0);
        let hostname = syslog::hostname(&options.hostname);
        let mut senders = Vec::new();
        for (index, output) in options.outputs.iter().enumerate() {
            let (begin, end) = {
                let state = shared.state.lock();
                (state.begin(), state.end())
            };
            let at = output::recall(output, &options.directory, begin, end)?;
            let sender = Sender::new(shared.clone(), index, output.clone(), hostname.clone(), at);
            let view = Output::new(output, at, now_ms);
            shared.state.lock().outputs.push(view);
            senders.push((output.name(), sender));
        }
        let mut writer = Writer {
            store,
            shared: shared.clone(),
            stamp,
            alive_ms: u64::min(alive_ms, now_ms),
            interim_ms: u64::try_from(options.interim.as_millis()).unwrap_or(u64::MAX),
            due: BinaryHeap::new(),
            retention: options.retention,
            when_full: options.when_full,
            waiting: Vec::new(),
            is_safe: Vec::new(),
            safe,
            retry: None,
            ticked: Instant::now(),
            stamped: None,
        };
        writer.schedule_all(now_ms);
        writer.trim();
        let (channel, told) = channel();
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let mut log = Self {
            channel: Some(channel),
            shared,
            when_full: options.when_full,
            writer: None,
            senders: Vec::new(),
        };
        log.writer = Some(thread("nat-log").spawn(move || writer.run(&told))?);
        for (name, sender) in senders {
            // Names of threads are cut to 15 bytes.
            let name = name.replace("-tcp", "").replace("-udp", "");
            log.senders.push(thread(&name).spawn(move || sender.run())?);
        }
        Ok(log)
    }

    /// Whether blocks may be given to subscribers.
    ///
    /// # Errors
    /// Why not.
    pub fn takes_new(&self) -> Result<(), WhyNot> {
        let state = self.shared.state.lock();
        match (&state.failing, state.full, self.when_full) {
            (Some(_), _, _) => Err(WhyNot::Unwritable),
            (None, true, WhenFull::Refuse) => Err(WhyNot::Full),
            _ => Ok(()),
        }
    }

    /// A block was given to a subscriber. The token is passed to `safe` when that is on disk; the block may be used then. One that the
    /// log knows already as this session's is not noted again.
    pub fn opened(&self, block: Block, time_ms: u64, token: u64) {
        self.tell(Told::Opened {
            block: Box::new(block),
            opened_ms: time_ms,
            time_ms,
            token: Some(token),
        });
    }

    /// A session of an earlier run has a block since `opened_ms`. Noted unless the log knows it.
    pub fn found(&self, block: Block, opened_ms: u64, time_ms: u64) {
        self.tell(Told::Opened {
            block: Box::new(block),
            opened_ms,
            time_ms,
            token: None,
        });
    }

    /// A block was taken back.
    pub fn closed(&self, key: Key, accounting_id: u64, time_ms: u64) {
        self.tell(Told::Closed {
            key,
            accounting_id,
            time_ms,
        });
    }

    /// All open blocks but these are closed: their sessions are gone. `None` as time stands for the last sign of life of the
    /// earlier run.
    pub fn keep_only(&self, kept: HashSet<(Key, u64)>, time_ms: Option<u64>) {
        self.tell(Told::KeepOnly { kept, time_ms });
    }

    fn tell(&self, told: Told) {
        if let Some(channel) = &self.channel {
            // The writer lives as long as this.
            let _ = channel.send(told);
        }
    }

    /// Answers from the log.
    #[must_use]
    pub fn reader(&self) -> Reader {
        Reader(self.shared.clone())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.channel = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
        self.shared.state.lock().stop = true;
        self.shared.changed.notify_all();
        for sender in self.senders.drain(..) {
            let _ = sender.join();
        }
    }
}

struct Writer {
    store: Store,
    shared: Arc<Shared>,
    stamp: PathBuf,
    /// The last sign of life of the earlier run, Unix milliseconds.
    alive_ms: u64,
    /// Zero for none.
    interim_ms: u64,
    /// When which block's next interim record is due, and since when it is open.
    due: BinaryHeap<Reverse<(u64, Key, u64)>>,
    retention: Duration,
    when_full: WhenFull,
    /// Tokens of what is in the batch.
    waiting: Vec<u64>,
    /// Tokens of what is on disk.
    is_safe: Vec<u64>,
    safe: Safe,
    retry: Option<Instant>,
    ticked: Instant,
    stamped: Option<Instant>,
}

impl Writer {
    fn run(mut self, told: &Receiver<Told>) {
        loop {
            let first = told.recv_timeout(self.patience());
            let is_over = matches!(first, Err(RecvTimeoutError::Disconnected));
            if let Ok(first) = first {
                self.take(first);
                for next in told.try_iter().take(BATCH) {
                    self.take(next);
                }
            }
            self.note_interims();
            if is_over || self.retry.is_none_or(|at| Instant::now() >= at) {
                self.commit();
            }
            if !self.is_safe.is_empty() {
                (self.safe)(&mut self.is_safe);
            }
            if self.ticked.elapsed() >= TICK {
                self.ticked = Instant::now();
                self.trim();
                self.sign();
            }
            if is_over {
                self.stamped = None;
                return self.sign();
            }
        }
    }

    fn patience(&self) -> Duration {
        let mut patience = TICK.saturating_sub(self.ticked.elapsed());
        if let Some(retry) = self.retry {
            patience = patience.min(retry.saturating_duration_since(Instant::now()));
        }
        if let Some(Reverse((due, _, _))) = self.due.peek() {
            patience = patience.min(Duration::from_millis(due.saturating_sub(unix_ms())));
        }
        if !self.is_safe.is_empty() {
            patience = patience.min(BUSY_RETRY);
        }
        patience
    }

    fn take(&mut self, told: Told) {
        match told {
            Told::Opened {
                block,
                opened_ms,
                time_ms,
                token,
            } => {
                let key = block.key();
                if self.store.opened(*block, opened_ms, time_ms) {
                    self.schedule(key, opened_ms, time_ms);
                }
                self.waiting.extend(token);
            }
            Told::Closed {
                key,
                accounting_id,
                time_ms,
            } => {
                self.store.closed(key, accounting_id, time_ms);
            }
            Told::KeepOnly { kept, time_ms } => {
                let last_ms = self.alive_ms.max(self.store.last_ms());
                let closed = self.store.keep_only(&kept, time_ms.unwrap_or(last_ms));
                if closed != 0 {
                    tracing::info!(
                        closed,
                        "port blocks of sessions of an earlier run that are gone"
                    );
                }
            }
        }
    }

    fn schedule_all(&mut self, now_ms: u64) {
        let open: Vec<_> = self.store.opened_blocks().collect();
        for (key, opened_ms) in open {
            self.schedule(key, opened_ms, now_ms);
        }
    }

    /// Whole intervals after its opening, so that a restart does not have them come together.
    fn schedule(&mut self, key: Key, opened_ms: u64, now_ms: u64) {
        if let Some(done) = now_ms
            .saturating_sub(opened_ms)
            .checked_div(self.interim_ms)
        {
            let due_ms = opened_ms + (done + 1) * self.interim_ms;
            self.due.push(Reverse((due_ms, key, opened_ms)));
        }
    }

    fn note_interims(&mut self) {
        let now_ms = unix_ms();
        while let Some(Reverse((due_ms, key, opened_ms))) = self.due.peek().copied() {
            if due_ms > now_ms {
                return;
            }
            self.due.pop();
            let is_full = self.shared.state.lock().full;
            let is_open = match is_full || self.retry.is_some() {
                // What is closed by then is left out with the next one.
                true => {
                    self.shared.state.lock().counts.interims_left_out += 1;
                    true
                }
                false => self.store.interim(key, opened_ms, now_ms),
            };
            if is_open {
                self.schedule(key, opened_ms, now_ms);
            }
        }
    }

    fn commit(&mut self) {
        let is_waiting = self.store.is_waiting();
        match self.store.commit(unix_ms()) {
            Ok(()) => {
                self.retry = None;
                if self.shared.state.lock().failing.take().is_some() {
                    tracing::info!("the NAT log can be written again");
                }
            }
            Err(error) => {
                self.retry = Some(Instant::now() + DISK_PAUSE);
                let mut state = self.shared.state.lock();
                if state.failing.replace(error.to_string()).is_none() {
                    let directory = self.shared.directory.display();
                    tracing::error!(%error, %directory, "the NAT log cannot be written: new subscribers behind NAT are refused");
                }
            }
        }
        if !self.store.is_waiting() {
            self.is_safe.append(&mut self.waiting);
            if is_waiting {
                self.trim();
            }
        }
    }

    fn trim(&self) {
        let forget = self.when_full == WhenFull::Forget;
        let has_room = self.store.trim(unix_ms(), self.retention, forget);
        let mut state = self.shared.state.lock();
        if state.full == has_room {
            state.full = !has_room;
            let directory = self.shared.directory.display();
            match has_room {
                true => tracing::info!(%directory, "the NAT log has room again"),
                false => {
                    tracing::error!(%directory, "the NAT log is full of what an output has not taken");
                }
            }
        }
    }

    /// Says on disk that this run lives. It may be lost with the machine's power.
    fn sign(&mut self) {
        let is_due = self.stamped.is_none_or(|at| at.elapsed() >= ALIVE_INTERVAL);
        if is_due {
            self.stamped = Some(Instant::now());
            let _ = fs::write(&self.stamp, unix_ms().to_string());
        }
    }
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
