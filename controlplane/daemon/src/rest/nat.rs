//! Who had a public port.

use std::net::Ipv4Addr;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use bng_natlog::{Answer, Block, Holder, time};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::error::{ApiError, ErrorBody};
use super::sessions::query;
use crate::nat_log::{Known, LiveHolder};
use crate::request::Request;

/// Which port, and when.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct WhoQuery {
    /// Public IPv4 address.
    #[param(value_type = String)]
    address: Ipv4Addr,
    /// Public port of TCP or UDP, or query id of ICMP.
    port: u16,
    /// RFC 3339 time such as `2026-03-01T12:00:00Z`; now if it is left out.
    at: Option<String>,
}

/// Somebody who had a port.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HolderView {
    /// Name of the subscriber.
    user: String,
    /// Its own address, behind NAT.
    #[schema(value_type = String)]
    inside: Ipv4Addr,
    /// Its MAC address.
    mac: String,
    /// Name of the access port.
    port: String,
    /// S-VLAN id, if the frames have a tag.
    s_vlan: Option<u16>,
    /// C-VLAN id, if the frames have two tags.
    c_vlan: Option<u16>,
    /// Name of the NAT pool.
    pool: String,
    /// First port of its block.
    first_port: u16,
    /// Last port of its block.
    last_port: u16,
    /// Acct-Session-Id.
    acct_session_id: String,
    /// Since when it had the block.
    from_unix_ms: u64,
    /// Until when; none while it has it still.
    until_unix_ms: Option<u64>,
    /// Since when, as text.
    from: String,
    /// Until when, as text.
    until: Option<String>,
    /// Its session, while it lives.
    session: Option<String>,
}

/// Who had a port at a time.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WhoView {
    /// `held`; `nobody`; `before_log`: the log does not reach back so far; `no_log`: without `nat.log` only the present is known.
    answer: &'static str,
    /// Public address asked for.
    #[schema(value_type = String)]
    address: Ipv4Addr,
    /// Public port asked for.
    port: u16,
    /// The time asked for.
    at_unix_ms: u64,
    /// The time asked for, as text.
    at: String,
    /// Since when the log knows; none without one.
    log_since_unix_ms: Option<u64>,
    /// Since when, as text.
    log_since: Option<String>,
    /// Who had it: one, or none; more where the clock was set back.
    holders: Vec<HolderView>,
}

/// Names the subscriber that had a public port at a time, from the log of port blocks.
#[utoipa::path(
    get,
    path = "/api/v1/nat/who",
    params(WhoQuery),
    responses(
        (status = 200, body = WhoView),
        (status = 400, description = "no address, no port, or no time until now", body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn who(
    State(api): State<Api>,
    asked: Result<Query<WhoQuery>, QueryRejection>,
) -> Result<Json<WhoView>, ApiError> {
    let WhoQuery { address, port, at } = query(asked)?;
    let now_ms = bng_shm::unix_ms();
    let at_ms = match &at {
        None => now_ms,
        Some(text) => time::parse(text).ok_or_else(|| {
            let detail = format!("at: {text:?} is no RFC 3339 time such as 2026-03-01T12:00:00Z");
            ApiError::BadQuery(detail)
        })?,
    };
    if at_ms > now_ms {
        let detail = format!("at: {} is still to come", time::text(at_ms));
        return Err(ApiError::BadQuery(detail));
    }
    let driver = api.driver()?;
    let known = driver.ask(|it| Request::WhoHas(address, port, it));
    let Known { live, log } = known.await?;
    let (answer, log_since_unix_ms, holders) = match log {
        Some(log) => {
            let since_ms = log.view().since_ms;
            let found = tokio::task::spawn_blocking(move || log.who(address, port, at_ms)).await;
            let found = found.map_err(|error| ApiError::Internal(error.to_string()))?;
            let found = found.map_err(|error| {
                ApiError::Internal(format!("the NAT log cannot be read: {error}"))
            })?;
            let (answer, held) = match found {
                Answer::Held(held) => ("held", held),
                Answer::Nobody => ("nobody", Vec::new()),
                Answer::BeforeLog { .. } => ("before_log", Vec::new()),
            };
            let view = |it| HolderView::new(it, live.as_ref());
            (answer, Some(since_ms), held.into_iter().map(view).collect())
        }
        None => match live {
            Some(live) if live.opened_unix_ms <= at_ms => {
                let holder = Holder {
                    block: live.block.clone(),
                    from_ms: live.opened_unix_ms,
                    until_ms: None,
                };
                ("held", None, vec![HolderView::new(holder, Some(&live))])
            }
            _ if at.is_none() => ("nobody", None, Vec::new()),
            _ => ("no_log", None, Vec::new()),
        },
    };
    Ok(Json(WhoView {
        answer,
        address,
        port,
        at_unix_ms: at_ms,
        at: time::text(at_ms),
        log_since_unix_ms,
        log_since: log_since_unix_ms.map(time::text),
        holders,
    }))
}

impl HolderView {
    fn new(holder: Holder, live: Option<&LiveHolder>) -> Self {
        let Holder {
            block,
            from_ms,
            until_ms,
        } = holder;
        let same = |live: &&LiveHolder| live.block.accounting_id == block.accounting_id;
        let session = live.filter(same).map(|live| live.session.clone());
        let Block { mac, user, .. } = &block;
        Self {
            user: String::from_utf8_lossy(user).into_owned(),
            inside: block.inside,
            mac: bng_wire::MacAddr(*mac).to_string(),
            s_vlan: block.s_vlan,
            c_vlan: block.c_vlan,
            first_port: block.first_port,
            last_port: block.last_port,
            acct_session_id: format!("{:016X}", block.accounting_id),
            from_unix_ms: from_ms,
            until_unix_ms: until_ms,
            from: time::text(from_ms),
            until: until_ms.map(time::text),
            session,
            port: block.port,
            pool: block.pool,
        }
    }
}
