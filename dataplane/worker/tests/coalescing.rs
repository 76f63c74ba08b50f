//! Coalescing in the real process: nobody outside can tell, and the counters say what happened.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code
)]

mod running;

use bng_shm::{Counter, Group, Vlans};
use running::frames::QINQ;
use running::trains::{Train, expect_buffers, idle_buffers, map, start, while_stopped};
use running::{Gateway, Subscriber, with_workers};

/// Counters of the coalescer.
fn coalescer() -> impl Iterator<Item = Counter> {
    let groups = [Group::Coalesce, Group::CoalescePass, Group::CoalesceEnd];
    Counter::ALL
        .iter()
        .copied()
        .filter(move |counter| groups.contains(&counter.group()))
}

/// Whose frame this is, by the mark it ends with.
fn flow_of(flows: &[Train], frame: &[u8]) -> usize {
    let flow = flows
        .iter()
        .position(|flow| frame.last() == Some(&flow.mark));
    flow.expect("one of the flows")
}

/// Two flows of TCP and one of UDP, eight packets each, taking turns: 24 of one burst.
#[test]
fn trains_leave_byte_for_byte_in_order_and_are_counted_as_merged() {
    for vlans in [Vlans::default(), QINQ] {
        let mut g = start("trains", 1, 0);
        let idle = idle_buffers(&g);
        let s = Subscriber::new(7, 0, vlans);
        g.open(&s);
        let up = [
            Train::up(&s, 5_001, true),
            Train::up(&s, 5_002, true),
            Train::up(&s, 5_003, false),
        ];
        let nat = map(&g, &s, &up);
        g.expect(Counter::CoalesceSingle, 3);
        while_stopped(&mut g, |g| {
            for n in 1..=8 {
                for flow in &up {
                    g.access.send(&flow.frame_up(g, &s, n));
                }
            }
        });
        let mut next = [1u16; 3];
        for _ in 0..24 {
            let frame = g.core.receive();
            let at = flow_of(&up, &frame);
            let from = (s.block().address, nat[at]);
            assert!(frame == up[at].out_up(&g, from, next[at]), "{at}");
            next[at] += 1;
        }
        g.expect(Counter::CoalesceFrames, 3 + 24);
        g.expect(Counter::CoalesceMerged, 24);
        g.expect(Counter::CoalesceSupers, 3);
        g.expect(Counter::CoalesceSegments8, 3);
        g.expect(Counter::CoalesceSingle, 3);
        g.expect(Counter::EndBurst, 6);

        let down: Vec<_> = (up.iter().zip(&nat))
            .map(|(up, port)| Train::down(&s, *port, up.is_tcp))
            .collect();
        while_stopped(&mut g, |g| {
            for n in 1..=8 {
                for flow in &down {
                    g.core.send(&flow.frame_down(g, n));
                }
            }
        });
        let mut next = [1u16; 3];
        for _ in 0..24 {
            let frame = g.access.receive();
            let expected = |at: usize| {
                let port = up[at].from.1;
                down[at].out_down(&g, &s, port, next[at])
            };
            let at = (0..3).find(|at| frame == expected(*at));
            next[at.expect("the next packet of one of the flows")] += 1;
        }
        g.expect(Counter::CoalesceMerged, 48);
        g.expect(Counter::CoalesceSupers, 6);
        g.expect(Counter::TxCore, 27);
        g.expect(Counter::TxAccess, 24);
        g.assert_silent();
        g.assert_conservation();
        expect_buffers(&g, idle);
    }
}

/// Of two workers one receives what the other owns: what was handed over is coalesced by the owner, and counted once.
#[test]
fn frames_that_were_handed_over_are_coalesced_by_their_owner() {
    const FLOWS: u16 = 8;
    let mut g = start("over", 2, 0);
    let s = Subscriber::new(7, 1, QINQ);
    g.open(&s);
    let up: Vec<_> = (0..FLOWS)
        .map(|n| Train::up(&s, 5_000 + n, n % 2 == 0))
        .collect();
    let nat = map(&g, &s, &up);
    while_stopped(&mut g, |g| {
        for n in 1..=4 {
            for flow in &up {
                g.access.send(&flow.frame_up(g, &s, n));
            }
        }
    });
    let mut next = vec![1; up.len()];
    for _ in 0..4 * FLOWS {
        let frame = g.core.receive();
        let at = flow_of(&up, &frame);
        let from = (s.block().address, nat[at]);
        assert!(frame == up[at].out_up(&g, from, next[at]), "{at}");
        next[at] += 1;
    }
    g.expect(Counter::CoalesceFrames, u64::from(5 * FLOWS));
    assert!(g.count(Counter::CoalesceMerged) >= u64::from(2 * FLOWS));
    g.assert_silent();
    g.assert_conservation();
}

#[test]
fn without_coalescing_no_counter_of_it_moves() {
    let mut g = Gateway::start_with("off", |yaml| with_workers(&yaml, 1));
    let s = Subscriber::new(7, 0, QINQ);
    g.open(&s);
    let up = Train::up(&s, 5_001, true);
    let nat = map(&g, &s, &[up]);
    let down = Train::down(&s, nat[0], true);
    while_stopped(&mut g, |g| {
        for n in 1..=8 {
            g.access.send(&up.frame_up(g, &s, n));
            g.core.send(&down.frame_down(g, n));
        }
    });
    for n in 1..=8 {
        let from = (s.block().address, nat[0]);
        assert_eq!(g.core.receive(), up.out_up(&g, from, n));
        assert_eq!(g.access.receive(), down.out_down(&g, &s, 5_001, n));
    }
    for counter in coalescer() {
        assert_eq!(g.count(counter), 0, "{}", counter.label());
    }
    g.assert_conservation();
}
