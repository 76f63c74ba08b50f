//! Frames, timeouts and decisions in, actions out: the whole PPPoE engine under its invariants.
//!
//! The input is a script of operations, see the module it is played by. It panics on a reply to a malformed frame,
//! an unbounded answer, a network phase without authentication, or a session, id or timer left behind.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../controlplane/pppoe/tests/peer/mod.rs"]
mod peer;

fuzz_target!(|input: &[u8]| {
    // The first byte says how many sessions are up before the script begins: deep states need no luck.
    let Some((dialled, script)) = input.split_first() else {
        return;
    };
    let mut whole: Vec<u8> = (0..dialled % 5)
        .flat_map(peer::storm::dial_script)
        .collect();
    whole.extend_from_slice(script);
    peer::storm::play(&whole);
});
