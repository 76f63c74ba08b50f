//! What can go wrong while a lab is built, used or taken down.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

/// An error of the lab, with what a person needs to find the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// Namespaces, veth pairs and hugepages need root.
    #[error(
        "the lab needs root (network namespaces, veth pairs, hugepages): run it with sudo or as root"
    )]
    NotRoot,

    /// The process was told to end (SIGINT, SIGTERM), so nothing new is created.
    #[error("interrupted")]
    Interrupted,

    /// A program of the lab's own is not where it should be.
    #[error("{} does not exist: {remedy}", path.display())]
    Missing {
        /// What was looked for.
        path: PathBuf,
        /// How to get it.
        remedy: &'static str,
    },

    /// A system call or file operation failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, and to what.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },

    /// A command ended with another status than 0.
    #[error("`{command}` ended with {status}: {output}")]
    Command {
        /// The command line, words joined by spaces.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// Its standard error, or standard output where that is empty.
        output: String,
    },

    /// An event did not come in time.
    #[error("{what}: not within {} s; last output:\n{tail}", after.as_secs_f32())]
    Timeout {
        /// The event.
        what: String,
        /// How long it was waited for.
        after: Duration,
        /// The end of the log of whoever should have caused it.
        tail: String,
    },

    /// A process ended while something was expected from it.
    #[error("{process} ended ({status}) while waiting for {what}; last output:\n{tail}")]
    Ended {
        /// The process.
        process: String,
        /// How it ended.
        status: String,
        /// What was expected from it.
        what: String,
        /// The end of its log.
        tail: String,
    },

    /// The guest answered something that is not in the protocol of `guest/init.sh`.
    #[error("the guest's command channel is out of step: {0:?}")]
    GuestProtocol(String),

    /// A command in the guest failed.
    #[error("guest: `{command}` ended with status {status}: {output}")]
    GuestCommand {
        /// The command.
        command: String,
        /// Its exit status.
        status: i32,
        /// Its standard output and standard error.
        output: String,
    },

    /// pppd ended instead of bringing the link up, or the other way round.
    #[error("link {link}: expected {expected}, got `{event}`; pppd said:\n{log}")]
    Link {
        /// The link's name.
        link: String,
        /// What should have happened.
        expected: &'static str,
        /// What happened, as `guest/init.sh` writes it.
        event: String,
        /// pppd's output.
        log: String,
    },

    /// An HTTP request to the gateway failed below HTTP.
    #[error("{method} {url}: {source}")]
    Http {
        /// The HTTP method.
        method: &'static str,
        /// The address asked.
        url: String,
        /// What failed.
        source: Box<ureq::Error>,
    },

    /// The gateway answered with a status that was not expected.
    #[error("{method} {url} answered {status}: {body}")]
    HttpStatus {
        /// The HTTP method.
        method: &'static str,
        /// The address asked.
        url: String,
        /// The status of the answer.
        status: u16,
        /// The answer's body.
        body: String,
    },

    /// An answer has not the shape it should have.
    #[error("cannot read {what}: {text}")]
    Unreadable {
        /// Which answer.
        what: String,
        /// Its text, or the part in question.
        text: String,
    },
}

/// Result of the lab's operations.
pub type Result<T> = std::result::Result<T, LabError>;

/// Adds "what was being done" to system errors.
pub(crate) trait Context<T> {
    /// `what` names the operation and its object.
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<std::io::Error>> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| LabError::Io {
            what: what(),
            source: error.into(),
        })
    }
}

/// The last `lines` lines of a log file; says so when there is no such file.
#[must_use]
pub fn log_tail(path: &Path, lines: usize) -> String {
    match std::fs::read(path) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let all: Vec<&str> = text.lines().collect();
            all[all.len().saturating_sub(lines)..].join("\n")
        }
        Err(error) => format!("(no log {}: {error})", path.display()),
    }
}
