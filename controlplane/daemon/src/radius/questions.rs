//! The thread that asks servers who may come in.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bng_aaa::radius::{Client, Nas};
use bng_aaa::{AuthRequest, RejectCause, RequestId, Verdict};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::sockets::Sockets;
use super::view::RadiusView;
use super::{BUSY_RETRY, Clock, Courier, VIEW_INTERVAL};
use crate::request::Request;

/// Questions taken before datagrams have their turn.
const BATCH: usize = 64;

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) client: Client<RequestId>,
    pub(super) nas: Nas,
    pub(super) servers: Vec<SocketAddr>,
    pub(super) source: Option<IpAddr>,
    pub(super) questions: mpsc::Receiver<AuthRequest>,
    pub(super) driver: Courier,
    pub(super) view: Arc<Mutex<RadiusView>>,
}

impl Worker {
    /// Until the driver is gone.
    pub(super) async fn run(mut self) {
        let clock = Clock::start();
        let mut sockets = Sockets::new(self.servers.clone(), self.source);
        let mut shown = Instant::now();
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let mut wake = shown + VIEW_INTERVAL;
            if let Some(due) = self.client.poll_timeout() {
                wake = wake.min(clock.instant(due));
            }
            if self.driver.is_waiting() {
                wake = wake.min(Instant::now() + BUSY_RETRY);
            }
            tokio::select! {
                count = self.questions.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return;
                    }
                    for question in batch.drain(..) {
                        self.ask(&question, &clock);
                    }
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
            while let Some(transmit) = self.client.poll_transmit() {
                sockets.send(&transmit).await;
            }
            self.report();
            if !self.driver.flush() {
                return;
            }
            if shown.elapsed() >= VIEW_INTERVAL {
                shown = Instant::now();
                let view = &mut *self.view.lock();
                view.show_authentication(&self.client, &sockets);
            }
        }
    }

    fn ask(&mut self, question: &AuthRequest, clock: &Clock) {
        match self.nas.access(question) {
            Ok(draft) => (self.client).handle_request(question.id, draft, clock.now()),
            // No server can know such a name.
            Err(_) => {
                let verdict = Verdict::Reject(RejectCause::UnknownUser);
                self.driver.send(Request::Verdict(question.id, verdict));
            }
        }
    }

    fn report(&mut self) {
        while let Some((id, outcome)) = self.client.poll_outcome() {
            let (verdict, unusable) = bng_aaa::radius::verdict(&outcome);
            if let Some(unusable) = unusable {
                tracing::warn!(%unusable, "a RADIUS server accepts a subscriber on terms that cannot be met");
                self.view.lock().count_unusable(unusable);
            }
            self.driver.send(Request::Verdict(id, verdict));
        }
    }
}
