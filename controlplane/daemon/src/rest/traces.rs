//! Traces of the control frames of chosen subscribers: begin, read as text or pcapng, end.

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::ToSchema;

use super::Api;
use super::error::{ApiError, ErrorBody, body};
use crate::request::Request;
use crate::settings::Settings;
use crate::trace::{
    self, FRAMES, FRAMES_MAX, SECONDS, SECONDS_MAX, TraceCopy, TraceOrder, TraceText, TraceView,
};

of_subscribers! {
    /// Whose control frames, how many and how long. Frames from before a name is known are those of the lines it was seen on. What is given must be met by every frame; something must be given, or `all`.
    #[derive(Debug, Deserialize, ToSchema)]
    #[serde(deny_unknown_fields)]
    pub(crate) struct TraceRequest {
        /// Everybody's frames.
        #[serde(default)]
        all: bool,
        /// Latest frames to keep, 1 to 10,000, default 1,000, and at most 4 MiB.
        frames: Option<u32>,
        /// Seconds after which no more frames are taken, 1 to 86,400, default 600.
        seconds: Option<u32>,
        /// Whether the passwords of PAP stay in the frames.
        #[serde(default)]
        with_passwords: bool,
    }
}

impl TraceRequest {
    fn order(&self, settings: &Settings) -> Result<TraceOrder, String> {
        let within = |what: &str, value: Option<u32>, default: u32, max: u32| match value {
            None => Ok(default),
            Some(value) if (1..=max).contains(&value) => Ok(value),
            Some(value) => Err(format!("{what} is {value}, allowed is 1 to {max}")),
        };
        let subscriber = self.written().read(settings)?;
        if !self.all && subscriber == Default::default() {
            let keys = "user, ip, mac, port, circuit, remote, s_vlan, c_vlan, session_id or all";
            return Err(format!("give {keys}"));
        }
        Ok(TraceOrder {
            subscriber,
            frames: within("frames", self.frames, FRAMES, FRAMES_MAX)?,
            seconds: within("seconds", self.seconds, SECONDS, SECONDS_MAX)?,
            with_passwords: self.with_passwords,
        })
    }
}

/// Begins to keep the control frames (discovery and PPP, both ways) of chosen subscribers, with a session or without.
#[utoipa::path(
    post,
    path = "/api/v1/traces",
    request_body = TraceRequest,
    responses(
        (status = 201, body = TraceView),
        (status = 400, description = "an order that cannot be", body = ErrorBody),
        (status = 401, body = ErrorBody),
        (status = 409, description = "too many traces", body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn start(
    State(api): State<Api>,
    request: Result<Json<TraceRequest>, JsonRejection>,
) -> Result<(StatusCode, Json<TraceView>), ApiError> {
    let order = body(request)?.order(&api.settings());
    let order = order.map_err(ApiError::BadBody)?;
    let driver = api.driver()?;
    let started = driver.ask(|reply| Request::StartTrace(Box::new(order), reply));
    let view = started.await?.map_err(ApiError::TooManyTraces)?;
    Ok((StatusCode::CREATED, Json(view)))
}

/// All traces, the oldest first.
#[utoipa::path(
    get,
    path = "/api/v1/traces",
    responses(
        (status = 200, body = Vec<TraceView>),
        (status = 401, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn list(State(api): State<Api>) -> Result<Json<Vec<TraceView>>, ApiError> {
    Ok(Json(api.driver()?.ask(Request::Traces).await?))
}

fn number(id: Result<Path<String>, PathRejection>) -> Result<u32, ApiError> {
    let id = super::sessions::path(id)?;
    id.parse().map_err(|_| ApiError::NoSuchTrace(id))
}

async fn copy(api: &Api, id: u32) -> Result<TraceCopy, ApiError> {
    let copy = api.driver()?.ask(|reply| Request::Trace(id, reply)).await?;
    copy.ok_or_else(|| ApiError::NoSuchTrace(id.to_string()))
}

/// A trace in words, a line for each frame.
#[utoipa::path(
    get,
    path = "/api/v1/traces/{id}",
    params(("id" = String, Path, description = "Number of the trace")),
    responses(
        (status = 200, body = TraceText),
        (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn show(
    State(api): State<Api>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<TraceText>, ApiError> {
    let copy = copy(&api, number(id)?).await?;
    Ok(Json(TraceText::new(copy, &api.settings())))
}

/// A trace as a pcapng file. Passwords in it are blanked unless the trace was begun with `with_passwords`.
#[utoipa::path(
    get,
    path = "/api/v1/traces/{id}/pcapng",
    params(("id" = String, Path, description = "Number of the trace")),
    responses(
        (status = 200, content_type = "application/x-pcapng", body = Vec<u8>),
        (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn pcapng(
    State(api): State<Api>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let copy = copy(&api, number(id)?).await?;
    let file = trace::pcapng::file(&copy, &api.settings())
        .map_err(|error| ApiError::Internal(error.to_string()))?;
    let kind = [(header::CONTENT_TYPE, trace::pcapng::CONTENT_TYPE)];
    Ok((kind, file).into_response())
}

/// Ends a trace and forgets its frames.
#[utoipa::path(
    delete,
    path = "/api/v1/traces/{id}",
    params(("id" = String, Path, description = "Number of the trace")),
    responses(
        (status = 204, description = "it is gone"),
        (status = 401, body = ErrorBody),
        (status = 404, body = ErrorBody),
        (status = 503, body = ErrorBody)
    )
)]
pub(crate) async fn stop(
    State(api): State<Api>,
    id: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, ApiError> {
    let id = number(id)?;
    match (api.driver()?)
        .ask(|reply| Request::StopTrace(id, reply))
        .await?
    {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::NoSuchTrace(id.to_string())),
    }
}
