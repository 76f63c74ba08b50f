//! Medians and spread of samples.

use serde::{Deserialize, Serialize};

/// Samples of one loop: nanoseconds a worker spends on a packet, one sample per round.
#[derive(Debug, Default, Clone)]
pub(super) struct Samples(Vec<f64>);

/// How far samples lie apart. All are in the unit of the samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    /// Smallest.
    pub(crate) min: f64,
    /// A quarter is below.
    pub(crate) p25: f64,
    /// A quarter is above.
    pub(crate) p75: f64,
    /// Largest.
    pub(crate) max: f64,
    /// Median absolute deviation from the median.
    pub(crate) mad: f64,
}

impl Samples {
    pub(super) fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The value at a quantile. Nothing measured is not a number.
    fn at(sorted: &[f64], quantile: f64) -> f64 {
        let at = (quantile * sorted.len().saturating_sub(1) as f64).round();
        sorted.get(at as usize).copied().unwrap_or(f64::NAN)
    }

    fn sorted(&self) -> Vec<f64> {
        let mut values = self.0.clone();
        values.sort_by(f64::total_cmp);
        values
    }

    /// Half of the samples are below.
    pub(super) fn median(&self) -> f64 {
        Self::at(&self.sorted(), 0.5)
    }

    /// How far they lie apart.
    pub(super) fn spread(&self) -> Spread {
        let sorted = self.sorted();
        let median = Self::at(&sorted, 0.5);
        let deviations = Self(sorted.iter().map(|value| (value - median).abs()).collect());
        Spread {
            min: Self::at(&sorted, 0.0),
            p25: Self::at(&sorted, 0.25),
            p75: Self::at(&sorted, 0.75),
            max: Self::at(&sorted, 1.0),
            mad: deviations.median(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_and_deviation_are_of_the_sorted_samples() {
        let mut samples = Samples::default();
        for value in [5.0, 1.0, 40.0, 2.0, 3.0] {
            samples.add(value);
        }
        assert_eq!(samples.median(), 3.0);
        let spread = samples.spread();
        assert_eq!((spread.min, spread.p25), (1.0, 2.0));
        assert_eq!((spread.p75, spread.max), (5.0, 40.0));
        assert_eq!(spread.mad, 2.0);
        assert!(Samples::default().median().is_nan());
    }
}
