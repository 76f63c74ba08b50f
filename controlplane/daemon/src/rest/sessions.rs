//! Sessions: list, show, end, and those that have ended.

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use bng_shm::{SessionState, SlotIndex};
use bng_wire::MacAddr;
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use super::error::{ApiError, ErrorBody};
use crate::causes::EndCause;
use crate::request::{Request, Window};
use crate::selection::{HistoryFilter, SessionFilter, Subscriber};
use crate::sessions::state_name;
use crate::settings::Settings;
use crate::views::{EndedView, Page, SessionDetail, SessionView};

/// Entries of a page unless asked otherwise, and at most.
const PAGE: usize = 100;
const PAGE_MAX: usize = 1_000;

/// Which sessions, and which part of the list. Everything given must be met.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionsQuery {
    /// Name of the subscriber, whole.
    user: Option<String>,
    /// Address of the subscriber: IPv4, or an IPv6 address in one of its prefixes.
    ip: Option<String>,
    /// Client MAC address.
    mac: Option<String>,
    /// Name of the access port.
    port: Option<String>,
    /// TR-101 Agent-Circuit-Id, whole.
    circuit: Option<String>,
    /// TR-101 Agent-Remote-Id, whole.
    remote: Option<String>,
    /// S-VLAN id, 0 for frames without a tag.
    s_vlan: Option<u16>,
    /// C-VLAN id, 0 for frames without a second tag.
    c_vlan: Option<u16>,
    /// PPPoE session id.
    session_id: Option<u16>,
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

/// Which ended sessions, and which part of the list. Everything given must be met.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistoryQuery {
    /// Name of the subscriber, whole.
    user: Option<String>,
    /// Address it had: IPv4, or an IPv6 address in one of its prefixes.
    ip: Option<String>,
    /// Client MAC address.
    mac: Option<String>,
    /// Name of the access port.
    port: Option<String>,
    /// TR-101 Agent-Circuit-Id, whole.
    circuit: Option<String>,
    /// TR-101 Agent-Remote-Id, whole.
    remote: Option<String>,
    /// S-VLAN id, 0 for frames without a tag.
    s_vlan: Option<u16>,
    /// C-VLAN id, 0 for frames without a second tag.
    c_vlan: Option<u16>,
    /// PPPoE session id.
    session_id: Option<u16>,
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

fn parse_mac(text: &str) -> Option<MacAddr> {
    let mut bytes = [0; 6];
    let mut parts = text.split([':', '-']);
    for byte in &mut bytes {
        let is_hex = |part: &&str| part.bytes().all(|digit| digit.is_ascii_hexdigit());
        let fits = |part: &&str| matches!(part.len(), 1 | 2) && is_hex(part);
        let part = parts.next().filter(fits)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(MacAddr(bytes))
}

/// A subscriber as a client of this interface writes it.
#[derive(Debug, Default)]
pub(super) struct Written<'a> {
    pub(super) user: Option<&'a str>,
    pub(super) ip: Option<&'a str>,
    pub(super) mac: Option<&'a str>,
    pub(super) port: Option<&'a str>,
    pub(super) circuit: Option<&'a str>,
    pub(super) remote: Option<&'a str>,
    pub(super) s_vlan: Option<u16>,
    pub(super) c_vlan: Option<u16>,
    pub(super) session_id: Option<u16>,
}

/// What is wrong with a value, and what it should be.
fn bad(what: &str, value: &str, expected: &str) -> String {
    format!("{what} is `{value}`, expected is {expected}")
}

impl Written<'_> {
    /// What is meant.
    ///
    /// # Errors
    /// A sentence that says which value cannot be.
    pub(super) fn read(&self, settings: &Settings) -> Result<Subscriber, String> {
        let ip = |text: &str| {
            text.parse()
                .map_err(|_| bad("ip", text, "an IPv4 or IPv6 address"))
        };
        let mac = |text: &str| {
            parse_mac(text).ok_or_else(|| bad("mac", text, "an address such as 02:00:00:00:00:01"))
        };
        let port = |text: &str| {
            let port = settings.port(text).and_then(|(_, port)| port.access);
            port.ok_or_else(|| bad("port", text, "the name of an access port"))
        };
        let vlan = |what: &str, id: Option<u16>| match id {
            Some(4095..) => Err(bad(what, &id.unwrap_or(0).to_string(), "0 to 4094")),
            id => Ok(id),
        };
        Ok(Subscriber {
            user: self.user.map(str::to_owned),
            ip: self.ip.map(ip).transpose()?,
            mac: self.mac.map(mac).transpose()?,
            access_port: self.port.map(port).transpose()?,
            circuit_id: self.circuit.map(str::to_owned),
            remote_id: self.remote.map(str::to_owned),
            s_vlan: vlan("s_vlan", self.s_vlan)?,
            c_vlan: vlan("c_vlan", self.c_vlan)?,
            session_id: self.session_id,
        })
    }
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
        let written = Written {
            user: self.user.as_deref(),
            ip: self.ip.as_deref(),
            mac: self.mac.as_deref(),
            port: self.port.as_deref(),
            circuit: self.circuit.as_deref(),
            remote: self.remote.as_deref(),
            s_vlan: self.s_vlan,
            c_vlan: self.c_vlan,
            session_id: self.session_id,
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
            subscriber: written.read(settings)?,
            state: self.state.as_ref().map(state).transpose()?,
            pool: named("pool", &self.pool, pools.iter())?,
            policy: named("policy", &self.policy, policies.iter())?,
        })
    }
}

impl HistoryQuery {
    fn filter(&self, settings: &Settings) -> Result<HistoryFilter, String> {
        let written = Written {
            user: self.user.as_deref(),
            ip: self.ip.as_deref(),
            mac: self.mac.as_deref(),
            port: self.port.as_deref(),
            circuit: self.circuit.as_deref(),
            remote: self.remote.as_deref(),
            s_vlan: self.s_vlan,
            c_vlan: self.c_vlan,
            session_id: self.session_id,
        };
        let cause = |name: &String| {
            let cause = EndCause::of_name(name);
            cause.ok_or_else(|| bad("cause", name, "a cause of bng_pppoe_ended_total"))
        };
        Ok(HistoryFilter {
            subscriber: written.read(settings)?,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_addresses_are_read_as_operators_write_them() {
        let mac = Some(MacAddr([2, 0, 0xab, 0, 0, 1]));
        assert_eq!(parse_mac("02:00:ab:00:00:01"), mac);
        assert_eq!(parse_mac("2-0-AB-0-0-1"), mac);
        for wrong in [
            "",
            "02:00:ab:00:00",
            "02:00:ab:00:00:01:02",
            "02:00:ab:00:00:+1",
            "x",
        ] {
            assert_eq!(parse_mac(wrong), None, "{wrong}");
        }
    }
}
