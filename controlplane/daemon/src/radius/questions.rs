//! The thread that asks servers who may come in.

use std::sync::Arc;

use bng_aaa::{AuthRequest, RejectCause, RequestId, Verdict};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::exchange::Exchanges;
use super::view::RadiusView;
use super::{BUSY_RETRY, Clock, Courier, Servers, VIEW_INTERVAL};
use crate::request::Request;

/// Questions taken before datagrams have their turn.
const BATCH: usize = 64;

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) servers: Servers<RequestId>,
    pub(super) others: mpsc::UnboundedReceiver<Servers<RequestId>>,
    pub(super) questions: mpsc::Receiver<AuthRequest>,
    pub(super) driver: Courier,
    pub(super) view: Arc<Mutex<RadiusView>>,
}

impl Worker {
    /// Until the driver is gone.
    pub(super) async fn run(self) {
        let Self {
            servers,
            mut others,
            mut questions,
            mut driver,
            view,
        } = self;
        let clock = Clock::start();
        let mut nas = servers.nas;
        let mut exchanges = Exchanges::new(servers.exchange);
        let mut shown = Instant::now();
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let mut wake = shown + VIEW_INTERVAL;
            if let Some(due) = exchanges.poll_timeout(&clock) {
                wake = wake.min(due);
            }
            if driver.is_waiting() {
                wake = wake.min(Instant::now() + BUSY_RETRY);
            }
            tokio::select! {
                // Before the questions that come after it.
                biased;
                Some(servers) = others.recv() => {
                    nas = servers.nas;
                    exchanges.replace(servers.exchange);
                }
                count = questions.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        return;
                    }
                    for question in batch.drain(..) {
                        match nas.access(&question) {
                            Ok(draft) => exchanges.handle_request(question.id, draft, &clock),
                            // No server can know such a name.
                            Err(_) => {
                                let verdict = Verdict::Reject(RejectCause::UnknownUser);
                                driver.send(Request::Verdict(question.id, verdict));
                            }
                        }
                    }
                }
                datagram = exchanges.receive() => exchanges.handle_datagram(datagram, &clock),
                () = sleep_until(wake) => {}
            }
            exchanges.handle_timeout(&clock);
            exchanges.transmit().await;
            while let Some((id, outcome, _)) = exchanges.poll_outcome() {
                let (verdict, unusable) = bng_aaa::radius::verdict(&outcome);
                if let Some(unusable) = unusable {
                    tracing::warn!(%unusable, "a RADIUS server accepts a subscriber on terms that cannot be met");
                    view.lock().count_unusable(unusable);
                }
                driver.send(Request::Verdict(id, verdict));
            }
            if !driver.flush() {
                return;
            }
            if shown.elapsed() >= VIEW_INTERVAL {
                shown = Instant::now();
                view.lock().show_authentication(exchanges.shown());
            }
        }
    }
}
