//! Frames, timeouts and decisions in, actions out: the whole PPPoE engine under its invariants.
//!
//! The input is a script of operations, see the module it is played by. It panics on a reply to a malformed frame,
//! an unbounded answer, a network phase without authentication, or a session, id or timer left behind.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../controlplane/pppoe/tests/peer/mod.rs"]
mod peer;

fuzz_target!(|script: &[u8]| {
    peer::storm::play(script);
});
