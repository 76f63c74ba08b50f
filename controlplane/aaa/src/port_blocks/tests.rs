use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

const REST: Duration = Duration::from_secs(60);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn addresses(count: u8) -> Vec<Ipv4Addr> {
    (0..count).map(|n| Ipv4Addr::new(203, 0, 113, n)).collect()
}

/// Three addresses of four blocks, first dense index 10.
fn small() -> PortBlocks {
    PortBlocks::new("cgn", 10, addresses(3), 49_152, 4096, REST)
}

#[test]
fn default_layout_has_126_blocks_of_512_ports_up_to_65535() {
    let mut blocks = PortBlocks::new("cgn", 0, addresses(1), 1024, 512, REST);
    assert_eq!(blocks.total(), 126);
    let last = blocks.reserve(0, 125).unwrap();
    assert_eq!((last.first_port, last.size), (65_024, 512));
    assert!(blocks.reserve(0, 126).is_err());
}

#[test]
fn subscribers_spread_over_the_addresses() {
    let mut blocks = small();
    let indexes: Vec<u32> = (0..6)
        .map(|_| blocks.allocate(at(0)).unwrap().address_index)
        .collect();
    assert_eq!(indexes, [10, 11, 12, 10, 11, 12]);
}

#[test]
fn released_block_rests_and_then_comes_after_the_others() {
    let mut blocks = PortBlocks::new("cgn", 0, addresses(1), 49_152, 4096, REST);
    for _ in 0..4 {
        blocks.allocate(at(0)).unwrap();
    }
    blocks.release(at(5), 0, 2).unwrap();
    assert_eq!((blocks.used(), blocks.resting()), (3, 1));
    let refused = blocks.allocate(at(64)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "no free port block in NAT pool cgn (1 in quarantine)"
    );
    assert_eq!(blocks.allocate(at(65)).unwrap().block, 2);
}

#[test]
fn block_is_not_reused_at_once_without_quarantine_either() {
    let mut blocks = PortBlocks::new("cgn", 0, addresses(1), 49_152, 4096, Duration::ZERO);
    let first = blocks.allocate(at(0)).unwrap();
    blocks
        .release(at(0), first.address_index, first.block)
        .unwrap();
    assert_ne!(blocks.allocate(at(0)).unwrap().block, first.block);
}

#[test]
fn clock_that_steps_back_frees_nothing_early() {
    let mut blocks = PortBlocks::new("cgn", 0, addresses(1), 49_152, 8192, REST);
    blocks.allocate(at(100)).unwrap();
    blocks.allocate(at(100)).unwrap();
    blocks.release(at(100), 0, 0).unwrap();
    blocks.release(at(50), 0, 1).unwrap();
    assert!(blocks.allocate(at(159)).is_err());
    assert!(blocks.allocate(at(160)).is_ok());
}

#[test]
fn strange_blocks_are_refused_by_name() {
    let mut blocks = small();
    for (index, block) in [(9, 0), (13, 0), (10, 4), (0, 0), (u32::MAX, u16::MAX)] {
        assert!(
            matches!(
                blocks.reserve(index, block),
                Err(BlockError::NoSuchBlock { .. })
            ),
            "{index} {block}"
        );
        assert!(
            matches!(
                blocks.release(at(0), index, block),
                Err(BlockError::NoSuchBlock { .. })
            ),
            "{index} {block}"
        );
    }
    assert_eq!(
        blocks.release(at(0), 11, 3).unwrap_err().to_string(),
        "block 3 on 203.0.113.1 of NAT pool cgn is not in use"
    );
    blocks.reserve(11, 3).unwrap();
    assert_eq!(
        blocks.reserve(11, 3).unwrap_err().to_string(),
        "block 3 on 203.0.113.1 of NAT pool cgn is in use or in quarantine"
    );
}

#[test]
fn ports_too_few_for_a_block_make_an_empty_pool() {
    let mut blocks = PortBlocks::new("cgn", 0, addresses(2), 65_000, 1024, REST);
    assert_eq!(blocks.total(), 0);
    assert!(blocks.allocate(at(0)).is_err());
    assert!(blocks.reserve(0, 0).is_err());
}

#[derive(Clone, Debug)]
enum Step {
    Allocate,
    Reserve(u32, u16),
    Release(u32, u16),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let block = || (9u32..14, 0u16..6);
    prop_oneof![
        3 => Just(Step::Allocate),
        1 => block().prop_map(|(index, block)| Step::Reserve(index, block)),
        2 => block().prop_map(|(index, block)| Step::Release(index, block)),
        1 => (0u64..90).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn no_block_is_handed_out_twice_or_before_its_quarantine_ends(steps in prop::collection::vec(step(), 0..300)) {
        let mut blocks = small();
        let mut now = at(0);
        let mut owned: HashSet<(u32, u16)> = HashSet::new();
        // End of the quarantine of each block that was ever released.
        let mut ends: HashMap<(u32, u16), Duration> = HashMap::new();
        for step in steps {
            match step {
                Step::Wait(seconds) => now += at(seconds),
                Step::Allocate => match blocks.allocate(now) {
                    Ok(it) => {
                        let key = (it.address_index, it.block);
                        prop_assert!(owned.insert(key), "twice: {it:?}");
                        prop_assert!(ends.remove(&key).is_none_or(|end| end <= now), "too early: {it:?}");
                        prop_assert_eq!(it.address, Ipv4Addr::new(203, 0, 113, (it.address_index - 10) as u8));
                        prop_assert_eq!(it.first_port, 49_152 + it.block * 4096);
                    }
                    Err(refused) => {
                        let resting = ends.values().filter(|end| **end > now).count();
                        prop_assert_eq!(owned.len() + resting, 12);
                        prop_assert_eq!(refused.resting as usize, resting);
                    }
                },
                Step::Reserve(index, block) => {
                    if blocks.reserve(index, block).is_ok() {
                        prop_assert!(owned.insert((index, block)));
                        prop_assert!(ends.remove(&(index, block)).is_none_or(|end| end <= now));
                    }
                }
                Step::Release(index, block) => {
                    let had = owned.remove(&(index, block));
                    prop_assert_eq!(blocks.release(now, index, block).is_ok(), had);
                    if had {
                        ends.insert((index, block), now + REST);
                    }
                }
            }
            prop_assert_eq!(blocks.used() as usize, owned.len());
        }
        for (index, block) in owned {
            blocks.release(now, index, block).unwrap();
        }
        now += REST;
        let all: HashSet<_> = std::iter::from_fn(|| blocks.allocate(now).ok()).collect();
        prop_assert_eq!((all.len(), blocks.used(), blocks.resting()), (12, 12, 0));
    }

    #[test]
    fn difference_between_addresses_stays_one_block_while_nobody_leaves(count in 1usize..250, size in 6u32..15) {
        let mut blocks = PortBlocks::new("cgn", 0, addresses(5), 1024, 1 << size, REST);
        let mut per_address = [0i32; 5];
        for _ in 0..count.min(blocks.total() as usize) {
            per_address[blocks.allocate(at(0)).unwrap().address_index as usize] += 1;
        }
        let spread = per_address.iter().max().unwrap() - per_address.iter().min().unwrap();
        prop_assert!(spread <= 1, "{per_address:?}");
    }
}

#[test]
fn a_further_block_is_on_the_same_address_or_there_is_none() {
    let addresses = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
    let mut blocks = PortBlocks::new("cgn", 5, addresses, 49_152, 4_096, Duration::from_secs(10));
    let now = Duration::ZERO;
    let first = blocks.allocate(now).unwrap();
    let mut held = vec![first.block];
    for _ in 1..4 {
        let more = blocks.allocate_on(first.address_index, now).unwrap();
        assert_eq!(more.address, first.address);
        assert!(!held.contains(&more.block));
        held.push(more.block);
    }
    let none = blocks.allocate_on(first.address_index, now).unwrap_err();
    assert_eq!((none.pool.as_str(), none.resting), ("cgn", 0));
    assert_eq!(blocks.used(), 4);
    // One released rests first.
    blocks.release(now, first.address_index, held[2]).unwrap();
    assert_eq!(
        blocks
            .allocate_on(first.address_index, now)
            .unwrap_err()
            .resting,
        1
    );
    let later = Duration::from_secs(10);
    assert_eq!(
        blocks
            .allocate_on(first.address_index, later)
            .unwrap()
            .block,
        held[2]
    );
    assert_eq!(blocks.allocate(later).unwrap().address, addresses[1]);
    for unknown in [0, 4, 7, u32::MAX] {
        assert!(blocks.allocate_on(unknown, later).is_err());
    }
}
