//! What happens, as server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream};

use super::Api;
use super::error::{ApiError, ErrorBody};
use crate::stream::{Next, Reading, STREAMS_MAX};

/// Time between two signs of life on a silent stream: proxies close what is silent for a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Events as they happen (server-sent events): `session_up`, `session_down`, `auth_failure`, `dataplane_up`, `dataplane_down`,
/// `reload` and `framed_route_refused`, each with a JSON object. With `Last-Event-ID` what came since is sent first, as far as the last 1,000 events
/// reach. A reader that falls back further gets `lost` and the end of the stream.
#[utoipa::path(
    get,
    path = "/api/v1/events",
    params(("Last-Event-ID" = Option<String>, Header, description = "Id of the last event seen")),
    responses(
        (status = 200, content_type = "text/event-stream", body = String),
        (status = 401, body = ErrorBody),
        (status = 503, description = "not ready, or too many streams", body = ErrorBody)
    )
)]
pub(crate) async fn events(
    State(api): State<Api>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    let last = headers.get("last-event-id");
    // What is no text is no id of ours.
    let last = last.map(|value| value.to_str().unwrap_or(""));
    let reading = api.driver()?.feed().read(last);
    let reading = reading.ok_or(ApiError::TooManyStreams(STREAMS_MAX))?;
    let events = stream::unfold(Some(reading), async |reading| {
        let mut reading = reading?;
        match reading.next().await {
            Next::End => None,
            Next::Lost { missed } => {
                let data = format!(r#"{{"event":"lost","missed":{missed}}}"#);
                Some((Ok(Event::default().event("lost").data(data)), None))
            }
            Next::Event(entry) => {
                let event = Event::default().id(reading.name(&entry)).event(entry.event);
                // Made of strings and numbers: it is always JSON.
                let event = event.json_data(&*entry).unwrap_or_default();
                Some((Ok(event), Some::<Reading>(reading)))
            }
        }
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}
