//! Rings hand packets over in order, and lose none.

// The helpers below are test code too, which Clippy does not see.
#![allow(clippy::unwrap_used)]

mod support;

use rte_rs::{Burst, Errno, Error, Mbuf, Mempool, RingConfig, mp_sc_ring, sp_sc_ring};

fn config(name: &str, capacity: u32) -> RingConfig {
    RingConfig {
        name: name.to_owned(),
        capacity,
        numa_node: None,
    }
}

fn numbered(pool: &Mempool, number: u32) -> Option<Mbuf> {
    pool.alloc_copy(&number.to_be_bytes())
}

fn number(mbuf: &Mbuf) -> u32 {
    u32::from_be_bytes(mbuf.data().try_into().unwrap())
}

#[test]
fn what_does_not_fit_stays_with_the_caller_in_order() {
    let pool = support::pool("fit", 127);
    let (mut producer, mut consumer) = sp_sc_ring(&support::eal(), &config("fit", 20)).unwrap();
    let mut burst: Burst<32> = (0..32).map(|n| numbered(&pool, n).unwrap()).collect();
    assert_eq!(producer.enqueue_burst(&mut burst), 20, "capacity is exact");
    assert_eq!(
        burst.iter().map(number).collect::<Vec<_>>(),
        (20..32).collect::<Vec<_>>()
    );
    assert_eq!((producer.count(), producer.free()), (20, 0));
    assert_eq!(producer.enqueue_burst(&mut burst), 0);
    let mut out = Burst::<8>::new();
    assert_eq!(consumer.dequeue_burst(&mut out), 8);
    assert_eq!(consumer.dequeue_burst(&mut out), 0, "no room in the burst");
    assert_eq!(
        out.iter().map(number).collect::<Vec<_>>(),
        (0..8).collect::<Vec<_>>()
    );
    assert_eq!((consumer.count(), consumer.free()), (12, 8));
    drop((burst, out));
    assert_eq!(pool.in_use(), 12);
    drop(producer);
    drop(consumer);
    assert_eq!(pool.in_use(), 0, "a ring frees what is in it");
}

#[test]
fn two_registered_threads_hand_over_in_order() {
    const PACKETS: u32 = 200_000;
    let pool = support::pool("handover", 2047);
    let (mut producer, mut consumer) =
        sp_sc_ring(&support::eal(), &config("handover", 256)).unwrap();
    std::thread::scope(|scope| {
        let allocator = pool.clone();
        scope.spawn(move || {
            let _registered = support::eal().register_thread().unwrap();
            let mut burst = Burst::<32>::new();
            let mut next = 0;
            while next < PACKETS || !burst.is_empty() {
                while next < PACKETS && !burst.is_full() {
                    let Some(mbuf) = numbered(&allocator, next) else {
                        break;
                    };
                    burst.push(mbuf);
                    next += 1;
                }
                if producer.enqueue_burst(&mut burst) == 0 {
                    std::thread::yield_now();
                }
            }
        });
        scope.spawn(move || {
            let _registered = support::eal().register_thread().unwrap();
            let mut burst = Burst::<32>::new();
            let mut expected = 0;
            support::until("all packets", || {
                consumer.dequeue_burst(&mut burst);
                for mbuf in &burst {
                    assert_eq!(number(mbuf), expected);
                    expected += 1;
                }
                Mbuf::free_bulk(&mut burst);
                expected == PACKETS
            });
        });
    });
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn several_producers_lose_nothing() {
    const EACH: u32 = 20_000;
    let pool = support::pool("several", 2047);
    let (producer, mut consumer) = mp_sc_ring(&support::eal(), &config("several", 256)).unwrap();
    let mut seen = vec![false; 2 * EACH as usize];
    std::thread::scope(|scope| {
        for first in [0, EACH] {
            let (pool, producer) = (pool.clone(), producer.clone());
            scope.spawn(move || {
                let _registered = support::eal().register_thread().unwrap();
                let mut burst = Burst::<16>::new();
                for n in first..first + EACH {
                    support::until("an mbuf", || match numbered(&pool, n) {
                        Some(mbuf) => {
                            burst.push(mbuf);
                            true
                        }
                        None => false,
                    });
                    support::until("room in the ring", || {
                        producer.enqueue_burst(&mut burst);
                        burst.is_empty()
                    });
                }
            });
        }
        let mut burst = Burst::<32>::new();
        let mut count = 0;
        support::until("all packets", || {
            count += consumer.dequeue_burst(&mut burst);
            for mbuf in &burst {
                let seen = &mut seen[number(mbuf) as usize];
                assert!(!*seen, "twice");
                *seen = true;
            }
            Mbuf::free_bulk(&mut burst);
            count == 2 * EACH as usize
        });
    });
    assert!(seen.iter().all(|&seen| seen));
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn errors_name_the_ring() {
    let _first = sp_sc_ring(&support::eal(), &config("again", 8)).unwrap();
    let second = sp_sc_ring(&support::eal(), &config("again", 8));
    let Err(Error::Call {
        function,
        object,
        errno,
    }) = second
    else {
        panic!("{second:?}");
    };
    assert_eq!((function, errno), ("rte_ring_create", Errno::EXIST));
    assert!(object.contains("again"), "{object}");
}
