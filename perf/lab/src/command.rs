//! Short-lived commands: run, wait, and turn a failure into an error that shows what the command said.

use std::process::{Command, Stdio};

use crate::error::{Context, LabError, Result};

/// Runs `words` and returns its standard output.
///
/// # Errors
/// [`LabError::Io`] when it cannot be started, [`LabError::Command`] when it ends with another status than 0.
pub(crate) fn run(words: &[&str]) -> Result<String> {
    let (program, arguments) = words.split_first().unwrap_or((&"true", &[]));
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .context(|| format!("run `{}`", words.join(" ")))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(LabError::Command {
        command: words.join(" "),
        status: output.status,
        output: if said.is_empty() { text } else { said },
    })
}

/// Runs one `ip` command given as text, split at spaces: `ip("link set lo up")`.
///
/// # Errors
/// As [`run`].
pub(crate) fn ip(arguments: &str) -> Result<String> {
    let mut words = vec!["ip"];
    words.extend(arguments.split_ascii_whitespace());
    run(&words)
}
