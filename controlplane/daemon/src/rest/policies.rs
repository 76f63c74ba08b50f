//! Policies and filters, and the change of a live session's policy.

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{Path, State};

use super::Api;
use super::error::{ApiError, ErrorBody, body};
use super::sessions::{path, slot};
use crate::policy_change::{ChangeError, PolicyChange};
use crate::policy_view::{ConfiguredPolicyView, FilterView, PolicyView};
use crate::request::Request;

/// Policies of the configuration.
#[utoipa::path(
    get,
    path = "/api/v1/policies",
    responses(
        (status = 200, body = Vec<ConfiguredPolicyView>),
        (status = 401, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn policies(
    State(api): State<Api>,
) -> Result<Json<Vec<ConfiguredPolicyView>>, ApiError> {
    Ok(Json(api.driver()?.ask(Request::Policies).await?))
}

/// Filters of the configuration.
#[utoipa::path(
    get,
    path = "/api/v1/filters",
    responses(
        (status = 200, body = Vec<FilterView>),
        (status = 401, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn filters(State(api): State<Api>) -> Result<Json<Vec<FilterView>>, ApiError> {
    Ok(Json(api.driver()?.ask(Request::Filters).await?))
}

/// Changes the policy of a live session, until the session ends. The answer comes when every packet received from then on is
/// under the new policy, and is that policy.
#[utoipa::path(
    patch,
    path = "/api/v1/sessions/{id}/policy",
    params(("id" = String, Path, description = "Access port and session id, such as access0-4660")),
    request_body = PolicyChange,
    responses(
        (status = 200, body = PolicyView),
        (status = 400, description = "a change that cannot be", body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 409, description = "the session's user is not known yet", body = ErrorBody),
        (status = 503, body = ErrorBody),
        (status = 504, description = "changed, but a worker has not confirmed it", body = ErrorBody)
    )
)]
pub(crate) async fn change(
    State(api): State<Api>,
    id: Result<Path<String>, PathRejection>,
    change: Result<Json<PolicyChange>, JsonRejection>,
) -> Result<Json<PolicyView>, ApiError> {
    let id = path(id)?;
    let change = body(change)?;
    let Some(slot) = slot(&id, &api.settings()) else {
        return Err(ApiError::NoSuchSession(id));
    };
    let driver = api.driver()?;
    let changed = driver.ask(|reply| Request::ChangePolicy(slot, Box::new(change), reply));
    changed.await?.map(Json).map_err(|error| refusal(error, id))
}

/// Why a session is not changed; `id` is the one that was asked for.
pub(super) fn refusal(error: ChangeError, id: String) -> ApiError {
    match error {
        ChangeError::NoSuchSession => ApiError::NoSuchSession(id),
        ChangeError::NotAuthenticated | ChangeError::NotUp => ApiError::NotAuthenticated(error),
        ChangeError::NotPublished(_) => ApiError::NotPublished(error),
        ChangeError::NotConfirmed => ApiError::NotConfirmed(error),
        ChangeError::Nothing
        | ChangeError::NoLimit
        | ChangeError::UnknownPolicy(_)
        | ChangeError::UnknownFilter(_)
        | ChangeError::OutOfRange { .. } => ApiError::BadBody(error.to_string()),
    }
}
