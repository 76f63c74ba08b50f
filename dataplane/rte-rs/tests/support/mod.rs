//! One EAL per test process, with hugepages where the machine has them free and without where it does not.

// Every test binary includes this file and uses part of it.
#![allow(dead_code, unreachable_pub)]
#![allow(clippy::expect_used, clippy::panic)]

use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rte_rs::{Burst, Eal, EalArgs, Memory, Mempool, MempoolConfig, RxQueue, TxQueue};

pub fn args() -> EalArgs {
    // Unique per test binary; its processes share nothing, neither memory files nor configuration.
    let args = EalArgs::new(concat!("rte-rs-", env!("CARGO_CRATE_NAME")))
        .pci(false)
        .telemetry(false)
        .log_level("*:notice")
        .restore_affinity(true);
    // Several processes may take them at the same time, the largest some 200 MiB.
    if free_hugepages_mib() >= 1024 {
        args.memory(Memory::HugepagesUnlinked)
    } else {
        args.memory(Memory::NoHugepages { mib: 384 })
            .extra(["--no-shconf"])
    }
}

pub fn eal() -> Eal {
    static EAL: OnceLock<Eal> = OnceLock::new();
    EAL.get_or_init(|| Eal::init(&args()).expect("these tests run as root"))
        .clone()
}

pub fn pool(name: &str, count: u32) -> Mempool {
    Mempool::create(&eal(), &MempoolConfig::new(name, count)).expect("memory for the pool")
}

fn free_hugepages_mib() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let figure = |key: &str| {
        meminfo
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0)
    };
    figure("HugePages_Free:") * figure("Hugepagesize:") / 1024
}

pub fn command(line: &str) {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap_or_default())
        .args(words)
        .output()
        .expect("the command exists");
    assert!(
        output.status.success(),
        "{line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Polls until `done`; a test that waits longer than this has failed.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < deadline, "gave up waiting for {what}");
        std::thread::yield_now();
    }
}

/// Receives on `queues` until `count` frames for which `wanted` holds have come, and returns the bytes of each.
pub fn receive(
    queues: &mut [RxQueue],
    count: usize,
    wanted: impl Fn(&[u8]) -> bool,
) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut burst = Burst::<32>::new();
    until(&format!("{count} frames"), || {
        for queue in &mut *queues {
            queue.burst(&mut burst);
            frames.extend(
                burst
                    .iter()
                    .filter(|mbuf| wanted(mbuf.data()))
                    .map(|mbuf| mbuf.data().to_vec()),
            );
            burst.clear();
        }
        frames.len() >= count
    });
    frames
}

/// Sends `frames` on `queue`, all of them.
pub fn send(queue: &mut TxQueue, pool: &Mempool, frames: &[Vec<u8>]) {
    let mut burst = Burst::<32>::new();
    for chunk in frames.chunks(32) {
        for frame in chunk {
            burst.push(pool.alloc_copy(frame).expect("the pool has mbufs"));
        }
        until("transmission", || {
            queue.burst(&mut burst);
            burst.is_empty()
        });
    }
}
