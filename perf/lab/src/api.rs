//! The gateway's REST interface and metrics, asked from inside its namespace.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use ureq::Agent;

use crate::error::{LabError, Result};
use crate::events::EventStream;
use crate::namespace::Namespace;

/// Client of one gateway.
#[derive(Debug)]
pub struct Api<'lab> {
    namespace: &'lab Namespace,
    base: String,
    token: String,
    agent: Agent,
}

impl<'lab> Api<'lab> {
    /// A client for the gateway that listens on `base` (`http://127.0.0.1:8080`) in `namespace`.
    #[must_use]
    pub fn new(namespace: &'lab Namespace, base: &str, token: &str) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(20)))
            // A kept-alive connection would not survive a restart of the daemon.
            .max_idle_connections(0)
            .build();
        Self {
            namespace,
            base: base.to_owned(),
            token: token.to_owned(),
            agent: config.into(),
        }
    }

    /// GET; returns status and body.
    ///
    /// # Errors
    /// [`LabError::Http`] when there is no answer.
    pub fn get_raw(&self, path: &str) -> Result<(u16, String)> {
        self.request("GET", path, |agent, url, token| {
            agent.get(url).header("Authorization", token).call()
        })
    }

    /// GET of a JSON document.
    ///
    /// # Errors
    /// [`LabError::HttpStatus`] for a status other than 200, [`LabError::Unreadable`] when the body is not JSON.
    pub fn get(&self, path: &str) -> Result<Value> {
        match self.get_raw(path)? {
            (200, body) => parse(path, body),
            (status, body) => Err(self.status("GET", path, status, body)),
        }
    }

    /// GET of a file.
    ///
    /// # Errors
    /// [`LabError::HttpStatus`] for a status other than 200.
    pub fn download(&self, path: &str) -> Result<Vec<u8>> {
        let url = format!("{}{path}", self.base);
        let request = self
            .agent
            .get(&url)
            .header("Authorization", format!("Bearer {}", self.token));
        let outcome = self.namespace.within(|| {
            let mut response = request.call()?;
            let body = response.body_mut().read_to_vec()?;
            Ok((response.status().as_u16(), body))
        })?;
        let outcome: std::result::Result<_, ureq::Error> = outcome;
        match outcome {
            Ok((200, body)) => Ok(body),
            Ok((status, body)) => {
                let body = String::from_utf8_lossy(&body).into_owned();
                Err(self.status("GET", path, status, body))
            }
            Err(source) => Err(LabError::Http {
                method: "GET",
                url,
                source: Box::new(source),
            }),
        }
    }

    /// DELETE.
    ///
    /// # Errors
    /// [`LabError::HttpStatus`] for a status that is not 2xx.
    pub fn delete(&self, path: &str) -> Result<()> {
        let (status, body) = self.request("DELETE", path, |agent, url, token| {
            agent.delete(url).header("Authorization", token).call()
        })?;
        if (200..300).contains(&status) {
            return Ok(());
        }
        Err(self.status("DELETE", path, status, body))
    }

    /// PATCH with a JSON document; returns the answer's, or null when it has none.
    ///
    /// # Errors
    /// [`LabError::HttpStatus`] for a status that is not 2xx, [`LabError::Unreadable`] when the body is not JSON.
    pub fn patch(&self, path: &str, document: &Value) -> Result<Value> {
        let text = document.to_string();
        let (status, body) = self.request("PATCH", path, |agent, url, token| {
            agent
                .patch(url)
                .header("Authorization", token)
                .header("Content-Type", "application/json")
                .send(&text)
        })?;
        match status {
            200..300 if body.is_empty() => Ok(Value::Null),
            200..300 => parse(path, body),
            _ => Err(self.status("PATCH", path, status, body)),
        }
    }

    /// POST of a JSON document; returns status and body.
    ///
    /// # Errors
    /// [`LabError::Http`] when there is no answer.
    pub fn post_raw(&self, path: &str, document: &Value) -> Result<(u16, String)> {
        let text = document.to_string();
        self.request("POST", path, |agent, url, token| {
            agent
                .post(url)
                .header("Authorization", token)
                .header("Content-Type", "application/json")
                .send(&text)
        })
    }

    /// POST of a JSON document; returns the answer's.
    ///
    /// # Errors
    /// [`LabError::HttpStatus`] for a status that is not 2xx, [`LabError::Unreadable`] when the body is not JSON.
    pub fn post(&self, path: &str, document: &Value) -> Result<Value> {
        match self.post_raw(path, document)? {
            (200..300, body) => parse(path, body),
            (status, body) => Err(self.status("POST", path, status, body)),
        }
    }

    /// Follows the stream of events: what comes from now on or, with `last`, after the event of that id. `limit` is for the whole
    /// of the stream.
    ///
    /// # Errors
    /// [`LabError::Http`] when there is no answer, [`LabError::HttpStatus`] for a status other than 200.
    pub fn events(&self, last: Option<&str>, limit: Duration) -> Result<EventStream> {
        let path = "/api/v1/events";
        let url = format!("{}{path}", self.base);
        let request = self
            .agent
            .get(&url)
            .header("Authorization", format!("Bearer {}", self.token));
        let request = match last {
            Some(id) => request.header("Last-Event-ID", id),
            None => request,
        };
        let request = request.config().timeout_global(Some(limit)).build();
        let outcome = self.namespace.within(|| request.call())?;
        let mut response = outcome.map_err(|source| LabError::Http {
            method: "GET",
            url: url.clone(),
            source: Box::new(source),
        })?;
        match response.status().as_u16() {
            200 => Ok(EventStream::new(url, response.into_body().into_reader())),
            status => {
                let body = response.body_mut().read_to_string().unwrap_or_default();
                Err(self.status("GET", path, status, body))
            }
        }
    }

    /// All samples of `/metrics`.
    ///
    /// # Errors
    /// When there is no answer or it is not in Prometheus' text format.
    pub fn metrics(&self) -> Result<Metrics> {
        match self.get_raw("/metrics")? {
            (200, body) => Metrics::parse(&body),
            (status, body) => Err(self.status("GET", "/metrics", status, body)),
        }
    }

    fn request(
        &self,
        method: &'static str,
        path: &str,
        send: impl FnOnce(
            &Agent,
            &str,
            &str,
        ) -> std::result::Result<ureq::http::Response<ureq::Body>, ureq::Error>
        + Send,
    ) -> Result<(u16, String)> {
        let url = format!("{}{path}", self.base);
        let token = format!("Bearer {}", self.token);
        let outcome = self.namespace.within(|| {
            let mut response = send(&self.agent, &url, &token)?;
            let body = response.body_mut().read_to_string()?;
            Ok((response.status().as_u16(), body))
        })?;
        outcome.map_err(|source| LabError::Http {
            method,
            url,
            source: Box::new(source),
        })
    }

    fn status(&self, method: &'static str, path: &str, status: u16, body: String) -> LabError {
        LabError::HttpStatus {
            method,
            url: format!("{}{path}", self.base),
            status,
            body,
        }
    }
}

fn parse(path: &str, body: String) -> Result<Value> {
    serde_json::from_str(&body).map_err(|_| LabError::Unreadable {
        what: format!("the answer to {path}"),
        text: body,
    })
}

/// One sample: its labels and value.
#[derive(Debug, Clone, PartialEq)]
struct Sample {
    labels: BTreeMap<String, String>,
    value: f64,
}

/// Samples of `/metrics`, by metric name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metrics {
    samples: BTreeMap<String, Vec<Sample>>,
}

impl Metrics {
    /// Reads Prometheus' text format, version 0.0.4.
    ///
    /// # Errors
    /// [`LabError::Unreadable`] with the first line that is not in it.
    pub fn parse(text: &str) -> Result<Self> {
        let mut metrics = Self::default();
        for line in text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            let (name, sample) = sample(line).ok_or_else(|| LabError::Unreadable {
                what: "a line of /metrics".to_owned(),
                text: line.to_owned(),
            })?;
            metrics.samples.entry(name).or_default().push(sample);
        }
        Ok(metrics)
    }

    /// Sum over the samples of `name` that have all of `labels`; 0 when there is none, as a counter that never rose may be
    /// absent.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let samples = self.samples.get(name).map_or(&[][..], Vec::as_slice);
        let matching = samples.iter().filter(|sample| {
            labels
                .iter()
                .all(|(key, value)| sample.labels.get(*key).is_some_and(|have| have == value))
        });
        matching.map(|sample| sample.value).sum()
    }

    /// The samples of `name` summed up by the value of one label, as drops of all workers by `reason`.
    #[must_use]
    pub fn by_label(&self, name: &str, label: &str) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for sample in self.samples.get(name).map_or(&[][..], Vec::as_slice) {
            if let Some(value) = sample.labels.get(label) {
                *sums.entry(value.clone()).or_insert(0.0) += sample.value;
            }
        }
        sums
    }

    /// Whether there is any sample of that name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.samples.contains_key(name)
    }
}

/// `name{label="value",...} 12` or `name 12`; label values may hold `\"`, `\\` and `\n`.
fn sample(line: &str) -> Option<(String, Sample)> {
    let end = line.find(['{', ' '])?;
    let name = line[..end].to_owned();
    let mut labels = BTreeMap::new();
    let mut rest = &line[end..];
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (key, after) = rest.split_once("=\"")?;
            let mut value = String::new();
            let mut characters = after.char_indices();
            let close = loop {
                match characters.next()? {
                    (at, '"') => break at,
                    (_, '\\') => match characters.next()?.1 {
                        'n' => value.push('\n'),
                        other => value.push(other),
                    },
                    (_, other) => value.push(other),
                }
            };
            labels.insert(key.to_owned(), value);
            rest = after[close + 1..].trim_start_matches(',');
        }
        rest = &rest[1..];
    }
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some((name, Sample { labels, value }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_read_with_labels() {
        let text = "# HELP a b\n# TYPE a counter\na{worker=\"0\",direction=\"up\"} 3\na{worker=\"1\",direction=\"up\"} 4\n\
                    b 1.5e3\nc{text=\"x \\\"y\\\", z\"} 7\n";
        let metrics = Metrics::parse(text).unwrap();
        assert_eq!(metrics.sum("a", &[]), 7.0);
        assert_eq!(
            metrics.sum("a", &[("worker", "1"), ("direction", "up")]),
            4.0
        );
        assert_eq!(metrics.sum("a", &[("worker", "2")]), 0.0);
        assert_eq!(metrics.sum("b", &[]), 1500.0);
        assert_eq!(metrics.sum("c", &[("text", "x \"y\", z")]), 7.0);
        assert_eq!(
            metrics.by_label("a", "worker"),
            BTreeMap::from([("0".to_owned(), 3.0), ("1".to_owned(), 4.0)])
        );
        assert!(metrics.has("a") && !metrics.has("d"));
    }

    #[test]
    fn nonsense_is_refused_with_the_line() {
        let error = Metrics::parse("a{r=\"x 1\n").unwrap_err();
        assert!(error.to_string().contains("a{r="), "{error}");
    }
}
