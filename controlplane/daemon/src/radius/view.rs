//! What operators see of RADIUS.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bng_aaa::radius::dynamic::{self, Counts};
use bng_aaa::radius::terms::Unusable;
use bng_aaa::radius::{Client, Discard, Stats};
use serde::Serialize;
use utoipa::ToSchema;

use super::sockets::Sockets;
use super::spool::Spool;

/// What happened with a server, in authentication or in accounting.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ExchangeView {
    /// UDP port.
    pub port: u16,
    /// Whether it counts as dead: it is asked last.
    pub is_dead: bool,
    /// Requests under way to it.
    pub pending: usize,
    /// Requests it was asked.
    pub requests: u64,
    /// Times one was sent again.
    pub retransmissions: u64,
    /// Answers.
    pub answers: u64,
    /// Requests it was given up for.
    pub timeouts: u64,
    /// Times it was declared dead.
    pub deaths: u64,
    /// Datagrams of it that were discarded, by reason.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub discarded: BTreeMap<&'static str, u64>,
    /// Sum of the times of `timed` answers, microseconds.
    pub round_trips_us: u64,
    /// Answers to requests that were sent once.
    pub timed: u64,
}

impl ExchangeView {
    fn show(&mut self, stats: &Stats) {
        let reasons = Discard::ALL.iter().map(|it| it.label());
        *self = Self {
            port: self.port,
            is_dead: stats.is_dead,
            pending: stats.pending,
            requests: stats.requests,
            retransmissions: stats.retransmissions,
            answers: stats.answers,
            timeouts: stats.timeouts,
            deaths: stats.deaths,
            discarded: reasons.zip(stats.discarded).collect(),
            round_trips_us: stats.round_trips.as_micros().try_into().unwrap_or(u64::MAX),
            timed: stats.timed,
        };
    }
}

/// A server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ServerView {
    /// Its address.
    pub address: String,
    /// Authentication.
    pub authentication: ExchangeView,
    /// Accounting; nothing is counted unless it is configured.
    pub accounting: ExchangeView,
}

/// Accounting messages on their way through the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct SpoolView {
    /// Messages that no server has answered yet.
    pub waiting: usize,
    /// Their bytes on disk.
    pub waiting_bytes: u64,
    /// Messages taken.
    pub taken: u64,
    /// Messages a server has answered.
    pub delivered: u64,
    /// Interim updates given up because the spool was full.
    pub interims_given_up: u64,
    /// Interim updates not even written, because the disk did not keep up.
    pub interims_passed_over: u64,
    /// Starts given up because the spool was full of stops.
    pub starts_given_up: u64,
    /// Stops that were on disk already when a restarted control plane found their session.
    pub repeated_stops: u64,
    /// Starts that were on disk already when a restarted control plane found their session.
    pub repeated_starts: u64,
    /// Sessions that are over and keep their session ids, for more than a second already: their stop is not on disk, and no
    /// server has answered it.
    pub held_sessions: usize,
    /// Writes that failed.
    pub write_errors: u64,
    /// Unfinished ends of files, as a crash leaves them.
    pub torn: u64,
    /// Messages that could not be read back or put into a packet.
    pub lost: u64,
    /// Messages with a name that no attribute can hold.
    pub unwritable: u64,
}

/// CoA-Requests and Disconnect-Requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct DynamicView {
    /// CoA-Requests that were done.
    pub changed: u64,
    /// Disconnect-Requests that were done.
    pub ended: u64,
    /// Requests that were refused, by Error-Cause.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub refused: BTreeMap<&'static str, u64>,
    /// Requests that came again and got the answer they had got.
    pub repeated: u64,
    /// Requests without an answer, by reason.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub discarded: BTreeMap<&'static str, u64>,
}

/// RADIUS as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct RadiusView {
    /// Servers, the preferred one first.
    pub servers: Vec<ServerView>,
    /// Access-Requests that wait for an identifier.
    pub queued: usize,
    /// Access-Requests that found no room to wait.
    pub queue_full: u64,
    /// Access-Requests that could not be sent, for example for want of a route.
    pub send_failed: u64,
    /// Access-Accepts whose terms cannot be met, by the attribute to blame.
    #[schema(value_type = BTreeMap<String, u64>)]
    pub unusable_terms: BTreeMap<&'static str, u64>,
    /// Accounting messages; all zero unless accounting is configured.
    pub spool: SpoolView,
    /// Dynamic authorization; nothing is counted unless it is configured.
    pub dynamic: DynamicView,
}

impl RadiusView {
    pub(super) fn new(radius: &bng_config::Radius) -> Self {
        let exchange = |port| ExchangeView {
            port,
            ..ExchangeView::default()
        };
        let servers = radius.servers.iter().map(|server| ServerView {
            address: server.address.to_string(),
            authentication: exchange(server.auth_port),
            accounting: exchange(server.accounting_port),
        });
        Self {
            servers: servers.collect(),
            ..Self::default()
        }
    }

    /// Shows other servers from now on, of which nothing is known yet.
    pub(super) fn show_servers(&mut self, radius: &bng_config::Radius) {
        self.servers = Self::new(radius).servers;
    }

    pub(super) fn show_authentication<T>(
        &mut self,
        (servers, client, sockets): (&[SocketAddr], &Client<T>, &Sockets),
    ) {
        for (at, stats) in servers.iter().zip(client.stats()) {
            if let Some(exchange) = self.exchange(*at, |it| &mut it.authentication) {
                exchange.show(&stats);
            }
        }
        (self.queued, self.queue_full) = client.queued();
        self.send_failed = sockets.failed();
    }

    /// The one with a server; none while a thread has not heard yet that there are others.
    fn exchange(
        &mut self,
        at: SocketAddr,
        of: fn(&mut ServerView) -> &mut ExchangeView,
    ) -> Option<&mut ExchangeView> {
        let address = at.ip().to_string();
        let mut servers = self.servers.iter_mut();
        servers.find_map(|server| {
            let is_same = server.address == address;
            let exchange = of(server);
            (is_same && exchange.port == at.port()).then_some(exchange)
        })
    }

    pub(super) fn show_accounting<T>(
        &mut self,
        (servers, client, _): (&[SocketAddr], &Client<T>, &Sockets),
        spool: &Spool,
    ) {
        for (at, stats) in servers.iter().zip(client.stats()) {
            if let Some(exchange) = self.exchange(*at, |it| &mut it.accounting) {
                exchange.show(&stats);
            }
        }
        let (waiting, waiting_bytes) = spool.waiting();
        let counts = spool.counts();
        self.spool = SpoolView {
            waiting,
            waiting_bytes,
            taken: counts.taken,
            delivered: counts.done,
            interims_given_up: counts.interims_given_up,
            starts_given_up: counts.starts_given_up,
            repeated_stops: counts.repeated_stops,
            repeated_starts: counts.repeated_starts,
            write_errors: counts.write_errors,
            torn: counts.torn,
            lost: counts.lost,
            ..self.spool
        };
    }

    pub(super) fn show_dynamic(&mut self, counts: &Counts) {
        let reasons = dynamic::Discard::ALL.iter().map(|it| it.label());
        self.dynamic = DynamicView {
            changed: counts.changed,
            ended: counts.ended,
            refused: (counts.refused.iter())
                .map(|(name, count)| (*name, *count))
                .collect(),
            repeated: counts.repeated,
            discarded: reasons.zip(counts.discarded).collect(),
        };
    }

    pub(super) fn count_unwritable(&mut self) {
        self.spool.unwritable += 1;
    }

    pub(super) fn count_unusable(&mut self, unusable: Unusable) {
        *self.unusable_terms.entry(unusable.0).or_default() += 1;
    }
}
