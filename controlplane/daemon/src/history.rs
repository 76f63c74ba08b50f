//! The history on disk: a line of JSON for each session that is over, as REST shows it.
//!
//! The driver hands lines to a thread that writes them; it never waits for the disk. What it cannot hand over, and what cannot be
//! written, is counted. Two files hold the history, the present one and the one before; a file that is full takes the place of
//! the one before. Sessions that never came up have two files of their own: whoever fails to log in again and again pushes out
//! nothing else. After a crash the last line may be cut short, which is no line then.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use bng_aaa::{Lease, PortBlock, Prefix};
use bng_pppoe::{AccessLine, PortId, SessionRef};
use bng_shm::{SessionState, StatsCopy, Vlans};
use bng_wire::MacAddr;

use crate::causes::EndCause;
use crate::grants::{Holding, Prefixes};
use crate::publish::engine_vlans;
use crate::sessions::{End, Ended, Live};
use crate::settings::Settings;
use crate::views::EndedView;

/// The two files of sessions of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Names {
    present: &'static str,
    before: &'static str,
    /// Size at which a file is full, bytes.
    full: u64,
}

/// Of sessions that came up: some 30,000 each.
const UP: Names = Names {
    present: "history.jsonl",
    before: "history.1.jsonl",
    full: 16 << 20,
};
/// Of those that did not.
const NEVER_UP: Names = Names {
    present: "refused.jsonl",
    before: "refused.1.jsonl",
    full: 4 << 20,
};
/// A longer line is none: nothing we write is nearly as long.
const LINE_MAX: u64 = 16 << 10;
/// Lines that may wait for the disk.
const WAITING: usize = 4_096;
/// Lines that are written together.
const BATCH: usize = 256;

/// A line, and whether its session was ever up.
type Line = (bool, String);

/// The writing end.
#[derive(Debug)]
pub(crate) struct HistoryFile {
    lines: Option<SyncSender<Line>>,
    thread: Option<JoinHandle<()>>,
    lost: Arc<AtomicU64>,
}

impl HistoryFile {
    /// Opens the history in a directory, which is made if need be, and reads what is there, oldest first. Lines that are none
    /// are passed over.
    ///
    /// # Errors
    /// The directory or a file in it cannot be made, read or written.
    pub(crate) fn open(directory: &Path) -> io::Result<(Self, Vec<EndedView>)> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
        let found = merge(recall_all(directory, UP)?, recall_all(directory, NEVER_UP)?);
        let lost = Arc::new(AtomicU64::new(0));
        let mut writer = Writer {
            up: Log::open(directory, UP)?,
            never_up: Log::open(directory, NEVER_UP)?,
            lost: lost.clone(),
        };
        let (sender, receiver) = sync_channel(WAITING);
        let thread = std::thread::Builder::new()
            .name("history".to_owned())
            .spawn(move || writer.run(&receiver))?;
        let file = Self {
            lines: Some(sender),
            thread: Some(thread),
            lost,
        };
        Ok((file, found))
    }

    /// Has a session written down; `false` when the disk is too slow for it.
    #[must_use]
    pub(crate) fn append(&self, ended: &EndedView) -> bool {
        let line = serde_json::to_string(ended).ok();
        let line = line.map(|line| (ended.was_up, line));
        let sent = self
            .lines
            .as_ref()
            .zip(line)
            .map(|(lines, line)| lines.try_send(line));
        matches!(sent, Some(Ok(())))
    }
}

impl HistoryFile {
    /// Sessions that could not be written since this was asked last.
    pub(crate) fn take_lost(&self) -> u64 {
        self.lost.swap(0, Ordering::Relaxed)
    }
}

impl Drop for HistoryFile {
    fn drop(&mut self) {
        // The thread writes what waits and ends when nobody can send any more.
        self.lines = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn recall_all(directory: &Path, names: Names) -> io::Result<Vec<EndedView>> {
    let mut found = Vec::new();
    for name in [names.before, names.present] {
        match File::open(directory.join(name)) {
            Ok(file) => read(file, &mut found)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Both in the order they ended.
fn merge(one: Vec<EndedView>, other: Vec<EndedView>) -> Vec<EndedView> {
    let mut all = Vec::with_capacity(one.len() + other.len());
    let mut other = other.into_iter().peekable();
    for ended in one {
        while let Some(earlier) = other.next_if(|it| it.ended_unix_ms < ended.ended_unix_ms) {
            all.push(earlier);
        }
        all.push(ended);
    }
    all.extend(other);
    all
}

fn read(file: File, found: &mut Vec<EndedView>) -> io::Result<()> {
    let mut file = BufReader::new(file);
    let mut line = Vec::new();
    let (mut is_rest, mut unread) = (false, 0u32);
    loop {
        line.clear();
        let length = file.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)?;
        if length == 0 {
            break;
        }
        let is_whole = line.ends_with(b"\n");
        match serde_json::from_slice(&line) {
            Ok(ended) if is_whole && !is_rest => found.push(ended),
            _ => unread += 1,
        }
        is_rest = !is_whole;
    }
    if unread != 0 {
        tracing::warn!(
            lines = unread,
            "lines of the history that cannot be read are passed over"
        );
    }
    Ok(())
}

#[derive(Debug)]
struct Writer {
    up: Log,
    never_up: Log,
    lost: Arc<AtomicU64>,
}

impl Writer {
    fn run(&mut self, lines: &Receiver<Line>) {
        let mut is_failing = false;
        while let Ok(first) = lines.recv() {
            let rest = lines.try_iter().take(BATCH - 1);
            let batch: Vec<_> = std::iter::once(first).chain(rest).collect();
            let error = self.write(&batch);
            if let Some(error) = &error
                && !is_failing
            {
                tracing::error!(%error, "the history of ended sessions in state_directory cannot be written: sessions that end meanwhile are in memory alone \
                     and counted as history_lost; is there room on its file system?");
            }
            is_failing = error.is_some();
        }
    }

    /// Writes lines, and counts those that cannot be written.
    fn write(&mut self, batch: &[Line]) -> Option<io::Error> {
        let mut failed = None;
        for (was_up, log) in [(true, &mut self.up), (false, &mut self.never_up)] {
            let lines = batch.iter().filter(|line| line.0 == was_up);
            let (mut bytes, mut count) = (Vec::new(), 0);
            for (_, line) in lines {
                bytes.extend_from_slice(line.as_bytes());
                bytes.push(b'\n');
                count += 1;
            }
            if count != 0
                && let Err(error) = log.write(&bytes)
            {
                self.lost.fetch_add(count, Ordering::Relaxed);
                failed = Some(error);
            }
        }
        failed
    }
}

/// The files of one kind.
#[derive(Debug)]
struct Log {
    directory: PathBuf,
    names: Names,
    file: File,
    size: u64,
}

impl Log {
    fn open(directory: &Path, names: Names) -> io::Result<Self> {
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .mode(0o600)
            .open(directory.join(names.present))?;
        let size = file.seek(SeekFrom::End(0))?;
        let mut log = Self {
            directory: directory.to_owned(),
            names,
            file,
            size,
        };
        log.finish_line()?;
        Ok(log)
    }

    /// Ends a line that a crash has cut short.
    fn finish_line(&mut self) -> io::Result<()> {
        let Some(last) = self.size.checked_sub(1) else {
            return Ok(());
        };
        let mut byte = [0];
        self.file.seek(SeekFrom::Start(last))?;
        self.file.read_exact(&mut byte)?;
        match byte {
            [b'\n'] => Ok(()),
            _ => self.write(b"\n"),
        }
    }

    /// Writes whole lines, or none of them.
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.size >= self.names.full {
            self.change_files()?;
        }
        if let Err(error) = self.file.write_all(lines) {
            // Half a line would spoil the next one.
            let _ = self.file.set_len(self.size);
            return Err(error);
        }
        self.size += lines.len() as u64;
        Ok(())
    }

    fn change_files(&mut self) -> io::Result<()> {
        let present = self.directory.join(self.names.present);
        match fs::rename(present, self.directory.join(self.names.before)) {
            // An attempt before this one has got that far.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => renamed?,
        }
        *self = Self::open(&self.directory, self.names)?;
        Ok(())
    }
}

/// A session of the history as it was read; `None` if its access port is not configured any more, or for a cause or an address
/// this version does not know.
pub(crate) fn recall(settings: &Settings, view: &EndedView) -> Option<Ended> {
    let (port, session_id) = view.id.rsplit_once('-')?;
    let port = PortId(settings.port(port)?.1.access?);
    let vlans = engine_vlans(&Vlans {
        s_vlan: view.s_vlan,
        c_vlan: view.c_vlan,
        outer_is_88a8: false,
    });
    let prefixes = match &view.ipv6_prefix {
        None => None,
        Some(text) => Some(Prefixes {
            on_link: prefix(text)?,
            delegated: match &view.delegated_prefix {
                None => None,
                Some(text) => Some(prefix(text)?),
            },
        }),
    };
    let block = view.nat.as_ref().map(|nat| PortBlock {
        address: nat.address,
        address_index: 0,
        block: 0,
        first_port: nat.first_port,
        size: nat
            .last_port
            .saturating_sub(nat.first_port)
            .saturating_add(1),
    });
    // Nothing of this is held any more: pool and indexes mean nothing.
    let holding = view.framed_ip.map(|address| Holding {
        lease: Lease {
            pool: usize::MAX,
            address,
        },
        block: block.map(|block| (usize::MAX, block)),
        further: (view.nat.iter().flat_map(|nat| &nat.further))
            .map(|ports| ports.first_port)
            .collect(),
        prefixes,
    });
    let end = End {
        cause: EndCause::of_name(&view.cause)?,
        was_up: view.was_up,
        release: false,
    };
    let session = SessionRef {
        port,
        session_id: session_id.parse().ok()?,
        generation: 0,
    };
    let line = AccessLine::new(port, &vlans, mac(&view.mac)?);
    let traffic = &view.traffic;
    let live = Live {
        user: view.user.as_bytes().into(),
        circuit_id: view.circuit_id.clone().into_bytes(),
        remote_id: view.remote_id.clone().into_bytes(),
        holding,
        said: crate::networks::recalled(&view.framed_routes),
        accounting_id: view.accounting_id.unwrap_or(0),
        opened_unix_ms: view.opened_unix_ms.unwrap_or(0),
        end: Some(end),
        state: SessionState::Free,
        ..Live::new(session, line, vlans, 0, view.started_unix_ms)
    };
    Some(Ended {
        live: Box::new(live),
        end,
        ended_unix_ms: view.ended_unix_ms,
        stats: StatsCopy {
            up_packets: traffic.upstream_packets,
            up_bytes: traffic.upstream_bytes,
            down_packets: traffic.downstream_packets,
            down_bytes: traffic.downstream_bytes,
            ..StatsCopy::default()
        },
        refused: view.refused.clone().map(Into::into),
        agreed: view.agreed.clone(),
    })
}

fn prefix(text: &str) -> Option<Prefix> {
    let (address, length) = text.split_once('/')?;
    Some(Prefix {
        address: address.parse().ok()?,
        length: length
            .parse()
            .ok()
            .filter(|length| (1..=64).contains(length))?,
    })
}

fn mac(text: &str) -> Option<MacAddr> {
    let bytes = text.split(':').map(|part| u8::from_str_radix(part, 16));
    let bytes: Vec<u8> = bytes.collect::<Result<_, _>>().ok()?;
    Some(MacAddr(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    struct Directory(PathBuf);

    impl Directory {
        fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!(
                "history-{}-{}",
                std::process::id(),
                NEXT.fetch_add(1, Ordering::Relaxed)
            );
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn view(n: u64) -> EndedView {
        let text = format!(
            r#"{{"id": "access0-7", "user": "alice", "mac": "02:00:00:00:00:09", "s_vlan": 100, "c_vlan": null,
            "framed_ip": "100.64.0.2", "nat": {{"address": "198.51.100.1", "first_port": 1024, "last_port": 2047}},
            "ipv6_prefix": "2001:db8::/64", "delegated_prefix": "2001:db8:1000::/56", "circuit_id": "olt 1/1",
            "cause": "peer_padt", "was_up": true, "accounting_id": 77, "started_unix_ms": {n}, "ended_unix_ms": {n},
            "agreed": {{"auth_protocol": "pap", "service_name": "", "our_mru": 1492, "peer_mru": 1480}},
            "upstream_packets": 1, "upstream_bytes": 2, "downstream_packets": 3, "downstream_bytes": 4}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn numbers(found: &[EndedView]) -> Vec<u64> {
        found.iter().map(|it| it.started_unix_ms).collect()
    }

    #[test]
    fn what_is_written_is_read_at_the_next_start_also_behind_a_line_cut_short() {
        let directory = Directory::new();
        for begun in 0..2 {
            let (file, found) = HistoryFile::open(&directory.0).unwrap();
            assert_eq!(found.len(), begun * 3);
            assert!((0..3).all(|n| file.append(&view(n))));
        }
        let path = directory.0.join(UP.present);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 9]).unwrap();
        let (file, found) = HistoryFile::open(&directory.0).unwrap();
        assert_eq!(numbers(&found), [0, 1, 2, 0, 1]);
        assert!(file.append(&view(9)));
        drop(file);
        let (_, found) = HistoryFile::open(&directory.0).unwrap();
        assert_eq!(numbers(&found), [0, 1, 2, 0, 1, 9]);
    }

    #[test]
    fn nonsense_of_any_length_is_passed_over() {
        let directory = Directory::new();
        let (file, _) = HistoryFile::open(&directory.0).unwrap();
        assert!(file.append(&view(1)));
        drop(file);
        let path = directory.0.join(UP.present);
        let good = fs::read(&path).unwrap();
        let mut bytes = good.clone();
        bytes.extend(std::iter::repeat_n(0xff, 3 * LINE_MAX as usize));
        bytes.extend(b"\n{}\n\n");
        bytes.extend(&good);
        fs::write(&path, bytes).unwrap();
        let (_, found) = HistoryFile::open(&directory.0).unwrap();
        assert_eq!(numbers(&found), [1, 1]);
    }

    fn line(n: u64, was_up: bool) -> Line {
        let view = EndedView { was_up, ..view(n) };
        (was_up, serde_json::to_string(&view).unwrap())
    }

    fn writer(directory: &Directory) -> Writer {
        let (file, _) = HistoryFile::open(&directory.0).unwrap();
        drop(file);
        Writer {
            up: Log::open(&directory.0, UP).unwrap(),
            never_up: Log::open(&directory.0, NEVER_UP).unwrap(),
            lost: Arc::default(),
        }
    }

    #[test]
    fn a_full_file_takes_the_place_of_the_one_before() {
        let directory = Directory::new();
        let mut writer = writer(&directory);
        for n in 1..=4 {
            writer.up.size = UP.full;
            assert!(writer.write(&[line(n, true)]).is_none());
        }
        let (_, found) = HistoryFile::open(&directory.0).unwrap();
        assert_eq!(numbers(&found), [3, 4]);
    }

    #[test]
    fn sessions_that_never_came_up_push_out_no_others() {
        let directory = Directory::new();
        let mut writer = writer(&directory);
        let batch = [(1, true), (2, false), (3, true)].map(|(n, was_up)| line(n, was_up));
        assert!(writer.write(&batch).is_none());
        for n in 4..=9 {
            writer.never_up.size = NEVER_UP.full;
            assert!(writer.write(&[line(n, false)]).is_none());
        }
        let (_, found) = HistoryFile::open(&directory.0).unwrap();
        assert_eq!(numbers(&found), [1, 3, 8, 9]);
        assert!(writer.write(&[line(10, true), line(11, false)]).is_none());
        let (_, found) = HistoryFile::open(&directory.0).unwrap();
        assert_eq!(numbers(&found), [1, 3, 8, 9, 10, 11]);
    }

    #[test]
    fn lines_a_full_disk_does_not_take_are_counted_and_spoil_none() {
        let directory = Directory::new();
        let mut writer = writer(&directory);
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let good = std::mem::replace(&mut writer.up.file, full);
        let batch = [line(1, true), line(2, false), line(3, true)];
        assert!(writer.write(&batch).is_some());
        assert_eq!(writer.lost.load(Ordering::Relaxed), 2);
        writer.up.file = good;
        assert!(writer.write(&[line(4, true)]).is_none());
        let (file, found) = HistoryFile::open(&directory.0).unwrap();
        assert_eq!(numbers(&found), [2, 4]);
        file.lost.fetch_add(3, Ordering::Relaxed);
        assert_eq!((file.take_lost(), file.take_lost()), (3, 0));
    }

    #[test]
    fn a_session_that_is_recalled_is_shown_as_it_was() {
        let settings = Settings::new(&crate::settings::tests::config()).unwrap();
        let access = settings.access_name(0).to_owned();
        let view = EndedView {
            id: format!("{access}-7"),
            ..view(5)
        };
        let ended = recall(&settings, &view).unwrap();
        let json = |view: &EndedView| serde_json::to_string(view).unwrap();
        assert_eq!(json(&EndedView::new(&settings, &ended)), json(&view));
        assert!(ended.live.has_address("2001:db8:1000::1".parse().unwrap()));
        for change in [
            |it: &mut EndedView| it.id = "gone-7".to_owned(),
            |it: &mut EndedView| it.id = "gone".to_owned(),
            |it: &mut EndedView| it.cause = "gone".to_owned(),
            |it: &mut EndedView| it.mac = "02:00".to_owned(),
            |it: &mut EndedView| it.ipv6_prefix = Some("2001:db8::/65".to_owned()),
        ] {
            let mut other = view.clone();
            change(&mut other);
            assert!(recall(&settings, &other).is_none());
        }
    }
}
