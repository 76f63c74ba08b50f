//! The search for the highest rate without loss: RFC 2544 section 26.1, by halving.

use anyhow::Result;

/// What a trial at one rate came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Verdict {
    /// Packets per second that were really offered, per direction.
    pub(super) offered: f64,
    /// Packets per second that arrived, per direction; of two the smaller.
    pub(super) forwarded: f64,
    /// Whether anything was lost.
    pub(super) lossy: bool,
    /// Whether the generator could not offer the rate.
    pub(super) short: bool,
}

/// What kept the search from finding more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    /// More is lost.
    Loss,
    /// The generator cannot send more.
    Generator,
    /// More was not asked for.
    MaxRate,
}

impl Limit {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Generator => "generator",
            Self::MaxRate => "max-rate",
        }
    }
}

/// The end of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Found {
    /// Highest rate offered without loss, packets per second and direction; 0 if there was none.
    pub(super) rate: f64,
    /// Why not more.
    pub(super) limit: Limit,
}

/// Below this rate, packets per second, a search gives up.
const FLOOR: f64 = 100.0;

/// Looks for the highest rate up to `max` at which `trial` loses nothing. It ends when the rate is known to a part of
/// `resolution` of itself.
///
/// # Errors
/// What `trial` returns.
pub(super) fn search(
    max: f64,
    resolution: f64,
    mut trial: impl FnMut(f64) -> Result<Verdict>,
) -> Result<Found> {
    let first = trial(max)?;
    if !first.lossy {
        return Ok(Found {
            rate: first.offered,
            limit: if first.short {
                Limit::Generator
            } else {
                Limit::MaxRate
            },
        });
    }
    let (mut low, mut high) = (0.0, max.min(first.offered));
    // What gets through under overload is a good first guess, and seldom too low by much.
    let mut next = first.forwarded.min(high * 0.99);
    while high - low > resolution * high && high > FLOOR {
        let verdict = trial(next)?;
        if verdict.lossy {
            high = next;
        } else {
            low = verdict.offered.min(high);
            if verdict.short {
                return Ok(Found {
                    rate: low,
                    limit: Limit::Generator,
                });
            }
        }
        next = f64::midpoint(low, high);
        if low > 0.0 {
            // The upper end may be far off still.
            next = next.min(low * 2.0);
        }
    }
    Ok(Found {
        rate: low,
        limit: Limit::Loss,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that forwards `capacity` and a generator that sends at most `most`.
    fn device(capacity: f64, most: f64, trials: &mut u32) -> impl FnMut(f64) -> Result<Verdict> {
        move |rate| {
            *trials += 1;
            assert!(rate > 0.0);
            let offered = rate.min(most);
            Ok(Verdict {
                offered,
                forwarded: offered.min(capacity),
                lossy: offered > capacity,
                short: offered < rate * 0.95,
            })
        }
    }

    #[test]
    fn the_capacity_is_found_to_the_resolution_and_never_exceeded() {
        for capacity in [1_234.0, 777_777.0, 9.9e6] {
            let mut trials = 0;
            let found = search(2e7, 0.01, device(capacity, f64::MAX, &mut trials)).unwrap();
            assert_eq!(found.limit, Limit::Loss);
            assert!(
                found.rate <= capacity && found.rate >= capacity * 0.98,
                "{found:?}"
            );
            assert!(trials < 12, "{trials}");
        }
    }

    #[test]
    fn a_device_that_collapses_under_overload_is_searched_below_it() {
        let found = search(1e6, 0.01, |rate| {
            Ok(Verdict {
                offered: rate,
                forwarded: if rate > 500e3 { 1e3 } else { rate },
                lossy: rate > 500e3,
                short: false,
            })
        })
        .unwrap();
        assert!((490e3..=500e3).contains(&found.rate), "{found:?}");
    }

    #[test]
    fn the_generators_own_limit_is_named() {
        let found = search(1e7, 0.01, device(5e6, 1e6, &mut 0)).unwrap();
        assert_eq!((found.rate, found.limit), (1e6, Limit::Generator));
        let found = search(1e5, 0.01, device(5e6, 1e6, &mut 0)).unwrap();
        assert_eq!((found.rate, found.limit), (1e5, Limit::MaxRate));
    }

    #[test]
    fn a_device_that_always_loses_ends_the_search_with_nothing() {
        let mut trials = 0;
        let found = search(1e6, 0.01, |rate| {
            trials += 1;
            Ok(Verdict {
                offered: rate,
                forwarded: rate * 0.9,
                lossy: true,
                short: false,
            })
        })
        .unwrap();
        assert_eq!(found.rate, 0.0);
        assert!(trials < 20);
    }
}
