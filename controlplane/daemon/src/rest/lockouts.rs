//! Clients that are kept out because they keep failing.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use utoipa::IntoParams;

use super::Api;
use super::error::{ApiError, ErrorBody};
use super::sessions::query;
use super::subscriber::Written;
use crate::lockouts::{LockoutView, Unlocked};
use crate::request::Request;
use crate::selection::Subscriber;

/// Which clients. Everything given must be met, and something must be given.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct UnlockQuery {
    /// MAC address.
    mac: Option<String>,
    /// Agent-Circuit-Id, whole.
    circuit: Option<String>,
    /// Name of the access port.
    port: Option<String>,
}

/// Clients that get no PADO for a while, because their sessions ended before they were up again and again.
#[utoipa::path(
    get,
    path = "/api/v1/lockouts",
    responses(
        (status = 200, body = Vec<LockoutView>),
        (status = 401, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn list(State(api): State<Api>) -> Result<Json<Vec<LockoutView>>, ApiError> {
    Ok(Json(api.driver()?.ask(Request::Lockouts).await?))
}

/// Lets clients in again at once and forgets their failures.
#[utoipa::path(
    delete,
    path = "/api/v1/lockouts",
    params(UnlockQuery),
    responses(
        (status = 200, description = "how many were let in", body = Unlocked),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn unlock(
    State(api): State<Api>,
    clients: Result<Query<UnlockQuery>, QueryRejection>,
) -> Result<Json<Unlocked>, ApiError> {
    let clients = query(clients)?;
    let written = Written {
        mac: clients.mac.as_deref(),
        circuit: clients.circuit.as_deref(),
        port: clients.port.as_deref(),
        ..Written::default()
    };
    let clients = written.read(&api.settings()).map_err(ApiError::BadQuery)?;
    if clients == Subscriber::default() {
        return Err(ApiError::BadQuery("give mac, circuit or port".to_owned()));
    }
    let driver = api.driver()?;
    let unlocked = driver.ask(|reply| Request::Unlock(Box::new(clients), reply));
    Ok(Json(unlocked.await?))
}
