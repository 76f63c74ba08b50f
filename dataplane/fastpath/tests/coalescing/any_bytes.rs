//! Any operations on the run table, as the fuzz target `coalesce` has them.

use bng_fastpath::testing::{Interleaved, interleaved};
use proptest::prelude::*;

#[test]
fn a_few_operations_do_what_they_say() {
    // Three frames of a flow, PSH on the last, in runs of at most two: it is alone.
    let run = [0, 0, 0, 0b0010_0000];
    assert_eq!(interleaved(&run), Interleaved { frames: 3, runs: 1 });
    // In longer runs; then two that another verdict parts from each other.
    let run = [0xf8, 0, 0, 0b0010_0000, 0, 0b1000_0000, 2];
    assert_eq!(interleaved(&run), Interleaved { frames: 5, runs: 1 });
}

/// Any operation but the one that takes what follows for a frame.
fn disturbance() -> impl Strategy<Value = u8> {
    any::<u8>().prop_filter("takes many bytes", |op| op & 0b1100_0111 != 0b1100_0101)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]
    #[test]
    fn whatever_is_done_every_frame_leaves_once_and_in_order(
        operations in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        interleaved(&operations);
    }

    /// Mostly frames of few flows, so that there are runs to be disturbed.
    #[test]
    fn whatever_disturbs_runs_every_frame_leaves_once_and_in_order(
        operations in prop::collection::vec(prop_oneof![20 => 0u8..4, 3 => disturbance()], 100..400),
    ) {
        let Interleaved { frames, runs } = interleaved(&operations);
        prop_assert!(frames >= 30 && runs > 0);
    }
}
