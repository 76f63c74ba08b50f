//! Sessions: list, show, end, and those that have ended.

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use bng_shm::{SessionState, SlotIndex};
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use super::error::{ApiError, ErrorBody};
use super::subscriber::bad;
use crate::causes::EndCause;
use crate::request::{Request, Window};
use crate::selection::{HistoryFilter, SessionFilter};
use crate::sessions::state_name;
use crate::settings::Settings;
use crate::views::{EndedView, Page, SessionDetail, SessionView};

/// Entries of a page unless asked otherwise, and at most.
const PAGE: usize = 100;
const PAGE_MAX: usize = 1_000;

of_subscribers! {
    /// Which sessions, and which part of the list. Everything given must be met.
    #[derive(Debug, Deserialize, IntoParams)]
    #[into_params(parameter_in = Query)]
    #[serde(deny_unknown_fields)]
    pub(crate) struct SessionsQuery {
        /// `negotiating`, `forwarding` or `closing`.
        state: Option<String>,
        /// Name of the address pool.
        pool: Option<String>,
        /// Name of the policy.
        policy: Option<String>,
        /// Entries at most, 1 to 1,000, default 100.
        limit: Option<usize>,
        /// Entries to leave out, default 0.
        offset: Option<usize>,
    }
}

of_subscribers! {
    /// Which ended sessions, and which part of the list. Everything given must be met.
    #[derive(Debug, Deserialize, IntoParams)]
    #[into_params(parameter_in = Query)]
    #[serde(deny_unknown_fields)]
    pub(crate) struct HistoryQuery {
        /// Why it ended.
        cause: Option<String>,
        /// Whether it was ever up.
        was_up: Option<bool>,
        /// Unix time in milliseconds: sessions that ended then or later.
        since: Option<u64>,
        /// Unix time in milliseconds: sessions that started before. With `since`: all that were there at some time between.
        until: Option<u64>,
        /// Entries at most, 1 to 1,000, default 100.
        limit: Option<usize>,
        /// Entries to leave out, default 0.
        offset: Option<usize>,
    }
}

fn window(limit: Option<usize>, offset: Option<usize>) -> Result<Window, ApiError> {
    let limit = limit.unwrap_or(PAGE);
    if limit == 0 || limit > PAGE_MAX {
        return Err(ApiError::BadQuery(format!(
            "limit is {limit}, allowed is 1 to {PAGE_MAX}"
        )));
    }
    Ok(Window {
        limit,
        offset: offset.unwrap_or(0),
    })
}

impl SessionsQuery {
    fn filter(&self, settings: &Settings) -> Result<SessionFilter, String> {
        let state = |text: &String| {
            let states = [
                SessionState::Negotiating,
                SessionState::Forwarding,
                SessionState::Closing,
            ];
            (states.into_iter().find(|state| state_name(*state) == text))
                .ok_or_else(|| bad("state", text, "negotiating, forwarding or closing"))
        };
        let named = |what, name: &Option<String>, mut known: std::slice::Iter<'_, &str>| match name
        {
            Some(name) if known.all(|it| it != name) => Err(bad(what, name, "a configured one")),
            name => Ok(name.clone()),
        };
        let pools: Vec<_> = settings.pools.iter().map(|it| it.name.as_str()).collect();
        let policies = settings.terms.policies.iter();
        let policies: Vec<_> = policies.map(|it| it.name.as_str()).collect();
        Ok(SessionFilter {
            subscriber: self.written().read(settings)?,
            state: self.state.as_ref().map(state).transpose()?,
            pool: named("pool", &self.pool, pools.iter())?,
            policy: named("policy", &self.policy, policies.iter())?,
        })
    }
}

impl HistoryQuery {
    fn filter(&self, settings: &Settings) -> Result<HistoryFilter, String> {
        let cause = |name: &String| {
            let cause = EndCause::of_name(name);
            cause.ok_or_else(|| bad("cause", name, "a cause of bng_pppoe_ended_total"))
        };
        Ok(HistoryFilter {
            subscriber: self.written().read(settings)?,
            cause: self.cause.as_ref().map(cause).transpose()?,
            was_up: self.was_up,
            since_unix_ms: self.since,
            until_unix_ms: self.until,
        })
    }
}

/// The slot an id such as `access0-4660` names.
pub(super) fn slot(id: &str, settings: &Settings) -> Option<SlotIndex> {
    let (name, session_id) = id.rsplit_once('-')?;
    let access = settings.port(name)?.1.access?;
    let session_id = session_id.parse().ok()?;
    Some(SlotIndex::new(access, session_id))
}

pub(super) fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, ApiError> {
    match query {
        Ok(Query(query)) => Ok(query),
        Err(rejection) => Err(ApiError::BadQuery(rejection.body_text())),
    }
}

pub(super) fn path(id: Result<Path<String>, PathRejection>) -> Result<String, ApiError> {
    match id {
        Ok(Path(id)) => Ok(id),
        Err(rejection) => Err(ApiError::BadQuery(rejection.body_text())),
    }
}

/// Sessions, by access port and session id.
#[utoipa::path(
    get,
    path = "/api/v1/sessions",
    params(SessionsQuery),
    responses(
        (status = 200, body = Page<SessionView>),
        (status = 400, description = "a filter that cannot be", body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn list(
    State(api): State<Api>,
    sessions: Result<Query<SessionsQuery>, QueryRejection>,
) -> Result<Json<Page<SessionView>>, ApiError> {
    let sessions = query(sessions)?;
    let filter = (sessions.filter(&api.settings())).map_err(ApiError::BadQuery)?;
    let window = window(sessions.limit, sessions.offset)?;
    let driver = api.driver()?;
    let page = driver.ask(|reply| Request::Sessions(filter, window, reply));
    Ok(Json(page.await?))
}

/// A session with everything known of it.
#[utoipa::path(
    get,
    path = "/api/v1/sessions/{id}",
    params(("id" = String, Path, description = "Access port and session id, such as access0-4660")),
    responses(
        (status = 200, body = SessionDetail),
        (status = 400, description = "an id that is no text", body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn show(
    State(api): State<Api>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<SessionDetail>, ApiError> {
    let id = path(id)?;
    let Some(slot) = slot(&id, &api.settings()) else {
        return Err(ApiError::NoSuchSession(id));
    };
    let driver = api.driver()?;
    let detail = driver.ask(|reply| Request::Session(slot, reply)).await?;
    detail.map(Json).ok_or(ApiError::NoSuchSession(id))
}

/// Ends a session: the peer gets a Terminate-Request and a PADT. The cause in history and metrics is `operator`.
#[utoipa::path(
    delete,
    path = "/api/v1/sessions/{id}",
    params(("id" = String, Path, description = "Access port and session id, such as access0-4660")),
    responses(
        (status = 202, description = "it is being ended"),
        (status = 400, description = "an id that is no text", body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn end(
    State(api): State<Api>,
    id: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, ApiError> {
    let id = path(id)?;
    let Some(slot) = slot(&id, &api.settings()) else {
        return Err(ApiError::NoSuchSession(id));
    };
    let driver = api.driver()?;
    match driver.ask(|reply| Request::End(slot, reply)).await? {
        true => Ok(StatusCode::ACCEPTED),
        false => Err(ApiError::NoSuchSession(id)),
    }
}

/// Sessions that have ended, latest first. The last 10,000 since the control plane started are kept.
#[utoipa::path(
    get,
    path = "/api/v1/sessions/history",
    params(HistoryQuery),
    responses(
        (status = 200, body = Page<EndedView>),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn history(
    State(api): State<Api>,
    sessions: Result<Query<HistoryQuery>, QueryRejection>,
) -> Result<Json<Page<EndedView>>, ApiError> {
    let sessions = query(sessions)?;
    let filter = (sessions.filter(&api.settings())).map_err(ApiError::BadQuery)?;
    let window = window(sessions.limit, sessions.offset)?;
    let driver = api.driver()?;
    let page = driver.ask(|reply| Request::History(filter, window, reply));
    Ok(Json(page.await?))
}
