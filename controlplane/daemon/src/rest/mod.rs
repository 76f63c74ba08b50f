//! REST under `/api/v1`, `/healthz` and `/metrics`.

#[macro_use]
mod subscriber;
mod error;
mod events;
mod limits;
mod lockouts;
mod nat;
mod policies;
mod reload;
mod serve;
mod sessions;
mod status;
pub mod token;
mod traces;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::timeout::TimeoutLayer;
use utoipa::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::health;
use crate::metrics;
use crate::reload::InForce;
use crate::request::{DriverHandle, Link};
use crate::settings::Settings;
use crate::status::Status;
use error::{ApiError, ErrorBody};
pub use serve::{ListenLimits, serve};

/// Every body there is is far shorter.
const BODY_LIMIT: usize = 16 * 1024;
/// How long an answer may be in coming; a stream of events goes on after it has begun.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// What the handlers share.
#[derive(Debug, Clone)]
pub struct Api {
    /// The way to the driver.
    pub link: Link,
    /// Names of ports, and what a client has to know.
    pub in_force: Arc<InForce>,
}

impl Api {
    fn driver(&self) -> Result<DriverHandle, ApiError> {
        self.link.driver().map_err(ApiError::NotReady)
    }

    fn settings(&self) -> Arc<Settings> {
        self.in_force.settings()
    }

    async fn status(&self) -> Result<Box<Status>, ApiError> {
        let driver = self.driver()?;
        Ok(driver.ask(crate::request::Request::Status).await?)
    }
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "ironbng control plane",
        description = "Sessions and state of the gateway. Times are Unix milliseconds. Every answer that is no success is an `Error`."
    ),
    components(schemas(ErrorBody)),
    security(("token" = []))
)]
struct Description;

fn api_router() -> OpenApiRouter<Api> {
    let mut description = Description::openapi();
    let token = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    description
        .components
        .get_or_insert_default()
        .add_security_scheme("token", token);
    OpenApiRouter::with_openapi(description)
        .routes(routes!(sessions::list))
        .routes(routes!(sessions::history))
        .routes(routes!(sessions::show, sessions::end, limits::change))
        .routes(routes!(events::events))
        .routes(routes!(traces::list, traces::start))
        .routes(routes!(traces::show, traces::stop))
        .routes(routes!(traces::pcapng))
        .routes(routes!(lockouts::list, lockouts::unlock))
        .routes(routes!(reload::reload))
        .routes(routes!(nat::who))
        .routes(routes!(policies::change))
        .routes(routes!(policies::policies))
        .routes(routes!(policies::filters))
        .routes(routes!(status::workers))
        .routes(routes!(status::ports))
        .routes(routes!(status::drops))
        .routes(routes!(status::pools))
        .routes(routes!(status::dataplane))
        .routes(routes!(status::coalescing))
        .routes(routes!(status::radius))
}

/// Everything that is served at `api.listen`; `with_metrics` unless metrics have an address of their own.
pub fn router(api: Api, with_metrics: bool) -> Router {
    let (routes, description) = api_router().split_for_parts();
    let guarded = routes.route_layer(axum::middleware::from_fn_with_state(
        api.clone(),
        token::require,
    ));
    let open = Router::new()
        .route(
            "/api/v1/openapi.json",
            get(move || std::future::ready(Json(description))),
        )
        .route("/healthz", get(healthz));
    let open = match with_metrics {
        true => open.route("/metrics", get(prometheus)),
        false => open,
    };
    limited(guarded.merge(open).with_state(api))
}

/// What is served at `api.metrics_listen`.
pub fn metrics_router(api: Api) -> Router {
    let routes = Router::new().route("/metrics", get(prometheus));
    limited(routes.with_state(api))
}

fn limited(router: Router) -> Router {
    router
        .fallback(|| std::future::ready(ApiError::NoSuchPath))
        .method_not_allowed_fallback(|| std::future::ready(ApiError::Method))
        .layer(RequestBodyLimitLayer::new(BODY_LIMIT))
        .layer(TimeoutLayer::with_status_code(
            StatusCode::GATEWAY_TIMEOUT,
            TIME_LIMIT,
        ))
        .layer(axum::middleware::map_response(in_json))
}

/// The limits above answer in their own words; clients are promised one shape.
async fn in_json(response: Response) -> Response {
    match response.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::TooLarge(BODY_LIMIT).into_response(),
        StatusCode::GATEWAY_TIMEOUT if !is_json(&response) => ApiError::TimeLimit.into_response(),
        _ => response,
    }
}

fn is_json(response: &Response) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"))
}

async fn healthz(State(api): State<Api>) -> Response {
    let health = health::check(&api.link, &api.settings()).await;
    (health.http_status(), Json(health)).into_response()
}

async fn prometheus(State(api): State<Api>) -> Result<Response, ApiError> {
    let status = api.status().await?;
    let text = metrics::text(&status, &api.settings().coalescing, api.in_force.counts())
        .map_err(|error| ApiError::Internal(error.to_string()))?;
    let kind = [(header::CONTENT_TYPE, metrics::CONTENT_TYPE)];
    Ok((kind, text).into_response())
}
