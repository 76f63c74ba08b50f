//! Any operations on the run table: every frame comes out once and as it was, those of a flow in order, and nothing is
//! held at the end. The input's form is described in `bng_fastpath::testing::interleaved`.
#![no_main]

use bng_fastpath::testing::interleaved;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    interleaved(input);
});
