//! FIB lookups agree with a list of routes searched for the longest match.

// The helpers below are test code too, which Clippy does not see.
#![allow(clippy::unwrap_used)]

mod support;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use rte_rs::{
    Errno, Error, Fib4Reader, Fib6Reader, FibConfig, FibReader, FibWriter, NextHopSize, V4, V6, fib,
};

fn fib4(config: &FibConfig) -> (FibWriter<V4>, FibReader<V4>) {
    fib(&support::eal(), config).unwrap()
}

fn config(name: &str, size: NextHopSize) -> FibConfig {
    FibConfig {
        name: name.to_owned(),
        max_routes: 4096,
        default_next_hop: 0,
        tbl8_groups: 64,
        next_hop_size: size,
        numa_node: None,
    }
}

fn mask(len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)
}

/// Routes by length and masked prefix.
type Model = BTreeMap<(u8, u32), u64>;

fn longest_match(model: &Model, address: u32) -> u64 {
    (0..=32u8)
        .rev()
        .find_map(|len| model.get(&(len, address & mask(len))).copied())
        .unwrap_or(0)
}

fn lookup(reader: &Fib4Reader, address: u32) -> u64 {
    let mut next_hop = [u64::MAX];
    reader.lookup_bulk(&[address], &mut next_hop);
    next_hop[0]
}

#[derive(Debug, Clone)]
enum Step {
    Add(u32, u8, u64),
    Delete(prop::sample::Index),
}

/// Prefixes crowd in two /16s, so that they nest, and lie on both sides of /24, where the table splits.
fn step() -> impl Strategy<Value = Step> {
    let address = (0..2u32, any::<u16>())
        .prop_map(|(net, host)| 0x0a00_0000 | net << 16 | u32::from(host & 0x03ff));
    prop_oneof![
        3 => (address, prop_oneof![0..=32u8, 20..=32u8], 1..1000u64).prop_map(|(a, l, n)| Step::Add(a, l, n)),
        1 => any::<prop::sample::Index>().prop_map(Step::Delete),
    ]
}

#[test]
fn lookups_agree_with_the_longest_match() {
    let (writer, reader) = fib4(&config("model", NextHopSize::Two));
    // Both outlive a case: a failed one leaves its routes, and the next must not find them.
    let writer = RefCell::new(writer);
    let model = RefCell::new(Model::new());
    let cases = ProptestConfig::with_cases(64);
    let steps = prop::collection::vec(step(), 1..60);
    proptest!(cases, |(steps in steps, anywhere in prop::collection::vec(any::<u32>(), 8))| {
        let (mut writer, mut model) = (writer.borrow_mut(), model.borrow_mut());
        while let Some(((len, prefix), _)) = model.pop_first() {
            writer.delete(Ipv4Addr::from(prefix), len).unwrap();
        }
        prop_assert_eq!(lookup(&reader, 0x0a00_0001), 0);
        for step in &steps {
            match step {
                Step::Add(address, len, next_hop) => {
                    writer.add(Ipv4Addr::from(*address), *len, *next_hop).unwrap();
                    model.insert((*len, address & mask(*len)), *next_hop);
                }
                Step::Delete(index) if !model.is_empty() => {
                    let key = *index.get(&model.keys().copied().collect::<Vec<_>>());
                    writer.delete(Ipv4Addr::from(key.1), key.0).unwrap();
                    model.remove(&key);
                }
                Step::Delete(_) => {}
            }
        }
        // Both ends of every route, their neighbours, and anywhere.
        let mut addresses = anywhere.clone();
        for (len, prefix) in model.keys() {
            let last = prefix | !mask(*len);
            addresses.extend([*prefix, last, prefix.wrapping_sub(1), last.wrapping_add(1)]);
        }
        let mut next_hops = vec![u64::MAX; addresses.len()];
        reader.lookup_bulk(&addresses, &mut next_hops);
        for (address, next_hop) in addresses.iter().zip(&next_hops) {
            let expected = longest_match(&model, *address);
            prop_assert_eq!(*next_hop, expected, "{}", Ipv4Addr::from(*address));
        }
    });
}

#[test]
fn long_prefixes_with_the_next_hop_around_them_come_and_go() {
    // DPDK before 24.11.5 loses count of its tbl8 groups here and refuses the second round with ENOSPC.
    let (mut writer, reader) = fib4(&config("around", NextHopSize::Two));
    let inner = Ipv4Addr::new(10, 1, 2, 128);
    for around in [8, 24] {
        writer.add(Ipv4Addr::new(10, 1, 2, 0), around, 5).unwrap();
        for _ in 0..100 {
            for len in [25, 32] {
                writer.add(inner, len, 5).unwrap();
                assert_eq!(lookup(&reader, inner.into()), 5);
                writer.delete(inner, len).unwrap();
            }
        }
    }
    writer.add(inner, 25, 0).unwrap();
    assert_eq!(lookup(&reader, inner.into()), 0);
    writer.add(Ipv4Addr::new(10, 1, 2, 0), 24, 0).unwrap();
    writer.delete(inner, 25).unwrap();
    writer.add(inner, 25, 0).unwrap();
    assert_eq!(lookup(&reader, inner.into()), 0);
    assert_eq!(lookup(&reader, Ipv4Addr::new(10, 1, 3, 0).into()), 5);
}

#[test]
fn eight_byte_next_hops_keep_63_bits() {
    let (mut writer, reader) = fib4(&config("wide", NextHopSize::Eight));
    let largest = NextHopSize::Eight.max_next_hop();
    writer
        .add(Ipv4Addr::new(192, 0, 2, 0), 24, largest)
        .unwrap();
    writer
        .add(Ipv4Addr::new(192, 0, 2, 128), 32, largest - 1)
        .unwrap();
    assert_eq!(lookup(&reader, 0xc000_0201), largest);
    assert_eq!(lookup(&reader, 0xc000_0280), largest - 1);
    let error = writer
        .add(Ipv4Addr::new(192, 0, 2, 0), 24, largest + 1)
        .unwrap_err();
    assert_eq!(
        error,
        Error::NextHopTooLarge {
            fib: "wide".to_owned(),
            next_hop: largest + 1,
            max: largest
        }
    );
}

#[test]
fn slices_of_unequal_length_are_safe() {
    let (_writer, reader) = fib4(&config("slices", NextHopSize::One));
    let mut next_hops = [9; 3];
    reader.lookup_bulk(&[1], &mut next_hops);
    assert_eq!(next_hops, [0, 9, 9]);
    reader.lookup_bulk(&[1, 2, 3, 4], &mut next_hops[..2]);
    assert_eq!(next_hops, [0, 0, 9]);
    reader.lookup_bulk(&[], &mut next_hops);
    assert_eq!(next_hops, [0, 0, 9]);
}

#[test]
fn errors_name_the_route() {
    let (mut writer, _reader) = fib4(&config("errors", NextHopSize::One));
    let error = writer.delete(Ipv4Addr::new(10, 0, 0, 0), 8).unwrap_err();
    let Error::Call {
        function,
        object,
        errno,
    } = error
    else {
        panic!("{error:?}");
    };
    assert_eq!((function, errno), ("rte_fib_delete", Errno::NOENT));
    assert_eq!(object, "10.0.0.0/8 in FIB errors");
    let error = writer.add(Ipv4Addr::new(10, 0, 0, 0), 33, 1).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Call {
                errno: Errno::INVAL,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_reader_sees_the_old_or_the_new_route_while_it_changes() {
    let (mut writer, reader) = fib4(&config("churn", NextHopSize::Two));
    let prefix = Ipv4Addr::new(198, 51, 100, 0);
    writer.add(prefix, 24, 1).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let addresses: Vec<u32> = (0..32).map(|host| u32::from(prefix) + host).collect();
            let mut seen = [0u64; 3];
            let mut next_hops = [0; 32];
            while !stop.load(Ordering::Relaxed) || seen.contains(&0) {
                reader.lookup_bulk(&addresses, &mut next_hops);
                for next_hop in next_hops {
                    assert!(next_hop <= 2, "{next_hop}");
                    seen[next_hop as usize] += 1;
                }
            }
            seen
        });
        // The /24 alone, so that no tbl8 is involved: 1, 2 and (deleted) the default 0 are all there ever is.
        support::until("the reader to have seen every state", || {
            writer.add(prefix, 24, 2).unwrap();
            std::thread::yield_now();
            writer.delete(prefix, 24).unwrap();
            std::thread::yield_now();
            writer.add(prefix, 24, 1).unwrap();
            std::thread::yield_now();
            stop.store(true, Ordering::Relaxed);
            reader.is_finished()
        });
        assert!(reader.join().unwrap().iter().all(|&count| count > 0));
    });
}

fn mask6(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
}

type Model6 = BTreeMap<(u8, u128), u64>;

fn longest_match6(model: &Model6, address: u128) -> u64 {
    (0..=128u8)
        .rev()
        .find_map(|len| model.get(&(len, address & mask6(len))).copied())
        .unwrap_or(0)
}

fn lookup6(reader: &Fib6Reader, address: u128) -> u64 {
    let mut next_hop = [u64::MAX];
    reader.lookup_bulk(&[address.to_be_bytes()], &mut next_hop);
    next_hop[0]
}

#[derive(Debug, Clone)]
enum Step6 {
    Add(u128, u8, u64),
    Delete(prop::sample::Index),
}

/// Prefixes that nest at all lengths: few values in each octet.
fn step6() -> impl Strategy<Value = Step6> {
    let address =
        prop::array::uniform16(prop_oneof![3 => Just(0u8), 1 => Just(1u8), 1 => Just(0x80u8)])
            .prop_map(u128::from_be_bytes);
    let len =
        prop_oneof![2 => 0..=128u8, 1 => prop::sample::select(vec![24u8, 25, 32, 48, 56, 64, 128])];
    prop_oneof![
        3 => (address, len, 1..5u64).prop_map(|(a, l, n)| Step6::Add(a, l, n)),
        1 => any::<prop::sample::Index>().prop_map(Step6::Delete),
    ]
}

#[test]
fn ipv6_lookups_agree_with_the_longest_match() {
    let config = FibConfig {
        tbl8_groups: 2048,
        ..config("model6", NextHopSize::Two)
    };
    let (writer, reader) = fib::<V6>(&support::eal(), &config).unwrap();
    let writer = RefCell::new(writer);
    let model = RefCell::new(Model6::new());
    let cases = ProptestConfig::with_cases(64);
    let steps = prop::collection::vec(step6(), 1..60);
    proptest!(cases, |(steps in steps, anywhere in prop::collection::vec(any::<u128>(), 8))| {
        let (mut writer, mut model) = (writer.borrow_mut(), model.borrow_mut());
        while let Some(((len, prefix), _)) = model.pop_first() {
            writer.delete(Ipv6Addr::from(prefix), len).unwrap();
        }
        prop_assert_eq!(lookup6(&reader, 1), 0);
        for step in &steps {
            match step {
                Step6::Add(address, len, next_hop) => {
                    // Host bits are ignored.
                    writer.add(Ipv6Addr::from(*address), *len, *next_hop).unwrap();
                    model.insert((*len, address & mask6(*len)), *next_hop);
                }
                Step6::Delete(index) if !model.is_empty() => {
                    let key = *index.get(&model.keys().copied().collect::<Vec<_>>());
                    writer.delete(Ipv6Addr::from(key.1), key.0).unwrap();
                    model.remove(&key);
                }
                Step6::Delete(_) => {}
            }
        }
        let mut addresses = anywhere.clone();
        for (len, prefix) in model.keys() {
            let last = prefix | !mask6(*len);
            addresses.extend([*prefix, last, prefix.wrapping_sub(1), last.wrapping_add(1)]);
        }
        for address in addresses {
            let expected = longest_match6(&model, address);
            prop_assert_eq!(lookup6(&reader, address), expected, "{}", Ipv6Addr::from(address));
        }
    });
}

#[test]
fn long_ipv6_prefixes_with_the_next_hop_around_them_come_and_go() {
    let config = FibConfig {
        tbl8_groups: 64,
        ..config("around6", NextHopSize::Two)
    };
    let (mut writer, reader) = fib::<V6>(&support::eal(), &config).unwrap();
    let outer: Ipv6Addr = "2001:db8::".parse().unwrap();
    let inner: Ipv6Addr = "2001:db8:0:7::".parse().unwrap();
    for around in [16, 32, 48] {
        writer.add(outer, around, 5).unwrap();
        for _ in 0..100 {
            for len in [56, 64, 128] {
                writer.add(inner, len, 5).unwrap();
                assert_eq!(lookup6(&reader, inner.into()), 5);
                writer.delete(inner, len).unwrap();
            }
        }
    }
    // A prefix inside, at the same first address, does not hide the one around.
    writer.add(inner, 128, 6).unwrap();
    writer.add(inner, 64, 5).unwrap();
    writer.delete(inner, 64).unwrap();
    assert_eq!(lookup6(&reader, inner.to_bits()), 6);
    assert_eq!(lookup6(&reader, inner.to_bits() + 1), 5);
}

#[test]
fn tbl8_groups_that_run_out_are_an_error_and_the_rest_still_leads_somewhere() {
    let config = FibConfig {
        tbl8_groups: 4,
        ..config("scarce", NextHopSize::Two)
    };
    let (mut writer, reader) = fib4(&config);
    writer.add(Ipv4Addr::new(10, 0, 0, 0), 8, 1).unwrap();
    let host = |n: u8| Ipv4Addr::new(10, 0, n, 1);
    // DPDK rounds their number up to 64.
    let refused = (0..100u8)
        .filter(|n| match writer.add(host(*n), 32, 2) {
            Ok(()) => false,
            Err(Error::Call { errno, .. }) => {
                assert_eq!(errno, Errno::NOSPC);
                true
            }
            Err(error) => panic!("{error}"),
        })
        .count();
    assert!((36..=37).contains(&refused), "{refused}");
    assert_eq!(lookup(&reader, host(0).into()), 2);
    assert_eq!(lookup(&reader, host(99).into()), 1, "the prefix around it");
    // What is deleted makes room.
    writer.delete(host(0), 32).unwrap();
    writer.add(host(99), 32, 3).unwrap();
    assert_eq!(lookup(&reader, host(99).into()), 3);
}

#[test]
fn a_fib_that_does_not_fit_says_how_much_it_needs() {
    let config = FibConfig {
        tbl8_groups: 1 << 30,
        ..config("vast", NextHopSize::Eight)
    };
    let error = fib::<V4>(&support::eal(), &config).map(drop).unwrap_err();
    let text = error.to_string();
    assert_eq!(
        text,
        "FIB vast of 4096 routes does not fit EAL's memory: it needs about 2097282 MiB"
    );
}

/// A full table: lengths as the internet has them, most of them /24.
#[test]
fn a_million_routes_go_in_and_come_out() {
    const ROUTES: u32 = 1_000_000;
    let config = FibConfig {
        max_routes: ROUTES,
        ..config("million", NextHopSize::Two)
    };
    let made = fib::<V4>(&support::eal(), &config);
    // Without huge pages there is not that much memory in these tests.
    if let Err(Error::FibMemory { mib, .. }) = made {
        println!("left out: {mib} MiB are not there");
        return;
    }
    let (mut writer, reader) = made.unwrap();
    let routes: Vec<_> = (0..ROUTES)
        .map(|n| {
            let len = [24u8, 24, 24, 23, 22, 20, 24, 19][n as usize % 8];
            let prefix = (n.wrapping_mul(0x0001_0f25) % (224 << 16)) << 8 & mask(len);
            (Ipv4Addr::from(prefix), len, u64::from(n % 1_000) + 1)
        })
        .collect();
    let started = std::time::Instant::now();
    for (prefix, len, next_hop) in &routes {
        writer.add(*prefix, *len, *next_hop).unwrap();
    }
    let added = started.elapsed();
    let model: Model = routes
        .iter()
        .map(|(prefix, len, next_hop)| ((*len, u32::from(*prefix)), *next_hop))
        .collect();
    let addresses: Vec<u32> = (0..1_000_000u32)
        .map(|n| n.wrapping_mul(2_654_435_761))
        .collect();
    let mut next_hops = vec![u64::MAX; addresses.len()];
    let started = std::time::Instant::now();
    for (addresses, next_hops) in addresses.chunks(32).zip(next_hops.chunks_mut(32)) {
        reader.lookup_bulk(addresses, next_hops);
    }
    let looked_up = started.elapsed();
    for (address, next_hop) in addresses.iter().zip(&next_hops).step_by(37) {
        assert_eq!(*next_hop, longest_match(&model, *address), "{address:#x}");
    }
    let started = std::time::Instant::now();
    for (len, prefix) in model.keys() {
        writer.delete(Ipv4Addr::from(*prefix), *len).unwrap();
    }
    println!(
        "{} routes added in {added:?}, a million random look-ups in {looked_up:?}, withdrawn in {:?}",
        model.len(),
        started.elapsed()
    );
    assert!(addresses.iter().all(|a| lookup(&reader, *a) == 0));
}
