//! The history on disk: a line of JSON for each session that is over, as REST shows it.
//!
//! The driver hands lines to a thread that writes them; it never waits for the disk, and what it cannot hand over is counted. Two
//! files hold the history, the present one and the one before; a file that is full takes the place of the one before. After a
//! crash the last line may be cut short, which is no line then.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
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

/// The present file and the one before.
const PRESENT: &str = "history.jsonl";
const BEFORE: &str = "history.1.jsonl";
/// Size at which a file is full, bytes: some 30,000 sessions.
const FULL: u64 = 16 << 20;
/// A longer line is none: nothing we write is nearly as long.
const LINE_MAX: u64 = 16 << 10;
/// Lines that may wait for the disk.
const WAITING: usize = 4_096;

/// The writing end.
#[derive(Debug)]
pub(crate) struct HistoryFile {
    lines: Option<SyncSender<String>>,
    thread: Option<JoinHandle<()>>,
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
        let mut found = Vec::new();
        for name in [BEFORE, PRESENT] {
            match File::open(directory.join(name)) {
                Ok(file) => read(file, &mut found)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let mut writer = Writer::open(directory)?;
        let (sender, receiver) = sync_channel(WAITING);
        let thread = std::thread::Builder::new()
            .name("history".to_owned())
            .spawn(move || writer.run(&receiver))?;
        let file = Self {
            lines: Some(sender),
            thread: Some(thread),
        };
        Ok((file, found))
    }

    /// Has a session written down; `false` when the disk is too slow for it.
    #[must_use]
    pub(crate) fn append(&self, ended: &EndedView) -> bool {
        let line = serde_json::to_string(ended).ok();
        let sent = self
            .lines
            .as_ref()
            .zip(line)
            .map(|(lines, line)| lines.try_send(line));
        matches!(sent, Some(Ok(())))
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
    directory: PathBuf,
    file: BufWriter<File>,
    size: u64,
}

impl Writer {
    fn open(directory: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new()
            .create(true)
            .read(true)
            .append(true)
            .mode(0o600)
            .open(directory.join(PRESENT))?;
        let size = file.seek(SeekFrom::End(0))?;
        let mut writer = Self {
            directory: directory.to_owned(),
            file: BufWriter::new(file),
            size,
        };
        writer.finish_line()?;
        Ok(writer)
    }

    /// Ends a line that a crash has cut short.
    fn finish_line(&mut self) -> io::Result<()> {
        let Some(last) = self.size.checked_sub(1) else {
            return Ok(());
        };
        let mut byte = [0];
        let file = self.file.get_mut();
        file.seek(SeekFrom::Start(last))?;
        file.read_exact(&mut byte)?;
        if byte != *b"\n" {
            self.put("")?;
            self.file.flush()?;
        }
        Ok(())
    }

    fn run(&mut self, lines: &Receiver<String>) {
        let mut is_failing = false;
        while let Ok(line) = lines.recv() {
            let written = self.write(line, lines);
            if let Err(error) = &written
                && !is_failing
            {
                tracing::error!(%error, "the history cannot be written");
            }
            is_failing = written.is_err();
        }
    }

    /// Writes a line and all that wait behind it.
    fn write(&mut self, first: String, lines: &Receiver<String>) -> io::Result<()> {
        let mut next = Ok(first);
        while let Ok(line) = next {
            if self.size >= FULL {
                self.change_files()?;
            }
            self.put(&line)?;
            next = lines.try_recv();
        }
        self.file.flush()
    }

    fn put(&mut self, line: &str) -> io::Result<()> {
        self.file.write_all(line.as_bytes())?;
        self.file.write_all(b"\n")?;
        self.size += line.len() as u64 + 1;
        Ok(())
    }

    fn change_files(&mut self) -> io::Result<()> {
        self.file.flush()?;
        fs::rename(self.directory.join(PRESENT), self.directory.join(BEFORE))?;
        *self = Self::open(&self.directory)?;
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
    use std::sync::atomic::{AtomicU32, Ordering};

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
        let path = directory.0.join(PRESENT);
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
        let path = directory.0.join(PRESENT);
        let good = fs::read(&path).unwrap();
        let mut bytes = good.clone();
        bytes.extend(std::iter::repeat_n(0xff, 3 * LINE_MAX as usize));
        bytes.extend(b"\n{}\n\n");
        bytes.extend(&good);
        fs::write(&path, bytes).unwrap();
        let (_, found) = HistoryFile::open(&directory.0).unwrap();
        assert_eq!(numbers(&found), [1, 1]);
    }

    #[test]
    fn a_full_file_takes_the_place_of_the_one_before() {
        let directory = Directory::new();
        let (file, _) = HistoryFile::open(&directory.0).unwrap();
        drop(file);
        let mut writer = Writer::open(&directory.0).unwrap();
        let (sender, receiver) = sync_channel(8);
        for n in 1..=4 {
            writer.size = FULL;
            sender
                .send(serde_json::to_string(&view(n)).unwrap())
                .unwrap();
            let line = receiver.recv().unwrap();
            writer.write(line, &receiver).unwrap();
        }
        let (_, found) = HistoryFile::open(&directory.0).unwrap();
        assert_eq!(numbers(&found), [3, 4]);
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
