//! Waiting for what is only told when asked.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use crate::error::{LabError, Result};

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(50);

/// Asks again until `accept` is true of the answer, and returns that answer. For counters and lists, which tell nobody when they
/// change; where there is an event (a log line, the end of a process, a frame), wait for that.
///
/// # Errors
/// [`LabError::Timeout`] with the last answer or error after `limit`.
pub fn wait_until<T: Debug>(
    what: &str,
    limit: Duration,
    ask: impl Fn() -> Result<T>,
    accept: impl Fn(&T) -> bool,
) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        let answer = ask();
        if let Ok(value) = &answer
            && accept(value)
        {
            return answer;
        }
        if Instant::now() >= end {
            return Err(LabError::Timeout {
                what: what.to_owned(),
                after: limit,
                tail: match answer {
                    Ok(value) => format!("{value:?}"),
                    Err(error) => error.to_string(),
                },
            });
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn the_first_accepted_answer_is_returned() {
        let count = Cell::new(0);
        let ask = || {
            count.set(count.get() + 1);
            Ok(count.get())
        };
        assert_eq!(
            wait_until("three", Duration::from_secs(10), ask, |n| *n == 3).unwrap(),
            3
        );
    }

    #[test]
    fn the_last_answer_is_in_the_error() {
        let error =
            wait_until("a five", Duration::from_millis(60), || Ok(4), |n| *n == 5).unwrap_err();
        assert!(
            error.to_string().starts_with("a five: not within"),
            "{error}"
        );
        assert!(error.to_string().ends_with("\n4"), "{error}");
    }
}
