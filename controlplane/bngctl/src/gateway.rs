//! The gateway over REST.

use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use ureq::Agent;

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(15);

/// Largest file that is taken, bytes: a trace has 4 MiB of frames, and a packet block for each.
const DOWNLOAD_MAX: u64 = 64 << 20;

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The gateway refuses.
    Refused {
        status: u16,
        error: String,
        detail: String,
    },
    /// The token cannot be read.
    Token { path: PathBuf, reason: String },
    /// The URL is none.
    Url { url: String, reason: String },
    /// Nobody answers.
    Unreachable { url: String, reason: String },
    /// A stream of events has ended.
    Ended { url: String },
    /// Events are missing: this reader was too slow.
    Lost { missed: String },
    /// A file cannot be written.
    File { path: PathBuf, reason: String },
    /// Somebody answers, but no gateway.
    Answer { url: String },
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused {
                status,
                error,
                detail,
            } => write!(f, "{error} ({status}): {detail}"),
            Self::Token { path, reason } => write!(
                f,
                "token file {}: {reason}; name it with --token-file or BNG_TOKEN_FILE",
                path.display()
            ),
            Self::Url { url, reason } => write!(f, "{url}: {reason}; give --url or BNG_URL"),
            Self::Unreachable { url, reason } => write!(
                f,
                "{url}: {reason}; is bng-controlplane running, and is this its api.listen?"
            ),
            Self::Ended { url } => write!(f, "{url}: the gateway has ended the stream"),
            Self::Lost { missed } => write!(f, "too slow: {missed} events are missing"),
            Self::File { path, reason } => write!(f, "{}: {reason}", path.display()),
            Self::Answer { url } => write!(f, "{url}: the answer is none of bng-controlplane"),
        }
    }
}

impl Failure {
    /// The status of the process.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Refused { .. } | Self::Answer { .. } | Self::Lost { .. } | Self::File { .. } => 1,
            Self::Token { .. } | Self::Url { .. } => 2,
            Self::Unreachable { .. } | Self::Ended { .. } => 3,
        })
    }
}

/// A gateway's REST interface.
#[derive(Debug)]
pub(crate) struct Gateway {
    url: String,
    token_file: PathBuf,
    agent: Agent,
}

impl Gateway {
    pub(crate) fn new(url: &str, token_file: &Path) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(LIMIT))
            .build();
        Self {
            url: url.trim_end_matches('/').to_owned(),
            token_file: token_file.to_owned(),
            agent: config.into(),
        }
    }

    fn token(&self) -> Result<String, Failure> {
        let failure = |reason: String| Failure::Token {
            path: self.token_file.clone(),
            reason,
        };
        let text = std::fs::read_to_string(&self.token_file)
            .map_err(|error| failure(error.to_string()))?;
        match text.lines().next().map(str::trim) {
            Some(token) if !token.is_empty() => Ok(token.to_owned()),
            _ => Err(failure("the first line is empty".to_owned())),
        }
    }

    /// What is at a path.
    pub(crate) fn get(
        &self,
        path: &str,
        query: &[(&'static str, String)],
    ) -> Result<Value, Failure> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        for (name, value) in query {
            request = request.query(*name, value);
        }
        let request = request.header("Authorization", format!("Bearer {}", self.token()?));
        let (status, body) = self.answer(request.call())?;
        self.success(status, body)
    }

    /// Changes what is at a path; returns what is there afterwards.
    pub(crate) fn patch(&self, path: &str, change: &Value) -> Result<Value, Failure> {
        let request = self.agent.patch(format!("{}{path}", self.url));
        let request = request.header("Authorization", format!("Bearer {}", self.token()?));
        let (status, body) = self.answer(request.send_json(change))?;
        self.success(status, body)
    }

    /// Asks for something to be made or done at a path; returns what came of it.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let request = self.agent.post(format!("{}{path}", self.url));
        let request = request.header("Authorization", format!("Bearer {}", self.token()?));
        let (status, body) = self.answer(request.send_json(body))?;
        self.success(status, body)
    }

    /// Follows a stream of events; each is given to `take` as its name, its id and its data. Returns when the gateway ends it
    /// or `take` has seen enough.
    pub(crate) fn follow(
        &self,
        path: &str,
        last: Option<&str>,
        mut take: impl FnMut(&str, &str, &str) -> ControlFlow<()>,
    ) -> Result<(), Failure> {
        let request = self.agent.get(format!("{}{path}", self.url));
        let request = request.header("Authorization", format!("Bearer {}", self.token()?));
        let request = match last {
            Some(id) => request.header("Last-Event-ID", id),
            None => request,
        };
        // A silent stream is no dead one, but the beginning of the answer must come.
        let config = request.config().timeout_global(None);
        let request = config.timeout_recv_response(Some(LIMIT)).build();
        let answer = request.call();
        if !matches!(&answer, Ok(answer) if answer.status().is_success()) {
            let (status, body) = self.answer(answer)?;
            return self.success(status, body).map(drop);
        }
        let mut answer = answer.map_err(|error| self.unreachable(error))?;
        let lines = BufReader::new(answer.body_mut().as_reader()).lines();
        let (mut event, mut id, mut data) = (String::new(), String::new(), String::new());
        for line in lines {
            let line = line.map_err(|error| self.unreachable(ureq::Error::Io(error)))?;
            match line.split_once(':') {
                None if line.is_empty() => {
                    if !data.is_empty() && take(&event, &id, &data).is_break() {
                        return Ok(());
                    }
                    event.clear();
                    data.clear();
                }
                Some(("event", value)) => value.trim_start().clone_into(&mut event),
                Some(("id", value)) => value.trim_start().clone_into(&mut id),
                Some(("data", value)) => data.push_str(value.trim_start()),
                _ => {}
            }
        }
        Ok(())
    }

    /// The end of a stream that should not have ended.
    pub(crate) fn ended(&self) -> Failure {
        Failure::Ended {
            url: self.url.clone(),
        }
    }

    /// The bytes of a file at a path.
    pub(crate) fn download(&self, path: &str) -> Result<Vec<u8>, Failure> {
        let request = self.agent.get(format!("{}{path}", self.url));
        let request = request.header("Authorization", format!("Bearer {}", self.token()?));
        match request.call() {
            Ok(mut answer) if answer.status().is_success() => {
                let body = answer.body_mut().with_config().limit(DOWNLOAD_MAX);
                body.read_to_vec().map_err(|error| self.unreachable(error))
            }
            answer => {
                let (status, body) = self.answer(answer)?;
                self.success(status, body).and(Err(Failure::Answer {
                    url: self.url.clone(),
                }))
            }
        }
    }

    /// Deletes what is at a path; returns what the gateway says to that, if anything.
    pub(crate) fn delete(
        &self,
        path: &str,
        query: &[(&'static str, String)],
    ) -> Result<Value, Failure> {
        let mut request = self.agent.delete(format!("{}{path}", self.url));
        for (name, value) in query {
            request = request.query(*name, value);
        }
        let request = request.header("Authorization", format!("Bearer {}", self.token()?));
        let (status, body) = self.answer(request.call())?;
        match status {
            200..=299 => Ok(body.unwrap_or_default()),
            _ => self.success(status, body),
        }
    }

    /// Health, also when it is bad.
    pub(crate) fn health(&self) -> Result<Value, Failure> {
        let (status, body) = self.answer(self.agent.get(format!("{}/healthz", self.url)).call())?;
        match (status, body) {
            (200 | 503, Some(health)) if health.get("status").is_some() => Ok(health),
            (status, body) => self.success(status, body),
        }
    }

    fn answer(
        &self,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<(u16, Option<Value>), Failure> {
        let mut answer = answer.map_err(|error| self.unreachable(error))?;
        let text = answer.body_mut().read_to_string();
        let text = text.map_err(|error| self.unreachable(error))?;
        Ok((answer.status().as_u16(), serde_json::from_str(&text).ok()))
    }

    fn unreachable(&self, error: ureq::Error) -> Failure {
        let (url, reason) = (self.url.clone(), error.to_string());
        match error {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => Failure::Url { url, reason },
            _ => Failure::Unreachable { url, reason },
        }
    }

    fn success(&self, status: u16, body: Option<Value>) -> Result<Value, Failure> {
        let text = |name| body.as_ref()?.get(name)?.as_str().map(str::to_owned);
        match (status, text("error"), text("detail"), &body) {
            (200..=299, _, _, Some(_)) => {}
            (400.., Some(error), Some(detail), _) => {
                return Err(Failure::Refused {
                    status,
                    error,
                    detail,
                });
            }
            _ => {
                let url = self.url.clone();
                return Err(Failure::Answer { url });
            }
        }
        Ok(body.unwrap_or_default())
    }
}
