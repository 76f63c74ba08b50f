//! The gateway over REST.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;
use ureq::Agent;

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(15);

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
            Self::Answer { url } => write!(f, "{url}: the answer is none of bng-controlplane"),
        }
    }
}

impl Failure {
    /// The status of the process.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Refused { .. } | Self::Answer { .. } => 1,
            Self::Token { .. } | Self::Url { .. } => 2,
            Self::Unreachable { .. } => 3,
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

    /// Deletes what is at a path.
    pub(crate) fn delete(&self, path: &str) -> Result<(), Failure> {
        let request = self.agent.delete(format!("{}{path}", self.url));
        let request = request.header("Authorization", format!("Bearer {}", self.token()?));
        let (status, body) = self.answer(request.call())?;
        match status {
            200..=299 => Ok(()),
            _ => self.success(status, body).map(drop),
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
        let unreachable = |error: ureq::Error| {
            let (url, reason) = (self.url.clone(), error.to_string());
            match error {
                ureq::Error::BadUri(_) | ureq::Error::Http(_) => Failure::Url { url, reason },
                _ => Failure::Unreachable { url, reason },
            }
        };
        let mut answer = answer.map_err(unreachable)?;
        let text = answer.body_mut().read_to_string().map_err(unreachable)?;
        Ok((answer.status().as_u16(), serde_json::from_str(&text).ok()))
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
