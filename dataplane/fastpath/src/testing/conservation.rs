//! No frame comes from nowhere and none gets lost (HZ-06), checked over every burst of a test.

use bng_shm::Counter;

use crate::Verdict;

/// A worker's counters at one time.
#[derive(Debug)]
pub(super) struct Snapshot(pub(super) Vec<u64>);

impl Snapshot {
    fn of(&self, counter: Counter) -> u64 {
        self.0.get(counter.index()).copied().unwrap_or(0)
    }
}

/// Panics unless what came in, and the errors made of it, is what the verdicts send on and the counters say was dropped.
/// A packet to be sent in fragments is one: they are made after the stages.
pub(super) fn check(before: &Snapshot, after: &Snapshot, verdicts: &[Verdict]) {
    let grown = |counter| after.of(counter) - before.of(counter);
    let made = grown(Counter::IcmpErrorSent);
    let dropped: u64 = Counter::drops().map(grown).sum();
    let sent_on = verdicts
        .iter()
        .filter(|verdict| !matches!(verdict, Verdict::Drop(_)))
        .count() as u64;
    assert_eq!(
        verdicts.len() as u64 + made,
        sent_on + dropped,
        "frames in and ICMP errors made are frames sent on and drops: {verdicts:?}"
    );
}
