//! The segments on disk: what is written, what is found again after a crash, what is removed.
//!
//! A segment begins with a head and the blocks that were open then (`carried`), so each can be read without those before it, and
//! the oldest can go at any time. It comes under its name when all of this is on disk; a crash leaves the one before as the last.
//! Behind it come events. An unfinished record at the end is what a crash leaves: it was promised to nobody and is cut off.
//!
//! ```text
//! head: kind 9 | version 1 | start 8 | first number 8 | earliest and latest time in the segment before 8, 8
//! ```

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::time::Duration;

use crate::frames::{self, HEAD, body_at, next_body, open_segment, path_of, put, sync_directory};
use crate::index::{Counts, Segment, Shared};
use crate::record::{BODY_MAX, Block, Event, Key, Record};

const HEADER: u8 = 9;
const VERSION: u8 = 1;
const HEADER_LENGTH: usize = 34;

/// What a segment's head says.
#[derive(Debug, Clone, Copy)]
struct Header {
    start_ms: u64,
    first_number: u64,
    before_min_ms: u64,
    before_max_ms: u64,
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let mut body = vec![HEADER, VERSION];
        for number in [
            self.start_ms,
            self.first_number,
            self.before_min_ms,
            self.before_max_ms,
        ] {
            body.extend(number.to_be_bytes());
        }
        body
    }

    fn decode(body: &[u8]) -> Option<Self> {
        let numbers = body.strip_prefix(&[HEADER, VERSION])?;
        let mut numbers = numbers.chunks_exact(8).map(|it| {
            let bytes = it.try_into().unwrap_or([0; 8]);
            u64::from_be_bytes(bytes)
        });
        Some(Self {
            start_ms: numbers.next()?,
            first_number: numbers.next()?,
            before_min_ms: numbers.next()?,
            before_max_ms: numbers.next()?,
        })
    }
}

/// The log as its one writer has it.
#[derive(Debug)]
pub(crate) struct Store {
    shared: Arc<Shared>,
    segment_size: u64,
    file: File,
    number: u64,
    segment: Segment,
    /// Bytes of head and carried blocks.
    carried: u64,
    batch: Vec<u8>,
    /// Of the batch.
    counts: Counts,
    min_ms: u64,
    max_ms: u64,
    next: u64,
    open: HashMap<Key, Record>,
}

impl Store {
    /// Opens the log and finds what is open. `segment_size` is when a new file begins, bytes.
    pub(crate) fn open(shared: Arc<Shared>, segment_size: u64, now_ms: u64) -> io::Result<Self> {
        let directory = shared.directory.clone();
        let numbers = frames::segments(&directory)?;
        for number in &numbers {
            // Left by a crash before it had its name.
            let _ = fs::remove_file(path_of(&directory, number + 1).with_extension("new"));
        }
        let number = numbers.last().copied().unwrap_or(0);
        let mut store = Self {
            file: open_or_null(&directory, number)?,
            shared,
            segment_size,
            number,
            segment: new_segment(now_ms, 0),
            carried: 0,
            batch: Vec::new(),
            counts: Counts::default(),
            min_ms: u64::MAX,
            max_ms: 0,
            next: 0,
            open: HashMap::new(),
        };
        if numbers.is_empty() {
            store.begin_segment(now_ms)?;
        } else {
            store.recover(&numbers)?;
        }
        store.show();
        Ok(store)
    }

    fn recover(&mut self, numbers: &[u64]) -> io::Result<()> {
        let mut found: Vec<(u64, Segment)> = Vec::new();
        for number in numbers {
            let file = open_segment(&self.shared.directory, *number)?;
            let mut head = vec![0; HEAD + HEADER_LENGTH];
            let read = file.read_at(&mut head, 0)?;
            head.truncate(read);
            let header = body_at(&head, 0, BODY_MAX).and_then(Header::decode);
            // Without a head, all that is known is that any time may be in it.
            let before = found.last().map(|(_, it)| *it);
            let header = header.unwrap_or_else(|| Header {
                start_ms: before.map_or(0, |it| it.start_ms),
                first_number: before.map_or(0, |it| it.first_number),
                before_min_ms: 0,
                before_max_ms: u64::MAX,
            });
            if let Some((_, before)) = found.last_mut() {
                before.min_ms = header.before_min_ms;
                before.max_ms = header.before_max_ms;
            }
            let segment = Segment {
                size: file.metadata()?.len(),
                ..new_segment(header.start_ms, header.first_number)
            };
            found.push((*number, segment));
        }
        let (_, last) = found.pop().unwrap_or((0, self.segment));
        self.shared.state.lock().segments.extend(found);
        self.segment = last;
        self.next = last.first_number;
        self.replay()
    }

    /// Reads the last segment.
    fn replay(&mut self) -> io::Result<()> {
        let mut bytes = Vec::new();
        (&self.file).read_to_end(&mut bytes)?;
        let is_ours = |body: &[u8]| Record::decode(body).is_some();
        let (mut at, mut torn) = (0, 0);
        while let Some((start, body)) = next_body(&bytes, at, BODY_MAX, is_ours) {
            torn += u64::from(start != at);
            at = start + HEAD + body.len();
            let Some(record) = Record::decode(body) else {
                self.carried = at as u64;
                continue;
            };
            match record.event {
                Event::Carried => self.carried = at as u64,
                _ => {
                    self.next = self.next.max(record.number + 1);
                    self.segment.min_ms = self.segment.min_ms.min(record.time_ms);
                    self.segment.max_ms = self.segment.max_ms.max(record.time_ms);
                }
            }
            apply(&mut self.open, record);
        }
        if at < bytes.len() {
            torn += 1;
            self.file.set_len(at as u64)?;
        }
        // What a killed process had written and not waited for is told to others as safe from here on.
        self.file.sync_data()?;
        self.segment.size = at as u64;
        self.shared.state.lock().counts.torn += torn;
        Ok(())
    }

    /// Puts a new segment behind the present one. Only when nothing waits to be written.
    fn begin_segment(&mut self, now_ms: u64) -> io::Result<()> {
        let directory = &self.shared.directory;
        let header = Header {
            start_ms: now_ms,
            first_number: self.next,
            before_min_ms: self.segment.min_ms,
            before_max_ms: self.segment.max_ms,
        };
        let mut bytes = Vec::new();
        put(&mut bytes, &header.encode());
        for record in self.open.values() {
            let carried = Record {
                event: Event::Carried,
                time_ms: now_ms,
                ..record.clone()
            };
            put(&mut bytes, &carried.encode());
        }
        let name = path_of(directory, self.number + 1);
        let new = name.with_extension("new");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let mut file = options.mode(0o600).open(&new)?;
        file.write_all(&bytes)?;
        file.sync_data()?;
        fs::rename(&new, &name)?;
        sync_directory(directory)?;
        if self.number != 0 {
            let mut state = self.shared.state.lock();
            state.segments.insert(self.number, self.segment);
        }
        self.file = file;
        self.number += 1;
        self.carried = bytes.len() as u64;
        self.segment = Segment {
            size: self.carried,
            ..new_segment(now_ms, self.next)
        };
        self.shared.state.lock().counts.bytes += self.carried;
        Ok(())
    }

    /// Shows others how far the log is safe.
    fn show(&self) {
        let mut state = self.shared.state.lock();
        state.segments.insert(self.number, self.segment);
        state.next = self.next;
        state.open = self.open.len();
        self.shared.changed.notify_all();
    }

    /// Notes that a block was given to a subscriber. One that the log knows as this session's is not noted again: it was found after a
    /// restart. `opened_ms` is since when it has been the session's. True if it is new.
    pub(crate) fn opened(&mut self, block: Block, opened_ms: u64, time_ms: u64) -> bool {
        if let Some(known) = self.open.get(&block.key()) {
            if known.block.accounting_id == block.accounting_id {
                return false;
            }
            let (key, accounting_id) = (block.key(), known.block.accounting_id);
            self.closed(key, accounting_id, time_ms);
        }
        self.add(Event::Opened, block, opened_ms, time_ms);
        true
    }

    /// Notes that a block was taken back from a session; without effect if it is not open for it. True if it was.
    pub(crate) fn closed(&mut self, key: Key, accounting_id: u64, time_ms: u64) -> bool {
        let Some(record) = self.open.get(&key) else {
            return false;
        };
        if record.block.accounting_id != accounting_id {
            return false;
        }
        let (block, opened_ms) = (record.block.clone(), record.opened_ms);
        self.add(Event::Closed, block, opened_ms, time_ms);
        true
    }

    /// Notes that a block is still open; returns whether it is.
    pub(crate) fn interim(&mut self, key: Key, opened_ms: u64, time_ms: u64) -> bool {
        let Some(record) = self.open.get(&key) else {
            return false;
        };
        if record.opened_ms != opened_ms {
            return false;
        }
        let block = record.block.clone();
        self.add(Event::Interim, block, opened_ms, time_ms);
        true
    }

    /// Notes that all blocks but these are closed.
    pub(crate) fn keep_only(&mut self, kept: &HashSet<(Key, u64)>, time_ms: u64) -> usize {
        let mut gone: Vec<_> = (self.open.values())
            .map(|it| (it.opened_ms, it.block.key(), it.block.accounting_id))
            .filter(|(_, key, id)| !kept.contains(&(*key, *id)))
            .collect();
        gone.sort_unstable();
        for (opened_ms, key, accounting_id) in &gone {
            self.closed(*key, *accounting_id, time_ms.max(*opened_ms));
        }
        gone.len()
    }

    /// When the log was last written, Unix milliseconds.
    pub(crate) fn last_ms(&self) -> u64 {
        self.segment.max_ms.max(self.segment.start_ms)
    }

    /// What is open: its key and since when.
    pub(crate) fn opened_blocks(&self) -> impl Iterator<Item = (Key, u64)> {
        self.open.iter().map(|(key, it)| (*key, it.opened_ms))
    }

    fn add(&mut self, event: Event, block: Block, opened_ms: u64, time_ms: u64) {
        let record = Record {
            event,
            number: self.next,
            time_ms,
            opened_ms,
            block,
        };
        self.next += 1;
        self.counts.note(event);
        self.min_ms = self.min_ms.min(time_ms);
        self.max_ms = self.max_ms.max(time_ms);
        put(&mut self.batch, &record.encode());
        apply(&mut self.open, record);
    }

    /// Whether something waits to be written.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.batch.is_empty()
    }

    /// Writes what waits and waits for the disk. What cannot be written stays in memory.
    pub(crate) fn commit(&mut self, now_ms: u64) -> io::Result<()> {
        if !self.batch.is_empty() {
            let written = (self.file)
                .write_all_at(&self.batch, self.segment.size)
                .and_then(|()| self.file.sync_data());
            if let Err(error) = written {
                // A part of it must not stand before whole records; written again whole, it is waited for anew.
                let _ = self.file.set_len(self.segment.size);
                self.shared.state.lock().counts.write_errors += 1;
                return Err(error);
            }
            self.segment.size += self.batch.len() as u64;
            self.segment.min_ms = self.segment.min_ms.min(self.min_ms);
            self.segment.max_ms = self.segment.max_ms.max(self.max_ms);
            self.counts.bytes = self.batch.len() as u64;
            self.counts.syncs = 1;
            self.batch.clear();
            self.shared.state.lock().counts.add(self.counts);
            (self.counts, self.min_ms, self.max_ms) = (Counts::default(), u64::MAX, 0);
            self.show();
        }
        let events = self.segment.size - self.carried;
        if events >= self.segment_size.max(self.carried) {
            let begun = self.begin_segment(now_ms);
            if begun.is_err() {
                self.shared.state.lock().counts.write_errors += 1;
            }
            begun?;
            self.show();
        }
        Ok(())
    }

    /// Removes the oldest segments that are too old or too much. One that an output has not taken stays, unless the log is full
    /// and `forget` is set. Returns whether there is room for more.
    pub(crate) fn trim(&self, now_ms: u64, retention: Duration, forget: bool) -> bool {
        let retention_ms = u64::try_from(retention.as_millis()).unwrap_or(u64::MAX);
        loop {
            let mut state = self.shared.state.lock();
            let is_too_much = state.size() >= self.shared.limit;
            let mut segments = state.segments.iter();
            let (Some((&oldest, _)), Some((_, second))) = (segments.next(), segments.next()) else {
                return !is_too_much;
            };
            let is_too_old = second.start_ms.saturating_add(retention_ms) < now_ms;
            if !is_too_old && !is_too_much {
                return true;
            }
            let is_taken = (state.outputs.iter()).all(|it| it.confirmed.segment > oldest);
            let may_go = is_taken || (is_too_much && forget);
            if !may_go {
                return !is_too_much;
            }
            let path = path_of(&self.shared.directory, oldest);
            if let Err(error) = fs::remove_file(path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(%error, segment = oldest, "file of the NAT log could not be removed");
                return !is_too_much;
            }
            state.segments.remove(&oldest);
        }
    }
}

fn open_or_null(directory: &std::path::Path, number: u64) -> io::Result<File> {
    match number {
        // Replaced before anything is written.
        0 => File::open(directory),
        number => open_segment(directory, number),
    }
}

const fn new_segment(start_ms: u64, first_number: u64) -> Segment {
    Segment {
        size: 0,
        first_number,
        start_ms,
        min_ms: u64::MAX,
        max_ms: 0,
    }
}

fn apply(open: &mut HashMap<Key, Record>, record: Record) {
    match record.event {
        Event::Closed => {
            open.remove(&record.block.key());
        }
        Event::Opened | Event::Interim | Event::Carried => {
            open.insert(record.block.key(), record);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
