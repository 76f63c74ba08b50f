//! What AAA has said of a session beyond what it holds, kept as long as the session lives, and its form in the recovery record.
//!
//! The form: a version byte, then items of a kind byte, a length byte and that many bytes, the most important first. Numbers
//! are big-endian. Items of a kind this version does not know are passed over.
//!
//! | kind | what | bytes |
//! |---|---|---|
//! | 1 | name of the end cause, once the session is over | text |
//! | 2 | Class, once for each attribute | as sent |
//! | 3 | Acct-Interim-Interval | seconds, 4 bytes |
//! | 4, 5 | rate of the subscriber, rate to it | kbit/s and burst, 4 bytes each; burst 0 for the one that goes with the rate |
//! | 6 | Filter-Id | text |
//! | 7 | IPv6 DNS servers | 2 addresses, all zero for none |
//! | 8 | Service-Name the client asked for | as sent |
//! | 9 | nothing of what the record says is held any more | none |
//! | 10 | what was changed since AAA accepted the session, see [`Changed`] | 1 byte |
//! | 11 | networks behind the subscriber | address, length and metric of each, 9 bytes |

use std::net::Ipv6Addr;
use std::time::Duration;

use bng_aaa::{FramedRoute, Profile, RateLimit};
use bng_shm::Record;

use crate::causes::EndCause;

/// The first byte.
const VERSION: u8 = 1;

const END: u8 = 1;
const CLASS: u8 = 2;
const INTERIM: u8 = 3;
const RATE_UP: u8 = 4;
const RATE_DOWN: u8 = 5;
const FILTER_ID: u8 = 6;
const DNS6: u8 = 7;
const SERVICE_NAME: u8 = 8;
const GIVEN_BACK: u8 = 9;
const CHANGED: u8 = 10;

/// What CoA or an operator has changed of a session: it stays so, whatever AAA says when the peer negotiates anew.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changed(u8);

impl Changed {
    /// Longest time.
    pub const SESSION_TIMEOUT: Self = Self(1);
    /// Longest time without traffic.
    pub const IDLE_TIMEOUT: Self = Self(2);
    /// Most octets.
    pub const QUOTA: Self = Self(4);
    /// Rate of what the subscriber sends.
    pub const RATE_UP: Self = Self(8);
    /// Rate of what the subscriber receives.
    pub const RATE_DOWN: Self = Self(16);
    /// Policy or filter.
    pub const FILTER_ID: Self = Self(32);
    /// Time between interim updates.
    pub const INTERIM: Self = Self(64);

    /// Both, where `is_so`.
    #[must_use]
    pub const fn with(self, other: Self, is_so: bool) -> Self {
        Self(if is_so { self.0 | other.0 } else { self.0 })
    }

    /// Whether it is changed.
    #[must_use]
    pub const fn has(self, one: Self) -> bool {
        self.0 & one.0 != 0
    }
}
const ROUTES: u8 = 11;

/// Bytes of a network.
const ROUTE_LEN: usize = 9;

/// What AAA has said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    /// Class attributes, for accounting.
    pub class: Vec<Vec<u8>>,
    /// Time between interim updates; zero for none, `None` for what the configuration says.
    pub interim: Option<Duration>,
    /// Rate of what the subscriber sends, in place of the policy's.
    pub rate_up: Option<RateLimit>,
    /// Rate of what the subscriber receives, in place of the policy's.
    pub rate_down: Option<RateLimit>,
    /// Name of the policy or the filter.
    pub filter_id: Option<String>,
    /// IPv6 DNS servers in place of the pool's.
    pub dns6: [Option<Ipv6Addr>; 2],
    /// What of the session was changed since.
    pub changed: Changed,
    /// Networks behind the subscriber that the session has.
    pub framed_routes: Vec<FramedRoute>,
}

/// Everything of a session that its recovery record has no field for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// What AAA has said.
    pub said: Said,
    /// Service-Name the client asked for.
    pub service_name: Vec<u8>,
    /// Why it ended, if it has.
    pub end: Option<EndCause>,
    /// Whether what the record says it held was given back already.
    pub given_back: bool,
}

impl Said {
    /// What of a profile is needed after its session has been granted; `None` when that is nothing. What was changed `before`, in
    /// a session that negotiates anew, stays. `framed_routes` are those the session has.
    #[must_use]
    pub fn of(
        profile: &Profile,
        before: Option<&Self>,
        framed_routes: Vec<FramedRoute>,
    ) -> Option<Box<Self>> {
        let said = Self {
            class: profile.class.clone(),
            interim: profile.interim_interval,
            rate_up: profile.rate_up,
            rate_down: profile.rate_down,
            filter_id: profile.filter_id.clone(),
            dns6: profile.dns6,
            changed: Changed::default(),
            framed_routes,
        };
        let said = match before {
            None => said,
            Some(before) => said.changed_as(before),
        };
        said.boxed()
    }

    fn changed_as(self, before: &Self) -> Self {
        let changed = before.changed;
        let or = |one, rate, before| if changed.has(one) { before } else { rate };
        Self {
            interim: match changed.has(Changed::INTERIM) {
                true => before.interim,
                false => self.interim,
            },
            rate_up: or(Changed::RATE_UP, self.rate_up, before.rate_up),
            rate_down: or(Changed::RATE_DOWN, self.rate_down, before.rate_down),
            filter_id: match changed.has(Changed::FILTER_ID) {
                true => before.filter_id.clone(),
                false => self.filter_id,
            },
            changed,
            ..self
        }
    }

    /// For a session; `None` when it says nothing.
    #[must_use]
    pub fn boxed(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }
}

struct Writer<'a> {
    record: &'a mut Record,
    left_out: usize,
}

impl Writer<'_> {
    /// Adds an item, or counts it when it does not fit.
    fn put(&mut self, kind: u8, value: &[u8]) {
        let at = usize::from(self.record.terms_len);
        let end = at + 2 + value.len();
        let (Ok(length), Some(room)) = (
            u8::try_from(value.len()),
            self.record.terms.get_mut(at..end),
        ) else {
            self.left_out += 1;
            return;
        };
        room[0] = kind;
        room[1] = length;
        room[2..].copy_from_slice(value);
        // Fits: `end` is within the field.
        self.record.terms_len = end as u16;
    }
}

/// Writes it into a record; returns how many items have found no room.
pub(crate) fn write(
    record: &mut Record,
    said: Option<&Said>,
    service_name: &[u8],
    end: Option<EndCause>,
    given_back: bool,
) -> usize {
    record.terms[0] = VERSION;
    record.terms_len = 1;
    let mut writer = Writer {
        record,
        left_out: 0,
    };
    if let Some(end) = end {
        writer.put(END, end.name().as_bytes());
    }
    if given_back {
        writer.put(GIVEN_BACK, &[]);
    }
    if let Some(said) = said {
        if said.changed != Changed::default() {
            writer.put(CHANGED, &[said.changed.0]);
        }
        // Before all that may be long: who has a network must not be forgotten.
        if !said.framed_routes.is_empty() {
            let routes = said.framed_routes.iter().map(route_octets);
            writer.put(ROUTES, routes.collect::<Vec<_>>().as_flattened());
        }
        for class in &said.class {
            writer.put(CLASS, class);
        }
        if let Some(interim) = said.interim {
            let seconds = u32::try_from(interim.as_secs()).unwrap_or(u32::MAX);
            writer.put(INTERIM, &seconds.to_be_bytes());
        }
        for (kind, rate) in [(RATE_UP, said.rate_up), (RATE_DOWN, said.rate_down)] {
            if let Some(rate) = rate {
                let burst = rate.burst_bytes.unwrap_or(0);
                let words = [rate.kbps, burst].map(u32::to_be_bytes);
                writer.put(kind, words.as_flattened());
            }
        }
        if let Some(name) = &said.filter_id {
            writer.put(FILTER_ID, name.as_bytes());
        }
        if said.dns6.iter().any(Option::is_some) {
            let octets = (said.dns6).map(|it| it.unwrap_or(Ipv6Addr::UNSPECIFIED).octets());
            writer.put(DNS6, octets.as_flattened());
        }
    }
    if !service_name.is_empty() {
        writer.put(SERVICE_NAME, service_name);
    }
    writer.left_out
}

fn route_octets(route: &FramedRoute) -> [u8; ROUTE_LEN] {
    let [a, b, c, d] = route.network.octets();
    let [e, f, g, h] = route.metric.to_be_bytes();
    [a, b, c, d, route.length, e, f, g, h]
}

/// A network; `None` for what is none.
fn route([a, b, c, d, length, metric @ ..]: [u8; ROUTE_LEN]) -> Option<FramedRoute> {
    (length <= 32).then(|| FramedRoute {
        network: [a, b, c, d].into(),
        length,
        metric: u32::from_be_bytes(metric),
    })
}

/// Reads whatever a record says. Of what is not whole, what came before counts.
pub(crate) fn read(record: &Record) -> Kept {
    let mut kept = Kept::default();
    let Some((&VERSION, mut rest)) = record.terms().split_first() else {
        return kept;
    };
    while let [kind, length, after @ ..] = rest {
        let Some((value, after)) = after.split_at_checked((*length).into()) else {
            break;
        };
        rest = after;
        read_item(&mut kept, *kind, value);
    }
    kept
}

fn read_item(kept: &mut Kept, kind: u8, value: &[u8]) {
    let said = &mut kept.said;
    let number = |bytes: &[u8]| bytes.try_into().map(u32::from_be_bytes).unwrap_or(0);
    let text = || String::from_utf8(value.to_vec()).ok();
    let rate = || match value.split_at_checked(4) {
        Some((kbps, burst)) if burst.len() == 4 && number(kbps) != 0 => Some(RateLimit {
            kbps: number(kbps),
            burst_bytes: Some(number(burst)).filter(|burst| *burst != 0),
        }),
        _ => None,
    };
    match kind {
        END => kept.end = text().and_then(|name| EndCause::of_name(&name)),
        CLASS => said.class.push(value.to_vec()),
        INTERIM if value.len() == 4 => {
            said.interim = Some(Duration::from_secs(number(value).into()));
        }
        RATE_UP => said.rate_up = rate(),
        RATE_DOWN => said.rate_down = rate(),
        FILTER_ID => said.filter_id = text(),
        DNS6 => {
            let servers = value
                .as_chunks()
                .0
                .iter()
                .map(|octets| Ipv6Addr::from(*octets));
            for (to, from) in said.dns6.iter_mut().zip(servers) {
                *to = (!from.is_unspecified()).then_some(from);
            }
        }
        GIVEN_BACK => kept.given_back = true,
        CHANGED => said.changed = Changed(value.first().copied().unwrap_or(0)),
        ROUTES => {
            let (routes, _) = value.as_chunks();
            said.framed_routes = routes.iter().filter_map(|it| route(*it)).collect();
        }
        SERVICE_NAME => kept.service_name = value.to_vec(),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bng_pppoe::TerminateCause;
    use bng_shm::TERMS_MAX;
    use proptest::prelude::*;

    fn everything() -> Said {
        Said {
            class: vec![b"one".to_vec(), Vec::new(), vec![0xff; 200]],
            interim: Some(Duration::from_secs(600)),
            rate_up: Some(RateLimit {
                kbps: 1000,
                burst_bytes: None,
            }),
            rate_down: Some(RateLimit {
                kbps: 400_000_000,
                burst_bytes: Some(9000),
            }),
            filter_id: Some("gold".to_owned()),
            dns6: [None, Some("2001:db8::53".parse().unwrap())],
            changed: Changed::QUOTA.with(Changed::INTERIM, true),
            framed_routes: vec![FramedRoute {
                network: [198, 18, 0, 0].into(),
                length: 22,
                metric: 70_000,
            }],
        }
    }

    #[test]
    fn everything_reads_back() {
        let end = Some(EndCause::Engine(TerminateCause::IdleTimeout));
        let mut record = Record::default();
        assert_eq!(
            write(&mut record, Some(&everything()), b"video", end, true),
            0
        );
        let kept = Kept {
            said: everything(),
            service_name: b"video".to_vec(),
            end,
            given_back: true,
        };
        assert_eq!(read(&record), kept);
        assert_eq!(read(&Record::default()), Kept::default());
        assert_eq!(write(&mut record, None, b"", None, false), 0);
        assert_eq!(read(&record), Kept::default(), "written anew");
        record.terms[0] = VERSION + 1;
        assert_eq!(read(&record), Kept::default());
    }

    #[test]
    fn what_has_no_room_is_left_out_and_counted_and_the_rest_is_kept() {
        let said = Said {
            class: vec![vec![1; 253], vec![2; 253], vec![3; 20]],
            ..everything()
        };
        let mut record = Record::default();
        assert_eq!(
            write(&mut record, Some(&said), &[b's'; 300], None, false),
            2
        );
        let kept = read(&record).said;
        assert_eq!(kept.class, [vec![1; 253], vec![3; 20]]);
        assert_eq!(kept.filter_id, said.filter_id);
    }

    #[test]
    fn what_was_changed_stays_when_aaa_says_it_again_and_the_rest_is_as_it_says() {
        let rate = |kbps| {
            Some(RateLimit {
                kbps,
                burst_bytes: None,
            })
        };
        let before = Said {
            rate_up: rate(7),
            rate_down: rate(8),
            filter_id: None,
            interim: Some(Duration::from_secs(60)),
            changed: Changed::RATE_UP.with(Changed::FILTER_ID, true),
            ..Said::default()
        };
        let profile = Profile {
            rate_up: rate(1),
            rate_down: rate(2),
            filter_id: Some("gold".to_owned()),
            interim_interval: Some(Duration::from_secs(600)),
            ..Profile::default()
        };
        let expected = Said {
            rate_down: rate(2),
            interim: Some(Duration::from_secs(600)),
            ..before.clone()
        };
        assert_eq!(
            Said::of(&profile, Some(&before), Vec::new()).as_deref(),
            Some(&expected)
        );
        assert_eq!(
            Said::of(&profile, None, Vec::new()).unwrap().rate_up,
            rate(1)
        );
    }

    proptest! {
        #[test]
        fn any_record_can_be_read_and_what_was_written_is_what_is_read(
            bytes in prop::collection::vec(any::<u8>(), TERMS_MAX),
            length in any::<u16>(),
            class in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..90), 0..5),
            filter_id in prop::option::of("[a-z]{1,20}"),
            cut in 0usize..TERMS_MAX,
        ) {
            let mut record = Record { terms_len: length, ..Record::default() };
            record.terms.copy_from_slice(&bytes);
            let _ = read(&record);
            record.terms[0] = VERSION;
            let _ = read(&record);

            let said = Said { class, filter_id, ..Said::default() };
            prop_assert_eq!(write(&mut record, Some(&said), b"", None, false), 0);
            prop_assert_eq!(&read(&record).said, &said);
            record.terms_len = record.terms_len.min(cut as u16);
            let before_the_cut = read(&record).said.class;
            prop_assert!(said.class.starts_with(&before_the_cut));
        }
    }
}
