//! The thread that brings accounting messages to disk, and from there to a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bng_aaa::accounting::{Accounting, Status};
use bng_aaa::radius::client::Outcome;
use bng_aaa::radius::{Draft, Kind as RequestKind, Nas};
use bng_shm::SlotIndex;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::exchange::Exchanges;
use super::spool::{Kind, Message, Spool};
use super::view::RadiusView;
use super::{BUSY_RETRY, Clock, Courier, Servers, VIEW_INTERVAL};
use crate::request::Request;

/// Messages taken before datagrams have their turn; all of them share one wait for the disk.
const BATCH: usize = 512;
/// Messages under way at most while a server answers.
pub(super) const WINDOW: usize = 512;
/// Time until the next attempt when none does.
const PAUSE: Duration = Duration::from_secs(5);

/// What the driver tells.
#[derive(Debug)]
pub(super) enum Told {
    /// Of a session; with a slot, the driver waits until it is on disk or a server has answered it.
    Event(Box<Accounting>, Option<SlotIndex>),
    /// The gateway has begun without any session.
    On { accounting_id: u64, unix_s: u64 },
    /// Others are to be told from now on, and this much may wait on disk, bytes.
    Servers(Box<Servers<u64>>, u64),
}

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) nas: Nas,
    pub(super) exchanges: Exchanges<u64>,
    pub(super) spool: Spool,
    pub(super) told: mpsc::UnboundedReceiver<Told>,
    /// Messages in `told`.
    pub(super) depth: Arc<AtomicUsize>,
    pub(super) driver: Courier,
    pub(super) view: Arc<Mutex<RadiusView>>,
}

impl Worker {
    /// Until the driver is gone and has nothing to tell any more. What waits then is sent by the next run.
    pub(super) async fn run(mut self) {
        let clock = Clock::start();
        let mut shown = Instant::now();
        let mut batch = Vec::with_capacity(BATCH);
        let (mut under_way, mut window) = (0, WINDOW);
        let mut resume = Instant::now();
        loop {
            let mut wake = shown + VIEW_INTERVAL;
            if let Some(due) = self.exchanges.poll_timeout(&clock) {
                wake = wake.min(due);
            }
            if self.driver.is_waiting() {
                wake = wake.min(Instant::now() + BUSY_RETRY);
            }
            tokio::select! {
                count = self.told.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return self.spool.flush();
                    }
                    self.depth.fetch_sub(count, Ordering::Relaxed);
                    if self.keep(&mut batch) {
                        (window, resume) = (WINDOW, Instant::now());
                    }
                }
                datagram = self.exchanges.receive() => {
                    self.exchanges.handle_datagram(datagram, &clock);
                }
                () = sleep_until(wake) => {}
            }
            self.exchanges.handle_timeout(&clock);
            while let Some((number, outcome, is_now)) = self.exchanges.poll_outcome() {
                under_way -= 1;
                match outcome {
                    Outcome::Answer { .. } => {
                        if is_now {
                            window = WINDOW;
                        }
                        self.spool.done(number);
                    }
                    // Of servers that are not asked any more.
                    Outcome::Silence | Outcome::Full if !is_now => self.spool.retry(number),
                    Outcome::Silence | Outcome::Full => {
                        // One at a time finds out when somebody answers again.
                        (window, resume) = (1, Instant::now() + PAUSE);
                        self.spool.retry(number);
                    }
                    Outcome::TooLong => self.spool.give_up(number),
                }
            }
            while under_way < window && Instant::now() >= resume {
                let Some((number, message)) = self.spool.next() else {
                    break;
                };
                let draft = Draft {
                    kind: RequestKind::Accounting,
                    password: None,
                    attributes: message.attributes,
                    event_unix_s: Some(message.unix_s),
                };
                under_way += 1;
                self.exchanges.handle_request(number, draft, &clock);
            }
            self.exchanges.transmit().await;
            self.spool.commit();
            while let Some(slot) = self.spool.poll_released() {
                self.driver.send(Request::AccountingKept(slot));
            }
            if !self.driver.flush() {
                return;
            }
            if shown.elapsed() >= VIEW_INTERVAL {
                shown = Instant::now();
                let view = &mut *self.view.lock();
                view.show_accounting(self.exchanges.shown(), &self.spool);
            }
        }
    }

    /// Writes messages down; true when there are other servers now.
    fn keep(&mut self, batch: &mut Vec<Told>) -> bool {
        let mut has_others = false;
        for told in batch.drain(..) {
            let mut slot = None;
            let (kind, accounting_id, unix_s, attributes) = match told {
                Told::Event(event, waiting) => {
                    slot = waiting;
                    let kind = match event.status {
                        Status::Start => Kind::Start,
                        Status::Interim => Kind::Interim,
                        Status::Stop(_) => Kind::Stop,
                    };
                    let attributes = self.nas.accounting(&event);
                    (kind, event.accounting_id, event.event_unix_s, attributes)
                }
                Told::On {
                    accounting_id,
                    unix_s,
                } => {
                    let attributes = self.nas.accounting_on(accounting_id, unix_s);
                    (Kind::On, accounting_id, unix_s, attributes)
                }
                Told::Servers(servers, limit) => {
                    self.nas = servers.nas;
                    self.exchanges.replace(servers.exchange);
                    self.spool.set_limit(limit);
                    has_others = true;
                    continue;
                }
            };
            match attributes {
                Ok(attributes) => {
                    let message = Message {
                        kind,
                        accounting_id,
                        unix_s,
                        attributes,
                    };
                    self.spool.add(message, slot);
                }
                Err(_) => {
                    tracing::warn!(
                        accounting_id,
                        "an accounting message with a name that no attribute can hold"
                    );
                    self.view.lock().count_unwritable();
                    if let Some(slot) = slot {
                        self.driver.send(Request::AccountingKept(slot));
                    }
                }
            }
        }
        self.spool.commit();
        has_others
    }
}
