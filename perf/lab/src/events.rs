//! The gateway's stream of events (server-sent events), as a reader of it sees them.

use std::io::{BufRead, BufReader, Read};

use serde_json::Value;

use crate::error::{Context, LabError, Result};

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Its id, for [`crate::Api::events`]; empty when it has none.
    pub id: String,
    /// Its name, as `session_up`.
    pub name: String,
    /// Its JSON document.
    pub data: Value,
}

impl Event {
    /// A text of the document, empty when it is none.
    #[must_use]
    pub fn text(&self, key: &str) -> &str {
        self.data[key].as_str().unwrap_or_default()
    }
}

/// An open stream of events. It is closed on drop.
pub struct EventStream {
    url: String,
    lines: BufReader<Box<dyn Read + Send>>,
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventStream")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

impl EventStream {
    pub(crate) fn new(url: String, body: impl Read + Send + 'static) -> Self {
        let lines = BufReader::new(Box::new(body) as _);
        Self { url, lines }
    }

    /// Waits for the next event; `None` when the gateway has ended the stream.
    ///
    /// # Errors
    /// When the stream breaks off or its time is over, and [`LabError::Unreadable`] for what is no event.
    pub fn next_event(&mut self) -> Result<Option<Event>> {
        let (mut id, mut name, mut data) = (String::new(), String::new(), String::new());
        loop {
            let mut line = String::new();
            let length = self.lines.read_line(&mut line);
            if length.context(|| format!("read from {}", self.url))? == 0 {
                return Ok(None);
            }
            let line = line.trim_end_matches(['\r', '\n']);
            // A line that begins with a colon is a comment: a sign of life.
            match line.split_once(':') {
                None if line.is_empty() && !data.is_empty() => break,
                Some(("id", value)) => value.trim_start().clone_into(&mut id),
                Some(("event", value)) => value.trim_start().clone_into(&mut name),
                Some(("data", value)) => data.push_str(value.trim_start()),
                _ => {}
            }
        }
        let parsed = serde_json::from_str(&data);
        let data = parsed.map_err(|_| LabError::Unreadable {
            what: "the document of an event".to_owned(),
            text: data,
        })?;
        Ok(Some(Event { id, name, data }))
    }

    /// Waits for the next `count` events.
    ///
    /// # Errors
    /// As [`EventStream::next_event`], and when the stream ends before.
    pub fn take(&mut self, count: usize) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        while events.len() < count {
            let next = self.next_event()?.ok_or_else(|| LabError::Unreadable {
                what: format!("{count} events"),
                text: format!("{events:?}"),
            })?;
            events.push(next);
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_one_by_one_between_signs_of_life() {
        let text = ":\n\nid: ab-1\nevent: session_up\ndata: {\"user\":\"alice\"}\n\n:\n\n\
                    event: lost\ndata: {\"missed\":3}\n\n";
        let mut stream = EventStream::new(String::new(), text.as_bytes());
        let [up, lost] = &stream.take(2).unwrap()[..] else {
            unreachable!()
        };
        assert_eq!((up.id.as_str(), up.text("user")), ("ab-1", "alice"));
        assert_eq!((lost.id.as_str(), lost.name.as_str()), ("", "lost"));
        assert_eq!(stream.next_event().unwrap(), None);
        assert!(stream.take(1).is_err());
        let mut bad = EventStream::new(String::new(), &b"data: {\n\n"[..]);
        assert!(bad.next_event().is_err());
    }
}
