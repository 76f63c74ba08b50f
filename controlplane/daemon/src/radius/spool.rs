//! Accounting messages on disk until a server has them.
//!
//! A directory of segments, each a file that only grows, named by its number. A record is a message, or the note that one is
//! done:
//!
//! ```text
//! length of the body, 4 | SipHash-1-3 of the body, 8 | body: kind 1 | number 8 | accounting id 8 | Unix time 8 | attributes
//! ```
//!
//! Numbers are big-endian; a note (kind 0) ends after the number. Messages are on the disk (fdatasync, once for all that arrive
//! together) before they are sent and before the driver forgets a session. Notes are written at once and not synced: a killed
//! process loses none, a machine without power may send again what a server had answered in the last moments. An unfinished
//! record at the end of a file is what a crash leaves: it was promised to nobody and is cut off. A damaged one before whole ones is
//! passed over.
//!
//! The oldest segment goes when all in it is done; when few of its messages are left and files take much more room than what
//! waits, those are written again at the end. The latest two always stay: they tell which sessions had their stop written
//! before a crash.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bng_natlog::frames::{self, HEAD, open_segment, path_of};
use bng_shm::SlotIndex;

/// Kind, number, accounting id, time.
const MESSAGE_HEAD: usize = 25;
/// Longest body: no packet holds more attributes.
const BODY_MAX: usize = MESSAGE_HEAD + 4_096;
/// Kind of a note that a message is done.
const DONE: u8 = 0;
/// Segments that are never removed.
const KEPT_SEGMENTS: usize = 2;
/// Time until the next attempt at a disk that has failed.
const DISK_PAUSE: Duration = Duration::from_secs(1);

/// What a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Start = 1,
    Stop = 2,
    Interim = 3,
    /// The gateway has begun anew.
    On = 7,
}

impl Kind {
    const fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Start,
            2 => Self::Stop,
            3 => Self::Interim,
            7 => Self::On,
            _ => return None,
        })
    }
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    pub(crate) accounting_id: u64,
    /// Unix time of its event, seconds.
    pub(crate) unix_s: u64,
    pub(crate) attributes: Vec<u8>,
}

#[derive(Debug)]
struct Entry {
    kind: Kind,
    accounting_id: u64,
    unix_s: u64,
    segment: u64,
    /// Where its body begins.
    at: u64,
    length: usize,
    /// The attributes, as long as they could not be written.
    unwritten: Option<Vec<u8>>,
}

#[derive(Debug, Default)]
struct Segment {
    size: u64,
    waiting: BTreeSet<u64>,
}

/// Counts since the spool was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Messages taken.
    pub(crate) taken: u64,
    /// Messages a server has answered.
    pub(crate) done: u64,
    /// Interim updates given up for want of room.
    pub(crate) interims_given_up: u64,
    /// Starts given up for want of room.
    pub(crate) starts_given_up: u64,
    /// Stops of a session that had one before a crash: not sent twice.
    pub(crate) repeated_stops: u64,
    /// Starts that had been written before a crash: not sent twice.
    pub(crate) repeated_starts: u64,
    /// Writes that failed; what they held waits in memory.
    pub(crate) write_errors: u64,
    /// Unfinished ends of files that were cut off, and damaged records that were passed over.
    pub(crate) torn: u64,
    /// Messages that could not be read back or sent.
    pub(crate) lost: u64,
}

/// The spool.
#[derive(Debug)]
pub(crate) struct Spool {
    directory: PathBuf,
    limit: u64,
    segment_size: u64,
    file: File,
    current: u64,
    segments: BTreeMap<u64, Segment>,
    entries: BTreeMap<u64, Entry>,
    /// Messages of each session that wait, in order.
    sessions: HashMap<u64, VecDeque<u64>>,
    /// Sessions of which no message is under way.
    ready: VecDeque<u64>,
    under_way: HashSet<u64>,
    interims: BTreeSet<u64>,
    /// Sessions whose start, and whose stop, was found when the spool was opened.
    started: HashSet<u64>,
    stopped: HashSet<u64>,
    /// Time of the latest event found then, Unix seconds.
    found_until_s: Option<u64>,
    /// Slots that wait until a message is on disk or a server has answered it.
    held: HashMap<u64, SlotIndex>,
    released: VecDeque<SlotIndex>,
    next: u64,
    waiting_bytes: u64,
    batch: Vec<u8>,
    must_sync: bool,
    /// Messages in `batch`, and whether they are on no disk yet.
    in_batch: Vec<(u64, bool)>,
    /// When the disk is tried again, after it has failed.
    retry: Option<Instant>,
    counts: Counts,
}

impl Spool {
    /// Opens the spool and finds what waits. `limit` is the most that may wait, `segment_size` when a new file begins, bytes.
    ///
    /// # Errors
    /// The directory cannot be made, read or written.
    pub(crate) fn open(directory: &Path, limit: u64, segment_size: u64) -> io::Result<Self> {
        let mut numbers: BTreeSet<u64> = frames::segments(directory)?.into_iter().collect();
        let current = numbers.last().copied().unwrap_or(1);
        numbers.insert(current);
        let mut spool = Self {
            directory: directory.to_owned(),
            limit,
            segment_size,
            file: open_segment(directory, current)?,
            current,
            segments: BTreeMap::new(),
            entries: BTreeMap::new(),
            sessions: HashMap::new(),
            ready: VecDeque::new(),
            under_way: HashSet::new(),
            interims: BTreeSet::new(),
            started: HashSet::new(),
            stopped: HashSet::new(),
            found_until_s: None,
            held: HashMap::new(),
            released: VecDeque::new(),
            next: 0,
            waiting_bytes: 0,
            batch: Vec::new(),
            must_sync: false,
            in_batch: Vec::new(),
            retry: None,
            counts: Counts::default(),
        };
        let mut done = HashSet::new();
        for number in numbers {
            spool.replay(number, &mut done)?;
        }
        for number in done {
            spool.forget(number);
        }
        // In the order of their numbers, which is that of their events.
        let waiting: Vec<_> = spool
            .entries
            .iter()
            .map(|(n, it)| (*n, it.accounting_id))
            .collect();
        for (number, session) in waiting {
            spool.line_up(number, session);
        }
        Ok(spool)
    }

    fn replay(&mut self, segment: u64, done: &mut HashSet<u64>) -> io::Result<()> {
        let mut bytes = Vec::new();
        let file = open_segment(&self.directory, segment)?;
        (&file).read_to_end(&mut bytes)?;
        let is_ours = |body: &[u8]| read_body(body).is_some();
        let mut at = 0;
        while let Some((start, body)) = frames::next_body(&bytes, at, BODY_MAX, is_ours) {
            self.counts.torn += u64::from(start != at);
            at = start;
            match read_body(body) {
                Some((number, None)) => {
                    done.insert(number);
                    self.next = self.next.max(number + 1);
                }
                Some((number, Some((kind, accounting_id, unix_s)))) => {
                    self.next = self.next.max(number + 1);
                    match kind {
                        Kind::Start => self.started.insert(accounting_id),
                        Kind::Stop => self.stopped.insert(accounting_id),
                        Kind::Interim | Kind::On => false,
                    };
                    self.found_until_s = self.found_until_s.max(Some(unix_s));
                    // Written again at the end of another file: the later one counts.
                    self.forget(number);
                    let entry = Entry {
                        kind,
                        accounting_id,
                        unix_s,
                        segment,
                        at: (at + HEAD) as u64,
                        length: body.len(),
                        unwritten: None,
                    };
                    self.remember(number, entry);
                }
                // Of a later version.
                None => {}
            }
            at += HEAD + body.len();
        }
        if at < bytes.len() {
            self.counts.torn += 1;
            file.set_len(at as u64)?;
        }
        self.segments.entry(segment).or_default().size = at as u64;
        Ok(())
    }

    fn remember(&mut self, number: u64, entry: Entry) {
        self.waiting_bytes += (HEAD + entry.length) as u64;
        let segment = self.segments.entry(entry.segment).or_default();
        segment.waiting.insert(number);
        if entry.kind == Kind::Interim {
            self.interims.insert(number);
        }
        self.entries.insert(number, entry);
    }

    fn forget(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        self.waiting_bytes -= (HEAD + entry.length) as u64;
        self.interims.remove(&number);
        if let Some(segment) = self.segments.get_mut(&entry.segment) {
            segment.waiting.remove(&number);
        }
        self.released.extend(self.held.remove(&number));
        Some(entry)
    }

    fn line_up(&mut self, number: u64, session: u64) {
        let line = self.sessions.entry(session).or_default();
        line.push_back(number);
        if line.len() == 1 {
            self.ready.push_back(session);
        }
    }

    /// Lets this much wait from now on, bytes. What waits already stays.
    pub(crate) const fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Time of the latest event among the messages found on disk, Unix seconds. They are written in the order of their events, so
    /// what an earlier run did not get to write is not older.
    pub(crate) const fn found_until_s(&self) -> Option<u64> {
        self.found_until_s
    }

    /// Takes a message, which is safe after a [`Spool::commit`] that the disk did not refuse. `slot` waits for that, see
    /// [`Spool::poll_released`].
    pub(crate) fn add(&mut self, message: Message, slot: Option<SlotIndex>) {
        let number = self.take(message);
        match (number, slot) {
            (Some(number), Some(slot)) => {
                self.held.insert(number, slot);
            }
            // There is nothing to wait for.
            (None, Some(slot)) => self.released.push_back(slot),
            (_, None) => {}
        }
    }

    /// The next slot whose message is on disk, or is done.
    pub(crate) fn poll_released(&mut self) -> Option<SlotIndex> {
        self.released.pop_front()
    }

    fn take(&mut self, message: Message) -> Option<u64> {
        let length = MESSAGE_HEAD + message.attributes.len();
        if message.kind == Kind::Stop && self.stopped.remove(&message.accounting_id) {
            self.counts.repeated_stops += 1;
            return None;
        }
        if message.kind == Kind::Start && self.started.remove(&message.accounting_id) {
            self.counts.repeated_starts += 1;
            return None;
        }
        if length > BODY_MAX {
            // No packet holds it, and no file could be read past it.
            self.counts.lost += 1;
            return None;
        }
        if !self.make_room((HEAD + length) as u64, message.kind) {
            return None;
        }
        self.counts.taken += 1;
        let number = self.next;
        self.next += 1;
        let entry = Entry {
            kind: message.kind,
            accounting_id: message.accounting_id,
            unix_s: message.unix_s,
            segment: self.current,
            at: 0,
            length,
            unwritten: Some(message.attributes),
        };
        self.append(number, &entry);
        self.remember(number, entry);
        self.line_up(number, message.accounting_id);
        Some(number)
    }

    /// Interim updates give way to everything, starts to stops, stops to nothing.
    fn make_room(&mut self, needed: u64, kind: Kind) -> bool {
        while self.waiting_bytes + needed > self.limit {
            let oldest = self
                .interims
                .iter()
                .find(|it| !self.under_way.contains(it))
                .copied();
            let Some(oldest) = oldest else {
                match kind {
                    Kind::Interim => self.counts.interims_given_up += 1,
                    Kind::Start | Kind::On => self.counts.starts_given_up += 1,
                    Kind::Stop => return true,
                }
                return false;
            };
            self.counts.interims_given_up += 1;
            self.finish(oldest);
        }
        true
    }

    fn append(&mut self, number: u64, entry: &Entry) {
        let mut body = vec![entry.kind as u8];
        body.extend(number.to_be_bytes());
        body.extend(entry.accounting_id.to_be_bytes());
        body.extend(entry.unix_s.to_be_bytes());
        body.extend(entry.unwritten.as_deref().unwrap_or(&[]));
        frames::put(&mut self.batch, &body);
        self.in_batch.push((number, entry.at == 0));
        self.must_sync = true;
    }

    /// Writes what has been taken and noted since the last time, and waits for the disk if messages are among it. What cannot be
    /// written stays in memory and is tried again after a while.
    pub(crate) fn commit(&mut self) {
        if self.retry.is_none_or(|at| Instant::now() >= at) {
            self.flush();
        }
    }

    /// Does the same without waiting for a disk that has failed to have its pause.
    pub(crate) fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        self.retry = None;
        if let Err(error) = self.write() {
            self.counts.write_errors += 1;
            tracing::error!(%error, directory = ?self.directory, "accounting messages could not be written, they wait in memory");
            let size = self.segments.get(&self.current).map_or(0, |it| it.size);
            // A part of a record must not stand before whole ones.
            let _ = self.file.set_len(size);
            self.retry = Some(Instant::now() + DISK_PAUSE);
            self.thin_out();
            return;
        }
        self.remove_old();
    }

    /// Takes out of the batch what the disk need not learn any more: messages that are done, and notes of those it has never had.
    /// However long the disk fails, the batch holds no more than what waits.
    fn thin_out(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        let messages: HashMap<_, _> = std::mem::take(&mut self.in_batch).into_iter().collect();
        let mut at = 0;
        while let Some(body) = body_at(&batch, at) {
            let record = batch.get(at..at + HEAD + body.len()).unwrap_or(&[]);
            at += record.len();
            let is_needed = match read_body(body) {
                Some((number, Some(_))) => {
                    let waits = self.entries.contains_key(&number);
                    if waits {
                        let is_new = messages.get(&number).copied().unwrap_or(true);
                        self.in_batch.push((number, is_new));
                    }
                    waits
                }
                Some((number, None)) => messages.get(&number) != Some(&true),
                None => false,
            };
            if is_needed {
                self.batch.extend(record);
            }
        }
        self.must_sync = !self.in_batch.is_empty();
    }

    fn write(&mut self) -> io::Result<()> {
        let mut size = self.segments.get(&self.current).map_or(0, |it| it.size);
        if size >= self.segment_size {
            let file = open_segment(&self.directory, self.current + 1)?;
            // The name of the new file, too.
            frames::sync_directory(&self.directory)?;
            self.file = file;
            self.current += 1;
            size = 0;
        }
        self.file.write_all_at(&self.batch, size)?;
        if self.must_sync {
            self.file.sync_data()?;
        }
        let mut batch = std::mem::take(&mut self.batch);
        let mut at = 0;
        let mut in_batch = std::mem::take(&mut self.in_batch).into_iter();
        while let Some(body) = body_at(&batch, at) {
            if body.first() != Some(&DONE)
                && let Some((number, _)) = in_batch.next()
            {
                self.settle(number, size + (at + HEAD) as u64);
            }
            at += HEAD + body.len();
        }
        let segment = self.segments.entry(self.current).or_default();
        segment.size = size + batch.len() as u64;
        batch.clear();
        self.batch = batch;
        self.must_sync = false;
        Ok(())
    }

    /// A message is on disk, in the current segment.
    fn settle(&mut self, number: u64, at: u64) {
        let Some(entry) = self.entries.get_mut(&number) else {
            return;
        };
        if let Some(segment) = self.segments.get_mut(&entry.segment) {
            segment.waiting.remove(&number);
        }
        self.released.extend(self.held.remove(&number));
        entry.unwritten = None;
        entry.segment = self.current;
        entry.at = at;
        let segment = self.segments.entry(self.current).or_default();
        segment.waiting.insert(number);
    }

    fn remove_old(&mut self) {
        while self.segments.len() > KEPT_SEGMENTS {
            let Some((&oldest, segment)) = self.segments.first_key_value() else {
                return;
            };
            if !segment.waiting.is_empty() {
                return self.carry_over(oldest);
            }
            if let Err(error) = fs::remove_file(path_of(&self.directory, oldest)) {
                tracing::warn!(%error, segment = oldest, "accounting segment could not be removed");
                return;
            }
            self.segments.remove(&oldest);
        }
    }

    /// Writes the messages of the oldest segment again with the next batch, if files take much more room than what waits.
    fn carry_over(&mut self, oldest: u64) {
        let on_disk: u64 = self.segments.values().map(|it| it.size).sum();
        if on_disk < 2 * self.waiting_bytes + 4 * self.segment_size {
            return;
        }
        let waiting = self.segments.get(&oldest).map(|it| it.waiting.clone());
        for number in waiting.unwrap_or_default() {
            let Some(attributes) = self.read(number) else {
                continue;
            };
            if let Some(mut entry) = self.entries.remove(&number) {
                entry.unwritten = Some(attributes);
                self.append(number, &entry);
                self.entries.insert(number, entry);
            }
        }
    }

    fn read(&self, number: u64) -> Option<Vec<u8>> {
        let entry = self.entries.get(&number)?;
        if let Some(attributes) = &entry.unwritten {
            return Some(attributes.clone());
        }
        let mut body = vec![0; entry.length];
        let read = open_segment(&self.directory, entry.segment)
            .and_then(|file| file.read_exact_at(&mut body, entry.at));
        read.ok()?;
        Some(body.split_off(MESSAGE_HEAD))
    }

    /// The next message to send: the first one of a session of which none is under way.
    pub(crate) fn next(&mut self) -> Option<(u64, Message)> {
        while let Some(session) = self.ready.pop_front() {
            let first = self
                .sessions
                .get(&session)
                .and_then(|it| it.front().copied());
            // A session whose line was emptied for want of room may be here twice.
            let Some(number) = first.filter(|it| !self.under_way.contains(it)) else {
                continue;
            };
            let (Some(attributes), Some(entry)) = (self.read(number), self.entries.get(&number))
            else {
                self.counts.lost += 1;
                self.finish(number);
                continue;
            };
            let message = Message {
                kind: entry.kind,
                accounting_id: session,
                unix_s: entry.unix_s,
                attributes,
            };
            self.under_way.insert(number);
            return Some((number, message));
        }
        None
    }

    /// A server has answered: the message is done for ever.
    pub(crate) fn done(&mut self, number: u64) {
        self.counts.done += 1;
        self.finish(number);
    }

    /// No server can ever take the message.
    pub(crate) fn give_up(&mut self, number: u64) {
        self.counts.lost += 1;
        self.finish(number);
    }

    fn finish(&mut self, number: u64) {
        self.under_way.remove(&number);
        let Some(entry) = self.forget(number) else {
            return;
        };
        let mut body = vec![DONE];
        body.extend(number.to_be_bytes());
        frames::put(&mut self.batch, &body);
        let session = entry.accounting_id;
        let Some(line) = self.sessions.get_mut(&session) else {
            return;
        };
        let was_first = line.front() == Some(&number);
        line.retain(|it| *it != number);
        if line.is_empty() {
            self.sessions.remove(&session);
        } else if was_first && !self.ready.contains(&session) {
            self.ready.push_back(session);
        }
    }

    /// No server has answered: the message is sent again some time.
    pub(crate) fn retry(&mut self, number: u64) {
        self.under_way.remove(&number);
        if let Some(entry) = self.entries.get(&number) {
            self.ready.push_back(entry.accounting_id);
        }
    }

    /// Messages that wait, and their bytes.
    pub(crate) fn waiting(&self) -> (usize, u64) {
        (self.entries.len(), self.waiting_bytes)
    }

    /// Counts since it was opened.
    pub(crate) const fn counts(&self) -> Counts {
        self.counts
    }
}

fn body_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    frames::body_at(bytes, at, BODY_MAX)
}

type MessageHead = (Kind, u64, u64);

/// Number, and kind, accounting id and time unless it is a note.
fn read_body(body: &[u8]) -> Option<(u64, Option<MessageHead>)> {
    let (kind, rest) = body.split_first()?;
    let (number, rest) = rest.split_first_chunk::<8>()?;
    let number = u64::from_be_bytes(*number);
    if *kind == DONE {
        return Some((number, None));
    }
    let kind = Kind::of(*kind)?;
    let (id, rest) = rest.split_first_chunk::<8>()?;
    let (time, _) = rest.split_first_chunk::<8>()?;
    let head = (kind, u64::from_be_bytes(*id), u64::from_be_bytes(*time));
    Some((number, Some(head)))
}

#[cfg(test)]
mod tests;
