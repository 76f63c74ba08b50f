//! Answers that are no success, all of one shape.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::BODY_LIMIT;
use crate::policy_change::ChangeError;
use crate::request::AskError;
use crate::trace::TooManyTraces;

/// What a client gets when something is not as it wants.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Error)]
pub(crate) struct ErrorBody {
    /// A word for programs.
    error: &'static str,
    /// A sentence for people.
    detail: String,
}

/// Why a request is not fulfilled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("send the header `Authorization: Bearer TOKEN` with the token of api.token_file")]
    Unauthorized,
    #[error("no session {0}")]
    NoSuchSession(String),
    #[error("there is nothing at this path; /api/v1/openapi.json lists what there is")]
    NoSuchPath,
    #[error("this path does not know this method; /api/v1/openapi.json lists what there is")]
    Method,
    #[error("{0}")]
    BadQuery(String),
    #[error("{0}")]
    BadBody(String),
    #[error("{0}")]
    NotAuthenticated(ChangeError),
    #[error("{0}")]
    NotPublished(ChangeError),
    #[error("{0}")]
    NotConfirmed(ChangeError),
    #[error("no trace {0}")]
    NoSuchTrace(String),
    #[error("{0}")]
    TooManyTraces(TooManyTraces),
    #[error("{0} event streams are open already")]
    TooManyStreams(usize),
    #[error("{0}")]
    BadConfiguration(String),
    #[error("{0}")]
    ReloadRefused(String),
    #[error("{0}")]
    ReloadNotNow(String),
    #[error("the body has more than {0} bytes")]
    TooLarge(usize),
    #[error("the request was not complete, or not fulfilled, in time")]
    TimeLimit,
    #[error("{0}")]
    NotReady(String),
    #[error(transparent)]
    Driver(#[from] AskError),
    #[error("{0}")]
    Internal(String),
}

impl ApiError {
    const fn parts(&self) -> (StatusCode, &'static str) {
        match self {
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "unauthorized"),
            Self::NoSuchSession(_) => (StatusCode::NOT_FOUND, "no_such_session"),
            Self::NoSuchPath => (StatusCode::NOT_FOUND, "no_such_path"),
            Self::Method => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::BadQuery(_) => (StatusCode::BAD_REQUEST, "bad_query"),
            Self::BadBody(_) => (StatusCode::BAD_REQUEST, "bad_body"),
            Self::NotAuthenticated(_) => (StatusCode::CONFLICT, "not_authenticated"),
            Self::NotPublished(_) => (StatusCode::SERVICE_UNAVAILABLE, "not_published"),
            Self::NotConfirmed(_) => (StatusCode::GATEWAY_TIMEOUT, "not_confirmed"),
            Self::NoSuchTrace(_) => (StatusCode::NOT_FOUND, "no_such_trace"),
            Self::TooManyTraces(_) => (StatusCode::CONFLICT, "too_many_traces"),
            Self::TooManyStreams(_) => (StatusCode::SERVICE_UNAVAILABLE, "too_many_streams"),
            Self::BadConfiguration(_) => (StatusCode::UNPROCESSABLE_ENTITY, "bad_configuration"),
            Self::ReloadRefused(_) => (StatusCode::CONFLICT, "reload_refused"),
            Self::ReloadNotNow(_) => (StatusCode::SERVICE_UNAVAILABLE, "reload_not_now"),
            Self::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            Self::TimeLimit => (StatusCode::GATEWAY_TIMEOUT, "time_limit"),
            Self::NotReady(_) => (StatusCode::SERVICE_UNAVAILABLE, "not_ready"),
            Self::Driver(AskError::Busy) => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
            Self::Driver(AskError::Stuck) => (StatusCode::GATEWAY_TIMEOUT, "driver_stuck"),
            Self::Driver(AskError::Gone) => (StatusCode::SERVICE_UNAVAILABLE, "driver_gone"),
            Self::Internal(_) => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, error) = self.parts();
        let detail = self.to_string();
        let mut response = (status, Json(ErrorBody { error, detail })).into_response();
        if status == StatusCode::UNAUTHORIZED {
            let scheme = axum::http::HeaderValue::from_static("Bearer");
            let headers = response.headers_mut();
            headers.insert(axum::http::header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

/// The body of a request.
pub(super) fn body<T>(body: Result<Json<T>, JsonRejection>) -> Result<T, ApiError> {
    match body {
        Ok(Json(body)) => Ok(body),
        Err(rejection) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            Err(ApiError::TooLarge(BODY_LIMIT))
        }
        Err(rejection) => Err(ApiError::BadBody(rejection.body_text())),
    }
}
