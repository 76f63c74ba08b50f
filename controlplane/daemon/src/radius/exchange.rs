//! Requests to servers over their sockets, and the change to other servers: those take over for new requests, and requests under
//! way end with the old ones.

use std::net::{IpAddr, SocketAddr};
use std::task::Poll;

use bng_aaa::radius::client::Outcome;
use bng_aaa::radius::{Client, Draft};
use tokio::time::Instant;

use super::Clock;
use super::sockets::{Datagram, Sockets};

/// The servers of one configuration.
#[derive(Debug)]
pub(super) struct Exchange<T> {
    client: Client<T>,
    servers: Vec<SocketAddr>,
    sockets: Sockets,
}

impl<T> Exchange<T> {
    /// `source` is the address requests are sent from; without it the kernel chooses.
    pub(super) fn new(client: Client<T>, servers: Vec<SocketAddr>, source: Option<IpAddr>) -> Self {
        Self {
            client,
            sockets: Sockets::new(servers.clone(), source),
            servers,
        }
    }
}

/// The servers of now, and those before as long as they have requests under way.
#[derive(Debug)]
pub(super) struct Exchanges<T> {
    now: Exchange<T>,
    before: Vec<Exchange<T>>,
}

impl<T> Exchanges<T> {
    pub(super) const fn new(now: Exchange<T>) -> Self {
        Self {
            now,
            before: Vec::new(),
        }
    }

    /// Has others take over.
    pub(super) fn replace(&mut self, next: Exchange<T>) {
        let before = std::mem::replace(&mut self.now, next);
        self.before.push(before);
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Exchange<T>> {
        std::iter::once(&mut self.now).chain(&mut self.before)
    }

    pub(super) fn handle_request(&mut self, tag: T, draft: Draft, clock: &Clock) {
        self.now.client.handle_request(tag, draft, clock.now());
    }

    /// Waits for a datagram; it goes into [`Exchanges::handle_datagram`].
    pub(super) async fn receive(&mut self) -> (usize, Datagram) {
        std::future::poll_fn(|context| {
            for (at, exchange) in self.all().enumerate() {
                if let Poll::Ready(datagram) = exchange.sockets.poll_receive(context) {
                    return Poll::Ready((at, datagram));
                }
            }
            Poll::Pending
        })
        .await
    }

    pub(super) fn handle_datagram(&mut self, (at, datagram): (usize, Datagram), clock: &Clock) {
        let Some(exchange) = self.all().nth(at) else {
            return;
        };
        let Datagram {
            server,
            socket,
            bytes,
        } = datagram;
        let result = (exchange.client).handle_datagram(server, socket, &bytes, clock.now());
        if let Err(discard) = result {
            let server = exchange.servers.get(server);
            tracing::debug!(?server, reason = discard.label(), "RADIUS answer discarded");
        }
    }

    pub(super) fn handle_timeout(&mut self, clock: &Clock) {
        for exchange in self.all() {
            exchange.client.handle_timeout(clock.now());
        }
    }

    /// When to call [`Exchanges::handle_timeout`].
    pub(super) fn poll_timeout(&mut self, clock: &Clock) -> Option<Instant> {
        let due = self.all().filter_map(|it| it.client.poll_timeout()).min();
        due.map(|due| clock.instant(due))
    }

    /// Takes what has come of a request, and whether it was put to the servers of now. Those of before that have nothing more to say
    /// are let go.
    pub(super) fn poll_outcome(&mut self) -> Option<(T, Outcome, bool)> {
        if let Some((tag, outcome)) = self.now.client.poll_outcome() {
            return Some((tag, outcome, true));
        }
        let mut before = self.before.iter_mut();
        if let Some((tag, outcome)) = before.find_map(|it| it.client.poll_outcome()) {
            return Some((tag, outcome, false));
        }
        self.before.retain(|it| !it.client.is_idle());
        None
    }

    /// Sends what is to be sent.
    pub(super) async fn transmit(&mut self) {
        for exchange in self.all() {
            while let Some(transmit) = exchange.client.poll_transmit() {
                exchange.sockets.send(&transmit).await;
            }
        }
    }

    /// The servers of now, for a picture of them.
    pub(super) const fn shown(&self) -> (&[SocketAddr], &Client<T>, &Sockets) {
        let Exchange {
            client,
            servers,
            sockets,
        } = &self.now;
        (servers.as_slice(), client, sockets)
    }
}
