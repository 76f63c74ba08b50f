//! The spool, its crashes and its limits.

use super::*;
use std::fs::OpenOptions;
use std::sync::atomic::{AtomicU32, Ordering};

struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("spool-test-{}-{n}", std::process::id());
        Self(Path::new("/dev/shm").join(name))
    }

    fn open(&self, limit: u64, segment: u64) -> Spool {
        Spool::open(&self.0, limit, segment).unwrap()
    }

    /// A copy, as a crash at this moment leaves it, with the last file cut to `length`.
    fn crashed(&self, length: Option<u64>) -> Self {
        let copy = Self::new();
        fs::create_dir_all(&copy.0).unwrap();
        let mut names: Vec<_> = fs::read_dir(&self.0)
            .unwrap()
            .map(|it| it.unwrap().path())
            .collect();
        names.sort();
        for path in &names {
            fs::copy(path, copy.0.join(path.file_name().unwrap())).unwrap();
        }
        if let (Some(length), Some(last)) = (length, names.last()) {
            let last = OpenOptions::new()
                .write(true)
                .open(copy.0.join(last.file_name().unwrap()));
            last.unwrap().set_len(length).unwrap();
        }
        copy
    }

    fn files(&self) -> usize {
        fs::read_dir(&self.0).unwrap().count()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn message(kind: Kind, accounting_id: u64) -> Message {
    Message {
        kind,
        accounting_id,
        unix_s: 1_000,
        attributes: vec![kind as u8; 40],
    }
}

/// Everything that would be sent, each answered at once.
fn drain(spool: &mut Spool) -> Vec<(Kind, u64)> {
    let mut sent = Vec::new();
    while let Some((number, message)) = spool.next() {
        assert_eq!(message.attributes, [message.kind as u8; 40]);
        sent.push((message.kind, message.accounting_id));
        spool.done(number);
    }
    spool.commit();
    sent
}

#[test]
fn messages_of_a_session_go_one_after_the_other_and_those_of_others_beside_them() {
    let directory = Directory::new();
    let mut spool = directory.open(1 << 20, 1 << 20);
    for (kind, id) in [(Kind::Start, 1), (Kind::Stop, 1), (Kind::Start, 2)] {
        spool.add(message(kind, id), None);
    }
    spool.commit();
    let (first, start) = spool.next().unwrap();
    let (other, _) = spool.next().unwrap();
    assert_eq!(start, message(Kind::Start, 1));
    assert_eq!(spool.next(), None, "the stop waits for the start");
    spool.retry(first);
    let (again, message) = spool.next().unwrap();
    assert_eq!((again, message.kind), (first, Kind::Start));
    spool.done(first);
    spool.done(other);
    assert_eq!(spool.next().unwrap().1.kind, Kind::Stop);
}

#[test]
fn what_waits_is_found_after_a_restart_and_what_is_done_is_not() {
    let directory = Directory::new();
    let mut spool = directory.open(1 << 20, 1 << 20);
    for id in 1..=3 {
        spool.add(message(Kind::Start, id), None);
    }
    spool.commit();
    let (number, _) = spool.next().unwrap();
    spool.done(number);
    spool.commit();
    drop(spool);
    let mut spool = directory.open(1 << 20, 1 << 20);
    assert_eq!(spool.waiting().0, 2);
    assert_eq!(drain(&mut spool), [(Kind::Start, 2), (Kind::Start, 3)]);
    drop(spool);
    assert_eq!(directory.open(1 << 20, 1 << 20).waiting(), (0, 0));
}

#[test]
fn a_stop_written_before_a_crash_is_not_written_again_by_whoever_finds_the_session() {
    let directory = Directory::new();
    let mut spool = directory.open(1 << 20, 1 << 20);
    spool.add(message(Kind::Stop, 7), None);
    spool.commit();
    assert_eq!(drain(&mut spool), [(Kind::Stop, 7)]);
    drop(spool);
    let mut spool = directory.open(1 << 20, 1 << 20);
    spool.add(message(Kind::Stop, 7), None);
    spool.add(message(Kind::Stop, 8), None);
    spool.commit();
    assert_eq!(drain(&mut spool), [(Kind::Stop, 8)]);
    assert_eq!(spool.counts().repeated_stops, 1);
}

#[test]
fn a_start_written_before_a_crash_is_not_written_again_by_whoever_finds_the_session() {
    let directory = Directory::new();
    let mut spool = directory.open(1 << 20, 1 << 20);
    assert_eq!(spool.found_until_s(), None);
    spool.add(message(Kind::Start, 7), None);
    let later = Message {
        unix_s: 1_005,
        ..message(Kind::Start, 8)
    };
    spool.add(later, None);
    spool.commit();
    let (first, _) = spool.next().unwrap();
    spool.done(first);
    spool.commit();
    drop(spool);
    let mut spool = directory.open(1 << 20, 1 << 20);
    assert_eq!(spool.found_until_s(), Some(1_005));
    for id in 7..=9 {
        spool.add(message(Kind::Start, id), None);
    }
    spool.commit();
    assert_eq!(drain(&mut spool), [(Kind::Start, 8), (Kind::Start, 9)]);
    assert_eq!(spool.counts().repeated_starts, 2);
}

fn released(spool: &mut Spool) -> Vec<u32> {
    std::iter::from_fn(|| spool.poll_released())
        .map(|slot| slot.0)
        .collect()
}

#[test]
fn a_slot_waits_for_the_disk_or_for_a_server_and_for_neither_when_there_is_nothing_to_keep() {
    let directory = Directory::new();
    let mut spool = directory.open(1 << 20, 1 << 20);
    spool.add(message(Kind::Stop, 1), Some(SlotIndex(1)));
    assert!(released(&mut spool).is_empty());
    spool.commit();
    assert_eq!(released(&mut spool), [1]);

    let refusing = File::open(path_of(&directory.0, 1)).unwrap();
    let good = std::mem::replace(&mut spool.file, refusing);
    for id in 2..=4 {
        spool.add(message(Kind::Stop, id), Some(SlotIndex(id as u32)));
    }
    spool.commit();
    assert_eq!(spool.counts().write_errors, 1);
    assert!(released(&mut spool).is_empty());
    // One is answered, one can never be sent, one waits for the disk.
    let waiting: Vec<_> = std::iter::from_fn(|| spool.next()).collect();
    let number = |id| {
        waiting
            .iter()
            .find(|it| it.1.accounting_id == id)
            .unwrap()
            .0
    };
    spool.done(number(2));
    spool.give_up(number(3));
    assert_eq!(released(&mut spool), [2, 3]);
    spool.flush();
    assert!(released(&mut spool).is_empty());
    spool.file = good;
    spool.flush();
    assert_eq!(released(&mut spool), [4]);
    drop(spool);

    let mut spool = directory.open(1 << 20, 1 << 20);
    spool.add(message(Kind::Stop, 4), Some(SlotIndex(4)));
    assert_eq!(spool.counts().repeated_stops, 1);
    assert_eq!(released(&mut spool), [4]);
}

/// Kills the process after every byte that is written, with small segments, so that rotation, removal and carrying over are
/// among the steps, and starts again from what the disk holds.
#[test]
fn a_crash_at_any_byte_loses_no_promised_message_and_repeats_no_noted_one() {
    let directory = Directory::new();
    let mut spool = directory.open(1 << 20, 300);
    let (mut promised, mut noted) = (BTreeSet::new(), BTreeSet::new());
    let mut crashes = 0;
    for step in 0..40u64 {
        let (before, settled, noted_before) = (spool.current, promised.clone(), noted.clone());
        let length_before = spool.segments[&spool.current].size;
        let kind = if step % 2 == 0 {
            Kind::Start
        } else {
            Kind::Stop
        };
        spool.add(message(kind, step), None);
        // Every third one keeps waiting, so that old segments cannot simply go.
        if step % 3 != 0
            && let Some((number, message)) = spool.next()
        {
            spool.done(number);
            noted.insert(message.accounting_id);
        }
        spool.commit();
        promised.insert(step);
        let length = spool.segments[&spool.current].size;
        let first = if spool.current == before {
            length_before
        } else {
            0
        };
        for cut in first..=length {
            let crashed = directory.crashed(Some(cut));
            let mut after = crashed.open(1 << 20, 300);
            let sent: Vec<_> = drain(&mut after).into_iter().map(|it| it.1).collect();
            let unique: BTreeSet<_> = sent.iter().copied().collect();
            assert_eq!(unique.len(), sent.len(), "twice at step {step}, byte {cut}");
            let must: BTreeSet<_> = settled.difference(&noted).copied().collect();
            assert!(must.is_subset(&unique), "lost at step {step}, byte {cut}");
            assert!(
                unique.is_disjoint(&noted_before),
                "again at step {step}, byte {cut}"
            );
            drop(after);
            assert_eq!(crashed.open(1 << 20, 300).waiting(), (0, 0));
            crashes += 1;
        }
    }
    assert!(crashes > 2_000 && spool.current > 5, "{crashes}");
    assert!(
        directory.files() < spool.current as usize,
        "old segments go"
    );
}

#[test]
fn beyond_the_limit_interims_give_way_first_then_starts_and_stops_never() {
    let directory = Directory::new();
    // Room for four.
    let mut spool = directory.open(4 * 77, 1 << 20);
    for (kind, id) in [
        (Kind::Start, 1),
        (Kind::Interim, 1),
        (Kind::Interim, 2),
        (Kind::Stop, 3),
    ] {
        spool.add(message(kind, id), None);
    }
    assert_eq!(spool.waiting(), (4, 4 * 77));
    spool.add(message(Kind::Interim, 4), None);
    spool.add(message(Kind::Stop, 5), None);
    spool.add(message(Kind::Start, 6), None);
    let counts = spool.counts();
    assert_eq!((counts.interims_given_up, counts.starts_given_up), (3, 0));
    spool.add(message(Kind::Start, 7), None);
    spool.add(message(Kind::Interim, 7), None);
    spool.add(message(Kind::Stop, 8), None);
    let counts = spool.counts();
    assert_eq!((counts.interims_given_up, counts.starts_given_up), (4, 1));
    spool.commit();
    drop(spool);
    let mut spool = directory.open(4 * 77, 1 << 20);
    let expected = [
        (Kind::Start, 1),
        (Kind::Stop, 3),
        (Kind::Stop, 5),
        (Kind::Start, 6),
        (Kind::Stop, 8),
    ];
    assert_eq!(drain(&mut spool), expected);
}

#[test]
fn a_damaged_record_is_passed_over_and_counted() {
    let directory = Directory::new();
    let mut spool = directory.open(1 << 20, 1 << 20);
    for id in 1..=3 {
        spool.add(message(Kind::Start, id), None);
    }
    spool.commit();
    drop(spool);
    let path = path_of(&directory.0, 1);
    let bytes = fs::read(&path).unwrap();
    // In its length, its sum, its body.
    for at in [3, 7, 30] {
        let mut bytes = bytes.clone();
        bytes[77 + at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let mut spool = directory.open(1 << 20, 1 << 20);
        assert_eq!(spool.counts().torn, 1);
        assert_eq!(drain(&mut spool), [(Kind::Start, 1), (Kind::Start, 3)]);
    }
}

#[test]
fn a_message_that_no_packet_holds_spoils_no_file() {
    let directory = Directory::new();
    let mut spool = directory.open(1 << 20, 1 << 20);
    let longest = Message {
        attributes: vec![0; 4_097],
        ..message(Kind::Stop, 1)
    };
    spool.add(longest, None);
    spool.add(message(Kind::Stop, 2), None);
    spool.commit();
    assert_eq!(spool.counts().lost, 1);
    drop(spool);
    let mut spool = directory.open(1 << 20, 1 << 20);
    assert_eq!(drain(&mut spool), [(Kind::Stop, 2)]);
}

#[test]
fn a_session_whose_interims_gave_way_has_its_stop_sent_once() {
    let directory = Directory::new();
    let mut spool = directory.open(77, 1 << 20);
    spool.add(message(Kind::Interim, 1), None);
    spool.add(message(Kind::Stop, 1), None);
    assert_eq!(spool.counts().interims_given_up, 1);
    assert_eq!(spool.next().unwrap().1.kind, Kind::Stop);
    assert_eq!(spool.next(), None, "it is under way");
}

#[test]
fn a_disk_that_stays_full_costs_no_more_memory_than_what_waits() {
    let directory = Directory::new();
    let mut spool = directory.open(1 << 20, 1 << 20);
    spool.add(message(Kind::Start, 1), None);
    spool.commit();
    let (on_disk, _) = spool.next().unwrap();
    let full = File::open(path_of(&directory.0, 1)).unwrap();
    let good = std::mem::replace(&mut spool.file, full);
    spool.done(on_disk);
    spool.add(message(Kind::Start, 2), None);
    for id in 10..200 {
        spool.add(message(Kind::Stop, id), None);
        spool.flush();
        let waiting: Vec<_> = std::iter::from_fn(|| spool.next()).collect();
        for (number, message) in waiting {
            match message.accounting_id {
                2 => {}
                _ => spool.done(number),
            }
        }
    }
    spool.flush();
    assert!(spool.batch.len() < 200, "{}", spool.batch.len());
    assert_eq!(spool.in_batch.len(), 1);
    let errors = spool.counts().write_errors;
    spool.commit();
    assert_eq!(spool.counts().write_errors, errors, "it has its pause");
    spool.file = good;
    spool.flush();
    drop(spool);
    let mut spool = directory.open(1 << 20, 1 << 20);
    assert_eq!(drain(&mut spool), [(Kind::Start, 2)]);
}

#[test]
fn a_disk_that_takes_nothing_costs_no_message_as_long_as_the_process_lives() {
    let directory = Directory::new();
    let mut spool = directory.open(1 << 20, 1 << 20);
    let good = std::mem::replace(
        &mut spool.file,
        File::open(path_of(&directory.0, 1)).unwrap(),
    );
    spool.add(message(Kind::Start, 1), None);
    spool.commit();
    assert_eq!(spool.counts().write_errors, 1);
    let (number, _) = spool.next().unwrap();
    spool.file = good;
    spool.add(message(Kind::Stop, 1), None);
    spool.flush();
    spool.done(number);
    spool.commit();
    drop(spool);
    let mut spool = directory.open(1 << 20, 1 << 20);
    assert_eq!(drain(&mut spool), [(Kind::Stop, 1)]);
}
