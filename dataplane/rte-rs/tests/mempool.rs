//! Every mbuf comes home, whichever way and thread it takes.

mod support;

use rte_rs::{Burst, Errno, Error, Mbuf, Mempool, MempoolConfig};

#[test]
fn bulk_and_single_ways_return_the_pool_to_idle() {
    let pool = support::pool("idle", 511);
    assert_eq!((pool.in_use(), pool.available()), (0, 511));
    let mut burst = Burst::<64>::new();
    assert!(pool.alloc_bulk(&mut burst, 40));
    assert!(
        !pool.alloc_bulk(&mut burst, 25),
        "no room in the burst for 25 more"
    );
    assert!(pool.alloc_bulk(&mut burst, 24));
    let single = pool.alloc().unwrap();
    assert_eq!((pool.in_use(), pool.available()), (65, 446));
    drop(burst.pop());
    Mbuf::free_bulk(&mut burst);
    assert!(burst.is_empty());
    drop(single);
    assert_eq!((pool.in_use(), pool.available()), (0, 511));
}

#[test]
fn an_empty_pool_says_so_and_recovers() {
    let pool = support::pool("small", 63);
    let all: Vec<Mbuf> = std::iter::from_fn(|| pool.alloc()).collect();
    assert_eq!(all.len(), 63);
    let mut burst = Burst::<8>::new();
    assert!(!pool.alloc_bulk(&mut burst, 1));
    assert!(pool.alloc_copy(b"frame").is_none());
    drop(all);
    assert!(pool.alloc_bulk(&mut burst, 8));
    assert_eq!(pool.in_use(), 8);
}

#[test]
fn registered_threads_free_what_others_allocated() {
    let pool = support::pool("threads", 1023);
    let mut burst = Burst::<32>::new();
    assert!(pool.alloc_bulk(&mut burst, 32));
    std::thread::scope(|scope| {
        let pool = pool.clone();
        scope.spawn(move || {
            let _registered = support::eal().register_thread().unwrap();
            Mbuf::free_bulk(&mut burst);
            assert!(pool.alloc_bulk(&mut burst, 16));
        });
    });
    assert_eq!(
        pool.in_use(),
        0,
        "mbufs in the cache of a thread that left are available"
    );
    assert_eq!(pool.available(), 1023);
}

#[test]
fn frames_are_copied_whole_or_not_at_all() {
    let pool = support::pool("copies", 63);
    let largest = vec![0xa5; 2048];
    assert_eq!(pool.alloc_copy(&largest).unwrap().data(), &largest[..]);
    assert!(pool.alloc_copy(&[0; 2049]).is_none());
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn errors_name_the_pool_and_the_reason() {
    let _first = support::pool("twice", 63);
    let second = Mempool::create(&support::eal(), &MempoolConfig::new("twice", 63));
    let Err(Error::Call {
        function,
        object,
        errno,
    }) = second
    else {
        panic!("{second:?}");
    };
    assert_eq!((function, errno), ("rte_pktmbuf_pool_create", Errno::EXIST));
    assert!(object.contains("twice"), "{object}");
    let nul = Mempool::create(&support::eal(), &MempoolConfig::new("a\0b", 63)).unwrap_err();
    assert_eq!(
        nul,
        Error::NulByte {
            text: "a\0b".to_owned()
        }
    );
}
