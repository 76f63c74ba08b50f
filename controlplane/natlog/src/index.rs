//! What the writer, the outputs and whoever asks look at together: which segments there are, how far they are safe, and how far
//! each output has come.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use parking_lot::{Condvar, Mutex};

use crate::frames::{self, HEAD, body_at, next_body};
use crate::output::OutputOptions;
use crate::record::{BODY_MAX, Event, Record};

/// A place in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    pub(crate) segment: u64,
    pub(crate) offset: u64,
    /// Number of the first record at or after it.
    pub(crate) number: u64,
}

/// A segment, as far as it is safe on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) size: u64,
    /// Number of the first record that is an event of its own.
    pub(crate) first_number: u64,
    /// When it began, Unix milliseconds.
    pub(crate) start_ms: u64,
    /// Earliest and latest time of its events: they leave the order of the files when the clock is set.
    pub(crate) min_ms: u64,
    pub(crate) max_ms: u64,
}

/// Counts since the log was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records `opened`.
    pub opened: u64,
    /// Records `interim`.
    pub interim: u64,
    /// Records `closed`.
    pub closed: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Writes that failed; what they held waits in memory.
    pub write_errors: u64,
    /// Unfinished ends of files that were cut off, and damaged places that were passed over.
    pub torn: u64,
    /// Interim records left out because the log was full.
    pub interims_left_out: u64,
    /// Times records were made safe: one wait for the disk each.
    pub syncs: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: Self) {
        self.opened += other.opened;
        self.interim += other.interim;
        self.closed += other.closed;
        self.bytes += other.bytes;
        self.syncs += other.syncs;
    }

    pub(crate) const fn note(&mut self, event: Event) {
        match event {
            Event::Opened => self.opened += 1,
            Event::Interim => self.interim += 1,
            Event::Closed => self.closed += 1,
            Event::Carried => {}
        }
    }
}

/// How an output is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputView {
    /// Protocol, transport and server, such as `syslog-tcp-192.0.2.1:514`.
    pub name: String,
    /// Whether its connection is up; without one, whether its last datagram was sent.
    pub connected: bool,
    /// Records not sent yet.
    pub waiting: u64,
    /// Age of the oldest of them, milliseconds.
    pub waiting_ms: u64,
    /// Records sent, those sent again included.
    pub sent: u64,
    /// Times a connection was made after the first one.
    pub reconnects: u64,
    /// Connections and datagrams that failed.
    pub errors: u64,
    /// Records that were removed before it had them.
    pub lost: u64,
}

/// How the log is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// Since it was opened.
    pub counts: Counts,
    /// Blocks open now.
    pub open: usize,
    /// Bytes of all segments.
    pub size: u64,
    /// Most they may have.
    pub limit: u64,
    /// Since when the log knows who had a port, Unix milliseconds.
    pub since_ms: u64,
    /// Why the disk cannot be written.
    pub failing: Option<String>,
    /// Whether there is no room for what some output has not taken.
    pub full: bool,
    /// Its outputs, in the order of the configuration.
    pub outputs: Vec<OutputView>,
}

/// How far an output is.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) name: String,
    /// The first record that may have to be sent again.
    pub(crate) confirmed: Position,
    /// Number of the next record to send.
    pub(crate) next: u64,
    /// When it last had nothing to send, or sent something, Unix milliseconds.
    pub(crate) current_ms: u64,
    pub(crate) connected: bool,
    pub(crate) sent: u64,
    pub(crate) reconnects: u64,
    pub(crate) errors: u64,
    pub(crate) lost: u64,
}

impl Output {
    pub(crate) fn new(options: &OutputOptions, at: Position, now_ms: u64) -> Self {
        Self {
            name: options.name(),
            confirmed: at,
            next: at.number,
            current_ms: now_ms,
            connected: false,
            sent: 0,
            reconnects: 0,
            errors: 0,
            lost: 0,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) segments: BTreeMap<u64, Segment>,
    /// Number of the next record.
    pub(crate) next: u64,
    pub(crate) outputs: Vec<Output>,
    pub(crate) counts: Counts,
    pub(crate) open: usize,
    pub(crate) failing: Option<String>,
    pub(crate) full: bool,
    pub(crate) stop: bool,
}

impl State {
    /// The place behind everything that is safe.
    pub(crate) fn end(&self) -> Position {
        let last = self.segments.last_key_value();
        last.map_or_else(Position::default, |(segment, it)| Position {
            segment: *segment,
            offset: it.size,
            number: self.next,
        })
    }

    /// The first place there is.
    pub(crate) fn begin(&self) -> Position {
        let first = self.segments.first_key_value();
        first.map_or_else(Position::default, |(segment, it)| Position {
            segment: *segment,
            offset: 0,
            number: it.first_number,
        })
    }

    pub(crate) fn size(&self) -> u64 {
        self.segments.values().map(|it| it.size).sum()
    }

    /// The same place, or the nearest there is now, and how many records that leaves out.
    pub(crate) fn nearest(&self, at: Position) -> (Position, u64) {
        match self.segments.get(&at.segment) {
            Some(segment) => {
                let offset = at.offset.min(segment.size);
                (Position { offset, ..at }, 0)
            }
            None if at.segment > self.end().segment => (self.end(), 0),
            None => {
                let begin = self.begin();
                (begin, begin.number.saturating_sub(at.number))
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) directory: PathBuf,
    pub(crate) limit: u64,
    pub(crate) state: Mutex<State>,
    /// More is safe, an output is further, or everything is to end.
    pub(crate) changed: Condvar,
}

impl Shared {
    pub(crate) fn new(directory: PathBuf, limit: u64) -> Self {
        Self {
            directory,
            limit,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn view(&self, now_ms: u64) -> View {
        let state = self.state.lock();
        let outputs = state.outputs.iter().map(|it| {
            let waiting = state.next.saturating_sub(it.next);
            OutputView {
                name: it.name.clone(),
                connected: it.connected,
                waiting,
                waiting_ms: match waiting {
                    0 => 0,
                    _ => now_ms.saturating_sub(it.current_ms),
                },
                sent: it.sent,
                reconnects: it.reconnects,
                errors: it.errors,
                lost: it.lost,
            }
        });
        View {
            counts: state.counts,
            open: state.open,
            size: state.size(),
            limit: self.limit,
            since_ms: state.segments.values().next().map_or(0, |it| it.start_ms),
            failing: state.failing.clone(),
            full: state.full,
            outputs: outputs.collect(),
        }
    }

    /// Events from a place on, as many as `most` bytes hold, and the place behind them. `None` when the segment is gone.
    pub(crate) fn read(
        &self,
        at: Position,
        most: usize,
    ) -> io::Result<Option<(Vec<Record>, Position)>> {
        let (size, next) = {
            let state = self.state.lock();
            let Some(segment) = state.segments.get(&at.segment) else {
                return Ok(None);
            };
            let mut later = state.segments.range(at.segment + 1..);
            (segment.size, later.next().map(|(number, _)| *number))
        };
        let left = size.saturating_sub(at.offset);
        let Some(next) = next.filter(|_| left == 0) else {
            return self.read_within(at, left, most).map(Some);
        };
        let behind = Position {
            segment: next,
            offset: 0,
            number: at.number,
        };
        Ok(Some((Vec::new(), behind)))
    }

    fn read_within(
        &self,
        from: Position,
        left: u64,
        most: usize,
    ) -> io::Result<(Vec<Record>, Position)> {
        // At least one whole record fits.
        let most = most.max(2 * (HEAD + BODY_MAX)) as u64;
        let mut bytes = vec![0; usize::try_from(left.min(most)).unwrap_or(0)];
        let file = File::open(frames::path_of(&self.directory, from.segment))?;
        file.read_exact_at(&mut bytes, from.offset)?;
        let (mut found, mut behind, mut at) = (Vec::new(), from, 0);
        loop {
            let is_last = left <= most;
            let (start, body) = match body_at(&bytes, at, BODY_MAX) {
                Some(body) => (at, body),
                // The rest of a record that was not read whole: it is the first of the next part.
                None if !is_last && bytes.len() - at < HEAD + BODY_MAX => break,
                None => match next_body(&bytes, at, BODY_MAX, |it| Record::decode(it).is_some()) {
                    Some(next) => next,
                    None => {
                        // Damaged to the end.
                        behind.offset = from.offset + bytes.len() as u64;
                        break;
                    }
                },
            };
            at = start + HEAD + body.len();
            behind.offset = from.offset + at as u64;
            let Some(record) = Record::decode(body) else {
                continue;
            };
            if record.event != Event::Carried {
                behind.number = record.number + 1;
                found.push(record);
            }
        }
        Ok((found, behind))
    }
}
