use super::*;
use crate::frames::segments;
use crate::index::Position;
use crate::record::tests::block;
use crate::who::{Answer, Holder};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("natlog-{name}-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn open(directory: &Path, limit: u64, segment_size: u64) -> (Arc<Shared>, Store) {
    let shared = Arc::new(Shared::new(directory.to_owned(), limit));
    let store = Store::open(shared.clone(), segment_size, 1_000).unwrap();
    (shared, store)
}

/// All events from the beginning, as an output reads them.
fn events(shared: &Shared) -> Vec<Record> {
    let (mut at, mut found) = (shared.state.lock().begin(), Vec::new());
    while at < shared.state.lock().end() {
        let (records, behind) = shared.read(at, 0).unwrap().unwrap();
        assert!(behind > at);
        found.extend(records);
        at = behind;
    }
    found
}

fn told(shared: &Shared) -> Vec<(Event, u64, u64)> {
    let all = events(shared).into_iter();
    all.map(|it| (it.event, it.number, it.block.accounting_id))
        .collect()
}

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn whatever_byte_a_crash_cuts_at_whole_records_stay_and_none_is_there_twice() {
    let directory = Directory::new("cut");
    let (_, mut store) = open(&directory.0, 1 << 20, 1 << 20);
    for n in 0..3 {
        assert!(store.opened(block(n), 2_000 + u64::from(n), 2_000 + u64::from(n)));
    }
    assert!(store.closed(block(1).key(), block(1).accounting_id, 3_000));
    store.commit(3_000).unwrap();
    drop(store);
    let path = path_of(&directory.0, 1);
    let whole = fs::read(&path).unwrap();
    // Where each record ends.
    let mut ends = vec![];
    let mut at = 0;
    while let Some(body) = body_at(&whole, at, BODY_MAX) {
        at += HEAD + body.len();
        ends.push(at);
    }
    assert_eq!((ends.len(), at), (5, whole.len()));
    for cut in ends[0]..=whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let kept = ends.iter().filter(|end| **end <= cut).count() - 1;
        let (shared, mut store) = open(&directory.0, 1 << 20, 1 << 20);
        let mut expected: Vec<_> = events(&shared).iter().map(|it| it.number).collect();
        assert_eq!(expected, (0..kept as u64).collect::<Vec<_>>());
        let is_whole = ends.contains(&cut);
        assert_eq!(shared.state.lock().counts.torn, u64::from(!is_whole));
        // The sessions of an earlier run that go on are found again: nothing of it is written twice.
        for n in 0..3 {
            let is_open = (kept > usize::from(n)) && !(n == 1 && kept == 4);
            let is_new = store.opened(block(n), 5_000, 5_000);
            assert_eq!(is_new, !is_open, "{n} after {kept}");
            expected.extend(is_new.then_some(expected.len() as u64));
        }
        store.commit(5_000).unwrap();
        drop(store);
        let (shared, _) = open(&directory.0, 1 << 20, 1 << 20);
        let numbers: Vec<_> = events(&shared).iter().map(|it| it.number).collect();
        assert_eq!(numbers, expected);
    }
}

#[test]
fn a_damaged_record_is_passed_over_and_those_behind_it_are_kept() {
    let directory = Directory::new("damaged");
    let (_, mut store) = open(&directory.0, 1 << 20, 1 << 20);
    let start = store.segment.size as usize;
    for n in 0..4 {
        store.opened(block(n), 2_000, 2_000);
    }
    store.commit(2_000).unwrap();
    drop(store);
    let path = path_of(&directory.0, 1);
    let whole = fs::read(&path).unwrap();
    for at in start..start + 40 {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        fs::write(&path, bytes).unwrap();
        let (shared, store) = open(&directory.0, 1 << 20, 1 << 20);
        let numbers: Vec<_> = events(&shared).iter().map(|it| it.number).collect();
        assert_eq!(numbers, [1, 2, 3]);
        assert_eq!((store.open.len(), store.next), (3, 4));
    }
}

#[test]
fn segments_change_over_and_each_knows_what_was_open_before_it() {
    let directory = Directory::new("rotation");
    let (shared, mut store) = open(&directory.0, 1 << 20, 1_000);
    let mut expected = Vec::new();
    for n in 0..200 {
        let time = 2_000 + u64::from(n) * 10;
        store.opened(block(n), time, time);
        expected.push((Event::Opened, block(n).accounting_id));
        if n >= 3 {
            let id = block(n - 3).accounting_id;
            store.closed(block(n - 3).key(), id, time + 1);
            expected.push((Event::Closed, id));
        }
        store.commit(time + 2).unwrap();
    }
    let count = shared.state.lock().segments.len();
    assert!(count > 10, "{count}");
    let expected: Vec<_> = (0..)
        .zip(expected)
        .map(|(number, (event, id))| (event, number, id))
        .collect();
    assert_eq!(told(&shared), expected);
    drop(store);
    // A crash between the file and its name.
    fs::write(
        path_of(&directory.0, count as u64 + 1).with_extension("new"),
        b"half",
    )
    .unwrap();
    let (shared, store) = open(&directory.0, 1 << 20, 1_000);
    assert_eq!(told(&shared), expected);
    assert_eq!(store.open.len(), 3);
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), count);
    // From the first record of each segment alone.
    for n in 3..196u16 {
        let time = 2_000 + u64::from(n) * 10;
        for (at, is_held) in [
            (time - 1, false),
            (time, true),
            (time + 30, true),
            (time + 31, false),
        ] {
            let Block {
                public, last_port, ..
            } = block(n);
            let answer = shared.who(public, last_port, at).unwrap();
            let holder = Holder {
                block: block(n),
                from_ms: time,
                until_ms: Some(time + 31),
            };
            match is_held {
                true => assert_eq!(answer, Answer::Held(vec![holder]), "{n} at {at}"),
                false => assert_eq!(answer, Answer::Nobody, "{n} at {at}"),
            }
        }
    }
}

#[test]
fn a_block_that_lives_through_many_segments_has_its_end_found() {
    let directory = Directory::new("long");
    let (shared, mut store) = open(&directory.0, 1 << 20, 1_000);
    store.opened(block(500), 2_000, 2_000);
    for n in 0..100u16 {
        let time = 3_000 + u64::from(n) * 10;
        store.opened(block(n), time, time);
        if n == 70 {
            store.closed(block(500).key(), block(500).accounting_id, time + 5);
        }
        if n < 99 {
            store.closed(block(n).key(), block(n).accounting_id, time + 6);
        }
        store.commit(time + 6).unwrap();
    }
    assert!(shared.state.lock().segments.len() > 8);
    let Block {
        public, first_port, ..
    } = block(500);
    let ask = |at| shared.who(public, first_port, at).unwrap();
    let holder = Holder {
        block: block(500),
        from_ms: 2_000,
        until_ms: Some(3_705),
    };
    for at in [2_000, 2_999, 3_100, 3_500, 3_704] {
        assert_eq!(ask(at), Answer::Held(vec![holder.clone()]), "{at}");
    }
    assert_eq!(ask(3_705), Answer::Nobody);
    assert_eq!(ask(1_999), Answer::Nobody);
    assert_eq!(ask(999), Answer::BeforeLog { since_ms: 1_000 });
    let still = block(99);
    let Answer::Held(held) = shared.who(still.public, still.first_port, 90_000).unwrap() else {
        panic!("nobody");
    };
    assert_eq!((held.len(), held[0].until_ms), (1, None));
}

#[test]
fn a_clock_that_is_set_back_names_everybody_who_may_have_had_the_port() {
    let directory = Directory::new("clock");
    let (shared, mut store) = open(&directory.0, 1 << 20, 600);
    let again = Block {
        accounting_id: 1,
        ..block(0)
    };
    for (block, from, until) in [(block(0), 50_000, 60_000), (again.clone(), 55_000, 58_000)] {
        store.opened(block.clone(), from, from);
        for n in 10..20 {
            store.opened(super::super::record::tests::block(n), from, from);
        }
        store.commit(from).unwrap();
        store.closed(block.key(), block.accounting_id, until);
        for n in 10..20 {
            let block = super::super::record::tests::block(n);
            store.closed(block.key(), block.accounting_id, until);
        }
        store.commit(until).unwrap();
    }
    assert!(shared.state.lock().segments.len() > 2);
    let Answer::Held(held) = shared.who(again.public, again.last_port, 56_000).unwrap() else {
        panic!("nobody");
    };
    let mut ids: Vec<_> = held.iter().map(|it| it.block.accounting_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [1, block(0).accounting_id]);
}

#[test]
fn what_is_gone_is_closed_once_and_what_goes_on_is_left_alone() {
    let directory = Directory::new("gone");
    let (_, mut store) = open(&directory.0, 1 << 20, 1 << 20);
    for n in 0..4 {
        store.opened(block(n), 2_000, 2_000);
    }
    store.commit(2_000).unwrap();
    drop(store);
    let (shared, mut store) = open(&directory.0, 1 << 20, 1 << 20);
    let kept = [
        (block(2).key(), block(2).accounting_id),
        (block(3).key(), 1),
    ];
    let kept = HashSet::from(kept);
    // Another session has block 3 now.
    assert_eq!(store.keep_only(&kept, 1_500), 3);
    assert_eq!(store.keep_only(&kept, 9_000), 0);
    store.commit(3_000).unwrap();
    let closed: Vec<_> = events(&shared)
        .into_iter()
        .filter(|it| it.event == Event::Closed)
        .map(|it| (it.block.accounting_id, it.time_ms))
        .collect();
    // Not before it was opened, whatever the clock said.
    assert_eq!(closed, [(7_000, 2_000), (7_001, 2_000), (7_003, 2_000)]);
}

#[test]
fn a_block_another_session_has_now_is_closed_first() {
    let directory = Directory::new("next");
    let (shared, mut store) = open(&directory.0, 1 << 20, 1 << 20);
    let next = Block {
        accounting_id: 1,
        ..block(0)
    };
    assert!(store.opened(block(0), 2_000, 2_000));
    assert!(store.opened(next.clone(), 3_000, 3_000));
    assert!(!store.closed(next.key(), block(0).accounting_id, 4_000));
    store.commit(4_000).unwrap();
    let expected = [
        (Event::Opened, 0, 7_000),
        (Event::Closed, 1, 7_000),
        (Event::Opened, 2, 1),
    ];
    assert_eq!(told(&shared), expected);
}

fn fill(store: &mut Store, until_ms: u64) {
    let last = store.last_ms();
    for time in (last..until_ms).step_by(10) {
        store.opened(block(0), time, time);
        store.closed(block(0).key(), block(0).accounting_id, time + 1);
        store.commit(time + 1).unwrap();
    }
}

fn with_output(shared: &Shared) {
    let options = crate::OutputOptions {
        protocol: crate::Protocol::Syslog,
        transport: crate::Transport::Tcp,
        server: "127.0.0.1:1".parse().unwrap(),
    };
    let at = shared.state.lock().end();
    let output = crate::index::Output::new(&options, at, 0);
    shared.state.lock().outputs.push(output);
}

#[test]
fn what_is_older_than_the_retention_goes_when_every_output_has_it() {
    let directory = Directory::new("retention");
    let (shared, mut store) = open(&directory.0, 1 << 20, 2_000);
    with_output(&shared);
    fill(&mut store, 2_000);
    let before = shared.state.lock().segments.len();
    assert!(before > 5);
    let retention = Duration::from_millis(500);
    assert!(store.trim(2_000, retention, false));
    assert_eq!(
        shared.state.lock().segments.len(),
        before,
        "the output has not taken it"
    );
    let end = shared.state.lock().end();
    shared.state.lock().outputs[0].confirmed = end;
    assert!(store.trim(2_000, retention, false));
    let since = shared.view(0).since_ms;
    assert!((1_001..=1_500).contains(&since), "{since}");
    let count = shared.state.lock().segments.len();
    assert_eq!(segments(&directory.0).unwrap().len(), count);
    let Block {
        public, first_port, ..
    } = block(0);
    assert_eq!(
        shared.who(public, first_port, 1_000).unwrap(),
        Answer::BeforeLog { since_ms: since }
    );
}

#[test]
fn a_full_log_waits_for_an_output_or_forgets_as_configured() {
    let directory = Directory::new("full");
    let (shared, mut store) = open(&directory.0, 20_000, 2_000);
    with_output(&shared);
    let start = shared.state.lock().end();
    fill(&mut store, 3_000);
    let size = shared.state.lock().size();
    assert!(size > 20_000);
    assert!(!store.trim(3_000, HOUR, false));
    assert_eq!(shared.state.lock().size(), size);
    assert_eq!(shared.state.lock().nearest(start), (start, 0));
    assert!(store.trim(3_000, HOUR, true));
    let state = shared.state.lock();
    assert!(state.size() < 20_000);
    let (nearest, lost) = state.nearest(start);
    assert!(lost > 0);
    assert_eq!((nearest, nearest.number), (state.begin(), lost));
    // A place in a file that is shorter now, or of a log that is gone.
    let end = state.end();
    let beyond = Position {
        offset: end.offset + 1,
        ..end
    };
    assert_eq!(state.nearest(beyond).0, end);
    let beyond = Position {
        segment: end.segment + 1,
        ..end
    };
    assert_eq!(state.nearest(beyond).0, end);
}

#[test]
fn a_log_that_its_outputs_have_taken_makes_room_by_itself() {
    let directory = Directory::new("room");
    let (shared, mut store) = open(&directory.0, 20_000, 2_000);
    fill(&mut store, 2_000);
    assert!(store.trim(2_000, HOUR, false));
    assert!(shared.state.lock().size() < 20_000);
}

#[test]
fn what_a_disk_does_not_take_is_written_when_it_does() {
    let directory = Directory::new("disk");
    let (shared, mut store) = open(&directory.0, 1 << 20, 1 << 20);
    store.opened(block(0), 2_000, 2_000);
    store.commit(2_000).unwrap();
    // A file that cannot be written.
    let good = std::mem::replace(
        &mut store.file,
        File::open(path_of(&directory.0, 1)).unwrap(),
    );
    store.opened(block(1), 3_000, 3_000);
    assert!(store.commit(3_000).is_err());
    assert!(store.is_waiting());
    assert_eq!(told(&shared), [(Event::Opened, 0, 7_000)]);
    store.file = good;
    store.commit(3_000).unwrap();
    let expected = [(Event::Opened, 0, 7_000), (Event::Opened, 1, 7_001)];
    assert_eq!(told(&shared), expected);
    assert_eq!(shared.state.lock().counts.write_errors, 1);
}

/// Run with `--ignored` in release for the figure in docs/nat.md.
#[test]
#[ignore = "writes 1.5 GiB"]
fn ten_million_records_are_searched_fast() {
    let directory = Directory::new("many");
    let (shared, mut store) = open(&directory.0, 1 << 40, 16 << 20);
    // 32,000 blocks open at any time, 10 million records.
    let block = |n: u32| {
        let slot = n % 32_000;
        Block {
            public: Ipv4Addr::from(0xc633_6400 + slot / 100),
            first_port: 1_024 + (slot % 100) as u16 * 512,
            last_port: 1_535 + (slot % 100) as u16 * 512,
            accounting_id: u64::from(n) + 1,
            ..block(7)
        }
    };
    for n in 0..5_000_000u32 {
        let time = 10_000 + u64::from(n);
        if let Some(old) = n.checked_sub(32_000) {
            store.closed(block(old).key(), u64::from(old) + 1, time);
        }
        store.opened(block(n), time, time);
        if n % 1_000 == 0 {
            store.commit(time).unwrap();
        }
    }
    store.commit(5_010_000).unwrap();
    let records = store.next;
    let begun = std::time::Instant::now();
    drop(store);
    let (shared_again, _) = open(&directory.0, 1 << 40, 16 << 20);
    let opened = begun.elapsed();
    let mut times = Vec::new();
    for n in (40_000..4_900_000u32).step_by(97_003) {
        let begun = std::time::Instant::now();
        let held = block(n);
        let answer = shared_again.who(held.public, held.first_port + 7, 10_000 + u64::from(n) + 5);
        let Answer::Held(found) = answer.unwrap() else {
            panic!("nobody");
        };
        assert_eq!(found[0].block.accounting_id, u64::from(n) + 1);
        assert_eq!(found[0].until_ms, Some(10_000 + u64::from(n) + 32_000));
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    let segments = shared.state.lock().segments.len();
    println!(
        "{records} records, {segments} segments, {} MiB; opened in {opened:?}; who: median {:?}, worst {:?}",
        shared.state.lock().size() >> 20,
        times[times.len() / 2],
        times[times.len() - 1]
    );
}
