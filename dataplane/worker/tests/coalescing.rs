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
use running::frames::{QINQ, source_port};
use running::trains::{Train, while_stopped};
use running::{Gateway, Subscriber, wait_for, with_workers};
use std::time::{Duration, Instant};

/// `dataplane.coalescing` of the tests.
fn coalescing(hold_us: u32) -> String {
    format!(
        "dataplane:\n  coalescing: {{ upstream: {{ tcp: true, udp: true }}, downstream: {{ tcp: true, udp: true }}, hold_us: {hold_us} }}"
    )
}

/// The process with so many workers, and coalescing with this hold time.
fn start(name: &str, workers: usize, hold_us: u32) -> Gateway {
    Gateway::start_with(name, |yaml| {
        let yaml = yaml.replacen("dataplane:", &coalescing(hold_us), 1);
        with_workers(&yaml, workers)
    })
}

/// Counters of the coalescer.
fn coalescer() -> impl Iterator<Item = Counter> {
    let groups = [Group::Coalesce, Group::CoalescePass, Group::CoalesceEnd];
    Counter::ALL
        .iter()
        .copied()
        .filter(move |counter| groups.contains(&counter.group()))
}

/// Sends a packet of each flow and finds the ports NAT gives them.
fn map(g: &Gateway, s: &Subscriber, flows: &[Train]) -> Vec<u16> {
    let ports = flows.iter().map(|flow| {
        g.access.send(&flow.frame_up(g, s, 0));
        source_port(&g.core.receive())
    });
    ports.collect()
}

/// Whose frame this is, by the mark it ends with.
fn flow_of(flows: &[Train], frame: &[u8]) -> usize {
    let flow = flows
        .iter()
        .position(|flow| frame.last() == Some(&flow.mark));
    flow.expect("one of the flows")
}

/// Packets in use when nothing is on its way.
fn idle_buffers(g: &Gateway) -> u32 {
    wait_for("count of packet buffers", || {
        let (all, in_use) = g.control.mbufs();
        (all > 0).then_some(in_use)
    })
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
        wait_for("return of all packet buffers", || {
            (g.control.mbufs().1 == idle).then_some(())
        });
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

/// One frame of a flow in each of many bursts, with others in between that are never merged.
struct Spread {
    flow: Train,
    between: Train,
    next: u16,
}

/// Frames between two of the flow: more than a burst.
const BETWEEN: u16 = 33;
/// Frames of the flow in one go; with those between them they fit the port's ring.
const FLOW: u16 = 12;

impl Spread {
    fn new(s: &Subscriber) -> Self {
        Self {
            flow: Train::up(s, 5_001, true),
            between: Train {
                payload: 64,
                ..Train::up(s, 5_002, false)
            },
            next: 1,
        }
    }

    /// Queues one go for the stopped process.
    fn send(&mut self, g: &Gateway, s: &Subscriber) {
        let mut between = self.between.frame_up(g, s, 0);
        // A zero checksum: never merged (C16).
        let at = between.len() - 64 - 2;
        between[at..at + 2].fill(0);
        for n in 0..FLOW {
            g.access.send(&self.flow.frame_up(g, s, self.next + n));
            for _ in 0..BETWEEN {
                g.access.send(&between);
            }
        }
        self.next += FLOW;
    }

    /// Frames of one go.
    const SENT: u64 = (FLOW as u64) * (1 + BETWEEN as u64);
}

/// Takes a go in at the core; the flow's frames must be in order. Returns how many of them came.
fn take_in_order(g: &Gateway, spread: &Spread, first: u16, nat: u16, s: &Subscriber) -> u16 {
    let from = (s.block().address, nat);
    let mut next = first;
    for _ in 0..Spread::SENT {
        let frame = g.core.receive();
        if frame.last() == Some(&spread.flow.mark) {
            assert!(frame == spread.flow.out_up(g, from, next), "{next}");
            next += 1;
        }
    }
    next - first
}

/// T1, T5: with a hold time frames of different bursts become one run; it goes out when its time is over, and never later
/// than a poll that finds nothing (T2).
#[test]
fn with_a_hold_time_runs_go_on_over_bursts_and_end_by_time() {
    let mut g = start("hold", 1, 200);
    let idle = idle_buffers(&g);
    let s = Subscriber::new(7, 0, Vlans::default());
    g.open(&s);
    let mut spread = Spread::new(&s);
    let nat = map(&g, &s, &[spread.flow, spread.between]);
    let end = Instant::now() + Duration::from_secs(20);
    // How far a go comes within the hold time is the machine's matter.
    while g.count(Counter::EndHold) == 0 || g.count(Counter::CoalesceSupers) == 0 {
        assert!(Instant::now() < end, "neither held nor ended by time");
        let first = spread.next;
        while_stopped(&mut g, |g| spread.send(g, &s));
        assert_eq!(take_in_order(&g, &spread, first, nat[0], &s), FLOW);
    }
    let [merged, single, frames] = [
        Counter::CoalesceMerged,
        Counter::CoalesceSingle,
        Counter::CoalesceFrames,
    ]
    .map(|counter| g.count(counter));
    println!(
        "{frames} frames: {merged} merged in {} super-packets, {} runs ended by time, {} by an empty poll",
        g.count(Counter::CoalesceSupers),
        g.count(Counter::EndHold),
        g.count(Counter::EndBurst),
    );
    assert_eq!(
        merged + single,
        frames,
        "nothing is held while nothing comes"
    );
    g.assert_silent();
    g.assert_conservation();
    wait_for("return of all packet buffers", || {
        (g.control.mbufs().1 == idle).then_some(())
    });
}

/// T3, INV-EPOCH-1: control withdraws a session of which a run is held.
#[test]
fn a_withdrawal_completes_while_runs_are_held_and_they_go_out_first() {
    let mut g = start("epoch", 1, 200);
    let idle = idle_buffers(&g);
    let s = Subscriber::new(7, 0, Vlans::default());
    g.open(&s);
    let mut spread = Spread::new(&s);
    let mut sent = 2;
    map(&g, &s, &[spread.flow, spread.between]);
    let end = Instant::now() + Duration::from_secs(20);
    let mut rounds = 0;
    while g.count(Counter::EndQuiescent) == 0 {
        assert!(Instant::now() < end, "no run was held when control waited");
        while_stopped(&mut g, |g| spread.send(g, &s));
        sent += Spread::SENT;
        // Workers are in the middle of it: nothing is waited for but the epoch, whose passing is bounded in `close`.
        wait_for("begin of the burst", || {
            (g.count(Counter::RxAccess) > sent - Spread::SENT).then_some(())
        });
        g.close(&s);
        rounds += 1;
        g.expect(Counter::RxAccess, sent);
        g.open(&s);
        spread.next = 1;
    }
    println!(
        "{rounds} sessions closed, {} runs went out for it",
        g.count(Counter::EndQuiescent)
    );
    // Every frame of a closed session was sent, or dropped by name; none is held.
    let of_session = g.count(Counter::CoalesceFrames);
    g.expect(
        Counter::CoalesceMerged,
        of_session - g.count(Counter::CoalesceSingle),
    );
    while g.core.receive_within(Duration::from_millis(50)).is_some() {}
    g.assert_silent();
    g.assert_conservation();
    wait_for("return of all packet buffers", || {
        (g.control.mbufs().1 == idle).then_some(())
    });
}
