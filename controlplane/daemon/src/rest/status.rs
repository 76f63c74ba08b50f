//! Workers, ports, drops, pools and the dataplane process.

use axum::Json;
use axum::extract::State;

use super::Api;
use super::error::{ApiError, ErrorBody};
use crate::coalescing::{self, CoalescingView};
use crate::radius::view::RadiusView;
use crate::status::{DataplaneView, DropView, PoolsView, PortView, WorkerView};

/// Workers, and the host path behind them.
#[utoipa::path(
    get,
    path = "/api/v1/workers",
    responses(
        (status = 200, body = Vec<WorkerView>),
        (status = 401, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn workers(State(api): State<Api>) -> Result<Json<Vec<WorkerView>>, ApiError> {
    Ok(Json(api.status().await?.workers))
}

/// Ports in the order of the configuration.
#[utoipa::path(
    get,
    path = "/api/v1/ports",
    responses(
        (status = 200, body = Vec<PortView>),
        (status = 401, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn ports(State(api): State<Api>) -> Result<Json<Vec<PortView>>, ApiError> {
    Ok(Json(api.status().await?.ports))
}

/// All reasons for which frames are dropped, with their meaning and their counts.
#[utoipa::path(
    get,
    path = "/api/v1/drops",
    responses(
        (status = 200, body = Vec<DropView>),
        (status = 401, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn drops(State(api): State<Api>) -> Result<Json<Vec<DropView>>, ApiError> {
    Ok(Json(api.status().await?.drops))
}

/// Use of address and NAT pools.
#[utoipa::path(
    get,
    path = "/api/v1/pools",
    responses(
        (status = 200, body = PoolsView),
        (status = 401, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn pools(State(api): State<Api>) -> Result<Json<PoolsView>, ApiError> {
    Ok(Json(api.status().await?.pools))
}

/// RADIUS servers; `null` where none is configured.
#[utoipa::path(
    get,
    path = "/api/v1/radius",
    responses(
        (status = 200, body = Option<RadiusView>),
        (status = 401, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn radius(State(api): State<Api>) -> Result<Json<Option<RadiusView>>, ApiError> {
    Ok(Json(api.status().await?.radius))
}

/// The forwarding process.
#[utoipa::path(
    get,
    path = "/api/v1/dataplane",
    responses(
        (status = 200, body = DataplaneView),
        (status = 401, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn dataplane(State(api): State<Api>) -> Result<Json<DataplaneView>, ApiError> {
    Ok(Json(api.status().await?.dataplane))
}

/// Coalescing: what it is set to, what became of frames, and why runs ended.
#[utoipa::path(
    get,
    path = "/api/v1/coalescing",
    responses(
        (status = 200, body = CoalescingView),
        (status = 401, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn coalescing(State(api): State<Api>) -> Result<Json<CoalescingView>, ApiError> {
    let status = api.status().await?;
    let view = coalescing::view(&api.settings(), &status.workers, &status.ports);
    Ok(Json(view))
}
