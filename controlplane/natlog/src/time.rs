//! RFC 3339 times.

use std::fmt::Write;

/// A Unix time as text, in UTC, such as `2026-03-01T12:00:00.250Z`.
#[must_use]
pub fn text(unix_ms: u64) -> String {
    let (days, of_day) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    // Days from the first of March of year 0, in eras of 400 years.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let year = era * 400 + year + carry;
    let (seconds, ms) = (of_day / 1_000, of_day % 1_000);
    let mut text = String::with_capacity(24);
    let _ = write!(
        text,
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{ms:03}Z",
        seconds / 3_600,
        seconds / 60 % 60,
        seconds % 60
    );
    text
}

/// The Unix time of a text, milliseconds; parts of a millisecond are left out. `None` if it is no RFC 3339 time from 1970 on. A leap
/// second counts as the second after it.
#[must_use]
pub fn parse(text: &str) -> Option<u64> {
    if !text.is_ascii() {
        return None;
    }
    let number = |range: std::ops::Range<usize>| -> Option<i64> {
        let digits = text.get(range)?;
        let is_number = digits.bytes().all(|it| it.is_ascii_digit());
        is_number.then(|| digits.parse().ok()).flatten()
    };
    let sign = |at: usize, of: &[u8]| text.as_bytes().get(at).filter(|it| of.contains(it));
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    for (at, of) in [
        (4, &b"-"[..]),
        (7, b"-"),
        (10, b"Tt "),
        (13, b":"),
        (16, b":"),
    ] {
        sign(at, of)?;
    }
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=length).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut rest = text.get(19..)?;
    let mut ms = 0;
    if let Some(fraction) = rest.strip_prefix('.') {
        let end = fraction.find(|it: char| !it.is_ascii_digit())?;
        let digits = fraction.get(..end).filter(|it| !it.is_empty())?;
        let digits = digits.get(..3).unwrap_or(digits);
        ms = format!("{digits:0<3}").parse::<i64>().ok()?;
        rest = fraction.get(end..)?;
    }
    let offset = match rest {
        "Z" | "z" => 0,
        rest => {
            let at = text.len() - rest.len();
            let (hours, minutes) = (number(at + 1..at + 3)?, number(at + 4..at + 6)?);
            sign(at + 3, b":")?;
            if rest.len() != 6 || hours > 23 || minutes > 59 {
                return None;
            }
            let minutes = hours * 60 + minutes;
            match sign(at, b"+-")? {
                b'-' => -minutes,
                _ => minutes,
            }
        }
    };
    let (shifted, month) = if month <= 2 {
        (year - 1, month + 9)
    } else {
        (year, month - 3)
    };
    let (era, of_era) = (shifted.div_euclid(400), shifted.rem_euclid(400));
    let of_year = (153 * month + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second - offset * 60;
    u64::try_from(seconds * 1_000 + ms).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_date() {
        for (ms, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_827_696_789, "2000-02-29T12:34:56.789Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (1_798_761_600_000, "2027-01-01T00:00:00.000Z"),
            (4_102_444_800_001, "2100-01-01T00:00:00.001Z"),
        ] {
            assert_eq!(text(ms), expected);
            assert_eq!(parse(expected), Some(ms), "{expected}");
        }
        for n in 0..40_000 {
            let ms = n * 86_400_000 + n;
            assert_eq!(parse(&text(ms)), Some(ms));
        }
    }

    #[test]
    fn offsets_and_fractions_are_taken_and_nonsense_is_refused() {
        let noon = parse("2026-03-01T12:00:00Z").unwrap();
        for same in [
            "2026-03-01T13:00:00+01:00",
            "2026-03-01T04:30:00-07:30",
            "2026-03-01t12:00:00z",
            "2026-03-01 12:00:00.0000009Z",
        ] {
            assert_eq!(parse(same), Some(noon), "{same}");
        }
        assert_eq!(parse("2026-03-01T12:00:00.5Z"), Some(noon + 500));
        for bad in [
            "",
            "now",
            "2026-03-01",
            "2026-03-01T12:00:00",
            "2026-02-29T12:00:00Z",
            "2026-13-01T12:00:00Z",
            "2026-03-01T24:00:00Z",
            "2026-03-01T12:00:00.Z",
            "2026-03-01T12:00:00+1:00",
            "2026-03-01T12:00:00+01:000",
            "2026-03-01T12:00:00Zx",
            "+026-03-01T12:00:00Z",
            "1969-12-31T23:59:59Z",
            "2026-03-01T12:00:00é",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
