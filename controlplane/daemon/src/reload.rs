//! Another configuration for a running control plane: what it would change, and how it takes its place, whole or not at all.

mod classes;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use bng_aaa::LocalUsers;
use bng_config::{Change, Config, ConfigError, Difference, LogLevel};
use bng_pppoe::{SessionRef, TerminateCause};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, oneshot};
use utoipa::ToSchema;

pub use classes::{Class, class_of, document};

use crate::driver::Driver;
use crate::publish::Clock;
use crate::radius;
use crate::request::{AskError, Link, Request};
use crate::rest::token::{Token, TokenError};
use crate::settings::{self, Settings, SettingsError};
use crate::stream::Notice;
use crate::terms::TooManyFilters;

/// Differences that are listed; of more only their number is told.
const LISTED: usize = 200;

/// What may be done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ReloadRequest {
    /// Only say what would be done.
    pub dry_run: bool,
    /// End sessions that the new configuration has no place for: those on VLANs it does not serve, and those of users it does
    /// not have any more.
    pub allow_drops: bool,
}

/// A key that is different.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ChangeView {
    /// Where it stands in the file.
    pub key: String,
    /// `added`, `removed` or `changed`.
    pub change: &'static str,
    /// When it takes effect: `live`, `new_sessions`, `needs_drop`, `dataplane_restart` or `restart`.
    pub class: &'static str,
}

/// What a reload does, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct ReloadView {
    /// Whether the file's configuration is in force now.
    pub applied: bool,
    /// Why it is not, and would not be, in force; none if nothing stands against it.
    pub refused: Option<String>,
    /// What is different, the first 200.
    pub changes: Vec<ChangeView>,
    /// How many more there are.
    pub more_changes: usize,
    /// Whether bng-dataplane has to be restarted for some of it: for keys of that class, and for VLANs that were not served before.
    pub dataplane_restart: bool,
    /// Sessions whose policy is another one.
    pub sessions_changed: usize,
    /// Sessions on VLANs that are not served any more: they stand against a reload without `allow_drops`.
    pub sessions_unserved: usize,
    /// Sessions of users that are not there any more: they go on without `allow_drops`.
    pub sessions_of_removed_users: usize,
    /// Sessions that are ended.
    pub sessions_dropped: usize,
}

/// Why the file is not even looked at, or not in force for a reason that is not the operator's.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// A mistake in the file.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The file is valid, but asks for too much.
    #[error("{0}")]
    Settings(#[from] SettingsError),
    /// Too many filters to change them without a restart.
    #[error("{0}")]
    Filters(#[from] TooManyFilters),
    /// The token file is not as it must be.
    #[error("{0}")]
    Token(#[from] TokenError),
    /// The shared memory is not attached.
    #[error("{0}")]
    NotReady(String),
    /// The driver gave no answer.
    #[error("{0}")]
    Driver(#[from] AskError),
    /// The driver cannot do it now.
    #[error("{0}")]
    NotNow(String),
}

/// Sets the least important message that is written.
pub type SetLevel = Box<dyn Fn(LogLevel) + Send + Sync>;

/// The configuration in force.
pub struct InForce {
    path: PathBuf,
    settings: RwLock<Arc<Settings>>,
    token: RwLock<Arc<Token>>,
    /// Held while the file is read and put in force: one at a time.
    config: Mutex<Config>,
    set_level: SetLevel,
    link: Link,
    results: [AtomicU64; 3],
    loaded_unix_ms: AtomicU64,
}

impl std::fmt::Debug for InForce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InForce")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// What metrics show of reloads.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReloadCounts {
    /// Results by name.
    pub(crate) results: [(&'static str, u64); 3],
    /// When the configuration in force was read, Unix milliseconds.
    pub(crate) loaded_unix_ms: u64,
}

fn unix_ms() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

impl InForce {
    /// What the process has started with; `path` is read again at a reload.
    #[must_use]
    pub fn new(
        path: PathBuf,
        config: Config,
        settings: Arc<Settings>,
        token: Token,
        link: Link,
        set_level: SetLevel,
    ) -> Self {
        Self {
            path,
            settings: RwLock::new(settings),
            token: RwLock::new(Arc::new(token)),
            config: Mutex::new(config),
            set_level,
            link,
            results: [const { AtomicU64::new(0) }; 3],
            loaded_unix_ms: AtomicU64::new(unix_ms()),
        }
    }

    /// The settings.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.read().clone()
    }

    /// What a client of REST has to know.
    pub(crate) fn token(&self) -> Arc<Token> {
        self.token.read().clone()
    }

    pub(crate) fn counts(&self) -> ReloadCounts {
        let value = |at: usize| self.results[at].load(Ordering::Relaxed);
        ReloadCounts {
            results: [
                ("applied", value(0)),
                ("refused", value(1)),
                ("failed", value(2)),
            ],
            loaded_unix_ms: self.loaded_unix_ms.load(Ordering::Relaxed),
        }
    }

    /// Reads the file again and puts it in force, whole or not at all.
    ///
    /// # Errors
    /// [`ReloadError`]; a file that is good and has to wait is no error but a view that says why.
    pub async fn reload(&self, request: ReloadRequest) -> Result<ReloadView, ReloadError> {
        let result = self.try_reload(request).await;
        if !request.dry_run {
            let at = match &result {
                Ok(view) if view.applied => 0,
                Ok(_) => 1,
                Err(_) => 2,
            };
            self.results[at].fetch_add(1, Ordering::Relaxed);
            match &result {
                Ok(view) => match &view.refused {
                    None => tracing::info!(
                        changes = view.changes.len() + view.more_changes,
                        dropped = view.sessions_dropped,
                        dataplane_restart = view.dataplane_restart,
                        "the configuration was read again and is in force"
                    ),
                    Some(reason) => tracing::error!("the configuration stays as it is: {reason}"),
                },
                Err(error) => tracing::error!(%error, "the configuration stays as it is"),
            }
        }
        result
    }

    async fn try_reload(&self, request: ReloadRequest) -> Result<ReloadView, ReloadError> {
        let mut config = self.config.lock().await;
        // The file, and a users file of a million entries, are not read in a thread that others wait for.
        let path = self.path.clone();
        let read = tokio::task::spawn_blocking(move || Config::load(path)).await;
        let next = read.map_err(|error| ReloadError::NotNow(error.to_string()))??;
        let token = Token::read(&next.api.token_file)?;
        let mut settings = Settings::new(&next)?;
        settings.terms.keep_places(&self.settings().terms)?;
        let settings = Arc::new(settings);
        let differences = config.differences(&next);
        let mut view = view(&differences);
        view.dataplane_restart |= serves_more(&config, &next);
        if let Some(change) = first_of(&differences, Class::Restart) {
            view.refused = Some(format!(
                "{} takes effect with a restart of bng-controlplane only",
                change.key
            ));
        }
        if let Some(key) = radius::needs_restart(&config, &next) {
            let reason = format!("{key} comes and goes with a restart of bng-controlplane only");
            view.refused.get_or_insert(reason);
        }
        let is_of_servers = |it: &Difference| it.key.starts_with("radius.");
        let named = |it: &Difference| it.key == "pppoe.ac_name";
        let differs = differences.iter().any(|it| is_of_servers(it) || named(it));
        let radius = radius::Next::new(&next, differs)
            .map_err(|error| ReloadError::NotNow(format!("{error:#}")))?;
        // What is refused is put to the driver too: it says what else would be.
        let order = Order {
            engine: settings::engine_config(&next, &settings, &[]),
            users: settings::local_users(&next),
            removed_users: removed(&config, &next),
            radius,
            settings: settings.clone(),
            request: ReloadRequest {
                dry_run: request.dry_run || view.refused.is_some(),
                ..request
            },
        };
        let driver = self.link.driver().map_err(ReloadError::NotReady)?;
        let (reply, answer) = oneshot::channel();
        driver.tell(Request::Reload(Box::new(order), reply))?;
        // However long it takes: what the driver has put in force must be known here.
        let outcome = answer.await.map_err(|_| AskError::Gone)?;
        outcome.map_err(ReloadError::NotNow)?.fill(&mut view);
        if view.applied {
            *self.settings.write() = settings;
            *self.token.write() = Arc::new(token);
            (self.set_level)(next.log.level);
            *config = next;
            self.loaded_unix_ms.store(unix_ms(), Ordering::Relaxed);
            driver
                .feed()
                .tell(unix_ms(), Notice::Reload(Box::new(view.clone())));
        }
        Ok(view)
    }
}

fn removed(now: &Config, next: &Config) -> HashSet<Vec<u8>> {
    let stay: HashSet<_> = next.auth.users.iter().map(|user| &user.name).collect();
    let gone = now
        .auth
        .users
        .iter()
        .filter(|user| !stay.contains(&user.name));
    gone.map(|user| user.name.clone().into_bytes()).collect()
}

/// Whether there are VLANs that were not served before. Workers drop discovery on VLANs bng-dataplane was not started with.
fn serves_more(now: &Config, next: &Config) -> bool {
    let mut ports = now.dataplane.ports.iter().zip(&next.dataplane.ports);
    ports.any(|(now, next)| next.serves_more_than(now))
}

fn first_of(differences: &[Difference], class: Class) -> Option<&Difference> {
    let is = |it: &&Difference| class_of(&it.documented()) == class;
    differences.iter().find(is)
}

fn view(differences: &[Difference]) -> ReloadView {
    let changes = differences.iter().take(LISTED).map(|it| ChangeView {
        key: it.key.clone(),
        change: match it.change {
            Change::Added => "added",
            Change::Removed => "removed",
            Change::Changed => "changed",
        },
        class: class_of(&it.documented()).as_str(),
    });
    ReloadView {
        changes: changes.collect(),
        more_changes: differences.len().saturating_sub(LISTED),
        dataplane_restart: first_of(differences, Class::DataplaneRestart).is_some(),
        ..ReloadView::default()
    }
}

/// A configuration for the driver, and what it may do for it.
#[derive(Debug)]
pub struct Order {
    settings: Arc<Settings>,
    engine: bng_pppoe::Config,
    users: LocalUsers,
    removed_users: HashSet<Vec<u8>>,
    radius: radius::Next,
    request: ReloadRequest,
}

/// What the driver did, or would do.
#[derive(Debug, Default)]
pub struct Outcome {
    applied: bool,
    refused: Option<String>,
    changed: usize,
    unserved: usize,
    of_removed_users: usize,
    dropped: usize,
}

impl Outcome {
    fn fill(self, view: &mut ReloadView) {
        view.applied = self.applied;
        view.refused = view.refused.take().or(self.refused);
        view.sessions_changed = self.changed;
        view.sessions_unserved = self.unserved;
        view.sessions_of_removed_users = self.of_removed_users;
        view.sessions_dropped = self.dropped;
    }
}

/// Answer to an [`Order`]; an error is a reason that will pass.
pub type OrderReply = oneshot::Sender<Result<Outcome, String>>;

impl Driver {
    /// Puts a configuration in force, whole or not at all, or says what that would do.
    pub(crate) fn reload(&mut self, order: Order, clock: Clock) -> Result<Outcome, String> {
        let is_known = |token| self.publisher.epoch_passed(token);
        if !order.request.dry_run && !self.configured.is_none_or(is_known) {
            // The place of a filter that is gone may be taken again only then.
            return Err(
                "a worker has not confirmed the configuration in force; look at bngctl health"
                    .to_owned(),
            );
        }
        let mut outcome = Outcome::default();
        let unserved = match self.engine.would_reconfigure(&order.engine) {
            Ok(would) => would.unserved,
            Err(error) => {
                outcome.refused = Some(error.to_string());
                return Ok(outcome);
            }
        };
        let is_removed = |user: &[u8]| order.removed_users.contains(user);
        let live = self.sessions.iter().filter(|live| live.end.is_none());
        let of_removed: Vec<SessionRef> = live
            .filter(|live| !order.removed_users.is_empty() && is_removed(&live.user))
            .map(|live| live.session)
            .collect();
        outcome.unserved = unserved.len();
        outcome.of_removed_users = of_removed.len();
        let drops = match order.request.allow_drops {
            true => [unserved, of_removed].concat(),
            false => Vec::new(),
        };
        if outcome.unserved > 0 && !order.request.allow_drops {
            outcome.refused = Some(format!(
                "{} sessions are on VLANs that are not served any more; allow_drops ends them",
                outcome.unserved
            ));
        }
        if order.request.dry_run || outcome.refused.is_some() {
            outcome.dropped = drops.iter().collect::<HashSet<_>>().len();
            return Ok(outcome);
        }
        let filters = order.settings.terms.published_filters();
        if filters != self.settings.terms.published_filters()
            && let Err(error) = self.publisher.publish_filters(&filters)
        {
            outcome.refused = Some(error.to_string());
            return Ok(outcome);
        }
        if let Err(error) = self.engine.reconfigure(clock.time(), order.engine) {
            // Said to be possible a moment ago.
            return Err(error.to_string());
        }
        self.settings = order.settings;
        self.grants.set_users(order.users);
        let backends = self.radius.reconfigure(order.radius);
        self.grants.set_backends(backends);
        self.grants.set_pool_settings(&self.settings.pools);
        outcome.changed = self.reassign_policies();
        self.configured = Some(self.publisher.advance_epoch());
        for session in drops.into_iter().collect::<HashSet<_>>() {
            let cause = TerminateCause::Operator;
            outcome.dropped += usize::from(self.engine.terminate(clock.time(), session, cause));
        }
        outcome.applied = true;
        Ok(outcome)
    }

    /// Gives every session the policy of the configuration now in force; how many have another one than before. What an operator
    /// gave stays as long as its filter is configured.
    fn reassign_policies(&mut self) -> usize {
        let live = self.sessions.iter().filter(|live| live.end.is_none());
        let differing: Vec<_> = live
            .filter_map(|live| {
                let assigned = live.policy.as_ref()?;
                let filter = assigned.policy.filter;
                let is_there =
                    filter.is_none_or(|id| self.settings.terms.filter_name(id).is_some());
                if assigned.by_operator && is_there {
                    return None;
                }
                let policy = self.configured_policy(live);
                (policy != assigned.policy).then_some((live.session, policy))
            })
            .collect();
        for (session, policy) in &differing {
            self.hold(*session, *policy, false);
        }
        differing.len()
    }
}
