//! Runs that are held over polls, while control and the machine do what they do: time passes, sessions end, the process is
//! killed.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code
)]

mod running;

use bng_shm::{Counter, Vlans};
use running::trains::{Train, expect_buffers, idle_buffers, map, start, while_stopped};
use running::{Gateway, Subscriber, wait_for};
use rustix::process::{Signal, kill_process};
use std::time::{Duration, Instant};

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

/// Waits until every frame that could be merged has left; how many there were.
fn nothing_is_held(g: &Gateway) -> u64 {
    wait_for("end of all runs", || {
        let frames = g.count(Counter::CoalesceFrames);
        let left = g.count(Counter::CoalesceMerged) + g.count(Counter::CoalesceSingle);
        (left == frames).then_some(frames)
    })
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
    let frames = nothing_is_held(&g);
    assert_eq!(frames, 2 + u64::from(spread.next - 1));
    println!(
        "{frames} frames: {} merged in {} super-packets, {} runs ended by time, {} by an empty poll",
        g.count(Counter::CoalesceMerged),
        g.count(Counter::CoalesceSupers),
        g.count(Counter::EndHold),
        g.count(Counter::EndBurst),
    );
    g.assert_silent();
    g.assert_conservation();
    expect_buffers(&g, idle);
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
    // Every frame of a closed session was sent, or dropped by name.
    nothing_is_held(&g);
    while g.core.receive_within(Duration::from_millis(50)).is_some() {}
    g.assert_silent();
    g.assert_conservation();
    expect_buffers(&g, idle);
}

/// HZ-09 C(b) with runs in hand: one id and one address, again and again another subscriber's.
#[test]
fn frames_that_were_held_never_come_out_of_the_session_that_takes_the_place() {
    const ROUNDS: usize = 60;
    const FILL: u64 = 50;
    let mut g = start("reuse", 1, 200);
    let idle = idle_buffers(&g);
    let owners = [Subscriber::new(7, 0, Vlans::default()), {
        let mut other = Subscriber::new(7, 0, Vlans::default());
        other.session.client_mac = [2, 0, 0, 0, 2, 2];
        other
    }];
    // Each has a flow of its own, and packets of the other's flow lead nowhere while it has not.
    let flows: [Train; 2] = std::array::from_fn(|who| Train {
        mark: 0xa0 + who as u8,
        ..Train::up(&owners[who], 5_001 + who as u16, true)
    });
    let (mut sent, mut came) = (0u64, [0u32; 2]);
    let end = Instant::now() + Duration::from_secs(20);
    for round in 0.. {
        // Whether a run is in hand when control waits is the machine's matter.
        if round >= ROUNDS && g.count(Counter::EndQuiescent) > 0 {
            break;
        }
        assert!(Instant::now() < end, "no run was held when control waited");
        let who = round % 2;
        let s = &owners[who];
        g.open(s);
        let nat = map(&g, s, &flows[who..=who]);
        let down = Train {
            mark: flows[who].mark,
            ..Train::down(s, nat[0], true)
        };
        // More than a burst, so that runs are held between two; other traffic keeps polls from being empty.
        let fill = Train {
            payload: 64,
            ..Train::down(s, 1, false)
        };
        let fill = fill.frame_down(&g, 0);
        while_stopped(&mut g, |g| {
            for n in 1..=8 {
                g.core.send(&down.frame_down(g, n));
                for _ in 0..FILL {
                    g.core.send(&fill);
                }
            }
        });
        sent += 8 * (FILL + 1);
        // The session ends in the middle of it.
        wait_for("begin of the burst", || {
            (g.count(Counter::RxCore) > sent - 8 * (FILL + 1)).then_some(())
        });
        g.close(s);
        g.expect(Counter::RxCore, sent);
        while let Some(frame) = g.access.receive_within(Duration::from_millis(5)) {
            assert_eq!(frame.last(), Some(&flows[who].mark), "round {round}");
            assert_eq!(frame[..6], s.session.client_mac, "round {round}");
            came[who] += 1;
        }
    }
    println!(
        "{came:?} frames came, {} runs went out for an epoch",
        g.count(Counter::EndQuiescent)
    );
    assert!(came.iter().all(|came| *came > 0));
    g.assert_silent();
    g.assert_conservation();
    expect_buffers(&g, idle);
}

/// What a killed process held is gone with it, and nothing else is: the next one goes on with the sessions, and control's
/// withdrawals do not wait for the one that is gone.
#[test]
fn a_process_killed_with_runs_in_hand_leaves_nothing_that_waits() {
    let mut g = start("killed", 1, 200);
    let s = Subscriber::new(7, 0, Vlans::default());
    let other = Subscriber::new(9, 0, Vlans::default());
    g.open(&s);
    g.open(&other);
    let mut spread = Spread::new(&s);
    map(&g, &s, &[spread.flow, spread.between]);
    while_stopped(&mut g, |g| spread.send(g, &s));
    wait_for("begin of the burst", || {
        (g.count(Counter::RxAccess) > 2).then_some(())
    });
    kill_process(g.pid(), Signal::KILL).unwrap();
    assert!(!g.ended().success());
    g.close(&other);
    while g.core.receive_within(Duration::from_millis(50)).is_some() {}
    g.launch();
    let idle = idle_buffers(&g);
    let (merged, first) = (g.count(Counter::CoalesceMerged), 1_000);
    let flow = spread.flow;
    g.access.send(&flow.frame_up(&g, &s, first - 1));
    let nat = running::frames::source_port(&g.core.receive());
    while_stopped(&mut g, |g| {
        for n in first..first + 8 {
            g.access.send(&flow.frame_up(g, &s, n));
        }
    });
    for n in first..first + 8 {
        let from = (s.block().address, nat);
        assert!(g.core.receive() == flow.out_up(&g, from, n), "{n}");
    }
    g.expect(Counter::CoalesceMerged, merged + 8);
    g.close(&s);
    expect_buffers(&g, idle);
    assert!(g.terminate().success());
}
