//! The thread that brings accounting messages to disk, and from there to a server.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bng_aaa::accounting::{Accounting, Status};
use bng_aaa::radius::client::Outcome;
use bng_aaa::radius::{Client, Draft, Kind as RequestKind, Nas};
use bng_shm::SlotIndex;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::sockets::Sockets;
use super::spool::{Kind, Message, Spool};
use super::view::RadiusView;
use super::{BUSY_RETRY, Clock, Courier, VIEW_INTERVAL};
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
}

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) client: Client<u64>,
    pub(super) nas: Nas,
    pub(super) servers: Vec<SocketAddr>,
    pub(super) source: Option<IpAddr>,
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
        let mut sockets = Sockets::new(self.servers.clone(), self.source);
        let mut shown = Instant::now();
        let mut batch = Vec::with_capacity(BATCH);
        let (mut under_way, mut window) = (0, WINDOW);
        let mut resume = Instant::now();
        loop {
            let mut wake = shown + VIEW_INTERVAL;
            if let Some(due) = self.client.poll_timeout() {
                wake = wake.min(clock.instant(due));
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
                    self.keep(&mut batch);
                }
                datagram = sockets.receive() => {
                    let now = clock.now();
                    let (server, socket) = (datagram.server, datagram.socket);
                    let result = (self.client).handle_datagram(server, socket, &datagram.bytes, now);
                    if let Err(discard) = result {
                        let server = self.servers.get(server);
                        tracing::debug!(?server, reason = discard.label(), "RADIUS answer discarded");
                    }
                }
                () = sleep_until(wake) => {}
            }
            self.client.handle_timeout(clock.now());
            while let Some((number, outcome)) = self.client.poll_outcome() {
                under_way -= 1;
                match outcome {
                    Outcome::Answer { .. } => {
                        window = WINDOW;
                        self.spool.done(number);
                    }
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
                self.client.handle_request(number, draft, clock.now());
            }
            while let Some(transmit) = self.client.poll_transmit() {
                sockets.send(&transmit).await;
            }
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
                view.show_accounting(&self.client, &self.spool);
            }
        }
    }

    /// Writes messages down.
    fn keep(&mut self, batch: &mut Vec<Told>) {
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
    }
}
