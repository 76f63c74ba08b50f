//! The configuration, read again.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;

use super::Api;
use super::error::{ApiError, ErrorBody, body};
use crate::reload::{ReloadError, ReloadRequest, ReloadView};

/// Reads the configuration file again and puts it in force, whole or not at all, or, with `dry_run`, says what that would do. A
/// mistake in the file, or a key that takes a restart, leaves everything as it is.
#[utoipa::path(
    post,
    path = "/api/v1/reload",
    request_body = ReloadRequest,
    responses(
        (status = 200, description = "it is in force; with dry_run also what stands against it", body = ReloadView),
        (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 409, description = "it needs a restart, or would end sessions", body = ErrorBody),
        (status = 422, description = "a mistake in the file", body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn reload(
    State(api): State<Api>,
    request: Result<Json<ReloadRequest>, JsonRejection>,
) -> Result<Json<ReloadView>, ApiError> {
    let request = body(request)?;
    let in_force = api.in_force;
    // In a task of its own: once begun it is brought to its end, whether or not the client waits for it.
    let task = tokio::spawn(async move { in_force.reload(request).await });
    let result = task.await;
    let result = result.map_err(|error| ApiError::Internal(error.to_string()))?;
    let view = result.map_err(|error| match error {
        ReloadError::NotReady(reason) => ApiError::NotReady(reason),
        ReloadError::NotNow(reason) => ApiError::ReloadNotNow(reason),
        error => ApiError::BadConfiguration(error.to_string()),
    })?;
    match view.refused {
        Some(reason) if !request.dry_run => Err(ApiError::ReloadRefused(reason)),
        _ => Ok(Json(view)),
    }
}
