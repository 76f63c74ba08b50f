//! Who had a public port at a time: the segments that cover the time are read, no others.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt;

use crate::frames::{self, HEAD, next_body};
use crate::index::{Segment, Shared};
use crate::record::{BODY_MAX, Block, Event, Record};

/// Somebody who had the port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The block and whose it was.
    pub block: Block,
    /// Since when, Unix milliseconds.
    pub from_ms: u64,
    /// Until when, Unix milliseconds; `None` while it is still open.
    pub until_ms: Option<u64>,
}

/// What the log says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Those who had it: one, or more if the clock was set back.
    Held(Vec<Holder>),
    /// Nobody had it.
    Nobody,
    /// The log does not reach back so far.
    BeforeLog {
        /// Since when it knows, Unix milliseconds.
        since_ms: u64,
    },
}

impl Shared {
    /// Who had the port at a time.
    pub(crate) fn who(&self, public: Ipv4Addr, port: u16, at_ms: u64) -> io::Result<Answer> {
        let segments: Vec<(u64, Segment)> = {
            let state = self.state.lock();
            (state.segments.iter()).map(|it| (*it.0, *it.1)).collect()
        };
        let since_ms = segments.first().map_or(0, |(_, it)| it.start_ms);
        let mut held: Vec<Holder> = Vec::new();
        for (index, (number, segment)) in segments.iter().enumerate() {
            let next = segments.get(index + 1).map(|(_, it)| it.start_ms);
            let begin = segment.start_ms.min(segment.min_ms);
            let end = next.map_or(u64::MAX, |next| next.max(segment.max_ms));
            // What was open when the log began tells of the time before as well.
            if (begin > at_ms && index != 0) || end < at_ms {
                continue;
            }
            let spans = match self.spans(*number, segment.size, public, port) {
                Ok(spans) => spans,
                // It has just been removed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            for holder in spans {
                let is_then =
                    holder.from_ms <= at_ms && holder.until_ms.is_none_or(|until| at_ms < until);
                let is_known = held.iter().any(|it| {
                    it.from_ms == holder.from_ms
                        && it.block.accounting_id == holder.block.accounting_id
                });
                if is_then && !is_known {
                    held.push(holder);
                }
            }
        }
        for holder in held.iter_mut().filter(|it| it.until_ms.is_none()) {
            holder.until_ms = self.end_of(holder, port, &segments, at_ms)?;
        }
        if held.is_empty() {
            return Ok(match at_ms < since_ms {
                true => Answer::BeforeLog { since_ms },
                false => Answer::Nobody,
            });
        }
        Ok(Answer::Held(held))
    }

    /// When a block was closed that was open at the end of the segments looked at. It is carried into every segment until then, so
    /// the one in which it was closed is found by halving.
    fn end_of(
        &self,
        holder: &Holder,
        port: u16,
        segments: &[(u64, Segment)],
        at_ms: u64,
    ) -> io::Result<Option<u64>> {
        let mut low = segments.partition_point(|(_, it)| it.start_ms <= at_ms);
        let mut high = segments.len();
        let mut until_ms = None;
        while low < high {
            let middle = low + (high - low) / 2;
            let Some((number, segment)) = segments.get(middle) else {
                break;
            };
            let spans = self.spans(*number, segment.size, holder.block.public, port)?;
            let own = spans.into_iter().find(|it| {
                it.from_ms == holder.from_ms && it.block.accounting_id == holder.block.accounting_id
            });
            match own {
                Some(Holder {
                    until_ms: Some(until),
                    ..
                }) => return Ok(Some(until)),
                Some(_) => low = middle + 1,
                None => {
                    // Closed in the segment before, at its end at the latest.
                    until_ms = Some(segment.start_ms);
                    high = middle;
                }
            }
        }
        Ok(until_ms)
    }

    /// Who had the port, as one segment tells it, in the order of the file.
    fn spans(
        &self,
        number: u64,
        size: u64,
        public: Ipv4Addr,
        port: u16,
    ) -> io::Result<Vec<Holder>> {
        let file = File::open(frames::path_of(&self.directory, number))?;
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        file.read_exact_at(&mut bytes, 0)?;
        let mut spans: Vec<Holder> = Vec::new();
        let mut at = 0;
        let is_ours = |body: &[u8]| Record::decode(body).is_some();
        while let Some((start, body)) = next_body(&bytes, at, BODY_MAX, is_ours) {
            at = start + HEAD + body.len();
            if !Record::is_about(body, public, port) {
                continue;
            }
            let Some(record) = Record::decode(body) else {
                continue;
            };
            let last = spans.last_mut().filter(|it| it.until_ms.is_none());
            let own = last.filter(|it| it.from_ms == record.opened_ms);
            match (record.event, own) {
                (Event::Closed, Some(open)) => open.until_ms = Some(record.time_ms),
                (Event::Interim | Event::Carried | Event::Opened, Some(_)) => {}
                (event, None) => spans.push(Holder {
                    until_ms: (event == Event::Closed).then_some(record.time_ms),
                    from_ms: record.opened_ms,
                    block: record.block,
                }),
            }
        }
        Ok(spans)
    }
}
