//! The change of a live session's limits of time and octets.

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::StatusCode;

use super::error::{ApiError, ErrorBody};
use super::policies::refusal;
use super::sessions::{path, slot};
use super::{Api, BODY_LIMIT};
use crate::limits::LimitsChange;
use crate::request::Request;
use crate::views::SessionDetail;

/// Changes the limits of a live session, until the session ends; the answer is the session. What is not given stays, `null` takes
/// a limit away.
#[utoipa::path(
    patch,
    path = "/api/v1/sessions/{id}",
    params(("id" = String, Path, description = "Access port and session id, such as access0-4660")),
    request_body = LimitsChange,
    responses(
        (status = 200, body = SessionDetail),
        (status = 400, description = "a change that cannot be", body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 409, description = "the session is not up", body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn change(
    State(api): State<Api>,
    id: Result<Path<String>, PathRejection>,
    change: Result<Json<LimitsChange>, JsonRejection>,
) -> Result<Json<SessionDetail>, ApiError> {
    let id = path(id)?;
    let Json(change) = change.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::TooLarge(BODY_LIMIT),
        _ => ApiError::BadBody(rejection.body_text()),
    })?;
    let Some(slot) = slot(&id, &api.settings()) else {
        return Err(ApiError::NoSuchSession(id));
    };
    let driver = api.driver()?;
    let changed = driver.ask(|reply| Request::ChangeLimits(slot, change, reply));
    if let Err(error) = changed.await? {
        return Err(refusal(error, id));
    }
    let shown = driver.ask(|reply| Request::Session(slot, reply)).await?;
    shown.map(Json).ok_or(ApiError::NoSuchSession(id))
}
