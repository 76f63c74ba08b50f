//! Time as an argument: the engine has no clock.

use core::ops::Add;
use core::time::Duration;

/// A moment on the caller's monotonic clock, in milliseconds since an arbitrary start.
///
/// Every call that takes a `Time` may be given the same moment again but not an earlier one; the engine treats an
/// earlier moment as the latest it has seen. To adopt sessions after a restart the clock must go on across processes
/// (`CLOCK_BOOTTIME` does).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The start of the clock.
    pub const ZERO: Self = Self(0);

    /// A moment `millis` milliseconds after the clock's start.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the clock's start.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Time passed since `earlier`; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    /// Saturates at the end of the clock.
    fn add(self, span: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
        )
    }
}
