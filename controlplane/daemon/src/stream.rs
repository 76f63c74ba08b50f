//! What happens, as it happens, for whoever listens: a bounded memory of the latest events that readers follow at their own
//! speed. The driver only puts events in; how many read, and how slowly, costs it nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bng_aaa::FramedRoute;
use bng_shm::StatsCopy;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::publish::table_vlans;
use crate::reload::ReloadView;
use crate::sessions::Live;
use crate::settings::Settings;
use crate::views::{EndedView, SessionView, session_id, text};

/// Events that are remembered: for readers that come back, and for slow ones.
pub(crate) const REMEMBERED: usize = 1_000;
/// Streams at a time.
pub(crate) const STREAMS_MAX: usize = 16;
/// What the latest id becomes when no event comes any more.
const CLOSED: u64 = u64::MAX;

/// A session whose network phase has opened.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SessionUp {
    /// As in the list; the counters are those of before, if it was up already.
    #[serde(flatten)]
    pub session: SessionView,
    /// TR-101 Agent-Circuit-Id.
    pub circuit_id: String,
    /// TR-101 Agent-Remote-Id.
    pub remote_id: String,
}

/// A subscriber who was refused.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct AuthFailure {
    /// Why: as in `bng_control_events_total`.
    pub cause: &'static str,
    /// Access port and session id of the session that ends now.
    pub id: String,
    /// The name it gave.
    pub user: String,
    /// Client MAC address.
    pub mac: String,
    /// Name of the access port.
    pub port: String,
    /// S-VLAN id, if the frames have a tag.
    pub s_vlan: Option<u16>,
    /// C-VLAN id, if the frames have two tags.
    pub c_vlan: Option<u16>,
    /// TR-101 Agent-Circuit-Id.
    pub circuit_id: String,
    /// TR-101 Agent-Remote-Id.
    pub remote_id: String,
}

/// A network behind a subscriber that its session is left without.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct RouteRefused {
    /// Why: as in `bng_control_events_total`.
    pub cause: &'static str,
    /// The network.
    pub route: String,
    /// Access port and session id.
    pub id: String,
    /// Name of the subscriber.
    pub user: String,
    /// Client MAC address.
    pub mac: String,
    /// S-VLAN id, if the frames have a tag.
    pub s_vlan: Option<u16>,
    /// C-VLAN id, if the frames have two tags.
    pub c_vlan: Option<u16>,
}

impl RouteRefused {
    pub(crate) fn new(
        settings: &Settings,
        live: &Live,
        route: &FramedRoute,
        cause: &'static str,
    ) -> Self {
        let vlans = table_vlans(&live.vlans);
        Self {
            cause,
            route: format!("{}/{}", route.network, route.length),
            id: session_id(settings, live),
            user: text(&live.user),
            mac: live.line.mac.to_string(),
            s_vlan: vlans.s_vlan,
            c_vlan: vlans.c_vlan,
        }
    }
}

impl SessionUp {
    pub(crate) fn new(settings: &Settings, live: &Live, stats: &StatsCopy) -> Self {
        Self {
            session: SessionView::new(settings, live, stats),
            circuit_id: text(&live.circuit_id),
            remote_id: text(&live.remote_id),
        }
    }
}

impl AuthFailure {
    pub(crate) fn new(settings: &Settings, live: &Live, cause: &'static str) -> Self {
        let vlans = table_vlans(&live.vlans);
        Self {
            cause,
            id: session_id(settings, live),
            user: text(&live.user),
            mac: live.line.mac.to_string(),
            port: settings.access_name(live.session.port.0).to_owned(),
            s_vlan: vlans.s_vlan,
            c_vlan: vlans.c_vlan,
            circuit_id: text(&live.circuit_id),
            remote_id: text(&live.remote_id),
        }
    }
}

/// Something that happened.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Notice {
    /// A session's network phase has opened, for the first time or after a renegotiation.
    SessionUp(Box<SessionUp>),
    /// A session is over and everything it held is free.
    SessionDown(Box<EndedView>),
    /// A subscriber was refused.
    AuthFailure(Box<AuthFailure>),
    /// bng-dataplane has started.
    DataplaneUp {
        /// Its process id.
        pid: u32,
    },
    /// bng-dataplane has ended.
    DataplaneDown {},
    /// Another configuration is in force.
    Reload(Box<ReloadView>),
    /// A session is left without a network that AAA says lies behind it.
    FramedRouteRefused(Box<RouteRefused>),
}

/// The names of all kinds of events, in the order of [`Notice`].
pub(crate) const KINDS: [&str; 7] = [
    "session_up",
    "session_down",
    "auth_failure",
    "dataplane_up",
    "dataplane_down",
    "reload",
    "framed_route_refused",
];

impl Notice {
    const fn kind(&self) -> usize {
        match self {
            Self::SessionUp(_) => 0,
            Self::SessionDown(_) => 1,
            Self::AuthFailure(_) => 2,
            Self::DataplaneUp { .. } => 3,
            Self::DataplaneDown {} => 4,
            Self::Reload(_) => 5,
            Self::FramedRouteRefused(_) => 6,
        }
    }
}

/// An event with its name and time.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    #[serde(skip)]
    pub(crate) id: u64,
    pub(crate) event: &'static str,
    pub(crate) unix_ms: u64,
    #[serde(flatten)]
    notice: Notice,
}

#[derive(Debug, Default)]
struct Past {
    entries: VecDeque<Arc<Entry>>,
    counts: [u64; KINDS.len()],
}

#[derive(Debug)]
struct Shared {
    /// Tells the ids of this process from those of an earlier one.
    run: u64,
    past: Mutex<Past>,
    latest: watch::Sender<u64>,
    streams: AtomicUsize,
    cut_off: AtomicU64,
}

/// All events of this process.
#[derive(Debug, Clone)]
pub struct Feed(Arc<Shared>);

/// What metrics show of the events.
#[derive(Debug, Clone, Default)]
pub struct FeedStatus {
    /// Events by kind since the start.
    pub events: Vec<(&'static str, u64)>,
    /// Streams that are open.
    pub streams: usize,
    /// Streams that were cut off because their readers were too slow.
    pub cut_off: u64,
}

impl Feed {
    /// No events yet; `run` is part of every id, and different for every process.
    #[must_use]
    pub fn new(run: u64) -> Self {
        Self(Arc::new(Shared {
            run,
            past: Mutex::default(),
            latest: watch::Sender::new(0),
            streams: AtomicUsize::new(0),
            cut_off: AtomicU64::new(0),
        }))
    }

    /// Puts an event in, in place of the oldest if need be.
    pub(crate) fn tell(&self, unix_ms: u64, notice: Notice) {
        let id = {
            let mut past = self.0.past.lock();
            let kind = notice.kind();
            past.counts[kind] += 1;
            let id = past.counts.iter().sum();
            if past.entries.len() >= REMEMBERED {
                past.entries.pop_front();
            }
            past.entries.push_back(Arc::new(Entry {
                id,
                event: KINDS[kind],
                unix_ms,
                notice,
            }));
            id
        };
        self.0.latest.send_replace(id);
    }

    /// Ends all streams once they have given what there is.
    pub(crate) fn close(&self) {
        self.0.latest.send_replace(CLOSED);
    }

    /// For metrics.
    pub(crate) fn status(&self) -> FeedStatus {
        let counts = self.0.past.lock().counts;
        FeedStatus {
            events: KINDS.into_iter().zip(counts).collect(),
            streams: self.0.streams.load(Ordering::Relaxed),
            cut_off: self.0.cut_off.load(Ordering::Relaxed),
        }
    }

    /// The id as readers see and repeat it.
    pub(crate) fn name(&self, id: u64) -> String {
        format!("{:x}-{id}", self.0.run)
    }

    /// A reader: from the event after `last` on, or from now on. `None` when there are too many.
    ///
    /// A `last` of an earlier process, of none, or of an event that never was, stands for everything that is remembered.
    pub(crate) fn read(&self, last: Option<&str>) -> Option<Reading> {
        let streams = &self.0.streams;
        let more = |open| (open < STREAMS_MAX).then_some(open + 1);
        (streams.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)).ok()?;
        let mut latest = self.0.latest.subscribe();
        let newest = (self.0.past.lock().entries.back()).map_or(0, |entry| entry.id);
        let after = match last {
            // An end that came already is noticed by the first `next`.
            None => match *latest.borrow_and_update() {
                CLOSED => 0,
                id => id,
            },
            Some(name) => name
                .split_once('-')
                .filter(|(run, _)| u64::from_str_radix(run, 16) == Ok(self.0.run))
                .and_then(|(_, id)| id.parse().ok())
                .filter(|id| *id <= newest)
                .unwrap_or(0),
        };
        // From the beginning nothing can be missing that was ever to be had.
        let is_new = last.is_some() && after == 0;
        Some(Reading {
            feed: self.clone(),
            latest,
            after,
            is_new,
        })
    }
}

/// What a reader gets next.
#[derive(Debug)]
pub(crate) enum Next {
    /// An event.
    Event(Arc<Entry>),
    /// The reader was too slow: events are gone that it has not seen.
    Lost {
        /// How many.
        missed: u64,
    },
    /// Nothing comes any more.
    End,
}

/// One reader's place.
#[derive(Debug)]
pub(crate) struct Reading {
    feed: Feed,
    latest: watch::Receiver<u64>,
    after: u64,
    is_new: bool,
}

impl Reading {
    /// Waits for the next event.
    pub(crate) async fn next(&mut self) -> Next {
        loop {
            if let Some(next) = self.try_next() {
                return next;
            }
            if *self.latest.borrow_and_update() == CLOSED {
                return Next::End;
            }
            // The sender lives as long as the feed this reader holds.
            let _ = self.latest.changed().await;
        }
    }

    fn try_next(&mut self) -> Option<Next> {
        let past = self.feed.0.past.lock();
        let oldest = past.entries.front()?.id;
        let missed = oldest.saturating_sub(self.after + 1);
        if missed > 0 && !self.is_new {
            self.feed.0.cut_off.fetch_add(1, Ordering::Relaxed);
            return Some(Next::Lost { missed });
        }
        self.is_new = false;
        let at = usize::try_from((self.after + 1).saturating_sub(oldest)).ok()?;
        let entry = past.entries.get(at)?.clone();
        self.after = entry.id;
        Some(Next::Event(entry))
    }

    /// The name of an event of this feed.
    pub(crate) fn name(&self, entry: &Entry) -> String {
        self.feed.name(entry.id)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.feed.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tell(feed: &Feed, count: u64) {
        for n in 0..count {
            feed.tell(n, Notice::DataplaneDown {});
        }
    }

    fn id(next: &Option<Next>) -> u64 {
        match next {
            Some(Next::Event(entry)) => entry.id,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_reader_gets_every_event_once_from_where_it_left_off() {
        let feed = Feed::new(0xab);
        tell(&feed, 3);
        let mut now = feed.read(None).unwrap();
        assert!(now.try_next().is_none(), "only what comes");
        tell(&feed, 1);
        assert_eq!(id(&now.try_next()), 4);
        assert!(now.try_next().is_none());
        let mut back = feed.read(Some("ab-2")).unwrap();
        assert_eq!([id(&back.try_next()), id(&back.try_next())], [3, 4]);
        for other_run in [
            "aa-2",
            "nonsense",
            "ab-x",
            "ab-5",
            "ab-18446744073709551615",
            "",
        ] {
            let mut all = feed.read(Some(other_run)).unwrap();
            assert_eq!(id(&all.try_next()), 1, "{other_run}");
        }
    }

    #[test]
    fn a_reader_that_is_too_slow_is_told_and_counted() {
        let feed = Feed::new(1);
        tell(&feed, 1);
        let mut slow = feed.read(None).unwrap();
        tell(&feed, REMEMBERED as u64);
        assert_eq!(id(&slow.try_next()), 2, "the memory just reaches");
        tell(&feed, 5);
        assert!(matches!(slow.try_next(), Some(Next::Lost { missed: 4 })));
        assert_eq!(feed.status().cut_off, 1);
        let mut back = feed.read(Some("1-2")).unwrap();
        assert!(matches!(back.try_next(), Some(Next::Lost { missed: 4 })));
        let mut whole = feed.read(Some("0-2")).unwrap();
        assert_eq!(id(&whole.try_next()), 7, "an earlier process: all there is");
    }

    #[test]
    fn streams_are_counted_and_limited() {
        let feed = Feed::new(1);
        let mut open: Vec<_> = (0..STREAMS_MAX).map(|_| feed.read(None).unwrap()).collect();
        assert!(feed.read(None).is_none());
        assert_eq!(feed.status().streams, STREAMS_MAX);
        open.pop();
        assert!(feed.read(None).is_some());
    }

    #[tokio::test]
    async fn a_reader_waits_for_the_next_event_and_for_the_end() {
        let feed = Feed::new(1);
        let mut reading = feed.read(None).unwrap();
        let told = feed.clone();
        let other = tokio::spawn(async move {
            told.tell(7, Notice::DataplaneUp { pid: 9 });
            told.close();
        });
        let Next::Event(entry) = reading.next().await else {
            panic!("an event first")
        };
        let json = serde_json::to_string(&*entry).unwrap();
        assert_eq!(json, r#"{"event":"dataplane_up","unix_ms":7,"pid":9}"#);
        assert!(matches!(reading.next().await, Next::End));
        other.await.unwrap();
        let mut late = feed.read(None).unwrap();
        assert!(matches!(late.next().await, Next::Event(_) | Next::End));
    }
}
