//! Messages to the driver thread, and the handle REST and the netlink watcher hold.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bng_aaa::{Change, Refusal, RequestId, Selector, Verdict};
use bng_shm::{SlotIndex, Waker, monotonic_ms};
use parking_lot::RwLock;
use tokio::sync::oneshot;

use crate::kernel::Delta;
use crate::limits::LimitsChange;
use crate::lockouts::{LockoutView, Unlocked};
use crate::nat_log::Known;
use crate::policy_change::{ChangeError, ChangeReply, PolicyChange};
use crate::policy_view::{ConfiguredPolicyView, FilterView};
use crate::reload::{Order, OrderReply};
use crate::selection::{HistoryFilter, SessionFilter, Subscriber};
use crate::status::Status;
use crate::stream::Feed;
use crate::trace::{TooManyTraces, TraceCopy, TraceOrder, TraceView};
use crate::views::{EndedView, Page, SessionDetail, SessionView};

/// Requests that may wait for the driver.
const WAITING_MAX: usize = 1_024;
/// How long an answer may take before the driver counts as stuck.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// A part of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Entries to leave out.
    pub offset: usize,
    /// Entries to give at most.
    pub limit: usize,
}

/// Something asked of the driver.
#[derive(Debug)]
pub enum Request {
    /// List sessions.
    Sessions(SessionFilter, Window, oneshot::Sender<Page<SessionView>>),
    /// Show a session.
    Session(SlotIndex, oneshot::Sender<Option<SessionDetail>>),
    /// End a session; the answer is whether there was one.
    End(SlotIndex, oneshot::Sender<bool>),
    /// Change a session's policy; the answer comes when every worker knows of it.
    ChangePolicy(SlotIndex, Box<PolicyChange>, ChangeReply),
    /// Change a session's limits of time and octets.
    ChangeLimits(
        SlotIndex,
        LimitsChange,
        oneshot::Sender<Result<(), ChangeError>>,
    ),
    /// List the policies of the configuration.
    Policies(oneshot::Sender<Vec<ConfiguredPolicyView>>),
    /// List the filters of the configuration.
    Filters(oneshot::Sender<Vec<FilterView>>),
    /// List ended sessions, latest first.
    History(HistoryFilter, Window, oneshot::Sender<Page<EndedView>>),
    /// Begin a trace.
    StartTrace(
        Box<TraceOrder>,
        oneshot::Sender<Result<TraceView, TooManyTraces>>,
    ),
    /// List the traces.
    Traces(oneshot::Sender<Vec<TraceView>>),
    /// A trace with its frames.
    Trace(u32, oneshot::Sender<Option<TraceCopy>>),
    /// End a trace; the answer is whether there was one.
    StopTrace(u32, oneshot::Sender<bool>),
    /// List the clients that are kept out because they keep failing.
    Lockouts(oneshot::Sender<Vec<LockoutView>>),
    /// Let clients in again, by port, MAC address or circuit.
    Unlock(Box<Subscriber>, oneshot::Sender<Unlocked>),
    /// Put another configuration in force, or say what that would do.
    Reload(Box<Order>, OrderReply),
    /// The state of everything else.
    Status(oneshot::Sender<Box<Status>>),
    /// What has changed in the kernel's tables; `None` when the watcher has lost its picture.
    Kernel(Option<Arc<Delta>>),
    /// A RADIUS server, or its silence, has answered a question.
    Verdict(RequestId, Verdict),
    /// The stop of the session in this slot is on disk, or a server has answered it: the slot may be freed.
    AccountingKept(SlotIndex),
    /// Change the terms of the one session that is meant (CoA-Request). The answer comes when it is done.
    Authorize(
        Box<Selector>,
        Box<Change>,
        oneshot::Sender<Result<(), Refusal>>,
    ),
    /// End the one session that is meant (Disconnect-Request).
    Disconnect(Box<Selector>, oneshot::Sender<Result<(), Refusal>>),
    /// Who has a public port, and the log that knows who had it.
    WhoHas(Ipv4Addr, u16, oneshot::Sender<Known>),
    /// End the thread.
    Stop,
}

/// What both ends look at without a message.
#[derive(Debug, Default)]
struct Pulse {
    pending: AtomicUsize,
    beat_ms: AtomicU64,
}

/// The driver's end.
#[derive(Debug)]
pub struct Inbox {
    requests: Receiver<Request>,
    pulse: Arc<Pulse>,
    feed: Feed,
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.feed.close();
    }
}

impl Inbox {
    /// The next request; [`Request::Stop`] when nobody can ask any more.
    pub fn take(&mut self) -> Option<Request> {
        match self.requests.try_recv() {
            Ok(request) => {
                self.pulse.pending.fetch_sub(1, Ordering::AcqRel);
                Some(request)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Request::Stop),
        }
    }

    /// Whether a request waits: the driver must not sleep then.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.pulse.pending.load(Ordering::Acquire) != 0
    }

    /// Where the driver tells what happens.
    pub(crate) const fn feed(&self) -> &Feed {
        &self.feed
    }

    /// Tells that the driver lives.
    pub fn beat(&self) {
        self.pulse.beat_ms.store(monotonic_ms(), Ordering::Relaxed);
    }
}

/// Why the driver gave no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// Too many requests wait.
    #[error("the driver has {WAITING_MAX} requests waiting")]
    Busy,
    /// No answer in time.
    #[error("the driver did not answer within {} s", ANSWER_LIMIT.as_secs())]
    Stuck,
    /// The thread is gone.
    #[error("the driver has ended")]
    Gone,
}

/// Asks the driver.
#[derive(Debug, Clone)]
pub struct DriverHandle {
    requests: SyncSender<Request>,
    waker: Waker,
    pulse: Arc<Pulse>,
    feed: Feed,
}

impl DriverHandle {
    /// A handle and the driver's end of it.
    #[must_use]
    pub fn new(waker: Waker) -> (Self, Inbox) {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let pulse = Arc::new(Pulse::default());
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let feed = Feed::new(now.unwrap_or_default().as_secs());
        let inbox = Inbox {
            requests: receiver,
            pulse: pulse.clone(),
            feed: feed.clone(),
        };
        inbox.beat();
        let handle = Self {
            requests: sender,
            waker,
            pulse,
            feed,
        };
        (handle, inbox)
    }

    /// Sends a request that needs no answer.
    ///
    /// # Errors
    /// [`AskError::Busy`] or [`AskError::Gone`].
    pub fn tell(&self, request: Request) -> Result<(), AskError> {
        self.try_tell(request).map_err(|(error, _)| error)
    }

    /// The same, and gives the request back that could not be sent.
    ///
    /// # Errors
    /// [`AskError::Busy`] or [`AskError::Gone`].
    #[allow(clippy::result_large_err)]
    pub fn try_tell(&self, request: Request) -> Result<(), (AskError, Request)> {
        // Counted first: a driver that sees the count and no request yet looks once more instead of sleeping.
        self.pulse.pending.fetch_add(1, Ordering::AcqRel);
        let sent = self.requests.try_send(request);
        if let Err(error) = sent {
            self.pulse.pending.fetch_sub(1, Ordering::AcqRel);
            return Err(match error {
                std::sync::mpsc::TrySendError::Full(request) => (AskError::Busy, request),
                std::sync::mpsc::TrySendError::Disconnected(request) => (AskError::Gone, request),
            });
        }
        self.waker.wake();
        Ok(())
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> Result<T, AskError> {
        let (sender, receiver) = oneshot::channel();
        self.tell(request(sender))?;
        match tokio::time::timeout(ANSWER_LIMIT, receiver).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(AskError::Gone),
            Err(_) => Err(AskError::Stuck),
        }
    }

    /// What happens.
    pub(crate) const fn feed(&self) -> &Feed {
        &self.feed
    }

    /// Age of the driver's last sign of life, milliseconds.
    #[must_use]
    pub fn beat_ms_ago(&self) -> u64 {
        monotonic_ms().saturating_sub(self.pulse.beat_ms.load(Ordering::Relaxed))
    }
}

/// The way from REST to the driver, which is not there before the shared memory could be attached.
#[derive(Debug, Clone)]
pub struct Link(Arc<RwLock<Result<DriverHandle, String>>>);

impl Link {
    /// No driver yet, and why.
    #[must_use]
    pub fn waiting(reason: impl Into<String>) -> Self {
        Self(Arc::new(RwLock::new(Err(reason.into()))))
    }

    /// Tells why there is no driver yet.
    pub fn set_waiting(&self, reason: String) {
        *self.0.write() = Err(reason);
    }

    /// The driver is there.
    pub fn set_up(&self, handle: DriverHandle) {
        *self.0.write() = Ok(handle);
    }

    /// The driver, or why there is none.
    ///
    /// # Errors
    /// The reason, for operators.
    pub fn driver(&self) -> Result<DriverHandle, String> {
        self.0.read().clone()
    }
}
