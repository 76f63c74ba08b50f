//! What accounting is told of sessions: a start, interim updates and one stop.
//!
//! The stop comes when every worker has forgotten the session, so its totals are final. Its slot stays taken until the stop is
//! on disk or answered (`held.rs`).

use std::time::Duration;

use bng_aaa::accounting::{Accounting, Status, Totals};
use bng_shm::{SlotIndex, StatsCopy};

use crate::driver::Driver;
use crate::dynamic;
use crate::publish::{Clock, Open};
use crate::sessions::Live;

impl Driver {
    /// Tells of the start of a session whose network phase was reached for the first time.
    pub(crate) fn account_start(&mut self, slot: SlotIndex, clock: Clock) {
        let Some(live) = self.sessions.at(slot) else {
            return;
        };
        if self.radius.accounts() && live.accounting_id != 0 {
            let event = self.event(live, Status::Start, &StatsCopy::default(), clock);
            self.radius.account(event, None);
        }
    }

    /// Tells of the start of a session of an earlier run again, as of then, if that run may have been killed before the start was
    /// on disk. If it was, the spool knows.
    pub(crate) fn account_lost_start(&mut self, slot: SlotIndex, clock: Clock) {
        let Some(live) = self.sessions.at(slot) else {
            return;
        };
        let opened = live.opened_unix_ms;
        if opened != 0 && live.accounting_id != 0 && self.radius.may_lack_start(opened) {
            let mut event = self.event(live, Status::Start, &StatsCopy::default(), clock);
            event.event_unix_s = opened / 1_000;
            self.radius.account(event, None);
        }
    }

    /// Tells of the end of a session that no worker knows any more; true when its slot has to wait for the disk.
    pub(crate) fn account_stop(&mut self, slot: SlotIndex, clock: Clock) -> bool {
        let Some(live) = self.sessions.at(slot) else {
            return false;
        };
        let Some(end) = live.end.filter(|end| end.was_up && live.accounting_id != 0) else {
            return false;
        };
        let stats = self.publisher.session_stats(slot).unwrap_or_default();
        let event = self.event(live, Status::Stop(end.cause.stop_cause()), &stats, clock);
        self.radius.account(event, Some(slot))
    }

    /// Tells how a session goes on.
    pub(crate) fn account_interim(&mut self, slot: SlotIndex, clock: Clock) {
        if let Some(live) = self.sessions.at(slot) {
            let stats = self.publisher.session_stats(slot).unwrap_or_default();
            let event = self.event(live, Status::Interim, &stats, clock);
            self.radius.account(event, None);
        }
    }

    fn event(&self, live: &Live, status: Status, stats: &StatsCopy, clock: Clock) -> Accounting {
        let open = Open::of(live);
        let ids = live.record.as_ref().and_then(|it| it.interface_ids);
        let prefixes = live.holding.and_then(|it| it.prefixes);
        // What it held until its end is said of a stop, too, and of a session of an earlier run that is over.
        let is_over =
            matches!(status, Status::Stop(_)) || live.end.is_some() || live.record.is_none();
        let (ipv4, ipv6) = (open.ipv4 || is_over, open.ipv6 || is_over);
        let block = live.holding.and_then(|it| it.published_block());
        Accounting {
            status,
            accounting_id: live.accounting_id,
            user: live.user.to_vec(),
            is_local: self.radius.is_local(),
            class: (live.said.as_ref()).map_or(Vec::new(), |said| said.class.clone()),
            line: dynamic::line(&self.settings, live),
            framed_ip: live.framed_ip().filter(|_| ipv4),
            interface_id: ids.map(|ids| ids.peer),
            framed_ipv6_prefix: prefixes.map(|it| it.on_link).filter(|_| ipv6),
            delegated_ipv6_prefix: prefixes.and_then(|it| it.delegated).filter(|_| ipv6),
            framed_routes: match ipv4 {
                true => live.framed_routes().to_vec(),
                false => Vec::new(),
            },
            nat: block.map(|it| {
                let last = it.first_port.saturating_add(it.size.saturating_sub(1));
                (it.address, it.first_port, last)
            }),
            gateway6: None,
            session_time: session_time(live, clock),
            totals: Totals {
                up_octets: stats.up_bytes,
                up_packets: stats.up_packets,
                down_octets: stats.down_bytes,
                down_packets: stats.down_packets,
            },
            event_unix_s: clock.unix_ms / 1_000,
        }
    }
}

/// Whether a session's interim update is due; the next one is arranged for.
pub(crate) fn is_due(live: &mut Live, configured: Duration, clock: Clock) -> bool {
    let now = clock.monotonic_ms;
    let is_up = live.end.is_none() && live.accounting_id != 0 && live.opened_unix_ms != 0;
    let said = live.said.as_ref().and_then(|said| said.interim);
    let interval = said.unwrap_or(configured);
    if !is_up || interval.is_zero() {
        live.interim_ms = 0;
    } else if live.interim_ms == 0 {
        live.interim_ms = now + first_interval_ms(interval, live, now);
    } else if now >= live.interim_ms {
        live.interim_ms = now + jittered_ms(interval, live.accounting_id ^ now);
        return true;
    }
    false
}

/// How long a session has been served: since its network phase was reached for the first time, when the start was told.
fn session_time(live: &Live, clock: Clock) -> Duration {
    match (&live.record, live.opened_unix_ms) {
        (Some(record), _) => clock.time().since(record.up_since),
        (None, 0) => Duration::ZERO,
        // Of an earlier run, and over.
        (None, opened) => Duration::from_millis(clock.unix_ms.saturating_sub(opened)),
    }
}

/// The first one of a session that an earlier run set up comes at any time within the interval: after a restart they must not
/// all come together.
fn first_interval_ms(interval: Duration, live: &Live, now: u64) -> u64 {
    let whole = jittered_ms(interval, live.accounting_id ^ now);
    match live.adopted {
        true => scatter(live.accounting_id) % whole.max(1),
        false => whole,
    }
}

/// The interval, give or take a tenth.
fn jittered_ms(interval: Duration, seed: u64) -> u64 {
    let whole = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX / 2);
    let tenth = whole / 10;
    whole - tenth + scatter(seed) % (2 * tenth + 1)
}

/// SplitMix64: spreads seeds that are near each other.
const fn scatter(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_scatter_by_a_tenth_either_way() {
        let interval = Duration::from_secs(600);
        let all: Vec<_> = (0..1_000).map(|seed| jittered_ms(interval, seed)).collect();
        assert!(all.iter().all(|ms| (540_000..=660_000).contains(ms)));
        assert!(all.iter().any(|ms| *ms < 545_000) && all.iter().any(|ms| *ms > 655_000));
    }

    #[test]
    fn session_time_counts_from_the_network_phase() {
        let clock = Clock {
            monotonic_ms: 5_000,
            unix_ms: 1_000_000,
        };
        let mut live = crate::sessions::tests::live(0, 1, 0);
        live.started_unix_ms = 900_000;
        assert_eq!(session_time(&live, clock), Duration::ZERO);
        live.opened_unix_ms = 990_000;
        assert_eq!(session_time(&live, clock), Duration::from_secs(10));
    }

    #[test]
    fn sessions_of_an_earlier_run_come_at_any_time_of_the_first_interval() {
        let mut live = crate::sessions::tests::live(0, 1, 0);
        live.adopted = true;
        let interval = Duration::from_secs(600);
        let first = (0..1_000).map(|id| {
            live.accounting_id = id;
            first_interval_ms(interval, &live, 0)
        });
        let early = first.filter(|ms| *ms < 300_000).count();
        assert!((400..=600).contains(&early), "{early}");
    }
}
