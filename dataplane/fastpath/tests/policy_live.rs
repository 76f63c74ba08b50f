//! Policies changed under load: what was acknowledged holds for every packet after it (HZ-07 C(c)).
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bng_fastpath::testing::{NaiveFib, Spec, TestBuf, World, udp};
use bng_fastpath::{FastPath, Origin, Verdict};
use bng_shm::{
    Counter, Filter, FilterAction, FilterId, FilterRule, Policy, PolicyId, Publisher, Record,
    Session, SlotIndex,
};

const CHANGES: u64 = 1_000;
const SLOT: SlotIndex = World::slot(0);

/// What is acknowledged: even numbers let packets pass, odd ones forbid them.
struct Shared {
    acknowledged: AtomicU64,
    stop: AtomicBool,
    passed: AtomicU64,
    dropped: AtomicU64,
}

/// A worker's poll loop over one packet; returns what passed although it was forbidden before the burst and still after.
fn work(
    fast: &mut FastPath,
    fib: &NaiveFib,
    packet: &TestBuf,
    reason: Counter,
    shared: &Shared,
) -> u64 {
    let mut wrong = 0;
    let mut now_ns = 1_000_000_000_000;
    while !shared.stop.load(Ordering::Acquire) {
        now_ns += 1_000;
        let before = shared.acknowledged.load(Ordering::Acquire);
        fast.poll(now_ns);
        let mut bufs = [packet.clone()];
        let mut verdicts = [Verdict::Drop(Counter::NotForUs)];
        fast.upstream(fib, &mut bufs, &mut verdicts, Origin::Port);
        match verdicts[0] {
            Verdict::Forward { .. } => {
                let after = shared.acknowledged.load(Ordering::Acquire);
                wrong += u64::from(before % 2 == 1 && after == before);
                shared.passed.fetch_add(1, Ordering::Relaxed);
            }
            Verdict::Drop(why) if why == reason => {
                shared.dropped.fetch_add(1, Ordering::Relaxed);
            }
            other => panic!("{other:?}"),
        }
        fast.shm().quiescent();
    }
    wrong
}

/// Changes something [`CHANGES`] times; each is acknowledged when an epoch that began after it has passed, and then holds
/// for some packets.
fn toggle(
    publisher: &mut Publisher,
    shared: &Shared,
    mut change: impl FnMut(&mut Publisher, bool),
) {
    let deadline = Instant::now() + Duration::from_secs(300);
    let wait = |until: &dyn Fn() -> bool| {
        while !until() {
            assert!(Instant::now() < deadline, "the worker does not go on");
            std::thread::yield_now();
        }
    };
    for n in 1..=CHANGES {
        change(publisher, n % 2 == 1);
        let token = publisher.advance_epoch();
        wait(&|| publisher.epoch_passed(token));
        shared.acknowledged.store(n, Ordering::Release);
        let count = if n % 2 == 1 {
            &shared.dropped
        } else {
            &shared.passed
        };
        let seen = count.load(Ordering::Relaxed);
        wait(&|| count.load(Ordering::Relaxed) > seen + 3);
        // Nothing is said any more about packets while the next change is under way.
        shared.acknowledged.store(n & !1, Ordering::Release);
    }
}

fn run(policy: Policy, reason: Counter, change: impl FnMut(&mut Publisher, bool)) {
    let mut world = World::new(Spec::default());
    world
        .publisher
        .write_policy(PolicyId(2), Some(&policy))
        .unwrap();
    let session = Session {
        policy: PolicyId(2),
        ..world.session(0)
    };
    let session = world.publish(SLOT, session);
    world
        .publisher
        .publish_filters(&[Filter::default()])
        .unwrap();
    let packet = udp((session.framed_ip, 1), (World::HOST, 53), b"");
    let packet = World::from_subscriber(SLOT, &session, &packet);
    let World {
        mut publisher,
        mut workers,
        fib,
        ..
    } = world;
    let mut worker = workers.remove(0);
    let shared = Shared {
        acknowledged: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        passed: AtomicU64::new(0),
        dropped: AtomicU64::new(0),
    };
    let wrong = std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(&mut worker, &fib, &packet, reason, &shared));
        toggle(&mut publisher, &shared, change);
        shared.stop.store(true, Ordering::Release);
        worker.join().unwrap()
    });
    assert_eq!(
        wrong, 0,
        "packets that passed after the change was acknowledged"
    );
    assert!(shared.passed.into_inner() > CHANGES && shared.dropped.into_inner() > CHANGES);
}

#[test]
fn a_rule_that_was_acknowledged_lets_no_later_packet_pass() {
    let policy = Policy {
        filter: Some(FilterId(0)),
        ..Policy::default()
    };
    let deny = Filter {
        up: vec![FilterRule {
            action: FilterAction::Drop,
            protocol: Some(17),
            remote: None,
            remote_ports: Some((53, 53)),
            local_ports: None,
        }],
        ..Filter::default()
    };
    run(policy, Counter::FilterUpstream, |publisher, is_denied| {
        let filter = if is_denied {
            deny.clone()
        } else {
            Filter::default()
        };
        publisher.publish_filters(&[filter]).unwrap();
    });
}

#[test]
fn a_policy_taken_from_a_session_lets_no_later_packet_pass() {
    run(
        Policy::default(),
        Counter::NoPolicy,
        |publisher, is_taken| {
            let current = publisher.reader().session(SLOT).unwrap().unwrap();
            let policy = if is_taken { PolicyId(0) } else { PolicyId(2) };
            let session = Session { policy, ..current };
            publisher
                .update_session(SLOT, &session, &Record::default())
                .unwrap();
        },
    );
}
