//! PADOs that clients are about to take up. While frames wait in rings, many a PADI is answered before the PADR of the first
//! arrives, and each of those clients wants a half-open session. Nothing is kept of any client: PADOs are counted by when
//! they were offered, which a cookie brings back. Where PADOs are delayed by more than half a second, none are expected.

use crate::Time;

/// Length of a span, milliseconds.
const SPAN_MS: u64 = 64;
/// Spans a PADO is waited for, half a second in all: longer than a full ring takes, shorter than a client's patience.
const SPANS: usize = 8;
/// Weight of what was known before, in PADOs: one client that hesitates says little, a flood says it at once.
const FORMER: u64 = 4;

/// The PADOs offered in one span.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    number: u64,
    offered: u32,
    taken: u32,
}

/// The PADOs of one access port.
#[derive(Debug)]
pub(crate) struct Offers {
    spans: [Span; SPANS],
    /// How many of a thousand were taken up, of those waited for long enough lately. Those of a flood never are.
    taken_of_thousand: u64,
}

impl Offers {
    pub(crate) const NONE: Self = Self {
        spans: [Span {
            number: 0,
            offered: 0,
            taken: 0,
        }; SPANS],
        taken_of_thousand: 1_000,
    };

    /// Waits no longer for what is too old.
    pub(crate) fn advance(&mut self, now: Time) {
        let first = (now.as_millis() / SPAN_MS + 1).saturating_sub(SPANS as u64);
        let (mut offered, mut taken) = (0u64, 0u64);
        for span in self.spans.iter_mut().filter(|span| span.number < first) {
            offered += u64::from(span.offered);
            taken += u64::from(span.taken);
            *span = Span::default();
        }
        let before = self.taken_of_thousand * FORMER;
        self.taken_of_thousand = (taken * 1_000 + before) / (offered + FORMER);
    }

    /// A PADO is offered.
    pub(crate) fn offer(&mut self, now: Time) {
        self.advance(now);
        let number = now.as_millis() / SPAN_MS;
        if let Some(span) = self.spans.get_mut(number as usize % SPANS) {
            span.number = number;
            span.offered = span.offered.saturating_add(1);
        }
    }

    /// A PADO that was offered at `issued` is taken up.
    pub(crate) fn take(&mut self, issued: Time) {
        let number = issued.as_millis() / SPAN_MS;
        if let Some(span) = self.spans.get_mut(number as usize % SPANS)
            && span.number == number
            && span.taken < span.offered
        {
            span.taken += 1;
        }
    }

    /// PADOs that are likely to be taken up yet, as of the latest [`Self::advance`].
    pub(crate) fn expected(&self) -> u32 {
        let waiting = self.spans.iter().map(|span| span.offered - span.taken);
        let waiting: u64 = waiting.map(u64::from).sum();
        u32::try_from((waiting * self.taken_of_thousand).div_ceil(1_000)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offered_is_expected_until_it_is_taken_or_too_old() {
        let at = Time::from_millis;
        let mut offers = Offers::NONE;
        for ms in [10_000, 10_000, 10_100] {
            offers.offer(at(ms));
        }
        assert_eq!(offers.expected(), 3);
        offers.take(at(10_000));
        offers.take(at(9_000));
        assert_eq!(offers.expected(), 2);
        offers.take(at(10_000));
        offers.take(at(10_000));
        assert_eq!(offers.expected(), 1, "no more are taken than were offered");
        offers.advance(at(10_400));
        assert_eq!(offers.expected(), 1);
        offers.advance(at(10_700));
        assert_eq!(offers.expected(), 0);
    }

    #[test]
    fn one_client_that_never_comes_changes_little() {
        let at = Time::from_millis;
        let mut offers = Offers::NONE;
        offers.offer(at(10_000));
        offers.advance(at(20_000));
        for _ in 0..1_000 {
            offers.offer(at(20_000));
        }
        assert!((800..1_000).contains(&offers.expected()));
    }

    #[test]
    fn of_a_flood_only_as_many_are_expected_as_were_taken_of_it_before() {
        let mut offers = Offers::NONE;
        let mut most = 0;
        for ms in 0..4_000u64 {
            let now = Time::from_millis(100_000 + ms);
            for n in 0..10 {
                offers.offer(now);
                // One in a hundred is a client's.
                if n == 0 && ms % 10 == 0 {
                    offers.take(now);
                }
            }
            if ms > 1_000 {
                most = most.max(offers.expected());
            }
        }
        assert!((1..=60).contains(&most), "{most} of 5,000");
    }
}
