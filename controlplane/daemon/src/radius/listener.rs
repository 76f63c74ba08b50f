//! The thread that listens to CoA-Requests and Disconnect-Requests.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bng_aaa::radius::Nas;
use bng_aaa::radius::dynamic::{Action, Listener, Ticket, Wish};
use bng_aaa::radius::packet::LONGEST;
use bng_aaa::{Refusal, Selector};
use parking_lot::Mutex;
use secrecy::SecretString;
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{interval, timeout};

use super::VIEW_INTERVAL;
use super::view::RadiusView;
use crate::request::{AskError, DriverHandle, Request};

/// How long the driver may take; workers confirm a change within a fraction of it.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Answers of the driver that may wait.
const ANSWERS_WAITING: usize = 1_024;

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) listener: Listener,
    pub(super) socket: std::net::UdpSocket,
    pub(super) driver: DriverHandle,
    pub(super) view: Arc<Mutex<RadiusView>>,
    pub(super) others: mpsc::UnboundedReceiver<Clients>,
}

/// Who may ask from now on.
#[derive(Debug)]
pub(super) struct Clients {
    pub(super) clients: Vec<(IpAddr, SecretString)>,
    pub(super) nas: Nas,
    pub(super) require_event_timestamp: bool,
}

type Answer = (Ticket, Result<(), Refusal>);

impl Worker {
    /// Until the driver is gone.
    pub(super) async fn run(self) {
        let Self {
            mut listener,
            socket,
            driver,
            view,
            mut others,
        } = self;
        let socket = match UdpSocket::from_std(socket) {
            Ok(socket) => socket,
            Err(error) => return tracing::error!(%error, "dynamic authorization"),
        };
        let (sender, mut answers) = mpsc::channel::<Answer>(ANSWERS_WAITING);
        let mut buffer = vec![0; LONGEST];
        let mut tick = interval(VIEW_INTERVAL);
        loop {
            let reply = tokio::select! {
                received = socket.recv_from(&mut buffer) => match received {
                    Ok((length, from)) => {
                        let bytes = buffer.get(..length).unwrap_or(&[]);
                        let unix_s = bng_shm::unix_ms() / 1_000;
                        match listener.handle_datagram(from, bytes, unix_s) {
                            Ok(Action::Reply(bytes)) => Some((from, bytes)),
                            Ok(Action::Do { ticket, selector, wish }) => {
                                match tell(&driver, &sender, ticket, selector, wish) {
                                    Ok(()) => None,
                                    Err(AskError::Gone) => return,
                                    Err(_) => listener.answer(ticket, Err(Refusal::ResourcesUnavailable)),
                                }
                            }
                            Err(discard) => {
                                tracing::debug!(%from, reason = discard.label(), "dynamic authorization: request discarded");
                                None
                            }
                        }
                    }
                    // ICMP errors about answers come back here.
                    Err(error) => {
                        tracing::debug!(%error, "dynamic authorization");
                        None
                    }
                },
                Some(other) = others.recv() => {
                    listener.reconfigure(other.clients, other.nas, other.require_event_timestamp);
                    None
                }
                Some((ticket, result)) = answers.recv() => listener.answer(ticket, result),
                _ = tick.tick() => {
                    view.lock().show_dynamic(listener.counts());
                    None
                }
            };
            if let Some((to, bytes)) = reply {
                send(&socket, to, &bytes).await;
            }
        }
    }
}

async fn send(socket: &UdpSocket, to: SocketAddr, bytes: &[u8]) {
    if let Err(error) = socket.send_to(bytes, to).await {
        tracing::debug!(%to, %error, "dynamic authorization: answer could not be sent");
    }
}

/// Asks the driver; its answer comes by `answers`.
fn tell(
    driver: &DriverHandle,
    answers: &mpsc::Sender<Answer>,
    ticket: Ticket,
    selector: Box<Selector>,
    wish: Wish,
) -> Result<(), AskError> {
    let (reply, result) = oneshot::channel();
    driver.tell(match wish {
        Wish::Change(change) => Request::Authorize(selector, change, reply),
        Wish::End => Request::Disconnect(selector, reply),
    })?;
    let answers = answers.clone();
    tokio::spawn(async move {
        let result = match timeout(ANSWER_LIMIT, result).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) | Err(_) => Err(Refusal::ResourcesUnavailable),
        };
        let _ = answers.send((ticket, result)).await;
    });
    Ok(())
}
